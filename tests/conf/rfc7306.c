/* SPDX-License-Identifier: MIT */
/* Conformance: atomics and immediate data, where both programs asked for them (RD-5). */
#include "conf/conf.h"

#include <pthread.h>

#define ACCESS (PAIR_ALL_ACCESS | FLUE_REMOTE_ATOMIC)

static struct pair_options extended(void)
{
	struct pair_options o = PAIR_DEFAULTS;

	o.conn_flags[0] = o.conn_flags[1] = FLUE_CONN_RFC7306;
	o.access = ACCESS;
	return o;
}

static struct pair *open_extended(void)
{
	struct pair_options o = extended();

	return conf_pair(&o);
}

static uint64_t *word(struct pair_side *s, size_t offset)
{
	return (uint64_t *)(void *)(s->mem + offset);
}

/* The old value goes to `offset` of the side's memory. */
static struct flue_send_wr atomic_wr(struct pair_side *s, struct flue_sge *sge, size_t offset,
				     struct pair_side *peer, size_t remote, uint64_t id)
{
	*sge = flue_mr_sge(s->mr, offset, 8);
	return (struct flue_send_wr) { .id = id,
				       .op = FLUE_WR_FETCH_ADD,
				       .flags = FLUE_SIGNALED,
				       .sg = sge,
				       .n_sg = 1,
				       .rkey = peer->mr->rkey,
				       .remote_addr = peer->mr->remote_start + remote };
}

static bool fetch_add(struct pair_side *s, size_t offset, struct pair_side *peer, size_t remote,
		      uint64_t add, uint64_t id)
{
	struct flue_sge sge;
	struct flue_send_wr wr = atomic_wr(s, &sge, offset, peer, remote, id);

	wr.atomic.compare_add = add;
	return flue_post_send(s->qp, &wr);
}

static bool cmp_swap(struct pair_side *s, size_t offset, struct pair_side *peer, size_t remote,
		     uint64_t compare, uint64_t swap, uint64_t id)
{
	struct flue_sge sge;
	struct flue_send_wr wr = atomic_wr(s, &sge, offset, peer, remote, id);

	wr.op = FLUE_WR_CMP_SWAP;
	wr.atomic = (struct flue_atomic) { .compare_add = compare, .swap = swap };
	return flue_post_send(s->qp, &wr);
}

static bool write_imm(struct pair_side *s, size_t offset, uint32_t length, struct pair_side *peer,
		      size_t remote, uint32_t imm, uint64_t id, uint32_t flags)
{
	struct flue_sge sge = flue_mr_sge(s->mr, offset, length);
	struct flue_send_wr wr = { .id = id,
				   .op = FLUE_WR_WRITE_IMM,
				   .flags = flags,
				   .sg = &sge,
				   .n_sg = length ? 1 : 0,
				   .rkey = peer->mr->rkey,
				   .remote_addr = peer->mr->remote_start + remote,
				   .imm = imm };

	return flue_post_send(s->qp, &wr);
}

/* ---- immediate data ---- */

static void write_with_immediate_data_completes_a_receive(void **state)
{
	static const uint32_t sizes[] = { 0, 1, 64, 300, 1460, 65536, 100001 };
	struct pair *p = open_extended();
	struct flue_wc wc;

	for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t n = sizes[i], imm = i * 0x01020305u;

		pair_fill(p->a.mem, n, i);
		memset(p->b.mem, 0xee, n + 20);
		memset(p->b.mem + 500000, 0x11, 100);
		assert_ok(pair_recv(&p->b, 500000, 100, i));
		assert_ok(write_imm(&p->a, 0, n, &p->b, 7, imm, 100 + i, FLUE_SIGNALED));
		assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.op, FLUE_WC_RECV_WRITE);
		assert_int_equal(wc.byte_len, n);
		assert_int_equal(wc.flags, FLUE_WC_IMM);
		assert_int_equal(wc.imm, imm);
		assert_ptr_equal(wc.qp, p->b.qp);
		/* The Write is there, and the memory of the receive as it was. */
		assert_int_equal(p->b.mem[6], 0xee);
		assert_int_equal(pair_check(p->b.mem + 7, n, i), n);
		assert_int_equal(p->b.mem[7 + n], 0xee);
		for (unsigned at = 0; at < 100; at++)
			assert_int_equal(p->b.mem[500000 + at], 0x11);
		assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, 100 + i);
		assert_int_equal(wc.op, FLUE_WC_WRITE);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.byte_len, n);
	}
	conf_end(p);
}

