/* SPDX-License-Identifier: MIT */
/*
 * One-sided work between two queue pairs, without the conversation of flue(1)'s perf: Writes that a spinning target
 * sees, and atomics. The server's memory is told with its reply.
 */
#include "bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "crowd.h"
#include "hist.h"
#include "seen.h"
#include "util.h"

#define DEPTH 64

struct pair {
	struct ep ep;
	struct ep_memory memory;
	struct ep_remote remote; /* the client's: where it may write */
	uint32_t window;
};

static bool open_pair(struct pair *p, const struct bench_args *args, size_t length, uint32_t access)
{
	struct ep_attr attr = { .wait = args->wait, .sq_depth = DEPTH, .rq_depth = 1 };

	memset(p, 0, sizeof(*p));
	attr.adapter = bench_open_adapter(args);
	return attr.adapter && ep_open(&p->ep, &attr) &&
	       ep_memory_open(&p->ep, &p->memory, length, access);
}

/* Listen, tell the port, take one connection. */
static bool answer(struct pair *p, const struct bench_args *args, int port_fd)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in local = bench_loopback(0);
	struct flue_adapter *adapter = p->ep.adapter;
	struct flue_conn_request *request;
	struct flue_listener *listener;
	struct ep_remote own = { .addr = p->memory.mr->remote_start, .rkey = p->memory.mr->rkey };

	memset(p->memory.data, 0, p->memory.length);
	attr.local = (struct sockaddr *)&local;
	attr.local_len = sizeof(local);
	attr.flags = args->full ? FLUE_LISTEN_FULL : 0;
	listener = adapter->ops->listen(adapter, &attr);
	if (!listener ||
	    !bench_tell_port(port_fd, ((struct sockaddr_in *)&listener->local)->sin_port))
		return false;
	request = listener->ops->get_request(listener, 10000);
	conn.private_data = &own;
	conn.private_len = sizeof(own);
	return request && request->ops->accept(request, p->ep.qp, &conn);
}

static bool dial(struct pair *p, const struct bench_args *args, uint16_t port)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in to = bench_loopback(port);

	memset(p->memory.data, 0x5a, p->memory.length);
	conn.remote = (struct sockaddr *)&to;
	conn.remote_len = sizeof(to);
	conn.flags = args->full ? FLUE_CONN_FULL : 0;
	if (!p->ep.qp->ops->connect(p->ep.qp, &conn))
		return false;
	if (p->ep.qp->private_len != sizeof(p->remote)) {
		errno = EPROTO;
		return false;
	}
	memcpy(&p->remote, p->ep.qp->private_data, sizeof(p->remote));
	errno = EPROTO;
	return bench_check_link(args, p->ep.qp);
}

/* ---- Writes ---- */

static int seen_serve(const struct bench_args *args, int port_fd)
{
	struct pair p;

	if (!open_pair(&p, args, args->size, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE) ||
	    !answer(&p, args, port_fd))
		return bench_fail("flue-seen server");
	seen_watch(args, p.memory.data);
}

static bool write_flue(void *arg, uint8_t *source, uint64_t n)
{
	struct pair *p = arg;

	(void)source;
	(void)n;
	return ep_post(&p->ep, FLUE_WR_WRITE, &p->memory, 0, (uint32_t)p->memory.length, &p->remote,
		       true);
}

/* The source belongs to the queue until then. */
static bool reap(void *arg)
{
	struct pair *p = arg;

	return ep_wait_sent(&p->ep, p->ep.posted, 10000);
}

static int seen_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	static struct pair p;

	if (!open_pair(&p, args, args->size, 0) || !dial(&p, args, port))
		return bench_fail("flue-seen");
	return seen_measure(args, p.memory.data, write_flue, reap, &p, result);
}

/* ---- atomics ---- */

static int add_serve(const struct bench_args *args, int port_fd)
{
	struct pair p;

	if (!open_pair(&p, args, 4096, FLUE_LOCAL_WRITE | FLUE_REMOTE_ATOMIC) ||
	    !answer(&p, args, port_fd))
		return bench_fail("flue-fetch-add server");
	while (ep_pull(&p.ep, -1))
		;
	return 0;
}

/* Post the next one; its answer goes to a place of its own within the window. */
static bool post_add(struct pair *p)
{
	struct flue_send_wr wr = { .op = FLUE_WR_FETCH_ADD, .flags = FLUE_SIGNALED, .n_sg = 1 };
	struct flue_sge sge = flue_mr_sge(p->memory.mr, p->ep.posted % p->window * 8, 8);

	wr.id = p->ep.posted + 1;
	wr.sg = &sge;
	wr.remote_addr = p->remote.addr;
	wr.rkey = p->remote.rkey;
	wr.atomic.compare_add = 1;
	if (!flue_post_send(p->ep.qp, &wr))
		return false;
	p->ep.posted++;
	return true;
}

/* The answer to number n (from 0) is n: nobody else counts there. */
static bool check_add(const struct pair *p, uint64_t n)
{
	uint64_t got;

	memcpy(&got, p->memory.data + n % p->window * 8, sizeof(got));
	if (got == n)
		return true;
	fprintf(stderr, "flue_bench: fetch-add %llu answered %llu\n", (unsigned long long)n,
		(unsigned long long)got);
	errno = EPROTO;
	return false;
}

/* Until all that can be under way is, and the oldest is done. */
static bool step_adds(struct pair *p, uint64_t *checked)
{
	while (p->ep.posted - *checked < p->window) {
		if (!post_add(p))
			return false;
	}
	if (!ep_wait_sent(&p->ep, *checked + 1, 10000))
		return false;
	for (; *checked < p->ep.completed; ++*checked) {
		if (!check_add(p, *checked))
			return false;
	}
	return true;
}

static int add_run(const struct bench_args *args, uint16_t port, struct bench_result *result)
{
	uint64_t start, now, before = 0, first, checked = 0;
	uint64_t duration = (uint64_t)(args->seconds * 1e9);
	static struct hist hist;
	static struct pair p;

	if (!open_pair(&p, args, 4096, FLUE_LOCAL_WRITE) || !dial(&p, args, port))
		return bench_fail("flue-fetch-add");
	p.window = args->window && args->window <= DEPTH ? (uint32_t)args->window : 1;
	while (checked < SEEN_WARM) {
		if (!step_adds(&p, &checked))
			return bench_fail("flue-fetch-add");
	}
	hist_init(&hist);
	first = checked;
	start = before = util_now_ns();
	do {
		if (!step_adds(&p, &checked))
			return bench_fail("flue-fetch-add");
		now = util_now_ns();
		hist_add(&hist, now - before);
		before = now;
	} while (now - start < duration);
	if (p.window == 1)
		bench_take_hist(result, &hist);
	result->messages = checked - first;
	result->per_second = (double)(checked - first) / ((double)(now - start) / 1e9);
	return 0;
}

const struct bench_mode bench_pair_modes[] = {
	{ "flue-seen", seen_serve, seen_run },
	{ "flue-fetch-add", add_serve, add_run },
	{ 0 },
};
