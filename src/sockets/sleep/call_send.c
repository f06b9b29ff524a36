/* SPDX-License-Identifier: MIT */
/*
 * A call that sends. With the lock of sending nothing waits: a call that may block gives it back, sleeps, and begins
 * again. So what several threads send at the same time may come in turns, as with TCP.
 */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <linux/futex.h>
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/own.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/above.h"
#include "sockets/sleep/call.h"
#include "sockets/sleep/waiter.h"
#include "sockets/stream/iov.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_step.h"

/* So much goes out at most before other threads get their turn. */
#define LOCK_SHARE (256u << 10)

/* SO_SNDTIMEO of one call. */
struct limit {
	uint64_t start; /* 0: not asked for yet */
	uint64_t most;  /* 0: none */
	bool some;      /* octets have gone out: any handler ends the call, with their number */
};

/* What is left of SO_SNDTIMEO, which counts for the whole call; < 0: no limit. */
static int64_t limit_left(struct limit *l, int fd)
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
static bool limit_goes_on(const struct limit *l)
{
	return l->most == 0 && !l->some && nap_goes_on();
}

static int outwait_carrier(int fd, struct limit *l)
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

/* If there are handlers of both kinds only the kernel knows which one has run. */
static bool sleeps_as_read(const struct limit *l)
{
	return l->most == 0 && !l->some && nap_signals(false) == NAP_UNSURE;
}

/*
 * Sleep until the receiver has made room, in slices: only the carrier knows whether it is still
 * there; or until it does not seem to make any. 0, or -1 and errno as send() would say it.
 */
static int sleep_for_room(struct rec *r, int fd, struct limit *l)
{
	LANE_STORE(r->full_since, 0);
	while (!stream_has_room(r) && !stream_leaves_anyway(r)) {
		int64_t left = limit_left(l, fd);
		bool as_read = sleeps_as_read(l);

		if (left == 0) {
			errno = EAGAIN;
			return -1;
		}
		left = left > 0 ? min_i64(left, ROOM_SLICE) : (int64_t)ROOM_SLICE;
		if (waiter_room(r, stream_has_room, left, as_read) != 0 &&
		    (as_read || !limit_goes_on(l)))
			return -1;
		pthread_testcancel();
		LANE_STORE(r->looked_at, 0);
		stream_look_for_end(r, fd);
		if (!stream_reader_moves(r))
			break;
	}
	return 0;
}

/* Room in the ring; *leave: there is none to be had. 0: look again; -1 and errno: not for this call. */
static int outwait_full(struct rec *r, int fd, struct limit *l, bool *leave)
{
	uint32_t budget = ladder_profile.spin_ns;
	struct waiter w = { .ready = stream_has_room, .arg = r, .spin = &budget };

	if (waiter_climb(&w, stream_reader_cpu(r)))
		return 0;
	if (sleep_for_room(r, fd, l) != 0)
		return -1;
	/* The reader does not read: the carrier then, which has more room. */
	*leave = !stream_has_room(r) && !stream_leaves_anyway(r);
	return 0;
}

/* --- a call */

struct sender {
	struct rec *r;
	int fd; /* the program's number */
	int flags;
	bool block;
	bool kept;
	bool leave;   /* waited long enough for room in the ring */
	bool young;   /* a lane may come while it is sent */
	bool part;    /* one of several parts of a call, which has kept the record */
	bool again;   /* nothing was sent, and it is not ours to send */
	bool some;    /* earlier parts have sent something */
	bool blocked; /* asleep in the kernel's send() */
	size_t done;
	struct limit limit;
	uint64_t
		held; /* since when a call that must not block looks for the end of a taking; 0: not */
	uint64_t turned; /* since when the ring is waited for; 0: not; UINT64_MAX: long enough */
};

static void let_go(struct sender *s)
{
	if (s->kept && !s->part)
		sock_release(s->r);
}

/* A full ring, for a call that must not block. 0: look again. */
static ssize_t refuse(struct sender *s)
{
	struct rec *r = s->r;

	if (ladder_spin(stream_has_room, r, stream_reader_cpu(r), SPIN_ROOM))
		return 0;
	/* Told that it is writable, by the kernel: then it is. Otherwise waiting in poll() comes first; not for ever,
	 * as the program may wait where we cannot see it. */
	if (s->done > 0 ||
	    (!atomic_load_explicit(&r->tx_told, memory_order_relaxed) && stream_wants_room(r))) {
		stream_note_refusal(r);
		return PUT_FULL;
	}
	s->leave = true;
	return 0;
}

/* As much as can go now. With the lock. Why it ended, or 0: all of it, or a share. */
static ssize_t fill(struct sender *s, int fd, struct lane_iov *from, size_t want)
{
	struct rec *r = s->r;
	size_t before = s->done;

	while (s->done < want && s->done - before < LOCK_SHARE) {
		/* An end that is met behind the first octet is told by the next call. */
		int flags = s->flags | (s->done > 0 ? MSG_NOSIGNAL : 0);
		ssize_t n;

		if (s->leave) {
			s->leave = false;
			n = stream_put_left(r, fd, from, want - s->done, flags);
		} else {
			n = stream_put(r, fd, from, want - s->done, flags,
				       s->block && s->turned != UINT64_MAX);
		}
		if (n == PUT_FULL && !s->block)
			n = refuse(s);
		if (n > 0)
			s->done += (size_t)n;
		else if (n < 0)
			return n;
	}
	return 0;
}

