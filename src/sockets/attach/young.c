/* SPDX-License-Identifier: MIT */
/*
 * Connections without a lane: counting towards one, asking the switch for it, and the step onto the lane.
 * What stays on TCP must not notice: once a connection is plain, a call costs one look at its record.
 */
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/clock.h"
#include "base/robust.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/bell.h"
#include "channel/diag.h"
#include "channel/ladder.h"
#include "channel/meet.h"
#include "channel/times.h"
#include "sockets/attach/ops_lane.h"
#include "sockets/attach/young.h"
#include "sockets/record/order.h"
#include "sockets/record/raw.h"
#include "sockets/record/real.h"
#include "sockets/record/record.h"
#include "sockets/record/settings.h"
#include "sockets/record/sock.h"
#include "sockets/record/why.h"
#include "sockets/sleep/epoll.h"
#include "sockets/stream/stream.h"

/* Requests and replies before a lane is looked for: those that carry one never pay. */
#define EXCHANGES_ENOUGH 2
#define BYTES_ENOUGH     (64u << 10)
/* So much at once is worth a wait for the peer to take the offer, as long as it has this much to read. */
#define PACE_SENT   (16u << 10)
#define PACE_UNREAD BYTES_ENOUGH

/* --- positions in the stream, from the kernel's counters */

static bool kernel_positions(int fd, uint32_t role, uint64_t *sent, uint64_t *received, bool *ended)
{
	struct tcp_info info;

	for (int i = 0; i < 8; i++) {
		int out1 = 0, out2 = 0, in1 = 0, in2 = 0;
		socklen_t size = sizeof(info);

		memset(&info, 0, sizeof(info));
		if (real(ioctl)(fd, SIOCOUTQ, &out1) != 0 || real(ioctl)(fd, SIOCINQ, &in1) != 0 ||
		    real(getsockopt)(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
		    real(ioctl)(fd, SIOCOUTQ, &out2) != 0 || real(ioctl)(fd, SIOCINQ, &in2) != 0)
			return false;
		*ended = info.tcpi_state != 1 /* established */;
		if (*ended || size < offsetof(struct tcp_info, tcpi_segs_out))
			return false;
		if (out1 != out2 || in1 != in2)
			continue; /* something moved between */
		/* The SYN of the end that connected was acknowledged like an octet. */
		*sent = info.tcpi_bytes_acked + (uint64_t)out1 - (role == MEET_ACTIVE ? 1 : 0);
		*received = info.tcpi_bytes_received - (uint64_t)in1;
		return true;
	}
	return false;
}

/* --- onto the lane */

static void set_up(struct rec *r, int fd, uint64_t sent, uint64_t received)
{
	struct arena_shared *m = arena_memory(r->end.arena);
	struct lane_shared *l = &m->lane[r->end.lane];

	atomic_store(&order_matters, true);
	r->order_peer = order_peer(arena_peer(r->end.arena));
	r->lane_pid = getpid();
	atomic_store(&l->pid[r->end.side], r->lane_pid);
	atomic_store(&l->fd[r->end.side], fd);
	LANE_STORE(r->hint_pid, r->lane_pid);
	lane_tx_init(&r->tx, &l->dir[r->end.side],
		     arena_ring(r->end.arena, r->end.lane, r->end.side), sent);
	lane_rx_init(&r->rx, &l->dir[1 - r->end.side],
		     arena_ring(r->end.arena, r->end.lane, 1 - r->end.side), received);
	if (r->end.side == 0)
		atomic_fetch_or(&r->flags, REC_UNANSWERED);
	r->spin = ladder_profile.spin_ns;
	r->rx_stir = &m->stir[r->end.side].lane[r->end.lane];
	r->tx_stir = &m->stir[1 - r->end.side].lane[r->end.lane];
	r->rx_rung = &m->rung[r->end.side];
	r->tx_rung = &m->rung[1 - r->end.side];
	r->tx_holds = &m->holds[1 - r->end.side];
	r->bell_pid = bell_own() >= 0 ? getpid() : 0;
	r->end.bell_asks = 0;
	r->nap = 0;
	r->tx_before = BYTES_ENOUGH;
	r->absent = 0;
	r->looked_at = 0;
}

static bool is_number_of(int fd, const void *rec)
{
	return sock_at(fd) == rec;
}

/* Some call is in the kernel with unknown outcome; or another program has it, or may be getting it. */
static bool is_used_elsewhere(struct rec *r)
{
	return atomic_load(&sock_keeping(r)->calls) > 0 || raw_any(is_number_of, r) ||
	       atomic_load(&sock_spawns) > 0 || sock_flag(r, REC_EXECED);
}

/* The lane is agreed on; begin with it. With the lock of sending. */
static bool attach(struct rec *r, int fd)
{
	uint64_t sent, received;
	bool ok = false, ended = sock_flag(r, REC_SHUT_WR | REC_SHUT_RD);

	if (atomic_load(&r->procs) > 1 || !robust_take(&r->rx_lock))
		return false;
	/* Said and then looked; counted and then looked, in sock_enter(): one sees the other's. */
	if (record_step(r, REC_EV_BEGIN) == REC_ILLEGAL)
		goto out;
	if (!ended && !is_used_elsewhere(r) &&
	    kernel_positions(fd, r->end.role, &sent, &received, &ended)) {
		set_up(r, fd, sent, received);
		stream_prepare_carrier(r, fd);
		/* Other threads may use the lane from here on. */
		ok = record_step(r, REC_EV_ATTACHED) != REC_ILLEGAL;
		if (ok)
			lane_rx_attach(&r->rx);
		else
			stream_restore_options(r, fd);
	}
	if (ok)
		atomic_fetch_add(&r->home->lanes, 1);
	if (ended)
		atomic_store_explicit(&r->why, WHY_SHUT, memory_order_relaxed);
	if (!ok)
		record_step(r, ended ? REC_EV_TCP : REC_EV_NOT_YET);
out:
	robust_give(&r->rx_lock);
	return ok;
}

/* --- towards a lane */

static _Atomic int64_t paced_in_vain;

static void to_policy(struct policy_address *out, const struct sockaddr_in6 *in)
{
	bool v4 = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);

	memset(out, 0, sizeof(*out));
	out->family = v4 ? AF_INET : AF_INET6;
	memcpy(out->octets, in->sin6_addr.s6_addr + (v4 ? 12 : 0), v4 ? 4 : 16);
	out->port = be16toh(in->sin6_port);
}

