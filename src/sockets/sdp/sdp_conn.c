/* SPDX-License-Identifier: MIT */
/*
 * The connection as the program sees it, and the machine (wire/sdp_fsm.h) with its actions. Only
 * sdp_conn_step() writes the state.
 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "sockets/sdp/sdp_priv.h"

#define DEFAULT_BUFS       64
#define DEFAULT_BUF_SIZE   8192
#define DEFAULT_READS      16
#define DEFAULT_VERSION    0x11
#define DEFAULT_CONNECT_MS 10000
#define DEFAULT_CLOSE_MS   60000
#define DEFAULT_LINGER_MS  1000

bool sdp_conn_is_live(const struct sdp_conn *c)
{
	return c->llp && !c->cut;
}

/* ---- actions ---- */

void sdp_conn_arm(struct sdp_conn *c, uint32_t ms)
{
	c->deadline = clock_now() + ms * NSEC_PER_MSEC;
}

static void act_arm(struct sdp_conn *c)
{
	struct oti_caps caps;

	switch (c->state) {
	case SDPS_REQ_PATH:
	case SDPS_REQ_SENT:
	case SDPS_REQ_RECV: sdp_conn_arm(c, c->attr.connect_ms); break;
	case SDPS_TIME_WAIT_2:
		c->attr.oti->ops->caps(c->attr.oti, &caps);
		sdp_conn_arm(c, caps.time_wait_ms);
		/* Most transports have no time wait; nobody should have to tick for that. */
		if (!caps.time_wait_ms) {
			c->deadline = 0;
			sdp_conn_step(c, SDPE_TIMEOUT);
		}
		break;
	default: sdp_conn_arm(c, c->attr.close_ms); break;
	}
}

static void act_arm_if_closed(struct sdp_conn *c)
{
	if (c->closed)
		act_arm(c);
}

static void act_stop(struct sdp_conn *c)
{
	c->deadline = c->tear_down_at = 0;
}

static void act_disconn(struct sdp_conn *c)
{
	c->disconn_due = true;
}

/*
 * Both DisConns have passed. Over iWARP a message that meets the end of the transport makes it a
 * bad one, and may cost the peer octets it has not read. If the peer's DisConn came last, nothing
 * is under way to us and we can tear down. If ours went last, credits or answers may be under way,
 * which the peer sent before it knew; it will tear down, being in the other position. Somebody
 * who leaves that to us is waited for a while only.
 */
static void act_tear_down(struct sdp_conn *c)
{
	if (!sdp_conn_is_live(c))
		return;
	if (c->event == SDPE_DISCONN_SENT)
		c->tear_down_at = clock_now() + c->attr.linger_ms * NSEC_PER_MSEC;
	else
		c->llp->ops->disconnect(c->llp);
}

/* What was received and not read stays where it is, until sdp_conn_fini(). */
static void act_cut(struct sdp_conn *c)
{
	act_stop(c);
	c->disconn_due = false;
	c->stash_from = c->stash_to = 0;
	if (!sdp_conn_is_live(c))
		return;
	/* AbortConn is to arrive, so the end comes behind it. */
	if (c->event == SDPE_ABORT_SENT && c->abort_sent)
		c->llp->ops->disconnect(c->llp);
	else
		c->llp->ops->abort(c->llp);
	c->cut = true;
}

static void tell(struct sdp_conn *c, uint32_t status, int error)
{
	c->status |= status;
	if (!c->error)
		c->error = error;
	c->news = true;
}

static void act_tell_open(struct sdp_conn *c)
{
	tell(c, SDP_IS_OPEN, 0);
	if (c->listener)
		sdp_listener_queue(c);
}

static void act_tell_eof(struct sdp_conn *c)
{
	tell(c, SDP_IS_EOF, 0);
}

static void act_tell_failed(struct sdp_conn *c)
{
	tell(c, SDP_IS_FAILED, ECONNREFUSED);
}

static void act_tell_reset(struct sdp_conn *c)
{
	tell(c, SDP_IS_RESET, c->status & SDP_IS_EOF ? EPIPE : ECONNRESET);
}

static void act_tell_closed(struct sdp_conn *c)
{
	tell(c, SDP_IS_CLOSED, 0);
}

