/* SPDX-License-Identifier: MIT */
/* Conformance: datagram queue pairs (RD-3, OS-25). */
#include "conf/conf.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define GRH  40
#define MAX  4096
#define QKEY 0x1234u

struct sides {
	struct pair_side a, b;
	struct flue_ah *ah; /* of a, to b */
};

static struct sides s;

static struct flue_qp *new_qp(struct pair_side *side)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = side->send_cq;
	attr.recv_cq = side->recv_cq;
	attr.srq = side->srq;
	attr.sq_depth = attr.rq_depth = 64;
	attr.sq_sge = attr.rq_sge = 3;
	attr.max_inline = 64;
	attr.type = FLUE_QP_UD;
	return side->pd->ops->create_qp(side->pd, &attr);
}

static bool to_init(struct flue_qp *qp, uint32_t qkey)
{
	struct flue_qp_values v = { sizeof(v), .state = FLUE_QP_INIT, .port = 1, .qkey = qkey };

	return qp->ops->modify(qp, &v,
			       FLUE_QPV_STATE | FLUE_QPV_PORT | FLUE_QPV_PKEY | FLUE_QPV_QKEY);
}

static bool to_state(struct flue_qp *qp, uint32_t state)
{
	struct flue_qp_values v = { sizeof(v), .state = state };

	return qp->ops->modify(qp, &v,
			       FLUE_QPV_STATE | (state == FLUE_QP_RTS ? FLUE_QPV_SQ_PSN : 0));
}

static void bring_up(struct flue_qp *qp)
{
	assert_ok(to_init(qp, QKEY));
	assert_ok(to_state(qp, FLUE_QP_RTR));
	assert_ok(to_state(qp, FLUE_QP_RTS));
}

static struct flue_ah *new_ah(struct pair_side *side, const char *address)
{
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6 };
	struct sockaddr_in in = { .sin_family = AF_INET };
	struct sockaddr_in from = { .sin_family = AF_INET };

	if (inet_pton(AF_INET, address, &in.sin_addr) == 1) {
		attr.remote = (const struct sockaddr *)&in;
		attr.remote_len = sizeof(in);
		if (IN_MULTICAST(ntohl(in.sin_addr.s_addr))) {
			from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
			attr.local = (const struct sockaddr *)&from;
			attr.local_len = sizeof(from);
		}
	} else {
		assert_int_equal(inet_pton(AF_INET6, address, &in6.sin6_addr), 1);
		attr.remote = (const struct sockaddr *)&in6;
		attr.remote_len = sizeof(in6);
	}
	return side->pd->ops->create_ah(side->pd, &attr);
}

static void open_side(struct pair_side *side)
{
	struct pair_options o = PAIR_DEFAULTS;

	assert_ok(pair_side_open(side, &o, 0));
	side->mem = calloc(1, 1 << 16);
	assert_non_null(side->mem);
	side->mr = flue_register(side->pd, side->mem, 1 << 16, FLUE_LOCAL_WRITE);
	assert_non_null(side->mr);
	side->qp = new_qp(side);
	assert_non_null(side->qp);
}

static int open_sides(void **state)
{
	memset(&s, 0, sizeof(s));
	open_side(&s.a);
	open_side(&s.b);
	s.ah = new_ah(&s.a, "127.0.0.1");
	assert_non_null(s.ah);
	bring_up(s.a.qp);
	bring_up(s.b.qp);
	return 0;
}

static void close_side(struct pair_side *side)
{
	if (side->qp)
		assert_ok(flue_destroy_qp(side->qp));
	assert_ok(side->mr->ops->deregister(side->mr));
	side->qp = NULL;
	side->mr = NULL;
	free(side->mem);
	side->mem = NULL;
	assert_ok(pair_side_close(side));
}

static int close_sides(void **state)
{
	assert_ok(s.ah->ops->destroy(s.ah));
	close_side(&s.a);
	close_side(&s.b);
	faulty_reset();
	return 0;
}

static struct flue_send_wr request(struct flue_sge *sge, uint32_t length, uint64_t id)
{
	*sge = flue_mr_sge(s.a.mr, 0, length);
	return (struct flue_send_wr) { .id = id,
				       .op = FLUE_WR_SEND,
				       .flags = FLUE_SIGNALED,
				       .sg = sge,
				       .n_sg = 1,
				       .to = { s.ah, s.b.qp->number, QKEY } };
}

