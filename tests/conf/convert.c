/* SPDX-License-Identifier: MIT */
/* Live TCP streams become connections (CH-7 to CH-14): the provider's slots and what uses them. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "conf/conf.h"

#define CRC_OFF 0x00
#define REJECT  0x20

static int fd[2]; /* for a, for b */

static void make_streams(void)
{
	conf_streams(fd);
}

static struct flue_switch_attr attr_with(uint32_t flags)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.flags = flags;
	attr.timeout_ms = 10000;
	return attr;
}

struct conversion {
	struct flue_qp *qp;
	int fd;
	struct flue_switch_attr attr;
	bool ok;
	int error;
};

static void *convert_main(void *arg)
{
	struct conversion *c = arg;

	c->ok = flue_socket_convert(c->qp, c->fd, &c->attr);
	c->error = errno;
	return NULL;
}

/* Both sides at once; a is the initiator. */
static void convert_both(struct pair *p, struct conversion *a, struct conversion *b)
{
	pthread_t thread;

	make_streams();
	a->qp = p->a.qp;
	a->fd = fd[0];
	b->qp = p->b.qp;
	b->fd = fd[1];
	b->attr.flags |= FLUE_SWITCH_RESPONDER;
	assert_int_equal(pthread_create(&thread, NULL, convert_main, b), 0);
	convert_main(a);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void convert_ok(struct pair *p, uint32_t flags, uint32_t conn_flags)
{
	struct conversion a = { .attr = attr_with(flags) }, b = a;

	a.attr.conn_flags = b.attr.conn_flags = conn_flags;
	convert_both(p, &a, &b);
	if (!a.ok || !b.ok)
		fail_msg("%s, %s", strerror(a.error), strerror(b.error));
}

static void assert_talks(struct pair *p)
{
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_send(&p->a, 0, 100, 2, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 2, FLUE_WC_SUCCESS));
	assert_ok(pair_recv(&p->a, 0, 100, 3));
	assert_ok(pair_send(&p->b, 0, 100, 4, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.send_cq, 4, FLUE_WC_SUCCESS));
}

static void assert_ends(struct pair *p)
{
	assert_ok(flue_disconnect(p->a.qp));
	conf_expect_end(p, FLUE_CLOSE_GRACEFUL, FLUE_CLOSE_GRACEFUL);
	conf_expect_quiet(p);
	assert_int_equal(fcntl(fd[0], F_GETFD), -1);
}

/* ---- both sides are ours ---- */

static void streams_become_connections_again_and_again(void **state)
{
	static const uint32_t flags[] = { 0,
					  FLUE_CONN_NO_CRC,
					  FLUE_CONN_MARKERS,
					  FLUE_CONN_REV1,
					  FLUE_CONN_TWO_WAY,
					  FLUE_CONN_RTR_SEND };
	struct pair *p = *state;

	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		convert_ok(p, 0, flags[i]);
		assert_talks(p);
		assert_ends(p);
	}
}

static void streams_become_connections_without_frames(void **state)
{
	static const uint32_t flags[] = { 0, FLUE_CONN_NO_CRC, FLUE_CONN_MARKERS };
	struct pair *p = *state;

	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		convert_ok(p, FLUE_SWITCH_NO_REQ_REP, flags[i]);
		assert_talks(p);
		assert_ends(p);
	}
}

static void private_data_passes_both_ways(void **state)
{
	struct conversion a = { .attr = attr_with(0) }, b = a;
	struct pair *p = *state;
	uint8_t data[2][508];

	pair_fill(data[0], 508, 1);
	pair_fill(data[1], 508, 2);
	a.attr.private_data = data[0];
	b.attr.private_data = data[1];
	a.attr.private_len = b.attr.private_len = 508;
	a.attr.ird = 4;
	a.attr.ord = 3;
	b.attr.ird = 5;
	b.attr.ord = 2;
	convert_both(p, &a, &b);
	assert_true(a.ok && b.ok);
	assert_int_equal(p->a.qp->private_len, 508);
	assert_int_equal(p->b.qp->private_len, 508);
	assert_int_equal(pair_check(p->a.qp->private_data, 508, 2), 508);
	assert_int_equal(pair_check(p->b.qp->private_data, 508, 1), 508);
	/* As in any negotiation: no more Reads than the other side takes. */
	assert_true(p->a.qp->ord <= p->b.qp->ird);
	assert_true(p->b.qp->ord <= p->a.qp->ird);
	assert_talks(p);
	assert_ends(p);
}

static void conversion_of_a_connected_queue_pair_is_refused(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;
	int old[2];

	convert_ok(p, 0, 0);
	old[0] = fd[0];
	make_streams();
	assert_fails(flue_socket_convert(p->a.qp, fd[0], &attr), EISCONN);
	assert_int_equal(write(fd[0], "x", 1), 1);
	close(fd[0]);
	close(fd[1]);
	fd[0] = old[0];
	assert_talks(p);
}

