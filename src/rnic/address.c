/* SPDX-License-Identifier: MIT */
#include "rnic/address.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>

struct sockaddr_storage address_plain(const struct sockaddr_storage *a)
{
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)a;
	struct sockaddr_storage to = *a;
	struct sockaddr_in *v4 = (struct sockaddr_in *)&to;

	if (a->ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return to;
	memset(&to, 0, sizeof(to));
	v4->sin_family = AF_INET;
	v4->sin_port = v6->sin6_port;
	memcpy(&v4->sin_addr, v6->sin6_addr.s6_addr + 12, sizeof(v4->sin_addr));
	return to;
}

struct sockaddr_storage address_mapped(const struct sockaddr_storage *a)
{
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)a;
	struct sockaddr_storage to = *a;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&to;

	if (a->ss_family != AF_INET)
		return to;
	memset(&to, 0, sizeof(to));
	v6->sin6_family = AF_INET6;
	v6->sin6_port = v4->sin_port;
	v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
	memcpy(v6->sin6_addr.s6_addr + 12, &v4->sin_addr, sizeof(v4->sin_addr));
	return to;
}

int address_keep(struct sockaddr_storage *to, const struct sockaddr *from, socklen_t len)
{
	struct sockaddr_storage raw = { 0 };

	if (!from || len < sizeof(from->sa_family) || len > sizeof(raw))
		return -EINVAL;
	memcpy(&raw, from, len);
	if ((raw.ss_family != AF_INET && raw.ss_family != AF_INET6) || len < address_len(&raw))
		return -EINVAL;
	*to = address_plain(&raw);
	address_set_port(to, 0);
	return 0;
}

bool address_is_same_host(const struct sockaddr_storage *x, const struct sockaddr_storage *y)
{
	struct sockaddr_storage a = address_plain(x), b = address_plain(y);

	if (a.ss_family != b.ss_family)
		return false;
	if (a.ss_family == AF_INET)
		return ((struct sockaddr_in *)&a)->sin_addr.s_addr ==
		       ((struct sockaddr_in *)&b)->sin_addr.s_addr;
	return IN6_ARE_ADDR_EQUAL(&((struct sockaddr_in6 *)&a)->sin6_addr,
				  &((struct sockaddr_in6 *)&b)->sin6_addr);
}

bool address_is_group(const struct sockaddr_storage *a)
{
	if (a->ss_family == AF_INET)
		return IN_MULTICAST(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr));
	return IN6_IS_ADDR_MULTICAST(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

socklen_t address_len(const struct sockaddr_storage *a)
{
	return a->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

const uint8_t *address_octets(const struct sockaddr_storage *a)
{
	if (a->ss_family == AF_INET)
		return (const uint8_t *)&((const struct sockaddr_in *)a)->sin_addr;
	return ((const struct sockaddr_in6 *)a)->sin6_addr.s6_addr;
}

void address_set_octets(struct sockaddr_storage *a, const uint8_t *octets, uint32_t scope)
{
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)a;

	if (a->ss_family == AF_INET) {
		memcpy(&((struct sockaddr_in *)a)->sin_addr, octets, 4);
		return;
	}
	memcpy(v6->sin6_addr.s6_addr, octets, sizeof(v6->sin6_addr.s6_addr));
	v6->sin6_scope_id = scope;
}

/* The port stands at the same place in both. */
uint16_t address_port(const struct sockaddr_storage *a)
{
	return ntohs(((const struct sockaddr_in *)a)->sin_port);
}

void address_set_port(struct sockaddr_storage *a, uint16_t port)
{
	((struct sockaddr_in *)a)->sin_port = htons(port);
}
