/* SPDX-License-Identifier: MIT */
/* The engine: timers, notes, kicks, descriptors, who drives when, fork (CH-1, CH-4). */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/util.h"
#include "rnic/cq.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/rnic.h"

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NO_THREADS_AFTER_FORK 1 /* ThreadSanitizer cannot */
#endif
#endif

static struct rnic *r;
static struct engine *e, *f; /* two engines of one adapter */
static const struct rnic_upcalls up;

static int make(void **state)
{
	int cpus[2] = { sched_getcpu(), sched_getcpu() };
	cpu_set_t set;

	sched_getaffinity(0, sizeof(set), &set);
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &set) && i != cpus[0])
			cpus[1] = i;
	if (rnic_open(cpus, 2, &up, NULL, &r))
		return -1;
	e = &r->engines[0];
	f = &r->engines[1];
	return 0;
}

static int drop(void **state)
{
	rnic_close(r);
	return 0;
}

static void start(struct engine *x)
{
	engine_lock(x);
	assert_int_equal(engine_start(x), 0);
	engine_unlock(x);
}

static bool eventually(atomic_int *count, int n)
{
	for (int i = 0; i < 3000 && atomic_load(count) < n; i++)
		usleep(1000);
	return atomic_load(count) >= n;
}

/* ---- timers ---- */

static struct engine_timer timers[4];
static char fired[16];
static atomic_int n_fired;
static atomic_bool timer_on_engine;

static void fire(struct engine_timer *t)
{
	engine_assert_locked(e);
	atomic_store(&timer_on_engine, engine_is_self(e));
	fired[atomic_load(&n_fired)] = (char)('a' + (t - timers));
	atomic_fetch_add(&n_fired, 1);
}

static void init_timers(void)
{
	for (unsigned i = 0; i < ARRAY_SIZE(timers); i++)
		timers[i] = (struct engine_timer) { .fire = fire };
	atomic_store(&n_fired, 0);
	memset(fired, 0, sizeof(fired));
	start(e);
	usleep(20000); /* it sleeps: arming must wake it */
}

static void engine_fires_timers_in_the_order_of_their_time(void **state)
{
	uint64_t begin = clock_now();

	init_timers();
	engine_lock(e);
	engine_timer_arm(e, &timers[0], 60);
	engine_timer_arm(e, &timers[1], 20);
	engine_timer_arm(e, &timers[2], 40);
	engine_timer_arm(e, &timers[3], 40); /* equal: in the order of arming */
	engine_unlock(e);
	assert_true(eventually(&n_fired, 4));
	assert_string_equal(fired, "bcda");
	assert_true(clock_now() - begin >= 60 * NSEC_PER_MSEC);
	assert_true(atomic_load(&timer_on_engine));
}

/* The thread looks around every POLLSET_LOOK_MS anyway: that must not be what finds it. */
static void engine_thread_is_woken_by_a_timer_that_is_the_next(void **state)
{
	uint64_t best = UINT64_MAX;

	init_timers();
	start(e);
	/* A few tries, because the machine may be busy. */
	for (int i = 1; i <= 3 && best >= POLLSET_LOOK_MS * NSEC_PER_MSEC / 2; i++) {
		uint64_t armed;

		usleep(50000); /* it sleeps, with nothing to wait for */
		armed = clock_now();
		engine_lock(e);
		engine_timer_arm(e, &timers[0], 1);
		engine_unlock(e);
		for (int k = 0; k < 20000 && atomic_load(&n_fired) < i; k++)
			usleep(500);
		assert_int_equal(atomic_load(&n_fired), i);
		best = min_u64(best, clock_now() - armed);
	}
	assert_true(best < POLLSET_LOOK_MS * NSEC_PER_MSEC / 2);
}

