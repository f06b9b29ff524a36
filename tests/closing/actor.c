/* SPDX-License-Identifier: MIT */
/*
 * A program that uses Flue and does what tests/closing/run tells it, one command per line:
 *
 *	open callback|queue CQ_DEPTH [dead]   all objects; two receives are posted; events by the
 *	                                      queue pair's handler or by the adapter's queue; dead: the
 *	                                      device takes orders to close and does nothing
 *	listen | accept | connect ADDRESS PORT
 *	read | send | recv                    post one request
 *	disconnect MS                         MS < 0: lets events tell; else on a thread of its own
 *	abort | terminate | destroy
 *	close                                 everything goes away; what is left is counted
 *
 * Each is answered by "reply TIME ok ..." or "reply TIME errno's name". Besides it prints, when it
 * happens: "state TIME NAME", "event TIME ...", "result TIME errno's name". Fields are separated by
 * tabs, times are seconds of CLOCK_MONOTONIC.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <flue/flue.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "doubles/faulty.h"

#define MEMORY 4096
#define LENGTH 64 /* of every request */

enum { SENDS, RECEIVES, NQUEUES };

static struct {
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq[NQUEUES];
	struct flue_mr *mr;
	struct flue_qp *qp;
	struct flue_listener *listener;
	pthread_t sampler, event_taker, closer;
	bool sampling, closing;
	atomic_bool stop_sampling, stop_events;
	int sockets, fds, threads; /* before there was a connection, or anything */
	int close_ms;
	uint64_t next_id;
} a;

static uint8_t memory[MEMORY];
static pthread_mutex_t out_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- saying ---- */

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

__attribute__((format(printf, 3, 4))) static void say(const char *kind, double when,
						      const char *format, ...)
{
	va_list args;

	va_start(args, format);
	pthread_mutex_lock(&out_lock);
	printf("%s\t%.6f\t", kind, when);
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	pthread_mutex_unlock(&out_lock);
	va_end(args);
}

static const char *error_name(int error)
{
	const char *name = error ? strerrorname_np(error) : "ok";

	return name ? name : "?";
}

/* ---- counting ---- */

/* Entries of a folder of /proc; `only`: those that are links to something of this kind. */
static int count(const char *folder, const char *only)
{
	DIR *dir = opendir(folder);
	struct dirent *entry;
	char to[64];
	ssize_t len;
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		if (only) {
			len = readlinkat(dirfd(dir), entry->d_name, to, sizeof(to) - 1);
			to[len < 0 ? 0 : len] = 0;
		}
		n += !only || !strncmp(to, only, strlen(only));
	}
	if (dir)
		closedir(dir);
	return n;
}

static int count_sockets(void)
{
	return count("/proc/self/fd", "socket:");
}

/* The kernel may show a thread for a moment after it was joined. */
static int count_threads(int expected)
{
	int n = count("/proc/self/task", NULL);

	for (int i = 0; i < 500 && n > expected; i++) {
		usleep(2000);
		n = count("/proc/self/task", NULL);
	}
	return n;
}

/* ---- what the program is told ---- */

/* The statuses of all completions that are there now, with a blank before each. */
static int take_completions(struct flue_cq *cq, char *text, size_t size)
{
	struct flue_wc wc;
	uint32_t got;
	int n = 0;

	text[0] = 0;
	while (cq && flue_poll(cq, &wc, 1, &got) && got) {
		size_t len = strlen(text);

		snprintf(text + len, size - len, " %s", flue_wc_status_name(wc.status));
		n++;
	}
	return n;
}

/* Everything that must be true when the end is told is looked at here, not later. */
static void told(const struct flue_event *ev)
{
	char sends[200], receives[200];
	double when = now();

	if (ev->type == FLUE_EVENT_REQUEST)
		return;
	if (ev->type == FLUE_EVENT_CQ_ERROR) {
		say("event", when, "%s", flue_event_name(ev->type));
		return;
	}
	take_completions(a.cq[SENDS], sends, sizeof(sends));
	take_completions(a.cq[RECEIVES], receives, sizeof(receives));
	say("event", when, "%s\t%s\t%u\t%d\t%s\t%s", flue_event_name(ev->type),
	    flue_close_reason_name(ev->reason), ev->detail, count_sockets() - a.sockets, sends,
	    receives);
}

