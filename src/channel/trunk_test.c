/* SPDX-License-Identifier: MIT */
/* Trunks: circuits, octets, messages, credit, ends. */
#include "channel/trunk_test.h"

static int set_up(void **st)
{
	attach_pair(&small_shape, false);
	return 0;
}

static int tear_down(void **st)
{
	close_pair();
	return 0;
}

/* --- circuits */

static void circuit_is_opened_and_accepted(void **st)
{
	int user = 0;
	char text[8];
	int c = trunk_open(side[0], "abc", 3, &user);
	struct trunk_event ev;

	assert_int_equal(c % 2, 0);
	assert_ptr_equal(trunk_user(side[0], (uint32_t)c), &user);
	/* Nothing before it is answered. */
	assert_int_equal(send_text(side[0], (uint32_t)c, "x", 0), -ENOTCONN);
	assert_int_equal(trunk_poll(side[0], &ev, 1), 0);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_int_equal(ev.circuit, c);
	assert_int_equal(ev.bits, TRUNK_OPENED);
	assert_null(ev.user);
	assert_int_equal(send_text(side[1], (uint32_t)c, "x", 0), -ENOTCONN);
	assert_int_equal(trunk_greeting(side[1], (uint32_t)c, text, 2),
			 3); /* as it is, not as asked for */
	assert_int_equal(trunk_greeting(side[1], (uint32_t)c, text, 8), -ENOENT);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, NULL, 0, &ev), 0);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, NULL, 0, &ev), -EINVAL);
	assert_int_equal(trunk_poll(side[0], &ev, 1), 1);
	assert_int_equal(ev.bits, TRUNK_ACCEPTED);
	assert_ptr_equal(ev.user, &user);
	assert_int_equal(trunk_greeting(side[0], (uint32_t)c, text, 8), 0);
	assert_int_equal(send_text(side[0], (uint32_t)c, "x", 0), 1);
}

static void circuit_is_refused_with_a_reason(void **st)
{
	int c = trunk_open(side[1], NULL, 0, NULL);
	struct trunk_event ev;
	char text[8] = { 0 };

	assert_int_equal(c % 2, 1);
	assert_int_equal(poll_one(side[0], (uint32_t)c), TRUNK_OPENED);
	assert_int_equal(trunk_refuse(side[0], (uint32_t)c, 42, "no", 2), 0);
	assert_int_equal(trunk_refuse(side[0], (uint32_t)c, 42, "no", 2), -EINVAL);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_int_equal(ev.bits, TRUNK_REFUSED);
	assert_int_equal(ev.code, 42);
	assert_int_equal(trunk_greeting(side[1], (uint32_t)c, text, 8), 2);
	assert_string_equal(text, "no");
	assert_int_equal(recv_some(side[1], (uint32_t)c, text, 8, 0), -ECONNREFUSED);
	assert_int_equal(send_text(side[1], (uint32_t)c, "x", 0), -EPIPE);
	trunk_drop(side[1], (uint32_t)c, 0);
	assert_int_equal(poll_one(side[0], (uint32_t)c), 0);
}

static void numbers_are_used_again_when_both_have_left(void **st)
{
	uint32_t c[2];

	for (int round = 0; round < 50; round++) {
		c[0] = connect_pair(0);
		c[1] = connect_pair(0);
		assert_int_not_equal(c[0], c[1]);
		assert_int_equal(trunk_open(side[0], NULL, 0, NULL), -ENOSPC);
		for (int i = 0; i < 2; i++) {
			trunk_drop(side[round % 2], c[i], 0);
			if (i == 0)
				assert_int_equal(trunk_open(side[0], NULL, 0, NULL), -ENOSPC);
			assert_int_equal(poll_one(side[!(round % 2)], c[i]), TRUNK_ENDED);
			trunk_drop(side[!(round % 2)], c[i], 0);
		}
	}
}

