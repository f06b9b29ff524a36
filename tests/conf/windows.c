/* SPDX-License-Identifier: MIT */
/* Conformance: types of windows, and regions that are changed in part (RD-3, WN-1). */
#include "conf/conf.h"

#define FAULT_STAG   0x1100 /* DDP, tagged buffer, invalid STag */
#define FAULT_PD     0x1102 /* STag not associated with the stream */
#define FAULT_RIGHTS 0x0102 /* RDMAP, remote protection, access rights */
#define BINDABLE     (FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW)

static uint8_t extra[4096];

static const uint32_t type_2[] = { FLUE_MW_2A, FLUE_MW_2B };

static bool write_to(struct pair *p, uint32_t rkey, uint64_t addr)
{
	struct flue_sge sge = flue_mr_sge(p->a.mr, 0, 8);
	struct flue_send_wr wr = { .id = 1,
				   .op = FLUE_WR_WRITE,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = rkey,
				   .remote_addr = addr };

	return flue_post_send(p->a.qp, &wr);
}

/* It is placed at `at` when this returns: the message behind it has come. */
static void assert_writable(struct pair *p, uint32_t rkey, uint64_t addr, const uint8_t *at)
{
	static uint32_t seed;

	pair_fill(p->a.mem, 8, ++seed);
	assert_ok(write_to(p, rkey, addr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(pair_recv(&p->b, 1 << 19, 0, 2));
	assert_ok(pair_send(&p->a, 0, 0, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.recv_cq, 2, FLUE_WC_SUCCESS));
	assert_int_equal(pair_check(at, 8, seed), 8);
}

static void expect_fault(struct pair *p, uint32_t fault)
{
	struct flue_event ev;

	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &ev, 10000));
	assert_string_equal(flue_close_reason_name(ev.reason),
			    flue_close_reason_name(FLUE_CLOSE_FAULT));
	assert_string_equal(flue_fault_name(ev.detail), flue_fault_name(fault));
	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, NULL, 10000));
}

static void assert_write_faults(struct pair *p, uint32_t rkey, uint64_t addr, uint32_t fault)
{
	assert_ok(write_to(p, rkey, addr));
	expect_fault(p, fault);
}

/* Posts a request that only changes keys; its status. */
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

/* A window of type 2 is bound to all of a region. */
static uint32_t bind_2(struct pair_side *s, struct flue_mw *mw, const struct flue_mr *mr,
		       uint32_t access)
{
	struct flue_send_wr wr = { .op = FLUE_WR_BIND, .rkey = mw->rkey };

	wr.reg = (struct flue_reg) { .addr = mr->remote_start,
				     .length = mr->length,
				     .access = access,
				     .lkey = mr->lkey,
				     .key = (uint8_t)(mw->rkey + 1) };
	return do_local(s, &wr);
}

static struct flue_bind_attr bind_attr(struct flue_mr *mr, size_t offset, size_t length)
{
	struct flue_bind_attr attr = FLUE_ATTR(struct flue_bind_attr);

	attr.id = 88;
	attr.flags = FLUE_SIGNALED;
	attr.access = FLUE_REMOTE_WRITE;
	attr.mr = mr;
	attr.addr = mr ? mr->remote_start + offset : 0;
	attr.length = length;
	return attr;
}

/* One of type 1, through the side's queue pair; mr NULL: to nothing. */
static void bind_1(struct pair_side *s, struct flue_mw *mw, struct flue_mr *mr, size_t offset,
		   size_t length)
{
	struct flue_bind_attr attr = bind_attr(mr, offset, length);
	uint32_t before = mw->rkey;
	struct flue_wc wc;

	assert_ok(mw->ops->bind(mw, s->qp, &attr));
	assert_int_not_equal(mw->rkey, before);
	assert_int_equal(pair_take(s->send_cq, &wc, 1, 10000), 1);
	assert_int_equal(wc.id, 88);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
	assert_int_equal(wc.op, FLUE_WC_BIND_MW);
}

/* A second connection between the sides. */
struct other {
	struct flue_qp *a, *b;
};

static struct other connect_other(struct pair *p)
{
	struct other o;

	assert_ok(o.a = pair_new_qp(p, &p->a));
	assert_ok(o.b = pair_new_qp(p, &p->b));
	assert_ok(pair_connect_qps(p, o.a, o.b));
	return o;
}

