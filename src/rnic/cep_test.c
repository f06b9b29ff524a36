/* SPDX-License-Identifier: MIT */
/* A live stream that is adopted: what it keeps of its former life, and how long its start may take. */
#include "rnic/cep.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "rnic/cep_priv.h"
#include "rnic/qp.h"

static struct rnic *r;
static struct rnic_pd pd;
static struct cq *cq;
static struct qp *q;
static struct flue_qp owner;
static int fd[2]; /* to be adopted, the peer's */

static atomic_int told[FLUE_EVENT_NTYPES]; /* by type */

/* ---- time that passes when we say so (the linker puts it below the calls) ---- */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);

static atomic_uint skipped_s;

int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = __real_clock_gettime(id, ts);

	ts->tv_sec += atomic_load(&skipped_s);
	return rc;
}

/* ---- the stage ---- */

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	atomic_fetch_add(&told[ev->type], 1);
}

static void on_completion(void *cq_owner, void *arg)
{
}

static const struct rnic_upcalls up = { .qp_event = on_event };

static int make_stream(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	socklen_t len = sizeof(in);
	int door = socket(AF_INET, SOCK_STREAM, 0);

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(door, (struct sockaddr *)&in, len) || listen(door, 1) ||
	    getsockname(door, (struct sockaddr *)&in, &len) ||
	    connect(fd[0], (struct sockaddr *)&in, len))
		return -1;
	fd[1] = accept(door, NULL, NULL);
	return close(door);
}

static int make(void **state)
{
	struct qp_attr attr = { .pd = &pd,
				.sq_depth = 4,
				.rq_depth = 4,
				.sq_sge = 1,
				.rq_sge = 1,
				.state = &owner.state,
				.owner = &owner };
	int cpu = sched_getcpu(), rc;

	owner.state = FLUE_QP_IDLE;
	for (unsigned i = 0; i < FLUE_EVENT_NTYPES; i++)
		atomic_store(&told[i], 0);
	if (rnic_open(&cpu, 1, &up, NULL, &r) ||
	    cq_create(r, &r->engines[0], 16, on_completion, NULL, NULL, &cq))
		return -1;
	pd.rnic = r;
	attr.send_cq = attr.recv_cq = cq;
	if (qp_create(&attr, &q) || make_stream())
		return -1;
	engine_lock(q->engine);
	rc = engine_start(q->engine);
	engine_unlock(q->engine);
	return rc;
}

static int drop(void **state)
{
	qp_destroy(q);
	cq_destroy(cq);
	rnic_close(r);
	close(fd[1]);
	return 0;
}

/* As responder: it waits for a request. */
static void adopt(int timeout_ms)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct cep_adopt a = { .fd = fd[0] };

	attr.ird = attr.ord = 1;
	attr.timeout_ms = timeout_ms;
	assert_int_equal(cep_adopt(q, &a, &attr), 0);
}

static int adopted_fd(void)
{
	int n;

	engine_lock(q->engine);
	assert_non_null(q->cep);
	n = q->cep->io.fd;
	engine_unlock(q->engine);
	return n;
}

/* ---- options ---- */

static int option(int of, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	assert_int_equal(getsockopt(of, level, name, &value, &len), 0);
	return value;
}

static void set_option(int level, int name, int value)
{
	assert_int_equal(setsockopt(fd[0], level, name, &value, sizeof(value)), 0);
}

/* A program may have set for its text what would make messages wait for each other. */
static void adopted_stream_loses_the_options_that_would_stall_it(void **state)
{
	struct linger linger = { .l_onoff = 1, .l_linger = 5 };
	socklen_t len = sizeof(linger);
	int of;

	set_option(IPPROTO_TCP, TCP_NODELAY, 0);
	set_option(IPPROTO_TCP, TCP_CORK, 1);
	set_option(SOL_SOCKET, SO_RCVLOWAT, 4096);
	assert_int_equal(setsockopt(fd[0], SOL_SOCKET, SO_LINGER, &linger, len), 0);
	adopt(600000);
	of = adopted_fd();
	assert_int_not_equal(option(of, IPPROTO_TCP, TCP_NODELAY), 0);
	assert_int_equal(option(of, IPPROTO_TCP, TCP_CORK), 0);
	assert_int_equal(option(of, SOL_SOCKET, SO_RCVLOWAT), 1);
	assert_int_equal(getsockopt(of, SOL_SOCKET, SO_LINGER, &linger, &len), 0);
	assert_int_equal(linger.l_onoff, 0);
}

