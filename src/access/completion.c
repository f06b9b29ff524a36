/* SPDX-License-Identifier: MIT */
/*
 * Completion routing (CH-1 to CH-4). When an adapter is opened, each participating processor gets
 * a descriptor with the handler id that the provider returned for it. A new CQ is bound to one of
 * them, by explicit choice or by the balancing policy, and the provider runs the handler on that
 * processor: processors have CQs, CQs have QPs.
 */
#include "access/access_priv.h"

static void on_completion(void *cq_owner, void *arg)
{
	struct acc_cpu *cpu = arg;

	atomic_fetch_add_explicit(&cpu->events, 1, memory_order_relaxed);
	acc_cq_fired(cq_owner);
}

int acc_completion_init(struct acc_adapter *a)
{
	for (uint32_t i = 0; i < a->pub.n_cpus; i++) {
		struct acc_cpu *cpu = &a->cpus[i];
		int id = a->ops->set_completion_handler(a->prov, cpu->cpu, on_completion, cpu);

		if (id < 0)
			return id;
		cpu->handler = id;
	}
	return 0;
}

/* Events since about the last few choices: old load must not repel new CQs for ever. */
static void age_events(struct acc_cpu *cpu)
{
	uint64_t now = atomic_load_explicit(&cpu->events, memory_order_relaxed);

	cpu->recent = cpu->recent / 2 + (now - cpu->seen);
	cpu->seen = now;
}

/* Is b less loaded than a? With equal load the one with fewer CQs, then the earlier one. */
static bool less_loaded(const struct acc_cpu *a, const struct acc_cpu *b, uint32_t balance)
{
	if (balance == FLUE_BALANCE_LEAST_EVENTS && a->recent != b->recent)
		return b->recent < a->recent;
	if (a->qps != b->qps)
		return b->qps < a->qps;
	return b->cqs < a->cqs;
}

static struct acc_cpu *choose_by_function(struct acc_adapter *a)
{
	uint32_t n = a->pub.n_cpus, index;

	for (uint32_t i = 0; i < n; i++) {
		struct acc_cpu *cpu = &a->cpus[i];

		a->load[i].cpu = cpu->cpu;
		a->load[i].cqs = cpu->cqs;
		a->load[i].qps = cpu->qps;
		a->load[i].events = atomic_load_explicit(&cpu->events, memory_order_relaxed);
	}
	index = a->choose_cpu(a->load, n, a->choose_arg);
	return index < n ? &a->cpus[index] : NULL;
}

static struct acc_cpu *choose(struct acc_adapter *a)
{
	struct acc_cpu *best = &a->cpus[0];

	if (a->choose_cpu)
		return choose_by_function(a);
	if (a->balance == FLUE_BALANCE_ROUND_ROBIN)
		return &a->cpus[a->next_cpu++ % a->pub.n_cpus];
	for (uint32_t i = 0; i < a->pub.n_cpus; i++)
		age_events(&a->cpus[i]);
	for (uint32_t i = 1; i < a->pub.n_cpus; i++)
		if (less_loaded(best, &a->cpus[i], a->balance))
			best = &a->cpus[i];
	return best;
}

static struct acc_cpu *find_cpu(struct acc_adapter *a, int number)
{
	for (uint32_t i = 0; i < a->pub.n_cpus; i++)
		if (a->cpus[i].cpu == number)
			return &a->cpus[i];
	return NULL;
}

int acc_completion_bind(struct acc_adapter *a, int cpu_plus_1, struct acc_cpu **out)
{
	struct acc_cpu *cpu;

	pthread_mutex_lock(&a->lock);
	cpu = cpu_plus_1 ? find_cpu(a, cpu_plus_1 - 1) : choose(a);
	if (cpu)
		cpu->cqs++;
	pthread_mutex_unlock(&a->lock);
	*out = cpu;
	return cpu ? 0 : -EINVAL;
}

void acc_completion_unbind(struct acc_adapter *a, struct acc_cpu *cpu)
{
	if (acc_inherited(a))
		return;
	pthread_mutex_lock(&a->lock);
	cpu->cqs--;
	pthread_mutex_unlock(&a->lock);
}

void acc_completion_count_qp(struct acc_adapter *a, struct acc_cpu *cpu, int delta)
{
	if (acc_inherited(a))
		return;
	pthread_mutex_lock(&a->lock);
	cpu->qps += delta;
	pthread_mutex_unlock(&a->lock);
}
