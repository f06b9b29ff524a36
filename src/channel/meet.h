/* SPDX-License-Identifier: MIT */
/*
 * How two ends of a connection on one host find each other, without a word on the connection itself.
 *
 * Each user has a notice board, a small file in /dev/shm that only this user can open. An end that
 * thinks a lane pays looks for its peer's offer there; if there is none it leaves its own. Whoever
 * finds an offer makes the lane: it checks with the kernel (INET_DIAG) that the offer comes from
 * the socket at the other end, puts the lane's memory into the mailbox of the process that
 * made the offer (a unix socket, credentials checked on both sides), and writes onto the board which
 * lane it is. The board is only ever read and written, not mapped; what stands on it is a hint.
 */
#ifndef FLUE_CHANNEL_MEET_H
#define FLUE_CHANNEL_MEET_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

#include "channel/arena.h"

/* Which end of the connection this is; the kernel counts the SYN of the one that connected. */
enum meet_role { MEET_UNKNOWN, MEET_ACTIVE, MEET_PASSIVE };

/* What the two ends tell each other in the lane's header. */
struct meet_greeting {
	/* Who makes the lane, before the other end can know of it. */
	void (*offer)(struct lane_shared *lane);
	/* The other end, before it attaches. False: not a lane that it can use; nothing is written. */
	bool (*answer)(struct lane_shared *lane);
};

/* One end of a TCP connection on this host. */
struct meet_end {
	uint64_t cookie;          /* SO_COOKIE of its socket */
	struct sockaddr_in6 self; /* IPv4 as mapped addresses */
	struct sockaddr_in6 peer;
	uint32_t role; /* enum meet_role */
	uint32_t slot; /* of the notice board, after MEET_POSTED */
	/* after MEET_LANE */
	uint32_t side; /* 0: made the lane, 1: attached to it */
	uint32_t lane; /* number within the arena */
	struct arena *arena;
	uint64_t peer_cookie; /* of the socket at the other end; the kernel has confirmed it */
	uint32_t bell_asks;   /* how often its bell was looked for */
	uint32_t unsent;      /* octets that the other end's socket held back then */
};

enum meet_result {
	MEET_LANE,    /* there is a lane; positions are not set */
	MEET_POSTED,  /* our offer stands */
	MEET_NOTHING, /* not now; try again later */
	MEET_NEVER,   /* *why says why not */
};

enum meet_refusal {
	MEET_BOARD,    /* no notice board, or our offer is gone from it */
	MEET_CHECK,    /* it is not the other end of this connection */
	MEET_ROLE,     /* nobody knows who connected */
	MEET_LIMIT,    /* no memory for more lanes */
	MEET_GREETING, /* the other end wants something else */
};

/* Find the peer's offer and make a lane for it, or leave one. */
enum meet_result meet_peer(struct meet_end *e, const struct meet_greeting *greeting,
			   enum meet_refusal *why);
/* Has somebody taken our offer? LANE, POSTED (not yet), or NEVER. */
enum meet_result meet_check(struct meet_end *e, const struct meet_greeting *greeting,
			    enum meet_refusal *why);
/* The bell of the process at the other end, or -1. Its letter may still be to come: looked for a few times. */
int meet_bell(struct meet_end *e);
/* Take our offer away. */
void meet_withdraw(struct meet_end *e);
/* This process will not meet anybody any more. */
void meet_stop(void);
/* This process is a child now: nothing of what it knew is its own. */
void meet_forked(void);

#endif
