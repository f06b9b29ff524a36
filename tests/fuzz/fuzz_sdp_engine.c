/* SPDX-License-Identifier: MIT */
/*
 * The SDP engine among messages, calls and transport events as they come, over a transport that
 * does what the input says. Each message is in memory of exactly its size. Whatever happens: no
 * event that the machine's table forbids, every message of the engine decodes and has the next
 * number, none goes out without the credits that its kind needs, and octets come out as they went in.
 *
 * Input: layout, role and sizes (4 octets), the Hello of the peer (length in one octet, then octets;
 * 0: a good one), then operations of one octet and more.
 */
#include "fuzz.h"

#include <errno.h>
#include <netinet/in.h>

#include "base/bytes.h"
#include "base/util.h"
#include "sockets/sdp/sdp_conn.h"

#define BUF_SIZE 600
#define BUFS_MAX 16

/* ---- the transport ---- */

/* One connection. After SuspComm there may be two for a while: the old one holds octets. */
struct fake {
	struct oti_conn conn;
	bool up, closing, cut;
	uint32_t posted;
	struct oti_rx *held[BUFS_MAX]; /* receive buffers that the engine has */
	unsigned n_held;
};

static struct fake *t; /* the current one */
static unsigned n_fakes, starve;

/* What the peer knows. */
static struct {
	uint32_t sent, received; /* messages from and to it */
	uint32_t said_bufs, said_ack;
	uint64_t octets_in;  /* of the stream to the engine */
	uint64_t octets_out; /* from it */
	bool strange;        /* octets came, or were passed over, that are not counted */
} peer;

static struct sdp_conn conn;
static struct sdp_listener listener;
static bool listening;
static uint64_t octets_read, octets_written;

static const struct oti_ops ops;
static struct oti oti = { .ops = &ops };
static struct oti_listener oti_listener = { .ops = &ops };
static struct oti_request request = { .ops = &ops };

static uint8_t octet(uint64_t place, bool out)
{
	return (uint8_t)(place * 31 + (place >> 8) + out);
}

static void fake_caps(const struct oti *o, struct oti_caps *caps)
{
	(void)o;
	*caps = (struct oti_caps) {
		.name = "fuzz",
		.flags = OTI_POLLED,
		.max_private = 256,
		.max_message = BUF_SIZE,
		.max_bufs = BUFS_MAX,
	};
}

static int fake_resolve(struct oti *o, const struct oti_addr *remote, struct oti_endpoint *to)
{
	(void)o;
	to->remote = *remote;
	to->local = *remote;
	return 0;
}

static int fake_listen(struct oti *o, const struct oti_addr *local, int backlog,
		       void (*on_request)(struct oti_listener *, struct oti_request *, void *),
		       void *user, struct oti_listener **out)
{
	(void)o;
	(void)backlog;
	oti_listener.local = *local;
	oti_listener.on_request = on_request;
	oti_listener.user = user;
	*out = &oti_listener;
	return 0;
}

static int fake_unlisten(struct oti_listener *l)
{
	(void)l;
	return 0;
}

static struct fake *to_fake(struct oti_conn *c)
{
	return (struct fake *)c;
}

static void begin(const struct oti_conn_attr *attr, struct oti_conn **out)
{
	CHECK(attr->private_len <= 256 && attr->bufs <= BUFS_MAX && n_fakes < 2);
	t = calloc(1, sizeof(*t));
	CHECK(t);
	n_fakes++;
	t->conn = (struct oti_conn) {
		.ops = &ops, .oti = &oti, .upcalls = attr->upcalls, .user = attr->user
	};
	t->posted = attr->bufs;
	peer.sent = peer.received = peer.said_ack = 0;
	*out = &t->conn;
}

static int fake_connect(struct oti *o, const struct oti_endpoint *to,
			const struct oti_conn_attr *attr, struct oti_conn **out)
{
	(void)o;
	(void)to;
	begin(attr, out);
	return 0;
}

static int fake_accept(struct oti_request *req, const struct oti_conn_attr *attr,
		       struct oti_conn **out)
{
	CHECK(req == &request);
	begin(attr, out);
	t->up = true;
	return 0;
}

