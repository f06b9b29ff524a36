/* SPDX-License-Identifier: MIT */
/*
 * A program of version 0.2. It is compiled against the headers of that version and run with the library of
 * today, which has to look into every structure where it was then. It never changes.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <flue/flue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(what)                                                                     \
	do {                                                                           \
		errno = 0;                                                             \
		if (!(what)) {                                                         \
			printf("line %d: %s: %s\n", __LINE__, #what, strerror(errno)); \
			exit(1);                                                       \
		}                                                                      \
	} while (0)

#define OCTETS 4096
#define IOVA   0x123456789000
#define GUARD  0x5a5a5a5a5a5a5a5a

struct side {
	struct flue_cq *scq, *rcq;
	struct flue_srq *srq;
	struct flue_qp *qp;
	struct flue_mr *mr;
	char *mem;
};

static struct flue_adapter *adapter;
static struct flue_pd *pd;
static struct side a, b;
static struct flue_listener *listener;
static int events, chosen;

static uint32_t choose(const struct flue_cpu_load *load, uint32_t n, void *arg)
{
	MUST(n >= 1 && load[0].cpu >= 0 && load[0].cqs < 100 && arg == &chosen);
	chosen++;
	return 0;
}

static void on_event(const struct flue_event *ev, void *arg)
{
	MUST(arg == &a && ev->u.qp == a.qp);
	if (ev->type == FLUE_EVENT_DISCONNECTED)
		MUST(ev->reason == FLUE_CLOSE_GRACEFUL && ev->detail == 0);
	__atomic_fetch_add(&events, 1, __ATOMIC_SEQ_CST);
}

/* ---- objects ---- */

static void list_adapter(struct flue_adapter_info *info, struct flue_caps *caps)
{
	struct flue_provider_info provider = FLUE_ATTR(struct flue_provider_info);
	struct sockaddr_storage at[8];

	MUST(flue_provider_info(0, &provider) && !strcmp(provider.name, "soft"));
	MUST(provider.description[0] && provider.n_adapters >= 1);
	info->addresses = at;
	info->max_addresses = 8;
	MUST(flue_adapter_info(0, info, caps));
	MUST(!strcmp(info->provider, "soft") && !strcmp(info->name, "flue0") &&
	     !info->interface[0]);
	MUST(info->ports == 1 && info->n_addresses >= 1 && info->size == sizeof(*info));
	MUST(FLUE_HAS(info, n_addresses) && FLUE_HAS(caps, features));
}

static void check_caps(const struct flue_caps *caps)
{
	MUST(!strcmp(adapter->caps->provider, "soft") && !strcmp(adapter->caps->adapter, "flue0"));
	MUST(adapter->caps->max_sge == caps->max_sge && adapter->caps->max_ord == caps->max_ord);
	MUST(adapter->caps->max_message == caps->max_message);
	MUST(caps->max_private_data >= caps->max_private_request && caps->max_private_reply);
	MUST(caps->max_private_reject && caps->max_private_rev1);
	MUST(adapter->caps->features & FLUE_FEATURE_IOVA && caps->features & FLUE_FEATURE_SRQ);
}

static void open_adapter(void)
{
	struct flue_adapter_info info = FLUE_ATTR(struct flue_adapter_info);
	struct flue_caps caps = FLUE_ATTR(struct flue_caps);
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	static const int cpus[] = { 0 };

	list_adapter(&info, &caps);
	attr.provider = "soft";
	attr.name = info.name;
	attr.cpus = cpus;
	attr.n_cpus = 1;
	attr.choose_cpu = choose;
	attr.choose_arg = &chosen;
	MUST(adapter = flue_open(&attr));
	MUST(adapter->n_cpus == 1 && adapter->cpus[0] == 0);
	MUST(adapter->ops->size >= sizeof(*adapter->ops));
	check_caps(&caps);
	attr.name = "no such adapter";
	MUST(!flue_open(&attr) && errno == ENODEV);
}