static void immediate_data_keep_their_place_among_other_messages(void **state)
{
	struct pair *p = open_extended();
	struct flue_wc wc[40];

	pair_fill(p->a.mem, 20000, 9);
	for (uint32_t i = 0; i < 40; i++)
		assert_ok(pair_recv(&p->b, 300000 + i * 1000, 1000, i));
	for (uint32_t i = 0; i < 20; i++) {
		/* A Write before it does not count for its length, nor does one behind it. */
		assert_ok(pair_write(&p->a, 0, 5000, &p->b, 0, 1, 0));
		assert_ok(write_imm(&p->a, 0, i * 7, &p->b, 10000, i, 2, 0));
		assert_ok(pair_send(&p->a, 0, i, 3, FLUE_SIGNALED));
		assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
	}
	assert_int_equal(pair_take(p->b.recv_cq, wc, 40, 10000), 40);
	for (uint32_t i = 0; i < 40; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
		assert_int_equal(wc[i].op, i % 2 ? FLUE_WC_RECV : FLUE_WC_RECV_WRITE);
		assert_int_equal(wc[i].byte_len, i % 2 ? i / 2 : i / 2 * 7);
		if (i % 2 == 0)
			assert_int_equal(wc[i].imm, i / 2);
	}
	conf_end(p);
}

static void immediate_data_can_be_solicited_and_inline(void **state)
{
	struct pair *p = open_extended();
	char text[] = "out of the request itself";
	struct flue_sge sge = { .addr = (uintptr_t)text, .length = sizeof(text) };
	struct flue_send_wr wr = { .id = 5,
				   .op = FLUE_WR_WRITE_IMM,
				   .flags = FLUE_SIGNALED | FLUE_INLINE | FLUE_SOLICITED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = p->b.mr->rkey,
				   .remote_addr = p->b.mr->remote_start,
				   .imm = UINT32_MAX };
	struct flue_wc wc;

	assert_ok(pair_recv(&p->b, 1000, 0, 1));
	assert_ok(flue_post_send(p->a.qp, &wr));
	memset(text, 'x', sizeof(text));
	assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.flags, FLUE_WC_IMM | FLUE_WC_SOLICITED);
	assert_int_equal(wc.imm, UINT32_MAX);
	assert_string_equal((char *)p->b.mem, "out of the request itself");
	assert_true(pair_expect(p->a.send_cq, 5, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void immediate_data_take_receives_of_an_srq(void **state)
{
	struct pair_options o = extended();
	struct flue_wc wc;
	struct pair *p;

	o.srq_depth = 4;
	p = conf_pair(&o);
	assert_ok(pair_recv(&p->b, 0, 100, 77));
	assert_ok(write_imm(&p->a, 0, 50, &p->b, 1000, 9, 1, FLUE_SIGNALED));
	assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.id, 77);
	assert_int_equal(wc.imm, 9);
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void immediate_data_without_a_receive_end_the_connection(void **state)
{
	uint32_t detail;
	struct pair *p;

	STRICT_ONLY("full service waits for a receive: `full.c`");
	p = open_extended();
	assert_ok(write_imm(&p->a, 0, 8, &p->b, 0, 1, 1, FLUE_SIGNALED));
	detail = conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(detail, 0x1202); /* DDP, untagged: no buffer */
	conf_end(p);
}

/* ---- atomics ---- */

static void fetch_and_add_returns_what_was_there(void **state)
{
	struct pair *p = open_extended();
	struct flue_wc wc;

	*word(&p->b, 64) = UINT64_MAX - 1;
	*word(&p->b, 56) = *word(&p->b, 72) = 5;
	for (uint64_t i = 0; i < 4; i++) {
		*word(&p->a, 8) = 0xabab;
		assert_ok(fetch_add(&p->a, 8, &p->b, 64, 1, i));
		assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.id, i);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.op, FLUE_WC_FETCH_ADD);
		assert_int_equal(wc.byte_len, 8);
		/* It wraps, and carries nowhere. */
		assert_int_equal(*word(&p->a, 8), UINT64_MAX - 1 + i);
		assert_int_equal(*word(&p->b, 64), UINT64_MAX + i);
	}
	assert_int_equal(*word(&p->b, 56), 5);
	assert_int_equal(*word(&p->b, 72), 5);
	conf_end(p);
}

