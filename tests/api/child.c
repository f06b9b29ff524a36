/* SPDX-License-Identifier: MIT */
/* fork(): what a child may do with what it inherited, and a life of its own. See api.h. */
#include "api.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/wait.h>

#define CHILD_S    40
#define NOT_JUDGED 77

/*
 * AddressSanitizer does not hold its allocator while a process forks: a child can be born with one of
 * its locks taken by a thread that is not there, and hangs in malloc() sooner or later. That is not
 * for us to judge, so such a child first takes memory of all sizes and makes a thread: if that does
 * not end it has not begun. It happens to one in a thousand.
 */
#if UNDER_ASAN
#define REHEARSAL_S 10

static void end_unjudged(int number)
{
	(void)number;
	_exit(NOT_JUDGED);
}

static void *nothing(void *arg)
{
	return arg;
}

static void rehearse(void)
{
	static void *chunks[600];
	pthread_t thread;

	signal(SIGALRM, end_unjudged);
	alarm(REHEARSAL_S);
	/* More than a thread's own stock, so that the shared one is asked, and given back. */
	for (size_t size = 8; size <= 512 * 1024; size += size / 4 + 8) {
		size_t n = size < 4096 ? 600 : size < 65536 ? 40 : 4;

		for (size_t i = 0; i < n; i++)
			chunks[i] = malloc(size);
		for (size_t i = 0; i < n; i++)
			free(chunks[i]);
	}
	if (pthread_create(&thread, NULL, nothing, NULL) == 0)
		pthread_join(thread, NULL);
	signal(SIGALRM, SIG_DFL);
}
#else
static void rehearse(void)
{
}
#endif

/* In the child nobody else holds anything, and nobody judges but the exit status. */
#define DEAD(expr)                                                                  \
	do {                                                                        \
		errno = 0;                                                          \
		if ((expr) || errno != ENODEV) {                                    \
			dprintf(2, "# in the child: %s: errno %d\n", #expr, errno); \
			_exit(10);                                                  \
		}                                                                   \
	} while (0)

static void try_cq(struct flue_cq *cq)
{
	struct flue_wc wc;
	uint32_t got;

	DEAD(flue_poll(cq, &wc, 1, &got));
	DEAD(flue_wait(cq, -1));
	DEAD(cq->ops->notify(cq, FLUE_NOTIFY_NEXT, NULL, NULL));
	DEAD(cq->ops->fd(cq) >= 0);
	DEAD(cq->ops->clear_fd(cq));
	DEAD(cq->ops->resize(cq, 500));
}

static void try_end(struct end *e)
{
	struct flue_qp *qp = atomic_load(&e->qp);
	struct flue_adapter *a = e->house->adapter;
	struct flue_send_wr send = { .op = FLUE_WR_SEND };
	struct flue_recv_wr recv = { .id = 1 };
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);
	struct flue_event ev;

	DEAD(qp->ops->modify(qp, &v, FLUE_QPV_READS));
	DEAD(qp->ops->query(qp, &v, FLUE_QPV_STATE));
	DEAD(flue_post_send(qp, &send));
	DEAD(flue_post_recv(qp, &recv));
	DEAD(flue_disconnect(qp));
	DEAD(flue_abort(qp));
	DEAD(qp->ops->terminate(qp));
	DEAD(qp->ops->reset(qp));
	try_cq(e->scq->cq);
	try_cq(e->rcq->cq);
	DEAD(flue_get_event(a, &ev, -1));
	DEAD(flue_create_pd(a));
	DEAD(flue_create_cq(a, 4));
	DEAD(flue_register(e->pdx->pd, e->memory, 10, 0));
	if (e->srqx)
		DEAD(e->srqx->srq->ops->post_recv(e->srqx->srq, &recv, NULL));
}

static int free_ends(struct link *l)
{
	if (l->socket && !l->socket->ops->destroy(l->socket))
		return 20;
	for (int side = 0; side < 2; side++) {
		struct end *e = &l->ends[side];

		if (!flue_destroy_qp(e->qp))
			return 21;
		if (!flue_deregister(e->mr))
			return 22;
		/* Others may have children there. */
		if (!flue_destroy_pd(e->pdx->pd) && errno != EBUSY)
			return 23;
	}
	return 0;
}

/* ---- a life of its own ---- */

struct own {
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_qp *qp[2];
	struct flue_mr *mr;
	struct flue_listener *listener;
};

