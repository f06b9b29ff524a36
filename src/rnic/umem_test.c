/* SPDX-License-Identifier: MIT */
/* Copies to and from registered memory that may be gone. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/umem.h"

static size_t page;
static char *pages; /* two, of which the second is not there */
static char own[1 << 16];

/* A sandbox may forbid process_vm_*: then there is no guard, as umem.h says. */
static bool can_guard(void)
{
	char from = 'x', to = 0;
	struct iovec l = { &to, 1 }, r = { &from, 1 };

	return process_vm_readv(getpid(), &l, 1, &r, 1, 0) == 1;
}

static int make(void **state)
{
	page = (size_t)sysconf(_SC_PAGESIZE);
	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED || munmap(pages + page, page))
		return -1;
	memset(pages, 'u', page);
	memset(own, 'o', sizeof(own));
	umem_guarded = true;
	return 0;
}

static int drop(void **state)
{
	umem_guarded = false;
	return munmap(pages, page);
}

static void need_guard(void)
{
	if (!can_guard()) {
		print_message("process_vm_readv is forbidden here\n");
		skip();
	}
}

static void umem_guarded_copies_move_the_bytes(void **state)
{
	assert_int_equal(umem_write(pages + 3, own, 100), 0);
	assert_memory_equal(pages + 3, own, 100);
	assert_int_equal(pages[2], 'u');
	assert_int_equal(pages[103], 'u');
	pages[50] = 'z';
	assert_int_equal(umem_read(own, pages, page), 0);
	assert_memory_equal(own, pages, page);
}

static void umem_guarded_copies_say_efault_when_the_page_is_gone(void **state)
{
	need_guard();
	assert_int_equal(umem_write(pages + page, own, 8), -EFAULT);
	assert_int_equal(umem_read(own, pages + page, 8), -EFAULT);
	assert_int_equal(umem_read(own, NULL, 1), -EFAULT);
}

/* The kernel copies what is there and reports a short count. */
static void umem_guarded_copies_say_efault_when_the_memory_ends_in_the_middle(void **state)
{
	need_guard();
	assert_int_equal(umem_write(pages + page - 10, own, 20), -EFAULT);
	assert_int_equal(umem_read(own, pages + page - 10, 20), -EFAULT);
	assert_int_equal(umem_read(own, pages + page - 10, 10), 0);
}

static void umem_guarded_copies_respect_the_page_protection(void **state)
{
	need_guard();
	assert_int_equal(mprotect(pages, page, PROT_READ), 0);
	assert_int_equal(umem_write(pages, own, 8), -EFAULT);
	assert_int_equal(umem_read(own, pages, 8), 0);
	assert_int_equal(mprotect(pages, page, PROT_NONE), 0);
	assert_int_equal(umem_read(own, pages, 8), -EFAULT);
}

static void umem_copies_on_other_threads_are_plain(void **state)
{
	umem_guarded = false;
	assert_int_equal(umem_write(pages, own, page), 0);
	assert_memory_equal(pages, own, page);
	memset(pages, 'p', 32);
	assert_int_equal(umem_read(own, pages, 32), 0);
	assert_memory_equal(own, pages, 32);
}

static void on_fault(int sig)
{
	_exit(42);
}

/* Where a fault is the caller's own, it comes as one: no system call is spent on every copy. */
static void umem_copies_on_other_threads_fault_when_the_page_is_gone(void **state)
{
	struct sigaction sa = { .sa_handler = on_fault };
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		sigaction(SIGSEGV, &sa, NULL);
		umem_guarded = false;
		_exit(umem_read(own, pages + page, 8) ? 1 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 42);
}

static void *see_guard(void *arg)
{
	*(bool *)arg = umem_guarded;
	return NULL;
}

static void umem_guard_belongs_to_one_thread(void **state)
{
	pthread_t other;
	bool guarded = true;

	assert_int_equal(pthread_create(&other, NULL, see_guard, &guarded), 0);
	pthread_join(other, NULL);
	assert_false(guarded);
	assert_true(umem_guarded);
}

static void umem_empty_copies_touch_nothing(void **state)
{
	assert_int_equal(umem_write(pages + page, own, 0), 0);
	assert_int_equal(umem_read(own, pages + page, 0), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(umem_guarded_copies_move_the_bytes, make, drop),
		cmocka_unit_test_setup_teardown(
			umem_guarded_copies_say_efault_when_the_page_is_gone, make, drop),
		cmocka_unit_test_setup_teardown(
			umem_guarded_copies_say_efault_when_the_memory_ends_in_the_middle, make,
			drop),
		cmocka_unit_test_setup_teardown(umem_guarded_copies_respect_the_page_protection,
						make, drop),
		cmocka_unit_test_setup_teardown(umem_copies_on_other_threads_are_plain, make, drop),
		cmocka_unit_test_setup_teardown(
			umem_copies_on_other_threads_fault_when_the_page_is_gone, make, drop),
		cmocka_unit_test_setup_teardown(umem_guard_belongs_to_one_thread, make, drop),
		cmocka_unit_test_setup_teardown(umem_empty_copies_touch_nothing, make, drop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
