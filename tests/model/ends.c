/* SPDX-License-Identifier: MIT */
/* How connections begin and end: in order, by force, by fault; and what is left of them. */
#include <errno.h>
#include <string.h>

#include "model/driver.h"

/* ---- beginning ---- */

static void ask_ok(int side, uint32_t type, uint32_t q)
{
	struct cmd cmd = { .type = type, .q = q };
	struct record_reply r = driver_ask(side, &cmd);

	if (!r.ok)
		diverge(q, "command %u on side %d: %s", type, side, strerror(r.error));
}

static uint32_t ask_state(int side, uint32_t q)
{
	struct cmd cmd = { .type = CMD_STATE, .q = q };

	return (uint32_t)driver_ask(side, &cmd).value;
}

static uint32_t random_terms(void)
{
	return (chance(15) ? FLUE_CONN_MARKERS : 0) | (chance(30) ? FLUE_CONN_STRICT_PEER : 0) |
	       (chance(15) ? FLUE_CONN_DEFER : 0);
}

static uint32_t random_form(void)
{
	static const uint32_t forms[] = { 0,
					  0,
					  0,
					  FLUE_CONN_TWO_WAY,
					  FLUE_CONN_TWO_WAY,
					  FLUE_CONN_REV1,
					  FLUE_CONN_RTR_SEND,
					  FLUE_CONN_RTR_READ,
					  FLUE_CONN_RTR_WRITE | FLUE_CONN_RTR_SEND };

	return forms[draw(sizeof(forms) / sizeof(forms[0]))];
}

/* The responder's requests wait for the initiator's first message: now its queue can be filled
 * to the last place, and not beyond. */
static void fill_held_queue(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct cmd cmd = { .type = CMD_POST_SEND, .q = q, .id = ID(ID_SEND, q, ~0u) };
	uint32_t window = f->window;

	f->window = SQ_DEPTH;
	for (int i = 0; i < SQ_DEPTH; i++)
		ops_post_empty(q, d, FLUE_WR_WRITE,
			       i == SQ_DEPTH - 1 || chance(50) ? FLUE_SIGNALED : 0);
	cmd.op = FLUE_WR_WRITE;
	cmd.rkey = driver.hello[!d].home_key[q];
	if (driver_ask(d, &cmd).ok || driver.answer.error != ENOMEM)
		diverge(q, "a request more than fit: errno %d", driver.answer.error);
	f->window = window;
}

static void await_events(uint32_t q)
{
	struct conn *c = &driver.conn[q];

	for (int side = 0; side < 2; side++)
		for (uint32_t t = 0; t < FLUE_EVENT_NTYPES; t++)
			driver_wait(q, c->wanted[side][t] == 0);
}

static void be_rejected(uint32_t q, struct cmd *cmd, int initiator)
{
	struct conn *c = &driver.conn[q];

	cmd->reject = true;
	c->wanted[initiator][FLUE_EVENT_CONNECT_FAILED] = 1;
	note(q, "side %d connects, to be rejected", initiator);
	if (!driver_ask(initiator, cmd).ok)
		diverge(q, "connect: %s", strerror(driver.answer.error));
	await_events(q);
	if (c->end[initiator].detail != ECONNREFUSED)
		diverge(q, "a rejected set-up failed with %s",
			strerror((int)c->end[initiator].detail));
	cmd->reject = false;
}

/* Who answers and starts later stays with TCP. */
static void check_link(uint32_t q, uint32_t accept_flags)
{
	struct cmd cmd = { .type = CMD_LINK, .q = q };
	bool local = column_is_local(model_column) && !(accept_flags & FLUE_CONN_DEFER);
	uint32_t link = (uint32_t)driver_ask(0, &cmd).value;

	if (link != (local ? FLUE_LINK_LOCAL : FLUE_LINK_TCP))
		diverge(q, "the connection goes over link %x", link);
}