static int fake_reject(struct oti_request *req, uint32_t code, const void *data, size_t len)
{
	(void)data;
	CHECK(req == &request && code && !len);
	return 0;
}

static int fake_confirm(struct oti_conn *c)
{
	CHECK(c == &t->conn && !t->cut);
	t->up = true;
	return 0;
}

static void fake_names(const struct oti_conn *c, struct oti_addr *local, struct oti_addr *remote)
{
	(void)c;
	memset(local, 0, sizeof(*local));
	memset(remote, 0, sizeof(*remote));
	local->sa.ss_family = remote->sa.ss_family = AF_INET;
	local->len = remote->len = sizeof(struct sockaddr_in);
}

static struct oti_buf *fake_buf_get(struct oti_conn *c)
{
	struct oti_buf *buf;

	CHECK(c == &t->conn);
	if (!t->up || t->closing || t->cut || starve) {
		starve -= starve ? 1 : 0;
		return NULL;
	}
	buf = calloc(1, sizeof(*buf));
	CHECK(buf);
	buf->cap = BUF_SIZE;
	return buf;
}

static void fake_buf_put(struct oti_conn *c, struct oti_buf *buf)
{
	(void)c;
	free(buf);
}

/* The rule of three, counted once more from what the peer said. */
static void check_credits(const struct sdp_msg *m)
{
	uint32_t left = peer.said_bufs - (peer.received - peer.said_ack);

	CHECK(left >= 1 && left <= 0xffff);
	if (m->payload_len)
		CHECK(left >= 3);
}

static int fake_send(struct oti_conn *c, struct oti_buf *buf, const struct iovec *iov, int n,
		     uint32_t flags)
{
	uint8_t wire[BUF_SIZE];
	struct sdp_msg m;
	size_t len = 0;

	CHECK(c == &t->conn && !t->closing && !t->cut);
	for (int i = 0; i < n; i++) {
		CHECK(iov[i].iov_len <= sizeof(wire) - len);
		memcpy(wire + len, iov[i].iov_base, iov[i].iov_len);
		len += iov[i].iov_len;
	}
	CHECK(len <= buf->cap);
	CHECK(sdp_decode(&m, wire, len) == 0);
	CHECK(m.mseq == peer.received + 1);
	CHECK(!!(flags & OTI_SOLICITED) == sdp_is_solicited(&m));
	/* AbortConn may follow a message whose numbers were not believed. */
	if (m.mid != SDP_ABORT_CONN) {
		CHECK(m.mseq_ack == peer.sent && m.bufs == t->posted);
		check_credits(&m);
	}
	peer.received++;
	for (uint32_t i = 0; i < m.payload_len; i++)
		CHECK(m.payload[i] == octet(peer.octets_out + i, true));
	peer.octets_out += m.payload_len;
	if (m.mid == SDP_DISCONN)
		CHECK(peer.octets_out == octets_written);
	free(buf);
	return 0;
}

static void free_rx(struct fake *f, struct oti_rx *rx)
{
	unsigned i = 0;

	while (i < f->n_held && f->held[i] != rx)
		i++;
	CHECK(i < f->n_held);
	f->held[i] = f->held[--f->n_held];
	free(rx->data);
	free(rx);
}

static void fake_repost(struct oti_conn *c, struct oti_rx *rx)
{
	CHECK(rx->conn == c);
	free_rx(to_fake(c), rx);
	to_fake(c)->posted++;
}

static int fake_poll(struct oti *o, unsigned budget)
{
	(void)o;
	(void)budget;
	return 0;
}

static int fake_poll_conn(struct oti_conn *c, unsigned budget)
{
	(void)c;
	(void)budget;
	return 0;
}

static int fake_wait(struct oti *o, int timeout_ms)
{
	(void)o;
	(void)timeout_ms;
	return 0;
}

static int fake_disconnect(struct oti_conn *c)
{
	to_fake(c)->closing = true;
	return 0;
}

static void fake_abort(struct oti_conn *c)
{
	to_fake(c)->cut = true;
}

static void fake_release(struct oti_conn *c)
{
	struct fake *f = to_fake(c);

	while (f->n_held)
		free_rx(f, f->held[0]);
	if (f == t)
		t = NULL;
	n_fakes--;
	free(f);
}

