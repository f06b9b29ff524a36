/* SPDX-License-Identifier: MIT */
/* Pipes: two RDMA sockets of this process, from streaming mode to the end. See api.h. */
#include "pipe.h"

struct pipe pipes[PIPES];

void pipes_init(void)
{
	for (int i = 0; i < PIPES; i++) {
		uint32_t gen = pipes[i].gen;

		memset(&pipes[i], 0, sizeof(pipes[i]));
		pipes[i].gen = gen;
		slot_init(&pipes[i].slot);
		pipes[i].sides[1].side = 1;
		for (int side = 0; side < 2; side++)
			pipes[i].sides[side].pipe = &pipes[i];
	}
}

/* ---- the judge ---- */

uint64_t pipe_library(const struct pipe_side *p)
{
	return mix((uint64_t)(p->pipe - pipes) * 2 + (uint64_t)p->side + 99) + p->pipe->gen;
}

static void check_message(struct pipe_side *p, const struct pipe_req *r,
			  const struct flue_socket_event *ev)
{
	const struct pipe_side *from = &p->pipe->sides[!p->side];
	struct pipe_label label;

	atomic_fetch_add(&n_messages, 1);
	memcpy(&label, r->at, sizeof(label));
	if (ev->length < sizeof(label) || label.library != pipe_library(from) ||
	    label.length != ev->length ||
	    !pattern_is(r->at + sizeof(label), label.length - sizeof(label), label.seed))
		fail("a message of %zu octets over a pipe is not as it was sent", ev->length);
}

static void check_req(struct pipe_side *p, const struct flue_socket_event *ev)
{
	uint32_t index = ev->id & 0xff;
	struct pipe_req *r;
	unsigned is = REC_POSTED;

	if (index >= PIPE_REQS)
		fail("an event of a socket for id %llx", (unsigned long long)ev->id);
	r = &p->reqs[index];
	if (atomic_load(&r->state) != REC_POSTED || atomic_load(&r->gen) != ev->id >> 8)
		fail("an event of a socket for a request that is not there");
	if (r->type != ev->type)
		fail("an event of type %u for a request of type %u", ev->type, r->type);
	if (ev->error && !atomic_load(&p->pipe->spoilt))
		fail("a request of a pipe that nobody disturbed failed: %d", ev->error);
	if (!ev->error && ev->type == FLUE_SOCKET_RDMA_RECEIVED)
		check_message(p, r, ev);
	if (!ev->error && ev->type == FLUE_SOCKET_GOT &&
	    (ev->length != r->length || !pattern_is(r->at, r->length, r->seed)))
		fail("a get() brought something else");
	if (!atomic_compare_exchange_strong(&r->state, &is, REC_FREE))
		fail("a request of a socket was answered twice");
	atomic_fetch_sub(&p->out, 1);
}

static void book(struct pipe_side *p, const struct flue_socket_event *ev)
{
	if (atomic_load(&p->gone))
		fail("an event after destroy()");
	if (atomic_load(&p->ended))
		fail("an event after ENDED");
	switch (ev->type) {
	case FLUE_SOCKET_SWITCHED:
		must(ev->id == SWITCH_ID);
		atomic_store(&p->error, ev->error);
		must(atomic_fetch_add(&p->switched, 1) == 0);
		break;
	case FLUE_SOCKET_ENDED:
		if (!atomic_load(&p->pipe->spoilt))
			fail("a pipe that nobody disturbed ended: %s",
			     flue_close_reason_name(ev->reason));
		atomic_store(&p->ended, 1);
		break;
	default: check_req(p, ev);
	}
}

static void on_event(const struct flue_socket_event *ev, void *arg)
{
	book(arg, ev);
}

static void unlock(void *lock)
{
	pthread_mutex_unlock(lock);
}

/* Takes one. Events are booked in the order in which they were taken: ENDED is the last. */
void pipe_take(struct pipe_side *p, int timeout_ms)
{
	struct flue_socket_event ev;

	if (p->by_function) {
		usleep(50);
		return;
	}
	pthread_mutex_lock(&p->taking);
	undo_push(unlock, &p->taking);
	if (CALL(flue_socket_get_event(p->s, &ev, timeout_ms)))
		book(p, &ev);
	else
		may_fail_with("socket get_event", timeout_ms ? ETIMEDOUT : EAGAIN, EINTR, 0);
	undo_run();
}

/* ---- requests ---- */

struct pipe_req *pipe_reserve(struct pipe_side *p, uint32_t type)
{
	uint32_t from = draw(PIPE_REQS);

	for (uint32_t i = 0; i < PIPE_REQS; i++) {
		struct pipe_req *r = &p->reqs[(from + i) % PIPE_REQS];
		unsigned is = REC_FREE;

		if (!atomic_compare_exchange_strong(&r->state, &is, REC_RESERVED))
			continue;
		atomic_fetch_add(&r->gen, 1);
		r->type = type;
		r->at = p->memory + (size_t)(r - p->reqs) * PIPE_MESSAGE;
		return r;
	}
	return NULL;
}

