/* SPDX-License-Identifier: MIT */
/* Somebody who writes into one lane whatever may hurt, in a thread or in a process of its own. */
#ifndef FLUE_TESTS_LANE_ATTACKER_H
#define FLUE_TESTS_LANE_ATTACKER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "lane/course.h"

struct attacker {
	struct lane_dir *dir[2];
	_Atomic uint64_t *pos; /* about where the victim stands, for turns that are nearly right */
	struct dice dice;
	_Atomic uint32_t *stop; /* all of it in shared memory */
	_Atomic uint64_t *writes;
	bool gentle;    /* nothing that the victim must notice at once, so that it gets further */
	uint32_t pause; /* out of 100: yields between two writes, for the same */
	pthread_t thread;
	pid_t pid;
};

/* `*stop` and `*writes` begin at 0. */
bool attacker_start(struct attacker *a, bool process);
/* False: it did not end well. */
bool attacker_stop(struct attacker *a);
/* One write; for attacks at chosen moments. */
void attacker_write(struct attacker *a);

#endif