static bool rules_deny(struct rec *r)
{
	struct policy_query q = { .program = settings.self.program, .alias = settings.self.alias };
	struct policy_answer answer;

	if (settings.user_rules)
		q.uid = geteuid();
	q.role = r->end.role == MEET_PASSIVE ? POLICY_LISTEN : POLICY_CONNECT;
	to_policy(&q.local, &r->end.self);
	to_policy(&q.remote, &r->end.peer);
	answer = policy_ask(&settings.policy, &q);
	if (!settings.bad_rules && answer.offload)
		return false;
	atomic_store_explicit(&r->why,
			      why_rule(settings.bad_rules ? WHY_RULES : WHY_POLICY,
				       answer.from_file, answer.line),
			      memory_order_relaxed);
	return true;
}

static bool give_up(struct rec *r)
{
	return record_step(r, REC_EV_REFUSE) != REC_ILLEGAL;
}

/* Some protocol of the switch has the connection, and there is but one that needs us. */
static bool take_lane(struct rec *r, int fd)
{
	bool ok = false;
	int unread = 0;

	if (atomic_load_explicit(&paced_in_vain, memory_order_relaxed) > 0)
		atomic_fetch_sub_explicit(&paced_in_vain, 2 * PACE_NS, memory_order_relaxed);
	/* Both ends have the library and will use it: what is sent from here on counts. */
	if (real(ioctl)(fd, SIOCINQ, &unread) == 0)
		atomic_fetch_add(&r->rx_before, (uint64_t)unread);
	if (record_step(r, REC_EV_AGREE) != REC_ILLEGAL)
		ok = attach(r, fd);
	/* Not one that has ended meanwhile. */
	if (atomic_load(&r->state) != REC_PLAIN &&
	    !(atomic_fetch_or(&r->flags, REC_ELIGIBLE) & REC_ELIGIBLE))
		atomic_fetch_add(&r->home->eligible, 1);
	return ok;
}

static uint64_t next_look(const struct rec *r)
{
	return LANE_LOAD(r->young_tx) + LANE_LOAD(r->young_rx) + BYTES_ENOUGH;
}

