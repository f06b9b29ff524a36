/* SPDX-License-Identifier: MIT */
/*
 * Polling and waiting: links that leave the epoll set while they are polled and must be found by
 * whoever looks next, and waits that poll before they sleep.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
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
#include "rnic/link.h"
#include "rnic/rnic.h"

/* As in engine_drive.c; a change there is a change of docs/design/engine.md, too. */
enum { PARK_AFTER = 32, SPIN_MISS_MAX = 6 };

static struct rnic *r;
static struct engine *e;
static const struct rnic_upcalls up;

/* ---- epoll_ctl that can fail, and tell ---- */

static atomic_bool refuse_add; /* as without memory, or over max_user_watches */
static atomic_int refused;
static void (*during_add)(void); /* called by who holds the engine's lock */

int __real_epoll_ctl(int set, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int set, int op, int fd, struct epoll_event *ev);
int __wrap_epoll_ctl(int set, int op, int fd, struct epoll_event *ev)
{
	if (op == EPOLL_CTL_ADD && atomic_load(&refuse_add)) {
		atomic_fetch_add(&refused, 1);
		errno = ENOSPC;
		return -1;
	}
	if (op == EPOLL_CTL_ADD && during_add)
		during_add();
	return __real_epoll_ctl(set, op, fd, ev);
}

/* ---- the engine's thread, held still ---- */

static sem_t let_go;
static atomic_int holding;
static struct engine_note holder;

static void run_holder(struct engine_note *n)
{
	atomic_store(&holding, 1);
	while (sem_wait(&let_go))
		;
	atomic_store(&holding, 0);
}

static bool eventually(atomic_int *count, int n)
{
	for (int i = 0; i < 3000 && atomic_load(count) < n; i++)
		usleep(1000);
	return atomic_load(count) >= n;
}

/* The thread is busy with a note: until release() only callers drive, so polls can be counted. */
static void hold(void)
{
	engine_tell(e, &holder);
	assert_true(eventually(&holding, 1));
}

static void release(void)
{
	if (!atomic_load(&holding))
		return;
	sem_post(&let_go);
	engine_untell(e, &holder);
}

static int make(void **state)
{
	int cpu = sched_getcpu();
	int rc;

	atomic_store(&refuse_add, false);
	atomic_store(&refused, 0);
	during_add = NULL;
	sem_init(&let_go, 0, 0);
	holder = (struct engine_note) { .run = run_holder };
	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	e = &r->engines[0];
	engine_lock(e);
	rc = engine_start(e);
	engine_unlock(e);
	return rc;
}

static int drop(void **state)
{
	during_add = NULL;
	release();
	rnic_close(r);
	sem_destroy(&let_go);
	return 0;
}

/* ---- links ---- */

struct test_io {
	struct engine_io base;
	struct cq *cq; /* gets a completion each time */
	atomic_int ready, by_engine;
	atomic_int out; /* times it was told that it can send */
};

static void on_ready(struct engine_io *base, uint32_t events)
{
	struct test_io *io = container_of(base, struct test_io, base);
	struct cqe news = { .wc = { .id = 1 } };
	uint64_t count;

	engine_assert_locked(e);
	if (events & EPOLLOUT)
		atomic_fetch_add(&io->out, 1);
	if (read(base->fd, &count, sizeof(count)) < 0)
		return; /* asked without need: the hot link */
	e->hot = base;
	e->idle_polls = 0;
	atomic_store(&io->by_engine, engine_is_self(e));
	atomic_fetch_add(&io->ready, 1);
	if (io->cq)
		cq_push(io->cq, &news, false);
}

/* Failing under the lock would leave it taken for ever. */
static int watch(struct test_io *io, uint32_t events)
{
	int rc;

	engine_lock(e);
	rc = engine_watch(e, &io->base, events);
	engine_unlock(e);
	return rc;
}

static void add_io(struct test_io *io)
{
	*io = (struct test_io) { .base.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC),
				 .base.ready = on_ready };
	assert_true(io->base.fd >= 0);
	assert_int_equal(watch(io, EPOLLIN), 0);
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

static bool is_parked(struct test_io *io)
{
	return atomic_load(&e->parked) == &io->base;
}