static void on_event(const struct flue_event *ev, void *arg)
{
	(void)arg;
	told(ev);
}

static void *take_events(void *arg)
{
	struct flue_event ev;

	while (!atomic_load(&a.stop_events))
		if (flue_get_event(a.adapter, &ev, 20))
			told(&ev);
	return arg;
}

static void *sample_states(void *arg)
{
	const struct timespec pause = { .tv_nsec = 100000 };
	uint32_t last = FLUE_QP_NSTATES, state;
	bool stop;

	do {
		/* Once more after it was asked to stop: the last state is always seen. */
		stop = atomic_load(&a.stop_sampling);
		state = flue_qp_state(a.qp);
		if (state != last)
			say("state", now(), "%s", flue_qp_state_name(state));
		last = state;
		nanosleep(&pause, NULL);
	} while (!stop);
	return arg;
}

/* ---- making ---- */

/* A device that takes orders to close and forgets them. */
static struct prov_ops dead_ops;

static int dead_disconnect(struct prov_qp *qp, int timeout_ms)
{
	(void)qp;
	(void)timeout_ms;
	return 0;
}

static int dead_abort(struct prov_qp *qp)
{
	(void)qp;
	return 0;
}

static void kill_device(bool dead)
{
	faulty_reset();
	dead_ops.disconnect = dead ? dead_disconnect : soft_provider.disconnect;
	dead_ops.abort = dead ? dead_abort : soft_provider.abort;
	faulty_never_flush(dead);
	faulty_upcall(FLUE_EVENT_DISCONNECTED, dead ? FAULTY_DROP : FAULTY_PASS, 0);
}

static bool post_recv(void)
{
	struct flue_sge sge = flue_mr_sge(a.mr, 0, LENGTH);
	struct flue_recv_wr wr = { .id = ++a.next_id, .sg = &sge, .n_sg = 1 };

	return flue_post_recv(a.qp, &wr);
}

static bool post_send(uint32_t op)
{
	struct flue_sge sge = flue_mr_sge(a.mr, 1024, LENGTH);
	/* For a Read: the peer does not answer, so any key will do. */
	struct flue_send_wr wr = { .id = ++a.next_id,
				   .op = op,
				   .flags = FLUE_SIGNALED,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = 0x4711,
				   .remote_addr = 0 };

	return flue_post_send(a.qp, &wr);
}

static bool make_qp(bool callback)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = a.cq[SENDS];
	attr.recv_cq = a.cq[RECEIVES];
	attr.sq_depth = attr.rq_depth = 8;
	attr.on_event = callback ? on_event : NULL;
	a.qp = a.pd->ops->create_qp(a.pd, &attr);
	return a.qp;
}

static bool do_open(const char *how, uint32_t depth, bool dead)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	a.threads = count("/proc/self/task", NULL);
	a.fds = count("/proc/self/fd", NULL);
	kill_device(dead);
	attr.provider = "faulty";
	a.adapter = flue_open(&attr);
	a.pd = a.adapter ? flue_create_pd(a.adapter) : NULL;
	if (!a.pd)
		return false;
	a.mr = flue_register(a.pd, memory, sizeof(memory), FLUE_LOCAL_WRITE);
	a.cq[SENDS] = flue_create_cq(a.adapter, 16);
	a.cq[RECEIVES] = flue_create_cq(a.adapter, depth);
	if (!a.mr || !a.cq[SENDS] || !a.cq[RECEIVES] || !make_qp(!strcmp(how, "callback")) ||
	    !post_recv() || !post_recv())
		return false;
	atomic_store(&a.stop_sampling, false);
	atomic_store(&a.stop_events, false);
	a.sampling = !pthread_create(&a.sampler, NULL, sample_states, NULL);
	return a.sampling && !pthread_create(&a.event_taker, NULL, take_events, NULL);
}

/* ---- connecting ---- */

static bool do_listen(void)
{
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in any = { .sin_family = AF_INET };

	attr.local = (struct sockaddr *)&any;
	attr.local_len = sizeof(any);
	a.listener = a.adapter->ops->listen(a.adapter, &attr);
	a.sockets = count_sockets();
	return a.listener;
}

static bool do_accept(void)
{
	struct flue_conn_request *request = a.listener->ops->get_request(a.listener, 20000);

	return request && request->ops->accept(request, a.qp, NULL);
}

