/* SPDX-License-Identifier: MIT */
/* The octets: records of calls in one direction, cells that name their place in the other. */
#include <stdio.h>
#include <string.h>

#include "threads.h"

#define CLEAR      8 /* octets of a record that are no coincidence */
#define NEAR_BREAK 3

uint64_t code_key;

static const uint8_t magic[4] = { 0xe7, 0x5a, 0xc3, 0x96 };

/* ---- records ---- */

static uint32_t check_word(uint32_t call, uint32_t len)
{
	uint64_t x = ((uint64_t)call << 32 | len) ^ code_key;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	return (uint32_t)(x >> 32);
}

void record_fill(uint32_t call, uint32_t len, uint32_t from, uint8_t *to, size_t n)
{
	struct flow f = { code_key + call * 0x9e3779b97f4a7c15, from };
	uint8_t head[RECORD_HEAD];
	uint32_t words[3] = { call, len, check_word(call, len) };
	size_t k;

	flow_fill(&f, to, n);
	if (from >= RECORD_HEAD)
		return;
	memcpy(head, magic, sizeof(magic));
	memcpy(head + sizeof(magic), words, sizeof(words));
	k = RECORD_HEAD - from < n ? RECORD_HEAD - from : n;
	memcpy(to, head + from, k);
}

size_t record_match(uint32_t call, uint32_t len, uint32_t from, const uint8_t *data, size_t n)
{
	uint8_t want[512];
	size_t done = 0, k, i;

	while (done < n) {
		k = n - done < sizeof(want) ? n - done : sizeof(want);
		record_fill(call, len, from + (uint32_t)done, want, k);
		for (i = 0; i < k && want[i] == data[done + i]; i++)
			;
		done += i;
		if (i < k)
			break;
	}
	return done;
}

int64_t record_head(const uint8_t *data, uint32_t *len)
{
	uint32_t words[3];

	if (memcmp(data, magic, sizeof(magic)) != 0)
		return -1;
	memcpy(words, data + sizeof(magic), sizeof(words));
	if (words[2] != check_word(words[0], words[1]) || words[0] >= MAX_CALLS)
		return -1;
	*len = words[1];
	return words[0];
}

/* ---- what T reads ---- */

enum found { FOUND, MORE, NONE };

static void remove_part(struct parser *p, int i)
{
	p->part[i] = p->part[--p->parts];
	if (p->current == i)
		p->current = -1;
	else if (p->current == p->parts)
		p->current = i;
}

/* Calls that have returned and whose octets are all there: nothing more of them can come. */
static void forget_done(struct parser *p)
{
	struct call *c;

	for (int i = p->parts - 1; i >= 0; i--) {
		c = &world->call[p->part[i].call];
		if (i != p->current && atomic_load(&c->end) && c->result != RESULT_UNKNOWN &&
		    (int64_t)p->part[i].at >= c->result)
			remove_part(p, i);
	}
	if (p->parts == PARSER_OPEN)
		remove_part(p, p->current == 0 ? 1 : 0);
}

static void note_run(struct parser *p, uint32_t call)
{
	struct conn *c = &world->conn[p->conn];
	unsigned i = atomic_load(&c->runs);

	if (i < MAX_RUNS) {
		c->run[i] = call;
		atomic_store(&c->runs, i + 1);
	}
}

static void begin_part(struct parser *p, uint32_t call, uint32_t len)
{
	struct call *c = &world->call[call];
	unsigned was = atomic_exchange(&c->conn, p->conn + 1);

	if (call >= atomic_load(&world->calls) || c->kind != CALL_OUT || c->len != len)
		watch_bad("connection %u has a record of call %u, which was never made", p->conn,
			  call);
	if (was)
		watch_bad("call %u (%s on %d) began on connection %u and on connection %u", call,
			  c->what, c->number, was - 1, p->conn);
	forget_done(p);
	p->current = p->parts++;
	p->part[p->current] = (struct part) { call, len, 0 };
	note_run(p, call);
}

/* Does something begin, or go on, at this place of rest[]? */
static enum found start_at(struct parser *p, size_t at)
{
	const uint8_t *data = p->rest + at;
	size_t n = p->rests - at, need, k;
	enum found result = NONE;
	uint32_t len;
	int64_t call;

