/* SPDX-License-Identifier: MIT */
/*
 * The hostile peer. It meets the server through the library, as anybody does, and so has real lanes; then it writes
 * into their memory what it likes. A weapon is what it does to one lane, and in which situation:
 *
 *   bit:W:N      bit N of the word of direction W (0: what the attacker sends, 1: what the server sends) is turned over
 *   lane:O:V     the four octets at offset O of the lane's header get a value of kind V
 *   arena:O:V    ... of the arena's header
 *   storm:N      words of kind N change all the time
 *   NAME         an attack that knows what it does, see attacks.c
 *
 * followed by @SITUATION. Offsets and flags are counted, not named, so that none is forgotten.
 */
#ifndef TESTS_SIEGE_ATTACKER_H
#define TESTS_SIEGE_ATTACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "channel/arena.h"
#include "sockets/stage.h"

enum situation {
	IDLE, /* both ends sleep */
	BUSY, /* requests and answers all the time */
	FULL, /* the server wants to send more than fits, and nobody reads */
	SITUATIONS
};

/* A connection with a lane. */
struct lane {
	int fd;
	struct arena_shared *arena;
	struct lane_shared *shared;
	uint32_t number, side; /* ours; direction [side] is what we send */
	enum situation situation;
	const struct weapon *weapon;
	long a, b; /* what stands behind the colons */
	uint32_t step;
	uint64_t since; /* microseconds; for attacks that take turns */
	int fds[64];    /* for those that need some */
	int n_fds;
};

/* Either may be NULL. */
struct weapon {
	const char *name;
	void (*strike)(struct lane *l); /* once */
	void (*go_on)(struct lane *l);  /* again and again; never sleeps */
};

extern const struct weapon attacks[]; /* ends with a name of NULL */
extern const struct weapon counted[]; /* bit, lane, arena, storm */

extern struct random dice;
extern pid_t victim;

/* The words of the direction that we send in, and of the other. */
static inline struct lane_dir *lane_out(const struct lane *l)
{
	return &l->shared->dir[l->side];
}

static inline struct lane_dir *lane_in(const struct lane *l)
{
	return &l->shared->dir[1 - l->side];
}

/* Past the library: one octet, or none, on the carrier. */
void lane_octet(struct lane *l);
/* The server is told to look, as an honest peer would. */
void lane_stir(struct lane *l);
/* Each bell that this process holds, its own as well. */
void each_bell(void (*call)(int fd));
/* Ask for an answer through the library; never waits. */
void lane_ask(struct lane *l, uint32_t what, uint32_t size);
/* Take what has come, and throw it away. */
void lane_drain(struct lane *l);

#define STORMS 16
#define VALUES 8
extern const char *const storm_names[STORMS + 1];
/* How many words of four octets the two headers have. */
#define LANE_WORDS  (sizeof(struct lane_shared) / 4)
#define ARENA_WORDS (offsetof(struct arena_shared, lane) / 4)

#endif
