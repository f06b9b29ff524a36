/* SPDX-License-Identifier: MIT */
/* The initiator's calls: dialling, and dialling again. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/fd.h"
#include "rnic/bringup.h"
#include "rnic/cep_priv.h"
#include "rnic/qp.h"

static int dial(struct cep *c)
{
	int one = 1, rc;
	int fd = fd_keep(
		socket(c->remote.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	engine_io_take(&c->io, fd);
	if (c->local_len && bind(fd, (struct sockaddr *)&c->local, c->local_len) < 0) {
		rc = -errno;
	} else if (connect(fd, (struct sockaddr *)&c->remote, c->remote_len) < 0 &&
		   errno != EINPROGRESS) {
		rc = -errno;
	} else {
		rc = 0;
	}
	if (rc)
		cep_close_stream(c);
	return rc;
}

int cep_redial(struct cep *c)
{
	int rc;

	cep_close_stream(c);
	c->policy.rev = 1;
	c->policy.p2p = false;
	c->fallback = false;
	rc = dial(c);
	return rc ? rc : engine_watch(c->engine, &c->io, EPOLLOUT);
}

static void dialled(struct cep *c, int err)
{
	c->err = err;
	c->reached = !err;
	cep_apply(c, err ? MPA_EV_LOST : MPA_EV_TCP_UP);
}

void cep_dial_ready(struct cep *c)
{
	int err = 0;
	socklen_t len = sizeof(err);

	if (getsockopt(c->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	dialled(c, err);
}

/* To a peer on this host we are connected by now, which the second call says; else epoll tells. */
static void look_dialled(struct cep *c)
{
	int err = 0;

	if (connect(c->io.fd, (struct sockaddr *)&c->remote, c->remote_len) < 0)
		err = errno;
	if (err == EALREADY || err == EINPROGRESS || err == EINTR) {
		err = -engine_watch(c->engine, &c->io, EPOLLOUT);
		if (!err)
			return;
	}
	dialled(c, err == EISCONN ? 0 : err);
}

int cep_dial(struct qp *q, const struct flue_conn_attr *a)
{
	struct cep *c;
	int rc;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	c = cep_new(q->rnic, q->engine);
	if (!c)
		return -ENOMEM;
	c->initiator = true;
	c->full = a->flags & FLUE_CONN_FULL;
	cep_set_policy(c, a);
	bringup_identify(q, &c->policy.identity);
	rc = cep_take_private(c, a->private_data, a->private_len, c->policy.rev == 2);
	if (rc == 0)
		rc = qp_expect_news(q);
	if (rc == 0) {
		memcpy(&c->remote, a->remote, a->remote_len);
		c->remote_len = a->remote_len;
		if (a->local)
			memcpy(&c->local, a->local, a->local_len);
		c->local_len = a->local ? a->local_len : 0;
		rc = dial(c);
	}
	if (rc) {
		cep_free(c);
		return rc;
	}
	c->qp = q;
	q->cep = c;
	cep_apply(c, MPA_EV_DIAL);
	look_dialled(c);
	return 0;
}

int cep_connect(struct qp *q, const struct flue_conn_attr *a)
{
	int rc;

	if (q->bringup || !a->remote || a->remote_len > sizeof(struct sockaddr_storage) ||
	    (a->local && a->local_len > sizeof(struct sockaddr_storage)))
		return -EINVAL;
	rc = cep_start_engines(q);
	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = cep_dial(q, a);
	engine_unlock(q->engine);
	return rc;
}
