/* SPDX-License-Identifier: MIT */
/*
 * Cancellation. A thread that pthread_cancel(3) ends in the middle of the library would take a lock or the
 * driver's token with it. So:
 *  - every call of the program is a scope with CANCEL_HELD: a request that is there when it begins is acted
 *    upon before anything has happened, a later one when the call is over;
 *  - a call whose purpose is to wait opens a window for its sleep alone, with a clean-up handler that gives
 *    back what it holds;
 *  - threads of ours cannot be cancelled.
 */
#ifndef FLUE_BASE_CANCEL_H
#define FLUE_BASE_CANCEL_H

#include <pthread.h>

/* What to give back, for a window or at the end. */
static inline int cancel_hold(void)
{
	int was;

	pthread_testcancel();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &was);
	return was;
}

static inline void cancel_give_back(const int *was)
{
	pthread_setcancelstate(*was, NULL);
}

/* Declares `cancel_was`; the scope's end gives it back. */
#define CANCEL_HELD \
	__attribute__((cleanup(cancel_give_back), unused)) int cancel_was = cancel_hold()

/* The window, between pthread_cleanup_push() and pthread_cleanup_pop(). */
static inline void cancel_window_open(int was)
{
	pthread_setcancelstate(was, NULL);
}

static inline void cancel_window_shut(void)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}

/* For a thread of ours. */
static inline void cancel_never(void)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
}

#endif