uint64_t pipe_post(struct pipe_side *p, struct pipe_req *r)
{
	atomic_fetch_add(&p->out, 1);
	atomic_store(&r->state, REC_POSTED);
	return (uint64_t)atomic_load(&r->gen) << 8 | (uint64_t)(r - p->reqs);
}

void pipe_refuse(struct pipe_side *p, struct pipe_req *r)
{
	unsigned is = REC_POSTED;

	if (!atomic_compare_exchange_strong(&r->state, &is, REC_FREE))
		fail("a request of a socket that was refused has been answered");
	atomic_fetch_sub(&p->out, 1);
}

/* ---- streaming mode ---- */

static bool stream_word(struct pipe *p)
{
	static const uint8_t word[16] = "switch to RDMA\n";
	struct pipe_side *a = &p->sides[0], *b = &p->sides[1];
	struct pipe_req *out = pipe_reserve(a, FLUE_SOCKET_SENT);
	struct pipe_req *in = pipe_reserve(b, FLUE_SOCKET_RECEIVED);
	uint64_t end = now_ms() + PATIENCE_MS, id;
	bool ok;

	memset(in->at, 0, sizeof(word));
	id = pipe_post(b, in);
	ok = CALL(b->s->ops->recv(b->s, in->at, sizeof(word), id));
	if (!ok) {
		may_fail_with("recv", 0);
		pipe_refuse(b, in);
	}
	memcpy(out->at, word, sizeof(word));
	id = pipe_post(a, out);
	if (!CALL(a->s->ops->send(a->s, out->at, sizeof(word), id))) {
		may_fail_with("send", 0);
		pipe_refuse(a, out);
		return false;
	}
	while (atomic_load(&a->out) || atomic_load(&b->out)) {
		must(now_ms() < end);
		pipe_take(a, 1);
		pipe_take(b, 1);
	}
	/* Sixteen octets of loopback come in one piece. */
	must(!ok || !memcmp(in->at, word, sizeof(word)));
	return ok;
}

/* ---- making ---- */

static bool open_side(struct pipe_side *p, struct house *h, int fd)
{
	struct flue_socket_attr attr = FLUE_ATTR(struct flue_socket_attr);

	p->by_function = draw(2);
	if (p->by_function) {
		attr.on_event = on_event;
		attr.event_arg = p;
	}
	pthread_mutex_init(&p->taking, NULL);
	p->house = h;
	slot_join(&h->slot);
	p->memory = calloc(1, PIPE_MEMORY);
	pattern_fill(p->memory + PIPE_LIBRARY_AT, PIPE_MESSAGE, pipe_library(p));
	atomic_store(&p->gone, false);
	atomic_store(&p->switched, 0);
	atomic_store(&p->ended, 0);
	atomic_store(&p->error, 0);
	atomic_store(&p->credits, 0);
	atomic_store(&p->out, 0);
	p->s = CALL(flue_socket_open(h->adapter, fd, &attr));
	if (!p->s)
		may_fail_with("socket_open", EAGAIN, 0);
	return p->s;
}

static bool reserve(struct pipe_side *p)
{
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct pipe *other = &pipes[draw(PIPES)];
	bool related = one_in(3) && other != p->pipe && slot_hold(&other->slot), ok;

	p->no_read = want.no_read = one_in(4);
	p->no_write = want.no_write = one_in(4);
	want.sq_depth = draw(2) * (1 + draw(PIPE_REQS));
	want.rq_depth = draw(2) * (4 + draw(PIPE_REQS));
	if (related && other->sides[0].house == p->house)
		want.related = other->sides[0].s;
	ok = CALL(p->s->ops->reserve(p->s, &want));
	if (!ok)
		may_fail_with("reserve", disturbed() ? ENOBUFS : 0, disturbed() ? EIO : 0, 0);
	if (related)
		undo_run();
	return ok;
}

static bool map(struct pipe_side *p)
{
	struct flue_socket *s = p->s;

	p->library = CALL(s->ops->alloc_stag(s));
	p->target = CALL(s->ops->alloc_stag(s));
	if (!p->library || !p->target) {
		may_fail_with("alloc_stag", 0);
		return false;
	}
	if (CALL(s->ops->map(s, p->library, p->memory + PIPE_LIBRARY_AT, PIPE_MESSAGE,
			     FLUE_REMOTE_READ)))
		must(!p->no_read);
	else
		must(p->no_read && errno == EACCES);
	if (CALL(s->ops->map(s, p->target, p->memory + PIPE_TARGET_AT, PIPE_MESSAGE,
			     FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE)))
		must(!p->no_write);
	else
		must(p->no_write && errno == EACCES);
	return true;
}

