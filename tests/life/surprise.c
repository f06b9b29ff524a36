/* SPDX-License-Identifier: MIT */
/*
 * No surprise for the host program: the library's threads take no signal, its descriptors do not
 * survive exec, it prints nothing, it leaves nothing behind, and a fork disturbs nobody.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conf/pair.h"

/* Calls fn(name) for each entry of a folder of numbers in /proc/self; returns their count. */
static int each(const char *folder, void (*fn)(int number))
{
	DIR *d = opendir(folder);
	struct dirent *e;
	int n = 0;

	while (d && (e = readdir(d))) {
		if (e->d_name[0] == '.' || atoi(e->d_name) == dirfd(d))
			continue;
		n++;
		if (fn)
			fn(atoi(e->d_name));
	}
	if (d)
		closedir(d);
	return n;
}

static void check_cloexec(int fd)
{
	char path[64], target[64] = "";
	int flags = fcntl(fd, F_GETFD);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (readlink(path, target, sizeof(target) - 1) < 0)
		return;
	if (!strncmp(target, "socket:", 7) || strstr(target, "eventpoll") ||
	    strstr(target, "eventfd"))
		assert_true(flags >= 0 && flags & FD_CLOEXEC);
}

static void descriptors_do_not_survive_exec(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	assert_true(pair_open(&p, &o));
	assert_true(p.a.recv_cq->ops->fd(p.a.recv_cq) >= 0);
	assert_true(p.a.adapter->ops->event_fd(p.a.adapter) >= 0);
	each("/proc/self/fd", check_cloexec);
	assert_true(pair_close(&p));
}

/* The masks of all threads but ours, from /proc: every signal that can be blocked is. */
static void check_mask(int tid)
{
	unsigned long long mask = 0;
	char path[64], line[128];
	FILE *f;

	if (tid == (int)getpid())
		return;
	snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "SigBlk: %llx", &mask);
	if (f)
		fclose(f);
	/* SIGKILL and SIGSTOP cannot be blocked; glibc keeps 32 and 33 for itself. */
	mask |= 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1) | 3ull << 31;
	assert_true(mask == ~0ull);
}

static void library_threads_take_no_signal(void **state)
{
	const char *build = getenv("FLUE_TEST_BUILD");
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	if (build && !strcmp(build, "tsan")) {
		print_message("# ThreadSanitizer has a thread of its own\n");
		skip();
	}
	assert_true(pair_open(&p, &o));
	assert_true(each("/proc/self/task", NULL) > 1);
	each("/proc/self/task", check_mask);
	assert_true(pair_close(&p));
	assert_int_equal(each("/proc/self/task", NULL), 1);
}

static void nothing_is_left_and_nothing_is_printed(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	int before = each("/proc/self/fd", NULL), out[2], old = dup(1), olderr = dup(2);
	struct pair p;
	char byte;

	assert_int_equal(pipe2(out, O_NONBLOCK), 0);
	dup2(out[1], 1);
	dup2(out[1], 2);
	for (int i = 0; i < 5; i++) {
		bool ok = pair_open(&p, &o) && pair_recv(&p.b, 0, 10, 1) &&
			  pair_write(&p.a, 0, 10, &p.b, 1 << 20, 2, FLUE_SIGNALED) &&
			  pair_wait_state(p.b.qp, FLUE_QP_ERROR, 5000) && pair_close(&p);

		if (!ok)
			abort();
	}
	dup2(old, 1);
	dup2(olderr, 2);
	assert_true(read(out[0], &byte, 1) < 0 && errno == EAGAIN);
	close(old);
	close(olderr);
	close(out[0]);
	close(out[1]);
	assert_int_equal(each("/proc/self/fd", NULL), before);
}

/* ---- fork ---- */

struct traffic {
	struct pair *p;
	atomic_bool stop;
	atomic_ulong messages;
};

static void *keep_talking(void *arg)
{
	struct traffic *t = arg;

	while (!atomic_load(&t->stop)) {
		uint64_t i = atomic_load(&t->messages);

		if (!pair_recv(&t->p->b, 0, 1000, i) ||
		    !pair_send(&t->p->a, 4096, 1000, i, FLUE_SIGNALED) ||
		    !pair_expect(t->p->a.send_cq, i, FLUE_WC_SUCCESS) ||
		    !pair_expect(t->p->b.recv_cq, i, FLUE_WC_SUCCESS))
			return NULL;
		atomic_fetch_add(&t->messages, 1);
	}
	return t;
}

/* In the child: what was inherited can be destroyed, and a new adapter works. */
static int live_as_child(struct pair *p)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair mine;

	alarm(120);
	if (flue_qp_state(p->a.qp) != FLUE_QP_ERROR)
		return 1;
	if (!flue_destroy_qp(p->a.qp) || !flue_destroy_qp(p->b.qp))
		return 2;
	if (!pair_open(&mine, &o))
		return 3;
	if (!pair_recv(&mine.b, 0, 100, 1) || !pair_send(&mine.a, 0, 100, 2, FLUE_SIGNALED) ||
	    !pair_expect(mine.a.send_cq, 2, FLUE_WC_SUCCESS) ||
	    !pair_expect(mine.b.recv_cq, 1, FLUE_WC_SUCCESS))
		return 4;
	return pair_close(&mine) ? 0 : 5;
}

static void fork_disturbs_neither_parent_nor_peer(void **state)
{
	const char *build = getenv("FLUE_TEST_BUILD");
	struct pair_options o = PAIR_DEFAULTS;
	struct traffic t = { 0 };
	struct flue_event ev;
	pthread_t thread;
	struct pair p;
	void *ok = NULL;

	if (build && !strcmp(build, "tsan")) {
		print_message("# ThreadSanitizer does not allow threads after fork()\n");
		skip();
	}
	assert_true(pair_open(&p, &o));
	t.p = &p;
	assert_int_equal(pthread_create(&thread, NULL, keep_talking, &t), 0);
	for (int i = 0; i < 30; i++) {
		unsigned long before = atomic_load(&t.messages);
		int status = -1;
		pid_t pid = fork();

		if (pid == 0)
			_exit(i % 3 ? 0 : live_as_child(&p));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		while (atomic_load(&t.messages) < before + 3)
			usleep(100);
	}
	atomic_store(&t.stop, true);
	pthread_join(thread, &ok);
	assert_ptr_equal(ok, &t);
	assert_false(flue_get_event(p.a.adapter, &ev, 0));
	assert_false(flue_get_event(p.b.adapter, &ev, 0));
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_do_not_survive_exec),
		cmocka_unit_test(library_threads_take_no_signal),
		cmocka_unit_test(nothing_is_left_and_nothing_is_printed),
		cmocka_unit_test(fork_disturbs_neither_parent_nor_peer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
