/* SPDX-License-Identifier: MIT */
/*
 * What the kernel said and what the program was told of each interface. A notice is the difference
 * between the two, so it does not matter how we came to know: a live notice, a dump, or a dump
 * after messages were lost. A notice that memory is short for stays a difference and is not lost.
 *
 * Live notices that arrive during a dump. The kernel fills a piece of the dump first and queues it
 * later, so a piece may name what a notice in front of it has taken away. Therefore what a notice
 * touched since the dump was requested is left to notices: every later change brings one, and the
 * dump's word is ignored. What a notice took away stays as a tombstone until the dump ends.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "access/interfaces_priv.h"

void if_table_init(struct if_table *t)
{
	*t = (struct if_table) { 0 };
	TAILQ_INIT(&t->all);
	TAILQ_INIT(&t->dirty);
}

/* `first`: to be told before others. */
static void mark(struct if_table *t, struct if_entry *e, bool first)
{
	if (e->dirty && !first)
		return;
	if (e->dirty)
		TAILQ_REMOVE(&t->dirty, e, dirty_link);
	e->dirty = true;
	if (first)
		TAILQ_INSERT_HEAD(&t->dirty, e, dirty_link);
	else
		TAILQ_INSERT_TAIL(&t->dirty, e, dirty_link);
}

static void unmark(struct if_table *t, struct if_entry *e)
{
	if (e->dirty)
		TAILQ_REMOVE(&t->dirty, e, dirty_link);
	e->dirty = false;
}

static void drop(struct if_table *t, struct if_entry *e)
{
	unmark(t, e);
	TAILQ_REMOVE(&t->all, e, link);
	free(e->addresses);
	free(e->told_addresses);
	free(e);
}

void if_table_fini(struct if_table *t)
{
	struct if_entry *e;

	while ((e = TAILQ_FIRST(&t->all)))
		drop(t, e);
}

static struct if_entry *find_entry(struct if_table *t, uint32_t index)
{
	struct if_entry *e;

	TAILQ_FOREACH(e, &t->all, link)
		if (e->index == index)
			return e;
	return NULL;
}

static struct if_entry *find_or_add(struct if_table *t, uint32_t index)
{
	struct if_entry *e = find_entry(t, index);

	if (e)
		return e;
	e = calloc(1, sizeof(*e));
	if (!e)
		return NULL;
	e->index = index;
	TAILQ_INSERT_TAIL(&t->all, e, link);
	return e;
}

/* ---- addresses ---- */

static struct if_address *find_address(struct if_entry *e, const struct if_key *key)
{
	for (size_t i = 0; i < e->n_addresses; i++)
		if (!memcmp(&e->addresses[i].key, key, sizeof(*key)))
			return &e->addresses[i];
	return NULL;
}

static struct if_address *add_address(struct if_entry *e, const struct if_key *key)
{
	struct if_address *a;

	if (e->n_addresses == e->max_addresses) {
		size_t n = e->max_addresses ? 2 * e->max_addresses : 4;

		a = realloc(e->addresses, n * sizeof(*a));
		if (!a)
			return NULL;
		e->addresses = a;
		e->max_addresses = n;
	}
	a = &e->addresses[e->n_addresses++];
	*a = (struct if_address) { .key = *key };
	return a;
}

static void take_away(struct if_table *t, struct if_entry *e, struct if_address *a)
{
	e->addresses_changed |= a->present && a->usable;
	a->present = false;
	a->touched = t->generation;
	if (!t->dumping)
		*a = e->addresses[--e->n_addresses];
}

static void take_away_all(struct if_table *t, struct if_entry *e)
{
	for (size_t i = e->n_addresses; i > 0; i--)
		take_away(t, e, &e->addresses[i - 1]);
}

/* The interface and address that a record is about. 0: there are none, and need not be. */
static int find_place(struct if_table *t, const struct if_record *r, struct if_entry **entry,
		      struct if_address **address)
{
	struct if_entry *e = t->dumping ? find_or_add(t, r->index) : find_entry(t, r->index);
	struct if_address *a;

	if (!e)
		return t->dumping ? -ENOMEM : 0;
	if (!t->dumping && !e->exists)
		return 0;
	a = find_address(e, &r->key);
	if (!a) {
		if (!t->dumping && r->kind == IF_ADDRESS_GONE)
			return 0;
		a = add_address(e, &r->key);
		if (!a)
			return -ENOMEM;
	}
	*entry = e;
	*address = a;
	return 1;
}

