/* SPDX-License-Identifier: MIT */
/*
 * An interface that comes up brings its adapter up (CH-17, CH-2): what an adapter keeps for each
 * processor, completion handlers among it, is made by opening one. The watch holds its adapters as a
 * child does, so the program cannot close them; and it closes none while the program has children there.
 */
#include <stdlib.h>

#include "access/access_priv.h"
#include "access/interfaces_priv.h"

struct if_adapter {
	SLIST_ENTRY(if_adapter) link;
	uint32_t index;
	bool gone; /* the interface; and the program knows */
	struct flue_adapter *adapter;
};

static int copy_attr(struct if_adapters *l, const struct flue_open_attr *from)
{
	size_t size;
	int rc = acc_attr_copy(&l->attr, sizeof(l->attr), from,
			       ACC_ATTR_SIZE(struct flue_open_attr, name));

	if (rc || l->attr.balance >= FLUE_BALANCE_NPOLICIES || (l->attr.n_cpus && !l->attr.cpus))
		return -EINVAL;
	if (l->attr.provider) {
		l->provider = strdup(l->attr.provider);
		if (!l->provider)
			return -ENOMEM;
		l->attr.provider = l->provider;
		if (!provider_find(l->provider))
			return -ENOENT;
	}
	if (l->attr.name) {
		l->name = strdup(l->attr.name);
		if (!l->name)
			return -ENOMEM;
		l->attr.name = l->name;
	}
	if (l->attr.cpus) {
		size = l->attr.n_cpus * sizeof(*l->cpus);
		l->cpus = malloc(size + 1);
		if (!l->cpus)
			return -ENOMEM;
		memcpy(l->cpus, l->attr.cpus, size);
		l->attr.cpus = l->cpus;
	}
	return 0;
}

int if_adapters_init(struct if_adapters *l, const struct flue_open_attr *from)
{
	*l = (struct if_adapters) { .wanted = from };
	SLIST_INIT(&l->all);
	l->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	return from ? copy_attr(l, from) : 0;
}

/* Lock held. */
static struct if_adapter *find_adapter(struct if_adapters *l, uint32_t index)
{
	struct if_adapter *e;

	SLIST_FOREACH(e, &l->all, link)
		if (e->index == index && !e->gone)
			return e;
	return NULL;
}

/* Lock held. 0 or a negative errno. */
static int bring_up(struct if_adapters *l, uint32_t index, struct if_adapter **out)
{
	struct if_adapter *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	e->index = index;
	e->adapter = flue_open(&l->attr);
	if (!e->adapter) {
		free(e);
		return -errno;
	}
	atomic_fetch_add(&to_adapter(e->adapter)->children, 1);
	SLIST_INSERT_HEAD(&l->all, e, link);
	*out = e;
	return 0;
}

void if_adapters_attend(struct if_adapters *l, uint32_t notice, struct flue_interface *iface)
{
	struct if_adapter *e;

	iface->adapter = NULL;
	iface->adapter_error = 0;
	if (!l->wanted)
		return;
	pthread_mutex_lock(&l->lock);
	e = find_adapter(l, iface->index);
	if (!e && iface->up && iface->running)
		iface->adapter_error = -bring_up(l, iface->index, &e);
	if (e) {
		iface->adapter = e->adapter;
		e->gone = notice == FLUE_INTERFACE_GONE;
		l->leaving |= e->gone;
	}
	pthread_mutex_unlock(&l->lock);
}

/* Lock held: has the program anything in it? */
static bool is_used(const struct if_adapter *e)
{
	return atomic_load(&to_adapter(e->adapter)->children) > 1;
}

/* Lock held. False: the program uses it, or is in a callback, where nothing is closed. */
static bool take_down(struct if_adapters *l, struct if_adapter *e)
{
	struct acc_adapter *a = to_adapter(e->adapter);

	atomic_fetch_sub(&a->children, 1);
	if (!flue_close(e->adapter)) {
		atomic_fetch_add(&a->children, 1);
		return false;
	}
	SLIST_REMOVE(&l->all, e, if_adapter, link);
	free(e);
	return true;
}

static void take_down_all(struct if_adapters *l, bool gone_only)
{
	struct if_adapter *e, *next;

	l->leaving = false;
	for (e = SLIST_FIRST(&l->all); e; e = next) {
		next = SLIST_NEXT(e, link);
		if ((e->gone || !gone_only) && !take_down(l, e))
			l->leaving = true;
	}
}

bool if_adapters_sweep(struct if_adapters *l)
{
	bool left;

	/* Only whoever attends sets it, and that is who calls this. */
	if (!l->leaving)
		return false;
	pthread_mutex_lock(&l->lock);
	take_down_all(l, true);
	left = l->leaving;
	pthread_mutex_unlock(&l->lock);
	return left;
}

int if_adapters_check(struct if_adapters *l)
{
	struct if_adapter *e;
	int rc = 0;

	pthread_mutex_lock(&l->lock);
	if (!SLIST_EMPTY(&l->all) && acc_in_callback(NULL))
		rc = -EDEADLK;
	SLIST_FOREACH(e, &l->all, link)
		if (!rc && is_used(e))
			rc = -EBUSY;
	pthread_mutex_unlock(&l->lock);
	return rc;
}

void if_adapters_fini(struct if_adapters *l)
{
	pthread_mutex_lock(&l->lock);
	take_down_all(l, false);
	pthread_mutex_unlock(&l->lock);
	free(l->cpus);
	free(l->provider);
	free(l->name);
}
