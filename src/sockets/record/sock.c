/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/meet.h"
#include "sockets/record/above.h"
#include "sockets/record/family.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/raw.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/sock.h"
#include "sockets/record/why.h"

_Atomic(struct sock_entry *) sock_chunks[SOCK_FDS / SOCK_CHUNK];
_Atomic uint32_t sock_spawns;
static _Atomic int highest = -1; /* number ever entered */

int sock_highest(void)
{
	return atomic_load_explicit(&highest, memory_order_relaxed);
}

bool sock_in_use(void)
{
	return sock_highest() >= 0;
}

struct sock_entry *sock_entry_make(int fd)
{
	const size_t size = SOCK_CHUNK * sizeof(struct sock_entry);
	struct sock_entry *none = NULL, *c;

	if ((unsigned)fd >= SOCK_FDS || sock_entry(fd))
		return sock_entry(fd);
	c = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c == MAP_FAILED)
		return NULL;
	if (!atomic_compare_exchange_strong(&sock_chunks[(unsigned)fd / SOCK_CHUNK], &none, c))
		munmap(c, size); /* another thread was faster */
	return sock_entry(fd);
}

/* --- changes of the table, and forks: a child must have it as it was counted */

#define GATE_NS (20 * NSEC_PER_MSEC)

static _Atomic uint32_t changing; /* calls that change the table */
static _Atomic uint32_t forking;  /* the thread that forks */
static _Atomic uint32_t forks;    /* how many there were, with the one that is under way */
static _Atomic bool late;         /* the table was changed within it all the same */
static _Atomic uint32_t ours;     /* numbers that are SOCK_OURS */

static void change_begins(void)
{
	uint64_t start = 0;

	for (;;) {
		uint32_t who;

		atomic_fetch_add(&changing, 1);
		who = atomic_load(&forking);
		if (who == 0 || who == self_tid())
			return;
		/* Not for ever: its thread may be in a signal handler that came within such a call. */
		start = start ? start : clock_now();
		if (clock_now() - start > GATE_NS)
			return;
		atomic_fetch_sub(&changing, 1);
		sched_yield();
	}
}

/* The number stands in the table in a moment. A fork may have looked for it already, or will yet. */
static void note_late(struct keep *k)
{
	if (!atomic_load(&forking))
		return;
	k->late = atomic_load(&forks);
	atomic_store(&late, true);
}

static void change_ends(void)
{
	atomic_fetch_sub(&changing, 1);
}

