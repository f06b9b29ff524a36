/* SPDX-License-Identifier: MIT */
/* Conformance: regions, windows, and who may touch what (RD-3). */
#include "conf/conf.h"

#include <stdlib.h>
#include <sys/mman.h>

/* The pair's initiator writes `n` octets of its memory to a place of the peer's. */
static bool write_to(struct pair *p, uint32_t rkey, uint64_t addr, uint32_t n, uint64_t id)
{
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, n);
	struct flue_send_wr wr = {
		.id = id,
		.op = FLUE_WR_WRITE,
		.flags = FLUE_SIGNALED,
		.sg = &sge,
		.n_sg = 1,
		.rkey = rkey,
		.remote_addr = addr,
	};

	return flue_post_send(p->a.qp, &wr);
}

static bool read_from(struct pair *p, uint32_t rkey, uint64_t addr, uint32_t n, uint64_t id)
{
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, n);
	struct flue_send_wr wr = {
		.id = id,
		.op = FLUE_WR_READ,
		.flags = FLUE_SIGNALED,
		.sg = &sge,
		.n_sg = 1,
		.rkey = rkey,
		.remote_addr = addr,
	};

	return flue_post_send(p->a.qp, &wr);
}

/* A request without data: invalidates, fast register, bind. Completed when it returns. */
static uint32_t do_local(struct pair_side *s, struct flue_send_wr *wr)
{
	struct flue_wc wc;

	wr->flags |= FLUE_SIGNALED;
	wr->id = 77;
	assert_ok(flue_post_send(s->qp, wr));
	assert_int_equal(pair_take(s->send_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.id, 77);
	return wc.status;
}

/* The peer may write to the region: all that was posted is placed when this returns. */
static void assert_writable(struct pair *p, uint32_t rkey, uint64_t addr)
{
	assert_ok(write_to(p, rkey, addr, 8, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(pair_recv(&p->b, 1 << 19, 0, 2));
	assert_ok(pair_send(&p->a, 0, 0, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 2, FLUE_WC_SUCCESS));
}

/* A write there ends the connection with this fault, named by both sides. */
static void assert_write_faults(struct pair *p, uint32_t rkey, uint64_t addr, uint32_t fault)
{
	struct flue_event ev;

	assert_ok(write_to(p, rkey, addr, 8, 99));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 10000));
	assert_string_equal(flue_close_reason_name(ev.reason),
			    flue_close_reason_name(FLUE_CLOSE_FAULT));
	assert_string_equal(flue_fault_name(ev.detail), flue_fault_name(fault));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, &ev, 10000));
	assert_string_equal(flue_close_reason_name(ev.reason),
			    flue_close_reason_name(FLUE_CLOSE_TERMINATED));
	assert_string_equal(flue_fault_name(ev.detail), flue_fault_name(fault));
	conf_expect_quiet(p);
}

/* For regions beside the pair's own. */
static uint8_t extra[4096];

#define FAULT_STAG   0x1100 /* DDP, tagged buffer, invalid STag */
#define FAULT_BOUNDS 0x1101
#define FAULT_PD     0x1102 /* STag not associated with the stream */
#define FAULT_RIGHTS 0x0102 /* RDMAP, remote protection, access rights */

static void region_can_be_addressed_from_zero(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	struct flue_sge sge;
	struct flue_recv_wr recv = { .id = 5, .sg = &sge, .n_sg = 1 };

	assert_ok(mr = flue_register(p->b.pd, extra, sizeof(extra),
				     PAIR_ALL_ACCESS | FLUE_ZERO_BASED));
	memset(extra, 0, sizeof(extra));
	pair_fill(p->a.mem, 8, 1);
	assert_writable(p, mr->rkey, 0);
	assert_writable(p, mr->rkey, sizeof(extra) - 8);
	assert_int_equal(pair_check(extra, 8, 1), 8);
	assert_int_equal(pair_check(extra + sizeof(extra) - 8, 8, 1), 8);
	sge = flue_mr_sge(mr, 100, 50);
	assert_int_equal(sge.addr, 100);
	assert_ok(flue_post_recv(p->b.qp, &recv));
	pair_fill(p->a.mem, 50, 2);
	assert_ok(pair_send(&p->a, 0, 50, 6, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(extra + 100, 50, 2), 50);
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_SUCCESS));
	assert_ok(read_from(p, mr->rkey, 100, 50, 7));
	assert_true(pair_expect(p->a.send_cq, 7, FLUE_WC_SUCCESS));
	assert_write_faults(p, mr->rkey, (uintptr_t)extra, FAULT_BOUNDS);
	assert_ok(flue_deregister(mr));
}

