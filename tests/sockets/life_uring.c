/* SPDX-License-Identifier: MIT */
/* io_uring, by its system calls, on a connection that also has been used by ordinary ones. */
#include <errno.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"

#define OCTETS 40000

enum {
	RING_FIRST, /* the process has a ring before it has a connection */
	RING_LATER,
	VECTORS, /* READV and WRITEV */
	POLLS,   /* readiness by the ring, octets by ordinary calls */
	KINDS
};

struct ring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static uint8_t buffer[OCTETS];

static int ring_open(struct ring *r)
{
	struct io_uring_params params = { 0 };
	char *rings;

	r->fd = (int)syscall(SYS_io_uring_setup, 4, &params);
	if (r->fd < 0)
		return -1;
	/* Both queues are in one mapping on every kernel since 5.4. */
	rings = mmap(NULL, params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe),
		     PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
	r->sqes = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe),
		       PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQES);
	if (rings == MAP_FAILED || (void *)r->sqes == MAP_FAILED)
		return -1;
	r->sq_tail = (unsigned *)(void *)(rings + params.sq_off.tail);
	r->sq_mask = (unsigned *)(void *)(rings + params.sq_off.ring_mask);
	r->sq_array = (unsigned *)(void *)(rings + params.sq_off.array);
	r->cq_head = (unsigned *)(void *)(rings + params.cq_off.head);
	r->cq_tail = (unsigned *)(void *)(rings + params.cq_off.tail);
	r->cq_mask = (unsigned *)(void *)(rings + params.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(void *)(rings + params.cq_off.cqes);
	return 0;
}

/* One operation, waited for; its result. */
static int ring_do(struct ring *r, const struct io_uring_sqe *what)
{
	unsigned tail = *r->sq_tail, at = tail & *r->sq_mask, head;
	int result;

	r->sqes[at] = *what;
	r->sq_array[at] = at;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
	while (syscall(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		if (errno != EINTR)
			return -errno;
	head = *r->cq_head;
	while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) == head)
		;
	result = r->cqes[head & *r->cq_mask].res;
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return result;
}

static int ring_move(struct life *l, struct ring *r, bool out, uint8_t *data, size_t n)
{
	struct iovec iov = { data, n };
	struct io_uring_sqe sqe = { .fd = l->st.fd, .addr = (uintptr_t)data, .len = (uint32_t)n };

	sqe.opcode = out ? IORING_OP_SEND : IORING_OP_RECV;
	if (l->kind == VECTORS) {
		sqe.opcode = out ? IORING_OP_WRITEV : IORING_OP_READV;
		sqe.addr = (uintptr_t)&iov;
		sqe.len = 1;
	}
	return ring_do(r, &sqe);
}

static void ring_send(struct life *l, struct ring *r, size_t n)
{
	int done;

	for (; n; n -= (size_t)done) {
		flow_fill(&l->st.out, buffer, n);
		done = ring_move(l, r, true, buffer, n);
		if (done <= 0)
			stage_die(&l->st, "send by the ring: %s", stage_errno(-done));
		l->st.out.at += (size_t)done;
	}
}

static void ring_recv(struct life *l, struct ring *r, size_t n)
{
	struct io_uring_sqe ask = { .opcode = IORING_OP_POLL_ADD, .fd = l->st.fd };
	int done;

	ask.poll32_events = POLLIN;
	for (; n; n -= (size_t)done) {
		if (l->kind == POLLS) {
			done = ring_do(r, &ask);
			if (!(done & POLLIN))
				stage_bad(&l->st, "the ring polls %d", done);
			done = (int)recv(l->st.fd, buffer, n, MSG_DONTWAIT);
		} else {
			done = ring_move(l, r, false, buffer, n);
		}
		if (done <= 0)
			stage_die(&l->st, "recv by the ring: %s",
				  stage_errno(l->kind == POLLS ? errno : -done));
		stage_took(&l->st, buffer, (size_t)done);
	}
}

static void play(struct life *l)
{
	struct ring r;

	if (l->kind == RING_FIRST && ring_open(&r))
		stage_die(&l->st, "no ring");
	life_begin(l);
	if (l->kind != RING_FIRST && ring_open(&r))
		stage_die(&l->st, "no ring");
	ring_recv(l, &r, l->pending);
	if (l->asleep) {
		ring_send(l, &r, 500);
		stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
	}
	for (int i = 0; i < 4; i++) {
		life_ask(l, LIFE_READS, OCTETS);
		ring_send(l, &r, OCTETS);
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
		life_ask(l, LIFE_SENDS, OCTETS);
		ring_recv(l, &r, OCTETS);
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	}
	life_calm(l);
	life_go_on(l);
	close(l->st.fd);
	close(r.fd);
	life_end(l);
}

int main(void)
{
	struct ring r;
	int status = 0;

	/* Asked by a child: this process must not have had a ring. */
	if (fork() == 0)
		_exit(ring_open(&r) ? errno : 0);
	wait(&status);
	if (status) {
		printf("A no io_uring here: %s\n", stage_errno(WEXITSTATUS(status)));
		return 77;
	}
	return life_main(play, KINDS, NULL);
}
