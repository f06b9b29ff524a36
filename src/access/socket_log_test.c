/* SPDX-License-Identifier: MIT */
/*
 * The errors of the chimney are logged: whatever fails on the way into RDMA mode, and every end that
 * nobody asked for (CH-29).
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"
#include "base/log.h"

static struct flue_adapter *a;
static struct flue_socket *s;
static int fd[2]; /* ours, the peer's */
static char file[] = "/tmp/flue-chimney-log-XXXXXX", text[16384];

static void log_from(const char *setting)
{
	assert_int_equal(truncate(file, 0), 0);
	setenv("FLUE_LOG", setting, 1);
	setenv("FLUE_LOG_FILE", file, 1);
	log_init();
}

static const char *logged(void)
{
	int log = open(file, O_RDONLY | O_CLOEXEC);
	ssize_t n = read(log, text, sizeof(text) - 1);

	assert_true(n >= 0);
	close(log);
	text[n] = 0;
	return text;
}

/* A line with all of this in it. */
static void expect_line(const char *head, const char *words)
{
	const char *line = strstr(logged(), head), *end;

	for (; line; line = strstr(end, head)) {
		const char *found = strstr(line, words);

		end = strchr(line, '\n');
		if (found && found < end)
			return;
	}
	fail_msg("no line '%s ... %s' in:\n%s", head, words, text);
}

static void expect_no_errors(void)
{
	if (strstr(logged(), "] error ") || strstr(text, "] warn "))
		fail_msg("%s", text);
}

static int open_socket(void **state)
{
	fake_reset();
	a = fake_open(NULL, 0);
	fake_streams(fd);
	s = flue_socket_open(a, fd[0], NULL);
	fake.on_abort = fake_flush;
	log_from("error");
	return !s;
}

static int close_socket(void **state)
{
	int own = s->fd;
	bool ours = s->state == FLUE_SOCKET_STREAMING;

	log_stop();
	assert_true(s->ops->destroy(s));
	if (ours)
		close(own);
	close(fd[1]);
	return !flue_close(a);
}

static void transfer_that_the_provider_refuses_is_logged(void **state)
{
	fake.rc.adopt = -ENOMEM;
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	expect_line("error chimney: ", "the transfer failed: ENOMEM; it is torn down");
	expect_line("error chimney: ", "ended: ");
}

static void transfer_that_fails_later_is_logged(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_IN_PROGRESS));
	fake_news(s->qp, FLUE_EVENT_CONNECT_FAILED, 0, EPROTO);
	expect_line("error access: ", "the set-up failed: EPROTO");
	expect_line("error chimney: ", "the transfer failed: EPROTO; it is torn down");
}

static void reservation_that_fails_is_logged(void **state)
{
	struct flue_reserve_attr r = FLUE_ATTR(struct flue_reserve_attr);

	fake.rc.pd = -EIO;
	assert_false(s->ops->reserve(s, &r));
	expect_line("error chimney: ", "nothing is reserved: ");
}

static void switch_that_is_refused_is_logged(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);

	assert_fails(s->ops->switch_mode(s, &to, 1), EBADFD);
	expect_line("error chimney: ", "the switch to RDMA mode is refused: EBADFD");
}

static void end_that_nobody_asked_for_is_logged(void **state)
{
	static const uint32_t reasons[] = { FLUE_CLOSE_RESET,      FLUE_CLOSE_LOST,
					    FLUE_CLOSE_TERMINATED, FLUE_CLOSE_FAULT,
					    FLUE_CLOSE_LOCAL,      FLUE_CLOSE_BAD };

	for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
		char words[64];

		close_socket(state);
		open_socket(state);
		assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
		assert_string_equal(logged(), "");
		fake_news(s->qp, FLUE_EVENT_DISCONNECTED, reasons[i], 0x77);
		snprintf(words, sizeof(words), "ended: %s, detail 0x77",
			 flue_close_reason_name(reasons[i]));
		expect_line("error access: ", words);
		expect_line("error chimney: ", words);
	}
}

static void disconnect_that_is_refused_is_logged(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	fake.rc.disconnect = -EBUSY;
	assert_fails(s->ops->disconnect(s, 0), EBUSY);
	expect_line("error chimney: ", "disconnect is refused: EBUSY");
}

static void conversion_is_logged_when_it_fails_and_when_not(void **state)
{
	struct flue_switch_attr to = FLUE_ATTR(struct flue_switch_attr);
	struct flue_qp *qp = fake_qp(a, NULL, NULL);
	int other[2];

	fake_streams(other);
	fake.rc.adopt = -ENOMEM;
	assert_fails(flue_socket_convert(qp, other[0], &to), ENOMEM);
	expect_line("error chimney: ", "is not converted for queue pair");
	expect_line("error chimney: ", ": ENOMEM");
	assert_fails(flue_socket_convert(qp, fd[0], NULL), EINVAL);
	expect_line("error chimney: ", ": EINVAL");
	close(other[1]);
	fake_destroy_qp(qp);
}

/* What was asked for is no error: at this level the log stays empty. */
static void way_without_errors_is_silent_until_more_is_asked_for(void **state)
{
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	assert_string_equal(logged(), "");
	close_socket(state);
	open_socket(state);
	log_from("debug,chimney");
	assert_true(fake_socket_to(s, FLUE_OFFLOAD_DONE));
	fake_news(s->qp, FLUE_EVENT_DISCONNECTED, FLUE_CLOSE_GRACEFUL, 0);
	expect_line("debug chimney: ", "SWITCH in READY: now WAIT_FIRST_RECV");
	expect_line("debug chimney: ", "OFFLOADED in IN_PROGRESS: now DONE");
	expect_line("info chimney: ", "ended: ");
	expect_no_errors();
	assert_null(strstr(text, " access: "));
}

static int begin(void **state)
{
	int log = mkstemp(file);

	close(log);
	return log < 0;
}

static int end(void **state)
{
	return unlink(file);
}

#define test(name) cmocka_unit_test_setup_teardown(name, open_socket, close_socket)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(transfer_that_the_provider_refuses_is_logged), /* CH-14 */
		test(transfer_that_fails_later_is_logged),
		test(reservation_that_fails_is_logged),
		test(switch_that_is_refused_is_logged),
		test(end_that_nobody_asked_for_is_logged), /* CH-21 to CH-24 */
		test(disconnect_that_is_refused_is_logged),
		test(conversion_is_logged_when_it_fails_and_when_not),
		test(way_without_errors_is_silent_until_more_is_asked_for),
	};

	return cmocka_run_group_tests(tests, begin, end);
}
