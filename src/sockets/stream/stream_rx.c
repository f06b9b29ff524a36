/* SPDX-License-Identifier: MIT */
/* Receiving on a connection that has a lane: what is there now, from wherever it stands. With the lock of receiving, and
 * nothing waits. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <poll.h>

#include "base/clock.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "sockets/record/order.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/stream/iov.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

/* Take up to `n` octets off the carrier into the list; never sleeps. */
ssize_t stream_take_carrier(int fd, struct lane_iov *to, size_t n, int flags)
{
	struct iovec part[IOV_PIECES];
	struct lane_iov rest = *to;
	struct msghdr msg = { .msg_iov = part };
	ssize_t got;

	msg.msg_iovlen = iov_cut(&rest, n, part);
	got = sys_recvmsg(fd, &msg, flags & (MSG_PEEK | MSG_TRUNC));
	if (got > 0)
		iov_skip(to, (size_t)got);
	return got;
}

static enum end from_carrier(struct rec *r, int fd, struct lane_iov *to, size_t n, int flags,
			     size_t *got)
{
	ssize_t now = stream_take_carrier(fd, to, n, flags);

	if (now > 0) {
		lane_rx_taken(&r->rx, (size_t)now, false);
		stream_count_carrier(r, (uint64_t)now);
		*got += (size_t)now;
		return (size_t)now == n ? END_FULL : END_CARRIER;
	}
	if (now == 0)
		return END_EOF;
	return errno == EAGAIN ? END_CARRIER : END_ERROR;
}

