/* SPDX-License-Identifier: MIT */
/*
 * A protocol's slot has one word: its state and how many use it (sockets that have it on their
 * list, and calls under way). So joining, leaving and the end of a protocol need no lock:
 *
 *   FREE --register--> CLAIMED --> UP --unregister--> LEAVING --last user gone--> CLAIMED --> FREE
 *
 * Only who moves a slot to CLAIMED may write the rest of it.
 */
#include "sockets/switch/ops.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <string.h>

#include <flue/offload.h>

#include "base/util.h"

#define STATE_SHIFT 30
#define STATE(word) ((word) >> STATE_SHIFT)
#define IN(state)   ((uint32_t)(state) << STATE_SHIFT)

enum slot_state { FREE, CLAIMED, UP, LEAVING };

static struct slot {
	_Atomic uint32_t word; /* state, users */
	uint32_t order;        /* of registration */
	const struct ops_protocol *protocol;
} slots[OPS_PROTOCOLS_MAX];

/*
 * Interfaces that work: when they came up (27 bits), whose they are (5), index (32); 0 is a free
 * place. One word, so that a reader never sees half of it.
 */
static _Atomic uint64_t interfaces[OPS_INTERFACES_MAX];
static _Atomic uint32_t next_stamp = 1, next_order = 1;
static atomic_bool have_sockets;
/* Entries ever used: programs that make many short connections pay for each look. */
static _Atomic uint32_t n_slots, n_interfaces;

#define IF_STAMP(word) ((uint32_t)((word) >> 37))
#define IF_WHOSE(word) ((uint32_t)((word) >> 32 & 0x1f))
#define IF_INDEX(word) ((uint32_t)(word))

_Static_assert(OPS_PROTOCOLS_MAX <= 32, "a list has 32 bits, and a number 5");

/* ---- what a program asked for ---- */

static const struct {
	int asked, real;
	bool switched, offload;
} domains[] = {
	{ AF_INET, AF_INET, true, false },         { AF_INET6, AF_INET6, true, false },
	{ AF_INET_OFFLOAD, AF_INET, true, true },  { AF_INET6_OFFLOAD, AF_INET6, true, true },
	{ AF_INET_DIRECT, AF_INET, false, false }, { AF_INET6_DIRECT, AF_INET6, false, false },
};

struct ops_want ops_want(int domain, int type, int protocol)
{
	struct ops_want want = { .domain = domain, .type = type, .protocol = protocol };
	bool stream = (type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC)) == SOCK_STREAM;

	for (size_t i = 0; i < ARRAY_SIZE(domains); i++) {
		if (domain != domains[i].asked)
			continue;
		want.domain = domains[i].real;
		if (!stream || !domains[i].switched)
			break;
		if (protocol == IPPROTO_SDP) {
			want.protocol = IPPROTO_TCP;
			want.id = IPPROTO_SDP;
			want.flags = OPS_WANT_SWITCH | OPS_WANT_OFFLOAD;
		} else if (protocol == 0 || protocol == IPPROTO_TCP) {
			want.flags = OPS_WANT_SWITCH | (domains[i].offload ? OPS_WANT_OFFLOAD : 0);
		}
		break;
	}
	return want;
}

sa_family_t ops_family(sa_family_t family)
{
	for (size_t i = 0; i < ARRAY_SIZE(domains); i++) {
		if (family == domains[i].asked)
			return (sa_family_t)domains[i].real;
	}
	return family;
}

/* ---- slots ---- */

/* Takes the lowest bit out of *todo. */
static unsigned lowest(uint32_t *todo)
{
	unsigned number = (unsigned)__builtin_ctz(*todo);

	*todo &= *todo - 1;
	return number;
}

static void raise_to(_Atomic uint32_t *high, uint32_t to)
{
	uint32_t now = atomic_load(high);

	while (now < to && !atomic_compare_exchange_weak(high, &now, to))
		;
}

static bool use(unsigned number)
{
	uint32_t word = atomic_load(&slots[number].word);

	do {
		if (STATE(word) != UP)
			return false;
	} while (!atomic_compare_exchange_weak(&slots[number].word, &word, word + 1));
	return true;
}

/* If it is leaving and nobody uses it, this is the end of it. */
static void end_if_unused(unsigned number)
{
	struct slot *slot = &slots[number];
	uint32_t word = IN(LEAVING);

	if (!atomic_compare_exchange_strong(&slot->word, &word, IN(CLAIMED)))
		return;
	for (unsigned i = 0; i < n_interfaces; i++) {
		uint64_t place = atomic_load(&interfaces[i]);

		if (place && IF_WHOSE(place) == number)
			atomic_store(&interfaces[i], 0);
	}
	slot->protocol->calls->stopped(slot->protocol->arg);
	slot->protocol = NULL;
	atomic_store(&slot->word, IN(FREE));
}

