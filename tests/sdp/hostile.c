/* SPDX-License-Identifier: MIT */
/*
 * The local transport against a peer that writes anything anywhere in the shared memory (OS-23). It
 * may end its own connections or garble their octets; nothing else may happen: no crash, no endless
 * loop, no harm to connections with another peer. Run it under a sanitizer as well: an access outside
 * of the memory would often go unnoticed otherwise. (Trunks by themselves: tests/channel/hostile.c.)
 */
#include "sdp/bed.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "channel/trunk_priv.h"
#include "sockets/ot/oti_local.h"
#include "sockets/ot/oti_local_priv.h"

#define ALARM_S 300

static const struct oti_local_geometry geo = { .slots = 8, .bufs = 16, .buf_size = 1024 };

static uint8_t *region; /* what the hostile peer sees */
static size_t region_len;

static uint64_t dice_state = 0x123456789abcdefull;

static uint32_t dice(uint32_t sides)
{
	dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice_state >> 33) % sides;
}

/* ---- memory with an engine on each side, and the same again for another peer ---- */

struct link {
	struct oti *oti[2];
	struct bed_listener listener;
	struct sdp_conn own;
	struct sdp_conn *c[2];
	uint64_t sent, got;
};

static struct link victim, bystander;
/* Places in the hostile peer's memory, as side 1 sees them. */
static struct trunk *peer_view, view_of_peer;

