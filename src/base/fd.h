/* SPDX-License-Identifier: MIT */
/*
 * Descriptors in a process that is not ours. Programs close what they do not know (closefrom(3) closes
 * everything), and the next files they open have the lowest free numbers. So descriptors that stay inside
 * the library stand at high numbers, and before one is closed it is looked at whether it still is ours.
 */
#ifndef FLUE_BASE_FD_H
#define FLUE_BASE_FD_H

#include <stdbool.h>
#include <stdint.h>

/* Moves a descriptor to a high number, if there is room; it is closed on exec. Returns where it is now. -1 stays
 * -1, with its errno. */
int fd_keep(int fd);
/* Another descriptor for the same file, at a high number, or -1. */
int fd_copy(int fd);
/*
 * Numbers that somebody of us uses. As long as one is held no descriptor is kept or copied there, even when
 * the program has closed ours: who does not know that yet would use another's connection, or take
 * another's epoll set for its own and never find out. Numbers from 64 Ki on are not watched.
 */
void fd_hold(int fd);
void fd_release(int fd);
/* What tells one socket from all others; 0: not a socket. */
uint64_t fd_socket(int fd);
/* Closes a socket if it still is the one that `id` names. */
void fd_close_socket(int fd, uint64_t id);
/* Closes an epoll set or the like, if the number still stands for something of that kind. */
void fd_close_anonymous(int fd);

#endif
