/* SPDX-License-Identifier: MIT */
/* RDMA sockets: the calls of each state, streaming, the switch, events (CH-9 to CH-14, CH-25). */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"
#include "base/clock.h"

static struct flue_adapter *a;
static struct flue_socket *s;
static int fd[2]; /* ours, the peer's */

static int open_socket(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	fake_streams(fd);
	s = flue_socket_open(a, fd[0], NULL);
	return !s;
}

static void drop_socket(void)
{
	int own = s->fd;
	bool ours = s->state == FLUE_SOCKET_STREAMING;

	assert_true(s->ops->destroy(s));
	if (ours)
		close(own);
	close(fd[1]);
}

static int close_socket(void **state)
{
	if (s)
		drop_socket();
	return !flue_close(a) || fake.qps || fake.cqs || fake.mrs || fake.pds;
}

/* Another one on the same adapter. */
static void renew(const struct flue_socket_attr *attr)
{
	drop_socket();
	fake_streams(fd);
	s = flue_socket_open(a, fd[0], attr);
	assert_non_null(s);
}

static void expect(uint32_t type, uint64_t id, int error, struct flue_socket_event *out)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 5000))
		fail_msg("no event, want %u: %s", type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	assert_ptr_equal(ev.socket, s);
	if (type != FLUE_SOCKET_ENDED)
		assert_int_equal(ev.id, id);
	if (out)
		*out = ev;
}

static void expect_end(uint32_t reason, uint32_t detail)
{
	struct flue_socket_event ev;

	expect(FLUE_SOCKET_ENDED, 0, 0, &ev);
	assert_int_equal(ev.reason, reason);
	assert_int_equal(ev.detail, detail);
	assert_fails(flue_socket_get_event(s, &ev, 20), ETIMEDOUT);
}

static void expect_none(void)
{
	struct flue_socket_event ev;

	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
}

static struct prov_qp *prov(void)
{
	return to_qp(s->qp)->prov;
}

/* ---- every call in every state (CH-9, CH-10) ---- */

static char octets[4096];
static struct flue_mr *stag;

/* 0 or errno. */
static int try_call(unsigned call)
{
	struct flue_reserve_attr reserve = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	struct flue_offload_info info = FLUE_ATTR(struct flue_offload_info);
	struct flue_mr *mr;
	bool ok = false;

	errno = 0;
	switch (call) {
	case SOCKET_CALL_SEND: ok = s->ops->send(s, "x", 1, 50); break;
	case SOCKET_CALL_RECV: ok = s->ops->recv(s, octets, 1, 51); break;
	case SOCKET_CALL_RESERVE: ok = s->ops->reserve(s, &reserve); break;
	case SOCKET_CALL_READ_RESOURCES: ok = s->ops->read_resources(s, 7, 9); break;
	case SOCKET_CALL_SWITCH_MODE: ok = s->ops->switch_mode(s, &to, 52); break;
	case SOCKET_CALL_RDMA_RECV: ok = s->ops->rdma_recv(s, octets, 100, 53); break;
	case SOCKET_CALL_RDMA_SEND: ok = s->ops->rdma_send(s, octets, 100, 0, 0, 54); break;
	case SOCKET_CALL_PUT: ok = s->ops->put(s, octets, 100, 0, 1, 0, 55); break;
	case SOCKET_CALL_GET: ok = s->ops->get(s, octets, 100, 0, 1, 0, 56); break;
	case SOCKET_CALL_ALLOC_STAG:
		mr = s->ops->alloc_stag(s);
		ok = mr;
		break;
	case SOCKET_CALL_MAP: ok = s->ops->map(s, stag, octets, 10, FLUE_REMOTE_READ); break;
	case SOCKET_CALL_FREE_STAG: ok = s->ops->free_stag(s, stag); break;
	case SOCKET_CALL_DISCONNECT: ok = s->ops->disconnect(s, 0); break;
	case SOCKET_CALL_QUERY_OFFLOAD: ok = s->ops->query_offload(s, &info); break;
	case SOCKET_CALL_END_OFFLOAD: ok = s->ops->end_offload(s, true); break;
	default: fail_msg("no such call");
	}
	return ok ? 0 : errno;
}

/* What a refused call must leave alone. */
struct snapshot {
	struct flue_socket pub;
	uint32_t n_streaming, n_events, n_posted, sends, recvs, want_ird, want_ord;
	unsigned made[4], modifies, resizes, adopts, aborts;
	int flags, disconnect_ms;
	uint32_t order;
	uint32_t rkey;
};