/* Requests of both sides name its bytes by numbers that have nothing to do with addresses. */
static void region_can_be_addressed_from_any_number(void **state)
{
	const uint64_t start = UINT64_MAX - (sizeof(extra) - 1);
	struct pair *p = *state;
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr;
	struct flue_sge sge;
	struct flue_recv_wr recv = { .id = 5, .sg = &sge, .n_sg = 1 };

	attr.addr = extra;
	attr.length = sizeof(extra);
	attr.access = PAIR_ALL_ACCESS | FLUE_IOVA;
	attr.iova = start;
	assert_ok(mr = p->b.pd->ops->register_mr(p->b.pd, &attr));
	assert_int_equal(mr->remote_start, start);
	memset(extra, 0, sizeof(extra));
	pair_fill(p->a.mem, 8, 1);
	assert_writable(p, mr->rkey, start + 40);
	assert_int_equal(pair_check(extra + 40, 8, 1), 8);
	sge = flue_mr_sge(mr, 100, 50);
	assert_int_equal(sge.addr, start + 100);
	assert_ok(flue_post_recv(p->b.qp, &recv));
	pair_fill(p->a.mem, 50, 2);
	assert_ok(pair_send(&p->a, 0, 50, 6, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(extra + 100, 50, 2), 50);
	assert_true(pair_expect(p->a.send_cq, 6, FLUE_WC_SUCCESS));
	attr.iova = 12345;
	assert_ok(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL));
	assert_writable(p, mr->rkey, 12345);
	assert_write_faults(p, mr->rkey, (uintptr_t)extra, FAULT_BOUNDS);
	assert_ok(flue_deregister(mr));
}

static void write_faults_when_the_region_is_for_this_side_only(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_LOCAL_WRITE));
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_RIGHTS);
	assert_ok(flue_deregister(mr));
}

/* Its rkey opens nothing: not even a revocation. */
static void region_for_this_side_only_cannot_be_invalidated_by_the_peer(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr wr = { .op = FLUE_WR_SEND_INV, .flags = FLUE_SIGNALED };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_LOCAL_WRITE));
	wr.rkey = mr->rkey;
	assert_ok(pair_recv(&p->b, 1 << 19, 0, 2));
	assert_ok(flue_post_send(p->a.qp, &wr));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_ok(flue_deregister(mr));
}

static void write_faults_when_the_key_was_never_valid(void **state)
{
	struct pair *p = *state;

	assert_write_faults(p, p->b.mr->rkey ^ 0xff, p->b.mr->remote_start, FAULT_STAG);
}

static void write_faults_when_it_begins_before_the_region(void **state)
{
	struct pair *p = *state;

	assert_write_faults(p, p->b.mr->rkey, p->b.mr->remote_start - 1, FAULT_BOUNDS);
}

static void write_faults_when_it_ends_behind_the_region(void **state)
{
	struct pair *p = *state;

	assert_writable(p, p->b.mr->rkey, p->b.mr->remote_end - 8);
	assert_write_faults(p, p->b.mr->rkey, p->b.mr->remote_end - 7, FAULT_BOUNDS);
}

static void write_faults_when_its_address_wraps(void **state)
{
	struct pair *p = *state;

	assert_ok(write_to(p, p->b.mr->rkey, UINT64_MAX - 3, 8, 1));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
}

static void write_faults_without_the_right(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_LOCAL_WRITE | FLUE_REMOTE_READ));
	memset(extra, 0x5a, 100);
	assert_ok(read_from(p, mr->rkey, mr->remote_start, 8, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_RIGHTS);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(extra[i], 0x5a);
	assert_ok(flue_deregister(mr));
}

