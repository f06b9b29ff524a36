/* SPDX-License-Identifier: MIT */
/*
 * A crowd on one trunk: ten thousand circuits between two processes, each with a random stream or random messages both ways,
 * opened, refused, shut and cut at random. Some receivers never read; the others must not notice. At the end
 * every circuit is free and every block is at home.
 *
 *   crowd [--seed N] [--lives N] [--circuits N]      until so many circuits have lived
 *   crowd --kill ROUNDS ...                          one of the two is killed in the middle, again and again;
 *                                                    the other must find out and end by itself
 *
 * Both ends of a circuit make the same octets from what the opener greets with, so each octet is checked.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/own.h"
#include "base/self.h"
#include "base/util.h"
#include "channel/trunk_priv.h"

#define CHECK(cond)                                                                         \
	do {                                                                                \
		if (!(cond)) {                                                              \
			fprintf(stderr, "side %u, seed %llu: %s:%d: %s\n", me,              \
				(unsigned long long)first_seed, __FILE__, __LINE__, #cond); \
			abort();                                                            \
		}                                                                           \
	} while (0)

#define LONGEST 4000
#define CUT     7 /* codes */
#define REFUSED 3

static uint64_t first_seed = 1, lives_wanted = 60000;
static uint32_t circuits = 10000;
static unsigned me;

/* What the three processes share. */
static struct shared {
	_Atomic uint64_t lives[2]; /* circuits of this side that ended in order */
	_Atomic uint64_t octets[2], messages[2], most[2];
	_Atomic uint32_t stop, home;
} * shared;

/* What goes with an opening. */
struct greeting {
	uint64_t seed;
	uint32_t length[2]; /* octets from opener and answerer */
	uint32_t stream;
	uint32_t stalls[2]; /* the opener, or the answerer, never reads */
};

struct end {
	enum { NONE, OPENING, LIVE } state;
	unsigned role; /* 0: opener */
	struct greeting g;
	uint64_t sent, got;
	uint32_t n_sent, n_got; /* messages */
	bool shut, over, stalled;
};

static struct trunk *t;
static struct end *ends;
static uint32_t n_ours, n_live;
static uint64_t dice_state;

static uint32_t dice(uint32_t sides)
{
	dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(dice_state >> 33) % sides;
}

static uint8_t octet(const struct end *e, unsigned from, uint64_t at)
{
	return (uint8_t)((e->g.seed + from * 77 + at) * 0x9e3779b97f4a7c15ull >> 56);
}

/* --- ends */

static void forget(uint32_t c)
{
	if (ends[c].role == 0)
		n_ours--;
	n_live--;
	ends[c].state = NONE;
}

static void finish(uint32_t c)
{
	struct end *e = &ends[c];

	if (e->shut && e->over) {
		trunk_drop(t, c, 0);
		atomic_fetch_add(&shared->lives[me], e->role == 0);
		forget(c);
	}
}

static void cut(uint32_t c)
{
	trunk_drop(t, c, CUT);
	forget(c);
}

/* --- sending */

/* False: it must wait. */
static bool send_piece(uint32_t c)
{
	static uint8_t data[LONGEST];
	struct end *e = &ends[c];
	size_t left = e->g.length[e->role] - e->sent, n = min_size(left, 1 + dice(LONGEST));
	struct iovec iov[2];
	ssize_t rc;

	if (!e->g.stream)
		n = min_size(left, dice(3 * t->shape.block_size));
	for (size_t i = 0; i < n; i++)
		data[i] = octet(e, e->role, e->sent + i);
	iov[0] = (struct iovec) { data, n / 3 };
	iov[1] = (struct iovec) { data + n / 3, n - n / 3 };
	rc = trunk_send(t, c, iov, 2, (uint8_t)e->n_sent, e->g.stream ? 0 : TRUNK_WHOLE);
	if ((rc == -EAGAIN || rc == -EMSGSIZE) && n > t->shape.block_size && !e->g.stream) {
		/* What can be relied on. */
		iov[0] = (struct iovec) { data, t->shape.block_size };
		rc = trunk_send(t, c, iov, 1, (uint8_t)e->n_sent, TRUNK_WHOLE);
	}
	if (rc == -EAGAIN)
		return false;
	if (rc == -EPIPE) /* cut by the other end, and not told yet */
		return false;
	CHECK(rc >= 0 && (size_t)rc <= n && (rc > 0 || n == 0));
	e->n_sent++;
	e->sent += (uint64_t)rc;
	return true;
}

