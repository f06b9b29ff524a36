/* SPDX-License-Identifier: MIT */
/* Regions of a peer, as it shows them: who may claim what, and that copies reach the right process or none. */
#include "rnic/view.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "rnic/mem.h"
#include "rnic/rnic.h"
#include "rnic/shown.h"

#define ALL     (FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ)
#define CIRCUIT 0x300007u
#define QPN     9u

/* ---- calls that are looked at, or fail ---- */

static int copy_errno; /* not 0: the kernel refuses so */
static struct iovec seen[4];
static unsigned long n_seen;

ssize_t __real_process_vm_writev(pid_t pid, const struct iovec *own, unsigned long n_own,
				 const struct iovec *peer, unsigned long n_peer,
				 unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *own, unsigned long n_own,
				 const struct iovec *peer, unsigned long n_peer,
				 unsigned long flags);
ssize_t __wrap_process_vm_writev(pid_t pid, const struct iovec *own, unsigned long n_own,
				 const struct iovec *peer, unsigned long n_peer,
				 unsigned long flags)
{
	n_seen = n_own;
	memcpy(seen, own, (n_own < 4 ? n_own : 4) * sizeof(*own));
	if (copy_errno) {
		errno = copy_errno;
		return -1;
	}
	return __real_process_vm_writev(pid, own, n_own, peer, n_peer, flags);
}

/* ---- claiming: a view of ourselves ---- */

static struct mem_table t;
static struct rnic_pd pd, other_pd;
static char bytes[8192];
static struct shown *shown;
static struct mem *region;
static struct view *v;
static _Atomic uint64_t word;
static uint32_t gate;

static int make(void **state)
{
	struct mem_attr attr = { bytes, 1000, 4096, ALL, false };

	if (mem_table_init(&t, 65536) || mem_register(&t, &pd, &attr, &region))
		return -1;
	shown = mem_show(&t);
	if (!shown)
		return -1;
	gate = shown_open_gate(shown, CIRCUIT, &pd, QPN, 0);
	v = view_open(dup(shown_fd(shown)), getpid(), &word);
	return v && gate ? 0 : -1;
}

static int drop(void **state)
{
	if (v)
		view_close(v);
	v = NULL;
	mem_table_fini(&t);
	return 0;
}

static struct view_range range(void)
{
	return (struct view_range) { .gate = gate,
				     .circuit = CIRCUIT,
				     .stag = region->stag,
				     .access = FLUE_REMOTE_WRITE,
				     .to = 1000,
				     .length = 4096 };
}

static bool takes(struct view_range r)
{
	uint64_t at = 0;
	bool got = view_take(v, &r, &at);

	if (!got) {
		assert_int_equal(word, 0);
		return false;
	}
	assert_true(word == ((uint64_t)r.gate << 32 | r.stag));
	assert_true(at == (uintptr_t)bytes + (r.to - region->to));
	view_give(v);
	assert_int_equal(word, 0);
	return true;
}

/* The same with something changed. */
#define ALLOWED(change)                        \
	do {                                   \
		struct view_range r = range(); \
		change;                        \
		assert_true(takes(r));         \
	} while (0)
#define REFUSED(change)                        \
	do {                                   \
		struct view_range r = range(); \
		change;                        \
		assert_false(takes(r));        \
	} while (0)

static void claim_is_taken_for_what_is_shown(void **state)
{
	assert_true(takes(range()));
	ALLOWED(r.to = 5095; r.length = 1);
	ALLOWED(r.access = FLUE_REMOTE_READ);
	ALLOWED(r.access = 0);
}

static void claim_is_refused_for_a_bad_key(void **state)
{
	struct mem_attr attr = { bytes, 1000, 4096, ALL, false };
	uint32_t old;

	old = region->stag;
	REFUSED(r.stag = 0);
	REFUSED(r.stag ^= 0x100);
	REFUSED(r.stag ^= 1);
	REFUSED(r.stag = slot_name(&t.slots, SHOWN_REGIONS) << 8 | 1);
	REFUSED(r.stag = slot_name(&t.slots, 0xffffff) << 8 | 1);
	assert_int_equal(
		mem_modify(&t, region, FLUE_MR_RANGE | FLUE_MR_PD | FLUE_MR_ACCESS, &pd, &attr), 0);
	REFUSED(r.stag = old);
	assert_true(takes(range()));
	assert_int_equal(mem_destroy(&t, region), 0);
	REFUSED(r.stag = old + 1);
}

