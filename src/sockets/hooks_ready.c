/* SPDX-License-Identifier: MIT */
/* Hooks of the calls that wait for descriptors. */
#include <string.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/bell.h"
#include "sockets/epoll.h"
#include "sockets/hook.h"
#include "sockets/nap.h"
#include "sockets/wait.h"

/* The C library's header calls the list of poll() write-only, which is not so. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

void __chk_fail(void) __attribute__((noreturn));

/* --- poll and its relatives */

#define IN         (POLLIN | POLLRDNORM)
#define OUT        (POLLOUT | POLLWRNORM)
#define LANES_MOST 64 /* remembered between the rounds of one call */
#define SLICE_NS   (20 * (int64_t)NSEC_PER_MSEC)
#define LOOK_NS    100000 /* as for epoll sets */

struct round {
	struct pollfd *fds;
	nfds_t n;
	struct rec *lane[LANES_MOST];
	nfds_t at[LANES_MOST];
	size_t lanes;
	size_t listeners;
	bool belled; /* our bell wakes the sleeper */
	bool many;   /* more lanes than fit: no spinning, all others as usual */
};

static int lane_revents(struct rec *r, short events)
{
	int ready = 0;

	if ((events & IN) && stream_readable(r))
		ready |= events & IN;
	if ((events & OUT) && stream_writable(r))
		ready |= events & OUT;
	return ready;
}

static void find_lanes(struct round *w)
{
	w->lanes = w->listeners = 0;
	w->many = false;
	for (nfds_t i = 0; i < w->n; i++) {
		struct rec *r = w->fds[i].fd >= 0 ? sock_live(w->fds[i].fd) : NULL;

		if (w->fds[i].fd >= 0)
			epoll_passing(w->fds[i].fd);
		w->listeners += r && sock_flag(r, REC_LISTEN);
		if (!r || !sock_has_lane(r))
			continue;
		if (w->lanes == LANES_MOST) {
			w->many = true;
			return;
		}
		w->lane[w->lanes] = r;
		w->at[w->lanes++] = i;
	}
}

static bool any_ready(void *arg)
{
	struct round *w = arg;

	for (size_t i = 0; i < w->lanes; i++)
		if (lane_revents(w->lane[i], w->fds[w->at[i]].events))
			return true;
	return false;
}

/*
 * Lane readiness on top of what the kernel said. Returns how many are ready in all. For a full ring the kernel has
 * room, on the carrier; that is the last resort, when the reader does not read.
 */
static int merge(struct round *w)
{
	int ready = 0;

	for (size_t i = 0; i < w->lanes; i++) {
		struct pollfd *p = &w->fds[w->at[i]];

		if ((p->revents & OUT) && stream_wants_room(w->lane[i]))
			p->revents &= (short)~OUT;
		p->revents |= (short)lane_revents(w->lane[i], p->events);
		if (p->revents & OUT)
			stream_told_writable(w->lane[i]);
	}
	for (nfds_t i = 0; i < w->n; i++) {
		struct epoll_set *set = epoll_of(w->fds[i].fd);

		/* A set inside has no new lanes; but one that could not step down may still hold octets. */
		if (set && (w->fds[i].events & IN) && epoll_lanes_ready(set))
			w->fds[i].revents |= (short)(w->fds[i].events & IN);
		ready += w->fds[i].revents != 0;
	}
	return ready;
}

/* Rung before is not rung now: as for a member of a set. */
static bool arm_for_bell(struct rec *r)
{
	atomic_store(r->rx_rung, 0);
	return stream_arm(r, NULL, true);
}

static bool arm(struct round *w, size_t *armed, bool *unread)
{
	*unread = false;
	for (*armed = 0; *armed < w->lanes; ++*armed) {
		struct rec *r = w->lane[*armed];
		struct pollfd *p = &w->fds[w->at[*armed]];

		stream_serve(r, p->fd);
		*unread = *unread || stream_unsent(r) > 0;
		if ((p->events & IN) && !(w->belled ? arm_for_bell(r) : stream_sleep(r)))
			return false;
		sock_keep(r);
	}
	return true;
}

static void disarm(struct round *w, size_t armed)
{
	for (size_t i = 0; i < armed; i++) {
		if ((w->fds[w->at[i]].events & IN) && w->belled)
			stream_disarm(w->lane[i], true);
		else if (w->fds[w->at[i]].events & IN)
			stream_wake(w->lane[i]);
		sock_release(w->lane[i]);
	}
}

