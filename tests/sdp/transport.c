/* SPDX-License-Identifier: MIT */
/* Conformance of the transports: the contract of oti.h (OS-23 to OS-28). */
#include "sdp/raw.h"

#include <netinet/in.h>
#include <unistd.h>

#include "base/util.h"

static struct raw x, y; /* x connects on side a, y listens on side b */

static struct oti_caps caps_of(struct oti *o)
{
	struct oti_caps caps;

	o->ops->caps(o, &caps);
	return caps;
}

/* x asks, with these octets; y has the request. */
static void ask_with(const void *data, size_t len, uint32_t buf_size)
{
	struct oti_conn_attr attr;
	struct oti_endpoint end;

	raw_init(&x);
	raw_init(&y);
	x.buf_size = y.buf_size = buf_size;
	raw_listen(&y);
	attr = raw_attr(&x, data, len);
	assert_int_equal(bed.a->ops->resolve(bed.a, &y.listener->local, &end), 0);
	assert_int_equal(bed.a->ops->connect(bed.a, &end, &attr, &x.conn), 0);
	bed_until(LOCKED(&y, y.request) != NULL);
}

static void ask(const void *data, size_t len)
{
	ask_with(data, len, 1024);
}

static void connect_with(uint32_t buf_size)
{
	ask_with("x", 1, buf_size);
	raw_accept_octets(&y, "y", 1);
	bed_until(LOCKED(&x, x.accepted));
	assert_int_equal(x.conn->ops->confirm(x.conn), 0);
	bed_until(LOCKED(&x, x.up) && LOCKED(&y, y.up));
}

static void connect_both(void)
{
	connect_with(1024);
}

static void done(void)
{
	raw_fini(&x);
	raw_fini(&y);
}

/* ---- the table ---- */

/* clang-format off */
/* Slots that every transport fills, those that need OTI_RDMA, and the reserved ones. */
#define SLOTS(X)                                                                             \
	X(caps) X(close) X(resolve) X(listen) X(unlisten) X(connect) X(accept) X(reject)     \
	X(confirm) X(names) X(buf_get) X(buf_put) X(send) X(repost) X(poll) X(poll_conn)     \
	X(wait) X(disconnect) X(abort) X(release)
#define RDMA_SLOTS(X)  X(reg) X(unreg) X(rdma_read) X(rdma_write)
#define DGRAM_SLOTS(X) X(dgram_open) X(dgram_send) X(dgram_close)
/* clang-format on */

static void table_is_complete(void **state)
{
	struct oti_caps caps = caps_of(bed.a);
	const struct oti_ops *ops = bed.a->ops;

#define X(slot) assert_true(ops->slot);
	SLOTS(X)
#undef X
#define X(slot) assert_int_equal(!!ops->slot, !!(caps.flags & OTI_RDMA));
	RDMA_SLOTS(X)
#undef X
#define X(slot) assert_null(ops->slot);
	DGRAM_SLOTS(X)
#undef X
	assert_int_equal(sizeof(*ops), 27 * sizeof(void (*)(void)));
}

static void capabilities_are_sound(void **state)
{
	struct oti_caps caps = caps_of(bed.a);

	assert_false(caps.flags & OTI_DATAGRAM);
	assert_int_equal(!!(caps.flags & OTI_POLLED) + !!(caps.flags & OTI_DIRECT), 1);
	assert_true(caps.max_private >= OTI_PRIVATE_MIN);
	/* Enough for SDP. */
	assert_true(caps.max_private >= SDP_HELLO_MAX && caps.max_bufs >= SDP_BUFS_MIN);
	assert_true(caps.max_message >= SDP_RCV_MIN);
	assert_int_equal(caps.max_reads != 0, !!(caps.flags & OTI_RDMA));
}

