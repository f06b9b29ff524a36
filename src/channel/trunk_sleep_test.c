/* SPDX-License-Identifier: MIT */
/* Trunks: sleeping and waking, the end of the other process, forks, signal handlers. */
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>

#include "base/clock.h"
#include "base/self.h"
#include "base/sys.h"
#include "channel/trunk_test.h"

static int set_up(void **st)
{
	attach_pair(&small_shape, true);
	return 0;
}

static int tear_down(void **st)
{
	close_pair();
	return 0;
}

/* --- rings */

static void awake_side_costs_no_system_call(void **st)
{
	uint32_t c = connect_pair(0);
	char octet;

	for (int i = 0; i < 1000; i++) {
		assert_int_equal(send_text(side[0], c, "x", 0), 1);
		assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	}
	assert_int_equal(trunk_rings(side[0]) + trunk_rings(side[1]), 0);
}

static void sleeping_side_is_rung_once(void **st)
{
	struct epoll_event ev = { .events = EPOLLIN };
	int set = epoll_create1(EPOLL_CLOEXEC);
	uint32_t c = connect_pair(0), d = connect_pair(0);
	struct trunk_event e[4];
	char octet;

	assert_int_equal(epoll_ctl(set, EPOLL_CTL_ADD, trunk_fd(side[1]), &ev), 0);
	assert_true(trunk_arm(side[1]));
	assert_int_equal(epoll_wait(set, &ev, 1, 0), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(send_text(side[0], c, "x", 0), 1);
		assert_int_equal(send_text(side[0], d, "x", 0), 1);
	}
	assert_int_equal(trunk_rings(side[0]), 1);
	assert_int_equal(epoll_wait(set, &ev, 1, 1000), 1);
	trunk_heard(side[1]);
	assert_int_equal(epoll_wait(set, &ev, 1, 0), 0);
	assert_int_equal(trunk_poll(side[1], e, 4), 2);
	/* Who is about to sleep and finds something need not be rung. */
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_false(trunk_arm(side[1]));
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_int_equal(trunk_rings(side[0]), 1);
	/* Room is no news to who does not want any. */
	assert_true(trunk_arm(side[0]));
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_rings(side[1]), 0);
	close(set);
}

static void sleeper_is_rung_when_there_is_room(void **st)
{
	uint32_t c = connect_pair(0);
	char octet;

	while (send_text(side[0], c, "x", 0) == 1)
		;
	assert_true(trunk_arm(side[0]));
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_rings(side[1]), 1);
	assert_false(trunk_arm(side[0]));
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
}

static void side_that_starves_after_it_armed_is_rung(void **st)
{
	uint32_t c = connect_pair(0);
	char octet;

	assert_true(trunk_arm(side[0]));
	while (send_text(side[0], c, "x", 0) == 1)
		;
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_rings(side[1]), 1);
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
	/* Nobody is armed: what starves now costs the peer nothing. */
	while (send_text(side[0], c, "x", 0) == 1)
		;
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_rings(side[1]), 1);
}

static void side_that_owes_an_end_after_it_armed_is_rung(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_event ev;

	/* As if the peer had not looked for long. */
	side[0]->head_seen = side[0]->tail - side[0]->shape.blocks + 2;
	atomic_store(&side[1]->own->head, side[0]->head_seen);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_true(trunk_arm(side[0]));
	trunk_drop(side[0], c, 5);
	assert_int_equal(side[0]->owing.first, c);
	assert_int_equal(trunk_poll(side[1], &ev, 1), 1);
	assert_int_equal(trunk_rings(side[1]), 1);
	assert_false(trunk_arm(side[0]));
	assert_int_equal(trunk_poll(side[0], &ev, 1), 0);
	assert_int_equal(poll_one(side[1], c), TRUNK_ENDED);
}