void ends_connect(uint32_t q)
{
	struct conn *c = &driver.conn[q];
	int initiator = (int)draw(2);
	uint32_t form = random_form(), crc = chance(30) ? FLUE_CONN_NO_CRC : 0;
	struct cmd cmd = { .type = CMD_CONNECT, .q = q };
	bool two_way = form & (FLUE_CONN_TWO_WAY | FLUE_CONN_REV1);

	if (column_is_full(model_column))
		form = 0, two_way = false;
	cmd.conn_flags = random_terms() | form | crc;
	cmd.accept_flags = random_terms() | crc;
	cmd.ird = 1 + draw(16);
	/* Revision 1 does not tell the peer, so both must know. */
	cmd.ord = form & FLUE_CONN_REV1 ? cmd.ird : 1 + draw(16);
	cmd.fpdu_max = chance(70) ? 0 : 256 + draw(60000);
	for (int d = 0; d < 2; d++)
		if (srq_of(q, !d) < 0 && chance(50))
			ops_receives(q, d, draw(5));
	if (chance(5))
		be_rejected(q, &cmd, initiator);
	c->wanted[0][FLUE_EVENT_CONNECTED] = c->wanted[1][FLUE_EVENT_CONNECTED] = 1;
	if (cmd.conn_flags & FLUE_CONN_DEFER)
		c->wanted[initiator][FLUE_EVENT_ACCEPTED] = 1;
	if (cmd.accept_flags & FLUE_CONN_DEFER)
		c->wanted[!initiator][FLUE_EVENT_ACCEPTED] = 1;
	note(q, "side %d connects with %x, answer %x, ird %u ord %u fpdu %u", initiator,
	     cmd.conn_flags, cmd.accept_flags, cmd.ird, cmd.ord, cmd.fpdu_max);
	if (!driver_ask(initiator, &cmd).ok)
		diverge(q, "connect: %s", strerror(driver.answer.error));
	await_events(q);
	check_link(q, cmd.accept_flags);
	c->up = true;
	c->ending = false;
	driver.connections++;
	if (two_way && chance(30))
		fill_held_queue(q, !initiator);
	if (two_way)
		ops_post_empty(q, initiator, FLUE_WR_WRITE, FLUE_SIGNALED);
}

/* ---- what is left ---- */

static void compare_requests(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];

	for (uint32_t n = f->posted < OPS ? 0 : f->posted - OPS; n != f->posted; n++) {
		struct op *op = &f->ops[n % OPS];

		if (op->local_held)
			book_check(d, q, op_fetches(op) ? &f->sink : &f->source, &op->local,
				   op->length, op->seed, op->start,
				   op_is_read(op) ? CHECK_MAYBE : CHECK_NOTHING);
		if (op->target_held)
			book_check(!d, q, &f->target, &op->target, op->length, op->seed, 0,
				   CHECK_MAYBE);
		op->local_held = op->target_held = false;
	}
}

/* The first flushed receive may hold a part of a message; the others hold nothing. If nobody heard of them, as the queue pair
 * was destroyed, each may hold its message. */
static void compare_receives(uint32_t q, int d, bool gone)
{
	struct flow *f = &driver.conn[q].flow[d];

	for (uint32_t i = f->delivered; f->rcv_checked != f->rcv_posted; f->rcv_checked++, i++) {
		struct receive *r = &f->receives[f->rcv_checked % (2 * RQ_DEPTH)];
		const struct op *op = &f->ops[f->send_numbers[i % OPS] % OPS];

		if (i >= f->sends || (i > f->delivered && !gone) || op->wr == FLUE_WR_WRITE_IMM)
			op = NULL;
		book_check(!d, q, &f->receive, &r->layout, op ? op->length : 0, op ? op->seed : 0,
			   0, op ? CHECK_MAYBE : CHECK_EXACT);
	}
}

static void start_over(struct flow *f)
{
	f->completed = f->soft_completed = f->landed = f->soft_landed = f->compared = f->posted;
	f->delivered = f->sends;
	f->unsignaled = 0;
	f->failing = f->rcv_failing = f->rcv_taken = false;
	f->rcv_status = 0;
	/* The next Send meets the next receive. */
	f->rcv_posted = f->rcv_acked = f->rcv_done = f->rcv_checked = f->sends;
	area_clear(&f->source);
	area_clear(&f->sink);
	area_clear(&f->target);
	area_clear(&f->receive);
}

