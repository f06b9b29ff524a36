/* SPDX-License-Identifier: MIT */
/* The protocol switch: OS-1, OS-3, OS-4, OS-5, OS-6, OS-7, OS-9, OS-10, OS-11, OS-14, OS-15, OS-16. */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <flue/offload.h>

#include "base/util.h"
#include "sockets/switch/ops.h"

/* ---- a protocol that does as it is told and writes down what it was asked ---- */

struct fake {
	struct ops_protocol protocol;
	int number;
	int create_rc, bind_rc, connect_rc, accept_rc, option_rc;
	uint16_t picks; /* the port it takes when it may choose, or insists on */
	bool stubborn;
	/* seen */
	int joined, left, stopped, changes, options;
	uint16_t port;
	unsigned hop; /* ifindex; UINT_MAX: none was given */
};

static char script[256]; /* the names of those asked to connect or accept, in order */

static void note(const struct fake *f)
{
	strncat(script, f->protocol.name, sizeof(script) - strlen(script) - 1);
}

static int fake_create(void *arg, void *user, const struct ops_want *want)
{
	struct fake *f = arg;

	f->joined += !f->create_rc;
	return f->create_rc;
}

static int fake_bind(void *arg, void *user, const struct sockaddr *local, socklen_t length,
		     uint16_t *port)
{
	struct fake *f = arg;

	f->port = *port;
	if (!*port || f->stubborn)
		*port = f->picks;
	return f->bind_rc;
}

static int fake_connect(void *arg, void *user, const struct sockaddr *remote, socklen_t length,
			const struct ops_hop *hop)
{
	struct fake *f = arg;

	note(f);
	f->hop = hop ? hop->ifindex : UINT_MAX;
	return f->connect_rc;
}

static int fake_accept(void *arg, void *user)
{
	note(arg);
	return ((struct fake *)arg)->accept_rc;
}

static int fake_option(void *arg, void *user, int level, int name, const void *value,
		       socklen_t length)
{
	((struct fake *)arg)->options++;
	return ((struct fake *)arg)->option_rc;
}

static void fake_release(void *arg, void *user)
{
	((struct fake *)arg)->left++;
}

static void fake_change(void *arg, enum ops_change what, unsigned ifindex)
{
	((struct fake *)arg)->changes += (int)ifindex;
}

static void fake_stopped(void *arg)
{
	((struct fake *)arg)->stopped++;
}

static const struct ops_calls fake_calls = {
	.create = fake_create,
	.bind = fake_bind,
	.connect = fake_connect,
	.accept = fake_accept,
	.option = fake_option,
	.release = fake_release,
	.change = fake_change,
	.stopped = fake_stopped,
};

static void fake_init(struct fake *f, const char *name, int id, uint32_t caps)
{
	memset(f, 0, sizeof(*f));
	f->protocol =
		(struct ops_protocol) { name, id, caps, OPS_INET | OPS_INET6, &fake_calls, f };
	f->number = -1;
}

static void fake_up(struct fake *f, const char *name, uint32_t caps, unsigned ifindex)
{
	fake_init(f, name, IPPROTO_SDP, caps);
	f->number = ops_register(&f->protocol);
	assert_true(f->number >= 0);
	assert_int_equal(ops_interface_up(f->number, ifindex), 0);
}

/* And each socket that joined has left, once. `inherited`: joined by accept. */
static void fake_down(struct fake *f, int inherited)
{
	assert_int_equal(ops_unregister(f->number), 0);
	assert_int_equal(f->stopped, 1);
	assert_int_equal(f->left, f->joined + inherited);
}

static const struct sockaddr_in remote = { .sin_family = AF_INET };

static struct ops_route route_by(unsigned ifindex)
{
	return (struct ops_route) {
		(const struct sockaddr *)&remote, sizeof(remote), { ifindex, NULL }, false
	};
}

static void create(struct ops_socket *s)
{
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);

	script[0] = '\0';
	ops_create(s, &want, s);
}

/* ---- OS-4: registration; first, while there is no socket ---- */