static void look(struct snapshot *snap)
{
	struct acc_socket *own = to_socket(s);
	struct sock_req *r;

	memset(snap, 0, sizeof(*snap));
	pthread_mutex_lock(&own->lock);
	snap->pub = *s;
	snap->n_streaming = own->n_streaming;
	TAILQ_FOREACH(r, &own->events, link)
		snap->n_events++;
	TAILQ_FOREACH(r, &own->posted, link)
		snap->n_posted++;
	snap->want_ird = own->want_ird;
	snap->want_ord = own->want_ord;
	pthread_mutex_unlock(&own->lock);
	if (s->qp) {
		snap->sends = prov()->n_sends;
		snap->recvs = prov()->n_recvs;
		snap->disconnect_ms = prov()->disconnect_ms;
	}
	snap->made[0] = fake.made_pds;
	snap->made[1] = fake.made_cqs;
	snap->made[2] = fake.made_qps;
	snap->made[3] = fake.made_mrs;
	snap->modifies = fake.modifies;
	snap->resizes = fake.resizes;
	snap->adopts = fake.adopts;
	snap->aborts = fake.aborts;
	snap->order = fake.n_order;
	snap->flags = s->fd < 0 ? 0 : fcntl(s->fd, F_GETFL);
	snap->rkey = stag->rkey;
}

/* As the source lists them; socket_fsm_test.c has the words. */
static const char *const allowed[SOCKET_NCALLS] = {
	/* Not ready, reserving, ready | waiting, in progress | offloaded */
	[SOCKET_CALL_SEND] = "yyyynn",        [SOCKET_CALL_RECV] = "yyynnn",
	[SOCKET_CALL_RESERVE] = "ynynnn",     [SOCKET_CALL_READ_RESOURCES] = "yyyyyy",
	[SOCKET_CALL_SWITCH_MODE] = "nnynnn", [SOCKET_CALL_RDMA_RECV] = "nnnyyy",
	[SOCKET_CALL_RDMA_SEND] = "nnnnny",   [SOCKET_CALL_PUT] = "nnnnny",
	[SOCKET_CALL_GET] = "nnnnny",         [SOCKET_CALL_ALLOC_STAG] = "yyyyyy",
	[SOCKET_CALL_MAP] = "yyyyyy",         [SOCKET_CALL_FREE_STAG] = "yyyyyy",
	[SOCKET_CALL_DISCONNECT] = "yyynny",  [SOCKET_CALL_QUERY_OFFLOAD] = "nnyyyy",
	[SOCKET_CALL_END_OFFLOAD] = "nnnyyy",
};

static unsigned trying;

/* In the state, whatever it is: one call, and those that are always allowed. */
static void probe(void)
{
	uint32_t in = s->offload_state;
	struct snapshot before, after;
	struct flue_socket_event ev;
	int error;

	fake.on_new_qp = NULL;
	look(&before);
	error = try_call(trying);
	if (allowed[trying][in] == 'y') {
		/* Not even that is a simple client's. */
		if (error != (trying < SOCKET_CALL_QUERY_OFFLOAD ? 0 : EOPNOTSUPP))
			fail_msg("%s in %s: %s", socket_call_name(trying),
				 flue_offload_state_name(in), strerror(error));
	} else {
		if (error != EBADFD)
			fail_msg("%s in %s: %s, want EBADFD", socket_call_name(trying),
				 flue_offload_state_name(in), strerror(error));
		look(&after);
		assert_memory_equal(&before, &after, sizeof(before));
	}
	assert_true(s->ops->event_fd(s) >= 0);
	if (!flue_socket_get_event(s, &ev, 0))
		assert_int_equal(errno, EAGAIN);
}

static void every_call_is_taken_or_refused_as_its_state_demands(void **state)
{
	for (trying = 0; trying < SOCKET_NCALLS; trying++) {
		for (uint32_t in = 0; in < FLUE_OFFLOAD_NSTATES; in++) {
			renew(NULL);
			stag = s->ops->alloc_stag(s);
			assert_non_null(stag);
			if (in == FLUE_OFFLOAD_RESERVING)
				fake.on_new_qp = probe;
			assert_true(fake_socket_to(s, in));
			if (in == FLUE_OFFLOAD_RESERVING)
				continue;
			assert_int_equal(s->offload_state, in);
			assert_int_equal(flue_socket_state(s),
					 in < FLUE_OFFLOAD_WAIT_FIRST_RECV ? FLUE_SOCKET_STREAMING
					 : in < FLUE_OFFLOAD_DONE          ? FLUE_SOCKET_TRANSITION
									   : FLUE_SOCKET_RDMA);
			probe();
		}
	}
}

static void expect_no_call_is_taken(void)
{
	for (unsigned call = 0; call < SOCKET_NCALLS; call++)
		if (call != SOCKET_CALL_FREE_STAG)
			assert_int_equal(try_call(call), ENOTCONN);
}

