/* SPDX-License-Identifier: MIT */
/*
 * Mode closing: the rows of docs/design/closing.md. Both sides tell about memory as in siwpeer's
 * other modes, then the connection ends by --close, with --work posted before. What came of it is
 * printed in the words of the table:
 *
 *	RESULT errno's name, of disconnect()    ENDS number of events   EVENT DISCONNECTED ...
 *	STATES RTS ...   SENDS 1 flushed   RECEIVES 2 flushed   LATE completions after the event
 */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "flue_peer.h"
#include "wire/qp_fsm.h"

#define QUIET_MS 150 /* after the end, in which nothing more may happen */

/*
 * Some states last for microseconds only. The linker puts our function before the table's own
 * (--wrap), so none is missed; that does not work with link-time optimization. There is one queue
 * pair, and its engine's lock is held here.
 */
static uint32_t states[32], n_states;

struct fsm_edge __real_fsm_step(const struct fsm *m, unsigned s, unsigned e);
struct fsm_edge __wrap_fsm_step(const struct fsm *m, unsigned s, unsigned e);

struct fsm_edge __wrap_fsm_step(const struct fsm *m, unsigned s, unsigned e)
{
	struct fsm_edge edge = __real_fsm_step(m, s, e);

	/* REINIT may be just a question. */
	if (m == &qp_fsm && edge.next != s && edge.next != QPS_ILLEGAL && e != QPE_REINIT &&
	    n_states < 32)
		states[n_states++] = edge.next;
	return edge;
}

static void print_states(void)
{
	static const char *const names[] = { "IDLE", "RTS", "CLOSING", "TERMINATE", "ERROR" };

	printf("STATES");
	for (uint32_t i = 0; i < n_states; i++)
		printf(" %s", names[states[i]]);
	printf("\n");
}

static void print_count(const char *what, const uint32_t count[FLUE_WC_NSTATUS])
{
	const char *between = "";

	printf("%s ", what);
	for (uint32_t i = 0; i < FLUE_WC_NSTATUS; i++) {
		if (!count[i])
			continue;
		printf("%s%u %s", between, count[i], flue_wc_status_name(i));
		between = ", ";
	}
	printf("%s\n", *between ? "" : "-");
}

struct tally {
	uint32_t sends[FLUE_WC_NSTATUS], receives[FLUE_WC_NSTATUS];
};

static uint32_t take_completions(struct peer *p, struct tally *t)
{
	struct flue_wc wc;
	uint32_t got, n = 0;

	while (flue_poll(p->cq, &wc, 1, &got) && got) {
		bool receive = ID_OP(wc.id) == FLUE_WC_RECV;

		n++;
		/* What the set-up sent may complete only now; that is no news. */
		if (receive || wc.status != FLUE_WC_SUCCESS)
			(receive ? t->receives : t->sends)[wc.status]++;
	}
	return n;
}

/* Everything that must be true when the end is told is looked at here, not later. */
static void watch_end(struct peer *p)
{
	struct tally t = { 0 }, late = { 0 };
	uint32_t ends = 0, n_late = 0;
	struct flue_event ev;
	int left = p->opt.timeout_ms;

	while (left > 0) {
		if (!flue_get_event(p->adapter, &ev, 10)) {
			left -= 10;
			continue;
		}
		if (ev.type == FLUE_EVENT_CQ_ERROR)
			printf("EVENT CQ_ERROR\n");
		if (ev.type != FLUE_EVENT_DISCONNECTED)
			continue;
		if (!ends++)
			take_completions(p, &t);
		printf("EVENT DISCONNECTED %u %s %x\n", ev.reason,
		       flue_close_reason_name(ev.reason), ev.detail);
		left = QUIET_MS;
	}
	n_late = take_completions(p, &late);
	p->over = ends > 0;
	printf("ENDS %u\n", ends);
	print_count("SENDS", t.sends);
	print_count("RECEIVES", t.receives);
	printf("LATE %u\n", n_late);
}

static void print_result(bool good)
{
	printf("RESULT %s\n", good ? "ok" : strerrorname_np(errno));
}

static bool await_state(const struct peer *p, uint32_t state)
{
	for (int i = 0; i < 5000 && flue_qp_state(p->qp) != state; i++)
		usleep(1000);
	return flue_qp_state(p->qp) == state;
}

/* disconnect() on a thread of its own, since its result comes only when all is over. */
static void *blocked_disconnect(void *arg)
{
	struct peer *p = arg;

	print_result(p->qp->ops->disconnect(p->qp, 5000));
	return NULL;
}

static void meddle(struct peer *p)
{
	bool ok;

	switch (p->opt.closing) {
	case CLOSE_THEN_ABORT: ok = p->qp->ops->abort(p->qp); break;
	case CLOSE_THEN_SEND:
	case CLOSE_WAIT_SEND: ok = ops_send_ctl(p, 0, 0, 0); break;
	default: ok = ops_recv(p, 0);
	}
	printf("MEDDLED %s\n", ok ? "ok" : strerrorname_np(errno));
}

static bool end(struct peer *p)
{
	pthread_t closer;

	switch (p->opt.closing) {
	case CLOSE_DISCONNECT:
		print_result(p->qp->ops->disconnect(p->qp, p->opt.close_ms));
		return true;
	case CLOSE_ABORT: return p->qp->ops->abort(p->qp);
	case CLOSE_TERMINATE: return p->qp->ops->terminate(p->qp);
	case CLOSE_THEN_DESTROY:
		return p->qp->ops->disconnect(p->qp, -1) && await_state(p, FLUE_QP_CLOSING);
	case CLOSE_THEN_ABORT:
	case CLOSE_THEN_SEND:
	case CLOSE_THEN_RECV:
		if (pthread_create(&closer, NULL, blocked_disconnect, p) ||
		    !await_state(p, FLUE_QP_CLOSING))
			return false;
		meddle(p);
		return !pthread_join(closer, NULL);
	case CLOSE_WAIT_SEND:
	case CLOSE_WAIT_RECV:
		if (!await_state(p, FLUE_QP_CLOSING))
			return false;
		meddle(p);
		return true;
	default: return true;
	}
}

static bool begin_work(struct peer *p, const struct ctl *remote)
{
	if (!strcmp(p->opt.work, "read"))
		return ops_rdma(p, FLUE_WR_READ, 0, 16, remote->a, remote->b);
	if (!strcmp(p->opt.work, "write"))
		return ops_rdma(p, FLUE_WR_WRITE, 0, 16, remote->a, remote->b);
	if (!strcmp(p->opt.work, "bad-write"))
		return ops_rdma(p, FLUE_WR_WRITE, 0, 16, remote->a, ~remote->b);
	return true;
}

bool close_run(struct peer *p, const struct ctl *remote)
{
	bool ok;

	usleep((useconds_t)p->opt.pause_ms * 1000);
	ok = begin_work(p, remote);
	/* Long enough that it is on its way. */
	if (*p->opt.work && p->opt.closing != CLOSE_WAIT)
		usleep(50000);
	ok = ok && end(p);
	if (p->opt.closing == CLOSE_THEN_DESTROY) {
		print_states();
		return ok;
	}
	watch_end(p);
	print_states();
	return ok && p->over;
}
