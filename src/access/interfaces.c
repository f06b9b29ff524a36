/* SPDX-License-Identifier: MIT */
/*
 * Watches of network interfaces: a netlink socket, and the order of things on it.
 *
 *   STALE      what we know may be wrong. Throw away what waits on the socket, ask for all links
 *   LINKS      the answer arrives, and live notices among it; at its end ask for all addresses
 *   ADDRESSES  the same; at its end the table is whole
 *   LIVE       tell the difference, then take the next message
 *
 * The socket joins its groups before it asks, so nothing falls in between. Back to STALE: messages
 * were lost (ENOBUFS), the kernel says that a dump was inconsistent, memory was short, something
 * could not be read. Throwing away first matters: a message from before the loss would otherwise
 * pass for one after the request, and win over it (see interfaces_table.c).
 *
 * A watch uses no lock: either its thread works on it or the one caller of next().
 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "access/access_priv.h"
#include "access/interfaces_priv.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/util.h"

#define BUF_FIRST   32768 /* the largest piece of a dump; a notice is hardly ever larger */
#define BUF_MOST    (1u << 20)
#define DRAIN_TURNS 64   /* datagrams thrown away before somebody else gets a turn */
#define STEPS       1024 /* between looks at the clock */
#define RETRY_MS    100  /* the thread's patience with a system short of memory */

enum phase { STALE = 0, LINKS, ADDRESSES, LIVE };

struct acc_watch {
	struct flue_interface_watch pub;
	unsigned fork_gen;
	flue_interface_fn fn;
	void *arg;

	int sock;
	uint32_t port, seq; /* our netlink address; the number of the current request */
	enum phase phase;
	bool interrupted;
	struct if_table table;
	struct if_adapters adapters;
	uint8_t *buf;
	size_t buf_size, at, len; /* octets at..len are still to be read */
	int result;               /* of the last message */

	uint64_t which;     /* socket that `sock` stands for */
	struct pollset set; /* with a function: the socket; rung to stop */
	struct flag flag;   /* without: the socket, and up for work that it does not show */
	bool raised;
	atomic_bool busy; /* somebody is in next() */
	atomic_bool stop;
	pthread_t thread;
};

static inline struct acc_watch *to_watch(struct flue_interface_watch *watch)
{
	return (struct acc_watch *)watch;
}

/* ---- fork ---- */

static atomic_uint fork_gen;

static void in_child(void)
{
	atomic_fetch_add(&fork_gen, 1);
}

/* Two threads may both get here first; counting twice does no harm. */
static int watch_forks(void)
{
	static atomic_bool done;

	if (atomic_load(&done))
		return 0;
	if (pthread_atfork(NULL, NULL, in_child))
		return -ENOMEM;
	atomic_store(&done, true);
	return 0;
}

static bool inherited(const struct acc_watch *w)
{
	return w->fork_gen != atomic_load_explicit(&fork_gen, memory_order_relaxed);
}

/* ---- the socket ---- */

static void mark_stale(struct acc_watch *w)
{
	w->phase = STALE;
	w->at = w->len = 0;
}

static int request(struct acc_watch *w, uint16_t type, enum phase phase)
{
	struct {
		struct nlmsghdr header;
		struct ifinfomsg body; /* or ifaddrmsg, which also begins with the family: any */
	} r = { .header = { .nlmsg_len = sizeof(r),
			    .nlmsg_type = type,
			    .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
			    .nlmsg_seq = ++w->seq } };
	int err;

	if (send(w->sock, &r, sizeof(r), MSG_DONTWAIT) == (ssize_t)sizeof(r)) {
		w->phase = phase;
		return 0;
	}
	err = -errno;
	mark_stale(w);
	return err == -EINTR ? 0 : err;
}

/* Octets, or a negative errno. Larger than the buffer: cut off. 0: not from the kernel. */
static ssize_t receive_some(struct acc_watch *w)
{
	struct sockaddr_nl from = { 0 };
	struct iovec iov = { .iov_base = w->buf, .iov_len = w->buf_size };
	struct msghdr msg = {
		.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = &iov, .msg_iovlen = 1
	};
	ssize_t n = recvmsg(w->sock, &msg, MSG_DONTWAIT | MSG_TRUNC);

	if (n < 0)
		return -errno;
	return msg.msg_namelen == sizeof(from) && from.nl_pid == 0 ? n : 0;
}

