/* SPDX-License-Identifier: MIT */
#include "rnic/local.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/util.h"
#include "channel/duct.h"
#include "rnic/local_priv.h"
#include "rnic/mem.h"
#include "rnic/shown.h"
#include "rnic/view.h"

#define RECORDS      64 /* before others get their turn */
#define FIRST_TABLE  16
#define INDEX_BITS   20
#define CIRCUITS_MAX (1u << INDEX_BITS)

/* ---- circuits ---- */

static struct local *local_of(struct engine *e)
{
	if (!e->local)
		e->local = calloc(1, sizeof(*e->local));
	return e->local;
}

static bool grow(struct local *o)
{
	uint32_t n = o->n_circuits ? 2 * o->n_circuits : FIRST_TABLE;
	struct circuit **to = n <= CIRCUITS_MAX ? realloc(o->circuits, n * sizeof(struct circuit *))
						: NULL;

	if (!to)
		return false;
	memset(to + o->n_circuits, 0, (n - o->n_circuits) * sizeof(struct circuit *));
	o->circuits = to;
	o->next = o->n_circuits;
	o->n_circuits = n;
	return true;
}

/* A number that is free: on from the last one. */
static bool find_number(struct local *o, uint32_t *number)
{
	for (uint32_t i = 0; i < o->n_circuits; i++) {
		uint32_t n = (o->next + i) & (o->n_circuits - 1);

		if (!o->circuits[n]) {
			*number = n;
			o->next = n + 1;
			return true;
		}
	}
	return false;
}

static struct circuit *new_circuit(struct engine *e)
{
	struct local *o = local_of(e);
	struct circuit *k = o ? calloc(1, sizeof(*k)) : NULL;

	if (!k)
		return NULL;
	if (!find_number(o, &k->number) && (!grow(o) || !find_number(o, &k->number))) {
		free(k);
		return NULL;
	}
	o->circuits[k->number] = k;
	/* One of its place that was before may still be spoken of. */
	k->number |= ++o->generation << INDEX_BITS;
	return k;
}

static void free_circuit(struct engine *e, struct circuit *k)
{
	if (k->duct) {
		LIST_REMOVE(k, of_duct);
		if (k->owed)
			TAILQ_REMOVE(&k->duct->owing, k, owing);
	}
	e->local->circuits[k->number & (CIRCUITS_MAX - 1)] = NULL;
	free(k);
}

void local_withdraw(struct engine *e, struct circuit *k)
{
	/* The peer may know of it. */
	if (k->duct && !k->duct->over) {
		k->reset = true;
		circuit_owe(k, RECORD_CLOSE);
		return;
	}
	free_circuit(e, k);
}

static void end_duct(struct local_duct *d);

void circuit_settle(struct circuit *k)
{
	struct local_duct *d = k->duct;

	if (k->link || k->owed || !(k->peer_closed || d->over))
		return;
	free_circuit(d->engine, k);
	if (d->over && LIST_EMPTY(&d->circuits) && !d->polling)
		end_duct(d);
}

/* ---- records without a segment ---- */

static bool put(struct local_duct *d, const struct circuit *k, enum record_kind kind)
{
	struct record_head *h = duct_begin(d->duct, sizeof(*h));

	if (!h)
		return false;
	*h = (struct record_head) { .circuit = k->peer, .kind = (uint8_t)kind };
	if (kind == RECORD_CLOSE && k->reset)
		h->code = CODE_RESET;
	if (kind == RECORD_GATE && k->link) {
		h->code = d->view && !k->link->cannot_read ? CODE_READS : 0;
		h->gate = (uint16_t)k->link->gate;
	}
	duct_post(d->duct, sizeof(*h));
	return true;
}

/* In the order of their kinds. false: no room. */
static bool pay(struct circuit *k)
{
	for (unsigned kind = 0; kind < RECORD_NKINDS; kind++) {
		if (!(k->owed & 1u << kind))
			continue;
		if (!put(k->duct, k, kind))
			return false;
		k->owed &= (uint8_t) ~(1u << kind);
	}
	return true;
}

