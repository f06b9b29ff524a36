/* SPDX-License-Identifier: MIT */
/* Tagged memory: who may touch what through which key, and that revoking is exact (RD-3). */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/mem.h"
#include "rnic/rnic.h"

#define ALL        (FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ)
#define EVERYTHING (FLUE_MR_RANGE | FLUE_MR_ACCESS | FLUE_MR_PD)

static struct mem_table t;
static struct rnic_pd pd, other_pd;
static char bytes[4096];

static int make(void **state)
{
	return mem_table_init(&t, 4096);
}

static int drop(void **state)
{
	mem_table_fini(&t);
	return 0;
}

static uint64_t at(size_t off)
{
	return (uintptr_t)bytes + off;
}

/* Attributes of a region at the beginning of `bytes`; good until the next call. */
static const struct mem_attr *plain(uint64_t length, uint32_t access, bool revoked)
{
	static struct mem_attr attr;

	attr = (struct mem_attr) { bytes, access & FLUE_ZERO_BASED ? 0 : at(0), length, access,
				   revoked };
	return &attr;
}

static struct mem *region(uint32_t access)
{
	struct mem *m;

	assert_int_equal(mem_register(&t, &pd, plain(sizeof(bytes), access, false), &m), 0);
	return m;
}

/* A look-up with a fresh cache; the reference is given back at once. */
static enum mem_verdict look(uint32_t stag, const struct rnic_pd *p, uint32_t qpn, uint32_t access,
			     uint64_t to, uint64_t length, char **ptr)
{
	struct mem_cache cache = { 0 };
	struct mem *ref;
	char *unused;
	enum mem_verdict v = mem_get(&t, &cache, stag, p, qpn, access, to, length,
				     ptr ? ptr : &unused, &ref);

	if (v == MEM_OK) {
		assert_int_equal(atomic_load(&ref->users), 1);
		mem_put(ref);
		assert_int_equal(atomic_load(&ref->users), 0);
	}
	return v;
}

static enum mem_verdict try(uint32_t stag)
{
	return look(stag, &pd, 1, 0, at(0), 1, NULL);
}

