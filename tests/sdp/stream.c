/* SPDX-License-Identifier: MIT */
/* Two engines: streams in both directions, over every shape of buffers (OS-17, OS-19, OS-21). */
#include "sdp/bed.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static struct bed_listener listener;
static struct sdp_conn x;  /* connects */
static struct sdp_conn *y; /* was accepted */

static void open_with(struct sdp_attr a, struct sdp_attr b)
{
	b.oti = bed.b;
	bed_listen(&listener, &b, 4);
	assert_int_equal(sdp_conn_init(&x, &a), 0);
	assert_int_equal(sdp_conn_connect(&x, &listener.l.llp->local), 0);
	bed_until((y = sdp_listener_accept(&listener.l)) != NULL);
	bed_until(bed_has(&x, SDP_IS_OPEN));
}

static void close_both(void)
{
	assert_int_equal(x.illegal + y->illegal, 0);
	sdp_conn_fini(&x);
	sdp_conn_fini(y);
	bed_free(&listener, y);
	bed_unlisten(&listener);
}

/* ---- octets both ways at the same time ---- */

struct flow {
	struct sdp_conn *from, *to;
	uint64_t sent, got, total;
	uint32_t seed;
	size_t chunk;
	bool eof;
};

/* Something has moved, or nothing can just now. */
static void assert_moves(bool good, ssize_t rc)
{
	if (!good && rc != -EAGAIN)
		fail_msg("%s", strerror((int)-rc));
}

static void push(struct flow *f)
{
	uint8_t octets[4096];
	size_t n = min_size(f->chunk, (size_t)(f->total - f->sent));
	ssize_t rc;

	if (!n)
		return;
	bed_fill(octets, n, f->sent, f->seed);
	rc = bed_send(f->from, octets, n);
	assert_moves(rc > 0, rc);
	if (rc > 0)
		f->sent += (uint64_t)rc;
	if (f->sent == f->total)
		assert_int_equal(sdp_conn_shut(f->from), 0);
}

static void pull(struct flow *f)
{
	uint8_t octets[4096];
	ssize_t rc = bed_recv(f->to, octets, f->chunk);

	assert_moves(rc >= 0, rc);
	if (rc > 0) {
		assert_true(bed_check(octets, (size_t)rc, f->got, f->seed));
		f->got += (uint64_t)rc;
	}
	if (rc == 0) {
		assert_int_equal(f->got, f->total);
		f->eof = true;
	}
}

static void run_flows(uint64_t total, size_t chunk)
{
	struct flow f[2] = {
		{ .from = &x, .to = y, .total = total, .seed = 1, .chunk = chunk },
		{ .from = y, .to = &x, .total = total, .seed = 2, .chunk = chunk },
	};
	uint64_t end = bed_now_ms() + BED_PATIENCE_MS;

	while (!f[0].eof || !f[1].eof) {
		uint64_t before = f[0].sent + f[0].got + f[1].sent + f[1].got;

		for (int i = 0; i < 2; i++) {
			push(&f[i]);
			pull(&f[i]);
		}
		/* Who has nothing to do leaves the processor to the library's threads. */
		if (f[0].sent + f[0].got + f[1].sent + f[1].got == before)
			bed_step();
		bed.a->ops->poll(bed.a, 16);
		bed.b->ops->poll(bed.b, 16);
		if (bed_now_ms() > end)
			fail_msg("stuck: %llu of %llu sent, %llu received; %llu, %llu",
				 (unsigned long long)f[0].sent, (unsigned long long)total,
				 (unsigned long long)f[0].got, (unsigned long long)f[1].sent,
				 (unsigned long long)f[1].got);
	}
	bed_until(bed_has(&x, SDP_IS_CLOSED) && bed_has(y, SDP_IS_CLOSED));
	assert_int_equal(AT(&x, error), 0);
	assert_int_equal(AT(y, error), 0);
}