static void fork_begins(void)
{
	uint64_t start = clock_now();
	uint32_t none = 0;

	while (!atomic_compare_exchange_strong(&forking, &none, self_tid()) &&
	       clock_now() - start < GATE_NS) {
		none = 0;
		sched_yield();
	}
	atomic_store(&late, false);
	atomic_fetch_add(&forks, 1);
	while ((atomic_load(&changing) > 0 || atomic_load(&ours) > 0) &&
	       clock_now() - start < GATE_NS)
		sched_yield();
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

static void enter(int fd, struct rec *r)
{
	struct sock_entry *e = sock_entry_make(fd);
	int high = atomic_load(&highest);

	if (!e)
		return;
	while (fd > high && !atomic_compare_exchange_weak(&highest, &high, fd))
		;
	atomic_store_explicit(&e->rec, r, memory_order_release);
}

/* It is something else, if nobody knows better. */
static void enter_unknown(int fd)
{
	struct sock_entry *e = sock_entry_make(fd);

	if (e)
		atomic_compare_exchange_strong(&e->rec, &(struct rec *) { NULL }, SOCK_OTHER);
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
			enter(fd, SOCK_OTHER);
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
	note_late(sock_keeping(r));
	enter(fd, r);
	errno = saved;
	return r;
}

struct rec *sock_add(int fd, uint32_t role, uint32_t flags)
{
	struct rec *r;

	change_begins();
	r = add(fd, role, flags);
	change_ends();
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

/* Who uses the number just now would use the old socket past its lane. Not for ever: the thread may have been stopped. */
static struct rec *outwait_closing(int fd)
{
	uint64_t end = clock_now() + GATE_NS;
	struct rec *r;

	while (((r = sock_at(fd)) == SOCK_CLOSING || r == SOCK_OURS) && clock_now() < end)
		sched_yield();
	return sock_is_rec(r) ? r : NULL;
}

_Atomic uint32_t sock_copies;
static __thread bool copying THREAD_LOCAL_FAST;

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
static int ask_kernel(int fd, int *domain, bool *listens)
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
		return outwait_closing(fd);
	process_init();
	if (settings.off || !process_is_self())
		return NULL;
	error = ask_kernel(fd, &domain, &listens);
	r = NULL;
	if (error == 0)
		r = add_unseen(fd, domain, listens);
	else if (error != EBADF)
		enter_unknown(fd);
	errno = saved;
	return r;
}

void sock_forget(int fd)
{
	if ((unsigned)fd < SOCK_FDS && sock_at(fd) != SOCK_OTHER)
		enter(fd, SOCK_OTHER);
}

static void ours_made(int fd)
{
	/* In the child of vfork() the table is the parent's, and the number is not. */
	if ((unsigned)fd < SOCK_FDS && process_is_self()) {
		atomic_fetch_add(&ours, 1);
		enter(fd, SOCK_OURS);
	}
}

static void ours_closed(int fd)
{
	struct sock_entry *e = sock_entry(fd);
	struct rec *is = SOCK_OURS;

	if (!e || !process_is_self()) {
		sys_close(fd);
		return;
	}
	if (atomic_load(&e->rec) == is)
		sys_close(fd);
	/* It may be another socket's number by now. */
	atomic_compare_exchange_strong(&e->rec, &is, SOCK_OTHER);
	atomic_fetch_sub(&ours, 1);
}

void sock_start(void)
{
	static const struct own_watch watch = { .made = ours_made, .close = ours_closed };

	own_set_watch(&watch);
}

/* The threads that made them are not in this child. */
static void close_inherited(void)
{
	if (atomic_exchange(&ours, 0) == 0)
		return;
	for (int fd = 0; fd <= sock_highest(); fd++) {
		if (sock_at(fd) == SOCK_OURS) {
			sys_close(fd);
			enter(fd, SOCK_OTHER);
		}
	}
}

void sock_unknown(int fd)
{
	struct sock_entry *e = sock_entry(fd);

	if (e)
		atomic_store(&e->rec, NULL);
}

/* --- what calls rely on */

struct keep *sock_keeping(const struct rec *r)
{
	struct keep *k = LANE_LOAD(r->keep);

	return k ? k : &family_stray;
}

bool sock_keep(struct rec *r, int fd)
{
	/* Counted and then looked; taken out of the table and then looked at the count: one sees the other's. */
	sock_keep_locked(r);
	if (sock_at(fd) == r)
		return true;
	sock_release(r);
	return false;
}

void sock_keep_locked(struct rec *r)
{
	atomic_fetch_add(&sock_keeping(r)->pins, 1);
}

int sock_lock(struct rec *r, struct robust_lock *l, int fd, bool kept)
{
	int heir;

	if (!robust_take_of(l, l == &r->tx_lock ? "r->tx_lock" : "r->rx_lock"))
		return SOCK_OWN;
	if (sock_at(fd) == r)
		return fd;
	heir = kept ? atomic_load(&sock_keeping(r)->heir) : 0;
	if (heir > 0)
		return heir - 1;
	robust_give(l);
	return SOCK_GONE;
}

/* Nobody has a descriptor of it any more, but for `fd`, which goes. */
static void last_closed(struct rec *r, int fd)
{
	ops_close(&r->ops);
	record_above.closed(r, fd);
	arena_sweep();
	record_free(r);
}

/* Another number of the same socket in this process, or -1. */
static int other_number(const struct rec *r, int fd)
{
	int high = sock_highest();

	for (int i = 0; i <= high; i++)
		if (i != fd && sock_at(i) == r)
			return i;
	return -1;
}

/* Others hold the socket, here or in relatives of this process. */
static void one_less(struct rec *r, int fd)
{
	struct keep *k = sock_keeping(r);

	if (atomic_load(&k->numbers) > 0 || atomic_load(&k->heir)) {
		if (record_above.is_known_as(r, fd))
			record_above.moved(r, fd, other_number(r, fd));
		return;
	}
	/* When they have closed it too, its record may serve a lane that is not in our memory. */
	record_above.forgotten(r);
	family_reap(r);
	if (atomic_load(&r->refs) <= 1)
		return;
	atomic_fetch_sub(&r->procs, 1);
}

/* This process has one descriptor less: `fd`, which is still open. */
static void drop(struct rec *r, int fd)
{
	family_hold(r, -1);
	if (atomic_load(&r->refs) > 1)
		one_less(r, fd);
	if (atomic_fetch_sub(&r->refs, 1) == 1)
		last_closed(r, fd);
}

/* The last call that relied on a closed descriptor is over. */
static void settle(struct rec *r, struct keep *k)
{
	int saved = errno;
	int heir;

	if (atomic_load(&k->heir) == 0 || atomic_load(&k->pins) > 0 || atomic_load(&k->calls) > 0)
		return;
	heir = atomic_exchange(&k->heir, 0);
	if (heir == 0)
		return;
	drop(r, heir > 0 ? heir - 1 : -1);
	if (heir > 0)
		sys_close(heir - 1);
	errno = saved;
}

void sock_release(struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_fetch_sub(&k->pins, 1) == 1)
		settle(r, k);
}

