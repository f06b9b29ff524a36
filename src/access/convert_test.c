/* SPDX-License-Identifier: MIT */
/* flue_socket_convert(): whose the descriptor is, and how it ends (CH-11, CH-12, CH-14). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/stream.h"
#include "base/clock.h"

static struct flue_adapter *a;
static struct flue_qp *qp;
static int fd[2]; /* ours, the peer's */
static char octets[1 << 20];

/* ---- a time of our own (the linker puts it below the calls) ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __real_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at);

static bool quick;        /* nobody sleeps: */
static unsigned naps;     /* a look at what is unacknowledged takes a second */
static unsigned deaf;     /* ... and from this one on the peer reads; 0: never */
static uint64_t waits_to; /* when the first wait for the provider ends, at the latest */
static atomic_uint skipped_s;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = __real_clock_gettime(id, ts);

	ts->tv_sec += atomic_load(&skipped_s);
	return rc;
}

int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	if (quick && (!deaf || naps < deaf)) {
		naps++;
		atomic_fetch_add(&skipped_s, 1);
		return 0;
	}
	while (quick && recv(fd[1], octets, sizeof(octets), MSG_DONTWAIT) > 0)
		;
	return __real_nanosleep(time, left); /* TCP needs its own */
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at)
{
	if (!quick)
		return __real_pthread_cond_clockwait(cond, lock, id, at);
	if (!waits_to)
		waits_to = (uint64_t)at->tv_sec * NSEC_PER_SEC + (uint64_t)at->tv_nsec;
	return ETIMEDOUT;
}

static void be_quick(unsigned until)
{
	naps = 0;
	deaf = until;
	waits_to = 0;
	quick = true;
}

static int open_qp(void **state)
{
	quick = false;
	fake_reset();
	a = fake_open(NULL, 0);
	qp = fake_qp(a, NULL, NULL);
	fake_streams(fd);
	return !qp;
}

static int close_qp(void **state)
{
	fake_destroy_qp(qp);
	if (fd[0] >= 0)
		close(fd[0]);
	close(fd[1]);
	return !flue_close(a);
}

static void say_connected(struct prov_qp *of)
{
	fake_news_with(of->attr.owner, FLUE_EVENT_CONNECTED, 0, "theirs", 6);
}

static void say_failed(struct prov_qp *of)
{
	fake_news(of->attr.owner, FLUE_EVENT_CONNECT_FAILED, 0, ECONNREFUSED);
}

static struct flue_switch_attr attr_with(uint32_t flags)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.flags = flags;
	return attr;
}

static void expect_no_event(void)
{
	struct flue_event ev;

	assert_fails(flue_get_event(a, &ev, 0), EAGAIN);
}

