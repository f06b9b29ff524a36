/* SPDX-License-Identifier: MIT */
/* Trunks: memory that is not what it should be, calls that fail, letters. */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "base/self.h"
#include "base/sys.h"
#include "channel/trunk_test.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* --- the nth call fails */

static int fail_at; /* 0: none */
static int fail_errno;

static bool fails(void)
{
	if (fail_at == 0 || --fail_at > 0)
		return false;
	errno = fail_errno;
	return true;
}

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
ssize_t __real_pwrite64(int fd, const void *data, size_t n, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at);
ssize_t __real_pread64(int fd, void *data, size_t n, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at);
void *__real_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t at);
void *__wrap_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t at);
int __real_madvise(void *p, size_t n, int advice);
int __wrap_madvise(void *p, size_t n, int advice);

int __wrap_memfd_create(const char *name, unsigned flags)
{
	return fails() ? -1 : __real_memfd_create(name, flags);
}

int __wrap_ftruncate64(int fd, off_t size)
{
	return fails() ? -1 : __real_ftruncate64(fd, size);
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t n, off_t at)
{
	return fails() ? -1 : __real_pwrite64(fd, data, n, at);
}

ssize_t __wrap_pread64(int fd, void *data, size_t n, off_t at)
{
	return fails() ? -1 : __real_pread64(fd, data, n, at);
}

void *__wrap_mmap64(void *p, size_t n, int prot, int flags, int fd, off_t at)
{
	return fails() ? MAP_FAILED : __real_mmap64(p, n, prot, flags, fd, at);
}

int __wrap_madvise(void *p, size_t n, int advice)
{
	return fails() ? -1 : __real_madvise(p, n, advice);
}

static sys_function *real_call;