/* CH-24 */
static void converted_connection_can_end_with_a_terminate(void **state)
{
	struct pair *p = *state;

	convert_ok(p, 0, 0);
	assert_talks(p);
	assert_ok(p->b.qp->ops->terminate(p->b.qp));
	conf_expect_end(p, FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT);
	assert_fails(p->a.qp->ops->terminate(p->a.qp), ENOTCONN);
	conf_expect_quiet(p);
}

/* ---- a peer by hand: revision 1, no CRC ---- */

/* A frame and behind it a Send of four octets. */
static size_t frame_and_send(uint8_t *to, bool reply, uint8_t flags)
{
	static const uint8_t fpdu[] = { 0, 22, 0x41, 0x43, 0, 0, 0,   0,   0,   0,   0, 0, 0, 0,
					0, 1,  0,    0,    0, 0, 'd', 'a', 't', 'a', 0, 0, 0, 0 };

	memcpy(to, reply ? "MPA ID Rep Frame" : "MPA ID Req Frame", 16);
	to[16] = flags;
	to[17] = 1;
	to[18] = to[19] = 0;
	memcpy(to + 20, fpdu, sizeof(fpdu));
	return 20 + sizeof(fpdu);
}

static void expect_data(struct pair_side *side)
{
	struct flue_wc wc;

	assert_int_equal(pair_take(side->recv_cq, &wc, 1, 5000), 1);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
	assert_int_equal(wc.byte_len, 4);
	assert_memory_equal(side->mem, "data", 4);
}

/* Ours is over; the queue pair is Idle again. */
static void drop_hand_made(struct pair_side *side, int peer)
{
	shutdown(peer, SHUT_WR);
	assert_true(pair_event(side, FLUE_EVENT_DISCONNECTED, side->qp, NULL, 5000));
	assert_true(pair_wait_state(side->qp, FLUE_QP_IDLE, 5000));
	close(peer);
}

/* CH-12: whatever part of it the program had read already, no octet is lost. */
static void responder_loses_no_octet_that_was_read_before(void **state)
{
	struct flue_switch_attr attr = attr_with(FLUE_SWITCH_RESPONDER);
	struct pair *p = *state;
	uint8_t all[64], got[64];
	size_t n = frame_and_send(all, false, CRC_OFF);

	attr.conn_flags = FLUE_CONN_NO_CRC;
	for (size_t cut = 0; cut <= n; cut++) {
		make_streams();
		assert_ok(pair_recv(&p->b, 0, 100, 1));
		memset(p->b.mem, 0, 4);
		assert_int_equal(write(fd[0], all, n), n);
		if (cut)
			assert_int_equal(recv(fd[1], got, cut, MSG_WAITALL), cut);
		attr.early = got;
		attr.early_len = cut;
		assert_ok(flue_socket_convert(p->b.qp, fd[1], &attr));
		expect_data(&p->b);
		assert_int_equal(recv(fd[0], got, 20, MSG_WAITALL), 20);
		assert_memory_equal(got, "MPA ID Rep Frame", 16);
		drop_hand_made(&p->b, fd[0]);
	}
	conf_expect_quiet(p);
}

/* A peer in a hurry may even have answered before it was asked. */
static void initiator_loses_no_octet_that_was_read_before(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;
	uint8_t all[64], got[64];
	size_t n = frame_and_send(all, true, CRC_OFF);

	attr.conn_flags = FLUE_CONN_NO_CRC | FLUE_CONN_REV1;
	for (size_t cut = 0; cut <= n; cut++) {
		make_streams();
		assert_ok(pair_recv(&p->a, 0, 100, 1));
		memset(p->a.mem, 0, 4);
		assert_int_equal(write(fd[1], all, n), n);
		if (cut)
			assert_int_equal(recv(fd[0], got, cut, MSG_WAITALL), cut);
		attr.early = got;
		attr.early_len = cut;
		assert_ok(flue_socket_convert(p->a.qp, fd[0], &attr));
		expect_data(&p->a);
		assert_int_equal(recv(fd[1], got, 20, MSG_WAITALL), 20);
		assert_memory_equal(got, "MPA ID Req Frame", 16);
		drop_hand_made(&p->a, fd[1]);
	}
	conf_expect_quiet(p);
}

static void stream_without_frames_loses_no_octet_either(void **state)
{
	struct flue_switch_attr attr = attr_with(FLUE_SWITCH_RESPONDER | FLUE_SWITCH_NO_REQ_REP);
	struct pair *p = *state;
	uint8_t all[64], got[64], *fpdu = all + 20;
	size_t n = frame_and_send(all, false, CRC_OFF) - 20;

	/* RDMAC: versions of DDP and RDMAP are 0. */
	fpdu[2] = 0x40;
	fpdu[3] = 0x03;
	attr.conn_flags = FLUE_CONN_NO_CRC;
	for (size_t cut = 0; cut <= n; cut++) {
		make_streams();
		assert_ok(pair_recv(&p->b, 0, 100, 1));
		memset(p->b.mem, 0, 4);
		assert_int_equal(write(fd[0], fpdu, n), n);
		if (cut)
			assert_int_equal(recv(fd[1], got, cut, MSG_WAITALL), cut);
		attr.early = got;
		attr.early_len = cut;
		assert_ok(flue_socket_convert(p->b.qp, fd[1], &attr));
		expect_data(&p->b);
		drop_hand_made(&p->b, fd[0]);
	}
	conf_expect_quiet(p);
}

