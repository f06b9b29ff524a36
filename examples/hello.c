/* SPDX-License-Identifier: MIT */
#include <flue/flue.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(x)                              \
	({                                   \
		__typeof__(x) r_ = (x);      \
		if (!r_)                     \
			perror(#x), exit(1); \
		r_;                          \
	})

enum { RIGHTS = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ };
static char mem[128] = "hello, memory of another"; /* the client's; from 64 on, the server's */

/* Post a request and wait for `n` completions; the Send completes at both ends. */
static void run(struct flue_qp *qp, uint32_t op, struct flue_sge sge, struct flue_mr *mr, int n)
{
	struct flue_send_wr wr = { .op = op, .flags = FLUE_SIGNALED, .sg = &sge, .n_sg = 1 };
	struct flue_wc wc;

	wr.rkey = mr->rkey, wr.remote_addr = mr->remote_start + 64;
	MUST(flue_post_send(qp, &wr));
	for (uint32_t got; n > 0; n -= (int)got)
		MUST(flue_wait(qp->send_cq, -1) && flue_poll(qp->send_cq, &wc, 1, &got) &&
		     wc.status == FLUE_WC_SUCCESS);
}

int main(void)
{
	struct flue_adapter *adapter = MUST(flue_open(NULL)); /* the software RNIC */
	struct flue_pd *pd = MUST(flue_create_pd(adapter));
	struct flue_mr *mr = MUST(flue_register(pd, mem, sizeof(mem), RIGHTS));
	struct flue_cq *cq = MUST(flue_create_cq(adapter, 16));
	struct flue_qp_attr qa = { sizeof(qa), cq, cq, .sq_depth = 4, .rq_depth = 4 };
	struct flue_qp *client = MUST(pd->ops->create_qp(pd, &qa));
	struct flue_qp *server = MUST(pd->ops->create_qp(pd, &qa));

	/* One thread plays both parts, so connect() must not wait for accept(). */
	struct sockaddr_in here = { .sin_family = AF_INET }; /* port 0: the kernel picks one */
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	struct flue_listen_attr la = { sizeof(la), (void *)&here, sizeof(here), .backlog = 1 };
	struct flue_listener *door = MUST(adapter->ops->listen(adapter, &la));
	struct flue_conn_attr ca = { sizeof(ca), .flags = FLUE_CONN_ASYNC };
	ca.remote = (void *)&door->local, ca.remote_len = sizeof(here);
	MUST(client->ops->connect(client, &ca));
	struct flue_conn_request *request = MUST(door->ops->get_request(door, 5000));
	MUST(request->ops->accept(request, server, NULL));

	struct flue_sge inbox = flue_mr_sge(mr, 64, 32);
	MUST(flue_post_recv(server, &(struct flue_recv_wr) { .sg = &inbox, .n_sg = 1 }));
	run(client, FLUE_WR_SEND, flue_mr_sge(mr, 0, 32), mr, 2);
	run(client, FLUE_WR_WRITE, flue_mr_sge(mr, 7, 25), mr, 1);
	run(client, FLUE_WR_READ, flue_mr_sge(mr, 32, 25), mr, 1);
	MUST(flue_disconnect(client) && flue_destroy_qp(client) && flue_destroy_qp(server));
	MUST(flue_deregister(mr) && flue_destroy_cq(cq) && flue_destroy_pd(pd));
	return puts(mem + 32) < 0 || !door->ops->destroy(door) || !flue_close(adapter);
}
