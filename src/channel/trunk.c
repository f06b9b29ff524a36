/* SPDX-License-Identifier: MIT */
/*
 * Trunks: how one begins and ends, what is around every call, how circuits begin and end.
 *
 *   opener   OPENING ─► LIVE (or REFUSED) ─► LEFT ─► FREE
 *   other    OFFERED ─► LIVE ─────────────► LEFT ─► FREE
 *
 * Even circuits are opened by side 0, odd ones by side 1, so numbers are given out privately. Each side says CLOSE (or
 * REFUSE) once in the life of a circuit, as the last thing; entries come in order, so when both have said it nothing of this
 * circuit can come any more, and its number is free again.
 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/times.h"
#include "channel/trunk_priv.h"

/* --- around every call */

bool trunk_enter(struct trunk *t, int *rc)
{
	*rc = -ENOTCONN;
	if (!atomic_load_explicit(t->alive, memory_order_relaxed))
		return false;
	*rc = -EDEADLK;
	return robust_take(&t->lock);
}

void trunk_leave(struct trunk *t)
{
	unsigned news = t->alarm;
	bool rouse = t->is_news && atomic_load(&t->sleepers) > 0;

	t->alarm = 0;
	t->is_news = false;
	/* Release, each: partners are see_head(), trunk_reclaim() and trunk_take_in() of the other side. Blocks before entries:
	 * who sees a CLOSE sees what was given back before it. */
	if (t->head != t->head_told) {
		t->head_told = t->head;
		atomic_store_explicit(&t->own->head, t->head, memory_order_release);
		news |= ARMED_ROOM;
	}
	if (t->given != t->given_told) {
		t->given_told = t->given;
		atomic_store_explicit(&t->own->given, t->given, memory_order_release);
		news |= ARMED_ROOM;
	}
	if (t->tail != t->tail_told) {
		t->tail_told = t->tail;
		atomic_store_explicit(&t->own->tail, t->tail, memory_order_release);
		news |= ARMED_DATA;
	}
	robust_give(&t->lock);
	if (news)
		trunk_ring(t, news);
	if (rouse)
		trunk_rouse(t);
}

void trunk_tell(struct trunk *t, uint32_t c, unsigned bits)
{
	struct circuit *k = &t->circuit[c];

	if (k->state == CIRCUIT_FREE || k->state == CIRCUIT_LEFT)
		return;
	t->is_news = true;
	k->events |= (uint8_t)bits;
	if (k->flags & CIRCUIT_TOLD)
		return;
	k->flags |= CIRCUIT_TOLD;
	k->next_told = TRUNK_NONE;
	if (t->told.first == TRUNK_NONE)
		t->told.first = c;
	else
		t->circuit[t->told.last].next_told = c;
	t->told.last = c;
}

void trunk_fail(struct trunk *t, int error)
{
	if (t->status)
		return;
	t->status = error;
	t->owing.first = TRUNK_NONE;
	t->starved.first = t->starved.last = TRUNK_NONE;
	t->n_starved = t->to_feed = 0;
	for (uint32_t c = 0; c < t->top; c++) {
		struct circuit *k = &t->circuit[c];

		k->flags &= (uint8_t) ~(CIRCUIT_STARVED | CIRCUIT_OWES | CIRCUIT_OWES_FIN |
					CIRCUIT_OWES_CLOSE);
		if (k->state == CIRCUIT_LEFT)
			k->state = CIRCUIT_FREE;
		if (k->state == CIRCUIT_FREE || k->flags & CIRCUIT_ENDED)
			continue;
		k->flags |= CIRCUIT_ENDED;
		trunk_tell(t, c, TRUNK_ENDED);
	}
	atomic_store(&t->own->closed, 1);
	/* Also wakes a thread of ours that sleeps there. */
	trunk_hang_up(t);
	t->alarm = ARMED_DATA | ARMED_ROOM;
	t->is_news = true;
}

void trunk_look_after_peer(struct trunk *t, bool now)
{
	uint64_t time;
	bool gone = atomic_load_explicit(&t->peer->closed, memory_order_acquire);

	if (t->status)
		return;
	if (!gone) {
		time = clock_coarse();
		if (!now && time - t->looked < TRUNK_LOOK)
			return;
		t->looked = time;
		gone = trunk_peer_is_dead(t);
	}
	if (!gone)
		return;
	/* What it sent before is still there. */
	trunk_take_in(t);
	trunk_fail(t, -EPIPE);
}

int trunk_status(struct trunk *t)
{
	return atomic_load_explicit(t->alive, memory_order_relaxed) ? atomic_load(&t->status)
								    : -ENOTCONN;
}

void trunk_shape(const struct trunk *t, struct trunk_shape *shape)
{
	*shape = t->shape;
}

