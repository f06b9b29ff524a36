/* SPDX-License-Identifier: MIT */
/*
 * Hooks of select() and pselect(), by way of poll. Sets may be larger than fd_set: programs allocate them. Others pass
 * a number that is larger than their sets, getdtablesize() for instance, and that works, because the kernel looks no
 * further than its table of descriptors is long; so must we.
 */
#include <sys/mman.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "sockets/sleep/epoll.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/hooks_ready_priv.h"
#include "sockets/record/user.h"

#define WORD 64  /* bits of a set that stand together */
#define FEW  256 /* members that need no memory beyond the stack */

enum { READS, WRITES, EXCEPTS, SETS };

/* What a program asks for. */
struct wish {
	unsigned long *set[SETS];
	int n;
};

/* What poll() is asked for: each member of a set that poll() understands so. */
static const struct {
	short events; /* asked for */
	short tells;  /* ready for select() */
} meaning[SETS] = {
	[READS] = { POLLIN | POLLRDNORM | POLLRDBAND,
		    POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR },
	[WRITES] = { POLLOUT | POLLWRNORM | POLLWRBAND,
		     POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR },
	[EXCEPTS] = { POLLPRI, POLLPRI },
};

/* --- how long is the kernel's table? */

/* Sets of any size of which only the last bit is set: each begins so far before the end. The kernel cannot write here,
 * so threads can share it. */
