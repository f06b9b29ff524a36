/* SPDX-License-Identifier: MIT */
/*
 * The memory of the local transport: making, checking and mapping it, and where things are in it.
 * Places are computed from the private copy of the geometry and from numbers that were checked; no
 * offset is ever taken out of the region.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sockets/ot/oti_local_priv.h"

/* Nobody can cut the memory away below us, which would be a SIGBUS. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#define LINE 64

static size_t round_up(size_t n, size_t to)
{
	return (n + to - 1) / to * to;
}

static bool is_sound(const struct oti_local_geometry *g)
{
	return g->slots >= 2 && g->slots <= OTI_LOCAL_SLOTS_MAX && g->slots % 2 == 0 &&
	       g->bufs >= 1 && g->bufs <= OTI_LOCAL_BUFS_MAX && (g->bufs & (g->bufs - 1)) == 0 &&
	       g->buf_size >= LINE && g->buf_size <= OTI_LOCAL_BUF_SIZE_MAX &&
	       g->buf_size % LINE == 0;
}

/* One side's half of a slot with its rings. */
static size_t half_len(const struct oti_local_geometry *g)
{
	size_t rings = g->bufs * (sizeof(struct local_entry) + sizeof(uint32_t));

	return round_up(sizeof(struct local_half) + rings, LINE);
}

static size_t buffers_at(const struct oti_local_geometry *g)
{
	return round_up(LOCAL_HEADER_LEN + 2 * g->slots * half_len(g), LOCAL_HEADER_LEN);
}

static size_t direction_len(const struct oti_local_geometry *g)
{
	return (size_t)g->bufs * g->buf_size;
}

static size_t region_len(const struct oti_local_geometry *g)
{
	return buffers_at(g) + 2 * g->slots * direction_len(g);
}

int oti_local_region(const struct oti_local_geometry *g)
{
	struct local_header header = { .magic = LOCAL_MAGIC };
	int fd, rc;

	if (!is_sound(g))
		return -EINVAL;
	fd = memfd_create("flue-oti", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	header.slots = g->slots;
	header.bufs = g->bufs;
	header.buf_size = g->buf_size;
	if (ftruncate(fd, (off_t)region_len(g)) ||
	    pwrite(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header) ||
	    fcntl(fd, F_ADD_SEALS, SEALS)) {
		rc = -errno;
		close(fd);
		return rc;
	}
	return fd;
}

/* The other side may have made the region, so its header is checked once, on a copy. */
static int check(int fd, struct oti_local_geometry *g)
{
	struct local_header header;
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &st))
		return -EINVAL;
	if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return -EINVAL;
	g->slots = header.slots;
	g->bufs = header.bufs;
	g->buf_size = header.buf_size;
	if (header.magic != LOCAL_MAGIC || !is_sound(g) || (size_t)st.st_size != region_len(g))
		return -EINVAL;
	return 0;
}

int local_region_map(struct local *l, int fd)
{
	int rc = check(fd, &l->geo);

	if (rc)
		return rc;
	l->map_len = region_len(&l->geo);
	l->map = mmap(NULL, l->map_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (l->map == MAP_FAILED)
		return -errno;
	l->header = (struct local_header *)l->map;
	return 0;
}

void local_region_unmap(struct local *l)
{
	munmap(l->map, l->map_len);
}

struct local_half *local_region_half(const struct local *l, uint32_t slot, unsigned side)
{
	return (struct local_half *)(l->map + LOCAL_HEADER_LEN +
				     (2 * (size_t)slot + side) * half_len(&l->geo));
}

struct local_entry *local_region_ring(const struct local *l, struct local_half *h, uint32_t n)
{
	return (struct local_entry *)(h + 1) + (n & (l->geo.bufs - 1));
}

_Atomic uint32_t *local_region_back(const struct local *l, struct local_half *h, uint32_t n)
{
	struct local_entry *end = (struct local_entry *)(h + 1) + l->geo.bufs;

	return (_Atomic uint32_t *)end + (n & (l->geo.bufs - 1));
}

uint8_t *local_region_buffers(const struct local *l, uint32_t slot, unsigned side)
{
	return l->map + buffers_at(&l->geo) + (2 * (size_t)slot + side) * direction_len(&l->geo);
}

/*
 * News first, then the sleeper's flag; the sleeper does it the other way round (local_wait()), so
 * one of the two sees the other. The kernel reads the futex word, so nobody sleeps past a ring.
 */
void local_region_ring_bell(struct local *l, uint32_t slot)
{
	struct local_bell *bell = &l->header->bells[!l->side];

	atomic_fetch_or(&bell->news[slot / 64], 1ull << slot % 64);
	if (atomic_load(&bell->asleep)) {
		atomic_fetch_add(&bell->rung, 1);
		syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

void local_region_note(struct local *l, uint32_t slot)
{
	atomic_fetch_or(&l->header->bells[l->side].news[slot / 64], 1ull << slot % 64);
}