/* What a round of the kernel's poll is to do. */
struct kernel_poll {
	int64_t timeout; /* nanoseconds; < 0: for ever */
	const sigset_t *mask;
	bool masked; /* the program called ppoll(): signals as it said */
};

static int poll_kernel(struct round *w, const struct kernel_poll *k, int64_t ns)
{
	struct timespec t = { ns / (int64_t)NSEC_PER_SEC, ns % (int64_t)NSEC_PER_SEC };

	if (ns == 0 && !k->masked)
		return real(poll)(w->fds, w->n, 0);
	return real(ppoll)(w->fds, w->n, ns < 0 ? NULL : &t, k->masked ? k->mask : NULL);
}

/* The bell can wake this poll(). Not with several threads: one would take the ring that is meant for another. */
static bool can_hear(const struct round *w)
{
	if (!__libc_single_threaded || w->n > LANES_MOST || bell_own() < 0)
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if (w->lane[i]->bell_pid != process_pid())
			return false;
	return true;
}

static int poll_with_bell(struct round *w, const struct kernel_poll *k, int64_t ns, bool *again)
{
	struct pollfd more[LANES_MOST + 1];
	struct round wide = { .fds = more, .n = w->n + 1 };
	int n;

	memcpy(more, w->fds, w->n * sizeof(*more));
	more[w->n] = (struct pollfd) { .fd = bell_own(), .events = POLLIN };
	n = poll_kernel(&wide, k, ns);
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
	uint32_t me = wait_cpu();

	for (size_t i = 0; i < w->lanes && i < 8; i++)
		if (stream_peer_cpu(w->lane[i]) == me)
			return me;
	return stream_peer_cpu(w->lane[0]);
}

struct sleeper {
	struct round *w;
	size_t armed;
	size_t hushed;
	short events[LANES_MOST];
};

/* For writers that wait for room in the ring: the kernel must not say that there is some on the carrier. */
static void hush(struct sleeper *s)
{
	struct round *w = s->w;

	for (; s->hushed < w->lanes; s->hushed++) {
		struct pollfd *p = &w->fds[w->at[s->hushed]];

		s->events[s->hushed] = p->events;
		if (!(p->events & OUT) || !stream_wants_room(w->lane[s->hushed]))
			continue;
		stream_look_for_end(w->lane[s->hushed], p->fd);
		p->events &= (short)~OUT;
	}
}

static void wake_up(struct sleeper *s)
{
	disarm(s->w, s->armed);
	for (size_t i = 0; i < s->hushed; i++)
		s->w->fds[s->w->at[i]].events = s->events[i];
}

/* Sleep in the kernel; not for long if a writer waits for room in `full`. 0 and *again: look once more. */
static int poll_sleep(struct round *w, const struct kernel_poll *k, uint64_t start,
		      const struct rec *full, bool *again)
{
	struct sleeper s __attribute__((cleanup(wake_up))) = { .w = w };
	uint64_t before = clock_now();
	int64_t left = k->timeout;
	int64_t slice = full ? stream_glance(full) : SLICE_NS;
	bool unread;
	int n;

	*again = true;
	w->belled = can_hear(w);
	if (!arm(w, &s.armed, &unread))
		return 0;
	stream_trim_all();
	if (left >= 0) {
		left -= (int64_t)(before - start);
		if (left < 0)
			left = 0;
	}
	if ((unread || full) && (left < 0 || left > slice))
		left = slice;
	else
		*again = false;
	if (full)
		hush(&s);
	n = w->belled ? poll_with_bell(w, k, left, again) : poll_kernel(w, k, left);
	if (w->lanes > 0) {
		wait_slept(&w->lane[0]->spin, clock_now() - before);
		nap_slept(&w->lane[0]->nap, clock_now() - before);
	}
	return n;
}

/* Too many to keep an eye on: those beyond are the kernel's. */
static void leave_rest_to_kernel(struct round *w)
{
	for (nfds_t i = w->at[LANES_MOST - 1] + 1; w->many && i < w->n; i++) {
		struct rec *r = w->fds[i].fd >= 0 ? sock_live(w->fds[i].fd) : NULL;

		if (r && sock_has_lane(r))
			sock_pin(r, w->fds[i].fd, WHY_LIMIT);
	}
}

/* What the kernel says, and what it cannot know. */
static int ask_both(struct round *w, const struct kernel_poll *k)
{
	int n = poll_kernel(w, k, 0);

	return n >= 0 ? merge(w) : n;
}

