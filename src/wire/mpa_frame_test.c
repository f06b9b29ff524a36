/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "wire/mpa.h"

#define FRAME_MAX (MPA_FRAME_LEN + MPA_PD_MAX)

/* From a heap block of exactly `len` octets, so that overreads are seen. */
static int decode_status(const uint8_t *buf, size_t len, bool reply)
{
	uint8_t *copy = malloc(len ? len : 1);
	struct mpa_frame f;
	int rc;

	memcpy(copy, buf, len);
	rc = mpa_frame_decode(&f, copy, len, reply);
	free(copy);
	return rc;
}

static void frame_is_laid_out_as_in_the_rfcs(void **st)
{
	static const uint8_t want[] = "MPA ID Req Frame\x50\x02\x00\x07"
				      "\xc0\x21\xc0\x42xyz";
	const struct mpa_frame f = {
		.flags = MPA_FLAG_CRC | MPA_FLAG_ENHANCED,
		.rev = 2,
		.p2p = true,
		.rtr = MPA_RTR_SEND | MPA_RTR_WRITE | MPA_RTR_READ,
		.ird = 0x21,
		.ord = 0x42,
		.data = (const uint8_t *)"xyz",
		.data_len = 3,
	};
	uint8_t buf[FRAME_MAX];

	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 27);
	assert_memory_equal(buf, want, 27);
}

static void frame_has_the_reply_key_when_it_is_a_reply(void **st)
{
	const struct mpa_frame f = { .reply = true, .rev = 1, .flags = MPA_FLAG_REJECT };
	uint8_t buf[MPA_FRAME_LEN];

	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 20);
	assert_memory_equal(buf, "MPA ID Rep Frame\x20\x01\x00\x00", 20);
}

static void frame_has_no_rtr_flags_without_peer_to_peer(void **st)
{
	const struct mpa_frame f = { .rev = 2, .flags = MPA_FLAG_ENHANCED, .rtr = 7, .ord = 1 };
	uint8_t buf[24];
	struct mpa_frame back;

	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 24);
	assert_int_equal(get_be32(buf + 20), 1);
	/* A peer that sets them nevertheless is not heard. */
	put_be32(buf + 20, 0x4000c001);
	assert_int_equal(mpa_frame_decode(&back, buf, sizeof(buf), false), 24);
	assert_false(back.p2p);
	assert_int_equal(back.rtr, 0);
	assert_int_equal(back.ird, 0);
	assert_int_equal(back.ord, 1);
}

static void frame_reads_back_what_it_wrote(void **st)
{
	uint8_t data[MPA_PD_MAX], buf[FRAME_MAX];

	memset(data, 0xa5, sizeof(data));
	for (unsigned i = 0; i < 64; i++) {
		struct mpa_frame f = { .reply = i & 1, .rev = i & 2 ? 2 : 1, .data = data }, back;

		f.flags = i & 4 ? MPA_FLAG_MARKERS | MPA_FLAG_OWN_OFFER : MPA_FLAG_CRC;
		f.data_len = i & 8 ? 508 : 0;
		if (f.rev == 2 && i & 16) {
			f.flags |= MPA_FLAG_ENHANCED;
			f.p2p = i & 32;
			f.rtr = f.p2p ? i & 7 : 0;
			f.ird = i & 1 ? 0x3fff : (uint16_t)(i * 77);
			f.ord = i & 2 ? 0x3fff : (uint16_t)(i * 99);
		}
		int len = mpa_frame_encode(&f, buf, sizeof(buf));

		assert_int_equal(len, 20 + (f.flags & MPA_FLAG_ENHANCED ? 4 : 0) + f.data_len);
		assert_int_equal(mpa_frame_decode(&back, buf, (size_t)len, f.reply), len);
		assert_int_equal(back.reply, f.reply);
		assert_int_equal(back.flags, f.flags);
		assert_int_equal(back.rev, f.rev);
		assert_int_equal(back.p2p, f.p2p);
		assert_int_equal(back.rtr, f.rtr);
		assert_int_equal(back.ird, f.ird);
		assert_int_equal(back.ord, f.ord);
		assert_int_equal(back.data_len, f.data_len);
		assert_memory_equal(back.data, data, f.data_len);
		/* Every beginning of it asks for more. */
		for (size_t cut = 0; cut < (size_t)len; cut++)
			assert_int_equal(decode_status(buf, cut, f.reply), -EAGAIN);
	}
}

static void frame_is_not_written_when_it_cannot_be_said(void **st)
{
	uint8_t data[600] = { 0 }, buf[700];
	struct mpa_frame f = { .rev = 1, .data = data, .data_len = 513 };

	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EMSGSIZE);
	f.data_len = 512;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 532);
	assert_int_equal(mpa_frame_encode(&f, buf, 532), 532);
	assert_int_equal(mpa_frame_encode(&f, buf, 531), -EMSGSIZE);
	f.flags = MPA_FLAG_ENHANCED;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EINVAL);
	f.rev = 2;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EMSGSIZE);
	f.data_len = 508;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 532);
	f.ird = 0x4000;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EINVAL);
	f.ird = 0x3fff;
	f.ord = 0x4000;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), -EINVAL);
	f.ord = 0x3fff;
	assert_int_equal(mpa_frame_encode(&f, buf, sizeof(buf)), 532);
}

