/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/arena.h"
#include "sockets/epoll.h"
#include "sockets/family.h"
#include "sockets/meet.h"
#include "sockets/ops_lane.h"
#include "sockets/process.h"
#include "sockets/quick.h"
#include "sockets/raw.h"
#include "sockets/real.h"
#include "sockets/report.h"
#include "sockets/sock.h"
#include "sockets/stream.h"
#include "sockets/tell.h"

/* Ours stand from here on: above what nearly every program uses, and low enough that the kernel's
 * table of descriptors stays small and select() can see them. */
#define OUR_BASE 960

/* Programs that close ours go through our hooks. What closes them by system calls of its own is noticed after this. */
#define LATELY_NS (10 * NSEC_PER_MSEC)

struct settings settings;
_Atomic(struct home *) home;
char process_name[32];

static struct kept {
	_Atomic int fd; /* + 1; 0: none */
	dev_t dev;
	ino_t ino;
} kept[OUR_FDS];

static struct rec_lock making; /* one of these */

/* One page that a child finds zeroed: the only thing that every way of forking shows. */
static _Atomic(struct life { _Atomic uint32_t pid; } *) life;

static __thread uint32_t tid THREAD_LOCAL_FAST;

uint32_t process_tid(void)
{
	if (!tid)
		tid = (uint32_t)syscall(SYS_gettid);
	return tid;
}

int32_t process_pid(void)
{
	return life ? (int32_t)atomic_load_explicit(&life->pid, memory_order_relaxed) : 0;
}

static void set_profile(const char *name)
{
	static const struct {
		const char *name;
		uint32_t spin_ns, yields;
	} profiles[] = {
		{ "balanced", 50000, 8 },
		{ "latency", 200000, 32 },
		{ "cpu", 0, 2 },
	};

	settings.spin_ns = profiles[0].spin_ns;
	settings.yields = profiles[0].yields;
	for (size_t i = 0; name && i < ARRAY_SIZE(profiles); i++) {
		if (strcmp(name, profiles[i].name) == 0) {
			settings.spin_ns = profiles[i].spin_ns;
			settings.yields = profiles[i].yields;
		}
	}
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
	tid = 0;
	rec_lock_forked();
	atomic_store(&making.word, 0);
	/* Inherited lanes may still ring the bells of their peers. */
	for (int i = OUR_MAILBOX; i < OUR_PEERS; i++)
		process_drop(i);
	bell_forked();
	meet_forked();
	epoll_forked();
	stream_forked();
	raw_forked();
	sock_forked(counted);
	epoll_forked_keeps();
	family_forked();
	atomic_store(&home, NULL);
	atomic_store_explicit(&life->pid, (uint32_t)getpid(), memory_order_release);
}

void process_fork_child(void)
{
	if (life && atomic_load_explicit(&life->pid, memory_order_acquire) == 0)
		become_child(true);
}

static void limit_lanes(void)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t lanes = memory / 4 / (2 * LANE_RING);

	settings.max_lanes = (uint32_t)min_u64(lanes, 16384);
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
	uint32_t me = process_tid();
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
			real(syscall)(SYS_futex, &o->state, FUTEX_WAIT_PRIVATE, seen, &slice, NULL,
				      0);
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
	real(syscall)(SYS_futex, &o->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
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

/* Seen by other threads only when it says who we are. */
static bool begin_life(void)
{
	struct life *l = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			      0);

	if (l == MAP_FAILED || madvise(l, 4096, MADV_WIPEONFORK) != 0)
		return false;
	atomic_store(&l->pid, (uint32_t)getpid());
	atomic_store(&life, l);
	return true;
}

static struct once set_up;

void process_init(void)
{
	if (atomic_load_explicit(&set_up.state, memory_order_acquire) == ONCE_DONE ||
	    !once_begin(&set_up))
		return;
	read_environment();
	if (!settings.off) {
		find_name();
		policy_self(&settings.self);
		load_rules();
		limit_lanes();
		if (!begin_life() || pthread_atfork(process_fork_prepare, process_fork_parent,
						    process_fork_child) != 0)
			settings.off = true;
	}
	if (!settings.off)
		ops_lane_start();
	once_end(&set_up, ONCE_DONE);
}

bool process_is_self(void)
{
	uint32_t pid;

	if (settings.sealed)
		return false;
	if (!life)
		return !settings.off;
	pid = atomic_load_explicit(&life->pid, memory_order_acquire);
	if (pid == 0) {
		become_child(false);
		return true;
	}
	return pid == (uint32_t)syscall(SYS_getpid);
}

int process_copy(int fd)
{
	struct rlimit limit = { 0 };
	int copy = -1;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= OUR_BASE + 64)
		return real(fcntl)(fd, F_DUPFD_CLOEXEC, OUR_BASE);
	/* As high as can be: a program may use a number that it has closed, and must not meet ours. */
	errno = EMFILE;
	for (int base = (int)limit.rlim_cur - 1; copy < 0 && errno == EMFILE && base > 0; base--)
		copy = real(fcntl)(fd, F_DUPFD_CLOEXEC, base);
	return copy;
}

