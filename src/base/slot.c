/* SPDX-License-Identifier: MIT */
#include "base/slot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/lock.h"

int slot_init(struct slot_table *t, size_t entry_size, uint32_t max)
{
	memset(t, 0, sizeof(*t));
	t->entry_size = entry_size;
	t->max = max < SLOT_CHUNK * SLOT_CHUNKS ? max : SLOT_CHUNK * SLOT_CHUNKS;
	/* The key only makes names hard to guess; early in boot the clock has to do. */
	if (getrandom(t->key, sizeof(t->key), GRND_NONBLOCK) != (ssize_t)sizeof(t->key)) {
		uint64_t now = clock_now();

		t->key[0] = (uint32_t)now;
		t->key[1] = (uint32_t)(now >> 32) ^ (uint32_t)(uintptr_t)t;
		t->key[2] = t->key[0] * 2654435761u;
		t->key[3] = t->key[1] * 2246822519u;
	}
	pthread_mutex_init(&t->lock, NULL);
	return 0;
}

void slot_fini(struct slot_table *t)
{
	for (uint32_t i = 0; i < SLOT_CHUNKS; i++)
		free(atomic_load_explicit(&t->chunks[i], memory_order_relaxed));
	free(t->free_list);
	pthread_mutex_destroy(&t->lock);
}

/* Makes one more chunk and room in the free list for all its entries. */
static int grow(struct slot_table *t)
{
	uint32_t chunk = t->made / SLOT_CHUNK;
	uint32_t *list;
	void *mem;

	if (t->made >= t->max)
		return -ENOSPC;
	list = realloc(t->free_list, (t->made + SLOT_CHUNK) * sizeof(*list));
	if (!list)
		return -ENOMEM;
	t->free_list = list;
	mem = calloc(SLOT_CHUNK, t->entry_size);
	if (!mem)
		return -ENOMEM;
	atomic_store_explicit(&t->chunks[chunk], mem, memory_order_release);
	for (uint32_t i = SLOT_CHUNK; i-- > 0;)
		t->free_list[t->n_free++] = t->made + i;
	t->made += SLOT_CHUNK;
	return 0;
}

int slot_alloc(struct slot_table *t)
{
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	if (t->used >= t->max)
		rc = -ENOSPC;
	else if (t->n_free == 0)
		rc = grow(t);
	if (rc == 0) {
		t->used++;
		rc = (int)t->free_list[--t->n_free];
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

void slot_free(struct slot_table *t, uint32_t index)
{
	pthread_mutex_lock(&t->lock);
	t->used--;
	t->free_list[t->n_free++] = index;
	pthread_mutex_unlock(&t->lock);
}

void *slot_at(struct slot_table *t, uint32_t index)
{
	char *chunk;

	if (index >= SLOT_CHUNK * SLOT_CHUNKS)
		return NULL;
	chunk = atomic_load_explicit(&t->chunks[index / SLOT_CHUNK], memory_order_acquire);
	return chunk ? chunk + (index % SLOT_CHUNK) * t->entry_size : NULL;
}

/* A four-round Feistel network on two 12-bit halves: a bijection whatever the round function. */
static uint32_t round_fn(uint32_t half, uint32_t key)
{
	uint32_t x = (half + 1) * 0x9e3779b1u ^ key;

	x ^= x >> 15;
	x *= 0x85ebca77u;
	return (x ^ x >> 13) & 0xfff;
}

uint32_t slot_name(const struct slot_table *t, uint32_t index)
{
	uint32_t l = index >> 12 & 0xfff, r = index & 0xfff, tmp;

	for (int i = 0; i < 4; i++) {
		tmp = r;
		r = l ^ round_fn(r, t->key[i]);
		l = tmp;
	}
	return l << 12 | r;
}

uint32_t slot_index_of(const uint32_t key[4], uint32_t name)
{
	uint32_t l = name >> 12 & 0xfff, r = name & 0xfff, tmp;

	for (int i = 3; i >= 0; i--) {
		tmp = l;
		l = r ^ round_fn(l, key[i]);
		r = tmp;
	}
	return l << 12 | r;
}

uint32_t slot_index(const struct slot_table *t, uint32_t name)
{
	return slot_index_of(t->key, name);
}