static void compare_and_swap_swaps_if_equal(void **state)
{
	struct pair *p = open_extended();
	struct flue_wc wc;

	*word(&p->b, 0) = 0x1122334455667788;
	assert_ok(cmp_swap(&p->a, 0, &p->b, 0, 0x1122334455667789, 1, 1));
	assert_int_equal(pair_take(p->a.send_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.op, FLUE_WC_CMP_SWAP);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
	assert_int_equal(*word(&p->a, 0), 0x1122334455667788);
	assert_int_equal(*word(&p->b, 0), 0x1122334455667788);
	assert_ok(cmp_swap(&p->a, 0, &p->b, 0, 0x1122334455667788, UINT64_MAX, 2));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(*word(&p->a, 0), 0x1122334455667788);
	assert_int_equal(*word(&p->b, 0), UINT64_MAX);
	/* The other way, too. */
	assert_ok(cmp_swap(&p->b, 8, &p->a, 0, 0x1122334455667788, 7, 3));
	assert_true(pair_expect(p->b.send_cq, 3, FLUE_WC_SUCCESS));
	assert_int_equal(*word(&p->a, 0), 7);
	conf_end(p);
}

#define ROUNDS 300

static void *add_by_hand(void *at)
{
	for (unsigned i = 0; i < ROUNDS; i++)
		__atomic_fetch_add((uint64_t *)at, 1000000, __ATOMIC_RELAXED);
	return NULL;
}

/* Atomic towards the processor's own instructions as well: nothing is lost. */
static void atomics_of_connections_and_threads_add_up(void **state)
{
	struct pair *p = open_extended();
	struct flue_qp *more[2] = { pair_new_qp(p, &p->a), pair_new_qp(p, &p->b) };
	struct pair_side second = p->a;
	pthread_t thread;
	struct flue_wc wc[16];

	assert_non_null(more[0]);
	assert_non_null(more[1]);
	assert_ok(pair_connect_qps(p, more[0], more[1]));
	second.qp = more[0];
	assert_int_equal(pthread_create(&thread, NULL, add_by_hand, p->b.mem), 0);
	for (unsigned i = 0; i < ROUNDS; i++) {
		assert_ok(fetch_add(&p->a, 8, &p->b, 0, 1, i));
		assert_ok(fetch_add(&second, 16, &p->b, 0, 1000, i));
		assert_int_equal(pair_take(p->a.send_cq, wc, 2, 10000), 2);
		assert_int_equal(wc[0].status, FLUE_WC_SUCCESS);
		assert_int_equal(wc[1].status, FLUE_WC_SUCCESS);
	}
	pthread_join(thread, NULL);
	assert_int_equal(*word(&p->b, 0), ROUNDS * (1000000ull + 1000 + 1));
	assert_ok(flue_destroy_qp(more[0]));
	assert_ok(flue_destroy_qp(more[1]));
	conf_end(p);
}

static void more_atomics_than_the_peer_takes_wait(void **state)
{
	struct pair_options o = extended();
	struct pair *p;

	o.ird = o.ord = 2;
	p = conf_pair(&o);
	*word(&p->b, 0) = 0;
	for (uint32_t i = 0; i < 60; i++) {
		if (i % 3)
			assert_ok(fetch_add(&p->a, i * 8, &p->b, 0, 1, i));
		else
			assert_ok(pair_read(&p->a, i * 8, 8, &p->b, 0, i, FLUE_SIGNALED));
	}
	for (uint32_t i = 0; i < 60; i++)
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	/* Each atomic found what those before it had left. */
	for (uint32_t i = 0, sum = 0; i < 60; i++) {
		if (i % 3)
			assert_int_equal(*word(&p->a, i * 8), sum++);
	}
	assert_int_equal(*word(&p->b, 0), 40);
	conf_end(p);
}

static void fenced_request_waits_for_atomics(void **state)
{
	struct pair *p = open_extended();

	for (uint32_t i = 0; i < 20; i++) {
		*word(&p->b, 0) = i + 1;
		*word(&p->a, 0) = 0;
		assert_ok(pair_recv(&p->b, 1000, 8, i));
		assert_ok(fetch_add(&p->a, 0, &p->b, 0, 0, i));
		assert_ok(pair_send(&p->a, 0, 8, i, FLUE_SIGNALED | FLUE_FENCE));
		assert_true(pair_expect(p->b.recv_cq, i, FLUE_WC_SUCCESS));
		assert_int_equal(*word(&p->b, 1000), i + 1);
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->a.send_cq, i, FLUE_WC_SUCCESS));
	}
	conf_end(p);
}

/* ---- what is refused ---- */

struct refusal {
	const char *what;
	uint32_t access; /* of the memory */
	size_t remote;
	uint32_t key_xor;
	uint32_t status, fault;
	uint32_t full; /* in full service: the status */
};