/* SPAWN and DROP_CHILDREN are the listener's. */
static void act_nothing(struct sdp_conn *c)
{
	(void)c;
}

/* In the order in which they are performed: TELL comes after what it tells. */
static void (*const actions[SDPA_NACTIONS])(struct sdp_conn *) = {
	[SDPA_BIT_RESOLVE] = sdp_setup_resolve,
	[SDPA_BIT_SPAWN] = act_nothing,
	[SDPA_BIT_REFUSE] = sdp_setup_refuse,
	[SDPA_BIT_DROP_CHILDREN] = act_nothing,
	[SDPA_BIT_TX_HELLO] = sdp_setup_hello,
	[SDPA_BIT_TX_HELLO_ACK] = sdp_setup_hello_ack,
	[SDPA_BIT_TX_READY] = sdp_setup_ready,
	[SDPA_BIT_TX_DISCONN] = act_disconn,
	[SDPA_BIT_TX_ABORT] = sdp_tx_abort,
	[SDPA_BIT_TEAR_DOWN] = act_tear_down,
	[SDPA_BIT_CUT] = act_cut,
	[SDPA_BIT_ARM] = act_arm,
	[SDPA_BIT_ARM_IF_CLOSED] = act_arm_if_closed,
	[SDPA_BIT_STOP] = act_stop,
	[SDPA_BIT_TELL_OPEN] = act_tell_open,
	[SDPA_BIT_TELL_EOF] = act_tell_eof,
	[SDPA_BIT_TELL_FAILED] = act_tell_failed,
	[SDPA_BIT_TELL_RESET] = act_tell_reset,
	[SDPA_BIT_TELL_CLOSED] = act_tell_closed,
};

/* Actions that end in another event; their row is not to be touched by it while it is acted upon. */
#define LAST_ACTIONS                                                                        \
	(SDPA_RESOLVE | SDPA_TX_HELLO | SDPA_TX_HELLO_ACK | SDPA_TX_READY | SDPA_TX_ABORT | \
	 SDPA_ARM | SDPA_ARM_IF_CLOSED)

static void perform(struct sdp_conn *c, uint32_t which, enum sdp_event e)
{
	for (unsigned bit = 0; bit < SDPA_NACTIONS; bit++) {
		if (which & 1u << bit) {
			c->event = e;
			actions[bit](c);
		}
	}
}

void sdp_conn_step(struct sdp_conn *c, enum sdp_event e)
{
	struct fsm_edge edge = sdp_fsm_step(c->state, e);

	if (edge.next == SDPS_ILLEGAL) {
		c->illegal++;
		return;
	}
	c->state = edge.next;
	perform(c, edge.actions & ~LAST_ACTIONS, e);
	/* A timer first: what fails at once stops it. */
	perform(c, edge.actions & (SDPA_ARM | SDPA_ARM_IF_CLOSED), e);
	perform(c, edge.actions & LAST_ACTIONS & ~(SDPA_ARM | SDPA_ARM_IF_CLOSED), e);
	if (c->state == SDPS_ERROR && c->closed)
		sdp_conn_step(c, SDPE_CLOSE);
	/* Nobody knows of a child that was never open. */
	if (c->listener && c->state == SDPS_CLOSED && !(c->status & SDP_IS_OPEN))
		c->orphan = true;
}

void sdp_conn_bad(struct sdp_conn *c, const char *why)
{
	c->why = why;
	sdp_conn_step(c, SDPE_RX_BAD);
}

/* ---- in and out ---- */

void sdp_conn_enter(struct sdp_conn *c)
{
	lock_take(&c->lock);
}

/* A child that came to nothing. No lock held. */
static void drop_orphan(struct sdp_conn *c, struct sdp_listener *l)
{
	/* Else the listener is being closed, and it is dropped there. */
	if (!sdp_listener_remove(l, c))
		return;
	sdp_conn_fini(c);
	l->drop(l, c);
}