static bool begin_switch(struct pipe_side *p)
{
	struct flue_switch_attr how = FLUE_ATTR(struct flue_switch_attr);

	how.flags = p->side ? FLUE_SWITCH_RESPONDER : 0;
	how.timeout_ms = 20000;
	if (one_in(3))
		how.conn_flags = FLUE_CONN_NO_CRC;
	if (!CALL(p->s->ops->switch_mode(p->s, &how, SWITCH_ID))) {
		may_fail_with("switch_mode", 0);
		return false;
	}
	p->owns_fd = false;
	for (int i = 0; i < 3; i++)
		pipe_recv(p);
	return true;
}

static bool become_rdma(struct pipe *p)
{
	uint64_t end = now_ms() + PATIENCE_MS;

	for (int side = 0; side < 2; side++)
		if (!reserve(&p->sides[side]) || !map(&p->sides[side]))
			return false;
	for (int side = 0; side < 2; side++)
		if (!begin_switch(&p->sides[side]))
			return false;
	while (!atomic_load(&p->sides[0].switched) || !atomic_load(&p->sides[1].switched)) {
		if (now_ms() > end)
			fail("a pipe is not switched");
		pipe_take(&p->sides[0], 1);
		pipe_take(&p->sides[1], 1);
		atomic_store(&me->since, now_ms());
	}
	return !atomic_load(&p->sides[0].error) && !atomic_load(&p->sides[1].error);
}

static void end_side(struct pipe_side *p, int fd)
{
	if (!p->house)
		return;
	if (p->s && !CALL(p->s->ops->destroy(p->s)))
		fail("destroy of a socket: %s", strerror(errno));
	atomic_store(&p->gone, true);
	if (p->owns_fd)
		close(fd);
	for (uint32_t i = 0; i < PIPE_REQS; i++)
		atomic_store(&p->reqs[i].state, REC_FREE);
	pthread_mutex_destroy(&p->taking);
	free(p->memory);
	slot_put(&p->house->slot);
	p->house = NULL;
	p->s = NULL;
}

static void make_pipe(struct pipe *p)
{
	struct house *a = house_hold(), *b;
	int fd[2];
	bool ok;

	if (!a)
		return;
	b = draw(3) ? house_hold() : NULL;
	if (slot_claim(&p->slot, SLOT_EMPTY)) {
		p->gen++;
		atomic_store(&p->spoilt, true);
		ok = make_stream(fd);
		if (ok) {
			p->sides[0].owns_fd = p->sides[1].owns_fd = true;
			ok = open_side(&p->sides[0], a, fd[0]);
			ok &= open_side(&p->sides[1], b ? b : a, fd[1]);
			ok = ok && stream_word(p) && become_rdma(p);
			if (!ok) {
				end_side(&p->sides[0], fd[0]);
				end_side(&p->sides[1], fd[1]);
			}
		}
		if (ok)
			atomic_store(&p->spoilt, false);
		atomic_fetch_add(&n_pipes, ok);
		slot_release(&p->slot, ok ? SLOT_LIVE : SLOT_EMPTY);
	}
	if (b)
		undo_run();
	undo_run();
}

/* ---- ending ---- */

static void pump(struct pipe *p, uint64_t end)
{
	if (now_ms() > end)
		fail("a pipe does not come to an end: out %u %u, ended %u %u",
		     atomic_load(&p->sides[0].out), atomic_load(&p->sides[1].out),
		     atomic_load(&p->sides[0].ended), atomic_load(&p->sides[1].ended));
	pipe_take(&p->sides[0], 1);
	pipe_take(&p->sides[1], 1);
	atomic_store(&me->since, now_ms());
}

static void end_pipe(struct pipe *p)
{
	uint64_t end = now_ms() + PATIENCE_MS;

	if (!slot_claim_soon(&p->slot, SLOT_LIVE))
		return;
	atomic_store(&p->spoilt, true);
	if (draw(2)) {
		struct pipe_side *s = &p->sides[draw(2)];

		/* Everything is answered, then ENDED comes, on both sides. */
		if (!CALL(s->s->ops->disconnect(s->s, 20000)))
			may_fail_with("disconnect", EBUSY, ENOTCONN, 0);
		while (!atomic_load(&p->sides[0].ended) || !atomic_load(&p->sides[1].ended))
			pump(p, end);
		must(!atomic_load(&p->sides[0].out) && !atomic_load(&p->sides[1].out));
	}
	end_side(&p->sides[0], -1);
	end_side(&p->sides[1], -1);
	slot_release(&p->slot, SLOT_EMPTY);
}

void op_pipe(void)
{
	struct pipe *p = &pipes[draw(PIPES)];
	bool mortal = me->mortal;

	if (kinds & KIND_CLOSE)
		return;
	me->mortal = false;
	if (slot_is(&p->slot, SLOT_EMPTY))
		make_pipe(p);
	else if (one_in(3))
		end_pipe(p);
	me->mortal = mortal;
}

void pipes_end(void)
{
	for (int i = 0; i < PIPES; i++) {
		end_pipe(&pipes[i]);
		must(slot_is(&pipes[i].slot, SLOT_EMPTY));
	}
}
