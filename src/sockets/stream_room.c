/* SPDX-License-Identifier: MIT */
/* Waiting for room in the ring: how long, where, and when the carrier is the better way. */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/nap.h"
#include "sockets/process.h"
#include "sockets/quick.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"
#include "sockets/wait.h"

/* A sender that never receives asks the kernel this often whether the peer is still there. */
#define LOOK_NS (1 * NSEC_PER_MSEC)
/* A sleep for room looks around this often. */
#define ROOM_SLICE (10 * 1000 * 1000)
/* A reader that takes nothing for so long may be waiting for the writer, who then gets the carrier: TCP has room for
 * more than a ring. */
#define ROOM_PATIENCE (2 * NSEC_PER_SEC)
/* ... the more so if it has no room itself. */
#define ROOM_DEADLOCK (200 * NSEC_PER_MSEC)
/* A sleep in poll() that the reader's making room ends; it delays all else that the program polls for. */
#define ROOM_NAP NSEC_PER_MSEC
/* Behind that it looks around this often, the less often the longer it has waited. */
#define ROOM_GLANCE_LEAST (50 * 1000)
#define ROOM_GLANCE_MOST  (20 * NSEC_PER_MSEC)

_Atomic uint32_t stream_refusals;

static bool has_room(void *arg)
{
	struct rec *r = arg;
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_acquire);
	uint64_t word = atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed);

	return r->tx.tail - head <= LANE_RING / 2 || (word & (LANE_GONE | LANE_RECALL)) ||
	       lane_tx_needs_octet(&r->tx, word);
}

void stream_look_for_end(struct rec *r, int fd)
{
	uint64_t now = clock_coarse();
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	if (now - r->looked_at < LOOK_NS)
		return;
	r->looked_at = now;
	if (quick_poll(&p, 1) <= 0)
		return;
	if ((p.revents & (POLLERR | POLLHUP)) || !(atomic_load(&r->rx.dir->word) & LANE_FIN))
		atomic_fetch_or(&r->flags, REC_PEERGONE);
}

static bool leaves_anyway(struct rec *r)
{
	uint64_t word = atomic_load(&r->tx.dir->word);

	return sock_flag(r, STREAM_NO_RING) || (word & (LANE_GONE | LANE_RECALL)) ||
	       lane_tx_needs_octet(&r->tx, word);
}

/* Is it worth waiting for the reader any longer? */
static bool reader_moves(struct rec *r)
{
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_relaxed);
	uint64_t most = lane_rx_held(&r->rx) > LANE_RING / 2 ? ROOM_DEADLOCK : ROOM_PATIENCE;
	uint64_t now = clock_now();

	if (r->full_since == 0)
		r->full_since = now;
	if (r->moved_at < r->full_since || r->moved_head != head) {
		r->moved_at = now;
		r->moved_head = head;
	}
	return now - r->moved_at < most;
}

/*
 * Sleep until the receiver has made room, in slices: only the carrier knows whether it is still
 * there; or until it does not seem to make any. 0, or -1 and errno as send() would say it.
 */
static int sleep_for_room(struct rec *r, int fd)
{
	struct timeval limit = { 0 };
	socklen_t size = sizeof(limit);
	uint64_t start = clock_now();
	uint64_t most;

	real(getsockopt)(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &size);
	most = (uint64_t)limit.tv_sec * NSEC_PER_SEC + (uint64_t)limit.tv_usec * 1000;
	r->full_since = 0;
	while (!has_room(r) && !leaves_anyway(r)) {
		const struct timespec slice = { .tv_nsec = ROOM_SLICE };
		uint32_t head = atomic_load(&r->tx.dir->head);

		atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_FUTEX);
		if (has_room(r))
			break;
		if (real(syscall)(SYS_futex, &r->tx.dir->head, FUTEX_WAIT, head, &slice, NULL, 0) !=
			    0 &&
		    errno == EINTR && (most > 0 || !nap_goes_on()))
			return -1;
		pthread_testcancel();
		r->looked_at = 0;
		stream_look_for_end(r, fd);
		if (most > 0 && clock_now() - start > most) {
			errno = EAGAIN;
			return -1;
		}
		if (!reader_moves(r))
			break;
	}
	return 0;
}