static void send_some(uint32_t c)
{
	struct end *e = &ends[c];

	if (e->state != LIVE || e->shut)
		return;
	for (int i = 0; i < 4; i++) {
		if (e->sent == e->g.length[e->role]) {
			if (trunk_shut(t, c) == 0) {
				e->shut = true;
				finish(c);
			}
			return;
		}
		if (!send_piece(c))
			return;
	}
}

/* --- receiving */

static void check(const struct end *e, const uint8_t *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		CHECK(data[i] == octet(e, !e->role, e->got + i));
}

/* As a block, in one piece, or in two. What trunk_recv() says. */
static ssize_t read_piece(uint32_t c, struct end *e)
{
	static uint8_t data[LONGEST];
	size_t n = 1 + dice(LONGEST - 1), cut_at = dice((uint32_t)n);
	struct iovec iov[2] = { { data, cut_at }, { data + cut_at, n - cut_at } };
	struct trunk_message m = { 0 };
	struct trunk_block b;
	ssize_t rc;

	if (e->g.stream && dice(4) == 0) {
		rc = trunk_take(t, c, &b);
		if (rc == 1) {
			check(e, b.data, b.size);
			rc = (ssize_t)b.size;
			trunk_give(t, b.index);
			return rc ? rc : -EINPROGRESS;
		}
		return rc;
	}
	rc = trunk_recv(t, c, iov, 2, e->g.stream ? 0 : TRUNK_MESSAGE, &m);
	if (rc == -EMSGSIZE) {
		CHECK(m.size > n && m.end);
		return -EINPROGRESS;
	}
	if (rc > 0)
		check(e, data, (size_t)rc);
	if (rc >= 0 && !e->g.stream && m.end) {
		CHECK(m.kind == (uint8_t)e->n_got && m.size == (size_t)rc);
		e->n_got++;
		atomic_fetch_add_explicit(&shared->messages[me], 1, memory_order_relaxed);
		return rc ? rc : -EINPROGRESS;
	}
	return rc;
}

static void read_all(uint32_t c)
{
	struct end *e = &ends[c];
	ssize_t rc;

	if (e->state != LIVE || e->over || e->g.stalls[e->role])
		return;
	while ((rc = read_piece(c, e)) > 0 || rc == -EINPROGRESS) {
		if (rc < 0)
			continue;
		e->got += (uint64_t)rc;
		atomic_fetch_add_explicit(&shared->octets[me], (uint64_t)rc, memory_order_relaxed);
		CHECK(e->got <= e->g.length[!e->role]);
	}
	if (rc == 0) {
		CHECK(e->got == e->g.length[!e->role]);
		e->over = true;
		finish(c);
	} else {
		CHECK(rc == -EAGAIN || rc == -ECONNRESET);
	}
}

/* --- events */

static void begin(uint32_t c, unsigned role, const struct greeting *g, int state)
{
	ends[c] = (struct end) { .state = state, .role = role, .g = *g };
	n_live++;
	if (role == 0)
		n_ours++;
}

static void open_one(void)
{
	struct greeting g = { .seed = (uint64_t)dice(1u << 30) << 20,
			      .length = { dice(6000), dice(6000) },
			      .stream = dice(2),
			      .stalls = { dice(24) == 0, dice(24) == 0 } };
	int c = trunk_open(t, &g, sizeof(g), NULL);

	if (c >= 0)
		begin((uint32_t)c, 0, &g, OPENING);
	else
		CHECK(c == -ENOSPC || c == -EPIPE);
}

