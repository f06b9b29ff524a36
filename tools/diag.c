/* SPDX-License-Identifier: MIT */
#include "diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool ask(int fd, int family)
{
	struct {
		struct nlmsghdr header;
		struct inet_diag_req_v2 body;
	} request = {
		.header = { .nlmsg_len = sizeof(request),
			    .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
		.body = { .sdiag_family = (uint8_t)family,
			  .sdiag_protocol = IPPROTO_TCP,
			  .idiag_ext = 1 << (INET_DIAG_INFO - 1),
			  .idiag_states = UINT32_MAX },
	};

	return send(fd, &request, sizeof(request), 0) == (ssize_t)sizeof(request);
}

/* Kernels of other ages have a shorter or a longer tcp_info. */
static void take_info(struct diag_socket *s, const void *data, size_t length)
{
	struct tcp_info info;

	memset(&info, 0, sizeof(info));
	memcpy(&info, data, length < sizeof(info) ? length : sizeof(info));
	s->received = info.tcpi_bytes_received;
	s->sent = info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
}

static bool add(struct diag *diag, const struct diag_socket *s)
{
	/* Grows whenever the number is a power of two from 64 on. */
	if (diag->n == 0 || (diag->n >= 64 && (diag->n & (diag->n - 1)) == 0)) {
		size_t room = diag->n ? 2 * diag->n : 64;
		struct diag_socket *more = realloc(diag->sockets, room * sizeof(*more));

		if (!more)
			return false;
		diag->sockets = more;
	}
	diag->sockets[diag->n++] = *s;
	return true;
}

static void take_end(uint8_t end[18], uint8_t family, const uint32_t address[4], uint16_t port)
{
	memcpy(end + (family == AF_INET ? 12 : 0), address, family == AF_INET ? 4 : 16);
	if (family == AF_INET)
		end[10] = end[11] = 0xff;
	memcpy(end + 16, &port, 2);
}

static bool take_message(struct diag *diag, const struct nlmsghdr *h)
{
	struct diag_socket s = { 0 };
	const struct inet_diag_msg *m = NLMSG_DATA(h);
	const struct rtattr *a = (const struct rtattr *)(m + 1);
	unsigned left;

	if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*m)))
		return true;
	left = h->nlmsg_len - (unsigned)NLMSG_LENGTH(sizeof(*m));
	s.cookie = (uint64_t)m->id.idiag_cookie[1] << 32 | m->id.idiag_cookie[0];
	s.uid = m->idiag_uid;
	s.inode = m->idiag_inode;
	take_end(s.ends, m->idiag_family, m->id.idiag_src, m->id.idiag_sport);
	take_end(s.ends + 18, m->idiag_family, m->id.idiag_dst, m->id.idiag_dport);
	for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type == INET_DIAG_INFO)
			take_info(&s, RTA_DATA(a), RTA_PAYLOAD(a));
	}
	return add(diag, &s);
}

/* Until the end of the dump. */
static void take_all(struct diag *diag, int fd)
{
	static _Alignas(8) char buffer[64 << 10];

	for (;;) {
		ssize_t got = recv(fd, buffer, sizeof(buffer), 0);
		const struct nlmsghdr *h = (const struct nlmsghdr *)buffer;
		unsigned left = got > 0 ? (unsigned)got : 0;

		if (got <= 0)
			return;
		for (; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
			if (h->nlmsg_type == NLMSG_DONE || h->nlmsg_type == NLMSG_ERROR)
				return;
			if (h->nlmsg_type == SOCK_DIAG_BY_FAMILY && !take_message(diag, h))
				return;
		}
	}
}

static int by_cookie(const void *a, const void *b)
{
	uint64_t x = ((const struct diag_socket *)a)->cookie;
	uint64_t y = ((const struct diag_socket *)b)->cookie;

	return x < y ? -1 : x > y;
}

static int compare_ends(const void *a, const void *b, void *sockets)
{
	const struct diag_socket *s = sockets;

	return memcmp(s[*(const uint32_t *)a].ends, s[*(const uint32_t *)b].ends, sizeof(s->ends));
}

static void sort_by_ends(struct diag *diag)
{
	diag->by_ends = diag->n ? malloc(diag->n * sizeof(*diag->by_ends)) : NULL;
	if (!diag->by_ends)
		return;
	for (size_t i = 0; i < diag->n; i++)
		diag->by_ends[i] = (uint32_t)i;
	qsort_r(diag->by_ends, diag->n, sizeof(*diag->by_ends), compare_ends, diag->sockets);
}

void diag_read(struct diag *diag)
{
	static const int families[] = { AF_INET, AF_INET6 };

	memset(diag, 0, sizeof(*diag));
	for (size_t i = 0; i < 2; i++) {
		int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

		if (fd < 0)
			return;
		if (ask(fd, families[i]))
			take_all(diag, fd);
		close(fd);
	}
	if (diag->n)
		qsort(diag->sockets, diag->n, sizeof(*diag->sockets), by_cookie);
	sort_by_ends(diag);
}

void diag_free(struct diag *diag)
{
	free(diag->by_ends);
	free(diag->sockets);
	memset(diag, 0, sizeof(*diag));
}

const struct diag_socket *diag_find(const struct diag *diag, uint64_t cookie)
{
	struct diag_socket key = { .cookie = cookie };

	return diag->n ? bsearch(&key, diag->sockets, diag->n, sizeof(key), by_cookie) : NULL;
}

const struct diag_socket *diag_find_ends(const struct diag *diag, const uint8_t ends[36])
{
	size_t low = 0, high = diag->by_ends ? diag->n : 0;

	while (low < high) {
		size_t middle = (low + high) / 2;
		const struct diag_socket *s = &diag->sockets[diag->by_ends[middle]];
		int order = memcmp(s->ends, ends, sizeof(s->ends));

		if (order == 0)
			return s;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}
