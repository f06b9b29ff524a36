/* SPDX-License-Identifier: MIT */
/*
 * Datagrams between processes that are stopped, killed, replaced and forked: what UDP loses comes through memory, nobody waits for the dead, and
 * what goes to a group comes once. FLUE_TEST_LINK=local: through memory, else UDP.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define GRH        40
#define SIZE       2048
#define QKEY       5u
#define SLOT       (GRH + SIZE)
#define WATCHDOG_S 100

/* ---- one side ---- */

static bool change(struct flue_qp *qp, uint32_t state)
{
	struct flue_qp_values v = { sizeof(v), .state = state, .port = 1, .qkey = QKEY };
	uint32_t mask = FLUE_QPV_STATE;

	if (state == FLUE_QP_INIT)
		mask |= FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_QKEY;
	if (state == FLUE_QP_RTS)
		mask |= FLUE_QPV_SQ_PSN;
	return qp->ops->modify(qp, &v, mask);
}

static bool open_side(struct pair_side *s, uint32_t receives)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct pair_options o = PAIR_DEFAULTS;
	size_t size = (size_t)(receives + 1) * SLOT;

	memset(s, 0, sizeof(*s));
	o.cq_depth = receives + 64;
	if (!pair_side_open(s, &o, 0))
		return false;
	s->mem = calloc(1, size);
	s->mr = s->mem ? flue_register(s->pd, s->mem, size, FLUE_LOCAL_WRITE) : NULL;
	attr.send_cq = s->send_cq;
	attr.recv_cq = s->recv_cq;
	attr.sq_depth = 64;
	attr.rq_depth = receives ? receives : 1;
	attr.type = FLUE_QP_UD;
	s->qp = s->mr ? s->pd->ops->create_qp(s->pd, &attr) : NULL;
	if (!s->qp || !change(s->qp, FLUE_QP_INIT) || !change(s->qp, FLUE_QP_RTR) ||
	    !change(s->qp, FLUE_QP_RTS))
		return false;
	for (uint32_t i = 0; i < receives; i++) {
		if (!pair_recv(s, (size_t)(i + 1) * SLOT, SLOT, i))
			return false;
	}
	return true;
}

static bool close_side(struct pair_side *s)
{
	bool ok = flue_destroy_qp(s->qp) && s->mr->ops->deregister(s->mr);

	free(s->mem);
	s->mem = NULL;
	s->qp = NULL;
	s->mr = NULL;
	return ok && pair_side_close(s);
}

static struct flue_ah *new_ah(struct pair_side *s, const char *address)
{
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_in to = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };

	inet_pton(AF_INET, address, &to.sin_addr);
	from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.remote = (const struct sockaddr *)&to;
	attr.local = (const struct sockaddr *)&from;
	attr.remote_len = attr.local_len = sizeof(to);
	return s->pd->ops->create_ah(s->pd, &attr);
}

static struct flue_qp_values counts(struct flue_qp *qp)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	if (!qp->ops->query(qp, &v, FLUE_QPV_DATAGRAMS))
		abort();
	return v;
}

/* ---- the receiver, in a process of its own ---- */

static const char *group_name(void)
{
	static char text[INET_ADDRSTRLEN];

	if (!text[0])
		snprintf(text, sizeof(text), "239.8.%d.%d", getpid() >> 8 & 0xff, getpid() & 0xff);
	return text;
}

struct report {
	uint32_t got, twice, late; /* late: not in order */
	uint64_t local, udp;
};

struct receiver {
	pid_t pid;
	int from, to; /* our ends of two pipes */
	uint32_t qpn;
};

static bool join(struct flue_qp *qp)
{
	struct flue_ah_attr group = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_in in = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };

	inet_pton(AF_INET, group_name(), &in.sin_addr);
	from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	group.remote = (const struct sockaddr *)&in;
	group.local = (const struct sockaddr *)&from;
	group.remote_len = group.local_len = sizeof(in);
	return qp->ops->join_group(qp, &group);
}

/* Until nothing comes any more, once the sender has said that it is done. */
static void count_all(struct pair_side *s, uint32_t most, int order, struct report *r)
{
	uint8_t *seen = calloc(1, most);
	uint64_t last = 0, number;
	bool told = false;
	char c;
	struct flue_wc wc;

	while (r->got < most) {
		uint32_t n = pair_take(s->recv_cq, &wc, 1, told ? 300 : 0);

		if (!n && told)
			break;
		if (!n) { /* the pipe does not block */
			told = read(order, &c, 1) == 1;
			usleep(100);
			continue;
		}
		if (wc.status != FLUE_WC_SUCCESS)
			_exit(3);
		memcpy(&number, s->mem + (wc.id + 1) * SLOT + GRH, sizeof(number));
		if (number >= most)
			_exit(4);
		r->got++;
		r->twice += seen[number];
		r->late += number < last;
		seen[number] = 1;
		last = number;
	}
	free(seen);
}