/* Only a ring that was rather full can have a sender that waits. */
static void make_room(struct rec *r, size_t taken)
{
	uint32_t how;

	if (taken == 0 || lane_rx_unread(&r->rx) + taken <= lane_rx_limit(&r->rx) / 4)
		return;
	/* A writer relies on its bell only once it knows that we have it. */
	if (arena_bell(r->end.arena) < 0)
		stream_bell(r);
	how = lane_rx_must_wake(&r->rx);
	if (how & LANE_ROOM_FUTEX)
		sys_call(SYS_futex, &r->rx.dir->head, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	if ((how & LANE_ROOM_BELL) && arena_bell(r->end.arena) >= 0) {
		atomic_fetch_add(r->tx_stir, 1);
		if (!atomic_exchange(r->tx_rung, 1))
			bell_ring(arena_bell(r->end.arena));
	}
}

static enum end broken(struct rec *r, int fd)
{
	stream_break(r, fd);
	errno = ECONNRESET;
	return END_ERROR;
}

/* Urgent data stands next: what was read before it must not be joined with what follows. */
static bool is_at_mark(int fd)
{
	int mark = 0;

	return real(ioctl)(fd, SIOCATMARK, &mark) == 0 && mark;
}

static void note_order(struct rec *r)
{
	uint32_t stamp = order_of(r->rx.dir);

	if (stamp == r->rx_stamp)
		return;
	r->rx_stamp = stamp;
	order_heard(r->order_peer, stamp);
}

/* Everything that is there now, in order, from wherever it stands. Holds the lock. */
static enum end gather(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags,
		       size_t *got)
{
	struct lane_rx *rx = &r->rx;
	enum end end;
	uint64_t word;
	size_t limit, n;

	for (int tries = 0; tries < STREAM_TRIES; tries++) {
		if (*got == want)
			return END_FULL;
		switch (lane_rx_look(rx, &word, &limit)) {
		case LANE_FROM_RING:
			note_order(r);
			n = min_size(min_size(limit, want - *got), LANE_STEP);
			if (!(flags & MSG_TRUNC))
				lane_rx_copy(rx, to, 0, n);
			lane_rx_taken(rx, n, true);
			stream_count(&r->received.lane_bytes, n);
			make_room(r, n);
			*got += n;
			tries = 0;
			break;
		case LANE_FROM_CARRIER:
			n = min_size(limit, want - *got);
			end = from_carrier(r, fd, to, n, flags, got);
			if (end != END_FULL)
				return end;
			break;
		case LANE_FROM_OPEN:
			/* Whoever sends such data has left the ring for good. */
			if (*got > 0 && is_at_mark(fd))
				return END_CARRIER;
			if (!lane_rx_enter(rx, word))
				break;
			end = from_carrier(r, fd, to, want - *got, flags, got);
			lane_rx_exit(rx);
			return end;
		case LANE_FROM_NOTHING: return END_EMPTY;
		case LANE_FROM_BROKEN: return broken(r, fd);
		}
	}
	return broken(r, fd);
}

/* The same without taking anything: the run of octets that is contiguous enough to see. */
static enum end peek(struct rec *r, int fd, struct lane_iov *to, size_t want, size_t *got)
{
	struct lane_rx *rx = &r->rx;
	uint64_t word;
	size_t limit = 0;
	ssize_t now;

	for (int tries = 0; tries < STREAM_TRIES; tries++) {
		switch (lane_rx_look(rx, &word, &limit)) {
		case LANE_FROM_RING:
			*got = lane_rx_copy(rx, to, 0, min_size(limit, want));
			return END_FULL;
		case LANE_FROM_CARRIER:
			now = stream_take_carrier(fd, to, min_size(limit, want), MSG_PEEK);
			if (now > 0 && (size_t)now == limit) {
				size_t more = lane_rx_behind(rx, word);

				*got = lane_rx_copy(rx, to, 0, min_size(more, want - limit));
			}
			break;
		case LANE_FROM_OPEN:
			if (!lane_rx_enter(rx, word))
				continue;
			now = stream_take_carrier(fd, to, want, MSG_PEEK);
			lane_rx_exit(rx);
			break;
		case LANE_FROM_NOTHING: return END_EMPTY;
		default: return broken(r, fd);
		}
		if (now > 0)
			*got += (size_t)now;
		return now > 0           ? END_FULL
		       : now == 0        ? END_EOF
		       : errno == EAGAIN ? END_CARRIER
					 : END_ERROR;
	}
	return broken(r, fd);
}

/*
 * The carrier has said that the stream ends. A peer that died with octets of ours unread would have reset the
 * connection; the kernel does not know of those in the ring.
 */
static enum end at_end(struct rec *r)
{
	uint64_t word = atomic_load(&r->rx.dir->word);
	uint32_t unread;

	if (sock_flag(r, REC_PEERGONE) || (word & LANE_FIN) || sock_flag(r, REC_SHUT_RD))
		return END_EOF;
	atomic_fetch_or(&r->flags, REC_PEERGONE);
	unread = lane_tx_unread(&r->tx);
	if (unread == 0 || unread == UINT32_MAX)
		return END_EOF;
	errno = ECONNRESET;
	return END_ERROR;
}

/* The ring is empty; only the kernel knows whether more can come. Never sleeps. */
static enum end look_at_carrier(struct rec *r, int fd)
{
	char octet;
	ssize_t n = sys_recv(fd, &octet, 1, MSG_PEEK);

	if (n > 0)
		return END_CARRIER;
	if (n < 0)
		return errno == EAGAIN ? END_EMPTY : END_ERROR;
	/* What was published before the end comes first. */
	return lane_rx_stirs(&r->rx) ? END_AGAIN : at_end(r);
}

/*
 * Could the carrier have anything that was not there when it was asked last? A peer that closes says so beside what it
 * publishes, and whoever was told of something by the kernel has a clock that moved (order.h). Only of a
 * peer that was killed nobody tells: so not for longer than a tick.
 */
static bool is_quiet(struct rec *r)
{
	uint64_t now = clock_coarse();
	uint32_t clock = order_now();

	if (now == r->asked_at && clock == r->asked_clock &&
	    !(atomic_load_explicit(&r->rx.dir->word, memory_order_relaxed) & LANE_FIN) &&
	    !sock_flag(r, REC_PEERGONE | REC_SHUT_RD | REC_SHUT_WR))
		return true;
	r->asked_at = now;
	r->asked_clock = clock;
	return false;
}

/*
 * Octets nobody announced: the peer's descriptor is also used past its library, after vfork() for instance. What was on
 * the carrier before the word was looked at cannot be the sender's own, and has no place in its stream.
 */
static enum end foreign(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags,
			size_t *got)
{
	int there = 0;
	ssize_t n;

	if (real(ioctl)(fd, SIOCINQ, &there) != 0 || there <= 0)
		return END_CARRIER;
	if (lane_rx_stirs(&r->rx))
		return END_AGAIN;
	n = stream_take_carrier(fd, to, min_size((size_t)there, want), flags);
	if (n > 0) {
		stream_count_carrier(r, (uint64_t)n);
		*got += (size_t)n;
	}
	return n == (ssize_t)want ? END_FULL : END_CARRIER;
}

void stream_keep_error(struct rec *r, int error)
{
	atomic_store(&r->pending_error, error);
	atomic_fetch_add(r->rx_stir, 1);
}

/* A part of a round. */
static enum end try_round(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags,
			  bool ask, size_t *got)
{
	enum end end;
	size_t before = *got;

	if (flags & MSG_PEEK)
		end = peek(r, fd, to, want, got);
	else
		end = gather(r, fd, to, want, flags, got);
	if (*got > before && end != END_FULL) {
		if (end == END_ERROR)
			stream_keep_error(r, errno);
		return END_FULL; /* something to return is enough */
	}
	if (end == END_EOF)
		end = at_end(r);
	if (end == END_EMPTY && ask && !is_quiet(r)) {
		end = look_at_carrier(r, fd);
		if (end == END_CARRIER)
			end = foreign(r, fd, to, want - *got, flags, got);
		if (*got > before)
			end = END_FULL;
	}
	return end;
}

/* One round with the lock. */
enum end stream_round(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags, bool ask,
		      size_t *got)
{
	enum end end = END_AGAIN;

	for (int tries = 0; end == END_AGAIN && tries < STREAM_TRIES; tries++)
		end = try_round(r, fd, to, want, flags, ask, got);
	return end == END_AGAIN ? broken(r, fd) : end;
}

void stream_count_carrier(struct rec *r, uint64_t n)
{
	uint64_t before = atomic_load_explicit(&r->rx_before, memory_order_relaxed);
	uint64_t part;

	do {
		part = min_u64(before, n);
	} while (part > 0 && !atomic_compare_exchange_weak(&r->rx_before, &before, before - part));
	atomic_fetch_add_explicit(&r->received.tcp_bytes, n - part, memory_order_relaxed);
}

size_t stream_unread(struct rec *r)
{
	return lane_rx_unread(&r->rx);
}

int stream_left(struct rec *r, int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN | POLLRDHUP };
	int saved = errno;
	int beside = 0;
	size_t n;

	if (!sock_keep(r, fd))
		return 0;
	n = stream_unread(r);
	/* Who is told 0 waits for the next edge, so it must be true. The end counts as one octet. */
	if ((n == 0 || stream_ask_kernel(r)) && sys_poll(&p, 1) > 0) {
		real(ioctl)(fd, SIOCINQ, &beside);
		n += (size_t)beside + ((p.revents & ~POLLIN) != 0);
	}
	sock_release(r);
	errno = saved;
	return (int)n;
}

bool stream_ask_kernel(const struct rec *r)
{
	uint64_t word = atomic_load_explicit(&r->rx.dir->word, memory_order_relaxed);

	return sock_flag(r, REC_SHUT_RD | REC_SHUT_WR | REC_PEERGONE) || (word & LANE_FIN) ||
	       lane_word_turns(word) != LANE_LOAD(r->rx.turns) || !lane_rx_in_ring(&r->rx) ||
	       !lane_tx_in_ring(&r->tx) ||
	       (atomic_load_explicit(&r->tx.dir->word, memory_order_relaxed) & LANE_GONE);
}

bool stream_readable(struct rec *r)
{
	return lane_rx_ready(&r->rx) > 0 ||
	       atomic_load_explicit(&r->pending_error, memory_order_relaxed);
}
