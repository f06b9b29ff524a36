/* SPDX-License-Identifier: MIT */
/* A queue pair on a bare stream: how it ends, seen octet by octet from the other side (CH-18). */
#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "rnic/link_tcp.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"

static struct rnic *r;
static struct rnic_pd pd;
static struct cq *cq;
static struct qp *q;
static struct flue_qp owner;
static int peer; /* the other end of the stream */
static atomic_int ends;
static struct flue_event end;

static struct link_tcp *tcp(void)
{
	return (struct link_tcp *)q->link;
}

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	if (ev->type != FLUE_EVENT_DISCONNECTED)
		return;
	end = *ev;
	atomic_fetch_add(&ends, 1);
}

static void on_completion(void *cq_owner, void *arg)
{
}

static const struct rnic_upcalls up = { .qp_event = on_event };

/* A connected queue pair, without CRC, as the initiator of a two-way exchange. */
static int make(void **state)
{
	struct mpa_terms terms = { .rev = 2, .ird = 1, .ord = 1 };
	struct qp_attr attr = { .pd = &pd,
				.sq_depth = 4,
				.rq_depth = 4,
				.sq_sge = 1,
				.rq_sge = 1,
				.state = &owner.state,
				.owner = &owner };
	struct qp_start start = { .terms = &terms, .initiator = true };
	struct link_tcp_attr link_attr = { .terms = &terms };
	struct engine_io io = { 0 };
	struct link *link;
	int cpu = sched_getcpu(), fds[2], rc;

	atomic_store(&ends, 0);
	owner.state = FLUE_QP_IDLE;
	if (rnic_open(&cpu, 1, &up, NULL, &r) ||
	    cq_create(r, &r->engines[0], 16, on_completion, NULL, NULL, &cq))
		return -1;
	pd.rnic = r;
	attr.send_cq = attr.recv_cq = cq;
	if (qp_create(&attr, &q) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds))
		return -1;
	peer = fds[1];
	engine_lock(q->engine);
	engine_io_take(&io, fds[0]);
	link_attr.io = &io;
	rc = link_tcp_create(q, &link_attr, &link);
	if (rc == 0)
		rc = qp_establish(q, &start, link);
	q->connected = true; /* as the endpoint does when it has told */
	engine_unlock(q->engine);
	return rc;
}

/* CH-25: a connection that has ended holds neither a descriptor nor a timer. */
static bool left_something(void)
{
	bool left;

	engine_lock(q->engine);
	left = atomic_load(&ends) && (link_is_open(q->link) || !TAILQ_EMPTY(&q->engine->timers));
	engine_unlock(q->engine);
	return left;
}

static int drop(void **state)
{
	bool left = left_something();

	qp_destroy(q);
	cq_destroy(cq);
	rnic_close(r);
	if (peer >= 0)
		close(peer);
	return left ? -1 : 0;
}

/* Waits for a second, which is shorter than the closing timer. */
static ssize_t take(void *buf, size_t len)
{
	for (int i = 0; i < 1000; i++) {
		ssize_t n = recv(peer, buf, len, 0);

		if (n >= 0 || errno != EAGAIN)
			return n;
		usleep(1000);
	}
	return -1;
}

static void send_opcode(uint8_t opcode)
{
	uint8_t fpdu[2 + 18 + 4] = { 0, 18, 0x41, 0x40 | opcode };

	fpdu[2 + 13] = 1; /* MSN */
	assert_int_equal(send(peer, fpdu, sizeof(fpdu), MSG_NOSIGNAL), sizeof(fpdu));
}

static bool ended(void)
{
	for (int i = 0; i < 30000 && !atomic_load(&ends); i++)
		usleep(1000);
	return atomic_load(&ends) == 1;
}

static void qp_sends_a_terminate_and_its_fin_at_once(void **state)
{
	uint8_t buf[256];

	send_opcode(12); /* nobody's */
	assert_true(take(buf, sizeof(buf)) >= 2 + 18 + 4);
	assert_int_equal(buf[2 + 1], 0x47);
	assert_int_equal(buf[2 + 18], 0x02); /* RDMAP, remote operation */
	assert_int_equal(buf[2 + 19], 0x06); /* unexpected opcode */
	assert_int_equal(take(buf, sizeof(buf)), 0);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_TERMINATE);
	/* More faults change nothing; the end comes with the peer's FIN. */
	send_opcode(13);
	close(peer);
	peer = -1;
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_FAULT);
	assert_int_equal(end.detail, 0x0206);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
}

