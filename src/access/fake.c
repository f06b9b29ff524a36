/* SPDX-License-Identifier: MIT */
/* See fake_priv.h. */
#include <arpa/inet.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "access/fake_priv.h"
#include "provider/registry.h"

struct fake fake;

/* ---- answers ---- */

struct answer {
	struct prov_op *op;
	int rc;
};

static void *answer_later(void *arg)
{
	struct answer *answer = arg;

	usleep(2000);
	answer->op->done(answer->op, answer->rc);
	free(answer);
	return NULL;
}

static int answer(struct prov_op *op, int rc)
{
	struct answer *copy;
	pthread_t thread;

	if (fake.silent) {
		assert(fake.n_unanswered < FAKE_LOG);
		fake.unanswered[fake.n_unanswered++] = op;
		return -EINPROGRESS;
	}
	if (!fake.later)
		return rc;
	copy = malloc(sizeof(*copy));
	assert(copy);
	copy->op = op;
	copy->rc = rc;
	if (pthread_create(&thread, NULL, answer_later, copy))
		abort();
	pthread_detach(thread);
	return -EINPROGRESS;
}

/* Makes a handle of `size` octets, unless rc says no. */
static int make(int rc, size_t size, void *out, struct prov_op *op)
{
	void *handle = NULL;

	if (!rc) {
		handle = calloc(1, size);
		assert(handle);
	}
	memcpy(out, &handle, sizeof(handle));
	return answer(op, rc);
}

static int drop(int rc, void *handle, struct prov_op *op)
{
	if (!rc)
		free(handle);
	return answer(op, rc);
}

/* ---- slots ---- */

/* Two, of which the second has shorter send queues. */
static int f_adapter(uint32_t index, struct flue_adapter_info *info, struct flue_caps *caps)
{
	assert(!info->name[0] && !info->interface[0] && !info->ports && !info->n_addresses);
	assert(!caps->max_sge);
	if (index >= FAKE_ADAPTERS)
		return -ENOENT;
	snprintf(info->name, sizeof(info->name), "fake%u", index);
	snprintf(info->interface, sizeof(info->interface), "if%u", index);
	info->ports = index + 1;
	if (info->addresses && info->max_addresses)
		memcpy(info->addresses, fake_address(), sizeof(struct sockaddr_in));
	info->n_addresses = info->addresses ? 2 : 0;
	caps->max_sq_depth = caps->max_rq_depth = caps->max_srq_depth = caps->max_cq_depth = 1024;
	caps->max_sq_depth >>= index;
	caps->max_sge = 4;
	caps->max_read_sge = 1;
	caps->max_inline = 64;
	caps->max_ird = caps->max_ord = 32;
	caps->max_mr_length = UINT64_MAX / 2;
	caps->max_private_data = FAKE_MOST;
	caps->max_private_request = FAKE_REQUEST;
	caps->max_private_reply = FAKE_REPLY;
	caps->max_private_reject = FAKE_REJECT;
	caps->max_private_rev1 = FAKE_REV1;
	caps->features = FLUE_FEATURE_ZERO_BASED | FLUE_FEATURE_IOVA | FLUE_FEATURE_WINDOWS |
			 FLUE_FEATURE_REMOTE_INVALIDATE;
	caps->features |= fake.no_adopt ? 0 : (uint32_t)FLUE_FEATURE_ADOPT_STREAM;
	caps->features |= fake.features;
	caps->features |= fake.no_gang ? 0 : (uint32_t)FLUE_FEATURE_GANG;
	return 0;
}

static void note(char what)
{
	if (fake.n_order < FAKE_LOG - 1)
		fake.order[fake.n_order++] = what;
}

static int f_open(const struct prov_open_attr *attr, struct prov_adapter **out)
{
	if (fake.rc.open)
		return fake.rc.open;
	fake.opens++;
	fake.adapter = calloc(1, sizeof(*fake.adapter));
	assert(fake.adapter && attr->n_cpus <= 16);
	snprintf(fake.adapter->name, sizeof(fake.adapter->name), "%s", attr->name);
	fake.adapter->up = attr->up;
	memcpy(fake.adapter->cpus, attr->cpus, attr->n_cpus * sizeof(*attr->cpus));
	fake.adapter->n_cpus = attr->n_cpus;
	*out = fake.adapter;
	return 0;
}