static void engine_timer_that_was_stopped_does_not_fire(void **state)
{
	init_timers();
	engine_lock(e);
	for (int i = 0; i < 3; i++)
		engine_timer_arm(e, &timers[i], 20);
	engine_timer_stop(e, &timers[0]);
	engine_timer_stop(e, &timers[0]);    /* twice is fine */
	engine_timer_arm(e, &timers[1], 50); /* once more: only the new time counts */
	engine_unlock(e);
	assert_true(eventually(&n_fired, 2));
	usleep(30000);
	assert_string_equal(fired, "cb");
}

static void fire_again(struct engine_timer *t)
{
	if (atomic_fetch_add(&n_fired, 1) < 4)
		engine_timer_arm(e, t, 0);
}

static void engine_timer_may_arm_itself_again(void **state)
{
	init_timers();
	timers[0].fire = fire_again;
	engine_lock(e);
	engine_timer_arm(e, &timers[0], 1);
	engine_unlock(e);
	assert_true(eventually(&n_fired, 5));
	assert_int_equal(timers[0].at, 0);
}

/* ---- notes ---- */

struct test_note {
	struct engine_note base;
	struct test_note *again; /* told from inside */
	int number;
	int sleep_ms;
};

static struct test_note notes[8];
static int order[64];
static atomic_int n_ran, n_begun, wrong_place;

static void run_note(struct engine_note *n)
{
	struct test_note *t = container_of(n, struct test_note, base);

	atomic_fetch_add(&n_begun, 1);
	if (t->sleep_ms)
		usleep((unsigned)t->sleep_ms * 1000);
	/* On the engine's thread, with no lock held. */
	if (!engine_is_self(e) || pthread_mutex_trylock(&e->lock))
		atomic_fetch_add(&wrong_place, 1);
	else
		engine_unlock(e);
	if (t->again)
		engine_tell(e, &t->again->base);
	t->again = NULL;
	order[atomic_load(&n_ran)] = t->number;
	atomic_fetch_add(&n_ran, 1);
}

static void init_notes(void)
{
	for (unsigned i = 0; i < ARRAY_SIZE(notes); i++)
		notes[i] = (struct test_note) { .base.run = run_note, .number = (int)i };
	atomic_store(&n_ran, 0);
	atomic_store(&n_begun, 0);
	atomic_store(&wrong_place, 0);
}

static void engine_runs_notes_in_order_on_its_own_thread(void **state)
{
	init_notes();
	/* Told before the engine runs: they wait for it. */
	for (int i = 0; i < 8; i++)
		engine_tell(e, &notes[i].base);
	usleep(5000);
	assert_int_equal(atomic_load(&n_ran), 0);
	start(e);
	assert_true(eventually(&n_ran, 8));
	for (int i = 0; i < 8; i++)
		assert_int_equal(order[i], i);
	assert_int_equal(atomic_load(&wrong_place), 0);
}

static void engine_queues_a_note_once_but_again_while_it_runs(void **state)
{
	init_notes();
	engine_tell(e, &notes[0].base);
	engine_tell(e, &notes[1].base);
	engine_tell(e, &notes[0].base); /* keeps its place */
	notes[1].again = &notes[1];
	start(e);
	assert_true(eventually(&n_ran, 3));
	usleep(10000);
	assert_int_equal(atomic_load(&n_ran), 3);
	assert_int_equal(order[0], 0);
	assert_int_equal(order[1], 1);
	assert_int_equal(order[2], 1);
}

static void engine_untell_takes_back_and_waits_for_a_note_that_runs(void **state)
{
	init_notes();
	notes[0].sleep_ms = 30;
	start(e);
	engine_tell(e, &notes[0].base);
	assert_true(eventually(&n_begun, 1));
	engine_tell(e, &notes[1].base);
	engine_untell(e, &notes[1].base);
	assert_int_equal(atomic_load(&n_ran), 0);
	engine_untell(e, &notes[0].base);
	assert_int_equal(atomic_load(&n_ran), 1); /* it was waited for */
	usleep(10000);
	assert_int_equal(atomic_load(&n_begun), 1);
}

