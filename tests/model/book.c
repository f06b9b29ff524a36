/* SPDX-License-Identifier: MIT */
/* Completions and events against what was asked for. */
#include "model/driver.h"

static const uint32_t wc_ops[FLUE_WR_NOPS] = {
	[FLUE_WR_SEND] = FLUE_WC_SEND,         [FLUE_WR_SEND_INV] = FLUE_WC_SEND,
	[FLUE_WR_WRITE] = FLUE_WC_WRITE,       [FLUE_WR_READ] = FLUE_WC_READ,
	[FLUE_WR_READ_INV] = FLUE_WC_READ,     [FLUE_WR_LOCAL_INV] = FLUE_WC_LOCAL_INV,
	[FLUE_WR_FAST_REG] = FLUE_WC_FAST_REG, [FLUE_WR_BIND] = FLUE_WC_BIND_MW,
	[FLUE_WR_SEND_IMM] = FLUE_WC_SEND,     [FLUE_WR_WRITE_IMM] = FLUE_WC_WRITE,
	[FLUE_WR_CMP_SWAP] = FLUE_WC_CMP_SWAP, [FLUE_WR_FETCH_ADD] = FLUE_WC_FETCH_ADD,
};

void book_check(int side, uint32_t q, struct area *area, const struct layout *l, uint32_t length,
		uint32_t seed, uint64_t start, enum check_mode mode)
{
	struct cmd cmd = { .type = CMD_CHECK,
			   .q = q,
			   .layout = *l,
			   .length = length,
			   .seed = seed,
			   .start = start,
			   .mode = mode,
			   .unseen = area == &driver.conn[q].flow[!side].target };
	struct pending p = { .action = ON_REPLY_FREE, .q = q, .area = area, .value = seed };

	driver_issue(side, &cmd, &p);
}

/* ---- requests ---- */

/* Compares the targets of Writes that are in place; one that is read back, when that is over:
 * a Read may be answered later than a Send that followed it. */
static void compare_targets(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];

	for (; f->compared < f->landed; f->compared++) {
		struct op *op = &f->ops[f->compared % OPS];

		if (op->read_back && (!op->reader || f->completed < op->reader))
			return;
		if (!op->target_held)
			continue;
		op->target_held = false;
		book_check(!d, q, &f->target, &op->target, op->length, op->seed, 0, CHECK_EXACT);
	}
}

/* The responder went through everything before request `up_to`: its Writes are in place. */
static void land(uint32_t q, int d, uint32_t up_to)
{
	struct flow *f = &driver.conn[q].flow[d];

	if (f->landed < up_to)
		f->landed = up_to;
	compare_targets(q, d);
}

static void succeed(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op *op = &f->ops[f->completed % OPS];

	f->completed++;
	/* In full service done means done there. */
	if (op_is_read(op) || column_is_full(model_column))
		land(q, d, f->completed);
	if (op->common)
		driver.words[!d].done += op->start;
	if (!op->local_held)
		return;
	op->local_held = false;
	if (op_is_atomic(op))
		book_check(d, q, &f->sink, &op->local, op->length, 0, op->start,
			   op->common ? CHECK_NOTHING : CHECK_VALUE);
	else if (op_is_read(op))
		book_check(d, q, &f->sink, &op->local, op->length, op->seed, op->start,
			   CHECK_EXACT);
	else
		book_check(d, q, &f->source, &op->local, 0, 0, 0, CHECK_NOTHING);
}

static void check_status(uint32_t q, int d, const struct op *op, const struct record_completion *r)
{
	struct flow *f = &driver.conn[q].flow[d];
	const char *got = flue_wc_status_name(r->status);

	if (r->op != wc_ops[op->wr])
		diverge(q, "request %u of side %d completes as operation %u, is %u",
			ID_NUMBER(r->id), d, r->op, wc_ops[op->wr]);
	if (r->status == FLUE_WC_SUCCESS) {
		if (f->failing)
			diverge(q, "request %u of side %d succeeds after a failure",
				ID_NUMBER(r->id), d);
		if (!(op->flags & FLUE_SIGNALED))
			diverge(q, "unsignaled request %u of side %d completes", ID_NUMBER(r->id),
				d);
		if (op_is_read(op) && r->length != op->length)
			diverge(q, "Read %u of side %d has %u octets, want %u", ID_NUMBER(r->id), d,
				r->length, op->length);
	}
	if (r->status == op->status)
		return;
	if (r->status == FLUE_WC_FLUSHED && driver.conn[q].ending)
		return;
	diverge(q, "request %u of side %d: '%s', want '%s'", ID_NUMBER(r->id), d, got,
		flue_wc_status_name(op->status));
}

