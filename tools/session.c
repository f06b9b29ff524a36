/* SPDX-License-Identifier: MIT */
#include "session.h"
#include "util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* More than the credits that can be under way at once (at most 8), READY and REPORT. */
#define RECEIVES 16

bool session_fail(struct session *s, const char *when)
{
	char why[160];

	ep_explain(&s->ep, why, sizeof(why));
	snprintf(s->error, sizeof(s->error), "%s: %s", when, why);
	return false;
}

bool session_say(struct session *s, const struct proto_msg *msg)
{
	size_t length = proto_encode(msg, s->tx.data);

	if (!ep_post(&s->ep, FLUE_WR_SEND, &s->tx, 0, (uint32_t)length, NULL, false))
		return session_fail(s, "cannot send to the server");
	return true;
}

bool session_take(struct session *s, struct flue_wc *wc, const uint8_t **data)
{
	if (!ep_recv(&s->ep, wc, s->timeout_ms))
		return session_fail(s, "waiting for the server");
	*data = s->rx.data + wc->id * s->rx_size;
	return true;
}

bool session_repost(struct session *s, const struct flue_wc *wc)
{
	if (!ep_post_recv(&s->ep, &s->rx, wc->id * s->rx_size, (uint32_t)s->rx_size, wc->id))
		return session_fail(s, "cannot post a receive");
	return true;
}

bool session_hear(struct session *s, uint32_t kind, struct proto_msg *msg)
{
	const uint8_t *data;
	struct flue_wc wc;

	if (!session_take(s, &wc, &data))
		return false;
	if (!proto_decode(data, wc.byte_len, msg)) {
		snprintf(s->error, sizeof(s->error), "the server said something unknown (%u bytes)",
			 wc.byte_len);
		return false;
	}
	if (msg->kind != kind) {
		snprintf(s->error, sizeof(s->error), "expected message %u, the server sent %u",
			 kind, msg->kind);
		return false;
	}
	return session_repost(s, &wc);
}

static bool open_memory(struct session *s)
{
	/* The second and third may be written by the peer or the adapter; sources need no right. */
	if (!ep_memory_open(&s->ep, &s->data, s->slots * s->slot_size, FLUE_LOCAL_WRITE) ||
	    !ep_memory_open(&s->ep, &s->back, s->slot_size, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE) ||
	    !ep_memory_open(&s->ep, &s->rx, RECEIVES * s->rx_size, FLUE_LOCAL_WRITE) ||
	    !ep_memory_open(&s->ep, &s->tx, PROTO_MAX, 0))
		return session_fail(s, "cannot set up memory");
	/* Fault the source in now: pages never written are all the same zero page, which would
	 * flatter the caches. */
	memset(s->data.data, 0x5a, s->data.length);
	for (uint32_t i = 0; i < RECEIVES; i++) {
		if (!ep_post_recv(&s->ep, &s->rx, i * s->rx_size, (uint32_t)s->rx_size, i))
			return session_fail(s, "cannot post a receive");
	}
	return true;
}

/* connect() failed; the server may have said why. */
static bool explain_refusal(struct session *s, const struct sockaddr *remote)
{
	const struct flue_qp *qp = s->ep.qp;
	char address[UTIL_TEXT_MAX];
	struct sockaddr_storage to = { 0 };
	struct proto_msg msg;
	int saved = errno;

	memcpy(&to, remote, remote->sa_family == AF_INET6 ? 28 : 16);
	util_address_text(address, &to);
	if (saved == ECONNREFUSED && qp->private_len > 0) {
		if (proto_decode(qp->private_data, qp->private_len, &msg) &&
		    msg.kind == PROTO_REFUSAL)
			snprintf(s->error, sizeof(s->error), "%s refused: %s", address,
				 msg.u.refusal);
		else
			snprintf(s->error, sizeof(s->error), "%s refused; is it a flue server?",
				 address);
	} else if (saved == ECONNREFUSED) {
		snprintf(s->error, sizeof(s->error),
			 "nobody listens at %s; start 'flue perf --server' there", address);
	} else if (saved == EPROTONOSUPPORT) {
		snprintf(
			s->error, sizeof(s->error),
			"%s does not speak full service; start its server with --full, or leave it out here",
			address);
	} else if (saved == EPROTO) {
		snprintf(s->error, sizeof(s->error),
			 "%s does not speak iWARP; is it another kind of server?", address);
	} else {
		snprintf(s->error, sizeof(s->error), "cannot connect to %s: %s", address,
			 strerror(saved));
	}
	return false;
}

