/* SPDX-License-Identifier: MIT */
/*
 * What this process is: settings from the environment, its home, the few descriptors of ours, and whether
 * it is still the process that set them up. Nothing is set up before a program makes its first
 * TCP socket.
 */
#ifndef FLUE_SOCKETS_PROCESS_H
#define FLUE_SOCKETS_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "sockets/bell.h"
#include "sockets/home.h"
#include "sockets/policy.h"

struct settings {
	uint32_t spin_ns; /* the longest spin of a wait */
	uint32_t yields;  /* the most yields of a wait */
	_Atomic bool off;
	_Atomic bool why; /* tell at exit what stayed on TCP */
	char stats[256];  /* append totals to this file at exit, or "" */
	bool bad_rules;
	bool user_rules;     /* some rule names a user */
	_Atomic bool uring;  /* the program uses io_uring: no lanes */
	_Atomic bool sealed; /* system calls are filtered: make none of our own */
	struct policy_self self;
	struct policy policy;
	uint32_t max_lanes;
};

/* Descriptors of ours. Programs must not close them by chance, and we must notice if they do. */
enum process_fd {
	OUR_HOME,
	OUR_MAILBOX,
	OUR_BOARD,
	OUR_BELL,
	OUR_ROPE,  /* what rings it */
	OUR_PEERS, /* bells of other processes */
	OUR_FDS = OUR_PEERS + BELL_PEERS,
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
/* Another descriptor of the same thing, out of the program's way; -1: no room. */
int process_copy(int fd);
/* Keep `fd` as ours, at a high number; closes `fd`. -1: no room. */
int process_keep(enum process_fd which, int fd);
/* The kept descriptor, if it is still what it was, or -1. */
int process_kept(enum process_fd which);
/* The same for who asks very often: it was so a moment ago. */
int process_kept_lately(enum process_fd which);
/* The same, made now if there is none. */
int process_kept_or(enum process_fd which, int (*make)(void));
void process_drop(enum process_fd which);
bool process_owns(int fd);
/* The program wants this number for something else. */
void process_make_way(int fd);
/* The lowest of ours that is not below `first`, or -1. */
int process_lowest_from(int first);
/* May this process make a file of this size? Trying it would end the program, with SIGXFSZ. */
bool process_may_grow(size_t size);
/* Memory of a file, shared, or without one (-1) private. NULL: not to be had, or more than our share of
 * the address space that the program has been allowed. */
void *process_map(int fd, size_t size);
/* What stands in the file behind memory that is mapped up to `end`. No descriptor is needed for that. */
void *process_map_behind(const void *end, size_t size);
void process_unmap(void *p, size_t size);
uint32_t process_tid(void);
/* This process, without a system call; 0 in one that has just been forked. */
int32_t process_pid(void);

#endif
