/* SPDX-License-Identifier: MIT */
/* Homes as programs keep them, and as a broken or hostile one might. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "homes.h"
#include "sockets/record/home.h"
#include "sockets_view.h"

#define RECORDS   200u
#define HOME_SIZE (sizeof(struct home) + RECORDS * sizeof(struct rec))

/* ---- a home to be read ---- */

static struct home *make(int *fd)
{
	struct home *h;

	*fd = memfd_create(HOME_NAME, MFD_CLOEXEC);
	assert_true(*fd >= 0);
	assert_int_equal(ftruncate(*fd, (off_t)HOME_SIZE), 0);
	h = mmap(NULL, HOME_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
	assert_ptr_not_equal(h, MAP_FAILED);
	h->magic = HOME_MAGIC;
	h->version = HOME_VERSION;
	h->record_size = sizeof(struct rec);
	h->records = RECORDS;
	h->pid = getpid();
	strcpy(h->program, "actor");
	return h;
}

static void drop(struct home *h, int fd)
{
	munmap(h, HOME_SIZE);
	close(fd);
}

static struct sockaddr_in6 address(const char *text, unsigned port)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };

	assert_int_equal(inet_pton(AF_INET6, text, &a.sin6_addr), 1);
	return a;
}

static struct rec *add(struct home *h, uint32_t state, unsigned from, unsigned to)
{
	struct rec *r = &h->rec[h->high++];

	r->state = state;
	r->end.self = address("::ffff:127.0.0.1", from);
	r->end.peer = address("::ffff:127.0.0.1", to);
	return r;
}

/* ---- reading ---- */

static void home_is_read_record_by_record(void **st)
{
	struct homes homes = { 0 };
	struct diag diag = { 0 };
	int fd;
	struct home *h = make(&fd);
	struct rec *r;

	h->connections = 12;
	h->lanes = 3;
	h->stepdowns = 1;
	add(h, REC_FREE, 1, 2);
	add(h, REC_OPEN, 1, 2);
	r = add(h, REC_LANE, 40000, 6379);
	r->sent.lane_bytes = 1000;
	r->sent.calls = 7;
	r->received.lane_bytes = 2000;
	r->received.calls = 8;
	r->end.role = MEET_ACTIVE;
	add(h, REC_PLAIN, 6380, 40001)->why = WHY_STDIO;
	add(h, REC_PLAIN, 6381, 40002)->flags = REC_LISTEN;
	r = add(h, REC_YOUNG, 6382, 40003);
	r->end.self = address("fd00::1", 6382);
	assert_true(homes_add(&homes, fd, 4711));
	homes_finish(&homes, &diag);

	assert_int_equal(homes.n_processes, 1);
	assert_int_equal(homes.processes[0].pid, 4711);
	assert_string_equal(homes.processes[0].program, "actor");
	assert_int_equal(homes.processes[0].connections, 12);
	assert_int_equal(homes.processes[0].lanes, 3);
	assert_int_equal(homes.processes[0].stepdowns, 1);
	assert_int_equal(homes.n_connections, 3);
	/* By address: IPv4 before fd00::1, then by port. */
	assert_string_equal(homes.connections[0].why, "stdio");
	assert_non_null(strstr(homes.connections[0].sentence, "stdio stream"));
	assert_true(homes.connections[1].lane && homes.connections[1].active);
	assert_null(homes.connections[1].why);
	assert_int_equal(homes.connections[1].sent.lane_bytes, 1000);
	assert_int_equal(homes.connections[1].sent.messages, 7);
	assert_int_equal(homes.connections[1].received.lane_bytes, 2000);
	assert_int_equal(homes.connections[1].received.messages, 8);
	assert_int_equal(homes.connections[1].local.ss_family, AF_INET);
	assert_int_equal(homes.connections[2].local.ss_family, AF_INET6);
	assert_string_equal(homes.connections[2].why, "young");
	homes_free(&homes);
	drop(h, fd);
}

static void home_with_many_records_is_read_to_its_end(void **st)
{
	struct homes homes = { 0 };
	int fd;
	struct home *h = make(&fd);

	for (unsigned i = 0; i < RECORDS; i++)
		add(h, REC_YOUNG, 1000 + i, 80);
	assert_true(homes_add(&homes, fd, 1));
	assert_int_equal(homes.n_connections, RECORDS);
	for (unsigned i = 0; i < RECORDS; i++)
		assert_int_equal(((struct sockaddr_in *)&homes.connections[i].local)->sin_port,
				 htons((uint16_t)(1000 + i)));
	homes_free(&homes);
	drop(h, fd);
}

