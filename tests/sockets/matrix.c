/* SPDX-License-Identifier: MIT */
/*
 *   matrix [--asleep MS] [--settle MS] [CALL/ACT]...
 *
 * All cells, or some, see matrix.h. A line for each:
 *   A recv/shutdown-rd: act 0; sleeper 0
 *   A recv/close: act 0; sleeper on; partner's doing 200
 * What the sleeper returned and when: at once after the act, only after the partner did something
 * that such a call waits for, only after the partner closed, or never. Then, if the connection still
 * is one, whether it goes on.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "matrix.h"

#define TURNS     12
#define TURN      50
#define AT_A_TIME 12
#define LIMIT_US  12000000 /* for a cell: none takes a second */
#define SLOW_US   3000000  /* an act that takes longer was held up */
#define WAKE      200

static int asleep_ms = 40, settle_ms = 100;

/* ---- the partner ---- */

struct command {
	char what;
	int64_t n;
};

static int dial(int64_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof(at))) {
		close(fd);
		return -1;
	}
	return fd;
}

static int64_t send_octets(int fd, int64_t n)
{
	uint8_t data[WAKE] = { 0 };
	int64_t done = 0;
	ssize_t sent;

	while (done < n) {
		sent = send(fd, data, (size_t)(n - done < WAKE ? n - done : WAKE), MSG_NOSIGNAL);
		if (sent < 0)
			return -errno;
		done += sent;
	}
	return done;
}

static int64_t echo(int fd, int64_t turns)
{
	uint8_t data[TURN];

	for (int64_t i = 0; i < turns; i++) {
		if (recv(fd, data, sizeof(data), MSG_WAITALL) != sizeof(data))
			return -1;
		if (send(fd, data, sizeof(data), MSG_NOSIGNAL) != sizeof(data))
			return -1;
	}
	return turns;
}

static int64_t read_all(int fd, int64_t ms)
{
	static uint8_t data[1 << 16];
	struct pollfd p = { fd, POLLIN, 0 };
	int64_t sum = 0;
	ssize_t n;

	while (poll(&p, 1, (int)ms) == 1) {
		n = recv(fd, data, sizeof(data), MSG_DONTWAIT);
		if (n == 0)
			break;
		if (n < 0)
			return -errno;
		sum += n;
	}
	return sum;
}

static int64_t obey(const struct command *k, int *fd)
{
	struct linger hard = { 1, 0 };
	int once;

	switch (k->what) {
	case PARTNER_OPENS: *fd = dial(k->n); return *fd < 0 ? -errno : 0;
	case PARTNER_SENDS: return send_octets(*fd, k->n);
	case PARTNER_ECHOES: return echo(*fd, k->n);
	case PARTNER_READS: return read_all(*fd, k->n);
	case PARTNER_RESETS:
		setsockopt(*fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
		return close(*fd);
	case PARTNER_CALLS: once = dial(k->n); return close(once);
	default: return close(*fd);
	}
}

static int partner(int ctl)
{
	struct command k;
	int64_t answer;
	int fd = -1;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (read(ctl, &k, sizeof(k)) == sizeof(k)) {
		answer = obey(&k, &fd);
		if (write(ctl, &answer, sizeof(answer)) != sizeof(answer))
			break;
	}
	return 0;
}

int64_t matrix_ask(struct cell *c, char what, int64_t n)
{
	struct command k = { what, n };
	int64_t answer;

	/* A child of ours may hold the other end of a pipe, but nobody else has this one. */
	if (write(c->ctl, &k, sizeof(k)) != sizeof(k) ||
	    read(c->ctl, &answer, sizeof(answer)) != sizeof(answer))
		return -EIO;
	return answer;
}

void matrix_result(char *to, size_t n, ssize_t result)
{
	if (result < 0)
		snprintf(to, n, "%s", stage_errno(errno));
	else if (result == MATRIX_MUCH)
		snprintf(to, n, "all");
	else
		snprintf(to, n, result > 10000 ? "part" : "%zd", result);
}

/* ---- a cell ---- */

static void begin(struct cell *c, int ctl)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);
	uint8_t data[TURN] = { 0 };
	int room = 65536;

	c->ctl = ctl;
	c->listener = stage_listen(AF_INET, 8);
	getsockname(c->listener, (struct sockaddr *)&at, &len);
	if (matrix_ask(c, PARTNER_OPENS, ntohs(at.sin_port)))
		exit(2);
	c->fd = accept(c->listener, NULL, NULL);
	/* Otherwise the kernel's buffers grow to many megabytes. */
	setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	if (write(ctl, &(struct command) { PARTNER_ECHOES, TURNS }, sizeof(struct command)) < 0)
		exit(2);
	for (int i = 0; i < TURNS; i++)
		if (send(c->fd, data, TURN, 0) != TURN ||
		    recv(c->fd, data, TURN, MSG_WAITALL) != TURN)
			exit(2);
	if (read(ctl, &(int64_t) { 0 }, sizeof(int64_t)) != sizeof(int64_t))
		exit(2);
	c->set = epoll_create1(EPOLL_CLOEXEC);
	c->beside = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	c->file = memfd_create("much", MFD_CLOEXEC);
	/* All there, or a sender would first be busy with that. */
	c->much = mmap(NULL, MATRIX_MUCH, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (c->fd < 0 || c->set < 0 || c->beside < 0 || pipe2(c->pipe, O_CLOEXEC) ||
	    ftruncate(c->file, MATRIX_MUCH) || c->much == MAP_FAILED)
		exit(2);
}

