/* SPDX-License-Identifier: MIT */
/* Hello and HelloAck of the Sockets Direct Protocol, both layouts (OS-17). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "wire/sdp.h"

#define COMMON .major = 1, .minor = 1, .bufs = 64, .max_adverts = 16, .rcv_size = 4096

static const struct sdp_hello iwarp_hello = { .layout = SDP_IWARP,
					      COMMON,
					      .want_size = 4096,
					      .ord = 8,
					      .ird = 4 };
static const struct sdp_hello iwarp_ack = { .layout = SDP_IWARP,
					    COMMON,
					    .ack = true,
					    .ord = 8,
					    .ird = 4 };
static const struct sdp_hello ib_hello = { .layout = SDP_IB,
					   COMMON,
					   .want_size = 4096,
					   .ip_version = 4,
					   .port = 40000,
					   .source = { [12] = 10, 0, 0, 1 },
					   .dest = { [12] = 10, 0, 0, 2 } };
static const struct sdp_hello ib_ack = { .layout = SDP_IB, COMMON, .ack = true };

/* Octets as the layouts ask for them. What is not written is zero. */
static const struct {
	const struct sdp_hello *h;
	size_t len;
	uint8_t wire[SDP_HELLO_MAX];
} vectors
	[] = {
		{ &iwarp_hello,
		  32,
		  { 0x00, 0, 0,    0x40, 0, 0, 0,    0x20, [16] = 0x11, 0, 0, 0x10,
		    0,    0, 0x10, 0,    0, 0, 0x10, 0,    0,           8, 0, 4 } },
		{ &iwarp_ack, 28, { 0x01, 0,    0, 0x40, 0,    0, 0, 0x1c, [16] = 0x11, 0,
				    0,    0x10, 0, 0,    0x10, 0, 0, 8,    0,           4 } },
		{ &ib_hello,
		  92,
		  { 0x00, 0,    0,         0x40, 0,    0, 0,         0x5c, [16] = 0x11, 0x40,
		    0,    0x10, 0,         0,    0x10, 0, 0,         0,    0x10,        0,
		    0x9c, 0x40, [44] = 10, 0,    0,    1, [60] = 10, 0,    0,           2 } },
		{ &ib_ack,
		  196,
		  { 0x01, 0, 0, 0x40, 0, 0, 0, 0xc4, [16] = 0x11, 0, 0, 0x10, 0, 0, 0x10, 0 } },
	};
#define N_VECTORS (sizeof(vectors) / sizeof(vectors[0]))

/* From a heap block of exactly that size, so that overreads are seen. */
static int decode(struct sdp_hello *h, const uint8_t *wire, size_t len, enum sdp_layout layout,
		  bool ack)
{
	uint8_t *copy = malloc(len ? len : 1);
	int rc;

	assert_non_null(copy);
	memcpy(copy, wire, len);
	rc = sdp_hello_decode(h, copy, len, layout, ack);
	free(copy);
	return rc;
}

static void assert_same(const struct sdp_hello *a, const struct sdp_hello *b)
{
	assert_int_equal(a->layout, b->layout);
	assert_int_equal(a->ack, b->ack);
	assert_int_equal(a->major << 8 | a->minor, b->major << 8 | b->minor);
	assert_int_equal(a->bufs, b->bufs);
	assert_int_equal(a->max_adverts, b->max_adverts);
	assert_int_equal(a->rcv_size, b->rcv_size);
	assert_int_equal(a->want_size, b->want_size);
	assert_int_equal(a->ord, b->ord);
	assert_int_equal(a->ird, b->ird);
	assert_int_equal(a->ip_version, b->ip_version);
	assert_int_equal(a->caps, b->caps);
	assert_int_equal(a->port, b->port);
	assert_memory_equal(a->source, b->source, 16);
	assert_memory_equal(a->dest, b->dest, 16);
}

/* Encode, then decode what was written. */
static int through(const struct sdp_hello *in, struct sdp_hello *out)
{
	uint8_t wire[SDP_HELLO_MAX];
	int len = sdp_hello_encode(in, wire, sizeof(wire));

	return len < 0 ? len : decode(out, wire, (size_t)len, in->layout, in->ack);
}

