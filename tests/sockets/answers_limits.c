/* SPDX-License-Identifier: MIT */
/*
 * Limits of the process: address space, the size of files, the number of descriptors. What a program can do natively
 * within a limit it can do with the library, with the same errors and no signal; connections go on, with a lane or without.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "answers.h"
#include "stage.h"

#define MIB   (1ull << 20)
#define PAIRS 150 /* more than one arena has lanes for, if both ends are here */
#define MANY  700 /* ends of connections; more records than are mapped at first */
#define FEW   200 /* descriptors; not so few that the library has none of its own */
#define OURS  8   /* of these it may have so many */

static void limit(int which, rlim_t n)
{
	struct rlimit now;

	if (getrlimit(which, &now) != 0)
		answer_broken("getrlimit");
	now.rlim_cur = n;
	if (setrlimit(which, &now) != 0)
		answer_broken("setrlimit");
}

/* As much address space as this process has, and so much more. Without memory of the C library's. */
static void limit_space(size_t more)
{
	char text[64] = "";
	unsigned long pages = 0;
	int fd = open("/proc/self/statm", O_RDONLY);

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0 || sscanf(text, "%lu", &pages) != 1)
		answer_broken("statm");
	close(fd);
	limit(RLIMIT_AS, pages * 4096 + more);
}

/* --- what a connection must do */

static void trip(int a, int b)
{
	char octets[100] = "";

	if (send(a, octets, sizeof(octets), 0) != sizeof(octets) ||
	    recv(b, octets, sizeof(octets), MSG_WAITALL) != sizeof(octets))
		answer_broken("trip");
}

static int waits_epoll(int reader, int writer)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = reader };
	int set = epoll_create1(0);
	int n = -1;

	if (set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, reader, &event) == 0 &&
	    epoll_wait(set, &event, 1, 0) == 0 && send(writer, "x", 1, 0) == 1)
		n = epoll_wait(set, &event, 1, 5000);
	close(set);
	return n == 1 && recv(reader, &n, 1, 0) == 1;
}

/* In a list as long as may be. */
static int waits_poll(int reader, int writer)
{
	static struct pollfd many[300];
	struct rlimit most;
	nfds_t n = 300;
	char octet;

	if (getrlimit(RLIMIT_NOFILE, &most) == 0 && most.rlim_cur < n)
		n = most.rlim_cur;
	for (nfds_t i = 0; i < n; i++)
		many[i] = (struct pollfd) { .fd = i == n - 1 ? reader : -1, .events = POLLIN };
	return send(writer, "x", 1, 0) == 1 && poll(many, n, 5000) == 1 &&
	       many[n - 1].revents == POLLIN && recv(reader, &octet, 1, 0) == 1;
}

static int waits_select(int reader, int writer)
{
	struct timeval wait = { .tv_sec = 5 };
	fd_set reads;
	char octet;

	FD_ZERO(&reads);
	FD_SET(reader, &reads);
	return send(writer, "x", 1, 0) == 1 && select(FD_SETSIZE, &reads, NULL, NULL, &wait) == 1 &&
	       FD_ISSET(reader, &reads) && recv(reader, &octet, 1, 0) == 1;
}

/* A child goes on with it. */
static int works_in_child(int a, int b)
{
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		trip(a, b);
		_exit(waits_epoll(b, a) ? 0 : 1);
	}
	return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static size_t fill(int fd)
{
	static char octets[65536];
	size_t all = 0;
	ssize_t n;

	while (all < 4 * MIB && (n = send(fd, octets, sizeof(octets), MSG_DONTWAIT)) > 0)
		all += (size_t)n;
	return all;
}

static int empties(int fd, size_t all)
{
	static char octets[65536];
	ssize_t n;

	while (all > 0 && (n = recv(fd, octets, sizeof(octets), 0)) > 0)
		all -= (size_t)n;
	return all == 0;
}

static void use(const char *what, int a, int b)
{
	size_t n;

	trip(a, b);
	trip(b, a);
	answer("%s: epoll %d poll %d select %d", what, waits_epoll(a, b), waits_poll(b, a),
	       waits_select(a, b));
	answer("%s: child %d", what, works_in_child(a, b));
	n = fill(a);
	answer("%s: takes much %d, all of it comes %d", what, n > 0, empties(b, n));
}

static void use_new(const char *what)
{
	int ends[2];

	answer_warm_pair(ends);
	use(what, ends[0], ends[1]);
	close(ends[0]);
	answer("%s: end %s", what, answer_of(recv(ends[1], &ends[0], 1, 0)));
	close(ends[1]);
}

/* --- address space */

static void no_space_from_the_start(void)
{
	limit_space(0);
	use_new("first");
	use_new("second");
}

static void no_space_behind_the_first_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	limit_space(0);
	use_new("next");
	answer("close %s", answer_of(close(fd)));
}

