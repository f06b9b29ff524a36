/*
 * What siwpeer --act does once the exchange is over: steps, separated by commas, that bring about ends
 * of a connection which siw alone comes to only by bad luck.
 *
 *   sleep:MS                    does nothing for so long
 *   disconnect, destroy, error  ends the connection, as --close does
 *   send                        one more message of 16 bytes
 *   bad-write                   an RDMA Write with a wrong key
 *   deaf, hear                  from one to the other nothing of the network gets in: not even TCP
 *                               acknowledges. What the peer sends meanwhile comes in at "hear"
 *   reset                       error while deaf, so that what waits outside comes in when siw reads
 *                               no more: its TCP then closes with bytes unread, by a reset
 *
 * As in calm_accept.c only the scheduling differs, not one byte of siw. Input is handled on CPU 0, by
 * a thread of FIFO priority 50.
 */
#define _GNU_SOURCE
#include "siwpeer.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ABOVE_INPUT 60

static struct {
	pthread_t thread;
	atomic_bool stop;
	_Atomic(struct ibv_cq *) flushes; /* not NULL: until siw has begun to flush */
} spin;

static void *spinner(void *arg)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;

	while (!atomic_load(&spin.stop)) {
		cq = atomic_load(&spin.flushes);
		if (cq && ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR)
			break;
	}
	return arg;
}

static void run_on(pthread_t thread, int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	pthread_setaffinity_np(thread, sizeof(set), &set);
}

/* It has its processor and priority from the start: on ours it would never let us go on. */
static void start_spinner(void)
{
	struct sched_param param = { .sched_priority = ABOVE_INPUT };
	pthread_attr_t attr;
	cpu_set_t first;

	atomic_store(&spin.stop, false);
	atomic_store(&spin.flushes, NULL);
	run_on(pthread_self(), 1);
	CPU_ZERO(&first);
	CPU_SET(0, &first);
	pthread_attr_init(&attr);
	pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
	pthread_attr_setschedparam(&attr, &param);
	pthread_attr_setaffinity_np(&attr, sizeof(first), &first);
	if (pthread_create(&spin.thread, &attr, spinner, NULL)) {
		printf("FAILED spinner\n");
		exit(1);
	}
}

static void stop_spinner(void)
{
	atomic_store(&spin.stop, true);
	pthread_join(spin.thread, NULL);
}

/* siw reads no more once it flushes, and closes when that is done. */
static void reset(struct peer *p)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	for (uint32_t i = 0; i < ACT_RECVS; i++)
		if (xfer_post_recv(p, 0))
			printf("FAILED receive %u\n", i);
	p->mute = true;
	atomic_store(&spin.flushes, p->cq);
	ibv_modify_qp(p->id->qp, &attr, IBV_QP_STATE);
}

static void end_by(struct peer *p, const char *word)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (!strcmp(word, "disconnect"))
		rdma_disconnect(p->id);
	else if (!strcmp(word, "destroy"))
		rdma_destroy_qp(p->id);
	else
		ibv_modify_qp(p->id->qp, &attr, IBV_QP_STATE);
}

static void step(struct peer *p, const char *word, unsigned long number)
{
	if (!strcmp(word, "sleep")) {
		usleep(number * 1000);
	} else if (!strcmp(word, "deaf")) {
		start_spinner();
	} else if (!strcmp(word, "hear")) {
		stop_spinner();
	} else if (!strcmp(word, "reset")) {
		reset(p);
	} else if (!strcmp(word, "send")) {
		xfer_send_something(p);
	} else if (!strcmp(word, "bad-write")) {
		xfer_bad_write(p);
	} else if (!strcmp(word, "disconnect") || !strcmp(word, "destroy") ||
		   !strcmp(word, "error")) {
		end_by(p, word);
	} else {
		printf("FAILED no step '%s'\n", word);
		exit(2);
	}
}

void act(struct peer *p)
{
	char *steps = strdup(p->opt.act), *word;

	for (char *at = steps; (word = strsep(&at, ","));) {
		char *colon = strchr(word, ':');

		if (colon)
			*colon++ = 0;
		step(p, word, colon ? strtoul(colon, NULL, 0) : 0);
		printf("ACT %s\n", word);
	}
	free(steps);
}