/* A peer can provoke it, so it is written when no lock is held: with the end, not where it is found. */
static void qp_logs_its_fault_when_the_end_is_told(void **state)
{
	static char file[] = "/tmp/flue-qp-log-XXXXXX";
	char text[512] = { 0 };
	int log = mkstemp(file);
	ssize_t early;

	assert_true(log >= 0);
	setenv("FLUE_LOG", "error", 1);
	setenv("FLUE_LOG_FILE", file, 1);
	log_init();
	engine_lock(q->engine);
	qp_fault(q, FAULT_RDMAP_OPCODE, NULL, 0, 0, NULL);
	qp_fault(q, FAULT_RDMAP_STAG, NULL, 0, 0, NULL); /* a consequence */
	early = read(log, text, sizeof(text) - 1);
	engine_unlock(q->engine);
	assert_int_equal(early, 0);
	close(peer);
	peer = -1;
	assert_true(ended());
	assert_true(read(log, text, sizeof(text) - 1) > 0);
	assert_non_null(strstr(text, "fault 0x206"));
	assert_null(strstr(strchr(text, '\n'), "fault"));
	log_stop();
	close(log);
	unlink(file);
}

static void qp_answers_a_fin_with_its_own_and_becomes_idle(void **state)
{
	struct flue_recv_wr wr = { .id = 77 };
	const struct flue_recv_wr *bad;
	struct flue_wc wc;
	uint8_t buf[16];

	assert_int_equal(qp_post_recv(q, &wr, &bad), 0);
	shutdown(peer, SHUT_WR);
	assert_int_equal(take(buf, sizeof(buf)), 0);
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_GRACEFUL);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_IDLE);
	assert_int_equal(cq_poll(cq, &wc, 1), 1);
	assert_int_equal(wc.id, 77);
	assert_int_equal(wc.status, FLUE_WC_FLUSHED);
}

/* CH-22: they are given back when the peer closes, not only when our FIN is acknowledged. */
static void qp_flushes_its_receives_as_soon_as_the_peer_closes(void **state)
{
	struct flue_recv_wr wr = { .id = 77 };
	const struct flue_recv_wr *bad;
	struct flue_qp_values info = { 0 };
	uint32_t left;
	uint8_t then;

	assert_int_equal(qp_post_recv(q, &wr, &bad), 0);
	qp_query(q, &info, FLUE_QPV_STATE | FLUE_QPV_WORK);
	assert_int_equal(info.receives, 1);
	engine_lock(q->engine);
	qp_apply(q, QPE_FIN_IDLE, FLUE_CLOSE_GRACEFUL, 0);
	then = q->state;
	left = wq_fill(&q->rq);
	engine_unlock(q->engine);
	assert_int_equal(then, QPS_CLOSING);
	assert_int_equal(left, 0);
	shutdown(peer, SHUT_WR);
	assert_true(ended());
}

static bool is_idle_with(uint32_t *word, uint32_t value)
{
	uint32_t was = *word;
	bool idle;

	*word = value;
	idle = qp_is_idle(q);
	*word = was;
	return idle;
}

/* CH-20: each of them is enough. */
static void qp_is_not_idle_with_any_kind_of_work(void **state)
{
	struct tx_cursor *cur = &q->tx.cur, begun = *cur;
	bool idle, read, answered, part, message, rtr;

	engine_lock(q->engine);
	idle = qp_is_idle(q);
	read = is_idle_with(&cur->orq_tail, q->orq_head + 1);
	answered = is_idle_with(&q->irq_tail, q->irq_head + 1);
	begun.kind = TX_REQUEST;
	qp_sched_begun(q, &begun);
	part = qp_is_idle(q);
	cur->kind = TX_RESPONSE;
	message = qp_is_idle(q);
	cur->kind = TX_NONE;
	cur->rtr_owed = true;
	rtr = qp_is_idle(q);
	cur->rtr_owed = false;
	engine_unlock(q->engine);
	assert_true(idle);
	assert_false(read || answered || part || message || rtr);
}

/* CH-20: a Send that has not left yet, and nothing else. */
static void qp_with_a_send_in_its_queue_does_not_close_gracefully(void **state)
{
	struct flue_send_wr wr = { .id = 5, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED };
	const struct flue_send_wr *bad;
	struct flue_wc wc;

	engine_lock(q->engine);
	q->tx.held = true; /* as a two-way responder's are */
	engine_unlock(q->engine);
	assert_int_equal(qp_post_send(q, &wr, &bad), 0);
	assert_int_equal(qp_disconnect(q, 1000), -EBUSY);
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_BAD);
	assert_int_equal(end.detail, EBUSY);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
	assert_int_equal(cq_poll(cq, &wc, 1), 1);
	assert_int_equal(wc.status, FLUE_WC_FLUSHED);
}

