/* SPDX-License-Identifier: MIT */
/*
 * Peers that are killed in the midst of it: requests run both ways when SIGKILL comes. The survivor hears of each end, gets every
 * request back, and in the end nothing is left: no process, no descriptor, no memory, no file.
 *
 *   kills [--link NAME] [--count N]
 *
 * A zygote, which has nothing of the library, makes the peers, so that each begins as a process of its own.
 */
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "local/end.h"

#define SIZE   (512 * 1024)
#define MOST   (200 * 1024)
#define MS_MAX 8

static struct shared {
	_Atomic uint32_t ready;
	uint32_t rkey, survivor_rkey;
	uint64_t addr, survivor_addr;
	uint16_t port;
} * shared;

static enum column column;
static uint64_t dice_state = 88172645463325252ull;

static uint32_t dice(uint32_t n)
{
	dice_state ^= dice_state << 13;
	dice_state ^= dice_state >> 7;
	dice_state ^= dice_state << 17;
	return (uint32_t)(dice_state >> 20) % n;
}

/* ---- one that will be killed ---- */

static bool post_one(struct end *n, uint32_t rkey, uint64_t addr)
{
	static const uint32_t ops[] = { FLUE_WR_WRITE, FLUE_WR_READ, FLUE_WR_WRITE };
	uint32_t length = dice(4) ? dice(3000) : dice(MOST);

	return end_post(n, ops[dice(3)], dice(SIZE / 2), length, rkey, addr + dice(SIZE / 2));
}

static void victim(uint64_t seed)
{
	struct end n = { 0 };
	struct flue_wc wc[END_DEPTH];
	uint32_t got, out = 0;

	dice_state ^= seed * 0x9e3779b97f4a7c15ull;
	end_open(&n, column, SIZE);
	end_connect(&n, shared->port);
	shared->rkey = n.mr->rkey;
	shared->addr = n.mr->remote_start;
	atomic_store(&shared->ready, 1);
	for (;;) {
		while (out < END_DEPTH &&
		       post_one(&n, shared->survivor_rkey, shared->survivor_addr))
			out++;
		MUST(flue_poll(n.cq, wc, END_DEPTH, &got));
		out -= got;
	}
}

/* ---- who makes them ---- */

/* One octet in: another one, whose pid goes out. It dies with who asked. */
static void zygote(int in, int out)
{
	uint64_t seed;
	pid_t pid;

	while (read(in, &seed, sizeof(seed)) == (ssize_t)sizeof(seed)) {
		pid = fork();
		if (pid == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			close(in);
			close(out);
			victim(seed);
		}
		MUST(write(out, &pid, sizeof(pid)) == (ssize_t)sizeof(pid));
		/* Killed by the survivor; anything else is a failure. */
		MUST(waitpid(pid, &(int) { 0 }, 0) == pid);
		MUST(write(out, &pid, sizeof(pid)) == (ssize_t)sizeof(pid));
	}
	_exit(0);
}

/* ---- the survivor ---- */

static unsigned count_entries(const char *path)
{
	DIR *dir = opendir(path);
	unsigned n = 0;

	while (dir && readdir(dir))
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static unsigned count_mapped(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned n = 0;

	MUST(f);
	while (fgets(line, sizeof(line), f))
		n += strstr(line, "memfd:") != NULL;
	fclose(f);
	return n;
}

static uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void accept_one(struct end *n)
{
	struct flue_conn_request *req = n->listener->ops->get_request(n->listener, 20000);

	MUST(req);
	MUST(req->ops->accept(req, n->qp, NULL));
	while (!atomic_load(&shared->ready))
		usleep(100);
}

/* Until it is killed, and a while longer: all that was posted comes back. */
static void use(struct end *n, pid_t pid)
{
	uint64_t until = now_ms() + 1 + dice(MS_MAX), patience = 0;
	struct flue_wc wc[END_DEPTH];
	uint32_t got, out = 0;
	bool killed = false;

	while (!killed || out) {
		if (!killed && now_ms() >= until) {
			MUST(kill(pid, SIGKILL) == 0);
			killed = true;
			patience = now_ms() + 20000;
		}
		while (!killed && out < END_DEPTH && post_one(n, shared->rkey, shared->addr))
			out++;
		MUST(flue_poll(n->cq, wc, END_DEPTH, &got));
		out -= got;
		MUST(!killed || now_ms() < patience);
	}
}

static void await_end(struct end *n)
{
	struct flue_event ev = { 0 };

	do {
		MUST(flue_get_event(n->adapter, &ev, 20000));
	} while (ev.type != FLUE_EVENT_DISCONNECTED || ev.u.qp != n->qp);
	/* The kernel ends the stream of a dead process in order, if nothing was under way. */
	MUST(flue_qp_state(n->qp) == FLUE_QP_ERROR ||
	     (!column_is_local(column) && flue_qp_state(n->qp) == FLUE_QP_IDLE));
}

static void one_life(struct end *n, int to, int from, uint64_t seed)
{
	pid_t pid, gone;

	atomic_store(&shared->ready, 0);
	MUST(write(to, &seed, sizeof(seed)) == (ssize_t)sizeof(seed));
	MUST(read(from, &pid, sizeof(pid)) == (ssize_t)sizeof(pid));
	accept_one(n);
	use(n, pid);
	await_end(n);
	MUST(read(from, &gone, sizeof(gone)) == (ssize_t)sizeof(gone) && gone == pid);
	if (seed % 2) {
		MUST(n->qp->ops->reset(n->qp));
	} else {
		MUST(flue_destroy_qp(n->qp));
		end_make_qp(n);
	}
}

static void expect_nothing_left(unsigned files, unsigned mapped)
{
	uint64_t end = now_ms() + 5000;

	while ((count_entries("/proc/self/fd") != files || count_mapped() != mapped) &&
	       now_ms() < end)
		usleep(1000);
	MUST(count_entries("/proc/self/fd") == files);
	MUST(count_mapped() == mapped);
}

static void survive(int to, int from, uint64_t count)
{
	unsigned shm = count_entries("/dev/shm"), files, mapped;
	struct end n = { 0 };

	end_open(&n, column, SIZE);
	shared->port = end_listen(&n);
	shared->survivor_rkey = n.mr->rkey;
	shared->survivor_addr = n.mr->remote_start;
	one_life(&n, to, from, 1); /* what is made once is there then */
	usleep(20000);
	files = count_entries("/proc/self/fd");
	mapped = count_mapped();
	for (uint64_t i = 2; i <= count; i++)
		one_life(&n, to, from, i);
	expect_nothing_left(files, mapped);
	MUST(count_entries("/dev/shm") <= shm);
	end_close(&n);
}

int main(int argc, char **argv)
{
	int to[2], from[2], status;
	uint64_t count = 100;
	pid_t maker;

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--count"))
			count = strtoull(argv[i + 1], NULL, 0);
		else
			MUST(!strcmp(argv[i], "--link") && column_find(argv[i + 1], &column));
	}
	if (column == COLUMN_DENIED)
		column_deny_process_vm();
	shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	MUST(shared != MAP_FAILED && pipe(to) == 0 && pipe(from) == 0);
	MUST((maker = fork()) >= 0);
	if (maker == 0) {
		close(to[1]);
		close(from[0]);
		zygote(to[0], from[1]);
	}
	close(to[0]);
	close(from[1]);
	survive(to[1], from[0], count);
	close(to[1]);
	/* No child of its own is left, or it would wait for that. */
	MUST(waitpid(maker, &status, 0) == maker && status == 0);
	printf("# %llu kills, nothing left behind\n", (unsigned long long)count);
	return 0;
}
