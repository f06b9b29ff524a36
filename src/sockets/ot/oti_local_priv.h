/* SPDX-License-Identifier: MIT */
/*
 * The local transport: what each side knows of its connections.
 *
 * A connection is a circuit of the trunk, and a message is a message of one block. The greetings of the circuit carry
 * addresses, private data, and how each side receives. What is confirmed is told by a message of its own kind, as the
 * trunk knows two steps only. The trunk keeps credit for as many blocks as the peer has receive buffers; those of set-up
 * (greetings, the confirmation) come on top, and come back before any other.
 */
#ifndef FLUE_SOCKETS_OTI_LOCAL_PRIV_H
#define FLUE_SOCKETS_OTI_LOCAL_PRIV_H

#include <stdatomic.h>

#include "base/lock.h"
#include "channel/trunk.h"
#include "sockets/ot/oti_local.h"

#define LOCAL_PRIVATE_MAX 256
#define LOCAL_WORDS       (OTI_LOCAL_SLOTS_MAX / 64)
#define LOCAL_NOWHERE     UINT32_MAX
/* Blocks of a circuit and direction that carry no message of the consumer's. */
#define LOCAL_SETUP_BLOCKS 2

/* Kinds of messages. */
enum local_kind { KIND_MESSAGE = 0, KIND_CONFIRM = 1 };

/* Why a circuit was dropped. */
enum local_code { CODE_DONE = 0, CODE_CUT = 1 };

/* An address in the memory: no pointers, no padding that leaks. */
struct local_addr {
	uint16_t family, port; /* as in a sockaddr */
	uint32_t scope;
	uint8_t ip[16];
};

/* What goes with opening, accepting and refusing; as much of the private data as there is. */
struct local_greeting {
	struct local_addr from, to; /* of who opens */
	uint32_t bufs, buf_size;    /* what this side receives with */
	uint32_t code;              /* of a rejection */
	uint32_t private_len;
	uint8_t private_data[LOCAL_PRIVATE_MAX];
};
_Static_assert(sizeof(struct local_greeting) == 320, "no padding, and a multiple of 64");

enum local_state {
	CONN_FREE,
	CONN_ASKING,    /* beginner: waits for an answer */
	CONN_NEW,       /* other side: the consumer is to get the request */
	CONN_ASKED,     /* other side: the consumer has the request */
	CONN_ACCEPTED,  /* beginner: the consumer is to confirm */
	CONN_CONFIRMED, /* beginner: `up` is to be told */
	CONN_ACCEPTING, /* other side: waits for the confirmation */
	CONN_UP,
	CONN_CLOSING, /* our disconnect() */
	CONN_OVER,    /* nothing more is told; the circuit is dropped */
	CONN_NSTATES,
};

/* Words of set-up that the trunk had no credit for: the peer holds blocks of connections before this one. */
enum local_debt { OWES_NOTHING, OWES_ANSWER, OWES_CONFIRM };

struct local_listener;

struct local_conn {
	struct oti_conn base;
	struct lock lock; /* everything below, against poll(); never held during an up-call */
	struct oti_request req;
	struct local_listener *listener; /* NEW, ASKED */
	enum local_state state;
	uint32_t slot;
	uint32_t circuit; /* or LOCAL_NOWHERE */
	uint8_t heard;    /* of the circuit, ever: enum trunk_event_bit */
	uint8_t code;     /* with which the peer dropped it */
	bool broken;      /* the peer broke a rule, or is dead */
	struct oti_addr local, remote;
	struct local_greeting greeting; /* the peer's; or ours, while that is owed */
	enum local_debt owes;
	size_t answer_len; /* octets of our greeting */
	/* Sending. */
	struct oti_buf *bufs;
	uint32_t *free;  /* stack of numbers of `bufs` */
	uint32_t *block; /* of each that the consumer has */
	uint32_t n_bufs, n_free;
	uint64_t n_sent;
	bool starved, settled; /* settled: the blocks of set-up are back */
	/* Receiving. */
	struct oti_rx *rx;
	uint32_t *rx_free;  /* stack of numbers of `rx` */
	uint32_t *rx_block; /* of each that the consumer has, or LOCAL_NOWHERE */
	uint32_t n_rx, n_rx_free, rx_size;
};

struct local {
	struct oti base;
	struct lock lock; /* listeners, states FREE <-> others */
	struct trunk *trunk;
	struct oti_local_geometry geo;
	struct local_conn *conns;
	struct local_listener *listeners;    /* list */
	_Atomic uint64_t notes[LOCAL_WORDS]; /* slots to look at */
	uint64_t pending[LOCAL_WORDS];       /* the poller's: likewise */
	uint32_t next_slot;                  /* the poller's */
	uint16_t next_port;
};

struct local_listener {
	struct oti_listener base;
	struct local *l;
	struct local_listener *next;
	int backlog, waiting;
};

/* What there is to tell about a connection. */
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
	const uint8_t *data; /* of the connection's greeting */
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

static inline struct trunk *trunk_of(const struct local_conn *c)
{
	return to_local(c->base.oti)->trunk;
}

/* The poller is to look at it. */
static inline void local_note(struct local *l, uint32_t slot)
{
	atomic_fetch_or(&l->notes[slot / 64], 1ull << slot % 64);
}

/* ---- oti_local_buf.c: messages; the connection's lock is held ---- */

int local_buf_alloc(struct local_conn *c, uint32_t bufs, uint32_t size);
/* The peer receives with so many of this size. -EPROTO: that cannot be. */
int local_buf_terms(struct local_conn *c);
/* Blocks that the consumer has go back. */
void local_buf_fini(struct local_conn *c);
/* NULL: none; then `starved`. */
struct oti_buf *local_buf_take(struct local_conn *c);
void local_buf_give(struct local_conn *c, struct oti_buf *buf);
int local_buf_send(struct local_conn *c, struct oti_buf *buf, const struct iovec *iov, int n);
/* Could local_buf_take() have one? If not, the trunk tells when. */
bool local_buf_room(struct local_conn *c);
/* A message that came. NULL: it breaks a rule. */
struct oti_rx *local_buf_received(struct local_conn *c, const struct trunk_block *block);
void local_buf_repost(struct local_conn *c, struct oti_rx *rx);

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
/* The peer has opened a circuit. No lock held. */
void local_setup_asked(struct local *l, uint32_t circuit);
/* Lock held: reads the peer's greeting. False: there is none, or it makes no sense. */
bool local_setup_greeting(struct local_conn *c);
/* Lock held: says what is owed. -EAGAIN: still no credit, the trunk tells when; others: the peer has left. */
int local_setup_pay(struct local_conn *c);
/* Lock held: nothing more is told, the peer sees `code`. */
void local_setup_over(struct local_conn *c, enum local_code code);

#endif
