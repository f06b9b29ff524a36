/* SPDX-License-Identifier: MIT */
/*
 * What the sockets library keeps in the programs of this user: their homes (sockets/home.h), read
 * through /proc. A home belongs to another process, which may be broken, of another version or
 * hostile: everything is copied out, checked and made printable here.
 */
#ifndef FLUE_TOOLS_HOMES_H
#define FLUE_TOOLS_HOMES_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "diag.h"

#define HOMES_NONE SIZE_MAX

/* One direction of a connection. */
struct homes_flow {
	uint64_t lane_bytes, messages;
	uint64_t tcp_bytes; /* the kernel's count; if `known` */
};

struct homes_connection {
	size_t process; /* whose it is, an index */
	struct sockaddr_storage local, peer;
	uint64_t cookie;
	bool lane;
	bool active;                /* this end connected */
	const char *why, *sentence; /* of TCP; a word and a sentence */
	char detail[128];           /* what the sentence is about, or "" */
	uint32_t reason;            /* enum why */
	bool known;                 /* to the kernel, in our network namespace */
	struct homes_flow sent, received;
	size_t other;    /* the other end, an index, or HOMES_NONE */
	uint8_t key[36]; /* addresses and ports, ours first */
};

struct homes_process {
	pid_t pid;
	char program[33];
	uint64_t connections, lanes, stepdowns; /* that have ended; made; left, since it began */
	dev_t dev;                              /* of its home */
	ino_t ino;
};

struct homes {
	struct homes_connection *connections;
	struct homes_process *processes;
	size_t n_connections, n_processes;
	size_t strange; /* homes that make no sense or are of another version */
};

/* All homes of processes of `uid`, and the kernel's figures. False: no memory, or no /proc. */
bool homes_read(struct homes *homes, uid_t uid);
void homes_free(struct homes *homes);

/* The reason with what it is about; "" for a lane. */
const char *homes_reason(char *out, size_t size, const struct homes_connection *c);

/* The parts of it. One home, by descriptor, and the process that has it. False: no memory. */
bool homes_add(struct homes *homes, int fd, pid_t pid);
/* When all are there: the kernel's figures, other ends, and order by address. */
void homes_finish(struct homes *homes, const struct diag *diag);

/* A copy of the head of a home, checked and printable, or NULL. Caller frees. */
struct home;
struct rec;
struct home *homes_head(int fd);
/* Call for each record, until it says false. False: it did, or no memory. */
bool homes_each(int fd, const struct home *head, bool (*call)(const struct rec *r, void *arg),
		void *arg);

/* The one with the same key, after homes_finish(). */
const struct homes_connection *homes_find(const struct homes *homes,
					  const struct homes_connection *like);

#endif
