/* SPDX-License-Identifier: MIT */
/*
 * Revoking is exact across processes (docs/design/memory.md): when the call has returned, no octet changes and none is read any
 * more, while an asker writes and reads by itself all the time. An asker that is held in the middle of a copy is waited for; one
 * that is dead is not.
 *
 *	life_revoke [--rounds N] [--hold-ms N]
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "life/two.h"

#define AREA   (192u << 10)
#define OLD    0x11 /* what the asker writes, and what stands there */
#define SECRET 0x77 /* what stands there from the moment on that the call has returned */

static uint32_t rounds = 1200;
static int hold_ms = 1500;

enum way {
	BY_DEREGISTER,
	BY_MODIFY,
	BY_LOCAL_INVALIDATE,
	BY_PEERS_INVALIDATE,
	BY_DESTROY_QP,
	BY_RIGHTS,
	N_WAYS
};

/* Words of the common page. */
enum { ROUND, REVOKE_NOW, REVOKED };

/* ---- target ---- */

static void revoke_by(struct two *t, struct flue_qp *control, struct flue_mr *mr, enum way way)
{
	struct flue_send_wr inv = { .op = FLUE_WR_LOCAL_INV, .flags = FLUE_SIGNALED };
	struct flue_qp_values v = { .size = sizeof(v), .access = 0 };
	struct flue_mr_attr attr = FLUE_ATTR(struct flue_mr_attr);
	struct flue_recv_wr recv = { .id = 8 };
	struct flue_wc wc;

	switch (way) {
	case BY_DEREGISTER: MUST(flue_deregister(mr)); break;
	case BY_MODIFY:
		attr.access = FLUE_LOCAL_WRITE;
		MUST(mr->ops->modify(mr, FLUE_MR_ACCESS, &attr, NULL));
		break;
	case BY_LOCAL_INVALIDATE:
		inv.rkey = mr->rkey;
		MUST(flue_post_send(control, &inv));
		MUST(two_status(t, 20000) == FLUE_WC_SUCCESS);
		break;
	case BY_PEERS_INVALIDATE:
		MUST(flue_post_recv(control, &recv));
		t->common->step[REVOKE_NOW] = t->common->step[ROUND];
		MUST(pair_take(t->s->recv_cq, &wc, 1, 20000) == 1);
		MUST(wc.status == FLUE_WC_SUCCESS && wc.flags & FLUE_WC_INVALIDATED);
		break;
	case BY_DESTROY_QP:
		MUST(flue_destroy_qp(t->s->qp));
		t->s->qp = NULL;
		break;
	default: MUST(t->s->qp->ops->modify(t->s->qp, &v, FLUE_QPV_ACCESS)); break;
	}
}

static void target_round(struct two *t, struct flue_qp *control, uint32_t round)
{
	enum way way = round % N_WAYS;
	struct flue_mr *mr = flue_register(t->s->pd, t->s->mem, AREA, PAIR_ALL_ACCESS);

	MUST(mr);
	memset(t->s->mem, OLD, AREA);
	t->common->key = mr->rkey;
	t->common->addr = mr->remote_start;
	two_say(t, 'r');
	t->s->qp = pair_new_qp(&t->p, t->s);
	MUST(t->s->qp && two_connect_qp(t, t->s->qp));
	two_hear(t, 'b'); /* it has begun */
	usleep(round * 37 % 400);
	revoke_by(t, control, mr, way);
	t->common->step[REVOKED] = round + 1;
	memset(t->s->mem, SECRET, AREA);
	two_hear(t, 'f'); /* and now it could not any more */
	for (size_t i = 0; i < AREA; i++) {
		if (t->s->mem[i] != SECRET)
			fprintf(stderr, "# way %d, round %u: octet %zu is %#x\n", way, round, i,
				t->s->mem[i]);
		MUST(t->s->mem[i] == SECRET);
	}
	if (t->s->qp)
		MUST(flue_destroy_qp(t->s->qp));
	t->s->qp = NULL;
	if (way != BY_DEREGISTER)
		MUST(flue_deregister(mr));
}

static void revoking_target(struct two *t)
{
	struct flue_event ev;
	struct flue_qp *control;

	two_open(t);
	two_say(t, 'o');
	control = pair_new_qp(&t->p, t->s);
	MUST(control && two_connect_qp(t, control));
	for (uint32_t i = 0; i < rounds; i++) {
		t->common->step[ROUND] = i + 1;
		target_round(t, control, i);
		while (flue_get_event(t->s->adapter, &ev, 0))
			;
	}
	two_hear(t, 'e');
	MUST(flue_destroy_qp(control));
	two_close(t);
}

