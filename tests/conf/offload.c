/* SPDX-License-Identifier: MIT */
/* Offloads: query and end by control clients (CH-26, CH-27), many at once (CH-15). */
#include <unistd.h>

#include "conf/conf.h"

#define GANG 8

static struct flue_socket *sock[2];
static struct flue_qp *qp[2];

static struct flue_socket_event expect(unsigned which, uint32_t type, int error)
{
	struct flue_socket *s = sock[which];
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 60000))
		fail_msg("side %u: no event %u: %s", which, type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	return ev;
}

static struct flue_offload_info query(unsigned which)
{
	struct flue_offload_info info = FLUE_ATTR(struct flue_offload_info);

	assert_ok(sock[which]->ops->query_offload(sock[which], &info));
	return info;
}

static void open_sockets(struct pair *p)
{
	int fd[2];

	conf_streams(fd);
	qp[0] = p->a.qp;
	qp[1] = p->b.qp;
	for (unsigned i = 0; i < 2; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

		assert_ok(sock[i] = flue_socket_open(qp[i]->pd->adapter, fd[i], NULL));
		r.qp = qp[i];
		assert_ok(sock[i]->ops->reserve(sock[i], &r));
	}
}

static void begin_transfer(uint32_t conn_flags)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.timeout_ms = 60000;
	attr.conn_flags = conn_flags;
	for (unsigned i = 0; i < 2; i++) {
		attr.flags = i ? FLUE_SWITCH_RESPONDER : 0;
		assert_ok(sock[i]->ops->switch_mode(sock[i], &attr, 1));
	}
	for (unsigned i = 0; i < 2; i++)
		assert_ok(sock[i]->ops->rdma_recv(sock[i], NULL, 0, 2));
	expect(0, FLUE_SOCKET_SWITCHED, 0);
	expect(1, FLUE_SOCKET_SWITCHED, 0);
}

static void drop_sockets(void)
{
	assert_ok(sock[0]->ops->destroy(sock[0]));
	assert_ok(sock[1]->ops->destroy(sock[1]));
}

/* A two-way responder's requests wait until the initiator has spoken. */
static void query_counts_what_is_not_done(void **state)
{
	struct pair *p = *state;
	struct flue_offload_info info;

	open_sockets(p);
	info = query(1);
	assert_true(info.open && !info.ended);
	assert_int_equal(info.qp_state, FLUE_QP_IDLE);
	assert_int_equal(info.receives, 0);
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_recv(&p->b, 100, 100, 2));
	assert_int_equal(query(1).receives, 2);
	begin_transfer(FLUE_CONN_TWO_WAY);
	assert_ok(pair_read(&p->b, 0, 0, &p->a, 0, 7, FLUE_SIGNALED));
	info = query(1);
	assert_true(info.open && !info.ended);
	assert_int_equal(info.qp_state, FLUE_QP_RTS);
	assert_int_equal(info.sends, 1);
	assert_int_equal(info.receives, 2);
	assert_ok(pair_send(&p->a, 0, 10, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.send_cq, 7, FLUE_WC_SUCCESS));
	info = query(1);
	assert_true(info.sends == 0 && info.reads_out == 0 && info.reads_in == 0);
	assert_int_equal(info.receives, 1);
	assert_fails(sock[1]->ops->end_offload(sock[1], false), EBUSY);
	assert_int_equal(query(1).qp_state, FLUE_QP_RTS);
	drop_sockets();
}

static void check_end(unsigned which, uint32_t reason, uint32_t qp_state)
{
	struct flue_socket_event ev = expect(which, FLUE_SOCKET_ENDED, 0);
	struct flue_offload_info info = query(which);

	assert_int_equal(ev.reason, reason);
	assert_true(!info.open && info.ended);
	assert_int_equal(info.qp_state, qp_state);
	assert_true(info.reason == ev.reason && info.detail == ev.detail);
	assert_int_equal(info.sends + info.receives, 0);
}

