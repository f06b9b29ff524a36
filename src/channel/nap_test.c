/* SPDX-License-Identifier: MIT */
/* Naps: what ends them, when they are taken, and what handlers mean for them. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "channel/times.h"

/* What must not happen takes this long. */
#define LONG_NS  900000000
#define SHORT_NS 2000000
#define LANES    3

static struct lane_dir dirs[LANES];
static struct lane_rx receivers[LANES];
static struct lane_tx senders[LANES];
static struct lane_rx *const list[LANES] = { &receivers[0], &receivers[1], &receivers[2] };
static uint8_t rings[LANES][LANE_RING];

static void nap_for(uint64_t ns)
{
	const struct timespec t = { .tv_nsec = (long)ns };

	nanosleep(&t, NULL);
}

static void publish(int i, size_t n)
{
	uint64_t word;
	size_t room;

	do {
		assert_int_equal(lane_tx_look(&senders[i], n, &word, &room), LANE_RING_OK);
	} while (!lane_tx_publish(&senders[i], word, n, false));
}

/* Lanes that ride, with nothing in them. */
static int begin(void **st)
{
	ladder_profile.spin_ns = 50000;
	nap_forbid(false);
	memset((void *)dirs, 0, sizeof(dirs));
	for (int i = 0; i < LANES; i++) {
		uint64_t word;
		size_t n;

		lane_tx_init(&senders[i], &dirs[i], rings[i], 0);
		lane_rx_init(&receivers[i], &dirs[i], rings[i], 0);
		lane_rx_attach(&receivers[i]);
		publish(i, 1);
		assert_int_equal(lane_rx_look(&receivers[i], &word, &n), LANE_FROM_RING);
		lane_rx_taken(&receivers[i], 1, true);
	}
	return 0;
}

static bool naps(int i)
{
	return atomic_load(&dirs[i].word) & LANE_NAPPING;
}

/* --- do they pay? */

static void nap_is_skipped_twice_as_often_when_in_vain(void **st)
{
	uint32_t skip = 0, most = 0;

	for (uint32_t want = 1; want <= 256; want *= 2) {
		uint32_t skipped = 0;

		assert_true(nap_pays(&skip));
		assert_true(nap_pays(&skip)); /* until it is noted */
		nap_noted(&skip, false);
		while (!nap_pays(&skip))
			skipped++;
		assert_int_equal(skipped, want < 64 ? want : 64);
		most = skipped;
	}
	assert_int_equal(most, 64);
	/* One that paid, and all is forgotten. */
	nap_noted(&skip, true);
	assert_true(nap_pays(&skip));
	nap_noted(&skip, false);
	assert_false(nap_pays(&skip));
	assert_true(nap_pays(&skip));
}

static void nap_is_taken_again_when_a_sleep_was_short(void **st)
{
	uint32_t skip = 0;

	for (int i = 0; i < 5; i++)
		nap_noted(&skip, false);
	nap_slept(&skip, NAP_NS);
	assert_false(nap_pays(&skip));
	nap_slept(&skip, NAP_NS - 1);
	assert_true(nap_pays(&skip));
	nap_noted(&skip, false);
	assert_false(nap_pays(&skip));
	assert_true(nap_pays(&skip));
}

static void nap_never_pays_when_nothing_may_spin_or_call(void **st)
{
	uint32_t skip = 0;

	ladder_profile.spin_ns = 0;
	assert_false(nap_pays(&skip));
	ladder_profile.spin_ns = 50000;
	nap_forbid(true);
	assert_false(nap_pays(&skip));
	nap_forbid(false);
	assert_true(nap_pays(&skip));
}

/* --- handlers */

static void on_signal(int number)
{
	(void)number;
}

static void handle(int number, void (*handler)(int), int flags)
{
	struct sigaction a = { .sa_flags = flags };

	a.sa_handler = handler;
	assert_int_equal(sigaction(number, &a, NULL), 0);
}

/* What it was before is known for a while. */
static enum nap_signals look_anew(void)
{
	enum nap_signals found;

	nap_for(20000000);
	errno = EDOM;
	found = nap_signals(true);
	assert_int_equal(errno, EDOM);
	return found;
}

/* The test program has some of its own. */
static void change_handlers(struct sigaction saved[NSIG], bool restore)
{
	for (int i = 1; i < NSIG; i++) {
		if (restore)
			sigaction(i, &saved[i], NULL);
		else if (sigaction(i, NULL, &saved[i]) == 0 && saved[i].sa_handler != SIG_IGN)
			signal(i, SIG_DFL);
	}
}

static void calls_go_on_as_the_handlers_say(void **st)
{
	struct sigaction saved[NSIG];

	change_handlers(saved, false);
	/* Without handlers nothing can interrupt for good: a stop and a continue may. */
	assert_int_equal(look_anew(), NAP_RESTARTS);
	assert_true(nap_hears(1) && nap_hears(2));
	handle(SIGPIPE, SIG_IGN, 0);
	assert_int_equal(look_anew(), NAP_RESTARTS);
	handle(SIGUSR1, on_signal, SA_RESTART);
	assert_int_equal(look_anew(), NAP_RESTARTS);
	assert_true(nap_hears(1) && !nap_hears(2));
	handle(SIGRTMAX, on_signal, 0);
	assert_int_equal(look_anew(), NAP_UNSURE);
	assert_true(nap_hears(1) && !nap_hears(2));
	handle(SIGUSR1, SIG_DFL, 0);
	assert_int_equal(look_anew(), NAP_ENDS);
	assert_true(nap_hears(1) && nap_hears(2));
	handle(SIGUSR1, on_signal, 0);
	assert_int_equal(look_anew(), NAP_ENDS);
	handle(SIGUSR1, SIG_DFL, 0);
	handle(SIGRTMAX, SIG_DFL, 0);
	handle(SIGPIPE, SIG_DFL, 0);
	assert_int_equal(look_anew(), NAP_RESTARTS);
	change_handlers(saved, true);
}

