/* SPDX-License-Identifier: MIT */
/*
 * Hooks of liburing. It makes its system calls past the C library, so it is met at its own functions: those by which
 * requests go to the kernel, and those that register descriptors. Requests stand in the ring before that, seen by
 * nobody else, also if a thread of the kernel takes them. A liburing that is linked into the program is not seen.
 */
#include <dlfcn.h>
#include <linux/io_uring.h>

#include "base/util.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/hooks_uring.h"
#include "sockets/record/user.h"

/* The beginning of its `struct io_uring`, which has not changed since it got a number of its own (liburing.so.2). */
struct io_uring {
	struct {
		const _Atomic uint32_t *head, *tail;
		const uint32_t *mask, *entries;
		uint32_t *flags, *dropped, *array;
		uint8_t *requests;
		uint32_t taken,
			filled; /* of the requests: with the kernel up to here; ready up to here */
		size_t size;
		void *map;
		uint32_t pad[4];
	} sq;
	struct {
		void *pointer[7];
		size_t size;
		void *map;
		uint32_t pad[4];
	} cq;
	uint32_t flags;
	int32_t fd;
};

/* Theirs. It may be loaded where RTLD_NEXT does not look, as a part of a module; then from where the call came. */
static void *find(void **where, const char *name, const void *caller)
{
	void *found = __atomic_load_n(where, __ATOMIC_RELAXED);
	Dl_info info;
	void *module;

	if (found)
		return found;
	found = dlsym(RTLD_NEXT, name);
	if (!found && (module = dlopen("liburing.so.2", RTLD_LAZY | RTLD_NOLOAD)) != NULL)
		found = dlsym(module, name);
	if (!found && dladdr(caller, &info) &&
	    (module = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) != NULL)
		found = dlsym(module, name);
	__atomic_store_n(where, found, __ATOMIC_RELAXED);
	return found;
}

/* Call it; unlike system calls these return errors as negative numbers. */
#define THEIRS(name, ...)                                                                       \
	({                                                                                      \
		static void *where_;                                                            \
		__typeof__(&name) call_ = (__typeof__(&name))find(&where_, #name,               \
								  __builtin_return_address(0)); \
		call_ &&call_ != (__typeof__(&name))name ? call_(__VA_ARGS__) : -ENOSYS;        \
	})

static void submits(struct io_uring *ring)
{
	uint32_t from;

	if (!user_readable(ring, sizeof(*ring)) || !user_readable(ring->sq.head, sizeof(from)) ||
	    !user_readable(ring->sq.mask, sizeof(from)))
		return;
	/* What a thread of the kernel can see it may have taken. */
	from = ring->flags & IORING_SETUP_SQPOLL ? ring->sq.taken : atomic_load(ring->sq.head);
	uring_looks(ring->sq.requests, ring->flags & IORING_SETUP_SQE128 ? 7 : 6, *ring->sq.mask,
		    from, ring->sq.filled);
}

struct io_uring_cqe;
struct __kernel_timespec;

/* --- requests */

#define SUBMIT(name, params, ...)                      \
	HOOK int name params;                          \
	int name params                                \
	{                                              \
		submits(ring);                         \
		return THEIRS(name, ring __VA_ARGS__); \
	}

SUBMIT(io_uring_submit, (struct io_uring * ring))
SUBMIT(io_uring_submit_and_get_events, (struct io_uring * ring))
SUBMIT(io_uring_submit_and_wait, (struct io_uring * ring, unsigned n), , n)
SUBMIT(io_uring_submit_and_wait_timeout,
       (struct io_uring * ring, struct io_uring_cqe **result, unsigned n,
	struct __kernel_timespec *limit, sigset_t *mask),
       , result, n, limit, mask)
SUBMIT(io_uring_submit_and_wait_min_timeout,
       (struct io_uring * ring, struct io_uring_cqe **result, unsigned n,
	struct __kernel_timespec *limit, unsigned least, sigset_t *mask),
       , result, n, limit, least, mask)
SUBMIT(io_uring_submit_and_wait_reg,
       (struct io_uring * ring, struct io_uring_cqe **result, unsigned n, int which), , result, n,
       which)
/* On kernels before 5.11 these submit as well, for the time. */
SUBMIT(io_uring_wait_cqes,
       (struct io_uring * ring, struct io_uring_cqe **result, unsigned n,
	struct __kernel_timespec *limit, sigset_t *mask),
       , result, n, limit, mask)
SUBMIT(io_uring_wait_cqe_timeout,
       (struct io_uring * ring, struct io_uring_cqe **result, struct __kernel_timespec *limit), ,
       result, limit)

/* --- descriptors */

#define REGISTER(name, params, ...)                                 \
	HOOK int name params;                                       \
	int name params                                             \
	{                                                           \
		uring_registers(-1, IORING_REGISTER_FILES, fds, n); \
		return THEIRS(name, __VA_ARGS__);                   \
	}

REGISTER(io_uring_register_files, (struct io_uring * ring, const int *fds, unsigned n), ring, fds,
	 n)
REGISTER(io_uring_register_files_tags,
	 (struct io_uring * ring, const int *fds, const uint64_t *tags, unsigned n), ring, fds,
	 tags, n)
REGISTER(io_uring_register_files_update,
	 (struct io_uring * ring, unsigned at, const int *fds, unsigned n), ring, at, fds, n)
REGISTER(io_uring_register_files_update_tag,
	 (struct io_uring * ring, unsigned at, const int *fds, const uint64_t *tags, unsigned n),
	 ring, at, fds, tags, n)

/* --- the system calls by its names */

HOOK int io_uring_setup(unsigned entries, struct io_uring_params *p);
HOOK int io_uring_enter(unsigned fd, unsigned n, unsigned least, unsigned flags, sigset_t *mask);
HOOK int io_uring_enter2(unsigned fd, unsigned n, unsigned least, unsigned flags, void *arg,
			 size_t size);
HOOK int io_uring_register(unsigned fd, unsigned what, const void *arg, unsigned n);

int io_uring_setup(unsigned entries, struct io_uring_params *p)
{
	int fd = THEIRS(io_uring_setup, entries, p);

	if (fd >= 0)
		uring_made(fd, p);
	return fd;
}

int io_uring_enter(unsigned fd, unsigned n, unsigned least, unsigned flags, sigset_t *mask)
{
	uring_submits((int)fd, n, flags);
	return THEIRS(io_uring_enter, fd, n, least, flags, mask);
}

int io_uring_enter2(unsigned fd, unsigned n, unsigned least, unsigned flags, void *arg, size_t size)
{
	uring_submits((int)fd, n, flags);
	return THEIRS(io_uring_enter2, fd, n, least, flags, arg, size);
}

int io_uring_register(unsigned fd, unsigned what, const void *arg, unsigned n)
{
	uring_registers((int)fd, what, arg, n);
	return THEIRS(io_uring_register, fd, what, arg, n);
}