uint64_t trunk_rings(const struct trunk *t)
{
	return atomic_load_explicit(&t->rings, memory_order_relaxed);
}

/* --- beginning and end */

int trunk_attach_moved(int memory, unsigned side, int sock, pid_t peer, struct trunk **out)
{
	struct trunk *t;
	struct stat st = { 0 };
	int rc = side > 1 ? -EINVAL : trunk_memory_map(memory, &t);

	if (rc == 0 && sock >= 0 && (fstat(sock, &st) != 0 || !S_ISSOCK(st.st_mode))) {
		trunk_memory_unmap(t, true);
		rc = -EINVAL;
	}
	if (rc) {
		if (sock >= 0)
			sys_close(sock);
		return rc;
	}
	t->side = side;
	t->sock = sock;
	t->sock_ino = st.st_ino;
	t->waker = -1;
	t->peer_pid = peer;
	trunk_memory_places(t);
	t->surplus = t->shape.blocks - t->shape.circuits * t->shape.guarantee;
	t->next_circuit = side;
	t->told.first = t->owing.first = t->idle.first = TRUNK_NONE;
	t->starved.first = t->starved.last = TRUNK_NONE;
	for (uint32_t i = 0; i < t->shape.blocks; i++) {
		t->owner[i] = TRUNK_NONE;
		t->free[t->n_free++] = t->shape.blocks - 1 - i;
	}
	atomic_store(t->alive, 1);
	*out = t;
	return 0;
}

int trunk_attach(int memory, unsigned side, int sock, pid_t peer, struct trunk **out)
{
	int high = sock < 0 ? -1 : own_move(sock);

	if (sock >= 0 && high < 0)
		return -EMFILE;
	return trunk_attach_moved(memory, side, high, peer, out);
}

void trunk_close(struct trunk *t)
{
	bool ours = atomic_load(t->alive);

	if (ours) {
		atomic_store(&t->own->closed, 1);
		trunk_hang_up(t);
		trunk_ring(t, ARMED_DATA | ARMED_ROOM);
	}
	trunk_close_sock(t);
	trunk_memory_unmap(t, ours);
}

/* --- circuits */

void trunk_begin(struct trunk *t, uint32_t c, enum circuit_state state)
{
	struct circuit *k = &t->circuit[c];

	/* It may still be in the list of events. What its predecessor sent and is not back yet counts. */
	k->flags &= CIRCUIT_TOLD;
	k->state = (uint8_t)state;
	k->events = k->code = k->own_code = 0;
	k->limit = UINT32_MAX;
	k->greeting = k->first = k->last = TRUNK_NONE;
	k->offset = k->ends = k->need = 0;
	k->user = NULL;
	if (c >= t->top)
		t->top = c + 1;
}

void trunk_append(struct trunk *t, struct circuit_list *list, uint32_t c)
{
	t->circuit[c].next = TRUNK_NONE;
	if (list->first == TRUNK_NONE)
		list->first = c;
	else
		t->circuit[list->last].next = c;
	list->last = c;
}

void trunk_maybe_free(struct trunk *t, uint32_t c)
{
	struct circuit *k = &t->circuit[c];

	if (k->state != CIRCUIT_LEFT || !(k->flags & CIRCUIT_ENDED) || k->flags & CIRCUIT_OWES)
		return;
	k->state = CIRCUIT_FREE;
	if (c % 2 == t->side)
		trunk_append(t, &t->idle, c);
}

/* One that was never used, or the one that has been free the longest. */
static uint32_t find_free(struct trunk *t)
{
	uint32_t c = t->next_circuit;

	if (c < t->shape.circuits) {
		t->next_circuit += 2;
		return c;
	}
	/* The client of the other side may still hold blocks of a predecessor; then another one is tried. */
	for (int i = 0; i < 8 && t->idle.first != TRUNK_NONE; i++) {
		c = t->idle.first;
		t->idle.first = t->circuit[c].next;
		if (trunk_credit(t, &t->circuit[c]) > 0)
			return c;
		trunk_append(t, &t->idle, c);
	}
	return TRUNK_NONE;
}

int trunk_open(struct trunk *t, const void *data, size_t size, void *user)
{
	uint32_t c;
	int rc;

	if (size > t->shape.block_size)
		return -EMSGSIZE;
	if (!trunk_enter(t, &rc))
		return rc;
	trunk_pay(t);
	trunk_reclaim(t);
	trunk_take_in(t);
	c = t->status ? TRUNK_NONE : find_free(t);
	rc = t->status ? t->status : -ENOSPC;
	if (c != TRUNK_NONE) {
		trunk_begin(t, c, CIRCUIT_OPENING);
		t->circuit[c].user = user;
		trunk_put(t, c, ENTRY_OPEN, 0, data, size);
		rc = (int)c;
	}
	trunk_leave(t);
	return rc;
}