static void closing_a_transport_in_use_is_refused(void **state)
{
	connect_both();
	assert_int_equal(bed.a->ops->close(bed.a), -EBUSY);
	assert_int_equal(bed.b->ops->close(bed.b), -EBUSY);
	done();
	raw_init(&y);
	raw_listen(&y);
	assert_int_equal(bed.b->ops->close(bed.b), -EBUSY);
	raw_fini(&y);
}

/* ---- private data ---- */

static void private_data_passes_both_ways(void **state)
{
	uint32_t most = caps_of(bed.a).max_private;
	uint32_t lens[] = { 0, 1, OTI_PRIVATE_MIN, most };

	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		uint8_t data[512], back[512];

		bed_fill(data, sizeof(data), 0, 1);
		bed_fill(back, sizeof(back), 0, 2);
		ask(data, lens[i]);
		assert_int_equal(y.request->private_len, lens[i]);
		if (lens[i])
			assert_memory_equal(y.request->private_data, data, lens[i]);
		raw_accept_octets(&y, back, lens[i]);
		bed_until(LOCKED(&x, x.accepted));
		assert_int_equal(x.data_len, lens[i]);
		assert_memory_equal(x.data, back, lens[i]);
		done();
	}
}

static void too_much_private_data_is_refused(void **state)
{
	uint8_t data[1024] = { 0 };
	uint32_t most = caps_of(bed.a).max_private;
	struct oti_conn_attr attr;
	struct oti_endpoint end;
	struct oti_conn *conn;

	raw_init(&x);
	raw_init(&y);
	raw_listen(&y);
	attr = raw_attr(&x, data, most + 1);
	assert_int_equal(bed.a->ops->resolve(bed.a, &y.listener->local, &end), 0);
	assert_int_equal(bed.a->ops->connect(bed.a, &end, &attr, &conn), -EINVAL);
	done();
	ask(data, 1);
	attr = raw_attr(&y, data, most + 1);
	assert_int_equal(y.request->ops->accept(y.request, &attr, &conn), -EINVAL);
	/* The request is used up, and the peer knows. */
	bed_until(LOCKED(&x, x.failed));
	done();
}

static void rejection_has_a_code_and_data(void **state)
{
	uint8_t data[512];
	uint32_t lens[] = { 0, 9, caps_of(bed.a).max_private };

	bed_fill(data, sizeof(data), 0, 3);
	for (size_t i = 0; i < ARRAY_SIZE(lens); i++) {
		ask(NULL, 0);
		assert_int_equal(y.request->ops->reject(y.request, 0x12345678, data, lens[i]), 0);
		bed_until(LOCKED(&x, x.failed));
		assert_int_equal(x.error, ECONNREFUSED);
		assert_int_equal(x.code, 0x12345678);
		assert_int_equal(x.data_len, lens[i]);
		assert_memory_equal(x.data, data, lens[i]);
		done();
	}
	ask(NULL, 0);
	assert_int_equal(y.request->ops->reject(y.request, 7, data, 513), -EINVAL);
	bed_until(LOCKED(&x, x.failed));
	assert_int_equal(x.code, 7);
	assert_int_equal(x.data_len, 0);
	done();
}

/* ---- threads ---- */

static void *accept_it(void *arg)
{
	(void)arg;
	raw_accept_octets(&y, "t", 1);
	return NULL;
}

static void *reject_it(void *arg)
{
	(void)arg;
	y.request->ops->reject(y.request, 3, NULL, 0);
	return NULL;
}

static void any_thread_may_accept_and_reject(void **state)
{
	pthread_t thread;

	ask(NULL, 0);
	assert_int_equal(pthread_create(&thread, NULL, accept_it, NULL), 0);
	pthread_join(thread, NULL);
	bed_until(LOCKED(&x, x.accepted));
	done();
	ask(NULL, 0);
	assert_int_equal(pthread_create(&thread, NULL, reject_it, NULL), 0);
	pthread_join(thread, NULL);
	bed_until(LOCKED(&x, x.failed));
	assert_int_equal(x.code, 3);
	done();
}

