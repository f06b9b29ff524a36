/* SPDX-License-Identifier: MIT */
/*
 * A growing table of fixed-size entries that never move and are never given back before the
 * table dies, so that a reader may look at any entry without a lock and decide afterwards
 * whether it was the right one. Entries are zeroed when first made; what is in them between
 * slot_free() and the next slot_alloc() is the user's business (generation counters live there).
 *
 * Numbers shown to a peer must be hard to guess and sparse (RFC 5040 section 8.1.1), so a slot's
 * dense index is turned into a 24-bit name by a keyed permutation.
 */
#ifndef FLUE_BASE_SLOT_H
#define FLUE_BASE_SLOT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define SLOT_CHUNK  256
#define SLOT_CHUNKS 4096 /* up to 2^20 entries */
#define SLOT_NAMES  (1u << 24)

struct slot_table {
	pthread_mutex_t lock; /* leaf: alloc and free */
	size_t entry_size;
	uint32_t max; /* largest number of entries */
	uint32_t made, used;
	uint32_t key[4];
	uint32_t *free_list; /* stack of indices; capacity follows `made` */
	uint32_t n_free;
	_Atomic(void *) chunks[SLOT_CHUNKS];
};

/* -ENOMEM. max is capped to the table's capacity. */
int slot_init(struct slot_table *t, size_t entry_size, uint32_t max);
void slot_fini(struct slot_table *t);

/* Index of a free entry, -ENOMEM, or -ENOSPC when the table is full. */
int slot_alloc(struct slot_table *t);
void slot_free(struct slot_table *t, uint32_t index);

/* Entry by index; NULL when it was never made. Any thread, no lock. */
void *slot_at(struct slot_table *t, uint32_t index);

/* 24-bit name of an index and back. slot_index() may give an index that was never made. */
uint32_t slot_name(const struct slot_table *t, uint32_t index);
uint32_t slot_index(const struct slot_table *t, uint32_t name);
/* The same for a table of another process, by its key. */
uint32_t slot_index_of(const uint32_t key[4], uint32_t name);

#endif
