/* SPDX-License-Identifier: MIT */
/* The judge's books: what was posted, what came of it, and what it carried. See api.h. */
#include "api.h"

static struct rec *banks[BANKS][2]; /* sends and receives */

/* ---- octets ---- */

static inline __attribute__((always_inline)) uint64_t word(uint64_t place)
{
	place *= 0x9e3779b97f4a7c15;
	return place ^ place >> 29;
}

/* Octet i depends on from + i / 8, so that a part can be told by its place. */
void pattern_fill(uint8_t *at, size_t n, uint64_t from)
{
	uint64_t w;

	for (; n >= 8; n -= 8, at += 8) {
		w = word(from++);
		memcpy(at, &w, 8);
	}
	w = word(from);
	memcpy(at, &w, n);
}

bool pattern_is(const uint8_t *at, size_t n, uint64_t from)
{
	uint64_t w;

	for (; n >= 8; n -= 8, at += 8) {
		w = word(from++);
		if (memcmp(at, &w, 8))
			return false;
	}
	w = word(from);
	return !memcmp(at, &w, n);
}

/* The same for what the peer wrote. Between the last look at such a place and the next Write to it lies
 * TCP, through which ThreadSanitizer cannot follow an order; so it does not see this. */
#if UNDER_TSAN
__attribute__((no_sanitize("thread")))
#endif
static bool
target_is(const uint8_t *at, size_t n, uint64_t from)
{
	for (size_t i = 0; i < n; i++)
		if (at[i] != (uint8_t)(word(from + i / 8) >> i % 8 * 8))
			return false;
	return true;
}

uint64_t link_name(const struct link *l)
{
	return mix(seed * 1000 + (uint64_t)l->index) + l->gen;
}

uint64_t library_seed(const struct end *e)
{
	return link_name(e->link) << 8 | (uint64_t)e->side << 63;
}

/* ---- records ---- */

void book_init(struct rec *recs, uint32_t n, uint32_t bank, struct end *e, struct srqx *srq)
{
	banks[bank][srq || recs == e->recvs] = recs;
	for (uint32_t i = 0; i < n; i++) {
		recs[i].bank = bank;
		recs[i].index = i;
		recs[i].end = e;
		recs[i].srq = srq;
	}
}

struct rec *book_reserve(struct rec *recs, uint32_t n)
{
	uint32_t from = draw(n);

	for (uint32_t i = 0; i < n; i++) {
		struct rec *r = &recs[(from + i) % n];
		unsigned is = REC_FREE;

		if (!atomic_compare_exchange_strong(&r->state, &is, REC_RESERVED))
			continue;
		atomic_fetch_add(&r->gen, 1);
		r->ahead = NULL;
		r->key_of = NULL;
		r->signaled = true;
		r->length = 0;
		return r;
	}
	return NULL;
}

void book_unreserve(void *rec)
{
	struct rec *r = rec;

	atomic_store(&r->state, REC_FREE);
}

static bool is_recv(const struct rec *r)
{
	return r->srq || r->kind == REC_RECV;
}

uint64_t book_id(const struct rec *r)
{
	return (uint64_t)atomic_load(&((struct rec *)r)->gen) << 32 | r->bank << 16 |
	       (uint32_t)is_recv(r) << 15 | r->index;
}

static atomic_uint *counter_of(struct rec *r)
{
	return r->kind == REC_RECV ? &r->end->out_recvs : &r->end->out_sends;
}

void book_post(struct rec *r)
{
	if (r->end && r->signaled)
		atomic_fetch_add(counter_of(r), 1);
	atomic_store(&r->state, REC_POSTED);
}

void book_refuse(struct rec *r)
{
	unsigned is = REC_POSTED;

	if (!atomic_compare_exchange_strong(&r->state, &is, REC_RESERVED))
		fail("a request that was refused has been completed");
	if (r->end && r->signaled)
		atomic_fetch_sub(counter_of(r), 1);
	atomic_store(&r->state, REC_FREE);
}

void book_forget(struct rec *recs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		must(atomic_load(&recs[i].state) != REC_RESERVED);
		atomic_store(&recs[i].state, REC_FREE);
	}
}

bool book_is_empty(struct rec *recs, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (atomic_load(&recs[i].state) != REC_FREE)
			return false;
	return true;
}

