/* SPDX-License-Identifier: MIT */
/*
 * Inside the engine. Unless a function says otherwise the connection's lock is held.
 *
 *   sdp_conn.c      calls of the program, steps of the machine and what they do, timers
 *   sdp_setup.c     Hello and HelloAck
 *   sdp_listener.c  listeners and their children
 *   sdp_tx.c        messages out: answers, credits, octets
 *   sdp_rx.c        messages in, octets to the program
 *   sdp_move.c      the peer changes its owner
 */
#ifndef FLUE_SOCKETS_SDP_PRIV_H
#define FLUE_SOCKETS_SDP_PRIV_H

#include "sockets/sdp/sdp_conn.h"

/* Every call and up-call is between these two. leave() sends what is due, gives the lock back and
 * tells; the connection may be gone afterwards. */
void sdp_conn_enter(struct sdp_conn *c);
void sdp_conn_leave(struct sdp_conn *c);
/* One event for the machine, and all that follows from it. */
void sdp_conn_step(struct sdp_conn *c, enum sdp_event e);
/* The peer broke a rule. */
void sdp_conn_bad(struct sdp_conn *c, const char *why);
/* The transport's part is there and has not ended for us. */
bool sdp_conn_is_live(const struct sdp_conn *c);
void sdp_conn_arm(struct sdp_conn *c, uint32_t ms);

extern const struct oti_upcalls sdp_upcalls;

/* ---- sdp_setup.c ---- */

void sdp_setup_resolve(struct sdp_conn *c);
void sdp_setup_hello(struct sdp_conn *c);
void sdp_setup_hello_ack(struct sdp_conn *c);
void sdp_setup_refuse(struct sdp_conn *c);
void sdp_setup_ready(struct sdp_conn *c);
/* 0, or the error of ops->connect. */
int sdp_setup_dial(struct sdp_conn *c);
/* Reads a HelloAck; if it is good, begins with new numbers. */
bool sdp_setup_take_ack(struct sdp_conn *c, const void *data, size_t len);
void sdp_setup_accepted(struct oti_conn *conn, const void *data, size_t len);
void sdp_setup_failed(struct oti_conn *conn, int error, uint32_t code, const void *data,
		      size_t len);

/* ---- sdp_listener.c ---- */

/* A child is open. */
void sdp_listener_queue(struct sdp_conn *c);
/* Takes a child out of the list. True: it was there. Only the listener's lock is needed. */
bool sdp_listener_remove(struct sdp_listener *l, struct sdp_conn *c);

/* ---- sdp_tx.c ---- */

/* Sends whatever is due and can go: answers, DisConn, AbortConn, credits. */
void sdp_tx_pump(struct sdp_conn *c);
void sdp_tx_abort(struct sdp_conn *c);
bool sdp_tx_is_writable(const struct sdp_conn *c);

/* ---- sdp_rx.c ---- */

void sdp_rx_received(struct oti_conn *conn, struct oti_rx *rx);
/* Throws away what was not read. */
void sdp_rx_discard(struct sdp_conn *c);

/* ---- sdp_move.c ---- */

enum sdp_move { SDP_MOVE_NONE = 0, SDP_MOVE_OUT, SDP_MOVE_IN };

/* SuspCommAck has been sent. */
void sdp_move_begin(struct sdp_conn *c);
/* The transport's part ended meanwhile. */
void sdp_move_on(struct sdp_conn *c);
/* The new owner has answered. */
void sdp_move_arrived(struct sdp_conn *c, const void *data, size_t len);

#endif
