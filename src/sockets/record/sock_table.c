/* SPDX-License-Identifier: MIT */
/* The table from numbers to records, and who may change it when. */
#include <errno.h>
#include <sched.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "sockets/record/process.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"

_Atomic(struct sock_entry *) sock_chunks[SOCK_FDS / SOCK_CHUNK];
static _Atomic int highest = -1; /* number ever entered */

int sock_highest(void)
{
	return atomic_load_explicit(&highest, memory_order_relaxed);
}

bool sock_in_use(void)
{
	return sock_highest() >= 0;
}

struct sock_entry *sock_entry_make(int fd)
{
	const size_t size = SOCK_CHUNK * sizeof(struct sock_entry);
	struct sock_entry *none = NULL, *c;

	if ((unsigned)fd >= SOCK_FDS || sock_entry(fd))
		return sock_entry(fd);
	c = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c == MAP_FAILED)
		return NULL;
	if (!atomic_compare_exchange_strong(&sock_chunks[(unsigned)fd / SOCK_CHUNK], &none, c))
		munmap(c, size); /* another thread was faster */
	return sock_entry(fd);
}

/* --- changes of the table, and forks: a child must have it as it was counted */

static _Atomic uint32_t changing; /* calls that change the table */
_Atomic uint32_t sock_forking;    /* the thread that forks */
_Atomic uint32_t sock_forks;      /* how many there were, with the one that is under way */
_Atomic bool sock_late;           /* the table was changed within it all the same */
static _Atomic uint32_t ours;     /* numbers that are SOCK_OURS */

void sock_change_begins(void)
{
	uint64_t start = 0;

	for (;;) {
		uint32_t who;

		atomic_fetch_add(&changing, 1);
		who = atomic_load(&sock_forking);
		if (who == 0 || who == self_tid())
			return;
		/* Not for ever: its thread may be in a signal handler that came within such a call. */
		start = start ? start : clock_now();
		if (clock_now() - start > GATE_NS)
			return;
		atomic_fetch_sub(&changing, 1);
		sched_yield();
	}
}

/* The number stands in the table in a moment. A fork may have looked for it already, or will yet. */
void sock_note_late(struct keep *k)
{
	if (!atomic_load(&sock_forking))
		return;
	k->late = atomic_load(&sock_forks);
	atomic_store(&sock_late, true);
}

void sock_change_ends(void)
{
	atomic_fetch_sub(&changing, 1);
}

void sock_fork_begins(void)
{
	uint64_t start = clock_now();
	uint32_t none = 0;

	while (!atomic_compare_exchange_strong(&sock_forking, &none, self_tid()) &&
	       clock_now() - start < GATE_NS) {
		none = 0;
		sched_yield();
	}
	atomic_store(&sock_late, false);
	atomic_fetch_add(&sock_forks, 1);
	while ((atomic_load(&changing) > 0 || atomic_load(&ours) > 0) &&
	       clock_now() - start < GATE_NS)
		sched_yield();
}

/* --- entries */

void sock_enter_at(int fd, struct rec *r)
{
	struct sock_entry *e = sock_entry_make(fd);
	int high = atomic_load(&highest);

	if (!e)
		return;
	while (fd > high && !atomic_compare_exchange_weak(&highest, &high, fd))
		;
	atomic_store_explicit(&e->rec, r, memory_order_release);
}

/* It is something else, if nobody knows better. */
void sock_enter_unknown(int fd)
{
	struct sock_entry *e = sock_entry_make(fd);

	if (e)
		atomic_compare_exchange_strong(&e->rec, &(struct rec *) { NULL }, SOCK_OTHER);
}

void sock_forget(int fd)
{
	if ((unsigned)fd < SOCK_FDS && sock_at(fd) != SOCK_OTHER)
		sock_enter_at(fd, SOCK_OTHER);
}

void sock_unknown(int fd)
{
	struct sock_entry *e = sock_entry(fd);

	if (e)
		atomic_store(&e->rec, NULL);
}

void sock_each(void (*call)(int fd, struct rec *r, void *arg), void *arg)
{
	int high = sock_highest();

	for (int fd = 0; fd <= high; fd++) {
		struct rec *r = sock_at(fd);

		if (sock_is_rec(r))
			call(fd, r, arg);
		else if (!sock_entry(fd))
			fd |= SOCK_CHUNK - 1;
	}
}

/* Who uses the number just now would use the old socket past its lane. Not for ever: the thread may have been stopped. */
struct rec *sock_outwait_closing(int fd)
{
	uint64_t end = clock_now() + GATE_NS;
	struct rec *r;

	while (((r = sock_at(fd)) == SOCK_CLOSING || r == SOCK_OURS) && clock_now() < end)
		sched_yield();
	return sock_is_rec(r) ? r : NULL;
}

/* --- descriptors of ours */

static void ours_made(int fd)
{
	/* In the child of vfork() the table is the parent's, and the number is not. */
	if ((unsigned)fd < SOCK_FDS && process_is_self()) {
		atomic_fetch_add(&ours, 1);
		sock_enter_at(fd, SOCK_OURS);
	}
}

static void ours_closed(int fd)
{
	struct sock_entry *e = sock_entry(fd);
	struct rec *is = SOCK_OURS;

	if (!e || !process_is_self()) {
		sys_close(fd);
		return;
	}
	if (atomic_load(&e->rec) == is)
		sys_close(fd);
	/* It may be another socket's number by now. */
	atomic_compare_exchange_strong(&e->rec, &is, SOCK_OTHER);
	atomic_fetch_sub(&ours, 1);
}

void sock_start(void)
{
	static const struct own_watch watch = { .made = ours_made, .close = ours_closed };

	own_set_watch(&watch);
}

/* The threads that made them are not in this child. */
static void close_inherited(void)
{
	if (atomic_exchange(&ours, 0) == 0)
		return;
	for (int fd = 0; fd <= sock_highest(); fd++) {
		if (sock_at(fd) == SOCK_OURS) {
			sys_close(fd);
			sock_enter_at(fd, SOCK_OTHER);
		}
	}
}

void sock_table_forked(void)
{
	atomic_store(&sock_forking, 0);
	atomic_store(&changing, 0);
	close_inherited();
}