static bool send_to(uint32_t length, uint64_t id, uint32_t qpn, uint32_t qkey)
{
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, length, id);

	wr.to.remote_qpn = qpn;
	wr.to.qkey = qkey;
	return flue_post_send(s.a.qp, &wr);
}

static bool send_n(uint32_t length, uint64_t id)
{
	return send_to(length, id, s.b.qp->number, QKEY);
}

static struct flue_wc take(struct flue_cq *cq, uint64_t id)
{
	struct flue_wc wc = { 0 };

	assert_int_equal(pair_take(cq, &wc, 1, 5000), 1);
	assert_int_equal(wc.status, FLUE_WC_SUCCESS);
	assert_int_equal(wc.id, id);
	return wc;
}

static bool nothing_comes(struct flue_cq *cq)
{
	struct flue_wc wc;

	return pair_take(cq, &wc, 1, 50) == 0;
}

static uint64_t dropped(struct flue_qp *qp, enum flue_drop why)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_ok(qp->ops->query(qp, &v, FLUE_QPV_DROPS));
	return v.drops[why];
}

static uint64_t wait_dropped(struct flue_qp *qp, enum flue_drop why, uint64_t n)
{
	for (int i = 0; i < 2000 && dropped(qp, why) < n; i++)
		usleep(1000);
	return dropped(qp, why);
}

/* ---- data ---- */

static void message_comes_with_its_sender(void **state)
{
	struct flue_wc wc;

	pair_fill(s.a.mem, MAX, 1);
	for (uint32_t n = 0; n <= MAX; n = n ? n * 4 : 1) {
		assert_ok(pair_recv(&s.b, 0, GRH + MAX, n));
		assert_ok(send_n(n, 100 + n));
		take(s.a.send_cq, 100 + n);
		wc = take(s.b.recv_cq, n);
		assert_int_equal(wc.byte_len, GRH + n);
		assert_int_equal(wc.src_qpn, s.a.qp->number);
		assert_int_equal(wc.flags, FLUE_WC_GRH);
		assert_ptr_equal(wc.qp, s.b.qp);
		assert_int_equal(pair_check(s.b.mem + GRH, n, 1), n);
	}
}

/* As RoCE v2 has it: a program makes an address handle of it. */
static void header_in_front_names_both_hosts(void **state)
{
	uint32_t sum = 0, address;
	const uint8_t *h = s.b.mem + 20;

	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	assert_ok(send_n(5, 2));
	take(s.b.recv_cq, 1);
	assert_int_equal(h[0], 0x45);
	assert_int_equal(h[9], IPPROTO_UDP);
	assert_int_equal(h[2] << 8 | h[3], 20 + 8 + 24 + 5);
	memcpy(&address, h + 12, 4);
	assert_int_equal(address, htonl(INADDR_LOOPBACK));
	memcpy(&address, h + 16, 4);
	assert_int_equal(address, htonl(INADDR_LOOPBACK));
	for (int i = 0; i < 20; i += 2)
		sum += (uint32_t)(h[i] << 8 | h[i + 1]);
	assert_int_equal((sum & 0xffff) + (sum >> 16), 0xffff);
}

static void answer_goes_back(void **state)
{
	struct flue_ah *back;
	struct in_addr in;
	char text[INET_ADDRSTRLEN];
	struct flue_wc wc;
	struct flue_sge sge = flue_mr_sge(s.b.mr, 0, 8);
	struct flue_send_wr wr = { .id = 3, .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };

	assert_ok(pair_recv(&s.a, 100, GRH + 8, 4));
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	assert_ok(send_n(5, 2));
	wc = take(s.b.recv_cq, 1);
	memcpy(&in, s.b.mem + 20 + 12, sizeof(in));
	back = new_ah(&s.b, inet_ntop(AF_INET, &in, text, sizeof(text)));
	assert_non_null(back);
	wr.to = (struct flue_datagram) { back, wc.src_qpn, QKEY };
	assert_ok(flue_post_send(s.b.qp, &wr));
	wc = take(s.a.recv_cq, 4);
	assert_int_equal(wc.src_qpn, s.b.qp->number);
	assert_ok(back->ops->destroy(back));
}

