/* SPDX-License-Identifier: MIT */
/* The rings of Reads and atomics that are outstanding: the peer's (IRQ) and ours (ORQ). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rnic/qp.h"
#include "rnic/qp_priv.h"

/* Entries by number, of `size` octets each. */
struct ring {
	void *mem; /* NULL: none yet */
	uint32_t mask;
	size_t size;
};

static char *at(const struct ring *r, uint32_t n)
{
	return (char *)r->mem + (n & r->mask) * r->size;
}

/* Makes room for entry `tail`; those from `head` on move to their places. */
static bool make_room(struct ring *r, uint32_t head, uint32_t tail)
{
	uint32_t slots = r->mem ? r->mask + 1 : 0;
	struct ring to = { .mask = slots ? 2 * slots - 1 : 0, .size = r->size };

	if (tail - head < slots)
		return true;
	to.mem = calloc(to.mask + 1, to.size);
	if (!to.mem)
		return false;
	for (uint32_t i = head; i != tail; i++)
		memcpy(at(&to, i), at(r, i), r->size);
	free(r->mem);
	*r = to;
	return true;
}

bool qp_irq_room(struct qp *q)
{
	struct ring r = { q->irq, q->irq_mask, sizeof(*q->irq) };
	bool room = make_room(&r, q->irq_head, q->irq_tail);

	q->irq = r.mem;
	q->irq_mask = r.mask;
	return room;
}

bool qp_orq_room(struct qp *q, uint32_t tail)
{
	struct ring r = { q->orq, q->orq_mask, sizeof(*q->orq) };
	bool room = make_room(&r, q->orq_head, tail);

	q->orq = r.mem;
	q->orq_mask = r.mask;
	return room;
}

int qp_limit_reads(struct qp *q, uint32_t ird, uint32_t ord)
{
	if ((!q->irq && !qp_irq_room(q)) || (!q->orq && !qp_orq_room(q, q->orq_head)))
		return -ENOMEM;
	q->ird = ird;
	q->ord = ord;
	return 0;
}
