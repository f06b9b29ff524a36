/* SPDX-License-Identifier: MIT */
/* Receiving on a connection that has a lane. */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/meet.h"
#include "channel/nap.h"
#include "sockets/epoll.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"

#define SLICE_MS 20

/* What ended a round of taking. */
enum end {
	END_FULL,    /* as much as asked for */
	END_EMPTY,   /* the ring has no more */
	END_CARRIER, /* the carrier has no more for now */
	END_EOF,
	END_ERROR, /* errno */
	END_AGAIN, /* something came meanwhile: look again */
};

/* Take up to `n` octets off the carrier into the list; never sleeps. */
static ssize_t take_carrier(int fd, struct lane_iov *to, size_t n, int flags)
{
	struct iovec part[STREAM_IOV];
	struct lane_iov rest = *to;
	struct msghdr msg = { .msg_iov = part };
	ssize_t got;

	msg.msg_iovlen = stream_cut(&rest, n, part);
	got = sys_recvmsg(fd, &msg, flags & (MSG_PEEK | MSG_TRUNC));
	if (got > 0)
		stream_skip(to, (size_t)got);
	return got;
}

static enum end from_carrier(struct rec *r, int fd, struct lane_iov *to, size_t n, int flags,
			     size_t *got)
{
	ssize_t now = take_carrier(fd, to, n, flags);

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

	if (taken == 0 || lane_rx_held(&r->rx) + taken <= lane_rx_limit(&r->rx) / 4)
		return;
	/* A writer relies on its bell only once it knows that we have it. */
	if (arena_bell(r->end.arena) < 0)
		stream_bell(r);
	how = lane_rx_must_wake(&r->rx);
	if (how & LANE_ROOM_FUTEX)
		real(syscall)(SYS_futex, &r->rx.dir->head, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
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
			now = take_carrier(fd, to, min_size(limit, want), MSG_PEEK);
			if (now > 0 && (size_t)now == limit) {
				size_t more = lane_rx_behind(rx, word);

				*got = lane_rx_copy(rx, to, 0, min_size(more, want - limit));
			}
			break;
		case LANE_FROM_OPEN:
			if (!lane_rx_enter(rx, word))
				continue;
			now = take_carrier(fd, to, want, MSG_PEEK);
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
static enum end ask_carrier(struct rec *r, int fd)
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
	n = take_carrier(fd, to, min_size((size_t)there, want), flags);
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
		end = ask_carrier(r, fd);
		if (end == END_CARRIER)
			end = foreign(r, fd, to, want - *got, flags, got);
		if (*got > before)
			end = END_FULL;
	}
	return end;
}

/* One round with the lock. */
static enum end round_of(struct rec *r, int fd, struct lane_iov *to, size_t want, int flags,
			 bool ask, size_t *got)
{
	enum end end = END_AGAIN;

	for (int tries = 0; end == END_AGAIN && tries < STREAM_TRIES; tries++)
		end = try_round(r, fd, to, want, flags, ask, got);
	return end == END_AGAIN ? broken(r, fd) : end;
}

static bool stirs(void *arg)
{
	return lane_rx_stirs(&((struct rec *)arg)->rx);
}

static void unsleep(struct rec **r)
{
	stream_wake(*r);
}

/*
 * While the peer has not read what we sent it may want it back, and only we can see to that: sleep in slices
 * until it has. Also when `some` octets are there to be returned: then any signal ends the wait, and
 * no handler restarts it. Returns like recv(); 0: go on.
 */
static int sleep_in_slices(struct rec *r, int fd, bool some)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	struct timeval limit = { 0 };
	socklen_t size = sizeof(limit);
	uint64_t start = clock_now();
	uint64_t most;
	int n;

	/* Only the kernel knows which handler has run. A peer that wants octets back then sees to it itself. */
	if (!some && (stream_unsent(r) == 0 || nap_signals(false) == NAP_UNSURE))
		return 0;
	real(getsockopt)(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, &size);
	most = (uint64_t)limit.tv_sec * NSEC_PER_SEC + (uint64_t)limit.tv_usec * 1000;
	do {
		n = real(poll)(&p, 1, SLICE_MS);
		if (n > 0)
			return 1;
		if (n < 0 && (errno != EINTR || some || most > 0 || !nap_goes_on()))
			return -1;
		stream_serve(r, fd);
		if (most > 0 && clock_now() - start >= most) {
			errno = EAGAIN;
			return -1;
		}
		/* Closed by another thread: go on with the number that was left for us. */
		if (sock_at(fd) != r)
			return 1;
	} while (some || stream_unsent(r) > 0);
	return 0;
}

