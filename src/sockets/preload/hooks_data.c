/* SPDX-License-Identifier: MIT */
/* Hooks of the calls that move octets. */
#include <netinet/tcp.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/util.h"
#include "sockets/attach/young.h"
#include "sockets/preload/hook.h"
#include "sockets/record/order.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/call.h"
#include "sockets/stream/iov.h"
#include "sockets/record/user.h"
#include "sockets/record/why.h"

/* Requests that only TCP understands. */
#define SEND_PLAIN    (MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN)
#define RECEIVE_PLAIN (MSG_OOB | MSG_ERRQUEUE)
#define STEP          (64u << 10)
#define RECEIVE_MOST  (1u << 20)
#define MOST          0x7ffff000u /* what the kernel moves in one call */

void __chk_fail(void) __attribute__((noreturn));

static ssize_t ours_receive(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	struct iovec less = count == 1 ? iov[0] : (struct iovec) { 0 };

	pthread_testcancel(); /* now, or when it sleeps; never with octets that it has taken */
	/* A buffer much larger than what comes need not be there as a whole. */
	if (count == 1 && less.iov_len > RECEIVE_MOST && !(flags & MSG_WAITALL)) {
		less.iov_len = RECEIVE_MOST;
		iov = &less;
	}
	if (!(flags & MSG_TRUNC) && !user_list_ok(iov, count, true)) {
		errno = EFAULT;
		return -1;
	}
	return call_receive(r, fd, iov, count, flags);
}

static ssize_t ours_send(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	pthread_testcancel();
	if (!user_list_ok(iov, count, false)) {
		errno = EFAULT;
		return -1;
	}
	return call_send(r, fd, iov, count, flags);
}

/* The same without a lane, for much at once: one may come meanwhile. */
static ssize_t ours_begin(struct rec *r, int fd, const struct iovec *iov, size_t count, int flags)
{
	if (!user_list_ok(iov, count, false)) {
		errno = EFAULT;
		return -1;
	}
	return call_send_young(r, fd, iov, count, flags);
}

static void after_receive(struct raw_call *c, int fd, ssize_t n, int flags)
{
	int saved = errno;

	order_tick();
	young_after_receive(c, fd, n, flags);
	errno = saved;
}

static void after_send(struct raw_call *c, int fd, ssize_t n, int flags)
{
	int saved = errno;

	order_tick();
	young_after_send(c, fd, n, flags);
	errno = saved;
}

static enum young_kind before_receive(struct raw_call *c, struct rec *r, int fd, int flags)
{
	if (r && sock_has_lane(r))
		return YOUNG_OURS;
	return flags & RECEIVE_PLAIN ? YOUNG_PLAIN : young_before_receive(c, r, fd);
}

/* `plain` is the real call; it runs when the octets come from the kernel alone. */
#define RECEIVE(fd, iov, count, flags, plain)                                               \
	({                                                                                  \
		ssize_t n_ = STREAM_AGAIN;                                                  \
		while (n_ == STREAM_AGAIN) {                                                \
			struct raw_call c_ __attribute__((cleanup(sock_raw_ends))) = { 0 }; \
			struct rec *r_ = (flags)&RECEIVE_PLAIN ? NULL : sock_live(fd);      \
			enum young_kind kind_ = before_receive(&c_, r_, fd, flags);         \
			if (kind_ == YOUNG_PLAIN) {                                         \
				n_ = plain;                                                 \
				after_receive(&c_, fd, n_, flags);                          \
			} else if (kind_ == YOUNG_OURS) {                                   \
				n_ = ours_receive(r_, fd, iov, count, flags);               \
			}                                                                   \
		}                                                                           \
		n_;                                                                         \
	})

/* Only the kernel understands what is to be done with it: back to TCP first, whatever the number means by the time of
 * the call. sock_raw_ends() afterwards. */
static void go_plainly(struct raw_call *c, int fd, enum why why)
{
	struct rec *r;

	do {
		sock_raw_ends(c);
		r = sock_live(fd);
		if (r)
			sock_pin(r, fd, why);
		raw_begins(c, fd);
	} while (sock_is_rec(sock_at(fd)) && sock_at(fd) != r && sock_live(fd));
}

