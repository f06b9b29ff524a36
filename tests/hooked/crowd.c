/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/util.h"
#include "hooked/crowd.h"

#define BADS_TOLD 10
#define WAIT_MS   200

static uint64_t seed = 1;
static uint64_t end; /* microseconds */
static _Atomic uint64_t callers;
static _Atomic uint32_t bads;
static struct {
	const char *what;
	uint64_t n;
} did[16];
static pthread_mutex_t did_lock = PTHREAD_MUTEX_INITIALIZER;

struct random crowd_random(void)
{
	struct random r = { seed ^ (atomic_fetch_add(&callers, 1) << 32) };

	random_next(&r);
	return r;
}

bool crowd_over(void)
{
	return stage_now() >= end || atomic_load(&bads) >= BADS_TOLD;
}

void crowd_bad(const char *format, ...)
{
	char line[500];
	va_list args;
	int n;

	if (atomic_fetch_add(&bads, 1) >= BADS_TOLD)
		return;
	va_start(args, format);
	n = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	n = min_size((size_t)n, sizeof(line) - 2);
	fprintf(stdout, "BAD %.*s\n", n, line);
	fflush(stdout);
}

void crowd_did(const char *what, uint64_t n)
{
	size_t i = 0;

	pthread_mutex_lock(&did_lock);
	while (i < ARRAY_SIZE(did) - 1 && did[i].what && strcmp(did[i].what, what) != 0)
		i++;
	did[i].what = what;
	did[i].n += n;
	pthread_mutex_unlock(&did_lock);
}

void crowd_nap(struct random *r, uint32_t most_us)
{
	stage_nap(random_below(r, most_us + 1));
}

pthread_t crowd_start(void *(*run)(void *arg), void *arg)
{
	pthread_t thread;
	int rc = pthread_create(&thread, NULL, run, arg);

	if (rc != 0) {
		fprintf(stderr, "pthread_create: %s\n", strerror(rc));
		exit(2);
	}
	return thread;
}

void crowd_join(pthread_t thread)
{
	pthread_join(thread, NULL);
}

void crowd_pair(int listener, int fd[2])
{
	fd[0] = stage_dial(listener);
	fd[1] = fd[0] < 0 ? -1 : accept(listener, NULL, NULL);
	if (fd[1] < 0) {
		fprintf(stderr, "no connection: %s\n", strerror(errno));
		exit(2);
	}
}

void crowd_warm(const int fd[2], int turns)
{
	uint8_t octets[64] = { 0 };

	for (int i = 0; i < turns; i++)
		for (int k = 0; k < 2; k++)
			if (send(fd[k], octets, sizeof(octets), MSG_NOSIGNAL) != sizeof(octets) ||
			    recv(fd[!k], octets, sizeof(octets), MSG_WAITALL) != sizeof(octets))
				crowd_bad("warming up: %s", stage_errno(errno));
}

void crowd_set_nonblocking(int fd)
{
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static void wait_in_set(int fd, short events)
{
	struct epoll_event event = { .events = (uint32_t)events };
	int set = epoll_create1(EPOLL_CLOEXEC);

	if (set < 0)
		return;
	if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0)
		epoll_wait(set, &event, 1, WAIT_MS);
	close(set);
}

void crowd_wait(struct random *r, int fd, short events)
{
	struct pollfd p = { .fd = fd, .events = events };
	const struct timespec limit = { .tv_nsec = WAIT_MS * 1000000l };
	struct timeval left = { .tv_usec = WAIT_MS * 1000l };
	fd_set set;

	switch (random_below(r, 4)) {
	case 0: poll(&p, 1, WAIT_MS); return;
	case 1: ppoll(&p, 1, &limit, NULL); return;
	case 2:
		if (fd >= FD_SETSIZE)
			return;
		FD_ZERO(&set);
		FD_SET(fd, &set);
		select(fd + 1, events & POLLIN ? &set : NULL, events & POLLOUT ? &set : NULL, NULL,
		       &left);
		return;
	default: wait_in_set(fd, events);
	}
}

ssize_t crowd_put(struct random *r, int fd, const void *from, size_t n, int flags)
{
	size_t half = n / 2;
	struct iovec iov[2] = { { (void *)from, half }, { (char *)from + half, n - half } };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 2 } };

	flags |= MSG_NOSIGNAL;
	/* Those without flags block as the descriptor does. */
	switch (random_below(r, flags & MSG_DONTWAIT ? 5 : 8)) {
	case 0: return send(fd, from, n, flags);
	case 1: return sendto(fd, from, n, flags, NULL, 0);
	case 2: return sendmsg(fd, &m.msg_hdr, flags);
	case 3: return sendmmsg(fd, &m, 1, flags) == 1 ? (ssize_t)m.msg_len : -1;
	case 4: return syscall(SYS_sendto, fd, from, n, flags, NULL, 0);
	case 5: return write(fd, from, n);
	case 6: return writev(fd, iov, 2);
	default: return syscall(SYS_write, fd, from, n);
	}
}