	if (memcmp(data, magic, n < sizeof(magic) ? n : sizeof(magic)) == 0) {
		call = n < RECORD_HEAD ? -1 : record_head(data, &len);
		if (call >= 0) {
			begin_part(p, (uint32_t)call, len);
			return FOUND;
		}
		result = n < RECORD_HEAD ? MORE : NONE;
	}
	for (int i = 0; i < p->parts; i++) {
		struct part *part = &p->part[i];

		need = part->len - part->at < CLEAR ? part->len - part->at : CLEAR;
		k = n < need ? n : need;
		if (i == p->current || record_match(part->call, part->len, part->at, data, k) < k)
			continue;
		if (k < need) {
			result = MORE;
			continue;
		}
		p->current = i;
		note_run(p, part->call);
		return FOUND;
	}
	return result;
}

/* A header may have been cut by a short send(): then the next one follows soon. */
static enum found skip_fragment(struct parser *p, size_t *at)
{
	const uint8_t *data = p->rest + *at;
	size_t n = p->rests - *at;
	uint32_t len;

	if (memcmp(data, magic, n < sizeof(magic) ? n : sizeof(magic)) != 0 && n >= sizeof(magic) &&
	    data[0] != magic[0])
		return NONE;
	for (size_t k = 1; k < RECORD_HEAD && k + RECORD_HEAD <= n; k++)
		if (memcmp(data, magic, k < sizeof(magic) ? k : sizeof(magic)) == 0 &&
		    record_head(data + k, &len) >= 0) {
			*at += k;
			p->current = -1;
			return FOUND;
		}
	return n < 2 * RECORD_HEAD ? MORE : NONE;
}

/* The current record does not go on at rest[at]; run: so many octets of it stand before. */
static enum found find_next(struct parser *p, size_t *at, size_t run)
{
	size_t back = run < PARSER_BACK ? run : PARSER_BACK;
	enum found result = NONE, f;
	int before = p->current;

	for (size_t b = 0; b <= back; b++) {
		f = start_at(p, *at - b);
		if (f == MORE)
			result = MORE;
		if (f != FOUND)
			continue;
		/* The first octets of the next looked like more of the last. */
		if (b && before >= 0) {
			p->part[before].at -= (uint32_t)b;
			atomic_fetch_sub(&world->call[p->part[before].call].seen, (unsigned)b);
		}
		*at -= b;
		return FOUND;
	}
	f = skip_fragment(p, at);
	return f == NONE ? result : f;
}

/* Takes what goes on with the current record. */
static size_t go_on(struct parser *p, size_t at)
{
	struct part *part = &p->part[p->current];
	size_t n = p->rests - at, m;

	if (n > part->len - part->at)
		n = part->len - part->at;
	m = record_match(part->call, part->len, part->at, p->rest + at, n);
	part->at += (uint32_t)m;
	atomic_fetch_add(&world->call[part->call].seen, (unsigned)m);
	return m;
}

/* Whose octets are these? Says a lot about why. */
static void tell_foreign(struct parser *p, size_t at)
{
	const uint8_t *data = p->rest + at;
	size_t n = p->rests - at < 16 ? p->rests - at : 16;
	unsigned calls = atomic_load(&world->calls);
	char text[40] = "";
	uint64_t place;
	size_t before;
	struct call *c;

	for (size_t i = 0; i < n; i++)
		sprintf(text + 2 * i, "%02x", data[i]);
	watch_bad("octets on connection %u at %llu that belong to no call there: %s", p->conn,
		  (unsigned long long)(p->at + at), text);
	for (unsigned i = 0; i < calls && n >= CLEAR; i++) {
		c = &world->call[i];
		for (uint32_t from = 0; c->kind == CALL_OUT && from + n <= c->len; from++)
			if (record_match(i, c->len, from, data, n) == n)
				watch_bad("  they are of call %u (%s on %d, result %lld) from %u "
					  "on; it is on connection %d, with %u",
					  i, c->what, c->number, (long long)c->result, from,
					  (int)atomic_load(&c->conn) - 1, atomic_load(&c->seen));
	}
	if (cells_find(data, p->rests - at, &place, &before) >= 0)
		watch_bad("  they are what T itself has sent");
	p->lost = true;
}