static void hello_is_read_and_written_octet_by_octet(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++) {
		const struct sdp_hello *h = vectors[i].h;
		uint8_t out[SDP_HELLO_MAX];
		struct sdp_hello got;

		assert_int_equal(sdp_hello_encode(h, out, vectors[i].len), vectors[i].len);
		assert_memory_equal(out, vectors[i].wire, vectors[i].len);
		assert_int_equal(sdp_hello_encode(h, out, vectors[i].len - 1), -EMSGSIZE);
		assert_int_equal(decode(&got, vectors[i].wire, vectors[i].len, h->layout, h->ack),
				 0);
		assert_same(&got, h);
	}
}

static void hello_is_refused_in_the_other_layout_or_role(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++)
		for (unsigned k = 0; k < 4; k++) {
			const struct sdp_hello *h = vectors[i].h;
			enum sdp_layout layout = k & 1 ? SDP_IB : SDP_IWARP;
			struct sdp_hello got;
			int rc = decode(&got, vectors[i].wire, vectors[i].len, layout, k & 2);

			if (layout == h->layout && !!(k & 2) == h->ack)
				assert_int_equal(rc, 0);
			else
				assert_true(rc == -EMSGSIZE || rc == -EPROTO);
		}
}

static void hello_over_iwarp_has_one_length(void **state)
{
	for (unsigned i = 0; i < 2; i++)
		for (size_t len = 0; len <= 40; len++) {
			uint8_t wire[SDP_HELLO_MAX];
			struct sdp_hello got;
			int want = len == vectors[i].len ? 0 : -EMSGSIZE;

			memcpy(wire, vectors[i].wire, sizeof(wire));
			assert_int_equal(decode(&got, wire, len, SDP_IWARP, i), want);
			put_be32(wire + 4, (uint32_t)len);
			assert_int_equal(decode(&got, wire, len, SDP_IWARP, i), want);
		}
}

/* The short form says the full length all the same. */
static void hello_over_infiniband_may_end_behind_its_last_field(void **state)
{
	static const size_t least[2] = { 64, 24 };

	for (unsigned i = 0; i < 2; i++)
		for (size_t len = 0; len <= vectors[2 + i].len; len++) {
			uint8_t wire[SDP_HELLO_MAX];
			struct sdp_hello got;
			int want = len >= least[i] ? 0 : -EMSGSIZE;

			memcpy(wire, vectors[2 + i].wire, sizeof(wire));
			assert_int_equal(decode(&got, wire, len, SDP_IB, i), want);
			if (!want)
				assert_same(&got, vectors[2 + i].h);
			put_be32(wire + 4, (uint32_t)len);
			assert_int_equal(decode(&got, wire, len, SDP_IB, i),
					 len == vectors[2 + i].len ? 0 : -EMSGSIZE);
		}
}

static void hello_of_either_major_version_is_read_with_any_minor(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++)
		for (unsigned version = 0; version < 256; version++) {
			const struct sdp_hello *h = vectors[i].h;
			bool known = version >> 4 == 1 || version >> 4 == 2;
			uint8_t wire[SDP_HELLO_MAX];
			struct sdp_hello got;

			memcpy(wire, vectors[i].wire, sizeof(wire));
			wire[16] = (uint8_t)version;
			assert_int_equal(decode(&got, wire, vectors[i].len, h->layout, h->ack),
					 known ? 0 : -EPROTONOSUPPORT);
			assert_int_equal(got.minor, version & 15);
		}
}