/* Ask the switch who carries this connection. With the lock of sending. True: it has a lane now. */
static bool decide(struct rec *r, int fd)
{
	struct ops_route route = { .remote = (const struct sockaddr *)&r->end.peer,
				   .length = sizeof(r->end.peer) };
	uint32_t from = atomic_load(&r->state);
	int bound;

	ops_prune(&r->ops);
	if (r->ops.bound == OPS_NATIVE) {
		/* Nobody is left who could have said why. */
		if (give_up(r))
			atomic_store_explicit(&r->why, WHY_NATIVE, memory_order_relaxed);
		return false;
	}
	route.denied = from == REC_YOUNG && rules_deny(r);
	bound = r->ops.connected ? ops_decide(&r->ops, &route) : ops_connect(&r->ops, &route);
	if (bound == OPS_NATIVE)
		give_up(r);
	else if (bound >= 0)
		return take_lane(r, fd);
	else if (from == REC_YOUNG && atomic_load(&r->state) == REC_POSTED) {
		r->checks = 0;
		r->check_at = next_look(r);
	}
	return false;
}

/* An offer stands. It is looked at at every exchange, and after every so many octets. */
static bool decide_posted(struct rec *r, int fd, bool exchanged)
{
	if (!exchanged && LANE_LOAD(r->young_tx) + LANE_LOAD(r->young_rx) < r->check_at)
		return false;
	r->check_at = next_look(r);
	r->checks += exchanged ? OPS_LANE_LOOKS / OPS_LANE_EXCHANGES + 1 : 1;
	return decide(r, fd);
}

static bool is_old_enough(const struct rec *r)
{
	uint64_t tx = LANE_LOAD(r->young_tx), rx = LANE_LOAD(r->young_rx);

	if (LANE_LOAD(r->goal) > 0)
		return tx + rx >= LANE_LOAD(r->goal);
	if (sock_flag(r, REC_ASKED))
		return true;
	return LANE_LOAD(r->exchanges) >= EXCHANGES_ENOUGH || tx >= BYTES_ENOUGH ||
	       rx >= BYTES_ENOUGH;
}

/* One thread at a time sees to it, with the lock of sending, so that the number stays what it is. False: not now. */
static bool begin_growing(struct rec *r, int fd)
{
	if (settings.sealed || !robust_try(&r->tx_lock))
		return false; /* every system call could be the last; or another thread is at it */
	if (sock_at(fd) == r)
		return true;
	robust_give(&r->tx_lock);
	return false;
}

static void end_growing(struct rec *r, bool lane)
{
	robust_give(&r->tx_lock);
	if (lane)
		epoll_lane_appeared(r);
}

static void grow_up(struct rec *r, int fd, bool exchanged)
{
	int saved = errno;
	bool lane = false;
	int cancel;

	if (atomic_load_explicit(&r->state, memory_order_relaxed) == REC_YOUNG && !is_old_enough(r))
		return;
	if (!begin_growing(r, fd))
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE,
			       &cancel); /* locks, and letters half written */
	switch (atomic_load(&r->state)) {
	case REC_YOUNG: lane = sock_identify(r, fd) && decide(r, fd); break;
	case REC_POSTED: lane = decide_posted(r, fd, exchanged); break;
	case REC_AGREED: lane = attach(r, fd); break;
	}
	end_growing(r, lane);
	pthread_setcancelstate(cancel, NULL);
	errno = saved;
}

