/* SPDX-License-Identifier: MIT */
/*
 * Epoll sets with lanes in them. The kernel's set stays the truth for everything the kernel can see; a set of
 * ours remembers what the program wishes of its TCP sockets, so that lanes can be looked at without a
 * system call. For sockets with a lane the kernel is told of changed wishes only before somebody sleeps: programs
 * change them several times for each request.
 *
 * A member is hot while its lane is looked at here, and cold when its peer has been told to ring (LANE_WAITING):
 * then our bell or the kernel reports it, and it costs next to nothing.
 */
#ifndef FLUE_SOCKETS_EPOLL_H
#define FLUE_SOCKETS_EPOLL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct epoll_set;
struct rec;

/* The set behind a descriptor, or NULL: a set we know nothing of, or no set. */
struct epoll_set *epoll_of(int fd);
/* `fd` is a new set. */
void epoll_created(int fd);
/* So many events one call can tell of: never more than there are descriptors in the set. */
uint32_t epoll_most(int ep);
int epoll_control(int ep, int op, int fd, struct epoll_event *event);
/* timeout_ns < 0: for ever. `mask` NULL: leave signals alone. False: not a set of ours, make the real call. */
bool epoll_wait_for(int ep, struct epoll_event *events, int max, int64_t timeout_ns,
		    const __sigset_t *mask, int *result);
/* Is a lane in the set readable? For sets that are waited for themselves. */
bool epoll_lanes_ready(int ep);
/* Close or replacement of any descriptor: a set or a member. In this process, see process_is_self(). */
void epoll_closing(int fd);
void epoll_duplicated(int from, int to);
/* The set is going to be used where we cannot see it: make the kernel's exact, and keep it so. */
void epoll_passing(int fd);
/* A lane was attached somewhere in this process. */
void epoll_lane_appeared(struct rec *r);
/* A reader has left octets that members rely on the kernel for. False: a set could not be told. */
bool epoll_left_over(struct rec *r);
void epoll_fork_prepare(void);
void epoll_fork_parent(void);
void epoll_forked(void);
/* In the child, when the records' counts are its own: its members keep them. */
void epoll_forked_keeps(void);
/* Another program may inherit the kernel's sets. */
void epoll_exec(void);
void epoll_exec_failed(void);
/* The process ends. */
void epoll_ending(void);

#endif