/* Nothing of the peer runs, yet connect() returns. */
static void connect_does_not_wait(void **state)
{
	struct oti_conn_attr attr;
	struct oti_endpoint end;

	raw_init(&x);
	raw_init(&y);
	raw_listen(&y);
	attr = raw_attr(&x, NULL, 0);
	assert_int_equal(bed.a->ops->resolve(bed.a, &y.listener->local, &end), 0);
	assert_int_equal(bed.a->ops->connect(bed.a, &end, &attr, &x.conn), 0);
	assert_false(LOCKED(&x, x.accepted || x.failed));
	/* It can be given up at once, too. */
	x.conn->ops->release(x.conn);
	x.conn = NULL;
	bed_step_for(20);
	if (LOCKED(&y, y.request)) {
		y.request->ops->reject(y.request, 1, NULL, 0);
		bed_step_for(5);
	}
	done();
}

/* ---- addresses ---- */

static struct oti_addr address(uint32_t ip, uint16_t port)
{
	struct oti_addr a = { .len = sizeof(struct sockaddr_in) };
	struct sockaddr_in *in = (struct sockaddr_in *)&a.sa;

	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(ip);
	in->sin_port = htons(port);
	return a;
}

static uint16_t port_of(const struct oti_addr *a)
{
	return ntohs(((const struct sockaddr_in *)&a->sa)->sin_port);
}

static _Atomic int asked;

static void refuse_with_name(struct oti_listener *l, struct oti_request *req, void *user)
{
	(void)l;
	asked++;
	req->ops->reject(req, (uint32_t)(uintptr_t)user, NULL, 0);
}

static uint32_t who_answers(uint32_t ip, uint16_t port)
{
	struct oti_addr to = address(ip, port);
	struct oti_conn_attr attr;
	struct oti_endpoint end;
	uint32_t code;

	raw_init(&x);
	attr = raw_attr(&x, NULL, 0);
	assert_int_equal(bed.a->ops->resolve(bed.a, &to, &end), 0);
	assert_int_equal(bed.a->ops->connect(bed.a, &end, &attr, &x.conn), 0);
	bed_until(LOCKED(&x, x.failed));
	assert_int_equal(x.error, ECONNREFUSED);
	code = x.code;
	raw_fini(&x);
	return code;
}

static void listens_are_told_apart_by_address_and_port(void **state)
{
	struct oti_addr at = address(INADDR_LOOPBACK, 0);
	struct oti_listener *one, *two, *three;
	uint16_t port;

	assert_int_equal(bed.b->ops->listen(bed.b, &at, 4, refuse_with_name, (void *)1, &one), 0);
	port = port_of(&one->local);
	assert_int_not_equal(port, 0);
	at = address(INADDR_LOOPBACK + 1, port);
	assert_int_equal(bed.b->ops->listen(bed.b, &at, 4, refuse_with_name, (void *)2, &two), 0);
	assert_int_equal(bed.b->ops->listen(bed.b, &at, 4, refuse_with_name, (void *)2, &three),
			 -EADDRINUSE);
	at = address(INADDR_LOOPBACK, 0);
	assert_int_equal(bed.b->ops->listen(bed.b, &at, 4, refuse_with_name, (void *)3, &three), 0);
	assert_int_not_equal(port_of(&three->local), port);
	assert_int_equal(who_answers(INADDR_LOOPBACK, port), 1);
	assert_int_equal(who_answers(INADDR_LOOPBACK + 1, port), 2);
	assert_int_equal(who_answers(INADDR_LOOPBACK, port_of(&three->local)), 3);
	/* Nobody: no code. */
	assert_int_equal(who_answers(INADDR_LOOPBACK + 2, port), 0);
	assert_int_equal(bed.b->ops->unlisten(two), 0);
	assert_int_equal(who_answers(INADDR_LOOPBACK + 1, port), 0);
	assert_int_equal(bed.b->ops->unlisten(one), 0);
	assert_int_equal(bed.b->ops->unlisten(three), 0);
}

