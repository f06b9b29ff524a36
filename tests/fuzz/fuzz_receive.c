/* SPDX-License-Identifier: MIT */
/*
 * The whole receive path: a queue pair in RTS on one end of a socket pair, the fuzzer on the
 * other. Octets come as they are, or as ULPDUs that the harness frames properly (length, markers,
 * CRC), because random octets never get past a CRC. In framed mode small STags are turned into
 * those of the regions below, so that mutations reach the checks behind the look-up.
 *
 * Whatever comes: no octet outside granted memory changes, every posted request completes exactly
 * once, and the state is a legal one.
 *
 * Input: settings (2 octets), then pieces: length (2 octets), octets.
 *
 * No engine thread runs: the harness plays the engine, so runs are deterministic.
 */
#include "fuzz.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "rnic/cq.h"
#include "rnic/qp.h"
#include "rnic/rnic.h"

#define AREA      4096
#define GUARD     64
#define MAX_PIECE 3000

enum { SINK_AT = 512, SINK_LEN = 100 }; /* where Reads go inside region 2 */

/* Regions, all zero-based: 0 remote write, 1 remote read, 2 sink of Reads, 3 receives. */
enum { R_WRITE, R_READ, R_SINK, R_RECV, NREGIONS };
static const uint32_t rights[NREGIONS] = {
	FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_INVALIDATE,
	FLUE_REMOTE_READ,
	FLUE_LOCAL_WRITE,
	FLUE_LOCAL_WRITE,
};

static struct {
	struct rnic *rnic;
	struct engine *e;
	struct rnic_pd pd;
	struct cq *cq;
	uint8_t memory[NREGIONS][GUARD + AREA + GUARD];
} world;

/* One run. */
struct run {
	struct qp *q;
	uint32_t state_word;
	int peer;
	struct mem *region[NREGIONS];
	struct mpa_stream out;
	uint32_t posted;
	bool framed;
};

static void no_event(void *ctx, void *owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	(void)ctx, (void)owner, (void)ev, (void)conn;
}

static void no_handler(void *owner, void *arg)
{
	(void)owner, (void)arg;
}

static void make_world(void)
{
	static const struct rnic_upcalls up = { .qp_event = no_event };
	static const int cpus[] = { 0 };

	CHECK(rnic_open(cpus, 1, &up, NULL, &world.rnic) == 0);
	/* Same STags in every process, or findings could not be replayed. */
	memset(world.rnic->mem.slots.key, 0, sizeof(world.rnic->mem.slots.key));
	world.e = &world.rnic->engines[0];
	world.e->epfd = epoll_create1(EPOLL_CLOEXEC);
	world.e->kickfd = eventfd(0, EFD_NONBLOCK);
	atomic_store(&world.e->has_thread, true); /* it is us */
	world.pd.rnic = world.rnic;
	CHECK(cq_create(world.rnic, world.e, 64, no_handler, NULL, NULL, &world.cq) == 0);
}

static void post_receives(struct run *r, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct flue_sge sge[2] = { { 1000u * i, 50, r->region[R_RECV]->stag },
					   { 1000u * i + 100, 100, r->region[R_RECV]->stag } };
		struct flue_recv_wr wr = { .id = i, .sg = sge, .n_sg = 2 };
		const struct flue_recv_wr *bad;

		CHECK(qp_post_recv(r->q, &wr, &bad) == 0);
		r->posted++;
	}
}

static void post_reads(struct run *r, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct flue_sge sge = { SINK_AT, SINK_LEN, r->region[R_SINK]->stag };
		struct flue_send_wr wr = { .id = i,
					   .op = FLUE_WR_READ,
					   .flags = FLUE_SIGNALED,
					   .sg = &sge,
					   .n_sg = 1,
					   .rkey = 77 };
		const struct flue_send_wr *bad;

		CHECK(qp_post_send(r->q, &wr, &bad) == 0);
		r->posted++;
	}
}