void circuit_owe(struct circuit *k, enum record_kind kind)
{
	struct local_duct *d = k->duct;
	bool owed = k->owed;

	if (d->over) {
		circuit_settle(k);
		return;
	}
	k->owed |= (uint8_t)(1u << kind);
	if (kind == RECORD_CLOSE)
		k->owed &= (uint8_t) ~(1u << RECORD_GATE);
	if (owed)
		return;
	if (!TAILQ_EMPTY(&d->owing) || !pay(k)) {
		TAILQ_INSERT_TAIL(&d->owing, k, owing);
		duct_want_room(d->duct);
		return;
	}
	if (!d->polling)
		duct_flush(d->duct);
	circuit_settle(k);
}

static void pay_all(struct local_duct *d)
{
	struct circuit *k;

	while ((k = TAILQ_FIRST(&d->owing)) && pay(k)) {
		TAILQ_REMOVE(&d->owing, k, owing);
		circuit_settle(k);
	}
}

/* ---- what has come ---- */

/* NULL: none of this duct, or not any more: we may have given up what the peer has just answered. */
static struct circuit *circuit_at(struct local_duct *d, uint32_t number)
{
	struct local *o = d->engine->local;
	uint32_t index = number & (CIRCUITS_MAX - 1);
	struct circuit *k = index < o->n_circuits ? o->circuits[index] : NULL;

	if (!k || k->number != number || k->peer_closed)
		return NULL;
	return !k->duct || k->duct == d ? k : NULL;
}

static void take_close(struct circuit *k)
{
	k->peer_closed = true;
	if (k->link)
		link_local_gone(k->link);
	else
		circuit_settle(k);
}

/* false: it cannot be. *to: the link that it was for. */
static bool take(struct local_duct *d, const uint8_t *record, size_t size, struct link_local **to)
{
	struct record_head h;
	struct circuit *k;

	if (size < sizeof(h))
		return false;
	memcpy(&h, record, sizeof(h)); /* once: the peer may change it */
	k = circuit_at(d, h.circuit);
	if (h.kind >= RECORD_NKINDS ||
	    (h.kind == RECORD_GATE ? h.gate >= SHOWN_GATES : h.gate != 0))
		return false;
	if (!k)
		return true;
	if (!k->duct) { /* it has answered our offer, which we do not know yet, and ended at once */
		k->early = h.kind == RECORD_CLOSE ? d : k->early;
		return true;
	}
	if (h.kind == RECORD_CLOSE) {
		take_close(k);
		return true;
	}
	*to = k->link;
	if (!k->link) /* it crossed our last word */
		return true;
	record += sizeof(h);
	size -= sizeof(h);
	switch (h.kind) {
	case RECORD_FIN: link_local_fin(k->link); break;
	case RECORD_TAKEN: link_local_taken(k->link); break;
	case RECORD_GATE: link_local_gate(k->link, h.gate, h.code == CODE_READS); break;
	default:
		if (h.code == CODE_REFERENCE)
			return link_local_reference(k->link, record, size);
		link_local_segment(k->link, record, size);
		break;
	}
	return true;
}

/* All its circuits have ended. */
static void fail_duct(struct local_duct *d)
{
	struct circuit *k, *next;

	d->over = true;
	TAILQ_FOREACH(k, &d->owing, owing)
		k->owed = 0;
	TAILQ_INIT(&d->owing);
	LIST_FOREACH_SAFE(k, &d->circuits, of_duct, next) {
		if (k->link)
			link_local_gone(k->link);
		else
			circuit_settle(k);
	}
}

/* There may be room again: each has one turn. */
static void wake_blocked(struct local_duct *d)
{
	struct link_local *l;

	for (uint32_t n = d->n_blocked; n && (l = TAILQ_FIRST(&d->blocked)); n--) {
		link_local_unblock(l);
		link_kick(&l->link);
	}
}

static bool take_records(struct local_duct *d)
{
	struct link_local *last = NULL;
	const uint8_t *record;
	bool sound = true;
	size_t size;

	for (int i = 0; sound && i < RECORDS && (record = duct_next(d->duct, &size)); i++) {
		struct link_local *l = NULL;

		sound = take(d, record, size, &l);
		duct_done(d->duct);
		/* What there is to say to what came is said when all of it has. */
		if (last && last != l)
			link_kick(&last->link);
		last = l;
		d->engine->idle_polls = 0;
	}
	if (last)
		link_kick(&last->link);
	return sound;
}

