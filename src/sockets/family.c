/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"
#include "sockets/family.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"

#define HOMES 8

/* The homes of this process and its forebears, with our seat in each; -1: none; and what our calls have to do with
 * their records. */
static struct {
	struct home *home;
	struct keep *keep;
	int seat;
} known[HOMES];

struct keep family_stray;

struct keep *family_keep(const struct home *h, uint32_t number)
{
	for (int i = 0; i < HOMES; i++)
		if (known[i].home == h && known[i].keep)
			return &known[i].keep[number];
	return &family_stray;
}

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
	struct keep *keep = mmap(NULL, h->records * sizeof(*keep), PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	for (int i = 0; i < HOMES && keep != MAP_FAILED; i++) {
		if (known[i].home)
			continue;
		sit_down(h, 0);
		known[i].seat = 0;
		known[i].keep = keep;
		known[i].home = h;
		return true;
	}
	if (keep != MAP_FAILED)
		munmap(keep, h->records * sizeof(*keep));
	return false;
}

static void forget_calls(const struct home *h, struct keep *keep)
{
	for (uint32_t n = 0; n < atomic_load(&h->high); n++) {
		int heir = atomic_exchange(&keep[n].heir, 0);

		if (heir > 0)
			real(close)(heir - 1);
		if (atomic_load_explicit(&keep[n].pins, memory_order_relaxed))
			atomic_store(&keep[n].pins, 0);
		if (atomic_load_explicit(&keep[n].calls, memory_order_relaxed))
			atomic_store(&keep[n].calls, 0);
	}
}

void family_forget_calls(void)
{
	for (int i = 0; i < HOMES; i++)
		if (known[i].home && known[i].keep)
			forget_calls(known[i].home, known[i].keep);
}

static void add(struct rec *r, int seat, int change)
{
	uint8_t old = atomic_load_explicit(&r->held[seat], memory_order_relaxed);

	do {
		/* Too many to count: they stay. */
		if (old == UINT8_MAX || (old == 0 && change < 0))
			return;
	} while (!atomic_compare_exchange_weak(&r->held[seat], &old, (uint8_t)(old + change)));
	atomic_fetch_add(&r->home->seat[seat].held, (uint32_t)change);
}

void family_hold(struct rec *r, int change)
{
	int i = index_of(r->home);

	if (i >= 0 && known[i].seat >= 0)
		add(r, known[i].seat, change);
}

/* --- the dead */

static bool is_dead(const struct home *h, int seat)
{
	int pid = atomic_load(&h->seat[seat].pid);
	uint64_t space = atomic_load(&h->seat[seat].space);
	int saved = errno;
	bool dead;

	/* Below 0: for a child that is being forked. */
	if (pid <= 0 || pid == getpid() || settings.sealed || space == 0 || space != our_space)
		return false;
	dead = kill(pid, 0) != 0 && errno == ESRCH;
	errno = saved;
	return dead;
}

static void give_up(struct rec *r, int seat)
{
	uint8_t n = atomic_load(&r->held[seat]);

	if (n == 0 || n == UINT8_MAX)
		return;
	atomic_store(&r->held[seat], 0);
	atomic_fetch_sub(&r->home->seat[seat].held, n);
	atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, n) == n)
		sock_abandoned(r);
}

/* With the lock. */
static void clear(struct home *h, int seat)
{
	for (uint32_t n = 0; n < atomic_load(&h->high) && atomic_load(&h->seat[seat].held); n++)
		give_up(&h->rec[n], seat);
	/* What could not be counted keeps the seat. */
	if (atomic_load(&h->seat[seat].held) == 0)
		atomic_store(&h->seat[seat].pid, 0);
}

void family_reap(struct rec *r)
{
	struct home *h = r->home;

	for (int seat = 0; seat < HOME_SEATS; seat++) {
		if (!atomic_load_explicit(&r->held[seat], memory_order_relaxed) ||
		    !is_dead(h, seat) || !rec_lock_take(&h->seats_lock))
			continue;
		if (is_dead(h, seat))
			give_up(r, seat);
		rec_lock_give(&h->seats_lock);
	}
}

static void sweep_one(struct home *h, int seat)
{
	if (!is_dead(h, seat) || !rec_lock_take(&h->seats_lock))
		return;
	if (is_dead(h, seat))
		clear(h, seat);
	rec_lock_give(&h->seats_lock);
}

void family_sweep(struct home *h)
{
	static _Atomic uint32_t turn;

	sweep_one(h, (int)(atomic_fetch_add_explicit(&turn, 1, memory_order_relaxed) % HOME_SEATS));
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
		add(r, next[i] - 1, 1);
}

void family_fork_parent(void)
{
	memset(next, 0, sizeof(next));
}

void family_forked(void)
{
	our_space = 0; /* a child may be in another one */
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

		if (h && known[i].seat >= 0 && atomic_load(&h->seat[known[i].seat].held) == 0)
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
