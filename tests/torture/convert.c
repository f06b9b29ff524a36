/* SPDX-License-Identifier: MIT */
/* Scenarios of live streams: plain conversions, RDMA sockets, and their ends (CH-14, CH-25). */
#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "torture/inject.h"
#include "torture/torture.h"

#define SMALL 100
#define WORDS 5
/* A shutdown() that fails is noticed by its timer only; once each is enough. */
#define CLOSE_MS 500

/* ---- streams ---- */

static bool connect_streams(int door, int fd[2])
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	socklen_t len = sizeof(in);

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (bind(door, (struct sockaddr *)&in, len) || listen(door, 1) ||
	    getsockname(door, (struct sockaddr *)&in, &len) ||
	    connect(fd[0], (struct sockaddr *)&in, len))
		return false;
	fd[1] = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	return fd[1] >= 0;
}

static bool make_streams(int fd[2])
{
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error;
	bool ok;

	fd[1] = -1;
	fd[0] = door < 0 ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	ok = fd[0] >= 0 && connect_streams(door, fd);
	error = errno;
	if (!ok && fd[0] >= 0)
		close(fd[0]);
	if (door >= 0)
		close(door);
	errno = error;
	return ok;
}

/* ---- plain conversions ---- */

struct conversion {
	struct pair_side *side;
	int fd;
	struct flue_switch_attr attr;
	bool ok;
	int error;
};

/* What the manual says about the descriptor after a failure. */
static bool fd_is_ours(int error)
{
	return error == EINVAL || error == EISCONN || error == EBADF || error == ENOTSOCK ||
	       error == EPROTOTYPE || error == ENOTCONN || error == EOPNOTSUPP || error == EDEADLK;
}

static void *convert_main(void *arg)
{
	struct conversion *c = arg;
	struct stat st;
	int injected;

	c->ok = flue_socket_convert(c->side->qp, c->fd, &c->attr);
	c->error = errno;
	if (c->ok)
		return NULL;
	/* ENOBUFS: the look at the descriptor failed, which no kernel does. */
	if (fd_is_ours(c->error) || (inject_struck(&injected) && injected == ENOBUFS &&
				     !fstat(c->fd, &st) && S_ISSOCK(st.st_mode)))
		close(c->fd);
	return NULL;
}

static bool convert_both(struct pair *p, uint32_t flags, int *error)
{
	struct conversion a = { .side = &p->a }, b = { .side = &p->b };
	pthread_t thread;
	int fd[2], rc;

	if (!make_streams(fd)) {
		*error = errno;
		return false;
	}
	a.attr = b.attr = FLUE_ATTR(struct flue_switch_attr);
	a.attr.timeout_ms = b.attr.timeout_ms = torture_timeout_ms;
	a.attr.flags = flags;
	b.attr.flags = flags | FLUE_SWITCH_RESPONDER;
	a.attr.private_data = flags ? NULL : "words";
	a.attr.private_len = flags ? 0 : 5;
	a.fd = fd[0];
	b.fd = fd[1];
	rc = pthread_create(&thread, NULL, convert_main, &b);
	if (rc) {
		close(fd[0]);
		close(fd[1]);
		*error = rc;
		return false;
	}
	convert_main(&a);
	pthread_join(thread, NULL);
	*error = a.ok ? b.error : a.error;
	/* One that is up hears that the other one is not. */
	if (a.ok && !b.ok)
		torture_promise(torture_end_told(&p->a), "the initiator's end is not told");
	if (b.ok && !a.ok)
		torture_promise(torture_end_told(&p->b), "the responder's end is not told");
	return a.ok && b.ok;
}

static bool convert_with(uint32_t flags)
{
	struct pair_options o = torture_options(SMALL);
	struct flue_event ev;
	struct pair p;
	int error = 0;
	bool ok;

	if (!pair_make(&p, &o))
		return false;
	ok = convert_both(&p, flags, &error);
	if (ok && !torture_flow(&p, SMALL)) {
		ok = false;
		error = errno;
	} else if (ok &&
		   !(flags ? flue_abort(p.a.qp) : p.a.qp->ops->disconnect(p.a.qp, CLOSE_MS))) {
		ok = false;
		error = errno;
		torture_ends(&p);
	} else if (ok) {
		torture_ends(&p);
	}
	while (flue_get_event(p.a.adapter, &ev, 0) || flue_get_event(p.b.adapter, &ev, 0))
		torture_promise(ok || ev.type != FLUE_EVENT_CONNECTED, "CONNECTED is told");
	errno = error;
	return torture_close(&p, ok);
}

