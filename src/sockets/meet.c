/* SPDX-License-Identifier: MIT */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/arena.h"
#include "sockets/bell.h"
#include "sockets/board.h"
#include "sockets/hello.h"
#include "sockets/meet.h"
#include "sockets/process.h"
#include "sockets/quick.h"
#include "sockets/real.h"
#include "sockets/sock.h"

static uint8_t mailbox_name[MAILBOX_NAME];
/* How often a connection looks for the bell of its peer. */
#define BELL_ASKS 8

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif

/* --- what the kernel says about the socket at the other end */

struct other_end {
	uint64_t cookie;
	uint32_t uid;
	uint32_t inode;  /* 0: no program has it yet, or any more */
	uint32_t unread; /* octets in its queue */
	uint32_t unsent; /* octets that it holds back, as our end has no room for them */
};

static void fill_diag(struct inet_diag_sockid *id, const struct sockaddr_in6 *src,
		      const struct sockaddr_in6 *dst, bool v4)
{
	id->idiag_sport = src->sin6_port;
	id->idiag_dport = dst->sin6_port;
	id->idiag_cookie[0] = INET_DIAG_NOCOOKIE;
	id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
	memcpy(id->idiag_src, src->sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
	memcpy(id->idiag_dst, dst->sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
}

static uint32_t find_unsent(const struct rtattr *a, size_t left)
{
	struct tcp_info info;

	for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
		if (a->rta_type != INET_DIAG_INFO)
			continue;
		memset(&info, 0, sizeof(info));
		memcpy(&info, RTA_DATA(a), min_size(RTA_PAYLOAD(a), sizeof(info)));
		return info.tcpi_notsent_bytes;
	}
	return 0;
}

static bool ask_kernel(const struct rec *r, struct other_end *out)
{
	bool v4 = IN6_IS_ADDR_V4MAPPED(&r->self.sin6_addr);
	struct {
		struct nlmsghdr head;
		struct inet_diag_req_v2 req;
	} ask = {
		.head = { .nlmsg_len = sizeof(ask),
			  .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			  .nlmsg_flags = NLM_F_REQUEST },
		.req = { .sdiag_family = v4 ? AF_INET : AF_INET6,
			 .sdiag_protocol = IPPROTO_TCP,
			 .idiag_ext = 1 << (INET_DIAG_INFO - 1),
			 .idiag_states = ~0u },
	};
	struct {
		struct nlmsghdr head;
		struct inet_diag_msg msg;
		_Alignas(struct rtattr) uint8_t rest[1024];
	} answer;
	int fd = sock_ours(real(socket)(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
	ssize_t n = -1;

	if (fd < 0)
		return false;
	fill_diag(&ask.req.id, &r->peer, &r->self, v4);
	if (quick_send(fd, &ask, sizeof(ask), 0) == (ssize_t)sizeof(ask))
		n = quick_recv(fd, &answer, sizeof(answer), 0);
	sock_close_ours(fd);
	if (n < (ssize_t)(sizeof(answer.head) + sizeof(answer.msg)) ||
	    answer.head.nlmsg_type != SOCK_DIAG_BY_FAMILY)
		return false;
	out->cookie = answer.msg.id.idiag_cookie[0] | (uint64_t)answer.msg.id.idiag_cookie[1] << 32;
	out->uid = answer.msg.idiag_uid;
	out->inode = answer.msg.idiag_inode;
	out->unread = answer.msg.idiag_rqueue;
	out->unsent = find_unsent((const struct rtattr *)answer.rest,
				  (size_t)n - offsetof(typeof(answer), rest));
	return true;
}

static uint64_t netns_cookie(void)
{
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	int fd = sock_ours(real(socket)(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	if (fd >= 0) {
		real(getsockopt)(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size);
		sock_close_ours(fd);
	}
	return cookie;
}

/* --- the mailbox of this process */

static int make_mailbox(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	socklen_t size = sizeof(name);
	int fd = sock_ours(real(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (fd < 0)
		return -1;
	/* The kernel chooses an abstract name. */
	if (real(bind)(fd, (struct sockaddr *)&name, sizeof(sa_family_t)) != 0 ||
	    real(listen)(fd, 1024) != 0 ||
	    real(getsockname)(fd, (struct sockaddr *)&name, &size) != 0 ||
	    size - offsetof(struct sockaddr_un, sun_path) > sizeof(mailbox_name)) {
		sock_close_ours(fd);
		return -1;
	}
	memset(mailbox_name, 0, sizeof(mailbox_name));
	memcpy(mailbox_name, name.sun_path, size - offsetof(struct sockaddr_un, sun_path));
	return fd;
}

static int mailbox(void)
{
	return process_kept_or(OUR_MAILBOX, make_mailbox);
}

static bool same_user(int fd, pid_t *pid)
{
	struct ucred cred;
	socklen_t size = sizeof(cred);

	if (real(getsockopt)(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
		return false;
	if (pid)
		*pid = cred.pid;
	return cred.uid == geteuid();
}

/* What is put into mailboxes, with descriptors. */
struct letter {
	enum { LETTER_LANES = 'L', LETTER_BELL = 'B' } kind;
	uint64_t arena;                /* LETTER_BELL: which one's peer this is */
	uint8_t mailbox[MAILBOX_NAME]; /* of the sender */
};

#define LETTER_FDS 2
/* Taken out at a time. */
#define LETTERS_MOST 64
/* Who has connected is about to write: so many can be on their way, and nobody waits for them. */
#define LETTERS_AWAITED 8

/* To the process `pid`, or nobody. */
static bool send_letter(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, struct letter *letter,
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
	int s = sock_ours(real(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));

	if (s < 0)
		return false;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	memcpy(letter->mailbox, mailbox_name, sizeof(letter->mailbox));
	memcpy(name.sun_path, mailbox, MAILBOX_NAME);
	ok = quick_connect(s, (struct sockaddr *)&name,
			   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) == 0 &&
	     same_user(s, &other) && other == pid &&
	     quick_sendmsg(s, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(*letter);
	sock_close_ours(s);
	return ok;
}

static bool send_lanes(const struct board_slot *slot, int fd)
{
	struct letter letter = { .kind = LETTER_LANES };
	int fds[LETTER_FDS] = { fd, bell_rope() };

	return send_letter(slot->mailbox, (pid_t)slot->pid, &letter, fds, fds[1] >= 0 ? 2 : 1);
}

static uint64_t mailbox_key(const uint8_t mailbox[MAILBOX_NAME])
{
	uint64_t key;

	memcpy(&key, mailbox, sizeof(key));
	return key;
}

/* A memory file, and perhaps the bell of who made it: that one gets ours. Takes the descriptors. */
static void take_lanes(const struct letter *letter, pid_t pid, const int *fds, size_t n)
{
	struct letter answer = { .kind = LETTER_BELL };
	struct arena *a = arena_map(fds[0], pid);
	int own = a ? bell_rope() : -1;

	if (a && n == 2)
		arena_set_bell(a, mailbox_key(letter->mailbox), fds[1]);
	else if (n == 2)
		sock_close_ours(fds[1]);
	if (own < 0)
		return;
	answer.arena = arena_id(a);
	send_letter(letter->mailbox, pid, &answer, &own, 1);
}

static void take_bell(const struct letter *letter, pid_t pid, int fd)
{
	struct arena *a = arena_made_for(letter->arena, pid);

	if (a)
		arena_set_bell(a, mailbox_key(letter->mailbox), fd);
	else
		sock_close_ours(fd);
}

/* `letter` NULL: it is not one. Takes the descriptors. */
static void open_letter(const struct letter *letter, pid_t pid, const int *fds, size_t n)
{
	if (letter && letter->kind == LETTER_LANES && (n == 1 || n == LETTER_FDS))
		take_lanes(letter, pid, fds, n);
	else if (letter && letter->kind == LETTER_BELL && n == 1)
		take_bell(letter, pid, fds[0]);
	else
		for (size_t i = 0; i < n; i++)
			sock_close_ours(fds[i]);
}

/* One letter of somebody who is the same user. False: it is not here yet. */
static bool read_letter(int s, pid_t pid)
{
	char control[CMSG_SPACE(2 * LETTER_FDS * sizeof(int))];
	struct letter letter = { 0 };
	struct iovec iov = { &letter, sizeof(letter) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t size = quick_recvmsg(s, &msg, MSG_CMSG_CLOEXEC);
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
		sock_ours(fds[i]);
	open_letter(whole ? &letter : NULL, pid, fds, n);
	return true;
}

/* Connections whose letter is still to come, the oldest first. With the lock. */
static struct {
	int fd; /* + 1 */
	pid_t pid;
} awaited[LETTERS_AWAITED];
static struct rec_lock opening;

static void drop_awaited(int i)
{
	quick_close(awaited[i].fd - 1);
	memmove(&awaited[i], &awaited[i + 1], (LETTERS_AWAITED - 1 - (size_t)i) * sizeof(*awaited));
	awaited[LETTERS_AWAITED - 1].fd = 0;
}

static void await_letter(int fd, pid_t pid)
{
	int i = 0;

	if (awaited[LETTERS_AWAITED - 1].fd)
		drop_awaited(0);
	while (awaited[i].fd)
		i++;
	awaited[i].fd = fd + 1;
	awaited[i].pid = pid;
}

/* Map everything that waits in the mailbox. What strangers sent is never taken out. */
static void empty_mailbox(void)
{
	int box = process_kept(OUR_MAILBOX);
	pid_t pid = 0;
	int s;

	/* What another thread has taken out and not mapped yet must be waited for. */
	if (box < 0 || !rec_lock_take(&opening))
		return;
	for (int i = 0; i < LETTERS_AWAITED && awaited[i].fd;) {
		if (read_letter(awaited[i].fd - 1, awaited[i].pid))
			drop_awaited(i);
		else
			i++;
	}
	for (int i = 0; i < LETTERS_MOST; i++) {
		s = sock_ours(quick_accept(box, SOCK_CLOEXEC | SOCK_NONBLOCK));
		if (s < 0)
			break;
		if (!same_user(s, &pid) || read_letter(s, pid))
			sock_close_ours(s);
		else if ((s = sock_move_ours(s)) >= 0)
			await_letter(s, pid);
	}
	rec_lock_give(&opening);
}

/* --- offers */

static void describe(const struct rec *r, struct board_slot *slot)
{
	memset(slot, 0, sizeof(*slot));
	slot->state = BOARD_POSTED;
	slot->pid = (uint32_t)getpid();
	slot->netns = netns_cookie();
	slot->cookie = r->cookie;
	slot->self = r->self.sin6_addr;
	slot->peer = r->peer.sin6_addr;
	slot->self_port = r->self.sin6_port;
	slot->peer_port = r->peer.sin6_port;
	slot->role = r->role;
	memcpy(slot->mailbox, mailbox_name, sizeof(slot->mailbox));
}

static bool is_peer(const struct board_slot *mine, const struct board_slot *other)
{
	return other->state == BOARD_POSTED && other->netns == mine->netns &&
	       other->self_port == mine->peer_port && other->peer_port == mine->self_port &&
	       memcmp(&other->self, &mine->peer, sizeof(mine->peer)) == 0 &&
	       memcmp(&other->peer, &mine->self, sizeof(mine->self)) == 0;
}

/* Which end connected? One of the two knows. */
static bool agree_roles(struct rec *r, uint32_t other)
{
	if (r->role == ROLE_UNKNOWN && (other == ROLE_ACTIVE || other == ROLE_PASSIVE))
		r->role = other == ROLE_ACTIVE ? ROLE_PASSIVE : ROLE_ACTIVE;
	return r->role != ROLE_UNKNOWN && r->role != other;
}

/* Make a lane for the offer in `slot`. */
static enum meet_result claim(struct rec *r, struct board_slot *slot, enum why *why)
{
	struct other_end end;
	struct arena *a;
	uint32_t lane;
	int fd;

	*why = WHY_CHECK;
	if (!ask_kernel(r, &end) || end.cookie != slot->cookie || end.uid != geteuid())
		return MEET_NEVER;
	r->peer_cookie = end.cookie;
	r->rx_before = end.unsent;
	*why = WHY_ROLE;
	if (!agree_roles(r, slot->role))
		return MEET_NEVER;
	*why = WHY_LIMIT;
	a = arena_take((pid_t)slot->pid, board_mailbox_key(slot), &lane, &fd);
	if (!a)
		return MEET_NEVER;
	if (fd >= 0) {
		bool sent = send_lanes(slot, fd);

		sock_close_ours(fd);
		if (!sent) {
			arena_undo(a, lane);
			*why = WHY_CHECK;
			return MEET_NEVER;
		}
	}
	atomic_store(&arena_memory(a)->lane[lane].cookie[0], r->cookie);
	atomic_store(&arena_memory(a)->lane[lane].cookie[1], slot->cookie);
	hello_offer(&arena_memory(a)->lane[lane]);
	r->arena = a;
	r->lane = lane;
	r->side = 0;
	slot->state = BOARD_CLAIMED;
	slot->arena = arena_id(a);
	slot->lane = lane;
	slot->claimer = r->cookie;
	slot->role = r->role;
	return MEET_LANE;
}

enum meet_result meet_peer(struct rec *r, enum why *why)
{
	struct board_slot bucket[BOARD_BUCKET];
	struct board_slot mine;
	enum meet_result result = MEET_NOTHING;
	uint32_t first;
	int free = -1;

	*why = WHY_BOARD;
	if (mailbox() < 0)
		return MEET_NEVER;
	describe(r, &mine);
	first = board_bucket(&mine);
	if (!board_lock(first, bucket))
		return board_fd() < 0 ? MEET_NEVER : MEET_NOTHING;
	for (int i = 0; i < BOARD_BUCKET; i++) {
		if (is_peer(&mine, &bucket[i])) {
			result = claim(r, &bucket[i], why);
			if (result == MEET_NEVER && *why == WHY_CHECK) {
				bucket[i].state = BOARD_EMPTY; /* an old one with our numbers */
				result = MEET_NOTHING;
			}
			board_write(first + (uint32_t)i, &bucket[i]);
			if (result == MEET_LANE)
				goto out;
			if (result == MEET_NEVER)
				goto out;
		}
		if (free < 0 && board_is_stale(&bucket[i]))
			free = i;
	}
	result = MEET_NOTHING;
	if (free >= 0 && board_write(first + (uint32_t)free, &mine)) {
		r->slot = first + (uint32_t)free;
		result = MEET_POSTED;
	}
out:
	board_unlock(first);
	return result;
}

/* The arena that the claimer named, if it is from the other end of this connection. */
static struct arena *find_arena(struct rec *r, const struct board_slot *slot)
{
	struct arena *a = arena_by_id(slot->arena);
	struct other_end end;

	if (!a) {
		empty_mailbox();
		a = arena_by_id(slot->arena);
	}
	if (!a || !ask_kernel(r, &end) || end.cookie != slot->claimer || end.uid != geteuid())
		return NULL;
	r->peer_cookie = end.cookie;
	r->rx_before = end.unsent;
	return agree_roles(r, slot->role) ? a : NULL;
}

/* A lane was made for us, and we shall not come: its maker may use it for others. */
static void decline(const struct rec *r, const struct board_slot *slot)
{
	struct arena *a = arena_by_id(slot->arena);
	struct lane_shared *l;

	if (!a) {
		empty_mailbox();
		a = arena_by_id(slot->arena);
	}
	if (!a || slot->lane >= ARENA_LANES)
		return;
	l = &arena_memory(a)->lane[slot->lane];
	if (atomic_load(&l->cookie[0]) == slot->claimer && atomic_load(&l->cookie[1]) == r->cookie)
		atomic_store(&l->done[1], 1);
}

/* With the bucket's lock, or somebody could take the offer between our look and our word. */
static bool take_down(struct rec *r, struct board_slot *slot)
{
	struct board_slot bucket[BOARD_BUCKET];
	uint32_t first = r->slot - r->slot % BOARD_BUCKET;
	bool ours;

	if (!board_lock(first, bucket)) {
		/* Then without: who takes it now loses a lane. */
		if (!board_read(r->slot, slot) || slot->cookie != r->cookie ||
		    slot->pid != (uint32_t)getpid())
			return false;
		bucket[0] = *slot;
		bucket[0].state = BOARD_EMPTY;
		return board_write(r->slot, &bucket[0]);
	}
	*slot = bucket[r->slot - first];
	ours = slot->cookie == r->cookie && slot->pid == (uint32_t)getpid() &&
	       slot->state != BOARD_EMPTY;
	if (ours) {
		bucket[r->slot - first].state = BOARD_EMPTY;
		board_write(r->slot, &bucket[r->slot - first]);
	}
	board_unlock(first);
	return ours;
}

enum meet_result meet_check(struct rec *r, enum why *why)
{
	struct board_slot slot;
	struct arena *a;

	*why = WHY_BOARD;
	if (!board_read(r->slot, &slot) || slot.cookie != r->cookie ||
	    slot.pid != (uint32_t)getpid())
		return MEET_NEVER;
	if (slot.state == BOARD_POSTED)
		return MEET_POSTED;
	*why = WHY_CHECK;
	if (slot.state != BOARD_CLAIMED)
		return MEET_NEVER;
	a = find_arena(r, &slot);
	take_down(r, &slot);
	if (!a || slot.lane >= ARENA_LANES ||
	    atomic_load(&arena_memory(a)->lane[slot.lane].cookie[0]) != slot.claimer ||
	    atomic_load(&arena_memory(a)->lane[slot.lane].cookie[1]) != r->cookie ||
	    !arena_attach(a, slot.lane)) {
		decline(r, &slot);
		return MEET_NEVER;
	}
	*why = WHY_HELLO;
	if (!hello_answer(&arena_memory(a)->lane[slot.lane])) {
		arena_give(a, slot.lane, 1);
		return MEET_NEVER;
	}
	r->arena = a;
	r->lane = slot.lane;
	r->side = 1;
	return MEET_LANE;
}

bool meet_peer_unread(const struct rec *r, size_t *n)
{
	struct other_end end;

	if (!ask_kernel(r, &end))
		return false;
	*n = end.unread;
	return true;
}

bool meet_peer_user(const struct rec *r, uint32_t *uid)
{
	struct other_end end;

	if (!ask_kernel(r, &end) || end.inode == 0)
		return false;
	*uid = end.uid;
	return true;
}

void meet_withdraw(struct rec *r)
{
	struct board_slot slot;

	if (take_down(r, &slot) && slot.state == BOARD_CLAIMED)
		decline(r, &slot);
}

int meet_bell(struct rec *r)
{
	struct arena *a = r->arena;
	int bell = arena_bell(a);

	/* The other end's letter may have come since. */
	if (bell < 0 && r->side == 0 && r->bell_asked < BELL_ASKS && process_is_self()) {
		int saved = errno;

		r->bell_asked++;
		empty_mailbox();
		bell = arena_bell(a);
		errno = saved;
	}
	return bell;
}

void meet_forked(void)
{
	atomic_store(&opening.word, 0);
	while (awaited[0].fd)
		drop_awaited(0);
	arena_forked();
	board_forked();
}
