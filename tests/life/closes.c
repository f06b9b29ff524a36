/* SPDX-License-Identifier: MIT */
/*
 * Programs that close descriptors they do not know, ours among them, and have files of their own there
 * afterwards. The connections are lost, but nothing of the library's goes into the program's files, none
 * of them is closed, nobody burns processor time or waits for ever, and all can be destroyed.
 */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define WATCHDOG_S 120
#define PATIENCE   20000 /* ms */

/* ---- the program's files ---- */

#define VICTIMS_UP_TO 1300 /* past every number that we could have */

static struct victim {
	int fd;
	bool counter; /* an eventfd; else memory */
	struct stat st;
} victims[VICTIMS_UP_TO];
static int n_victims;

static void make_victims(void)
{
	n_victims = 0;
	while (n_victims < VICTIMS_UP_TO) {
		struct victim *v = &victims[n_victims];

		v->counter = n_victims % 2;
		v->fd = v->counter ? eventfd(0, EFD_NONBLOCK) : memfd_create("victim", 0);
		if (v->fd < 0)
			break;
		assert_int_equal(fstat(v->fd, &v->st), 0);
		n_victims++;
		if (v->fd >= VICTIMS_UP_TO)
			break;
	}
	assert_true(n_victims > 200);
}

static void check_victims(void)
{
	for (int i = 0; i < n_victims; i++) {
		struct victim *v = &victims[i];
		struct stat st;
		uint64_t count;

		assert_int_equal(fstat(v->fd, &st), 0);
		assert_int_equal(st.st_ino, v->st.st_ino);
		assert_int_equal(st.st_size, 0);
		if (v->counter) {
			assert_int_equal(read(v->fd, &count, sizeof(count)), -1);
			assert_int_equal(errno, EAGAIN);
		}
		close(v->fd);
	}
}

static void allow_many_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max < 4096 ? limit.rlim_max : 4096;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* ---- helpers ---- */

static bool talk(struct pair *p)
{
	return pair_recv(&p->b, 0, 64, 1) && pair_send(&p->a, 100, 64, 2, FLUE_SIGNALED) &&
	       pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS) &&
	       pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS);
}

static void open_pair(struct pair *p)
{
	struct pair_options o = PAIR_DEFAULTS;

	alarm(WATCHDOG_S);
	assert_true(pair_open(p, &o));
	assert_true(talk(p));
	/* Leases and the like lapse: threads sleep where they sleep when nothing is to be done. */
	usleep(100000);
}

/* A thread of ours that goes round and round would use all of it. */
static void assert_idle(void)
{
	struct timespec before, after;
	long used_ms;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	usleep(1000000);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	used_ms = (after.tv_sec - before.tv_sec) * 1000 +
		  (after.tv_nsec - before.tv_nsec) / 1000000;
	print_message("# %ld ms of processor time in a second\n", used_ms);
	assert_true(used_ms < 150);
}

/* Calls that wake threads, tell, and close. What they answer does not matter here. */
static void try_everything(struct pair *p)
{
	struct flue_event ev;
	struct flue_wc wc;
	uint32_t got;

	for (int i = 0; i < 20; i++) {
		struct pair_side *s = i % 2 ? &p->a : &p->b;

		s->send_cq->ops->notify(s->send_cq, FLUE_NOTIFY_NEXT, NULL, NULL);
		s->recv_cq->ops->notify(s->recv_cq, FLUE_NOTIFY_NEXT, NULL, NULL);
		pair_recv(s, 0, 16, 1);
		pair_send(s, 0, 16, 2, FLUE_SIGNALED);
		flue_poll(s->send_cq, &wc, 1, &got);
		flue_wait(s->recv_cq, 5);
		flue_get_event(s->adapter, &ev, i < 10 ? 5 : 0);
		s->send_cq->ops->clear_fd(s->send_cq);
		usleep(1000);
	}
	flue_abort(p->a.qp);
	p->b.qp->ops->disconnect(p->b.qp, -1);
}

/* ---- closefrom(3) ---- */

