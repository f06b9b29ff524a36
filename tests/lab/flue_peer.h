/* SPDX-License-Identifier: MIT */
/*
 * flue_peer: the host's half of the tests against kernel siw. It speaks the exchanges of siwpeer
 * (lab/guest/siwpeer.c describes them) and those of rping, rdma_client/rdma_server and ucmatose,
 * through the Flue API.
 */
#ifndef FLUE_TESTS_FLUE_PEER_H
#define FLUE_TESTS_FLUE_PEER_H

#include <flue/flue.h>

struct addrinfo;

/* THEN: a disconnect() and, while Closing, something more. WAIT: the peer closes, and meanwhile. From
 * CLOSE_TERMINATE on: in mode closing only. */
enum closing {
	CLOSE_WAIT,
	CLOSE_DISCONNECT,
	CLOSE_EXIT,
	CLOSE_ABORT,
	CLOSE_TERMINATE,
	CLOSE_THEN_ABORT,
	CLOSE_THEN_SEND,
	CLOSE_THEN_RECV,
	CLOSE_THEN_DESTROY,
	CLOSE_WAIT_SEND,
	CLOSE_WAIT_RECV,
	CLOSE_N,
};

struct options {
	const char *mode;
	enum closing closing;
	bool server, active, quiet;
	bool convert, lines; /* a TCP connection of our own; with words on it first */
	const char *work;    /* mode closing: posted before */
	int pause_ms, close_ms;
	uint32_t recv_cq; /* depth of one for receives alone; 0: none */
	const char *addr, *port;
	uint8_t pd[512];
	uint32_t pd_len;
	uint32_t ird, ord;
	uint32_t size, count, window, wrs;
	uint64_t total;
	int timeout_ms;
	uint32_t flags; /* FLUE_CONN_* */
};

struct peer {
	struct options opt;
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *cq, *recv_cq;
	struct flue_qp *qp;
	struct flue_mr *recv_mr, *send_mr, *data_mr;
	uint8_t *recv_buf, *send_buf, *data;
	uint32_t slots, slot_size;
	bool over; /* DISCONNECTED was told */
	bool rejected;
	uint64_t messages, bytes, bad;
	uint32_t ctl_out; /* control messages not completed */
};

struct ctl {
	uint64_t a;
	uint32_t b, c;
};

#define CTL_LEN 16
/* Requests carry what they are in the upper half of their id, the slot in the lower. */
#define ID(op, slot) ((uint64_t)(op) << 32 | (slot))
#define ID_OP(id)    ((uint32_t)((id) >> 32))
#define ID_SLOT(id)  ((uint32_t)(id))

/* flue_peer.c: all return false after printing why. */
enum wait_result { GOT_WC, GOT_END, GOT_TIMEOUT };
enum wait_result peer_wait(struct peer *p, struct flue_wc *wc);
bool peer_failed(const char *what);

/* flue_peer_ops.c */
bool ops_setup(struct peer *p, uint32_t recvs);
bool ops_recv(struct peer *p, uint32_t slot);
bool ops_send(struct peer *p, uint32_t slot, uint32_t len);
bool ops_rdma(struct peer *p, uint32_t op, uint32_t offset, uint32_t len, uint64_t remote,
	      uint32_t rkey);
bool ops_collect(struct peer *p, uint32_t op, uint32_t n, struct flue_wc *wc);
bool ops_send_ctl(struct peer *p, uint64_t a, uint32_t b, uint32_t c);
bool ops_recv_ctl(struct peer *p, struct ctl *msg, bool repost);

/* flue_peer_siw.c: the exchanges of siwpeer. */
uint32_t siw_initial_recvs(const struct peer *p);
bool siw_run(struct peer *p);

/* flue_peer_convert.c: false with errno */
bool convert_establish(struct peer *p, const struct addrinfo *ai);

/* flue_peer_close.c: mode closing, with the end of the connection */
bool close_run(struct peer *p, const struct ctl *remote);

/* flue_peer_genuine.c: those of the genuine programs. NULL: no such mode. */
struct genuine {
	const char *name;
	bool server;
	uint32_t recv_size; /* 0: the message size of the options */
	bool (*run)(struct peer *p);
};
const struct genuine *genuine_find(const char *name);

#endif
