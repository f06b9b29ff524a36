/* SPDX-License-Identifier: MIT */
/* Links through memory: callers ask them without the driver's token, and neither other links nor work that can wait are forgotten. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/engine.h"
#include "rnic/engine_priv.h"
#include "rnic/link.h"
#include "rnic/rnic.h"

/* As in engine_poll.c. */
enum { SWEEP_ANYWAY = 64, SWEEP_EVERY_QUIET = 256 };

static struct rnic *r;
static struct engine *e;
static const struct rnic_upcalls up;

/* ---- the engine's thread, held still: only callers drive ---- */

static sem_t held, let_go;
static struct engine_note holder;

static void run_holder(struct engine_note *n)
{
	sem_post(&held);
	while (sem_wait(&let_go))
		;
}

/* ---- a link ---- */

static bool has_data;
static int polls, ran;
static struct engine_kick later;

static void run_later(struct engine_kick *k)
{
	ran++;
}

static void poll_link(struct link *l)
{
	polls++;
	if (!has_data)
		return;
	e->idle_polls = 0;
	engine_later(e, &later);
}

static bool arm(struct link *l)
{
	return true;
}

static const struct link_ops ops = { .poll = poll_link, .arm = arm };
static struct link memory;

static int make(void **state)
{
	int cpu = sched_getcpu(), rc;

	sem_init(&held, 0, 0);
	sem_init(&let_go, 0, 0);
	has_data = false;
	polls = ran = 0;
	later = (struct engine_kick) { .run = run_later };
	memory = (struct link) { .ops = &ops };
	holder = (struct engine_note) { .run = run_holder };
	if (rnic_open(&cpu, 1, &up, NULL, &r))
		return -1;
	e = &r->engines[0];
	engine_lock(e);
	rc = engine_start(e);
	engine_unlock(e);
	engine_tell(e, &holder);
	while (sem_wait(&held))
		;
	engine_lock(e);
	engine_add_link(e, &memory);
	engine_unlock(e);
	return rc;
}

static int drop(void **state)
{
	engine_lock(e);
	engine_remove_link(e, &memory);
	engine_unlock(e);
	sem_post(&let_go);
	engine_untell(e, &holder);
	rnic_close(r);
	sem_destroy(&held);
	sem_destroy(&let_go);
	return 0;
}

static void poll_needs_no_token(void **state)
{
	assert_true(engine_take_token(e, DRIVER_CALLER));
	engine_poll(e);
	assert_int_equal(polls, 1);
	engine_drop_token(e);
	engine_poll(e);
	assert_int_equal(polls, 2);
	assert_int_equal(atomic_load(&e->driver), DRIVER_NONE);
}

static void what_can_wait_waits_for_an_empty_poll(void **state)
{
	has_data = true;
	engine_poll(e);
	engine_poll(e);
	assert_int_equal(ran, 0);
	has_data = false;
	engine_poll(e);
	assert_int_equal(ran, 1);
	assert_int_equal(atomic_load(&e->n_later), 0);
}

/* Whoever has the token may be asleep, and has looked for such work before. */
static void what_can_wait_does_not_wait_for_who_has_the_token(void **state)
{
	assert_true(engine_take_token(e, DRIVER_CALLER));
	has_data = true;
	engine_poll(e);
	assert_int_equal(ran, 1);
	engine_drop_token(e);
}

struct other {
	struct engine_io base;
	int ready;
};

static void on_ready(struct engine_io *io, uint32_t events)
{
	uint64_t count;

	((struct other *)io)->ready++;
	assert_int_equal(read(io->fd, &count, sizeof(count)), sizeof(count));
}

static void other_links_are_looked_at_now_and_then(void **state)
{
	struct other other = { .base.ready = on_ready };
	uint64_t one = 1;

	engine_io_take(&other.base, eventfd(0, EFD_NONBLOCK));
	engine_lock(e);
	assert_int_equal(engine_watch(e, &other.base, EPOLLIN), 0);
	engine_unlock(e);
	for (int busy = 0; busy < 2; busy++) {
		has_data = busy;
		assert_int_equal(write(other.base.fd, &one, sizeof(one)), sizeof(one));
		for (int i = 0; i < (busy ? SWEEP_ANYWAY : SWEEP_EVERY_QUIET); i++)
			engine_poll(e);
		assert_int_equal(other.ready, busy + 1);
	}
	engine_lock(e);
	engine_forget(e, &other.base);
	engine_unlock(e);
	close(other.base.fd);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(poll_needs_no_token),
		TEST(what_can_wait_waits_for_an_empty_poll),
		TEST(what_can_wait_does_not_wait_for_who_has_the_token),
		TEST(other_links_are_looked_at_now_and_then),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