static void mem_gives_the_address_when_all_is_right(void **state)
{
	struct mem *m = region(ALL);
	char *p;

	assert_int_equal(look(m->stag, &pd, 1, FLUE_REMOTE_WRITE, at(100), 50, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 100);
	assert_int_equal(look(m->stag, &pd, 1, ALL, at(0), sizeof(bytes), &p), MEM_OK);
	assert_ptr_equal(p, bytes);
	/* An access of no bytes just behind the end moves nothing and is inside. */
	assert_int_equal(look(m->stag, &pd, 1, 0, at(sizeof(bytes)), 0, NULL), MEM_OK);
}

static void mem_names_every_defect(void **state)
{
	struct mem *m = region(FLUE_LOCAL_WRITE | FLUE_REMOTE_READ);
	uint32_t s = m->stag;

	assert_int_equal(look(0, &pd, 1, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(s ^ 1, &pd, 1, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(s ^ 0x100, &pd, 1, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(s, &other_pd, 1, 0, at(0), 1, NULL), MEM_BAD_STREAM);
	assert_int_equal(look(s, &pd, 1, FLUE_REMOTE_WRITE, at(0), 1, NULL), MEM_BAD_ACCESS);
	assert_int_equal(look(s, &pd, 1, ALL, at(0), 1, NULL), MEM_BAD_ACCESS);
	assert_int_equal(look(s, &pd, 1, 0, at(0) - 1, 1, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(s, &pd, 1, 0, at(sizeof(bytes)), 1, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(s, &pd, 1, 0, at(1), sizeof(bytes), NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(s, &pd, 1, 0, at(0), UINT64_MAX / 2, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(s, &pd, 1, 0, at(0), UINT64_MAX, NULL), MEM_BAD_WRAP);
	assert_int_equal(look(s, &pd, 1, 0, UINT64_MAX, 2, NULL), MEM_BAD_WRAP);
	assert_int_equal(atomic_load(&m->users), 0);
}

static void mem_counts_offsets_from_zero_when_asked(void **state)
{
	struct mem *m = region(FLUE_ZERO_BASED);
	char *p;

	assert_int_equal(look(m->stag, &pd, 1, 0, 0, 8, &p), MEM_OK);
	assert_ptr_equal(p, bytes);
	assert_int_equal(look(m->stag, &pd, 1, 0, sizeof(bytes) - 8, 8, &p), MEM_OK);
	assert_ptr_equal(p, bytes + sizeof(bytes) - 8);
	assert_int_equal(look(m->stag, &pd, 1, 0, sizeof(bytes) - 8, 9, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(m->stag, &pd, 1, 0, at(0), 8, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(m->stag, &pd, 1, 0, UINT64_MAX, 1, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(m->stag, &pd, 1, 0, UINT64_MAX, 2, NULL), MEM_BAD_WRAP);
}

static void mem_key_changes_with_every_use_of_an_entry(void **state)
{
	struct mem *m = region(0), *again;
	uint32_t first = m->stag, second;

	assert_int_not_equal(first, 0);
	assert_int_equal(try(first), MEM_OK);
	assert_int_equal(mem_destroy(&t, m), 0);
	assert_int_equal(try(first), MEM_BAD_STAG);
	again = region(0);
	assert_ptr_equal(again, m); /* the same entry */
	second = again->stag;
	assert_int_equal(first >> 8, second >> 8);
	assert_int_not_equal(first, second);
	assert_int_equal(try(first), MEM_BAD_STAG);
	assert_int_equal(try(second), MEM_OK);
}

static void mem_modify_kills_the_old_key_and_takes_everything_new(void **state)
{
	struct mem *m = region(FLUE_REMOTE_READ);
	uint32_t old = m->stag;
	char *p;

	assert_int_equal(mem_modify(&t, m, EVERYTHING, &other_pd,
				    &(struct mem_attr) { bytes + 1000, 0, 10, ALL | FLUE_ZERO_BASED,
							 false }),
			 0);
	assert_int_equal(try(old), MEM_BAD_STAG);
	assert_int_equal(look(m->stag, &pd, 1, 0, 0, 1, NULL), MEM_BAD_STREAM);
	assert_int_equal(look(m->stag, &other_pd, 1, ALL, 0, 10, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 1000);
	assert_int_equal(look(m->stag, &other_pd, 1, 0, 0, 11, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(mem_modify(&t, m, EVERYTHING, &pd, plain(10, 0, true)), 0);
	assert_int_equal(try(m->stag), MEM_BAD_STAG);
}

/* The parts one by one, and the keys as asked for. */
static void mem_modify_changes_what_it_is_asked_to(void **state)
{
	const uint32_t keep = FLUE_MR_KEEP_KEYS;
	struct mem *m = region(FLUE_REMOTE_READ);
	struct mem_attr attr = { bytes + 1000, at(1000), 10, ALL, false };
	uint32_t old = m->stag;

	assert_int_equal(mem_modify(&t, m, FLUE_MR_ACCESS | keep, &other_pd,
				    &(struct mem_attr) { NULL, at(0), 0, ALL, false }),
			 0);
	assert_int_equal(m->stag, old);
	assert_int_equal(look(old, &pd, 1, ALL | MEM_LOCAL, at(0), sizeof(bytes), NULL), MEM_OK);
	assert_int_equal(mem_modify(&t, m, FLUE_MR_PD | keep, &other_pd, &attr), 0);
	assert_int_equal(look(old, &pd, 1, 0, at(0), 1, NULL), MEM_BAD_STREAM);
	assert_int_equal(look(old, &other_pd, 1, ALL, at(0), sizeof(bytes), NULL), MEM_OK);
	assert_int_equal(mem_modify(&t, m, FLUE_MR_RANGE | keep, NULL, &attr), 0);
	assert_int_equal(look(old, &other_pd, 1, ALL, at(1000), 10, NULL), MEM_OK);
	assert_int_equal(look(old, &other_pd, 1, ALL, at(1000), 11, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(mem_modify(&t, m, FLUE_MR_PD, &pd, &attr), 0);
	assert_int_equal(m->stag >> 8, old >> 8);
	assert_int_not_equal(m->stag, old);
	assert_int_equal(look(old, &pd, 1, 0, at(1000), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(m->stag, &pd, 1, ALL, at(1000), 10, NULL), MEM_OK);
}

/* What is revoked stays that without a new range, and is as large as it was made. */
static void mem_modify_revives_with_a_new_range_only(void **state)
{
	struct flue_reg reg = { .addr = at(0), .length = 10, .access = ALL, .key = 1 };
	struct mem *m;

	assert_int_equal(mem_register(&t, &pd, plain(100, 0, true), &m), 0);
	assert_int_equal(mem_modify(&t, m, FLUE_MR_ACCESS, NULL, plain(100, ALL, false)), 0);
	assert_int_equal(try(m->stag), MEM_BAD_STAG);
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), 0);
	assert_int_equal(mem_modify(&t, m, FLUE_MR_ACCESS, NULL, plain(10, 0, false)), 0);
	assert_int_equal(try(m->stag), MEM_OK);
	assert_int_equal(look(m->stag, &pd, 1, 0, at(0), 11, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	reg.length = 100;
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), 0);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	/* A new range is a new size. */
	assert_int_equal(mem_modify(&t, m, FLUE_MR_RANGE, NULL, plain(99, 0, false)), 0);
	assert_int_equal(try(m->stag), MEM_OK);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
}

/* A cache that remembers the entry must not outlive the key. */
static void mem_cache_never_revives_a_stale_key(void **state)
{
	struct mem *m = region(0), *ref;
	struct mem_cache cache = { 0 };
	uint32_t old = m->stag;
	char *p;

	assert_int_equal(mem_get(&t, &cache, old, &pd, 1, 0, at(0), 1, &p, &ref), MEM_OK);
	mem_put(ref);
	assert_int_equal(cache.stag, old);
	assert_ptr_equal(cache.entry, m);
	assert_int_equal(mem_modify(&t, m, EVERYTHING, &pd, plain(16, 0, false)), 0);
	assert_int_equal(mem_get(&t, &cache, old, &pd, 1, 0, at(0), 1, &p, &ref), MEM_BAD_STAG);
	assert_int_equal(mem_get(&t, &cache, m->stag, &pd, 1, 0, at(0), 1, &p, &ref), MEM_OK);
	mem_put(ref);
	assert_int_equal(atomic_load(&m->users), 0);
}

static void mem_table_has_a_limit(void **state)
{
	struct mem_table small;
	struct mem *m;

	assert_int_equal(mem_table_init(&small, 2), 0);
	assert_int_equal(mem_window(&small, &pd, FLUE_MW_2B, &m), 0);
	assert_int_equal(mem_register(&small, &pd, plain(1, 0, false), &m), 0);
	assert_int_equal(mem_register(&small, &pd, plain(1, 0, false), &m), -ENOSPC);
	assert_int_equal(mem_window(&small, &pd, FLUE_MW_2B, &m), -ENOSPC);
	mem_table_fini(&small);
}

/* ---- invalidate, fast register ---- */

static void mem_invalidate_by_the_peer_needs_the_owners_leave(void **state)
{
	struct mem *m = region(ALL), *open = region(ALL | FLUE_REMOTE_INVALIDATE);

	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, true), MEM_BAD_ACCESS);
	assert_int_equal(try(m->stag), MEM_OK);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	assert_int_equal(try(m->stag), MEM_BAD_STAG);
	assert_int_equal(mem_invalidate(&t, open->stag, &pd, 1, true), MEM_OK);
	assert_int_equal(try(open->stag), MEM_BAD_STAG);
}

static void mem_invalidate_refuses_unknown_revoked_and_foreign_keys(void **state)
{
	struct mem *m = region(ALL | FLUE_REMOTE_INVALIDATE);

	assert_int_equal(mem_invalidate(&t, 0, &pd, 1, false), MEM_BAD_STAG);
	assert_int_equal(mem_invalidate(&t, m->stag ^ 1, &pd, 1, false), MEM_BAD_STAG);
	assert_int_equal(mem_invalidate(&t, m->stag ^ 0x100, &pd, 1, true), MEM_BAD_STAG);
	assert_int_equal(mem_invalidate(&t, m->stag, &other_pd, 1, true), MEM_BAD_STREAM);
	assert_int_equal(mem_invalidate(&t, m->stag, &other_pd, 1, false), MEM_BAD_STREAM);
	assert_int_equal(try(m->stag), MEM_OK);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, true), MEM_OK);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, true), MEM_BAD_STAG);
	assert_int_equal(mem_destroy(&t, m), 0);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_BAD_STAG);
}

static void mem_fast_register_makes_a_revoked_region_valid(void **state)
{
	struct flue_reg reg = { .addr = at(64), .length = 32, .access = ALL, .key = 0x5a };
	struct mem *m;
	uint32_t old;
	char *p;

	assert_int_equal(mem_register(&t, &pd, plain(100, 0, true), &m), 0);
	old = m->stag;
	assert_int_equal(try(old), MEM_BAD_STAG);
	assert_int_equal(mem_fast_register(&t, old, &pd, &reg), 0);
	assert_int_equal(m->stag, (old & ~0xffu) | 0x5a);
	assert_int_equal(look(m->stag, &pd, 1, ALL, at(64), 32, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 64);
	assert_int_equal(look(m->stag, &pd, 1, 0, at(64), 33, NULL), MEM_BAD_BOUNDS);
	/* Valid already: it must be revoked first. */
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	reg.access = FLUE_ZERO_BASED;
	reg.length = 100;
	assert_int_equal(mem_fast_register(&t, old, &pd, &reg), 0);
	assert_int_equal(look(m->stag, &pd, 1, 0, 0, 100, NULL), MEM_OK);
}

static void mem_fast_register_refuses_what_is_not_such_a_region(void **state)
{
	struct flue_reg reg = { .addr = at(0), .length = 101 },
			fits = { .addr = at(0), .length = 100 };
	struct mem *m, *w;

	assert_int_equal(mem_register(&t, &pd, plain(100, 0, true), &m), 0);
	assert_int_equal(mem_window(&t, &pd, FLUE_MW_2B, &w), 0);
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
	reg.length = 0;
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
	assert_int_equal(mem_fast_register(&t, m->stag, &other_pd, &fits), -EINVAL);
	assert_int_equal(mem_fast_register(&t, w->stag, &pd, &fits), -EINVAL);
	assert_int_equal(mem_fast_register(&t, m->stag ^ 0x100, &pd, &fits), -EINVAL);
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &fits), 0);
}

/* Wherever their names begin, the bytes must be there: as when a region is registered. */
static void mem_fast_register_refuses_memory_beyond_the_end(void **state)
{
	static const uint32_t kinds[] = { 0, FLUE_ZERO_BASED, FLUE_IOVA };
	struct mem *m;

	assert_int_equal(mem_register(&t, &pd, plain(100, 0, true), &m), 0);
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct flue_reg reg = { .addr = UINT64_MAX - 98,
					.length = 100,
					.access = kinds[i] };

		assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
		reg.addr--;
		assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), 0);
		assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	}
}

static void mem_region_begins_where_it_was_told_to(void **state)
{
	const uint64_t start = UINT64_MAX - 99; /* its last byte has the last name there is */
	struct mem_attr attr = { bytes + 8, start, 100, ALL | FLUE_IOVA, false };
	struct flue_reg reg = { .addr = at(16), .length = 50, .access = ALL | FLUE_IOVA, .key = 9 };
	struct mem *m;
	char *ptr;

	assert_int_equal(mem_register(&t, &pd, &attr, &m), 0);
	assert_int_equal(look(m->stag, &pd, 1, FLUE_REMOTE_READ, start + 10, 90, &ptr), MEM_OK);
	assert_ptr_equal(ptr, bytes + 18);
	assert_int_equal(look(m->stag, &pd, 1, ALL, start, 100, &ptr), MEM_OK);
	assert_ptr_equal(ptr, bytes + 8);
	assert_int_equal(look(m->stag, &pd, 1, 0, UINT64_MAX, 1, &ptr), MEM_OK);
	assert_ptr_equal(ptr, bytes + 107);
	assert_int_equal(look(m->stag, &pd, 1, 0, start + 10, 91, &ptr), MEM_BAD_WRAP);
	assert_int_equal(look(m->stag, &pd, 1, 0, start, UINT64_MAX, &ptr), MEM_BAD_WRAP);
	assert_int_equal(look(m->stag, &pd, 1, 0, start - 1, 101, &ptr), MEM_BAD_BOUNDS);
	assert_int_equal(look(m->stag, &pd, 1, 0, at(8), 1, &ptr), MEM_BAD_BOUNDS);
	assert_int_equal(look(m->stag, &pd, 1, 0, start - 1, 1, &ptr), MEM_BAD_BOUNDS);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	reg.iova = UINT64_MAX - 48;
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
	reg.iova = 7;
	reg.access |= FLUE_ZERO_BASED;
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), -EINVAL);
	reg.access &= ~(uint32_t)FLUE_ZERO_BASED;
	assert_int_equal(mem_fast_register(&t, m->stag, &pd, &reg), 0);
	assert_int_equal(look(m->stag, &pd, 1, 0, 9, 48, &ptr), MEM_OK);
	assert_ptr_equal(ptr, bytes + 18);
	assert_int_equal(look(m->stag, &pd, 1, 0, 6, 1, &ptr), MEM_BAD_BOUNDS);
}

/* ---- windows ---- */

static struct mem *bound(struct mem *m, uint32_t qpn, uint32_t access, uint64_t to, uint64_t len)
{
	struct flue_reg reg = {
		.addr = to, .length = len, .access = access, .lkey = m->stag, .key = 0x77
	};
	struct mem *w;

	assert_int_equal(mem_window(&t, &pd, FLUE_MW_2B, &w), 0);
	assert_int_equal(mem_bind(&t, w->stag, &pd, qpn, &reg), 0);
	return w;
}

static void mem_window_opens_a_part_for_one_queue_pair(void **state)
{
	struct mem *m = region(FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW);
	struct mem *w = bound(m, 7, FLUE_REMOTE_WRITE, at(100), 10);
	struct mem *zero = bound(m, 7, FLUE_REMOTE_READ | FLUE_ZERO_BASED, at(200), 10);
	char *p;

	assert_int_equal(w->stag & 0xff, 0x77);
	assert_int_equal(look(w->stag, &pd, 7, FLUE_REMOTE_WRITE, at(100), 10, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 100);
	assert_int_equal(look(w->stag, &pd, 8, FLUE_REMOTE_WRITE, at(100), 1, NULL),
			 MEM_BAD_STREAM);
	assert_int_equal(look(w->stag, &pd, 7, FLUE_REMOTE_READ, at(100), 1, NULL), MEM_BAD_ACCESS);
	assert_int_equal(look(w->stag, &pd, 7, FLUE_REMOTE_WRITE, at(99), 1, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(zero->stag, &pd, 7, FLUE_REMOTE_READ, 3, 7, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 203);
}

static void mem_window_reaches_the_last_name_there_is(void **state)
{
	const uint64_t start = UINT64_MAX - 99;
	struct mem_attr attr = { bytes, start, 100, ALL | FLUE_IOVA | FLUE_BIND_WINDOW, false };
	struct flue_reg reg = { .addr = start + 90, .length = 11, .access = FLUE_REMOTE_READ };
	struct mem *m, *w, *whole;
	char *p;

	assert_int_equal(mem_register(&t, &pd, &attr, &m), 0);
	w = bound(m, 7, FLUE_REMOTE_READ, start + 90, 10);
	assert_int_equal(look(w->stag, &pd, 7, FLUE_REMOTE_READ, start + 95, 5, &p), MEM_OK);
	assert_ptr_equal(p, bytes + 95);
	assert_int_equal(look(w->stag, &pd, 7, 0, start + 89, 11, NULL), MEM_BAD_BOUNDS);
	assert_int_equal(look(w->stag, &pd, 7, 0, start + 95, 6, NULL), MEM_BAD_WRAP);
	whole = bound(m, 7, FLUE_REMOTE_WRITE, start, 100);
	assert_int_equal(look(whole->stag, &pd, 7, FLUE_REMOTE_WRITE, start, 100, &p), MEM_OK);
	assert_ptr_equal(p, bytes);
	reg.lkey = m->stag;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 7, &reg), -EINVAL);
}

static void mem_window_ends_by_either_side_of_its_own_queue_pair_only(void **state)
{
	struct mem *m = region(FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW);
	struct mem *w = bound(m, 7, FLUE_REMOTE_WRITE, at(0), 10);

	assert_int_equal(mem_invalidate(&t, w->stag, &pd, 8, true), MEM_BAD_STREAM);
	assert_int_equal(mem_invalidate(&t, w->stag, &pd, 8, false), MEM_BAD_STREAM);
	assert_int_equal(mem_invalidate(&t, w->stag, &pd, 7, true), MEM_OK);
	assert_int_equal(look(w->stag, &pd, 7, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(atomic_load(&m->bound), 0);
}

static void mem_region_with_windows_can_not_go_away(void **state)
{
	struct mem *m = region(ALL | FLUE_BIND_WINDOW | FLUE_REMOTE_INVALIDATE);
	struct mem *w = bound(m, 7, FLUE_REMOTE_READ, at(0), 10);

	assert_int_equal(mem_destroy(&t, m), -EBUSY);
	assert_int_equal(mem_modify(&t, m, EVERYTHING, &pd, plain(1, 0, false)), -EBUSY);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_BAD_ACCESS);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, true), MEM_BAD_ACCESS);
	assert_int_equal(try(m->stag), MEM_OK);
	assert_int_equal(mem_destroy(&t, w), 0);
	assert_int_equal(mem_destroy(&t, m), 0);
}

static void mem_bind_moves_a_bound_window(void **state)
{
	struct mem *m = region(ALL | FLUE_BIND_WINDOW), *n = region(ALL | FLUE_BIND_WINDOW);
	struct mem *w = bound(m, 7, FLUE_REMOTE_READ, at(0), 10);
	struct flue_reg reg = { .addr = at(500),
				.length = 5,
				.access = FLUE_REMOTE_READ,
				.lkey = n->stag,
				.key = 0x78 };
	uint32_t old = w->stag;

	assert_int_equal(mem_bind(&t, old, &pd, 9, &reg), 0);
	assert_int_equal(look(old, &pd, 7, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(w->stag, &pd, 9, 0, at(500), 5, NULL), MEM_OK);
	assert_int_equal(atomic_load(&m->bound), 0);
	assert_int_equal(atomic_load(&n->bound), 1);
	assert_int_equal(mem_destroy(&t, m), 0);
}

static void mem_bind_refuses_what_the_region_does_not_allow(void **state)
{
	struct mem *m = region(FLUE_BIND_WINDOW), *shut = region(ALL), *w;
	struct flue_reg ok = { .addr = at(0),
			       .length = 8,
			       .access = FLUE_REMOTE_READ,
			       .lkey = m->stag },
			reg;

	assert_int_equal(mem_window(&t, &pd, FLUE_MW_2B, &w), 0);
	reg = ok, reg.access = FLUE_REMOTE_WRITE; /* the region is not writable */
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	reg = ok, reg.lkey = shut->stag;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	reg = ok, reg.lkey ^= 1;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	reg = ok, reg.lkey = w->stag;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	reg = ok, reg.length = sizeof(bytes) + 1;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	reg = ok, reg.length = 0;
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &reg), -EINVAL);
	assert_int_equal(mem_bind(&t, w->stag, &other_pd, 1, &ok), -EINVAL);
	assert_int_equal(mem_bind(&t, m->stag, &pd, 1, &ok), -EINVAL);
	assert_int_equal(atomic_load(&m->bound), 0);
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &ok), 0);
	assert_int_equal(mem_invalidate(&t, w->stag, &pd, 1, false), MEM_OK);
	assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
	assert_int_equal(mem_bind(&t, w->stag, &pd, 1, &ok), -EINVAL); /* a revoked region */
}