static void files_of_the_program_are_left_alone(void **state)
{
	struct pair p;

	for (int late = 0; late < 2; late++) {
		open_pair(&p);
		assert_true(p.a.send_cq->ops->fd(p.a.send_cq) >= 0);
		assert_true(p.b.recv_cq->ops->fd(p.b.recv_cq) >= 0);
		assert_true(p.a.adapter->ops->event_fd(p.a.adapter) >= 0);
		closefrom(3);
		make_victims();
		/* Also when threads have found out before. */
		if (late)
			usleep(4000000);
		try_everything(&p);
		assert_true(pair_close(&p));
		check_victims();
	}
}

static void end_is_told_and_the_adapter_is_of_use_again(void **state)
{
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in here = { .sin_family = AF_INET };
	struct flue_wc wc = { .id = 0 };
	struct pair p;

	open_pair(&p);
	assert_true(pair_recv(&p.a, 0, 16, 7));
	closefrom(3);
	assert_true(pair_event(&p.a, FLUE_EVENT_DISCONNECTED, p.a.qp, NULL, PATIENCE));
	assert_true(pair_event(&p.b, FLUE_EVENT_DISCONNECTED, p.b.qp, NULL, PATIENCE));
	assert_int_equal(pair_take(p.a.recv_cq, &wc, 1, PATIENCE), 1);
	assert_int_equal(wc.id, 7);
	assert_int_equal(wc.status, FLUE_WC_FLUSHED);
	/* Nobody can reach the old listener. */
	assert_true(p.listener->ops->destroy(p.listener));
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listen.local = (struct sockaddr *)&here;
	listen.local_len = sizeof(here);
	listen.flags = pair_full ? FLUE_LISTEN_FULL : 0;
	p.listener = p.b.adapter->ops->listen(p.b.adapter, &listen);
	assert_non_null(p.listener);
	assert_true(p.a.qp->ops->reset(p.a.qp) && p.b.qp->ops->reset(p.b.qp));
	assert_true(pair_connect(&p));
	assert_true(talk(&p));
	assert_true(pair_close(&p));
}

static void nobody_spins_and_closing_returns(void **state)
{
	struct pair p;

	for (int used = 0; used < 2; used++) {
		open_pair(&p);
		closefrom(3);
		if (used)
			try_everything(&p);
		assert_idle();
		assert_true(pair_close(&p));
	}
}

/* Ours have the lowest free numbers of their kind, too: those of connections that do not know yet. */
static void new_connections_are_not_taken_for_lost_ones(void **state)
{
	struct pair lost, fresh;
	struct flue_wc wc;
	uint32_t got;

	open_pair(&lost);
	closefrom(3);
	open_pair(&fresh);
	for (int i = 0; i < 20; i++) {
		pair_send(i % 2 ? &lost.a : &lost.b, 0, 16, 9, FLUE_SIGNALED);
		flue_poll(lost.a.send_cq, &wc, 1, &got);
		flue_poll(lost.b.send_cq, &wc, 1, &got);
		assert_true(talk(&fresh));
	}
	assert_true(flue_disconnect(fresh.a.qp));
	assert_true(pair_close(&fresh));
	assert_true(pair_close(&lost));
}

static void set_up_under_way_ends_in_time(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_conn_attr attr;
	struct pair p;

	alarm(WATCHDOG_S);
	assert_true(pair_make(&p, &o));
	attr = pair_conn_attr(&p, FLUE_CONN_ASYNC);
	attr.timeout_ms = 700;
	assert_true(p.a.qp->ops->connect(p.a.qp, &attr));
	usleep(100000);
	closefrom(3);
	assert_true(pair_event(&p.a, FLUE_EVENT_CONNECT_FAILED, p.a.qp, NULL, PATIENCE));
	assert_idle();
	assert_true(pair_close(&p));
}

static void *wait_for_ever(void *arg)
{
	return flue_wait(arg, -1) ? arg : NULL;
}

