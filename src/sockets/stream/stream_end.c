/* SPDX-License-Identifier: MIT */
/* The ways off a lane: half closes, closing, stepping down to TCP. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "channel/arena.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/stream/carrier.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

static void note_shutdown(struct rec *r, int how)
{
	static const uint32_t flags[] = { [SHUT_RD] = REC_SHUT_RD,
					  [SHUT_WR] = REC_SHUT_WR,
					  [SHUT_RDWR] = REC_SHUT_RD | REC_SHUT_WR };

	atomic_fetch_or(&r->flags, flags[how]);
	/* What comes now is answered with a reset, by the kernel. */
	if (sock_flag(r, REC_SHUT_RD) && sock_flag(r, REC_SHUT_WR) && sock_has_lane(r))
		lane_rx_forsake(&r->rx);
}

/* Threads that sleep for room must not go on doing so. */
static void wake_writers(struct rec *r)
{
	sys_call(SYS_futex, &r->tx.dir->head, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* With the lock of sending, if `lane`. */
static int shut(struct rec *r, int fd, int how, bool lane)
{
	int result, saved;

	/* A hint for a receiver that spins; the end itself comes on the carrier. */
	if (lane)
		lane_tx_end(&r->tx);
	result = real(shutdown)(fd, how);
	saved = errno;
	if (lane && lane_tx_rouse(&r->tx))
		nap_end(r->tx.dir);
	if (result == 0)
		note_shutdown(r, how);
	if (lane)
		wake_writers(r);
	errno = saved;
	return result;
}

int stream_shutdown(struct rec *r, int fd, int how)
{
	int number = sock_lock(r, &r->tx_lock, fd, false);
	bool lane;
	int result;

	if (number == SOCK_GONE)
		return STREAM_AGAIN;
	/* Whoever sends from now on does so by the carrier, behind what is in the ring. */
	lane = how != SHUT_RD && sock_has_lane(r);
	if (lane)
		atomic_fetch_or(&r->flags, REC_SHUT_WR);
	result = shut(r, fd, how, lane);
	if (number >= 0)
		robust_give(&r->tx_lock);
	return result;
}

void stream_serve(struct rec *r, int fd)
{
	if (!sock_has_lane(r) ||
	    !(atomic_load_explicit(&r->tx.dir->word, memory_order_acquire) & LANE_RECALL))
		return;
	if (!robust_try(&r->tx_lock))
		return; /* who sends sees to it */
	if (sock_at(fd) == r && sock_has_lane(r) && stream_leave(r, fd, false) == STREAM_BROKEN)
		stream_break(r, fd);
	robust_give(&r->tx_lock);
}

bool stream_bars_carrier(struct rec *r, int fd)
{
	stream_serve(r, fd);
	return stream_wants_room(r);
}

/* The peer's own socket, borrowed. Needs the right to trace the peer; -1: not to be had. */
static int borrow_peer(struct rec *r)
{
	struct lane_shared *l = &arena_memory(r->end.arena)->lane[r->end.lane];
	uint32_t other = 1 - r->end.side;
	int pid = own_new((int)sys_call(SYS_pidfd_open, atomic_load(&l->pid[other]), 0));
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	int fd;

	if (pid < 0)
		return -1;
	fd = own_new((int)sys_call(SYS_pidfd_getfd, pid, atomic_load(&l->fd[other]), 0));
	own_close(pid);
	if (fd >= 0 && (real(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0 ||
			cookie != r->end.peer_cookie)) {
		own_close(fd);
		return -1;
	}
	return fd;
}

/* Octets that the carrier has been promised before those of the ring must be there, or they would come behind them. */
static bool has_come(struct rec *r, int fd)
{
	uint64_t word;
	size_t limit;
	int there = 0;

	if (lane_rx_look(&r->rx, &word, &limit) != LANE_FROM_CARRIER)
		return true;
	return real(ioctl)(fd, SIOCINQ, &there) == 0 && (size_t)there >= limit;
}

/* Do for the peer what it would do at its next call: send what is unread again on the carrier. */
static bool take_back(struct rec *r, int own)
{
	struct iovec piece[2];
	int fd = borrow_peer(r);
	bool ok = false, broken = false;
	int n;

	if (fd < 0)
		return false;
	n = has_come(r, own) ? lane_rx_take_back(&r->rx, piece) : -1;
	if (n > 0) {
		ok = carrier_put_all(fd, piece, n, &broken);
		lane_rx_taken_back(&r->rx, ok);
		if (broken)
			stream_break(r, own);
	}
	own_close(fd);
	return ok;
}

static bool peer_has_ended(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	return sys_poll(&p, 1) > 0;
}

/* One try to get what we did not read onto the carrier. With the lock of receiving. */
enum recall { RECALL_DONE, RECALL_WAIT, RECALL_NEVER };

static enum recall recall(struct rec *r, int fd)
{
	/* Always asked for: the peer may be about to publish. */
	lane_rx_recall(&r->rx);
	if (lane_rx_unread(&r->rx) == 0)
		return RECALL_DONE; /* there was nothing; it stays asked for */
	if (take_back(r, fd))
		return RECALL_DONE;
	return sock_has_lane(r) && !peer_has_ended(fd) ? RECALL_WAIT : RECALL_NEVER;
}

/* One try to leave with what we send. */
static enum stream_left leave_once(struct rec *r, int fd)
{
	int number = sock_lock(r, &r->tx_lock, fd, false);
	enum stream_left left = STREAM_BROKEN;

	if (number < 0)
		return left;
	if (sock_has_lane(r)) {
		atomic_fetch_or(&r->flags, REC_PINNED);
		left = stream_leave(r, number, true);
		if (left == STREAM_BROKEN)
			stream_break(r, number);
		wake_writers(r);
	}
	robust_give(&r->tx_lock);
	return left;
}

/* Our own sending goes to the carrier, for good. A peer that takes octets back just now must be done first, or what the
 * program sends next would overtake them; it is a matter of microseconds, and not waited for longer than a moment. */
static bool leave_for_good(struct rec *r, int fd)
{
	const struct timespec pause = { .tv_nsec = LEAVE_PAUSE };
	uint64_t start = clock_now();
	enum stream_left left;

	while ((left = leave_once(r, fd)) == STREAM_LATER && clock_now() - start < LEAVE_NS)
		sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
	return left != STREAM_BROKEN;
}

static bool become_plain(struct rec *r, int fd)
{
	if (lane_tx_in_ring(&r->tx))
		return false;
	stream_restore_options(r, fd);
	record_step(r, REC_EV_LEAVE);
	return true;
}

bool stream_comes_down(struct rec *r, int fd)
{
	/* After GONE nothing can come into the ring; what is not in it the kernel has. */
	return (atomic_load(&r->rx.dir->word) & LANE_GONE) && lane_rx_unread(&r->rx) == 0 &&
	       become_plain(r, fd);
}

/* One round of stepping down with what is received. True: no use in another one. */
static bool come_down(struct rec *r, int fd, bool last)
{
	int number = sock_lock(r, &r->rx_lock, fd, false);
	enum recall how = RECALL_NEVER;

	if (number < 0)
		return true;
	if (sock_has_lane(r)) {
		how = recall(r, number);
		if (how == RECALL_DONE)
			become_plain(r, number);
		else if (how == RECALL_NEVER || last)
			lane_rx_recall_no_more(&r->rx);
	}
	robust_give(&r->rx_lock);
	return how != RECALL_WAIT;
}

void stream_step_down(struct rec *r, int fd, enum why why, bool patient)
{
	const struct timespec pause = { .tv_nsec = RECALL_PAUSE };
	uint64_t start = clock_now();
	bool last = !patient;

	if (!leave_for_good(r, fd))
		return;
	atomic_store_explicit(&r->why, why, memory_order_relaxed);
	while (!come_down(r, fd, last) && !last) {
		ROBUST_NONE();
		sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
		last = clock_now() - start > RECALL_NS;
	}
	atomic_fetch_add(&r->home->stepdowns, 1);
}

void stream_say_end(struct rec *r, int fd)
{
	if (!sock_has_lane(r))
		return;
	/* Unread octets make the kernel reset a connection; it does not know of ours. */
	if (lane_rx_unread(&r->rx) > 0)
		stream_reset_on_close(fd);
	lane_rx_forsake(&r->rx);
	lane_tx_end(&r->tx);
	/* It will not nap again, and finds the end on the carrier. */
	if (lane_tx_rouse(&r->tx))
		nap_end(r->tx.dir);
}

void stream_close(struct rec *r, int fd)
{
	struct arena *a = r->end.arena;

	stream_forget_large(r);
	stream_say_end(r, fd);
	r->end.arena = NULL;
	/* What was agreed on after a fork is not in the child's memory. */
	if (arena_has(a, r->end.lane, r->end.side, r->end.cookie))
		arena_give(a, r->end.lane, r->end.side);
}

void stream_abandon(struct rec *r)
{
	struct arena *a = r->end.arena;

	/* Without LANE_FIN, which a process that is killed does not set either. */
	if (sock_has_lane(r))
		lane_rx_forsake(&r->rx);
	r->end.arena = NULL;
	arena_give(a, r->end.lane, r->end.side);
}
