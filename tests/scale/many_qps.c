/* SPDX-License-Identifier: MIT */
/*
 * A thousand connected queue pairs between two processes carry traffic at once (RD-2, RD-4, RD-8); ten thousand cost no processor time
 * while they are idle, over TCP and through memory, and each answers afterwards.
 *
 * Each connection has a slot of memory on both sides. In each round the client writes its pattern
 * into all slots of the server and sends a message on every connection, before it looks at a
 * single answer. For each message the server checks the slot's bytes and answers with what it
 * saw; the client reads its slot back and checks that, too.
 */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "conf/pair.h"

#define SLOT   2048
#define IDLE_S 1
/* Wake-ups of a process in that time: threads go to sleep in steps, and look at their sets every 3 s. Anything that
 * comes round with each connection, or every few milliseconds, would be hundreds. */
#define IDLE_WAKES 40

static uint32_t n_qps, rounds;
static bool through_memory;

/* One process's half. */
struct half {
	struct pair_side side;
	struct flue_qp **qps;
	uint32_t up; /* connected so far */
};

struct message {
	uint32_t round, index;
	uint64_t addr; /* server → client with index UINT32_MAX: where its memory is */
	uint32_t rkey, good;
};

static bool half_open(struct half *h)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair_side *s = &h->side;

	o.one_cq = true;
	o.cq_depth = 8 * n_qps;
	if (!pair_side_open(s, &o, 0))
		return false;
	s->mem = calloc(2 * n_qps, SLOT);
	h->qps = calloc(n_qps, sizeof(*h->qps));
	if (!s->mem || !h->qps)
		return false;
	s->mr = flue_register(s->pd, s->mem, 2ul * n_qps * SLOT, PAIR_ALL_ACCESS);
	return s->mr != NULL;
}

static struct flue_qp *add_qp(struct half *h)
{
	struct flue_qp_attr a = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	a.send_cq = h->side.send_cq;
	a.recv_cq = h->side.recv_cq;
	a.sq_depth = a.rq_depth = 4;
	qp = h->side.pd->ops->create_qp(h->side.pd, &a);
	if (qp)
		qp->user = (void *)(uintptr_t)h->up;
	h->qps[h->up++] = qp;
	return qp;
}

/* The slots of the second half are for messages. */
static uint8_t *inbox(struct half *h, uint32_t i)
{
	return h->side.mem + (n_qps + (size_t)i) * SLOT;
}

static bool post_receive(struct half *h, uint32_t i)
{
	struct flue_sge sge = flue_mr_sge(h->side.mr, (n_qps + (size_t)i) * SLOT,
					  sizeof(struct message));
	struct flue_recv_wr wr = { .id = i, .sg = &sge, .n_sg = 1 };

	return flue_post_recv(h->qps[i], &wr);
}

static bool post_message(struct half *h, const struct message *m, uint32_t i)
{
	uint8_t *box = inbox(h, i) + SLOT / 2;
	struct flue_sge sge = flue_mr_sge(h->side.mr, (size_t)(box - h->side.mem), sizeof(*m));
	struct flue_send_wr wr = { .id = i, .op = FLUE_WR_SEND, .flags = FLUE_SIGNALED };

	memcpy(box, m, sizeof(*m));
	wr.sg = &sge;
	wr.n_sg = 1;
	return flue_post_send(h->qps[i], &wr);
}

static bool post_rdma(struct half *h, uint32_t op, uint32_t i, const struct message *at)
{
	struct flue_sge sge = flue_mr_sge(h->side.mr, (size_t)i * SLOT, SLOT);
	struct flue_send_wr wr = { .id = i, .op = op, .flags = FLUE_SIGNALED };

	wr.sg = &sge;
	wr.n_sg = 1;
	wr.rkey = at->rkey;
	wr.remote_addr = at->addr + (uint64_t)i * SLOT;
	return flue_post_send(h->qps[i], &wr);
}

/* Next completion; false after 20 s or when it failed. */
static bool take(struct half *h, struct flue_wc *wc)
{
	return pair_take(h->side.recv_cq, wc, 1, 20000) == 1 && wc->status == FLUE_WC_SUCCESS;
}

/* ---- server ---- */

