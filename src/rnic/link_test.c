/* SPDX-License-Identifier: MIT */
/*
 * A second link, to prove the cut: it joins two queue pairs of one process, on two engines, by copies
 * in memory. There is no socket and no FPDU; a message is one segment. What comes is found by asking,
 * and a sleeper is rung for (link.h: poll, arm).
 */
#include "rnic/link.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/util.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"
#include "rnic/rx_segment.h"
#include "rnic/umem.h"

/* ---- the link ---- */

enum parcel_kind { MESSAGE, END, RESET };

struct parcel {
	STAILQ_ENTRY(parcel) order;
	enum parcel_kind kind;
	struct ddp_segment seg;
	uint8_t bytes[];
};

struct copy_link {
	struct link link;
	struct copy_link *peer;   /* NULL: it is gone; under `wire` */
	STAILQ_HEAD(, parcel) in; /* under `wire` */
	bool armed;               /* somebody sleeps; under `wire` */
	bool end_taken;           /* the peer has our end; under `wire` */
	bool busy, end_sent, awaits_end;
};

/* Leaf lock of all these links. */
static pthread_mutex_t wire = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint arms, rings, messages;
static atomic_bool news; /* the next arm() finds that something has come */
/* Engines, by number, that were told not to sleep, and their sets; under `wire`. */
static bool awake[2];
static int sets[2];

static struct copy_link *copy_of(struct link *link)
{
	return container_of(link, struct copy_link, link);
}

/* Under `wire`. */
static void ring(struct copy_link *l)
{
	if (!l->armed)
		return;
	l->armed = false;
	atomic_fetch_add(&rings, 1);
	engine_ring(l->link.qp->engine);
}

static struct parcel *make_parcel(enum parcel_kind kind, size_t len)
{
	struct parcel *p = calloc(1, sizeof(*p) + len);

	assert_non_null(p);
	p->kind = kind;
	return p;
}

static void give(struct copy_link *l, struct parcel *p)
{
	pthread_mutex_lock(&wire);
	if (l->peer) {
		STAILQ_INSERT_TAIL(&l->peer->in, p, order);
		ring(l->peer);
		p = NULL;
	}
	pthread_mutex_unlock(&wire);
	free(p);
}

/* All of a message, whatever its length. */
static enum tx_stop send_message(struct copy_link *l)
{
	struct qp *q = l->link.qp;
	struct tx_cursor at, after = q->tx.cur;
	struct tx_pieces *pieces = q->engine->scratch;
	struct tx_message m = { 0 };
	struct parcel *p;
	uint32_t status = 0;
	enum tx_stop stop = qp_sched_next(q, &after, &m, &status);
	size_t off = m.fixed_len;

	pieces->n = pieces->n_ref = 0;
	at = after;
	if (stop == TX_BUILT) {
		status = FLUE_WC_LOCAL_PROTECTION;
		stop = qp_sched_gather(q, &at, 0, m.total, pieces);
	}
	if (stop == TX_BUILT) {
		m.seg.last = true;
		m.seg.hdr_len = m.seg.tagged ? DDP_TAGGED_LEN : DDP_UNTAGGED_LEN;
		m.seg.payload_len = m.fixed_len + m.total;
		p = make_parcel(MESSAGE, m.seg.payload_len);
		p->seg = m.seg;
		memcpy(p->bytes, m.fixed, m.fixed_len);
		for (uint32_t i = 0; i < pieces->n; off += pieces->iov[i++].iov_len)
			umem_read(p->bytes + off, pieces->iov[i].iov_base, pieces->iov[i].iov_len);
		give(l, p);
		atomic_fetch_add(&messages, 1);
		qp_sched_step(&after, &m, m.total);
		qp_sched_out(q, &at, &after);
	}
	tx_pieces_put(pieces, 0);
	if (stop == TX_BAD_REQUEST || stop == TX_BAD_SOURCE) {
		qp_sched_refuse(q, stop, status, false);
		stop = TX_BUILT;
	}
	return stop;
}