static const struct oti_ops ops = {
	.caps = fake_caps,
	.resolve = fake_resolve,
	.listen = fake_listen,
	.unlisten = fake_unlisten,
	.connect = fake_connect,
	.accept = fake_accept,
	.reject = fake_reject,
	.confirm = fake_confirm,
	.names = fake_names,
	.buf_get = fake_buf_get,
	.buf_put = fake_buf_put,
	.send = fake_send,
	.repost = fake_repost,
	.poll = fake_poll,
	.poll_conn = fake_poll_conn,
	.wait = fake_wait,
	.disconnect = fake_disconnect,
	.abort = fake_abort,
	.release = fake_release,
};

/* The peer can send. */
static bool may_say(void)
{
	return t && t->up && !t->cut && !t->closing && t->posted;
}

/* ---- messages ---- */

static void deliver(const uint8_t *wire, size_t len)
{
	struct oti_rx *rx = calloc(1, sizeof(*rx));
	struct sdp_msg m;
	bool known;

	CHECK(rx);
	rx->conn = &t->conn;
	/* All of the buffer is the engine's. */
	rx->cap = conn.attr.buf_size;
	rx->data = malloc(rx->cap);
	CHECK(rx->data && len <= rx->cap);
	memcpy(rx->data, wire, len);
	rx->len = (uint32_t)len;
	memcpy(rx->head, wire, min_size(len, OTI_HEAD_LEN));
	t->posted--;
	t->held[t->n_held++] = rx;
	peer.sent++;
	known = sdp_decode(&m, wire, len) == 0;
	if (known) {
		peer.octets_in += m.payload_len;
		peer.said_bufs = m.bufs;
		peer.said_ack = m.mseq_ack;
		peer.strange |= m.flags & SDP_FLAG_OOB_PRES;
	}
	/* A hostile peer changes the header behind the copy that was handed up. */
	memset(rx->data, 0xaa, min_size(len, SDP_BSDH_LEN));
	t->conn.upcalls->received(&t->conn, rx);
	if (known && conn.why)
		CHECK(strcmp(conn.why, "unknown message") &&
		      strcmp(conn.why, "length of a message") &&
		      strcmp(conn.why, "field of a message"));
}

/* Mostly such that the message is a legal one, or nothing would get far. */
static void mend_ext(uint8_t *wire)
{
	switch (wire[0]) {
	case SDP_SUSP_COMM: /* a constant with a port behind it */
		memset(wire + 16, 0, 7);
		wire[21] = 1;
		break;
	case SDP_MODE_CHANGE: wire[16] &= 0xb0; break;
	case SDP_SINK_AVAIL:
		put_be32(wire + 32, wire[35] & 1 ? 0 : conn.halves.out.pnd);
		/* fall through */
	case SDP_SRC_AVAIL: memset(wire + 16, 0, 2); break;
	default: break;
	}
}

static void say(struct source *in)
{
	uint8_t wire[BUF_SIZE] = { (uint8_t)take(in, 1), (uint8_t)take(in, 1) };
	uint8_t bufs = (uint8_t)take(in, 1), odd = (uint8_t)take(in, 1);
	size_t head = SDP_BSDH_LEN + sdp_mid_info(wire[0])->ext_len;
	size_t len = head + (sdp_mid_info(wire[0])->payload ? take(in, 2) % 300 : odd == 1);

	if (!may_say())
		return;
	len = min_size(len, conn.attr.buf_size);
	put_be16(wire + 2, bufs);
	put_be32(wire + 4, (uint32_t)(len + (odd == 2)));
	put_be32(wire + 8, peer.sent + 1 + (odd == 3));
	put_be32(wire + 12, peer.received - (odd == 4 ? take(in, 1) % 4 : 0) + (odd == 5));
	for (size_t i = SDP_BSDH_LEN; i < head && i < len; i++)
		wire[i] = (uint8_t)take(in, 1);
	if (odd != 6)
		mend_ext(wire);
	for (size_t i = head; i < len; i++)
		wire[i] = octet(peer.octets_in + i - head, false);
	deliver(wire, len);
}