ssize_t crowd_take(struct random *r, int fd, void *to, size_t n, int flags)
{
	size_t half = n / 2;
	struct iovec iov[2] = { { to, half }, { (char *)to + half, n - half } };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = iov, .msg_iovlen = 2 } };

	switch (random_below(r, flags & MSG_DONTWAIT ? 5 : 8)) {
	case 0: return recv(fd, to, n, flags);
	case 1: return recvfrom(fd, to, n, flags, NULL, NULL);
	case 2: return recvmsg(fd, &m.msg_hdr, flags);
	case 3: return recvmmsg(fd, &m, 1, flags, NULL) == 1 ? (ssize_t)m.msg_len : -1;
	case 4: return syscall(SYS_recvfrom, fd, to, n, flags, NULL, NULL);
	case 5: return read(fd, to, n);
	case 6: return readv(fd, iov, 2);
	default: return syscall(SYS_read, fd, to, n);
	}
}

void *crowd_sender(void *arg)
{
	const struct way *w = arg;
	struct flow flow = { .key = w->key };
	struct random r = crowd_random();
	uint8_t *buffer = malloc(CROWD_BUFFER);
	ssize_t n;

	while (buffer && flow.at < w->total) {
		size_t size = min_size(random_size(&r, 1, CROWD_BUFFER), w->total - flow.at);

		if (w->polite)
			crowd_wait(&r, w->from, POLLOUT);
		flow_fill(&flow, buffer, size);
		n = crowd_put(&r, w->from, buffer, size, w->flags);
		if (n > 0) {
			flow.at += (size_t)n;
		} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
			crowd_bad("send at %llu of %llu: %s", (unsigned long long)flow.at,
				  (unsigned long long)w->total, n ? stage_errno(errno) : "0");
			break;
		} else {
			crowd_wait(&r, w->from, POLLOUT);
		}
	}
	crowd_did("octets sent", flow.at);
	free(buffer);
	return NULL;
}

void *crowd_receiver(void *arg)
{
	const struct way *w = arg;
	struct flow flow = { .key = w->key };
	struct random r = crowd_random();
	uint8_t *buffer = malloc(CROWD_BUFFER);
	size_t good;
	ssize_t n;

	while (buffer && flow.at < w->total) {
		if (w->polite)
			crowd_wait(&r, w->to, POLLIN);
		n = crowd_take(&r, w->to, buffer, random_size(&r, 1, CROWD_BUFFER), w->flags);
		if (n > 0) {
			good = flow_match(&flow, buffer, (size_t)n);
			if (good < (size_t)n) {
				crowd_bad("a foreign octet %02x at %llu", buffer[good],
					  (unsigned long long)(flow.at + good));
				break;
			}
			flow.at += (size_t)n;
		} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
			crowd_bad("receive at %llu of %llu: %s", (unsigned long long)flow.at,
				  (unsigned long long)w->total, n ? stage_errno(errno) : "end");
			break;
		} else {
			crowd_wait(&r, w->to, POLLIN);
		}
	}
	free(buffer);
	return NULL;
}

static const struct scene *find_scene(const char *name)
{
	const struct scene *s = scenes;

	while (s->name && strcmp(s->name, name) != 0)
		s++;
	return s->name ? s : NULL;
}

int main(int argc, char **argv)
{
	const struct scene *scene = argc > 1 ? find_scene(argv[1]) : NULL;
	double seconds = argc > 2 ? atof(argv[2]) : 5;

	if (!scene) {
		fprintf(stderr, "usage: crowd SCENE [SECONDS [SEED]]; scenes:");
		for (const struct scene *s = scenes; s->name; s++)
			fprintf(stderr, " %s", s->name);
		fprintf(stderr, "\n");
		return 2;
	}
	if (argc > 3)
		seed = strtoull(argv[3], NULL, 0);
	signal(SIGPIPE, SIG_IGN);
	end = stage_now() + (uint64_t)(seconds * 1e6);
	scene->play();
	for (size_t i = 0; i < ARRAY_SIZE(did) && did[i].what; i++)
		printf("%s: %llu\n", did[i].what, (unsigned long long)did[i].n);
	return atomic_load(&bads) ? 1 : 0;
}