static void sent(uint32_t q, int d, const struct record_completion *r)
{
	struct flow *f = &driver.conn[q].flow[d];
	uint32_t n = ID_NUMBER(r->id);

	if (n - f->completed >= f->posted - f->completed)
		diverge(q, "request %u of side %d completes, but is not outstanding", n, d);
	for (; f->completed != n; succeed(q, d)) {
		const struct op *skipped = &f->ops[f->completed % OPS];

		if (f->failing || skipped->flags & FLUE_SIGNALED ||
		    skipped->status != FLUE_WC_SUCCESS)
			diverge(q, "request %u of side %d is left out", f->completed, d);
	}
	check_status(q, d, &f->ops[n % OPS], r);
	if (r->status == FLUE_WC_SUCCESS) {
		succeed(q, d);
	} else {
		f->failing = true;
		f->completed++;
	}
}

/* ---- receives ---- */

static void check_delivery(uint32_t q, const struct op *op, const struct record_completion *r)
{
	uint32_t flags = 0;

	if (op->flags & FLUE_SOLICITED)
		flags |= FLUE_WC_SOLICITED;
	if (op->wr == FLUE_WR_SEND_INV)
		flags |= FLUE_WC_INVALIDATED;
	if (op->wr == FLUE_WR_SEND_IMM || op->wr == FLUE_WR_WRITE_IMM)
		flags |= FLUE_WC_IMM;
	if (r->op != (op->wr == FLUE_WR_WRITE_IMM ? FLUE_WC_RECV_WRITE : FLUE_WC_RECV))
		diverge(q, "a receive completes as operation %u", r->op);
	if (r->length != op->length || r->flags != flags || r->inv_key != op->inv_key)
		diverge(q, "a receive has %u octets, flags %x, key %x; want %u, %x, %x", r->length,
			r->flags, r->inv_key, op->length, flags, op->inv_key);
}

/* The Send of flow d that comes next; NULL: none was posted. */
static struct op *next_send(struct flow *f, uint32_t *number)
{
	if (f->delivered == f->sends)
		return NULL;
	*number = f->send_numbers[f->delivered % OPS];
	return &f->ops[*number % OPS];
}

/* Compares a buffer of a shared queue and puts it back. */
static void return_srq_slot(uint32_t q, int side, const struct record_completion *r,
			    const struct op *op, enum check_mode mode)
{
	uint32_t srq = ID_QP(r->id), slot = ID_NUMBER(r->id);
	struct srq_book *b = &driver.srq[side][srq];
	struct layout l = { .offset = srq_offset(srq, slot), .n = 1, .length = { SRQ_MSG } };

	if ((int)srq != srq_of(q, side) || slot >= SRQ_DEPTH || !b->used[slot])
		diverge(q, "receive %u of SRQ %u is not outstanding", slot, srq);
	b->used[slot] = false;
	b->out--;
	book_check(side, q, NULL, &l, op ? op->length : 0, op ? op->seed : 0, 0, mode);
}

static void take_own(uint32_t q, struct flow *f, const struct record_completion *r)
{
	if (f->rcv_done == f->rcv_posted || ID_NUMBER(r->id) != f->rcv_done)
		diverge(q, "receive %u completes, want %u", ID_NUMBER(r->id), f->rcv_done);
}

