/* SPDX-License-Identifier: MIT */
/* Datagrams of unreliable queue pairs: what is taken for one comes out of the encoder the same; the header in front is sound. */
#include "fuzz.h"

#include "wire/datagram.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t again[DATAGRAM_HEAD], grh[DATAGRAM_GRH];
	struct datagram d;

	if (!datagram_decode(&d, data, size))
		return 0;
	CHECK(size >= DATAGRAM_HEAD && size <= DATAGRAM_HEAD + DATAGRAM_MAX);
	CHECK(d.to <= DATAGRAM_ALL && d.from <= DATAGRAM_ALL);
	datagram_encode(&d, again);
	CHECK(!memcmp(again, data, DATAGRAM_HEAD));
	if (size >= DATAGRAM_HEAD + 32) {
		uint32_t sum = 0;

		datagram_grh(grh, true, data + DATAGRAM_HEAD, data + DATAGRAM_HEAD + 16,
			     size - DATAGRAM_HEAD);
		CHECK(grh[0] == 0x60 && !memcmp(grh + 8, data + DATAGRAM_HEAD, 32));
		datagram_grh(grh, false, data + DATAGRAM_HEAD, data + DATAGRAM_HEAD + 16,
			     size - DATAGRAM_HEAD);
		for (int i = 20; i < DATAGRAM_GRH; i += 2)
			sum += (uint32_t)(grh[i] << 8 | grh[i + 1]);
		sum = (sum & 0xffff) + (sum >> 16);
		CHECK(((sum & 0xffff) + (sum >> 16)) == 0xffff);
	}
	return 0;
}