static struct rec *find(uint64_t id)
{
	uint32_t bank = id >> 16 & 0xffff, index = id & 0x7fff, recv = id >> 15 & 1;
	struct rec *r;

	if (bank >= BANKS || index >= NSEND || !banks[bank][recv])
		fail("a completion for id %llx, which is nobody's", (unsigned long long)id);
	r = &banks[bank][recv][index];
	if (atomic_load(&r->gen) != id >> 32 || atomic_load(&r->state) != REC_POSTED)
		fail("a completion for id %llx: bank %u %s %u is in state %u, %u",
		     (unsigned long long)id, bank, recv ? "receive" : "send", index,
		     atomic_load(&r->state), atomic_load(&r->gen));
	return r;
}

/* A new queue pair may stand where one was that is just being destroyed: then it is meant. */
static struct end *find_end(const struct flue_qp *qp)
{
	struct end *found = NULL;

	for (int i = 0; i < LINKS; i++)
		for (int side = 0; side < 2; side++) {
			struct end *e = &links[i].ends[side];

			if (atomic_load(&e->qp) == qp && (!found || !atomic_load(&e->dying)))
				found = e;
		}
	return found;
}

/* ---- completions ---- */

/* Threads that took messages may book them in another order: of each record of the sender the last
 * uses are remembered. */
static void check_once(struct end *e, const struct label *label)
{
	struct seen *s = &e->seen[label->rec % NSEND];
	uint32_t back;

	pthread_mutex_lock(&e->seen_lock);
	if (label->gen > s->top) {
		back = label->gen - s->top;
		s->mask = back < 64 ? s->mask << back : 0;
		s->mask |= 1;
		s->top = label->gen;
	} else if (s->top - label->gen < 64) {
		uint64_t bit = (uint64_t)1 << (s->top - label->gen);

		if (s->mask & bit)
			fail("a message came twice");
		s->mask |= bit;
	}
	pthread_mutex_unlock(&e->seen_lock);
}

static void check_label(struct end *e, const struct rec *r, const struct flue_wc *wc)
{
	struct end *from = &e->link->ends[!e->side];
	struct label label;

	memcpy(&label, r->at, sizeof(label));
	if (label.magic != LABEL_MAGIC || label.link != link_name(e->link) ||
	    label.side != (uint32_t)from->side || label.length != wc->byte_len)
		fail("a message of %u octets is not one of this connection", wc->byte_len);
	if (!pattern_is(r->at + sizeof(label), label.length - sizeof(label), label.seed))
		fail("a message of %u octets is not as it was sent", label.length);
	check_once(e, &label);
	if (label.target) {
		const uint8_t *at = e->memory + (size_t)(label.target - 1) * MESSAGE;

		if (!target_is(at, label.target_length, label.target_seed))
			fail("a Write before a message is not there");
		atomic_store(&e->target_used[label.target - 1], 0);
	}
	if (label.key) {
		must(wc->flags & FLUE_WC_INVALIDATED && wc->inv_key == label.key);
		key_invalidated(e, label.key);
	} else {
		must(!(wc->flags & FLUE_WC_INVALIDATED));
	}
}

static void check_done(struct end *e, struct rec *r, const struct flue_wc *wc)
{
	static const uint32_t ops[] = {
		[REC_SEND] = FLUE_WC_SEND,    [REC_WRITE] = FLUE_WC_WRITE,
		[REC_READ] = FLUE_WC_READ,    [REC_RECV] = FLUE_WC_RECV,
		[REC_REG] = FLUE_WC_FAST_REG, [REC_INV] = FLUE_WC_LOCAL_INV,
		[REC_BIND] = FLUE_WC_BIND_MW,
	};

	if (r->kind == REC_BAD)
		fail("a request that is not possible succeeded");
	if (wc->op != ops[r->kind])
		fail("a completion of kind %u for a request of kind %u", wc->op, r->kind);
	if (!r->signaled)
		fail("an unsignaled request succeeded and has a completion");
	if (r->kind == REC_READ &&
	    (wc->byte_len != r->length || !pattern_is(r->at, r->length, r->seed)))
		fail("a Read of %u octets brought something else", r->length);
	if (r->kind != REC_RECV)
		return;
	if (wc->byte_len)
		check_label(e, r, wc);
	atomic_fetch_add(&e->received, 1);
	atomic_fetch_add(&n_messages, 1);
}

