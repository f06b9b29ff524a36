/* SPDX-License-Identifier: MIT */
/*
 * MPA start-up through the connection endpoint, both roles, and into full operation: the input is
 * what the peer sends. Sockets are of the local family, which the endpoints do not mind; no engine
 * thread runs, the harness is it.
 *
 * Input: three octets of settings (role and what we do with a request; flags of connect() and
 * accept()), an octet that cuts the stream, then either the octets as they are or, FRAMED, the
 * fields of a start-up frame and then the rest as they are. ADOPT: the stream was live before and
 * is taken over; LEAVE says that there are no frames (RDMAC style), and one more octet how much of
 * what follows had been read by then.
 *
 * Invariants: CONNECTED or CONNECT_FAILED at most once, and DISCONNECTED once for a CONNECTED;
 * what we send begins with a frame of the right kind; nothing of the endpoint is left, and the
 * queue pair can be used again.
 */
#include "fuzz.h"

#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/util.h"
#include "rnic/cep.h"
#include "rnic/engine_priv.h"
#include "rnic/link.h"
#include "rnic/listener.h"
#include "rnic/qp.h"

enum {
	INITIATOR = 1,
	FRAMED = 2,
	REJECT = 4,
	LEAVE = 8,
	TIMEOUT = 16,
	CLOSE = 32,
	AGAIN = 64,
	ADOPT = 128
};

static struct rnic *rnic;
static struct engine *engine;
static struct rnic_pd pd;
static struct cq *cq;
static struct qp *qp;
static struct flue_qp owner;
static struct listener *listener[2]; /* strict, full */
static struct sockaddr_storage at_listener[2], at_door;
static int door; /* where the initiator knocks */
/* The kernel's own names: a zero and five digits. */
#define LOCAL_LEN (sizeof(sa_family_t) + 6)

static unsigned flags, ups, fails, downs, requests;
static struct flue_conn_attr attr;
static int peer;
static size_t cut;
static uint8_t out[65536];
static size_t out_len;
static struct cep *waiting; /* a request that we left alone */

static void on_event(void *ctx, void *qp_owner, const struct flue_event *ev,
		     const struct rnic_conn_info *conn)
{
	(void)ctx;
	CHECK(qp_owner == &owner);
	if (conn && conn->private_len)
		touch(conn->private_data, conn->private_len);
	CHECK(!conn || conn->private_len <= MPA_PD_MAX);
	ups += ev->type == FLUE_EVENT_CONNECTED;
	fails += ev->type == FLUE_EVENT_CONNECT_FAILED;
	downs += ev->type == FLUE_EVENT_DISCONNECTED;
	CHECK(ev->type != FLUE_EVENT_CONNECT_FAILED || ev->detail != 0);
}

static bool is_full(void)
{
	return attr.flags & FLUE_CONN_FULL;
}

static int on_request(void *ctx, void *listener_owner, struct cep *c,
		      const struct rnic_request_info *info)
{
	(void)ctx;
	CHECK(listener_owner == &listener && info->full == is_full() &&
	      info->private_len <= MPA_PD_MAX);
	touch(info->private_data, info->private_len);
	requests++;
	if (flags & LEAVE)
		waiting = c;
	else if (flags & REJECT)
		cep_reject(c, "no", 2);
	else
		cep_accept(c, qp, &attr);
	return 0;
}

static void on_completion(void *cq_owner, void *arg)
{
	(void)cq_owner;
	(void)arg;
}

static const struct rnic_upcalls up = { .qp_event = on_event, .request = on_request };