#define PLAINLY(fd, why, call)                                                      \
	({                                                                          \
		struct raw_call c_ __attribute__((cleanup(sock_raw_ends))) = { 0 }; \
		go_plainly(&c_, fd, why);                                           \
		call;                                                               \
	})

#define SEND(fd, iov, count, size, flags, plain)                                                           \
	({                                                                                                 \
		/* A peer may have left octets in the ring that we must read first: it is a lane still. */ \
		ssize_t n_ = (flags)&SEND_PLAIN ? PLAINLY(fd, why_flags(flags), plain)                     \
						: STREAM_AGAIN;                                            \
		while (n_ == STREAM_AGAIN) {                                                               \
			struct raw_call c_ __attribute__((cleanup(sock_raw_ends))) = { 0 };                \
			struct rec *r_ = sock_live(fd);                                                    \
			enum young_kind kind_ = YOUNG_OURS;                                                \
			if (r_ && sock_has_lane(r_)) {                                                     \
				n_ = ours_send(r_, fd, iov, count, flags);                                 \
			} else if (r_ && (size) > STEP) {                                                  \
				n_ = ours_begin(r_, fd, iov, count, flags);                                \
			} else {                                                                           \
				kind_ = young_before_send(&c_, r_, fd, size);                              \
			}                                                                                  \
			if (kind_ == YOUNG_PLAIN) {                                                        \
				n_ = plain;                                                                \
				after_send(&c_, fd, n_, flags);                                            \
			}                                                                                  \
		}                                                                                          \
		n_;                                                                                        \
	})

static struct iovec one(const void *buf, size_t n)
{
	return (struct iovec) { (void *)buf, min_size(n, MOST) };
}

static size_t list_size(const struct iovec *iov, size_t count)
{
	size_t n = 0;

	for (size_t i = 0; i < count; i++)
		n += iov[i].iov_len;
	return n;
}

/* What the kernel would refuse: let it. */
static bool bad_vector(const struct iovec *iov, size_t count)
{
	if (!user_readable(iov, count * sizeof(*iov)))
		return true;
	for (size_t i = 0; i < count; i++)
		if (iov[i].iov_len > SSIZE_MAX)
			return true;
	return false;
}

static bool bad_name(const void *name, socklen_t size)
{
	return name && size > 0 &&
	       (size > sizeof(struct sockaddr_storage) || !user_readable(name, size));
}

/* The kernel would refuse it before it moved an octet: let it. */
static bool bad_message(const struct msghdr *msg)
{
	return !user_readable(msg, sizeof(*msg)) || msg->msg_iovlen > IOV_MAX ||
	       (msg->msg_name && (int)msg->msg_namelen < 0) ||
	       bad_vector(msg->msg_iov, msg->msg_iovlen);
}

HOOK ssize_t read(int fd, void *buf, size_t n)
{
	struct iovec iov = one(buf, n);

	/* Unlike recv(), read() of nothing never waits. */
	if (n == 0)
		return real(read)(fd, buf, n);
	return RECEIVE(fd, &iov, 1, 0, real(read)(fd, buf, n));
}

HOOK ssize_t recv(int fd, void *buf, size_t n, int flags)
{
	struct iovec iov = one(buf, n);

	return RECEIVE(fd, &iov, 1, flags, real(recv)(fd, buf, n, flags));
}

/* Streams name no sender. The kernel says what is wrong with the size when the octets are gone. */
static ssize_t no_sender(socklen_t *size, ssize_t got)
{
	if (!user_writable(size, sizeof(*size))) {
		errno = EFAULT;
		return -1;
	}
	if ((int)*size < 0) {
		errno = EINVAL;
		return -1;
	}
	*size = 0;
	return got;
}

HOOK ssize_t recvfrom(int fd, void *restrict buf, size_t n, int flags,
		      struct sockaddr *restrict from, socklen_t *restrict size)
{
	struct iovec iov = one(buf, n);
	bool ours = true;
	ssize_t got = RECEIVE(fd, &iov, 1, flags,
			      (ours = false, real(recvfrom)(fd, buf, n, flags, from, size)));

