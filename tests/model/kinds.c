/* SPDX-License-Identifier: MIT */
/* What full service has besides: atomics, and a receiver that is not ready. */
#include <stdlib.h>
#include <unistd.h>

#include "model/driver.h"

bool op_is_read(const struct op *op)
{
	return op->wr == FLUE_WR_READ || op->wr == FLUE_WR_READ_INV;
}

bool op_is_atomic(const struct op *op)
{
	return op->wr == FLUE_WR_CMP_SWAP || op->wr == FLUE_WR_FETCH_ADD;
}

bool op_fetches(const struct op *op)
{
	return op_is_read(op) || op_is_atomic(op);
}

bool op_is_delivered(const struct op *op)
{
	return op->wr == FLUE_WR_SEND || op->wr == FLUE_WR_SEND_INV || op->wr == FLUE_WR_SEND_IMM ||
	       op->wr == FLUE_WR_WRITE_IMM;
}

/* ---- atomics ---- */

/* What it finds and what it leaves is known beforehand: all that touch this word are requests of one flow. */
static void foresee(uint64_t *word, struct op *op, struct flue_atomic *a)
{
	op->start = *word;
	if (op->wr == FLUE_WR_FETCH_ADD) {
		a->compare_add = (uint64_t)draw(UINT32_MAX) << draw(40);
		*word += a->compare_add;
		return;
	}
	a->compare_add = *word + chance(40);
	a->swap = (uint64_t)draw(UINT32_MAX) << 32 | draw(UINT32_MAX);
	if (a->compare_add == *word)
		*word = a->swap;
}

void kinds_atomic(uint32_t q, int d)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct words *w = &driver.words[!d];
	struct op op = ops_new(chance(50) ? FLUE_WR_FETCH_ADD : FLUE_WR_CMP_SWAP,
			       chance(60) ? FLUE_SIGNALED : 0);
	struct cmd cmd = { .rkey = driver.hello[!d].words_key };
	uint32_t word = q;

	op.length = sizeof(uint64_t);
	op.local = ops_slot(q, d, &f->sink, AREA_SINK, op.length, 1);
	op.local_held = true;
	if (op.wr == FLUE_WR_FETCH_ADD && chance(20)) {
		word = COMMON_WORD;
		op.common = true;
		op.start = cmd.atomic.compare_add = 1 + draw(9);
		w->posted += op.start;
	} else {
		foresee(&w->value[q], &op, &cmd.atomic);
	}
	cmd.remote_addr = driver.hello[!d].base + word_offset(word);
	ops_post(q, d, &op, &cmd);
}

void kinds_renew_words(uint32_t q)
{
	for (int side = 0; side < 2; side++) {
		struct cmd cmd = { .type = CMD_WORD, .q = q, .start = draw(1000) };

		driver_ask(side, &cmd);
		driver.words[side].value[q] = cmd.start;
	}
}

void kinds_check_common(int side)
{
	struct cmd cmd = { .type = CMD_WORD, .q = COMMON_WORD };
	uint64_t value = (uint64_t)driver_ask(side, &cmd).value;

	if (value < driver.words[side].done || value > driver.words[side].posted)
		diverge(N_QPS, "the word of all on side %d is %llu, not from %llu to %llu", side,
			(unsigned long long)value, (unsigned long long)driver.words[side].done,
			(unsigned long long)driver.words[side].posted);
}

/* ---- a receiver that is not ready ---- */

/* Small ones, by the home region's name: nothing here may have to wait for what is behind the first Send. */
static void post_plain(uint32_t q, int d, uint32_t wr)
{
	struct flow *f = &driver.conn[q].flow[d];
	struct op op = ops_new(wr, chance(60) ? FLUE_SIGNALED : 0);
	struct cmd cmd = { .rkey = driver.hello[!d].home_key[q] };
	bool read = wr == FLUE_WR_READ;

	op.length = draw(2000);
	if (read) {
		op.start = draw(LIBRARY - op.length);
		op.seed = LIBRARY_SEED;
		cmd.rkey = driver.hello[!d].library_key;
		cmd.remote_addr = driver.hello[!d].base + library_offset() + op.start;
	}
	if (wr == FLUE_WR_WRITE || wr == FLUE_WR_WRITE_IMM) {
		op.target = ops_slot(q, d, &f->target, AREA_TARGET, op.length, 1);
		op.target_held = true;
		cmd.remote_addr = home_address(q, !d, layout_piece(&op.target, 0));
	}
	if (wr == FLUE_WR_SEND_IMM || wr == FLUE_WR_WRITE_IMM)
		op.inv_key = cmd.imm = draw(UINT32_MAX);
	op.local = ops_slot(q, d, read ? &f->sink : &f->source, read ? AREA_SINK : AREA_SOURCE,
			    op.length, 1);
	op.local_held = true;
	ops_post(q, d, &op, &cmd);
}

static void post_early(uint32_t q, int d)
{
	static const uint32_t sends[] = { FLUE_WR_SEND, FLUE_WR_SEND_IMM, FLUE_WR_WRITE_IMM };
	struct flow *f = &driver.conn[q].flow[d];
	uint32_t room = f->window - 1;

	for (; room >= 2 && (room == f->window - 1 || chance(70)); room -= 2) {
		post_plain(q, d, sends[draw(3)]);
		switch (draw(4)) {
		case 0: post_plain(q, d, FLUE_WR_WRITE); break;
		case 1: post_plain(q, d, FLUE_WR_READ); break;
		case 2: kinds_atomic(q, d); break;
		default: break;
		}
	}
}

void kinds_not_ready(uint32_t q)
{
	int first = (int)draw(2), n = chance(40) ? 2 : 1;

	if (srq_of(q, 0) >= 0 || srq_of(q, 1) >= 0)
		return;
	for (int i = 0; i < n; i++) {
		struct flow *f = &driver.conn[q].flow[i ? !first : first];

		while (f->rcv_posted != f->sends)
			ops_send(q, i ? !first : first);
	}
	ops_quiesce(q);
	note(q, "side %d sends to who is not ready%s", first, n == 2 ? ", the other too" : "");
	for (int i = 0; i < n; i++)
		post_early(q, i ? !first : first);
	driver_progress();
	usleep(draw(4) * 500);
	for (int i = 0; i < n; i++)
		ops_late_receives(q, i ? !first : first);
}
