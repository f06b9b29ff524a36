/* SPDX-License-Identifier: MIT */
/*
 * A duct: memory that two threads of two processes, or of one, share: a ring of records each way. For messages that are looked at as
 * soon as they come and in the order in which they come: unlike a trunk it keeps nothing for anybody, and so costs less. A small record
 * moves in one cache line.
 *
 * The peer is not trusted. It can write anything anywhere in the memory at any time; a record that cannot be ends the duct.
 *
 * Each side is used by one thread at a time; nothing waits. No malloc(), no signal handlers, one mapping and one descriptor. The
 * child of a fork has nothing of it: there duct_forked() is called, then duct_close().
 */
#ifndef FLUE_CHANNEL_DUCT_H
#define FLUE_CHANNEL_DUCT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/mailbox.h"

#define DUCT_RECORD_MAX (32 * 1024 - 64) /* octets of a record */

struct duct;

/* ---- making ---- */

/* A duct to the process with this mailbox, which may be our own; it gets the other side by duct_answer(). `name` is the caller's, and
 * nobody else's within both processes. -ECONNREFUSED: nobody is there, or somebody else; -ENOMEM, -EMFILE. */
int duct_call(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, uint64_t name, struct duct **out);
/* The one of that name that process `pid` made. -ENOENT: there is none. */
int duct_answer(pid_t pid, uint64_t name, struct duct **out);
/* From now on others can call us, by our mailbox. false: none to be had. */
bool duct_reachable(void);
/* The same for two sides that have found each other, and a socket: what each has of it, out of the program's way, is taken. The one
 * who makes it gives the other the memory, which is the caller's to close. -EINVAL: that is none; -ENOMEM, errors of memfd_create(2). */
int duct_make(int sock, int *memory, struct duct **out);
int duct_take(int memory, int sock, struct duct **out);
void duct_close(struct duct *d);
/* In the child of a fork: of this one, and of those that nobody has answered. */
void duct_forked(struct duct *d);
void duct_forked_all(void);

/* ---- records ---- */

/* Room for one of up to `size` octets, aligned to 8; NULL: there is none now, or the duct is over. */
void *duct_begin(struct duct *d, size_t size);
/* Its first `size` octets go out: the peer can see them. */
void duct_post(struct duct *d, size_t size);
/* After records were posted, once for all of them: wakes the peer if it sleeps. */
void duct_flush(struct duct *d);
/* There was no room: the peer wakes us when there is. false: there is by now. */
bool duct_want_room(struct duct *d);

/* The next that has come; NULL: none. The peer may change its octets at any time. */
const void *duct_next(struct duct *d, size_t *size);
/* There is none, nor anything else to do. */
bool duct_is_quiet(const struct duct *d);
/* It has been dealt with. */
void duct_done(struct duct *d);

/* ---- beside the records ---- */

/* A word that one side writes and the other can read: ours, and the peer's. 0 at first. */
_Atomic uint64_t *duct_own_word(struct duct *d);
_Atomic uint64_t *duct_peer_word(struct duct *d);
/* Lets the peer have a copy of `fd`; once. It may get lost, where the peer has no room for it. */
void duct_pass(struct duct *d, int fd);
/* What the peer has passed, found by duct_heard(); the caller's from now on. -1: nothing. */
int duct_passed(struct duct *d);

/* ---- sleeping ---- */

/* What epoll can watch for reading: a ring, or the end of the peer. Call duct_heard() then. */
int duct_fd(const struct duct *d);
void duct_heard(struct duct *d);
/* Before a sleep: false: something has come. The peer rings once. */
bool duct_arm(struct duct *d);
/* 0; -EPIPE: the peer has gone, and what it sent is behind duct_next(); -EPROTO: it broke a rule. */
int duct_status(const struct duct *d);

#endif