static void register_refuses_the_native_id_when_a_socket_exists(void **st)
{
	struct fake toe, late, other;
	struct ops_want datagram = ops_want(AF_INET, SOCK_DGRAM, 0);
	struct ops_socket s;

	fake_init(&toe, "toe", IPPROTO_TCP, 0);
	fake_init(&late, "late", IPPROTO_TCP, 0);
	fake_init(&other, "other", IPPROTO_SDP, 0);
	ops_create(&s, &datagram, &s); /* none of ours */
	toe.number = ops_register(&toe.protocol);
	assert_true(toe.number >= 0);
	create(&s);
	assert_int_equal(toe.joined, 1);
	assert_int_equal(ops_register(&late.protocol), -EBUSY);
	other.number = ops_register(&other.protocol);
	assert_true(other.number >= 0);
	ops_close(&s);
	assert_int_equal(ops_register(&late.protocol), -EBUSY); /* there was one */
	fake_down(&toe, 0);
	fake_down(&other, 0);
	assert_int_equal(other.joined, 0);
}

static void register_takes_only_whole_protocols(void **st)
{
	struct fake f;
	struct ops_calls calls;
	struct ops_protocol p;

	fake_init(&f, "f", IPPROTO_SDP, 0);
	for (size_t at = 0; at < sizeof(calls); at += sizeof(void *)) {
		calls = fake_calls;
		memset((char *)&calls + at, 0, sizeof(void *));
		p = f.protocol;
		p.calls = &calls;
		assert_int_equal(ops_register(&p), -EINVAL);
	}
	p = f.protocol, p.calls = NULL;
	assert_int_equal(ops_register(&p), -EINVAL);
	p = f.protocol, p.name = NULL;
	assert_int_equal(ops_register(&p), -EINVAL);
	p = f.protocol, p.id = 0;
	assert_int_equal(ops_register(&p), -EINVAL);
	p = f.protocol, p.families = 0;
	assert_int_equal(ops_register(&p), -EINVAL);
	p = f.protocol, p.families = 4;
	assert_int_equal(ops_register(&p), -EINVAL);
	p = f.protocol, p.caps = 8;
	assert_int_equal(ops_register(&p), -EINVAL);
}

static void register_has_room_for_some_and_ids_may_repeat(void **st)
{
	static struct fake f[OPS_PROTOCOLS_MAX + 1];

	for (int i = 0; i <= OPS_PROTOCOLS_MAX; i++) {
		fake_init(&f[i], "f", IPPROTO_SDP, OPS_RDMA);
		f[i].number = ops_register(&f[i].protocol);
		assert_int_equal(f[i].number, i < OPS_PROTOCOLS_MAX ? i : -ENOSPC);
	}
	assert_ptr_equal(ops_protocol(3), &f[3].protocol);
	assert_null(ops_protocol(-1));
	assert_null(ops_protocol(OPS_PROTOCOLS_MAX));
	fake_down(&f[3], 0);
	assert_null(ops_protocol(3));
	assert_int_equal(ops_unregister(3), -ENOENT);
	assert_int_equal(ops_unregister(-1), -ENOENT);
	assert_int_equal(ops_unregister(OPS_PROTOCOLS_MAX), -ENOENT);
	assert_int_equal(ops_register(&f[3].protocol), 3);
	f[3].stopped = 0;
	for (int i = 0; i < OPS_PROTOCOLS_MAX; i++)
		fake_down(&f[i], 0);
}

/* ---- OS-1, OS-14: what was asked for ---- */

