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
	CHECK(!d.number || d.to == DATAGRAM_ALL);
	if (size >= DATAGRAM_HEAD + 34) {
		struct datagram_way way = { .ipv6 = true,
					    .hops = data[DATAGRAM_HEAD],
					    .tclass = data[DATAGRAM_HEAD + 1] };
		uint32_t sum = 0;

		memcpy(way.from, data + DATAGRAM_HEAD + 2, sizeof(way.from));
		memcpy(way.to, data + DATAGRAM_HEAD + 18, sizeof(way.to));
		datagram_grh(grh, &way, size - DATAGRAM_HEAD);
		CHECK(grh[0] >> 4 == 6 && !memcmp(grh + 8, data + DATAGRAM_HEAD + 2, 32));
		CHECK((uint8_t)(grh[0] << 4 | grh[1] >> 4) == way.tclass && grh[7] == way.hops);
		way.ipv6 = false;
		datagram_grh(grh, &way, size - DATAGRAM_HEAD);
		for (int i = 20; i < DATAGRAM_GRH; i += 2)
			sum += (uint32_t)(grh[i] << 8 | grh[i + 1]);
		sum = (sum & 0xffff) + (sum >> 16);
		CHECK(((sum & 0xffff) + (sum >> 16)) == 0xffff);
		CHECK(grh[21] == way.tclass && grh[28] == way.hops);
	}
	return 0;
}
