/* SPDX-License-Identifier: MIT */
/*
 * A peer's regions as it shows them (shown.h), and how we reach its memory: the kernel copies (process_vm_readv, process_vm_writev),
 * which it does only between processes that could trace each other anyway. In a process with itself we copy.
 *
 * A process number says little: its process may have become another program since, or the number may be another process's. So each
 * copy first touches the peer's guard page, which stands at a random place that only this life of that process has; the kernel
 * does all parts of one call in the same address space, in their order, and stops at the first that is not there.
 *
 * Whatever goes wrong here is no verdict: the request then goes to the peer's engine, which judges it as any other.
 *
 * Under the engine's lock.
 */
#ifndef FLUE_RNIC_VIEW_H
#define FLUE_RNIC_VIEW_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define VIEW_STEP   (256 * 1024u) /* octets under one claim, at most */
#define VIEW_PIECES 33            /* of our memory, in one step */

struct shown_file;

struct view {
	const struct shown_file *file;
	_Atomic uint64_t *word; /* where we claim */
	pid_t pid;
	bool self;       /* the peer is this process */
	bool out_of_use; /* the kernel has refused */
	uint64_t guard, token;
	uint32_t key[4];
	ino_t ino;
};

/* Takes `fd`, which came from process `pid`. NULL: it is no such file, or the kernel will not copy. */
struct view *view_open(int fd, pid_t pid, _Atomic uint64_t *word);
void view_close(struct view *v);
/* In the child of a fork: it was not inherited. */
void view_forked(struct view *v);

/* What we are about to touch, for whom. */
struct view_range {
	uint32_t gate; /* the peer's; and of which circuit it must be */
	uint32_t circuit;
	uint32_t stag;
	uint32_t access; /* all of these rights are needed; 0: it is the peer's own request */
	uint64_t to;
	uint32_t length; /* up to VIEW_STEP */
};

/* Claims it. true: it may be touched at *at, in the peer, until view_give(). */
bool view_take(struct view *v, const struct view_range *r, uint64_t *at);
void view_give(struct view *v);

/* The same for another range of that gate and key, which stays claimed. */
bool view_also(const struct view *v, const struct view_range *r, uint64_t *at);

/* Several ranges to be written, with one call of the kernel. */
#define VIEW_BATCH 16
struct view_batch {
	struct iovec own[2 * VIEW_PIECES + 1], peer[VIEW_BATCH + 1];
	uint32_t n_own, n_peer;
	size_t len;
	bool failed;
};

void view_begin(struct view *v, struct view_batch *b);
/* `n` pieces of our memory go to `at`, in their order; in all `len` octets. `last`: the last octet becomes visible last. false: the batch
 * has no room for it. */
bool view_add(struct view *v, struct view_batch *b, const struct iovec *from, uint32_t n,
	      uint64_t at, size_t len, bool last);
/* false: not everything was written. What is missing is at the end. */
bool view_write(struct view *v, struct view_batch *b);

/* Into up to VIEW_PIECES of our memory, `len` octets in all. false: not all of it. */
bool view_read(struct view *v, const struct iovec *into, uint32_t n, uint64_t at, size_t len);

#endif