/* What the kernel says: only what is in the set can be modified. */
static bool in_set(struct test_io *io)
{
	struct epoll_event ev = { .events = io->base.events };
	bool in;

	engine_lock(e);
	ev.data.u64 = (io->base.slot - 1) | (uint64_t)e->ios[io->base.slot - 1].generation << 32;
	in = __real_epoll_ctl(e->set.fd, EPOLL_CTL_MOD, io->base.fd, &ev) == 0;
	engine_unlock(e);
	return in;
}

/* Data comes, and polls find it. Returns how many that took; 1000: they do not. */
static int poll_data(struct test_io *io)
{
	int before = atomic_load(&io->ready), polls = 0;

	signal_io(io);
	while (atomic_load(&io->ready) == before && polls < 1000) {
		engine_poll(e);
		polls++;
	}
	return polls;
}

/* A link that leaves the set, with the engine's thread held. */
static void park(struct test_io *io)
{
	for (int i = 0; i < 3 * PARK_AFTER && !is_parked(io); i++)
		assert_true(poll_data(io) < 1000);
	assert_true(is_parked(io));
	assert_false(in_set(io));
}

static void no_handler(void *owner, void *arg)
{
}

static struct cq *make_cq(void)
{
	struct cq *cq;

	assert_int_equal(cq_create(r, e, 1024, no_handler, NULL, NULL, &cq), 0);
	return cq;
}

struct waiter {
	struct cq *cq;
	pthread_t thread;
	int rc;
	atomic_int begun, back;
};

static void *wait_for_news(void *arg)
{
	struct waiter *w = arg;

	atomic_store(&w->begun, 1);
	w->rc = cq_wait(w->cq, 5000);
	atomic_store(&w->back, 1);
	return NULL;
}

static void start_waiter(struct waiter *w, struct cq *cq)
{
	*w = (struct waiter) { .cq = cq };
	assert_int_equal(pthread_create(&w->thread, NULL, wait_for_news, w), 0);
	assert_true(eventually(&w->begun, 1));
}

/* ---- a parked link is found ---- */

static void engine_poll_parks_a_busy_link_and_goes_on_finding_its_data(void **state)
{
	struct test_io io;

	hold();
	add_io(&io);
	/* Until it was found once, epoll is asked: that does not count. */
	assert_int_equal(poll_data(&io), 1);
	for (int i = 0; i < PARK_AFTER - 1; i++)
		assert_int_equal(poll_data(&io), 1);
	assert_false(is_parked(&io));
	assert_true(in_set(&io));
	assert_int_equal(poll_data(&io), 1);
	assert_true(is_parked(&io));
	assert_false(in_set(&io));
	for (int i = 0; i < 200; i++)
		assert_int_equal(poll_data(&io), 1);
	/* After many empty polls, one of which asks epoll, it takes two at most. */
	for (int i = 0; i < 200; i++) {
		for (int j = 0; j < i; j++)
			engine_poll(e);
		assert_true(poll_data(&io) <= 2);
	}
	assert_true(is_parked(&io));
	drop_io(&io);
}

static void engine_wait_that_sleeps_hears_of_a_parked_link(void **state)
{
	struct test_io io;
	struct waiter w;

	hold();
	add_io(&io);
	park(&io);
	io.cq = make_cq();
	e->spin_skip = 1000; /* it sleeps at once */
	start_waiter(&w, io.cq);
	assert_true(eventually(&e->sleeping, 1));
	assert_false(is_parked(&io));
	assert_true(in_set(&io));
	signal_io(&io);
	pthread_join(w.thread, NULL);
	assert_int_equal(w.rc, 0);
	drop_io(&io);
	cq_destroy(io.cq);
}

static void engine_wait_that_sleeps_hears_of_data_that_came_while_parked(void **state)
{
	struct test_io io;

	hold();
	add_io(&io);
	park(&io);
	io.cq = make_cq();
	e->spin_skip = 1000;
	signal_io(&io);
	assert_int_equal(cq_wait(io.cq, 5000), 0);
	drop_io(&io);
	cq_destroy(io.cq);
}