static void claim_is_refused_when_it_is_somebody_elses(void **state)
{
	struct mem_attr attr = { bytes, 1000, 4096, ALL, false };
	uint32_t foreign;

	foreign = shown_open_gate(shown, CIRCUIT, &other_pd, QPN, 0);
	assert_int_not_equal(foreign, 0);
	REFUSED(r.gate = foreign);
	assert_int_equal(mem_modify(&t, region, FLUE_MR_RANGE | FLUE_MR_PD | FLUE_MR_ACCESS,
				    &other_pd, &attr),
			 0);
	ALLOWED(r.gate = foreign);
	assert_false(takes(range()));
}

static void window_is_for_one_queue_pair(void **state)
{
	struct flue_reg reg = {
		.addr = 1000, .length = 100, .access = FLUE_REMOTE_WRITE, .key = 3
	};
	struct mem_attr attr = { bytes, 1000, 4096, ALL | FLUE_BIND_WINDOW, false };
	struct mem *w;

	assert_int_equal(
		mem_modify(&t, region, FLUE_MR_RANGE | FLUE_MR_PD | FLUE_MR_ACCESS, &pd, &attr), 0);
	reg.lkey = region->stag;
	assert_int_equal(mem_window(&t, &pd, FLUE_MW_2B, &w), 0);
	assert_int_equal(mem_bind(&t, w->stag, &pd, QPN, &reg), 0);
	ALLOWED(r.stag = w->stag; r.length = 100);
	REFUSED(r.stag = w->stag; r.length = 101);
	assert_int_equal(mem_bind(&t, w->stag, &pd, QPN + 1, &reg), 0);
	REFUSED(r.stag = w->stag; r.length = 100);
}

static void claim_is_refused_without_the_right(void **state)
{
	struct mem_attr attr = { bytes, 1000, 4096, FLUE_LOCAL_WRITE | FLUE_REMOTE_READ, false };

	shown_shut_gate(shown, gate);
	shown_reopen_gate(shown, gate, CIRCUIT, FLUE_REMOTE_WRITE);
	assert_false(takes(range()));
	ALLOWED(r.access = FLUE_REMOTE_READ);
	shown_shut_gate(shown, gate);
	shown_reopen_gate(shown, gate, CIRCUIT, 0);
	assert_int_equal(
		mem_modify(&t, region, FLUE_MR_RANGE | FLUE_MR_PD | FLUE_MR_ACCESS, &pd, &attr), 0);
	assert_false(takes(range()));
	REFUSED(r.access = FLUE_REMOTE_READ | FLUE_REMOTE_WRITE);
	ALLOWED(r.access = FLUE_REMOTE_READ);
}

static void claim_is_refused_outside_of_the_region(void **state)
{
	REFUSED(r.to = 999);
	REFUSED(r.to = 1001);
	REFUSED(r.length = 4097);
	REFUSED(r.to = 5096; r.length = 1);
	REFUSED(r.to = 5097; r.length = 0);
	REFUSED(r.to = UINT64_MAX; r.length = 2);
	REFUSED(r.to = UINT64_MAX - 10; r.length = 4096);
	REFUSED(r.to = 0; r.length = UINT32_MAX);
}

static void gate_must_be_open_and_of_the_circuit(void **state)
{
	REFUSED(r.circuit ^= 1);
	REFUSED(r.circuit = 0);
	REFUSED(r.gate++);
	REFUSED(r.gate = 0);
	REFUSED(r.gate = SHOWN_GATES);
	REFUSED(r.gate = UINT32_MAX);
	shown_shut_gate(shown, gate);
	assert_false(takes(range()));
	REFUSED(r.circuit = 0);
	shown_give_gate(shown, gate);
	assert_false(takes(range()));
}

static bool write_pieces(struct view *view, const struct iovec *from, uint32_t n, uint64_t at,
			 size_t len, bool last)
{
	struct view_batch b;

	view_begin(view, &b);
	return view_add(view, &b, from, n, at, len, last) && view_write(view, &b);
}

static void copies_within_a_process_need_no_kernels_leave(void **state)
{
	char from[10] = "012345678", into[10] = { 0 };
	struct iovec iov[3] = { { from, 3 }, { from + 3, 6 }, { from + 9, 1 } };

	assert_true(write_pieces(v, iov, 3, (uintptr_t)bytes, 10, true));
	assert_string_equal(bytes, "012345678");
	assert_true(write_pieces(v, iov, 2, (uintptr_t)bytes + 1, 9, false));
	assert_string_equal(bytes, "0012345678");
	iov[0].iov_base = into;
	iov[1].iov_base = into + 3;
	assert_true(view_read(v, iov, 2, (uintptr_t)bytes + 1, 9));
	assert_string_equal(into, "012345678");
}

