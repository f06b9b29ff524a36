/* SPDX-License-Identifier: MIT */
/*
 * For tests: netlink messages made by hand, and a kernel that answers dumps from a list and says
 * what a test wants. It stands where the linker puts it (--wrap), below the real socket calls.
 */
#ifndef FLUE_ACCESS_INTERFACES_FAKE_PRIV_H
#define FLUE_ACCESS_INTERFACES_FAKE_PRIV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_MAX 65536

/* ---- messages; several make a datagram ---- */

struct message {
	size_t len, begun;
	uint8_t data[FAKE_MAX];
};

void msg_begin(struct message *m, uint16_t type, uint16_t flags, uint32_t seq, uint32_t port);
void msg_put(struct message *m, const void *data, size_t len);
void msg_attr(struct message *m, uint16_t type, const void *data, size_t len);
void msg_end(struct message *m);

struct fake_link {
	uint32_t index;
	const char *name; /* NULL: neither name nor MTU, as wireless drivers do */
	uint32_t flags, mtu;
	uint16_t type;
	uint8_t family;
};

struct fake_address {
	uint32_t index;
	const char *text;
	uint8_t prefix;
	uint32_t flags;
};

/* Whole messages, RTM_NEWLINK and so on. */
void msg_link(struct message *m, uint16_t type, const struct fake_link *link, uint16_t flags,
	      uint32_t seq, uint32_t port);
void msg_address(struct message *m, uint16_t type, const struct fake_address *address,
		 uint16_t flags, uint32_t seq, uint32_t port);
void msg_done(struct message *m, uint16_t flags, uint32_t seq, uint32_t port);

/* ---- the kernel ---- */

#define FAKE_PORT 4711 /* of every socket */

struct fake_kernel {
	struct fake_link links[16];
	size_t n_links;
	struct fake_address addresses[16];
	size_t n_addresses;
	/* Called for each request, before the answer; true: there shall be no other. */
	bool (*hook)(uint16_t type, uint32_t seq);
	unsigned requests;
	unsigned hooked; /* for hooks to count in */
};
extern struct fake_kernel fake;

/* No interfaces, no sockets. */
void fake_reset(void);
/* To every socket; `from`: 0 is the kernel. */
void fake_push(const struct message *m, uint32_t from);
/* The next recvmsg() behind what was pushed fails. */
void fake_push_error(int err);
/* Live notices, one datagram each; the lists stay as they are. */
void fake_say_link(uint16_t type, const struct fake_link *link);
void fake_say_address(uint16_t type, const struct fake_address *address);
/* The nth call from now on that can fail does, with ENOMEM or the like; 0: none. */
void fake_fail(unsigned nth);
/* Has it happened? */
bool fake_failed(void);

#endif