/* ---- asker ---- */

/* The peer's way to revoke: a Send with invalidate over the connection that stays. */
static void *invalidate(void *arg)
{
	struct two *t = arg;
	struct flue_qp *control = t->p.b.qp;
	struct flue_wc wc;

	for (uint32_t i = BY_PEERS_INVALIDATE; i < rounds; i += N_WAYS) {
		struct flue_send_wr wr = { .op = FLUE_WR_SEND_INV, .flags = FLUE_SIGNALED };

		while (t->common->step[REVOKE_NOW] < i + 1)
			usleep(50);
		wr.rkey = t->common->key;
		MUST(flue_post_send(control, &wr));
		MUST(pair_take(t->p.b.send_cq, &wc, 1, 20000) == 1);
		MUST(wc.status == FLUE_WC_SUCCESS);
	}
	return NULL;
}

static bool has_secret(const uint8_t *at, size_t n)
{
	return memchr(at, SECRET, n) != NULL;
}

static void asker_round(struct two *t, unsigned long *did)
{
	struct flue_event ev;
	uint32_t status;

	two_hear(t, 'r');
	t->s->qp = pair_new_qp(&t->p, t->s);
	MUST(t->s->qp && two_connect_qp(t, t->s->qp));
	for (uint32_t i = 0;; i++) {
		bool write = i % 2 == 0;
		uint32_t n = i % 16 < 2 ? 100 : AREA;
		bool revoked = t->common->step[REVOKED] == t->common->step[ROUND];

		memset(t->s->mem + AREA, 0, n);
		if (!two_post(t, t->s->qp, write ? FLUE_WR_WRITE : FLUE_WR_READ, write ? 0 : AREA,
			      n, 1, t->common->addr, t->common->key, 0))
			break; /* it has ended meanwhile */
		status = two_status(t, 20000);
		MUST(status != UINT32_MAX);
		if (i == 0)
			two_say(t, 'b');
		if (status != FLUE_WC_SUCCESS)
			break;
		MUST(!revoked);
		if (!write)
			MUST(!has_secret(t->s->mem + AREA, n));
		++*did;
	}
	MUST(flue_destroy_qp(t->s->qp));
	t->s->qp = NULL;
	while (flue_get_event(t->s->adapter, &ev, 0))
		;
	two_say(t, 'f');
}

static void asker_of_a_revoker(struct two *t)
{
	unsigned long did = 0;
	struct flue_cq *cq;
	struct flue_cq_attr attr = FLUE_ATTR(struct flue_cq_attr);
	pthread_t thread;

	two_hear(t, 'o');
	two_open(t);
	attr.depth = 16;
	cq = t->s->send_cq;
	t->p.b.send_cq = t->s->send_cq = t->s->adapter->ops->create_cq(t->s->adapter, &attr);
	MUST(t->s->send_cq);
	t->p.b.qp = pair_new_qp(&t->p, t->s);
	t->s->send_cq = cq;
	MUST(t->p.b.qp && two_connect_qp(t, t->p.b.qp));
	MUST(pthread_create(&thread, NULL, invalidate, t) == 0);
	memset(t->s->mem, OLD, AREA);
	for (uint32_t i = 0; i < rounds; i++)
		asker_round(t, &did);
	MUST(did > rounds); /* there was something to revoke */
	pthread_join(thread, NULL);
	two_say(t, 'e');
	MUST(flue_destroy_qp(t->p.b.qp));
	MUST(flue_destroy_cq(t->p.b.send_cq));
	two_close(t);
}

static void no_octet_moves_when_revoking_has_returned(void **state)
{
	assert_true(two_run(revoking_target, asker_of_a_revoker));
}

/* ---- an asker that is held between its claim and its copy ---- */

static void held_target(struct two *t)
{
	struct flue_mr *mr;
	char what;

	two_open(t);
	mr = flue_register(t->s->pd, t->s->mem, AREA, PAIR_ALL_ACCESS);
	MUST(mr);
	t->common->key = mr->rkey;
	two_say(t, 'o');
	two_connect(t);
	MUST(read(t->sock, &what, 1) == 1 && what == 'd');
	MUST(flue_deregister(mr));
	memset(t->s->mem, SECRET, AREA);
	two_say(t, 'd');
	MUST(read(t->sock, &what, 1) == 1 && what == 'e');
	for (size_t i = 0; i < AREA; i++)
		MUST(t->s->mem[i] == SECRET);
	two_close(t);
}