/* Nothing but destroy() and giving back a key is possible after the end (CH-14). */
static void no_call_is_taken_after_the_end(void **state)
{
	stag = s->ops->alloc_stag(s);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, ECONNRESET);
	expect_no_call_is_taken(); /* its event waits for the receive, still */
	fake_flush(prov());
	expect_no_call_is_taken();
	assert_true(s->ops->free_stag(s, stag));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_RESET, ECONNRESET);
	assert_int_equal(flue_socket_state(s), FLUE_SOCKET_RDMA);
}

/* ---- opening ---- */

static void open_refuses_what_it_cannot_convert(void **state)
{
	struct flue_socket_attr attr = FLUE_ATTR(struct flue_socket_attr);
	int idle = socket(AF_INET, SOCK_STREAM, 0), udp = socket(AF_INET, SOCK_DGRAM, 0);
	int pair[2];

	assert_int_equal(pipe(pair), 0);
	assert_fails(flue_socket_open(a, -1, NULL), EBADF);
	assert_fails(flue_socket_open(a, pair[0], NULL), ENOTSOCK);
	assert_fails(flue_socket_open(a, udp, NULL), EPROTOTYPE);
	assert_fails(flue_socket_open(a, idle, NULL), ENOTCONN);
	attr.size = 4;
	assert_fails(flue_socket_open(a, fd[0], &attr), EINVAL);
	assert_fails(flue_close(a), EBUSY);
	close(pair[0]);
	close(pair[1]);
	close(idle);
	close(udp);
}

static void descriptor_is_left_as_it_was_in_streaming_mode(void **state)
{
	int flags = fcntl(fd[0], F_GETFL), fd_flags = fcntl(fd[0], F_GETFD);
	char c;

	assert_true(s->ops->recv(s, octets, 10, 1));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_int_equal(s->fd, fd[0]);
	assert_true(s->ops->destroy(s));
	s = NULL;
	assert_int_equal(fcntl(fd[0], F_GETFL), flags);
	assert_int_equal(fcntl(fd[0], F_GETFD), fd_flags);
	assert_int_equal(write(fd[1], "y", 1), 1);
	assert_int_equal(read(fd[0], &c, 1), 1);
	assert_int_equal(c, 'y');
	close(fd[0]);
	close(fd[1]);
}

/* ---- streaming mode ---- */

static void streaming_requests_move_octets_in_order(void **state)
{
	struct flue_socket_event ev;
	char in[16];

	assert_true(s->ops->recv(s, in, 4, 1));
	assert_true(s->ops->recv(s, in + 4, 12, 2));
	expect_none();
	assert_int_equal(write(fd[1], "abcdef", 6), 6);
	expect(FLUE_SOCKET_RECEIVED, 1, 0, &ev);
	assert_int_equal(ev.length, 4);
	expect(FLUE_SOCKET_RECEIVED, 2, 0, &ev);
	assert_int_equal(ev.length, 2);
	assert_memory_equal(in, "abcdef", 6);
	assert_true(s->ops->send(s, "12", 2, 3));
	assert_true(s->ops->send(s, "345", 3, 4));
	expect(FLUE_SOCKET_SENT, 3, 0, &ev);
	assert_int_equal(ev.length, 2);
	expect(FLUE_SOCKET_SENT, 4, 0, NULL);
	assert_int_equal(recv(fd[1], in, 5, MSG_WAITALL), 5);
	assert_memory_equal(in, "12345", 5);
	assert_fails(s->ops->send(s, NULL, 1, 5), EINVAL);
	assert_fails(s->ops->recv(s, in, 0, 5), EINVAL);
	/* The end of the stream, for each. */
	assert_true(s->ops->recv(s, in, 4, 6));
	assert_true(s->ops->recv(s, in, 4, 7));
	shutdown(fd[1], SHUT_WR);
	expect(FLUE_SOCKET_RECEIVED, 6, 0, &ev);
	assert_int_equal(ev.length, 0);
	expect(FLUE_SOCKET_RECEIVED, 7, 0, &ev);
	assert_int_equal(ev.length, 0);
	expect_none();
}

static void streaming_requests_are_limited_until_their_events_are_taken(void **state)
{
	struct flue_socket_event ev;

	for (unsigned i = 0; i < SOCKET_STREAM_MAX; i++)
		assert_true(s->ops->send(s, "x", 1, i));
	assert_fails(s->ops->send(s, "x", 1, 99), ENOMEM);
	assert_fails(s->ops->recv(s, octets, 1, 99), ENOMEM);
	expect(FLUE_SOCKET_SENT, 0, 0, &ev);
	assert_true(s->ops->recv(s, octets, 1, 99));
	assert_fails(s->ops->recv(s, octets, 1, 99), ENOMEM);
}

static char much[256 << 10];

