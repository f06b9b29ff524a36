/* SPDX-License-Identifier: MIT */
#include "base/robust_order.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

#define CLASSES 64
#define HELD    16
#define NAME    48

/* Classes are added and never taken away; the name is there before the count says so. */
static char names[CLASSES][NAME];
static _Atomic uint32_t n_classes;
static _Atomic uint32_t adding;
/* For each class those that were taken while a thread had it. */
static _Atomic uint64_t after[CLASSES];

static _Thread_local struct {
	const void *lock;
	int class;
} held[HELD] THREAD_LOCAL_FAST;
static _Thread_local int n_held THREAD_LOCAL_FAST;

/* What several files have is called after who has it, "r->tx_lock", or as they say; what one has alone after the file. */
static void say_class(char out[NAME], const char *name, const char *file)
{
	const char *base = strrchr(file, '/');

	if (*name == '&' && !strstr(name, "->"))
		snprintf(out, NAME, "%s: %s", base ? base + 1 : file, name + 1);
	else
		snprintf(out, NAME, "%s", name + (*name == '&'));
}

static int find(const char *text, uint32_t from)
{
	uint32_t n = atomic_load_explicit(&n_classes, memory_order_acquire);

	for (uint32_t i = from; i < n; i++)
		if (strcmp(names[i], text) == 0)
			return (int)i;
	return -1;
}

/* -1: there are too many, and this one is not looked at. */
static int class_of(const char *name, const char *file)
{
	char text[NAME];
	uint32_t none = 0, n;
	int found;

	say_class(text, name, file);
	found = find(text, 0);
	if (found >= 0 || !atomic_compare_exchange_strong(&adding, &none, 1))
		return found; /* another thread adds one just now: this time it is not looked at */
	n = atomic_load(&n_classes);
	found = find(text, 0);
	if (found < 0 && n < CLASSES) {
		strcpy(names[n], text);
		atomic_store_explicit(&n_classes, n + 1, memory_order_release);
		found = (int)n;
	}
	atomic_store(&adding, 0);
	return found;
}

/* Can `to` be reached from `from`? Each class once. */
static bool comes_before(int from, int to)
{
	uint64_t seen = 1ull << from, look = seen;

	while (look) {
		int at = __builtin_ctzll(look);
		uint64_t more = atomic_load_explicit(&after[at], memory_order_relaxed) & ~seen;

		if (at == to)
			return true;
		look = (look & (look - 1)) | more;
		seen |= more;
	}
	return false;
}

void robust_order_take(const char *name, const char *file)
{
	int class = n_held > 0 ? class_of(name, file) : -1;

	for (int i = 0; class >= 0 && i < n_held && i < HELD; i++) {
		int before = held[i].class;

		if (before < 0 || before == class ||
		    (atomic_load_explicit(&after[before], memory_order_relaxed) >> class & 1))
			continue;
		if (comes_before(class, before)) {
			fprintf(stderr,
				"flue: takes %s with %s held: elsewhere it is the other way round\n",
				names[class], names[before]);
			abort();
		}
		atomic_fetch_or_explicit(&after[before], 1ull << class, memory_order_relaxed);
	}
}

void robust_order_has(const void *lock, const char *name, const char *file)
{
	if (n_held < HELD) {
		held[n_held].lock = lock;
		held[n_held].class = class_of(name, file);
	}
	n_held++;
}

void robust_order_gives(const void *lock)
{
	int i = n_held - 1;

	while (i >= 0 && (i >= HELD || held[i].lock != lock))
		i--;
	/* One that another thread took, before a fork, or too many. */
	if (n_held > 0)
		n_held--;
	for (; i >= 0 && i < n_held && i + 1 < HELD; i++)
		held[i] = held[i + 1];
}

int robust_order_held(void)
{
	return n_held;
}

void robust_order_forked(void)
{
	n_held = 0;
	atomic_store(&adding, 0);
}
