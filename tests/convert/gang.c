/* SPDX-License-Identifier: MIT */
/*
 * Many connections are switched in one call (CH-15): all of them move data afterwards, and entries
 * that cannot be switched, or whose peer is gone, do no harm to the others (CH-14).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "sanitized.h"

#define MANY    (SANITIZED ? 200 : 500)
#define SLOT    2000
#define WAIT_MS 20000

enum { SWITCH_ID = 1, RECV_ID, SEND_ID };

/* One end of each connection. */
struct crowd {
	struct flue_adapter *adapter;
	size_t n;
	struct flue_socket **sockets;
	struct flue_gang *gang;
	struct flue_switch_attr attr;
	uint8_t (*in)[SLOT], (*out)[SLOT];
};

static void make_room(size_t descriptors)
{
	struct rlimit limit;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (limit.rlim_cur >= descriptors)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < descriptors) {
		print_message("# not enough descriptors\n");
		skip();
	}
}

static void stream_pair(int *fds)
{
	static int listener = -1;
	static struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);

	if (listener < 0) {
		listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
		assert_int_equal(listen(listener, 8), 0);
		assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	}
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(fds[0], (struct sockaddr *)&at, sizeof(at)), 0);
	fds[1] = accept(listener, NULL, NULL);
	assert_true(fds[1] >= 0);
}

static void open_crowd(struct crowd *c, size_t n, uint32_t flags)
{
	c->adapter = flue_open(NULL);
	assert_non_null(c->adapter);
	c->n = n;
	c->sockets = calloc(n, sizeof(struct flue_socket *));
	c->gang = calloc(n, sizeof(*c->gang));
	c->in = calloc(n, sizeof(*c->in));
	c->out = calloc(n, sizeof(*c->out));
	c->attr = FLUE_ATTR(struct flue_switch_attr);
	c->attr.flags = flags;
	c->attr.timeout_ms = WAIT_MS;
}

static void add(struct crowd *c, size_t i, int fd)
{
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *s = flue_socket_open(c->adapter, fd, NULL);

	assert_non_null(s);
	want.sq_depth = want.rq_depth = 4;
	assert_true(s->ops->reserve(s, &want));
	c->sockets[i] = s;
	c->gang[i] = (struct flue_gang) { .socket = s,
					  .attr = &c->attr,
					  .switch_id = SWITCH_ID,
					  .data = c->in[i],
					  .length = SLOT,
					  .recv_id = RECV_ID,
					  .error = -1 };
}

static void open_both(struct crowd *c, size_t n, uint32_t flags)
{
	int fds[2];

	make_room(2 * n + 100);
	open_crowd(&c[0], n, flags);
	open_crowd(&c[1], n, flags | FLUE_SWITCH_RESPONDER);
	for (size_t i = 0; i < n; i++) {
		stream_pair(fds);
		add(&c[0], i, fds[0]);
		add(&c[1], i, fds[1]);
	}
}

static void close_crowd(struct crowd *c)
{
	for (size_t i = 0; i < c->n; i++) {
		int fd = c->sockets[i]->state == FLUE_SOCKET_STREAMING ? c->sockets[i]->fd : -1;

		assert_true(c->sockets[i]->ops->destroy(c->sockets[i]));
		if (fd >= 0)
			close(fd);
	}
	assert_true(flue_close(c->adapter));
	free(c->sockets);
	free(c->gang);
	free(c->in);
	free(c->out);
}

static int next(struct crowd *c, size_t i, uint32_t type, uint64_t id)
{
	struct flue_socket_event ev;

	assert_true(flue_socket_get_event(c->sockets[i], &ev, WAIT_MS));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.id, id);
	return ev.error;
}

static uint32_t pattern(int side, size_t i)
{
	return (uint32_t)(i * 2 + (size_t)side);
}

static void send_one(struct crowd *c, int side, size_t i)
{
	struct flue_socket *s = c[side].sockets[i];

	pair_fill(c[side].out[i], SLOT, pattern(side, i));
	assert_true(s->ops->rdma_send(s, c[side].out[i], SLOT, 0, 0, SEND_ID));
}

static void check_one(struct crowd *c, int side, size_t i)
{
	assert_int_equal(next(&c[side], i, FLUE_SOCKET_RDMA_RECEIVED, RECV_ID), 0);
	assert_int_equal(pair_check(c[side].in[i], SLOT, pattern(!side, i)), SLOT);
}

/* Everybody says something, everybody hears it. */
static void talk(struct crowd *c, size_t from)
{
	/* The initiators first: the responders' sends would wait for them anyway. */
	for (int side = 0; side < 2; side++) {
		for (size_t i = from; i < c->n; i++)
			send_one(c, side, i);
		for (size_t i = from; i < c->n; i++) {
			assert_int_equal(next(&c[side], i, FLUE_SOCKET_RDMA_SENT, SEND_ID), 0);
			check_one(c, !side, i);
		}
	}
}

static void close_in_order(struct crowd *c, size_t from)
{
	for (size_t i = from; i < c->n; i++)
		assert_true(c->sockets[i]->ops->disconnect(c->sockets[i], 0));
	for (size_t i = from; i < c->n; i++) {
		next(&c[0], i, FLUE_SOCKET_ENDED, 0);
		next(&c[1], i, FLUE_SOCKET_ENDED, 0);
	}
}