static long failing_call(long number, ...)
{
	va_list args;
	long a[6];

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	/* What gives back must work. */
	if (number != SYS_close && number != SYS_munmap && number != SYS_shutdown &&
	    number != SYS_futex && fails())
		return -1;
	return real_call(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

static void every_call_may_fail(void **st)
{
	uint8_t name[MAILBOX_NAME];
	struct trunk *a, *b;
	int before, n, rc = -1;

	assert_true(trunk_reachable());
	memcpy(name, mailbox_name(), sizeof(name));
	before = open_fds();
	sys_call(SYS_getpid);
	real_call = sys_found;
	sys_found = failing_call;
	for (n = 1; rc != 0 && n < 100; n++) {
		fail_at = n;
		fail_errno = n % 2 ? ENOMEM : EMFILE;
		rc = trunk_call(name, getpid(), &small_shape, &a);
		if (rc == 0)
			rc = trunk_answer(&b, NULL);
		else
			a = NULL;
		fail_at = 0;
		if (rc == 0)
			trunk_close(b);
		/* What came and was not answered yet. */
		while (rc != 0 && trunk_answer(&b, NULL) == 0)
			trunk_close(b);
		if (a)
			trunk_close(a);
		if (open_fds() != before)
			fail_msg("call %d left descriptors: %d, %d", n, before, open_fds());
	}
	sys_found = real_call;
	assert_true(n > 20 && n < 100); /* so many were tried */
}

/* --- memory */

static int make(size_t size, const struct trunk_shared *head, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	if (size >= sizeof(*head))
		assert_int_equal(pwrite(fd, head, sizeof(*head), 0), sizeof(*head));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void refuse(int fd)
{
	struct trunk *t;

	assert_int_equal(trunk_attach(fd, 0, -1, 0, &t), -EINVAL);
	close(fd);
}

static void memory_that_is_wrong_is_refused(void **st)
{
	const struct trunk_shared good = {
		.magic = TRUNK_MAGIC, .blocks = 16, .block_size = 64, .circuits = 4, .guarantee = 2
	};
	size_t size = trunk_memory_size(&small_shape);
	struct trunk_shared h;
	struct trunk *t;
	int fd = make(size, &good, SEALS);

	assert_int_equal(trunk_attach(fd, 2, -1, 0, &t), -EINVAL);
	assert_int_equal(trunk_attach(fd, 1, -1, 0, &t), 0);
	trunk_close(t);
	close(fd);
	refuse(make(size, &good, 0));
	refuse(make(size, &good, F_SEAL_SHRINK));
	refuse(make(size, &good, F_SEAL_SHRINK | F_SEAL_GROW));
	refuse(make(size - 1, &good, SEALS));
	refuse(make(size + 4096, &good, SEALS));
	refuse(make(100, &good, SEALS));
	refuse(open("/dev/null", O_RDWR));
	refuse(-1);
	h = good;
	h.magic++;
	refuse(make(size, &h, SEALS));
}

static void shape_that_is_wrong_is_refused(void **st)
{
	static const struct trunk_shape bad[] = {
		{ 0, 64, 2, 1 },
		{ 24, 64, 2, 1 },
		{ 1, 64, 2, 1 },
		{ TRUNK_BLOCKS_MAX * 2, 64, 2, 1 },
		{ 16, 0, 2, 1 },
		{ 16, 65, 2, 1 },
		{ 16, TRUNK_BLOCK_MAX + 64, 2, 1 },
		{ 16, 64, 0, 1 },
		{ 16, 64, 3, 1 },
		{ 16, 64, TRUNK_CIRCUITS_MAX + 2, 1 },
		{ 16, 64, 2, 0 },
		{ 16, 64, 4, 5 },
		{ 16, 64, 4, 0x40000001 },
	};
	static const struct trunk_shape good[] = {
		{ 2, 64, 2, 1 },
		{ TRUNK_BLOCKS_MAX, 64, TRUNK_CIRCUITS_MAX, 1 },
		{ 4, TRUNK_BLOCK_MAX, 2, 2 },
		TRUNK_SHAPE,
	};
	struct trunk_shape s;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct trunk_shared h = { .magic = TRUNK_MAGIC,
					  .blocks = bad[i].blocks,
					  .block_size = bad[i].block_size,
					  .circuits = bad[i].circuits,
					  .guarantee = bad[i].guarantee };

		assert_int_equal(trunk_memory(&bad[i]), -EINVAL);
		refuse(make(trunk_memory_size(&bad[i]), &h, SEALS));
	}
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		attach_pair(&good[i], false);
		trunk_shape(side[1], &s);
		assert_memory_equal(&s, &good[i], sizeof(s));
		connect_pair(0);
		close_pair();
	}
}

static int mappings(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	int n = 0, c;

	assert_non_null(f);
	while ((c = fgetc(f)) != EOF)
		n += c == '\n';
	fclose(f);
	return n;
}

static void nothing_is_left_when_it_is_closed(void **st)
{
	int before = 0;

	for (int i = 0; i < 100; i++) {
		attach_pair(&small_shape, i % 2);
		close_pair();
		if (i == 10)
			before = mappings();
	}
	assert_true(mappings() <= before + 5); /* others may map something, too */
}

static void ten_thousand_circuits_take_a_few_mebioctets(void **st)
{
	const struct trunk_shape shape = TRUNK_SHAPE;

	assert_true(shape.circuits >= 10000);
	assert_true(trunk_memory_size(&shape) / 2 < 5 << 20);
}

static void socket_that_is_none_is_refused(void **st)
{
	int before = open_fds(), fd = trunk_memory(&small_shape);
	struct trunk *t;

	assert_int_equal(trunk_attach(fd, 0, open("/dev/null", O_RDWR), 0, &t), -EINVAL);
	assert_int_equal(trunk_attach(fd, 0, 12345, 0, &t), -EMFILE);
	assert_int_equal(trunk_attach(-1, 0, dup(fd), 0, &t), -EINVAL);
	own_close(fd);
	assert_int_equal(open_fds(), before);
}

static int limited(void)
{
	const struct trunk_shape wide = { 65536, 1024, 2, 1 };
	const struct rlimit file = { 100000, RLIM_INFINITY },
			    space = { (rlim_t)1 << 60, RLIM_INFINITY };
	struct trunk *t;
	int fd = trunk_memory(&wide);

	/* More than our share of the address space. */
	if (fd < 0 || setrlimit(RLIMIT_AS, &space) != 0)
		return 1;
	if (trunk_attach(fd, 0, -1, 0, &t) != -ENOMEM)
		return 2;
	/* More than a file may have: no signal. */
	if (setrlimit(RLIMIT_FSIZE, &file) != 0 || trunk_memory(&wide) != -EFBIG)
		return 3;
	return 0;
}

static void limits_of_the_program_are_kept(void **st)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(limited());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* Two of them are more than our share. */
static const struct trunk_shape big = { 8192, 640, 2, 1 };

static int close_and_attach(void)
{
	const struct rlimit space = { (rlim_t)1 << 60, RLIM_INFINITY };
	struct trunk *t;
	int fd = trunk_memory(&big);

	if (fd < 0 || setrlimit(RLIMIT_AS, &space) != 0)
		return 1;
	if (trunk_attach(fd, 0, -1, 0, &t) != -ENOMEM)
		return 2;
	trunk_close(side[0]);
	return trunk_attach(fd, 0, -1, 0, &t) == 0 ? 0 : 3;
}

static void child_that_closes_has_its_share_again(void **st)
{
	int status = -1, fd = trunk_memory(&big);
	pid_t pid;

	assert_int_equal(trunk_attach(fd, 0, -1, 0, &side[0]), 0);
	own_close(fd);
	pid = fork();
	if (pid == 0)
		_exit(close_and_attach());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	trunk_close(side[0]);
}

/* --- letters */

static void trunk_comes_by_letter(void **st)
{
	uint8_t name[MAILBOX_NAME];
	int before;
	pid_t pid = 0;

	assert_true(trunk_reachable());
	memcpy(name, mailbox_name(), sizeof(name));
	before = open_fds();
	assert_int_equal(trunk_answer(&side[1], &pid), -EAGAIN);
	assert_int_equal(trunk_call(name, getpid(), &small_shape, &side[0]), 0);
	assert_int_equal(trunk_answer(&side[1], &pid), 0);
	assert_int_equal(pid, getpid());
	connect_pair(0);
	connect_pair(1);
	close_pair();
	assert_int_equal(open_fds(), before);
	/* Somebody else's number, and nobody's mailbox. */
	assert_int_equal(trunk_call(name, 1, &small_shape, &side[0]), -ECONNREFUSED);
	name[3] ^= 1;
	assert_int_equal(trunk_call(name, getpid(), &small_shape, &side[0]), -ECONNREFUSED);
	assert_int_equal(trunk_answer(&side[1], &pid), -EAGAIN);
	assert_int_equal(open_fds(), before);
}

static void callers_learn_when_nobody_answers(void **st)
{
	enum { MANY = 20 };
	struct trunk *t[MANY];
	uint8_t name[MAILBOX_NAME];
	int before, alive = 0;

	assert_true(trunk_reachable());
	memcpy(name, mailbox_name(), sizeof(name));
	before = open_fds();
	for (int i = 0; i < MANY; i++)
		assert_int_equal(trunk_call(name, getpid(), &small_shape, &t[i]), 0);
	mailbox_empty();
	for (int i = 0; i < MANY; i++) {
		trunk_heard(t[i]);
		alive += trunk_status(t[i]) == 0;
	}
	assert_int_equal(alive, 16);
	trunk_forked(); /* nobody will answer those either */
	for (int i = 0; i < MANY; i++) {
		trunk_heard(t[i]);
		assert_int_equal(trunk_status(t[i]), -EPIPE);
		trunk_close(t[i]);
	}
	assert_int_equal(open_fds(), before);
}

static void letter_with_something_else_is_refused(void **st)
{
	struct letter letter = { .kind = LETTER_TRUNK };
	int before, fds[2];

	assert_true(trunk_reachable());
	before = open_fds();
	fds[0] = open("/dev/null", O_RDWR);
	fds[1] = dup(fds[0]);
	assert_true(mailbox_send(mailbox_name(), getpid(), &letter, fds, 2));
	assert_true(mailbox_send(mailbox_name(), getpid(), &letter, fds, 1));
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(trunk_answer(&side[0], NULL), -EINVAL);
	assert_int_equal(trunk_answer(&side[0], NULL), -EAGAIN);
	assert_int_equal(open_fds(), before);
}

/* A child of a process that others call: those who were not answered yet are the parent's, and it can be called itself. */
static int be_called_as_child(struct trunk *parents, int before)
{
	struct trunk *a, *b;
	uint8_t name[MAILBOX_NAME];

	self_forked();
	memcpy(name, mailbox_name(), sizeof(name));
	mailbox_forked();
	trunk_forked();
	trunk_close(parents);
	if (trunk_answer(&a, NULL) != -EAGAIN || open_fds() >= before)
		return 1;
	/* Its mailbox is another one. */
	if (!trunk_reachable() || memcmp(name, mailbox_name(), sizeof(name)) == 0)
		return 2;
	if (trunk_call(mailbox_name(), getpid(), &small_shape, &a) != 0 ||
	    trunk_answer(&b, NULL) != 0 || trunk_open(a, NULL, 0, NULL) != 0)
		return 3;
	trunk_close(a);
	trunk_close(b);
	/* Who calls the parent does not get us. */
	return trunk_call(name, getpid(), &small_shape, &a) == -ECONNREFUSED ? 0 : 4;
}

static void fork_leaves_letters_with_the_parent(void **st)
{
	uint8_t name[MAILBOX_NAME];
	int before, status = -1;
	pid_t pid;

	assert_true(trunk_reachable());
	memcpy(name, mailbox_name(), sizeof(name));
	before = open_fds();
	assert_int_equal(trunk_call(name, getpid(), &small_shape, &side[0]), 0);
	mailbox_empty(); /* it has come, and was not answered */
	pid = fork();
	if (pid == 0)
		_exit(be_called_as_child(side[0], open_fds()));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(trunk_answer(&side[1], &pid), 0);
	assert_int_equal(pid, getpid());
	connect_pair(0);
	connect_pair(1);
	close_pair();
	assert_int_equal(open_fds(), before);
}

/* Who has connected, and writes nothing. */
static int connect_to_mailbox(void)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	size_t size = strnlen((const char *)mailbox_name() + 1, MAILBOX_NAME - 1) + 1;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(name.sun_path, mailbox_name(), size);
	assert_int_equal(connect(s, (struct sockaddr *)&name,
				 (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size)),
			 0);
	return s;
}