	return ours && got >= 0 && from ? no_sender(size, got) : got;
}

HOOK ssize_t readv(int fd, const struct iovec *iov, int count)
{
	if (count <= 0 || count > IOV_MAX || !sock_live(fd) || bad_vector(iov, (size_t)count) ||
	    list_size(iov, (size_t)count) == 0)
		return real(readv)(fd, iov, count);
	return RECEIVE(fd, iov, (size_t)count, 0, real(readv)(fd, iov, count));
}

/* What is left, as the kernel tells who has asked for it (TCP_INQ). `room` for control data. */
static void tell_left(struct rec *r, int fd, struct msghdr *msg, size_t room)
{
	const int left = stream_left(r, fd);
	union {
		struct cmsghdr head;
		char octets[CMSG_SPACE(sizeof(left))];
	} c = { .head = { .cmsg_level = IPPROTO_TCP, .cmsg_type = TCP_CM_INQ } };
	size_t n = min_size(room, sizeof(c));

	if (room < CMSG_LEN(sizeof(left)) || !msg->msg_control)
		msg->msg_flags |= MSG_CTRUNC;
	if (room < sizeof(c.head) || !msg->msg_control || !user_writable(msg->msg_control, n))
		return;
	c.head.cmsg_len = min_size(room, CMSG_LEN(sizeof(left)));
	memcpy(CMSG_DATA(&c.head), &left, sizeof(left));
	memcpy(msg->msg_control, &c, c.head.cmsg_len);
	msg->msg_controllen = n;
}

HOOK ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct rec *r = sock_live(fd);
	bool ours = true; /* the lane may be gone afterwards, so this is not asked then */
	size_t room;
	ssize_t n;

	if (!r || bad_message(msg)) {
		n = real(recvmsg)(fd, msg, flags);
		if (n >= 0 && !r)
			hook_received_descriptors(msg);
		return n;
	}
	/* The kernel would find out with the octets in its hands. */
	if (!user_writable(msg, sizeof(*msg))) {
		errno = EFAULT;
		return -1;
	}
	room = msg->msg_controllen;
	n = RECEIVE(fd, msg->msg_iov, msg->msg_iovlen, flags,
		    (ours = false, real(recvmsg)(fd, msg, flags)));
	if (n >= 0 && ours) {
		if (msg->msg_name)
			msg->msg_namelen = 0;
		msg->msg_controllen = 0;
		msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
		if (sock_flag(r, REC_INQ))
			tell_left(r, fd, msg, room);
	}
	return n;
}

HOOK ssize_t write(int fd, const void *buf, size_t n)
{
	struct iovec iov = one(buf, n);

	return SEND(fd, &iov, 1, n, 0, real(write)(fd, buf, n));
}

HOOK ssize_t send(int fd, const void *buf, size_t n, int flags)
{
	struct iovec iov = one(buf, n);

	return SEND(fd, &iov, 1, n, flags, real(send)(fd, buf, n, flags));
}

HOOK ssize_t sendto(int fd, const void *buf, size_t n, int flags, const struct sockaddr *to,
		    socklen_t size)
{
	struct iovec iov = one(buf, n);

	/* It is not used, but looked at. */
	if (to && bad_name(to, size))
		return real(sendto)(fd, buf, n, flags, to, size);
	return SEND(fd, &iov, 1, n, flags, real(sendto)(fd, buf, n, flags, to, size));
}

HOOK ssize_t writev(int fd, const struct iovec *iov, int count)
{
	if (count <= 0 || count > IOV_MAX || !sock_live(fd) || bad_vector(iov, (size_t)count))
		return real(writev)(fd, iov, count);
	return SEND(fd, iov, (size_t)count, list_size(iov, (size_t)count), 0,
		    real(writev)(fd, iov, count));
}

/* A name that is too long is cut, by the kernel, and only here. */
static bool bad_to_send(const struct msghdr *msg)
{
	return bad_message(msg) ||
	       bad_name(msg->msg_name, msg->msg_namelen < sizeof(struct sockaddr_storage)
					       ? msg->msg_namelen
					       : sizeof(struct sockaddr_storage)) ||
	       (msg->msg_controllen && !user_readable(msg->msg_control, 1));
}