void parser_feed(struct parser *p, const uint8_t *data, size_t n)
{
	size_t at = p->skip, run = p->skip, m, keep;
	enum found f;

	memcpy(p->rest + p->rests, data, n);
	p->rests += n;
	while (at < p->rests && !p->lost) {
		if (p->current >= 0) {
			m = go_on(p, at);
			at += m;
			run += m;
			if (p->part[p->current].at == p->part[p->current].len) {
				remove_part(p, p->current);
				run = 0;
				continue;
			}
			if (at == p->rests)
				break;
		}
		f = find_next(p, &at, p->current >= 0 ? run : 0);
		if (f == MORE)
			break;
		if (f == NONE)
			tell_foreign(p, at);
		run = 0;
	}
	keep = p->current < 0 ? 0 : run < PARSER_BACK ? run : PARSER_BACK;
	if (p->lost)
		at = p->rests;
	if (keep > at)
		keep = at;
	p->skip = keep;
	p->at += at - keep;
	p->rests -= at - keep;
	memmove(p->rest, p->rest + at - keep, p->rests);
}

void parser_end(struct parser *p)
{
	/* Less may be the head of a record that was cut. */
	if (!p->lost && p->rests - p->skip >= RECORD_HEAD)
		tell_foreign(p, p->skip);
}

/* ---- cells ---- */

#define ODD1   0x9e3779b97f4a7c15
#define ODD2   0xd6e8feb86659fd93
#define MARK   0x6b3au
#define PLACES 32 /* bits for the number of the cell */

static uint64_t cell(uint32_t conn, uint64_t number)
{
	uint64_t x = (uint64_t)MARK << 48 | (uint64_t)conn << PLACES | number;

	x = (x ^ code_key) * ODD1;
	x ^= x >> 32;
	return x * ODD2;
}

/* The number by which n must be multiplied for 1, modulo 2^64. */
static uint64_t inverse(uint64_t n)
{
	uint64_t x = n;

	for (int i = 0; i < 6; i++)
		x *= 2 - n * x;
	return x;
}

static int64_t cell_read(uint64_t x, uint64_t *number)
{
	uint64_t conn;

	x *= inverse(ODD2);
	x ^= x >> 32;
	x = x * inverse(ODD1) ^ code_key;
	conn = x >> PLACES & 0xffff;
	*number = x & 0xffffffff;
	return x >> 48 == MARK && conn < MAX_CONNS && *number < SENT_LIMIT / 8 ? (int64_t)conn : -1;
}

void cells_fill(uint32_t conn, uint64_t at, uint8_t *to, size_t n)
{
	uint64_t x = 0;

	for (size_t i = 0; i < n; i++) {
		if (i == 0 || (at + i) % 8 == 0)
			x = cell(conn, (at + i) / 8);
		to[i] = (uint8_t)(x >> 8 * ((at + i) % 8));
	}
}

size_t cells_match(uint32_t conn, uint64_t at, const uint8_t *data, size_t n)
{
	uint8_t want[512];
	size_t done = 0, k, i;

	while (done < n) {
		k = n - done < sizeof(want) ? n - done : sizeof(want);
		cells_fill(conn, at + done, want, k);
		for (i = 0; i < k && want[i] == data[done + i]; i++)
			;
		done += i;
		if (i < k)
			break;
	}
	return done;
}

int64_t cells_find(const uint8_t *data, size_t n, uint64_t *at, size_t *before)
{
	uint64_t x, number;
	int64_t conn;
	uint8_t want;

	for (size_t a = 0; a < CRUMB_MAX && a + 8 <= n; a++) {
		memcpy(&x, data + a, 8);
		conn = cell_read(x, &number);
		if (conn < 0)
			continue;
		*at = number * 8;
		/* Usually the octets before it are of the cell before. */
		for (*before = a; *before && *at; --*before, --*at) {
			cells_fill((uint32_t)conn, *at - 1, &want, 1);
			if (want != data[*before - 1])
				break;
		}
		return *before < CRUMB_MAX ? conn : -1;
	}
	return -1;
}

/* ---- what W reads ---- */

void cells_snapshot(uint64_t *high)
{
	unsigned n = atomic_load(&world->conns);

	for (unsigned i = 0; i < MAX_CONNS; i++)
		high[i] = i < n ? atomic_load(&world->conn[i].high) : 0;
}

