/* SPDX-License-Identifier: MIT */
/*
 * Memory that the program unmapped while it was registered (docs/design/memory.md). With a real
 * RNIC that is harmless; here the process must survive and only the connection that touched the
 * memory may end. All transfers under test are made by the library's own threads: the test sleeps
 * in get_event() meanwhile. Also: when deregister() has returned, not a byte moves any more.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conf/pair.h"

#define AREA 65536

/* A connected pair whose side b has registered, then lost, an area of memory; and a second pair
 * that must not notice. */
struct scene {
	struct pair p, other;
	uint8_t *area;
	struct flue_mr *mr;
};

static void open_scene(struct scene *s, bool crc)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.conn_flags[0] = o.conn_flags[1] = crc ? 0 : FLUE_CONN_NO_CRC;
	assert_true(pair_open(&s->p, &o));
	assert_true(pair_open(&s->other, &o));
	s->area = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(s->area, MAP_FAILED);
	memset(s->area, 0x55, AREA);
	s->mr = flue_register(s->p.b.pd, s->area, AREA, PAIR_ALL_ACCESS);
	assert_non_null(s->mr);
}

static void close_scene(struct scene *s)
{
	/* The others live, and carry data. */
	assert_true(pair_recv(&s->other.b, 0, 1000, 1));
	assert_true(pair_send(&s->other.a, 0, 1000, 2, FLUE_SIGNALED));
	assert_true(pair_expect(s->other.a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(s->other.b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(flue_deregister(s->mr));
	assert_true(pair_close(&s->p));
	assert_true(pair_close(&s->other));
	munmap(s->area, AREA);
}

/* A request of side a on the lost area of side b. */
static void touch(struct scene *s, uint32_t op, uint32_t length)
{
	struct flue_sge sge = flue_mr_sge(s->p.a.mr, 0, length);
	struct flue_send_wr wr = { .id = 9, .op = op, .flags = FLUE_SIGNALED, .sg = &sge };

	wr.n_sg = 1;
	wr.rkey = s->mr->rkey;
	wr.remote_addr = s->mr->remote_start;
	assert_true(flue_post_send(s->p.a.qp, &wr));
}

static void assert_ended(struct scene *s)
{
	struct flue_event ev;

	assert_true(pair_event(&s->p.b, FLUE_EVENT_DISCONNECTED, s->p.b.qp, &ev, 10000));
	assert_true(ev.reason == FLUE_CLOSE_LOCAL || ev.reason == FLUE_CLOSE_FAULT);
	assert_true(pair_event(&s->p.a, FLUE_EVENT_DISCONNECTED, s->p.a.qp, &ev, 10000));
}

/* No access, like unmapped; but nothing else can move in meanwhile. */
static void unmap(struct scene *s)
{
	void *hole = mmap(s->area, AREA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	assert_ptr_equal(hole, s->area);
}

static void run(uint32_t op, uint32_t length, bool crc)
{
	struct scene s;

	open_scene(&s, crc);
	unmap(&s);
	touch(&s, op, length);
	assert_ended(&s);
	close_scene(&s);
}

static void write_to_unmapped_memory_ends_only_its_connection(void **state)
{
	run(FLUE_WR_WRITE, 100, true);
	run(FLUE_WR_WRITE, 100, false);
	run(FLUE_WR_WRITE, AREA, true);
	run(FLUE_WR_WRITE, AREA, false);
}

static void read_from_unmapped_memory_ends_only_its_connection(void **state)
{
	run(FLUE_WR_READ, 100, true);
	run(FLUE_WR_READ, 100, false);
	run(FLUE_WR_READ, AREA, true);
	run(FLUE_WR_READ, AREA, false);
}

static void receive_into_unmapped_memory_ends_only_its_connection(void **state)
{
	for (int crc = 0; crc < 2; crc++) {
		struct flue_sge sge;
		struct flue_recv_wr wr = { .id = 4, .sg = &sge, .n_sg = 1 };
		struct scene s;

		open_scene(&s, crc);
		sge = flue_mr_sge(s.mr, 0, AREA);
		assert_true(flue_post_recv(s.p.b.qp, &wr));
		unmap(&s);
		assert_true(pair_send(&s.p.a, 0, AREA, 5, FLUE_SIGNALED));
		assert_ended(&s);
		close_scene(&s);
	}
}

/*
 * Two messages that go out together: only the one whose memory is gone has failed. Without CRC, so that the
 * kernel finds out: else the thread that posts would touch the memory itself, as it does through memory.
 */
static void send_before_the_one_from_unmapped_memory_succeeds(void **state)
{
	struct flue_sge good, bad;
	struct flue_send_wr last = {
		.id = 8, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED, .sg = &bad, .n_sg = 1
	};
	struct flue_send_wr first = { .next = &last,
				      .id = 7,
				      .op = FLUE_WR_SEND,
				      .flags = FLUE_SIGNALED,
				      .sg = &good,
				      .n_sg = 1 };
	struct scene s;

	if (pair_local)
		skip();
	open_scene(&s, false);
	good = flue_mr_sge(s.p.b.mr, 0, 4000);
	bad = flue_mr_sge(s.mr, 0, 4000);
	assert_true(pair_recv(&s.p.a, 0, 4000, 1));
	assert_true(pair_recv(&s.p.a, 4000, 4000, 2));
	unmap(&s);
	assert_true(flue_post_send(s.p.b.qp, &first));
	assert_true(pair_expect(s.p.b.send_cq, 7, FLUE_WC_SUCCESS));
	assert_true(pair_expect(s.p.b.send_cq, 8, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_expect(s.p.a.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_ended(&s);
	close_scene(&s);
}

/* ---- revocation is exact ---- */

struct hammer {
	struct pair *p;
	struct flue_mr *mr;
	atomic_bool stop;
};

/* Writes a changing byte into the region as fast as it can, until the connection ends. */
static void *hammer(void *arg)
{
	struct hammer *h = arg;
	struct pair_side *a = &h->p->a;
	struct flue_sge sge = flue_mr_sge(a->mr, 0, 4096);
	struct flue_send_wr wr = { .op = FLUE_WR_WRITE, .flags = FLUE_SIGNALED, .sg = &sge };
	struct flue_wc wc;
	uint32_t got;

	wr.n_sg = 1;
	wr.rkey = h->mr->rkey;
	wr.remote_addr = h->mr->remote_start;
	for (uint8_t i = 1; !atomic_load(&h->stop); i++) {
		memset(a->mem, i, 4096);
		if (!flue_post_send(a->qp, &wr))
			break;
		do {
			if (!flue_poll(a->send_cq, &wc, 1, &got))
				return NULL;
		} while (!got && !atomic_load(&h->stop));
		if (got && wc.status != FLUE_WC_SUCCESS)
			break;
	}
	return NULL;
}

static void no_byte_changes_after_deregister_returned(void **state)
{
	const char *build = getenv("FLUE_TEST_BUILD");

	if (build && !strcmp(build, "tsan")) {
		print_message(
			"# the test looks at memory while the peer writes it: a race on purpose\n");
		skip();
	}
	for (int round = 0; round < 20; round++) {
		struct pair_options o = PAIR_DEFAULTS;
		uint8_t copy[4096], *area;
		struct hammer h = { 0 };
		struct pair p;
		pthread_t thread;
		struct flue_mr *mr;

		o.conn_flags[0] = o.conn_flags[1] = round % 2 ? FLUE_CONN_NO_CRC : 0;
		assert_true(pair_open(&p, &o));
		area = p.b.mem + 8192;
		mr = flue_register(p.b.pd, area, 4096, PAIR_ALL_ACCESS);
		assert_non_null(mr);
		h.p = &p;
		h.mr = &(struct flue_mr) { .rkey = mr->rkey, .remote_start = mr->remote_start };
		assert_int_equal(pthread_create(&thread, NULL, hammer, &h), 0);
		while (!__atomic_load_n(&area[4095], __ATOMIC_ACQUIRE))
			usleep(100);
		usleep((useconds_t)(round * 50));
		assert_true(flue_deregister(mr));
		memcpy(copy, area, sizeof(copy));
		usleep(5000);
		assert_memory_equal(copy, area, sizeof(copy));
		atomic_store(&h.stop, true);
		pthread_join(thread, NULL);
		assert_true(pair_close(&p));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(write_to_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(read_from_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(receive_into_unmapped_memory_ends_only_its_connection),
		cmocka_unit_test(send_before_the_one_from_unmapped_memory_succeeds),
		cmocka_unit_test(no_byte_changes_after_deregister_returned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
