/* SPDX-License-Identifier: MIT */
/*
 * The region of the local transport, and what each side knows by itself.
 *
 *   header   geometry, for each side a bell and a bit for each slot that has news
 *   slots    for each slot two struct half, one written by each side
 *   buffers  for each slot and direction `bufs` buffers
 *
 * Every word has one writer (bells and bits excepted, which are hints), and nobody reads back what
 * it wrote itself: all that a side relies on is in its private memory. A slot belongs to one
 * connection at a time. Even slots begin at side 0, odd ones at side 1, so allocation is private
 * too. Each use has a new generation, which is part of the phase word.
 *
 * Buffers belong to the receiver: as many as it posted, of the size it said. The sender takes a free
 * one, fills it and puts its number into the ring; the receiver puts the number into its ring of
 * buffers given back. So a sender can never have more messages under way than were posted.
 */
#ifndef FLUE_SOCKETS_OTI_LOCAL_PRIV_H
#define FLUE_SOCKETS_OTI_LOCAL_PRIV_H

#include <stdatomic.h>

#include "base/lock.h"
#include "sockets/ot/oti_local.h"

#define LOCAL_MAGIC       0x666c756f74693031ull
#define LOCAL_PRIVATE_MAX 256
#define LOCAL_HEADER_LEN  4096
#define LOCAL_WORDS       (OTI_LOCAL_SLOTS_MAX / 64)

/* How a side stands to a slot; in the low octet of its phase word, the generation above. */
enum local_phase {
	PHASE_NONE = 0,
	PHASE_ASK,    /* beginner: request and private data are there */
	PHASE_ACCEPT, /* other side: accepted, reply is there */
	PHASE_REJECT, /* other side: rejected, and done with this generation */
	PHASE_LIVE,   /* beginner: confirmed */
	PHASE_DOWN,   /* ended in order, behind what was sent */
	PHASE_CUT,    /* ended */
	PHASE_GONE,   /* as DOWN, and will not look at this generation any more */
	PHASE_DEAD,   /* as CUT, likewise */
	PHASE_N,
};

static inline uint32_t phase_word(uint32_t generation, enum local_phase phase)
{
	return generation << 8 | phase;
}

/* An address in the region: no pointers, no padding that leaks. */
struct local_addr {
	uint16_t family, port; /* as in a sockaddr */
	uint32_t scope;
	uint8_t ip[16];
};

struct local_entry {
	_Atomic uint32_t index, len;
};

/* Written by one side, for one slot. The two rings follow: entries, then numbers given back. */
struct local_half {
	_Atomic uint32_t phase;
	_Atomic uint32_t sent;           /* messages put into the ring, ever */
	_Atomic uint32_t given;          /* buffers given back, ever */
	_Atomic uint32_t bufs, buf_size; /* what this side receives with */
	_Atomic uint32_t reject_code;
	_Atomic uint32_t private_len;
	struct local_addr from, to; /* beginner */
	uint8_t private_data[LOCAL_PRIVATE_MAX];
};

struct local_bell {
	_Alignas(64) _Atomic uint32_t rung; /* futex */
	_Atomic uint32_t asleep;
	_Atomic uint64_t news[LOCAL_WORDS]; /* a bit for each slot */
};

struct local_header {
	uint64_t magic;
	uint32_t slots, bufs, buf_size;
	struct local_bell bells[2]; /* of the side that is to be told */
};
_Static_assert(sizeof(struct local_header) <= LOCAL_HEADER_LEN, "the header has room");

/* What a connection is about to do; private. */
enum local_state {
	CONN_FREE,
	CONN_ASKING,    /* beginner: waits for an answer */
	CONN_ASKED,     /* other side: the consumer has the request */
	CONN_ACCEPTED,  /* beginner: the consumer is to confirm */
	CONN_CONFIRMED, /* beginner: `up` is to be told */
	CONN_ACCEPTING, /* other side: waits for LIVE */
	CONN_UP,
	CONN_CLOSING, /* our disconnect() */
	CONN_OVER,    /* nothing more is told */
	CONN_NSTATES,
};

struct local_listener;

struct local_conn {
	struct oti_conn base;
	struct lock lock; /* everything below, against poll(); never held during an up-call */
	struct oti_request req;
	struct local_listener *listener; /* ASKED */
	uint8_t req_data[LOCAL_PRIVATE_MAX];
	enum local_state state;
	uint32_t slot, generation;
	struct local_half *own, *peer;
	struct oti_addr local, remote;
	bool broken;   /* the peer broke a rule, or is dead */
	bool in_order; /* DOWN was the last we said */
	/* Sending: buffers of the peer's. */
	struct oti_buf *bufs;
	uint32_t *free;  /* stack of numbers */
	uint8_t *is_out; /* by number: with the consumer (1) or with the peer (2) */
	uint32_t n_bufs, n_free, n_sent, n_back;
	bool starved;
	uint8_t *out_base;
	/* Receiving. */
	struct oti_rx *rx;
	uint8_t *is_held; /* by number */
	uint32_t n_rx, n_got, n_given, rx_size;
	uint8_t *in_base;
};