static void mark_read(const struct call *c, uint32_t conn, uint64_t at, size_t n)
{
	uint64_t end = at + n, mask, had;
	int twice = 0;

	while (at < end) {
		size_t bits = 64 - at % 64 < end - at ? 64 - at % 64 : end - at;

		mask = (bits == 64 ? ~0ull : (1ull << bits) - 1) << at % 64;
		had = atomic_fetch_or(&world->read[conn][at / 64], mask);
		twice += __builtin_popcountll(had & mask);
		at += bits;
	}
	/* The last octet of a piece may look right by chance where two threads read. */
	if (twice > 2)
		watch_bad("%s on %d read %d octets twice: connection %u, before %llu", c->what,
			  c->number, twice, conn, (unsigned long long)end);
	else
		atomic_fetch_add(&world->twice, (unsigned)twice);
}

static void check_piece(const struct call *c, const uint64_t *high, uint32_t conn, uint64_t at,
			size_t n)
{
	struct conn *to = &world->conn[conn];

	if (at + n > atomic_load(&to->sent))
		watch_bad("%s on %d read up to %llu of connection %u, where %llu were sent",
			  c->what, c->number, (unsigned long long)(at + n), conn,
			  (unsigned long long)atomic_load(&to->sent));
	if (at < high[conn])
		watch_bad("%s on %d read octet %llu of connection %u; %llu were read before",
			  c->what, c->number, (unsigned long long)at, conn,
			  (unsigned long long)high[conn]);
}

static void raise_high(uint32_t conn, uint64_t end)
{
	uint64_t was = atomic_load(&world->conn[conn].high);

	while (was < end && !atomic_compare_exchange_weak(&world->conn[conn].high, &was, end))
		;
}

static void keep_crumb(struct call *c, const uint8_t *data, size_t n)
{
	unsigned i = atomic_fetch_add(&world->crumbs, 1);

	if (i >= MAX_CRUMBS)
		return;
	world->crumb[i].call = (uint32_t)(c - world->call);
	world->crumb[i].n = (uint8_t)n;
	memcpy(world->crumb[i].octets, data, n);
}

static void tell_unread(const struct call *c, const uint8_t *data, size_t n)
{
	char text[40] = "";
	uint32_t len;

	for (size_t i = 0; i < 16; i++)
		sprintf(text + 2 * i, "%02x", data[i]);
	watch_bad("%s on %d read %zu octets that T has not sent: %s%s", c->what, c->number, n, text,
		  record_head(data, &len) >= 0 ? " (a record of our own)" : "");
}

/*
 * Two threads that read at the same time may each get every other piece. Near such a break an octet
 * may look like one of the other side: those count as thrown away, and not as read.
 */
static void mark_piece(struct call *c, uint32_t conn, uint64_t at, size_t n, bool first, bool last)
{
	size_t head = first ? 0 : NEAR_BREAK, tail = last ? 0 : NEAR_BREAK;

	if (n > head + tail)
		mark_read(c, conn, at + head, n - head - tail);
	else
		head = n, tail = 0;
	atomic_fetch_add(&world->thrown, head + tail);
	raise_high(conn, at + n);
}

void cells_took(struct call *c, const uint64_t *high, const uint8_t *data, size_t n, bool peek)
{
	uint64_t at, end[2] = { 0 };
	size_t m, before = 0;
	int64_t conn;

	while (n) {
		conn = cells_find(data, n, &at, &before);
		if (conn < 0 && n < CRUMB_MAX) {
			if (!peek)
				keep_crumb(c, data, n);
			break;
		}
		if (conn < 0) {
			tell_unread(c, data, n);
			break;
		}
		/* Another thread has read what stood in between. */
		if (before && !peek)
			keep_crumb(c, data, before);
		data += before;
		n -= before;
		m = cells_match((uint32_t)conn, at, data, n);
		if (atomic_load(&c->conn) && atomic_load(&c->conn) != (unsigned)conn + 1)
			watch_bad("%s on %d read from connection %d and %d in one call", c->what,
				  c->number, (int)atomic_load(&c->conn) - 1, (int)conn);
		if (end[1] && at < end[0])
			watch_bad("%s on %d read %llu after %llu", c->what, c->number,
				  (unsigned long long)at, (unsigned long long)end[0]);
		atomic_store(&c->conn, (unsigned)conn + 1);
		check_piece(c, high, (uint32_t)conn, at, m);
		if (!peek)
			mark_piece(c, (uint32_t)conn, at, m, !end[1] && !before, m == n);
		end[0] = at + m;
		end[1] = 1;
		data += m;
		n -= m;
	}
}
