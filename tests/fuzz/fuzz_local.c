/* SPDX-License-Identifier: MIT */
/*
 * A link through memory with a hostile peer: the input says what stands in the ring. No engine thread runs; the harness does what it
 * would do.
 *
 * Input: actions, of one octet each and what belongs to it: records with chosen circuit and kind, segments with chosen fields, also those whose
 * octets are in the peer's memory, gates, words that overwrite others, posts, and the peer's end. The peer shows its memory, so the victim
 * does one-sided work there by itself.
 *
 * Invariants: no octet outside of what was granted or posted changes, here or at the peer; what the victim sends is sound; its connection has ended when the
 * peer has; and a connection to another peer, over a duct of its own, goes on.
 */
#include "fuzz.h"

#include <sched.h>
#include <unistd.h>

#include "channel/duct.h"
#include "rnic/engine_priv.h"
#include "rnic/local_priv.h"
#include "rnic/qp.h"
#include "rnic/shown.h"
#include "wire/rdmap.h"

#define AREA  4096u
#define GUARD 256u
#define DEPTH 8u
#define PEERS 77u /* the peer's number of the circuit */

static uint8_t zone[AREA + 2 * GUARD];
static uint8_t peer_zone[AREA + 2 * GUARD];
static struct rnic *rnic;
static struct engine *engine;
static struct rnic_pd pd;
static struct cq *cq;
static struct mem *region;
/* Of the peer, whom we play: what it shows. */
static struct mem_table peer_table;
static struct rnic_pd peer_pd;
static struct mem *peer_region;
static uint32_t peer_gate;

struct end {
	struct flue_qp owner;
	struct qp *qp;
	struct circuit *circuit; /* gone when both ends are done with it */
	uint32_t number;
	struct duct *peer; /* the other side of its duct, which we play */
};
static struct end victim, other;

static const struct ddp_params version = { .dv = 1, .rv = 1, .full = true };

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

static void make_peer(void)
{
	struct mem_attr attr = { peer_zone + GUARD, 0, AREA,
				 FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ |
					 FLUE_ZERO_BASED,
				 false };

	CHECK(mem_table_init(&peer_table, 4096) == 0);
	memset(peer_table.slots.key, 0, sizeof(peer_table.slots.key));
	CHECK(mem_register(&peer_table, &peer_pd, &attr, &peer_region) == 0);
	CHECK(mem_show(&peer_table));
	peer_gate = shown_open_gate(peer_table.shown, PEERS, &peer_pd, 5, 0);
	CHECK(peer_gate);
}

/* What has come beside the records. */
static void hear(void)
{
	struct local_duct *d, *next;

	engine_lock(engine);
	LIST_FOREACH_SAFE(d, &engine->local->ducts, all, next)
		d->io.ready(&d->io, 0);
	engine_unlock(engine);
}

static void connect_end(struct end *e)
{
	static uint64_t name;
	struct qp_attr attr = { .pd = &pd,
				.send_cq = cq,
				.recv_cq = cq,
				.sq_depth = DEPTH,
				.rq_depth = DEPTH,
				.sq_sge = 1,
				.rq_sge = 1,
				.signal_all = true,
				.state = &e->owner.state,
				.owner = &e->owner };
	struct mpa_terms terms = {
		.rev = MPA_REV_FULL, .full = true, .own_peer = true, .ird = 2, .ord = 2
	};
	struct qp_start start = { .terms = &terms, .initiator = true };
	struct mpa_local offer,
		reply = { .offered = true, .pid = (uint32_t)getpid(), .circuit = PEERS };
	struct link *link;

	CHECK(qp_create(&attr, &e->qp) == 0);
	engine_lock(engine);
	e->circuit = local_offer(engine, &offer);
	CHECK(e->circuit && offer.offered);
	e->number = e->circuit->number;
	reply.name = ++name;
	reply.engine = (uint32_t)name; /* somebody else each time */
	CHECK(duct_call(offer.box, getpid(), name, &e->peer) == 0);
	CHECK(local_join(engine, e->circuit, &reply) == 0);
	CHECK(link_local_create(e->qp, e->circuit, &link) == 0);
	CHECK(qp_establish(e->qp, &start, link) == 0);
	engine_unlock(engine);
	if (e == &other)
		return;
	duct_pass(e->peer, shown_fd(peer_table.shown));
	hear();
	CHECK(e->circuit->duct->view);
}

static void make_world(void)
{
	struct mem_attr attr = { zone + GUARD, 0, AREA,
				 FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ |
					 FLUE_REMOTE_ATOMIC | FLUE_ZERO_BASED,
				 false };
	int cpu = sched_getcpu();

	CHECK(rnic_open(&cpu, 1, &up, NULL, &rnic) == 0);
	rnic->local = true;
	pd.rnic = rnic;
	engine = &rnic->engines[0];
	CHECK(pollset_open(&engine->set) == 0);
	engine->has_thread = true;
	memset(rnic->mem.slots.key, 0, sizeof(rnic->mem.slots.key));
	CHECK(cq_create(rnic, engine, 1024, on_completion, NULL, NULL, &cq) == 0);
	CHECK(mem_register(&rnic->mem, &pd, &attr, &region) == 0);
	make_peer();
	connect_end(&other);
}

