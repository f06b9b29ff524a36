/* SPDX-License-Identifier: MIT */
/* Conformance: datagram queue pairs (RD-3, OS-25). */
#include "conf/conf.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "channel/door.h"
#include "channel/duct.h"
#include "rnic/ud_priv.h"

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

static struct flue_ah *new_ah_like(struct pair_side *side, const char *address,
				   struct flue_ah_attr attr)
{
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

static struct flue_ah *new_ah(struct pair_side *side, const char *address)
{
	return new_ah_like(side, address, (struct flue_ah_attr)FLUE_ATTR(struct flue_ah_attr));
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

/* How many went and came so far, by the road that this variant is about and by the other one. */
struct count {
	uint64_t sent, received, other_sent, other_received;
};

static struct count count(struct flue_qp *qp)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	assert_ok(qp->ops->query(qp, &v, FLUE_QPV_DATAGRAMS));
	if (pair_local)
		return (struct count) { v.local_sent, v.local_received, v.udp_sent,
					v.udp_received };
	return (struct count) { v.udp_sent, v.udp_received, v.local_sent, v.local_received };
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

static void way_is_counted(void **state)
{
	struct count a, b;

	for (uint64_t i = 0; i < 10; i++) {
		assert_ok(pair_recv(&s.b, 0, GRH + MAX, i));
		assert_ok(send_n(10, i));
		take(s.a.send_cq, i);
		take(s.b.recv_cq, i);
	}
	assert_ok(send_n(10, 1)); /* it finds no receive */
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_NO_RECEIVE, 1), 1);
	a = count(s.a.qp);
	b = count(s.b.qp);
	assert_int_equal(a.sent, 11);
	assert_int_equal(b.received, 10);
	assert_int_equal(a.received + b.sent, 0);
	assert_int_equal(a.other_sent + a.other_received + b.other_sent + b.other_received, 0);
}

/* One adapter may not use memory: both use UDP. */
static void who_may_not_stays_with_udp(void **state)
{
	struct flue_sge sge;
	struct flue_send_wr wr;
	struct pair_side plain = { 0 };
	bool local = pair_local;
	struct flue_ah *back;

	pair_local = false;
	open_side(&plain);
	pair_local = local;
	bring_up(plain.qp);
	assert_ok(pair_recv(&plain, 0, GRH + 10, 1));
	assert_ok(send_to(10, 2, plain.qp->number, QKEY));
	take(plain.recv_cq, 1);
	back = new_ah(&plain, "127.0.0.1");
	assert_ok(pair_recv(&s.a, 0, GRH + 10, 3));
	wr = request(&sge, 10, 4);
	sge = flue_mr_sge(plain.mr, 0, 10);
	wr.to = (struct flue_datagram) { back, s.a.qp->number, QKEY };
	assert_ok(flue_post_send(plain.qp, &wr));
	take(s.a.recv_cq, 3);
	if (pair_local)
		assert_int_equal(count(s.a.qp).other_sent + count(s.a.qp).other_received, 2);
	assert_ok(back->ops->destroy(back));
	close_side(&plain);
}

/* A queue pair that sends to itself, more than it has receives for. */
static void to_itself(void **state)
{
	for (uint64_t i = 0; i < 20; i++)
		assert_ok(pair_recv(&s.a, 1000, GRH + 10, i));
	for (uint64_t i = 0; i < 30; i++)
		assert_ok(send_to(10, i, s.a.qp->number, QKEY));
	for (uint64_t i = 0; i < 30; i++)
		take(s.a.send_cq, i);
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(take(s.a.recv_cq, i).src_qpn, s.a.qp->number);
	assert_int_equal(wait_dropped(s.a.qp, FLUE_DROP_NO_RECEIVE, 10), 10);
}

static void go_with(const char *address, struct flue_ah_attr attr)
{
	struct flue_ah *ah = new_ah_like(&s.a, address, attr);
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 10, 2);

	assert_non_null(ah);
	memset(s.b.mem, 0xa5, GRH);
	wr.to.ah = ah;
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.a.send_cq, 2);
	take(s.b.recv_cq, 1);
	assert_ok(ah->ops->destroy(ah));
}

