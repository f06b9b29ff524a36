/* SPDX-License-Identifier: MIT */
/* W: threads that share all their numbers. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "threads.h"

#define TURNS   4
#define FIXED   300 /* numbers of descriptors that are not shared are from here up */
#define HIGHEST 100000
#define STACK   (256 << 10)
#define SPARE   60 /* connections that the log keeps for what T offers */

struct wild wilds[2 * MAX_THREADS];
atomic_int slots[MAX_SLOTS], sets[MAX_SETS];
__thread volatile sig_atomic_t hits[2], pipes;
uint64_t child_since;

static int listener;
static pthread_barrier_t start;

uint64_t wild_begin(void)
{
	return child_since ? child_since : stamp();
}

/* ---- numbers ---- */

int wild_number(const struct act *a)
{
	return a->number ? a->number : atomic_load(&slots[a->slot]);
}

void wild_close(int number)
{
	uint64_t from = stamp();
	int rc;

	watch_begin("close", number);
	rc = from % 3 == 0 && world->may & MAY_RAW ? (int)syscall(SYS_close, number)
						   : close(number);
	watch_end();
	/* Whoever takes a number out of its slot closes it: nobody else can have. */
	if (rc)
		watch_bad("close of %d: %s", number, stage_errno(errno));
	log_event(NUMBER_ENDS, number, 0, from);
}

void wild_put(atomic_int *slot, int number)
{
	int old = atomic_exchange(slot, number);

	if (old >= 0)
		wild_close(old);
}

void wild_keep(atomic_int *slot, int number)
{
	int type;
	socklen_t len = sizeof(type);

	/* What was copied may have become a set before. */
	if (getsockopt(number, SOL_SOCKET, SO_TYPE, &type, &len))
		wild_close(number);
	else
		wild_put(slot, number);
}

/* ---- connections ---- */

static bool few_numbers(int err)
{
	return (err == EMFILE || err == ENFILE) && world->may & MAY_FEWFILES;
}

/* To T's listener. The number is nobody else's yet, but a late call may mean an earlier one. */
static int dial(int *conn)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	int fd = socket(AF_INET, SOCK_STREAM, 0), rc;

	if (fd < 0) {
		if (!few_numbers(errno))
			watch_bad("socket: %s", stage_errno(errno));
		return -1;
	}
	*conn = log_conn(false);
	at.sin_port = htons((uint16_t)atomic_load(&world->port[1]));
	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	watch_begin("connect", fd);
	while ((rc = connect(fd, (struct sockaddr *)&at, sizeof(at))) && errno == EINTR)
		;
	watch_end();
	/* Interrupted, the connection goes on to come up by itself. */
	if (rc && (errno == EALREADY || errno == EISCONN))
		rc = 0;
	if (rc)
		watch_bad("connect on %d: %s", fd, stage_errno(errno));
	atomic_store(&world->conn[*conn].port, conn_port(fd, false));
	return fd;
}

static int take(int *conn)
{
	int fd, port;

	watch_begin("accept", listener);
	do
		fd = accept(listener, NULL, NULL);
	while (fd < 0 && errno == EINTR);
	watch_end();
	if (fd < 0) {
		if (!few_numbers(errno))
			watch_bad("accept: %s", stage_errno(errno));
		return -1;
	}
	atomic_fetch_add(&world->taken, 1);
	port = conn_port(fd, true);
	if (port < 0)
		watch_die("a new connection has no peer: %s", stage_errno(errno));
	watch_begin("the name of the connection", fd);
	while ((*conn = log_meet(port, true)) < 0)
		stage_nap(20);
	watch_end();
	return fd;
}

/* Back and forth a few times, as most connections begin. The number is nobody else's yet. */
static void warm(struct wild *w, int number)
{
	struct act a = { .number = number, .flags = MSG_NOSIGNAL };

	for (int i = 0; i < TURNS; i++) {
		a.deed = DO_SEND;
		a.size = RECORD_HEAD + 8;
		data_send(w, &a);
		a.deed = DO_RECV;
		a.size = 400;
		data_recv(w, &a);
	}
}

enum { OVER, BEFORE, INSTEAD, WAYS };

