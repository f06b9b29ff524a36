/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/single_threaded.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/own.h"
#include "base/piece.h"
#include "base/robust.h"
#include "base/space.h"
#include "base/sys.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/lane.h"

#define ARENAS 1024
#define HEAD   offsetof(struct arena_shared, ring)
/* A thread may still look at a lane that another has just closed: memory goes a little later. */
#define LINGER_NS (200 * NSEC_PER_MSEC)

_Static_assert(sizeof(struct lane_shared) == 2048, "two to a page");
_Static_assert(ARENA_FIRST << (ARENA_PIECES - 1) == ARENA_LANES, "the pieces are all of it");

/* What this process knows of an arena. */
struct arena {
	struct arena_shared *memory; /* NULL: entry is free */
	uint8_t *ring[ARENA_PIECES]; /* NULL: no lane of the piece was used yet */
	uint64_t id;
	uint64_t key;
	uint64_t idle_since;
	uint64_t used; /* one bit for each lane */
	pid_t peer;
	uint32_t lanes; /* in use here */
	int bell;       /* the peer's, see bell.h; -1: none */
	bool maker;
};

static struct arena arenas[ARENAS];
static _Atomic uint32_t n_arenas; /* entries ever used */
static uint32_t n_lanes;
static uint32_t most; /* lanes that this process may have */
/* Knows its owner: close() may be called in a signal handler, between any two of our instructions. */
static struct robust_lock lock;

void arena_set_most(uint32_t lanes)
{
	most = lanes;
}

static bool is_dead(pid_t pid)
{
	return kill(pid, 0) != 0 && errno == ESRCH;
}

static size_t rings_size(uint32_t piece)
{
	return piece_size(piece, ARENA_FIRST) * sizeof(((struct arena_shared *)NULL)->ring[0]);
}

static void unmap(struct arena *a)
{
	atomic_store(&a->memory->dropped, 1);
	bell_give(a->bell);
	for (uint32_t i = 0; i < ARENA_PIECES; i++)
		if (a->ring[i])
			space_unmap(a->ring[i], rings_size(i));
	space_unmap(a->memory, HEAD);
	*a = (struct arena) { .bell = -1 };
}

/* Arenas that nobody uses: away with those whose peer is gone. */
static void sweep(void)
{
	uint64_t now = clock_now();

	for (uint32_t i = 0; i < n_arenas; i++) {
		struct arena *a = &arenas[i];

		if (a->memory && a->lanes == 0 &&
		    (__libc_single_threaded || now - a->idle_since > LINGER_NS) &&
		    (is_dead(a->peer) || atomic_load(&a->memory->dropped)))
			unmap(a);
	}
}

static struct arena *free_entry(void)
{
	for (uint32_t i = 0; i < ARENAS; i++) {
		if (!arenas[i].memory) {
			if (i >= n_arenas)
				n_arenas = i + 1;
			return &arenas[i];
		}
	}
	return NULL;
}

/* The rings of a lane are there, mapped now if need be. In order: each piece is found behind the one before. */
static bool has_rings(struct arena *a, uint32_t lane)
{
	const uint8_t *end = (uint8_t *)a->memory + HEAD;

	for (uint32_t i = 0; i <= piece_of(lane, ARENA_FIRST); i++) {
		if (!a->ring[i])
			a->ring[i] = space_map_behind(end, rings_size(i));
		if (!a->ring[i])
			return false;
		end = a->ring[i] + rings_size(i);
	}
	return true;
}

static int free_lane(struct arena *a)
{
	if (atomic_load_explicit(&a->memory->dropped, memory_order_relaxed))
		return -1;
	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		struct lane_shared *l = &a->memory->lane[i];

		if (!(a->used >> i & 1) || (atomic_load(&l->done[0]) && atomic_load(&l->done[1])))
			return has_rings(a, i) ? (int)i : -1;
	}
	return -1;
}