/* CH-26 */
static void qp_tells_what_it_is_doing_when_asked(void **state)
{
	struct flue_send_wr wr = { .id = 5, .op = FLUE_WR_READ, .flags = FLUE_SIGNALED, .rkey = 1 };
	const struct flue_send_wr *bad;
	struct flue_qp_values info = { 0 };
	uint8_t buf[256];

	qp_query(q, &info, FLUE_QPV_STATE | FLUE_QPV_WORK);
	assert_int_equal(info.state, FLUE_QP_RTS);
	assert_true(info.llp_open);
	assert_int_equal(info.sends + info.receives + info.reads_out + info.reads_in, 0);
	/* A Read that is never answered, and a second one, for which there is no room beside it. */
	assert_int_equal(qp_post_send(q, &wr, &bad), 0);
	assert_int_equal(qp_post_send(q, &wr, &bad), 0);
	assert_true(take(buf, sizeof(buf)) > 0);
	qp_query(q, &info, FLUE_QPV_STATE | FLUE_QPV_WORK);
	assert_true(info.sends == 2 && info.reads_out == 1 && info.reads_in == 0);
	q->irq_tail++; /* as if one of the peer's were being answered; nothing moves meanwhile */
	qp_query(q, &info, FLUE_QPV_STATE | FLUE_QPV_WORK);
	q->irq_tail--;
	assert_true(info.reads_out == 1 && info.reads_in == 1);
	assert_int_equal(qp_abort(q), 0);
	assert_true(ended());
	qp_query(q, &info, FLUE_QPV_STATE | FLUE_QPV_WORK);
	assert_int_equal(info.state, FLUE_QP_ERROR);
	assert_false(info.llp_open);
	assert_int_equal(info.sends, 0);
}

static void qp_closing_gives_up_on_a_peer_that_does_not_close(void **state)
{
	uint8_t buf[16];

	assert_int_equal(qp_disconnect(q, 50), 0);
	assert_int_equal(take(buf, sizeof(buf)), 0); /* our FIN */
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_LOST);
	assert_int_equal(end.detail, ETIMEDOUT);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
}

static void qp_that_loses_its_peer_in_the_middle_of_an_fpdu_says_lost(void **state)
{
	static const uint8_t part[] = { 0, 18, 0x41 };

	assert_int_equal(send(peer, part, sizeof(part), 0), sizeof(part));
	close(peer);
	peer = -1;
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_LOST);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
}

/* The one segment that came has no Last flag. */
static void qp_whose_peer_closes_inside_a_write_says_bad_close(void **state)
{
	/* A Write of no octets: its STag is not looked at. */
	uint8_t fpdu[2 + 14 + 4] = { 0, 14, 0x81, 0x40 };

	assert_int_equal(send(peer, fpdu, sizeof(fpdu), MSG_NOSIGNAL), sizeof(fpdu));
	shutdown(peer, SHUT_WR);
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_BAD);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
}

static void qp_in_error_flushes_what_is_posted_then_starts_afresh(void **state)
{
	struct flue_recv_wr recv_wr = { .id = 1 };
	struct flue_send_wr send_wr = { .id = 2, .op = FLUE_WR_SEND };
	const struct flue_recv_wr *bad_recv;
	const struct flue_send_wr *bad_send;
	struct flue_wc wc[2];

	assert_int_equal(qp_abort(q), 0);
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_ABORTED);
	assert_int_equal(qp_post_recv(q, &recv_wr, &bad_recv), 0);
	assert_int_equal(qp_post_send(q, &send_wr, &bad_send), 0);
	assert_int_equal(cq_poll(cq, wc, 2), 2);
	assert_int_equal(wc[0].id, 1);
	assert_int_equal(wc[1].id, 2);
	assert_int_equal(wc[0].status, FLUE_WC_FLUSHED);
	assert_int_equal(wc[1].status, FLUE_WC_FLUSHED);
	assert_int_equal(qp_reset(q), 0);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_IDLE);
	assert_int_equal(qp_post_send(q, &send_wr, &bad_send), -ENOTCONN);
	assert_int_equal(atomic_load(&ends), 1);
}

/* ---- a Read of the peer's that cannot be answered yet ---- */