/* Throws away what waits, the rest of a dump included, and asks anew. */
static int start_dump(struct acc_watch *w)
{
	ssize_t n = 0;

	for (int i = 0; i < DRAIN_TURNS; i++) {
		n = receive_some(w);
		if (n < 0 && n != -ENOBUFS && n != -EINTR)
			break;
	}
	if (n != -EAGAIN)
		return n < 0 && n != -ENOBUFS && n != -EINTR ? (int)n : 0;
	if_table_begin(&w->table);
	w->interrupted = false;
	return request(w, RTM_GETLINK, LINKS);
}

static int grow(struct acc_watch *w, size_t need)
{
	uint8_t *buf;

	if (need > BUF_MOST)
		return -EMSGSIZE;
	buf = realloc(w->buf, need);
	if (!buf)
		return -ENOMEM;
	w->buf = buf;
	w->buf_size = need;
	return 0;
}

static int receive_all(struct acc_watch *w)
{
	ssize_t n = receive_some(w);

	if (n == -EAGAIN)
		return -EAGAIN;
	if (n == -EINTR)
		return 0;
	if (n < 0) {
		mark_stale(w);
		return n == -ENOBUFS ? 0 : (int)n;
	}
	if ((size_t)n > w->buf_size) {
		mark_stale(w);
		return grow(w, (size_t)n);
	}
	w->at = 0;
	w->len = (size_t)n;
	return 0;
}

/* ---- messages ---- */

static int dump_done(struct acc_watch *w, int error)
{
	if (error || w->interrupted) {
		mark_stale(w);
		return error;
	}
	if (w->phase == LINKS)
		return request(w, RTM_GETADDR, ADDRESSES);
	if_table_end(&w->table);
	w->phase = LIVE;
	return 0;
}

static int on_record(const struct if_record *r, void *arg)
{
	struct acc_watch *w = arg;
	/* Notices carry the port of whoever made the change, or none; we change nothing. */
	bool live = r->port != w->port;
	bool answer = !live && r->seq == w->seq && (w->phase == LINKS || w->phase == ADDRESSES);

	w->interrupted |= answer && r->interrupted;
	if (r->kind == IF_OVERRUN) {
		mark_stale(w);
	} else if (r->kind == IF_DONE) {
		w->result = answer ? dump_done(w, r->error) : 0;
	} else if (r->kind == IF_ERROR) {
		if (answer && r->error) {
			mark_stale(w);
			w->result = r->error;
		}
	} else if (live || answer) {
		w->result = if_table_apply(&w->table, r, live);
		if (w->result)
			mark_stale(w);
	}
	return 1; /* what it changed is told before the next is read */
}

static int read_message(struct acc_watch *w)
{
	size_t at = w->at;
	ssize_t n;

	w->result = 0;
	n = interfaces_parse(w->buf + at, w->len - at, on_record, w);
	if (n < 0) {
		mark_stale(w);
		return (int)n;
	}
	if (w->len) /* not marked stale */
		w->at = at + (size_t)n;
	return w->result;
}

/*
 * One step. 1: a notice; 0: call again; -EAGAIN: wait for the socket; else a failure, after which
 * calling again goes on where it stopped.
 */
static int step(struct acc_watch *w, uint32_t *notice, const struct flue_interface **iface)
{
	int rc;

	if_adapters_sweep(&w->adapters);
	if (w->phase == STALE)
		return start_dump(w);
	if (w->phase == LIVE) {
		rc = if_table_next(&w->table, notice, iface);
		if (rc > 0) /* the table's own, and not const there */
			if_adapters_attend(&w->adapters, *notice, (struct flue_interface *)*iface);
		if (rc)
			return rc;
	}
	return w->at < w->len ? read_message(w) : receive_all(w);
}

/* ---- the thread ---- */

static int open_socket(struct acc_watch *w);
static int open_files(struct acc_watch *w);

/* Has the program closed what we read from? Then everything is asked for again. */
static void look_after_files(struct acc_watch *w)
{
	if (fd_socket(w->sock) == w->which && pollset_ring(&w->set) == 0)
		return;
	fd_close_socket(w->sock, w->which);
	pollset_close(&w->set);
	mark_stale(w);
	if (open_socket(w) == 0)
		open_files(w); /* if it fails, the next look finds out */
}

/* Sleeps for the socket (`sock`) or RETRY_MS. */
static void thread_sleep(struct acc_watch *w, bool sock)
{
	const struct timespec patience = { .tv_nsec = RETRY_MS * 1000000l };
	struct epoll_event evs[2];
	int n = 0;

	if (sock)
		n = pollset_wait(&w->set, evs, 2, -1);
	if (n > 0 || (n < 0 && !pollset_failed(n)))
		return;
	if (n < 0 || !sock)
		nanosleep(&patience, NULL);
	look_after_files(w);
}