/* What the victim sends is whole, and for the circuit of its peer. */
static void take_output(struct duct *d)
{
	const uint8_t *record;
	size_t size;

	while ((record = duct_next(d, &size))) {
		struct record_head h;
		struct ddp_segment s;

		CHECK(size >= sizeof(h));
		memcpy(&h, record, sizeof(h));
		CHECK(h.circuit == PEERS && h.kind < RECORD_NKINDS);
		CHECK(h.gate < SHOWN_GATES && (h.kind != RECORD_DATA || !h.code));
		if (h.kind == RECORD_DATA)
			CHECK(ddp_decode(&version, record + sizeof(h), size - sizeof(h),
					 size - sizeof(h), &s) == WIRE_OK);
		duct_done(d);
	}
}

static void drive(void)
{
	struct link *l, *next;
	struct flue_wc wc;

	engine_lock(engine);
	LIST_FOREACH_SAFE(l, &engine->links, of_engine, next)
		l->ops->poll(l);
	engine_run_later(engine);
	engine_unlock(engine);
	engine_run_notes(engine);
	if (victim.peer)
		take_output(victim.peer);
	take_output(other.peer);
	while (cq_poll_sized(cq, &wc, sizeof(wc), 1) > 0)
		;
}

static void put_record(const struct record_head *h, const uint8_t *body, size_t size)
{
	uint8_t *at = victim.peer ? duct_begin(victim.peer, sizeof(*h) + size) : NULL;

	if (!at)
		return;
	memcpy(at, h, sizeof(*h));
	if (size)
		memcpy(at + sizeof(*h), body, size);
	duct_post(victim.peer, sizeof(*h) + size);
}

static uint32_t take_circuit(struct source *in)
{
	switch (take(in, 1) % 4) {
	case 0: return (uint32_t)take(in, 4);
	case 1: return other.number;
	default: return victim.number;
	}
}

static void do_record(struct source *in)
{
	struct record_head h = { .circuit = take_circuit(in) };
	uint8_t body[256];
	size_t n = (size_t)take(in, 1);

	h.kind = (uint8_t)take(in, 1);
	h.code = (uint8_t)take(in, 1);
	h.gate = h.code & 0x80 ? h.code : 0;
	for (size_t i = 0; i < n; i++)
		body[i] = (uint8_t)take(in, 1);
	put_record(&h, body, n);
}

/* A header that could be the next, or nearly. Returns its length. */
static size_t take_header(struct source *in, uint8_t *to)
{
	uint8_t opcode = (uint8_t)(take(in, 1) & 0xf), odd = (uint8_t)take(in, 1);
	const struct rdmap_op_info *op = &rdmap_ops[opcode];
	struct qp *q = victim.qp;
	struct ddp_segment s = {
		.opcode = opcode, .tagged = op->tagged, .last = !(odd & 1), .qn = op->qn
	};

	s.stag = odd & 2 ? (uint32_t)take(in, 4) : region->stag;
	s.to = odd & 4 ? take(in, 8) : take(in, 2);
	s.msn = op->qn == DDP_QN_READ ? q->rx.msn_read : q->rx.msn_send;
	s.msn = op->qn == DDP_QN_CONTROL ? q->rx.msn_control : s.msn;
	s.mo = q->rx.have_wqe && op->qn == DDP_QN_SEND ? q->rx.filled : 0;
	s.inv_stag = odd & 8 ? (uint32_t)take(in, 1) : q->tx.full.acked;
	s.ack = odd & 16;
	return ddp_encode(&version, &s, to);
}

static void do_segment(struct source *in)
{
	struct record_head h = { .circuit = victim.number, .kind = RECORD_DATA };
	uint8_t body[DDP_HDR_MAX + 256];
	size_t n = (size_t)take(in, 1), hdr = take_header(in, body);

	for (size_t i = 0; i < n; i++)
		body[hdr + i] = (uint8_t)take(in, 1);
	put_record(&h, body, hdr + n);
}

