/* SPDX-License-Identifier: MIT */
/* W: waiting for readiness, and epoll sets whose numbers are shared as well. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"

#define WATCHED    4
#define EVENTS     8
#define SELECT_MAX (128 << 10) /* bits of a set */
#define WAIT_MS    25
#define SLACK_US   1000 /* clocks of the kernel are this coarse */

enum { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, BYS };

static const char *const names[2][BYS] = {
	{ "poll", "ppoll", "select", "pselect" },
	{ "raw poll", "raw ppoll", "raw select", "raw pselect6" },
};

struct wait {
	const struct act *a;
	struct wild *w;
	const char *what;
	uint64_t begin; /* stamp */
	uint64_t start; /* microseconds */
	int ms, hits, fd[WATCHED], n;
	short events;
};

static struct timespec span(int ms)
{
	return (struct timespec) { ms / 1000, ms % 1000 * 1000000L };
}

static void *bad_place(const struct wait *t)
{
	switch (t->a->pointer) {
	case PTR_NULL: return NULL;
	case PTR_ONE: return (void *)1;
	/* The last page may not be touched, and the call needs more than what stands before it. */
	default: return t->w->page + 3 * 4096 - 4096 - 2;
	}
}

static void start(struct wait *t)
{
	t->hits = hits[0] + hits[1];
	t->start = stage_now();
	watch_begin(t->what, t->n ? t->fd[0] : -1);
	errno = 0;
}

/* The error means that one of the numbers was closed: that is for judge(). */
static void blame(const struct wait *t, const int *fd, int n, int err)
{
	struct call *c = log_call(CALL_WAIT, t->what, t->begin, fd[0], 0);

	if (!c)
		return;
	memcpy(c->others, fd + 1, (size_t)(n - 1) * sizeof(*fd));
	c->more = (uint8_t)(n - 1);
	log_result(c, -1, err);
}

/* What every wait has to keep. found: what it has reported, by our own count. */
static void check_wait(const struct wait *t, int rc, int err, int found)
{
	uint64_t took = stage_now() - t->start;

	if (rc == 0 && t->ms > 0 && took + SLACK_US < (uint64_t)t->ms * 1000)
		watch_bad("%s of %d ms returned 0 after %llu us", t->what, t->ms,
			  (unsigned long long)took);
	if (rc >= 0 && rc != found)
		watch_bad("%s says %d, but has reported %d", t->what, rc, found);
	if (rc >= 0)
		return;
	switch (err) {
	case EINTR:
		/* While a thread that has SIGCHLD blocked waits for its child, the others get it. */
		if (t->hits == hits[0] + hits[1] && !(world->may & MAY_EXEC))
			watch_bad("%s: EINTR without a signal", t->what);
		break;
	case EFAULT:
		if (t->a->pointer == PTR_GOOD)
			watch_bad("%s: EFAULT", t->what);
		break;
	case EBADF:
	case EINVAL: break; /* by the caller */
	default: watch_bad("%s: %s", t->what, stage_errno(err));
	}
}

/* ---- poll ---- */

static int call_poll(const struct wait *t, struct pollfd *p)
{
	struct timespec ts = span(t->ms);
	sigset_t none;

	sigemptyset(&none);
	if (t->a->how % BYS == BY_POLL)
		return t->a->raw ? (int)syscall(SYS_poll, p, t->n, t->ms)
				 : poll(p, (nfds_t)t->n, t->ms);
	return t->a->raw ? (int)syscall(SYS_ppoll, p, t->n, &ts, &none, (size_t)_NSIG / 8)
			 : ppoll(p, (nfds_t)t->n, &ts, &none);
}

static void do_poll(struct wait *t)
{
	struct pollfd p[WATCHED], *at = p;
	int rc, err, found = 0;

	for (int i = 0; i < t->n; i++)
		p[i] = (struct pollfd) { t->fd[i], t->events, (short)0x5555 };
	if (t->a->pointer != PTR_GOOD)
		at = bad_place(t);
	start(t);
	rc = call_poll(t, at);
	err = errno;
	watch_end();
	for (int i = 0; rc >= 0 && at == p && i < t->n; i++) {
		found += p[i].revents != 0;
		if (p[i].revents & ~(t->events | POLLERR | POLLHUP | POLLNVAL))
			watch_bad("%s on %d asked for %x: %x", t->what, p[i].fd,
				  (unsigned)t->events, (unsigned)(unsigned short)p[i].revents);
		if (p[i].revents & POLLNVAL)
			blame(t, &p[i].fd, 1, EBADF);
	}
	if (at != p && rc >= 0)
		watch_bad("%s with a bad pointer says %d", t->what, rc);
	check_wait(t, rc, err, found);
	if (rc < 0 && err != EINTR && err != EFAULT)
		watch_bad("%s: %s", t->what, stage_errno(err));
}

/* ---- select ---- */

