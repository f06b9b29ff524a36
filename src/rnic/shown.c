/* SPDX-License-Identifier: MIT */
#include "rnic/shown.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/own.h"
#include "base/space.h"
#include "base/sys.h"
#include "base/tsan.h"
#include "channel/duct.h"
#include "rnic/mem.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define PAGE  4096u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

/* Where the guard page may be: in the part of the address space that the kernel gives out last. */
#ifdef TSAN /* the sanitizer has that part for itself */
#define GUARD_LOW  0x7e8000000000ull
#define GUARD_BITS 39
#else
#define GUARD_LOW  0x100000000000ull
#define GUARD_BITS 44
#endif
#define GUARD_TRIES 16

/* Waiting for a claim: yields at first, for a step is short; then sleeps, and asks what has become of the peer. */
#define YIELDS      64
#define NAP_NS      200000
#define COMPLAIN_NS (NSEC_PER_SEC)
/* A peer that is not stopped has finished its step by then, on any machine; or it lies. */
#define LIAR_NS (10 * NSEC_PER_SEC)

/* ---- making ---- */

static struct guard_page *make_guard(void)
{
	for (int i = 0; i < GUARD_TRIES; i++) {
		uint64_t at;
		void *p;

		if (getrandom(&at, sizeof(at), GRND_NONBLOCK) != (ssize_t)sizeof(at))
			return NULL;
		at = GUARD_LOW + (at & ((1ull << GUARD_BITS) - 1) & ~(uint64_t)(PAGE - 1));
		p = mmap((void *)(uintptr_t)at, PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
		if (p == (void *)(uintptr_t)at && madvise(p, PAGE, MADV_DONTFORK) == 0)
			return p;
		if (p != MAP_FAILED)
			munmap(p, PAGE);
	}
	return NULL;
}

/* Peers can map it and read it; the mapping that is made before the seal stays ours to write. */
static int make_file(struct shown *s)
{
	struct stat st;
	int fd;

	if (!space_may_grow(sizeof(struct shown_file)))
		return -EFBIG;
	fd = own_new(memfd_create("flue-shown", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)sizeof(struct shown_file)) == 0 && fstat(fd, &st) == 0)
		s->file = space_map(fd, sizeof(struct shown_file));
	if (!s->file || madvise(s->file, sizeof(struct shown_file), MADV_DONTFORK) != 0 ||
	    sys_fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
		own_close(fd);
		return -ENOMEM;
	}
	s->dev = st.st_dev;
	s->ino = st.st_ino;
	s->fd = own_move(fd);
	return s->fd < 0 ? -EMFILE : 0;
}