static void *watch_main(void *arg)
{
	struct acc_watch *w = arg;
	const struct flue_interface *iface;
	struct acc_frame frame;
	uint32_t notice;

	cancel_never();
	while (!atomic_load(&w->stop)) {
		int rc = step(w, &notice, &iface);

		if (rc > 0) {
			acc_frame_enter(&frame, w, NULL);
			w->fn(notice, iface, w->arg);
			acc_frame_leave(&frame);
		} else if (rc < 0) {
			thread_sleep(w, rc == -EAGAIN);
		}
	}
	return NULL;
}

static int start_thread(struct acc_watch *w)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&w->thread, NULL, watch_main, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return -rc;
	pthread_setname_np(w->thread, "flue-interfaces");
	return 0;
}

static void stop_thread(struct acc_watch *w)
{
	atomic_store(&w->stop, true);
	/* Fails where the program has closed the set: then the thread looks after it soon. */
	pollset_ring(&w->set);
	pthread_join(w->thread, NULL);
}

/* ---- no thread ---- */

/* Shows on the descriptor that there is, or may be, work; the socket shows itself. */
static void show_work(struct acc_watch *w, bool work)
{
	if (work == w->raised)
		return;
	flag_show(&w->flag, work);
	w->raised = work;
}

static void leave_next(void *watch)
{
	struct acc_watch *w = watch;

	show_work(w, false);
	atomic_store(&w->busy, false);
}

