/* SPDX-License-Identifier: MIT */
#include "channel/mailbox.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "base/util.h"

static struct own_fd box;
static uint8_t name_of_ours[MAILBOX_NAME];
static _Atomic(mailbox_fn *) reader; /* the same one whoever sets it */

void mailbox_set_reader(mailbox_fn *fn)
{
	atomic_store(&reader, fn);
}

const uint8_t *mailbox_name(void)
{
	return name_of_ours;
}

uint64_t mailbox_key(const uint8_t mailbox[MAILBOX_NAME])
{
	uint64_t key;

	memcpy(&key, mailbox, sizeof(key));
	return key;
}

static int make_mailbox(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(name);
	int fd = own_new(sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd < 0)
		return -1;
	/* The kernel chooses an abstract name. */
	if (sys_bind(fd, (struct sockaddr *)&name, sizeof(sa_family_t)) != 0 ||
	    sys_listen(fd, 1024) != 0 ||
	    sys_getsockname(fd, (struct sockaddr *)&name, &size) != 0 ||
	    size - offsetof(struct sockaddr_un, sun_path) > sizeof(name_of_ours)) {
		own_close(fd);
		return -1;
	}
	memset(name_of_ours, 0, sizeof(name_of_ours));
	memcpy(name_of_ours, name.sun_path, size - offsetof(struct sockaddr_un, sun_path));
	return fd;
}

bool mailbox_open(void)
{
	return own_kept_or(&box, make_mailbox) >= 0;
}

bool mailbox_same_user(int fd, pid_t *pid)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (sys_getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
		return false;
	if (pid)
		*pid = cred.pid;
	return cred.uid == geteuid();
}

/* Taken out at a time. */
#define LETTERS_MOST 64
/* Who has connected is about to write: so many can be on their way, and nobody waits for them. */
#define LETTERS_AWAITED 8

bool mailbox_send(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, struct letter *letter,
		  const int *fds, size_t n)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	size_t length = strnlen((const char *)mailbox + 1, MAILBOX_NAME - 1) + 1;
	char control[CMSG_SPACE(LETTER_FDS * sizeof(int))] = { 0 };
	struct iovec iov = { letter, sizeof(*letter) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	pid_t other = 0;
	bool ok;
	int s = own_new(sys_socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (s < 0)
		return false;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	memcpy(letter->mailbox, name_of_ours, sizeof(letter->mailbox));
	memcpy(name.sun_path, mailbox, MAILBOX_NAME);
	ok = sys_connect(s, (struct sockaddr *)&name,
			 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) == 0 &&
	     mailbox_same_user(s, &other) && other == pid &&
	     sys_sendmsg(s, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*letter);
	own_close(s);
	return ok;
}

/* `letter` NULL: it is not one. */
static void give(const struct letter *letter, pid_t pid, const int *fds, size_t n)
{
	mailbox_fn *fn = atomic_load(&reader);

	if (letter && n <= LETTER_FDS && fn && fn(letter, pid, fds, n))
		return;
	for (size_t i = 0; i < n; i++)
		own_close(fds[i]);
}

/* One letter of somebody who is the same user. False: it is not here yet. */
static bool open_letter(int s, pid_t pid)
{
	char control[CMSG_SPACE(2 * LETTER_FDS * sizeof(int))];
	struct letter letter = { 0 };
	struct iovec iov = { &letter, sizeof(letter) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t size = sys_recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = size >= 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	int fds[2 * LETTER_FDS + 1];
	bool whole = size == (ssize_t)sizeof(letter) && !(msg.msg_flags & MSG_TRUNC);
	size_t n;

	if (size < 0 && errno == EAGAIN)
		return false;
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		return true;
	n = min_size((c->cmsg_len - CMSG_LEN(0)) / sizeof(int), ARRAY_SIZE(fds));
	memcpy(fds, CMSG_DATA(c), n * sizeof(int));
	for (size_t i = 0; i < n; i++)
		own_new(fds[i]);
	give(whole ? &letter : NULL, pid, fds, n);
	return true;
}

/* Connections whose letter is still to come, the oldest first. With the lock. */
static struct awaited {
	int fd; /* + 1 */
	pid_t pid;
	dev_t dev;
	ino_t ino;
} awaited[LETTERS_AWAITED];
static struct robust_lock opening;

/* The program may have closed it, and put something else there. */
static bool is_still_ours(const struct awaited *a)
{
	struct stat st;

	return fstat(a->fd - 1, &st) == 0 && st.st_dev == a->dev && st.st_ino == a->ino;
}

static void drop_awaited(int i)
{
	int fd = is_still_ours(&awaited[i]) ? awaited[i].fd - 1 : -1;

	/* Before it is closed: a fork that comes between leaves one more open in the child, and not a number in the list that
	 * may be the program's by then. */
	memmove(&awaited[i], &awaited[i + 1], (LETTERS_AWAITED - 1 - (size_t)i) * sizeof(*awaited));
	awaited[LETTERS_AWAITED - 1].fd = 0;
	atomic_signal_fence(memory_order_seq_cst);
	if (fd >= 0)
		sys_close(fd);
}

static void await_letter(int fd, pid_t pid)
{
	struct awaited a = { .fd = fd + 1, .pid = pid };
	struct stat st;
	int i = 0;

	if (fstat(fd, &st) != 0) {
		sys_close(fd);
		return;
	}
	a.dev = st.st_dev;
	a.ino = st.st_ino;
	if (awaited[LETTERS_AWAITED - 1].fd)
		drop_awaited(0);
	while (awaited[i].fd)
		i++;
	awaited[i] = a;
}

/* What strangers sent is never taken out. */
void mailbox_empty(void)
{
	int fd = own_kept(&box);
	pid_t pid = 0;
	int s;

	/* What another thread has taken out and not mapped yet must be waited for. */
	if (fd < 0 || !robust_take(&opening))
		return;
	for (int i = 0; i < LETTERS_AWAITED && awaited[i].fd;) {
		if (!is_still_ours(&awaited[i]) || open_letter(awaited[i].fd - 1, awaited[i].pid))
			drop_awaited(i);
		else
			i++;
	}
	for (int i = 0; i < LETTERS_MOST; i++) {
		s = own_new(sys_accept(fd, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (s < 0)
			break;
		if (!mailbox_same_user(s, &pid) || open_letter(s, pid))
			own_close(s);
		else if ((s = own_move(s)) >= 0)
			await_letter(s, pid);
	}
	robust_give(&opening);
}

bool mailbox_is_open(void)
{
	return own_kept(&box) >= 0;
}

void mailbox_drop(void)
{
	own_drop(&box);
}

void mailbox_forked(void)
{
	atomic_store(&opening.word, 0);
	while (awaited[0].fd)
		drop_awaited(0);
	mailbox_drop();
}
