/* SPDX-License-Identifier: MIT */
/* Hooks of the calls that make, change and end sockets. */
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/single_threaded.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/robust.h"
#include "sockets/sleep/epoll.h"
#include "sockets/record/family.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/hooks_uring.h"
#include "sockets/attach/ops_lane.h"
#include "sockets/record/order.h"
#include "sockets/preload/report.h"
#include "sockets/record/user.h"
#include "sockets/record/why.h"

#define RCVTIMEO_NEW 66 /* with 64 bits for the time everywhere */

/* The switch has the first word on a socket of the program's: is there anybody but the native stack for it? */
static void ask_switch(int fd, const struct ops_want *want)
{
	struct rec *r = sock_add(fd, MEET_UNKNOWN,
				 (want->type & SOCK_NONBLOCK ? REC_NONBLOCK : 0) |
					 (want->flags & OPS_WANT_OFFLOAD ? REC_ASKED : 0));

	if (!r || atomic_load(&r->state) == REC_PLAIN)
		return;
	ops_create(&r->ops, want, r);
	if (r->ops.bound == OPS_NATIVE)
		sock_pin(r, fd, WHY_NATIVE);
}

HOOK int socket(int domain, int type, int protocol)
{
	struct ops_want want = ops_want(domain, type, protocol);
	int fd = real(socket)(want.domain, want.type, want.protocol);

	if (fd < 0)
		return fd;
	if ((want.domain != AF_INET && want.domain != AF_INET6) ||
	    (want.type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) != SOCK_STREAM ||
	    (want.protocol != 0 && want.protocol != IPPROTO_TCP)) {
		sock_forget(fd);
		return fd;
	}
	process_init();
	if (settings.off)
		return fd;
	if (want.flags & OPS_WANT_SWITCH)
		ask_switch(fd, &want);
	else
		sock_forget(fd);
	return fd;
}

/* An address may name one of our families; the kernel gets its own. */
static const struct sockaddr *native(const struct sockaddr *a, socklen_t size,
				     struct sockaddr_storage *copy)
{
	sa_family_t family;

	if (!a || size < sizeof(a->sa_family) || size > sizeof(*copy) || !user_readable(a, size))
		return a;
	family = ops_family(a->sa_family);
	if (family == a->sa_family)
		return a;
	memcpy(copy, a, size);
	copy->ss_family = family;
	return (struct sockaddr *)copy;
}

/* One port space: every protocol that has ports takes the one that the kernel gave. */
static void span_port(struct rec *r, int fd)
{
	struct sockaddr_storage local = { 0 };
	socklen_t size = sizeof(local);
	int saved = errno;
	uint16_t port;

	if (real(getsockname)(fd, (struct sockaddr *)&local, &size) == 0) {
		/* In the same place in both families. */
		port = ntohs(((struct sockaddr_in *)&local)->sin_port);
		ops_bind(&r->ops, (struct sockaddr *)&local, size, &port, true);
		if (r->ops.bound == OPS_NATIVE)
			sock_pin(r, fd, WHY_NATIVE);
	}
	errno = saved;
}

HOOK int bind(int fd, const struct sockaddr *address, socklen_t size)
{
	struct sockaddr_storage copy;
	int result = real(bind)(fd, native(address, size, &copy), size);
	struct rec *r = result == 0 ? sock_live(fd) : NULL;

	if (r && ops_has_ports(&r->ops))
		span_port(r, fd);
	return result;
}

HOOK int connect(int fd, const struct sockaddr *address, socklen_t size)
{
	struct rec *r = sock_live(fd);
	struct sockaddr_storage copy;
	int result, saved;

	/* AF_UNSPEC takes the connection apart. */
	if (r && user_readable(address, sizeof(sa_family_t)) && size >= sizeof(sa_family_t) &&
	    address->sa_family == AF_UNSPEC)
		sock_pin(r, fd, WHY_SHUT);
	result = real(connect)(fd, native(address, size, &copy), size);
	order_tick();
	saved = errno;
	if (!r)
		r = sock_of(fd); /* on TCP for good, but a connection */
	if (!r)
		return result;
	if (result == 0 || saved == EINPROGRESS || saved == EINTR || saved == EALREADY) {
		if (r->end.role == MEET_UNKNOWN)
			r->end.role = MEET_ACTIVE;
		if (result == 0) {
			sock_connected(r);
			report_connected(r, fd);
		}
	}
	errno = saved;
	return result;
}

HOOK int listen(int fd, int backlog)
{
	struct rec *r = sock_live(fd);
	int result = real(listen)(fd, backlog);

	if (r && result == 0)
		atomic_fetch_or(&r->flags, REC_LISTEN);
	return result;
}