static void frame_is_refused_at_the_first_wrong_octet_of_its_key(void **st)
{
	const struct mpa_frame f = { .rev = 1 };
	uint8_t buf[MPA_FRAME_LEN];

	mpa_frame_encode(&f, buf, sizeof(buf));
	for (size_t at = 0; at < 16; at++) {
		buf[at] ^= 0x20;
		for (size_t len = 0; len < sizeof(buf); len++)
			assert_int_equal(decode_status(buf, len, false),
					 len > at ? -EPROTO : -EAGAIN);
		buf[at] ^= 0x20;
	}
	/* Two initiators: the keys differ in the tenth octet. */
	assert_int_equal(decode_status(buf, 9, true), -EAGAIN);
	assert_int_equal(decode_status(buf, 10, true), -EPROTO);
}

static void frame_is_refused_when_private_data_is_too_long(void **st)
{
	uint8_t buf[MPA_FRAME_LEN + 600] = "MPA ID Req Frame\x00\x01\x02\x00";

	assert_int_equal(decode_status(buf, 20, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 531, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 532, false), 532);
	buf[19] = 1;
	assert_int_equal(decode_status(buf, 19, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 20, false), -EPROTO);
	buf[18] = 3;
	assert_int_equal(decode_status(buf, 18, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 19, false), -EPROTO);
}

static void frame_is_refused_when_a_request_rejects(void **st)
{
	uint8_t buf[MPA_FRAME_LEN] = "MPA ID Req Frame\x20\x01\x00";

	assert_int_equal(decode_status(buf, 16, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 17, false), -EPROTO);
	memcpy(buf, "MPA ID Rep", 10);
	assert_int_equal(decode_status(buf, 20, true), 20);
}

static void frame_is_refused_when_too_short_for_the_enhanced_word(void **st)
{
	uint8_t buf[MPA_FRAME_LEN + 4] = "MPA ID Req Frame\x10\x02\x00";

	for (uint8_t len = 0; len < 4; len++) {
		buf[19] = len;
		assert_int_equal(decode_status(buf, 19, false), -EAGAIN);
		assert_int_equal(decode_status(buf, 20, false), -EPROTO);
	}
	buf[19] = 4;
	assert_int_equal(decode_status(buf, 20, false), -EAGAIN);
	assert_int_equal(decode_status(buf, 24, false), 24);
}

static void frame_of_revision_1_has_no_enhanced_word(void **st)
{
	uint8_t buf[MPA_FRAME_LEN + 2] = "MPA ID Req Frame\x5f\x01\x00\x02hi";
	struct mpa_frame f;

	/* S was a reserved bit then: not checked, and no private data are taken for it. */
	assert_int_equal(mpa_frame_decode(&f, buf, sizeof(buf), false), 22);
	assert_int_equal(f.flags, 0x4f);
	assert_int_equal(f.data_len, 2);
	assert_memory_equal(f.data, "hi", 2);
}

static void frame_leaves_octets_behind_it_alone(void **st)
{
	static const uint8_t buf[] = "MPA ID Rep Frame\x40\x01\x00\x02hiFPDU";
	struct mpa_frame f;

	assert_int_equal(mpa_frame_decode(&f, buf, sizeof(buf), true), 22);
	assert_int_equal(f.data_len, 2);
}

static void frame_of_unknown_revision_is_read(void **st)
{
	static const uint8_t buf[] = "MPA ID Req Frame\x00\x81\x00";
	struct mpa_frame f;

	assert_int_equal(mpa_frame_decode(&f, buf, 20, false), 20);
	assert_int_equal(f.rev, 0x81);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(frame_is_laid_out_as_in_the_rfcs),
		cmocka_unit_test(frame_has_the_reply_key_when_it_is_a_reply),
		cmocka_unit_test(frame_has_no_rtr_flags_without_peer_to_peer),
		cmocka_unit_test(frame_reads_back_what_it_wrote),
		cmocka_unit_test(frame_is_not_written_when_it_cannot_be_said),
		cmocka_unit_test(frame_is_refused_at_the_first_wrong_octet_of_its_key),
		cmocka_unit_test(frame_is_refused_when_private_data_is_too_long),
		cmocka_unit_test(frame_is_refused_when_a_request_rejects),
		cmocka_unit_test(frame_is_refused_when_too_short_for_the_enhanced_word),
		cmocka_unit_test(frame_of_revision_1_has_no_enhanced_word),
		cmocka_unit_test(frame_leaves_octets_behind_it_alone),
		cmocka_unit_test(frame_of_unknown_revision_is_read),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
