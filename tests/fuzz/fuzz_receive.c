/* SPDX-License-Identifier: MIT */
/*
 * The whole receive path: a queue pair on one end of a socket pair, the input on the other. No
 * engine thread runs; the harness calls what the engine would call, so a run is deterministic
 * and takes some ten microseconds.
 *
 * Input: two octets of settings (the flags below; how the stream is cut, and whether receives
 * come from an SRQ), then either the octets of the stream as they are, or, FRAMED, a list of
 * records. Records are what a peer and the program could do: segments with chosen fields and
 * right framing, answers to our Reads, posts, closes, revocations, damage. Otherwise CRC, message
 * numbers and STags would stop nearly every mutation at the door.
 *
 * Invariants: no octet outside of what was granted or posted changes; what we send is a legal
 * stream of FPDUs, with nothing behind a Terminate, and nothing before the first FPDU of an
 * initiator; each request completes once; one DISCONNECTED; no reference to memory is left.
 */
#include "fuzz.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/util.h"
#include "rnic/engine_priv.h"
#include "rnic/link_tcp.h"
#include "rnic/qp.h"

/* fuzz_full.c is the same for full service. */
#ifndef SERVICE
#define SERVICE SERVICE_STRICT
#endif

enum {
	CRC = 1,
	MARKERS = 2,
	FRAMED = 4,
	RESPONDER = 8,
	LENIENT = 16,
	TIGHT = 32,
	DEAF = 64,
	RTR = 128
};

/* ---- the victim's memory ---- */

enum {
	AREA_RW,
	AREA_READ,
	AREA_WRITE,
	AREA_LOCAL,
	AREA_OTHER,
	AREA_INV,
	AREAS,
	STALE = AREAS,
	JUNK,
	KEYS
};
#define AREA_SIZE  8192u
#define GUARD_SIZE 256u
#define ZONE_SIZE  (AREAS * (AREA_SIZE + GUARD_SIZE) + GUARD_SIZE)
#define DEPTH      8u   /* of the queues */
#define READS      4u   /* in flight, each way */
#define SLOT       512u /* a receive or the sink of a Read lies in such a piece of AREA_LOCAL */
#define POSTS      64u

static const uint32_t rights[AREAS] = {
	[AREA_RW] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ | FLUE_REMOTE_ATOMIC,
	[AREA_READ] = FLUE_LOCAL_WRITE | FLUE_REMOTE_READ,
	[AREA_WRITE] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE,
	[AREA_LOCAL] = FLUE_LOCAL_WRITE,
	[AREA_OTHER] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ,
	[AREA_INV] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ |
		     FLUE_REMOTE_INVALIDATE,
};

static uint8_t zone[ZONE_SIZE], shadow[ZONE_SIZE];
/* Pieces of AREA_LOCAL that may change: two ranges in each, the second in its other half. */
static bool open_slot[AREA_SIZE / SLOT];
static uint32_t slot_len[AREA_SIZE / SLOT][2];

/* ---- the world, made once ---- */

static struct rnic *rnic;
static struct engine *engine;
static struct rnic_pd pd, other_pd;
static struct cq *cq;
static struct srq *srq;
static struct qp *plain_qp, *srq_qp;
static struct flue_qp owner; /* of both */
static struct mem *mems[AREAS];
static uint32_t keys[KEYS];

/* ---- one run ---- */

static unsigned flags;
static struct qp *qp; /* one of the two */
static int peer;
static struct mpa_stream to_victim, from_victim;
static uint8_t out[4 * 65536]; /* what the victim sent, not looked at yet */
static size_t out_len;
static bool torn; /* the peer stopped listening: the rest cannot be parsed */
static unsigned terminates, downs, posted;
static uint8_t completed[POSTS + 1];
static size_t cut;         /* the stream goes in pieces of this size */
static unsigned damage;    /* for the next FPDU */
static unsigned revoke_in; /* so many pieces later a region is revoked; 0: never */
static unsigned victim;    /* ... and which */
static bool glued;         /* FPDUs wait in `glue` until they go in one piece */
static uint8_t glue[200000];
static size_t glue_len;

