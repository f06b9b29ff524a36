/* SPDX-License-Identifier: MIT */
/*
 * The engine and the local transport need nothing but the C library: this program is linked with
 * them alone, and echoes a stream between its two sides (OS-21, OS-23).
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sockets/ot/oti_local.h"
#include "sockets/sdp/sdp_conn.h"

#define TOTAL (1u << 20)

static struct sdp_conn x, child;
static struct oti *a, *b;

static struct sdp_conn *spawn(struct sdp_listener *l)
{
	(void)l;
	return &child;
}

static void drop(struct sdp_listener *l, struct sdp_conn *c)
{
	(void)l;
	(void)c;
}

static int die(const char *what)
{
	fprintf(stderr, "alone: %s\n", what);
	return 1;
}

static int open_both(struct sdp_listener *l)
{
	struct oti_local_geometry geo = OTI_LOCAL_GEOMETRY;
	struct oti_addr at = { .len = sizeof(struct sockaddr_in) };
	int fd = oti_local_region(&geo);

	if (fd < 0 || oti_local_open(fd, 0, &a) || oti_local_open(fd, 1, &b))
		return die("no region");
	close(fd);
	((struct sockaddr_in *)&at.sa)->sin_family = AF_INET;
	((struct sockaddr_in *)&at.sa)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	l->attr = (struct sdp_attr) { .oti = b, .layout = SDP_IB };
	l->spawn = spawn;
	l->drop = drop;
	if (sdp_listener_open(l, &at, 1))
		return die("cannot listen");
	if (sdp_conn_init(&x, &(struct sdp_attr) { .oti = a, .layout = SDP_IB }) ||
	    sdp_conn_connect(&x, &l->llp->local))
		return die("cannot connect");
	for (int i = 0; i < 100; i++) {
		a->ops->poll(a, 16);
		b->ops->poll(b, 16);
		if (sdp_listener_accept(l))
			return 0;
	}
	return die("does not come up");
}

static int run(void)
{
	uint64_t sent = 0, got = 0;

	while (got < TOTAL) {
		uint8_t octets[4096];
		struct iovec iov = { .iov_base = octets, .iov_len = sizeof(octets) };
		ssize_t rc;

		for (size_t i = 0; i < sizeof(octets); i++)
			octets[i] = (uint8_t)((sent + i) * 7);
		rc = sdp_conn_send(&x, &iov, 1);
		sent += rc > 0 ? (uint64_t)rc : 0;
		a->ops->poll(a, 16);
		b->ops->poll(b, 16);
		rc = sdp_conn_recv(&child, &iov, 1, 0);
		for (ssize_t i = 0; i < rc; i++)
			if (octets[i] != (uint8_t)((got + (uint64_t)i) * 7))
				return die("wrong octets");
		if (rc < 0 && rc != -EAGAIN)
			return die("receive failed");
		got += rc > 0 ? (uint64_t)rc : 0;
	}
	return 0;
}

int main(void)
{
	struct sdp_listener l;
	int rc;

	memset(&l, 0, sizeof(l));
	rc = open_both(&l);
	if (!rc)
		rc = run();
	sdp_conn_fini(&x);
	sdp_conn_fini(&child);
	sdp_listener_close(&l);
	if (a->ops->close(a) || b->ops->close(b))
		return die("still in use");
	if (!rc)
		printf("%u octets\n", TOTAL);
	return rc;
}
