/* SPDX-License-Identifier: MIT */
/* Epoll sets as such: their memory, their members, and which of those are looked at. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/robust.h"
#include "base/util.h"
#include "channel/bell.h"
#include "sockets/sleep/epoll_priv.h"
#include "sockets/record/process.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

#define SLABS        256
#define SLAB         64 /* sets */
#define CAPACITY     16u
#define CAPACITY_MAX (1u << 20)
/* Sets that were larger give their memory back. */
#define CAPACITY_KEPT 256u

static _Atomic(struct epoll_set *) slabs[SLABS];
static struct epoll_set *free_sets;
static struct robust_lock pool; /* before any set's lock */

static void *take_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* --- memory */

static size_t block_size(uint32_t capacity)
{
	return capacity * (sizeof(struct member) + 2 * sizeof(struct watch) + 2 * sizeof(uint32_t));
}

/* All lists in one piece. */
static void lay_out(struct epoll_set *s, void *block, uint32_t capacity)
{
	s->member = block;
	s->hot = (struct watch *)(s->member + capacity);
	s->cold = s->hot + capacity;
	s->by_fd = (uint32_t *)(s->cold + capacity);
	s->by_data = s->by_fd + capacity;
	s->capacity = capacity;
}

static uint32_t *fd_slot(struct epoll_set *s, int fd)
{
	return &s->by_fd[(unsigned)fd % s->capacity];
}

static uint32_t *data_slot(struct epoll_set *s, uint64_t data)
{
	return &s->by_data[(data ^ data >> 12 ^ data >> 28) % s->capacity];
}

static void chain(struct epoll_set *s, struct member *m)
{
	uint32_t n = (uint32_t)(m - s->member) + 1;
	uint32_t *slot = fd_slot(s, m->fd);

	m->next_fd = *slot;
	*slot = n;
	slot = data_slot(s, m->kernel.data.u64);
	m->next_data = *slot;
	*slot = n;
}

static void unchain(uint32_t *slot, struct epoll_set *s, const struct member *m, bool fd)
{
	uint32_t n = (uint32_t)(m - s->member) + 1;

	while (*slot != n) {
		struct member *other = &s->member[*slot - 1];

		slot = fd ? &other->next_fd : &other->next_data;
	}
	*slot = fd ? m->next_fd : m->next_data;
}

static bool grow(struct epoll_set *s)
{
	struct epoll_set old = *s;
	uint32_t capacity = s->capacity ? 2 * s->capacity : CAPACITY;
	void *block = capacity <= CAPACITY_MAX ? take_memory(block_size(capacity)) : NULL;

	if (!block)
		return false;
	lay_out(s, block, capacity);
	if (!old.member)
		return true;
	memcpy(s->member, old.member, old.used * sizeof(*s->member));
	memcpy(s->hot, old.hot, old.hots * sizeof(*s->hot));
	memcpy(s->cold, old.cold, old.colds * sizeof(*s->cold));
	for (uint32_t i = 0; i < s->used; i++)
		if (s->member[i].fd >= 0)
			chain(s, &s->member[i]);
	munmap(old.member, block_size(old.capacity));
	return true;
}

static bool add_slab(void)
{
	for (size_t i = 0; i < SLABS; i++) {
		struct epoll_set *slab;

		if (atomic_load(&slabs[i]))
			continue;
		slab = take_memory(SLAB * sizeof(*slab));
		if (!slab)
			return false;
		for (size_t n = 0; n < SLAB; n++) {
			slab[n].next_free = free_sets;
			free_sets = &slab[n];
		}
		atomic_store(&slabs[i], slab);
		return true;
	}
	return false;
}

struct epoll_set *epoll_set_new(void)
{
	struct epoll_set *s = NULL;

	if (!robust_take(&pool))
		return NULL;
	if (free_sets || add_slab()) {
		s = free_sets;
		free_sets = s->next_free;
	}
	robust_give(&pool);
	if (s && !s->member && !grow(s)) {
		epoll_set_free(s);
		return NULL;
	}
	return s;
}