/* A writer whose reader may make room any moment. */
static struct rec *find_full(struct round *w)
{
	for (size_t i = 0; i < w->lanes; i++)
		if ((w->fds[w->at[i]].events & OUT) && stream_wants_room(w->lane[i]))
			return w->lane[i];
	return NULL;
}

/* Nothing but lanes, and nothing of theirs that only the kernel knows. A new connection can always be a little late. */
static bool lanes_alone(const struct round *w)
{
	if (w->n != w->lanes + w->listeners)
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if (stream_ask_kernel(w->lane[i]))
			return false;
	return true;
}

/* While lanes keep the caller busy the kernel is asked only every so often. */
static bool lanes_will_do(const struct round *w)
{
	static __thread uint64_t looked THREAD_LOCAL_FAST;
	uint64_t now = clock_now();

	if (now - looked < LOOK_NS && lanes_alone(w)) {
		for (nfds_t i = 0; i < w->n; i++)
			w->fds[i].revents = 0;
		return true;
	}
	looked = now;
	return false;
}

/* Everything short of sleeping. */
static int poll_awake(struct round *w, const struct kernel_poll *k)
{
	int n = 0;

	if (k->timeout != 0)
		wait_ladder(any_ready, w, peers_cpu(w), &w->lane[0]->spin, settings.spin_ns);
	if (lanes_will_do(w))
		n = merge(w);
	if (n != 0)
		return n;
	return ask_both(w, k);
}

static int64_t time_left(const struct kernel_poll *k, uint64_t start)
{
	int64_t left;

	if (k->timeout < 0)
		return -1;
	left = k->timeout - (int64_t)(clock_now() - start);
	return left > 0 ? left : 0;
}

/* Only lanes, and only their octets, are waited for: a nap will do. */
static bool can_nap(struct round *w, const struct kernel_poll *k)
{
	if (w->n != w->lanes || w->lanes > NAP_LANES || k->mask || !nap_hears(w->lanes))
		return false;
	for (size_t i = 0; i < w->lanes; i++)
		if ((w->fds[i].events & (IN | OUT)) == 0 ||
		    (w->fds[i].events & ~(IN | POLLRDBAND)) || !lane_rx_in_ring(&w->lane[i]->rx))
			return false;
	return nap_pays(&w->lane[0]->nap);
}

/* 0 and *again: look once more. */
static int poll_nap(struct round *w, int64_t left, bool *again)
{
	int n;

	for (size_t i = 0; i < w->lanes; i++) {
		stream_serve(w->lane[i], w->fds[i].fd);
		sock_keep(w->lane[i]);
	}
	n = nap_on(w->lane, w->lanes, left < 0 || left > NAP_NS ? NAP_NS : left);
	for (size_t i = 0; i < w->lanes; i++)
		sock_release(w->lane[i]);
	nap_noted(&w->lane[0]->nap, n != 0);
	*again = n >= 0;
	return n < 0 ? n : 0;
}

static int poll_for(struct pollfd *fds, nfds_t count, const struct kernel_poll *k)
{
	struct round w = { .fds = fds, .n = count };
	uint64_t start = clock_now();
	struct rec *full;
	bool again = true;
	int n = 0;

	find_lanes(&w);
	if (w.lanes == 0) {
		n = poll_kernel(&w, k, 0);
		if (n >= 0)
			n = merge(&w);
		return n != 0 || k->timeout == 0 ? n : poll_kernel(&w, k, k->timeout);
	}
	leave_rest_to_kernel(&w);
	while (n == 0 && again) {
		n = poll_awake(&w, k);
		if (n != 0 || time_left(k, start) == 0)
			break;
		full = find_full(&w);
		if (full && !k->masked && stream_may_nap(full))
			n = stream_await_room(full, time_left(k, start));
		else if (!full && can_nap(&w, k))
			n = poll_nap(&w, time_left(k, start), &again);
		else
			n = poll_sleep(&w, k, start, full, &again);
		if (n >= 0)
			n = merge(&w);
	}
	return n;
}

static int64_t to_ns(const struct timespec *t)
{
	if (!t)
		return -1;
	if (t->tv_sec > INT64_MAX / (int64_t)NSEC_PER_SEC - 1)
		return -1;
	return t->tv_sec * (int64_t)NSEC_PER_SEC + t->tv_nsec;
}

enum whose { NOT_OURS, YOUNG, OURS };

