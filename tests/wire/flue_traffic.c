/* SPDX-License-Identifier: MIT */
/*
 * One connection between two Flue ends over loopback, for capture_test to look at from outside.
 * Every kind of message that a program can cause is sent both ways, data are verified, and what
 * was sent is said on stdout, so that the reader of the capture knows what must be in it:
 *
 *	flue_traffic [word]...
 *	port 40123
 *	read_request 12
 *	...
 *
 * Words: nocrc (CRC off), markers-a, markers-b (what a, the initiator, or b wants to receive),
 * rev1, two-way, strict (no own-peer extensions), rtr-send, rtr-write, rtr-read, ipv6, data
 * (private data), rfc7306 (its messages, too), fpdu=N, small, large (sizes of messages; both when none is given), and how it
 * ends: end-a, end-b, abort, bad-write, bad-read, bad-bounds, refused.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conf/pair.h"

enum { SMALL = 1, LARGE = 2 };
enum end { END_A, END_B, END_ABORT, END_BAD_WRITE, END_BAD_READ, END_BAD_BOUNDS, END_REFUSED };

/* By RDMAP opcode. */
static const char *const names[] = { "write",        "read_request",   "read_response",
				     "send",         "send_inv",       "send_se",
				     "send_se_inv",  "terminate",      "immediate",
				     "immediate_se", "atomic_request", "atomic_response" };
enum {
	WRITE,
	READ_REQUEST,
	READ_RESPONSE,
	SEND,
	SEND_INV,
	SEND_SE,
	SEND_SE_INV,
	TERMINATE,
	IMMEDIATE,
	IMMEDIATE_SE,
	ATOMIC_REQUEST,
	ATOMIC_RESPONSE
};

static unsigned long count[sizeof(names) / sizeof(names[0])];
static unsigned sizes_wanted;
static enum end ending = END_A;

/* Around the limits of padding, of one FPDU, and of what TCP takes in one piece. */
static const uint32_t small_sizes[] = { 0, 1, 2, 3, 4, 5, 63, 64, 100, 441, 700 };
static const uint32_t large_sizes[] = { 1434, 1435, 5000, 65000, 65536, 200001 };

static void die(const char *what)
{
	fprintf(stderr, "flue_traffic: %s: %s\n", what, strerror(errno));
	exit(1);
}