static void open_one(struct wild *w, const struct act *a)
{
	atomic_int *slot = &slots[a->slot];
	uint64_t from = stamp(), then;
	int way = a->flavour % WAYS, old = -1, conn, fd;

	if (atomic_load(&world->conns) > MAX_CONNS - SPARE)
		return;
	if (way != INSTEAD)
		old = atomic_exchange(slot, -1);
	/* The next to be opened, here or by another thread, gets the number at once. */
	if (way == BEFORE && old >= 0)
		wild_close(old);
	fd = a->how % 2 ? dial(&conn) : take(&conn);
	if (fd < 0) {
		if (way == OVER && old >= 0)
			wild_put(slot, old);
		return;
	}
	log_event(NUMBER_IS, fd, conn, from);
	if (a->flavour / WAYS % 2)
		warm(w, fd);
	if (way == OVER && old >= 0) {
		then = stamp();
		watch_begin("dup2", old);
		if (dup2(fd, old) != old)
			watch_bad("dup2 of %d over %d: %s", fd, old, stage_errno(errno));
		watch_end();
		log_event(NUMBER_ENDS, old, 0, then);
		log_event(NUMBER_IS, old, conn, then);
		wild_close(fd);
		fd = old;
	}
	wild_put(slot, fd);
}

static void close_one(const struct act *a)
{
	int fd = atomic_exchange(&slots[a->slot], -1);

	if (fd >= 0)
		wild_close(fd);
}

static int dup_high(int fd, const struct act *a)
{
	static const int bases[] = { 10, 1500, 5000, HIGHEST };
	struct rlimit limit;
	int base = bases[a->flavour % 4];

	getrlimit(RLIMIT_NOFILE, &limit);
	if (!(world->may & MAY_HIGH) || (rlim_t)base + 100 > limit.rlim_cur)
		base = 10;
	return fcntl(fd, a->how % 2 ? F_DUPFD : F_DUPFD_CLOEXEC, base);
}

/* Over a number that is in use; *over: which. */
static int dup_over(int fd, const struct act *a, int *over)
{
	int old = atomic_exchange(&slots[a->other], -1), rc, err;

	if (old < 0)
		return dup(fd);
	*over = old;
	if (old == fd)
		rc = old;
	else
		rc = a->flavour % 2 ? dup2(fd, old) : dup3(fd, old, 0);
	err = errno;
	if (rc < 0)
		wild_put(&slots[a->other], old);
	errno = err;
	return rc;
}

static void dup_one(const struct act *a)
{
	uint64_t begin = wild_begin();
	int fd = atomic_load(&slots[a->slot]), over = -1, to;
	struct call *c;

	if (fd < 0)
		return;
	c = log_call(CALL_WAIT, "dup", begin, fd, 0);
	watch_begin("dup", fd);
	to = a->how % 3 == 0 ? dup(fd) : a->how % 3 == 1 ? dup_high(fd, a) : dup_over(fd, a, &over);
	watch_end();
	if (c)
		log_result(c, to, errno);
	if (to < 0) {
		if (errno != EBADF && !few_numbers(errno))
			watch_bad("dup of %d: %s", fd, stage_errno(errno));
		return;
	}
	if (to != fd) {
		if (over >= 0)
			log_event(NUMBER_ENDS, over, 0, begin);
		log_event(NUMBER_COPIES, to, fd, begin);
	}
	wild_keep(&slots[a->other], to);
}

static void shut_one(const struct act *a)
{
	static const int hows[] = { SHUT_RD, SHUT_WR, SHUT_RDWR };
	uint64_t begin = wild_begin();
	int fd = atomic_load(&slots[a->slot]), rc;
	struct call *c;

	if (fd < 0)
		return;
	c = log_call(CALL_WAIT, "shutdown", begin, fd, 0);
	watch_begin("shutdown", fd);
	rc = shutdown(fd, hows[a->how % 3]);
	watch_end();
	log_event(NUMBER_SHUTS, fd, 0, begin);
	if (c)
		log_result(c, rc, errno);
}

/* ---- threads ---- */

void wild_act(struct wild *w, const struct act *a)
{
	if (a->us)
		stage_nap(a->us);
	switch (a->deed) {
	case DO_OPEN: open_one(w, a); break;
	case DO_SEND: data_send(w, a); break;
	case DO_RECV: data_recv(w, a); break;
	case DO_POLL: waits_poll(w, a); break;
	case DO_EPOLL: waits_epoll(w, a); break;
	case DO_INTEREST: waits_interest(w, a); break;
	case DO_SET: waits_set(w, a); break;
	case DO_CLOSE: close_one(a); break;
	case DO_DUP: dup_one(a); break;
	case DO_SHUT: shut_one(a); break;
	case DO_OPTION: odd_option(w, a); break;
	case DO_SIGNAL: odd_signal(w, a); break;
	case DO_CANCEL: odd_cancel(w, a); break;
	case DO_FORK: odd_fork(w, a); break;
	case DO_EXEC: odd_exec(w, a); break;
	case DO_RIGHTS: odd_rights(w, a); break;
	case DO_ARRIVE: data_arrive(w, a); break;
	default: break;
	}
}