static void delivered(uint32_t q, int d, const struct record_completion *r)
{
	struct flow *f = &driver.conn[q].flow[d];
	uint32_t number = 0, length;
	struct op *op = next_send(f, &number);

	if (!op)
		diverge(q, "a message is received that nobody sent");
	if (f->rcv_failing)
		diverge(q, "a receive succeeds after a failure");
	if (op->status != FLUE_WC_SUCCESS)
		diverge(q, "a message that cannot be sent is received");
	check_delivery(q, op, r);
	length = op->wr == FLUE_WR_WRITE_IMM ? 0 : op->length;
	land(q, d, number + 1);
	f->delivered++;
	if (ID_KIND(r->id) == ID_SRQ) {
		return_srq_slot(q, !d, r, length ? op : NULL, CHECK_EXACT);
	} else {
		struct receive *rcv = &f->receives[f->rcv_done++ % (2 * RQ_DEPTH)];

		f->rcv_checked++;
		book_check(!d, q, &f->receive, &rcv->layout, length, op->seed, 0, CHECK_EXACT);
	}
}

static void received(uint32_t q, int d, const struct record_completion *r)
{
	struct conn *c = &driver.conn[q];
	struct flow *f = &c->flow[d];
	bool predicted = f->rcv_status && r->status == f->rcv_status && !f->rcv_failing;
	uint32_t number = 0;
	struct op *op;

	if (ID_KIND(r->id) == ID_RECV)
		take_own(q, f, r);
	if (r->status == FLUE_WC_SUCCESS) {
		delivered(q, d, r);
		return;
	}
	if (!predicted && (r->status != FLUE_WC_FLUSHED || !c->ending))
		diverge(q, "a receive fails: '%s'", flue_wc_status_name(r->status));
	f->rcv_failing = true;
	if (ID_KIND(r->id) == ID_SRQ) {
		op = next_send(f, &number);
		return_srq_slot(q, !d, r, op && op->wr == FLUE_WR_WRITE_IMM ? NULL : op,
				CHECK_MAYBE);
		/* It was taken out of the queue for a message that will not come. */
		driver.srq[!d][ID_QP(r->id)].credits--;
	} else {
		f->rcv_done++;
	}
}

void book_completion(int side, const struct record_completion *r)
{
	uint32_t q = r->q;

	if (q >= N_QPS || (ID_KIND(r->id) != ID_SRQ && ID_QP(r->id) != q))
		diverge(q < N_QPS ? q : 0, "a completion of queue pair %u has id %llx", q,
			(unsigned long long)r->id);
	note(q, "side %d completes %llx: %s, %u octets", side, (unsigned long long)r->id,
	     flue_wc_status_name(r->status), r->length);
	if (ID_KIND(r->id) == ID_SEND)
		sent(q, side, r);
	else
		received(q, !side, r);
}

/* ---- events ---- */

/* In full service the end of a connection has a reason of its own, which is told first. */
static bool may_come(const struct conn *c, uint32_t type)
{
	return column_is_full(model_column) && c->ending &&
	       (type == FLUE_EVENT_QP_ACCESS || type == FLUE_EVENT_QP_REQUEST ||
		type == FLUE_EVENT_QP_ERROR);
}

void book_event(int side, const struct record_event *r)
{
	struct conn *c;

	if (r->type == FLUE_EVENT_SRQ_LIMIT) {
		if (!driver.srq[side][r->q].limits_wanted--)
			diverge(N_QPS, "SRQ %u of side %d is not below its limit", r->q, side);
		return;
	}
	c = &driver.conn[r->q];
	note(r->q, "side %d hears %s, reason %s, detail %x", side, flue_event_name(r->type),
	     flue_close_reason_name(r->reason), r->detail);
	if (r->type == FLUE_EVENT_LAST_RECEIVE && c->last_may_come[side]) {
		c->last_may_come[side] = false;
		return;
	}
	if (r->type < FLUE_EVENT_NTYPES && !c->wanted[side][r->type] && may_come(c, r->type))
		return;
	if (r->type >= FLUE_EVENT_NTYPES || !c->wanted[side][r->type])
		diverge(r->q, "side %d hears '%s' (%s, %x) out of turn", side,
			flue_event_name(r->type), flue_close_reason_name(r->reason), r->detail);
	c->wanted[side][r->type]--;
	if (!may_come(c, r->type))
		c->end[side] = *r;
}
