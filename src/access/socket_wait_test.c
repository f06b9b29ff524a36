/* SPDX-License-Identifier: MIT */
/* What an RDMA socket waits for, and how long (CH-11, CH-25). */
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"
#include "access/stream.h"
#include "base/clock.h"

#define PATIENCE_MS 30000 /* for what must come, on however busy a machine */

static struct flue_adapter *a;
static struct flue_socket *s;
static int fd[2]; /* ours, the peer's */
static char octets[65536];

/* ---- time that passes when we say so (the linker puts it below the calls) ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __real_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at);

static atomic_uint skipped_s;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = __real_clock_gettime(id, ts);

	ts->tv_sec += atomic_load(&skipped_s);
	return rc;
}

int __wrap_pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *lock, clockid_t id,
				  const struct timespec *at)
{
	struct timespec real = *at;

	real.tv_sec -= atomic_load(&skipped_s);
	return __real_pthread_cond_clockwait(cond, lock, id, &real);
}

/* ---- the stage ---- */

static atomic_int unacked; /* when the stream was handed over */

static void on_adopt(struct prov_qp *qp)
{
	atomic_store(&unacked, acc_stream_unacked(qp->stream.fd));
}

static int open_socket(void **state)
{
	fake_reset();
	fake.on_adopt = on_adopt;
	atomic_store(&unacked, -1);
	a = fake_open(NULL, 0);
	fake_streams(fd);
	s = flue_socket_open(a, fd[0], NULL);
	return !s;
}

static int close_socket(void **state)
{
	bool gone = s->ops->destroy(s);

	close(fd[1]);
	return !gone || !flue_close(a) || fake.qps || fake.cqs || fake.mrs || fake.pds;
}

static void expect(uint32_t type, struct flue_socket_event *ev)
{
	if (!flue_socket_get_event(s, ev, PATIENCE_MS))
		fail_msg("no event, want %u: %s", type, strerror(errno));
	assert_int_equal(ev->type, type);
}

/* Everything is with the kernel, which cannot get rid of it before the peer reads. */
static void fill_the_kernels_queue(void)
{
	struct pollfd p = { .fd = fd[0], .events = POLLOUT };
	int small = 16384;

	assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
	assert_int_equal(setsockopt(fd[1], SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
	do {
		while (send(fd[0], octets, sizeof(octets), MSG_DONTWAIT) > 0)
			;
	} while (poll(&p, 1, 50));
	assert_true(acc_stream_unacked(fd[0]) > 0);
}

static void read_until_the_transfer(void)
{
	for (unsigned i = 0; i < PATIENCE_MS && !atomic_load(&fake.adopts); i++) {
		while (recv(fd[1], octets, sizeof(octets), MSG_DONTWAIT) > 0)
			;
		usleep(1000);
	}
	assert_int_equal(atomic_load(&fake.adopts), 1);
}

static void begin_transfer(int timeout_ms)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	to.timeout_ms = timeout_ms;
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_READY));
	assert_true(s->ops->switch_mode(s, &to, 1));
	assert_true(s->ops->rdma_recv(s, octets, 10, 2));
}

/* ---- before the transfer ---- */

/* The program's requests are all answered: what counts is the peer's TCP. */
static void transfer_waits_for_the_acknowledgement_of_what_was_sent(void **state)
{
	struct flue_socket_event ev;

	fill_the_kernels_queue();
	begin_transfer(10 * PATIENCE_MS);
	assert_int_equal(atomic_load(&fake.adopts), 0);
	usleep(50000); /* ... nor at a later look */
	assert_int_equal(atomic_load(&fake.adopts), 0);
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	read_until_the_transfer();
	assert_int_equal(atomic_load(&unacked), 0);
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, &ev);
	assert_int_equal(ev.error, 0);
}

static void waiting_for_acknowledgements_is_part_of_the_time(void **state)
{
	int given;

	fill_the_kernels_queue();
	begin_transfer(600000);
	assert_int_equal(atomic_load(&fake.adopts), 0);
	atomic_fetch_add(&skipped_s, 300);
	read_until_the_transfer();
	given = to_qp(s->qp)->prov->conn.timeout_ms;
	assert_true(given > 0 && given <= 300000);
}

static void transfer_gives_up_when_its_time_is_over(void **state)
{
	struct flue_socket_event ev;

	fake.on_abort = fake_flush;
	fill_the_kernels_queue();
	begin_transfer(600000);
	atomic_fetch_add(&skipped_s, 601);
	expect(FLUE_SOCKET_SWITCHED, &ev);
	assert_int_equal(ev.error, ETIMEDOUT);
	assert_int_equal(atomic_load(&fake.adopts), 0);
}

/* ---- the end ---- */

/* A device that takes the request and never says that the connection has ended. */
static void disconnect_ends_when_the_provider_is_silent(void **state)
{
	struct flue_socket_event ev;

	begin_transfer(10 * PATIENCE_MS); /* no timer of that must help here */
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 1);
	expect(FLUE_SOCKET_SWITCHED, &ev);
	expect(FLUE_SOCKET_RDMA_RECEIVED, &ev);
	assert_true(s->ops->disconnect(s, 50));
	assert_int_equal(to_qp(s->qp)->prov->disconnect_ms, 50);
	expect(FLUE_SOCKET_ENDED, &ev);
	assert_int_equal(ev.reason, FLUE_CLOSE_LOCAL);
	assert_int_equal(ev.detail, ETIMEDOUT);
	/* It comes too late with its word. */
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
}

#define WITH_SOCKET(test) cmocka_unit_test_setup_teardown(test, open_socket, close_socket)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SOCKET(transfer_waits_for_the_acknowledgement_of_what_was_sent), /* CH-11 */
		WITH_SOCKET(waiting_for_acknowledgements_is_part_of_the_time), /* CH-11, CH-25 */
		WITH_SOCKET(transfer_gives_up_when_its_time_is_over),          /* CH-11, CH-25 */
		WITH_SOCKET(disconnect_ends_when_the_provider_is_silent),      /* CH-25 */
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