static const unsigned long *last_bit(void)
{
	static _Atomic(unsigned long *) made;
	size_t words = SOCK_FDS / WORD + 1;
	unsigned long *p = atomic_load_explicit(&made, memory_order_acquire);
	unsigned long *none = NULL;

	if (p)
		return p + words;
	p = mmap(NULL, words * sizeof(*p), PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	p[words - 1] = 1;
	real(mprotect)(p, words * sizeof(*p), PROT_READ);
	if (!atomic_compare_exchange_strong(&made, &none, p)) {
		real(munmap)(p, words * sizeof(*p));
		p = none;
	}
	return p + words;
}

/* A number within the table is an error unless it is open, one beyond is not looked at. Numbers that `fd` shares a word
 * with stand and fall with it. */
static bool is_within(int fd)
{
	struct timeval now = { 0 };
	size_t words = (size_t)fd / WORD + 1;
	const unsigned long *end = last_bit();
	int first = fd - fd % WORD;
	int saved = errno;
	bool within;

	if (!end)
		return true;
	within = (real(select)(first + 1, (fd_set *)(end - words), NULL, NULL, &now) < 0 &&
		  errno == EBADF) ||
		 real(fcntl)(first, F_GETFD) >= 0;
	errno = saved;
	return within;
}

/* It grows, in large steps; only in a child of fork() may it be smaller than here known. */
static int table_size(int n)
{
	static _Atomic int known = WORD;
	int size = atomic_load_explicit(&known, memory_order_relaxed);

	while (size < n && size < SOCK_FDS && is_within(size))
		size *= 2;
	atomic_store_explicit(&known, size, memory_order_relaxed);
	return n < size ? n : size;
}

/* --- sets */

static size_t octets(int n)
{
	return ((size_t)n + WORD - 1) / WORD * sizeof(unsigned long);
}

static bool are_there(const struct wish *w)
{
	for (int i = 0; i < SETS; i++)
		if (w->set[i] && !user_writable(w->set[i], octets(w->n)))
			return false;
	return true;
}

/* The bits of one word of a set; those beyond the last number are not meant. */
static unsigned long word(const struct wish *w, int which, int at)
{
	unsigned long bits = w->set[which] ? w->set[which][at / WORD] : 0;

	return w->n - at < WORD ? bits & ((1ul << (w->n - at)) - 1) : bits;
}

static unsigned long any_word(const struct wish *w, int at)
{
	return word(w, READS, at) | word(w, WRITES, at) | word(w, EXCEPTS, at);
}

static bool is_ours(int fd)
{
	struct rec *r = sock_live(fd);

	return (r && (sock_has_lane(r) || !__libc_single_threaded)) || epoll_of(fd);
}

/* Something of ours is among them. False also for sets that the kernel would refuse: let it. */
static bool has_ours(struct wish w)
{
	/* Numbers that we have never seen are asked about, but only in a set of the usual size. */
	int most = sock_highest() < FD_SETSIZE ? FD_SETSIZE : sock_highest() + 1;

	if (settings.sealed && w.n > FD_SETSIZE)
		return false;
	if (w.n > most)
		w.n = most;
	if (w.n > FD_SETSIZE)
		w.n = table_size(w.n);
	if (w.n <= 0 || !are_there(&w))
		return false;
	for (int at = 0; at < w.n; at += WORD)
		for (unsigned long bits = any_word(&w, at); bits; bits &= bits - 1)
			if (is_ours(at + __builtin_ctzl(bits)))
				return true;
	return false;
}

/* --- by way of poll */

struct list {
	struct pollfd few[FEW];
	struct pollfd *fds;
	nfds_t n;
	size_t mapped;
};

static bool list_make(struct list *l, const struct wish *w)
{
	size_t n = 0;

	for (int at = 0; at < w->n; at += WORD)
		n += (size_t)__builtin_popcountl(any_word(w, at));
	l->fds = l->few;
	l->mapped = 0;
	if (n <= FEW)
		return true;
	l->fds = mmap(NULL, n * sizeof(*l->fds), PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (l->fds == MAP_FAILED)
		return false;
	l->mapped = n * sizeof(*l->fds);
	return true;
}

static void list_drop(struct list *l)
{
	if (l->mapped)
		real(munmap)(l->fds, l->mapped);
}

static void list_fill(struct list *l, const struct wish *w)
{
	l->n = 0;
	for (int at = 0; at < w->n; at += WORD) {
		unsigned long r = word(w, READS, at);
		unsigned long o = word(w, WRITES, at);
		unsigned long e = word(w, EXCEPTS, at);

		for (unsigned long bits = r | o | e; bits; bits &= bits - 1) {
			int bit = __builtin_ctzl(bits);
			int events = (r >> bit & 1 ? meaning[READS].events : 0) |
				     (o >> bit & 1 ? meaning[WRITES].events : 0) |
				     (e >> bit & 1 ? meaning[EXCEPTS].events : 0);

			l->fds[l->n++] = (struct pollfd) { .fd = at + bit,
							   .events = (short)events };
		}
	}
}

static bool is_wanted(const struct pollfd *p, int which)
{
	return (p->events & meaning[which].events) && (p->revents & meaning[which].tells);
}

/*
 * poll() tells of more than select() wants to know: of the end of a connection, whether asked for or not, and of
 * numbers that nobody looks at. How many bits will be set? -1: one that should be open is not.
 */
static int judge(struct list *l)
{
	int ready = 0;

	for (nfds_t i = 0; i < l->n; i++) {
		struct pollfd *p = &l->fds[i];
		int told = is_wanted(p, READS) + is_wanted(p, WRITES) + is_wanted(p, EXCEPTS);

		if (p->fd >= 0 && (p->revents & POLLNVAL) && is_within(p->fd)) {
			errno = EBADF;
			return -1;
		}
		ready += told;
		if (p->revents & POLLNVAL)
			p->events = 0; /* not looked at, and not written either */
		if (p->revents && told == 0)
			p->fd = ~p->fd; /* poll() passes over it */
	}
	return ready;
}

static void write_sets(const struct list *l, const struct wish *w)
{
	for (nfds_t i = 0; i < l->n; i++) {
		const struct pollfd *p = &l->fds[i];
		int fd = p->fd < 0 ? ~p->fd : p->fd;

		for (int which = 0; which < SETS; which++)
			if ((p->events & meaning[which].events) && !is_wanted(p, which) &&
			    w->set[which])
				w->set[which][fd / WORD] &= ~(1ul << fd % WORD);
	}
}

static int select_with(struct list *l, const struct wish *w, const struct poll_call *limits)
{
	struct poll_call k = *limits;
	uint64_t start = k.timeout > 0 ? clock_now() : 0;
	int result, ready = 0;

	list_fill(l, w);
	do {
		result = poll_any(l->fds, l->n, &k);
		if (result < 0)
			return result;
		ready = result > 0 ? judge(l) : 0;
		if (ready < 0)
			return ready;
		if (k.timeout > 0 && ready == 0)
			k.timeout = limits->timeout - (int64_t)(clock_now() - start);
	} while (result > 0 && ready == 0 && (limits->timeout < 0 || k.timeout > 0));
	write_sets(l, w);
	return ready;
}

/* No memory is left, which select() does not need. Not to be inlined: others are spared this much stack. */
static __attribute__((noinline)) int select_on_stack(const struct wish *w,
						     const struct poll_call *limits)
{
	struct pollfd fds[FD_SETSIZE];
	struct list l = { .fds = fds };

	return select_with(&l, w, limits);
}

static int select_for(struct wish w, const struct poll_call *limits)
{
	struct list l __attribute__((cleanup(list_drop)));

	l.mapped = 0; /* cancellation may come from here on */
	if (w.n > FD_SETSIZE)
		w.n = table_size(w.n);
	if (list_make(&l, &w))
		return select_with(&l, &w, limits);
	l.mapped = 0;
	if (w.n <= FD_SETSIZE)
		return select_on_stack(&w, limits);
	errno = ENOMEM;
	return -1;
}

/* --- as the program calls them */

static struct wish wish_of(int n, fd_set *r, fd_set *w, fd_set *e)
{
	return (struct wish) { { (unsigned long *)r, (unsigned long *)w, (unsigned long *)e }, n };
}

/* Linux says how much time was left. */
static void write_left(struct timeval *timeout, struct timespec limit, uint64_t start)
{
	uint64_t passed = clock_now() - start;
	int64_t s = limit.tv_sec - (int64_t)(passed / NSEC_PER_SEC);
	int64_t ns = limit.tv_nsec - (int64_t)(passed % NSEC_PER_SEC);

	if (ns < 0) {
		s--;
		ns += (int64_t)NSEC_PER_SEC;
	}
	*timeout = (struct timeval) { 0 };
	if (s >= 0)
		*timeout = (struct timeval) { s, ns / 1000 };
}

HOOK int select(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		struct timeval *restrict timeout)
{
	struct wish wish = wish_of(n, r, w, e);
	struct poll_call k = { .timeout = -1 };
	struct timespec limit = { 0 };
	uint64_t start = 0;
	int result;

	if (!has_ours(wish) || (timeout && (!user_writable(timeout, sizeof(*timeout)) ||
					    timeout->tv_sec < 0 || timeout->tv_usec < 0)))
		return real(select)(n, r, w, e, timeout);
	if (timeout) {
		limit.tv_sec = timeout->tv_sec;
		if (__builtin_add_overflow(limit.tv_sec, timeout->tv_usec / 1000000, &limit.tv_sec))
			limit.tv_sec = INT64_MAX;
		limit.tv_nsec = timeout->tv_usec % 1000000 * 1000;
		k.timeout = poll_limit(&limit);
		start = k.timeout ? clock_now() : 0;
	}
	result = select_for(wish, &k);
	if (timeout && k.timeout)
		write_left(timeout, limit, start);
	return result;
}

HOOK int pselect(int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
		 const struct timespec *restrict timeout, const sigset_t *restrict mask)
{
	struct wish wish = wish_of(n, r, w, e);
	struct poll_call k = { .mask = mask, .masked = true };

	if (!has_ours(wish) || !poll_good_limit(timeout) || !poll_good_mask(mask))
		return real(pselect)(n, r, w, e, timeout, mask);
	k.timeout = poll_limit(timeout);
	return select_for(wish, &k);
}

HOOK_ALIAS(int, __select, select,
	   (int n, fd_set *restrict r, fd_set *restrict w, fd_set *restrict e,
	    struct timeval *restrict timeout));
