/* SPDX-License-Identifier: MIT */
/* The kernel's figures of the TCP sockets in this network namespace, by cookie (sock_diag(7)). */
#ifndef FLUE_TOOLS_DIAG_H
#define FLUE_TOOLS_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct diag_socket {
	uint64_t cookie;
	uint64_t sent, received; /* octets of the stream, without what was sent again */
	uint32_t uid, inode;     /* of the program's descriptor; inode 0: no program has it */
	uint8_t ends[36];        /* addresses and ports, its own first; IPv4 as mapped */
};

struct diag {
	struct diag_socket *sockets; /* by cookie, ascending */
	size_t n;
	uint32_t *by_ends; /* indices */
};

/* What cannot be had is missing: the list may be empty. */
void diag_read(struct diag *diag);
void diag_free(struct diag *diag);
/* The one with these ends, its own first. */
const struct diag_socket *diag_find_ends(const struct diag *diag, const uint8_t ends[36]);
const struct diag_socket *diag_find(const struct diag *diag, uint64_t cookie);

#endif