static void begin(struct run *r, uint64_t settings)
{
	struct mpa_terms t = { .rev = 2,
			       .ird = 2,
			       .ord = 3,
			       .crc = settings & 1,
			       .rx_markers = settings & 2,
			       .tx_markers = settings & 4,
			       .rtr = settings & 8 ? MPA_RTR_SEND : MPA_RTR_NONE };
	struct qp_attr a = { .pd = &world.pd,
			     .send_cq = world.cq,
			     .recv_cq = world.cq,
			     .sq_depth = 4,
			     .rq_depth = 4,
			     .sq_sge = 1,
			     .rq_sge = 2 };
	int fds[2];

	memset(world.memory, 0xa5, sizeof(world.memory));
	for (int i = 0; i < NREGIONS; i++)
		CHECK(mem_register(&world.rnic->mem, &world.pd, world.memory[i] + GUARD, AREA,
				   rights[i] | FLUE_ZERO_BASED, false, &r->region[i]) == 0);
	a.state = &r->state_word;
	CHECK(qp_create(&a, &r->q) == 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds) == 0);
	r->peer = fds[1];
	r->framed = settings & 16;
	r->out = (struct mpa_stream) { .crc = t.crc, .markers = t.rx_markers };
	post_receives(r, settings >> 5 & 3);
	engine_lock(world.e);
	CHECK(qp_establish(r->q, fds[0], &t, settings & 128, true, 0) == 0);
	r->q->tx.held = false;
	engine_unlock(world.e);
	post_reads(r, settings >> 8 & 3);
}

/* Small STags name our regions. The first three octets of the name are the index's. */
static void patch_stag(const struct run *r, uint8_t *at)
{
	uint32_t stag = get_be32(at);

	if (stag < NREGIONS)
		put_be32(at, r->region[stag]->stag);
}

static void patch(const struct run *r, uint8_t *ulpdu, size_t len)
{
	if (len >= 6)
		patch_stag(r, ulpdu + 2); /* tagged: STag; untagged: the one to invalidate */
	if (len >= 18 + 28 && (ulpdu[1] & 0xf) == RDMAP_READ_REQUEST)
		patch_stag(r, ulpdu + 18 + 16);
}

static void drain(const struct run *r)
{
	uint8_t sink[4096];

	while (recv(r->peer, sink, sizeof(sink), MSG_DONTWAIT) > 0)
		;
}

static void feed(struct run *r, const uint8_t *data, size_t len)
{
	uint8_t body[MAX_PIECE + 8] = { 0 }, wire[MAX_PIECE + 64];
	const uint8_t *out = data;

	if (r->framed) {
		put_be16(body, (uint16_t)len);
		memcpy(body + 2, data, len);
		patch(r, body + 2, len);
		len = mpa_fpdu_build(&r->out, body, 2 + len + mpa_pad(len), wire);
		out = wire;
	}
	if (send(r->peer, out, len, MSG_NOSIGNAL) < 0)
		return; /* the queue pair hung up */
	engine_lock(world.e);
	if (r->q->io.fd >= 0)
		r->q->io.ready(&r->q->io, EPOLLIN);
	engine_unlock(world.e);
	drain(r);
}

/* Memory that nobody granted, or granted for less, is as it was. */
static void check_memory(void)
{
	static const struct {
		int region, from, to;
	} untouched[] = {
		{ R_READ, 0, AREA }, { R_SINK, 0, SINK_AT }, { R_SINK, SINK_AT + SINK_LEN, AREA },
		{ R_RECV, 50, 100 }, { R_RECV, 200, 1000 },  { R_RECV, 2200, AREA },
	};

	for (int i = 0; i < NREGIONS; i++)
		for (int j = 0; j < GUARD; j++)
			CHECK(world.memory[i][j] == 0xa5 &&
			      world.memory[i][GUARD + AREA + j] == 0xa5);
	for (size_t i = 0; i < sizeof(untouched) / sizeof(untouched[0]); i++)
		for (int j = untouched[i].from; j < untouched[i].to; j++)
			CHECK(world.memory[untouched[i].region][GUARD + j] == 0xa5);
}

static void end(struct run *r)
{
	struct flue_wc wc[64];
	int n;

	CHECK(r->q->state < QPS_NSTATES && r->state_word == r->q->state);
	shutdown(r->peer, SHUT_WR);
	engine_lock(world.e);
	if (r->q->io.fd >= 0)
		r->q->io.ready(&r->q->io, EPOLLIN);
	qp_apply(r->q, QPE_ABORT, FLUE_CLOSE_ABORTED, 0);
	CHECK(r->q->io.fd < 0 && r->q->rx.buf == NULL);
	engine_unlock(world.e);
	n = cq_poll(world.cq, wc, 64);
	CHECK(n == (int)r->posted);
	qp_destroy(r->q);
	for (int i = 0; i < NREGIONS; i++)
		CHECK(mem_destroy(&world.rnic->mem, r->region[i]) == 0);
	close(r->peer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source s = { data, size };
	struct run r = { 0 };

	if (!world.rnic)
		make_world();
	begin(&r, take(&s, 2));
	while (s.left) {
		size_t len = (size_t)take(&s, 2) % MAX_PIECE;

		if (len > s.left)
			len = s.left;
		feed(&r, s.data, len);
		s.data += len;
		s.left -= len;
	}
	check_memory();
	end(&r);
	return 0;
}
