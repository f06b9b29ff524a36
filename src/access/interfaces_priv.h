/* SPDX-License-Identifier: MIT */
/*
 * Interface notices (CH-17), in four parts:
 *   interfaces_parse.c   octets from the kernel into records; trusts no length
 *   interfaces_table.c   what the kernel said and what the program was told; the difference is
 *                        the next notice
 *   interfaces_adapters.c  adapters that come up with their interfaces
 *   interfaces.c         the netlink socket, the dumps, the thread, the public object
 * The first two do no I/O.
 */
#ifndef FLUE_ACCESS_INTERFACES_PRIV_H
#define FLUE_ACCESS_INTERFACES_PRIV_H

#include <flue/adapter.h>
#include <flue/interfaces.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

/* ---- interfaces_parse.c ---- */

enum if_kind {
	IF_OTHER = 0, /* nothing for us */
	IF_LINK,
	IF_LINK_GONE,
	IF_ADDRESS,
	IF_ADDRESS_GONE,
	IF_DONE,    /* of a dump; `error` */
	IF_ERROR,   /* the answer to a request; `error`, 0 for success */
	IF_OVERRUN, /* messages were lost */
};

/*
 * What makes an address of an interface the same address. Linux lets one IPv4 address stand
 * there several times, with other prefixes or peers, and takes them away one by one; of an IPv6
 * address it changes the peer without a word of farewell, so there only `local` counts.
 */
struct if_key {
	uint8_t family; /* AF_INET, AF_INET6 */
	uint8_t prefix;
	uint8_t local[16], peer[16];
};

struct if_record {
	enum if_kind kind;
	uint32_t seq, port;
	bool interrupted; /* the dump is not consistent */
	int error;        /* 0 or a negative errno */

	uint32_t index;
	/* IF_LINK; messages of wireless drivers lack some. */
	bool has_name, has_mtu;
	bool up, running, carries_ip;
	uint32_t mtu;
	char name[FLUE_INTERFACE_NAME];
	/* IF_ADDRESS, IF_ADDRESS_GONE */
	struct if_key key;
	bool usable; /* a program can bind to it */
};

/* Other than 0: stop after this record. */
typedef int (*if_record_fn)(const struct if_record *record, void *arg);

/*
 * Reads netlink messages from a datagram. Returns how many octets it went through: all of them, or
 * up to the end of the message at which `fn` stopped. -EBADMSG: a message or an attribute does not
 * fit into what is around it; `fn` was called for the messages before it.
 */
ssize_t interfaces_parse(const void *buf, size_t len, if_record_fn fn, void *arg);

/* ---- interfaces_table.c ---- */

struct if_address {
	struct if_key key;
	bool present;           /* false: a tombstone, during a dump only */
	bool usable;            /* by programs */
	uint32_t seen, touched; /* generations, as in if_entry */
};

struct if_entry {
	TAILQ_ENTRY(if_entry) link;
	TAILQ_ENTRY(if_entry) dirty_link;
	bool dirty;

	/* What the kernel said. `seen`: the last generation in which it said that this exists;
	 * `touched`: in which a live notice came. */
	uint32_t index;
	uint32_t seen, touched;
	bool exists, reborn;
	bool carries_ip, up, running;
	uint32_t mtu;
	char name[FLUE_INTERFACE_NAME];
	struct if_address *addresses;
	size_t n_addresses, max_addresses;
	bool addresses_changed; /* perhaps; since they were last compared */

	/* What the program was told. */
	bool known;
	bool existing; /* the first notice will be EXISTING */
	struct flue_interface told;
	struct sockaddr_storage *told_addresses;
};
TAILQ_HEAD(if_entries, if_entry);

struct if_table {
	struct if_entries all, dirty;
	uint32_t generation; /* counts dumps */
	bool dumping;
	bool complete; /* there was a whole dump */
};

void if_table_init(struct if_table *t);
void if_table_fini(struct if_table *t);
/* A dump of links and then of addresses is about to be requested; again, if one was under way. */
void if_table_begin(struct if_table *t);
/* The dump is whole: what it did not name is gone. */
void if_table_end(struct if_table *t);
/* `live`: a notice, not part of the dump. -ENOMEM: only a new dump can help. */
int if_table_apply(struct if_table *t, const struct if_record *record, bool live);
/*
 * 1: the next notice, `*iface` lasts until the next call of any of these; 0: all has been told;
 * -ENOMEM: call again. Not during a dump.
 */
int if_table_next(struct if_table *t, uint32_t *notice, const struct flue_interface **iface);

/* ---- interfaces_adapters.c ---- */

struct if_adapters {
	bool wanted, leaving; /* leaving: some wait to be closed */
	struct flue_open_attr attr;
	char *provider, *name; /* of attr */
	int *cpus;             /* of attr */
	/* The list, and all that is done to its adapters: who attends and who destroys the watch. */
	pthread_mutex_t lock;
	SLIST_HEAD(, if_adapter) all;
};

/* from NULL: none are wanted. -EINVAL, -ENOENT, -ENOMEM: fini is still needed. */
int if_adapters_init(struct if_adapters *l, const struct flue_open_attr *from);
/* A notice is about to be told: its interface's adapter is opened if it must, and shown. */
void if_adapters_attend(struct if_adapters *l, uint32_t notice, struct flue_interface *iface);
/* The last notice was told: adapters of what is gone are closed. True: some still have children. */
bool if_adapters_sweep(struct if_adapters *l);
/* Can all be closed? 0, -EBUSY, -EDEADLK. */
int if_adapters_check(struct if_adapters *l);
/* After that. Not in a child of fork(), where the list may be as another thread was changing it. */
void if_adapters_fini(struct if_adapters *l);

#endif