static void any_address_takes_what_is_left(void **state)
{
	struct oti_addr at = address(INADDR_ANY, 0);
	struct oti_listener *any;

	assert_int_equal(bed.b->ops->listen(bed.b, &at, 4, refuse_with_name, (void *)9, &any), 0);
	assert_int_equal(who_answers(INADDR_LOOPBACK, port_of(&any->local)), 9);
	assert_int_equal(who_answers(INADDR_LOOPBACK + 7, port_of(&any->local)), 9);
	assert_int_equal(bed.b->ops->unlisten(any), 0);
}

static void resolving_refuses_what_is_no_address(void **state)
{
	struct oti_addr a = address(INADDR_LOOPBACK, 0);
	struct oti_endpoint end;

	assert_int_equal(bed.a->ops->resolve(bed.a, &a, &end), -EINVAL);
	a = address(INADDR_LOOPBACK, 1);
	assert_int_equal(bed.a->ops->resolve(bed.a, &a, &end), 0);
	a.len = 4;
	assert_int_equal(bed.a->ops->resolve(bed.a, &a, &end), -EINVAL);
	a.sa.ss_family = AF_UNIX;
	assert_int_equal(bed.a->ops->resolve(bed.a, &a, &end), -EAFNOSUPPORT);
}

/* ---- messages ---- */

static void messages_arrive_whole_and_in_order(void **state)
{
	uint64_t end = bed_now_ms() + BED_PATIENCE_MS;
	uint8_t out[1024];
	unsigned sent = 0, got = 0;

	connect_both();
	while (got < 500) {
		struct oti_buf *buf;

		/* The receiver has 64 buffers, and may be slow to post them again. */
		while (sent < 500 && sent - got < 32 && (buf = x.conn->ops->buf_get(x.conn))) {
			size_t len = 1 + sent * 7 % 1024;
			struct iovec iov[3] = {
				{ .iov_base = out, .iov_len = len / 3 },
				{ .iov_base = out + len / 3, .iov_len = len / 2 },
				{ .iov_base = out + len / 3 + len / 2,
				  .iov_len = len - len / 3 - len / 2 },
			};

			bed_fill(out, len, 0, sent);
			assert_int_equal(x.conn->ops->send(x.conn, buf, iov, 3, 0), 0);
			sent++;
		}
		/* Send buffers may come back later than the messages arrive. */
		bed_step();
		assert_true(bed_now_ms() < end);
		pthread_mutex_lock(&y.lock);
		while (y.count) {
			struct raw_message *m = &y.queue[y.head];

			assert_int_equal(m->len, 1 + got * 7 % 1024);
			assert_true(bed_check(m->octets, m->len, 0, got));
			y.head = (y.head + 1) % RAW_QUEUE;
			y.count--;
			got++;
		}
		pthread_mutex_unlock(&y.lock);
	}
	done();
}

static void pool_gives_room_again(void **state)
{
	struct oti_buf *bufs[256];
	unsigned n = 0;

	connect_both();
	while (n < 256 && (bufs[n] = x.conn->ops->buf_get(x.conn)))
		n++;
	assert_in_range(n, 3, 255);
	assert_true(bufs[0]->cap >= 1024 && bufs[0]->data);
	x.conn->ops->buf_put(x.conn, bufs[--n]);
	bufs[n] = x.conn->ops->buf_get(x.conn);
	assert_non_null(bufs[n]);
	n++;
	for (unsigned i = 0; i < n; i++) {
		struct iovec iov = { .iov_base = &i, .iov_len = sizeof(i) };

		assert_int_equal(x.conn->ops->send(x.conn, bufs[i], &iov, 1, 0), 0);
	}
	bed_until(raw_waiting(&y) == n);
	/* There was none at first: it is told that there are some. They all come back. */
	bed_until(LOCKED(&x, x.rooms) > 0);
	for (unsigned i = 0; i < n; i++)
		bed_until((bufs[i] = x.conn->ops->buf_get(x.conn)) != NULL);
	for (unsigned i = 0; i < n; i++)
		x.conn->ops->buf_put(x.conn, bufs[i]);
	done();
}