static bool do_connect(const char *address, int port)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };

	inet_pton(AF_INET, address, &to.sin_addr);
	attr.remote = (struct sockaddr *)&to;
	attr.remote_len = sizeof(to);
	a.sockets = count_sockets();
	return a.qp->ops->connect(a.qp, &attr);
}

/* ---- ending ---- */

static void *blocked_disconnect(void *arg)
{
	bool good = a.qp->ops->disconnect(a.qp, a.close_ms);
	int error = good ? 0 : errno;

	say("result", now(), "%s", error_name(error));
	return arg;
}

static bool do_disconnect(int ms)
{
	if (ms < 0)
		return a.qp->ops->disconnect(a.qp, ms);
	a.close_ms = ms;
	a.closing = !pthread_create(&a.closer, NULL, blocked_disconnect, NULL);
	return a.closing;
}

static bool do_destroy(void)
{
	struct flue_qp *qp = a.qp;

	if (a.closing)
		pthread_join(a.closer, NULL);
	a.closing = false;
	atomic_store(&a.stop_sampling, true);
	if (a.sampling)
		pthread_join(a.sampler, NULL);
	a.sampling = false;
	a.qp = NULL;
	return !qp || flue_destroy_qp(qp);
}

static bool destroy_all(void)
{
	bool good = do_destroy();

	atomic_store(&a.stop_events, true);
	pthread_join(a.event_taker, NULL);
	good = good && (!a.listener || a.listener->ops->destroy(a.listener));
	for (int i = 0; i < NQUEUES; i++)
		good = good && flue_destroy_cq(a.cq[i]);
	return good && flue_deregister(a.mr) && flue_destroy_pd(a.pd) && flue_close(a.adapter);
}

static void do_close(void)
{
	char sends[200], receives[200];
	int late = take_completions(a.cq[SENDS], sends, sizeof(sends)) +
		   take_completions(a.cq[RECEIVES], receives, sizeof(receives));
	int fds = a.fds, threads = a.threads;

	if (!destroy_all()) {
		say("reply", now(), "%s", error_name(errno));
		exit(3);
	}
	memset(&a, 0, sizeof(a));
	say("reply", now(), "ok\t%d\t%d\t%d\t%zu", late, count("/proc/self/fd", NULL) - fds,
	    count_threads(threads) - threads, mallinfo2().uordblks);
}

/* ---- obeying ---- */

static bool obey_qp(const char *word, int ms)
{
	if (!strcmp(word, "read"))
		return post_send(FLUE_WR_READ);
	if (!strcmp(word, "send"))
		return post_send(FLUE_WR_SEND);
	if (!strcmp(word, "recv"))
		return post_recv();
	if (!strcmp(word, "disconnect"))
		return do_disconnect(ms);
	if (!strcmp(word, "abort"))
		return flue_abort(a.qp);
	if (!strcmp(word, "terminate"))
		return a.qp->ops->terminate(a.qp);
	if (!strcmp(word, "destroy"))
		return do_destroy();
	fprintf(stderr, "unknown command '%s'\n", word);
	exit(2);
}

static bool obey(const char *word, const char *first, const char *second, bool dead)
{
	if (!strcmp(word, "open"))
		return do_open(first, (uint32_t)atoi(second), dead);
	if (!strcmp(word, "listen"))
		return do_listen();
	if (!strcmp(word, "accept"))
		return do_accept();
	if (!strcmp(word, "connect"))
		return do_connect(first, atoi(second));
	return obey_qp(word, atoi(first));
}

int main(void)
{
	char line[200], word[40], first[40], second[40], third[40];
	bool good;

	dead_ops = soft_provider;
	faulty_wrap(&dead_ops);
	while (fgets(line, sizeof(line), stdin)) {
		double when = now();
		int port = 0;

		word[0] = first[0] = second[0] = third[0] = 0;
		sscanf(line, "%39s %39s %39s %39s", word, first, second, third);
		if (!strcmp(word, "close")) {
			do_close();
			continue;
		}
		good = obey(word, first, second, !strcmp(third, "dead"));
		if (good && a.listener)
			port = ntohs(((struct sockaddr_in *)&a.listener->local)->sin_port);
		/* The time at which it was begun: what it caused may have happened before this line. */
		say("reply", when, "%s\t%d", error_name(good ? 0 : errno), port);
	}
	return 0;
}