/* OURS: there are lanes. YOUNG: there could be, if another thread went on with the socket. */
static enum whose whose(const struct pollfd *fds, nfds_t n)
{
	enum whose found = NOT_OURS;

	if (n > 0 && (uintptr_t)fds < 65536)
		return NOT_OURS;
	for (nfds_t i = 0; i < n; i++) {
		struct rec *r = fds[i].fd >= 0 ? sock_live(fds[i].fd) : NULL;

		if ((r && sock_has_lane(r)) || epoll_of(fds[i].fd))
			return OURS;
		if (r && !__libc_single_threaded)
			found = YOUNG;
	}
	return found;
}

/* A lane that came up now would not wake the sleeper: keep it from coming. */
static void watch(const struct pollfd *fds, nfds_t n, bool begin)
{
	for (nfds_t i = 0; i < n; i++) {
		struct rec *r = fds[i].fd >= 0 ? sock_of(fds[i].fd) : NULL;

		if (r)
			atomic_fetch_add(&r->busy, begin ? 1 : UINT32_MAX);
	}
}

/* Poll without lanes. */
static int poll_plain(struct pollfd *fds, nfds_t n, const struct kernel_poll *k, bool young)
{
	struct round w = { .fds = fds, .n = n };
	int result;

	if (!young || k->timeout == 0)
		return poll_kernel(&w, k, k->timeout);
	watch(fds, n, true);
	if (whose(fds, n) == OURS)
		result = -2;
	else
		result = poll_kernel(&w, k, k->timeout);
	watch(fds, n, false);
	return result == -2 ? poll_for(fds, n, k) : result;
}

static int poll_any(struct pollfd *fds, nfds_t n, const struct kernel_poll *k)
{
	enum whose found = whose(fds, n);

	return found == OURS ? poll_for(fds, n, k) : poll_plain(fds, n, k, found == YOUNG);
}

HOOK int poll(struct pollfd *fds, nfds_t n, int timeout)
{
	struct kernel_poll k = { .timeout = timeout < 0 ? -1 : timeout * 1000000ll };

	return whose(fds, n) == NOT_OURS ? real(poll)(fds, n, timeout) : poll_any(fds, n, &k);
}

HOOK int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask)
{
	struct kernel_poll k = { .timeout = to_ns(timeout), .mask = mask, .masked = true };

	if (whose(fds, n) == NOT_OURS || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 ||
						      timeout->tv_nsec >= 1000000000)))
		return real(ppoll)(fds, n, timeout, mask);
	return poll_any(fds, n, &k);
}

/* --- select, by way of poll */

static bool wanted(int fd, fd_set *set)
{
	return set && FD_ISSET(fd, set);
}

static bool select_ours(int n, fd_set *r, fd_set *w, fd_set *e)
{
	if (n > FD_SETSIZE || n < 0)
		return false;
	for (int fd = 0; fd < n; fd++) {
		struct rec *rec;

		if (!wanted(fd, r) && !wanted(fd, w) && !wanted(fd, e))
			continue;
		rec = sock_live(fd);
		if ((rec && (sock_has_lane(rec) || !__libc_single_threaded)) || epoll_of(fd))
			return true;
	}
	return false;
}

static nfds_t sets_to_poll(int n, fd_set *r, fd_set *w, fd_set *e, struct pollfd *out)
{
	nfds_t used = 0;

	for (int fd = 0; fd < n; fd++) {
		short events = 0;

		if (wanted(fd, r))
			events |= POLLRDNORM | POLLRDBAND | POLLIN;
		if (wanted(fd, w))
			events |= POLLWRBAND | POLLWRNORM | POLLOUT;
		if (wanted(fd, e))
			events |= POLLPRI;
		if (events)
			out[used++] = (struct pollfd) { .fd = fd, .events = events };
	}
	return used;
}

static int poll_to_set(const struct pollfd *p, nfds_t n, short mask, short want, fd_set *set)
{
	int ready = 0;

	for (nfds_t i = 0; set && i < n; i++) {
		if ((p[i].events & want) && (p[i].revents & mask))
			ready++;
		else if (p[i].events & want)
			FD_CLR(p[i].fd, set);
	}
	return ready;
}

