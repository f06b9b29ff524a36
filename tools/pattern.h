/* SPDX-License-Identifier: MIT */
/* Bytes that both ends can compute: message `key` holds pattern(key). */
#ifndef FLUE_TOOLS_PATTERN_H
#define FLUE_TOOLS_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Different keys differ in nearly every octet, also at the same offset and in one-octet messages. */
void pattern_fill(void *data, size_t length, uint64_t key);
bool pattern_check(const void *data, size_t length, uint64_t key);

#endif