static void atomic_on_memory_that_does_not_allow_it_fails(void **state)
{
	static const struct refusal all[] = {
		{ "no right", PAIR_ALL_ACCESS, 0, 0, FLUE_WC_REMOTE_ACCESS, 0x0102,
		  FLUE_WC_REMOTE_ACCESS },
		{ "another key", ACCESS, 0, 1, FLUE_WC_REMOTE_ACCESS, 0x0100,
		  FLUE_WC_REMOTE_ACCESS },
		{ "over the end", ACCESS, (1 << 20) - 4, 0, FLUE_WC_REMOTE_ACCESS, 0x0101,
		  FLUE_WC_REMOTE_ACCESS },
		{ "not on a boundary of 8", ACCESS, 12, 0, FLUE_WC_REMOTE_OPERATION, 0x0207,
		  FLUE_WC_REMOTE_REQUEST },
	};

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pair_options o = extended();
		struct flue_sge sge;
		struct flue_send_wr wr;
		struct pair *p;

		o.access = all[i].access;
		p = conf_pair(&o);
		memset(p->b.mem, 0x33, o.memory);
		wr = atomic_wr(&p->a, &sge, 0, &p->b, all[i].remote, 2);
		wr.rkey ^= all[i].key_xor;
		wr.atomic.compare_add = 1;
		assert_ok(flue_post_send(p->a.qp, &wr));
		assert_ok(pair_read(&p->a, 64, 8, &p->b, 0, 3, FLUE_SIGNALED));
		if (!pair_expect(p->a.send_cq, 2, pair_full ? all[i].full : all[i].status))
			fail_msg("%s", all[i].what);
		assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_FLUSHED));
		assert_int_equal(conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT),
				 all[i].fault);
		for (size_t at = 0; at < o.memory; at++)
			assert_int_equal(p->b.mem[at], 0x33);
		conf_end(p);
	}
}

static void queue_pairs_own_rights_count_for_atomics(void **state)
{
	struct pair *p = open_extended();
	struct flue_qp_values v = { sizeof(v), .access = FLUE_REMOTE_READ | FLUE_REMOTE_WRITE };

	assert_ok(p->b.qp->ops->query(p->b.qp, &v, FLUE_QPV_ACCESS));
	assert_int_equal(v.access, FLUE_REMOTE_READ | FLUE_REMOTE_WRITE | FLUE_REMOTE_ATOMIC);
	v.access = FLUE_REMOTE_READ | FLUE_REMOTE_WRITE;
	assert_ok(p->b.qp->ops->modify(p->b.qp, &v, FLUE_QPV_ACCESS));
	assert_ok(fetch_add(&p->a, 0, &p->b, 0, 1, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_REMOTE_ACCESS));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(*word(&p->b, 0), 0);
	conf_end(p);
}

static void window_can_give_the_right_to_atomics(void **state)
{
	struct pair_options o = extended();
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_BIND, .flags = FLUE_SIGNALED };
	struct flue_sge sge;
	struct flue_mw *mw;
	struct pair *p;

	o.access = FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW;
	p = conf_pair(&o);
	mw = p->b.pd->ops->create_mw(p->b.pd);
	assert_non_null(mw);
	wr.rkey = mw->rkey;
	wr.reg = (struct flue_reg) { .addr = p->b.mr->remote_start + 128,
				     .length = 64,
				     .access = FLUE_REMOTE_ATOMIC,
				     .lkey = p->b.mr->lkey,
				     .key = 9 };
	assert_ok(flue_post_send(p->b.qp, &wr));
	assert_true(pair_expect(p->b.send_cq, 1, FLUE_WC_SUCCESS));
	*word(&p->b, 128) = 41;
	wr = atomic_wr(&p->a, &sge, 0, &p->b, 128, 2);
	wr.rkey = mw->rkey;
	wr.atomic.compare_add = 1;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(*word(&p->b, 128), 42);
	assert_ok(mw->ops->destroy(mw));
	conf_end(p);
}