static int highest_fd(void)
{
	int fd = 4095;

	while (fd > 0 && fcntl(fd, F_GETFD) < 0)
		fd--;
	return fd;
}

/* The program puts something of its own where a connection is whose letter is awaited. */
static int take_its_number(bool forked)
{
	int before, fd, pair[2];
	char octet = 0;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pair) != 0)
		return 1;
	connect_to_mailbox();
	before = highest_fd();
	mailbox_empty();
	fd = highest_fd();
	if (fd <= before || dup2(pair[1], fd) != fd || write(pair[0], "p", 1) != 1)
		return 2;
	if (forked)
		mailbox_forked();
	else
		mailbox_empty();
	/* It is open, and nobody has read from it. */
	return read(fd, &octet, 1) == 1 && octet == 'p' ? 0 : 3;
}

static void awaited_letter_leaves_the_program_its_number(void **st)
{
	assert_true(trunk_reachable());
	for (int i = 0; i < 2; i++) {
		int status = -1;
		pid_t pid = fork();

		if (pid == 0) {
			self_forked();
			/* One of its own. */
			mailbox_forked();
			_exit(trunk_reachable() ? take_its_number(i) : 4);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
}

/* --- who keeps a table of the program's numbers */

static bool marked[4096];
static int n_marked, n_wrong;

static void mark_made(int fd)
{
	n_wrong += fd >= 4096 || marked[fd];
	marked[fd] = true;
	n_marked++;
}

static void mark_closed(int fd)
{
	n_wrong += !marked[fd];
	marked[fd] = false;
	n_marked--;
	close(fd);
}

/* The last one: a watch is never taken back. */
static void numbers_are_unmarked_once(void **st)
{
	static const struct own_watch watch = { .made = mark_made, .close = mark_closed };
	struct letter letter = { .kind = LETTER_TRUNK };
	uint8_t name[MAILBOX_NAME];
	int before, fds[2];

	own_set_watch(&watch);
	assert_true(trunk_reachable());
	memcpy(name, mailbox_name(), sizeof(name));
	before = open_fds();
	assert_int_equal(trunk_call(name, getpid(), &small_shape, &side[0]), 0);
	assert_int_equal(trunk_answer(&side[1], NULL), 0);
	connect_pair(0);
	close_pair();
	/* And one that cannot be answered. */
	fds[0] = open("/dev/null", O_RDWR);
	fds[1] = dup(fds[0]);
	assert_true(mailbox_send(name, getpid(), &letter, fds, 2));
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(trunk_answer(&side[0], NULL), -EINVAL);
	assert_int_equal(n_wrong, 0);
	assert_int_equal(n_marked, 0);
	assert_int_equal(open_fds(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call_may_fail),
		cmocka_unit_test(memory_that_is_wrong_is_refused),
		cmocka_unit_test(shape_that_is_wrong_is_refused),
		cmocka_unit_test(nothing_is_left_when_it_is_closed),
		cmocka_unit_test(ten_thousand_circuits_take_a_few_mebioctets),
		cmocka_unit_test(socket_that_is_none_is_refused),
		cmocka_unit_test(limits_of_the_program_are_kept),
		cmocka_unit_test(child_that_closes_has_its_share_again),
		cmocka_unit_test(trunk_comes_by_letter),
		cmocka_unit_test(callers_learn_when_nobody_answers),
		cmocka_unit_test(letter_with_something_else_is_refused),
		cmocka_unit_test(fork_leaves_letters_with_the_parent),
		cmocka_unit_test(awaited_letter_leaves_the_program_its_number),
		cmocka_unit_test(numbers_are_unmarked_once),
	};

	signal(SIGXFSZ, SIG_DFL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
