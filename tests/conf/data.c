/* SPDX-License-Identifier: MIT */
/* Conformance: posting, ordering, and the four ways of moving data. */
#include "conf/conf.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static const uint32_t sizes[] = { 0,     1,     2,     3,     4,     5,      7,
				  63,    64,    100,   1459,  1460,  1461,   4096,
				  16383, 65535, 65536, 65537, 99999, 262144, 524288 };
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void messages_of_any_size_arrive_whole(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;

	for (uint32_t i = 0; i < N_SIZES; i++) {
		uint32_t n = sizes[i];

		pair_fill(p->a.mem, n, i);
		memset(p->b.mem, 0xee, n + 10);
		assert_ok(pair_recv(&p->b, 0, n + 10, 100 + i));
		assert_ok(pair_send(&p->a, 0, n, i, FLUE_SIGNALED));
		assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, 100 + i);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.op, FLUE_WC_RECV);
		assert_int_equal(wc.byte_len, n);
		assert_int_equal(wc.flags, 0);
		assert_ptr_equal(wc.qp, p->b.qp);
		assert_int_equal(pair_check(p->b.mem, n, i), n);
		assert_int_equal(p->b.mem[n], 0xee);
		assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.op, FLUE_WC_SEND);
		assert_ptr_equal(wc.qp, p->a.qp);
	}
}

static void writes_of_any_size_are_placed_without_a_completion_at_the_sink(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;
	uint32_t got;

	for (uint32_t i = 0; i < N_SIZES; i++) {
		uint32_t n = sizes[i];

		pair_fill(p->a.mem, n, i);
		memset(p->b.mem, 0xee, n + 20);
		assert_ok(pair_recv(&p->b, n + 30, 0, i));
		assert_ok(pair_write(&p->a, 0, n, &p->b, 7, i, FLUE_SIGNALED));
		assert_ok(pair_send(&p->a, 0, 0, 500, FLUE_SIGNALED));
		assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.op, FLUE_WC_WRITE);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		/* The Send behind it is delivered after it was placed. */
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
		assert_int_equal(p->b.mem[6], 0xee);
		assert_int_equal(pair_check(p->b.mem + 7, n, i), n);
		assert_int_equal(p->b.mem[7 + n], 0xee);
		assert_true(pair_expect(p->a.send_cq, 500, FLUE_WC_SUCCESS));
		assert_ok(flue_poll(p->b.recv_cq, &wc, 1, &got));
		assert_int_equal(got, 0);
		assert_ok(flue_poll(p->b.send_cq, &wc, 1, &got));
		assert_int_equal(got, 0);
	}
}

static void reads_of_any_size_fetch_the_peers_memory(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;

	for (uint32_t i = 0; i < N_SIZES; i++) {
		uint32_t n = sizes[i];

		pair_fill(p->b.mem + 9, n, i);
		memset(p->a.mem, 0xee, n + 20);
		assert_ok(pair_read(&p->a, 3, n, &p->b, 9, i, FLUE_SIGNALED));
		assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.op, FLUE_WC_READ);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.byte_len, n);
		assert_int_equal(p->a.mem[2], 0xee);
		assert_int_equal(pair_check(p->a.mem + 3, n, i), n);
		assert_int_equal(p->a.mem[3 + n], 0xee);
	}
}

static void responder_can_send_write_and_read_too(void **state)
{
	struct pair *p = *state;

	pair_fill(p->b.mem, 1000, 1);
	pair_fill(p->a.mem + 5000, 1000, 2);
	assert_ok(pair_recv(&p->a, 0, 1000, 1));
	assert_ok(pair_write(&p->b, 0, 1000, &p->a, 2000, 10, FLUE_SIGNALED));
	assert_ok(pair_read(&p->b, 8000, 1000, &p->a, 5000, 11, FLUE_SIGNALED));
	assert_ok(pair_send(&p->b, 0, 1000, 12, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_SUCCESS));
	for (uint64_t id = 10; id < 13; id++)
		assert_true(pair_expect(p->b.send_cq, id, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->a.mem, 1000, 1), 1000);
	assert_int_equal(pair_check(p->a.mem + 2000, 1000, 1), 1000);
	assert_int_equal(pair_check(p->b.mem + 8000, 1000, 2), 1000);
}

