/* SPDX-License-Identifier: MIT */
/* W: calls that move octets, by the C library's functions and by syscall(2), with good pointers and bad. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "threads.h"

#define PAGE     4096
#define PIECES   3
#define IN_PIPE  60000 /* fits into a pipe */
#define ALL_MAX  600   /* what MSG_WAITALL may have to wait for */
#define LATE_US  20000000
#define ARRIVING 200

enum out { OUT_SEND, OUT_SENDTO, OUT_WRITE, OUT_WRITEV, OUT_MSG, OUT_MMSG, OUT_FILE, OUT_SPLICE };
enum in { IN_RECV, IN_RECVFROM, IN_READ, IN_READV, IN_MSG, IN_MMSG, IN_SPLICE };

static const char *const out_names[2][8] = {
	{ "send", "sendto", "write", "writev", "sendmsg", "sendmmsg", "sendfile", "splice to" },
	{ "raw send", "raw sendto", "raw write", "raw writev", "raw sendmsg", "raw sendmmsg",
	  "raw sendfile", "raw splice to" },
};
static const char *const in_names[2][7] = {
	{ "recv", "recvfrom", "read", "readv", "recvmsg", "recvmmsg", "splice from" },
	{ "raw recv", "raw recvfrom", "raw read", "raw readv", "raw recvmsg", "raw recvmmsg",
	  "raw splice from" },
};

/* A call under way, with all it needs. */
struct move {
	struct wild *w;
	const struct act *a;
	int fd, flags;
	uint8_t *at; /* what the call is given */
	size_t len;
	struct iovec iov[PIECES];
	struct mmsghdr msgs[PIECES];
	struct msghdr whole, *msg; /* of sendmsg() and recvmsg() */
	int count;
};

/* ---- pointers ---- */

/* Where the octets of the call are said to be; good: how many of them really are. */
static uint8_t *point(const struct move *m, size_t *good)
{
	struct wild *w = m->w;

	*good = 0;
	switch (m->a->pointer) {
	case PTR_NULL: return NULL;
	case PTR_ONE: return (uint8_t *)1;
	case PTR_GONE: mprotect(w->page, PAGE, PROT_NONE); return w->page;
	case PTR_READONLY: mprotect(w->page, PAGE, PROT_READ); return w->page;
	case PTR_EDGE:
		*good = RECORD_HEAD + m->a->flavour;
		if (*good > m->len)
			*good = m->len;
		return w->page + 2 * PAGE - *good;
	default: *good = m->len; return w->buffer;
	}
}

static void unpoint(const struct move *m)
{
	if (m->a->pointer == PTR_GONE || m->a->pointer == PTR_READONLY)
		mprotect(m->w->page, PAGE, PROT_READ | PROT_WRITE);
}

static void cut(struct move *m)
{
	size_t at = 0, left, n;

	for (int i = 0; i < PIECES; i++) {
		left = m->len - at;
		n = i == PIECES - 1 ? left : left / (size_t)(PIECES - i);
		/* Others may send between two messages: each has to be long enough to be known. */
		if (m->len < 2 * PIECES * RECORD_HEAD)
			n = left;
		m->iov[i] = (struct iovec) { m->at + at, n };
		at += n;
		m->msgs[i].msg_hdr = (struct msghdr) { .msg_iov = &m->iov[i], .msg_iovlen = 1 };
		m->msgs[i].msg_len = 0;
	}
	m->count = PIECES;
	m->whole = (struct msghdr) { .msg_iov = m->iov, .msg_iovlen = PIECES };
	m->msg = &m->whole;
	if (m->a->pointer == PTR_ONE)
		m->msg = (struct msghdr *)1;
}

static ssize_t sum(const struct move *m, int done)
{
	ssize_t all = 0;

	for (int i = 0; i < done; i++)
		all += m->msgs[i].msg_len;
	return done < 0 ? -1 : all;
}

/* ---- sending ---- */

/* The kernel sends the file's own pages, perhaps much later: each record has its own place. */
static ssize_t by_file(struct move *m, bool raw)
{
	struct wild *w = m->w;
	off_t at = (off_t)w->filled, *place = m->a->pointer == PTR_ONE ? (off_t *)1 : &at;

	memcpy(w->mapped + w->filled, w->buffer, m->len);
	w->filled += m->len;
	return raw ? syscall(SYS_sendfile, m->fd, w->file, place, m->len)
		   : sendfile(m->fd, w->file, place, m->len);
}

void data_empty_pipe(const struct wild *w)
{
	uint8_t scratch[4096];
	int err = errno;

	fcntl(w->pipe[0], F_SETFL, O_NONBLOCK);
	while (read(w->pipe[0], scratch, sizeof(scratch)) > 0)
		;
	fcntl(w->pipe[0], F_SETFL, 0);
	errno = err;
}

