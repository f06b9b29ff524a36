/* SPDX-License-Identifier: MIT */
/*
 * Waking and sleeping. Who sleeps says so in `armed`, then looks again; who tells something writes it, then looks at `armed`:
 * so one of them sees the other. Whoever finds a side armed clears that and wakes it once, however many circuits
 * have something. A side that is awake costs the other no system call.
 *
 * Short sleeps are on a word in the memory, where waking is cheapest; long ones on the socket, where the kernel also
 * tells of the end of the peer. Only the peer can write to that socket, so who sleeps there also watches the *waker*, by which
 * other threads of ours wake it.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/times.h"
#include "channel/trunk_priv.h"

static void futex_wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	sys_call(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0l);
}

/* The program may have closed it, and put something else there. */
static bool is_still(int fd, ino_t ino)
{
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == ino;
}

static bool has_sock(const struct trunk *t)
{
	return is_still(t->sock, t->sock_ino);
}

void trunk_ring(struct trunk *t, unsigned news)
{
	unsigned armed;
	int saved;

	/* Partners: the fences in arm() and trunk_arm_for_room(). */
	atomic_thread_fence(memory_order_seq_cst);
	if (!(atomic_load_explicit(&t->peer->armed, memory_order_relaxed) & news))
		return;
	armed = atomic_exchange(&t->peer->armed, 0);
	if (!armed)
		return;
	saved = errno;
	atomic_fetch_add_explicit(&t->rings, 1, memory_order_relaxed);
	if (armed & ARMED_FUTEX)
		futex_wake(&t->peer->rung);
	if (armed & ARMED_SOCK && has_sock(t))
		sys_send(t->sock, "", 1, MSG_NOSIGNAL);
	errno = saved;
}

void trunk_rouse(struct trunk *t)
{
	int saved = errno;

	futex_wake(&t->own->rung);
	/* Whoever sleeps on the socket said so under the lock before it looked; what we tell of was told under the lock. */
	if (atomic_load(&t->polls) && is_still(t->waker, t->waker_ino))
		sys_send(t->waker, "", 1, MSG_NOSIGNAL);
	errno = saved;
}

/* --- the waker */