void local_take_in(struct local_duct *d)
{
	bool sound;
	int status;

	if (d->polling || d->over)
		return;
	d->polling = true;
	sound = take_records(d);
	if (!TAILQ_EMPTY(&d->owing))
		pay_all(d);
	if (d->n_blocked)
		wake_blocked(d);
	duct_flush(d->duct);
	status = duct_status(d->duct);
	if (d->claimant && atomic_load(&d->claimant->liar))
		sound = false;
	if (!sound || (status && duct_arm(d->duct))) {
		log_info(rnic, "duct to process %d: %s", (int)d->pid,
			 status == -EPIPE ? "has ended" : "the peer broke a rule");
		fail_duct(d);
	}
	d->polling = false;
	if (d->over && LIST_EMPTY(&d->circuits))
		end_duct(d);
}

/* ---- ducts ---- */

static struct local_duct *duct_of(struct link *poller)
{
	return container_of(poller, struct local_duct, poller);
}

static void poll_duct(struct link *poller)
{
	struct local_duct *d = duct_of(poller);

	if (!duct_is_quiet(d->duct) || d->n_blocked || !TAILQ_EMPTY(&d->owing))
		local_take_in(d);
}

static bool arm_duct(struct link *poller)
{
	struct local_duct *d = duct_of(poller);

	/* A rule that was broken is found where we send, too. */
	return d->over || (!duct_status(d->duct) && duct_arm(d->duct));
}

/* Only these two are asked for. */
static const struct link_ops poller_ops = { .poll = poll_duct, .arm = arm_duct };

/* The peer may have shown us its memory. */
static void look_across(struct local_duct *d)
{
	int fd = duct_passed(d->duct);
	struct circuit *k, *next;

	if (fd < 0)
		return;
	if (!d->view)
		d->view = view_open(fd, d->pid, duct_own_word(d->duct));
	else
		sys_close(fd);
	if (!d->view)
		return;
	if (d->claimant) {
		d->claimant->token = d->view->token;
		atomic_store(&d->claimant->guard, d->view->guard);
	}
	/* It shall know that we can read it, too. */
	LIST_FOREACH_SAFE(k, &d->circuits, of_duct, next) {
		if (k->link && k->link->gate)
			circuit_owe(k, RECORD_GATE);
	}
}

static void ready(struct engine_io *io, uint32_t events)
{
	struct local_duct *d = container_of(io, struct local_duct, io);

	(void)events;
	duct_heard(d->duct);
	look_across(d);
	local_take_in(d);
}

static void close_duct(struct local_duct *d)
{
	fd_release(d->io.fd); /* the duct itself closes it */
	if (d->view)
		view_close(d->view);
	if (d->claimant) /* somebody may be looking at its word */
		shown_remove_claimant(d->engine->mem->shown, d->claimant);
	else
		duct_close(d->duct);
	free(d);
}

static void end_duct(struct local_duct *d)
{
	engine_remove_link(d->engine, &d->poller);
	engine_forget(d->engine, &d->io);
	LIST_REMOVE(d, all);
	close_duct(d);
}

/* Lets the peer see what we show. */
static void show(struct local_duct *d)
{
	struct shown *s = d->engine->mem ? mem_show(d->engine->mem) : NULL;
	int fd = s ? shown_fd(s) : -1;

	if (fd < 0)
		return;
	d->claimant = shown_add_claimant(s, d->duct, d->pid);
	if (d->claimant)
		duct_pass(d->duct, fd);
}

/* Takes `duct`. NULL: no memory, or epoll has none. */
static struct local_duct *add_duct(struct engine *e, struct duct *duct,
				   const struct mpa_local *peer, uint64_t name, bool made)
{
	struct local_duct *d = calloc(1, sizeof(*d));

	if (!d || !local_of(e)) {
		free(d);
		duct_close(duct);
		return NULL;
	}
	d->poller.ops = &poller_ops;
	d->engine = e;
	d->duct = duct;
	d->pid = (pid_t)peer->pid;
	d->peer_engine = peer->engine;
	memcpy(d->box, peer->box, sizeof(d->box));
	d->name = name;
	d->made = made;
	LIST_INIT(&d->circuits);
	TAILQ_INIT(&d->owing);
	TAILQ_INIT(&d->blocked);
	engine_io_take(&d->io, duct_fd(duct));
	d->io.ready = ready;
	if (engine_watch(e, &d->io, EPOLLIN)) {
		fd_release(d->io.fd);
		duct_close(duct);
		free(d);
		return NULL;
	}
	LIST_INSERT_HEAD(&e->local->ducts, d, all);
	engine_add_link(e, &d->poller);
	show(d);
	return d;
}

