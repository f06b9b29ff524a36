/* SPDX-License-Identifier: MIT */
/* See raw.h. */
#include "sdp/raw.h"

#include <stdlib.h>

#include "base/util.h"

#define QUIET_MS 20

void raw_init(struct raw *r)
{
	memset(r, 0, sizeof(*r));
	pthread_mutex_init(&r->lock, NULL);
	r->bufs = 64;
	r->buf_size = 1024;
	r->say_bufs = 64;
	r->mseq = r->rx_next = 1;
	r->ours = (struct sdp_hello) {
		.layout = bed.layout,
		.major = 1,
		.minor = 1,
		.bufs = 64,
		.max_adverts = 8,
		.rcv_size = 1024,
		.want_size = 1024,
		.ord = 4,
		.ird = 4,
		.ip_version = bed.layout == SDP_IB ? 4 : 0,
	};
}

void raw_fini(struct raw *r)
{
	if (r->conn)
		r->conn->ops->release(r->conn);
	if (r->listener)
		assert_int_equal(r->listener->ops->unlisten(r->listener), 0);
	pthread_mutex_destroy(&r->lock);
	r->conn = NULL;
	r->listener = NULL;
}

/* ---- up-calls ---- */

static void keep_data(struct raw *r, const void *data, size_t len)
{
	r->data_len = min_size(len, sizeof(r->data));
	if (len)
		memcpy(r->data, data, r->data_len);
}

static void on_accepted(struct oti_conn *conn, const void *data, size_t len)
{
	struct raw *r = conn->user;

	pthread_mutex_lock(&r->lock);
	keep_data(r, data, len);
	r->accepted = true;
	pthread_mutex_unlock(&r->lock);
}

static void on_failed(struct oti_conn *conn, int error, uint32_t code, const void *data, size_t len)
{
	struct raw *r = conn->user;

	pthread_mutex_lock(&r->lock);
	keep_data(r, data, len);
	r->error = error;
	r->code = code;
	r->failed = true;
	pthread_mutex_unlock(&r->lock);
}

static void on_up(struct oti_conn *conn)
{
	struct raw *r = conn->user;

	pthread_mutex_lock(&r->lock);
	r->up = true;
	pthread_mutex_unlock(&r->lock);
}

static void on_received(struct oti_conn *conn, struct oti_rx *rx)
{
	struct raw *r = conn->user;
	struct raw_message *m;
	bool keep;

	pthread_mutex_lock(&r->lock);
	assert_true(r->count < RAW_QUEUE);
	m = &r->queue[(r->head + r->count++) % RAW_QUEUE];
	memcpy(m->octets, rx->data, min_u32(rx->len, RAW_MAX));
	m->len = rx->len;
	assert_memory_equal(rx->head, rx->data, min_u32(rx->len, OTI_HEAD_LEN));
	keep = r->keep;
	if (keep)
		r->kept = rx;
	pthread_mutex_unlock(&r->lock);
	if (!keep)
		conn->ops->repost(conn, rx);
}

static void on_room(struct oti_conn *conn)
{
	struct raw *r = conn->user;

	pthread_mutex_lock(&r->lock);
	r->rooms++;
	pthread_mutex_unlock(&r->lock);
}

static void on_rdma_done(struct oti_conn *conn, uint64_t id, int status)
{
	(void)conn;
	(void)id;
	(void)status;
}

static void on_down(struct oti_conn *conn, enum oti_down how)
{
	struct raw *r = conn->user;

	pthread_mutex_lock(&r->lock);
	assert_false(r->down);
	r->down = true;
	r->how = how;
	pthread_mutex_unlock(&r->lock);
}

static const struct oti_upcalls upcalls = {
	.accepted = on_accepted,
	.failed = on_failed,
	.up = on_up,
	.received = on_received,
	.room = on_room,
	.rdma_done = on_rdma_done,
	.down = on_down,
};

static void on_request(struct oti_listener *l, struct oti_request *req, void *user)
{
	struct raw *r = user;

	(void)l;
	pthread_mutex_lock(&r->lock);
	assert_null(r->request);
	r->request = req;
	pthread_mutex_unlock(&r->lock);
}

