/* SPDX-License-Identifier: MIT */
/* For tests: which descriptors this process has. */
#ifndef FLUE_BASE_OWN_TEST_H
#define FLUE_BASE_OWN_TEST_H

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static inline int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static inline bool is_open(int fd)
{
	return fcntl(fd, F_GETFD) >= 0;
}

#endif
