/* SPDX-License-Identifier: MIT */
/*
 * What the tests of the SDP engine share: two transports of one kind in one process, `a` for the
 * engine under test and `b` for its peer, which is a raw peer (raw.h) or a second engine. Each
 * program takes the kind as its argument:
 *   local        shared memory; Hellos in the layout of InfiniBand
 *   rnic         the software RNIC, polled; Hellos in the layout of iWARP
 *   rnic-direct  the same with up-calls from the library's threads
 */
#ifndef FLUE_TESTS_SDP_BED_H
#define FLUE_TESTS_SDP_BED_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "sockets/ot/oti.h"
#include "sockets/sdp/sdp_conn.h"

#define BED_PATIENCE_MS 100000 /* for hangs; everything here takes milliseconds, or a few seconds */

struct bed {
	const char *kind;
	bool direct;
	enum sdp_layout layout;
	struct oti *a, *b;
	struct oti_addr addr; /* loopback, port 0 */
};
extern struct bed bed;

/* Reads the arguments. */
void bed_init(int argc, char **argv);
/* Setup and teardown of a test. */
int bed_open(void **state);
int bed_close(void **state);
#define WITH_BED(test) cmocka_unit_test_setup_teardown(test, bed_open, bed_close)

/* Opens another transport of the same kind beside `a`; for `local` a pair of sides. */
void bed_open_transports(struct oti **a, struct oti **b);
void bed_close_transport(struct oti *o);

/* Polls both transports, or lets the library's threads work. */
void bed_step(void);
void bed_step_for(unsigned ms);
uint64_t bed_now_ms(void);

/* Goes on until the condition holds. */
#define bed_until(cond)                                                                  \
	do {                                                                             \
		uint64_t bed_end_ = bed_now_ms() + BED_PATIENCE_MS;                      \
		while (!(cond)) {                                                        \
			if (bed_now_ms() > bed_end_)                                     \
				fail_msg("%s:%d: never: %s", __FILE__, __LINE__, #cond); \
			bed_step();                                                      \
		}                                                                        \
	} while (0)

/* ---- an engine ---- */

/* Attributes for side a; small buffers, so that limits are met. */
struct sdp_attr bed_attr(void);
/* A field of an engine that up-calls may change meanwhile. */
#define AT(c, field)                              \
	({                                        \
		struct sdp_conn *at_ = (c);       \
		__typeof__(at_->field) at_value_; \
		lock_take(&at_->lock);            \
		at_value_ = at_->field;           \
		lock_give(&at_->lock);            \
		at_value_;                        \
	})
uint32_t bed_credits(struct sdp_conn *c);
/* Its transport takes messages; an open connection may have to wait for that. */
bool bed_is_up(struct sdp_conn *c);
/* Status bits are all there. */
bool bed_has(struct sdp_conn *c, uint32_t bits);
/* Reads whatever is there now. */
ssize_t bed_recv(struct sdp_conn *c, void *to, size_t len);
ssize_t bed_send(struct sdp_conn *c, const void *from, size_t len);
/* Sends or receives all of it. */
void bed_send_all(struct sdp_conn *c, const void *from, size_t len);
void bed_recv_all(struct sdp_conn *c, void *to, size_t len);

/* A listener with memory for its children. */
#define BED_CHILDREN 16
struct bed_listener {
	struct sdp_listener l;
	struct sdp_conn children[BED_CHILDREN];
	_Atomic bool used[BED_CHILDREN];
	_Atomic unsigned dropped, notified;
};
void bed_listen(struct bed_listener *bl, const struct sdp_attr *attr, unsigned backlog);
void bed_unlisten(struct bed_listener *bl);
/* A child is no longer used. */
void bed_free(struct bed_listener *bl, struct sdp_conn *c);

/* Octets that depend on the place, and their check. */
uint8_t bed_octet(uint64_t place, uint32_t seed);
void bed_fill(uint8_t *to, size_t len, uint64_t place, uint32_t seed);
bool bed_check(const uint8_t *at, size_t len, uint64_t place, uint32_t seed);

#endif
