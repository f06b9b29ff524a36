/* SPDX-License-Identifier: MIT */
/* Places of objects and who uses them. See api.h. */
#include "api.h"

void slot_init(struct slot *s)
{
	pthread_mutex_init(&s->lock, NULL);
	s->state = SLOT_EMPTY;
	s->users = 0;
	s->retired = false;
}

bool slot_take(struct slot *s)
{
	bool ok;

	pthread_mutex_lock(&s->lock);
	ok = s->state == SLOT_LIVE && !s->retired;
	s->users += ok;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void slot_join(struct slot *s)
{
	pthread_mutex_lock(&s->lock);
	must(s->users > 0);
	s->users++;
	pthread_mutex_unlock(&s->lock);
}

void slot_put(void *slot)
{
	struct slot *s = slot;

	pthread_mutex_lock(&s->lock);
	must(s->users > 0);
	s->users--;
	pthread_mutex_unlock(&s->lock);
}

bool slot_hold(struct slot *s)
{
	if (!slot_take(s))
		return false;
	undo_push(slot_put, s);
	return true;
}

bool slot_claim(struct slot *s, enum slot_state from)
{
	bool ok;

	pthread_mutex_lock(&s->lock);
	ok = s->state == from && !s->users;
	if (ok)
		s->state = SLOT_CLAIMED;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

bool slot_claim_soon(struct slot *s, enum slot_state from)
{
	uint64_t end = now_ms() + PATIENCE_MS;
	bool ok;

	pthread_mutex_lock(&s->lock);
	ok = s->state == from;
	if (ok)
		s->state = SLOT_CLAIMED;
	while (ok && s->users) {
		pthread_mutex_unlock(&s->lock);
		must(now_ms() < end);
		usleep(100);
		pthread_mutex_lock(&s->lock);
	}
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void slot_release(struct slot *s, enum slot_state to)
{
	pthread_mutex_lock(&s->lock);
	must(s->state == SLOT_CLAIMED);
	s->state = to;
	s->retired = false;
	pthread_mutex_unlock(&s->lock);
}

bool slot_is(struct slot *s, enum slot_state state)
{
	bool ok;

	pthread_mutex_lock(&s->lock);
	ok = s->state == state;
	pthread_mutex_unlock(&s->lock);
	return ok;
}