static int apply_address(struct if_table *t, const struct if_record *r, bool live)
{
	struct if_entry *e;
	struct if_address *a;
	int rc = find_place(t, r, &e, &a);

	if (rc <= 0)
		return rc;
	if (!live && a->touched == t->generation)
		return 0;
	if (live)
		a->touched = t->generation;
	if (r->kind == IF_ADDRESS_GONE) {
		take_away(t, e, a);
	} else {
		e->addresses_changed |= !a->present || a->usable != r->usable;
		a->present = true;
		a->usable = r->usable;
		a->seen = t->generation;
	}
	if (e->addresses_changed)
		mark(t, e, false);
	return 0;
}

/* ---- links ---- */

static void link_gone(struct if_table *t, struct if_entry *e)
{
	/* The same number may come back before this has been told. */
	e->reborn = e->known;
	e->exists = false;
	e->existing = false;
	take_away_all(t, e);
	mark(t, e, true);
}

static int apply_link(struct if_table *t, const struct if_record *r, bool live)
{
	bool gone = r->kind == IF_LINK_GONE;
	struct if_entry *e = gone && !t->dumping ? find_entry(t, r->index)
						 : find_or_add(t, r->index);

	if (!e)
		return gone && !t->dumping ? 0 : -ENOMEM;
	if (!live && e->touched == t->generation)
		return 0;
	if (live)
		e->touched = t->generation;
	if (gone) {
		link_gone(t, e);
		return 0;
	}
	e->exists = true;
	e->seen = t->generation;
	e->carries_ip = r->carries_ip;
	e->up = r->up;
	e->running = r->running;
	if (r->has_mtu)
		e->mtu = r->mtu;
	if (r->has_name)
		memcpy(e->name, r->name, sizeof(e->name));
	mark(t, e, false);
	return 0;
}

int if_table_apply(struct if_table *t, const struct if_record *r, bool live)
{
	switch (r->kind) {
	case IF_LINK:
	case IF_LINK_GONE: return apply_link(t, r, live);
	case IF_ADDRESS:
	case IF_ADDRESS_GONE: return apply_address(t, r, live);
	default: return 0;
	}
}

/* ---- dumps ---- */

void if_table_begin(struct if_table *t)
{
	t->generation++;
	t->dumping = true;
}

static void sweep_addresses(struct if_table *t, struct if_entry *e)
{
	for (size_t i = e->n_addresses; i > 0; i--) {
		struct if_address *a = &e->addresses[i - 1];

		if (!a->present || a->seen != t->generation)
			take_away(t, e, a);
	}
}

void if_table_end(struct if_table *t)
{
	struct if_entry *e, *next;

	t->dumping = false;
	TAILQ_FOREACH(e, &t->all, link) {
		if (e->exists && e->seen != t->generation)
			link_gone(t, e);
		else
			sweep_addresses(t, e);
		if (!t->complete)
			e->existing = e->exists;
	}
	for (e = TAILQ_FIRST(&t->all); e; e = next) {
		next = TAILQ_NEXT(e, link);
		if (!e->exists)
			take_away_all(t, e);
		if (!e->exists && !e->known)
			drop(t, e);
		else
			mark(t, e, !e->exists);
	}
	t->complete = true;
}

/* ---- the difference ---- */

static int compare_addresses(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct sockaddr_storage));
}

static void to_sockaddr(struct sockaddr_storage *to, const struct if_entry *e,
			const struct if_key *key)
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };

	memset(to, 0, sizeof(*to));
	if (key->family == AF_INET) {
		memcpy(&in.sin_addr, key->local, sizeof(in.sin_addr));
		memcpy(to, &in, sizeof(in));
		return;
	}
	memcpy(&in6.sin6_addr, key->local, sizeof(in6.sin6_addr));
	if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
		in6.sin6_scope_id = e->index;
	memcpy(to, &in6, sizeof(in6));
}

