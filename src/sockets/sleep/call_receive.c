/* SPDX-License-Identifier: MIT */
/* A call that receives: rounds of taking what is there, and between them a wait. */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/call.h"
#include "sockets/sleep/epoll.h"
#include "sockets/sleep/waiter.h"
#include "sockets/stream/iov.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_step.h"

static bool stirs(void *arg)
{
	return lane_rx_stirs(&((struct rec *)arg)->rx);
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
		n = real(poll)(&p, 1, SLEEP_UNREAD / (int64_t)NSEC_PER_MSEC);
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

/* A sleep on the carrier. */
struct asleep {
	struct rec *r;
	int fd;
	bool some;
	uint8_t by;
};

static void unsleep(void *arg)
{
	struct asleep *a = arg;

	waiter_disarm(a->r, &a->by);
}

static int look_at_carrier(void *arg)
{
	const struct asleep *a = arg;
	char octet;
	int n = sleep_in_slices(a->r, a->fd, a->some);

	return n ? n : (int)real(recv)(a->fd, &octet, 1, MSG_PEEK);
}

/* Until something may have come. 0, or -1 and errno as recv() would say it. */
static int wait_for_octets(struct rec *r, int fd, int number, enum end end, bool some)
{
	struct asleep a = { .r = r, .fd = fd, .some = some };
	struct waiter w = { .ready = stirs, .arg = r, .spin = &r->spin, .nap = &r->nap };
	struct lane_rx *rx = &r->rx;
	int n = 0;

	if (end == END_EMPTY) {
		if (waiter_climb(&w, stream_peer_cpu(r)))
			return 0;
		if (waiter_nap_pays(&w) && waiter_can_nap(r, false) && !sock_flag(r, REC_TIMED) &&
		    nap_signals(false) != NAP_UNSURE)
			do
				n = waiter_nap(&w, &rx, 1, -1);
			while (n < 0 && nap_goes_on());
		if (n != 0)
			return n > 0 ? 0 : -1;
		if (sock_at(number) != r)
			return 0; /* closed meanwhile: go on with the number that was left for us */
	}
	if (!waiter_arm(r, &a.by, WAITER_CALL, NULL))
		return 0;
	stream_trim_all();
	w.woken = unsleep;
	w.arg = &a;
	return waiter_sleep(&w, look_at_carrier, &a) < 0 ? -1 : 0;
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

/* A call that receives. */
struct receiver {
	struct rec *r;
	int fd; /* the program's number */
	int flags;
	bool block;
	bool kept; /* from the first sleep on: another thread may close the socket meanwhile */
	bool left; /* octets stay in the ring, and others sleep */
	bool part; /* one of several parts of a call, which has kept the record */
	call_taker *taker; /* gets what is there, and says how much of it it takes */
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
	ssize_t n = stream_take_carrier(fd, to, want - *got, c->flags);

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
		stream_round(c->r, fd, &from, (size_t)taken - gone, 0, true, &gone);
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
		*end = stream_round(r, fd, to, want, c->flags, !c->block || c->kept, got);
		c->left = waiter_arm_again(r) && !(c->flags & MSG_PEEK);
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

/* -1 and errno: not for this call. */
static int await(struct receiver *c, int fd, enum end end, bool some)
{
	ROBUST_NONE();
	if (!sock_has_lane(c->r))
		return sleep_plainly(fd);
	stream_serve(c->r, fd);
	return wait_for_octets(c->r, fd, c->fd, end, some);
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
	struct iovec part[IOV_PIECES];
	struct msghdr msg = { .msg_iov = part };

	if (c->taker)
		c->fd = fd;
	if (fd == c->fd)
		return STREAM_AGAIN;
	msg.msg_iovlen = iov_cut(to, want, part);
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

ssize_t call_receive(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct receiver c __attribute__((cleanup(let_go))) = { .r = r, .fd = fd, .flags = flags };
	struct lane_iov to = { .iov = iov, .count = count };
	size_t want = iov_size(iov, count);

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

ssize_t call_receive_part(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct receiver c = { .r = r, .fd = fd, .flags = flags, .kept = true, .part = true };
	struct lane_iov to = { .iov = iov, .count = count };

	c.block = !(flags & MSG_DONTWAIT) && !sock_flag(r, REC_NONBLOCK);
	return iov_size(iov, count) == 0 ? 0 : receive(&c, to, iov_size(iov, count));
}

ssize_t call_take_by(struct rec *r, int *number, const struct iovec *buffer, int flags,
		     call_taker *taker, void *arg)
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
