/* SPDX-License-Identifier: MIT */
/*
 * One-sided work through memory that is done by who asks (docs/design/memory.md): it completes while the target is stopped, so
 * nobody there ran. And long messages, which the receiver takes out of the sender's memory. All of it also where the kernel does not
 * copy between processes, and beside forks and other threads.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "life/two.h"

#define HALF (TWO_MEMORY / 2)

/* ---- a target that is stopped ---- */

struct part {
	uint32_t op, n, pieces, flags;
	size_t at; /* in the target */
};

static const struct part parts[] = {
	{ FLUE_WR_WRITE, 1, 1, 0, 0 },
	{ FLUE_WR_WRITE, 8, 1, 0, 1003 },
	{ FLUE_WR_WRITE, 100, 1, 0, 2001 },
	{ FLUE_WR_WRITE, 300 * 1024, 1, 0, 4095 },
	{ FLUE_WR_WRITE, 100003, TWO_SGE, 0, 1 << 20 },
	{ FLUE_WR_WRITE, 600001, TWO_SGE, 0, 2 << 20 },
	{ FLUE_WR_WRITE, TWO_INLINE, 1, FLUE_INLINE, 3 << 20 },
	{ FLUE_WR_WRITE, 37, 3, FLUE_INLINE, (3 << 20) + 777 },
};
#define N_PARTS (sizeof(parts) / sizeof(parts[0]))

static void target_is_written(struct two *t)
{
	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	/* Whatever happens now, happens without us: we only look when we are told to. */
	two_hear(t, 'w');
	for (size_t i = 0; i < N_PARTS; i++)
		MUST(pair_check(t->s->mem + parts[i].at, parts[i].n, (uint32_t)i + 1) ==
		     parts[i].n);
	two_say(t, 'y');
	two_hear(t, 'e');
	two_close(t);
}

/* A Read whose own key ends with it. */
static void read_and_invalidate(struct two *t)
{
	struct flue_mr *mr = flue_register(t->s->pd, t->s->mem + HALF, 4096,
					   FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE);
	struct flue_sge sg;
	struct flue_send_wr wr = { .id = 7,
				   .op = FLUE_WR_READ_INV,
				   .flags = FLUE_SIGNALED,
				   .sg = &sg,
				   .n_sg = 1,
				   .rkey = t->peer->rkey,
				   .remote_addr = t->peer->addr + parts[2].at };

	MUST(mr);
	sg = flue_mr_sge(mr, 0, parts[2].n);
	MUST(flue_post_send(t->s->qp, &wr));
	MUST(two_status(t, 5000) == FLUE_WC_SUCCESS);
	MUST(pair_check(t->s->mem + HALF, parts[2].n, 3) == parts[2].n);
	wr.op = FLUE_WR_WRITE;
	two_go_on(t->peer->pid); /* it is not our own doing any more */
	MUST(flue_post_send(t->s->qp, &wr));
	MUST(two_status(t, 5000) == FLUE_WC_LOCAL_PROTECTION);
	MUST(flue_deregister(mr));
}

static void asker_of_a_stopped_target(struct two *t)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	MUST(two_is_direct(t, true));
	two_stop(t->peer->pid);
	for (size_t i = 0; i < N_PARTS; i++) {
		const struct part *w = &parts[i];

		pair_fill(t->s->mem, w->n, (uint32_t)i + 1);
		MUST(two_post(t, t->s->qp, w->op, 0, w->n, w->pieces, t->peer->addr + w->at,
			      t->peer->rkey, w->flags));
		MUST(two_status(t, 5000) == FLUE_WC_SUCCESS);
		memset(t->s->mem + HALF, 0, w->n);
		two_move(t, FLUE_WR_READ, HALF, w->n, w->pieces, w->at);
		MUST(pair_check(t->s->mem + HALF, w->n, (uint32_t)i + 1) == w->n);
	}
	two_go_on(t->peer->pid);
	two_say(t, 'w');
	two_hear(t, 'y');
	two_stop(t->peer->pid);
	read_and_invalidate(t); /* it goes on there */
	two_say(t, 'e');
	two_close(t);
}

static void stopped_target_is_written_and_read(void **state)
{
	assert_true(two_run(target_is_written, asker_of_a_stopped_target));
}

