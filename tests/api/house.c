/* SPDX-License-Identifier: MIT */
/* Adapters and what belongs to them, except queue pairs. See api.h. */
#include "api.h"

#include <netinet/in.h>
#include <poll.h>

struct house houses[HOUSES];

static void init_lock(pthread_rwlock_t *lock)
{
	pthread_rwlockattr_t attr;

	/* Who waits for those that hold it must not wait for those that come later. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(lock, &attr);
	pthread_rwlockattr_destroy(&attr);
}

void houses_init(void)
{
	for (int i = 0; i < HOUSES; i++) {
		struct house *h = &houses[i];

		memset(h, 0, sizeof(*h));
		h->index = i;
		slot_init(&h->slot);
		init_lock(&h->round);
		for (int k = 0; k < PDS; k++) {
			h->pds[k].house = h;
			slot_init(&h->pds[k].slot);
		}
		for (int k = 0; k < CQS; k++) {
			h->cqs[k].house = h;
			slot_init(&h->cqs[k].slot);
			init_lock(&h->cqs[k].round);
		}
		for (int k = 0; k < SRQS; k++) {
			struct srqx *x = &h->srqs[k];

			x->house = h;
			slot_init(&x->slot);
			pthread_mutex_init(&x->lock, NULL);
			book_init(x->recs, NRECV, (uint32_t)(LINKS * 2 + i * SRQS + k), NULL, x);
		}
		for (int k = 0; k < LISTENERS; k++) {
			h->listeners[k].house = h;
			slot_init(&h->listeners[k].slot);
		}
		for (int k = 0; k < REGIONS; k++)
			slot_init(&h->regions[k].slot);
	}
}

struct house *house_hold(void)
{
	struct house *h = &houses[draw(HOUSES)];

	return slot_hold(&h->slot) ? h : NULL;
}

/* ---- adapters ---- */

static uint32_t choose_first(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	(void)load;
	(void)arg;
	return n - 1;
}

static void unclaim(void *slot)
{
	slot_release(slot, SLOT_EMPTY);
}

void house_make(void)
{
	struct house *h = &houses[draw(HOUSES)];
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	static const int first[] = { 0 };

	if (!slot_claim(&h->slot, SLOT_EMPTY))
		return;
	undo_push(unclaim, &h->slot);
	attr.balance = draw(FLUE_BALANCE_NPOLICIES);
	if (one_in(4))
		attr.choose_cpu = choose_first;
	/* All on one engine, so that threads meet. */
	if (draw(2)) {
		attr.cpus = first;
		attr.n_cpus = 1;
	}
	if (one_in(3))
		attr.name = "flue0";
	h->adapter = CALL(flue_open(one_in(4) ? NULL : &attr));
	if (!h->adapter) {
		may_fail_with("flue_open", 0);
		undo_run();
		return;
	}
	undo_pop();
	slot_release(&h->slot, SLOT_LIVE);
}

/* Nobody new moves in; whoever finds it empty closes it. */
void house_retire(void)
{
	struct house *h = &houses[draw(HOUSES)];

	pthread_mutex_lock(&h->slot.lock);
	if (h->slot.state == SLOT_LIVE && one_in(6))
		h->slot.retired = true;
	pthread_mutex_unlock(&h->slot.lock);
}

static void relive(void *slot)
{
	slot_release(slot, SLOT_LIVE);
}

/* Destroys it if nobody uses it. The call is the only one on this object at this time. */
#define DESTROY_IF_UNUSED(x, call, parent)                      \
	do {                                                    \
		if (!slot_claim(&(x)->slot, SLOT_LIVE))         \
			break;                                  \
		undo_push(relive, &(x)->slot);                  \
		if (!CALL(call))                                \
			fail("%s: %s", #call, strerror(errno)); \
		undo_pop();                                     \
		slot_release(&(x)->slot, SLOT_EMPTY);           \
		slot_put(&(parent)->slot);                      \
	} while (0)

static void house_close(struct house *h)
{
	if (!slot_claim(&h->slot, SLOT_LIVE))
		return;
	undo_push(relive, &h->slot);
	if (!CALL(flue_close(h->adapter)))
		fail("flue_close: %s", strerror(errno));
	undo_pop();
	slot_release(&h->slot, SLOT_EMPTY);
}

/* ---- children ---- */

static void make_pd(struct pdx *x)
{
	if (!slot_claim(&x->slot, SLOT_EMPTY))
		return;
	undo_push(unclaim, &x->slot);
	x->pd = CALL(flue_create_pd(x->house->adapter));
	if (!x->pd) {
		may_fail_with("create_pd", 0);
		undo_run();
		return;
	}
	undo_pop();
	slot_join(&x->house->slot);
	slot_release(&x->slot, SLOT_LIVE);
}

struct pdx *pd_get(struct house *h)
{
	struct pdx *x = &h->pds[draw(PDS)];

	make_pd(x);
	return slot_take(&x->slot) ? x : NULL;
}

static void on_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
	static atomic_uint n;
	struct end *e;

	(void)cq;
	actor_borrow();
	/* Who destroys a queue pair waits until its completion has been handed over. */
	if (atomic_fetch_add(&n, 1) % 16 == 0)
		usleep(300);
	e = book_completion(arg, wc);
	/* It may post; but not again what was flushed, for that would never end. */
	if (wc->op == FLUE_WC_RECV && wc->status == FLUE_WC_SUCCESS && slot_take(&e->link->slot)) {
		recv_one(e);
		slot_put(&e->link->slot);
	}
}

static void make_cq(struct cqx *x)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);
	struct flue_adapter *a = x->house->adapter;

	if (!slot_claim(&x->slot, SLOT_EMPTY))
		return;
	undo_push(unclaim, &x->slot);
	x->kind = draw(3);
	x->room = 0;
	x->cq = NULL;
	attr.depth = 32 + draw(100);
	if (one_in(3))
		attr.cpu_plus_1 = a->cpus[draw(a->n_cpus)] + 1;
	if (one_in(3))
		attr.flags = FLUE_CQ_ANY_THREAD;
	if (x->kind == CQ_HANDLER) {
		attr.on_completion = on_completion;
		attr.arg = x;
	}
	x->cq = CALL(a->ops->create_cq(a, &attr));
	if (!x->cq) {
		may_fail_with("create_cq", 0);
		undo_run();
		return;
	}
	undo_pop();
	slot_join(&x->house->slot);
	slot_release(&x->slot, SLOT_LIVE);
}