static void f_close(struct prov_adapter *a)
{
	fake.closes++;
	free(a);
}

static int f_handler(struct prov_adapter *a, int cpu, prov_completion_fn fn, void *arg)
{
	uint32_t id = fake.made_handlers;

	(void)a;
	if (fake.rc.handler)
		return fake.rc.handler;
	fake.handlers[id].fn = fn;
	fake.handlers[id].arg = arg;
	fake.handlers[id].cpu = cpu;
	fake.made_handlers++;
	return (int)id;
}

static int f_create_pd(struct prov_adapter *a, struct prov_pd **out, struct prov_op *op)
{
	(void)a;
	fake.made_pds += !fake.rc.pd;
	fake.pds += !fake.rc.pd;
	return make(fake.rc.pd, 1, out, op);
}

static int f_destroy_pd(struct prov_pd *pd, struct prov_op *op)
{
	fake.pds -= !fake.rc.destroy_pd;
	return drop(fake.rc.destroy_pd, pd, op);
}

static void give_keys(struct prov_keys *keys)
{
	keys->lkey = ++fake.key << 8;
	keys->rkey = keys->lkey | FAKE_RKEY;
}

static int f_register_mr(const struct prov_mr_attr *attr, struct prov_mr **out,
			 struct prov_keys *keys, struct prov_op *op)
{
	int rc = fake.mrs_left == 1 ? -ENOSPC : fake.rc.mr;

	fake.mr = *attr;
	give_keys(keys);
	fake.mrs_left -= fake.mrs_left > 1;
	fake.made_mrs += !rc;
	fake.mrs += !rc;
	return make(rc, sizeof(**out), out, op);
}

static int f_modify_mr(struct prov_mr *mr, uint32_t what, const struct prov_mr_attr *attr,
		       struct prov_keys *keys, struct prov_op *op)
{
	(void)mr;
	fake.modifies++;
	fake.mr = *attr;
	fake.what = what;
	give_keys(keys);
	if (fake.on_modify)
		fake.on_modify();
	return answer(op, fake.rc.modify_mr);
}

static int f_deregister_mr(struct prov_mr *mr, struct prov_op *op)
{
	fake.mrs -= !fake.rc.deregister_mr;
	return drop(fake.rc.deregister_mr, mr, op);
}

static int f_create_mw(struct prov_pd *pd, uint32_t type, struct prov_mw **out, uint32_t *rkey,
		       struct prov_op *op)
{
	(void)pd;
	fake.mw_type = type;
	*rkey = ++fake.key << 8 | FAKE_RKEY;
	return make(fake.rc.mw, 1, out, op);
}

static int f_destroy_mw(struct prov_mw *mw, struct prov_op *op)
{
	return drop(fake.rc.destroy_mw, mw, op);
}

static int f_bind_mw(struct prov_mw *mw, struct prov_qp *qp, const struct flue_send_wr *wr,
		     uint32_t *rkey)
{
	(void)mw;
	fake.qp = qp;
	fake.bind = *wr;
	if (!fake.rc.bind_mw)
		*rkey = ++fake.key << 8 | FAKE_RKEY;
	return fake.rc.bind_mw;
}

static int f_create_cq(struct prov_adapter *a, const struct prov_cq_attr *attr,
		       struct prov_cq **out, struct prov_op *op)
{
	int rc = make(fake.rc.cq, sizeof(**out), out, op);

	(void)a;
	fake.cq = *out;
	note(*out ? 'c' : 'f');
	if (*out) {
		fake.made_cqs++;
		fake.cqs++;
		(*out)->attr = *attr;
		(*out)->depth = attr->depth;
	}
	return rc;
}

