/* SPDX-License-Identifier: MIT */
/*
 * A link carries the messages of one queue pair to its peer and back. It stands between the queue
 * pair, which knows queues, states and the order of messages, and a wire: TCP today (link_tcp.h).
 *
 * Down, it asks the scheduler (qp_sched.h) for the next message, takes as much of it as it likes, and
 * says when that is out. Up, it brings segments, or whole messages, to rx_segment.h; and it says how
 * its stream ends (qp.h). A link that can move a whole message at once needs no segments: its message
 * is one segment.
 *
 * All functions are called under the lock of the queue pair's engine. Any call up may close the link:
 * whoever calls up looks at `open` before it goes on. The object itself stays until destroy(), which
 * is never called from within one of its own functions.
 */
#ifndef FLUE_RNIC_LINK_H
#define FLUE_RNIC_LINK_H

#include <bsd/sys/queue.h>
#include <stdbool.h>
#include <stdint.h>

struct qp;
struct link;

enum link_end {
	LINK_CLOSE,   /* both directions are finished, or nobody will care */
	LINK_RESET,   /* the peer shall see that it was not an orderly end */
	LINK_ABANDON, /* in a child of fork(): give up our copies, touch nothing that is shared */
};

struct link_ops {
	/* The queue pair is in RTS and owns the link: bring in what has come already, then send. */
	void (*start)(struct link *l);

	/*
	 * There may be something to send, or our direction may have to end. Sends until the
	 * scheduler has nothing or the link is full; in the latter case goes on by itself. When
	 * qp_sched_wants_fin() says so, ends our direction behind what was sent. Most calls find
	 * nothing to do. A call from inside kick() itself, which what it calls up may make, does
	 * nothing: the call that runs looks again.
	 */
	void (*kick)(struct link *l);

	/*
	 * The peer's direction has ended and ours will: call qp_link_over() when the peer has
	 * everything we sent and our end, qp_link_failed() if that can not be any more. Both may
	 * be called at once, from here.
	 */
	void (*await_end)(struct link *l);

	/*
	 * Both NULL: what comes shows at descriptors that the link watches (engine_watch()). Else the
	 * engine asks. poll() brings in what has come; every poll of a completion queue does it.
	 * arm() is asked by who is about to sleep. true: nothing has come, and whoever brings
	 * something from now on calls engine_ring(). false: something has, and poll() follows.
	 */
	void (*poll)(struct link *l);
	bool (*arm)(struct link *l);

	/*
	 * How long the peer's host has answered nothing that it must answer, in ms; 0: it has, or was not asked.
	 * watch: it is asked from now on, also when we have nothing to send; false: not any more.
	 */
	uint64_t (*silence)(struct link *l, bool watch);

	/* What the peer may do has changed (qp.deny): when it returns nobody does more. NULL: it is looked at for each segment. */
	void (*rights)(struct link *l);

	/* Gives up the wire and all it holds; idempotent; calls nothing up. `open` is false then. */
	void (*close)(struct link *l, enum link_end how);

	/* Closed: frees it. */
	void (*destroy)(struct link *l);
};

/* First member of every link. */
struct link {
	const struct link_ops *ops;
	struct qp *qp;
	uint32_t kind; /* enum flue_link */
	bool open;     /* between a successful qp_establish() and close() */
	LIST_ENTRY(link) of_engine;
};

static inline bool link_is_open(const struct link *l)
{
	return l && l->open;
}

static inline void link_rights(struct link *l)
{
	if (link_is_open(l) && l->ops->rights)
		l->ops->rights(l);
}

static inline void link_kick(struct link *l)
{
	if (link_is_open(l))
		l->ops->kick(l);
}

#endif
