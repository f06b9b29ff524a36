/* SPDX-License-Identifier: MIT */
/* What an adapter shows to its peers, and that who revokes waits for those who claim; but not for the dead, for another program, or
 * for a liar. */
#include "rnic/shown.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "channel/duct.h"
#include "rnic/mem.h"
#include "rnic/rnic.h"

#define ALL (FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ)

/* ---- time that runs, and calls that fail ---- */

static _Atomic uint64_t hurry_ns; /* each look at the clock takes so long */
static _Atomic uint64_t ahead_ns;
static int fail_at; /* the nth of these calls fails; 0: none */

int __real_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts);
int __wrap_clock_gettime(clockid_t id, struct timespec *ts)
{
	int rc = __real_clock_gettime(id, ts);
	uint64_t ns;

	ahead_ns += hurry_ns;
	ns = (uint64_t)ts->tv_nsec + ahead_ns;
	ts->tv_sec += (time_t)(ns / 1000000000u);
	ts->tv_nsec = (long)(ns % 1000000000u);
	return rc;
}

static bool fails(void)
{
	if (!fail_at || --fail_at)
		return false;
	errno = ENOMEM;
	return true;
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
	return fails() ? -1 : __real_memfd_create(name, flags);
}

ssize_t __real_getrandom(void *to, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t n, unsigned flags)
{
	return fails() ? -1 : __real_getrandom(to, n, flags);
}

int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size)
{
	return fails() ? -1 : __real_ftruncate64(fd, size);
}

void *__real_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off);
void *__wrap_mmap64(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	return fails() ? MAP_FAILED : __real_mmap64(at, n, prot, flags, fd, off);
}

int __real_madvise(void *at, size_t n, int advice);
int __wrap_madvise(void *at, size_t n, int advice);
int __wrap_madvise(void *at, size_t n, int advice)
{
	return fails() ? -1 : __real_madvise(at, n, advice);
}

/* ---- the scene: a table that is shown, and a peer ---- */

static struct mem_table t;
static struct rnic_pd pd;
static char bytes[4096];
static struct mem *region;
static struct shown *shown;
static struct duct *ours, *theirs;
static struct claimant *claimant;

static int make(void **state)
{
	static uint64_t name;
	struct mem_attr attr = { bytes, 1000, sizeof(bytes), ALL, false };

	if (mem_table_init(&t, 65536) || mem_register(&t, &pd, &attr, &region))
		return -1;
	shown = mem_show(&t);
	if (!shown || !duct_reachable() || duct_call(mailbox_name(), getpid(), ++name, &ours) ||
	    duct_answer(getpid(), name, &theirs))
		return -1;
	claimant = NULL;
	return 0;
}

static int drop(void **state)
{
	hurry_ns = 0;
	if (claimant)
		shown_remove_claimant(shown, claimant);
	else if (ours)
		duct_close(ours);
	if (theirs)
		duct_close(theirs);
	ours = theirs = NULL;
	mem_table_fini(&t);
	return 0;
}

static const struct shown_region *entry(const struct mem *m)
{
	return &shown->file->region[m->index];
}

/* ---- regions ---- */

static void region_is_shown_as_it_is(void **state)
{
	struct mem_attr attr = { bytes + 8, 5, 100, FLUE_REMOTE_READ, false };
	const struct shown_region *r;
	struct mem *later;

	r = entry(region); /* it was there before anybody was shown anything */
	assert_true(r->live == region->stag && r->pd == (uintptr_t)&pd && r->to == 1000 &&
		    r->length == sizeof(bytes) && r->base == (uintptr_t)bytes &&
		    r->access == (ALL | MEM_LOCAL) && !r->qpn);
	assert_int_equal(mem_register(&t, &pd, &attr, &later), 0);
	r = entry(later);
	assert_true(r->live == later->stag && r->to == 5 && r->length == 100 &&
		    r->base == (uintptr_t)bytes + 8 && r->access == (FLUE_REMOTE_READ | MEM_LOCAL));
	assert_int_equal(mem_invalidate(&t, later->stag, &pd, 0, false), MEM_OK);
	assert_int_equal(r->live, 0);
	assert_int_equal(mem_destroy(&t, region), 0);
	assert_int_equal(entry(region)->live, 0);
}

static void region_of_high_index_is_not_shown(void **state)
{
	struct mem m = { .index = SHOWN_REGIONS, .stag = 0x1234, .base = bytes };

	/* Behind the regions stand the gates. */
	shown_put(shown, &m, m.stag);
	assert_int_equal(shown->file->gate[0].open | shown->file->gate[1].open, 0);
	assert_int_equal(shown->file->gate[0].pd | shown->file->gate[1].pd, 0);
	shown_take(shown, &m, m.stag);
	m.index--;
	shown_put(shown, &m, m.stag);
	assert_int_equal(entry(&m)->live, 0x1234);
	shown_take(shown, &m, m.stag);
	assert_int_equal(entry(&m)->live, 0);
	shown_put(NULL, &m, 1); /* of an adapter that shows nothing */
	shown_take(NULL, &m, 1);
}