static void ipv6(void **state)
{
	struct flue_ah *ah = new_ah(&s.a, "::1");
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 100, 2);

	assert_non_null(ah);
	wr.to.ah = ah;
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.b.recv_cq, 1);
	assert_int_equal(s.b.mem[0] >> 4, 6);
	assert_int_equal(s.b.mem[6], IPPROTO_UDP);
	assert_memory_equal(s.b.mem + 8, &in6addr_loopback, 16);
	assert_memory_equal(s.b.mem + 24, &in6addr_loopback, 16);
	take(s.a.send_cq, 2);
	assert_ok(ah->ops->destroy(ah));
}

static void immediate_data_and_lists(void **state)
{
	struct flue_sge out[3] = { flue_mr_sge(s.a.mr, 0, 10), flue_mr_sge(s.a.mr, 10, 0),
				   flue_mr_sge(s.a.mr, 10, 90) };
	struct flue_sge in[3] = { flue_mr_sge(s.b.mr, 0, 30), flue_mr_sge(s.b.mr, 30, 20),
				  flue_mr_sge(s.b.mr, 50, 200) };
	struct flue_send_wr wr = { .id = 2,
				   .op = FLUE_WR_SEND_IMM,
				   .flags = FLUE_SIGNALED | FLUE_SOLICITED,
				   .sg = out,
				   .n_sg = 3,
				   .to = { s.ah, s.b.qp->number, QKEY },
				   .imm = htonl(77) };
	struct flue_recv_wr rw = { .id = 1, .sg = in, .n_sg = 3 };
	struct flue_wc wc;

	pair_fill(s.a.mem, 100, 5);
	assert_ok(flue_post_recv(s.b.qp, &rw));
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.a.send_cq, 2);
	wc = take(s.b.recv_cq, 1);
	assert_int_equal(wc.flags, FLUE_WC_GRH | FLUE_WC_IMM | FLUE_WC_SOLICITED);
	assert_int_equal(wc.imm, htonl(77));
	assert_int_equal(wc.byte_len, GRH + 100);
	assert_int_equal(pair_check(s.b.mem + GRH, 100, 5), 100);
}

static void inline_data(void **state)
{
	char text[] = "not registered";
	struct flue_sge sge = { (uintptr_t)text, sizeof(text), 0 };
	struct flue_send_wr wr = { .id = 2,
				   .op = FLUE_WR_SEND,
				   .flags = FLUE_INLINE,
				   .sg = &sge,
				   .n_sg = 1,
				   .to = { s.ah, s.b.qp->number, QKEY } };

	assert_ok(pair_recv(&s.b, 0, 200, 1));
	assert_ok(flue_post_send(s.a.qp, &wr));
	memset(text, 0, sizeof(text));
	take(s.b.recv_cq, 1);
	assert_string_equal((char *)s.b.mem + GRH, "not registered");
}

static void receives_of_a_shared_queue(void **state)
{
	struct flue_srq_attr attr = FLUE_ATTR(struct flue_srq_attr);
	struct pair_side x = s.b;

	attr.depth = 8;
	attr.max_sge = 1;
	x.srq = x.pd->ops->create_srq(x.pd, &attr);
	assert_non_null(x.srq);
	x.qp = new_qp(&x);
	assert_non_null(x.qp);
	bring_up(x.qp);
	for (uint64_t i = 0; i < 20; i++) {
		assert_ok(pair_recv(&x, 0, GRH + 10, i));
		assert_ok(send_to(10, i, x.qp->number, QKEY));
		take(x.recv_cq, i);
		take(s.a.send_cq, i);
	}
	assert_ok(flue_destroy_qp(x.qp));
	assert_ok(x.srq->ops->destroy(x.srq));
}

/* ---- dropped, and counted ---- */

static void what_finds_no_receive_is_dropped(void **state)
{
	for (int i = 0; i < 5; i++)
		assert_ok(send_n(10, 1));
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_NO_RECEIVE, 5), 5);
	for (int i = 0; i < 5; i++)
		take(s.a.send_cq, 1);
	/* And nothing else comes of it. */
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(send_n(10, 1));
	take(s.b.recv_cq, 1);
}