static void engine_wait_that_polls_first_leaves_the_link_parked(void **state)
{
	struct test_io io;

	hold();
	add_io(&io);
	park(&io);
	io.cq = make_cq();
	e->spin_skip = 0;
	signal_io(&io);
	assert_int_equal(cq_wait(io.cq, 5000), 0);
	assert_true(is_parked(&io));
	drop_io(&io);
	cq_destroy(io.cq);
}

static void engine_thread_hears_of_a_parked_link_when_nobody_polls_any_more(void **state)
{
	struct test_io io;

	add_io(&io);
	for (int i = 1; i <= 20; i++) {
		int before;

		hold();
		park(&io);
		before = atomic_load(&io.ready);
		if (i % 2) /* before it looks, or after */
			signal_io(&io);
		release();
		if (i % 2 == 0) {
			usleep(20000);
			signal_io(&io);
		}
		assert_true(eventually(&io.ready, before + 1));
		assert_true(atomic_load(&io.by_engine));
		assert_false(is_parked(&io));
		assert_true(in_set(&io));
	}
	drop_io(&io);
}

/* Asking for a notice ends the lease: the thread must not need its time to lapse. */
static void engine_thread_hears_of_a_parked_link_when_the_lease_is_ended(void **state)
{
	struct test_io io;

	hold();
	add_io(&io);
	park(&io);
	release();
	engine_end_lease(e);
	signal_io(&io);
	assert_true(eventually(&io.by_engine, 1));
	assert_false(is_parked(&io));
	drop_io(&io);
}

/* ---- others ---- */

static void engine_poll_returns_a_parked_link_when_another_becomes_busy(void **state)
{
	struct test_io a, b;

	hold();
	add_io(&a);
	add_io(&b);
	park(&a);
	assert_true(poll_data(&b) < 10); /* the sweep finds it */
	assert_ptr_equal(e->hot, &b.base);
	engine_poll(e);
	assert_false(is_parked(&a));
	assert_true(in_set(&a));
	assert_true(poll_data(&a) < 10);
	/* And the other way round, often. */
	for (int i = 0; i < 10; i++) {
		park(i % 2 ? &a : &b);
		assert_true(poll_data(i % 2 ? &b : &a) < 10);
	}
	drop_io(&a);
	drop_io(&b);
}

/* A peer that never stops sending must not keep the other ones from being heard. */
static void engine_poll_finds_other_links_while_one_always_has_data(void **state)
{
	struct test_io a, b;
	int polls = 0;

	hold();
	add_io(&a);
	add_io(&b);
	park(&a);
	signal_io(&b);
	for (; polls < 1000 && !atomic_load(&b.ready); polls++) {
		signal_io(&a);
		engine_poll(e);
	}
	assert_int_equal(atomic_load(&b.ready), 1);
	drop_io(&a);
	drop_io(&b);
}

/* A link without a descriptor, which has data in some of the polls. */
struct test_link {
	struct link base;
	unsigned asked, every; /* 1: always */
};

static void ask_test_link(struct link *base)
{
	struct test_link *l = container_of(base, struct test_link, base);

	if (l->asked++ % l->every == 0)
		e->idle_polls = 0;
}

static bool arm_test_link(struct link *base)
{
	return true;
}

static const struct link_ops test_link_ops = { .poll = ask_test_link, .arm = arm_test_link };

/* Whatever the rhythm in which it has data. */
static void engine_poll_finds_other_links_while_one_in_memory_has_data(void **state)
{
	hold();
	for (unsigned every = 1; every < 20; every++) {
		struct test_link l = { .base.ops = &test_link_ops, .every = every };
		struct test_io io;

		add_io(&io);
		engine_lock(e);
		engine_add_link(e, &l.base);
		engine_unlock(e);
		for (unsigned i = 0; i < every; i++) {
			engine_poll(e); /* begin elsewhere in the rhythm */
			assert_in_range(poll_data(&io), 1, 64 + every);
		}
		engine_lock(e);
		engine_remove_link(e, &l.base);
		engine_unlock(e);
		drop_io(&io);
	}
}

