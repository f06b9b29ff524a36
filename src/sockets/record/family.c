/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/piece.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/space.h"
#include "base/sys.h"
#include "base/util.h"
#include "sockets/record/family.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/record.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"

#define HOMES 8

/* The homes of this process and its forebears, with our seat in each; -1: none; and the pieces that are mapped here,
 * with what our calls have to do with the records in them. */
static struct known {
	struct home *home;
	int seat;
	_Atomic uint64_t alive; /* seats whose processes were, see family_look_once() */
	_Atomic uint32_t pieces;
	struct {
		struct rec *rec;
		struct keep *keep;
	} piece[HOME_PIECES];
} known[HOMES];

static struct robust_lock reaching;

struct keep family_stray;

/* Seats for the child that this thread is forking, + 1; 0: not yet, -1: none to be had. */
static _Thread_local int8_t next[HOMES] THREAD_LOCAL_FAST;
_Static_assert(HOME_SEATS < INT8_MAX, "a seat fits");

static uint64_t our_space; /* 0: not known */

static int index_of(const struct home *h)
{
	for (int i = 0; i < HOMES; i++)
		if (known[i].home == h && h)
			return i;
	return -1;
}

/* --- pieces */

/* The piece, and in *at the place in it; -1: not mapped here. */
static int find(const struct known *k, uint32_t number, uint32_t *at)
{
	uint32_t piece = piece_of(number, HOME_FIRST);

	if (piece >= atomic_load_explicit(&k->pieces, memory_order_acquire))
		return -1;
	*at = number - piece_start(piece, HOME_FIRST);
	return (int)piece;
}

struct rec *family_rec(const struct home *h, uint32_t number)
{
	int i = index_of(h);
	uint32_t at;
	int piece = i < 0 ? -1 : find(&known[i], number, &at);

	return piece < 0 ? NULL : &known[i].piece[piece].rec[at];
}

struct keep *family_keep(const struct home *h, uint32_t number)
{
	int i = index_of(h);
	uint32_t at;
	int piece = i < 0 ? -1 : find(&known[i], number, &at);

	return piece < 0 ? NULL : &known[i].piece[piece].keep[at];
}

/* So many records can be reached. */
static uint32_t reached(const struct known *k)
{
	uint32_t pieces = atomic_load_explicit(&k->pieces, memory_order_acquire);

	return min_u32(piece_start(pieces, HOME_FIRST), k->home->records);
}

/* What our calls have to do with the records of the next piece, `rec`. Takes that. */
static bool add_piece(struct known *k, struct rec *rec)
{
	uint32_t piece = atomic_load(&k->pieces);
	size_t n = piece_size(piece, HOME_FIRST);
	struct keep *keep = space_map(-1, n * sizeof(*keep));

	if (!keep)
		return false;
	k->piece[piece].rec = rec;
	k->piece[piece].keep = keep;
	atomic_store_explicit(&k->pieces, piece + 1, memory_order_release);
	return true;
}

static void map_next(struct known *k)
{
	uint32_t piece = atomic_load(&k->pieces);
	size_t size = (size_t)piece_size(piece, HOME_FIRST) * sizeof(struct rec);
	struct rec *rec = NULL;

	if (piece > 0 && piece < HOME_PIECES)
		rec = space_map_behind(k->piece[piece - 1].rec + piece_size(piece - 1, HOME_FIRST),
				       size);
	if (rec && !add_piece(k, rec))
		space_unmap(rec, size);
}

uint32_t family_reach(struct home *h, uint32_t number)
{
	int i = index_of(h);
	int saved = errno;

	if (i < 0)
		return 0;
	if (number >= reached(&known[i]) && number < h->records && robust_take(&reaching)) {
		if (number >= reached(&known[i])) /* another thread may have been faster */
			map_next(&known[i]);
		robust_give(&reaching);
	}
	errno = saved;
	return reached(&known[i]);
}

/* --- seats */

/* Numbers of processes mean something within one name space only. 0: not to be found out. */
static uint64_t name_space(void)
{
	struct stat st;
	int saved = errno;
	uint64_t id = settings.sealed || stat("/proc/self/ns/pid", &st) != 0 ? 0 : st.st_ino;

	errno = saved;
	return id;
}