static void small_buffers(void)
{
	int small = 16384;

	assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	assert_int_equal(setsockopt(fd[1], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
}

static void read_all(size_t n)
{
	static char sink[65536];

	while (n) {
		ssize_t got = read(fd[1], sink, n < sizeof(sink) ? n : sizeof(sink));

		assert_true(got > 0);
		n -= (size_t)got;
	}
}

static void long_send_goes_on_while_the_peer_reads(void **state)
{
	struct flue_socket_event ev;

	small_buffers();
	assert_true(s->ops->send(s, much, sizeof(much), 1));
	assert_true(s->ops->send(s, "end", 3, 2));
	expect_none();
	/* Its half cannot be closed in the middle of it. */
	assert_fails(s->ops->disconnect(s, 0), EBUSY);
	read_all(sizeof(much) + 3);
	expect(FLUE_SOCKET_SENT, 1, 0, &ev);
	assert_int_equal(ev.length, sizeof(much));
	expect(FLUE_SOCKET_SENT, 2, 0, NULL);
	assert_true(s->ops->disconnect(s, 0));
	assert_int_equal(read(fd[1], octets, 1), 0);
	assert_true(s->ops->send(s, "x", 1, 3));
	expect(FLUE_SOCKET_SENT, 3, EPIPE, NULL);
	assert_int_equal(flue_socket_state(s), FLUE_SOCKET_STREAMING);
}

static void reset_peer(void)
{
	struct linger now = { .l_onoff = 1 };

	setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	close(fd[1]);
	fd[1] = -1;
}

static void reset_of_the_peer_answers_streaming_requests(void **state)
{
	small_buffers();
	assert_true(s->ops->recv(s, octets, 10, 1));
	assert_true(s->ops->send(s, much, sizeof(much), 2));
	reset_peer();
	/* Whichever is tried first gets the cause; there is no order between the two. */
	for (unsigned i = 0; i < 2; i++) {
		struct flue_socket_event ev;

		assert_true(flue_socket_get_event(s, &ev, 5000));
		assert_true(ev.id == 1 ? ev.type == FLUE_SOCKET_RECEIVED
				       : ev.type == FLUE_SOCKET_SENT && ev.error != 0);
	}
	expect_none();
}

/* ---- the switch ---- */

static void receives_that_wait_get_nothing_at_the_switch(void **state)
{
	struct flue_socket_event ev;

	assert_true(s->ops->recv(s, octets, 10, 7));
	assert_true(s->ops->recv(s, octets, 10, 8));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	expect(FLUE_SOCKET_RECEIVED, 7, 0, &ev);
	assert_int_equal(ev.length, 0);
	expect(FLUE_SOCKET_RECEIVED, 8, 0, &ev);
	assert_int_equal(ev.length, 0);
	/* What the peer sends now is no streaming data. */
	assert_int_equal(write(fd[1], "rdma", 4), 4);
	usleep(20000);
	expect_none();
	assert_int_equal(recv(s->fd, octets, 10, MSG_DONTWAIT), 4);
}

static void last_streaming_send_may_come_after_the_switch_request(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->send(s, "last", 4, 3));
	expect(FLUE_SOCKET_SENT, 3, 0, NULL);
	assert_int_equal(recv(fd[1], octets, 4, MSG_WAITALL), 4);
	assert_int_equal(fake.adopts, 0);
	assert_true(s->ops->rdma_recv(s, octets, 10, 4));
	assert_fails(s->ops->send(s, "late", 4, 5), EBADFD);
	expect_none();
}

static void await_adoption(void)
{
	for (unsigned i = 0; i < 5000 && !atomic_load(&fake.adopts); i++)
		usleep(1000);
	assert_int_equal(atomic_load(&fake.adopts), 1);
}

static void switch_passes_on_what_was_asked_for(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	char private_data[] = "private", early[] = "early";

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	to.flags = FLUE_SWITCH_RESPONDER;
	to.conn_flags = FLUE_CONN_NO_CRC;
	to.timeout_ms = 5000;
	to.private_data = private_data;
	to.private_len = 7;
	to.early = early;
	to.early_len = 5;
	to.fpdu_max = 1000;
	assert_true(s->ops->switch_mode(s, &to, 1));
	/* Both were copied. */
	memset(private_data, 0, sizeof(private_data));
	memset(early, 0, sizeof(early));
	assert_true(s->ops->rdma_recv(s, octets, 10, 2));
	await_adoption();
	assert_int_equal(prov()->stream.fd, fd[0]);
	assert_false(prov()->stream.initiator);
	assert_false(prov()->stream.raw);
	assert_int_equal(prov()->stream.early_len, 5);
	assert_memory_equal(prov()->stream.early, "early", 5);
	assert_memory_equal(prov()->conn.private_data, "private", 7);
	assert_int_equal(prov()->conn.private_len, 7);
	assert_int_equal(prov()->conn.flags, FLUE_CONN_NO_CRC | FLUE_CONN_ASYNC);
	assert_int_equal(prov()->conn.fpdu_max, 1000);
	assert_true(prov()->conn.timeout_ms > 0 && prov()->conn.timeout_ms <= 5000);
	assert_int_equal(prov()->conn.ird, 16);
	assert_int_equal(s->fd, -1);
}

static void switch_refuses_impossible_attributes(void **state)
{
	struct flue_switch_attr good = FLUE_ATTR(struct flue_switch_attr), to;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
#define REFUSED(field, value) \
	to = good;            \
	to.field = value;     \
	assert_fails(s->ops->switch_mode(s, &to, 1), EINVAL)
	REFUSED(size, 8);
	REFUSED(flags, 4);
	REFUSED(conn_flags, FLUE_CONN_ASYNC);
	REFUSED(conn_flags, FLUE_CONN_DEFER);
	REFUSED(timeout_ms, -1);
	REFUSED(private_len, 1); /* and no data */
	REFUSED(early_len, 1);
	REFUSED(early_len, FLUE_SWITCH_EARLY_MAX + 1);
#undef REFUSED
	good.private_data = octets;
	good.private_len = FAKE_REQUEST + 1;
	assert_fails(s->ops->switch_mode(s, &good, 1), EINVAL);
	good.private_len = FAKE_REPLY + 1;
	good.flags = FLUE_SWITCH_RESPONDER;
	assert_fails(s->ops->switch_mode(s, &good, 1), EINVAL);
	good.private_len = 1;
	good.flags = FLUE_SWITCH_NO_REQ_REP;
	assert_fails(s->ops->switch_mode(s, &good, 1), EINVAL);
	assert_fails(s->ops->switch_mode(s, NULL, 1), EINVAL);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_READY);
	expect_none();
}