/* Its octets are where it says: in the peer's memory, or not. */
static void do_reference(struct source *in)
{
	struct record_head h = { .circuit = victim.number,
				 .kind = RECORD_DATA,
				 .code = CODE_REFERENCE };
	uint8_t body[DDP_HDR_MAX + sizeof(struct reference_head) + 40 * sizeof(struct reference)];
	size_t hdr = take_header(in, body), n;
	uint8_t odd = (uint8_t)take(in, 1);
	struct reference_head rh = { .n_refs = odd & 1 ? (uint32_t)take(in, 1) % 40 : 1 };
	struct reference refs[40];

	for (n = 0; n < rh.n_refs; n++) {
		refs[n] = (struct reference) { .key = odd & 2 ? (uint32_t)take(in, 4)
							      : peer_region->stag,
					       .length = (uint32_t)take(in, odd & 4 ? 4 : 1),
					       .to = take(in, odd & 8 ? 8 : 2) };
		rh.total += refs[n].length;
	}
	if (odd & 16)
		rh.n_refs = (uint32_t)take(in, 4);
	if (odd & 32)
		rh.total = (uint32_t)take(in, 4);
	memcpy(body + hdr, &rh, sizeof(rh));
	memcpy(body + hdr + sizeof(rh), refs, n * sizeof(refs[0]));
	put_record(&h, body, hdr + sizeof(rh) + n * sizeof(refs[0]) - (odd & 64 ? 3 : 0));
}

static void do_gate(struct source *in)
{
	struct record_head h = { .circuit = victim.number, .kind = RECORD_GATE };
	uint8_t odd = (uint8_t)take(in, 1);

	h.code = odd & 1 ? 0 : CODE_READS;
	h.gate = odd & 2 ? (uint16_t)take(in, 2) : (uint16_t)peer_gate;
	put_record(&h, NULL, 0);
}

/* The word of the next record, whatever it is. */
static void do_word(struct source *in)
{
	uint8_t *at = victim.peer ? duct_begin(victim.peer, 8) : NULL;
	uint64_t word = take(in, 8);

	if (at)
		memcpy(at - 8, &word, sizeof(word));
}

static void do_post(struct source *in)
{
	struct flue_sge sge = { take(in, 1), (uint32_t)take(in, 1), region->stag };
	struct flue_send_wr wr = { .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1, .rkey = 1 };
	struct flue_recv_wr rw = { .sg = &sge, .n_sg = 1 };
	const struct flue_send_wr *bad;
	const struct flue_recv_wr *bad_rw;
	uint8_t op = (uint8_t)take(in, 1);

	if (op & 1)
		qp_post_recv(victim.qp, &rw, &bad_rw);
	if (op & 8) {
		wr.rkey = peer_region->stag;
		wr.remote_addr = take(in, 2);
	}
	wr.op = op & 2 ? FLUE_WR_READ : op & 4 ? FLUE_WR_WRITE : FLUE_WR_SEND;
	if (!(op & 1))
		qp_post_send(victim.qp, &wr, &bad);
}

/* It is as alive as it was. */
static void check_other(void)
{
	struct flue_recv_wr rw = { .id = 5 };
	struct record_head h = { .circuit = other.number, .kind = RECORD_DATA };
	struct ddp_segment s = { .opcode = RDMAP_SEND,
				 .last = true,
				 .msn = other.qp->rx.msn_send,
				 .inv_stag = other.qp->tx.full.acked };
	const struct flue_recv_wr *bad;
	uint8_t *at = duct_begin(other.peer, sizeof(h) + DDP_UNTAGGED_LEN);
	struct flue_wc wc;

	CHECK(other.qp->state == QPS_RTS && at);
	CHECK(qp_post_recv(other.qp, &rw, &bad) == 0);
	memcpy(at, &h, sizeof(h));
	ddp_encode(&version, &s, at + sizeof(h));
	duct_post(other.peer, sizeof(h) + DDP_UNTAGGED_LEN);
	CHECK(cq_poll_sized(cq, &wc, sizeof(wc), 1) == 1 ||
	      cq_poll_sized(cq, &wc, sizeof(wc), 1) == 1);
	CHECK(wc.id == 5 && wc.status == FLUE_WC_SUCCESS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };

	if (!rnic)
		make_world();
	memset(zone, 0xa5, GUARD);
	memset(zone + GUARD + AREA, 0xa5, GUARD);
	memset(peer_zone, 0xa5, GUARD);
	memset(peer_zone + GUARD + AREA, 0xa5, GUARD);
	connect_end(&victim);
	while (in.left) {
		switch (take(&in, 1) % 16) {
		case 0: do_record(&in); break;
		case 1:
		case 2:
		case 3: do_segment(&in); break;
		case 4: do_word(&in); break;
		case 5: do_post(&in); break;
		case 6: drive(); break;
		case 8: do_gate(&in); break;
		case 9:
		case 10: do_reference(&in); break;
		case 11: do_post(&in); break;
		default: qp_disconnect(victim.qp, 0); break;
		}
	}
	drive();
	duct_close(victim.peer);
	victim.peer = NULL;
	hear();
	drive();
	CHECK(!link_is_open(victim.qp->link) && victim.qp->state != QPS_RTS);
	qp_destroy(victim.qp);
	for (size_t i = 0; i < GUARD; i++)
		CHECK(zone[i] == 0xa5 && zone[GUARD + AREA + i] == 0xa5 && peer_zone[i] == 0xa5 &&
		      peer_zone[GUARD + AREA + i] == 0xa5);
	check_other();
	return 0;
}