static void want_translates_families_and_protocols(void **st)
{
	enum { S = OPS_WANT_SWITCH, O = OPS_WANT_SWITCH | OPS_WANT_OFFLOAD };
	static const struct {
		int domain, type, protocol, real_domain, real_protocol;
		uint32_t flags;
		int id;
	} rows[] = {
		{ AF_INET, SOCK_STREAM, 0, AF_INET, 0, S, 0 },
		{ AF_INET6, SOCK_STREAM, IPPROTO_TCP, AF_INET6, IPPROTO_TCP, S, 0 },
		{ AF_INET_OFFLOAD, SOCK_STREAM, 0, AF_INET, 0, O, 0 },
		{ AF_INET6_OFFLOAD, SOCK_STREAM, IPPROTO_TCP, AF_INET6, IPPROTO_TCP, O, 0 },
		{ AF_INET_DIRECT, SOCK_STREAM, 0, AF_INET, 0, 0, 0 },
		{ AF_INET6_DIRECT, SOCK_STREAM, IPPROTO_TCP, AF_INET6, IPPROTO_TCP, 0, 0 },
		{ AF_INET, SOCK_STREAM, IPPROTO_SDP, AF_INET, IPPROTO_TCP, O, IPPROTO_SDP },
		{ AF_INET6_OFFLOAD, SOCK_STREAM, IPPROTO_SDP, AF_INET6, IPPROTO_TCP, O,
		  IPPROTO_SDP },
		/* Nonsense goes to the kernel as it is. */
		{ AF_INET_DIRECT, SOCK_STREAM, IPPROTO_SDP, AF_INET, IPPROTO_SDP, 0, 0 },
		{ AF_INET, SOCK_DGRAM, IPPROTO_SDP, AF_INET, IPPROTO_SDP, 0, 0 },
		{ AF_UNIX, SOCK_STREAM, IPPROTO_SDP, AF_UNIX, IPPROTO_SDP, 0, 0 },
		/* Other types and protocols are native, by whatever name. */
		{ AF_INET, SOCK_DGRAM, 0, AF_INET, 0, 0, 0 },
		{ AF_INET_OFFLOAD, SOCK_DGRAM, IPPROTO_UDP, AF_INET, IPPROTO_UDP, 0, 0 },
		{ AF_INET6, SOCK_RAW, IPPROTO_ICMPV6, AF_INET6, IPPROTO_ICMPV6, 0, 0 },
		{ AF_INET, SOCK_SEQPACKET, IPPROTO_SCTP, AF_INET, IPPROTO_SCTP, 0, 0 },
		{ AF_INET, SOCK_STREAM, IPPROTO_MPTCP, AF_INET, IPPROTO_MPTCP, 0, 0 },
		{ AF_UNIX, SOCK_STREAM, 0, AF_UNIX, 0, 0, 0 },
		{ -1, SOCK_STREAM, 0, -1, 0, 0, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		for (int more = 0; more < 2; more++) {
			int type = rows[i].type | (more ? SOCK_NONBLOCK | SOCK_CLOEXEC : 0);
			struct ops_want w = ops_want(rows[i].domain, type, rows[i].protocol);

			if (w.domain != rows[i].real_domain || w.type != type ||
			    w.id != rows[i].id || w.protocol != rows[i].real_protocol ||
			    w.flags != rows[i].flags)
				fail_msg("row %zu", i);
		}
	}
	assert_int_equal(ops_family(AF_INET_DIRECT), AF_INET);
	assert_int_equal(ops_family(AF_INET6_OFFLOAD), AF_INET6);
	assert_int_equal(ops_family(AF_UNIX), AF_UNIX);
}

/* The numbers fit where they must and the kernel has no use for them. */
static void numbers_clash_with_nothing(void **st)
{
	static const int families[] = { AF_INET_OFFLOAD, AF_INET6_OFFLOAD, AF_INET_DIRECT,
					AF_INET6_DIRECT };

	for (size_t i = 0; i < ARRAY_SIZE(families); i++) {
		struct sockaddr sa = { .sa_family = (sa_family_t)families[i] };

		assert_int_equal(sa.sa_family, families[i]);
		assert_true(families[i] >= AF_MAX);
		assert_int_equal(socket(families[i], SOCK_STREAM, 0), -1);
		assert_int_equal(errno, EAFNOSUPPORT);
		for (size_t k = 0; k < i; k++)
			assert_int_not_equal(families[i], families[k]);
	}
	assert_true(IPPROTO_SDP >= IPPROTO_MAX && IPPROTO_SDP <= UINT16_MAX);
	assert_int_equal(socket(AF_INET, SOCK_STREAM, IPPROTO_SDP), -1);
	assert_int_equal(errno, EINVAL);
}

/* ---- create ---- */

static void create_lists_what_fits_and_agrees(void **st)
{
	struct fake sdp, six, tcp, no;
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);
	struct ops_socket s;

	fake_init(&sdp, "s", IPPROTO_SDP, 0);
	fake_init(&six, "6", IPPROTO_SDP, 0);
	six.protocol.families = OPS_INET6;
	fake_init(&tcp, "t", 77, 0);
	fake_init(&no, "n", IPPROTO_SDP, 0);
	no.create_rc = -ENOMEM;
	sdp.number = ops_register(&sdp.protocol);
	six.number = ops_register(&six.protocol);
	tcp.number = ops_register(&tcp.protocol);
	no.number = ops_register(&no.protocol);

	ops_create(&s, &want, &s);
	assert_int_equal(s.list, 1u << sdp.number | 1u << tcp.number);
	assert_int_equal(s.bound, OPS_UNDECIDED);
	ops_close(&s);
	want = ops_want(AF_INET6, SOCK_STREAM, IPPROTO_SDP);
	ops_create(&s, &want, &s);
	assert_int_equal(s.list, 1u << sdp.number | 1u << six.number);
	ops_close(&s);
	/* OS-9: nothing is asked for those that are native anyway. */
	want = ops_want(AF_INET_DIRECT, SOCK_STREAM, 0);
	ops_create(&s, &want, &s);
	assert_int_equal(s.list, 0);
	assert_int_equal(s.bound, OPS_NATIVE);
	ops_close(&s);
	assert_int_equal(sdp.joined, 2);
	fake_down(&sdp, 0);
	fake_down(&six, 0);
	fake_down(&tcp, 0);
	fake_down(&no, 0);
	assert_int_equal(no.left, 0);
}

