/* SPDX-License-Identifier: MIT */
/*
 * The link over TCP: messages cut into FPDUs (RFC 5044), with markers and CRC as agreed. It owns the
 * socket, both halves of the MPA stream, and the staging buffers.
 */
#ifndef FLUE_RNIC_LINK_TCP_H
#define FLUE_RNIC_LINK_TCP_H

#include "rnic/engine.h"
#include "rnic/link.h"
#include "rnic/qp.h"
#include "rnic/qp_sched.h"
#include "wire/ddp.h"
#include "wire/mpa.h"

/* Headers in front of the payload: length field, DDP header, fixed RDMAP header. */
#define TX_HEAD_MAX (MPA_LEN_LEN + DDP_HDR_MAX + RDMAP_TERMINATE_MAX)
/* Payloads up to here are copied behind their header: one piece is cheaper than three. */
#define TX_SMALL 256

/* One FPDU, ready to go out or partly out. */
struct tx_fpdu {
	uint8_t head[TX_HEAD_MAX + TX_SMALL + MPA_PAD_MAX + MPA_CRC_LEN];
	uint8_t tail[MPA_PAD_MAX + MPA_CRC_LEN];
	bool small; /* payload and tail stand in `head`, too */
	uint16_t head_len, tail_len;
	uint32_t payload;         /* bytes between head and tail */
	size_t sent;              /* octets of the FPDU that TCP took */
	struct engine_buf *stage; /* the whole FPDU in one piece, or NULL: gather from memory */
	size_t stage_off, stage_len;
	uint64_t pos, pos_after; /* in the stream */
	struct tx_cursor at;     /* the cursor as it was built */
	struct tx_cursor after;  /* ... and when this FPDU is out */
};

struct tcp_tx {
	bool busy;    /* in link_tcp_tx_run() */
	bool blocked; /* TCP is full; EPOLLOUT is watched */
	bool fin_sent;
	bool crc, marked;
	size_t mulpdu;        /* largest ULPDU we send now */
	size_t mulpdu_cap;    /* it grows up to here when the peer shows that it takes more */
	uint64_t pos;         /* octets of full operation, for markers */
	struct tx_fpdu *part; /* an FPDU partly out; NULL: none is */
};

struct tcp_rx {
	struct mpa_stream in;
	struct engine_buf *buf; /* NULL: nothing pending */
	size_t head, tail;
	size_t expect; /* size of the last large FPDU: read one of these at a time */
	/* direct placement of a segment whose FPDU is not in the buffer as a whole */
	bool direct;
	bool progress;  /* this run read something, so there may be something to send */
	bool fresh;     /* the buffer holds octets that were not parsed yet */
	bool fin;       /* the peer has closed its half */
	size_t placed;  /* payload bytes placed */
	size_t trailer; /* pad and CRC octets still to come */
	struct ddp_segment seg;
};

struct link_tcp {
	struct link link;
	struct engine *engine;
	struct engine_io io;
	struct ddp_params ddp;
	struct tcp_tx tx;
	struct tcp_rx rx;
};

struct link_tcp_attr {
	struct engine_io *io; /* whose socket it is, watched or not */
	const struct mpa_terms *terms;
	uint32_t fpdu_max;    /* 0: no limit but the protocol's */
	const uint8_t *early; /* octets of full operation that were read already */
	size_t early_len;     /* fits a buffer */
};

/* Watches the socket for q. -ENOMEM, -errno of epoll: it is still the caller's. Under the engine's lock. */
int link_tcp_create(struct qp *q, const struct link_tcp_attr *attr, struct link **out);
/* Of a link that no queue pair took: the socket is the caller's again. */
void link_tcp_return(struct link *l, struct engine_io *io);

/* ---- inside the link ---- */

/* link_tcp.c: both halves are closed; is it over? */
void link_tcp_look_for_end(struct link_tcp *l);
/* link_tcp_tx.c */
void link_tcp_kick(struct link *link);
void link_tcp_tx_run(struct link_tcp *l);
void link_tcp_tx_reset(struct link_tcp *l);
/* link_tcp_rx.c */
void link_tcp_ready(struct engine_io *io, uint32_t events);
void link_tcp_rx_run(struct link_tcp *l);
void link_tcp_rx_reset(struct link_tcp *l);
/* Puts octets into the empty buffer, to be parsed by the next run. -ENOMEM. */
int link_tcp_rx_preload(struct link_tcp *l, const uint8_t *data, size_t len);

#endif