static void check_failed(struct end *e, struct rec *r, const struct flue_wc *wc)
{
	struct link *l = e->link;

	atomic_fetch_add(&n_flushed, 1);
	if (wc->status == FLUE_WC_FATAL || wc->status >= FLUE_WC_NSTATUS)
		fail("status %u", wc->status);
	if (atomic_load(&l->spoilt))
		return;
	if (atomic_load(&l->closing) && r->kind == REC_RECV && wc->status == FLUE_WC_FLUSHED)
		return;
	link_tell(l);
	fail("a request (kind %u) of link %d side %d, which nobody disturbed, failed: %s", r->kind,
	     l->index, e->side, flue_wc_status_name(wc->status));
}

static void free_those_ahead(struct rec *r)
{
	for (struct rec *a = r->ahead, *next; a; a = next) {
		unsigned is = REC_POSTED;

		next = a->ahead;
		if (!atomic_compare_exchange_strong(&a->state, &is, REC_FREE))
			fail("an unsignaled request failed, and one behind it succeeded");
	}
}

static void done_with_srq(struct srqx *x, bool message)
{
	pthread_mutex_lock(&x->lock);
	must(x->posted > 0);
	x->posted--;
	if (message) {
		must(x->in_flight > 0);
		x->in_flight--;
	}
	pthread_mutex_unlock(&x->lock);
}

struct end *book_completion(struct cqx *x, const struct flue_wc *wc)
{
	struct rec *r = find(wc->id);
	struct end *e = r->end ? r->end : find_end(wc->qp);
	bool ok = wc->status == FLUE_WC_SUCCESS;
	struct srqx *srq = r->srq;

	if (!e || atomic_load(&e->qp) != wc->qp)
		fail("a completion names another queue pair");
	must((r->kind == REC_RECV ? e->rcq : e->scq) == x);
	if (ok) {
		check_done(e, r, wc);
		free_those_ahead(r);
	} else {
		check_failed(e, r, wc);
	}
	if (r->key_of)
		keys_completion(r, ok);
	if (srq)
		done_with_srq(srq, ok);
	{
		/* The record may be somebody else's at once. */
		atomic_uint *counter = r->end && r->signaled ? counter_of(r) : NULL;
		unsigned is = REC_POSTED;

		if (!atomic_compare_exchange_strong(&r->state, &is, REC_FREE))
			fail("a request was completed twice");
		if (counter)
			atomic_fetch_sub(counter, 1);
	}
	return e;
}

/* ---- events ---- */

void book_qp_event(struct end *e, const struct flue_event *ev)
{
	struct link *l = e->link;

	switch (ev->type) {
	case FLUE_EVENT_ACCEPTED: must(atomic_fetch_add(&e->accepted, 1) == 0); break;
	case FLUE_EVENT_CONNECTED: must(atomic_fetch_add(&e->connected, 1) == 0); break;
	case FLUE_EVENT_CONNECT_FAILED:
		atomic_store(&e->detail, ev->detail);
		must(atomic_fetch_add(&e->failed, 1) == 0);
		break;
	case FLUE_EVENT_LAST_RECEIVE: must(atomic_fetch_add(&e->last, 1) == 0); break;
	case FLUE_EVENT_DISCONNECTED:
		atomic_store(&e->reason, ev->reason);
		atomic_store(&e->detail, ev->detail);
		if (atomic_fetch_add(&e->disconnected, 1))
			fail("link %d side %d ended twice", l->index, e->side);
		if (!atomic_load(&l->spoilt) && !atomic_load(&l->closing))
			fail("link %d side %d, which nobody disturbed, ended: %s, %u", l->index,
			     e->side, flue_close_reason_name(ev->reason), ev->detail);
		break;
	default: fail("an event of type %u for a queue pair", ev->type);
	}
}

void book_event(const struct flue_event *ev)
{
	struct end *e;

	switch (ev->type) {
	case FLUE_EVENT_REQUEST:
	case FLUE_EVENT_SRQ_LIMIT: break;
	case FLUE_EVENT_CQ_ERROR: fail("a completion queue overflowed"); break;
	default:
		e = find_end(ev->u.qp);
		if (!e)
			fail("%s of a queue pair that is not there", flue_event_name(ev->type));
		must(!e->by_function);
		book_qp_event(e, ev);
	}
}
