/* SPDX-License-Identifier: MIT */
#include "base/fd.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Above what nearly every program uses and select(2) can see, but the kernel's table stays small. */
#define HIGH 1024

#define WATCHED 65536

static atomic_uchar held[WATCHED / 8];

static bool is_watched(int fd)
{
	return fd >= 0 && fd < WATCHED;
}

void fd_hold(int fd)
{
	if (is_watched(fd))
		atomic_fetch_or(&held[fd / 8], (unsigned char)(1 << fd % 8));
}

void fd_release(int fd)
{
	if (is_watched(fd))
		atomic_fetch_and(&held[fd / 8], (unsigned char)~(1 << fd % 8));
}

static bool is_held(int fd)
{
	return is_watched(fd) && atomic_load(&held[fd / 8]) & 1 << fd % 8;
}

static int first_number(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 2 >= HIGH)
		return HIGH;
	return (int)(limit.rlim_cur / 2);
}

int fd_copy(int fd)
{
	int from = first_number(), copy;

	for (;;) {
		copy = fcntl(fd, F_DUPFD_CLOEXEC, from);
		if (copy < 0 || !is_held(copy))
			return copy;
		close(copy);
		from = copy + 1;
	}
}

int fd_keep(int fd)
{
	int high = fd < 0 ? -1 : fd_copy(fd);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

uint64_t fd_socket(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

void fd_close_socket(int fd, uint64_t id)
{
	if (fd >= 0 && fd_socket(fd) == id)
		close(fd);
}

void fd_close_anonymous(int fd)
{
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0)
		close(fd);
}
