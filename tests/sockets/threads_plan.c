/* SPDX-License-Identifier: MIT */
/*
 * Plans: what the threads of W do, drawn from the seed alone. How it comes out depends on the
 * moment, what is tried does not.
 */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "threads.h"

static const struct {
	const char *name;
	unsigned weight;
	uint32_t may; /* all of these */
} deeds[DEEDS] = {
	[DO_OPEN] = { "open", 9, 0 },
	[DO_SEND] = { "send", 30, 0 },
	[DO_RECV] = { "recv", 30, 0 },
	[DO_POLL] = { "poll", 9, 0 },
	[DO_EPOLL] = { "epoll", 9, MAY_SETS },
	[DO_INTEREST] = { "interest", 9, MAY_SETS },
	[DO_SET] = { "set", 2, MAY_SETS },
	[DO_CLOSE] = { "close", 3, 0 },
	[DO_DUP] = { "dup", 4, 0 },
	[DO_SHUT] = { "shut", 1, MAY_SHUT },
	[DO_OPTION] = { "option", 5, 0 },
	[DO_SIGNAL] = { "signal", 6, 0 },
	[DO_CANCEL] = { "cancel", 3, MAY_CANCEL },
	[DO_FORK] = { "fork", 1, MAY_FORK },
	[DO_EXEC] = { "exec", 1, MAY_EXEC },
	[DO_RIGHTS] = { "rights", 2, MAY_RIGHTS },
	[DO_ARRIVE] = { "arrive", 5, 0 },
	[DO_NAP] = { "nap", 3, 0 },
};

static const char *const may_names[MAY_BITS] = {
	"sets",     "raw",  "bad",  "fork",   "exec", "cancel", "restart",  "break",    "time",
	"nonblock", "room", "high", "rights", "shut", "pipes",  "fewfiles", "fewspace", "fewsize",
};

const char *plan_name(enum deed deed)
{
	return deeds[deed].name;
}

void plan_seed(uint64_t seed, struct world *w)
{
	struct random r = { seed * 0x9e3779b97f4a7c15 + 7 };
	uint32_t limit;

	w->seed = seed;
	code_key = random_next(&r);
	w->may = (uint32_t)random_next(&r) & ((1u << MAY_BITS) - 1);
	/* These make much else impossible, or end lanes early: not in every other program. */
	w->may &= ~(uint32_t)(MAY_FEWFILES | MAY_FEWSPACE | MAY_FEWSIZE);
	limit = random_below(&r, 16);
	if (limit < 3)
		w->may |= (uint32_t)MAY_FEWFILES << limit;
	if (random_below(&r, 3))
		w->may &= ~(uint32_t)(MAY_FORK | MAY_EXEC | MAY_RIGHTS);
	/* Handlers of both kinds in one program, sometimes. */
	if (random_below(&r, 4))
		w->may &= random_below(&r, 2) ? ~(uint32_t)MAY_BREAK : ~(uint32_t)MAY_RESTART;
	w->threads = 2 + (int)random_below(&r, MAX_THREADS - 1);
	w->slots = 2 + (int)random_below(&r, MAX_SLOTS - 1);
	w->sets = 1 + (int)random_below(&r, MAX_SETS);
	w->steps = 100 + (int)random_below(&r, 300);
}

bool plan_change(const char *word)
{
	for (int i = 0; i < MAY_BITS; i++) {
		if (strcmp(word + 1, may_names[i]) != 0)
			continue;
		if (word[0] == '-')
			world->may &= ~(1u << i);
		else
			world->may |= 1u << i;
		return word[0] == '-' || word[0] == '+';
	}
	return false;
}

static bool allowed(enum deed deed)
{
	if (deed == DO_SIGNAL && !(world->may & (MAY_RESTART | MAY_BREAK)))
		return false;
	return (world->may & deeds[deed].may) == deeds[deed].may;
}

static enum deed draw_deed(struct random *r)
{
	unsigned total = 0, ticket;
	enum deed deed;

	for (deed = 0; deed < DEEDS; deed++)
		total += deeds[deed].weight;
	do {
		ticket = random_below(r, total);
		for (deed = 0; ticket >= deeds[deed].weight; deed++)
			ticket -= deeds[deed].weight;
	} while (!allowed(deed));
	return deed;
}

static int draw_flags(struct random *r, enum deed deed)
{
	static const int out[] = {
		0, MSG_DONTWAIT, MSG_NOSIGNAL, MSG_DONTWAIT | MSG_NOSIGNAL, MSG_MORE, 0
	};
	static const int in[] = { 0,
				  MSG_DONTWAIT,
				  MSG_PEEK,
				  MSG_WAITALL,
				  MSG_TRUNC | MSG_DONTWAIT,
				  MSG_PEEK | MSG_DONTWAIT,
				  MSG_DONTWAIT,
				  0 };
	uint32_t i = random_below(r, 24);

	if (deed == DO_SEND)
		return out[i % 6];
	return deed == DO_RECV ? in[i % 8] : 0;
}

/* The same number of draws, whatever comes out: plans do not shift. */
void plan_act(struct random *r, struct act *a)
{
	uint32_t bulk, pause;

	a->deed = draw_deed(r);
	a->flags = draw_flags(r, a->deed);
	a->slot = (uint8_t)random_below(r, (uint32_t)world->slots);
	a->other = (uint8_t)random_below(r, (uint32_t)world->slots);
	a->set = (uint8_t)random_below(r, (uint32_t)world->sets);
	a->how = (uint8_t)random_below(r, 240);
	a->flavour = (uint8_t)random_below(r, 240);
	a->raw = random_below(r, 3) == 0 && world->may & MAY_RAW;
	a->pointer = PTR_GOOD;
	if (random_below(r, 8) == 0 && world->may & MAY_BAD)
		a->pointer = (enum pointer)(1 + a->flavour % (POINTERS - 1));
	bulk = random_below(r, 12);
	a->size = random_size(r, RECORD_HEAD, bulk == 0 ? RECORD_MAX : bulk < 4 ? 20000 : 400);
	pause = random_below(r, 8);
	a->us = random_below(r, pause == 0 ? 3000 : pause < 3 ? 200 : 1);
	if (a->deed != DO_NAP && pause > 2)
		a->us = 0;
}

void plan_print(void)
{
	struct random r;
	struct act a;

	printf("seed %llu: %d threads, %d slots, %d sets, %d steps;",
	       (unsigned long long)world->seed, world->threads, world->slots, world->sets,
	       world->steps);
	for (int i = 0; i < MAY_BITS; i++)
		if (world->may >> i & 1)
			printf(" %s", may_names[i]);
	printf("\n");
	for (int t = 0; t < world->threads; t++) {
		r.state = world->seed * 64 + (uint64_t)t;
		for (int i = 0; i < world->steps; i++) {
			plan_act(&r, &a);
			printf("%d.%d %s slot %u, %u, set %u, how %u.%u%s, flags %x, size %u, "
			       "pointer %d, after %u us\n",
			       t, i, plan_name(a.deed), a.slot, a.other, a.set, a.how, a.flavour,
			       a.raw ? " raw" : "", (unsigned)a.flags, a.size, a.pointer, a.us);
		}
	}
}