static uint8_t own_memory[4096];

static bool own_make(struct own *o)
{
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };

	o->adapter = flue_open(NULL);
	if (!o->adapter)
		return false;
	o->pd = flue_create_pd(o->adapter);
	o->cq = flue_create_cq(o->adapter, 16);
	if (!o->pd || !o->cq)
		return false;
	o->mr = flue_register(o->pd, own_memory, sizeof(own_memory), FLUE_LOCAL_WRITE);
	attr.send_cq = attr.recv_cq = o->cq;
	attr.sq_depth = attr.rq_depth = 4;
	for (int i = 0; i < 2; i++)
		o->qp[i] = o->pd->ops->create_qp(o->pd, &attr);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listen.local = (struct sockaddr *)&in;
	listen.local_len = sizeof(in);
	o->listener = o->adapter->ops->listen(o->adapter, &listen);
	return o->mr && o->qp[0] && o->qp[1] && o->listener;
}

static bool own_transfer(struct own *o)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;
	struct flue_sge from = flue_mr_sge(o->mr, 0, 1000), to = flue_mr_sge(o->mr, 2000, 1000);
	struct flue_recv_wr recv = { .id = 1, .sg = &to, .n_sg = 1 };
	struct flue_send_wr send = {
		.id = 2, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED, .sg = &from, .n_sg = 1
	};
	struct flue_event ev;
	struct flue_wc wc;
	uint32_t got;

	attr.remote = (struct sockaddr *)&o->listener->local;
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.flags = FLUE_CONN_ASYNC;
	attr.timeout_ms = 50000;
	if (!flue_post_recv(o->qp[1], &recv) || !o->qp[0]->ops->connect(o->qp[0], &attr))
		return false;
	req = o->listener->ops->get_request(o->listener, 50000);
	attr.flags = 0;
	if (!req || !req->ops->accept(req, o->qp[1], &attr))
		return false;
	do {
		if (!flue_get_event(o->adapter, &ev, 50000))
			return false;
	} while (ev.type != FLUE_EVENT_CONNECTED);
	pattern_fill(own_memory, 1000, 5);
	if (!flue_post_send(o->qp[0], &send))
		return false;
	for (int n = 0; n < 2; n += (int)got) {
		if (!flue_wait(o->cq, 50000) || !flue_poll(o->cq, &wc, 1, &got))
			return false;
		if (got && wc.status != FLUE_WC_SUCCESS)
			return false;
	}
	return pattern_is(own_memory + 2000, 1000, 5) && flue_disconnect(o->qp[0]);
}

static bool own_end(struct own *o)
{
	return o->listener->ops->destroy(o->listener) && flue_destroy_qp(o->qp[0]) &&
	       flue_destroy_qp(o->qp[1]) && flue_deregister(o->mr) && flue_destroy_cq(o->cq) &&
	       flue_destroy_pd(o->pd) && flue_close(o->adapter);
}

static int child(struct link *l, uint32_t what)
{
	struct own own;

	disturb_child();
	rehearse();
	alarm(CHILD_S);
	memset(&own, 0, sizeof(own));
	if (what == 0)
		return 0;
	try_end(&l->ends[0]);
	try_end(&l->ends[1]);
	/* ThreadSanitizer cannot start threads in a child. */
	if (what == 2 && !UNDER_TSAN) {
		if (!own_make(&own))
			return 30;
		if (!own_transfer(&own))
			return 31;
		if (!own_end(&own))
			return 32;
	}
	return what == 1 ? free_ends(l) : 0;
}

atomic_ulong n_not_judged;

void op_fork(void)
{
	struct link *l = link_hold();
	uint32_t what;
	int status = 0;
	pid_t pid;

	if (!l)
		return;
	what = draw(3);
	pid = fork();
	if (pid == 0)
		_exit(child(l, what));
	must(pid > 0);
	while (waitpid(pid, &status, 0) < 0)
		must(errno == EINTR);
	if (UNDER_ASAN && WIFEXITED(status) && WEXITSTATUS(status) == NOT_JUDGED)
		atomic_fetch_add(&n_not_judged, 1);
	else if (status)
		fail("a child (%u) ended with %s %d", what, WIFEXITED(status) ? "status" : "signal",
		     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
	atomic_store(&me->since, now_ms());
	atomic_fetch_add(&n_children, 1);
	undo_run();
}
