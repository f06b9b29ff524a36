/* SPDX-License-Identifier: MIT */
/*
 * Tagged memory: regions and windows behind STags.
 *
 * An STag is a 24-bit name of a table entry and an 8-bit key that changes with every use of the
 * entry, so a stale STag is recognised. Entries are embedded in a slot table and never freed
 * while the adapter lives; that makes look-up possible without a lock:
 *
 *   reader  users++ ; is live == stag? ; check, move bytes ; users--
 *   writer  live = 0 ; wait until users == 0 ; change or give back the entry
 *
 * A reader moves a bounded number of bytes without blocking between ++ and --, so the writer's
 * wait is short, and when mem_revoke() returns no byte can move through the old STag any more.
 */
#ifndef FLUE_RNIC_MEM_H
#define FLUE_RNIC_MEM_H

#include <bsd/sys/queue.h>
#include <flue/adapter.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/slot.h"

struct rnic_pd;
struct shown;

enum mem_kind { MEM_FREE = 0, MEM_REGION, MEM_WINDOW };

/* A right beside those of programs, which regions have and windows have not: to be named in our own requests. */
#define MEM_LOCAL (1u << 31)

struct mem {
	_Atomic uint32_t live;  /* the STag while access is allowed, else 0 */
	_Atomic uint32_t users; /* readers between look-up and release */
	_Atomic uint32_t bound; /* region: windows bound to it */
	/* The rest changes only while live == 0 and users == 0, under the table's change lock. */
	uint32_t index;
	uint32_t stag; /* with the current key; also while revoked */
	uint8_t kind;
	uint8_t type;    /* window: enum flue_mw_type */
	uint8_t promise; /* window of type 1: the last octet of the key that was given out last */
	struct rnic_pd *pd;
	struct mem *region; /* window: what it is bound to */
	uint32_t qpn;       /* window of type 2: number of the queue pair it is bound through */
	char *base;         /* local address of the first byte */
	uint64_t to;        /* tagged offset of the first byte */
	uint64_t length;
	uint32_t access;
	uint64_t capacity; /* region: length at registration, limit for fast register */
	/* What the program sees, and requests change (WN-1): a region, or a window's key. NULL: nobody
	 * looks. Written under the change lock, so never after mem_destroy(). */
	struct flue_mr *shown;
	uint32_t *shown_key;
	LIST_ENTRY(mem) of_qp; /* window of type 2 that is bound: in mem_table.of_qps */
};

struct mem_table {
	struct slot_table slots;
	pthread_mutex_t change; /* leaf: serialises revoke, validate, bind */
	struct shown *shown;    /* to peers on this host; NULL: none yet */
	/* Windows that are bound through queue pairs, and go with them. Few programs have any. */
	LIST_HEAD(, mem) of_qps;
	_Atomic uint32_t n_of_qps; /* changed under `change` */
};

int mem_table_init(struct mem_table *t, uint32_t max);
void mem_table_fini(struct mem_table *t);
/* In the child of a fork, with the lock. */
void mem_fork_child(struct mem_table *t);
/* Peers on this host shall see it (shown.h). NULL: it can not be. */
struct shown *mem_show(struct mem_table *t);

enum mem_verdict {
	MEM_OK = 0,
	MEM_BAD_STAG,   /* unknown, stale or revoked */
	MEM_BAD_STREAM, /* other PD, or a window of another queue pair */
	MEM_BAD_ACCESS,
	MEM_BAD_BOUNDS,
	MEM_BAD_WRAP, /* the last byte's offset wraps 64 bits */
};

/* Where an STag's entry was found last. Entries never move, and whether the STag is still good is
 * read from the entry itself, so this needs no invalidation. */
struct mem_cache {
	uint32_t stag;
	struct mem *entry;
};

/*
 * Look up `stag` for an access of `length` bytes at offset `to`. On MEM_OK *ptr is the local
 * address and *ref must be given to mem_put(). `access`: all of these rights are needed.
 */
enum mem_verdict mem_get(struct mem_table *t, struct mem_cache *cache, uint32_t stag,
			 const struct rnic_pd *pd, uint32_t qpn, uint32_t access, uint64_t to,
			 uint64_t length, char **ptr, struct mem **ref);
void mem_put(struct mem *m);

struct mem_attr {
	void *addr;
	uint64_t to; /* tagged offset of the first byte */
	uint64_t length;
	uint32_t access;
	bool revoked;
};

/* A new region in state valid or revoked, or an unbound window. -ENOMEM, -ENOSPC. */
int mem_register(struct mem_table *t, struct rnic_pd *pd, const struct mem_attr *attr,
		 struct mem **out);
int mem_window(struct mem_table *t, struct rnic_pd *pd, uint32_t type, struct mem **out);
/*
 * What `what` (FLUE_MR_*) names becomes as `attr` and `pd` say; attr->to counts with range and access. A region that is revoked
 * becomes valid with a new range, and else stays as it is; with attr->revoked it is revoked then. A new key, unless FLUE_MR_KEEP_KEYS. -EBUSY: windows are bound.
 */
int mem_modify(struct mem_table *t, struct mem *m, uint32_t what, struct rnic_pd *pd,
	       const struct mem_attr *attr);
/* Revokes and gives the entry back. -EBUSY: windows are bound. */
int mem_destroy(struct mem_table *t, struct mem *m);

/* Local or remote invalidate. The verdict names what is wrong; `remote` adds the rule that the
 * owner must have allowed it. */
enum mem_verdict mem_invalidate(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
				uint32_t qpn, bool remote);
/* Revoked region → valid. -EINVAL: not a revoked region of this PD, or larger than it was. */
int mem_fast_register(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
		      const struct flue_reg *reg);
/* Window of type 2 → part of a region. -EINVAL. A bound window is first unbound. */
int mem_bind(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd, uint32_t qpn,
	     const struct flue_reg *reg);
/* The same for a window of type 1, which then is for all queue pairs of its PD. Length 0: unbound. */
int mem_bind_shared(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
		    const struct flue_reg *reg);
/* The key that a window of type 1 will have with its next bind. */
uint32_t mem_promise_key(struct mem_table *t, struct mem *w);
/* Its queue pair is gone, and with it the windows that were bound through it. */
void mem_unbind_qp(struct mem_table *t, uint32_t qpn);

#endif