/* ---- regions that come and go ---- */

static void target_registers_later(struct two *t)
{
	struct flue_mr *mr;

	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	two_hear(t, 'm');
	mr = flue_register(t->s->pd, t->s->mem + 1000, 1000, PAIR_ALL_ACCESS | FLUE_ZERO_BASED);
	MUST(mr);
	t->common->key = mr->rkey;
	two_say(t, 'k');
	two_hear(t, 'w');
	MUST(pair_check(t->s->mem + 1500, 500, 5) == 500);
	MUST(flue_deregister(mr));
	two_close(t);
}

static void asker_of_a_later_region(struct two *t)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	MUST(two_is_direct(t, true));
	two_say(t, 'm');
	two_hear(t, 'k');
	two_stop(t->peer->pid);
	pair_fill(t->s->mem, 500, 5);
	MUST(two_post(t, t->s->qp, FLUE_WR_WRITE, 0, 500, 2, 500, t->common->key, 0));
	MUST(two_status(t, 5000) == FLUE_WC_SUCCESS);
	two_go_on(t->peer->pid);
	two_say(t, 'w');
	two_close(t);
}

static void region_that_is_registered_later_is_reached_as_well(void **state)
{
	assert_true(two_run(target_registers_later, asker_of_a_later_region));
}

/* What cannot be done across is judged by the target, as ever. */
static void asker_of_too_much(struct two *t)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	two_is_direct(t, true);
	two_say(t, 'm');
	two_hear(t, 'k');
	MUST(two_post(t, t->s->qp, FLUE_WR_WRITE, 0, 501, 1, 500, t->common->key, 0));
	MUST(two_status(t, 20000) == FLUE_WC_REMOTE_ACCESS);
	two_say(t, 'w');
	two_close(t);
}

static void target_of_too_much(struct two *t)
{
	struct flue_mr *mr;

	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	two_hear(t, 'm');
	mr = flue_register(t->s->pd, t->s->mem + 1000, 1000, PAIR_ALL_ACCESS | FLUE_ZERO_BASED);
	MUST(mr);
	t->common->key = mr->rkey;
	two_say(t, 'k');
	two_hear(t, 'w');
	for (size_t i = 0; i < 3000; i++)
		MUST(t->s->mem[i] == 0);
	MUST(flue_deregister(mr));
	two_close(t);
}

static void octet_behind_the_region_is_refused_by_the_target(void **state)
{
	assert_true(two_run(target_of_too_much, asker_of_too_much));
}

/* ---- messages ---- */

static const uint32_t sizes[] = { 1,      2,      100,    4095,   16383,  16384,   16385,  65537,
				  131071, 262143, 262144, 262145, 524289, 1000003, 3 << 20 };
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

/* Both at once. Octets of both are those of a seed that the other knows. */
static void talk(struct two *t)
{
	for (uint32_t i = 0; i < 3 * N_SIZES; i++) {
		uint32_t n = sizes[i % N_SIZES], pieces = n < TWO_SGE ? 1 : 1 + 7 * i % TWO_SGE;
		uint32_t seed = 2 * i + t->is_target;
		struct flue_wc wc;

		pair_fill(t->s->mem, n, seed);
		memset(t->s->mem + HALF, 0, n + 1);
		MUST(two_post(t, t->s->qp, UINT32_MAX, HALF, n, n < TWO_SGE ? 1 : 1 + i % TWO_SGE,
			      0, 0, 0));
		MUST(two_post(t, t->s->qp, FLUE_WR_SEND, 0, n, pieces, 0, 0, 0));
		MUST(two_status(t, 20000) == FLUE_WC_SUCCESS);
		MUST(pair_take(t->s->recv_cq, &wc, 1, 20000) == 1);
		MUST(wc.status == FLUE_WC_SUCCESS && wc.byte_len == n);
		MUST(pair_check(t->s->mem + HALF, n, seed ^ 1) == n);
		MUST(t->s->mem[HALF + n] == 0);
	}
}

static void talker(struct two *t)
{
	if (t->is_target) {
		two_open(t);
		two_say(t, 'o');
	} else {
		two_hear(t, 'o');
		two_open(t);
	}
	two_connect(t);
	talk(t);
	two_say(t, 'e');
	two_hear(t, 'e');
	two_close(t);
}

