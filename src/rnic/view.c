/* SPDX-License-Identifier: MIT */
#include "rnic/view.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/slot.h"
#include "base/space.h"
#include "base/sys.h"
#include "base/tsan.h"
#include "base/util.h"
#include "rnic/shown.h"
#include "rnic/umem.h"

/* ---- opening ---- */

/* Nobody can cut it away below us. */
static bool is_sound(int fd, struct stat *st)
{
	int seals = sys_fcntl(fd, F_GET_SEALS, 0);

	return seals >= 0 && seals & F_SEAL_SHRINK && fstat(fd, st) == 0 &&
	       (size_t)st->st_size == sizeof(struct shown_file);
}

/* Does the kernel copy for us, and from the process that the file is of? */
static bool reaches(const struct view *v)
{
	uint64_t token = 0;
	struct iovec to = { &token, sizeof(token) };
	struct iovec from = { (void *)(uintptr_t)v->guard, sizeof(token) };

	return process_vm_readv(v->pid, &to, 1, &from, 1, 0) == (ssize_t)sizeof(token) &&
	       token == v->token;
}

struct view *view_open(int fd, pid_t pid, _Atomic uint64_t *word)
{
	struct view *v = calloc(1, sizeof(*v));
	int saved = errno;
	struct stat st;

	if (v && is_sound(fd, &st))
		v->file = space_map_readonly(fd, sizeof(*v->file));
	sys_close(fd);
	if (!v || !v->file) {
		free(v);
		return NULL;
	}
	v->ino = st.st_ino;
	v->word = word;
	v->pid = pid;
	v->self = pid == getpid();
	v->guard = v->file->guard;
	v->token = v->file->token;
	memcpy(v->key, v->file->key, sizeof(v->key));
	if (v->file->magic != SHOWN_MAGIC ||
	    madvise((void *)v->file, sizeof(*v->file), MADV_DONTFORK) != 0 ||
	    (!v->self && !reaches(v))) {
		view_close(v);
		v = NULL;
	}
	errno = saved;
	return v;
}

void view_close(struct view *v)
{
	space_unmap((void *)v->file, sizeof(*v->file));
	free(v);
}

void view_forked(struct view *v)
{
	space_forget(sizeof(*v->file));
	free(v);
}

/* ---- claiming ---- */

static bool allows(const struct shown_region *r, const struct shown_gate *g,
		   const struct view_range *want, uint64_t *at)
{
	/* Once: a peer that changes them meanwhile confuses itself. */
	uint64_t to = r->to, length = r->length;

	if (r->pd != g->pd || (r->qpn && r->qpn != g->qpn) || want->access & g->deny ||
	    (r->access & want->access) != want->access)
		return false;
	if (want->to < to || want->length > length || want->to - to > length - want->length)
		return false;
	*at = r->base + (want->to - to);
	return true;
}

bool view_take(struct view *v, const struct view_range *want, uint64_t *at)
{
	uint32_t index = slot_index_of(v->key, want->stag >> 8);
	const struct shown_region *r;
	const struct shown_gate *g;

	if (v->out_of_use || index >= SHOWN_REGIONS || want->gate >= SHOWN_GATES || !want->stag)
		return false;
	r = &v->file->region[index];
	g = &v->file->gate[want->gate];
	/* Sequentially consistent: either we see that it is revoked, or who revokes sees us. Partner: shown_take(). */
	atomic_store(v->word, (uint64_t)want->gate << 32 | want->stag);
	if (atomic_load(&r->live) == want->stag &&
	    atomic_load(&g->open) == (SHOWN_OPEN | want->circuit) && allows(r, g, want, at))
		return true;
	view_give(v);
	return false;
}

bool view_also(const struct view *v, const struct view_range *want, uint64_t *at)
{
	uint32_t index = slot_index_of(v->key, want->stag >> 8);

	return allows(&v->file->region[index], &v->file->gate[want->gate], want, at);
}

void view_give(struct view *v)
{
	tsan_puts(v->ino);
	atomic_store_explicit(v->word, 0, memory_order_release);
}