static void unuse(unsigned number)
{
	if (atomic_fetch_sub(&slots[number].word, 1) == IN(LEAVING) + 1)
		end_if_unused(number);
}

static bool calls_are_whole(const struct ops_calls *c)
{
	return c && c->create && c->bind && c->connect && c->accept && c->option && c->release &&
	       c->change && c->stopped;
}

int ops_register(const struct ops_protocol *p)
{
	if (!p->name || !calls_are_whole(p->calls) || p->id <= 0 || !p->families ||
	    (p->families & ~(uint32_t)(OPS_INET | OPS_INET6)) ||
	    (p->caps & ~(uint32_t)(OPS_SELF_ROUTING | OPS_RDMA | OPS_NATIVE_PORTS)))
		return -EINVAL;
	if (p->id == IPPROTO_TCP && atomic_load(&have_sockets))
		return -EBUSY;
	for (int i = 0; i < OPS_PROTOCOLS_MAX; i++) {
		uint32_t word = IN(FREE);

		if (!atomic_compare_exchange_strong(&slots[i].word, &word, IN(CLAIMED)))
			continue;
		slots[i].protocol = p;
		slots[i].order = atomic_fetch_add(&next_order, 1);
		raise_to(&n_slots, (uint32_t)i + 1);
		atomic_store(&slots[i].word, IN(UP));
		return i;
	}
	return -ENOSPC;
}

int ops_unregister(int number)
{
	uint32_t word;

	if (number < 0 || number >= OPS_PROTOCOLS_MAX)
		return -ENOENT;
	word = atomic_load(&slots[number].word);
	do {
		if (STATE(word) != UP)
			return -ENOENT;
	} while (!atomic_compare_exchange_weak(&slots[number].word, &word,
					       word - IN(UP) + IN(LEAVING)));
	end_if_unused((unsigned)number);
	return 0;
}

const struct ops_protocol *ops_protocol(int number)
{
	if (number < 0 || number >= OPS_PROTOCOLS_MAX ||
	    STATE(atomic_load(&slots[number].word)) < UP)
		return NULL;
	return slots[number].protocol;
}

/* ---- interfaces ---- */

/* The place of an interface that works, or -1. */
static int find_interface(unsigned number, unsigned ifindex)
{
	for (int i = 0; i < (int)n_interfaces; i++) {
		uint64_t place = atomic_load(&interfaces[i]);

		if (place && IF_WHOSE(place) == number && IF_INDEX(place) == ifindex)
			return i;
	}
	return -1;
}

int ops_interface_up(int number, unsigned ifindex)
{
	uint64_t stamp = atomic_fetch_add(&next_stamp, 1);
	int rc = -ENOSPC;

	if (number < 0 || number >= OPS_PROTOCOLS_MAX || !use((unsigned)number))
		return -ENOENT;
	if (find_interface((unsigned)number, ifindex) >= 0)
		rc = 0; /* and it keeps its place in the order */
	for (unsigned i = 0; i < OPS_INTERFACES_MAX && rc; i++) {
		uint64_t none = 0;

		raise_to(&n_interfaces, i + 1);
		if (atomic_compare_exchange_strong(&interfaces[i], &none,
						   stamp << 37 | (uint64_t)number << 32 | ifindex))
			rc = 0;
	}
	unuse((unsigned)number);
	return rc;
}

int ops_interface_down(int number, unsigned ifindex)
{
	int place = number < 0 ? -1 : find_interface((unsigned)number, ifindex);

	if (place < 0)
		return -ENOENT;
	atomic_store(&interfaces[place], 0);
	return 0;
}

void ops_notify(enum ops_change what, unsigned ifindex)
{
	for (unsigned i = 0; i < n_slots; i++) {
		if (!use(i))
			continue;
		slots[i].protocol->calls->change(slots[i].protocol->arg, what, ifindex);
		unuse(i);
	}
}

/* When the interface came up by which this protocol would go; 0: there is none. */
static uint32_t came_up(unsigned number, unsigned ifindex)
{
	bool any = slots[number].protocol->caps & OPS_SELF_ROUTING;
	uint32_t first = 0;

	for (unsigned i = 0; i < n_interfaces; i++) {
		uint64_t place = atomic_load(&interfaces[i]);

		if (!place || IF_WHOSE(place) != number)
			continue;
		if (!any && (ifindex == 0 || IF_INDEX(place) != ifindex))
			continue;
		if (!first || IF_STAMP(place) < first)
			first = IF_STAMP(place);
	}
	return first;
}

