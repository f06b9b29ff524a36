/* SPDX-License-Identifier: MIT */
/*
 * Groups of datagram queue pairs, and address handles. The kernel gives what is sent to a group to every socket that is bound
 * to it, so members of one process and of several are alike.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "rnic/address.h"
#include "rnic/qp.h"
#include "rnic/ud_priv.h"
#include "wire/datagram.h"

/* ---- address handles ---- */

static void describe(struct ud_ah *ah, const struct flue_ah_attr *attr)
{
	size_t n = ah->remote.ss_family == AF_INET6 ? 16 : 4;

	ah->way = (struct datagram_way) { .ipv6 = n == 16,
					  .hops = attr->hop_limit,
					  .tclass = attr->traffic_class };
	memcpy(ah->way.to, address_octets(&ah->remote), n);
	if (ah->local.ss_family)
		memcpy(ah->way.from, address_octets(&ah->local), n);
	if (n == 16)
		ah->scope = ((struct sockaddr_in6 *)&ah->remote)->sin6_scope_id;
}

int ud_ah_create(struct rnic_pd *pd, const struct flue_ah_attr *attr, struct ud_ah **out)
{
	struct ud_ah *ah = calloc(1, sizeof(*ah));
	int rc;

	if (!ah)
		return -ENOMEM;
	ah->pd = pd;
	rc = address_keep(&ah->remote, attr->remote, attr->remote_len);
	if (!rc && attr->local)
		rc = address_keep(&ah->local, attr->local, attr->local_len);
	if (!rc && attr->local && ah->local.ss_family != ah->remote.ss_family)
		rc = -EINVAL;
	if (rc) {
		free(ah);
		return rc;
	}
	ah->group = address_is_group(&ah->remote);
	describe(ah, attr);
	*out = ah;
	return 0;
}

/* ---- groups ---- */

static struct ud_socket *find(struct qp *q, const struct sockaddr_storage *group)
{
	struct ud_socket *s;

	LIST_FOREACH(s, &q->ud->groups, all) {
		if (address_is_same_host(&s->group, group))
			return s;
	}
	return NULL;
}

static int join(int fd, const struct sockaddr_storage *group, const struct sockaddr_storage *local)
{
	if (group->ss_family == AF_INET) {
		struct ip_mreqn in = { .imr_multiaddr = ((struct sockaddr_in *)group)->sin_addr };

		if (local->ss_family == AF_INET)
			in.imr_address = ((struct sockaddr_in *)local)->sin_addr;
		return setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &in, sizeof(in)) ? -errno : 0;
	}
	struct ipv6_mreq in6 = {
		.ipv6mr_multiaddr = ((struct sockaddr_in6 *)group)->sin6_addr,
		.ipv6mr_interface = ((struct sockaddr_in6 *)group)->sin6_scope_id
	};

	if (!in6.ipv6mr_interface && local->ss_family == AF_INET6)
		in6.ipv6mr_interface = ((struct sockaddr_in6 *)local)->sin6_scope_id;
	return setsockopt(fd, IPPROTO_IPV6, IPV6_JOIN_GROUP, &in6, sizeof(in6)) ? -errno : 0;
}

static int open_group(const struct sockaddr_storage *group, const struct sockaddr_storage *local)
{
	struct sockaddr_storage at = *group;
	int fd = ud_open_socket(group->ss_family), on = 1, rc = 0;

	if (fd < 0)
		return fd;
	address_set_port(&at, DATAGRAM_GROUP_PORT);
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
	    bind(fd, (struct sockaddr *)&at, address_len(&at)) < 0)
		rc = -errno;
	if (!rc)
		rc = join(fd, group, local);
	if (!rc)
		return fd;
	close(fd);
	return rc;
}

static int add_group(struct qp *q, const struct sockaddr_storage *group,
		     const struct sockaddr_storage *local)
{
	struct ud_socket *s;
	int rc;

	if (find(q, group))
		return -EADDRINUSE;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	rc = open_group(group, local);
	if (rc < 0) {
		free(s);
		return rc;
	}
	engine_io_take(&s->io, rc);
	s->io.ready = ud_ready;
	s->qp = q;
	s->group = *group;
	LIST_INIT(&s->subs);
	rc = engine_watch(q->engine, &s->io, EPOLLIN);
	if (rc) {
		engine_io_close(&s->io);
		free(s);
		return rc;
	}
	LIST_INSERT_HEAD(&q->ud->groups, s, all);
	return 0;
}

void ud_drop_group(struct qp *q, struct ud_socket *s)
{
	ud_cast_left(q, s);
	LIST_REMOVE(s, all);
	engine_forget(q->engine, &s->io);
	engine_io_close(&s->io);
	free(s);
}

int ud_join(struct qp *q, const struct sockaddr *group, socklen_t len, const struct sockaddr *local,
	    socklen_t local_len)
{
	struct sockaddr_storage g, from = { 0 };
	int rc = q->ud ? address_keep(&g, group, len) : -EINVAL;

	if (!rc && local)
		rc = address_keep(&from, local, local_len);
	if (rc || !address_is_group(&g))
		return -EINVAL;
	engine_lock(q->engine);
	rc = add_group(q, &g, &from);
	engine_unlock(q->engine);
	return rc;
}

int ud_leave(struct qp *q, const struct sockaddr *group, socklen_t len)
{
	struct sockaddr_storage g;
	struct ud_socket *s;

	if (!q->ud || address_keep(&g, group, len))
		return -EINVAL;
	engine_lock(q->engine);
	s = find(q, &g);
	if (s)
		ud_drop_group(q, s);
	engine_unlock(q->engine);
	return s ? 0 : -EADDRNOTAVAIL;
}
