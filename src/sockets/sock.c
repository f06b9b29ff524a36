/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/util.h"
#include "sockets/arena.h"
#include "sockets/family.h"
#include "sockets/meet.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/report.h"
#include "sockets/sock.h"
#include "sockets/stream.h"

_Atomic(struct rec *) sock_table[SOCK_FDS];
static _Atomic int highest = -1; /* number ever entered */

int sock_highest(void)
{
	return atomic_load_explicit(&highest, memory_order_relaxed);
}

bool sock_in_use(void)
{
	return sock_highest() >= 0;
}

/* --- locks */

#define SLEEPS 0x80000000u

/* Whoever held it may have been killed, in a relative of this process. */
static void lock_steal(struct rec_lock *l, uint32_t seen)
{
	if ((seen & ~SLEEPS) != 0 && kill((pid_t)(seen & ~SLEEPS), 0) != 0 && errno == ESRCH)
		atomic_compare_exchange_strong(&l->word, &seen, 0);
}

static bool lock_slow(struct rec_lock *l, uint32_t me)
{
	const struct timespec limit = { .tv_nsec = 50 * 1000 * 1000 };
	int saved = errno;

	for (;;) {
		uint32_t seen = atomic_load(&l->word);

		if ((seen & ~SLEEPS) == me)
			return false;
		/* Having slept once, take it as one that others may sleep for. */
		if (seen == 0) {
			if (atomic_compare_exchange_strong(&l->word, &seen, me | SLEEPS))
				break;
			continue;
		}
		if (!(seen & SLEEPS) &&
		    !atomic_compare_exchange_strong(&l->word, &seen, seen | SLEEPS))
			continue;
		if (syscall(SYS_futex, &l->word, FUTEX_WAIT, seen | SLEEPS, &limit, NULL, 0) != 0 &&
		    errno == ETIMEDOUT)
			lock_steal(l, atomic_load(&l->word));
	}
	errno = saved;
	return true;
}

bool rec_lock_try(struct rec_lock *l)
{
	uint32_t none = 0;

	return atomic_compare_exchange_strong_explicit(&l->word, &none, process_tid(),
						       memory_order_acquire, memory_order_relaxed);
}

bool rec_lock_take(struct rec_lock *l)
{
	uint32_t none = 0;
	uint32_t me = process_tid();

	if (atomic_compare_exchange_strong_explicit(&l->word, &none, me, memory_order_acquire,
						    memory_order_relaxed))
		return true;
	return lock_slow(l, me);
}

void rec_lock_give(struct rec_lock *l)
{
	if (atomic_exchange_explicit(&l->word, 0, memory_order_release) & SLEEPS) {
		int saved = errno;

		syscall(SYS_futex, &l->word, FUTEX_WAKE, 1, NULL, NULL, 0);
		errno = saved;
	}
}

/* --- records */

/* Records are used again as late as can be: a thread may still look at one that was just freed. */
static struct rec *new_record(struct home *h)
{
	static _Atomic uint32_t next;

	family_sweep(h);
	for (uint32_t i = 0; i < h->records; i++) {
		uint32_t n = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % h->records;
		struct rec *r = &h->rec[n];
		uint32_t free = REC_FREE;

		if (n > 2 * atomic_load(&h->used) + 16) {
			atomic_store(&next, 0);
			continue;
		}
		if (atomic_load_explicit(&r->pins, memory_order_relaxed) == 0 &&
		    atomic_compare_exchange_strong(&r->state, &free, REC_OPEN)) {
			atomic_fetch_add(&h->used, 1);
			if (n >= atomic_load(&h->high))
				atomic_store(&h->high, n + 1);
			return r;
		}
	}
	return NULL;
}

/* How many of its pins are this process's; counted in its own home only, where it looks after the dead. */
static _Atomic uint8_t *own_pins(const struct rec *r)
{
	static _Atomic uint8_t count[HOME_RECORDS];

	return home && r->home == home ? &count[r - home->rec] : NULL;
}

void sock_keep(struct rec *r)
{
	_Atomic uint8_t *own = own_pins(r);

	atomic_fetch_add_explicit(&r->pins, 1, memory_order_relaxed);
	if (own)
		atomic_fetch_add_explicit(own, 1, memory_order_relaxed);
}

static void free_record(struct rec *r)
{
	struct home *h = r->home;
	int heir = atomic_exchange(&r->heir, -1);

	if (heir >= 0)
		real(close)(heir);
	atomic_store_explicit(&r->state, REC_FREE, memory_order_release);
	if (h)
		atomic_fetch_sub(&h->used, 1);
}

void sock_abandoned(struct rec *r)
{
	_Atomic uint8_t *own = own_pins(r);

	report_connection(r->home, r, -1);
	if (r->arena && r->lane_pid == getpid())
		stream_abandon(r);
	atomic_store(&r->heir, -1); /* a number of theirs */
	/* Calls of the dead do not come back; those of this process do. */
	atomic_store(&r->pins, own ? atomic_load(own) : 0);
	if (atomic_load(&r->pins) == 0)
		free_record(r);
}

