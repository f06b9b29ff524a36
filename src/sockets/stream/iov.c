/* SPDX-License-Identifier: MIT */
#include "sockets/stream/iov.h"

#include "base/util.h"

size_t iov_cut(const struct lane_iov *list, size_t n, struct iovec out[IOV_PIECES])
{
	size_t skip = list->skip;
	size_t used = 0;

	for (size_t i = 0; i < list->count && n > 0 && used < IOV_PIECES; i++) {
		size_t part = min_size(list->iov[i].iov_len - skip, n);

		if (part > 0)
			out[used++] = (struct iovec) { (char *)list->iov[i].iov_base + skip, part };
		n -= part;
		skip = 0;
	}
	return used;
}

void iov_skip(struct lane_iov *list, size_t n)
{
	while (list->count > 0 && n >= list->iov->iov_len - list->skip) {
		n -= list->iov->iov_len - list->skip;
		list->iov++;
		list->count--;
		list->skip = 0;
	}
	list->skip += n;
}
