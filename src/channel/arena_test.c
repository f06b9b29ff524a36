/* SPDX-License-Identifier: MIT */
/* Arenas: what is given out, and which memory of strangers is not mapped. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/own.h"
#include "base/own_test.h"
#include "base/util.h"
#include "channel/arena.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Each test has peers of its own; no such processes, but numbers that are alive. */
static uint64_t key = 1000;
static const uint64_t nobody[2];

static int begin(void **st)
{
	arena_set_most(100000);
	key++;
	return 0;
}

static struct arena *take(uint32_t *lane, int *fd)
{
	return arena_take(getpid(), key, lane, fd);
}

static int make_memory(size_t size, int seals, uint64_t magic)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(pwrite(fd, &magic, sizeof(magic), 0), sizeof(magic));
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void nap(uint64_t ms)
{
	const struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	nanosleep(&t, NULL);
}

static void arena_is_made_once_when_lanes_are_free(void **st)
{
	uint32_t lane[2];
	int fd[2];
	struct arena *a = take(&lane[0], &fd[0]);
	struct arena *b = take(&lane[1], &fd[1]);

	assert_non_null(a);
	assert_ptr_equal(a, b);
	assert_true(fd[0] >= 0);
	assert_int_equal(fd[1], -1);
	assert_int_not_equal(lane[0], lane[1]);
	/* Only what others made is looked for: both ends of a connection may be here. */
	assert_null(arena_by_id(arena_id(a)));
	assert_int_equal(fcntl(fd[0], F_GET_SEALS) & SEALS, SEALS);
	assert_int_equal(fcntl(fd[0], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	/* Another mailbox with the same number is another process. */
	key++;
	b = take(&lane[1], &fd[1]);
	assert_non_null(b);
	assert_ptr_not_equal(a, b);
	assert_true(fd[1] >= 0);
	close(fd[0]);
	close(fd[1]);
}

static void arena_is_made_again_when_lanes_are_used_up(void **st)
{
	uint64_t seen = 0;
	struct arena *first = NULL;
	uint32_t lane;
	int fd;

	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		struct arena *a = take(&lane, &fd);

		assert_non_null(a);
		assert_true(i == 0 || a == first);
		first = a;
		assert_true(lane < ARENA_LANES);
		assert_false(seen >> lane & 1);
		seen |= 1ull << lane;
		if (fd >= 0)
			close(fd);
	}
	assert_ptr_not_equal(take(&lane, &fd), first);
	assert_true(fd >= 0);
	close(fd);
}

static void arena_gives_no_lane_when_limit_is_reached(void **st)
{
	uint32_t lane;
	int fd;

	arena_set_most(0);
	assert_null(take(&lane, &fd));
	assert_int_equal(fd, -1);
}

static void arena_uses_lane_again_when_both_ends_let_go(void **st)
{
	uint32_t lane, other;
	int fd, none;
	struct arena *a = take(&lane, &fd);
	struct lane_shared *l;

	assert_non_null(a);
	close(fd);
	l = &arena_memory(a)->lane[lane];
	atomic_store(&l->dir[0].word, ~0ull);
	atomic_store(&l->dir[1].head, 7);
	arena_give(a, lane, 0);
	assert_ptr_equal(take(&other, &none), a);
	assert_int_not_equal(other, lane);
	arena_give(a, other, 0);
	atomic_store(&l->done[1], 1); /* the peer's word */
	assert_ptr_equal(take(&other, &none), a);
	assert_int_equal(other, lane);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(atomic_load(&l->dir[i].word), 0);
		assert_int_equal(atomic_load(&l->dir[i].head), 0);
		assert_int_equal(atomic_load(&l->done[i]), 0);
	}
}

static void arena_is_left_alone_when_peer_dropped_it(void **st)
{
	uint32_t lane;
	int fd;
	struct arena *a = take(&lane, &fd);

	assert_non_null(a);
	close(fd);
	atomic_store(&arena_memory(a)->dropped, 1);
	assert_ptr_not_equal(take(&lane, &fd), a);
	assert_true(fd >= 0);
	close(fd);
}

static void arena_is_gone_when_peer_was_not_reached(void **st)
{
	uint32_t lane;
	int fd;
	struct arena *a = take(&lane, &fd);
	uint64_t id;

	assert_non_null(a);
	close(fd);
	id = arena_id(a);
	arena_undo(a, lane);
	/* The peer never saw it, so nobody may get a lane in it. */
	a = take(&lane, &fd);
	assert_non_null(a);
	assert_true(fd >= 0);
	assert_int_not_equal(arena_id(a), id);
	close(fd);
}

