/* SPDX-License-Identifier: MIT */
/*
 * Datagrams through memory with a hostile peer: the input says what stands in the ring, and what comes by UDP beside it. No engine thread
 * runs; the harness does what it would do.
 *
 * Input: actions, of one octet each and what belongs to it: records with chosen fields, words that overwrite others, posts, numbers of a
 * group that come by UDP, and looks at what has come.
 *
 * Invariants: no octet outside of what was posted changes; what the victim sends is sound; what is received has its header; and a queue pair beside
 * it, with a caller of its own, goes on.
 */
#include "fuzz.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "channel/door.h"
#include "channel/duct.h"
#include "rnic/engine_priv.h"
#include "rnic/qp.h"
#include "rnic/ud_priv.h"

#define AREA  8192u
#define GUARD 256u
#define DEPTH 8u
#define QKEY  5u

static uint8_t zone[AREA + 2 * GUARD];
static struct rnic *rnic;
static struct engine *engine;
static struct rnic_pd pd;
static struct cq *cq;
static struct mem *region;
static struct flue_ah to_host, to_group;
static struct sockaddr_in group, host;

struct end {
	struct flue_qp owner;
	struct qp *qp;
	struct duct *peer; /* to it, from us */
};
static struct end victim, other;

/* We are somebody, too, whom the victim can call. */
static int own_udp, own_door;
static uint32_t own_qpn;
static struct duct *asked; /* what it has to say to us */
static uint64_t token;

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	(void)ctx;
	(void)conn;
	CHECK(qp_owner != &other.owner && ev->type < FLUE_EVENT_NTYPES);
}

static void on_completion(void *cq_owner, void *arg)
{
	(void)cq_owner;
	(void)arg;
}

static const struct rnic_upcalls up = { .qp_event = on_event };

static void open_end(struct end *e)
{
	struct qp_attr attr = { .pd = &pd,
				.send_cq = cq,
				.recv_cq = cq,
				.sq_depth = DEPTH,
				.rq_depth = DEPTH,
				.sq_sge = 1,
				.rq_sge = 1,
				.signal_all = true,
				.ud = true,
				.state = &e->owner.state,
				.owner = &e->owner };
	static const uint32_t states[] = { FLUE_QP_INIT, FLUE_QP_RTR, FLUE_QP_RTS };
	pid_t pid;

	CHECK(qp_create(&attr, &e->qp) == 0);
	for (size_t i = 0; i < 3; i++) {
		struct flue_qp_values v = { .state = states[i], .qkey = QKEY };

		CHECK(qp_modify(e->qp, &v, FLUE_QPV_STATE | (i ? 0 : FLUE_QPV_QKEY)) == 0);
	}
	CHECK(door_call(ud_port(e->qp->qpn), &pid, &e->peer) == 0);
}

static void make_handle(struct flue_ah *to, const struct sockaddr_in *remote)
{
	struct flue_ah_attr attr = { .remote = (const struct sockaddr *)remote,
				     .remote_len = sizeof(*remote),
				     .local = (const struct sockaddr *)&host,
				     .local_len = sizeof(host) };
	struct ud_ah *ah;

	CHECK(ud_ah_create(&pd, &attr, &ah) == 0);
	to->handle = ah;
}

static void make_world(void)
{
	struct mem_attr attr = { zone + GUARD, 0, AREA, FLUE_LOCAL_WRITE | FLUE_ZERO_BASED, false };
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	int cpu = sched_getcpu();

	CHECK(rnic_open(&cpu, 1, &up, NULL, &rnic) == 0);
	rnic->local = true;
	pd.rnic = rnic;
	engine = &rnic->engines[0];
	CHECK(pollset_open(&engine->set) == 0);
	engine->has_thread = true;
	CHECK(cq_create(rnic, engine, 4096, on_completion, NULL, NULL, &cq) == 0);
	CHECK(mem_register(&rnic->mem, &pd, &attr, &region) == 0);
	host = group = at;
	host.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	group.sin_addr.s_addr = htonl(0xef090000 | (uint32_t)(getpid() & 0xffff));
	make_handle(&to_host, &host);
	make_handle(&to_group, &group);
	own_udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(bind(own_udp, (struct sockaddr *)&host, sizeof(host)) == 0);
	CHECK(setsockopt(own_udp, IPPROTO_IP, IP_MULTICAST_IF, &host.sin_addr,
			 sizeof(host.sin_addr)) == 0);
	CHECK(getsockname(own_udp, (struct sockaddr *)&at, &len) == 0);
	own_qpn = (uint32_t)ntohs(at.sin_port) << UD_PLACE_BITS | UD_PLACE;
	own_door = door_open(ntohs(at.sin_port));
	CHECK(own_door >= 0);
	group.sin_port = htons(DATAGRAM_GROUP_PORT);
	open_end(&other);
}

