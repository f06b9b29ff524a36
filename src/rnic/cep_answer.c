/* SPDX-License-Identifier: MIT */
/* The responder's calls, and the start of what was deferred. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "rnic/bringup.h"
#include "rnic/cep_priv.h"
#include "rnic/listener.h"
#include "rnic/qp.h"

void cep_accept_now(struct cep *c)
{
	if (c->defer)
		cep_apply(c, MPA_EV_ACCEPT_DEFER);
	else
		cep_apply(c, c->terms.p2p ? MPA_EV_ACCEPT_P2P : MPA_EV_ACCEPT);
}

int cep_start(struct qp *q)
{
	struct cep *c;
	int rc = -EINVAL;

	engine_lock(q->engine);
	c = q->cep;
	if (c && (c->state == MPA_HELD || c->state == MPA_PARKED)) {
		cep_apply(c, !c->initiator && c->terms.p2p ? MPA_EV_START_P2P : MPA_EV_START);
		rc = 0;
	}
	engine_unlock(q->engine);
	return rc;
}

int cep_answer(struct cep *c, struct qp *q, const struct flue_conn_attr *a)
{
	int rc;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	c->engine = q->engine;
	cep_set_policy(c, a);
	bringup_identify(q, &c->policy.identity);
	rc = mpa_answer_request(&c->policy, &c->req, &c->rep, &c->terms);
	if (rc == 0)
		rc = cep_take_private(c, a->private_data, a->private_len,
				      c->req.flags & MPA_FLAG_ENHANCED);
	if (rc == 0)
		rc = qp_expect_news(q);
	if (rc)
		return rc;
	c->qp = q;
	q->cep = c;
	cep_accept_now(c);
	return 0;
}

int cep_accept(struct cep *c, struct qp *q, const struct flue_conn_attr *a)
{
	int rc = q->bringup ? -EINVAL : cep_start_engines(q);

	if (rc) {
		cep_reject(c, NULL, 0);
		return rc;
	}
	engine_lock(q->engine);
	rc = cep_answer(c, q, a);
	engine_unlock(q->engine);
	if (rc)
		cep_reject(c, NULL, 0);
	return rc;
}

int cep_reject(struct cep *c, const void *data, size_t length)
{
	struct engine *e = c->engine;
	int rc;

	engine_lock(e);
	rc = cep_take_private(c, data, length, c->req.flags & MPA_FLAG_ENHANCED);
	if (rc)
		c->own_len = 0;
	mpa_make_reject(&c->rep);
	cep_apply(c, MPA_EV_REJECT);
	engine_unlock(e);
	return rc;
}

int cep_incoming(struct listener *l, int fd, const struct sockaddr_storage *peer)
{
	struct cep *c = cep_new(l->rnic, l->engine);
	int one = 1, rc;

	if (!c) {
		close(fd);
		return -ENOMEM;
	}
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	engine_io_take(&c->io, fd);
	c->timeout_ms = (uint32_t)l->request_timeout_ms;
	c->full = l->full;
	c->remote = *peer;
	c->remote_len = sizeof(c->remote);
	listener_add(l, c, peer);
	rc = engine_watch(c->engine, &c->io, EPOLLIN);
	if (rc) {
		cep_free(c);
		return rc;
	}
	cep_apply(c, MPA_EV_TCP_IN);
	return 0;
}
