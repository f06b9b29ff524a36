/* SPDX-License-Identifier: MIT */
/*
 * Attacks through memory: a process of its own (duct_peer.h) shares a duct with an engine on which a healthy pair exchanges
 * verified data all the time. It may end its own connection, and nothing else happens: the pair goes on, no octet changes that was not
 * granted, no descriptor and no memory stays.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "hostile/duct_peer.h"
#include "wire/ddp.h"
#include "wire/rdmap.h"

#define AREA     65536u
#define GUARD    4096u
#define RECEIVES 8
#define SENDS    32
#define PATIENCE 15000

typedef void attack_fn(struct duct_peer *p);

static struct pair healthy;
static pthread_t heart;
static atomic_ulong beats;
static atomic_bool stop_beating, heart_failed;

static struct {
	struct flue_pd *pd;
	struct flue_cq *cq;
	struct flue_qp *qp;
	struct flue_mr *mr;
	uint8_t *memory;
	pid_t child;
	int go; /* an octet there: the attack begins */
	int files;
	uint32_t posted;
} scene;

/* ---- the healthy pair ---- */

static bool exchange(uint32_t seed)
{
	struct pair_side *a = &healthy.a, *b = &healthy.b;
	uint32_t n = 1 + seed * 37 % 9000;

	pair_fill(a->mem, n, seed);
	return pair_recv(b, 65536, n, 1) && pair_send(a, 0, n, 2, FLUE_SIGNALED) &&
	       pair_expect(a->send_cq, 2, FLUE_WC_SUCCESS) &&
	       pair_expect(b->recv_cq, 1, FLUE_WC_SUCCESS) &&
	       pair_check(b->mem + 65536, n, seed) == n;
}

static void *beat(void *arg)
{
	for (uint32_t seed = 1; !atomic_load(&stop_beating); seed++) {
		if (!exchange(seed)) {
			atomic_store(&heart_failed, true);
			return arg;
		}
		atomic_fetch_add(&beats, 1);
		usleep(300);
	}
	return arg;
}

static void expect_health(void)
{
	unsigned long now = atomic_load(&beats);
	uint64_t end = pair_now_ms() + PATIENCE;

	while (atomic_load(&beats) < now + 10 && !atomic_load(&heart_failed)) {
		if (pair_now_ms() > end)
			fail_msg("the healthy pair hangs");
		usleep(200);
	}
	assert_false(atomic_load(&heart_failed));
}

/* ---- the scene ---- */

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static long resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long all, resident = 0;

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%ld %ld", &all, &resident), 2);
	fclose(f);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static struct flue_qp *make_victim(void)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = attr.recv_cq = scene.cq;
	attr.sq_depth = SENDS;
	attr.rq_depth = RECEIVES;
	return scene.pd->ops->create_qp(scene.pd, &attr);
}

static int open_scene(void **state)
{
	(void)state;
	if (!pair_open(&healthy, &(struct pair_options)PAIR_DEFAULTS) ||
	    pthread_create(&heart, NULL, beat, NULL) != 0)
		return -1;
	scene.pd = flue_create_pd(healthy.a.adapter);
	scene.cq = flue_create_cq(healthy.a.adapter, 256);
	scene.memory = malloc(2 * GUARD + AREA);
	memset(scene.memory, 0xa5, 2 * GUARD + AREA);
	scene.mr = flue_register(scene.pd, scene.memory + GUARD, AREA, FLUE_LOCAL_WRITE);
	return scene.mr ? 0 : -1;
}

static int close_scene(void **state)
{
	(void)state;
	atomic_store(&stop_beating, true);
	pthread_join(heart, NULL);
	free(scene.memory);
	return flue_deregister(scene.mr) && flue_destroy_cq(scene.cq) &&
			       flue_destroy_pd(scene.pd) && pair_close(&healthy)
		       ? 0
		       : -1;
}

/* In the child: nothing of the parent's is kept but what must be. */
static void begin_child(struct duct_peer *p, int keep)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(keep, 3);
	closefrom(4);
	signal(SIGPIPE, SIG_IGN);
	memset(p, 0, sizeof(*p));
	duct_open_box(p);
}