HOOK ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct rec *r = sock_live(fd);

	if (!r)
		hook_passing_descriptors(msg);
	if (!r || bad_to_send(msg))
		return real(sendmsg)(fd, msg, flags);
	if (msg->msg_controllen)
		return PLAINLY(fd, why_act(WHY_ACT_CONTROL), real(sendmsg)(fd, msg, flags));
	return SEND(fd, msg->msg_iov, msg->msg_iovlen, list_size(msg->msg_iov, msg->msg_iovlen),
		    flags, real(sendmsg)(fd, msg, flags));
}

static uint64_t end_of(const struct timespec *limit)
{
	if (!limit || (uint64_t)limit->tv_sec >= INT64_MAX / (2 * NSEC_PER_SEC))
		return UINT64_MAX;
	return clock_now() + (uint64_t)limit->tv_sec * NSEC_PER_SEC + (uint64_t)limit->tv_nsec;
}

/* What is left of a time limit after each message, as the kernel writes it. False: nothing. */
static bool time_is_left(struct timespec *limit, uint64_t end)
{
	uint64_t now = clock_now();
	uint64_t left = end > now ? end - now : 0;

	*limit = (struct timespec) { (time_t)(left / NSEC_PER_SEC), (long)(left % NSEC_PER_SEC) };
	return left > 0;
}

/* An error that waits is told before any octet: this call asks for it first. */
static bool take_error(int fd)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error == 0)
		return false;
	errno = error;
	return true;
}

static bool is_entry(struct mmsghdr *entry)
{
	if (user_writable(entry, sizeof(*entry)))
		return true;
	errno = EFAULT;
	return false;
}

/* One of several messages. */
static ssize_t receive_one(struct rec *r, int fd, struct msghdr *msg, int flags)
{
	ssize_t n;

	/* What the kernel would refuse: let it. */
	if (bad_message(msg) || (flags & RECEIVE_PLAIN))
		return real(recvmsg)(fd, msg, flags);
	if (!user_writable(msg, sizeof(*msg)) ||
	    !user_list_ok(msg->msg_iov, msg->msg_iovlen, true)) {
		errno = EFAULT;
		return -1;
	}
	n = call_receive_part(r, fd, msg->msg_iov, msg->msg_iovlen, flags);
	if (n >= 0) {
		if (msg->msg_name)
			msg->msg_namelen = 0;
		msg->msg_controllen = 0;
		msg->msg_flags = flags & MSG_CMSG_CLOEXEC;
	}
	return n;
}

/* In a lane several messages are as many calls. */
static int receive_many(struct rec *r, int fd, struct mmsghdr *v, unsigned int n, int flags,
			struct timespec *limit)
{
	int now = flags & ~MSG_WAITFORONE;
	unsigned int done = 0;
	uint64_t end = end_of(limit);

	if (!(flags & MSG_ERRQUEUE) && take_error(fd))
		return -1;
	while (done < n) {
		ssize_t got = is_entry(&v[done]) ? receive_one(r, fd, &v[done].msg_hdr, now) : -1;

		if (got < 0) {
			/* What has come is told now, and the error by the next call. */
			if (done > 0 && errno != EAGAIN && errno != EINTR)
				stream_keep_error(r, errno);
			break;
		}
		v[done++].msg_len = (unsigned int)got;
		if (flags & MSG_WAITFORONE)
			now |= MSG_DONTWAIT;
		/* Looked at between messages only: a call may sleep longer, as in the kernel. */
		if (limit && !time_is_left(limit, end))
			break;
	}
	return done > 0 || n == 0 ? (int)done : -1;
}

/* What the kernel would refuse: let it. */
static bool bad_limit(struct timespec *limit)
{
	return limit && (!user_writable(limit, sizeof(*limit)) || limit->tv_sec < 0 ||
			 limit->tv_nsec < 0 || limit->tv_nsec >= (long)NSEC_PER_SEC);
}

