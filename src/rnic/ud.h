/* SPDX-License-Identifier: MIT */
/*
 * Datagram queue pairs (UD). Each has a UDP socket of its own, on the engine of its queue pair; the port is in its number, whose last
 * octet is UD_PLACE. On one host they reach each other through memory (ud_local.c), where nothing is lost on the way. A Send is done when
 * the kernel, or the memory, has it. What comes is dropped, and counted by why, unless it is whole and ours, its Q_Key fits, and there is a
 * receive with room for it and the 40 octets in front.
 *
 * As a member of a group it has another socket for that group, at a port that all members of all processes share.
 *
 * All under the engine's lock, unless it says otherwise.
 */
#ifndef FLUE_RNIC_UD_H
#define FLUE_RNIC_UD_H

#include <bsd/sys/queue.h>
#include <flue/flue.h>

#include "rnic/engine.h"
#include "wire/datagram.h"

struct qp;
struct wqe;
struct rnic_pd;

#define UD_PLACE 0xffu /* of numbers that are datagram queue pairs' */

/* Why a datagram that came was dropped. */
enum ud_drop {
	UD_DROP_FORM = 0, /* not one of ours: version, length, flags */
	UD_DROP_NUMBER,   /* for another queue pair */
	UD_DROP_QKEY,
	UD_DROP_STATE, /* before RTR, or in error */
	UD_DROP_NO_RECEIVE,
	UD_DROP_TOO_LONG, /* for the receive that is there */
	UD_NDROPS,
};

struct ud_socket {
	struct engine_io io;
	struct qp *qp;
	struct sockaddr_storage group; /* ss_family 0: our own port */
	LIST_HEAD(, ud_sub) subs;      /* of a group: who sends through memory */
	uint32_t n_subs;
	LIST_ENTRY(ud_socket) all;
};

struct ud_caller;
struct ud_road;

struct ud {
	uint8_t state; /* enum flue_qp_state */
	uint32_t qkey, port, sq_psn;
	bool blocked;    /* nothing goes out now: the timer runs */
	int family;      /* AF_INET6, also for IPv4; or AF_INET */
	uint8_t hops[2]; /* where an address handle says nothing: IPv4, IPv6 */
	struct ud_socket own;
	LIST_HEAD(, ud_socket) groups;
	struct engine_timer again;
	struct qp *qp;
	uint64_t drops[UD_NDROPS];
	uint64_t udp_sent, udp_received, local_sent, local_received;

	/* through memory */
	struct engine_io door; /* fd -1: none */
	struct engine_timer door_again;
	TAILQ_HEAD(ud_callers, ud_caller) callers; /* at the door */
	uint32_t n_callers;
	LIST_HEAD(, ud_road) roads; /* to us */
	struct ud_road *waits;      /* there is no room in it */
	struct ud_road *unflushed;
	TAILQ_ENTRY(ud) of_road;
	LIST_HEAD(, ud_cast) casts; /* groups that we send to */
};

/* Where datagrams go: made once, used by many. */
struct ud_ah {
	struct rnic_pd *pd;
	struct sockaddr_storage remote,
		local; /* as the sockets want them; local.ss_family 0: none */
	bool group;
	uint32_t scope;          /* of an IPv6 address */
	struct datagram_way way; /* hops 0: as the system has it; from: if there is a local one */
};

int ud_ah_create(struct rnic_pd *pd, const struct flue_ah_attr *attr, struct ud_ah **out);

/* For a new queue pair. Gives it its number. No lock held. Errors of socket(2), -ENOMEM. */
int ud_create(struct qp *q);
/* No lock held; frees. */
void ud_destroy(struct qp *q);
void ud_fork_child(struct qp *q);

/* The engine's roads. No lock needed any more. */
void ud_local_fini(struct engine *e);
void ud_local_fork_child(struct engine *e);

/* As the calls of qp.h. */
int ud_modify(struct qp *q, const struct flue_qp_values *v, uint32_t mask);
int ud_query(struct qp *q, struct flue_qp_values *v, uint32_t mask);
void ud_reset(struct qp *q);
void ud_fail(struct qp *q);
/* Is it one that can be sent? Called with no lock but the queue's. */
int ud_check_request(struct qp *q, const struct flue_send_wr *wr, uint32_t total);
/* Something was posted. */
void ud_run(struct qp *q);

/* Joins or leaves a group. No lock held. -EINVAL: not a group, -EADDRINUSE: is a member, -EADDRNOTAVAIL: is none; errors of
 * setsockopt(2). */
int ud_join(struct qp *q, const struct sockaddr *group, socklen_t len, const struct sockaddr *local,
	    socklen_t local_len);
int ud_leave(struct qp *q, const struct sockaddr *group, socklen_t len);

#endif