static void map_region(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	region_len = (size_t)st.st_size;
	region = mmap(NULL, region_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(region, MAP_FAILED);
	peer_view = &view_of_peer;
	peer_view->map = region;
	peer_view->side = 1;
	trunk_shape(((struct local *)bed.a)->trunk, &peer_view->shape);
	trunk_memory_places(peer_view);
}

static void open_region(struct oti *oti[2], int *fd)
{
	*fd = oti_local_region(&geo);
	assert_true(*fd >= 0);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(oti_local_open(*fd, i, &oti[i]), 0);
}

static void turn(void)
{
	for (int i = 0; i < 2; i++) {
		victim.oti[i]->ops->poll(victim.oti[i], 8);
		bystander.oti[i]->ops->poll(bystander.oti[i], 8);
	}
}

static void open_link(struct link *k)
{
	struct sdp_attr attr = { .oti = k->oti[1], .layout = SDP_IB, .bufs = 8, .buf_size = 512 };

	bed_listen(&k->listener, &attr, 8);
	attr.oti = k->oti[0];
	k->c[0] = &k->own;
	assert_int_equal(sdp_conn_init(k->c[0], &attr), 0);
	assert_int_equal(sdp_conn_connect(k->c[0], &k->listener.l.llp->local), 0);
	for (int i = 0; i < 100 && !k->c[1]; i++) {
		turn();
		k->c[1] = sdp_listener_accept(&k->listener.l);
	}
	assert_non_null(k->c[1]);
	turn();
}

static void close_link(struct link *k)
{
	for (int i = 0; i < 2; i++) {
		assert_int_equal(k->c[i]->illegal, 0);
		sdp_conn_fini(k->c[i]);
	}
	bed_free(&k->listener, k->c[1]);
	bed_unlisten(&k->listener);
	for (int i = 0; i < 2; i++)
		assert_int_equal(k->oti[i]->ops->close(k->oti[i]), 0);
}

static void open_scene(void)
{
	int fd;

	memset(&victim, 0, sizeof(victim));
	memset(&bystander, 0, sizeof(bystander));
	open_region(bystander.oti, &fd);
	close(fd);
	open_region(victim.oti, &fd);
	bed.a = victim.oti[0];
	bed.b = victim.oti[1];
	map_region(fd);
	close(fd);
	open_link(&victim);
	open_link(&bystander);
}

static void close_scene(void)
{
	close_link(&victim);
	close_link(&bystander);
	munmap(region, region_len);
}

/* Octets from one end to the other, as far as it goes. */
static void exchange(struct link *k, int from)
{
	uint8_t out[300], in[300];
	size_t len = 1 + dice(300);

	bed_fill(out, len, k->sent, 9);
	if (bed_send(k->c[from], out, len) > 0)
		k->sent += len;
	turn();
	bed_recv(k->c[!from], in, sizeof(in));
}

/* The bystander's octets are right to the last one. */
static void exchange_well(struct link *k)
{
	uint8_t out[300], in[300];
	size_t len = 1 + dice(300), got = 0;

	bed_fill(out, len, k->sent, 9);
	assert_int_equal(bed_send(k->c[0], out, len), len);
	for (int i = 0; i < 1000 && got < len; i++) {
		ssize_t rc = bed_recv(k->c[1], in + got, len - got);

		if (rc > 0)
			got += (size_t)rc;
		else
			assert_int_equal(rc, -EAGAIN);
		turn();
	}
	assert_int_equal(got, len);
	assert_true(bed_check(in, len, k->sent, 9));
	k->sent += len;
}

/* ---- the hostile peer ---- */

/* Head, rings of entries and of blocks given back: all but payload. */
static size_t control_len(void)
{
	return (size_t)(peer_view->out_blocks < peer_view->in_blocks ? peer_view->out_blocks
								     : peer_view->in_blocks) -
	       (size_t)region;
}

/* Values that are wrong in interesting ways. */
static uint32_t nasty(void)
{
	static const uint32_t values[] = { 0,          1,          2,          7,
					   8,          9,          15,         16,
					   17,         511,        512,        513,
					   1024,       1025,       0x7fffffff, 0x80000000,
					   0xfffffff0, 0xfffffffe, 0xffffffff };

	return dice(3) ? values[dice(ARRAY_SIZE(values))] : dice(0x7fffffff) * 2 + dice(2);
}

static void scribble(uint8_t *at, size_t len)
{
	volatile uint32_t *words = (volatile uint32_t *)at;
	size_t i = dice((uint32_t)(len / 4));

	switch (dice(3)) {
	case 0: words[i] = nasty(); break;
	case 1: words[i] ^= 1u << dice(32); break;
	default: words[i] += dice(5) - 2; break;
	}
}

static uint32_t circuit_of(const struct sdp_conn *c)
{
	return c->llp ? ((const struct local_conn *)c->llp)->circuit : 0;
}

/* What the peer's next entry is. */
static void put_entry(struct trunk_entry e)
{
	uint32_t tail = peer_view->own->tail;

	peer_view->out_ring[tail & (ring_size(peer_view) - 1)] = entry_word(e);
	peer_view->own->tail = tail + 1;
}

static void put_back(uint32_t block)
{
	uint32_t given = peer_view->own->given;

	peer_view->give_ring[given & (peer_view->shape.blocks - 1)] = block;
	peer_view->own->given = given + 1;
}

/* ---- tests ---- */

/* Each word that the peer writes by itself, each nasty value, on a fresh connection. */
static void every_word_of_the_peer_may_lie(void **state)
{
	static const uint32_t values[] = { 0,   1,   8,          9,          16,        17,
					   512, 513, 0x7fffffff, 0x80000000, 0xffffffff };
	const size_t words = sizeof(struct trunk_side) / 4;

	for (size_t w = 0; w < words + 8; w++) {
		for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
			volatile uint32_t *word;

			open_scene();
			exchange(&victim, 0);
			exchange(&victim, 1);
			word = (volatile uint32_t *)peer_view->own + w;
			/* Behind those words: halves of its next entries, and numbers it gives back. */
			if (w >= words && w < words + 4)
				word = (volatile uint32_t *)&peer_view
					       ->out_ring[peer_view->own->tail] +
				       (w - words);
			else if (w >= words + 4)
				word = (volatile uint32_t *)&peer_view
					       ->give_ring[peer_view->own->given] +
				       (w - words - 4);
			*word = values[v];
			for (int i = 0; i < 5; i++) {
				exchange(&victim, i & 1);
				exchange_well(&bystander);
			}
			close_scene();
		}
	}
}