/* ---- files ---- */

static int copy_of_file(unsigned seals, size_t size, uint64_t magic)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(pwrite(fd, &magic, sizeof(magic), 0), sizeof(magic));
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static bool opens(int fd)
{
	struct view *view = view_open(fd, getpid(), &word);

	assert_int_equal(fcntl(fd, F_GETFD), -1); /* it was taken */
	if (view)
		view_close(view);
	return view;
}

static void file_that_is_none_is_refused(void **state)
{
	size_t size = sizeof(struct shown_file);

	assert_true(opens(copy_of_file(F_SEAL_SHRINK, size, SHOWN_MAGIC)));
	assert_false(opens(copy_of_file(F_SEAL_GROW, size, SHOWN_MAGIC)));
	assert_false(opens(copy_of_file(0, size, SHOWN_MAGIC)));
	assert_false(opens(copy_of_file(F_SEAL_SHRINK, size - 4096, SHOWN_MAGIC)));
	assert_false(opens(copy_of_file(F_SEAL_SHRINK, size + 4096, SHOWN_MAGIC)));
	assert_false(opens(copy_of_file(F_SEAL_SHRINK, size, SHOWN_MAGIC + 1)));
	assert_false(opens(open("/dev/zero", O_RDWR | O_CLOEXEC)));
	assert_false(opens(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)));
}

