/* SPDX-License-Identifier: MIT */
/* The providers of this process, and stubs for slots that a provider cannot fill. */
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "base/log.h"
#include "provider/registry.h"

#define MAX_REGISTERED 16
#define N_BUILT_IN     (sizeof(built_in) / sizeof(built_in[0]))

static const struct prov_ops *const built_in[] = {
	&soft_provider,
};

/* Entries are only ever added; `n_registered` is stored after its entry. */
static const struct prov_ops *registered[MAX_REGISTERED];
static uint32_t n_registered;

const struct prov_ops *provider_at(uint32_t index)
{
	if (index < N_BUILT_IN)
		return built_in[index];
	index -= N_BUILT_IN;
	if (index < __atomic_load_n(&n_registered, __ATOMIC_ACQUIRE))
		return registered[index];
	return NULL;
}

const struct prov_ops *provider_find(const char *name)
{
	const struct prov_ops *ops;

	for (uint32_t i = 0; (ops = provider_at(i)); i++)
		if (!strcmp(ops->name, name))
			return ops;
	return NULL;
}

static int add(const struct prov_ops *ops)
{
	const struct prov_ops *same = provider_find(ops->name);

	if (same)
		return same == ops ? 0 : -EEXIST;
	if (n_registered == MAX_REGISTERED)
		return -ENOSPC;
	registered[n_registered] = ops;
	__atomic_store_n(&n_registered, n_registered + 1, __ATOMIC_RELEASE);
	return 0;
}

int provider_register(const struct prov_ops *ops)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	int rc;

	if (!ops || ops->size != sizeof(*ops) || provider_empty_slot(ops)) {
		log_error(provider, "a table of another size or with an empty slot is refused");
		return -EINVAL;
	}
	pthread_mutex_lock(&lock);
	rc = add(ops);
	pthread_mutex_unlock(&lock);
	if (rc)
		log_error(provider, "%s is not registered: %s", ops->name, log_errno(rc));
	else
		log_info(provider, "%s is registered: %s", ops->name, ops->description);
	return rc;
}

#define SLOTS(X)                  \
	X(name)                   \
	X(description)            \
	X(adapter)                \
	X(open)                   \
	X(close)                  \
	X(set_completion_handler) \
	X(create_pd)              \
	X(destroy_pd)             \
	X(register_mr)            \
	X(modify_mr)              \
	X(deregister_mr)          \
	X(create_mw)              \
	X(destroy_mw)             \
	X(bind_mw)                \
	X(create_cq)              \
	X(resize_cq)              \
	X(destroy_cq)             \
	X(poll)                   \
	X(arm)                    \
	X(wait)                   \
	X(create_srq)             \
	X(destroy_srq)            \
	X(arm_srq)                \
	X(modify_srq)             \
	X(query_srq)              \
	X(post_srq)               \
	X(create_qp)              \
	X(destroy_qp)             \
	X(reset_qp)               \
	X(query_qp)               \
	X(modify_qp)              \
	X(post_send)              \
	X(post_recv)              \
	X(connect)                \
	X(start)                  \
	X(disconnect)             \
	X(abort)                  \
	X(listen)                 \
	X(destroy_listener)       \
	X(await_qp)               \
	X(await_listener)         \
	X(accept)                 \
	X(reject)                 \
	X(adopt_stream)           \
	X(adopt_gang)             \
	X(terminate)              \
	X(create_ah)              \
	X(destroy_ah)             \
	X(join_group)             \
	X(leave_group)

const char *provider_empty_slot(const struct prov_ops *ops)
{
#define COUNT(slot) +1
	_Static_assert((sizeof(struct prov_ops) - offsetof(struct prov_ops, name)) /
				       sizeof(void (*)(void)) ==
			       0 SLOTS(COUNT),
		       "every slot is in SLOTS");
#undef COUNT
#define CHECK(slot)     \
	if (!ops->slot) \
		return #slot;
	SLOTS(CHECK)
#undef CHECK
	return NULL;
}

/* ---- stubs ---- */

int prov_no_modify_mr(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *attr,
		      struct prov_keys *keys, struct prov_op *op)
{
	(void)mr, (void)what, (void)attr, (void)keys, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_create_mw(struct prov_pd *pd, uint32_t type, struct prov_mw **out, uint32_t *rkey,
		      struct prov_op *op)
{
	(void)pd, (void)type, (void)out, (void)rkey, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_destroy_mw(struct prov_mw *mw, struct prov_op *op)
{
	(void)mw, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_bind_mw(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
		    uint32_t *rkey)
{
	(void)mw, (void)qp, (void)wr, (void)rkey;
	return -EOPNOTSUPP;
}

int prov_no_resize_cq(struct prov_cq *cq, uint32_t depth, struct prov_op *op)
{
	(void)cq, (void)depth, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_create_srq(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
		       struct prov_srq **out, struct prov_op *op)
{
	(void)pd, (void)depth, (void)max_sge, (void)owner, (void)out, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_destroy_srq(struct prov_srq *srq, struct prov_op *op)
{
	(void)srq, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_arm_srq(struct prov_srq *srq, uint32_t limit)
{
	(void)srq, (void)limit;
	return -EOPNOTSUPP;
}

int prov_no_modify_srq(struct prov_srq *srq, const struct flue_srq_values *values, uint32_t mask,
		       struct prov_op *op)
{
	(void)srq, (void)values, (void)mask, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_query_srq(struct prov_srq *srq, struct flue_srq_values *values, struct prov_op *op)
{
	(void)srq, (void)values, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_post_srq(struct prov_srq *srq, const struct flue_recv_wr *wr,
		     const struct flue_recv_wr **bad)
{
	(void)srq;
	*bad = wr;
	return -EOPNOTSUPP;
}

int prov_no_adopt_stream(struct prov_qp *qp, const struct prov_stream *stream,
			 const struct flue_conn_attr *attr)
{
	(void)qp, (void)stream, (void)attr;
	return -EOPNOTSUPP;
}

int prov_no_adopt_gang(struct prov_adoption *gang, uint32_t n)
{
	(void)gang, (void)n;
	return -EOPNOTSUPP;
}

int prov_no_terminate(struct prov_qp *qp)
{
	(void)qp;
	return -EOPNOTSUPP;
}

int prov_no_modify_qp(struct prov_qp *qp, const struct flue_qp_values *values, uint32_t mask,
		      struct prov_op *op)
{
	(void)qp, (void)values, (void)mask, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_create_ah(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
		      struct prov_op *op)
{
	(void)pd, (void)attr, (void)out, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_destroy_ah(struct prov_ah *ah, struct prov_op *op)
{
	(void)ah, (void)op;
	return -EOPNOTSUPP;
}

int prov_no_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	(void)qp, (void)group;
	return -EOPNOTSUPP;
}
