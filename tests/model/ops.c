/* SPDX-License-Identifier: MIT */
/* Requests and receives: which, how large, from where to where. */
#include <errno.h>
#include <stdlib.h>

#include "model/driver.h"

/* ---- posting ---- */

struct op ops_new(uint32_t wr, uint32_t flags)
{
	return (struct op) { .wr = wr, .flags = flags, .seed = ++driver.next_seed };
}

/* We shall hear that the responder has come so far. */
static bool lands(const struct op *op)
{
	return op_is_delivered(op) ||
	       ((op_is_read(op) || column_is_full(model_column)) && op->flags & FLUE_SIGNALED);
}

/* What will be over without a further post. */
static void soften(struct flow *f, const struct op *op)
{
	if (op->flags & FLUE_SIGNALED) {
		f->soft_completed = f->posted;
		f->source.soft = f->source.posted;
		f->sink.soft = f->sink.posted;
	}
	if (lands(op)) {
		f->soft_landed = f->posted;
		f->target.soft = f->target.posted;
	}
}

static void keep_books(struct flow *f, const struct op *op)
{
	struct area *local = op_fetches(op) ? &f->sink : &f->source;

	f->ops[f->posted % OPS] = *op;
	if (op->local_held)
		local->posted = local->last;
	if (op->target_held)
		f->target.posted = f->target.last;
	if (op_is_delivered(op))
		f->send_numbers[f->sends++ % OPS] = f->posted;
	f->posted++;
	f->unsignaled = op->flags & FLUE_SIGNALED ? 0 : f->unsignaled + 1;
	soften(f, op);
	if (op->marker)
		return;
	driver.requests++;
	driver.octets += op->length;
	driver.trace = (driver.trace ^ op->seed ^ op->wr << 8 ^ op->flags << 16 ^ op->length) *
		       0x100000001b3ull;
}

uint32_t ops_post(uint32_t q, int d, struct op *op, struct cmd *cmd)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct pending p = { .action = ON_REPLY_OK, .q = q };
	uint32_t number;

	if (!lands(op) && f->posted - f->soft_landed > OPS / 2)
		ops_drain(q, d);
	driver_wait(q, f->posted - f->completed < f->window && f->posted - f->compared < OPS - 1);
	if (f->unsignaled + 1 >= f->window / 2)
		op->flags |= FLUE_SIGNALED;
	number = f->posted;
	cmd->type = CMD_POST_SEND;
	cmd->q = q;
	cmd->id = ID(ID_SEND, q, number);
	cmd->op = op->wr;
	cmd->flags = op->flags;
	cmd->layout = op->local;
	cmd->seed = op->seed;
	note(q, "side %d posts %u: op %u flags %x, %u octets in %u pieces, key %x", d, number,
	     op->wr, op->flags, op->length, op->local.n, cmd->rkey);
	keep_books(f, op);
	driver_issue(d, cmd, &p);
	return number;
}

uint32_t ops_post_empty(uint32_t q, int d, uint32_t wr, uint32_t flags)
{
	struct op op = ops_new(wr, flags);
	struct cmd cmd = { .rkey = driver.hello[!d].home_key[q] };

	return ops_post(q, d, &op, &cmd);
}

void ops_drain(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];

	if (f->soft_landed < f->posted || f->soft_completed < f->posted)
		ops_post_empty(q, d, FLUE_WR_READ, FLUE_SIGNALED);
	/* A Read's completion may be heard of before those of earlier receives. */
	driver_wait(q, f->completed == f->posted && f->landed == f->posted &&
			       f->delivered == f->sends);
}

void ops_quiesce(uint32_t q)
{
	/* The second drain may post nothing any more that the first one would have to wait for. */
	ops_drain(q, 0);
	ops_drain(q, 1);
}

/* ---- sizes and places ---- */

static uint32_t random_length(uint32_t most)
{
	static const struct {
		uint32_t percent, low, high;
	} classes[] = {
		{ 5, 0, 0 },         { 40, 1, 64 },        { 30, 65, 4096 },
		{ 18, 4097, 40000 }, { 5, 40001, 100000 }, { 2, 100001, BIG_MESSAGE },
	};
	uint32_t percent = draw(100), i = 0, length;

	while (percent >= classes[i].percent)
		percent -= classes[i++].percent;
	length = classes[i].low + draw(classes[i].high - classes[i].low + 1);
	return length <= most ? length : draw(most + 1);
}

static uint32_t random_flags(void)
{
	return (chance(60) ? FLUE_SIGNALED : 0) | (chance(8) ? FLUE_FENCE : 0) |
	       (chance(4) ? FLUE_LOCAL_FENCE : 0);
}

