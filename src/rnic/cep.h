/* SPDX-License-Identifier: MIT */
/*
 * Connection endpoints: one TCP connection during MPA start-up, until its queue pair takes the
 * stream over. The machine is wire/mpa_fsm.def.
 *
 * Who owns one. An initiator's belongs to its queue pair (qp->cep). A responder's belongs to its
 * listener until the request was handed up, then to whoever got it, until accept or reject; with
 * accept it belongs to the queue pair; with reject to its engine. An endpoint that reached OPEN or
 * CLOSED frees itself.
 */
#ifndef FLUE_RNIC_CEP_H
#define FLUE_RNIC_CEP_H

#include "rnic/engine.h"
#include "rnic/inbox.h"
#include "rnic/rnic.h"
#include "wire/mpa_fsm.h"
#include "wire/mpa.h"

struct cep {
	struct rnic *rnic;
	struct engine *engine;
	struct engine_io io;
	struct engine_timer timer;
	struct qp *qp;
	struct listener *listener; /* NULL once handed up */
	LIST_ENTRY(cep) all;
	TAILQ_ENTRY(cep) of_listener;
	uint64_t since; /* in the listener's list */
	uint8_t crowd;  /* ... and which of its counters has it */
	uint8_t state;  /* enum mpa_state */
	struct inbox inbox;
	bool initiator;
	bool refused;   /* counted in rnic->n_refused */
	bool requested; /* in the listener's list of complete requests */
	bool defer, lenient, fallback, rfc7306, full;
	bool adopted;            /* a live stream; as responder the answer is known beforehand */
	bool last_word;          /* a Terminate was sent */
	bool reached;            /* somebody answered our call */
	bool in_memory;          /* both ends have agreed on `circuit` ... */
	bool joined;             /* ... whose link the queue pair has */
	struct circuit *circuit; /* of a link through memory: offered, or agreed on */
	uint64_t deadline;       /* adopted: of the whole exchange */
	int err;
	uint32_t timeout_ms;
	uint32_t fpdu_max;
	uint32_t deny; /* see struct cep_adopt */
	struct sockaddr_storage local, remote;
	socklen_t local_len, remote_len;
	bool addressed; /* ... which are the connection's own */
	struct mpa_policy policy;
	struct mpa_frame req, rep;
	struct mpa_terms terms;
	uint16_t own_len, in_len;
	uint8_t own[MPA_PD_MAX]; /* our private data */
	uint8_t in[MPA_FRAME_LEN + MPA_PD_MAX];
	/* Adopted: octets that were read from the stream before; they come first. */
	uint8_t *early;
	size_t early_len, early_at;
};

/* A live TCP stream that becomes a connection. */
struct cep_adopt {
	int fd;
	bool initiator;
	bool raw; /* no request and reply: `attr` and defaults are the terms */
	const void *early;
	size_t early_len;
	uint32_t deny; /* rights that the peer has not, whatever its key says */
};

/* Begin to connect an Idle queue pair. -EISCONN, -EINVAL, -ENOMEM, -EMFILE, errors of socket(2),
 * bind(2) and connect(2). No lock held. */
int cep_connect(struct qp *q, const struct flue_conn_attr *attr);
/* Take over a live stream for an Idle queue pair. -EISCONN, -EINVAL, -ENOMEM, -errno: fd is still
 * the caller's and nothing was told; 0: fd is ours, the outcome is told. No lock held. */
int cep_adopt(struct qp *q, const struct cep_adopt *a, const struct flue_conn_attr *attr);
/* Continue a deferred connection. -EINVAL. No lock held. */
int cep_start(struct qp *q);
/* Answer a request that was handed up; uses it up. No lock held. */
int cep_accept(struct cep *c, struct qp *q, const struct flue_conn_attr *attr);
int cep_reject(struct cep *c, const void *data, size_t length);

/* ---- inside the RNIC, under the engine's lock ---- */

/* Begin to connect an Idle queue pair, whose engines run. As cep_connect(). */
int cep_dial(struct qp *q, const struct flue_conn_attr *attr);
/* Answer a request with q, whose engine's lock is held. Else -EISCONN, or as mpa_answer_request(): it is still the caller's. */
int cep_answer(struct cep *c, struct qp *q, const struct flue_conn_attr *attr);
/* CQs may live on other engines; their threads must exist before something completes there. No lock held. */
int cep_start_engines(struct qp *q);
/* The number that a request calls; 0: it calls a listener. */
static inline uint32_t cep_called(const struct cep *c)
{
	return c->req.identity.peer_qpn;
}
/* What the request said; private data stays valid until it is answered. */
void cep_describe(struct cep *c, struct rnic_request_info *info);
/* A new inbound connection; takes fd. -ENOMEM, -errno: fd is closed. */
int cep_incoming(struct listener *l, int fd, const struct sockaddr_storage *peer);
/* The user gives up; the failure is told. */
void cep_abort(struct cep *c, int err);
/* The queue pair goes away: no more notes. */
void cep_abandon(struct cep *c);
/* From the queue pair: the stream failed before CONNECTED. */
void cep_stream_lost(struct cep *c, int err);
void cep_first_fpdu(struct cep *c);

void cep_fork_child(struct cep *c);

#endif