static void opening_may_be_withdrawn(void **st)
{
	int c = trunk_open(side[0], "abc", 3, NULL);

	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_OPENED);
	trunk_drop(side[0], (uint32_t)c, 0);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, NULL, 0, NULL), -ECONNRESET);
	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_ENDED);
	trunk_drop(side[1], (uint32_t)c, 0);
	/* And crosses with the answer. */
	c = trunk_open(side[0], "abc", 3, NULL);
	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_OPENED);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, "you", 3, NULL), 0);
	assert_int_equal(send_text(side[1], (uint32_t)c, "late", 0), 4);
	trunk_drop(side[0], (uint32_t)c, 0);
	assert_int_equal(poll_one(side[0], (uint32_t)c), 0);
	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_ENDED);
	trunk_drop(side[1], (uint32_t)c, 0);
	/* Or is refused at the same time. */
	c = trunk_open(side[0], "abc", 3, NULL);
	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_OPENED);
	assert_int_equal(trunk_refuse(side[1], (uint32_t)c, 1, "no", 2), 0);
	trunk_drop(side[0], (uint32_t)c, 0);
	assert_int_equal(poll_one(side[0], (uint32_t)c), 0);
	assert_int_equal(poll_one(side[1], (uint32_t)c), 0);
	for (int i = 0; i < 4; i++)
		connect_pair(i % 2);
	assert_int_equal(trunk_status(side[0]), 0);
}

static void greeting_is_one_block_at_most(void **st)
{
	char much[65] = { 0 };
	int c;

	assert_int_equal(trunk_open(side[0], much, 65, NULL), -EMSGSIZE);
	c = trunk_open(side[0], much, 64, NULL);
	assert_true(c >= 0);
	assert_int_equal(poll_one(side[1], (uint32_t)c), TRUNK_OPENED);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, much, 65, NULL), -EMSGSIZE);
	assert_int_equal(trunk_accept(side[1], (uint32_t)c, much, 64, NULL), 0);
}

static void nothing_is_done_on_circuits_that_are_not_there(void **st)
{
	static const uint32_t none[] = { 0, 3, 4, 65536, UINT32_MAX };
	struct trunk_message m;
	struct trunk_block b;
	char octet;

	for (int i = 0; i < 5; i++) {
		assert_int_equal(send_text(side[0], none[i], "x", 0), -ENOTCONN);
		assert_int_equal(recv_some(side[0], none[i], &octet, 1, 0), -ENOTCONN);
		assert_int_equal(trunk_next(side[0], none[i], &m), -ENOTCONN);
		assert_int_equal(trunk_take(side[0], none[i], &b), -ENOTCONN);
		assert_int_equal(trunk_accept(side[0], none[i], NULL, 0, NULL), -EINVAL);
		assert_int_equal(trunk_refuse(side[0], none[i], 0, NULL, 0), -EINVAL);
		assert_int_equal(trunk_shut(side[0], none[i]), -ENOTCONN);
		assert_int_equal(trunk_greeting(side[0], none[i], &octet, 1), -ENOENT);
		assert_int_equal(trunk_room(side[0], none[i]), 0);
		trunk_set_limit(side[0], none[i], 1);
		trunk_set_user(side[0], none[i], &b);
		trunk_drop(side[0], none[i], 0);
		trunk_give(side[0], none[i]);
	}
	assert_int_equal(trunk_status(side[1]), 0);
}

/* --- octets */

static void octets_come_in_order_over_the_ends_of_messages(void **st)
{
	uint32_t c = connect_pair(0);
	char text[32] = { 0 };

	assert_int_equal(recv_some(side[1], c, text, 4, 0), -EAGAIN);
	assert_int_equal(send_text(side[0], c, "abc", 0), 3);
	assert_int_equal(send_text(side[0], c, "", 0), 0);
	assert_int_equal(send_text(side[0], c, "defg", TRUNK_MORE), 4);
	assert_int_equal(poll_one(side[1], c), TRUNK_READABLE);
	assert_int_equal(recv_some(side[1], c, text, 2, 0), 2);
	assert_int_equal(recv_some(side[1], c, text + 2, 3, TRUNK_PEEK), 3);
	assert_int_equal(recv_some(side[1], c, text + 2, 3, 0), 3);
	assert_int_equal(recv_some(side[1], c, text + 5, 20, 0), 2);
	assert_string_equal(text, "abcdefg");
	assert_int_equal(recv_some(side[1], c, text, 0, 0), 0);
	assert_int_equal(recv_some(side[1], c, text, 1, 0), -EAGAIN);
}

