/* SPDX-License-Identifier: MIT */
#include "sockets/order.h"

_Atomic uint32_t order_clock;
_Atomic bool order_matters;
