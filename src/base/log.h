/* SPDX-License-Identifier: MIT */
/*
 * Lines for people, about what happens rarely: set-up, ends, errors. Off unless FLUE_LOG says
 * otherwise (flue-trace(7)); then a call costs one branch, and its arguments are not evaluated. Never in
 * calls that move data; those have probes (probe.h).
 *
 *	log_error(chimney, "socket %d: %s", fd, log_errno(err));
 *
 * A line is one write(), to standard error or a file that is opened for it: no descriptor is kept,
 * which a program could close or take for its own. No lock is taken, no memory allocated, errno
 * stays, and a reader that is gone ends nobody. Any thread, also right after fork().
 */
#ifndef FLUE_BASE_LOG_H
#define FLUE_BASE_LOG_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define LOG_LEVELS(X) X(error) X(warn) X(info) X(debug)
#define LOG_PARTS(X)  X(access) X(chimney) X(provider) X(rnic) X(sockets) X(fsm)

/* clang-format off */
enum log_level {
	LOG_LEVEL_off,
#define X(name) LOG_LEVEL_##name,
	LOG_LEVELS(X)
#undef X
	LOG_NLEVELS
};
enum log_part {
#define X(name) LOG_PART_##name,
	LOG_PARTS(X)
#undef X
	LOG_NPARTS
};
/* clang-format on */

#define log_error(part, ...) log_at(error, part, __VA_ARGS__)
#define log_warn(part, ...)  log_at(warn, part, __VA_ARGS__)
#define log_info(part, ...)  log_at(info, part, __VA_ARGS__)
#define log_debug(part, ...) log_at(debug, part, __VA_ARGS__)

#define log_at(level, part, ...) log_if(LOG_LEVEL_##level, LOG_PART_##part, __VA_ARGS__)
/* Whether it would be said: for what costs something to find out. */
#define log_wants(level, part) __builtin_expect(log_levels[LOG_PART_##part] >= LOG_LEVEL_##level, 0)
/* For a level that is known only then. */
#define log_if(level, part, ...)                                              \
	do {                                                                  \
		if (__builtin_expect(log_levels[part] >= (int)(level), 0))    \
			log_line((enum log_level)(level), part, __VA_ARGS__); \
	} while (0)

/* Written by log_init() and log_stop() alone. */
extern uint8_t log_levels[LOG_NPARTS] __attribute__((visibility("hidden")));

void log_line(enum log_level level, enum log_part part, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * Reads the environment; done when the library is loaded. What is wrong there is told on standard
 * error, once, and nothing is logged.
 */
void log_init(void);
/* From now on silence. */
void log_stop(void);

/* FLUE_LOG's text into levels. -EINVAL: all off, and the reason is in `error`. NULL is "off". */
int log_parse(const char *text, uint8_t levels[LOG_NPARTS], char *error, size_t size);

/* A value of FLUE_LOG of which was told already that it is wrong, if it is: for programs that we start. */
#define LOG_TOLD "FLUE_LOG_TOLD"

/* ---- words for lines ---- */

/* ECONNRESET; either sign. */
static inline const char *log_errno(int err)
{
	const char *name = strerrorname_np(err < 0 ? -err : err);

	return name ? name : "an unknown error";
}

#define LOG_ADDRESS 64
/* 192.0.2.1:80, [2001:db8::1]:80, "-" for what is no address of IP; `addr` is a struct sockaddr of
 * any kind. Returns `out`. */
const char *log_address(char out[LOG_ADDRESS], const void *addr);
/* Inside the arguments of a line. */
#define LOG_ADDR(addr) log_address((char[LOG_ADDRESS]) { 0 }, addr)

#endif