static bool is_empty(const struct area *a)
{
	return a->first == a->last;
}

static void clean_up(uint32_t q, int gone)
{
	struct conn *c = &driver.conn[q];

	for (int d = 0; d < 2; d++) {
		struct flow *f = &c->flow[d];
		int srq = srq_of(q, !d);

		driver_wait(q, f->rcv_acked == f->rcv_posted);
		compare_requests(q, d);
		compare_receives(q, d, gone == !d);
		driver_wait(q, is_empty(&f->source) && is_empty(&f->sink) && is_empty(&f->target) &&
				       is_empty(&f->receive));
		if (srq >= 0 && !(driver.dead && gone == !d)) {
			driver.srq[!d][srq].credits += f->sends - f->delivered;
			if (!driver.dead) /* else others still count upon what will not come */
				ops_fill_srq(!d, (uint32_t)srq);
		}
		start_over(f);
	}
}

/* ---- endings ---- */

/* Nothing is heard of a side that is gone; -1: neither is. */
static void expect_end(uint32_t q, int gone)
{
	struct conn *c = &driver.conn[q];

	c->ending = true;
	for (int side = 0; side < 2; side++) {
		if (side == gone)
			continue;
		c->wanted[side][FLUE_EVENT_DISCONNECTED] = 1;
		c->last_may_come[side] = srq_of(q, side) >= 0;
	}
}

static void await_receives(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];

	driver_wait(q, f->rcv_done == f->rcv_posted && (f->rcv_failing || !f->rcv_taken));
}

/* The event of a shared queue's user comes when its connection fails. */
static void await_last_receive(uint32_t q, int side)
{
	struct conn *c = &driver.conn[q];
	bool failed = c->end[side].reason != FLUE_CLOSE_GRACEFUL;

	if (failed && srq_of(q, side) >= 0)
		driver_wait(q, !c->last_may_come[side]);
	else if (srq_of(q, side) >= 0 && !c->last_may_come[side])
		diverge(q, "side %d heard of a last receive, but closed in order", side);
	c->last_may_come[side] = false;
}

/* In Error everything is taken and flushed, in order: what was posted before is then over too. */
static void flush_error(uint32_t q, int side)
{
	struct flow *f = &driver.conn[q].flow[side];
	struct op op = { .wr = FLUE_WR_WRITE,
			 .flags = FLUE_SIGNALED,
			 .status = FLUE_WC_FLUSHED,
			 .marker = true };
	struct cmd cmd = { .rkey = 0 };

	ops_post(q, side, &op, &cmd);
	driver_wait(q, f->completed == f->posted);
	if (srq_of(q, side) < 0)
		ops_small_receive(q, !side);
}

static void flush_idle(uint32_t q, int side)
{
	struct flow *f = &driver.conn[q].flow[side];

	/* It closed because nothing was outstanding: what is not signaled was a success. */
	driver_wait(q, f->completed >= f->soft_completed);
	if (f->failing)
		diverge(q, "side %d is Idle, but requests failed", side);
}

static void finish(uint32_t q, int gone)
{
	struct conn *c = &driver.conn[q];

	await_events(q);
	for (int side = 0; side < 2; side++) {
		uint32_t state = FLUE_QP_IDLE;

		c->state[side] = state;
		if (side == gone)
			continue;
		c->state[side] = state = ask_state(side, q);
		if (state == FLUE_QP_ERROR)
			flush_error(q, side);
		else if (state == FLUE_QP_IDLE)
			flush_idle(q, side);
		else
			diverge(q, "side %d is %s after the end", side, flue_qp_state_name(state));
		await_receives(q, !side);
		await_last_receive(q, side);
	}
	clean_up(q, gone);
	dyn_renew(q);
	kinds_renew_words(q);
	for (int side = 0; side < 2; side++)
		if (c->state[side] == FLUE_QP_ERROR)
			ask_ok(side, CMD_RESET, q);
	c->up = c->ending = false;
}

static void want_reason(uint32_t q, int side, uint32_t reason)
{
	uint32_t got = driver.conn[q].end[side].reason;

	if (got != reason)
		diverge(q, "side %d: the connection ended as '%s', want '%s'", side,
			flue_close_reason_name(got), flue_close_reason_name(reason));
}

