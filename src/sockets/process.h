/* SPDX-License-Identifier: MIT */
/*
 * What this process is: settings from the environment, its home, and whether
 * it is still the process that set them up. Nothing is set up before a program makes its first
 * TCP socket.
 */
#ifndef FLUE_SOCKETS_PROCESS_H
#define FLUE_SOCKETS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "channel/bell.h"
#include "sockets/home.h"
#include "sockets/policy.h"

struct settings {
	_Atomic bool off;
	_Atomic bool why; /* tell at exit what stayed on TCP */
	char stats[256];  /* append totals to this file at exit, or "" */
	bool bad_rules;
	bool user_rules;     /* some rule names a user */
	_Atomic bool uring;  /* the program uses io_uring: no lanes */
	_Atomic bool sealed; /* system calls are filtered: make none of our own */
	struct policy_self self;
	struct policy policy;
};

extern struct settings settings;
extern _Atomic(struct home *) home; /* NULL: none yet, or none to be had */
extern char process_name[32];

/* Read the environment, once. */
void process_init(void);
/* A home of this process, made now if need be; NULL: stay on TCP. */
struct home *process_home(void);
/* False in a child of vfork(), which shares our memory and must touch nothing. A child of an unseen fork
 * is made a process of its own here. */
bool process_is_self(void);
/* Around a fork: by the C library's handlers, or by hand where it does not know of it. */
void process_fork_prepare(void);
void process_fork_parent(void);
void process_fork_child(void);

#endif
