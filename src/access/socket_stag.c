/* SPDX-License-Identifier: MIT */
/* Keys of an RDMA socket that its program allocates, maps, advertises and gives back (CH-16, CH-28). */
#include <stdlib.h>

#include "access/socket_priv.h"

struct flue_mr *sock_alloc_stag(struct flue_socket *pub)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct sock_stag *st = calloc(1, sizeof(*st));
	int rc = st ? acc_usable(s->a) : -ENOMEM;

	if (!rc) {
		pthread_mutex_lock(&s->lock);
		rc = sock_check(s, SOCKET_CALL_ALLOC_STAG);
		pthread_mutex_unlock(&s->lock);
	}
	if (!rc)
		rc = sock_need_pd(s, NULL);
	if (!rc) {
		/* Some memory has to be named; the key is not valid before map(). */
		attr.addr = s;
		attr.length = 1;
		attr.revoked = true;
		st->mr = pub->pd->ops->register_mr(pub->pd, &attr);
		rc = st->mr ? 0 : -errno;
	}
	if (rc) {
		free(st);
		return acc_null(rc);
	}
	pthread_mutex_lock(&s->lock);
	TAILQ_INSERT_TAIL(&s->stags, st, link);
	pthread_mutex_unlock(&s->lock);
	return st->mr;
}

/* Lock held. */
static struct sock_stag *find_stag(struct acc_socket *s, const struct flue_mr *mr)
{
	struct sock_stag *st;

	TAILQ_FOREACH(st, &s->stags, link)
		if (st->mr == mr)
			return st;
	return NULL;
}

static int check_stag(struct acc_socket *s, enum socket_call call, const struct flue_mr *mr,
		      struct sock_stag **out)
{
	int rc = acc_usable(s->a);

	if (rc)
		return rc;
	pthread_mutex_lock(&s->lock);
	rc = sock_check(s, call);
	/* What the program allocated it may give back after the end, too. */
	if (rc == -ENOTCONN && call == SOCKET_CALL_FREE_STAG)
		rc = 0;
	*out = find_stag(s, mr);
	if (!rc && !*out)
		rc = -EINVAL;
	if (!rc && call == SOCKET_CALL_FREE_STAG)
		TAILQ_REMOVE(&s->stags, *out, link);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

bool sock_map(struct flue_socket *pub, struct flue_mr *mr, void *data, size_t length,
	      uint32_t access)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct sock_stag *st;
	int rc = check_stag(s, SOCKET_CALL_MAP, mr, &st);

	if (!rc && ((s->no_read && access & FLUE_REMOTE_READ) ||
		    (s->no_write && access & FLUE_REMOTE_WRITE)))
		rc = -EACCES;
	if (rc)
		return acc_ok(rc);
	attr.addr = data;
	attr.length = length;
	attr.access = access;
	return mr->ops->modify(mr, FLUE_MR_RANGE | FLUE_MR_ACCESS, &attr, NULL);
}

bool sock_free_stag(struct flue_socket *pub, struct flue_mr *mr)
{
	CANCEL_HELD;
	struct acc_socket *s = to_socket(pub);
	struct sock_stag *st;
	int rc = check_stag(s, SOCKET_CALL_FREE_STAG, mr, &st);

	if (rc)
		return acc_ok(rc);
	rc = mr->ops->deregister(mr) ? 0 : errno;
	/* Without an answer it is gone, too. */
	if (!rc || rc == ETIMEDOUT) {
		free(st);
		return acc_ok(-rc);
	}
	pthread_mutex_lock(&s->lock);
	TAILQ_INSERT_TAIL(&s->stags, st, link);
	pthread_mutex_unlock(&s->lock);
	return acc_ok(-rc);
}

void sock_stags_fini(struct acc_socket *s)
{
	struct sock_stag *st;

	while ((st = TAILQ_FIRST(&s->stags))) {
		TAILQ_REMOVE(&s->stags, st, link);
		st->mr->ops->deregister(st->mr);
		free(st);
	}
}
