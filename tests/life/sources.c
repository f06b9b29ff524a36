/* SPDX-License-Identifier: MIT */
/*
 * More of unmapped.c: the unmapped memory is the requester's own, the source of a Send or Write or
 * the sink of a Read. The requests are posted by a responder that must not send yet, and go out
 * on a thread of the library when the initiator speaks; the test sleeps meanwhile. The process
 * lives, the request ends with a local error, the peer hears of the end, others go on.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "conf/pair.h"

#define PAGE 4096
#define AREA (64 * PAGE)

struct scene {
	struct pair p, other;
	uint8_t *area;
	struct flue_mr *mr;
};

static void open_scene(struct scene *s, uint32_t flags)
{
	struct pair_options o = PAIR_DEFAULTS;

	assert_true(pair_open(&s->other, &o));
	o.conn_flags[0] = FLUE_CONN_TWO_WAY | flags;
	o.conn_flags[1] = flags;
	assert_true(pair_open(&s->p, &o));
	s->area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(s->area, MAP_FAILED);
	memset(s->area, 0x33, AREA);
	s->mr = flue_register(s->p.b.pd, s->area, AREA, PAIR_ALL_ACCESS);
	assert_non_null(s->mr);
}

static void close_scene(struct scene *s)
{
	assert_true(pair_recv(&s->other.b, 0, 1000, 1));
	assert_true(pair_send(&s->other.a, 0, 1000, 2, FLUE_SIGNALED));
	assert_true(pair_expect(s->other.b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(flue_deregister(s->mr));
	assert_true(pair_close(&s->p));
	assert_true(pair_close(&s->other));
	munmap(s->area, AREA);
}

/* No access, like unmapped; but nothing else can move in meanwhile. */
static void unmap(struct scene *s, size_t from)
{
	void *hole = mmap(s->area + from, AREA - from, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	assert_ptr_equal(hole, s->area + from);
}

/* A request of the responder with its own memory in the area; it waits. */
static void post(struct scene *s, uint32_t op, size_t offset, uint32_t length)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, length);
	struct flue_send_wr wr = { .id = 6, .op = op, .flags = FLUE_SIGNALED, .sg = &sge };

	wr.n_sg = 1;
	wr.rkey = s->p.a.mr->rkey;
	wr.remote_addr = s->p.a.mr->remote_start;
	assert_true(flue_post_send(s->p.b.qp, &wr));
}

/* The end at both sides; the test does not drive side b until it is over there. */
static void check_end(struct scene *s)
{
	struct flue_event ev;
	struct flue_wc wc = { .id = 0 };

	assert_true(pair_event(&s->p.b, FLUE_EVENT_DISCONNECTED, s->p.b.qp, &ev, 10000));
	assert_true(ev.reason == FLUE_CLOSE_LOCAL || ev.reason == FLUE_CLOSE_FAULT);
	assert_true(pair_event(&s->p.a, FLUE_EVENT_DISCONNECTED, s->p.a.qp, NULL, 10000));
	assert_int_equal(pair_take(s->p.b.send_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.id, 6);
	assert_int_not_equal(wc.status, FLUE_WC_SUCCESS);
}

static void run(uint32_t op, size_t offset, uint32_t length, size_t unmapped, uint32_t flags)
{
	struct scene s;

	open_scene(&s, flags);
	if (op == FLUE_WR_SEND)
		assert_true(pair_recv(&s.p.a, 0, AREA, 3));
	post(&s, op, offset, length);
	unmap(&s, unmapped);
	/* The first message: an empty Write. */
	assert_true(pair_write(&s.p.a, 0, 0, &s.p.b, 0, 1, 0));
	check_end(&s);
	close_scene(&s);
}

static const uint32_t terms[] = { 0, FLUE_CONN_NO_CRC, FLUE_CONN_MARKERS };

static void run_all(uint32_t op)
{
	for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++) {
		run(op, 0, 100, 0, terms[i]);
		run(op, 0, AREA, 0, terms[i]);
		/* The first part is there, the rest is not: an FPDU may be half out by then. */
		run(op, 100, AREA - 100, 37 * PAGE, terms[i]);
		run(op, PAGE - 50, 100, PAGE, terms[i]);
	}
}

static void sending_unmapped_memory_ends_only_its_connection(void **state)
{
	run_all(FLUE_WR_SEND);
}

static void writing_unmapped_memory_ends_only_its_connection(void **state)
{
	run_all(FLUE_WR_WRITE);
}

static void reading_into_unmapped_memory_ends_only_its_connection(void **state)
{
	run_all(FLUE_WR_READ);
}

/* Inline data was taken when it was posted. */
static void inline_data_needs_no_memory_any_more(void **state)
{
	struct flue_sge sge = { .length = 40 };
	struct flue_send_wr wr = {
		.id = 6, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED | FLUE_INLINE, .sg = &sge
	};
	struct scene s;

	open_scene(&s, 0);
	assert_true(pair_recv(&s.p.a, 0, 100, 3));
	pair_fill(s.area, 40, 21);
	sge.addr = (uintptr_t)s.area;
	wr.n_sg = 1;
	assert_true(flue_post_send(s.p.b.qp, &wr));
	unmap(&s, 0);
	assert_true(pair_write(&s.p.a, 0, 0, &s.p.b, 0, 1, 0));
	assert_true(pair_expect(s.p.a.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(s.p.a.mem, 40, 21), 40);
	close_scene(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sending_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(writing_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(reading_into_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(inline_data_needs_no_memory_any_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