static void run_untell_self(struct engine_note *n)
{
	engine_untell(e, n);
	atomic_fetch_add(&n_ran, 1);
}

static void engine_untell_from_the_note_itself_does_not_wait(void **state)
{
	init_notes();
	notes[0].base.run = run_untell_self;
	start(e);
	engine_tell(e, &notes[0].base);
	assert_true(eventually(&n_ran, 1));
}

/* ---- kicks ---- */

enum { KICKERS = 2, ROUNDS = 50000 };
static struct engine_kick kick;
static atomic_int work;    /* left by the kickers */
static int done, unlocked; /* under the engine's lock */
static atomic_int round_now, at_rest;

static void run_kick(struct engine_kick *k)
{
	done += atomic_exchange(&work, 0);
	unlocked += pthread_mutex_trylock(&e->lock) != EBUSY;
}

static void init_kick(void)
{
	kick = (struct engine_kick) { .run = run_kick };
	atomic_store(&work, 0);
	done = unlocked = 0;
}

static void await(atomic_int *word, int value)
{
	for (int spins = 1; atomic_load(word) != value; spins++)
		if (spins % 100 == 0)
			sched_yield();
}

static void *keep_kicking(void *arg)
{
	for (int i = 1; i <= ROUNDS; i++) {
		await(&round_now, i);
		atomic_fetch_add(&work, 1);
		engine_kick(e, &kick);
		atomic_fetch_add(&at_rest, 1);
	}
	return NULL;
}

/* All at once, then a look: when no thread is inside any more, nothing may be left behind. */
static void engine_loses_no_kick_with_many_threads(void **state)
{
	pthread_t thread[KICKERS];

	init_kick();
	for (int i = 0; i < KICKERS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, keep_kicking, NULL), 0);
	for (int i = 1; i <= ROUNDS; i++) {
		atomic_store(&at_rest, 0);
		atomic_store(&round_now, i);
		await(&at_rest, KICKERS);
		if (atomic_load(&work) || atomic_load(&e->n_kicks))
			fail_msg("round %d: a kick was lost", i);
	}
	for (int i = 0; i < KICKERS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(done, KICKERS * ROUNDS);
	assert_int_equal(unlocked, 0);
}

static void *kick_once(void *arg)
{
	atomic_fetch_add(&work, 1);
	engine_kick(e, &kick);
	return NULL;
}

static void kick_from_elsewhere(void)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, kick_once, NULL), 0);
	pthread_join(thread, NULL);
}

static void engine_kick_is_left_to_the_holder_of_the_lock(void **state)
{
	init_kick();
	engine_lock(e);
	kick_from_elsewhere();
	kick_from_elsewhere();
	assert_int_equal(done, 0);
	assert_int_equal(atomic_load(&e->n_kicks), 1);
	engine_unlock(e);
	assert_int_equal(done, 2);
}

static void run_and_kick(struct engine_kick *k)
{
	if (done == 0)
		kick_from_elsewhere();
	done++;
}

static void engine_kick_that_comes_while_it_runs_runs_again(void **state)
{
	init_kick();
	kick.run = run_and_kick;
	engine_lock(e);
	kick_from_elsewhere();
	engine_unlock(e);
	assert_int_equal(done, 2);
}

static void engine_unkick_takes_the_work_back(void **state)
{
	init_kick();
	engine_lock(e);
	kick_from_elsewhere();
	engine_unkick(e, &kick);
	engine_unkick(e, &kick);
	engine_unlock(e);
	assert_int_equal(done, 0);
	assert_int_equal(atomic_load(&e->n_kicks), 0);
}

/* ---- descriptors ---- */

struct test_io {
	struct engine_io base;
	struct test_io *victim; /* forgotten by the handler */
	atomic_int ready, by_engine;
};