static void make_world(void)
{
	struct qp_attr a = { .sq_depth = 4,
			     .rq_depth = 4,
			     .sq_sge = 1,
			     .rq_sge = 1,
			     .state = &owner.state,
			     .owner = &owner };
	int cpu = sched_getcpu();

	CHECK(rnic_open(&cpu, 1, &up, NULL, &rnic) == 0);
	pd.rnic = rnic;
	engine = &rnic->engines[0];
	/* The engine believes that its thread runs; we are it. */
	CHECK(pollset_open(&engine->set) == 0);
	engine->has_thread = true;
	CHECK(cq_create(rnic, engine, 64, on_completion, NULL, NULL, &cq) == 0);
	a.pd = &pd;
	a.send_cq = a.recv_cq = cq;
	CHECK(qp_create(&a, &qp) == 0);
}

/* An address of the family alone: the kernel finds a free name. */
static void make_doors(void)
{
	static const struct sockaddr any = { .sa_family = AF_UNIX };
	struct listen_attr a = { .local = &any,
				 .local_len = sizeof(sa_family_t),
				 .max_half_open = 8,
				 .request_timeout_ms = 1000,
				 .owner = &listener };
	socklen_t len = sizeof(at_door);

	for (int i = 0; i < 2; i++) {
		a.full = i;
		CHECK(listener_create(rnic, &a, &at_listener[i], &listener[i]) == 0);
	}
	door = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	CHECK(bind(door, &any, sizeof(sa_family_t)) == 0 && listen(door, 4) == 0);
	CHECK(getsockname(door, (struct sockaddr *)&at_door, &len) == 0 && len == LOCAL_LEN);
}

static void collect(void)
{
	ssize_t n;

	while (peer >= 0 && out_len < sizeof(out) &&
	       (n = recv(peer, out + out_len, sizeof(out) - out_len, MSG_DONTWAIT)) > 0)
		out_len += (size_t)n;
}

static void drive(void)
{
	for (int i = 0; i < 4; i++) {
		engine->hot = NULL; /* ask epoll */
		engine_poll(engine);
		engine_run_notes(engine);
		collect();
	}
	CHECK(qp->state < QPS_NSTATES && owner.state == qp->state);
}

static void fire_timers(void)
{
	struct engine_timer *t;

	engine_lock(engine);
	while ((t = TAILQ_FIRST(&engine->timers))) {
		t->at = 1;
		engine_run_timers(engine);
	}
	engine_unlock(engine);
}

static void feed(const uint8_t *data, size_t len)
{
	size_t done = 0;

	while (done < len && peer >= 0) {
		size_t n = cut && done < 24 * cut && cut < len - done ? cut : len - done;
		ssize_t sent = send(peer, data + done, n, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (sent <= 0)
			return;
		done += (size_t)sent;
		drive();
	}
}

/* A frame with fields from the input. */
static void feed_frame(struct source *in)
{
	static uint8_t data[MPA_PD_MAX];
	uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX];
	struct mpa_frame f = { .reply = flags & INITIATOR };
	int len;

	f.flags = (uint8_t)take(in, 1);
	f.rev = (uint8_t)take(in, 1);
	f.p2p = take(in, 1) & 1;
	f.rtr = (uint8_t)take(in, 1) & 7;
	if (is_full() && f.rev & 0x80)
		f.rev = MPA_REV_FULL;
	f.identity.version = f.rev & 1;
	f.ird = (uint16_t)take(in, 2) & 0x3fff;
	f.ord = (uint16_t)take(in, 2) & 0x3fff;
	f.data = data;
	f.data_len = (uint16_t)(take(in, 2) % (MPA_PD_MAX + 1));
	if (f.rev < 2)
		f.flags &= (uint8_t)~MPA_FLAG_ENHANCED;
	len = mpa_frame_encode(&f, buf, sizeof(buf));
	if (len > 0)
		feed(buf, (size_t)len);
}

/* As much of the input as had been read from the stream before; the rest comes as ever. */
static void adopt(struct source *in)
{
	struct cep_adopt a = { .initiator = flags & INITIATOR, .raw = flags & LEAVE };
	size_t early = (size_t)take(in, 1);
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
	peer = fds[1];
	a.fd = fds[0];
	a.early_len = early < in->left ? early : in->left;
	a.early = in->data;
	in->data += a.early_len;
	in->left -= a.early_len;
	if (a.raw)
		attr.private_len = 0;
	CHECK(cep_adopt(qp, &a, &attr) == 0);
}

