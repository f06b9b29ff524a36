/* SPDX-License-Identifier: MIT */
/* Which connections are shown, in which order, and how they fit a screen. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "layout.h"
#include "rows.h"

#define PROCESSES 3
#define MIB       (1u << 20)

static struct homes_process processes[PROCESSES];
static struct homes_connection connections[5];
static struct homes homes, before;
static struct homes_connection earlier[5];

static void set_end(struct sockaddr_storage *out, uint8_t key[18], const char *text, unsigned port)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
	struct sockaddr_in *in = (struct sockaddr_in *)out;

	memset(key, 0, 18);
	if (strchr(text, ':')) {
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)port);
		assert_int_equal(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
		memcpy(key, &in6->sin6_addr, 16);
	} else {
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)port);
		assert_int_equal(inet_pton(AF_INET, text, &in->sin_addr), 1);
		key[10] = key[11] = 0xff;
		memcpy(key + 12, &in->sin_addr, 4);
	}
	memcpy(key + 16, &in->sin_port, 2);
}

static struct homes_connection *add(size_t process, const char *address, unsigned from, unsigned to)
{
	struct homes_connection *c = &connections[homes.n_connections];

	*c = (struct homes_connection) { .process = process,
					 .cookie = from,
					 .active = true,
					 .known = true,
					 .other = HOMES_NONE };
	set_end(&c->local, c->key, address, from);
	set_end(&c->peer, c->key + 18, address, to);
	c->why = "plain-peer";
	c->sentence = "the peer's program does not run under Flue";
	earlier[homes.n_connections++] = *c;
	before.n_connections = homes.n_connections;
	return c;
}

/* Three of "client" and one of "redis-benchmark"; the latter is busy. In order of their keys. */
static int begin(void **st)
{
	static const char *const names[PROCESSES] = { "client", "redis-benchmark", "server" };

	for (size_t i = 0; i < PROCESSES; i++) {
		processes[i] = (struct homes_process) { .pid = (pid_t)(1000 + 1111111 * i) };
		strcpy(processes[i].program, names[i]);
	}
	homes = (struct homes) { .connections = connections,
				 .processes = processes,
				 .n_processes = PROCESSES };
	before = (struct homes) { .connections = earlier, .processes = processes };
	add(0, "127.0.0.1", 40000, 80)->sent.tcp_bytes = 10;
	add(0, "127.0.0.1", 40001, 8080)->received.tcp_bytes = 5 * MIB;
	add(1, "127.0.0.1", 40002, 6379)->sent.lane_bytes = 2 * MIB;
	connections[2].lane = true;
	connections[2].why = connections[2].sentence = NULL;
	earlier[1].received.tcp_bytes = 5 * MIB; /* it did all that before */
	return 0;
}

static void expect(const struct rows_attr *attr, const char *ports)
{
	char text[100] = "";
	struct rows rows;

	assert_true(rows_make(&rows, &homes, attr));
	for (size_t i = 0; i < rows.n; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%u", i ? " " : "",
			 rows.row[i].port);
	assert_string_equal(text, ports);
	assert_int_equal(rows.n + rows.hidden, homes.n_connections);
	rows_free(&rows);
}

static void rows_are_in_the_order_that_was_asked_for(void **st)
{
	struct rows_attr attr = { .before = &before, .seconds = 2 };

	attr.sort = ROWS_RATE;
	expect(&attr, "6379 80 8080");
	attr.sort = ROWS_BYTES;
	expect(&attr, "8080 6379 80");
	attr.sort = ROWS_PROGRAM;
	expect(&attr, "80 8080 6379");
	attr.sort = ROWS_PORT;
	expect(&attr, "80 6379 8080");
	attr.reverse = true;
	expect(&attr, "8080 6379 80");
	attr = (struct rows_attr) { .sort = ROWS_PID, .reverse = true };
	expect(&attr, "6379 8080 80");
	for (enum rows_sort s = 0; s < ROWS_SORTS; s++)
		assert_int_equal(rows_sort_of(rows_sort_word(s)), s);
	assert_int_equal(rows_sort_of("nonsense"), ROWS_SORTS);
}

static void rows_have_rates_when_there_was_an_earlier_look(void **st)
{
	struct rows_attr attr = { .sort = ROWS_RATE, .before = &before, .seconds = 2 };
	struct rows rows;

	assert_true(rows_make(&rows, &homes, &attr));
	assert_true(rows.row[0].rated && rows.row[0].rate_out == 1.0 * MIB);
	assert_true(rows.row[0].rate_in == 0);
	rows_free(&rows);
	earlier[2].cookie = 1; /* the same addresses, another connection */
	assert_true(rows_make(&rows, &homes, &attr));
	for (size_t i = 0; i < rows.n; i++)
		assert_int_equal(rows.row[i].rated, rows.row[i].port != 6379);
	rows_free(&rows);
}

