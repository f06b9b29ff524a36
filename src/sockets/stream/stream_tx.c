/* SPDX-License-Identifier: MIT */
/* Sending on a connection that has a lane: steps that can be made now. With the lock of sending, and nothing waits. */
#include <errno.h>

#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/record/order.h"
#include "sockets/record/sock.h"
#include "sockets/stream/carrier.h"
#include "sockets/stream/iov.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

/* With the turn go so many octets. */
#define TURN_FIRST 1024
/* The octet that wakes the receiver is promised; a kernel that is short of memory is asked so often. */
#define OCTET_TRIES 100

/* The octet that wakes the receiver. It is promised already, so it must go; there was room for it. */
static int send_octet(struct rec *r, int fd, uint8_t octet, int flags)
{
	for (int tries = 0; tries < OCTET_TRIES; tries++) {
		ssize_t n = sys_send(fd, &octet, 1, flags & MSG_NOSIGNAL);

		if (n == 1) {
			stream_count(&r->sent.tcp_bytes, 1);
			return 0;
		}
		if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
			return -1;
	}
	stream_break(r, fd);
	errno = ECONNRESET;
	return -1;
}

/* Something was published: whoever looks, naps or waits for its bell must know. */
static void tell(struct rec *r)
{
	atomic_fetch_add(r->tx_stir, 1);
	if (r->tx.wake)
		nap_end(r->tx.dir);
	/* Once per sleep of the process, not per lane. */
	if (r->tx.belled && !atomic_exchange(r->tx_rung, 1) &&
	    !bell_ring(arena_bell(r->end.arena))) {
		atomic_store(r->tx_rung, 0);
		/* The next one goes by the carrier, and wakes it for both. */
		LANE_STORE(r->tx.can_ring, false);
	}
}

/* The receiver waits for its bell. Do we have it by now? */
static bool find_bell(struct rec *r, uint64_t word)
{
	if (r->tx.can_ring || !(word & LANE_BELLED) || stream_bell(r) < 0)
		return false;
	LANE_STORE(r->tx.can_ring, true);
	return true;
}

/* Copy into the ring and publish, with or without the octet that wakes the receiver. 0: look again. */
static ssize_t put_ring(struct rec *r, int fd, struct lane_iov *from, size_t n, uint64_t word,
			bool wakes, int flags)
{
	struct lane_iov at = *from;
	uint8_t octet = 0;
	size_t copied;

	if (wakes) {
		struct iovec one[IOV_PIECES] = { { 0 } };

		iov_cut(&at, 1, one);
		octet = *(uint8_t *)one[0].iov_base;
		iov_skip(&at, 1);
	}
	copied = lane_tx_copy(&r->tx, &at, n - wakes);
	order_stamp(r->tx.dir, r->order_peer);
	if (!lane_tx_publish(&r->tx, word, copied, wakes))
		return 0;
	*from = at;
	atomic_store_explicit(&r->tx_told, 0, memory_order_relaxed);
	LANE_STORE(r->full_since, 0);
	stream_count(&r->sent.lane_bytes, copied);
	if (wakes && send_octet(r, fd, octet, flags) != 0)
		return -1;
	tell(r);
	if (r->tx.high > LANE_TRIM && !LANE_LOAD(r->listed))
		stream_note_large(r);
	return (ssize_t)(copied + wakes);
}

static bool is_taken(void *arg)
{
	struct rec *r = arg;

	return !(atomic_load_explicit(&r->tx.dir->word, memory_order_acquire) & LANE_TAKING);
}

static bool may_turn(void *arg)
{
	struct rec *r = arg;

	return (atomic_load_explicit(&r->tx.dir->word, memory_order_acquire) &
		(LANE_ATTACHED | LANE_INSIDE)) == LANE_ATTACHED;
}

/*
 * The receiver is taking octets off the carrier this very moment; or it has the octets that make it look for the lane.
 * That will not last unless another program got its processor: worth a wait, or the stream would stay on the carrier,
 * which takes megabytes meanwhile.
 */
static bool turn_is_near(const struct rec *r, uint64_t word)
{
	if (!(word & LANE_ATTACHED))
		return r->tx_before == 0 && r->absent < TURN_WAIT;
	return word & LANE_INSIDE;
}

