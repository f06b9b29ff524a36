/* SPDX-License-Identifier: MIT */
/*
 * Hello and HelloAck. They travel as private data of the transport's own set-up, in both layouts;
 * so they take no receive buffer and no number, and the first message has MSeq 1.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/util.h"
#include "sockets/sdp/sdp_priv.h"

/* An address as the Hellos of InfiniBand have it: IPv4 in the last four octets. */
static void put_ip(uint8_t *to, const struct oti_addr *from)
{
	const struct sockaddr_in *in = (const void *)&from->sa;
	const struct sockaddr_in6 *in6 = (const void *)&from->sa;

	if (from->len && from->sa.ss_family == AF_INET)
		memcpy(to + 12, &in->sin_addr, 4);
	else if (from->len && from->sa.ss_family == AF_INET6)
		memcpy(to, &in6->sin6_addr, 16);
}

static void fill(const struct sdp_conn *c, struct sdp_hello *h, bool ack)
{
	const struct sdp_attr *a = &c->attr;

	memset(h, 0, sizeof(*h));
	h->layout = a->layout;
	h->ack = ack;
	h->major = a->version >> 4;
	h->minor = a->version & 15;
	h->bufs = a->bufs;
	h->max_adverts = a->max_adverts;
	h->rcv_size = h->want_size = a->buf_size;
	/* The same number twice, because nobody knows for sure which comes first. */
	h->ord = h->ird = a->reads;
	if (a->layout == SDP_IB && !ack) {
		h->ip_version = c->peer.sa.ss_family == AF_INET ? 4 : 6;
		put_ip(h->source, &c->local);
		put_ip(h->dest, &c->peer);
		if (c->local.len)
			h->port = ntohs(((const struct sockaddr_in *)&c->local.sa)->sin_port);
	}
}

static void fill_attr(struct sdp_conn *c, struct oti_conn_attr *attr, const void *data, int len)
{
	*attr = (struct oti_conn_attr) {
		.upcalls = &sdp_upcalls,
		.user = c,
		.private_data = data,
		.private_len = (size_t)len,
		.bufs = c->attr.bufs,
		.buf_size = c->attr.buf_size,
		.reads = c->attr.reads,
		.timeout_ms = c->attr.connect_ms,
	};
}

/* Numbers and modes of a new connection; c->hello is the peer's. */
static void begin(struct sdp_conn *c, bool connecting)
{
	sdp_credit_init(&c->credit, 1, connecting, c->attr.bufs, c->hello.bufs);
	sdp_half_init(&c->halves, c->attr.max_adverts);
	c->peer_size = c->hello.rcv_size;
}

/* ---- connecting ---- */

void sdp_setup_resolve(struct sdp_conn *c)
{
	struct oti_endpoint to;
	int rc = c->attr.oti->ops->resolve(c->attr.oti, &c->peer, &to);

	if (rc) {
		c->error = -rc;
		sdp_conn_step(c, SDPE_REFUSED);
		return;
	}
	c->peer = to.remote;
	c->local = to.local;
	sdp_conn_step(c, SDPE_PATH_OK);
}

int sdp_setup_dial(struct sdp_conn *c)
{
	struct oti_endpoint to = { .remote = c->peer, .local = c->local };
	uint8_t data[SDP_HELLO_MAX];
	struct oti_conn_attr attr;
	struct sdp_hello hello;
	int len;

	fill(c, &hello, false);
	len = sdp_hello_encode(&hello, data, sizeof(data));
	if (len < 0)
		return len;
	fill_attr(c, &attr, data, len);
	c->cut = false;
	return c->attr.oti->ops->connect(c->attr.oti, &to, &attr, &c->llp);
}

void sdp_setup_hello(struct sdp_conn *c)
{
	int rc = sdp_setup_dial(c);

	if (rc) {
		c->llp = NULL;
		c->error = -rc;
		sdp_conn_step(c, SDPE_REFUSED);
	}
}

bool sdp_setup_take_ack(struct sdp_conn *c, const void *data, size_t len)
{
	/* A shorter message may have been filled up by the transport, a longer one is not ours. */
	if (sdp_hello_decode(&c->hello, data, len, c->attr.layout, true))
		return false;
	begin(c, true);
	c->llp->ops->names(c->llp, &c->local, &c->peer);
	return true;
}

void sdp_setup_accepted(struct oti_conn *conn, const void *data, size_t len)
{
	struct sdp_conn *c = conn->user;

	sdp_conn_enter(c);
	if (conn == c->llp && !c->cut) {
		if (c->move)
			sdp_move_arrived(c, data, len);
		else if (sdp_setup_take_ack(c, data, len))
			sdp_conn_step(c, SDPE_RX_HELLO_ACK);
		else {
			c->error = EPROTO;
			sdp_conn_bad(c, "HelloAck");
		}
	}
	sdp_conn_leave(c);
}

void sdp_setup_ready(struct sdp_conn *c)
{
	if (c->llp->ops->confirm(c->llp))
		sdp_conn_step(c, SDPE_LLP_LOST);
}

void sdp_setup_failed(struct oti_conn *conn, int error, uint32_t code, const void *data, size_t len)
{
	struct sdp_conn *c = conn->user;

	(void)code;
	(void)data;
	(void)len;
	sdp_conn_enter(c);
	if (conn == c->llp && !c->cut) {
		if (!c->move)
			c->error = error;
		sdp_conn_step(c, c->move ? SDPE_LLP_LOST : SDPE_REFUSED);
	}
	sdp_conn_leave(c);
}

/* ---- accepting ---- */

void sdp_setup_hello_ack(struct sdp_conn *c)
{
	struct oti_request *req = c->request;
	uint8_t data[SDP_HELLO_MAX];
	struct oti_conn_attr attr;
	struct sdp_hello hello;
	int len;

	fill(c, &hello, true);
	sdp_hello_fit(&hello, &c->hello);
	len = sdp_hello_encode(&hello, data, sizeof(data));
	begin(c, false);
	c->local = req->local;
	c->peer = req->peer;
	c->request = NULL;
	if (len < 0) {
		req->ops->reject(req, SDP_REJECT_HELLO, NULL, 0);
		sdp_conn_step(c, SDPE_LLP_LOST);
		return;
	}
	fill_attr(c, &attr, data, len);
	if (req->ops->accept(req, &attr, &c->llp)) {
		c->llp = NULL;
		sdp_conn_step(c, SDPE_LLP_LOST);
	}
}

/* A connecting end has nobody to refuse but by cutting, which its row does as well. */
void sdp_setup_refuse(struct sdp_conn *c)
{
	struct oti_request *req = c->request;

	c->request = NULL;
	if (req)
		req->ops->reject(req, SDP_REJECT_HELLO, NULL, 0);
}