static void hop_limit_and_traffic_class(void **state)
{
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	const uint8_t *h = s.b.mem;

	go_with("127.0.0.1", attr);
	assert_int_equal(h[20 + 1], 0);
	assert_int_equal(h[20 + 8], 64);
	go_with("::1", attr);
	assert_int_equal(h[0], 0x60);
	assert_int_equal(h[7], 64);
	attr.hop_limit = 9;
	attr.traffic_class = 0xb8;
	go_with("127.0.0.1", attr);
	assert_int_equal(h[20 + 1], 0xb8);
	assert_int_equal(h[20 + 8], 9);
	go_with("::1", attr);
	assert_int_equal(h[0], 0x6b);
	assert_int_equal(h[1], 0x80);
	assert_int_equal(h[7], 9);
}

/* Both roads tell of it as the kernel does: this host has more than one address. */
static void header_names_the_address_that_was_meant(void **state)
{
	static const uint8_t lo[4] = { 127, 0, 0, 1 }, meant[4] = { 127, 0, 0, 2 };
	struct flue_ah_attr attr = FLUE_ATTR(struct flue_ah_attr);
	struct sockaddr_in from = { .sin_family = AF_INET };

	go_with("127.0.0.2", attr);
	assert_memory_equal(s.b.mem + 20 + 12, lo, 4);
	assert_memory_equal(s.b.mem + 20 + 16, meant, 4);
	memcpy(&from.sin_addr, meant, 4);
	attr.local = (const struct sockaddr *)&from;
	attr.local_len = sizeof(from);
	go_with("127.0.0.1", attr);
	assert_memory_equal(s.b.mem + 20 + 12, meant, 4);
	assert_memory_equal(s.b.mem + 20 + 16, lo, 4);
}

/* More than any buffer of UDP has, and what finds a receive comes. */
static void burst_is_not_lost(void **state)
{
	enum { N = 20000, BATCH = 32 };
	struct flue_wc wc[BATCH];
	uint32_t sent = 0, done = 0, got = 0, posted = 0;

	if (!pair_local)
		skip(); /* life-datagrams shows that UDP loses */
	while (got < N) {
		for (; posted < N && posted - got < 64; posted++)
			assert_ok(pair_recv(&s.b, 0, GRH + 100, posted));
		for (; sent < posted && sent - done < 64; sent++)
			assert_ok(send_n(100, sent));
		done += pair_take(s.a.send_cq, wc, BATCH, 0);
		for (uint32_t n = pair_take(s.b.recv_cq, wc, BATCH, 0); n; n--)
			assert_int_equal(wc[0].status, FLUE_WC_SUCCESS), got++;
	}
	assert_int_equal(dropped(s.b.qp, FLUE_DROP_NO_RECEIVE), 0);
	assert_int_equal(count(s.b.qp).received, N);
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

static struct road_head road_head(void)
{
	return (struct road_head) {
		.kind = ROAD_SINGLE, .hops = 1, .from = { 127, 0, 0, 1 }, .to = { 127, 0, 0, 1 }
	};
}

static void put_record(struct duct *d, const struct road_head *h, const struct datagram *g,
		       size_t payload)
{
	uint8_t *at = duct_begin(d, sizeof(*h) + DATAGRAM_HEAD + payload);

	assert_non_null(at);
	memcpy(at, h, sizeof(*h));
	datagram_encode(g, at + sizeof(*h));
	memset(at + sizeof(*h) + DATAGRAM_HEAD, 7, payload);
	duct_post(d, sizeof(*h) + DATAGRAM_HEAD + payload);
	duct_flush(d);
}

static struct duct *call(struct flue_qp *qp)
{
	struct duct *d = NULL;
	pid_t pid;

	assert_int_equal(door_call((uint16_t)(qp->number >> 8), &pid, &d), 0);
	return d;
}

/* What no sender of ours sends. */
static void strangers_through_memory_are_dropped(void **state)
{
	struct datagram g = { .to = s.b.qp->number, .from = 0x1234ff, .qkey = QKEY };
	struct road_head h = road_head();
	struct duct *d;
	uint8_t *at;

	if (!pair_local)
		skip();
	d = call(s.b.qp);
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	put_record(d, &h, &g, MAX + 1); /* too long */
	at = duct_begin(d, sizeof(h) + DATAGRAM_HEAD);
	memcpy(at, &h, sizeof(h));
	datagram_encode(&g, at + sizeof(h));
	at[sizeof(h) + 4] = 2; /* another version */
	duct_post(d, sizeof(h) + DATAGRAM_HEAD);
	duct_post(d, 0); /* whatever stands there; and it is over: shorter than any */
	duct_flush(d);
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_FORM, 2), 2);
	duct_close(d);
	d = call(s.b.qp);
	at = duct_begin(d, sizeof(h)); /* no datagram at all */
	memcpy(at, &h, sizeof(h));
	duct_post(d, sizeof(h));
	duct_flush(d);
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_FORM, 3), 3);
	h.to[0] = 10; /* not an address of this host */
	put_record(d, &h, &g, 10);
	h = road_head();
	h.from[0] = 10;
	put_record(d, &h, &g, 10);
	h = road_head();
	g.to ^= 1;
	put_record(d, &h, &g, 10);
	g.to = DATAGRAM_ALL;
	put_record(d, &h, &g, 10);
	assert_int_equal(wait_dropped(s.b.qp, FLUE_DROP_NUMBER, 4), 4);
	g.to = s.b.qp->number;
	put_record(d, &h, &g, 10);
	assert_int_equal(take(s.b.recv_cq, 1).src_qpn, 0x1234ff);
	duct_close(d);
}

