/* SPDX-License-Identifier: MIT */
/*
 * Events of one adapter: a queue in order of arrival and a descriptor made on demand.
 *
 * An object owns the slots its events travel in and reserves them before it starts whatever can
 * raise them (see acc_conn_begin()), so an event is never lost for want of memory. A listener has
 * one slot with a count, because equal notices need no order among themselves.
 */
#include <stdlib.h>

#include "access/access_priv.h"
#include "base/probe.h"

void acc_events_init(struct acc_events *events)
{
	events->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	events->filled = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
	TAILQ_INIT(&events->queue);
	events->flag = (struct flag)FLAG_NONE;
}

void acc_events_fini(struct acc_events *events, bool inherited)
{
	flag_close(&events->flag, inherited);
}

static void enqueue(struct acc_events *events, struct acc_slot *slot)
{
	if (TAILQ_EMPTY(&events->queue))
		flag_show(&events->flag, true);
	TAILQ_INSERT_TAIL(&events->queue, slot, link);
	pthread_cond_signal(&events->filled);
}

static void dequeue(struct acc_events *events, struct acc_slot *slot)
{
	TAILQ_REMOVE(&events->queue, slot, link);
	slot->count = 0;
	TAILQ_INSERT_TAIL(&slot->source->idle, slot, link);
	if (TAILQ_EMPTY(&events->queue))
		flag_show(&events->flag, false);
}

_Static_assert(FLUE_EVENT_NTYPES <= UINT8_MAX, "acc_slot.type");

static struct flue_event event_of(const struct acc_slot *slot)
{
	return (struct flue_event) { .type = slot->type,
				     .reason = slot->reason,
				     .detail = slot->detail,
				     .port = slot->port,
				     .u.object = slot->source->object };
}

int acc_events_take(struct acc_adapter *a, struct flue_event *ev, int timeout_ms, int cancel_was)
{
	struct acc_events *events = &a->events;
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, timeout_ms);
	struct acc_slot *slot;
	int rc = 0;

	pthread_mutex_lock(&events->lock);
	while (!rc && TAILQ_EMPTY(&events->queue)) {
		if (!timeout_ms)
			rc = -EAGAIN;
		else if (!acc_sleep_until(&events->filled, &events->lock, at, cancel_was))
			rc = TAILQ_EMPTY(&events->queue) ? -ETIMEDOUT : 0;
	}
	if (!rc) {
		slot = TAILQ_FIRST(&events->queue);
		*ev = event_of(slot);
		if (--slot->count) {
			/* Others' events must not wait behind a busy listener. */
			TAILQ_REMOVE(&events->queue, slot, link);
			TAILQ_INSERT_TAIL(&events->queue, slot, link);
		} else {
			dequeue(events, slot);
		}
	}
	pthread_mutex_unlock(&events->lock);
	return rc;
}

int acc_events_fd(struct acc_adapter *a)
{
	struct acc_events *events = &a->events;
	int lamp = acc_tasks_lamp(&a->tasks), rc = 0;

	if (lamp < 0)
		return lamp;
	pthread_mutex_lock(&events->lock);
	if (events->flag.fd < 0)
		rc = flag_open(&events->flag, lamp, !TAILQ_EMPTY(&events->queue));
	if (!rc)
		rc = events->flag.fd;
	pthread_mutex_unlock(&events->lock);
	return rc;
}

void acc_source_init(struct acc_source *source, struct acc_adapter *a, void *object,
		     flue_event_fn fn, void *arg)
{
	source->adapter = a;
	source->object = object;
	source->fn = fn;
	source->arg = arg;
	TAILQ_INIT(&source->idle);
}

void acc_source_add(struct acc_source *source, struct acc_slot *slot)
{
	slot->source = source;
	TAILQ_INSERT_TAIL(&source->idle, slot, link);
}

int acc_source_reserve(struct acc_source *source, uint32_t n)
{
	struct acc_events *events = &source->adapter->events;
	struct acc_slot *slot;

	if (source->fn)
		return 0;
	pthread_mutex_lock(&events->lock);
	TAILQ_FOREACH(slot, &source->idle, link)
		n -= n > 0;
	pthread_mutex_unlock(&events->lock);
	for (; n; n--) {
		slot = calloc(1, sizeof(*slot));
		if (!slot)
			return -ENOMEM;
		slot->on_heap = true;
		pthread_mutex_lock(&events->lock);
		acc_source_add(source, slot);
		pthread_mutex_unlock(&events->lock);
	}
	return 0;
}

static struct acc_slot *next_queued(struct acc_source *source)
{
	struct acc_slot *slot;

	TAILQ_FOREACH(slot, &source->adapter->events.queue, link)
		if (slot->source == source)
			return slot;
	return NULL;
}

void acc_source_fini(struct acc_source *source)
{
	struct acc_events *events = &source->adapter->events;
	struct acc_slot *slot;

	if (acc_inherited(source->adapter))
		return;
	pthread_mutex_lock(&events->lock);
	while ((slot = next_queued(source)))
		dequeue(events, slot);
	pthread_mutex_unlock(&events->lock);
	while ((slot = TAILQ_FIRST(&source->idle))) {
		TAILQ_REMOVE(&source->idle, slot, link);
		if (slot->on_heap)
			free(slot);
	}
}

void acc_source_mute(struct acc_source *source)
{
	struct acc_events *events = &source->adapter->events;

	pthread_mutex_lock(&events->lock);
	__atomic_store_n(&source->mute, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&events->lock);
}

bool acc_source_is_mute(struct acc_source *source)
{
	return __atomic_load_n(&source->mute, __ATOMIC_ACQUIRE);
}

void acc_event_raise(struct acc_source *source, const struct flue_event *ev)
{
	struct acc_events *events = &source->adapter->events;
	struct flue_event named = *ev;
	struct acc_frame frame;
	struct acc_slot *slot;

	named.u.object = source->object;
	PROBE(event, source->object, ev->type, ev->reason, ev->detail);
	if (source->fn && acc_source_is_mute(source))
		return;
	if (source->fn) {
		acc_frame_enter(&frame, source->object, NULL);
		source->fn(&named, source->arg);
		acc_frame_leave(&frame);
		return;
	}
	pthread_mutex_lock(&events->lock);
	slot = source->mute ? NULL : TAILQ_FIRST(&source->idle);
	if (slot) {
		TAILQ_REMOVE(&source->idle, slot, link);
		slot->type = (uint8_t)ev->type;
		slot->reason = ev->reason;
		slot->detail = ev->detail;
		slot->port = (uint16_t)ev->port;
		slot->count = 1;
		enqueue(events, slot);
	} else if (source->counted && !source->mute) {
		source->counted->count++;
		pthread_cond_signal(&events->filled);
	}
	/* Else the same notice (CQ_ERROR, SRQ_LIMIT) is still unread: it says it all. */
	pthread_mutex_unlock(&events->lock);
}

void acc_event_limit(struct acc_source *source, uint32_t left)
{
	struct acc_events *events = &source->adapter->events;
	struct acc_slot *slot = source->counted;

	pthread_mutex_lock(&events->lock);
	if (slot->count > left) {
		if (left)
			slot->count = left;
		else
			dequeue(events, slot);
	}
	pthread_mutex_unlock(&events->lock);
}
