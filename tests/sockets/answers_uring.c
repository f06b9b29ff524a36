/* SPDX-License-Identifier: MIT */
/* Rings that carry all kinds of requests for connections, sets and descriptors, beside ordinary calls. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "answers.h"
#include "stage.h"

#ifndef IORING_SETUP_NO_SQARRAY
#define IORING_SETUP_NO_SQARRAY (1u << 16)
#endif

#define ENTRIES 8
#define LATE_MS 10000

static int a, b; /* the ends of a connection */

static struct ring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	char *requests;
	struct io_uring_cqe *results;
	unsigned shift;
} ring;

static int open_ring(struct ring *r, unsigned flags)
{
	struct io_uring_params p = { .flags = flags };
	size_t size;
	char *at;

	r->fd = (int)syscall(SYS_io_uring_setup, ENTRIES, &p);
	if (r->fd < 0)
		return -1;
	r->shift = flags & IORING_SETUP_SQE128 ? 7 : 6;
	/* Both queues are in one mapping on every kernel since 5.4. */
	size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
	if (p.sq_off.array + p.sq_entries * sizeof(unsigned) > size)
		size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
	at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, r->fd, IORING_OFF_SQ_RING);
	r->requests = mmap(NULL, (size_t)p.sq_entries << r->shift, PROT_READ | PROT_WRITE,
			   MAP_SHARED, r->fd, IORING_OFF_SQES);
	if (at == MAP_FAILED || (void *)r->requests == MAP_FAILED)
		answer_broken("mmap");
	r->sq_tail = (unsigned *)(void *)(at + p.sq_off.tail);
	r->sq_mask = (unsigned *)(void *)(at + p.sq_off.ring_mask);
	r->sq_array = flags & IORING_SETUP_NO_SQARRAY ? NULL
						      : (unsigned *)(void *)(at + p.sq_off.array);
	r->cq_head = (unsigned *)(void *)(at + p.cq_off.head);
	r->cq_tail = (unsigned *)(void *)(at + p.cq_off.tail);
	r->cq_mask = (unsigned *)(void *)(at + p.cq_off.ring_mask);
	r->results = (struct io_uring_cqe *)(void *)(at + p.cq_off.cqes);
	return 0;
}

