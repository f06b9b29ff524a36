/* SPDX-License-Identifier: MIT */
/* See pair.h. */
#include "conf/pair.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *pair_provider = "soft";
bool pair_full;
bool pair_local;
bool pair_denied;
bool pair_self;

void pair_use(enum column c)
{
	pair_full = column_is_full(c);
	pair_local = column_is_local(c);
	pair_denied = c == COLUMN_DENIED;
	pair_self = c == COLUMN_SELF;
	if (pair_denied)
		column_deny_process_vm();
}

/* Any program that uses the fixture can be run over another link: FLUE_TEST_LINK is a column's name. */
__attribute__((constructor)) static void choose_link(void)
{
	const char *link = getenv("FLUE_TEST_LINK");
	enum column c;

	if (!link)
		return;
	if (!column_find(link, &c)) {
		fprintf(stderr, "there is no column '%s'\n", link);
		exit(2);
	}
	pair_use(c);
}

uint64_t pair_now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- events of two sides in one queue ---- */

static struct flue_event kept[64];
static uint32_t n_kept;

uint32_t pair_kept(void)
{
	return n_kept;
}

static bool take_kept(const void *object, struct flue_event *ev)
{
	for (uint32_t i = 0; i < n_kept; i++) {
		if (object && kept[i].u.object != object)
			continue;
		*ev = kept[i];
		memmove(&kept[i], &kept[i + 1], (--n_kept - i) * sizeof(kept[0]));
		return true;
	}
	return false;
}

/* The next one of `object`; what is of others is kept for them. */
static bool next_event(struct flue_adapter *a, const void *object, struct flue_event *ev,
		       int timeout_ms)
{
	if (take_kept(object, ev))
		return true;
	while (flue_get_event(a, ev, timeout_ms)) {
		if (!pair_self || !object || ev->u.object == object)
			return true;
		if (n_kept == sizeof(kept) / sizeof(kept[0]))
			return true;
		kept[n_kept++] = *ev;
	}
	return false;
}

/* ---- making ---- */

static struct flue_adapter *open_adapter(const struct pair_options *o)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	attr.provider = o->provider ? o->provider : pair_provider;
	attr.cpus = o->cpus;
	attr.n_cpus = o->n_cpus;
	attr.links = pair_local ? FLUE_LINK_ALL : FLUE_LINK_TCP;
	return flue_open(&attr);
}

static struct flue_cq *make_cq(struct flue_adapter *a, const struct pair_options *o, int which)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

	attr.depth = o->cq_depth;
	attr.on_completion = o->on_completion[which];
	attr.arg = o->completion_arg[which];
	attr.cpu_plus_1 = o->cpu_plus_1[which];
	return a->ops->create_cq(a, &attr);
}

/* `side->adapter` may be there already. */
static bool make_base(struct pair_side *side, const struct pair_options *o, int which)
{
	if (!side->adapter)
		side->adapter = open_adapter(o);
	if (!side->adapter)
		return false;
	side->pd = flue_create_pd(side->adapter);
	if (!side->pd)
		return false;
	side->recv_cq = make_cq(side->adapter, o, which);
	if (!side->recv_cq)
		return false;
	side->send_cq = o->one_cq ? side->recv_cq : make_cq(side->adapter, o, which);
	return side->send_cq;
}

static struct flue_qp *make_qp(struct pair_side *side, const struct pair_options *o)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = side->send_cq;
	attr.recv_cq = side->recv_cq;
	attr.srq = side->srq;
	attr.sq_depth = o->sq_depth;
	attr.rq_depth = o->rq_depth;
	attr.sq_sge = o->sge;
	attr.rq_sge = o->sge;
	attr.max_inline = o->max_inline;
	attr.flags = o->qp_flags;
	attr.on_event = o->on_event;
	attr.event_arg = o->event_arg;
	return side->pd->ops->create_qp(side->pd, &attr);
}

