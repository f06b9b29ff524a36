/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/space.h"
#include "base/sys.h"
#include "channel/board.h"

_Static_assert(sizeof(struct board_slot) == 128, "slots do not straddle pages");

/* Another user may have taken the name: /dev/shm is everybody's. Then the next one. */
#define NAMES 4

static struct own_fd board;

static int open_one(const char *path)
{
	struct stat st;
	int fd = own_new(
		sys_open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));

	if (fd < 0)
		return -1;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
	    (st.st_mode & 0077) == 0 && st.st_nlink == 1 &&
	    st.st_size <= BOARD_BUCKETS * BOARD_BUCKET * 128)
		return fd;
	own_close(fd);
	return -1;
}

static int open_board(void)
{
	char path[64];
	int fd = -1;

	for (int i = 0; i < NAMES && fd < 0; i++) {
		snprintf(path, sizeof(path), i ? "/dev/shm/flue.%u.%d" : "/dev/shm/flue.%u",
			 (unsigned)geteuid(), i);
		fd = open_one(path);
	}
	return fd;
}

int board_fd(void)
{
	struct stat st;
	int fd = own_kept(&board);

	/* Somebody removed it: others have a new one. */
	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_nlink == 0) {
		own_drop(&board);
		fd = -1;
	}
	return fd >= 0 ? fd : own_kept_or(&board, open_board);
}

static uint64_t mix(uint64_t h, const void *data, size_t n)
{
	const uint8_t *p = data;

	while (n--)
		h = (h ^ *p++) * 0x100000001b3ull;
	return h;
}

static uint64_t hash_end(const struct in6_addr *a, uint16_t port)
{
	return mix(mix(0xcbf29ce484222325ull, a, sizeof(*a)), &port, sizeof(port));
}

uint32_t board_bucket(const struct board_slot *s)
{
	/* Both ends must come to the same bucket. */
	uint64_t h = hash_end(&s->self, s->self_port) + hash_end(&s->peer, s->peer_port) + s->netns;

	h ^= h >> 29;
	return (uint32_t)(h % BOARD_BUCKETS) * BOARD_BUCKET;
}

static bool set_lock(uint32_t first, short type)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = 1 };

	return sys_fcntl(board_fd(), F_OFD_SETLK, (unsigned long)&l) == 0;
}

/* Locks of files do not keep threads of one process apart. */
static struct robust_lock threads;

void board_drop(void)
{
	own_drop(&board);
}

void board_forked(void)
{
	atomic_store(&threads.word, 0);
	board_drop();
}

bool board_lock(uint32_t first, struct board_slot bucket[BOARD_BUCKET])
{
	ssize_t n;
	int tries = 100;

	if (!robust_take(&threads))
		return false; /* in a signal handler: this very thread holds it */
	if (board_fd() < 0)
		goto fail;
	/* Never wait for long: a lane is worth less than a hang. */
	while (!set_lock(first, F_WRLCK)) {
		if (tries-- == 0)
			goto fail;
		sched_yield();
	}
	memset(bucket, 0, sizeof(struct board_slot) * BOARD_BUCKET);
	n = pread(board_fd(), bucket, sizeof(struct board_slot) * BOARD_BUCKET,
		  (off_t)first * (off_t)sizeof(struct board_slot));
	if (n >= 0)
		return true;
	set_lock(first, F_UNLCK);
fail:
	robust_give(&threads);
	return false;
}

void board_unlock(uint32_t first)
{
	set_lock(first, F_UNLCK);
	robust_give(&threads);
}

bool board_read(uint32_t n, struct board_slot *slot)
{
	int fd = board_fd();

	return fd >= 0 && pread(fd, slot, sizeof(*slot), (off_t)n * (off_t)sizeof(*slot)) ==
				  (ssize_t)sizeof(*slot);
}

bool board_write(uint32_t n, const struct board_slot *slot)
{
	int fd = board_fd();

	return fd >= 0 && space_may_grow((n + 1) * sizeof(*slot)) &&
	       pwrite(fd, slot, sizeof(*slot), (off_t)n * (off_t)sizeof(*slot)) ==
		       (ssize_t)sizeof(*slot);
}

bool board_is_stale(const struct board_slot *s)
{
	/* The board is one user's: a process that we may not signal is somebody else's by now. */
	return s->state == BOARD_EMPTY || s->state > BOARD_CLAIMED || (int32_t)s->pid <= 0 ||
	       kill((pid_t)s->pid, 0) != 0;
}
