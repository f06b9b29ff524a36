/* SPDX-License-Identifier: MIT */
/* Between rx_segment.c, which has the table of opcodes, and rx_read.c, which has rows of it. Under the
 * engine's lock. */
#ifndef FLUE_RNIC_RX_PRIV_H
#define FLUE_RNIC_RX_PRIV_H

#include "rnic/rx_segment.h"

/* rx_segment.c */
/* Memory that the peer, or a receive, names. MEM_OK: mem_put(*ref) is owed. */
enum mem_verdict rx_get_memory(struct qp *q, uint32_t key, uint32_t access, uint64_t to,
			       uint64_t len, char **p, struct mem **ref);
/* The same, as the next piece of *t. */
bool rx_hold(struct qp *q, uint32_t key, uint32_t access, uint64_t to, size_t len,
	     struct rx_target *t, enum mem_verdict *v);

/* The oldest receive becomes q->rx.wqe. false: there is none. */
bool rx_take_receive(struct qp *q);
/* The same for octets skip..skip+len of a request's list. */
bool rx_hold_list(struct qp *q, const struct flue_sge *sg, size_t skip, size_t len,
		  struct rx_target *t);

/* rx_read.c */
uint32_t rx_check_read_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
uint32_t rx_deliver_read_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
uint32_t rx_check_read_response(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
uint32_t rx_target_read_response(struct qp *q, const struct ddp_segment *s, size_t off, size_t len,
				 struct rx_target *t);
uint32_t rx_deliver_read_response(struct qp *q, const struct ddp_segment *s,
				  const uint8_t *payload);
/* Atomics: RFC 7306. */
uint32_t rx_check_atomic_request(struct qp *q, const struct ddp_segment *s, const uint8_t *payload);
uint32_t rx_deliver_atomic_request(struct qp *q, const struct ddp_segment *s,
				   const uint8_t *payload);
uint32_t rx_check_atomic_response(struct qp *q, const struct ddp_segment *s,
				  const uint8_t *payload);
uint32_t rx_deliver_atomic_response(struct qp *q, const struct ddp_segment *s,
				    const uint8_t *payload);
/* The request of ours that a Terminate names, if it does, has failed. */
void rx_blame_read(struct qp *q, const struct rdmap_terminate *t);

#endif