static int accepted(int listener, int fd, int flags)
{
	struct rec *l = sock_of(listener);
	struct rec *r;

	order_tick();
	if (fd < 0)
		return fd;
	if (!l) {
		sock_forget(fd);
		return fd;
	}
	r = sock_add(fd, MEET_PASSIVE,
		     (flags & SOCK_NONBLOCK ? REC_NONBLOCK : 0) | sock_flag(l, REC_ASKED));
	if (!r || atomic_load(&r->state) == REC_PLAIN)
		return fd;
	if (ops_accept(&r->ops, &l->ops, false, r) == OPS_NATIVE)
		sock_pin(r, fd, atomic_load(&l->state) == REC_PLAIN ? l->why : WHY_NATIVE);
	else
		sock_connected(r);
	report_connected(r, fd);
	return fd;
}

HOOK int accept(int fd, struct sockaddr *restrict from, socklen_t *restrict size)
{
	return accepted(fd, real(accept)(fd, from, size), 0);
}

HOOK int accept4(int fd, struct sockaddr *restrict from, socklen_t *restrict size, int flags)
{
	return accepted(fd, real(accept4)(fd, from, size, flags), flags);
}

HOOK int shutdown(int fd, int how)
{
	int result = STREAM_AGAIN;

	order_tick();
	while (result == STREAM_AGAIN) {
		struct rec *r = sock_live(fd);

		result = r ? stream_shutdown(r, fd, how) : real(shutdown)(fd, how);
	}
	return result;
}

void hook_closing(int fd)
{
	hook_let_go(fd);
	uring_closing((unsigned)fd, (unsigned)fd);
}

static int close_ended(int fd)
{
	int result;

	hook_closing(fd);
	if (sock_at(fd) == SOCK_OURS) {
		errno = EBADF;
		return -1;
	}
	order_tick();
	result = real(close)(fd);
	sock_closed(fd);
	return result;
}

HOOK int close(int fd)
{
	int cancel, result;

	if (own_has(fd)) {
		errno = EBADF;
		return -1;
	}
	if (__libc_single_threaded)
		return close_ended(fd);
	/* Cancelled before anything has ended, or not at all. */
	pthread_testcancel();
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	result = close_ended(fd);
	pthread_setcancelstate(cancel, NULL);
	return result;
}

/* --- options */

/* With a lane the carrier must not hold octets back; the program still sees what it asked for. */
static int held_option(struct rec *r, int fd, int name, const void *value, socklen_t size)
{
	uint32_t flag = name == TCP_NODELAY ? REC_NODELAY : REC_CORK;
	int on;

	if ((int)size < (int)sizeof(on) || !user_readable(value, sizeof(on)))
		return real(setsockopt)(fd, IPPROTO_TCP, name, value, size);
	memcpy(&on, value, sizeof(on));
	if (on)
		atomic_fetch_or(&r->flags, flag);
	else
		atomic_fetch_and(&r->flags, ~flag);
	return 0;
}

static bool is_buffer(int name)
{
	return name == SO_SNDBUF || name == SO_RCVBUF || name == SO_SNDBUFFORCE ||
	       name == SO_RCVBUFFORCE;
}

/* The kernel has taken an option that calls on a lane heed too. */
static void note_option(struct rec *r, int fd, int level, int name, const void *value)
{
	if (level == SOL_SOCKET && is_buffer(name) && sock_keep(r, fd)) {
		if (sock_has_lane(r))
			stream_note_buffers(r, fd);
		sock_release(r);
	}
	if (level != IPPROTO_TCP || name != TCP_INQ)
		return;
	/* 0 or 1, or the kernel would have refused it. */
	if (*(const int *)value)
		atomic_fetch_or(&r->flags, REC_INQ);
	else
		atomic_fetch_and(&r->flags, ~(uint32_t)REC_INQ);
}

/* An option of a socket that the switch has a say in. */
static int switched_option(struct rec *r, int fd, int level, int name, const void *value,
			   socklen_t size)
{
	bool can = ops_lane_can(level, name, value, size);
	int result;

	if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == RCVTIMEO_NEW))
		atomic_fetch_or(&r->flags, REC_TIMED);
	/* A lane must be left before the kernel acts on what only it can do. */
	if (!can && r->ops.bound >= 0)
		sock_pin(r, fd, why_option(level, name));
	result = real(setsockopt)(fd, level, name, value, size);
	if (result != 0)
		return result;
	note_option(r, fd, level, name, value);
	/* The native socket has taken it; now the protocols. */
	ops_option(&r->ops, level, name, value, size);
	if (!can || r->ops.bound == OPS_NATIVE)
		sock_pin(r, fd, why_option(level, name));
	return result;
}

