/* SPDX-License-Identifier: MIT */
/*
 * A plug-in that uses the library and is unloaded: with everything closed, with an adapter open and its
 * threads asleep, and a fork afterwards, whose handlers are the library's. Its only argument is the
 * library; this program is not linked with it.
 */
#include <dlfcn.h>
#include <flue/flue.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static const char *library;

struct user {
	void *handle;
	struct flue_adapter *adapter;
	struct flue_listener *listener;
};

/* A listener needs a thread. */
static void load(struct user *u)
{
	struct flue_adapter *(*open)(const struct flue_open_attr *);
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in here = { .sin_family = AF_INET };

	u->handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!u->handle)
		fail_msg("%s", dlerror());
	open = (struct flue_adapter * (*)(const struct flue_open_attr *))
		dlsym(u->handle, "flue_open");
	assert_non_null(open);
	u->adapter = open(NULL);
	assert_non_null(u->adapter);
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&here;
	attr.local_len = sizeof(here);
	u->listener = u->adapter->ops->listen(u->adapter, &attr);
	assert_non_null(u->listener);
}

static void close_all(struct user *u)
{
	assert_true(u->listener->ops->destroy(u->listener));
	assert_true(flue_close(u->adapter));
}

static void fork_once(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void library_can_be_loaded_and_unloaded_again_and_again(void **state)
{
	for (int i = 0; i < 5; i++) {
		struct user u;

		load(&u);
		close_all(&u);
		assert_int_equal(dlclose(u.handle), 0);
		fork_once();
	}
}

static void unloading_with_an_adapter_open_takes_no_code_away(void **state)
{
	struct user u;

	load(&u);
	usleep(50000);
	assert_int_equal(dlclose(u.handle), 0);
	/* Threads wake up, fork handlers run, and what is open can be closed. */
	fork_once();
	close_all(&u);
	usleep(50000);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(library_can_be_loaded_and_unloaded_again_and_again),
		cmocka_unit_test(unloading_with_an_adapter_open_takes_no_code_away),
	};

	library = argc > 1 ? argv[1] : "libflue.so.0";
	return cmocka_run_group_tests(tests, NULL, NULL);
}
