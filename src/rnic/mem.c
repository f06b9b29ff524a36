/* SPDX-License-Identifier: MIT */
#include "rnic/mem.h"

#include <errno.h>
#include <sched.h>

#include "rnic/shown.h"

int mem_table_init(struct mem_table *t, uint32_t max)
{
	t->shown = NULL;
	pthread_mutex_init(&t->change, NULL);
	return slot_init(&t->slots, sizeof(struct mem), max);
}

void mem_table_fini(struct mem_table *t)
{
	shown_free(t->shown);
	slot_fini(&t->slots);
	pthread_mutex_destroy(&t->change);
}

static struct mem *lookup(struct mem_table *t, uint32_t stag)
{
	return slot_at(&t->slots, slot_index(&t->slots, stag >> 8));
}

/* The last octet must have a number; the first one past it need not. */
static bool wraps(uint64_t start, uint64_t length)
{
	return length && start + (length - 1) < start;
}

static enum mem_verdict check(const struct mem *m, const struct rnic_pd *pd, uint32_t qpn,
			      uint32_t access, uint64_t to, uint64_t length)
{
	if (m->pd != pd || (m->qpn && m->qpn != qpn))
		return MEM_BAD_STREAM;
	if ((m->access & access) != access)
		return MEM_BAD_ACCESS;
	if (wraps(to, length))
		return MEM_BAD_WRAP;
	if (to < m->to || length > m->length || to - m->to > m->length - length)
		return MEM_BAD_BOUNDS;
	return MEM_OK;
}

enum mem_verdict mem_get(struct mem_table *t, struct mem_cache *cache, uint32_t stag,
			 const struct rnic_pd *pd, uint32_t qpn, uint32_t access, uint64_t to,
			 uint64_t length, char **ptr, struct mem **ref)
{
	struct mem *m = cache->stag == stag ? cache->entry : lookup(t, stag);
	enum mem_verdict v;

	if (!m || stag == 0)
		return MEM_BAD_STAG;
	/* Sequentially consistent on both sides: either we see live == 0, or the writer sees us. */
	atomic_fetch_add(&m->users, 1);
	if (atomic_load(&m->live) != stag) {
		mem_put(m);
		return MEM_BAD_STAG;
	}
	v = check(m, pd, qpn, access, to, length);
	if (v != MEM_OK) {
		mem_put(m);
		return v;
	}
	cache->stag = stag;
	cache->entry = m;
	*ptr = m->base + (to - m->to);
	*ref = m;
	return MEM_OK;
}

void mem_put(struct mem *m)
{
	atomic_fetch_sub(&m->users, 1);
}

/* Stops new readers and waits for the present ones, in this process and in others. */
static void quiesce(struct mem_table *t, struct mem *m)
{
	atomic_store(&m->live, 0);
	while (atomic_load(&m->users) != 0)
		sched_yield();
	shown_take(t->shown, m, m->stag);
}

/* It is as it shall be, and may be used from now on. */
static void enliven(struct mem_table *t, struct mem *m)
{
	shown_put(t->shown, m, m->stag);
	atomic_store(&m->live, m->stag);
}

struct shown *mem_show(struct mem_table *t)
{
	pthread_mutex_lock(&t->change);
	if (!t->shown && shown_make(&t->slots, &t->shown) == 0) {
		for (uint32_t i = 0; i < SHOWN_REGIONS; i++) {
			const struct mem *m = slot_at(&t->slots, i);

			if (!m)
				break;
			if (atomic_load(&m->live))
				shown_put(t->shown, m, m->stag);
		}
	}
	pthread_mutex_unlock(&t->change);
	return t->shown;
}

void mem_fork_child(struct mem_table *t)
{
	if (t->shown)
		shown_forked(t->shown);
	t->shown = NULL;
}

static void unbind(struct mem *m)
{
	if (m->region)
		atomic_fetch_sub(&m->region->bound, 1);
	m->region = NULL;
	m->qpn = 0;
}