static void messages_of_any_size_arrive_in_both_directions_at_once(void **state)
{
	assert_true(two_run(talker, talker));
}

/* ---- where the kernel does not copy ---- */

static void forbid_copies(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog prog = { sizeof(code) / sizeof(code[0]), code };

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
}

/* Writes and Reads with a target that runs, then messages; and the same by the other one. */
static void ask_all(struct two *t)
{
	for (size_t i = 0; i < N_PARTS; i++) {
		const struct part *w = &parts[i];

		pair_fill(t->s->mem, w->n, (uint32_t)i + 1);
		MUST(two_post(t, t->s->qp, w->op, 0, w->n, w->pieces, t->peer->addr + w->at,
			      t->peer->rkey, w->flags));
		MUST(two_status(t, 5000) == FLUE_WC_SUCCESS);
		two_move(t, FLUE_WR_READ, HALF, w->n, w->pieces, w->at);
		MUST(pair_check(t->s->mem + HALF, w->n, (uint32_t)i + 1) == w->n);
	}
}

static void target_with_the_other(struct two *t)
{
	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	two_hear(t, 'w');
	ask_all(t);
	two_say(t, 'y');
	talk(t);
	two_say(t, 'e');
	two_hear(t, 'e');
	two_close(t);
}

static void ask_the_other(struct two *t, bool direct)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	MUST(two_is_direct(t, direct) == direct);
	ask_all(t);
	two_say(t, 'w');
	two_hear(t, 'y');
	talk(t);
	two_say(t, 'e');
	two_hear(t, 'e');
	two_close(t);
}

static void asker_without_copies(struct two *t)
{
	forbid_copies();
	ask_the_other(t, false);
}

static void asker_with_copies(struct two *t)
{
	ask_the_other(t, true);
}

static void target_without_copies(struct two *t)
{
	forbid_copies();
	target_with_the_other(t);
}

static void asker_that_may_not_copy_uses_the_channel(void **state)
{
	assert_true(two_run(target_with_the_other, asker_without_copies));
}

static void target_that_may_not_copy_uses_the_channel(void **state)
{
	assert_true(two_run(target_without_copies, asker_with_copies));
}

static void neither_may_copy(void **state)
{
	assert_true(two_run(target_without_copies, asker_without_copies));
}

/* From one moment to the next, as when a program takes up a new user, or is not to be looked into any more. */
static void asker_that_loses_copies(struct two *t)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	two_is_direct(t, true);
	forbid_copies();
	ask_all(t);
	MUST(!two_is_direct(t, false));
	two_say(t, 'w');
	two_hear(t, 'y');
	two_close(t);
}

static void target_of_one_that_loses_them(struct two *t)
{
	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	two_hear(t, 'w');
	two_say(t, 'y');
	two_close(t);
}

static void asker_goes_on_when_the_kernel_begins_to_refuse(void **state)
{
	assert_true(two_run(target_of_one_that_loses_them, asker_that_loses_copies));
}

/* ---- forks ---- */

#define FORKS 30