static void swap(struct pair *p, struct other *o)
{
	struct other now = { p->a.qp, p->b.qp };

	p->a.qp = o->a;
	p->b.qp = o->b;
	*o = now;
}

static void destroy_other(struct other *o)
{
	assert_ok(flue_destroy_qp(o->a));
	assert_ok(flue_destroy_qp(o->b));
}

static struct flue_mw *make_mw(struct flue_pd *pd, uint32_t type)
{
	struct flue_mw *mw;

	assert_ok(mw = pd->ops->create_typed_mw(pd, type));
	assert_int_equal(mw->type, type);
	return mw;
}

/* ---- type 1 ---- */

static void window_of_type_1_is_for_every_queue_pair_of_its_domain(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_pd *mine = p->b.pd, *pd;
	struct other o = connect_other(p), stranger;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	bind_1(&p->b, mw, mr, 100, 200);
	assert_writable(p, mw->rkey, mr->remote_start + 100, extra + 100);
	swap(p, &o);
	assert_writable(p, mw->rkey, mr->remote_start + 292, extra + 292);
	/* Also after the one is gone through which it was bound. */
	destroy_other(&o);
	assert_writable(p, mw->rkey, mr->remote_start + 150, extra + 150);
	assert_fails(flue_deregister(mr), EBUSY);
	/* And for nobody else. */
	assert_ok(pd = flue_create_pd(p->b.adapter));
	p->b.pd = pd;
	stranger = connect_other(p);
	p->b.pd = mine;
	swap(p, &stranger);
	assert_ok(write_to(p, mw->rkey, mr->remote_start + 100));
	expect_fault(p, FAULT_PD);
	swap(p, &stranger);
	destroy_other(&stranger);
	assert_ok(flue_destroy_pd(pd));
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

static void window_of_type_1_is_bound_again_and_unbound(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_mr *one, *two;
	uint32_t old;

	assert_ok(one = flue_register(p->b.pd, extra, 1000, BINDABLE));
	assert_ok(two = flue_register(p->b.pd, extra + 1000, 1000, BINDABLE));
	bind_1(&p->b, mw, one, 0, 1000);
	assert_writable(p, mw->rkey, one->remote_start, extra);
	bind_1(&p->b, mw, two, 0, 1000);
	assert_ok(flue_deregister(one));
	assert_writable(p, mw->rkey, two->remote_start, extra + 1000);
	old = mw->rkey;
	/* To nothing: by a length of 0, or without a region. */
	bind_1(&p->b, mw, two, 0, 0);
	assert_ok(flue_deregister(two));
	bind_1(&p->b, mw, NULL, 0, 0);
	assert_write_faults(p, old, (uintptr_t)extra + 1000, FAULT_STAG);
	assert_ok(mw->ops->destroy(mw));
}

/* The program knows the keys before the requests are done, of all that it has posted. */
static void keys_of_type_1_are_known_when_posted(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_bind_attr attr;
	struct flue_mr *mr;
	uint32_t keys[5];

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	for (uint32_t i = 0; i < 5; i++) {
		attr = bind_attr(mr, 100 * i, 100);
		attr.id = i;
		assert_ok(mw->ops->bind(mw, p->b.qp, &attr));
		keys[i] = mw->rkey;
		for (uint32_t j = 0; j < i; j++)
			assert_int_not_equal(keys[i], keys[j]);
	}
	for (uint32_t i = 0; i < 5; i++)
		assert_true(pair_expect(p->b.send_cq, i, FLUE_WC_SUCCESS));
	assert_int_equal(mw->rkey, keys[4]);
	assert_writable(p, keys[4], mr->remote_start + 400, extra + 400);
	assert_write_faults(p, keys[3], mr->remote_start + 300, FAULT_STAG);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

static void window_of_type_1_is_not_revoked_by_its_owner(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	bind_1(&p->b, mw, mr, 0, 1000);
	inv.rkey = mw->rkey;
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_BIND);
	assert_fails(flue_deregister(mr), EBUSY);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

/* The peer sends and names the key; what comes of it is the caller's to see. */
static void send_inv(struct pair *p, uint32_t rkey)
{
	struct flue_send_wr wr = { .id = 4, .op = FLUE_WR_SEND_INV, .rkey = rkey };

	assert_ok(pair_recv(&p->b, 0, 100, 5));
	assert_ok(flue_post_send(p->a.qp, &wr));
}

static void window_of_type_1_is_not_revoked_by_the_peer(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	bind_1(&p->b, mw, mr, 0, 1000);
	send_inv(p, mw->rkey);
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_fails(flue_deregister(mr), EBUSY); /* it is bound as before */
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

static void each_type_has_its_own_way_to_be_bound(void **state)
{
	struct pair *p = *state;
	struct flue_mw *one = make_mw(p->b.pd, FLUE_MW_1), *two;
	struct flue_bind_attr attr;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	for (uint32_t i = 0; i < 2; i++) {
		two = make_mw(p->b.pd, type_2[i]);
		attr = bind_attr(mr, 0, 1000);
		assert_fails(two->ops->bind(two, p->b.qp, &attr), EINVAL);
		assert_ok(two->ops->destroy(two));
	}
	assert_int_equal(bind_2(&p->b, one, mr, FLUE_REMOTE_WRITE), FLUE_WC_BIND);
	assert_ok(one->ops->destroy(one));
	assert_ok(flue_deregister(mr));
}

static void bind_is_refused_when_it_can_not_be(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_bind_attr attr;
	struct flue_mr *mr, *shut, *foreign;
	uint32_t key = mw->rkey;
	struct flue_pd *pd;

	assert_ok(pd = flue_create_pd(p->b.adapter));
	assert_ok(mr = flue_register(p->b.pd, extra, 1000, FLUE_BIND_WINDOW));
	assert_ok(shut = flue_register(p->b.pd, extra, 1000, FLUE_LOCAL_WRITE));
	assert_ok(foreign = flue_register(pd, extra, 1000, BINDABLE));
	attr = bind_attr(mr, 0, 1000); /* a right that it has not */
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	attr = bind_attr(shut, 0, 1000); /* no windows */
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	attr = bind_attr(foreign, 0, 1000);
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	attr = bind_attr(mr, 1, 1000);
	attr.access = FLUE_REMOTE_READ;
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	attr = bind_attr(mr, 0, 1000);
	attr.access = FLUE_REMOTE_READ | FLUE_ZERO_BASED;
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	attr.access = FLUE_REMOTE_READ;
	attr.flags = FLUE_INLINE;
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), EINVAL);
	assert_int_equal(mw->rkey, key);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr) && flue_deregister(shut) && flue_deregister(foreign));
	assert_ok(flue_destroy_pd(pd));
}