/* --- asleep */

static void nap_ends_when_time_is_over(void **st)
{
	for (size_t n = 1; n <= LANES; n++) {
		uint64_t before = clock_now();

		errno = EDOM;
		assert_int_equal(nap_on(list, n, SHORT_NS), 0);
		assert_true(clock_now() - before >= SHORT_NS);
		assert_int_equal(errno, EDOM);
		for (size_t i = 0; i < LANES; i++)
			assert_int_equal(naps((int)i), i < n);
	}
}

/* Publishes into a lane when all nap, and wakes. */
static void *send_late(void *arg)
{
	const int *lanes = arg;
	int last = lanes[0] - 1;

	for (int i = 0; i < lanes[0]; i++)
		while (!naps(i))
			nap_for(100000);
	nap_for(20000000);
	publish(last, 5);
	assert_true(senders[last].wake);
	nap_end(&dirs[last]);
	return NULL;
}

static void nap_ends_when_something_is_published(void **st)
{
	for (int n = 1; n <= LANES; n++) {
		uint64_t before = clock_now();
		pthread_t thread;

		begin(st);
		pthread_create(&thread, NULL, send_late, &n);
		errno = EDOM;
		assert_int_equal(nap_on(list, (size_t)n, LONG_NS), 1);
		assert_int_equal(errno, EDOM);
		assert_true(clock_now() - before < LONG_NS);
		pthread_join(thread, NULL);
	}
}

static void nap_is_not_taken_when_something_is_there(void **st)
{
	for (int n = 1; n <= LANES; n++) {
		uint64_t before = clock_now();

		begin(st);
		publish(n - 1, 5);
		errno = EDOM;
		assert_int_equal(nap_on(list, (size_t)n, LONG_NS), 1);
		assert_int_equal(errno, EDOM);
		assert_false(naps(n - 1));
		assert_true(clock_now() - before < LONG_NS);
	}
}

/* Between the mark and the sleep. */
static int late_for, calls;

static long publish_first(long number, ...)
{
	long arg[6];
	va_list args;

	va_start(args, number);
	for (size_t i = 0; i < ARRAY_SIZE(arg); i++)
		arg[i] = va_arg(args, long);
	va_end(args);
	calls++;
	if (late_for > 0) {
		publish(late_for - 1, 1);
		assert_true(senders[late_for - 1].wake);
	}
	return syscall(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
}

static void nap_is_not_taken_when_the_word_changes_before_it(void **st)
{
	sys_function *found = sys_found;

	sys_found = publish_first;
	for (int n = 1; n <= LANES; n++) {
		uint64_t before = clock_now();

		begin(st);
		late_for = n;
		errno = EDOM;
		assert_int_equal(nap_on(list, (size_t)n, LONG_NS), 1);
		assert_int_equal(errno, EDOM);
		assert_true(clock_now() - before < LONG_NS);
	}
	assert_int_equal(calls, LANES);
	/* And the kernel is not called at all when it is seen before. */
	late_for = 0;
	publish(0, 1);
	assert_int_equal(nap_on(list, 1, LONG_NS), 1);
	assert_int_equal(nap_on(list, LANES, LONG_NS), 1);
	assert_int_equal(calls, LANES);
	sys_found = found;
}

/* The mark of another thread's nap is ours as well; a wake-up is for all. */
static void *nap_too(void *arg)
{
	(void)arg;
	return (void *)(intptr_t)nap_on(list, 1, LONG_NS);
}

static void naps_end_together_when_several_threads_nap(void **st)
{
	pthread_t thread[3];

	for (size_t i = 0; i < ARRAY_SIZE(thread); i++)
		pthread_create(&thread[i], NULL, nap_too, NULL);
	nap_for(50000000);
	publish(0, 5);
	assert_true(senders[0].wake);
	nap_end(&dirs[0]);
	for (size_t i = 0; i < ARRAY_SIZE(thread); i++) {
		void *outcome;

		pthread_join(thread[i], &outcome);
		assert_int_equal((intptr_t)outcome, 1);
	}
}

static void nap_ends_when_a_handler_has_run(void **st)
{
	const struct itimerval soon = { .it_value = { .tv_usec = 20000 } };

	for (size_t n = 0; n <= LANES; n++) {
		handle(SIGALRM, on_signal, n == 0 ? SA_RESTART : 0);
		setitimer(ITIMER_REAL, &soon, NULL);
		errno = EDOM;
		assert_int_equal(nap_on(list, n ? n : 1, LONG_NS), -1);
		assert_int_equal(errno, EINTR);
	}
	handle(SIGALRM, SIG_DFL, 0);
}

static void errno_stays_when_nobody_is_woken(void **st)
{
	errno = EDOM;
	nap_end(&dirs[0]);
	assert_int_equal(errno, EDOM);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nap_is_skipped_twice_as_often_when_in_vain),
		TEST(nap_is_taken_again_when_a_sleep_was_short),
		TEST(nap_never_pays_when_nothing_may_spin_or_call),
		TEST(calls_go_on_as_the_handlers_say),
		TEST(nap_ends_when_time_is_over),
		TEST(nap_ends_when_something_is_published),
		TEST(nap_is_not_taken_when_something_is_there),
		TEST(nap_is_not_taken_when_the_word_changes_before_it),
		TEST(naps_end_together_when_several_threads_nap),
		TEST(nap_ends_when_a_handler_has_run),
		TEST(errno_stays_when_nobody_is_woken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
