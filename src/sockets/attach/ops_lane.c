/* SPDX-License-Identifier: MIT */
#include "sockets/attach/ops_lane.h"

#include <errno.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <flue/offload.h>

#include "base/util.h"
#include "channel/diag.h"
#include "channel/meet.h"
#include "sockets/stream/hello.h"
#include "sockets/switch/ops.h"
#include "sockets/record/process.h"
#include "sockets/record/record.h"
#include "sockets/record/settings.h"
#include "sockets/record/sock.h"
#include "sockets/record/tell.h"
#include "sockets/record/user.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif

/* When the peer did not come, it is looked for again after this much, then 16 times as much ... */
#define BYTES_AGAIN (256u << 10)
#define BYTES_LAST  (64u << 20)

static _Atomic int number = -1;

/* --- is there a lane? */

static bool is_local(const struct rec *r)
{
	const struct in6_addr *p = &r->end.peer.sin6_addr;

	if (IN6_IS_ADDR_V4MAPPED(p) ? p->s6_addr[12] == 127 : IN6_IS_ADDR_LOOPBACK(p))
		return true;
	return memcmp(p, &r->end.self.sin6_addr, sizeof(*p)) == 0;
}

/* There will be none. */
static int refuse(struct rec *r, enum why why)
{
	atomic_store_explicit(&r->why, why, memory_order_relaxed);
	switch (why) {
	case WHY_REMOTE: return -EHOSTUNREACH;
	case WHY_USER:
	case WHY_PEER: return -ECONNREFUSED;
	case WHY_SHUT: return -ESHUTDOWN;
	case WHY_LIMIT: return -ENOBUFS;
	case WHY_CHECK: return -EACCES;
	case WHY_HELLO:
	case WHY_ROLE: return -EPROTO;
	default: return -ENOTSUP;
	}
}

static bool peer_user(const struct rec *r, uint32_t *uid)
{
	struct diag end;

	if (!diag_peer(&r->end.self, &r->end.peer, &end) || end.inode == 0)
		return false;
	*uid = end.uid;
	return true;
}

/* Whose is it? Asked once. */
static enum why absent(struct rec *r)
{
	if (r->goal == 0 && peer_user(r, &r->peer_uid) && r->peer_uid != geteuid())
		return WHY_USER;
	return atomic_load(&r->why) == WHY_USER ? WHY_USER : WHY_PEER;
}

/* The peer did not come. It may yet: another process may have the connection by then. So a connection that
 * goes on moving octets asks again, a few times in its life. */
static int no_peer(struct rec *r)
{
	if (r->goal >= BYTES_LAST)
		return refuse(r, absent(r));
	atomic_store_explicit(&r->why, absent(r), memory_order_relaxed);
	LANE_STORE(r->goal, r->goal < BYTES_AGAIN ? BYTES_AGAIN : r->goal * 16);
	r->checks = 0;
	record_step(r, REC_EV_NO_PEER);
	if (settings.why)
		tell_absent(r);
	return -EAGAIN;
}

static const struct meet_greeting greeting = { .offer = hello_offer, .answer = hello_answer };

static const enum why reasons[] = {
	[MEET_BOARD] = WHY_BOARD, [MEET_CHECK] = WHY_CHECK,    [MEET_ROLE] = WHY_ROLE,
	[MEET_LIMIT] = WHY_LIMIT, [MEET_GREETING] = WHY_HELLO,
};

static int met(struct rec *r)
{
	r->rx_before = r->end.unsent;
	return 0;
}

static int look_for_peer(struct rec *r)
{
	enum meet_refusal why;

	if (atomic_load(&r->procs) > 1)
		return -EAGAIN; /* another process may use it; when it has let go, we can */
	if (!is_local(r))
		return refuse(r, WHY_REMOTE);
	if (sock_flag(r, REC_SHUT_WR | REC_SHUT_RD))
		return refuse(r, WHY_SHUT);
	if (sock_flag(r, REC_EXECED))
		return refuse(r, WHY_EXEC);
	if (r->checks++ > OPS_LANE_EXCHANGES)
		return no_peer(r);
	if (!process_is_self())
		return -EAGAIN;
	switch (meet_peer(&r->end, &greeting, &why)) {
	case MEET_LANE: return met(r);
	case MEET_NEVER: return refuse(r, reasons[why]);
	case MEET_POSTED:
		if (record_step(r, REC_EV_OFFER) == REC_ILLEGAL)
			meet_withdraw(&r->end);
		break;
	case MEET_NOTHING: break;
	}
	return -EAGAIN;
}

/* Our offer stands: is it taken? */
static int look_at_offer(struct rec *r)
{
	enum meet_refusal why;

	if (atomic_load(&r->procs) > 1)
		return -EAGAIN; /* a lane now would be this process's alone */
	if (sock_flag(r, REC_EXECED)) {
		meet_withdraw(&r->end);
		return refuse(r, WHY_EXEC);
	}
	switch (meet_check(&r->end, &greeting, &why)) {
	case MEET_LANE: return met(r);
	case MEET_NEVER: return refuse(r, reasons[why]);
	case MEET_POSTED:
		if (r->checks <= OPS_LANE_LOOKS + 2)
			break;
		meet_withdraw(&r->end);
		return no_peer(r);
	case MEET_NOTHING: break;
	}
	return -EAGAIN;
}

