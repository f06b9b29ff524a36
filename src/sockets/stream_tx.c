/* SPDX-License-Identifier: MIT */
/* Sending on a connection that has a lane. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/arena.h"
#include "sockets/bell.h"
#include "sockets/meet.h"
#include "sockets/nap.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"
#include "sockets/wait.h"

/* So much goes over the carrier before the ring is tried again. */
#define OVERFLOW (64u << 10)
/* How long a sender waits, in naps, for a receiver because of whom it cannot turn into the ring. */
#define TURN_WAIT  (20 * NSEC_PER_MSEC)
#define TURN_LESS  NSEC_PER_MSEC /* one that must not block */
#define TURN_NAP   20000
#define TURN_TRIES 8
/* With the turn go so many octets. */
#define TURN_FIRST 1024
#define BELL_NS    (2 * NSEC_PER_SEC)

size_t stream_cut(const struct lane_iov *list, size_t n, struct iovec out[STREAM_IOV])
{
	size_t skip = list->skip;
	size_t used = 0;

	for (size_t i = 0; i < list->count && n > 0 && used < STREAM_IOV; i++) {
		size_t part = min_size(list->iov[i].iov_len - skip, n);

		if (part > 0)
			out[used++] = (struct iovec) { (char *)list->iov[i].iov_base + skip, part };
		n -= part;
		skip = 0;
	}
	return used;
}

void stream_skip(struct lane_iov *list, size_t n)
{
	while (list->count > 0 && n >= list->iov->iov_len - list->skip) {
		n -= list->iov->iov_len - list->skip;
		list->iov++;
		list->count--;
		list->skip = 0;
	}
	list->skip += n;
}

/* The end that left the offer looks at it at the next turn, or within this many octets: until then it cannot know of
 * the lane, and the carrier is all there is. */
static uint64_t not_before(struct rec *r, uint64_t n)
{
	uint32_t part = r->tx_before;

	if (atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) & LANE_ATTACHED)
		return n;
	if (part > n)
		part = (uint32_t)n;
	r->tx_before -= part;
	return n - part;
}

/* The carrier, with all that the kernel knows about blocking, time limits and signals. */
static ssize_t put_carrier(struct rec *r, int fd, struct lane_iov *from, size_t n, int flags)
{
	struct iovec part[STREAM_IOV];
	struct msghdr msg = { .msg_iov = part };
	ssize_t sent;

	msg.msg_iovlen = stream_cut(from, min_size(n, OVERFLOW), part);
	atomic_store_explicit(&r->tx_kernel, 1, memory_order_relaxed);
	sent = real(sendmsg)(fd, &msg, flags);
	atomic_store_explicit(&r->tx_kernel, 0, memory_order_relaxed);
	if (sent > 0) {
		if (lane_tx_rouse(&r->tx))
			nap_end(r->tx.dir);
		r->tx.pos += (uint64_t)sent;
		stream_count(&r->sent.tcp_bytes, not_before(r, (uint64_t)sent));
		stream_skip(from, (size_t)sent);
	}
	return sent;
}

/* The octet that wakes the receiver. It is promised already, so it must go. */
static int ring_bell(struct rec *r, int fd, uint8_t octet, int flags)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };
	uint64_t start = clock_now();
	ssize_t n;

	for (;;) {
		n = real(send)(fd, &octet, 1, (flags & MSG_NOSIGNAL) | MSG_DONTWAIT);
		if (n == 1)
			break;
		if (n < 0 && errno != EAGAIN && errno != EINTR && errno != ENOBUFS &&
		    errno != ENOMEM)
			return -1;
		/* A peer that wants to be rung reads the carrier. This one does not. */
		if (clock_now() - start > BELL_NS) {
			stream_break(r, fd);
			errno = ECONNRESET;
			return -1;
		}
		real(poll)(&p, 1, 10);
	}
	stream_count(&r->sent.tcp_bytes, 1);
	return 0;
}

/* Something was published: whoever looks, naps or waits for its bell must know. */
static void tell(struct rec *r)
{
	atomic_fetch_add(r->tx_stir, 1);
	if (r->tx.wake)
		nap_end(r->tx.dir);
	/* Once per sleep of the process, not per lane. */
	if (r->tx.belled && !atomic_exchange(r->tx_rung, 1) && !bell_ring(arena_bell(r->arena))) {
		atomic_store(r->tx_rung, 0);
		r->tx.can_ring =
			false; /* the next one goes by the carrier, and wakes it for both */
	}
}

/* The receiver waits for its bell. Do we have it by now? */
static bool find_bell(struct rec *r, uint64_t word)
{
	if (r->tx.can_ring || !(word & LANE_BELLED) || meet_bell(r) < 0)
		return false;
	r->tx.can_ring = true;
	return true;
}