static ssize_t by_pipe(struct move *m, bool raw)
{
	unsigned flags = m->flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0;
	ssize_t n;

	if (write(m->w->pipe[1], m->w->buffer, m->len) != (ssize_t)m->len)
		watch_die("no room in the pipe: %s", stage_errno(errno));
	n = raw ? syscall(SYS_splice, m->w->pipe[0], NULL, m->fd, NULL, m->len, flags)
		: splice(m->w->pipe[0], NULL, m->fd, NULL, m->len, flags);
	data_empty_pipe(m->w);
	return n;
}

static ssize_t send_raw(struct move *m, enum out how)
{
	switch (how) {
	case OUT_WRITE: return syscall(SYS_write, m->fd, m->at, m->len);
	case OUT_WRITEV: return syscall(SYS_writev, m->fd, m->iov, PIECES);
	case OUT_MSG: return syscall(SYS_sendmsg, m->fd, m->msg, m->flags);
	case OUT_MMSG: return sum(m, (int)syscall(SYS_sendmmsg, m->fd, m->msgs, PIECES, m->flags));
	case OUT_FILE: return by_file(m, true);
	case OUT_SPLICE: return by_pipe(m, true);
	default: return syscall(SYS_sendto, m->fd, m->at, m->len, m->flags, NULL, 0);
	}
}

static ssize_t send_by(struct move *m, enum out how)
{
	switch (how) {
	case OUT_SEND: return send(m->fd, m->at, m->len, m->flags);
	case OUT_SENDTO: return sendto(m->fd, m->at, m->len, m->flags, NULL, 0);
	case OUT_WRITE: return write(m->fd, m->at, m->len);
	case OUT_WRITEV: return writev(m->fd, m->iov, PIECES);
	case OUT_MSG: return sendmsg(m->fd, m->msg, m->flags);
	case OUT_MMSG: return sum(m, sendmmsg(m->fd, m->msgs, PIECES, m->flags));
	case OUT_FILE: return by_file(m, false);
	default: return by_pipe(m, false);
	}
}

/* ---- receiving ---- */

static ssize_t out_of_pipe(struct move *m, bool raw)
{
	unsigned flags = m->flags & MSG_DONTWAIT ? SPLICE_F_NONBLOCK : 0;
	ssize_t n;

	n = raw ? syscall(SYS_splice, m->fd, NULL, m->w->pipe[1], NULL, m->len, flags)
		: splice(m->fd, NULL, m->w->pipe[1], NULL, m->len, flags);
	if (n > 0 && read(m->w->pipe[0], m->w->buffer, (size_t)n) != n)
		watch_bad("splice from %d said %zd, but the pipe has not so many", m->fd, n);
	return n;
}

static ssize_t recv_raw(struct move *m, enum in how)
{
	switch (how) {
	case IN_READ: return syscall(SYS_read, m->fd, m->at, m->len);
	case IN_READV: return syscall(SYS_readv, m->fd, m->iov, PIECES);
	case IN_MSG: return syscall(SYS_recvmsg, m->fd, m->msg, m->flags);
	case IN_MMSG:
		return sum(m, (int)syscall(SYS_recvmmsg, m->fd, m->msgs, m->count, m->flags, NULL));
	case IN_SPLICE: return out_of_pipe(m, true);
	default: return syscall(SYS_recvfrom, m->fd, m->at, m->len, m->flags, NULL, NULL);
	}
}

static ssize_t recv_by(struct move *m, enum in how)
{
	struct sockaddr_storage from;
	socklen_t len = sizeof(from);

	switch (how) {
	case IN_RECV: return recv(m->fd, m->at, m->len, m->flags);
	case IN_RECVFROM:
		return recvfrom(m->fd, m->at, m->len, m->flags, (struct sockaddr *)&from, &len);
	case IN_READ: return read(m->fd, m->at, m->len);
	case IN_READV: return readv(m->fd, m->iov, PIECES);
	case IN_MSG: return recvmsg(m->fd, m->msg, m->flags);
	case IN_MMSG: return sum(m, recvmmsg(m->fd, m->msgs, (unsigned)m->count, m->flags, NULL));
	default: return out_of_pipe(m, false);
	}
}

/* ---- results ---- */

/* Handlers that had run in this thread before the call. */
struct before {
	int hits[2], pipes;
};

static struct before now(void)
{
	return (struct before) { { hits[0], hits[1] }, pipes };
}