/* The next key of an entry: never gives STag 0, which belongs to privileged local access. */
static void rekey(struct mem_table *t, struct mem *m, uint8_t key)
{
	m->stag = slot_name(&t->slots, m->index) << 8 | key;
	if (m->stag == 0)
		m->stag = 1;
}

static int take_entry(struct mem_table *t, enum mem_kind kind, struct rnic_pd *pd, struct mem **out)
{
	int index = slot_alloc(&t->slots);
	struct mem *m;

	if (index < 0)
		return index;
	m = slot_at(&t->slots, (uint32_t)index);
	m->index = (uint32_t)index;
	rekey(t, m, (uint8_t)(m->stag + 1));
	m->pd = pd;
	m->kind = (uint8_t)kind;
	*out = m;
	return 0;
}

static void become(struct mem_table *t, struct mem *m, const struct mem_attr *attr)
{
	m->base = attr->addr;
	m->to = attr->to;
	m->length = m->capacity = attr->length;
	m->access = attr->access;
	if (!attr->revoked)
		enliven(t, m);
}

int mem_register(struct mem_table *t, struct rnic_pd *pd, const struct mem_attr *attr,
		 struct mem **out)
{
	struct mem *m;
	int rc;

	pthread_mutex_lock(&t->change);
	rc = take_entry(t, MEM_REGION, pd, &m);
	if (rc == 0) {
		become(t, m, attr);
		*out = m;
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

int mem_window(struct mem_table *t, struct rnic_pd *pd, struct mem **out)
{
	int rc;

	pthread_mutex_lock(&t->change);
	rc = take_entry(t, MEM_WINDOW, pd, out);
	pthread_mutex_unlock(&t->change);
	return rc;
}

int mem_modify(struct mem_table *t, struct mem *m, struct rnic_pd *pd, const struct mem_attr *attr)
{
	int rc = 0;

	pthread_mutex_lock(&t->change);
	if (atomic_load(&m->bound)) {
		rc = -EBUSY;
	} else {
		quiesce(t, m);
		rekey(t, m, (uint8_t)(m->stag + 1));
		m->pd = pd;
		become(t, m, attr);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

int mem_destroy(struct mem_table *t, struct mem *m)
{
	int rc = 0;

	pthread_mutex_lock(&t->change);
	if (atomic_load(&m->bound)) {
		rc = -EBUSY;
	} else {
		quiesce(t, m);
		unbind(m);
		m->pd = NULL;
		m->shown = NULL;
		m->shown_key = NULL;
		m->kind = MEM_FREE;
		slot_free(&t->slots, m->index);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

enum mem_verdict mem_invalidate(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
				uint32_t qpn, bool remote)
{
	struct mem *m = lookup(t, stag);
	enum mem_verdict v = MEM_OK;

	pthread_mutex_lock(&t->change);
	if (!m || m->kind == MEM_FREE || m->stag != stag || stag == 0 ||
	    atomic_load(&m->live) != stag) {
		v = MEM_BAD_STAG;
	} else if (m->pd != pd || (m->qpn && m->qpn != qpn)) {
		v = MEM_BAD_STREAM;
	} else if (atomic_load(&m->bound) ||
		   (remote && m->kind == MEM_REGION && !(m->access & FLUE_REMOTE_INVALIDATE))) {
		v = MEM_BAD_ACCESS;
	} else {
		quiesce(t, m);
		if (m->kind == MEM_WINDOW)
			unbind(m);
	}
	pthread_mutex_unlock(&t->change);
	return v;
}

/* Rights to change memory: its owner must have one as well. */
#define CHANGES (FLUE_REMOTE_WRITE | FLUE_REMOTE_ATOMIC)

/* Rights that a fast register or bind may give. */
static bool good_access(uint32_t access, bool window)
{
	uint32_t known = FLUE_REMOTE_WRITE | FLUE_REMOTE_READ | FLUE_REMOTE_ATOMIC |
			 FLUE_ZERO_BASED;

	if (!window)
		known |= FLUE_LOCAL_WRITE | FLUE_REMOTE_INVALIDATE | FLUE_BIND_WINDOW | FLUE_IOVA;
	return !(access & ~known) && (window || !(access & CHANGES) || access & FLUE_LOCAL_WRITE);
}

/* For the program, which may look when it has the completion, or use the new key when it knows it:
 * the key comes last. */
static void show(const struct mem *m)
{
	struct flue_mr *mr = m->shown;

	if (m->shown_key)
		__atomic_store_n(m->shown_key, m->stag, __ATOMIC_RELEASE);
	if (!mr)
		return;
	mr->addr = m->base;
	mr->length = (size_t)m->length;
	mr->remote_start = m->to;
	mr->remote_end = m->to + m->length;
	mr->access = m->access;
	__atomic_store_n(&mr->lkey, m->stag, __ATOMIC_RELEASE);
	__atomic_store_n(&mr->rkey, m->stag, __ATOMIC_RELEASE);
}

/* Where the region begins for those who name its bytes. */
static uint64_t first_offset(const struct flue_reg *reg)
{
	if (reg->access & FLUE_IOVA)
		return reg->iova;
	return reg->access & FLUE_ZERO_BASED ? 0 : reg->addr;
}

/* Its last byte must be somewhere and must have a name; and it has one beginning. */
static bool good_range(const struct flue_reg *reg)
{
	return reg->length && !wraps(reg->addr, reg->length) &&
	       !wraps(first_offset(reg), reg->length) &&
	       (reg->access & (FLUE_IOVA | FLUE_ZERO_BASED)) != (FLUE_IOVA | FLUE_ZERO_BASED);
}

int mem_fast_register(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
		      const struct flue_reg *reg)
{
	struct mem *m = lookup(t, stag);
	int rc = 0;

	pthread_mutex_lock(&t->change);
	if (!m || m->kind != MEM_REGION || m->stag >> 8 != stag >> 8 || m->pd != pd ||
	    atomic_load(&m->live) || !good_range(reg) || reg->length > m->capacity ||
	    !good_access(reg->access, false)) {
		rc = -EINVAL;
	} else {
		/* users may be above 0 for a moment from readers that will see live == 0 */
		quiesce(t, m);
		rekey(t, m, reg->key);
		m->base = (char *)(uintptr_t)reg->addr;
		m->to = first_offset(reg);
		m->length = reg->length;
		m->access = reg->access;
		show(m);
		enliven(t, m);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

int mem_bind(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd, uint32_t qpn,
	     const struct flue_reg *reg)
{
	struct mem *w = lookup(t, stag), *m = lookup(t, reg->lkey);
	uint32_t need = FLUE_BIND_WINDOW;
	int rc = 0;

	if (reg->access & CHANGES)
		need |= FLUE_LOCAL_WRITE;
	pthread_mutex_lock(&t->change);
	if (!w || w->kind != MEM_WINDOW || w->stag >> 8 != stag >> 8 || w->pd != pd || !m ||
	    m->kind != MEM_REGION || m->stag != reg->lkey || !atomic_load(&m->live) ||
	    reg->length == 0 || !good_access(reg->access, true) ||
	    check(m, pd, qpn, need, reg->addr, reg->length) != MEM_OK) {
		rc = -EINVAL;
	} else {
		quiesce(t, w);
		unbind(w);
		rekey(t, w, reg->key);
		w->base = m->base + (reg->addr - m->to);
		w->to = reg->access & FLUE_ZERO_BASED ? 0 : reg->addr;
		w->length = reg->length;
		w->access = reg->access | FLUE_REMOTE_INVALIDATE;
		w->region = m;
		w->qpn = qpn;
		atomic_fetch_add(&m->bound, 1);
		show(w);
		enliven(t, w);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}