static _Noreturn void be_receiver(uint32_t receives, bool member, int report, int order)
{
	struct report r = { 0 };
	struct pair_side s;
	struct flue_qp_values v;

	alarm(WATCHDOG_S);
	if (!open_side(&s, receives) || (member && !join(s.qp)))
		_exit(1);
	if (write(report, &s.qp->number, sizeof(s.qp->number)) != sizeof(s.qp->number))
		_exit(1);
	count_all(&s, receives, order, &r);
	v = counts(s.qp);
	r.local = v.local_received;
	r.udp = v.udp_received;
	if (write(report, &r, sizeof(r)) != sizeof(r))
		_exit(1);
	_exit(close_side(&s) ? 0 : 2);
}

static void start(struct receiver *x, uint32_t receives, bool member)
{
	int report[2], order[2];

	assert_int_equal(pipe(report), 0);
	assert_int_equal(pipe(order), 0);
	assert_int_equal(fcntl(order[0], F_SETFL, O_NONBLOCK), 0);
	group_name();
	x->pid = fork();
	assert_true(x->pid >= 0);
	if (x->pid == 0) {
		close(report[0]);
		close(order[1]);
		be_receiver(receives, member, report[1], order[0]);
	}
	close(report[1]);
	close(order[0]);
	x->from = report[0];
	x->to = order[1];
	assert_int_equal(read(x->from, &x->qpn, sizeof(x->qpn)), sizeof(x->qpn));
}

static struct report finish(struct receiver *x)
{
	struct report r;
	int status;

	assert_int_equal(write(x->to, "", 1), 1);
	assert_int_equal(read(x->from, &r, sizeof(r)), sizeof(r));
	assert_int_equal(waitpid(x->pid, &status, 0), x->pid);
	assert_int_equal(status, 0);
	close(x->from);
	close(x->to);
	return r;
}

static void end(struct receiver *x)
{
	kill(x->pid, SIGKILL);
	waitpid(x->pid, NULL, 0);
	close(x->from);
	close(x->to);
}

/* ---- the sender ---- */

struct sender {
	struct pair_side s;
	struct flue_ah *ah;
	uint64_t sent, done;
};

static void open_sender(struct sender *x, const char *address)
{
	memset(x, 0, sizeof(*x));
	assert_true(open_side(&x->s, 64));
	x->ah = new_ah(&x->s, address);
	assert_non_null(x->ah);
}

static void close_sender(struct sender *x)
{
	assert_true(x->ah->ops->destroy(x->ah));
	assert_true(close_side(&x->s));
}

static void take_done(struct sender *x)
{
	struct flue_wc wc[32];
	uint32_t n = pair_take(x->s.send_cq, wc, 32, 0);

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
	x->done += n;
}

/* Up to number `to`, within so many ms. true: all are done. */
static bool send_up_to(struct sender *x, uint32_t qpn, uint64_t to, int ms)
{
	uint64_t until = pair_now_ms() + (uint64_t)ms;

	while (x->done < to && pair_now_ms() < until) {
		if (x->sent < to && x->sent - x->done < 64) {
			uint8_t *at = x->s.mem + x->sent % 64 * SLOT;
			struct flue_sge sge = flue_mr_sge(x->s.mr, x->sent % 64 * SLOT, SIZE);
			struct flue_send_wr wr = { .op = FLUE_WR_SEND,
						   .flags = FLUE_SIGNALED,
						   .sg = &sge,
						   .n_sg = 1,
						   .to = { x->ah, qpn, QKEY } };

			memcpy(at, &x->sent, sizeof(x->sent));
			assert_true(flue_post_send(x->s.qp, &wr));
			x->sent++;
		}
		take_done(x);
	}
	return x->done == to;
}

static void stop(const struct receiver *x)
{
	int status;

	assert_int_equal(kill(x->pid, SIGSTOP), 0);
	assert_int_equal(waitpid(x->pid, &status, WUNTRACED), x->pid);
	assert_true(WIFSTOPPED(status));
}

/* The receiver is stopped. Through memory the rest waits; UDP takes everything, whatever becomes of it. */
static void check_held_up(struct sender *x, uint32_t qpn, uint64_t to)
{
	assert_int_equal(send_up_to(x, qpn, to, pair_local ? 300 : 20000), !pair_local);
}

/* ---- tests ---- */

