/* SPDX-License-Identifier: MIT */
/*
 * What an adapter shows to its peers on this host, so that they can do one-sided work by themselves (view.h): its regions, and those
 * of its queue pairs that are connected through memory. It stands in a file of its own that peers can map and only read.
 *
 * Claims. Each duct has a word in which the peer's engine says what it is about to touch: a key and a gate, which is a queue pair's
 * entry here. Whoever revokes a key, or shuts a gate, does that first and then waits until no word names it:
 *
 *   peer   word = key, gate ; is the key live, the gate open? ; check, move bytes ; word = 0
 *   we     live = 0 ; wait until no word has the key ; change or give back the entry
 *
 * Both sides are sequentially consistent, as within a process (mem.h). The claim of a process that is gone is void; one that was
 * stopped in the middle of a step holds up who waits, until it goes on.
 *
 * A peer that lies in its word could have written to our memory anyway, or else it could not reach us: see view.h. It is not waited for
 * for ever, and that ends its duct.
 */
#ifndef FLUE_RNIC_SHOWN_H
#define FLUE_RNIC_SHOWN_H

#include <bsd/sys/queue.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/slot.h"

#define SHOWN_MAGIC   0x666c756573686f31ull
#define SHOWN_REGIONS 32768u /* those of higher index are not shown */
#define SHOWN_GATES   32768u

struct duct;
struct mem;

struct shown_region {
	_Alignas(64) _Atomic uint32_t live; /* the STag while access is allowed, else 0 */
	/* The rest changes only while live is 0 and nobody claims it. */
	uint32_t qpn, access, zero;
	uint64_t pd, base, to, length;
};

struct shown_gate {
	_Alignas(32) _Atomic uint64_t open; /* SHOWN_OPEN and the circuit's number, else 0 */
	uint64_t pd;
	uint32_t qpn, deny;
};

#define SHOWN_OPEN (1ull << 32)

struct shown_file {
	uint64_t magic;
	uint64_t guard; /* where our page is ... */
	uint64_t token; /* ... and what stands there: by that a peer knows whom it reaches */
	uint32_t key[4];
	_Alignas(4096) struct shown_region region[SHOWN_REGIONS];
	struct shown_gate gate[SHOWN_GATES];
};

/* A page that only this life of this process has, at a place that nobody can guess. */
struct guard_page {
	uint64_t token;
	uint64_t scribble; /* peers write here, before they write elsewhere */
};

/* A peer that may claim. */
struct claimant {
	struct duct *duct; /* has the word */
	pid_t pid;
	uint64_t token;
	_Atomic uint64_t guard; /* the peer's, as it shows them; 0: not known yet */
	_Atomic uint32_t refs;
	atomic_bool liar;
	LIST_ENTRY(claimant) all;
};

struct shown {
	struct shown_file *file;
	struct guard_page *guard;
	int fd;
	dev_t dev;
	ino_t ino;
	pthread_mutex_t lock; /* leaf: gates and claimants */
	uint32_t next_gate, n_gates;
	LIST_HEAD(, claimant) claimants;
	_Atomic uint32_t n_claimants;
};

/* -errno. */
int shown_make(const struct slot_table *names, struct shown **out);
void shown_free(struct shown *s);
/* In the child of a fork: nothing of it is there. */
void shown_forked(struct shown *s);
/* Its file, or -1: the program has closed it. */
int shown_fd(const struct shown *s);

/* Under the table's change lock. A region or window is as it will be, and not live yet. */
void shown_put(struct shown *s, const struct mem *m, uint32_t stag);
/* Not live any more, and nobody uses it. */
void shown_take(struct shown *s, const struct mem *m, uint32_t stag);

/* ---- under the engine's lock ---- */

/* 0: there is none. */
uint32_t shown_open_gate(struct shown *s, uint32_t circuit, const void *pd, uint32_t qpn,
			 uint32_t deny);
/* Nobody comes through it any more. It may be opened again with other rights, or given back. */
void shown_shut_gate(struct shown *s, uint32_t gate);
void shown_reopen_gate(struct shown *s, uint32_t gate, uint32_t circuit, uint32_t deny);
void shown_give_gate(struct shown *s, uint32_t gate);

/* The peer of a duct. NULL: no memory. */
struct claimant *shown_add_claimant(struct shown *s, struct duct *d, pid_t pid);
/* Closes the duct, when nobody looks at it any more. */
void shown_remove_claimant(struct shown *s, struct claimant *c);

#endif
