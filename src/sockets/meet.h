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
#ifndef FLUE_SOCKETS_MEET_H
#define FLUE_SOCKETS_MEET_H

#include "sockets/home.h"

enum meet_result {
	MEET_LANE,    /* there is a lane; rec->arena, lane and side are set, positions are not */
	MEET_POSTED,  /* our offer stands (rec->slot) */
	MEET_NOTHING, /* not now; try again later */
	MEET_NEVER,   /* *why says why not */
};

/* Find the peer's offer and make a lane for it, or leave one. */
enum meet_result meet_peer(struct rec *r, enum why *why);
/* Has somebody taken our offer? LANE, POSTED (not yet), or NEVER. */
enum meet_result meet_check(struct rec *r, enum why *why);
/* For which user the other end's program runs; false: nobody knows. */
bool meet_peer_user(const struct rec *r, uint32_t *uid);
/* How much the other end has in its queue; false: nobody knows. */
bool meet_peer_unread(const struct rec *r, size_t *n);
/* Take our offer away. */
void meet_withdraw(struct rec *r);
/* The bell of the peer's process, or -1. */
int meet_bell(struct rec *r);
/* This process is a child now: nothing of what it knew is its own. */
void meet_forked(void);

#endif