static void ring_is_nothing_to_fear(void **st)
{
	static char much[1000];
	uint32_t c = connect_pair(0);
	int status = -1;
	pid_t pid;

	/* The socket is full: nobody waits, nobody gets a signal. */
	while (send(trunk_fd(side[0]), much, sizeof(much), MSG_DONTWAIT) > 0)
		;
	assert_true(trunk_arm(side[1]));
	errno = EDOM;
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_int_equal(errno, EDOM);
	trunk_heard(side[1]);
	assert_int_equal(poll_one(side[1], c), TRUNK_READABLE);
	/* The program has closed ours, and opened something there. */
	pid = fork();
	if (pid == 0) {
		int ends[2], fd = trunk_fd(side[0]);

		/* Here nothing is ours; what stands at its number is not touched. */
		if (pipe(ends) != 0 || dup2(ends[1], fd) != fd)
			_exit(1);
		trunk_close(side[0]);
		_exit(fcntl(fd, F_GETFD) >= 0 ? 0 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* --- sleeps */

static void wait_ends_after_its_time(void **st)
{
	uint32_t c = connect_pair(0);
	uint64_t before = clock_now();

	errno = EDOM;
	assert_int_equal(trunk_wait(side[0], 0), -ETIMEDOUT);
	assert_int_equal(trunk_wait(side[0], 60), -ETIMEDOUT);
	assert_int_equal(trunk_wait_for(side[0], c, TRUNK_READABLE, 60), -ETIMEDOUT);
	assert_true(clock_now() - before >= 120 * NSEC_PER_MSEC);
	assert_int_equal(errno, EDOM);
	assert_int_equal(trunk_wait_for(side[0], c, TRUNK_WRITABLE, -1), 0);
}

static void on_alarm(int sig)
{
	(void)sig;
}

static void wait_ends_when_a_handler_runs(void **st)
{
	const struct itimerval soon = { .it_value = { .tv_usec = 50000 } };
	struct sigaction act = { .sa_handler = on_alarm };

	assert_int_equal(sigaction(SIGALRM, &act, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &soon, NULL), 0);
	assert_int_equal(trunk_wait(side[0], -1), -EINTR);
	signal(SIGALRM, SIG_DFL);
}

/* The other side answers every octet, after a while now and then, until the circuit is shut. */
static void *echo(void *arg)
{
	struct trunk *t = arg;
	struct trunk_event ev[4];
	char octet;

	for (int n, done = 0, i = 0; !done;) {
		trunk_wait(t, -1);
		n = trunk_poll(t, ev, 4);
		for (int k = 0; k < n; k++) {
			uint32_t c = ev[k].circuit;

			while (recv_some(t, c, &octet, 1, 0) == 1) {
				if (++i % 50 == 0)
					usleep(i % 100 ? 2000 : 40000);
				while (send_text(t, c, "y", 0) == -EAGAIN)
					trunk_wait_for(t, c, TRUNK_WRITABLE, -1);
			}
			if (ev[k].bits & TRUNK_SHUT)
				trunk_drop(t, c, 0);
			done |= ev[k].bits & TRUNK_ENDED;
		}
		done |= trunk_status(t) != 0;
	}
	return NULL;
}

struct caller {
	uint32_t c;
	int rounds;
	bool ok;
};

static void *call_and_wait(void *arg)
{
	struct caller *caller = arg;
	char octet;

	for (int i = 0; i < caller->rounds; i++) {
		if (send_text(side[0], caller->c, "x", 0) != 1)
			return NULL;
		while (recv_some(side[0], caller->c, &octet, 1, 0) != 1)
			if (trunk_wait_for(side[0], caller->c, TRUNK_READABLE, 60000) != 0)
				return NULL;
		if (octet != 'y')
			return NULL;
	}
	caller->ok = true;
	return NULL;
}

static void threads_wait_for_circuits_of_their_own(void **st)
{
	struct caller caller[4];
	pthread_t thread[4], other;

	for (int i = 0; i < 4; i++)
		caller[i] = (struct caller) { .c = connect_pair(i % 2), .rounds = 200 };
	assert_int_equal(pthread_create(&other, NULL, echo, side[1]), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, call_and_wait, &caller[i]), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(thread[i], NULL);
		assert_true(caller[i].ok);
	}
	for (int i = 0; i < 4; i++)
		trunk_drop(side[0], caller[i].c, 0);
	pthread_join(other, NULL);
}

static void *read_slowly(void *arg)
{
	uint32_t c = *(uint32_t *)arg;
	char octets[64];

	for (int n = 0; n < 20;) {
		usleep(n % 3 ? 1000 : 30000);
		while (recv_some(side[1], c, octets, 1, 0) == 1)
			n++;
	}
	return NULL;
}

static void writer_sleeps_until_there_is_room(void **st)
{
	uint32_t c = connect_pair(0);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, read_slowly, &c), 0);
	for (int sent = 0; sent < 20;) {
		if (send_text(side[0], c, "x", 0) == 1)
			sent++;
		else
			assert_int_equal(trunk_wait_for(side[0], c, TRUNK_WRITABLE, 60000), 0);
	}
	pthread_join(thread, NULL);
}

