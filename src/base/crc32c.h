/* SPDX-License-Identifier: MIT */
/*
 * CRC32C (polynomial 0x1EDC6F41, reflected), as MPA and iSCSI use it.
 *
 * Both functions take and return the finished value, complement included, so that a buffer in
 * pieces is crc32c(crc32c(0, a, n), b, m). crc32c(0, "123456789", 9) is 0xE3069283.
 */
#ifndef FLUE_BASE_CRC32C_H
#define FLUE_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The fastest there is: libisal when it was found at build time, else the table. */
uint32_t crc32c(uint32_t crc, const void *buf, size_t len);

/* Portable; always there, as the oracle of the tests. */
uint32_t crc32c_table(uint32_t crc, const void *buf, size_t len);

#endif
