/* SPDX-License-Identifier: MIT */
/*
 * Sending on a connection that has a lane. With the lock of sending nothing waits: a call that may block gives it
 * back, sleeps, and begins again. So what several threads send at the same time may come in turns, as with TCP.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/meet.h"
#include "channel/nap.h"
#include "sockets/carrier.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"

/* So much goes over the carrier before the ring is tried again. */
#define OVERFLOW (64u << 10)
/* With the turn go so many octets. */
#define TURN_FIRST 1024
/* How long a sender that may block waits, in naps, for a receiver because of whom it cannot turn into the ring. */
#define TURN_WAIT (20 * NSEC_PER_MSEC)
#define TURN_NAP  20000
/* So much goes out at most before other threads get their turn. */
#define LOCK_SHARE (256u << 10)
/* A receiver takes octets back in a few system calls. After this it has been killed over it, or means no good. */
#define TAKING_NS NSEC_PER_SEC
/* The octet that wakes the receiver is promised; a kernel that is short of memory is asked so often. */
#define BELL_TRIES 100

/* Why a step cannot be made now; -1 and errno is an error. */
enum {
	PUT_FULL = -2,    /* no room in the ring */
	PUT_CARRIER = -3, /* none on the carrier */
	PUT_HELD = -4,    /* the receiver takes octets back, or wants them and they do not fit */
	PUT_TURN = -5,    /* the receiver may let us into the ring in a moment */
	PUT_LEAVE = -6,   /* the ring is not to be used */
	PUT_OWN = -7,     /* a signal handler, within a send of this very thread */
};

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

/* What the kernel takes at once. */
static ssize_t put_carrier(struct rec *r, int fd, struct lane_iov *from, size_t n, int flags)
{
	struct iovec part[STREAM_IOV];
	struct msghdr msg = { .msg_iov = part };
	ssize_t sent;

	msg.msg_iovlen = stream_cut(from, min_size(n, OVERFLOW), part);
	sent = sys_sendmsg(fd, &msg, flags);
	if (sent > 0) {
		if (lane_tx_rouse(&r->tx))
			nap_end(r->tx.dir);
		r->tx.pos += (uint64_t)sent;
		stream_count(&r->sent.tcp_bytes, not_before(r, (uint64_t)sent));
		stream_skip(from, (size_t)sent);
	}
	return sent < 0 && errno == EAGAIN ? PUT_CARRIER : sent;
}