void sdp_conn_leave(struct sdp_conn *c)
{
	struct sdp_listener *l = c->listener, *open = NULL;
	struct oti_conn *rubbish;
	sdp_notify_fn notify = NULL;
	void *arg = c->attr.arg;
	bool orphan;

	sdp_tx_pump(c);
	orphan = c->orphan;
	rubbish = c->rubbish;
	c->rubbish = NULL;
	if (c->news && !l)
		notify = c->attr.notify;
	if (c->news && c->queued)
		open = l;
	c->news = false;
	lock_give(&c->lock);
	if (rubbish)
		rubbish->ops->release(rubbish);
	if (orphan)
		drop_orphan(c, l);
	else if (open && open->notify)
		open->notify(open);
	else if (notify)
		notify(c, arg);
}

/* ---- up-calls that are not about set-up or messages ---- */

static void on_up(struct oti_conn *conn)
{
	struct sdp_conn *c = conn->user;

	sdp_conn_enter(c);
	if (conn == c->llp && !c->cut)
		sdp_conn_step(c, SDPE_UP);
	sdp_conn_leave(c);
}

static void on_room(struct oti_conn *conn)
{
	struct sdp_conn *c = conn->user;

	/* What waits goes out in leave(). */
	sdp_conn_enter(c);
	sdp_conn_leave(c);
}

static void on_rdma_done(struct oti_conn *conn, uint64_t id, int status)
{
	(void)conn;
	(void)id;
	(void)status;
}

static void on_down(struct oti_conn *conn, enum oti_down how)
{
	static const enum sdp_event events[] = {
		[OTI_DOWN_OWN] = SDPE_DOWN,
		[OTI_DOWN_PEER] = SDPE_LLP_CLOSED,
		[OTI_DOWN_LOST] = SDPE_LLP_LOST,
	};
	struct sdp_conn *c = conn->user;

	sdp_conn_enter(c);
	if (conn == c->llp && !c->cut) {
		if (c->move)
			sdp_move_on(c);
		else
			sdp_conn_step(c, events[how]);
	}
	sdp_conn_leave(c);
}

const struct oti_upcalls sdp_upcalls = {
	.accepted = sdp_setup_accepted,
	.failed = sdp_setup_failed,
	.up = on_up,
	.received = sdp_rx_received,
	.room = on_room,
	.rdma_done = on_rdma_done,
	.down = on_down,
};

/* ---- calls of the program ---- */

static uint32_t or_default(uint32_t value, uint32_t standard, uint32_t most)
{
	return min_u32(value ? value : standard, most);
}

int sdp_conn_init(struct sdp_conn *c, const struct sdp_attr *attr)
{
	struct sdp_attr *a = &c->attr;
	struct oti_caps caps;

	attr->oti->ops->caps(attr->oti, &caps);
	memset(c, 0, sizeof(*c));
	lock_init(&c->lock);
	c->state = SDPS_CLOSED;
	*a = *attr;
	a->bufs = (uint16_t)or_default(a->bufs, DEFAULT_BUFS, min_u32(caps.max_bufs, 0xffff));
	a->buf_size = or_default(a->buf_size, DEFAULT_BUF_SIZE, caps.max_message);
	a->max_adverts = (uint16_t)or_default(a->max_adverts, SDP_ADVERTS_MAX, SDP_ADVERTS_MAX);
	a->reads = a->reads ? a->reads : DEFAULT_READS;
	a->version = a->version ? a->version : DEFAULT_VERSION;
	a->connect_ms = a->connect_ms ? a->connect_ms : DEFAULT_CONNECT_MS;
	a->close_ms = a->close_ms ? a->close_ms : DEFAULT_CLOSE_MS;
	a->linger_ms = a->linger_ms ? a->linger_ms : DEFAULT_LINGER_MS;
	return a->bufs < SDP_BUFS_MIN || a->buf_size < SDP_RCV_MIN ? -EINVAL : 0;
}

void sdp_conn_fini(struct sdp_conn *c)
{
	struct oti_conn *llp, *shell;

	/* An up-call that runs meanwhile finds nothing to do, and release() waits for it. */
	lock_take(&c->lock);
	llp = c->llp;
	shell = c->shell;
	c->llp = c->shell = NULL;
	c->first = c->last = NULL;
	c->unread = 0;
	c->deadline = c->tear_down_at = 0;
	c->listener = NULL;
	c->orphan = false;
	lock_give(&c->lock);
	if (llp)
		llp->ops->release(llp);
	if (shell)
		shell->ops->release(shell);
}