static void adopted_descriptor_is_closed_on_exec(void **state)
{
	assert_int_equal(fcntl(fd[0], F_GETFD), 0);
	adopt(600000);
	assert_int_not_equal(adopted_fd(), fd[0]);
	assert_int_equal(fcntl(adopted_fd(), F_GETFD), FD_CLOEXEC);
	assert_int_equal(fcntl(fd[0], F_GETFD), -1); /* moved */
}

#define FEW 128

/* Where there is no room for it elsewhere it stays what it was, and is closed on exec, too. */
static void adopted_descriptor_that_cannot_be_moved_is_closed_on_exec(void **state)
{
	struct rlimit was, few;
	int taken[FEW], n = 0;

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	few = was;
	few.rlim_cur = FEW;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (n < FEW && (taken[n] = fcntl(fd[1], F_DUPFD_CLOEXEC, FEW / 2)) >= 0)
		n++;
	adopt(600000);
	while (n)
		close(taken[--n]);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(adopted_fd(), fd[0]);
	assert_int_equal(fcntl(fd[0], F_GETFD), FD_CLOEXEC);
}

/* ---- time ---- */

#define REQUEST_MAX (MPA_FRAME_LEN + MPA_PD_MAX)

static size_t put_request(uint8_t *buf)
{
	struct mpa_policy policy = {
		.rev = 2, .crc = true, .p2p = true, .rtr = MPA_RTR_WRITE, .ird = 1, .ord = 1
	};
	struct mpa_frame f;
	int len;

	mpa_make_request(&policy, NULL, 0, &f);
	len = mpa_frame_encode(&f, buf, REQUEST_MAX);
	assert_true(len > 0);
	return (size_t)len;
}

static void send_request(void)
{
	uint8_t buf[REQUEST_MAX];
	size_t len = put_request(buf);

	assert_int_equal(send(fd[1], buf, len, MSG_NOSIGNAL), len);
}

/* Where the timer stands, relative to the adoption; seconds. */
static int64_t timer_at(uint64_t begun)
{
	int64_t at;

	engine_lock(q->engine);
	assert_non_null(q->cep);
	assert_true(q->cep->timer.at > 0);
	at = ((int64_t)q->cep->timer.at - (int64_t)begun) / (int64_t)NSEC_PER_SEC;
	engine_unlock(q->engine);
	return at;
}

static bool waits_for_rtr(void)
{
	bool waits;

	engine_lock(q->engine);
	assert_non_null(q->cep);
	waits = q->cep->state == MPA_WAIT_RTR;
	engine_unlock(q->engine);
	return waits;
}

/* The program said how long a conversion may take, not each step of it. */
static void steps_of_an_adopted_stream_share_one_time_out(void **state)
{
	uint64_t begun = clock_now();

	adopt(600000);
	assert_in_range(timer_at(begun), 600, 750);
	atomic_fetch_add(&skipped_s, 300);
	send_request();
	for (int i = 0; i < 30000 && !waits_for_rtr(); i++)
		usleep(1000);
	assert_true(waits_for_rtr());
	assert_in_range(timer_at(begun), 600, 750); /* 900, if it began again */
}

/* ---- events that arise inside a step ---- */

static void await(unsigned type)
{
	for (int i = 0; i < 30000 && !atomic_load(&told[type]); i++)
		usleep(1000);
	assert_int_equal(atomic_load(&told[type]), 1);
	assert_int_equal(atomic_load(&r->n_illegal), 0);
}

static void adopt_early(bool raw, const uint8_t *early, size_t len)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct cep_adopt a = { .fd = fd[0], .raw = raw, .early = early, .early_len = len };

	attr.ird = attr.ord = 1;
	attr.timeout_ms = 600000;
	assert_int_equal(cep_adopt(q, &a, &attr), 0);
}

