/* SPDX-License-Identifier: MIT */
#include "rnic/listener.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/util.h"

#define ACCEPT_BATCH 16
#define RETRY_MS     100
/* Silent for this part of its time, a peer may have to make room for another. */
#define PATIENCE 5
/* The kernel makes it as long as the system allows: to wait there must cost nobody his connection. */
#define KERNEL_QUEUE INT_MAX

/* Addresses of one host; for IPv6 of one network, since a host there has as many as it likes. */
static uint8_t crowd_of(const struct sockaddr_storage *peer)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)peer;
	const uint8_t *at = in6->sin6_addr.s6_addr;
	uint32_t hash = 2166136261u;
	size_t n = 8;

	if (peer->ss_family == AF_INET) {
		at = (const uint8_t *)&((const struct sockaddr_in *)peer)->sin_addr;
		n = 4;
	} else if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
		at += 12;
		n = 4;
	}
	while (n--)
		hash = (hash ^ *at++) * 16777619u;
	return (uint8_t)(hash ^ hash >> 8 ^ hash >> 16 ^ hash >> 24);
}

static void watch_again(struct listener *l)
{
	l->crowded = false;
	engine_timer_stop(l->engine, &l->retry);
	if (engine_watch(l->engine, &l->io, EPOLLIN))
		engine_timer_arm(l->engine, &l->retry, RETRY_MS);
}

void listener_add(struct listener *l, struct cep *c, const struct sockaddr_storage *peer)
{
	c->listener = l;
	c->since = clock_now();
	c->crowd = crowd_of(peer);
	l->crowd[c->crowd]++;
	TAILQ_INSERT_TAIL(&l->waiting, c, of_listener);
	l->half_open++;
}

static void leave_waiting(struct listener *l, struct cep *c)
{
	TAILQ_REMOVE(&l->waiting, c, of_listener);
	l->crowd[c->crowd]--;
}

void listener_remove(struct listener *l, struct cep *c)
{
	if (c->requested)
		TAILQ_REMOVE(&l->requested, c, of_listener);
	else
		leave_waiting(l, c);
	c->listener = NULL;
	l->half_open--;
	if (l->crowded && l->io.fd >= 0)
		watch_again(l);
}

void listener_requested(struct listener *l, struct cep *c)
{
	leave_waiting(l, c);
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
		if (l->rendezvous) {
			rendezvous_call(c);
			continue;
		}
		cep_describe(c, &info);
		if (r->up->request(r->up_ctx, l->owner, c, &info))
			cep_reject(c, NULL, 0);
	}
}

int listener_await(struct listener *l, const struct engine_await *w)
{
	int rc = engine_await(l->engine, &l->note, w);

	rnic_stop_driving(l->rnic, l->engine);
	return rc;
}

/* The oldest of those whose address has most. They stand in the order in which they came. */
static struct cep *one_too_many(struct listener *l)
{
	struct cep *c, *most = TAILQ_FIRST(&l->waiting);

	TAILQ_FOREACH(c, &l->waiting, of_listener)
		if (l->crowd[c->crowd] > l->crowd[most->crowd])
			most = c;
	return most;
}

/* Somebody waits in the kernel's queue, and there is no room. Is there now? */
static bool make_place(struct listener *l)
{
	uint64_t patience = (uint64_t)l->request_timeout_ms / PATIENCE;
	struct cep *c = one_too_many(l);
	uint64_t silent = c ? (clock_now() - c->since) / NSEC_PER_MSEC : 0;

	if (c && silent >= patience) {
		cep_abort(c, ETIMEDOUT);
		return true;
	}
	engine_forget(l->engine, &l->io);
	l->crowded = true;
	/* Without anybody silent the engine itself is behind: it will come back here soon. */
	if (c)
		engine_timer_arm(l->engine, &l->retry, patience - silent + 1);
	return false;
}

/* Takes one connection. false: stop for now. */
static bool take_one(struct listener *l)
{
	struct sockaddr_storage peer = { 0 };
	socklen_t len = sizeof(peer);
	int fd = fd_keep(
		accept4(l->io.fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC));

	if (fd < 0) {
		if (errno == ECONNABORTED || errno == EINTR)
			return true;
		if (errno == EAGAIN)
			return false;
		if (errno == EINVAL || errno == EBADF || errno == ENOTSOCK) {
			/* The program has closed it: nobody can come any more. */
			engine_forget(l->engine, &l->io);
			return false;
		}
		/* Out of descriptors or memory: asking again at once would only burn the CPU. */
		engine_forget(l->engine, &l->io);
		engine_timer_arm(l->engine, &l->retry, RETRY_MS);
		return false;
	}
	cep_incoming(l, fd, &peer);
	return true;
}

static void ready(struct engine_io *io, uint32_t events)
{
	struct listener *l = container_of(io, struct listener, io);

	(void)events;
	/* Room is made for one, who is there for certain; then epoll has to say that more are. */
	if (l->half_open >= l->max_half_open) {
		if (make_place(l))
			take_one(l);
		return;
	}
	for (int i = 0; i < ACCEPT_BATCH && l->half_open < l->max_half_open && take_one(l); i++)
		;
}

static void fire_retry(struct engine_timer *t)
{
	struct listener *l = container_of(t, struct listener, retry);

	watch_again(l);
}

static int open_socket(const struct listen_attr *a, struct sockaddr_storage *bound)
{
	socklen_t len = sizeof(*bound);
	int one = 1, off = 0, rc;
	int fd = fd_keep(
		socket(a->local->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	/* A number is ours alone, so its port is, and nobody waits for it. */
	if (!a->rendezvous)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	else if (a->local->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
	memset(bound, 0, sizeof(*bound));
	if (bind(fd, a->local, a->local_len) < 0 || listen(fd, KERNEL_QUEUE) < 0 ||
	    getsockname(fd, (struct sockaddr *)bound, &len) < 0) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

/* Under r->lists: the engine that has fewest of them, so that no processor accepts for all. */
static struct engine *least_busy(struct rnic *r)
{
	uint32_t on[RNIC_MAX_ENGINES] = { 0 }, least = 0;
	const struct listener *l;

	LIST_FOREACH(l, &r->listeners, all)
		on[l->engine->index]++;
	for (uint32_t i = 1; i < r->n_engines; i++)
		if (on[i] < on[least])
			least = i;
	return &r->engines[least];
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
	engine_io_take(&l->io, rc);
	l->io.ready = ready;
	l->retry.fire = fire_retry;
	l->rnic = r;
	l->owner = a->owner;
	l->full = a->full;
	l->rendezvous = a->rendezvous;
	l->max_half_open = (uint32_t)a->max_half_open;
	l->request_timeout_ms = a->request_timeout_ms;
	l->note.run = hand_up;
	TAILQ_INIT(&l->waiting);
	TAILQ_INIT(&l->requested);
	pthread_mutex_lock(&r->lists);
	l->engine = least_busy(r);
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
	engine_io_close(&l->io); /* nobody watches it again */
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
	engine_io_close(&l->io);
	l->retry.at = 0;
}
