/* SPDX-License-Identifier: MIT */
/*
 * Events that arise inside a step of a state machine wait here until the step is done: the endpoint's
 * machine and the queue pair's act upon each other, and neither must be stepped while it is between
 * two states.
 *
 *	if (inbox_post(&o->inbox, &ev))                  inside a step: it waits, and that is all
 *		while (inbox_take(&o->inbox, &ev))
 *			step(o, &ev);
 *
 * Under the engine's lock.
 */
#ifndef FLUE_RNIC_INBOX_H
#define FLUE_RNIC_INBOX_H

#include <stdbool.h>
#include <stdint.h>

struct inbox_event {
	uint8_t event;
	uint32_t reason, detail; /* what the machine's owner says about it */
};

/* A step raises few events, and none twice: the first of a kind counts. */
#define INBOX_MAX 4

struct inbox {
	bool stepping;
	bool overflowed; /* more than that: nobody knew, and one is lost */
	uint8_t n;
	struct inbox_event waiting[INBOX_MAX];
};

/* true: no step is under way; the caller takes events until there are none. */
static inline bool inbox_post(struct inbox *b, const struct inbox_event *ev)
{
	bool first = !b->stepping;

	for (uint8_t i = 0; i < b->n; i++)
		if (b->waiting[i].event == ev->event)
			return false;
	if (b->n == INBOX_MAX) {
		b->overflowed = true;
		return false;
	}
	b->waiting[b->n++] = *ev;
	b->stepping = true;
	return first;
}

static inline bool inbox_take(struct inbox *b, struct inbox_event *ev)
{
	if (b->n == 0) {
		b->stepping = false;
		return false;
	}
	*ev = b->waiting[0];
	b->n--;
	for (uint8_t i = 0; i < b->n; i++)
		b->waiting[i] = b->waiting[i + 1];
	return true;
}

#endif