struct local {
	struct oti base;
	struct lock lock; /* listeners, states FREE <-> others */
	struct oti_local_geometry geo;
	unsigned side;
	uint8_t *map;
	size_t map_len;
	struct local_header *header;
	struct local_conn *conns;         /* by slot */
	struct local_listener *listeners; /* list */
	uint64_t pending[LOCAL_WORDS];    /* the poller's: slots to look at */
	uint32_t next_slot;               /* the poller's */
	uint16_t next_port;
};

struct local_listener {
	struct oti_listener base;
	struct local *l;
	struct local_listener *next;
	int backlog, waiting;
};

/* What there is to tell about a slot. */
enum local_news {
	NEWS_NONE,
	NEWS_REQUEST,
	NEWS_ACCEPTED,
	NEWS_FAILED,
	NEWS_UP,
	NEWS_MESSAGE,
	NEWS_ROOM,
	NEWS_DOWN,
};

struct local_event {
	enum local_news news;
	struct local_listener *listener;
	struct oti_rx *rx;
	enum oti_down how;
	int error;
	uint32_t code;
	uint8_t data[LOCAL_PRIVATE_MAX];
	size_t len;
};

/* Messages may be sent. */
static inline bool local_is_open(const struct local_conn *c)
{
	return c->state == CONN_UP || c->state == CONN_ACCEPTING || c->state == CONN_CONFIRMED;
}

static inline struct local *to_local(const struct oti *o)
{
	return (struct local *)(uintptr_t)o;
}

static inline struct local_conn *to_conn(const struct oti_conn *c)
{
	return (struct local_conn *)(uintptr_t)c;
}

/* ---- oti_local_region.c: mapping and places ---- */

int local_region_map(struct local *l, int fd);
void local_region_unmap(struct local *l);
struct local_half *local_region_half(const struct local *l, uint32_t slot, unsigned side);
struct local_entry *local_region_ring(const struct local *l, struct local_half *h, uint32_t n);
_Atomic uint32_t *local_region_back(const struct local *l, struct local_half *h, uint32_t n);
/* The first of the buffers that `side` sends with. */
uint8_t *local_region_buffers(const struct local *l, uint32_t slot, unsigned side);
/* Tells the other side to look at a slot. */
void local_region_ring_bell(struct local *l, uint32_t slot);
/* Tells ourselves. */
void local_region_note(struct local *l, uint32_t slot);

/* ---- oti_local_ring.c: messages; the connection's lock is held ---- */

int local_ring_init(struct local_conn *c, uint32_t peer_bufs, uint32_t peer_size);
int local_ring_alloc(struct local_conn *c, uint32_t bufs, uint32_t size);
void local_ring_fini(struct local_conn *c);
/* Takes back what the peer is done with. */
void local_ring_reclaim(struct local_conn *c);
/* The next message, or NULL: none, or c->broken. */
struct oti_rx *local_ring_next(struct local_conn *c);
struct oti_buf *local_ring_get(struct local_conn *c);
void local_ring_put(struct local_conn *c, struct oti_buf *buf);
int local_ring_send(struct local_conn *c, struct oti_buf *buf, const struct iovec *iov, int n);
void local_ring_give(struct local_conn *c, struct oti_rx *rx);

/* ---- oti_local_poll.c ---- */

int local_poll(struct oti *o, unsigned budget);
int local_poll_conn(struct oti_conn *conn, unsigned budget);
int local_wait(struct oti *o, int timeout_ms);

/* ---- oti_local_setup.c: set-up and end ---- */

int local_listen(struct oti *o, const struct oti_addr *addr, int backlog,
		 void (*on_request)(struct oti_listener *, struct oti_request *, void *),
		 void *user, struct oti_listener **out);
int local_unlisten(struct oti_listener *l);
int local_connect(struct oti *o, const struct oti_endpoint *to, const struct oti_conn_attr *attr,
		  struct oti_conn **out);
int local_accept(struct oti_request *req, const struct oti_conn_attr *attr, struct oti_conn **out);
int local_reject(struct oti_request *req, uint32_t code, const void *data, size_t len);
int local_confirm(struct oti_conn *conn);
int local_disconnect(struct oti_conn *conn);
void local_abort(struct oti_conn *conn);
void local_release(struct oti_conn *conn);
/* A port for an end that needs none in particular. */
void local_setup_port(struct local *l, struct oti_addr *addr);
/* Looks at a free slot where the other side may have begun something. No lock held. */
void local_setup_answer(struct local_conn *c, struct local_event *ev);
/* Connecting side, lock held: the answer is there. -EPROTO: it makes no sense. */
int local_setup_accepted(struct local_conn *c);
/* Copies the private data of the peer's half; returns its length. */
size_t local_setup_private(const struct local_conn *c, uint8_t *to);
/* Lock held: publishes how we stand to the slot. */
void local_setup_say(struct local_conn *c, enum local_phase phase);

#endif
