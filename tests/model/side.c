/* SPDX-License-Identifier: MIT */
/* One side: its objects, and the commands it executes. */
#include "model/side.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/tsan.h"

#define HOME_ACCESS (FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ | FLUE_BIND_WINDOW)

/* ---- objects ---- */

static bool make_memory(struct side *s)
{
	s->memory = mmap(NULL, memory_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			 -1, 0);
	if (s->memory == MAP_FAILED)
		return false;
	memset(s->memory, BACKGROUND, memory_size());
	pattern_fill(s->memory + library_offset(), 0, LIBRARY, LIBRARY_SEED);
	s->library = flue_register(s->pd, s->memory + library_offset(), LIBRARY, FLUE_REMOTE_READ);
	s->srq_mr = flue_register(s->pd, s->memory + srq_offset(0, 0),
				  srq_offset(N_SRQS, 0) - srq_offset(0, 0), FLUE_LOCAL_WRITE);
	memset(s->memory + word_offset(0), 0, memory_size() - word_offset(0));
	s->words = flue_register(s->pd, s->memory + word_offset(0), memory_size() - word_offset(0),
				 FLUE_LOCAL_WRITE | FLUE_REMOTE_ATOMIC);
	return s->library && s->srq_mr && s->words;
}

static bool make_queues(struct side *s)
{
	struct flue_cq_attr cq = FLUE_ATTR(struct flue_cq_attr);
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);

	cq.depth = CQ_DEPTH;
	for (uint32_t i = 0; i < N_CQS; i++) {
		if (i == N_CQS - 1) {
			cq.on_completion = side_on_completion;
			cq.arg = s;
		}
		s->cqs[i] = s->adapter->ops->create_cq(s->adapter, &cq);
		if (!s->cqs[i])
			return false;
	}
	srq.depth = SRQ_DEPTH;
	for (uint32_t i = 0; i < N_SRQS; i++) {
		s->srqs[i] = s->pd->ops->create_srq(s->pd, &srq);
		if (!s->srqs[i])
			return false;
		s->srqs[i]->user = (void *)(uintptr_t)i;
	}
	return true;
}

static bool make_dynamic(struct side *s, uint32_t q)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);

	attr.addr = s->memory + area_offset(q, AREA_TARGET);
	attr.length = area_size(q);
	attr.revoked = true;
	for (uint32_t i = 0; i < N_DYN - 1; i++) {
		s->regions[q][i] = s->pd->ops->register_mr(s->pd, &attr);
		if (!s->regions[q][i])
			return false;
	}
	s->windows[q] = s->pd->ops->create_mw(s->pd);
	return s->windows[q];
}

static bool drop_dynamic(struct side *s, uint32_t q)
{
	if (!s->windows[q]->ops->destroy(s->windows[q]))
		return false;
	for (uint32_t i = 0; i < N_DYN - 1; i++)
		if (!flue_deregister(s->regions[q][i]))
			return false;
	return true;
}

/* Who has no receive is asked again soon. */
static bool set_values(struct flue_qp *qp)
{
	struct flue_qp_values v = { sizeof(v), .min_rnr_timer = 1 };

	return !column_is_full(model_column) || qp->ops->modify(qp, &v, FLUE_QPV_MIN_RNR_TIMER);
}

static bool make_qp(struct side *s, uint32_t q)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	int srq = srq_of(q, s->number);

	attr.send_cq = s->cqs[q % N_CQS];
	attr.recv_cq = s->cqs[q / N_CQS % N_CQS];
	attr.srq = srq < 0 ? NULL : s->srqs[srq];
	attr.sq_depth = SQ_DEPTH;
	attr.rq_depth = RQ_DEPTH;
	attr.sq_sge = attr.rq_sge = MAX_PIECES;
	attr.max_inline = MAX_INLINE;
	if (q % 3 == 0) {
		attr.on_event = side_on_event;
		attr.event_arg = s;
	}
	s->qps[q] = s->pd->ops->create_qp(s->pd, &attr);
	if (!s->qps[q])
		return false;
	s->qps[q]->user = (void *)(uintptr_t)q;
	return set_values(s->qps[q]);
}

static bool make_home(struct side *s, uint32_t q)
{
	s->home[q] = flue_register(s->pd, s->memory + area_offset(q, AREA_SOURCE),
				   (size_t)area_size(q) * N_AREAS,
				   HOME_ACCESS | (home_is_zero_based(q) ? FLUE_ZERO_BASED : 0));
	return s->home[q] && make_dynamic(s, q);
}

static bool make_listener(struct side *s)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&in;
	attr.local_len = sizeof(in);
	attr.flags = column_is_full(model_column) ? FLUE_LISTEN_FULL : 0;
	s->listener = s->adapter->ops->listen(s->adapter, &attr);
	return s->listener;
}