/* Sleep until the carrier has something to say. 0, or -1 and errno as recv() would say it. */
static int sleep_on_carrier(struct rec *r, int fd, bool some)
{
	uint64_t before = clock_now();
	char octet;
	ssize_t n;

	if (!stream_sleep(r))
		return 0;
	stream_trim_all();
	{
		/* Cancellation unwinds through here. */
		__attribute__((cleanup(unsleep))) struct rec *armed = r;

		n = sleep_in_slices(r, fd, some);
		if (n == 0)
			n = real(recv)(fd, &octet, 1, MSG_PEEK);
		(void)armed;
	}
	ladder_slept(&r->spin, clock_now() - before);
	nap_slept(&r->nap, clock_now() - before);
	return n < 0 ? -1 : 0;
}

/* A moment on the lane's own word. 1: something came; 0: sleep for real; -1 and EINTR. */
static int nap(struct rec *r)
{
	struct lane_rx *rx = &r->rx;
	enum nap_signals signals;
	int n;

	/* After the peer's last octet only the carrier has news. */
	if (!nap_pays(&r->nap) || sock_flag(r, REC_TIMED) ||
	    (atomic_load(&r->rx.dir->word) & LANE_FIN))
		return 0;
	signals = nap_signals(false);
	if (signals == NAP_UNSURE)
		return 0;
	do {
		n = nap_on(&rx, 1, NAP_NS);
	} while (n < 0 && nap_goes_on());
	nap_noted(&r->nap, n != 0);
	return n;
}

static ssize_t finish(struct rec *r, size_t got, enum end end)
{
	if (got > 0) {
		stream_count(&r->received.calls, 1);
		return (ssize_t)got;
	}
	if (end == END_EOF)
		return 0;
	if (end != END_ERROR)
		errno = EAGAIN;
	return -1;
}

/* What an earlier call left for this one: 0, or -1 and errno. */
static int pending_error(struct rec *r)
{
	int error = 0;

	if (atomic_load_explicit(&r->pending_error, memory_order_relaxed) != 0)
		error = atomic_exchange(&r->pending_error, 0);
	if (error)
		errno = error;
	return error ? -1 : 0;
}

/* Every sleeper of this socket is woken by our bell. */
static bool all_belled(const struct rec *r)
{
	return r->armed_bell == atomic_load_explicit(&r->armed, memory_order_relaxed);
}

/* A call that receives. */
struct receiver {
	struct rec *r;
	int fd; /* the program's number */
	int flags;
	bool block;
	bool kept; /* from the first sleep on: another thread may close the socket meanwhile */
	bool left; /* octets stay in the ring, and others sleep */
	bool part; /* one of several parts of a call, which has kept the record */
	stream_taker *taker; /* gets what is there, and says how much of it it takes */
	void *arg;
};

static void let_go(struct receiver *c)
{
	if (c->kept && !c->part)
		sock_release(c->r);
}

static bool is_done(const struct receiver *c, enum end end, size_t got, size_t want)
{
	return !c->block || end == END_ERROR || end == END_EOF || got == want ||
	       (got > 0 && !(c->flags & MSG_WAITALL));
}

/* Somebody else sleeps for this socket, and the octet that woke it may be taken now. */
static void arm_again(struct receiver *c)
{
	struct rec *r = c->r;

	c->left = false;
	if (!atomic_load_explicit(&r->armed, memory_order_relaxed))
		return;
	lane_rx_arm(&r->rx, lane_rx_here(&r->rx), all_belled(r));
	c->left = !(c->flags & MSG_PEEK) && lane_rx_ready(&r->rx) > 0;
}

/* One that must have all goes on, whatever becomes of the lane; and so does a part of a call. Only what is looked at first
 * and taken then is the caller's, as a whole: readers without a lane have no lock that would keep them out between. */
static bool goes_on_plainly(const struct receiver *c, size_t got)
{
	if (c->taker)
		return false;
	return c->part || (got > 0 && c->block && (c->flags & MSG_WAITALL));
}

/* Without a lane any more: what the kernel has now. */
static enum end take_plainly(struct receiver *c, int fd, struct lane_iov *to, size_t want,
			     size_t *got)
{
	ssize_t n = take_carrier(fd, to, want - *got, c->flags);

	if (n > 0)
		*got += (size_t)n;
	return n > 0 ? END_FULL : n == 0 ? END_EOF : errno == EAGAIN ? END_CARRIER : END_ERROR;
}

/* What was looked at goes to the taker; what it takes is gone. With the lock. */
static enum end hand_on(struct receiver *c, int fd, struct lane_iov to, size_t *got)
{
	const struct iovec *iov = to.iov;
	struct iovec again;
	struct lane_iov from = { .iov = &again, .count = 1 };
	ssize_t taken = c->taker(c->arg, iov->iov_base, *got);
	size_t gone = 0;

