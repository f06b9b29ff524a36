/* SPDX-License-Identifier: MIT */
/*
 * The local transport against a peer that writes anything anywhere in the shared region (OS-23). It
 * may end its own connections or garble their octets; nothing else may happen: no crash, no endless
 * loop, no harm to the connections beside it whose memory it leaves alone. Run it under a sanitizer
 * as well: an access outside of the region would often go unnoticed otherwise.
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

/* ---- a region with two engines on each side ---- */

struct link {
	struct sdp_conn own;
	struct sdp_conn *c[2];
	uint64_t sent, got;
};

static struct bed_listener listener;
static struct link victim, bystander;

static void open_region(void)
{
	struct stat st;
	int fd = oti_local_region(&geo);

	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	region_len = (size_t)st.st_size;
	region = mmap(NULL, region_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(region, MAP_FAILED);
	assert_int_equal(oti_local_open(fd, 0, &bed.a), 0);
	assert_int_equal(oti_local_open(fd, 1, &bed.b), 0);
	close(fd);
}

/* What is left of connections that nobody can end any more goes with the transports. */
static void close_region(void)
{
	int a = bed.a->ops->close(bed.a), b = bed.b->ops->close(bed.b);

	assert_int_equal(a, 0);
	assert_int_equal(b, 0);
	munmap(region, region_len);
}

static void turn(void)
{
	bed.a->ops->poll(bed.a, 8);
	bed.b->ops->poll(bed.b, 8);
}

static void open_link(struct link *k)
{
	struct sdp_attr attr = { .oti = bed.a, .layout = SDP_IB, .bufs = 8, .buf_size = 512 };

	memset(k, 0, sizeof(*k));
	k->c[0] = &k->own;
	assert_int_equal(sdp_conn_init(k->c[0], &attr), 0);
	assert_int_equal(sdp_conn_connect(k->c[0], &listener.l.llp->local), 0);
	for (int i = 0; i < 100 && !k->c[1]; i++) {
		turn();
		k->c[1] = sdp_listener_accept(&listener.l);
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
	bed_free(&listener, k->c[1]);
}

static void open_scene(void)
{
	struct sdp_attr attr;

	open_region();
	attr = (struct sdp_attr) { .oti = bed.b, .layout = SDP_IB, .bufs = 8, .buf_size = 512 };
	bed_listen(&listener, &attr, 8);
	open_link(&victim);
	open_link(&bystander);
}

static void close_scene(void)
{
	close_link(&victim);
	close_link(&bystander);
	bed_unlisten(&listener);
	close_region();
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

static struct local_half *half(uint32_t slot, unsigned side)
{
	struct local l = { .geo = geo, .map = region };

	return local_region_half(&l, slot, side);
}

static size_t half_len(void)
{
	return (size_t)((uint8_t *)half(0, 1) - (uint8_t *)half(0, 0));
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

/* Bits that make the other side look everywhere. */
static void ring_all(void)
{
	struct local_header *h = (struct local_header *)region;

	h->bells[0].news[0] = h->bells[1].news[0] = ~0ull;
}

static uint32_t slot_of(const struct sdp_conn *c)
{
	return c->llp ? ((const struct local_conn *)c->llp)->slot : 0;
}

/* ---- tests ---- */

/* Each word of the peer's half by itself, each nasty value, on a fresh connection. */
static void every_word_of_the_peer_may_lie(void **state)
{
	static const uint32_t values[] = { 0,   1,   8,          9,          16,        17,
					   512, 513, 0x7fffffff, 0x80000000, 0xffffffff };
	size_t words;

	open_scene();
	words = half_len() / 4;
	close_scene();
	for (size_t w = 0; w < words; w++) {
		/* Private data and padding do not change anything once it is connected. */
		if (w >= offsetof(struct local_half, from) / 4 && w < sizeof(struct local_half) / 4)
			continue;
		for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
			volatile uint32_t *word;

			open_scene();
			exchange(&victim, 0);
			exchange(&victim, 1);
			word = (volatile uint32_t *)half(slot_of(victim.c[0]), 1) + w;
			*word = values[v];
			ring_all();
			for (int i = 0; i < 5; i++) {
				exchange(&victim, i & 1);
				exchange_well(&bystander);
			}
			close_scene();
		}
	}
}

static void every_phase_may_come_at_any_time(void **state)
{
	for (unsigned stage = 0; stage < 4; stage++) {
		for (uint32_t phase = 0; phase < 16; phase++) {
			for (int d = -1; d <= 1; d++) {
				struct sdp_attr attr;
				struct sdp_conn c;
				struct local_half *h;
				uint32_t slot;

				open_scene();
				attr = (struct sdp_attr) {
					.oti = bed.a, .layout = SDP_IB, .bufs = 8, .buf_size = 512
				};
				assert_int_equal(sdp_conn_init(&c, &attr), 0);
				assert_int_equal(sdp_conn_connect(&c, &listener.l.llp->local), 0);
				slot = slot_of(&c);
				for (unsigned i = 0; i < stage; i++)
					(i & 1 ? bed.a : bed.b)
						->ops->poll(i & 1 ? bed.a : bed.b, 1);
				/* As the peer's, then as ours. */
				h = half(slot, phase & 1);
				h->phase = (h->phase & ~0xffu) + ((uint32_t)d << 8) + phase;
				ring_all();
				for (int i = 0; i < 10; i++)
					turn();
				exchange_well(&bystander);
				assert_int_equal(c.illegal, 0);
				sdp_conn_fini(&c);
				turn();
				close_scene();
			}
		}
	}
}

/* ---- lies that look like the truth, one for each check ---- */

static struct local_entry *entry(struct local_half *h, uint32_t n)
{
	struct local l = { .geo = geo, .map = region };

	return local_region_ring(&l, h, n);
}

static _Atomic uint32_t *back(struct local_half *h, uint32_t n)
{
	struct local l = { .geo = geo, .map = region };

	return local_region_back(&l, h, n);
}

/* A well-formed Data message of `len` octets at the place of buffer `index`. */
static void forge(uint32_t slot, uint32_t index, uint32_t len)
{
	struct local l = { .geo = geo, .map = region };
	uint8_t *at = local_region_buffers(&l, slot, 1) + (size_t)index * geo.buf_size;
	struct sdp_msg m = { .mid = SDP_DATA,
			     .bufs = 8,
			     .mseq = victim.c[0]->credit.rx_next,
			     .mseq_ack = victim.c[0]->credit.tx_next - 1,
			     .payload_len = len - SDP_BSDH_LEN };

	assert_int_equal(sdp_encode(&m, at), SDP_BSDH_LEN);
}

/* The peer has sent one message; this changes what it says about it, before we look. */
static void lie(int which, uint32_t slot)
{
	struct local_half *h = half(slot, 1);
	uint32_t n = h->sent - 1;

	switch (which) {
	case 0: entry(h, n)->index = 8; break; /* behind our buffers */
	case 1: entry(h, n)->index = 0xffffffff; break;
	case 2: /* longer than our buffers; the header agrees */
		forge(slot, entry(h, n)->index, 513);
		entry(h, n)->len = 513;
		break;
	case 3:
		forge(slot, entry(h, n)->index, 0x7fffffff);
		entry(h, n)->len = 0x7fffffff;
		break;
	case 4: /* in a buffer that we hold */
		entry(h, n)->index = entry(h, n - 1)->index;
		entry(h, n)->len = 400;
		forge(slot, entry(h, n)->index, 400);
		break;
	case 5: h->sent = n + 10; break; /* more than we have buffers */
	case 6: h->sent = n - 1; break;  /* fewer than before */
	case 7:                          /* gives back a buffer that is not there */
		*back(h, h->given) = 8;
		h->given++;
		break;
	case 8: /* and one that it does not have */
		*back(h, h->given) = 7;
		h->given++;
		break;
	case 9: h->given += 17; break;
	case 10: h->phase += 256; break; /* of another connection */
	case 11: h->phase = (h->phase & ~0xffu) | PHASE_N; break;
	default: h->phase = (h->phase & ~0xffu) | 0xff; break;
	}
}

static void drain_pool(struct oti_conn *llp)
{
	struct oti_buf *bufs[16];
	unsigned n = 0;

	while (n < 16 && (bufs[n] = llp->ops->buf_get(llp)))
		n++;
	/* Never more than the peer's buffers. */
	assert_true(n <= 8);
	while (n)
		llp->ops->buf_put(llp, bufs[--n]);
}

static void clever_lies_end_the_connection(void **state)
{
	for (int which = 0; which < 13; which++) {
		uint8_t octets[3000] = { 0 };
		uint32_t slot;

		open_scene();
		slot = slot_of(victim.c[0]);
		assert_int_equal(bed_send(victim.c[1], octets, 400), 400);
		turn();
		assert_int_equal(victim.c[0]->unread, 400);
		assert_int_equal(bed_send(victim.c[1], octets, 400), 400);
		lie(which, slot);
		ring_all();
		/* Buffers given back are looked at when none are left. */
		drain_pool(victim.c[0]->llp);
		bed.a->ops->poll(bed.a, 8);
		if (!bed_has(victim.c[0], SDP_IS_RESET))
			fail_msg("lie %d was believed", which);
		exchange_well(&bystander);
		close_scene();
	}
}

/* Terms of a request or an answer that the region has no room for. */
static void lies_about_terms_are_refused(void **state)
{
	static const uint32_t values[] = { 0, 17, 0xffffffff };

	for (int i = 0; i < 18; i++) {
		struct sdp_attr attr;
		struct local_half *h;
		struct sdp_conn c;
		uint32_t value = values[i % 3];
		unsigned side = i / 9;

		open_scene();
		attr = (struct sdp_attr) {
			.oti = bed.a, .layout = SDP_IB, .bufs = 8, .buf_size = 512
		};
		assert_int_equal(sdp_conn_init(&c, &attr), 0);
		assert_int_equal(sdp_conn_connect(&c, &listener.l.llp->local), 0);
		h = half(slot_of(&c), side);
		/* The answer is there, and has not been looked at. */
		if (side == 1)
			bed.b->ops->poll(bed.b, 1);
		switch (i / 3 % 3) {
		case 0: h->bufs = value; break;
		case 1: h->buf_size = value == 17 ? 1025 : value; break;
		default: h->private_len = value == 17 ? LOCAL_PRIVATE_MAX + 1 : value; break;
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

/* Only the memory of one connection: its octets may be garbled, those beside it may not. */
static void scribbles_over_one_connection_harm_no_other(void **state)
{
	open_scene();
	for (int i = 0; i < 50000; i++) {
		uint32_t slot = slot_of(victim.c[0]);
		unsigned side = dice(2);

		/* The half of the peer; seldom also our own, which nobody should read back. */
		scribble((uint8_t *)half(slot, side), half_len());
		if (dice(4) == 0) {
			struct local l = { .geo = geo, .map = region };

			scribble(local_region_buffers(&l, slot, side),
				 (size_t)geo.bufs * geo.buf_size);
		}
		ring_all();
		exchange(&victim, (int)dice(2));
		exchange_well(&bystander);
		if (i % 16 == 15 || sdp_conn_status(victim.c[0]) & SDP_IS_RESET)
			reopen_victim();
	}
	close_scene();
}

static void scribbles_anywhere_crash_nobody(void **state)
{
	size_t control;

	open_scene();
	control = LOCAL_HEADER_LEN + 2 * geo.slots * half_len();
	for (int i = 0; i < 100000; i++) {
		/* Mostly where the numbers are. */
		scribble(region, dice(8) ? control : region_len);
		if (dice(2))
			ring_all();
		exchange(&victim, (int)dice(2));
		exchange(&bystander, (int)dice(2));
		if (i % 20 == 19)
			reopen_victim();
	}
	close_scene();
}

static void close_and_shut_among_scribbles(void **state)
{
	open_scene();
	for (int i = 0; i < 20000; i++) {
		uint32_t slot = slot_of(victim.c[0]);

		scribble((uint8_t *)half(slot, dice(2)), sizeof(struct local_half));
		ring_all();
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
		size_t control;
		pid_t pid;

		open_scene();
		control = LOCAL_HEADER_LEN + 2 * geo.slots * half_len();
		dice_state += 12345;
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			for (;;) {
				scribble(region, control);
				ring_all();
			}
		}
		for (int i = 0; i < 2000; i++) {
			exchange(&victim, (int)dice(2));
			exchange(&bystander, (int)dice(2));
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
	struct local_header good = { .magic = LOCAL_MAGIC }, h;
	struct oti_local_geometry bad = geo;
	struct stat st;
	struct oti *o;
	int fd = oti_local_region(&geo);

	assert_int_equal(fstat(fd, &st), 0);
	good.slots = geo.slots;
	good.bufs = geo.bufs;
	good.buf_size = geo.buf_size;
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
	for (int i = 0; i < 3; i++) {
		static const uint32_t values[] = { 0, 1, 3, 63, 0x7fffffff, 0xffffffff };

		for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
			h = good;
			*(i == 0 ? &h.slots : i == 1 ? &h.bufs : &h.buf_size) = values[v];
			expect_refusal(make_region((size_t)st.st_size, &h, sizeof(h), seals));
		}
	}
	bad.slots = 7;
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
	bed_listen(&listener, &attr, 4);
	while (!(c = sdp_listener_accept(&listener.l))) {
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
		cmocka_unit_test(every_phase_may_come_at_any_time),
		cmocka_unit_test(clever_lies_end_the_connection),
		cmocka_unit_test(lies_about_terms_are_refused),
		cmocka_unit_test(scribbles_over_one_connection_harm_no_other),
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