static void too_long_for_the_receive(void **state)
{
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(send_n(11, 1));
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_TOO_LONG, 1), 1);
	assert_ok(send_n(10, 2));
	take(s.b.recv_cq, 1);
}

static void wrong_qkey_or_number(void **state)
{
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(send_to(10, 1, s.b.qp->number, QKEY + 1));
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_QKEY, 1), 1);
	assert_ok(send_to(10, 2, s.b.qp->number ^ 1, QKEY));
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_NUMBER, 1), 1);
	assert_true(nothing_comes(s.b.recv_cq));
	assert_ok(send_n(10, 3));
	take(s.b.recv_cq, 1);
}

/* With the high bit set the sender's own Q_Key is sent. */
static void own_qkey(void **state)
{
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(send_to(10, 1, s.b.qp->number, 1u << 31 | 5));
	take(s.b.recv_cq, 1);
}

static void before_rtr_nothing_is_received(void **state)
{
	struct pair_side x = s.b;

	x.qp = new_qp(&x);
	assert_ok(to_init(x.qp, QKEY));
	assert_ok(pair_recv(&x, 0, GRH + 10, 1));
	assert_ok(send_to(10, 1, x.qp->number, QKEY));
	assert_int_equal(wait_dropped(x.qp, FLUE_DROP_STATE, 1), 1);
	assert_ok(to_state(x.qp, FLUE_QP_RTR));
	assert_ok(send_to(10, 1, x.qp->number, QKEY));
	take(x.recv_cq, 1);
	assert_ok(flue_destroy_qp(x.qp));
}

static void strangers_are_dropped(void **state)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)(s.b.qp->number >> 8)) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint8_t junk[6000] = { 'F', 'L', 'D', 'G', 2 };

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	for (int n = 0; n < 30; n++)
		assert_int_equal(sendto(fd, junk, (size_t)n, 0, (struct sockaddr *)&to, sizeof(to)),
				 n);
	junk[4] = 1;
	assert_int_equal(sendto(fd, junk, sizeof(junk), 0, (struct sockaddr *)&to, sizeof(to)),
			 sizeof(junk));
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_FORM, 31), 31);
	close(fd);
	assert_ok(send_n(10, 1));
	take(s.b.recv_cq, 1);
}

/* ---- requests and states ---- */

static void wrong_requests_are_refused(void **state)
{
	struct flue_sge sge;
	struct flue_send_wr good = request(&sge, 10, 1), wr = good;

	wr.op = FLUE_WR_WRITE;
	assert_fails(flue_post_send(s.a.qp, &wr), EINVAL);
	wr = good;
	wr.to.ah = NULL;
	assert_fails(flue_post_send(s.a.qp, &wr), EINVAL);
	wr = good;
	wr.to.remote_qpn = 1 << 24;
	assert_fails(flue_post_send(s.a.qp, &wr), EINVAL);
	sge.length = MAX + 1;
	assert_fails(flue_post_send(s.a.qp, &good), EINVAL);
}

static void bad_key_stops_sending_alone(void **state)
{
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 10, 1), next = request(&sge, 10, 2);

	next.sg = wr.sg = &sge;
	sge.lkey ^= 1;
	wr.next = &next;
	assert_ok(flue_post_send(s.a.qp, &wr));
	assert_true(pair_expect(s.a.send_cq, 1, FLUE_WC_LOCAL_PROTECTION));
	assert_true(pair_expect(s.a.send_cq, 2, FLUE_WC_FLUSHED));
	assert_int_equal(flue_qp_state(s.a.qp), FLUE_QP_SQE);
	assert_ok(to_state(s.a.qp, FLUE_QP_RTS));
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(send_n(10, 3));
	take(s.a.send_cq, 3);
	take(s.b.recv_cq, 1);
}