static void drop_greeting(struct trunk *t, struct circuit *k)
{
	if (k->greeting != TRUNK_NONE)
		trunk_give_back(t, k->greeting);
	k->greeting = TRUNK_NONE;
}

static int answer(struct trunk *t, uint32_t c, size_t size)
{
	struct circuit *k = circuit_at(t, c);

	if (!k || k->state != CIRCUIT_OFFERED)
		return -EINVAL;
	trunk_take_in(t); /* it may have been withdrawn */
	if (k->flags & CIRCUIT_ENDED)
		return -ECONNRESET;
	return size > t->shape.block_size ? -EMSGSIZE : 0;
}

int trunk_accept(struct trunk *t, uint32_t c, const void *data, size_t size, void *user)
{
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = answer(t, c, size);
	if (rc == 0 && !trunk_put(t, c, ENTRY_ACCEPT, 0, data, size)) {
		rc = t->status ? -ECONNRESET : -EAGAIN;
		trunk_starve(t, &t->circuit[c]);
	}
	if (rc == 0) {
		trunk_unstarve(t, &t->circuit[c]);
		drop_greeting(t, &t->circuit[c]);
		t->circuit[c].state = CIRCUIT_LIVE;
		t->circuit[c].user = user;
	}
	trunk_leave(t);
	return rc;
}

/* Nobody here wants to hear of it again. */
static void leave_circuit(struct trunk *t, struct circuit *k)
{
	trunk_empty(t, k);
	trunk_unstarve(t, k);
	k->events = 0;
	k->user = NULL;
	k->state = t->status ? CIRCUIT_FREE : CIRCUIT_LEFT;
}

int trunk_refuse(struct trunk *t, uint32_t c, uint8_t code, const void *data, size_t size)
{
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rc = answer(t, c, size);
	if (rc != -EINVAL) {
		leave_circuit(t, &t->circuit[c]);
		/* Without a block the peer learns that much. */
		if (rc != 0 || !trunk_put(t, c, ENTRY_REFUSE, code, data, size)) {
			t->circuit[c].own_code = code;
			trunk_owe(t, c, CIRCUIT_OWES_CLOSE);
		}
		trunk_maybe_free(t, c);
	}
	trunk_leave(t);
	return rc;
}

void trunk_drop(struct trunk *t, uint32_t c, uint8_t code)
{
	struct circuit *k;
	int no;

	if (!trunk_enter(t, &no))
		return;
	k = circuit_at(t, c);
	if (k) {
		leave_circuit(t, k);
		k->own_code = code;
		trunk_owe(t, c, CIRCUIT_OWES_CLOSE);
	}
	trunk_leave(t);
}

ssize_t trunk_greeting(struct trunk *t, uint32_t c, void *data, size_t size)
{
	struct circuit *k;
	ssize_t rc = -ENOENT;
	uint32_t len;
	int no;

	if (!trunk_enter(t, &no))
		return no;
	k = circuit_at(t, c);
	if (k && k->greeting != TRUNK_NONE) {
		len = t->rx[k->greeting].len;
		memcpy(data, t->in_blocks + (size_t)k->greeting * t->shape.block_size,
		       min_size(len, size));
		rc = (ssize_t)len;
		drop_greeting(t, k);
	}
	trunk_leave(t);
	return rc;
}

void *trunk_user(const struct trunk *t, uint32_t c)
{
	return c < t->shape.circuits ? t->circuit[c].user : NULL;
}

void trunk_set_user(struct trunk *t, uint32_t c, void *user)
{
	int no;

	if (!trunk_enter(t, &no))
		return;
	if (circuit_at(t, c))
		t->circuit[c].user = user;
	trunk_leave(t);
}

/* --- events */

/* False: it was dropped since. */
static bool next_event(struct trunk *t, struct trunk_event *ev)
{
	uint32_t c = t->told.first;
	struct circuit *k = &t->circuit[c];

	t->told.first = k->next_told;
	k->flags &= (uint8_t)~CIRCUIT_TOLD;
	*ev = (struct trunk_event) {
		.circuit = c, .bits = k->events, .code = k->code, .user = k->user
	};
	k->events = 0;
	return ev->bits != 0;
}

int trunk_poll(struct trunk *t, struct trunk_event *events, int max)
{
	int n = 0, rc;

	if (!trunk_enter(t, &rc))
		return rc;
	trunk_pay(t);
	if (trunk_has_back(t))
		trunk_reclaim(t);
	trunk_feed(t);
	if (trunk_has_in(t))
		trunk_take_in(t);
	if (t->told.first == TRUNK_NONE)
		trunk_look_after_peer(t, false);
	while (n < max && t->told.first != TRUNK_NONE)
		n += next_event(t, &events[n]);
	trunk_leave(t);
	return n;
}