static bool accept_all(struct half *h, struct flue_listener *l)
{
	struct flue_conn_attr a = FLUE_ATTR(struct flue_conn_attr);

	a.flags = FLUE_CONN_ASYNC | (through_memory ? FLUE_CONN_FULL : 0);
	while (h->up < n_qps) {
		struct flue_conn_request *req = l->ops->get_request(l, 20000);
		uint32_t theirs = 0;
		struct flue_qp *qp;

		if (!req || req->private_len != sizeof(theirs))
			return false;
		/* Connections may arrive in any order: the client says which slot this one has. */
		memcpy(&theirs, req->private_data, sizeof(theirs));
		if (theirs != h->up)
			fprintf(stderr, "# connection %u came as number %u\n", theirs, h->up);
		qp = add_qp(h);
		if (!qp || theirs + 1 != h->up || !post_receive(h, theirs) ||
		    !req->ops->accept(req, qp, &a))
			return false;
	}
	return true;
}

static bool answer(struct half *h, uint32_t i)
{
	struct message m;

	memcpy(&m, inbox(h, i), sizeof(m));
	m.good = m.index == i &&
		 pair_check(h->side.mem + (size_t)i * SLOT, SLOT, m.round * n_qps + i) == SLOT;
	m.addr = h->side.mr->remote_start;
	m.rkey = h->side.mr->rkey;
	return post_receive(h, i) && post_message(h, &m, i);
}

static int server(int port_fd)
{
	struct sockaddr_in any = { .sin_family = AF_INET };
	struct flue_listen_attr la = FLUE_ATTR(struct flue_listen_attr);
	struct half h = { 0 };
	struct flue_listener *l;
	struct flue_wc wc;
	uint32_t left = (rounds + 1) * n_qps;

	any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	la.local = (struct sockaddr *)&any;
	la.local_len = sizeof(any);
	la.backlog = (int)n_qps;
	la.flags = through_memory ? FLUE_LISTEN_FULL : 0;
	if (!half_open(&h))
		return 10;
	l = h.side.adapter->ops->listen(h.side.adapter, &la);
	if (!l)
		return 11;
	any.sin_port = ((struct sockaddr_in *)&l->local)->sin_port;
	if (write(port_fd, &any.sin_port, sizeof(any.sin_port)) != sizeof(any.sin_port))
		return 12;
	if (!accept_all(&h, l))
		return 13;
	while (left) {
		if (!take(&h, &wc))
			return 14;
		if (wc.op != FLUE_WC_RECV)
			continue;
		if (!answer(&h, (uint32_t)wc.id))
			return 15;
		left--;
	}
	/* The client closes; what matters is that our last answers were sent, and they were. */
	while (flue_qp_state(h.qps[n_qps - 1]) == FLUE_QP_RTS)
		pair_take(h.side.recv_cq, &wc, 1, 20);
	return 0;
}

/* ---- client ---- */

static bool connect_all(struct half *h, uint16_t port)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = port };
	struct flue_conn_attr a = FLUE_ATTR(struct flue_conn_attr);

	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	a.remote = (struct sockaddr *)&to;
	a.remote_len = sizeof(to);
	a.timeout_ms = 20000;
	a.flags = through_memory ? FLUE_CONN_FULL : 0;
	for (uint32_t i = 0; i < n_qps; i++) {
		struct flue_qp *qp = add_qp(h);

		a.private_data = &i;
		a.private_len = sizeof(i);
		if (!qp || !post_receive(h, i) || !qp->ops->connect(qp, &a)) {
			fprintf(stderr, "# connection %u: %s\n", i, strerror(errno));
			return false;
		}
	}
	return true;
}

/* Every connection at once: a Write (but in the first round), then a message. */
static bool start_round(struct half *h, uint32_t round, const struct message *at)
{
	for (uint32_t i = 0; i < n_qps; i++) {
		struct message m = { .round = round, .index = i };

		if (round) {
			pair_fill(h->side.mem + (size_t)i * SLOT, SLOT, round * n_qps + i);
			if (!post_rdma(h, FLUE_WR_WRITE, i, at))
				return false;
		}
		if (!post_message(h, &m, i))
			return false;
	}
	return true;
}

/* Takes all completions of a round; good answers are counted. */
static bool finish_round(struct half *h, uint32_t round, struct message *at, uint32_t *good)
{
	uint32_t left = n_qps * (round ? 3 : 2);
	struct message m;
	struct flue_wc wc;

	for (*good = 0; left; left--) {
		if (!take(h, &wc))
			return false;
		if (wc.op != FLUE_WC_RECV)
			continue;
		memcpy(&m, inbox(h, (uint32_t)wc.id), sizeof(m));
		*good += m.good && m.round == round && m.index == wc.id;
		*at = m;
		if (!post_receive(h, (uint32_t)wc.id))
			return false;
	}
	return true;
}