static void say_anything(struct source *in)
{
	uint8_t wire[BUF_SIZE] = { 0 };
	size_t len = min_size(take(in, 1), conn.attr.buf_size);

	if (!may_say())
		return;
	for (size_t i = 0; i < len; i++)
		wire[i] = (uint8_t)take(in, 1);
	peer.strange = true;
	deliver(wire, len);
}

/* ---- calls ---- */

static void do_send(size_t len)
{
	uint8_t out[2048];
	struct iovec iov = { .iov_base = out, .iov_len = len };
	ssize_t rc;

	for (size_t i = 0; i < len; i++)
		out[i] = octet(octets_written + i, true);
	rc = sdp_conn_send(&conn, &iov, 1);
	CHECK(rc <= (ssize_t)len);
	if (rc > 0)
		octets_written += (uint64_t)rc;
}

static void do_send_urgent(void)
{
	if (sdp_conn_send_urgent(&conn, octet(octets_written, true)) == 1)
		octets_written++;
}

static void do_recv(size_t len, unsigned flags)
{
	uint8_t in[2048];
	struct iovec iov = { .iov_base = in, .iov_len = len };
	ssize_t rc = sdp_conn_recv(&conn, &iov, 1, flags);

	CHECK(rc <= (ssize_t)len);
	for (ssize_t i = 0; i < rc && !peer.strange; i++)
		CHECK(in[i] == octet(octets_read + (uint64_t)i, false));
	if (rc > 0 && !(flags & SDP_PEEK))
		octets_read += (uint64_t)rc;
	CHECK(octets_read <= peer.octets_in);
}

static void up_call(unsigned arg)
{
	enum oti_down how = (enum oti_down)(arg % 3);

	if (!t || t->cut)
		return;
	if (arg >= 128) {
		if (t->up)
			t->conn.upcalls->room(&t->conn);
	} else if (!t->up) {
		t->cut = true;
		t->conn.upcalls->failed(&t->conn, ECONNREFUSED, arg, NULL, 0);
	} else if (how != OTI_DOWN_OWN || t->closing) {
		/* Our own end only if it was asked for. */
		t->cut = true;
		t->conn.upcalls->down(&t->conn, how);
	}
}

static size_t make_hello(struct source *in, enum sdp_layout layout, bool ack, uint8_t *to);

/* The new owner answers. */
static void accept_move(struct source *in)
{
	uint8_t hello[SDP_HELLO_MAX];
	struct sdp_hello h;
	size_t len;

	if (!t || t->cut || t->up)
		return;
	len = make_hello(in, conn.attr.layout, true, hello);
	if (sdp_hello_decode(&h, hello, len, conn.attr.layout, true) == 0)
		peer.said_bufs = h.bufs;
	t->conn.upcalls->accepted(&t->conn, hello, len);
	if (t && t->up && !t->cut)
		t->conn.upcalls->up(&t->conn);
}

static void check_engine(void)
{
	uint64_t unread = 0;

	for (const struct oti_rx *rx = conn.first; rx; rx = rx->next) {
		CHECK(rx->from < rx->to && rx->to <= rx->cap);
		unread += rx->to - rx->from;
	}
	CHECK(conn.unread == unread);
	CHECK(conn.illegal == 0 && conn.state < SDPS_NSTATES);
	CHECK(conn.stash_from <= conn.stash_to && conn.stash_to <= SDP_STASH);
	(void)sdp_conn_status(&conn);
}

static void operate(struct source *in)
{
	unsigned what = (unsigned)take(in, 1);

	switch (what % 16) {
	case 0: do_send(take(in, 2) % 2048); break;
	case 1: do_recv(take(in, 2) % 2048, 0); break;
	case 2: do_recv(take(in, 1), (unsigned)take(in, 1) & 3); break;
	case 3: sdp_conn_shut(&conn); break;
	case 4: sdp_conn_close(&conn); break;
	case 5:
		sdp_conn_change_mode(&conn, (enum sdp_mode)(take(in, 1) % 3), take(in, 1) & 1);
		break;
	case 6: sdp_conn_tick(&conn, sdp_conn_deadline(&conn)); break;
	case 7: starve = (unsigned)take(in, 1) % 8; break;
	case 8: up_call((unsigned)take(in, 1)); break;
	case 9: say_anything(in); break;
	case 10:
		if (take(in, 1) & 1)
			do_send_urgent();
		else if (take(in, 1) % 8 == 0)
			sdp_conn_abort(&conn);
		else if (take(in, 1) % 8 == 0)
			sdp_conn_shut_read(&conn);
		else
			accept_move(in);
		break;
	default: say(in); break;
	}
	check_engine();
}