/* ---- a socket's list ---- */

static void settle(struct ops_socket *s)
{
	int8_t undecided = OPS_UNDECIDED;

	if (!s->list)
		atomic_compare_exchange_strong(&s->bound, &undecided, OPS_NATIVE);
}

static void leave(struct ops_socket *s, unsigned number)
{
	uint32_t bit = UINT32_C(1) << number;
	const struct ops_protocol *p;

	if (!(atomic_fetch_and(&s->list, ~bit) & bit))
		return; /* another thread was faster */
	p = slots[number].protocol;
	p->calls->release(p->arg, s->user);
	unuse(number);
}

static void leave_all(struct ops_socket *s, int but)
{
	uint32_t todo = s->list;

	while (todo) {
		unsigned i = lowest(&todo);

		if ((int)i != but)
			leave(s, i);
	}
}

void ops_prune(struct ops_socket *s)
{
	uint32_t todo = s->list;

	while (todo) {
		unsigned i = lowest(&todo);

		if ((int)i != s->bound && STATE(atomic_load(&slots[i].word)) != UP)
			leave(s, i);
	}
	settle(s);
}

/* Another thread may make the socket lose a protocol, and that may be the end of it. */
static bool hold(const struct ops_socket *s, unsigned number)
{
	uint32_t word = atomic_load(&slots[number].word);

	do {
		if (STATE(word) < UP)
			return false;
	} while (!atomic_compare_exchange_weak(&slots[number].word, &word, word + 1));
	/* A slot that has another protocol now is not on the list. */
	if (s->list >> number & 1)
		return true;
	unuse(number);
	return false;
}

/* The list, for the time of a call: its protocols are there until let_go(). */
static uint32_t hold_all(const struct ops_socket *s)
{
	uint32_t todo = s->list, held = 0;

	while (todo) {
		unsigned i = lowest(&todo);

		if (hold(s, i))
			held |= UINT32_C(1) << i;
	}
	return held;
}

static void let_go(uint32_t held)
{
	while (held)
		unuse(lowest(&held));
}

/* The member of `todo` that comes first by `key`; -1: none. Takes it out. */
static int next(uint32_t *todo, const uint32_t key[])
{
	uint32_t rest = *todo;
	int best = -1;

	while (rest) {
		int i = (int)lowest(&rest);

		if (best < 0 || key[i] < key[best])
			best = i;
	}
	if (best >= 0)
		*todo &= ~(UINT32_C(1) << best);
	return best;
}

static int next_registered(uint32_t *todo)
{
	uint32_t key[OPS_PROTOCOLS_MAX] = { 0 }, rest = *todo;

	while (rest) {
		unsigned i = lowest(&rest);

		key[i] = slots[i].order;
	}
	return next(todo, key);
}

static bool fits(const struct ops_protocol *p, const struct ops_want *want)
{
	uint32_t family = want->domain == AF_INET6 ? OPS_INET6 : OPS_INET;

	return (p->families & family) && (!want->id || p->id == want->id);
}

void ops_create(struct ops_socket *s, const struct ops_want *want, void *user)
{
	uint32_t list = 0;

	if (want->flags & OPS_WANT_SWITCH) {
		/* Read first: a store would move the line between processors for every socket. */
		if (!atomic_load_explicit(&have_sockets, memory_order_relaxed))
			atomic_store(&have_sockets, true);
		for (unsigned i = 0; i < n_slots; i++) {
			const struct ops_protocol *p;

			if (!use(i))
				continue;
			p = slots[i].protocol;
			if (fits(p, want) && p->calls->create(p->arg, user, want) == 0)
				list |= UINT32_C(1) << i;
			else
				unuse(i);
		}
	}
	*s = (struct ops_socket) { .list = list,
				   .bound = list ? OPS_UNDECIDED : OPS_NATIVE,
				   .user = user };
}

bool ops_has_ports(const struct ops_socket *s)
{
	uint32_t held = hold_all(s), todo = held;
	bool found = false;

	while (todo)
		found |= !(slots[lowest(&todo)].protocol->caps & OPS_NATIVE_PORTS);
	let_go(held);
	return found;
}

/* One protocol's share of bind(). There is one port space: who was not asked to choose must not. */
static int bind_one(const struct ops_protocol *p, void *user, const struct sockaddr *local,
		    socklen_t length, uint16_t *port, bool native)
{
	uint16_t taken = *port;
	int error;

	if (p->caps & OPS_NATIVE_PORTS)
		return native ? 0 : -EADDRNOTAVAIL;
	error = p->calls->bind(p->arg, user, local, length, &taken);
	if (!error && (!taken || (*port && taken != *port)))
		error = -EADDRINUSE;
	if (!error)
		*port = taken;
	return error;
}