static void make_cqs(struct side *s)
{
	struct flue_cq_attr cq = FLUE_ATTR(struct flue_cq_attr);

	cq.depth = 32;
	cq.flags = FLUE_CQ_ANY_THREAD;
	MUST(s->scq = adapter->ops->create_cq(adapter, &cq));
	MUST(s->rcq = flue_create_cq(adapter, 17));
	MUST(s->scq->depth == 32 && s->rcq->depth == 17);
	MUST(s->rcq->cpu == 0 && s->rcq->adapter == adapter);
}

static void make_region(struct side *s, uint32_t access, uint64_t iova, uint64_t start)
{
	struct flue_mr_attr mr = FLUE_ATTR(struct flue_mr_attr);

	mr.addr = s->mem;
	mr.length = OCTETS;
	mr.access = access | FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ;
	mr.iova = iova;
	MUST(s->mr = pd->ops->register_mr(pd, &mr));
	MUST(s->mr->addr == s->mem && s->mr->length == OCTETS && s->mr->pd == pd);
	MUST(s->mr->lkey && s->mr->rkey && s->mr->access == mr.access);
	MUST(s->mr->remote_start == start && s->mr->remote_end == start + OCTETS);
}

static void make_srq(struct side *s)
{
	struct flue_srq_attr srq = FLUE_ATTR(struct flue_srq_attr);

	srq.depth = 8;
	srq.max_sge = 2;
	MUST(s->srq = pd->ops->create_srq(pd, &srq));
	MUST(s->srq->depth == 8 && s->srq->max_sge == 2 && s->srq->pd == pd);
}

static void make_qp(struct side *s, uint32_t flags, flue_event_fn fn)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = s->scq;
	attr.recv_cq = s->rcq;
	attr.srq = s->srq;
	attr.sq_depth = 5;
	attr.rq_depth = 7;
	attr.sq_sge = 2;
	attr.rq_sge = 3;
	attr.max_inline = 48;
	attr.flags = flags;
	attr.on_event = fn;
	attr.event_arg = s;
	MUST(s->qp = pd->ops->create_qp(pd, &attr));
	MUST(s->qp->sq_depth == 5 && s->qp->sq_sge == 2 && s->qp->max_inline == 48);
	MUST(s->qp->send_cq == s->scq && s->qp->recv_cq == s->rcq && s->qp->srq == s->srq);
	MUST(s->qp->type == FLUE_QP_RC && s->qp->number && s->qp->pd == pd && !s->qp->user);
	MUST(flue_qp_state(s->qp) == FLUE_QP_IDLE);
	attr.type = FLUE_QP_UD;
	if (!(adapter->caps->features & FLUE_FEATURE_UD))
		MUST(!pd->ops->create_qp(pd, &attr) && errno == EOPNOTSUPP);
}

static void make_sides(void)
{
	MUST(pd = flue_create_pd(adapter));
	MUST(pd->adapter == adapter && pd->ops->size >= sizeof(*pd->ops));
	MUST(a.mem = calloc(1, OCTETS));
	MUST(b.mem = calloc(1, OCTETS));
	make_cqs(&a);
	make_cqs(&b);
	make_region(&a, 0, 0, (uintptr_t)a.mem);
	make_region(&b, FLUE_IOVA, IOVA, IOVA);
	make_srq(&b);
	make_qp(&a, FLUE_QP_POST_EARLY, on_event);
	make_qp(&b, 0, NULL);
}

/* ---- connection ---- */

static void *accept_main(void *arg)
{
	struct flue_conn_request *req;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	MUST(req = listener->ops->get_request(listener, 10000));
	MUST(req->private_len == 7 && !memcmp(req->private_data, "request", 7));
	MUST(req->peer_ird == 3 && req->peer_ord == 2 && req->revision == 2 &&
	     req->listener == listener);
	MUST(req->max_reply == adapter->caps->max_private_reply && req->max_reject);
	MUST(req->peer.ss_family == AF_INET && req->local.ss_family == AF_INET);
	attr.private_data = "reply";
	attr.private_len = 5;
	attr.ird = 4;
	attr.ord = 3;
	MUST(req->ops->accept(req, b.qp, &attr));
	return arg;
}

