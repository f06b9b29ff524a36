/* SPDX-License-Identifier: MIT */
/*
 * Runs the scenarios of one group: torture GROUP [--all]. Usually the nth call of a kind fails in
 * one of its ways, another one for each n, and with growing n some are left out; with --all each
 * of them fails in all of its ways.
 */
#include "torture/torture.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "torture/inject.h"

#define WATCHDOG_S 120 /* for one run; TORTURE_PATIENCE_MS a few times over */
#define MOST_RUNS  100000

/* What a connection is given to come about; short where most cannot. */
#define LONG_TIMEOUT_MS  5000
#define SHORT_TIMEOUT_MS 300

static const struct {
	const char *name;
	const struct scenario *scenarios;
} groups[] = {
	{ "objects", object_scenarios }, { "setup", setup_scenarios },
	{ "small", small_scenarios },    { "large", large_scenarios },
	{ "close", close_scenarios },    { "convert", convert_scenarios },
};

int torture_timeout_ms;
static bool short_timeout;
static bool all_turns;
/* What is running, for messages. */
static const struct scenario *running;
static struct inject_plan plan;

static void describe(char *text, size_t size)
{
	snprintf(text, size, "%s, %s #%lu x%lu error %d", running->name, inject_name(plan.call),
		 plan.nth, plan.count, plan.error);
}

static void on_alarm(int signal)
{
	char text[300];
	int n;

	/* Not safe in a signal handler by the book; the program is lost anyway. */
	describe(text, sizeof(text) - 1);
	n = (int)strlen(text);
	text[n++] = '\n';
	if (write(2, "# stuck: ", 9) < 0 || write(2, text, (size_t)n) < 0)
		_exit(3);
	abort();
}

void torture_promise(bool kept, const char *format, ...)
{
	char where[300], what[300];
	va_list args;

	if (kept)
		return;
	va_start(args, format);
	vsnprintf(what, sizeof(what), format, args);
	va_end(args);
	describe(where, sizeof(where));
	fail_msg("%s: %s", where, what);
}

static unsigned open_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Errors that a user of sockets knows, beside the one that was injected. */
static bool sensible(int error)
{
	static const int known[] = { ECONNRESET, ECONNREFUSED, ECONNABORTED, ETIMEDOUT, EPROTO,
				     ENOTCONN,   ENOBUFS,      ENOMEM,       EBUSY,     EFAULT };
	int injected;

	if (inject_struck(&injected) && error == injected && injected)
		return true;
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i] == error)
			return true;
	return false;
}

/* One run under `plan`. Returns whether something failed on purpose. */
static bool run_patiently(int timeout_ms)
{
	long allocations = inject_allocations(), threads = inject_threads();
	unsigned descriptors = open_descriptors();
	unsigned long struck;
	bool ok;
	int error;

	alarm(WATCHDOG_S);
	torture_timeout_ms = timeout_ms;
	inject_arm(&plan);
	errno = 0;
	ok = running->run();
	error = errno;
	struck = inject_disarm();
	alarm(0);
	/* A busy machine may need longer than the little time that a scarce one is given. */
	if (!ok && !struck && error == ETIMEDOUT && timeout_ms < LONG_TIMEOUT_MS)
		return run_patiently(LONG_TIMEOUT_MS);
	torture_promise(ok || struck, "it failed by itself: errno %d", error);
	torture_promise(ok || sensible(error), "it failed with errno %d", error);
	torture_promise(inject_allocations() == allocations, "%ld allocations are left",
			inject_allocations() - allocations);
	torture_promise(inject_threads() == threads, "%ld threads are left",
			inject_threads() - threads);
	torture_promise(open_descriptors() == descriptors, "%d descriptors are left",
			(int)open_descriptors() - (int)descriptors);
	return struck;
}

static bool run_once(void)
{
	return run_patiently(short_timeout ? SHORT_TIMEOUT_MS : LONG_TIMEOUT_MS);
}

/* n = 1, 2, 3 and so on, until nothing fails any more. `error` < 0: in turn. */
static void run_all(enum inject_call call, unsigned long count, int error)
{
	bool struck = true;

	/* Where a call comes by the hundred, its later turns are much alike. */
	for (unsigned long n = 1; struck; n += all_turns ? 1 : 1 + n / 30) {
		assert_true(n < MOST_RUNS);
		plan = (struct inject_plan) {
			.call = call, .nth = n, .count = count, .error = error
		};
		if (error < 0)
			inject_error(call, (unsigned)(n - 1) % inject_errors(call), &plan.error);
		struck = run_once();
	}
}

static void begin(void **state)
{
	running = *state;
	short_timeout = false;
	torture_timeout_ms = LONG_TIMEOUT_MS;
	plan = (struct inject_plan) { .call = INJECT_ANY, .nth = 1, .count = 0 };
	/* Once undisturbed: what a process makes once and keeps is then there. */
	running->run();
	run_once();
}

