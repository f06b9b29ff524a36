/* SPDX-License-Identifier: MIT */
/*
 * Why a connection is on TCP. A reason is one word of memory, written at once and read by other
 * processes: the number of enum why in its low octet, and above that what it is about: which rule,
 * which option. Wherever an enum why is passed on, such a word can be.
 */
#ifndef FLUE_SOCKETS_WHY_H
#define FLUE_SOCKETS_WHY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "sockets/record/home.h"

/* What only TCP can do, but for options. */
enum why_act {
#define ACT(name, text) WHY_ACT_##name,
#include "sockets/record/why_acts.def"
#undef ACT
	WHY_ACTS
};

/* Without what it is about. */
static inline enum why why_number(uint32_t why)
{
	return (enum why)(why & 0xff);
}

/* A line of the file of rules, or a rule of the environment; 0: it has none. */
enum why why_rule(enum why why, bool from_file, uint32_t line);
/* WHY_OPTION, and which. */
enum why why_option(int level, int name);
enum why why_act(enum why_act act);
/* Of flags for send(). */
static inline enum why why_flags(int flags)
{
	return why_act(flags & MSG_OOB        ? WHY_ACT_URGENT
		       : flags & MSG_ZEROCOPY ? WHY_ACT_ZEROCOPY
					      : WHY_ACT_FASTOPEN);
}

/* What a reason is about, beside itself. */
struct why_place {
	uint32_t uid;      /* WHY_USER: the peer's */
	const char *rules; /* name of the file of rules; may be NULL */
};

/* A word for scripts, and a sentence for people; "unknown" and so on for what is none. */
const char *why_word(uint32_t why);
const char *why_sentence(uint32_t why);
/* What it is about: "SO_TIMESTAMP", "line 3 of FILE", "www-data (33)"; else "". */
void why_detail(char *out, size_t size, uint32_t why, const struct why_place *place);
/* What is said of a connection that was on TCP, up to the reason; and all of it. */
#define WHY_LINE 512
void why_line(char out[WHY_LINE], const struct rec *r, const char *program, int pid,
	      const char *rules);
#define WHY_BEFORE "was on TCP: "
/* Was it a connection at all? A socket may go back to TCP before it is one. */
static inline bool why_counts(const struct rec *r)
{
	return r->state >= REC_YOUNG && r->state <= REC_PLAIN && !(r->flags & REC_LISTEN) &&
	       !(r->state == REC_PLAIN && r->end.role == MEET_UNKNOWN && !(r->flags & REC_NAMED));
}
/* The sentence with what it is about. */
void why_text(char *out, size_t size, uint32_t why, const struct why_place *place);

#endif