static const struct ddp_params version = { .dv = 1, .rv = 1, .full = SERVICE == SERVICE_FULL };

static uint8_t *area_at(unsigned area)
{
	return zone + GUARD_SIZE + area * (AREA_SIZE + GUARD_SIZE);
}

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	(void)ctx;
	(void)conn;
	CHECK(qp_owner == &owner && ev->reason < FLUE_CLOSE_NREASONS);
	CHECK(ev->type == FLUE_EVENT_DISCONNECTED ||
	      (ev->type == FLUE_EVENT_LAST_RECEIVE && qp == srq_qp) ||
	      (qp_is_full(qp) && ev->type >= FLUE_EVENT_QP_ERROR &&
	       ev->type <= FLUE_EVENT_QP_ACCESS));
	downs += ev->type == FLUE_EVENT_DISCONNECTED;
}

static void on_completion(void *cq_owner, void *arg)
{
	(void)cq_owner;
	(void)arg;
}

static const struct rnic_upcalls up = { .qp_event = on_event };

/* STags must not depend on the process, or no corpus would mean anything: their key is fixed. */
static void make_keys(void)
{
	struct mem_attr all = { area_at(0), (uintptr_t)area_at(0), AREA_SIZE, rights[0], false };
	struct mem *gone;

	memset(rnic->mem.slots.key, 0, sizeof(rnic->mem.slots.key));
	for (unsigned i = 0; i < AREAS; i++) {
		struct mem_attr attr = { area_at(i), 0, AREA_SIZE, rights[i] | FLUE_ZERO_BASED,
					 false };

		CHECK(mem_register(&rnic->mem, i == AREA_OTHER ? &other_pd : &pd, &attr,
				   &mems[i]) == 0);
		keys[i] = mems[i]->stag;
	}
	CHECK(mem_register(&rnic->mem, &pd, &all, &gone) == 0);
	keys[STALE] = gone->stag;
	CHECK(mem_destroy(&rnic->mem, gone) == 0);
	keys[JUNK] = 0x12345678;
}

static void make_world(void)
{
	struct qp_attr attr = { .sq_depth = DEPTH,
				.rq_depth = DEPTH,
				.sq_sge = 2,
				.rq_sge = 2,
				.max_inline = 32,
				.signal_all = true,
				.state = &owner.state,
				.owner = &owner };
	int cpu = sched_getcpu();

	CHECK(rnic_open(&cpu, 1, &up, NULL, &rnic) == 0);
	pd.rnic = other_pd.rnic = rnic;
	engine = &rnic->engines[0];
	/* The engine believes that its thread runs; we are it. */
	CHECK(pollset_open(&engine->set) == 0);
	engine->has_thread = true;
	CHECK(cq_create(rnic, engine, 4 * POSTS, on_completion, NULL, NULL, &cq) == 0);
	attr.pd = &pd;
	attr.send_cq = attr.recv_cq = cq;
	CHECK(qp_create(&attr, &plain_qp) == 0);
	CHECK(srq_create(&pd, DEPTH, 2, NULL, &srq) == 0);
	attr.srq = srq;
	CHECK(qp_create(&attr, &srq_qp) == 0);
	for (size_t i = 0; i < ZONE_SIZE; i++)
		shadow[i] = (uint8_t)(i * 167 >> 3);
	make_keys();
}

/* ---- what the victim sends ---- */

static void take_fpdu(const struct ddp_segment *s, const uint8_t *payload)
{
	CHECK(terminates == 0);
	if (s->opcode == RDMAP_TERMINATE ||
	    (s->opcode == RDMAP_CONTROL && payload[0] == CONTROL_ERROR)) {
		terminates++;
		return;
	}
	CHECK(!(flags & RESPONDER) || flags & LENIENT || qp->rx.any);
}