/* Any entry while a connection is at any stage of its set-up, for its circuit and for others. */
static void every_entry_may_come_at_any_time(void **state)
{
	for (unsigned stage = 0; stage < 4; stage++) {
		for (unsigned i = 0; i < 16 * 4; i++) {
			struct sdp_attr attr;
			struct sdp_conn c;

			open_scene();
			attr = (struct sdp_attr) {
				.oti = bed.a, .layout = SDP_IB, .bufs = 8, .buf_size = 512
			};
			assert_int_equal(sdp_conn_init(&c, &attr), 0);
			assert_int_equal(sdp_conn_connect(&c, &victim.listener.l.llp->local), 0);
			for (unsigned k = 0; k < stage; k++)
				(k & 1 ? bed.a : bed.b)->ops->poll(k & 1 ? bed.a : bed.b, 1);
			put_entry((struct trunk_entry) {
				.circuit = i / 16 == 3 ? 77 : circuit_of(&c) + i / 16,
				.block = 200,
				.len = 400,
				.type = i % 16,
			});
			for (int k = 0; k < 10; k++)
				turn();
			exchange_well(&bystander);
			assert_int_equal(c.illegal, 0);
			sdp_conn_fini(&c);
			turn();
			close_scene();
		}
	}
}

/* ---- lies that look like the truth, one for each check ---- */

/* A well-formed Data message of `len` octets in a block. */
static void forge(uint32_t block, uint32_t len)
{
	uint8_t *at = peer_view->out_blocks + (size_t)block * peer_view->shape.block_size;
	struct sdp_msg m = { .mid = SDP_DATA,
			     .bufs = 8,
			     .mseq = victim.c[0]->credit.rx_next,
			     .mseq_ack = victim.c[0]->credit.tx_next - 1,
			     .payload_len = len - SDP_BSDH_LEN };

	assert_int_equal(sdp_encode(&m, at), SDP_BSDH_LEN);
}

/* The peer has sent two messages, the first of which we hold; this changes what it says of the second. */
static void lie(int which)
{
	uint32_t at = (peer_view->own->tail - 1) & (ring_size(peer_view) - 1);
	struct trunk_entry e = entry_of(peer_view->out_ring[at]);
	struct trunk_entry held = entry_of(peer_view->out_ring[at - 1]);

	switch (which) {
	case 0: e.block = peer_view->shape.blocks; break; /* behind the last */
	case 1: e.block = 0xffff; break;
	case 2: /* longer than our buffers, though not than a block; the header agrees */
		forge(e.block, 513);
		e.len = 513;
		break;
	case 3: e.len = 0xfffff; break;
	case 4: /* in a block that we hold */
		e.block = held.block;
		e.len = 400;
		forge(held.block, 400);
		break;
	case 5: peer_view->own->tail += ring_size(peer_view); break;
	case 6: peer_view->own->tail -= 2; break; /* fewer than before */
	case 7: put_back(peer_view->shape.blocks); break;
	case 8: put_back(5); break; /* one that it does not have */
	case 9: peer_view->own->given += peer_view->shape.blocks + 1; break;
	case 10: e.circuit = 2; break; /* that is not there */
	case 11: e.circuit = peer_view->shape.circuits; break;
	case 12: e.type = 0xf; break;
	case 13: e.type = ENTRY_ACCEPT; break; /* once more */
	case 14: e.type = ENTRY_PART; break;   /* a message is one block */
	case 15: e.kind = 99; break;
	case 16: e.kind = KIND_CONFIRM; break;
	default: e.type = ENTRY_CLOSE; break; /* without an orderly end */
	}
	peer_view->out_ring[at] = entry_word(e);
}

static void drain_pool(struct oti_conn *llp)
{
	struct oti_buf *bufs[32];
	unsigned n = 0;

	while (n < 32 && (bufs[n] = llp->ops->buf_get(llp)))
		n++;
	/* Never more than the peer's buffers. */
	assert_true(n <= 8);
	while (n)
		llp->ops->buf_put(llp, bufs[--n]);
}