static bool is_over(struct duct *d)
{
	for (int i = 0; i < 2000 && !duct_status(d); i++) {
		duct_heard(d);
		usleep(1000);
	}
	return duct_status(d) == -EPIPE;
}

/* It ends its own duct, and nothing else. */
static void who_breaks_a_rule_is_alone(void **state)
{
	struct datagram g = { .to = s.b.qp->number, .from = 0x1234ff, .qkey = QKEY };

	if (!pair_local)
		skip();
	assert_ok(pair_recv(&s.b, 0, GRH + MAX, 1));
	for (int i = 0; i < 8; i++) {
		struct road_head h = road_head();
		struct duct *d = call(s.b.qp);

		switch (i) {
		case 0: h.kind = ROAD_NKINDS; break;
		case 1: h.ipv6 = 2; break;
		case 2: h.qpn = 1; break;
		case 3: h.token = 1; break;
		case 4: h.from[4] = 1; break;
		case 5: h.kind = ROAD_JOIN; break;
		case 6: h.kind = ROAD_LEAVE; break;
		default: h.to[15] = 1; break;
		}
		put_record(d, &h, &g, 10);
		assert_true(is_over(d));
		duct_close(d);
	}
	assert_ok(send_n(10, 2));
	take(s.b.recv_cq, 1);
	assert_int_equal(count(s.b.qp).received, 1);
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

/* A plain socket at the group's port: what another host would see. */
static int listen_to_group(const char *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(DATAGRAM_GROUP_PORT) };
	struct ip_mreq in = { .imr_interface.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0), on = 1;

	assert_true(fd >= 0);
	inet_pton(AF_INET, address, &at.sin_addr);
	in.imr_multiaddr = at.sin_addr;
	assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &in, sizeof(in)), 0);
	return fd;
}

static uint32_t read_all(int fd)
{
	uint8_t octets[200];
	uint32_t n = 0;

	while (recv(fd, octets, sizeof(octets), 0) > 0)
		n++;
	return n;
}

struct member {
	struct pair_side side;
	uint64_t next; /* number that is to come */
};

static void new_member(struct member *m, const struct pair_side *side, uint32_t at)
{
	m->side = *side;
	m->side.qp = new_qp(&m->side);
	m->side.mem += at;
	assert_non_null(m->side.qp);
	bring_up(m->side.qp);
	assert_ok(join(m->side.qp, group_name(), false));
}

