/* SPDX-License-Identifier: MIT */
#include "rnic/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>

#include "base/util.h"
#include "rnic/address.h"
#include "rnic/bringup.h"
#include "rnic/cep.h"
#include "rnic/listener.h"
#include "rnic/qp.h"

#define PLACE_BITS      8
#define SPARE           64 /* places that are free before another port is taken: a number rests so long */
#define CALLS_MAX       1024
#define CALL_TIMEOUT_MS 5000
#define HALF_OPEN_MAX   1024

void rendezvous_init(struct rendezvous_table *t)
{
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->unpinned, NULL);
	LIST_INIT(&t->all);
	TAILQ_INIT(&t->free);
	TAILQ_INIT(&t->calls);
}

static void end(struct rendezvous *v)
{
	listener_destroy(v->listener);
	free(v);
}

void rendezvous_fini(struct rendezvous_table *t)
{
	struct rendezvous *v;

	while ((v = LIST_FIRST(&t->all))) {
		LIST_REMOVE(v, all);
		end(v);
	}
	free(t->plain);
	pthread_cond_destroy(&t->unpinned);
	pthread_mutex_destroy(&t->lock);
}

/* ---- numbers that nobody dials ---- */

static bool take_bit(uint32_t *bits, uint32_t n)
{
	uint32_t bit = 1u << n % 32;

	if (bits[n / 32] & bit)
		return false;
	bits[n / 32] |= bit;
	return true;
}