static void engine_watch_returns_a_parked_link(void **state)
{
	struct test_io io;

	hold();
	add_io(&io);
	park(&io);
	assert_int_equal(watch(&io, EPOLLIN | EPOLLOUT), 0);
	assert_false(is_parked(&io));
	assert_true(in_set(&io));
	assert_int_equal(io.base.events, EPOLLIN | EPOLLOUT);
	/* A link that waits for room to send is not parked, however busy. */
	for (int i = 0; i < 3 * PARK_AFTER; i++)
		assert_true(poll_data(&io) < 10);
	assert_true(in_set(&io));
	assert_int_equal(watch(&io, EPOLLIN), 0);
	park(&io);
	assert_int_equal(watch(&io, EPOLLIN), 0); /* the same as before */
	assert_false(is_parked(&io));
	assert_true(in_set(&io));
	drop_io(&io);
}

static void engine_forgets_a_parked_link(void **state)
{
	struct test_io io, next;

	hold();
	for (int by_watch = 0; by_watch < 2; by_watch++) {
		int ready;

		add_io(&io);
		park(&io);
		if (by_watch) {
			assert_int_equal(watch(&io, 0), 0);
		} else {
			engine_lock(e);
			engine_forget(e, &io.base);
			engine_unlock(e);
		}
		assert_null(atomic_load(&e->parked));
		assert_null(e->hot);
		assert_int_equal(io.base.slot, 0);
		assert_int_equal(io.base.events, 0);
		ready = atomic_load(&io.ready);
		signal_io(&io);
		for (int i = 0; i < 200; i++)
			engine_poll(e);
		assert_int_equal(atomic_load(&io.ready), ready);
		close(io.base.fd);
	}
	/* Most likely with the number of the one that was closed. */
	add_io(&next);
	assert_true(poll_data(&next) < 10);
	park(&next);
	release();
	signal_io(&next);
	assert_true(eventually(&next.by_engine, 1));
	drop_io(&next);
}

/* ---- no memory for the way back ---- */

/* The thread looks at it by itself; the link returns as soon as that can be done. */
static void engine_thread_serves_a_link_that_cannot_return(void **state)
{
	struct test_io io;
	int before;

	hold();
	add_io(&io);
	park(&io);
	atomic_store(&refuse_add, true);
	release();
	for (int i = 0; i < 10; i++) {
		before = atomic_load(&io.ready);
		usleep(5000);
		signal_io(&io);
		assert_true(eventually(&io.ready, before + 1));
		assert_true(atomic_load(&io.by_engine));
	}
	assert_true(atomic_load(&refused) > 0);
	assert_true(is_parked(&io));
	atomic_store(&refuse_add, false);
	for (int i = 0; i < 3000 && is_parked(&io); i++)
		usleep(1000);
	assert_true(in_set(&io));
	before = atomic_load(&io.ready);
	signal_io(&io);
	assert_true(eventually(&io.ready, before + 1));
	drop_io(&io);
}

static void engine_wait_serves_a_link_that_cannot_return(void **state)
{
	struct test_io io;
	struct waiter w;

	hold();
	add_io(&io);
	park(&io);
	io.cq = make_cq();
	e->spin_skip = 1000;
	atomic_store(&refuse_add, true);
	start_waiter(&w, io.cq);
	assert_true(eventually(&refused, 3)); /* it wakes and looks again */
	signal_io(&io);
	assert_true(eventually(&w.back, 1));
	pthread_join(w.thread, NULL);
	assert_int_equal(w.rc, 0);
	/* Its time limit holds, too. */
	io.cq = NULL;
	cq_destroy(w.cq);
	w.cq = make_cq();
	e->spin_skip = 1000;
	assert_int_equal(cq_wait(w.cq, 20), -ETIMEDOUT);
	cq_destroy(w.cq);
	drop_io(&io);
}

/* With another link hot, nobody would look at the parked one. */
static void engine_poll_serves_a_link_that_cannot_return(void **state)
{
	struct test_io a, b;

	hold();
	add_io(&a);
	add_io(&b);
	park(&a);
	atomic_store(&refuse_add, true);
	assert_true(poll_data(&b) < 10);
	for (int i = 0; i < 100; i++) {
		assert_true(poll_data(&a) < 10);
		assert_true(poll_data(&b) < 10);
	}
	atomic_store(&refuse_add, false);
	assert_true(poll_data(&b) < 10);
	engine_poll(e);
	assert_true(in_set(&a));
	drop_io(&a);
	drop_io(&b);
}

