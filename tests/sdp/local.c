/* SPDX-License-Identifier: MIT */
/*
 * The local transport when its trunk has no credit for a word of set-up: the peer holds blocks of connections that had the
 * same circuit before. Nothing is lost by that; it comes later, and before all messages.
 */
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/trunk_priv.h"
#include "sockets/ot/oti_local.h"
#include "sockets/ot/oti_local_priv.h"

static struct oti *oti[2];
static struct oti_listener *listener;
static struct oti_request *request;

static struct end {
	struct oti_conn *conn;
	int accepted, failed, up, received, room, down;
	char text[8];
} end[2];

/* --- up-calls */

static struct end *end_of(struct oti_conn *conn)
{
	return conn->user;
}

static void on_accepted(struct oti_conn *conn, const void *data, size_t len)
{
	end_of(conn)->accepted++;
	memcpy(end_of(conn)->text, data, len);
}

static void on_failed(struct oti_conn *conn, int error, uint32_t code, const void *data, size_t len)
{
	end_of(conn)->failed++;
}

static void on_up(struct oti_conn *conn)
{
	end_of(conn)->up++;
}

static void on_received(struct oti_conn *conn, struct oti_rx *rx)
{
	end_of(conn)->received++;
	conn->ops->repost(conn, rx);
}

static void on_room(struct oti_conn *conn)
{
	end_of(conn)->room++;
}

static void on_down(struct oti_conn *conn, enum oti_down how)
{
	end_of(conn)->down++;
}

static const struct oti_upcalls upcalls = { .accepted = on_accepted,
					    .failed = on_failed,
					    .up = on_up,
					    .received = on_received,
					    .room = on_room,
					    .down = on_down };

static void on_request(struct oti_listener *l, struct oti_request *req, void *user)
{
	request = req;
}

/* --- both sides */

static void poll_both(void)
{
	for (int i = 0; i < 20; i++)
		oti[i % 2]->ops->poll(oti[i % 2], 16);
}

/* Blocks that this side may have under way on the connection's circuit, all in all. */
static void limit(int side, uint32_t circuit, uint32_t blocks)
{
	trunk_set_limit(to_local(oti[side])->trunk, circuit, blocks);
}

static struct oti_conn_attr attr_of(int side, const char *text)
{
	return (struct oti_conn_attr) { .upcalls = &upcalls,
					.user = &end[side],
					.private_data = text,
					.private_len = strlen(text),
					.bufs = 4,
					.buf_size = 64 };
}

static int set_up(void **st)
{
	const struct oti_local_geometry geo = { .slots = 4, .bufs = 6, .buf_size = 64 };
	struct oti_addr at = { .len = sizeof(struct sockaddr_in) };
	struct oti_conn_attr attr = attr_of(0, "ask");
	struct oti_endpoint to;
	int fd = oti_local_region(&geo);

	memset(end, 0, sizeof(end));
	request = NULL;
	assert_true(fd >= 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(oti_local_open(fd, i, &oti[i]), 0);
	close(fd);
	((struct sockaddr_in *)&at.sa)->sin_family = AF_INET;
	((struct sockaddr_in *)&at.sa)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(oti[1]->ops->listen(oti[1], &at, 4, on_request, NULL, &listener), 0);
	assert_int_equal(oti[0]->ops->resolve(oti[0], &listener->local, &to), 0);
	assert_int_equal(oti[0]->ops->connect(oti[0], &to, &attr, &end[0].conn), 0);
	poll_both();
	assert_non_null(request);
	return 0;
}

static int tear_down(void **st)
{
	for (int i = 0; i < 2; i++)
		if (end[i].conn)
			end[i].conn->ops->release(end[i].conn);
	poll_both();
	assert_int_equal(listener->ops->unlisten(listener), 0);
	for (int i = 0; i < 2; i++)
		assert_int_equal(oti[i]->ops->close(oti[i]), 0);
	return 0;
}

static void accept_it(void)
{
	struct oti_conn_attr attr = attr_of(1, "yes");

	assert_int_equal(request->ops->accept(request, &attr, &end[1].conn), 0);
	poll_both();
}

static void send_from(int side)
{
	struct oti_conn *conn = end[side].conn;
	struct iovec iov = { (void *)(uintptr_t) "x", 1 };
	struct oti_buf *buf = conn->ops->buf_get(conn);

	assert_non_null(buf);
	assert_int_equal(conn->ops->send(conn, buf, &iov, 1, 0), 0);
}

static void both_can_talk(void)
{
	assert_int_equal(end[0].up + end[1].up, 2);
	for (int i = 0; i < 20; i++) {
		send_from(i % 2);
		poll_both();
	}
	assert_int_equal(end[0].received, 10);
	assert_int_equal(end[1].received, 10);
	assert_int_equal(end[0].down + end[1].down + end[0].failed, 0);
}

/* --- the tests */

static uint32_t circuit_of(int side)
{
	return to_conn(end[side].conn)->circuit;
}

static void answer_without_credit_comes_later(void **st)
{
	uint32_t c = circuit_of(0);

	limit(1, c, 0);
	accept_it();
	assert_int_equal(end[0].accepted, 0);
	assert_null(end[1].conn->ops->buf_get(end[1].conn));
	limit(1, c, UINT32_MAX);
	poll_both();
	assert_int_equal(end[0].accepted, 1);
	assert_string_equal(end[0].text, "yes");
	assert_int_equal(end[0].conn->ops->confirm(end[0].conn), 0);
	poll_both();
	assert_int_equal(end[1].room, 1);
	both_can_talk();
}

static void confirmation_without_credit_comes_later(void **st)
{
	accept_it();
	assert_int_equal(end[0].accepted, 1);
	limit(0, circuit_of(0), 0);
	assert_int_equal(end[0].conn->ops->confirm(end[0].conn), 0);
	poll_both();
	assert_int_equal(end[0].up + end[1].up, 0);
	/* Not even if there is credit meanwhile. */
	to_conn(end[0].conn)->settled = true;
	to_local(oti[0])->trunk->circuit[circuit_of(0)].limit = UINT32_MAX;
	assert_null(end[0].conn->ops->buf_get(end[0].conn));
	limit(0, circuit_of(0), UINT32_MAX);
	poll_both();
	both_can_talk();
}

static void end_is_told_while_an_answer_waits(void **st)
{
	limit(1, circuit_of(0), 0);
	accept_it();
	end[0].conn->ops->release(end[0].conn);
	end[0].conn = NULL;
	poll_both();
	assert_int_equal(end[1].up, 0);
	assert_int_equal(end[1].down, 1);
}

static void end_is_told_while_a_confirmation_waits(void **st)
{
	accept_it();
	limit(0, circuit_of(0), 0);
	assert_int_equal(end[0].conn->ops->confirm(end[0].conn), 0);
	end[1].conn->ops->release(end[1].conn);
	end[1].conn = NULL;
	poll_both();
	assert_int_equal(end[0].up, 0);
	assert_int_equal(end[0].down, 1);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(answer_without_credit_comes_later),
		T(confirmation_without_credit_comes_later),
		T(end_is_told_while_an_answer_waits),
		T(end_is_told_while_a_confirmation_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
