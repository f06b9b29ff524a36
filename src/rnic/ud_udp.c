/* SPDX-License-Identifier: MIT */
/* Datagrams over UDP: the sockets of a queue pair, what comes there and what goes out. */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/util.h"
#include "rnic/address.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"
#include "rnic/ud_priv.h"

#define ROUNDS 32 /* datagrams before other sockets get their turn */
#define HOPS   64 /* where the kernel does not say */
/* What the kernel is asked for; it gives what the system allows. */
#define BUFFER (4 * 1024 * 1024)

/* ---- receiving ---- */

/* Of both kinds, as the kernel may tell both. */
union ancillary {
	struct cmsghdr align;
	uint8_t room[CMSG_SPACE(sizeof(struct in6_pktinfo)) +
		     CMSG_SPACE(sizeof(struct in_pktinfo)) + 4 * CMSG_SPACE(sizeof(int))];
};

static void set_address(uint8_t to[16], const struct sockaddr_storage *a)
{
	memset(to, 0, 16);
	memcpy(to, address_octets(a), a->ss_family == AF_INET ? 4 : 16);
}

/* The traffic class of IPv4 comes as an octet. */
static uint8_t small(const struct cmsghdr *c)
{
	int n = 0;

	if (c->cmsg_len < CMSG_LEN(sizeof(n)))
		return *CMSG_DATA(c);
	memcpy(&n, CMSG_DATA(c), sizeof(n));
	return (uint8_t)n;
}

static void read_ipv6(const struct cmsghdr *c, struct sockaddr_storage *to,
		      struct datagram_way *way)
{
	struct in6_pktinfo info;

	switch (c->cmsg_type) {
	case IPV6_PKTINFO:
		memcpy(&info, CMSG_DATA(c), sizeof(info));
		to->ss_family = AF_INET6;
		address_set_octets(to, info.ipi6_addr.s6_addr, 0);
		break;
	case IPV6_HOPLIMIT: way->hops = small(c); break;
	case IPV6_TCLASS: way->tclass = small(c); break;
	default: break;
	}
}

static void read_ipv4(const struct cmsghdr *c, struct sockaddr_storage *to,
		      struct datagram_way *way)
{
	struct in_pktinfo info;

	switch (c->cmsg_type) {
	case IP_PKTINFO:
		memcpy(&info, CMSG_DATA(c), sizeof(info));
		to->ss_family = AF_INET;
		address_set_octets(to, (const uint8_t *)&info.ipi_addr, 0);
		break;
	case IP_TTL: way->hops = small(c); break;
	case IP_TOS: way->tclass = small(c); break;
	default: break;
	}
}

/* Where it was sent to and how, as the kernel tells. */
static void read_way(struct ud_socket *s, struct msghdr *msg, const struct sockaddr_storage *from,
		     struct datagram_way *way)
{
	struct sockaddr_storage to = { 0 };

	*way = (struct datagram_way) { .ipv6 = from->ss_family == AF_INET6, .hops = HOPS };
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level == IPPROTO_IPV6)
			read_ipv6(c, &to, way);
		else if (c->cmsg_level == IPPROTO_IP)
			read_ipv4(c, &to, way);
	}
	to = address_plain(&to);
	if (to.ss_family != from->ss_family) /* the kernel did not say */
		to = s->group.ss_family ? s->group : *from;
	set_address(way->from, from);
	set_address(way->to, &to);
}

/* One datagram. false: there is none. */
static bool receive(struct ud_socket *s)
{
	struct qp *q = s->qp;
	uint8_t *buf = q->engine->scratch;
	bool group = s->group.ss_family;
	union ancillary control;
	struct sockaddr_storage from = { 0 };
	/* One octet more than is allowed, to see what is too long. */
	struct iovec iov = { buf, DATAGRAM_HEAD + DATAGRAM_MAX + 1 };
	struct msghdr msg = { .msg_name = &from,
			      .msg_namelen = sizeof(from),
			      .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	struct datagram_way way;
	struct datagram d;
	ssize_t n;

	do {
		n = recvmsg(s->io.fd, &msg, MSG_DONTWAIT);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return false;
	from = address_plain(&from);
	read_way(s, &msg, &from, &way);
	if (group && datagram_decode(&d, buf, (size_t)n) && ud_cast_has(s, &d, &way))
		return true;
	ud_take(q, group, buf, buf + DATAGRAM_HEAD, (size_t)n, &way, false);
	return true;
}

_Static_assert(ENGINE_SCRATCH > DATAGRAM_HEAD + DATAGRAM_MAX, "a datagram stands in the scratch");

void ud_ready(struct engine_io *io, uint32_t events)
{
	struct ud_socket *s = container_of(io, struct ud_socket, io);
	struct engine *e = s->qp->engine;

	(void)events;
	for (int i = 0; i < ROUNDS && receive(s); i++) {
		e->hot = io;
		e->idle_polls = 0;
	}
}

/* ---- sending ---- */

/* As the socket wants it. */
static struct sockaddr_storage for_socket(const struct ud *u, const struct sockaddr_storage *a)
{
	return u->family == AF_INET6 ? address_mapped(a) : *a;
}

static void add(struct msghdr *msg, union ancillary *control, int level, int type, const void *data,
		size_t len)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)(control->room + msg->msg_controllen);

	memset(c, 0, CMSG_SPACE(len));
	*c = (struct cmsghdr) { CMSG_LEN(len), level, type };
	memcpy(CMSG_DATA(c), data, len);
	msg->msg_control = control;
	msg->msg_controllen += CMSG_SPACE(len);
}

