/* SPDX-License-Identifier: MIT */
/*
 * An adapter that nobody uses costs nothing: no processor time and no wake-ups, with idle
 * connections open and with a thread asleep in a wait. And where nothing was connected, no
 * thread exists.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "conf/pair.h"

#define WATCH_MS 2000
/* What the watching itself may cost: a handful of switches, and time below the clock's tick. */
#define MAX_SWITCHES 12
#define MAX_CPU_US   10000

static int count_threads(void)
{
	DIR *d = opendir("/proc/self/task");
	int n = -2; /* "." and ".." */

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, (ms % 1000) * 1000000 };

	while (nanosleep(&ts, &ts) < 0 && errno == EINTR)
		;
}

static long used_us(const struct rusage *r)
{
	return (r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1000000 + r->ru_utime.tv_usec +
	       r->ru_stime.tv_usec;
}

static void skip_under_tsan(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	if (build && !strcmp(build, "tsan")) {
		print_message("# ThreadSanitizer has a thread of its own that wakes up\n");
		skip();
	}
}

/* Watches the whole process do nothing. */
static void assert_idle(void)
{
	struct rusage before, after;

	/* Leases and the like lapse first. */
	sleep_ms(300);
	getrusage(RUSAGE_SELF, &before);
	sleep_ms(WATCH_MS);
	getrusage(RUSAGE_SELF, &after);
	print_message("# %ld us, %ld voluntary switches in %d ms\n",
		      used_us(&after) - used_us(&before), after.ru_nvcsw - before.ru_nvcsw,
		      WATCH_MS);
	assert_true(used_us(&after) - used_us(&before) < MAX_CPU_US);
	assert_true(after.ru_nvcsw - before.ru_nvcsw < MAX_SWITCHES);
}

static void open_adapter_without_connections_has_no_thread(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair_side side = { 0 };
	int before = count_threads();

	skip_under_tsan();
	assert_true(pair_side_open(&side, &o, 0));
	assert_int_equal(count_threads(), before);
	assert_idle();
	assert_true(pair_side_close(&side));
}

/* Traffic first, by polling, so that leases and hot links exist. */
static void idle_connections_use_no_processor_time(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	skip_under_tsan();
	assert_true(pair_open(&p, &o));
	for (uint64_t i = 0; i < 100; i++) {
		assert_true(pair_recv(&p.b, 0, 100, i));
		assert_true(pair_send(&p.a, 0, 100, i, FLUE_SIGNALED));
		assert_true(pair_expect(p.a.send_cq, i, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p.b.recv_cq, i, FLUE_WC_SUCCESS));
	}
	assert_idle();
	assert_true(pair_close(&p));
}

static void *wait_for_completion(void *arg)
{
	struct flue_cq *cq = arg;

	return flue_wait(cq, 20000) ? cq : NULL;
}

static void thread_asleep_in_a_wait_uses_no_processor_time(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	void *woken = NULL;
	pthread_t thread;
	struct pair p;

	skip_under_tsan();
	assert_true(pair_open(&p, &o));
	assert_true(pair_recv(&p.b, 0, 100, 7));
	assert_int_equal(pthread_create(&thread, NULL, wait_for_completion, p.b.recv_cq), 0);
	assert_idle();
	assert_true(pair_send(&p.a, 0, 100, 8, FLUE_SIGNALED));
	assert_int_equal(pthread_join(thread, &woken), 0);
	assert_ptr_equal(woken, p.b.recv_cq);
	assert_true(pair_expect(p.b.recv_cq, 7, FLUE_WC_SUCCESS));
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(open_adapter_without_connections_has_no_thread),
		cmocka_unit_test(idle_connections_use_no_processor_time),
		cmocka_unit_test(thread_asleep_in_a_wait_uses_no_processor_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