/* ---- set-up ---- */

static struct sdp_conn *spawn(struct sdp_listener *l)
{
	(void)l;
	return &conn;
}

static void drop(struct sdp_listener *l, struct sdp_conn *c)
{
	(void)l;
	(void)c;
}

/* The peer's Hello or HelloAck: a good one, or what the input says. */
static size_t make_hello(struct source *in, enum sdp_layout layout, bool ack, uint8_t *to)
{
	struct sdp_hello h = { .layout = layout,
			       .ack = ack,
			       .major = 1,
			       .minor = 1,
			       .bufs = 16,
			       .max_adverts = 8,
			       .rcv_size = BUF_SIZE,
			       .ord = 1,
			       .ird = 1,
			       .ip_version = layout == SDP_IB && !ack ? 4 : 0 };
	size_t len = min_size(take(in, 1), SDP_HELLO_MAX);

	if (!len) {
		h.rcv_size = SDP_RCV_MIN + (uint32_t)take(in, 2) % BUF_SIZE;
		h.bufs = (uint16_t)(3 + take(in, 1) % 32);
		return (size_t)sdp_hello_encode(&h, to, SDP_HELLO_MAX);
	}
	for (size_t i = 0; i < len; i++)
		to[i] = (uint8_t)take(in, 1);
	return len;
}

static bool set_up(struct source *in)
{
	enum sdp_layout layout = take(in, 1) & 1 ? SDP_IB : SDP_IWARP;
	bool connects = take(in, 1) & 1;
	struct oti_addr at = { .len = sizeof(struct sockaddr_in) };
	struct sdp_attr attr = { .oti = &oti, .layout = layout };
	uint8_t hello[SDP_HELLO_MAX];
	struct sdp_hello h;
	size_t len;

	attr.bufs = (uint16_t)(3 + take(in, 1) % (BUFS_MAX - 2));
	attr.buf_size = SDP_RCV_MIN + (uint32_t)take(in, 1) * 2;
	at.sa.ss_family = AF_INET;
	listening = !connects;
	if (connects) {
		CHECK(sdp_conn_init(&conn, &attr) == 0);
		CHECK(sdp_conn_connect(&conn, &at) == 0);
		len = make_hello(in, layout, true, hello);
		if (sdp_hello_decode(&h, hello, len, layout, true) == 0)
			peer.said_bufs = h.bufs;
		t->conn.upcalls->accepted(&t->conn, hello, len);
	} else {
		memset(&conn, 0, sizeof(conn));
		listener = (struct sdp_listener) { .attr = attr, .spawn = spawn, .drop = drop };
		CHECK(sdp_listener_open(&listener, &at, 4) == 0);
		len = make_hello(in, layout, false, hello);
		request.private_data = hello;
		request.private_len = len;
		request.local = request.peer = at;
		oti_listener.on_request(&oti_listener, &request, listener.llp->user);
	}
	if (!t || t->cut)
		return false;
	CHECK(sdp_hello_decode(&h, hello, len, layout, connects) == 0);
	peer.said_bufs = h.bufs;
	t->conn.upcalls->up(&t->conn);
	if (!connects)
		CHECK(sdp_listener_accept(&listener) == &conn);
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	unsigned steps = 0;

	t = NULL;
	n_fakes = starve = 0;
	memset(&peer, 0, sizeof(peer));
	octets_read = octets_written = 0;
	if (set_up(&in))
		while (in.left && steps++ < 2000)
			operate(&in);
	sdp_conn_fini(&conn);
	if (listening)
		sdp_listener_close(&listener);
	CHECK(n_fakes == 0);
	return 0;
}
