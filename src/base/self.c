/* SPDX-License-Identifier: MIT */
#include "base/self.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic(struct self_life *) self_life;

__thread uint32_t self_known_tid THREAD_LOCAL_FAST;

uint32_t self_ask_tid(void)
{
	self_known_tid = (uint32_t)gettid();
	return self_known_tid;
}

/* Seen by other threads only when it says who we are. */
bool self_begin(void)
{
	struct self_life *l = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				   -1, 0);

	if (l == MAP_FAILED || madvise(l, 4096, MADV_WIPEONFORK) != 0)
		return false;
	atomic_store(&l->pid, (uint32_t)getpid());
	atomic_store(&self_life, l);
	return true;
}

void self_forked(void)
{
	self_known_tid = 0;
}

void self_begins_anew(void)
{
	atomic_store_explicit(&self_life->pid, (uint32_t)getpid(), memory_order_release);
}