static void octets_are_gathered_and_scattered(void **st)
{
	uint32_t c = connect_pair(1);
	char a[50], b[70], in[200] = { 0 };
	struct iovec out[4] = { { a, 50 }, { NULL, 0 }, { b, 70 }, { NULL, 0 } };
	struct iovec to[4] = { { in, 1 }, { in + 1, 0 }, { in + 1, 100 }, { in + 101, 50 } };

	for (int i = 0; i < 120; i++)
		*(i < 50 ? a + i : b + i - 50) = (char)i;
	assert_int_equal(trunk_send(side[1], c, out, 4, 0, 0), 120);
	assert_int_equal(trunk_recv(side[0], c, to, 4, 0, NULL), 120);
	for (int i = 0; i < 120; i++)
		assert_int_equal(in[i], i);
	out[0].iov_len = out[2].iov_len = SIZE_MAX / 2;
	assert_int_equal(trunk_send(side[1], c, out, 4, 0, 0), -EINVAL);
}

/* --- messages */

static void message_comes_as_it_was_sent(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_message m;
	char text[128] = { 0 }, much[100];
	struct iovec iov = { text, sizeof(text) }, tight = { text, 99 };
	struct iovec out = { much, sizeof(much) };

	memset(much, 'm', sizeof(much));
	assert_int_equal(trunk_next(side[1], c, &m), -EAGAIN);
	assert_int_equal(trunk_send(side[0], c, &out, 1, 7, TRUNK_WHOLE), 100);
	assert_int_equal(trunk_next(side[1], c, &m), 1);
	assert_int_equal(m.size, 100);
	assert_int_equal(m.kind, 7);
	assert_true(m.end);
	assert_int_equal(trunk_recv(side[1], c, &tight, 1, TRUNK_MESSAGE, &m), -EMSGSIZE);
	assert_int_equal(m.size, 100);
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE | TRUNK_PEEK, &m), 100);
	assert_int_equal(send_text(side[0], c, "", 0), 0);
	assert_int_equal(send_text(side[0], c, "next", 0), 4);
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), 100);
	assert_true(m.end && m.kind == 7 && memcmp(text, much, 100) == 0);
	/* One of no octets is a message too. */
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), 0);
	assert_true(m.end && m.kind == 'k');
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), 4);
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), -EAGAIN);
}

static void message_in_parts_is_not_read_before_its_end(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_message m;
	char text[16] = { 0 };

	assert_int_equal(send_text(side[0], c, "one ", TRUNK_MORE), 4);
	assert_int_equal(send_text(side[0], c, "", TRUNK_MORE), 0);
	assert_int_equal(recv_some(side[1], c, text, 16, TRUNK_MESSAGE), -EAGAIN);
	assert_int_equal(trunk_next(side[1], c, &m), 1);
	assert_true(m.size == 4 && !m.end);
	assert_int_equal(send_text(side[0], c, "two", 0), 3);
	assert_int_equal(recv_some(side[1], c, text, 16, TRUNK_MESSAGE), 7);
	assert_string_equal(text, "one two");
}

/* The peer says so; nobody touches that much memory. */
static void message_of_more_than_four_gibioctets_is_that_long(void **st)
{
	const struct trunk_shape vast = { 8192, TRUNK_BLOCK_MAX, 2, 1 };
	enum { PARTS = 4097 };
	static char in[1 << 20];
	struct trunk_message m;
	struct iovec iov = { in, sizeof(in) };
	struct trunk *a;
	uint32_t c;

	close_pair();
	attach_pair(&vast, false);
	c = connect_pair(0);
	a = side[0];
	for (uint32_t i = 0; i < PARTS; i++)
		atomic_store(&a->out_ring[(a->tail + i) & (ring_size(a) - 1)],
			     entry_word((struct trunk_entry) { c, i, TRUNK_BLOCK_MAX, 'k',
							       i + 1 < PARTS ? ENTRY_PART
									     : ENTRY_LAST }));
	atomic_store(&a->own->tail, a->tail + PARTS);
	assert_int_equal(trunk_next(side[1], c, &m), 1);
	assert_true(m.end && m.size == (size_t)PARTS * TRUNK_BLOCK_MAX);
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), -EMSGSIZE);
}