/* The same queue pairs serve socket after socket, however the last one ended. */
static void ended_offloads_leave_their_queue_pairs_for_others(void **state)
{
	struct pair *p = *state;

	for (unsigned turn = 0; turn < 6; turn++) {
		bool early = turn % 2;

		open_sockets(p);
		begin_transfer(0);
		assert_ok(pair_recv(&p->b, 0, 100, 1));
		assert_ok(pair_send(&p->a, 0, 10, 3, FLUE_SIGNALED));
		assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
		assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
		if (early) {
			assert_ok(sock[0]->ops->end_offload(sock[0], true));
			assert_int_equal(expect(0, FLUE_SOCKET_ENDED, 0).reason,
					 FLUE_CLOSE_ABORTED);
			check_end(1, FLUE_CLOSE_RESET, FLUE_QP_ERROR);
		} else {
			assert_ok(sock[0]->ops->disconnect(sock[0], 60000));
			check_end(0, FLUE_CLOSE_GRACEFUL, FLUE_QP_IDLE);
			check_end(1, FLUE_CLOSE_GRACEFUL, FLUE_QP_IDLE);
			assert_ok(sock[0]->ops->end_offload(sock[0], false));
		}
		assert_ok(sock[1]->ops->end_offload(sock[1], false));
		for (unsigned i = 0; i < 2; i++) {
			assert_int_equal(flue_qp_state(qp[i]), FLUE_QP_IDLE);
			assert_null(sock[i]->qp);
		}
		drop_sockets();
	}
	/* ... and connections of their own. */
	assert_ok(pair_connect(p));
}

/* ---- gangs (CH-15) ---- */

static struct flue_socket *member[2 * GANG]; /* neighbours are the two ends of a connection */
static struct flue_switch_attr how[2];
static struct flue_gang gang[2 * GANG];

static void open_gang(struct pair *p)
{
	for (unsigned i = 0; i < 2; i++) {
		how[i] = FLUE_ATTR(struct flue_switch_attr);
		how[i].timeout_ms = 60000;
		how[i].flags = i ? FLUE_SWITCH_RESPONDER : 0;
	}
	for (unsigned i = 0; i < 2 * GANG; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
		struct flue_adapter *a = i % 2 ? p->b.adapter : p->a.adapter;
		static int fd[2];

		if (i % 2 == 0)
			conf_streams(fd);
		assert_ok(member[i] = flue_socket_open(a, fd[i % 2], NULL));
		assert_ok(member[i]->ops->reserve(member[i], &r));
		gang[i] = (struct flue_gang) { .socket = member[i],
					       .attr = &how[i % 2],
					       .switch_id = 1,
					       .data = p->a.mem + 100 * i,
					       .length = 100,
					       .recv_id = 2,
					       .error = -1 };
	}
}

/* Each tells the other end who it is. */
static void use_gang(struct pair *p)
{
	for (unsigned i = 0; i < 2 * GANG; i++) {
		sock[0] = member[i];
		expect(0, FLUE_SOCKET_SWITCHED, 0);
		p->b.mem[i] = (uint8_t)i;
		assert_ok(member[i]->ops->rdma_send(member[i], &p->b.mem[i], 1, 0, 0, 3));
	}
	for (unsigned i = 0; i < 2 * GANG; i++) {
		for (unsigned left = 2; left; left--) {
			struct flue_socket_event ev;

			assert_ok(flue_socket_get_event(member[i], &ev, 60000));
			assert_int_equal(ev.error, 0);
			assert_int_equal(ev.length, 1);
		}
		assert_int_equal(p->a.mem[100 * i], i ^ 1);
	}
	for (unsigned i = 0; i < 2 * GANG; i++)
		assert_ok(member[i]->ops->destroy(member[i]));
}

/* Both ends of eight connections: one call of the provider for each adapter. */
static void gang_is_adopted_as_a_whole(void **state)
{
	bool counts = !strcmp(pair_provider, "faulty");

	for (unsigned turn = 0; turn < (counts ? 2 : 1); turn++) {
		unsigned gangs = faulty_calls(FAULTY_adopt_gang);
		unsigned streams = faulty_calls(FAULTY_adopt_stream);

		/* A gang that is refused has not been touched, and is taken one by one. */
		if (turn)
			faulty_fail(FAULTY_adopt_gang, 0, ENOMEM);
		open_gang(*state);
		assert_int_equal(flue_socket_switch_gang(gang, 2 * GANG), 2 * GANG);
		use_gang(*state);
		if (!counts)
			continue;
		assert_int_equal(faulty_calls(FAULTY_adopt_gang) - gangs, 2);
		assert_int_equal(faulty_calls(FAULTY_adopt_stream) - streams, turn ? 2 * GANG : 0);
	}
	faulty_reset();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_IDLE_PAIR(query_counts_what_is_not_done), /* CH-26, CH-27 */
		WITH_IDLE_PAIR(
			ended_offloads_leave_their_queue_pairs_for_others), /* CH-26, CH-27 */
		WITH_IDLE_PAIR(gang_is_adopted_as_a_whole),                 /* CH-15 */
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