/* Each has it exactly once, in order, wherever it came by; the network once. */
static void group_send_comes_once(void **state)
{
	enum { N = 300, MEMBERS = 3 };
	struct flue_ah *group = new_ah(&s.a, group_name());
	int fd = listen_to_group(group_name());
	struct member m[MEMBERS] = { 0 };
	uint32_t seen = 0;
	struct flue_wc wc;
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 8, 9);

	/* Two at one engine, one at that of the sender, which is a member, too, by itself. */
	new_member(&m[0], &s.b, 0);
	new_member(&m[1], &s.b, 1000);
	new_member(&m[2], &s.a, 2000);
	wr.to = (struct flue_datagram) { group, FLUE_GROUP_QPN, QKEY };
	for (uint64_t i = 0; i < N; i++) {
		for (int k = 0; k < MEMBERS; k++) {
			m[k].side.mr = k < 2 ? s.b.mr : s.a.mr;
			assert_ok(pair_recv(&m[k].side,
					    k == 0   ? 0
					    : k == 1 ? 1000
						     : 2000,
					    GRH + 8, i));
		}
		memcpy(s.a.mem, &i, sizeof(i));
		assert_ok(flue_post_send(s.a.qp, &wr));
		take(s.a.send_cq, 9);
		for (int k = 0; k < MEMBERS; k++) {
			struct flue_cq *cq = k < 2 ? s.b.recv_cq : s.a.recv_cq;
			struct member *who = m;

			assert_int_equal(pair_take(cq, &wc, 1, 5000), 1);
			while (who->side.qp != wc.qp)
				who++;
			assert_int_equal(wc.id, who->next);
			assert_memory_equal(who->side.mem + GRH, &i, sizeof(i));
			who->next++;
		}
		seen += read_all(fd);
	}
	assert_true(nothing_comes(s.b.recv_cq) && nothing_comes(s.a.recv_cq));
	for (int k = 0; k < MEMBERS; k++) {
		struct count c = count(m[k].side.qp);

		assert_int_equal(m[k].next, N);
		assert_int_equal(c.received + c.other_received, N);
		if (pair_local)
			assert_true(c.received > N - 10);
		assert_int_equal(dropped(m[k].side.qp, FLUE_DROP_NO_RECEIVE), 0);
		assert_ok(join(m[k].side.qp, group_name(), true));
		assert_ok(flue_destroy_qp(m[k].side.qp));
	}
	assert_int_equal(seen, N);
	close(fd);
	/* Nobody is there any more. */
	assert_ok(flue_post_send(s.a.qp, &wr));
	take(s.a.send_cq, 9);
	assert_ok(group->ops->destroy(group));
}

/* Leaving, and joining again, in the middle of it. */
static void member_that_left_gets_nothing(void **state)
{
	struct flue_ah *group = new_ah(&s.a, group_name());
	struct flue_sge sge;
	struct flue_send_wr wr = request(&sge, 8, 9);

	wr.to = (struct flue_datagram) { group, FLUE_GROUP_QPN, QKEY };
	for (uint64_t turn = 0; turn < 5; turn++) {
		assert_ok(join(s.b.qp, group_name(), false));
		for (uint64_t i = 0; i < 20; i++) {
			assert_ok(pair_recv(&s.b, 0, GRH + 8, i));
			assert_ok(flue_post_send(s.a.qp, &wr));
			take(s.a.send_cq, 9);
			take(s.b.recv_cq, i);
		}
		assert_ok(join(s.b.qp, group_name(), true));
		for (uint64_t i = 0; i < 20; i++) {
			assert_ok(flue_post_send(s.a.qp, &wr));
			take(s.a.send_cq, 9);
		}
		assert_true(nothing_comes(s.b.recv_cq));
		for (int why = 0; why < FLUE_NDROPS; why++)
			assert_int_equal(dropped(s.b.qp, why), 0);
	}
	assert_ok(group->ops->destroy(group));
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, open_sides, close_sides)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(message_comes_with_its_sender),
		TEST(way_is_counted),
		TEST(who_may_not_stays_with_udp),
		TEST(to_itself),
		TEST(hop_limit_and_traffic_class),
		TEST(header_names_the_address_that_was_meant),
		TEST(burst_is_not_lost),
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
		TEST(strangers_through_memory_are_dropped),
		TEST(who_breaks_a_rule_is_alone),
		TEST(wrong_requests_are_refused),
		TEST(bad_key_stops_sending_alone),
		TEST(states_are_those_of_the_verbs),
		TEST(members_of_a_group_all_get_it),
		TEST(group_send_comes_once),
		TEST(member_that_left_gets_nothing),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
