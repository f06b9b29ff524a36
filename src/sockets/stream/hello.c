/* SPDX-License-Identifier: MIT */
#include "sockets/stream/hello.h"

#include "wire/sdp.h"

_Static_assert(SDP_HELLO_IWARP_LEN <= ARENA_PRIVATE_DATA, "a Hello fits");

enum side { MAKER, OTHER };

/*
 * What the fields mean on a lane, where payload is contiguous in a ring and turns take the place of
 * message headers:
 *   LocalRcvSz, ActRcvSz   the ring towards the sender of the Hello
 *   DesRemRcvSz            the ring towards its receiver
 *   Bufs                   turns that may be under way
 *   MaxAdverts, ORD, IRD   the least that SDP allows: nothing is advertised, nothing read
 */
static struct sdp_hello of_lane(bool ack)
{
	return (struct sdp_hello) {
		.layout = SDP_IWARP,
		.ack = ack,
		.major = 1,
		.minor = 1,
		.bufs = LANE_TURNS,
		.max_adverts = 1,
		.rcv_size = LANE_RING,
		.want_size = LANE_RING,
		.ord = 1,
		.ird = 1,
	};
}

/* The octets first, then their number: whoever reads a number finds octets. */
static void put(struct lane_shared *lane, enum side side, const struct sdp_hello *h)
{
	int n = sdp_hello_encode(h, lane->private_data[side], ARENA_PRIVATE_DATA);

	atomic_store_explicit(&lane->private_size[side], n > 0 ? (uint32_t)n : 0,
			      memory_order_release);
}

/* The sizes are fixed when the memory is made; a peer that thinks otherwise has another kind of lane. */
static bool is_of_lane(const struct sdp_hello *h)
{
	return h->rcv_size == LANE_RING && h->bufs == LANE_TURNS &&
	       (h->ack || h->want_size == LANE_RING);
}

static bool get(struct lane_shared *lane, enum side side, struct sdp_hello *h)
{
	uint32_t n = atomic_load_explicit(&lane->private_size[side], memory_order_acquire);
	uint8_t copy[ARENA_PRIVATE_DATA];

	if (n > sizeof(copy))
		return false;
	/* Each octet once: the peer may be writing, and what was checked must be what is used. */
	for (uint32_t i = 0; i < n; i++)
		copy[i] = __atomic_load_n(&lane->private_data[side][i], __ATOMIC_RELAXED);
	return sdp_hello_decode(h, copy, n, SDP_IWARP, side == OTHER) == 0 && is_of_lane(h);
}

void hello_offer(struct lane_shared *lane)
{
	struct sdp_hello ours = of_lane(false);

	put(lane, MAKER, &ours);
}

bool hello_answer(struct lane_shared *lane)
{
	struct sdp_hello ours = of_lane(true), peer;

	if (!get(lane, MAKER, &peer))
		return false;
	sdp_hello_fit(&ours, &peer);
	put(lane, OTHER, &ours);
	return true;
}

bool hello_is_answered(struct lane_shared *lane)
{
	struct sdp_hello ours = of_lane(false), peer;

	/* An answer has the version of the question. */
	return get(lane, OTHER, &peer) && peer.major == ours.major && peer.minor <= ours.minor;
}
