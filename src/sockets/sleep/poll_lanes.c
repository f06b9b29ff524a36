/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/util.h"
#include "channel/bell.h"
#include "channel/ladder.h"
#include "channel/nap.h"
#include "channel/times.h"
#include "sockets/sleep/epoll.h"
#include "sockets/record/order.h"
#include "sockets/sleep/poll_lanes.h"
#include "sockets/sleep/waiter.h"
#include "sockets/record/process.h"
#include "sockets/record/real.h"
#include "sockets/record/sock.h"
#include "sockets/stream/stream.h"

#define IN     (POLLIN | POLLRDNORM)
#define OUT    (POLLOUT | POLLWRNORM)
#define FEW    64 /* lanes, and sockets without one, that need no further memory */
#define PASSES 16

/* A lane among the descriptors. */
struct view {
	struct rec *r; /* kept */
	uint32_t at;   /* which of them */
	short events;  /* as the program asks, while the kernel is asked for less */
	uint8_t by;    /* enum waiter_by */
};

struct round {
	struct pollfd *fds;
	nfds_t n;
	const struct poll_call *call;
	uint64_t start;
	struct view *lane;
	size_t lanes, most;
	size_t listeners;
	bool sets;   /* one is an epoll set */
	bool belled; /* our bell wakes the sleeper */
	struct view few[FEW];
};

/* --- what is there */

static int lane_revents(struct rec *r, short events)
{
	int ready = 0;

	if ((events & IN) && stream_readable(r))
		ready |= events & IN;
	if ((events & OUT) && stream_writable(r))
		ready |= events & OUT;
	return ready;
}

