/* SPDX-License-Identifier: MIT */
/*
 * Flue: notices of network interfaces, from Linux. A watch hears of every interface that can carry
 * TCP, first of those that exist, then of what changes; when it was made does not matter, and
 * watches know nothing of each other. See flue_interfaces(3).
 *
 * For one interface (an index) a watch tells, in this order,
 *   EXISTING or NEW   once
 *   CHANGED, UP, GOING_DOWN   any number of times; UP and GOING_DOWN take turns
 *   GONE   once, and GOING_DOWN before it if the last word was that data could flow
 * and then perhaps NEW again. Each notice carries the whole state as of that notice and differs
 * from the one before. When the kernel lost messages because nobody took them in time, the watch
 * asks for everything again and tells the difference in the same order.
 */
#ifndef FLUE_INTERFACES_H
#define FLUE_INTERFACES_H

#include <flue/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct flue_open_attr;

#define FLUE_INTERFACE_NAME 16 /* octets, the final zero included (IF_NAMESIZE) */

enum flue_interface_notice {
	FLUE_INTERFACE_EXISTING = 1, /* it was there before the watch */
	FLUE_INTERFACE_NEW,
	FLUE_INTERFACE_CHANGED,    /* addresses, MTU or name; or a flag, without UP or GOING_DOWN */
	FLUE_INTERFACE_UP,         /* up and running: data can flow */
	FLUE_INTERFACE_GOING_DOWN, /* the first sign: taken down, carrier lost, or about to be gone */
	FLUE_INTERFACE_GONE,
	FLUE_INTERFACE_NNOTICES,
};

/* Read-only; see flue_interface_fn and next() for how long it lasts. */
struct flue_interface {
	size_t size;
	uint32_t index; /* as in if_nametoindex(3) */
	uint32_t mtu;
	char name[FLUE_INTERFACE_NAME];
	bool up;      /* the administrator wants it to work */
	bool running; /* it has carrier; data can flow when both are true */
	/* IPv4 and IPv6 addresses that a program can bind to, each once, sorted; port 0. IPv6
	 * addresses appear when duplicate address detection is over. */
	uint32_t n_addresses;
	const struct sockaddr_storage *addresses;
	/*
	 * Its adapter, if the watch brings adapters up: from the first notice that says that data can
	 * flow until GONE. NULL, and why: it could not be opened, and is tried again with the next
	 * notice; 0: not wanted, or the interface was not up yet.
	 */
	struct flue_adapter *adapter;
	int adapter_error;
};

/*
 * Runs on the watch's own thread, one call at a time; all signals are blocked there. `iface` lasts
 * until the function returns. May call Flue, but not destroy its watch (EDEADLK). The first call may
 * come before flue_watch_interfaces() has returned.
 */
typedef void (*flue_interface_fn)(uint32_t notice, const struct flue_interface *iface, void *arg);

struct flue_interface_watch_attr {
	size_t size;
	flue_interface_fn on_notice; /* NULL: no thread; use fd() and next() */
	void *arg;
	/*
	 * Non-NULL: an interface that comes up brings its adapter up, opened with these (copied). It is
	 * shown in the notices and is the watch's, so that flue_close() says EBUSY. It stays while the
	 * interface is down, and is closed after GONE, once nothing of the program is left in it.
	 */
	const struct flue_open_attr *adapters;
};

struct flue_interface_watch;

struct flue_interface_watch_ops {
	size_t size;
	/* Waits until on_notice has returned; closes the adapters. EDEADLK: called from it, or with
	 * adapters from any function of the library's. EBUSY: an adapter still has objects in it. */
	bool (*destroy)(struct flue_interface_watch *watch);
	/*
	 * Take the next notice (enum flue_interface_notice). timeout_ms 0: do not wait (EAGAIN when
	 * none), < 0: wait for ever; ETIMEDOUT. `*iface` lasts until the next call. EBUSY: the watch
	 * has a function, or another thread is here; EINTR: a signal handler ran; EINVAL; ENODEV:
	 * inherited through fork(). ENOMEM, ENOBUFS and other failures of the system lose nothing:
	 * call again.
	 */
	bool (*next)(struct flue_interface_watch *watch, uint32_t *notice,
		     const struct flue_interface **iface, int timeout_ms);
	/* A descriptor that is readable while next() has work; that may turn out to be no notice
	 * (EAGAIN). Owned by the watch; never read or close it. -1 + errno: EBUSY, ENODEV. */
	int (*fd)(struct flue_interface_watch *watch);
};

struct flue_interface_watch {
	const struct flue_interface_watch_ops *ops;
	void *user;
};

/*
 * Watch the interfaces of the calling thread's network namespace. attr NULL: no function. EINVAL,
 * ENOMEM, EMFILE, ENFILE, EAGAIN (no thread), ENOENT (adapters of no provider), and what socket(2) says
 * where netlink is forbidden.
 */
FLUE_API struct flue_interface_watch *flue_watch_interfaces(
	const struct flue_interface_watch_attr *attr);
/* A name for people; never NULL. */
FLUE_API const char *flue_interface_notice_name(uint32_t notice);

static inline bool flue_unwatch_interfaces(struct flue_interface_watch *watch)
{
	return watch->ops->destroy(watch);
}

static inline bool flue_next_interface(struct flue_interface_watch *watch, uint32_t *notice,
				       const struct flue_interface **iface, int timeout_ms)
{
	return watch->ops->next(watch, notice, iface, timeout_ms);
}

#ifdef __cplusplus
}
#endif
#endif