/* As every request: where there is no connection, and where it has ended. */
static void bind_follows_the_state_of_its_queue_pair(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_bind_attr attr;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	attr = bind_attr(mr, 0, 1000);
	assert_fails(mw->ops->bind(mw, p->b.qp, &attr), ENOTCONN);
	assert_ok(pair_connect(p));
	assert_ok(flue_abort(p->b.qp));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_ERROR, 5000));
	assert_ok(mw->ops->bind(mw, p->b.qp, &attr));
	assert_true(pair_expect(p->b.send_cq, 88, FLUE_WC_FLUSHED));
	assert_ok(flue_deregister(mr)); /* nothing was bound */
	assert_ok(mw->ops->destroy(mw));
}

/* What becomes of the region between the call and the request is the request's trouble. */
static void bind_of_a_revoked_region_fails(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_bind_attr attr;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	inv.rkey = mr->rkey;
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	attr = bind_attr(mr, 0, 1000);
	attr.flags = 0; /* what fails is told of all the same */
	assert_ok(mw->ops->bind(mw, p->b.qp, &attr));
	assert_true(pair_expect(p->b.send_cq, 88, FLUE_WC_BIND));
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

/* ---- type 2 ---- */

static void window_of_type_2_is_revoked_by_either_side(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;
	struct flue_wc wc;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	for (uint32_t i = 0; i < 2; i++) {
		struct flue_mw *mw = make_mw(p->b.pd, type_2[i]);

		assert_int_equal(bind_2(&p->b, mw, mr, FLUE_REMOTE_WRITE), FLUE_WC_SUCCESS);
		assert_writable(p, mw->rkey, mr->remote_start, extra);
		assert_fails(flue_deregister(mr), EBUSY);
		inv.rkey = mw->rkey;
		assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
		assert_int_equal(bind_2(&p->b, mw, mr, FLUE_REMOTE_WRITE), FLUE_WC_SUCCESS);
		assert_int_not_equal(mw->rkey, inv.rkey);
		send_inv(p, mw->rkey);
		assert_int_equal(pair_take(p->b.recv_cq, &wc, 1, 10000), 1);
		assert_int_equal(wc.status, FLUE_WC_SUCCESS);
		assert_int_equal(wc.flags, FLUE_WC_INVALIDATED);
		assert_int_equal(wc.inv_key, mw->rkey);
		inv.rkey = mw->rkey;
		assert_ok(mw->ops->destroy(mw));
	}
	assert_ok(flue_deregister(mr));
	assert_write_faults(p, inv.rkey, (uintptr_t)extra, FAULT_STAG);
}

/* Neither its peer nor its owner can use or revoke it through another one. */
static void window_of_type_2_is_for_one_queue_pair(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	for (uint32_t i = 0; i < 2; i++) {
		struct flue_mw *mw = make_mw(p->b.pd, type_2[i]);
		struct other o = connect_other(p);

		assert_int_equal(bind_2(&p->b, mw, mr, FLUE_REMOTE_WRITE), FLUE_WC_SUCCESS);
		swap(p, &o);
		assert_write_faults(p, mw->rkey, mr->remote_start, FAULT_PD);
		swap(p, &o);
		destroy_other(&o);
		o = connect_other(p);
		swap(p, &o);
		send_inv(p, mw->rkey);
		conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
		swap(p, &o);
		destroy_other(&o);
		o = connect_other(p);
		swap(p, &o);
		inv.rkey = mw->rkey;
		assert_int_equal(do_local(&p->b, &inv), FLUE_WC_BIND);
		swap(p, &o);
		destroy_other(&o);
		assert_writable(p, mw->rkey, mr->remote_start, extra);
		assert_ok(mw->ops->destroy(mw));
	}
	assert_ok(flue_deregister(mr));
}

static void windows_of_type_2_go_with_their_queue_pair(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw[2], *stays = make_mw(p->b.pd, FLUE_MW_2A);
	struct other o = connect_other(p);
	struct flue_mr *mr, *kept;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	assert_ok(kept = flue_register(p->b.pd, extra + 1000, 1000, BINDABLE));
	assert_int_equal(bind_2(&p->b, stays, kept, FLUE_REMOTE_WRITE), FLUE_WC_SUCCESS);
	swap(p, &o);
	for (uint32_t i = 0; i < 2; i++) {
		mw[i] = make_mw(p->b.pd, type_2[i]);
		assert_int_equal(bind_2(&p->b, mw[i], mr, FLUE_REMOTE_WRITE), FLUE_WC_SUCCESS);
		assert_writable(p, mw[i]->rkey, mr->remote_start, extra);
	}
	assert_fails(flue_deregister(mr), EBUSY);
	swap(p, &o);
	destroy_other(&o);
	assert_ok(flue_deregister(mr));
	assert_writable(p, stays->rkey, kept->remote_start, extra + 1000);
	assert_write_faults(p, mw[0]->rkey, (uintptr_t)extra, FAULT_STAG);
	assert_ok(mw[0]->ops->destroy(mw[0]) && mw[1]->ops->destroy(mw[1]));
	assert_ok(stays->ops->destroy(stays));
	assert_ok(flue_deregister(kept));
}

static void window_of_type_2_can_be_addressed_from_zero(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, BINDABLE));
	for (uint32_t i = 0; i < 2; i++) {
		struct flue_mw *mw = make_mw(p->b.pd, type_2[i]);

		assert_int_equal(bind_2(&p->b, mw, mr, FLUE_REMOTE_WRITE | FLUE_ZERO_BASED),
				 FLUE_WC_SUCCESS);
		assert_writable(p, mw->rkey, 0, extra);
		assert_writable(p, mw->rkey, 992, extra + 992);
		assert_ok(mw->ops->destroy(mw));
	}
	assert_ok(flue_deregister(mr));
}

