/* SPDX-License-Identifier: MIT */
/*
 *   kill [N]        N times (100) a process is killed at a random moment of its traffic
 *
 * The survivor must find what TCP would show: every octet that the dead one's send() had returned
 * for, in order, then the end of the stream or a reset; it never hangs. After all of it, its
 * descriptors and mappings are what they were after the first few.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "processes.h"
#include "stage.h"

#define PIECE      3000
#define HANG_S     60
#define SETTLED    12 /* rounds after which nothing may grow */
#define LONGEST_US 30000
#define SLACK_KIB  64 /* pages that were not touched before */

enum mode { TURNS, TO_SURVIVOR, FROM_SURVIVOR, EVENT_LOOP, MODES };

/* Shared with the victim. */
struct page {
	uint64_t sent; /* octets for which send() has returned */
	uint32_t ready, bad;
};

struct round {
	struct stage st;
	enum mode mode;
	bool victim_accepts, victim_execs;
	int listener, page_fd;
	struct page *page;
	int end; /* errno, 0: end of the stream */
};

static struct round round_now;
static uint32_t round_number;

static void on_hang(int signal)
{
	(void)signal;
	stage_bad(&round_now.st, "round %u hangs, mode %d, at %llu in, %llu out", round_number,
		  round_now.mode, (unsigned long long)round_now.st.in.at,
		  (unsigned long long)round_now.st.out.at);
	_exit(1);
}

/* ---- traffic, the same calls on both sides ---- */

/* Up to n octets; 0 at the end of the stream, -1 after an error. */
static ssize_t get(struct round *r, size_t n, int flags)
{
	static uint8_t buffer[PIECE];
	ssize_t got = recv(r->st.fd, buffer, n < PIECE ? n : PIECE, flags);

	if (got > 0) {
		if (flow_match(&r->st.in, buffer, (size_t)got) < (size_t)got)
			r->page->bad++;
		stage_took(&r->st, buffer, (size_t)got);
	} else if (got < 0 && errno == EAGAIN) {
		return -1;
	} else if (!r->end) {
		r->end = got < 0 ? errno : 0;
	}
	return got;
}

static bool get_all(struct round *r, size_t n)
{
	ssize_t got;

	for (; n; n -= (size_t)got) {
		got = get(r, n, 0);
		if (got <= 0)
			return false;
	}
	return true;
}

static bool give(struct round *r, size_t n, bool count)
{
	static uint8_t buffer[PIECE];
	ssize_t sent;

	for (; n; n -= (size_t)sent) {
		flow_fill(&r->st.out, buffer, n < PIECE ? n : PIECE);
		sent = send(r->st.fd, buffer, n < PIECE ? n : PIECE, MSG_NOSIGNAL);
		if (sent <= 0)
			return false;
		r->st.out.at += (size_t)sent;
		if (count)
			__atomic_store_n(&r->page->sent, r->st.out.at, __ATOMIC_SEQ_CST);
	}
	return true;
}

/* The victim asks, whoever survives answers. */
static void answer_by_events(struct round *r)
{
	struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
	int set = epoll_create1(EPOLL_CLOEXEC);
	ssize_t got;

	epoll_ctl(set, EPOLL_CTL_ADD, r->st.fd, &ev);
	for (;;) {
		while ((got = get(r, PIECE, MSG_DONTWAIT)) > 0)
			if (!give(r, (size_t)got, false))
				goto out;
		if (got == 0 || errno != EAGAIN)
			break;
		epoll_wait(set, &ev, 1, -1);
	}
out:
	close(set);
}

static void survive(struct round *r)
{
	switch (r->mode) {
	case TURNS:
		while (give(r, 200, false) && get_all(r, 200))
			;
		break;
	case TO_SURVIVOR:
		while (get(r, PIECE, 0) > 0)
			;
		break;
	case FROM_SURVIVOR:
		while (give(r, PIECE, false))
			;
		break;
	default: answer_by_events(r); break;
	}
	/* Whatever had arrived can still be read. */
	while (get(r, PIECE, 0) > 0)
		;
}

static void be_victim(struct round *r)
{
	struct random random = { .state = (uint64_t)getpid() };

	r->st.fd = r->victim_accepts ? accept(r->listener, NULL, NULL) : stage_dial(r->listener);
	__atomic_store_n(&r->page->ready, 1, __ATOMIC_SEQ_CST);
	for (;;) {
		if (r->mode == TURNS && (!get_all(r, 200) || !give(r, 200, true)))
			break;
		if (r->mode == TO_SURVIVOR && !give(r, 1 + random_size(&random, 0, 8000), true))
			break;
		if (r->mode == FROM_SURVIVOR && get(r, PIECE, 0) <= 0)
			break;
		if (r->mode == EVENT_LOOP && (!give(r, 100, true) || !get_all(r, 100)))
			break;
	}
	/* Only the survivor may be the first to see an end. */
	r->page->bad++;
	_exit(1);
}

