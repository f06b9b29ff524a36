/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stage.h"

#define SETTLE_US 5000000
#define WARM      64

#define CLEAR 8 /* octets that are not at two places of a stream */
#define NEAR  (8 << 20)

static int bads;

/* ---- random numbers ---- */

uint64_t random_next(struct random *r)
{
	uint64_t x = r->state += 0x9e3779b97f4a7c15;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

uint32_t random_below(struct random *r, uint32_t limit)
{
	return (uint32_t)(random_next(r) >> 32) % limit;
}

uint32_t random_size(struct random *r, uint32_t min, uint32_t max)
{
	uint32_t span = max - min;
	unsigned bits = 0;

	while (bits < 31 && span >> bits)
		bits++;
	span = random_below(r, 1u << random_below(r, bits + 1));
	return span > max - min ? max : min + span;
}

/* ---- the stream ---- */

static inline uint8_t octet(uint64_t key, uint64_t at)
{
	uint64_t x = (at >> 3) * 0x9e3779b97f4a7c15 + key;

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93;
	return (uint8_t)((x ^ x >> 32) >> 8 * (at & 7));
}

void flow_fill(const struct flow *f, uint8_t *to, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[i] = octet(f->key, f->at + i);
}

size_t flow_match(const struct flow *f, const uint8_t *from, size_t n)
{
	size_t i = 0;

	while (i < n && from[i] == octet(f->key, f->at + i))
		i++;
	return i;
}

/* ---- report ---- */

static void report(const struct stage *s, const char *mark, const char *format, va_list args)
{
	char line[600];
	int n = snprintf(line, sizeof(line), "%c %s", s->name, mark);

	n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
	if (n > (int)sizeof(line) - 2)
		n = sizeof(line) - 2;
	line[n++] = '\n';
	if (write(1, line, (size_t)n) != n)
		_exit(3);
}

void stage_say(const struct stage *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	report(s, "", format, args);
	va_end(args);
}

void stage_bad(const struct stage *s, const char *format, ...)
{
	va_list args;

	bads++;
	va_start(args, format);
	report(s, "BAD ", format, args);
	va_end(args);
}

void stage_die(const struct stage *s, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	report(s, "BAD broken off: ", format, args);
	va_end(args);
	_exit(2);
}

const char *stage_errno(int err)
{
	return err ? strerrorname_np(err) : "0";
}

int stage_bads(void)
{
	return bads;
}

/* ---- the two processes ---- */

int stage_listen(int family, int backlog)
{
	struct sockaddr_in v4 = { .sin_family = AF_INET };
	struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

	v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd < 0 ||
	    (family == AF_INET6 ? bind(fd, (struct sockaddr *)&v6, sizeof(v6))
				: bind(fd, (struct sockaddr *)&v4, sizeof(v4))) ||
	    listen(fd, backlog)) {
		perror("listen");
		exit(2);
	}
	return fd;
}

int stage_dial(int listener)
{
	struct sockaddr_storage at;
	socklen_t len = sizeof(at);
	int fd;

	if (getsockname(listener, (struct sockaddr *)&at, &len))
		return -1;
	fd = socket(at.ss_family, SOCK_STREAM, 0);
	if (fd < 0)
		return -1;
	if (connect(fd, (struct sockaddr *)&at, len)) {
		close(fd);
		return -1;
	}
	return fd;
}

int stage_split(struct stage *s)
{
	int ctl[2];

	memset(s, 0, sizeof(*s));
	s->fd = -1;
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ctl)) {
		perror("socketpair");
		exit(2);
	}
	s->other = fork();
	if (s->other < 0) {
		perror("fork");
		exit(2);
	}
	s->side = s->other == 0;
	s->name = "AB"[s->side];
	s->ctl = ctl[s->side];
	close(ctl[!s->side]);
	if (s->side)
		s->other = getppid();
	return s->side;
}

void stage_connect(struct stage *s, int listener, uint64_t seed)
{
	s->out = (struct flow) { .key = seed * 2 + (uint64_t)s->side };
	s->in = (struct flow) { .key = seed * 2 + (uint64_t)!s->side };
	s->fd = s->side ? stage_dial(listener) : accept(listener, NULL, NULL);
	if (s->fd < 0)
		stage_die(s, "no connection: %s", strerror(errno));
}

