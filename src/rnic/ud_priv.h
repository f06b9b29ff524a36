/* SPDX-License-Identifier: MIT */
/*
 * Shared by the ud*.c files. Two roads lead to a datagram queue pair: UDP (ud_udp.c), and on its own host memory (ud_local.c). What
 * goes to a group takes both, and members know what has come to them already (ud_cast.c).
 *
 * All under the lock of the queue pair's engine.
 */
#ifndef FLUE_RNIC_UD_PRIV_H
#define FLUE_RNIC_UD_PRIV_H

#include "rnic/link.h"
#include "rnic/ud.h"
#include "wire/datagram.h"

struct duct;
struct tx_pieces;

#define UD_PLACE_BITS 8

static inline uint16_t ud_port(uint32_t qpn)
{
	return (uint16_t)(qpn >> UD_PLACE_BITS);
}

static inline bool ud_is_number(uint32_t qpn)
{
	return qpn <= DATAGRAM_ALL && (qpn & UD_PLACE) == UD_PLACE;
}

/* ---- ud.c ---- */

/* A datagram has come, to q or to a group of which it is a member: `len` octets, of which those of the header are in `head`, where nobody
 * changes them. */
void ud_take(struct qp *q, bool group, const uint8_t *head, const uint8_t *payload, size_t len,
	     const struct datagram_way *way, bool local);

/* ---- ud_udp.c ---- */

/* A socket for datagrams in and out; IPv6 with IPv4 in it. -errno. */
int ud_open_socket(int family);
/* Our own, at a port that nobody else has. -errno. */
int ud_open_own(struct ud *u, uint16_t *port);
void ud_ready(struct engine_io *io, uint32_t events);
/* The octets of *p. Those that went, or -errno of sendmsg(2). */
ssize_t ud_transmit(struct qp *q, const struct ud_ah *ah, uint32_t qpn, const struct tx_pieces *p);

/* ---- ud_group.c ---- */

void ud_drop_group(struct qp *q, struct ud_socket *s);

/* ---- ud_local.c: through memory ---- */

/*
 * A road: our side of a duct (channel/duct.h) from an engine to a datagram queue pair of this host, which has a door (channel/door.h)
 * with the number of its UDP port. Datagrams of all queue pairs of the engine take it; there is one for each direction. A record is
 * this, then for SINGLE and GROUP a datagram as over UDP.
 */
enum road_kind {
	ROAD_SINGLE = 0,
	ROAD_GROUP, /* to a member that has asked for it */
	ROAD_JOIN,  /* a member asks whoever sends to its group from `from` */
	ROAD_LEAVE,
	ROAD_NKINDS,
};

struct road_head {
	uint8_t kind, ipv6, hops, tclass;
	uint32_t qpn;   /* JOIN, LEAVE: the member's */
	uint64_t token; /* GROUP, JOIN, LEAVE: the member's own */
	uint8_t from[16], to[16];
};

struct ud_road {
	struct link poller;
	struct engine *engine;
	struct duct *duct;
	struct engine_io io;
	struct qp *qp; /* what comes is for it; NULL: it goes away from us */
	uint16_t port; /* ... and to there, */
	pid_t pid;     /* ... to this process; 0: in another PID namespace */
	bool over;
	TAILQ_HEAD(ud_waiters, ud) waiting; /* for room, ... */
	uint32_t waited;                    /* ... for so long, in ms */
	struct engine_timer look;
	LIST_HEAD(, ud_member) members;
	LIST_ENTRY(ud_road) all, of_port;
	LIST_ENTRY(ud_road) of_qp;
};

/* Of a new queue pair, whose number is known; `door` is taken. Without it nobody finds us, and we find others. */
void ud_local_open(struct qp *q, int door);
/* Before anything else of the queue pair goes. */
void ud_local_close(struct qp *q);
/* In the child of a fork: the parent's door. The roads go by themselves. */
void ud_local_abandon(struct ud *u);
/* It waits for no road any more. */
void ud_local_unwait(struct ud *u);
/* How a datagram of q's to *ah goes through memory. false: it does not, but may by UDP. */
bool ud_local_way(struct qp *q, const struct ud_ah *ah, struct datagram_way *way);
/* Is it an address of this host? */
bool ud_local_is_here(struct qp *q, bool ipv6, const uint8_t octets[16]);
/* To the queue pair at that port, if there is one on this host that we may reach. NULL: there is none. */
struct ud_road *ud_local_road(struct engine *e, uint16_t port);
/* The same, if we have it. */
struct ud_road *ud_local_find(struct engine *e, uint16_t port);
/*
 * 0: it is on its way. -EBUSY: there is no room; ud_run() is called when there is. -ENOENT: the road is over. -EFAULT: memory of *p is not
 * there. `p` NULL: only the head, and nobody waits.
 */
int ud_local_put(struct ud_road *r, struct qp *q, const struct road_head *h,
		 const struct tx_pieces *p);
/* The peer sees what was put. */
void ud_local_flush(struct ud_road *r);
/* Brings in all that has come to q by this road, or by any if it is NULL. */
void ud_local_drain(struct qp *q, struct ud_road *r);
struct road_head ud_local_head(enum road_kind kind, const struct datagram_way *way);

/* ---- ud_cast.c: groups ---- */

struct ud_cast;
struct ud_sub;

/* Of a Send to a group: what its datagrams have in common. NULL: they go by UDP alone. */
struct ud_cast *ud_cast_of(struct qp *q, const struct ud_ah *ah);
uint16_t ud_cast_number(const struct ud_cast *c);
/* To all members that have asked, once. As ud_local_put(), but that of members who have gone is no failure. */
int ud_cast_put(struct ud_cast *c, struct qp *q, const struct ud_ah *ah, const struct tx_pieces *p);
/* It is out, or given up: the next one is another. true: it was the first, and members may be about to ask. */
bool ud_cast_step(struct ud_cast *c);
/* What had begun is given up. */
void ud_cast_reset(struct ud *u);
void ud_cast_close(struct ud *u);

/* JOIN or LEAVE has come. */
void ud_cast_asked(struct qp *q, const struct road_head *h);
/* These are not reached that way any more; `road` ends, or is too slow. */
void ud_cast_forget(struct ud_road *road);

/* A GROUP has come: is it for q? `d` is in its record. */
bool ud_cast_came(struct qp *q, struct ud_road *road, const struct road_head *h,
		  const struct datagram *d);
/* It came by UDP: has it come already? If not, and the sender is on this host, it is asked to send it through memory. */
bool ud_cast_has(struct ud_socket *s, const struct datagram *d, const struct datagram_way *way);
/* The road ends. */
void ud_cast_lost(struct qp *q, const struct ud_road *road);
/* The group is left. */
void ud_cast_left(struct qp *q, struct ud_socket *s);

#endif