static void home_that_makes_no_sense_is_counted_and_left_alone(void **st)
{
	struct homes homes = { 0 };
	size_t strange = 0;
	int fd, pipes[2];
	struct home *h = make(&fd), good;

	add(h, REC_YOUNG, 1, 2);
	memcpy(&good, h, sizeof(good));
#define REFUSES(change)                                     \
	do {                                                \
		change;                                     \
		assert_true(homes_add(&homes, fd, 1));      \
		assert_int_equal(homes.strange, ++strange); \
		memcpy(h, &good, sizeof(good));             \
	} while (0)
	REFUSES(h->magic++);
	REFUSES(h->version++);
	REFUSES(h->record_size -= 8);
	REFUSES(h->records++); /* more than the file has */
	REFUSES(h->records = UINT32_MAX);
	REFUSES(h->records = HOME_RECORDS + 1);
	REFUSES(h->high = RECORDS + 1);
	REFUSES(h->high = UINT32_MAX);
	assert_int_equal(ftruncate(fd, 100), 0); /* nobody touches h from here on */
	assert_true(homes_add(&homes, fd, 1));
	assert_int_equal(homes.strange, ++strange);
	assert_int_equal(pipe(pipes), 0);
	assert_true(homes_add(&homes, pipes[0], 1));
	assert_int_equal(homes.strange, ++strange);
	assert_int_equal(homes.n_processes + homes.n_connections, 0);
	close(pipes[0]);
	close(pipes[1]);
	homes_free(&homes);
	drop(h, fd);
}

static void records_that_make_no_sense_do_no_harm(void **st)
{
	struct homes homes = { 0 };
	struct diag diag = { 0 };
	struct view view = { 0 };
	char *text = NULL;
	size_t length;
	json_t *json;
	int fd;
	struct home *h = make(&fd);

	memset(h->rec, 0xff, 100 * sizeof(struct rec));
	h->high = 104;
	for (unsigned i = 0; i < 100; i++)
		h->rec[i].state = i % (REC_PLAIN + 2);
	for (unsigned i = 0; i < 100; i++)
		h->rec[i].flags = 0;
	memset(h->program, '\033', sizeof(h->program)); /* without an end, for the terminal */
	h->rec[100].state = REC_PLAIN;
	h->rec[100].why = 1000;
	h->rec[100].end.peer.sin6_port = 1;
	assert_true(homes_add(&homes, fd, 1));
	homes_finish(&homes, &diag);
	assert_string_equal(homes.processes[0].program, "???????????????????????????????");
	assert_true(homes.n_connections > 0 && homes.n_connections <= 101);
	view.out = open_memstream(&text, &length);
	assert_true(sockets_view_table(&view, &homes));
	fclose(view.out);
	assert_null(strchr(text, '\033'));
	assert_non_null(strstr(text, "does not know"));
	free(text);
	json = sockets_view_json(&homes, NULL);
	assert_non_null(json);
	assert_int_equal(json_array_size(json_object_get(json, "connections")),
			 homes.n_connections);
	json_decref(json);
	homes_free(&homes);
	drop(h, fd);
}

static void two_ends_find_each_other_and_the_kernels_figures(void **st)
{
	struct diag_socket sockets[] = { { .cookie = 5, .sent = 50, .received = 500 },
					 { .cookie = 9, .sent = 90, .received = 900 } };
	struct diag diag = { .sockets = sockets, .n = 2 };
	struct view view = { 0 };
	struct homes homes = { 0 };
	char *text = NULL;
	size_t length;
	int fd, fd2;
	struct home *server = make(&fd), *client = make(&fd2);
	const struct homes_connection *left = NULL, *right = NULL;

	strcpy(client->program, "client");
	add(server, REC_PLAIN, 6379, 40000)->end.cookie = 5;
	add(client, REC_PLAIN, 40000, 6379)->end.cookie = 9;
	client->rec[0].end.role = MEET_ACTIVE;
	add(client, REC_PLAIN, 40001, 6379)->end.cookie = 77;  /* of another network namespace */
	add(server, REC_PLAIN, 40002, 40002)->end.cookie = 78; /* connected to itself */
	assert_true(homes_add(&homes, fd, 100));
	assert_true(homes_add(&homes, fd2, 200));
	homes_finish(&homes, &diag);
	assert_int_equal(homes.n_connections, 4);
	for (size_t i = 0; i < 4; i++) {
		const struct homes_connection *c = &homes.connections[i];

		if (c->cookie == 5)
			right = c;
		else if (c->cookie == 9)
			left = c;
		else
			assert_true(!c->known && (c->cookie == 78) == (c->other == i));
	}
	assert_non_null(left);
	assert_non_null(right);
	assert_ptr_equal(&homes.connections[left->other], right);
	assert_ptr_equal(&homes.connections[right->other], left);
	assert_true(left->known && right->known);
	assert_true(left->sent.tcp_bytes == 90 && right->received.tcp_bytes == 500);

	view.out = open_memstream(&text, &length);
	assert_true(sockets_view_table(&view, &homes));
	fclose(view.out);
	assert_non_null(strstr(text, "3 connections of 2 programs, 0 in lanes\n"));
	assert_non_null(
		strstr(text, "client[200]  127.0.0.1:40000  actor[100]  127.0.0.1:6379   tcp"));
	assert_null(strstr(text, "127.0.0.1:6379   client"));
	free(text);
	homes_free(&homes);
	drop(server, fd);
	drop(client, fd2);
}