HOOK int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
	struct rec *r = sock_live(fd);

	if (!r)
		return real(setsockopt)(fd, level, name, value, size);
	if (level == IPPROTO_TCP && (name == TCP_NODELAY || name == TCP_CORK) && sock_has_lane(r))
		return held_option(r, fd, name, value, size);
	return switched_option(r, fd, level, name, value, size);
}

/* The kernel has answered, so value and size are there. What it does not know: */
static void amend_option(struct rec *r, int level, int name, void *value, socklen_t size)
{
	int number = 0;

	if (size > sizeof(number))
		size = sizeof(number);
	memcpy(&number, value, size);
	if (level == SOL_SOCKET && number == 0 && size == sizeof(number))
		number = atomic_exchange(&r->pending_error, 0);
	else if (level == IPPROTO_TCP && sock_has_lane(r))
		number = sock_flag(r, name == TCP_NODELAY ? REC_NODELAY : REC_CORK) != 0;
	memcpy(value, &number, size);
}

HOOK int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict size)
{
	struct rec *r;
	int result;

	/* This one receives. */
	if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE)
		hook_step_aside(fd, WHY_OPTION);
	result = real(getsockopt)(fd, level, name, value, size);
	if (result != 0 || !((level == SOL_SOCKET && name == SO_ERROR) ||
			     (level == IPPROTO_TCP && (name == TCP_NODELAY || name == TCP_CORK))))
		return result;
	r = sock_live(fd);
	if (r)
		amend_option(r, level, name, value, *size);
	return result;
}

/* --- descriptors */

/* Ours are nobody's business: programs go through all numbers to see which are open. */
static bool is_hidden(int fd)
{
	if (fd <= STDERR_FILENO || settings.sealed || !own_has(fd))
		return false;
	errno = EBADF;
	return true;
}

HOOK int dup(int fd)
{
	struct sock_copy c;
	int copy;

	if (is_hidden(fd))
		return -1;
	sock_copy_begins(&c, fd, -1);
	copy = real(dup)(fd);
	if (copy >= 0)
		epoll_duplicated(fd, copy);
	sock_copy_ends(&c, fd, copy);
	return copy;
}

/* `to` is about to become something else, if `from` is a descriptor at all. */
static void replacing(int from, int to)
{
	int saved = errno;

	if (from != to && real(fcntl)(from, F_GETFD) >= 0 && to >= 0) {
		own_make_way(to);
		hook_closing(to);
	}
	errno = saved;
}

HOOK int dup2(int from, int to)
{
	struct sock_copy c;
	int result;

	if (is_hidden(from))
		return -1;
	if (from == to)
		return real(dup2)(from, to);
	replacing(from, to);
	sock_copy_begins(&c, from, to);
	result = real(dup2)(from, to);
	if (result < 0)
		sock_closed(to);
	else
		epoll_duplicated(from, to);
	sock_copy_ends(&c, from, result);
	return result;
}

HOOK int dup3(int from, int to, int flags)
{
	struct sock_copy c;
	int result;

	if (is_hidden(from))
		return -1;
	if (from == to || (flags & ~O_CLOEXEC))
		return real(dup3)(from, to, flags);
	replacing(from, to);
	sock_copy_begins(&c, from, to);
	result = real(dup3)(from, to, flags);
	if (result < 0)
		sock_closed(to);
	else
		epoll_duplicated(from, to);
	sock_copy_ends(&c, from, result);
	return result;
}

static int copy_from(int fd, int command, void *argument)
{
	struct sock_copy c;
	int copy;

	sock_copy_begins(&c, fd, -1);
	copy = real(fcntl)(fd, command, argument);
	if (copy >= 0)
		epoll_duplicated(fd, copy);
	sock_copy_ends(&c, fd, copy);
	return copy;
}

/* It was changed, perhaps by several threads at a time: what the kernel has now is what counts. */
static void note_nonblock(struct rec *r, int fd)
{
	int saved = errno;

	if (sock_lock(r, &r->tx_lock, fd, false) >= 0) {
		int flags = real(fcntl)(fd, F_GETFL);

		if (flags >= 0 && (flags & O_NONBLOCK))
			atomic_fetch_or(&r->flags, REC_NONBLOCK);
		else if (flags >= 0)
			atomic_fetch_and(&r->flags, ~(uint32_t)REC_NONBLOCK);
		robust_give(&r->tx_lock);
	}
	errno = saved;
}

static int do_fcntl(int fd, int command, void *argument)
{
	struct rec *r = command == F_SETFL ? sock_of(fd) : NULL;
	int result;

	if (is_hidden(fd))
		return -1;
	if (command == F_DUPFD || command == F_DUPFD_CLOEXEC)
		return copy_from(fd, command, argument);
	result = real(fcntl)(fd, command, argument);
	if (result >= 0 && r) {
		note_nonblock(r, fd);
		if ((long)argument & O_ASYNC)
			sock_pin(r, fd, why_act(WHY_ACT_ASYNC));
	}
	return result;
}

