/* SPDX-License-Identifier: MIT */
/*
 * Conformance: what full service has that iWARP has not (RD-2, RD-4). A Send or Write completes when the peer has it; who has no
 * receive is waited for; an error is of one request.
 */
#include "conf/conf.h"

#include <netinet/in.h>
#include <time.h>
#include <unistd.h>

#define ACCESS (PAIR_ALL_ACCESS | FLUE_REMOTE_ATOMIC)

static struct pair *open_full(uint32_t reads)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.access = ACCESS;
	o.ird = o.ord = reads;
	return conf_pair(&o);
}

static uint64_t *word(struct pair_side *s, size_t offset)
{
	return (uint64_t *)(void *)(s->mem + offset);
}

static bool nothing_comes(struct flue_cq *cq, int ms)
{
	struct flue_wc wc;

	return pair_take(cq, &wc, 1, ms) == 0;
}

static void set_retries(struct pair_side *s, uint32_t retries)
{
	struct flue_qp_values v = { sizeof(v), .rnr_retries = retries };

	assert_ok(s->qp->ops->modify(s->qp, &v, FLUE_QPV_RNR_RETRIES));
}

static void set_timer(struct pair_side *s, uint32_t code)
{
	struct flue_qp_values v = { sizeof(v), .min_rnr_timer = code };

	assert_ok(s->qp->ops->modify(s->qp, &v, FLUE_QPV_MIN_RNR_TIMER));
}

static bool fetch_add(struct pair_side *s, size_t offset, struct pair_side *peer, size_t remote,
		      uint64_t id)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, 8);
	struct flue_send_wr wr = { .id = id,
				   .op = FLUE_WR_FETCH_ADD,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = peer->mr->rkey,
				   .remote_addr = peer->mr->remote_start + remote,
				   .atomic.compare_add = 1 };

	return flue_post_send(s->qp, &wr);
}

static bool send_imm(struct pair_side *s, uint32_t op, uint32_t length, struct pair_side *peer,
		     uint32_t imm, uint64_t id, uint32_t flags)
{
	struct flue_sge sge = flue_mr_sge(s->mr, 0, length);
	struct flue_send_wr wr = { .id = id,
				   .op = op,
				   .flags = flags,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = peer->mr->rkey,
				   .remote_addr = peer->mr->remote_start,
				   .imm = imm };

	return flue_post_send(s->qp, &wr);
}

/* The variant says which link it is. */
static void link_is_told(void **state)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	struct pair *p = open_full(0);

	assert_ok(p->a.qp->ops->query(p->a.qp, &v, FLUE_QPV_LINK));
	assert_int_equal(v.link, pair_local ? FLUE_LINK_LOCAL : FLUE_LINK_TCP);
	assert_ok(p->b.qp->ops->query(p->b.qp, &v, FLUE_QPV_LINK));
	assert_int_equal(v.link, pair_local ? FLUE_LINK_LOCAL : FLUE_LINK_TCP);
	assert_ok(flue_disconnect(p->a.qp));
	assert_ok(p->a.qp->ops->query(p->a.qp, &v, FLUE_QPV_LINK));
	assert_int_equal(v.link, 0);
	conf_end(p);
}

/* ---- done means done there ---- */

