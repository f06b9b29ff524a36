/* SPDX-License-Identifier: MIT */
/*
 * Conversions that cannot succeed, one cause at a time (RD-9, CH-14, CH-25): the peer is silent, talks
 * nonsense, or is gone. In both forms the failure is told once, in time, and the descriptor is closed
 * exactly when the manual says so.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define SHORT_MS 300
#define WAIT_MS  8000

struct fixture {
	struct pair_side side;
	struct flue_qp *qp;
	struct flue_socket *socket;
	int fd, peer;
	struct flue_switch_attr attr;
	uint8_t in[100];
};

static void stream_pair(int *a, int *b)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	*a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(*a, (struct sockaddr *)&at, len), 0);
	*b = accept(listener, NULL, NULL);
	assert_true(*b >= 0);
	close(listener);
}

static void set_up(struct fixture *f, uint32_t flags)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	memset(f, 0, sizeof(*f));
	assert_true(pair_side_open(&f->side, &o, 0));
	stream_pair(&f->fd, &f->peer);
	f->attr = FLUE_ATTR(struct flue_switch_attr);
	f->attr.flags = flags;
	f->attr.timeout_ms = SHORT_MS;
	attr.send_cq = f->side.send_cq;
	attr.recv_cq = f->side.recv_cq;
	attr.sq_depth = attr.rq_depth = 4;
	f->qp = f->side.pd->ops->create_qp(f->side.pd, &attr);
	f->socket = flue_socket_open(f->side.adapter, f->fd, NULL);
	assert_true(f->qp && f->socket);
	assert_true(f->socket->ops->reserve(f->socket, &want));
}

static void tear_down(struct fixture *f)
{
	struct flue_event ev;

	assert_true(f->socket->ops->destroy(f->socket));
	/* A conversion that failed raises no event. */
	assert_false(flue_get_event(f->side.adapter, &ev, 0));
	assert_true(flue_destroy_qp(f->qp));
	assert_int_equal(fcntl(f->fd, F_GETFD), -1);
	close(f->peer);
	assert_true(pair_side_close(&f->side));
}

/* The plain form. */
static void convert_fails(struct fixture *f, int err)
{
	uint64_t start = pair_now_ms();

	assert_false(flue_socket_convert(f->qp, f->fd, &f->attr));
	assert_int_equal(errno, err);
	assert_true(pair_now_ms() - start < SHORT_MS + 2000);
	assert_int_equal(flue_qp_state(f->qp), FLUE_QP_IDLE);
	tear_down(f);
}

/* The object: SWITCHED with the error, the receive comes back, ENDED. */
static void switch_fails(struct fixture *f, int err)
{
	const struct flue_socket_ops *ops = f->socket->ops;
	struct flue_socket_event ev;

	assert_true(ops->switch_mode(f->socket, &f->attr, 1));
	assert_true(ops->rdma_recv(f->socket, f->in, sizeof(f->in), 2));
	assert_true(flue_socket_get_event(f->socket, &ev, WAIT_MS));
	assert_int_equal(ev.type, FLUE_SOCKET_SWITCHED);
	assert_int_equal(ev.error, err);
	assert_true(flue_socket_get_event(f->socket, &ev, WAIT_MS));
	assert_int_equal(ev.type, FLUE_SOCKET_RDMA_RECEIVED);
	assert_int_equal(ev.error, ECANCELED);
	assert_true(flue_socket_get_event(f->socket, &ev, WAIT_MS));
	assert_int_equal(ev.type, FLUE_SOCKET_ENDED);
	assert_false(flue_socket_get_event(f->socket, &ev, 0));
	tear_down(f);
}

static void responder_gives_up_on_a_silent_peer(void **state)
{
	struct fixture f;

	set_up(&f, FLUE_SWITCH_RESPONDER);
	convert_fails(&f, ETIMEDOUT);
	set_up(&f, FLUE_SWITCH_RESPONDER);
	switch_fails(&f, ETIMEDOUT);
}

static void initiator_gives_up_on_a_silent_peer(void **state)
{
	struct fixture f;

	set_up(&f, 0);
	convert_fails(&f, ETIMEDOUT);
	set_up(&f, 0);
	switch_fails(&f, ETIMEDOUT);
}

static void talk_nonsense(struct fixture *f, uint32_t flags)
{
	set_up(f, flags);
	assert_int_equal(send(f->peer, "GET / HTTP/1.0\r\n\r\n\r\n\r\n", 22, MSG_NOSIGNAL), 22);
}