static bool converted(void)
{
	return convert_with(0);
}

static bool converted_without_frames(void)
{
	return convert_with(FLUE_SWITCH_NO_REQ_REP);
}

/* ---- RDMA sockets ---- */

enum { SIDES = 2 };

struct end {
	struct flue_socket *s;
	unsigned asked, answered; /* requests */
	size_t got;               /* octets in streaming mode */
	bool begun;               /* switch and first receive are accepted */
	bool switched, ended;
	int error; /* the first one that was told */
	char data[SMALL], in[SMALL];
};

struct duo {
	struct flue_adapter *adapter;
	struct end end[SIDES];
	int fd[SIDES];
};

static void note_error(struct end *e, int error)
{
	/* What was flushed says that the connection is gone, and no more. */
	if (!e->error)
		e->error = error && error != ECANCELED ? error : ECONNRESET;
}

/* Takes one event. False: none came. */
static bool take(struct end *e, int ms)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(e->s, &ev, ms))
		return false;
	torture_promise(!e->ended, "event %u after ENDED", ev.type);
	if (ev.type == FLUE_SOCKET_ENDED) {
		e->ended = true;
		torture_promise(e->answered == e->asked, "ENDED with %u of %u answered",
				e->answered, e->asked);
		note_error(e, ECONNRESET);
		return true;
	}
	e->answered++;
	if (ev.type == FLUE_SOCKET_RECEIVED) {
		e->got += ev.length;
		if (!ev.length)
			note_error(e, ev.error);
	}
	torture_promise(e->answered <= e->asked, "event %u too many", ev.type);
	if (ev.type == FLUE_SOCKET_SWITCHED) {
		torture_promise(!e->switched, "SWITCHED twice");
		e->switched = true;
	} else if (ev.type >= FLUE_SOCKET_RDMA_SENT) {
		torture_promise(e->switched, "event %u before SWITCHED", ev.type);
	}
	if (ev.error)
		note_error(e, ev.error);
	return true;
}

/* Until everything asked for was answered, but `left`, or something went wrong. */
static bool await_answers(struct end *e, unsigned left)
{
	while (!e->error && e->answered + left < e->asked)
		if (!take(e, TORTURE_PATIENCE_MS)) {
			torture_promise(false, "%u of %u answered, state %s", e->answered, e->asked,
					flue_offload_state_name(e->s->offload_state));
			return false;
		}
	return !e->error;
}

static void await_end(struct end *e)
{
	while (!e->ended)
		if (!take(e, TORTURE_PATIENCE_MS)) {
			torture_promise(false, "ENDED never comes, %u of %u answered, state %s",
					e->answered, e->asked,
					flue_offload_state_name(e->s->offload_state));
			return;
		}
}

static bool asked(struct end *e, bool ok)
{
	if (ok)
		e->asked++;
	else
		note_error(e, errno);
	return ok;
}

static bool open_duo(struct duo *d)
{
	int error;

	memset(d, 0, sizeof(*d));
	d->adapter = flue_open(NULL);
	if (!d->adapter)
		return false;
	if (!make_streams(d->fd)) {
		error = errno;
		torture_must(flue_close(d->adapter));
		errno = error;
		return false;
	}
	for (unsigned i = 0; i < SIDES; i++) {
		d->end[i].s = flue_socket_open(d->adapter, d->fd[i], NULL);
		if (!d->end[i].s)
			note_error(&d->end[i], errno);
	}
	return true;
}

/* Whatever has happened, all of it goes. */
static bool close_duo(struct duo *d)
{
	int error = d->end[0].error ? d->end[0].error : d->end[1].error;

	for (unsigned i = 0; i < SIDES; i++) {
		struct flue_socket *s = d->end[i].s;
		bool ours = !s || flue_socket_state(s) == FLUE_SOCKET_STREAMING;

		if (s)
			torture_must(s->ops->destroy(s));
		if (ours)
			close(d->fd[i]);
	}
	torture_must(flue_close(d->adapter));
	errno = error;
	return !error;
}

static bool both_well(const struct duo *d)
{
	return !d->end[0].error && !d->end[1].error;
}

static void talk_streaming(struct duo *d)
{
	struct end *a = &d->end[0], *b = &d->end[1];

	if (!asked(a, a->s->ops->send(a->s, "words", WORDS, 1)) || !await_answers(a, 0))
		return;
	/* All of them, for what comes next is RDMA data. */
	while (b->got < WORDS && !b->error) {
		if (asked(b, b->s->ops->recv(b->s, b->in, WORDS - b->got, 1)))
			await_answers(b, 0);
	}
}