static int select_for(int n, fd_set *r, fd_set *w, fd_set *e, const struct kernel_poll *k)
{
	struct pollfd fds[FD_SETSIZE];
	nfds_t used = sets_to_poll(n, r, w, e, fds);
	int result = poll_any(fds, used, k);

	if (result < 0)
		return result;
	for (nfds_t i = 0; i < used; i++) {
		if (fds[i].revents & POLLNVAL) {
			errno = EBADF;
			return -1;
		}
	}
	result = poll_to_set(fds, used, POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR,
			     POLLIN, r);
	result += poll_to_set(fds, used, POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR, POLLOUT, w);
	result += poll_to_set(fds, used, POLLPRI, POLLPRI, e);
	return result;
}

HOOK int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		struct timeval *restrict timeout)
{
	struct kernel_poll k = { .timeout = -1 };
	uint64_t start;
	int result;

	if (!select_ours(n, r, w, e) || (timeout && (timeout->tv_sec < 0 || timeout->tv_usec < 0)))
		return real(select)(n, r, w, e, timeout);
	if (timeout && timeout->tv_sec < INT64_MAX / 2000000000)
		k.timeout = timeout->tv_sec * (int64_t)NSEC_PER_SEC + timeout->tv_usec * 1000ll;
	start = clock_now();
	result = select_for(n, r, w, e, &k);
	if (timeout && k.timeout >= 0) {
		/* Linux says how much time was left. */
		int64_t left = k.timeout - (int64_t)(clock_now() - start);

		if (left < 0 || result == 0)
			left = 0;
		timeout->tv_sec = left / (int64_t)NSEC_PER_SEC;
		timeout->tv_usec = left % (int64_t)NSEC_PER_SEC / 1000;
	}
	return result;
}

HOOK int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		 const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
	struct kernel_poll k = { .timeout = to_ns(timeout), .mask = mask, .masked = true };

	if (!select_ours(n, r, w, e) || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0)))
		return real(pselect)(n, r, w, e, timeout, mask);
	return select_for(n, r, w, e, &k);
}

/* --- epoll */

static int made(int ep)
{
	if (ep >= 0) {
		sock_forget(ep);
		epoll_created(ep);
	}
	return ep;
}

HOOK int epoll_create(int size)
{
	return made(real(epoll_create)(size));
}

HOOK int epoll_create1(int flags)
{
	return made(real(epoll_create1)(flags));
}

HOOK int epoll_ctl(int ep, int op, int fd, struct epoll_event *event)
{
	struct epoll_set *s = epoll_of(ep);

	return s ? epoll_control(s, ep, op, fd, event) : real(epoll_ctl)(ep, op, fd, event);
}

static bool usable(struct epoll_set *s, const void *events, int max)
{
	return s && max > 0 && (uintptr_t)events >= 65536;
}

HOOK int epoll_wait(int ep, struct epoll_event *events, int max, int timeout)
{
	struct epoll_set *s = epoll_of(ep);

	if (!usable(s, events, max))
		return real(epoll_wait)(ep, events, max, timeout);
	return epoll_wait_for(s, ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, NULL);
}

HOOK int epoll_pwait(int ep, struct epoll_event *events, int max, int timeout, const sigset_t *mask)
{
	struct epoll_set *s = epoll_of(ep);

	if (!usable(s, events, max))
		return real(epoll_pwait)(ep, events, max, timeout, mask);
	return epoll_wait_for(s, ep, events, max, timeout < 0 ? -1 : timeout * 1000000ll, mask);
}

HOOK int epoll_pwait2(int ep, struct epoll_event *events, int max, const struct timespec *timeout,
		      const sigset_t *mask)
{
	struct epoll_set *s = epoll_of(ep);

	if (!usable(s, events, max) || (timeout && (timeout->tv_sec < 0 || timeout->tv_nsec < 0 ||
						    timeout->tv_nsec >= 1000000000)))
		return real(epoll_pwait2)(ep, events, max, timeout, mask);
	return epoll_wait_for(s, ep, events, max, to_ns(timeout), mask);
}

HOOK int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
HOOK int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout,
		     const sigset_t *mask, size_t size);

int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size)
{
	if (size / sizeof(*fds) < n)
		__chk_fail();
	return poll(fds, n, timeout);
}

int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask,
		size_t size)
{
	if (size / sizeof(*fds) < n)
		__chk_fail();
	return ppoll(fds, n, timeout, mask);
}

HOOK_ALIAS(int, __poll, poll, (struct pollfd * fds, nfds_t n, int timeout));
HOOK_ALIAS(int, __select, select,
	   (int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
	    struct timeval *restrict timeout));