static void map_v4(struct sockaddr_in6 *out, const struct sockaddr_storage *in)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)in;

	if (in->ss_family == AF_INET6) {
		memcpy(out, in, sizeof(*out));
		return;
	}
	memset(out, 0, sizeof(*out));
	out->sin6_family = AF_INET6;
	out->sin6_port = v4->sin_port;
	out->sin6_addr.s6_addr[10] = out->sin6_addr.s6_addr[11] = 0xff;
	memcpy(out->sin6_addr.s6_addr + 12, &v4->sin_addr, 4);
}

static bool find_addresses(struct rec *r, int fd)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof(a);

	if (real(getpeername)(fd, (struct sockaddr *)&a, &size) != 0)
		return false;
	map_v4(&r->peer, &a);
	size = sizeof(a);
	if (real(getsockname)(fd, (struct sockaddr *)&a, &size) != 0)
		return false;
	map_v4(&r->self, &a);
	return true;
}

static void enter(int fd, struct rec *r)
{
	int high = atomic_load(&highest);

	while (fd > high && !atomic_compare_exchange_weak(&highest, &high, fd))
		;
	atomic_store_explicit(&sock_table[fd], r, memory_order_release);
}

struct rec *sock_add(int fd, uint32_t state, uint32_t role, uint32_t flags)
{
	struct home *h;
	struct rec *r;
	int saved = errno;

	if ((unsigned)fd >= SOCK_FDS)
		return NULL;
	h = process_home();
	r = h ? new_record(h) : NULL;
	if (!r) {
		if (process_is_self())
			enter(fd, SOCK_OTHER);
		errno = saved;
		return NULL;
	}
	memset((char *)r + sizeof(r->state), 0, sizeof(*r) - sizeof(r->state));
	r->home = h;
	r->heir = -1;
	r->refs = 1;
	r->procs = 1;
	family_hold(r, 1);
	r->role = role;
	r->flags = flags;
	r->ops.bound = OPS_NATIVE;
	if (fd <= STDERR_FILENO || settings.uring) {
		r->why = settings.uring ? WHY_URING : WHY_LOW;
		state = REC_PLAIN;
	}
	atomic_store_explicit(&r->state, state, memory_order_release);
	enter(fd, r);
	errno = saved;
	return r;
}

void sock_connected(struct rec *r)
{
	uint32_t open = REC_OPEN;

	if (!sock_flag(r, REC_LISTEN))
		atomic_compare_exchange_strong(&r->state, &open, REC_YOUNG);
}

void sock_look_connected(struct rec *r, int fd)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof(a);
	int saved = errno;

	if (real(getpeername)(fd, (struct sockaddr *)&a, &size) == 0)
		sock_connected(r);
	errno = saved;
}

bool sock_identify(struct rec *r, int fd)
{
	socklen_t size = sizeof(r->cookie);
	uint32_t young = REC_YOUNG;

	if (sock_flag(r, REC_NAMED))
		return true;
	if (!find_addresses(r, fd) ||
	    real(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &r->cookie, &size) != 0)
		return false;
	if (memcmp(&r->self.sin6_addr, &r->peer.sin6_addr, 16) == 0 &&
	    r->self.sin6_port == r->peer.sin6_port) {
		r->why = WHY_OPTION; /* connected to itself */
		ops_step_down(&r->ops);
		atomic_compare_exchange_strong(&r->state, &young, REC_PLAIN);
		return false;
	}
	atomic_fetch_or(&r->flags, REC_NAMED);
	return true;
}

struct rec *sock_probe(int fd)
{
	int domain = 0, type = 0, protocol = 0, listens = 0, saved = errno;
	socklen_t size = sizeof(int);
	struct ops_want want;
	struct rec *r;
	int flags;