/* ---- OS-5 ---- */

static void bind_gives_all_the_native_port_and_drops_who_cannot_take_it(void **st)
{
	struct fake a, b, c;
	struct ops_socket s;
	uint16_t port = 4711;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	fake_up(&b, "b", OPS_SELF_ROUTING, 0);
	fake_up(&c, "c", OPS_SELF_ROUTING, 0);
	b.bind_rc = -EADDRINUSE;
	c.stubborn = true, c.picks = 4712; /* says yes and takes another one */
	create(&s);
	assert_int_equal(
		ops_bind(&s, (const struct sockaddr *)&remote, sizeof(remote), &port, true), 0);
	assert_int_equal(port, 4711);
	assert_true(a.port == 4711 && b.port == 4711 && c.port == 4711);
	assert_int_equal(s.list, 1u << a.number);
	assert_int_equal(s.bound, OPS_UNDECIDED);
	ops_close(&s);

	a.bind_rc = -EADDRNOTAVAIL; /* a local address that none of its interfaces has */
	create(&s);
	assert_int_equal(
		ops_bind(&s, (const struct sockaddr *)&remote, sizeof(remote), &port, true), 0);
	assert_int_equal(s.bound, OPS_NATIVE);
	ops_close(&s);
	fake_down(&a, 0);
	fake_down(&b, 0);
	fake_down(&c, 0);
}

static void bind_lets_the_first_registered_decide_when_nothing_is_native(void **st)
{
	struct fake a, b, c, again;
	struct ops_socket s;
	uint16_t port = 0;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	fake_up(&b, "b", OPS_SELF_ROUTING, 0);
	fake_up(&c, "c", OPS_SELF_ROUTING, 0);
	/* A number that is used again does not make its protocol the first. */
	fake_down(&a, 0);
	fake_up(&again, "A", OPS_SELF_ROUTING, 0);
	assert_int_equal(again.number, a.number);
	again.picks = 1, b.picks = 2, c.picks = 3;

	create(&s);
	assert_int_equal(ops_bind(&s, NULL, 0, &port, false), 0);
	assert_int_equal(port, 2);
	assert_true(b.port == 0 && c.port == 2 && again.port == 2);
	ops_close(&s);

	/* The first can not: the next decides, and those asked before it have left. */
	b.bind_rc = -EADDRINUSE, again.bind_rc = -EACCES, port = 0;
	create(&s);
	assert_int_equal(ops_bind(&s, NULL, 0, &port, false), 0);
	assert_int_equal(port, 3);
	assert_int_equal(s.list, 1u << c.number);
	ops_close(&s);

	c.bind_rc = -ENOMEM, port = 0;
	create(&s);
	assert_int_equal(ops_bind(&s, NULL, 0, &port, false), -EADDRINUSE); /* of the first */
	ops_close(&s);
	fake_down(&again, 0);
	fake_down(&b, 0);
	fake_down(&c, 0);
}

/* ---- OS-4, OS-7 ---- */

static void bind_is_not_for_those_with_native_ports(void **st)
{
	struct fake a, b;
	struct ops_socket s;
	uint16_t port = 0;

	fake_up(&a, "a", OPS_SELF_ROUTING | OPS_NATIVE_PORTS, 0);
	a.bind_rc = -EIO;
	create(&s);
	assert_false(ops_has_ports(&s));
	assert_int_equal(ops_bind(&s, NULL, 0, &port, true), 0);
	assert_int_equal(s.list, 1u << a.number);
	ops_close(&s);
	fake_up(&b, "b", 0, 1);
	create(&s);
	assert_true(ops_has_ports(&s));
	port = 80;
	assert_int_equal(ops_bind(&s, NULL, 0, &port, true), 0);
	assert_int_equal(b.port, 80);
	assert_int_equal(s.list, 1u << a.number | 1u << b.number);
	ops_close(&s);
	/* No native socket, no port. */
	create(&s);
	port = 0;
	b.picks = 7;
	assert_int_equal(ops_bind(&s, NULL, 0, &port, false), 0);
	assert_int_equal(port, 7);
	assert_int_equal(s.list, 1u << b.number);
	ops_close(&s);
	assert_false(ops_has_ports(&s));
	fake_down(&a, 0);
	fake_down(&b, 0);
}

