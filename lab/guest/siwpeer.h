/*
 * Shared by the parts of siwpeer; the exchanges are described in siwpeer.c.
 */
#ifndef SIWPEER_H
#define SIWPEER_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>

enum mode {
	MODE_CONNECT,
	MODE_REJECT,
	MODE_PASSIVE,
	MODE_SEND,
	MODE_WRITE,
	MODE_READ,
	MODE_BAD_WRITE_KEY,
	MODE_BAD_WRITE_BOUNDS,
	MODE_BAD_WRITE_ACCESS,
	MODE_BAD_READ_KEY,
	MODE_BAD_READ_BOUNDS,
	MODE_BAD_READ_ACCESS,
	MODE_SEND_NO_RECV,
	MODE_SEND_TOO_LONG,
};

enum closing {
	CLOSE_WAIT,
	CLOSE_DISCONNECT,
	CLOSE_EXIT,
	CLOSE_DESTROY,
	CLOSE_ERROR,
};

struct options {
	enum mode mode;
	enum closing closing;
	bool server;
	bool active; /* this side does the RDMA operations */
	bool quiet;
	const char *addr;
	const char *port;
	uint8_t pd[256];
	int pd_len;
	int ird;
	int ord;
	uint32_t size;
	uint32_t count;
	uint32_t window;
	uint32_t wrs;
	uint64_t total;
	int timeout_ms;
	const char *act; /* NULL: none */
};

/* A work request of ours, by its wr_id: what it was and which slot of the message buffers it uses. */
#define WRID(op, slot) ((uint64_t)(op) << 32 | (slot))
#define WRID_OP(id)    ((enum ibv_wc_opcode)((id) >> 32))
#define WRID_SLOT(id)  ((uint32_t)(id))

struct peer {
	struct options opt;
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *recv_mr, *send_mr, *data_mr;
	uint8_t *recv_buf, *send_buf, *data;
	uint32_t slots, slot_size;
	uint64_t remote; /* the peer's memory, where it told */
	uint32_t remote_key;
	bool mute; /* no completions are printed */
	bool established, disconnected, rejected, failed;
	uint64_t messages, bytes, bad;
	uint32_t ctl_out; /* control messages not completed */
};

/* siwpeer.c: one loop waits for whatever comes first. */
enum wait_result { GOT_WC, GOT_END, GOT_TIMEOUT };

enum wait_result peer_wait(struct peer *p, struct ibv_wc *wc);
int peer_handle_event(struct peer *p, struct rdma_cm_event *ev);

/* siwpeer_xfer.c */
int xfer_setup(struct peer *p);
int xfer_run(struct peer *p);
int xfer_post_recv(struct peer *p, uint32_t slot);
int xfer_send_something(struct peer *p);
int xfer_bad_write(struct peer *p);

/* siwpeer_act.c */
#define ACT_RECVS 32000 /* siw takes its time to flush so many */
void act(struct peer *p);

#endif
