/* SPDX-License-Identifier: MIT */
/* Where all rooms are known: what lower rooms ask of upper ones. */

#include <unistd.h>

#include "sockets/attach/young.h"
#include "sockets/preload/fork.h"
#include "sockets/preload/report.h"
#include "sockets/preload/start.h"
#include "sockets/record/above.h"
#include "sockets/sleep/above.h"
#include "sockets/stream/stream.h"

static void connection_closed(struct rec *r, int fd)
{
	report_connection(r->home, r, fd);
	if (r->end.arena)
		stream_close(r, fd);
}

static void connection_abandoned(struct rec *r)
{
	report_connection(r->home, r, -1);
	if (r->end.arena && r->lane_pid == getpid())
		stream_abandon(r);
}

const struct sleep_above sleep_above = { .grow = young_grow, .pace = young_pace };

const struct record_above record_above = {
	.start = start_process,
	.become_child = fork_become_child,
	.connected = report_connected,
	.step_down = stream_step_down,
	.is_known_as = stream_is_known_as,
	.moved = stream_moved,
	.forgotten = stream_forget_large,
	.ending = stream_say_end,
	.closed = connection_closed,
	.abandoned = connection_abandoned,
};