static void give_back(struct shown *s)
{
	if (shown_fd(s) >= 0)
		sys_close(s->fd);
	if (s->file)
		space_unmap(s->file, sizeof(struct shown_file));
	if (s->guard)
		munmap(s->guard, PAGE);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

int shown_make(const struct slot_table *names, struct shown **out)
{
	struct shown *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return -ENOMEM;
	s->fd = -1;
	pthread_mutex_init(&s->lock, NULL);
	LIST_INIT(&s->claimants);
	s->guard = make_guard();
	rc = s->guard ? make_file(s) : -ENOMEM;
	if (rc) {
		give_back(s);
		return rc;
	}
	s->file->magic = SHOWN_MAGIC;
	s->file->guard = (uintptr_t)s->guard;
	memcpy(s->file->key, names->key, sizeof(s->file->key));
	if (getrandom(&s->file->token, sizeof(s->file->token), GRND_NONBLOCK) < 0)
		s->file->token = clock_now();
	s->guard->token = s->file->token;
	*out = s;
	return 0;
}

void shown_free(struct shown *s)
{
	if (s)
		give_back(s);
}

void shown_forked(struct shown *s)
{
	struct claimant *c;

	while ((c = LIST_FIRST(&s->claimants))) {
		LIST_REMOVE(c, all);
		free(c);
	}
	space_forget(sizeof(struct shown_file));
	s->file = NULL;
	s->guard = NULL;
	pthread_mutex_init(&s->lock, NULL);
	give_back(s);
}

int shown_fd(const struct shown *s)
{
	struct stat st;

	return s->fd >= 0 && fstat(s->fd, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino
		       ? s->fd
		       : -1;
}

/* ---- claims ---- */

struct claimant *shown_add_claimant(struct shown *s, struct duct *d, pid_t pid)
{
	struct claimant *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->duct = d;
	c->pid = pid;
	c->refs = 1;
	pthread_mutex_lock(&s->lock);
	LIST_INSERT_HEAD(&s->claimants, c, all);
	atomic_fetch_add(&s->n_claimants, 1);
	pthread_mutex_unlock(&s->lock);
	return c;
}

static void put_claimant(struct claimant *c)
{
	if (atomic_fetch_sub(&c->refs, 1) != 1)
		return;
	duct_close(c->duct);
	free(c);
}

void shown_remove_claimant(struct shown *s, struct claimant *c)
{
	pthread_mutex_lock(&s->lock);
	LIST_REMOVE(c, all);
	atomic_fetch_sub(&s->n_claimants, 1);
	pthread_mutex_unlock(&s->lock);
	put_claimant(c);
}

/* Is there another program behind its number? After an exec, or when the number was given out again. */
static bool is_another(const struct claimant *c)
{
	uint64_t token = 0;
	struct iovec to = { &token, sizeof(token) };
	struct iovec from = { (void *)(uintptr_t)atomic_load(&c->guard), sizeof(token) };
	ssize_t n;

	if (!from.iov_base)
		return false;
	n = process_vm_readv(c->pid, &to, 1, &from, 1, 0);
	if (n == (ssize_t)sizeof(token))
		return token != c->token;
	return n < 0 && errno == EFAULT;
}

/* Of all its threads: one may be in the middle of a step when the first has ended. */
static bool has_ended(pid_t pid)
{
	int fd = own_new((int)sys_call(SYS_pidfd_open, pid, 0));
	struct pollfd p = { .fd = fd, .events = POLLIN };
	bool ended;

	if (fd < 0)
		return errno == ESRCH;
	ended = sys_poll(&p, 1) == 1 && p.revents & POLLIN;
	own_close(fd);
	return ended;
}

static bool is_stopped(pid_t pid)
{
	char path[32], text[512];
	const char *state;
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = own_new(sys_open(path, O_RDONLY | O_CLOEXEC, 0));
	if (fd < 0)
		return false;
	n = sys_read(fd, text, sizeof(text) - 1);
	own_close(fd);
	text[n > 0 ? n : 0] = 0;
	state = strrchr(text, ')');
	return state && state[1] == ' ' && (state[2] == 'T' || state[2] == 't');
}

static bool claims(const struct claimant *c, uint64_t mask, uint64_t what)
{
	return (atomic_load(duct_peer_word(c->duct)) & mask) == what;
}

static void await(struct claimant *c, uint64_t mask, uint64_t what)
{
	uint64_t begun = 0, now, stopped = 0;
	bool complained = false;

	for (unsigned i = 0; claims(c, mask, what); i++) {
		if (i < YIELDS) {
			sched_yield();
			continue;
		}
		now = clock_now();
		begun = begun ? begun : now;
		if (atomic_load(&c->liar) || has_ended(c->pid) || is_another(c))
			return;
		if (now - begun > COMPLAIN_NS) {
			if (!complained)
				log_warn(
					rnic,
					"process %d holds memory that is being revoked; is it stopped?",
					(int)c->pid);
			complained = true;
			stopped = is_stopped(c->pid) ? now : stopped;
			if (now - (stopped ? stopped : begun) > LIAR_NS) {
				atomic_store(&c->liar, true);
				return;
			}
		}
		sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0,
			 &(struct timespec) { .tv_nsec = NAP_NS }, NULL);
	}
}

/* Until no peer claims `what`. */
static void await_all(struct shown *s, uint64_t mask, uint64_t what)
{
	struct claimant *c;

	if (!atomic_load(&s->n_claimants))
		return;
	do {
		pthread_mutex_lock(&s->lock);
		LIST_FOREACH(c, &s->claimants, all) {
			if (!atomic_load(&c->liar) && claims(c, mask, what))
				break;
		}
		if (c)
			atomic_fetch_add(&c->refs, 1);
		pthread_mutex_unlock(&s->lock);
		if (c) {
			await(c, mask, what);
			/* A dead one's word stays; nobody else writes it. */
			if (claims(c, mask, what))
				atomic_store(duct_peer_word(c->duct), 0);
			put_claimant(c);
		}
	} while (c);
	tsan_finds(s->ino);
}

/* ---- regions ---- */

void shown_put(struct shown *s, const struct mem *m, uint32_t stag)
{
	struct shown_region *r;

	if (!s || m->index >= SHOWN_REGIONS)
		return;
	r = &s->file->region[m->index];
	r->qpn = m->qpn;
	r->access = m->access;
	r->pd = (uintptr_t)m->pd;
	r->base = (uintptr_t)m->base;
	r->to = m->to;
	r->length = m->length;
	/* Partner: view_take(). */
	atomic_store(&r->live, stag);
}

void shown_take(struct shown *s, const struct mem *m, uint32_t stag)
{
	if (!s || m->index >= SHOWN_REGIONS)
		return;
	atomic_store(&s->file->region[m->index].live, 0);
	if (stag)
		await_all(s, UINT32_MAX, stag);
}

/* ---- gates ---- */

uint32_t shown_open_gate(struct shown *s, uint32_t circuit, const void *pd, uint32_t qpn,
			 uint32_t deny)
{
	struct shown_gate *g = NULL;
	uint32_t n = 0;

	pthread_mutex_lock(&s->lock);
	/* Gate 0 is none. A gate that is taken has a queue pair's protection domain. */
	for (uint32_t i = 0; i < SHOWN_GATES && !g && s->n_gates < SHOWN_GATES - 1; i++) {
		n = 1 + (s->next_gate + i) % (SHOWN_GATES - 1);
		if (!s->file->gate[n].pd)
			g = &s->file->gate[n];
	}
	if (g) {
		s->next_gate = n;
		s->n_gates++;
		g->pd = (uintptr_t)pd;
		g->qpn = qpn;
	}
	pthread_mutex_unlock(&s->lock);
	if (!g)
		return 0;
	shown_reopen_gate(s, n, circuit, deny);
	return n;
}

void shown_reopen_gate(struct shown *s, uint32_t gate, uint32_t circuit, uint32_t deny)
{
	s->file->gate[gate].deny = deny;
	atomic_store(&s->file->gate[gate].open, SHOWN_OPEN | circuit);
}

void shown_shut_gate(struct shown *s, uint32_t gate)
{
	atomic_store(&s->file->gate[gate].open, 0);
	await_all(s, ~(uint64_t)UINT32_MAX, (uint64_t)gate << 32);
}

void shown_give_gate(struct shown *s, uint32_t gate)
{
	pthread_mutex_lock(&s->lock);
	s->file->gate[gate].pd = 0;
	s->n_gates--;
	pthread_mutex_unlock(&s->lock);
}