static void on_ready(struct engine_io *base, uint32_t events)
{
	struct test_io *io = container_of(base, struct test_io, base);
	uint64_t count;

	engine_assert_locked(e);
	assert(events & EPOLLIN);
	if (io->victim)
		engine_forget(e, &io->victim->base);
	if (read(base->fd, &count, sizeof(count)) < 0)
		return; /* asked without need: the hot link */
	e->hot = base;
	e->idle_polls = 0;
	atomic_store(&io->by_engine, engine_is_self(e));
	atomic_fetch_add(&io->ready, 1);
}

static void add_io(struct test_io *io)
{
	*io = (struct test_io) { .base.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
				 .base.ready = on_ready };
	assert_true(io->base.fd >= 0);
	engine_lock(e);
	assert_int_equal(engine_watch(e, &io->base, EPOLLIN), 0);
	engine_unlock(e);
}

static void drop_io(struct test_io *io)
{
	engine_lock(e);
	engine_forget(e, &io->base);
	engine_unlock(e);
	close(io->base.fd);
}

static void signal_io(struct test_io *io)
{
	uint64_t one = 1;

	assert_int_equal(write(io->base.fd, &one, sizeof(one)), sizeof(one));
}

static uint64_t name_of(const struct test_io *io)
{
	uint32_t slot = io->base.slot - 1;

	return slot | (uint64_t)e->ios[slot].generation << 32;
}

static void engine_hears_of_every_descriptor_when_its_table_grows(void **state)
{
	enum { N = 100 };
	struct test_io *io = calloc(N, sizeof(*io));

	assert_non_null(io);
	for (int i = 0; i < N; i++)
		add_io(&io[i]);
	for (int i = 0; i < N; i++)
		signal_io(&io[i]);
	for (int i = 0; i < N; i++)
		assert_true(eventually(&io[i].ready, 1));
	for (int i = 0; i < N; i++)
		drop_io(&io[i]);
	assert_int_equal(e->n_ios, 0);
	free(io);
}

/* Both are ready in one round of epoll; the first one's handler takes the other one out. */
static void engine_does_not_call_a_descriptor_forgotten_meanwhile(void **state)
{
	struct test_io a, b;

	add_io(&a);
	add_io(&b);
	a.victim = &b;
	b.victim = &a;
	engine_lock(e);
	signal_io(&a);
	signal_io(&b);
	usleep(5000);
	engine_unlock(e);
	for (int i = 0; i < 3000 && !atomic_load(&a.ready) && !atomic_load(&b.ready); i++)
		usleep(1000);
	usleep(10000);
	assert_int_equal(atomic_load(&a.ready) + atomic_load(&b.ready), 1);
	drop_io(&a);
	drop_io(&b);
}

static void engine_event_of_an_old_descriptor_does_not_hit_the_new_one(void **state)
{
	struct test_io a, b = { .base.fd = -1 };
	uint64_t name;
	uint32_t slot;

	add_io(&a);
	name = name_of(&a);
	slot = a.base.slot;
	engine_lock(e);
	assert_ptr_equal(engine_io_of(e, name), &a.base);
	engine_unlock(e);
	drop_io(&a);
	for (int i = 0; i < 100 && b.base.slot != slot; i++) {
		if (b.base.fd >= 0)
			drop_io(&b);
		add_io(&b);
	}
	assert_int_equal(b.base.slot, slot); /* the place was used again */
	engine_lock(e);
	assert_null(engine_io_of(e, name));
	assert_ptr_equal(engine_io_of(e, name_of(&b)), &b.base);
	assert_null(engine_io_of(e, 1u << 30));
	engine_unlock(e);
	drop_io(&b);
}

/* ---- who drives ---- */

/* Polls without looking at the sockets for `ms`; returns the longest pause between two polls. */
static uint64_t keep_lease(uint64_t ms)
{
	uint64_t last = clock_now(), end = last + ms * NSEC_PER_MSEC, longest = 0;

	while (last < end) {
		uint64_t now;

		atomic_fetch_add(&e->lease, 1);
		now = clock_now();
		longest = now - last > longest ? now - last : longest;
		last = now;
	}
	return longest;
}

