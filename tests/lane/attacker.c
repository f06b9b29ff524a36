/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "lane/attacker.h"

/* Numbers at which comparisons go wrong. */
static uint32_t edge(struct attacker *a, uint32_t near)
{
	static const uint32_t steps[] = { 0,
					  1,
					  2,
					  LANE_TURNS,
					  LANE_TURNS + 1,
					  LANE_REWIND,
					  LANE_RING - 1,
					  LANE_RING,
					  LANE_RING + 1,
					  1u << 31,
					  0x7fffffff };
	uint32_t step = steps[dice_roll(&a->dice, ARRAY_SIZE(steps))];

	if (dice_roll(&a->dice, 8) == 0)
		return (uint32_t)a->dice.state;
	return dice_roll(&a->dice, 2) ? near + step : near - step;
}

static void write_word(struct attacker *a, struct lane_dir *d)
{
	uint64_t w = atomic_load(&d->word);

	/* With a lock, or the victim's own changes would be lost most of the time. */
	if (a->gentle || dice_roll(&a->dice, 2)) {
		/* Not those of a receiver that takes octets back: all would wait for it. */
		atomic_fetch_xor(&d->word, dice_roll(&a->dice, 3) == 0
						   ? LANE_NAPPING << dice_roll(&a->dice, 2)
						   : LANE_ATTACHED << dice_roll(&a->dice, 6));
		return;
	}
	switch (dice_roll(&a->dice, 4)) {
	case 0: w ^= 1ull << dice_roll(&a->dice, 64); break;
	case 1: w = a->dice.state; break;
	case 2: w = (w & ~0xffffffffull) | edge(a, (uint32_t)w); break;
	case 3:
		w = (w & ~(0xffffull << LANE_TURN_SHIFT)) |
		    (uint64_t)(uint16_t)edge(a, lane_word_turns(w)) << LANE_TURN_SHIFT;
		break;
	}
	atomic_store(&d->word, w);
}

static void write_turn(struct attacker *a, struct lane_dir *d)
{
	uint64_t near = atomic_load_explicit(a->pos, memory_order_relaxed);
	uint64_t value = dice_roll(&a->dice, 4) == 0 ? a->dice.state
						     : near + (int64_t)(int32_t)edge(a, 0);

	atomic_store(&d->turn[dice_roll(&a->dice, LANE_TURNS)], value);
}

void attacker_write(struct attacker *a)
{
	struct lane_dir *d = a->dir[dice_roll(&a->dice, 2)];

	switch (dice_roll(&a->dice, 8)) {
	case 0:
	case 1:
	case 2: write_word(a, d); break;
	case 3:
		if (!a->gentle)
			atomic_store(&d->head, edge(a, (uint32_t)atomic_load(&d->word)));
		break;
	case 4: atomic_store(&d->seen, edge(a, lane_word_turns(atomic_load(&d->word)))); break;
	case 5: atomic_store(&d->base, edge(a, (uint32_t)atomic_load(&d->word))); break;
	case 6: write_turn(a, d); break;
	case 7:
		atomic_store(&d->tx_cpu, (uint32_t)a->dice.state);
		atomic_store(&d->rx_cpu, (uint32_t)a->dice.state);
		atomic_store(&d->tx_sleeps, (uint32_t)a->dice.state);
		break;
	}
	atomic_fetch_add_explicit(a->writes, 1, memory_order_relaxed);
}

static void *attack(void *arg)
{
	const struct timespec nap = { .tv_nsec = 10000 };
	struct attacker *a = arg;

	while (!atomic_load_explicit(a->stop, memory_order_relaxed)) {
		attacker_write(a);
		/* A nap, not a yield: that gives a whole slice to whoever else is there. */
		if (dice_roll(&a->dice, 100) < a->pause)
			nanosleep(&nap, NULL);
	}
	return NULL;
}

bool attacker_start(struct attacker *a, bool process)
{
	a->pid = 0;
	if (!process)
		return pthread_create(&a->thread, NULL, attack, a) == 0;
	a->pid = fork();
	if (a->pid == 0) {
		attack(a);
		_exit(EXIT_SUCCESS);
	}
	return a->pid > 0;
}

bool attacker_stop(struct attacker *a)
{
	int status = 0;

	atomic_store(a->stop, 1);
	if (!a->pid)
		return pthread_join(a->thread, NULL) == 0;
	return waitpid(a->pid, &status, 0) == a->pid && status == 0;
}
