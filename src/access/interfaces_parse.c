/* SPDX-License-Identifier: MIT */
/*
 * Messages of NETLINK_ROUTE. Every length is checked against what is really there, and fields are
 * copied out, so that neither a kernel of another age nor a hole in a sandbox can lead us astray.
 */
#include <errno.h>
#include <linux/if.h>
#include <linux/if_addr.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <string.h>
#include <sys/socket.h>

#include "access/interfaces_priv.h"

/* Devices of these types have no IP; all others have it or may get it. */
static bool type_carries_ip(unsigned type)
{
	switch (type) {
	case ARPHRD_CAN:
	case ARPHRD_IEEE80211: /* monitors */
	case ARPHRD_IEEE80211_PRISM:
	case ARPHRD_IEEE80211_RADIOTAP:
	case ARPHRD_IEEE802154:
	case ARPHRD_IEEE802154_MONITOR:
	case ARPHRD_PHONET:
	case ARPHRD_PHONET_PIPE:
	case ARPHRD_CAIF:
	case ARPHRD_NETLINK:
	case ARPHRD_VSOCKMON:
	case 290: /* ARPHRD_MCTP, unknown to older headers */ return false;
	default: return true;
	}
}

/* A walk through attributes. */
struct attributes {
	const uint8_t *at;
	size_t left;
};

struct attribute {
	unsigned type;
	const uint8_t *value;
	size_t len;
};

/* 1: `a` is the next one, 0: no more, -EBADMSG. */
static int next_attribute(struct attributes *all, struct attribute *a)
{
	struct rtattr header;
	size_t whole;

	if (all->left < sizeof(header))
		return all->left ? -EBADMSG : 0;
	memcpy(&header, all->at, sizeof(header));
	if (header.rta_len < sizeof(header) || header.rta_len > all->left)
		return -EBADMSG;
	a->type = header.rta_type & NLA_TYPE_MASK;
	a->value = all->at + RTA_LENGTH(0);
	a->len = header.rta_len - RTA_LENGTH(0);
	/* The last one may come without its padding. */
	whole = RTA_ALIGN(header.rta_len);
	if (whole > all->left)
		whole = all->left;
	all->at += whole;
	all->left -= whole;
	return 1;
}

/* Into a number or address of exactly this size. */
static int copy_value(void *to, size_t size, const struct attribute *a)
{
	if (a->len != size)
		return -EBADMSG;
	memcpy(to, a->value, size);
	return 0;
}

static int copy_name(struct if_record *r, const struct attribute *a)
{
	size_t len = strnlen((const char *)a->value, a->len);

	if (len == 0 || len == a->len || len >= sizeof(r->name))
		return -EBADMSG;
	memset(r->name, 0, sizeof(r->name));
	memcpy(r->name, a->value, len);
	r->has_name = true;
	return 0;
}

static int parse_link(struct if_record *r, const uint8_t *body, size_t len)
{
	struct ifinfomsg info;
	struct attributes all;
	struct attribute a;
	int rc;

	if (len < sizeof(info))
		return -EBADMSG;
	memcpy(&info, body, sizeof(info));
	/* Bridges speak of their ports in the same group; a port that leaves is not gone. */
	if (info.ifi_family != AF_UNSPEC || info.ifi_index <= 0) {
		r->kind = IF_OTHER;
		return 0;
	}
	r->index = (uint32_t)info.ifi_index;
	r->up = info.ifi_flags & IFF_UP;
	r->running = info.ifi_flags & IFF_RUNNING;
	r->carries_ip = type_carries_ip(info.ifi_type);
	all.at = body + sizeof(info); /* a multiple of four */
	all.left = len - sizeof(info);
	while ((rc = next_attribute(&all, &a)) > 0) {
		if (a.type == IFLA_IFNAME) {
			rc = copy_name(r, &a);
		} else if (a.type == IFLA_MTU) {
			rc = copy_value(&r->mtu, sizeof(r->mtu), &a);
			r->has_mtu = true;
		}
		if (rc < 0)
			return rc;
	}
	return rc;
}

/* What the attributes of an address said. */
struct address_parts {
	size_t size; /* of an address */
	bool has_local, has_address;
	uint32_t flags;
};

