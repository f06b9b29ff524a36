/* SPDX-License-Identifier: MIT */
/* Messages of the Sockets Direct Protocol, except the Hellos (OS-17). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "wire/sdp.h"

/* Octets written out, in a heap block of exactly that size, so that overreads are seen. */
static uint8_t *unhex(const char *hex, size_t *len)
{
	uint8_t *buf = malloc(strlen(hex) / 2 + 1);
	char digits[3] = { 0 };

	assert_non_null(buf);
	*len = 0;
	for (; *hex; hex++) {
		if (*hex == ' ')
			continue;
		memcpy(digits, hex++, 2);
		buf[(*len)++] = (uint8_t)strtoul(digits, NULL, 16);
	}
	buf = realloc(buf, *len ? *len : 1);
	assert_non_null(buf);
	return buf;
}

static int decode_hex(const char *hex, struct sdp_msg *m)
{
	size_t len;
	uint8_t *buf = unhex(hex, &len);
	int rc = sdp_decode(m, buf, len);

	/* The payload is gone with the block. */
	m->payload = NULL;
	free(buf);
	return rc;
}

#define AVAIL_BUF .bufs = 60, .advert_len = 131072

/* Built from the layouts, one of each message. */
static const struct {
	const char *hex, *payload;
	struct sdp_msg m;
} vectors[] = {
	{ "ff00003c 00000015 00000001 00000000 68656c6c6f",
	  "hello",
	  { .mid = SDP_DATA, .bufs = 60, .mseq = 1 } },
	{ "ff03003c 00000011 00000002 00000000 21",
	  "!",
	  { .mid = SDP_DATA,
	    .flags = SDP_FLAG_OOB_PRES | SDP_FLAG_OOB_PEND,
	    .bufs = 60,
	    .mseq = 2 } },
	{ "fe00003c 00000021 00000003 00000000 00020000 1234abcd 00007f0000001000 41",
	  "A",
	  { .mid = SDP_SRC_AVAIL, AVAIL_BUF, .mseq = 3, .key = 0x1234abcd, .va = 0x7f0000001000 } },
	{ "0604003c 00000014 00000005 00000003 0001ffff",
	  "",
	  { .mid = SDP_RDMA_RD_COMPL,
	    .flags = SDP_FLAG_REQ_PIPE,
	    .bufs = 60,
	    .mseq = 5,
	    .mseq_ack = 3,
	    .size = 131071 } },
	{ "fd00003c 00000024 00000004 00000003 00020000 55667788 00007f0000002000 00000002",
	  "",
	  { .mid = SDP_SINK_AVAIL,
	    AVAIL_BUF,
	    .mseq = 4,
	    .mseq_ack = 3,
	    .key = 0x55667788,
	    .va = 0x7f0000002000,
	    .non_discards = 2 } },
	{ "fd00003c 00000025 00000004 00000003 00020000 55667788 00007f0000002000 00000002 78",
	  "x",
	  { .mid = SDP_SINK_AVAIL,
	    AVAIL_BUF,
	    .mseq = 4,
	    .mseq_ack = 3,
	    .key = 0x55667788,
	    .va = 0x7f0000002000,
	    .non_discards = 2 } },
	{ "07000001 00000014 00000000 00000000 00000000",
	  "",
	  { .mid = SDP_MODE_CHANGE, .bufs = 1, .mode = SDP_BUFFERED } },
	{ "07000001 00000014 00000000 00000000 10000000",
	  "",
	  { .mid = SDP_MODE_CHANGE, .bufs = 1, .mode = SDP_COMBINED } },
	{ "07000001 00000014 00000000 00000000 20000000",
	  "",
	  { .mid = SDP_MODE_CHANGE, .bufs = 1, .mode = SDP_PIPELINED } },
	{ "07000001 00000014 00000000 00000000 90000000",
	  "",
	  { .mid = SDP_MODE_CHANGE, .bufs = 1, .mode = SDP_COMBINED, .to_source = true } },
	{ "0d000001 00000018 00000000 00000000 00000000 00011f90",
	  "",
	  { .mid = SDP_SUSP_COMM, .bufs = 1, .port = 8080 } },
	{ "02000001 00000010 ffffffff fffffffe",
	  "",
	  { .mid = SDP_DISCONN, .bufs = 1, .mseq = 0xffffffff, .mseq_ack = 0xfffffffe } },
	{ "03000001 00000010 00000000 00000000", "", { .mid = SDP_ABORT_CONN, .bufs = 1 } },
	{ "0400ffff 00000010 00000000 00000000", "", { .mid = SDP_SEND_SM, .bufs = 65535 } },
	{ "05000001 00000014 00000000 00000000 00000007",
	  "",
	  { .mid = SDP_RDMA_WR_COMPL, .bufs = 1, .size = 7 } },
	{ "08000001 00000010 00000000 00000000", "", { .mid = SDP_SRC_AVAIL_CANCEL, .bufs = 1 } },
	{ "09000001 00000010 00000000 00000000", "", { .mid = SDP_SINK_AVAIL_CANCEL, .bufs = 1 } },
	{ "0a000001 00000010 00000000 00000000", "", { .mid = SDP_SINK_CANCEL_ACK, .bufs = 1 } },
	{ "0b000001 00000014 00000000 00000000 00008010",
	  "",
	  { .mid = SDP_CH_RCV_BUF, .bufs = 1, .size = 32784 } },
	{ "0c000001 00000014 00000000 00000000 00001000",
	  "",
	  { .mid = SDP_CH_RCV_BUF_ACK, .bufs = 1, .size = 4096 } },
	{ "0e000001 00000010 00000000 00000000", "", { .mid = SDP_SUSP_COMM_ACK, .bufs = 1 } },
	{ "ff000000 00000010 00000000 00000000", "", { .mid = SDP_DATA } },
};
#define N_VECTORS (sizeof(vectors) / sizeof(vectors[0]))

