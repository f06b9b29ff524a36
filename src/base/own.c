/* SPDX-License-Identifier: MIT */
#include "base/own.h"

#include <errno.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/sys.h"

/* Ours stand from here on: above what nearly every program uses, and low enough that the kernel's
 * table of descriptors stays small and select() can see them. */
#define FIRST 960
/* A program that has so few needs them itself. */
#define FEW 128

/* Programs that close ours go through our hooks. What closes them by system calls of its own is noticed after this. */
#define LATELY_NS (10 * NSEC_PER_MSEC)

static _Atomic(const struct own_watch *) watch;
static _Atomic(struct own_fd *) all; /* that were ever kept */
static struct robust_lock making;    /* one of them */

void own_set_watch(const struct own_watch *w)
{
	atomic_store(&watch, w);
}

int own_new(int fd)
{
	const struct own_watch *w = atomic_load(&watch);
	int saved = errno;

	if (fd >= 0 && w)
		w->made(fd);
	errno = saved;
	return fd;
}

void own_close(int fd)
{
	const struct own_watch *w = atomic_load(&watch);
	int saved = errno;

	if (w)
		w->close(fd);
	else
		sys_close(fd);
	errno = saved;
}

int own_copy(int fd)
{
	struct rlimit limit = { 0 };
	int copy = -1;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= FIRST + 64)
		return sys_fcntl(fd, F_DUPFD_CLOEXEC, FIRST);
	/* As high as can be: a program may use a number that it has closed, and must not meet ours. */
	errno = EMFILE;
	for (int base = (int)limit.rlim_cur - 1; copy < 0 && errno == EMFILE && base > 0; base--)
		copy = sys_fcntl(fd, F_DUPFD_CLOEXEC, (unsigned long)base);
	return copy;
}

int own_move(int fd)
{
	int copy = fd >= 0 ? own_copy(fd) : -1;

	if (fd >= 0)
		own_close(fd);
	return copy;
}

/* --- those that stay */

static void list(struct own_fd *o)
{
	struct own_fd *first = atomic_load(&all);

	if (atomic_exchange(&o->listed, true))
		return;
	do
		o->next = first;
	while (!atomic_compare_exchange_weak(&all, &first, o));
}

int own_keep(struct own_fd *o, int fd)
{
	struct rlimit limit;
	struct stat st;
	int high = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= FEW ? -1
										  : own_copy(fd);

	own_close(fd);
	if (high < 0)
		return -1;
	if (fstat(high, &st) != 0) {
		sys_close(high);
		return -1;
	}
	o->dev = st.st_dev;
	o->ino = st.st_ino;
	list(o);
	atomic_store_explicit(&o->fd, high + 1, memory_order_release);
	return high;
}

int own_kept(struct own_fd *o)
{
	struct stat st;
	int fd = atomic_load_explicit(&o->fd, memory_order_acquire);

	if (fd == 0)
		return -1;
	if (fstat(fd - 1, &st) != 0 || st.st_dev != o->dev || st.st_ino != o->ino) {
		/* The program has closed it, and perhaps opened something there. */
		atomic_compare_exchange_strong(&o->fd, &fd, 0);
		return -1;
	}
	return fd - 1;
}

int own_kept_lately(struct own_fd *o)
{
	uint64_t now = clock_coarse();
	int fd = atomic_load_explicit(&o->fd, memory_order_acquire);

	if (fd == 0)
		return -1;
	if (now - atomic_load_explicit(&o->looked, memory_order_relaxed) < LATELY_NS)
		return fd - 1;
	atomic_store_explicit(&o->looked, now, memory_order_relaxed);
	return own_kept(o);
}

int own_kept_or(struct own_fd *o, int (*make)(void))
{
	int fd = own_kept(o);

	if (fd >= 0 || !robust_take(&making))
		return fd;
	fd = own_kept(o); /* another thread may have been faster */
	if (fd < 0) {
		fd = make();
		fd = fd >= 0 ? own_keep(o, fd) : -1;
	}
	robust_give(&making);
	return fd;
}

void own_drop(struct own_fd *o)
{
	int fd = own_kept(o);

	atomic_store(&o->fd, 0);
	if (fd >= 0)
		sys_close(fd);
}

bool own_has(int fd)
{
	for (struct own_fd *o = atomic_load(&all); o; o = o->next)
		if (atomic_load(&o->fd) == fd + 1)
			return own_kept(o) >= 0;
	return false;
}

void own_make_way(int fd)
{
	for (struct own_fd *o = atomic_load(&all); o; o = o->next) {
		int other;

		if (atomic_load(&o->fd) != fd + 1 || own_kept(o) < 0)
			continue;
		other = sys_fcntl(fd, F_DUPFD_CLOEXEC, (unsigned long)fd + 1);
		atomic_store(&o->fd, other >= 0 ? other + 1 : 0);
	}
}

int own_lowest_from(int first)
{
	int found = -1;

	for (struct own_fd *o = atomic_load(&all); o; o = o->next) {
		int fd = own_kept(o);

		if (fd >= first && (found < 0 || fd < found))
			found = fd;
	}
	return found;
}

void own_forked(void)
{
	atomic_store(&making.word, 0);
}
