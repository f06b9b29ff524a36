/* SPDX-License-Identifier: MIT */
/*
 * Calls that threads make by number, past any record: while they are in the kernel, or about to be, the number may come to
 * mean another connection, and what they do there must not meet a lane. So each thread says first
 * which number it goes to the kernel with, and looks at the table again; and a lane begins only where nobody does.
 * A program with one thread says nothing.
 */
#ifndef FLUE_SOCKETS_RAW_H
#define FLUE_SOCKETS_RAW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/single_threaded.h>

struct rec;

struct raw_seat {
	_Alignas(64) _Atomic uint32_t tid; /* whose it is; 0: nobody's */
	_Atomic int32_t number;            /* + 1 */
};

/* One such call. */
struct raw_call {
	struct raw_seat *seat; /* NULL: not told */
	int32_t before;        /* of the call that a signal handler interrupted */
	struct rec *r;         /* counted there, see sock_enter() */
};

/* This thread's; NULL: there is none left. */
struct raw_seat *raw_seat(void);

/* Before the table is looked at for the last time. */
static inline void raw_begins(struct raw_call *c, int fd)
{
	if (__libc_single_threaded)
		return;
	c->seat = raw_seat();
	if (c->seat)
		c->before = atomic_exchange(&c->seat->number, fd + 1);
}

/* The seat is free again; of sock_raw_ends(). */
static inline void raw_leave(struct raw_call *c)
{
	if (c->seat)
		atomic_store_explicit(&c->seat->number, c->before, memory_order_release);
	c->seat = NULL;
}

/* Is another thread in the kernel with this number; with one of which this is so? */
bool raw_is_used(int fd);
bool raw_any(bool (*is)(int fd, const void *arg), const void *arg);

/* In the child of a fork. */
void raw_forked(void);

#endif