/* In the set this would have needed no memory: a connection must not die of it. */
static void engine_watch_of_a_link_that_cannot_return_is_done_by_hand(void **state)
{
	struct test_io io;
	int out;

	hold();
	add_io(&io);
	park(&io);
	atomic_store(&refuse_add, true);
	assert_int_equal(watch(&io, EPOLLIN | EPOLLOUT), 0);
	for (int i = 0; i < 10; i++)
		engine_poll(e);
	out = atomic_load(&io.out);
	assert_true(out > 0);
	assert_true(poll_data(&io) < 10);
	release();
	assert_true(eventually(&io.out, out + 3)); /* the thread asks it, too */
	atomic_store(&refuse_add, false);
	for (int i = 0; i < 3000 && is_parked(&io); i++)
		usleep(1000);
	assert_true(in_set(&io));
	drop_io(&io);
}

/* ---- nothing is lost while a link returns ---- */

static struct engine_kick kick;
static struct engine_note told;
static struct engine_timer timer;
static atomic_int n_kicked, n_told, n_fired;

static void run_told(struct engine_note *n)
{
	atomic_fetch_add(&n_told, 1);
}

static void run_kick(struct engine_kick *k)
{
	atomic_fetch_add(&n_kicked, 1);
	engine_tell(e, &told);
}

static void *kick_once(void *arg)
{
	engine_kick(e, &kick);
	return NULL;
}

/* The thread holds the lock to return a link: what is posted now is left to it. */
static void kick_meanwhile(void)
{
	pthread_t thread;

	during_add = NULL;
	assert_int_equal(pthread_create(&thread, NULL, kick_once, NULL), 0);
	pthread_join(thread, NULL);
}

static void engine_thread_tells_what_a_kick_left_while_a_link_returned(void **state)
{
	struct test_io io;

	kick = (struct engine_kick) { .run = run_kick };
	told = (struct engine_note) { .run = run_told };
	atomic_store(&n_kicked, 0);
	atomic_store(&n_told, 0);
	hold();
	add_io(&io);
	park(&io);
	during_add = kick_meanwhile;
	release();
	assert_true(eventually(&n_kicked, 1));
	assert_true(eventually(&n_told, 1));
	drop_io(&io);
}

static void fire(struct engine_timer *t)
{
	atomic_fetch_add(&n_fired, 1);
}

/* As a callback does that ends a connection without waiting. */
static void arm_timer(struct engine_note *n)
{
	engine_lock(e);
	engine_timer_arm(e, &timer, 20);
	engine_unlock(e);
}

static void engine_fires_a_timer_that_a_note_armed(void **state)
{
	timer = (struct engine_timer) { .fire = fire };
	told = (struct engine_note) { .run = arm_timer };
	atomic_store(&n_fired, 0);
	usleep(30000); /* the thread sleeps */
	engine_tell(e, &told);
	assert_true(eventually(&n_fired, 1));
}

static int child_of_fork(struct test_io *io)
{
	if (atomic_load(&e->parked) || e->hot || io->base.slot || io->base.events)
		return 1;
	if (e->spin_skip || e->spin_miss)
		return 2;
	return 0;
}

static void engine_fork_disturbs_no_parked_link(void **state)
{
	struct test_io io;
	int before, status;
	pid_t pid;

	hold();
	add_io(&io);
	park(&io);
	pid = fork();
	if (pid == 0)
		_exit(child_of_fork(&io));
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(is_parked(&io));
	assert_int_equal(poll_data(&io), 1);
	release();
	before = atomic_load(&io.ready);
	signal_io(&io);
	assert_true(eventually(&io.ready, before + 1));
	assert_true(atomic_load(&io.by_engine));
	drop_io(&io);
}

enum { LINKS = 3, ROUNDS = 400 };
static atomic_bool enough;

/* Polls and waits in turn, with pauses that let the lease lapse now and then. */
static void *poll_and_wait(void *arg)
{
	struct cq *cq = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;
	struct flue_wc wc[16];

	while (!atomic_load(&enough)) {
		int what = rand_r(&seed) % 100;

		if (what < 4)
			usleep(3000);
		else if (what < 10)
			cq_wait(cq, what % 3);
		else
			engine_poll(e);
		cq_poll(cq, wc, 16);
	}
	return NULL;
}