static void streams_are_whole_for_every_shape_of_buffers(void **state)
{
	static const struct {
		uint16_t bufs[2];
		uint32_t size[2];
		size_t chunk;
		uint64_t total;
	} shapes[] = {
		{ { 16, 16 }, { 1024, 1024 }, 4096, 1 << 20 },
		{ { 64, 64 }, { 8192, 8192 }, 4096, 4 << 20 },
		{ { 3, 3 }, { 1024, 1024 }, 4096, 100000 },
		{ { 3, 4 }, { 37, 37 }, 100, 5000 },
		{ { 4, 3 }, { 37, 64 }, 100, 5000 },
		{ { 64, 3 }, { 37, 8192 }, 1000, 50000 },
		{ { 3, 64 }, { 8192, 37 }, 1, 3000 },
		{ { 5, 5 }, { 100, 100 }, 1, 5000 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
		struct sdp_attr a = bed_attr(), b = bed_attr();

		a.bufs = shapes[i].bufs[0];
		b.bufs = shapes[i].bufs[1];
		a.buf_size = shapes[i].size[0];
		b.buf_size = shapes[i].size[1];
		open_with(a, b);
		run_flows(shapes[i].total, shapes[i].chunk);
		close_both();
	}
}

static void either_layout_of_the_hellos_works(void **state)
{
	struct sdp_attr attr = bed_attr();

	attr.layout = bed.layout == SDP_IB ? SDP_IWARP : SDP_IB;
	open_with(attr, attr);
	run_flows(10000, 1000);
	close_both();
}

static void pieces_are_gathered_and_scattered(void **state)
{
	struct sdp_attr attr = bed_attr();
	static uint8_t out[3000], in[3000];
	struct iovec iov[40];
	size_t at = 0, got = 0;

	open_with(attr, attr);
	bed_until(bed_is_up(&x));
	bed_fill(out, sizeof(out), 0, 7);
	/* More pieces than one message can gather, empty ones among them. */
	for (int i = 0; i < 40; i++) {
		size_t len = i == 39 ? sizeof(out) - at : (size_t)(i % 7) * 10;

		iov[i] = (struct iovec) { .iov_base = out + at, .iov_len = len };
		at += len;
	}
	assert_int_equal(sdp_conn_send(&x, iov, 40), sizeof(out));
	while (got < sizeof(in)) {
		struct iovec to[3] = {
			{ .iov_base = in + got, .iov_len = min_size(5, sizeof(in) - got) },
			{ .iov_base = NULL, .iov_len = 0 },
			{ .iov_base = in + got + 5,
			  .iov_len = sizeof(in) - got > 5 ? min_size(300, sizeof(in) - got - 5)
							  : 0 },
		};
		ssize_t rc = 0;

		bed_until((rc = sdp_conn_recv(y, to, 3, 0)) != -EAGAIN);
		assert_true(rc > 0);
		got += (size_t)rc;
	}
	assert_true(bed_check(in, sizeof(in), 0, 7));
	close_both();
}

static void peeking_takes_nothing(void **state)
{
	struct sdp_attr attr = bed_attr();
	uint8_t got[3000];
	struct iovec iov = { .iov_base = got, .iov_len = sizeof(got) };

	open_with(attr, attr);
	bed_fill(got, 2500, 0, 3);
	bed_send_all(&x, got, 2500);
	bed_until(AT(y, unread) == 2500);
	for (int i = 0; i < 3; i++) {
		memset(got, 0, sizeof(got));
		assert_int_equal(sdp_conn_recv(y, &iov, 1, SDP_PEEK), 2500);
		assert_true(bed_check(got, 2500, 0, 3));
	}
	assert_int_equal(sdp_conn_recv(y, &iov, 1, 0), 2500);
	assert_int_equal(sdp_conn_recv(y, &iov, 1, SDP_PEEK), -EAGAIN);
	close_both();
}

static void calls_of_no_octets_do_nothing(void **state)
{
	struct sdp_attr attr = bed_attr();

	open_with(attr, attr);
	bed_until(bed_is_up(&x));
	assert_int_equal(bed_send(&x, NULL, 0), 0);
	assert_int_equal(sdp_conn_send(&x, NULL, 0), 0);
	assert_int_equal(bed_recv(&x, NULL, 0), 0);
	close_both();
}

/* ---- notices ---- */

static _Atomic unsigned notices;

static void on_notice(struct sdp_conn *c, void *arg)
{
	(void)c;
	assert_ptr_equal(arg, &notices);
	notices++;
}

/* A program that only acts on notices gets everything. */
static void notices_are_enough_to_drive_a_program(void **state)
{
	struct sdp_attr attr = bed_attr();
	static const uint8_t octets[1000];
	uint8_t in[2048];
	uint64_t got = 0, sent = 0;
	unsigned seen;

	attr.notify = on_notice;
	attr.arg = &notices;
	attr.bufs = 4;
	open_with(attr, attr);
	notices = 1;
	while (got < 100000) {
		ssize_t rc;

		bed_until(notices);
		notices = 0;
		do {
			seen = notices;
			while (sent < 100000 && (rc = bed_send(&x, octets, 1000)) > 0)
				sent += (uint64_t)rc;
			while ((rc = bed_recv(y, in, sizeof(in))) > 0)
				got += (uint64_t)rc;
			assert_int_equal(rc, -EAGAIN);
		} while (seen != notices);
	}
	notices = 0;
	sdp_conn_abort(&x);
	bed_until(notices && bed_has(y, SDP_IS_RESET));
	close_both();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_BED(streams_are_whole_for_every_shape_of_buffers),
		WITH_BED(either_layout_of_the_hellos_works),
		WITH_BED(pieces_are_gathered_and_scattered),
		WITH_BED(peeking_takes_nothing),
		WITH_BED(calls_of_no_octets_do_nothing),
		WITH_BED(notices_are_enough_to_drive_a_program),
	};

	bed_init(argc, argv);
	return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