/* A queue with room for so many more completions: it is made larger if need be. */
struct cqx *cq_get(struct house *h, uint32_t room)
{
	struct cqx *x = &h->cqs[draw(CQS)];
	bool ok;

	make_cq(x);
	if (!slot_take(&x->slot))
		return NULL;
	pthread_mutex_lock(&x->slot.lock);
	x->room += room;
	ok = x->room <= x->cq->depth || x->cq->ops->resize(x->cq, x->room + draw(50));
	pthread_mutex_unlock(&x->slot.lock);
	if (ok)
		return x;
	may_fail_with("resize", 0);
	cq_put(x, room);
	return NULL;
}

void cq_put(struct cqx *x, uint32_t room)
{
	pthread_mutex_lock(&x->slot.lock);
	must(x->room >= room);
	x->room -= room;
	pthread_mutex_unlock(&x->slot.lock);
	slot_put(&x->slot);
}

static void make_srq(struct srqx *x, struct pdx *pdx)
{
	struct flue_srq_attr attr = FLUE_ATTR(struct flue_srq_attr);

	x->memory = calloc(NRECV, MESSAGE);
	x->depth = attr.depth = 4 + draw(NRECV - 4);
	attr.max_sge = 1;
	x->mr = flue_register(pdx->pd, x->memory, (size_t)NRECV * MESSAGE, FLUE_LOCAL_WRITE);
	x->srq = x->mr ? pdx->pd->ops->create_srq(pdx->pd, &attr) : NULL;
	if (!x->srq) {
		may_fail_with("create_srq", 0);
		if (x->mr)
			must(flue_deregister(x->mr));
		free(x->memory);
		slot_release(&x->slot, SLOT_EMPTY);
		return;
	}
	x->posted = x->in_flight = 0;
	x->tainted = false;
	x->pdx = pdx;
	slot_join(&pdx->slot);
	slot_release(&x->slot, SLOT_LIVE);
}