/* Parses whole FPDUs; everything must be in order. */
static void parse_output(void)
{
	size_t used = 0, size, ulpdu_len;

	while (mpa_fpdu_find(&from_victim, out + used, out_len - used, &size, &ulpdu_len) == 0 &&
	       size <= out_len - used) {
		struct ddp_segment s;
		uint8_t *ulpdu;

		CHECK(mpa_fpdu_open(&from_victim, out + used, size, ulpdu_len, &ulpdu) == WIRE_OK);
		CHECK(ddp_decode(&version, ulpdu, ulpdu_len, ulpdu_len, &s) == WIRE_OK);
		take_fpdu(&s, ulpdu + s.hdr_len);
		used += size;
	}
	memmove(out, out + used, out_len - used);
	out_len -= used;
}

static bool collect(void)
{
	ssize_t n;
	bool any = false;

	while (peer >= 0 && out_len < sizeof(out) &&
	       (n = recv(peer, out + out_len, sizeof(out) - out_len, MSG_DONTWAIT)) > 0) {
		out_len += (size_t)n;
		any = true;
		parse_output();
	}
	return any;
}

static struct link_tcp *tcp(void)
{
	return (struct link_tcp *)qp->link;
}

/* What the engine would do now, until nothing moves any more. */
static void drive(void)
{
	unsigned rounds = 0;

	do {
		engine_lock(engine);
		if (link_is_open(qp->link))
			tcp()->io.ready(&tcp()->io, EPOLLIN | (tcp()->tx.blocked ? EPOLLOUT : 0));
		engine_run_later(engine);
		engine_unlock(engine);
		engine_run_notes(engine);
		CHECK(++rounds < 10000);
	} while (!(flags & DEAF) && collect());
	CHECK(qp->state < QPS_NSTATES && owner.state == qp->state);
	CHECK(link_is_open(qp->link) ==
	      (qp->state == QPS_RTS || qp->state == QPS_CLOSING || qp->state == QPS_TERMINATE));
}

/* ---- what the peer sends ---- */

/* In small pieces at both ends; the middle of something long would only take time. */
static size_t piece(size_t done, size_t len)
{
	size_t edge = 24 * cut;

	if (!cut || len - done <= cut)
		return len - done;
	return done < edge || len - done <= edge ? cut : len - done - edge;
}

static void invalidate(unsigned area)
{
	mem_invalidate(&rnic->mem, keys[area % AREAS], &pd, qp->qpn, false);
}

