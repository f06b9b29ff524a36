/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/lock.h"
#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "channel/bell.h"

const char bell_mark;

static struct own_fd own;  /* what is heard ... */
static struct own_fd rope; /* ... and what rings it */

/* Those of other processes. */
static struct {
	uint64_t mailbox;
	pid_t pid;
	uint32_t users;
	struct own_fd rope;
} peers[BELL_PEERS];
static struct robust_lock lock;

/* A pipe has room for many more. */
#define STILL_EVERY 1024

static _Atomic uint32_t heard;

/* Both ends of a pipe, or none. */
static int make_bell(void)
{
	int ends[2];

	if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0)
		return -1;
	own_new(ends[0]);
	own_new(ends[1]);
	own_drop(&rope);
	if (own_keep(&rope, ends[1]) >= 0)
		return ends[0];
	own_close(ends[0]);
	return -1;
}

int bell_own(void)
{
	int fd = own_kept_lately(&own);

	return fd >= 0 ? fd : own_kept_or(&own, make_bell);
}

int bell_rope(void)
{
	return bell_own() >= 0 ? own_kept_lately(&rope) : -1;
}

/* What a peer sends as its bell may be anything, and it can change flags of what it shares with us: so it must be a
 * pipe, and we open it ourselves. For reading too: a peer that was killed in its sleep must not get us SIGPIPE, which only who
 * writes to a pipe without a reader gets. -1: it cannot be had. */
static int open_rope(int fd)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (fstat(fd, &st) != 0 || !S_ISFIFO(st.st_mode))
		return -1;
	return own_new(sys_open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0));
}

int bell_take(uint64_t mailbox, pid_t pid, int fd)
{
	int found = -1, ours = open_rope(fd);

	own_close(fd);
	fd = ours;
	if (fd < 0)
		return -1;
	if (!robust_take(&lock)) {
		own_close(fd);
		return -1;
	}
	for (int i = 0; i < BELL_PEERS && found < 0; i++)
		if (peers[i].users > 0 && peers[i].mailbox == mailbox && peers[i].pid == pid)
			found = i;
	if (found >= 0) {
		own_close(fd);
		peers[found].users++;
		goto out;
	}
	for (int i = 0; i < BELL_PEERS && found < 0; i++)
		if (peers[i].users == 0)
			found = i;
	fd = found >= 0 ? own_keep(&peers[found].rope, fd) : (own_close(fd), -1);
	if (fd < 0) {
		found = -1;
	} else {
		peers[found].mailbox = mailbox;
		peers[found].pid = pid;
		peers[found].users = 1;
	}
out:
	robust_give(&lock);
	return found;
}

void bell_give(int bell)
{
	if (bell < 0 || !robust_take(&lock))
		return;
	if (--peers[bell].users == 0)
		own_drop(&peers[bell].rope);
	robust_give(&lock);
}

/* False: it is full, or closed. */
static bool pull(int fd)
{
	int saved = errno;
	bool ok = fd >= 0 && sys_write(fd, "", 1) == 1;

	errno = saved;
	return ok;
}

bool bell_ring(int bell)
{
	int saved = errno;
	bool ok = bell >= 0 && pull(own_kept_lately(&peers[bell].rope));

	errno = saved;
	return ok;
}

bool bell_ring_own(void)
{
	if (pull(bell_rope()))
		return true;
	bell_still(); /* a peer has filled it */
	return pull(bell_rope());
}

void bell_heard(void)
{
	/* Each ring is an edge, whether it is empty or not; but one that is full cannot be rung. */
	if (atomic_fetch_add_explicit(&heard, 1, memory_order_relaxed) % STILL_EVERY != 0)
		return;
	bell_still();
	/* Other sets of this process may have been rung and not have looked yet: they would find it empty, and sleep on. */
	pull(bell_rope());
}

void bell_still(void)
{
	char octets[512];
	int saved = errno;
	int fd = own_kept(&own);

	while (fd >= 0 && sys_read(fd, octets, sizeof(octets)) == (ssize_t)sizeof(octets))
		;
	errno = saved;
}

/* Nothing may be half done in the child. */
static bool forking;

void bell_fork_prepare(void)
{
	forking = robust_take(&lock);
}

void bell_fork_parent(void)
{
	if (forking)
		robust_give(&lock);
}

void bell_drop(void)
{
	own_drop(&own);
	own_drop(&rope);
}

int bell_of(int bell)
{
	return own_kept(&peers[bell].rope);
}

/* Inherited lanes may still ring the bells of their peers. */
void bell_forked(void)
{
	atomic_store(&lock.word, 0);
	bell_drop();
}