/* Sorted and each once, so that the order in which they came makes no difference. */
static int list_addresses(const struct if_entry *e, struct sockaddr_storage **out, uint32_t *n)
{
	struct sockaddr_storage *list = malloc((e->n_addresses + 1) * sizeof(*list));
	size_t have = 0, unique = 0;

	if (!list)
		return -ENOMEM;
	for (size_t i = 0; i < e->n_addresses; i++)
		if (e->addresses[i].present && e->addresses[i].usable)
			to_sockaddr(&list[have++], e, &e->addresses[i].key);
	qsort(list, have, sizeof(*list), compare_addresses);
	for (size_t i = 0; i < have; i++)
		if (!unique || compare_addresses(&list[unique - 1], &list[i]))
			list[unique++] = list[i];
	*out = list;
	*n = (uint32_t)unique;
	return 0;
}

/* Brings the told addresses up to date. 1: they differed, 0, -ENOMEM. */
static int tell_addresses(struct if_entry *e)
{
	struct sockaddr_storage *list;
	uint32_t n;

	if (!e->addresses_changed)
		return 0;
	if (list_addresses(e, &list, &n))
		return -ENOMEM;
	e->addresses_changed = false;
	if (n == e->told.n_addresses &&
	    (!n || !memcmp(list, e->told_addresses, n * sizeof(*list)))) {
		free(list);
		return 0;
	}
	free(e->told_addresses);
	e->told.addresses = e->told_addresses = list;
	e->told.n_addresses = n;
	return 1;
}

static bool is_shown(const struct if_entry *e)
{
	/* Without a name: a wireless driver spoke before the kernel did. */
	if (!e->exists || !e->name[0] || e->carries_ip)
		return e->exists && e->name[0];
	for (size_t i = 0; i < e->n_addresses; i++)
		if (e->addresses[i].present && e->addresses[i].usable)
			return true;
	return false;
}

static uint32_t tell_end(struct if_entry *e)
{
	if (e->told.up && e->told.running) {
		e->told.up = e->told.running = false;
		return FLUE_INTERFACE_GOING_DOWN;
	}
	e->known = e->reborn = false;
	return FLUE_INTERFACE_GONE;
}

/* MTU and name. */
static bool tell_rest(struct if_entry *e)
{
	bool same = e->told.mtu == e->mtu && !memcmp(e->told.name, e->name, sizeof(e->name));

	e->told.mtu = e->mtu;
	memcpy(e->told.name, e->name, sizeof(e->name));
	return !same;
}

static void tell_flags(struct if_entry *e)
{
	e->told.up = e->up;
	e->told.running = e->running;
}

static int tell_first(struct if_entry *e)
{
	int rc;

	e->addresses_changed = true;
	if (tell_addresses(e) < 0)
		return -ENOMEM;
	tell_rest(e);
	tell_flags(e);
	e->told.size = sizeof(e->told);
	e->told.index = e->index;
	e->known = true;
	rc = e->existing ? FLUE_INTERFACE_EXISTING : FLUE_INTERFACE_NEW;
	e->existing = false;
	return rc;
}

/* Bad news first; UP last, when addresses are known. */
static int tell_change(struct if_entry *e)
{
	bool works = e->up && e->running, worked = e->told.up && e->told.running;
	int rc;

	if (worked && !works) {
		tell_flags(e);
		return FLUE_INTERFACE_GOING_DOWN;
	}
	rc = tell_addresses(e);
	if (rc < 0)
		return rc;
	rc |= tell_rest(e);
	if (!works && (e->told.up != e->up || e->told.running != e->running)) {
		tell_flags(e);
		rc = 1;
	}
	if (rc)
		return FLUE_INTERFACE_CHANGED;
	if (works && !worked) {
		tell_flags(e);
		return FLUE_INTERFACE_UP;
	}
	return 0;
}

/* The notice that is due, 0, or -ENOMEM. */
static int tell(struct if_entry *e)
{
	bool shown = is_shown(e);

	if (e->known && (e->reborn || !shown))
		return (int)tell_end(e);
	if (e->known)
		return tell_change(e);
	if (shown)
		return tell_first(e);
	e->existing = false; /* an address makes it NEW */
	return 0;
}

int if_table_next(struct if_table *t, uint32_t *notice, const struct flue_interface **iface)
{
	struct if_entry *e;

	while ((e = TAILQ_FIRST(&t->dirty))) {
		int rc = tell(e);

		if (rc < 0)
			return rc;
		if (rc) {
			*notice = (uint32_t)rc;
			*iface = &e->told;
			return 1;
		}
		/* An interface that is gone lasts until here, because its last notice shows it. */
		if (e->exists || e->known)
			unmark(t, e);
		else
			drop(t, e);
	}
	return 0;
}