/* TCP would be full: whatever the queue pair has to say must wait. */
static void plug(void)
{
	static const char junk[4096];

	engine_lock(q->engine);
	while (send(tcp()->io.fd, junk, sizeof(junk), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(errno, EAGAIN);
	engine_unlock(q->engine);
}

static bool is_reading(void)
{
	bool reading;

	engine_lock(q->engine);
	reading = q->irq_head != q->irq_tail;
	/* None of its answer is out, which alone would be work outstanding. */
	assert_null(tcp()->tx.part);
	engine_unlock(q->engine);
	return reading;
}

static void await_reading(bool reading)
{
	for (int i = 0; i < 30000 && is_reading() != reading; i++)
		usleep(1000);
	assert_int_equal(is_reading(), reading);
}

/* No octets are asked for, so no key is looked at. */
static void read_from(void)
{
	uint8_t fpdu[2 + 18 + 28 + 4] = { 0, 18 + 28, 0x41, 0x41 };

	plug();
	fpdu[2 + 9] = 1;  /* queue */
	fpdu[2 + 13] = 1; /* MSN */
	assert_int_equal(send(peer, fpdu, sizeof(fpdu), MSG_NOSIGNAL), sizeof(fpdu));
	await_reading(true);
}

static void expect_bad_close(uint32_t detail)
{
	assert_true(ended());
	assert_int_equal(end.reason, FLUE_CLOSE_BAD);
	assert_int_equal(end.detail, detail);
	assert_int_equal(flue_qp_state(&owner), FLUE_QP_ERROR);
}

static void qp_that_is_read_from_does_not_close_gracefully(void **state)
{
	read_from();
	assert_int_equal(qp_disconnect(q, 10000), -EBUSY);
	expect_bad_close(EBUSY);
}

static void qp_whose_peer_closes_before_its_read_is_answered_says_bad_close(void **state)
{
	read_from();
	shutdown(peer, SHUT_WR);
	expect_bad_close(0);
}

static int set_reads(uint32_t ird, uint32_t ord)
{
	struct flue_qp_values v = { .ird = ird, .ord = ord };

	return qp_modify(q, &v, FLUE_QPV_READS);
}

/* There is no place for the Read in fewer. */
static void qp_keeps_its_ird_while_it_is_read_from(void **state)
{
	char junk[4096];

	read_from();
	assert_int_equal(set_reads(0, 1), -EBUSY);
	assert_int_equal(set_reads(1, 1), 0);
	assert_int_equal(set_reads(9, 1), 0);
	assert_true(is_reading());
	while (is_reading())
		if (recv(peer, junk, sizeof(junk), 0) < 0)
			usleep(1000);
	assert_int_equal(set_reads(0, 1), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

/* Posted in the very moment of the end; the kick that flushes it is still to come. */
static void qp_reset_waits_until_requests_are_flushed(void **state)
{
	assert_int_equal(qp_abort(q), 0);
	for (int i = 0; i < 2; i++) {
		struct wq *queue = i ? &q->rq : &q->sq;

		lock_take(&queue->lock);
		assert_non_null(wq_next(queue));
		wq_advance(queue);
		lock_give(&queue->lock);
		assert_int_equal(qp_reset(q), -EBUSY);
		assert_int_equal(owner.state, FLUE_QP_ERROR);
		engine_kick(q->engine, &q->kick);
	}
	assert_int_equal(qp_reset(q), 0);
	assert_int_equal(owner.state, FLUE_QP_IDLE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(qp_sends_a_terminate_and_its_fin_at_once),
		TEST(qp_logs_its_fault_when_the_end_is_told),
		TEST(qp_answers_a_fin_with_its_own_and_becomes_idle),
		TEST(qp_flushes_its_receives_as_soon_as_the_peer_closes),
		TEST(qp_tells_what_it_is_doing_when_asked),
		TEST(qp_is_not_idle_with_any_kind_of_work),
		TEST(qp_with_a_send_in_its_queue_does_not_close_gracefully),
		TEST(qp_closing_gives_up_on_a_peer_that_does_not_close),
		TEST(qp_that_loses_its_peer_in_the_middle_of_an_fpdu_says_lost),
		TEST(qp_whose_peer_closes_inside_a_write_says_bad_close),
		TEST(qp_in_error_flushes_what_is_posted_then_starts_afresh),
		TEST(qp_that_is_read_from_does_not_close_gracefully),                  /* CH-20 */
		TEST(qp_whose_peer_closes_before_its_read_is_answered_says_bad_close), /* CH-22 */
		TEST(qp_keeps_its_ird_while_it_is_read_from),                          /* CH-8 */
		TEST(qp_reset_waits_until_requests_are_flushed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
