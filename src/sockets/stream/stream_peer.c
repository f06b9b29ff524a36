/* SPDX-License-Identifier: MIT */
/* The process at the other end: is it there, where does it run, what does it know of us. */
#include <linux/futex.h>
#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/self.h"
#include "base/sys.h"
#include "channel/arena.h"
#include "channel/meet.h"
#include "sockets/record/process.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

void stream_reset_on_close(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	real(setsockopt)(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

void stream_break(struct rec *r, int fd)
{
	log_error(sockets, "%s to %s: the lane was not as it must be; the connection is reset",
		  LOG_ADDR(&r->end.self), LOG_ADDR(&r->end.peer));
	atomic_store_explicit(&r->why, WHY_BROKEN, memory_order_relaxed);
	record_step(r, REC_EV_LEAVE);
	lane_rx_forsake(&r->rx);
	stream_reset_on_close(fd);
	real(shutdown)(fd, SHUT_RDWR);
}

void stream_ask_for_end(struct rec *r, int fd)
{
	uint64_t now = clock_coarse();
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	LANE_STORE(r->looked_at, now);
	if (sys_poll(&p, 1) <= 0)
		return;
	if ((p.revents & (POLLERR | POLLHUP)) || !(atomic_load(&r->rx.dir->word) & LANE_FIN))
		atomic_fetch_or(&r->flags, REC_PEERGONE);
}

uint32_t stream_peer_cpu(const struct rec *r)
{
	return atomic_load_explicit(&r->rx.dir->tx_cpu, memory_order_relaxed);
}

uint32_t stream_reader_cpu(const struct rec *r)
{
	return atomic_load_explicit(&r->tx.dir->rx_cpu, memory_order_relaxed);
}

bool stream_is_known_as(struct rec *r, int fd)
{
	struct lane_shared *l;

	if (!sock_has_lane(r))
		return false;
	l = &arena_memory(r->end.arena)->lane[r->end.lane];
	return atomic_load(&l->pid[r->end.side]) == getpid() &&
	       atomic_load(&l->fd[r->end.side]) == fd;
}

int stream_bell(struct rec *r)
{
	return process_is_self() ? meet_bell(&r->end) : arena_bell(r->end.arena);
}

void stream_hint(struct rec *r, int fd)
{
	struct lane_shared *l = &arena_memory(r->end.arena)->lane[r->end.lane];

	LANE_STORE(r->hint_pid, self_pid());
	atomic_store(&l->fd[r->end.side], fd);
	atomic_store(&l->pid[r->end.side], self_pid());
}

void stream_moved(struct rec *r, int from, int to)
{
	if (stream_is_known_as(r, from))
		atomic_store(&arena_memory(r->end.arena)->lane[r->end.lane].fd[r->end.side], to);
}