static void begin(struct source *in)
{
	flags = (unsigned)take(in, 1);
	attr = FLUE_ATTR(struct flue_conn_attr);
	attr.flags = (uint32_t)take(in, 2);
	if (flags & ADOPT) /* live streams are iWARP's */
		attr.flags &= ~(uint32_t)FLUE_CONN_FULL;
	attr.ird = attr.ord = 4;
	attr.timeout_ms = 1000;
	attr.remote = (struct sockaddr *)&at_door;
	attr.remote_len = LOCAL_LEN;
	attr.private_data = "private";
	attr.private_len = 7;
	cut = (size_t)take(in, 1);
	ups = fails = downs = requests = 0;
	out_len = 0;
	waiting = NULL;
	if (flags & ADOPT) {
		adopt(in);
	} else if (flags & INITIATOR) {
		CHECK(cep_connect(qp, &attr) == 0);
		peer = accept4(door, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		CHECK(peer >= 0);
	} else {
		peer = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		CHECK(connect(peer, (struct sockaddr *)&at_listener[is_full()], LOCAL_LEN) == 0);
	}
	drive();
}

static bool is_raw(void)
{
	return flags & ADOPT && flags & LEAVE;
}

/* What was sent begins with a frame, and that is what it should be. */
static void check_output(void)
{
	struct mpa_frame f;
	int used = mpa_frame_decode(&f, out, out_len, !(flags & INITIATOR));

	if (out_len == 0 || is_raw())
		return;
	CHECK(used > 0);
	CHECK(f.rev == 1 || f.rev == 2 || (f.rev == MPA_REV_FULL && is_full()));
	CHECK(!(f.flags & 0x0c) && !(flags & INITIATOR && f.flags & MPA_FLAG_REJECT));
	/* A rejection is the last word. */
	CHECK(!(f.flags & MPA_FLAG_REJECT) || (size_t)used == out_len);
}

/* An initiator whose peer closed without a word knocks again, with revision 1. */
static void open_again(void)
{
	int fd = accept4(door, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return;
	if (peer >= 0)
		close(peer);
	peer = fd;
	check_output();
	out_len = 0;
	drive();
}

static void finish(void)
{
	if (flags & TIMEOUT)
		fire_timers();
	drive();
	if (waiting)
		cep_reject(waiting, NULL, 0);
	qp_abort(qp);
	drive();
	check_output();
	if (peer >= 0)
		close(peer);
	drive();
	fire_timers(); /* whoever waits for the peer to read a rejection */
	drive();
	while ((peer = accept4(door, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		close(peer);
	CHECK(ups + fails <= 1 && downs == ups);
	if (flags & (INITIATOR | ADOPT)) /* the outcome is told, whatever it is */
		CHECK(ups + fails == 1 && requests == 0);
	CHECK(requests <= 1);
	CHECK(LIST_EMPTY(&rnic->ceps) && !qp->cep);
	CHECK(listener[0]->half_open == 0 && listener[1]->half_open == 0);
	CHECK(TAILQ_EMPTY(&engine->timers) && TAILQ_EMPTY(&engine->notes) && engine->n_ios == 2);
	CHECK(!link_is_open(qp->link));
	CHECK(atomic_load(&rnic->n_illegal) == 0);
	CHECK(qp_reset(qp) == 0 && qp->state == QPS_IDLE);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };

	if (!qp) {
		make_world();
		make_doors();
	}
	begin(&in);
	if (flags & FRAMED)
		feed_frame(&in);
	if (flags & CLOSE && in.left < 4 && peer >= 0) {
		close(peer);
		peer = -1;
		drive();
		if (flags & INITIATOR && flags & AGAIN && !(flags & ADOPT))
			open_again();
	}
	feed(in.data, in.left);
	finish();
	return 0;
}