/* CH-11: neither the program nor other sockets wait meanwhile. */
static void transfer_waits_until_the_peer_has_everything(void **state)
{
	small_buffers();
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->send(s, much, sizeof(much), 3));
	assert_true(s->ops->rdma_recv(s, octets, 10, 4));
	usleep(50000);
	assert_int_equal(atomic_load(&fake.adopts), 0);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	read_all(sizeof(much));
	expect(FLUE_SOCKET_SENT, 3, 0, NULL);
	await_adoption();
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_int_equal(flue_socket_state(s), FLUE_SOCKET_RDMA);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_DONE);
}

/* CH-13 */
static void switched_comes_before_anything_of_rdma_mode(void **state)
{
	struct flue_socket_event ev;

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	assert_true(s->ops->rdma_recv(s, octets, 10, 3));
	/* The provider is faster with data than with its word. */
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 5);
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 6);
	expect_none();
	fake_news_with(s->qp, FLUE_EVENT_CONNECTED, 0, NULL, 0);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, 0, &ev);
	assert_int_equal(ev.length, 5);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 3, 0, &ev);
	assert_int_equal(ev.length, 6);
	expect_none();
	assert_int_equal(s->ird, 3);
	assert_int_equal(s->ord, 5);
}

static void socket_that_is_dropped_in_mid_switch_keeps_nothing(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 5); /* held */
	renew(NULL);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->destroy(s));
	s = NULL;
	/* It was reset, not closed. */
	assert_int_equal(read(fd[1], octets, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	close(fd[1]);
}

static void many_sockets_are_switched_in_one_call(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr), bad = to;
	struct flue_socket *others[3];
	struct flue_gang gang[4];
	int fds[3][2];

	bad.flags = 1u << 31;
	for (unsigned i = 0; i < 3; i++) {
		fake_streams(fds[i]);
		others[i] = flue_socket_open(a, fds[i][0], NULL);
		assert_true(fake_socket_to(others[i], FLUE_OFFLOAD_READY));
		gang[i] = (struct flue_gang) { .socket = others[i],
					       .attr = i == 1 ? &bad : &to,
					       .switch_id = 10 + i,
					       .data = octets,
					       .length = 10,
					       .recv_id = 20 + i,
					       .error = -1 };
	}
	gang[3] = (struct flue_gang) { .socket = s, .attr = &to }; /* nothing reserved */
	assert_int_equal(flue_socket_switch_gang(gang, 4), 2);
	assert_int_equal(gang[0].error, 0);
	assert_int_equal(gang[1].error, EINVAL);
	assert_int_equal(gang[2].error, 0);
	assert_int_equal(gang[3].error, EBADFD);
	assert_int_equal(others[0]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	assert_int_equal(others[1]->offload_state, FLUE_OFFLOAD_READY);
	assert_int_equal(others[2]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(others[i]->ops->destroy(others[i]));
		close(fds[i][1]);
	}
	close(fds[1][0]);
}

/* ---- a transfer that fails (CH-14) ---- */

static void expect_torn_down(int error)
{
	expect(FLUE_SOCKET_SWITCHED, 1, error, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_LOST, (uint32_t)error);
	assert_int_equal(flue_socket_state(s), FLUE_SOCKET_TRANSITION);
	assert_int_equal(s->fd, -1);
	assert_fails(s->ops->send(s, "x", 1, 1), ENOTCONN);
	assert_fails(s->ops->recv(s, octets, 1, 1), ENOTCONN);
}

static void transfer_that_the_provider_refuses_tears_down(void **state)
{
	fake.rc.adopt = -ENOMEM;
	fake.on_abort = fake_flush;
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	expect_torn_down(ENOMEM);
	assert_int_equal(fake.aborts, 1);
	assert_int_equal(fcntl(fd[0], F_GETFD), -1);
	assert_int_equal(read(fd[1], octets, 1), -1);
	assert_int_equal(errno, ECONNRESET);
}

static void transfer_that_fails_later_tears_down(void **state)
{
	fake.on_abort = fake_flush;
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	fake_news(s->qp, FLUE_EVENT_CONNECT_FAILED, 0, EPROTO);
	expect_torn_down(EPROTO);
}

static void transfer_that_drains_for_too_long_tears_down(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	uint64_t begun = clock_now();

	fake.on_abort = fake_flush;
	small_buffers();
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	to.timeout_ms = 100;
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_true(s->ops->send(s, much, sizeof(much), 3));
	assert_true(s->ops->rdma_recv(s, octets, 10, 2));
	expect(FLUE_SOCKET_SWITCHED, 1, ETIMEDOUT, NULL);
	assert_true(clock_now() - begun >= 90 * NSEC_PER_MSEC);
	assert_true(clock_now() - begun < 3 * NSEC_PER_SEC);
	expect(FLUE_SOCKET_SENT, 3, ECANCELED, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_LOST, ETIMEDOUT);
	assert_int_equal(fake.adopts, 0);
	assert_int_equal(s->fd, -1);
}

static void transfer_ends_at_once_when_the_peer_resets(void **state)
{
	uint64_t begun = clock_now();

	fake.on_abort = fake_flush;
	small_buffers();
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_WAIT_FIRST_RECV));
	assert_true(s->ops->send(s, much, sizeof(much), 3));
	assert_true(s->ops->rdma_recv(s, octets, 10, 2));
	reset_peer();
	expect(FLUE_SOCKET_SENT, 3, ECONNRESET, NULL);
	expect_torn_down(ECONNRESET);
	assert_true(clock_now() - begun < 5 * NSEC_PER_SEC);
	assert_int_equal(fake.adopts, 0);
}