/* Every field but the pointer; memory between the fields does not count. */
static void assert_same(const struct sdp_msg *a, const struct sdp_msg *b)
{
	assert_int_equal(a->mid, b->mid);
	assert_int_equal(a->flags, b->flags);
	assert_int_equal(a->bufs, b->bufs);
	assert_int_equal(a->mseq, b->mseq);
	assert_int_equal(a->mseq_ack, b->mseq_ack);
	assert_int_equal(a->payload_len, b->payload_len);
	assert_int_equal(a->size, b->size);
	assert_int_equal(a->advert_len, b->advert_len);
	assert_int_equal(a->key, b->key);
	assert_int_equal(a->va, b->va);
	assert_int_equal(a->non_discards, b->non_discards);
	assert_int_equal(a->mode, b->mode);
	assert_int_equal(a->to_source, b->to_source);
	assert_int_equal(a->port, b->port);
}

static void sdp_reads_and_writes_each_message_octet_by_octet(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++) {
		struct sdp_msg want = vectors[i].m, got;
		uint8_t out[SDP_HDR_MAX];
		size_t len, hdr_len;
		uint8_t *wire = unhex(vectors[i].hex, &len);

		want.payload_len = (uint32_t)strlen(vectors[i].payload);
		assert_int_equal(sdp_decode(&got, wire, len), 0);
		hdr_len = len - want.payload_len;
		assert_ptr_equal(got.payload, wire + hdr_len);
		assert_memory_equal(got.payload, vectors[i].payload, want.payload_len);
		assert_same(&got, &want);
		assert_int_equal(sdp_encode(&want, out), hdr_len);
		assert_memory_equal(out, wire, hdr_len);
		free(wire);
	}
}

static void sdp_refuses_each_message_with_an_octet_more_or_less(void **state)
{
	for (unsigned i = 0; i < N_VECTORS; i++) {
		bool payload = sdp_mid_info(vectors[i].m.mid)->payload;
		struct sdp_msg m;
		uint8_t buf[64] = { 0 };
		size_t len;
		uint8_t *wire = unhex(vectors[i].hex, &len);

		memcpy(buf, wire, len);
		/* The transport and the header disagree. */
		assert_int_equal(sdp_decode(&m, buf, len - 1), -EMSGSIZE);
		assert_int_equal(sdp_decode(&m, buf, len + 1), -EMSGSIZE);
		/* They agree, but the message has another length. */
		put_be32(buf + 4, (uint32_t)len + 1);
		assert_int_equal(sdp_decode(&m, buf, len + 1), payload ? 0 : -EMSGSIZE);
		len -= vectors[i].m.payload_len + strlen(vectors[i].payload) + 1;
		put_be32(buf + 4, (uint32_t)len);
		assert_int_equal(sdp_decode(&m, buf, len), -EMSGSIZE);
		free(wire);
	}
}

static void sdp_refuses_octets_too_few_for_a_header(void **state)
{
	uint8_t *nothing = calloc(1, 1);
	struct sdp_msg m;

	assert_int_equal(sdp_decode(&m, nothing, 0), -EMSGSIZE);
	free(nothing);
	assert_int_equal(decode_hex("ff000000 0000000f 00000000 000000", &m), -EMSGSIZE);
}

