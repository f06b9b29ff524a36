/* SPDX-License-Identifier: MIT */
#include "base/self.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/util.h"

/* One page that a child finds zeroed: the only thing that every way of forking shows. */
static _Atomic(struct life { _Atomic uint32_t pid; } *) life;

static __thread uint32_t tid THREAD_LOCAL_FAST;

uint32_t self_tid(void)
{
	if (!tid)
		tid = (uint32_t)gettid();
	return tid;
}

int32_t self_pid(void)
{
	struct life *l = atomic_load_explicit(&life, memory_order_acquire);

	return l ? (int32_t)atomic_load_explicit(&l->pid, memory_order_acquire) : 0;
}

bool self_has_begun(void)
{
	return atomic_load_explicit(&life, memory_order_acquire) != NULL;
}

/* Seen by other threads only when it says who we are. */
bool self_begin(void)
{
	struct life *l = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);

	if (l == MAP_FAILED || madvise(l, 4096, MADV_WIPEONFORK) != 0)
		return false;
	atomic_store(&l->pid, (uint32_t)getpid());
	atomic_store(&life, l);
	return true;
}

void self_forked(void)
{
	tid = 0;
}

void self_begins_anew(void)
{
	atomic_store_explicit(&life->pid, (uint32_t)getpid(), memory_order_release);
}
