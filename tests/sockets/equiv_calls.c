/* SPDX-License-Identifier: MIT */
/* Every call that moves octets, chosen at random. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "equiv.h"

#define PIECES 5

static uint8_t buffer[STAGE_BUFFER];

/* Cuts n octets into up to PIECES, some of them empty. */
static int cut(struct party *p, uint8_t *data, size_t n, struct iovec *iov)
{
	int pieces = 1 + (int)random_below(&p->own, PIECES);
	size_t at = 0, len;

	for (int i = 0; i < pieces; i++) {
		len = i == pieces - 1 ? n - at : random_size(&p->own, 0, (uint32_t)(n - at));
		iov[i] = (struct iovec) { data + at, len };
		at += len;
	}
	return pieces;
}

static ssize_t send_many(struct party *p, uint8_t *data, size_t n, int flags)
{
	struct iovec iov[PIECES];
	struct mmsghdr msgs[PIECES] = { 0 };
	int count = cut(p, data, n, iov), done;
	ssize_t sum = 0;

	for (int i = 0; i < count; i++) {
		msgs[i].msg_hdr.msg_iov = &iov[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	done = sendmmsg(p->st.fd, msgs, (unsigned)count, flags);
	if (done < 0)
		return -1;
	for (int i = 0; i < done; i++)
		sum += msgs[i].msg_len;
	/* Only empty pieces went: the call has not said why, the next one will. */
	if (sum == 0 && n > 0) {
		errno = EAGAIN;
		return -1;
	}
	return sum;
}

ssize_t calls_send_by(struct party *p, unsigned call, const uint8_t *data, size_t n, int flags)
{
	struct iovec iov[PIECES];
	struct msghdr msg = { .msg_iov = iov };
	uint8_t *from = (uint8_t *)(uintptr_t)data;
	int fd = p->st.fd;

	switch (call % (flags ? 4 : 6)) {
	case 0: return send(fd, data, n, flags);
	case 1: return sendto(fd, data, n, flags, NULL, 0);
	case 2: msg.msg_iovlen = (size_t)cut(p, from, n, iov); return sendmsg(fd, &msg, flags);
	case 3: return send_many(p, from, n, flags);
	case 4: return write(fd, data, n);
	default: return writev(fd, iov, cut(p, from, n, iov));
	}
}

ssize_t calls_send(struct party *p, const uint8_t *data, size_t n, int flags)
{
	return calls_send_by(p, (unsigned)random_next(&p->own), data, n, flags);
}

static ssize_t recv_message(struct party *p, uint8_t *data, size_t n, int flags)
{
	struct iovec iov[PIECES];
	char control[64], name[64];
	struct msghdr msg = { .msg_iov = iov, .msg_control = control, .msg_name = name };
	ssize_t got;

	msg.msg_controllen = sizeof(control);
	msg.msg_namelen = sizeof(name);
	msg.msg_iovlen = (size_t)cut(p, data, n, iov);
	got = recvmsg(p->st.fd, &msg, flags);
	if (got >= 0 && (msg.msg_controllen || msg.msg_namelen || msg.msg_flags & ~MSG_TRUNC))
		equiv_bad(p, "recvmsg: control %zu, name %u, flags %x", msg.msg_controllen,
			  msg.msg_namelen, (unsigned)msg.msg_flags);
	return got;
}

static ssize_t recv_many(struct party *p, uint8_t *data, size_t n, int flags)
{
	struct iovec iov[PIECES];
	struct mmsghdr msgs[PIECES] = { 0 };
	/* Pieces that come short leave a gap, and an empty one waits for octets of the next move. */
	bool single = !(flags & MSG_WAITALL) || flags & (MSG_PEEK | MSG_TRUNC);
	int count = cut(p, data, n, iov), done;
	ssize_t sum = 0;

	for (int i = 0; i < count; i++) {
		single |= iov[i].iov_len == 0;
		msgs[i].msg_hdr.msg_iov = &iov[i];
		msgs[i].msg_hdr.msg_iovlen = 1;
	}
	if (single) {
		iov[0] = (struct iovec) { data, n };
		count = 1;
	}
	done = recvmmsg(p->st.fd, msgs, (unsigned)count, flags, NULL);
	if (done < 0)
		return -1;
	for (int i = 0; i < done; i++)
		sum += msgs[i].msg_len;
	return sum;
}

ssize_t calls_recv_by(struct party *p, unsigned call, uint8_t *data, size_t n, int flags)
{
	struct iovec iov[PIECES];
	struct sockaddr_storage from;
	socklen_t len = sizeof(from);
	int fd = p->st.fd;
	ssize_t got;

	switch (call % (flags ? 4 : 6)) {
	case 0: return recv(fd, data, n, flags);
	case 1:
		got = recvfrom(fd, data, n, flags, (struct sockaddr *)&from, &len);
		if (got >= 0 && len != 0)
			equiv_bad(p, "recvfrom: an address of %u octets", len);
		return got;
	case 2: return recv_message(p, data, n, flags);
	case 3: return recv_many(p, data, n, flags);
	case 4: return read(fd, data, n);
	default: return readv(fd, iov, cut(p, data, n, iov));
	}
}

ssize_t calls_recv(struct party *p, uint8_t *data, size_t n, int flags)
{
	return calls_recv_by(p, (unsigned)random_next(&p->own), data, n, flags);
}

void calls_put(struct party *p, size_t n)
{
	struct flow *out = &p->st.out;
	int flags;
	size_t len;
	ssize_t sent;

	while (n) {
		len = random_below(&p->own, 3) ? n : 1 + random_below(&p->own, (uint32_t)n);
		if (len > sizeof(buffer))
			len = sizeof(buffer);
		flags = random_below(&p->own, 2) ? 0 : MSG_NOSIGNAL;
		if (len < n && random_below(&p->own, 8) == 0)
			flags |= MSG_MORE;
		flow_fill(out, buffer, len);
		sent = calls_send(p, buffer, len, flags);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0 || (size_t)sent > len)
			stage_die(&p->st, "%d %s: send of %zu at %llu: %zd %s", p->step, p->move,
				  len, (unsigned long long)out->at, sent, stage_errno(errno));
		out->at += (size_t)sent;
		n -= (size_t)sent;
	}
}

/* Reads once for calls_take(), in one of the ways that can be mixed. */
static ssize_t take_piece(struct party *p, size_t len)
{
	uint32_t kind = random_below(&p->own, 10);
	ssize_t got, peeked;

	if (kind == 0) {
		/* Octets that are thrown away are not compared: their number is. */
		got = recv(p->st.fd, NULL, len, MSG_TRUNC);
		if (got > 0)
			p->st.in.at += (size_t)got;
		return got;
	}
	if (kind == 1) {
		peeked = calls_recv(p, buffer, len, MSG_PEEK);
		if (peeked > 0 && flow_match(&p->st.in, buffer, (size_t)peeked) < (size_t)peeked)
			equiv_bad(p, "a foreign octet seen by MSG_PEEK after %llu",
				  (unsigned long long)p->st.in.at);
		if (peeked > 0 && (size_t)peeked < len)
			len = (size_t)peeked;
	}
	got = calls_recv(p, buffer, len, kind < 4 ? MSG_WAITALL : 0);
	if (got > 0 && kind < 4 && (size_t)got != len)
		equiv_bad(p, "MSG_WAITALL gave %zd of %zu", got, len);
	if (got > 0)
		stage_took(&p->st, buffer, (size_t)got);
	return got;
}

void calls_take(struct party *p, size_t n)
{
	size_t len;
	ssize_t got;

	while (n) {
		len = random_below(&p->own, 3) ? n : 1 + random_below(&p->own, (uint32_t)n);
		if (len > sizeof(buffer))
			len = sizeof(buffer);
		got = take_piece(p, len);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0 || (size_t)got > len)
			stage_die(&p->st, "%d %s: recv of %zu at %llu: %zd %s", p->step, p->move,
				  len, (unsigned long long)p->st.in.at, got, stage_errno(errno));
		n -= (size_t)got;
	}
}

bool calls_nonblocking(struct party *p, bool on)
{
	int yes = on, flags = fcntl(p->st.fd, F_GETFL);
	bool was = flags & O_NONBLOCK;

	if (random_below(&p->own, 2))
		ioctl(p->st.fd, FIONBIO, &yes);
	else
		fcntl(p->st.fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
	flags = fcntl(p->st.fd, F_GETFL);
	if (!!(flags & O_NONBLOCK) != on)
		equiv_bad(p, "O_NONBLOCK is not %d", on);
	return was;
}