/* A window is for the peer: our own requests name regions. */
static void window_is_no_memory_of_our_requests(void **state)
{
	struct pair *p = *state;
	struct flue_mw *mw = make_mw(p->a.pd, FLUE_MW_2B);
	struct flue_sge sge = { .length = 8 };
	struct flue_send_wr wr = { .id = 1, .flags = FLUE_SIGNALED, .sg = &sge, .n_sg = 1 };
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->a.pd, extra, 1000, BINDABLE));
	assert_int_equal(bind_2(&p->a, mw, mr, FLUE_REMOTE_READ), FLUE_WC_SUCCESS);
	sge.addr = mr->remote_start;
	sge.lkey = mw->rkey;
	assert_ok(flue_post_send(p->a.qp, &wr));
	assert_true(pair_expect(p->a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

/* ---- regions that are changed in part ---- */

static bool modify(struct flue_mr *mr, uint32_t what, void *addr, size_t length, uint32_t access,
		   struct flue_pd *pd)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);

	attr.addr = addr;
	attr.length = length;
	attr.access = access;
	return mr->ops->modify(mr, what, &attr, pd);
}

static void region_is_changed_part_by_part_under_its_keys(void **state)
{
	const uint32_t keep = FLUE_MR_KEEP_KEYS, access = PAIR_ALL_ACCESS | FLUE_ZERO_BASED;
	struct pair *p = *state;
	struct flue_pd *other;
	struct flue_mr *mr;
	uint32_t lkey, rkey;

	assert_ok(other = flue_create_pd(p->b.adapter));
	assert_ok(mr = flue_register(p->b.pd, extra, 1000, access));
	lkey = mr->lkey;
	rkey = mr->rkey;
	assert_writable(p, rkey, 8, extra + 8);
	assert_ok(modify(mr, FLUE_MR_RANGE | keep, extra + 1000, 500, 0, NULL));
	assert_writable(p, rkey, 8, extra + 1008);
	/* There and back: who has the key sees nothing of it. */
	assert_ok(modify(mr, FLUE_MR_PD | keep, NULL, 0, 0, other));
	assert_ptr_equal(mr->pd, other);
	assert_ok(modify(mr, FLUE_MR_PD | keep, NULL, 0, 0, p->b.pd));
	assert_ok(modify(mr, FLUE_MR_ACCESS | keep, NULL, 0, FLUE_ZERO_BASED, NULL));
	assert_ok(modify(mr, FLUE_MR_ACCESS | keep, NULL, 0, access, NULL));
	assert_writable(p, rkey, 16, extra + 1016);
	/* All at once. */
	assert_ok(modify(mr, FLUE_MR_RANGE | FLUE_MR_ACCESS | FLUE_MR_PD | keep, extra, 100, access,
			 p->b.pd));
	assert_writable(p, rkey, 92, extra + 92);
	assert_int_equal(mr->lkey, lkey);
	assert_int_equal(mr->rkey, rkey);
	assert_int_equal(mr->length, 100);
	assert_ok(modify(mr, FLUE_MR_PD, NULL, 0, 0, p->b.pd));
	assert_int_not_equal(mr->rkey, rkey);
	assert_write_faults(p, rkey, 0, FAULT_STAG);
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_pd(other));
}

