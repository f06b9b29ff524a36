/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <flue/flue.h>
#include <stdio.h>

uint64_t plan_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

uint32_t plan_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(plan_random(state) % n);
}

static bool chance(uint64_t *state, uint32_t one_in)
{
	return plan_below(state, one_in) == 0;
}

static uint32_t stream_length(uint64_t *r, const struct plan *p)
{
	if (p->relay == RELAY_OCTETS)
		return plan_below(r, 100);
	switch (plan_below(r, 8)) {
	case 0: return 0;
	case 1:
	case 2: return 1 + plan_below(r, 3);
	case 3: return p->order == AT_ONCE ? plan_below(r, 16000) : plan_below(r, STREAM_MAX);
	default: return plan_below(r, 3000);
	}
}

static uint32_t conn_flags(uint64_t *r, bool asks)
{
	uint32_t flags = (chance(r, 2) ? (uint32_t)FLUE_CONN_NO_CRC : 0) |
			 (chance(r, 4) ? (uint32_t)FLUE_CONN_MARKERS : 0) |
			 (chance(r, 4) ? (uint32_t)FLUE_CONN_LENIENT : 0);

	switch (asks ? plan_below(r, 6) : 6) {
	case 0: return flags | FLUE_CONN_TWO_WAY;
	case 1: return flags | FLUE_CONN_REV1;
	case 2: return flags | FLUE_CONN_RTR_SEND;
	case 3: return flags | FLUE_CONN_STRICT_PEER;
	default: return flags;
	}
}

static void draw_half(struct plan *p, int side, uint64_t *r)
{
	struct half *h = &p->half[side];

	h->socket = chance(r, 2);
	h->callback = h->socket && chance(r, 2);
	h->plain = !h->socket || chance(r, 3);
	h->control = h->socket && chance(r, 6);
	h->stream = stream_length(r, p);
	h->pieces = h->stream > 3000 ? plan_below(r, 2) * RANDOM_PIECES : plan_below(r, 3);
	h->over_read = chance(r, 2);
	h->late_send = h->socket && h->stream && chance(r, 2);
	h->lazy = chance(r, 4);
	h->closes = chance(r, 2);
	h->reaches = chance(r, 3);
	h->messages = 1 + plan_below(r, MESSAGES);
	h->conn_flags = conn_flags(r, side == p->initiator && !p->raw);
	/* Only then nothing but the switch can answer that receive. */
	h->waiting_recv = h->socket && !h->plain && !p->raw && side == p->initiator && chance(r, 2);
}

void plan_draw(struct plan *p, uint64_t seed, uint32_t index)
{
	uint64_t r = seed ^ ((uint64_t)index << 32 | index);

	plan_random(&r);
	*p = (struct plan) { .index = index };
	p->raw = chance(&r, 3);
	p->hurry = chance(&r, 3);
	p->initiator = (int)plan_below(&r, 2);
	p->order = (enum order)plan_below(&r, 3);
	p->relay = chance(&r, 4) ? (enum relay)plan_below(&r, 3) : DIRECT;
	draw_half(p, 0, &r);
	draw_half(p, 1, &r);
	/* Nobody switches before the peer's last octet is there, so only the last speaker may be late. */
	if (p->order != B_FIRST)
		p->half[0].late_send = false;
	else
		p->half[1].late_send = false;
	if (p->raw)
		p->half[1].conn_flags = p->half[0].conn_flags;
	if (!p->half[0].closes && !p->half[1].closes)
		p->half[plan_below(&r, 2)].closes = true;
}

uint32_t plan_length(const struct plan *p, int side, uint32_t message)
{
	uint64_t r = (uint64_t)p->index * 64 + (uint64_t)side * 32 + message;

	if (message == p->half[side].messages)
		return BYE_LENGTH;
	plan_random(&r);
	switch (plan_below(&r, 6)) {
	case 0: return message ? 0 : 16;
	case 1: return 16 + plan_below(&r, MESSAGE_MAX - 15);
	default: return 16 + plan_below(&r, 500);
	}
}

uint32_t plan_pattern(const struct plan *p, int side, uint32_t message)
{
	return p->index * 32 + (uint32_t)side * 16 + message;
}

uint8_t plan_octet(const struct plan *p, int side, size_t at)
{
	return (uint8_t)(at * 7 + at / 251 + p->index * 13 + (uint32_t)side * 101);
}

/* " word" for each that is so. */
static int print_half(const struct half *h, char *text, size_t size)
{
	const struct {
		bool so;
		const char *word;
	} words[] = {
		{ h->socket, "socket" },       { !h->socket, "convert" },
		{ h->callback, "callback" },   { h->plain, "plain" },
		{ h->control, "control" },     { h->over_read, "over-read" },
		{ h->late_send, "late-send" }, { h->waiting_recv, "waiting-recv" },
		{ h->lazy, "lazy" },           { h->closes, "closes" },
		{ h->reaches, "reaches" },
	};
	int n = 0;

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (words[i].so && (size_t)n < size)
			n += snprintf(text + n, size - (size_t)n, " %s", words[i].word);
	if ((size_t)n < size)
		n += snprintf(text + n, size - (size_t)n, " stream %u/%d messages %u flags 0x%x",
			      h->stream, (int)h->pieces, h->messages, h->conn_flags);
	return n;
}

void plan_print(const struct plan *p, char *text, size_t size)
{
	static const char *const relays[] = { "direct", "relay-octets", "relay-glue" };
	static const char *const orders[] = { "A-first", "B-first", "at-once" };
	int n = snprintf(text, size, "connection %u: %s%s, initiator %c, %s, %s; A:", p->index,
			 p->raw ? "raw" : "request/reply", p->hurry ? ", hurry" : "",
			 'A' + p->initiator, orders[p->order], relays[p->relay]);

	if ((size_t)n < size)
		n += print_half(&p->half[0], text + n, size - (size_t)n);
	if ((size_t)n < size)
		n += snprintf(text + n, size - (size_t)n, "; B:");
	if ((size_t)n < size)
		print_half(&p->half[1], text + n, size - (size_t)n);
}
