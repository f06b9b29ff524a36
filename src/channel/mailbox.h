/* SPDX-License-Identifier: MIT */
/*
 * The mailbox of this process: a unix socket with an abstract name, into which other processes of the same user put
 * letters with descriptors. Credentials are checked on both sides: what strangers send is never read.
 */
#ifndef FLUE_CHANNEL_MAILBOX_H
#define FLUE_CHANNEL_MAILBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define MAILBOX_NAME 8
/* Descriptors that go with a letter, at most. */
#define LETTER_FDS 2

struct letter {
	uint32_t kind;                 /* enum letter_kind */
	uint64_t memory;               /* which one it is about */
	uint8_t mailbox[MAILBOX_NAME]; /* of the sender */
};

enum letter_kind { LETTER_LANES = 'L', LETTER_BELL = 'B', LETTER_TRUNK = 'T', LETTER_DUCT = 'D' };

/* A letter of process `pid`, with 1 to LETTER_FDS descriptors (see base/own.h). True: those are taken. */
typedef bool mailbox_fn(const struct letter *letter, pid_t pid, const int *fds, size_t n);

/* Who reads letters; set before the mailbox is opened. */
void mailbox_set_reader(mailbox_fn *fn);
/* Ours, made now if need be. False: none to be had. */
bool mailbox_open(void);
bool mailbox_is_open(void);
void mailbox_drop(void);
/* Its name, once it was open. */
const uint8_t *mailbox_name(void);
/* The same as a number. */
uint64_t mailbox_key(const uint8_t mailbox[MAILBOX_NAME]);
/* To the process `pid`, or nobody. Fills in the sender. */
bool mailbox_send(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, struct letter *letter,
		  const int *fds, size_t n);
/* Have all read that waits there. */
void mailbox_empty(void);
/* Is it our user at the other end of a unix socket? `pid`, if not NULL: who. */
bool mailbox_same_user(int fd, pid_t *pid);
/* In the child of a fork: it was the parent's. */
void mailbox_forked(void);

#endif