static void close_gracefully(uint32_t q)
{
	struct conn *c = &driver.conn[q];
	uint32_t who = draw(3);

	ops_quiesce(q);
	expect_end(q, -1);
	note(q, "closes in order, by %u", who);
	if (who != 1)
		ask_ok(0, CMD_DISCONNECT, q);
	if (who != 0)
		ask_ok(1, CMD_DISCONNECT, q);
	await_events(q);
	for (int side = 0; side < 2; side++) {
		want_reason(q, side, FLUE_CLOSE_GRACEFUL);
		if (ask_state(side, q) != FLUE_QP_IDLE)
			diverge(q, "side %d is not Idle after a graceful close", side);
		await_receives(q, !side);
		await_last_receive(q, side);
	}
	clean_up(q, -1);
	c->up = c->ending = false;
}

void ends_graceful(uint32_t q)
{
	close_gracefully(q);
	ends_connect(q);
}

/* With whatever is outstanding. */
void ends_abort(uint32_t q)
{
	bool ask = chance(30); /* politely, though there is work outstanding */
	struct cmd cmd = { .type = ask ? CMD_DISCONNECT : CMD_ABORT, .q = q };
	int side = (int)draw(2);
	bool both = chance(20);

	ask_state(1, q); /* everything posted so far is really posted */
	expect_end(q, -1);
	note(q, "ends by force: command %u on side %d%s", cmd.type, side,
	     both ? " and the other" : "");
	if (!driver_ask(side, &cmd).ok && (!ask || driver.answer.error != EBUSY))
		diverge(q, "command %u: %s", cmd.type, strerror(driver.answer.error));
	cmd.type = CMD_ABORT;
	if (both && !driver_ask(!side, &cmd).ok)
		diverge(q, "abort: %s", strerror(driver.answer.error));
	finish(q, -1);
	ends_connect(q);
}

void ends_destroy(uint32_t q)
{
	int side = (int)draw(2);

	/* Whether one of a shared queue was taken for a part of a message, nobody would know. */
	if (srq_of(q, side) >= 0)
		return;
	ask_state(1, q);
	expect_end(q, side);
	note(q, "the queue pair of side %d is destroyed", side);
	ask_ok(side, CMD_REMAKE, q);
	finish(q, side);
	ends_connect(q);
}

void ends_kill(void)
{
	for (uint32_t q = 0; q < N_QPS; q++) {
		note(q, "side 1 is killed");
		expect_end(q, 1);
	}
	process_kill();
	for (uint32_t q = 0; q < N_QPS; q++)
		finish(q, 1);
	driver.dead = false;
	memset(driver.srq[1], 0, sizeof(driver.srq[1]));
	memset(&driver.words[1], 0, sizeof(driver.words[1]));
	if (!process_start())
		diverge(N_QPS, "no other process can be started");
	for (uint32_t q = 0; q < N_QPS; q++)
		for (uint32_t i = 0; i < N_DYN; i++)
			driver.conn[q].dyn[1][i].key = driver.hello[1].dyn_key[q][i];
	for (uint32_t i = 0; i < 2 * N_SRQS; i++)
		ops_fill_srq((int)(i % 2), i / 2);
	for (uint32_t q = 0; q < N_QPS; q++)
		ends_connect(q);
}

/* ---- faults ---- */

enum fault {
	BAD_WRITE_KEY,
	BAD_WRITE_BOUNDS,
	BAD_WRITE_ACCESS,
	BAD_READ_KEY,
	BAD_READ_BOUNDS,
	BAD_INVALIDATE,
	TOO_LONG,
	NO_RECEIVE,
	BAD_LOCAL_KEY,
	BAD_LOCAL_INV,
	BAD_FAST_REG,
	BAD_ATOMIC_KEY,
	BAD_ATOMIC_PLACE,
	N_FAULTS,
};

