/* SPDX-License-Identifier: MIT */
/* What threads do with pipes in RDMA mode. See api.h. */
#include "pipe.h"

#include <poll.h>

/* What a thread is about to ask for; kept outside of its stack, which is gone when it is cancelled. */
static __thread struct {
	struct pipe_side *side;
	struct pipe_req *req;
	struct pipe_side *credit; /* taken from there */
} asked;

static void refuse(void *unused)
{
	(void)unused;
	pipe_refuse(asked.side, asked.req);
	if (asked.credit)
		atomic_fetch_add(&asked.credit->credits, 1);
}

static uint64_t begin(struct pipe_side *p, struct pipe_req *r, struct pipe_side *credit)
{
	asked.side = p;
	asked.req = r;
	asked.credit = credit;
	undo_push(refuse, NULL);
	return pipe_post(p, r);
}

static bool end(struct pipe_side *p, const char *what, bool ok)
{
	if (ok) {
		undo_pop();
		return true;
	}
	if (!(errno == ENOTCONN && atomic_load(&p->pipe->spoilt)))
		may_fail_with(what, ENOMEM, 0);
	undo_run();
	return false;
}

void pipe_recv(struct pipe_side *p)
{
	struct pipe_req *r = pipe_reserve(p, FLUE_SOCKET_RDMA_RECEIVED);
	uint64_t id;

	if (!r)
		return;
	id = begin(p, r, NULL);
	if (end(p, "rdma_recv", CALL(p->s->ops->rdma_recv(p->s, r->at, PIPE_MESSAGE, id))))
		atomic_fetch_add(&p->credits, 1);
}

static void send_message(struct pipe_side *p)
{
	struct pipe_side *peer = &p->pipe->sides[!p->side];
	struct pipe_label label;
	int left = atomic_load(&peer->credits);
	struct pipe_req *r;
	uint64_t id;

	while (left > 0 && !atomic_compare_exchange_weak(&peer->credits, &left, left - 1))
		;
	if (left <= 0)
		return;
	r = pipe_reserve(p, FLUE_SOCKET_RDMA_SENT);
	if (!r) {
		atomic_fetch_add(&peer->credits, 1);
		return;
	}
	memset(&label, 0, sizeof(label));
	label.library = pipe_library(p);
	label.length = (uint32_t)sizeof(label) + draw(PIPE_MESSAGE - sizeof(label));
	label.seed = mix(draw(UINT32_MAX));
	memcpy(r->at, &label, sizeof(label));
	pattern_fill(r->at + sizeof(label), label.length - sizeof(label), label.seed);
	id = begin(p, r, peer);
	end(p, "rdma_send",
	    CALL(p->s->ops->rdma_send(p->s, r->at, label.length,
				      one_in(4)   ? FLUE_SOCKET_FENCE
				      : one_in(4) ? FLUE_SOCKET_SOLICITED
						  : 0,
				      0, id)));
}

static void get(struct pipe_side *p)
{
	struct pipe_side *peer = &p->pipe->sides[!p->side];
	struct pipe_req *r = peer->no_read ? NULL : pipe_reserve(p, FLUE_SOCKET_GOT);
	uint32_t place = draw(PIPE_MESSAGE / 8);
	uint64_t id;

	if (!r)
		return;
	r->length = 1 + draw(PIPE_MESSAGE - place * 8);
	r->seed = pipe_library(peer) + place;
	id = begin(p, r, NULL);
	end(p, "get",
	    CALL(p->s->ops->get(p->s, r->at, r->length, peer->library->remote_start + place * 8,
				peer->library->rkey, 0, id)));
}

/* All write the same: what is there is always a part of it. */
static void put(struct pipe_side *p)
{
	struct pipe_side *peer = &p->pipe->sides[!p->side];
	struct pipe_req *r = peer->no_write ? NULL : pipe_reserve(p, FLUE_SOCKET_PUT);
	uint64_t id;

	if (!r)
		return;
	r->length = 1 + draw(PIPE_MESSAGE);
	pattern_fill(r->at, r->length, pipe_library(peer));
	id = begin(p, r, NULL);
	end(p, "put",
	    CALL(p->s->ops->put(p->s, r->at, r->length, peer->target->remote_start,
				peer->target->rkey, 0, id)));
}

static void resources(struct pipe_side *p)
{
	if (!CALL(p->s->ops->read_resources(p->s, 16, 1 + draw(16))) &&
	    !(errno == ENOTCONN && atomic_load(&p->pipe->spoilt)))
		may_fail_with("read_resources", EBUSY, 0);
}

/* Calls for which it is too late. */
static void odd(struct pipe_side *p)
{
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_socket *s = p->s;
	uint8_t octet = 0;

	must(!CALL(s->ops->send(s, &octet, 1, 0)));
	must(errno == EBADFD || (errno == ENOTCONN && atomic_load(&p->pipe->spoilt)));
	must(!CALL(s->ops->recv(s, &octet, 1, 0)));
	must(errno == EBADFD || (errno == ENOTCONN && atomic_load(&p->pipe->spoilt)));
	must(!CALL(s->ops->reserve(s, &want)));
	must(errno == EBADFD || (errno == ENOTCONN && atomic_load(&p->pipe->spoilt)));
	must(!CALL(s->ops->put(s, &octet, 1, 0, 0, 1u << 31, 0)));
	must(errno == EINVAL || errno == ENOTCONN);
	must(!CALL(flue_close(p->house->adapter)) && errno == EBUSY);
}

static void wait_for_event(struct pipe_side *p)
{
	struct pollfd file = { .events = POLLIN };

	if (!p->by_function && one_in(4)) {
		file.fd = CALL(p->s->ops->event_fd(p->s) + 1) - 1;
		if (file.fd < 0)
			may_fail_with("socket event_fd", 0);
		else
			poll(&file, 1, (int)draw(3));
	}
	pipe_take(p, me->for_ever && me->mortal && one_in(3) ? -1 : (int)draw(3));
}

void op_pipe_work(void)
{
	struct pipe *p = &pipes[draw(PIPES)];
	struct pipe_side *s = &p->sides[draw(2)];

	if (!slot_hold(&p->slot))
		return;
	switch (draw(9)) {
	case 0:
	case 1: pipe_recv(s); break;
	case 2:
	case 3: send_message(s); break;
	case 4: get(s); break;
	case 5: put(s); break;
	case 6: wait_for_event(s); break;
	case 7:
		if (one_in(3))
			resources(s);
		else if (kinds & KIND_ODD)
			odd(s);
		break;
	case 8:
		if (one_in(12)) {
			atomic_store(&p->spoilt, true);
			if (!CALL(s->s->ops->disconnect(s->s, 1 + (int)draw(500))))
				may_fail_with("disconnect", EBUSY, ENOTCONN, 0);
		}
		break;
	}
	wait_for_event(s);
	undo_run();
}