static void signal_handler_gets_told_off(void **st)
{
	struct trunk_event ev;
	uint32_t c = connect_pair(0);

	/* As if it came in the middle of a call. */
	assert_true(robust_take(&side[0]->lock));
	assert_int_equal(send_text(side[0], c, "x", 0), -EDEADLK);
	assert_int_equal(trunk_poll(side[0], &ev, 1), -EDEADLK);
	assert_int_equal(trunk_open(side[0], NULL, 0, NULL), -EDEADLK);
	trunk_drop(side[0], c, 0);
	assert_false(trunk_arm(side[0]));
	robust_give(&side[0]->lock);
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
}

/* --- cancellation */

static _Atomic bool has_waited;

static void *wait_and_be_cancelled(void *arg)
{
	uint32_t c = *(uint32_t *)arg;

	if (c == TRUNK_NONE)
		trunk_wait(side[0], -1);
	else
		trunk_wait_for(side[0], c, TRUNK_READABLE, -1);
	atomic_store(&has_waited, true);
	for (;;)
		pthread_testcancel();
	return NULL;
}

/* A request is not acted upon in the middle of a wait: no lock, no count and no turn at the socket goes with the thread. */
static void cancel_a_waiter(uint32_t c, uint32_t which, bool on_socket)
{
	void *end = NULL;
	pthread_t thread;
	char octet;

	atomic_store(&has_waited, false);
	assert_int_equal(pthread_create(&thread, NULL, wait_and_be_cancelled, &which), 0);
	while (!(on_socket ? atomic_load(&side[0]->polls) : atomic_load(&side[0]->sleepers) == 1))
		usleep(1000);
	assert_int_equal(pthread_cancel(thread), 0);
	usleep(50000);
	assert_int_equal(send_text(side[1], c, "x", 0), 1);
	assert_int_equal(pthread_join(thread, &end), 0);
	assert_ptr_equal(end, PTHREAD_CANCELED);
	assert_true(atomic_load(&has_waited));
	assert_int_equal(atomic_load(&side[0]->sleepers), 0);
	assert_false(atomic_load(&side[0]->polls));
	/* The lock is free, and everything goes on. */
	assert_int_equal(poll_one(side[0], c), TRUNK_READABLE);
	assert_int_equal(recv_some(side[0], c, &octet, 1, 0), 1);
}

static void cancelled_waiter_leaves_everything_in_order(void **st)
{
	uint32_t c = connect_pair(0);

	for (int i = 0; i < 4; i++)
		cancel_a_waiter(c, i & 1 ? c : TRUNK_NONE, i & 2);
	assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
}

/* --- threads of one side */

static void *wait_and_tell(void *arg)
{
	trunk_wait(side[0], -1);
	atomic_store(&has_waited, true);
	return NULL;
}