/* A peer that connects, attacks when it is told to, and then only stays. */
static void start_attack(attack_fn *fn)
{
	const struct sockaddr_in *to = (struct sockaddr_in *)&healthy.listener->local;
	struct duct_peer p;
	int go[2];
	char octet;

	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	scene.child = fork();
	assert_true(scene.child >= 0);
	if (scene.child) {
		close(go[0]);
		scene.go = go[1];
		return;
	}
	begin_child(&p, go[0]);
	duct_dial(&p, to);
	duct_be_ready(&p);
	MUST(read(3, &octet, 1) == 1);
	fn(&p);
	for (;;)
		pause();
}

static void post_receives(void)
{
	struct flue_sge sge = flue_mr_sge(scene.mr, 0, 4096);
	struct flue_recv_wr wr = { .sg = &sge, .n_sg = 1 };

	for (wr.id = 0; wr.id < RECEIVES; wr.id++)
		assert_true(flue_post_recv(scene.qp, &wr));
	scene.posted = RECEIVES;
}

static void post_sends(void)
{
	struct flue_sge sge = flue_mr_sge(scene.mr, 0, AREA);
	struct flue_send_wr wr = {
		.id = 99, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED, .sg = &sge, .n_sg = 1
	};

	for (int i = 0; i < SENDS; i++)
		assert_true(flue_post_send(scene.qp, &wr));
	scene.posted += SENDS;
}

static void enter(attack_fn *fn)
{
	struct flue_conn_request *req;

	scene.files = open_files();
	scene.qp = make_victim();
	assert_non_null(scene.qp);
	post_receives();
	start_attack(fn);
	req = healthy.listener->ops->get_request(healthy.listener, PATIENCE);
	assert_non_null(req);
	assert_true(req->ops->accept(req, scene.qp, NULL));
	assert_int_equal(write(scene.go, "", 1), 1);
	close(scene.go);
}

/* The next event of the victim's that is its end. */
static bool has_ended(int ms)
{
	struct flue_event ev;

	while (flue_get_event(healthy.a.adapter, &ev, ms))
		if (ev.type == FLUE_EVENT_DISCONNECTED && ev.u.qp == scene.qp)
			return true;
	return false;
}

static void end_child(void)
{
	int status;

	/* It may have failed by itself, which is not what the test is about. */
	if (waitpid(scene.child, &status, WNOHANG) == scene.child)
		fail_msg("the hostile peer ended with %x", (unsigned)status);
	assert_int_equal(kill(scene.child, SIGKILL), 0);
	assert_int_equal(waitpid(scene.child, &status, 0), scene.child);
}

static void leave(void)
{
	uint64_t end = pair_now_ms() + PATIENCE;
	struct flue_wc wc[RECEIVES + SENDS];

	/* Every request comes back once. */
	assert_int_equal(pair_take(scene.cq, wc, scene.posted, PATIENCE), scene.posted);
	assert_int_equal(pair_take(scene.cq, wc, 1, 0), 0);
	assert_true(flue_destroy_qp(scene.qp));
	for (uint32_t i = 0; i < GUARD; i++) {
		assert_int_equal(scene.memory[i], 0xa5);
		assert_int_equal(scene.memory[GUARD + AREA + i], 0xa5);
	}
	while (open_files() != scene.files && pair_now_ms() < end)
		usleep(1000);
	assert_int_equal(open_files(), scene.files);
	expect_health();
}

/* The connection ends, though the peer lives and keeps everything open. */
static void ends_by(attack_fn *fn)
{
	enter(fn);
	assert_true(has_ended(PATIENCE));
	expect_health();
	end_child();
	leave();
}

/* It is allowed, or only harms the peer itself: the connection is there until the peer is not. */
static void bears(attack_fn *fn, bool busy)
{
	long before = resident_kib();

	enter(fn);
	if (busy)
		post_sends();
	for (int i = 0; i < 5; i++) {
		expect_health();
		usleep(60000);
	}
	assert_int_equal(flue_qp_state(scene.qp), FLUE_QP_RTS);
	assert_in_range(resident_kib() - before + 8192, 0, 16384);
	end_child();
	assert_true(has_ended(PATIENCE));
	leave();
}

/* ---- words ---- */

