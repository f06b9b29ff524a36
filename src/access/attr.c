/* SPDX-License-Identifier: MIT */
/* Attribute structures from programs built against older and newer headers. */
#include "access/access_priv.h"

int acc_attr_copy(void *to, size_t to_size, const void *from, size_t first)
{
	const uint8_t *octets = from;
	size_t size;

	if (!from)
		return -EINVAL;
	memcpy(&size, from, sizeof(size));
	if (size < first)
		return -EINVAL;
	/* A newer program asked for something that would silently not happen. */
	for (size_t i = to_size; i < size; i++)
		if (octets[i])
			return -EINVAL;
	memset(to, 0, to_size);
	memcpy(to, from, size < to_size ? size : to_size);
	memcpy(to, &to_size, sizeof(to_size));
	return 0;
}

void acc_copy_out(void *to, size_t to_size, const void *from, size_t size)
{
	memcpy(to, from, to_size < size ? to_size : size);
	if (to_size > size)
		memset((char *)to + size, 0, to_size - size);
}

int acc_check_address(const struct sockaddr *addr, socklen_t len)
{
	/* No more than those who keep it have room for. */
	if (!addr || len < sizeof(addr->sa_family) || len > sizeof(struct sockaddr_storage))
		return -EINVAL;
	switch (addr->sa_family) {
	case AF_INET: return len < sizeof(struct sockaddr_in) ? -EINVAL : 0;
	case AF_INET6: return len < sizeof(struct sockaddr_in6) ? -EINVAL : 0;
	default: return -EINVAL;
	}
}

int acc_check_path(const struct flue_ah_attr *attr)
{
	int rc = acc_check_address(attr->remote, attr->remote_len);

	if (!rc && attr->local)
		rc = acc_check_address(attr->local, attr->local_len);
	if (!rc && attr->local && attr->local->sa_family != attr->remote->sa_family)
		rc = -EINVAL;
	return rc;
}

int acc_path_copy(struct acc_path *to, const struct flue_ah_attr *from)
{
	int rc = acc_attr_copy(&to->attr, sizeof(to->attr), from,
			       ACC_ATTR_SIZE(struct flue_ah_attr, sl));

	if (!rc)
		rc = acc_check_path(&to->attr);
	if (rc)
		return rc;
	memcpy(&to->remote, to->attr.remote, to->attr.remote_len);
	to->attr.remote = (struct sockaddr *)&to->remote;
	if (!to->attr.local)
		return 0;
	memcpy(&to->local, to->attr.local, to->attr.local_len);
	to->attr.local = (struct sockaddr *)&to->local;
	return 0;
}
