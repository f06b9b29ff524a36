/* SPDX-License-Identifier: MIT */
/* Records of fixed size over a stream; see model.h. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "model/model.h"

void channel_init(struct channel *c, int fd, bool patient)
{
	memset(c, 0, sizeof(*c));
	c->fd = fd;
	c->patient = patient;
}

bool channel_flush(struct channel *c)
{
	int flags = MSG_NOSIGNAL | (c->patient ? 0 : MSG_DONTWAIT);
	size_t done = 0;
	ssize_t n;

	while (done < c->out_used) {
		n = send(c->fd, c->out + done, c->out_used - done, flags);
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0 && errno != EINTR)
			return false;
		if (n > 0)
			done += (size_t)n;
	}
	memmove(c->out, c->out + done, c->out_used - done);
	c->out_used -= done;
	return true;
}

bool channel_put(struct channel *c, const void *data, size_t length)
{
	if (c->out_used + length > sizeof(c->out) && !channel_flush(c))
		return false;
	if (c->out_used + length > sizeof(c->out))
		return false;
	memcpy(c->out + c->out_used, data, length);
	c->out_used += length;
	return true;
}

/* False: the end. */
static bool fill(struct channel *c, bool wait)
{
	ssize_t n;

	memmove(c->in, c->in + c->in_taken, c->in_used - c->in_taken);
	c->in_used -= c->in_taken;
	c->in_taken = 0;
	n = recv(c->fd, c->in + c->in_used, sizeof(c->in) - c->in_used, wait ? 0 : MSG_DONTWAIT);
	if (n > 0)
		c->in_used += (size_t)n;
	return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

int channel_get(struct channel *c, void *data, size_t length, bool wait)
{
	while (c->in_used - c->in_taken < length) {
		size_t before = c->in_used - c->in_taken;

		if (!fill(c, wait))
			return -1;
		if (!wait && c->in_used - c->in_taken == before)
			return 0;
	}
	memcpy(data, c->in + c->in_taken, length);
	c->in_taken += length;
	return 1;
}
