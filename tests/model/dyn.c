/* SPDX-License-Identifier: MIT */
/* Regions made valid by fast register, and windows: when they are valid, and under what name. */
#include "model/driver.h"

uint64_t home_address(uint32_t q, int side, uint64_t offset)
{
	if (home_is_zero_based(q))
		return offset - area_offset(q, AREA_SOURCE);
	return driver.hello[side].base + offset;
}

static bool is_over(const struct dyn *y, uint32_t completed, uint32_t landed)
{
	switch (y->change) {
	case WHEN_LANDED: return landed >= y->changed;
	case WHEN_COMPLETED: return completed >= y->changed;
	default: return completed >= y->changed || landed >= y->changed;
	}
}

/* The last change of it is known to be done. */
static void await_change(uint32_t q, const struct dyn *y)
{
	struct flow *f = &driver.conn[q].flow[y->change_flow];

	if (!is_over(y, f->soft_completed, f->soft_landed))
		ops_drain(q, y->change_flow);
	driver_wait(q, is_over(y, f->completed, f->landed));
}

/* ... and nobody uses it any more, but perhaps the Reads of flow `fenced` (-1: none). */
static void settle(uint32_t q, const struct dyn *y, int fenced)
{
	await_change(q, y);
	for (int d = 0; d < 2; d++) {
		struct flow *f = &driver.conn[q].flow[d];
		uint32_t read = d == fenced ? 0 : y->read[d];

		if (f->soft_landed < y->used[d] || f->soft_completed < read)
			ops_drain(q, d);
		driver_wait(q, f->landed >= y->used[d] && f->completed >= read);
	}
}

void dyn_name_of(uint32_t q, int side, int which, uint64_t offset, uint32_t *key, uint64_t *addr)
{
	const struct dyn *y = &driver.conn[q].dyn[side][which];

	*key = y->key;
	*addr = y->to + (offset - y->offset);
}

void dyn_name(uint32_t q, int side, enum area_kind area, uint64_t offset, uint32_t need,
	      uint32_t *key, uint64_t *addr, int *which)
{
	uint32_t i = draw(2 * N_DYN); /* half of the time the home region */
	const struct dyn *y = &driver.conn[q].dyn[side][i % N_DYN];

	/* Local names are those of regions only. */
	if (i < N_DYN && y->valid && y->area == area && (y->access & need) == need &&
	    (need != FLUE_LOCAL_WRITE || dyn_kind(i) == DYN_REGION)) {
		await_change(q, y);
		*which = (int)i;
		dyn_name_of(q, side, *which, offset, key, addr);
		return;
	}
	*which = -1;
	*key = driver.hello[side].home_key[q];
	*addr = home_address(q, side, offset);
}

void dyn_used(uint32_t q, int side, int which, int d, uint32_t number, bool read)
{
	struct dyn *y = &driver.conn[q].dyn[side][which < 0 ? 0 : which];

	if (which >= 0)
		*(read ? &y->read[d] : &y->used[d]) = number + 1;
}

void dyn_invalidated(uint32_t q, int side, int which, int d, uint32_t number,
		     enum dyn_change change)
{
	struct dyn *y = &driver.conn[q].dyn[side][which];

	y->valid = false;
	y->change_flow = d;
	y->changed = number + 1;
	y->change = change;
}

static bool peer_may_invalidate(const struct dyn *y, uint32_t i)
{
	return y->valid && (dyn_kind(i) == DYN_WINDOW || y->access & FLUE_REMOTE_INVALIDATE);
}

int dyn_for_send_inv(uint32_t q, int side)
{
	uint32_t i = draw(N_DYN);
	const struct dyn *y = &driver.conn[q].dyn[side][i];

	if (!peer_may_invalidate(y, i))
		return -1;
	settle(q, y, -1);
	return (int)i;
}

int dyn_for_read_inv(uint32_t q, int side)
{
	uint32_t i = draw(N_DYN);
	const struct dyn *y = &driver.conn[q].dyn[side][i];

	if (!y->valid || y->area != AREA_SINK)
		return -1;
	settle(q, y, -1);
	return (int)i;
}