static void kick(struct link *link)
{
	struct copy_link *l = copy_of(link);
	struct qp *q = link->qp;

	if (l->busy)
		return;
	l->busy = true;
	while (link->open && qp_sched_has_work(q) &&
	       (qp_sched_run_local(q) || send_message(l) == TX_BUILT))
		;
	l->busy = false;
	if (link->open && qp_sched_wants_fin(q) && !l->end_sent) {
		l->end_sent = true;
		give(l, make_parcel(END, 0));
	}
}

static void look_for_the_end(struct copy_link *l)
{
	bool over;

	pthread_mutex_lock(&wire);
	over = l->end_taken;
	pthread_mutex_unlock(&wire);
	if (over && l->link.open && l->awaits_end)
		qp_link_over(l->link.qp);
}

static void await_end(struct link *link)
{
	copy_of(link)->awaits_end = true;
	look_for_the_end(copy_of(link));
}

static struct parcel *next_parcel(struct copy_link *l)
{
	struct parcel *p;

	pthread_mutex_lock(&wire);
	p = STAILQ_FIRST(&l->in);
	if (p)
		STAILQ_REMOVE_HEAD(&l->in, order);
	if (p && p->kind == END && l->peer) {
		l->peer->end_taken = true;
		ring(l->peer);
	}
	pthread_mutex_unlock(&wire);
	return p;
}

static void poll_link(struct link *link)
{
	struct copy_link *l = copy_of(link);
	struct parcel *p;

	while (link->open && (p = next_parcel(l))) {
		if (p->kind == END)
			qp_link_ended(link->qp, true);
		else if (p->kind == RESET)
			qp_link_failed(link->qp, ECONNRESET);
		else if (rx_segment_listens(link->qp))
			rx_message(link->qp, &p->seg, p->bytes);
		free(p);
	}
	look_for_the_end(l);
	if (link->open)
		kick(link);
}

static bool arm(struct link *link)
{
	struct copy_link *l = copy_of(link);
	struct engine *e = link->qp->engine;
	bool quiet;

	pthread_mutex_lock(&wire);
	quiet = STAILQ_EMPTY(&l->in) && !(l->awaits_end && l->end_taken) &&
		!atomic_exchange(&news, false);
	l->armed = quiet;
	awake[e->index] = !quiet;
	sets[e->index] = atomic_load(&e->set.fd);
	pthread_mutex_unlock(&wire);
	atomic_fetch_add(&arms, 1);
	return quiet;
}

static void close_link(struct link *link, enum link_end how)
{
	struct copy_link *l = copy_of(link);
	struct parcel *p;

	if (!link->open)
		return;
	link->open = false;
	if (how == LINK_RESET || !l->end_sent)
		give(l, make_parcel(RESET, 0));
	pthread_mutex_lock(&wire);
	if (l->peer) {
		l->peer->end_taken = true;
		ring(l->peer);
		l->peer->peer = NULL;
	}
	l->peer = NULL;
	awake[link->qp->engine->index] = false;
	while ((p = STAILQ_FIRST(&l->in))) {
		STAILQ_REMOVE_HEAD(&l->in, order);
		free(p);
	}
	pthread_mutex_unlock(&wire);
}

static void destroy(struct link *link)
{
	free(copy_of(link));
}

static const struct link_ops copy_ops = {
	.start = kick,
	.kick = kick,
	.await_end = await_end,
	.poll = poll_link,
	.arm = arm,
	.close = close_link,
	.destroy = destroy,
};

static struct copy_link *make_link(struct qp *q)
{
	struct copy_link *l = calloc(1, sizeof(*l));

	assert_non_null(l);
	l->link.ops = &copy_ops;
	l->link.qp = q;
	STAILQ_INIT(&l->in);
	return l;
}

/* ---- the stage ---- */

#define MEMORY (1 << 20)

struct side {
	struct cq *cq;
	struct qp *q;
	struct flue_qp owner;
	struct mem *mem;
	uint8_t *bytes;
	atomic_int ends;
	struct flue_event end;
};

static struct rnic *r;
static struct rnic_pd pd;
static struct side a, b;

/* Nobody sleeps for an engine one of whose links has said no. */
static atomic_uint bad_sleeps;

int __real_epoll_wait(int set, struct epoll_event *evs, int n, int timeout_ms);
int __wrap_epoll_wait(int set, struct epoll_event *evs, int n, int timeout_ms);