static void send_completes_when_the_peer_has_it(void **state)
{
	struct pair *p = open_full(0);

	set_timer(&p->b, 1);
	assert_ok(pair_send(&p->a, 0, 100, 1, FLUE_SIGNALED));
	assert_true(nothing_comes(p->a.send_cq, 50)); /* there is no receive */
	assert_ok(pair_recv(&p->b, 0, 100, 2));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	/* The peer's program need not have looked. */
	assert_true(pair_expect(p->b.recv_cq, 2, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void write_that_completed_is_there(void **state)
{
	struct pair *p = open_full(0);

	for (uint32_t i = 0; i < 200; i++) {
		uint32_t n = i * 997 % 100000;

		pair_fill(p->a.mem, n, i);
		assert_ok(pair_write(&p->a, 0, n, &p->b, 0, i, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
		assert_int_equal(pair_check(p->b.mem, n, i), n);
	}
	conf_end(p);
}

/* Nobody asked for a completion, and yet the queue is never full for good. */
static void unsignaled_requests_make_room(void **state)
{
	struct pair *p = open_full(0);

	for (uint32_t i = 0; i < 1000; i++) {
		bool last = i % 60 == 59;

		assert_ok(pair_write(&p->a, 0, 64, &p->b, 0, i, last ? FLUE_SIGNALED : 0));
		if (last)
			assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

static void requests_that_change_keys_wait_for_all_before(void **state)
{
	struct pair *p = open_full(0);
	struct flue_mr *mr = flue_register(p->a.pd, p->a.mem, 4096, FLUE_LOCAL_WRITE);
	struct flue_sge sge;
	struct flue_send_wr send = { .id = 1, .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };
	struct flue_send_wr inv = { .id = 2, .op = FLUE_WR_LOCAL_INV, .flags = FLUE_SIGNALED };

	assert_non_null(mr);
	set_timer(&p->b, 1);
	pair_fill(p->a.mem, 4096, 3);
	sge = flue_mr_sge(mr, 0, 4096);
	inv.rkey = mr->rkey;
	/* Not signaled, and for some time not taken: its memory is needed again. */
	assert_ok(flue_post_send(p->a.qp, &send));
	assert_ok(flue_post_send(p->a.qp, &inv));
	assert_true(nothing_comes(p->a.send_cq, 30));
	assert_ok(pair_recv(&p->b, 0, 4096, 3));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->b.mem, 4096, 3), 4096);
	assert_ok(flue_deregister(mr));
	conf_end(p);
}

static void close_waits_until_the_peer_has_everything(void **state)
{
	for (uint32_t i = 0; i < 50; i++) {
		struct pair *p = open_full(0);

		pair_fill(p->a.mem, 100000, i);
		assert_ok(pair_recv(&p->b, 0, 100000, 1));
		assert_ok(pair_send(&p->a, 0, 100000, 2, 0));
		assert_ok(flue_disconnect(p->a.qp));
		assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
		assert_int_equal(pair_check(p->b.mem, 100000, i), 100000);
		conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
		conf_end(p);
	}
}

static void close_waits_for_a_receiver_that_is_not_ready(void **state)
{
	struct pair *p = open_full(0);

	set_timer(&p->b, 14);
	assert_ok(pair_send(&p->a, 0, 1000, 2, 0));
	assert_ok(p->a.qp->ops->disconnect(p->a.qp, -1)); /* returns at once */
	usleep(20000);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_ok(pair_recv(&p->b, 0, 1000, 1));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_end(p);
}

/* What was received is told of, also by who has nothing more to say. */
static void who_closes_at_once_has_answered(void **state)
{
	for (uint32_t i = 0; i < 50; i++) {
		struct pair *p = open_full(0);

		assert_ok(pair_recv(&p->a, 0, 1000, 1));
		assert_ok(pair_send(&p->b, 0, 1000, 2, i % 2 ? FLUE_SIGNALED : 0));
		assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_SUCCESS));
		assert_ok(flue_disconnect(p->a.qp));
		if (i % 2)
			assert_true(pair_expect(p->b.send_cq, 2, FLUE_WC_SUCCESS));
		conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
		conf_end(p);
	}
}

/* ---- immediate data ---- */

static void send_with_immediate_data_has_both(void **state)
{
	struct pair *p = open_full(0);
	struct flue_wc wc;

	pair_fill(p->a.mem, 70000, 5);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t n = i * 35000;

		assert_ok(pair_recv(&p->b, 0, 100000, i));
		assert_ok(send_imm(&p->a, FLUE_WR_SEND_IMM, n, &p->b, 0xa1b2c3d4 + i, 10 + i,
				   FLUE_SIGNALED | (i == 1 ? FLUE_SOLICITED : 0)));
		assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.op, FLUE_WC_RECV);
		assert_int_equal(wc.byte_len, n);
		assert_int_equal(wc.imm, 0xa1b2c3d4 + i);
		assert_int_equal(wc.flags,
				 FLUE_WC_IMM | (i == 1 ? (uint32_t)FLUE_WC_SOLICITED : 0));
		assert_int_equal(pair_check(p->b.mem, n, 5), n);
		assert_true(pair_expect(p->a.send_cq, 10 + i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

/* ---- lists ---- */

static void reads_are_scattered_over_lists(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_sge sge[32];
	struct flue_send_wr wr = { .op = FLUE_WR_READ, .flags = FLUE_SIGNALED, .sg = sge };
	struct pair *p;

	o.sge = 32;
	p = conf_pair(&o);
	assert_int_equal(p->a.adapter->caps->max_read_sge_full, 32);
	pair_fill(p->b.mem, 300000, 4);
	wr.rkey = p->b.mr->rkey;
	wr.remote_addr = p->b.mr->remote_start;
	for (uint32_t n = 1; n <= 32; n++) {
		uint32_t at = 0, from = 0;

		memset(p->a.mem, 0, 400000);
		for (uint32_t i = 0; i < n; i++) {
			/* Some of nothing, some over segments; gaps between them. */
			uint32_t len = i % 5 == 3
					       ? 0
					       : (i * 7919 + n * 131) % 9000 + (n == 2 ? 70000 : 0);

			sge[i] = flue_mr_sge(p->a.mr, at, len);
			at += len + 17;
		}
		wr.n_sg = n;
		wr.id = n;
		assert_ok(flue_post_send(p->a.qp, &wr));
		assert_true(pair_expect(p->a.send_cq, n, FLUE_WC_SUCCESS));
		for (uint32_t i = 0; i < n; i++) {
			size_t to = sge[i].addr - p->a.mr->remote_start;

			assert_memory_equal(p->a.mem + to, p->b.mem + from, sge[i].length);
			for (uint32_t gap = 0; gap < 17; gap++)
				assert_int_equal(p->a.mem[to + sge[i].length + gap], 0);
			from += sge[i].length;
		}
	}
	/* One of them is not good: only that is told, and nothing is written there. */
	sge[2].lkey ^= 1;
	wr.n_sg = 4;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 32, FLUE_WC_LOCAL_PROTECTION));
	conf_expect_end(p, FLUE_CLOSE_FAULT, FLUE_CLOSE_TERMINATED);
	conf_end(p);
}

/* ---- not ready ---- */

/* Everything behind the message that found no receive comes again, once and in order. */
static void sender_goes_back_to_what_was_not_taken(void **state)
{
	struct pair *p = open_full(4);
	struct flue_wc wc[30];

	set_timer(&p->b, 1);
	*word(&p->b, 800000) = 0;
	pair_fill(p->a.mem, 300000, 1);
	for (uint32_t i = 0; i < 10; i++) {
		assert_ok(pair_send(&p->a, i * 1000, 1000, i, FLUE_SIGNALED));
		assert_ok(pair_write(&p->a, 0, 70000 + i, &p->b, 100000, 100 + i, FLUE_SIGNALED));
		assert_ok(fetch_add(&p->a, 900000 + i * 8, &p->b, 800000, 200 + i));
	}
	assert_true(nothing_comes(p->a.send_cq, 30));
	assert_int_equal(*word(&p->b, 800000), 0); /* none of them was looked at */
	for (uint32_t i = 0; i < 10; i++) {
		usleep(3000);
		assert_ok(pair_recv(&p->b, 200000 + i * 1000, 1000, i));
	}
	assert_int_equal(pair_take(p->a.send_cq, wc, 30, 20000), 30);
	for (uint32_t i = 0; i < 30; i++) {
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
		assert_int_equal(wc[i].id, i % 3 * 100 + i / 3);
	}
	assert_int_equal(pair_take(p->b.recv_cq, wc, 10, 10000), 10);
	for (uint32_t i = 0; i < 10; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(*word(&p->a, 900000 + i * 8), i); /* each once */
	}
	assert_int_equal(*word(&p->b, 800000), 10);
	for (uint32_t i = 0; i < 10; i++)
		assert_memory_equal(p->b.mem + 200000 + i * 1000, p->a.mem + i * 1000, 1000);
	assert_int_equal(pair_check(p->b.mem + 100000, 70009, 1), 70009);
	conf_end(p);
}

static void immediate_data_of_a_write_wait_for_a_receive(void **state)
{
	struct pair *p = open_full(0);
	struct flue_wc wc;

	set_timer(&p->b, 1);
	for (uint32_t i = 0; i < 20; i++) {
		p->a.mem[999 + i] = 0x77;
		assert_ok(send_imm(&p->a, FLUE_WR_WRITE_IMM, 1000 + i, &p->b, i, i, FLUE_SIGNALED));
		if (i % 2)
			assert_ok(pair_send(&p->a, 0, 3, 100, 0));
		/* The Write is done once: what the program makes of its memory stays. */
		while (__atomic_load_n(&p->b.mem[999 + i], __ATOMIC_ACQUIRE) != 0x77)
			assert_true(nothing_comes(p->a.send_cq, 1));
		usleep(i % 3 * 1000);
		memset(p->b.mem, 0, 2000);
		assert_ok(pair_recv(&p->b, 5000, 10, i));
		if (i % 2)
			assert_ok(pair_recv(&p->b, 5000, 10, 100));
		assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.op, FLUE_WC_RECV_WRITE);
		assert_int_equal(wc.imm, i);
		assert_int_equal(wc.byte_len, 1000 + i);
		assert_int_equal(p->b.mem[999 + i], 0);
		if (i % 2)
			assert_true(pair_expect(p->b.recv_cq, 100, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

static void sender_waits_as_long_as_the_responder_says(void **state)
{
	struct pair *p = open_full(0);
	uint64_t start;

	set_timer(&p->b, 26); /* 81.92 ms */
	set_retries(&p->a, 7);
	start = pair_now_ms();
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_true(nothing_comes(p->a.send_cq, 20)); /* it has been refused by now */
	assert_ok(pair_recv(&p->b, 0, 10, 2));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_now_ms() - start >= 81);
	conf_end(p);
}

static void sender_gives_up_after_its_own_retries(void **state)
{
	for (uint32_t retries = 0; retries < 3; retries++) {
		struct pair *p = open_full(4);
		uint64_t start = pair_now_ms();

		set_timer(&p->b, 20); /* 10.24 ms */
		set_retries(&p->a, retries);
		assert_ok(pair_write(&p->a, 0, 10, &p->b, 0, 1, FLUE_SIGNALED));
		assert_ok(pair_send(&p->a, 0, 10, 2, 0));
		assert_ok(pair_write(&p->a, 0, 10, &p->b, 100, 3, 0));
		assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_RECEIVER_NOT_READY));
		assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_FLUSHED));
		assert_true(pair_now_ms() - start >= retries * 10);
		assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
		conf_end(p);
	}
}

/* Nanoseconds until six retries were in vain, in the best of some tries. */
static uint64_t give_up_after(uint32_t code, uint32_t tries)
{
	uint64_t best = UINT64_MAX;

	for (uint32_t i = 0; i < tries; i++) {
		struct pair *p = open_full(0);
		struct timespec from, to;
		uint64_t took;

		/* Who accepted has driven the engine, and its thread leaves that to it for some milliseconds. */
		assert_ok(pair_recv(&p->b, 0, 10, 0));
		assert_ok(pair_send(&p->a, 0, 10, 0, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 0, FLUE_WC_SUCCESS));
		set_timer(&p->b, code);
		set_retries(&p->a, 6);
		clock_gettime(CLOCK_MONOTONIC, &from);
		assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_RECEIVER_NOT_READY));
		clock_gettime(CLOCK_MONOTONIC, &to);
		took = (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000u +
		       (uint64_t)(to.tv_nsec - from.tv_nsec);
		best = took < best ? took : best;
		conf_end(p);
	}
	return best;
}