/* On a busy machine we may be stopped for longer than a lease lasts; then it proves nothing. */
static void engine_thread_leaves_the_sockets_to_a_lease_and_comes_back(void **state)
{
	struct test_io io;
	int before = 0, after = 0, tries = 0;
	uint64_t longest;

	add_io(&io);
	signal_io(&io);
	assert_true(eventually(&io.ready, 1));
	assert_true(atomic_load(&io.by_engine));
	do {
		if (++tries > 100) {
			print_message("# the machine is too busy for 20 ms without a pause\n");
			drop_io(&io);
			skip();
		}
		atomic_store(&e->lease, 1);
		engine_wake(e);
		longest = keep_lease(5);
		before = atomic_load(&io.ready);
		signal_io(&io);
		longest = longest + keep_lease(20);
		after = atomic_load(&io.ready);
		engine_end_lease(e);
		assert_true(eventually(&io.ready, before + 1));
	} while (longest > NSEC_PER_MSEC);
	assert_int_equal(after, before);
	assert_true(atomic_load(&io.by_engine));
	drop_io(&io);
}

static void engine_poll_drives_on_the_callers_thread_then_gives_back(void **state)
{
	uint64_t give_up = clock_now() + 3 * NSEC_PER_SEC;
	struct test_io io;
	int mine = 0;

	add_io(&io);
	usleep(20000);
	assert_int_equal(atomic_load(&e->driver), DRIVER_THREAD);
	/* The thread sleeps in epoll_wait and has to be asked to let go. */
	do {
		engine_poll(e);
		assert_true(clock_now() < give_up);
	} while (atomic_load(&e->driver) == DRIVER_THREAD);
	for (int i = 1; i <= 200; i++) {
		signal_io(&io);
		while (atomic_load(&io.ready) < i)
			engine_poll(e);
		mine += !atomic_load(&io.by_engine);
	}
	/* The first ones may be the thread's, and any while this one is not on a processor. */
	assert_true(mine > 20);
	/* Nobody polls any more: the lease lapses by itself. */
	signal_io(&io);
	assert_true(eventually(&io.ready, 201));
	assert_true(atomic_load(&io.by_engine));
	drop_io(&io);
}

static void no_handler(void *owner, void *arg)
{
}

static struct cq *make_cq(void)
{
	struct cq *cq;

	assert_int_equal(cq_create(r, e, 16, no_handler, NULL, NULL, &cq), 0);
	return cq;
}

struct waiter {
	struct cq *cq;
	pthread_t thread;
	int rc;
	atomic_int back;
};

static void *wait_for_news(void *arg)
{
	struct waiter *w = arg;

	w->rc = cq_wait(w->cq, 5000);
	atomic_store(&w->back, 1);
	return NULL;
}

/* One of them drives, the others follow; each wakes for its own CQ, in whatever order. */
static void engine_wait_wakes_the_right_one_of_many(void **state)
{
	static const int turn[] = { 1, 0, 2 };
	struct cqe news = { .wc = { .id = 1 } };
	struct waiter w[3];

	for (int i = 0; i < 3; i++) {
		w[i] = (struct waiter) { .cq = make_cq() };
		assert_int_equal(pthread_create(&w[i].thread, NULL, wait_for_news, &w[i]), 0);
		usleep(5000);
	}
	for (int i = 0; i < 3; i++) {
		usleep(10000);
		assert_int_equal(atomic_load(&w[turn[i]].back), 0);
		assert_true(cq_push(w[turn[i]].cq, &news, false));
		pthread_join(w[turn[i]].thread, NULL);
		assert_int_equal(w[turn[i]].rc, 0);
	}
	for (int i = 0; i < 3; i++)
		cq_destroy(w[i].cq);
}