static void reserve_both(struct duo *d)
{
	for (unsigned i = 0; i < SIDES; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);
		struct flue_socket *s = d->end[i].s;

		r.sq_depth = r.rq_depth = 2;
		if (!s->ops->reserve(s, &r)) {
			torture_promise(r.reason != FLUE_RESERVE_OK, "no reason");
			note_error(&d->end[i], ENOMEM);
		}
	}
}

static void begin_switch(struct duo *d, uint32_t flags)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.timeout_ms = torture_timeout_ms;
	for (unsigned i = 0; i < SIDES; i++) {
		struct end *e = &d->end[i];

		attr.flags = flags | (i ? (uint32_t)FLUE_SWITCH_RESPONDER : 0);
		if (asked(e, e->s->ops->switch_mode(e->s, &attr, 1)))
			e->begun = asked(e, e->s->ops->rdma_recv(e->s, e->in, SMALL, 2));
		/* The request will not be answered without a transfer. */
		if (!e->begun && e->asked > e->answered)
			e->asked = e->answered;
	}
}

static void talk_rdma(struct duo *d)
{
	for (unsigned i = 0; i < SIDES; i++)
		await_answers(&d->end[i], 1);
	/* Either may speak first here; the responder's word waits for the initiator's. */
	for (unsigned i = 0; i < SIDES && both_well(d); i++)
		asked(&d->end[i],
		      d->end[i].s->ops->rdma_send(d->end[i].s, d->end[i].data, SMALL, 0, 0, 3));
	for (unsigned i = 0; i < SIDES && both_well(d); i++)
		await_answers(&d->end[i], 0);
}

/* One that will never be answered takes the other one with it. */
static void drop_stuck(struct duo *d)
{
	for (unsigned i = 0; i < SIDES; i++) {
		struct end *e = &d->end[i];

		if (e->begun || flue_socket_state(e->s) != FLUE_SOCKET_TRANSITION)
			continue;
		torture_must(e->s->ops->destroy(e->s));
		e->s = NULL;
	}
}

/* All that was begun ends, and says so. */
static void end_both(struct duo *d, bool well, bool graceful)
{
	struct end *a = &d->end[0], *b = &d->end[1];
	int error = a->error ? a->error : b->error;

	drop_stuck(d);
	if (well && !(graceful ? a->s->ops->disconnect(a->s, CLOSE_MS) : flue_abort(a->s->qp)))
		error = errno;
	for (unsigned i = 0; i < SIDES && !well; i++) {
		struct flue_socket *s = d->end[i].s;

		if (s && flue_socket_state(s) == FLUE_SOCKET_RDMA)
			s->ops->disconnect(s, CLOSE_MS);
	}
	for (unsigned i = 0; i < SIDES; i++)
		if (d->end[i].s && d->end[i].begun)
			await_end(&d->end[i]);
	a->error = error;
	b->error = 0;
}

static bool sockets_with(uint32_t flags)
{
	struct duo d;
	bool well;

	if (!open_duo(&d))
		return false;
	if (both_well(&d))
		talk_streaming(&d);
	if (both_well(&d))
		reserve_both(&d);
	if (both_well(&d)) {
		begin_switch(&d, flags);
		if (both_well(&d))
			talk_rdma(&d);
		well = both_well(&d);
		end_both(&d, well, !flags);
		/* A socket that was destroyed has closed its descriptor. */
		for (unsigned i = 0; i < SIDES; i++)
			if (!d.end[i].s)
				d.fd[i] = dup(0);
	}
	return close_duo(&d);
}

static bool sockets(void)
{
	return sockets_with(0);
}

static bool sockets_without_frames(void)
{
	return sockets_with(FLUE_SWITCH_NO_REQ_REP);
}

/* The switch is under way, or its events were not taken, when the sockets go. */
static bool sockets_dropped(void)
{
	struct duo d;

	if (!open_duo(&d))
		return false;
	if (both_well(&d))
		reserve_both(&d);
	if (both_well(&d))
		begin_switch(&d, 0);
	if (both_well(&d))
		take(&d.end[0], torture_timeout_ms);
	return close_duo(&d);
}

const struct scenario convert_scenarios[] = {
	{ "a conversion", converted, true },
	{ "a conversion without frames", converted_without_frames, true },
	{ "an RDMA socket", sockets, true },
	{ "an RDMA socket without frames", sockets_without_frames, true },
	{ "an RDMA socket dropped in mid-switch", sockets_dropped, true },
	{ .name = NULL },
};