/* Everything but the memory and the lock, which somebody may be waiting for. */
static void wipe(struct epoll_set *s)
{
	struct epoll_set was = *s;

	if (was.capacity > CAPACITY_KEPT) {
		munmap(was.member, block_size(was.capacity));
		was.capacity = 0;
		was.member = NULL;
	} else if (was.member) {
		memset(was.by_fd, 0, was.capacity * sizeof(*was.by_fd));
		memset(was.by_data, 0, was.capacity * sizeof(*was.by_data));
	}
	/* In words: somebody may still look. */
	for (size_t i = offsetof(struct epoll_set, next_free); i < sizeof(*s);
	     i += sizeof(uint32_t))
		__atomic_store_n((uint32_t *)((char *)s + i), 0, __ATOMIC_RELAXED);
	if (was.member)
		lay_out(s, was.member, was.capacity);
}

void epoll_set_free(struct epoll_set *s)
{
	wipe(s);
	if (!robust_take(&pool))
		return;
	s->next_free = free_sets;
	free_sets = s;
	robust_give(&pool);
}

bool epoll_set_take(struct epoll_set *s)
{
	if (!atomic_load(&s->live) || !robust_take(&s->lock))
		return false;
	if (atomic_load(&s->live))
		return true;
	robust_give(&s->lock);
	return false;
}

void epoll_set_each(void (*call)(struct epoll_set *s))
{
	for (size_t i = 0; i < SLABS; i++) {
		struct epoll_set *slab = atomic_load(&slabs[i]);

		if (!slab)
			return;
		for (size_t n = 0; n < SLAB; n++)
			call(&slab[n]);
	}
}

/* --- fork */

static bool pool_taken;

static void lock_one(struct epoll_set *s)
{
	if (epoll_set_take(s))
		s->users += 1u << 31; /* ours to give back */
}

static void unlock_one(struct epoll_set *s)
{
	if (!(s->users >> 31))
		return;
	s->users &= ~(1u << 31);
	robust_give(&s->lock);
}

static void unlock_child(struct epoll_set *s)
{
	atomic_store(&s->lock.word, 0);
	s->users = 0; /* those threads are the parent's */
	atomic_store(&s->sleepers, 0);
}

void epoll_set_lock_all(void)
{
	pool_taken = robust_take(&pool);
	epoll_set_each(lock_one);
}

void epoll_set_unlock_all(bool child)
{
	epoll_set_each(child ? unlock_child : unlock_one);
	if (child)
		atomic_store(&pool.word, 0);
	else if (pool_taken)
		robust_give(&pool);
}

/* --- members */

struct member *epoll_find(struct epoll_set *s, int fd)
{
	uint32_t n = fd >= 0 && s->capacity ? *fd_slot(s, fd) : 0;

	while (n && s->member[n - 1].fd != fd)
		n = s->member[n - 1].next_fd;
	return n ? &s->member[n - 1] : NULL;
}

static struct member *first_by_data(struct epoll_set *s, uint32_t n, uint64_t data)
{
	while (n && s->member[n - 1].kernel.data.u64 != data)
		n = s->member[n - 1].next_data;
	return n ? &s->member[n - 1] : NULL;
}

struct member *epoll_by_data(struct epoll_set *s, uint64_t data)
{
	return s->capacity ? first_by_data(s, *data_slot(s, data), data) : NULL;
}

struct member *epoll_next_by_data(struct epoll_set *s, const struct member *m)
{
	return first_by_data(s, m->next_data, m->kernel.data.u64);
}

bool epoll_is_ambiguous(struct epoll_set *s, const struct member *m)
{
	struct member *first = epoll_by_data(s, m->kernel.data.u64);

	return first != m || epoll_next_by_data(s, first);
}

struct member *epoll_add(struct epoll_set *s, int fd, struct rec *r,
			 const struct epoll_event *event)
{
	struct member *m;
	uint32_t n;

	if (!s->free && s->used == s->capacity && !grow(s))
		return NULL;
	if (r && !sock_keep(r, fd))
		return NULL;
	if (s->free) {
		n = s->free - 1;
		s->free = s->member[n].next_fd;
	} else {
		n = s->used;
		LANE_STORE(s->used, n + 1);
	}
	m = &s->member[n];
	*m = (struct member) { .rec = r, .fd = fd, .wish = *event, .kernel = *event };
	chain(s, m);
	if (r) {
		struct keep *k = sock_keeping(r);

		atomic_store(&k->set, atomic_fetch_add(&k->sets, 1) == 0 ? s : NULL);
		s->tcp++;
	}
	return m;
}

