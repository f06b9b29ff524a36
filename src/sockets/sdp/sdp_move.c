/* SPDX-License-Identifier: MIT */
/*
 * SuspComm: the peer hands the connection to another owner, who listens on the port it names. We
 * answer, end the transport's part behind the answer, and connect to the new owner with an
 * ordinary Hello (draft: socket duplication). The stream goes on where it was; no advert survives,
 * both halves are in Combined, numbers begin anew. What the program has not read yet stays in the
 * buffers of the old part, which is kept as a shell for so long.
 */
#include <errno.h>
#include <netinet/in.h>

#include "sockets/sdp/sdp_priv.h"

/* Once DisConn has passed there is nothing left to move. */
static bool is_movable(const struct sdp_conn *c)
{
	return (c->state == SDPS_ESTABLISHED || c->state == SDPS_DIS_SEND_1) && !c->shell;
}

void sdp_move_begin(struct sdp_conn *c)
{
	if (!is_movable(c))
		return;
	c->move = SDP_MOVE_OUT;
	c->news = true;
	sdp_conn_arm(c, c->attr.close_ms);
	c->llp->ops->disconnect(c->llp);
}

void sdp_move_on(struct sdp_conn *c)
{
	if (c->move == SDP_MOVE_IN) {
		sdp_conn_step(c, SDPE_LLP_LOST);
		return;
	}
	if (c->first)
		c->shell = c->llp;
	else
		c->rubbish = c->llp;
	c->llp = NULL;
	c->move = SDP_MOVE_IN;
	((struct sockaddr_in *)&c->peer.sa)->sin_port = htons(c->move_port);
	c->local.len = 0;
	if (sdp_setup_dial(c)) {
		c->llp = NULL;
		sdp_conn_step(c, SDPE_LLP_LOST);
	}
}

void sdp_move_arrived(struct sdp_conn *c, const void *data, size_t len)
{
	if (!sdp_setup_take_ack(c, data, len) || c->llp->ops->confirm(c->llp)) {
		sdp_conn_step(c, SDPE_LLP_LOST);
		return;
	}
	c->move = SDP_MOVE_NONE;
	c->deadline = 0;
	c->news = true;
}