static void guard_page_says_what_the_file_says(void **state)
{
	struct shown *again;

	assert_true(shown->file->magic == SHOWN_MAGIC);
	assert_true(shown->file->guard == (uintptr_t)shown->guard);
	assert_true(shown->file->token == shown->guard->token && shown->guard->token);
	assert_int_equal(shown_make(&t.slots, &again), 0);
	assert_true(again->guard != shown->guard && again->file->token != shown->file->token);
	shown_free(again);
	assert_true(mem_show(&t) == shown);
}

static void program_can_close_the_file(void **state)
{
	int fd;

	fd = shown_fd(shown);
	assert_true(fd >= 0);
	assert_int_equal(dup2(0, fd), fd);
	assert_int_equal(shown_fd(shown), -1);
	shown_free(shown); /* and what stands there now is not ours */
	t.shown = NULL;
	assert_int_equal(close(fd), 0);
}

/* ---- gates ---- */

static void gates_run_out_and_are_used_again(void **state)
{
	static bool taken[SHOWN_GATES];
	uint32_t g;

	for (uint32_t i = 1; i < SHOWN_GATES; i++) {
		g = shown_open_gate(shown, i, &pd, i, 0);
		assert_true(g > 0 && g < SHOWN_GATES && !taken[g]);
		taken[g] = true;
	}
	assert_int_equal(shown_open_gate(shown, 1, &pd, 1, 0), 0);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t n = 1 + i * 16383;

		shown_shut_gate(shown, n);
		assert_int_equal(shown_open_gate(shown, 1, &pd, 1, 0), 0); /* not given back */
		shown_give_gate(shown, n);
		assert_int_equal(shown_open_gate(shown, 0x77, &pd, 5, 3), n);
		assert_true(shown->file->gate[n].open == (SHOWN_OPEN | 0x77));
		assert_true(shown->file->gate[n].qpn == 5 && shown->file->gate[n].deny == 3);
	}
	assert_int_equal(shown_open_gate(shown, 1, &pd, 1, 0), 0);
}

/* ---- claims ---- */

static uint64_t now_ms(void)
{
	struct timespec ts;

	__real_clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static void claim(uint32_t gate, uint32_t stag, pid_t pid)
{
	claimant = shown_add_claimant(shown, ours, pid);
	assert_non_null(claimant);
	atomic_store(duct_own_word(theirs), (uint64_t)gate << 32 | stag);
}

struct later {
	pthread_t thread;
	pid_t wake; /* is told to go on then */
	_Atomic bool gave;
};

static void *give_later(void *arg)
{
	struct later *l = arg;

	usleep(60000);
	hurry_ns = 0;
	if (l->wake)
		kill(l->wake, SIGCONT);
	usleep(10000);
	l->gave = true;
	atomic_store(duct_own_word(theirs), 0);
	return NULL;
}

static void give_soon(struct later *l)
{
	l->gave = false;
	assert_int_equal(pthread_create(&l->thread, NULL, give_later, l), 0);
}

static void await_given(struct later *l)
{
	assert_true(l->gave);
	pthread_join(l->thread, NULL);
	assert_false(claimant->liar);
}

static void who_revokes_waits_for_who_claims(void **state)
{
	struct later l = { .wake = 0 };

	claim(5, region->stag, getpid());
	give_soon(&l);
	assert_int_equal(mem_destroy(&t, region), 0);
	await_given(&l);
}

static void who_shuts_a_gate_waits_for_who_is_in_it(void **state)
{
	struct later l = { .wake = 0 };
	uint32_t gate;

	gate = shown_open_gate(shown, 1, &pd, 1, 0);
	claim(gate, 0x4711, getpid());
	give_soon(&l);
	shown_shut_gate(shown, gate);
	await_given(&l);
	assert_int_equal(shown->file->gate[gate].open, 0);
}

static void other_claims_hold_up_nobody(void **state)
{
	uint64_t begun = now_ms();
	uint32_t gate;

	gate = shown_open_gate(shown, 1, &pd, 1, 0);
	claim(gate + 1, region->stag + 1, getpid());
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK);
	shown_shut_gate(shown, gate);
	assert_true(now_ms() - begun < 5000);
	assert_true(*duct_own_word(theirs) != 0); /* it is not ours */
}

/* A process that waits for its end. */
static pid_t start_process(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return pid;
}

static void claim_of_a_dead_process_is_void(void **state)
{
	pid_t pid = start_process();

	claim(1, region->stag, pid);
	kill(pid, SIGKILL);
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK); /* a zombie */
	assert_int_equal(*duct_own_word(theirs), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	atomic_store(duct_own_word(theirs), 1ull << 32 | region->stag);
	shown_shut_gate(shown, 1); /* and when it is gone for good */
	assert_int_equal(*duct_own_word(theirs), 0);
	assert_false(claimant->liar);
}

