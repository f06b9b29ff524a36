/* SPDX-License-Identifier: MIT */
/* What the environment says of this process; read once (preload/start.c), before the program's first TCP socket. */
#ifndef FLUE_SOCKETS_RECORD_SETTINGS_H
#define FLUE_SOCKETS_RECORD_SETTINGS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "sockets/switch/policy.h"

struct settings {
	_Atomic bool off;
	_Atomic bool why; /* tell at exit what stayed on TCP */
	char stats[256];  /* append totals to this file at exit, or "" */
	char name[32];    /* of the program */
	bool bad_rules;
	bool user_rules;     /* some rule names a user */
	_Atomic bool uring;  /* the program uses io_uring: no lanes */
	_Atomic bool sealed; /* system calls are filtered: make none of our own */
	struct policy_self self;
	struct policy policy;
};

extern struct settings settings;

#endif
