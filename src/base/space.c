/* SPDX-License-Identifier: MIT */
#include "base/space.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/sys.h"
#include "base/util.h"

/* Of a limit for all of the program's memory we take a sixteenth, and never more than this. */
#define SHARE 16
#define MOST  (16u << 20)
#define PAGE  4096u

static _Atomic size_t mapped;

bool space_may_grow(size_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= size);
}

static bool has_space(size_t all)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return true;
	return all <= min_u64(limit.rlim_cur / SHARE, MOST);
}

static void *map(int fd, size_t size, int rights, int flags)
{
	void *p = MAP_FAILED;
	int saved = errno;

	if (has_space(atomic_fetch_add(&mapped, size) + size))
		p = mmap(NULL, size, rights, flags | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED)
		atomic_fetch_sub(&mapped, size);
	errno = saved;
	return p == MAP_FAILED ? NULL : p;
}

void *space_map(int fd, size_t size)
{
	return map(fd, size, PROT_READ | PROT_WRITE,
		   fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
}

void *space_map_readonly(int fd, size_t size)
{
	return map(fd, size, PROT_READ, MAP_SHARED);
}

/* The last page before `end` is mapped a second time, and with it what comes behind; then the page goes. */
void *space_map_behind(const void *end, size_t size)
{
	char *p = MAP_FAILED;
	int saved = errno;

	if (has_space(atomic_fetch_add(&mapped, size) + size + PAGE))
		p = (char *)sys_call(SYS_mremap, (char *)end - PAGE, 0, PAGE + size, MREMAP_MAYMOVE,
				     NULL);
	if (p == MAP_FAILED)
		atomic_fetch_sub(&mapped, size);
	else
		sys_call(SYS_munmap, p, PAGE);
	errno = saved;
	return p == MAP_FAILED ? NULL : p + PAGE;
}

void space_unmap(void *p, size_t size)
{
	sys_call(SYS_munmap, p, size);
	atomic_fetch_sub(&mapped, size);
}

void space_forget(size_t size)
{
	atomic_fetch_sub(&mapped, size);
}
