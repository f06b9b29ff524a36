/* SPDX-License-Identifier: MIT */
/* Who this thread and this process are, without a system call. */
#ifndef FLUE_BASE_SELF_H
#define FLUE_BASE_SELF_H

#include <stdbool.h>
#include <stdint.h>

uint32_t self_tid(void);

/* From now on self_pid() says who we are. False: there is no memory that a child finds empty. */
bool self_begin(void);
/* 0: not begun; or this is a child, by whatever kind of fork, and has not said so yet. */
int32_t self_pid(void);
bool self_has_begun(void);
/* In such a child: its thread has another number; later, when all is put right: it is a process of its own. */
void self_forked(void);
void self_begins_anew(void);

#endif