	process_init();
	if (settings.off || !process_is_self())
		return NULL;
	if (real(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0) {
		if (errno != EBADF)
			enter(fd, SOCK_OTHER);
		errno = saved;
		return NULL;
	}
	real(getsockopt)(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
	real(getsockopt)(fd, SOL_SOCKET, SO_TYPE, &type, &size);
	real(getsockopt)(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
	if (protocol != IPPROTO_TCP || type != SOCK_STREAM ||
	    (domain != AF_INET && domain != AF_INET6)) {
		enter(fd, SOCK_OTHER);
		errno = saved;
		return NULL;
	}
	flags = real(fcntl)(fd, F_GETFL);
	r = sock_add(fd, REC_OPEN, ROLE_UNKNOWN,
		     (flags > 0 && flags & O_NONBLOCK ? REC_NONBLOCK : 0) |
			     (listens ? REC_LISTEN : 0));
	if (r && atomic_load(&r->state) == REC_OPEN) {
		want = ops_want(domain, type, protocol);
		ops_create(&r->ops, &want, r);
		sock_look_connected(r, fd);
	}
	errno = saved;
	return r;
}

void sock_forget(int fd)
{
	if ((unsigned)fd < SOCK_FDS && atomic_load(&sock_table[fd]) != SOCK_OTHER)
		enter(fd, SOCK_OTHER);
}

/* A call of another thread sleeps in the kernel on this descriptor: leave it one to go on with. */
static void leave_heir(struct rec *r, int fd)
{
	int none = -1;
	int heir;

	if (atomic_load(&r->pins) == 0)
		return;
	heir = real(fcntl)(fd, F_DUPFD_CLOEXEC, 960);
	if (heir >= 0 && !atomic_compare_exchange_strong(&r->heir, &none, heir))
		real(close)(heir);
}

static void last_closed(struct rec *r, int fd)
{
	ops_close(&r->ops);
	report_connection(r->home, r, fd);
	if (r->arena)
		stream_close(r, fd);
	arena_sweep();
	if (atomic_load(&r->pins) == 0)
		free_record(r);
}

void sock_release(struct rec *r)
{
	_Atomic uint8_t *own = own_pins(r);
	int heir;

	if (own)
		atomic_fetch_sub_explicit(own, 1, memory_order_relaxed);
	if (atomic_fetch_sub(&r->pins, 1) != 1 || atomic_load(&r->refs) > 0 ||
	    atomic_load(&r->state) == REC_FREE)
		return;
	heir = atomic_load(&r->heir);
	if (heir >= 0)
		last_closed(r, heir);
	else
		free_record(r);
}

/* Another number of the same socket in this process, or -1. */
static int other_number(const struct rec *r, int fd)
{
	int high = atomic_load(&highest);

	for (int i = 0; i <= high; i++)
		if (i != fd && atomic_load_explicit(&sock_table[i], memory_order_relaxed) == r)
			return i;
	return -1;
}

/* Others hold the socket, here or in relatives of this process. */
static void one_less(struct rec *r, int fd)
{
	int other = other_number(r, fd);

	if (other >= 0) {
		stream_moved(r, fd, other);
		return;
	}
	/* When they have closed it too, its record may serve a lane that is not in our memory. */
	stream_forget_large(r);
	family_reap(r);
	if (atomic_load(&r->refs) <= 1)
		return;
	atomic_fetch_sub(&r->procs, 1);
}

void sock_closing(int fd)
{
	struct rec *r;
	int saved = errno;

	if ((unsigned)fd >= SOCK_FDS)
		return;
	r = atomic_load(&sock_table[fd]);
	if ((uintptr_t)r <= (uintptr_t)SOCK_OTHER) {
		if (!r)
			enter(fd, SOCK_OTHER);
		return;
	}
	if (!atomic_compare_exchange_strong(&sock_table[fd], &r, SOCK_OTHER))
		return;
	family_hold(r, -1);
	if (atomic_load(&r->refs) > 1)
		one_less(r, fd);
	if (atomic_fetch_sub(&r->refs, 1) == 1) {
		if (sock_has_lane(r))
			leave_heir(r, fd);
		if (atomic_load(&r->heir) < 0)
			last_closed(r, fd);
	}
	errno = saved;
}

void sock_duplicated(int from, int to)
{
	struct rec *r = sock_of(from);

	if ((unsigned)to >= SOCK_FDS || !process_is_self())
		return;
	if (!r) {
		enter(to, SOCK_OTHER);
		return;
	}
	atomic_fetch_add(&r->refs, 1);
	family_hold(r, 1);
	enter(to, r);
	if (to <= STDERR_FILENO)
		sock_pin(r, to, WHY_LOW);
}

void sock_pin(struct rec *r, int fd, enum why why)
{
	int saved = errno;
	uint32_t state = atomic_load(&r->state);

	while (state < REC_LANE && !atomic_compare_exchange_weak(&r->state, &state, REC_PLAIN))
		;
	if (state == REC_POSTED)
		meet_withdraw(r);
	ops_step_down(&r->ops);
	if (state == REC_LANE)
		stream_step_down(r, fd, why);
	else if (state != REC_PLAIN)
		atomic_store_explicit(&r->why, why, memory_order_relaxed);
	errno = saved;
}

void sock_each(void (*call)(int fd, struct rec *r, void *arg), void *arg)
{
	int high = atomic_load(&highest);

	for (int fd = 0; fd <= high; fd++) {
		struct rec *r = atomic_load_explicit(&sock_table[fd], memory_order_acquire);

		if ((uintptr_t)r > (uintptr_t)SOCK_OTHER)
			call(fd, r, arg);
	}
}

/* --- fork: the child holds everything once more. Counted before, or the parent could close first. */

static void count_child(int fd, struct rec *r, void *arg)
{
	bool first = true;

	(void)arg;
	/* A record with several numbers counts one process: the lowest number does it. */
	for (int i = 0; i < fd && first; i++)
		first = atomic_load_explicit(&sock_table[i], memory_order_relaxed) != r;
	atomic_fetch_add(&r->refs, 1);
	if (first)
		atomic_fetch_add(&r->procs, 1);
	family_count_child(r);
}

void sock_fork_prepare(void)
{
	sock_each(count_child, NULL);
}