static void *run(void *arg)
{
	struct wild *w = arg;
	struct act a;

	watch_sit("thread %d", w->index);
	pthread_barrier_wait(&start);
	for (int i = 0; i < world->steps; i++) {
		plan_act(&w->plan, &a);
		watch_step((unsigned)i);
		wild_act(w, &a);
	}
	atomic_store(&w->running, false);
	watch_rise();
	return NULL;
}

static int fixed(int fd)
{
	int up = fcntl(fd, F_DUPFD_CLOEXEC, FIXED);

	if (fd < 0 || up < 0)
		watch_die("no descriptors: %s", stage_errno(errno));
	close(fd);
	return up;
}

/* All that needs memory or numbers, before the limits are low. */
static void equip(struct wild *w, int index)
{
	w->index = index;
	w->plan.state = world->seed * 64 + (uint64_t)index;
	w->file = fixed(memfd_create("records", 0));
	if (pipe(w->pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, w->rights))
		watch_die("no pipes: %s", stage_errno(errno));
	for (int i = 0; i < 2; i++) {
		w->pipe[i] = fixed(w->pipe[i]);
		w->rights[i] = fixed(w->rights[i]);
	}
	w->page = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	w->buffer = mmap(NULL, RECORD_MAX, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			 0);
	w->mapped = ftruncate(w->file, FILE_SIZE)
			    ? MAP_FAILED
			    : mmap(NULL, FILE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, w->file, 0);
	if (w->mapped == MAP_FAILED || w->page == MAP_FAILED || w->buffer == MAP_FAILED ||
	    mprotect(w->page + 2 * 4096, 4096, PROT_NONE))
		watch_die("no memory");
}

static void on_signal(int number)
{
	if (number == SIGPIPE)
		pipes++;
	else
		hits[number == SIGUSR1]++;
}

static void *nothing(void *arg)
{
	pthread_exit(arg);
}

/* The C library opens a file when a thread is first cancelled: now, and not among our numbers. */
static void load_unwinder(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, nothing, NULL) || pthread_join(thread, NULL))
		watch_die("no thread");
}

/* Handlers of both kinds only where signals of both kinds are sent. */
static void handle_signals(void)
{
	struct sigaction sa = { .sa_handler = on_signal };

	if (world->may & MAY_RESTART || !(world->may & MAY_BREAK))
		sa.sa_flags = SA_RESTART;
	sigaction(SIGUSR1, &sa, NULL);
	sigaction(SIGPIPE, &sa, NULL);
	if (world->may & MAY_BREAK)
		sa.sa_flags = 0;
	sigaction(SIGUSR2, &sa, NULL);
}

static void prepare(void)
{
	struct rlimit files = { HIGHEST + 1000, HIGHEST + 1000 };

	handle_signals();
	for (int i = 0; i < MAX_SLOTS; i++)
		atomic_store(&slots[i], -1);
	for (int i = 0; i < MAX_SETS; i++)
		atomic_store(&sets[i], -1);
	if (world->may & MAY_HIGH && setrlimit(RLIMIT_NOFILE, &files)) {
		getrlimit(RLIMIT_NOFILE, &files);
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	for (int i = 0; i < 2 * MAX_THREADS; i++)
		equip(&wilds[i], i);
	load_unwinder();
	listener = stage_listen(AF_INET, 64);
	/* The number was a low one for a moment, as the numbers of connections will be. */
	listener = fixed(listener);
	odd_limits();
	atomic_store(&world->port[0], conn_port(listener, false));
}

int wild_main(void)
{
	pthread_attr_t attr;

	watch_sit("main");
	prepare();
	watch_begin("the other process", 0);
	while (!atomic_load(&world->port[1]))
		stage_nap(100);
	watch_end();
	for (int i = 0; i < world->slots; i++)
		open_one(&wilds[0], &(struct act) { .slot = (uint8_t)i, .how = (uint8_t)i });
	for (int i = 0; i < world->sets && world->may & MAY_SETS; i++)
		waits_set(&wilds[0], &(struct act) { .set = (uint8_t)i });
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK);
	pthread_barrier_init(&start, NULL, (unsigned)world->threads);
	for (int i = 0; i < world->threads; i++) {
		atomic_store(&wilds[i].running, true);
		if (pthread_create(&wilds[i].thread, &attr, run, &wilds[i]))
			watch_die("no thread");
	}
	for (int i = 0; i < world->threads; i++)
		pthread_join(wilds[i].thread, NULL);
	for (int i = 0; i < world->slots; i++)
		wild_put(&slots[i], -1);
	for (int i = 0; i < world->sets; i++)
		wild_put(&sets[i], -1);
	atomic_store(&world->shutting, true);
	close(listener);
	atomic_store(&world->done, true);
	watch_rise();
	return 0;
}