static void message_that_is_too_long_is_refused(void **state)
{
	static uint8_t octets[1 << 20];
	struct iovec iov = { .iov_base = octets };
	struct oti_buf *buf;

	connect_both();
	buf = x.conn->ops->buf_get(x.conn);
	iov.iov_len = (size_t)buf->cap + 1;
	assert_int_equal(x.conn->ops->send(x.conn, buf, &iov, 1, 0), -EMSGSIZE);
	/* Nothing was lost by it. */
	buf = x.conn->ops->buf_get(x.conn);
	assert_non_null(buf);
	iov.iov_len = 3;
	assert_int_equal(x.conn->ops->send(x.conn, buf, &iov, 1, OTI_SOLICITED), 0);
	bed_until(raw_waiting(&y) == 1);
	done();
}

/* ---- completions ---- */

static void polling_keeps_to_its_budget(void **state)
{
	unsigned n = 0, rounds = 0;

	if (bed.direct)
		skip();
	connect_both();
	for (int i = 0; i < 20; i++)
		raw_octets(&x, "m", 1);
	while (n < 20) {
		int rc = bed.b->ops->poll(bed.b, 3);

		assert_in_range(rc, 0, 3);
		assert_true(raw_waiting(&y) - n <= 3);
		n = raw_waiting(&y);
		assert_true(++rounds < 1000000);
	}
	assert_int_equal(bed.b->ops->poll(bed.b, 0), 0);
	/* One connection alone. */
	raw_octets(&x, "m", 1);
	bed_until(y.conn->ops->poll_conn(y.conn, 1) >= 0 && raw_waiting(&y) == 21);
	done();
}

#define WAIT_MS 10000

static void *send_late(void *arg)
{
	(void)arg;
	usleep(30000);
	raw_octets(&x, "late", 4);
	return NULL;
}

static void waiting_ends_when_something_comes(void **state)
{
	pthread_t thread;
	uint64_t end = bed_now_ms() + BED_PATIENCE_MS, begun;

	if (bed.direct)
		skip();
	connect_both();
	while (bed.b->ops->poll(bed.b, 64) > 0)
		;
	bed_step_for(10);
	/* Nothing comes. */
	assert_int_equal(bed.b->ops->wait(bed.b, 5), -ETIMEDOUT);
	assert_int_equal(pthread_create(&thread, NULL, send_late, NULL), 0);
	begun = bed_now_ms();
	while (!raw_waiting(&y) && bed_now_ms() < end) {
		int rc = bed.b->ops->wait(bed.b, WAIT_MS);

		assert_true(rc == 0 || rc == -EINTR);
		bed.b->ops->poll(bed.b, 64);
	}
	pthread_join(thread, NULL);
	assert_int_equal(raw_waiting(&y), 1);
	/* It was woken, and did not find it by chance when its time was over. */
	assert_true(bed_now_ms() - begun < WAIT_MS);
	done();
}

/* It came before anybody slept, so nobody rang. */
static void waiting_ends_at_once_when_something_is_there(void **state)
{
	uint64_t begun;

	if (bed.direct)
		skip();
	connect_both();
	bed_step_for(10);
	raw_octets(&x, "here", 4);
	begun = bed_now_ms();
	while (!raw_waiting(&y) && bed_now_ms() - begun < BED_PATIENCE_MS) {
		assert_int_equal(bed.b->ops->wait(bed.b, WAIT_MS), 0);
		bed.b->ops->poll(bed.b, 64);
	}
	assert_int_equal(raw_waiting(&y), 1);
	assert_true(bed_now_ms() - begun < WAIT_MS);
	done();
}

