/* SPDX-License-Identifier: MIT */
/* Which records there are: sockets that come, that are found, and that get another number. */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "channel/meet.h"
#include "sockets/record/above.h"
#include "sockets/record/family.h"
#include "sockets/record/process.h"
#include "sockets/record/raw.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/settings.h"
#include "sockets/record/sock.h"
#include "sockets/record/sock_priv.h"
#include "sockets/record/why.h"

_Atomic uint32_t sock_copies;
static __thread bool copying THREAD_LOCAL_FAST;

void sock_copies_forked(void)
{
	atomic_store(&sock_copies, 0);
	copying = false;
}

/* --- records */

/* Some call of this process still looks at it. */
static bool is_kept(const struct home *h, uint32_t n)
{
	const struct keep *k = family_keep(h, n);

	return !k || atomic_load_explicit(&k->pins, memory_order_relaxed) ||
	       atomic_load_explicit(&k->calls, memory_order_relaxed);
}

/* Records are used again as late as can be: a thread may still look at one that was just freed. */
static struct rec *new_record(struct home *h)
{
	static _Atomic uint32_t next;
	uint32_t records = h->records;

	family_sweep(h);
	for (uint32_t i = 0; i < records; i++) {
		uint32_t n = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed) % records;
		struct rec *r = family_rec(h, n);
		if (n > 2 * atomic_load(&h->used) + 16) {
			atomic_store(&next, 0);
			continue;
		}
		/* Without memory for more those that are there must do. */
		if (!r) {
			records = family_reach(h, n);
			r = n < records ? family_rec(h, n) : NULL;
		}
		if (r && !is_kept(h, n) && record_step(r, REC_EV_ADD) == REC_FREE) {
			atomic_fetch_add(&h->used, 1);
			LANE_STORE(r->number, n);
			if (n >= atomic_load(&h->high))
				atomic_store(&h->high, n + 1);
			return r;
		}
	}
	return NULL;
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
	map_v4(&r->end.peer, &a);
	size = sizeof(a);
	if (real(getsockname)(fd, (struct sockaddr *)&a, &size) != 0)
		return false;
	map_v4(&r->end.self, &a);
	return true;
}

static struct rec *add(int fd, uint32_t role, uint32_t flags)
{
	struct home *h;
	struct rec *r;
	int saved = errno;

	if ((unsigned)fd >= SOCK_FDS)
		return NULL;
	h = sock_entry_make(fd) ? process_home() : NULL;
	r = h ? new_record(h) : NULL;
	if (!r) {
		if (process_is_self())
			sock_enter_at(fd, SOCK_OTHER);
		errno = saved;
		return NULL;
	}
	record_wipe(h, r, family_keep(h, r->number));
	r->refs = 1;
	r->procs = 1;
	family_hold(r, 1);
	r->end.role = role;
	r->flags = flags;
	r->ops.bound = OPS_NATIVE;
	atomic_store(&sock_keeping(r)->numbers, 1);
	if (fd <= STDERR_FILENO || settings.uring) {
		r->why = settings.uring ? WHY_URING : WHY_LOW;
		record_step(r, REC_EV_TCP);
	}
	sock_note_late(sock_keeping(r));
	sock_enter_at(fd, r);
	errno = saved;
	return r;
}

struct rec *sock_add(int fd, uint32_t role, uint32_t flags)
{
	struct rec *r;

	sock_change_begins();
	r = add(fd, role, flags);
	sock_change_ends();
	return r;
}

void sock_connected(struct rec *r)
{
	if (!sock_flag(r, REC_LISTEN))
		record_step(r, REC_EV_CONNECT);
}

void sock_look_connected(struct rec *r, int fd)
{
	struct sockaddr_storage a;
	socklen_t size = sizeof(a);
	int saved = errno;

	if (real(getpeername)(fd, (struct sockaddr *)&a, &size) == 0) {
		sock_connected(r);
		record_above.connected(r, fd);
	}
	errno = saved;
}

bool sock_identify(struct rec *r, int fd)
{
	socklen_t size = sizeof(r->end.cookie);

	if (sock_flag(r, REC_NAMED))
		return true;
	if (!find_addresses(r, fd) ||
	    real(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &r->end.cookie, &size) != 0)
		return false;
	if (memcmp(&r->end.self.sin6_addr, &r->end.peer.sin6_addr, 16) == 0 &&
	    r->end.self.sin6_port == r->end.peer.sin6_port) {
		r->why = why_act(WHY_ACT_SELF);
		ops_step_down(&r->ops);
		record_step(r, REC_EV_REFUSE);
		return false;
	}
	atomic_fetch_or(&r->flags, REC_NAMED);
	return true;
}

struct rec *sock_outwait_copies(int fd)
{
	uint64_t end = clock_now() + GATE_NS;
	struct rec *r;

	/* This very thread makes one, and a signal handler came between: it can only be something else. */
	while (!sock_is_rec(r = sock_at(fd)) && !copying && atomic_load(&sock_copies) > 0 &&
	       clock_now() < end)
		sched_yield();
	if (sock_is_rec(r))
		return r;
	return r == SOCK_OTHER || (unsigned)fd >= SOCK_FDS || copying ? NULL : sock_probe(fd);
}

