/* SPDX-License-Identifier: MIT */
/* Requests of RDMA sockets with several pieces of memory, and keys that programs keep (CH-16, CH-28). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"

#define PIECES 3

static struct flue_adapter *a;
static struct flue_socket *s;
static int fd[2];
static char data[8192];

static int open_socket(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	fake_reset();
	a = fake_open(NULL, 0);
	fake_streams(fd);
	s = flue_socket_open(a, fd[0], NULL);
	r.pieces = PIECES;
	return !s || !s->ops->reserve(s, &r);
}

static int close_socket(void **state)
{
	bool ours = s->state == FLUE_SOCKET_STREAMING;

	assert_true(s->ops->destroy(s));
	if (ours)
		close(fd[0]);
	close(fd[1]);
	return !flue_close(a) || fake.qps || fake.cqs || fake.mrs || fake.pds;
}

static struct prov_qp *prov(void)
{
	return to_qp(s->qp)->prov;
}

static void expect(uint32_t type, uint64_t id, int error, size_t length)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 5000))
		fail_msg("no event, want %u: %s", type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, error);
	if (type == FLUE_SOCKET_ENDED)
		return;
	assert_int_equal(ev.id, id);
	assert_int_equal(ev.length, length);
}

static void switch_it(void)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	assert_true(s->ops->switch_mode(s, &to, 1));
}

static void go_on(void)
{
	switch_it();
	assert_true(s->ops->rdma_recv(s, data, 100, 2));
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, 0);
}

static struct flue_mr *own_key(void *at, size_t length, uint32_t access)
{
	struct flue_mr *mr = s->ops->alloc_stag(s);

	assert_non_null(mr);
	assert_true(s->ops->map(s, mr, at, length, access));
	return mr;
}

static bool is_at(const struct flue_sge *sge, uint64_t addr, uint32_t length)
{
	return sge->addr == addr && sge->length == length;
}

static void reserve_grants_pieces(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	assert_int_equal(s->pieces, PIECES);
	/* Each piece of a send may need two requests in front. */
	assert_int_equal(prov()->attr.sq_depth, 16 * (1 + 2 * PIECES));
	assert_true(prov()->attr.sq_sge == PIECES && prov()->attr.rq_sge == PIECES);
	assert_int_equal(fake.mrs, 2 * 16 * PIECES);
	r.pieces = 5; /* the adapter has four */
	assert_fails(s->ops->reserve(s, &r), ENOBUFS);
	assert_int_equal(r.reason, FLUE_RESERVE_QUEUE_TOO_LONG);
	assert_true(r.recoverable);
	/* What fails because of its pieces works with less. */
	fake.qp_most = 20;
	r = FLUE_ATTR(struct flue_reserve_attr);
	r.sq_depth = r.rq_depth = 1;
	r.pieces = 4;
	assert_true(s->ops->reserve(s, &r));
	fake.qp_most = 5;
	assert_fails(s->ops->reserve(s, &r), ENOBUFS);
	assert_int_equal(r.reason, FLUE_RESERVE_QUEUE_TOO_LONG);
	fake.qp_most = 0;
	r = FLUE_ATTR(struct flue_reserve_attr);
	assert_true(s->ops->reserve(s, &r));
	assert_true(r.pieces == 1 && s->pieces == 1);
}

static void first_receive_can_be_scattered(void **state)
{
	struct flue_mr *mr = own_key(data + 4000, 1000, FLUE_LOCAL_WRITE | FLUE_ZERO_BASED);
	struct flue_piece list[] = {
		{ .data = data, .length = 100 },
		{ .data = data + 4100, .length = 50, .mr = mr },
		{ .data = NULL, .length = 0 },
		{ .data = data + 200, .length = 30 },
	};
	unsigned modified = fake.modifies;
	const struct fake_wr *wr;

	switch_it();
	assert_true(s->ops->rdma_recv_list(s, list, 4, 2));
	assert_int_equal(s->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	assert_int_equal(fake.adopts, 1);
	wr = &prov()->recvs[0];
	assert_int_equal(wr->n_sg, 3);
	assert_true(is_at(&wr->sg[0], (uintptr_t)data, 100));
	assert_true(is_at(&wr->sg[1], 100, 50)); /* as the region counts */
	assert_true(is_at(&wr->sg[2], (uintptr_t)data + 200, 30));
	assert_int_equal(wr->sg[1].lkey, mr->lkey);
	/* Plain pieces were registered unseen, each with a key of its own. */
	assert_int_equal(fake.modifies, modified + 2);
	assert_ptr_equal(fake.mr.addr, data + 200);
	assert_int_equal(fake.mr.length, 30);
	assert_int_not_equal(wr->sg[0].lkey, wr->sg[2].lkey);
	assert_true(wr->sg[0].lkey && wr->sg[2].lkey);
	assert_true(wr->sg[0].lkey != mr->lkey && wr->sg[2].lkey != mr->lkey);
	fake_finish_recv(s->qp, FLUE_WC_SUCCESS, 177);
	fake_news(s->qp, FLUE_EVENT_CONNECTED, 0, 0);
	expect(FLUE_SOCKET_SWITCHED, 1, 0, 0);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, 0, 177);
}