/* ---- the end ---- */

static void end_is_told_last_and_once(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(s->ops->rdma_send(s, octets, 10, 0, 0, 5));
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_TERMINATED, 0x1202);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect_none();
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, 1);
	fake_flush(prov());
	expect(FLUE_SOCKET_RDMA_SENT, 5, ECANCELED, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_TERMINATED, 0x1202);
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, 1);
	expect_none();
}

/* CH-25 */
static void device_that_never_flushes_delays_the_end_but_not_for_ever(void **state)
{
	uint64_t begun = clock_now();

	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(s->ops->rdma_send(s, octets, 100, 0, 0, 5));
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_LOST, EIO);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect(FLUE_SOCKET_RDMA_SENT, 5, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_LOST, EIO);
	assert_true(clock_now() - begun >= 1900 * NSEC_PER_MSEC);
	assert_true(clock_now() - begun < 5 * NSEC_PER_SEC);
	/* What it says later is of no interest. */
	fake_flush(prov());
	expect_none();
}

static void transfer_fails_in_time_when_the_device_never_flushes(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	fake_news(s->qp, FLUE_EVENT_CONNECT_FAILED, 0, ETIMEDOUT);
	expect_torn_down(ETIMEDOUT);
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 4);
	expect_none();
}

static void disconnect_asks_the_provider(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(s->ops->disconnect(s, 0));
	assert_int_equal(prov()->disconnect_ms, 5000);
	assert_true(s->ops->disconnect(s, 70));
	assert_int_equal(prov()->disconnect_ms, 70);
	fake.rc.disconnect = -EBUSY;
	assert_fails(s->ops->disconnect(s, 0), EBUSY);
	fake.rc.disconnect = -ENOTCONN; /* ends by itself just now */
	assert_true(s->ops->disconnect(s, 0));
	fake_flush(prov());
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_BAD, EBUSY);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect_end(FLUE_CLOSE_BAD, EBUSY);
}

/* ---- events ---- */

