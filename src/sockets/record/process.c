/* SPDX-License-Identifier: MIT */
#include "sockets/record/process.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/self.h"
#include "base/space.h"
#include "base/sys.h"
#include "sockets/record/above.h"
#include "sockets/record/family.h"
#include "sockets/record/settings.h"
#include "sockets/record/tell.h"

_Atomic(struct home *) own_home;

static struct own_fd home_fd;

/*
 * Something to be done once, by whichever thread comes first; the others wait for it. A handler that comes within the
 * very thread does not, nor does a child wait for a thread of its parent's.
 */
struct once {
	_Atomic uint32_t state; /* 0: to be done; ONCE_DONE; else who is at it */
	_Atomic int32_t pid;
};

#define ONCE_DONE   UINT32_MAX
#define ONCE_NS     (10 * 1000 * 1000)
#define ONCE_SLICES 500

/* True: do it, then once_done(). False: it is done, or not to be had within this call. */
static bool once_begin(struct once *o)
{
	const struct timespec slice = { .tv_nsec = ONCE_NS };
	uint32_t me = self_tid();
	int saved = errno;

	for (int slices = 0;; slices++) {
		uint32_t seen = atomic_load_explicit(&o->state, memory_order_acquire);
		int32_t pid = atomic_load(&o->pid);

		if (seen == ONCE_DONE || seen == me)
			break;
		/* Of a thread in the parent nothing comes; 0: it has not said yet which process it is of. */
		if ((seen == 0 || (pid != 0 && pid != getpid()) || slices > ONCE_SLICES) &&
		    atomic_compare_exchange_strong(&o->state, &seen, me)) {
			atomic_store(&o->pid, getpid());
			errno = saved;
			return true;
		}
		if (seen != 0)
			sys_call(SYS_futex, &o->state, FUTEX_WAIT_PRIVATE, seen, &slice, NULL, 0);
	}
	errno = saved;
	return false;
}

/* `state`: ONCE_DONE, or 0 to have it done again some time. */
static void once_end(struct once *o, uint32_t state)
{
	int saved = errno;

	atomic_store(&o->pid, 0);
	atomic_store_explicit(&o->state, state, memory_order_release);
	sys_call(SYS_futex, &o->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
	errno = saved;
}

static struct once set_up;

void process_init(void)
{
	if (atomic_load_explicit(&set_up.state, memory_order_acquire) == ONCE_DONE ||
	    !once_begin(&set_up))
		return;
	if (!record_above.start())
		settings.off = true;
	once_end(&set_up, ONCE_DONE);
}

void process_forked(void)
{
	atomic_store(&own_home, NULL);
	self_begins_anew();
}

void process_fork_child(void)
{
	if (self_has_begun() && self_pid() == 0)
		record_above.become_child(true);
}

bool process_is_self(void)
{
	int32_t pid;

	if (settings.sealed)
		return false;
	if (!self_has_begun())
		return !settings.off;
	pid = self_pid();
	if (pid == 0) {
		record_above.become_child(false);
		return true;
	}
	return pid == (int32_t)sys_call(SYS_getpid);
}

static size_t home_size(uint32_t records)
{
	return sizeof(struct home) + (size_t)records * sizeof(struct rec);
}

static struct home *make_home(void)
{
	int fd = own_new(memfd_create(HOME_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	uint32_t records = HOME_RECORDS;
	struct home *h;

	if (fd < 0)
		return NULL;
	while (records > HOME_FIRST && !space_may_grow(home_size(records)))
		records /= 2;
	if (!space_may_grow(home_size(records)) || ftruncate(fd, (off_t)home_size(records)) != 0 ||
	    sys_fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		goto fail;
	h = space_map(fd, home_size(HOME_FIRST));
	if (!h)
		goto fail;
	h->version = HOME_VERSION;
	h->record_size = sizeof(struct rec);
	h->pid = getpid();
	h->records = records;
	memcpy(h->program, settings.name, sizeof(h->program));
	memccpy(h->rules, settings.policy.file, 0, sizeof(h->rules) - 1);
	h->magic = HOME_MAGIC;
	if (!family_founded(h)) {
		space_unmap(h, home_size(HOME_FIRST));
		goto fail;
	}
	own_drop(&home_fd);
	fd = own_keep(&home_fd, fd);
	if (settings.why || settings.stats[0])
		tell_home(fd);
	return h;
fail:
	own_close(fd);
	return NULL;
}

/* There may be memory or descriptors again later. Switched off is nothing: inherited lanes go on. */
#define HOMELESS_NS NSEC_PER_SEC

struct home *process_home(void)
{
	static struct once founding;
	static _Atomic uint64_t homeless;
	struct home *h;

	process_init();
	if (settings.off || !process_is_self())
		return NULL;
	h = atomic_load_explicit(&own_home, memory_order_acquire);
	if (h || (homeless && clock_coarse() - homeless < HOMELESS_NS) || !once_begin(&founding))
		return h;
	h = atomic_load(&own_home); /* another thread may have come first */
	if (!h)
		h = make_home();
	atomic_store(&homeless, h ? 0 : clock_coarse());
	atomic_store_explicit(&own_home, h, memory_order_release);
	once_end(&founding, 0);
	return h;
}