/* A thread that sleeps on the socket, armed. */
static pthread_t put_to_sleep(void)
{
	pthread_t thread;

	atomic_store(&has_waited, false);
	assert_int_equal(pthread_create(&thread, NULL, wait_and_tell, NULL), 0);
	while (!atomic_load(&side[0]->polls))
		usleep(1000);
	usleep(50000);
	return thread;
}

/* Has it been woken? If nothing wakes it in half a minute the peer does, which sends something on `c`. */
static bool has_heard(pthread_t thread, uint32_t c)
{
	bool heard;

	for (int i = 0; i < 30000 && !atomic_load(&has_waited); i++)
		usleep(1000);
	heard = atomic_load(&has_waited);
	if (!heard)
		send_text(side[1], c, "x", 0);
	pthread_join(thread, NULL);
	return heard;
}

static void sleeper_hears_of_what_our_own_thread_has_freed(void **st)
{
	uint32_t c = connect_pair(0);
	struct trunk_block b[16];
	pthread_t thread;
	int n = 0;

	for (int i = 0; i < 3; i++) {
		while (trunk_claim(side[0], c, &b[n]) == 1)
			n++;
		thread = put_to_sleep();
		trunk_unclaim(side[0], b[--n].index);
		assert_true(has_heard(thread, c));
		assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
	}
	/* And no more than that. */
	assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
	assert_int_equal(trunk_rings(side[1]), 0);
}

static void sleeper_hears_of_room_for_who_starved_since(void **st)
{
	uint32_t c = connect_pair(0);
	pthread_t thread = put_to_sleep();
	char octet;

	while (send_text(side[0], c, "x", 0) == 1)
		;
	assert_false(atomic_load(&has_waited));
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_true(has_heard(thread, c));
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
}

static void sleeper_hears_of_room_that_came_before_the_flag(void **st)
{
	uint32_t c = connect_pair(0);
	pthread_t thread;
	char octet;
	int no;

	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	thread = put_to_sleep();
	/* As if the peer came between our look and the flag: it sees nobody who wants to know. */
	assert_true(trunk_enter(side[0], &no));
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_rings(side[1]), 0);
	trunk_starve(side[0], &side[0]->circuit[c]);
	trunk_leave(side[0]);
	assert_true(has_heard(thread, c));
	assert_int_equal(poll_one(side[0], c), TRUNK_WRITABLE);
}

static void wait_does_without_a_waker(void **st)
{
	uint32_t c = connect_pair(0);
	struct caller caller = { .c = c, .rounds = 200 };
	pthread_t other;
	int null;

	while (side[0]->waker < 0)
		assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
	/* The program has put something of its own there, which can always be read. */
	null = open("/dev/null", O_RDWR | O_CLOEXEC);
	assert_int_equal(dup2(null, side[0]->waker), side[0]->waker);
	assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
	assert_false(atomic_load(&side[0]->polls));
	assert_int_equal(pthread_create(&other, NULL, echo, side[1]), 0);
	call_and_wait(&caller);
	assert_true(caller.ok);
	trunk_drop(side[0], c, 0);
	pthread_join(other, NULL);
	close(side[0]->waker);
	close(null);
}

/* --- processes */

/* A child with side 1. How it is attached is said by `socks` and `known`. */
static pid_t spawn(int *fd, bool socks, bool known, void (*fn)(struct trunk *))
{
	int pair[2] = { -1, -1 };
	struct trunk *t;
	pid_t pid;

	*fd = trunk_memory(&small_shape);
	if (socks)
		assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		self_forked();
		close(pair[0]);
		if (trunk_attach(*fd, 1, pair[1], 0, &t) != 0)
			_exit(1);
		fn(t);
		_exit(0);
	}
	if (socks)
		close(pair[1]);
	assert_int_equal(trunk_attach(*fd, 0, pair[0], known ? pid : 0, &side[0]), 0);
	own_close(*fd);
	return pid;
}