static void arena_is_unmapped_when_its_peer_is_dead(void **st)
{
	uint64_t head[2] = { ARENA_MAGIC, 0x7654321 + key };
	int fd = make_memory(sizeof(struct arena_shared), SEALS, ARENA_MAGIC);
	int status;
	struct arena *a;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(pwrite(fd, head, sizeof(head), 0), sizeof(head));
	a = arena_map(own_new(fd), pid);
	assert_non_null(a);
	assert_true(arena_attach(a, 0, nobody));
	nap(300);
	arena_sweep();
	assert_ptr_equal(arena_by_id(head[1]), a); /* a lane is in use */
	arena_give(a, 0, 1);
	nap(300);
	arena_sweep();
	assert_null(arena_by_id(head[1]));
}

static void arena_maps_what_a_maker_made(void **st)
{
	uint64_t id[2] = { ARENA_MAGIC, 0x1234567 + key };
	int before = open_fds();
	int fd = make_memory(sizeof(struct arena_shared), SEALS, ARENA_MAGIC);
	struct arena *a;

	assert_int_equal(pwrite(fd, id, sizeof(id), 0), sizeof(id));
	a = arena_map(own_new(fd), getpid());
	assert_non_null(a);
	assert_int_equal(arena_id(a), id[1]);
	assert_ptr_equal(arena_by_id(id[1]), a);
	/* The peer changes what it said: nothing of it counts. */
	arena_memory(a)->id = 5;
	assert_ptr_equal(arena_by_id(id[1]), a);
	assert_int_equal(open_fds(), before);
	assert_false(arena_attach(a, ARENA_LANES, nobody));
	assert_false(arena_attach(a, UINT32_MAX, nobody));
	assert_true(arena_attach(a, 3, nobody));
	assert_false(arena_attach(a, 3, nobody));
	arena_give(a, 3, 1);
	assert_int_equal(atomic_load(&arena_memory(a)->lane[3].done[1]), 1);
	assert_true(arena_attach(a, 3, nobody));
	arena_set_most(0);
	assert_false(arena_attach(a, 4, nobody));
}

static void arena_takes_a_lane_for_its_two_connections_only(void **st)
{
	const uint64_t ours[2] = { 11, 12 }, others[2] = { 11, 13 };
	uint64_t id[2] = { ARENA_MAGIC, 0x2234567 + key };
	int fd = make_memory(sizeof(struct arena_shared), SEALS, ARENA_MAGIC);
	struct lane_shared *l;
	struct arena *a;

	assert_int_equal(pwrite(fd, id, sizeof(id), 0), sizeof(id));
	a = arena_map(own_new(fd), getpid());
	l = &arena_memory(a)->lane[3];
	atomic_store(&l->cookie[0], 11);
	atomic_store(&l->cookie[1], 12);
	assert_false(arena_attach(a, 3, others));
	arena_decline(a, 3, others);
	arena_decline(a, ARENA_LANES, ours);
	assert_int_equal(atomic_load(&l->done[1]), 0);
	arena_decline(a, 3, ours);
	assert_int_equal(atomic_load(&l->done[1]), 1);
	assert_true(arena_attach(a, 3, ours));
	arena_give(a, 3, 1);
	/* Its maker has dropped it, and it is gone: whoever found it before finds nothing in it. */
	atomic_store(&arena_memory(a)->dropped, 1);
	nap(300);
	arena_sweep();
	assert_null(arena_by_id(id[1]));
	assert_false(arena_attach(a, 3, ours));
	arena_decline(a, 3, ours);
}

static void arena_does_not_give_lanes_out_that_it_did_not_make(void **st)
{
	uint32_t lane;
	int fd = make_memory(sizeof(struct arena_shared), SEALS, ARENA_MAGIC);
	struct arena *a = arena_map(own_new(fd), getpid());

	assert_non_null(a);
	assert_ptr_not_equal(take(&lane, &fd), a);
	close(fd);
}

/* What else may come through the mailbox: nothing of it is mapped, and no descriptor stays open. */
static void arena_refuses_memory_that_could_hurt(void **st)
{
	const size_t size = sizeof(struct arena_shared);
	const struct {
		size_t size;
		int seals;
		uint64_t magic;
	} bad[] = {
		{ size - 1, SEALS, ARENA_MAGIC },
		{ size / 2, SEALS, ARENA_MAGIC },
		{ 4096, SEALS, ARENA_MAGIC },
		{ size + 1, SEALS, ARENA_MAGIC },
		{ size, 0, ARENA_MAGIC },
		{ size, F_SEAL_GROW | F_SEAL_SEAL, ARENA_MAGIC }, /* could be cut short */
		{ size, F_SEAL_SHRINK | F_SEAL_SEAL, ARENA_MAGIC },
		{ size, F_SEAL_SHRINK | F_SEAL_GROW, ARENA_MAGIC },
		{ size, SEALS, ARENA_MAGIC + 1 },
		{ size, SEALS, 0 },
	};
	int before = open_fds();

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		assert_null(arena_map(own_new(make_memory(bad[i].size, bad[i].seals, bad[i].magic)),
				      getpid()));
		assert_int_equal(open_fds(), before);
	}
	/* Memory that cannot be written, because the sender keeps that to itself. */
	assert_null(
		arena_map(own_new(make_memory(size, SEALS | F_SEAL_WRITE, ARENA_MAGIC)), getpid()));
	assert_int_equal(open_fds(), before);
}