static void key_of_the_program_is_used_as_it_is(void **state)
{
	struct flue_mr *mr = own_key(data, sizeof(data), FLUE_LOCAL_WRITE);
	struct flue_piece one = { .data = data + 10, .length = 1000, .mr = mr };
	uint32_t key = mr->lkey;
	unsigned modified;

	go_on();
	modified = fake.modifies;
	for (unsigned i = 0; i < 40; i++) {
		uint32_t n = prov()->n_sends;

		assert_true(s->ops->rdma_send_list(s, &one, 1, 0, 0, 10));
		assert_true(s->ops->put_list(s, &one, 1, 5, 6, 0, 11));
		assert_true(s->ops->get_list(s, &one, 1, 5, 6, 0, 12));
		assert_int_equal(prov()->n_sends, n + 3); /* nothing in front */
		for (unsigned k = 0; k < 3; k++) {
			const struct fake_wr *wr = &prov()->sends[(n + k) % FAKE_LOG];

			assert_true(is_at(&wr->sg[0], (uintptr_t)data + 10, 1000));
			assert_int_equal(wr->sg[0].lkey, key);
			fake_finish_send(s->qp, FLUE_WC_SUCCESS);
		}
		expect(FLUE_SOCKET_RDMA_SENT, 10, 0, 1000);
		expect(FLUE_SOCKET_PUT, 11, 0, 1000);
		expect(FLUE_SOCKET_GOT, 12, 0, 1000);
	}
	assert_true(s->ops->rdma_recv_list(s, &one, 1, 13));
	assert_int_equal(prov()->recvs[1].sg[0].lkey, key);
	assert_int_equal(fake.modifies, modified);
	assert_int_equal(mr->lkey, key);
	/* The right to write is needed where something is written. */
	assert_true(s->ops->map(s, mr, data, sizeof(data), 0));
	assert_fails(s->ops->rdma_recv_list(s, &one, 1, 14), EACCES);
	assert_fails(s->ops->get_list(s, &one, 1, 5, 6, 0, 14), EACCES);
	assert_true(s->ops->rdma_send_list(s, &one, 1, 0, 0, 15));
}

/* Requests i.. of the queue pair are these, in front of `main`, for pieces with these keys. */
static void check_front(uint32_t at, const char *front, uint32_t main)
{
	for (; *front; front++, at++) {
		const struct fake_wr *wr = &prov()->sends[at];

		assert_int_equal(wr->op, *front == 'i' ? FLUE_WR_LOCAL_INV : FLUE_WR_FAST_REG);
		assert_int_equal(wr->flags & FLUE_SIGNALED, 0);
	}
	assert_int_equal(prov()->sends[at].op, main);
	assert_int_equal(prov()->n_sends, at + 1);
}

static void plain_pieces_have_a_key_each(void **state)
{
	struct flue_piece list[] = { { .data = data, .length = 1000 },
				     { .data = data + 2000, .length = 500 } };
	const struct fake_wr *sent = prov()->sends;

	go_on();
	fake.rc.post_send = -ENOTCONN;
	for (unsigned i = 0; i < 40; i++)
		assert_fails(s->ops->put_list(s, list, 2, 5, 6, 0, 3), ENOTCONN);
	fake.rc.post_send = 0;
	assert_true(s->ops->put_list(s, list, 2, 5, 6, 0, 3));
	check_front(0, "rr", FLUE_WR_WRITE); /* no invalidation of what was never made */
	assert_int_equal(sent[2].n_sg, 2);
	assert_true(is_at(&sent[2].sg[0], (uintptr_t)data, 1000));
	assert_true(is_at(&sent[2].sg[1], (uintptr_t)data + 2000, 500));
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(sent[2].sg[i].lkey,
				 (sent[i].rkey & ~(FAKE_RKEY | 0xff)) | sent[i].lkey);
	assert_int_not_equal(sent[2].sg[0].lkey, sent[2].sg[1].lkey);
	fake_finish_send(s->qp, FLUE_WC_SUCCESS);
	expect(FLUE_SOCKET_PUT, 3, 0, 1500);
	/* The same keys come first again. */
	assert_true(s->ops->rdma_send_list(s, list, 2, 0, 0, 4));
	check_front(3, "irir", FLUE_WR_SEND);
	fake_finish_send(s->qp, FLUE_WC_SUCCESS);
	expect(FLUE_SOCKET_RDMA_SENT, 4, 0, 1500);
	/* Small ones need none, wherever they are. */
	list[0].length = list[1].length = 10;
	assert_true(s->ops->rdma_send_list(s, list, 2, 0, 0, 5));
	check_front(8, "", FLUE_WR_SEND);
	assert_int_equal(sent[8].flags, FLUE_SIGNALED | FLUE_INLINE);
	assert_true(is_at(&sent[8].sg[1], (uintptr_t)data + 2000, 10));
}