static bool say_hello(struct session *s, const struct session_attr *attr)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct proto_msg msg = { .kind = PROTO_HELLO };
	uint8_t octets[PROTO_MAX];

	msg.u.hello.flags = (attr->no_crc ? PROTO_HELLO_NO_CRC : 0) |
			    (attr->more ? PROTO_HELLO_MORE : 0);
	msg.u.hello.slots = s->slots;
	msg.u.hello.slot_size = s->slot_size;
	msg.u.hello.send_size = attr->send_size;
	conn.remote = attr->remote;
	conn.remote_len = attr->remote_len;
	conn.private_data = octets;
	conn.private_len = proto_encode(&msg, octets);
	conn.flags = (attr->no_crc ? FLUE_CONN_NO_CRC : 0) | (attr->full ? FLUE_CONN_FULL : 0);
	conn.timeout_ms = attr->timeout_ms;
	if (!s->ep.qp->ops->connect(s->ep.qp, &conn))
		return explain_refusal(s, attr->remote);
	if (!proto_decode(s->ep.qp->private_data, s->ep.qp->private_len, &msg) ||
	    msg.kind != PROTO_WELCOME || msg.u.welcome.length < s->slots * s->slot_size) {
		snprintf(s->error, sizeof(s->error),
			 "the peer accepted but is no flue server of this version");
		return false;
	}
	s->remote = msg.u.welcome;
	return true;
}

/* Who asks for a link wants to know what that one can do, not another. */
static bool check_link(struct session *s, const struct session_attr *attr)
{
	s->link = ep_link(&s->ep);
	if (!attr->link || s->link == attr->link)
		return true;
	if (attr->link == FLUE_LINK_LOCAL)
		snprintf(
			s->error, sizeof(s->error),
			"the connection goes over TCP: both sides must be on one host, of one user, and allow memory");
	else
		snprintf(s->error, sizeof(s->error), "the connection does not go over TCP");
	return false;
}

bool session_open(struct session *s, const struct session_attr *attr)
{
	struct ep_attr ep_attr = { .adapter = attr->adapter, .wait = attr->wait };

	memset(s, 0, sizeof(*s));
	s->ep.epoll = -1;
	s->slots = attr->slots;
	s->slot_size = attr->slot_size > attr->send_size ? attr->slot_size : attr->send_size;
	s->rx_size = attr->send_size > PROTO_MAX ? attr->send_size : PROTO_MAX;
	s->timeout_ms = attr->timeout_ms;
	ep_attr.sq_depth = 2 * attr->slots + 16;
	ep_attr.rq_depth = RECEIVES;
	if (!ep_open(&s->ep, &ep_attr)) {
		snprintf(s->error, sizeof(s->error), "cannot make a queue pair: %s",
			 strerror(errno));
		return false;
	}
	return open_memory(s) && say_hello(s, attr) && check_link(s, attr);
}

void session_close(struct session *s)
{
	/* The verbs want an empty send queue for an orderly close. All messages were answered, so
	 * none is left on its way. */
	if (s->ep.qp && flue_qp_state(s->ep.qp) == FLUE_QP_RTS)
		flue_disconnect(s->ep.qp);
	/* Before the memory: destroying the queue pair ends all use of it. */
	if (s->ep.qp)
		flue_destroy_qp(s->ep.qp);
	s->ep.qp = NULL;
	ep_memory_close(&s->data);
	ep_memory_close(&s->back);
	ep_memory_close(&s->rx);
	ep_memory_close(&s->tx);
	ep_close(&s->ep);
}

bool session_begin(struct session *s, const struct session_test *t)
{
	struct proto_msg msg = { .kind = PROTO_TEST };

	msg.u.test.op = t->op;
	msg.u.test.what = t->what;
	msg.u.test.verify = t->verify;
	msg.u.test.window = t->window;
	msg.u.test.slots = t->slots ? t->slots : t->window;
	s->in_use = msg.u.test.slots;
	msg.u.test.size = t->size;
	msg.u.test.back.addr = s->back.mr->remote_start;
	msg.u.test.back.length = s->back.length;
	msg.u.test.back.rkey = s->back.mr->rkey;
	s->credit = 0;
	return session_say(s, &msg) && session_hear(s, PROTO_READY, &msg);
}

bool session_end(struct session *s, struct proto_msg *report)
{
	const uint8_t *data;
	struct flue_wc wc;

	/* Empty: the end of the test. */
	if (!ep_post(&s->ep, FLUE_WR_SEND, &s->tx, 0, 0, NULL, true))
		return session_fail(s, "cannot send to the server");
	do {
		if (!session_take(s, &wc, &data))
			return false;
		if (!proto_decode(data, wc.byte_len, report) ||
		    (report->kind != PROTO_REPORT && report->kind != PROTO_CREDIT)) {
			snprintf(s->error, sizeof(s->error), "the server's report is not readable");
			return false;
		}
		if (!session_repost(s, &wc))
			return false;
	} while (report->kind != PROTO_REPORT);
	return ep_wait_sent(&s->ep, s->ep.posted, s->timeout_ms) ||
	       session_fail(s, "finishing the test");
}

uint32_t session_default_window(uint64_t size)
{
	uint64_t window = (UINT64_C(4) << 20) / (size ? size : 1);

	return window > 64 ? 64 : window < 2 ? 2 : (uint32_t)window;
}
