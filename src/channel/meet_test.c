/* SPDX-License-Identifier: MIT */
/*
 * Two ends of a real connection over loopback find each other, and nobody else does. As a user that
 * does not exist (see board_test.c), so it needs root.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/own_test.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/board.h"
#include "channel/mailbox.h"
#include "channel/meet.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uid_t user;
static struct meet_end near, far;
static int near_fd, far_fd;
static enum meet_refusal why;

/* --- what the ends tell each other */

static void greet(struct lane_shared *lane, int side, const char *word)
{
	strcpy((char *)lane->private_data[side], word);
	atomic_store(&lane->private_size[side], (uint32_t)strlen(word));
}

static void offer(struct lane_shared *lane)
{
	greet(lane, 0, "hail");
}

static bool answer(struct lane_shared *lane)
{
	if (atomic_load(&lane->private_size[0]) != 4 ||
	    memcmp(lane->private_data[0], "hail", 4) != 0)
		return false;
	greet(lane, 1, "and well met");
	return true;
}

static const struct meet_greeting greeting = { .offer = offer, .answer = answer };

/* --- a connection */

static void map_address(struct sockaddr_in6 *out, const struct sockaddr_in *in)
{
	memset(out, 0, sizeof(*out));
	out->sin6_family = AF_INET6;
	out->sin6_port = in->sin_port;
	out->sin6_addr.s6_addr[10] = out->sin6_addr.s6_addr[11] = 0xff;
	memcpy(out->sin6_addr.s6_addr + 12, &in->sin_addr, 4);
}

static void describe(struct meet_end *r, int fd, uint32_t role)
{
	struct sockaddr_in a;
	socklen_t size = sizeof(a);

	memset(r, 0, sizeof(*r));
	assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
	map_address(&r->self, &a);
	assert_int_equal(getpeername(fd, (struct sockaddr *)&a, &size), 0);
	map_address(&r->peer, &a);
	size = sizeof(r->cookie);
	assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &r->cookie, &size), 0);
	r->role = role;
}

static void connect_both(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(listen(l, 1), 0);
	assert_int_equal(getsockname(l, (struct sockaddr *)&a, &size), 0);
	near_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(connect(near_fd, (struct sockaddr *)&a, sizeof(a)), 0);
	far_fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	assert_true(far_fd >= 0);
	close(l);
	describe(&near, near_fd, MEET_ACTIVE);
	describe(&far, far_fd, MEET_PASSIVE);
}

static void remove_board(void)
{
	char path[64];

	snprintf(path, sizeof(path), "/dev/shm/flue.%u", user);
	unlink(path);
}

static int begin(void **st)
{
	if (geteuid() != 0)
		return 0;
	arena_set_most(1000);
	user = 3100000000u + (uid_t)getpid() % 100000000u;
	if (seteuid(user) != 0)
		return -1;
	connect_both();
	return 0;
}

static int end(void **st)
{
	if (geteuid() != user)
		return 0;
	close(near_fd);
	close(far_fd);
	board_drop();
	if (seteuid(0) != 0)
		return -1;
	remove_board();
	return 0;
}

#define NEED_ROOT()                    \
	do {                           \
		if (geteuid() != user) \
			skip();        \
	} while (0)

static void post(struct meet_end *r)
{
	assert_int_equal(meet_peer(r, &greeting, &why), MEET_POSTED);
	assert_int_equal(meet_check(r, &greeting, &why), MEET_POSTED);
}

static struct board_slot slot_of(const struct meet_end *r)
{
	struct board_slot slot;

	assert_true(board_read(r->slot, &slot));
	return slot;
}

/* --- finding */

static void check_shared(void)
{
	struct arena_shared *a = arena_memory(near.arena), *b = arena_memory(far.arena);

	assert_ptr_not_equal(a, b);
	assert_int_equal(near.lane, far.lane);
	arena_ring(near.arena, near.lane, 0)[5] = 77;
	assert_int_equal(arena_ring(far.arena, far.lane, 0)[5], 77);
	arena_ring(far.arena, far.lane, 1)[9] = 78;
	assert_int_equal(arena_ring(near.arena, near.lane, 1)[9], 78);
}