static bool bit(const unsigned long *bits, int i)
{
	return bits[i / 64] >> i % 64 & 1;
}

static int call_select(const struct wait *t, int n, fd_set *in, fd_set *out)
{
	struct timespec ts = span(t->ms);
	struct timeval tv = { 0, t->ms * 1000 };
	sigset_t none;
	struct {
		sigset_t *mask;
		size_t size;
	} last = { &none, _NSIG / 8 };

	sigemptyset(&none);
	if (t->a->how % BYS == BY_SELECT)
		return t->a->raw ? (int)syscall(SYS_select, n, in, out, NULL, &tv)
				 : select(n, in, out, NULL, &tv);
	return t->a->raw ? (int)syscall(SYS_pselect6, n, in, out, NULL, &ts, &last)
			 : pselect(n, in, out, NULL, &ts, &none);
}

static int count_bits(const struct wait *t, const unsigned long *bits, int n)
{
	int found = 0;

	for (int i = 0; i < n; i++) {
		bool asked = false;

		if (i % 64 == 0 && !bits[i / 64]) {
			i += 63;
			continue;
		}
		if (!bit(bits, i))
			continue;
		found++;
		for (int k = 0; k < t->n; k++)
			asked |= t->fd[k] == i;
		if (!asked)
			watch_bad("%s reports %d, which it was not asked for", t->what, i);
	}
	return found;
}

static __thread unsigned long bits[2][SELECT_MAX / 64];

/* Returns what the call is to be told as its first argument. */
static int fill_bits(const struct wait *t)
{
	int top = 0;

	memset(bits, 0, sizeof(bits));
	for (int i = 0; i < t->n; i++) {
		bits[0][t->fd[i] / 64] |= 1ul << t->fd[i] % 64;
		bits[1][t->fd[i] / 64] |= 1ul << t->fd[i] % 64;
		top = t->fd[i] >= top ? t->fd[i] + 1 : top;
	}
	/* Many programs say how many they could have. */
	if (t->a->flavour % 4 == 0)
		top = top < 2000 ? 2000 : SELECT_MAX;
	return top;
}

static void do_select(struct wait *t)
{
	fd_set *in = (fd_set *)bits[0], *out = t->events & POLLOUT ? (fd_set *)bits[1] : NULL;
	int rc, err, top = fill_bits(t), found = 0;

	if (t->a->pointer != PTR_GOOD && t->a->pointer != PTR_NULL)
		in = bad_place(t);
	start(t);
	rc = call_select(t, top, in, out);
	err = errno;
	watch_end();
	if (rc >= 0 && in == (fd_set *)bits[0]) {
		found = count_bits(t, bits[0], top);
		found += out ? count_bits(t, bits[1], top) : 0;
	} else if (rc >= 0) {
		watch_bad("%s with a bad pointer says %d", t->what, rc);
	}
	check_wait(t, rc, err, found);
	if (rc < 0 && err == EBADF)
		blame(t, t->fd, t->n, EBADF);
	if (rc < 0 && err == EINVAL)
		watch_bad("%s: EINVAL", t->what);
}

void waits_poll(struct wild *w, const struct act *a)
{
	static const short wants[] = { POLLIN, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLIN };
	struct wait t = { .a = a, .w = w, .ms = a->size % WAIT_MS };
	int fd, which[WATCHED] = { a->slot, a->other, (a->slot + 1) % world->slots,
				   (a->other + 3) % world->slots };

	t.begin = wild_begin();
	t.what = names[a->raw][a->how % BYS];
	t.events = wants[a->flavour % 4];
	for (int i = 0; i < 1 + a->flavour % WATCHED; i++) {
		fd = atomic_load(&slots[which[i]]);
		if (fd >= 0 && fd < SELECT_MAX)
			t.fd[t.n++] = fd;
	}
	if (!t.n)
		return;
	if (a->how % BYS == BY_POLL || a->how % BYS == BY_PPOLL)
		do_poll(&t);
	else
		do_select(&t);
}

/* ---- epoll ---- */

static int call_epoll(const struct wait *t, int set, struct epoll_event *at, int most)
{
	struct timespec ts = span(t->ms);
	sigset_t none;

	sigemptyset(&none);
	switch (t->a->how % 3) {
	case 0:
		return t->a->raw ? (int)syscall(SYS_epoll_wait, set, at, most, t->ms)
				 : epoll_wait(set, at, most, t->ms);
	case 1:
		return t->a->raw ? (int)syscall(SYS_epoll_pwait, set, at, most, t->ms, &none,
						(size_t)_NSIG / 8)
				 : epoll_pwait(set, at, most, t->ms, &none);
	default:
		return t->a->raw ? (int)syscall(SYS_epoll_pwait2, set, at, most, &ts, &none,
						(size_t)_NSIG / 8)
				 : epoll_pwait2(set, at, most, &ts, &none);
	}
}

