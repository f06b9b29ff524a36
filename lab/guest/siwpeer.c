/*
 * The guest's half of Flue's tests against kernel siw: a librdmacm program that speaks a few
 * fixed exchanges, well-behaved and deliberately bad ones, as client or as server.
 *
 * usage: siwpeer client|server MODE [options]       (see usage() for the options)
 *
 * What goes over the wire. The client always sends the first message, since an MPA responder
 * may not. Control messages are 16 bytes, as rping's: be64 a, be32 b, be32 c. "Active" is the side
 * that performs the RDMA operations; the client by default, else the server (--active server).
 *
 * connect, reject   no message at all; only connection set-up, private data and closing.
 *
 * send     The client sends --count messages of --size bytes, at most --window unanswered; the
 *          server sends back one message of the same size for each, in order. Byte j of
 *          message i is pattern(i, j) from the client and pattern(i, j) ^ 0xff from the server.
 *          pattern(i, j) = (131 * i + j + 17 * (j >> 8) + 29 * (j >> 16)) mod 256.
 *
 * Every other mode starts with the passive side telling about its memory of --size bytes:
 *          client active:  client sends (0, 0, size), the server answers (address, rkey, size);
 *          server active:  client sends (address, rkey, size).
 *
 * write    For round r = 0, 1, ... until --total bytes: the active side writes len bytes (size, or
 *          what is left) to the start of that memory as --wrs RDMA Writes, byte j = pattern(r, j),
 *          and sends (r, 0, len). The passive side checks the bytes and sends (r, ok, len), ok = 1 or 0.
 * read     Round r: the active side sends (r, 0, len), the passive one fills its memory with
 *          pattern(r, j) and sends (r, 1, len); the active one reads len bytes in --wrs RDMA Reads
 *          and checks them.
 *          Both end with (rounds, bad, 0) from the active side, answered by (rounds, bad, 0) with the
 *          passive side's own number of bad rounds.
 * passive  Tell about the memory, post no further receive, wait for the end. As active side: nothing.
 *
 * Bad ones; the passive side tells about its memory and waits for the connection to end:
 * bad-write-key     the active side writes 16 bytes with rkey ^ 0x00005500
 * bad-write-bounds  writes 16 bytes at address + size - 8
 * bad-write-access  writes 16 bytes; the passive side granted remote read only
 * bad-read-key      reads 16 bytes with rkey ^ 0x00005500
 * bad-read-bounds   reads 16 bytes from address + size - 8
 * bad-read-access   reads 16 bytes; the passive side granted remote write only
 * send-no-recv      sends 16 bytes; the passive side has no receive posted
 * send-too-long     sends 4096 bytes; the passive side has one receive of 16 bytes
 * (siw computes MSN, MO, TO and CRC itself, so no program on it can make a bad one of these.)
 *
 * What it prints, one line each: "EVENT name status", "WC status opcode len", "ASYNC name",
 * "PEER-PD hex" ("-" if none), "PEER-IRD-ORD initiator_depth responder_resources" as the CM reports
 * them, "LISTENING port" and last "DONE messages bytes bad". Exit 0: all went as the mode wants.
 */
#include "siwpeer.h"

#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const mode_names[] = {
	[MODE_CONNECT] = "connect",
	[MODE_REJECT] = "reject",
	[MODE_PASSIVE] = "passive",
	[MODE_SEND] = "send",
	[MODE_WRITE] = "write",
	[MODE_READ] = "read",
	[MODE_BAD_WRITE_KEY] = "bad-write-key",
	[MODE_BAD_WRITE_BOUNDS] = "bad-write-bounds",
	[MODE_BAD_WRITE_ACCESS] = "bad-write-access",
	[MODE_BAD_READ_KEY] = "bad-read-key",
	[MODE_BAD_READ_BOUNDS] = "bad-read-bounds",
	[MODE_BAD_READ_ACCESS] = "bad-read-access",
	[MODE_SEND_NO_RECV] = "send-no-recv",
	[MODE_SEND_TOO_LONG] = "send-too-long",
};

static const char *const close_names[] = {
	[CLOSE_WAIT] = "wait",             /* for the peer to close */
	[CLOSE_DISCONNECT] = "disconnect", /* rdma_disconnect, wait for the event */
	[CLOSE_EXIT] = "exit",             /* end the process with everything open */
	[CLOSE_DESTROY] = "destroy",       /* rdma_destroy_qp on a live connection */
	[CLOSE_ERROR] = "error",           /* move the QP to the error state */
};