static void rows_are_those_that_fit_the_filter(void **st)
{
	static const struct {
		const char *filter, *ports;
	} table[] = {
		{ "", "80 8080 6379" },
		{ "client", "80 8080" },
		{ "CLI", "80 8080" },
		{ "redis", "6379" },
		{ "redis*mark", "6379" },
		{ "edis*", "" },
		{ "program=client", "80 8080" },
		{ "80", "80" },
		{ "40001", "8080" },
		{ "1000", "80 8080" },
		{ "pid=1112111", "6379" },
		{ "pid=80", "" },
		{ "port=80", "80" },
		{ "port=1000", "" },
		{ "client port=8080", "8080" },
		{ "client  6379", "" },
		{ "pid=x", "" },
		{ "nonsense", "" },
		{ "server", "" },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct rows_attr attr = { .sort = ROWS_PROGRAM, .filter = table[i].filter };

		expect(&attr, table[i].ports);
	}
	/* The peer counts too, if it is known. */
	add(2, "127.0.0.1", 6379, 40002)->active = false;
	connections[2].other = 3;
	connections[3].other = 2;
	assert_true(rows_match(&homes, &connections[2], "server"));
	assert_true(rows_match(&homes, &connections[2], "pid=2223222"));
	strcpy(connections[0].detail, "nginx[77]");
	assert_true(rows_match(&homes, &connections[0], "nginx"));
}

/* ---- on a screen ---- */

static void make(struct layout *layout, struct rows *rows, unsigned width)
{
	struct rows_attr attr = { .sort = ROWS_PORT, .before = &before, .seconds = 2 };

	assert_true(rows_make(rows, &homes, &attr));
	layout_make(layout, rows, width);
}

static void what_matters_is_there_at_80_columns(void **st)
{
	char line[LAYOUT_MOST + 1];
	struct layout layout;
	struct rows rows;

	make(&layout, &rows, 80);
	layout_line(line, &layout, NULL);
	assert_true(strlen(line) <= 80);
	for (const char *const *title = (const char *const[]) { "PROGRAM", "PID", "PEER", "PORT",
								"WAY", "OUT/s", "IN/s", NULL };
	     *title; title++)
		assert_non_null(strstr(line, *title));
	layout_line(line, &layout, &rows.row[1]);
	assert_true(strlen(line) <= 80);
	/* Nothing of it is cut, though names and numbers are long. */
	assert_non_null(strstr(line, "redis-benchmark"));
	assert_non_null(strstr(line, "1112111"));
	assert_non_null(strstr(line, "6379"));
	assert_non_null(strstr(line, "lane 100%"));
	assert_non_null(strstr(line, "1 MiB"));
	assert_null(strchr(line, '~'));
	layout_line(line, &layout, &rows.row[0]);
	assert_non_null(strstr(line, "tcp plain-peer"));
	rows_free(&rows);
}

static void a_line_is_never_longer_than_the_screen(void **st)
{
	char line[LAYOUT_MOST + 1];
	struct layout layout;
	struct rows rows;

	memset(processes[0].program, 'x', 32);
	strcpy(connections[0].detail, "a-long-name-of-a-program-without-it[1234567]");
	set_end(&connections[1].local, connections[1].key,
		"fd00:1111:2222:3333:4444:5555:6666:7777", 40001);
	for (unsigned width = 1; width <= 2 * LAYOUT_MOST; width += 7) {
		make(&layout, &rows, width);
		for (size_t i = 0; i < rows.n; i++) {
			layout_line(line, &layout, &rows.row[i]);
			assert_true(strlen(line) <= width && strlen(line) <= LAYOUT_MOST);
		}
		rows_free(&rows);
	}
	make(&layout, &rows, 300);
	layout_line(line, &layout, &rows.row[0]);
	assert_non_null(strstr(line, "(a-long-name-of-a-program-without-it)"));
	assert_non_null(strstr(line, "127.0.0.1:40000"));
	assert_non_null(strstr(line, "does not run under Flue"));
	rows_free(&rows);
}

static void details_have_everything_and_are_wrapped(void **st)
{
	char text[1024];
	const char *at, *next;
	struct layout layout;
	struct rows rows;

	strcpy(connections[0].detail, "nginx[77]");
	connections[0].sent.messages = 12345;
	make(&layout, &rows, 80);
	layout_details(text, sizeof(text), &rows.row[0]);
	assert_string_equal(text, "client[1000] 127.0.0.1:40000 to 127.0.0.1:80\n"
				  "tcp; sent 10 B in 12,345 calls, received 0 B\n"
				  "why TCP: the peer's program does not run under Flue: nginx[77]");
	for (unsigned width = 1; width < 60; width += 9) {
		size_t all = 0;

		for (at = text; *at; at = next) {
			size_t length = layout_wrap(at, width, &next);

			assert_true(length <= width && next > at);
			all += (size_t)(next - at);
		}
		assert_int_equal(all, strlen(text));
	}
	assert_int_equal(layout_wrap("some words here", 11, &next), 10);
	assert_string_equal(next, "here");
	rows_free(&rows);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(rows_are_in_the_order_that_was_asked_for, begin),
		cmocka_unit_test_setup(rows_have_rates_when_there_was_an_earlier_look, begin),
		cmocka_unit_test_setup(rows_are_those_that_fit_the_filter, begin),
		cmocka_unit_test_setup(what_matters_is_there_at_80_columns, begin),
		cmocka_unit_test_setup(a_line_is_never_longer_than_the_screen, begin),
		cmocka_unit_test_setup(details_have_everything_and_are_wrapped, begin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