static void impossible_requests_are_refused(void **state)
{
	struct pair *p = open_extended();
	struct flue_sge sge[2];
	struct flue_send_wr good = atomic_wr(&p->a, sge, 0, &p->b, 0, 1), wr;

	sge[1] = sge[0];
	for (uint32_t op = FLUE_WR_CMP_SWAP; op <= FLUE_WR_FETCH_ADD; op++) {
		good.op = op;
		wr = good, wr.n_sg = 0;
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
		wr = good, wr.n_sg = 2;
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
		wr = good, wr.flags |= FLUE_INLINE;
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
		wr = good, sge[0].length = 4;
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
		sge[0].length = 16;
		assert_fails(flue_post_send(p->a.qp, &wr), EINVAL);
		sge[0].length = 8;
	}
	/* RFC 7306 has none. */
	wr = good, wr.op = FLUE_WR_SEND_IMM;
	if (!pair_full)
		assert_fails(flue_post_send(p->a.qp, &wr), EOPNOTSUPP);
	/* None of this hurt the connection. */
	assert_ok(fetch_add(&p->a, 0, &p->b, 0, 1, 9));
	assert_true(pair_expect(p->a.send_cq, 9, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void result_that_cannot_be_stored_fails_the_request(void **state)
{
	struct pair *p = open_extended();
	struct flue_sge sge;
	struct flue_send_wr wr = atomic_wr(&p->a, &sge, 0, &p->b, 0, 1);

	sge.lkey ^= 1;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	conf_expect_end(p, FLUE_CLOSE_FAULT, FLUE_CLOSE_TERMINATED);
	conf_end(p);
}

/* Only one of the programs asks: its request ends the connection, and changes nothing. */
static void peer_that_did_not_ask_refuses(void **state)
{
	STRICT_ONLY("full service always has these requests");
	for (int imm = 0; imm < 2; imm++) {
		struct pair_options o = extended();
		struct pair *p;

		o.conn_flags[1] = 0;
		p = conf_pair(&o);
		assert_ok(pair_recv(&p->b, 0, 8, 1));
		if (imm)
			assert_ok(write_imm(&p->a, 0, 0, &p->b, 0, 1, 2, FLUE_SIGNALED));
		else
			assert_ok(fetch_add(&p->a, 0, &p->b, 0, 1, 2));
		assert_int_equal(conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT),
				 0x0206); /* unexpected opcode */
		assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_FLUSHED));
		assert_int_equal(*word(&p->b, 0), 0);
		conf_end(p);
	}
}

static void early_request_fails_if_the_connection_is_without(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair p;

	STRICT_ONLY("full service always has these requests");
	o.qp_flags = FLUE_QP_POST_EARLY;
	o.access = ACCESS;
	assert_ok(pair_make(&p, &o));
	assert_ok(fetch_add(&p.a, 0, &p.b, 0, 1, 1));
	/* The initiator may fail before it was told that it is connected. */
	pair_connect(&p);
	assert_true(pair_expect(p.a.send_cq, 1, FLUE_WC_LOCAL_OPERATION));
	assert_int_equal(*word(&p.b, 0), 0);
	assert_ok(pair_close(&p));
}

static void early_request_is_done_if_the_connection_is_with(void **state)
{
	struct pair_options o = extended();
	struct pair p;

	o.qp_flags = FLUE_QP_POST_EARLY;
	assert_ok(pair_make(&p, &o));
	assert_ok(fetch_add(&p.a, 0, &p.b, 0, 3, 1));
	assert_ok(pair_connect(&p));
	assert_true(pair_expect(p.a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_int_equal(*word(&p.b, 0), 3);
	assert_ok(pair_close(&p));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(write_with_immediate_data_completes_a_receive), /* RD-5 */
		cmocka_unit_test(immediate_data_keep_their_place_among_other_messages),
		cmocka_unit_test(immediate_data_can_be_solicited_and_inline),
		cmocka_unit_test(immediate_data_take_receives_of_an_srq),
		cmocka_unit_test(immediate_data_without_a_receive_end_the_connection),
		cmocka_unit_test(fetch_and_add_returns_what_was_there), /* RD-5 */
		cmocka_unit_test(compare_and_swap_swaps_if_equal),      /* RD-5 */
		cmocka_unit_test(atomics_of_connections_and_threads_add_up),
		cmocka_unit_test(more_atomics_than_the_peer_takes_wait),
		cmocka_unit_test(fenced_request_waits_for_atomics),
		cmocka_unit_test(atomic_on_memory_that_does_not_allow_it_fails),
		cmocka_unit_test(queue_pairs_own_rights_count_for_atomics),
		cmocka_unit_test(window_can_give_the_right_to_atomics),
		cmocka_unit_test(impossible_requests_are_refused),
		cmocka_unit_test(result_that_cannot_be_stored_fails_the_request),
		cmocka_unit_test(peer_that_did_not_ask_refuses),
		cmocka_unit_test(early_request_fails_if_the_connection_is_without),
		cmocka_unit_test(early_request_is_done_if_the_connection_is_with),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