static void rates_are_those_since_the_last_look(void **st)
{
	struct homes before = { 0 }, now = { 0 };
	struct diag diag = { 0 };
	struct view view = { .rows = { .before = &before, .seconds = 2 } };
	char *text = NULL;
	size_t length;
	int fd;
	struct home *h = make(&fd);
	struct rec *r = add(h, REC_LANE, 1, 2);

	r->sent.lane_bytes = 1 << 20;
	assert_true(homes_add(&before, fd, 1));
	homes_finish(&before, &diag);
	r->sent.lane_bytes += 6 << 20;
	r->received.lane_bytes += 2 << 10;
	assert_true(homes_add(&now, fd, 1));
	homes_finish(&now, &diag);
	view.out = open_memstream(&text, &length);
	assert_true(sockets_view_table(&view, &now));
	fclose(view.out);
	assert_non_null(strstr(text, "lane 100%  7 MiB"));
	assert_non_null(strstr(text, " 3 MiB "));
	assert_non_null(strstr(text, " 1 KiB"));
	free(text);
	homes_free(&before);
	homes_free(&now);
	drop(h, fd);
}

/* ---- finding ---- */

static size_t count_of(const struct homes *homes, ino_t ino, pid_t *pid)
{
	size_t n = 0;

	for (size_t i = 0; i < homes->n_processes; i++) {
		if (homes->processes[i].ino != ino)
			continue;
		*pid = homes->processes[i].pid;
		n++;
	}
	return n;
}

/* A child that has not made its own shows that of its parent: it is still one, and the parent's. */
static void homes_are_found_through_proc_once_each(void **st)
{
	struct homes homes;
	struct stat status;
	int fd, pipes[2];
	struct home *h = make(&fd);
	pid_t pid = 0, child;
	char octet;

	add(h, REC_YOUNG, 1, 2);
	assert_int_equal(fstat(fd, &status), 0);
	assert_int_equal(pipe(pipes), 0);
	child = fork();
	if (child == 0) {
		close(pipes[1]);
		_exit(read(pipes[0], &octet, 1) == 0 ? 0 : 1); /* until the parent has looked */
	}
	assert_true(homes_read(&homes, geteuid()));
	assert_int_equal(count_of(&homes, status.st_ino, &pid), 1);
	assert_int_equal(pid, getpid());
	homes_free(&homes);
	assert_true(homes_read(&homes, geteuid() + 1)); /* somebody else's are not */
	assert_int_equal(count_of(&homes, status.st_ino, &pid), 0);
	homes_free(&homes);
	close(pipes[0]);
	close(pipes[1]);
	assert_int_equal(waitpid(child, NULL, 0), child);
	drop(h, fd);
}

/* A real connection: what was sent is what the kernel says. */
static void figures_of_the_kernel_are_found_by_cookie(void **st)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t length = sizeof(at), size = sizeof(uint64_t);
	int listener = socket(AF_INET, SOCK_STREAM, 0), from = socket(AF_INET, SOCK_STREAM, 0), to;
	const struct diag_socket *s;
	struct diag diag;
	uint64_t cookie;
	char text[1000] = "";

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
	assert_int_equal(connect(from, (struct sockaddr *)&at, sizeof(at)), 0);
	to = accept(listener, NULL, NULL);
	assert_int_equal(send(from, text, sizeof(text), 0), sizeof(text));
	assert_int_equal(recv(to, text, sizeof(text), MSG_WAITALL), sizeof(text));
	diag_read(&diag);
	if (!diag.n) {
		print_message("no sock_diag here\n");
		skip();
	}
	assert_int_equal(getsockopt(from, SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
	s = diag_find(&diag, cookie);
	assert_non_null(s);
	assert_int_equal(s->sent, sizeof(text));
	assert_int_equal(s->received, 0);
	assert_int_equal(getsockopt(to, SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
	s = diag_find(&diag, cookie);
	assert_non_null(s);
	assert_int_equal(s->received, sizeof(text));
	assert_null(diag_find(&diag, 0));
	diag_free(&diag);
	close(listener);
	close(from);
	close(to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(home_is_read_record_by_record),
		cmocka_unit_test(home_with_many_records_is_read_to_its_end),
		cmocka_unit_test(home_that_makes_no_sense_is_counted_and_left_alone),
		cmocka_unit_test(records_that_make_no_sense_do_no_harm),
		cmocka_unit_test(two_ends_find_each_other_and_the_kernels_figures),
		cmocka_unit_test(rates_are_those_since_the_last_look),
		cmocka_unit_test(homes_are_found_through_proc_once_each),
		cmocka_unit_test(figures_of_the_kernel_are_found_by_cookie),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