static void write_faults_when_the_region_is_of_another_domain(void **state)
{
	struct pair *p = *state;
	struct flue_pd *pd;
	struct flue_mr *mr;

	assert_ok(pd = flue_create_pd(p->b.adapter));
	assert_ok(mr = flue_register(pd, extra, 100, PAIR_ALL_ACCESS));
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_PD);
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_pd(pd));
}

static void write_faults_when_the_region_is_gone(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	uint32_t rkey;
	uint64_t start;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, PAIR_ALL_ACCESS));
	rkey = mr->rkey;
	start = mr->remote_start;
	assert_writable(p, rkey, start);
	assert_ok(flue_deregister(mr));
	/* The next region may sit in the same place of the table. */
	assert_ok(mr = flue_register(p->b.pd, extra, 100, PAIR_ALL_ACCESS));
	assert_write_faults(p, rkey, start, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

static void modified_region_has_new_keys_only(void **state)
{
	struct pair *p = *state;
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr;
	uint32_t old;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, PAIR_ALL_ACCESS));
	old = mr->rkey;
	attr.addr = extra + 1000;
	attr.length = 200;
	assert_ok(mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL));
	pair_fill(p->a.mem, 8, 6);
	assert_writable(p, mr->rkey, mr->remote_end - 8);
	assert_int_equal(pair_check(extra + 1192, 8, 6), 8);
	assert_write_faults(p, old, (uintptr_t)extra, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

static void read_faults_when_the_key_is_not_valid(void **state)
{
	struct pair *p = *state;
	uint32_t detail;

	assert_ok(read_from(p, p->b.mr->rkey ^ 0xff, p->b.mr->remote_start, 8, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_REMOTE_ACCESS));
	detail = conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_int_equal(FLUE_FAULT_LAYER(detail), 0);
	assert_int_equal(FLUE_FAULT_TYPE(detail), 1);
	assert_int_equal(FLUE_FAULT_CODE(detail), 0);
}

static void read_faults_without_the_right(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE));
	assert_writable(p, mr->rkey, mr->remote_start);
	memset(p->a.mem, 0x11, 8);
	assert_ok(read_from(p, mr->rkey, mr->remote_start, 8, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_REMOTE_ACCESS));
	assert_int_equal(conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT), FAULT_RIGHTS);
	assert_int_equal(p->a.mem[0], 0x11);
	assert_ok(flue_deregister(mr));
}

/* A request whose own memory is wrong fails alone and ends the connection. */
static void assert_local_protection(struct pair *p, struct flue_sge *sge)
{
	struct flue_send_wr wr = { .id = 1, .flags = FLUE_SIGNALED, .sg = sge, .n_sg = 1 };

	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, NULL, 10000));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 10000));
	conf_expect_quiet(p);
}

static void send_fails_when_its_key_is_not_valid(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);

	sge.lkey ^= 0xff;
	assert_local_protection(p, &sge);
}

static void send_fails_when_its_memory_is_outside_the_region(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge = flue_mr_sge(p->a.mr, (1 << 20) - 4, 8);

	assert_local_protection(p, &sge);
}

static void send_fails_when_its_region_is_of_another_domain(void **state)
{
	struct pair *p = *state;
	struct flue_pd *pd;
	struct flue_mr *mr;
	struct flue_sge sge;

	assert_ok(pd = flue_create_pd(p->a.adapter));
	assert_ok(mr = flue_register(pd, extra, 100, PAIR_ALL_ACCESS));
	sge = flue_mr_sge(mr, 0, 8);
	assert_local_protection(p, &sge);
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_pd(pd));
}

static void receive_fails_when_its_region_must_not_be_written(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge;
	struct flue_recv_wr recv = { .id = 5, .sg = &sge, .n_sg = 1 };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_REMOTE_READ));
	memset(extra, 0x5a, 100);
	sge = flue_mr_sge(mr, 0, 100);
	assert_ok(flue_post_recv(p->b.qp, &recv));
	assert_ok(pair_send(&p->a, 0, 50, 1, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 5, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 10000));
	assert_int_equal(extra[0], 0x5a);
	assert_ok(flue_deregister(mr));
}