/* What does not depend on other threads; errors of connections and numbers are for judge(). */
static void check_result(const struct move *m, const struct call *c, const struct before *b,
			 size_t good)
{
	bool timed = world->may & (MAY_TIME | MAY_NONBLOCK);

	if (c->result > (int64_t)good)
		watch_bad("%s on %d: %lld of %zu", c->what, c->number, (long long)c->result, good);
	if (c->result == 0 && c->kind == CALL_OUT)
		watch_bad("%s on %d: 0 of %zu", c->what, c->number, good);
	if (c->result >= 0)
		return;
	switch (c->err) {
	case EAGAIN:
		if (!timed && !(m->flags & MSG_DONTWAIT))
			watch_bad("%s on %d does not block", c->what, c->number);
		break;
	case EINTR:
		/* With a time-out, also after signals that do nothing, or whose handler restarts. */
		if (hits[0] == b->hits[0] && (!(world->may & MAY_TIME) ||
					      (hits[1] == b->hits[1] && !(world->may & MAY_EXEC))))
			watch_bad("%s on %d: EINTR after %d handlers, %d with SA_RESTART", c->what,
				  c->number, hits[0] + hits[1] - b->hits[0] - b->hits[1],
				  hits[1] - b->hits[1]);
		break;
	case EFAULT:
		if (m->a->pointer == PTR_GOOD)
			watch_bad("%s on %d: EFAULT", c->what, c->number);
		break;
	case EBADF:
	case ENOTSOCK:
	case EINVAL:
	case EPIPE:
	case ECONNRESET:
	case ENOTCONN: break;
	default: watch_bad("%s on %d: %s", c->what, c->number, stage_errno(c->err));
	}
}

static void check_pipe(const struct move *m, const struct call *c, const struct before *b,
		       enum out how)
{
	bool told = c->result < 0 && c->err == EPIPE && !(m->flags & MSG_NOSIGNAL);

	/* After the first message sendmmsg() does not tell of the error. */
	if (how == OUT_MMSG && c->result >= 0)
		return;
	if (how < OUT_FILE && told != (pipes != b->pipes))
		watch_bad("%s on %d with %s%s: SIGPIPE %d times", c->what, c->number,
			  c->result < 0 ? stage_errno(c->err) : "no error",
			  m->flags & MSG_NOSIGNAL ? ", MSG_NOSIGNAL" : "", pipes - b->pipes);
}

/* ---- deeds ---- */

static struct call *send_record(struct wild *w, const struct act *a, size_t len, enum out how)
{
	struct move m = { .w = w, .a = a, .len = len, .flags = a->flags };
	struct before b;
	struct call *c;
	uint64_t begin = wild_begin();
	size_t good;
	ssize_t n;

	m.fd = wild_number(a);
	if (m.fd < 0)
		return NULL;
	if (how == OUT_WRITE || how == OUT_WRITEV || how == OUT_FILE)
		m.flags = 0;
	c = w->now = log_call(CALL_OUT, out_names[a->raw][how], begin, m.fd, len);
	if (!c)
		return NULL;
	record_fill((uint32_t)(c - world->call), (uint32_t)len, 0, w->buffer, len);
	if (a->pointer == PTR_READONLY)
		memcpy(w->page, w->buffer, len);
	m.at = point(&m, &good);
	if (a->pointer == PTR_EDGE)
		memcpy(m.at, w->buffer, good);
	/* Reading is allowed there; and these do not look at the pointer. */
	if (a->pointer == PTR_READONLY || how == OUT_FILE || how == OUT_SPLICE)
		good = how == OUT_FILE && a->pointer == PTR_ONE ? 0 : len;
	cut(&m);
	b = now();
	watch_begin(c->what, m.fd);
	errno = 0;
	n = a->raw ? send_raw(&m, how) : send_by(&m, how);
	log_result(c, n, errno);
	watch_end();
	w->now = NULL;
	unpoint(&m);
	check_result(&m, c, &b, good);
	check_pipe(&m, c, &b, how);
	return c;
}

void data_send(struct wild *w, const struct act *a)
{
	enum out how = (enum out)(a->how % (world->may & MAY_PIPES ? 8 : 6));
	struct act first = *a;
	size_t len = a->size;

	if (how == OUT_SPLICE && len > IN_PIPE)
		len = IN_PIPE;
	if (how == OUT_FILE && 2 * len > FILE_SIZE - w->filled)
		how = OUT_SEND;
	if (a->pointer == PTR_READONLY || a->pointer == PTR_GONE)
		len = len < PAGE ? len : PAGE;
	/* Memory that was a good buffer a moment ago. */
	first.pointer = PTR_READONLY;
	if (a->pointer == PTR_GONE)
		send_record(w, &first, len, how);
	send_record(w, a, len, how);
}