static uint32_t read_back(struct half *h, const struct message *at)
{
	uint32_t good = 0;
	struct flue_wc wc;

	memset(h->side.mem, 0, (size_t)n_qps * SLOT);
	for (uint32_t i = 0; i < n_qps; i++)
		if (!post_rdma(h, FLUE_WR_READ, i, at))
			return 0;
	for (uint32_t i = 0; i < n_qps; i++) {
		if (!take(h, &wc) || wc.op != FLUE_WC_READ)
			return 0;
		good += pair_check(h->side.mem + (size_t)wc.id * SLOT, SLOT,
				   rounds * n_qps + (uint32_t)wc.id) == SLOT;
	}
	return good;
}

/* ---- idle ---- */

static uint64_t switches_of_thread(const char *path)
{
	FILE *file = fopen(path, "re");
	unsigned long n;
	uint64_t sum = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1)
			sum += n;
	}
	if (file)
		fclose(file);
	return sum;
}

/* How often threads of a process have slept, which is how often they woke. */
static uint64_t sleeps_of(pid_t pid)
{
	char path[64 + NAME_MAX];
	struct dirent *entry;
	uint64_t sum = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	tasks = opendir(path);
	assert_non_null(tasks);
	while ((entry = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, entry->d_name);
		if (entry->d_name[0] != '.')
			sum += switches_of_thread(path);
	}
	closedir(tasks);
	return sum;
}

/* Both processes sleep: they wake a few times, however many connections there are. */
static void expect_idle(pid_t other)
{
	uint64_t ours, theirs;

	usleep(300000); /* leases lapse, acknowledgements go out */
	ours = sleeps_of(getpid());
	theirs = sleeps_of(other);
	sleep(IDLE_S);
	assert_in_range(sleeps_of(getpid()) - ours, 0, IDLE_WAKES);
	assert_in_range(sleeps_of(other) - theirs, 0, IDLE_WAKES);
}

static void expect_links(const struct half *h)
{
	struct flue_qp_values v = FLUE_ATTR(struct flue_qp_values);

	for (uint32_t i = 0; i < n_qps; i++) {
		assert_true(h->qps[i]->ops->query(h->qps[i], &v, FLUE_QPV_LINK));
		assert_int_equal(v.link, through_memory ? FLUE_LINK_LOCAL : FLUE_LINK_TCP);
	}
}

static void run(bool idle)
{
	struct half h = { 0 };
	struct message at = { 0 };
	int fds[2], status = -1;
	uint32_t good = 0;
	uint16_t port = 0;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		_exit(server(fds[1]));
	close(fds[1]);
	assert_int_equal(read(fds[0], &port, sizeof(port)), sizeof(port));
	assert_true(half_open(&h));
	assert_true(connect_all(&h, port));
	expect_links(&h);
	for (uint32_t round = 0; round <= rounds; round++) {
		assert_true(start_round(&h, round, &at));
		assert_true(finish_round(&h, round, &at, &good));
		if (round)
			assert_int_equal(good, n_qps);
		if (idle && round < rounds)
			expect_idle(pid);
	}
	assert_int_equal(read_back(&h, &at), n_qps);
	for (uint32_t i = 0; i < n_qps; i++)
		assert_true(flue_destroy_qp(h.qps[i]));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(flue_deregister(h.side.mr));
	free(h.qps);
	free(h.side.mem);
	h.side.mr = NULL;
	h.side.mem = NULL;
	assert_true(pair_side_close(&h.side));
	close(fds[0]);
}

/* A process needs a descriptor for each connection over TCP. ThreadSanitizer is ten times slower and proves the same with
 * fewer. */
static void choose(uint32_t n, uint32_t n_rounds, bool memory)
{
	const char *build = getenv("FLUE_TEST_BUILD");
	struct rlimit limit;

	n_qps = build && !strcmp(build, "tsan") ? n / 10 : n;
	rounds = n_rounds;
	through_memory = pair_local = memory;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	if (!memory && limit.rlim_cur < n_qps + 64) {
		print_message("skipped: only %lu descriptors are allowed\n",
			      (unsigned long)limit.rlim_cur);
		skip();
	}
}

static void thousand_qps_carry_traffic_at_once_between_two_processes(void **state)
{
	(void)state;
	choose(1000, 5, false);
	run(false);
}

static void ten_thousand_qps_cost_no_time_while_idle(void **state)
{
	(void)state;
	choose(10000, 1, false);
	run(true);
}

static void ten_thousand_qps_through_memory_cost_no_time_while_idle(void **state)
{
	(void)state;
	choose(10000, 1, true);
	run(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(thousand_qps_carry_traffic_at_once_between_two_processes),
		cmocka_unit_test(ten_thousand_qps_cost_no_time_while_idle),
		cmocka_unit_test(ten_thousand_qps_through_memory_cost_no_time_while_idle),
	};
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