static void clever_lies_end_the_connection(void **state)
{
	for (int which = 0; which < 18; which++) {
		uint8_t octets[3000] = { 0 };

		open_scene();
		assert_int_equal(bed_send(victim.c[1], octets, 400), 400);
		turn();
		assert_int_equal(victim.c[0]->unread, 400);
		assert_int_equal(bed_send(victim.c[1], octets, 400), 400);
		lie(which);
		drain_pool(victim.c[0]->llp);
		bed.a->ops->poll(bed.a, 8);
		if (!bed_has(victim.c[0], SDP_IS_RESET))
			fail_msg("lie %d was believed", which);
		exchange_well(&bystander);
		close_scene();
	}
}

/* The peer looks at nothing: as many messages go to it as it has buffers, though the trunk has more blocks. */
static void no_more_is_sent_than_the_peer_has_buffers_for(void **state)
{
	struct oti_conn *llp;
	struct oti_buf *buf;
	char octet = 0;
	struct iovec iov = { .iov_base = &octet, .iov_len = 1 };
	int n = 0;

	open_scene();
	turn();
	llp = victim.c[0]->llp;
	while (n < 32 && (buf = llp->ops->buf_get(llp))) {
		assert_int_equal(llp->ops->send(llp, buf, &iov, 1, 0), 0);
		n++;
	}
	assert_int_equal(n, 8);
	close_scene();
}

/* More messages than buffers were posted, though the trunk has blocks for them. */
static void message_without_a_buffer_ends_the_connection(void **state)
{
	uint32_t first = 100;

	open_scene();
	for (uint32_t i = 0; i < 9; i++) {
		forge(first + i, 100);
		((volatile uint8_t *)peer_view->out_blocks)[(first + i) * 1024 + 8] += (uint8_t)i;
		put_entry((struct trunk_entry) { circuit_of(victim.c[0]), first + i, 100,
						 KIND_MESSAGE, ENTRY_LAST });
	}
	bed.a->ops->poll(bed.a, 64);
	assert_true(bed_has(victim.c[0], SDP_IS_RESET));
	exchange_well(&bystander);
	close_scene();
}

/* The greeting of what was opened last, or of its answer, where it stands. */
static struct local_greeting *greeting_of(unsigned from)
{
	const _Atomic uint64_t *ring = from ? peer_view->out_ring : peer_view->in_ring;
	uint32_t tail = from ? peer_view->own->tail : peer_view->peer->tail;
	struct trunk_entry e = entry_of(ring[(tail - 1) & (ring_size(peer_view) - 1)]);
	uint8_t *blocks = from ? peer_view->out_blocks : peer_view->in_blocks;

	assert_int_equal(e.type, from ? ENTRY_ACCEPT : ENTRY_OPEN);
	return (struct local_greeting *)(blocks + (size_t)e.block * peer_view->shape.block_size);
}

/* Terms of a request or an answer that the memory has no room for. */
static void lies_about_terms_are_refused(void **state)
{
	static const uint32_t values[] = { 0, 17, 0xffffffff };

	for (int i = 0; i < 18; i++) {
		struct sdp_attr attr;
		struct local_greeting *g;
		struct sdp_conn c;
		uint32_t value = values[i % 3];
		unsigned side = i / 9;

		open_scene();
		attr = (struct sdp_attr) {
			.oti = bed.a, .layout = SDP_IB, .bufs = 8, .buf_size = 512
		};
		assert_int_equal(sdp_conn_init(&c, &attr), 0);
		assert_int_equal(sdp_conn_connect(&c, &victim.listener.l.llp->local), 0);
		/* The answer is there, and has not been looked at. */
		if (side == 1)
			bed.b->ops->poll(bed.b, 1);
		g = greeting_of(side);
		switch (i / 3 % 3) {
		case 0: g->bufs = value; break;
		case 1: g->buf_size = value == 17 ? 1025 : value; break;
		default: g->private_len = value == 17 ? LOCAL_PRIVATE_MAX + 1 : value; break;
		}
		for (int k = 0; k < 10; k++)
			turn();
		/* Buffers of no octets are found when something is to be sent. */
		bed_send(&c, "x", 1);
		turn();
		if (!(sdp_conn_status(&c) & (SDP_IS_FAILED | SDP_IS_RESET)) &&
		    !(i / 3 % 3 == 1 && value == 0 && side == 0))
			fail_msg("term %d was believed", i);
		exchange_well(&bystander);
		assert_int_equal(c.illegal, 0);
		sdp_conn_fini(&c);
		turn();
		close_scene();
	}
}

