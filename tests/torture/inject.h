/* SPDX-License-Identifier: MIT */
/*
 * Makes the nth call fail. The program is linked with --wrap for each call below, so every
 * reference from the library and from the test comes here first, from any thread. Beside the
 * failures this counts what is alive: allocations and threads made through the wrapped calls.
 */
#ifndef FLUE_TESTS_INJECT_H
#define FLUE_TESTS_INJECT_H

#include <stdbool.h>

enum inject_call {
	INJECT_ANY = 0, /* every kind below; each fails in its most likely way */
	INJECT_MEMORY,
	INJECT_SOCKET,
	INJECT_BIND,
	INJECT_LISTEN,
	INJECT_ACCEPT,
	INJECT_CONNECT,
	INJECT_SETSOCKOPT,
	INJECT_GETSOCKOPT,
	INJECT_GETSOCKNAME,
	INJECT_GETPEERNAME,
	INJECT_SEND,
	INJECT_SENDMSG,
	INJECT_RECV,
	INJECT_RECVMSG,
	INJECT_SHUTDOWN,
	INJECT_READ,
	INJECT_EPOLL_CREATE,
	INJECT_EPOLL_CTL,
	INJECT_EPOLL_WAIT,
	INJECT_EVENTFD,
	INJECT_THREAD,
	INJECT_RANDOM,
	INJECT_VM_READ,
	INJECT_VM_WRITE,
	INJECT_NCALLS,
};

/* Instead of an errno: the call succeeds, but for one octet only. */
#define INJECT_SHORT 0

struct inject_plan {
	enum inject_call call;
	unsigned long nth;   /* the first call to fail, from 1 */
	unsigned long count; /* so many in a row */
	int error;           /* errno or INJECT_SHORT; not used with INJECT_ANY */
};

const char *inject_name(enum inject_call call);
/* The i-th way in which the call may fail; false past the last. */
bool inject_error(enum inject_call call, unsigned i, int *error);
unsigned inject_errors(enum inject_call call);

/* No thread of the library runs when these two are called. */
void inject_arm(const struct inject_plan *plan);
/* Returns how often the plan struck. */
unsigned long inject_disarm(void);
/* From now on nothing fails any more; the plan still counts as armed. Any time. */
void inject_calm(void);
/* Calls of this kind since the last inject_arm(). */
unsigned long inject_seen(enum inject_call call);
/* Whether the plan has struck already; errno of the last time in *error. */
bool inject_struck(int *error);

/* Every transfer of data moves one octet per call while this is on. */
void inject_trickle(bool on);

/* What is alive now, counted through the wrapped calls. */
long inject_allocations(void);
long inject_threads(void);

#endif