/* A moment for a receiver that lets us into the ring, or takes octets back. -1 and EINTR: a signal ends the call. */
static int pause_for_receiver(struct sender *s, bool turn)
{
	const struct timespec pause = { .tv_nsec = TURN_PAUSE };
	uint64_t now = clock_now();

	if (turn && s->turned == 0)
		s->turned = now;
	if (sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL) != 0 &&
	    errno == EINTR && (s->limit.some || nap_signals(true) == NAP_ENDS))
		return -1;
	if (turn && !(atomic_load(&s->r->tx.dir->word) & LANE_ATTACHED))
		s->r->absent += (uint32_t)(clock_now() - now);
	if (turn && now - s->turned > TURN_WAIT)
		s->turned = UINT64_MAX;
	pthread_testcancel();
	return 0;
}

/* The receiver takes octets back, and began a moment ago. Others that have it may hold it for ever. */
static bool is_held_briefly(struct sender *s)
{
	uint64_t now = clock_now();

	/* Also for a peer that begins again and again. */
	if (s->held == 0)
		s->held = now;
	return s->done == 0 && !s->r->tx_blocked && now - s->held < TAKING_MOMENT &&
	       now - LANE_LOAD(s->r->held_since) < TAKING_MOMENT;
}

static int pause_briefly(void)
{
	const struct timespec pause = { .tv_nsec = TURN_PAUSE };

	sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
	return 0;
}

/* Sleep until there is something to go on with. Without the lock. 0, or -1 and errno as send() would say it. */
static int sleep_for(struct sender *s, ssize_t reason, int fd)
{
	ROBUST_NONE();
	s->limit.some = s->some || s->done > 0;
	switch (reason) {
	case PUT_FULL: return outwait_full(s->r, fd, &s->limit, &s->leave);
	case PUT_CARRIER: return outwait_carrier(fd, &s->limit);
	case PUT_HELD:
		if (!s->block)
			return pause_briefly();
		/* fallthrough */
	case PUT_TURN: return pause_for_receiver(s, reason == PUT_TURN);
	default: return -1;
	}
}

/* A sleep in the kernel's own send(), with a descriptor that nobody can close. */
struct block {
	struct sender *s;
	int fd;
};

static void end_block(struct block *b)
{
	struct rec *r = b->s->r;

	if (b->fd >= 0)
		sys_close(b->fd);
	if (!b->s->blocked || !robust_take(&r->tx_lock))
		return;
	/* Cancelled: nobody knows how much went out, so nothing may be counted any more. */
	atomic_fetch_or(&r->flags, REC_PINNED);
	r->tx_blocked = 0;
	robust_give(&r->tx_lock);
}

/* Only the kernel knows whether the handler of a signal restarts send(), if the program has handlers of both kinds; and
 * if nothing was sent, that is what decides. */
static bool must_block(const struct sender *s)
{
	return s->done == 0 && !s->some && sock_has_lane(s->r) && nap_signals(false) == NAP_UNSURE;
}

/* Let it send. Meanwhile others wait, and the stream stays on the carrier. */
static ssize_t block(struct sender *s, int fd, struct lane_iov *from, size_t want)
{
	struct rec *r = s->r;
	struct iovec part[IOV_PIECES];
	struct msghdr msg = { .msg_iov = part };
	struct block b __attribute__((cleanup(end_block))) = { s, own_copy(fd) };
	ssize_t n;

	msg.msg_iovlen = iov_cut(from, min_size(want, STREAM_SHARE), part);
	s->blocked = b.fd >= 0;
	r->tx_blocked = s->blocked ? self_tid() : 0;
	robust_give(&r->tx_lock);
	ROBUST_NONE();
	if (b.fd < 0)
		return outwait_carrier(fd, &s->limit);
	n = real(sendmsg)(b.fd, &msg, s->flags);
	if (!robust_take(&r->tx_lock))
		return -1;
	s->blocked = false;
	r->tx_blocked = 0;
	if (n > 0) {
		r->tx.pos += (uint64_t)n;
		stream_count(&r->sent.tcp_bytes, stream_not_before(r, (uint64_t)n));
		iov_skip(from, (size_t)n);
		s->done += (size_t)n;
	}
	robust_give(&r->tx_lock);
	return n < 0 ? -1 : 0;
}

/* The call is over; errno says why, if it must not block. */
static bool refuse_call(struct sender *s, ssize_t reason)
{
	if (reason == PUT_HELD)
		stream_note_refusal(s->r);
	if (reason < -1)
		errno = EAGAIN;
	return false;
}