/* ---- a round ---- */

static pid_t start_victim(struct round *r)
{
	char numbers[5][16];
	pid_t pid = fork();

	if (pid)
		return pid;
	r->st.side = 1;
	r->st.name = 'V';
	r->st.out = r->st.in;
	r->st.in.key ^= 1;
	if (!r->victim_execs)
		be_victim(r);
	const int values[] = { (int)r->mode, r->victim_accepts, r->listener, r->page_fd,
			       (int)r->st.out.key };

	for (int i = 0; i < 5; i++)
		snprintf(numbers[i], sizeof(numbers[i]), "%d", values[i]);
	execl("/proc/self/exe", "victim", numbers[0], numbers[1], numbers[2], numbers[3],
	      numbers[4], NULL);
	_exit(9);
}

static struct page *map_page(int fd)
{
	return mmap(NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int victim_main(char **argv)
{
	struct round r = { .mode = (enum mode)atoi(argv[1]), .victim_accepts = atoi(argv[2]) };

	r.listener = atoi(argv[3]);
	r.page = map_page(atoi(argv[4]));
	r.st = (struct stage) { .name = 'V', .side = 1 };
	r.st.out.key = strtoull(argv[5], NULL, 10);
	r.st.in.key = r.st.out.key ^ 1;
	be_victim(&r);
	return 1;
}

static pid_t start_killer(struct round *r, pid_t victim, unsigned delay)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	close(r->listener);
	while (!__atomic_load_n(&r->page->ready, __ATOMIC_SEQ_CST))
		stage_nap(100);
	stage_nap(delay);
	kill(victim, SIGKILL);
	_exit(0);
}

static void judge(struct round *r, int victim_status)
{
	struct stage *st = &r->st;

	if (victim_status != SIGKILL)
		stage_bad(st, "round %u: the victim ended by itself: %x", round_number,
			  (unsigned)victim_status);
	if (r->end && r->end != ECONNRESET && r->end != EPIPE)
		stage_bad(st, "round %u: %s", round_number, stage_errno(r->end));
	if (st->in.at < r->page->sent)
		stage_bad(st, "round %u, mode %d: %llu octets of %llu", round_number, r->mode,
			  (unsigned long long)st->in.at, (unsigned long long)r->page->sent);
	if (r->page->bad)
		stage_bad(st, "round %u, mode %d: the victim saw something wrong", round_number,
			  r->mode);
}

static void play(struct round *r, struct random *random)
{
	int status;
	pid_t victim, killer;

	*r->page = (struct page) { 0 };
	r->end = 0;
	r->st = (struct stage) { .name = 'A', .in.key = 2 * (uint64_t)round_number };
	r->st.out.key = r->st.in.key ^ 1;
	r->mode = (enum mode)(round_number % MODES);
	r->victim_accepts = round_number / MODES % 2;
	r->victim_execs = round_number / MODES / 2 % 2;
	alarm(HANG_S);
	victim = start_victim(r);
	killer = start_killer(r, victim, random_size(random, 0, LONGEST_US));
	r->st.fd = r->victim_accepts ? stage_dial(r->listener) : accept(r->listener, NULL, NULL);
	survive(r);
	if (close(r->st.fd))
		stage_bad(&r->st, "close: %s", stage_errno(errno));
	waitpid(killer, &status, 0);
	waitpid(victim, &status, 0);
	judge(r, status);
}

int main(int argc, char **argv)
{
	uint32_t rounds = argc == 2 ? (uint32_t)atoi(argv[1]) : 100, resets = 0;
	struct random random = { .state = 7 };
	struct footprint before = { 0 }, after;

	if (argc > 2)
		return victim_main(argv);
	signal(SIGALRM, on_hang);
	round_now.listener = stage_listen(AF_INET, 4);
	fcntl(round_now.listener, F_SETFD, 0);
	round_now.page_fd = memfd_create("tally", 0);
	if (ftruncate(round_now.page_fd, sizeof(struct page)))
		return 2;
	round_now.page = map_page(round_now.page_fd);
	for (round_number = 0; round_number < rounds; round_number++) {
		play(&round_now, &random);
		resets += round_now.end != 0;
		if (round_number == SETTLED)
			before = processes_footprint(getpid());
	}
	after = processes_footprint(getpid());
	stage_say(&round_now.st, "%u kills, %u seen as resets", rounds, resets);
	stage_say(&round_now.st,
		  "descriptors %u then %u, mappings %u then %u, shared %u then %u KiB",
		  before.descriptors, after.descriptors, before.mappings, after.mappings,
		  before.shared_kib, after.shared_kib);
	if (after.descriptors > before.descriptors || after.mappings > before.mappings ||
	    after.shared_kib > before.shared_kib + SLACK_KIB)
		stage_bad(&round_now.st, "something of the dead remains");
	return stage_bads() != 0;
}
