/* SPDX-License-Identifier: MIT */
/* Shared by the ud*.c files. */
#ifndef FLUE_RNIC_UD_PRIV_H
#define FLUE_RNIC_UD_PRIV_H

#include "rnic/ud.h"

/* ud.c */
/* A socket for datagrams in and out; IPv6 with IPv4 in it. -errno. */
int ud_open_socket(int family);
void ud_ready(struct engine_io *io, uint32_t events);
/* A datagram has come, to q or to a group of which it is a member. Under the engine's lock. */
void ud_take(struct qp *q, bool group, const uint8_t *buf, size_t len,
	     const struct sockaddr_storage *from, const struct sockaddr_storage *to);

/* ud_group.c */
void ud_drop_group(struct qp *q, struct ud_socket *s);

#endif
