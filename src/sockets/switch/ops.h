/* SPDX-License-Identifier: MIT */
/*
 * The offload protocol switch: which protocols could carry a socket's data, and which one does in
 * the end. Logic only: the real calls on the kernel's socket are the caller's, and always come
 * first (OS-5, OS-11); then the switch asks the protocols.
 *
 * Every stream socket starts with the list of all protocols that fit what the program asked
 * for. create, bind, option, connect and accept each ask the protocols on the list; one that fails
 * leaves that socket's list. A protocol that says yes to connect or accept has the socket and the
 * others leave. One that says "not yet" (-EAGAIN) stays until ops_decide() asks again; the native
 * stack carries the data meanwhile. When the list is empty the socket is native for good (OS-4, OS-7).
 *
 * Where several protocols fit, the one whose interface came up first is asked first, the native
 * stack last.
 *
 * No memory is allocated and there are no locks. Everything may happen in any thread at any time; a
 * socket's first call, ops_create() or ops_accept(), and its last are the caller's to keep apart. A
 * socket may stand in memory that relatives by fork() share. What one of them makes it leave counts as used
 * in the others: there stopped() comes late or never.
 */
#ifndef FLUE_SOCKETS_OPS_H
#define FLUE_SOCKETS_OPS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define OPS_PROTOCOLS_MAX  16
#define OPS_INTERFACES_MAX 32
#define OPS_NATIVE         (-1)
#define OPS_UNDECIDED      (-2)

/* ---- what a program asked socket() for ---- */

enum ops_want_flags {
	OPS_WANT_SWITCH = 1,  /* a stream that the switch has a say in; else strictly native */
	OPS_WANT_OFFLOAD = 2, /* offload asked for by name: as early as can be */
};

struct ops_want {
	/* What to create really. The flags of `type` (SOCK_NONBLOCK, SOCK_CLOEXEC) are kept. */
	int domain, type, protocol;
	uint32_t flags;
	int id; /* protocols of this id only; 0: of any */
};

/* Never fails: what makes no sense is passed to the kernel, which says so. */
struct ops_want ops_want(int domain, int type, int protocol);

/* The kernel's name for a family that may be one of ours: for addresses. */
sa_family_t ops_family(sa_family_t family);

/* ---- protocols ---- */

enum ops_capability {
	OPS_SELF_ROUTING = 1, /* finds the way itself; no first hop is looked up for it */
	OPS_RDMA = 2,         /* can place data straight into the user's memory */
	OPS_NATIVE_PORTS = 4, /* has the native socket's port, and so no bind() of its own */
};

enum ops_families { OPS_INET = 1, OPS_INET6 = 2 };

/* Where a route begins: for protocols that do not find it themselves. */
struct ops_hop {
	unsigned ifindex;
	const struct sockaddr *gateway; /* NULL: the remote address is on the link */
};

enum ops_change { OPS_INTERFACE_UP, OPS_INTERFACE_DOWN, OPS_ADDRESS_ADDED, OPS_ADDRESS_REMOVED };

/*
 * Entry points; all must be filled. `arg` is the protocol's, `user` the socket's. They run in the
 * thread that made the call on the socket, so none may sleep. 0, or a negative errno: the protocol
 * leaves the list of this socket.
 */
struct ops_calls {
	/* A new socket, about to join its list. On failure release() does not follow. */
	int (*create)(void *arg, void *user, const struct ops_want *want);
	/* Take *port at this address, in host order. It is 0 only when no native socket decided:
	 * choose one then, and say which. */
	int (*bind)(void *arg, void *user, const struct sockaddr *local, socklen_t length,
		    uint16_t *port);
	/* `hop` is NULL for the self-routing. -EAGAIN: not yet; ask again. */
	int (*connect)(void *arg, void *user, const struct sockaddr *remote, socklen_t length,
		       const struct ops_hop *hop);
	/* A connection that came in natively. -EAGAIN: not yet. The socket has inherited the list
	 * of its listener, so there was no create(). */
	int (*accept)(void *arg, void *user);
	/* An option that the native socket has taken. */
	int (*option)(void *arg, void *user, int level, int name, const void *value,
		      socklen_t length);
	/* It left the list: a call failed, another has the socket, or it was closed. Once for each
	 * socket that joined. */
	void (*release)(void *arg, void *user);
	/* Something happened to an interface. Any thread. */
	void (*change)(void *arg, enum ops_change what, unsigned ifindex);
	/* After ops_unregister(), once: no call comes any more. Any thread. */
	void (*stopped)(void *arg);
};