/* What they only read they cannot write, not even by a mapping of their own. */
static void file_is_the_peers_to_read_only(void **state)
{
	int fd;

	fd = shown_fd(shown);
	assert_ptr_equal(mmap(NULL, 4096, PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	assert_int_equal(pwrite(fd, "x", 1, 0), -1);
	assert_int_not_equal(ftruncate(fd, 0), 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
}

/* ---- another process ---- */

struct other {
	pid_t pid;
	int fd, pipe;
	uint64_t at;
};

static struct {
	_Atomic int fd;
	_Atomic uint64_t at;
	_Atomic int did;
} * common;

static void other_main(int pipe)
{
	char what;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (mem_table_init(&t, 4096) || !mem_show(&t))
		_exit(1);
	memset(bytes, 0, sizeof(bytes));
	common->at = (uintptr_t)bytes;
	common->fd = shown_fd(t.shown);
	while (read(pipe, &what, 1) == 1) {
		if (what == 't')
			t.shown->file->token++;
		if (what == 'g')
			munmap(t.shown->guard, 4096);
		if (what == 'x')
			execl("/bin/sleep", "sleep", "30", (char *)NULL);
		common->did++;
	}
	_exit(0);
}

static struct other start_other(void)
{
	struct other o;
	char path[64];
	int fds[2];

	common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	assert_ptr_not_equal(common, MAP_FAILED);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	o.pid = fork();
	if (o.pid == 0) {
		close(fds[1]);
		other_main(fds[0]);
	}
	close(fds[0]);
	o.pipe = fds[1];
	while (!common->fd && waitpid(o.pid, NULL, WNOHANG) == 0)
		usleep(100);
	o.at = common->at;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)o.pid, common->fd);
	o.fd = open(path, O_RDONLY | O_CLOEXEC);
	return o;
}

static void tell_other(struct other *o, char what)
{
	int before = common->did;

	assert_int_equal(write(o->pipe, &what, 1), 1);
	for (int i = 0; i < 20000 && common->did == before && what != 'x'; i++)
		usleep(100);
}

static void end_other(struct other *o)
{
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	close(o->pipe);
	munmap(common, sizeof(*common));
}

static struct view *view_of(struct other *o)
{
	assert_true(o->fd >= 0);
	return view_open(o->fd, o->pid, &word);
}

static bool writes(struct view *view, uint64_t at, bool last)
{
	char from[] = "0123456789";
	struct iovec iov[2] = { { from, 4 }, { from + 4, 6 } };

	return write_pieces(view, iov, 2, at, 10, last);
}

static bool reads(struct view *view, uint64_t at)
{
	char into[16] = { 0 };
	struct iovec iov[2] = { { into, 4 }, { into + 4, 6 } };

	return view_read(view, iov, 2, at, 10) && !strcmp(into, "0123456789");
}

static void other_process_is_written_and_read(void **state)
{
	struct other o = start_other();
	struct view *view = view_of(&o);

	assert_non_null(view);
	assert_true(writes(view, o.at, false));
	assert_true(reads(view, o.at));
	assert_int_equal(n_seen, 3);
	/* The last octet is a piece of its own, behind the others. */
	assert_true(writes(view, o.at, true));
	assert_int_equal(n_seen, 4);
	assert_int_equal(seen[1].iov_len, 4);
	assert_int_equal(seen[2].iov_len, 5);
	assert_int_equal(seen[3].iov_len, 1);
	assert_true(reads(view, o.at));
	/* What is not there is no success, and nothing else either. */
	assert_false(writes(view, 4096, true));
	assert_false(reads(view, 4096));
	assert_false(view->out_of_use);
	assert_true(reads(view, o.at));
	view_close(view);
	end_other(&o);
}

static void process_that_is_another_is_not_touched(void **state)
{
	struct other o = start_other();
	struct view *view = view_of(&o);
	char now[10] = { 0 };
	struct iovec to = { now, 10 }, from = { (void *)(uintptr_t)o.at, 10 };

	assert_non_null(view);
	assert_null(view_open(open("/dev/null", O_RDONLY | O_CLOEXEC), o.pid, &word));
	tell_other(&o, 'g'); /* as if it were another program: the page is gone */
	assert_false(writes(view, o.at, true));
	assert_false(reads(view, o.at));
	assert_int_equal(process_vm_readv(o.pid, &to, 1, &from, 1, 0), 10);
	assert_int_equal(now[0] | now[9], 0);
	assert_false(view->out_of_use);
	view_close(view);
	end_other(&o);
}

static void program_that_has_become_another_is_not_touched(void **state)
{
	struct other o = start_other();
	struct view *view = view_of(&o);

	assert_non_null(view);
	assert_true(writes(view, o.at, true));
	tell_other(&o, 'x');
	for (int i = 0; i < 20000 && reads(view, o.at); i++)
		usleep(100);
	assert_false(writes(view, o.at, true));
	assert_false(reads(view, o.at));
	kill(o.pid, SIGKILL);
	waitpid(o.pid, NULL, 0);
	assert_false(writes(view, o.at, true));
	assert_true(view->out_of_use);
	view_close(view);
	end_other(&o);
}

static void file_of_another_process_is_refused(void **state)
{
	struct other o = start_other();
	struct view *view;

	tell_other(&o, 't'); /* the file says what is not in the page */
	view = view_of(&o);
	assert_null(view);
	end_other(&o);
}

static void kernel_that_refuses_is_not_asked_again(void **state)
{
	static const int refusals[] = { EPERM, ENOSYS, ESRCH };
	struct view_range r = { .gate = 1, .stag = 0x100, .length = 1 };
	struct other o = start_other();
	struct view *view = view_of(&o);
	uint64_t at;

	assert_non_null(view);
	copy_errno = EFAULT;
	errno = 77;
	assert_false(writes(view, o.at, true));
	assert_false(view->out_of_use);
	for (int i = 0; i < 3; i++) {
		copy_errno = refusals[i];
		view->out_of_use = false;
		assert_false(writes(view, o.at, true));
		assert_true(view->out_of_use);
		assert_int_equal(errno, 77);
	}
	copy_errno = 0;
	word = 0;
	assert_false(view_take(view, &r, &at));
	assert_int_equal(word, 0);
	view_close(view);
	end_other(&o);
}

#define TEST(x) cmocka_unit_test_setup_teardown(x, make, drop)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(claim_is_taken_for_what_is_shown),
		TEST(claim_is_refused_for_a_bad_key),
		TEST(claim_is_refused_when_it_is_somebody_elses),
		TEST(window_is_for_one_queue_pair),
		TEST(claim_is_refused_without_the_right),
		TEST(claim_is_refused_outside_of_the_region),
		TEST(gate_must_be_open_and_of_the_circuit),
		TEST(copies_within_a_process_need_no_kernels_leave),
		cmocka_unit_test(file_that_is_none_is_refused),
		TEST(file_is_the_peers_to_read_only),
		TEST(other_process_is_written_and_read),
		TEST(process_that_is_another_is_not_touched),
		TEST(program_that_has_become_another_is_not_touched),
		TEST(file_of_another_process_is_refused),
		TEST(kernel_that_refuses_is_not_asked_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
