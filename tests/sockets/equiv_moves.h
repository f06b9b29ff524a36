/* SPDX-License-Identifier: MIT */
/* The moves of the random program; each is called on both sides, with actor on one of them. */
#ifndef TESTS_SOCKETS_EQUIV_MOVES_H
#define TESTS_SOCKETS_EQUIV_MOVES_H

#include "equiv.h"

/* equiv_data.c */
equiv_move move_put, move_take, move_stream, move_turns, move_peek, move_count, move_empty,
	move_nothing, move_ask, move_wake, move_edges, move_interest, move_timeout, move_full,
	move_long, move_lowat;
void moves_dawdle(struct party *p);
void moves_drain(struct party *p, bool actor, bool to_actor);
void moves_timeout(struct party *p, int option, int ms);

/* equiv_odd.c */
equiv_move move_signal, move_masked, move_dup, move_fork, move_options, move_refused, move_sendfile,
	move_splice, move_urgent, move_async;
/* SIGPIPE since the last call. */
int moves_pipes(void);

/* equiv_ends.c: the actor ends the connection; both have closed it on return. */
equiv_move end_half, end_clean, end_unread, end_reset, end_linger, end_deaf, end_both_ways,
	end_together, end_dissolved, end_asleep;

#endif
