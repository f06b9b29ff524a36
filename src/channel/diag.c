/* SPDX-License-Identifier: MIT */
#include "channel/diag.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <string.h>

#include "base/own.h"
#include "base/sys.h"
#include "base/util.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

static void fill_diag(struct inet_diag_sockid *id, const struct sockaddr_in6 *src,
		      const struct sockaddr_in6 *dst, bool v4)
{
	id->idiag_sport = src->sin6_port;
	id->idiag_dport = dst->sin6_port;
	id->idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	memcpy(id->idiag_src, src->sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
	memcpy(id->idiag_dst, dst->sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
}

static uint32_t find_unsent(const struct rtattr *a, size_t left)
{
	struct tcp_info info;

	for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type != INET_DIAG_INFO)
			continue;
		memset(&info, 0, sizeof(info));
		memcpy(&info, RTA_DATA(a), min_size(RTA_PAYLOAD(a), sizeof(info)));
		return info.tcpi_notsent_bytes;
	}
	return 0;
}

bool diag_peer(const struct sockaddr_in6 *self, const struct sockaddr_in6 *peer, struct diag *out)
{
	bool v4 = IN6_IS_ADDR_V4MAPPED(&self->sin6_addr);
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 req;
	} ask = {
		.head = { .nlmsg_len = sizeof(ask),
			  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			  .nlmsg_flags = NLM_F_REQUEST },
		.req = { .sdiag_family = v4 ? AF_INET : AF_INET6,
			 .sdiag_protocol = IPPROTO_TCP,
			 .idiag_ext = 1 << (INET_DIAG_INFO - 1),
			 .idiag_states = ~0u },
	};
	struct {
		struct nlmsghdr head;
		struct inet_diag_msg msg;
		_Alignas(struct rtattr) uint8_t rest[1024];
	} answer;
	int fd = own_new(sys_socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
	ssize_t n = -1;

	if (fd < 0)
		return false;
	fill_diag(&ask.req.id, peer, self, v4);
	if (sys_send(fd, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask))
		n = sys_recv(fd, &answer, sizeof(answer), 0);
	own_close(fd);
	if (n < (ssize_t)(sizeof(answer.head) + sizeof(answer.msg)) ||
	    answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return false;
	out->cookie = answer.msg.id.idiag_cookie[0] | (uint64_t)answer.msg.id.idiag_cookie[1] << 32;
	out->uid = answer.msg.idiag_uid;
	out->inode = answer.msg.idiag_inode;
	out->unread = answer.msg.idiag_rqueue;
	out->unsent = find_unsent((const struct rtattr *)answer.rest,
				  (size_t)n - offsetof(typeof(answer), rest));
	return true;
}

uint64_t diag_netns(void)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	int fd = own_new(sys_socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	if (fd >= 0) {
		sys_getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size);
		own_close(fd);
	}
	return cookie;
}