static void sdp_refuses_mids_that_are_not_in_the_table(void **state)
{
	uint8_t buf[SDP_BSDH_LEN] = { [7] = SDP_BSDH_LEN };
	unsigned known = 0;
	struct sdp_msg m;

	for (unsigned mid = 0; mid < 256; mid++) {
		bool named = mid <= 0x0e || mid >= 0xfd;

		assert_int_equal(!!sdp_mid_info((uint8_t)mid)->name, named);
		known += named;
		buf[0] = (uint8_t)mid;
		if (!named)
			assert_int_equal(sdp_decode(&m, buf, sizeof(buf)), -EOPNOTSUPP);
		else
			assert_int_not_equal(sdp_decode(&m, buf, sizeof(buf)), -EOPNOTSUPP);
		m = (struct sdp_msg) { .mid = (uint8_t)mid };
		if (!named)
			assert_int_equal(sdp_encode(&m, buf), -EINVAL);
	}
	assert_int_equal(known, 18);
}

static void sdp_refuses_a_hello_once_the_connection_is_open(void **state)
{
	struct sdp_msg m;

	assert_int_equal(decode_hex("00000003 00000010 00000000 00000000", &m), -EPROTO);
	assert_int_equal(decode_hex("01000003 00000010 00000000 00000000", &m), -EPROTO);
}

static void sdp_refuses_an_advert_of_nothing_or_of_more_than_2_to_the_31(void **state)
{
	static const struct {
		const char *len;
		int rc;
	} cases[] = { { "00000000", -EPROTO },
		      { "00000001", 0 },
		      { "80000000", 0 },
		      { "80000001", -EPROTO },
		      { "ffffffff", -EPROTO } };
	char hex[128];
	struct sdp_msg m;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		snprintf(hex, sizeof(hex), "fe000000 00000020 %016d %s %024d", 0, cases[i].len, 0);
		assert_int_equal(decode_hex(hex, &m), cases[i].rc);
		snprintf(hex, sizeof(hex), "fd000000 00000024 %016d %s %032d", 0, cases[i].len, 0);
		assert_int_equal(decode_hex(hex, &m), cases[i].rc);
		m = (struct sdp_msg) { .mid = SDP_SRC_AVAIL,
				       .advert_len = (uint32_t)strtoul(cases[i].len, NULL, 16) };
		assert_int_equal(sdp_encode(&m, (uint8_t *)hex), cases[i].rc ? -EINVAL : 32);
	}
}

static void sdp_takes_just_four_octets_as_a_mode_change(void **state)
{
	uint8_t buf[20] = { SDP_MODE_CHANGE, [7] = 20 };
	unsigned legal = 0;
	struct sdp_msg m;

	for (unsigned octet = 0; octet < 256; octet++) {
		buf[16] = (uint8_t)octet;
		legal += sdp_decode(&m, buf, sizeof(buf)) == 0;
	}
	assert_int_equal(legal, 4);
	/* Its other three octets are reserved and not looked at. */
	buf[16] = 0x90;
	buf[17] = buf[18] = buf[19] = 0xff;
	assert_int_equal(sdp_decode(&m, buf, sizeof(buf)), 0);
	assert_int_equal(m.mode, SDP_COMBINED);
	assert_true(m.to_source);
	for (uint8_t mode = 0; mode < 10; mode++)
		for (int to = 0; to < 2; to++) {
			m = (struct sdp_msg) { .mid = SDP_MODE_CHANGE,
					       .mode = mode,
					       .to_source = to };
			assert_int_equal(sdp_encode(&m, buf) > 0,
					 to ? mode == SDP_COMBINED : mode <= SDP_PIPELINED);
		}
}

static void sdp_takes_the_urgent_octet_in_data_only(void **state)
{
	struct sdp_msg m;

	assert_int_equal(decode_hex("ff010000 00000010 00000000 00000000", &m), -EPROTO);
	assert_int_equal(decode_hex("02010000 00000010 00000000 00000000", &m), -EPROTO);
	assert_int_equal(decode_hex("fe010000 00000021 00000000 00000000 00000002 00000000 "
				    "0000000000000000 41",
				    &m),
			 -EPROTO);
	/* The notice may ride on anything. */
	assert_int_equal(decode_hex("02020000 00000010 00000000 00000000", &m), 0);
	assert_int_equal(m.flags, SDP_FLAG_OOB_PEND);
	/* The five upper bits are not looked at, and not shown. */
	assert_int_equal(decode_hex("fff80000 00000010 00000000 00000000", &m), 0);
	assert_int_equal(m.flags, 0);
}

static void sdp_refuses_to_suspend_to_no_port(void **state)
{
	struct sdp_msg m;

	assert_int_equal(decode_hex("0d000001 00000018 00000000 00000000 00000000 00010000", &m),
			 -EPROTO);
	assert_int_equal(decode_hex("0d000001 00000018 00000000 00000000 00000000 00021f90", &m),
			 -EPROTO);
	assert_int_equal(decode_hex("0d000001 00000018 00000000 00000000 00000001 00011f90", &m),
			 -EPROTO);
}

