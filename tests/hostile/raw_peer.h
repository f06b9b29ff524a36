/* SPDX-License-Identifier: MIT */
/*
 * A peer that says whatever a test wants: MPA start-up frames, FPDUs and single octets on a plain
 * blocking TCP socket, in either role. Nothing waits for ever: whatever should come from the other
 * side must come within RAW_PATIENCE_MS.
 *
 * All functions fail the running cmocka test by themselves when the socket does not do what the
 * function's name says.
 */
#ifndef FLUE_TESTS_RAW_PEER_H
#define FLUE_TESTS_RAW_PEER_H

#include <sys/socket.h>

#include "wire/ddp.h"
#include "wire/mpa.h"
#include "wire/rdmap.h"

#define RAW_PATIENCE_MS 20000

struct raw_peer {
	int fd;
	bool trickle;    /* each octet in a TCP segment of its own */
	size_t split;    /* not 0: the next one is cut here in two TCP segments */
	uint8_t *corked; /* not NULL: what is sent waits here */
	size_t corked_len;
	uint16_t depth; /* Reads to agree on, in both directions */
	struct mpa_stream tx, rx;
	uint32_t msn[DDP_QN_ATOMIC + 1]; /* next one of each queue */
	uint8_t in[2 * MPA_FPDU_MAX];    /* octets received, not looked at yet */
	size_t in_len;
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX]; /* the start-up frame received */
};

/* One FPDU received. Points into the peer's buffer, until the next is read. */
struct raw_fpdu {
	struct ddp_segment seg;
	const uint8_t *payload;
};

enum raw_damage { RAW_NO_DAMAGE, RAW_BAD_CRC, RAW_BAD_MARKER };

/* ---- the stream ---- */
void raw_connect(struct raw_peer *p, const struct sockaddr *to, socklen_t len);
/* Like raw_connect(), but the listener may refuse: false. */
bool raw_try_connect(struct raw_peer *p, const struct sockaddr *to, socklen_t len);
/* A socket of ours that listens on loopback; fills the address. */
int raw_listen(struct sockaddr_storage *at, socklen_t *len);
void raw_accept(struct raw_peer *p, int listener);
void raw_send(struct raw_peer *p, const void *data, size_t len);
/* From cork to uncork everything is held back, then sent in one piece. */
void raw_cork(struct raw_peer *p);
void raw_uncork(struct raw_peer *p);
/* Sends as much as goes without blocking; returns how much. */
size_t raw_send_some(struct raw_peer *p, const void *data, size_t len);
void raw_fin(struct raw_peer *p);
void raw_reset(struct raw_peer *p);
void raw_close(struct raw_peer *p);
/* The other side closes, in order or by reset, and sends nothing before. */
void raw_expect_end(struct raw_peer *p);
/* The same, whatever comes before; returns the number of octets. */
size_t raw_drain(struct raw_peer *p);
/* Nothing comes for so long. */
void raw_expect_silence(struct raw_peer *p, int ms);

/* ---- start-up ---- */
/* A request or reply as the RFCs want it: CRC and markers as in tx and rx. */
struct mpa_frame raw_request(const struct raw_peer *p);
struct mpa_frame raw_reply(const struct raw_peer *p, const struct mpa_frame *to);
void raw_send_frame(struct raw_peer *p, const struct mpa_frame *f);
/* Reads a frame; private data point into the peer. */
void raw_expect_frame(struct raw_peer *p, bool reply, struct mpa_frame *f);

/* ---- FPDUs ---- */
void raw_send_ulpdu(struct raw_peer *p, const uint8_t *ulpdu, size_t len, enum raw_damage damage);
/* DDP versions 1; payload may be NULL with length 0. */
void raw_send_segment(struct raw_peer *p, const struct ddp_segment *s, const void *payload,
		      size_t len);
/* Whole messages in one segment, with the right message number. */
void raw_send_message(struct raw_peer *p, const void *data, size_t len);
void raw_write(struct raw_peer *p, uint32_t stag, uint64_t to, const void *data, size_t len);
void raw_read_request(struct raw_peer *p, const struct rdmap_read_request *r);
void raw_terminate(struct raw_peer *p, const void *payload, size_t len);

/* False: the stream ended before an FPDU began. */
bool raw_next_fpdu(struct raw_peer *p, struct raw_fpdu *f);
void raw_expect_fpdu(struct raw_peer *p, uint8_t opcode, struct raw_fpdu *f);
void raw_expect_read_request(struct raw_peer *p, struct rdmap_read_request *r);
/* The next FPDU is a Terminate with this fault, and the stream ends behind it. */
void raw_expect_terminate(struct raw_peer *p, uint32_t fault);
/* ... with other FPDUs allowed before it. */
void raw_await_terminate(struct raw_peer *p, uint32_t fault);

#endif