void sock_call_ends(struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_fetch_sub(&k->calls, 1) == 1)
		settle(r, k);
}

/* Another thread steps onto the lane. False: this very thread, in which a signal handler came between. */
static bool outwait_attach(struct rec *r)
{
	if (!robust_take(&r->tx_lock))
		return false;
	robust_give(&r->tx_lock);
	return true;
}

bool sock_enter(struct rec *r)
{
	for (;;) {
		uint32_t state = atomic_load(&r->state);

		if (state == REC_LANE)
			return false;
		sock_call_begins(r);
		state = atomic_load(&r->state);
		if (state != REC_LANE && state != REC_ATTACH)
			return true;
		if (state == REC_ATTACH && !outwait_attach(r)) {
			record_step(r, REC_EV_NOT_YET);
			return true;
		}
		sock_call_ends(r);
	}
}

/* --- closing */

/* Both directions stand still; false: this very thread has one, and a signal handler came between. */
static bool take_both(struct rec *r)
{
	if (!robust_take(&r->tx_lock))
		return false;
	if (robust_take(&r->rx_lock))
		return true;
	robust_give(&r->tx_lock);
	return false;
}

static void give_both(struct rec *r)
{
	robust_give(&r->rx_lock);
	robust_give(&r->tx_lock);
}

/* Calls of other threads go on with the socket, and natively would: leave them a descriptor. */
static bool leave_heir(struct rec *r, struct keep *k, int fd)
{
	int32_t none = 0;
	int heir;

	/* This thread has kept it as well. */
	if (k == &family_stray || (atomic_load(&k->pins) <= 1 && atomic_load(&k->calls) == 0))
		return false;
	/* Without one they end, but the record is theirs until then. */
	heir = own_copy(fd);
	if (atomic_compare_exchange_strong(&k->heir, &none, heir < 0 ? KEEP_NO_HEIR : heir + 1)) {
		if (heir >= 0)
			record_above.moved(r, fd, heir);
		return true;
	}
	if (heir >= 0)
		sys_close(heir);
	return false;
}

/* `fd` is out of the table, and nobody makes a system call on it any more. */
static void close_number(struct rec *r, int fd)
{
	struct keep *k = sock_keeping(r);

	atomic_fetch_sub(&k->numbers, 1);
	if (!leave_heir(r, k, fd))
		drop(r, fd);
}

void sock_closing(int fd)
{
	struct sock_entry *e = sock_entry_make(fd);
	struct rec *r = e ? atomic_load(&e->rec) : SOCK_OTHER;
	int saved = errno;
	uint32_t state;
	bool both;

	if (r == SOCK_OURS) {
		outwait_closing(fd);
		r = atomic_load(&e->rec);
	}
	if (!sock_is_rec(r)) {
		if (!r)
			enter_unknown(fd);
		return;
	}
	change_begins();
	sock_keep_locked(r);
	state = atomic_load(&r->state);
	both = state >= REC_POSTED && state <= REC_LANE && take_both(r);
	if (atomic_compare_exchange_strong(&e->rec, &r, SOCK_CLOSING)) {
		/* Some call may be inside that came before it was taken out of the table. */
		if (!both && (robust_is_taken(&r->tx_lock) || robust_is_taken(&r->rx_lock))) {
			both = take_both(r);
			if (!both) /* interrupted for good: it keeps the record and the lane */
				sock_keep_locked(r);
		}
		close_number(r, fd);
	}
	if (both)
		give_both(r);
	sock_release(r);
	change_ends();
	errno = saved;
}

void sock_closed(int fd)
{
	struct sock_entry *e = sock_entry(fd);
	struct rec *closing = SOCK_CLOSING;

	/* It may be another socket's number by now. */
	if (e)
		atomic_compare_exchange_strong(&e->rec, &closing, SOCK_OTHER);
}

/*
 * One that never had a lane, has this number only, and that relatives go on with: all there is to do is to count.
 * A child that has inherited thousands of them would else need much longer for its end than natively.
 */
