/* SPDX-License-Identifier: MIT */
#include "sockets/preload/fork.h"

#include "base/own.h"
#include "base/robust.h"
#include "base/self.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/meet.h"
#include "sockets/record/family.h"
#include "sockets/record/process.h"
#include "sockets/record/raw.h"
#include "sockets/record/sock.h"
#include "sockets/sleep/epoll.h"
#include "sockets/stream/stream.h"

/* Locks in their order (docs/design/locks.md); the table is counted last, when nobody changes it any more. */
void fork_prepare(void)
{
	epoll_fork_prepare();
	arena_fork_prepare();
	bell_fork_prepare();
	sock_fork_prepare();
}

void fork_parent(void)
{
	sock_fork_parent();
	family_fork_parent();
	bell_fork_parent();
	arena_fork_parent();
	epoll_fork_parent();
}

void fork_become_child(bool counted)
{
	self_forked();
	robust_forked();
	own_forked();
	meet_forked();
	epoll_forked();
	stream_forked();
	raw_forked();
	sock_forked(counted);
	epoll_forked_keeps();
	family_forked();
	process_forked();
}
