/* SPDX-License-Identifier: MIT */
#include "base/fd.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* Above what nearly every program uses and select(2) can see, but the kernel's table stays small. */
#define HIGH 1024

static int first_number(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 2 >= HIGH)
		return HIGH;
	return (int)(limit.rlim_cur / 2);
}

int fd_copy(int fd)
{
	return fcntl(fd, F_DUPFD_CLOEXEC, first_number());
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