static void connect_asks_first_whose_interface_came_up_first(void **st)
{
	struct fake a, b, c;
	struct ops_route route = route_by(7);
	struct ops_socket s;

	fake_up(&a, "a", 0, 7);
	fake_up(&b, "b", OPS_SELF_ROUTING, 0);
	fake_up(&c, "c", 0, 7);
	/* a's goes down and comes back: now it is the youngest. What b and c get besides, or again,
	 * changes nothing. */
	assert_int_equal(ops_interface_down(a.number, 7), 0);
	assert_int_equal(ops_interface_up(a.number, 7), 0);
	assert_int_equal(ops_interface_up(c.number, 8), 0);
	assert_int_equal(ops_interface_up(b.number, 0), 0);
	assert_int_equal(ops_interface_up(b.number, 9), 0);
	a.connect_rc = b.connect_rc = c.connect_rc = -ECONNREFUSED;

	create(&s);
	assert_int_equal(ops_connect(&s, &route), OPS_NATIVE); /* the native stack last */
	assert_string_equal(script, "bca");
	ops_close(&s);
	c.connect_rc = 0;
	create(&s);
	assert_int_equal(ops_connect(&s, &route), c.number);
	assert_string_equal(script, "bc");
	assert_int_equal(s.list, 1u << c.number);
	/* OS-10: it is decided. */
	assert_int_equal(ops_connect(&s, &route), c.number);
	assert_int_equal(ops_decide(&s, &route), c.number);
	assert_string_equal(script, "bc");
	ops_close(&s);
	fake_down(&a, 0);
	fake_down(&b, 0);
	fake_down(&c, 0);
}

static void connect_tells_the_first_hop_to_those_that_need_it(void **st)
{
	struct fake here, there, nowhere, self, down;
	struct ops_route route = route_by(7);
	struct ops_socket s;

	fake_up(&here, "h", OPS_RDMA, 7);
	fake_up(&there, "t", OPS_RDMA, 8);
	fake_up(&nowhere, "n", 0, 0);
	fake_up(&self, "s", OPS_SELF_ROUTING, 0);
	fake_up(&down, "d", OPS_SELF_ROUTING, 0);
	assert_int_equal(ops_interface_down(down.number, 0), 0);
	assert_int_equal(ops_interface_down(down.number, 0), -ENOENT);
	assert_int_equal(ops_interface_down(-1, 0), -ENOENT);
	here.connect_rc = self.connect_rc = -EHOSTUNREACH;
	create(&s);
	assert_int_equal(ops_connect(&s, &route), OPS_NATIVE);
	assert_string_equal(script, "hs");
	assert_int_equal(here.hop, 7);
	assert_int_equal(self.hop, UINT_MAX);
	ops_close(&s);
	/* No route is known: only who finds the way himself. */
	route = route_by(0);
	create(&s);
	assert_int_equal(ops_connect(&s, &route), OPS_NATIVE);
	assert_string_equal(script, "s");
	ops_close(&s);
	fake_down(&here, 0);
	fake_down(&there, 0);
	fake_down(&nowhere, 0);
	fake_down(&self, 0);
	fake_down(&down, 0);
}

static void connect_asks_nobody_when_a_rule_denies(void **st)
{
	struct fake a;
	struct ops_route route = route_by(0);
	struct ops_socket s, child;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	route.denied = true;
	create(&s);
	assert_int_equal(ops_connect(&s, &route), OPS_NATIVE);
	assert_string_equal(script, "");
	ops_close(&s);
	create(&s);
	assert_int_equal(ops_accept(&child, &s, true, &child), OPS_NATIVE);
	assert_string_equal(script, "");
	ops_close(&child);
	ops_close(&s);
	fake_down(&a, 0);
}