static void impossible_lists_are_refused(void **state)
{
	struct flue_mr *mr = own_key(data, 100, FLUE_LOCAL_WRITE), foreign;
	struct flue_piece list[] = {
		{ data, 10, NULL }, { data, 10, NULL }, { data, 10, NULL }, { data, 10, NULL }
	};
	struct flue_pd *pd = flue_create_pd(a);
	uint32_t n_recvs, n_sends;

	go_on();
	n_recvs = prov()->n_recvs;
	n_sends = prov()->n_sends;
	assert_fails(s->ops->rdma_recv_list(s, list, 4, 9), EINVAL);
	assert_fails(s->ops->rdma_send_list(s, list, 4, 0, 0, 9), EINVAL);
	assert_fails(s->ops->get_list(s, list, 2, 5, 6, 0, 9), EINVAL); /* Reads have one piece */
	assert_fails(s->ops->rdma_recv_list(s, NULL, 1, 9), EINVAL);
	list[0].length = list[1].length = UINT32_MAX;
	assert_fails(s->ops->put_list(s, list, 2, 5, 6, 0, 9), EINVAL);
	list[0] = (struct flue_piece) { data + 50, 51, mr };
	assert_fails(s->ops->rdma_recv_list(s, list, 1, 9), EINVAL);
	list[0] = (struct flue_piece) { data + 101, 1, mr };
	assert_fails(s->ops->rdma_recv_list(s, list, 1, 9), EINVAL);
	mr = own_key(data + 50, 100, FLUE_LOCAL_WRITE);
	list[0] = (struct flue_piece) { data + 49, 2, mr };
	assert_fails(s->ops->rdma_send_list(s, list, 1, 0, 0, 9), EINVAL);
	foreign = *mr;
	foreign.pd = pd;
	list[0] = (struct flue_piece) { data + 50, 2, &foreign };
	assert_fails(s->ops->put_list(s, list, 1, 5, 6, 0, 9), EINVAL);
	assert_true(prov()->n_recvs == n_recvs && prov()->n_sends == n_sends);
	/* Nothing was kept: all receives that were reserved can be posted. */
	list[0] = (struct flue_piece) { data, 10, NULL };
	list[1].length = 10;
	for (unsigned i = 1; i < 16; i++)
		assert_true(s->ops->rdma_recv_list(s, list, 3, i));
	assert_fails(s->ops->rdma_recv_list(s, list, 3, 9), ENOMEM);
	assert_true(flue_destroy_pd(pd));
}

static void end_it(void)
{
	fake.on_modify = NULL;
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_RESET, ECONNRESET);
	fake_flush(prov());
}

/* The end comes while the memory of a receive is registered: the call says so, and no event does. */
static void receive_that_meets_the_end_is_refused(void **state)
{
	struct flue_piece list[] = { { data, 10, NULL }, { data + 10, 10, NULL } };
	struct flue_socket_event ev;

	go_on();
	fake.on_modify = end_it;
	assert_fails(s->ops->rdma_recv_list(s, list, 2, 3), ENOTCONN);
	expect(FLUE_SOCKET_RDMA_RECEIVED, 2, ECANCELED, 0);
	expect(FLUE_SOCKET_ENDED, 0, 0, 0);
	assert_fails(flue_socket_get_event(s, &ev, 0), EAGAIN);
}

static void child_of_fork_posts_no_list(void **state)
{
	struct flue_piece one = { data, 10, NULL };
	int status = -1;
	pid_t pid;

	go_on();
	pid = fork();
	if (pid == 0) {
		unsigned wrong = 0;

		wrong += s->ops->rdma_recv_list(s, &one, 1, 3) || errno != ENODEV;
		wrong += s->ops->rdma_send_list(s, &one, 1, 0, 0, 3) || errno != ENODEV;
		wrong += s->ops->put_list(s, &one, 1, 5, 6, 0, 3) || errno != ENODEV;
		wrong += s->ops->get_list(s, &one, 1, 5, 6, 0, 3) || errno != ENODEV;
		_exit((int)wrong);
	}
	assert_true(pid > 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

#define WITH_SOCKET(test) cmocka_unit_test_setup_teardown(test, open_socket, close_socket)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* CH-16 */
		WITH_SOCKET(reserve_grants_pieces), /* CH-7 */
		WITH_SOCKET(first_receive_can_be_scattered),
		WITH_SOCKET(key_of_the_program_is_used_as_it_is), /* CH-28 */
		WITH_SOCKET(plain_pieces_have_a_key_each),        /* CH-28, CH-6 */
		WITH_SOCKET(impossible_lists_are_refused),
		WITH_SOCKET(receive_that_meets_the_end_is_refused),
		WITH_SOCKET(child_of_fork_posts_no_list),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
