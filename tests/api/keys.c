/* SPDX-License-Identifier: MIT */
/*
 * Keys that requests make and revoke. Each end has one, which goes round: nothing is valid, it is
 * made valid by a request of this end, the peer reads through it, and it is revoked by a request of
 * either end. Each step is begun by whatever thread comes by, and done when its completion is
 * booked. See api.h.
 */
#include "api.h"

enum stage { NOT_MADE, MAKING, INVALID, REGISTERING, VALID, READING, REVOKING, DEAD };

static uint64_t content(const struct end *e)
{
	return ~link_name(e->link) << 4 | (uint64_t)e->side;
}

static bool step(struct end *e, enum stage from, enum stage to)
{
	unsigned is = from;

	return atomic_compare_exchange_strong(&e->key_stage, &is, to);
}

static void make(struct end *e)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	bool window = draw(2);

	e->key_memory = malloc(KEY_LENGTH);
	pattern_fill(e->key_memory, KEY_LENGTH, content(e));
	attr.addr = e->key_memory;
	attr.length = KEY_LENGTH;
	attr.access = window ? FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW
			     : FLUE_REMOTE_READ | FLUE_REMOTE_INVALIDATE;
	attr.revoked = !window;
	e->key_mr = e->pdx->pd->ops->register_mr(e->pdx->pd, &attr);
	if (!e->key_mr)
		may_fail_with("register_mr", 0);
	else if (window)
		e->key_mw = e->pdx->pd->ops->create_mw(e->pdx->pd);
	if (e->key_mr && window && !e->key_mw)
		may_fail_with("create_mw", 0);
	atomic_store(&e->key_stage, e->key_mr && (!window || e->key_mw) ? INVALID : DEAD);
}

static bool begin_valid(struct end *e)
{
	struct flue_send_wr wr = { .op = e->key_mw ? FLUE_WR_BIND : FLUE_WR_FAST_REG };
	uint32_t old = e->key_mw ? e->key_mw->rkey : e->key_mr->rkey;

	wr.rkey = old;
	wr.reg.addr = (uintptr_t)e->key_memory;
	wr.reg.length = KEY_LENGTH;
	wr.reg.access = FLUE_REMOTE_READ | FLUE_REMOTE_INVALIDATE;
	if (e->key_mw) {
		wr.reg.access = FLUE_REMOTE_READ; /* windows can always be invalidated */
		wr.reg.addr = e->key_mr->remote_start;
		wr.reg.lkey = e->key_mr->lkey;
	}
	wr.reg.key = (uint8_t)(old + 1 + draw(200));
	e->key = (old & ~0xffu) | wr.reg.key;
	e->key_start = wr.reg.addr;
	return post_local(e, e->key_mw ? REC_BIND : REC_REG, &wr, e);
}

static void begin_invalid(struct end *e)
{
	struct flue_send_wr wr = { .op = FLUE_WR_LOCAL_INV, .rkey = e->key };
	bool ok;

	if (draw(2))
		ok = post_local(e, REC_INV, &wr, e);
	else
		ok = send_key(&e->link->ends[!e->side], e->key);
	if (!ok)
		must(step(e, REVOKING, VALID));
}

void op_key(void)
{
	struct link *l = link_hold();
	bool mortal = me->mortal;
	struct end *e;

	if (!l)
		return;
	e = &l->ends[draw(2)];
	/* Stages are not in the list of what is undone. */
	me->mortal = false;
	if (step(e, NOT_MADE, MAKING)) {
		make(e);
	} else if (step(e, INVALID, REGISTERING)) {
		if (!begin_valid(e))
			must(step(e, REGISTERING, INVALID));
	} else if (draw(2) && step(e, VALID, READING)) {
		if (!read_key(&l->ends[!e->side], e, content(e)))
			must(step(e, READING, VALID));
	} else if (step(e, VALID, REVOKING)) {
		begin_invalid(e);
	}
	me->mortal = mortal;
	undo_run();
}

void keys_completion(struct rec *r, bool ok)
{
	struct end *e = r->key_of;

	if (!ok) {
		atomic_store(&e->key_stage, DEAD);
		return;
	}
	switch (r->kind) {
	case REC_REG:
	case REC_BIND:
		/* The object shows it. */
		if ((e->key_mw ? e->key_mw->rkey : e->key_mr->rkey) != e->key)
			fail("a region or window does not show its new key");
		must(step(e, REGISTERING, VALID));
		break;
	case REC_READ: must(step(e, READING, VALID)); break;
	case REC_INV: must(step(e, REVOKING, INVALID)); break;
	default: fail("a key in a request of kind %u", r->kind);
	}
}

void key_invalidated(struct end *e, uint32_t key)
{
	must(key == e->key);
	must(step(e, REVOKING, INVALID));
}