static const char *const wc_names[] = {
	[IBV_WC_SUCCESS] = "SUCCESS",
	[IBV_WC_LOC_LEN_ERR] = "LOC_LEN_ERR",
	[IBV_WC_LOC_QP_OP_ERR] = "LOC_QP_OP_ERR",
	[IBV_WC_LOC_PROT_ERR] = "LOC_PROT_ERR",
	[IBV_WC_WR_FLUSH_ERR] = "WR_FLUSH_ERR",
	[IBV_WC_MW_BIND_ERR] = "MW_BIND_ERR",
	[IBV_WC_LOC_ACCESS_ERR] = "LOC_ACCESS_ERR",
	[IBV_WC_REM_INV_REQ_ERR] = "REM_INV_REQ_ERR",
	[IBV_WC_REM_ACCESS_ERR] = "REM_ACCESS_ERR",
	[IBV_WC_REM_OP_ERR] = "REM_OP_ERR",
	[IBV_WC_RETRY_EXC_ERR] = "RETRY_EXC_ERR",
	[IBV_WC_FATAL_ERR] = "FATAL_ERR",
	[IBV_WC_GENERAL_ERR] = "GENERAL_ERR",
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void usage(void)
{
	fprintf(stderr, "usage: siwpeer client|server MODE [options]\n"
			"  --addr A --port P      where to connect or listen (10.77.0.1, 7471)\n"
			"  --pd HEX               private data of connect, accept or reject\n"
			"  --ird N --ord N        responder_resources, initiator_depth (4, 4)\n"
			"  --size N --count N --window N --total N --wrs N\n"
			"  --active client|server --close wait|disconnect|exit|destroy|error\n"
			"  --act STEP,...         before closing, see siwpeer_act.c\n"
			"  --timeout MS --quiet   (10000; print only failed completions)\n"
			"modes:");
	for (size_t i = 0; i < COUNT(mode_names); i++)
		fprintf(stderr, " %s", mode_names[i]);
	fprintf(stderr, "\n");
	exit(2);
}

static int find_name(const char *const *names, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (names[i] && !strcmp(names[i], name))
			return i;
	usage();
	return -1;
}

static void parse_hex(struct options *o, const char *hex)
{
	unsigned int byte;

	for (o->pd_len = 0; o->pd_len < (int)sizeof(o->pd) && sscanf(hex, "%2x", &byte) == 1;
	     hex += 2) {
		o->pd[o->pd_len++] = byte;
		if (!hex[1])
			break;
	}
}

static void parse_options(struct options *o, int argc, char **argv)
{
	static const struct option longs[] = {
		{ "addr", 1, 0, 'a' },    { "port", 1, 0, 'p' },
		{ "pd", 1, 0, 'd' },      { "ird", 1, 0, 'i' },
		{ "ord", 1, 0, 'o' },     { "size", 1, 0, 's' },
		{ "count", 1, 0, 'n' },   { "window", 1, 0, 'w' },
		{ "total", 1, 0, 't' },   { "wrs", 1, 0, 'r' },
		{ "quiet", 0, 0, 'q' },   { "active", 1, 0, 'A' },
		{ "timeout", 1, 0, 'T' }, { "close", 1, 0, 'c' },
		{ "act", 1, 0, 'x' },     { 0 },
	};
	const char *active = "client";
	int c;

	if (argc < 3 || (strcmp(argv[1], "client") && strcmp(argv[1], "server")))
		usage();
	*o = (struct options) { .server = !strcmp(argv[1], "server"),
				.addr = "10.77.0.1",
				.port = "7471",
				.ird = 4,
				.ord = 4,
				.size = 4096,
				.count = 1,
				.window = 16,
				.wrs = 1,
				.total = 4096,
				.timeout_ms = 10000 };
	o->mode = find_name(mode_names, COUNT(mode_names), argv[2]);
	o->closing = o->server ? CLOSE_WAIT : CLOSE_DISCONNECT;
	optind = 3;
	while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		switch (c) {
		case 'a': o->addr = optarg; break;
		case 'p': o->port = optarg; break;
		case 'd': parse_hex(o, optarg); break;
		case 'i': o->ird = atoi(optarg); break;
		case 'o': o->ord = atoi(optarg); break;
		case 's': o->size = strtoul(optarg, NULL, 0); break;
		case 'n': o->count = strtoul(optarg, NULL, 0); break;
		case 'w': o->window = strtoul(optarg, NULL, 0); break;
		case 't': o->total = strtoull(optarg, NULL, 0); break;
		case 'r': o->wrs = strtoul(optarg, NULL, 0); break;
		case 'q': o->quiet = true; break;
		case 'A': active = optarg; break;
		case 'T': o->timeout_ms = atoi(optarg); break;
		case 'c': o->closing = find_name(close_names, COUNT(close_names), optarg); break;
		case 'x': o->act = optarg; break;
		default: usage();
		}
	}
	o->active = o->server == !strcmp(active, "server");
}