static void connect_sides(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct flue_listen_attr listen = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	pthread_t thread;

	listen.local = (struct sockaddr *)&at;
	listen.local_len = sizeof(at);
	MUST(listener = adapter->ops->listen(adapter, &listen));
	MUST(pthread_create(&thread, NULL, accept_main, NULL) == 0);
	attr.remote = (struct sockaddr *)&listener->local;
	attr.remote_len = sizeof(at);
	attr.private_data = "request";
	attr.private_len = 7;
	attr.ird = 3;
	attr.ord = 2;
	attr.timeout_ms = 10000;
	MUST(a.qp->ops->connect(a.qp, &attr));
	MUST(pthread_join(thread, NULL) == 0);
	MUST(a.qp->private_len == 5 && !memcmp(a.qp->private_data, "reply", 5));
	MUST(a.qp->ird == 3 && a.qp->ord <= 2 && a.qp->peer.ss_family == AF_INET);
	MUST(flue_qp_state(a.qp) == FLUE_QP_RTS);
}

/* ---- data ---- */

/* A completion, with memory behind it that is not the library's to touch. */
static void expect(struct flue_cq *cq, uint64_t id, uint32_t op, uint32_t length)
{
	struct {
		struct flue_wc wc;
		uint64_t guard;
	} out[2];
	uint32_t got = 99;

	memset(out, 0x5a, sizeof(out));
	MUST(flue_wait(cq, 10000));
	MUST(flue_poll(cq, &out[0].wc, 1, &got) && got == 1);
	MUST(out[0].guard == GUARD && out[1].guard == GUARD && out[1].wc.id == GUARD);
	MUST(out[0].wc.id == id && out[0].wc.status == FLUE_WC_SUCCESS && out[0].wc.op == op);
	MUST(out[0].wc.qp == (cq == a.scq || cq == a.rcq ? a.qp : b.qp));
	MUST(op != FLUE_WC_RECV || out[0].wc.byte_len == length);
	MUST(out[0].wc.cpu < 65535 && !(out[0].wc.flags & FLUE_WC_INVALIDATED));
	MUST(flue_poll(cq, &out[0].wc, 1, &got) && got == 0);
}

static void post_receive(uint64_t id)
{
	struct flue_sge sge[2] = { flue_mr_sge(b.mr, 0, 10), flue_mr_sge(b.mr, 100, 50) };
	struct flue_recv_wr wr = { .id = id, .sg = sge, .n_sg = 2 };

	MUST(b.srq->ops->post_recv(b.srq, &wr, NULL));
}

/* The first Send is posted before there is a connection. */
static void post_early(void)
{
	struct flue_sge sge = flue_mr_sge(a.mr, 0, 20);
	struct flue_send_wr wr = { .id = 1, .op = FLUE_WR_SEND, .sg = &sge, .n_sg = 1 };

	strcpy(a.mem, "0123456789abcdefghi");
	wr.flags = FLUE_SIGNALED | FLUE_SOLICITED;
	MUST(flue_post_send(a.qp, &wr));
	post_receive(2);
}

static void move_data(void)
{
	struct flue_sge sge = flue_mr_sge(a.mr, 0, 20);
	struct flue_send_wr write = { .id = 3, .op = FLUE_WR_WRITE, .sg = &sge, .n_sg = 1 },
			    read = write, send = write;
	const struct flue_send_wr *bad = NULL;

	expect(b.rcq, 2, FLUE_WC_RECV, 20);
	expect(a.scq, 1, FLUE_WC_SEND, 0);
	MUST(!memcmp(b.mem, "0123456789", 10) && !strcmp(b.mem + 100, "abcdefghi"));
	/* A list: Write, Read of what it wrote, inline Send. */
	write.flags = FLUE_SIGNALED;
	write.rkey = b.mr->rkey;
	write.remote_addr = IOVA + 1000;
	write.next = &read;
	read = write;
	read.id = 4;
	read.op = FLUE_WR_READ;
	read.next = &send;
	strcpy(a.mem + 500, "inline");
	send.id = 5;
	send.flags = FLUE_SIGNALED | FLUE_INLINE | FLUE_FENCE;
	send.op = FLUE_WR_SEND;
	struct flue_sge back = flue_mr_sge(a.mr, 200, 20), text = { (uintptr_t)a.mem + 500, 7, 0 };
	read.sg = &back;
	send.sg = &text;
	post_receive(6);
	MUST(a.qp->ops->post_send(a.qp, &write, &bad));
	expect(b.rcq, 6, FLUE_WC_RECV, 7);
	MUST(flue_wait(a.scq, 10000));
	struct flue_wc wc[3];
	uint32_t got, n = 0;
	while (n < 3) {
		MUST(flue_poll(a.scq, wc + n, 3 - n, &got));
		n += got;
	}
	MUST(wc[0].id == 3 && wc[1].id == 4 && wc[2].id == 5);
	MUST(wc[0].op == FLUE_WC_WRITE && wc[1].op == FLUE_WC_READ && wc[2].op == FLUE_WC_SEND);
	MUST(!strcmp(b.mem + 1000, a.mem) && !strcmp(a.mem + 200, a.mem) &&
	     !strcmp(b.mem, "inline"));
	send.op = FLUE_WR_FETCH_ADD;
	send.flags = FLUE_SIGNALED;
	MUST(adapter->caps->features & FLUE_FEATURE_ATOMICS ||
	     (!flue_post_send(a.qp, &send) && errno == EOPNOTSUPP));
}