/* As much early data as may be: messages for all receives that there are. */
static void early_octets_may_be_many(void **state)
{
	struct flue_switch_attr attr = attr_with(FLUE_SWITCH_RESPONDER);
	struct pair *p = *state;
	uint8_t all[64], *early = calloc(1, 20 + 28 * 60);
	size_t n = frame_and_send(all, false, CRC_OFF);
	struct flue_wc wc[60];

	memcpy(early, all, 20);
	for (unsigned i = 0; i < 60; i++) {
		assert_ok(pair_recv(&p->b, 100 * i, 100, i));
		memcpy(early + 20 + 28 * i, all + 20, n - 20);
		early[20 + 28 * i + 15] = (uint8_t)(i + 1); /* MSN */
		early[20 + 28 * i + 23] = (uint8_t)('a' + i % 26);
	}
	make_streams();
	attr.conn_flags = FLUE_CONN_NO_CRC;
	attr.early = early;
	attr.early_len = 20 + 28 * 60;
	assert_ok(flue_socket_convert(p->b.qp, fd[1], &attr));
	free(early);
	assert_int_equal(pair_take(p->b.recv_cq, wc, 60, 5000), 60);
	for (unsigned i = 0; i < 60; i++) {
		assert_int_equal(wc[i].id, i);
		assert_int_equal(wc[i].status, FLUE_WC_SUCCESS);
		assert_int_equal(p->b.mem[100 * i + 3], 'a' + i % 26);
	}
	drop_hand_made(&p->b, fd[0]);
	conf_expect_quiet(p);
}

/* ---- conversions that fail (CH-14) ---- */

/* The connection is over, the descriptor closed, and the queue pair is as new. */
static void expect_failure(struct pair *p, struct pair_side *side, int own,
			   const struct flue_switch_attr *attr, int error)
{
	assert_fails(flue_socket_convert(side->qp, own, attr), error);
	conf_expect_quiet(p);
	assert_true(pair_wait_state(side->qp, FLUE_QP_IDLE, 5000));
}

static void wrong_peer_is_noticed(void **state)
{
	static const char other[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;

	make_streams();
	assert_int_equal(write(fd[1], other, sizeof(other)), sizeof(other));
	expect_failure(p, &p->a, fd[0], &attr, EPROTO);
	close(fd[1]);
	make_streams();
	attr.flags = FLUE_SWITCH_RESPONDER;
	assert_int_equal(write(fd[0], other, sizeof(other)), sizeof(other));
	expect_failure(p, &p->b, fd[1], &attr, EPROTO);
	close(fd[0]);
	/* The same, read before. */
	make_streams();
	attr.early = other;
	attr.early_len = sizeof(other);
	expect_failure(p, &p->b, fd[1], &attr, EPROTO);
	close(fd[0]);
	convert_ok(p, 0, 0);
	assert_talks(p);
}

static void two_initiators_do_not_understand_each_other(void **state)
{
	struct conversion a = { .attr = attr_with(0) }, b = a;
	struct pair *p = *state;
	pthread_t thread;

	make_streams();
	a.attr.timeout_ms = b.attr.timeout_ms = 2000;
	a.qp = p->a.qp;
	a.fd = fd[0];
	b.qp = p->b.qp;
	b.fd = fd[1];
	assert_int_equal(pthread_create(&thread, NULL, convert_main, &b), 0);
	convert_main(&a);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(a.ok || b.ok);
	assert_true(a.error == EPROTO || a.error == ECONNRESET);
	assert_true(b.error == EPROTO || b.error == ECONNRESET);
	conf_expect_quiet(p);
}

/* CH-25 */
static void silent_peer_is_waited_for_so_long_and_no_longer(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;
	uint64_t begun;

	attr.timeout_ms = 150;
	for (unsigned i = 0; i < 2; i++) {
		attr.flags = i ? FLUE_SWITCH_RESPONDER : 0;
		make_streams();
		begun = pair_now_ms();
		expect_failure(p, &p->a, fd[0], &attr, ETIMEDOUT);
		assert_true(pair_now_ms() - begun >= 140);
		assert_true(pair_now_ms() - begun < 1100); /* the provider's timer, not ours */
		close(fd[1]);
	}
}

static void peer_that_closes_is_noticed(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;

	for (unsigned i = 0; i < 2; i++) {
		attr.flags = i ? FLUE_SWITCH_RESPONDER : 0;
		make_streams();
		assert_int_equal(shutdown(fd[1], SHUT_WR), 0);
		expect_failure(p, &p->a, fd[0], &attr, ECONNRESET);
		close(fd[1]);
	}
}

static void reject_of_the_peer_is_told(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;
	uint8_t frame[64];

	frame_and_send(frame, true, REJECT);
	make_streams();
	attr.conn_flags = FLUE_CONN_REV1;
	assert_int_equal(write(fd[1], frame, 20), 20);
	expect_failure(p, &p->a, fd[0], &attr, ECONNREFUSED);
	close(fd[1]);
}

/* A responder that knows revision 1 only rejects what it cannot answer. */
static void responder_rejects_a_request_that_it_does_not_know(void **state)
{
	struct conversion a = { .attr = attr_with(0) }, b = a;
	struct pair *p = *state;

	b.attr.conn_flags = FLUE_CONN_REV1;
	convert_both(p, &a, &b);
	assert_false(a.ok || b.ok);
	assert_true(a.error == ECONNREFUSED || a.error == EPROTO);
	assert_int_equal(b.error, EPROTONOSUPPORT);
	conf_expect_quiet(p);
	convert_ok(p, 0, 0);
	assert_talks(p);
}

static void conversion_can_be_aborted(void **state)
{
	struct conversion a = { .attr = attr_with(0) };
	struct pair *p = *state;
	pthread_t thread;

	make_streams();
	a.qp = p->a.qp;
	a.fd = fd[0];
	assert_int_equal(pthread_create(&thread, NULL, convert_main, &a), 0);
	usleep(20000);
	assert_ok(flue_abort(p->a.qp));
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(a.ok);
	assert_int_equal(a.error, ECONNABORTED);
	conf_expect_quiet(p);
	close(fd[1]);
}

/* ---- RDMA sockets over the provider ---- */

static struct flue_socket *sock[2];

static void expect(unsigned which, uint32_t type, uint64_t id, int error,
		   struct flue_socket_event *out)
{
	struct flue_socket *s = sock[which];
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 10000))
		fail_msg("side %u: no event %u: %s", which, type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	if (type != FLUE_SOCKET_ENDED)
		assert_int_equal(ev.id, id);
	if (out)
		*out = ev;
}

