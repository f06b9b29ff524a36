/* SPDX-License-Identifier: MIT */
/*
 *   attacker --list                              all weapons, with all situations
 *   attacker PORT PID SEED MS WEAPON@SITUATION...   a lane for each; fights for so long, prints "quiet", leaves
 *                                                everything as it is and ends with its input
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/util.h"
#include "siege/attacker.h"
#include "siege/siege.h"
#include "sockets/record/real.h"

#define LANES_MOST 16
#define TURNS      40
#define ANSWER_MS  5000

struct random dice;
pid_t victim;
static struct sockaddr_in server = { .sin_family = AF_INET };
static const char *const situations[SITUATIONS] = { "idle", "busy", "full" };

/* --- what weapons need */

void lane_octet(struct lane *l)
{
	real(send)(l->fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void each_bell(void (*call)(int fd))
{
	DIR *dir = opendir("/proc/self/fd");
	char target[64];
	struct dirent *e;

	while (dir && (e = readdir(dir)) != NULL) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = 0;
		if (strcmp(target, "anon_inode:[eventfd]") == 0)
			call(atoi(e->d_name));
	}
	if (dir)
		closedir(dir);
}

static void ring(int fd)
{
	uint64_t one = 1;

	if (real(fcntl)(fd, F_GETFL) & O_NONBLOCK)
		(void)!real(write)(fd, &one, sizeof(one));
}

void lane_stir(struct lane *l)
{
	atomic_fetch_add(&l->arena->stir[1 - l->side].lane[l->number], 1);
	atomic_store(&l->arena->rung[1 - l->side], 1);
	each_bell(ring);
}

void lane_ask(struct lane *l, uint32_t what, uint32_t size)
{
	static uint8_t octets[4096];
	struct request request = { what, size };
	struct iovec iov[2] = { { &request, sizeof(request) },
				{ octets, what == REQUEST_ECHO ? size : 0 } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	sendmsg(l->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void lane_drain(struct lane *l)
{
	static uint8_t octets[65536];

	recv(l->fd, octets, sizeof(octets), MSG_DONTWAIT);
}

/* --- meeting */

/* Is there an arena at this address that has a lane of this socket? */
static bool find_in(struct lane *l, void *at, uint64_t cookie)
{
	struct arena_shared *a = at;

	if (a->magic != ARENA_MAGIC)
		return false;
	for (uint32_t i = 0; i < ARENA_LANES; i++) {
		for (uint32_t side = 0; side < 2; side++) {
			if (atomic_load(&a->lane[i].cookie[side]) != cookie ||
			    atomic_load(&a->lane[i].done[side]))
				continue;
			l->arena = a;
			l->shared = &a->lane[i];
			l->number = i;
			l->side = side;
			return true;
		}
	}
	return false;
}

static bool find_lane(struct lane *l)
{
	FILE *file = fopen("/proc/self/maps", "re");
	uint64_t cookie = 0;
	socklen_t size = sizeof(cookie);
	unsigned long from, to;
	char row[512], rights[8];
	bool found = false;

	getsockopt(l->fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
	while (file && !found && fgets(row, sizeof(row), file))
		if (sscanf(row, "%lx-%lx %7s", &from, &to, rights) == 3 &&
		    strcmp(rights, "rw-s") == 0 && to - from >= offsetof(struct arena_shared, ring))
			found = find_in(l, (void *)from, cookie);
	if (file)
		fclose(file);
	return found;
}

/* A request and its answer, in the honest way. */
static bool round_trip(struct lane *l)
{
	uint8_t octets[100];
	struct pollfd p = { .fd = l->fd, .events = POLLIN };
	size_t got = 0;

	lane_ask(l, REQUEST_ECHO, sizeof(octets));
	while (got < sizeof(octets)) {
		ssize_t n;

		if (poll(&p, 1, ANSWER_MS) <= 0)
			return false;
		n = recv(l->fd, octets, sizeof(octets) - got, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return false;
		got += n > 0 ? (size_t)n : 0;
	}
	return true;
}

static bool meet(struct lane *l)
{
	int one = 1, size = 4096;
	bool met = false;

	l->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	/* Little room for octets that nobody will read. */
	if (l->situation == FULL)
		setsockopt(l->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
	if (connect(l->fd, (struct sockaddr *)&server, sizeof(server)) != 0)
		return false;
	setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	for (int i = 0; i < TURNS && !met; i++)
		met = round_trip(l) && find_lane(l);
	/* Until both ends are on it. */
	for (int i = 0; i < 5 && met; i++)
		met = round_trip(l);
	return met;
}

/* --- the fight */

static const struct weapon *find_weapon(const struct weapon *list, const char *name)
{
	while (list->name && strcmp(list->name, name) != 0)
		list++;
	return list->name ? list : NULL;
}

/* NAME[:A[:B]]@SITUATION */
static bool take_up(struct lane *l, char *text)
{
	char *at = strchr(text, '@');
	char *colon;

	*l = (struct lane) { .fd = -1 };
	if (!at)
		return false;
	*at++ = 0;
	while (l->situation < SITUATIONS && strcmp(at, situations[l->situation]) != 0)
		l->situation++;
	colon = strchr(text, ':');
	if (colon) {
		*colon++ = 0;
		l->weapon = find_weapon(counted, text);
		if (strcmp(text, "storm") == 0)
			while (l->a < STORMS && strcmp(colon, storm_names[l->a]) != 0)
				l->a++;
		else
			sscanf(colon, "%ld:%ld", &l->a, &l->b);
	} else {
		l->weapon = find_weapon(attacks, text);
	}
	return l->weapon && l->situation < SITUATIONS;
}

static void prepare(struct lane *l)
{
	if (l->situation == FULL) {
		lane_ask(l, REQUEST_BULK, 4 << 20);
		stage_nap(20000);
	} else if (l->situation == IDLE) {
		stage_nap(1000 * (1 + random_below(&dice, 10)));
	}
}

/* So that the server looks at what has become of its lane. */
static void poke(struct lane *l)
{
	switch (random_below(&dice, 4)) {
	case 0: lane_octet(l); break;
	case 1: lane_stir(l); break;
	case 2: lane_ask(l, REQUEST_ECHO, 10); break;
	default: break;
	}
}

static void fight(struct lane *lane, int n, unsigned ms)
{
	uint64_t end;

	for (int i = 0; i < n; i++) {
		if (lane[i].weapon->strike) {
			lane[i].weapon->strike(&lane[i]);
			poke(&lane[i]);
		}
	}
	end = stage_now() + ms * 1000ull;
	while (stage_now() < end) {
		bool restless = false;

		for (int i = 0; i < n; i++) {
			if (lane[i].weapon->go_on)
				lane[i].weapon->go_on(&lane[i]);
			restless |= lane[i].weapon->go_on != NULL;
			if (lane[i].situation != BUSY || random_below(&dice, 16))
				continue;
			lane_ask(&lane[i], REQUEST_ECHO, 1 + random_below(&dice, 2000));
			lane_drain(&lane[i]);
		}
		/* Not all of a processor: others must be seen to get theirs. */
		if (!restless || random_below(&dice, 8) == 0)
			stage_nap(100);
	}
}

/* --- the end of the fight is told in time, also if the attacker has hurt itself and hangs */

static int met;

static void say_quiet(int signal)
{
	static _Atomic bool said;
	char text[] = "quiet 00\n";

	(void)signal;
	text[6] = (char)('0' + met / 10);
	text[7] = (char)('0' + met % 10);
	if (!atomic_exchange(&said, true))
		(void)!real(write)(STDOUT_FILENO, text, sizeof(text) - 1);
}

static void limit_fight(unsigned ms)
{
	struct itimerval timer = { .it_value = { ms / 1000 + 1, 0 } };
	struct sigaction action = { .sa_handler = say_quiet, .sa_flags = SA_RESTART };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void list(void)
{
	for (int s = 0; s < SITUATIONS; s++) {
		const char *where = situations[s];

		for (const struct weapon *w = attacks; w->name; w++)
			printf("%s@%s\n", w->name, where);
		for (int i = 0; i < STORMS; i++)
			printf("storm:%s@%s\n", storm_names[i], where);
		for (int i = 0; i < 128; i++)
			printf("bit:%d:%d@%s\n", i / 64, i % 64, where);
		for (size_t i = 0; i < LANE_WORDS * VALUES; i++)
			printf("lane:%zu:%zu@%s\n", i / VALUES, i % VALUES, where);
		for (size_t i = 0; i < ARENA_WORDS * VALUES; i++)
			printf("arena:%zu:%zu@%s\n", i / VALUES, i % VALUES, where);
	}
}

int main(int argc, char **argv)
{
	static struct lane lane[LANES_MOST];
	int n = 0;
	char octet;

	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		list();
		return 0;
	}
	if (argc < 6 || argc - 5 > LANES_MOST)
		return 2;
	server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	server.sin_port = htons((uint16_t)atoi(argv[1]));
	victim = atoi(argv[2]);
	dice.state = strtoull(argv[3], NULL, 0);
	signal(SIGPIPE, SIG_IGN);
	for (int i = 5; i < argc; i++) {
		if (!take_up(&lane[n], argv[i])) {
			fprintf(stderr, "no such weapon: %s\n", argv[i]);
			return 2;
		}
		if (meet(&lane[n]))
			n++;
	}
	met = n;
	for (int i = 0; i < n; i++)
		prepare(&lane[i]);
	limit_fight((unsigned)atoi(argv[4]));
	fight(lane, n, (unsigned)atoi(argv[4]));
	say_quiet(0);
	while (real(read)(STDIN_FILENO, &octet, 1) > 0)
		;
	/* As a process ends that was killed: nothing is cleaned up. */
	real(_exit)(0);
	return 0;
}
