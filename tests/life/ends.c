/* SPDX-License-Identifier: MIT */
/*
 * Processes that end in the middle of one-sided work through memory: the target becomes another program, either side is killed at
 * any moment. The other one never hangs, hears of it, and has nothing left of it: no descriptor, no memory, no file.
 *
 *	life_ends [--kills N]
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "life/two.h"

#define AREA (192u << 10)

static uint32_t kills = 50;

/* ---- a target that becomes another program ---- */

static void target_that_execs(struct two *t)
{
	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	two_hear(t, 'x');
	usleep(2000);
	execl("/bin/sleep", "sleep", "60", (char *)NULL);
	MUST(!"sleep");
}

static void asker_of_one_that_execs(struct two *t)
{
	uint32_t status = FLUE_WC_SUCCESS;

	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	two_is_direct(t, true);
	two_say(t, 'x');
	while (status == FLUE_WC_SUCCESS &&
	       two_post(t, t->s->qp, FLUE_WR_WRITE, 0, AREA, 3, t->peer->addr, t->peer->rkey, 0))
		status = two_status(t, 20000);
	MUST(status != UINT32_MAX);
	MUST(pair_wait_state(t->s->qp, FLUE_QP_ERROR, 5000));
	MUST(kill(t->peer->pid, 0) == 0); /* it lives, as somebody else */
	two_close(t);
}

static void target_that_becomes_another_program_is_an_end(void **state)
{
	struct lives l;

	two_start(&l, target_that_execs, asker_of_one_that_execs);
	assert_int_equal(two_await_one(l.asker, 60000), 0);
	kill(l.target, SIGKILL);
	assert_int_equal(two_await_one(l.target, 5000), 128 + SIGKILL);
}

/* ---- one lives, the others are killed ---- */

/* Words of the common page. */
enum { READY, BEGUN, DONE, STOP };

static unsigned count_shm(void)
{
	DIR *dir = opendir("/dev/shm");
	struct dirent *e;
	unsigned n = 0;

	while (dir && (e = readdir(dir)))
		n += strstr(e->d_name, "flue") != NULL;
	if (dir)
		closedir(dir);
	return n;
}

/* Descriptors after some rounds, and after all of them. */
static void count_after(struct two *t, uint32_t round, unsigned *fds)
{
	struct flue_event ev;

	while (flue_get_event(t->s->adapter, &ev, 0))
		;
	if (round < 5)
		*fds = two_count_fds();
	/* What is under way may still have one of its own. */
	for (int i = 0; i < 100 && two_count_fds() > *fds + 2; i++)
		usleep(10000);
	if (two_count_fds() > *fds + 2)
		fprintf(stderr, "# round %u: %u descriptors, %u at first\n", round, two_count_fds(),
			*fds);
	MUST(two_count_fds() <= *fds + 2);
}

static void target_that_lives(struct two *t)
{
	unsigned fds = 0;

	two_open(t);
	t->common->step[READY] = 1;
	for (uint32_t i = 0; i < kills; i++) {
		struct flue_mr *mr = flue_register(t->s->pd, t->s->mem, AREA, PAIR_ALL_ACCESS);
		struct flue_conn_request *req = NULL;
		bool connected = false;

		MUST(mr);
		t->common->key = mr->rkey;
		t->s->qp = pair_new_qp(&t->p, t->s);
		MUST(t->s->qp);
		t->common->step[READY] = i + 2;
		while (!req && t->common->step[STOP] <= i)
			req = t->p.listener->ops->get_request(t->p.listener, 20);
		if (req)
			connected = req->ops->accept(req, t->s->qp, NULL);
		if (connected && i % 2)
			MUST(flue_deregister(mr)); /* in the middle of it, or when it is dead */
		if (connected)
			MUST(pair_wait_state(t->s->qp, FLUE_QP_ERROR, 20000) ||
			     flue_qp_state(t->s->qp) == FLUE_QP_IDLE);
		MUST(flue_destroy_qp(t->s->qp));
		t->s->qp = NULL;
		if (!(connected && i % 2))
			MUST(flue_deregister(mr));
		count_after(t, i, &fds);
		t->common->step[DONE] = i + 1;
	}
	two_close(t);
}

static void asker_to_be_killed(struct two *t)
{
	two_open(t);
	two_connect(t);
	for (;;) {
		t->common->step[BEGUN]++;
		if (!two_post(t, t->s->qp, FLUE_WR_WRITE, 0, AREA, 1, t->peer->addr, t->common->key,
			      0) ||
		    two_status(t, 20000) != FLUE_WC_SUCCESS)
			break;
	}
	pause();
}