/* The queue pair has it before the endpoint is in the state that waits for it. */
static void message_among_the_octets_read_before_connects(void **state)
{
	uint8_t early[REQUEST_MAX + 64], body[64] = { 0 };
	size_t len = put_request(early), n = MPA_LEN_LEN;
	struct mpa_stream stream = { .crc = true };
	struct ddp_params version = { .dv = 1, .rv = 1 };
	struct ddp_segment s = { .opcode = RDMAP_WRITE, .tagged = true, .last = true, .stag = 1 };

	n += ddp_encode(&version, &s, body + n);
	put_be16(body, (uint16_t)(n - MPA_LEN_LEN));
	n += mpa_pad(n - MPA_LEN_LEN);
	len += mpa_fpdu_build(&stream, body, n, early + len);
	adopt_early(false, early, len);
	await(FLUE_EVENT_CONNECTED);
	engine_lock(q->engine);
	assert_null(q->cep);
	assert_true(q->connected);
	engine_unlock(q->engine);
}

/* CONNECTED was decided, and nobody had heard of it yet. */
static void stream_lost_in_the_step_that_opens_it_never_was_connected(void **state)
{
	struct linger reset = { .l_onoff = 1 };
	uint8_t half = 0;

	assert_int_equal(setsockopt(fd[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
	close(fd[1]);
	fd[1] = -1;
	adopt_early(true, &half, sizeof(half));
	await(FLUE_EVENT_CONNECT_FAILED);
	engine_lock(q->engine);
	assert_null(q->cep);
	assert_false(q->connected);
	assert_int_equal(q->state, QPS_ERROR);
	engine_unlock(q->engine);
	assert_int_equal(atomic_load(&told[FLUE_EVENT_CONNECTED]), 0);
	assert_int_equal(atomic_load(&told[FLUE_EVENT_DISCONNECTED]), 0);
}

static void do_what_is_illegal(void)
{
	engine_lock(q->engine);
	cep_apply(q->cep, MPA_EV_START);
	engine_unlock(q->engine);
}

/* Nobody starts what has not even been asked for. */
static void illegal_event_is_counted_or_ends_the_program(void **state)
{
	adopt(600000);
#ifdef FLUE_FSM_CHECK
	int status;
	pid_t child = fork();

	if (child == 0) {
		do_what_is_illegal();
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
#else
	do_what_is_illegal();
	assert_int_equal(atomic_load(&r->n_illegal), 1);
#endif
	engine_lock(q->engine);
	assert_int_equal(q->cep->state, MPA_WAIT_REQUEST);
	engine_unlock(q->engine);
}

static void event_inside_a_step_waits_its_turn(void **state)
{
	struct inbox b = { 0 };
	struct inbox_event ev = { .event = 1 }, got;

	assert_true(inbox_post(&b, &ev));
	assert_true(inbox_take(&b, &got));
	for (uint8_t i = 2; i < 2 + INBOX_MAX; i++) {
		ev = (struct inbox_event) { .event = i, .detail = i };
		assert_false(inbox_post(&b, &ev)); /* inside a step */
	}
	ev.detail = 100;
	assert_false(inbox_post(&b, &ev)); /* the first of a kind counts */
	assert_false(b.overflowed);
	ev.event = 100;
	assert_false(inbox_post(&b, &ev));
	assert_true(b.overflowed);
	for (uint8_t i = 2; i < 2 + INBOX_MAX; i++) {
		assert_true(inbox_take(&b, &got));
		assert_int_equal(got.event, i);
		assert_int_equal(got.detail, i);
	}
	assert_false(inbox_take(&b, &got));
	assert_true(inbox_post(&b, &ev));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(adopted_stream_loses_the_options_that_would_stall_it),
		TEST(adopted_descriptor_is_closed_on_exec),
		TEST(adopted_descriptor_that_cannot_be_moved_is_closed_on_exec),
		TEST(steps_of_an_adopted_stream_share_one_time_out), /* CH-25 */
		TEST(message_among_the_octets_read_before_connects),
		TEST(stream_lost_in_the_step_that_opens_it_never_was_connected),
		TEST(illegal_event_is_counted_or_ends_the_program),
		cmocka_unit_test(event_inside_a_step_waits_its_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