static void read_fails_when_its_sink_must_not_be_written(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge;
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_READ, .sg = &sge, .n_sg = 1 };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->a.pd, extra, 100, FLUE_REMOTE_READ));
	memset(extra, 0x5a, 100);
	sge = flue_mr_sge(mr, 0, 8);
	wr.flags = FLUE_SIGNALED;
	wr.rkey = p->b.mr->rkey;
	wr.remote_addr = p->b.mr->remote_start;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, NULL, 10000));
	assert_int_equal(extra[0], 0x5a);
	assert_ok(flue_deregister(mr));
}

/* ---- invalidates and fast registration ---- */

static void local_invalidate_revokes_a_region(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, PAIR_ALL_ACCESS));
	assert_writable(p, mr->rkey, mr->remote_start);
	inv.rkey = mr->rkey;
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

static void local_invalidate_is_refused_when_the_key_is_not_valid(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };

	inv.rkey = p->b.mr->rkey ^ 0xff;
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_BIND);
}

/* Sends with invalidate of `key`; the receive has id 5. */
static void send_inv(struct pair *p, uint32_t key)
{
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 40);
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_SEND_INV, .sg = &sge, .n_sg = 1 };

	assert_ok(pair_recv(&p->b, 0, 100, 5));
	wr.flags = FLUE_SIGNALED | FLUE_SOLICITED;
	wr.rkey = key;
	assert_ok(flue_post_send(p->a.qp, &wr));
}

static void peer_can_revoke_a_region_that_allows_it(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	struct flue_wc wc;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, PAIR_ALL_ACCESS));
	send_inv(p, mr->rkey);
	assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
	assert_int_equal(wc.flags, FLUE_WC_INVALIDATED | FLUE_WC_SOLICITED);
	assert_int_equal(wc.inv_key, mr->rkey);
	assert_int_equal(wc.byte_len, 40);
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

static void peer_cannot_revoke_a_region_that_does_not_allow_it(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 100, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE));
	send_inv(p, mr->rkey);
	assert_int_equal(
		FLUE_FAULT_LAYER(conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT)), 0);
	assert_ok(flue_deregister(mr));
}

static void read_with_invalidate_revokes_its_sink(void **state)
{
	struct pair *p = *state;
	struct flue_sge sge;
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_READ_INV, .sg = &sge, .n_sg = 1 };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->a.pd, extra, 100, FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE));
	pair_fill(p->b.mem, 100, 3);
	sge = flue_mr_sge(mr, 0, 100);
	wr.flags = FLUE_SIGNALED;
	wr.rkey = p->b.mr->rkey;
	wr.remote_addr = p->b.mr->remote_start;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(extra, 100, 3), 100);
	wr.op = FLUE_WR_SEND;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_ok(flue_deregister(mr));
}

static struct flue_mr *register_revoked(struct pair_side *s, size_t length)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);

	attr.addr = extra;
	attr.length = length;
	attr.access = PAIR_ALL_ACCESS;
	attr.revoked = true;
	return s->pd->ops->register_mr(s->pd, &attr);
}

