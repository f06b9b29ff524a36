/* SPDX-License-Identifier: MIT */
/*
 * Home: the memory in which a process keeps what it knows about its TCP sockets. It is a sealed memfd
 * named "flue-home", mapped shared: children of fork() share the records of the sockets they
 * inherit, with locks and positions, and `flue sockets` reads the counters through
 * /proc/PID/fd. No peer can reach it.
 *
 * The file has room for all records, which costs nothing; address space does, in programs that have a limit for it. So
 * records are mapped in pieces, each as large as all before it, when somebody needs one. A child has those pieces
 * that its parent had at the fork, and needs no others: it holds no record in them.
 */
#ifndef FLUE_SOCKETS_HOME_H
#define FLUE_SOCKETS_HOME_H

#include <netinet/in.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/fsm.h"
#include "base/robust.h"
#include "channel/lane.h"
#include "channel/meet.h"
#include "sockets/switch/ops.h"

#define HOME_NAME    "flue-home"
#define HOME_MAGIC   0x3145554c46534b53ull
#define HOME_VERSION 5
#define HOME_RECORDS 65536u
#define HOME_FIRST   256u /* records of the first piece */
#define HOME_PIECES  9
#define HOME_SEATS   64

enum why {
#define WHY(name, word, text) WHY_##name,
#include "sockets/record/why.def"
#undef WHY
	WHY_COUNT
};

/* clang-format off */
#define REC_STATES(X, p) \
	X(p, FREE) X(p, OPEN) X(p, YOUNG) X(p, POSTED) X(p, AGREED) X(p, ATTACH) X(p, LANE) X(p, PLAIN)
/* clang-format on */
/* What they mean, and how one leads to another: record_fsm.def. */
FSM_STATES(rec_state, REC_STATES, REC_);

enum rec_flag {
	REC_NONBLOCK = 1 << 0, /* O_NONBLOCK, as far as we saw */
	REC_EXECED = 1 << 1,   /* another program has inherited it */
	REC_SHUT_WR = 1 << 2,
	REC_SHUT_RD = 1 << 3,
	REC_NODELAY = 1
		      << 4, /* what the program asked for; with a lane the carrier always has it */
	REC_PEERGONE = 1 << 5, /* the carrier has told of the peer's end */
	REC_ASKED = 1 << 6,    /* explicitly asked for by family or protocol */
	REC_LISTEN = 1 << 7,
	REC_ELIGIBLE = 1 << 8, /* counted as such */
	REC_CORK = 1 << 9,
	REC_PINNED = 1 << 10,     /* sends on the carrier from now on */
	REC_TIMED = 1 << 11,      /* SO_RCVTIMEO is set */
	REC_UNANSWERED = 1 << 12, /* made the lane; the peer's HelloAck is still to be looked at */
	REC_NAMED = 1 << 13,      /* its addresses and cookie are known */
	REC_INQ = 1 << 14,        /* TCP_INQ is set */
};

/* Octets and calls since the connection began; relaxed, one writer at a time. */
struct rec_count {
	_Atomic uint64_t lane_bytes;
	_Atomic uint64_t tcp_bytes; /* on the carrier, since the connection became eligible */
	_Atomic uint64_t calls;
};

struct home;
struct keep;