struct ops_protocol {
	const char *name;
	int id;            /* IPPROTO_*; several protocols may have the same */
	uint32_t caps;     /* enum ops_capability */
	uint32_t families; /* enum ops_families */
	const struct ops_calls *calls;
	void *arg;
};

/*
 * The protocol's number, or a negative errno: -EINVAL if something is missing, -ENOSPC, or -EBUSY for
 * one that has the native stack's id when there is a socket already: that socket would have had to
 * ask it (OS-4). *protocol must live until stopped().
 */
int ops_register(const struct ops_protocol *protocol);

/*
 * No socket gets the protocol any more, and undecided ones lose it at their next call or
 * ops_prune(); connections that it has live on. stopped() comes when the last is gone, maybe
 * during this call (OS-16). -ENOENT: there is none of this number.
 */
int ops_unregister(int number);

/* The protocol of this number, or NULL. */
const struct ops_protocol *ops_protocol(int number);

/*
 * An interface of the protocol works now, or does no more. A self-routing protocol names its
 * own as 0. Without any a protocol takes part in bind() but not in connect(). -ENOSPC; -ENOENT.
 */
int ops_interface_up(int number, unsigned ifindex);
int ops_interface_down(int number, unsigned ifindex);

/* Tell all protocols (OS-15). */
void ops_notify(enum ops_change what, unsigned ifindex);

/* ---- sockets ---- */

struct ops_socket {
	/* A bit for each protocol; while it is set, the protocol stays registered. */
	_Atomic uint32_t list;
	_Atomic int8_t bound;   /* number of the one that has it, OPS_NATIVE or OPS_UNDECIDED */
	_Atomic bool connected; /* connect() or accept() has asked */
	bool accepted;
	void *user;
};

/* Where and how to connect. */
struct ops_route {
	const struct sockaddr *remote;
	socklen_t length;
	struct ops_hop hop; /* ifindex 0: unknown, so that only the self-routing can be asked */
	bool denied;        /* by a rule */
};

/* `user` is handed to the entry points. */
void ops_create(struct ops_socket *s, const struct ops_want *want, void *user);

/* Is there somebody whom ops_bind() would ask? Else the native port need not be found out. */
bool ops_has_ports(const struct ops_socket *s);

/*
 * After the native bind(): *port is what the kernel gave, and each protocol takes the same one or
 * leaves; 0. Without a native socket (`native` false) *port is the wish, maybe 0; the first
 * registered protocol that can decides, the others follow or leave, and *port is the result. Then
 * -errno if nobody can.
 */
int ops_bind(struct ops_socket *s, const struct sockaddr *local, socklen_t length, uint16_t *port,
	     bool native);

void ops_option(struct ops_socket *s, int level, int name, const void *value, socklen_t length);

/* These return s->bound. A call for a socket that is decided changes nothing. */
int ops_connect(struct ops_socket *s, const struct ops_route *route);
int ops_accept(struct ops_socket *s, const struct ops_socket *listener, bool denied, void *user);
/* Ask again who said "not yet". After accept() only `denied` is looked at; NULL: it is not. */
int ops_decide(struct ops_socket *s, const struct ops_route *route);

/* To the native stack, for good. */
void ops_step_down(struct ops_socket *s);

/* Drop protocols that were unregistered, unless one of them has the socket. */
void ops_prune(struct ops_socket *s);

void ops_close(struct ops_socket *s);

#endif