uint64_t stage_meet(struct stage *s, uint64_t word)
{
	uint64_t theirs;
	char *at = (char *)&theirs;
	size_t left = sizeof(theirs);
	ssize_t n;

	if (send(s->ctl, &word, sizeof(word), MSG_NOSIGNAL) != sizeof(word))
		stage_die(s, "the other process is gone");
	while (left) {
		n = read(s->ctl, at, left);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			stage_die(s, "the other process is gone");
		at += n;
		left -= (size_t)n;
	}
	return theirs;
}

void stage_warm(struct stage *s, int turns)
{
	for (int i = 0; i < turns; i++) {
		if (s->side) {
			stage_send(s, WARM);
			stage_recv(s, WARM);
		} else {
			stage_recv(s, WARM);
			stage_send(s, WARM);
		}
	}
}

int stage_join(struct stage *s)
{
	int status;

	while (waitpid(s->other, &status, 0) < 0)
		if (errno != EINTR)
			return -1;
	return status;
}

/* ---- the stream, simply ---- */

void stage_send(struct stage *s, size_t n)
{
	static uint8_t buffer[1 << 16];
	size_t len;
	ssize_t sent;

	while (n) {
		len = n < sizeof(buffer) ? n : sizeof(buffer);
		flow_fill(&s->out, buffer, len);
		sent = send(s->fd, buffer, len, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0)
			stage_die(s, "send at %llu: %s", (unsigned long long)s->out.at,
				  strerror(errno));
		s->out.at += (size_t)sent;
		n -= (size_t)sent;
	}
}

/* Where in the stream are octets that came at the wrong place? Says a lot about why. */
static long long find_home(const struct flow *f, const uint8_t *data, size_t n)
{
	struct flow at = *f;

	if (n < CLEAR)
		return -1;
	for (uint64_t distance = 0; distance < NEAR; distance++) {
		at.at = f->at + distance;
		if (flow_match(&at, data, CLEAR) == CLEAR)
			return (long long)at.at;
		at.at = f->at - distance;
		if (distance <= f->at && flow_match(&at, data, CLEAR) == CLEAR)
			return (long long)at.at;
	}
	return -1;
}

void stage_took(struct stage *s, const uint8_t *data, size_t n)
{
	size_t good = flow_match(&s->in, data, n);
	struct flow wrong = s->in;

	wrong.at += good;
	if (good < n)
		stage_bad(
			s,
			"a foreign octet %02x at %llu of the stream; belongs to %lld (%zu of %zu read)",
			data[good], (unsigned long long)wrong.at,
			find_home(&wrong, data + good, n - good), good, n);
	s->in.at += n;
}

size_t stage_recv(struct stage *s, size_t n)
{
	static uint8_t buffer[1 << 16];
	size_t got = 0;
	ssize_t len;

	while (got < n) {
		len = recv(s->fd, buffer, n - got < sizeof(buffer) ? n - got : sizeof(buffer), 0);
		if (len < 0 && errno == EINTR)
			continue;
		if (len <= 0) {
			stage_bad(s, "%zu octets of %zu at %llu, then %s", got, n,
				  (unsigned long long)s->in.at, len ? stage_errno(errno) : "end");
			break;
		}
		stage_took(s, buffer, (size_t)len);
		got += (size_t)len;
	}
	return got;
}

void stage_settle(struct stage *s, size_t n)
{
	uint64_t end = stage_now() + SETTLE_US;
	int there = -1;

	for (;;) {
		if (ioctl(s->fd, FIONREAD, &there))
			stage_die(s, "FIONREAD: %s", strerror(errno));
		if ((size_t)there == n)
			return;
		if (stage_now() > end)
			break;
		stage_nap(200);
	}
	stage_bad(s, "FIONREAD says %d and not %zu", there, n);
}

void stage_nap(unsigned microseconds)
{
	struct timespec t = { microseconds / 1000000, (long)(microseconds % 1000000) * 1000 };

	while (microseconds && nanosleep(&t, &t) && errno == EINTR)
		;
}

uint64_t stage_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t stage_tick(void)
{
	struct timespec tick = { 0 };

	clock_getres(CLOCK_MONOTONIC_COARSE, &tick);
	return (uint64_t)tick.tv_nsec / 1000;
}
