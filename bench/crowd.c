/* SPDX-License-Identifier: MIT */
#include "crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_DEPTH 16 /* of each queue of the connections that are only counted */

struct flue_adapter *bench_open_adapter(const struct bench_args *args)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	attr.links = args->link == FLUE_LINK_TCP ? FLUE_LINK_TCP : 0;
	return flue_open(&attr);
}

bool bench_check_link(const struct bench_args *args, struct flue_qp *qp)
{
	struct flue_qp_values values = FLUE_ATTR(struct flue_qp_values);

	if (!args->link ||
	    (qp->ops->query(qp, &values, FLUE_QPV_LINK) && values.link == args->link))
		return true;
	fprintf(stderr, "flue_bench: %s: the connection goes over another link\n", args->mode);
	return false;
}

struct sockaddr_in bench_loopback(uint16_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = port };

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

bool crowd_open(struct crowd *c, const struct bench_args *args, uint64_t room)
{
	memset(c, 0, sizeof(*c));
	c->qp = calloc(room, sizeof(struct flue_qp *));
	c->adapter = bench_open_adapter(args);
	if (!c->qp || !c->adapter)
		return false;
	c->pd = flue_create_pd(c->adapter);
	c->cq = flue_create_cq(c->adapter, 4096);
	return c->pd && c->cq;
}

struct flue_qp *crowd_add(struct crowd *c)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	attr.send_cq = attr.recv_cq = c->cq;
	attr.sq_depth = attr.rq_depth = CONNECT_DEPTH;
	qp = c->pd->ops->create_qp(c->pd, &attr);
	if (qp)
		c->qp[c->n++] = qp;
	return qp;
}

void crowd_close(struct crowd *c)
{
	while (c->n > 0)
		flue_destroy_qp(c->qp[--c->n]);
	if (c->cq)
		flue_destroy_cq(c->cq);
	if (c->pd)
		flue_destroy_pd(c->pd);
	if (c->adapter)
		flue_close(c->adapter);
	free(c->qp);
}
