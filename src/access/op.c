/* SPDX-License-Identifier: MIT */
/*
 * Waiting. A provider may answer a control slot later, from any thread; the public API is
 * synchronous, so the caller sleeps on a word of its own stack. A futex and not a condition
 * variable, because the answering thread may still be inside its wake-up call when the sleeper
 * has returned and the stack is used for something else; a stray FUTEX_WAKE hurts nobody.
 */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "access/access_priv.h"

void acc_op_done(struct prov_op *base, int result)
{
	struct acc_op *op = (struct acc_op *)base;
	_Atomic uint32_t *word = &op->answered;

	op->result = result;
	atomic_store_explicit(word, 1, memory_order_release);
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

int acc_op_result(struct acc_op *op, int rc)
{
	if (rc != -EINPROGRESS)
		return rc;
	while (!atomic_load_explicit(&op->answered, memory_order_acquire))
		syscall(SYS_futex, &op->answered, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	return op->result;
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