/* A file that does not know seals must not pass for one that has them all. */
static void arena_refuses_files_that_cannot_be_sealed(void **st)
{
	const char *const folders[] = { ".", "/var/tmp", "/dev/shm", "/tmp" };
	int before = open_fds();
	uint64_t magic = ARENA_MAGIC;

	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		int fd = open(folders[i], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

		if (fd < 0)
			continue;
		assert_int_equal(ftruncate(fd, sizeof(struct arena_shared)), 0);
		assert_int_equal(pwrite(fd, &magic, sizeof(magic), 0), sizeof(magic));
		assert_null(arena_map(own_new(fd), getpid()));
		assert_int_equal(open_fds(), before);
	}
	assert_null(arena_map(own_new(open("/dev/zero", O_RDWR | O_CLOEXEC)), getpid()));
	assert_null(arena_map(own_new(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)), getpid()));
	assert_null(arena_map(own_new(open("/", O_RDONLY | O_CLOEXEC)), getpid()));
	assert_int_equal(open_fds(), before);
}

static void arena_lanes_stay_with_the_parent_when_it_forks(void **st)
{
	uint32_t lane;
	int fd, status = -1;
	struct arena *a = take(&lane, &fd);
	pid_t peer = getpid(), pid;

	assert_non_null(a);
	close(fd);
	pid = fork();
	if (pid == 0) {
		arena_forked();
		_exit(arena_take(peer, key, &lane, &fd) == a ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_ptr_equal(take(&lane, &fd), a);
}

/* Every ring is memory of its own, and the same at both ends, whichever lane comes first. */
static void arena_rings_are_shared_when_mapped_in_pieces(void **st)
{
	struct arena *near = NULL, *far = NULL;
	uint32_t lane;
	int fd;

	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		near = take(&lane, &fd);
		assert_non_null(near);
		if (fd >= 0)
			far = arena_map(own_new(fd), getpid());
		for (uint32_t dir = 0; dir < 2; dir++) {
			memset(arena_ring(near, lane, dir), (int)(2 * lane + dir + 1), LANE_RING);
			assert_int_equal(lane, i);
		}
	}
	assert_non_null(far);
	for (uint32_t i = ARENA_LANES; i-- > 0;) {
		assert_true(arena_attach(far, i, nobody));
		for (uint32_t dir = 0; dir < 2; dir++) {
			const uint8_t *ring = arena_ring(far, i, dir);

			assert_ptr_not_equal(ring, arena_ring(near, i, dir));
			assert_int_equal(ring[0], 2 * i + dir + 1);
			assert_memory_equal(ring, ring + 1, LANE_RING - 1);
		}
	}
}

static size_t address_space(void)
{
	FILE *f = fopen("/proc/self/statm", "re");
	unsigned long pages = 0;

	if (f && fscanf(f, "%lu", &pages) != 1)
		pages = 0;
	if (f)
		fclose(f);
	return pages * 4096;
}

static int take_within(size_t limit)
{
	const struct rlimit space = { limit, limit };
	size_t before = address_space();
	uint32_t lane;
	int fd, n = 0;

	setrlimit(RLIMIT_AS, &space);
	while (take(&lane, &fd)) {
		n++;
		if (fd >= 0)
			close(fd);
	}
	return address_space() - before <= limit / 16 ? n : -1;
}

/* In a process without arenas: comes first. */
static void arena_takes_a_share_when_space_is_limited(void **st)
{
	int status = -1;
	pid_t pid;

	/* A sanitizer has terabytes. */
	if (address_space() > 64u << 20)
		skip();
	pid = fork();
	if (pid == 0)
		_exit(take_within(128u << 20) > 0 && take_within(8u << 20) == 0 ? 0 : 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(arena_takes_a_share_when_space_is_limited),
		TEST(arena_is_made_once_when_lanes_are_free),
		TEST(arena_is_made_again_when_lanes_are_used_up),
		TEST(arena_gives_no_lane_when_limit_is_reached),
		TEST(arena_uses_lane_again_when_both_ends_let_go),
		TEST(arena_is_left_alone_when_peer_dropped_it),
		TEST(arena_is_gone_when_peer_was_not_reached),
		TEST(arena_is_unmapped_when_its_peer_is_dead),
		TEST(arena_maps_what_a_maker_made),
		TEST(arena_takes_a_lane_for_its_two_connections_only),
		TEST(arena_does_not_give_lanes_out_that_it_did_not_make),
		TEST(arena_refuses_memory_that_could_hurt),
		TEST(arena_refuses_files_that_cannot_be_sealed),
		TEST(arena_lanes_stay_with_the_parent_when_it_forks),
		TEST(arena_rings_are_shared_when_mapped_in_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
