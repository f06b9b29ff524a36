/* SPDX-License-Identifier: MIT */
/*
 * Descriptors of ours in a program that does not know of them. It may close any number, and use one that it has just
 * closed: so ours are marked from the system call on that makes them (by whoever keeps the table of the program's
 * numbers), those that stay stand at high numbers, and before one is used it is looked at whether it still is ours.
 */
#ifndef FLUE_BASE_OWN_H
#define FLUE_BASE_OWN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Who keeps a table of the program's numbers, if anybody does. */
struct own_watch {
	/* A system call has just made `fd`, 0 or above, for us. Nobody else shall use it. */
	void (*made)(int fd);
	/* Close it, if the program has not put something else there. */
	void (*close)(int fd);
};

/* Registered before the first descriptor, and never taken back. */
void own_set_watch(const struct own_watch *watch);

/* A system call has just made `fd` (or -1, with errno) for us. Returns it. */
int own_new(int fd);
void own_close(int fd);
/* For longer than a moment: move it out of the program's way. Returns the copy, which is not marked any more, or -1. */
int own_move(int fd);
/* Another descriptor of the same thing, out of the program's way; -1: no room. */
int own_copy(int fd);

/* One that stays. Static; all zero at first. */
struct own_fd {
	_Atomic int fd; /* + 1; 0: none */
	dev_t dev;
	ino_t ino;
	_Atomic uint64_t looked;
	_Atomic bool listed;
	struct own_fd *next;
};

/* Keep `fd`, at a high number; closes `fd`. -1: no room. */
int own_keep(struct own_fd *o, int fd);
/* The kept descriptor, if it is still what it was, or -1. */
int own_kept(struct own_fd *o);
/* The same for who asks very often: it was so a moment ago. */
int own_kept_lately(struct own_fd *o);
/* The same, made now if there is none. */
int own_kept_or(struct own_fd *o, int (*make)(void));
void own_drop(struct own_fd *o);

/* Is this number one that we keep? */
bool own_has(int fd);
/* The program wants this number for something else. */
void own_make_way(int fd);
/* The lowest of those kept that is not below `first`, or -1. */
int own_lowest_from(int first);
/* In the child of a fork. */
void own_forked(void);

#endif