static int f_resize_cq(struct prov_cq *cq, uint32_t depth, struct prov_op *op)
{
	note(fake.rc.resize_cq ? 'f' : 'r');
	fake.resizes++;
	if (!fake.rc.resize_cq)
		cq->depth = depth;
	return answer(op, fake.rc.resize_cq);
}

static int f_destroy_cq(struct prov_cq *cq, struct prov_op *op)
{
	fake.cqs -= !fake.rc.destroy_cq;
	return drop(fake.rc.destroy_cq, cq, op);
}

static int f_poll(struct prov_cq *cq, struct flue_wc *wc, size_t size, uint32_t n)
{
	char *to = (char *)wc;
	uint32_t got = 0;

	cq->polls++;
	for (; got < n && cq->head != cq->tail; got++, to += size)
		acc_copy_out(to, size, &cq->ring[cq->head++ % FAKE_RING], sizeof(*wc));
	return got ? (int)got : fake.rc.poll;
}

static int f_arm(struct prov_cq *cq, uint32_t kind)
{
	if (fake.rc.arm)
		return fake.rc.arm;
	cq->arms++;
	cq->armed = (int)kind + 1;
	if (fake.arm_is_late) {
		fake.arm_is_late = false;
		return 1;
	}
	return cq->head != cq->tail;
}

static int f_wait(struct prov_cq *cq, int timeout_ms)
{
	(void)cq, (void)timeout_ms;
	return fake.rc.wait;
}

static int f_create_srq(struct prov_pd *pd, uint32_t depth, uint32_t max_sge, void *owner,
			struct prov_srq **out, struct prov_op *op)
{
	(void)pd, (void)depth, (void)max_sge;
	fake.srq_owner = owner;
	return make(fake.rc.srq, 1, out, op);
}

static int f_destroy_srq(struct prov_srq *srq, struct prov_op *op)
{
	return drop(fake.rc.destroy_srq, srq, op);
}

static int f_arm_srq(struct prov_srq *srq, uint32_t limit)
{
	(void)srq;
	if (!fake.rc.arm_srq)
		fake.srq_limit = limit;
	return fake.rc.arm_srq;
}

static int f_modify_srq(struct prov_srq *srq, const struct flue_srq_values *values, uint32_t mask,
			struct prov_op *op)
{
	(void)srq;
	fake.srq = *values;
	fake.srq_mask = mask;
	return answer(op, fake.rc.modify_srq);
}

static int f_query_srq(struct prov_srq *srq, struct flue_srq_values *values, struct prov_op *op)
{
	(void)srq;
	*values = fake.srq;
	return answer(op, fake.rc.query_srq);
}

static int f_post_srq(struct prov_srq *srq, const struct flue_recv_wr *wr,
		      const struct flue_recv_wr **bad)
{
	(void)srq;
	*bad = wr;
	return fake.rc.post_srq;
}

static int f_create_qp(const struct prov_qp_attr *attr, struct prov_qp **out, uint32_t *number,
		       struct prov_op *op)
{
	void (*hook)(void) = fake.on_new_qp;
	bool none = (fake.qp_from && fake.made_qps + 1 >= (unsigned)fake.qp_from) ||
		    (fake.qp_most && attr->sq_depth + attr->rq_depth > fake.qp_most);
	int rc = make(none ? -ENOSPC : fake.rc.qp, sizeof(**out), out, op);

	fake.qp = *out;
	note(*out ? 'q' : 'n');
	fake.made_qps++;
	fake.qps += *out != NULL;
	if (*out)
		(*out)->attr = *attr;
	if (hook)
		hook();
	*number = 7;
	return rc;
}

static int f_destroy_qp(struct prov_qp *qp, struct prov_op *op)
{
	fake.qps -= !fake.rc.destroy_qp;
	if (!fake.rc.destroy_qp && qp->has_stream)
		close(qp->stream.fd);
	return drop(fake.rc.destroy_qp, qp, op);
}

static int f_reset_qp(struct prov_qp *qp, struct prov_op *op)
{
	(void)qp;
	fake.resets++;
	return answer(op, fake.rc.reset_qp);
}