static void ends_meet_when_both_are_in_one_process(void **st)
{
	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	assert_int_equal(far.side, 0);
	assert_int_equal(near.side, 1);
	assert_int_equal(far.peer_cookie, near.cookie);
	assert_int_equal(near.peer_cookie, far.cookie);
	check_shared();
	assert_int_equal(slot_of(&near).state, BOARD_EMPTY);
}

/* The child leaves an offer; 0 when it gets a lane and finds there what the parent wrote. */
static void be_far(int to, int from)
{
	char octet;

	meet_forked();
	if (meet_peer(&far, &greeting, &why) != MEET_POSTED)
		_exit(1);
	if (write(to, "p", 1) != 1 || read(from, &octet, 1) != 1)
		_exit(2);
	if (meet_check(&far, &greeting, &why) != MEET_LANE)
		_exit(3);
	_exit(arena_ring(far.arena, far.lane, 0)[3] == 99 && far.side == 1 ? 0 : 4);
}

static void ends_meet_when_they_are_in_two_processes(void **st)
{
	int there[2], back[2], status = -1;
	char octet;
	pid_t pid;

	NEED_ROOT();
	assert_int_equal(pipe2(there, O_CLOEXEC) | pipe2(back, O_CLOEXEC), 0);
	pid = fork();
	if (pid == 0)
		be_far(there[1], back[0]);
	assert_int_equal(read(there[0], &octet, 1), 1);
	assert_int_equal(meet_peer(&near, &greeting, &why), MEET_LANE);
	arena_ring(near.arena, near.lane, 0)[3] = 99;
	assert_int_equal(write(back[1], "g", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 0);
	for (int i = 0; i < 2; i++) {
		close(there[i]);
		close(back[i]);
	}
}

static void ends_agree_on_roles_when_one_knows(void **st)
{
	NEED_ROOT();
	near.role = MEET_UNKNOWN;
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	assert_int_equal(near.role, MEET_ACTIVE);
	end(st);
	begin(st);
	far.role = MEET_UNKNOWN;
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(far.role, MEET_PASSIVE);
	end(st);
	begin(st);
	near.role = far.role = MEET_UNKNOWN;
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_NEVER);
	assert_int_equal(why, MEET_ROLE);
}

static void offer_is_gone_when_it_is_withdrawn(void **st)
{
	NEED_ROOT();
	post(&near);
	meet_withdraw(&near);
	assert_int_equal(slot_of(&near).state, BOARD_EMPTY);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_NEVER);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_POSTED);
}

/* Who made the lane may use it again when both ends are done. */
static void lane_is_declined_when_a_taken_offer_is_withdrawn(void **st)
{
	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(slot_of(&near).state, BOARD_CLAIMED);
	assert_int_equal(atomic_load(&arena_memory(far.arena)->lane[far.lane].done[1]), 0);
	meet_withdraw(&near);
	assert_int_equal(slot_of(&near).state, BOARD_EMPTY);
	assert_int_equal(atomic_load(&arena_memory(far.arena)->lane[far.lane].done[1]), 1);
}

static void offer_is_refused_when_kernel_knows_another_socket(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	slot.cookie += 1000000;
	assert_true(board_write(near.slot, &slot));
	/* Away with it, and our own instead. */
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_POSTED);
	assert_int_not_equal(slot_of(&far).cookie, slot.cookie);
	assert_int_equal(slot_of(&far).cookie, far.cookie);
}

/* Addresses mean something else there. */
static void offer_is_passed_over_when_it_is_of_another_network(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	slot.netns++;
	assert_true(board_write(near.slot, &slot));
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_POSTED);
	assert_int_equal(slot_of(&near).state, BOARD_POSTED);
	assert_int_equal(slot_of(&near).netns, slot.netns);
}

