/* SPDX-License-Identifier: MIT */
#include "channel/meet.h"

#include <string.h>
#include <unistd.h>

#include "base/own.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/board.h"
#include "channel/diag.h"
#include "channel/mailbox.h"
#include "channel/peer.h"

/* How often an end looks for the bell of its peer. */
#define BELL_ASKS 8

static void describe(const struct meet_end *e, struct board_slot *slot)
{
	memset(slot, 0, sizeof(*slot));
	slot->state = BOARD_POSTED;
	slot->pid = (uint32_t)getpid();
	slot->netns = diag_netns();
	slot->cookie = e->cookie;
	slot->self = e->self.sin6_addr;
	slot->peer = e->peer.sin6_addr;
	slot->self_port = e->self.sin6_port;
	slot->peer_port = e->peer.sin6_port;
	slot->role = e->role;
	memcpy(slot->mailbox, mailbox_name(), sizeof(slot->mailbox));
}

static bool is_peer(const struct board_slot *mine, const struct board_slot *other)
{
	return other->state == BOARD_POSTED && other->netns == mine->netns &&
	       other->self_port == mine->peer_port && other->peer_port == mine->self_port &&
	       memcmp(&other->self, &mine->peer, sizeof(mine->peer)) == 0 &&
	       memcmp(&other->peer, &mine->self, sizeof(mine->self)) == 0;
}

/* Which end connected? One of the two knows. */
static bool agree_roles(struct meet_end *e, uint32_t other)
{
	if (e->role == MEET_UNKNOWN && (other == MEET_ACTIVE || other == MEET_PASSIVE))
		e->role = other == MEET_ACTIVE ? MEET_PASSIVE : MEET_ACTIVE;
	return e->role != MEET_UNKNOWN && e->role != other;
}

/* Make a lane for the offer in `slot`. */
static enum meet_result claim(struct meet_end *e, const struct meet_greeting *greeting,
			      struct board_slot *slot, enum meet_refusal *why)
{
	struct diag end;
	struct arena *a;
	uint32_t lane;
	int fd;

	*why = MEET_CHECK;
	if (!diag_peer(&e->self, &e->peer, &end) || end.cookie != slot->cookie ||
	    end.uid != geteuid())
		return MEET_NEVER;
	e->peer_cookie = end.cookie;
	e->unsent = end.unsent;
	*why = MEET_ROLE;
	if (!agree_roles(e, slot->role))
		return MEET_NEVER;
	*why = MEET_LIMIT;
	a = arena_take((pid_t)slot->pid, mailbox_key(slot->mailbox), &lane, &fd);
	if (!a)
		return MEET_NEVER;
	if (fd >= 0) {
		bool sent = peer_send_lanes(slot->mailbox, (pid_t)slot->pid, fd);

		own_close(fd);
		if (!sent) {
			arena_undo(a, lane);
			*why = MEET_CHECK;
			return MEET_NEVER;
		}
	}
	atomic_store(&arena_memory(a)->lane[lane].cookie[0], e->cookie);
	atomic_store(&arena_memory(a)->lane[lane].cookie[1], slot->cookie);
	greeting->offer(&arena_memory(a)->lane[lane]);
	e->arena = a;
	e->lane = lane;
	e->side = 0;
	slot->state = BOARD_CLAIMED;
	slot->arena = arena_id(a);
	slot->lane = lane;
	slot->claimer = e->cookie;
	slot->role = e->role;
	return MEET_LANE;
}

enum meet_result meet_peer(struct meet_end *e, const struct meet_greeting *greeting,
			   enum meet_refusal *why)
{
	struct board_slot bucket[BOARD_BUCKET];
	struct board_slot mine;
	enum meet_result result = MEET_NOTHING;
	uint32_t first;
	int free = -1;