static void fork_once(void)
{
	pid_t pid = fork();
	int status;

	MUST(pid >= 0);
	if (pid == 0)
		_exit(0);
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void target_forks(struct two *t)
{
	two_open(t);
	two_say(t, 'o');
	two_connect(t);
	for (int i = 0; i < FORKS; i++) {
		fork_once();
		usleep(500);
	}
	two_say(t, 'f');
	two_hear(t, 'e');
	two_close(t);
}

static void asker_forks(struct two *t)
{
	two_hear(t, 'o');
	two_open(t);
	two_connect(t);
	for (int i = 0; i < FORKS; i++) {
		ask_all(t);
		if (i % 3 == 0)
			fork_once();
	}
	two_hear(t, 'f');
	ask_all(t);
	two_say(t, 'e');
	two_close(t);
}

static void forks_of_both_disturb_nothing(void **state)
{
	assert_true(two_run(target_forks, asker_forks));
}

/* ---- threads ---- */

#define THREADS 4
#define TURNS   300
#define STRIPE  (128u << 10)

struct worker {
	struct two *t;
	struct flue_qp *qp;
	struct flue_cq *cq;
	uint32_t n;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	struct two *t = w->t;
	size_t off = 2 * w->n * STRIPE;
	struct flue_wc wc;

	for (uint32_t i = 0; i < TURNS; i++) {
		uint32_t n = 1 + i * 431 % STRIPE;

		pair_fill(t->s->mem + off, n, i + w->n);
		MUST(two_post(t, w->qp, FLUE_WR_WRITE, off, n, 1 + i % 3, t->peer->addr + off,
			      t->peer->rkey, 0));
		MUST(two_post(t, w->qp, FLUE_WR_READ, off + STRIPE, n, 1, t->peer->addr + off,
			      t->peer->rkey, 0));
		for (int k = 0; k < 2; k++) {
			MUST(pair_take(w->cq, &wc, 1, 20000) == 1);
			MUST(wc.status == FLUE_WC_SUCCESS && wc.qp == w->qp);
		}
		MUST(pair_check(t->s->mem + off + STRIPE, n, i + w->n) == n);
	}
	return NULL;
}

/* Keys come and go, in both processes. */
static void *churn(void *arg)
{
	struct two *t = arg;

	while (!t->common->step[0]) {
		struct flue_mr *mr = flue_register(t->s->pd, t->s->mem, 4096, PAIR_ALL_ACCESS);

		MUST(mr && flue_deregister(mr));
	}
	return NULL;
}

static void open_workers(struct two *t, struct worker *w)
{
	struct flue_cq *cq = t->s->send_cq;

	for (uint32_t i = 0; i < THREADS; i++) {
		struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);

		attr.depth = 64;
		w[i] = (struct worker) { .t = t, .n = i };
		w[i].cq = t->s->adapter->ops->create_cq(t->s->adapter, &attr);
		MUST(w[i].cq);
		t->s->send_cq = w[i].cq;
		w[i].qp = pair_new_qp(&t->p, t->s);
		MUST(w[i].qp && two_connect_qp(t, w[i].qp));
	}
	t->s->send_cq = cq;
}

static void close_workers(struct two *t, struct worker *w)
{
	for (uint32_t i = 0; i < THREADS; i++) {
		MUST(flue_destroy_qp(w[i].qp));
		MUST(flue_destroy_cq(w[i].cq));
	}
	two_close(t);
}

static void target_of_threads(struct two *t)
{
	struct worker w[THREADS];
	pthread_t thread;

	two_open(t);
	two_say(t, 'o');
	open_workers(t, w);
	MUST(pthread_create(&thread, NULL, churn, t) == 0);
	two_hear(t, 'e');
	t->common->step[0] = 1;
	pthread_join(thread, NULL);
	two_say(t, 'e');
	close_workers(t, w);
}

static void asker_with_threads(struct two *t)
{
	struct worker w[THREADS];
	pthread_t thread[THREADS + 1];

	two_hear(t, 'o');
	two_open(t);
	open_workers(t, w);
	for (int i = 0; i < THREADS; i++)
		MUST(pthread_create(&thread[i], NULL, work, &w[i]) == 0);
	MUST(pthread_create(&thread[THREADS], NULL, churn, t) == 0);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	two_say(t, 'e');
	pthread_join(thread[THREADS], NULL);
	two_hear(t, 'e');
	close_workers(t, w);
}

static void threads_share_the_duct_while_keys_come_and_go(void **state)
{
	assert_true(two_run(target_of_threads, asker_with_threads));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stopped_target_is_written_and_read),
		cmocka_unit_test(region_that_is_registered_later_is_reached_as_well),
		cmocka_unit_test(octet_behind_the_region_is_refused_by_the_target),
		cmocka_unit_test(messages_of_any_size_arrive_in_both_directions_at_once),
		cmocka_unit_test(asker_that_may_not_copy_uses_the_channel),
		cmocka_unit_test(target_that_may_not_copy_uses_the_channel),
		cmocka_unit_test(neither_may_copy),
		cmocka_unit_test(asker_goes_on_when_the_kernel_begins_to_refuse),
		cmocka_unit_test(forks_of_both_disturb_nothing),
		cmocka_unit_test(threads_share_the_duct_while_keys_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
