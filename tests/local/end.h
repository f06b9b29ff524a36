/* SPDX-License-Identifier: MIT */
/* One end of a connection, in a process of its own: what the programs of this folder share. Failures end the program. */
#ifndef FLUE_TESTS_LOCAL_END_H
#define FLUE_TESTS_LOCAL_END_H

#include <errno.h>
#include <flue/flue.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/column.h"

#define MUST(what) ((what) ? (void)0 : end_fail(__FILE__, __LINE__, #what))

#define END_DEPTH 32

struct end {
	enum column column;
	bool any_link; /* it need not be the column's */
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_qp *qp;
	struct flue_mr *mr;
	uint8_t *mem;
	struct flue_listener *listener;
};

__attribute__((noreturn)) static inline void end_fail(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: not %s: %s\n", file, line, what, strerror(errno));
	_exit(1);
}

static inline struct flue_qp *end_make_qp(struct end *n)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = attr.recv_cq = n->cq;
	attr.sq_depth = attr.rq_depth = END_DEPTH;
	n->qp = n->pd->ops->create_qp(n->pd, &attr);
	MUST(n->qp);
	return n->qp;
}

static inline void end_open(struct end *n, enum column column, size_t memory)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	n->column = column;
	attr.links = column_is_local(column) ? FLUE_LINK_ALL : FLUE_LINK_TCP;
	MUST(n->adapter = flue_open(&attr));
	MUST(n->pd = flue_create_pd(n->adapter));
	MUST(n->cq = flue_create_cq(n->adapter, 4 * END_DEPTH));
	MUST(n->mem = calloc(1, memory));
	MUST(n->mr = flue_register(n->pd, n->mem, memory,
				   FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ));
	end_make_qp(n);
}

static inline uint16_t end_listen(struct end *n)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in at = { .sin_family = AF_INET };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&at;
	attr.local_len = sizeof(at);
	attr.flags = column_is_full(n->column) ? FLUE_LISTEN_FULL : 0;
	MUST(n->listener = n->adapter->ops->listen(n->adapter, &attr));
	return ntohs(((struct sockaddr_in *)&n->listener->local)->sin_port);
}

static inline void end_connect(struct end *n, uint16_t port)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.remote = (struct sockaddr *)&to;
	attr.remote_len = sizeof(to);
	attr.flags = column_is_full(n->column) ? FLUE_CONN_FULL : 0;
	MUST(n->qp->ops->connect(n->qp, &attr));
	MUST(n->qp->ops->query(n->qp, &v, FLUE_QPV_LINK));
	MUST(n->any_link ||
	     v.link == (column_is_local(n->column) ? FLUE_LINK_LOCAL : FLUE_LINK_TCP));
}

static inline bool end_post(struct end *n, uint32_t op, uint64_t offset, uint32_t length,
			    uint32_t rkey, uint64_t to)
{
	struct flue_sge sge = flue_mr_sge(n->mr, offset, length);
	struct flue_send_wr wr = { .op = op,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = rkey,
				   .remote_addr = to };

	return flue_post_send(n->qp, &wr);
}

static inline void end_close(struct end *n)
{
	MUST(flue_destroy_qp(n->qp));
	MUST(!n->listener || n->listener->ops->destroy(n->listener));
	MUST(flue_deregister(n->mr));
	MUST(flue_destroy_cq(n->cq) && flue_destroy_pd(n->pd) && flue_close(n->adapter));
	free(n->mem);
}

#endif
