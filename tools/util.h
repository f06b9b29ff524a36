/* SPDX-License-Identifier: MIT */
/* What every subcommand needs: messages, numbers as people write them, addresses, the clock. */
#ifndef FLUE_TOOLS_UTIL_H
#define FLUE_TOOLS_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

/* "flue" on a telephone keypad. */
#define UTIL_PORT "3583"

#define UTIL_TEXT_MAX 80

/* One line on stderr, after "flue: ". Says what went wrong and, where possible, what to do. */
void util_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t util_now_ns(void);

/* "64", "4k", "1M", "1MiB": powers of 1024. False: not such a number, or not in [min, max]. */
bool util_parse_size(const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* Decimal number in [min, max]. */
bool util_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out);
/* "2", "0.5", "500ms", "2s", in seconds. */
bool util_parse_seconds(const char *text, double min, double max, double *out);

/* Each writes into `text` and returns it. */
const char *util_size_text(char text[UTIL_TEXT_MAX], uint64_t bytes);
const char *util_time_text(char text[UTIL_TEXT_MAX], double ns);
const char *util_count_text(char text[UTIL_TEXT_MAX], uint64_t count);
const char *util_address_text(char text[UTIL_TEXT_MAX], const struct sockaddr_storage *address);

/* Look up host and port; host NULL: any local address. False after a message. */
bool util_resolve(const char *host, const char *port, struct sockaddr_storage *out,
		  socklen_t *length);

/* Whether the terminal's character set is UTF-8; otherwise pictures are drawn in ASCII. */
bool util_utf8(void);

#endif
