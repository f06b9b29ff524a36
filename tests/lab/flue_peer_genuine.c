/* SPDX-License-Identifier: MIT */
/*
 * The exchanges of three genuine programs of rdma-core.
 *
 * rping         Each round: the client tells a source buffer; the server reads it and says so; the
 *               client tells a sink; the server writes what it read there and says so. All
 *               messages are 16 bytes: be64 address, be32 key, be32 size.
 * rdma_client   One message of 16 bytes each way, the client first.
 * ucmatose      The server first: `count` messages of 100 bytes each way; the server disconnects.
 */
#include <stdio.h>
#include <string.h>

#include "flue_peer.h"

/* Source in the first half of the data buffer, sink in the second. */
static bool rping_client(struct peer *p)
{
	uint32_t n = p->opt.size, key = p->data_mr->rkey;
	uint64_t at = p->data_mr->remote_start;
	struct ctl msg;

	for (uint32_t r = 0; r < p->opt.count; r++) {
		for (uint32_t j = 0; j < n; j++)
			p->data[j] = (uint8_t)(65 + (r + j) % 58);
		p->data[n - 1] = 0; /* rping writes back a string */
		memset(p->data + n, 0, n);
		if (!ops_send_ctl(p, at, key, n) || !ops_recv_ctl(p, &msg, true) ||
		    !ops_send_ctl(p, at + n, key, n) || !ops_recv_ctl(p, &msg, true))
			return false;
		p->bad += memcmp(p->data, p->data + n, n) != 0;
		p->messages++;
		p->bytes += 2 * n;
	}
	return true;
}

static bool rping_serve_round(struct peer *p, const struct ctl *source)
{
	struct flue_wc wc;
	struct ctl sink;

	if (source->c > p->opt.size)
		return false;
	if (!ops_rdma(p, FLUE_WR_READ, 0, source->c, source->a, source->b) ||
	    !ops_collect(p, FLUE_WC_READ, 1, &wc) || !ops_send_ctl(p, 0, 0, 0) ||
	    !ops_recv_ctl(p, &sink, true) || sink.c > p->opt.size)
		return false;
	p->messages++;
	p->bytes += source->c + sink.c;
	return ops_rdma(p, FLUE_WR_WRITE, 0, sink.c, sink.a, sink.b) &&
	       ops_collect(p, FLUE_WC_WRITE, 1, &wc) && ops_send_ctl(p, 0, 0, 0);
}

static bool rping_server(struct peer *p)
{
	struct ctl source;

	for (uint32_t r = 0; r < p->opt.count; r++) {
		if (!ops_recv_ctl(p, &source, true) || !rping_serve_round(p, &source))
			return false;
	}
	return true;
}

static bool rdma_client(struct peer *p)
{
	struct ctl msg;

	p->messages = 1;
	return ops_send_ctl(p, 1, 2, 3) && ops_recv_ctl(p, &msg, false);
}

static bool rdma_server(struct peer *p)
{
	struct flue_wc wc;
	struct ctl msg;

	p->messages = 1;
	return ops_recv_ctl(p, &msg, false) && ops_send_ctl(p, 1, 2, 3) &&
	       ops_collect(p, FLUE_WC_SEND, 1, &wc);
}

static bool ucmatose_send(struct peer *p)
{
	struct flue_wc wc;

	for (uint32_t i = 0; i < p->opt.count; i++) {
		if (!ops_send(p, i, p->opt.size))
			return false;
	}
	return ops_collect(p, FLUE_WC_SEND, p->opt.count, &wc);
}

static bool ucmatose_receive(struct peer *p)
{
	struct flue_wc wc;

	p->messages += p->opt.count;
	return ops_collect(p, FLUE_WC_RECV, p->opt.count, &wc);
}

static bool ucmatose_client(struct peer *p)
{
	p->opt.closing = CLOSE_WAIT;
	return ucmatose_receive(p) && ucmatose_send(p);
}

/* The client may answer before our last completion is polled: count both kinds together. */
static bool ucmatose_server(struct peer *p)
{
	uint32_t sends = 0, receives = 0;
	struct flue_wc wc;

	for (uint32_t i = 0; i < p->opt.count; i++) {
		if (!ops_send(p, i, p->opt.size))
			return false;
	}
	while (sends < p->opt.count || receives < p->opt.count) {
		if (peer_wait(p, &wc) != GOT_WC || wc.status != FLUE_WC_SUCCESS)
			return false;
		if (ID_OP(wc.id) == FLUE_WC_SEND)
			sends++;
		else
			receives++;
	}
	p->messages += receives;
	p->opt.closing = CLOSE_DISCONNECT;
	return true;
}

static const struct genuine genuines[] = {
	{ "rping-client", false, CTL_LEN, rping_client },
	{ "rping-server", true, CTL_LEN, rping_server },
	{ "rdma-client", false, CTL_LEN, rdma_client },
	{ "rdma-server", true, CTL_LEN, rdma_server },
	{ "ucmatose-client", false, 0, ucmatose_client },
	{ "ucmatose-server", true, 0, ucmatose_server },
};

const struct genuine *genuine_find(const char *name)
{
	for (size_t i = 0; i < sizeof(genuines) / sizeof(genuines[0]); i++) {
		if (!strcmp(genuines[i].name, name))
			return &genuines[i];
	}
	return NULL;
}
