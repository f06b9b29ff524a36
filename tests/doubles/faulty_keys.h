/* SPDX-License-Identifier: MIT */
/*
 * Keys as a provider may give them that has two for a region: every lkey of the inner provider is
 * shown as another number, which is good in SGEs and in binds and nowhere else. The inner provider may
 * use one number for both.
 */
#ifndef FLUE_TESTS_FAULTY_KEYS_H
#define FLUE_TESTS_FAULTY_KEYS_H

#include "provider/provider.h"

int keyed_register(const struct prov_ops *inner, const struct prov_mr_attr *attr,
		   struct prov_mr **out, struct prov_keys *keys, struct prov_op *op);
int keyed_modify(const struct prov_ops *inner, struct prov_mr *mr, uint32_t what,
		 const struct prov_mr_attr *attr, struct prov_keys *keys, struct prov_op *op);
int keyed_deregister(const struct prov_ops *inner, struct prov_mr *mr, struct prov_op *op);

int keyed_bind(const struct prov_ops *inner, struct prov_mw *mw, struct prov_qp *qp,
	       const struct flue_send_wr *wr, uint32_t *rkey);
int keyed_post_send(const struct prov_ops *inner, struct prov_qp *qp, const struct flue_send_wr *wr,
		    const struct flue_send_wr **bad);
int keyed_post_recv(const struct prov_ops *inner, struct prov_qp *qp, const struct flue_recv_wr *wr,
		    const struct flue_recv_wr **bad);
int keyed_post_srq(const struct prov_ops *inner, struct prov_srq *srq,
		   const struct flue_recv_wr *wr, const struct flue_recv_wr **bad);

/* Completions are about to be handed up: regions show what fast registers made of them. */
void keyed_show(void);

#endif