/* A child of fork has the record, but the offer is its parent's. */
static void offer_stays_when_another_process_withdraws_it(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	slot.pid = (uint32_t)getppid();
	assert_true(board_write(near.slot, &slot));
	meet_withdraw(&near);
	assert_int_equal(slot_of(&near).state, BOARD_POSTED);
}

static void offer_is_refused_when_socket_is_another_users(void **st)
{
	NEED_ROOT();
	/* The connection is made by somebody else, who writes onto our board (as root could). */
	close(near_fd);
	close(far_fd);
	assert_int_equal(seteuid(0), 0);
	connect_both();
	assert_int_equal(seteuid(user), 0);
	post(&near);
	assert_int_not_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
}

static void offer_is_refused_when_mailbox_is_not_of_its_process(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	slot.pid = (uint32_t)getppid();
	assert_true(board_write(near.slot, &slot));
	assert_int_not_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	slot.pid = (uint32_t)getpid();
	memset(slot.mailbox, 0xff, sizeof(slot.mailbox));
	assert_true(board_write(near.slot, &slot));
	assert_int_not_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
}

static void claim_is_refused_when_it_is_forged(void **st)
{
	struct board_slot good, slot;

	NEED_ROOT();
	for (int i = 0; i < 5; i++) {
		post(&near);
		assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
		good = slot = slot_of(&near);
		assert_int_equal(slot.state, BOARD_CLAIMED);
		switch (i) {
		case 0: slot.lane = ARENA_LANES; break;
		case 1: slot.lane = (slot.lane + 1) % ARENA_LANES; break;
		case 2: slot.claimer += 1000000; break;
		case 3: slot.arena ^= 1; break;
		case 4: slot.role = near.role; break;
		}
		assert_true(board_write(near.slot, &slot));
		assert_int_equal(meet_check(&near, &greeting, &why), MEET_NEVER);
		assert_null(near.arena);
		end(st);
		begin(st);
	}
	(void)good;
}

static void lane_is_refused_when_it_is_named_twice(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	slot = slot_of(&near);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	assert_true(board_write(near.slot, &slot));
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_NEVER);
}

/* --- greetings */

static struct lane_shared *lane_of(const struct meet_end *r)
{
	return &arena_memory(r->arena)->lane[r->lane];
}

static void ends_have_greeted_each_other_when_they_have_met(void **st)
{
	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_not_equal(atomic_load(&lane_of(&far)->private_size[0]), 0);
	assert_int_equal(atomic_load(&lane_of(&far)->private_size[1]), 0);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	assert_int_equal(atomic_load(&lane_of(&far)->private_size[1]), 12);
	/* Nobody has attached so far. */
	assert_int_equal(atomic_load(&lane_of(&far)->dir[0].word), 0);
}

static void lane_is_let_go_when_its_greeting_is_refused(void **st)
{
	struct lane_shared *lane;
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	slot = slot_of(&near);
	lane = lane_of(&far);
	for (int i = 0; i < 3; i++) {
		offer(lane);
		switch (i) {
		case 0: atomic_store(&lane->private_size[0], 0); break;
		case 1: atomic_store(&lane->private_size[0], UINT32_MAX); break;
		case 2: lane->private_data[0][3] = 0x31; break;
		}
		atomic_store(&lane->done[1], 0);
		assert_true(board_write(near.slot, &slot));
		assert_int_equal(meet_check(&near, &greeting, &why), MEET_NEVER);
		assert_int_equal(why, MEET_GREETING);
		assert_null(near.arena);
		assert_int_equal(atomic_load(&lane->done[1]), 1);
		assert_int_equal(atomic_load(&lane->private_size[1]), 0);
		assert_int_equal(atomic_load(&lane->dir[0].word), 0);
	}
	/* So it was not counted as taken either. */
	offer(lane);
	assert_true(board_write(near.slot, &slot));
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
}

/* --- the board */