static void completions_keep_the_order_of_each_queue(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc[60];

	for (uint32_t i = 0; i < 60; i++) {
		assert_ok(pair_recv(&p->b, i * 1000, 1000, i));
		memset(p->a.mem + i * 1000, (int)i, 1000);
	}
	for (uint32_t i = 0; i < 60; i++) {
		uint32_t flags = FLUE_SIGNALED;

		if (i % 3 == 0)
			assert_ok(pair_send(&p->a, i * 1000, i * 16, i, flags));
		else if (i % 3 == 1)
			assert_ok(pair_write(&p->a, i * 1000, 100, &p->b, 900000, i, flags));
		else
			assert_ok(pair_read(&p->a, 900000, 5000, &p->b, 100000, i, flags));
	}
	assert_int_equal(pair_take(p->a.send_cq, wc, 60, 10000), 60);
	for (uint32_t i = 0; i < 60; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
	}
	assert_int_equal(pair_take(p->b.recv_cq, wc, 20, 10000), 20);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(wc[i].byte_len, i * 3 * 16);
		if (i)
			assert_int_equal(p->b.mem[i * 1000], i * 3);
	}
}

static void lists_are_posted_in_one_call(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge[8], to[8];
	struct flue_send_wr send[8];
	struct flue_recv_wr recv[8];

	memset(send, 0, sizeof(send));
	memset(recv, 0, sizeof(recv));
	pair_fill(p->a.mem, 800, 3);
	for (unsigned i = 0; i < 8; i++) {
		sge[i] = flue_mr_sge(p->a.mr, i * 100, 100);
		to[i] = flue_mr_sge(p->b.mr, i * 100, 100);
		send[i].id = recv[i].id = i;
		send[i].flags = FLUE_SIGNALED;
		send[i].sg = &sge[i];
		recv[i].sg = &to[i];
		send[i].n_sg = recv[i].n_sg = 1;
		send[i].next = i < 7 ? &send[i + 1] : NULL;
		recv[i].next = i < 7 ? &recv[i + 1] : NULL;
	}
	assert_ok(flue_post_recv(p->b.qp, recv));
	assert_ok(flue_post_send(p->a.qp, send));
	for (unsigned i = 0; i < 8; i++) {
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	assert_int_equal(pair_check(p->b.mem, 800, 3), 800);
}

/* Pieces of odd sizes, some of them empty. */
static uint32_t cut(struct flue_mr *mr, struct flue_sge *sge, const uint32_t *lengths)
{
	uint32_t at = 0, total = 0;

	for (unsigned i = 0; i < 4; i++) {
		sge[i] = flue_mr_sge(mr, at, lengths[i]);
		at += lengths[i] + 1000;
		total += lengths[i];
	}
	return total;
}

static void messages_are_gathered_and_scattered(void **state)
{
	static const uint32_t from[] = { 1, 0, 70001, 333 }, into[] = { 5000, 17, 0, 90000 };
	struct pair *p = *state;
	struct flue_sge src[4], dst[4];
	struct flue_send_wr send = { .id = 1, .flags = FLUE_SIGNALED, .sg = src, .n_sg = 4 };
	struct flue_recv_wr recv = { .id = 2, .sg = dst, .n_sg = 4 };
	uint8_t *whole = malloc(70335);
	uint32_t total = cut(p->a.mr, src, from), at = 0;
	struct flue_wc wc;

	assert_int_equal(total, 70335);
	cut(p->b.mr, dst, into);
	pair_fill(whole, total, 9);
	for (unsigned i = 0; i < 4; at += from[i++])
		memcpy((void *)(uintptr_t)src[i].addr, whole + at, from[i]);
	assert_ok(flue_post_recv(p->b.qp, &recv));
	assert_ok(flue_post_send(p->a.qp, &send));
	assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.byte_len, total);
	at = 0;
	for (unsigned i = 0; i < 4; i++) {
		uint32_t n = into[i] < total - at ? into[i] : total - at;

		assert_memory_equal((void *)(uintptr_t)dst[i].addr, whole + at, n);
		at += n;
	}
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	send.op = FLUE_WR_WRITE;
	send.rkey = p->b.mr->rkey;
	send.remote_addr = p->b.mr->remote_start + 500000;
	assert_ok(flue_post_send(p->a.qp, &send));
	assert_ok(pair_recv(&p->b, 0, 0, 3));
	assert_ok(pair_send(&p->a, 0, 0, 4, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->b.mem + 500000, total, 9), total);
	free(whole);
}

