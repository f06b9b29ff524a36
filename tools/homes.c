/* SPDX-License-Identifier: MIT */
#include "homes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "peers.h"
#include "sockets/record/why.h"
#include "util.h"

#define LINK_TEXT "/memfd:" HOME_NAME
#define AT_ONCE   64 /* records read in one go */

/* One more element, zeroed, of the array that *array points to; NULL: no memory. */
static void *append(void *array, size_t *n, size_t size)
{
	char *base;

	memcpy(&base, array, sizeof(base)); /* whatever type it points to */
	if ((*n & (*n - 1)) == 0) {
		base = realloc(base, (*n ? 2 * *n : 1) * size);
		if (!base)
			return NULL;
		memcpy(array, &base, sizeof(base));
	}
	memset(base + *n * size, 0, size);
	return base + (*n)++ * size;
}

/* ---- one record ---- */

static void set_address(struct sockaddr_storage *out, uint8_t key[18],
			const struct sockaddr_in6 *address)
{
	struct sockaddr_in *in = (struct sockaddr_in *)out;

	memcpy(key, &address->sin6_addr, 16);
	memcpy(key + 16, &address->sin6_port, 2);
	if (IN6_IS_ADDR_V4MAPPED(&address->sin6_addr)) {
		in->sin_family = AF_INET;
		in->sin_port = address->sin6_port;
		memcpy(&in->sin_addr, address->sin6_addr.s6_addr + 12, 4);
	} else {
		memcpy(out, address, sizeof(*address));
		out->ss_family = AF_INET6;
	}
}

static void set_reason(struct homes_connection *c, const struct rec *r, const char *rules)
{
	const struct why_place place = { .uid = r->peer_uid, .rules = rules };

	c->reason = WHY_NONE;
	if (r->state == REC_POSTED) {
		c->why = "offered";
		c->sentence = "a lane is offered; the peer has not answered";
	} else if (r->state == REC_AGREED) {
		c->why = "changing";
		c->sentence = "the lane is there and will be used from the next call on";
	} else {
		c->reason = why_number(r->why);
		c->why = why_word(r->why);
		c->sentence = why_sentence(r->why);
		why_detail(c->detail, sizeof(c->detail), r->why, &place);
	}
}

const char *homes_reason(char *out, size_t size, const struct homes_connection *c)
{
	snprintf(out, size, "%s%s%s", c->sentence ? c->sentence : "", *c->detail ? ": " : "",
		 c->detail);
	return out;
}

static bool is_connection(const struct rec *r)
{
	return r->state >= REC_YOUNG && r->state <= REC_PLAIN && !(r->flags & REC_LISTEN) &&
	       r->end.peer.sin6_port;
}

static bool add_record(struct homes *h, size_t process, const struct rec *r, const char *rules)
{
	struct homes_connection *c;

	if (!is_connection(r))
		return true;
	c = append(&h->connections, &h->n_connections, sizeof(*c));
	if (!c)
		return false;
	c->process = process;
	c->other = HOMES_NONE;
	c->cookie = r->end.cookie;
	c->lane = r->state == REC_LANE;
	c->active = r->end.role == MEET_ACTIVE;
	set_address(&c->local, c->key, &r->end.self);
	set_address(&c->peer, c->key + 18, &r->end.peer);
	if (!c->lane)
		set_reason(c, r, rules);
	c->sent.lane_bytes = r->sent.lane_bytes;
	c->sent.messages = r->sent.calls;
	c->received.lane_bytes = r->received.lane_bytes;
	c->received.messages = r->received.calls;
	return true;
}

/* ---- one home ---- */

static bool makes_sense(const struct home *head, const struct stat *st)
{
	uint64_t size = sizeof(*head) + (uint64_t)head->records * sizeof(struct rec);

	return head->magic == HOME_MAGIC && head->version == HOME_VERSION &&
	       head->record_size == sizeof(struct rec) && head->records <= HOME_RECORDS &&
	       head->high <= head->records && (uint64_t)st->st_size >= size;
}

bool homes_each(int fd, const struct home *head, bool (*call)(const struct rec *r, void *arg),
		void *arg)
{
	struct rec *r = aligned_alloc(_Alignof(struct rec), AT_ONCE * sizeof(*r));
	uint32_t high = head->high;
	bool good = r != NULL;

	for (uint32_t at = 0; good && at < high; at += AT_ONCE) {
		size_t n = high - at < AT_ONCE ? high - at : AT_ONCE;
		off_t offset = (off_t)(offsetof(struct home, rec) + (size_t)at * sizeof(*r));
		ssize_t got = pread(fd, r, n * sizeof(*r), offset);

		if (got < (ssize_t)(n * sizeof(*r)))
			break;
		for (size_t i = 0; good && i < n; i++)
			good = call(&r[i], arg);
	}
	free(r);
	return good;
}

static void make_printable(char *text, size_t size)
{
	text[size - 1] = '\0';
	for (; *text; text++)
		*text = isprint((unsigned char)*text) ? *text : '?';
}

struct home *homes_head(int fd)
{
	struct home *head = aligned_alloc(_Alignof(struct home), sizeof(*head));
	struct stat st;

