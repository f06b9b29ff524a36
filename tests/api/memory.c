/* SPDX-License-Identifier: MIT */
/* Regions and windows that no connection uses. See api.h. */
#include "api.h"

#define SIZE 8192

static const uint32_t rights[] = {
	0,
	FLUE_LOCAL_WRITE,
	FLUE_REMOTE_READ,
	FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE,
	FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ | FLUE_BIND_WINDOW,
	FLUE_REMOTE_READ | FLUE_ZERO_BASED | FLUE_REMOTE_INVALIDATE,
};
#define ANY_RIGHT rights[draw(sizeof(rights) / sizeof(rights[0]))]

static void make(struct region *r, struct house *h)
{
	struct pdx *pdx;

	if (!slot_claim(&r->slot, SLOT_EMPTY))
		return;
	pdx = pd_get(h);
	r->mr = NULL;
	r->mw = NULL;
	if (pdx) {
		r->pdx = pdx;
		r->memory = malloc(SIZE);
		if (draw(3))
			r->mr = flue_register(pdx->pd, r->memory, 1 + draw(SIZE), ANY_RIGHT);
		else
			r->mw = pdx->pd->ops->create_mw(pdx->pd);
		if (r->mr || r->mw) {
			slot_release(&r->slot, SLOT_LIVE);
			return;
		}
		may_fail_with("register", 0);
		free(r->memory);
		slot_put(&pdx->slot);
	}
	slot_release(&r->slot, SLOT_EMPTY);
}

void region_end(struct region *r)
{
	if (!slot_claim(&r->slot, SLOT_LIVE))
		return;
	must(r->mr ? flue_deregister(r->mr) : r->mw->ops->destroy(r->mw));
	free(r->memory);
	slot_put(&r->pdx->slot);
	slot_release(&r->slot, SLOT_EMPTY);
}

/* Alone, because its keys change. */
static void modify(struct region *r, struct house *h)
{
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct pdx *old = r->pdx, *pdx = NULL;
	uint32_t what = 1 + draw(7), key = r->mr->lkey;

	attr.addr = r->memory + draw(SIZE / 2);
	attr.length = 1 + draw(SIZE / 2);
	attr.access = ANY_RIGHT;
	if (what & FLUE_MR_PD) {
		pdx = pd_get(h);
		if (!pdx)
			what &= ~(uint32_t)FLUE_MR_PD;
	}
	if (what && r->mr->ops->modify(r->mr, what, &attr, pdx ? pdx->pd : NULL)) {
		must(r->mr->lkey != key);
		must(!(what & FLUE_MR_RANGE) || r->mr->addr == attr.addr);
		must(!(what & FLUE_MR_ACCESS) || r->mr->access == attr.access);
		if (pdx) {
			must(r->mr->pd == pdx->pd);
			r->pdx = pdx;
			pdx = old;
		}
	} else if (what) {
		may_fail_with("modify", 0);
	}
	if (pdx)
		slot_put(&pdx->slot);
}

void op_region(void)
{
	struct house *h = house_hold();
	bool mortal = me->mortal;
	struct region *r;

	if (!h)
		return;
	/* Claims are not in the list of what is undone. */
	me->mortal = false;
	r = &h->regions[draw(REGIONS)];
	make(r, h);
	if (draw(2)) {
		region_end(r);
	} else if (slot_claim(&r->slot, SLOT_LIVE)) {
		if (r->mr)
			modify(r, h);
		slot_release(&r->slot, SLOT_LIVE);
	}
	me->mortal = mortal;
	undo_run();
}