static void nth_call_of_any_kind_fails(void **state)
{
	begin(state);
	run_all(INJECT_ANY, 1, 0);
}

static void nth_call_of_one_kind_fails(void **state)
{
	int error;

	begin(state);
	for (enum inject_call c = INJECT_MEMORY; c < INJECT_NCALLS; c++) {
		if (!all_turns) {
			run_all(c, 1, -1);
			continue;
		}
		for (unsigned i = 0; inject_error(c, i, &error); i++)
			run_all(c, 1, error);
	}
}

/* The machine has run out of something and stays so. */
static void all_calls_from_the_nth_on_fail(void **state)
{
	static const enum inject_call scarce[] = { INJECT_MEMORY,       INJECT_SOCKET,
						   INJECT_ACCEPT,       INJECT_EVENTFD,
						   INJECT_EPOLL_CREATE, INJECT_THREAD };
	int error;

	begin(state);
	short_timeout = true;
	for (size_t i = 0; i < sizeof(scarce) / sizeof(scarce[0]); i++) {
		inject_error(scarce[i], 0, &error);
		run_all(scarce[i], ULONG_MAX, error);
	}
}

/* Nothing is wrong, it only has to be tried again, and again. */
static void nth_call_starts_a_storm(void **state)
{
	static const struct {
		enum inject_call call;
		int error;
	} storms[] = {
		{ INJECT_SENDMSG, EAGAIN }, { INJECT_SENDMSG, EINTR }, { INJECT_SENDMSG, 0 },
		{ INJECT_RECV, EAGAIN },    { INJECT_RECV, EINTR },    { INJECT_RECV, 0 },
		{ INJECT_RECVMSG, EAGAIN }, { INJECT_RECVMSG, EINTR }, { INJECT_RECVMSG, 0 },
		{ INJECT_SEND, EINTR },     { INJECT_ACCEPT, EINTR },  { INJECT_EPOLL_WAIT, EINTR },
		{ INJECT_VM_READ, 0 },      { INJECT_VM_WRITE, 0 },    { INJECT_READ, EAGAIN },
	};

	begin(state);
	for (size_t i = 0; i < sizeof(storms) / sizeof(storms[0]); i++)
		run_all(storms[i].call, 10, storms[i].error);
}

static void every_transfer_moves_one_octet(void **state)
{
	begin(state);
	inject_trickle(true);
	run_once();
	inject_trickle(false);
}

/* A sandbox forbids copies through the kernel; the library goes on without them. */
static void data_moves_when_copies_through_the_kernel_are_forbidden(void **state)
{
	running = &small_scenarios[0];
	torture_timeout_ms = LONG_TIMEOUT_MS;
	plan = (struct inject_plan) {
		.call = INJECT_VM_WRITE, .nth = 1, .count = ULONG_MAX, .error = EPERM
	};
	inject_arm(&plan);
	for (const struct scenario *s = small_scenarios; s->name; s++) {
		running = s;
		if (!s->run())
			fail_msg("%s: errno %d", s->name, errno);
	}
	assert_true(inject_disarm() > 0);
}

#define MODES 5
static const struct {
	const char *name;
	CMUnitTestFunction run;
} modes[MODES] = {
	{ "survives the nth failure of any call", nth_call_of_any_kind_fails },
	{ "survives the nth failure of each kind of call", nth_call_of_one_kind_fails },
	{ "survives failures that last from the nth call on", all_calls_from_the_nth_on_fail },
	{ "weathers a storm that begins with the nth call", nth_call_starts_a_storm },
	{ "works when every transfer moves one octet", every_transfer_moves_one_octet },
};

static int run_group(const char *name, const struct scenario *list)
{
	static struct CMUnitTest tests[64];
	static char names[64][160];
	size_t n = 0;

	for (; list->name; list++) {
		for (int m = 0; m < MODES; m++) {
			if (m == MODES - 1 && !list->trickles)
				continue;
			snprintf(names[n], sizeof(names[n]), "%s %s", list->name, modes[m].name);
			tests[n] = (struct CMUnitTest) { .name = names[n],
							 .test_func = modes[m].run,
							 .initial_state = (void *)(uintptr_t)list };
			n++;
		}
	}
	return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}

int main(int argc, char **argv)
{
	static const struct CMUnitTest sandbox[] = {
		cmocka_unit_test(data_moves_when_copies_through_the_kernel_are_forbidden),
	};

	signal(SIGALRM, on_alarm);
	all_turns = argc > 2 && !strcmp(argv[2], "--all");
	for (size_t i = 0; argc > 1 && i < sizeof(groups) / sizeof(groups[0]); i++) {
		if (!strcmp(groups[i].name, argv[1]))
			return run_group(argv[1], groups[i].scenarios);
	}
	if (argc > 1 && !strcmp(argv[1], "sandbox"))
		return cmocka_run_group_tests(sandbox, NULL, NULL);
	fprintf(stderr, "usage: torture objects|setup|small|large|close|convert|sandbox [--all]\n");
	return 2;
}