/* Cuts `length` octets into pieces, some of them perhaps empty. */
static void cut(struct layout *l, uint32_t length, uint32_t pieces)
{
	l->n = pieces;
	for (uint32_t i = 0; i + 1 < pieces; i++) {
		l->length[i] = draw(length + 1);
		length -= l->length[i];
	}
	if (pieces)
		l->length[pieces - 1] = length;
}

struct layout ops_slot(uint32_t q, int d, struct area *a, enum area_kind kind, uint32_t length,
		       uint32_t pieces)
{
	struct layout l = { .n = 0 };
	uint32_t at = 0, size;

	cut(&l, length, pieces);
	size = (uint32_t)layout_size(&l);
	if (!area_place(a, size, &at)) {
		ops_drain(q, d);
		if (!area_place(a, size, &at))
			abort();
	}
	driver_wait(q, area_is_free(a, at, size));
	area_take(a, at, size);
	l.offset = area_offset(q, kind) + at;
	return l;
}

/* ---- receives ---- */

static void post_receive(uint32_t q, int d, uint32_t at, struct layout *l)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct pending p = { .action = ON_REPLY_RECEIVED, .q = q, .value = (uint32_t)d };
	struct cmd cmd = { .type = CMD_POST_RECV, .q = q, .id = ID(ID_RECV, q, f->rcv_posted) };

	area_take(&f->receive, at, (uint32_t)layout_size(l));
	l->offset = area_offset(q, AREA_RECEIVE) + at;
	cmd.layout = *l;
	f->receives[f->rcv_posted++ % (2 * RQ_DEPTH)].layout = *l;
	driver_issue(!d, &cmd, &p);
}

void ops_receives(uint32_t q, int d, uint32_t n)
{
	struct flow *f = &driver.conn[q].flow[d];

	for (; n && f->rcv_posted - f->sends < RQ_DEPTH; n--) {
		struct layout l = { .n = 0 };
		uint32_t at = 0, size;

		cut(&l, random_length(max_message(q)), 1 + draw(MAX_PIECES));
		size = (uint32_t)layout_size(&l);
		if (!area_place(&f->receive, size, &at))
			return;
		driver_wait(q, f->rcv_posted - f->rcv_done < RQ_DEPTH &&
				       area_is_free(&f->receive, at, size));
		post_receive(q, d, at, &l);
	}
}

void ops_late_receives(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];

	while (f->rcv_posted != f->sends) {
		const struct op *op = &f->ops[f->send_numbers[f->rcv_posted % OPS] % OPS];
		struct layout l = { .n = 0 };
		uint32_t at = 0, size;

		cut(&l, op->length + draw(100), 1 + draw(MAX_PIECES));
		size = (uint32_t)layout_size(&l);
		if (!area_place(&f->receive, size, &at))
			abort();
		driver_wait(q, area_is_free(&f->receive, at, size));
		post_receive(q, d, at, &l);
		f->receive.soft++;
	}
}

void ops_small_receive(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct layout l = { .n = 1, .length = { 16 } };
	uint32_t at = 0;

	if (!area_place(&f->receive, (uint32_t)layout_size(&l), &at))
		return;
	driver_wait(q, f->rcv_posted - f->rcv_done < RQ_DEPTH &&
			       area_is_free(&f->receive, at, (uint32_t)layout_size(&l)));
	post_receive(q, d, at, &l);
}

/* Every receive that fits is taken, and not one more. */
static void fill_receives(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct cmd cmd = { .type = CMD_POST_RECV, .q = q, .id = ID(ID_RECV, q, ~0u) };
	struct layout l = { .n = 0 };
	uint32_t at = 0;

	ops_drain(q, d);
	while (f->rcv_posted - f->rcv_done < RQ_DEPTH) {
		if (!area_place(&f->receive, GAP, &at))
			return;
		driver_wait(q, area_is_free(&f->receive, at, GAP));
		l = (struct layout) { .n = 0 };
		post_receive(q, d, at, &l);
	}
	note(q, "the receive queue of side %d is full", !d);
	if (driver_ask(!d, &cmd).ok || driver.answer.error != ENOMEM)
		diverge(q, "a receive more than fit: errno %d", driver.answer.error);
}

static void post_srq(int side, uint32_t srq, bool last)
{
	struct srq_book *b = &driver.srq[side][srq];
	struct pending p = { .action = ON_REPLY_OK, .q = N_QPS };
	struct cmd cmd = { .type = CMD_POST_SRQ, .q = srq };
	uint32_t slot = 0;

	driver_wait(N_QPS, b->out < SRQ_DEPTH);
	while (b->used[slot])
		slot++;
	b->used[slot] = true;
	b->out++;
	b->credits++;
	cmd.id = ID(ID_SRQ, srq, slot);
	cmd.layout.offset = srq_offset(srq, slot);
	cmd.layout.n = 1;
	cmd.layout.length[0] = SRQ_MSG;
	if (!last)
		driver_issue(side, &cmd, &p);
	else if (!driver_ask(side, &cmd).ok) /* with it, all before are there too */
		diverge(N_QPS, "a receive does not fit into SRQ %u of side %d", srq, side);
}