/* ---- set-up ---- */

struct oti_conn_attr raw_attr(struct raw *r, const void *data, size_t len)
{
	return (struct oti_conn_attr) {
		.upcalls = &upcalls,
		.user = r,
		.private_data = data,
		.private_len = len,
		.bufs = r->bufs,
		.buf_size = r->buf_size,
		.reads = 4,
		.timeout_ms = BED_PATIENCE_MS,
	};
}

void raw_listen(struct raw *r)
{
	assert_int_equal(bed.b->ops->listen(bed.b, &bed.addr, 8, on_request, r, &r->listener), 0);
}

void raw_await_request(struct raw *r)
{
	bed_until(LOCKED(r, r->request) != NULL);
	keep_data(r, r->request->private_data, r->request->private_len);
	assert_int_equal(sdp_hello_decode(&r->theirs, r->data, r->data_len, bed.layout, false), 0);
}

void raw_accept_octets(struct raw *r, const void *data, size_t len)
{
	struct oti_conn_attr attr = raw_attr(r, data, len);
	struct oti_request *req = r->request;

	r->request = NULL;
	assert_int_equal(req->ops->accept(req, &attr, &r->conn), 0);
}

void raw_accept(struct raw *r)
{
	uint8_t data[SDP_HELLO_MAX];
	int len;

	r->ours.ack = true;
	len = sdp_hello_encode(&r->ours, data, sizeof(data));
	assert_true(len > 0);
	raw_accept_octets(r, data, (size_t)len);
}

void raw_connect_octets(struct raw *r, const struct oti_addr *to, const void *data, size_t len)
{
	struct oti_conn_attr attr = raw_attr(r, data, len);
	struct oti_endpoint end;

	assert_int_equal(bed.b->ops->resolve(bed.b, to, &end), 0);
	assert_int_equal(bed.b->ops->connect(bed.b, &end, &attr, &r->conn), 0);
}

void raw_connect(struct raw *r, const struct oti_addr *to)
{
	uint8_t data[SDP_HELLO_MAX];
	int len;

	r->ours.ack = false;
	len = sdp_hello_encode(&r->ours, data, sizeof(data));
	assert_true(len > 0);
	raw_connect_octets(r, to, data, (size_t)len);
}

void raw_confirm(struct raw *r)
{
	bed_until(LOCKED(r, r->accepted || r->failed));
	assert_true(LOCKED(r, r->accepted));
	assert_int_equal(sdp_hello_decode(&r->theirs, r->data, r->data_len, bed.layout, true), 0);
	assert_int_equal(r->conn->ops->confirm(r->conn), 0);
	bed_until(LOCKED(r, r->up));
}

void raw_open_with(struct raw_pair *p, enum raw_role role, const struct sdp_attr *attr)
{
	memset(p, 0, sizeof(*p));
	p->role = role;
	raw_init(&p->raw);
	if (role == RAW_LISTENS) {
		raw_listen(&p->raw);
		p->c = &p->own;
		assert_int_equal(sdp_conn_init(p->c, attr), 0);
		assert_int_equal(sdp_conn_connect(p->c, &p->raw.listener->local), 0);
		raw_await_request(&p->raw);
		raw_accept(&p->raw);
		bed_until(bed_has(p->c, SDP_IS_OPEN) && LOCKED(&p->raw, p->raw.up));
	} else {
		bed_listen(&p->listener, attr, 4);
		raw_connect(&p->raw, &p->listener.l.llp->local);
		raw_confirm(&p->raw);
		bed_until((p->c = sdp_listener_accept(&p->listener.l)) != NULL);
	}
	bed_until(bed_is_up(p->c));
}

void raw_open(struct raw_pair *p, enum raw_role role)
{
	struct sdp_attr attr = bed_attr();

	raw_open_with(p, role, &attr);
}

void raw_close(struct raw_pair *p)
{
	assert_int_equal(AT(p->c, illegal), 0);
	sdp_conn_fini(p->c);
	if (p->role == RAW_CONNECTS) {
		bed_free(&p->listener, p->c);
		bed_unlisten(&p->listener);
	}
	raw_fini(&p->raw);
}

