/* SPDX-License-Identifier: MIT */
/* Memory that is there, that is not, and that was. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "sockets/record/user.h"

static uint8_t *pages(size_t n, int protection)
{
	uint8_t *p = mmap(NULL, n * USER_PAGE, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	return p;
}

static void give(void *p, size_t n)
{
	munmap(p, n * USER_PAGE);
	user_gone(p, n * USER_PAGE);
}

static void user_finds_memory_that_is_there(void **st)
{
	uint8_t *p = pages(3, PROT_READ | PROT_WRITE);

	for (int i = 0; i < 2; i++) {
		assert_true(user_readable(p, 1));
		assert_true(user_writable(p, 3 * USER_PAGE));
		assert_true(user_readable(p + USER_PAGE - 1, 2));
		assert_true(user_readable(st, sizeof(*st)));
	}
	give(p, 3);
}

static void user_refuses_memory_that_is_not(void **st)
{
	uint8_t *hole = pages(2, PROT_NONE), *constant = pages(1, PROT_READ);

	errno = 77;
	assert_false(user_readable(hole, 1));
	assert_false(user_writable(hole + 1, 1));
	assert_true(user_readable(constant, USER_PAGE));
	assert_false(user_writable(constant, 1));
	assert_false(user_readable(NULL, 1));
	assert_false(user_readable((void *)4096, 1));
	assert_false(user_readable((void *)-1, 1));
	assert_false(user_readable((void *)-1, 100));
	assert_false(user_readable(st, SIZE_MAX));
	assert_int_equal(errno, 77);
	give(hole, 2);
	give(constant, 1);
}

static void user_needs_nothing_for_nothing(void **st)
{
	assert_true(user_readable(NULL, 0));
	assert_true(user_writable((void *)-1, 0));
	assert_true(user_list_ok(NULL, 0, true));
}

static void user_refuses_what_is_there_in_part(void **st)
{
	uint8_t *p = pages(4, PROT_READ | PROT_WRITE);
	struct iovec iov[2] = { { p, 10 }, { p + USER_PAGE, 10 } };

	mprotect(p + 2 * USER_PAGE, USER_PAGE, PROT_NONE);
	assert_true(user_writable(p, 2 * USER_PAGE));
	assert_false(user_writable(p, 2 * USER_PAGE + 1));
	assert_false(user_readable(p, 4 * USER_PAGE));
	assert_true(user_readable(p + 3 * USER_PAGE, USER_PAGE));
	assert_true(user_list_ok(iov, 2, true));
	iov[1].iov_len = 2 * USER_PAGE;
	assert_false(user_list_ok(iov, 2, true));
	give(p, 4);
}

static void user_forgets_memory_when_it_goes(void **st)
{
	uint8_t *p = pages(2, PROT_READ | PROT_WRITE);

	assert_true(user_writable(p, 2 * USER_PAGE));
	mprotect(p, USER_PAGE, PROT_READ);
	user_constant(p, USER_PAGE);
	assert_true(user_readable(p, 2 * USER_PAGE));
	assert_false(user_writable(p, 1));
	assert_true(user_writable(p + USER_PAGE, 1));
	munmap(p, USER_PAGE);
	user_gone(p, 1);
	assert_false(user_readable(p, 1));
	assert_true(user_readable(p + USER_PAGE, 1));
	munmap(p + USER_PAGE, USER_PAGE);
	user_all_gone();
	assert_false(user_readable(p + USER_PAGE, 1));
}

/* More than can be remembered: the first are asked about again. */
static void user_forgets_large_memory_when_it_goes(void **st)
{
	size_t n = 2 * USER_KNOWN + 5;
	uint8_t *p = mmap(NULL, n * USER_PAGE, PROT_READ,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	assert_ptr_not_equal(p, MAP_FAILED);
	assert_true(user_readable(p + (n - 10) * USER_PAGE, 10 * USER_PAGE));
	assert_true(user_readable(p, USER_PAGE));
	munmap(p, n * USER_PAGE);
	user_gone(p, n * USER_PAGE);
	assert_false(user_readable(p, 1));
	assert_false(user_readable(p + (n - 10) * USER_PAGE, 1));
	assert_false(user_readable(p + (n - 1) * USER_PAGE, 1));
}

/* The kernel's clock is memory of a kind that cannot be faulted in on request; but copied it can be. */
static void user_finds_special_memory(void **st)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from = 0;
	char line[300];

	while (from == 0 && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vvar]"))
			sscanf(line, "%lx", &from);
	fclose(maps);
	if (from == 0)
		skip();
	/* Some pages of it are there, and nobody may write one. */
	assert_false(user_writable((void *)from, 1));
	assert_true(user_readable((void *)(from), 1) || user_readable((void *)(from + 4096), 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(user_finds_memory_that_is_there),
		cmocka_unit_test(user_refuses_memory_that_is_not),
		cmocka_unit_test(user_needs_nothing_for_nothing),
		cmocka_unit_test(user_refuses_what_is_there_in_part),
		cmocka_unit_test(user_forgets_memory_when_it_goes),
		cmocka_unit_test(user_forgets_large_memory_when_it_goes),
		cmocka_unit_test(user_finds_special_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
