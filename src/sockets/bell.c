/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "sockets/bell.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"

const char bell_mark;

static struct {
	uint64_t mailbox;
	pid_t pid;
	uint32_t users;
} peers[BELL_PEERS];
static struct rec_lock lock;

int bell_own(void)
{
	int fd = process_kept(OUR_BELL);

	if (fd >= 0)
		return fd;
	if (!rec_lock_take(&lock))
		return -1;
	fd = process_kept(OUR_BELL);
	if (fd < 0) {
		fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
		fd = fd >= 0 ? process_keep(OUR_BELL, fd) : -1;
	}
	rec_lock_give(&lock);
	return fd;
}

/* Anything else might block us, or do something when it is written to. */
static bool is_bell(int fd)
{
	char path[32], what[32] = "";
	int flags = real(fcntl)(fd, F_GETFL);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return flags >= 0 && (flags & O_NONBLOCK) && readlink(path, what, sizeof(what) - 1) > 0 &&
	       strcmp(what, "anon_inode:[eventfd]") == 0;
}

int bell_take(uint64_t mailbox, pid_t pid, int fd)
{
	int found = -1;

	if (!is_bell(fd) || !rec_lock_take(&lock)) {
		real(close)(fd);
		return -1;
	}
	for (int i = 0; i < BELL_PEERS && found < 0; i++)
		if (peers[i].users > 0 && peers[i].mailbox == mailbox && peers[i].pid == pid)
			found = i;
	if (found >= 0) {
		real(close)(fd);
		peers[found].users++;
		goto out;
	}
	for (int i = 0; i < BELL_PEERS && found < 0; i++)
		if (peers[i].users == 0)
			found = i;
	fd = found >= 0 ? process_keep(OUR_PEERS + found, fd) : (real(close)(fd), -1);
	if (fd < 0) {
		found = -1;
	} else {
		peers[found].mailbox = mailbox;
		peers[found].pid = pid;
		peers[found].users = 1;
	}
out:
	rec_lock_give(&lock);
	return found;
}

void bell_give(int bell)
{
	if (bell < 0 || !rec_lock_take(&lock))
		return;
	if (--peers[bell].users == 0)
		process_drop(OUR_PEERS + bell);
	rec_lock_give(&lock);
}

/* Whoever holds it may have filled it, so that no ring is an edge any more: then empty it. */
static bool ring(int fd)
{
	uint64_t count = 1;
	int saved = errno;
	bool ok = fd >= 0 && real(write)(fd, &count, sizeof(count)) == (ssize_t)sizeof(count);

	if (fd >= 0 && !ok && errno == EAGAIN &&
	    real(read)(fd, &count, sizeof(count)) == (ssize_t)sizeof(count)) {
		count = 1;
		ok = real(write)(fd, &count, sizeof(count)) == (ssize_t)sizeof(count);
	}
	errno = saved;
	return ok;
}

bool bell_ring(int bell)
{
	int saved = errno;
	bool ok = bell >= 0 && ring(process_kept(OUR_PEERS + bell));

	errno = saved;
	return ok;
}

bool bell_ring_own(void)
{
	return ring(bell_own());
}

void bell_still(void)
{
	uint64_t count;
	int saved = errno;

	if (real(read)(bell_own(), &count, sizeof(count)) < 0)
		errno = saved;
}

/* Nothing may be half done in the child. */
static bool forking;

void bell_fork_prepare(void)
{
	forking = rec_lock_take(&lock);
}

void bell_fork_parent(void)
{
	if (forking)
		rec_lock_give(&lock);
}

void bell_forked(void)
{
	atomic_store(&lock.word, 0);
}