/* Writes until it is told to stop, or its connection has ended. */
static void held_asker(struct two *t)
{
	while (!t->common->step[0])
		usleep(200);
	two_open(t);
	two_connect(t);
	MUST(two_is_direct(t, true));
	memset(t->s->mem, OLD, AREA);
	t->common->step[1] = 1;
	while (t->common->step[1] != 2) {
		if (!two_post(t, t->s->qp, FLUE_WR_WRITE, 0, AREA, 1, t->peer->addr, t->common->key,
			      0) ||
		    two_status(t, 20000) != FLUE_WC_SUCCESS)
			break;
	}
	pair_side_close(t->s);
}

/* The asker stands at the entry of a copy into the target. false: it may not be traced; otherwise an error ends the test. */
static bool hold_at_copy(pid_t pid)
{
	struct __ptrace_syscall_info info;
	int status;

	if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACESYSGOOD) != 0)
		return false;
	if (ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) != 0)
		return false;
	for (int i = 0; i < 200000; i++) {
		int sig = 0;

		assert_int_equal(waitpid(pid, &status, __WALL), pid);
		assert_true(WIFSTOPPED(status));
		if (WSTOPSIG(status) == (SIGTRAP | 0x80)) {
			memset(&info, 0, sizeof(info));
			if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(info), &info) < 0)
				return false;
			if (info.op == PTRACE_SYSCALL_INFO_ENTRY &&
			    info.entry.nr == SYS_process_vm_writev)
				return true;
		} else if (status >> 16 == 0) {
			sig = WSTOPSIG(status);
		}
		assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, sig), 0);
	}
	fail_msg("no copy was seen");
	return false;
}

static bool says(int sock, char what, int timeout_ms)
{
	uint64_t end = pair_now_ms() + (uint64_t)timeout_ms;
	char got;

	while (recv(sock, &got, 1, MSG_DONTWAIT) != 1) {
		if (pair_now_ms() > end)
			return false;
		usleep(500);
	}
	return got == what;
}

/* The asker is another child of ours: we play its part of the talk, for it will be stopped. */
static pid_t start_asker(struct lives *l)
{
	struct two t = { .common = l->common,
			 .own = &l->common->asker,
			 .peer = &l->common->target,
			 .sock = -1 };
	pid_t pid = fork();

	if (pid == 0) {
		alarm(100);
		held_asker(&t);
		_exit(0);
	}
	return pid;
}

static void hold(bool kill_it)
{
	struct lives l;
	uint64_t begun;
	pid_t asker;

	two_start(&l, held_target, NULL);
	asker = start_asker(&l);
	assert_true(says(l.peeks, 'o', 20000));
	l.common->step[0] = 1;
	while (!l.common->step[1])
		usleep(200);
	if (!hold_at_copy(asker)) {
		print_message("# a child may not be traced here\n");
		kill(asker, SIGKILL);
		kill(l.target, SIGKILL);
		two_await_one(asker, 5000);
		two_await(&l);
		skip();
	}
	assert_int_equal(write(l.peeks, "d", 1), 1);
	assert_false(says(l.peeks, 'd', hold_ms)); /* it waits for the copy */
	begun = pair_now_ms();
	if (kill_it) {
		kill(asker, SIGKILL);
		assert_int_equal(two_await_one(asker, 5000), 128 + SIGKILL);
	} else {
		assert_int_equal(ptrace(PTRACE_DETACH, asker, NULL, NULL), 0);
	}
	assert_true(says(l.peeks, 'd', 5000));
	assert_true(pair_now_ms() - begun < 5000);
	l.common->step[1] = 2;
	if (!kill_it)
		assert_int_equal(two_await_one(asker, 20000), 0);
	assert_int_equal(write(l.peeks, "e", 1), 1);
	assert_true(two_await(&l));
}

static void held_asker_is_waited_for(void **state)
{
	hold(false);
}

static void asker_that_is_killed_while_it_is_held_is_not(void **state)
{
	hold(true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_octet_moves_when_revoking_has_returned),
		cmocka_unit_test(held_asker_is_waited_for),
		cmocka_unit_test(asker_that_is_killed_while_it_is_held_is_not),
	};

	for (int i = 1; i + 1 < argc; i += 2) {
		if (!strcmp(argv[i], "--rounds"))
			rounds = (uint32_t)atoi(argv[i + 1]);
		if (!strcmp(argv[i], "--hold-ms"))
			hold_ms = atoi(argv[i + 1]);
	}
	two_patience_s += (int)(rounds / 50);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