/* Nothing of ours may go into the ring; at first because the peer's HelloAck was not looked at yet. */
static bool no_ring(struct rec *r, int fd, uint64_t word)
{
	uint32_t flags = sock_flag(r, STREAM_NO_RING);

	if (!(flags & REC_UNANSWERED) || !(word & LANE_ATTACHED))
		return flags != 0;
	return !stream_is_answered(r, fd) || sock_flag(r, STREAM_NO_RING);
}

/* Into the ring, with an octet on the carrier if the receiver sleeps. 0: look again. */
static ssize_t put_lane(struct rec *r, int fd, struct lane_iov *from, size_t n, uint64_t word,
			bool wakes, int flags)
{
	if (no_ring(r, fd, word))
		return PUT_LEAVE;
	/* The carrier may be full: then the kernel must say so, before anything is promised. If all that
	 * went there has been taken it is not. */
	if (wakes && !lane_tx_carrier_is_empty(&r->tx) && !carrier_has_room(fd))
		return PUT_LEAVE;
	return put_ring(r, fd, from, n, word, wakes, flags);
}

/* The carrier is to be used, and not only because the receiver is not there yet. */
static bool is_barred(struct rec *r, int fd, uint64_t word)
{
	if (word & (LANE_GONE | LANE_RECALL))
		return true;
	return (word & LANE_ATTACHED) ? no_ring(r, fd, word)
				      : sock_flag(r, STREAM_NO_RING & ~REC_UNANSWERED);
}

static ssize_t broken(struct rec *r, int fd)
{
	stream_break(r, fd);
	errno = ECONNRESET;
	return -1;
}

/* Off the ring, and then by the carrier. */
ssize_t stream_put_left(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags)
{
	switch (stream_leave(r, fd, false)) {
	case STREAM_LEFT: return stream_put_carrier(r, fd, from, want, flags);
	case STREAM_LATER: return PUT_HELD;
	default: return broken(r, fd);
	}
}

/* One step, or a reason. `turn`: wait for the ring rather than take the carrier. */
ssize_t stream_put(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags, bool turn)
{
	for (int tries = 0; tries < STREAM_TRIES; tries++) {
		uint64_t word;
		size_t step = min_size(want, LANE_STEP);
		size_t room = 0;
		ssize_t n = 0;

		switch (lane_tx_look(&r->tx, step, &word, &room)) {
		case LANE_CARRIER:
			if (!is_barred(r, fd, word) && turn_is_near(r, word)) {
				if (ladder_spin(may_turn, r, stream_reader_cpu(r), SPIN_ROOM))
					break;
				if (turn)
					return PUT_TURN;
			}
			return stream_put_carrier(r, fd, from, want, flags);
		case LANE_LEAVE: n = PUT_LEAVE; break;
		case LANE_RING_OK:
			/* The first ones soon: the receiver may look at the carrier again any moment. */
			if (!lane_tx_in_ring(&r->tx))
				step = min_size(step, TURN_FIRST);
			n = put_lane(r, fd, from, min_size(room, step), word, false, flags);
			break;
		case LANE_OCTET:
			if (find_bell(r, word))
				break;
			n = put_lane(r, fd, from, min_size(room + 1, step), word, true, flags);
			break;
		case LANE_FULL:
			if (!sock_flag(r, STREAM_NO_RING))
				return PUT_FULL;
			n = PUT_LEAVE;
			break;
		case LANE_HELD:
			if (ladder_spin(is_taken, r, stream_reader_cpu(r), SPIN_ROOM))
				break;
			return stream_is_held(r) ? PUT_HELD : broken(r, fd);
		case LANE_BROKEN: return broken(r, fd);
		}
		if (n == PUT_LEAVE)
			return stream_put_left(r, fd, from, want, flags);
		if (n != 0)
			return n;
	}
	return broken(r, fd);
}

/* First thing with the lock. */
void stream_look_around(struct rec *r, int fd)
{
	stream_note_cpu(&r->tx.dir->tx_cpu);
	if (LANE_LOAD(r->hint_pid) != self_pid())
		stream_hint(r, fd);
	if (r->sndbuf) {
		uint32_t rcvbuf = atomic_load_explicit(&r->tx.dir->rcvbuf, memory_order_relaxed);

		/* Only one of them set: the other is larger than a ring. */
		lane_tx_set_limit(&r->tx, rcvbuf ? (uint64_t)r->sndbuf + rcvbuf : LANE_RING);
	}
	stream_look_for_end(r, fd);
	/* A relative may have found the bell, and this process not. */
	if (r->tx.can_ring && arena_bell(r->end.arena) < 0)
		LANE_STORE(r->tx.can_ring, false);
}