static const struct matrix_call *call_now;

static void *sleep_in_call(void *arg)
{
	struct cell *c = arg;

	call_now->call(c);
	return NULL;
}

/* Whether the sleeper has returned within so many milliseconds. */
static bool returned(struct cell *c, int ms)
{
	struct timespec end;
	void *how;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_nsec += (ms % 1000) * 1000000L;
	end.tv_sec += ms / 1000 + end.tv_nsec / 1000000000;
	end.tv_nsec %= 1000000000;
	if (pthread_timedjoin_np(c->sleeper, &how, &end))
		return false;
	if (how == PTHREAD_CANCELED)
		snprintf(c->result, sizeof(c->result), "cancelled");
	return true;
}

/* What such a call waits for. */
static void satisfy(struct cell *c)
{
	struct sockaddr_in at;
	socklen_t len = sizeof(at);

	if (call_now->what_for == SLEEPS_FOR_ROOM) {
		matrix_ask(c, PARTNER_READS, settle_ms);
	} else if (call_now->what_for == SLEEPS_FOR_OCTETS) {
		matrix_ask(c, PARTNER_SENDS, WAKE);
	} else if (getsockname(c->listener, (struct sockaddr *)&at, &len) == 0) {
		matrix_ask(c, PARTNER_CALLS, ntohs(at.sin_port));
	}
}