/* The octet that wakes the receiver. It is promised already, so it must go; there was room for it. */
static int ring_bell(struct rec *r, int fd, uint8_t octet, int flags)
{
	for (int tries = 0; tries < BELL_TRIES; tries++) {
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
	order_stamp(r->tx.dir, r->order_peer);
	if (!lane_tx_publish(&r->tx, word, copied, bell))
		return 0;
	*from = at;
	atomic_store_explicit(&r->tx_told, 0, memory_order_relaxed);
	LANE_STORE(r->full_since, 0);
	stream_count(&r->sent.lane_bytes, copied);
	if (bell && ring_bell(r, fd, octet, flags) != 0)
		return -1;
	tell(r);
	if (r->tx.high > LANE_TRIM && !LANE_LOAD(r->listed))
		stream_note_large(r);
	return (ssize_t)(copied + bell);
}

/* What the receiver left in the ring, over the carrier: all of it at once, or not now. */
static enum stream_left give_back(struct rec *r, int fd, bool for_good)
{
	struct carrier_room was;
	struct iovec piece[2];
	bool ok = true;
	int n;

	/* Behind the end nothing can be sent: the receiver must read it from the ring. */
	if (sock_flag(r, REC_SHUT_WR)) {
		atomic_fetch_and(&r->tx.dir->word, ~LANE_RECALL);
		return STREAM_LEFT;
	}
	if (!carrier_widen(fd, lane_tx_unread(&r->tx) & (2 * LANE_RING - 1), &was)) {
		if (!for_good)
			return STREAM_LATER;
		/* The receiver must read it from the ring: nobody else will send it again. */
		atomic_fetch_and(&r->tx.dir->word, ~LANE_RECALL);
		return STREAM_LEFT;
	}
	n = lane_tx_recall(&r->tx, piece);
	for (int i = 0; i < n && ok; i++) {
		struct lane_iov from = { .iov = &piece[i], .count = 1 };

		while (ok && from.count > 0)
			ok = put_carrier(r, fd, &from, piece[i].iov_len - from.skip, MSG_NOSIGNAL) >
			     0;
	}
	carrier_narrow(fd, &was);
	/* Not in order: the receiver must read it from the ring. */
	if (n == -2)
		atomic_fetch_and(&r->tx.dir->word, ~LANE_RECALL);
	/* A connection that has ended says so by itself. */
	if (n == -1 || (!ok && errno != EPIPE && errno != ECONNRESET))
		return STREAM_BROKEN;
	return STREAM_LEFT;
}

static bool is_taken(void *arg)
{
	struct rec *r = arg;

	return !(atomic_load_explicit(&r->tx.dir->word, memory_order_acquire) & LANE_TAKING);
}

bool stream_is_held(struct rec *r)
{
	uint64_t now = clock_now();

	if (LANE_LOAD(r->held_since) == 0)
		LANE_STORE(r->held_since, now);
	return now - LANE_LOAD(r->held_since) < TAKING_NS;
}

enum stream_left stream_leave(struct rec *r, int fd, bool for_good)
{
	enum stream_left left = STREAM_LEFT;
	size_t room;

	for (int tries = 0; tries < STREAM_TRIES && lane_tx_in_ring(&r->tx); tries++) {
		uint64_t word = atomic_load(&r->tx.dir->word);

		if (word & LANE_TAKING)
			return stream_is_held(r) ? STREAM_LATER : STREAM_BROKEN;
		LANE_STORE(r->held_since, 0);
		if (word & LANE_TAKEN)
			lane_tx_look(&r->tx, 1, &word, &room); /* takes note */
		else if (word & LANE_RECALL)
			left = give_back(r, fd, for_good);
		else if ((word & LANE_PLACE) !=
			 (r->tx.tail | (uint64_t)r->tx.turns << LANE_TURN_SHIFT))
			return STREAM_BROKEN;
		else
			lane_tx_leave(&r->tx, word);
		if (left != STREAM_LEFT)
			return left;
	}
	if (lane_tx_rouse(&r->tx))
		nap_end(r->tx.dir);
	return lane_tx_in_ring(&r->tx) ? STREAM_BROKEN : STREAM_LEFT;
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

/* Into the ring, with a bell if the receiver sleeps. 0: look again. */
static ssize_t put_lane(struct rec *r, int fd, struct lane_iov *from, size_t n, uint64_t word,
			bool bell, int flags)
{
	if (no_ring(r, fd, word))
		return PUT_LEAVE;
	/* The carrier may be full: then the kernel must say so, before anything is promised. If all that
	 * went there has been taken it is not. */
	if (bell && !lane_tx_carrier_is_empty(&r->tx) && !carrier_has_room(fd))
		return PUT_LEAVE;
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

static ssize_t broken(struct rec *r, int fd)
{
	stream_break(r, fd);
	errno = ECONNRESET;
	return -1;
}

/* Off the ring, and then by the carrier. */
static ssize_t put_left(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags)
{
	switch (stream_leave(r, fd, false)) {
	case STREAM_LEFT: return put_carrier(r, fd, from, want, flags);
	case STREAM_LATER: return PUT_HELD;
	default: return broken(r, fd);
	}
}

/* One step, or a reason. `turn`: wait for the ring rather than take the carrier. */
static ssize_t put(struct rec *r, int fd, struct lane_iov *from, size_t want, int flags, bool turn)
{
	for (int tries = 0; tries < STREAM_TRIES; tries++) {
		uint64_t word;
		size_t step = min_size(want, LANE_STEP);
		size_t room = 0;
		ssize_t n = 0;

		switch (lane_tx_look(&r->tx, step, &word, &room)) {
		case LANE_CARRIER:
			if (!is_barred(r, fd, word) && turn_is_near(r, word)) {
				if (ladder_spin(may_turn, r, stream_reader_cpu(r), STREAM_ROOM_NS))
					break;
				if (turn)
					return PUT_TURN;
			}
			return put_carrier(r, fd, from, want, flags);
		case LANE_LEAVE: n = PUT_LEAVE; break;
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
				return PUT_FULL;
			n = PUT_LEAVE;
			break;
		case LANE_HELD:
			if (ladder_spin(is_taken, r, stream_reader_cpu(r), STREAM_ROOM_NS))
				break;
			return stream_is_held(r) ? PUT_HELD : broken(r, fd);
		case LANE_BROKEN: return broken(r, fd);
		}
		if (n == PUT_LEAVE)
			return put_left(r, fd, from, want, flags);
		if (n != 0)
			return n;
	}
	return broken(r, fd);
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
	struct stream_limit limit;
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

	if (ladder_spin(stream_has_room, r, stream_reader_cpu(r), STREAM_ROOM_NS))
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
			n = put_left(r, fd, from, want - s->done, flags);
		} else {
			n = put(r, fd, from, want - s->done, flags,
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
static int nap_for_receiver(struct sender *s, bool turn)
{
	const struct timespec nap = { .tv_nsec = TURN_NAP };
	uint64_t now = clock_now();

	if (turn && s->turned == 0)
		s->turned = now;
	if (real(syscall)(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &nap, NULL) != 0 &&
	    errno == EINTR && (s->limit.some || nap_signals(true) == NAP_ENDS))
		return -1;
	if (turn && !(atomic_load(&s->r->tx.dir->word) & LANE_ATTACHED))
		s->r->absent += (uint32_t)(clock_now() - now);
	if (turn && now - s->turned > TURN_WAIT)
		s->turned = UINT64_MAX;
	pthread_testcancel();
	return 0;
}

/* Sleep until there is something to go on with. Without the lock. 0, or -1 and errno as send() would say it. */
static int sleep_for(struct sender *s, ssize_t reason, int fd)
{
	ROBUST_NONE();
	s->limit.some = s->some || s->done > 0;
	switch (reason) {
	case PUT_FULL: return stream_outwait_full(s->r, fd, &s->limit, &s->leave);
	case PUT_CARRIER: return stream_outwait_carrier(fd, &s->limit);
	case PUT_HELD:
	case PUT_TURN: return nap_for_receiver(s, reason == PUT_TURN);
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
	struct iovec part[STREAM_IOV];
	struct msghdr msg = { .msg_iov = part };
	struct block b __attribute__((cleanup(end_block))) = { s, own_copy(fd) };
	ssize_t n;

	msg.msg_iovlen = stream_cut(from, min_size(want, OVERFLOW), part);
	s->blocked = b.fd >= 0;
	r->tx_blocked = s->blocked ? self_tid() : 0;
	robust_give(&r->tx_lock);
	ROBUST_NONE();
	if (b.fd < 0)
		return stream_outwait_carrier(fd, &s->limit);
	n = real(sendmsg)(b.fd, &msg, s->flags);
	if (!robust_take(&r->tx_lock))
		return -1;
	s->blocked = false;
	r->tx_blocked = 0;
	if (n > 0) {
		r->tx.pos += (uint64_t)n;
		stream_count(&r->sent.tcp_bytes, not_before(r, (uint64_t)n));
		stream_skip(from, (size_t)n);
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
	bool sleeps = reason < -1 && reason != PUT_OWN && s->block, done = s->done == want;

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
	struct iovec part[STREAM_IOV];
	struct msghdr msg = { .msg_iov = part };
	ssize_t n;

	msg.msg_iovlen = stream_cut(from, min_size(want - s->done, OVERFLOW), part);
	n = sys_sendmsg(fd, &msg, s->flags | (s->done > 0 ? MSG_NOSIGNAL : 0));
	if (n < 0)
		return errno == EAGAIN ? PUT_CARRIER : -1;
	s->done += (size_t)n;
	stream_skip(from, (size_t)n);
	if (sock_flag(s->r, REC_ELIGIBLE))
		atomic_fetch_add_explicit(&s->r->sent.tcp_bytes, (uint64_t)n, memory_order_relaxed);
	return 0;
}

/* First thing with the lock. */
static void look_around(struct rec *r, int fd)
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

/* A relative may have been killed while the kernel sent for it. */
static bool is_left(struct rec *r)
{
	if (r->tx_blocked == self_tid() || kill((pid_t)r->tx_blocked, 0) == 0 || errno != ESRCH)
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
		look_around(r, fd);
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
			stream_grow(r, s->fd, min_size(want - s->done, OVERFLOW));
		fd = begin(s);
		if (fd < 0)
			break;
		reason = advance(s, fd, &from, want);
		if (s->done == want)
			stream_count(&r->sent.calls, 1);
		if (!goes_on(s, reason, fd, &from, want))
			break;
		if (s->young && s->done > before && s->block)
			stream_pace(r, s->fd, s->done - before);
	}
	if (s->again)
		return STREAM_AGAIN;
	return s->done > 0 ? (ssize_t)s->done : -1;
}

static ssize_t send_as(struct sender *s, const struct iovec *iov, size_t count)
{
	struct lane_iov from = { .iov = iov, .count = count };
	size_t want = stream_size(iov, count);

	s->block = !(s->flags & MSG_DONTWAIT) && !sock_flag(s->r, REC_NONBLOCK);
	return want == 0 ? real(send)(s->fd, NULL, 0, s->flags) : send_all(s, from, want);
}

ssize_t stream_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct sender s __attribute__((cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags };

	return send_as(&s, iov, count);
}

ssize_t stream_send_young(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct sender s __attribute__((
		cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags, .young = true };

	return send_as(&s, iov, count);
}

ssize_t stream_send_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags,
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

size_t stream_unsent(struct rec *r)
{
	uint32_t unread = lane_tx_unread(&r->tx);

	return unread == UINT32_MAX ? 0 : unread;
}

uint32_t stream_peer_cpu(const struct rec *r)
{
	return atomic_load_explicit(&r->rx.dir->tx_cpu, memory_order_relaxed);
}

uint32_t stream_reader_cpu(const struct rec *r)
{
	return atomic_load_explicit(&r->tx.dir->rx_cpu, memory_order_relaxed);
}