/* Whoever has the token, parks, sleeps or leaves: each link's data is found. */
static void engine_loses_no_data_with_pollers_waiters_and_its_thread(void **state)
{
	struct cq *cq = make_cq();
	struct test_io io[LINKS];
	pthread_t thread[2];

	cq_attach(cq, e);
	for (int i = 0; i < LINKS; i++) {
		add_io(&io[i]);
		io[i].cq = i ? cq : NULL;
	}
	atomic_store(&enough, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, poll_and_wait, cq), 0);
	for (int i = 0; i < ROUNDS; i++) {
		/* Long enough with one to have it parked. */
		struct test_io *next = &io[i / (2 * PARK_AFTER) % LINKS];
		int before = atomic_load(&next->ready);
		uint64_t until = clock_now() + 10 * NSEC_PER_SEC;

		signal_io(next);
		while (atomic_load(&next->ready) == before && clock_now() < until)
			sched_yield();
		if (atomic_load(&next->ready) == before)
			fail_msg("round %d: nobody looks at the link any more", i);
		if (i % 50 == 0) /* and nobody is there */
			usleep(10000);
	}
	atomic_store(&enough, true);
	for (int i = 0; i < 2; i++)
		pthread_join(thread[i], NULL);
	for (int i = 0; i < LINKS; i++)
		drop_io(&io[i]);
	cq_destroy(cq);
}

/* ---- waits that poll first ---- */

/* With the thread held, so that nothing but time ends a wait. */
static struct cq *make_spinner(void)
{
	struct cq *cq = make_cq();

	hold();
	assert_int_equal(cq_wait(cq, 1), -ETIMEDOUT); /* takes what hold() has rung */
	e->spin_skip = e->spin_miss = 0;
	return cq;
}

static void engine_wait_polls_less_and_less_when_that_is_in_vain(void **state)
{
	struct cq *cq = make_spinner();
	uint32_t skip = 0, miss = 0;
	int spins = 0, waits = 0;

	while (spins < SPIN_MISS_MAX + 1) {
		bool polls = e->spin_skip == 0;

		assert_int_equal(cq_wait(cq, 1), -ETIMEDOUT);
		waits++;
		spins += polls;
		if (polls && miss < SPIN_MISS_MAX)
			miss++;
		skip = polls ? (1u << miss) - 1 : skip - 1;
		assert_int_equal(e->spin_miss, miss);
		assert_int_equal(e->spin_skip, skip);
	}
	/* 1 + (1 + 1) + (3 + 1) + ... + (63 + 1): the seventh comes after six ever longer breaks. */
	assert_int_equal(waits, 127);
	assert_int_equal(e->spin_skip, 63); /* and it stays at that */
	cq_destroy(cq);
}

static void engine_wait_polls_again_when_that_helped_once(void **state)
{
	struct cq *cq = make_spinner();
	struct flue_wc wc;
	struct test_io io;

	add_io(&io);
	io.cq = cq;
	e->spin_miss = SPIN_MISS_MAX;
	e->spin_skip = 1;
	signal_io(&io);
	assert_int_equal(cq_wait(cq, 5000), 0); /* sleeps: that proves nothing about polling */
	assert_int_equal(e->spin_miss, SPIN_MISS_MAX);
	assert_int_equal(e->spin_skip, 0);
	assert_int_equal(cq_poll(cq, &wc, 1), 1);
	for (int i = 0; i < 100; i++) {
		signal_io(&io);
		assert_int_equal(cq_wait(cq, 5000), 0);
		assert_int_equal(e->spin_miss, 0);
		assert_int_equal(e->spin_skip, 0);
		assert_int_equal(cq_poll(cq, &wc, 1), 1);
	}
	drop_io(&io);
	cq_destroy(cq);
}

static void engine_wait_without_time_does_not_poll(void **state)
{
	struct cq *cq = make_spinner();

	for (int i = 0; i < 10; i++)
		assert_int_equal(cq_wait(cq, 0), -ETIMEDOUT);
	assert_int_equal(e->spin_miss, 0);
	assert_int_equal(e->spin_skip, 0);
	cq_destroy(cq);
}

