/* SPDX-License-Identifier: MIT */
/* Requests of RDMA sockets with several pieces of memory, and keys that programs keep (CH-16, CH-28). */
#include <unistd.h>

#include "conf/conf.h"

#define PIECES 3

static struct flue_socket *sock[2];

static void expect(unsigned which, uint32_t type, uint64_t id, size_t length)
{
	struct flue_socket *s = sock[which];
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s, &ev, 60000))
		fail_msg("side %u: no event %u: %s", which, type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.error, 0);
	assert_int_equal(ev.id, id);
	if (type != FLUE_SOCKET_SWITCHED)
		assert_int_equal(ev.length, length);
}

static void open_sockets(struct pair *p)
{
	int fd[2];

	conf_streams(fd);
	for (unsigned i = 0; i < 2; i++) {
		struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

		assert_ok(sock[i] = flue_socket_open(i ? p->b.adapter : p->a.adapter, fd[i], NULL));
		r.pieces = PIECES;
		assert_ok(sock[i]->ops->reserve(sock[i], &r));
	}
}

/* With these first receives. */
static void switch_sockets(const struct flue_piece *a, uint32_t n_a, const struct flue_piece *b,
			   uint32_t n_b)
{
	struct flue_switch_attr attr = FLUE_ATTR(struct flue_switch_attr);

	attr.timeout_ms = 60000;
	assert_ok(sock[0]->ops->switch_mode(sock[0], &attr, 1));
	attr.flags = FLUE_SWITCH_RESPONDER;
	assert_ok(sock[1]->ops->switch_mode(sock[1], &attr, 1));
	assert_ok(sock[0]->ops->rdma_recv_list(sock[0], a, n_a, 2));
	assert_ok(sock[1]->ops->rdma_recv_list(sock[1], b, n_b, 2));
	expect(0, FLUE_SOCKET_SWITCHED, 1, 0);
	expect(1, FLUE_SOCKET_SWITCHED, 1, 0);
}

static void drop_sockets(void)
{
	assert_ok(sock[0]->ops->destroy(sock[0]));
	assert_ok(sock[1]->ops->destroy(sock[1]));
}

/* Octets of all pieces, one after the other. */
static void gather(uint8_t *to, const struct flue_piece *list, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		memcpy(to, list[i].data, list[i].length);
		to += list[i].length;
	}
}

static struct flue_mr *own_key(unsigned which, void *at, size_t length, uint32_t access)
{
	struct flue_mr *mr;

	assert_ok(mr = sock[which]->ops->alloc_stag(sock[which]));
	assert_ok(sock[which]->ops->map(sock[which], mr, at, length, access));
	return mr;
}

/* Plain memory before and behind a region of the program, which counts from 0. */
static void first_receive_is_scattered_over_its_pieces(void **state)
{
	struct pair *p = *state;
	uint8_t *at = p->b.mem, *flat = p->b.mem + 65536;
	struct flue_piece list[PIECES] = { { .data = at + 20000, .length = 1000 },
					   { .data = at + 10500, .length = 700 },
					   { .data = at, .length = 2000 } };

	open_sockets(p);
	list[1].mr = own_key(1, at + 10000, 2000, FLUE_LOCAL_WRITE | FLUE_ZERO_BASED);
	memset(at, 0, 30000);
	switch_sockets(NULL, 0, list, PIECES);
	pair_fill(p->a.mem, 3500, 1);
	assert_ok(sock[0]->ops->rdma_send(sock[0], p->a.mem, 3500, 0, 0, 3));
	expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, 3500);
	gather(flat, list, PIECES);
	assert_int_equal(pair_check(flat, 3500, 1), 3500);
	/* Nothing around them was touched. */
	assert_true(!at[19999] && !at[21000] && !at[10499] && !at[11200] && !at[1800]);
	drop_sockets();
}