static void join(struct circuit *k, struct local_duct *d, uint32_t peer)
{
	k->duct = d;
	k->peer = peer;
	k->peer_closed = k->early == d;
	LIST_INSERT_HEAD(&d->circuits, k, of_duct);
}

static void describe(struct engine *e, struct mpa_local *id, const struct circuit *k)
{
	*id = (struct mpa_local) { .offered = true,
				   .pid = (uint32_t)getpid(),
				   .engine = e->serial,
				   .circuit = k->number };
	memcpy(id->box, mailbox_name(), sizeof(id->box));
}

_Static_assert(sizeof(((struct mpa_local *)0)->box) == MAILBOX_NAME, "as the mailbox has it");

struct circuit *local_offer(struct engine *e, struct mpa_local *id)
{
	struct circuit *k = duct_reachable() ? new_circuit(e) : NULL;

	*id = (struct mpa_local) { 0 };
	if (k)
		describe(e, id, k);
	return k;
}

/* One that we have, or a new one. */
static struct local_duct *duct_to(struct engine *e, const struct mpa_local *peer)
{
	static _Atomic uint32_t count;
	uint64_t name = (uint64_t)getpid() << 32 | atomic_fetch_add(&count, 1);
	struct local_duct *d;
	struct duct *duct;

	LIST_FOREACH(d, &e->local->ducts, all) {
		if (d->pid == (pid_t)peer->pid && d->peer_engine == peer->engine && !d->over &&
		    (d->made || d->pid != getpid()) && !memcmp(d->box, peer->box, sizeof(d->box)) &&
		    !duct_status(d->duct))
			return d;
	}
	if (duct_call(peer->box, (pid_t)peer->pid, name, &duct))
		return NULL;
	return add_duct(e, duct, peer, name, true);
}

struct circuit *local_answer(struct engine *e, const struct mpa_local *request,
			     struct mpa_local *id)
{
	struct local_duct *d;
	struct circuit *k;

	*id = (struct mpa_local) { 0 };
	if (!request->offered || !duct_reachable())
		return NULL;
	k = new_circuit(e);
	if (!k)
		return NULL;
	d = duct_to(e, request);
	if (!d) {
		free_circuit(e, k);
		return NULL;
	}
	join(k, d, request->circuit);
	describe(e, id, k);
	id->name = d->name;
	return k;
}

int local_join(struct engine *e, struct circuit *k, const struct mpa_local *reply)
{
	struct local_duct *d;
	struct duct *duct;
	int rc;

	LIST_FOREACH(d, &e->local->ducts, all) {
		/* Of one that an engine has with itself, the side that the other end has not. */
		if (d->pid == (pid_t)reply->pid && d->name == reply->name && !d->over &&
		    !(d->made && d->pid == getpid()))
			break;
	}
	if (!d) {
		rc = duct_answer((pid_t)reply->pid, reply->name, &duct);
		if (rc)
			return rc;
		d = add_duct(e, duct, reply, reply->name, false);
	}
	if (!d)
		return -ENOMEM;
	join(k, d, reply->circuit);
	return 0;
}

/* ---- the end of it all ---- */

static void drop_all(struct engine *e, void (*drop)(struct local_duct *d))
{
	struct local *o = e->local;
	struct local_duct *d;

	if (!o)
		return;
	while ((d = LIST_FIRST(&o->ducts))) {
		LIST_REMOVE(d, all);
		if (drop)
			drop(d);
		close_duct(d);
	}
	for (uint32_t i = 0; i < o->n_circuits; i++)
		free(o->circuits[i]);
	free(o->circuits);
	free(o);
	e->local = NULL;
}

void local_fini(struct engine *e)
{
	drop_all(e, NULL);
}

static void forget(struct local_duct *d)
{
	if (d->view)
		view_forked(d->view);
	d->view = NULL;
	d->claimant = NULL; /* mem_fork_child() frees it */
	duct_forked(d->duct);
}

void local_fork_child(struct engine *e)
{
	drop_all(e, forget);
}
