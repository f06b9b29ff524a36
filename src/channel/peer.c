/* SPDX-License-Identifier: MIT */
#include "channel/peer.h"

#include <errno.h>
#include <stdatomic.h>

#include "base/own.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/mailbox.h"

static _Atomic(peer_trunk_fn *) trunks;
static _Atomic(peer_duct_fn *) ducts;

void peer_set_trunks(peer_trunk_fn *fn)
{
	atomic_store(&trunks, fn);
}

void peer_set_ducts(peer_duct_fn *fn)
{
	atomic_store(&ducts, fn);
}

/* A memory file, and perhaps the bell of who made it: that one gets ours. */
static bool take_lanes(const struct letter *letter, pid_t pid, const int *fds, size_t n)
{
	struct letter answer = { .kind = LETTER_BELL };
	struct arena *a = arena_map(fds[0], pid);
	int own = a ? bell_rope() : -1;

	if (a && n == 2)
		arena_set_bell(a, mailbox_key(letter->mailbox), fds[1]);
	else if (n == 2)
		own_close(fds[1]);
	if (own < 0)
		return true;
	answer.memory = arena_id(a);
	mailbox_send(letter->mailbox, pid, &answer, &own, 1);
	return true;
}

static bool take_bell(const struct letter *letter, pid_t pid, int fd)
{
	struct arena *a = arena_made_for(letter->memory, pid);

	if (a)
		arena_set_bell(a, mailbox_key(letter->mailbox), fd);
	return a != NULL;
}

static bool read_letter(const struct letter *letter, pid_t pid, const int *fds, size_t n)
{
	peer_trunk_fn *trunk = atomic_load(&trunks);
	peer_duct_fn *duct = atomic_load(&ducts);

	if (letter->kind == LETTER_LANES && n > 0)
		return take_lanes(letter, pid, fds, n);
	if (letter->kind == LETTER_TRUNK)
		return trunk && trunk(pid, fds, n);
	if (letter->kind == LETTER_DUCT)
		return duct && duct(letter->memory, pid, fds, n);
	return letter->kind == LETTER_BELL && n == 1 && take_bell(letter, pid, fds[0]);
}

bool peer_reachable(void)
{
	mailbox_set_reader(read_letter);
	return mailbox_open();
}

bool peer_send_lanes(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, int fd)
{
	struct letter letter = { .kind = LETTER_LANES };
	int fds[LETTER_FDS] = { fd, bell_rope() };

	return mailbox_send(mailbox, pid, &letter, fds, fds[1] >= 0 ? 2 : 1);
}

struct arena *peer_arena(uint64_t id)
{
	struct arena *a = arena_by_id(id);

	if (a)
		return a;
	mailbox_empty();
	return arena_by_id(id);
}

int peer_bell(struct arena *a, bool look)
{
	int bell = arena_bell(a);
	int saved = errno;

	if (bell < 0 && look) {
		mailbox_empty();
		bell = arena_bell(a);
	}
	errno = saved;
	return bell;
}
