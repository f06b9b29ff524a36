/* SPDX-License-Identifier: MIT */
/* Real limits of the process, not injected ones. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

static struct rlimit usual;

/* No further descriptor can be made. */
static void exhaust_descriptors(void)
{
	struct rlimit tight;
	int lowest = dup(0);

	assert_true(lowest >= 0);
	close(lowest);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &usual), 0);
	tight = usual;
	tight.rlim_cur = (rlim_t)lowest;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
	assert_int_equal(dup(0), -1);
}

static void restore_descriptors(void)
{
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &usual), 0);
}

static double cpu_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void check_traffic(struct pair *p)
{
	assert_true(pair_recv(&p->b, 0, 64, 1));
	assert_true(pair_send(&p->a, 0, 64, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
}

/* The listener closes a connection that does not speak MPA; so it was accepted. */
static void await_close(int fd)
{
	struct pollfd pollfd = { .fd = fd, .events = POLLIN };
	char octet;

	assert_int_equal(send(fd, "this is not a request at all", 28, MSG_NOSIGNAL), 28);
	assert_int_equal(poll(&pollfd, 1, 10000), 1);
	assert_true(recv(fd, &octet, 1, 0) <= 0);
}

static void listener_waits_quietly_when_descriptors_run_out(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pollfd pollfd = { .events = POLLIN };
	struct flue_conn_attr attr;
	struct flue_qp *a, *b;
	struct pair p;
	double before;

	assert_true(pair_open(&p, &o));
	a = pair_new_qp(&p, &p.a);
	b = pair_new_qp(&p, &p.b);
	assert_true(a && b);
	pollfd.fd = socket(AF_INET, SOCK_STREAM, 0);
	assert_true(pollfd.fd >= 0);

	exhaust_descriptors();
	assert_int_equal(connect(pollfd.fd, (struct sockaddr *)&p.listener->local, 16), 0);
	before = cpu_ms();
	assert_int_equal(poll(&pollfd, 1, 500), 0);
	/* Asking for the descriptor again and again would use up all of the 500 ms. */
	assert_true(cpu_ms() - before < 100);
	check_traffic(&p);
	attr = pair_conn_attr(&p, 0);
	assert_false(a->ops->connect(a, &attr));
	assert_int_equal(errno, EMFILE);
	assert_int_equal(flue_qp_state(a), FLUE_QP_IDLE);

	restore_descriptors();
	await_close(pollfd.fd);
	assert_true(pair_connect_qps(&p, a, b));
	close(pollfd.fd);
	assert_true(flue_destroy_qp(a));
	assert_true(flue_destroy_qp(b));
	assert_true(pair_close(&p));
}

static void adapter_works_again_when_descriptors_come_back(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	exhaust_descriptors();
	assert_false(pair_open(&p, &o));
	assert_int_equal(errno, EMFILE);
	restore_descriptors();
	assert_true(pair_open(&p, &o));
	exhaust_descriptors();
	assert_int_equal(p.a.adapter->ops->event_fd(p.a.adapter), -1);
	assert_int_equal(errno, EMFILE);
	assert_int_equal(p.a.recv_cq->ops->fd(p.a.recv_cq), -1);
	assert_int_equal(errno, EMFILE);
	check_traffic(&p);
	restore_descriptors();
	assert_true(p.a.adapter->ops->event_fd(p.a.adapter) >= 0);
	assert_true(p.a.recv_cq->ops->fd(p.a.recv_cq) >= 0);
	check_traffic(&p);
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(listener_waits_quietly_when_descriptors_run_out),
		cmocka_unit_test(adapter_works_again_when_descriptors_come_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