/* Its number is in use, but the page that it showed is not there, or is another's. */
static void claim_of_another_program_is_void(void **state)
{
	pid_t pid = start_process();
	static uint64_t page = 77;

	claim(1, region->stag, pid);
	claimant->token = 78;
	atomic_store(&claimant->guard, (uintptr_t)&page);
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK);
	atomic_store(&claimant->guard, 4096);
	atomic_store(duct_own_word(theirs), 1ull << 32);
	shown_shut_gate(shown, 1);
	assert_false(claimant->liar);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void liar_is_waited_for_once_and_not_for_ever(void **state)
{
	static uint64_t page = 77;
	uint64_t begun = now_ms();
	uint64_t clock;

	claim(1, region->stag, getpid());
	claimant->token = page;
	atomic_store(&claimant->guard, (uintptr_t)&page); /* it is who it was */
	clock = ahead_ns;
	hurry_ns = 100 * 1000 * 1000;
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK);
	hurry_ns = 0;
	assert_true(claimant->liar);
	assert_true(ahead_ns - clock > 10ull * 1000 * 1000 * 1000);
	assert_true(now_ms() - begun < 5000);
	atomic_store(duct_own_word(theirs), 2ull << 32);
	shown_shut_gate(shown, 2);
	assert_true(now_ms() - begun < 5000);
}

static void stopped_process_is_no_liar(void **state)
{
	struct later l = { .wake = start_process() };
	static uint64_t page = 77;

	claim(1, region->stag, l.wake);
	claimant->token = page;
	atomic_store(&claimant->guard, (uintptr_t)&page);
	kill(l.wake, SIGSTOP);
	assert_int_equal(waitpid(l.wake, NULL, WUNTRACED), l.wake);
	/* Minutes go by while it stands. */
	hurry_ns = 500 * 1000 * 1000;
	give_soon(&l);
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK);
	hurry_ns = 0;
	await_given(&l);
	kill(l.wake, SIGKILL);
	waitpid(l.wake, NULL, 0);
}

static void *remove_later(void *arg)
{
	usleep(50000);
	shown_remove_claimant(shown, claimant);
	atomic_store(duct_own_word(theirs), 0);
	return arg;
}

/* The engine may drop a duct while somebody looks at its word. */
static void claimant_can_go_while_it_is_waited_for(void **state)
{
	pthread_t thread;

	claim(1, region->stag, getpid());
	assert_int_equal(pthread_create(&thread, NULL, remove_later, NULL), 0);
	assert_int_equal(mem_invalidate(&t, region->stag, &pd, 0, false), MEM_OK);
	pthread_join(thread, NULL);
	claimant = NULL;
	ours = NULL; /* closed by whoever was last */
	assert_int_equal(shown->n_claimants, 0);
}

/* ---- failures and children ---- */

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void what_cannot_be_made_leaves_nothing(void **state)
{
	unsigned before, failed = 0;
	struct shown *s;

	before = count_fds();
	for (int n = 1; n < 30; n++) {
		int rc;

		fail_at = n;
		s = NULL;
		rc = shown_make(&t.slots, &s);
		if (rc) {
			assert_true(rc < 0 && !s);
			failed++;
		} else {
			shown_free(s);
		}
		assert_int_equal(count_fds(), before);
		if (fail_at) { /* there were not so many */
			fail_at = 0;
			break;
		}
	}
	/* A page that fell on another is looked for again; all else is an end of it. */
	assert_true(failed >= 4);
}

static void child_has_nothing_of_it(void **state)
{
	int status;
	pid_t pid;

	claim(1, region->stag, getpid());
	pid = fork();
	if (pid == 0) {
		duct_forked(ours);
		duct_forked(theirs);
		mem_fork_child(&t);
		_exit(t.shown ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(entry(region)->live, region->stag);
	atomic_store(duct_own_word(theirs), 0);
}

#define TEST(x) cmocka_unit_test_setup_teardown(x, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(region_is_shown_as_it_is),
		TEST(region_of_high_index_is_not_shown),
		TEST(guard_page_says_what_the_file_says),
		TEST(program_can_close_the_file),
		TEST(gates_run_out_and_are_used_again),
		TEST(who_revokes_waits_for_who_claims),
		TEST(who_shuts_a_gate_waits_for_who_is_in_it),
		TEST(other_claims_hold_up_nobody),
		TEST(claim_of_a_dead_process_is_void),
		TEST(claim_of_another_program_is_void),
		TEST(liar_is_waited_for_once_and_not_for_ever),
		TEST(stopped_process_is_no_liar),
		TEST(claimant_can_go_while_it_is_waited_for),
		TEST(what_cannot_be_made_leaves_nothing),
		TEST(child_has_nothing_of_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