static void engine_wait_drives_the_sockets_and_gives_them_back(void **state)
{
	struct waiter w = { .cq = make_cq() };
	struct cqe news = { .wc = { .id = 1 } };
	struct test_io io;

	add_io(&io);
	assert_int_equal(pthread_create(&w.thread, NULL, wait_for_news, &w), 0);
	usleep(60000); /* long enough for the thread to sleep without a limit */
	signal_io(&io);
	assert_true(eventually(&io.ready, 1));
	assert_false(atomic_load(&io.by_engine));
	assert_true(cq_push(w.cq, &news, false));
	pthread_join(w.thread, NULL);
	signal_io(&io);
	assert_true(eventually(&io.ready, 2));
	assert_true(atomic_load(&io.by_engine));
	drop_io(&io);
	cq_destroy(w.cq);
}

/* The thread has gone to sleep without a limit, or is just about to, when the caller leaves. */
static void engine_thread_notices_when_a_waiting_caller_leaves(void **state)
{
	struct cq *cq = make_cq();
	struct test_io io;

	add_io(&io);
	for (int i = 1; i <= 20; i++) {
		assert_int_equal(cq_wait(cq, 24 + 2 * i), -ETIMEDOUT);
		signal_io(&io);
		assert_true(eventually(&io.ready, i));
	}
	drop_io(&io);
	cq_destroy(cq);
}

/* What the engine's thread uses in the next `ms`, while this one waits for cq or sleeps. */
static int64_t thread_time(struct cq *cq, int ms)
{
	struct timespec before, after;
	clockid_t clock;

	assert_int_equal(pthread_getcpuclockid(e->thread, &clock), 0);
	clock_gettime(clock, &before);
	if (cq)
		assert_int_equal(cq_wait(cq, ms), -ETIMEDOUT);
	else
		usleep((unsigned)ms * 1000);
	clock_gettime(clock, &after);
	return (after.tv_sec - before.tv_sec) * 1000000000ll + after.tv_nsec - before.tv_nsec;
}

static void engine_uses_no_processor_time_when_nothing_happens(void **state)
{
	struct cq *cq = make_cq();

	start(e);
	usleep(50000);
	assert_int_equal(thread_time(NULL, 200), 0);
	/* It looks around a few times before it trusts a caller to drive for long. */
	assert_true(thread_time(cq, 200) < (int64_t)(10 * NSEC_PER_MSEC));
	cq_destroy(cq);
}

static void engine_stops_whenever_it_is_asked(void **state)
{
	for (int i = 0; i < 2000; i++) {
		struct engine x;

		assert_int_equal(engine_init(&x, f->cpu, 0), 0);
		engine_lock(&x);
		assert_int_equal(engine_start(&x), 0);
		engine_unlock(&x);
		for (uint64_t until = clock_now() + (uint64_t)(i % 200) * 1000;
		     clock_now() < until;)
			;
		engine_fini(&x);
	}
}

/* ---- fork ---- */

static int child_of_fork(struct test_io *io, int set, int lamp)
{
	init_notes();
	if (e->has_thread || e->n_ios || io->base.slot)
		return 1;
	if (fcntl(set, F_GETFD) >= 0 || fcntl(lamp, F_GETFD) >= 0)
		return 4; /* the parent's; they must not stay open here */
	if (!TAILQ_EMPTY(&e->timers) || timers[0].at || atomic_load(&e->n_kicks))
		return 2;
#ifndef NO_THREADS_AFTER_FORK
	/* On first use it runs again. */
	engine_tell(e, &notes[0].base);
	add_io(io);
	signal_io(io);
	if (!eventually(&n_ran, 1) || !eventually(&io->ready, 1))
		return 3;
#endif
	rnic_close(r);
	return 0;
}

