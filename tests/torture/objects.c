/* SPDX-License-Identifier: MIT */
/* Scenarios without a connection: every object is made, changed and destroyed. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "torture/torture.h"

static bool open_and_close(void)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	const int cpus[] = { 0 };
	struct flue_adapter *a = flue_open(NULL);

	if (!a)
		return false;
	torture_must(flue_close(a));
	attr.cpus = cpus;
	attr.n_cpus = 1;
	a = flue_open(&attr);
	if (!a)
		return false;
	torture_must(flue_close(a));
	return true;
}

#define KEPT 16

/* What was made so far, to be destroyed in the opposite order. */
struct heap {
	struct flue_adapter *adapter;
	struct {
		void *object;
		bool (*destroy)(void *object);
	} made[KEPT];
	unsigned n;
};

static bool keep(struct heap *h, void *object, bool (*destroy)(void *object))
{
	if (!object)
		return false;
	h->made[h->n].object = object;
	h->made[h->n++].destroy = destroy;
	return true;
}

static bool drop_adapter(void *object)
{
	return flue_close(object);
}

static bool drop_pd(void *object)
{
	return flue_destroy_pd(object);
}

static bool drop_mr(void *object)
{
	return flue_deregister(object);
}

static bool drop_mw(void *object)
{
	struct flue_mw *mw = object;

	return mw->ops->destroy(mw);
}

static bool drop_cq(void *object)
{
	return flue_destroy_cq(object);
}

static bool drop_srq(void *object)
{
	struct flue_srq *srq = object;

	return srq->ops->destroy(srq);
}

static bool drop_qp(void *object)
{
	return flue_destroy_qp(object);
}

static bool drop_listener(void *object)
{
	struct flue_listener *l = object;

	return l->ops->destroy(l);
}

static bool make_memory(struct heap *h, struct flue_pd *pd)
{
	static uint8_t octets[4096];
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_mr *mr, *revoked, *zero;
	struct flue_mw *mw;

	mr = flue_register(pd, octets, sizeof(octets), PAIR_ALL_ACCESS | FLUE_BIND_WINDOW);
	if (!keep(h, mr, drop_mr))
		return false;
	attr.addr = octets;
	attr.length = 64;
	attr.revoked = true;
	revoked = pd->ops->register_mr(pd, &attr);
	if (!keep(h, revoked, drop_mr))
		return false;
	zero = flue_register(pd, octets, 100, FLUE_ZERO_BASED);
	if (!keep(h, zero, drop_mr))
		return false;
	mw = pd->ops->create_mw(pd);
	if (!keep(h, mw, drop_mw))
		return false;
	attr.revoked = false;
	return mr->ops->modify(mr, FLUE_MR_RANGE, &attr, NULL);
}

static void no_completion(struct flue_cq *cq, const struct flue_wc *wc, void *arg)
{
}

static void no_notice(struct flue_cq *cq, void *arg)
{
}

static bool make_cqs(struct heap *h, struct flue_cq **out)
{
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);
	struct flue_cq *cq = flue_create_cq(h->adapter, 16);

	if (!keep(h, cq, drop_cq))
		return false;
	attr.depth = 8;
	attr.on_completion = no_completion;
	*out = cq;
	if (!keep(h, h->adapter->ops->create_cq(h->adapter, &attr), drop_cq))
		return false;
	if (cq->ops->fd(cq) < 0 || !cq->ops->notify(cq, FLUE_NOTIFY_NEXT, no_notice, NULL))
		return false;
	if (!cq->ops->resize(cq, 64)) {
		torture_promise(cq->depth == 16, "a failed resize changed the depth");
		return false;
	}
	torture_promise(cq->depth == 64, "resize did not change the depth");
	return true;
}

static bool make_queues(struct heap *h, struct flue_pd *pd, struct flue_cq *cq)
{
	struct flue_srq_attr srq_attr = FLUE_ATTR(struct flue_srq_attr);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_recv_wr wr = { .id = 1 };
	struct flue_srq *srq;
	struct flue_qp *qp;

	srq_attr.depth = 8;
	srq = pd->ops->create_srq(pd, &srq_attr);
	if (!keep(h, srq, drop_srq))
		return false;
	torture_must(srq->ops->post_recv(srq, &wr, NULL));
	if (!srq->ops->arm_limit(srq, 1))
		return false;
	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = attr.rq_depth = 8;
	attr.max_inline = 128;
	qp = pd->ops->create_qp(pd, &attr);
	if (!keep(h, qp, drop_qp))
		return false;
	torture_must(flue_post_recv(qp, &wr));
	attr.srq = srq;
	return keep(h, pd->ops->create_qp(pd, &attr), drop_qp);
}

static bool make_listeners(struct heap *h)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	struct flue_adapter *a = h->adapter;

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&in;
	attr.local_len = sizeof(in);
	if (!keep(h, a->ops->listen(a, &attr), drop_listener))
		return false;
	attr.local = (struct sockaddr *)&in6;
	attr.local_len = sizeof(in6);
	return keep(h, a->ops->listen(a, &attr), drop_listener);
}

static bool make_all(struct heap *h)
{
	struct flue_adapter *a = h->adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;

	if (a->ops->event_fd(a) < 0)
		return false;
	pd = flue_create_pd(a);
	return keep(h, pd, drop_pd) && make_memory(h, pd) && make_cqs(h, &cq) &&
	       make_queues(h, pd, cq) && make_listeners(h);
}

static bool all_objects(void)
{
	struct heap h = { .adapter = flue_open(NULL) };
	bool ok;
	int error;

	if (!keep(&h, h.adapter, drop_adapter))
		return false;
	ok = make_all(&h);
	error = errno;
	while (h.n--)
		torture_must(h.made[h.n].destroy(h.made[h.n].object));
	errno = error;
	return ok;
}

static bool many_regions(void)
{
	enum { REGIONS = 700 }; /* more than one chunk of the table */
	static struct flue_mr *mr[REGIONS];
	static uint8_t octet;
	struct flue_adapter *a = flue_open(NULL);
	struct flue_pd *pd = a ? flue_create_pd(a) : NULL;
	unsigned n = 0;
	int error = errno;

	while (pd && n < REGIONS && (mr[n] = flue_register(pd, &octet, 1, 0)))
		n++;
	error = n < REGIONS ? errno : error;
	for (unsigned i = 0; i < n; i++)
		torture_must(flue_deregister(mr[i]));
	if (pd)
		torture_must(flue_destroy_pd(pd));
	if (a)
		torture_must(flue_close(a));
	errno = error;
	return n == REGIONS;
}

const struct scenario object_scenarios[] = {
	{ "opening an adapter", open_and_close, false },
	{ "making every object", all_objects, false },
	{ "registering many regions", many_regions, false },
	{ .name = NULL },
};