static void reopen_victim(void)
{
	close_scene();
	open_scene();
}

/* Its own octets may be garbled, those of another peer may not. */
static void scribbles_harm_no_other_peer(void **state)
{
	open_scene();
	for (int i = 0; i < 50000; i++) {
		/* Words of the peer, entries and numbers; seldom payload. What we wrote nobody should read back. */
		switch (dice(4)) {
		case 0: scribble((uint8_t *)peer_view->own, sizeof(*peer_view->own)); break;
		case 1:
			scribble((uint8_t *)&peer_view->out_ring[peer_view->own->tail & 0x1f8], 64);
			break;
		case 2: scribble(region + 64, control_len() - 64); break;
		default: scribble(region, region_len); break;
		}
		exchange(&victim, (int)dice(2));
		exchange_well(&bystander);
		if (i % 16 == 15 || sdp_conn_status(victim.c[0]) & SDP_IS_RESET)
			reopen_victim();
	}
	close_scene();
}

static void scribbles_anywhere_crash_nobody(void **state)
{
	open_scene();
	for (int i = 0; i < 100000; i++) {
		/* Mostly where the numbers are. */
		scribble(region, dice(8) ? TRUNK_HEAD : dice(2) ? control_len() : region_len);
		exchange(&victim, (int)dice(2));
		if (i % 20 == 19)
			reopen_victim();
	}
	close_scene();
}

static void close_and_shut_among_scribbles(void **state)
{
	open_scene();
	for (int i = 0; i < 20000; i++) {
		if (dice(3) == 0)
			scribble((uint8_t *)peer_view->own, sizeof(*peer_view->own));
		switch (dice(4)) {
		case 0: sdp_conn_shut(victim.c[dice(2)]); break;
		case 1: sdp_conn_close(victim.c[dice(2)]); break;
		case 2: sdp_conn_abort(victim.c[dice(2)]); break;
		default: exchange(&victim, (int)dice(2)); break;
		}
		exchange_well(&bystander);
		if (i % 6 == 5)
			reopen_victim();
	}
	close_scene();
}

/* The other process writes while we read. */
static void scribbles_at_the_same_time_crash_nobody(void **state)
{
	int status;

	for (int round = 0; round < 20; round++) {
		pid_t pid;

		open_scene();
		dice_state += 12345;
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			for (;;)
				scribble(region, dice(4) ? TRUNK_HEAD : control_len());
		}
		for (int i = 0; i < 2000; i++) {
			exchange(&victim, (int)dice(2));
			exchange_well(&bystander);
		}
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		close_scene();
	}
}

/* ---- regions that are not what they should be ---- */

static int make_region(size_t len, const void *header, size_t header_len, int seals)
{
	int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)len), 0);
	assert_int_equal(pwrite(fd, header, header_len, 0), header_len);
	if (seals)
		assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static void expect_refusal(int fd)
{
	struct oti *o;

	assert_int_equal(oti_local_open(fd, 0, &o), -EINVAL);
	close(fd);
}