int __wrap_epoll_wait(int set, struct epoll_event *evs, int n, int timeout_ms)
{
	pthread_mutex_lock(&wire);
	for (int i = 0; i < 2; i++)
		if (timeout_ms && awake[i] && sets[i] == set)
			atomic_fetch_add(&bad_sleeps, 1);
	pthread_mutex_unlock(&wire);
	return __real_epoll_wait(set, evs, n, timeout_ms);
}

static struct side *side_of(const void *owner)
{
	return owner == &a.owner ? &a : &b;
}

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	struct side *s = side_of(qp_owner);

	if (ev->type != FLUE_EVENT_DISCONNECTED)
		return;
	s->end = *ev;
	atomic_fetch_add(&s->ends, 1);
}

static void on_completion(void *cq_owner, void *arg)
{
}

static const struct rnic_upcalls up = { .qp_event = on_event };

static void make_side(struct side *s, struct engine *e)
{
	struct qp_attr attr = { .pd = &pd,
				.sq_depth = 8,
				.rq_depth = 8,
				.sq_sge = 2,
				.rq_sge = 2,
				.max_inline = 16,
				.signal_all = true,
				.state = &s->owner.state,
				.owner = &s->owner };
	struct mem_attr region = {
		.length = MEMORY, .access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ
	};

	memset(s, 0, sizeof(*s));
	s->bytes = calloc(1, MEMORY);
	assert_non_null(s->bytes);
	assert_int_equal(cq_create(r, e, 32, on_completion, NULL, NULL, &s->cq), 0);
	attr.send_cq = attr.recv_cq = s->cq;
	assert_int_equal(qp_create(&attr, &s->q), 0);
	region.addr = s->bytes;
	assert_int_equal(mem_register(&r->mem, &pd, &region, &s->mem), 0);
	engine_lock(e);
	assert_int_equal(engine_start(e), 0);
	engine_unlock(e);
}

static void establish(struct side *s, struct copy_link *l, bool initiator)
{
	struct mpa_terms terms = {
		.rev = 2, .p2p = true, .rtr = MPA_RTR_WRITE, .own_peer = true, .ird = 2, .ord = 2
	};
	struct qp_start start = { .terms = &terms, .initiator = initiator };

	engine_lock(s->q->engine);
	atomic_store(&s->ends, 0);
	assert_int_equal(qp_establish(s->q, &start, &l->link), 0);
	s->q->connected = true; /* as an endpoint does when it has told */
	engine_unlock(s->q->engine);
}

static void join(void)
{
	struct copy_link *la = make_link(a.q), *lb = make_link(b.q);

	la->peer = lb;
	lb->peer = la;
	establish(&b, lb, false);
	establish(&a, la, true);
}

static int make(void **state)
{
	int cpus[2] = { sched_getcpu(), sched_getcpu() };

	atomic_store(&arms, 0);
	atomic_store(&rings, 0);
	atomic_store(&messages, 0);
	if (rnic_open(cpus, 2, &up, NULL, &r))
		return -1;
	pd.rnic = r;
	make_side(&a, &r->engines[0]);
	make_side(&b, &r->engines[1]);
	join();
	return 0;
}

static void drop_side(struct side *s)
{
	qp_destroy(s->q);
	cq_destroy(s->cq);
	assert_int_equal(atomic_load(&s->mem->users), 0);
	assert_int_equal(mem_destroy(&r->mem, s->mem), 0);
	free(s->bytes);
}

static int drop(void **state)
{
	/* Nothing of this went through a socket. */
	assert_int_equal(r->engines[0].n_ios + r->engines[1].n_ios, 0);
	assert_int_equal(atomic_load(&r->n_illegal), 0);
	assert_int_equal(atomic_load(&bad_sleeps), 0);
	drop_side(&a);
	drop_side(&b);
	assert_int_equal(atomic_load(&r->engines[0].n_links), 0);
	assert_int_equal(atomic_load(&r->engines[1].n_links), 0);
	rnic_close(r);
	return 0;
}

static struct flue_wc take(struct side *s)
{
	struct flue_wc wc = { 0 };

	assert_int_equal(cq_wait(s->cq, 60000), 0);
	assert_int_equal(cq_poll(s->cq, &wc, 1), 1);
	return wc;
}