/* What the victim sends is whole. */
static void listen_to_it(void)
{
	const uint8_t *record;
	struct duct *d;
	size_t size;
	int sock;

	while ((sock = door_accept(own_door)) >= 0) {
		CHECK(door_answer(sock, &d) == 0);
		if (asked)
			duct_close(asked);
		asked = d;
	}
	while (asked && (record = duct_next(asked, &size))) {
		struct road_head h;
		struct datagram g;

		CHECK(size >= sizeof(h));
		memcpy(&h, record, sizeof(h));
		CHECK(h.kind < ROAD_NKINDS && h.ipv6 <= 1);
		if (h.kind == ROAD_JOIN || h.kind == ROAD_LEAVE)
			CHECK(size == sizeof(h) && ud_is_number(h.qpn));
		else
			CHECK(datagram_decode(&g, record + sizeof(h), size - sizeof(h)));
		if (h.kind == ROAD_JOIN)
			token = h.token;
		duct_done(asked);
	}
}

static void drive(void)
{
	struct epoll_event evs[BATCH];
	struct link *l, *next;
	struct flue_wc wc;
	int n;

	engine_lock(engine);
	LIST_FOREACH_SAFE(l, &engine->links, of_engine, next)
		l->ops->poll(l);
	n = pollset_wait(&engine->set, evs, BATCH, 0);
	engine_dispatch(engine, evs, n);
	if (victim.qp && victim.qp->ud->blocked) { /* nobody waits here */
		engine_timer_stop(engine, &victim.qp->ud->again);
		victim.qp->ud->again.fire(&victim.qp->ud->again);
	}
	engine_unlock(engine);
	engine_run_notes(engine);
	listen_to_it();
	while (cq_poll_sized(cq, &wc, sizeof(wc), 1) > 0)
		CHECK(wc.op != FLUE_WC_RECV || wc.status || wc.byte_len >= DATAGRAM_GRH);
}

static uint32_t take_number(struct source *in)
{
	switch (take(in, 1) % 5) {
	case 0: return (uint32_t)take(in, 4);
	case 1: return other.qp->qpn;
	case 2: return own_qpn;
	case 3: return DATAGRAM_ALL;
	default: return victim.qp->qpn;
	}
}

static void take_address(struct source *in, uint8_t to[16])
{
	uint8_t which = (uint8_t)(take(in, 1) % 8);

	if (which < 4)
		memcpy(to, &host.sin_addr, 4);
	else if (which < 7)
		memcpy(to, &group.sin_addr, 4);
	else
		for (int i = 0; i < 16; i++)
			to[i] = (uint8_t)take(in, 1);
}

static struct datagram take_datagram(struct source *in)
{
	struct datagram d = { .to = take_number(in) & DATAGRAM_ALL,
			      .from = take_number(in) & DATAGRAM_ALL };
	uint8_t odd = (uint8_t)take(in, 1);

	d.qkey = odd & 1 ? (uint32_t)take(in, 4) : QKEY;
	d.imm = odd & 2;
	d.solicited = odd & 4;
	d.number = odd & 8 ? (uint16_t)take(in, 2) : 0;
	return d;
}

static void do_record(struct source *in)
{
	uint8_t kind = (uint8_t)take(in, 1), odd = (uint8_t)take(in, 1);
	struct road_head h = { .kind = kind & 0x80 ? kind : kind % ROAD_NKINDS };
	size_t size = sizeof(h), n = (size_t)take(in, 1);
	struct datagram d = { 0 };
	uint8_t *at;

	h.ipv6 = odd & 1 ? (uint8_t)take(in, 1) : 0;
	h.qpn = (h.kind == ROAD_JOIN || h.kind == ROAD_LEAVE) != (odd >> 1 & 1) ? take_number(in)
										: 0;
	h.token = odd & 4 ? take(in, 8) : h.kind == ROAD_SINGLE ? 0 : token;
	take_address(in, h.from);
	take_address(in, h.to);
	if ((h.kind != ROAD_JOIN && h.kind != ROAD_LEAVE) || odd & 8) {
		d = take_datagram(in);
		size += DATAGRAM_HEAD + n;
	}
	size = odd & 16 ? (size_t)take(in, 2) % 8192 : size;
	at = victim.peer ? duct_begin(victim.peer, size + sizeof(h) + DATAGRAM_HEAD + n) : NULL;
	if (!at)
		return;
	memcpy(at, &h, sizeof(h));
	datagram_encode(&d, at + sizeof(h));
	if (odd & 32)
		at[sizeof(h) + take(in, 1) % DATAGRAM_HEAD] = (uint8_t)take(in, 1);
	memset(at + sizeof(h) + DATAGRAM_HEAD, 0x77, n);
	duct_post(victim.peer, size);
}