static void answer_one(uint32_t c)
{
	struct greeting g;
	int rc;

	CHECK(trunk_greeting(t, c, &g, sizeof(g)) == (ssize_t)sizeof(g));
	if (dice(32) == 0) {
		rc = trunk_refuse(t, c, REFUSED, "busy", 4);
		CHECK(rc == 0 || rc == -ECONNRESET);
		return;
	}
	rc = trunk_accept(t, c, "come", 4, NULL);
	if (rc == -ECONNRESET) {
		trunk_drop(t, c, 0);
		return;
	}
	CHECK(rc == 0);
	begin(c, 1, &g, LIVE);
}

static void accepted(uint32_t c)
{
	char text[4];

	CHECK(trunk_greeting(t, c, text, 4) == 4 && memcmp(text, "come", 4) == 0);
	ends[c].state = LIVE;
}

static void handle(const struct trunk_event *ev)
{
	uint32_t c = ev->circuit;
	char text[4];

	if (ev->bits & TRUNK_OPENED && !(ev->bits & TRUNK_ENDED))
		answer_one(c);
	else if (ev->bits & TRUNK_OPENED)
		trunk_drop(t, c, 0);
	if (ends[c].state == NONE)
		return;
	if (ev->bits & TRUNK_REFUSED) {
		CHECK(ev->code == REFUSED && trunk_greeting(t, c, text, 4) == 4);
		trunk_drop(t, c, 0);
		forget(c);
		return;
	}
	if (ev->bits & TRUNK_ACCEPTED)
		accepted(c);
	if (ev->bits & (TRUNK_READABLE | TRUNK_SHUT | TRUNK_ENDED))
		read_all(c);
	if (ends[c].state != NONE && ev->bits & TRUNK_ENDED) {
		trunk_drop(t, c, 0);
		forget(c);
	} else if (ev->bits & (TRUNK_WRITABLE | TRUNK_ACCEPTED)) {
		send_some(c);
	}
}

/* --- a process */

static void act(void)
{
	for (int i = 0; i < 256 && n_ours < circuits / 2; i++)
		open_one();
	for (int i = 0; i < 64; i++) {
		uint32_t c = dice(circuits);

		send_some(c);
		/* Those that stall would live for ever. */
		if (ends[c].state == LIVE &&
		    dice(ends[c].g.stalls[0] | ends[c].g.stalls[1] ? 400 : 4000) == 0)
			cut(c);
	}
}

static void sleep_a_little(void)
{
	struct pollfd p = { .fd = trunk_fd(t), .events = POLLIN };

	if (me == 0) {
		trunk_wait(t, 5);
	} else if (trunk_arm(t) && poll(&p, 1, 5) == 1) {
		trunk_heard(t);
	}
}

static bool is_home(void)
{
	for (uint32_t c = 0; c < t->shape.circuits; c++)
		if (t->circuit[c].state != CIRCUIT_FREE)
			return false;
	return t->n_free == t->shape.blocks && t->surplus_used == 0 && t->n_starved == 0;
}

/* All that is left goes; then nothing may be missing. */
static void go_home(void)
{
	struct trunk_event ev[64];
	bool told = false;
	int n;

	for (uint32_t c = 0; c < circuits; c++)
		if (ends[c].state != NONE)
			cut(c);
	while (atomic_load(&shared->home) < 2) {
		n = trunk_poll(t, ev, 64);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++)
			trunk_drop(t, ev[i].circuit, 0);
		if (!told && is_home()) {
			told = true;
			atomic_fetch_add(&shared->home, 1);
		}
		if (n == 0)
			sleep_a_little();
	}
}