	*got = 0;
	if (taken <= 0)
		return END_ERROR;
	again = (struct iovec) { iov->iov_base, (size_t)taken };
	/* They were there a moment ago, wherever: nobody else takes them, with the lock. */
	while (gone < (size_t)taken && sock_has_lane(c->r)) {
		size_t before = gone;

		LANE_STORE(c->r->asked_at, 0);
		round_of(c->r, fd, &from, (size_t)taken - gone, 0, true, &gone);
		if (gone == before)
			break;
	}
	*got = (size_t)taken;
	return END_FULL;
}

/* A round with the lock taken and given back. The number to go on with, or SOCK_GONE: nothing to be had with this record
 * any more; SOCK_OWN: in *end. */
static int locked_round(struct receiver *c, struct lane_iov *to, size_t want, size_t *got,
			enum end *end)
{
	struct rec *r = c->r;
	const struct lane_iov start = *to;
	int fd = sock_lock(r, &r->rx_lock, c->fd, c->kept);

	if (fd == SOCK_OWN) {
		errno = EAGAIN; /* a signal handler within the same call */
		*end = END_ERROR;
	}
	if (fd < 0)
		return fd;
	if (!sock_has_lane(r) || (*got == 0 && stream_is_down(r, fd))) {
		*end = goes_on_plainly(c, *got) ? take_plainly(c, fd, to, want, got) : END_AGAIN;
	} else {
		/* Somebody steps down with it: then later. */
		lane_rx_recall_no_more(&r->rx);
		stream_note_cpu(&r->rx.dir->rx_cpu);
		if (LANE_LOAD(r->hint_pid) != self_pid())
			stream_hint(r, fd);
		*end = round_of(r, fd, to, want, c->flags, !c->block || c->kept, got);
		arm_again(c);
	}
	if (c->taker && *got > 0)
		*end = hand_on(c, fd, start, got);
	/* With the lock: nobody can have closed it yet. */
	if (!c->kept && !is_done(c, *end, *got, want)) {
		sock_keep_locked(r);
		c->kept = true;
	}
	robust_give(&r->rx_lock);
	return fd;
}

/* There is no lane any more. */
static int sleep_plainly(int fd)
{
	char octet;

	return real(recv)(fd, &octet, 1, MSG_PEEK) < 0 ? -1 : 0;
}

/* Until something may have come. -1 and errno: not for this call. */
static int await(struct receiver *c, int fd, enum end end, bool some)
{
	struct rec *r = c->r;

	ROBUST_NONE();
	if (!sock_has_lane(r))
		return sleep_plainly(fd);
	stream_serve(r, fd);
	if (end == END_EMPTY) {
		int n;

		if (ladder_climb(stirs, r, stream_peer_cpu(r), &r->spin, ladder_profile.spin_ns))
			return 0;
		n = nap(r);
		if (n != 0)
			return n > 0 ? 0 : -1;
		if (sock_at(c->fd) != r)
			return 0; /* closed meanwhile: go on with the number that was left for us */
	}
	return sleep_on_carrier(r, fd, some);
}

/* The number has become another connection's, and what went wrong is that one's. */
static bool was_another(struct receiver *c, int fd)
{
	return fd == c->fd && errno != EINTR && sock_at(fd) != c->r;
}

/*
 * Others rely on the carrier, and what it told them of is partly taken and partly in the ring, where they do not
 * look. Sets of this process can be told; whoever sleeps in a call only wakes for octets on the carrier.
 */
static void see_to_sleepers(struct receiver *c)
{
	struct rec *r = c->r;
	int saved = errno;

	if (!c->left || !sock_keep(r, c->fd))
		return;
	/* Who is armed in this process after those were told has looked since; one of another process need not have. */
	if (atomic_load(&r->asleep) > 0 || !epoll_left_over(r) ||
	    (atomic_load(&r->armed) > 0 && atomic_load(&r->procs) > 1))
		stream_step_down(r, c->fd, WHY_READERS, false);
	sock_release(r);
	errno = saved;
}

/* The lane is gone, and the program's number too: what is left of it is TCP, and a descriptor kept for this call. */
static ssize_t receive_plainly(struct receiver *c, int fd, const struct lane_iov *to, size_t want)
{
	struct iovec part[STREAM_IOV];
	struct msghdr msg = { .msg_iov = part };

	if (c->taker)
		c->fd = fd;
	if (fd == c->fd)
		return STREAM_AGAIN;
	msg.msg_iovlen = stream_cut(to, want, part);
	return real(recvmsg)(fd, &msg, c->flags);
}

