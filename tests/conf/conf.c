/* SPDX-License-Identifier: MIT */
/* See conf.h. */
#include "conf/conf.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static struct pair the_pair;

void conf_init(int argc, char **argv)
{
	const char *variant = argc > 1 ? argv[1] : "soft";
	enum column c;

	signal(SIGPIPE, SIG_DFL);
	faulty_wrap(&soft_provider);
	if (!strcmp(variant, "soft"))
		return;
	if (column_find(variant, &c)) {
		pair_use(c);
		return;
	}
	pair_provider = "faulty";
	if (!strcmp(variant, "faulty-late"))
		faulty_delay_all(1);
	else if (strcmp(variant, "faulty")) {
		fprintf(stderr, "unknown variant '%s'\n", variant);
		exit(2);
	}
}

int conf_open(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	*state = &the_pair;
	if (pair_open(&the_pair, &o))
		return 0;
	fprintf(stderr, "cannot open a pair: %s\n", strerror(errno));
	return -1;
}

int conf_make(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;

	*state = &the_pair;
	if (pair_make(&the_pair, &o))
		return 0;
	fprintf(stderr, "cannot make a pair: %s\n", strerror(errno));
	return -1;
}

int conf_close(void **state)
{
	if (pair_close(&the_pair))
		return 0;
	fprintf(stderr, "cannot close the pair: %s\n", strerror(errno));
	return -1;
}

struct pair *conf_pair(const struct pair_options *o)
{
	assert_ok(pair_open(&the_pair, o));
	return &the_pair;
}

void conf_end(struct pair *p)
{
	assert_ok(pair_close(p));
}

uint32_t conf_expect_end(struct pair *p, uint32_t reason_a, uint32_t reason_b)
{
	struct flue_event a, b;

	assert_true(pair_event(&p->a, FLUE_EVENT_DISCONNECTED, p->a.qp, &a, 10000));
	assert_string_equal(flue_close_reason_name(a.reason), flue_close_reason_name(reason_a));
	assert_true(pair_event(&p->b, FLUE_EVENT_DISCONNECTED, p->b.qp, &b, 10000));
	assert_string_equal(flue_close_reason_name(b.reason), flue_close_reason_name(reason_b));
	return a.detail;
}

void conf_expect_quiet(struct pair *p)
{
	struct flue_event ev;

	assert_fails(flue_get_event(p->a.adapter, &ev, 0), EAGAIN);
	assert_fails(flue_get_event(p->b.adapter, &ev, 0), EAGAIN);
	assert_int_equal(pair_kept(), 0);
}

void conf_streams(int fd[2])
{
	struct sockaddr_in in = { .sin_family = AF_INET };
	socklen_t len = sizeof(in);
	int door = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(door, (struct sockaddr *)&in, len), 0);
	assert_int_equal(listen(door, 1), 0);
	assert_int_equal(getsockname(door, (struct sockaddr *)&in, &len), 0);
	assert_int_equal(connect(fd[0], (struct sockaddr *)&in, len), 0);
	fd[1] = accept4(door, NULL, NULL, SOCK_CLOEXEC);
	assert_true(fd[1] >= 0);
	close(door);
}