static void regions_that_are_wrong_are_refused(void **state)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
	struct oti_local_geometry bad = geo;
	struct trunk_shared good, h;
	struct trunk_shape few = {
		.blocks = 64, .block_size = 1024, .circuits = 8, .guarantee = 2
	};
	struct trunk_shape tiny = { .blocks = 64, .block_size = 64, .circuits = 8, .guarantee = 3 };
	struct stat st;
	struct oti *o;
	int fd = oti_local_region(&geo);

	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(pread(fd, &good, sizeof(good), 0), sizeof(good));
	assert_int_equal(oti_local_open(fd, 2, &o), -EINVAL);
	close(fd);
	expect_refusal(open("/dev/null", O_RDWR | O_CLOEXEC));
	/* Could be made shorter below us. */
	expect_refusal(make_region((size_t)st.st_size, &good, sizeof(good), 0));
	expect_refusal(make_region((size_t)st.st_size, &good, sizeof(good), F_SEAL_SHRINK));
	expect_refusal(make_region((size_t)st.st_size - 4096, &good, sizeof(good), seals));
	expect_refusal(make_region((size_t)st.st_size + 4096, &good, sizeof(good), seals));
	expect_refusal(make_region(100, &good, 100, seals));
	h = good;
	h.magic++;
	expect_refusal(make_region((size_t)st.st_size, &h, sizeof(h), seals));
	for (int i = 0; i < 4; i++) {
		static const uint32_t values[] = { 0, 1, 3, 63, 0x7fffffff, 0xffffffff };

		for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
			h = good;
			*(i == 0   ? &h.blocks
			  : i == 1 ? &h.block_size
			  : i == 2 ? &h.circuits
				   : &h.guarantee) = values[v];
			if (i == 3 && values[v] == 3)
				continue; /* a trunk of another geometry */
			expect_refusal(make_region((size_t)st.st_size, &h, sizeof(h), seals));
		}
	}
	/* Sound trunks, but none that this transport can use. */
	expect_refusal(trunk_memory(&few));
	expect_refusal(trunk_memory(&tiny));
	bad.slots = 7;
	assert_int_equal(oti_local_region(&bad), -EINVAL);
	bad = (struct oti_local_geometry) { .slots = 1024, .bufs = 256, .buf_size = 1024 };
	assert_int_equal(oti_local_region(&bad), -EINVAL);
	fd = make_region((size_t)st.st_size, &good, sizeof(good), seals);
	assert_int_equal(oti_local_open(fd, 0, &o), 0);
	close(fd);
	assert_int_equal(o->ops->close(o), 0);
}

/* ---- two processes ---- */

#define STREAM (4u << 20)

/* The child: echoes what comes, sleeping when there is nothing. */
static _Noreturn void echo(struct oti *o, struct sdp_conn *c)
{
	uint8_t octets[4096];

	for (;;) {
		ssize_t rc = bed_recv(c, octets, sizeof(octets)), done = 0;

		while (rc > 0 && done < rc) {
			ssize_t n = bed_send(c, octets + done, (size_t)(rc - done));

			if (n == -EAGAIN) {
				o->ops->wait(o, 1000);
				o->ops->poll(o, 64);
			} else if (n < 0) {
				_exit(2);
			} else {
				done += n;
			}
		}
		if (rc == 0) {
			sdp_conn_close(c);
			while (!sdp_conn_is_done(c)) {
				o->ops->wait(o, 1000);
				o->ops->poll(o, 64);
			}
			_exit(c->status & SDP_IS_CLOSED ? 0 : 3);
		}
		if (rc < 0 && rc != -EAGAIN)
			_exit(4);
		if (rc == -EAGAIN) {
			o->ops->wait(o, 1000);
			o->ops->poll(o, 64);
		}
	}
}

/* A region between us (side 0) and a child, which listens on a port both know. */
static pid_t fork_peer(void)
{
	struct sdp_attr attr = { .layout = SDP_IB, .bufs = 16, .buf_size = 1024 };
	struct oti_addr at = bed.addr;
	int fd = oti_local_region(&geo);
	struct sdp_conn *c;
	pid_t pid = fork();

	((struct sockaddr_in *)&at.sa)->sin_port = htons(4000);
	if (pid) {
		assert_int_equal(oti_local_open(fd, 0, &bed.a), 0);
		close(fd);
		return pid;
	}
	if (oti_local_open(fd, 1, &bed.b))
		_exit(5);
	attr.oti = bed.b;
	bed.addr = at;
	bed_listen(&victim.listener, &attr, 4);
	while (!(c = sdp_listener_accept(&victim.listener.l))) {
		bed.b->ops->wait(bed.b, 1000);
		bed.b->ops->poll(bed.b, 64);
	}
	echo(bed.b, c);
}