/* ---- changes by their owner ---- */

static uint32_t random_access(enum dyn_kind kind, enum area_kind area)
{
	uint32_t access = kind == DYN_REGION ? FLUE_LOCAL_WRITE : 0;

	if (area == AREA_TARGET)
		access |= FLUE_REMOTE_WRITE;
	if (area == AREA_TARGET && chance(80))
		access |= FLUE_REMOTE_READ;
	if (kind == DYN_REGION && chance(50))
		access |= FLUE_REMOTE_INVALIDATE;
	return access | (chance(50) ? FLUE_ZERO_BASED : 0);
}

/* What it will be: nearly all of an area, so that every slot lies in it. */
static void choose(uint32_t q, int side, uint32_t i, struct dyn *y)
{
	uint32_t before = draw(GAP), behind = draw(GAP);

	y->area = dyn_kind(i) == DYN_REGION && chance(35) ? AREA_SINK : AREA_TARGET;
	y->offset = area_offset(q, y->area) + before;
	y->length = area_size(q) - before - behind;
	y->access = random_access(dyn_kind(i), y->area);
	y->key = (y->key & ~0xffu) | ((y->key + 1 + draw(200)) & 0xff);
	if (y->access & FLUE_ZERO_BASED)
		y->to = 0;
	else if (dyn_kind(i) == DYN_REGION)
		y->to = driver.hello[side].base + y->offset;
	else
		y->to = home_address(q, side, y->offset);
}

static uint32_t post_change(uint32_t q, int d, uint32_t wr, uint32_t flags, uint32_t key,
			    const struct dyn *y)
{
	struct op op = ops_new(wr, flags | (chance(50) ? FLUE_SIGNALED : 0));
	struct cmd cmd = { .rkey = key };

	if (wr != FLUE_WR_LOCAL_INV)
		cmd.reg = (struct flue_reg) { .addr = y->offset,
					      .length = y->length,
					      .access = y->access,
					      .key = (uint8_t)y->key };
	return ops_post(q, d, &op, &cmd);
}

void dyn_invalidate_fenced(uint32_t q, int d, int which)
{
	struct dyn *y = &driver.conn[q].dyn[d][which];
	uint32_t number;

	settle(q, y, d);
	number = post_change(q, d, FLUE_WR_LOCAL_INV, chance(70) ? FLUE_FENCE : FLUE_LOCAL_FENCE,
			     y->key, y);
	dyn_invalidated(q, d, which, d, number, IN_TURN);
}

static void make_valid(uint32_t q, int d, uint32_t i)
{
	struct dyn *y = &driver.conn[q].dyn[d][i];
	uint32_t wr = dyn_kind(i) == DYN_REGION ? FLUE_WR_FAST_REG : FLUE_WR_BIND;
	uint32_t flags = chance(5) ? FLUE_FENCE : chance(5) ? FLUE_LOCAL_FENCE : 0, old = y->key;

	choose(q, d, i, y);
	y->changed = post_change(q, d, wr, flags, old, y) + 1;
	y->valid = true;
	y->change_flow = d;
	y->change = IN_TURN;
}

void dyn_change(uint32_t q, int d)
{
	uint32_t i = draw(N_DYN);
	struct dyn *y = &driver.conn[q].dyn[d][i];

	/* A bound window may also be bound anew. */
	if (y->valid && (dyn_kind(i) == DYN_REGION || chance(60))) {
		dyn_invalidate_fenced(q, d, (int)i);
		return;
	}
	settle(q, y, -1);
	make_valid(q, d, i);
}

void dyn_renew(uint32_t q)
{
	for (int side = 0; side < 2; side++) {
		struct cmd cmd = { .type = CMD_RENEW, .q = q };
		struct record_reply r = driver_ask(side, &cmd);

		if (!r.ok)
			diverge(q, "the regions of side %d cannot be renewed: errno %d", side,
				r.error);
		for (uint32_t i = 0; i < N_DYN; i++)
			driver.conn[q].dyn[side][i] = (struct dyn) { .key = r.dyn_key[i] };
	}
}