static int f_query_qp(struct prov_qp *qp, struct flue_qp_values *values, uint32_t mask,
		      struct prov_op *op)
{
	struct flue_ah_attr *path = values->path, *alt_path = values->alt_path;

	qp->mask = mask;
	*values = fake.info;
	if (path)
		*path = fake.paths[0];
	if (alt_path)
		*alt_path = fake.paths[1];
	return answer(op, fake.rc.query_qp);
}

static void keep_pieces(struct fake_wr *to, const struct flue_sge *sg, uint32_t n)
{
	to->n_sg = n;
	assert(n <= sizeof(to->sg) / sizeof(to->sg[0]));
	for (uint32_t i = 0; i < n; i++) {
		assert(!(sg[i].lkey & FAKE_RKEY));
		to->sg[i] = sg[i];
	}
}

/* Requests about regions and windows of ours name them by their rkey. */
static void check_keys(const struct flue_send_wr *wr)
{
	bool ours = wr->op == FLUE_WR_LOCAL_INV || wr->op == FLUE_WR_FAST_REG ||
		    wr->op == FLUE_WR_BIND;

	assert(!ours || wr->rkey & FAKE_RKEY);
	assert(wr->op != FLUE_WR_BIND || !(wr->reg.lkey & FAKE_RKEY));
}

/* A ready list is posted as a whole or not at all. */
static int f_post_send(struct prov_qp *qp, const struct flue_send_wr *wr,
		       const struct flue_send_wr **bad)
{
	*bad = wr;
	for (; wr && !fake.rc.post_send; wr = wr->next) {
		struct fake_wr *to = &qp->sends[qp->n_sends++ % FAKE_LOG];

		check_keys(wr);
		*to = (struct fake_wr) {
			.id = wr->id,
			.op = wr->op,
			.flags = wr->flags,
			.rkey = wr->rkey,
			.lkey = wr->op == FLUE_WR_FAST_REG ? wr->reg.key
				: wr->n_sg                 ? wr->sg[0].lkey
							   : 0,
		};
		keep_pieces(to, wr->sg, wr->op == FLUE_WR_FAST_REG ? 0 : wr->n_sg);
	}
	if (!fake.rc.post_send && fake.on_send)
		fake.on_send(qp);
	return fake.rc.post_send;
}

static int f_post_recv(struct prov_qp *qp, const struct flue_recv_wr *wr,
		       const struct flue_recv_wr **bad)
{
	*bad = wr;
	for (; wr && !fake.rc.post_recv; wr = wr->next) {
		struct fake_wr *to = &qp->recvs[qp->n_recvs++ % FAKE_LOG];

		*to = (struct fake_wr) { .id = wr->id, .lkey = wr->n_sg ? wr->sg[0].lkey : 0 };
		keep_pieces(to, wr->sg, wr->n_sg);
	}
	return fake.rc.post_recv;
}

static int f_connect(struct prov_qp *qp, const struct flue_conn_attr *attr)
{
	qp->conn = *attr;
	if (!fake.rc.connect && fake.on_connect)
		fake.on_connect(qp);
	return fake.rc.connect;
}

static int f_start(struct prov_qp *qp)
{
	fake.starts++;
	if (!fake.rc.start && fake.on_connect)
		fake.on_connect(qp);
	return fake.rc.start;
}

static int f_disconnect(struct prov_qp *qp, int timeout_ms)
{
	qp->disconnect_ms = timeout_ms;
	if ((!fake.rc.disconnect || fake.rc.disconnect == -EBUSY) && fake.on_abort)
		fake.on_abort(qp);
	return fake.rc.disconnect;
}

static int f_abort(struct prov_qp *qp)
{
	fake.aborts++;
	if (!fake.rc.abort && fake.on_abort)
		fake.on_abort(qp);
	return fake.rc.abort;
}

