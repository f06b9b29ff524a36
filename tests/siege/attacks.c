/* SPDX-License-Identifier: MIT */
/* Attacks that know what they do: a state that makes no sense in one place and sense in another, or a wait for nothing. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"
#include "siege/attacker.h"
#include "siege/siege.h"
#include "sockets/record/real.h"

/* --- turns that are not there, or lie */

static void add_turns(struct lane *l, uint64_t n)
{
	atomic_fetch_add(&lane_out(l)->word, n << LANE_TURN_SHIFT);
	lane_stir(l);
}

static void all_turns(struct lane *l, uint64_t at)
{
	for (uint32_t i = 0; i < LANE_TURNS; i++)
		atomic_store(&lane_out(l)->turn[i], at);
}

static void turns_many(struct lane *l)
{
	add_turns(l, 100);
}

static void turn_back(struct lane *l)
{
	all_turns(l, 0);
	add_turns(l, 1);
}

static void turn_far(struct lane *l)
{
	all_turns(l, UINT64_MAX >> 1);
	add_turns(l, 1);
}

static void turn_twice_far(struct lane *l)
{
	all_turns(l, UINT64_MAX >> 1);
	add_turns(l, 2);
}

static void tail_far(struct lane *l)
{
	atomic_fetch_add(&lane_out(l)->word, LANE_RING + 1);
	lane_stir(l);
}

/* Octets that nobody wrote. */
static void tail_full(struct lane *l)
{
	atomic_fetch_add(&lane_out(l)->word, LANE_RING);
	lane_stir(l);
}

/* --- a receiver that wants its octets again and then takes none */

static void recall(struct lane *l)
{
	atomic_fetch_or(&lane_in(l)->word, LANE_GONE | LANE_RECALL);
	lane_octet(l);
}

static void recall_on_and_off(struct lane *l)
{
	atomic_fetch_xor(&lane_in(l)->word, LANE_GONE | LANE_RECALL);
	if (l->step++ % 64 == 0)
		lane_octet(l);
}

/* Says that it takes the octets back itself, and never does. */
static void take(struct lane *l)
{
	atomic_fetch_or(&lane_in(l)->word, LANE_TAKING);
	lane_ask(l, REQUEST_ECHO, 10);
	lane_octet(l);
}

/* ... or nearly never. */
static void take_for_long(struct lane *l)
{
	uint64_t now = stage_now();

	if (now - l->since < 700000)
		return;
	l->since = now;
	atomic_fetch_and(&lane_in(l)->word, ~LANE_TAKING);
	atomic_fetch_or(&lane_in(l)->word, LANE_TAKING);
	lane_ask(l, REQUEST_ECHO, 10);
}

/* --- a reader that says it has room, or sleeps, or looks, and does not */

/* What was said so far is taken, and it sleeps where only an octet wakes it; but it reads none. */
static void sleep_deaf(struct lane *l)
{
	uint64_t w = atomic_load(&lane_in(l)->word);

	atomic_store(&lane_in(l)->seen, (uint16_t)(w >> LANE_TURN_SHIFT));
	atomic_store(&lane_in(l)->head, (uint32_t)w);
	atomic_fetch_or(&lane_in(l)->word, LANE_WAITING);
}

static void creep(struct lane *l)
{
	atomic_fetch_add(&lane_in(l)->head, 1);
}

static void head_ahead(struct lane *l)
{
	atomic_store(&lane_in(l)->head, (uint32_t)atomic_load(&lane_in(l)->word) + 1000);
	lane_stir(l);
}

/* Looks at the carrier whenever somebody wants into the ring. */
static void inside(struct lane *l)
{
	atomic_fetch_or(&lane_in(l)->word, LANE_INSIDE);
	if (l->step++ % 256 == 0)
		lane_ask(l, REQUEST_ECHO, 100);
}

static void nap_for_ever(struct lane *l)
{
	atomic_fetch_or(&lane_in(l)->word, LANE_NAPPING);
	if (l->step++ % 256 == 0)
		lane_ask(l, REQUEST_ECHO, 100);
}

/* A word that changes under every compare-and-swap. */
static void restless(struct lane *l)
{
	for (int i = 0; i < 1000; i++) {
		atomic_fetch_xor(&lane_out(l)->word, LANE_FIN | LANE_INSIDE);
		atomic_fetch_xor(&lane_in(l)->word, LANE_NAPPING | LANE_BELLED);
	}
	if (l->step++ % 16 == 0)
		lane_octet(l);
}

/* --- bells */

static void fill(int fd)
{
	uint64_t most = UINT64_MAX - 1, count;

	if (real(read)(fd, &count, sizeof(count)) < 0)
		count = 0;
	(void)!real(write)(fd, &most, sizeof(most));
}

/* Who reads it, or writes it when it is full, sleeps. */
static void make_blocking(int fd)
{
	real(fcntl)(fd, F_SETFL, real(fcntl)(fd, F_GETFL) & ~O_NONBLOCK);
}

static void empty_and_block(int fd)
{
	uint64_t count;

	(void)!real(read)(fd, &count, sizeof(count));
	make_blocking(fd);
}

static void fill_and_block(int fd)
{
	fill(fd);
	make_blocking(fd);
}

static void bells_full(struct lane *l)
{
	each_bell(fill);
	lane_ask(l, REQUEST_ECHO, 100);
	atomic_store(&l->arena->rung[l->side], 0);
	atomic_fetch_or(&lane_in(l)->word, LANE_WAITING | LANE_BELLED);
}

static void bells_block(struct lane *l)
{
	each_bell(empty_and_block);
	lane_ask(l, REQUEST_ECHO, 100);
}