	if (head && !fstat(fd, &st) && S_ISREG(st.st_mode) &&
	    pread(fd, head, sizeof(*head), 0) == (ssize_t)sizeof(*head) && makes_sense(head, &st)) {
		make_printable(head->program, sizeof(head->program));
		make_printable(head->rules, sizeof(head->rules));
		if (!head->program[0])
			strcpy(head->program, "?");
		return head;
	}
	free(head);
	return NULL;
}

/* Children have the home of their parent until they make their own. */
static bool seen_before(struct homes *h, const struct stat *st, pid_t pid, pid_t owner)
{
	for (size_t i = 0; i < h->n_processes; i++) {
		struct homes_process *p = &h->processes[i];

		if (p->dev != st->st_dev || p->ino != st->st_ino)
			continue;
		if (pid == owner)
			p->pid = pid;
		return true;
	}
	return false;
}

struct adding {
	struct homes *homes;
	size_t process;
	const char *rules;
};

static bool add_one(const struct rec *r, void *arg)
{
	const struct adding *a = arg;

	return add_record(a->homes, a->process, r, a->rules);
}

bool homes_add(struct homes *h, int fd, pid_t pid)
{
	struct home *head = homes_head(fd);
	struct homes_process *p;
	struct stat st;
	bool good = true;

	if (!head || fstat(fd, &st)) {
		h->strange++;
	} else if (!seen_before(h, &st, pid, head->pid)) {
		p = append(&h->processes, &h->n_processes, sizeof(*p));
		good = p != NULL;
		if (p) {
			struct adding adding = { h, h->n_processes - 1, head->rules };

			p->pid = pid;
			p->dev = st.st_dev;
			p->ino = st.st_ino;
			p->connections = head->connections;
			p->lanes = head->lanes;
			p->stepdowns = head->stepdowns;
			strcpy(p->program, head->program);
			good = homes_each(fd, head, add_one, &adding);
		}
	}
	free(head);
	return good;
}

/* ---- all of them ---- */

static int by_key(const void *a, const void *b)
{
	const struct homes_connection *x = a, *y = b;
	int order = memcmp(x->key, y->key, sizeof(x->key));

	/* The same addresses may exist in several network namespaces. */
	return order ? order : (int)x->known - (int)y->known;
}

static void find_figures(struct homes *h, const struct diag *diag)
{
	for (size_t i = 0; i < h->n_connections; i++) {
		struct homes_connection *c = &h->connections[i];
		const struct diag_socket *s = diag_find(diag, c->cookie);

		if (!s)
			continue;
		c->known = true;
		c->sent.tcp_bytes = s->sent;
		c->received.tcp_bytes = s->received;
	}
}

void homes_finish(struct homes *h, const struct diag *diag)
{
	struct homes_connection key;

	find_figures(h, diag);
	if (h->n_connections)
		qsort(h->connections, h->n_connections, sizeof(key), by_key);
	for (size_t i = 0; i < h->n_connections; i++) {
		struct homes_connection *c = &h->connections[i];
		const struct homes_connection *other;

		memcpy(key.key, c->key + 18, 18);
		memcpy(key.key + 18, c->key, 18);
		key.known = c->known;
		other = homes_find(h, &key);
		if (other)
			c->other = (size_t)(other - h->connections);
	}
}

const struct homes_connection *homes_find(const struct homes *h,
					  const struct homes_connection *like)
{
	if (!h->n_connections)
		return NULL;
	return bsearch(like, h->connections, h->n_connections, sizeof(*like), by_key);
}

/* Descriptors of one process. A process may end at any moment, which is no fault. */
static bool read_process(struct homes *h, const char *pid)
{
	char path[300], text[64];
	DIR *dir;
	struct dirent *entry;
	bool good = true;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = opendir(path);
	while (dir && good && (entry = readdir(dir))) {
		ssize_t length;
		int fd;

		length = readlinkat(dirfd(dir), entry->d_name, text, sizeof(text) - 1);
		if (length < (ssize_t)strlen(LINK_TEXT) ||
		    strncmp(text, LINK_TEXT, strlen(LINK_TEXT)) != 0)
			continue;
		/* It may have become something else meanwhile, where open() would wait. */
		fd = openat(dirfd(dir), entry->d_name,
			    O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
		if (fd < 0)
			continue;
		good = homes_add(h, fd, (pid_t)atoi(pid));
		close(fd);
	}
	if (dir)
		closedir(dir);
	return good;
}

bool homes_read(struct homes *h, uid_t uid)
{
	DIR *dir = opendir("/proc");
	struct dirent *entry;
	struct diag diag;
	bool good = dir != NULL;

	memset(h, 0, sizeof(*h));
	while (good && (entry = readdir(dir))) {
		struct stat st;

		if (!isdigit((unsigned char)entry->d_name[0]) ||
		    fstatat(dirfd(dir), entry->d_name, &st, 0) || st.st_uid != uid)
			continue;
		good = read_process(h, entry->d_name);
	}
	if (dir)
		closedir(dir);
	if (!good) {
		homes_free(h);
		return false;
	}
	diag_read(&diag);
	homes_finish(h, &diag);
	peers_explain(h, &diag);
	diag_free(&diag);
	return true;
}

void homes_free(struct homes *h)
{
	free(h->connections);
	free(h->processes);
	memset(h, 0, sizeof(*h));
}