void ops_fill_srq(int side, uint32_t srq)
{
	struct srq_book *b = &driver.srq[side][srq];

	while (b->credits < SRQ_DEPTH)
		post_srq(side, srq, b->credits == SRQ_DEPTH - 1);
}

void ops_count_srq(int side, uint32_t srq)
{
	struct srq_book *b = &driver.srq[side][srq];
	struct cmd cmd = { .type = CMD_POST_SRQ, .q = srq, .id = ID(ID_SRQ, srq, ~0u) };

	while (b->out < SRQ_DEPTH)
		post_srq(side, srq, true);
	if (driver_ask(side, &cmd).ok || driver.answer.error != ENOMEM)
		diverge(N_QPS, "SRQ %u of side %d has lost a receive", srq, side);
}

uint32_t ops_promise_receive(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	int srq = srq_of(q, !d);

	if (srq >= 0) {
		if (!driver.srq[!d][srq].credits)
			ops_fill_srq(!d, (uint32_t)srq);
		driver.srq[!d][srq].credits--;
		return SRQ_MSG;
	}
	if (f->rcv_posted == f->sends || chance(10))
		ops_receives(q, d, 1 + draw(8));
	driver_wait(q, f->rcv_acked > f->sends);
	f->receive.soft++;
	return layout_length(&f->receives[f->sends % (2 * RQ_DEPTH)].layout);
}

/* ---- requests ---- */

static uint32_t gathered(struct op *op)
{
	/* An inline request leaves no trace of its source. */
	if (op->length <= MAX_INLINE && chance(40))
		op->flags |= FLUE_INLINE;
	return chance(60) ? 1 : 1 + draw(MAX_PIECES);
}

/* Four octets for the peer. */
static void add_immediate(struct op *op, struct cmd *cmd, uint32_t wr)
{
	op->wr = wr;
	op->inv_key = cmd->imm = draw(UINT32_MAX);
}

void ops_send(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op op = ops_new(FLUE_WR_SEND, random_flags() | (chance(20) ? FLUE_SOLICITED : 0));
	int victim = chance(15) ? dyn_for_send_inv(q, !d) : -1;
	struct cmd cmd = { .rkey = 0 };
	uint32_t number;

	op.length = random_length(ops_promise_receive(q, d));
	op.local = ops_slot(q, d, &f->source, AREA_SOURCE, op.length, gathered(&op));
	op.local_held = true;
	if (victim >= 0) {
		op.wr = FLUE_WR_SEND_INV;
		op.inv_key = cmd.rkey = driver.conn[q].dyn[!d][victim].key;
	} else if (column_is_full(model_column) && chance(25)) {
		add_immediate(&op, &cmd, FLUE_WR_SEND_IMM);
	}
	number = ops_post(q, d, &op, &cmd);
	if (victim >= 0)
		dyn_invalidated(q, !d, victim, d, number, WHEN_LANDED);
}

static uint32_t read_octets(uint32_t q, int d, const struct op *written);

static void write_octets(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op op = ops_new(FLUE_WR_WRITE, random_flags());
	struct cmd cmd = { .rkey = 0 };
	uint32_t number;
	int which;

	if (column_is_full(model_column) && chance(20)) {
		ops_promise_receive(q, d);
		add_immediate(&op, &cmd, FLUE_WR_WRITE_IMM);
	}
	op.length = random_length(max_message(q));
	op.target = ops_slot(q, d, &f->target, AREA_TARGET, op.length, 1);
	op.target_held = true;
	op.local = ops_slot(q, d, &f->source, AREA_SOURCE, op.length, gathered(&op));
	op.local_held = true;
	dyn_name(q, !d, AREA_TARGET, layout_piece(&op.target, 0), FLUE_REMOTE_WRITE, &cmd.rkey,
		 &cmd.remote_addr, &which);
	op.read_back = chance(15);
	number = ops_post(q, d, &op, &cmd);
	dyn_used(q, !d, which, d, number, false);
	if (op.read_back)
		f->ops[number % OPS].reader = read_octets(q, d, &op) + 1;
}