static void clean(struct lane_shared *l)
{
	for (int i = 0; i < 2; i++) {
		atomic_store(&l->dir[i].word, 0);
		atomic_store(&l->dir[i].base, 0);
		atomic_store(&l->dir[i].tx_sleeps, 0);
		atomic_store(&l->dir[i].order, 0);
		atomic_store(&l->dir[i].limit, 0);
		atomic_store(&l->dir[i].rcvbuf, 0);
		atomic_store(&l->dir[i].head, 0);
		atomic_store(&l->dir[i].seen, 0);
		atomic_store(&l->done[i], 0);
		atomic_store(&l->private_size[i], 0);
	}
}

static struct arena *make(pid_t peer, uint64_t key, int *out)
{
	struct arena *a = free_entry();
	struct arena_shared *m;
	int fd;

	if (!a)
		return NULL;
	fd = own_new(memfd_create("flue-lanes", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return NULL;
	if (!space_may_grow(sizeof(*m)) || ftruncate(fd, sizeof(*m)) != 0 ||
	    sys_fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		goto fail;
	m = space_map(fd, HEAD);
	if (!m)
		goto fail;
	m->magic = ARENA_MAGIC;
	if (getrandom(&m->id, sizeof(m->id), 0) != sizeof(m->id))
		m->id = clock_now() << 20 ^ (uint64_t)getpid();
	*a = (struct arena) {
		.memory = m, .id = m->id, .key = key, .peer = peer, .bell = -1, .maker = true
	};
	if (!has_rings(a, 0)) {
		unmap(a);
		goto fail;
	}
	*out = fd;
	return a;
fail:
	own_close(fd);
	return NULL;
}

struct arena *arena_take(pid_t peer, uint64_t key, uint32_t *lane, int *fd)
{
	struct arena *a = NULL;
	int found = -1;

	*fd = -1;
	if (!robust_take(&lock))
		return NULL;
	for (uint32_t i = 0; n_lanes < most && i < n_arenas && found < 0; i++) {
		a = &arenas[i];
		if (a->memory && a->maker && a->peer == peer && a->key == key)
			found = free_lane(a);
	}
	if (found < 0 && n_lanes < most) {
		sweep();
		a = make(peer, key, fd);
		found = a ? 0 : -1;
	}
	if (found >= 0) {
		a->used |= 1ull << found;
		a->lanes++;
		n_lanes++;
		clean(&a->memory->lane[found]);
		*lane = (uint32_t)found;
	}
	robust_give(&lock);
	return found >= 0 ? a : NULL;
}

struct arena *arena_map(int fd, pid_t peer)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	int has = sys_fcntl(fd, F_GET_SEALS, 0);
	struct arena *a = NULL;
	struct arena_shared *m;
	struct stat st;

	if (!robust_take(&lock)) {
		own_close(fd);
		return NULL;
	}
	sweep();
	if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(*m) && has >= 0 &&
	    (has & seals) == seals && (a = free_entry()) != NULL) {
		m = space_map(fd, HEAD);
		if (!m) {
			a = NULL;
		} else if (m->magic != ARENA_MAGIC) {
			space_unmap(m, HEAD);
			a = NULL;
		} else {
			*a = (struct arena) { .memory = m, .id = m->id, .peer = peer, .bell = -1 };
			a->idle_since = clock_now();
		}
	}
	robust_give(&lock);
	own_close(fd);
	return a;
}

struct arena *arena_by_id(uint64_t id)
{
	struct arena *found = NULL;

	if (!robust_take(&lock))
		return NULL;
	for (uint32_t i = 0; i < n_arenas && !found; i++)
		/* Both ends may be in this process: the one that attaches has a mapping of its own. */
		if (arenas[i].memory && !arenas[i].maker && arenas[i].id == id)
			found = &arenas[i];
	robust_give(&lock);
	return found;
}

struct arena *arena_made_for(uint64_t id, pid_t peer)
{
	struct arena *found = NULL;