static void hello_with_a_value_below_the_minimum_is_refused(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++) {
		const struct sdp_hello *h = vectors[i].h;
		size_t size = h->ack ? 20 : 24, depths = h->ack ? 24 : 28;
		static const uint8_t zero[2];
		uint8_t wire[SDP_HELLO_MAX];
		struct sdp_hello got, bad;

#define REFUSED_WITH(off, ptr, n)                                                                 \
	do {                                                                                      \
		memcpy(wire, vectors[i].wire, sizeof(wire));                                      \
		memcpy(wire + (off), ptr, n);                                                     \
		assert_int_equal(decode(&got, wire, vectors[i].len, h->layout, h->ack), -EPROTO); \
	} while (0)
		REFUSED_WITH(2, "\0\2", 2);
		REFUSED_WITH(18, zero, 2);
		REFUSED_WITH(size, "\0\0\0\x24", 4);
		if (h->layout == SDP_IWARP) {
			REFUSED_WITH(depths, zero, 2);
			REFUSED_WITH(depths + 2, zero, 2);
		} else if (!h->ack) {
			REFUSED_WITH(17, "\x50", 1);
		}
		/* And it is not written. */
		bad = *h;
		bad.max_adverts = 0;
		assert_int_equal(sdp_hello_encode(&bad, wire, sizeof(wire)), -EINVAL);
		bad = *h;
		bad.major = 3;
		assert_int_equal(sdp_hello_encode(&bad, wire, sizeof(wire)), -EINVAL);
		bad = *h;
		bad.minor = 16;
		assert_int_equal(sdp_hello_encode(&bad, wire, sizeof(wire)), -EINVAL);
		bad = *h;
		bad.caps = 16;
		assert_int_equal(sdp_hello_encode(&bad, wire, sizeof(wire)), -EINVAL);
	}
}

static void hello_carries_large_max_adverts_where_it_has_16_bits(void **state)
{
	struct sdp_hello h = ib_hello, got;
	uint8_t wire[SDP_HELLO_MAX];

	h.max_adverts = 300;
	assert_int_equal(sdp_hello_encode(&h, wire, sizeof(wire)), -EINVAL);
	h.caps = SDP_CAP_EXT_MAX_ADVERTS | SDP_CAP_INVALIDATE;
	assert_int_equal(through(&h, &got), 0);
	assert_same(&got, &h);
	/* Who does not know the extension reads the most that its octet can say. */
	assert_int_equal(sdp_hello_encode(&h, wire, sizeof(wire)), 92);
	assert_int_equal(wire[19], 255);
	/* The capability without the field: no adverts. */
	assert_int_equal(decode(&got, wire, 67, SDP_IB, false), -EPROTO);
	h = iwarp_hello;
	h.max_adverts = 65535;
	assert_int_equal(through(&h, &got), 0);
	assert_same(&got, &h);
}

static void hello_over_infiniband_may_leave_the_addresses_to_the_transport(void **state)
{
	struct sdp_hello h = ib_hello, got;

	h.ip_version = 0;
	assert_int_equal(through(&h, &got), 0);
	h.ip_version = 6;
	memset(h.source, 0xfd, sizeof(h.source));
	assert_int_equal(through(&h, &got), 0);
	assert_same(&got, &h);
}

static void hello_ack_speaks_the_version_both_know_and_keeps_to_the_depths(void **state)
{
	struct sdp_hello ours = iwarp_ack, peer = iwarp_hello;

	sdp_hello_fit(&ours, &peer);
	assert_int_equal(ours.major << 4 | ours.minor, 0x11);
	assert_int_equal(ours.ord, 4);
	assert_int_equal(ours.ird, 4);
	peer.minor = 0;
	sdp_hello_fit(&ours, &peer);
	assert_int_equal(ours.major << 4 | ours.minor, 0x10);
	peer.major = peer.minor = 2;
	sdp_hello_fit(&ours, &peer);
	assert_int_equal(ours.major << 4 | ours.minor, 0x22);
	peer.minor = 5;
	sdp_hello_fit(&ours, &peer);
	assert_int_equal(ours.minor, 2);
	/* Over InfiniBand the depths are the CM's. */
	ours = ib_ack;
	ours.ord = 7;
	sdp_hello_fit(&ours, &ib_hello);
	assert_int_equal(ours.ord, 7);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(hello_is_read_and_written_octet_by_octet),
		cmocka_unit_test(hello_is_refused_in_the_other_layout_or_role),
		cmocka_unit_test(hello_over_iwarp_has_one_length),
		cmocka_unit_test(hello_over_infiniband_may_end_behind_its_last_field),
		cmocka_unit_test(hello_of_either_major_version_is_read_with_any_minor),
		cmocka_unit_test(hello_with_a_value_below_the_minimum_is_refused),
		cmocka_unit_test(hello_carries_large_max_adverts_where_it_has_16_bits),
		cmocka_unit_test(hello_over_infiniband_may_leave_the_addresses_to_the_transport),
		cmocka_unit_test(hello_ack_speaks_the_version_both_know_and_keeps_to_the_depths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
