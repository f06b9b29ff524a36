/* SPDX-License-Identifier: MIT */
/* Rings that have grown: when their memory is given back, and to whom it must not happen. */
#include <sys/mman.h>

#include "base/robust.h"
#include "base/self.h"
#include "sockets/record/family.h"
#include "sockets/stream/stream_priv.h"
#include "sockets/attach/lane_test.h"

#define MOST  17 /* one more than are remembered */
#define GROWN (100u << 10)

/* Records with a lane of their own, without sockets. */
static struct lane_dir dirs[MOST];
static struct rec recs[MOST];
static uint8_t *rings[MOST];

/* So much goes through the ring; the first octets stay there. */
static void pass(struct rec *r, uint32_t n)
{
	uint64_t word;
	size_t room;

	memset(r->tx.ring, 0xee, LANE_RING);
	assert_int_equal(lane_tx_look(&r->tx, n, &word, &room), LANE_RING_OK);
	assert_true(lane_tx_publish(&r->tx, word, n, false));
}

static void take_all(struct rec *r)
{
	atomic_store(&r->tx.dir->head, r->tx.tail);
}

static void make(int i)
{
	struct rec *r = &recs[i];

	memset((void *)r, 0, sizeof(*r));
	memset((void *)&dirs[i], 0, sizeof(dirs[i]));
	if (!rings[i])
		rings[i] = mmap(NULL, LANE_RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
				-1, 0);
	assert_true(rings[i] != MAP_FAILED);
	atomic_store(&dirs[i].word, LANE_ATTACHED);
	lane_tx_init(&r->tx, &dirs[i], rings[i], 0);
	atomic_store(&r->state, REC_LANE);
}

static int begin_alone(void **st)
{
	stream_forked(); /* knows of none */
	make(0);
	return 0;
}

/* A few that small messages need stay. */
static bool is_trimmed(const struct rec *r)
{
	for (uint32_t i = 0; i < LANE_REWIND; i++)
		assert_int_equal(r->tx.ring[i], 0xee);
	for (uint32_t i = LANE_REWIND; i < LANE_RING; i++)
		assert_int_equal(r->tx.ring[i], r->tx.ring[LANE_RING - 1]);
	return r->tx.ring[LANE_RING - 1] == 0;
}

static void ring_is_trimmed_when_process_sleeps(void **st)
{
	struct rec *r = &recs[0];

	pass(r, GROWN);
	take_all(r);
	stream_trim_all();
	assert_false(is_trimmed(r)); /* nobody has told of it */
	stream_note_large(r);
	assert_int_equal(r->listed, 1);
	assert_false(is_trimmed(r));
	stream_trim_all();
	assert_true(is_trimmed(r));
	assert_int_equal(r->tx.high, 0);
	assert_int_equal(atomic_load(&dirs[0].base), GROWN);
	assert_int_equal(atomic_load(&r->tx_lock.word), 0);
	/* It is still remembered; but what comes back must be faulted in again. */
	pass(r, GROWN);
	take_all(r);
	stream_trim_all();
	assert_false(is_trimmed(r));
	r->trimmed -= 1000000000;
	stream_trim_all();
	assert_true(is_trimmed(r));
}

static void ring_is_left_alone_when_it_is_used_or_small(void **st)
{
	struct rec *r = &recs[0];

	stream_note_large(r);
	pass(r, LANE_TRIM);
	take_all(r);
	stream_trim_all();
	assert_false(is_trimmed(r)); /* small */
	pass(r, GROWN);
	stream_trim_all();
	assert_false(is_trimmed(r)); /* unread */
	take_all(r);
	assert_true(robust_take(&r->tx_lock));
	stream_trim_all();
	assert_false(is_trimmed(r)); /* somebody sends */
	robust_give(&r->tx_lock);
	atomic_store(&r->state, REC_PLAIN);
	stream_trim_all();
	assert_false(is_trimmed(r)); /* no lane */
	atomic_store(&r->state, REC_LANE);
	r->lane_pid = self_pid() + 1;
	stream_trim_all();
	assert_false(is_trimmed(r)); /* a relative's */
	r->lane_pid = self_pid();
	stream_trim_all();
	assert_true(is_trimmed(r));
}