static void add_source(const struct ud *u, const struct ud_ah *ah, struct msghdr *msg,
		       union ancillary *control)
{
	struct sockaddr_storage from = for_socket(u, &ah->local);

	if (!ah->local.ss_family)
		return;
	if (u->family == AF_INET6) {
		struct in6_pktinfo info = {
			.ipi6_addr = ((struct sockaddr_in6 *)&from)->sin6_addr,
			.ipi6_ifindex = ((struct sockaddr_in6 *)&from)->sin6_scope_id
		};

		add(msg, control, IPPROTO_IPV6, IPV6_PKTINFO, &info, sizeof(info));
	} else {
		struct in_pktinfo info = {
			.ipi_spec_dst = ((struct sockaddr_in *)&from)->sin_addr
		};

		add(msg, control, IPPROTO_IP, IP_PKTINFO, &info, sizeof(info));
	}
}

/* The kernel asks for those of the address, whatever the socket is. */
static void add_way(const struct ud_ah *ah, struct msghdr *msg, union ancillary *control)
{
	bool ipv6 = ah->way.ipv6;
	int hops = ah->way.hops, tclass = ah->way.tclass;

	if (hops)
		add(msg, control, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_HOPLIMIT : IP_TTL,
		    &hops, sizeof(hops));
	if (tclass)
		add(msg, control, ipv6 ? IPPROTO_IPV6 : IPPROTO_IP, ipv6 ? IPV6_TCLASS : IP_TOS,
		    &tclass, sizeof(tclass));
}

ssize_t ud_transmit(struct qp *q, const struct ud_ah *ah, uint32_t qpn, const struct tx_pieces *p)
{
	struct sockaddr_storage to = for_socket(q->ud, &ah->remote);
	union ancillary control;
	struct msghdr msg = { .msg_name = &to,
			      .msg_namelen = address_len(&to),
			      .msg_iov = (struct iovec *)p->iov,
			      .msg_iovlen = p->n };
	ssize_t n;

	address_set_port(&to, ah->group ? DATAGRAM_GROUP_PORT : ud_port(qpn));
	add_source(q->ud, ah, &msg, &control);
	add_way(ah, &msg, &control);
	do {
		n = sendmsg(q->ud->own.io.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	q->ud->udp_sent++;
	return n;
}

/* ---- sockets ---- */

static void set(int fd, int level, int name, int value)
{
	setsockopt(fd, level, name, &value, sizeof(value));
}

int ud_open_socket(int family)
{
	int fd = fd_keep(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	set(fd, SOL_SOCKET, SO_RCVBUF, BUFFER);
	set(fd, SOL_SOCKET, SO_SNDBUF, BUFFER);
	if (family == AF_INET6) {
		set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
		set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
		set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
		set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
	} else {
		set(fd, IPPROTO_IP, IP_PKTINFO, 1);
	}
	/* IPv4 may come to both. */
	set(fd, IPPROTO_IP, IP_RECVTTL, 1);
	set(fd, IPPROTO_IP, IP_RECVTOS, 1);
	return fd;
}

static int bind_any(int family, uint16_t *port)
{
	struct sockaddr_storage any = { .ss_family = (sa_family_t)family };
	socklen_t len = address_len(&any);
	int fd = ud_open_socket(family), rc;

	if (fd < 0)
		return fd;
	if (bind(fd, (struct sockaddr *)&any, len) < 0 ||
	    getsockname(fd, (struct sockaddr *)&any, &len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	*port = address_port(&any);
	return fd;
}

static uint8_t ask_hops(int fd, int level, int name)
{
	int hops = 0;
	socklen_t len = sizeof(hops);

	return getsockopt(fd, level, name, &hops, &len) == 0 && hops > 0 && hops < 256
		       ? (uint8_t)hops
		       : HOPS;
}

int ud_open_own(struct ud *u, uint16_t *port)
{
	int fd;

	u->family = AF_INET6;
	fd = bind_any(AF_INET6, port);
	if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL) {
		u->family = AF_INET;
		fd = bind_any(AF_INET, port);
	}
	if (fd < 0)
		return fd;
	u->hops[0] = ask_hops(fd, IPPROTO_IP, IP_TTL);
	u->hops[1] = ask_hops(fd, IPPROTO_IPV6, IPV6_UNICAST_HOPS);
	return fd;
}