static void worker(unsigned side, int memory, int sock, pid_t peer)
{
	struct trunk_event ev[64];
	int n;

	me = side;
	self_forked();
	dice_state = first_seed * 2 + side;
	CHECK(trunk_attach(memory, side, sock, peer, &t) == 0);
	ends = calloc(t->shape.circuits, sizeof(*ends));
	CHECK(ends);
	while (!atomic_load_explicit(&shared->stop, memory_order_relaxed)) {
		n = trunk_poll(t, ev, 64);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++)
			handle(&ev[i]);
		if (trunk_status(t) != 0 && n == 0) {
			/* The other was killed: all have been told. */
			CHECK(trunk_status(t) == -EPIPE && n_live == 0);
			trunk_close(t);
			exit(0);
		}
		act();
		if (n_live > atomic_load_explicit(&shared->most[me], memory_order_relaxed))
			atomic_store(&shared->most[me], n_live);
		if (n == 0)
			sleep_a_little();
	}
	go_home();
	trunk_close(t);
	exit(0);
}

/* --- all of it */

static void start(pid_t pid[2])
{
	struct trunk_shape shape = TRUNK_SHAPE;
	int pair[2], memory;

	shape.circuits = circuits;
	while (shape.blocks > 2 * circuits)
		shape.blocks /= 2;
	memset(shared, 0, sizeof(*shared));
	memory = trunk_memory(&shape);
	CHECK(memory >= 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
	for (unsigned i = 0; i < 2; i++) {
		pid[i] = fork();
		CHECK(pid[i] >= 0);
		if (pid[i] == 0) {
			close(pair[!i]);
			worker(i, memory, pair[i], 0);
		}
	}
	close(pair[0]);
	close(pair[1]);
	own_close(memory);
}

static void expect_end(pid_t pid)
{
	int status = -1;

	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(status == 0);
}

static void run(void)
{
	pid_t pid[2];
	int status;

	start(pid);
	while (atomic_load(&shared->lives[0]) + atomic_load(&shared->lives[1]) < lives_wanted) {
		usleep(20000);
		for (int i = 0; i < 2; i++)
			CHECK(waitpid(pid[i], &status, WNOHANG) == 0);
	}
	atomic_store(&shared->stop, 1);
	expect_end(pid[0]);
	expect_end(pid[1]);
	/* They were there at the same time. */
	CHECK(shared->most[0] > circuits * 9ull / 10 && shared->most[1] > circuits * 9ull / 10);
	for (int i = 0; i < 2; i++)
		printf("side %d: %llu lives, up to %llu at a time, %llu octets, %llu messages\n", i,
		       (unsigned long long)shared->lives[i], (unsigned long long)shared->most[i],
		       (unsigned long long)shared->octets[i],
		       (unsigned long long)shared->messages[i]);
}

static void run_killing(int rounds)
{
	pid_t pid[2];
	int status, victim;

	dice_state = first_seed;
	for (int i = 0; i < rounds; i++) {
		start(pid);
		usleep(dice(300000));
		victim = (int)dice(2);
		CHECK(kill(pid[victim], SIGKILL) == 0);
		/* The survivor finds out before anybody has asked for the status of the dead. */
		expect_end(pid[!victim]);
		CHECK(waitpid(pid[victim], &status, 0) == pid[victim]);
		first_seed++;
	}
	printf("%d kills survived\n", rounds);
}

int main(int argc, char **argv)
{
	int rounds = 0;

	for (int i = 1; i + 1 < argc; i += 2) {
		uint64_t value = strtoull(argv[i + 1], NULL, 0);

		if (!strcmp(argv[i], "--seed"))
			first_seed = value;
		else if (!strcmp(argv[i], "--lives"))
			lives_wanted = value;
		else if (!strcmp(argv[i], "--circuits"))
			circuits = (uint32_t)value & ~1u;
		else if (!strcmp(argv[i], "--kill"))
			rounds = (int)value;
		else
			return 2;
	}
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
	if (rounds)
		run_killing(rounds);
	else
		run();
	return 0;
}