static void takes(struct side *s, uint64_t id, uint32_t status)
{
	struct flue_wc wc = take(s);

	assert_int_equal(wc.id, id);
	assert_int_equal(wc.status, status);
}

static void receive(struct side *s, uint64_t id, uint64_t at, uint32_t len)
{
	struct flue_sge sg = { .addr = at, .length = len, .lkey = s->mem->stag };
	struct flue_recv_wr wr = { .id = id, .n_sg = 1, .sg = &sg };
	const struct flue_recv_wr *bad;

	assert_int_equal(qp_post_recv(s->q, &wr, &bad), 0);
}

static void post(struct side *s, uint32_t op, uint64_t id, uint64_t at, uint32_t len,
		 uint64_t remote, uint32_t rkey)
{
	struct flue_sge sg = { .addr = at, .length = len, .lkey = s->mem->stag };
	struct flue_send_wr wr = {
		.op = op, .id = id, .n_sg = 1, .sg = &sg, .remote_addr = remote, .rkey = rkey
	};
	const struct flue_send_wr *bad;

	assert_int_equal(qp_post_send(s->q, &wr, &bad), 0);
}

static void fill(struct side *s, uint64_t at, uint32_t len, uint8_t seed)
{
	for (uint32_t i = 0; i < len; i++)
		s->bytes[at + i] = (uint8_t)(i * 31 + i / 251 + seed);
}

static void ended(struct side *s, uint32_t reason)
{
	for (int i = 0; i < 60000 && !atomic_load(&s->ends); i++)
		usleep(1000);
	assert_int_equal(atomic_load(&s->ends), 1);
	assert_int_equal(s->end.reason, reason);
}

static void await_readiness(void)
{
	receive(&b, 90, 0, 0);
	post(&a, FLUE_WR_SEND, 91, 0, 0, 0, 0);
	takes(&a, 91, FLUE_WC_SUCCESS);
	takes(&b, 90, FLUE_WC_SUCCESS);
}

/* ---- traffic ---- */

static void sends_go_both_ways(void **state)
{
	static const uint32_t sizes[] = { 0, 1, 200, 70000, MEMORY / 2 };

	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		struct side *from = i % 2 ? &b : &a, *to = i % 2 ? &a : &b;

		fill(from, 0, sizes[i], (uint8_t)i);
		receive(to, 10 + i, MEMORY / 2, MEMORY / 2);
		post(from, FLUE_WR_SEND, 20 + i, 0, sizes[i], 0, 0);
		takes(from, 20 + i, FLUE_WC_SUCCESS);
		takes(to, 10 + i, FLUE_WC_SUCCESS);
		assert_memory_equal(to->bytes + MEMORY / 2, from->bytes, sizes[i]);
	}
	/* One each, and the ready-to-receive message. */
	assert_int_equal(atomic_load(&messages), ARRAY_SIZE(sizes) + 1);
}

/* Nobody waits on the target's side: its engine's thread was asleep. */
static void write_reaches_a_sleeping_target(void **state)
{
	fill(&a, 0, 300000, 3);
	usleep(50000);
	post(&a, FLUE_WR_WRITE, 1, 0, 300000, 1000, b.mem->stag);
	takes(&a, 1, FLUE_WC_SUCCESS);
	/* The answer to the Read comes behind the Write. */
	post(&a, FLUE_WR_READ, 2, 400000, 300000, 1000, b.mem->stag);
	takes(&a, 2, FLUE_WC_SUCCESS);
	assert_memory_equal(a.bytes + 400000, a.bytes, 300000);
	assert_memory_equal(b.bytes + 1000, a.bytes, 300000);
	assert_true(atomic_load(&arms) > 0);
	assert_true(atomic_load(&rings) > 0);
}

/* Something comes after the last poll, and before the sleep. */
static void link_with_news_keeps_its_engine_awake(void **state)
{
	for (int i = 0; i < 5; i++) {
		atomic_store(&news, true);
		engine_ring(b.q->engine);
		while (atomic_load(&news))
			usleep(1000);
		post(&a, FLUE_WR_READ, 1, 0, 1000, 0, b.mem->stag);
		takes(&a, 1, FLUE_WC_SUCCESS);
	}
}

