/* SPDX-License-Identifier: MIT */
/* The ways off a lane: half closes, closing, stepping down to TCP, and peers that break the rules. */
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "sockets/arena.h"
#include "sockets/hello.h"
#include "sockets/nap.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/stream_priv.h"

/* How long a step down waits for the peer to send unread octets again. */
#define RECALL_NS (1000 * NSEC_PER_MSEC)
/* ... and how long before it does that itself. */
#define PATIENCE_NS (1 * NSEC_PER_MSEC)

static void reset_on_close(int fd)
{
	struct linger l = { .l_onoff = 1, .l_linger = 0 };

	real(setsockopt)(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

void stream_break(struct rec *r, int fd)
{
	atomic_store_explicit(&r->why, WHY_BROKEN, memory_order_relaxed);
	atomic_store_explicit(&r->state, REC_PLAIN, memory_order_release);
	atomic_fetch_or(&r->rx.dir->word, LANE_GONE);
	reset_on_close(fd);
	real(shutdown)(fd, SHUT_RDWR);
}

static void note_shutdown(struct rec *r, int how)
{
	static const uint32_t flags[] = { [SHUT_RD] = REC_SHUT_RD,
					  [SHUT_WR] = REC_SHUT_WR,
					  [SHUT_RDWR] = REC_SHUT_RD | REC_SHUT_WR };

	atomic_fetch_or(&r->flags, flags[how]);
	/* What comes now is answered with a reset, by the kernel. */
	if (sock_flag(r, REC_SHUT_RD) && sock_flag(r, REC_SHUT_WR) && sock_has_lane(r))
		atomic_fetch_or(&r->rx.dir->word, LANE_GONE);
}

int stream_shutdown(struct rec *r, int fd, int how)
{
	bool lane = how != SHUT_RD && sock_has_lane(r);
	bool lock;
	int result, saved;

	/* First of all: a thread that sleeps for room, with the lock, then goes on by the carrier. */
	if (lane)
		atomic_fetch_or(&r->flags, REC_SHUT_WR);
	/* One that sleeps in the kernel is woken by the call itself. */
	lock = how != SHUT_RD && !atomic_load(&r->tx_kernel) && rec_lock_take(&r->tx_lock);
	/* A hint for a receiver that spins; the end itself comes on the carrier. */
	if (lane && sock_has_lane(r))
		atomic_fetch_or(&r->tx.dir->word, LANE_FIN);
	result = real(shutdown)(fd, how);
	saved = errno;
	if (lane && sock_has_lane(r) && lane_tx_rouse(&r->tx))
		nap_end(r->tx.dir);
	if (result == 0)
		note_shutdown(r, how);
	if (lock)
		rec_lock_give(&r->tx_lock);
	errno = saved;
	return result;
}

void stream_serve(struct rec *r, int fd)
{
	if (!sock_has_lane(r) ||
	    !(atomic_load_explicit(&r->tx.dir->word, memory_order_acquire) & LANE_RECALL))
		return;
	if (!rec_lock_try(&r->tx_lock))
		return; /* who sends sees to it */
	if (sock_has_lane(r) && !stream_leave(r, fd))
		stream_break(r, fd);
	rec_lock_give(&r->tx_lock);
}

/* The peer's own socket, borrowed. Needs the right to trace the peer; -1: not to be had. */
static int borrow_peer(struct rec *r)
{
	struct lane_shared *l = &arena_memory(r->arena)->lane[r->lane];
	uint32_t other = 1 - r->side;
	int pid = (int)real(syscall)(SYS_pidfd_open, atomic_load(&l->pid[other]), 0);
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	int fd;

	if (pid < 0)
		return -1;
	fd = (int)real(syscall)(SYS_pidfd_getfd, pid, atomic_load(&l->fd[other]), 0);
	real(close)(pid);
	if (fd >= 0 && (real(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0 ||
			cookie != r->peer_cookie)) {
		real(close)(fd);
		return -1;
	}
	return fd;
}

/* All of it, at once: the kernel takes it, or it is left where it is. */
static bool fits(int fd, const struct iovec *piece, int n)
{
	int buffer = 0, queued = 0;
	socklen_t size = sizeof(buffer);
	size_t total = piece[0].iov_len + (n > 1 ? piece[1].iov_len : 0);

	/* The kernel counts overhead as well; half is surely free for octets. */
	return real(getsockopt)(fd, SOL_SOCKET, SO_SNDBUF, &buffer, &size) == 0 &&
	       real(ioctl)(fd, SIOCOUTQ, &queued) == 0 && buffer > 0 &&
	       total + (size_t)queued < (size_t)buffer / 2;
}

static bool send_pieces(int fd, struct iovec *piece, int n)
{
	for (int i = 0; i < n; i++)
		if (real(send)(fd, piece[i].iov_base, piece[i].iov_len,
			       MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)piece[i].iov_len)
			return false;
	return true;
}

/* The peer is busy elsewhere: do for it what it would do, send what is unread again on the carrier. */
static bool take_back(struct rec *r, int own)
{
	struct iovec piece[2];
	int fd = borrow_peer(r);
	int n = -1;
	bool ok = false;

	if (fd < 0)
		return false;
	n = lane_rx_take_back(&r->rx, piece);
	if (n > 0) {
		bool fit = fits(fd, piece, n);

		ok = fit && send_pieces(fd, piece, n);
		lane_rx_taken_back(&r->rx, ok);
		if (fit && !ok)
			stream_break(r, own); /* some may be out */
	}
	real(close)(fd);
	return ok;
}

/*
 * Wait until the peer has taken back what we did not read; it may be asleep for a while. With the lock of
 * receiving. False: nobody answers; what is in the ring must be read from there.
 */
static bool recall(struct rec *r, int fd)
{
	uint64_t start = clock_now();
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };

	/* Always asked for: the peer may be about to publish. */
	atomic_fetch_or(&r->rx.dir->word, LANE_GONE | LANE_RECALL);
	atomic_fetch_and(&r->rx.dir->word, ~(LANE_WAITING | LANE_BELLED));
	while (atomic_load(&r->rx.dir->word) & LANE_RECALL) {
		bool gone = real(poll)(&p, 1, 0) > 0;

		if (lane_rx_held(&r->rx) == 0)
			return true; /* there was nothing; it stays asked for */
		if (clock_now() - start > PATIENCE_NS && take_back(r, fd))
			return true;
		if (gone || clock_now() - start > RECALL_NS) {
			atomic_fetch_and(&r->rx.dir->word, ~LANE_RECALL);
			return lane_rx_held(&r->rx) == 0;
		}
		sched_yield();
	}
	return lane_rx_held(&r->rx) == 0;
}

static void set_nodelay_back(struct rec *r, int fd)
{
	int zero = 0, one = 1;

	if (!sock_flag(r, REC_NODELAY))
		real(setsockopt)(fd, IPPROTO_TCP, TCP_NODELAY, &zero, sizeof(zero));
	if (sock_flag(r, REC_CORK))
		real(setsockopt)(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof(one));
}

bool stream_is_answered(struct rec *r, int fd)
{
	bool ok = hello_is_answered(&arena_memory(r->arena)->lane[r->lane]);
	uint64_t word;

	if (!ok)
		atomic_fetch_or(&r->flags, REC_PINNED);
	atomic_fetch_and(&r->flags, ~(uint32_t)REC_UNANSWERED);
	if (ok)
		return true;
	/* Our octets stay where they are, on the carrier, and the peer is told to come there as well. */
	atomic_store_explicit(&r->why, WHY_HELLO, memory_order_relaxed);
	word = atomic_fetch_or(&r->rx.dir->word, LANE_GONE);
	atomic_fetch_add(&r->home->stepdowns, 1);
	if (!rec_lock_try(&r->rx_lock))
		return false; /* what it sent into the ring meanwhile is read from there */
	if ((word & LANE_PLACE) == lane_rx_here(&r->rx) && !lane_rx_in_ring(&r->rx)) {
		set_nodelay_back(r, fd);
		atomic_store_explicit(&r->state, REC_PLAIN, memory_order_release);
	}
	rec_lock_give(&r->rx_lock);
	return false;
}

/* Our own sending goes to the carrier, for good. */
static bool leave_for_good(struct rec *r, int fd)
{
	bool ok = false;

	if (!rec_lock_take(&r->tx_lock))
		return false;
	if (sock_has_lane(r)) {
		atomic_fetch_or(&r->flags, REC_PINNED);
		ok = stream_leave(r, fd);
		if (!ok)
			stream_break(r, fd);
	}
	rec_lock_give(&r->tx_lock);
	return ok;
}

static void become_plain(struct rec *r, int fd)
{
	set_nodelay_back(r, fd);
	atomic_store_explicit(&r->state, REC_PLAIN, memory_order_release);
}

bool stream_is_down(struct rec *r, int fd)
{
	/* After GONE nothing can come into the ring; what is not in it the kernel has. */
	if (!sock_flag(r, REC_PINNED) || !(atomic_load(&r->rx.dir->word) & LANE_GONE) ||
	    lane_rx_held(&r->rx) > 0)
		return false;
	become_plain(r, fd);
	return true;
}

void stream_step_down(struct rec *r, int fd, enum why why)
{
	if (!leave_for_good(r, fd) || !rec_lock_take(&r->rx_lock))
		return;
	atomic_store_explicit(&r->why, why, memory_order_relaxed);
	if (recall(r, fd))
		become_plain(r, fd);
	rec_lock_give(&r->rx_lock);
	atomic_fetch_add(&r->home->stepdowns, 1);
}

void stream_moved(struct rec *r, int from, int to)
{
	struct lane_shared *l;

	if (!sock_has_lane(r))
		return;
	l = &arena_memory(r->arena)->lane[r->lane];
	if (atomic_load(&l->pid[r->side]) == getpid() && atomic_load(&l->fd[r->side]) == from)
		atomic_store(&l->fd[r->side], to);
}

void stream_close(struct rec *r, int fd)
{
	struct arena *a = r->arena;

	stream_forget_large(r);
	if (sock_has_lane(r)) {
		/* Unread octets make the kernel reset a connection; it does not know of ours. */
		if (lane_rx_held(&r->rx) > 0)
			reset_on_close(fd);
		atomic_fetch_or(&r->rx.dir->word, LANE_GONE);
		atomic_fetch_or(&r->tx.dir->word, LANE_FIN);
		/* It will not nap again, and finds the end on the carrier. */
		if (lane_tx_rouse(&r->tx))
			nap_end(r->tx.dir);
	}
	r->arena = NULL;
	arena_give(a, r->lane, r->side);
}

void stream_abandon(struct rec *r)
{
	struct arena *a = r->arena;

	/* Without LANE_FIN, which a process that is killed does not set either. */
	if (sock_has_lane(r))
		atomic_fetch_or(&r->rx.dir->word, LANE_GONE);
	r->arena = NULL;
	arena_give(a, r->lane, r->side);
}