static void block_is_taken_without_copying(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_block a, b, none;
	char octet;

	assert_int_equal(trunk_take(side[1], c, &a), -EAGAIN);
	assert_int_equal(send_text(side[0], c, "first", 0), 5);
	assert_int_equal(send_text(side[0], c, "second", 0), 6);
	assert_int_equal(trunk_take(side[1], c, &a), 1);
	assert_true(a.size == 5 && a.end && a.kind == 'k' && memcmp(a.data, "first", 5) == 0);
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_take(side[1], c, &b), 1);
	assert_true(b.size == 5 && memcmp(b.data, "econd", 5) == 0);
	memset(a.data, 'x', 64); /* the caller's */
	/* They are the caller's also when the circuit is not any more. */
	trunk_drop(side[1], c, 0);
	assert_int_equal(side[0]->circuit[c].out, 2);
	trunk_give(side[1], a.index);
	trunk_give(side[1], a.index); /* once is enough */
	trunk_give(side[1], b.index);
	assert_int_equal(poll_one(side[0], c), TRUNK_ENDED);
	assert_int_equal(side[0]->circuit[c].out, 0);
	assert_int_equal(trunk_status(side[0]), 0);
	assert_int_equal(trunk_take(side[1], c, &none), -ENOTCONN);
}

static void message_is_made_in_place(void **st)
{
	uint32_t c = connect_pair(0), d = connect_pair(0);
	struct trunk_block a, b;
	struct trunk_message m;
	char text[8] = { 0 };
	struct iovec iov = { text, sizeof(text) };

	assert_int_equal(trunk_claim(side[0], c, &a), 1);
	assert_int_equal(a.size, 64);
	assert_int_equal(trunk_out(side[0], c), 1);
	memcpy(a.data, "place", 5);
	assert_int_equal(trunk_post(side[0], d, a.index, 5, 1), -EINVAL); /* of another circuit */
	assert_int_equal(trunk_post(side[0], c, a.index, 5, 9), 0);
	assert_int_equal(trunk_post(side[0], c, a.index, 5, 9), -EINVAL);
	assert_int_equal(trunk_recv(side[1], c, &iov, 1, TRUNK_MESSAGE, &m), 5);
	assert_true(m.kind == 9 && strcmp(text, "place") == 0);
	assert_int_equal(trunk_out(side[0], c), 0);
	/* Claimed blocks are credit, and come back. */
	for (int i = 0; i < 6; i++)
		assert_int_equal(trunk_claim(side[0], c, i ? &b : &a), 1);
	assert_int_equal(trunk_claim(side[0], c, &b), -EAGAIN);
	trunk_unclaim(side[0], a.index);
	trunk_unclaim(side[0], a.index);
	assert_int_equal(trunk_post(side[0], c, b.index, 65, 0), -EMSGSIZE);
	assert_int_equal(trunk_out(side[0], c), 4);
	assert_int_equal(trunk_claim(side[0], c, &a), 1);
	/* Also after the circuit is gone. */
	trunk_drop(side[0], c, 0);
	assert_int_equal(trunk_post(side[0], c, a.index, 1, 0), -ENOTCONN);
	assert_int_equal(trunk_out(side[0], c), 4);
	assert_int_equal(trunk_claim(side[0], c, &a), -ENOTCONN);
	assert_int_equal(trunk_claim(side[0], 77, &a), -ENOTCONN);
	assert_int_equal(trunk_out(side[0], 77), 0);
}

/* The peer cannot give back what the client is just filling. */
static void claimed_block_cannot_come_back(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_block a;

	assert_int_equal(trunk_claim(side[0], c, &a), 1);
	atomic_store(&side[1]->give_ring[side[1]->given & 15], a.index);
	atomic_store(&side[1]->own->given, side[1]->given + 1);
	assert_int_equal(trunk_out(side[0], c), 1);
	assert_int_equal(trunk_status(side[0]), -EPROTO);
	assert_int_equal(trunk_post(side[0], c, a.index, 1, 0), -EPIPE);
}

/* --- credit */

