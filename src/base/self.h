/* SPDX-License-Identifier: MIT */
/* Who this thread and this process are, without a system call. */
#ifndef FLUE_BASE_SELF_H
#define FLUE_BASE_SELF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

extern __thread uint32_t self_known_tid THREAD_LOCAL_FAST;
uint32_t self_ask_tid(void);

static inline uint32_t self_tid(void)
{
	return self_known_tid ? self_known_tid : self_ask_tid();
}

/* One page that a child finds zeroed: the only thing that every way of forking shows. NULL: not begun. */
struct self_life {
	_Atomic uint32_t pid;
};
extern _Atomic(struct self_life *) self_life;

/* From now on self_pid() says who we are. False: there is no memory that a child finds empty. */
bool self_begin(void);
/* 0: not begun; or this is a child, by whatever kind of fork, and has not said so yet. */
static inline int32_t self_pid(void)
{
	struct self_life *l = atomic_load_explicit(&self_life, memory_order_acquire);

	return l ? (int32_t)atomic_load_explicit(&l->pid, memory_order_acquire) : 0;
}

static inline bool self_has_begun(void)
{
	return atomic_load_explicit(&self_life, memory_order_acquire) != NULL;
}

/* In such a child: its thread has another number; later, when all is put right: it is a process of its own. */
void self_forked(void);
void self_begins_anew(void);

#endif