static int f_listen(struct prov_adapter *a, const struct prov_listen_attr *attr,
		    struct sockaddr_storage *bound, struct prov_listener **out)
{
	(void)a;
	if (fake.rc.listen)
		return fake.rc.listen;
	fake.listen = *attr;
	memcpy(bound, attr->local, attr->local_len);
	*out = calloc(1, 1);
	assert(*out);
	return 0;
}

static int f_destroy_listener(struct prov_listener *l, struct prov_op *op)
{
	return drop(fake.rc.destroy_listener, l, op);
}

/* Nobody waits here: the tests say when what is told. */
static int f_await_qp(struct prov_qp *qp, const struct prov_await *w)
{
	(void)qp;
	(void)w;
	return -EOPNOTSUPP;
}

static int f_await_listener(struct prov_listener *l, const struct prov_await *w)
{
	(void)l;
	(void)w;
	return -EOPNOTSUPP;
}

static int f_accept(struct prov_request *req, struct prov_qp *qp, const struct flue_conn_attr *attr)
{
	fake.accepts++;
	qp->accepted = req;
	qp->conn = *attr;
	if (!fake.rc.accept && fake.on_connect)
		fake.on_connect(qp);
	return fake.rc.accept;
}

static int f_reject(struct prov_request *req, const void *data, size_t length)
{
	(void)req, (void)data;
	fake.rejects++;
	fake.reject_len = length;
	return fake.rc.reject;
}

static int f_adopt_stream(struct prov_qp *qp, const struct prov_stream *stream,
			  const struct flue_conn_attr *attr)
{
	qp->conn = *attr;
	qp->stream = *stream;
	qp->has_stream = !fake.rc.adopt;
	atomic_fetch_add(&fake.adopts, 1);
	if (fake.on_adopt)
		fake.on_adopt(qp);
	return fake.rc.adopt;
}

static int f_adopt_gang(struct prov_adoption *gang, uint32_t n)
{
	if (fake.rc.gang)
		return fake.rc.gang;
	fake.gangs[fake.n_gangs++ % 8] = n;
	for (uint32_t i = 0; i < n; i++) {
		bool bad = fake.gang_bad == i + 1;

		gang[i].result = bad ? -EINVAL
				     : f_adopt_stream(gang[i].qp, gang[i].stream, gang[i].attr);
	}
	return 0;
}

static int f_terminate(struct prov_qp *qp)
{
	(void)qp;
	return fake.rc.terminate;
}

static int f_modify_qp(struct prov_qp *qp, const struct flue_qp_values *values, uint32_t mask,
		       struct prov_op *op)
{
	if (!fake.rc.modify_qp) {
		qp->values = *values;
		qp->mask = mask;
		if (values->path)
			fake.path = *values->path;
		if (values->alt_path)
			fake.alt_path = *values->alt_path;
	}
	return op ? answer(op, fake.rc.modify_qp) : fake.rc.modify_qp;
}

static int f_create_ah(struct prov_pd *pd, const struct flue_ah_attr *attr, struct prov_ah **out,
		       struct prov_op *op)
{
	(void)pd;
	fake.ah = *attr;
	return make(fake.rc.ah, 1, out, op);
}

static int f_group(struct prov_qp *qp, const struct flue_ah_attr *group)
{
	(void)qp, (void)group;
	return fake.rc.group;
}

static int f_destroy_ah(struct prov_ah *ah, struct prov_op *op)
{
	return drop(fake.rc.destroy_ah, ah, op);
}