/* 16 blocks, 4 circuits with 2 of their own: 8 are surplus. */
static void stalled_circuit_stops_no_other(void **st)
{
	uint32_t c[4] = { connect_pair(0), connect_pair(1), connect_pair(0), connect_pair(1) };
	uint32_t sent[4] = { 0 };
	struct trunk_event ev[4];
	char octet;

	/* Three take what they can get, and nobody reads. */
	for (int i = 0; i < 3; i++) {
		while (send_text(side[0], c[i], "x", 0) == 1)
			sent[i]++;
		assert_int_equal(send_text(side[0], c[i], "x", 0), -EAGAIN);
		assert_int_equal(trunk_room(side[0], c[i]), 0);
	}
	assert_int_equal(sent[0], 2 + 4); /* half of the surplus */
	assert_int_equal(sent[1], 2 + 2);
	assert_int_equal(sent[2], 2 + 1);
	/* The last one goes on for ever. */
	for (int i = 0; i < 1000; i++) {
		assert_int_equal(send_text(side[0], c[3], "y", 0), 1);
		assert_int_equal(send_text(side[0], c[3], "y", 0), 1);
		assert_int_equal(recv_some(side[1], c[3], &octet, 1, 0), 1);
		assert_int_equal(recv_some(side[1], c[3], &octet, 1, 0), 1);
	}
	/* And those go on when they are read. */
	for (int i = 0; i < 5; i++)
		assert_int_equal(recv_some(side[1], c[0], &octet, 1, 0), 1);
	/* All three: what the first one gave back beyond its own is anybody's. */
	assert_int_equal(trunk_poll(side[0], ev, 4), 3);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ev[i].circuit, c[i]);
		assert_int_equal(ev[i].bits, TRUNK_WRITABLE);
	}
	assert_int_equal(send_text(side[0], c[0], "x", 0), 1);
}

static void whole_message_waits_for_all_its_blocks(void **st)
{
	uint32_t c = connect_pair(0);
	char much[64 * 6 + 1], in[64];
	struct iovec iov = { much, 64 * 3 };

	memset(much, 'z', sizeof(much));
	assert_int_equal(trunk_room(side[0], c), 6);
	assert_int_equal(trunk_send(side[0], c, &iov, 1, 0, TRUNK_WHOLE), 64 * 3);
	iov.iov_len = 64 * 4;
	assert_int_equal(trunk_send(side[0], c, &iov, 1, 0, TRUNK_WHOLE), -EAGAIN);
	assert_int_equal(side[0]->circuit[c].out, 3);
	assert_int_equal(recv_some(side[1], c, in, 64, 0), 64);
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
	assert_int_equal(trunk_send(side[0], c, &iov, 1, 0, TRUNK_WHOLE), 64 * 4);
	/* What can never be there at once is refused. */
	iov.iov_len = sizeof(much);
	assert_int_equal(trunk_send(side[0], c, &iov, 1, 0, TRUNK_WHOLE), -EMSGSIZE);
	/* In parts anything goes. */
	while (recv_some(side[1], c, in, 64, 0) > 0)
		;
	assert_int_equal(trunk_send(side[0], c, &iov, 1, 0, 0), 64 * 6);
	assert_int_equal(recv_some(side[1], c, in, 64, TRUNK_MESSAGE), -EAGAIN);
}

/* Others have all of the surplus. */
static void use_up_surplus(const uint32_t *c, int n)
{
	for (int i = 0; i < n; i++)
		while (send_text(side[0], c[i], "x", 0) == 1)
			;
}

static void read_all(uint32_t c)
{
	char in[64];

	while (recv_some(side[1], c, in, sizeof(in), 0) > 0)
		;
}

/* It has nothing of its own under way, so nothing of its own comes back. */
static void whole_message_waits_for_the_surplus_of_others(void **st)
{
	uint32_t c[4] = { connect_pair(0), connect_pair(1), connect_pair(0), connect_pair(1) };
	char much[64 * 4] = { 0 };
	struct iovec iov = { much, sizeof(much) };
	struct trunk_event ev[4];

	use_up_surplus(c, 3);
	assert_int_equal(trunk_send(side[0], c[3], &iov, 1, 0, TRUNK_WHOLE), -EAGAIN);
	assert_int_equal(trunk_out(side[0], c[3]), 0);
	/* One that is over gives it up. */
	trunk_drop(side[0], c[0], 0);
	while (trunk_poll(side[1], ev, 4) > 0)
		;
	trunk_drop(side[1], c[0], 0);
	assert_int_equal(trunk_out(side[0], c[0]), 0); /* takes it back, and tells nobody */
	assert_false(trunk_arm(side[0]));              /* but nobody sleeps over it */
	assert_int_equal(trunk_wait(side[0], 60000), 0);
	assert_int_equal(trunk_poll(side[0], ev, 4), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ev[i].bits, TRUNK_WRITABLE);
	assert_int_equal(ev[2].circuit, c[3]); /* who came last is told last */
	assert_int_equal(trunk_send(side[0], c[3], &iov, 1, 0, TRUNK_WHOLE), 64 * 4);
	assert_true(trunk_arm(side[0]));
}

