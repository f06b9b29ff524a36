/* SPDX-License-Identifier: MIT */
#include "rnic/route.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>

#include "base/own.h"
#include "base/sys.h"
#include "rnic/address.h"

struct question {
	struct nlmsghdr head;
	struct rtmsg route;
	_Alignas(NLMSG_ALIGNTO) uint8_t attributes[64];
};

struct answer {
	struct nlmsghdr head;
	struct rtmsg route;
	_Alignas(NLMSG_ALIGNTO) uint8_t attributes[1024];
};

static size_t octets_of(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET ? 4 : 16;
}

static void add(struct question *q, uint16_t type, const void *data, size_t len)
{
	size_t at = q->head.nlmsg_len - offsetof(struct question, attributes);
	struct rtattr a = { .rta_len = (uint16_t)RTA_LENGTH(len), .rta_type = type };

	memcpy(q->attributes + at, &a, sizeof(a));
	memcpy(q->attributes + at + RTA_LENGTH(0), data, len);
	q->head.nlmsg_len += (uint32_t)RTA_SPACE(len);
}

static void ask(struct question *q, const struct sockaddr_storage *to)
{
	uint32_t scope = ((const struct sockaddr_in6 *)to)->sin6_scope_id;

	*q = (struct question) {
		.head = { .nlmsg_len = offsetof(struct question, attributes),
			  .nlmsg_type = RTM_GETROUTE,
			  .nlmsg_flags = NLM_F_REQUEST },
		.route = { .rtm_family = (uint8_t)to->ss_family,
			   .rtm_dst_len = (uint8_t)(8 * octets_of(to)) },
	};
	add(q, RTA_DST, address_octets(to), octets_of(to));
	if (to->ss_family == AF_INET6 && scope)
		add(q, RTA_OIF, &scope, sizeof(scope));
}

static void find_source(const struct answer *a, size_t left, const struct sockaddr_storage *to,
			struct route *out)
{
	const struct rtattr *r = (const struct rtattr *)a->attributes;

	for (; RTA_OK(r, left); r = RTA_NEXT(r, left)) {
		if (r->rta_type != RTA_PREFSRC || RTA_PAYLOAD(r) != octets_of(to))
			continue;
		out->source.ss_family = to->ss_family;
		address_set_octets(&out->source, RTA_DATA(r), 0);
	}
}

bool route_look(const struct sockaddr_storage *to, struct route *out)
{
	int fd = own_new(sys_socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
	struct answer answer;
	struct question q;
	ssize_t n = -1;

	*out = (struct route) { 0 };
	if (fd < 0)
		return false;
	ask(&q, to);
	/* The kernel answers within the call that asks. */
	if (sys_send(fd, &q, q.head.nlmsg_len, 0) == (ssize_t)q.head.nlmsg_len)
		n = sys_recv(fd, &answer, sizeof(answer), 0);
	own_close(fd);
	if (n < (ssize_t)offsetof(struct answer, attributes) ||
	    answer.head.nlmsg_type != RTM_NEWROUTE || answer.route.rtm_family != to->ss_family)
		return false;
	out->local = answer.route.rtm_type == RTN_LOCAL;
	find_source(&answer, (size_t)n - offsetof(struct answer, attributes), to, out);
	return true;
}