/* ---- the end ---- */

static void disconnect_comes_behind_all_messages(void **state)
{
	connect_both();
	for (int i = 0; i < 30; i++)
		raw_octets(&x, "m", 1);
	assert_int_equal(x.conn->ops->disconnect(x.conn), 0);
	assert_null(x.conn->ops->buf_get(x.conn));
	bed_until(LOCKED(&y, y.down) && LOCKED(&x, x.down));
	assert_int_equal(raw_waiting(&y), 30);
	assert_int_equal(y.how, OTI_DOWN_PEER);
	assert_int_equal(x.how, OTI_DOWN_OWN);
	done();
}

/* More than TCP takes at once: the end waits for it. */
static void disconnect_waits_for_long_messages(void **state)
{
	static uint8_t octets[256 << 10];
	uint32_t size = min_u32(sizeof(octets), caps_of(bed.a).max_message);

	connect_with(size);
	for (int i = 0; i < 60; i++)
		raw_octets(&x, octets, size);
	assert_int_equal(x.conn->ops->disconnect(x.conn), 0);
	bed_until(LOCKED(&y, y.down) && LOCKED(&x, x.down));
	assert_int_equal(raw_waiting(&y), 60);
	assert_int_equal(y.how, OTI_DOWN_PEER);
	assert_int_equal(x.how, OTI_DOWN_OWN);
	done();
}

static void buffer_that_is_posted_after_disconnect_does_no_harm(void **state)
{
	connect_both();
	y.keep = true;
	raw_octets(&x, "m", 1);
	bed_until(raw_waiting(&y));
	assert_int_equal(y.conn->ops->disconnect(y.conn), 0);
	y.conn->ops->repost(y.conn, y.kept);
	bed_until(LOCKED(&y, y.down) && LOCKED(&x, x.down));
	assert_int_equal(x.how, OTI_DOWN_PEER);
	assert_int_equal(y.how, OTI_DOWN_OWN);
	done();
}

static void both_may_disconnect_at_once(void **state)
{
	connect_both();
	assert_int_equal(x.conn->ops->disconnect(x.conn), 0);
	assert_int_equal(y.conn->ops->disconnect(y.conn), 0);
	bed_until(LOCKED(&y, y.down) && LOCKED(&x, x.down));
	assert_int_not_equal(x.how, OTI_DOWN_LOST);
	assert_int_not_equal(y.how, OTI_DOWN_LOST);
	done();
}

static void abort_is_a_loss_for_the_peer(void **state)
{
	connect_both();
	x.conn->ops->abort(x.conn);
	bed_until(LOCKED(&y, y.down));
	assert_int_equal(y.how, OTI_DOWN_LOST);
	/* And nothing for us. */
	bed_step_for(10);
	assert_false(LOCKED(&x, x.down));
	done();
	connect_both();
	x.conn->ops->release(x.conn);
	x.conn = NULL;
	bed_until(LOCKED(&y, y.down));
	assert_int_equal(y.how, OTI_DOWN_LOST);
	done();
}

static void abort_instead_of_confirm_is_a_loss_for_the_peer(void **state)
{
	ask(NULL, 0);
	raw_accept_octets(&y, NULL, 0);
	bed_until(LOCKED(&x, x.accepted));
	x.conn->ops->abort(x.conn);
	bed_until(LOCKED(&y, y.down));
	assert_int_equal(y.how, OTI_DOWN_LOST);
	assert_false(LOCKED(&y, y.up));
	done();
}

static void connections_can_be_made_again_and_again(void **state)
{
	for (int i = 0; i < 100; i++) {
		connect_both();
		if (i % 3 == 0) {
			x.conn->ops->disconnect(x.conn);
			bed_until(LOCKED(&y, y.down));
		}
		if (i % 3 == 1)
			y.conn->ops->abort(y.conn);
		done();
	}
}