/* A short sleep that lets a peer on the same processor run. */
static void pause_for_peer(void)
{
	const struct timespec pause = { .tv_nsec = PACE_PAUSE };
	uint64_t before = clock_now();

	sched_yield();
	if (clock_now() - before < (uint64_t)pause.tv_nsec)
		sys_call(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
}

/* How much the other end has in its queue; false: nobody knows. */
static bool peer_unread(const struct rec *r, size_t *n)
{
	struct diag end;

	if (!diag_peer(&r->end.self, &r->end.peer, &end))
		return false;
	*n = end.unread;
	return true;
}

/* Is our offer taken? True: nothing to wait for any more. */
static bool is_settled(struct rec *r, int fd)
{
	size_t unread = 0;
	bool lane = false, wait;

	if (!begin_growing(r, fd))
		return true;
	if (atomic_load(&r->state) == REC_POSTED)
		lane = decide(r, fd);
	wait = atomic_load(&r->state) == REC_POSTED && peer_unread(r, &unread) &&
	       unread >= PACE_UNREAD;
	end_growing(r, lane);
	return !wait;
}

/*
 * Who sends much at once has filled the kernel's buffers, some megabytes, before the peer has read enough to look for
 * a lane. As long as the peer has enough to read it does not notice that we wait. Not for calls that must not.
 */
void young_pace(struct rec *r, int fd, size_t sent)
{
	uint64_t start, took;
	int cancel;

	if (sent < PACE_SENT || atomic_load_explicit(&r->state, memory_order_relaxed) != REC_POSTED)
		return;
	start = clock_now();
	if (LANE_LOAD(r->goal) > 0 || LANE_LOAD(r->paced) >= PACE_NS || settings.sealed ||
	    sock_flag(r, REC_NONBLOCK) ||
	    atomic_load_explicit(&paced_in_vain, memory_order_relaxed) > PACE_VAIN)
		return;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	while (!is_settled(r, fd) && LANE_LOAD(r->paced) + clock_now() - start < PACE_NS)
		pause_for_peer();
	pthread_setcancelstate(cancel, NULL);
	took = min_u64(clock_now() - start, PACE_NS);
	LANE_STORE(r->paced, LANE_LOAD(r->paced) + (uint32_t)took);
	if (atomic_load(&r->state) == REC_POSTED)
		atomic_fetch_add_explicit(&paced_in_vain, (int64_t)took, memory_order_relaxed);
}

static bool count_exchange(struct rec *r, uint32_t direction)
{
	uint32_t last = LANE_LOAD(r->last);
	bool exchanged = last != 0 && last != direction;

	/* Several threads may count at a time; it need not be exact. */
	LANE_STORE(r->last, direction);
	if (exchanged)
		LANE_STORE(r->exchanges, LANE_LOAD(r->exchanges) + 1);
	return exchanged;
}

void young_grow(struct rec *r, int fd, size_t size)
{
	uint32_t state = atomic_load_explicit(&r->state, memory_order_acquire);

	if (state == REC_OPEN) {
		sock_look_connected(r, fd);
		state = atomic_load(&r->state);
	}
	if (state >= REC_YOUNG && state <= REC_AGREED) {
		bool exchanged = count_exchange(r, 1);

		LANE_STORE(r->young_tx, LANE_LOAD(r->young_tx) + size);
		grow_up(r, fd, exchanged);
	}
}

/* The last look at the table, once it is known with which number we go to the kernel. */
static enum young_kind look_last(struct raw_call *c, struct rec *r, int fd)
{
	struct rec *now;

	raw_begins(c, fd);
	if (r && !sock_enter(r))
		return YOUNG_OURS;
	c->r = r;
	now = sock_at(fd);
	if (now == r || (!r && (!sock_is_rec(now) || atomic_load(&now->state) == REC_PLAIN)))
		return YOUNG_PLAIN;
	return YOUNG_OTHER;
}

enum young_kind young_before_send(struct raw_call *c, struct rec *r, int fd, size_t size)
{
	if (r)
		young_grow(r, fd, size);
	return look_last(c, r, fd);
}

enum young_kind young_before_receive(struct raw_call *c, struct rec *r, int fd)
{
	uint32_t state = r ? atomic_load_explicit(&r->state, memory_order_acquire) : REC_PLAIN;

	if (state == REC_OPEN)
		sock_look_connected(r, fd);
	else if (state == REC_AGREED)
		grow_up(r, fd, false);
	return look_last(c, r, fd);
}

void young_after_send(struct raw_call *c, int fd, ssize_t n, int flags)
{
	struct rec *r = c->r;
	bool kept = r && sock_keep(r, fd);

	sock_raw_ends(c);
	if (!kept)
		return;
	if (n > 0 && sock_flag(r, REC_ELIGIBLE))
		atomic_fetch_add_explicit(&r->sent.tcp_bytes, (uint64_t)n, memory_order_relaxed);
	if (n > 0 && !(flags & MSG_DONTWAIT))
		young_pace(r, fd, (size_t)n);
	sock_release(r);
}

void young_after_receive(struct raw_call *c, int fd, ssize_t n, int flags)
{
	struct rec *r = c->r;
	bool kept = r && sock_keep(r, fd);
	uint32_t state = kept ? atomic_load_explicit(&r->state, memory_order_acquire) : REC_PLAIN;

	sock_raw_ends(c);
	if (!kept)
		return;
	if (n > 0 && !(flags & MSG_PEEK) && sock_flag(r, REC_ELIGIBLE))
		stream_count_carrier(r, (uint64_t)n);
	if (n > 0 && !(flags & MSG_PEEK) && state >= REC_YOUNG && state <= REC_AGREED) {
		bool exchanged = count_exchange(r, 2);

		LANE_STORE(r->young_rx, LANE_LOAD(r->young_rx) + (uint64_t)n);
		grow_up(r, fd, exchanged);
	}
	sock_release(r);
}