/* Which of the two ends this is does not matter. Cheap as long as the connection is only just made. */
static int seek(struct rec *r)
{
	switch (atomic_load(&r->state)) {
	case REC_YOUNG: return look_for_peer(r);
	case REC_POSTED: return look_at_offer(r);
	default: return -EAGAIN;
	}
}

/* What the kernel does with octets, which it does not see on a lane. Up to `off` the value asks for nothing; without a
 * value that says so the option is always on. */
static const struct {
	int level, name;
	int off;
} kernel_only[] = {
	{ SOL_SOCKET, SO_TIMESTAMP_OLD, 0 },    { SOL_SOCKET, SO_TIMESTAMP_NEW, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPNS_OLD, 0 },  { SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0 },
	{ SOL_SOCKET, SO_TIMESTAMPING_OLD, 0 }, { SOL_SOCKET, SO_TIMESTAMPING_NEW, 0 },
	{ SOL_SOCKET, SO_PEEK_OFF, -1 },        { SOL_SOCKET, SO_RCVLOWAT, 1 },
	{ SOL_SOCKET, SO_OOBINLINE, 0 },        { SOL_SOCKET, SO_ATTACH_FILTER, INT_MIN },
	{ SOL_SOCKET, SO_ATTACH_BPF, INT_MIN }, { IPPROTO_TCP, TCP_ULP, INT_MIN },
	{ IPPROTO_TCP, TCP_REPAIR, 0 },         { IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 0 },
	{ IPPROTO_TCP, TCP_FASTOPEN, INT_MIN },
};

bool ops_lane_can(int level, int name, const void *value, socklen_t length)
{
	int asked = INT_MAX;

	if (length >= sizeof(asked) && user_readable(value, sizeof(asked)))
		memcpy(&asked, value, sizeof(asked));
	for (size_t i = 0; i < ARRAY_SIZE(kernel_only); i++)
		if (kernel_only[i].level == level && kernel_only[i].name == name)
			return asked <= kernel_only[i].off;
	return true;
}

/* --- entry points */

static int lane_create(void *arg, void *user, const struct ops_want *want)
{
	(void)arg;
	(void)user;
	(void)want;
	return 0;
}

static int lane_bind(void *arg, void *user, const struct sockaddr *local, socklen_t length,
		     uint16_t *port)
{
	(void)arg;
	(void)user;
	(void)local;
	(void)length;
	(void)port;
	return 0; /* the port is the carrier's */
}

static int lane_connect(void *arg, void *user, const struct sockaddr *remote, socklen_t length,
			const struct ops_hop *hop)
{
	(void)arg;
	(void)remote;
	(void)length;
	(void)hop;
	return seek(user);
}

static int lane_accept(void *arg, void *user)
{
	(void)arg;
	return seek(user);
}

static int lane_option(void *arg, void *user, int level, int name, const void *value,
		       socklen_t length)
{
	(void)arg;
	(void)user;
	return ops_lane_can(level, name, value, length) ? 0 : -ENOPROTOOPT;
}

/* Nobody shall take an offer that is not meant any more. */
static void lane_release(void *arg, void *user)
{
	struct rec *r = user;
	int saved = errno;

	(void)arg;
	if (atomic_load(&r->state) == REC_POSTED)
		meet_withdraw(&r->end);
	errno = saved;
}

/* Both ends are on this host, whatever becomes of its interfaces; the carrier tells what they do to it. */
static void lane_change(void *arg, enum ops_change what, unsigned ifindex)
{
	(void)arg;
	(void)what;
	(void)ifindex;
}

/* The last lane is gone, and no other can come: nor can mail. */
static void lane_stopped(void *arg)
{
	int saved = errno;

	(void)arg;
	if (!settings.sealed) {
		meet_stop();
	}
	errno = saved;
}

static const struct ops_calls calls = {
	.create = lane_create,
	.bind = lane_bind,
	.connect = lane_connect,
	.accept = lane_accept,
	.option = lane_option,
	.release = lane_release,
	.change = lane_change,
	.stopped = lane_stopped,
};

static const struct ops_protocol protocol = {
	.name = "lane",
	.id = IPPROTO_SDP,
	.caps = OPS_SELF_ROUTING | OPS_NATIVE_PORTS,
	.families = OPS_INET | OPS_INET6,
	.calls = &calls,
};

void ops_lane_start(void)
{
	int n = ops_register(&protocol);

	atomic_store(&number, n);
	if (n >= 0)
		ops_interface_up(n, 0);
}

void ops_lane_stop(void)
{
	int n = atomic_exchange(&number, -1);

	if (n >= 0)
		ops_unregister(n);
}