static bool make_side(struct pair_side *side, const struct pair_options *o, int which)
{
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);

	if (!make_base(side, o, which))
		return false;
	if (o->memory) {
		side->mem = malloc(o->memory);
		if (!side->mem)
			return false;
		memset(side->mem, 0, o->memory);
		side->mr = flue_register(side->pd, side->mem, o->memory, o->access);
		if (!side->mr)
			return false;
	}
	if (o->srq_depth) {
		srq.depth = o->srq_depth;
		srq.max_sge = o->sge;
		side->srq = side->pd->ops->create_srq(side->pd, &srq);
		if (!side->srq)
			return false;
	}
	side->qp = make_qp(side, o);
	return side->qp;
}

static bool make_listener(struct pair *p)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = p->options.ipv6 ? (struct sockaddr *)&in6 : (struct sockaddr *)&in;
	attr.local_len = p->options.ipv6 ? sizeof(in6) : sizeof(in);
	attr.flags = pair_full ? FLUE_LISTEN_FULL : 0;
	p->listener = p->b.adapter->ops->listen(p->b.adapter, &attr);
	return p->listener;
}

static bool make_all(struct pair *p)
{
	if (!make_side(&p->a, &p->options, 0))
		return false;
	if (p->options.one_adapter)
		p->b.adapter = p->a.adapter;
	return make_side(&p->b, &p->options, 1) && make_listener(p);
}

/* Both ends on one engine, unless the test wants something else. */
static void share_engine(struct pair_options *o)
{
	static int cpu;
	cpu_set_t set;

	o->one_adapter = true;
	if (o->cpus || sched_getaffinity(0, sizeof(set), &set) != 0)
		return;
	for (cpu = 0; !CPU_ISSET(cpu, &set); cpu++)
		;
	o->cpus = &cpu;
	o->n_cpus = 1;
}

bool pair_make(struct pair *p, const struct pair_options *o)
{
	int error;

	memset(p, 0, sizeof(*p));
	p->options = *o;
	n_kept = 0;
	if (pair_self)
		share_engine(&p->options);
	if (make_all(p))
		return true;
	error = errno;
	pair_close(p);
	errno = error;
	return false;
}

bool pair_open(struct pair *p, const struct pair_options *o)
{
	int error;

	if (!pair_make(p, o))
		return false;
	if (pair_connect(p))
		return true;
	error = errno;
	pair_close(p);
	errno = error;
	return false;
}

struct flue_qp *pair_new_qp(struct pair *p, struct pair_side *side)
{
	return make_qp(side, &p->options);
}

bool pair_side_open(struct pair_side *side, const struct pair_options *o, int which)
{
	int error;

	memset(side, 0, sizeof(*side));
	if (make_base(side, o, which))
		return true;
	error = errno;
	pair_side_close(side);
	errno = error;
	return false;
}

/* ---- connecting ---- */

struct flue_conn_attr pair_conn_attr(const struct pair *p, uint32_t flags)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	attr.remote = (const struct sockaddr *)&p->listener->local;
	attr.remote_len = p->options.ipv6 ? sizeof(struct sockaddr_in6)
					  : sizeof(struct sockaddr_in);
	attr.flags = flags | (pair_full ? FLUE_CONN_FULL : 0);
	return attr;
}

struct dial {
	struct pair *p;
	struct flue_qp *qp;
	atomic_bool over;
	bool ok;
	int error;
};

static struct flue_conn_attr conn_attr(struct pair *p, int which)
{
	const struct pair_options *o = &p->options;
	struct flue_conn_attr attr = pair_conn_attr(p, o->conn_flags[which]);

	attr.private_data = o->private_data[which];
	attr.private_len = o->private_len[which];
	attr.ird = o->ird;
	attr.ord = o->ord;
	attr.timeout_ms = o->timeout_ms;
	attr.fpdu_max = o->fpdu_max;
	return attr;
}

static void *dial_main(void *arg)
{
	struct dial *dial = arg;
	struct flue_conn_attr attr = conn_attr(dial->p, 0);

	dial->ok = dial->qp->ops->connect(dial->qp, &attr);
	dial->error = errno;
	atomic_store(&dial->over, true);
	return NULL;
}