static void asker_that_lives(struct two *t)
{
	unsigned fds = 0;

	two_open(t);
	for (uint32_t i = 0; i < kills; i++) {
		uint32_t begun, status = FLUE_WC_SUCCESS;
		bool up = false;

		t->s->qp = pair_new_qp(&t->p, t->s);
		MUST(t->s->qp);
		begun = t->common->step[BEGUN];
		t->common->step[READY] = i + 1;
		while (t->common->step[BEGUN] == begun && t->common->step[STOP] <= i)
			usleep(100);
		if (t->common->step[BEGUN] != begun)
			up = two_connect_qp(t, t->s->qp);
		while (up && status == FLUE_WC_SUCCESS &&
		       two_post(t, t->s->qp, i % 2 ? FLUE_WR_WRITE : FLUE_WR_READ, 0, AREA, 1,
				t->peer->addr, t->peer->rkey, 0))
			status = two_status(t, 20000);
		MUST(status != UINT32_MAX);
		MUST(flue_destroy_qp(t->s->qp));
		t->s->qp = NULL;
		count_after(t, i, &fds);
		t->common->step[DONE] = i + 1;
	}
	two_close(t);
}

static void target_to_be_killed(struct two *t)
{
	two_open(t);
	t->s->qp = pair_new_qp(&t->p, t->s);
	MUST(t->s->qp);
	t->common->step[BEGUN]++;
	two_connect_qp(t, t->s->qp);
	pause();
}

static pid_t start_victim(struct lives *l, two_fn run, bool is_target)
{
	struct two t = { .common = l->common, .sock = -1, .is_target = is_target };
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	t.own = is_target ? &l->common->target : &l->common->asker;
	t.peer = is_target ? &l->common->asker : &l->common->target;
	run(&t);
	_exit(0);
}

static bool await_step(struct lives *l, pid_t survivor, unsigned which, uint32_t n)
{
	uint64_t end = pair_now_ms() + 30000;
	siginfo_t info = { 0 };

	while (l->common->step[which] < n) {
		if (pair_now_ms() > end ||
		    (waitid(P_PID, (id_t)survivor, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
		     info.si_pid)) {
			fprintf(stderr, "# survivor is stuck or dead before step %u of %u\n", n,
				which);
			return false;
		}
		usleep(200);
	}
	return true;
}

static void await_begun(struct lives *l, uint32_t before)
{
	uint64_t end = pair_now_ms() + 5000;

	while (l->common->step[BEGUN] == before && pair_now_ms() < end)
		usleep(100);
}

static void kill_many(two_fn survivor, two_fn victim, bool victim_is_target)
{
	unsigned shm = count_shm();
	bool good = true;
	struct lives l;
	pid_t lives;

	two_start(&l, victim_is_target ? NULL : survivor, victim_is_target ? survivor : NULL);
	lives = victim_is_target ? l.asker : l.target;
	for (uint32_t i = 0; good && i < kills; i++) {
		uint32_t begun = l.common->step[BEGUN];
		pid_t pid;

		good = await_step(&l, lives, READY, victim_is_target ? i + 1 : i + 2);
		if (!good)
			break;
		pid = start_victim(&l, victim, victim_is_target);
		/* While it opens, while it connects, and mostly while it is at work. */
		if (i % 4)
			await_begun(&l, begun);
		usleep(i * 7919 % (i % 4 == 1 ? 20000 : 5000));
		kill(pid, SIGKILL);
		two_await_one(pid, 5000);
		l.common->step[STOP] = i + 1;
		good = await_step(&l, lives, DONE, i + 1);
	}
	if (!good)
		kill(lives, SIGKILL);
	assert_true(two_await(&l));
	assert_true(good);
	assert_true(count_shm() <= shm);
}

static void killed_askers_leave_nothing(void **state)
{
	kill_many(target_that_lives, asker_to_be_killed, false);
}

static void killed_targets_leave_nothing(void **state)
{
	kill_many(asker_that_lives, target_to_be_killed, true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(target_that_becomes_another_program_is_an_end),
		cmocka_unit_test(killed_askers_leave_nothing),
		cmocka_unit_test(killed_targets_leave_nothing),
	};

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--kills"))
			kills = (uint32_t)atoi(argv[i + 1]);
	}
	two_patience_s += (int)(kills / 5);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
