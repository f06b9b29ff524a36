/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/own.h"
#include "base/robust.h"
#include "base/self.h"
#include "base/space.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/ladder.h"
#include "channel/meet.h"
#include "sockets/epoll.h"
#include "sockets/family.h"
#include "sockets/ops_lane.h"
#include "sockets/process.h"
#include "sockets/raw.h"
#include "sockets/real.h"
#include "sockets/report.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/tell.h"

struct settings settings;
_Atomic(struct home *) home;
char process_name[32];

static struct own_fd home_fd;

static void set_profile(const char *name)
{
	static const struct {
		const char *name;
		struct ladder_profile profile;
	} profiles[] = {
		{ "balanced", { .spin_ns = 50000, .yields = 8 } },
		{ "latency", { .spin_ns = 200000, .yields = 32 } },
		{ "cpu", { .spin_ns = 0, .yields = 2 } },
	};

	ladder_profile = profiles[0].profile;
	for (size_t i = 0; name && i < ARRAY_SIZE(profiles); i++)
		if (strcmp(name, profiles[i].name) == 0)
			ladder_profile = profiles[i].profile;
}

static void find_name(void)
{
	memccpy(process_name, program_invocation_short_name, 0, sizeof(process_name) - 1);
}

static void load_rules(void)
{
	const char *told = getenv(POLICY_TOLD);
	struct policy_error error;

	settings.bad_rules = policy_load(&settings.policy, policy_path(), getenv("FLUE_RULE"),
					 &error) != 0;
	for (uint32_t i = 0; i < settings.policy.n_rules; i++)
		settings.user_rules |= !settings.policy.rules[i].any_user;
	if (settings.bad_rules && !(told && strcmp(told, error.text) == 0))
		report_line("flue: ", error.text, "; this program stays on TCP");
}

void process_fork_prepare(void)
{
	epoll_fork_prepare();
	arena_fork_prepare();
	bell_fork_prepare();
	sock_fork_prepare();
}

void process_fork_parent(void)
{
	sock_fork_parent();
	family_fork_parent();
	bell_fork_parent();
	arena_fork_parent();
	epoll_fork_parent();
}

static void become_child(bool counted)
{
	self_forked();
	robust_forked();
	own_forked();
	meet_forked();
	epoll_forked();
	stream_forked();
	raw_forked();
	sock_forked(counted);
	epoll_forked_keeps();
	family_forked();
	atomic_store(&home, NULL);
	self_begins_anew();
}

void process_fork_child(void)
{
	if (self_has_begun() && self_pid() == 0)
		become_child(true);
}

static void limit_lanes(void)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t lanes = memory / 4 / (2 * LANE_RING);

	arena_set_most((uint32_t)min_u64(lanes, 16384));
}

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

static void read_environment(void)
{
	const char *text = getenv("FLUE_SOCKETS");

	settings.off = text && strcmp(text, "off") == 0;
	set_profile(getenv("FLUE_PROFILE"));
	settings.why = getenv("FLUE_WHY") != NULL;
	tell_init(getenv(TELL_VARIABLE));
	text = getenv("FLUE_STATS");
	if (text && strlen(text) < sizeof(settings.stats))
		strcpy(settings.stats, text);
	else if (text)
		report_line("flue: ", "FLUE_STATS", " is longer than 255 octets and ignored");
}

static struct once set_up;

void process_init(void)
{
	if (atomic_load_explicit(&set_up.state, memory_order_acquire) == ONCE_DONE ||
	    !once_begin(&set_up))
		return;
	sock_start();
	read_environment();
	if (!settings.off) {
		find_name();
		policy_self(&settings.self);
		load_rules();
		limit_lanes();
		if (!self_begin() || pthread_atfork(process_fork_prepare, process_fork_parent,
						    process_fork_child) != 0)
			settings.off = true;
	}
	if (!settings.off)
		ops_lane_start();
	once_end(&set_up, ONCE_DONE);
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
		become_child(false);
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
	memcpy(h->program, process_name, sizeof(h->program));
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
	h = atomic_load_explicit(&home, memory_order_acquire);
	if (h || (homeless && clock_coarse() - homeless < HOMELESS_NS) || !once_begin(&founding))
		return h;
	h = atomic_load(&home); /* another thread may have come first */
	if (!h)
		h = make_home();
	atomic_store(&homeless, h ? 0 : clock_coarse());
	atomic_store_explicit(&home, h, memory_order_release);
	once_end(&founding, 0);
	return h;
}