static void length_beyond_a_record(struct duct_peer *p)
{
	duct_put_word(p, DUCT_PRESENT | (32 * 1024));
	duct_ring(p);
}

static void word_of_ones(struct duct_peer *p)
{
	duct_put_word(p, ~0ull);
	duct_ring(p);
}

static void word_that_is_not_present(struct duct_peer *p)
{
	duct_put_word(p, 1ull << 40 | 16);
	duct_ring(p);
}

static void skips_for_ever(struct duct_peer *p)
{
	p->tail = 0;
	duct_put_word(p, DUCT_SKIP | DUCT_PRESENT);
	p->tail = 64; /* where it is by now */
	duct_put_word(p, DUCT_SKIP | DUCT_PRESENT);
	duct_ring(p);
}

static void record_over_the_end_of_the_ring(struct duct_peer *p)
{
	while ((p->tail & (DUCT_RING - 1)) != DUCT_RING - 640)
		duct_put(p, 0x123456, KIND_TAKEN, 0, 0, NULL, 0);
	duct_put_word(p, DUCT_PRESENT | 1000);
	duct_ring(p);
}

static void head_that_cannot_be(struct duct_peer *p)
{
	atomic_store(duct_head(p, p->side), 0x40000000);
	duct_ring(p);
}

static void words_that_cannot_be_end_the_connection(void **state)
{
	(void)state;
	ends_by(length_beyond_a_record);
	ends_by(word_of_ones);
	ends_by(word_that_is_not_present);
	ends_by(skips_for_ever);
	ends_by(record_over_the_end_of_the_ring);
}

/* It is looked at when there seems to be no room. */
static void head_that_cannot_be_ends_the_connection(void **state)
{
	(void)state;
	enter(head_that_cannot_be);
	usleep(50000);
	post_sends();
	assert_true(has_ended(PATIENCE));
	end_child();
	leave();
}

/* ---- records ---- */

static void short_record(struct duct_peer *p)
{
	duct_put_word(p, DUCT_PRESENT | 7);
	duct_ring(p);
}

static void unknown_kind(struct duct_peer *p)
{
	duct_put(p, p->circuit, 5, 0, 0, NULL, 0);
	duct_ring(p);
}

static void gate_that_cannot_be(struct duct_peer *p)
{
	duct_put(p, p->circuit, 4, 1, 0x8000, NULL, 0);
	duct_ring(p);
}

/* We have shown it nothing that it could read. */
static void reference_to_nothing(struct duct_peer *p)
{
	duct_put(p, p->circuit, KIND_DATA, 1, 0, "\0\0\0\0", 4);
	duct_ring(p);
}

static void unknown_kind_for_nobody(struct duct_peer *p)
{
	duct_put(p, 0x123456, 0xff, 0, 0, NULL, 0);
	duct_ring(p);
}

static void zero_that_is_none(struct duct_peer *p)
{
	duct_put(p, p->circuit, KIND_DATA, 0, 1, NULL, 0);
	duct_ring(p);
}

static void segment_of_nothing(struct duct_peer *p)
{
	duct_put(p, p->circuit, KIND_DATA, 0, 0, NULL, 0);
	duct_ring(p);
}

static void segment_of_garbage(struct duct_peer *p)
{
	uint8_t data[2000];

	for (uint32_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + 255);
	duct_put(p, p->circuit, KIND_DATA, 0, 0, data, sizeof(data));
	duct_ring(p);
}

static void write_to_others_memory(struct duct_peer *p)
{
	const struct ddp_params version = { .dv = 1, .rv = 1, .full = true };
	struct ddp_segment s = { .opcode = RDMAP_WRITE, .tagged = true, .last = true };
	uint8_t data[DDP_HDR_MAX + 1000];

	/* Keys are guessed: the rights are not there, or the key is not. */
	for (uint32_t i = 0; i < 64; i++) {
		size_t n;

		s.stag = i << 8;
		n = ddp_encode(&version, &s, data);
		memset(data + n, 0xee, 1000);
		duct_put(p, p->circuit, KIND_DATA, 0, 0, data, n + 1000);
	}
	duct_ring(p);
}