static bool make_all(struct side *s)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	attr.links = column_is_local(model_column) ? FLUE_LINK_ALL : FLUE_LINK_TCP;
	s->adapter = flue_open(&attr);
	if (!s->adapter)
		return false;
	s->pd = flue_create_pd(s->adapter);
	if (!s->pd || !make_memory(s) || !make_queues(s))
		return false;
	for (uint32_t q = 0; q < N_QPS; q++)
		if (!make_qp(s, q) || !make_home(s, q))
			return false;
	return make_listener(s);
}

static void describe(const struct side *s, struct hello *h)
{
	h->base = (uintptr_t)s->memory;
	h->port = ntohs(((struct sockaddr_in *)&s->listener->local)->sin_port);
	h->library_key = s->library->rkey;
	h->words_key = s->words->rkey;
	for (uint32_t q = 0; q < N_QPS; q++) {
		h->home_key[q] = s->home[q]->rkey;
		for (uint32_t i = 0; i < N_DYN - 1; i++)
			h->dyn_key[q][i] = s->regions[q][i]->rkey;
		h->dyn_key[q][N_DYN - 1] = s->windows[q]->rkey;
	}
}

struct side *side_open(int number, struct hello *hello)
{
	struct side *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->number = number;
	pthread_mutex_init(&s->lock, NULL);
	s->bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (s->bell < 0 || !make_all(s)) {
		fprintf(stderr, "model: cannot make the objects: %s\n", strerror(errno));
		return NULL;
	}
	describe(s, hello);
	return s;
}

void side_meet(struct side *s, uint16_t peer_port)
{
	s->peer_port = peer_port;
}

static bool drop_qps(struct side *s)
{
	for (uint32_t q = 0; q < N_QPS; q++)
		if (!flue_destroy_qp(s->qps[q]) || !drop_dynamic(s, q) ||
		    !flue_deregister(s->home[q]))
			return false;
	return true;
}

bool side_close(struct side *s)
{
	bool ok = s->listener->ops->destroy(s->listener) && drop_qps(s) &&
		  flue_deregister(s->library) && flue_deregister(s->srq_mr) &&
		  flue_deregister(s->words);

	for (uint32_t i = 0; i < N_SRQS; i++)
		ok = ok && s->srqs[i]->ops->destroy(s->srqs[i]);
	for (uint32_t i = 0; i < N_CQS; i++)
		ok = ok && flue_destroy_cq(s->cqs[i]);
	ok = ok && flue_destroy_pd(s->pd) && flue_close(s->adapter);
	munmap(s->memory, memory_size());
	close(s->bell);
	free(s);
	return ok;
}

/* ---- commands ---- */

/* How the home region calls a place in the memory. */
static uint64_t home_name(const struct side *s, uint32_t q, uint64_t offset)
{
	return s->home[q]->remote_start + offset - area_offset(q, AREA_SOURCE);
}

static bool post_send(struct side *s, const struct cmd *c)
{
	struct flue_sge sg[MAX_PIECES];
	struct flue_send_wr wr = { .id = c->id,
				   .op = c->op,
				   .flags = c->flags,
				   .sg = sg,
				   .n_sg = c->layout.n,
				   .rkey = c->rkey,
				   .remote_addr = c->remote_addr,
				   .imm = c->imm };
	bool atomic = c->op == FLUE_WR_CMP_SWAP || c->op == FLUE_WR_FETCH_ADD;
	bool reads = c->op == FLUE_WR_READ || c->op == FLUE_WR_READ_INV || atomic;

	if (atomic)
		wr.atomic = c->atomic;
	else
		wr.reg = c->reg;
	if (c->layout.n && !reads)
		layout_fill(s->memory, &c->layout, c->seed);
	for (uint32_t i = 0; i < c->layout.n; i++) {
		uint64_t at = layout_piece(&c->layout, i);

		sg[i] = (struct flue_sge) { .addr = home_name(s, c->q, at),
					    .length = c->layout.length[i],
					    .lkey = s->home[c->q]->lkey };
		if (c->flags & FLUE_INLINE)
			sg[i].addr = (uintptr_t)s->memory + at;
	}
	if (c->lkey) {
		sg[0].addr = c->local_addr;
		sg[0].lkey = c->lkey;
	}
	if (c->op == FLUE_WR_FAST_REG)
		wr.reg.addr += (uintptr_t)s->memory;
	if (c->op == FLUE_WR_BIND) {
		wr.reg.addr = home_name(s, c->q, c->reg.addr);
		wr.reg.lkey = s->home[c->q]->lkey;
	}
	return flue_post_send(s->qps[c->q], &wr);
}

static bool post_recv(struct side *s, const struct cmd *c)
{
	struct flue_sge sg[MAX_PIECES];
	struct flue_recv_wr wr = { .id = c->id, .sg = sg, .n_sg = c->layout.n };

	for (uint32_t i = 0; i < c->layout.n; i++) {
		uint64_t at = layout_piece(&c->layout, i);

		sg[i].length = c->layout.length[i];
		if (c->type == CMD_POST_SRQ) {
			sg[i].addr = (uintptr_t)s->memory + at;
			sg[i].lkey = s->srq_mr->lkey;
		} else {
			sg[i].addr = home_name(s, c->q, at);
			sg[i].lkey = s->home[c->q]->lkey;
		}
	}
	if (c->type == CMD_POST_SRQ)
		return s->srqs[c->q]->ops->post_recv(s->srqs[c->q], &wr, NULL);
	return flue_post_recv(s->qps[c->q], &wr);
}