static void connect_peer(struct sdp_conn *c)
{
	struct sdp_attr attr = { .oti = bed.a, .layout = SDP_IB, .bufs = 16, .buf_size = 1024 };
	struct oti_addr to = bed.addr;

	((struct sockaddr_in *)&to.sa)->sin_port = htons(4000);
	/* The child may not be listening yet. */
	for (;;) {
		assert_int_equal(sdp_conn_init(c, &attr), 0);
		assert_int_equal(sdp_conn_connect(c, &to), 0);
		while (!(sdp_conn_status(c) & (SDP_IS_OPEN | SDP_IS_FAILED))) {
			bed.a->ops->wait(bed.a, 100);
			bed.a->ops->poll(bed.a, 64);
		}
		if (sdp_conn_status(c) & SDP_IS_OPEN)
			return;
		assert_int_equal(c->error, ECONNREFUSED);
		sdp_conn_fini(c);
		usleep(1000);
	}
}

static void two_processes_exchange_a_stream(void **state)
{
	static struct sdp_conn c;
	uint64_t sent = 0, got = 0;
	pid_t pid = fork_peer();
	int status;

	connect_peer(&c);
	while (got < STREAM) {
		uint8_t octets[4096];
		size_t len = min_size(sizeof(octets), STREAM - sent);
		ssize_t tx = 0, rx;

		bed_fill(octets, len, sent, 4);
		if (len && (tx = bed_send(&c, octets, len)) > 0)
			sent += (uint64_t)tx;
		if (sent == STREAM && tx > 0)
			assert_int_equal(sdp_conn_shut(&c), 0);
		rx = bed_recv(&c, octets, sizeof(octets));
		if (rx > 0) {
			assert_true(bed_check(octets, (size_t)rx, got, 4));
			got += (uint64_t)rx;
		} else {
			assert_int_equal(rx, -EAGAIN);
			if (tx <= 0)
				bed.a->ops->wait(bed.a, 1000);
		}
		bed.a->ops->poll(bed.a, 64);
	}
	sdp_conn_close(&c);
	while (!sdp_conn_is_done(&c)) {
		bed.a->ops->wait(bed.a, 1000);
		bed.a->ops->poll(bed.a, 64);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	sdp_conn_fini(&c);
	assert_int_equal(bed.a->ops->close(bed.a), 0);
}

static void peer_that_is_killed_is_a_reset_when_it_is_told(void **state)
{
	static struct sdp_conn c;
	pid_t pid = fork_peer();
	int status;

	connect_peer(&c);
	assert_int_equal(bed_send(&c, "x", 1), 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	oti_local_peer_died(bed.a);
	bed.a->ops->poll(bed.a, 64);
	assert_true(bed_has(&c, SDP_IS_RESET));
	assert_int_equal(c.error, ECONNRESET);
	sdp_conn_fini(&c);
	assert_int_equal(bed.a->ops->close(bed.a), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_word_of_the_peer_may_lie),
		cmocka_unit_test(every_entry_may_come_at_any_time),
		cmocka_unit_test(clever_lies_end_the_connection),
		cmocka_unit_test(no_more_is_sent_than_the_peer_has_buffers_for),
		cmocka_unit_test(message_without_a_buffer_ends_the_connection),
		cmocka_unit_test(lies_about_terms_are_refused),
		cmocka_unit_test(scribbles_harm_no_other_peer),
		cmocka_unit_test(scribbles_anywhere_crash_nobody),
		cmocka_unit_test(close_and_shut_among_scribbles),
		cmocka_unit_test(scribbles_at_the_same_time_crash_nobody),
		cmocka_unit_test(regions_that_are_wrong_are_refused),
		cmocka_unit_test(two_processes_exchange_a_stream),
		cmocka_unit_test(peer_that_is_killed_is_a_reset_when_it_is_told),
	};

	(void)argc;
	bed_init(1, argv);
	/* An endless loop is a failure too. */
	alarm(ALARM_S);
	return cmocka_run_group_tests_name("hostile", tests, NULL, NULL);
}