static void reads_keep_to_the_agreed_number(void **state)
{
	for (uint32_t i = 0; i < 6; i++) {
		fill(&b, i * 1000, 1000, (uint8_t)(i + 1));
		post(&a, FLUE_WR_READ, i, 500000 + i * 1000, 1000, i * 1000, b.mem->stag);
	}
	for (uint32_t i = 0; i < 6; i++)
		takes(&a, i, FLUE_WC_SUCCESS);
	assert_memory_equal(a.bytes + 500000, b.bytes, 6000);
}

/* ---- ends ---- */

static void bad_key_of_a_write_is_a_terminate(void **state)
{
	receive(&a, 1, 0, 100);
	receive(&b, 2, 0, 100);
	post(&a, FLUE_WR_WRITE, 3, 0, 100, 0, 0x12345678);
	ended(&a, FLUE_CLOSE_TERMINATED);
	ended(&b, FLUE_CLOSE_FAULT);
	assert_int_equal(a.end.detail, FAULT_DDP_STAG & 0xffff);
	assert_int_equal(b.end.detail, FAULT_DDP_STAG & 0xffff);
	takes(&a, 3, FLUE_WC_SUCCESS);
	takes(&a, 1, FLUE_WC_FLUSHED);
	takes(&b, 2, FLUE_WC_FLUSHED);
	assert_int_equal(a.owner.state, FLUE_QP_ERROR);
	assert_int_equal(b.owner.state, FLUE_QP_ERROR);
}

/* The Terminate names the request, as one over TCP does. */
static void bad_key_of_a_read_is_blamed_on_the_read(void **state)
{
	await_readiness();
	/* Both are there before one is looked at. */
	engine_lock(b.q->engine);
	post(&a, FLUE_WR_READ, 1, 0, 100, 0, b.mem->stag);
	post(&a, FLUE_WR_READ, 2, 0, 100, 0, 0x12345678);
	engine_unlock(b.q->engine);
	takes(&a, 1, FLUE_WC_FLUSHED);
	takes(&a, 2, FLUE_WC_REMOTE_ACCESS);
	ended(&a, FLUE_CLOSE_TERMINATED);
	ended(&b, FLUE_CLOSE_FAULT);
}

static void program_may_ask_for_a_terminate(void **state)
{
	assert_int_equal(qp_terminate(b.q), 0);
	ended(&b, FLUE_CLOSE_FAULT);
	ended(&a, FLUE_CLOSE_TERMINATED);
}

static void either_may_close_and_be_joined_again(void **state)
{
	for (int i = 0; i < 4; i++) {
		struct side *first = i % 2 ? &b : &a;

		await_readiness();
		assert_int_equal(qp_disconnect(first->q, 60000), 0);
		ended(&a, FLUE_CLOSE_GRACEFUL);
		ended(&b, FLUE_CLOSE_GRACEFUL);
		assert_int_equal(a.owner.state, FLUE_QP_IDLE);
		assert_int_equal(b.owner.state, FLUE_QP_IDLE);
		join();
	}
}

static void both_may_close_at_once(void **state)
{
	await_readiness();
	assert_int_equal(qp_disconnect(a.q, 60000), 0);
	qp_disconnect(b.q, 60000);
	ended(&a, FLUE_CLOSE_GRACEFUL);
	ended(&b, FLUE_CLOSE_GRACEFUL);
}

static void abort_is_seen_as_a_reset(void **state)
{
	await_readiness();
	receive(&a, 1, 0, 100);
	assert_int_equal(qp_abort(b.q), 0);
	ended(&b, FLUE_CLOSE_ABORTED);
	ended(&a, FLUE_CLOSE_RESET);
	takes(&a, 1, FLUE_WC_FLUSHED);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sends_go_both_ways),
		TEST(write_reaches_a_sleeping_target),
		TEST(link_with_news_keeps_its_engine_awake),
		TEST(reads_keep_to_the_agreed_number),
		TEST(bad_key_of_a_write_is_a_terminate),
		TEST(bad_key_of_a_read_is_blamed_on_the_read),
		TEST(program_may_ask_for_a_terminate),
		TEST(either_may_close_and_be_joined_again),
		TEST(both_may_close_at_once),
		TEST(abort_is_seen_as_a_reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