/* In the queue, but not yet with the kernel. Entries are used backwards, to make their order and their places differ. */
static void put(struct ring *r, struct io_uring_sqe e)
{
	unsigned tail = *r->sq_tail, at = tail & *r->sq_mask;
	unsigned place = r->sq_array ? *r->sq_mask - at : at;

	*(struct io_uring_sqe *)(void *)(r->requests + ((size_t)place << r->shift)) = e;
	if (r->sq_array)
		r->sq_array[at] = place;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void submit(struct ring *r, unsigned n)
{
	while (syscall(SYS_io_uring_enter, r->fd, n, n, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
		if (errno != EINTR)
			answer_broken("io_uring_enter");
}

/* The next result, and whose it is. */
static int result(struct ring *r, uint64_t *whose)
{
	unsigned head = *r->cq_head;
	int n;

	while (__atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE) == head)
		;
	n = r->results[head & *r->cq_mask].res;
	if (whose)
		*whose = r->results[head & *r->cq_mask].user_data;
	__atomic_store_n(r->cq_head, head + 1, __ATOMIC_RELEASE);
	return n;
}

static const char *name(int n)
{
	errno = n < 0 ? -n : 0;
	return answer_of(n);
}

static int do_one(struct ring *r, struct io_uring_sqe e)
{
	put(r, e);
	submit(r, 1);
	return result(r, NULL);
}

static void connect_pair(void)
{
	int ends[2];

	answer_warm_pair(ends);
	a = ends[0];
	b = ends[1];
}

static void begin(unsigned flags)
{
	if (open_ring(&ring, flags) != 0) {
		answer("no such ring: %s", stage_errno(errno));
		_exit(0);
	}
	connect_pair();
}

/* ---- sets ---- */

static struct io_uring_sqe change(int set, int op, int fd, struct epoll_event *event)
{
	return (struct io_uring_sqe) { .opcode = IORING_OP_EPOLL_CTL,
				       .fd = set,
				       .len = (unsigned)op,
				       .off = (uint64_t)fd,
				       .addr = (uintptr_t)event };
}

static void wait_in(int set)
{
	struct epoll_event event = { 0 };
	int n = epoll_wait(set, &event, 1, LATE_MS);

	answer("%s, %x of %d", answer_of(n), event.events, event.data.fd);
}

static void sets_with(unsigned flags)
{
	struct epoll_event one = { .events = EPOLLIN, .data.fd = 1 };
	struct epoll_event two = { .events = EPOLLIN, .data.fd = 2 };
	int set = epoll_create1(0), pipes[2], ends[2];
	uint64_t whose = 0;

	begin(flags);
	if (pipe(pipes))
		answer_broken("pipe");
	answer("add %s", name(do_one(&ring, change(set, EPOLL_CTL_ADD, b, &one))));
	answer("again %s", name(do_one(&ring, change(set, EPOLL_CTL_ADD, b, &one))));
	answer("a pipe %s", name(do_one(&ring, change(set, EPOLL_CTL_ADD, pipes[0], &two))));
	answer("nothing %s", name(do_one(&ring, change(set, EPOLL_CTL_ADD, -1, &two))));
	answer("no set %s", name(do_one(&ring, change(b, EPOLL_CTL_ADD, b, &two))));
	answer("no event %s", name(do_one(&ring, change(set, EPOLL_CTL_ADD, a, NULL))));
	answer_soon(a, "hello");
	wait_in(set);
	answer("came %s", answer_read(b, 5));
	answer_soon(a, "more");
	one.data.fd = 3;
	answer("change %s", name(do_one(&ring, change(set, EPOLL_CTL_MOD, b, &one))));
	wait_in(set);
	answer("came %s", answer_read(b, 4));
	answer("out %s", name(do_one(&ring, change(set, EPOLL_CTL_DEL, b, NULL))));
	answer("again %s", name(do_one(&ring, change(set, EPOLL_CTL_DEL, b, NULL))));
	answer("change %s", name(do_one(&ring, change(set, EPOLL_CTL_MOD, b, &one))));
	if (send(a, "x", 1, 0) != 1 || write(pipes[1], "x", 1) != 1)
		answer_broken("send");
	wait_in(set);
	/* Several at once; each result is known by its owner. */
	answer_warm_pair(ends);
	for (int i = 0; i < 3; i++) {
		struct io_uring_sqe e = change(set, EPOLL_CTL_ADD,
					       i == 0   ? b
					       : i == 1 ? ends[1]
							: pipes[0],
					       &one);

		e.user_data = (uint64_t)i + 10;
		put(&ring, e);
	}
	submit(&ring, 3);
	for (int i = 0; i < 3; i++) {
		int n = result(&ring, &whose);

		answer("%d: %s", (int)whose, name(n));
	}
	close(pipes[0]);
	answer("came %s", answer_read(b, 1));
	answer_soon(ends[0], "other");
	wait_in(set);
	answer("came %s", answer_read(ends[1], 5));
}

static void sets(void)
{
	sets_with(0);
}

static void sets_in_order(void)
{
	sets_with(IORING_SETUP_NO_SQARRAY);
}

static void sets_in_large_entries(void)
{
	sets_with(IORING_SETUP_SQE128);
}

/* The ring itself waits for a set. */
static void ring_polls_set(void)
{
	struct epoll_event one = { .events = EPOLLIN, .data.fd = 1 };
	struct io_uring_sqe e = { .opcode = IORING_OP_POLL_ADD, .poll32_events = POLLIN };
	int set = epoll_create1(0);

	begin(0);
	epoll_ctl(set, EPOLL_CTL_ADD, b, &one);
	e.fd = set;
	answer_soon(a, "hello");
	answer("poll %s", name(do_one(&ring, e)));
	wait_in(set);
	answer("came %s", answer_read(b, 5));
}

/* ---- octets ---- */

static struct io_uring_sqe move(int op, int fd, const void *octets, size_t n)
{
	return (struct io_uring_sqe) {
		.opcode = (uint8_t)op, .fd = fd, .addr = (uintptr_t)octets, .len = (unsigned)n
	};
}

static void octets(void)
{
	struct iovec iov = { (void *)"vec", 3 };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	char in[8] = "";

	begin(0);
	send(a, "A", 1, 0);
	answer("send %s", name(do_one(&ring, move(IORING_OP_SEND, a, "ring", 4))));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 6));
	send(a, "unread", 6, 0);
	answer("recv %s", name(do_one(&ring, move(IORING_OP_RECV, b, in, 4))));
	answer("%s", in);
	answer("rest %s", answer_read(b, 2));
	answer("writev %s", name(do_one(&ring, move(IORING_OP_WRITEV, b, &iov, 1))));
	answer("sendmsg %s", name(do_one(&ring, move(IORING_OP_SENDMSG, b, &msg, 1))));
	answer("came %s", answer_read(a, 6));
}