static bool connect_qp(struct side *s, const struct cmd *c)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(s->peer_port) };
	struct invitation invitation = { .q = c->q,
					 .flags = c->accept_flags,
					 .ird = c->ird,
					 .ord = c->ord,
					 .fpdu_max = c->fpdu_max,
					 .reject = c->reject };
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.remote = (struct sockaddr *)&to;
	attr.remote_len = sizeof(to);
	attr.private_data = &invitation;
	attr.private_len = sizeof(invitation);
	attr.flags = c->conn_flags | FLUE_CONN_ASYNC |
		     (column_is_full(model_column) ? FLUE_CONN_FULL : 0);
	attr.ird = c->ird;
	attr.ord = c->ord;
	attr.fpdu_max = c->fpdu_max;
	attr.timeout_ms = 60000;
	return s->qps[c->q]->ops->connect(s->qps[c->q], &attr);
}

static bool renew(struct side *s, uint32_t q, struct record_reply *r)
{
	if (!drop_dynamic(s, q) || !make_dynamic(s, q))
		return false;
	for (uint32_t i = 0; i < N_DYN - 1; i++)
		r->dyn_key[i] = s->regions[q][i]->rkey;
	r->dyn_key[N_DYN - 1] = s->windows[q]->rkey;
	return true;
}

static bool remake(struct side *s, uint32_t q)
{
	if (!flue_destroy_qp(s->qps[q]))
		return false;
	side_forget(s, q);
	return make_qp(s, q);
}

static bool swap_word(struct side *s, const struct cmd *c, struct record_reply *r)
{
	uint64_t *word = (uint64_t *)(void *)(s->memory + word_offset(c->q));

	r->value = (int64_t)__atomic_exchange_n(word, c->start, __ATOMIC_SEQ_CST);
	return true;
}

static bool ask_link(struct side *s, uint32_t q, struct record_reply *r)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	if (!s->qps[q]->ops->query(s->qps[q], &v, FLUE_QPV_LINK))
		return false;
	r->value = v.link;
	return true;
}

/* What orders the library's work on a target and our look at it went through the other process, where ThreadSanitizer cannot follow. */
#ifdef TSAN
void AnnotateIgnoreReadsBegin(const char *file, int line);
void AnnotateIgnoreReadsEnd(const char *file, int line);
void AnnotateIgnoreWritesBegin(const char *file, int line);
void AnnotateIgnoreWritesEnd(const char *file, int line);

static void look_unseen(bool begin)
{
	if (begin) {
		AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
		AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
	} else {
		AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
		AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
	}
}
#else
static void look_unseen(bool begin)
{
	(void)begin;
}
#endif

static bool check(struct side *s, const struct cmd *c, struct record_reply *r)
{
	if (c->unseen)
		look_unseen(true);
	r->value = layout_check(s->memory, &c->layout, c->length, c->seed, c->start,
				(enum check_mode)c->mode);
	if (c->unseen)
		look_unseen(false);
	return r->value < 0;
}

static bool execute(struct side *s, const struct cmd *c, struct record_reply *r)
{
	switch (c->type) {
	case CMD_POST_SEND: return post_send(s, c);
	case CMD_POST_RECV:
	case CMD_POST_SRQ: return post_recv(s, c);
	case CMD_CHECK: return check(s, c, r);
	case CMD_CONNECT: return connect_qp(s, c);
	case CMD_DISCONNECT: return s->qps[c->q]->ops->disconnect(s->qps[c->q], -1);
	case CMD_ABORT: return flue_abort(s->qps[c->q]);
	case CMD_RESET: return s->qps[c->q]->ops->reset(s->qps[c->q]);
	case CMD_STATE: r->value = flue_qp_state(s->qps[c->q]); return true;
	case CMD_RENEW: return renew(s, c->q, r);
	case CMD_RESIZE_CQ: return s->cqs[c->q]->ops->resize(s->cqs[c->q], c->arg);
	case CMD_ARM_SRQ: return s->srqs[c->q]->ops->arm_limit(s->srqs[c->q], c->arg);
	case CMD_BUSY: s->busy = c->arg; return true;
	case CMD_WORD: return swap_word(s, c, r);
	case CMD_LINK: return ask_link(s, c->q, r);
	case CMD_REMAKE: return remake(s, c->q);
	default: return false;
	}
}

void side_execute(struct side *s, const struct cmd *c, struct record_reply *r)
{
	memset(r, 0, sizeof(*r));
	errno = 0;
	r->ok = execute(s, c, r);
	r->error = r->ok ? 0 : errno;
}

bool side_is_busy(const struct side *s)
{
	return s->busy;
}