static void accept_and_sleep(struct trunk *t)
{
	struct trunk_event ev;

	for (;;) {
		while (trunk_poll(t, &ev, 1) == 1) {
			if (ev.bits & TRUNK_OPENED) {
				trunk_accept(t, ev.circuit, NULL, 0, NULL);
				send_text(t, ev.circuit, "last words", 0);
			}
		}
		trunk_wait(t, -1);
	}
}

static void lose_peer(bool socks, bool known, bool sleeps)
{
	struct trunk_event ev;
	char text[16] = { 0 };
	int fd, c, status;
	pid_t pid = spawn(&fd, socks, known, accept_and_sleep);

	c = trunk_open(side[0], NULL, 0, NULL);
	while (trunk_wait_for(side[0], (uint32_t)c, TRUNK_READABLE, 60000) == 0 &&
	       trunk_greeting(side[0], (uint32_t)c, text, 1) < 0)
		;
	assert_int_equal(trunk_wait_for(side[0], (uint32_t)c, TRUNK_READABLE, 60000), 0);
	while (trunk_poll(side[0], &ev, 1) == 1)
		;
	assert_int_equal(kill(pid, SIGKILL), 0);
	while (trunk_status(side[0]) == 0) {
		if (sleeps)
			assert_int_equal(trunk_wait(side[0], 60000), 0);
		trunk_poll(side[0], &ev, 1);
	}
	assert_int_equal(trunk_status(side[0]), -EPIPE);
	assert_int_equal(ev.bits, TRUNK_ENDED);
	assert_int_equal(recv_some(side[0], (uint32_t)c, text, 16, 0), 10);
	assert_string_equal(text, "last words");
	assert_int_equal(recv_some(side[0], (uint32_t)c, text, 16, 0), -ECONNRESET);
	assert_int_equal(trunk_wait(side[0], 60000), 0); /* nobody sleeps any more */
	assert_int_equal(waitpid(pid, &status, 0), pid);
	trunk_close(side[0]);
}

static void killed_peer_is_noticed(void **st)
{
	int before = open_fds();

	for (int i = 0; i < 8; i++)
		if (i & 3) /* by the socket, by the number, or by both */
			lose_peer(i & 1, i & 2, i & 4);
	assert_int_equal(open_fds(), before);
}

static int heir_ready[2], heir_stop[2];

/* Its child has a copy of the socket, and lives on. */
static void leave_an_heir(struct trunk *t)
{
	char octet = 0;

	if (fork() == 0) {
		close(heir_stop[1]);
		if (write(heir_ready[1], "", 1) == 1 && read(heir_stop[0], &octet, 1) == 0)
			_exit(0);
		_exit(1);
	}
	for (;;)
		trunk_wait(t, -1);
}

static void *kill_later(void *arg)
{
	usleep(300000); /* until it sleeps on the socket */
	kill(*(pid_t *)arg, SIGKILL);
	return NULL;
}

