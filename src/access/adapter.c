/* SPDX-License-Identifier: MIT */
/* Adapters: opening one, its event file, and the rules after fork(). */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "access/access_priv.h"

static atomic_uint fork_gen;

static void in_child(void)
{
	atomic_fetch_add(&fork_gen, 1);
}

static void watch_forks(void)
{
	/* Fails only for want of memory; then a child that touches inherited objects is on its own. */
	pthread_atfork(NULL, NULL, in_child);
}

bool acc_inherited(const struct acc_adapter *a)
{
	return a->fork_gen != atomic_load_explicit(&fork_gen, memory_order_relaxed);
}

int acc_usable(const struct acc_adapter *a)
{
	return acc_inherited(a) ? -ENODEV : 0;
}

static const struct prov_upcalls upcalls = {
	.qp_event = acc_conn_event,
	.cq_error = acc_cq_error,
	.srq_limit = acc_srq_limit,
	.request = acc_listener_request,
};

static void free_adapter(struct acc_adapter *a)
{
	acc_events_fini(&a->events, acc_inherited(a));
	acc_tasks_fini(&a->tasks, acc_inherited(a));
	acc_lost_free(a);
	free(a->load);
	free(a->cpus);
	free(a->cpu_numbers);
	free(a);
}

static bool adapter_close(struct flue_adapter *adapter)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);

	if (acc_in_callback(NULL))
		return acc_ok(-EDEADLK);
	if (atomic_load(&a->children))
		return acc_ok(-EBUSY);
	a->ops->close(a->prov);
	log_info(access, "adapter %s is closed", a->caps.adapter);
	free_adapter(a);
	return true;
}

static bool adapter_get_event(struct flue_adapter *adapter, struct flue_event *ev, size_t size,
			      int timeout_ms)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	struct flue_event mine;
	int rc = acc_usable(a);

	if (!ev || size < ACC_ATTR_SIZE(struct flue_event, u))
		rc = -EINVAL;
	if (!rc)
		rc = acc_events_take(a, &mine, timeout_ms, cancel_was);
	if (!rc)
		acc_copy_out(ev, size, &mine, sizeof(mine));
	return acc_ok(rc);
}

static int adapter_event_fd(struct flue_adapter *adapter)
{
	CANCEL_HELD;
	struct acc_adapter *a = to_adapter(adapter);
	int rc = acc_usable(a);

	if (!rc)
		rc = acc_events_fd(a);
	return acc_ok(rc) ? rc : -1;
}

static const struct flue_adapter_ops adapter_ops = {
	.size = sizeof(adapter_ops),
	.close = adapter_close,
	.create_pd = acc_pd_create,
	.create_cq = acc_cq_create,
	.listen = acc_listener_create,
	.get_event = adapter_get_event,
	.event_fd = adapter_event_fd,
};

static bool valid_cpus(const int *cpus, uint32_t n)
{
	long most = sysconf(_SC_NPROCESSORS_CONF);

	if (!n)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (cpus[i] < 0 || cpus[i] >= most)
			return false;
		for (uint32_t j = 0; j < i; j++)
			if (cpus[j] == cpus[i])
				return false;
	}
	return true;
}

/* More than any provider takes would make opening without a wish fail on a large machine. */
#define DEFAULT_CPUS_MAX 64

/* Processors the calling thread may run on, into a new array. */
static int default_cpus(int **out, uint32_t *n)
{
	int most = (int)sysconf(_SC_NPROCESSORS_CONF);
	size_t size;
	cpu_set_t *set;
	int rc = -ENOMEM;

	if (most < CPU_SETSIZE)
		most = CPU_SETSIZE;
	size = CPU_ALLOC_SIZE(most);
	set = CPU_ALLOC(most);
	if (!set)
		return -ENOMEM;
	if (sched_getaffinity(0, size, set)) {
		rc = -errno;
		goto free_set;
	}
	*out = calloc((size_t)CPU_COUNT_S(size, set), sizeof(**out));
	if (!*out)
		goto free_set;
	*n = 0;
	for (int cpu = 0; cpu < most && *n < DEFAULT_CPUS_MAX; cpu++)
		if (CPU_ISSET_S(cpu, size, set))
			(*out)[(*n)++] = cpu;
	rc = 0;
free_set:
	CPU_FREE(set);
	return rc;
}

