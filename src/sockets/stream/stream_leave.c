/* SPDX-License-Identifier: MIT */
/* Off the ring with what is sent, and by the carrier; with the lock of sending. */
#include <errno.h>

#include "base/sys.h"
#include "base/util.h"
#include "channel/nap.h"
#include "sockets/record/sock.h"
#include "sockets/stream/carrier.h"
#include "sockets/stream/iov.h"
#include "sockets/stream/stream.h"
#include "sockets/stream/stream_priv.h"

/* The end that left the offer looks at it at the next turn, or within this many octets: until then it cannot know of
 * the lane, and the carrier is all there is. */
uint64_t stream_not_before(struct rec *r, uint64_t n)
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
ssize_t stream_put_carrier(struct rec *r, int fd, struct lane_iov *from, size_t n, int flags)
{
	struct iovec part[IOV_PIECES];
	struct msghdr msg = { .msg_iov = part };
	ssize_t sent;

	msg.msg_iovlen = iov_cut(from, min_size(n, STREAM_SHARE), part);
	sent = sys_sendmsg(fd, &msg, flags);
	if (sent > 0) {
		if (lane_tx_rouse(&r->tx))
			nap_end(r->tx.dir);
		r->tx.pos += (uint64_t)sent;
		stream_count(&r->sent.tcp_bytes, stream_not_before(r, (uint64_t)sent));
		iov_skip(from, (size_t)sent);
	}
	return sent < 0 && errno == EAGAIN ? PUT_CARRIER : sent;
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
		lane_tx_keep(&r->tx);
		return STREAM_LEFT;
	}
	if (!carrier_widen(fd, lane_tx_unread(&r->tx) & (2 * LANE_RING - 1), &was)) {
		if (!for_good)
			return STREAM_LATER;
		/* The receiver must read it from the ring: nobody else will send it again. */
		lane_tx_keep(&r->tx);
		return STREAM_LEFT;
	}
	n = lane_tx_recall(&r->tx, piece);
	for (int i = 0; i < n && ok; i++) {
		struct lane_iov from = { .iov = &piece[i], .count = 1 };

		while (ok && from.count > 0)
			ok = stream_put_carrier(r, fd, &from, piece[i].iov_len - from.skip,
						MSG_NOSIGNAL) > 0;
	}
	carrier_narrow(fd, &was);
	/* Not in order: the receiver must read it from the ring. */
	if (n == -2)
		lane_tx_keep(&r->tx);
	/* A connection that has ended says so by itself. */
	if (n == -1 || (!ok && errno != EPIPE && errno != ECONNRESET))
		return STREAM_BROKEN;
	return STREAM_LEFT;
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