/* 0, -ETIMEDOUT, -EINTR, ... `until`: 0 is never. */
static int wait_for_socket(struct acc_watch *w, uint64_t until, int cancel_was)
{
	struct pollfd fd = { .fd = w->sock, .events = POLLIN };
	int ms = POLLSET_LOOK_MS, rc; /* nobody would tell us that the program has closed it */

	if (until) {
		uint64_t now = clock_now();

		if (now >= until)
			return -ETIMEDOUT;
		ms = (int)min_u64((until - now + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC,
				  POLLSET_LOOK_MS);
	}
	pthread_cleanup_push(leave_next, w);
	cancel_window_open(cancel_was);
	rc = poll(&fd, 1, ms) < 0 ? -errno : 0;
	cancel_window_shut();
	pthread_cleanup_pop(0);
	return rc;
}

/* `*work`: there may be more to do than the socket shows. */
static int take_next(struct acc_watch *w, uint32_t *notice, const struct flue_interface **iface,
		     int timeout_ms, bool *work, int cancel_was)
{
	uint64_t until = timeout_ms < 0 ? 0 : clock_now() + (uint64_t)timeout_ms * NSEC_PER_MSEC;

	for (unsigned i = 1;; i++) {
		int rc = step(w, notice, iface);

		*work = rc != -EAGAIN;
		if (rc > 0)
			return 0;
		if (rc < 0 && *work)
			return rc;
		if (!*work && timeout_ms == 0)
			return -EAGAIN;
		if (!*work)
			rc = wait_for_socket(w, until, cancel_was);
		else if (i % STEPS == 0 && until && clock_now() >= until)
			rc = timeout_ms ? -ETIMEDOUT : -EAGAIN;
		if (rc < 0)
			return rc;
	}
}

static bool watch_next(struct flue_interface_watch *watch, uint32_t *notice,
		       const struct flue_interface **iface, int timeout_ms)
{
	CANCEL_HELD;
	struct acc_watch *w = to_watch(watch);
	bool work;
	int rc;

	if (inherited(w))
		return acc_ok(-ENODEV);
	if (!notice || !iface)
		return acc_ok(-EINVAL);
	if (w->fn || atomic_exchange(&w->busy, true))
		return acc_ok(-EBUSY);
	rc = take_next(w, notice, iface, timeout_ms, &work, cancel_was);
	show_work(w, work);
	atomic_store(&w->busy, false);
	return acc_ok(rc);
}

static int watch_fd(struct flue_interface_watch *watch)
{
	struct acc_watch *w = to_watch(watch);

	if (inherited(w))
		return acc_ok(-ENODEV) ? 0 : -1;
	if (w->fn)
		return acc_ok(-EBUSY) ? 0 : -1;
	return w->flag.fd;
}

/* ---- making and destroying ---- */

static void free_watch(struct acc_watch *w)
{
	flag_close(&w->flag, inherited(w));
	if (inherited(w))
		pollset_abandon(&w->set);
	else
		pollset_close(&w->set);
	fd_close_socket(w->sock, w->which);
	/* In a child of fork() these may be as the parent's thread was just changing them. */
	if (!inherited(w)) {
		if_adapters_fini(&w->adapters);
		if_table_fini(&w->table);
		free(w->buf);
	}
	free(w);
}

static bool watch_destroy(struct flue_interface_watch *watch)
{
	CANCEL_HELD;
	struct acc_watch *w = to_watch(watch);

	if (!inherited(w)) {
		int rc = acc_in_callback(w) ? -EDEADLK : if_adapters_check(&w->adapters);

		if (rc)
			return acc_ok(rc);
		if (w->fn)
			stop_thread(w);
	}
	free_watch(w);
	return true;
}

static int open_socket(struct acc_watch *w)
{
	struct sockaddr_nl local = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_LINK | RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
	};
	socklen_t len = sizeof(local);

	w->sock = fd_keep(
		socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
	if (w->sock < 0)
		return -errno;
	w->which = fd_socket(w->sock);
	if (bind(w->sock, (struct sockaddr *)&local, sizeof(local)) < 0 ||
	    getsockname(w->sock, (struct sockaddr *)&local, &len) < 0)
		return -errno;
	w->port = local.nl_pid;
	return 0;
}

static int open_files(struct acc_watch *w)
{
	struct epoll_event in = { .events = EPOLLIN };
	int rc = pollset_open(&w->set);

	if (rc)
		return rc;
	if (w->fn)
		return pollset_ctl(&w->set, EPOLL_CTL_ADD, w->sock, EPOLLIN, 0);
	rc = flag_open(&w->flag, atomic_load(&w->set.lamp), false);
	if (rc)
		return rc;
	return epoll_ctl(w->flag.fd, EPOLL_CTL_ADD, w->sock, &in) < 0 ? -errno : 0;
}

static int open_watch(struct acc_watch *w)
{
	int rc = watch_forks();

	if (!rc)
		rc = open_socket(w);
	if (!rc)
		rc = open_files(w);
	if (!rc)
		rc = grow(w, BUF_FIRST);
	if (!rc)
		rc = start_dump(w);
	if (!rc && w->fn)
		rc = start_thread(w);
	/* Rare: interrupted, or busy already. The descriptor must say so. */
	if (!rc && !w->fn)
		show_work(w, w->phase == STALE);
	return rc;
}

static const struct flue_interface_watch_ops watch_ops = {
	.size = sizeof(watch_ops),
	.destroy = watch_destroy,
	.next = watch_next,
	.fd = watch_fd,
};

struct flue_interface_watch *flue_watch_interfaces(const struct flue_interface_watch_attr *attr)
{
	CANCEL_HELD;
	struct flue_interface_watch_attr none = FLUE_ATTR(struct flue_interface_watch_attr), copy;
	struct acc_watch *w;
	int rc = acc_attr_copy(&copy, sizeof(copy), attr ? attr : &none,
			       ACC_ATTR_SIZE(struct flue_interface_watch_attr, arg));

	if (rc)
		return acc_null(rc);
	w = calloc(1, sizeof(*w));
	if (!w)
		return acc_null(-ENOMEM);
	w->pub.ops = &watch_ops;
	w->fork_gen = atomic_load(&fork_gen);
	w->fn = copy.on_notice;
	w->arg = copy.arg;
	w->sock = -1;
	w->flag = (struct flag)FLAG_NONE;
	pollset_init(&w->set, 1);
	if_table_init(&w->table);
	rc = if_adapters_init(&w->adapters, copy.adapters);
	if (!rc)
		rc = open_watch(w);
	if (rc) {
		free_watch(w);
		return acc_null(rc);
	}
	return &w->pub;
}

const char *flue_interface_notice_name(uint32_t notice)
{
	static const char *const names[FLUE_INTERFACE_NNOTICES] = {
		[FLUE_INTERFACE_EXISTING] = "existing",     [FLUE_INTERFACE_NEW] = "new",
		[FLUE_INTERFACE_CHANGED] = "changed",       [FLUE_INTERFACE_UP] = "up",
		[FLUE_INTERFACE_GOING_DOWN] = "going down", [FLUE_INTERFACE_GONE] = "gone",
	};

	return notice < FLUE_INTERFACE_NNOTICES && names[notice] ? names[notice] : "?";
}