/* The request, or NULL when the initiator gave up or nothing came. */
static struct flue_conn_request *await_request(struct pair *p, struct dial *dial)
{
	struct flue_conn_request *req = NULL;
	uint64_t end = pair_now_ms() + 15000;
	bool over = false;

	while (!req && !over && pair_now_ms() < end) {
		over = atomic_load(&dial->over);
		req = p->listener->ops->get_request(p->listener, over ? 0 : 20);
	}
	return req;
}

bool pair_connect_qps(struct pair *p, struct flue_qp *a, struct flue_qp *b)
{
	struct dial dial = { .p = p, .qp = a };
	struct flue_conn_attr attr = conn_attr(p, 1);
	struct flue_conn_request *req;
	bool accepted = false;
	pthread_t thread;
	int rc, error = ETIMEDOUT;

	rc = pthread_create(&thread, NULL, dial_main, &dial);
	if (rc) {
		errno = rc;
		return false;
	}
	req = await_request(p, &dial);
	if (req) {
		accepted = req->ops->accept(req, b, &attr);
		error = errno;
	}
	pthread_join(thread, NULL);
	if (accepted && dial.ok)
		return true;
	errno = dial.ok ? error : dial.error;
	return false;
}

bool pair_connect(struct pair *p)
{
	return pair_connect_qps(p, p->a.qp, p->b.qp);
}

/* ---- destroying ---- */

#define GONE(pointer, call)               \
	do {                              \
		if ((pointer) && !(call)) \
			return false;     \
		(pointer) = NULL;         \
	} while (0)

static bool drop_objects(struct pair_side *s)
{
	struct flue_cq *send_cq = s->send_cq == s->recv_cq ? NULL : s->send_cq;

	GONE(s->qp, flue_destroy_qp(s->qp));
	GONE(s->srq, s->srq->ops->destroy(s->srq));
	GONE(s->mr, flue_deregister(s->mr));
	free(s->mem);
	s->mem = NULL;
	if (send_cq && !flue_destroy_cq(send_cq))
		return false;
	s->send_cq = NULL;
	GONE(s->recv_cq, flue_destroy_cq(s->recv_cq));
	GONE(s->pd, flue_destroy_pd(s->pd));
	return true;
}

bool pair_side_close(struct pair_side *s)
{
	if (!drop_objects(s))
		return false;
	GONE(s->adapter, flue_close(s->adapter));
	return true;
}

bool pair_close(struct pair *p)
{
	bool shared = p->a.adapter == p->b.adapter;

	GONE(p->listener, p->listener->ops->destroy(p->listener));
	if (!drop_objects(&p->a) || !drop_objects(&p->b))
		return false;
	if (shared)
		p->b.adapter = NULL;
	return pair_side_close(&p->a) && pair_side_close(&p->b);
}

/* ---- posting ---- */

bool pair_recv(struct pair_side *s, size_t offset, uint32_t length, uint64_t id)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, length);
	struct flue_recv_wr wr = { .id = id, .sg = &sge, .n_sg = 1 };

	if (s->srq)
		return s->srq->ops->post_recv(s->srq, &wr, NULL);
	return flue_post_recv(s->qp, &wr);
}

bool pair_send(struct pair_side *s, size_t offset, uint32_t length, uint64_t id, uint32_t flags)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, length);
	struct flue_send_wr wr = {
		.id = id, .op = FLUE_WR_SEND, .flags = flags, .sg = &sge, .n_sg = 1
	};

	return flue_post_send(s->qp, &wr);
}

static bool move(struct pair_side *s, uint32_t op, size_t offset, uint32_t length,
		 const struct flue_mr *peer, size_t remote, uint64_t id, uint32_t flags)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, length);
	struct flue_send_wr wr = {
		.id = id,
		.op = op,
		.flags = flags,
		.sg = &sge,
		.n_sg = 1,
		.rkey = peer->rkey,
		.remote_addr = peer->remote_start + remote,
	};

	return flue_post_send(s->qp, &wr);
}

