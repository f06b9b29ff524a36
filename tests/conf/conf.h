/* SPDX-License-Identifier: MIT */
/*
 * What the programs of the conformance suite share. Each takes the variant as its argument:
 *   soft          the software RNIC
 *   full, local, denied, self
 *                 the same, with other connections: column.h
 *   faulty        the fault-injecting double before it, without a plan
 *   faulty-late   ... with every control slot answering later, from another thread
 */
#ifndef FLUE_TESTS_CONF_H
#define FLUE_TESTS_CONF_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "doubles/faulty.h"

/* A call that must succeed; errno is part of the message. */
#define assert_ok(call)                                             \
	do {                                                        \
		errno = 0;                                          \
		if (!(call))                                        \
			fail_msg("%s: %s", #call, strerror(errno)); \
	} while (0)

/* A call that must fail with this errno. */
#define assert_fails(call, error)                                                                 \
	do {                                                                                      \
		errno = 0;                                                                        \
		if (call)                                                                         \
			fail_msg("%s succeeded, want '%s'", #call, strerror(error));              \
		if (errno != (error))                                                             \
			fail_msg("%s: '%s', want '%s'", #call, strerror(errno), strerror(error)); \
	} while (0)

/* ThreadSanitizer cannot start threads in a child of fork(). */
#if defined(__SANITIZE_THREAD__)
#define CONF_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CONF_TSAN 1
#endif
#endif
#ifndef CONF_TSAN
#define CONF_TSAN 0
#endif

/* An empty cell of docs/design/columns.md. `scripts/columns` reads these; the reason is for it. */
#define STRICT_ONLY(reason)     \
	do {                    \
		if (pair_full)  \
			skip(); \
	} while (0)
#define NOT_DENIED(reason)       \
	do {                     \
		if (pair_denied) \
			skip();  \
	} while (0)
#define NOT_SELF(reason)        \
	do {                    \
		if (pair_self)  \
			skip(); \
	} while (0)

/* Reads the arguments. The provider under test is then pair_provider. */
void conf_init(int argc, char **argv);

/* A connected pair with default options, as setup and teardown of a test; *state is it. */
int conf_open(void **state);
int conf_close(void **state);
#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, conf_open, conf_close)
/* The same, not connected. */
int conf_make(void **state);
#define WITH_IDLE_PAIR(test) cmocka_unit_test_setup_teardown(test, conf_make, conf_close)

/* After a test that changed the options: open it, or fail. */
struct pair *conf_pair(const struct pair_options *o);
/* Ends what conf_pair() began. */
void conf_end(struct pair *p);

/* The connection of both sides ended: takes both events, checks the reasons. Detail of a's. */
uint32_t conf_expect_end(struct pair *p, uint32_t reason_a, uint32_t reason_b);
/* No event waits at either side. */
void conf_expect_quiet(struct pair *p);

/* Both ends of a TCP connection over loopback. */
void conf_streams(int fd[2]);

#endif