static int address_attribute(struct if_record *r, struct address_parts *p,
			     const struct attribute *a)
{
	switch (a->type) {
	case IFA_LOCAL: p->has_local = true; return copy_value(r->key.local, p->size, a);
	case IFA_ADDRESS: p->has_address = true; return copy_value(r->key.peer, p->size, a);
	case IFA_FLAGS: return copy_value(&p->flags, sizeof(p->flags), a);
	default: return 0;
	}
}

static int parse_address(struct if_record *r, const uint8_t *body, size_t len)
{
	struct ifaddrmsg info;
	struct attributes all;
	struct attribute a;
	struct address_parts p = { 0 };
	int rc;

	if (len < sizeof(info))
		return -EBADMSG;
	memcpy(&info, body, sizeof(info));
	if ((info.ifa_family != AF_INET && info.ifa_family != AF_INET6) || !info.ifa_index) {
		r->kind = IF_OTHER;
		return 0;
	}
	r->index = info.ifa_index;
	r->key.family = info.ifa_family;
	r->key.prefix = info.ifa_prefixlen;
	p.flags = info.ifa_flags;
	p.size = info.ifa_family == AF_INET ? 4 : 16;
	all.at = body + sizeof(info); /* a multiple of four */
	all.left = len - sizeof(info);
	while ((rc = next_attribute(&all, &a)) > 0) {
		rc = address_attribute(r, &p, &a);
		if (rc < 0)
			return rc;
	}
	if (rc < 0 || (!p.has_local && !p.has_address))
		return -EBADMSG;
	/* Without a peer, IPv6 has only the one, and IPv4 both alike. */
	if (!p.has_local)
		memcpy(r->key.local, r->key.peer, p.size);
	if (info.ifa_family == AF_INET6) {
		r->key.prefix = 0;
		memset(r->key.peer, 0, sizeof(r->key.peer));
	}
	r->usable = !(p.flags & IFA_F_DADFAILED) &&
		    (!(p.flags & IFA_F_TENTATIVE) || p.flags & IFA_F_OPTIMISTIC);
	return 0;
}

/* The end of a dump and the answer to a request begin with an errno; old kernels end without. */
static int parse_error(struct if_record *r, const uint8_t *body, size_t len)
{
	int32_t error = 0;

	if (len >= sizeof(error))
		memcpy(&error, body, sizeof(error));
	else if (r->kind == IF_ERROR)
		return -EBADMSG;
	/* A success may be a positive number, but nothing else is an errno. */
	r->error = error < 0 && error >= -4095 ? error : 0;
	return 0;
}

static int parse_body(struct if_record *r, unsigned type, const uint8_t *body, size_t len)
{
	switch (type) {
	case NLMSG_DONE: r->kind = IF_DONE; return parse_error(r, body, len);
	case NLMSG_ERROR: r->kind = IF_ERROR; return parse_error(r, body, len);
	case NLMSG_OVERRUN: r->kind = IF_OVERRUN; return 0;
	case RTM_NEWLINK: r->kind = IF_LINK; return parse_link(r, body, len);
	case RTM_DELLINK: r->kind = IF_LINK_GONE; return parse_link(r, body, len);
	case RTM_NEWADDR: r->kind = IF_ADDRESS; return parse_address(r, body, len);
	case RTM_DELADDR: r->kind = IF_ADDRESS_GONE; return parse_address(r, body, len);
	default: return 0;
	}
}

ssize_t interfaces_parse(const void *buf, size_t len, if_record_fn fn, void *arg)
{
	const uint8_t *octets = buf;
	size_t at = 0;

	while (at < len) {
		struct if_record r = { 0 };
		struct nlmsghdr header;
		size_t whole;
		int rc;

		if (len - at < sizeof(header))
			return -EBADMSG;
		memcpy(&header, octets + at, sizeof(header));
		if (header.nlmsg_len < sizeof(header) || header.nlmsg_len > len - at)
			return -EBADMSG;
		r.seq = header.nlmsg_seq;
		r.port = header.nlmsg_pid;
		r.interrupted = header.nlmsg_flags & NLM_F_DUMP_INTR;
		rc = parse_body(&r, header.nlmsg_type, octets + at + sizeof(header),
				header.nlmsg_len - sizeof(header));
		if (rc < 0)
			return rc;
		/* 64-bit arithmetic: the sum can not wrap. The last may come without padding. */
		whole = (size_t)NLMSG_ALIGN((uint64_t)header.nlmsg_len);
		at = whole < len - at ? at + whole : len;
		if (fn(&r, arg))
			break;
	}
	return (ssize_t)at;
}
