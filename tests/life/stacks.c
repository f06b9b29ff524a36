/* SPDX-License-Identifier: MIT */
/*
 * Threads with little stack, as coroutine libraries make them: every call of the data path and the usual
 * others work with 16 and 24 KiB, and what they use is measured.
 */
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define PAINT 0xa5
/* The C library puts what it keeps for a thread on its stack as well. */
#define MOST_OF_16K (13 * 1024)

static void skip_under_sanitizers(void)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	if (build && (!strcmp(build, "asan") || !strcmp(build, "tsan"))) {
		print_message("# sanitizers need much more stack\n");
		skip();
	}
}

struct job {
	struct pair *p;
	bool (*work)(struct pair *p);
	bool ok;
};

static void *run(void *arg)
{
	struct job *j = arg;

	j->ok = j->work(j->p);
	return NULL;
}

/* Runs the work on a painted stack; returns how much of it was used. */
static size_t run_on_stack(struct job *j, size_t size)
{
	uint8_t *stack = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);
	size_t unused = 0;
	pthread_attr_t attr;
	pthread_t thread;

	assert_ptr_not_equal(stack, MAP_FAILED);
	memset(stack, PAINT, size);
	assert_int_equal(pthread_attr_init(&attr), 0);
	assert_int_equal(pthread_attr_setstack(&attr, stack, size), 0);
	assert_int_equal(pthread_create(&thread, &attr, run, j), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	pthread_attr_destroy(&attr);
	while (unused < size && stack[unused] == PAINT)
		unused++;
	munmap(stack, size);
	return size - unused;
}

/* ---- work ---- */

/* A message that is a whole batch, of many pieces. */
static bool post_large(struct pair *p)
{
	struct flue_sge sge[4];
	struct flue_send_wr wr = { .id = 3, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED, .sg = sge };

	wr.n_sg = 4;
	for (uint32_t i = 0; i < 4; i++)
		sge[i] = flue_mr_sge(p->a.mr, i * 70000, 60000);
	return pair_recv(&p->b, 0, 400000, 4) && flue_post_send(p->a.qp, &wr) &&
	       pair_expect(p->b.recv_cq, 4, FLUE_WC_SUCCESS) &&
	       pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS);
}

static bool post_small(struct pair *p)
{
	for (uint64_t i = 0; i < 40; i++)
		if (!pair_recv(&p->b, 0, 64, i) || !pair_send(&p->a, 0, 64, i, FLUE_SIGNALED))
			return false;
	for (uint64_t i = 0; i < 40; i++)
		if (!pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS) ||
		    !pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS))
			return false;
	return true;
}

static bool read_and_write(struct pair *p)
{
	return pair_write(&p->a, 0, 200000, &p->b, 300000, 5, FLUE_SIGNALED) &&
	       pair_expect(p->a.send_cq, 5, FLUE_WC_SUCCESS) &&
	       pair_read(&p->a, 0, 200000, &p->b, 300000, 6, FLUE_SIGNALED) &&
	       pair_expect(p->a.send_cq, 6, FLUE_WC_SUCCESS);
}

static bool wait_and_notify(struct pair *p)
{
	struct flue_event ev;

	return !flue_wait(p->b.recv_cq, 5) && errno == ETIMEDOUT &&
	       p->b.recv_cq->ops->notify(p->b.recv_cq, FLUE_NOTIFY_NEXT, NULL, NULL) &&
	       p->b.recv_cq->ops->fd(p->b.recv_cq) >= 0 && !flue_get_event(p->a.adapter, &ev, 5) &&
	       errno == ETIMEDOUT;
}

static bool whole_life(struct pair *p)
{
	static struct pair own; /* not on this stack */
	static struct pair_options o = PAIR_DEFAULTS;

	(void)p;
	return pair_open(&own, &o) && post_small(&own) && flue_disconnect(own.a.qp) &&
	       pair_close(&own);
}

static void calls_need_little_stack(void **state)
{
	static const struct {
		const char *name;
		bool (*work)(struct pair *p);
	} works[] = {
		{ "large messages", post_large },       { "small messages", post_small },
		{ "reads and writes", read_and_write }, { "waiting", wait_and_notify },
		{ "a whole life", whole_life },
	};
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	skip_under_sanitizers();
	for (int crc = 0; crc < 2; crc++) {
		o.conn_flags[0] = o.conn_flags[1] = crc ? 0 : FLUE_CONN_NO_CRC;
		assert_true(pair_open(&p, &o));
		for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
			struct job j = { .p = &p, .work = works[i].work };
			/* First with room to spare, so that too much is a number and not a crash. */
			size_t used = run_on_stack(&j, 256 * 1024);

			print_message("# %s: %zu octets\n", works[i].name, used);
			assert_true(j.ok);
			assert_true(used < MOST_OF_16K);
		}
		assert_true(pair_close(&p));
	}
}

static void threads_of_16_and_24_kib_can_do_everything(void **state)
{
	bool (*const works[])(struct pair *) = { post_large, post_small, read_and_write,
						 wait_and_notify, whole_life };
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	skip_under_sanitizers();
	assert_true(pair_open(&p, &o));
	for (size_t kib = 16; kib <= 24; kib += 8)
		for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
			struct job j = { .p = &p, .work = works[i] };

			run_on_stack(&j, kib * 1024);
			assert_true(j.ok);
		}
	assert_true(pair_close(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls_need_little_stack),
		cmocka_unit_test(threads_of_16_and_24_kib_can_do_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