/* Copy into the ring and publish, with or without a bell. 0: look again. */
static ssize_t put_ring(struct rec *r, int fd, struct lane_iov *from, size_t n, uint64_t word,
			bool bell, int flags)
{
	struct lane_iov at = *from;
	uint8_t octet = 0;
	size_t copied;

	if (bell) {
		struct iovec one[STREAM_IOV] = { { 0 } };

		stream_cut(&at, 1, one);
		octet = *(uint8_t *)one[0].iov_base;
		stream_skip(&at, 1);
	}
	copied = lane_tx_copy(&r->tx, &at, n - bell);
	if (!lane_tx_publish(&r->tx, word, copied, bell))
		return 0;
	*from = at;
	atomic_store_explicit(&r->tx_told, 0, memory_order_relaxed);
	r->full_since = 0;
	stream_count(&r->sent.lane_bytes, copied);
	if (bell && ring_bell(r, fd, octet, flags) != 0)
		return -1;
	tell(r);
	if (r->tx.high > LANE_TRIM && !r->listed)
		stream_note_large(r);
	return (ssize_t)(copied + bell);
}

/* Octets that were accepted long ago, over the carrier: all of them, however long it takes. */
static bool put_back(struct rec *r, int fd, struct iovec *piece)
{
	struct lane_iov from = { .iov = piece, .count = 1 };
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	while (from.count > 0) {
		if (put_carrier(r, fd, &from, piece->iov_len - from.skip,
				MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
			continue;
		if (errno != EAGAIN && errno != EINTR && errno != ENOBUFS && errno != ENOMEM)
			return false;
		real(poll)(&p, 1, 10);
	}
	return true;
}

/* The receiver puts octets of ours onto the carrier; it will not be long, or it was killed over it. */
static bool outwait_taking(struct rec *r)
{
	uint64_t end = clock_now() + NSEC_PER_SEC;

	while (atomic_load(&r->tx.dir->word) & LANE_TAKING) {
		if (clock_now() > end)
			return false;
		sched_yield();
	}
	return true;
}

/* What the receiver left in the ring, over the carrier. False: broken. */
static bool give_back(struct rec *r, int fd)
{
	struct iovec piece[2];
	int n = lane_tx_recall(&r->tx, piece);

	for (int i = 0; i < n; i++)
		if (!put_back(r, fd, &piece[i]))
			break; /* the connection has ended; the kernel will tell */
	/* Not in order: the receiver must read it from the ring. */
	if (n == -2)
		atomic_fetch_and(&r->tx.dir->word, ~LANE_RECALL);
	return n != -1;
}

bool stream_leave(struct rec *r, int fd)
{
	size_t room;

	for (int tries = 0; tries < STREAM_TRIES && lane_tx_in_ring(&r->tx); tries++) {
		uint64_t word = atomic_load(&r->tx.dir->word);

		if (word & LANE_TAKING) {
			if (!outwait_taking(r))
				return false;
		} else if (word & LANE_TAKEN) {
			lane_tx_look(&r->tx, 1, &word, &room); /* takes note */
		} else if (word & LANE_RECALL) {
			if (!give_back(r, fd))
				return false;
		} else if ((word & LANE_PLACE) !=
			   (r->tx.tail | (uint64_t)r->tx.turns << LANE_TURN_SHIFT)) {
			return false;
		} else {
			lane_tx_leave(&r->tx, word);
		}
	}
	if (lane_tx_rouse(&r->tx))
		nap_end(r->tx.dir);
	return !lane_tx_in_ring(&r->tx);
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
static bool outwait_receiver(struct rec *r, uint64_t word, bool block)
{
	const struct timespec nap = { .tv_nsec = TURN_NAP };
	uint32_t peer = atomic_load_explicit(&r->tx.dir->rx_cpu, memory_order_relaxed);
	uint32_t budget = min_u32(STREAM_ROOM_NS, settings.spin_ns);
	bool absent = !(word & LANE_ATTACHED);
	uint64_t start = clock_now();

	if (absent ? r->tx_before > 0 || r->absent >= TURN_WAIT : !(word & LANE_INSIDE))
		return false;
	if (wait_ladder(may_turn, r, peer, &budget, budget))
		return true;
	do
		real(syscall)(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL);
	while (!may_turn(r) && clock_now() - start < (block ? TURN_WAIT : TURN_LESS));
	if (absent)
		r->absent += (uint32_t)min_u64(clock_now() - start, TURN_WAIT);
	return may_turn(r);
}

static bool carrier_has_room(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	return real(poll)(&p, 1, 0) > 0;
}

/* Nothing of ours may go into the ring; at first because the peer's HelloAck was not looked at yet. */
static bool no_ring(struct rec *r, int fd, uint64_t word)
{
	uint32_t flags = sock_flag(r, STREAM_NO_RING);

	if (!(flags & REC_UNANSWERED) || !(word & LANE_ATTACHED))
		return flags != 0;
	return !stream_is_answered(r, fd) || sock_flag(r, STREAM_NO_RING);
}

/* Into the ring, with a bell if the receiver sleeps. 0: look again; -2: the carrier must do it. */
static ssize_t put_lane(struct rec *r, int fd, struct lane_iov *from, size_t n, uint64_t word,
			bool bell, int flags)
{
	if (no_ring(r, fd, word))
		return -2;
	/* The carrier may be full: then the kernel must say so, before anything is promised. If all that
	 * went there has been taken it is not. */
	if (bell && !lane_tx_carrier_is_empty(&r->tx) && !carrier_has_room(fd))
		return -2;
	return put_ring(r, fd, from, n, word, bell, flags);
}

/* The carrier is to be used, and not only because the receiver is not there yet. */
static bool is_barred(struct rec *r, int fd, uint64_t word)
{
	if (word & (LANE_GONE | LANE_RECALL))
		return true;
	return (word & LANE_ATTACHED) ? no_ring(r, fd, word)
				      : sock_flag(r, STREAM_NO_RING & ~REC_UNANSWERED);
}

/* One step; 0: the ring is full. */
static ssize_t put(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags)
{
	bool block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);

	for (int tries = 0; tries < STREAM_TRIES; tries++) {
		uint64_t word;
		size_t step = min_size(want, LANE_STEP);
		size_t room = 0;
		ssize_t n = 0;

		switch (lane_tx_look(&r->tx, step, &word, &room)) {
		case LANE_CARRIER:
			if (tries < TURN_TRIES && !is_barred(r, fd, word) &&
			    outwait_receiver(r, word, block))
				break;
			return put_carrier(r, fd, from, want, flags);
		case LANE_LEAVE: n = -2; break;
		case LANE_RING_OK:
			/* The first ones soon: the receiver may look at the carrier again any moment. */
			if (!lane_tx_in_ring(&r->tx))
				step = min_size(step, TURN_FIRST);
			n = put_lane(r, fd, from, min_size(room, step), word, false, flags);
			break;
		case LANE_BELL:
			if (find_bell(r, word))
				break;
			n = put_lane(r, fd, from, min_size(room + 1, step), word, true, flags);
			break;
		case LANE_FULL:
			if (!sock_flag(r, STREAM_NO_RING))
				return 0;
			n = -2;
			break;
		case LANE_HELD:
			if (!outwait_taking(r))
				goto broken;
			break;
		case LANE_BROKEN: goto broken;
		}
		if (n == -2 && !stream_leave(r, fd))
			goto broken;
		if (n == -2)
			return put_carrier(r, fd, from, want, flags);
		if (n != 0)
			return n;
	}
broken:
	stream_break(r, fd);
	errno = ECONNRESET;
	return -1;
}

static ssize_t send_all(struct rec *r, int fd, struct lane_iov from, size_t want, int flags)
{
	bool block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);
	size_t done = 0;
	ssize_t n = 0;

	while (done < want) {
		n = put(r, fd, &from, want - done, flags);
		if (n > 0)
			done += (size_t)n;
		else if (n < 0 || (!block && done > 0))
			break;
		else if ((n = stream_overflow(r, fd, block)) != 0)
			break;
	}
	if (n == 0 && done < want)
		stream_note_refusal(r);
	stream_count(&r->sent.calls, 1);
	return done > 0 ? (ssize_t)done : n;
}

ssize_t stream_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct lane_iov from = { .iov = iov, .count = count };
	size_t want = stream_size(iov, count);
	ssize_t n;

	if (!rec_lock_take(&r->tx_lock)) {
		/* A signal handler while this very thread sends. In the kernel: its turn comes there. */
		if (!atomic_load(&r->tx_kernel) || (flags & MSG_DONTWAIT) ||
		    sock_flag(r, REC_NONBLOCK)) {
			errno = EAGAIN; /* never between two parts of what is being sent */
			return -1;
		}
		return put_carrier(r, fd, &from, want, flags);
	}
	if (!sock_has_lane(r)) {
		n = STREAM_AGAIN;
	} else if (want == 0) {
		n = real(send)(fd, NULL, 0, flags);
	} else {
		stream_note_cpu(&r->tx.dir->tx_cpu);
		stream_look_for_end(r, fd);
		/* A relative may have found the bell, and this process not. */
		r->tx.can_ring = r->tx.can_ring && arena_bell(r->arena) >= 0;
		n = send_all(r, fd, from, want, flags);
	}
	rec_lock_give(&r->tx_lock);
	return n;
}

size_t stream_unsent(struct rec *r)
{
	uint32_t unread = lane_tx_unread(&r->tx);

	return unread == UINT32_MAX ? 0 : unread;
}

uint32_t stream_peer_cpu(const struct rec *r)
{
	return atomic_load_explicit(&r->rx.dir->tx_cpu, memory_order_relaxed);
}
