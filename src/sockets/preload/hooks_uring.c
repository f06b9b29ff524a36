/* SPDX-License-Identifier: MIT */
#include <linux/io_uring.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "base/util.h"
#include "sockets/sleep/epoll.h"
#include "sockets/preload/hook.h"
#include "sockets/preload/hooks_uring.h"
#include "sockets/attach/ops_lane.h"
#include "sockets/record/user.h"

#define RINGS     64 /* more are not looked at: then no lanes */
#define LIST_MOST 65536

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1u << 16)
#endif
#define SETUP_HYBRID_IOPOLL (1u << 17)
#define SETUP_CQE_MIXED     (1u << 18)
/* Rings of these kinds take requests only when the program asks the kernel to. */
#define SETUP_SEEN                                                                              \
	(IORING_SETUP_IOPOLL | IORING_SETUP_SQ_AFF | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP | \
	 IORING_SETUP_ATTACH_WQ | IORING_SETUP_R_DISABLED | IORING_SETUP_SUBMIT_ALL |           \
	 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SQE128 |          \
	 IORING_SETUP_CQE32 | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |         \
	 IORING_SETUP_NO_SQARRAY | SETUP_HYBRID_IOPOLL | SETUP_CQE_MIXED)

/* Its queue of requests, mapped once more: the kernel does not mind, and nobody has to tell us where the program has it. */
#define CLOSING UINT32_MAX

struct ring {
	_Atomic uint32_t refs;  /* 0: free; CLOSING: soon */
	_Atomic int32_t number; /* of the descriptor, + 1; 0: closed, or being made */
	uint32_t entries, mask;
	uint32_t shift; /* of a request's size */
	const _Atomic uint32_t *head, *tail;
	const uint32_t *array; /* NULL: they stand in order */
	uint8_t *requests;
	void *map;
	size_t map_size, requests_size;
};

static struct ring rings[RINGS];
static _Atomic uint32_t n_rings; /* open */

/* --- rings that cannot be seen */

static void no_more_lanes(int fd, struct rec *r, void *arg)
{
	(void)arg;
	sock_pin(r, fd, WHY_URING);
}

static void be_blind(void)
{
	int saved = errno;

	if (!settings.uring) {
		settings.uring = true;
		ops_lane_stop();
		sock_each(no_more_lanes, NULL);
	}
	errno = saved;
}

/* --- and those that can */

static void release(struct ring *g)
{
	uint32_t refs = atomic_load(&g->refs);

	while (!atomic_compare_exchange_weak(&g->refs, &refs, refs > 1 ? refs - 1 : CLOSING))
		;
	if (refs > 1)
		return;
	/* The mappings would keep the ring alive. */
	if (g->map)
		real(munmap)(g->map, g->map_size);
	if (g->requests)
		real(munmap)(g->requests, g->requests_size);
	atomic_store(&g->refs, 0);
}

static bool hold(struct ring *g)
{
	uint32_t refs = atomic_load(&g->refs);

	while (refs > 0 && refs < CLOSING)
		if (atomic_compare_exchange_weak(&g->refs, &refs, refs + 1))
			return true;
	return false;
}

static struct ring *take(int fd)
{
	for (int i = 0; i < RINGS; i++) {
		struct ring *g = &rings[i];

		if (atomic_load_explicit(&g->number, memory_order_relaxed) != fd + 1 || !hold(g))
			continue;
		if (atomic_load(&g->number) == fd + 1)
			return g;
		release(g);
	}
	return NULL;
}

static struct ring *free_ring(void)
{
	for (int i = 0; i < RINGS; i++) {
		uint32_t none = 0;

		if (atomic_compare_exchange_strong(&rings[i].refs, &none, 1))
			return &rings[i];
	}
	return NULL;
}

static void *map_part(int fd, size_t size, off_t at)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);

	return p == MAP_FAILED ? NULL : p;
}