/* ---- RDMA ---- */

static _Atomic int rdma_status;
static _Atomic uint64_t rdma_id;

static void on_done(struct oti_conn *conn, uint64_t id, int status)
{
	(void)conn;
	rdma_status = status;
	rdma_id = id;
}

static void await_rdma(uint64_t id)
{
	bed_until(rdma_id == id);
	assert_int_equal(rdma_status, 0);
	rdma_id = 0;
}

static void rdma_moves_octets_with_the_real_key(void **state)
{
	static uint8_t here[4096], there[4096];
	struct oti_upcalls upcalls;
	struct oti_mem *a, *b;

	if (!(caps_of(bed.a).flags & OTI_RDMA))
		skip();
	connect_both();
	upcalls = *x.conn->upcalls;
	upcalls.rdma_done = on_done;
	x.conn->upcalls = &upcalls;
	assert_int_equal(bed.a->ops->reg(bed.a, here, sizeof(here), OTI_LOCAL_WRITE, &a), 0);
	assert_int_equal(bed.b->ops->reg(bed.b, there, sizeof(there),
					 OTI_REMOTE_READ | OTI_REMOTE_WRITE, &b),
			 0);
	assert_int_not_equal(b->key, 0);
	bed_fill(here, 4096, 0, 5);
	assert_int_equal(
		x.conn->ops->rdma_write(x.conn, a, 100, 1000, b->remote_addr + 50, b->key, 11), 0);
	await_rdma(11);
	memset(here, 0, sizeof(here));
	/* A Read behind the Write has everything. */
	assert_int_equal(
		x.conn->ops->rdma_read(x.conn, a, 0, 1000, b->remote_addr + 50, b->key, 12), 0);
	await_rdma(12);
	assert_true(bed_check(here, 1000, 100, 5));
	assert_true(bed_check(there + 50, 1000, 100, 5));
	/* A key that is not there ends the connection. */
	assert_int_equal(x.conn->ops->rdma_write(x.conn, a, 0, 8, b->remote_addr, ~b->key, 13), 0);
	bed_until(LOCKED(&y, y.down));
	bed_until(LOCKED(&x, x.down));
	assert_int_equal(x.how, OTI_DOWN_LOST);
	done();
	bed.a->ops->unreg(bed.a, a);
	bed.b->ops->unreg(bed.b, b);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(table_is_complete),
		WITH_BED(capabilities_are_sound),
		WITH_BED(closing_a_transport_in_use_is_refused),
		WITH_BED(private_data_passes_both_ways),
		WITH_BED(too_much_private_data_is_refused),
		WITH_BED(rejection_has_a_code_and_data),
		WITH_BED(any_thread_may_accept_and_reject),
		WITH_BED(connect_does_not_wait),
		WITH_BED(listens_are_told_apart_by_address_and_port),
		WITH_BED(any_address_takes_what_is_left),
		WITH_BED(resolving_refuses_what_is_no_address),
		WITH_BED(messages_arrive_whole_and_in_order),
		WITH_BED(pool_gives_room_again),
		WITH_BED(message_that_is_too_long_is_refused),
		WITH_BED(polling_keeps_to_its_budget),
		WITH_BED(waiting_ends_when_something_comes),
		WITH_BED(waiting_ends_at_once_when_something_is_there),
		WITH_BED(disconnect_comes_behind_all_messages),
		WITH_BED(disconnect_waits_for_long_messages),
		WITH_BED(buffer_that_is_posted_after_disconnect_does_no_harm),
		WITH_BED(both_may_disconnect_at_once),
		WITH_BED(abort_is_a_loss_for_the_peer),
		WITH_BED(abort_instead_of_confirm_is_a_loss_for_the_peer),
		WITH_BED(connections_can_be_made_again_and_again),
		WITH_BED(rdma_moves_octets_with_the_real_key),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("transport", tests, NULL, NULL);
}
