/* SPDX-License-Identifier: MIT */
/* See bed.h. */
#include "sdp/bed.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "sockets/ot/oti_local.h"
#include "sockets/ot/oti_rnic.h"

struct bed bed;

void bed_init(int argc, char **argv)
{
	struct sockaddr_in *in = (struct sockaddr_in *)&bed.addr.sa;

	bed.kind = argc > 1 ? argv[1] : "local";
	bed.direct = !strcmp(bed.kind, "rnic-direct");
	bed.layout = strcmp(bed.kind, "local") ? SDP_IWARP : SDP_IB;
	if (strcmp(bed.kind, "local") && strcmp(bed.kind, "rnic") && !bed.direct) {
		fprintf(stderr, "unknown kind '%s'\n", bed.kind);
		exit(2);
	}
	in->sin_family = AF_INET;
	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	bed.addr.len = sizeof(*in);
}

void bed_open_transports(struct oti **a, struct oti **b)
{
	struct oti_local_geometry geo = OTI_LOCAL_GEOMETRY;
	struct oti_rnic_attr attr = { .direct = bed.direct };
	int fd;

	if (bed.layout == SDP_IWARP) {
		assert_int_equal(oti_rnic_open(&attr, a), 0);
		assert_int_equal(oti_rnic_open(&attr, b), 0);
		return;
	}
	fd = oti_local_region(&geo);
	assert_true(fd >= 0);
	assert_int_equal(oti_local_open(fd, 0, a), 0);
	assert_int_equal(oti_local_open(fd, 1, b), 0);
	close(fd);
}

void bed_close_transport(struct oti *o)
{
	int rc = o->ops->close(o);

	/* The end of a connection that was given up may still be on its way. */
	for (int i = 0; i < 2000 && rc == -EBUSY; i++) {
		usleep(1000);
		rc = o->ops->close(o);
	}
	assert_int_equal(rc, 0);
}

int bed_open(void **state)
{
	*state = &bed;
	bed_open_transports(&bed.a, &bed.b);
	return 0;
}

int bed_close(void **state)
{
	bed_close_transport(bed.a);
	bed_close_transport(bed.b);
	return 0;
}

uint64_t bed_now_ms(void)
{
	return clock_now() / NSEC_PER_MSEC;
}

void bed_step(void)
{
	const struct timespec pause = { .tv_nsec = 100000 };

	bed.a->ops->poll(bed.a, 64);
	bed.b->ops->poll(bed.b, 64);
	if (bed.direct)
		nanosleep(&pause, NULL);
}

void bed_step_for(unsigned ms)
{
	uint64_t end = bed_now_ms() + ms;

	do {
		bed_step();
	} while (bed_now_ms() < end);
}

struct sdp_attr bed_attr(void)
{
	return (struct sdp_attr) {
		.oti = bed.a, .layout = bed.layout, .bufs = 16, .buf_size = 1024
	};
}

uint32_t bed_credits(struct sdp_conn *c)
{
	uint32_t left;

	lock_take(&c->lock);
	left = sdp_credit_left(&c->credit);
	lock_give(&c->lock);
	return left;
}

bool bed_is_up(struct sdp_conn *c)
{
	struct oti_buf *buf;

	lock_take(&c->lock);
	buf = c->llp->ops->buf_get(c->llp);
	if (buf)
		c->llp->ops->buf_put(c->llp, buf);
	lock_give(&c->lock);
	return buf;
}

bool bed_has(struct sdp_conn *c, uint32_t bits)
{
	return (sdp_conn_status(c) & bits) == bits;
}

ssize_t bed_recv(struct sdp_conn *c, void *to, size_t len)
{
	struct iovec iov = { .iov_base = to, .iov_len = len };

	return sdp_conn_recv(c, &iov, 1, 0);
}

ssize_t bed_send(struct sdp_conn *c, const void *from, size_t len)
{
	struct iovec iov = { .iov_base = (void *)(uintptr_t)from, .iov_len = len };

	return sdp_conn_send(c, &iov, 1);
}

void bed_send_all(struct sdp_conn *c, const void *from, size_t len)
{
	size_t done = 0;
	ssize_t rc = 0;

	while (done < len) {
		bed_until((rc = bed_send(c, (const char *)from + done, len - done)) != -EAGAIN);
		assert_true(rc > 0);
		done += (size_t)rc;
	}
}

void bed_recv_all(struct sdp_conn *c, void *to, size_t len)
{
	size_t done = 0;
	ssize_t rc = 0;

	while (done < len) {
		bed_until((rc = bed_recv(c, (char *)to + done, len - done)) != -EAGAIN);
		assert_true(rc > 0);
		done += (size_t)rc;
	}
}

/* ---- listener ---- */

static struct sdp_conn *spawn(struct sdp_listener *l)
{
	struct bed_listener *bl = (struct bed_listener *)l;

	for (unsigned i = 0; i < BED_CHILDREN; i++) {
		bool no = false;

		if (__atomic_compare_exchange_n((bool *)&bl->used[i], &no, true, false,
						__ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			return &bl->children[i];
	}
	return NULL;
}

void bed_free(struct bed_listener *bl, struct sdp_conn *c)
{
	bl->used[c - bl->children] = false;
}

static void drop(struct sdp_listener *l, struct sdp_conn *c)
{
	struct bed_listener *bl = (struct bed_listener *)l;

	bl->dropped++;
	bed_free(bl, c);
}

static void on_child(struct sdp_listener *l)
{
	((struct bed_listener *)l)->notified++;
}

void bed_listen(struct bed_listener *bl, const struct sdp_attr *attr, unsigned backlog)
{
	memset(bl, 0, sizeof(*bl));
	bl->l.attr = *attr;
	bl->l.spawn = spawn;
	bl->l.drop = drop;
	bl->l.notify = on_child;
	assert_int_equal(sdp_listener_open(&bl->l, &bed.addr, backlog), 0);
}

void bed_unlisten(struct bed_listener *bl)
{
	sdp_listener_close(&bl->l);
	for (unsigned i = 0; i < BED_CHILDREN; i++)
		assert_false(bl->used[i]);
}

/* ---- octets ---- */

uint8_t bed_octet(uint64_t place, uint32_t seed)
{
	uint64_t x = (place + seed * 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;

	return (uint8_t)(x >> 56);
}

void bed_fill(uint8_t *to, size_t len, uint64_t place, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		to[i] = bed_octet(place + i, seed);
}

bool bed_check(const uint8_t *at, size_t len, uint64_t place, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		if (at[i] != bed_octet(place + i, seed))
			return false;
	return true;
}
