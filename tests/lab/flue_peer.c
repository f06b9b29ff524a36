/* SPDX-License-Identifier: MIT */
/*
 * usage: flue_peer client|server|convert-connect|convert-accept MODE [options]
 *                  MODE as in siwpeer, and bad-msn, and closing (flue_peer_close.c)
 *        flue_peer rping-client|rping-server|rdma-client|rdma-server|ucmatose-client|
 *                  ucmatose-server [options]
 *
 * Prints, like siwpeer: "EVENT name status", "WC status opcode len", "PEER-PD hex",
 * "PEER-IRD-ORD ird ord", "LISTENING port", "DONE messages bytes bad". Exit 0: as the mode wants.
 */
#include "flue_peer.h"

#include <getopt.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool peer_failed(const char *what)
{
	printf("FAILED %s: %s\n", what, strerror(errno));
	return false;
}

static void usage(void)
{
	fprintf(stderr,
		"usage: flue_peer client|server|convert-connect|convert-accept MODE [options]\n"
		"       flue_peer PROGRAM [options]\n"
		"  --addr A --port P --pd HEX --ird N --ord N --size N --count N --window N\n"
		"  --total N --wrs N --active client|server --timeout MS --quiet\n"
		"  --close wait|disconnect|exit|abort --crc on|off --rev 1|2 --two-way\n"
		"  --lenient --markers\n"
		"convert-*: --lines\n"
		"closing: --work read|write|bad-write --pause MS --close-time MS --recv-cq N\n"
		"  --close terminate|then-abort|then-send|then-recv|then-destroy|wait-send|wait-recv\n");
	exit(2);
}

static void parse_hex(struct options *o, const char *hex)
{
	unsigned byte;

	for (o->pd_len = 0; hex[0] && hex[1] && o->pd_len < sizeof(o->pd); hex += 2) {
		if (sscanf(hex, "%2x", &byte) != 1)
			usage();
		o->pd[o->pd_len++] = (uint8_t)byte;
	}
}

static enum closing parse_closing(const char *name)
{
	static const char *const names[CLOSE_N] = {
		"wait",      "disconnect", "exit",         "abort",     "terminate", "then-abort",
		"then-send", "then-recv",  "then-destroy", "wait-send", "wait-recv",
	};

	for (int i = 0; i < CLOSE_N; i++) {
		if (!strcmp(name, names[i]))
			return (enum closing)i;
	}
	usage();
	return CLOSE_WAIT;
}

static void parse_number(struct options *o, int c, const char *arg)
{
	uint64_t n = strtoull(arg, NULL, 0);

	switch (c) {
	case 'i': o->ird = (uint32_t)n; break;
	case 'o': o->ord = (uint32_t)n; break;
	case 's': o->size = (uint32_t)n; break;
	case 'n': o->count = (uint32_t)n; break;
	case 'w': o->window = (uint32_t)n; break;
	case 't': o->total = n; break;
	case 'r': o->wrs = (uint32_t)n; break;
	case 'T': o->timeout_ms = (int)n; break;
	case 'P': o->pause_ms = (int)n; break;
	case 'Q': o->recv_cq = (uint32_t)n; break;
	case 'X': o->close_ms = (int)n; break;
	default: usage();
	}
}

static void parse_option(struct options *o, int c, const char *arg, const char **active)
{
	switch (c) {
	case 'a': o->addr = arg; break;
	case 'p': o->port = arg; break;
	case 'd': parse_hex(o, arg); break;
	case 'q': o->quiet = true; break;
	case 'l': o->lines = true; break;
	case 'W': o->work = arg; break;
	case 'A': *active = arg; break;
	case 'c': o->closing = parse_closing(arg); break;
	case 'C': o->flags |= !strcmp(arg, "off") ? FLUE_CONN_NO_CRC : 0; break;
	case 'R': o->flags |= !strcmp(arg, "1") ? FLUE_CONN_REV1 : 0; break;
	case '2': o->flags |= FLUE_CONN_TWO_WAY; break;
	case 'L': o->flags |= FLUE_CONN_LENIENT; break;
	case 'M': o->flags |= FLUE_CONN_MARKERS; break;
	default: parse_number(o, c, arg);
	}
}