static const char *opcode_name(enum ibv_wc_opcode op)
{
	switch (op) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case IBV_WC_RECV: return "RECV";
	default: return "OTHER";
	}
}

/* The opcode is undefined in a failed completion: it comes from our own wr_id instead. */
static void print_wc(const struct peer *p, const struct ibv_wc *wc)
{
	const char *status = wc->status < COUNT(wc_names) ? wc_names[wc->status] : NULL;

	if (p->mute || (p->opt.quiet && wc->status == IBV_WC_SUCCESS))
		return;
	printf("WC %s %s %u\n", status ? status : "OTHER_ERR", opcode_name(WRID_OP(wc->wr_id)),
	       wc->status == IBV_WC_SUCCESS ? wc->byte_len : 0);
}

static void print_conn_param(const struct rdma_conn_param *conn)
{
	const uint8_t *pd = conn->private_data;

	printf("PEER-PD %s", conn->private_data_len ? "" : "-");
	for (int i = 0; i < conn->private_data_len; i++)
		printf("%02x", pd[i]);
	printf("\nPEER-IRD-ORD %u %u\n", conn->initiator_depth, conn->responder_resources);
}

/* Prints and acknowledges the event; keeps what the rest of the program wants to know of it. */
int peer_handle_event(struct peer *p, struct rdma_cm_event *ev)
{
	enum rdma_cm_event_type type = ev->event;
	int status = ev->status;

	printf("EVENT %s %d\n", rdma_event_str(type) + strlen("RDMA_CM_EVENT_"), status);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST || type == RDMA_CM_EVENT_REJECTED ||
	    (type == RDMA_CM_EVENT_ESTABLISHED && !p->opt.server))
		print_conn_param(&ev->param.conn);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST && !p->id)
		p->id = ev->id;
	rdma_ack_cm_event(ev);
	switch (type) {
	case RDMA_CM_EVENT_ESTABLISHED: p->established = true; break;
	case RDMA_CM_EVENT_DISCONNECTED: p->disconnected = true; break;
	case RDMA_CM_EVENT_REJECTED: p->rejected = true; break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
	case RDMA_CM_EVENT_CONNECT_ERROR:
	case RDMA_CM_EVENT_UNREACHABLE: p->failed = true; break;
	default: break;
	}
	return type;
}

static const char *async_name(enum ibv_event_type type)
{
	switch (type) {
	case IBV_EVENT_CQ_ERR: return "CQ_ERR";
	case IBV_EVENT_QP_FATAL: return "QP_FATAL";
	case IBV_EVENT_QP_REQ_ERR: return "QP_REQ_ERR";
	case IBV_EVENT_QP_ACCESS_ERR: return "QP_ACCESS_ERR";
	case IBV_EVENT_QP_LAST_WQE_REACHED: return "QP_LAST_WQE_REACHED";
	default: return "OTHER";
	}
}

static void handle_async(struct ibv_context *verbs)
{
	struct ibv_async_event ev;

	if (ibv_get_async_event(verbs, &ev))
		return;
	printf("ASYNC %s\n", async_name(ev.event_type));
	ibv_ack_async_event(&ev);
}

/* Takes one completion off the CQ, arming it first if it is empty. */
static bool poll_cq(struct peer *p, struct ibv_wc *wc)
{
	if (!p->cq)
		return false;
	if (ibv_poll_cq(p->cq, 1, wc) == 1)
		return true;
	ibv_req_notify_cq(p->cq, 0);
	return ibv_poll_cq(p->cq, 1, wc) == 1;
}

/*
 * Waits for the next completion; handles CM and async events meanwhile. GOT_END: the connection is
 * over (or never came about) and no completion is left.
 */
enum wait_result peer_wait(struct peer *p, struct ibv_wc *wc)
{
	for (;;) {
		struct pollfd fds[3] = { { p->events->fd, POLLIN, 0 },
					 { p->channel ? p->channel->fd : -1, POLLIN, 0 },
					 { p->id && p->id->verbs ? p->id->verbs->async_fd : -1,
					   POLLIN, 0 } };
		struct rdma_cm_event *ev;
		struct ibv_cq *cq;
		void *ctx;

		if (poll_cq(p, wc)) {
			print_wc(p, wc);
			return GOT_WC;
		}
		if (p->disconnected || p->rejected || p->failed)
			return GOT_END;
		if (poll(fds, 3, p->opt.timeout_ms) <= 0) {
			printf("TIMEOUT\n");
			return GOT_TIMEOUT;
		}
		if (fds[2].revents)
			handle_async(p->id->verbs);
		if (fds[1].revents && !ibv_get_cq_event(p->channel, &cq, &ctx))
			ibv_ack_cq_events(cq, 1);
		if (fds[0].revents && !rdma_get_cm_event(p->events, &ev))
			peer_handle_event(p, ev);
	}
}