/* By the number that the ring has for it. */
static void registered(void)
{
	struct io_uring_sqe e = move(IORING_OP_SEND, 1, "fixed", 5);
	int fds[2];

	begin(0);
	fds[0] = b;
	fds[1] = a;
	send(a, "before", 6, 0);
	answer("register %s",
	       answer_of(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, fds, 2)));
	e.flags = IOSQE_FIXED_FILE;
	answer("send %s", name(do_one(&ring, e)));
	send(a, "after", 5, 0);
	answer("came %s", answer_read(b, 16));
}

static void register_later(void)
{
	struct io_uring_sqe e = move(IORING_OP_SEND, 0, "fixed", 5);
	struct io_uring_files_update update = { 0 };
	int fds[1] = { -1 };

	begin(0);
	answer("register %s",
	       answer_of(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, fds, 1)));
	fds[0] = a;
	update.fds = (uintptr_t)fds;
	answer("update %s", answer_of(syscall(SYS_io_uring_register, ring.fd,
					      IORING_REGISTER_FILES_UPDATE, &update, 1)));
	send(a, "A", 1, 0);
	e.flags = IOSQE_FIXED_FILE;
	answer("send %s", name(do_one(&ring, e)));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 7));
}

static void register_by_request(void)
{
	struct io_uring_sqe e = move(IORING_OP_SEND, 0, "fixed", 5);
	int fds[1] = { -1 };

	begin(0);
	syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_FILES, fds, 1);
	fds[0] = a;
	answer("update %s", name(do_one(&ring, move(IORING_OP_FILES_UPDATE, -1, fds, 1))));
	send(a, "A", 1, 0);
	e.flags = IOSQE_FIXED_FILE;
	answer("send %s", name(do_one(&ring, e)));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 7));
}

/* ---- descriptors ---- */

static void closed_by_ring(void)
{
	char octet;
	int file, number;

	begin(0);
	number = a;
	send(a, "last", 4, 0);
	answer("close %s", name(do_one(&ring, move(IORING_OP_CLOSE, a, NULL, 0))));
	answer("came %s", answer_read(b, 4));
	answer("end %s", answer_of(recv(b, &octet, 1, 0)));
	file = memfd_create("file", 0);
	answer("same number %d", file == number);
	answer("write %s", answer_of(write(file, "file", 4)));
	answer("read %s", answer_of(pread(file, &octet, 1, 3)));
}

/* Another ring takes the number of one that was closed. */
static void rings_come_and_go(void)
{
	struct ring other;

	begin(0);
	for (int i = 0; i < 100; i++) {
		if (open_ring(&other, 0) != 0)
			answer_broken("io_uring_setup");
		if (do_one(&other, (struct io_uring_sqe) { .opcode = IORING_OP_NOP }) != 0)
			answer_broken("nothing failed");
		close(other.fd);
	}
	answer("went on: %s", name(do_one(&ring, move(IORING_OP_SEND, a, "ring", 4))));
	answer("came %s", answer_read(b, 4));
}

/* A child of fork() has the ring as well, and closes it. */
static void inherited(void)
{
	begin(0);
	if (fork() == 0) {
		close(ring.fd);
		_exit(0);
	}
	wait(NULL);
	send(a, "A", 1, 0);
	answer("send %s", name(do_one(&ring, move(IORING_OP_SEND, a, "ring", 4))));
	answer("came %s", answer_read(b, 5));
}

/* The descriptor of a ring has a copy, and the requests go in by that. */
static void copied(void)
{
	begin(0);
	ring.fd = dup(ring.fd);
	send(a, "A", 1, 0);
	answer("send %s", name(do_one(&ring, move(IORING_OP_SEND, a, "ring", 4))));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 6));
}

/* ---- liburing, as far as it is needed here ---- */

struct liburing {
	char before_cq[104];
	unsigned *cq_head;
	char rest[400];
};