/* Both directions, once the partner has read all and we have. */
static const char *goes_on(struct cell *c)
{
	uint8_t data[TURN];
	struct pollfd p = { c->fd, POLLIN, 0 };

	matrix_ask(c, PARTNER_READS, settle_ms);
	while (poll(&p, 1, 0) == 1 && recv(c->fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	if (send(c->fd, data, TURN, MSG_NOSIGNAL | MSG_DONTWAIT) != TURN)
		return "cannot send";
	if (matrix_ask(c, PARTNER_ECHOES, 1) != 1)
		return "the partner cannot read or send";
	if (poll(&p, 1, 5000) != 1 || recv(c->fd, data, TURN, MSG_WAITALL) != TURN)
		return "cannot read";
	return "goes on";
}

static void play(struct cell *c, const struct matrix_act *act)
{
	char did[80] = "";
	const char *when = "sleeper", *after = "";
	uint64_t start;

	call_now->prepare(c);
	if (pthread_create(&c->sleeper, NULL, sleep_in_call, c))
		exit(2);
	stage_nap((unsigned)asleep_ms * 1000);
	start = stage_now();
	act->act(c, did, sizeof(did));
	if (stage_now() - start > SLOW_US)
		snprintf(did, sizeof(did), "took long");
	if (!returned(c, settle_ms)) {
		satisfy(c);
		when = "sleeper on; partner's doing";
		if (!returned(c, settle_ms)) {
			when = "sleeper on, whatever the partner does; its end";
			matrix_ask(c, PARTNER_CLOSES, 0);
			c->spent = true;
			if (!returned(c, settle_ms)) {
				when = "sleeper on for ever";
				c->result[0] = 0;
			}
		}
	}
	if (!c->spent)
		after = goes_on(c);
	printf("A %s/%s: act %s; %s %s; %s\n", call_now->name, act->name, did, when, c->result,
	       after);
	fflush(stdout);
	_exit(0);
}

static void on_signal(int number)
{
	(void)number;
}

static int play_cell(const struct matrix_call *call, const struct matrix_act *act)
{
	struct sigaction sa = { .sa_handler = on_signal };
	struct cell c = { .fd = -1 };
	int ctl[2];
	pid_t pid;

	sigaction(SIGUSR2, &sa, NULL);
	sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &sa, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl))
		return 2;
	pid = fork();
	if (pid == 0) {
		close(ctl[0]);
		_exit(partner(ctl[1]));
	}
	close(ctl[1]);
	call_now = call;
	begin(&c, ctl[0]);
	play(&c, act);
	return 0;
}

/* ---- all cells, some at a time ---- */

struct running {
	pid_t pid;
	uint64_t since;
	const struct matrix_call *call;
	const struct matrix_act *act;
};

static struct running running[AT_A_TIME];

static void tell_end(const struct running *r, int status)
{
	if (status == 0)
		return;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		printf("A %s/%s: hangs\n", r->call->name, r->act->name);
	else
		printf("A %s/%s: ends with %s %d\n", r->call->name, r->act->name,
		       WIFSIGNALED(status) ? "signal" : "status",
		       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	fflush(stdout);
}

/* A free place; waits until there is one, or (all) until all are. */
static struct running *await(bool all)
{
	struct running *free_one;
	int left, status;

	for (;; stage_nap(2000)) {
		free_one = NULL;
		left = 0;
		for (struct running *r = running; r < running + AT_A_TIME; r++) {
			if (r->pid && waitpid(r->pid, &status, WNOHANG) == r->pid) {
				tell_end(r, status);
				r->pid = 0;
			}
			if (r->pid && stage_now() - r->since > LIMIT_US)
				kill(r->pid, SIGKILL);
			left += r->pid != 0;
			free_one = r->pid ? free_one : r;
		}
		if (all ? !left : free_one != NULL)
			return free_one;
	}
}

static void start(const struct matrix_call *call, const struct matrix_act *act)
{
	struct running *r = await(false);

	fflush(stdout);
	*r = (struct running) { 0, stage_now(), call, act };
	r->pid = fork();
	if (r->pid == 0)
		exit(play_cell(call, act));
}

static bool wanted(const char *call, const char *act, int argc, char **argv)
{
	char name[80];

	snprintf(name, sizeof(name), "%s/%s", call, act);
	for (int i = 0; i < argc; i++)
		if (strcmp(argv[i], name) == 0 || strcmp(argv[i], call) == 0)
			return true;
	return argc == 0;
}

int main(int argc, char **argv)
{
	for (argc--, argv++; argc > 1 && argv[0][0] == '-'; argc -= 2, argv += 2) {
		if (strcmp(argv[0], "--asleep") == 0)
			asleep_ms = atoi(argv[1]);
		else if (strcmp(argv[0], "--settle") == 0)
			settle_ms = atoi(argv[1]);
	}
	for (const struct matrix_call *c = matrix_calls; c->name; c++)
		for (const struct matrix_act *a = matrix_acts; a->name; a++)
			if (wanted(c->name, a->name, argc, argv))
				start(c, a);
	await(true);
	return 0;
}
