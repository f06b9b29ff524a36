/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <errno.h>

#include "sockets/record/real.h"

struct real real_table;

/* A call that nobody offers answers ENOSYS, like a kernel that does not know it. */
static long missing(void)
{
	errno = ENOSYS;
	return -1;
}

void *real_find(void **where, const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found)
		found = (void *)missing;
	__atomic_store_n(where, found, __ATOMIC_RELAXED);
	return found;
}