static void no_space_behind_the_first_lane(void)
{
	int ends[2], more[20][2];

	answer_warm_pair(ends);
	limit_space(0);
	use("old", ends[0], ends[1]);
	for (int i = 0; i < 20; i++)
		answer_warm_pair(more[i]);
	for (int i = 0; i < 20; i++)
		trip(more[i][0], more[i][1]);
	use("last", more[19][1], more[19][0]);
	use("old", ends[1], ends[0]);
}

static void no_space_in_a_child(void)
{
	int ends[2], status = -1;
	pid_t child;

	answer_warm_pair(ends);
	child = fork();
	if (child == 0) {
		limit_space(0);
		use("inherited", ends[0], ends[1]);
		use_new("own");
		use("inherited", ends[1], ends[0]);
		_exit(0);
	}
	waitpid(child, &status, 0);
	answer("child %d", status);
	use("parent", ends[0], ends[1]);
}

static void use_many(size_t space)
{
	int ends[PAIRS][2];
	void *p;

	limit_space(space);
	for (int i = 0; i < PAIRS; i++)
		answer_warm_pair(ends[i]);
	p = mmap(NULL, space - 20 * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	answer("memory %d", p != MAP_FAILED);
	for (int i = 0; i < PAIRS; i++)
		trip(ends[i][0], ends[i][1]);
	use("last", ends[PAIRS - 1][0], ends[PAIRS - 1][1]);
}

/* What the program itself needs later is still there. */
static void some_space_for_many(void)
{
	for (size_t mib = 32; mib <= 512; mib *= 2) {
		pid_t child = fork();
		int status = -1;

		if (child == 0) {
			use_many(mib * MIB);
			_exit(0);
		}
		waitpid(child, &status, 0);
		answer("%zu: %d", mib, status);
	}
}

/* A list that does not fit into a call's own memory. */
static void no_space_for_lists(void)
{
	struct timeval wait = { .tv_sec = 5 };
	int ends[2], pipes[2], n = 0;
	fd_set reads;

	answer_warm_pair(ends);
	if (pipe(pipes) != 0)
		answer_broken("pipe");
	limit_space(0);
	FD_ZERO(&reads);
	FD_SET(ends[1], &reads);
	for (int fd; n < 400 && (fd = dup(pipes[0])) >= 0; n++)
		FD_SET(fd, &reads);
	answer("copies %d", n);
	if (send(ends[0], "x", 1, 0) != 1)
		answer_broken("send");
	answer("select %s", answer_of(select(FD_SETSIZE, &reads, NULL, NULL, &wait)));
	answer("lane %d pipe %d", FD_ISSET(ends[1], &reads) != 0, FD_ISSET(pipes[0], &reads) != 0);
}

/* --- size of files */

static void no_files_from_the_start(void)
{
	limit(RLIMIT_FSIZE, 0);
	use_new("first");
	limit(RLIMIT_FSIZE, RLIM_INFINITY);
	use_new("second");
}

static void small_files_from_the_start(void)
{
	static const rlim_t sizes[] = { 4096, 100000, 1 * MIB, 33 * MIB, 35 * MIB };

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		pid_t child = fork();
		int status = -1;

		if (child == 0) {
			limit(RLIMIT_FSIZE, sizes[i]);
			use_new("small");
			_exit(0);
		}
		waitpid(child, &status, 0);
		answer("%llu: %d", (unsigned long long)sizes[i], status);
	}
}

static void no_files_behind_the_first_lane(void)
{
	int ends[PAIRS][2];

	answer_warm_pair(ends[0]);
	limit(RLIMIT_FSIZE, 1);
	for (int i = 1; i < PAIRS; i++)
		answer_warm_pair(ends[i]);
	for (int i = 0; i < PAIRS; i++)
		trip(ends[i][0], ends[i][1]);
	use("first", ends[0][0], ends[0][1]);
	use("last", ends[PAIRS - 1][0], ends[PAIRS - 1][1]);
}

/* The program's own signal still comes. */
static void too_large_a_file(void)
{
	int fd = memfd_create("file", MFD_CLOEXEC);

	use_new("before");
	limit(RLIMIT_FSIZE, 4096);
	answer("write %s", answer_of(pwrite(fd, "x", 1, 4095)));
	answer("write %s", answer_of(pwrite(fd, "x", 1, 4096)));
}

/* --- descriptors */

