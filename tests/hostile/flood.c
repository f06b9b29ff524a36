/* SPDX-License-Identifier: MIT */
/* Many connections that never become one. The scene's listener allows 8 half-open, for 300 ms. */
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"
#include "hostile/scene.h"

#define FLOOD     60
#define HALF_OPEN 8

static struct raw_peer crowd[FLOOD];

static int open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void expect_open_files(int want)
{
	uint64_t end = pair_now_ms() + RAW_PATIENCE_MS;

	while (open_files() != want && pair_now_ms() < end)
		usleep(1000);
	assert_int_equal(open_files(), want);
}

/* The next one who comes is served. */
static void expect_service(struct scene *s)
{
	scene_connect(s, &scene_default);
	scene_prove(s);
	raw_fin(&s->peer);
	raw_expect_end(&s->peer);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_GRACEFUL, 0);
	scene_expect_flushed(s);
}

static void dial(struct scene *s, struct raw_peer *p)
{
	*p = (struct raw_peer) { .depth = 4, .tx = s->peer.tx, .rx = s->peer.rx };
	raw_connect(p, (struct sockaddr *)&s->listener->local, sizeof(struct sockaddr_in));
}

static bool is_closed(struct raw_peer *p, int ms)
{
	struct pollfd ready = { .fd = p->fd, .events = POLLIN | POLLRDHUP };
	uint8_t octet;

	return poll(&ready, 1, ms) == 1 && recv(p->fd, &octet, 1, MSG_DONTWAIT) <= 0;
}

static void leave_all(void)
{
	for (int i = 0; i < FLOOD; i++)
		raw_close(&crowd[i]);
}

static void half_open_connections_are_bounded(void **state)
{
	struct scene *s = *state;
	int files = open_files(), most = 0;

	for (int i = 0; i < FLOOD; i++)
		dial(s, &crowd[i]);
	/* All are served in turn, and at each moment only as many as the limit says have a file
	 * beside our own: the others wait in the kernel. */
	for (int i = 0; i < FLOOD; i++) {
		while (!is_closed(&crowd[i], 1))
			most = open_files() > most ? open_files() : most;
	}
	assert_true(most > files + FLOOD);
	assert_true(most <= files + FLOOD + HALF_OPEN);
	scene_expect_health(s);
	leave_all();
	expect_service(s);
	expect_open_files(files);
}

static void half_a_request_from_everybody_times_out(void **state)
{
	struct scene *s = *state;
	struct mpa_frame req = raw_request(&s->peer);
	uint8_t frame[MPA_FRAME_LEN + MPA_PD_MAX];

	mpa_frame_encode(&req, frame, sizeof(frame));
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < HALF_OPEN; i++) {
			dial(s, &crowd[i]);
			raw_send(&crowd[i], frame, 15 + (size_t)i);
		}
		for (int i = 0; i < HALF_OPEN; i++) {
			raw_expect_end(&crowd[i]);
			raw_close(&crowd[i]);
		}
	}
	expect_service(s);
}

/* Connections that are reset again at once leave nothing behind. */
static void connections_that_vanish_leave_nothing(void **state)
{
	struct scene *s = *state;
	int files = open_files();

	for (int i = 0; i < 10 * FLOOD; i++) {
		if (!raw_try_connect(&crowd[0], (struct sockaddr *)&s->listener->local,
				     sizeof(struct sockaddr_in)))
			continue;
		raw_send_some(&crowd[0], "MPA", (size_t)i % 4);
		raw_reset(&crowd[0]);
	}
	/* Those still in the kernel's queue come out, and the time of those in between passes. */
	for (int i = 0; i < 3; i++) {
		dial(s, &crowd[0]);
		raw_expect_end(&crowd[0]);
		raw_close(&crowd[0]);
	}
	expect_open_files(files);
	expect_service(s);
}

/* Whole requests that nobody takes: as many wait as the backlog says, the others are refused. */
static void requests_that_nobody_takes_are_bounded(void **state)
{
	struct scene *s = *state;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_listener *l = s->listener, *small;
	struct mpa_frame req = raw_request(&s->peer), rep;
	struct sockaddr_storage at = l->local;
	int refused = 0;

	((struct sockaddr_in *)&at)->sin_port = 0;
	attr.local = (struct sockaddr *)&at;
	attr.local_len = sizeof(struct sockaddr_in);
	attr.backlog = 5;
	small = s->adapter->ops->listen(s->adapter, &attr);
	assert_non_null(small);
	s->listener = small;
	for (int i = 0; i < FLOOD; i++) {
		dial(s, &crowd[i]);
		raw_send_frame(&crowd[i], &req);
		/* One after the other: the kernel's own queue is as short. */
		if (i >= 5) {
			raw_expect_frame(&crowd[i], true, &rep);
			assert_true(rep.flags & MPA_FLAG_REJECT);
			refused++;
		}
	}
	assert_int_equal(refused, FLOOD - 5);
	leave_all();
	assert_true(small->ops->destroy(small));
	s->listener = l;
	expect_service(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_SCENE(half_open_connections_are_bounded),
		WITH_SCENE(half_a_request_from_everybody_times_out),
		WITH_SCENE(connections_that_vanish_leave_nothing),
		WITH_SCENE(requests_that_nobody_takes_are_bounded),
	};

	return cmocka_run_group_tests_name("flood", tests, scene_open, scene_close);
}