static void open_sockets(struct pair *p, uint32_t reads)
{
	struct flue_reserve_attr r;

	make_streams();
	for (unsigned i = 0; i < 2; i++) {
		assert_ok(sock[i] = flue_socket_open(i ? p->b.adapter : p->a.adapter, fd[i], NULL));
		r = FLUE_ATTR(struct flue_reserve_attr);
		r.ird = r.ord = reads;
		assert_ok(sock[i]->ops->reserve(sock[i], &r));
	}
}

static void switch_opened(struct pair *p, uint32_t flags)
{
	struct flue_switch_attr attr = attr_with(flags);

	for (unsigned i = 0; i < 2; i++) {
		attr.flags = flags | (i ? (uint32_t)FLUE_SWITCH_RESPONDER : 0);
		assert_ok(sock[i]->ops->switch_mode(sock[i], &attr, 1));
	}
	assert_ok(sock[0]->ops->rdma_recv(sock[0], p->a.mem, 4096, 2));
	assert_ok(sock[1]->ops->rdma_recv(sock[1], p->b.mem, 4096, 2));
	expect(0, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(1, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
}

static void switch_sockets(struct pair *p, uint32_t flags, uint32_t reads)
{
	open_sockets(p, reads);
	switch_opened(p, flags);
}

static void drop_sockets(void)
{
	assert_ok(sock[0]->ops->destroy(sock[0]));
	assert_ok(sock[1]->ops->destroy(sock[1]));
}

static void sockets_move_data_in_rdma_mode(void **state)
{
	struct pair *p = *state;
	struct flue_socket_event ev;
	struct flue_mr *mr;
	uint8_t *mine = p->a.mem + 65536, *theirs = p->b.mem + 65536;
	uint32_t access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ;

	for (unsigned raw = 0; raw < 2; raw++) {
		switch_sockets(p, raw ? FLUE_SWITCH_NO_REQ_REP : 0, 4);
		assert_ok(mr = sock[1]->ops->alloc_stag(sock[1]));
		assert_ok(sock[1]->ops->map(sock[1], mr, theirs, 10000, access));
		for (unsigned i = 0; i < 50; i++) {
			pair_fill(mine, 5000, i);
			assert_ok(sock[0]->ops->put(sock[0], mine, 5000, mr->remote_start, mr->rkey,
						    0, i));
			assert_ok(sock[0]->ops->get(sock[0], mine + 5000, 5000, mr->remote_start,
						    mr->rkey, FLUE_SOCKET_FENCE, i));
			expect(0, FLUE_SOCKET_PUT, i, 0, NULL);
			expect(0, FLUE_SOCKET_GOT, i, 0, &ev);
			assert_int_equal(ev.length, 5000);
			assert_int_equal(pair_check(mine + 5000, 5000, i), 5000);
		}
		assert_ok(sock[0]->ops->rdma_send(sock[0], mine, 3000, 0, 0, 7));
		expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, 0, &ev);
		assert_int_equal(ev.length, 3000);
		assert_int_equal(pair_check(p->b.mem, 3000, 49), 3000);
		expect(0, FLUE_SOCKET_RDMA_SENT, 7, 0, NULL);
		assert_ok(sock[1]->ops->free_stag(sock[1], mr));
		assert_ok(sock[1]->ops->disconnect(sock[1], 0));
		expect(0, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
		for (unsigned i = 0; i < 2; i++) {
			expect(i, FLUE_SOCKET_ENDED, 0, 0, &ev);
			assert_int_equal(ev.reason, FLUE_CLOSE_GRACEFUL);
		}
		drop_sockets();
	}
}

/* CH-8 */
static void reads_of_a_live_connection_can_be_changed(void **state)
{
	struct pair *p = *state;
	struct flue_socket_event ev;
	struct flue_mr *mr;
	unsigned busy = 0;

	switch_sockets(p, 0, 1);
	assert_int_equal(sock[0]->ord, 1);
	assert_ok(mr = sock[1]->ops->alloc_stag(sock[1]));
	assert_ok(sock[1]->ops->map(sock[1], mr, p->b.mem, 1 << 20, FLUE_REMOTE_READ));
	for (uint32_t reads = 8; reads; reads /= 2) {
		/* More at the responder first, less at the initiator first. */
		assert_ok(sock[1]->ops->read_resources(sock[1], 8, 1));
		assert_ok(sock[0]->ops->read_resources(sock[0], 1, reads));
		assert_int_equal(sock[0]->ord, reads);
		for (unsigned i = 0; i < 16; i++)
			assert_ok(sock[0]->ops->get(sock[0], p->a.mem + 60000 * i, 60000,
						    mr->remote_start, mr->rkey, 0, i));
		/* The whole change is refused, also of what those Reads do not need. */
		if (!sock[0]->ops->read_resources(sock[0], 2, reads)) {
			assert_int_equal(errno, EBUSY);
			assert_int_equal(sock[0]->ird, 1);
			busy++;
		}
		for (unsigned i = 0; i < 16; i++)
			expect(0, FLUE_SOCKET_GOT, i, 0, &ev);
	}
	assert_true(busy > 0);
	assert_fails(sock[0]->ops->read_resources(sock[0], UINT32_MAX, 1), EINVAL);
	assert_ok(sock[0]->ops->read_resources(sock[0], 0, 4));
	assert_ok(sock[1]->ops->read_resources(sock[1], 4, 0));
	assert_ok(sock[0]->ops->get(sock[0], p->a.mem, 100, mr->remote_start, mr->rkey, 0, 99));
	expect(0, FLUE_SOCKET_GOT, 99, 0, NULL);
	drop_sockets();
}

/* A control client's Read that has not left yet: a two-way responder waits for the first word. */
static void reads_are_not_changed_behind_one_that_is_posted(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;

	make_streams();
	assert_ok(sock[0] = flue_socket_open(p->a.adapter, fd[0], NULL));
	assert_ok(sock[1] = flue_socket_open(p->b.adapter, fd[1], NULL));
	assert_ok(sock[0]->ops->reserve(sock[0], &r));
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.qp = p->b.qp;
	assert_ok(sock[1]->ops->reserve(sock[1], &r));
	attr.conn_flags = FLUE_CONN_TWO_WAY;
	assert_ok(sock[0]->ops->switch_mode(sock[0], &attr, 1));
	attr.flags = FLUE_SWITCH_RESPONDER;
	assert_ok(sock[1]->ops->switch_mode(sock[1], &attr, 1));
	assert_ok(sock[0]->ops->rdma_recv(sock[0], p->a.mem, 8, 2));
	assert_ok(sock[1]->ops->rdma_recv(sock[1], NULL, 0, 2));
	expect(1, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_ok(pair_read(&p->b, 0, 0, &p->a, 0, 7, FLUE_SIGNALED));
	assert_fails(sock[1]->ops->read_resources(sock[1], 5, 4), EBUSY);
	expect(0, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	assert_ok(sock[0]->ops->put(sock[0], NULL, 0, 0, 1, 0, 3));
	assert_true(pair_expect(p->b.send_cq, 7, FLUE_WC_SUCCESS));
	assert_ok(sock[1]->ops->read_resources(sock[1], 5, 4));
	drop_sockets();
}

/* CH-7: 0 is a wish. Whoever has it is read by nobody, whatever the peer would like. */
static void sockets_that_wish_no_reads_have_none(void **state)
{
	struct pair *p = *state;
	struct flue_socket_event ev;
	struct flue_mr *mr;

	for (unsigned side = 0; side < 2; side++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

		open_sockets(p, 4);
		assert_ok(sock[side]->ops->read_resources(sock[side], 0, 0));
		assert_ok(sock[side]->ops->reserve(sock[side], &r));
		assert_ok(mr = sock[side]->ops->alloc_stag(sock[side]));
		assert_ok(sock[side]->ops->map(sock[side], mr, side ? p->b.mem : p->a.mem, 4096,
					       FLUE_REMOTE_READ));
		switch_opened(p, 0);
		assert_true(sock[side]->ird == 0 && sock[side]->ord == 0);
		assert_int_equal(sock[!side]->ord, 0);
		assert_ok(sock[!side]->ops->get(sock[!side], p->a.mem + 65536, 8, mr->remote_start,
						mr->rkey, 0, 9));
		expect(!side, FLUE_SOCKET_GOT, 9, EIO, &ev);
		drop_sockets();
	}
}

/* ---- rights (CH-7) ---- */

struct attempt {
	bool no_read, no_write; /* of the connection */
	bool get;               /* what its peer tries; else it puts */
	bool allowed;
};

static struct flue_socket *relative; /* of sock[1]: its keys are good for everything */
static int relative_fd[2];

static struct flue_mr *open_relative(struct pair *p)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
	uint32_t access = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ;
	struct flue_mr *mr;

	make_streams();
	memcpy(relative_fd, fd, sizeof(fd));
	assert_ok(relative = flue_socket_open(p->b.adapter, fd[1], NULL));
	assert_ok(relative->ops->reserve(relative, &r));
	assert_ok(mr = relative->ops->alloc_stag(relative));
	assert_ok(relative->ops->map(relative, mr, p->b.mem, 1 << 20, access));
	return mr;
}

static void open_with_rights(struct pair *p, const struct attempt *t)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	make_streams();
	assert_ok(sock[0] = flue_socket_open(p->a.adapter, fd[0], NULL));
	assert_ok(sock[0]->ops->reserve(sock[0], &r));
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.related = relative;
	r.no_read = t->no_read;
	r.no_write = t->no_write;
	assert_ok(sock[1] = flue_socket_open(p->b.adapter, fd[1], NULL));
	assert_ok(sock[1]->ops->reserve(sock[1], &r));
	switch_opened(p, 0);
}

static void expect_violation(struct flue_mr *mr, const struct attempt *t)
{
	struct flue_socket_event ev;

	if (!t->get)
		expect(0, FLUE_SOCKET_PUT, 9, 0, NULL); /* it left; what came of it is told below */
	else
		expect(0, FLUE_SOCKET_GOT, 9, EACCES, NULL);
	for (unsigned i = 0; i < 2; i++) {
		expect(i, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
		expect(i, FLUE_SOCKET_ENDED, 0, 0, &ev);
		assert_int_equal(ev.reason, i ? FLUE_CLOSE_FAULT : FLUE_CLOSE_TERMINATED);
		assert_int_equal(FLUE_FAULT_LAYER(ev.detail), 0);
		assert_int_equal(FLUE_FAULT_TYPE(ev.detail), 1); /* remote protection */
		assert_int_equal(FLUE_FAULT_CODE(ev.detail), 2); /* access violation */
	}
}

/* Small and staged, or large and placed straight from the socket. */
static void try_it(struct pair *p, struct flue_mr *mr, const struct attempt *t, uint32_t length)
{
	uint8_t *mine = p->a.mem + 65536, *theirs = p->b.mem + 65536;
	uint64_t to = mr->remote_start + 65536;

	open_with_rights(p, t);
	pair_fill(mine, length, 1);
	pair_fill(theirs, length, 2);
	if (t->get)
		assert_ok(sock[0]->ops->get(sock[0], mine, length, to, mr->rkey, 0, 9));
	else
		assert_ok(sock[0]->ops->put(sock[0], mine, length, to, mr->rkey, 0, 9));
	if (t->allowed) {
		expect(0, t->get ? FLUE_SOCKET_GOT : FLUE_SOCKET_PUT, 9, 0, NULL);
		/* Behind a message that was received everything before it was placed. */
		assert_ok(sock[0]->ops->rdma_send(sock[0], mine, 1, 0, 0, 10));
		expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, 0, NULL);
	} else {
		expect_violation(mr, t);
	}
	assert_int_equal(pair_check(mine, length, t->get && t->allowed ? 2 : 1), length);
	assert_int_equal(pair_check(theirs, length, !t->get && t->allowed ? 1 : 2), length);
	drop_sockets();
}

static void rights_of_a_socket_hold_for_every_key_of_its_domain(void **state)
{
	static const struct attempt attempts[] = {
		{ .no_read = true, .no_write = true, .get = true },
		{ .no_read = true, .no_write = true },
		{ .no_read = true, .get = true },
		{ .no_read = true, .allowed = true },
		{ .no_write = true, .get = true, .allowed = true },
		{ .no_write = true },
	};
	struct pair *p = *state;
	struct flue_mr *mr = open_relative(p);

	for (unsigned i = 0; i < sizeof(attempts) / sizeof(attempts[0]); i++) {
		try_it(p, mr, &attempts[i], 10);
		try_it(p, mr, &attempts[i], 100000);
	}
	assert_ok(relative->ops->destroy(relative));
	close(relative_fd[0]);
	close(relative_fd[1]);
}

static void sockets_end_when_one_is_destroyed(void **state)
{
	struct pair *p = *state;
	struct flue_socket_event ev;

	switch_sockets(p, 0, 4);
	assert_ok(sock[0]->ops->destroy(sock[0]));
	expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect(1, FLUE_SOCKET_ENDED, 0, 0, &ev);
	assert_int_equal(ev.reason, FLUE_CLOSE_RESET);
	assert_ok(sock[1]->ops->destroy(sock[1]));
}

/* Events that nobody took, requests under way: all go with their socket. */
static void sockets_can_be_destroyed_at_any_moment(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;

	for (unsigned step = 0; step < 7; step++) {
		open_sockets(p, 4);
		if (step >= 1)
			assert_ok(sock[0]->ops->recv(sock[0], p->a.mem, 10, 1));
		if (step >= 2)
			assert_ok(sock[0]->ops->switch_mode(sock[0], &attr, 1));
		if (step >= 3)
			assert_ok(sock[0]->ops->rdma_recv(sock[0], p->a.mem, 10, 2));
		attr.flags = FLUE_SWITCH_RESPONDER;
		if (step >= 4)
			assert_ok(sock[1]->ops->switch_mode(sock[1], &attr, 1));
		if (step >= 5)
			assert_ok(sock[1]->ops->rdma_recv(sock[1], p->b.mem, 10, 2));
		attr.flags = 0;
		if (step >= 6) {
			expect(0, FLUE_SOCKET_RECEIVED, 1, 0, NULL);
			expect(0, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
			assert_ok(sock[0]->ops->rdma_send(sock[0], p->a.mem, 5, 0, 0, 3));
			usleep(20000);
		}
		drop_sockets();
		if (step < 2)
			close(fd[0]);
		if (step < 4)
			close(fd[1]);
	}
}

static void *alloc_main(void *arg)
{
	for (unsigned i = 0; i < 20; i++) {
		struct flue_mr *mr = sock[0]->ops->alloc_stag(sock[0]);

		if (!mr || !sock[0]->ops->free_stag(sock[0], mr))
			return arg;
	}
	return NULL;
}

/* Allowed while a reservation is under way; there is one domain, or the adapter cannot close. */
static void keys_can_be_allocated_while_resources_are_reserved(void **state)
{
	struct pair *p = *state;
	pthread_t thread;
	void *bad;

	for (unsigned i = 0; i < 20; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

		make_streams();
		assert_ok(sock[0] = flue_socket_open(p->a.adapter, fd[0], NULL));
		r.sq_depth = r.rq_depth = 1;
		assert_int_equal(pthread_create(&thread, NULL, alloc_main, p), 0);
		assert_ok(sock[0]->ops->reserve(sock[0], &r));
		assert_int_equal(pthread_join(thread, &bad), 0);
		assert_null(bad);
		assert_ptr_equal(sock[0]->qp->pd, sock[0]->pd);
		assert_ok(sock[0]->ops->destroy(sock[0]));
		close(fd[0]);
		close(fd[1]);
	}
}

/* ---- plans of the double ---- */

static bool is_faulty(void)
{
	return !strcmp(pair_provider, "faulty");
}

static void refused_adoption_tears_the_socket_down(void **state)
{
	struct flue_switch_attr attr = attr_with(0);
	struct pair *p = *state;
	struct flue_socket_event ev;

	if (!is_faulty())
		skip();
	open_sockets(p, 4);
	faulty_fail(FAULTY_adopt_stream, 1, ENOMEM);
	assert_ok(sock[0]->ops->switch_mode(sock[0], &attr, 1));
	assert_ok(sock[0]->ops->rdma_recv(sock[0], p->a.mem, 10, 2));
	expect(0, FLUE_SOCKET_SWITCHED, 1, ENOMEM, NULL);
	expect(0, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
	expect(0, FLUE_SOCKET_ENDED, 0, 0, &ev);
	assert_int_equal(ev.reason, FLUE_CLOSE_LOST);
	drop_sockets();
	close(fd[1]);
}

static void news_that_come_twice_are_told_once(void **state)
{
	struct pair *p = *state;
	struct flue_socket_event ev;

	if (!is_faulty())
		skip();
	faulty_upcall(FLUE_EVENT_CONNECTED, FAULTY_TWICE, 0);
	faulty_upcall(FLUE_EVENT_DISCONNECTED, FAULTY_TWICE, 0);
	switch_sockets(p, 0, 4);
	assert_ok(sock[0]->ops->disconnect(sock[0], 0));
	for (unsigned i = 0; i < 2; i++) {
		expect(i, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
		expect(i, FLUE_SOCKET_ENDED, 0, 0, NULL);
		assert_fails(flue_socket_get_event(sock[i], &ev, 50), ETIMEDOUT);
	}
	drop_sockets();
	faulty_upcall(FLUE_EVENT_CONNECTED, FAULTY_PASS, 0);
	faulty_upcall(FLUE_EVENT_DISCONNECTED, FAULTY_PASS, 0);
}

/* CH-13: even when the word of the switch is late. */
static void switched_comes_first_when_its_news_are_late(void **state)
{
	struct flue_switch_attr attr = attr_with(FLUE_SWITCH_NO_REQ_REP);
	struct pair *p = *state;

	if (!is_faulty())
		skip();
	open_sockets(p, 4);
	assert_ok(sock[0]->ops->switch_mode(sock[0], &attr, 1));
	attr.flags |= FLUE_SWITCH_RESPONDER;
	assert_ok(sock[1]->ops->switch_mode(sock[1], &attr, 1));
	assert_ok(sock[0]->ops->rdma_recv(sock[0], p->a.mem, 10, 2));
	expect(0, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	faulty_upcall(FLUE_EVENT_CONNECTED, FAULTY_LATE, 100);
	assert_ok(sock[1]->ops->rdma_recv(sock[1], p->b.mem, 10, 2));
	assert_ok(sock[0]->ops->rdma_send(sock[0], "hello", 5, 0, 0, 3));
	expect(0, FLUE_SOCKET_RDMA_SENT, 3, 0, NULL);
	expect(1, FLUE_SOCKET_SWITCHED, 1, 0, NULL);
	expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, 0, NULL);
	drop_sockets();
	faulty_upcall(FLUE_EVENT_CONNECTED, FAULTY_PASS, 0);
}

/* CH-25 */
static void socket_of_a_device_that_never_flushes_ends(void **state)
{
	struct pair *p = *state;
	uint64_t begun;

	if (!is_faulty())
		skip();
	switch_sockets(p, 0, 4);
	faulty_never_flush(true);
	begun = pair_now_ms();
	assert_ok(sock[0]->ops->disconnect(sock[0], 0));
	for (unsigned i = 0; i < 2; i++) {
		expect(i, FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, NULL);
		expect(i, FLUE_SOCKET_ENDED, 0, 0, NULL);
	}
	assert_true(pair_now_ms() - begun < 6000);
	drop_sockets();
	faulty_never_flush(false);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_IDLE_PAIR(streams_become_connections_again_and_again), /* RD-9, CH-13 */
		WITH_IDLE_PAIR(streams_become_connections_without_frames),  /* RD-9 */
		WITH_IDLE_PAIR(private_data_passes_both_ways),              /* RD-9 */
		WITH_IDLE_PAIR(conversion_of_a_connected_queue_pair_is_refused),
		WITH_IDLE_PAIR(converted_connection_can_end_with_a_terminate),   /* CH-24 */
		WITH_IDLE_PAIR(responder_loses_no_octet_that_was_read_before),   /* CH-12 */
		WITH_IDLE_PAIR(initiator_loses_no_octet_that_was_read_before),   /* CH-12 */
		WITH_IDLE_PAIR(stream_without_frames_loses_no_octet_either),     /* CH-12 */
		WITH_IDLE_PAIR(early_octets_may_be_many),                        /* CH-12 */
		WITH_IDLE_PAIR(wrong_peer_is_noticed),                           /* CH-14 */
		WITH_IDLE_PAIR(two_initiators_do_not_understand_each_other),     /* CH-14 */
		WITH_IDLE_PAIR(silent_peer_is_waited_for_so_long_and_no_longer), /* CH-25 */
		WITH_IDLE_PAIR(peer_that_closes_is_noticed),                     /* CH-14 */
		WITH_IDLE_PAIR(reject_of_the_peer_is_told),
		WITH_IDLE_PAIR(responder_rejects_a_request_that_it_does_not_know),
		WITH_IDLE_PAIR(conversion_can_be_aborted),
		WITH_IDLE_PAIR(sockets_move_data_in_rdma_mode),                  /* CH-16, CH-28 */
		WITH_IDLE_PAIR(reads_of_a_live_connection_can_be_changed),       /* CH-8 */
		WITH_IDLE_PAIR(reads_are_not_changed_behind_one_that_is_posted), /* CH-8 */
		WITH_IDLE_PAIR(sockets_that_wish_no_reads_have_none),            /* CH-7, CH-8 */
		WITH_IDLE_PAIR(rights_of_a_socket_hold_for_every_key_of_its_domain), /* CH-7 */
		WITH_IDLE_PAIR(sockets_end_when_one_is_destroyed),
		WITH_IDLE_PAIR(sockets_can_be_destroyed_at_any_moment),
		WITH_IDLE_PAIR(keys_can_be_allocated_while_resources_are_reserved), /* CH-9 */
		WITH_IDLE_PAIR(refused_adoption_tears_the_socket_down),             /* CH-14 */
		WITH_IDLE_PAIR(news_that_come_twice_are_told_once),                 /* CH-18 */
		WITH_IDLE_PAIR(switched_comes_first_when_its_news_are_late),        /* CH-13 */
		WITH_IDLE_PAIR(socket_of_a_device_that_never_flushes_ends),         /* CH-25 */
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