static void bells_full_and_block(struct lane *l)
{
	each_bell(fill_and_block);
	atomic_store(&l->arena->rung[l->side], 0);
	atomic_fetch_or(&lane_in(l)->word, LANE_WAITING | LANE_BELLED);
	lane_ask(l, REQUEST_ECHO, 100);
}

/* Says that it was not rung, again and again. */
static void unring(struct lane *l)
{
	atomic_store(&l->arena->rung[l->side], 0);
	atomic_fetch_or(&lane_in(l)->word, LANE_WAITING | LANE_BELLED);
	if (l->step++ % 64 == 0)
		lane_ask(l, REQUEST_ECHO, 100);
}

/* --- mailboxes */

/* Does the server have this socket? */
static bool is_victims(unsigned long inode)
{
	char path[64], target[64], wanted[64];
	DIR *dir;
	struct dirent *e;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)victim);
	snprintf(wanted, sizeof(wanted), "socket:[%lu]", inode);
	dir = opendir(path);
	while (dir && !found && (e = readdir(dir)) != NULL) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = 0;
		found = strcmp(target, wanted) == 0;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* The abstract names on which the server listens. */
static bool find_mailbox(struct sockaddr_un *out, socklen_t *size)
{
	FILE *file = fopen("/proc/net/unix", "re");
	char row[512], name[128];
	unsigned long inode;
	unsigned type, state;
	bool found = false;

	while (file && !found && fgets(row, sizeof(row), file)) {
		if (sscanf(row, "%*s %*s %*s %*s %x %x %lu @%100s", &type, &state, &inode, name) !=
			    4 ||
		    type != SOCK_SEQPACKET || !is_victims(inode))
			continue;
		*out = (struct sockaddr_un) { .sun_family = AF_UNIX };
		memcpy(out->sun_path + 1, name, strlen(name));
		*size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
		found = true;
	}
	if (file)
		fclose(file);
	return found;
}

static int dial_mailbox(void)
{
	struct sockaddr_un name;
	socklen_t size;
	int fd;

	if (!find_mailbox(&name, &size))
		return -1;
	fd = real(socket)(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd >= 0 && real(connect)(fd, (struct sockaddr *)&name, size) != 0) {
		real(close)(fd);
		fd = -1;
	}
	return fd;
}

static void silence(struct lane *l)
{
	while (l->n_fds < (int)ARRAY_SIZE(l->fds)) {
		int fd = dial_mailbox();

		if (fd < 0)
			break;
		l->fds[l->n_fds++] = fd;
	}
}

/* Letters that are none: of any size, with any descriptors. */
static void junk(struct lane *l)
{
	char control[CMSG_SPACE(4 * sizeof(int))] = { 0 };
	uint8_t octets[256];
	struct iovec iov = { octets, random_below(&dice, sizeof(octets)) };
	uint32_t n = 1 + random_below(&dice, 4);
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int memory = memfd_create("junk", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	int fd = dial_mailbox();
	int fds[4] = { memory, l->fd, memory, memory };

	for (size_t i = 0; i < sizeof(octets); i++)
		octets[i] = (uint8_t)random_next(&dice);
	octets[0] = random_below(&dice, 2) ? 'L' : 'B';
	/* Not sealed: it could become shorter under the reader. */
	if (ftruncate(memory, sizeof(struct arena_shared)) != 0)
		n = 1;
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	if (fd >= 0) {
		real(sendmsg)(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
		real(close)(fd);
	}
	if (memory >= 0)
		real(close)(memory);
}

static void write_junk(struct lane *l)
{
	for (int i = 0; i < 20; i++)
		junk(l);
}

/* --- the memory itself */

static void punch(struct lane *l)
{
	if (l->step++ % 64 == 0)
		madvise(l->arena, sizeof(*l->arena), MADV_REMOVE);
}

static void let_go(struct lane *l)
{
	atomic_store(&l->arena->dropped, 1);
	for (uint32_t i = 0; i < ARENA_LANES; i++)
		for (int side = 0; side < 2; side++)
			atomic_store(&l->arena->lane[i].done[side], 1);
}

/* --- nothing but calls of the library */

/* Hands the connection over to whoever uses TCP, with a full ring unread, and reads nothing more. */
static void hand_over(struct lane *l)
{
	int on = 1;

	setsockopt(l->fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof(on));
	lane_octet(l);
}

const struct weapon attacks[] = {
	{ "peace", NULL, NULL }, /* nothing may go wrong then */
	{ "turns-many", turns_many, NULL },
	{ "turn-back", turn_back, NULL },
	{ "turn-far", turn_far, NULL },
	{ "turn-twice-far", turn_twice_far, NULL },
	{ "tail-far", tail_far, NULL },
	{ "tail-full", tail_full, NULL },
	{ "recall", recall, NULL },
	{ "recall-on-and-off", NULL, recall_on_and_off },
	{ "take", take, NULL },
	{ "take-for-long", take, take_for_long },
	{ "sleep-deaf", sleep_deaf, sleep_deaf },
	{ "creep", NULL, creep },
	{ "head-ahead", head_ahead, NULL },
	{ "inside", NULL, inside },
	{ "nap-for-ever", NULL, nap_for_ever },
	{ "restless", NULL, restless },
	{ "bells-full", bells_full, NULL },
	{ "bells-block", bells_block, NULL },
	{ "bells-full-and-block", bells_full_and_block, NULL },
	{ "unring", NULL, unring },
	{ "silence", silence, NULL },
	{ "junk", write_junk, NULL },
	{ "punch", NULL, punch },
	{ "let-go", let_go, NULL },
	{ "hand-over", hand_over, NULL },
	{ 0 },
};