/* Descriptors that came with any of them. */
static void look_through(const struct mmsghdr *v, int n)
{
	for (int i = 0; i < n; i++)
		hook_received_descriptors(&v[i].msg_hdr);
}

HOOK int recvmmsg(int fd, struct mmsghdr *v, unsigned int n, int flags, struct timespec *limit)
{
	struct raw_call c __attribute__((cleanup(sock_raw_ends))) = { 0 };
	struct rec *r = sock_live(fd);
	int got;

	n = n > IOV_MAX ? IOV_MAX : n;
	if (!r || bad_limit(limit)) {
		got = real(recvmmsg)(fd, v, n, flags, limit);
		if (!r)
			look_through(v, got);
		return got;
	}
	switch (before_receive(&c, r, fd, flags & ~RECEIVE_PLAIN)) {
	case YOUNG_PLAIN:
		got = real(recvmmsg)(fd, v, n, flags, limit);
		after_receive(&c, fd, got > 0 ? v[0].msg_len : 0, flags);
		return got;
	case YOUNG_OURS:
		if (sock_keep(r, fd)) {
			got = receive_many(r, fd, v, n, flags, limit);
			sock_release(r);
			return got;
		}
		break;
	default: break;
	}
	sock_raw_ends(&c);
	return recvmmsg(fd, v, n, flags, limit);
}

/* Those that are there; with others the kernel ends the call. */
static void passing_many(const struct mmsghdr *v, unsigned int n)
{
	for (unsigned int i = 0; i < n && user_readable(&v[i], sizeof(v[i])); i++)
		hook_passing_descriptors(&v[i].msg_hdr);
}

static int send_many(struct rec *r, int fd, struct mmsghdr *v, unsigned int n, int flags)
{
	unsigned int done = 0;

	while (done < n) {
		struct msghdr *msg = &v[done].msg_hdr;
		ssize_t sent = -1;

		if (!is_entry(&v[done]))
			break;
		if (bad_to_send(msg))
			sent = real(sendmsg)(fd, msg, flags); /* to be refused */
		else if (!user_list_ok(msg->msg_iov, msg->msg_iovlen, false))
			errno = EFAULT;
		else
			sent = call_send_part(r, fd, msg->msg_iov, msg->msg_iovlen, flags,
					      done == 0);
		if (sent < 0)
			break;
		v[done++].msg_len = (unsigned int)sent;
		/* Not all of it: what follows must wait. */
		if ((size_t)sent < list_size(msg->msg_iov, msg->msg_iovlen))
			break;
	}
	return done > 0 || n == 0 ? (int)done : -1;
}

/* Something with them that only the kernel understands. */
static bool have_control(const struct mmsghdr *v, unsigned int n)
{
	for (unsigned int i = 0; i < n && user_readable(&v[i], sizeof(v[i])); i++)
		if (v[i].msg_hdr.msg_controllen)
			return true;
	return false;
}

HOOK int sendmmsg(int fd, struct mmsghdr *v, unsigned int n, int flags)
{
	struct rec *r = flags & SEND_PLAIN ? NULL : sock_live(fd);
	int sent;

	n = n > IOV_MAX ? IOV_MAX : n;
	if (!r)
		passing_many(v, n);
	if (!r || have_control(v, n) || !sock_keep(r, fd)) {
		order_tick();
		return PLAINLY(fd, flags & SEND_PLAIN ? why_flags(flags) : why_act(WHY_ACT_CONTROL),
			       real(sendmmsg)(fd, v, n, flags));
	}
	sent = send_many(r, fd, v, n, flags);
	sock_release(r);
	return sent;
}

/* With offset -1 these are readv() and writev() with flags; some only the kernel understands. */
static bool is_plain_vector(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	if (offset != -1 || count <= 0 || count > IOV_MAX || !sock_live(fd) ||
	    bad_vector(iov, (size_t)count))
		return true;
	if (!(flags & ~(RWF_NOWAIT | RWF_HIPRI)))
		return false;
	hook_step_aside(fd, WHY_OPTION);
	return true;
}