static void records_that_cannot_be_end_the_connection(void **state)
{
	(void)state;
	ends_by(short_record);
	ends_by(unknown_kind);
	ends_by(gate_that_cannot_be);
	ends_by(reference_to_nothing);
	ends_by(unknown_kind_for_nobody);
	ends_by(zero_that_is_none);
	ends_by(segment_of_nothing);
	ends_by(segment_of_garbage);
	ends_by(write_to_others_memory);
}

/* ---- circuits of others ---- */

static void closes_everybody(struct duct_peer *p)
{
	for (uint32_t generation = 0; generation < 64; generation++) {
		for (uint32_t i = 0; i < 64; i++) {
			uint32_t number = generation << 20 | i;

			if (number != p->circuit)
				duct_put(p, number, (uint8_t)(generation + i) % 4, 0, 0, NULL, 0);
		}
		duct_ring(p);
	}
	duct_put(p, ~0u, KIND_CLOSE, 0, 0, NULL, 0);
	duct_put(p, 0x000fffff, KIND_CLOSE, 0, 0, NULL, 0);
	duct_ring(p);
}

static void fins_and_takens(struct duct_peer *p)
{
	for (int i = 0; i < 20000; i++) {
		duct_put(p, p->circuit, KIND_TAKEN, (uint8_t)i, 0, NULL, 0);
		if (i % 100 == 0)
			duct_ring(p);
	}
	duct_ring(p);
}

static void fins(struct duct_peer *p)
{
	for (int i = 0; i < 100; i++)
		duct_put(p, p->circuit, KIND_FIN, 0, 0, NULL, 0);
	for (int i = 0; i < 100; i++)
		duct_put(p, p->circuit, KIND_CLOSE, (uint8_t)i, 0, NULL, 0);
	duct_ring(p);
}

static void circuits_of_others_are_out_of_reach(void **state)
{
	(void)state;
	bears(closes_everybody, false);
	bears(fins_and_takens, false);
	ends_by(fins);
}

/* ---- what is not taken, and too much of it ---- */

static void does_nothing(struct duct_peer *p)
{
	(void)p;
}

static void sends_without_end(struct duct_peer *p)
{
	const struct ddp_params version = { .dv = 1, .rv = 1, .full = true };
	static uint8_t data[DDP_HDR_MAX + 8000];

	for (uint32_t i = 0;; i++) {
		struct ddp_segment s = {
			.opcode = RDMAP_SEND, .last = true, .qn = DDP_QN_SEND, .msn = i + 1
		};

		/* Nobody has receives for so many. */
		duct_put(p, p->circuit, KIND_DATA, 0, 0, data,
			 ddp_encode(&version, &s, data) + i % 4000);
		if (i % 16 == 0)
			duct_ring(p);
	}
}

static void rings_without_end(struct duct_peer *p)
{
	static char octets[65536];

	for (;;)
		if (send(p->sock, octets, sizeof(octets), MSG_NOSIGNAL) < 0)
			return;
}

static void nobody_else_waits_for_who_takes_nothing(void **state)
{
	(void)state;
	bears(does_nothing, true);
}

static void floods_cost_their_sender(void **state)
{
	(void)state;
	bears(sends_without_end, false);
	bears(rings_without_end, false);
}

/* ---- memory that changes ---- */

static void changes_what_is_read(struct duct_peer *p)
{
	uint64_t random = 88172645463325252ull;

	for (uint64_t i = 0;; i++) {
		random ^= random << 13;
		random ^= random >> 7;
		random ^= random << 17;
		if (i % 8 == 0) {
			uint32_t at = (uint32_t)random & (DUCT_RING - 1) & ~63u;

			atomic_store((_Atomic uint64_t *)(void *)(duct_out(p) + at),
				     DUCT_PRESENT | (random >> 32 & 0x3ff));
		} else if (i % 8 == 1) {
			memcpy(duct_out(p) + (random & (DUCT_RING - 1) & ~63u) + 8, &p->circuit, 4);
		} else {
			duct_out(p)[random >> 20 & (DUCT_RING - 1)] = (uint8_t)random;
		}
		if (i % 64 == 0)
			duct_ring(p);
	}
}

static void memory_that_changes_ends_the_connection(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++)
		ends_by(changes_what_is_read);
}

