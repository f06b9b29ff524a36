/* SPDX-License-Identifier: MIT */
#include "model/driver.h"

static uint32_t end_of(const struct area *a, uint32_t i)
{
	return a->slots[i % SLOTS].at + a->slots[i % SLOTS].size;
}

bool area_place(const struct area *a, uint32_t size, uint32_t *at)
{
	uint32_t end = a->last ? end_of(a, a->last - 1) : 0, begin;
	bool none = a->soft == a->last;

	if (a->last - a->first >= SLOTS - 1 || a->last - a->soft >= SLOTS - 1 || size > a->size)
		return false;
	begin = none ? end : a->slots[a->soft % SLOTS].at;
	if (none || begin < end) {
		*at = a->size - end >= size ? end : 0;
		return a->size - end >= size || none || begin >= size;
	}
	*at = end;
	return begin - end >= size;
}

bool area_is_free(const struct area *a, uint32_t at, uint32_t size)
{
	for (uint32_t i = a->first; i != a->last; i++)
		if (at < end_of(a, i) && a->slots[i % SLOTS].at < at + size)
			return false;
	return true;
}

void area_take(struct area *a, uint32_t at, uint32_t size)
{
	a->slots[a->last % SLOTS].at = at;
	a->slots[a->last % SLOTS].size = size;
	a->last++;
}

void area_free_first(struct area *a)
{
	/* `soft` stays: what is free earlier than foreseen must not change a decision. */
	a->first++;
}

void area_clear(struct area *a)
{
	a->first = a->soft = a->posted = a->last;
}