static void fast_register_makes_a_revoked_region_valid(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr reg = { .op = FLUE_WR_FAST_REG }, inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;
	uint32_t key = 0;

	assert_ok(mr = register_revoked(&p->b, 1000));
	reg.reg.access = PAIR_ALL_ACCESS;
	for (uint32_t round = 0; round < 3; round++) {
		reg.rkey = round ? key : mr->rkey;
		reg.reg.addr = (uintptr_t)extra + 100 * round;
		reg.reg.length = 500;
		reg.reg.key = (uint8_t)(mr->rkey + 1 + round);
		key = (mr->rkey & ~0xffu) | reg.reg.key;
		assert_int_equal(do_local(&p->b, &reg), FLUE_WC_SUCCESS);
		pair_fill(p->a.mem, 8, round);
		assert_writable(p, key, reg.reg.addr);
		assert_int_equal(pair_check(extra + 100 * round, 8, round), 8);
		inv.rkey = key;
		assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	}
	assert_write_faults(p, key, reg.reg.addr, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

/* No copies of keys in user code: the region itself says how it is now. */
static void region_shows_what_a_fast_register_made_of_it(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr reg = { .op = FLUE_WR_FAST_REG }, inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr, before;

	assert_ok(mr = register_revoked(&p->b, 1000));
	before = *mr;
	reg.reg.addr = (uintptr_t)extra + 100;
	for (uint32_t zero_based = 0; zero_based < 2; zero_based++) {
		uint64_t start = zero_based ? 0 : (uintptr_t)extra + 100;

		reg.rkey = mr->rkey;
		reg.reg.length = 200;
		reg.reg.access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE |
				 (zero_based ? (uint32_t)FLUE_ZERO_BASED : 0);
		reg.reg.key = (uint8_t)(mr->rkey + 1);
		assert_int_equal(do_local(&p->b, &reg), FLUE_WC_SUCCESS);
		assert_int_equal(mr->rkey, (before.rkey & ~0xffu) | reg.reg.key);
		assert_int_equal(mr->lkey, (before.lkey & ~0xffu) | reg.reg.key);
		assert_ptr_equal(mr->addr, extra + 100);
		assert_int_equal(mr->length, 200);
		assert_int_equal(mr->remote_start, start);
		assert_int_equal(mr->remote_end, start + 200);
		assert_int_equal(mr->access, reg.reg.access);
		assert_ptr_equal(mr->pd, before.pd);
		assert_writable(p, mr->rkey, mr->remote_start);
		inv.rkey = mr->rkey;
		assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	}
	/* What is refused changes nothing. */
	before = *mr;
	reg.rkey = mr->rkey;
	reg.reg.length = 1001;
	reg.reg.key++;
	assert_int_equal(do_local(&p->b, &reg), FLUE_WC_BIND);
	assert_memory_equal(mr, &before, sizeof(before));
	assert_ok(flue_deregister(mr));
}

static void fast_register_is_refused_when_the_region_is_valid(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr reg = { .op = FLUE_WR_FAST_REG };

	reg.rkey = p->b.mr->rkey;
	reg.reg.addr = p->b.mr->remote_start;
	reg.reg.length = 8;
	assert_int_equal(do_local(&p->b, &reg), FLUE_WC_BIND);
}

static void fast_register_is_refused_when_it_is_longer_than_the_region(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr reg = { .op = FLUE_WR_FAST_REG };
	struct flue_mr *mr;

	assert_ok(mr = register_revoked(&p->b, 1000));
	reg.rkey = mr->rkey;
	reg.reg.addr = (uintptr_t)extra;
	reg.reg.length = 1001;
	assert_int_equal(do_local(&p->b, &reg), FLUE_WC_BIND);
	assert_ok(flue_deregister(mr));
}

/* ---- windows ---- */

static struct flue_send_wr bind_wr(const struct flue_mw *mw, const struct flue_mr *mr,
				   size_t offset, size_t length, uint32_t access)
{
	struct flue_send_wr wr = { .op = FLUE_WR_BIND, .rkey = mw->rkey };

	wr.reg.addr = mr->remote_start + offset;
	wr.reg.length = length;
	wr.reg.access = access;
	wr.reg.lkey = mr->lkey;
	wr.reg.key = (uint8_t)(mw->rkey + 7);
	return wr;
}

static void window_opens_a_part_of_a_region(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	struct flue_mw *mw;
	struct flue_send_wr wr;
	uint32_t key;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW));
	assert_ok(mw = p->b.pd->ops->create_mw(p->b.pd));
	wr = bind_wr(mw, mr, 100, 200, FLUE_REMOTE_WRITE | FLUE_REMOTE_READ);
	key = (mw->rkey & ~0xffu) | wr.reg.key;
	assert_int_not_equal(mw->rkey, key);
	assert_int_equal(do_local(&p->b, &wr), FLUE_WC_SUCCESS);
	assert_int_equal(mw->rkey, key); /* WN-1 */
	pair_fill(p->a.mem, 8, 4);
	assert_writable(p, key, mr->remote_start + 100);
	assert_writable(p, key, mr->remote_start + 292);
	assert_int_equal(pair_check(extra + 100, 8, 4), 8);
	assert_ok(read_from(p, key, mr->remote_start + 100, 200, 1));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	/* While a window is bound to it, the region stays. */
	assert_fails(flue_deregister(mr), EBUSY);
	assert_write_faults(p, key, mr->remote_start + 293, FAULT_BOUNDS);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

static void window_closes_when_invalidated(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	struct flue_mw *mw;
	struct flue_send_wr wr, inv = { .op = FLUE_WR_LOCAL_INV };

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW));
	assert_ok(mw = p->b.pd->ops->create_mw(p->b.pd));
	wr = bind_wr(mw, mr, 0, 1000, FLUE_REMOTE_WRITE);
	assert_int_equal(do_local(&p->b, &wr), FLUE_WC_SUCCESS);
	inv.rkey = (mw->rkey & ~0xffu) | wr.reg.key;
	assert_writable(p, inv.rkey, mr->remote_start);
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	assert_ok(flue_deregister(mr));
	assert_write_faults(p, inv.rkey, (uintptr_t)extra, FAULT_STAG);
	assert_ok(mw->ops->destroy(mw));
}

