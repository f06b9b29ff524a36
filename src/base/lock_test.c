/* SPDX-License-Identifier: MIT */
/* The lock of the data path: it excludes, and it wakes those who sleep. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/lock.h"

enum { THREADS = 4, ROUNDS = 100000 };

static struct lock lock;
static unsigned long counter; /* under lock */
static atomic_int inside, crowded;

static int make(void **state)
{
	lock_init(&lock);
	counter = 0;
	return 0;
}

static void *keep_counting(void *arg)
{
	for (int i = 0; i < ROUNDS; i++) {
		lock_take(&lock);
		if (atomic_fetch_add(&inside, 1))
			atomic_fetch_add(&crowded, 1);
		counter++;
		/* Now and then the holder is not on a processor, and the others must sleep. */
		if (i % 1000 == 0)
			sched_yield();
		atomic_fetch_sub(&inside, 1);
		lock_give(&lock);
	}
	return NULL;
}

static void lock_lets_one_in_at_a_time(void **state)
{
	pthread_t thread[THREADS];

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, keep_counting, NULL), 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(counter, THREADS * ROUNDS);
	assert_int_equal(atomic_load(&crowded), 0);
	assert_int_equal(atomic_load(&lock.word), 0);
}

static void lock_is_one_word_that_says_who_waits(void **state)
{
	assert_int_equal(sizeof(lock), 4);
	lock_take(&lock);
	assert_int_equal(atomic_load(&lock.word), 1); /* alone: giving it back wakes nobody */
	lock_give(&lock);
	assert_int_equal(atomic_load(&lock.word), 0);
}

static atomic_int served;

static void *take_once(void *arg)
{
	lock_take(&lock);
	atomic_fetch_add(&served, 1);
	lock_give(&lock);
	return NULL;
}

static bool becomes(_Atomic uint32_t *word, uint32_t value)
{
	for (int i = 0; i < 3000 && atomic_load(word) != value; i++)
		usleep(1000);
	return atomic_load(word) == value;
}

/* All of them sleep when it is given back once: each must wake the next. */
static void lock_wakes_every_sleeper(void **state)
{
	pthread_t thread[THREADS];

	atomic_store(&served, 0);
	lock_take(&lock);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, take_once, NULL), 0);
	assert_true(becomes(&lock.word, 2));
	usleep(20000);
	assert_int_equal(atomic_load(&served), 0);
	lock_give(&lock);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(atomic_load(&served), THREADS);
	assert_true(becomes(&lock.word, 0));
}

/* As in a child of fork() whose parent had it taken, with sleepers. */
static void lock_is_free_after_init(void **state)
{
	atomic_store(&lock.word, 2);
	lock_init(&lock);
	lock_take(&lock);
	lock_give(&lock);
	assert_int_equal(atomic_load(&lock.word), 0);
}

#define TEST(name) cmocka_unit_test_setup(name, make)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(lock_lets_one_in_at_a_time),
		TEST(lock_is_one_word_that_says_who_waits),
		TEST(lock_wakes_every_sleeper),
		TEST(lock_is_free_after_init),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