	if (!robust_take(&lock))
		return NULL;
	for (uint32_t i = 0; i < n_arenas && !found; i++)
		if (arenas[i].memory && arenas[i].maker && arenas[i].id == id &&
		    arenas[i].peer == peer)
			found = &arenas[i];
	robust_give(&lock);
	return found;
}

int arena_bell(const struct arena *a)
{
	return a ? a->bell : -1; /* another thread may close the socket just now */
}

void arena_set_bell(struct arena *a, uint64_t mailbox, int fd)
{
	int bell = bell_take(mailbox, a->peer, fd);

	if (bell < 0 || !robust_take(&lock))
		return;
	if (a->memory && a->bell < 0) {
		a->bell = bell;
		atomic_store(&a->memory->holds[a->maker ? 0 : 1], 1);
		bell = -1;
	}
	robust_give(&lock);
	bell_give(bell); /* sent twice, or too late */
}

struct arena_shared *arena_memory(struct arena *a)
{
	return a->memory;
}

uint8_t *arena_ring(const struct arena *a, uint32_t lane, uint32_t dir)
{
	uint32_t piece = piece_of(lane, ARENA_FIRST);
	size_t at = lane - piece_start(piece, ARENA_FIRST);

	return a->ring[piece] + (2 * at + dir) * LANE_RING;
}

pid_t arena_peer(const struct arena *a)
{
	return a->peer;
}

uint64_t arena_id(const struct arena *a)
{
	return a->id;
}

/* With the lock: an arena without lanes of ours may go at any moment. */
static bool is_for(const struct arena *a, uint32_t lane, const uint64_t cookie[2])
{
	return lane < ARENA_LANES && a->memory &&
	       atomic_load(&a->memory->lane[lane].cookie[0]) == cookie[0] &&
	       atomic_load(&a->memory->lane[lane].cookie[1]) == cookie[1];
}

void arena_decline(struct arena *a, uint32_t lane, const uint64_t cookie[2])
{
	if (!robust_take(&lock))
		return;
	if (is_for(a, lane, cookie))
		atomic_store(&a->memory->lane[lane].done[1], 1);
	robust_give(&lock);
}

bool arena_attach(struct arena *a, uint32_t lane, const uint64_t cookie[2])
{
	bool ok;

	if (!robust_take(&lock))
		return false;
	/* A peer that names a lane twice gets the second one refused. */
	ok = is_for(a, lane, cookie) && !a->maker && !(a->used >> lane & 1) && n_lanes < most &&
	     has_rings(a, lane);
	if (ok) {
		a->used |= 1ull << lane;
		a->lanes++;
		n_lanes++;
	}
	robust_give(&lock);
	return ok;
}

bool arena_has(const struct arena *a, uint32_t lane, uint32_t side, uint64_t cookie)
{
	bool has;

	if (!robust_take(&lock))
		return true; /* a signal handler: nothing has changed */
	has = a->memory && atomic_load(&a->memory->lane[lane].cookie[side]) == cookie;
	robust_give(&lock);
	return has;
}

void arena_give(struct arena *a, uint32_t lane, uint32_t side)
{
	if (!robust_take(&lock)) {
		/* The peer may go on; here the lane is lost to the count. */
		atomic_store(&a->memory->lane[lane].done[side], 1);
		return;
	}
	if (!a->maker)
		a->used &= ~(1ull << lane);
	/* The maker's bit stays until the other end is done as well. */
	atomic_store(&a->memory->lane[lane].done[side], 1);
	n_lanes--;
	if (--a->lanes == 0) {
		a->idle_since = clock_now();
		sweep();
	}
	robust_give(&lock);
}

void arena_undo(struct arena *a, uint32_t lane)
{
	if (!robust_take(&lock))
		return;
	/* Nobody will ever attach to what is in there. */
	atomic_store(&a->memory->dropped, 1);
	atomic_store(&a->memory->lane[lane].done[0], 1);
	n_lanes--;
	if (--a->lanes == 0)
		unmap(a);
	robust_give(&lock);
}

/* The mappings stay for inherited sockets; the parent gives the lanes out. */
/* Nothing may be half done in the child. */
static bool forking;

void arena_fork_prepare(void)
{
	forking = robust_take(&lock);
}

void arena_fork_parent(void)
{
	if (forking)
		robust_give(&lock);
}

void arena_forked(void)
{
	atomic_store(&lock.word, 0);
	for (uint32_t i = 0; i < n_arenas; i++)
		if (arenas[i].memory)
			arenas[i].key = UINT64_MAX;
}

void arena_sweep(void)
{
	if (n_arenas == 0 || !robust_take(&lock))
		return;
	sweep();
	robust_give(&lock);
}