static void thread_asleep_in_a_wait_wakes_up(void **state)
{
	void *result = NULL;
	pthread_t thread;
	struct pair p;

	open_pair(&p);
	assert_true(pair_recv(&p.b, 0, 64, 3));
	assert_int_equal(pthread_create(&thread, NULL, wait_for_ever, p.b.recv_cq), 0);
	usleep(200000);
	closefrom(3);
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_ptr_equal(result, p.b.recv_cq);
	assert_true(pair_expect(p.b.recv_cq, 3, FLUE_WC_FLUSHED));
	assert_true(pair_close(&p));
}

/* ---- sockets in streaming mode ---- */

static void make_stream(int fd[2])
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int l = socket(AF_INET, SOCK_STREAM, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	assert_int_equal(bind(l, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&at, &len), 0);
	assert_int_equal(connect(fd[0], (struct sockaddr *)&at, len), 0);
	fd[1] = accept(l, NULL, NULL);
	assert_true(fd[1] >= 0);
	close(l);
}

static void sockets_find_out_and_can_be_destroyed(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_socket_event ev;
	struct flue_socket *s;
	struct pair p;
	char octet;
	int fd[2];

	alarm(WATCHDOG_S);
	assert_true(pair_make(&p, &o));
	make_stream(fd);
	s = flue_socket_open(p.a.adapter, fd[0], NULL);
	assert_non_null(s);
	assert_true(s->ops->event_fd(s) >= 0);
	assert_true(s->ops->recv(s, &octet, 1, 5));
	usleep(100000);
	closefrom(3);
	assert_idle();
	/* The receive is answered, with an error. */
	assert_true(flue_socket_get_event(s, &ev, PATIENCE));
	assert_int_equal(ev.id, 5);
	assert_int_not_equal(ev.error, 0);
	make_victims();
	assert_true(s->ops->destroy(s));
	assert_true(pair_close(&p));
	check_victims();
}

/* ---- the library's epoll sets alone ---- */

static int close_sets(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d))) {
		char target[64] = "";

		if (readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1) < 0 ||
		    !strstr(target, "eventpoll"))
			continue;
		close(atoi(e->d_name));
		n++;
	}
	if (d)
		closedir(d);
	return n;
}

/* Waits until there are some again: threads find out when they next look. */
static void close_sets_soon(void)
{
	for (int i = 0; i < PATIENCE / 10; i++) {
		if (close_sets())
			return;
		usleep(10000);
	}
	fail_msg("no epoll set was made");
}

static void connections_survive_the_loss_of_epoll_sets(void **state)
{
	void *result = NULL;
	pthread_t thread;
	struct pair p;

	open_pair(&p);
	for (int i = 0; i < 3; i++) {
		close_sets_soon();
		for (int j = 0; j < 10; j++)
			assert_true(talk(&p));
	}
	/* Asleep in one that is closed. */
	assert_int_equal(pthread_create(&thread, NULL, wait_for_ever, p.b.recv_cq), 0);
	usleep(200000);
	close_sets_soon();
	assert_true(pair_recv(&p.b, 0, 64, 3));
	assert_true(pair_send(&p.a, 0, 64, 4, FLUE_SIGNALED));
	assert_int_equal(pthread_join(thread, &result), 0);
	assert_ptr_equal(result, p.b.recv_cq);
	assert_true(pair_expect(p.b.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p.a.send_cq, 4, FLUE_WC_SUCCESS));
	assert_true(pair_close(&p));
}

int main(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_of_the_program_are_left_alone),
		cmocka_unit_test(end_is_told_and_the_adapter_is_of_use_again),
		cmocka_unit_test(nobody_spins_and_closing_returns),
		cmocka_unit_test(new_connections_are_not_taken_for_lost_ones),
		cmocka_unit_test(set_up_under_way_ends_in_time),
		cmocka_unit_test(thread_asleep_in_a_wait_wakes_up),
		cmocka_unit_test(sockets_find_out_and_can_be_destroyed),
		cmocka_unit_test(connections_survive_the_loss_of_epoll_sets),
	};

	if (build && !strcmp(build, "tsan")) {
		puts("1..0 # SKIP for ThreadSanitizer it is a race that a program closes descriptors in use");
		return 0;
	}
	allow_many_files();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
