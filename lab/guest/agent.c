/*
 * Runs the host's commands in the lab guest, several at once.
 *
 * One TCP connection is one command. The client sends one line; the agent runs it with
 * /bin/sh -c in a process group of its own, sends back what it prints (stdout and stderr merged)
 * and, as the last line, "EXIT n", n as in a shell (128 + signal number when killed).
 * When the client closes the connection, or even shuts its sending half, the group is killed:
 * that is how the host aborts a program in the guest.
 *
 * The agent serves whoever can reach it. That is only the private namespace of the lab.
 */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LINE_MAX_LEN 4096

static int read_line(int fd, char *line, size_t size)
{
	size_t len = 0;

	while (len < size) {
		ssize_t n = read(fd, line + len, 1);

		if (n <= 0)
			return -1;
		if (line[len] == '\n') {
			line[len] = 0;
			return 0;
		}
		len++;
	}
	return -1;
}

static int write_all(int fd, const char *data, size_t len)
{
	while (len) {
		ssize_t n = send(fd, data, len, MSG_NOSIGNAL);

		if (n < 0)
			return -1;
		data += n;
		len -= n;
	}
	return 0;
}

static pid_t start(const char *command, int out[2])
{
	pid_t pid = fork();

	if (pid)
		return pid;
	setpgid(0, 0);
	signal(SIGCHLD, SIG_DFL);
	dup2(out[1], STDOUT_FILENO);
	dup2(out[1], STDERR_FILENO);
	close(out[0]);
	close(out[1]);
	if (!freopen("/dev/null", "r", stdin))
		_exit(126);
	execl("/bin/sh", "sh", "-c", command, (char *)NULL);
	_exit(127);
}

/*
 * Copies output until the shell has ended and the pipe is empty for the moment (a background
 * process may hold it open for ever). Returns -1 when the client is gone. *last is the last byte sent.
 */
static int relay(int client, int out, int pidfd, char *last)
{
	struct pollfd fds[] = { { out, POLLIN, 0 }, { client, POLLIN, 0 }, { pidfd, POLLIN, 0 } };
	char buf[16384];

	for (;;) {
		if (poll(fds, 3, -1) < 0)
			return -1;
		if (fds[1].revents && recv(client, buf, sizeof(buf), MSG_DONTWAIT) <= 0)
			return -1;
		if (fds[0].revents) {
			ssize_t n = read(out, buf, sizeof(buf));

			if (n > 0) {
				if (write_all(client, buf, n))
					return -1;
				*last = buf[n - 1];
				continue;
			}
			fds[0].fd = -1;
		}
		if (fds[2].revents)
			return 0;
	}
}

static void serve(int client)
{
	char line[LINE_MAX_LEN], last = '\n', end[32];
	int out[2], status = 0, pidfd;
	pid_t pid;

	if (read_line(client, line, sizeof(line)) || pipe(out))
		return;
	pid = start(line, out);
	if (pid < 0)
		return;
	setpgid(pid, pid); /* whoever comes first, parent or child */
	close(out[1]);
	pidfd = pidfd_open(pid, 0);
	relay(client, out[0], pidfd, &last);
	kill(-pid, SIGKILL);
	waitpid(pid, &status, 0);
	snprintf(end, sizeof(end), "%sEXIT %d\n", last == '\n' ? "" : "\n",
		 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
	write_all(client, end, strlen(end));
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = { .sin_family = AF_INET };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	addr.sin_port = htons(argc > 1 ? atoi(argv[1]) : 7100);
	signal(SIGCHLD, SIG_IGN); /* the per-connection children need no reaping */
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(listener, (struct sockaddr *)&addr, sizeof(addr)) || listen(listener, 32)) {
		perror("agent");
		return 1;
	}
	for (;;) {
		int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (client < 0 && errno == EINTR)
			continue;
		if (client >= 0 && fork() == 0) {
			signal(SIGCHLD, SIG_DFL);
			serve(client);
			_exit(0);
		}
		close(client);
	}
}
