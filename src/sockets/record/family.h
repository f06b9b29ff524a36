/* SPDX-License-Identifier: MIT */
/*
 * Processes that share records by fork. Each has a seat in every home whose records it holds, and each record
 * says how many descriptors the process on each seat has of it. So what a process held that was
 * killed can be taken off the record's counts, by relatives: when they close such a record, and bit by bit when
 * the owner of the home makes new ones. Who finds no seat is not counted so, and leaves its counts behind.
 */
#ifndef FLUE_SOCKETS_FAMILY_H
#define FLUE_SOCKETS_FAMILY_H

#include <stdbool.h>
#include <stdint.h>

#include "sockets/record/home.h"

/* This process has made the home, of which the first piece is mapped. False: no memory. */
bool family_founded(struct home *h);
/* A record, and what calls of this process have to do with it, if its piece is mapped here, or NULL. */
struct rec *family_rec(const struct home *h, uint32_t number);
struct keep *family_keep(const struct home *h, uint32_t number);
/* Stands for what is not known. */
extern struct keep family_stray;
/* Map one more piece of the home of this process, if that is needed for this record. Returns how many
 * records can be reached. */
uint32_t family_reach(struct home *h, uint32_t number);
/* In the child of a fork: calls of the parent's other threads are not here. */
void family_forget_calls(void);
/* This process has so many more descriptors of the record. Counted up after refs and procs, down before. */
void family_hold(struct rec *r, int change);
/* About to fork; the child will have one more of this record. */
void family_count_child(struct rec *r);
/* ... has forked, in the parent; in the child. */
void family_fork_parent(void);
void family_forked(void);
/* This process ends, or runs another program, and holds nothing any more; that program could not be run. */
void family_leave(void);
void family_return(void);
/* Relatives that were killed do not hold this record any more. The caller does. */
void family_reap(struct rec *r);
/* Many records are going to be closed: who is found alive is not asked for again until that is over. */
void family_look_once(bool once);
/* Look after one of the relatives who share this home. */
void family_sweep(struct home *h);

#endif