static void killed_peer_is_noticed_when_its_child_has_the_socket(void **st)
{
	const struct itimerval limit = { .it_value = { .tv_sec = 60 } }, none = { 0 };
	struct sigaction act = { .sa_handler = on_alarm };
	int fd, status;
	pthread_t thread;
	char octet;
	pid_t pid;

	assert_int_equal(pipe(heir_ready), 0);
	assert_int_equal(pipe(heir_stop), 0);
	pid = spawn(&fd, true, true, leave_an_heir);
	assert_int_equal(read(heir_ready[0], &octet, 1), 1);
	assert_int_equal(sigaction(SIGALRM, &act, NULL), 0);
	assert_int_equal(setitimer(ITIMER_REAL, &limit, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, kill_later, &pid), 0);
	assert_int_equal(trunk_wait(side[0], -1), 0); /* -EINTR: it would never end */
	assert_int_equal(trunk_status(side[0]), -EPIPE);
	setitimer(ITIMER_REAL, &none, NULL);
	signal(SIGALRM, SIG_DFL);
	pthread_join(thread, NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	trunk_close(side[0]);
	for (int i = 0; i < 2; i++) {
		close(heir_ready[i]);
		close(heir_stop[i]);
	}
}

/* It ends another program's way: its memory is gone, its number is not. */
static void exec_something(struct trunk *t)
{
	execl("/bin/sleep", "sleep", "600", NULL);
	_exit(1);
}

static void peer_that_executes_another_program_is_gone(void **st)
{
	int fd, status;
	pid_t pid = spawn(&fd, true, true, exec_something);

	assert_int_equal(trunk_wait(side[0], 60000), 0);
	assert_int_equal(trunk_status(side[0]) ? -EPIPE : trunk_poll(side[0], NULL, 0), -EPIPE);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	trunk_close(side[0]);
}

static int be_child(uint32_t c, const uint8_t *map)
{
	struct trunk_event ev;
	struct trunk_message m;
	struct trunk_block b;
	unsigned char vec;
	char octet;

	if (mincore((void *)(uintptr_t)map, 4096, &vec) == 0 || errno != ENOMEM)
		return 1;
	if (send_text(side[0], c, "z", 0) != -ENOTCONN ||
	    recv_some(side[0], c, &octet, 1, 0) != -ENOTCONN ||
	    trunk_poll(side[0], &ev, 1) != -ENOTCONN || trunk_next(side[0], c, &m) != -ENOTCONN ||
	    trunk_take(side[0], c, &b) != -ENOTCONN ||
	    trunk_open(side[0], NULL, 0, NULL) != -ENOTCONN ||
	    trunk_wait(side[0], -1) != -ENOTCONN || trunk_status(side[0]) != -ENOTCONN ||
	    trunk_arm(side[0]))
		return 2;
	trunk_drop(side[0], c, 0);
	trunk_heard(side[0]);
	trunk_give(side[0], 0);
	trunk_close(side[0]);
	trunk_close(side[1]);
	return 0;
}

static void child_of_a_fork_has_nothing(void **st)
{
	uint32_t c = connect_pair(0);
	int status = -1, before;
	char octet;
	pid_t pid;

	/* With everything that a trunk may have. */
	while (side[0]->waker < 0)
		assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
	before = open_fds();
	pid = fork();
	if (pid == 0) {
		self_forked();
		status = be_child(c, side[0]->map);
		_exit(status ? status : open_fds() == before - 3 ? 0 : 3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The parent does not notice. */
	assert_int_equal(send_text(side[0], c, "x", 0), 1);
	assert_int_equal(recv_some(side[1], c, &octet, 1, 0), 1);
	assert_int_equal(trunk_wait(side[0], 50), -ETIMEDOUT);
	assert_int_equal(trunk_status(side[0]), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		T(awake_side_costs_no_system_call),
		T(sleeping_side_is_rung_once),
		T(sleeper_is_rung_when_there_is_room),
		T(side_that_starves_after_it_armed_is_rung),
		T(side_that_owes_an_end_after_it_armed_is_rung),
		T(ring_is_nothing_to_fear),
		T(wait_ends_after_its_time),
		T(wait_ends_when_a_handler_runs),
		T(threads_wait_for_circuits_of_their_own),
		T(writer_sleeps_until_there_is_room),
		T(signal_handler_gets_told_off),
		T(cancelled_waiter_leaves_everything_in_order),
		T(sleeper_hears_of_what_our_own_thread_has_freed),
		T(sleeper_hears_of_room_for_who_starved_since),
		T(sleeper_hears_of_room_that_came_before_the_flag),
		T(wait_does_without_a_waker),
		cmocka_unit_test(killed_peer_is_noticed),
		cmocka_unit_test(killed_peer_is_noticed_when_its_child_has_the_socket),
		cmocka_unit_test(peer_that_executes_another_program_is_gone),
		T(child_of_a_fork_has_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