/* From the library, or what was just written. */
static uint32_t read_octets(uint32_t q, int d, const struct op *written)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op op = ops_new(FLUE_WR_READ, random_flags());
	struct cmd cmd = { .rkey = driver.hello[!d].library_key };
	int victim = !written && chance(20) ? dyn_for_read_inv(q, d) : -1, source = -1, sink;
	uint32_t number, pieces;

	if (written) {
		op.flags |= FLUE_SIGNALED;
		op.length = written->length;
		op.seed = written->seed;
		dyn_name(q, !d, AREA_TARGET, layout_piece(&written->target, 0), FLUE_REMOTE_READ,
			 &cmd.rkey, &cmd.remote_addr, &source);
	} else {
		op.length = random_length(max_message(q));
		op.start = draw(LIBRARY - op.length);
		op.seed = LIBRARY_SEED;
		cmd.remote_addr = driver.hello[!d].base + library_offset() + op.start;
	}
	pieces = column_is_full(model_column) && victim < 0 && chance(40) ? 1 + draw(MAX_PIECES)
									  : 1;
	op.local = ops_slot(q, d, &f->sink, AREA_SINK, op.length, pieces);
	op.local_held = true;
	sink = victim;
	if (victim >= 0)
		dyn_name_of(q, d, victim, layout_piece(&op.local, 0), &cmd.lkey, &cmd.local_addr);
	else if (pieces == 1 && chance(30))
		dyn_name(q, d, AREA_SINK, layout_piece(&op.local, 0), FLUE_LOCAL_WRITE, &cmd.lkey,
			 &cmd.local_addr, &sink);
	if (victim >= 0)
		op.wr = FLUE_WR_READ_INV;
	number = ops_post(q, d, &op, &cmd);
	dyn_used(q, !d, source, d, number, true);
	dyn_used(q, d, sink, d, number, true);
	if (victim >= 0)
		dyn_invalidated(q, d, victim, d, number, WHEN_COMPLETED);
	else if (sink >= 0 && chance(50))
		dyn_invalidate_fenced(q, d, sink);
	return number;
}

/* ---- steps ---- */

static void resize_cq(void)
{
	struct pending p = { .action = ON_REPLY_OK, .q = N_QPS };
	struct cmd cmd = { .type = CMD_RESIZE_CQ, .q = draw(N_CQS) };

	cmd.arg = CQ_DEPTH + draw(CQ_DEPTH);
	driver_issue((int)draw(2), &cmd, &p);
}

/* Once armed, one more Send brings the queue below the watermark, if it is not there already. */
static void arm_srq(uint32_t q)
{
	int side = (int)draw(2), srq = srq_of(q, side);
	struct pending p = { .action = ON_REPLY_OK, .q = q };
	struct cmd cmd = { .type = CMD_ARM_SRQ, .q = (uint32_t)srq, .arg = SRQ_DEPTH };

	if (srq < 0)
		return;
	driver.srq[side][srq].limits_wanted++;
	driver_issue(side, &cmd, &p);
	ops_send(q, !side);
	driver_wait(q, driver.srq[side][srq].limits_wanted == 0);
}

static void change_mode(void)
{
	struct pending p = { .action = ON_REPLY_OK, .q = N_QPS };
	struct cmd cmd = { .type = CMD_BUSY };

	cmd.arg = chance(30);
	driver_issue((int)draw(2), &cmd, &p);
}

static void one_request(uint32_t q)
{
	int d = (int)draw(2);
	uint32_t what = draw(100);

	if (column_is_full(model_column) && chance(12))
		kinds_atomic(q, d);
	else if (what < 38)
		ops_send(q, d);
	else if (what < 65)
		write_octets(q, d);
	else if (what < 82)
		read_octets(q, d, NULL);
	else
		dyn_change(q, d);
}

static void rare_thing(uint32_t q)
{
	switch (draw(column_is_full(model_column) ? 13 : 11)) {
	case 0:
	case 1: ends_graceful(q); break;
	case 2:
	case 3:
	case 4: ends_abort(q); break;
	case 5: ends_fault(q); break;
	case 6: resize_cq(); break;
	case 7: arm_srq(q); break;
	case 8: change_mode(); break;
	case 9: ends_destroy(q); break;
	case 11:
	case 12: kinds_not_ready(q); break;
	default:
		if (srq_of(q, 0) < 0)
			fill_receives(q, (int)draw(2));
	}
}

/* How often the other side is killed and stopped, in steps: seldom enough for something to happen between. */
#define KILL_EVERY 4000
#define STOP_EVERY 1500

static bool disturb(void)
{
	if (model_column == COLUMN_SELF)
		return false;
	if (driver.step % STOP_EVERY == STOP_EVERY / 2)
		process_stop(1 + draw(150));
	if (driver.step % KILL_EVERY != KILL_EVERY / 2)
		return false;
	ends_kill();
	return true;
}

void ops_step(void)
{
	uint32_t q = draw(N_QPS), n = 1 + draw(8);

	if (disturb())
		return;
	if (chance(4)) {
		rare_thing(q);
		return;
	}
	while (n--)
		one_request(q);
}