static void took(struct move *m, struct call *c, const uint64_t *high, enum in how)
{
	bool peek = m->flags & MSG_PEEK;
	const uint8_t *at = how == IN_SPLICE ? m->w->buffer : m->at;

	if (c->result <= 0)
		return;
	if (m->flags & MSG_TRUNC) {
		atomic_fetch_add(&world->thrown, (uint64_t)c->result);
		return;
	}
	if (how != IN_MMSG) {
		cells_took(c, high, at, (size_t)c->result, peek);
		return;
	}
	/* Each message has its own place. */
	for (int i = 0; i < m->count; i++)
		if (m->msgs[i].msg_len)
			cells_took(c, high, m->iov[i].iov_base, m->msgs[i].msg_len, peek);
}

static void limit_recv(struct move *m, const struct act *a, enum in how)
{
	if (how == IN_READ || how == IN_READV || how == IN_SPLICE)
		m->flags &= how == IN_SPLICE ? MSG_DONTWAIT : 0;
	if (m->flags & MSG_WAITALL && m->len > ALL_MAX)
		m->len = ALL_MAX;
	if (a->pointer == PTR_READONLY || a->pointer == PTR_GONE)
		m->len = m->len < PAGE ? m->len : PAGE;
	if (how == IN_SPLICE && m->len > IN_PIPE)
		m->len = IN_PIPE;
}

void data_recv(struct wild *w, const struct act *a)
{
	static __thread uint64_t high[MAX_CONNS];
	enum in how = (enum in)(a->how % (world->may & MAY_PIPES ? 7 : 6));
	struct move m = { .w = w, .a = a, .len = a->size, .flags = a->flags };
	uint64_t begin = wild_begin();
	struct before b;
	struct call *c;
	size_t good;
	ssize_t n;

	m.fd = wild_number(a);
	limit_recv(&m, a, how);
	if (m.fd < 0)
		return;
	c = w->now = log_call(CALL_IN, in_names[a->raw][how], begin, m.fd, m.len);
	if (!c)
		return;
	cells_snapshot(high);
	m.at = point(&m, &good);
	cut(&m);
	/* Messages one after the other: an error between them would be told to a later call. */
	if (how == IN_MMSG && (!(m.flags & MSG_DONTWAIT) || m.flags & MSG_PEEK || good < m.len)) {
		m.iov[0].iov_len = m.len;
		m.count = 1;
	}
	if (how == IN_SPLICE)
		good = m.len;
	b = now();
	watch_begin(c->what, m.fd);
	errno = 0;
	n = a->raw ? recv_raw(&m, how) : recv_by(&m, how);
	log_result(c, n, errno);
	watch_end();
	w->now = NULL;
	unpoint(&m);
	check_result(&m, c, &b, m.flags & MSG_TRUNC ? m.len : good);
	took(&m, c, high, how);
}

/* The connection that a number is of, by its ports; -1: not to be found out. */
static int conn_of(int fd)
{
	struct sockaddr_in at[2] = { 0 };
	socklen_t len[2] = { sizeof(at[0]), sizeof(at[1]) };
	int port[2];

	if (getsockname(fd, (struct sockaddr *)&at[0], &len[0]) ||
	    getpeername(fd, (struct sockaddr *)&at[1], &len[1]))
		return -1;
	for (int i = 0; i < 2; i++)
		port[i] = ntohs(at[i].sin_port);
	if (port[0] == atomic_load(&world->port[0]))
		return log_find_port(port[1], true);
	return log_find_port(port[0], false);
}

/* Little is sent; it must reach T's program soon, without any help by later calls. */
void data_arrive(struct wild *w, const struct act *a)
{
	struct act simple = *a;
	uint64_t end = stage_now() + LATE_US;
	struct call *c;
	int conn;

	simple.pointer = PTR_GOOD;
	simple.flags = MSG_NOSIGNAL;
	c = send_record(w, &simple, RECORD_HEAD + a->size % ARRIVING, (enum out)(a->how % 6));
	if (!c || c->result <= 0)
		return;
	conn = conn_of(c->number);
	if (conn < 0)
		return;
	watch_begin("arrival", c->number);
	while (atomic_load(&c->seen) < c->result && stage_now() < end) {
		if (atomic_load(&world->conn[conn].ended) || atomic_load(&world->conn[conn].ending))
			break;
		/* Closed under the call, or another connection by now: judge() knows. */
		if (atomic_load(&slots[a->slot]) != c->number)
			break;
		stage_nap(100);
	}
	watch_end();
	c->late = stage_now() >= end;
}