static void change_values(void)
{
	struct {
		struct flue_qp_values v;
		uint64_t guard;
	} out = { .v.size = sizeof(out.v), .guard = GUARD };

	MUST(a.qp->ops->query(a.qp, &out.v,
			      FLUE_QPV_STATE | FLUE_QPV_READS | FLUE_QPV_WORK | FLUE_QPV_QUEUES |
				      FLUE_QPV_ACCESS));
	MUST(out.guard == GUARD && out.v.state == FLUE_QP_RTS && out.v.ird == 3 && out.v.llp_open);
	MUST(out.v.sends == 0 && out.v.sq_depth == 5 && out.v.max_inline == 48);
	MUST(out.v.access == (FLUE_REMOTE_READ | FLUE_REMOTE_WRITE));
	out.v.ird = 6;
	out.v.ord = 1;
	MUST(a.qp->ops->modify(a.qp, &out.v, FLUE_QPV_READS) && a.qp->ird == 6 && a.qp->ord == 1);
	out.v.state = FLUE_QP_INIT;
	MUST(!a.qp->ops->modify(a.qp, &out.v, FLUE_QPV_STATE) && errno == EINVAL);
}

/* ---- the end ---- */

static void close_all(void)
{
	struct {
		struct flue_event ev;
		uint64_t guard;
	} out = { .guard = GUARD };

	MUST(flue_disconnect(a.qp));
	MUST(flue_get_event(adapter, &out.ev, 10000));
	MUST(out.guard == GUARD && out.ev.type == FLUE_EVENT_DISCONNECTED && out.ev.u.qp == b.qp);
	MUST(out.ev.reason == FLUE_CLOSE_GRACEFUL);
	/* The function may still be about to be called when disconnect() has returned. */
	for (int ms = 0; ms < 10000 && !__atomic_load_n(&events, __ATOMIC_SEQ_CST); ms++)
		usleep(1000);
	MUST(__atomic_load_n(&events, __ATOMIC_SEQ_CST) == 1 && chosen >= 4);
	for (int i = 0; i < 2; i++) {
		struct side *s = i ? &b : &a;

		MUST(flue_destroy_qp(s->qp));
		MUST(!s->srq || s->srq->ops->destroy(s->srq));
		MUST(flue_destroy_cq(s->scq) && flue_destroy_cq(s->rcq) && flue_deregister(s->mr));
		free(s->mem);
	}
	MUST(!flue_close(adapter) && errno == EBUSY);
	MUST(listener->ops->destroy(listener) && flue_destroy_pd(pd) && flue_close(adapter));
}

int main(void)
{
	MUST(!strcmp(flue_wc_status_name(FLUE_WC_FLUSHED), "flushed"));
	MUST(!strcmp(flue_qp_state_name(FLUE_QP_SQE), "SQE"));
	MUST(!strcmp(flue_event_name(FLUE_EVENT_LAST_RECEIVE), "last receive"));
	open_adapter();
	make_sides();
	post_early();
	connect_sides();
	move_data();
	change_values();
	close_all();
	puts("a program of version 0.2 works with version");
	puts(flue_version());
	return 0;
}