/* What the peer may use is nothing for our own requests. */
static void mem_window_is_not_for_requests_of_its_owner(void **state)
{
	struct mem *m = region(ALL | FLUE_BIND_WINDOW);
	struct mem *w = bound(m, 7, FLUE_REMOTE_READ, at(0), 10);

	assert_int_equal(look(m->stag, &pd, 7, MEM_LOCAL, at(0), 10, NULL), MEM_OK);
	assert_int_equal(look(w->stag, &pd, 7, MEM_LOCAL, at(0), 10, NULL), MEM_BAD_ACCESS);
	assert_int_equal(look(w->stag, &pd, 7, FLUE_LOCAL_WRITE, at(0), 10, NULL), MEM_BAD_ACCESS);
}

/* Binds a window of type 1; its new key. */
static uint32_t share(struct mem *w, struct mem *m, uint64_t to, uint64_t len, uint32_t access)
{
	uint32_t key = mem_promise_key(&t, w);
	struct flue_reg reg = { .addr = to,
				.length = len,
				.access = access,
				.lkey = m ? m->stag : 0,
				.key = (uint8_t)key };

	return mem_bind_shared(&t, key, &pd, &reg) ? 0 : key;
}

static void mem_window_of_type_1_is_for_every_queue_pair(void **state)
{
	struct mem *m = region(FLUE_LOCAL_WRITE | FLUE_BIND_WINDOW), *w;
	struct flue_reg reg = {
		.addr = at(0), .length = 8, .access = FLUE_REMOTE_READ, .lkey = m->stag
	};
	uint32_t first, key;

	assert_int_equal(mem_window(&t, &pd, FLUE_MW_1, &w), 0);
	key = share(w, m, at(100), 10, FLUE_REMOTE_WRITE);
	assert_int_equal(key, w->stag);
	for (uint32_t qpn = 1; qpn < 4; qpn++)
		assert_int_equal(look(key, &pd, qpn, FLUE_REMOTE_WRITE, at(100), 10, NULL), MEM_OK);
	assert_int_equal(look(key, &other_pd, 1, 0, at(100), 1, NULL), MEM_BAD_STREAM);
	assert_int_equal(look(key, &pd, 1, 0, at(100), 11, NULL), MEM_BAD_BOUNDS);
	/* No request ends it, and a bind of another kind is none of it. */
	assert_int_equal(mem_invalidate(&t, key, &pd, 1, false), MEM_BAD_ACCESS);
	assert_int_equal(mem_invalidate(&t, key, &pd, 1, true), MEM_BAD_ACCESS);
	assert_int_equal(mem_bind(&t, key, &pd, 1, &reg), -EINVAL);
	mem_unbind_qp(&t, 1);
	assert_int_equal(look(key, &pd, 1, 0, at(100), 10, NULL), MEM_OK);
	assert_int_equal(mem_destroy(&t, m), -EBUSY);
	/* Again, elsewhere, and to nothing. */
	first = key;
	key = share(w, m, at(200), 10, FLUE_REMOTE_READ);
	assert_int_not_equal(key, first);
	assert_int_equal(look(first, &pd, 1, 0, at(100), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(key, &pd, 9, FLUE_REMOTE_READ, at(200), 10, NULL), MEM_OK);
	assert_int_not_equal(share(w, NULL, 0, 0, 0), 0);
	assert_int_equal(look(key, &pd, 9, 0, at(200), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(w->stag, &pd, 9, 0, at(200), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(atomic_load(&m->bound), 0);
}

static void mem_window_of_type_1_is_refused_what_others_may_do(void **state)
{
	struct mem *m = region(FLUE_BIND_WINDOW), *w, *two;
	struct flue_reg reg = {
		.addr = at(0), .length = 8, .access = FLUE_REMOTE_READ, .lkey = m->stag
	};

	assert_int_equal(mem_window(&t, &pd, FLUE_MW_1, &w), 0);
	assert_int_equal(mem_window(&t, &pd, FLUE_MW_2A, &two), 0);
	assert_int_equal(share(w, m, at(0), 8, FLUE_REMOTE_READ | FLUE_ZERO_BASED), 0);
	assert_int_equal(share(w, m, at(0), 8, FLUE_REMOTE_WRITE), 0);
	assert_int_equal(share(w, m, at(0), sizeof(bytes) + 1, FLUE_REMOTE_READ), 0);
	assert_int_equal(share(w, w, at(0), 8, FLUE_REMOTE_READ), 0);
	assert_int_equal(mem_bind_shared(&t, two->stag, &pd, &reg), -EINVAL);
	assert_int_equal(mem_bind_shared(&t, w->stag, &other_pd, &reg), -EINVAL);
	assert_int_equal(mem_bind_shared(&t, m->stag, &pd, &reg), -EINVAL);
	assert_int_equal(mem_bind(&t, two->stag, &pd, 3, &reg), 0);
	assert_int_equal(look(two->stag, &pd, 3, FLUE_REMOTE_READ, at(0), 8, NULL), MEM_OK);
	assert_int_equal(look(two->stag, &pd, 4, FLUE_REMOTE_READ, at(0), 8, NULL), MEM_BAD_STREAM);
}

/* Each promise is a key of its own, and keeps clear of the one that is in use. */
static void mem_promises_keys_in_advance(void **state)
{
	struct mem *w;
	uint32_t last;

	assert_int_equal(mem_window(&t, &pd, FLUE_MW_1, &w), 0);
	last = w->stag;
	for (int i = 0; i < 255; i++) {
		uint32_t key = mem_promise_key(&t, w);

		assert_int_equal(key >> 8, w->stag >> 8);
		assert_int_not_equal(key, 0);
		assert_int_not_equal(key, w->stag);
		assert_int_not_equal(key, last);
		last = key;
	}
}

static void mem_windows_go_with_their_queue_pair(void **state)
{
	struct mem *m = region(ALL | FLUE_BIND_WINDOW);
	struct mem *a = bound(m, 7, FLUE_REMOTE_READ, at(0), 10);
	struct mem *b = bound(m, 8, FLUE_REMOTE_READ, at(0), 10);
	struct mem *c = bound(m, 7, FLUE_REMOTE_READ, at(20), 10);

	mem_unbind_qp(&t, 9);
	assert_int_equal(atomic_load(&m->bound), 3);
	mem_unbind_qp(&t, 7);
	assert_int_equal(look(a->stag, &pd, 7, 0, at(0), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(c->stag, &pd, 7, 0, at(20), 1, NULL), MEM_BAD_STAG);
	assert_int_equal(look(b->stag, &pd, 8, 0, at(0), 1, NULL), MEM_OK);
	assert_int_equal(atomic_load(&m->bound), 1);
	assert_int_equal(atomic_load(&t.n_of_qps), 1);
	assert_int_equal(mem_destroy(&t, b), 0);
	assert_int_equal(atomic_load(&t.n_of_qps), 0);
	assert_int_equal(mem_destroy(&t, m), 0);
	assert_int_equal(mem_destroy(&t, a), 0);
}

/* ---- threads ---- */

enum { READERS = 3, ROUNDS = 3000 };
static _Atomic uint32_t shared_stag;
static atomic_bool stop;
static atomic_bool moved;

/* Moves bytes as an engine does; the memory itself is plain, so that a sanitizer sees a slip. */
static void *keep_writing(void *arg)
{
	struct mem_cache cache = { 0 };
	struct mem *ref;
	char *p;

	while (!atomic_load(&stop)) {
		size_t off = 64 * (size_t)(uintptr_t)arg; /* each has its own line */

		if (mem_get(&t, &cache, atomic_load(&shared_stag), &pd, 1, FLUE_REMOTE_WRITE,
			    at(off), 64, &p, &ref) != MEM_OK)
			continue;
		memset(p, 'r', 64);
		mem_put(ref);
		atomic_store(&moved, true);
	}
	return NULL;
}

static void mem_destroy_returns_when_no_byte_moves_any_more(void **state)
{
	/* On a busy machine the others may not have run after all rounds. */
	const int most = 1000 * ROUNDS;
	pthread_t readers[READERS];

	atomic_store(&stop, false);
	atomic_store(&moved, false);
	for (uintptr_t i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&readers[i], NULL, keep_writing, (void *)i), 0);
	for (int round = 0; round < ROUNDS || (!atomic_load(&moved) && round < most); round++) {
		struct mem *m = region(ALL);

		atomic_store(&shared_stag, m->stag);
		if (round % 3 == 0)
			sched_yield();
		if (round % 2)
			assert_int_equal(mem_invalidate(&t, m->stag, &pd, 1, false), MEM_OK);
		else
			assert_int_equal(mem_modify(&t, m, EVERYTHING, &pd, plain(1, 0, true)), 0);
		/* The memory is ours again. */
		memset(bytes, 'w', 64 * READERS);
		for (int i = 0; i < 64 * READERS; i++)
			if (bytes[i] != 'w')
				fail_msg("round %d: a byte moved through a revoked key", round);
		assert_int_equal(mem_destroy(&t, m), 0);
	}
	atomic_store(&stop, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	assert_true(atomic_load(&moved));
}

static void *destroy_it(void *arg)
{
	assert_int_equal(mem_destroy(&t, arg), 0);
	atomic_store(&stop, true);
	return NULL;
}

static void mem_destroy_waits_for_who_holds_the_region(void **state)
{
	struct mem *m = region(ALL), *ref;
	struct mem_cache cache = { 0 };
	pthread_t thread;
	char *at;

	assert_int_equal(mem_get(&t, &cache, m->stag, &pd, 1, FLUE_REMOTE_WRITE, m->to, 1, &at,
				 &ref),
			 MEM_OK);
	atomic_store(&stop, false);
	assert_int_equal(pthread_create(&thread, NULL, destroy_it, m), 0);
	while (atomic_load(&m->live))
		usleep(100);
	usleep(50000); /* long enough for one that does not wait */
	assert_false(atomic_load(&stop));
	mem_put(ref);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(atomic_load(&stop));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(mem_gives_the_address_when_all_is_right),
		TEST(mem_names_every_defect),
		TEST(mem_counts_offsets_from_zero_when_asked),
		TEST(mem_key_changes_with_every_use_of_an_entry),
		TEST(mem_modify_kills_the_old_key_and_takes_everything_new),
		TEST(mem_modify_changes_what_it_is_asked_to),
		TEST(mem_modify_revives_with_a_new_range_only),
		TEST(mem_cache_never_revives_a_stale_key),
		TEST(mem_table_has_a_limit),
		TEST(mem_invalidate_by_the_peer_needs_the_owners_leave),
		TEST(mem_invalidate_refuses_unknown_revoked_and_foreign_keys),
		TEST(mem_fast_register_makes_a_revoked_region_valid),
		TEST(mem_fast_register_refuses_what_is_not_such_a_region),
		TEST(mem_fast_register_refuses_memory_beyond_the_end),
		TEST(mem_region_begins_where_it_was_told_to),
		TEST(mem_window_opens_a_part_for_one_queue_pair),
		TEST(mem_window_reaches_the_last_name_there_is),
		TEST(mem_window_ends_by_either_side_of_its_own_queue_pair_only),
		TEST(mem_region_with_windows_can_not_go_away),
		TEST(mem_bind_moves_a_bound_window),
		TEST(mem_bind_refuses_what_the_region_does_not_allow),
		TEST(mem_window_is_not_for_requests_of_its_owner),
		TEST(mem_window_of_type_1_is_for_every_queue_pair),
		TEST(mem_window_of_type_1_is_refused_what_others_may_do),
		TEST(mem_promises_keys_in_advance),
		TEST(mem_windows_go_with_their_queue_pair),
		TEST(mem_destroy_waits_for_who_holds_the_region),
		TEST(mem_destroy_returns_when_no_byte_moves_any_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