static void parse_options(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "addr", 1, 0, 'a' },
		{ "port", 1, 0, 'p' },
		{ "pd", 1, 0, 'd' },
		{ "ird", 1, 0, 'i' },
		{ "ord", 1, 0, 'o' },
		{ "size", 1, 0, 's' },
		{ "count", 1, 0, 'n' },
		{ "window", 1, 0, 'w' },
		{ "total", 1, 0, 't' },
		{ "wrs", 1, 0, 'r' },
		{ "quiet", 0, 0, 'q' },
		{ "active", 1, 0, 'A' },
		{ "timeout", 1, 0, 'T' },
		{ "close", 1, 0, 'c' },
		{ "crc", 1, 0, 'C' },
		{ "rev", 1, 0, 'R' },
		{ "lenient", 0, 0, 'L' },
		{ "two-way", 0, 0, '2' },
		{ "markers", 0, 0, 'M' },
		{ "lines", 0, 0, 'l' },
		{ "work", 1, 0, 'W' },
		{ "pause", 1, 0, 'P' },
		{ "close-time", 1, 0, 'X' },
		{ "recv-cq", 1, 0, 'Q' },
		{ 0 },
	};
	const struct genuine *g;
	const char *active = "client";
	int c;

	if (argc < 2)
		usage();
	*o = (struct options) { .addr = "10.77.0.2",
				.port = "7471",
				.ird = 4,
				.ord = 4,
				.size = 4096,
				.count = 1,
				.window = 16,
				.wrs = 1,
				.total = 4096,
				.timeout_ms = 10000,
				.close_ms = 5000,
				.work = "",
				.mode = argv[1] };
	g = genuine_find(argv[1]);
	if (g) {
		o->server = g->server;
		if (!g->recv_size)
			o->size = 100; /* what ucmatose sends unless told otherwise */
		optind = 2;
	} else if (argc >= 3) {
		o->convert = !strncmp(argv[1], "convert-", 8);
		o->server = !strcmp(argv[1], "server") || !strcmp(argv[1], "convert-accept");
		o->mode = argv[2];
		optind = 3;
	} else {
		usage();
	}
	o->closing = o->server ? CLOSE_WAIT : CLOSE_DISCONNECT;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		parse_option(o, c, optarg, &active);
	o->active = o->server == !strcmp(active, "server");
}

/* ---- waiting ---- */

static void print_wc(const struct peer *p, const struct flue_wc *wc)
{
	static const char *const ops[] = { "SEND",     "RDMA_WRITE", "RDMA_READ", "LOCAL_INV",
					   "FAST_REG", "BIND",       "RECV" };

	if (p->opt.quiet && wc->status == FLUE_WC_SUCCESS)
		return;
	printf("WC %s %s %u\n", flue_wc_status_name(wc->status), ops[wc->op], wc->byte_len);
}

static void look_at_events(struct peer *p)
{
	struct flue_event ev;

	while (flue_get_event(p->adapter, &ev, 0)) {
		if (ev.type != FLUE_EVENT_DISCONNECTED)
			continue;
		printf("EVENT DISCONNECTED %u %s %x\n", ev.reason,
		       flue_close_reason_name(ev.reason), ev.detail);
		p->over = true;
	}
}

enum wait_result peer_wait(struct peer *p, struct flue_wc *wc)
{
	int waited = 0;

	for (;;) {
		uint32_t got = 0;
		bool over = p->over;

		if (!flue_poll(p->cq, wc, 1, &got))
			return GOT_TIMEOUT;
		if (got) {
			print_wc(p, wc);
			return GOT_WC;
		}
		/* Completions come before the event: only then was the queue empty for good. */
		if (over)
			return GOT_END;
		look_at_events(p);
		if (!p->over && !flue_wait(p->cq, 20)) {
			waited += 20;
			if (waited > p->opt.timeout_ms) {
				printf("TIMEOUT\n");
				return GOT_TIMEOUT;
			}
		}
	}
}

/* ---- connection ---- */

static void print_private(const void *data, size_t len)
{
	const uint8_t *b = data;

	printf("PEER-PD %s", len ? "" : "-");
	for (size_t i = 0; i < len; i++)
		printf("%02x", b[i]);
	printf("\n");
}

static struct flue_conn_attr conn_attr(const struct peer *p)
{
	struct flue_conn_attr a = FLUE_ATTR(struct flue_conn_attr);