/* A block that is given up here is surplus as well. */
static void unclaimed_block_feeds_others(void **st)
{
	uint32_t c[4] = { connect_pair(0), connect_pair(1), connect_pair(0), connect_pair(1) };
	struct trunk_block b[6];
	char much[64 * 4] = { 0 };
	struct iovec iov = { much, sizeof(much) };

	for (int i = 0; i < 6; i++)
		assert_int_equal(trunk_claim(side[0], c[0], &b[i]), 1);
	/* Two blocks and half of the four that are left: then more is needed than there is. */
	assert_int_equal(trunk_send(side[0], c[3], &iov, 1, 0, TRUNK_WHOLE), 64 * 4);
	iov.iov_len = 64 * 3;
	assert_int_equal(trunk_send(side[0], c[2], &iov, 1, 0, TRUNK_WHOLE), 64 * 3);
	assert_int_equal(trunk_send(side[0], c[1], &iov, 1, 0, TRUNK_WHOLE), 64 * 3);
	assert_int_equal(trunk_room(side[0], c[1]), 0);
	assert_int_equal(poll_one(side[0], c[1]), 0);
	trunk_unclaim(side[0], b[0].index);
	trunk_unclaim(side[0], b[1].index);
	assert_int_equal(poll_one(side[0], c[1]), TRUNK_WRITABLE);
	assert_int_equal(trunk_room(side[0], c[1]), 1);
}

/* More are starved than are looked at in one call; each is told in its turn, and none twice. */
static void thousands_that_are_starved_are_fed_in_turn(void **st)
{
	enum { MANY = 1000 };
	const struct trunk_shape wide = { 2048, 64, 2 * MANY, 1 };
	static uint32_t c[MANY];
	static bool told[MANY];
	char two[65] = { 0 };
	struct iovec iov = { two, sizeof(two) };
	struct trunk_event ev[128]; /* more than are told at a time: nothing else keeps us awake */
	int n, sum = 0;

	close_pair();
	attach_pair(&wide, false);
	for (int i = 0; i < MANY; i++)
		c[i] = connect_pair(0);
	use_up_surplus(c, 10);
	for (int i = 10; i < MANY; i++)
		assert_int_equal(trunk_send(side[0], c[i], &iov, 1, 0, TRUNK_WHOLE), -EAGAIN);
	read_all(c[0]);
	/* They do nothing with it, and still all learn. */
	while (!trunk_arm(side[0])) {
		n = trunk_poll(side[0], ev, 128);
		for (int i = 0; i < n; i++) {
			uint32_t k = ev[i].circuit / 2;

			assert_int_equal(ev[i].bits, TRUNK_WRITABLE);
			assert_false(told[k]);
			told[k] = true;
			sum += k >= 10;
		}
	}
	assert_int_equal(sum, MANY - 10);
}

static void limit_that_is_raised_is_told(void **st)
{
	uint32_t c = connect_pair(0);

	trunk_set_limit(side[0], c, 1);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_int_equal(send_text(side[0], c, "x", 0), -EAGAIN);
	trunk_set_limit(side[0], c, 1);
	assert_int_equal(poll_one(side[0], c), 0);
	trunk_set_limit(side[0], c, 2);
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
}