static const struct {
	const char *name;
	uint32_t wr, status;
	bool local; /* found by the requester */
	uint32_t detail;
	uint32_t full, event; /* in full service: of the request, and what the responder hears */
} faults[N_FAULTS] = {
	[BAD_WRITE_KEY] = { "Write, bad key", FLUE_WR_WRITE, FLUE_WC_SUCCESS, false, 0x1100,
			    FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_WRITE_BOUNDS] = { "Write, bounds", FLUE_WR_WRITE, FLUE_WC_SUCCESS, false, 0x1101,
			       FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_WRITE_ACCESS] = { "Write, no right", FLUE_WR_WRITE, FLUE_WC_SUCCESS, false, 0x0102,
			       FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_READ_KEY] = { "Read, bad key", FLUE_WR_READ, FLUE_WC_REMOTE_ACCESS, false, 0x0100,
			   FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_READ_BOUNDS] = { "Read, bounds", FLUE_WR_READ, FLUE_WC_REMOTE_ACCESS, false, 0x0101,
			      FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_INVALIDATE] = { "bad invalidate", FLUE_WR_SEND_INV, FLUE_WC_SUCCESS, false, 0x0209,
			     FLUE_WC_REMOTE_REQUEST, FLUE_EVENT_QP_REQUEST },
	[TOO_LONG] = { "Send, too long", FLUE_WR_SEND, FLUE_WC_SUCCESS, false, 0x1205,
		       FLUE_WC_REMOTE_REQUEST, FLUE_EVENT_QP_REQUEST },
	[NO_RECEIVE] = { "Send, no receive", FLUE_WR_SEND, FLUE_WC_SUCCESS, false, 0x1202, 0, 0 },
	[BAD_LOCAL_KEY] = { "bad lkey", FLUE_WR_WRITE, FLUE_WC_LOCAL_PROTECTION, true, 0,
			    FLUE_WC_LOCAL_PROTECTION, 0 },
	[BAD_LOCAL_INV] = { "bad local invalidate", FLUE_WR_LOCAL_INV, FLUE_WC_BIND, true, 0,
			    FLUE_WC_BIND, 0 },
	[BAD_FAST_REG] = { "bad fast register", FLUE_WR_FAST_REG, FLUE_WC_BIND, true, 0,
			   FLUE_WC_BIND, 0 },
	[BAD_ATOMIC_KEY] = { "atomic, bad key", FLUE_WR_FETCH_ADD, 0, false, 0,
			     FLUE_WC_REMOTE_ACCESS, FLUE_EVENT_QP_ACCESS },
	[BAD_ATOMIC_PLACE] = { "atomic, not aligned", FLUE_WR_FETCH_ADD, 0, false, 0,
			       FLUE_WC_REMOTE_REQUEST, FLUE_EVENT_QP_REQUEST },
};

/* A key of the side's that is not valid now. 0: there is none. */
static uint32_t dead_key(uint32_t q, int side)
{
	for (uint32_t i = 0; i < N_DYN; i++)
		if (!driver.conn[q].dyn[side][i].valid)
			return driver.conn[q].dyn[side][i].key;
	return 0;
}

static bool fault_is_possible(uint32_t q, int d, enum fault what)
{
	struct flow *f = &driver.conn[q].flow[d];

	switch (what) {
	case BAD_ATOMIC_PLACE: return column_is_full(model_column);
	case BAD_ATOMIC_KEY: return column_is_full(model_column) && dead_key(q, !d);
	case BAD_WRITE_KEY:
	case BAD_READ_KEY: return dead_key(q, !d);
	case BAD_LOCAL_KEY:
	case BAD_LOCAL_INV: return dead_key(q, d);
	case NO_RECEIVE:
		return !column_is_full(model_column) && srq_of(q, !d) < 0 &&
		       f->rcv_posted == f->sends;
	default: return true;
	}
}

static void send_fault(uint32_t q, int d, enum fault what, struct op *op, struct cmd *cmd)
{
	struct flow *f = &driver.conn[q].flow[d];
	uint32_t room = what == NO_RECEIVE ? 0 : ops_promise_receive(q, d);

	op->length = what == TOO_LONG ? room + 1 : room < 32 ? room : 32;
	f->rcv_taken = what != NO_RECEIVE;
	if (what == TOO_LONG)
		f->rcv_status = FLUE_WC_LOCAL_LENGTH;
	if (what == BAD_INVALIDATE)
		cmd->rkey = op->inv_key = driver.hello[!d].home_key[q];
}

