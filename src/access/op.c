/* SPDX-License-Identifier: MIT */
/*
 * Waiting. A provider may answer a control slot later, from any thread; the public API is
 * synchronous, so the caller sleeps. On a futex and not a condition variable, because the answering
 * thread may still be inside its wake-up call when the sleeper has returned and the memory is used
 * for something else; a stray FUTEX_WAKE hurts nobody.
 *
 * A provider that never answers hangs nobody (CH-25): after acc_answer_ms its caller goes on.
 */
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "access/access_priv.h"

enum op_state { OP_OPEN = 0, OP_ANSWERED, OP_LOST };

int acc_answer_ms = ACC_ANSWER_MS;

static void op_done(struct prov_op *base, int result)
{
	struct acc_op *op = (struct acc_op *)base;
	_Atomic uint32_t *word = &op->state;
	uint32_t open = OP_OPEN;

	op->result = result;
	if (atomic_compare_exchange_strong(word, &open, OP_ANSWERED))
		syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

struct acc_op *acc_op_new(void)
{
	struct acc_op *op = calloc(1, sizeof(*op));

	if (op)
		op->base.done = op_done;
	return op;
}

struct acc_op *acc_op_begin(struct acc_op *own)
{
	struct acc_op *op = acc_op_new();

	if (op)
		return op;
	*own = (struct acc_op) { .base.done = op_done, .on_stack = true };
	return own;
}

/* Sleeps until the answer, or until nobody would wait any longer. */
static bool is_late(struct acc_op *op)
{
	struct timespec store;
	const struct timespec *at = acc_deadline(&store, op->on_stack ? -1 : acc_answer_ms);
	uint32_t open = OP_OPEN;

	while (atomic_load_explicit(&op->state, memory_order_acquire) == OP_OPEN) {
		/* The deadline is an absolute time on CLOCK_MONOTONIC, as BITSET has it. */
		if (syscall(SYS_futex, &op->state, FUTEX_WAIT_BITSET_PRIVATE, OP_OPEN, at, NULL,
			    FUTEX_BITSET_MATCH_ANY) < 0 &&
		    errno == ETIMEDOUT)
			return atomic_compare_exchange_strong(&op->state, &open, OP_LOST);
	}
	return false;
}

int acc_op_wait(struct acc_adapter *a, struct acc_op *op, int rc, void *object)
{
	if (rc != -EINPROGRESS || !is_late(op)) {
		rc = rc == -EINPROGRESS ? op->result : rc;
		/* That word has a meaning of its own here. */
		return rc == -ETIMEDOUT ? -EIO : rc;
	}
	op->object = object;
	log_error(access, "no answer within %d ms: a call of the provider's is given up",
		  acc_answer_ms);
	pthread_mutex_lock(&a->lock);
	SLIST_INSERT_HEAD(&a->lost, op, link);
	pthread_mutex_unlock(&a->lock);
	return -ETIMEDOUT;
}

void acc_op_end(struct acc_op *op)
{
	if (!op->on_stack && atomic_load(&op->state) != OP_LOST)
		free(op);
}

int acc_op_result(struct acc_adapter *a, struct acc_op *op, int rc, void *object)
{
	rc = acc_op_wait(a, op, rc, object);
	acc_op_end(op);
	return rc;
}

void acc_lost_free(struct acc_adapter *a)
{
	struct acc_op *op;

	while ((op = SLIST_FIRST(&a->lost))) {
		SLIST_REMOVE_HEAD(&a->lost, link);
		free(op->object);
		free(op);
	}
}

const struct timespec *acc_deadline(struct timespec *at, int ms)
{
	if (ms < 0)
		return NULL;
	clock_gettime(CLOCK_MONOTONIC, at);
	at->tv_sec += ms / 1000;
	at->tv_nsec += ms % 1000 * 1000000L;
	if (at->tv_nsec >= 1000000000L) {
		at->tv_nsec -= 1000000000L;
		at->tv_sec++;
	}
	return at;
}

bool acc_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *at)
{
	if (at)
		return pthread_cond_clockwait(cond, lock, CLOCK_MONOTONIC, at) != ETIMEDOUT;
	pthread_cond_wait(cond, lock);
	return true;
}

static void unlock(void *lock)
{
	pthread_mutex_unlock(lock);
}

bool acc_sleep_until(pthread_cond_t *cond, pthread_mutex_t *lock, const struct timespec *at,
		     int cancel_was)
{
	bool in_time;

	pthread_cleanup_push(unlock, lock);
	cancel_window_open(cancel_was);
	in_time = acc_wait_until(cond, lock, at);
	cancel_window_shut();
	pthread_cleanup_pop(0);
	return in_time;
}
