/* SPDX-License-Identifier: MIT */
/* See faulty_keys.h. The inner provider must answer at once: what it wrote is read here. */
#include "doubles/faulty_keys.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#define OTHER 0x5a5a5a00u /* what an lkey is turned by; the last octet is the program's */
#define MOST  32          /* pieces that are translated; more are refused anyway */

/* A region, and what its inner provider writes in place of the public structure. */
struct twin {
	struct prov_mr *inner;
	struct flue_mr *owner;
	struct flue_mr shown; /* rkey, which is stored last, is 0 until there is something new */
	struct prov_mr_attr attr;
	LIST_ENTRY(twin) link;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, twin) twins = LIST_HEAD_INITIALIZER(twins);

int keyed_register(const struct prov_ops *inner, const struct prov_mr_attr *attr,
		   struct prov_mr **out, struct prov_keys *keys, struct prov_op *op)
{
	struct twin *t = calloc(1, sizeof(*t));
	int rc;

	assert(t);
	t->owner = attr->owner;
	t->attr = *attr;
	t->attr.owner = &t->shown;
	rc = inner->register_mr(&t->attr, out, keys, op);
	assert(rc != -EINPROGRESS);
	if (rc) {
		free(t);
		return rc;
	}
	t->inner = *out;
	keys->lkey ^= OTHER;
	pthread_mutex_lock(&lock);
	LIST_INSERT_HEAD(&twins, t, link);
	pthread_mutex_unlock(&lock);
	return 0;
}

int keyed_modify(const struct prov_ops *inner, struct prov_mr *mr, uint32_t what,
		 const struct prov_mr_attr *attr, struct prov_keys *keys, struct prov_op *op)
{
	int rc = inner->modify_mr(mr, what, attr, keys, op);

	assert(rc != -EINPROGRESS);
	if (!rc)
		keys->lkey ^= OTHER;
	return rc;
}

int keyed_deregister(const struct prov_ops *inner, struct prov_mr *mr, struct prov_op *op)
{
	struct twin *t;
	int rc = inner->deregister_mr(mr, op);

	assert(rc != -EINPROGRESS);
	if (rc)
		return rc;
	pthread_mutex_lock(&lock);
	LIST_FOREACH(t, &twins, link)
		if (t->inner == mr)
			break;
	assert(t);
	LIST_REMOVE(t, link);
	pthread_mutex_unlock(&lock);
	free(t);
	return 0;
}

void keyed_show(void)
{
	struct twin *t;

	pthread_mutex_lock(&lock);
	LIST_FOREACH(t, &twins, link) {
		uint32_t rkey = __atomic_exchange_n(&t->shown.rkey, 0, __ATOMIC_ACQ_REL);

		if (!rkey)
			continue;
		t->owner->addr = t->shown.addr;
		t->owner->length = t->shown.length;
		t->owner->remote_start = t->shown.remote_start;
		t->owner->remote_end = t->shown.remote_end;
		t->owner->access = t->shown.access;
		t->owner->lkey = __atomic_load_n(&t->shown.lkey, __ATOMIC_ACQUIRE) ^ OTHER;
		t->owner->rkey = rkey;
	}
	pthread_mutex_unlock(&lock);
}

/* ---- posting: a copy of the list, with the inner provider's lkeys ---- */

static const struct flue_sge *turn(struct flue_sge *to, const struct flue_sge *from, uint32_t n)
{
	if (!from || n > MOST)
		return from;
	for (uint32_t i = 0; i < n; i++) {
		to[i] = from[i];
		to[i].lkey ^= OTHER;
	}
	return to;
}

struct keyed_send {
	struct flue_send_wr wr;
	struct flue_sge sg[MOST];
};

int keyed_post_send(const struct prov_ops *inner, struct prov_qp *qp, const struct flue_send_wr *wr,
		    const struct flue_send_wr **bad)
{
	const struct flue_send_wr *w, *failed = NULL;
	struct keyed_send *list;
	size_t n = 0, i = 0;
	int rc;

	for (w = wr; w; w = w->next)
		n++;
	list = calloc(n + 1, sizeof(*list));
	assert(list);
	for (w = wr; w; w = w->next, i++) {
		list[i].wr = *w;
		list[i].wr.next = w->next ? &list[i + 1].wr : NULL;
		list[i].wr.sg = turn(list[i].sg, w->sg, w->n_sg);
		if (w->op == FLUE_WR_BIND)
			list[i].wr.reg.lkey ^= OTHER;
	}
	rc = inner->post_send(qp, n ? &list[0].wr : NULL, &failed);
	for (w = wr, i = 0; w && failed != &list[i].wr; w = w->next)
		i++;
	*bad = w;
	free(list);
	return rc;
}

int keyed_bind(const struct prov_ops *inner, struct prov_mw *mw, struct prov_qp *qp,
	       const struct flue_send_wr *wr, uint32_t *rkey)
{
	struct flue_send_wr mine = *wr;

	if (wr->reg.length)
		mine.reg.lkey ^= OTHER;
	return inner->bind_mw(mw, qp, &mine, rkey);
}

struct keyed_recv {
	struct flue_recv_wr wr;
	struct flue_sge sg[MOST];
};

static struct keyed_recv *copy_receives(const struct flue_recv_wr *wr)
{
	struct keyed_recv *list;
	size_t n = 0;

	for (const struct flue_recv_wr *w = wr; w; w = w->next)
		n++;
	list = calloc(n + 1, sizeof(*list));
	assert(list);
	n = 0;
	for (const struct flue_recv_wr *w = wr; w; w = w->next, n++) {
		list[n].wr = *w;
		list[n].wr.next = w->next ? &list[n + 1].wr : NULL;
		list[n].wr.sg = turn(list[n].sg, w->sg, w->n_sg);
	}
	return list;
}

/* Which one of the program's it was. */
static const struct flue_recv_wr *original(const struct flue_recv_wr *wr,
					   const struct keyed_recv *list,
					   const struct flue_recv_wr *failed)
{
	for (size_t i = 0; wr && failed != &list[i].wr; i++)
		wr = wr->next;
	return wr;
}

int keyed_post_recv(const struct prov_ops *inner, struct prov_qp *qp, const struct flue_recv_wr *wr,
		    const struct flue_recv_wr **bad)
{
	struct keyed_recv *list = copy_receives(wr);
	const struct flue_recv_wr *failed = NULL;
	int rc = inner->post_recv(qp, wr ? &list[0].wr : NULL, &failed);

	*bad = original(wr, list, failed);
	free(list);
	return rc;
}

int keyed_post_srq(const struct prov_ops *inner, struct prov_srq *srq,
		   const struct flue_recv_wr *wr, const struct flue_recv_wr **bad)
{
	struct keyed_recv *list = copy_receives(wr);
	const struct flue_recv_wr *failed = NULL;
	int rc = inner->post_srq(srq, wr ? &list[0].wr : NULL, &failed);

	*bad = original(wr, list, failed);
	free(list);
	return rc;
}