static void tagged_fault(uint32_t q, int d, enum fault what, struct op *op, struct cmd *cmd)
{
	const struct hello *h = &driver.hello[!d];
	uint64_t end = area_offset(q, AREA_SOURCE) + (uint64_t)area_size(q) * N_AREAS;

	op->length = 1 + draw(60);
	cmd->rkey = h->home_key[q];
	cmd->remote_addr = home_address(q, !d, end - op->length + 1);
	if (op_is_atomic(op)) {
		op->length = sizeof(uint64_t);
		cmd->rkey = h->words_key;
		cmd->remote_addr = h->base + word_offset(q) + 1 + draw(7);
	}
	if (what == BAD_WRITE_KEY || what == BAD_READ_KEY || what == BAD_ATOMIC_KEY)
		cmd->rkey = dead_key(q, !d);
	if (what == BAD_WRITE_ACCESS) {
		cmd->rkey = h->library_key;
		cmd->remote_addr = h->base + library_offset();
	}
}

static void local_fault(uint32_t q, int d, enum fault what, struct op *op, struct cmd *cmd)
{
	cmd->rkey = driver.hello[what == BAD_LOCAL_KEY ? !d : d].home_key[q];
	if (what == BAD_LOCAL_KEY) {
		op->length = 1 + draw(60);
		cmd->remote_addr = home_address(q, !d, area_offset(q, AREA_TARGET));
		cmd->lkey = dead_key(q, d);
	}
	if (what == BAD_LOCAL_INV)
		cmd->rkey = dead_key(q, d);
	if (what == BAD_FAST_REG) /* the home region is valid already */
		cmd->reg.length = 1;
}

static void commit_fault(uint32_t q, int d, enum fault what)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op op = ops_new(faults[what].wr, FLUE_SIGNALED);
	struct cmd cmd = { .rkey = 0 };
	bool read = op_fetches(&op);

	op.status = column_is_full(model_column) ? faults[what].full : faults[what].status;
	if (op.wr == FLUE_WR_SEND || op.wr == FLUE_WR_SEND_INV)
		send_fault(q, d, what, &op, &cmd);
	else if (faults[what].local)
		local_fault(q, d, what, &op, &cmd);
	else
		tagged_fault(q, d, what, &op, &cmd);
	if (op.length) {
		op.local = ops_slot(q, d, read ? &f->sink : &f->source,
				    read ? AREA_SINK : AREA_SOURCE, op.length, 1);
		op.local_held = true;
	}
	expect_end(q, -1);
	if (column_is_full(model_column) && faults[what].event)
		driver.conn[q].wanted[!d][faults[what].event] = 1;
	ops_post(q, d, &op, &cmd);
}

void ends_fault(uint32_t q)
{
	struct conn *c = &driver.conn[q];
	enum fault what = (enum fault)draw(N_FAULTS);
	int d = (int)draw(2), finder;

	if (!fault_is_possible(q, d, what))
		return;
	ops_quiesce(q);
	note(q, "side %d commits a fault: %s", d, faults[what].name);
	finder = faults[what].local ? d : !d;
	commit_fault(q, d, what);
	await_events(q);
	want_reason(q, finder, FLUE_CLOSE_FAULT);
	want_reason(q, !finder, FLUE_CLOSE_TERMINATED);
	if (!column_is_full(model_column) &&
	    (c->end[0].detail != faults[what].detail || c->end[1].detail != faults[what].detail))
		diverge(q, "%s: details %x and %x, want %x", faults[what].name, c->end[0].detail,
			c->end[1].detail, faults[what].detail);
	driver.faults++;
	finish(q, -1);
	ends_connect(q);
}

void ends_settle(void)
{
	for (uint32_t q = 0; q < N_QPS; q++)
		close_gracefully(q);
	for (int side = 0; side < 2; side++) {
		kinds_check_common(side);
		for (uint32_t i = 0; i < N_SRQS; i++)
			ops_count_srq(side, i);
	}
}