static void engine_starts_afresh_in_a_child_and_the_parent_goes_on(void **state)
{
	struct test_io io;
	int status, set, lamp;
	pid_t pid;

	init_timers();
	add_io(&io);
	engine_lock(e);
	engine_timer_arm(e, &timers[0], 100);
	engine_unlock(e);
	set = e->set.fd;
	lamp = e->set.lamp;
	pid = fork();
	if (pid == 0)
		_exit(child_of_fork(&io, set, lamp));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(eventually(&n_fired, 1));
	signal_io(&io);
	assert_true(eventually(&io.ready, 1));
	drop_io(&io);
}

/* A kick that finds the lock held by fork() must run afterwards, without further help. */
static void engine_runs_kicks_that_came_during_a_fork(void **state)
{
	init_kick();
	engine_lock(e);
	engine_fork_prepare(e);
	/* kick_from_elsewhere() would wait for what we hold */
	pthread_mutex_unlock(&e->work_lock);
	kick_from_elsewhere();
	pthread_mutex_lock(&e->work_lock);
	assert_int_equal(done, 0);
	engine_fork_parent(e);
	engine_unlock(e);
	assert_int_equal(done, 1);
}

static atomic_bool telling;

/* A queue pair on engine f completes into a CQ of engine e, as fast as it can. */
static void *keep_telling(void *arg)
{
	while (atomic_load(&telling)) {
		engine_lock(f);
		engine_tell(e, &notes[7].base);
		engine_unlock(f);
	}
	return NULL;
}

static void quiet_note(struct engine_note *n)
{
}

static void engine_fork_does_not_deadlock_with_engines_that_talk(void **state)
{
	pthread_t thread;
	int status;

	init_notes();
	notes[7].base.run = quiet_note;
	start(e);
	start(f);
	atomic_store(&telling, true);
	assert_int_equal(pthread_create(&thread, NULL, keep_telling, NULL), 0);
	for (int i = 0; i < 200; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(0);
		assert_true(pid > 0);
		waitpid(pid, &status, 0);
	}
	atomic_store(&telling, false);
	pthread_join(thread, NULL);
	engine_untell(e, &notes[7].base);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(engine_fires_timers_in_the_order_of_their_time),
		TEST(engine_thread_is_woken_by_a_timer_that_is_the_next),
		TEST(engine_timer_that_was_stopped_does_not_fire),
		TEST(engine_timer_may_arm_itself_again),
		TEST(engine_runs_notes_in_order_on_its_own_thread),
		TEST(engine_queues_a_note_once_but_again_while_it_runs),
		TEST(engine_untell_takes_back_and_waits_for_a_note_that_runs),
		TEST(engine_untell_from_the_note_itself_does_not_wait),
		TEST(engine_loses_no_kick_with_many_threads),
		TEST(engine_kick_is_left_to_the_holder_of_the_lock),
		TEST(engine_kick_that_comes_while_it_runs_runs_again),
		TEST(engine_unkick_takes_the_work_back),
		TEST(engine_hears_of_every_descriptor_when_its_table_grows),
		TEST(engine_does_not_call_a_descriptor_forgotten_meanwhile),
		TEST(engine_event_of_an_old_descriptor_does_not_hit_the_new_one),
		TEST(engine_thread_leaves_the_sockets_to_a_lease_and_comes_back),
		TEST(engine_poll_drives_on_the_callers_thread_then_gives_back),
		TEST(engine_wait_wakes_the_right_one_of_many),
		TEST(engine_wait_drives_the_sockets_and_gives_them_back),
		TEST(engine_thread_notices_when_a_waiting_caller_leaves),
		TEST(engine_uses_no_processor_time_when_nothing_happens),
		TEST(engine_stops_whenever_it_is_asked),
		TEST(engine_starts_afresh_in_a_child_and_the_parent_goes_on),
		TEST(engine_runs_kicks_that_came_during_a_fork),
		TEST(engine_fork_does_not_deadlock_with_engines_that_talk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