static bool readable(int file)
{
	struct pollfd p = { .fd = file, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void event_file_is_readable_exactly_while_events_wait(void **state)
{
	int file;

	assert_true(s->ops->send(s, "x", 1, 1));
	file = s->ops->event_fd(s); /* made when one waits already */
	assert_true(file >= 0);
	assert_int_equal(s->ops->event_fd(s), file);
	assert_true(readable(file));
	assert_true(s->ops->send(s, "x", 1, 2));
	expect(FLUE_SOCKET_SENT, 1, 0, NULL);
	assert_true(readable(file));
	expect(FLUE_SOCKET_SENT, 2, 0, NULL);
	assert_false(readable(file));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	assert_true(readable(file));
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_false(readable(file));
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 1);
	assert_true(readable(file));
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, 0, NULL);
	assert_false(readable(file));
}

static void events_can_be_waited_for(void **state)
{
	struct flue_socket_event ev;
	uint64_t begun = clock_now();

	assert_fails(flue_socket_get_event(s, &ev, 50), ETIMEDOUT);
	assert_true(clock_now() - begun >= 45 * NSEC_PER_MSEC);
	assert_fails(flue_socket_get_event(s, NULL, 0), EINVAL);
	assert_fails(s->ops->get_event(s, &ev, sizeof(ev) - 1, 0), EINVAL);
	assert_true(s->ops->recv(s, octets, 1, 1));
	assert_int_equal(write(fd[1], "x", 1), 1);
	assert_true(flue_socket_get_event(s, &ev, -1));
	assert_int_equal(ev.type, FLUE_SOCKET_RECEIVED);
}

/* ---- callbacks ---- */

static struct heard {
	atomic_uint n, running, overlaps, inside, deadlocks;
	atomic_bool hold, in_call;
	pthread_t program;
	atomic_uint last_type, last_id;
} heard;

static void on_event(const struct flue_socket_event *ev, void *arg)
{
	struct heard *h = arg;

	if (atomic_fetch_add(&h->running, 1))
		atomic_fetch_add(&h->overlaps, 1);
	if (atomic_load(&h->in_call) && pthread_equal(pthread_self(), h->program))
		atomic_fetch_add(&h->inside, 1);
	if (!ev->socket->ops->destroy(ev->socket) && errno == EDEADLK)
		atomic_fetch_add(&h->deadlocks, 1);
	atomic_store(&h->last_type, ev->type);
	atomic_store(&h->last_id, (unsigned)ev->id);
	while (atomic_load(&h->hold))
		usleep(500);
	atomic_fetch_sub(&h->running, 1);
	atomic_fetch_add(&h->n, 1);
}

static void renew_with_callback(void)
{
	struct flue_socket_attr attr = FLUE_ATTR(struct flue_socket_attr);

	memset(&heard, 0, sizeof(heard));
	heard.program = pthread_self();
	attr.on_event = on_event;
	attr.event_arg = &heard;
	renew(&attr);
}

static void await_heard(unsigned n)
{
	for (unsigned i = 0; i < 10000 && atomic_load(&heard.n) < n; i++)
		usleep(500);
	assert_int_equal(atomic_load(&heard.n), n);
}

/* The program may hold its own locks while it calls. */
static void callbacks_come_one_at_a_time_and_not_inside_calls(void **state)
{
	struct flue_socket_event ev;

	renew_with_callback();
	assert_fails(flue_socket_get_event(s, &ev, 0), EINVAL);
	assert_fails(s->ops->event_fd(s) >= 0, EINVAL);
	atomic_store(&heard.in_call, true);
	for (unsigned i = 0; i < 20; i++)
		assert_true(s->ops->send(s, "x", 1, i));
	assert_true(s->ops->recv(s, octets, 1, 30));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_NOT_READY));
	atomic_store(&heard.in_call, false);
	await_heard(20);
	atomic_store(&heard.in_call, true);
	fake.rc.adopt = -ENOMEM;
	fake.on_abort = NULL;
	{
		struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

		assert_true(s->ops->switch_mode(s, &to, 31));
	}
	await_heard(21);
	assert_int_equal(heard.last_id, 30);
	assert_true(s->ops->rdma_recv(s, octets, 10, 32));
	await_heard(22);
	assert_int_equal(heard.last_type, FLUE_SOCKET_SWITCHED);
	await_heard(24); /* after two seconds */
	assert_int_equal(heard.last_type, FLUE_SOCKET_ENDED);
	atomic_store(&heard.in_call, false);
	assert_int_equal(heard.overlaps, 0);
	assert_int_equal(heard.inside, 0);
	assert_int_equal(heard.deadlocks, 24);
}

static void *release_callback(void *arg)
{
	usleep(30000);
	atomic_store(&heard.hold, false);
	return NULL;
}