static void feed(const uint8_t *data, size_t len)
{
	size_t done = 0;

	while (done < len && peer >= 0 && link_is_open(qp->link)) {
		ssize_t sent = send(peer, data + done, piece(done, len),
				    MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		done += (size_t)sent;
		drive();
		if (revoke_in && --revoke_in == 0)
			invalidate(victim);
	}
}

static void feed_glue(void)
{
	size_t n = glue_len;

	glue_len = 0;
	feed(glue, n);
}

static void feed_ulpdu(const uint8_t *ulpdu, size_t len)
{
	static uint8_t body[70000], fpdu[MPA_FPDU_MAX];
	size_t body_len = MPA_LEN_LEN + len + mpa_pad(len), size;

	put_be16(body, (uint16_t)len);
	memcpy(body + MPA_LEN_LEN, ulpdu, len);
	memset(body + MPA_LEN_LEN + len, 0, mpa_pad(len));
	size = mpa_fpdu_build(&to_victim, body, body_len, fpdu);
	if (damage)
		fpdu[damage % size] ^= (uint8_t)(1 + (damage >> 8) % 255);
	damage = 0;
	if (!glued) {
		feed(fpdu, size);
		return;
	}
	if (size > sizeof(glue) - glue_len)
		feed_glue();
	memcpy(glue + glue_len, fpdu, size);
	glue_len += size;
}

static void feed_segment(const struct ddp_segment *s, const uint8_t *payload, size_t len,
			 uint8_t spoil)
{
	static uint8_t ulpdu[65536];
	size_t hdr = ddp_encode(&version, s, ulpdu);

	if (len > 65535 - hdr)
		len = 65535 - hdr;
	if (payload)
		memcpy(ulpdu + hdr, payload, len);
	else
		memset(ulpdu + hdr, 0xee, len);
	ulpdu[spoil & 1] ^= (uint8_t)(spoil & 0xfe);
	feed_ulpdu(ulpdu, hdr + len);
}

/* A length: mostly small, at times around what makes a difference. */
static size_t take_len(struct source *in)
{
	static const uint16_t edges[] = { SLOT - 1,  SLOT,          SLOT + 1, 4095,
					  4096,      4110,          4114,     AREA_SIZE - 1,
					  AREA_SIZE, AREA_SIZE + 1, 9000,     65521 };
	size_t n = (size_t)take(in, 1);

	return n < 240 ? n : edges[(n - 240) % ARRAY_SIZE(edges)];
}

static uint64_t take_offset(struct source *in)
{
	static const uint64_t edges[] = { AREA_SIZE,  AREA_SIZE - 1, AREA_SIZE - 8, 1ull << 32,
					  1ull << 63, -1ull,         -8ull,         -4096ull };
	uint64_t n = take(in, 1);

	return n < 248 ? n * 16 : edges[n - 248];
}

/* odd: bits that say which of the fields are not what they should be. */
static void do_segment(struct source *in, uint8_t opcode)
{
	const struct rdmap_op_info *op = &rdmap_ops[opcode];
	uint8_t odd = (uint8_t)take(in, 1), key = (uint8_t)(take(in, 1) % KEYS);
	uint64_t offset = take_offset(in);
	size_t len = take_len(in);
	struct ddp_segment s = { .opcode = opcode, .tagged = op->tagged, .last = !(odd & 1) };

	s.stag = s.inv_stag = keys[key];
	s.to = offset;
	s.qn = op->qn;
	s.msn = op->qn == DDP_QN_READ ? qp->rx.msn_read : qp->rx.msn_send;
	s.msn = op->qn == DDP_QN_TERMINATE ? 1 : s.msn;
	s.msn = op->qn == DDP_QN_ATOMIC ? qp->rx.msn_atomic : s.msn;
	s.msn = op->qn == DDP_QN_CONTROL ? qp->rx.msn_control : s.msn;
	s.ack = odd & 128;
	if (SERVICE == SERVICE_FULL && !op->invalidate)
		s.inv_stag = odd & 64 ? (uint32_t)take(in, 1) : qp->tx.full.acked;
	s.mo = qp->rx.have_wqe && op->qn == DDP_QN_SEND ? qp->rx.filled : 0;
	if (odd & 2)
		s.tagged = !s.tagged;
	if (odd & 4)
		s.msn += (uint32_t)take(in, 1) - 128;
	if (odd & 8)
		s.mo += (uint32_t)take(in, 2) - 32768;
	if (odd & 16)
		s.qn = (uint32_t)take(in, 1);
	feed_segment(&s, NULL, len, odd & 32 ? (uint8_t)take(in, 1) : 0);
}

static void do_read_request(struct source *in)
{
	struct ddp_segment s = { .opcode = RDMAP_READ_REQUEST,
				 .last = true,
				 .qn = DDP_QN_READ,
				 .msn = qp->rx.msn_read };
	struct rdmap_read_request r = { .src_stag = keys[take(in, 1) % KEYS] };
	uint8_t buf[RDMAP_READ_REQUEST_LEN];

	r.src_to = take_offset(in);
	r.size = (uint32_t)take_len(in);
	r.sink_stag = (uint32_t)take(in, 1);
	if (r.sink_stag == 255)
		r.size = UINT32_MAX;
	rdmap_read_request_encode(&r, buf);
	feed_segment(&s, buf, sizeof(buf), 0);
}

static void do_atomic_request(struct source *in)
{
	struct ddp_segment s = { .opcode = RDMAP_ATOMIC_REQUEST,
				 .last = true,
				 .qn = DDP_QN_READ,
				 .msn = qp->rx.msn_read,
				 .inv_stag = qp->tx.full.acked };
	struct rdmap_atomic_request r = { .stag = keys[take(in, 1) % KEYS] };
	uint8_t buf[RDMAP_ATOMIC_REQUEST_LEN];

	r.op = (uint8_t)take(in, 1) & 3;
	r.to = take_offset(in);
	r.id = (uint32_t)take(in, 1);
	r.data = r.compare = take(in, 1);
	r.mask = r.compare_mask = UINT64_MAX;
	rdmap_atomic_request_encode(&r, buf);
	feed_segment(&s, buf, sizeof(buf), 0);
}

/* Words about our requests, near those that are under way. */
static void do_control(struct source *in)
{
	struct ddp_segment s = { .opcode = RDMAP_CONTROL,
				 .last = true,
				 .qn = DDP_QN_CONTROL,
				 .msn = qp->rx.msn_control,
				 .inv_stag = qp->tx.full.acked };
	struct control c = { .kind = (uint8_t)take(in, 1) % (CONTROL_NKINDS + 1) };
	uint8_t buf[CONTROL_LEN];

	c.code = (uint8_t)take(in, 1);
	c.code = c.code & 64 ? c.code : c.code % 4;
	c.number = c.kind == CONTROL_RESUME ? qp->rx.number : qp->tx.full.acked;
	c.number += (uint32_t)take(in, 1) % 8;
	if (c.code & 32)
		c.number--;
	control_encode(&c, buf);
	feed_segment(&s, buf, sizeof(buf), 0);
}

static void answer_atomic(const struct orq_entry *o, uint8_t odd)
{
	struct ddp_segment s = { .opcode = RDMAP_ATOMIC_RESPONSE,
				 .last = true,
				 .qn = DDP_QN_ATOMIC,
				 .msn = qp->rx.msn_atomic,
				 .inv_stag = qp->tx.full.acked };
	struct rdmap_atomic_response r = { .id = o->msn + (odd & 1), .value = odd };
	uint8_t buf[RDMAP_ATOMIC_RESPONSE_LEN];

	rdmap_atomic_response_encode(&r, buf);
	feed_segment(&s, buf, sizeof(buf), 0);
}

/* An answer to our oldest Read that is out. The harness knows what the victim waits for from itself. */
static void do_response(struct source *in)
{
	uint8_t odd = (uint8_t)take(in, 1);
	struct ddp_segment s = { .opcode = RDMAP_READ_RESPONSE, .tagged = true };
	const struct orq_entry *o = qp_orq(qp, qp->orq_head);
	uint32_t left, got = qp->rx.read_got;
	size_t len;

	if (!link_is_open(qp->link) || qp->orq_head == qp->tx.cur.orq_tail)
		return;
	CHECK(qp->tx.cur.orq_tail - qp->orq_head <= READS);
	if (o->atomic) {
		answer_atomic(o, odd);
		return;
	}
	s.stag = o->stag;
	s.to = o->to + got;
	left = o->size - got;
	len = odd & 1 ? take_len(in) : left;
	s.last = (len == left) != !!(odd & 2);
	if (odd & 4)
		s.to += take(in, 1) - 128;
	if (odd & 8)
		s.stag += (uint32_t)take(in, 1);
	feed_segment(&s, NULL, len, 0);
}

static void do_ulpdu(struct source *in)
{
	size_t n = (size_t)take(in, 1);

	n = n < in->left ? n : in->left;
	feed_ulpdu(in->data, n);
	in->data += n;
	in->left -= n;
}

static void do_terminate(struct source *in)
{
	struct ddp_segment s = {
		.opcode = RDMAP_TERMINATE, .last = true, .qn = DDP_QN_TERMINATE, .msn = 1
	};
	uint8_t payload[64];
	size_t n = (size_t)take(in, 1) % sizeof(payload);

	for (size_t i = 0; i < n; i++)
		payload[i] = (uint8_t)take(in, 1);
	feed_segment(&s, payload, n, 0);
}

/* ---- what the program does ---- */

/* A piece of AREA_LOCAL nobody uses, or none. */
static int free_slot(void)
{
	for (unsigned i = 0; i < ARRAY_SIZE(open_slot); i++) {
		if (!open_slot[i])
			return (int)i;
	}
	return -1;
}

/* One or two pieces of memory in slot number `slot`, together `len` long at most. */
static uint32_t make_sges(int slot, uint32_t len, struct flue_sge *sge)
{
	uint32_t n = len & 1 ? 2 : 1;

	for (uint32_t i = 0; i < n; i++) {
		sge[i].addr = (uint64_t)slot * SLOT + i * SLOT / 2;
		sge[i].length = n == 1 ? min_u32(len, SLOT - 8) : min_u32(len / 2, SLOT / 2 - 8);
		sge[i].lkey = keys[AREA_LOCAL];
	}
	return n;
}

static void open_to_change(int slot, const struct flue_sge *sge, uint32_t n)
{
	posted++;
	if (slot < 0)
		return;
	open_slot[slot] = true;
	for (uint32_t i = 0; i < 2; i++)
		slot_len[slot][i] = i < n ? sge[i].length : 0;
}

static void post_recv(uint32_t len)
{
	int slot = free_slot();
	struct flue_sge sge[2];
	struct flue_recv_wr wr = { .id = posted + 1, .sg = sge };
	const struct flue_recv_wr *bad;

	if (slot < 0 || posted == POSTS)
		return;
	wr.n_sg = make_sges(slot, len, sge);
	if ((qp->srq ? srq_post(srq, &wr, &bad) : qp_post_recv(qp, &wr, &bad)) == 0)
		open_to_change(slot, sge, wr.n_sg);
}

static void post_send(uint32_t op, uint32_t len, uint8_t key, uint32_t wr_flags)
{
	bool is_atomic = op == FLUE_WR_CMP_SWAP || op == FLUE_WR_FETCH_ADD;
	bool is_read = op == FLUE_WR_READ || op == FLUE_WR_READ_INV || is_atomic;
	int slot = free_slot();
	struct flue_sge sge[2];
	struct flue_send_wr wr = {
		.id = posted + 1, .op = op, .sg = sge, .rkey = keys[key % KEYS], .flags = wr_flags
	};
	const struct flue_send_wr *bad;

	if (slot < 0 || posted == POSTS)
		return;
	wr.n_sg = make_sges(slot, is_atomic ? 8 : is_read ? len & ~1u : len, sge);
	if (op == FLUE_WR_LOCAL_INV)
		wr.n_sg = 0;
	if (wr_flags & FLUE_INLINE) {
		sge[0].addr = (uintptr_t)area_at(AREA_READ);
		sge[1].addr = (uintptr_t)area_at(AREA_READ);
	}
	if (qp_post_send(qp, &wr, &bad) == 0)
		open_to_change(is_read ? slot : -1, sge, wr.n_sg);
	drive();
}

static void do_post(struct source *in)
{
	static const uint8_t all[2][8] = {
		{ FLUE_WR_SEND, FLUE_WR_WRITE, FLUE_WR_READ, FLUE_WR_SEND_INV, FLUE_WR_READ,
		  FLUE_WR_LOCAL_INV, FLUE_WR_READ_INV, FLUE_WR_SEND },
		{ FLUE_WR_SEND, FLUE_WR_WRITE, FLUE_WR_READ, FLUE_WR_WRITE_IMM, FLUE_WR_SEND_IMM,
		  FLUE_WR_LOCAL_INV, FLUE_WR_CMP_SWAP, FLUE_WR_FETCH_ADD },
	};
	const uint8_t *ops = all[SERVICE == SERVICE_FULL];
	uint8_t what = (uint8_t)take(in, 1);
	uint32_t len = (uint32_t)take_len(in), wr_flags = 0;

	if (what & 1) {
		post_recv(len);
		return;
	}
	wr_flags |= what & 16 ? FLUE_FENCE : 0;
	wr_flags |= what & 32 ? FLUE_LOCAL_FENCE : 0;
	wr_flags |= what & 64 ? FLUE_INLINE : 0;
	wr_flags |= what & 128 ? FLUE_SOLICITED : 0;
	post_send(ops[what >> 1 & 7], len, (uint8_t)take(in, 1), wr_flags);
}

static void stop_listening(void)
{
	close(peer);
	peer = -1;
	torn = true;
}

/* The time is over that somebody waits for. */
static void fire_timer(void)
{
	engine_lock(engine);
	if (qp->timer.at) {
		qp->timer.at = 1;
		engine_run_timers(engine);
	}
	engine_unlock(engine);
}

static void do_close(struct source *in)
{
	switch (take(in, 1) % (SERVICE == SERVICE_FULL ? 7 : 6)) {
	case 0:
		if (peer >= 0)
			shutdown(peer, SHUT_WR);
		break;
	case 1:
		if (peer >= 0)
			stop_listening();
		break;
	case 2: qp_disconnect(qp, 1); break;
	case 3: qp_abort(qp); break;
	case 4: invalidate((unsigned)take(in, 1)); break;
	case 6: fire_timer(); break;
	default: engine_poll(engine);
	}
	drive();
}

static void do_setting(struct source *in, unsigned which)
{
	switch (which) {
	case 0: cut = (size_t)take(in, 1); break;
	case 1:
		revoke_in = (unsigned)take(in, 1);
		victim = revoke_in >> 5;
		revoke_in &= 31;
		break;
	default: glued = which == 2; feed_glue();
	}
}

static void run_records(struct source *in)
{
	while (in->left) {
		uint8_t what = (uint8_t)take(in, 1);

		switch (what >> 4) {
		case 0: do_ulpdu(in); break;
		case 1:
			if (SERVICE != SERVICE_STRICT && what & 1)
				do_atomic_request(in);
			else
				do_read_request(in);
			break;
		case 2: do_response(in); break;
		case 3:
			if (SERVICE == SERVICE_FULL && what & 3)
				do_control(in);
			else
				do_terminate(in);
			break;
		case 4: do_post(in); break;
		case 5: do_close(in); break;
		case 6: damage = (unsigned)take(in, 2); break;
		case 7: do_setting(in, what & 3); break;
		default: do_segment(in, what & 15);
		}
	}
	feed_glue();
}

/* ---- beginning and end ---- */

static void begin(struct source *in)
{
	struct mpa_terms terms = {
		.rev = 2, .ird = READS, .ord = READS, .full = SERVICE == SERVICE_FULL
	};
	struct link_tcp_attr attr;
	struct engine_io io = { 0 };
	struct qp_start start;
	struct link *link;
	int fds[2], small = 4096, large = 1 << 20;

	flags = (unsigned)take(in, 1);
	cut = (size_t)take(in, 1);
	qp = cut & 128 ? srq_qp : plain_qp;
	cut &= 127;
	terms.crc = flags & CRC;
	terms.rx_markers = terms.tx_markers = flags & MARKERS;
	terms.p2p = flags & RTR;
	terms.rtr = flags & RTR ? (flags & TIGHT ? MPA_RTR_SEND : MPA_RTR_READ) : MPA_RTR_NONE;
	to_victim = from_victim = (struct mpa_stream) { .crc = terms.crc,
							.markers = flags & MARKERS };
	out_len = glue_len = 0;
	posted = downs = terminates = damage = revoke_in = 0;
	torn = glued = false;
	owner.state = QPS_IDLE;
	memset(completed, 0, sizeof(completed));
	memset(open_slot, 0, sizeof(open_slot));
	memcpy(zone, shadow, ZONE_SIZE);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
	peer = fds[1];
	setsockopt(peer, SOL_SOCKET, SO_SNDBUF, &large, sizeof(large));
	if (flags & TIGHT)
		setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
	post_recv(64);
	post_recv(SLOT);
	engine_lock(engine);
	engine_io_take(&io, fds[0]);
	attr = (struct link_tcp_attr) { .io = &io, .terms = &terms };
	start = (struct qp_start) { .terms = &terms,
				    .initiator = !(flags & RESPONDER),
				    .lenient = flags & LENIENT };
	CHECK(link_tcp_create(qp, &attr, &link) == 0);
	CHECK(qp_establish(qp, &start, link) == 0);
	qp->connected = true; /* as the endpoint does when it has told */
	engine_unlock(engine);
	post_send(FLUE_WR_READ, 100, AREA_RW, 0);
	drive();
}

static void check_memory(void)
{
	for (unsigned i = 0; i < ARRAY_SIZE(open_slot); i++) {
		size_t at = (size_t)(area_at(AREA_LOCAL) - zone) + i * SLOT;

		for (unsigned j = 0; open_slot[i] && j < 2; j++)
			memcpy(zone + at + j * SLOT / 2, shadow + at + j * SLOT / 2,
			       slot_len[i][j]);
	}
	/* What a peer may write to is not looked at. */
	for (unsigned i = 0; i < AREAS; i++) {
		if (i != AREA_OTHER && rights[i] & FLUE_REMOTE_WRITE)
			memcpy(area_at(i), shadow + (area_at(i) - zone), AREA_SIZE);
	}
	CHECK(memcmp(zone, shadow, ZONE_SIZE) == 0);
}

/* Receives that were never taken stay with an SRQ. */
static void empty_srq(void)
{
	struct wqe *w = qp->srq_wqe;

	while (qp->srq && srq_take(srq, w)) {
		wq_free(&srq->wq, 0);
		CHECK(w->id >= 1 && w->id <= posted);
		CHECK(!completed[w->id]++);
	}
}

static void check_completions(void)
{
	struct flue_wc wc[16];
	int n;

	empty_srq();

	while ((n = cq_poll(cq, wc, ARRAY_SIZE(wc))) > 0) {
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].id >= 1 && wc[i].id <= posted && wc[i].qp == &owner);
			CHECK(wc[i].status < FLUE_WC_NSTATUS);
			CHECK(wc[i].op != FLUE_WC_RECV || wc[i].byte_len <= SLOT);
			CHECK(!completed[wc[i].id]++);
		}
	}
	CHECK(n == 0);
	for (unsigned i = 1; i <= posted; i++)
		CHECK(completed[i] == 1);
}