static void skip_under_tsan(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	if (build && !strcmp(build, "tsan"))
		skip(); /* it cannot start threads in a forked child */
}

/* As many receives as messages: what is not taken in time waits, or is lost in UDP's buffer. */
static void burst_to_a_receiver_that_is_stopped(void **state)
{
	enum { N = 8000 };
	struct receiver r;
	struct sender x;
	struct report got;

	skip_under_tsan();
	start(&r, N, false);
	open_sender(&x, "127.0.0.1");
	assert_true(send_up_to(&x, r.qpn, 10, 5000));
	stop(&r);
	check_held_up(&x, r.qpn, N);
	assert_int_equal(kill(r.pid, SIGCONT), 0);
	assert_true(send_up_to(&x, r.qpn, N, 20000));
	got = finish(&r);
	assert_int_equal(got.twice + got.late, 0);
	if (pair_local) {
		assert_int_equal(got.got, N);
		assert_int_equal(got.local, N);
		assert_int_equal(counts(x.s.qp).local_sent, N);
	} else {
		assert_true(got.got >= 10 && got.got < N);
		assert_int_equal(got.udp, got.got);
		assert_int_equal(counts(x.s.qp).udp_sent, N);
	}
	close_sender(&x);
}

/* Sends that waited for it, and later ones, go by UDP, where they are lost. */
static void killed_receiver_is_not_waited_for(void **state)
{
	struct receiver r;
	struct sender x;

	skip_under_tsan();
	start(&r, 64, false);
	open_sender(&x, "127.0.0.1");
	stop(&r);
	check_held_up(&x, r.qpn, 1000);
	end(&r);
	assert_true(send_up_to(&x, r.qpn, 1000, 5000));
	assert_true(send_up_to(&x, r.qpn, 2000, 5000));
	assert_true(counts(x.s.qp).udp_sent >= 1000);
	close_sender(&x);
}

/* Nor one of which a relative, who knows nothing of it, has all the descriptors. */
static void receiver_is_dead_even_if_a_child_has_its_sockets(void **state)
{
	struct receiver r;
	struct sender x;
	pid_t child = 0;
	int told[2];

	skip_under_tsan();
	assert_int_equal(pipe(told), 0);
	r.pid = fork();
	if (r.pid == 0) {
		struct pair_side s;

		alarm(WATCHDOG_S);
		if (!open_side(&s, 64))
			_exit(1);
		child = _Fork();
		if (child == 0) {
			alarm(WATCHDOG_S);
			pause();
			_exit(0);
		}
		if (write(told[1], &s.qp->number, 4) != 4 || write(told[1], &child, 4) != 4)
			_exit(1);
		pause();
	}
	assert_int_equal(read(told[0], &r.qpn, 4), 4);
	assert_int_equal(read(told[0], &child, 4), 4);
	open_sender(&x, "127.0.0.1");
	stop(&r);
	check_held_up(&x, r.qpn, 1000);
	kill(r.pid, SIGKILL);
	waitpid(r.pid, NULL, 0);
	assert_true(send_up_to(&x, r.qpn, 1000, 5000));
	kill(child, SIGKILL);
	close(told[0]);
	close(told[1]);
	close_sender(&x);
}

static void receiver_that_becomes_another_program_is_gone(void **state)
{
	struct sender x;
	uint32_t qpn = 0;
	int told[2];
	pid_t pid;

	skip_under_tsan();
	assert_int_equal(pipe(told), 0);
	pid = fork();
	if (pid == 0) {
		struct pair_side s;

		if (!open_side(&s, 64) || write(told[1], &s.qp->number, 4) != 4)
			_exit(1);
		/* When a few have come. */
		while (counts(s.qp).local_received + counts(s.qp).udp_received < 5)
			usleep(1000);
		execl("/bin/sleep", "sleep", "100", (char *)NULL);
		_exit(1);
	}
	assert_int_equal(read(told[0], &qpn, 4), 4);
	open_sender(&x, "127.0.0.1");
	for (uint64_t n = 5; n < 2000 && counts(x.s.qp).udp_sent < 20; n += 5) {
		assert_true(send_up_to(&x, qpn, n, 5000));
		usleep(1000);
	}
	assert_true(counts(x.s.qp).udp_sent >= 20);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	close(told[0]);
	close(told[1]);
	close_sender(&x);
}

