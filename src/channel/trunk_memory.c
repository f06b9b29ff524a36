/* SPDX-License-Identifier: MIT */
/*
 * The memory of a trunk: making, checking and mapping it, and where things are. Places are computed from the private copy of
 * the shape and from numbers that were checked; no offset is ever taken out of the memory.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/own.h"
#include "base/space.h"
#include "base/sys.h"
#include "channel/trunk_priv.h"

/* Nobody can cut the memory away below us, which would be a SIGBUS. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

_Static_assert(sizeof(struct trunk) <= TRUNK_HEAD, "a page of our own");

static size_t whole_pages(size_t n)
{
	return (n + TRUNK_HEAD - 1) / TRUNK_HEAD * TRUNK_HEAD;
}

static bool is_sound(const struct trunk_shape *s)
{
	return s->blocks >= 2 && s->blocks <= TRUNK_BLOCKS_MAX &&
	       (s->blocks & (s->blocks - 1)) == 0 && s->block_size >= 64 &&
	       s->block_size <= TRUNK_BLOCK_MAX && s->block_size % 64 == 0 && s->circuits >= 2 &&
	       s->circuits <= TRUNK_CIRCUITS_MAX && s->circuits % 2 == 0 && s->guarantee >= 1 &&
	       (uint64_t)s->circuits * s->guarantee <= s->blocks;
}

static size_t entries_size(const struct trunk_shape *s)
{
	return whole_pages(2 * s->blocks * sizeof(uint64_t));
}

static size_t back_size(const struct trunk_shape *s)
{
	return whole_pages(s->blocks * sizeof(uint32_t));
}

static size_t blocks_size(const struct trunk_shape *s)
{
	return whole_pages((size_t)s->blocks * s->block_size);
}

size_t trunk_memory_size(const struct trunk_shape *s)
{
	return TRUNK_HEAD + 2 * (entries_size(s) + back_size(s) + blocks_size(s));
}

int trunk_memory(const struct trunk_shape *s)
{
	struct trunk_shared head = { .magic = TRUNK_MAGIC,
				     .blocks = s->blocks,
				     .block_size = s->block_size,
				     .circuits = s->circuits,
				     .guarantee = s->guarantee };
	size_t size;
	int fd, rc;

	if (!is_sound(s))
		return -EINVAL;
	size = trunk_memory_size(s);
	if (!space_may_grow(size))
		return -EFBIG;
	fd = own_new(memfd_create("flue-trunk", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) != 0 ||
	    pwrite(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    sys_fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
		rc = -errno;
		own_close(fd);
		return rc;
	}
	return fd;
}

/* The other side may have made it, so the head is read once, and checked as a copy. */
static int check(int fd, struct trunk_shape *s)
{
	struct trunk_shared head;
	struct stat st;
	int seals = sys_fcntl(fd, F_GET_SEALS, 0);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st) != 0 ||
	    pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head))
		return -EINVAL;
	s->blocks = head.blocks;
	s->block_size = head.block_size;
	s->circuits = head.circuits;
	s->guarantee = head.guarantee;
	if (head.magic != TRUNK_MAGIC || !is_sound(s) || (size_t)st.st_size != trunk_memory_size(s))
		return -EINVAL;
	return 0;
}

/* What this side has of its own: the page of struct trunk, one that forks wipe, and the tables. */
static size_t own_size(const struct trunk_shape *s)
{
	return whole_pages(2 * TRUNK_HEAD + s->circuits * sizeof(struct circuit) +
			   s->blocks * (sizeof(struct trunk_rx) + 2 * sizeof(uint32_t)));
}

void trunk_memory_places(struct trunk *t)
{
	const struct trunk_shape *s = &t->shape;
	struct trunk_shared *head = (struct trunk_shared *)t->map;
	uint8_t *at = t->map + TRUNK_HEAD;
	uint8_t *own = (uint8_t *)t + 2 * TRUNK_HEAD;
	unsigned me = t->side, other = !t->side;

	t->own = &head->side[me];
	t->peer = &head->side[other];
	t->out_ring = (_Atomic uint64_t *)(at + me * entries_size(s));
	t->in_ring = (const _Atomic uint64_t *)(at + other * entries_size(s));
	at += 2 * entries_size(s);
	/* Each side writes the ring of what it gives back. */
	t->give_ring = (_Atomic uint32_t *)(at + me * back_size(s));
	t->back = (const _Atomic uint32_t *)(at + other * back_size(s));
	at += 2 * back_size(s);
	t->out_blocks = at + me * blocks_size(s);
	t->in_blocks = at + other * blocks_size(s);

	t->circuit = (struct circuit *)own;
	own += s->circuits * sizeof(struct circuit);
	t->rx = (struct trunk_rx *)own;
	own += s->blocks * sizeof(struct trunk_rx);
	t->owner = (uint32_t *)own;
	t->free = t->owner + s->blocks;
}

int trunk_memory_map(int fd, struct trunk **out)
{
	struct trunk_shape shape;
	int rc = check(fd, &shape);
	struct trunk *t;

	if (rc)
		return rc;
	t = space_map(-1, own_size(&shape));
	if (!t)
		return -ENOMEM;
	t->shape = shape;
	t->own_size = own_size(&shape);
	t->map_size = trunk_memory_size(&shape);
	t->alive = (_Atomic uint32_t *)((uint8_t *)t + TRUNK_HEAD);
	t->map = space_map(fd, t->map_size);
	if (!t->map)
		goto unmap;
	/* A child of a fork must neither use it nor keep it. */
	if (madvise(t->map, t->map_size, MADV_DONTFORK) != 0 ||
	    madvise((void *)t->alive, TRUNK_HEAD, MADV_WIPEONFORK) != 0)
		goto unmap_shared;
	*out = t;
	return 0;
unmap_shared:
	space_unmap(t->map, t->map_size);
unmap:
	space_unmap(t, t->own_size);
	return -ENOMEM;
}

void trunk_memory_unmap(struct trunk *t, bool shared)
{
	/* In a child something else may stand there. */
	if (shared)
		space_unmap(t->map, t->map_size);
	else
		space_forget(t->map_size);
	space_unmap(t, t->own_size);
}