static void inline_data_is_taken_when_posted(void **state)
{
	struct pair *p = *state;
	uint8_t data[65];
	struct flue_sge sge = { .addr = (uintptr_t)data, .length = 64, .lkey = 12345 };
	struct flue_send_wr wr = { .id = 1, .sg = &sge, .n_sg = 1 };
	const struct flue_send_wr *bad;

	wr.flags = FLUE_SIGNALED | FLUE_INLINE;
	wr.rkey = p->b.mr->rkey;
	wr.remote_addr = p->b.mr->remote_start + 1000;
	assert_ok(pair_recv(&p->b, 0, 64, 10));
	pair_fill(data, 64, 1);
	wr.op = FLUE_WR_WRITE;
	assert_ok(flue_post_send(p->a.qp, &wr));
	memset(data, 0, sizeof(data));
	pair_fill(data, 64, 2);
	wr.op = FLUE_WR_SEND;
	assert_ok(flue_post_send(p->a.qp, &wr));
	memset(data, 0, sizeof(data));
	assert_true(pair_expect(p->b.recv_cq, 10, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->b.mem, 64, 2), 64);
	assert_int_equal(pair_check(p->b.mem + 1000, 64, 1), 64);
	sge.length = 65;
	assert_fails(p->a.qp->ops->post_send(p->a.qp, &wr, &bad), EINVAL);
	assert_ptr_equal(bad, &wr);
	sge.length = 8;
	wr.op = FLUE_WR_READ;
	assert_fails(p->a.qp->ops->post_send(p->a.qp, &wr, &bad), EINVAL);
}