static void peer_that_talks_nonsense_fails_the_conversion(void **state)
{
	struct fixture f;

	for (uint32_t flags = 0; flags <= FLUE_SWITCH_RESPONDER; flags++) {
		talk_nonsense(&f, flags);
		convert_fails(&f, EPROTO);
		talk_nonsense(&f, flags);
		switch_fails(&f, EPROTO);
	}
}

static void go_away(struct fixture *f, uint32_t flags)
{
	set_up(f, flags);
	shutdown(f->peer, SHUT_WR);
}

static void peer_that_closes_fails_the_conversion(void **state)
{
	struct fixture f;

	for (uint32_t flags = 0; flags <= FLUE_SWITCH_RESPONDER; flags++) {
		go_away(&f, flags);
		convert_fails(&f, ECONNRESET);
		go_away(&f, flags);
		switch_fails(&f, ECONNRESET);
	}
}

/* Our own half is closed already: the very first octet of the conversion cannot be sent. */
static void stream_that_cannot_be_written_fails_the_conversion(void **state)
{
	struct fixture f;

	set_up(&f, 0);
	shutdown(f.fd, SHUT_WR);
	convert_fails(&f, EPIPE);
	set_up(&f, 0);
	shutdown(f.fd, SHUT_WR);
	switch_fails(&f, EPIPE);
}

/* The errors that leave the descriptor to the program are not used for anything else. */
static void failure_after_the_begin_is_never_called_nothing_happened(void **state)
{
	static const char private_data[512];
	/* An MPA request of revision 2, enhanced, without private data of its own. */
	static const uint8_t request[24] = { 'M',  'P', 'A', ' ', 'I', 'D', ' ', 'R',
					     'e',  'q', ' ', 'F', 'r', 'a', 'm', 'e',
					     0x50, 2,   0,   4,   0,   1,   0,   1 };
	struct fixture f;

	set_up(&f, FLUE_SWITCH_RESPONDER);
	f.attr.conn_flags = FLUE_CONN_REV1; /* so 512 octets could be right */
	f.attr.private_data = private_data;
	f.attr.private_len = sizeof(private_data);
	assert_int_equal(send(f.peer, request, sizeof(request), 0), sizeof(request));
	assert_false(flue_socket_convert(f.qp, f.fd, &f.attr));
	assert_int_not_equal(errno, EINVAL);
	/* A peer that was refused may read that and close first. */
	shutdown(f.peer, SHUT_WR);
	for (int i = 0; i < WAIT_MS && fcntl(f.fd, F_GETFD) >= 0; i++)
		usleep(1000);
	tear_down(&f);
}

static void events_that_nobody_took_are_destroyed_with_the_socket(void **state)
{
	struct fixture f;

	go_away(&f, FLUE_SWITCH_RESPONDER);
	assert_true(f.socket->ops->switch_mode(f.socket, &f.attr, 1));
	assert_true(f.socket->ops->rdma_recv(f.socket, f.in, sizeof(f.in), 2));
	usleep(50000);
	tear_down(&f);
}

static void attempts_that_are_refused_leave_the_descriptor_alone(void **state)
{
	struct fixture f;
	char byte = 0;

	set_up(&f, 0);
	f.attr.flags = 1u << 20;
	assert_false(flue_socket_convert(f.qp, f.fd, &f.attr));
	assert_int_equal(errno, EINVAL);
	f.attr.flags = 0;
	f.attr.early_len = 1;
	assert_false(flue_socket_convert(f.qp, f.fd, &f.attr));
	assert_int_equal(errno, EINVAL);
	assert_false(flue_socket_convert(f.qp, 0x7fff, &f.attr));
	f.attr.early_len = 0;
	assert_false(flue_socket_convert(f.qp, 0x7fff, &f.attr));
	assert_int_equal(errno, EBADF);
	/* It still streams. */
	assert_int_equal(send(f.peer, "x", 1, MSG_NOSIGNAL), 1);
	assert_int_equal(recv(f.fd, &byte, 1, 0), 1);
	assert_int_equal(byte, 'x');
	close(f.fd);
	tear_down(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(responder_gives_up_on_a_silent_peer),
		cmocka_unit_test(initiator_gives_up_on_a_silent_peer),
		cmocka_unit_test(peer_that_talks_nonsense_fails_the_conversion),
		cmocka_unit_test(peer_that_closes_fails_the_conversion),
		cmocka_unit_test(stream_that_cannot_be_written_fails_the_conversion),
		cmocka_unit_test(failure_after_the_begin_is_never_called_nothing_happened),
		cmocka_unit_test(events_that_nobody_took_are_destroyed_with_the_socket),
		cmocka_unit_test(attempts_that_are_refused_leave_the_descriptor_alone),
	};

	alarm(150);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
