/* SPDX-License-Identifier: MIT */
/* A live TCP stream becomes a connection. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "rnic/cep_priv.h"
#include "rnic/qp.h"

/* RDMAC style: what the exchange of frames would have settled. */
static void agreed_terms(struct cep *c)
{
	c->terms = (struct mpa_terms) { .rev = 0,
					.crc = c->policy.crc,
					.tx_markers = c->policy.markers,
					.rx_markers = c->policy.markers,
					.ird = c->policy.ird,
					.ord = c->policy.ord };
}

static int keep_early(struct cep *c, const struct cep_adopt *a)
{
	if (a->early_len > ENGINE_BUF_SIZE)
		return -EINVAL;
	if (!a->early_len)
		return 0;
	c->early = malloc(a->early_len);
	if (!c->early)
		return -ENOMEM;
	memcpy(c->early, a->early, a->early_len);
	c->early_len = a->early_len;
	return 0;
}

/* The descriptor is the program's until nothing can fail any more without being told. */
static int prepare_adopted(struct cep *c, struct qp *q, const struct cep_adopt *a,
			   const struct flue_conn_attr *attr)
{
	int rc = qp_expect_news(q);

	c->adopted = true;
	c->initiator = a->initiator;
	c->deny = a->deny;
	cep_set_policy(c, attr);
	c->fallback = false; /* there is no address to try again */
	c->deadline = clock_now() + c->timeout_ms * NSEC_PER_MSEC;
	if (rc == 0)
		rc = cep_take_private(c, attr->private_data, attr->private_len,
				      a->initiator && c->policy.rev == 2);
	if (rc == 0)
		rc = keep_early(c, a);
	if (rc == 0 && a->raw)
		agreed_terms(c);
	return rc;
}

static void own_stream(int fd)
{
	struct linger no = { .l_onoff = 0 };
	int one = 1, off = 0;

	/* What a program may have set for its streaming data, and would stall us. */
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off));
	setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &no, sizeof(no));
	fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int begin_adopted(struct qp *q, const struct cep_adopt *a, const struct flue_conn_attr *attr)
{
	struct cep *c;
	int rc, fd;

	if (q->state != QPS_IDLE || q->cep || q->connected)
		return -EISCONN;
	c = cep_new(q->rnic, q->engine);
	if (!c)
		return -ENOMEM;
	fd = fd_copy(a->fd);
	rc = prepare_adopted(c, q, a, attr);
	if (rc == 0) {
		engine_io_take(&c->io, fd < 0 ? a->fd : fd);
		rc = engine_watch(c->engine, &c->io, EPOLLIN);
	}
	if (rc) {
		fd_release(c->io.fd);
		c->io.fd = -1;
		cep_free(c);
		if (fd >= 0)
			close(fd);
		return rc;
	}
	own_stream(c->io.fd);
	if (fd >= 0)
		close(a->fd);
	c->qp = q;
	q->cep = c;
	if (a->raw)
		cep_apply(c, MPA_EV_ADOPT_RAW);
	else
		cep_apply(c, a->initiator ? MPA_EV_ADOPT : MPA_EV_TCP_IN);
	/* What was read before raises no event any more. */
	if (!a->raw && q->cep == c && c->early_len)
		cep_frame_ready(c);
	return 0;
}

int cep_adopt(struct qp *q, const struct cep_adopt *a, const struct flue_conn_attr *attr)
{
	int rc = cep_start_engines(q);

	if (rc)
		return rc;
	engine_lock(q->engine);
	rc = begin_adopted(q, a, attr);
	engine_unlock(q->engine);
	return rc;
}