static void convert_hands_the_stream_over_and_waits(void **state)
{
	struct flue_switch_attr attr = attr_with(FLUE_SWITCH_RESPONDER | FLUE_SWITCH_NO_REQ_REP);
	struct flue_event ev;

	fake.on_adopt = say_connected;
	attr.conn_flags = FLUE_CONN_MARKERS;
	attr.ird = 2;
	attr.ord = 3;
	attr.fpdu_max = 900;
	attr.timeout_ms = 700;
	attr.early = "ear";
	attr.early_len = 3;
	assert_true(flue_socket_convert(qp, fd[0], &attr));
	assert_int_equal(fake.qp->stream.fd, fd[0]);
	assert_true(fake.qp->stream.raw);
	assert_false(fake.qp->stream.initiator);
	assert_int_equal(fake.qp->stream.early_len, 3);
	assert_int_equal(fake.qp->conn.flags, FLUE_CONN_MARKERS);
	assert_int_equal(fake.qp->conn.ird, 2);
	assert_int_equal(fake.qp->conn.ord, 3);
	assert_int_equal(fake.qp->conn.fpdu_max, 900);
	assert_true(fake.qp->conn.timeout_ms > 0 && fake.qp->conn.timeout_ms <= 701);
	assert_int_equal(qp->private_len, 6);
	assert_int_equal(qp->ird, 3);
	/* The caller waited for it; only the end is news. */
	expect_no_event();
	fake_news(qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_true(flue_get_event(a, &ev, 1000));
	assert_int_equal(ev.type, FLUE_EVENT_DISCONNECTED);
	fd[0] = -1; /* the provider's */
}

static void convert_has_defaults(void **state)
{
	struct flue_switch_attr attr = attr_with(0);

	fake.on_adopt = say_connected;
	assert_true(flue_socket_convert(qp, fd[0], &attr));
	assert_true(fake.qp->stream.initiator);
	assert_false(fake.qp->stream.raw);
	assert_int_equal(fake.qp->conn.ird, 16);
	assert_true(fake.qp->conn.timeout_ms > 9000 && fake.qp->conn.timeout_ms <= 10001);
	fd[0] = -1;
}

static bool still_ours(void)
{
	char c;

	return fcntl(fd[0], F_GETFD) >= 0 && write(fd[1], "x", 1) == 1 && read(fd[0], &c, 1) == 1;
}

/* "Nothing happened, the descriptor is the program's." */
static void convert_refuses_at_once_what_cannot_be(void **state)
{
	struct flue_switch_attr good = attr_with(0), attr;
	int pair[2];

#define REFUSED(field, value) \
	attr = good;          \
	attr.field = value;   \
	assert_fails(flue_socket_convert(qp, fd[0], &attr), EINVAL)
	REFUSED(size, 4);
	REFUSED(flags, 4);
	REFUSED(conn_flags, FLUE_CONN_ASYNC);
	REFUSED(conn_flags, FLUE_CONN_DEFER);
	REFUSED(conn_flags, 1u << 31);
	REFUSED(timeout_ms, -1);
	REFUSED(early_len, 1);
	REFUSED(private_len, 1);
	REFUSED(ird, 33);
	REFUSED(ord, 33);
#undef REFUSED
	attr = good;
	attr.early = octets;
	attr.early_len = FLUE_SWITCH_EARLY_MAX + 1;
	assert_fails(flue_socket_convert(qp, fd[0], &attr), EINVAL);
	assert_fails(flue_socket_convert(qp, fd[0], NULL), EINVAL);
	assert_int_equal(pipe(pair), 0);
	assert_fails(flue_socket_convert(qp, -1, &good), EBADF);
	assert_fails(flue_socket_convert(qp, pair[0], &good), ENOTSOCK);
	close(pair[0]);
	close(pair[1]);
	qp->state = FLUE_QP_ERROR;
	assert_fails(flue_socket_convert(qp, fd[0], &good), EISCONN);
	qp->state = FLUE_QP_IDLE;
	fake.rc.adopt = -EISCONN;
	assert_fails(flue_socket_convert(qp, fd[0], &good), EISCONN);
	fake.rc.adopt = -EINVAL;
	assert_fails(flue_socket_convert(qp, fd[0], &good), EINVAL);
	assert_true(still_ours());
	expect_no_event();
	fake.rc.adopt = 0;
	fake.on_adopt = say_connected;
	assert_true(flue_socket_convert(qp, fd[0], &good));
	fd[0] = -1;
}

static void convert_is_refused_by_an_adapter_that_cannot_adopt(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct flue_adapter *other;
	struct flue_qp *idle;

	fake.no_adopt = true;
	other = fake_open(NULL, 0);
	idle = fake_qp(other, NULL, NULL);
	assert_fails(flue_socket_convert(idle, fd[0], &attr), EOPNOTSUPP);
	assert_true(still_ours());
	fake_destroy_qp(idle);
	assert_true(flue_close(other));
}

static int error_in_handler;

static void convert_in_handler(const struct flue_event *ev, void *arg)
{
	struct flue_switch_attr attr = attr_with(0);

	errno = 0;
	if (!flue_socket_convert(qp, fd[0], &attr))
		error_in_handler = errno;
}

static void convert_would_deadlock_in_a_handler(void **state)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_qp *loud = fake_qp(a, convert_in_handler, NULL);

	attr.remote = fake_address();
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.flags = FLUE_CONN_ASYNC;
	assert_true(loud->ops->connect(loud, &attr));
	fake_news(loud, FLUE_EVENT_CONNECTED, 0, 0);
	assert_int_equal(error_in_handler, EDEADLK);
	assert_true(still_ours());
	fake_destroy_qp(loud);
}

/* CH-14: what has begun ends the connection when it fails. */
static void convert_that_the_provider_refuses_ends_the_connection(void **state)
{
	struct flue_switch_attr attr = attr_with(0);

	fake.rc.adopt = -ENOMEM;
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ENOMEM);
	assert_int_equal(fcntl(fd[0], F_GETFD), -1);
	fd[0] = -1;
	assert_int_equal(read(fd[1], octets, 1), -1);
	assert_int_equal(errno, ECONNRESET);
	expect_no_event();
}

static void convert_fails_with_what_the_peer_said(void **state)
{
	struct flue_switch_attr attr = attr_with(0);

	fake.on_adopt = say_failed;
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ECONNREFUSED);
	fd[0] = -1; /* the provider's to close */
	expect_no_event();
}

/* CH-25 */
static void convert_returns_when_the_provider_never_answers(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	uint64_t begun = clock_now();

	attr.timeout_ms = 50;
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ETIMEDOUT);
	fd[0] = -1;
	assert_int_equal(fake.aborts, 1);
	assert_true(clock_now() - begun < 5 * NSEC_PER_SEC);
	/* Its late word is not heard. */
	fake_news(qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect_no_event();
}

/* The provider has timers of its own, so it is given a little more; but no second time-out. */
static void convert_waits_for_the_provider_once(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	uint64_t begun = clock_now();

	attr.timeout_ms = 600000;
	be_quick(0);
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ETIMEDOUT);
	quick = false;
	fd[0] = -1;
	assert_true(waits_to - begun >= 600 * NSEC_PER_SEC);
	assert_true(waits_to - begun < 900 * NSEC_PER_SEC);
}

