/* SPDX-License-Identifier: MIT */
#include "peers.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sockets/record/why.h"

/* A socket whose program is to be found. */
struct wanted {
	uint32_t inode;
	struct homes_connection *of;
};

static int by_inode(const void *a, const void *b)
{
	uint32_t x = ((const struct wanted *)a)->inode, y = ((const struct wanted *)b)->inode;

	return x < y ? -1 : x > y;
}

static void name_program(struct homes_connection *c, const char *pid)
{
	char path[300], name[64];
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%s/comm", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	length = fd >= 0 ? read(fd, name, sizeof(name) - 1) : -1;
	if (fd >= 0)
		close(fd);
	if (length <= 1)
		return;
	name[length - 1] = '\0'; /* the end of the line */
	for (char *at = name; *at; at++)
		*at = isprint((unsigned char)*at) ? *at : '?';
	if (c->reason == WHY_USER)
		snprintf(c->detail + strlen(c->detail), sizeof(c->detail) - strlen(c->detail),
			 ", %s[%s]", name, pid);
	else
		snprintf(c->detail, sizeof(c->detail), "%s[%s]", name, pid);
}

/* Which of the sockets are this process's? */
static void look_at(const char *pid, const struct wanted *wanted, size_t n)
{
	char path[300], text[64];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%s/fd", pid);
	dir = opendir(path);
	while (dir && (entry = readdir(dir))) {
		ssize_t length = readlinkat(dirfd(dir), entry->d_name, text, sizeof(text) - 1);
		const struct wanted *found;
		struct wanted key;

		if (length < 0 || strncmp(text, "socket:[", 8) != 0)
			continue;
		text[length] = '\0';
		key.inode = (uint32_t)strtoul(text + 8, NULL, 10);
		found = bsearch(&key, wanted, n, sizeof(key), by_inode);
		/* The first of several that share it. */
		if (found && !strchr(found->of->detail, '['))
			name_program(found->of, pid);
	}
	if (dir)
		closedir(dir);
}

static void look_at_all(struct wanted *wanted, size_t n)
{
	struct dirent *entry;
	DIR *dir = opendir("/proc");

	qsort(wanted, n, sizeof(*wanted), by_inode);
	while (dir && (entry = readdir(dir)))
		if (isdigit((unsigned char)entry->d_name[0]))
			look_at(entry->d_name, wanted, n);
	if (dir)
		closedir(dir);
}

/* The other end is under Flue as well: does it know more? */
static bool ask_other_end(const struct homes *h, struct homes_connection *c)
{
	const struct homes_connection *other;

	if (c->other == HOMES_NONE)
		return false;
	other = &h->connections[c->other];
	if (other->lane || other->reason == WHY_PEER || other->reason == WHY_NONE)
		return true;
	c->why = "peer-keeps";
	c->sentence = "the other end keeps it on TCP";
	homes_reason(c->detail, sizeof(c->detail), other);
	return true;
}

void peers_explain(struct homes *h, const struct diag *diag)
{
	struct wanted *wanted = calloc(h->n_connections + 1, sizeof(*wanted));
	size_t n = 0;

	for (size_t i = 0; wanted && i < h->n_connections; i++) {
		struct homes_connection *c = &h->connections[i];
		const struct diag_socket *s;
		uint8_t ends[36];

		if (c->lane || (c->reason != WHY_PEER && c->reason != WHY_USER) ||
		    ask_other_end(h, c))
			continue;
		memcpy(ends, c->key + 18, 18);
		memcpy(ends + 18, c->key, 18);
		s = diag_find_ends(diag, ends);
		if (s && s->inode)
			wanted[n++] = (struct wanted) { s->inode, c };
	}
	if (n)
		look_at_all(wanted, n);
	for (size_t i = 0; i < n; i++)
		if (wanted[i].of->reason == WHY_PEER && *wanted[i].of->detail)
			wanted[i].of->sentence = "the peer's program does not run under Flue";
	free(wanted);
}