/* Regions that were revoked come back under the same STag. */
static void revive(unsigned area)
{
	struct flue_reg reg = { .addr = (uintptr_t)area_at(area),
				.length = AREA_SIZE,
				.access = rights[area] | FLUE_ZERO_BASED,
				.key = (uint8_t)keys[area] };

	CHECK(atomic_load(&mems[area]->users) == 0);
	if (!atomic_load(&mems[area]->live))
		CHECK(mem_fast_register(&rnic->mem, keys[area], mems[area]->pd, &reg) == 0);
	CHECK(atomic_load(&mems[area]->live) == keys[area]);
}

static void finish(void)
{
	drive();
	CHECK(qp->rx.filled <= SLOT && qp->irq_tail - qp->irq_head <= READS);
	qp_abort(qp);
	drive();
	CHECK(qp->state == QPS_ERROR && !link_is_open(qp->link) && tcp()->io.fd < 0);
	CHECK(tcp()->rx.buf == NULL && !tcp()->tx.part);
	if (!torn)
		collect();
	if (peer >= 0)
		close(peer);
	CHECK(downs == 1);
	check_completions();
	check_memory();
	CHECK(atomic_load(&rnic->n_illegal) == 0);
	CHECK(qp_reset(qp) == 0 && qp->state == QPS_IDLE);
	for (unsigned i = 0; i < AREAS; i++)
		revive(i);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };

	if (!rnic)
		make_world();
	begin(&in);
	if (flags & FRAMED)
		run_records(&in);
	else
		feed(in.data, in.left);
	finish();
	return 0;
}