static void region_of_another_domain_is_shut_under_the_same_key(void **state)
{
	struct pair *p = *state;
	struct flue_pd *other;
	struct flue_mr *mr;

	assert_ok(other = flue_create_pd(p->b.adapter));
	assert_ok(mr = flue_register(p->b.pd, extra, 1000, PAIR_ALL_ACCESS));
	assert_writable(p, mr->rkey, mr->remote_start, extra);
	assert_ok(modify(mr, FLUE_MR_PD | FLUE_MR_KEEP_KEYS, NULL, 0, 0, other));
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_PD);
	assert_ok(flue_deregister(mr));
	assert_ok(flue_destroy_pd(other));
}

static void region_without_a_right_is_shut_under_the_same_key(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, PAIR_ALL_ACCESS));
	assert_writable(p, mr->rkey, mr->remote_start, extra);
	assert_ok(modify(mr, FLUE_MR_ACCESS | FLUE_MR_KEEP_KEYS, NULL, 0,
			 FLUE_LOCAL_WRITE | FLUE_REMOTE_READ, NULL));
	assert_write_faults(p, mr->rkey, mr->remote_start, FAULT_RIGHTS);
	assert_ok(flue_deregister(mr));
}

/* Whatever the reason, the region is as it was. */
static void region_stays_as_it_was_when_a_change_fails(void **state)
{
	struct pair *p = *state;
	struct flue_mr *mr, before;
	struct flue_mw *mw = make_mw(p->b.pd, FLUE_MW_1);

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, PAIR_ALL_ACCESS | FLUE_BIND_WINDOW));
	bind_1(&p->b, mw, mr, 0, 1000);
	before = *mr;
	for (uint32_t keep = 0; keep <= FLUE_MR_KEEP_KEYS; keep += FLUE_MR_KEEP_KEYS) {
		assert_fails(modify(mr, FLUE_MR_RANGE | keep, extra, 10, 0, NULL), EBUSY);
		assert_fails(modify(mr, FLUE_MR_ACCESS | keep, NULL, 0, 0, NULL), EBUSY);
		assert_fails(modify(mr, FLUE_MR_PD | keep, NULL, 0, 0, p->b.pd), EBUSY);
		assert_fails(modify(mr, FLUE_MR_RANGE | keep, extra, 0, 0, NULL), EINVAL);
		assert_fails(modify(mr, FLUE_MR_ACCESS | keep, NULL, 0, FLUE_REMOTE_WRITE, NULL),
			     EINVAL);
		/* Of another adapter, unless both sides have the same. */
		assert_fails(modify(mr, FLUE_MR_PD | keep, NULL, 0, 0, p->a.pd),
			     pair_self ? EBUSY : EXDEV);
		assert_fails(modify(mr, keep, extra, 10, 0, NULL), EINVAL);
	}
	assert_memory_equal(mr, &before, sizeof(before));
	assert_writable(p, mr->rkey, mr->remote_start, extra);
	assert_writable(p, mw->rkey, mr->remote_start, extra);
	assert_ok(mw->ops->destroy(mw));
	assert_ok(flue_deregister(mr));
}