static int copy_cpus(const struct flue_open_attr *attr, int **out, uint32_t *n)
{
	if (!attr->cpus)
		return attr->n_cpus ? -EINVAL : default_cpus(out, n);
	if (!valid_cpus(attr->cpus, attr->n_cpus))
		return -EINVAL;
	*out = malloc(attr->n_cpus * sizeof(**out));
	if (!*out)
		return -ENOMEM;
	memcpy(*out, attr->cpus, attr->n_cpus * sizeof(**out));
	*n = attr->n_cpus;
	return 0;
}

static int make_cpus(struct acc_adapter *a, const struct flue_open_attr *attr)
{
	int rc = copy_cpus(attr, &a->cpu_numbers, &a->pub.n_cpus);

	if (rc)
		return rc;
	a->pub.cpus = a->cpu_numbers;
	acc_tasks_place(&a->tasks, a->cpu_numbers, a->pub.n_cpus);
	a->cpus = calloc(a->pub.n_cpus, sizeof(*a->cpus));
	a->load = calloc(a->pub.n_cpus, sizeof(*a->load));
	if (!a->cpus || !a->load)
		return -ENOMEM;
	for (uint32_t i = 0; i < a->pub.n_cpus; i++)
		a->cpus[i].cpu = a->cpu_numbers[i];
	a->balance = attr->balance;
	a->choose_cpu = attr->choose_cpu;
	a->choose_arg = attr->choose_arg;
	return 0;
}

/* Adapter `index` of one provider. */
static int describe(const struct prov_ops *ops, uint32_t index, struct flue_adapter_info *info,
		    struct flue_caps *caps)
{
	int rc;

	memset(caps, 0, sizeof(*caps));
	rc = ops->adapter(index, info, caps);
	if (rc)
		return rc;
	info->size = sizeof(*info);
	snprintf(info->provider, sizeof(info->provider), "%s", ops->name);
	caps->size = sizeof(*caps);
	memcpy(caps->provider, info->provider, sizeof(caps->provider));
	memcpy(caps->adapter, info->name, sizeof(caps->adapter));
	return 0;
}

/* The one of that name (NULL: the first) of this provider, and its capabilities. */
static bool has_adapter(const struct prov_ops *ops, const char *name, struct flue_caps *caps)
{
	for (uint32_t i = 0;; i++) {
		struct flue_adapter_info info = { 0 };

		if (describe(ops, i, &info, caps))
			return false;
		if (!name || !strcmp(info.name, name))
			return true;
	}
}

static int find_adapter(const struct flue_open_attr *attr, const struct prov_ops **out,
			struct flue_caps *caps)
{
	const char *provider = attr->provider;

	if (!provider && !attr->name)
		provider = "soft";
	if (provider) {
		*out = provider_find(provider);
		if (!*out)
			return -ENOENT;
		return has_adapter(*out, attr->name, caps) ? 0 : -ENODEV;
	}
	for (uint32_t i = 0; (*out = provider_at(i)); i++)
		if (has_adapter(*out, attr->name, caps))
			return 0;
	return -ENODEV;
}

static int open_adapter(struct acc_adapter *a, const struct flue_open_attr *attr)
{
	struct prov_open_attr open = { .name = a->caps.adapter, .up = &upcalls };
	int rc = make_cpus(a, attr);

	if (rc)
		return rc;
	open.cpus = a->cpu_numbers;
	open.links = attr->links ? attr->links : (uint32_t)FLUE_LINK_ALL;
	if (!(open.links & FLUE_LINK_TCP) || open.links & ~(uint32_t)FLUE_LINK_ALL)
		return -EINVAL;
	open.n_cpus = a->pub.n_cpus;
	rc = a->ops->open(&open, &a->prov);
	if (rc)
		return rc;
	rc = acc_completion_init(a);
	if (rc)
		a->ops->close(a->prov);
	return rc;
}