/* ---- copying ---- */

/* false: from now on it is not asked any more. */
static bool done(struct view *v, ssize_t n, size_t want)
{
	if (n == (ssize_t)want)
		return true;
	if (n < 0 && (errno == EPERM || errno == ENOSYS || errno == ESRCH))
		v->out_of_use = true;
	return false;
}

static bool copy_here(const struct iovec *from, uint32_t n, char *to, size_t len, bool last)
{
	for (uint32_t i = 0; i < n; i++) {
		size_t part = from[i].iov_len - (last && i == n - 1);

		if (part && umem_write_guarded(to, from[i].iov_base, part))
			return false;
		to += part;
		len -= part;
	}
	__atomic_thread_fence(__ATOMIC_RELEASE);
	return !len ||
	       umem_write_guarded(to, (char *)from[n - 1].iov_base + from[n - 1].iov_len - 1, 1) ==
		       0;
}

void view_begin(struct view *v, struct view_batch *b)
{
	b->own[0] = (struct iovec) { &v->token, sizeof(v->token) };
	b->peer[0] = (struct iovec) { (void *)(uintptr_t)(v->guard +
							  offsetof(struct guard_page, scribble)),
				      sizeof(v->token) };
	b->n_own = b->n_peer = 1;
	b->len = sizeof(v->token);
	b->failed = false;
}

/*
 * The kernel copies each piece of ours by itself, one after the other, also where the peer's memory is one piece; and a piece of ours
 * more costs nothing, one of the peer's a fifth of a short call.
 */
bool view_add(struct view *v, struct view_batch *b, const struct iovec *from, uint32_t n,
	      uint64_t at, size_t len, bool last)
{
	struct iovec *end = &b->own[b->n_own + n - 1];

	if (b->n_own + n + 1 > ARRAY_SIZE(b->own) || b->n_peer == ARRAY_SIZE(b->peer))
		return false;
	if (v->self) { /* in its turn */
		b->failed = b->failed || !copy_here(from, n, (char *)(uintptr_t)at, len, last);
		return true;
	}
	memcpy(&b->own[b->n_own], from, n * sizeof(*from));
	b->n_own += n;
	if (last && end->iov_len > 1) {
		b->own[b->n_own++] = (struct iovec) { (char *)end->iov_base + end->iov_len - 1, 1 };
		end->iov_len--;
	}
	b->peer[b->n_peer++] = (struct iovec) { (void *)(uintptr_t)at, len };
	b->len += len;
	return true;
}

bool view_write(struct view *v, struct view_batch *b)
{
	int saved = errno;
	bool good;

	if (v->self)
		return !b->failed;
	good = done(v, process_vm_writev(v->pid, b->own, b->n_own, b->peer, b->n_peer, 0), b->len);
	errno = saved;
	return good;
}

bool view_read(struct view *v, const struct iovec *into, uint32_t n, uint64_t at, size_t len)
{
	struct iovec own[VIEW_PIECES + 1], peer[2];
	uint64_t token = 0;
	int saved = errno;
	bool good;

	if (v->self) {
		const char *from = (const char *)(uintptr_t)at;

		for (uint32_t i = 0; i < n; from += into[i++].iov_len) {
			if (into[i].iov_len &&
			    umem_write_guarded(into[i].iov_base, from, into[i].iov_len))
				return false;
			__atomic_thread_fence(__ATOMIC_RELEASE); /* the last piece of a Write */
		}
		return true;
	}
	own[0] = (struct iovec) { &token, sizeof(token) };
	memcpy(own + 1, into, n * sizeof(*into));
	peer[0] = (struct iovec) { (void *)(uintptr_t)v->guard, sizeof(token) };
	peer[1] = (struct iovec) { (void *)(uintptr_t)at, len };
	good = done(v, process_vm_readv(v->pid, own, n + 1, peer, 2, 0), sizeof(token) + len) &&
	       token == v->token;
	errno = saved;
	return good;
}