static void unsignaled_requests_complete_silently(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;
	uint32_t got;

	/* Several times around the queue: the room comes back with the signaled ones. */
	for (unsigned round = 0; round < 5; round++) {
		for (unsigned i = 0; i < 63; i++)
			assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, i, 0));
		assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, 1000 + round, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 1000 + round, FLUE_WC_SUCCESS));
	}
	assert_ok(flue_poll(p->a.send_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
}

static void signal_all_makes_every_request_complete(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.qp_flags = FLUE_QP_SIGNAL_ALL;
	p = conf_pair(&o);
	for (uint64_t i = 0; i < 10; i++)
		assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, i, 0));
	for (uint64_t i = 0; i < 10; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void full_send_queue_refuses_the_rest_of_a_list(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 100000);
	struct flue_send_wr wr[100];
	const struct flue_send_wr *bad = NULL;
	uint32_t taken;

	memset(wr, 0, sizeof(wr));
	for (unsigned i = 0; i < 100; i++) {
		wr[i].id = i;
		wr[i].op = FLUE_WR_READ;
		wr[i].flags = FLUE_SIGNALED;
		wr[i].sg = &sge;
		wr[i].n_sg = 1;
		wr[i].rkey = p->b.mr->rkey;
		wr[i].remote_addr = p->b.mr->remote_start;
		wr[i].next = i < 99 ? &wr[i + 1] : NULL;
	}
	assert_fails(p->a.qp->ops->post_send(p->a.qp, wr, &bad), ENOMEM);
	assert_non_null(bad);
	taken = (uint32_t)(bad - wr);
	assert_true(taken >= 64 && taken < 100);
	for (uint32_t i = 0; i < taken; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	wr[0].next = NULL;
	assert_ok(flue_post_send(p->a.qp, wr));
	assert_true(pair_expect(p->a.send_cq, 0, FLUE_WC_SUCCESS));
}

static void impossible_requests_are_refused(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge[5];
	struct flue_send_wr good = { .id = 1, .sg = sge, .n_sg = 1 }, wr;
	struct flue_recv_wr recv = { .id = 1, .sg = sge, .n_sg = 5 };

	for (unsigned i = 0; i < 5; i++)
		sge[i] = flue_mr_sge(p->a.mr, 0, 8);
	wr = good;
	wr.op = FLUE_WR_NOPS;
	assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
	wr = good;
	wr.n_sg = 5;
	assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
	wr = good;
	wr.flags = 1u << 20;
	assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
	wr = good;
	wr.op = FLUE_WR_READ;
	wr.n_sg = 2;
	if (!pair_full)
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
	assert_fails(flue_post_recv(p->a.qp, &recv), EINVAL);
	recv.n_sg = 1;
	recv.flags = 1;
	assert_fails(flue_post_recv(p->a.qp, &recv), EINVAL);
	for (wr = good, wr.op = FLUE_WR_SEND_IMM; !pair_full && wr.op < FLUE_WR_NOPS; wr.op++)
		assert_fails(flue_post_send(p->a.qp, &wr), EOPNOTSUPP);
	/* More than a message can have. */
	wr = good;
	wr.n_sg = 2;
	sge[0].length = sge[1].length = UINT32_MAX;
	assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
	/* None of this hurt the connection. */
	assert_ok(pair_recv(&p->b, 0, 8, 1));
	assert_ok(pair_send(&p->a, 0, 8, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
}

static void fenced_request_waits_for_reads(void **state)
{
	struct pair *p = *state;

	for (uint32_t i = 0; i < 20; i++) {
		uint32_t flags = i % 2 ? FLUE_FENCE : FLUE_LOCAL_FENCE;

		pair_fill(p->b.mem, 200000, i);
		memset(p->a.mem, 0, 200000);
		assert_ok(pair_recv(&p->b, 300000, 200000, i));
		assert_ok(pair_read(&p->a, 0, 200000, &p->b, 0, i, 0));
		assert_ok(pair_send(&p->a, 0, 200000, i, FLUE_SIGNALED | flags));
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
		assert_int_equal(pair_check(p->b.mem + 300000, 200000, i), 200000);
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
}

static void more_reads_than_the_peer_takes_are_queued(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.ird = o.ord = 1;
	p = conf_pair(&o);
	assert_int_equal(p->a.qp->ord, 1);
	assert_int_equal(p->b.qp->ird, 1);
	pair_fill(p->b.mem, 60000, 4);
	for (uint32_t i = 0; i < 60; i++)
		assert_ok(pair_read(&p->a, i * 1000, 1000, &p->b, i * 1000, i, FLUE_SIGNALED));
	for (uint32_t i = 0; i < 60; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->a.mem, 60000, 4), 60000);
	conf_end(p);
}

/* ---- a program that spins on memory ---- */

struct spinner {
	const uint8_t *mem;
	_Atomic uint32_t want, len; /* round, and octets of its Write; 0: the end */
	_Atomic uint32_t seen;
	_Atomic uint32_t wrong;
};

static void *spin_on_the_last_octet(void *arg)
{
	struct spinner *s = arg;

	for (uint32_t i = 1;; i++) {
		uint32_t len;

		while (atomic_load(&s->want) != i)
			;
		len = atomic_load(&s->len);
		if (!len)
			return NULL;
		while (__atomic_load_n(&s->mem[len - 1], __ATOMIC_ACQUIRE) != (uint8_t)i)
			;
		for (uint32_t at = 0; at < len; at++)
			if (s->mem[at] != (uint8_t)i)
				atomic_fetch_add(&s->wrong, 1);
		atomic_store(&s->seen, i);
	}
}

static void last_octet_of_a_write_becomes_visible_last(void **state)
{
	static const uint32_t lens[] = { 1,  2,   3,   8,    9,    17,   31,   64,
					 65, 200, 257, 1000, 4096, 5000, 70001 };
	const uint32_t rounds = CONF_TSAN
					? 0
					: 3000; /* the reader races with the library, as it must */
	struct pair_options o = PAIR_DEFAULTS;
	struct spinner s = { .want = 0 };
	struct flue_wc wc;
	pthread_t thread;
	struct pair *p;

	for (int crc = 0; crc < 2; crc++) {
		o.conn_flags[0] = o.conn_flags[1] = crc ? 0 : FLUE_CONN_NO_CRC;
		p = conf_pair(&o);
		s = (struct spinner) { .mem = p->b.mem };
		memset(p->b.mem, 0, o.memory);
		assert_int_equal(pthread_create(&thread, NULL, spin_on_the_last_octet, &s), 0);
		for (uint32_t i = 1; i <= rounds; i++) {
			uint32_t len = lens[i % (sizeof(lens) / sizeof(lens[0]))], got;

			memset(p->a.mem, (int)i, len);
			memset(p->b.mem, (int)i - 1, len);
			atomic_store(&s.len, len);
			atomic_store(&s.want, i);
			assert_ok(pair_write(&p->a, 0, len, &p->b, 0, i, FLUE_SIGNALED));
			while (atomic_load(&s.seen) !=
			       i) /* either our thread or the engine's places it */
				if (i % 2)
					assert_ok(flue_poll(p->b.recv_cq, &wc, 1, &got));
			assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
		}
		atomic_store(&s.len, 0);
		atomic_store(&s.want, rounds + 1);
		pthread_join(thread, NULL);
		assert_int_equal(atomic_load(&s.wrong), 0);
		conf_end(p);
	}
}

static void both_directions_run_at_once(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc[64];

	pair_fill(p->a.mem, 400000, 1);
	pair_fill(p->b.mem, 400000, 2);
	for (uint32_t i = 0; i < 30; i++) {
		assert_ok(pair_write(&p->a, 0, 400000, &p->b, 500000, i, FLUE_SIGNALED));
		assert_ok(pair_write(&p->b, 0, 400000, &p->a, 500000, i, FLUE_SIGNALED));
		assert_ok(pair_read(&p->a, 950000, 50000, &p->b, 0, i, FLUE_SIGNALED));
		assert_ok(pair_read(&p->b, 950000, 50000, &p->a, 0, i, FLUE_SIGNALED));
	}
	assert_int_equal(pair_take(p->a.send_cq, wc, 60, 20000), 60);
	assert_int_equal(pair_take(p->b.send_cq, wc, 60, 20000), 60);
	for (unsigned i = 0; i < 60; i++)
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
	assert_int_equal(pair_check(p->a.mem + 950000, 50000, 2), 50000);
	assert_int_equal(pair_check(p->b.mem + 950000, 50000, 1), 50000);
	/* A Read behind the Writes proves that they were placed. */
	assert_int_equal(pair_check(p->b.mem + 500000, 400000, 1), 400000);
	assert_int_equal(pair_check(p->a.mem + 500000, 400000, 2), 400000);
}

static void both_ends_of_a_connection_can_be_on_one_adapter(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.one_adapter = true;
	o.one_cq = true;
	p = conf_pair(&o);
	pair_fill(p->a.mem, 100000, 1);
	assert_ok(pair_recv(&p->b, 0, 100000, 1));
	assert_ok(pair_send(&p->a, 0, 100000, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.recv_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->b.mem, 100000, 1), 100000);
	conf_end(p);
}

static void data_is_the_same_with_every_framing(void **state)
{
	static const struct {
		uint32_t flags[2], fpdu_max;
	} ways[] = {
		{ { FLUE_CONN_NO_CRC, FLUE_CONN_NO_CRC }, 0 },
		{ { FLUE_CONN_NO_CRC, 0 }, 0 },
		{ { FLUE_CONN_MARKERS, 0 }, 0 },
		{ { 0, FLUE_CONN_MARKERS }, 0 },
		{ { FLUE_CONN_MARKERS | FLUE_CONN_NO_CRC, FLUE_CONN_MARKERS | FLUE_CONN_NO_CRC },
		  0 },
		{ { FLUE_CONN_STRICT_PEER, FLUE_CONN_STRICT_PEER }, 0 },
		{ { FLUE_CONN_REV1, 0 }, 0 },
		{ { 0, 0 }, 600 },
		{ { FLUE_CONN_MARKERS, FLUE_CONN_MARKERS }, 1500 },
	};

	for (uint32_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct pair *p;

		memcpy(o.conn_flags, ways[i].flags, sizeof(o.conn_flags));
		o.fpdu_max = ways[i].fpdu_max;
		p = conf_pair(&o);
		pair_fill(p->a.mem, 300001, i);
		pair_fill(p->b.mem + 500000, 300001, i + 50);
		assert_ok(pair_recv(&p->b, 400000, 3001, 1));
		assert_ok(pair_write(&p->a, 0, 300001, &p->b, 0, 2, 0));
		assert_ok(pair_read(&p->a, 500000, 300001, &p->b, 500000, 3, 0));
		assert_ok(pair_send(&p->a, 0, 3001, 4, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 4, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
		assert_int_equal(pair_check(p->b.mem, 300001, i), 300001);
		assert_int_equal(pair_check(p->b.mem + 400000, 3001, i), 3001);
		assert_int_equal(pair_check(p->a.mem + 500000, 300001, i + 50), 300001);
		conf_end(p);
	}
}

static void completion_names_a_participating_processor(void **state)
{
	struct pair *p = *state;
	struct flue_wc wc;
	bool found = false;

	NOT_SELF("there is one processor only");
	assert_ok(pair_write(&p->a, 0, 100, &p->b, 0, 1, FLUE_SIGNALED));
	assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
	for (uint32_t i = 0; i < p->a.adapter->n_cpus; i++)
		found = found || wc.cpu == (uint32_t)p->a.adapter->cpus[i];
	assert_true(found);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_PAIR(messages_of_any_size_arrive_whole), /* RD-4 */
		WITH_PAIR(
			writes_of_any_size_are_placed_without_a_completion_at_the_sink), /* RD-4 */
		WITH_PAIR(reads_of_any_size_fetch_the_peers_memory),                     /* RD-4 */
		WITH_PAIR(responder_can_send_write_and_read_too),                        /* RD-4 */
		WITH_PAIR(completions_keep_the_order_of_each_queue),                     /* RD-2 */
		WITH_PAIR(lists_are_posted_in_one_call),                                 /* RD-2 */
		WITH_PAIR(messages_are_gathered_and_scattered),                          /* RD-4 */
		WITH_PAIR(inline_data_is_taken_when_posted),                             /* RD-2 */
		WITH_PAIR(unsignaled_requests_complete_silently),                        /* RD-2 */
		cmocka_unit_test(signal_all_makes_every_request_complete),               /* RD-2 */
		WITH_PAIR(full_send_queue_refuses_the_rest_of_a_list),                   /* RD-2 */
		WITH_PAIR(impossible_requests_are_refused),                              /* RD-2 */
		WITH_PAIR(fenced_request_waits_for_reads),                               /* RD-2 */
		cmocka_unit_test(more_reads_than_the_peer_takes_are_queued),             /* RD-2 */
		cmocka_unit_test(last_octet_of_a_write_becomes_visible_last),            /* RD-4 */
		WITH_PAIR(both_directions_run_at_once),                                  /* RD-2 */
		cmocka_unit_test(both_ends_of_a_connection_can_be_on_one_adapter),       /* RD-4 */
		cmocka_unit_test(data_is_the_same_with_every_framing),                   /* RD-5 */
		WITH_PAIR(completion_names_a_participating_processor),                   /* CH-4 */
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