/* Codes of microseconds are not rounded to milliseconds: 0.01 ms against 1.28 ms, six times each. */
static void sender_comes_again_after_microseconds(void **state)
{
	uint64_t slow = give_up_after(14, 1);

	assert_true(slow >= 6 * 1280000);
	assert_true(give_up_after(1, 10) < slow / 3);
}

/* Retries are counted for one message: progress begins anew. */
static void retries_count_from_the_last_progress(void **state)
{
	struct pair *p = open_full(0);

	set_timer(&p->b, 24); /* 41 ms, four times: so long each may take, and not all of them */
	set_retries(&p->a, 4);
	for (uint32_t i = 0; i < 8; i++)
		assert_ok(pair_send(&p->a, 0, 10, i, FLUE_SIGNALED));
	for (uint32_t i = 0; i < 8; i++) {
		usleep(50000);
		assert_ok(pair_recv(&p->b, 0, 10, i));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

/* Neither stops reading: what each waits for comes through. */
static void both_sides_are_not_ready_while_reads_run_both_ways(void **state)
{
	struct pair *p = open_full(4);
	struct flue_wc wc[40];

	set_timer(&p->a, 14);
	set_timer(&p->b, 14);
	pair_fill(p->a.mem, 200000, 1);
	pair_fill(p->b.mem, 200000, 2);
	for (uint32_t i = 0; i < 10; i++) {
		assert_ok(pair_read(&p->a, 200000 + i * 20000, 20000, &p->b, i * 20000, i,
				    FLUE_SIGNALED));
		assert_ok(pair_read(&p->b, 200000 + i * 20000, 20000, &p->a, i * 20000, i,
				    FLUE_SIGNALED));
		assert_ok(pair_send(&p->a, 0, 10000, 100 + i, FLUE_SIGNALED));
		assert_ok(pair_send(&p->b, 0, 10000, 100 + i, FLUE_SIGNALED));
	}
	/* The first Reads are answered, though neither has a receive. */
	assert_true(pair_expect(p->a.send_cq, 0, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.send_cq, 0, FLUE_WC_SUCCESS));
	for (uint32_t i = 0; i < 10; i++) {
		assert_ok(pair_recv(&p->a, 500000, 10000, i));
		assert_ok(pair_recv(&p->b, 500000, 10000, i));
	}
	assert_int_equal(pair_take(p->a.send_cq, wc, 19, 20000), 19);
	for (uint32_t i = 0; i < 19; i++)
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
	assert_int_equal(pair_take(p->b.send_cq, wc, 19, 20000), 19);
	for (uint32_t i = 0; i < 19; i++)
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
	assert_int_equal(pair_check(p->a.mem + 200000, 200000, 2), 200000);
	assert_int_equal(pair_check(p->b.mem + 200000, 200000, 1), 200000);
	conf_end(p);
}

/* ---- errors ---- */

static void error_is_of(uint32_t op)
{
	struct pair *p = open_full(4);
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);
	struct flue_send_wr bad = { .id = 4,
				    .op = op,
				    .sg = &sge,
				    .n_sg = 1,
				    .rkey = p->b.mr->rkey ^ 1,
				    .remote_addr = p->b.mr->remote_start };

	pair_fill(p->b.mem, 500000, 8);
	assert_ok(pair_recv(&p->b, 600000, 10, 1));
	assert_ok(pair_send(&p->a, 0, 10, 1, FLUE_SIGNALED));
	assert_ok(pair_read(&p->a, 0, 500000, &p->b, 0, 2, FLUE_SIGNALED));
	assert_ok(pair_write(&p->a, 0, 10, &p->b, 700000, 3, FLUE_SIGNALED));
	assert_ok(flue_post_send(p->a.qp, &bad));
	assert_ok(pair_write(&p->a, 0, 10, &p->b, 700100, 5, 0));
	assert_ok(pair_read(&p->a, 0, 10, &p->b, 0, 6, 0));
	/* Those before it end well, the long answer to a Read too. */
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(p->a.mem, 500000, 8), 500000);
	assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 4, FLUE_WC_REMOTE_ACCESS));
	assert_true(pair_expect(p->a.send_cq, 5, FLUE_WC_FLUSHED));
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_FLUSHED));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(p->b.mem[700100], 0);
	assert_true(pair_wait_state(p->a.qp, FLUE_QP_ERROR, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	conf_end(p);
}

static void error_is_of_one_request(void **state)
{
	error_is_of(FLUE_WR_WRITE);
	error_is_of(FLUE_WR_READ);
	error_is_of(FLUE_WR_WRITE_IMM);
	error_is_of(FLUE_WR_FETCH_ADD);
}

/* Memory is revoked while Reads of it are answered: the first that cannot be is the one that fails. */
static void read_fails_when_its_source_is_revoked(void **state)
{
	for (uint32_t round = 0; round < 20; round++) {
		struct pair *p = open_full(4);
		struct flue_mr *mr = flue_register(p->b.pd, p->b.mem, 500000, FLUE_REMOTE_READ);
		struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 500000);
		struct flue_send_wr wr = { .op = FLUE_WR_READ, .flags = FLUE_SIGNALED, .sg = &sge };
		struct flue_wc wc[32];
		uint32_t good = 0;

		assert_non_null(mr);
		wr.n_sg = 1;
		wr.rkey = mr->rkey;
		wr.remote_addr = mr->remote_start;
		for (wr.id = 0; wr.id < 32; wr.id++)
			assert_ok(flue_post_send(p->a.qp, &wr));
		usleep(round * 100);
		assert_ok(flue_deregister(mr));
		assert_int_equal(pair_take(p->a.send_cq, wc, 32, 20000), 32);
		while (good < 32 && wc[good].status == FLUE_WC_SUCCESS)
			good++;
		if (good < 32)
			assert_int_equal(wc[good].status, FLUE_WC_REMOTE_ACCESS);
		for (uint32_t i = good + 1; i < 32; i++)
			assert_int_equal(wc[i].status, FLUE_WC_FLUSHED);
		conf_end(p);
	}
}