HOOK ssize_t preadv2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	if (is_plain_vector(fd, iov, count, offset, flags))
		return real(preadv2)(fd, iov, count, offset, flags);
	return RECEIVE(fd, iov, (size_t)count, flags & RWF_NOWAIT ? MSG_DONTWAIT : 0,
		       real(preadv2)(fd, iov, count, offset, flags));
}

HOOK ssize_t pwritev2(int fd, const struct iovec *iov, int count, off_t offset, int flags)
{
	if (is_plain_vector(fd, iov, count, offset, flags))
		return real(pwritev2)(fd, iov, count, offset, flags);
	return SEND(fd, iov, (size_t)count, list_size(iov, (size_t)count),
		    flags & RWF_NOWAIT ? MSG_DONTWAIT : 0,
		    real(pwritev2)(fd, iov, count, offset, flags));
}

/* --- from files, through a buffer */

#define FILE_STEP 16384

static ssize_t send_file(struct rec *r, int fd, int from, off_t *offset, size_t n)
{
	char buf[FILE_STEP];
	off_t at = offset ? *offset : lseek(from, 0, SEEK_CUR);
	size_t done = 0;
	ssize_t got = 0, sent = 0;

	while (done < n) {
		struct iovec iov;

		got = pread(from, buf, min_size(n - done, sizeof(buf)), at);
		if (got <= 0)
			break;
		iov = one(buf, (size_t)got);
		sent = call_send_part(r, fd, &iov, 1, 0, done == 0);
		if (sent <= 0)
			break;
		done += (size_t)sent;
		at += sent;
		if (sent < got)
			break;
	}
	if (offset)
		*offset = at;
	else if (done > 0)
		lseek(from, at, SEEK_SET);
	if (done > 0)
		return (ssize_t)done;
	return got < 0 || sent < 0 ? -1 : 0;
}

/* What is not one, or has no size, as in /proc: the kernel knows what to say. */
static bool is_file(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0;
}

HOOK ssize_t sendfile(int fd, int from, off_t *offset, size_t n)
{
	struct rec *r, *source = sock_live(from);
	ssize_t sent = STREAM_AGAIN;

	if (source)
		sock_pin(source, from, why_act(WHY_ACT_SENDFILE));
	while (sent == STREAM_AGAIN) {
		struct raw_call c __attribute__((cleanup(sock_raw_ends))) = { 0 };

		r = sock_live(fd);
		if (r && (n == 0 || (offset && !user_writable(offset, sizeof(*offset))))) {
			sent = real(sendfile)(fd, from, offset, n);
		} else if (!r || (!sock_has_lane(r) && n <= STEP)) {
			if (young_before_send(&c, r, fd, n) != YOUNG_PLAIN)
				continue;
			sent = real(sendfile)(fd, from, offset, n);
			after_send(&c, fd, sent, 0);
		} else if (!is_file(from)) {
			sent = PLAINLY(fd, why_act(WHY_ACT_SENDFILE),
				       real(sendfile)(fd, from, offset, n));
		} else if (sock_keep(r, fd)) {
			int cancel;

			/* Unlike those that it is made of, this call is none where a thread can be cancelled. */
			pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
			sent = send_file(r, fd, from, offset, n);
			pthread_setcancelstate(cancel, NULL);
			sock_release(r);
		}
	}
	return sent;
}

/* Into a pipe by way of another, which is empty: so it never waits, and nothing is there that was not taken. */
struct pour {
	int out;
	int way[2];
	unsigned int flags;
};

static ssize_t pour(void *arg, const void *octets, size_t n)
{
	const struct pour *p = arg;
	ssize_t moved = real(write)(p->way[1], octets, n);

	if (moved <= 0)
		return -1;
	return real(splice)(p->way[0], NULL, p->out, NULL, (size_t)moved,
			    p->flags | SPLICE_F_NONBLOCK);
}