/* ---- out ---- */

void raw_octets(struct raw *r, const void *octets, size_t len)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)octets, .iov_len = len };
	struct oti_buf *buf = NULL;

	bed_until((buf = r->conn->ops->buf_get(r->conn)) != NULL);
	assert_int_equal(r->conn->ops->send(r->conn, buf, &iov, 1, 0), 0);
}

size_t raw_encode(struct raw *r, struct sdp_msg *m, uint8_t *to)
{
	int len;

	m->mseq = r->mseq;
	m->mseq_ack = r->ack;
	m->bufs = r->say_bufs;
	len = sdp_encode(m, to);
	assert_true(len > 0);
	return (size_t)len;
}

uint32_t raw_say_msg(struct raw *r, struct sdp_msg *m, const void *payload)
{
	uint8_t octets[RAW_MAX];
	size_t len = raw_encode(r, m, octets);

	if (m->payload_len)
		memcpy(octets + len, payload, m->payload_len);
	raw_octets(r, octets, len + m->payload_len);
	return r->mseq++;
}

uint32_t raw_say(struct raw *r, uint8_t mid)
{
	struct sdp_msg m = { .mid = mid, .advert_len = 4096, .mode = SDP_PIPELINED, .port = 1 };

	return raw_say_msg(r, &m, NULL);
}

uint32_t raw_data(struct raw *r, const void *payload, uint32_t len)
{
	struct sdp_msg m = { .mid = SDP_DATA, .payload_len = len };

	return raw_say_msg(r, &m, payload);
}

/* ---- in ---- */

unsigned raw_waiting(struct raw *r)
{
	return LOCKED(r, r->count);
}

struct sdp_msg raw_next(struct raw *r, uint8_t *payload)
{
	struct raw_message m;
	struct sdp_msg out;

	bed_until(raw_waiting(r) || LOCKED(r, r->down));
	if (!raw_waiting(r))
		fail_msg("the connection ended, a message was awaited");
	pthread_mutex_lock(&r->lock);
	m = r->queue[r->head];
	r->head = (r->head + 1) % RAW_QUEUE;
	r->count--;
	pthread_mutex_unlock(&r->lock);
	assert_int_equal(sdp_decode(&out, m.octets, m.len), 0);
	assert_int_equal(out.mseq, r->rx_next);
	r->rx_next++;
	r->ack = out.mseq;
	if (payload)
		memcpy(payload, out.payload, out.payload_len);
	out.payload = NULL;
	return out;
}

struct sdp_msg raw_expect(struct raw *r, uint8_t mid)
{
	struct sdp_msg m = raw_next(r, NULL);

	if (m.mid != mid)
		fail_msg("%s came, want %s", sdp_mid_info(m.mid)->name, sdp_mid_info(mid)->name);
	return m;
}

void raw_expect_quiet(struct raw *r)
{
	bed_step_for(QUIET_MS);
	assert_int_equal(raw_waiting(r), 0);
}

void raw_expect_no_more_than_credits(struct raw *r)
{
	bed_step_for(QUIET_MS);
	while (raw_waiting(r)) {
		struct sdp_msg m = raw_next(r, NULL);

		assert_int_equal(m.mid, SDP_DATA);
		assert_int_equal(m.payload_len, 0);
	}
}

void raw_expect_down(struct raw *r)
{
	bed_until(LOCKED(r, r->down));
}

void raw_expect_violation(struct raw_pair *p)
{
	char c;

	bed_until(bed_has(p->c, SDP_IS_RESET));
	raw_expect_down(&p->raw);
	assert_int_equal(LOCKED(&p->raw, p->raw.how), OTI_DOWN_LOST);
	assert_non_null(AT(p->c, why));
	while (bed_recv(p->c, &c, 1) == 1)
		;
	assert_true(bed_recv(p->c, &c, 1) < 0);
	assert_true(bed_send(p->c, "x", 1) < 0);
}