/* Waits for one CM event of the given type; anything else but async is a failure. */
static int expect_event(struct peer *p, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *ev;

	if (rdma_get_cm_event(p->events, &ev))
		return -1;
	return peer_handle_event(p, ev) == (int)type ? 0 : -1;
}

static int start_client(struct peer *p, struct addrinfo *ai, struct rdma_conn_param *param)
{
	if (rdma_create_id(p->events, &p->id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(p->id, NULL, ai->ai_addr, 2000) ||
	    expect_event(p, RDMA_CM_EVENT_ADDR_RESOLVED) || rdma_resolve_route(p->id, 2000) ||
	    expect_event(p, RDMA_CM_EVENT_ROUTE_RESOLVED) || xfer_setup(p))
		return -1;
	return rdma_connect(p->id, param);
}

static int start_server(struct peer *p, struct addrinfo *ai, struct rdma_conn_param *param)
{
	if (rdma_create_id(p->events, &p->listener, NULL, RDMA_PS_TCP) ||
	    rdma_bind_addr(p->listener, ai->ai_addr) || rdma_listen(p->listener, 8))
		return -1;
	printf("LISTENING %s\n", p->opt.port);
	if (expect_event(p, RDMA_CM_EVENT_CONNECT_REQUEST))
		return -1;
	if (p->opt.mode == MODE_REJECT) {
		p->rejected = true;
		return rdma_reject(p->id, p->opt.pd, p->opt.pd_len);
	}
	if (xfer_setup(p))
		return -1;
	return rdma_accept(p->id, param);
}

static int establish(struct peer *p)
{
	struct rdma_conn_param param = { .private_data = p->opt.pd,
					 .private_data_len = p->opt.pd_len,
					 .responder_resources = p->opt.ird,
					 .initiator_depth = p->opt.ord,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct addrinfo hints = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM }, *ai;
	struct rdma_cm_event *ev;
	int rc;

	if (getaddrinfo(p->opt.addr, p->opt.port, &hints, &ai))
		return -1;
	rc = p->opt.server ? start_server(p, ai, &param) : start_client(p, ai, &param);
	freeaddrinfo(ai);
	while (!rc && !p->established && !p->rejected && !p->failed && !p->disconnected) {
		rc = rdma_get_cm_event(p->events, &ev);
		if (!rc)
			peer_handle_event(p, ev);
	}
	return rc;
}

/* Ends the connection the way the options say; the peer's view of it is what the test is about. */
static void finish(struct peer *p)
{
	struct pollfd async = { p->id->verbs->async_fd, POLLIN, 0 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_wc wc;

	if (p->opt.act)
		act(p);
	switch (p->opt.closing) {
	case CLOSE_EXIT: _exit(0);
	case CLOSE_DESTROY: rdma_destroy_qp(p->id); break;
	case CLOSE_ERROR: ibv_modify_qp(p->id->qp, &attr, IBV_QP_STATE); break;
	case CLOSE_DISCONNECT: rdma_disconnect(p->id); break;
	case CLOSE_WAIT: break;
	}
	while (peer_wait(p, &wc) == GOT_WC)
		;
	/* A flush and an async event may come a moment after DISCONNECTED. */
	while (poll(&async, 1, 100) == 1)
		handle_async(p->id->verbs);
	while (p->cq && ibv_poll_cq(p->cq, 1, &wc) == 1)
		print_wc(p, &wc);
}

int main(int argc, char **argv)
{
	struct peer peer = { 0 };
	int rc;

	setvbuf(stdout, NULL, _IOLBF, 0);
	parse_options(&peer.opt, argc, argv);
	peer.events = rdma_create_event_channel();
	if (!peer.events) {
		perror("siwpeer: no RDMA");
		return 1;
	}
	rc = establish(&peer);
	if (rc)
		perror("siwpeer: connection");
	if (!rc && peer.established) {
		rc = xfer_run(&peer);
		/* Before finish(), which may not return. */
		printf("DONE %lu %lu %lu\n", peer.messages, peer.bytes, peer.bad);
		finish(&peer);
	}
	if (peer.opt.mode == MODE_REJECT)
		return peer.rejected ? rc != 0 : 1;
	return rc || peer.bad || !peer.established;
}