struct flue_adapter *flue_open(const struct flue_open_attr *attr)
{
	CANCEL_HELD;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct flue_open_attr none = FLUE_ATTR(struct flue_open_attr), copy;
	const struct prov_ops *ops;
	struct acc_adapter *a;
	struct flue_caps caps;
	int rc = acc_attr_copy(&copy, sizeof(copy), attr ? attr : &none,
			       ACC_ATTR_SIZE(struct flue_open_attr, name));

	if (rc || copy.balance >= FLUE_BALANCE_NPOLICIES)
		return acc_null(-EINVAL);
	rc = find_adapter(&copy, &ops, &caps);
	if (rc)
		return acc_null(rc);
	pthread_once(&once, watch_forks);
	a = calloc(1, sizeof(*a));
	if (!a)
		return acc_null(-ENOMEM);
	a->pub.ops = &adapter_ops;
	a->ops = ops;
	a->caps = caps;
	a->pub.caps = &a->caps;
	a->fork_gen = atomic_load(&fork_gen);
	a->lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	acc_events_init(&a->events);
	acc_tasks_init(&a->tasks);
	a->share_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
	TAILQ_INIT(&a->shared_cqs);
	rc = open_adapter(a, &copy);
	if (rc) {
		log_error(access, "an adapter of provider %s is not opened: %s", ops->name,
			  log_errno(rc));
		free_adapter(a);
		return acc_null(rc);
	}
	log_info(access, "adapter %s is open: provider %s, %u processors", a->caps.adapter,
		 ops->name, a->pub.n_cpus);
	return &a->pub;
}

/* A structure of the caller's that begins with its size. */
static void tell(void *to, const void *from, size_t have)
{
	size_t size;

	memcpy(&size, to, sizeof(size));
	size = size < have ? size : have;
	memcpy(to, from, size);
	memcpy(to, &size, sizeof(size));
}

bool flue_provider_info(uint32_t index, struct flue_provider_info *info)
{
	const struct prov_ops *ops = provider_at(index);
	struct flue_provider_info full = FLUE_ATTR(struct flue_provider_info);
	struct flue_adapter_info adapter;
	struct flue_caps caps;

	if (!info || info->size < ACC_ATTR_SIZE(struct flue_provider_info, n_adapters))
		return acc_ok(-EINVAL);
	if (!ops)
		return acc_ok(-ENOENT);
	full.name = ops->name;
	full.description = ops->description;
	for (;; full.n_adapters++) {
		adapter = (struct flue_adapter_info) { 0 };
		if (describe(ops, full.n_adapters, &adapter, &caps))
			break;
	}
	tell(info, &full, sizeof(full));
	return true;
}

bool flue_adapter_info(uint32_t index, struct flue_adapter_info *info, struct flue_caps *caps)
{
	CANCEL_HELD;
	const struct prov_ops *ops;
	struct flue_adapter_info full;
	struct flue_caps all;

	if (!info || info->size < ACC_ATTR_SIZE(struct flue_adapter_info, n_addresses) ||
	    (caps && caps->size < ACC_ATTR_SIZE(struct flue_caps, features)))
		return acc_ok(-EINVAL);
	for (uint32_t i = 0; (ops = provider_at(i)); i++) {
		for (uint32_t k = 0;; k++, index--) {
			full = (struct flue_adapter_info) { .addresses = info->addresses,
							    .max_addresses = info->max_addresses };
			/* Only that one is asked for its addresses. */
			if (index)
				full.addresses = NULL;
			if (describe(ops, k, &full, &all))
				break;
			if (index)
				continue;
			tell(info, &full, sizeof(full));
			if (caps)
				tell(caps, &all, sizeof(all));
			return true;
		}
	}
	return acc_ok(-ENOENT);
}
