/* SPDX-License-Identifier: MIT */
/*
 * For those who implement a provider: how to make it known, and answers for slots that it cannot
 * fill. The access layer includes provider.h only.
 */
#ifndef FLUE_PROVIDER_REGISTRY_H
#define FLUE_PROVIDER_REGISTRY_H

#include "provider/provider.h"

/*
 * Add a provider behind the built-in ones; it stays for the life of the process. Any thread.
 * -EINVAL: an empty slot, no name, or a table of another size; -EEXIST: the name is taken by
 * another table (0 if by this one); -ENOSPC.
 */
int provider_register(const struct prov_ops *ops);

/* -EOPNOTSUPP, each. Feature bits that must be off when they are used are given in brackets. */
int prov_no_modify_mr(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *attr,
		      struct prov_keys *keys, struct prov_op *op);
int prov_no_create_mw(struct prov_pd *pd, uint32_t type, struct prov_mw **out, uint32_t *rkey,
		      struct prov_op *op); /* [WINDOWS, WINDOWS_1, WINDOWS_2A] */
int prov_no_bind_mw(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
		    uint32_t *rkey); /* [WINDOWS_1] */
int prov_no_destroy_mw(struct prov_mw *mw, struct prov_op *op);
int prov_no_resize_cq(struct prov_cq *cq, uint32_t depth, struct prov_op *op); /* [CQ_RESIZE] */
int prov_no_create_srq(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
		       struct prov_srq **out, struct prov_op *op); /* [SRQ] */
int prov_no_destroy_srq(struct prov_srq *srq, struct prov_op *op);
int prov_no_arm_srq(struct prov_srq *srq, uint32_t limit);
int prov_no_modify_srq(struct prov_srq *srq, const struct flue_srq_values *values, uint32_t mask,
		       struct prov_op *op); /* [SRQ] */
int prov_no_query_srq(struct prov_srq *srq, struct flue_srq_values *values, struct prov_op *op);
int prov_no_post_srq(struct prov_srq *srq, const struct flue_recv_wr *wr,
		     const struct flue_recv_wr **bad);
int prov_no_adopt_stream(struct prov_qp *qp, const struct prov_stream *stream,
			 const struct flue_conn_attr *attr);
int prov_no_adopt_gang(struct prov_adoption *gang, uint32_t n); /* [GANG] */
int prov_no_terminate(struct prov_qp *qp);
int prov_no_modify_qp(struct prov_qp *qp, const struct flue_qp_values *values, uint32_t mask,
		      struct prov_op *op); /* [ADOPT_STREAM, MODIFY] */
int prov_no_create_ah(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
		      struct prov_op *op); /* [UD] */
int prov_no_destroy_ah(struct prov_ah *ah, struct prov_op *op);
int prov_no_group(struct prov_qp *qp, const struct flue_ah_attr *group); /* [UD] */

#endif