static void switch_both(struct crowd *c)
{
	uint64_t start = pair_now_ms();

	assert_int_equal(flue_socket_switch_gang(c[0].gang, c->n), c->n);
	assert_true(pair_now_ms() - start < 5000); /* it does not wait for anybody */
	assert_int_equal(flue_socket_switch_gang(c[1].gang, c->n), c->n);
	for (size_t i = 0; i < c->n; i++) {
		assert_int_equal(c[0].gang[i].error, 0);
		assert_int_equal(next(&c[0], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
		assert_int_equal(next(&c[1], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
		assert_int_equal(flue_socket_state(c[0].sockets[i]), FLUE_SOCKET_RDMA);
	}
}

static void whole_gang_switches(uint32_t flags)
{
	struct crowd c[2];

	open_both(c, (size_t)MANY, flags);
	switch_both(c);
	talk(c, 0);
	close_in_order(c, 0);
	close_crowd(&c[0]);
	close_crowd(&c[1]);
}

static void gang_of_many_switches_in_one_call(void **state)
{
	whole_gang_switches(0);
}

static void gang_of_many_switches_without_request_and_reply(void **state)
{
	whole_gang_switches(FLUE_SWITCH_NO_REQ_REP);
}

/* ---- black sheep ---- */

#define SHEEP 12 /* 0 to 3: not reserved, 4 to 7: attributes, 8 to 11: the peer is gone */
#define ALL   60

static void spoil(struct crowd *c, struct flue_switch_attr *bad)
{
	*bad = c->attr;
	bad->early_len = FLUE_SWITCH_EARLY_MAX + 1;
	for (size_t i = 0; i < 4; i++) {
		struct flue_socket *s = c->sockets[i];
		int fd = s->fd;

		assert_true(s->ops->destroy(s));
		s = flue_socket_open(c->adapter, fd, NULL);
		assert_non_null(s);
		c->sockets[i] = c->gang[i].socket = s;
	}
	for (size_t i = 4; i < 8; i++)
		c->gang[i].attr = bad;
}

static void lose(struct crowd *peer, size_t i, bool reset)
{
	struct linger now = { .l_onoff = 1 };
	int fd = peer->sockets[i]->fd;

	assert_true(peer->sockets[i]->ops->destroy(peer->sockets[i]));
	if (reset)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd);
}

/* Its switch fails, what was posted comes back, and that is the end. */
static void check_lost(struct crowd *c, size_t i)
{
	assert_int_not_equal(next(c, i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
	assert_int_equal(next(c, i, FLUE_SOCKET_RDMA_RECEIVED, RECV_ID), ECANCELED);
	next(c, i, FLUE_SOCKET_ENDED, 0);
}

static void check_refused(struct crowd *c)
{
	struct flue_socket_event ev;

	for (size_t i = 0; i < 8; i++) {
		struct flue_socket *s = c->sockets[i];

		assert_int_equal(c->gang[i].error, i < 4 ? EBADFD : EINVAL);
		assert_int_equal(flue_socket_state(s), FLUE_SOCKET_STREAMING);
		assert_false(flue_socket_get_event(s, &ev, 0));
	}
}

static void some_of_a_gang_fail_and_the_others_are_unharmed(void **state)
{
	struct flue_switch_attr bad;
	struct crowd c[2];

	open_both(c, ALL, 0);
	spoil(&c[0], &bad);
	for (size_t i = 8; i < SHEEP; i++)
		lose(&c[1], i, i % 2);
	assert_int_equal(flue_socket_switch_gang(c[0].gang, ALL), ALL - 8);
	check_refused(&c[0]);
	assert_int_equal(flue_socket_switch_gang(c[1].gang + SHEEP, ALL - SHEEP), ALL - SHEEP);
	for (size_t i = 8; i < SHEEP; i++)
		check_lost(&c[0], i);
	for (size_t i = SHEEP; i < ALL; i++) {
		assert_int_equal(next(&c[0], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
		assert_int_equal(next(&c[1], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
	}
	talk(c, SHEEP);
	close_in_order(c, SHEEP);
	/* Those that were not begun stream on, and can be switched later. */
	for (size_t i = 4; i < 8; i++)
		c[0].gang[i].attr = &c[0].attr;
	assert_int_equal(flue_socket_switch_gang(c[0].gang + 4, 4), 4);
	assert_int_equal(flue_socket_switch_gang(c[1].gang + 4, 4), 4);
	for (size_t i = 4; i < 8; i++) {
		assert_int_equal(next(&c[0], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
		assert_int_equal(next(&c[1], i, FLUE_SOCKET_SWITCHED, SWITCH_ID), 0);
	}
	close_crowd(&c[0]);
	/* The lost ones are destroyed already. */
	memmove(c[1].sockets + 8, c[1].sockets + SHEEP, (ALL - SHEEP) * sizeof(c[1].sockets[0]));
	c[1].n -= SHEEP - 8;
	close_crowd(&c[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(gang_of_many_switches_in_one_call),
		cmocka_unit_test(gang_of_many_switches_without_request_and_reply),
		cmocka_unit_test(some_of_a_gang_fail_and_the_others_are_unharmed),
	};

	alarm(150);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