static void window_is_for_the_qp_that_bound_it(void **state)
{
	struct pair *p = *state;
	struct flue_qp *a2, *b2, *first_a = p->a.qp, *first_b = p->b.qp;
	struct flue_mr *mr;
	struct flue_mw *mw;
	struct flue_send_wr wr;

	assert_ok(a2 = pair_new_qp(p, &p->a));
	assert_ok(b2 = pair_new_qp(p, &p->b));
	assert_ok(pair_connect_qps(p, a2, b2));
	assert_ok(mr = flue_register(p->b.pd, extra, 1000, FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW));
	assert_ok(mw = p->b.pd->ops->create_mw(p->b.pd));
	wr = bind_wr(mw, mr, 0, 1000, FLUE_REMOTE_WRITE);
	assert_int_equal(do_local(&p->b, &wr), FLUE_WC_SUCCESS);
	p->a.qp = a2;
	p->b.qp = b2;
	assert_write_faults(p, (mw->rkey & ~0xffu) | wr.reg.key, mr->remote_start, FAULT_PD);
	p->a.qp = first_a;
	p->b.qp = first_b;
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_qp(a2));
	assert_ok(flue_destroy_qp(b2));
}

static void refuse_bind(struct pair *p, struct flue_mr *mr, size_t offset, size_t length,
			uint32_t access)
{
	struct flue_mw *mw;
	struct flue_send_wr wr;

	assert_ok(mw = p->b.pd->ops->create_mw(p->b.pd));
	wr = bind_wr(mw, mr, offset, length, access);
	assert_int_equal(do_local(&p->b, &wr), FLUE_WC_BIND);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

static void window_is_refused_when_the_region_does_not_allow_it(void **state)
{
	struct pair *p = *state;

	refuse_bind(p, flue_register(p->b.pd, extra, 1000, PAIR_ALL_ACCESS), 0, 8,
		    FLUE_REMOTE_READ);
}

static void window_is_refused_when_it_is_outside_the_region(void **state)
{
	struct pair *p = *state;

	refuse_bind(p, flue_register(p->b.pd, extra, 1000, FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW),
		    995, 6, FLUE_REMOTE_READ);
}

static void window_cannot_give_a_right_that_the_region_lacks(void **state)
{
	struct pair *p = *state;

	refuse_bind(p, flue_register(p->b.pd, extra, 1000, FLUE_BIND_WINDOW), 0, 8,
		    FLUE_REMOTE_WRITE);
}

/* ---- life ---- */

static void deregister_waits_until_no_byte_moves(void **state)
{
	struct pair *p = *state;
	uint64_t start = p->b.mr->remote_start;
	uint32_t rkey = p->b.mr->rkey;
	size_t n = 1 << 20;

	for (unsigned i = 0; i < 32; i++)
		assert_ok(pair_write(&p->a, 0, (uint32_t)n, &p->b, 0, i, FLUE_SIGNALED));
	assert_ok(flue_deregister(p->b.mr));
	p->b.mr = NULL;
	memset(p->b.mem, 0x77, n);
	/* One more, if all the others were quicker. */
	assert_ok(write_to(p, rkey, start, 8, 99));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, NULL, 10000));
	for (size_t i = 0; i < n; i++)
		assert_int_equal(p->b.mem[i], 0x77);
}