static bool map_ring(struct ring *g, int fd, const struct io_uring_params *p)
{
	bool in_order = p->flags & IORING_SETUP_NO_SQARRAY;

	g->entries = p->sq_entries;
	g->mask = p->sq_entries - 1;
	g->shift = p->flags & IORING_SETUP_SQE128 ? 7 : 6;
	g->map_size = in_order ? USER_PAGE : p->sq_off.array + p->sq_entries * sizeof(uint32_t);
	g->requests_size = (size_t)p->sq_entries << g->shift;
	g->map = map_part(fd, g->map_size, IORING_OFF_SQ_RING);
	g->requests = map_part(fd, g->requests_size, IORING_OFF_SQES);
	if (!g->map || !g->requests)
		return false;
	g->head = (const _Atomic uint32_t *)((char *)g->map + p->sq_off.head);
	g->tail = (const _Atomic uint32_t *)((char *)g->map + p->sq_off.tail);
	g->array = in_order ? NULL : (const uint32_t *)((char *)g->map + p->sq_off.array);
	return true;
}

void uring_made(int fd, const struct io_uring_params *p)
{
	struct ring *g;
	int saved = errno;

	if (settings.sealed)
		return; /* there are no lanes */
	process_init();
	uring_closing((unsigned)fd, (unsigned)fd); /* one of this number that was closed unseen */
	g = p->flags & ~SETUP_SEEN ? NULL : free_ring();
	if (g && map_ring(g, fd, p)) {
		atomic_fetch_add(&n_rings, 1);
		atomic_store(&g->number, fd + 1);
	} else {
		if (g)
			release(g);
		be_blind();
	}
	errno = saved;
}

void uring_closing(unsigned first, unsigned last)
{
	if (atomic_load_explicit(&n_rings, memory_order_relaxed) == 0)
		return;
	for (int i = 0; i < RINGS; i++) {
		int number = atomic_load(&rings[i].number);

		/* A child of vfork() closes only its own. */
		if (number == 0 || (unsigned)number - 1 < first || (unsigned)number - 1 > last ||
		    !process_is_self() ||
		    !atomic_compare_exchange_strong(&rings[i].number, &number, 0))
			continue;
		atomic_fetch_sub(&n_rings, 1);
		release(&rings[i]);
	}
}

/* --- requests */

static void step_aside_all(const int *fds, uint32_t n)
{
	for (uint32_t i = 0; i < n && i < LIST_MOST && user_readable(&fds[i], sizeof(fds[i])); i++)
		hook_step_aside(fds[i], WHY_URING);
}

/* A set of ours and a member that it knows must change together: we do it, and the kernel does nothing, with the result
 * that it would have had. */
static void change_set(struct io_uring_sqe *e)
{
	int fd = (int)e->off;

	if ((e->flags & IOSQE_FIXED_FILE) || !epoll_of(e->fd) || (!sock_of(fd) && !epoll_of(fd)))
		return;
	if (epoll_ctl(e->fd, (int)e->len, fd, (struct epoll_event *)(uintptr_t)e->addr) != 0) {
		/* The kernel will say so, too; it may not have heard yet that the member is gone. */
		if (errno == ENOENT)
			real(epoll_ctl)(e->fd, EPOLL_CTL_DEL, fd, NULL);
		return;
	}
	*e = (struct io_uring_sqe) {
		.opcode = IORING_OP_NOP,
		.flags = e->flags,
		.fd = -1,
		.user_data = e->user_data,
		.personality = e->personality,
	};
}

static void look_at(struct io_uring_sqe *e)
{
	const void *at = (const void *)(uintptr_t)e->addr;

	switch (e->opcode) {
	/* No descriptor. */
	case IORING_OP_NOP:
	case IORING_OP_TIMEOUT:
	case IORING_OP_TIMEOUT_REMOVE:
	case IORING_OP_LINK_TIMEOUT:
	case IORING_OP_POLL_REMOVE:
	case IORING_OP_MADVISE:
	case IORING_OP_PROVIDE_BUFFERS:
	case IORING_OP_REMOVE_BUFFERS: return;
	case IORING_OP_EPOLL_CTL: change_set(e); return;
	case IORING_OP_FILES_UPDATE: step_aside_all(at, e->len); return;
	case IORING_OP_CLOSE:
		if (e->file_index == 0) {
			hook_step_aside(e->fd, WHY_URING);
			hook_let_go(e->fd);
			uring_closing((unsigned)e->fd, (unsigned)e->fd);
			sock_closed(e->fd);
		}
		return;
	case IORING_OP_SPLICE:
	case IORING_OP_TEE:
		if (!(e->splice_flags & SPLICE_F_FD_IN_FIXED))
			hook_step_aside(e->splice_fd_in, WHY_URING);
		break;
	case IORING_OP_SENDMSG:
	case IORING_OP_SENDMSG_ZC: hook_passing_descriptors(at); break;
	}
	if (!(e->flags & IOSQE_FIXED_FILE))
		hook_step_aside(e->fd, WHY_URING);
}

