/* SPDX-License-Identifier: MIT */
/*
 * The order of locks, checked while debug builds run. Locks that stand for the same thing are a class. A thread that takes
 * one class while it has another sets their order for this process; taking them the other way round, over however many
 * others, is the beginning of a deadlock, whether or not it comes to one this time. Nothing is kept of locks that are
 * only tried for, as nobody waits for those.
 */
#ifndef FLUE_BASE_ROBUST_ORDER_H
#define FLUE_BASE_ROBUST_ORDER_H

/* This thread is about to wait for a lock of this class, under `name` in `file`; and has one. */
void robust_order_take(const char *name, const char *file);
void robust_order_has(const void *lock, const char *name, const char *file);
void robust_order_gives(const void *lock);
/* How many this thread has. */
int robust_order_held(void);
/* In the child of a fork. */
void robust_order_forked(void);

#endif