static void decide_asks_again_who_said_not_yet(void **st)
{
	struct fake a, b;
	struct ops_route route = route_by(0);
	struct ops_socket s;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	fake_up(&b, "b", OPS_SELF_ROUTING, 0);
	a.connect_rc = -EAGAIN, b.connect_rc = -EAGAIN;
	create(&s);
	assert_int_equal(ops_decide(&s, &route), OPS_UNDECIDED);
	assert_string_equal(script, ""); /* not before connect() */
	assert_int_equal(ops_connect(&s, &route), OPS_UNDECIDED);
	assert_int_equal(ops_decide(&s, &route), OPS_UNDECIDED);
	a.connect_rc = -EPERM;
	assert_int_equal(ops_decide(&s, &route), OPS_UNDECIDED);
	assert_int_equal(s.list, 1u << b.number);
	b.connect_rc = 0;
	assert_int_equal(ops_decide(&s, &route), b.number);
	assert_string_equal(script, "ababab"
				    "b");
	/* OS-30: and back, for good. */
	ops_step_down(&s);
	assert_int_equal(ops_decide(&s, &route), OPS_NATIVE);
	assert_int_equal(s.list, 0);
	ops_close(&s);
	fake_down(&a, 0);
	fake_down(&b, 0);
}

/* OS-6: one listener for all, and who is on its list may take what comes in. */
static void decide_asks_nobody_when_a_rule_denies_late(void **st)
{
	struct ops_route route = route_by(0), denied = route_by(0);
	struct ops_socket s, child;
	struct fake a;

	denied.denied = true;
	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	a.connect_rc = a.accept_rc = -EAGAIN;
	create(&s);
	assert_int_equal(ops_accept(&child, &s, false, &child), OPS_UNDECIDED);
	assert_int_equal(ops_connect(&s, &route), OPS_UNDECIDED);
	assert_string_equal(script, "aa");
	assert_int_equal(ops_decide(&s, &denied), OPS_NATIVE);
	assert_int_equal(ops_decide(&child, &denied), OPS_NATIVE);
	assert_string_equal(script, "aa");
	assert_int_equal(s.list | child.list, 0);
	/* Who has the socket keeps it. */
	create(&s);
	a.connect_rc = 0;
	assert_int_equal(ops_connect(&s, &route), a.number);
	assert_int_equal(ops_decide(&s, &denied), a.number);
	ops_close(&s);
	fake_down(&a, 1);
}

static void accept_inherits_the_list_of_the_listener(void **st)
{
	struct fake a, b, c, late;
	struct ops_socket listener, child;
	uint16_t port = 80;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	fake_up(&b, "b", 0, 3);
	fake_up(&c, "c", OPS_SELF_ROUTING, 0);
	a.bind_rc = -EADDRINUSE;
	create(&listener);
	assert_int_equal(ops_bind(&listener, NULL, 0, &port, true), 0);
	fake_up(&late, "l", OPS_SELF_ROUTING, 0);
	b.accept_rc = -EAGAIN, c.accept_rc = -EPROTO;
	assert_int_equal(ops_accept(&child, &listener, false, &child), OPS_UNDECIDED);
	assert_string_equal(script, "cb"); /* b's interface is not known to be the one */
	assert_int_equal(listener.list, 1u << b.number | 1u << c.number);
	b.accept_rc = 0;
	assert_int_equal(ops_decide(&child, NULL), b.number);
	ops_close(&child);
	ops_close(&listener);
	fake_down(&a, 0);
	fake_down(&b, 1);
	fake_down(&c, 1);
	fake_down(&late, 0);
}

/* ---- OS-11, OS-15, OS-16 ---- */

static void option_drops_who_refuses_but_not_who_has_the_socket(void **st)
{
	struct fake a, b;
	struct ops_route route = route_by(0);
	struct ops_socket s;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	fake_up(&b, "b", OPS_SELF_ROUTING, 0);
	a.option_rc = -ENOPROTOOPT;
	create(&s);
	ops_option(&s, IPPROTO_TCP, 1, NULL, 0);
	assert_int_equal(s.list, 1u << b.number);
	assert_int_equal(ops_connect(&s, &route), b.number);
	b.option_rc = -EINVAL;
	ops_option(&s, IPPROTO_TCP, 1, NULL, 0);
	assert_int_equal(s.bound, b.number);
	assert_int_equal(s.list, 1u << b.number);
	assert_true(a.options == 1 && b.options == 2);
	ops_close(&s);
	create(&s);
	ops_option(&s, IPPROTO_TCP, 1, NULL, 0);
	assert_int_equal(s.bound, OPS_NATIVE);
	ops_close(&s);
	fake_down(&a, 0);
	fake_down(&b, 0);
}

static void notices_reach_every_protocol(void **st)
{
	struct fake a, b;

	fake_up(&a, "a", 0, 1);
	fake_up(&b, "b", 0, 1);
	ops_notify(OPS_ADDRESS_ADDED, 5);
	fake_down(&a, 0);
	ops_notify(OPS_INTERFACE_DOWN, 5);
	fake_down(&b, 0);
	assert_int_equal(a.changes, 5);
	assert_int_equal(b.changes, 10);
}