static const struct prov_ops fake_provider = {
	.size = sizeof(fake_provider),
	.name = "fake",
	.description = "answers as the test says",
	.adapter = f_adapter,
	.open = f_open,
	.close = f_close,
	.set_completion_handler = f_handler,
	.create_pd = f_create_pd,
	.destroy_pd = f_destroy_pd,
	.register_mr = f_register_mr,
	.modify_mr = f_modify_mr,
	.deregister_mr = f_deregister_mr,
	.create_mw = f_create_mw,
	.destroy_mw = f_destroy_mw,
	.bind_mw = f_bind_mw,
	.create_cq = f_create_cq,
	.resize_cq = f_resize_cq,
	.destroy_cq = f_destroy_cq,
	.poll = f_poll,
	.arm = f_arm,
	.wait = f_wait,
	.create_srq = f_create_srq,
	.destroy_srq = f_destroy_srq,
	.arm_srq = f_arm_srq,
	.modify_srq = f_modify_srq,
	.query_srq = f_query_srq,
	.post_srq = f_post_srq,
	.create_qp = f_create_qp,
	.destroy_qp = f_destroy_qp,
	.reset_qp = f_reset_qp,
	.query_qp = f_query_qp,
	.modify_qp = f_modify_qp,
	.post_send = f_post_send,
	.post_recv = f_post_recv,
	.connect = f_connect,
	.start = f_start,
	.disconnect = f_disconnect,
	.abort = f_abort,
	.listen = f_listen,
	.destroy_listener = f_destroy_listener,
	.await_qp = f_await_qp,
	.await_listener = f_await_listener,
	.accept = f_accept,
	.reject = f_reject,
	.adopt_stream = f_adopt_stream,
	.adopt_gang = f_adopt_gang,
	.terminate = f_terminate,
	.create_ah = f_create_ah,
	.destroy_ah = f_destroy_ah,
	.join_group = f_group,
	.leave_group = f_group,
};

/* ---- what tests call ---- */

void fake_reset(void)
{
	memset(&fake, 0, sizeof(fake));
	if (provider_register(&fake_provider))
		abort();
}

void fake_speak(int rc)
{
	for (uint32_t i = 0; i < fake.n_unanswered; i++)
		fake.unanswered[i]->done(fake.unanswered[i], rc);
	fake.n_unanswered = 0;
}

struct flue_adapter *fake_open(const int *cpus, uint32_t n)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	static const int first[] = { 0 };

	attr.provider = "fake";
	attr.cpus = cpus ? cpus : first;
	attr.n_cpus = cpus ? n : 1;
	return flue_open(&attr);
}

struct flue_qp *fake_qp(struct flue_adapter *a, flue_event_fn fn, void *arg)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_pd *pd = flue_create_pd(a);

	attr.send_cq = attr.recv_cq = flue_create_cq(a, 16);
	attr.sq_depth = attr.rq_depth = 4;
	attr.on_event = fn;
	attr.event_arg = arg;
	return pd->ops->create_qp(pd, &attr);
}

void fake_destroy_qp(struct flue_qp *qp)
{
	struct flue_pd *pd = qp->pd;
	struct flue_cq *cq = qp->send_cq;

	if (!flue_destroy_qp(qp) || !flue_destroy_cq(cq) || !flue_destroy_pd(pd))
		abort();
}

static void complete(struct flue_cq *pub, const struct flue_wc *wc, bool solicited)
{
	struct prov_cq *cq = to_cq(pub)->prov;
	int kind = cq->armed - 1;

	cq->ring[cq->tail++ % FAKE_RING] = *wc;
	if (kind == FLUE_NOTIFY_NEXT || (kind == FLUE_NOTIFY_SOLICITED && solicited)) {
		cq->armed = 0;
		fake.handlers[cq->attr.handler].fn(cq->attr.owner,
						   fake.handlers[cq->attr.handler].arg);
	}
}

void fake_complete(struct flue_cq *pub, struct flue_qp *qp, uint64_t id, bool solicited)
{
	complete(pub, &(struct flue_wc) { .id = id, .qp = qp }, solicited);
}

void fake_complete_wc(struct flue_cq *pub, const struct flue_wc *wc)
{
	complete(pub, wc, false);
}

static void finish(struct flue_cq *cq, struct prov_qp *qp, uint64_t id, uint32_t status,
		   uint32_t length)
{
	fake_complete_wc(
		cq, &(struct flue_wc) {
			    .id = id, .status = status, .byte_len = length, .qp = qp->attr.owner });
}