static void small_buffers(void)
{
	int small = 16384;

	setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	setsockopt(fd[1], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
	while (send(fd[0], octets, sizeof(octets), MSG_DONTWAIT) > 0)
		;
}

static atomic_bool reading;

static void *read_later(void *arg)
{
	static char sink[65536];

	usleep(50000);
	atomic_store(&reading, true);
	while (recv(fd[1], sink, sizeof(sink), 0) > 0)
		;
	return NULL;
}

static void note_and_connect(struct prov_qp *of)
{
	int n = acc_stream_unacked(of->stream.fd);

	if (!atomic_load(&reading))
		n = -1;
	fake_news(of->attr.owner, n ? FLUE_EVENT_CONNECT_FAILED : FLUE_EVENT_CONNECTED, 0, EPROTO);
}

/* CH-11 */
static void convert_waits_until_the_peer_has_everything(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	pthread_t thread;

	atomic_store(&reading, false);
	small_buffers();
	fake.on_adopt = note_and_connect;
	assert_int_equal(pthread_create(&thread, NULL, read_later, NULL), 0);
	assert_true(flue_socket_convert(qp, fd[0], &attr));
	shutdown(fd[0], SHUT_WR);
	pthread_join(thread, NULL);
	fd[0] = -1;
}

static void convert_gives_up_on_a_peer_that_does_not_read(void **state)
{
	struct flue_switch_attr attr = attr_with(0);

	small_buffers();
	attr.timeout_ms = 60;
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ETIMEDOUT);
	assert_int_equal(fcntl(fd[0], F_GETFD), -1);
	assert_int_equal(fake.adopts, 0);
	fd[0] = -1;
	/* The queue pair can be used for another one. */
	close(fd[1]);
	fake_streams(fd);
	fake.on_adopt = say_connected;
	assert_true(flue_socket_convert(qp, fd[0], &attr));
	fd[0] = -1;
}

/* One time-out for the whole conversion, whatever took how long. */
static void convert_leaves_the_provider_what_is_left(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	int given;

	small_buffers();
	fake.on_adopt = say_connected;
	attr.timeout_ms = 600000;
	be_quick(300); /* seconds */
	assert_true(flue_socket_convert(qp, fd[0], &attr));
	quick = false;
	fd[0] = -1;
	given = fake.qp->conn.timeout_ms;
	assert_int_equal(naps, 300);
	assert_true(given > 0 && given <= 300001);
}

static void convert_does_not_wait_longer_than_it_was_told(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	uint64_t begun = clock_now(), took;

	small_buffers();
	attr.timeout_ms = 600000;
	be_quick(0);
	assert_fails(flue_socket_convert(qp, fd[0], &attr), ETIMEDOUT);
	quick = false;
	fd[0] = -1;
	took = clock_now() - begun;
	assert_int_equal(fake.adopts, 0);
	assert_true(took >= 600 * NSEC_PER_SEC);
	assert_true(naps <= 600); /* a second each */
}

static void convert_notices_a_reset_while_it_waits(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct linger now = { .l_onoff = 1 };

	small_buffers();
	setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	shutdown(fd[1], SHUT_RDWR);
	close(fd[1]);
	fd[1] = -1;
	assert_false(flue_socket_convert(qp, fd[0], &attr));
	assert_true(errno == ECONNRESET || errno == ENOTCONN);
	if (errno == ECONNRESET)
		fd[0] = -1;
	assert_int_equal(fake.adopts, 0);
}

#define WITH_QP(test) cmocka_unit_test_setup_teardown(test, open_qp, close_qp)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_QP(convert_hands_the_stream_over_and_waits), /* CH-12, CH-13 */
		WITH_QP(convert_has_defaults),
		WITH_QP(convert_refuses_at_once_what_cannot_be),
		WITH_QP(convert_is_refused_by_an_adapter_that_cannot_adopt),
		WITH_QP(convert_would_deadlock_in_a_handler),
		WITH_QP(convert_that_the_provider_refuses_ends_the_connection), /* CH-14 */
		WITH_QP(convert_fails_with_what_the_peer_said),                 /* CH-14 */
		WITH_QP(convert_returns_when_the_provider_never_answers),       /* CH-25 */
		WITH_QP(convert_waits_for_the_provider_once),                   /* CH-25 */
		WITH_QP(convert_waits_until_the_peer_has_everything),           /* CH-11 */
		WITH_QP(convert_leaves_the_provider_what_is_left),              /* CH-11, CH-25 */
		WITH_QP(convert_does_not_wait_longer_than_it_was_told),         /* CH-11, CH-25 */
		WITH_QP(convert_gives_up_on_a_peer_that_does_not_read),         /* CH-11 */
		WITH_QP(convert_notices_a_reset_while_it_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