/* ---- ends ---- */

static void closes_the_socket_only(struct duct_peer *p)
{
	close(p->sock);
}

static void shuts_the_socket_only(struct duct_peer *p)
{
	shutdown(p->sock, SHUT_WR);
}

static void end_of_the_socket_is_the_end(void **state)
{
	(void)state;
	ends_by(closes_the_socket_only);
	ends_by(shuts_the_socket_only);
}

/* ---- ducts that are none ---- */

enum {
	UNSEALED,
	TOO_SHORT,
	NO_FILE,
	SWAPPED,
	NO_SOCKET,
	ONE_ONLY,
	NO_LETTER,
	OTHER_NAME,
	MANY,
	N_BAD
};

static int unsealed(size_t size)
{
	const uint64_t magic = 0x666c756564756331ull;
	int fd = memfd_create("duct", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, (off_t)size) == 0 && pwrite(fd, &magic, 8, 0) == 8);
	return fd;
}

static void send_bad_letter(struct duct_peer *p, int how)
{
	int fds[2] = { how == UNSEALED    ? unsealed(DUCT_SIZE)
		       : how == TOO_SHORT ? unsealed(DUCT_SIZE - 4096)
		       : how == NO_FILE   ? open("/dev/null", O_RDWR)
					  : duct_make_memory() };
	int pair[2], t;

	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	p->sock = pair[0];
	fds[1] = how == NO_SOCKET ? open("/dev/zero", O_RDWR) : pair[1];
	if (how == TOO_SHORT)
		MUST(fcntl(fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	if (how == SWAPPED) {
		t = fds[0];
		fds[0] = fds[1];
		fds[1] = t;
	}
	for (int i = 0; i < (how == MANY ? 300 : 1) && how != NO_LETTER; i++)
		duct_send_letter(p, how == OTHER_NAME || how == MANY ? 1000 + (uint64_t)i : 1, fds,
				 how == ONE_ONLY ? 1 : 2);
}

/* Whoever cannot join the duct that the answer names has no connection, and says so in time. */
static void call_answered_badly(int how)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);
	struct duct_peer p;
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), before = open_files();

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(door, (struct sockaddr *)&at, len), 0);
	assert_int_equal(listen(door, 4), 0);
	assert_int_equal(getsockname(door, (struct sockaddr *)&at, &len), 0);
	scene.qp = make_victim();
	scene.child = fork();
	if (scene.child == 0) {
		begin_child(&p, door);
		duct_be_called(&p, 3);
		send_bad_letter(&p, how);
		duct_reply(&p, 1, 12345);
		for (;;)
			pause();
	}
	attr.remote = (struct sockaddr *)&at;
	attr.remote_len = sizeof(at);
	attr.flags = FLUE_CONN_FULL;
	attr.timeout_ms = 5000;
	assert_false(scene.qp->ops->connect(scene.qp, &attr));
	expect_health();
	end_child();
	assert_true(flue_destroy_qp(scene.qp));
	/* Letters that nobody asks for stay, a bounded number of them; the others' descriptors are closed. */
	assert_in_range(open_files() - before, 0, how == MANY || how == OTHER_NAME ? 2 * 64 : 0);
	close(door);
	expect_health();
}

static void ducts_that_are_none_are_refused(void **state)
{
	(void)state;
	for (int how = 0; how < N_BAD; how++)
		call_answered_badly(how);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_that_cannot_be_end_the_connection),
		cmocka_unit_test(head_that_cannot_be_ends_the_connection),
		cmocka_unit_test(records_that_cannot_be_end_the_connection),
		cmocka_unit_test(circuits_of_others_are_out_of_reach),
		cmocka_unit_test(nobody_else_waits_for_who_takes_nothing),
		cmocka_unit_test(floods_cost_their_sender),
		cmocka_unit_test(memory_that_changes_ends_the_connection),
		cmocka_unit_test(end_of_the_socket_is_the_end),
		cmocka_unit_test(ducts_that_are_none_are_refused),
	};

	/* Both ends of the pair, and the victim, on one engine: whoever holds it up holds up all. */
	pair_use(COLUMN_SELF);
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("duct", tests, open_scene, close_scene);
}