static void sit_down(struct home *h, int seat)
{
	if (our_space == 0)
		our_space = name_space();
	atomic_store(&h->seat[seat].space, our_space);
	atomic_store(&h->seat[seat].pid, getpid());
}

bool family_founded(struct home *h)
{
	for (int i = 0; i < HOMES; i++) {
		if (known[i].home)
			continue;
		if (!add_piece(&known[i], h->rec))
			return false;
		sit_down(h, 0);
		known[i].seat = 0;
		known[i].home = h;
		return true;
	}
	return false;
}

/* Written only where need be: each page that is costs the child a copy. */
static void forget_calls(struct keep *keep, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		int heir = atomic_load_explicit(&keep[i].heir, memory_order_relaxed);

		if (heir)
			atomic_store(&keep[i].heir, 0);
		if (heir > 0)
			sys_close(heir - 1);
		if (atomic_load_explicit(&keep[i].pins, memory_order_relaxed))
			atomic_store(&keep[i].pins, 0);
		if (atomic_load_explicit(&keep[i].calls, memory_order_relaxed))
			atomic_store(&keep[i].calls, 0);
	}
}

void family_forget_calls(void)
{
	for (int i = 0; i < HOMES; i++) {
		const struct known *k = &known[i];
		uint32_t high = k->home ? atomic_load(&k->home->high) : 0;

		for (uint32_t p = 0; p < k->pieces && piece_start(p, HOME_FIRST) < high; p++)
			forget_calls(k->piece[p].keep, min_u32(piece_size(p, HOME_FIRST),
							       high - piece_start(p, HOME_FIRST)));
	}
}

static void add_numbers(struct rec *r, int seat, int change)
{
	uint8_t old = atomic_load_explicit(&r->numbers[seat], memory_order_relaxed);

	do {
		/* Too many to count: they stay. */
		if (old == UINT8_MAX || (old == 0 && change < 0))
			return;
	} while (!atomic_compare_exchange_weak(&r->numbers[seat], &old, (uint8_t)(old + change)));
	atomic_fetch_add(&r->home->seat[seat].numbers, (uint32_t)change);
}

void family_hold(struct rec *r, int change)
{
	int i = index_of(r->home);

	if (i >= 0 && known[i].seat >= 0)
		add_numbers(r, known[i].seat, change);
}

/* --- the dead */

static _Atomic uint32_t looking_once;

_Static_assert(HOME_SEATS <= 64, "a bit for each");

void family_look_once(bool once)
{
	if (!once) {
		atomic_fetch_sub(&looking_once, 1);
		return;
	}
	for (int i = 0; i < HOMES; i++)
		atomic_store(&known[i].alive, 0);
	atomic_fetch_add(&looking_once, 1);
}

static bool is_dead(const struct home *h, int seat)
{
	int pid = atomic_load(&h->seat[seat].pid);
	uint64_t space = atomic_load(&h->seat[seat].space);
	int i = atomic_load_explicit(&looking_once, memory_order_relaxed) ? index_of(h) : -1;
	int saved = errno;
	bool dead;

	/* Below 0: for a child that is being forked. */
	if (pid <= 0 || pid == self_pid() || settings.sealed || space == 0 || space != our_space)
		return false;
	if (i >= 0 && (atomic_load(&known[i].alive) >> seat & 1))
		return false;
	dead = kill(pid, 0) != 0 && errno == ESRCH;
	if (i >= 0 && !dead)
		atomic_fetch_or(&known[i].alive, 1ull << seat);
	errno = saved;
	return dead;
}

static void give_up(struct rec *r, int seat)
{
	uint8_t n = atomic_load(&r->numbers[seat]);

	if (n == 0 || n == UINT8_MAX)
		return;
	atomic_store(&r->numbers[seat], 0);
	atomic_fetch_sub(&r->home->seat[seat].numbers, n);
	atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, n) == n)
		record_abandon(r);
}

/* With the lock. */
static void clear(struct home *h, int seat)
{
	struct rec *r;

	for (uint32_t n = 0; n < atomic_load(&h->high) && atomic_load(&h->seat[seat].numbers) &&
			     (r = family_rec(h, n)) != NULL;
	     n++)
		give_up(r, seat);
	/* What could not be counted keeps the seat, or what is not mapped here: others may see to it. */
	if (atomic_load(&h->seat[seat].numbers) == 0)
		atomic_store(&h->seat[seat].pid, 0);
}