struct srqx *srq_get(struct house *h, struct pdx *pdx)
{
	struct srqx *x = &h->srqs[draw(SRQS)];

	if (slot_claim(&x->slot, SLOT_EMPTY))
		make_srq(x, pdx);
	if (!slot_take(&x->slot))
		return NULL;
	if (x->pdx == pdx)
		return x;
	slot_put(&x->slot);
	return NULL;
}

static void end_srq(struct srqx *x)
{
	struct pdx *pdx;

	if (!slot_claim(&x->slot, SLOT_LIVE))
		return;
	pdx = x->pdx;
	must(x->srq->ops->destroy(x->srq));
	must(flue_deregister(x->mr));
	/* Its receives will not be completed. */
	book_forget(x->recs, NRECV);
	free(x->memory);
	slot_release(&x->slot, SLOT_EMPTY);
	slot_put(&pdx->slot);
}

static void make_listener(struct listenerx *x)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_adapter *a = x->house->adapter;
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	bool six = one_in(4);

	if (!slot_claim(&x->slot, SLOT_EMPTY))
		return;
	undo_push(unclaim, &x->slot);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = six ? (struct sockaddr *)&in6 : (struct sockaddr *)&in;
	attr.local_len = six ? sizeof(in6) : sizeof(in);
	attr.backlog = one_in(3) ? 1 + (int)draw(4) : 0;
	x->listener = CALL(a->ops->listen(a, &attr));
	if (!x->listener) {
		may_fail_with("listen", EADDRNOTAVAIL, EADDRINUSE, 0);
		undo_run();
		return;
	}
	undo_pop();
	slot_join(&x->house->slot);
	slot_release(&x->slot, SLOT_LIVE);
}

/* ---- one step ---- */

static void end_children(struct house *h, int which)
{
	struct srqx *srq = &h->srqs[which % SRQS];
	struct region *r = &h->regions[which % REGIONS];
	struct listenerx *l = &h->listeners[which % LISTENERS];
	struct cqx *cq = &h->cqs[which % CQS];
	struct pdx *pd = &h->pds[which % PDS];

	end_srq(srq);
	region_end(r);
	DESTROY_IF_UNUSED(l, l->listener->ops->destroy(l->listener), h);
	DESTROY_IF_UNUSED(cq, flue_destroy_cq(cq->cq), h);
	DESTROY_IF_UNUSED(pd, flue_destroy_pd(pd->pd), h);
}

void house_children(void)
{
	struct house *h = &houses[draw(HOUSES)];

	if (one_in(5)) {
		bool retired;

		pthread_mutex_lock(&h->slot.lock);
		retired = h->slot.retired;
		pthread_mutex_unlock(&h->slot.lock);
		for (int i = 0; retired && i < CQS; i++)
			end_children(h, i);
		if (retired)
			house_close(h);
		return;
	}
	if (!slot_hold(&h->slot))
		return;
	switch (draw(4)) {
	case 0: make_pd(&h->pds[draw(PDS)]); break;
	case 1: make_cq(&h->cqs[draw(CQS)]); break;
	case 2: make_listener(&h->listeners[draw(LISTENERS)]); break;
	case 3:
		if (one_in(4))
			end_children(h, (int)draw(CQS));
		break;
	}
	undo_run();
}

void houses_end(void)
{
	for (int i = 0; i < HOUSES; i++) {
		struct house *h = &houses[i];

		for (int k = 0; k < CQS; k++)
			end_children(h, k);
		if (slot_is(&h->slot, SLOT_LIVE))
			must(!h->slot.users);
		house_close(h);
		must(slot_is(&h->slot, SLOT_EMPTY));
	}
}
