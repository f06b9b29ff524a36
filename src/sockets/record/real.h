/* SPDX-License-Identifier: MIT */
/*
 * The C library's own functions, behind our hooks. Found when first needed, by dlsym(RTLD_NEXT): another
 * preloaded library may stand between us and libc.
 */
#ifndef FLUE_SOCKETS_REAL_H
#define FLUE_SOCKETS_REAL_H

#include <aio.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

struct real {
#define REAL(name) __typeof__(&name) name;
#include "sockets/record/real.def"
#undef REAL
};

extern struct real real_table;

void *real_find(void **where, const char *name);

static inline void *real_get(void **where, const char *name)
{
	void *p = __atomic_load_n(where, __ATOMIC_RELAXED); /* another thread may be finding it */

	return p ? p : real_find(where, name);
}

/* real(send)(fd, ...) */
#define real(call) ((__typeof__(&call))real_get((void **)&real_table.call, #call))

#endif