static void unregister_waits_for_connections_and_drops_the_undecided(void **st)
{
	struct fake a, next;
	struct ops_route route = route_by(0);
	struct ops_socket bound, waiting, listener, fresh, child;

	fake_up(&a, "a", OPS_SELF_ROUTING, 0);
	create(&bound);
	assert_int_equal(ops_connect(&bound, &route), a.number);
	a.connect_rc = -EAGAIN;
	create(&waiting);
	assert_int_equal(ops_connect(&waiting, &route), OPS_UNDECIDED);
	create(&listener);
	assert_int_equal(ops_unregister(a.number), 0);
	assert_int_equal(ops_unregister(a.number), -ENOENT);
	assert_int_equal(ops_interface_up(a.number, 1), -ENOENT);
	assert_int_equal(a.stopped, 0);
	a.connect_rc = 0; /* too late */
	assert_int_equal(ops_decide(&waiting, &route), OPS_NATIVE);
	create(&fresh); /* none gets it any more */
	assert_int_equal(fresh.bound, OPS_NATIVE);
	assert_int_equal(ops_accept(&child, &listener, false, &child), OPS_NATIVE);
	ops_prune(&bound); /* what it has it keeps */
	assert_int_equal(bound.bound, a.number);
	assert_ptr_equal(ops_protocol(a.number), &a.protocol);
	ops_prune(&listener);
	assert_int_equal(listener.bound, OPS_NATIVE);
	assert_int_equal(a.stopped, 0);
	fake_up(&next, "n", 0, 1); /* its number is not given away */
	assert_int_not_equal(next.number, a.number);
	ops_close(&bound);
	assert_int_equal(a.stopped, 1);
	assert_int_equal(a.left, 3);
	ops_close(&waiting);
	ops_close(&listener);
	ops_close(&fresh);
	ops_close(&child);
	fake_down(&next, 0);
}

static void interfaces_of_a_protocol_end_with_it(void **st)
{
	struct fake f;

	for (int round = 0; round < 3; round++) {
		fake_up(&f, "f", 0, 0);
		for (unsigned i = 1; i < OPS_INTERFACES_MAX; i++)
			assert_int_equal(ops_interface_up(f.number, i), 0);
		assert_int_equal(ops_interface_up(f.number, OPS_INTERFACES_MAX), -ENOSPC);
		assert_int_equal(ops_interface_up(f.number, 5), 0); /* up already */
		fake_down(&f, 0);
	}
}

/* ---- threads: protocols come and go while others make sockets ---- */

static _Atomic int alive[4]; /* protocols that may be called */
static atomic_bool over;
static _Atomic int wrong;

static int live_create(void *arg, void *user, const struct ops_want *want)
{
	wrong += !*(_Atomic int *)arg;
	return 0;
}

static int live_connect(void *arg, void *user, const struct sockaddr *to, socklen_t length,
			const struct ops_hop *hop)
{
	wrong += !*(_Atomic int *)arg;
	return (uintptr_t)user & 1 ? 0 : -EAGAIN;
}

static int live_option(void *arg, void *user, int level, int name, const void *value,
		       socklen_t length)
{
	wrong += !*(_Atomic int *)arg;
	return name & 1 ? -EINVAL : 0;
}

static void live_release(void *arg, void *user)
{
	wrong += !*(_Atomic int *)arg;
}

static void live_change(void *arg, enum ops_change what, unsigned ifindex)
{
	wrong += !*(_Atomic int *)arg;
}

static void live_stopped(void *arg)
{
	wrong += !atomic_exchange((_Atomic int *)arg, 0);
}

static const struct ops_calls live_calls = {
	.create = live_create,
	.bind = fake_bind,
	.connect = live_connect,
	.accept = fake_accept,
	.option = live_option,
	.release = live_release,
	.change = live_change,
	.stopped = live_stopped,
};

static void *come_and_go(void *arg)
{
	struct ops_protocol p = { "p", IPPROTO_SDP, OPS_SELF_ROUTING, OPS_INET, &live_calls, arg };
	_Atomic int *mine = arg;

	for (int i = 0; i < 2000; i++) {
		int number;

		atomic_store(mine, 1);
		number = ops_register(&p);
		wrong += number < 0;
		ops_interface_up(number, 0);
		ops_notify(OPS_INTERFACE_UP, 1);
		wrong += ops_unregister(number) != 0;
		while (atomic_load(mine))
			sched_yield();
	}
	return NULL;
}