static void look_through_ring(struct ring *g, uint32_t n)
{
	uint32_t head = atomic_load_explicit(g->head, memory_order_relaxed);
	uint32_t there = atomic_load_explicit(g->tail, memory_order_acquire) - head;

	n = min_u32(n, min_u32(there, g->entries));
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = (head + i) & g->mask;

		if (g->array)
			at = g->array[at];
		if (at < g->entries)
			look_at((struct io_uring_sqe *)(g->requests + ((size_t)at << g->shift)));
	}
}

void uring_looks(uint8_t *requests, uint32_t shift, uint32_t mask, uint32_t from, uint32_t to)
{
	uint32_t n = min_u32(to - from, mask + 1);
	int saved = errno;

	if (settings.uring || !user_writable(requests, ((size_t)mask + 1) << shift))
		return;
	for (uint32_t i = 0; i < n; i++)
		look_at((struct io_uring_sqe *)(requests + ((size_t)((from + i) & mask) << shift)));
	errno = saved;
}

void uring_submits(int fd, uint32_t n, uint32_t flags)
{
	int saved = errno;
	struct ring *g;

	if (n == 0 || settings.uring || settings.sealed)
		return;
	g = flags & IORING_ENTER_REGISTERED_RING ? NULL : take(fd);
	if (g) {
		look_through_ring(g, n);
		release(g);
	} else {
		be_blind();
	}
	errno = saved;
}

/* --- registered descriptors have other numbers in the ring */

static void register_files(const void *list, uint32_t n)
{
	step_aside_all(list, n);
}

static void register_more(uint32_t what, const void *arg, uint32_t n)
{
	union {
		struct io_uring_files_update update;
		struct io_uring_rsrc_register files;
		struct io_uring_rsrc_update2 update2;
	} u;
	size_t size = what == IORING_REGISTER_FILES_UPDATE ? sizeof(u.update)
		      : what == IORING_REGISTER_FILES2     ? sizeof(u.files)
							   : sizeof(u.update2);

	if (!user_readable(arg, size))
		return;
	memcpy(&u, arg, size);
	if (what == IORING_REGISTER_FILES_UPDATE)
		register_files((const void *)(uintptr_t)u.update.fds, n);
	else if (what == IORING_REGISTER_FILES2)
		register_files((const void *)(uintptr_t)u.files.data, u.files.nr);
	else
		register_files((const void *)(uintptr_t)u.update2.data, u.update2.nr);
}

#define USE_REGISTERED_RING (1u << 31)
#define REGISTER_RESIZE     33
#define REGISTER_KNOWN      35

void uring_registers(int fd, uint32_t what, const void *arg, uint32_t n)
{
	int saved = errno;

	(void)fd;
	what &= ~USE_REGISTERED_RING;
	if (settings.uring)
		return;
	switch (what) {
	case IORING_REGISTER_FILES: register_files(arg, n); break;
	case IORING_REGISTER_FILES_UPDATE:
	case IORING_REGISTER_FILES2:
	case IORING_REGISTER_FILES_UPDATE2: register_more(what, arg, n); break;
	/* From then on it is somewhere else. */
	case IORING_REGISTER_RING_FDS:
	case REGISTER_RESIZE: be_blind(); break;
	default:
		if (what >= REGISTER_KNOWN)
			be_blind();
	}
	errno = saved;
}