static int count_open(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	if (!d)
		answer_broken("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* All that are left; returns how many those were. */
static int take_all(int *taken)
{
	int n = 0;

	while ((taken[n] = dup(STDIN_FILENO)) >= 0)
		n++;
	return n;
}

static void without_descriptors(int listener, int lane[2])
{
	int pipes[2];

	answer("socket %s", answer_of(socket(AF_INET, SOCK_STREAM, 0)));
	answer("accept %s", answer_of(accept(listener, NULL, NULL)));
	answer("dup %s", answer_of(dup(lane[0])));
	answer("fcntl %s", answer_of(fcntl(lane[0], F_DUPFD, 0)));
	answer("epoll %s", answer_of(epoll_create1(0)));
	answer("pipe %s", answer_of(pipe(pipes)));
	answer("open %s", answer_of(open("/dev/null", O_RDONLY)));
	answer("pair %s", answer_of(socketpair(AF_UNIX, SOCK_STREAM, 0, pipes)));
	trip(lane[0], lane[1]);
	answer("poll %d select %d", waits_poll(lane[0], lane[1]), waits_select(lane[1], lane[0]));
}

static void descriptors_run_out(void)
{
	int listener, client, lane[2], taken[FEW];
	int n;

	limit(RLIMIT_NOFILE, FEW);
	answer_warm_pair(lane);
	listener = stage_listen(AF_INET, 5);
	client = stage_dial(listener);
	n = take_all(taken);
	answer("nearly all %d", n >= FEW - 3 - 4 - OURS && n <= FEW);
	without_descriptors(listener, lane);
	/* One is enough for the connection that waits. */
	close(taken[--n]);
	taken[n] = accept(listener, NULL, NULL);
	answer("accept %d", taken[n] >= 0);
	answer_warm(client, taken[n]);
	trip(client, taken[n]);
	answer("poll %d", waits_poll(taken[n], client));
	for (; n >= 0; n--)
		close(taken[n]);
	use("lane", lane[0], lane[1]);
	use_new("afterwards");
}

/* So few that the library has none of its own; and a limit below those that it has. */
static void very_few_descriptors(void)
{
	int lane[2], taken[FEW];

	limit(RLIMIT_NOFILE, 40);
	use_new("few");
	limit(RLIMIT_NOFILE, 1024);
	answer_warm_pair(lane);
	limit(RLIMIT_NOFILE, 30);
	use("lane", lane[0], lane[1]);
	use_new("fewer");
	answer("all %d", take_all(taken));
	without_descriptors(lane[0], lane);
}

static void descriptors_do_not_leak(void)
{
	int ends[2], taken[FEW], before, n;

	limit(RLIMIT_NOFILE, FEW);
	answer_warm_pair(ends);
	n = take_all(taken);
	for (int i = 0; i < 5; i++)
		close(taken[--n]);
	before = count_open();
	for (int i = 0; i < 300; i++) {
		int more[2] = { -1, -1 };

		answer_pair(more);
		answer_warm(more[0], more[1]);
		close(more[0]);
		close(more[1]);
	}
	answer("more %d", count_open() - before);
	use("lane", ends[0], ends[1]);
}

/* --- many sockets: records beyond those that are mapped at first, over a fork */

static void child_of_many(int (*ends)[2])
{
	for (int i = 0; i < MANY / 2; i++) {
		trip(ends[i][0], ends[i][1]);
		if (i % 3 == 1)
			close(ends[i][0]);
	}
	use_new("child's own");
	use("inherited", ends[MANY / 2 - 2][1], ends[MANY / 2 - 2][0]);
}

static void many_sockets(void)
{
	static int ends[MANY / 2][2];
	int status = -1;
	pid_t child;

	limit(RLIMIT_NOFILE, 4096);
	for (int i = 0; i < MANY / 2; i++)
		answer_warm_pair(ends[i]);
	child = fork();
	if (child == 0) {
		child_of_many(ends);
		_exit(0);
	}
	waitpid(child, &status, 0);
	answer("child %d", status);
	for (int i = 0; i < MANY / 2; i++)
		trip(ends[i][1], ends[i][0]);
	for (int i = 0; i < MANY / 2; i += 2) {
		close(ends[i][0]);
		close(ends[i][1]);
	}
	use_new("again");
	use("last", ends[MANY / 2 - 1][0], ends[MANY / 2 - 1][1]);
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "no space from the start", no_space_from_the_start },
		{ "no space behind the first socket", no_space_behind_the_first_socket },
		{ "no space behind the first lane", no_space_behind_the_first_lane },
		{ "no space in a child", no_space_in_a_child },
		{ "some space for many", some_space_for_many },
		{ "no space for lists", no_space_for_lists },
		{ "no files from the start", no_files_from_the_start },
		{ "small files from the start", small_files_from_the_start },
		{ "no files behind the first lane", no_files_behind_the_first_lane },
		{ "too large a file", too_large_a_file },
		{ "descriptors run out", descriptors_run_out },
		{ "very few descriptors", very_few_descriptors },
		{ "descriptors do not leak", descriptors_do_not_leak },
		{ "many sockets", many_sockets },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