/* The peer holds what the number's last circuit had sent, and that was all it could have. */
static void acceptance_waits_for_credit(void **st)
{
	uint32_t c = connect_pair(0), sent = 0, other = connect_pair(0);
	struct trunk_block b[6];
	char octet;

	while (send_text(side[1], c, "x", 0) == 1)
		sent++;
	assert_int_equal(sent, 6);
	for (uint32_t i = 0; i < sent; i++)
		assert_int_equal(trunk_take(side[0], c, &b[i]), 1);
	trunk_drop(side[0], c, 0);
	assert_int_equal(poll_one(side[1], c), TRUNK_ENDED);
	trunk_drop(side[1], c, 0);
	assert_int_equal(poll_one(side[0], c), 0);
	assert_int_equal(trunk_open(side[0], NULL, 0, NULL), c);
	assert_int_not_equal(other, c);
	assert_int_equal(poll_one(side[1], c), TRUNK_OPENED);
	assert_int_equal(trunk_accept(side[1], c, "you", 3, NULL), -EAGAIN);
	assert_int_equal(poll_one(side[1], c), 0);
	assert_int_equal(trunk_wait_for(side[1], c, TRUNK_WRITABLE, 0), -ETIMEDOUT);
	for (uint32_t i = 0; i < sent; i++)
		trunk_give(side[0], b[i].index);
	assert_int_equal(trunk_wait_for(side[1], c, TRUNK_WRITABLE, 60000), 0);
	assert_int_equal(poll_one(side[1], c), TRUNK_WRITABLE);
	assert_int_equal(trunk_accept(side[1], c, "you", 3, NULL), 0);
	assert_int_equal(poll_one(side[0], c), TRUNK_ACCEPTED);
	assert_int_equal(send_text(side[1], c, "x", 0), 1);
	assert_int_equal(recv_some(side[0], c, &octet, 1, 0), 1);
}

static void limit_is_kept(void **st)
{
	uint32_t c = connect_pair(0);
	char octet;

	trunk_set_limit(side[0], c, 1);
	assert_int_equal(trunk_room(side[0], c), 1);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_int_equal(send_text(side[0], c, "x", 0), -EAGAIN);
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
}

/* --- ends */

static void half_close_leaves_the_other_way_open(void **st)
{
	uint32_t c = connect_pair(0);
	char text[8];

	assert_int_equal(send_text(side[0], c, "last", 0), 4);
	assert_int_equal(trunk_shut(side[0], c), 0);
	assert_int_equal(trunk_shut(side[0], c), -EPIPE);
	assert_int_equal(send_text(side[0], c, "x", 0), -EPIPE);
	assert_int_equal(poll_one(side[1], c), TRUNK_READABLE | TRUNK_SHUT);
	assert_int_equal(recv_some(side[1], c, text, 8, 0), 4);
	assert_int_equal(recv_some(side[1], c, text, 8, 0), 0);
	assert_int_equal(recv_some(side[1], c, text, 8, TRUNK_MESSAGE), 0);
	assert_int_equal(send_text(side[1], c, "answer", 0), 6);
	assert_int_equal(recv_some(side[0], c, text, 8, 0), 6);
	trunk_drop(side[0], c, 0);
	assert_int_equal(poll_one(side[1], c), TRUNK_ENDED);
	/* In order: it had been shut. */
	assert_int_equal(recv_some(side[1], c, text, 8, 0), 0);
	assert_int_equal(send_text(side[1], c, "x", 0), -EPIPE);
}

static void reset_is_seen_behind_what_has_come(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_event ev;
	char text[8];

	assert_int_equal(send_text(side[0], c, "last", 0), 4);
	trunk_drop(side[0], c, 9);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_int_equal(ev.bits, TRUNK_READABLE | TRUNK_ENDED);
	assert_int_equal(ev.code, 9);
	assert_int_equal(recv_some(side[1], c, text, 8, 0), 4);
	assert_int_equal(recv_some(side[1], c, text, 8, 0), -ECONNRESET);
	trunk_drop(side[1], c, 0);
	/* Also after it was shut, if there is a reason. */
	c = connect_pair(0);
	assert_int_equal(trunk_shut(side[0], c), 0);
	trunk_drop(side[0], c, 9);
	assert_int_equal(recv_some(side[1], c, text, 8, 0), -ECONNRESET);
}