struct rec {
	/* identity: for the tool and for finding the peer */
	_Alignas(128) _Atomic uint32_t state; /* enum rec_state */
	_Atomic uint32_t why;                 /* see why.h */
	struct home *home;                    /* where it stands, in the processes of the family */
	struct keep *keep;                    /* what calls of this process have to do with it */
	uint32_t number;                      /* at which place of the home it is */
	/* a fork counts these for each record: close together */
	_Atomic uint32_t refs;               /* descriptors, in all processes of the family */
	_Atomic uint32_t procs;              /* processes of the family that hold it */
	_Atomic uint32_t flags;              /* enum rec_flag */
	_Atomic uint8_t numbers[HOME_SEATS]; /* descriptors, by process; see family.h */
	_Atomic uint32_t armed;              /* sleepers that rely on LANE_WAITING ... */
	uint32_t armed_bell;                 /* ... and those of them that our bell wakes */
	struct meet_end end;                 /* of the connection, with its lane */
	/* towards eligibility */
	uint32_t exchanges; /* how often the direction has changed */
	uint32_t last;      /* 1: sent last, 2: received last */
	uint32_t peer_uid;  /* of a peer that did not come; see WHY_USER */
	uint64_t young_tx, young_rx;
	uint64_t check_at; /* octets or exchanges at which the offer is looked at again */
	uint32_t checks;
	uint64_t goal;  /* octets before the peer is looked for again; 0: for the first time */
	uint32_t paced; /* nanoseconds spent in waiting for the peer to take our offer */
	/* the lane */
	_Atomic uint32_t *rx_stir, *tx_stir; /* in the arena: ours, and the peer's */
	_Atomic uint32_t *rx_rung, *tx_rung;
	_Atomic uint32_t *tx_holds; /* the peer can ring us */
	int32_t bell_pid;           /* the process whose bell the peer has */
	uint32_t order_peer;        /* see order.h */
	int32_t lane_pid;           /* the process that went onto it */
	int32_t hint_pid;           /* ... and that of which the peer can borrow a descriptor */
	uint64_t looked_at;         /* when the carrier was last asked for the peer's end */
	_Atomic int32_t pending_error;
	struct ops_socket
		ops; /* which protocols may carry it, and which does; `user` is the record */
	_Alignas(128) struct robust_lock tx_lock;
	_Atomic uint32_t tx_refused; /* counts EAGAIN and short writes for a full ring */
	uint32_t tx_blocked;         /* the thread that sleeps in the kernel, which sends for it */
	uint32_t tx_before;          /* octets that need not count while the peer is not there */
	uint32_t absent;             /* nanoseconds spent in waiting for it */
	uint64_t trimmed;            /* when memory of the ring was last given back */
	uint32_t listed;             /* among those that have grown */
	uint64_t held_since;         /* when the receiver began to take octets back */
	uint32_t sndbuf;             /* as the program has set it; 0: not */
	uint64_t full_since;         /* when somebody first waited for room */
	uint64_t moved_at;           /* when the reader was last seen to have taken something */
	uint32_t moved_head;
	_Atomic uint32_t tx_told; /* said that it is writable: the next octet must go */
	struct lane_tx tx;
	struct rec_count sent;
	_Alignas(128) struct robust_lock rx_lock;
	_Atomic uint64_t rx_before; /* octets of the carrier sent before it was eligible */
	struct lane_rx rx;
	struct rec_count received;
	uint64_t asked_at;       /* when the carrier was last asked, in vain ... */
	uint32_t asked_clock;    /* ... and our clock then */
	uint32_t rx_stamp;       /* of the last octets, see order.h */
	uint32_t poll_stamp;     /* ... that poll() told of */
	uint32_t spin;           /* what the next wait for octets may spin, in nanoseconds */
	uint32_t nap;            /* see nap_pays() */
	_Atomic uint32_t asleep; /* of those in `armed`: in calls that only the carrier ends */
};

struct home {
	uint64_t magic;
	uint32_t version;
	uint32_t record_size;
	int32_t pid;
	uint32_t records; /* capacity */
	char program[32];
	_Atomic uint32_t high; /* records ever used */
	_Atomic uint32_t used; /* now */
	/* totals of connections that are gone */
	_Atomic uint64_t connections, eligible, lanes, stepdowns;
	_Atomic uint64_t lane_tx, lane_rx, tcp_tx, tcp_rx;
	struct robust_lock seats_lock;
	struct {
		_Atomic int32_t pid; /* 0: free; below 0: of the parent of a child being forked */
		_Atomic uint32_t numbers; /* descriptors in all */
		_Atomic uint64_t space;   /* in which the number means something */
	} seat[HOME_SEATS];
	char rules[256];                 /* the file of rules, or "" */
	_Atomic uint32_t told;           /* the process has told its totals itself */
	_Alignas(4096) struct rec rec[]; /* in the file; see family_rec() */
};

_Static_assert(HOME_FIRST << (HOME_PIECES - 1) == HOME_RECORDS, "the pieces are all of it");
_Static_assert(HOME_FIRST * sizeof(struct rec) % 4096 == 0, "pieces are whole pages");

#endif
