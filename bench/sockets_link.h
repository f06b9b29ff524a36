/* SPDX-License-Identifier: MIT */
/* The connections of sockets_bench: TCP over loopback or Unix-domain, blocking. Whatever fails ends it. */
#ifndef BENCH_SOCKETS_LINK_H
#define BENCH_SOCKETS_LINK_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* What the command line asks for. */
struct job {
	const char *mode, *role;
	bool local, hogs, bulk;
	size_t size;
	long think_us, count;
	double seconds;
	int cpus[2];
	int port;
};

struct address {
	union {
		struct sockaddr any;
		struct sockaddr_in in;
		struct sockaddr_un un;
	};
	socklen_t length;
};

/* One for all messages: their content does not matter. */
extern uint8_t *link_buffer;

_Noreturn void link_fail(const char *what);
int64_t link_now(void); /* in nanoseconds */

int link_listen(const struct job *job, struct address *at);
int link_dial(const struct job *job, const struct address *to);
int link_accept(const struct job *job, int listener);

void link_send(int fd, const uint8_t *data, size_t length);
/* False at the end of the stream. */
bool link_recv(int fd, uint8_t *data, size_t length);
/* `size` octets of the buffer there, as many back. */
void link_round_trip(int fd, size_t size);

#endif