static void ring_is_trimmed_when_another_takes_its_place(void **st)
{
	for (int i = 0; i < MOST; i++) {
		make(i);
		pass(&recs[i], GROWN);
		take_all(&recs[i]);
	}
	for (int i = 0; i < MOST - 1; i++)
		stream_note_large(&recs[i]);
	for (int i = 0; i < MOST; i++)
		assert_false(is_trimmed(&recs[i]));
	stream_note_large(&recs[MOST - 1]);
	assert_true(is_trimmed(&recs[0]));
	assert_int_equal(recs[0].listed, 0);
	for (int i = 1; i < MOST; i++) {
		assert_false(is_trimmed(&recs[i]));
		assert_int_equal(recs[i].listed, 1);
	}
	stream_trim_all();
	for (int i = 0; i < MOST; i++)
		assert_true(is_trimmed(&recs[i]));
}

static void ring_is_forgotten_when_it_is_closed(void **st)
{
	make(1);
	for (int i = 0; i < 2; i++) {
		pass(&recs[i], GROWN);
		take_all(&recs[i]);
		stream_note_large(&recs[i]);
	}
	stream_forget_large(&recs[0]);
	assert_int_equal(recs[0].listed, 0);
	stream_forget_large(&recs[0]);
	assert_int_equal(recs[1].listed, 1);
	stream_trim_all();
	assert_false(is_trimmed(&recs[0]));
	assert_true(is_trimmed(&recs[1]));
	/* And by a child, which has none of them. */
	recs[1].trimmed = 0;
	pass(&recs[1], GROWN);
	take_all(&recs[1]);
	stream_forked();
	stream_trim_all();
	assert_false(is_trimmed(&recs[1]));
}

/* --- on a connection */

static int begin_connected(void **st)
{
	stream_forked();
	return begin(st);
}

static void grow(void)
{
	make_lane();
	attach_near();
	assert_int_equal(far->listed, 0);
	for (int i = 0; i < 20; i++)
		put(far, far_fd, (uint8_t)i, 4096);
	assert_int_equal(far->listed, 1);
	for (int i = 0; i < 20; i++)
		take(near, near_fd, (uint8_t)i, 4096);
	assert_true(far->tx.high > LANE_TRIM);
}

static void connection_is_trimmed_when_receiver_sleeps(void **st)
{
	const struct timeval limit = { .tv_usec = 1000 };
	struct iovec iov = { st, 1 };

	NEED_ROOT();
	grow();
	setsockopt(far_fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	assert_int_equal(call_receive(far, far_fd, &iov, 1, 0), -1);
	assert_int_equal(far->tx.high, 0);
	assert_int_equal(far->tx.ring[5 * 4096 + 1], 0);
	exchange(10);
}

static void connection_is_forgotten_when_it_is_closed(void **st)
{
	NEED_ROOT();
	grow();
	sock_closing(far_fd);
	assert_int_equal(far->listed, 0);
}

/* A relative has it still; its next lane on this record may be in memory that only it can see. */
static void connection_is_forgotten_when_others_keep_it(void **st)
{
	uint8_t *ring;

	NEED_ROOT();
	grow();
	ring = far->tx.ring;
	atomic_fetch_add(&far->refs, 1);
	atomic_fetch_add(&far->procs, 1);
	sock_closing(far_fd);
	assert_true(sock_has_lane(far));
	assert_int_not_equal(ring[5 * 4096 + 1], 0);
	stream_trim_all();
	assert_int_not_equal(far->tx.high, 0);
	assert_int_not_equal(ring[5 * 4096 + 1], 0);
	/* It is ours again, for the end of the test. */
	family_hold(far, 1);
	atomic_store(&sock_entry(far_fd)->rec, far);
	atomic_fetch_add(&sock_keeping(far)->numbers, 1);
}

#define ALONE(name)     cmocka_unit_test_setup(name, begin_alone)
#define CONNECTED(name) cmocka_unit_test_setup_teardown(name, begin_connected, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ALONE(ring_is_trimmed_when_process_sleeps),
		ALONE(ring_is_left_alone_when_it_is_used_or_small),
		ALONE(ring_is_trimmed_when_another_takes_its_place),
		ALONE(ring_is_forgotten_when_it_is_closed),
		CONNECTED(connection_is_trimmed_when_receiver_sleeps),
		CONNECTED(connection_is_forgotten_when_it_is_closed),
		CONNECTED(connection_is_forgotten_when_others_keep_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