/* The peer has revoked it: a change of something else does not undo that. */
static void revoked_region_becomes_valid_with_a_new_range_only(void **state)
{
	struct pair *p = *state;
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV };
	struct flue_mr *mr;
	uint32_t rkey;

	assert_ok(mr = flue_register(p->b.pd, extra, 1000, PAIR_ALL_ACCESS));
	inv.rkey = rkey = mr->rkey;
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	assert_ok(modify(mr, FLUE_MR_RANGE | FLUE_MR_KEEP_KEYS, extra, 1000, 0, NULL));
	assert_writable(p, rkey, mr->remote_start, extra);
	assert_int_equal(do_local(&p->b, &inv), FLUE_WC_SUCCESS);
	assert_ok(modify(mr, FLUE_MR_ACCESS | FLUE_MR_KEEP_KEYS, NULL, 0, PAIR_ALL_ACCESS, NULL));
	assert_ok(modify(mr, FLUE_MR_PD | FLUE_MR_KEEP_KEYS, NULL, 0, 0, p->b.pd));
	assert_write_faults(p, rkey, mr->remote_start, FAULT_STAG);
	assert_ok(flue_deregister(mr));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_PAIR(window_of_type_1_is_for_every_queue_pair_of_its_domain),
		WITH_PAIR(window_of_type_1_is_bound_again_and_unbound),
		WITH_PAIR(keys_of_type_1_are_known_when_posted),
		WITH_PAIR(window_of_type_1_is_not_revoked_by_its_owner),
		WITH_PAIR(window_of_type_1_is_not_revoked_by_the_peer),
		WITH_PAIR(each_type_has_its_own_way_to_be_bound),
		WITH_PAIR(bind_is_refused_when_it_can_not_be),
		WITH_IDLE_PAIR(bind_follows_the_state_of_its_queue_pair),
		WITH_PAIR(bind_of_a_revoked_region_fails),
		WITH_PAIR(window_of_type_2_is_revoked_by_either_side),
		WITH_PAIR(window_of_type_2_is_for_one_queue_pair),
		WITH_PAIR(windows_of_type_2_go_with_their_queue_pair),
		WITH_PAIR(window_of_type_2_can_be_addressed_from_zero),
		WITH_PAIR(window_is_no_memory_of_our_requests),
		WITH_PAIR(region_is_changed_part_by_part_under_its_keys), /* WN-1 */
		WITH_PAIR(region_of_another_domain_is_shut_under_the_same_key),
		WITH_PAIR(region_without_a_right_is_shut_under_the_same_key),
		WITH_PAIR(region_stays_as_it_was_when_a_change_fails),
		WITH_PAIR(revoked_region_becomes_valid_with_a_new_range_only),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
