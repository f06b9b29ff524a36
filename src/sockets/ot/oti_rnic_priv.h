/* SPDX-License-Identifier: MIT */
/*
 * Inside the transport over queue pairs.
 *
 * Up-calls of one connection are serialised by its `telling` mutex, which is held while one runs;
 * slots never take it. `lock` guards what slots and completions share, and is held for a post at
 * most. A connection that is released from inside an up-call is put on the list of the dead and
 * destroyed later, outside of all up-calls, since a queue pair cannot be destroyed from its own
 * callback.
 */
#ifndef FLUE_SOCKETS_OTI_RNIC_PRIV_H
#define FLUE_SOCKETS_OTI_RNIC_PRIV_H

#include <flue/flue.h>
#include <netinet/in.h>
#include <pthread.h>

#include "base/lock.h"
#include "sockets/ot/oti_rnic.h"

#define OTI_RNIC_RDMA_DEPTH 32

struct oti_rnic_conn;

struct oti_rnic {
	struct oti base;
	bool direct;
	struct flue_adapter *adapter;
	struct flue_pd *pd;
	struct flue_cq *send_cq, *recv_cq;
	pthread_mutex_t lock; /* below; leaf */
	struct oti_rnic_conn *dead;
	unsigned n_conns, n_listeners;
	uint32_t send_need, recv_need; /* completions that all connections can make */
};

struct oti_rnic_listener {
	struct oti_listener base;
	struct oti_rnic *r;
	struct flue_listener *listener;
	/* Under oti_rnic.lock: requests with the consumer, and threads that are telling or answering. */
	unsigned n_open, n_busy;
};

struct oti_rnic_request {
	struct oti_request base;
	struct oti_rnic *r;
	struct oti_rnic_listener *l;
	struct flue_conn_request *req;
};

struct oti_rnic_mem {
	struct oti_mem base;
	struct flue_mr *mr;
};

struct oti_rnic_rdma {
	uint64_t id;
	bool used;
};

struct oti_rnic_conn {
	struct oti_conn base;
	struct oti_rnic_conn *next_dead;
	struct flue_qp *qp;
	struct flue_mr *mr;
	uint8_t *mem;
	size_t mem_len;
	struct oti_addr local, peer;
	bool connecting;
	pthread_mutex_t telling; /* mute, told, how, ended */
	bool mute;               /* atomic */
	bool told;               /* the end was */
	bool ended;
	enum oti_down how;
	struct lock lock; /* all below */
	struct oti_rx *rx;
	bool *rx_counted; /* by number: posted, and its completion will come */
	uint32_t n_rx, rx_out;
	struct oti_buf *bufs;
	uint32_t *free;
	uint32_t n_bufs, n_free, tx_out;
	uint32_t buf_size;
	struct oti_rnic_rdma rdma[OTI_RNIC_RDMA_DEPTH];
	bool starved, up, confirmed;
	bool closing;       /* disconnect() was called */
	bool disconnecting; /* and the queue pair has been told */
};

static inline struct oti_rnic *to_oti_rnic(const struct oti *o)
{
	return (struct oti_rnic *)(uintptr_t)o;
}

static inline struct oti_rnic_conn *to_oti_rnic_conn(const struct oti_conn *c)
{
	return (struct oti_rnic_conn *)(uintptr_t)c;
}

static inline socklen_t oti_rnic_addr_len(const struct sockaddr_storage *sa)
{
	return sa->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

/* ---- oti_rnic_conn.c ---- */

int oti_rnic_conn_create(struct oti_rnic *r, const struct oti_conn_attr *attr,
			 struct oti_rnic_conn **out);
void oti_rnic_conn_destroy(struct oti_rnic_conn *c);
/* Destroys the dead, unless this thread is inside an up-call. */
void oti_rnic_conn_reap(struct oti_rnic *r);
bool oti_rnic_conn_is_telling(void);
void oti_rnic_conn_event(struct oti_rnic_conn *c, const struct flue_event *ev);
void oti_rnic_conn_completion(struct oti_rnic_conn *c, const struct flue_wc *wc);
/* Around on_request, so that what it releases is not destroyed inside. */
void oti_rnic_conn_tell_begin(void);
void oti_rnic_conn_tell_end(void);

struct oti_buf *oti_rnic_buf_get(struct oti_conn *conn);
void oti_rnic_buf_put(struct oti_conn *conn, struct oti_buf *buf);
int oti_rnic_send(struct oti_conn *conn, struct oti_buf *buf, const struct iovec *iov, int n,
		  uint32_t flags);
void oti_rnic_repost(struct oti_conn *conn, struct oti_rx *rx);
int oti_rnic_rdma_read(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
		       uint64_t remote_addr, uint32_t key, uint64_t id);
int oti_rnic_rdma_write(struct oti_conn *conn, struct oti_mem *mem, size_t offset, uint32_t len,
			uint64_t remote_addr, uint32_t key, uint64_t id);
int oti_rnic_confirm(struct oti_conn *conn);
void oti_rnic_names(const struct oti_conn *conn, struct oti_addr *local, struct oti_addr *peer);
int oti_rnic_disconnect(struct oti_conn *conn);
void oti_rnic_abort(struct oti_conn *conn);
void oti_rnic_release(struct oti_conn *conn);

#endif