/* Sockets that two threads use at once; each lives for a while and is then made anew by one of them. */
static struct ops_socket shared_socket;
static pthread_rwlock_t shared_lock = PTHREAD_RWLOCK_INITIALIZER;

static void use_shared(unsigned i)
{
	struct ops_route route = route_by(0);

	pthread_rwlock_rdlock(&shared_lock);
	switch (i % 5) {
	case 0: ops_connect(&shared_socket, &route); break;
	case 1: ops_decide(&shared_socket, &route); break;
	case 2: ops_option(&shared_socket, 0, (int)(i / 5), NULL, 0); break;
	case 3: ops_has_ports(&shared_socket); break;
	case 4:
		if (i % 3 == 0)
			ops_step_down(&shared_socket);
		break;
	}
	pthread_rwlock_unlock(&shared_lock);
}

static void *share_sockets(void *arg)
{
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);

	for (unsigned i = 0; !atomic_load(&over); i++) {
		use_shared(i);
		if (i % 50 || !arg)
			continue;
		pthread_rwlock_wrlock(&shared_lock);
		ops_close(&shared_socket);
		ops_create(&shared_socket, &want, (void *)(uintptr_t)(i / 50));
		pthread_rwlock_unlock(&shared_lock);
	}
	return NULL;
}

static void *make_sockets(void *arg)
{
	struct ops_want want = ops_want(AF_INET, SOCK_STREAM, 0);
	struct ops_route route = route_by(0);

	for (uintptr_t i = 0; !atomic_load(&over); i++) {
		struct ops_socket s;

		ops_create(&s, &want, (void *)i);
		ops_connect(&s, &route);
		ops_decide(&s, &route);
		ops_close(&s);
	}
	return NULL;
}

static void protocols_come_and_go_while_sockets_are_made(void **st)
{
	pthread_t goers[4], makers[2], sharers[2];

	for (size_t i = 0; i < ARRAY_SIZE(sharers); i++)
		assert_int_equal(pthread_create(&sharers[i], NULL, share_sockets, i ? &over : NULL),
				 0);
	for (size_t i = 0; i < ARRAY_SIZE(makers); i++)
		assert_int_equal(pthread_create(&makers[i], NULL, make_sockets, NULL), 0);
	for (size_t i = 0; i < ARRAY_SIZE(goers); i++)
		assert_int_equal(pthread_create(&goers[i], NULL, come_and_go, &alive[i]), 0);
	for (size_t i = 0; i < ARRAY_SIZE(goers); i++)
		pthread_join(goers[i], NULL);
	atomic_store(&over, true);
	for (size_t i = 0; i < ARRAY_SIZE(makers); i++)
		pthread_join(makers[i], NULL);
	for (size_t i = 0; i < ARRAY_SIZE(sharers); i++)
		pthread_join(sharers[i], NULL);
	ops_close(&shared_socket);
	assert_int_equal(wrong, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* First: it is about the first socket. */
		cmocka_unit_test(register_refuses_the_native_id_when_a_socket_exists),
		cmocka_unit_test(register_takes_only_whole_protocols),
		cmocka_unit_test(register_has_room_for_some_and_ids_may_repeat),
		cmocka_unit_test(want_translates_families_and_protocols),
		cmocka_unit_test(numbers_clash_with_nothing),
		cmocka_unit_test(create_lists_what_fits_and_agrees),
		cmocka_unit_test(bind_gives_all_the_native_port_and_drops_who_cannot_take_it),
		cmocka_unit_test(bind_lets_the_first_registered_decide_when_nothing_is_native),
		cmocka_unit_test(bind_is_not_for_those_with_native_ports),
		cmocka_unit_test(connect_asks_first_whose_interface_came_up_first),
		cmocka_unit_test(connect_tells_the_first_hop_to_those_that_need_it),
		cmocka_unit_test(connect_asks_nobody_when_a_rule_denies),
		cmocka_unit_test(decide_asks_again_who_said_not_yet),
		cmocka_unit_test(decide_asks_nobody_when_a_rule_denies_late),
		cmocka_unit_test(accept_inherits_the_list_of_the_listener),
		cmocka_unit_test(option_drops_who_refuses_but_not_who_has_the_socket),
		cmocka_unit_test(notices_reach_every_protocol),
		cmocka_unit_test(unregister_waits_for_connections_and_drops_the_undecided),
		cmocka_unit_test(interfaces_of_a_protocol_end_with_it),
		cmocka_unit_test(protocols_come_and_go_while_sockets_are_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
