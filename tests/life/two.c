/* SPDX-License-Identifier: MIT */
/* See two.h. */
#include "life/two.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

int two_patience_s = 150;

/* ---- for the test ---- */

static pid_t start_one(struct two *t, two_fn run, pid_t parent)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* also of one that is stopped */
	if (getppid() != parent)
		_exit(1);
	alarm((unsigned)two_patience_s);
	run(t);
	_exit(0);
}

void two_start(struct lives *l, two_fn target, two_fn asker)
{
	struct common *common = mmap(NULL, sizeof(*common), PROT_READ | PROT_WRITE,
				     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct two t = { .common = common };
	pid_t self = getpid();
	int pair[2];

	memset(l, 0, sizeof(*l));
	l->peeks = -1;
	if (common == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
		abort();
	l->common = common;
	pair_full = pair_local = true;
	t.is_target = true;
	t.sock = pair[0];
	t.own = &common->target;
	t.peer = &common->asker;
	if (target)
		l->target = start_one(&t, target, self);
	t.is_target = false;
	t.sock = pair[1];
	t.own = &common->asker;
	t.peer = &common->target;
	if (asker)
		l->asker = start_one(&t, asker, self);
	else
		l->peeks = dup(pair[1]);
	close(pair[0]);
	close(pair[1]);
}

int two_await_one(pid_t pid, int timeout_ms)
{
	uint64_t end = pair_now_ms() + (uint64_t)timeout_ms;
	int status;

	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (pair_now_ms() > end) {
			fprintf(stderr, "# process %d hangs\n", (int)pid);
			kill(pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		usleep(500);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool two_await(struct lives *l)
{
	int asker = 0, target = 0;

	if (l->asker)
		asker = two_await_one(l->asker, two_patience_s * 1000);
	if (asker && l->target) /* it may be stopped, or wait for the other */
		kill(l->target, SIGKILL);
	if (l->target)
		target = two_await_one(l->target, two_patience_s * 1000);
	if (l->peeks >= 0)
		close(l->peeks);
	munmap(l->common, sizeof(*l->common));
	if (asker || target)
		fprintf(stderr, "# asker ended with %d, target with %d\n", asker, target);
	return !asker && !target;
}

bool two_run(two_fn target, two_fn asker)
{
	struct lives l;

	two_start(&l, target, asker);
	return two_await(&l);
}

/* ---- making ---- */

void two_open(struct two *t)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in in = { .sin_family = AF_INET };

	o.sge = TWO_SGE;
	o.max_inline = TWO_INLINE;
	o.one_cq = false;
	t->p.options = o;
	t->s = &t->p.a;
	MUST(pair_side_open(t->s, &o, 0));
	t->s->mem = calloc(1, TWO_MEMORY);
	MUST(t->s->mem);
	t->s->mr = flue_register(t->s->pd, t->s->mem, TWO_MEMORY, PAIR_ALL_ACCESS);
	MUST(t->s->mr);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&in;
	attr.local_len = sizeof(in);
	attr.flags = FLUE_LISTEN_FULL;
	t->p.listener = t->s->adapter->ops->listen(t->s->adapter, &attr);
	MUST(t->p.listener);
	t->own->pid = getpid();
	t->own->rkey = t->s->mr->rkey;
	t->own->addr = t->s->mr->remote_start;
	t->own->listens = t->p.listener->local;
}

bool two_connect_qp(struct two *t, struct flue_qp *qp)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;

	if (t->is_target) {
		req = t->p.listener->ops->get_request(t->p.listener, 20000);
		return req && req->ops->accept(req, qp, NULL);
	}
	attr.remote = (struct sockaddr *)&t->peer->listens;
	attr.remote_len = sizeof(struct sockaddr_in);
	attr.flags = FLUE_CONN_FULL;
	return qp->ops->connect(qp, &attr);
}

void two_connect(struct two *t)
{
	struct flue_qp_values v = { .size = sizeof(v) };

	t->s->qp = pair_new_qp(&t->p, t->s);
	MUST(t->s->qp);
	MUST(two_connect_qp(t, t->s->qp));
	MUST(t->s->qp->ops->query(t->s->qp, &v, FLUE_QPV_LINK));
	MUST(v.link == FLUE_LINK_LOCAL);
}

void two_close(struct two *t)
{
	MUST(t->p.listener->ops->destroy(t->p.listener));
	MUST(pair_side_close(t->s));
}

/* ---- talking ---- */

void two_say(struct two *t, char what)
{
	MUST(write(t->sock, &what, 1) == 1);
}

void two_hear(struct two *t, char what)
{
	struct flue_qp_values v = { .size = sizeof(v) };
	char got = 0;

	MUST(read(t->sock, &got, 1) == 1);
	MUST(got == what);
	/* What the engine did for the other before it said that is done; ThreadSanitizer learns so from the lock. */
	if (t->s && t->s->qp)
		MUST(t->s->qp->ops->query(t->s->qp, &v, FLUE_QPV_WORK));
}

static bool is_in_state(pid_t pid, const char *task, char state)
{
	char path[64], text[256];
	ssize_t n;
	char *p;
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)pid, task);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return true; /* that thread has ended */
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	p = strrchr(text, ')');
	return p && p[2] == state;
}

static bool all_stand(pid_t pid)
{
	char path[32];
	struct dirent *e;
	bool all = true;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	dir = opendir(path);
	while (dir && (e = readdir(dir))) {
		if (e->d_name[0] != '.' && !is_in_state(pid, e->d_name, 'T'))
			all = false;
	}
	if (dir)
		closedir(dir);
	return all;
}

void two_stop(pid_t pid)
{
	MUST(kill(pid, SIGSTOP) == 0);
	while (!all_stand(pid))
		usleep(100);
}

void two_go_on(pid_t pid)
{
	MUST(kill(pid, SIGCONT) == 0);
}

/* ---- requests ---- */

bool two_post(struct two *t, struct flue_qp *qp, uint32_t op, size_t off, uint32_t n,
	      uint32_t pieces, uint64_t at, uint32_t rkey, uint32_t flags)
{
	struct flue_sge sg[TWO_SGE];
	struct flue_send_wr wr = { .id = 7,
				   .op = op,
				   .flags = FLUE_SIGNALED | flags,
				   .sg = sg,
				   .n_sg = pieces,
				   .rkey = rkey,
				   .remote_addr = at };
	struct flue_recv_wr recv = { .id = 8, .sg = sg, .n_sg = pieces };

	for (uint32_t i = 0; i < pieces; i++) {
		uint32_t part = i == pieces - 1 ? n : n / (pieces - i) | (n > pieces);

		sg[i] = flue_mr_sge(t->s->mr, off, part);
		off += part;
		n -= part;
	}
	if (op == UINT32_MAX)
		return flue_post_recv(qp, &recv);
	return flue_post_send(qp, &wr);
}

uint32_t two_status(struct two *t, int timeout_ms)
{
	struct flue_wc wc;

	if (pair_take(t->s->send_cq, &wc, 1, timeout_ms) != 1)
		return UINT32_MAX;
	return wc.status;
}

void two_move(struct two *t, uint32_t op, size_t off, uint32_t n, uint32_t pieces, size_t at)
{
	uint32_t status;

	MUST(two_post(t, t->s->qp, op, off, n, pieces, t->peer->addr + at, t->peer->rkey, 0));
	status = two_status(t, 20000);
	if (status != FLUE_WC_SUCCESS)
		fprintf(stderr, "# %u octets in %u pieces: %s\n", n, pieces,
			status == UINT32_MAX ? "no completion" : flue_wc_status_name(status));
	MUST(status == FLUE_WC_SUCCESS);
}

bool two_is_direct(struct two *t, bool expected)
{
	for (int i = 0; i < (expected ? 50 : 3); i++) {
		uint32_t status;

		two_stop(t->peer->pid);
		MUST(two_post(t, t->s->qp, FLUE_WR_WRITE, 0, 1, 1, t->peer->addr + TWO_MEMORY - 1,
			      t->peer->rkey, 0));
		status = two_status(t, 100);
		two_go_on(t->peer->pid);
		if (status == UINT32_MAX)
			MUST(two_status(t, 20000) == FLUE_WC_SUCCESS);
		else
			return status == FLUE_WC_SUCCESS;
	}
	return false;
}

unsigned two_count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	MUST(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}