/* The word of the next record, whatever it is. */
static void do_word(struct source *in)
{
	uint8_t *at = victim.peer ? duct_begin(victim.peer, 8) : NULL;
	uint64_t word = take(in, 8);

	if (at)
		memcpy(at - 8, &word, sizeof(word));
}

/* To the group of which it is a member, by UDP. */
static void do_udp(struct source *in)
{
	uint8_t buf[DATAGRAM_HEAD + 8] = { 0 };
	struct datagram d = {
		.to = DATAGRAM_ALL, .from = own_qpn, .qkey = QKEY, .number = (uint16_t)take(in, 2)
	};

	datagram_encode(&d, buf);
	sendto(own_udp, buf, sizeof(buf), MSG_DONTWAIT, (struct sockaddr *)&group, sizeof(group));
}

static void do_post(struct source *in)
{
	struct flue_sge sge = { take(in, 1), (uint32_t)take(in, 2) % 512, region->stag };
	struct flue_send_wr wr = { .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };
	struct flue_recv_wr rw = { .sg = &sge, .n_sg = 1 };
	const struct flue_send_wr *bad;
	const struct flue_recv_wr *bad_rw;
	uint8_t op = (uint8_t)take(in, 1);

	if (op & 1) {
		qp_post_recv(victim.qp, &rw, &bad_rw);
		return;
	}
	wr.to = (struct flue_datagram) { op & 2 ? &to_group : &to_host,
					 op & 2 ? DATAGRAM_ALL : take_number(in), QKEY };
	qp_post_send(victim.qp, &wr, &bad);
}

/* It is as alive as it was. */
static void check_other(void)
{
	struct road_head h = { .kind = ROAD_SINGLE, .hops = 1 };
	struct datagram d = { .to = other.qp->qpn, .from = own_qpn, .qkey = QKEY };
	struct flue_sge sge = { 0, 100, region->stag };
	struct flue_recv_wr rw = { .id = 5, .sg = &sge, .n_sg = 1 };
	const struct flue_recv_wr *bad;
	struct flue_wc wc = { 0 };
	uint8_t *at = duct_begin(other.peer, sizeof(h) + DATAGRAM_HEAD);

	memcpy(h.from, &host.sin_addr, 4);
	memcpy(h.to, &host.sin_addr, 4);
	CHECK(at && qp_post_recv(other.qp, &rw, &bad) == 0);
	memcpy(at, &h, sizeof(h));
	datagram_encode(&d, at + sizeof(h));
	duct_post(other.peer, sizeof(h) + DATAGRAM_HEAD);
	for (int i = 0; i < 100 && wc.id != 5; i++)
		cq_poll_sized(cq, &wc, sizeof(wc), 1);
	CHECK(wc.id == 5 && wc.status == FLUE_WC_SUCCESS && wc.src_qpn == own_qpn);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };

	if (!rnic)
		make_world();
	memset(zone, 0xa5, GUARD);
	memset(zone + GUARD + AREA, 0xa5, GUARD);
	open_end(&victim);
	CHECK(ud_join(victim.qp, (struct sockaddr *)&group, sizeof(group), (struct sockaddr *)&host,
		      sizeof(host)) == 0);
	while (in.left) {
		switch (take(&in, 1) % 8) {
		case 0:
		case 1:
		case 2: do_record(&in); break;
		case 3: do_word(&in); break;
		case 4: do_udp(&in); break;
		case 5:
		case 6: do_post(&in); break;
		default: drive(); break;
		}
	}
	drive();
	duct_close(victim.peer);
	victim.peer = NULL;
	for (int i = 0; i < 3; i++)
		drive();
	/* What is left can only be its own engine's. */
	CHECK(LIST_EMPTY(&victim.qp->ud->roads) ||
	      !LIST_NEXT(LIST_FIRST(&victim.qp->ud->roads), of_qp));
	qp_destroy(victim.qp);
	victim.qp = NULL;
	drive();
	for (size_t i = 0; i < GUARD; i++)
		CHECK(zone[i] == 0xa5 && zone[GUARD + AREA + i] == 0xa5);
	check_other();
	return 0;
}