/* Circuits come and go while the other side looks at nothing: ends wait, and are sent in order later. */
static void ends_wait_when_the_ring_has_no_room(void **st)
{
	uint32_t c[2] = { connect_pair(0), connect_pair(0) };
	struct trunk_event ev;
	char octet;

	side[0]->head_seen = side[0]->tail - side[0]->shape.blocks + 2;
	atomic_store(&side[1]->own->head, side[0]->head_seen);
	assert_int_equal(send_text(side[0], c[0], "x", 0), 1);
	assert_int_equal(trunk_shut(side[0], c[0]), 0);
	trunk_drop(side[0], c[0], 0);
	trunk_drop(side[0], c[1], 5);
	assert_int_equal(side[0]->owing.first, c[0]);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_int_equal(ev.bits, TRUNK_READABLE);
	assert_int_equal(trunk_poll(side[0], &ev, 1), 0); /* sends them */
	assert_int_equal(side[0]->owing.first, TRUNK_NONE);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_true(ev.circuit == c[0] && ev.bits == (TRUNK_SHUT | TRUNK_ENDED));
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_true(ev.circuit == c[1] && ev.bits == TRUNK_ENDED && ev.code == 5);
	assert_int_equal(recv_some(side[1], c[0], &octet, 1, 0), 1);
	assert_int_equal(recv_some(side[1], c[0], &octet, 1, 0), 0);
}

static void everything_ends_when_the_other_side_closes(void **st)
{
	uint32_t c = connect_pair(0), d = connect_pair(1);
	struct trunk_event ev[4];
	char octet;
	struct trunk *a = side[0];

	assert_int_equal(send_text(side[1], d, "x", 0), 1);
	assert_true(trunk_open(side[0], NULL, 0, NULL) >= 0);
	trunk_close(side[1]);
	assert_int_equal(trunk_poll(a, ev, 4), 1); /* first what was sent before */
	assert_int_equal(trunk_poll(a, ev, 4), 3);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ev[i].bits, TRUNK_ENDED);
	assert_int_equal(trunk_status(a), -EPIPE);
	assert_int_equal(recv_some(a, d, &octet, 1, 0), 1);
	assert_int_equal(recv_some(a, d, &octet, 1, 0), -ECONNRESET);
	assert_int_equal(send_text(a, c, "x", 0), -EPIPE);
	assert_int_equal(trunk_shut(a, c), -EPIPE);
	assert_int_equal(trunk_open(a, NULL, 0, NULL), -EPIPE);
	trunk_drop(a, c, 0);
	trunk_drop(a, d, 0);
	assert_int_equal(trunk_poll(a, ev, 4), 0);
	trunk_close(a);
	attach_pair(&small_shape, false);
}

static void last_words_are_heard(void **st)
{
	uint32_t c = connect_pair(0);
	char octet;

	assert_int_equal(send_text(side[1], c, "x", 0), 1);
	trunk_close(side[1]);
	trunk_heard(side[0]); /* looks after the peer before anything was taken in */
	assert_int_equal(trunk_status(side[0]), -EPIPE);
	assert_int_equal(recv_some(side[0], c, &octet, 1, 0), 1);
	assert_int_equal(recv_some(side[0], c, &octet, 1, 0), -ECONNRESET);
	trunk_close(side[0]);
	attach_pair(&small_shape, false);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(circuit_is_opened_and_accepted),
		T(circuit_is_refused_with_a_reason),
		T(numbers_are_used_again_when_both_have_left),
		T(opening_may_be_withdrawn),
		T(greeting_is_one_block_at_most),
		T(nothing_is_done_on_circuits_that_are_not_there),
		T(octets_come_in_order_over_the_ends_of_messages),
		T(octets_are_gathered_and_scattered),
		T(message_comes_as_it_was_sent),
		T(message_in_parts_is_not_read_before_its_end),
		T(message_of_more_than_four_gibioctets_is_that_long),
		T(block_is_taken_without_copying),
		T(message_is_made_in_place),
		T(claimed_block_cannot_come_back),
		T(stalled_circuit_stops_no_other),
		T(whole_message_waits_for_all_its_blocks),
		T(whole_message_waits_for_the_surplus_of_others),
		T(unclaimed_block_feeds_others),
		T(thousands_that_are_starved_are_fed_in_turn),
		T(acceptance_waits_for_credit),
		T(limit_is_kept),
		T(limit_that_is_raised_is_told),
		T(half_close_leaves_the_other_way_open),
		T(reset_is_seen_behind_what_has_come),
		T(ends_wait_when_the_ring_has_no_room),
		T(everything_ends_when_the_other_side_closes),
		T(last_words_are_heard),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