int process_kept_or(enum process_fd which, int (*make)(void))
{
	int fd = process_kept(which);

	if (fd >= 0 || !rec_lock_take(&making))
		return fd;
	fd = process_kept(which); /* another thread may have been faster */
	if (fd < 0) {
		fd = make();
		fd = fd >= 0 ? process_keep(which, fd) : -1;
	}
	rec_lock_give(&making);
	return fd;
}

int process_keep(enum process_fd which, int fd)
{
	struct rlimit limit;
	struct stat st;
	/* A program that has so few needs them itself. */
	int high = getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= 128
			   ? -1
			   : process_copy(fd);

	sock_close_ours(fd);
	if (high < 0 || fstat(high, &st) != 0)
		return -1;
	kept[which].dev = st.st_dev;
	kept[which].ino = st.st_ino;
	atomic_store_explicit(&kept[which].fd, high + 1, memory_order_release);
	return high;
}

int process_kept(enum process_fd which)
{
	struct stat st;
	struct kept *k = &kept[which];
	int fd = atomic_load_explicit(&k->fd, memory_order_acquire);

	if (fd == 0)
		return -1;
	if (fstat(fd - 1, &st) != 0 || st.st_dev != k->dev || st.st_ino != k->ino) {
		/* The program has closed it, and perhaps opened something there. */
		atomic_compare_exchange_strong(&k->fd, &fd, 0);
		return -1;
	}
	return fd - 1;
}

int process_kept_lately(enum process_fd which)
{
	static _Atomic uint64_t looked[OUR_FDS];
	uint64_t now = clock_coarse();
	int fd = atomic_load_explicit(&kept[which].fd, memory_order_acquire);

	if (fd == 0)
		return -1;
	if (now - atomic_load_explicit(&looked[which], memory_order_relaxed) < LATELY_NS)
		return fd - 1;
	atomic_store_explicit(&looked[which], now, memory_order_relaxed);
	return process_kept(which);
}

void process_drop(enum process_fd which)
{
	int fd = process_kept(which);

	kept[which].fd = 0;
	if (fd >= 0)
		quick_close(fd);
}

bool process_owns(int fd)
{
	for (int i = 0; i < OUR_FDS; i++)
		if (kept[i].fd == fd + 1)
			return process_kept(i) >= 0;
	return false;
}

void process_make_way(int fd)
{
	for (int i = 0; i < OUR_FDS; i++) {
		int other;

		if (kept[i].fd != fd + 1 || process_kept(i) < 0)
			continue;
		other = real(fcntl)(fd, F_DUPFD_CLOEXEC, fd + 1);
		kept[i].fd = other >= 0 ? other + 1 : 0;
	}
}

int process_lowest_from(int first)
{
	int found = -1;

	for (int i = 0; i < OUR_FDS; i++) {
		int fd = process_kept(i);

		if (fd >= first && (found < 0 || fd < found))
			found = fd;
	}
	return found;
}

bool process_may_grow(size_t size)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
	       (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= size);
}

/* Of a limit for all of the program's memory we take a sixteenth, and never more than this. */
#define SPACE_SHARE 16
#define SPACE_MOST  (16u << 20)
#define PAGE        4096u

static _Atomic size_t mapped;

static bool has_space(size_t all)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
		return true;
	return all <= min_u64(limit.rlim_cur / SPACE_SHARE, SPACE_MOST);
}

void *process_map(int fd, size_t size)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *p = MAP_FAILED;
	int saved = errno;

	if (has_space(atomic_fetch_add(&mapped, size) + size))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
	if (p == MAP_FAILED)
		atomic_fetch_sub(&mapped, size);
	errno = saved;
	return p == MAP_FAILED ? NULL : p;
}

/* The last page before `end` is mapped a second time, and with it what comes behind; then the page goes. */
void *process_map_behind(const void *end, size_t size)
{
	char *p = MAP_FAILED;
	int saved = errno;

	if (has_space(atomic_fetch_add(&mapped, size) + size + PAGE))
		p = real(mremap)((char *)end - PAGE, 0, PAGE + size, MREMAP_MAYMOVE);
	if (p == MAP_FAILED)
		atomic_fetch_sub(&mapped, size);
	else
		real(munmap)(p, PAGE);
	errno = saved;
	return p == MAP_FAILED ? NULL : p + PAGE;
}

void process_unmap(void *p, size_t size)
{
	real(munmap)(p, size);
	atomic_fetch_sub(&mapped, size);
}

static size_t home_size(uint32_t records)
{
	return sizeof(struct home) + (size_t)records * sizeof(struct rec);
}

static struct home *make_home(void)
{
	int fd = sock_ours(memfd_create(HOME_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	uint32_t records = HOME_RECORDS;
	struct home *h;

	if (fd < 0)
		return NULL;
	while (records > HOME_FIRST && !process_may_grow(home_size(records)))
		records /= 2;
	if (!process_may_grow(home_size(records)) ||
	    ftruncate(fd, (off_t)home_size(records)) != 0 ||
	    real(fcntl)(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
		goto fail;
	h = process_map(fd, home_size(HOME_FIRST));
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
		process_unmap(h, home_size(HOME_FIRST));
		goto fail;
	}
	process_drop(OUR_HOME);
	fd = process_keep(OUR_HOME, fd);
	if (settings.why || settings.stats[0])
		tell_home(fd);
	return h;
fail:
	sock_close_ours(fd);
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