static void offer_waits_when_bucket_is_full_of_the_living(void **st)
{
	struct board_slot slot;
	uint32_t first;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	first = near.slot - near.slot % BOARD_BUCKET;
	slot.self_port ^= 1;
	for (uint32_t i = 0; i < BOARD_BUCKET; i++)
		assert_true(board_write(first + i, &slot));
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_NOTHING);
	/* One of them dies. */
	slot.pid = 0x7ffffff0;
	assert_true(board_write(first + 9, &slot));
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_POSTED);
	assert_int_equal(far.slot, first + 9);
}

static void nothing_happens_when_board_is_full_of_nonsense(void **st)
{
	static uint8_t junk[BOARD_BUCKETS * BOARD_BUCKET * sizeof(struct board_slot)];
	unsigned seed = 1;
	int before;

	NEED_ROOT();
	post(&near);
	before = open_fds();
	for (int round = 0; round < 100; round++) {
		struct board_slot slot = slot_of(&near);
		enum meet_result result;

		for (size_t i = 0; i < sizeof(junk); i++)
			junk[i] = (uint8_t)(rand_r(&seed) >> 7);
		assert_int_equal(pwrite(board_fd(), junk, sizeof(junk), 0), sizeof(junk));
		/* Nearly right: who it is from is true, the rest is not. */
		memcpy((uint8_t *)&slot + round % 128, junk, 128 - (size_t)round % 128);
		slot.cookie = near.cookie;
		slot.pid = (uint32_t)getpid();
		slot.state = (uint32_t)round % 4;
		assert_true(board_write(near.slot, &slot));
		result = meet_check(&near, &greeting, &why);
		assert_true(result == MEET_NEVER || result == MEET_POSTED); /* no lane, for sure */
		result = meet_peer(&far, &greeting, &why);
		if (result == MEET_POSTED)
			meet_withdraw(&far);
		result = meet_peer(&near, &greeting, &why);
		if (result != MEET_POSTED)
			near.slot = 0;
	}
	assert_int_equal(open_fds(), before);
}

/* --- the mailbox */

#define MOST_FDS 100
#define NOBODY   0xabcdef /* the id of memory that must not be accepted */

static int make_memory(size_t size, int seals, uint64_t magic, uint64_t id)
{
	uint64_t head[2] = { magic, id };
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int good_memory(uint64_t id)
{
	return make_memory(sizeof(struct arena_shared), SEALS, ARENA_MAGIC, id);
}

/* Put `size` octets of a letter and `n` descriptors into a mailbox; closes them. */
static void mail(const uint8_t *mailbox, const void *letter, size_t size, const int *fds, size_t n)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	size_t length = strnlen((const char *)mailbox + 1, MAILBOX_NAME - 1) + 1;
	char control[CMSG_SPACE(MOST_FDS * sizeof(int))] = { 0 };
	uint8_t data[sizeof(struct letter) + 8] = { 0 };
	struct iovec iov = { data, size };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(data, letter, sizeof(struct letter));
	memcpy(name.sun_path, mailbox, MAILBOX_NAME);
	assert_int_equal(connect(s, (struct sockaddr *)&name,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)),
			 0);
	if (n > 0) {
		struct cmsghdr *c;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(n * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n * sizeof(int));
		memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	}
	assert_int_equal(sendmsg(s, &msg, MSG_NOSIGNAL), size);
	close(s);
	for (size_t i = 0; i < n; i++)
		if (i == 0 || fds[i] != fds[0])
			close(fds[i]);
}

/* The same descriptor `n` times, as if it were lanes. */
static void mail_lanes(const struct board_slot *slot, int fd, size_t n, size_t size)
{
	struct letter letter = { .kind = 'L' };
	int fds[MOST_FDS];

	for (size_t i = 0; i < MOST_FDS; i++)
		fds[i] = fd;
	memcpy(letter.mailbox, slot->mailbox, MAILBOX_NAME);
	mail(slot->mailbox, &letter, size, fds, n);
	if (n == 0)
		close(fd);
}

/* The offer is taken as if this memory had been sent; the mailbox is emptied over it. */
static void empty_mailbox(uint64_t arena)
{
	struct board_slot slot = slot_of(&near);

	slot.state = BOARD_CLAIMED;
	slot.arena = arena;
	slot.claimer = far.cookie;
	slot.role = far.role;
	assert_true(board_write(near.slot, &slot));
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_NEVER);
}