/* The same buffers and keys for request after request, in all four calls. */
static void keys_of_the_program_serve_again_and_again(void **state)
{
	struct pair *p = *state;
	uint8_t *mine = p->a.mem, *theirs = p->b.mem;
	uint32_t both = FLUE_REMOTE_WRITE | FLUE_LOCAL_WRITE | FLUE_REMOTE_READ;
	struct flue_piece out[2] = { { .data = mine, .length = 3000 },
				     { .data = mine + 5000, .length = 2000 } };
	struct flue_piece back = { .data = mine + 20000, .length = 5000 };
	struct flue_piece in = { .data = theirs + 20000, .length = 5000 };
	struct flue_mr *target, *kept;
	uint32_t key;

	open_sockets(p);
	kept = own_key(0, mine, 40000, FLUE_LOCAL_WRITE);
	key = kept->lkey;
	target = own_key(1, theirs, 10000, both);
	in.mr = own_key(1, theirs + 20000, 10000, FLUE_LOCAL_WRITE);
	out[0].mr = back.mr = kept;
	switch_sockets(NULL, 0, &in, 1);
	for (uint32_t i = 0; i < 40; i++) {
		uint8_t *flat = mine + 50000;

		pair_fill(flat, 5000, i);
		memcpy(out[0].data, flat, 3000);
		memcpy(out[1].data, flat + 3000, 2000); /* plain */
		assert_ok(sock[0]->ops->put_list(sock[0], out, 2, target->remote_start,
						 target->rkey, 0, 10));
		assert_ok(sock[0]->ops->get_list(sock[0], &back, 1, target->remote_start,
						 target->rkey, FLUE_SOCKET_FENCE, 11));
		expect(0, FLUE_SOCKET_PUT, 10, 5000);
		expect(0, FLUE_SOCKET_GOT, 11, 5000);
		assert_int_equal(pair_check(back.data, 5000, i), 5000);
		assert_ok(sock[0]->ops->rdma_send_list(sock[0], out, 2, 0, 0, 12));
		expect(0, FLUE_SOCKET_RDMA_SENT, 12, 5000);
		expect(1, FLUE_SOCKET_RDMA_RECEIVED, i ? 13 : 2, 5000);
		assert_int_equal(pair_check(in.data, 5000, i), 5000);
		assert_ok(sock[1]->ops->rdma_recv_list(sock[1], &in, 1, 13));
	}
	assert_int_equal(kept->lkey, key);
	drop_sockets();
}

/* As many plain pieces as were reserved, in every request of the queue at once. */
static void every_request_can_have_all_its_pieces(void **state)
{
	struct pair *p = *state;
	struct flue_piece out[PIECES], in[PIECES];
	uint8_t *flat = p->b.mem + 900000;

	open_sockets(p);
	for (unsigned i = 0; i < PIECES; i++) {
		out[i] = (struct flue_piece) { p->a.mem + 10000 * i, 1000, NULL };
		in[i] = (struct flue_piece) { p->b.mem + 2000 * i, 1000, NULL };
		pair_fill(out[i].data, 1000, i);
	}
	switch_sockets(NULL, 0, in, PIECES);
	for (unsigned turn = 0; turn < 5; turn++) {
		for (unsigned i = 1; i < 16; i++) {
			for (unsigned k = 0; k < PIECES; k++)
				in[k].data = p->b.mem + 10000 * i + 2000 * k;
			assert_ok(sock[1]->ops->rdma_recv_list(sock[1], in, PIECES, 2));
		}
		for (unsigned i = 0; i < 16; i++)
			assert_ok(sock[0]->ops->rdma_send_list(sock[0], out, PIECES, 0, 0, 3));
		for (unsigned i = 0; i < 16; i++) {
			expect(0, FLUE_SOCKET_RDMA_SENT, 3, 3000);
			expect(1, FLUE_SOCKET_RDMA_RECEIVED, 2, 3000);
			for (unsigned k = 0; k < PIECES; k++) {
				memcpy(flat, p->b.mem + 10000 * i + 2000 * k, 1000);
				assert_int_equal(pair_check(flat, 1000, k), 1000);
			}
		}
		memset(p->b.mem, 0, 200000);
		for (unsigned k = 0; k < PIECES; k++)
			in[k].data = p->b.mem + 2000 * k;
		assert_ok(sock[1]->ops->rdma_recv_list(sock[1], in, PIECES, 2));
	}
	drop_sockets();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		/* CH-16, CH-28 */
		WITH_IDLE_PAIR(first_receive_is_scattered_over_its_pieces),
		WITH_IDLE_PAIR(keys_of_the_program_serve_again_and_again),
		WITH_IDLE_PAIR(every_request_can_have_all_its_pieces),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