bool pair_write(struct pair_side *s, size_t offset, uint32_t length, struct pair_side *peer,
		size_t remote, uint64_t id, uint32_t flags)
{
	return move(s, FLUE_WR_WRITE, offset, length, peer->mr, remote, id, flags);
}

bool pair_read(struct pair_side *s, size_t offset, uint32_t length, struct pair_side *peer,
	       size_t remote, uint64_t id, uint32_t flags)
{
	return move(s, FLUE_WR_READ, offset, length, peer->mr, remote, id, flags);
}

/* ---- waiting ---- */

static int left_until(uint64_t end)
{
	uint64_t now = pair_now_ms();

	return now >= end ? 0 : (int)(end - now);
}

uint32_t pair_take(struct flue_cq *cq, struct flue_wc *wc, uint32_t n, int timeout_ms)
{
	uint64_t end = pair_now_ms() + (uint64_t)timeout_ms;
	uint32_t have = 0, got;

	while (have < n) {
		if (!flue_poll(cq, wc + have, n - have, &got))
			break;
		have += got;
		if (got || have == n)
			continue;
		if (!left_until(end))
			break;
		if (!flue_wait(cq, left_until(end)) && errno != EINTR)
			break;
	}
	return have;
}

bool pair_expect(struct flue_cq *cq, uint64_t id, uint32_t status)
{
	struct flue_wc wc;

	if (pair_take(cq, &wc, 1, 10000) != 1) {
		fprintf(stderr, "no completion came, want id %llu: %s\n", (unsigned long long)id,
			strerror(errno));
		return false;
	}
	if (wc.id == id && wc.status == status)
		return true;
	fprintf(stderr, "completion %llu is '%s', want %llu '%s'\n", (unsigned long long)wc.id,
		flue_wc_status_name(wc.status), (unsigned long long)id,
		flue_wc_status_name(status));
	return false;
}

/* Told in full service alone, before the end. */
static bool is_of_full_service(uint32_t type)
{
	return type == FLUE_EVENT_QP_ACCESS || type == FLUE_EVENT_QP_REQUEST ||
	       type == FLUE_EVENT_QP_ERROR;
}

bool pair_event(struct pair_side *s, uint32_t type, const void *object, struct flue_event *ev,
		int timeout_ms)
{
	struct flue_event here;

	if (!ev)
		ev = &here;
	do {
		if (!next_event(s->adapter, object, ev, timeout_ms)) {
			fprintf(stderr, "no event came, want '%s': %s\n", flue_event_name(type),
				strerror(errno));
			return false;
		}
	} while (pair_full && is_of_full_service(ev->type) && ev->type != type);
	if (ev->type == type && (!object || ev->u.object == object))
		return true;
	fprintf(stderr, "event is '%s' of %p (%s), want '%s' of %p\n", flue_event_name(ev->type),
		ev->u.object, flue_close_reason_name(ev->reason), flue_event_name(type), object);
	return false;
}

bool pair_wait_state(const struct flue_qp *qp, uint32_t state, int timeout_ms)
{
	uint64_t end = pair_now_ms() + (uint64_t)timeout_ms;

	while (flue_qp_state(qp) != state) {
		if (!left_until(end)) {
			fprintf(stderr, "state is %s, want %s\n",
				flue_qp_state_name(flue_qp_state(qp)), flue_qp_state_name(state));
			errno = ETIMEDOUT;
			return false;
		}
		usleep(500);
	}
	return true;
}

/* ---- data ---- */

static uint8_t octet(size_t i, uint32_t seed)
{
	uint32_t x = (uint32_t)i * 2654435761u + seed * 40503u;

	return (uint8_t)(x >> 24 ^ x >> 11);
}

void pair_fill(uint8_t *at, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		at[i] = octet(i, seed);
}

size_t pair_check(const uint8_t *at, size_t n, uint32_t seed)
{
	size_t i = 0;

	while (i < n && at[i] == octet(i, seed))
		i++;
	return i;
}
