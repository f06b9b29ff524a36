/* SPDX-License-Identifier: MIT */
/* Side 1: a process of its own, which can be stopped and killed; or, over the link `self`, a thread of this one. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/driver.h"

static pid_t pid;
static pthread_t thread;

/* ---- what it does ---- */

static struct channel mirror_channel;

static void tell(void *arg, const struct record *r)
{
	(void)arg;
	if (!channel_put(&mirror_channel, r, sizeof(*r)))
		exit(1);
}

/* Executes what has come. -1: the end. */
static int obey(struct side *s)
{
	struct record r = { .type = REC_REPLY };
	struct cmd cmd;
	int n = 0, rc;

	while ((rc = channel_get(&mirror_channel, &cmd, sizeof(cmd), false)) > 0) {
		if (cmd.type == CMD_QUIT) {
			r.u.reply = (struct record_reply) { .ok = side_close(s), .error = errno };
			tell(NULL, &r);
			return -1;
		}
		side_execute(s, &cmd, &r.u.reply);
		tell(NULL, &r);
		n++;
	}
	return rc < 0 ? -1 : n;
}

int process_mirror(int fd)
{
	struct hello hello;
	struct side *s = side_open(1, &hello);
	unsigned idle = 0;
	uint16_t port;
	int n = 0;

	if (!s)
		return 1;
	channel_init(&mirror_channel, fd, true);
	channel_put(&mirror_channel, &hello, sizeof(hello));
	if (!channel_flush(&mirror_channel) ||
	    channel_get(&mirror_channel, &port, sizeof(port), true) < 0)
		return 1;
	side_meet(s, port);
	while (n >= 0) {
		unsigned news = side_progress(s, tell, NULL);

		n = obey(s);
		if (!channel_flush(&mirror_channel))
			return 1;
		idle = news || n ? 0 : idle + 1;
		if (n < 0 || side_is_busy(s) || idle < 20)
			continue;
		side_arm(s);
		if (!side_progress(s, tell, NULL) && n == 0)
			side_sleep(s, fd, 1000);
	}
	return 0;
}

static void *mirror_thread(void *arg)
{
	return (void *)(intptr_t)process_mirror((int)(intptr_t)arg);
}

/* ---- its beginning and end ---- */

static bool launch(int *fd)
{
	char number[16];
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds))
		return false;
	*fd = fds[0];
	if (model_column == COLUMN_SELF)
		return pthread_create(&thread, NULL, mirror_thread, (void *)(intptr_t)fds[1]) == 0;
	snprintf(number, sizeof(number), "%d", fds[1]);
	pid = fork();
	if (pid == 0) {
		/* What else is open here must not be held open there. */
		dup2(fds[1], STDIN_FILENO);
		closefrom(STDERR_FILENO + 1);
		execl("/proc/self/exe", "model", "--link", column_name(model_column), "--mirror",
		      "0", NULL);
		_exit(1);
	}
	close(fds[1]);
	return pid > 0;
}

bool process_start(void)
{
	int fd;

	if (!launch(&fd))
		return false;
	channel_init(&driver.channel, fd, false);
	if (!driver.own)
		driver.own = side_open(0, &driver.hello[0]);
	if (!driver.own ||
	    channel_get(&driver.channel, &driver.hello[1], sizeof(driver.hello[1]), true) < 0)
		return false;
	side_meet(driver.own, driver.hello[1].port);
	return channel_put(&driver.channel, &driver.hello[0].port, sizeof(driver.hello[0].port));
}

static struct {
	pthread_t thread;
	bool running;
	unsigned ms;
} waker;

static void *wake(void *arg)
{
	usleep(waker.ms * 1000);
	kill(pid, SIGCONT);
	return arg;
}

static void await_waker(void)
{
	if (waker.running)
		pthread_join(waker.thread, NULL);
	waker.running = false;
}

int process_join(void)
{
	void *result;
	int status;

	await_waker();
	if (model_column == COLUMN_SELF)
		return pthread_join(thread, &result) == 0 ? (int)(intptr_t)result : -1;
	return waitpid(pid, &status, 0) == pid ? status : -1;
}

/* ---- disturbances ---- */

void process_stop(unsigned ms)
{
	await_waker();
	waker.ms = ms;
	kill(pid, SIGSTOP);
	driver.stops++;
	waker.running = pthread_create(&waker.thread, NULL, wake, NULL) == 0;
	if (!waker.running)
		kill(pid, SIGCONT);
}

void process_kill(void)
{
	int status;

	await_waker();
	if (kill(pid, SIGKILL) != 0 || waitpid(pid, &status, 0) != pid)
		diverge(N_QPS, "the other process cannot be killed: %s", strerror(errno));
	close(driver.channel.fd);
	driver_bury();
	driver.kills++;
}