static ssize_t receive(struct receiver *c, struct lane_iov to, size_t want)
{
	struct rec *r = c->r;
	bool peeks = c->flags & MSG_PEEK;
	const struct lane_iov start = to;
	enum end end = END_EMPTY;
	size_t got = 0;

	if (pending_error(r) != 0)
		return -1;
	for (;;) {
		int fd;

		if (peeks) { /* from the beginning each time */
			got = 0;
			to = start;
		}
		fd = locked_round(c, &to, want, &got, &end);
		if (fd == SOCK_GONE && !c->kept)
			return STREAM_AGAIN;
		if (fd == SOCK_GONE) {
			errno = EBADF;
			return finish(r, got, END_ERROR);
		}
		if (end == END_AGAIN)
			return got ? (ssize_t)got : receive_plainly(c, fd, &to, want);
		see_to_sleepers(c);
		if (is_done(c, end, got, want))
			return finish(r, got, end);
		if (await(c, fd, end, got > 0 && !peeks) != 0 && !was_another(c, fd))
			return finish(r, got, END_ERROR);
	}
}

ssize_t stream_receive(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct receiver c __attribute__((cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags };
	struct lane_iov to = { .iov = iov, .count = count };
	size_t want = stream_size(iov, count);

	c.block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);
	if (want == 0) {
		/* Waits until there is something, and takes nothing. */
		char octet;
		struct iovec one = { &octet, 1 };
		struct lane_iov none = { .iov = &one, .count = 1 };
		ssize_t n;

		c.flags |= MSG_PEEK;
		n = receive(&c, none, 1);
		return n > 0 ? 0 : n;
	}
	return receive(&c, to, want);
}

ssize_t stream_receive_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct receiver c = { .r = r, .fd = fd, .flags = flags, .kept = true, .part = true };
	struct lane_iov to = { .iov = iov, .count = count };

	c.block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);
	return stream_size(iov, count) == 0 ? 0 : receive(&c, to, stream_size(iov, count));
}

ssize_t stream_take_by(struct rec *r, int *number, const struct iovec *buffer, int flags,
		       stream_taker *taker, void *arg)
{
	struct receiver c = { .r = r,
			      .fd = *number,
			      .flags = flags | MSG_PEEK,
			      .kept = true,
			      .part = true,
			      .taker = taker,
			      .arg = arg };
	struct lane_iov to = { .iov = buffer, .count = 1 };

	ssize_t n;

	c.block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);
	n = receive(&c, to, buffer->iov_len);
	*number = c.fd;
	return n;
}

size_t stream_unread(struct rec *r)
{
	return lane_rx_held(&r->rx);
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

/* Counting sleepers and telling the sender of them happen together: with the lock. */
bool stream_arm(struct rec *r, const uint64_t *told, bool belled)
{
	bool ok = true;
	uint64_t word;
	size_t limit;

	if (!robust_take(&r->rx_lock))
		return false;
	r->armed_bell += belled;
	atomic_fetch_add(&r->armed, 1);
	for (int tries = 0; ok && sock_has_lane(r); tries++) {
		enum lane_from from;

		if ((told && lane_rx_arm(&r->rx, *told, all_belled(r))) ||
		    lane_rx_arm(&r->rx, lane_rx_here(&r->rx), all_belled(r)))
			break;
		/* Turns that lead nowhere yet must be made, or the next octet finds us asleep. */
		from = lane_rx_look(&r->rx, &word, &limit);
		if (from == LANE_FROM_CARRIER)
			break; /* octets are on their way there */
		ok = from != LANE_FROM_RING && from != LANE_FROM_BROKEN && tries < STREAM_TRIES;
	}
	if (!ok) {
		r->armed_bell -= belled;
		atomic_fetch_sub(&r->armed, 1);
	}
	robust_give(&r->rx_lock);
	return ok;
}

bool stream_sleep(struct rec *r)
{
	bool ok;

	/* Before: a reader that comes between must see it. */
	atomic_fetch_add(&r->asleep, 1);
	ok = stream_arm(r, NULL, false);
	if (!ok)
		atomic_fetch_sub(&r->asleep, 1);
	return ok;
}

void stream_wake(struct rec *r)
{
	stream_disarm(r, false);
	atomic_fetch_sub(&r->asleep, 1);
}

void stream_disarm(struct rec *r, bool belled)
{
	bool locked = robust_take(&r->rx_lock);

	r->armed_bell -= belled;
	if (atomic_fetch_sub(&r->armed, 1) == 1 && sock_has_lane(r))
		lane_rx_disarm(&r->rx);
	if (locked)
		robust_give(&r->rx_lock);
}