	a.private_data = p->opt.pd;
	a.private_len = p->opt.pd_len;
	a.ird = p->opt.ird;
	a.ord = p->opt.ord;
	a.flags = p->opt.flags;
	a.timeout_ms = p->opt.timeout_ms;
	return a;
}

static bool connect_to(struct peer *p, const struct addrinfo *ai)
{
	struct flue_conn_attr a = conn_attr(p);
	bool ok;

	a.remote = ai->ai_addr;
	a.remote_len = ai->ai_addrlen;
	ok = p->opt.convert ? convert_establish(p, ai) : p->qp->ops->connect(p->qp, &a);
	if (!ok && errno == ECONNREFUSED) {
		p->rejected = true;
		printf("EVENT REJECTED %d\n", errno);
		print_private(p->qp->private_data, p->qp->private_len);
		return !strcmp(p->opt.mode, "reject");
	}
	if (!ok)
		return peer_failed("connect");
	printf("EVENT ESTABLISHED 0\n");
	print_private(p->qp->private_data, p->qp->private_len);
	printf("PEER-IRD-ORD %u %u\n", p->qp->ird, p->qp->ord);
	return true;
}

static bool serve_one(struct peer *p, const struct addrinfo *ai)
{
	struct flue_listen_attr la = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr a = conn_attr(p);
	struct flue_conn_request *req;
	struct flue_listener *l;
	bool ok;

	la.local = ai->ai_addr;
	la.local_len = ai->ai_addrlen;
	l = p->adapter->ops->listen(p->adapter, &la);
	if (!l)
		return peer_failed("listen");
	printf("LISTENING %s\n", p->opt.port);
	req = l->ops->get_request(l, p->opt.timeout_ms * 3);
	if (!req)
		return peer_failed("get_request");
	printf("EVENT CONNECT_REQUEST 0\n");
	print_private(req->private_data, req->private_len);
	printf("PEER-IRD-ORD %u %u\n", req->peer_ird, req->peer_ord);
	if (!strcmp(p->opt.mode, "reject")) {
		p->rejected = true;
		ok = req->ops->reject(req, p->opt.pd, p->opt.pd_len);
	} else {
		ok = req->ops->accept(req, p->qp, &a);
		if (ok)
			printf("EVENT ESTABLISHED 0\n");
	}
	if (!ok)
		peer_failed("answer");
	l->ops->destroy(l);
	return ok;
}

static bool establish(struct peer *p)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *ai;
	bool ok;

	if (getaddrinfo(p->opt.addr, p->opt.port, &hints, &ai))
		return peer_failed("getaddrinfo");
	ok = p->opt.server && !p->opt.convert ? serve_one(p, ai) : connect_to(p, ai);
	freeaddrinfo(ai);
	return ok;
}

static bool finish(struct peer *p)
{
	struct flue_wc wc;

	if (p->opt.closing == CLOSE_EXIT)
		_exit(0);
	if (p->opt.closing == CLOSE_ABORT)
		p->qp->ops->abort(p->qp);
	if (p->opt.closing == CLOSE_DISCONNECT && !p->qp->ops->disconnect(p->qp, 5000))
		printf("DISCONNECT %s\n", strerror(errno));
	while (peer_wait(p, &wc) == GOT_WC)
		;
	return p->over;
}

static bool destroy(struct peer *p)
{
	return flue_destroy_qp(p->qp) && flue_deregister(p->recv_mr) &&
	       flue_deregister(p->send_mr) && flue_deregister(p->data_mr) &&
	       (!p->recv_cq || flue_destroy_cq(p->recv_cq)) && flue_destroy_cq(p->cq) &&
	       flue_destroy_pd(p->pd) && flue_close(p->adapter);
}

int main(int argc, char **argv)
{
	const struct genuine *g;
	struct peer p = { 0 };
	bool ok;

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse_options(&p.opt, argc, argv);
	g = genuine_find(p.opt.mode);
	if (!ops_setup(&p, g ? p.slots : siw_initial_recvs(&p)))
		return 1;
	ok = establish(&p);
	if (ok && !p.rejected) {
		ok = g ? g->run(&p) : siw_run(&p);
		printf("DONE %lu %lu %lu\n", p.messages, p.bytes, p.bad);
		if (strcmp(p.opt.mode, "closing") != 0) /* that is an end itself */
			ok = finish(&p) && ok;
	}
	if (!destroy(&p))
		ok = peer_failed("destroy");
	return ok && !p.bad ? 0 : 1;
}