#define MUST(call)                  \
	do {                        \
		if (!(call))        \
			die(#call); \
	} while (0)

/* ---- arguments ---- */

struct word {
	const char *name;
	int side; /* whose flags: 0 a, 1 b, 2 both */
	uint32_t flags;
};

static const struct word flag_words[] = {
	{ "nocrc", 2, FLUE_CONN_NO_CRC },      { "markers-a", 0, FLUE_CONN_MARKERS },
	{ "markers-b", 1, FLUE_CONN_MARKERS }, { "rev1", 0, FLUE_CONN_REV1 },
	{ "two-way", 0, FLUE_CONN_TWO_WAY },   { "strict", 2, FLUE_CONN_STRICT_PEER },
	{ "rtr-send", 2, FLUE_CONN_RTR_SEND }, { "rtr-write", 2, FLUE_CONN_RTR_WRITE },
	{ "rtr-read", 2, FLUE_CONN_RTR_READ }, { "rfc7306", 2, FLUE_CONN_RFC7306 },
};

static const char *const end_words[] = { "end-a",    "end-b",      "abort",  "bad-write",
					 "bad-read", "bad-bounds", "refused" };

static bool is_flag(struct pair_options *o, const char *arg)
{
	for (size_t i = 0; i < sizeof(flag_words) / sizeof(flag_words[0]); i++) {
		const struct word *w = &flag_words[i];

		if (strcmp(arg, w->name))
			continue;
		if (w->side != 1)
			o->conn_flags[0] |= w->flags;
		if (w->side != 0)
			o->conn_flags[1] |= w->flags;
		return true;
	}
	return false;
}

static bool is_end(const char *arg)
{
	for (size_t i = 0; i < sizeof(end_words) / sizeof(end_words[0]); i++) {
		if (!strcmp(arg, end_words[i])) {
			ending = (enum end)i;
			return true;
		}
	}
	return false;
}

static void read_word(struct pair_options *o, const char *arg)
{
	static const char of_a[] = "private data of the initiator", of_b[] = "and of the responder";

	if (is_flag(o, arg) || is_end(arg))
		return;
	if (!strcmp(arg, "small")) {
		sizes_wanted |= SMALL;
	} else if (!strcmp(arg, "large")) {
		sizes_wanted |= LARGE;
	} else if (!strcmp(arg, "ipv6")) {
		o->ipv6 = true;
	} else if (!strncmp(arg, "fpdu=", 5)) {
		o->fpdu_max = (uint32_t)atoi(arg + 5);
	} else if (!strcmp(arg, "data")) {
		o->private_data[0] = of_a;
		o->private_len[0] = sizeof(of_a);
		o->private_data[1] = of_b;
		o->private_len[1] = sizeof(of_b);
	} else {
		fprintf(stderr, "flue_traffic: what is '%s'?\n", arg);
		exit(2);
	}
}

/* ---- messages ---- */

/* Where a side keeps what it sends and what it receives. */
#define OUT_AT 0
#define IN_AT  (2u << 20)
#define MEMORY (4u << 20)

static uint32_t seed = 1;

static void done(struct pair_side *s)
{
	MUST(pair_expect(s->send_cq, 1, FLUE_WC_SUCCESS));
}

static void send_one(struct pair_side *from, struct pair_side *to, uint32_t size, uint32_t flags,
		     uint32_t inv_key)
{
	struct flue_sge sge = flue_mr_sge(from->mr, OUT_AT, size);
	struct flue_send_wr wr = {
		.id = 1,
		.op = inv_key ? FLUE_WR_SEND_INV : FLUE_WR_SEND,
		.flags = FLUE_SIGNALED | flags,
		.sg = &sge,
		.n_sg = 1,
		.rkey = inv_key,
	};
	struct flue_wc wc;

	pair_fill(from->mem + OUT_AT, size, ++seed);
	MUST(pair_recv(to, IN_AT, size, 1));
	MUST(flue_post_send(from->qp, &wr));
	done(from);
	MUST(pair_take(to->recv_cq, &wc, 1, 10000) == 1);
	MUST(wc.status == FLUE_WC_SUCCESS && wc.byte_len == size);
	MUST(!!(wc.flags & FLUE_WC_SOLICITED) == !!flags);
	MUST(wc.inv_key == inv_key);
	MUST(pair_check(to->mem + IN_AT, size, seed) == size);
	count[inv_key ? (flags ? SEND_SE_INV : SEND_INV) : (flags ? SEND_SE : SEND)]++;
}

/* The peer revokes a region that was made for it. */
static void send_inv(struct pair_side *from, struct pair_side *to, uint32_t size, uint32_t flags)
{
	static uint8_t page[4096];
	struct flue_mr *mr = flue_register(to->pd, page, sizeof(page), PAIR_ALL_ACCESS);

	MUST(mr);
	send_one(from, to, size, flags, mr->rkey);
	MUST(flue_deregister(mr));
}

static void write_one(struct pair_side *from, struct pair_side *to, uint32_t size)
{
	uint32_t mine = ++seed;

	pair_fill(from->mem + OUT_AT, size, mine);
	MUST(pair_write(from, OUT_AT, size, to, IN_AT + (1 << 20), 1, FLUE_SIGNALED));
	done(from);
	count[WRITE]++;
	/* What is behind a Write says that it arrived. */
	send_one(from, to, 4, 0, 0);
	MUST(pair_check(to->mem + IN_AT + (1 << 20), size, mine) == size);
}

static void read_one(struct pair_side *from, struct pair_side *to, uint32_t size)
{
	pair_fill(to->mem + OUT_AT, size, ++seed);
	MUST(pair_read(from, IN_AT, size, to, OUT_AT, 1, FLUE_SIGNALED));
	done(from);
	MUST(pair_check(from->mem + IN_AT, size, seed) == size);
	count[READ_REQUEST]++;
	count[READ_RESPONSE]++;
}

static void write_imm_one(struct pair_side *from, struct pair_side *to, uint32_t size,
			  uint32_t flags)
{
	struct flue_sge sge = flue_mr_sge(from->mr, OUT_AT, size);
	struct flue_send_wr wr = { .id = 1,
				   .op = FLUE_WR_WRITE_IMM,
				   .flags = FLUE_SIGNALED | flags,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = to->mr->rkey,
				   .remote_addr = to->mr->remote_start + IN_AT,
				   .imm = ++seed };
	struct flue_wc wc;

	pair_fill(from->mem + OUT_AT, size, seed);
	MUST(pair_recv(to, OUT_AT, 0, 1));
	MUST(flue_post_send(from->qp, &wr));
	done(from);
	MUST(pair_take(to->recv_cq, &wc, 1, 10000) == 1);
	MUST(wc.status == FLUE_WC_SUCCESS && wc.imm == seed && wc.byte_len == size);
	MUST(pair_check(to->mem + IN_AT, size, seed) == size);
	count[WRITE]++;
	count[flags ? IMMEDIATE_SE : IMMEDIATE]++;
}

static void atomic_one(struct pair_side *from, struct pair_side *to, uint32_t op)
{
	struct flue_sge sge = flue_mr_sge(from->mr, IN_AT, 8);
	struct flue_send_wr wr = { .id = 1,
				   .op = op,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = to->mr->rkey,
				   .remote_addr = to->mr->remote_start + OUT_AT,
				   .atomic = { .compare_add = 7, .swap = 9 } };

	memset(to->mem + OUT_AT, 0, 8);
	to->mem[OUT_AT] = 7;
	MUST(flue_post_send(from->qp, &wr));
	done(from);
	MUST(from->mem[IN_AT] == 7);
	MUST(to->mem[OUT_AT] == (op == FLUE_WR_FETCH_ADD ? 14 : 9));
	count[ATOMIC_REQUEST]++;
	count[ATOMIC_RESPONSE]++;
}

static void exchange(struct pair *p, uint32_t size)
{
	struct pair_side *side[] = { &p->a, &p->b };

	for (int i = 0; i < 2; i++) {
		struct pair_side *from = side[i], *to = side[!i];

		send_one(from, to, size, 0, 0);
		send_one(from, to, size, FLUE_SOLICITED, 0);
		send_inv(from, to, size, 0);
		send_inv(from, to, size, FLUE_SOLICITED);
		write_one(from, to, size);
		read_one(from, to, size);
		if (!(p->options.conn_flags[0] & FLUE_CONN_RFC7306))
			continue;
		write_imm_one(from, to, size, 0);
		write_imm_one(from, to, size, FLUE_SOLICITED);
		atomic_one(from, to, FLUE_WR_FETCH_ADD);
		atomic_one(from, to, FLUE_WR_CMP_SWAP);
	}
}

/* ---- beginning and end ---- */

static void count_rtr(const struct pair_options *o)
{
	uint32_t flags = o->conn_flags[0];

	if (flags & (FLUE_CONN_REV1 | FLUE_CONN_TWO_WAY))
		return;
	/* Write is the first choice of both ends. */
	if (flags & FLUE_CONN_RTR_WRITE || !(flags & (FLUE_CONN_RTR_SEND | FLUE_CONN_RTR_READ))) {
		count[WRITE]++;
	} else if (flags & FLUE_CONN_RTR_READ) {
		count[READ_REQUEST]++;
		count[READ_RESPONSE]++;
	} else {
		count[SEND]++;
	}
}

static void expect_end(struct pair_side *s, uint32_t reason)
{
	struct flue_event ev;

	MUST(pair_event(s, FLUE_EVENT_DISCONNECTED, s->qp, &ev, 10000));
	if (ev.reason != reason) {
		fprintf(stderr, "flue_traffic: ended '%s' [%x]\n",
			flue_close_reason_name(ev.reason), ev.detail);
		exit(1);
	}
}

/* b finds a's request wrong and says so. */
static void break_rule(struct pair *p)
{
	uint8_t *end = p->b.mem + MEMORY;
	struct flue_sge sge = flue_mr_sge(p->a.mr, OUT_AT, 64);
	struct flue_send_wr wr = {
		.id = 1,
		.op = ending == END_BAD_WRITE ? FLUE_WR_WRITE : FLUE_WR_READ,
		.flags = FLUE_SIGNALED,
		.sg = &sge,
		.n_sg = 1,
		.rkey = p->b.mr->rkey ^ (ending == END_BAD_BOUNDS ? 0 : 0x5500),
		.remote_addr = (uintptr_t)(ending == END_BAD_BOUNDS ? end - 63 : p->b.mem),
	};

	MUST(flue_post_send(p->a.qp, &wr));
	count[wr.op == FLUE_WR_WRITE ? WRITE : READ_REQUEST]++;
	count[TERMINATE]++;
	expect_end(&p->b, FLUE_CLOSE_FAULT);
	expect_end(&p->a, FLUE_CLOSE_TERMINATED);
}

static void finish(struct pair *p)
{
	struct pair_side *first = ending == END_B ? &p->b : &p->a;
	struct pair_side *other = ending == END_B ? &p->a : &p->b;

	switch (ending) {
	case END_ABORT:
		MUST(flue_abort(first->qp));
		expect_end(other, FLUE_CLOSE_RESET);
		break;
	case END_BAD_WRITE:
	case END_BAD_READ:
	case END_BAD_BOUNDS: break_rule(p); break;
	default: MUST(flue_disconnect(first->qp)); expect_end(other, FLUE_CLOSE_GRACEFUL);
	}
}

static void *refuse(void *arg)
{
	struct pair *p = arg;
	struct flue_conn_request *req = p->listener->ops->get_request(p->listener, 10000);

	MUST(req);
	MUST(req->ops->reject(req, p->options.private_data[1], p->options.private_len[1]));
	return NULL;
}

static void be_refused(struct pair *p)
{
	struct flue_conn_attr attr = pair_conn_attr(p, p->options.conn_flags[0]);
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, refuse, p) == 0);
	MUST(!p->a.qp->ops->connect(p->a.qp, &attr) && errno == ECONNREFUSED);
	MUST(p->a.qp->private_len == p->options.private_len[1]);
	pthread_join(thread, NULL);
}

static void talk(struct pair *p)
{
	MUST(pair_connect(p));
	count_rtr(&p->options);
	/* The first word is the initiator's (RFC 5044 section 7.1). */
	for (size_t i = 0; sizes_wanted & SMALL && i < sizeof(small_sizes) / 4; i++)
		exchange(p, small_sizes[i]);
	for (size_t i = 0; sizes_wanted & LARGE && i < sizeof(large_sizes) / 4; i++)
		exchange(p, large_sizes[i]);
	finish(p);
}

int main(int argc, char **argv)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	o.memory = MEMORY;
	o.access |= FLUE_REMOTE_ATOMIC;
	for (int i = 1; i < argc; i++)
		read_word(&o, argv[i]);
	if (!sizes_wanted)
		sizes_wanted = SMALL | LARGE;
	MUST(pair_make(&p, &o));
	/* The port is at the same place in both kinds of addresses. */
	printf("port %d\n", ntohs(((struct sockaddr_in *)&p.listener->local)->sin_port));
	if (ending == END_REFUSED)
		be_refused(&p);
	else
		talk(&p);
	MUST(pair_close(&p));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		printf("%s %lu\n", names[i], count[i]);
	return 0;
}
