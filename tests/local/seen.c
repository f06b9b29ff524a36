/* SPDX-License-Identifier: MIT */
/*
 * The last octet of a Write becomes visible last: a target that never calls the library spins on that octet, and finds all before it.
 *
 *   seen [--link NAME] [--rounds N] [--apart 1]
 *
 * Over the link `self` the target is a thread of this process, else a process of its own; --apart: which is in other mount and
 * process namespaces, so that the two may not know each other's processes. Then it goes over whatever link can be had.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "local/end.h"

#define SIZE (256 * 1024)

static struct shared {
	_Atomic uint32_t port, ready, seen;
	uint32_t rkey;
	uint64_t addr;
} * shared;

static enum column column;
static uint32_t rounds = 10000;
static bool apart;

/* Small ones mostly; some are longer than a segment, a record, or a step of the kernel's copy. */
static uint32_t length_of(uint32_t i)
{
	static const uint32_t lengths[] = { 1,    2,    3,    7,     8,     9,    16,
					    17,   31,   64,   65,    100,   257,  1000,
					    4096, 4097, 5000, 16384, 16385, 70001 };
	uint32_t n = sizeof(lengths) / sizeof(lengths[0]);

	return i % 1000 == 999 ? 200000 : lengths[i % (i % 8 ? 13 : n)];
}

static uint32_t place_of(uint32_t i)
{
	return i % 3 ? 0 : i % 61;
}

static uint8_t value_of(uint32_t i)
{
	return (uint8_t)(i % 255 + 1);
}

/* Made so that nobody keeps it in a register, and ThreadSanitizer does not look: it is a race by design. */
__attribute__((no_sanitize("thread"))) static void look_for(const uint8_t *at, uint32_t length,
							    uint8_t value, uint32_t round)
{
	const volatile uint8_t *octets = at;

	/* More threads than processors spin here: now and then others get theirs. */
	for (uint32_t i = 1; octets[length - 1] != value; i++)
		if (i % 16384 == 0)
			sched_yield();
	atomic_thread_fence(memory_order_acquire);
	for (uint32_t i = 0; i < length; i++) {
		if (octets[i] != value) {
			fprintf(stderr, "round %u: octet %u of %u is %u, not %u\n", round, i,
				length, octets[i], value);
			_exit(1);
		}
	}
}

static void *target(void *arg)
{
	struct flue_conn_request *req;
	struct end n = { 0 };

	(void)arg;
	end_open(&n, column, SIZE);
	atomic_store(&shared->port, end_listen(&n));
	MUST(req = n.listener->ops->get_request(n.listener, 20000));
	MUST(req->ops->accept(req, n.qp, NULL));
	shared->rkey = n.mr->rkey;
	shared->addr = n.mr->remote_start;
	atomic_store(&shared->ready, 1);
	for (uint32_t i = 1; i <= rounds; i++) {
		look_for(n.mem + place_of(i), length_of(i), value_of(i), i);
		atomic_store(&shared->seen, i);
	}
	while (atomic_load(&shared->ready))
		usleep(1000);
	end_close(&n);
	return NULL;
}

static void await_completion(struct end *n)
{
	struct flue_wc wc;
	uint32_t got;

	do {
		MUST(flue_poll(n->cq, &wc, 1, &got));
	} while (!got);
	MUST(wc.status == FLUE_WC_SUCCESS);
}

static void run_writer(void)
{
	struct end n = { 0 };

	end_open(&n, column, SIZE);
	while (!atomic_load(&shared->port))
		usleep(1000);
	n.any_link = apart;
	end_connect(&n, (uint16_t)atomic_load(&shared->port));
	while (!atomic_load(&shared->ready))
		usleep(1000);
	for (uint32_t i = 1; i <= rounds; i++) {
		memset(n.mem, value_of(i), length_of(i));
		MUST(end_post(&n, FLUE_WR_WRITE, 0, length_of(i), shared->rkey,
			      shared->addr + place_of(i)));
		/* Sometimes nobody drives but the threads of the library. */
		if (i % 64)
			await_completion(&n);
		for (uint32_t k = 1; atomic_load(&shared->seen) != i; k++)
			if (k % 16384 == 0)
				sched_yield();
		if (i % 64 == 0)
			await_completion(&n);
	}
	atomic_store(&shared->ready, 0);
	end_close(&n);
}

/* The process of the target. One that has left its process namespace can make no threads, so another stands between. */
static pid_t start_target(void)
{
	pid_t pid = fork();
	int status;

	if (pid)
		return pid;
	if (apart) {
		if (unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
			_exit(77);
		pid = fork();
		if (pid)
			_exit(waitpid(pid, &status, 0) == pid ? WEXITSTATUS(status) : 1);
		MUST(getpid() == 1);
	}
	target(NULL);
	exit(0);
}

/* In a process of its own, as nothing leads back. */
static bool can_be_apart(void)
{
	int status = -1;
	pid_t pid = fork();

	if (pid == 0)
		_exit(unshare(CLONE_NEWPID | CLONE_NEWNS) == 0 ? 0 : 1);
	return waitpid(pid, &status, 0) == pid && status == 0;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	int status = 0;
	pid_t pid = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--rounds"))
			rounds = (uint32_t)strtoul(argv[i + 1], NULL, 0);
		else if (!strcmp(argv[i], "--apart"))
			apart = true;
		else
			MUST(!strcmp(argv[i], "--link") && column_find(argv[i + 1], &column));
	}
	if (apart && !can_be_apart()) {
		printf("no namespaces can be made here\n");
		return 77;
	}
	if (column == COLUMN_DENIED)
		column_deny_process_vm();
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED);
	if (column == COLUMN_SELF) {
		MUST(pthread_create(&thread, NULL, target, NULL) == 0);
	} else {
		pid = start_target();
		MUST(pid > 0);
	}
	run_writer();
	if (pid)
		MUST(waitpid(pid, &status, 0) == pid && status == 0);
	else
		pthread_join(thread, NULL);
	printf("# %u Writes, each seen as a whole\n", rounds);
	return 0;
}
