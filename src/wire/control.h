/* SPDX-License-Identifier: MIT */
/*
 * The control message of full service: what the responder of requests tells about them, and where the
 * requester goes on.
 *
 * In full service each message that asks for something (rdmap_op_info.request) has a number, by its place in
 * the stream: the first is 0. Numbers wrap. A message that was dropped for want of a receive, and those behind it, do
 * not count until they come again.
 *
 *   0 kind  1 code  2 detail (2)  4 number
 */
#ifndef FLUE_WIRE_CONTROL_H
#define FLUE_WIRE_CONTROL_H

#include <stdint.h>

#include "wire/fault.h"

#define CONTROL_LEN 8

enum control_kind {
	CONTROL_ACK = 0, /* all messages before `number` are done */
	CONTROL_NOT_READY, /* `number` found no receive; `code`: how long to wait, 0 to 31, or CONTROL_AGAIN */
	CONTROL_ERROR,  /* `number` can not be done (enum control_error), nor those behind it */
	CONTROL_RESUME, /* by the requester: `number` comes next, again */
	CONTROL_ASK,    /* by the requester: acknowledge what is done */
	CONTROL_NKINDS,
};

enum control_error {
	CONTROL_ACCESS = 1, /* memory that it may not touch */
	CONTROL_REQUEST,    /* not understood, too long, too many, misaligned */
	CONTROL_OPERATION,  /* the responder could not, for reasons of its own */
};

#define CONTROL_TIMER_MAX 31
#define CONTROL_AGAIN \
	32 /* at once: the responder could not get at its octets where they were said to be */

struct control {
	uint8_t kind, code;
	uint16_t detail; /* ERROR: the fault, for people: layer, type and code as in a Terminate */
	uint32_t number;
};

void control_encode(const struct control *c, uint8_t buf[CONTROL_LEN]);
/* FAULT_RDMAP_OTHER: an unknown kind, or a code that the kind has not. */
uint32_t control_decode(struct control *c, const uint8_t buf[CONTROL_LEN]);

/* How the requester hears of a fault that the responder found in its request. */
enum control_error control_error_of(uint32_t fault);

/* How long to wait, in microseconds, for the verbs' code of a receiver-not-ready timer. */
uint32_t control_timer_us(uint8_t code);

#endif
