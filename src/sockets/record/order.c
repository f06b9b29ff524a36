/* SPDX-License-Identifier: MIT */
#include "sockets/record/order.h"

_Atomic uint32_t order_clock;
_Atomic bool order_matters;
struct order_peer order_peers[ORDER_PEERS];

uint32_t order_peer(int32_t pid)
{
	uint32_t first = (uint32_t)pid % (ORDER_PEERS - 1);

	for (uint32_t i = 0; i < ORDER_PEERS - 1; i++) {
		uint32_t at = 1 + (first + i) % (ORDER_PEERS - 1);
		int32_t none = 0;

		if (atomic_load(&order_peers[at].pid) == pid ||
		    atomic_compare_exchange_strong(&order_peers[at].pid, &none, pid) || none == pid)
			return at;
	}
	return 0;
}
