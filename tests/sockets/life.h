/* SPDX-License-Identifier: MIT */
/*
 * The process-life matrix: one program per row. A process (A) has a connection that has seen enough
 * turns for a lane; then a thing happens to the process or the descriptor, and whoever holds the
 * descriptor afterwards goes on with the stream where it was. The other end (B, the partner) does
 * what it is asked to by the channel beside the connection and compares every octet.
 */
#ifndef TESTS_SOCKETS_LIFE_H
#define TESTS_SOCKETS_LIFE_H

#include "stage.h"

enum life_how { LIFE_RECV, LIFE_POLL, LIFE_EPOLL, LIFE_EDGE, LIFE_SELECT, LIFE_HOWS };

struct life {
	struct stage st;
	int listener;
	int kind;          /* of the program's own variants */
	size_t pending;    /* octets that lie unread in A when the thing happens */
	bool asleep;       /* the partner sleeps in a read meanwhile */
	enum life_how how; /* it sleeps in this */
};

/* Plays one variant in a process of its own. */
typedef void life_play(struct life *l);

/*
 * main() of a row: every kind, with and without octets pending, with the partner asleep in each
 * way or awake. partner: a program to be the partner, NULL: a fork of this one.
 */
int life_main(life_play *play, int kinds, const char *partner);

/* ---- for play() ---- */
void life_connect(struct life *l);
void life_warm(struct life *l);
/* Connects, warms up, leaves octets pending and lets the partner fall asleep, as the variant says. */
void life_begin(struct life *l);
/* The holder of the descriptor reads what is pending, wakes the partner, and goes on. */
void life_go_on(struct life *l);
/* Another process has called life_go_on(): the positions afterwards. */
void life_skip(struct life *l);
/* Nothing is pending any more, nobody asleep. */
void life_calm(struct life *l);
/* All have closed; reports how the partner sees the end, and how many octets came before. */
void life_end(struct life *l);
/* The partner starts on it at once; life_answer() waits for its result. */
void life_ask(struct life *l, char what, size_t n);
int64_t life_answer(struct life *l);
#define LIFE_SENDS  's' /* so many octets */
#define LIFE_READS  'r' /* so many octets */
#define LIFE_WARMS  'w' /* so many turns, as the opposite of stage_warm() */
#define LIFE_ENDS   'e' /* reads to the end: two answers, 0 or -errno, and how many octets */
#define LIFE_SHUTS  'h' /* stops sending */
#define LIFE_URGES  'u' /* an urgent octet, after so many milliseconds */
#define LIFE_NESTS  'n' /* is in a set inside a set, for a moment */
#define LIFE_CLOSES 'c'
#define LIFE_MOVES  'm' /* goes on with another number */
#define LIFE_OPENS  'o' /* connects to port n */
#define LIFE_QUITS  'q'

/* Another program in the folder of this one. */
const char *life_neighbour(const char *name);
/* The heir's arguments: it goes on with the descriptor, or with one it is sent over it. */
void life_heir_args(const struct life *l, const char *program, int fd, bool by_rights,
		    char *const **argv);
int life_heir_main(int argc, char **argv);
/* Waits for a child; reports how it ended unless well. */
void life_wait(struct life *l, pid_t child);

/* life_partner.c */
int partner_main(int ctl, uint64_t seed);

#endif