void epoll_told_kernel(struct epoll_set *s, struct member *m, const struct epoll_event *event)
{
	uint32_t *slot;

	if (m->kernel.data.u64 != event->data.u64) {
		unchain(data_slot(s, m->kernel.data.u64), s, m, false);
		slot = data_slot(s, event->data.u64);
		m->next_data = *slot;
		*slot = (uint32_t)(m - s->member) + 1;
	}
	m->kernel = *event;
	epoll_set_dirty(s, m, false);
}

void epoll_set_dirty(struct epoll_set *s, struct member *m, bool dirty)
{
	s->dirty += (uint32_t)dirty - (uint32_t)m->dirty;
	m->dirty = dirty;
}

void epoll_rearm(struct epoll_set *s, struct member *m)
{
	m->rearm = true;
	epoll_set_dirty(s, m, true);
}

/* --- hot and cold */

static void list_add(struct watch *list, uint32_t *n, struct epoll_set *s, struct member *m)
{
	m->at = *n;
	list[(*n)++] = (struct watch) { .stir = m->rec->rx_stir,
					.rung = m->rec->rx_rung,
					.member = (uint32_t)(m - s->member),
					.seen = atomic_load(m->rec->rx_stir),
					.always = true };
}

static void list_remove(struct watch *list, uint32_t *n, struct epoll_set *s, struct member *m)
{
	list[m->at] = list[--*n];
	s->member[list[m->at].member].at = m->at;
}

static void unarm(struct epoll_set *s, struct member *m)
{
	if (m->cold) {
		m->cold = false;
		list_remove(s->cold, &s->colds, s, m);
	}
	waiter_disarm(m->rec, &m->by);
	if (m->full) {
		m->full = false;
		s->fulls--;
		epoll_set_dirty(s, m, true);
	}
}

void epoll_heat(struct epoll_set *s, struct member *m)
{
	unarm(s, m);
	if (!m->hot) {
		m->hot = true;
		list_add(s->hot, &s->hots, s, m);
	}
	s->hot[m->at].always = true;
}

void epoll_cool(struct epoll_set *s, struct member *m)
{
	if (!m->hot)
		return;
	m->hot = false;
	list_remove(s->hot, &s->hots, s, m);
}

void epoll_put_down(struct epoll_set *s, struct member *m)
{
	unarm(s, m);
	epoll_cool(s, m);
}

/* What is told from now on is seen by the arming that follows, or stirs. */
static void make_cold(struct epoll_set *s, struct member *m)
{
	if (m->cold)
		return;
	epoll_cool(s, m);
	m->cold = true;
	list_add(s->cold, &s->colds, s, m);
}

bool epoll_await_room(struct epoll_set *s, struct member *m)
{
	make_cold(s, m);
	s->fulls += !m->full;
	m->full = true;
	epoll_set_dirty(s, m, true);
	if (stream_ask_room(m->rec))
		return true;
	epoll_heat(s, m);
	return false;
}

bool epoll_arm(struct epoll_set *s, struct member *m, const uint64_t *told)
{
	make_cold(s, m);
	if (m->by ||
	    waiter_arm(m->rec, &m->by, epoll_is_belled(s, m) ? WAITER_BELL : WAITER_SET, told))
		return true;
	epoll_heat(s, m);
	return false;
}

void epoll_answer(struct epoll_set *s)
{
	s->rang = false;
	for (uint32_t i = 0; i < s->colds; i++)
		if (atomic_load_explicit(s->cold[i].rung, memory_order_relaxed))
			atomic_store_explicit(s->cold[i].rung, 0, memory_order_relaxed);
	/* Their stirring and then our being rung; our not being rung and then their stirring: one sees the other's. */
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = s->colds; i-- > 0;)
		if (atomic_load_explicit(s->cold[i].stir, memory_order_acquire) != s->cold[i].seen)
			epoll_heat(s, &s->member[s->cold[i].member]);
}

void epoll_drop(struct epoll_set *s, struct member *m)
{
	struct rec *r = m->rec;

	if (r) {
		epoll_put_down(s, m);
		epoll_set_dirty(s, m, false);
		s->tcp--;
	}
	unchain(fd_slot(s, m->fd), s, m, true);
	unchain(data_slot(s, m->kernel.data.u64), s, m, false);
	m->fd = -1;
	m->rec = NULL;
	m->next_fd = s->free;
	s->free = (uint32_t)(m - s->member) + 1;
	if (!r)
		return;
	atomic_fetch_sub(&sock_keeping(r)->sets, 1);
	sock_release(r);
}