/* The word beside each interest: a number of its own, and what was asked for. */
static void check_events(const struct wait *t, const struct epoll_event *ev, int n)
{
	uint32_t asked, extra = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE;

	for (int i = 0; i < n; i++) {
		asked = (uint32_t)ev[i].data.u64;
		if (ev[i].events & ~((asked & ~extra) | EPOLLERR | EPOLLHUP) || !ev[i].events)
			watch_bad("%s: %x, where %x was asked for", t->what, ev[i].events, asked);
		for (int k = 0; k < i; k++)
			if (ev[k].data.u64 == ev[i].data.u64)
				watch_bad("%s reports the same twice in one call", t->what);
	}
}

void waits_epoll(struct wild *w, const struct act *a)
{
	struct wait t = { .a = a, .w = w, .ms = a->size % WAIT_MS, .n = 1 };
	struct epoll_event ev[EVENTS], *at = ev;
	int rc, err, most = 1 + a->flavour % EVENTS;

	t.begin = wild_begin();
	t.what = a->raw ? "raw epoll_pwait" : "epoll_wait";
	t.fd[0] = atomic_load(&sets[a->set]);
	if (t.fd[0] < 0)
		return;
	if (a->pointer != PTR_GOOD)
		at = bad_place(&t);
	start(&t);
	rc = call_epoll(&t, t.fd[0], at, most);
	err = errno;
	watch_end();
	if (rc > most || (rc > 0 && at != ev))
		watch_bad("%s with room for %d%s says %d", t.what, most,
			  at == ev ? "" : " at a bad pointer", rc);
	else if (rc > 0)
		check_events(&t, ev, rc);
	check_wait(&t, rc, err, rc);
	if (rc < 0 && (err == EBADF || err == EINVAL))
		blame(&t, t.fd, 1, err);
}

static uint32_t draw_interest(const struct act *a)
{
	static const uint32_t wants[] = { EPOLLIN, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP,
					  EPOLLOUT };
	static const uint32_t kinds[] = { 0,
					  EPOLLET,
					  EPOLLONESHOT,
					  EPOLLET | EPOLLONESHOT,
					  EPOLLEXCLUSIVE,
					  EPOLLET | EPOLLEXCLUSIVE };
	uint32_t asked = wants[a->flavour % 4] | kinds[a->flavour / 4 % 6];

	/* These two exclude each other. */
	return asked & EPOLLEXCLUSIVE ? asked & ~(uint32_t)EPOLLRDHUP : asked;
}

/* Errors that say nothing: others change the same set at the same time. */
static bool harmless(int err, int op, bool bad)
{
	switch (err) {
	case EEXIST:
	case ENOENT:
	case ELOOP: return true; /* by now the number may be of a set */
	case EFAULT: return bad;
	case EINVAL: return op == EPOLL_CTL_MOD; /* exclusive interests cannot be changed */
	default: return false;
	}
}

void waits_interest(struct wild *w, const struct act *a)
{
	static const int ops[] = { EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL };
	struct wait t = { .a = a, .w = w, .what = "epoll_ctl", .n = 1 };
	struct epoll_event ev = { .events = draw_interest(a) }, *at = &ev;
	int fd, rc, op = ops[a->how % 4];

	t.begin = wild_begin();
	fd = atomic_load(&slots[a->slot]);
	t.fd[0] = atomic_load(&sets[a->set]);
	if (fd < 0 || t.fd[0] < 0)
		return;
	ev.data.u64 = stamp() << 32 | ev.events;
	if (a->pointer != PTR_GOOD && op != EPOLL_CTL_DEL)
		at = bad_place(&t);
	start(&t);
	rc = a->raw ? (int)syscall(SYS_epoll_ctl, t.fd[0], op, fd, at)
		    : epoll_ctl(t.fd[0], op, fd, at);
	watch_end();
	if (rc == 0 && at != &ev)
		watch_bad("epoll_ctl with a bad pointer");
	if (rc == 0 || harmless(errno, op, at != &ev))
		return;
	if (errno != EBADF && errno != EINVAL && errno != EPERM)
		watch_bad("epoll_ctl: %s", stage_errno(errno));
	blame(&t, (int[]) { fd, t.fd[0] }, 2, errno);
}

void waits_set(struct wild *w, const struct act *a)
{
	uint64_t from = stamp();
	int fd, old = -1;

	(void)w;
	if (a->how % 2)
		old = atomic_exchange(&sets[a->set], -1);
	if (old >= 0)
		wild_close(old);
	watch_begin("epoll_create1", 0);
	fd = epoll_create1(a->flavour % 2 ? EPOLL_CLOEXEC : 0);
	watch_end();
	if (fd < 0) {
		if (errno != EMFILE || !(world->may & MAY_FEWFILES))
			watch_bad("epoll_create1: %s", stage_errno(errno));
		return;
	}
	log_event(NUMBER_IS, fd, -1, from);
	wild_put(&sets[a->set], fd);
}