static void message_that_is_too_long_is_an_invalid_request(void **state)
{
	struct pair *p = open_full(0);

	assert_ok(pair_recv(&p->b, 0, 10, 1));
	assert_ok(pair_send(&p->a, 0, 11, 2, 0));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_LOCAL_LENGTH));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_REMOTE_REQUEST));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	conf_end(p);
}

static void receive_that_cannot_take_it_is_the_responders_fault(void **state)
{
	struct pair *p = open_full(0);
	struct flue_sge sge = flue_mr_sge(p->b.mr, 0, 100);
	struct flue_recv_wr wr = { .id = 1, .sg = &sge, .n_sg = 1 };

	sge.lkey ^= 1;
	assert_ok(flue_post_recv(p->b.qp, &wr));
	assert_ok(pair_send(&p->a, 0, 11, 2, 0));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_REMOTE_OPERATION));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	conf_end(p);
}

static void own_bad_request_fails_behind_those_before_it(void **state)
{
	struct pair *p = open_full(0);
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);
	struct flue_send_wr bad = { .id = 3, .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };

	set_timer(&p->b, 1);
	sge.lkey ^= 1;
	assert_ok(pair_send(&p->a, 0, 8, 1, 0));
	assert_ok(pair_send(&p->a, 0, 8, 2, FLUE_SIGNALED));
	assert_ok(flue_post_send(p->a.qp, &bad));
	assert_true(nothing_comes(p->a.send_cq, 20));
	assert_ok(pair_recv(&p->b, 0, 8, 1));
	assert_ok(pair_recv(&p->b, 0, 8, 2));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_LOCAL_PROTECTION));
	conf_end(p);
}

