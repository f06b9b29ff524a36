/* SPDX-License-Identifier: MIT */
/*
 * What the rooms above do when something happens to a record or to the process. Records know nothing of streams,
 * sleepers and hooks; where all rooms are known (preload/rooms.c) this table is made, and it never changes.
 */
#ifndef FLUE_SOCKETS_RECORD_ABOVE_H
#define FLUE_SOCKETS_RECORD_ABOVE_H

#include <stdbool.h>

#include "sockets/record/home.h"

struct record_above {
	/* --- the process */
	/* Settings are read, rooms begin. Once, by the first thread that comes; false: stay on TCP. */
	bool (*start)(void);
	/* This is a child: of a fork whose handlers have counted it, or of one that nobody saw. */
	void (*become_child)(bool counted);

	/* --- a record */
	/* It is connected. */
	void (*connected)(struct rec *r, int fd);
	/* Back to TCP for good, from a lane. */
	void (*step_down)(struct rec *r, int fd, enum why why, bool patient);
	/* Does the peer know it by this number? */
	bool (*is_known_as)(struct rec *r, int fd);
	/* The number `from` goes, and this process still has the socket as `to`. */
	void (*moved)(struct rec *r, int from, int to);
	/* This process has it no more, others have. */
	void (*forgotten)(struct rec *r);
	/* The process ends while others are in calls on it: what the peer is told. With both locks. */
	void (*ending)(struct rec *r, int fd);
	/* The last descriptor goes; `fd` is still open. Or they have gone already, with a process that was killed. */
	void (*closed)(struct rec *r, int fd);
	void (*abandoned)(struct rec *r);
};

extern const struct record_above record_above;

#endif