/* The program must wait, perhaps for an edge: only we know when there is room. */
void stream_note_refusal(struct rec *r)
{
	atomic_fetch_add_explicit(&r->tx_refused, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&stream_refusals, 1, memory_order_relaxed);
}

/*
 * The ring is full: wait a little for room. Then a call that may block sleeps; one that may not is refused, and gets
 * the carrier when the reader does not seem to read at all.
 */
int stream_overflow(struct rec *r, int fd, bool block)
{
	uint32_t most = block ? settings.spin_ns : min_u32(STREAM_ROOM_NS, settings.spin_ns);
	uint32_t peer = atomic_load_explicit(&r->tx.dir->rx_cpu, memory_order_relaxed);
	uint32_t budget = most;

	if (wait_ladder(has_room, r, peer, &budget, most))
		return 0;
	if (block) {
		if (sleep_for_room(r, fd) != 0)
			return -1;
		if (has_room(r) || leaves_anyway(r))
			return 0;
	}
	/* Told that it is writable, by the kernel: then it is. Otherwise waiting in poll() comes first; not for ever,
	 * as the program may wait where we cannot see it. */
	if (!block && !atomic_load_explicit(&r->tx_told, memory_order_relaxed) &&
	    stream_wants_room(r)) {
		stream_note_refusal(r);
		errno = EAGAIN;
		return -1;
	}
	if (stream_leave(r, fd))
		return 0;
	errno = ECONNRESET;
	return -1;
}

bool stream_is_full(const struct rec *r)
{
	return sock_has_lane(r) && lane_tx_in_ring(&r->tx) && !has_room((void *)r) &&
	       !sock_flag(r, STREAM_NO_RING);
}

bool stream_wants_room(struct rec *r)
{
	if (stream_is_full(r))
		return reader_moves(r);
	r->full_since = 0;
	return false;
}

bool stream_can_be_rung(const struct rec *r)
{
	/* Nobody would tell of a peer that said it sends no more, and then died. */
	return atomic_load_explicit(r->tx_holds, memory_order_relaxed) &&
	       !(atomic_load_explicit(&r->rx.dir->word, memory_order_relaxed) & LANE_FIN);
}

bool stream_ask_room(struct rec *r)
{
	atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_BELL);
	return stream_is_full(r);
}

void stream_peer_ended(struct rec *r, int fd)
{
	r->looked_at = 0;
	stream_look_for_end(r, fd);
}

bool stream_may_nap(const struct rec *r)
{
	return clock_now() - r->full_since < ROOM_NAP;
}

int64_t stream_glance(const struct rec *r)
{
	uint64_t ns = (clock_now() - r->full_since) / 4;

	return (int64_t)min_u64(ns + ROOM_GLANCE_LEAST, ROOM_GLANCE_MOST);
}

int stream_await_room(struct rec *r, int64_t ns)
{
	struct timespec slice = { .tv_nsec = ROOM_NAP };
	uint32_t head = atomic_load(&r->tx.dir->head);

	if (ns >= 0 && ns < slice.tv_nsec)
		slice.tv_nsec = (long)ns;
	atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_FUTEX);
	if (stream_is_full(r) &&
	    real(syscall)(SYS_futex, &r->tx.dir->head, FUTEX_WAIT, head, &slice, NULL, 0) != 0 &&
	    errno == EINTR)
		return -1;
	return 0;
}

bool stream_writable(struct rec *r)
{
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_acquire);

	return lane_tx_in_ring(&r->tx) && r->tx.tail - head <= LANE_RING / 2 &&
	       !(atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) &
		 (LANE_GONE | LANE_RECALL | LANE_TAKING)) &&
	       !sock_flag(r, STREAM_NO_RING);
}

void stream_told_writable(struct rec *r)
{
	atomic_store_explicit(&r->tx_told, 1, memory_order_relaxed);
}
