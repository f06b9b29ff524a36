/* SPDX-License-Identifier: MIT */
/*
 * A door: by which a process can be found under a number that others know, where a mailbox must be told first. It is a unix socket
 * with an abstract name, so it is of one network namespace, as ports are: who has a port of UDP and a door of that number is found
 * by both or by none. Who calls and who is called are of one user, else nobody is there. What comes of a call is a duct (duct.h), in which
 * the caller may put records at once: whoever is called need not run for that.
 *
 * All descriptors stand out of the program's way. Nothing waits.
 */
#ifndef FLUE_CHANNEL_DOOR_H
#define FLUE_CHANNEL_DOOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct duct;

/* What epoll can watch for callers. -EADDRINUSE: somebody has that number; -EMFILE. */
int door_open(uint16_t number);
/* -ECONNREFUSED: nobody of our user is there; -EAGAIN: too many are waiting there; -ENOMEM, -EMFILE. */
int door_call(uint16_t number, pid_t *pid, struct duct **out);

/* The next caller's socket. -EAGAIN: there is none; errors of accept(2). Strangers are turned away. */
int door_accept(int door);
/* What the caller brings. -EAGAIN: it is about to. Else `sock` is taken: 0, or there is no duct. */
int door_answer(int sock, struct duct **out);

/* Has this process ended? One whose parent has not asked for its status yet has. */
bool door_is_dead(pid_t pid);

#endif