	*why = MEET_BOARD;
	if (!peer_reachable())
		return MEET_NEVER;
	describe(e, &mine);
	first = board_bucket(&mine);
	if (!board_lock(first, bucket))
		return board_fd() < 0 ? MEET_NEVER : MEET_NOTHING;
	for (int i = 0; i < BOARD_BUCKET; i++) {
		if (is_peer(&mine, &bucket[i])) {
			result = claim(e, greeting, &bucket[i], why);
			if (result == MEET_NEVER && *why == MEET_CHECK) {
				bucket[i].state = BOARD_EMPTY; /* an old one with our numbers */
				result = MEET_NOTHING;
			}
			board_write(first + (uint32_t)i, &bucket[i]);
			if (result == MEET_LANE)
				goto out;
			if (result == MEET_NEVER)
				goto out;
		}
		if (free < 0 && board_is_stale(&bucket[i]))
			free = i;
	}
	result = MEET_NOTHING;
	if (free >= 0 && board_write(first + (uint32_t)free, &mine)) {
		e->slot = first + (uint32_t)free;
		result = MEET_POSTED;
	}
out:
	board_unlock(first);
	return result;
}

/* The arena that the claimer named, if it is from the other end of this connection. */
static struct arena *find_arena(struct meet_end *e, const struct board_slot *slot)
{
	struct arena *a = peer_arena(slot->arena);
	struct diag end;

	if (!a || !diag_peer(&e->self, &e->peer, &end) || end.cookie != slot->claimer ||
	    end.uid != geteuid())
		return NULL;
	e->peer_cookie = end.cookie;
	e->unsent = end.unsent;
	return agree_roles(e, slot->role) ? a : NULL;
}

/* A lane was made for us. */
static void decline(const struct meet_end *e, const struct board_slot *slot)
{
	struct arena *a = peer_arena(slot->arena);

	if (a)
		arena_decline(a, slot->lane, (uint64_t[]) { slot->claimer, e->cookie });
}

/* With the bucket's lock, or somebody could take the offer between our look and our word. */
static bool take_down(struct meet_end *e, struct board_slot *slot)
{
	struct board_slot bucket[BOARD_BUCKET];
	uint32_t first = e->slot - e->slot % BOARD_BUCKET;
	bool ours;

	if (!board_lock(first, bucket)) {
		/* Then without: who takes it now loses a lane. */
		if (!board_read(e->slot, slot) || slot->cookie != e->cookie ||
		    slot->pid != (uint32_t)getpid())
			return false;
		bucket[0] = *slot;
		bucket[0].state = BOARD_EMPTY;
		return board_write(e->slot, &bucket[0]);
	}
	*slot = bucket[e->slot - first];
	ours = slot->cookie == e->cookie && slot->pid == (uint32_t)getpid() &&
	       slot->state != BOARD_EMPTY;
	if (ours) {
		bucket[e->slot - first].state = BOARD_EMPTY;
		board_write(e->slot, &bucket[e->slot - first]);
	}
	board_unlock(first);
	return ours;
}

enum meet_result meet_check(struct meet_end *e, const struct meet_greeting *greeting,
			    enum meet_refusal *why)
{
	struct board_slot slot;
	struct arena *a;

	*why = MEET_BOARD;
	if (!board_read(e->slot, &slot) || slot.cookie != e->cookie ||
	    slot.pid != (uint32_t)getpid())
		return MEET_NEVER;
	if (slot.state == BOARD_POSTED)
		return MEET_POSTED;
	*why = MEET_CHECK;
	if (slot.state != BOARD_CLAIMED)
		return MEET_NEVER;
	a = find_arena(e, &slot);
	take_down(e, &slot);
	if (!a || !arena_attach(a, slot.lane, (uint64_t[]) { e->peer_cookie, e->cookie })) {
		decline(e, &slot);
		return MEET_NEVER;
	}
	*why = MEET_GREETING;
	if (!greeting->answer(&arena_memory(a)->lane[slot.lane])) {
		arena_give(a, slot.lane, 1);
		return MEET_NEVER;
	}
	e->arena = a;
	e->lane = slot.lane;
	e->side = 1;
	return MEET_LANE;
}

void meet_withdraw(struct meet_end *e)
{
	struct board_slot slot;

	if (take_down(e, &slot) && slot.state == BOARD_CLAIMED)
		decline(e, &slot);
}

int meet_bell(struct meet_end *e)
{
	bool look = e->side == 0 && e->bell_asks < BELL_ASKS && arena_bell(e->arena) < 0;

	e->bell_asks += look;
	return peer_bell(e->arena, look);
}

void meet_forked(void)
{
	mailbox_forked();
	arena_forked();
	board_forked();
	bell_forked();
}

void meet_stop(void)
{
	mailbox_drop();
	board_drop();
}
