/* SPDX-License-Identifier: MIT */
#include "rnic/listener.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/util.h"

#define ACCEPT_BATCH 16
#define RETRY_MS     100

void listener_add(struct listener *l, struct cep *c)
{
	c->listener = l;
	TAILQ_INSERT_TAIL(&l->waiting, c, of_listener);
	l->half_open++;
}

void listener_remove(struct listener *l, struct cep *c)
{
	if (c->requested)
		TAILQ_REMOVE(&l->requested, c, of_listener);
	else
		TAILQ_REMOVE(&l->waiting, c, of_listener);
	c->listener = NULL;
	l->half_open--;
}

void listener_requested(struct listener *l, struct cep *c)
{
	TAILQ_REMOVE(&l->waiting, c, of_listener);
	TAILQ_INSERT_TAIL(&l->requested, c, of_listener);
	c->requested = true;
	engine_tell(l->engine, &l->note);
}

/* Engine's thread, no lock held. A request handed up is the receiver's to answer, anywhere. */
static void hand_up(struct engine_note *n)
{
	struct listener *l = container_of(n, struct listener, note);
	struct rnic *r = l->rnic;
	struct rnic_request_info info;
	struct cep *c;

	for (;;) {
		engine_lock(l->engine);
		c = TAILQ_FIRST(&l->requested);
		if (c)
			listener_remove(l, c);
		engine_unlock(l->engine);
		if (!c)
			return;
		cep_describe(c, &info);
		if (r->up->request(r->up_ctx, l->owner, c, &info))
			cep_reject(c, NULL, 0);
	}
}

/* Takes one connection. false: stop for now. */
static bool take_one(struct listener *l)
{
	int fd = accept4(l->io.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0) {
		if (errno == ECONNABORTED || errno == EINTR)
			return true;
		if (errno == EAGAIN)
			return false;
		/* Out of descriptors or memory: asking again at once would only burn the CPU. */
		engine_forget(l->engine, &l->io);
		engine_timer_arm(l->engine, &l->retry, RETRY_MS);
		return false;
	}
	if (l->half_open >= l->max_half_open)
		close(fd);
	else
		cep_incoming(l, fd);
	return true;
}

static void ready(struct engine_io *io, uint32_t events)
{
	struct listener *l = container_of(io, struct listener, io);

	(void)events;
	for (int i = 0; i < ACCEPT_BATCH && take_one(l); i++)
		;
}

static void fire_retry(struct engine_timer *t)
{
	struct listener *l = container_of(t, struct listener, retry);

	if (engine_watch(l->engine, &l->io, EPOLLIN))
		engine_timer_arm(l->engine, &l->retry, RETRY_MS);
}

static int open_socket(const struct listen_attr *a, struct sockaddr_storage *bound)
{
	socklen_t len = sizeof(*bound);
	int one = 1, rc;
	int fd = socket(a->local->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	memset(bound, 0, sizeof(*bound));
	if (bind(fd, a->local, a->local_len) < 0 || listen(fd, a->backlog) < 0 ||
	    getsockname(fd, (struct sockaddr *)bound, &len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

int listener_create(struct rnic *r, const struct listen_attr *a, struct sockaddr_storage *bound,
		    struct listener **out)
{
	struct listener *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return -ENOMEM;
	rc = open_socket(a, bound);
	if (rc < 0) {
		free(l);
		return rc;
	}
	l->io.fd = rc;
	l->io.ready = ready;
	l->retry.fire = fire_retry;
	l->rnic = r;
	l->engine = &r->engines[0];
	l->owner = a->owner;
	l->max_half_open = (uint32_t)a->max_half_open;
	l->request_timeout_ms = a->request_timeout_ms;
	l->note.run = hand_up;
	TAILQ_INIT(&l->waiting);
	TAILQ_INIT(&l->requested);
	pthread_mutex_lock(&r->lists);
	LIST_INSERT_HEAD(&r->listeners, l, all);
	pthread_mutex_unlock(&r->lists);
	engine_lock(l->engine);
	rc = engine_watch(l->engine, &l->io, EPOLLIN);
	engine_unlock(l->engine);
	if (rc) {
		listener_destroy(l);
		return rc;
	}
	*out = l;
	return 0;
}

static void drop_ceps(struct listener *l)
{
	struct cep *c;

	while ((c = TAILQ_FIRST(&l->waiting)))
		cep_abort(c, ECONNABORTED);
	while ((c = TAILQ_FIRST(&l->requested)))
		cep_abort(c, ECONNABORTED);
}

void listener_destroy(struct listener *l)
{
	engine_lock(l->engine);
	engine_timer_stop(l->engine, &l->retry);
	engine_forget(l->engine, &l->io);
	if (l->io.fd >= 0)
		close(l->io.fd);
	drop_ceps(l);
	engine_unlock(l->engine);
	/* A request may just be on its way up; behind this none is. */
	engine_untell(l->engine, &l->note);
	pthread_mutex_lock(&l->rnic->lists);
	LIST_REMOVE(l, all);
	pthread_mutex_unlock(&l->rnic->lists);
	free(l);
}

void listener_fork_child(struct listener *l)
{
	if (l->io.fd >= 0)
		close(l->io.fd);
	l->io.fd = -1;
	l->retry.at = 0;
}