/* A socket that is its own peer. Not an eventfd: those have no inode by which one could be told from the program's. */
static int make_waker(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(name);
	int fd = own_new(sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	/* Without a name the kernel finds one that nobody has. */
	if (fd < 0 || sys_bind(fd, (struct sockaddr *)&name, sizeof(name.sun_family)) != 0 ||
	    sys_getsockname(fd, (struct sockaddr *)&name, &size) != 0 ||
	    sys_connect(fd, (struct sockaddr *)&name, size) != 0) {
		if (fd >= 0)
			own_close(fd);
		return -1;
	}
	return own_move(fd);
}

/* Is there one, made now if need be? With the lock. Made once only: who saw `polls` reads it without. */
static bool has_waker(struct trunk *t)
{
	int saved = errno;
	struct stat st;

	if (t->waker < 0) {
		int fd = make_waker();

		if (fd >= 0 && fstat(fd, &st) == 0) {
			t->waker_ino = st.st_ino;
			t->waker = fd;
		}
	}
	errno = saved;
	return is_still(t->waker, t->waker_ino);
}

/* What is left ends the next sleep too early, which does no harm. */
static void empty_waker(struct trunk *t)
{
	char octet;

	for (int i = 0; i < 16 && is_still(t->waker, t->waker_ino); i++)
		if (sys_recv(t->waker, &octet, 1, 0) < 0)
			break;
}

/* --- the end of the peer */

void trunk_hang_up(struct trunk *t)
{
	if (has_sock(t))
		sys_call(SYS_shutdown, t->sock, SHUT_RDWR);
}

void trunk_close_sock(struct trunk *t)
{
	if (has_sock(t))
		sys_close(t->sock);
	if (is_still(t->waker, t->waker_ino))
		sys_close(t->waker);
	t->sock = t->waker = -1;
}

/* A process that is dead but whose parent has not asked for its status yet counts as dead. */
static bool is_dead(pid_t pid)
{
	int fd = own_new((int)sys_call(SYS_pidfd_open, pid, 0));
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool dead = fd < 0 ? errno == ESRCH : sys_poll(&p, 1) == 1 && p.revents & POLLIN;

	if (fd >= 0)
		own_close(fd);
	return dead;
}

bool trunk_peer_is_dead(struct trunk *t)
{
	struct pollfd p = { .fd = t->sock };
	int saved = errno;
	bool dead = has_sock(t) && sys_poll(&p, 1) == 1 && p.revents & (POLLHUP | POLLERR);

	/* A child of its may still have the socket. */
	dead = dead || (t->peer_pid > 0 && is_dead(t->peer_pid));
	errno = saved;
	return dead;
}

/* --- sleeping */

/* Is there something to poll for? With the lock. */
static bool has_news(struct trunk *t)
{
	return t->status || t->told.first != TRUNK_NONE || trunk_has_in(t) ||
	       (t->n_starved && trunk_has_back(t)) || t->to_feed ||
	       (t->owing.first != TRUNK_NONE &&
		atomic_load_explicit(&t->peer->head, memory_order_relaxed) != t->head_seen) ||
	       atomic_load_explicit(&t->peer->closed, memory_order_relaxed);
}

static void arm(struct trunk *t, unsigned how)
{
	unsigned what = ARMED_DATA;

	if (t->n_starved || t->owing.first != TRUNK_NONE)
		what |= ARMED_ROOM;
	atomic_fetch_or(&t->own->armed, what | how);
	/* Partner: the fence in trunk_ring(). */
	atomic_thread_fence(memory_order_seq_cst);
}

void trunk_arm_for_room(struct trunk *t)
{
	uint32_t armed = atomic_load_explicit(&t->own->armed, memory_order_relaxed);

	if (!armed || armed & ARMED_ROOM)
		return;
	/* We have the lock, so only the peer can have changed it, to 0: then it wakes all who sleep, and they arm afresh. */
	if (!atomic_compare_exchange_strong(&t->own->armed, &armed, armed | ARMED_ROOM))
		return;
	/* Partner: the fence in trunk_ring(). What the peer gave before it could see the flag we see now, and tell of. */
	atomic_thread_fence(memory_order_seq_cst);
	if (trunk_has_back(t))
		t->is_news = true;
}

int trunk_fd(const struct trunk *t)
{
	return t->sock;
}

bool trunk_arm(struct trunk *t)
{
	bool news;
	int no;

	if (!trunk_enter(t, &no))
		return false;
	arm(t, ARMED_SOCK);
	news = has_news(t);
	/* Awake after all: the peer need not ring, unless for another thread of ours. */
	if (news && atomic_load(&t->sleepers) == 0)
		atomic_store(&t->own->armed, 0);
	trunk_leave(t);
	return !news;
}

static void empty_sock(struct trunk *t)
{
	char octets[64];

	/* A peer that fills it all the time gets no more of ours. */
	for (int i = 0; i < 16 && has_sock(t); i++)
		if (sys_recv(t->sock, octets, sizeof(octets), 0) < (ssize_t)sizeof(octets))
			break;
}

void trunk_heard(struct trunk *t)
{
	int saved = errno, no;

	if (!trunk_enter(t, &no))
		return;
	empty_sock(t);
	trunk_look_after_peer(t, true);
	t->is_news = true;
	trunk_leave(t);
	errno = saved;
}

/* What a thread waits for: one circuit, or any (TRUNK_NONE). */
struct wish {
	uint32_t c;
	unsigned what;
};

/* With the lock. */
static bool is_fulfilled(struct trunk *t, struct wish w)
{
	struct circuit *k;

	if (w.c == TRUNK_NONE)
		return has_news(t);
	trunk_pay(t);
	trunk_reclaim(t);
	trunk_take_in(t);
	k = circuit_at(t, w.c);
	if (!k || t->status || k->flags & CIRCUIT_ENDED)
		return true;
	/* One that is offered is written to when it is accepted. */
	if (w.what & TRUNK_WRITABLE && (k->state == CIRCUIT_LIVE || k->state == CIRCUIT_OFFERED)) {
		if (k->flags & CIRCUIT_SHUT || trunk_credit(t, k) >= (k->need ? k->need : 1))
			return true;
		trunk_starve(t, k);
	}
	/* An answer to our opening counts as something to read. */
	return w.what & TRUNK_READABLE &&
	       (k->first != TRUNK_NONE || k->flags & CIRCUIT_FINISHED || k->greeting != TRUNK_NONE);
}

/* Until `end`, or for a nap; as errno has it, 0: something was heard. */
static int sleep_on_word(struct trunk *t, uint32_t rung, uint64_t end)
{
	uint64_t now = clock_now();
	uint64_t left = now < end ? min_u64(end - now, NAP_NS) : 0;
	const struct timespec limit = { .tv_nsec = (long)left };

	ROBUST_NONE();
	if (sys_call(SYS_futex, &t->own->rung, FUTEX_WAIT, rung, &limit, NULL, 0l) == 0)
		return 0;
	return errno == EAGAIN ? 0 : -errno;
}

/* Gives up the turn at the socket. */
static int sleep_on_sock(struct trunk *t, uint64_t end)
{
	struct pollfd p[] = { { .fd = t->sock, .events = POLLIN },
			      { .fd = t->waker, .events = POLLIN } };
	bool known = t->peer_pid > 0;
	uint64_t now = clock_now(), most = now < end ? end - now : 0;
	/* A child of the peer's may keep the socket open when the peer is killed: then nobody rings. */
	uint64_t left = known ? min_u64(most, TRUNK_SLEEP) : most;
	const struct timespec limit = { .tv_sec = (time_t)(left / NSEC_PER_SEC),
					.tv_nsec = (long)(left % NSEC_PER_SEC) };
	int rc;

	ROBUST_NONE();
	rc = (int)sys_call(SYS_ppoll, p, 2l, end == UINT64_MAX && !known ? NULL : &limit, NULL, 8l);
	rc = rc < 0 ? -errno : rc;
	/* In this order, or the wake-up of who sleeps there next could be taken away. */
	if (rc > 0 && p[1].revents)
		empty_waker(t);
	atomic_store(&t->polls, false);
	if (rc < 0)
		return rc;
	/* Woken by our own: what there is to know is known. */
	if (rc > 0 && !p[0].revents)
		return 0;
	trunk_heard(t);
	/* The others may have been meant. */
	if (atomic_load(&t->sleepers) > 1)
		trunk_rouse(t);
	return rc ? 0 : -ETIMEDOUT;
}

/* One sleep. The socket is for one thread at a time, as who empties it takes the ring from the others. */
static int sleep_once(struct trunk *t, struct wish w, bool nap, uint64_t end)
{
	bool sock, sleeps;
	uint32_t rung;
	int rc;

	if (!trunk_enter(t, &rc))
		return rc;
	rung = atomic_load(&t->own->rung);
	sock = !nap && has_sock(t) && has_waker(t) && !atomic_exchange(&t->polls, true);
	arm(t, sock ? ARMED_SOCK : ARMED_FUTEX);
	/* Twice: the first look may have armed us for room as well. */
	sleeps = !is_fulfilled(t, w) && !is_fulfilled(t, w);
	trunk_leave(t);
	rc = 0;
	if (sleeps)
		rc = sock ? sleep_on_sock(t, end) : sleep_on_word(t, rung, end);
	else if (sock)
		atomic_store(&t->polls, false);
	return rc;
}

static int wait_until(struct trunk *t, struct wish w, uint64_t end)
{
	bool nap = true, done;
	int rc = 0;

	for (;;) {
		int no;

		if (!trunk_enter(t, &no))
			return no;
		if (rc == -ETIMEDOUT)
			trunk_look_after_peer(t, false);
		done = is_fulfilled(t, w);
		trunk_leave(t);
		if (done)
			return 0;
		if (rc == -EINTR || clock_now() >= end)
			return rc == -EINTR ? rc : -ETIMEDOUT;
		rc = sleep_once(t, w, nap, end);
		nap = rc == 0;
	}
}

static int wait(struct trunk *t, struct wish w, int timeout_ms)
{
	uint64_t end = timeout_ms < 0 ? UINT64_MAX
				      : clock_now() + (uint64_t)timeout_ms * NSEC_PER_MSEC;
	int saved = errno, rc;

	if (!atomic_load_explicit(t->alive, memory_order_relaxed))
		return -ENOTCONN;
	atomic_fetch_add(&t->sleepers, 1);
	rc = wait_until(t, w, end);
	atomic_fetch_sub(&t->sleepers, 1);
	errno = saved;
	return rc;
}

int trunk_wait(struct trunk *t, int timeout_ms)
{
	return wait(t, (struct wish) { .c = TRUNK_NONE }, timeout_ms);
}

int trunk_wait_for(struct trunk *t, uint32_t c, unsigned what, int timeout_ms)
{
	return wait(t, (struct wish) { c, what }, timeout_ms);
}
