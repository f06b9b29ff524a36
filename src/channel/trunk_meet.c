/* SPDX-License-Identifier: MIT */
/*
 * How a trunk comes to the other process: as a letter into its mailbox, with the memory and one end of a pair of sockets.
 * Letters are of the same user, which the mailbox has checked; what is in them is looked at when the trunk is answered.
 */
#include <errno.h>
#include <sys/socket.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/sys.h"
#include "channel/peer.h"
#include "channel/trunk_priv.h"

/* So many may wait for an answer; more are closed, which their senders see. */
#define WAITING 16

static struct arrival {
	int memory, sock;
	pid_t pid;
} waiting[WAITING];
static unsigned n_waiting;
static struct robust_lock lock;

int trunk_call(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, const struct trunk_shape *shape,
	       struct trunk **out)
{
	struct letter letter = { .kind = LETTER_TRUNK };
	int fds[2], pair[2], rc, memory = trunk_memory(shape);

	if (memory < 0)
		return memory;
	if (sys_call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
		rc = -errno;
		own_close(memory);
		return rc;
	}
	own_new(pair[0]);
	own_new(pair[1]);
	/* Ours first: a peer that answers at once finds somebody. */
	rc = trunk_attach(memory, 0, pair[0], pid, out);
	fds[0] = memory;
	fds[1] = pair[1];
	if (rc == 0 && !mailbox_send(mailbox, pid, &letter, fds, 2)) {
		trunk_close(*out);
		rc = -ECONNREFUSED;
	}
	own_close(memory);
	own_close(pair[1]);
	return rc;
}

static bool take_letter(pid_t pid, const int *fds, size_t n)
{
	struct arrival a = { .pid = pid };
	bool ok;

	if (n != 2 || !robust_take(&lock))
		return false;
	ok = n_waiting < WAITING;
	if (ok) {
		a.memory = own_move(fds[0]);
		a.sock = own_move(fds[1]);
		if (a.memory >= 0 && a.sock >= 0) {
			waiting[n_waiting++] = a;
		} else {
			if (a.memory >= 0)
				sys_close(a.memory);
			if (a.sock >= 0)
				sys_close(a.sock);
		}
	}
	robust_give(&lock);
	return ok;
}

bool trunk_reachable(void)
{
	peer_set_trunks(take_letter);
	return peer_reachable();
}

static bool next(struct arrival *a)
{
	bool ok;

	if (!robust_take(&lock))
		return false;
	ok = n_waiting > 0;
	if (ok) {
		*a = waiting[0];
		n_waiting--;
		for (unsigned i = 0; i < n_waiting; i++)
			waiting[i] = waiting[i + 1];
	}
	robust_give(&lock);
	return ok;
}

int trunk_answer(struct trunk **out, pid_t *pid)
{
	struct arrival a;
	int rc;

	mailbox_empty();
	if (!next(&a))
		return -EAGAIN;
	rc = trunk_attach_moved(a.memory, 1, a.sock, a.pid, out);
	sys_close(a.memory);
	if (pid)
		*pid = a.pid;
	return rc;
}

void trunk_forked(void)
{
	atomic_store(&lock.word, 0);
	for (unsigned i = 0; i < n_waiting; i++) {
		sys_close(waiting[i].memory);
		sys_close(waiting[i].sock);
	}
	n_waiting = 0;
}