/* The one who polls holds the token; the others' completions must reach them all the same. */
static void engine_wait_that_polls_wakes_those_who_follow(void **state)
{
	struct cq *busy = make_spinner();
	struct flue_wc wc;
	struct test_io io;
	struct waiter w;

	add_io(&io);
	for (int i = 0; i < 20; i++) {
		io.cq = busy;
		start_waiter(&w, make_cq());
		usleep(2000);
		io.cq = w.cq;
		signal_io(&io);
		cq_wait(busy, 2); /* drives, or follows */
		assert_true(eventually(&w.back, 1));
		pthread_join(w.thread, NULL);
		assert_int_equal(w.rc, 0);
		assert_int_equal(cq_poll(busy, &wc, 1), 0);
		cq_destroy(w.cq);
	}
	drop_io(&io);
	cq_destroy(busy);
}

/* ---- where the thread runs ---- */

static void engine_binds_its_thread_once_and_for_the_next_one_too(void **state)
{
	cpu_set_t set;
	struct engine x;
	int cpu = r->engines[0].cpu;

	assert_int_equal(engine_init(&x, cpu, 0), 0);
	sched_getaffinity(0, sizeof(set), &set);
	x.may_run = set;
	engine_lock(&x);
	assert_int_equal(engine_start(&x), 0);
	CPU_ZERO(&set);
	assert_int_equal(pthread_getaffinity_np(x.thread, sizeof(set), &set), 0);
	assert_true(CPU_EQUAL(&set, &x.may_run));
	engine_bind(&x);
	assert_int_equal(pthread_getaffinity_np(x.thread, sizeof(set), &set), 0);
	assert_int_equal(CPU_COUNT(&set), 1);
	assert_true(CPU_ISSET((unsigned)cpu, &set));
	engine_bind(&x); /* again: nothing happens */
	engine_unlock(&x);
	engine_stop(&x);
	atomic_store(&x.stop, false);
	engine_lock(&x);
	assert_int_equal(engine_start(&x), 0);
	assert_int_equal(pthread_getaffinity_np(x.thread, sizeof(set), &set), 0);
	assert_int_equal(CPU_COUNT(&set), 1);
	engine_unlock(&x);
	engine_fini(&x);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(engine_poll_parks_a_busy_link_and_goes_on_finding_its_data),
		TEST(engine_wait_that_sleeps_hears_of_a_parked_link),
		TEST(engine_wait_that_sleeps_hears_of_data_that_came_while_parked),
		TEST(engine_wait_that_polls_first_leaves_the_link_parked),
		TEST(engine_thread_hears_of_a_parked_link_when_nobody_polls_any_more),
		TEST(engine_thread_hears_of_a_parked_link_when_the_lease_is_ended),
		TEST(engine_poll_returns_a_parked_link_when_another_becomes_busy),
		TEST(engine_poll_finds_other_links_while_one_always_has_data),
		TEST(engine_poll_finds_other_links_while_one_in_memory_has_data),
		TEST(engine_watch_returns_a_parked_link),
		TEST(engine_forgets_a_parked_link),
		TEST(engine_thread_serves_a_link_that_cannot_return),
		TEST(engine_wait_serves_a_link_that_cannot_return),
		TEST(engine_poll_serves_a_link_that_cannot_return),
		TEST(engine_watch_of_a_link_that_cannot_return_is_done_by_hand),
		TEST(engine_thread_tells_what_a_kick_left_while_a_link_returned),
		TEST(engine_fires_a_timer_that_a_note_armed),
		TEST(engine_fork_disturbs_no_parked_link),
		TEST(engine_loses_no_data_with_pollers_waiters_and_its_thread),
		TEST(engine_wait_polls_less_and_less_when_that_is_in_vain),
		TEST(engine_wait_polls_again_when_that_helped_once),
		TEST(engine_wait_without_time_does_not_poll),
		TEST(engine_wait_that_polls_wakes_those_who_follow),
		TEST(engine_binds_its_thread_once_and_for_the_next_one_too),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