static void check_refused(void)
{
	int before;

	bell_own();
	before = open_fds();
	empty_mailbox(NOBODY);
	assert_null(arena_by_id(NOBODY));
	assert_int_equal(open_fds(), before);
}

static void mail_is_refused_when_memory_is_not_as_it_should_be(void **st)
{
	const size_t size = sizeof(struct arena_shared), whole = sizeof(struct letter);
	const struct {
		size_t size;
		int seals;
		uint64_t magic;
		size_t n, octets;
	} bad[] = {
		{ size / 2, SEALS, ARENA_MAGIC, 1, whole },
		{ size / 2, SEALS, ARENA_MAGIC, 2, whole },
		{ size, 0, ARENA_MAGIC, 1, whole },
		{ size, SEALS & ~F_SEAL_SHRINK, ARENA_MAGIC, 2, whole },
		{ size, SEALS, 1, 1, whole },
		{ size, SEALS, 1, 2, whole },
		{ size + 4096, SEALS, ARENA_MAGIC, 1, whole },
		{ size, SEALS, ARENA_MAGIC, 0, whole },
		{ size, SEALS, ARENA_MAGIC, 3, whole },
		{ size, SEALS, ARENA_MAGIC, 4, whole },
		{ size, SEALS, ARENA_MAGIC, 5, whole },
		{ size, SEALS, ARENA_MAGIC, MOST_FDS, whole },
		{ size, SEALS, ARENA_MAGIC, 1, 0 },
		{ size, SEALS, ARENA_MAGIC, 2, 1 },
		{ size, SEALS, ARENA_MAGIC, 1, sizeof(int) },
		{ size, SEALS, ARENA_MAGIC, 1, whole - 1 },
		{ size, SEALS, ARENA_MAGIC, 1, whole + 1 },
		{ size, SEALS, ARENA_MAGIC, 2, whole + 8 },
	};

	NEED_ROOT();
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		struct board_slot slot;

		post(&near);
		slot = slot_of(&near);
		mail_lanes(&slot, make_memory(bad[i].size, bad[i].seals, bad[i].magic, NOBODY),
			   bad[i].n, bad[i].octets);
		check_refused();
	}
}

/* --- bells in the mail */

static int make_bell(int *look)
{
	int ends[2];

	assert_int_equal(pipe2(ends, O_NONBLOCK | O_CLOEXEC), 0);
	*look = ends[0];
	return ends[1];
}

/* How often it was rung since the last look. */
static ssize_t count(int fd)
{
	char octets[64];
	ssize_t n = read(fd, octets, sizeof(octets));

	return n > 0 ? n : 0;
}

static uint32_t holds(struct arena *a, int side)
{
	return atomic_load(&arena_memory(a)->holds[side]);
}

/* What comes with the memory is kept if it is a bell. Either way the sender gets ours, and what we send to
 * ourselves here is for memory that we have not made. */
static void lanes_are_taken_with_and_without_a_bell(void **st)
{
	static uint64_t id = 0x1000;
	int ends[2], look = -1;

	NEED_ROOT();
	bell_own();
	for (int i = 0; i < 3; i++) {
		struct letter letter = { .kind = 'L' };
		struct board_slot slot;
		struct arena *a;
		int fds[2], before;

		post(&near);
		before = open_fds();
		slot = slot_of(&near);
		memcpy(letter.mailbox, slot.mailbox, MAILBOX_NAME);
		letter.mailbox[7] = (uint8_t)(100 + i); /* a name of its own; nobody is there */
		fds[0] = good_memory(++id);
		if (i == 1) {
			fds[1] = make_bell(&look);
		} else if (i == 2) {
			assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends),
					 0);
			fds[1] = ends[1];
			close(ends[0]);
		}
		mail(slot.mailbox, &letter, sizeof(letter), fds, i == 0 ? 1 : 2);
		empty_mailbox(id);
		a = arena_by_id(id);
		assert_non_null(a);
		assert_int_equal(holds(a, 0), 0);
		assert_int_equal(holds(a, 1), i == 1);
		assert_int_equal(arena_bell(a) >= 0, i == 1);
		assert_int_equal(open_fds(), before + (i == 1 ? 2 : 0));
		if (i == 1) {
			bell_ring(arena_bell(a));
			assert_int_equal(count(look), 1);
			close(look);
		}
	}
}