int ops_bind(struct ops_socket *s, const struct sockaddr *local, socklen_t length, uint16_t *port,
	     bool native)
{
	uint32_t held, todo;
	int number, rc = 0;

	ops_prune(s);
	if (s->bound != OPS_UNDECIDED)
		return native ? 0 : -EADDRNOTAVAIL;
	todo = held = hold_all(s);
	while ((number = next_registered(&todo)) >= 0) {
		int error = bind_one(slots[number].protocol, s->user, local, length, port, native);

		if (error)
			leave(s, (unsigned)number);
		if (error && !rc)
			rc = error;
	}
	let_go(held);
	settle(s);
	return native || s->list ? 0 : rc;
}

void ops_option(struct ops_socket *s, int level, int name, const void *value, socklen_t length)
{
	uint32_t held, todo;

	ops_prune(s);
	todo = held = hold_all(s);
	while (todo) {
		unsigned i = lowest(&todo);
		const struct ops_protocol *p = slots[i].protocol;

		/* Once it carries data a refusal cannot take the socket away from it. */
		if (p->calls->option(p->arg, s->user, level, name, value, length) != 0 &&
		    (int)i != s->bound)
			leave(s, i);
	}
	let_go(held);
	settle(s);
}

/* ---- the decision ---- */

static int ask(const struct ops_socket *s, unsigned number, const struct ops_route *route)
{
	const struct ops_protocol *p = slots[number].protocol;

	if (s->accepted)
		return p->calls->accept(p->arg, s->user);
	return p->calls->connect(p->arg, s->user, route->remote, route->length,
				 p->caps & OPS_SELF_ROUTING ? NULL : &route->hop);
}

/* In which order to ask those of `todo`; who has no way to go leaves. Returns who is left. */
static uint32_t rank(struct ops_socket *s, uint32_t todo, unsigned ifindex, uint32_t key[])
{
	uint32_t left = todo;

	while (todo) {
		unsigned i = lowest(&todo);

		/* What came in has found its way; then the order is all that matters. */
		key[i] = came_up(i, ifindex);
		if (!key[i] && s->accepted)
			key[i] = slots[i].order | UINT32_C(1) << 31;
		if (key[i])
			continue;
		left &= ~(UINT32_C(1) << i);
		leave(s, i);
	}
	return left;
}

/* It said yes. The socket may have become native meanwhile: then it is too late. */
static void bind_to(struct ops_socket *s, int number)
{
	int8_t now = OPS_UNDECIDED;

	if (atomic_compare_exchange_strong(&s->bound, &now, (int8_t)number))
		leave_all(s, number);
	else if (now != number)
		leave(s, (unsigned)number);
}

int ops_decide(struct ops_socket *s, const struct ops_route *route)
{
	uint32_t held, todo, key[OPS_PROTOCOLS_MAX];
	int number;

	ops_prune(s);
	if (s->bound != OPS_UNDECIDED || !s->connected)
		return s->bound;
	if (route && route->denied) {
		ops_step_down(s);
		return s->bound;
	}
	held = hold_all(s);
	todo = rank(s, held, route ? route->hop.ifindex : 0, key);
	while (s->bound == OPS_UNDECIDED && (number = next(&todo, key)) >= 0) {
		int rc = ask(s, (unsigned)number, route);

		if (rc == 0)
			bind_to(s, number);
		else if (rc != -EAGAIN)
			leave(s, (unsigned)number);
	}
	let_go(held);
	settle(s);
	return s->bound;
}

int ops_connect(struct ops_socket *s, const struct ops_route *route)
{
	if (s->bound != OPS_UNDECIDED)
		return s->bound;
	s->connected = true;
	return ops_decide(s, route);
}

int ops_accept(struct ops_socket *s, const struct ops_socket *listener, bool denied, void *user)
{
	uint32_t todo = denied ? 0 : listener->list, list = 0;

	while (todo) {
		unsigned i = lowest(&todo);

		if (use(i))
			list |= UINT32_C(1) << i;
	}
	*s = (struct ops_socket) { .list = list,
				   .bound = OPS_UNDECIDED,
				   .connected = true,
				   .accepted = true,
				   .user = user };
	return ops_decide(s, NULL);
}

void ops_step_down(struct ops_socket *s)
{
	s->bound = OPS_NATIVE;
	leave_all(s, OPS_NATIVE);
}

void ops_close(struct ops_socket *s)
{
	ops_step_down(s);
}