void fake_finish_recv(struct flue_qp *pub, uint32_t status, uint32_t length)
{
	struct prov_qp *qp = to_qp(pub)->prov;

	assert(qp->done_recvs < qp->n_recvs);
	finish(pub->recv_cq, qp, qp->recvs[qp->done_recvs++ % FAKE_LOG].id, status, length);
}

void fake_finish_send(struct flue_qp *pub, uint32_t status)
{
	struct prov_qp *qp = to_qp(pub)->prov;
	const struct fake_wr *wr;

	do {
		assert(qp->done_sends < qp->n_sends);
		wr = &qp->sends[qp->done_sends++ % FAKE_LOG];
	} while (status == FLUE_WC_SUCCESS && !(wr->flags & FLUE_SIGNALED));
	finish(pub->send_cq, qp, wr->id, status, 0);
}

void fake_flush(struct prov_qp *qp)
{
	struct flue_qp *pub = qp->attr.owner;

	while (qp->done_sends < qp->n_sends)
		fake_finish_send(pub, FLUE_WC_FLUSHED);
	while (qp->done_recvs < qp->n_recvs)
		fake_finish_recv(pub, FLUE_WC_FLUSHED, 0);
}

bool fake_socket_to(struct flue_socket *s, uint32_t offload_state)
{
	struct flue_reserve_attr reserve = FLUE_ATTR(struct flue_reserve_attr);
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	static char first[256];

	/* Reserving lasts as long as the call: see on_new_qp. */
	if (offload_state >= FLUE_OFFLOAD_RESERVING && !s->ops->reserve(s, &reserve))
		return false;
	if (offload_state >= FLUE_OFFLOAD_WAIT_FIRST_RECV && !s->ops->switch_mode(s, &to, 1))
		return false;
	if (offload_state >= FLUE_OFFLOAD_IN_PROGRESS &&
	    !s->ops->rdma_recv(s, first, sizeof(first), 2))
		return false;
	if (offload_state >= FLUE_OFFLOAD_DONE)
		fake_news_with(s->qp, FLUE_EVENT_CONNECTED, 0, NULL, 0);
	return true;
}

void fake_news(struct flue_qp *qp, uint32_t type, uint32_t reason, uint32_t detail)
{
	struct flue_event ev = { .type = type, .reason = reason, .detail = detail };

	fake.adapter->up->qp_event(qp, &ev, NULL);
}

void fake_news_with(struct flue_qp *qp, uint32_t type, uint32_t detail, const void *data,
		    size_t length)
{
	struct flue_event ev = { .type = type, .detail = detail };
	struct prov_conn_info info = {
		.private_data = data,
		.private_len = length,
		.ird = 3,
		.ord = 5,
	};

	memcpy(&info.peer, fake_address(), sizeof(struct sockaddr_in));
	fake.adapter->up->qp_event(qp, &ev, &info);
}

int fake_request(struct flue_listener *l, const void *data, size_t length, uint32_t revision)
{
	struct prov_request_info info = {
		.private_data = data,
		.private_len = length,
		.peer_ird = 1,
		.peer_ord = 2,
		.revision = revision,
		.peer_to_peer = revision == 2,
		.max_reply = revision == 1 ? FAKE_REV1 : FAKE_REPLY,
		.max_reject = revision == 1 ? FAKE_REV1 : FAKE_REJECT,
	};

	memcpy(&info.peer, fake_address(), sizeof(struct sockaddr_in));
	return fake.adapter->up->request(l, (struct prov_request *)&fake, &info);
}

void fake_streams(int fd[2])
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	socklen_t len = sizeof(in);
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(door, (struct sockaddr *)&in, len) || listen(door, 1) ||
	    getsockname(door, (struct sockaddr *)&in, &len) ||
	    connect(fd[0], (struct sockaddr *)&in, len))
		abort();
	fd[1] = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	close(door);
}

const struct sockaddr *fake_address(void)
{
	static const struct sockaddr_in in = {
		.sin_family = AF_INET,
		.sin_port = FAKE_PORT,
	};

	return (const struct sockaddr *)&in;
}