/* Both ends are here, so both bells are ours. */
static void bells_are_exchanged_when_ends_meet(void **st)
{
	NEED_ROOT();
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	assert_true(arena_bell(near.arena) >= 0);
	assert_true(meet_bell(&far) >= 0);
	assert_int_equal(meet_bell(&near), arena_bell(near.arena));
	assert_int_equal(holds(near.arena, 0), 1);
	assert_int_equal(holds(near.arena, 1), 1);
	count(bell_own());
	bell_ring(meet_bell(&far));
	assert_int_equal(count(bell_own()), 1);
}

/* The maker asks a few times whether it has come; who attached got it with the memory, or never. */
static void maker_asks_so_often_when_no_bell_comes(void **st)
{
	NEED_ROOT();
	mailbox_drop(); /* with a new name the memory is new */
	post(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	mailbox_drop();
	far.side = 1;
	assert_int_equal(meet_bell(&far), -1);
	assert_int_equal(far.bell_asks, 0);
	far.side = 0;
	for (int i = 0; i < 20; i++) {
		errno = EDOM;
		assert_int_equal(meet_bell(&far), -1);
		assert_int_equal(errno, EDOM);
	}
	assert_true(far.bell_asks > 0 && far.bell_asks < 20);
}

static void mail_bell(const struct board_slot *slot, uint32_t kind, uint64_t arena, uint8_t who,
		      size_t size, const int *fds, size_t n)
{
	struct letter letter = { .kind = kind, .memory = arena };

	memcpy(letter.mailbox, slot->mailbox, MAILBOX_NAME);
	letter.mailbox[7] = who;
	mail(slot->mailbox, &letter, size, fds, n);
}

static void bells_are_refused_when_nobody_waits_for_them(void **st)
{
	const size_t whole = sizeof(struct letter);
	struct board_slot slot;
	struct arena *made;
	uint64_t id;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	/* Memory that we have made for ourselves, as the peer. */
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	made = far.arena;
	id = arena_id(made);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	end(st);
	begin(st);
	for (int i = 0; i < 10; i++) {
		int fds[3], look[3], before, had, rings = arena_bell(made);

		post(&near);
		before = open_fds();
		for (int n = 0; n < 3; n++)
			fds[n] = make_bell(&look[n]);
		switch (i) {
		case 0: mail_bell(&slot, 'B', NOBODY, 9, whole, fds, 1); break;
		case 1: mail_bell(&slot, 'B', 0, 9, whole, fds, 1); break;
		case 2: mail_bell(&slot, 'B', id, 9, whole, fds, 2); break;
		case 3: mail_bell(&slot, 'B', id, 9, whole, fds, 0); break;
		case 4: mail_bell(&slot, 'B', id, 9, whole - 1, fds, 1); break;
		case 5: mail_bell(&slot, 'B', id, 9, whole + 1, fds, 1); break;
		case 6: mail_bell(&slot, 'X', id, 9, whole, fds, 1); break;
		case 7: mail_bell(&slot, 'B' | 1u << 8, id, 9, whole, fds, 1); break;
		/* It has one: another one is not kept, whoever is said to have sent it. */
		case 8: mail_bell(&slot, 'B', id, 9, whole, fds, 1); break;
		case 9: mail_bell(&slot, 'B', id, slot.mailbox[7], whole, fds, 1); break;
		}
		empty_mailbox(NOBODY);
		for (int n = 0; n < 3; n++)
			close(fds[n]); /* those that were not sent */
		had = open_fds();
		assert_int_equal(had, before + 3);
		assert_int_equal(arena_bell(made), rings);
		bell_ring(rings);
		for (int n = 0; n < 3; n++) {
			assert_int_equal(count(look[n]), 0);
			close(look[n]);
		}
	}
}

/* Its number is in the letter's credentials: a process cannot speak for another. And bells come in letters of
 * their own. */
static void bell_is_refused_when_another_process_or_kind_sends_it(void **st)
{
	struct board_slot slot;
	int fd, look, status = -1;
	uint64_t id;
	pid_t pid;

	NEED_ROOT();
	mailbox_drop(); /* with a new name the memory is new */
	post(&near);
	slot = slot_of(&near);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(arena_bell(far.arena), -1);
	id = arena_id(far.arena);
	fd = make_bell(&look);
	pid = fork();
	if (pid == 0) {
		mail_bell(&slot, 'B', id, 9, sizeof(struct letter), &fd, 1);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	mail_bell(&slot, 'X', id, 9, sizeof(struct letter), &fd, 1);
	assert_true(meet_bell(&far) >= 0); /* our own: the lanes were answered over it */
	bell_ring(meet_bell(&far));
	assert_int_equal(count(look), 0);
	close(look);
}

static void mail_is_refused_when_it_comes_from_another_user(void **st)
{
	NEED_ROOT();
	for (int n = 0; n < 4; n++) {
		struct board_slot slot;

		post(&near);
		slot = slot_of(&near);
		assert_int_equal(seteuid(0), 0);
		assert_int_equal(seteuid(user + 1), 0);
		mail_lanes(&slot, good_memory(NOBODY), (size_t)n,
			   n < 3 ? sizeof(struct letter) : 0);
		assert_int_equal(seteuid(0), 0);
		assert_int_equal(seteuid(user), 0);
		check_refused();
	}
}

static void mail_is_read_when_strangers_wrote_before(void **st)
{
	struct board_slot slot;

	NEED_ROOT();
	post(&near);
	slot = slot_of(&near);
	for (int i = 0; i < 20; i++)
		mail_lanes(&slot, make_memory(4096, 0, 0, NOBODY), 1 + (size_t)i % 2,
			   i % 4 ? sizeof(struct letter) : (size_t)i % 3);
	assert_int_equal(meet_peer(&far, &greeting, &why), MEET_LANE);
	assert_int_equal(meet_check(&near, &greeting, &why), MEET_LANE);
	check_shared();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(ends_meet_when_both_are_in_one_process),
		TEST(ends_meet_when_they_are_in_two_processes),
		TEST(ends_agree_on_roles_when_one_knows),
		TEST(offer_is_gone_when_it_is_withdrawn),
		TEST(lane_is_declined_when_a_taken_offer_is_withdrawn),
		TEST(offer_is_refused_when_kernel_knows_another_socket),
		TEST(offer_is_passed_over_when_it_is_of_another_network),
		TEST(offer_stays_when_another_process_withdraws_it),
		TEST(offer_is_refused_when_socket_is_another_users),
		TEST(offer_is_refused_when_mailbox_is_not_of_its_process),
		TEST(claim_is_refused_when_it_is_forged),
		TEST(lane_is_refused_when_it_is_named_twice),
		TEST(ends_have_greeted_each_other_when_they_have_met),
		TEST(lane_is_let_go_when_its_greeting_is_refused),
		TEST(offer_waits_when_bucket_is_full_of_the_living),
		TEST(nothing_happens_when_board_is_full_of_nonsense),
		TEST(mail_is_refused_when_memory_is_not_as_it_should_be),
		TEST(mail_is_refused_when_it_comes_from_another_user),
		TEST(lanes_are_taken_with_and_without_a_bell),
		TEST(bells_are_exchanged_when_ends_meet),
		TEST(bells_are_refused_when_nobody_waits_for_them),
		TEST(bell_is_refused_when_another_process_or_kind_sends_it),
		TEST(maker_asks_so_often_when_no_bell_comes),
		TEST(mail_is_read_when_strangers_wrote_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