static void destroy_waits_for_a_callback_and_none_follows(void **state)
{
	pthread_t thread;

	renew_with_callback();
	atomic_store(&heard.hold, true);
	assert_true(s->ops->send(s, "x", 1, 1));
	assert_true(s->ops->send(s, "x", 1, 2));
	while (!atomic_load(&heard.running))
		usleep(500);
	assert_int_equal(pthread_create(&thread, NULL, release_callback, NULL), 0);
	assert_true(s->ops->destroy(s));
	s = NULL;
	assert_int_equal(atomic_load(&heard.n), 1);
	assert_int_equal(atomic_load(&heard.running), 0);
	pthread_join(thread, NULL);
	usleep(20000);
	assert_int_equal(atomic_load(&heard.n), 1);
	close(fd[0]);
	close(fd[1]);
}

/* ---- fork ---- */

/* The threads of the parent may have held any lock. */
static void child_of_fork_can_only_destroy(void **state)
{
	struct acc_adapter *own = to_adapter(a);
	int status = -1;
	pid_t pid;

	stag = s->ops->alloc_stag(s);
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	pthread_mutex_lock(&own->share_lock);
	pthread_mutex_lock(&to_socket(s)->lock);
	pthread_mutex_lock(&own->tasks.lock);
	pid = fork();
	if (pid == 0) {
		unsigned wrong = 0;

		alarm(20);
		for (unsigned call = 0; call < SOCKET_NCALLS; call++)
			if (try_call(call) != ENODEV)
				wrong++;
		wrong += s->ops->event_fd(s) >= 0 || errno != ENODEV;
		wrong += flue_socket_open(a, fd[1], NULL) || errno != ENODEV;
		wrong += !s->ops->destroy(s);
		wrong += !flue_close(a);
		_exit((int)wrong);
	}
	pthread_mutex_unlock(&own->tasks.lock);
	pthread_mutex_unlock(&to_socket(s)->lock);
	pthread_mutex_unlock(&own->share_lock);
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The parent's goes on. */
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 3);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, 0, NULL);
}

#define WITH_SOCKET(test) cmocka_unit_test_setup_teardown(test, open_socket, close_socket)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SOCKET(every_call_is_taken_or_refused_as_its_state_demands), /* CH-9, CH-10 */
		WITH_SOCKET(no_call_is_taken_after_the_end),                      /* CH-9 */
		WITH_SOCKET(open_refuses_what_it_cannot_convert),
		WITH_SOCKET(descriptor_is_left_as_it_was_in_streaming_mode),
		WITH_SOCKET(streaming_requests_move_octets_in_order),
		WITH_SOCKET(streaming_requests_are_limited_until_their_events_are_taken),
		WITH_SOCKET(long_send_goes_on_while_the_peer_reads),
		WITH_SOCKET(reset_of_the_peer_answers_streaming_requests),
		WITH_SOCKET(receives_that_wait_get_nothing_at_the_switch),          /* CH-10 */
		WITH_SOCKET(last_streaming_send_may_come_after_the_switch_request), /* CH-10 */
		WITH_SOCKET(switch_passes_on_what_was_asked_for),                   /* CH-12 */
		WITH_SOCKET(switch_refuses_impossible_attributes),
		WITH_SOCKET(transfer_waits_until_the_peer_has_everything), /* CH-11 */
		WITH_SOCKET(switched_comes_before_anything_of_rdma_mode),  /* CH-13 */
		WITH_SOCKET(socket_that_is_dropped_in_mid_switch_keeps_nothing),
		WITH_SOCKET(many_sockets_are_switched_in_one_call),         /* CH-15 */
		WITH_SOCKET(transfer_that_the_provider_refuses_tears_down), /* CH-14 */
		WITH_SOCKET(transfer_that_fails_later_tears_down),          /* CH-14 */
		WITH_SOCKET(transfer_that_drains_for_too_long_tears_down),  /* CH-11, CH-14 */
		WITH_SOCKET(transfer_ends_at_once_when_the_peer_resets),    /* CH-14 */
		WITH_SOCKET(end_is_told_last_and_once),                     /* CH-18 */
		WITH_SOCKET(device_that_never_flushes_delays_the_end_but_not_for_ever), /* CH-25 */
		WITH_SOCKET(transfer_fails_in_time_when_the_device_never_flushes),      /* CH-25 */
		WITH_SOCKET(disconnect_asks_the_provider),
		WITH_SOCKET(event_file_is_readable_exactly_while_events_wait),
		WITH_SOCKET(events_can_be_waited_for),
		WITH_SOCKET(callbacks_come_one_at_a_time_and_not_inside_calls),
		WITH_SOCKET(destroy_waits_for_a_callback_and_none_follows),
		WITH_SOCKET(child_of_fork_can_only_destroy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