static bool end_quickly(int fd, struct rec *r, struct keep *k)
{
	uint32_t state = atomic_load(&r->state);

	if ((state != REC_OPEN && state != REC_YOUNG) || atomic_load(&k->numbers) > 1 ||
	    atomic_load(&r->refs) <= 1)
		return false;
	if (!atomic_compare_exchange_strong(&sock_entry(fd)->rec, &(struct rec *) { r },
					    SOCK_CLOSING))
		return true;
	family_hold(r, -1);
	family_reap(r);
	if (atomic_load(&r->refs) > 1)
		atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, 1) == 1)
		last_closed(r, fd);
	return true;
}

void sock_ending(int fd, struct rec *r)
{
	struct keep *k = sock_keeping(r);

	if (atomic_load(&k->pins) == 0 && atomic_load(&k->calls) == 0 && !atomic_load(&k->heir)) {
		if (!end_quickly(fd, r, k))
			sock_closing(fd);
		return;
	}
	/* Other threads are in calls until the very end: the record stays theirs, and relatives see to it. */
	if (atomic_load(&r->refs) > atomic_load(&k->numbers) || !take_both(r))
		return;
	record_above.ending(r, fd);
	give_both(r);
}

/* One more number of the record, which is kept. */
static void enter_copy(struct rec *r, int to)
{
	change_begins();
	atomic_fetch_add(&r->refs, 1);
	atomic_fetch_add(&sock_keeping(r)->numbers, 1);
	family_hold(r, 1);
	note_late(sock_keeping(r));
	enter(to, r);
	change_ends();
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
		enter(to, SOCK_OTHER);
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

void sock_each(void (*call)(int fd, struct rec *r, void *arg), void *arg)
{
	int high = sock_highest();

	for (int fd = 0; fd <= high; fd++) {
		struct rec *r = sock_at(fd);

		if (sock_is_rec(r))
			call(fd, r, arg);
		else if (!sock_entry(fd))
			fd |= SOCK_CHUNK - 1;
	}
}

/* --- fork: the child holds everything once more. Counted before, or the parent could close first. */

/* Writes as little as can be into memory that parent and child will have to copy. */
static void count_child(int fd, struct rec *r, void *arg)
{
	struct keep *k = sock_keeping(r);
	uint32_t now = atomic_load_explicit(&forks, memory_order_relaxed);
	bool first = true;

	(void)fd;
	(void)arg;
	atomic_fetch_add(&r->refs, 1);
	/* A record with several numbers counts one process. */
	if (atomic_load_explicit(&k->numbers, memory_order_relaxed) > 1 || k->late == now) {
		first = k->counted != now;
		k->counted = now;
	}
	if (first)
		atomic_fetch_add(&r->procs, 1);
	family_count_child(r);
}

void sock_fork_prepare(void)
{
	fork_begins();
	sock_each(count_child, NULL);
}

void sock_fork_parent(void)
{
	atomic_store(&forking, 0);
}

/* Not counted for this process: somebody else's. */
static void drop_uncounted(int fd, struct rec *r, void *arg)
{
	const struct keep *k = sock_keeping(r);

	(void)arg;
	if (k->late == atomic_load(&forks) && k->counted != k->late)
		sock_unknown(fd);
}

void sock_forked(bool counted)
{
	atomic_store(&forking, 0);
	atomic_store(&changing, 0);
	atomic_store(&sock_copies, 0);
	atomic_store(&sock_spawns, 0);
	copying = false;
	close_inherited();
	if (counted && atomic_load(&late))
		sock_each(drop_uncounted, NULL);
	family_forget_calls();
}

/* --- exec: another program goes on with the descriptors, and nobody with the records */

void sock_hand_off(int fd, struct rec *r)
{
	struct keep *k = sock_keeping(r);

	family_hold(r, -1);
	if (atomic_fetch_sub(&k->numbers, 1) == 1)
		atomic_fetch_sub(&r->procs, 1);
	if (atomic_fetch_sub(&r->refs, 1) != 1)
		return;
	/* If there will be no other program it is asked about again. */
	sock_unknown(fd);
	ops_close(&r->ops);
	record_abandon(r);
}

void sock_take_back(struct rec *r)
{
	atomic_fetch_add(&r->refs, 1);
	if (atomic_fetch_add(&sock_keeping(r)->numbers, 1) == 0)
		atomic_fetch_add(&r->procs, 1);
	family_hold(r, 1);
}