static uint64_t cookie_of(int fd)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);

	return real(getsockopt)(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

/* Only one that has a name has a lane. */
static bool is_named(const struct rec *r, uint64_t cookie)
{
	return sock_flag(r, REC_NAMED) && r->end.cookie == cookie;
}

bool sock_is(struct rec *r, int fd)
{
	return is_named(r, cookie_of(fd));
}

/* A number that nobody saw come may be another one of a socket that has a lane. Kept, or NULL. */
static struct rec *find_twin(int fd)
{
	int high = sock_highest();
	uint64_t cookie = high < 0 ? 0 : cookie_of(fd);

	for (int i = 0; i <= high && cookie; i++) {
		struct rec *r = sock_at(i);

		if (sock_is_rec(r) && is_named(r, cookie) && sock_keep(r, i))
			return r;
	}
	return NULL;
}

static void enter_copy(struct rec *r, int to);

/* 0: it is a TCP socket; or errno. */
static int ask_kind(int fd, int *domain, bool *listens)
{
	int type = 0, protocol = 0, accepts = 0;
	socklen_t size = sizeof(int);

	if (real(getsockopt)(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0)
		return errno;
	real(getsockopt)(fd, SOL_SOCKET, SO_DOMAIN, domain, &size);
	real(getsockopt)(fd, SOL_SOCKET, SO_TYPE, &type, &size);
	real(getsockopt)(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &size);
	*listens = accepts;
	return protocol == IPPROTO_TCP && type == SOCK_STREAM &&
			       (*domain == AF_INET || *domain == AF_INET6)
		       ? 0
		       : EPROTOTYPE;
}

/* A TCP socket that nobody has seen come. */
static struct rec *add_unseen(int fd, int domain, bool listens)
{
	int flags = real(fcntl)(fd, F_GETFL);
	struct rec *r = find_twin(fd);
	struct ops_want want;

	if (r) {
		enter_copy(r, fd);
		sock_release(r);
		return r;
	}
	r = sock_add(fd, MEET_UNKNOWN,
		     (flags > 0 && flags & O_NONBLOCK ? REC_NONBLOCK : 0) |
			     (listens ? REC_LISTEN : 0));
	if (r && atomic_load(&r->state) == REC_OPEN) {
		want = ops_want(domain, SOCK_STREAM, IPPROTO_TCP);
		ops_create(&r->ops, &want, r);
		sock_look_connected(r, fd);
	}
	return r;
}

struct rec *sock_probe(int fd)
{
	int domain = 0, saved = errno, error;
	struct rec *r = sock_at(fd);
	bool listens = false;

	if (r == SOCK_CLOSING || r == SOCK_OURS)
		return sock_outwait_closing(fd);
	process_init();
	if (settings.off || !process_is_self())
		return NULL;
	error = ask_kind(fd, &domain, &listens);
	r = NULL;
	if (error == 0)
		r = add_unseen(fd, domain, listens);
	else if (error != EBADF)
		sock_enter_unknown(fd);
	errno = saved;
	return r;
}

/* One more number of the record, which is kept. */
static void enter_copy(struct rec *r, int to)
{
	sock_change_begins();
	atomic_fetch_add(&r->refs, 1);
	atomic_fetch_add(&sock_keeping(r)->numbers, 1);
	family_hold(r, 1);
	sock_note_late(sock_keeping(r));
	sock_enter_at(to, r);
	sock_change_ends();
	/* A thread that found nothing there goes to the kernel with it. */
	if (to <= STDERR_FILENO || raw_is_used(to))
		sock_pin(r, to, to <= STDERR_FILENO ? WHY_LOW : WHY_READERS);
}

void sock_copy_begins(struct sock_copy *c, int from, int to)
{
	struct rec *r = process_is_self() ? sock_of(from) : NULL;

	c->r = r && sock_keep(r, from) ? r : NULL;
	if (!c->r)
		return;
	copying = true;
	atomic_fetch_add(&sock_copies, 1);
	/* One that means what it is now is about to go to the kernel with it, or there already. */
	if (to >= 0 && raw_is_used(to))
		sock_pin(r, from, WHY_READERS);
}

void sock_copy_ends(struct sock_copy *c, int from, int to)
{
	struct rec *now = sock_at(from);
	int saved = errno;

	/* It may have become something else before the kernel looked, or only after that. */
	if ((unsigned)to >= SOCK_FDS || !process_is_self())
		;
	else if (c->r && (now == c->r || is_named(c->r, cookie_of(to))))
		enter_copy(c->r, to);
	else if (!c->r && now == SOCK_OTHER)
		sock_enter_at(to, SOCK_OTHER);
	else
		sock_unknown(to);
	errno = saved;
	if (!c->r)
		return;
	atomic_fetch_sub(&sock_copies, 1);
	copying = false;
	sock_release(c->r);
}

static void step_down(struct rec *r, int fd, enum why why, bool patient)
{
	int saved = errno;
	uint32_t state = record_step(r, REC_EV_TCP);

	if (state == REC_ILLEGAL)
		state = atomic_load(&r->state);
	if (state == REC_POSTED)
		meet_withdraw(&r->end);
	ops_step_down(&r->ops);
	if (state == REC_LANE)
		record_above.step_down(r, fd, why, patient);
	else if (state != REC_PLAIN)
		atomic_store_explicit(&r->why, why, memory_order_relaxed);
	errno = saved;
}

void sock_pin(struct rec *r, int fd, enum why why)
{
	step_down(r, fd, why, false);
}

void sock_hand_over(struct rec *r, int fd, enum why why)
{
	step_down(r, fd, why, true);
}