static void sdp_writes_nothing_that_it_would_not_read(void **state)
{
	struct sdp_msg m = { .mid = SDP_DISCONN, .payload_len = 1 };
	uint8_t buf[SDP_HDR_MAX];

	assert_int_equal(sdp_encode(&m, buf), -EINVAL);
	m = (struct sdp_msg) { .mid = SDP_HELLO };
	assert_int_equal(sdp_encode(&m, buf), -EINVAL);
	m = (struct sdp_msg) { .mid = SDP_DATA, .flags = 0x08 };
	assert_int_equal(sdp_encode(&m, buf), -EINVAL);
	m = (struct sdp_msg) { .mid = SDP_DATA, .payload_len = UINT32_MAX - 15 };
	assert_int_equal(sdp_encode(&m, buf), -EINVAL);
	m.payload_len--;
	assert_int_equal(sdp_encode(&m, buf), SDP_BSDH_LEN);
	assert_int_equal(get_be32(buf + 4), UINT32_MAX);
}

static void sdp_asks_for_an_event_where_the_draft_wants_one(void **state)
{
	static const uint8_t solicited[] = { SDP_HELLO_ACK,         SDP_ABORT_CONN,
					     SDP_SUSP_COMM,         SDP_SUSP_COMM_ACK,
					     SDP_SEND_SM,           SDP_SRC_AVAIL_CANCEL,
					     SDP_SINK_AVAIL_CANCEL, SDP_SINK_CANCEL_ACK,
					     SDP_RDMA_WR_COMPL,     SDP_RDMA_RD_COMPL };
	unsigned count = 0;
	struct sdp_msg m = { 0 };

	for (unsigned mid = 0; mid < 256; mid++) {
		m.mid = (uint8_t)mid;
		count += sdp_is_solicited(&m);
	}
	assert_int_equal(count, sizeof(solicited));
	for (unsigned i = 0; i < sizeof(solicited); i++) {
		m.mid = solicited[i];
		assert_true(sdp_is_solicited(&m));
	}
	m.mid = SDP_DATA;
	assert_false(sdp_is_solicited(&m));
	m.flags = SDP_FLAG_OOB_PEND;
	assert_true(sdp_is_solicited(&m));
	m.flags = SDP_FLAG_OOB_PRES;
	assert_true(sdp_is_solicited(&m));
	m.mid = SDP_DISCONN;
	assert_false(sdp_is_solicited(&m));
}

static void sdp_table_says_who_sends_what(void **state)
{
	static const struct {
		uint8_t mid, sender;
	} want[] = {
		{ SDP_HELLO, SDP_FROM_CONNECTING },     { SDP_HELLO_ACK, SDP_FROM_ACCEPTING },
		{ SDP_SEND_SM, SDP_FROM_SINK },         { SDP_RDMA_RD_COMPL, SDP_FROM_SINK },
		{ SDP_SINK_AVAIL, SDP_FROM_SINK },      { SDP_SINK_AVAIL_CANCEL, SDP_FROM_SINK },
		{ SDP_SRC_AVAIL, SDP_FROM_SOURCE },     { SDP_SRC_AVAIL_CANCEL, SDP_FROM_SOURCE },
		{ SDP_RDMA_WR_COMPL, SDP_FROM_SOURCE }, { SDP_SINK_CANCEL_ACK, SDP_FROM_SOURCE },
		{ SDP_MODE_CHANGE, SDP_FROM_MASTER },   { SDP_DATA, SDP_FROM_EITHER },
		{ SDP_DISCONN, SDP_FROM_EITHER },
	};

	for (unsigned i = 0; i < sizeof(want) / sizeof(want[0]); i++)
		assert_int_equal(sdp_mid_info(want[i].mid)->sender, want[i].sender);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(sdp_reads_and_writes_each_message_octet_by_octet),
		cmocka_unit_test(sdp_refuses_each_message_with_an_octet_more_or_less),
		cmocka_unit_test(sdp_refuses_octets_too_few_for_a_header),
		cmocka_unit_test(sdp_refuses_mids_that_are_not_in_the_table),
		cmocka_unit_test(sdp_refuses_a_hello_once_the_connection_is_open),
		cmocka_unit_test(sdp_refuses_an_advert_of_nothing_or_of_more_than_2_to_the_31),
		cmocka_unit_test(sdp_takes_just_four_octets_as_a_mode_change),
		cmocka_unit_test(sdp_takes_the_urgent_octet_in_data_only),
		cmocka_unit_test(sdp_refuses_to_suspend_to_no_port),
		cmocka_unit_test(sdp_writes_nothing_that_it_would_not_read),
		cmocka_unit_test(sdp_asks_for_an_event_where_the_draft_wants_one),
		cmocka_unit_test(sdp_table_says_who_sends_what),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