/* Once, with a way of its own. */
static ssize_t pour_once(struct rec *r, int *in, int out, size_t n, unsigned int flags)
{
	char buf[FILE_STEP];
	struct iovec iov = one(buf, min_size(n, sizeof(buf)));
	struct pour p = { .out = out, .flags = flags };
	ssize_t moved;

	if (pipe2(p.way, O_CLOEXEC | O_NONBLOCK) != 0)
		return -1;
	for (int i = 0; i < 2; i++)
		own_new(p.way[i]);
	for (int i = 0; i < 2; i++)
		p.way[i] = own_move(p.way[i]);
	moved = -1;
	if (p.way[0] >= 0 && p.way[1] >= 0)
		moved = call_take_by(r, in, &iov, flags & SPLICE_F_NONBLOCK ? MSG_DONTWAIT : 0,
				     pour, &p);
	for (int i = 0; i < 2; i++)
		if (p.way[i] >= 0)
			real(close)(p.way[i]);
	return moved;
}

/* Out of a lane into a pipe: what the pipe takes is taken out of the lane, and no more. */
static ssize_t splice_out(struct rec *r, int in, int out, size_t n, unsigned int flags)
{
	struct pollfd p = { .fd = out, .events = POLLOUT };

	for (;;) {
		ssize_t moved = pour_once(r, &in, out, n, flags);

		if (moved == STREAM_AGAIN)
			return real(splice)(in, NULL, out, NULL, n, flags);

		if (moved >= 0 || errno != EAGAIN || (flags & SPLICE_F_NONBLOCK))
			return moved;
		/* Was it the pipe that had no room? */
		if (real(poll)(&p, 1, 0) > 0 || real(poll)(&p, 1, -1) < 0)
			return -1;
	}
}

HOOK ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t n, unsigned int flags)
{
	struct rec *r = sock_live(in);
	ssize_t moved;

	if (r && !in_at && !out_at && n > 0 && sock_has_lane(r) &&
	    real(fcntl)(out, F_GETPIPE_SZ) > 0 && sock_keep(r, in)) {
		moved = splice_out(r, in, out, n, flags);
		sock_release(r);
		return moved;
	}
	/* One of them is a pipe. */
	return PLAINLY(r ? in : out, why_act(WHY_ACT_SPLICE),
		       real(splice)(in, in_at, out, out_at, n, flags));
}

/* --- other names of the same functions */

HOOK ssize_t __read_chk(int fd, void *buf, size_t n, size_t size);
HOOK ssize_t __recv_chk(int fd, void *buf, size_t n, size_t size, int flags);
HOOK ssize_t __recvfrom_chk(int fd, void *restrict buf, size_t n, size_t size, int flags,
			    struct sockaddr *restrict from, socklen_t *restrict length);

ssize_t __read_chk(int fd, void *buf, size_t n, size_t size)
{
	if (n > size)
		__chk_fail();
	return read(fd, buf, n);
}

ssize_t __recv_chk(int fd, void *buf, size_t n, size_t size, int flags)
{
	if (n > size)
		__chk_fail();
	return recv(fd, buf, n, flags);
}

ssize_t __recvfrom_chk(int fd, void *restrict buf, size_t n, size_t size, int flags,
		       struct sockaddr *restrict from, socklen_t *restrict length)
{
	if (n > size)
		__chk_fail();
	return recvfrom(fd, buf, n, flags, from, length);
}

HOOK_ALIAS(ssize_t, __read, read, (int fd, void *buf, size_t n));
HOOK_ALIAS(ssize_t, __write, write, (int fd, const void *buf, size_t n));
HOOK_ALIAS(ssize_t, __send, send, (int fd, const void *buf, size_t n, int flags));
HOOK_ALIAS(ssize_t, __recv, recv, (int fd, void *buf, size_t n, int flags));
HOOK_ALIAS(int, __sendmmsg, sendmmsg, (int fd, struct mmsghdr *v, unsigned int n, int flags));
HOOK_ALIAS(ssize_t, sendfile64, sendfile, (int fd, int from, off64_t *offset, size_t n));
HOOK_ALIAS(ssize_t, preadv64v2, preadv2,
	   (int fd, const struct iovec *iov, int count, off64_t offset, int flags));
HOOK_ALIAS(ssize_t, pwritev64v2, pwritev2,
	   (int fd, const struct iovec *iov, int count, off64_t offset, int flags));