/* ---- who is at the other end ---- */

static void strangers_and_strict_ends_are_told_apart(void **state)
{
	struct pair *p = *state;
	struct flue_listen_attr la = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr attr = pair_conn_attr(p, 0);
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct flue_listener *strict;
	struct flue_conn_attr other;

	any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	la.local = (const struct sockaddr *)&any;
	la.local_len = sizeof(any);
	assert_ok(strict = p->b.adapter->ops->listen(p->b.adapter, &la));
	other = attr;
	other.remote = (const struct sockaddr *)&strict->local;
	/* Nobody of the strict end hears of it. */
	assert_fails(p->a.qp->ops->connect(p->a.qp, &other), EPROTONOSUPPORT);
	assert_fails(strict->ops->get_request(strict, 0), EAGAIN);
	assert_ok(strict->ops->destroy(strict));
}

static void strict_initiator_is_refused(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = pair_conn_attr(p, 0);

	attr.flags &= ~(uint32_t)FLUE_CONN_FULL;
	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), ECONNREFUSED);
	assert_fails(p->listener->ops->get_request(p->listener, 0), EAGAIN);
	assert_ok(pair_connect(p));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(link_is_told),
		cmocka_unit_test(send_completes_when_the_peer_has_it), /* RD-2 */
		cmocka_unit_test(write_that_completed_is_there),
		cmocka_unit_test(unsignaled_requests_make_room),
		cmocka_unit_test(requests_that_change_keys_wait_for_all_before),
		cmocka_unit_test(close_waits_until_the_peer_has_everything),
		cmocka_unit_test(close_waits_for_a_receiver_that_is_not_ready),
		cmocka_unit_test(who_closes_at_once_has_answered),
		cmocka_unit_test(send_with_immediate_data_has_both),
		cmocka_unit_test(reads_are_scattered_over_lists),
		cmocka_unit_test(sender_goes_back_to_what_was_not_taken),
		cmocka_unit_test(immediate_data_of_a_write_wait_for_a_receive),
		cmocka_unit_test(sender_waits_as_long_as_the_responder_says),
		cmocka_unit_test(sender_gives_up_after_its_own_retries),
		cmocka_unit_test(sender_comes_again_after_microseconds),
		cmocka_unit_test(retries_count_from_the_last_progress),
		cmocka_unit_test(both_sides_are_not_ready_while_reads_run_both_ways),
		cmocka_unit_test(error_is_of_one_request),
		cmocka_unit_test(read_fails_when_its_source_is_revoked),
		cmocka_unit_test(message_that_is_too_long_is_an_invalid_request),
		cmocka_unit_test(receive_that_cannot_take_it_is_the_responders_fault),
		cmocka_unit_test(own_bad_request_fails_behind_those_before_it),
		WITH_IDLE_PAIR(strangers_and_strict_ends_are_told_apart),
		WITH_IDLE_PAIR(strict_initiator_is_refused),
	};

	conf_init(argc, argv);
	pair_full = true;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