static void unmapped_memory_ends_the_connection_and_not_the_process(void **state)
{
	struct pair *p = *state;
	void *map = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct flue_event ev;
	struct flue_mr *mr;

	NOT_DENIED("without process_vm copies are plain: memory.md");
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_ok(mr = flue_register(p->b.pd, map, 65536, PAIR_ALL_ACCESS));
	assert_writable(p, mr->rkey, mr->remote_start);
	/* As good as unmapped, but nobody else can get the addresses meanwhile. Only the library's
	 * own threads touch b now; none of ours polls there. */
	assert_int_equal(mprotect(map, 65536, PROT_NONE), 0);
	assert_ok(write_to(p, mr->rkey, mr->remote_start, 1000, 1));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 10000));
	assert_int_not_equal(ev.reason, FLUE_CLOSE_GRACEFUL);
	assert_ok(flue_deregister(mr));
	assert_int_equal(munmap(map, 65536), 0);
}

int main(int argc, char **argv)
{
	/* RD-3 all of them; others are named. */
	const struct CMUnitTest tests[] = {
		WITH_PAIR(region_can_be_addressed_from_zero),
		WITH_PAIR(region_can_be_addressed_from_any_number),
		WITH_PAIR(write_faults_when_the_region_is_for_this_side_only),
		WITH_PAIR(region_for_this_side_only_cannot_be_invalidated_by_the_peer), /* WN-1 */
		WITH_PAIR(write_faults_when_the_key_was_never_valid),
		WITH_PAIR(write_faults_when_it_begins_before_the_region),
		WITH_PAIR(write_faults_when_it_ends_behind_the_region),
		WITH_PAIR(write_faults_when_its_address_wraps),
		WITH_PAIR(write_faults_without_the_right),
		WITH_PAIR(write_faults_when_the_region_is_of_another_domain),
		WITH_PAIR(write_faults_when_the_region_is_gone),
		WITH_PAIR(modified_region_has_new_keys_only), /* WN-1 */
		WITH_PAIR(read_faults_when_the_key_is_not_valid),
		WITH_PAIR(read_faults_without_the_right),
		WITH_PAIR(send_fails_when_its_key_is_not_valid),
		WITH_PAIR(send_fails_when_its_memory_is_outside_the_region),
		WITH_PAIR(send_fails_when_its_region_is_of_another_domain),
		WITH_PAIR(receive_fails_when_its_region_must_not_be_written),
		WITH_PAIR(read_fails_when_its_sink_must_not_be_written),
		WITH_PAIR(local_invalidate_revokes_a_region),
		WITH_PAIR(local_invalidate_is_refused_when_the_key_is_not_valid),
		WITH_PAIR(peer_can_revoke_a_region_that_allows_it),
		WITH_PAIR(peer_cannot_revoke_a_region_that_does_not_allow_it),
		WITH_PAIR(read_with_invalidate_revokes_its_sink),
		WITH_PAIR(fast_register_makes_a_revoked_region_valid),
		WITH_PAIR(region_shows_what_a_fast_register_made_of_it), /* WN-1 */
		WITH_PAIR(fast_register_is_refused_when_the_region_is_valid),
		WITH_PAIR(fast_register_is_refused_when_it_is_longer_than_the_region),
		WITH_PAIR(window_opens_a_part_of_a_region),
		WITH_PAIR(window_closes_when_invalidated),
		WITH_PAIR(window_is_for_the_qp_that_bound_it),
		WITH_PAIR(window_is_refused_when_the_region_does_not_allow_it),
		WITH_PAIR(window_is_refused_when_it_is_outside_the_region),
		WITH_PAIR(window_cannot_give_a_right_that_the_region_lacks),
		WITH_PAIR(deregister_waits_until_no_byte_moves),
		WITH_PAIR(unmapped_memory_ends_the_connection_and_not_the_process),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