int sdp_conn_connect(struct sdp_conn *c, const struct oti_addr *remote)
{
	int rc = 0;

	sdp_conn_enter(c);
	if (c->state != SDPS_CLOSED || c->status || c->closed) {
		rc = -EISCONN;
	} else {
		c->peer = *remote;
		sdp_conn_step(c, SDPE_CONNECT);
		if (c->status & SDP_IS_FAILED)
			rc = -c->error;
	}
	/* Who gets the error needs no notice. */
	c->news = c->news && !rc;
	sdp_conn_leave(c);
	return rc;
}

static bool is_connected(const struct sdp_conn *c)
{
	return c->state != SDPS_CLOSED && c->state != SDPS_REQ_PATH && c->state != SDPS_REQ_SENT;
}

int sdp_conn_shut(struct sdp_conn *c)
{
	int rc = 0;

	sdp_conn_enter(c);
	if (is_connected(c)) {
		c->shut = true;
		sdp_conn_step(c, SDPE_SHUT);
	} else {
		rc = -ENOTCONN;
	}
	sdp_conn_leave(c);
	return rc;
}

void sdp_conn_shut_read(struct sdp_conn *c)
{
	sdp_conn_enter(c);
	c->shut_read = true;
	sdp_rx_discard(c);
	sdp_conn_leave(c);
}

void sdp_conn_abort(struct sdp_conn *c)
{
	sdp_conn_enter(c);
	if (!c->error)
		c->error = ECONNABORTED;
	c->shut = true;
	sdp_conn_step(c, SDPE_ABORT);
	sdp_conn_leave(c);
}

void sdp_conn_close(struct sdp_conn *c)
{
	bool lossy;

	sdp_conn_enter(c);
	if (!c->closed) {
		lossy = c->unread || (sdp_conn_is_live(c) && sdp_half_unfinished(&c->halves));
		sdp_rx_discard(c);
		c->closed = c->shut = true;
		/* The peer believes that its octets were read (RFC 1122, 4.2.2.13). */
		if (lossy)
			sdp_conn_step(c, SDPE_ABORT);
		sdp_conn_step(c, SDPE_CLOSE);
	}
	sdp_conn_leave(c);
}

uint32_t sdp_conn_status(struct sdp_conn *c)
{
	uint32_t status;

	lock_take(&c->lock);
	status = c->status;
	if (c->first || status & (SDP_IS_EOF | SDP_IS_RESET | SDP_IS_FAILED))
		status |= SDP_IS_READABLE;
	if (sdp_tx_is_writable(c) || status & (SDP_IS_RESET | SDP_IS_FAILED))
		status |= SDP_IS_WRITABLE;
	else
		c->blocked = true; /* who asks will wait for it */
	if (c->halves.in.oob_pending || (c->first && c->first->mark))
		status |= SDP_IS_URGENT;
	if (c->move)
		status |= SDP_IS_MOVING;
	lock_give(&c->lock);
	return status;
}

bool sdp_conn_is_done(struct sdp_conn *c)
{
	bool done;

	lock_take(&c->lock);
	done = c->closed && c->state == SDPS_CLOSED;
	lock_give(&c->lock);
	return done;
}

/* ---- timers ---- */

uint64_t sdp_conn_deadline(struct sdp_conn *c)
{
	uint64_t at;

	lock_take(&c->lock);
	at = c->deadline;
	if (c->tear_down_at && (!at || c->tear_down_at < at))
		at = c->tear_down_at;
	lock_give(&c->lock);
	return at;
}

static void timeout(struct sdp_conn *c)
{
	c->deadline = 0;
	/* In the time waits it is an ordinary end. */
	if (c->state != SDPS_TIME_WAIT_1 && c->state != SDPS_TIME_WAIT_2 && !c->error)
		c->error = ETIMEDOUT;
	sdp_conn_step(c, c->move ? SDPE_LLP_LOST : SDPE_TIMEOUT);
}

void sdp_conn_tick(struct sdp_conn *c, uint64_t now)
{
	sdp_conn_enter(c);
	if (c->tear_down_at && now >= c->tear_down_at) {
		c->tear_down_at = 0;
		if (sdp_conn_is_live(c))
			c->llp->ops->disconnect(c->llp);
	}
	if (c->deadline && now >= c->deadline)
		timeout(c);
	sdp_conn_leave(c);
}
