/* SPDX-License-Identifier: MIT */
/* Waiting for room in the ring: how long, where, and when the carrier is the better way. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"

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

bool stream_has_room(void *arg)
{
	struct rec *r = arg;
	uint32_t head = atomic_load_explicit(&r->tx.dir->head, memory_order_acquire);
	uint64_t word = atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed);

	return LANE_LOAD(r->tx.tail) - head <= lane_tx_limit(&r->tx) / 2 ||
	       (word & (LANE_GONE | LANE_RECALL)) || lane_tx_needs_octet(&r->tx, word);
}

void stream_look_for_end(struct rec *r, int fd)
{
	uint64_t now = clock_coarse();
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	if (now - LANE_LOAD(r->looked_at) < LOOK_NS)
		return;
	LANE_STORE(r->looked_at, now);
	if (sys_poll(&p, 1) <= 0)
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

	if (LANE_LOAD(r->full_since) == 0)
		LANE_STORE(r->full_since, now);
	if (LANE_LOAD(r->moved_at) < LANE_LOAD(r->full_since) || LANE_LOAD(r->moved_head) != head) {
		LANE_STORE(r->moved_at, now);
		LANE_STORE(r->moved_head, head);
	}
	return now - LANE_LOAD(r->moved_at) < most;
}

/* What is left of SO_SNDTIMEO, which counts for the whole call; < 0: no limit. */
static int64_t limit_left(struct stream_limit *l, int fd)
{
	uint64_t now = clock_now();

	if (l->start == 0) {
		struct timeval t = { 0 };
		socklen_t size = sizeof(t);

		real(getsockopt)(fd, SOL_SOCKET, SO_SNDTIMEO, &t, &size);
		l->start = now;
		l->most = (uint64_t)t.tv_sec * NSEC_PER_SEC + (uint64_t)t.tv_usec * 1000;
	}
	if (l->most == 0)
		return -1;
	return now - l->start < l->most ? (int64_t)(l->most - (now - l->start)) : 0;
}

/* A handler has run: does the call go on? With a time limit none does. */
static bool limit_goes_on(const struct stream_limit *l)
{
	return l->most == 0 && !l->some && nap_goes_on();
}

int stream_outwait_carrier(int fd, struct stream_limit *l)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	for (;;) {
		int64_t left = limit_left(l, fd);
		int n;

		if (left == 0) {
			errno = EAGAIN;
			return -1;
		}
		n = real(poll)(&p, 1,
			       left < 0 ? -1 : (int)min_i64((left + 999999) / 1000000, INT_MAX));
		if (n > 0)
			return 0;
		if (n < 0 && (errno != EINTR || !limit_goes_on(l)))
			return -1;
	}
}

/* One slice. -1 and EINTR: a signal has ended the call. If there are handlers of both kinds only the kernel knows. */
static int sleep_on(_Atomic uint32_t *word, uint32_t value, long ns, const struct stream_limit *l)
{
	struct timespec slice = { .tv_nsec = ns };

	if (l->most == 0 && !l->some && nap_signals(false) == NAP_UNSURE)
		return nap_as_read(word, value, ns) < 0 ? -1 : 0;
	return real(syscall)(SYS_futex, word, FUTEX_WAIT, value, &slice, NULL, 0) != 0 &&
			       errno == EINTR && !limit_goes_on(l)
		       ? -1
		       : 0;
}

/*
 * Sleep until the receiver has made room, in slices: only the carrier knows whether it is still
 * there; or until it does not seem to make any. 0, or -1 and errno as send() would say it.
 */
static int sleep_for_room(struct rec *r, int fd, struct stream_limit *l)
{
	LANE_STORE(r->full_since, 0);
	while (!stream_has_room(r) && !leaves_anyway(r)) {
		int64_t left = limit_left(l, fd);
		struct timespec slice = { .tv_nsec = ROOM_SLICE };
		uint32_t head = atomic_load(&r->tx.dir->head);

		if (left == 0) {
			errno = EAGAIN;
			return -1;
		}
		if (left > 0 && left < slice.tv_nsec)
			slice.tv_nsec = (long)left;
		atomic_fetch_or(&r->tx.dir->tx_sleeps, LANE_ROOM_FUTEX);
		if (stream_has_room(r))
			break;
		if (sleep_on(&r->tx.dir->head, head, slice.tv_nsec, l) != 0)
			return -1;
		pthread_testcancel();
		LANE_STORE(r->looked_at, 0);
		stream_look_for_end(r, fd);
		if (!reader_moves(r))
			break;
	}
	return 0;
}

int stream_outwait_full(struct rec *r, int fd, struct stream_limit *l, bool *leave)
{
	uint32_t budget = ladder_profile.spin_ns;

	if (ladder_climb(stream_has_room, r, stream_reader_cpu(r), &budget, budget))
		return 0;
	if (sleep_for_room(r, fd, l) != 0)
		return -1;
	/* The reader does not read: the carrier then, which has more room. */
	*leave = !stream_has_room(r) && !leaves_anyway(r);
	return 0;
}

/* The program must wait, perhaps for an edge: only we know when there is room. */
void stream_note_refusal(struct rec *r)
{
	atomic_fetch_add_explicit(&r->tx_refused, 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&stream_refusals, 1, memory_order_relaxed);
}

bool stream_is_full(const struct rec *r)
{
	if (!sock_has_lane(r) || !lane_tx_in_ring(&r->tx))
		return false;
	/* Octets are on their way back to the carrier, and must be there before others. */
	if (atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) &
	    (LANE_TAKING | LANE_RECALL))
		return true;
	return !stream_has_room((void *)r) && !sock_flag(r, STREAM_NO_RING);
}

bool stream_wants_room(struct rec *r)
{
	if (stream_is_full(r)) {
		uint64_t word = atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed);

		if (word & LANE_TAKING)
			return stream_is_held(r);
		return (word & LANE_RECALL) || reader_moves(r);
	}
	LANE_STORE(r->full_since, 0);
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
	LANE_STORE(r->looked_at, 0);
	stream_look_for_end(r, fd);
}

bool stream_may_nap(const struct rec *r)
{
	return clock_now() - LANE_LOAD(r->full_since) < ROOM_NAP;
}

int64_t stream_glance(const struct rec *r)
{
	uint64_t ns = (clock_now() - LANE_LOAD(r->full_since)) / 4;

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

	return lane_tx_in_ring(&r->tx) &&
	       LANE_LOAD(r->tx.tail) - head <= lane_tx_limit(&r->tx) / 2 &&
	       !(atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) &
		 (LANE_GONE | LANE_RECALL | LANE_TAKING)) &&
	       !sock_flag(r, STREAM_NO_RING);
}

void stream_told_writable(struct rec *r)
{
	atomic_store_explicit(&r->tx_told, 1, memory_order_relaxed);
}