/* The lock is given back, and the call is over, or goes on: true. */
static bool goes_on(struct sender *s, ssize_t reason, int fd, struct lane_iov *from, size_t want)
{
	bool sleeps = s->block ? reason < -1 && reason != PUT_OWN
			       : reason == PUT_HELD && is_held_briefly(s);
	bool done = s->done == want;

	/* With the lock: nobody can have closed it yet. */
	if (!s->kept && (sleeps || (reason == 0 && !done))) {
		sock_keep_locked(s->r);
		s->kept = true;
	}
	if (sleeps && reason == PUT_CARRIER && must_block(s))
		return block(s, fd, from, want) == 0;
	if (reason == 0 && !done)
		robust_pass(&s->r->tx_lock);
	else
		robust_give(&s->r->tx_lock);
	if (reason == 0)
		return true;
	return sleeps ? sleep_for(s, reason, fd) == 0 : refuse_call(s, reason);
}

/* Without a lane: one step by TCP. None has come yet; or it is gone, and perhaps the program's number too. */
static ssize_t step(struct sender *s, int fd, struct lane_iov *from, size_t want)
{
	struct iovec part[IOV_PIECES];
	struct msghdr msg = { .msg_iov = part };
	ssize_t n;

	msg.msg_iovlen = iov_cut(from, min_size(want - s->done, STREAM_SHARE), part);
	n = sys_sendmsg(fd, &msg, s->flags | (s->done > 0 ? MSG_NOSIGNAL : 0));
	if (n < 0)
		return errno == EAGAIN ? PUT_CARRIER : -1;
	s->done += (size_t)n;
	iov_skip(from, (size_t)n);
	if (sock_flag(s->r, REC_ELIGIBLE))
		atomic_fetch_add_explicit(&s->r->sent.tcp_bytes, (uint64_t)n, memory_order_relaxed);
	return 0;
}

/* A relative may have been killed while the kernel sent for it. */
static bool is_left(struct rec *r)
{
	if (r->tx_blocked == self_tid() || !robust_is_dead((pid_t)r->tx_blocked))
		return false;
	atomic_fetch_or(&r->flags, REC_PINNED); /* nobody knows how much went out */
	r->tx_blocked = 0;
	return true;
}

/* What can go now, with the lock, by whatever way there is. STREAM_AGAIN: the caller's, as a whole. */
static ssize_t advance(struct sender *s, int fd, struct lane_iov *from, size_t want)
{
	struct rec *r = s->r;

	if (sock_has_lane(r) && r->tx_blocked && !is_left(r))
		return r->tx_blocked == self_tid() ? PUT_OWN : PUT_HELD;
	if (sock_has_lane(r)) {
		stream_look_around(r, fd);
		return fill(s, fd, from, want);
	}
	if (s->done == 0 && fd == s->fd && !s->part &&
	    (!s->young || atomic_load(&r->state) == REC_PLAIN)) {
		s->again = true;
		return -1;
	}
	return step(s, fd, from, want);
}

/* The lock, and the number to use; -1: the call is over. */
static int begin(struct sender *s)
{
	int fd = sock_lock(s->r, &s->r->tx_lock, s->fd, s->kept);

	if (fd >= 0)
		return fd;
	s->again = fd == SOCK_GONE && !s->kept && s->done == 0;
	/* A signal handler while this very thread sends: never between two parts of that. */
	errno = fd == SOCK_OWN ? EAGAIN : EBADF;
	return -1;
}

static ssize_t send_all(struct sender *s, struct lane_iov from, size_t want)
{
	struct rec *r = s->r;

	while (s->done < want) {
		size_t before = s->done;
		ssize_t reason;
		int fd;

		if (s->young && !sock_has_lane(r))
			sleep_above.grow(r, s->fd, min_size(want - s->done, STREAM_SHARE));
		fd = begin(s);
		if (fd < 0)
			break;
		reason = advance(s, fd, &from, want);
		if (s->done == want)
			stream_count(&r->sent.calls, 1);
		if (!goes_on(s, reason, fd, &from, want))
			break;
		if (s->young && s->done > before && s->block)
			sleep_above.pace(r, s->fd, s->done - before);
	}
	if (s->again)
		return STREAM_AGAIN;
	return s->done > 0 ? (ssize_t)s->done : -1;
}

static ssize_t send_as(struct sender *s, const struct iovec *iov, size_t count)
{
	struct lane_iov from = { .iov = iov, .count = count };
	size_t want = iov_size(iov, count);

	s->block = !(s->flags & MSG_DONTWAIT) && !sock_flag(s->r, REC_NONBLOCK);
	return want == 0 ? real(send)(s->fd, NULL, 0, s->flags) : send_all(s, from, want);
}

ssize_t call_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct sender s __attribute__((cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags };

	return send_as(&s, iov, count);
}

ssize_t call_send_young(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct sender s __attribute__((
		cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags, .young = true };

	return send_as(&s, iov, count);
}

ssize_t call_send_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags,
		       bool first)
{
	struct sender s = { .r = r,
			    .fd = fd,
			    .flags = flags,
			    .young = true,
			    .kept = true,
			    .part = true,
			    .some = !first };

	return send_as(&s, iov, count);
}