static void *map(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* One more; false: it is too many to keep an eye on. */
static bool has_place(struct round *w)
{
	struct view *all;

	if (w->lanes < w->most)
		return true;
	all = w->most == FEW && w->n > FEW ? map(w->n * sizeof(*all)) : NULL;
	if (!all)
		return false;
	memcpy(all, w->few, sizeof(w->few));
	w->lane = all;
	w->most = w->n;
	return true;
}

static void find_lanes(struct round *w)
{
	w->lane = w->few;
	w->most = FEW;
	for (nfds_t i = 0; i < w->n; i++) {
		int fd = w->fds[i].fd;
		struct rec *r = fd >= 0 ? sock_live(fd) : NULL;

		w->fds[i].revents = 0;
		if (fd >= 0 && epoll_of(fd)) {
			w->sets = true;
			epoll_passing(fd);
		}
		w->listeners += r && sock_flag(r, REC_LISTEN);
		if (!r || !sock_has_lane(r) || !sock_keep(r, fd))
			continue;
		if (has_place(w)) {
			w->lane[w->lanes++] = (struct view) { .r = r, .at = (uint32_t)i };
			continue;
		}
		sock_pin(r, fd, WHY_LIMIT);
		sock_release(r);
	}
}

static void let_go(struct round *w)
{
	for (size_t i = 0; i < w->lanes; i++)
		sock_release(w->lane[i].r);
	if (w->lane != w->few)
		munmap(w->lane, w->most * sizeof(*w->lane));
	w->lanes = 0;
}

static bool any_ready(void *arg)
{
	struct round *w = arg;

	for (size_t i = 0; i < w->lanes; i++)
		if (lane_revents(w->lane[i].r, w->fds[w->lane[i].at].events))
			return true;
	return false;
}

static void merge_lanes(struct round *w)
{
	for (size_t i = 0; i < w->lanes; i++) {
		struct pollfd *p = &w->fds[w->lane[i].at];
		struct rec *r = w->lane[i].r;

		if (!sock_has_lane(r))
			continue;
		if ((p->revents & OUT) && !(p->revents & (POLLERR | POLLHUP)) &&
		    stream_bars_carrier(r, p->fd))
			p->revents &= (short)~OUT;
		p->revents |= (short)lane_revents(r, p->events);
		/* Who waited for room was not told of the carrier's; a connection that has ended has it all. */
		if (p->revents & (POLLERR | POLLHUP))
			p->revents |= (short)(p->events & OUT);
		if (p->revents & OUT)
			stream_told_writable(r);
	}
}

/*
 * Lane readiness on top of what the kernel said. Returns how many are ready in all. For a full ring the kernel has
 * room, on the carrier; that is the last resort, when the reader does not read.
 */
static int merge(struct round *w)
{
	int ready = 0;

	merge_lanes(w);
	/* One that was looked at too early may have been sent on before those that were found. */
	if (w->lanes > 1)
		merge_lanes(w);
	for (nfds_t i = 0; i < w->n; i++) {
		/* A set inside has no new lanes; but one that could not step down may still hold octets. */
		if (w->sets && w->fds[i].fd >= 0 && epoll_of(w->fds[i].fd) &&
		    (w->fds[i].events & IN) && epoll_lanes_ready(w->fds[i].fd))
			w->fds[i].revents |= (short)(w->fds[i].events & IN);
		ready += w->fds[i].revents != 0;
	}
	return ready;
}

/* Is something ready that may have been sent behind what the kernel has? See order.h. */
static bool order_moved(const struct round *w)
{
	bool moved = false;

	for (size_t i = 0; i < w->lanes; i++) {
		struct rec *r = w->lane[i].r;
		uint32_t stamp;

		if (!(w->fds[w->lane[i].at].revents & IN))
			continue;
		stamp = order_of(r->rx.dir);
		moved = moved || stamp != LANE_LOAD(r->poll_stamp);
		LANE_STORE(r->poll_stamp, stamp);
	}
	return moved;
}

static int poll_kernel(struct round *w, int64_t ns)
{
	struct timespec t = { ns / (int64_t)NSEC_PER_SEC, ns % (int64_t)NSEC_PER_SEC };

	int n;

	if (ns == 0 && !w->call->masked)
		n = real(poll)(w->fds, w->n, 0);
	else
		n = real(ppoll)(w->fds, w->n, ns < 0 ? NULL : &t,
				w->call->masked ? w->call->mask : NULL);
	if (n > 0)
		order_tick(); /* what the program does next follows from that */
	return n;
}

/* Nothing but lanes, and nothing of theirs that only the kernel knows; and listeners. */
static bool lanes_alone(const struct round *w)
{
	if (w->n != w->lanes + w->listeners)
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if (stream_ask_kernel(w->lane[i].r))
			return false;
	return true;
}

/* While lanes keep the caller busy the kernel is asked only every so often, and when something may be in it. */
static bool lanes_will_do(const struct round *w)
{
	static __thread uint64_t looked THREAD_LOCAL_FAST;
	static __thread uint32_t clock THREAD_LOCAL_FAST;
	uint64_t now = clock_now();

	if (now - looked < LOOK_KERNEL && clock == order_now() && lanes_alone(w)) {
		for (nfds_t i = 0; i < w->n; i++)
			w->fds[i].revents = 0;
		return true;
	}
	looked = now;
	clock = order_now();
	return false;
}

/* What is there besides what the kernel has said; and what that has which may have been sent before. */
static int complete(struct round *w)
{
	int n = merge(w);

	for (int pass = 0; pass < PASSES && order_moved(w); pass++) {
		if (poll_kernel(w, 0) < 0)
			return -1;
		n = merge(w);
	}
	return n;
}

/* Everything that is there now, in an order in which it can have been sent. */
static int look(struct round *w)
{
	bool asked = !lanes_will_do(w);
	int n;

	if (asked && poll_kernel(w, 0) < 0)
		return -1;
	n = complete(w);
	if (n != 0 || asked)
		return n;
	return poll_kernel(w, 0) < 0 ? -1 : complete(w);
}

/* --- sleeping */

/* *most is how long one can sleep. */
static bool arm(struct round *w, int64_t *most)
{
	for (size_t i = 0; i < w->lanes; i++) {
		struct view *v = &w->lane[i];
		struct pollfd *p = &w->fds[v->at];

		if (!sock_has_lane(v->r))
			continue;
		stream_serve(v->r, p->fd);
		*most = min_i64(*most, waiter_patience(v->r, false, false));
		if ((p->events & IN) &&
		    !waiter_arm(v->r, &v->by, w->belled ? WAITER_BELL : WAITER_CALL, NULL))
			return false;
	}
	return true;
}

static void disarm(struct round *w)
{
	for (size_t i = 0; i < w->lanes; i++)
		waiter_disarm(w->lane[i].r, &w->lane[i].by);
}

/* The bell can wake this poll(). Not with several threads: one would take the ring that is meant for another. */
static bool can_hear(const struct round *w)
{
	if (!__libc_single_threaded || w->n > FEW || bell_own() < 0)
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if (w->lane[i].r->bell_pid != self_pid())
			return false;
	return true;
}

static int poll_with_bell(struct round *w, int64_t ns, bool *again)
{
	struct pollfd more[FEW + 1];
	struct round wide = { .fds = more, .n = w->n + 1, .call = w->call };
	int n;

	memcpy(more, w->fds, w->n * sizeof(*more));
	more[w->n] = (struct pollfd) { .fd = bell_own(), .events = POLLIN };
	n = poll_kernel(&wide, ns);
	for (nfds_t i = 0; n >= 0 && i < w->n; i++)
		w->fds[i].revents = more[i].revents;
	if (n > 0 && more[w->n].revents) {
		bell_still();
		*again = true;
		n--;
	}
	return n;
}

/* Where the peers run. One that needs this processor cannot come while we spin on it. */
static uint32_t peers_cpu(const struct round *w)
{
	uint32_t me = ladder_cpu();

	for (size_t i = 0; i < w->lanes && i < 8; i++)
		if (stream_peer_cpu(w->lane[i].r) == me)
			return me;
	return stream_peer_cpu(w->lane[0].r);
}

/* Sockets whose lane, if it came up now, would not wake the sleeper: it is kept from coming. */
struct young {
	struct rec **rec;
	size_t n, most;
	struct rec *few[FEW];
};

static void young_end(struct young *y)
{
	for (size_t i = 0; i < y->n; i++)
		sock_call_ends(y->rec[i]);
	if (y->rec != y->few)
		munmap(y->rec, y->most * sizeof(*y->rec));
	y->n = 0;
}

/* False: a lane has come, or could without our knowing. */
static bool young_begin(struct young *y, const struct round *w)
{
	size_t at = 0;

	y->rec = y->few;
	y->most = FEW;
	if (__libc_single_threaded)
		return true;
	if (w->n > FEW) {
		void *p = map(w->n * sizeof(*y->rec));

		if (p) {
			y->rec = p;
			y->most = w->n;
		}
	}
	for (nfds_t i = 0; i < w->n; i++) {
		int fd = w->fds[i].fd;
		struct rec *r = fd >= 0 ? sock_live(fd) : NULL;
		/* What has one is looked at, and armed. */
		while (at < w->lanes && w->lane[at].at < i)
			at++;
		if (!r || (at < w->lanes && w->lane[at].at == i) || sock_flag(r, REC_LISTEN))
			continue;
		if (!sock_enter(r))
			return false;
		if (y->n < y->most) {
			y->rec[y->n++] = r;
		} else { /* no memory for the list */
			sock_pin(r, fd, WHY_LIMIT);
			sock_call_ends(r);
		}
	}
	return true;
}

struct sleeper {
	struct round *w;
	size_t hushed;
	struct young young;
	int64_t left;
	bool rung;
};

/* For writers that wait for room in the ring: the kernel must not say that there is some on the carrier. */
static void hush(struct sleeper *s)
{
	struct round *w = s->w;

	for (; s->hushed < w->lanes; s->hushed++) {
		struct view *v = &w->lane[s->hushed];
		struct pollfd *p = &w->fds[v->at];
		struct rec *r = v->r;

		v->events = p->events;
		if (!(p->events & OUT) || !stream_wants_room(r))
			continue;
		if (sock_at(p->fd) == r)
			stream_look_for_end(r, p->fd);
		p->events &= (short)~OUT;
	}
}

static void wake_up(void *arg)
{
	struct sleeper *s = arg;

	for (size_t i = 0; i < s->hushed; i++)
		s->w->fds[s->w->lane[i].at].events = s->w->lane[i].events;
	disarm(s->w);
	young_end(&s->young);
}

static int64_t time_left(const struct round *w)
{
	int64_t left;

	if (w->call->timeout < 0)
		return -1;
	left = w->call->timeout - (int64_t)(clock_now() - w->start);
	return left > 0 ? left : 0;
}

static int sleep_in_kernel(void *arg)
{
	struct sleeper *s = arg;

	return s->w->belled ? poll_with_bell(s->w, s->left, &s->rung) : poll_kernel(s->w, s->left);
}

/* Sleep in the kernel; not for long if a writer waits for room in `full`. 0 and *again: look once more. */
static int poll_sleep(struct round *w, struct waiter *waiter, const struct rec *full, bool *again)
{
	struct sleeper s = { .w = w, .left = time_left(w) };
	int64_t most = full ? stream_glance(full) : INT64_MAX;
	int n;

	*again = true;
	w->belled = w->lanes > 0 && can_hear(w);
	if (!young_begin(&s.young, w) || !arm(w, &most)) {
		wake_up(&s);
		return 0;
	}
	stream_trim_all();
	*again = most < INT64_MAX && (s.left < 0 || s.left > most);
	if (*again)
		s.left = most;
	if (full)
		hush(&s);
	waiter->woken = wake_up;
	waiter->arg = &s;
	n = waiter_sleep(waiter, sleep_in_kernel, &s);
	*again = *again || s.rung;
	return n;
}

/* A writer whose reader may make room any moment. */
static struct rec *find_full(struct round *w)
{
	for (size_t i = 0; i < w->lanes; i++)
		if ((w->fds[w->lane[i].at].events & OUT) && stream_wants_room(w->lane[i].r))
			return w->lane[i].r;
	return NULL;
}

/* Only lanes, and only their octets, are waited for: a nap will do. */
static bool can_nap(struct round *w, struct waiter *waiter)
{
	if (w->n != w->lanes || w->lanes == 0 || w->lanes > NAP_LANES || w->call->mask ||
	    !nap_hears(w->lanes))
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if ((w->fds[i].events & (IN | OUT)) == 0 ||
		    (w->fds[i].events & ~(IN | POLLPRI | POLLRDBAND)) ||
		    !waiter_can_nap(w->lane[i].r, true))
			return false;
	return waiter_nap_pays(waiter);
}

/* As waiter_nap(). */
static int poll_nap(struct round *w, struct waiter *waiter)
{
	struct lane_rx *lane[NAP_LANES];

	for (size_t i = 0; i < w->lanes; i++) {
		lane[i] = &w->lane[i].r->rx;
		stream_serve(w->lane[i].r, w->fds[i].fd);
	}
	return waiter_nap(waiter, lane, w->lanes, time_left(w));
}

static bool is_not_full(void *rec)
{
	return !stream_is_full(rec);
}

/* As waiter_room(): delays all else that is polled for, so not for long. */
static int poll_for_room(struct round *w, struct rec *full)
{
	int64_t left = time_left(w);

	return waiter_room(full, is_not_full,
			   left < 0 ? (int64_t)ROOM_NAP : min_i64(left, ROOM_NAP), false);
}

/* How the next sleep is spent. */
enum sleep { IN_KERNEL, FOR_ROOM, NAPPING };

static enum sleep choose(struct round *w, struct waiter *waiter, struct rec **full)
{
	*full = find_full(w);
	if (*full)
		return !w->call->masked && stream_may_nap(*full) ? FOR_ROOM : IN_KERNEL;
	return can_nap(w, waiter) ? NAPPING : IN_KERNEL;
}

/* One round with the lanes there are now. *again: they, or others, must be looked at once more. */
static int poll_round(struct pollfd *fds, nfds_t count, const struct poll_call *c, uint64_t start,
		      bool *again)
{
	struct round w __attribute__((
		cleanup(let_go))) = { .fds = fds, .n = count, .call = c, .start = start };
	struct waiter waiter = { .ready = any_ready, .arg = &w };
	struct rec *full = NULL;
	enum sleep how;
	int n;

	*again = false;
	find_lanes(&w);
	if (w.lanes > 0) {
		waiter.spin = &w.lane[0].r->spin;
		waiter.nap = &w.lane[0].r->nap;
	}
	if (w.lanes > 0 && c->timeout != 0)
		waiter_climb(&waiter, peers_cpu(&w));
	how = choose(&w, &waiter, &full);
	/* Who is going to sleep in the kernel asks it then. */
	if (how != IN_KERNEL || w.lanes == 0 || c->timeout == 0 || any_ready(&w)) {
		n = look(&w);
		if (n != 0 || time_left(&w) == 0)
			return n;
	}
	*again = true;
	switch (how) {
	case FOR_ROOM: n = poll_for_room(&w, full); break;
	case NAPPING: n = poll_nap(&w, &waiter); break;
	default: n = poll_sleep(&w, &waiter, full, again); break;
	}
	n = n < 0 ? n : complete(&w);
	/* What the kernel told of may have been taken by another thread meanwhile. */
	*again = *again || (n == 0 && time_left(&w) != 0);
	return n;
}

int poll_any(struct pollfd *fds, nfds_t n, const struct poll_call *c)
{
	uint64_t start = clock_now();
	bool again = true;
	int result = 0;

	while (result == 0 && again)
		result = poll_round(fds, n, c, start, &again);
	return result;
}

bool poll_concerns_us(const struct pollfd *fds, nfds_t n)
{
	for (nfds_t i = 0; i < n; i++) {
		struct rec *r = fds[i].fd >= 0 ? sock_live(fds[i].fd) : NULL;

		if (r && (sock_has_lane(r) || !__libc_single_threaded))
			return true;
		if (fds[i].fd >= 0 && epoll_of(fds[i].fd))
			return true;
	}
	return false;
}
