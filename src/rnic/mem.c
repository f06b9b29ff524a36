/* SPDX-License-Identifier: MIT */
#include "rnic/mem.h"

#include <errno.h>
#include <sched.h>

#include "rnic/shown.h"

int mem_table_init(struct mem_table *t, uint32_t max)
{
	t->shown = NULL;
	pthread_mutex_init(&t->change, NULL);
	LIST_INIT(&t->of_qps);
	atomic_init(&t->n_of_qps, 0);
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

static void unbind(struct mem_table *t, struct mem *m)
{
	if (m->region)
		atomic_fetch_sub(&m->region->bound, 1);
	if (m->qpn) {
		LIST_REMOVE(m, of_qp);
		atomic_fetch_sub(&t->n_of_qps, 1);
	}
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
	m->access = attr->access | MEM_LOCAL;
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

int mem_window(struct mem_table *t, struct rnic_pd *pd, uint32_t type, struct mem **out)
{
	int rc;

	pthread_mutex_lock(&t->change);
	rc = take_entry(t, MEM_WINDOW, pd, out);
	if (rc == 0) {
		(*out)->type = (uint8_t)type;
		(*out)->promise = (uint8_t)(*out)->stag;
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

/* The region as it will be: parts that are not named stay. */
static struct mem_attr composed(const struct mem *m, uint32_t what, const struct mem_attr *attr)
{
	struct mem_attr next = { m->base, m->to, m->length, m->access, attr->revoked };

	if (!(what & FLUE_MR_RANGE) && !atomic_load(&m->live))
		next.revoked = true;
	if (what & FLUE_MR_RANGE) {
		next.addr = attr->addr;
		next.length = attr->length;
	}
	if (what & FLUE_MR_ACCESS)
		next.access = attr->access;
	if (what & (FLUE_MR_RANGE | FLUE_MR_ACCESS))
		next.to = attr->to;
	return next;
}

int mem_modify(struct mem_table *t, struct mem *m, uint32_t what, struct rnic_pd *pd,
	       const struct mem_attr *attr)
{
	struct mem_attr next;
	uint64_t capacity;
	int rc = 0;

	pthread_mutex_lock(&t->change);
	if (atomic_load(&m->bound)) {
		rc = -EBUSY;
	} else {
		next = composed(m, what, attr);
		capacity = what & FLUE_MR_RANGE ? attr->length : m->capacity;
		quiesce(t, m);
		if (!(what & FLUE_MR_KEEP_KEYS))
			rekey(t, m, (uint8_t)(m->stag + 1));
		if (what & FLUE_MR_PD)
			m->pd = pd;
		become(t, m, &next);
		m->capacity = capacity; /* a fast register may have made it shorter */
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
		unbind(t, m);
		m->pd = NULL;
		m->shown = NULL;
		m->shown_key = NULL;
		m->kind = MEM_FREE;
		slot_free(&t->slots, m->index);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

/* May this be revoked by a request? What others are bound to may not, nor what serves many queue pairs unless its owner allowed
 * that. */
static bool may_invalidate(const struct mem *m, bool remote)
{
	if (m->kind == MEM_WINDOW)
		return m->type != FLUE_MW_1;
	return !atomic_load(&m->bound) && (!remote || m->access & FLUE_REMOTE_INVALIDATE);
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
	} else if (!may_invalidate(m, remote)) {
		v = MEM_BAD_ACCESS;
	} else {
		quiesce(t, m);
		if (m->kind == MEM_WINDOW)
			unbind(t, m);
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
	mr->access = m->access & ~MEM_LOCAL;
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
		m->access = reg->access | MEM_LOCAL;
		show(m);
		enliven(t, m);
	}
	pthread_mutex_unlock(&t->change);
	return rc;
}

/* Rights that the region must have for a window with these. */
static uint32_t needed(uint32_t access)
{
	return FLUE_BIND_WINDOW | (access & CHANGES ? (uint32_t)FLUE_LOCAL_WRITE : 0);
}

/* Under the change lock: the region that a bind names, or NULL: it can not be. */
static struct mem *bindable(struct mem_table *t, const struct mem *w, const struct flue_reg *reg)
{
	struct mem *m = lookup(t, reg->lkey);

	if (!m || m->kind != MEM_REGION || m->stag != reg->lkey || !atomic_load(&m->live) ||
	    reg->length == 0 || !good_access(reg->access, true) ||
	    check(m, w->pd, 0, needed(reg->access), reg->addr, reg->length) != MEM_OK)
		return NULL;
	return m;
}

/* The same: is it a window of this PD, and of the right kind? */
static bool is_window(const struct mem *w, uint32_t stag, const struct rnic_pd *pd, bool shared)
{
	return w && w->kind == MEM_WINDOW && w->stag >> 8 == stag >> 8 && w->pd == pd &&
	       (w->type == FLUE_MW_1) == shared;
}

/* The same: `w`, which nobody uses, opens a part of `m`. qpn 0: for all queue pairs. */
static void open_window(struct mem_table *t, struct mem *w, struct mem *m, uint32_t qpn,
			const struct flue_reg *reg)
{
	w->base = m->base + (reg->addr - m->to);
	w->to = reg->access & FLUE_ZERO_BASED ? 0 : reg->addr;
	w->length = reg->length;
	w->access = reg->access;
	w->region = m;
	w->qpn = qpn;
	atomic_fetch_add(&m->bound, 1);
	if (qpn) {
		LIST_INSERT_HEAD(&t->of_qps, w, of_qp);
		atomic_fetch_add(&t->n_of_qps, 1);
	}
	show(w);
	enliven(t, w);
}

int mem_bind(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd, uint32_t qpn,
	     const struct flue_reg *reg)
{
	struct mem *w = lookup(t, stag), *m = NULL;

	pthread_mutex_lock(&t->change);
	if (is_window(w, stag, pd, false))
		m = bindable(t, w, reg);
	if (m) {
		quiesce(t, w);
		unbind(t, w);
		rekey(t, w, reg->key);
		open_window(t, w, m, qpn, reg);
	}
	pthread_mutex_unlock(&t->change);
	return m ? 0 : -EINVAL;
}

int mem_bind_shared(struct mem_table *t, uint32_t stag, const struct rnic_pd *pd,
		    const struct flue_reg *reg)
{
	struct mem *w = lookup(t, stag), *m = NULL;
	bool good = false;

	pthread_mutex_lock(&t->change);
	if (is_window(w, stag, pd, true)) {
		m = reg->length && !(reg->access & FLUE_ZERO_BASED) ? bindable(t, w, reg) : NULL;
		good = m || !reg->length;
	}
	if (good) {
		quiesce(t, w);
		unbind(t, w);
		rekey(t, w, reg->key);
		if (m)
			open_window(t, w, m, 0, reg);
	}
	pthread_mutex_unlock(&t->change);
	return good ? 0 : -EINVAL;
}

uint32_t mem_promise_key(struct mem_table *t, struct mem *w)
{
	uint32_t key;

	pthread_mutex_lock(&t->change);
	key = (w->stag & ~0xffu) | ++w->promise;
	/* STag 0 is never given out: see rekey(). */
	if (key == 0)
		key = w->promise = 1;
	pthread_mutex_unlock(&t->change);
	return key;
}

void mem_unbind_qp(struct mem_table *t, uint32_t qpn)
{
	struct mem *w, *next;

	/* What was bound through it was bound before: nobody binds any more. */
	if (!qpn || !atomic_load(&t->n_of_qps))
		return;
	pthread_mutex_lock(&t->change);
	LIST_FOREACH_SAFE(w, &t->of_qps, of_qp, next) {
		if (w->qpn != qpn)
			continue;
		quiesce(t, w);
		unbind(t, w);
	}
	pthread_mutex_unlock(&t->change);
}