/* The child of a sender has nothing of its roads, and may have its own. */
static void sender_may_fork(void **state)
{
	enum { N = 300 };
	struct receiver r;
	struct sender x;
	struct report got;
	int status;
	pid_t pid;

	skip_under_tsan();
	start(&r, N + 1, false);
	open_sender(&x, "127.0.0.1");
	assert_true(send_up_to(&x, r.qpn, N / 2, 5000));
	pid = fork();
	if (pid == 0) {
		struct sender y;

		alarm(WATCHDOG_S);
		if (!x.ah->ops->destroy(x.ah) || !close_side(&x.s))
			_exit(1);
		memset(&y, 0, sizeof(y));
		if (!open_side(&y.s, 64))
			_exit(2);
		y.ah = new_ah(&y.s, "127.0.0.1");
		y.sent = y.done = N;
		if (!send_up_to(&y, r.qpn, N + 1, 5000))
			_exit(3);
		if (counts(y.s.qp).local_sent != (pair_local ? 1 : 0))
			_exit(4);
		_exit(y.ah->ops->destroy(y.ah) && close_side(&y.s) ? 0 : 5);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(send_up_to(&x, r.qpn, N, 5000));
	got = finish(&r);
	assert_int_equal(got.got, N + 1);
	assert_int_equal(got.twice, 0);
	assert_int_equal(counts(x.s.qp).local_sent, pair_local ? N : 0);
	close_sender(&x);
}

/* Members in several processes, one of which is stopped for a moment. */
static void group_of_processes_gets_all_once(void **state)
{
	enum { N = 5000, MEMBERS = 3 };
	struct receiver r[MEMBERS];
	struct sender x;
	struct report got;

	skip_under_tsan();
	for (int i = 0; i < MEMBERS; i++)
		start(&r[i], N, true);
	open_sender(&x, group_name());
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, 1, 5000));
	usleep(100 * 1000);
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, N / 2, 20000));
	stop(&r[0]);
	check_held_up(&x, FLUE_GROUP_QPN, N - 1);
	assert_int_equal(kill(r[0].pid, SIGCONT), 0);
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, N - 1, 20000));
	assert_int_equal(counts(x.s.qp).udp_sent, N - 1);
	for (int i = 0; i < MEMBERS; i++) {
		got = finish(&r[i]);
		assert_int_equal(got.twice + got.late, 0);
		if (!pair_local)
			continue;
		assert_int_equal(got.got, N - 1);
		assert_true(got.udp < 10);
	}
	close_sender(&x);
}

/* A member that was not there for a while finds much in its socket, and asks then: nothing of that has come through memory. */
static void group_loses_nothing_when_it_changes_roads(void **state)
{
	enum { N = 500, EARLY = 60 };
	struct receiver r;
	struct sender x;
	struct report got;

	skip_under_tsan();
	start(&r, N, true);
	open_sender(&x, group_name());
	stop(&r);
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, EARLY, 5000));
	assert_int_equal(kill(r.pid, SIGCONT), 0);
	for (uint64_t i = EARLY; i < N; i++)
		assert_true(send_up_to(&x, FLUE_GROUP_QPN, i, 5000));
	got = finish(&r);
	assert_int_equal(got.twice, 0);
	if (pair_local) {
		assert_int_equal(got.got, N - 1);
		assert_true(got.local > 0 && got.udp >= EARLY);
	}
	close_sender(&x);
}

/* Who does not take anything holds up the others of its group for a while, and then loses. */
static void group_does_not_wait_for_ever(void **state)
{
	enum { N = 3000 };
	struct receiver r[2];
	struct sender x;
	struct report got;

	skip_under_tsan();
	for (int i = 0; i < 2; i++)
		start(&r[i], N, true);
	open_sender(&x, group_name());
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, 1, 5000));
	usleep(100 * 1000);
	stop(&r[0]);
	assert_true(send_up_to(&x, FLUE_GROUP_QPN, N - 1, 20000));
	assert_int_equal(kill(r[0].pid, SIGCONT), 0);
	got = finish(&r[0]);
	assert_int_equal(got.twice, 0);
	assert_true(got.got < N - 1);
	got = finish(&r[1]);
	assert_int_equal(got.twice + got.late, 0);
	if (pair_local)
		assert_int_equal(got.got, N - 1);
	close_sender(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(burst_to_a_receiver_that_is_stopped),
		cmocka_unit_test(killed_receiver_is_not_waited_for),
		cmocka_unit_test(receiver_is_dead_even_if_a_child_has_its_sockets),
		cmocka_unit_test(receiver_that_becomes_another_program_is_gone),
		cmocka_unit_test(sender_may_fork),
		cmocka_unit_test(group_of_processes_gets_all_once),
		cmocka_unit_test(group_loses_nothing_when_it_changes_roads),
		cmocka_unit_test(group_does_not_wait_for_ever),
	};

	alarm(WATCHDOG_S);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