static void sweep_one(struct home *h, int seat)
{
	if (!is_dead(h, seat) || !robust_take(&h->seats_lock))
		return;
	if (is_dead(h, seat))
		clear(h, seat);
	robust_give(&h->seats_lock);
}

typedef uint64_t __attribute__((may_alias)) eight;

_Static_assert(offsetof(struct rec, numbers) % sizeof(eight) == 0 && HOME_SEATS % 8 == 0,
	       "aligned");

/* All that they held, or each record that is closed would ask for them again. */
void family_reap(struct rec *r)
{
	const eight *eights = (const void *)r->numbers;

	for (int seat = 0; seat < HOME_SEATS; seat++) {
		/* Most seats are empty: eight at a time. */
		if (seat % 8 == 0 && !__atomic_load_n(&eights[seat / 8], __ATOMIC_RELAXED))
			seat += 7;
		else if (atomic_load_explicit(&r->numbers[seat], memory_order_relaxed))
			sweep_one(r->home, seat);
	}
}

void family_sweep(struct home *h)
{
	static _Atomic uint32_t next_seat;

	sweep_one(h, (int)(atomic_fetch_add_explicit(&next_seat, 1, memory_order_relaxed) %
			   HOME_SEATS));
}

/* --- forks */

static int free_seat(struct home *h)
{
	for (int seat = 1; seat < HOME_SEATS; seat++) {
		int none = 0;

		if (atomic_compare_exchange_strong(&h->seat[seat].pid, &none, -getpid()))
			return seat;
	}
	return -1;
}

static int take_seat(struct home *h)
{
	int seat = free_seat(h);

	for (int i = 1; seat < 0 && i < HOME_SEATS; i++)
		sweep_one(h, i);
	return seat < 0 ? free_seat(h) : seat;
}

/* The seat is nobody's but ours until the child sits there. */
static void add_quietly(struct rec *r, int seat)
{
	uint8_t n = atomic_load_explicit(&r->numbers[seat], memory_order_relaxed);
	_Atomic uint32_t *all = &r->home->seat[seat].numbers;

	if (n == UINT8_MAX)
		return;
	atomic_store_explicit(&r->numbers[seat], (uint8_t)(n + 1), memory_order_relaxed);
	atomic_store_explicit(all, atomic_load_explicit(all, memory_order_relaxed) + 1,
			      memory_order_relaxed);
}

void family_count_child(struct rec *r)
{
	int i = index_of(r->home);

	if (i < 0 || settings.sealed)
		return;
	if (next[i] == 0) {
		int seat = take_seat(r->home);

		next[i] = (int8_t)(seat < 0 ? -1 : seat + 1);
	}
	if (next[i] > 0)
		add_quietly(r, next[i] - 1);
}

void family_fork_parent(void)
{
	memset(next, 0, sizeof(next));
}

void family_forked(void)
{
	our_space = 0; /* a child may be in another one */
	atomic_store(&looking_once, 0);
	atomic_store(&reaching.word, 0);
	for (int i = 0; i < HOMES; i++) {
		known[i].seat = next[i] > 0 ? next[i] - 1 : -1;
		if (known[i].home && known[i].seat >= 0)
			sit_down(known[i].home, known[i].seat);
	}
	family_fork_parent();
}

void family_leave(void)
{
	for (int i = 0; i < HOMES; i++) {
		struct home *h = known[i].home;

		if (h && known[i].seat >= 0 && atomic_load(&h->seat[known[i].seat].numbers) == 0)
			atomic_store(&h->seat[known[i].seat].pid, 0);
	}
}

void family_return(void)
{
	for (int i = 0; i < HOMES; i++) {
		struct home *h = known[i].home;
		int none = 0;

		if (h && known[i].seat >= 0 &&
		    !atomic_compare_exchange_strong(&h->seat[known[i].seat].pid, &none, getpid()) &&
		    none != getpid())
			known[i].seat = -1; /* somebody else has it by now */
	}
}
