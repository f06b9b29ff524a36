/* SPDX-License-Identifier: MIT */
/* The race test: what one side does on one connection, from the first streaming octet to the end. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "conf/pair.h"
#include "side.h"

bool side_fail(struct side *s, const char *what)
{
	struct tally *t = s->tally;
	char plan[400];
	int err = errno;

	if (atomic_fetch_add(&t->failures, 1) == 0) {
		plan_print(s->plan, plan, sizeof(plan));
		snprintf(t->failure, sizeof(t->failure), "%c, step %u: %s: %d %s\n# %s",
			 'A' + s->which, t->side[s->which].at[s->worker].step, what, err,
			 strerror(err), plan);
	}
	return false;
}

void side_step(struct side *s, uint32_t step)
{
	atomic_store(&s->tally->side[s->which].at[s->worker].step, step);
}

void side_pause(struct side *s)
{
	uint32_t kind = plan_below(&s->random, 4);

	if (s->plan->hurry || kind < 2)
		return;
	usleep(plan_below(&s->random, kind == 2 ? 100 : 3000));
}

struct flue_switch_attr side_switch_attr(struct side *s)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.flags = (s->which == s->plan->initiator ? 0 : (uint32_t)FLUE_SWITCH_RESPONDER) |
		     (s->plan->raw ? (uint32_t)FLUE_SWITCH_NO_REQ_REP : 0);
	attr.conn_flags = s->me->conn_flags;
	attr.timeout_ms = WAIT_MS;
	attr.early = s->early_len ? s->box->excess : NULL;
	attr.early_len = s->early_len;
	return attr;
}

/* ---- streaming mode ---- */

static bool send_stream(struct side *s)
{
	size_t total = s->me->stream, at = 0, n;

	for (size_t i = 0; i < total; i++)
		s->box->stream[i] = plan_octet(s->plan, s->which, i);
	atomic_fetch_add(&s->tally->side[s->which].stream_sent, total);
	if (s->me->late_send)
		total -= 1 + total / 7;
	for (; at < total; at += n) {
		n = total - at;
		if (s->me->pieces == OCTETS)
			n = 1;
		else if (s->me->pieces == RANDOM_PIECES && n > 1)
			n = 1 + plan_below(&s->random, (uint32_t)n);
		if (!s->form->stream_send(s, s->box->stream + at, n))
			return false;
	}
	return true;
}

/* Exactly the stream, or more: then the rest belongs to RDMA mode. */
static bool recv_stream(struct side *s)
{
	static const size_t most = 16384;
	uint8_t chunk[16384];
	size_t total = s->peer->stream, at = 0;

	if (s->me->lazy && !s->plan->hurry)
		usleep(5000 + plan_below(&s->random, 10000));
	while (at < total) {
		size_t room = s->me->over_read || total - at > most ? most : total - at;
		ssize_t n = s->form->stream_recv(s, chunk, room);
		size_t here;

		if (n < 0)
			return false;
		here = (size_t)n < total - at ? (size_t)n : total - at;
		for (size_t i = 0; i < here; i++)
			if (chunk[i] != plan_octet(s->plan, !s->which, at + i))
				return side_fail(s, "a wrong octet in the stream");
		s->early_len = (size_t)n - here;
		memcpy(s->box->excess, chunk + here, s->early_len);
		at += here;
	}
	atomic_fetch_add(&s->tally->side[s->which].stream_got, total);
	atomic_fetch_add(&s->tally->side[s->which].early, s->early_len);
	return true;
}

static bool stream(struct side *s)
{
	bool first = s->plan->order == AT_ONCE || (int)s->plan->order == s->which;

	if (first && !send_stream(s))
		return false;
	side_pause(s);
	if (!recv_stream(s))
		return false;
	side_pause(s);
	return first || send_stream(s);
}

/* ---- RDMA mode ---- */

static bool send_message(struct side *s, uint32_t i)
{
	uint32_t length = plan_length(s->plan, s->which, i);
	struct hello hello;

	pair_fill(s->box->out[i], length, plan_pattern(s->plan, s->which, i));
	if (i == 0) {
		hello = s->form->window(s);
		memcpy(s->box->out[0], &hello, sizeof(hello));
	}
	atomic_fetch_add(&s->tally->side[s->which].rdma_sent, length);
	return s->form->send(s, i, length);
}

static bool check_message(struct side *s, uint32_t i)
{
	uint32_t length = plan_length(s->plan, !s->which, i);
	uint32_t pattern = plan_pattern(s->plan, !s->which, i);
	uint8_t *in = s->box->in[i];

	if (i == 0) /* the hello was written over the pattern's beginning */
		pair_fill(in, sizeof(struct hello), pattern);
	if (pair_check(in, length, pattern) != length)
		return side_fail(s, "a wrong octet in a message");
	atomic_fetch_add(&s->tally->side[s->which].rdma_got, length);
	return true;
}

static bool reach(struct side *s, const struct hello *there)
{
	uint32_t pattern = plan_pattern(s->plan, s->which, MESSAGES + 1);

	pair_fill(s->box->scratch[0], WINDOW, pattern);
	memset(s->box->scratch[1], 0, WINDOW);
	if (!s->form->reach(s, there))
		return false;
	return pair_check(s->box->scratch[1], WINDOW, pattern) == WINDOW ||
	       side_fail(s, "get() did not give what put() took");
}

/* A second message is only sent when the peer's first proves that all its receives are posted. */
static bool talk(struct side *s)
{
	uint32_t mine = s->me->messages, theirs = s->peer->messages;
	struct hello there;

	if (!send_message(s, 0) || !s->form->await(s, 1, 1, 0))
		return false;
	memcpy(&there, s->box->in[0], sizeof(there));
	side_pause(s);
	for (uint32_t i = 1; i < mine; i++)
		if (!send_message(s, i))
			return false;
	if (!s->form->await(s, mine, theirs, 0) || (s->me->reaches && !reach(s, &there)))
		return false;
	side_pause(s);
	if (!send_message(s, mine) || !s->form->await(s, mine + 1, theirs + 1, 0))
		return false;
	for (uint32_t i = 0; i <= theirs; i++)
		if (!check_message(s, i))
			return false;
	return true;
}

static bool run(struct side *s)
{
	side_step(s, 1);
	if (!s->form->open(s))
		return false;
	side_pause(s);
	side_step(s, 2);
	if (!stream(s))
		return false;
	side_step(s, 3);
	if (!s->form->convert(s))
		return false;
	side_step(s, 4);
	side_pause(s);
	if (!talk(s))
		return false;
	side_pause(s);
	side_step(s, 5);
	if (s->me->closes && !s->form->disconnect(s))
		return false;
	side_step(s, 6);
	return s->form->await_end(s);
}

bool side_run(struct side *s)
{
	int one = 1;
	bool good;

	s->me = &s->plan->half[s->which];
	s->peer = &s->plan->half[!s->which];
	s->form = s->me->socket ? &side_socket_form : &side_qp_form;
	s->random = s->tally->seed * 2 + s->plan->index * 4 + (uint64_t)s->which;
	setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	good = run(s);
	side_step(s, 7);
	/* After a failure as well, to see how it copes; but the descriptor may be anybody's. */
	s->form->destroy(s);
	side_step(s, 8);
	return good;
}