static struct {
	int (*init)(unsigned n, struct liburing *r, unsigned flags);
	struct io_uring_sqe *(*get)(struct liburing *r);
	int (*submit)(struct liburing *r);
	int (*submit_and_wait)(struct liburing *r, unsigned n);
	int (*wait)(struct liburing *r, struct io_uring_cqe **c, unsigned n, void *t, void *mask);
	int (*files)(struct liburing *r, const int *fds, unsigned n);
} lib;

/* As a program would find them that is linked with it. */
static int load_library(void)
{
	if (!dlopen("liburing.so.2", RTLD_NOW | RTLD_GLOBAL))
		return -1;
	*(void **)&lib.init = dlsym(RTLD_DEFAULT, "io_uring_queue_init");
	*(void **)&lib.get = dlsym(RTLD_DEFAULT, "io_uring_get_sqe");
	*(void **)&lib.submit = dlsym(RTLD_DEFAULT, "io_uring_submit");
	*(void **)&lib.submit_and_wait = dlsym(RTLD_DEFAULT, "io_uring_submit_and_wait");
	*(void **)&lib.wait = dlsym(RTLD_DEFAULT, "io_uring_wait_cqes");
	*(void **)&lib.files = dlsym(RTLD_DEFAULT, "io_uring_register_files");
	return lib.init && lib.get && lib.submit && lib.submit_and_wait && lib.wait && lib.files
		       ? 0
		       : -1;
}

static int do_by_library(struct liburing *r, struct io_uring_sqe e, bool at_once)
{
	struct io_uring_cqe *c = NULL;
	struct io_uring_sqe *to = lib.get(r);
	int n;

	if (!to)
		answer_broken("no room for a request");
	*to = e;
	n = at_once ? lib.submit_and_wait(r, 1) : lib.submit(r);
	if (n != 1 || lib.wait(r, &c, 1, NULL, NULL) != 0)
		answer_broken("submit");
	n = c->res;
	__atomic_store_n(r->cq_head, *r->cq_head + 1, __ATOMIC_RELEASE);
	return n;
}

static void library_with(unsigned flags)
{
	struct epoll_event one = { .events = EPOLLIN, .data.fd = 1 };
	struct io_uring_sqe fixed = move(IORING_OP_SEND, 0, "fixed", 5);
	int set = epoll_create1(0), n;
	struct liburing r;

	connect_pair();
	if (load_library() != 0) {
		answer("none here");
		return;
	}
	n = lib.init(8, &r, flags);
	answer("ring %s", name(n));
	if (n != 0)
		return;
	answer("add %s", name(do_by_library(&r, change(set, EPOLL_CTL_ADD, b, &one), true)));
	answer_soon(a, "hello");
	wait_in(set);
	answer("came %s", answer_read(b, 5));
	send(a, "A", 1, 0);
	answer("send %s", name(do_by_library(&r, move(IORING_OP_SEND, a, "ring", 4), true)));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 6));
	connect_pair();
	send(a, "A", 1, 0);
	answer("send %s", name(do_by_library(&r, move(IORING_OP_SEND, a, "ring", 4), false)));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 6));
	connect_pair();
	send(a, "A", 1, 0);
	answer("files %s", name(lib.files(&r, &a, 1)));
	fixed.flags = IOSQE_FIXED_FILE;
	answer("send %s", name(do_by_library(&r, fixed, true)));
	send(a, "B", 1, 0);
	answer("came %s", answer_read(b, 7));
}

static void library(void)
{
	library_with(0);
}

/* A thread of the kernel takes the requests. */
static void library_with_thread(void)
{
	library_with(IORING_SETUP_SQPOLL);
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "sets", sets },
		{ "sets, in order", sets_in_order },
		{ "sets, large entries", sets_in_large_entries },
		{ "ring polls set", ring_polls_set },
		{ "octets", octets },
		{ "registered", registered },
		{ "register later", register_later },
		{ "register by request", register_by_request },
		{ "closed by ring", closed_by_ring },
		{ "rings come and go", rings_come_and_go },
		{ "inherited", inherited },
		{ "copied", copied },
		{ "library", library },
		{ "library with a thread", library_with_thread },
	};
	struct ring r;

	(void)argc;
	if (fork() == 0)
		_exit(open_ring(&r, 0) == 0 ? 0 : 1);
	wait(&argc);
	if (argc != 0) {
		printf("A no io_uring here\n");
		return 77;
	}
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