static void states_are_those_of_the_verbs(void **state)
{
	struct pair_side x = s.a;
	struct flue_qp_values v = { sizeof(v), .state = FLUE_QP_SQD, .tell_drained = true };

	x.qp = new_qp(&x);
	assert_int_equal(flue_qp_state(x.qp), FLUE_QP_RESET);
	assert_fails(pair_recv(&x, 0, 10, 1), ENOTCONN);
	assert_fails(to_state(x.qp, FLUE_QP_RTR), EINVAL);
	assert_ok(to_init(x.qp, 1));
	assert_ok(pair_recv(&x, 0, 10, 1));
	assert_ok(to_state(x.qp, FLUE_QP_RTR));
	assert_ok(to_state(x.qp, FLUE_QP_RTS));
	assert_ok(x.qp->ops->modify(x.qp, &v, FLUE_QPV_STATE | FLUE_QPV_TELL_DRAINED));
	assert_int_equal(flue_qp_state(x.qp), FLUE_QP_SQD);
	assert_true(pair_event(&x, FLUE_EVENT_SQ_DRAINED, x.qp, NULL, 2000));
	assert_ok(to_state(x.qp, FLUE_QP_RTS));
	assert_ok(to_state(x.qp, FLUE_QP_ERROR));
	assert_true(pair_expect(x.recv_cq, 1, FLUE_WC_FLUSHED));
	assert_ok(pair_recv(&x, 0, 10, 2));
	assert_true(pair_expect(x.recv_cq, 2, FLUE_WC_FLUSHED));
	assert_ok(to_state(x.qp, FLUE_QP_RESET));
	assert_ok(to_init(x.qp, 1));
	assert_ok(flue_destroy_qp(x.qp));
}

/* ---- groups ---- */

/* Of this process: others may run the same test. */
static const char *group_name(void)
{
	static char text[INET_ADDRSTRLEN];

	snprintf(text, sizeof(text), "239.7.%d.%d", getpid() >> 8 & 0xff, getpid() & 0xff);
	return text;
}

static bool join(struct flue_qp *qp, const char *address, bool leave)
{
	struct flue_ah_attr group = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_in in = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };

	inet_pton(AF_INET, address, &in.sin_addr);
	from.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	group.remote = (const struct sockaddr *)&in;
	group.local = (const struct sockaddr *)&from;
	group.remote_len = group.local_len = sizeof(in);
	return leave ? qp->ops->leave_group(qp, &group) : qp->ops->join_group(qp, &group);
}

static void members_of_a_group_all_get_it(void **state)
{
	struct flue_ah *group = new_ah(&s.a, group_name());
	struct pair_side x = s.b;
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 10, 9);

	assert_non_null(group);
	x.qp = new_qp(&x); /* another member of the same process */
	bring_up(x.qp);
	assert_ok(join(s.b.qp, group_name(), false));
	assert_fails(join(s.b.qp, group_name(), false), EADDRINUSE);
	assert_ok(join(x.qp, group_name(), false));
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 1));
	assert_ok(pair_recv(&x, 100, GRH + 10, 1));
	wr.to = (struct flue_datagram) { group, FLUE_GROUP_QPN, QKEY };
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.a.send_cq, 9);
	take(s.b.recv_cq, 1);
	take(s.b.recv_cq, 1);
	assert_ok(join(x.qp, group_name(), true));
	assert_fails(join(x.qp, group_name(), true), EADDRNOTAVAIL);
	assert_ok(pair_recv(&x, 0, GRH + 10, 5));
	assert_ok(pair_recv(&s.b, 0, GRH + 10, 6));
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.b.recv_cq, 6);
	assert_true(nothing_comes(s.b.recv_cq));
	assert_fails(join(s.b.qp, "127.0.0.1", false), EINVAL);
	wr.to.remote_qpn = s.b.qp->number;
	assert_fails(flue_post_send(s.a.qp, &wr), EINVAL);
	assert_ok(flue_destroy_qp(x.qp));
	assert_ok(group->ops->destroy(group));
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, open_sides, close_sides)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(message_comes_with_its_sender),
		TEST(header_in_front_names_both_hosts),
		TEST(answer_goes_back),
		TEST(ipv6),
		TEST(immediate_data_and_lists),
		TEST(inline_data),
		TEST(receives_of_a_shared_queue),
		TEST(what_finds_no_receive_is_dropped),
		TEST(too_long_for_the_receive),
		TEST(wrong_qkey_or_number),
		TEST(own_qkey),
		TEST(before_rtr_nothing_is_received),
		TEST(strangers_are_dropped),
		TEST(wrong_requests_are_refused),
		TEST(bad_key_stops_sending_alone),
		TEST(states_are_those_of_the_verbs),
		TEST(members_of_a_group_all_get_it),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
