/* SPDX-License-Identifier: MIT */
/* Memory within the program's limits. Limits are set in children, which then cannot disturb the other tests. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/space.h"
#include "base/tsan.h"

#define PAGE 4096u
#define MIB  (1u << 20)

/* A sanitizer has mapped more than any limit that matters. */
#if defined(TSAN) || defined(__SANITIZE_ADDRESS__)
#define ROOMY 1
#else
#define ROOMY 0
#endif

static int child_status(int (*fn)(void))
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(fn());
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static bool limit(int which, rlim_t value)
{
	struct rlimit l;

	if (getrlimit(which, &l) != 0)
		return false;
	l.rlim_cur = value;
	return setrlimit(which, &l) == 0;
}

static int file_of(size_t size)
{
	int fd = memfd_create("space", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	return fd;
}

static int grow_below_limit(void)
{
	if (!limit(RLIMIT_FSIZE, 10000))
		return 1;
	if (!space_may_grow(10000) || !space_may_grow(0) || space_may_grow(10001))
		return 2;
	return limit(RLIMIT_FSIZE, RLIM_INFINITY) && space_may_grow(SIZE_MAX) ? 0 : 3;
}

static void file_may_grow_up_to_the_limit(void **st)
{
	assert_true(space_may_grow(MIB));
	assert_int_equal(child_status(grow_below_limit), 0);
}

static void memory_of_a_file_is_shared_and_other_memory_is_not(void **st)
{
	int fd = file_of(PAGE), status = -1;
	char *shared = space_map(fd, PAGE), *own = space_map(-1, PAGE);
	pid_t pid;

	assert_non_null(shared);
	assert_non_null(own);
	assert_int_equal(shared[7], 0);
	assert_int_equal(own[7], 0);
	pid = fork();
	if (pid == 0) {
		shared[7] = own[7] = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(shared[7], 1);
	assert_int_equal(own[7], 0);
	space_unmap(shared, PAGE);
	space_unmap(own, PAGE);
	close(fd);
}

static void what_cannot_be_mapped_is_refused_and_errno_kept(void **st)
{
	char *page = space_map(-1, PAGE);

	errno = EDOM;
	assert_null(space_map(12345, PAGE)); /* the program has closed it */
	assert_null(space_map(-1, SIZE_MAX / 2));
	space_unmap(page, PAGE);
	assert_null(space_map_behind(page + PAGE, PAGE)); /* nothing is there */
	assert_int_equal(errno, EDOM);
}

static void rest_of_a_file_is_mapped_when_its_descriptor_is_gone(void **st)
{
	int fd = file_of(8 * PAGE);
	char *all = mmap(NULL, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	char *head = space_map(fd, 2 * PAGE), *rest, *last;

	assert_ptr_not_equal(all, MAP_FAILED);
	close(fd);
	rest = space_map_behind(head + 2 * PAGE, 4 * PAGE);
	assert_non_null(rest);
	last = space_map_behind(rest + 4 * PAGE, 2 * PAGE);
	assert_non_null(last);
	for (int i = 0; i < 8; i++)
		all[i * (int)PAGE] = (char)(i + 1);
	assert_int_equal(head[PAGE], 2);
	assert_int_equal(rest[0], 3);
	assert_int_equal(rest[3 * PAGE], 6);
	assert_int_equal(last[0], 7);
	last[PAGE] = 77;
	assert_int_equal(all[7 * PAGE], 77);
	assert_int_equal(head[PAGE], 2); /* the page that it was found by is still there */
	space_unmap(last, 2 * PAGE);
	space_unmap(rest, 4 * PAGE);
	space_unmap(head, 2 * PAGE);
	munmap(all, 8 * PAGE);
}

/* Whatever the limit is, we take no more than 16 MiB. */
static int map_under_wide_limit(void)
{
	void *p, *q;

	if (!limit(RLIMIT_AS, (rlim_t)1 << 60))
		return 1;
	p = space_map(-1, 12 * MIB);
	if (!p || space_map(-1, 4 * MIB + PAGE))
		return 2;
	/* What was refused does not count, nor does what was given back. */
	for (int i = 0; i < 100; i++)
		if (space_map(-1, 8 * MIB) || space_map(12345, MIB))
			return 3;
	q = space_map(-1, 4 * MIB);
	if (!q || space_map(-1, PAGE))
		return 4;
	space_unmap(p, 12 * MIB);
	if (!space_map(-1, 12 * MIB) || space_map(-1, PAGE))
		return 5;
	/* No limit any more, no share. */
	return limit(RLIMIT_AS, RLIM_INFINITY) && space_map(-1, 64 * MIB) ? 0 : 6;
}

static void share_is_limited_when_the_program_is(void **st)
{
	assert_int_equal(child_status(map_under_wide_limit), 0);
}

/* A sixteenth of 64 MiB is 4 MiB. */
static int map_under_narrow_limit(void)
{
	int fd = memfd_create("space", MFD_CLOEXEC);
	char *head;

	if (!limit(RLIMIT_AS, 64 * MIB) || fd < 0 || ftruncate(fd, 8 * MIB) != 0)
		return 1;
	if (space_map(fd, 4 * MIB + PAGE) || !(head = space_map(fd, MIB)))
		return 2;
	/* One page more is mapped for a moment. */
	if (space_map_behind(head + MIB, 3 * MIB) || !space_map_behind(head + MIB, 3 * MIB - PAGE))
		return 3;
	return space_map(-1, 2 * PAGE) ? 4 : 0;
}

static void share_is_a_sixteenth_when_the_limit_is_narrow(void **st)
{
	if (ROOMY)
		skip();
	assert_int_equal(child_status(map_under_narrow_limit), 0);
}

static void *map_and_unmap(void *arg)
{
	int fd = *(int *)arg;

	for (int i = 0; i < 2000; i++) {
		size_t size = (1 + (size_t)i % 5) * PAGE;
		char *p = space_map(i % 2 ? fd : -1, size), *q = NULL;

		if (!p)
			return (void *)"map";
		if (i % 2 && !(q = space_map_behind(p + size, PAGE)))
			return (void *)"behind";
		if (q)
			space_unmap(q, PAGE);
		space_unmap(p, size);
	}
	return NULL;
}

/* The count is right afterwards: all of the share is there. */
static int map_in_threads(void)
{
	pthread_t thread[4];
	void *said = NULL;
	int fd = memfd_create("space", MFD_CLOEXEC);

	if (!limit(RLIMIT_AS, (rlim_t)1 << 60) || fd < 0 || ftruncate(fd, 8 * PAGE) != 0)
		return 1;
	for (int i = 0; i < 4; i++)
		if (pthread_create(&thread[i], NULL, map_and_unmap, &fd) != 0)
			return 2;
	for (int i = 0; i < 4; i++)
		if (pthread_join(thread[i], &said) != 0 || said)
			return 3;
	return space_map(-1, 16 * MIB) && !space_map(-1, PAGE) ? 0 : 4;
}

static void count_is_right_when_many_threads_map(void **st)
{
	assert_int_equal(child_status(map_in_threads), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(file_may_grow_up_to_the_limit),
		cmocka_unit_test(memory_of_a_file_is_shared_and_other_memory_is_not),
		cmocka_unit_test(what_cannot_be_mapped_is_refused_and_errno_kept),
		cmocka_unit_test(rest_of_a_file_is_mapped_when_its_descriptor_is_gone),
		cmocka_unit_test(share_is_limited_when_the_program_is),
		cmocka_unit_test(share_is_a_sixteenth_when_the_limit_is_narrow),
		cmocka_unit_test(count_is_right_when_many_threads_map),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
