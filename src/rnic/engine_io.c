/* SPDX-License-Identifier: MIT */
/* The sockets of an engine: its table, its epoll set, and what happens when a program closes them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd.h"
#include "rnic/engine.h"
#include "rnic/engine_priv.h"

static int take_slot(struct engine *e, struct engine_io *io)
{
	uint32_t i = e->slot_hint;

	/* A quarter stays free, so the search below is short. */
	if (e->n_ios >= e->n_slots / 4 * 3) {
		uint32_t n = e->n_slots ? e->n_slots * 2 : 16;
		struct engine_slot *s = realloc(e->ios, n * sizeof(*s));

		if (!s)
			return -ENOMEM;
		memset(s + e->n_slots, 0, (n - e->n_slots) * sizeof(*s));
		e->ios = s;
		e->n_slots = n;
	}
	while (e->ios[i].io)
		i = (i + 1) % e->n_slots;
	e->slot_hint = (i + 1) % e->n_slots;
	e->ios[i].io = io;
	io->slot = i + 1;
	e->n_ios++;
	return 0;
}

static void drop_slot(struct engine *e, struct engine_io *io)
{
	struct engine_slot *s = &e->ios[io->slot - 1];

	s->io = NULL;
	s->generation++;
	io->slot = 0;
	e->n_ios--;
}

struct engine_io *engine_io_of(struct engine *e, uint64_t name)
{
	uint32_t slot = (uint32_t)name, generation = (uint32_t)(name >> 32);

	if (name == KICK_NAME)
		return NULL;
	if (slot >= e->n_slots || e->ios[slot].generation != generation)
		return NULL;
	return e->ios[slot].io;
}

void engine_io_take(struct engine_io *io, int fd)
{
	io->fd = fd;
	io->socket = fd_socket(fd);
	fd_hold(fd);
}

void engine_io_move(struct engine *e, struct engine_io *from, struct engine_io *to)
{
	to->fd = from->fd;
	to->socket = from->socket;
	to->events = from->events;
	to->slot = from->slot;
	if (to->slot)
		e->ios[to->slot - 1].io = to;
	if (e->hot == from)
		e->hot = NULL;
	if (atomic_load(&e->parked) == from)
		atomic_store(&e->parked, to);
	from->fd = -1;
	from->events = from->slot = 0;
}

bool engine_io_is_ours(const struct engine_io *io)
{
	return io->fd >= 0 && fd_socket(io->fd) == io->socket;
}

void engine_io_close(struct engine_io *io)
{
	fd_close_socket(io->fd, io->socket);
	fd_release(io->fd);
	io->fd = -1;
}

static int tell_set(struct engine *e, struct pollset *set, const struct engine_io *io, int op,
		    uint32_t events)
{
	uint64_t generation = e->ios[io->slot - 1].generation;

	return pollset_ctl(set, op, io->fd, events, (io->slot - 1) | generation << 32);
}

static int tell_epoll(struct engine *e, const struct engine_io *io, int op, uint32_t events)
{
	int rc = tell_set(e, &e->set, io, op, events);

	/* These are the program's doing: it closed the set, or the socket, or both. */
	if (rc != -EBADF && rc != -EINVAL && rc != -ENOENT)
		return rc;
	if (pollset_ring(&e->set) == 0 || engine_mend(e))
		return rc;
	rc = tell_set(e, &e->set, io, op, events);
	return rc == -EEXIST ? 0 : rc;
}

int engine_watch(struct engine *e, struct engine_io *io, uint32_t events)
{
	int op = io->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
	bool parked = atomic_load(&e->parked) == io;
	bool fresh = !io->slot;
	int rc;

	if (io->events == events && !parked)
		return 0;
	if (!events) {
		engine_forget(e, io);
		return 0;
	}
	if (parked) {
		/* In the set this could not fail. Whoever drives tries again, and asks it by hand. */
		io->events = events;
		engine_unpark(e);
		return 0;
	}
	rc = engine_start(e);
	if (rc == 0 && fresh)
		rc = take_slot(e, io);
	if (rc)
		return rc;
	rc = tell_epoll(e, io, op, events);
	if (rc == 0)
		io->events = events;
	else if (fresh)
		drop_slot(e, io);
	return rc;
}

void engine_park(struct engine *e, struct engine_io *io)
{
	if (pollset_ctl(&e->set, EPOLL_CTL_DEL, io->fd, 0, 0) == 0)
		atomic_store(&e->parked, io);
}

int engine_unpark(struct engine *e)
{
	struct engine_io *io = atomic_load(&e->parked);
	int rc = io ? tell_epoll(e, io, EPOLL_CTL_ADD, io->events) : 0;

	e->hot_hits = 0;
	if (rc == 0)
		atomic_store(&e->parked, NULL);
	return rc;
}

void engine_forget(struct engine *e, struct engine_io *io)
{
	if (atomic_load(&e->parked) == io)
		atomic_store(&e->parked, NULL);
	else if (io->events && pollset_is_open(&e->set))
		pollset_ctl(&e->set, EPOLL_CTL_DEL, io->fd, 0, 0);
	io->events = 0;
	if (io->slot)
		drop_slot(e, io);
	if (e->hot == io)
		e->hot = NULL;
}

/* ---- a program that closes our descriptors ---- */

/* A socket in the place of one that is gone: whoever looks at it finds that it is not connected. */
static int put_dead_socket(struct engine_io *io)
{
	int fd = fd_keep(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	if (fd < 0)
		return -errno;
	fd_release(io->fd);
	engine_io_take(io, fd);
	return 0;
}

static int admit_all(struct engine *e, struct pollset *set)
{
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < e->n_slots; i++) {
		struct engine_io *io = e->ios[i].io;

		if (!io || !io->events)
			continue;
		if (!engine_io_is_ours(io))
			rc = put_dead_socket(io);
		if (rc == 0)
			rc = tell_set(e, set, io, EPOLL_CTL_ADD, io->events);
	}
	return rc;
}

int engine_mend(struct engine *e)
{
	struct pollset fresh;
	int rc;

	/* Cleared first: who finds it lost from here on says so again. */
	atomic_store(&e->lost, false);
	if (pollset_ring(&e->set) == 0)
		return 0;
	pollset_init(&fresh, KICK_NAME);
	rc = pollset_open(&fresh);
	if (rc == 0)
		rc = admit_all(e, &fresh);
	if (rc) {
		pollset_close(&fresh);
		atomic_store(&e->lost, true);
		return rc;
	}
	/* The old numbers are the program's by now, or nobody's. */
	pollset_replace(&e->set, &fresh);
	atomic_store(&e->parked, NULL);
	return 0;
}

void engine_renew(struct engine *e)
{
	for (uint32_t i = 0; i < e->n_slots; i++) {
		struct engine_io *io = e->ios[i].io;

		if (io && io->events && io != atomic_load(&e->parked))
			tell_set(e, &e->set, io, EPOLL_CTL_MOD, io->events);
	}
	pollset_ring(&e->set);
}
