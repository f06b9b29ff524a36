/* SPDX-License-Identifier: MIT */
/* The receive path of full service: fuzz_receive.c, with the messages, posts and timers that it has. */
#define SERVICE SERVICE_FULL
#include "fuzz_receive.c"