HOOK int fcntl(int fd, int command, ...)
{
	va_list list;
	void *argument;

	va_start(list, command);
	argument = va_arg(list, void *);
	va_end(list);
	return do_fcntl(fd, command, argument);
}

/* The kernel acknowledges within this time, read or not. */
#define ACKNOWLEDGED (40 * NSEC_PER_MSEC)

/* What the peer has not read of a lane counts as under way for a moment; it is safe in the ring, as in the peer's queue. */
static size_t under_way(struct rec *r)
{
	uint64_t sent = __atomic_load_n(&r->looked_at, __ATOMIC_RELAXED); /* or a tick earlier */

	return clock_coarse() - sent < ACKNOWLEDGED ? stream_unsent(r) : 0;
}

/* The kernel has answered, or done it, so the number is there. */
static void amend_request(struct rec *r, int fd, unsigned long request, int *number)
{
	switch (request) {
	case FIONBIO: note_nonblock(r, fd); return;
	case FIOASYNC:
		if (*number)
			sock_pin(r, fd, WHY_OPTION);
		return;
	}
	if (!sock_has_lane(r))
		return;
	switch (request) {
	case FIONREAD: *number += (int)stream_unread(r); break;
	case SIOCOUTQ: *number += (int)under_way(r); break;
	case SIOCATMARK:
		/* Who sends urgent data leaves the ring: the mark comes after these. */
		if (stream_unread(r) > 0)
			*number = 0;
		break;
	}
}

HOOK int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	void *argument;
	struct rec *r;
	int result;

	va_start(list, request);
	argument = va_arg(list, void *);
	va_end(list);
	result = real(ioctl)(fd, request, argument);
	if (result != 0 || (request != FIONREAD && request != FIONBIO && request != SIOCATMARK &&
			    request != FIOASYNC && request != SIOCOUTQ))
		return result;
	r = sock_live(fd);
	if (r)
		amend_request(r, fd, request, argument);
	return result;
}

static void close_known(unsigned first, unsigned last)
{
	uring_closing(first, last);
	if (last >= SOCK_FDS)
		last = SOCK_FDS - 1;
	family_look_once(true);
	for (unsigned fd = first; fd <= last && (int)fd <= sock_highest(); fd++) {
		epoll_closing((int)fd);
		sock_closing((int)fd);
	}
	family_look_once(false);
}

/* Ours stay open, or the numbers would be somebody else's without our knowledge. */
static int close_others(unsigned first, unsigned last, int flags)
{
	unsigned from = first;

	int ours;

	while ((ours = own_lowest_from((int)from)) >= 0 && (unsigned)ours <= last) {
		if ((unsigned)ours > from &&
		    real(close_range)(from, (unsigned)ours - 1, flags) != 0)
			return -1;
		from = (unsigned)ours + 1;
	}
	return from <= last ? real(close_range)(from, last, flags) : 0;
}

HOOK int close_range(unsigned first, unsigned last, int flags)
{
	int result;

	if (first > last || (flags & CLOSE_RANGE_CLOEXEC) || !process_is_self())
		return real(close_range)(first, last, flags);
	close_known(first, last);
	result = close_others(first, last, flags);
	for (unsigned fd = first; fd <= last && (int)fd <= sock_highest(); fd++)
		sock_closed((int)fd);
	return result;
}

HOOK void closefrom(int first)
{
	if (first < 0)
		first = 0;
	if (!process_is_self() || close_range((unsigned)first, ~0u, 0) != 0)
		real(closefrom)(first);
}

HOOK FILE *fdopen(int fd, const char *mode)
{
	struct rec *r = sock_live(fd);

	/* Streams read and write inside the C library, where no hook is. */
	if (r)
		sock_hand_over(r, fd, WHY_STDIO);
	return real(fdopen)(fd, mode);
}

/* --- descriptors in messages */

HOOK_ALIAS(int, __connect, connect, (int fd, const struct sockaddr *address, socklen_t size));
HOOK_ALIAS(int, __close, close, (int fd));
HOOK_ALIAS(int, __socket, socket, (int domain, int type, int protocol)) __THROW;
HOOK_ALIAS(int, __dup2, dup2, (int from, int to)) __THROW;
HOOK_ALIAS(int, fcntl64, fcntl, (int fd, int command, ...));
HOOK_ALIAS(int, __fcntl, fcntl, (int fd, int command, ...));
HOOK_ALIAS(int, __libc_fcntl64, fcntl, (int fd, int command, ...));