int rendezvous_plain(struct rnic *r, uint32_t *number)
{
	struct rendezvous_table *t = &r->numbers;
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	if (!t->plain)
		t->plain = calloc(RENDEZVOUS_PLAIN / 32, sizeof(*t->plain));
	if (!t->plain)
		rc = -ENOMEM;
	else if (t->n_plain == RENDEZVOUS_PLAIN - 1)
		rc = -ENOSPC;
	if (!rc) {
		/* On from the last one: what was given back is last in turn. 0 is nobody's. */
		do {
			t->last_plain = t->last_plain % (RENDEZVOUS_PLAIN - 1) + 1;
		} while (!take_bit(t->plain, t->last_plain));
		t->n_plain++;
		*number = t->last_plain;
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

/* ---- numbers that can be dialled ---- */

/* IPv6 with IPv4 in it, or where there is no IPv6, IPv4. */
static int open_listener(struct rnic *r, struct sockaddr_storage *bound, struct listener **out)
{
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct listen_attr attr = { .local = (const struct sockaddr *)&v6,
				    .local_len = sizeof(v6),
				    .max_half_open = HALF_OPEN_MAX,
				    .request_timeout_ms = CALL_TIMEOUT_MS,
				    .full = true,
				    .rendezvous = true };
	int rc = listener_create(r, &attr, bound, out);

	if (rc != -EAFNOSUPPORT && rc != -EADDRNOTAVAIL)
		return rc;
	attr.local = (const struct sockaddr *)&v4;
	attr.local_len = sizeof(v4);
	return listener_create(r, &attr, bound, out);
}

static int open_rendezvous(struct rnic *r)
{
	struct rendezvous *v = calloc(1, sizeof(*v));
	struct rendezvous_table *t = &r->numbers;
	struct sockaddr_storage bound;
	int rc;

	if (!v)
		return -ENOMEM;
	rc = open_listener(r, &bound, &v->listener);
	if (rc) {
		free(v);
		return rc;
	}
	v->port = address_port(&bound);
	pthread_mutex_lock(&t->lock);
	LIST_INSERT_HEAD(&t->all, v, all);
	for (uint32_t i = 0; i < RENDEZVOUS_PLACES; i++) {
		v->place[i].number = (uint32_t)v->port << PLACE_BITS | i;
		TAILQ_INSERT_TAIL(&t->free, &v->place[i], free);
	}
	t->n_free += RENDEZVOUS_PLACES;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static bool has_spare(struct rendezvous_table *t)
{
	bool has;

	pthread_mutex_lock(&t->lock);
	has = t->n_free > SPARE;
	pthread_mutex_unlock(&t->lock);
	return has;
}

/* NULL: not a number of ours. */
static struct rendezvous *find(struct rendezvous_table *t, uint32_t number)
{
	struct rendezvous *v;

	if (number % (1u << PLACE_BITS) >= RENDEZVOUS_PLACES)
		return NULL;

	LIST_FOREACH(v, &t->all, all) {
		if (v->port == number >> PLACE_BITS)
			return v;
	}
	return NULL;
}

static struct rendezvous_place *place(struct rendezvous *v, uint32_t number)
{
	return &v->place[number % (1u << PLACE_BITS)];
}

static int take_place(struct rendezvous_table *t, struct qp *q, uint32_t *number)
{
	struct rendezvous_place *p;

	pthread_mutex_lock(&t->lock);
	p = TAILQ_FIRST(&t->free);
	if (p) {
		TAILQ_REMOVE(&t->free, p, free);
		t->n_free--;
		p->qp = q;
		find(t, p->number)->used++;
		*number = p->number;
	}
	pthread_mutex_unlock(&t->lock);
	return p ? 0 : -ENOSPC;
}

int rendezvous_join(struct rnic *r, struct qp *q, uint32_t *number)
{
	int rc = 0, late;

	if (!has_spare(&r->numbers))
		rc = open_rendezvous(r);
	/* Without another port a number rests less. */
	late = take_place(&r->numbers, q, number);
	return late ? (rc ? rc : late) : 0;
}

static void drop_calls(struct rendezvous_table *t, uint32_t number, struct rendezvous_calls *out)
{
	struct cep *c, *next;

	TAILQ_FOREACH_SAFE(c, &t->calls, of_listener, next) {
		if (cep_called(c) != number)
			continue;
		TAILQ_REMOVE(&t->calls, c, of_listener);
		t->n_calls--;
		TAILQ_INSERT_TAIL(out, c, of_listener);
	}
}

/* Nobody is left there: its port may go, unless numbers would come back too soon. NULL: it stays. */
static struct rendezvous *unneeded(struct rendezvous_table *t, struct rendezvous *v)
{
	if (v->used || t->n_free < 2 * RENDEZVOUS_PLACES + SPARE)
		return NULL;
	for (uint32_t i = 0; i < RENDEZVOUS_PLACES; i++)
		TAILQ_REMOVE(&t->free, &v->place[i], free);
	t->n_free -= RENDEZVOUS_PLACES;
	LIST_REMOVE(v, all);
	return v;
}

static void leave_place(struct rendezvous_table *t, uint32_t number)
{
	struct rendezvous_calls orphans = TAILQ_HEAD_INITIALIZER(orphans);
	struct rendezvous_place *p;
	struct rendezvous *v;
	struct cep *c;

	pthread_mutex_lock(&t->lock);
	v = find(t, number);
	p = place(v, number);
	p->qp = NULL;
	while (p->pins)
		pthread_cond_wait(&t->unpinned, &t->lock);
	drop_calls(t, number, &orphans);
	TAILQ_INSERT_TAIL(&t->free, p, free);
	t->n_free++;
	v->used--;
	v = unneeded(t, v);
	pthread_mutex_unlock(&t->lock);
	while ((c = TAILQ_FIRST(&orphans))) {
		TAILQ_REMOVE(&orphans, c, of_listener);
		bringup_refuse(c, BRINGUP_NOBODY);
	}
	if (v)
		end(v);
}

void rendezvous_leave(struct rnic *r, uint32_t number)
{
	struct rendezvous_table *t = &r->numbers;

	if (number >= RENDEZVOUS_PLAIN) {
		leave_place(t, number);
		return;
	}
	pthread_mutex_lock(&t->lock);
	t->plain[number / 32] &= ~(1u << number % 32);
	t->n_plain--;
	pthread_mutex_unlock(&t->lock);
}

/* ---- calls ---- */

static struct qp *pin(struct rendezvous_table *t, uint32_t number)
{
	struct rendezvous *v;
	struct qp *q = NULL;

	pthread_mutex_lock(&t->lock);
	v = find(t, number);
	if (v)
		q = place(v, number)->qp;
	if (q)
		place(v, number)->pins++;
	pthread_mutex_unlock(&t->lock);
	return q;
}

static void unpin(struct rendezvous_table *t, uint32_t number)
{
	pthread_mutex_lock(&t->lock);
	if (--place(find(t, number), number)->pins == 0)
		pthread_cond_broadcast(&t->unpinned);
	pthread_mutex_unlock(&t->lock);
}

/* Returns the one that had to go for it, or NULL. */
static struct cep *keep(struct rendezvous_table *t, struct cep *c)
{
	struct cep *old = NULL;

	pthread_mutex_lock(&t->lock);
	if (t->n_calls == CALLS_MAX) {
		old = TAILQ_FIRST(&t->calls);
		TAILQ_REMOVE(&t->calls, old, of_listener);
		t->n_calls--;
	}
	TAILQ_INSERT_TAIL(&t->calls, c, of_listener);
	t->n_calls++;
	pthread_mutex_unlock(&t->lock);
	return old;
}

void rendezvous_call(struct cep *c)
{
	struct rendezvous_table *t = &c->rnic->numbers;
	uint32_t number = cep_called(c);
	struct qp *q = pin(t, number);
	struct cep *old = NULL;
	enum bringup_answer answer = BRINGUP_NOBODY;

	if (q) {
		engine_lock(q->engine);
		answer = bringup_called(q, c);
		if (answer == BRINGUP_LATER)
			old = keep(t, c);
		engine_unlock(q->engine);
		unpin(t, number);
	}
	if (answer == BRINGUP_NOBODY || answer == BRINGUP_BUSY)
		bringup_refuse(c, answer);
	if (old)
		bringup_refuse(old, BRINGUP_LATER);
}

struct cep *rendezvous_take(struct rnic *r, uint32_t number)
{
	struct rendezvous_table *t = &r->numbers;
	struct cep *c;

	pthread_mutex_lock(&t->lock);
	TAILQ_FOREACH(c, &t->calls, of_listener) {
		if (cep_called(c) == number)
			break;
	}
	if (c) {
		TAILQ_REMOVE(&t->calls, c, of_listener);
		t->n_calls--;
	}
	pthread_mutex_unlock(&t->lock);
	return c;
}

void rendezvous_fork_child(struct rendezvous_table *t)
{
	struct rendezvous *v;

	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->unpinned, NULL);
	LIST_FOREACH(v, &t->all, all) {
		for (uint32_t i = 0; i < RENDEZVOUS_PLACES; i++)
			v->place[i].pins = 0;
	}
	TAILQ_INIT(&t->calls);
	t->n_calls = 0;
}
