/* SPDX-License-Identifier: MIT */
/*
 * Many sockets are switched in one call (CH-15). All are in transition before the first is handed
 * over, so that the peers' answers to the early ones do not delay the others. Those whose streaming
 * data is acknowledged by then are handed over together, in one call of their provider if it can;
 * the others follow one by one, as always.
 */
#include <stdlib.h>

#include "access/socket_priv.h"

/* A socket that is ready, and its place in the provider's gang. */
struct member {
	struct acc_socket *s;
	struct acc_qp *qp;
	int rc;
	struct prov_adoption *place;
};

static void end_hand_over(struct member *m)
{
	pthread_mutex_lock(&m->s->lock);
	sock_handed_over(m->s, m->rc);
	pthread_mutex_unlock(&m->s->lock);
	sock_deliver(m->s, false);
}

static void one_by_one(struct member *m, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		m[i].rc = acc_conn_adopt(m[i].qp, &m[i].s->sw.stream, &m[i].s->sw.attr);
		end_hand_over(&m[i]);
	}
}

/* All of one adapter. False: the provider took none, and nothing has happened. */
static bool in_one_call(struct acc_adapter *a, struct member *m, size_t n)
{
	struct prov_adoption *gang;
	uint32_t count = 0;
	bool taken;

	if (n < 2 || n > UINT32_MAX || !(a->caps.features & FLUE_FEATURE_GANG))
		return false;
	gang = calloc(n, sizeof(*gang));
	if (!gang)
		return false;
	for (size_t i = 0; i < n; i++) {
		struct sock_switch *sw = &m[i].s->sw;

		m[i].rc = acc_conn_begin(m[i].qp, &sw->attr, NULL, 0);
		m[i].place = m[i].rc ? NULL : &gang[count++];
		if (m[i].place)
			*m[i].place = (struct prov_adoption) { .qp = m[i].qp->prov,
							       .stream = &sw->stream,
							       .attr = &sw->attr };
	}
	taken = !count || a->ops->adopt_gang(gang, count) == 0;
	for (size_t i = 0; i < n; i++) {
		if (m[i].place)
			m[i].rc = acc_conn_finish(m[i].qp, &m[i].s->sw.attr,
						  taken ? m[i].place->result : -EAGAIN);
		if (taken)
			end_hand_over(&m[i]);
	}
	free(gang);
	return taken;
}

/* Members of the same adapter come to stand behind the first. Returns how many they are. */
static size_t gather(struct member *m, size_t n)
{
	size_t same = 1;

	for (size_t i = 1; i < n; i++) {
		if (m[i].s->a == m[0].s->a) {
			struct member other = m[same];

			m[same++] = m[i];
			m[i] = other;
		}
	}
	return same;
}

static void hand_over(struct member *m, size_t n)
{
	while (n) {
		size_t same = gather(m, n);

		if (!in_one_call(m->s->a, m, same))
			one_by_one(m, same);
		m += same;
		n -= same;
	}
}

/* The first receive. Without memory for the gang the transfer begins at once. */
static void post_first(struct flue_gang *g, struct member *members, size_t *n)
{
	struct acc_socket *s = to_socket(g->socket);
	struct flue_piece one = { g->data, g->length, NULL };
	bool ready = false;

	g->error = -sock_post_recv(s, &one, 1, g->recv_id, members ? &ready : NULL);
	if (ready)
		members[(*n)++] = (struct member) { .s = s, .qp = to_qp(s->pub.qp) };
}

size_t flue_socket_switch_gang(struct flue_gang *gang, size_t n)
{
	CANCEL_HELD;
	struct member *members = calloc(n, sizeof(*members));
	size_t begun = 0, ready = 0;

	for (size_t i = 0; i < n; i++) {
		struct flue_gang *g = &gang[i];

		g->error = 0;
		if (!g->socket->ops->switch_mode(g->socket, g->attr, g->switch_id))
			g->error = errno;
	}
	for (size_t i = 0; i < n; i++) {
		if (!gang[i].error)
			post_first(&gang[i], members, &ready);
		begun += !gang[i].error;
	}
	hand_over(members, ready);
	free(members);
	return begun;
}
