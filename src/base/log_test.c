/* SPDX-License-Identifier: MIT */
/* What FLUE_LOG brings out, where, and what it leaves alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <regex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"

static char folder[64], out[128], err[128], file[128];
static int kept_out = -1, kept_err = -1;

/* ---- both outputs go to files meanwhile ---- */

static int open_new(const char *name)
{
	return open(name, O_RDWR | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
}

static void put_at(int fd, int number)
{
	assert_true(fd >= 0 && dup2(fd, number) == number);
	close(fd);
}

static void begin(const char *setting, const char *log_file)
{
	fflush(NULL);
	kept_out = dup(STDOUT_FILENO);
	kept_err = dup(STDERR_FILENO);
	put_at(open_new(out), STDOUT_FILENO);
	put_at(open_new(err), STDERR_FILENO);
	unlink(file);
	unsetenv(LOG_TOLD);
	setting ? setenv("FLUE_LOG", setting, 1) : unsetenv("FLUE_LOG");
	log_file ? setenv("FLUE_LOG_FILE", log_file, 1) : unsetenv("FLUE_LOG_FILE");
	log_init();
}

static void end(void)
{
	log_stop();
	put_at(kept_out, STDOUT_FILENO);
	put_at(kept_err, STDERR_FILENO);
}

/* NULL: there is no such file. */
static char *text_of(const char *name)
{
	static char text[1 << 20];
	int fd = open(name, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return NULL;
	n = read(fd, text, sizeof(text) - 1);
	assert_true(n >= 0);
	text[n] = 0;
	close(fd);
	return text;
}

static unsigned lines_of(const char *name)
{
	const char *text = text_of(name);
	unsigned n = 0;

	for (; text && *text; text++)
		n += *text == '\n';
	return n;
}

static void say_all(void)
{
	log_error(access, "1 access");
	log_warn(access, "2 access");
	log_info(access, "3 access");
	log_debug(access, "4 access");
	log_error(chimney, "1 chimney");
	log_debug(chimney, "4 chimney");
	log_debug(rnic, "4 rnic");
}

/* ---- which ---- */

static void nothing_is_said_by_default(void **state)
{
	unsigned asked = 0;

	for (int i = 0; i < 3; i++) {
		static const char *const offs[] = { NULL, "", "off" };

		begin(offs[i], file);
		say_all();
		log_error(access, "%u", ++asked);
		end();
		assert_int_equal(lines_of(err), 0);
		assert_int_equal(lines_of(out), 0);
		assert_null(text_of(file));
	}
	/* Arguments are not even looked at. */
	assert_int_equal(asked, 0);
}

static void level_and_parts_choose(void **state)
{
	static const struct {
		const char *setting;
		unsigned lines;
	} cases[] = {
		{ "error", 2 },      { "warn", 3 },         { "info", 4 },
		{ "debug", 7 },      { "debug,access", 4 }, { "warn,access", 2 },
		{ "error,rnic", 0 }, { "debug,rnic", 1 },   { "debug,rnic,chimney", 3 },
		{ "debug,fsm", 0 },  { "off,access", 0 },   { "info,chimney,access", 4 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		begin(cases[i].setting, NULL);
		say_all();
		end();
		if (lines_of(err) != cases[i].lines)
			fail_msg("%s: %u lines", cases[i].setting, lines_of(err));
		assert_int_equal(lines_of(out), 0);
	}
}

static void wrong_setting_is_told_and_logs_nothing(void **state)
{
	static const char *const wrong[] = { "verbose",        "Error",
					     "debug,",         "debug,accesses",
					     "debug,access,x", "error debug",
					     ",access",        "1" };
	char *text;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		begin(wrong[i], NULL);
		say_all();
		end();
		text = text_of(err);
		if (lines_of(err) != 1 || !strstr(text, "flue: FLUE_LOG: '") ||
		    !strstr(text, "nothing is logged"))
			fail_msg("%s: %s", wrong[i], text);
		assert_int_equal(lines_of(out), 0);
	}
	begin("loud,access", NULL);
	end();
	assert_string_equal(text_of(err), "flue: FLUE_LOG: 'loud' is no level (off, error, warn, "
					  "info, debug); nothing is logged\n");
	begin("debug,roof", NULL);
	end();
	assert_non_null(strstr(text_of(err), "'roof' is no part (access, chimney, "));
}

static void wrong_setting_is_not_told_again_by_who_was_started(void **state)
{
	begin("loud", NULL);
	setenv(LOG_TOLD, "loud", 1);
	log_init();
	log_init();
	end();
	assert_int_equal(lines_of(err), 1);
	/* That was another. */
	begin("louder", NULL);
	setenv(LOG_TOLD, "loud", 1);
	log_init();
	end();
	unsetenv(LOG_TOLD);
	assert_int_equal(lines_of(err), 2);
}

/* ---- where ---- */

static void file_is_appended_to_and_standard_error_stays_clean(void **state)
{
	char *text;

	begin("info", file);
	log_info(access, "first");
	log_init();
	log_info(access, "second");
	end();
	text = text_of(file);
	assert_non_null(text);
	assert_true(strstr(text, "access: first\n") < strstr(text, "access: second\n"));
	assert_int_equal(lines_of(file), 2);
	assert_int_equal(lines_of(err) + lines_of(out), 0);
}

static void file_is_found_again_when_the_program_has_gone_elsewhere(void **state)
{
	char *here = getcwd(NULL, 0);

	assert_int_equal(chdir(folder), 0);
	begin("info", "log");
	assert_int_equal(chdir("/"), 0);
	log_info(access, "from afar");
	end();
	assert_int_equal(chdir(here), 0);
	free(here);
	assert_non_null(strstr(text_of(file), "from afar"));
}

static void file_that_cannot_be_opened_is_told(void **state)
{
	char name[256];

	snprintf(name, sizeof(name), "%s/no/such/folder", folder);
	begin("debug", name);
	say_all();
	end();
	assert_int_equal(lines_of(err), 1);
	assert_non_null(strstr(text_of(err), "cannot open"));
	assert_non_null(strstr(text_of(err), "ENOENT; nothing is logged"));
}

static unsigned open_files(void)
{
	unsigned n = 0;

	for (int i = 0; i < 1024; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

static void no_descriptor_is_kept(void **state)
{
	unsigned before = open_files();

	begin("debug", file);
	say_all();
	end();
	assert_int_equal(open_files(), before);
}

/* ---- a line ---- */

static void line_tells_when_who_and_which_part(void **state)
{
	regex_t form;
	char *text, who[64];

	begin("warn", NULL);
	log_warn(chimney, "%s is %d", "it", 7);
	end();
	text = text_of(err);
	assert_int_equal(regcomp(&form,
				 "^20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
				 "\\.[0-9]{6}Z flue\\[[0-9]+/[0-9]+\\] warn chimney: it is 7\n$",
				 REG_EXTENDED | REG_NOSUB),
			 0);
	assert_int_equal(regexec(&form, text, 0, NULL, 0), 0);
	regfree(&form);
	snprintf(who, sizeof(who), "flue[%d/%d]", getpid(), gettid());
	assert_non_null(strstr(text, who));
}

static void date_is_that_of_the_c_library(void **state)
{
	time_t now = time(NULL), later;
	struct tm tm;
	char a[32], b[32], *text;

	begin("info", NULL);
	log_info(access, "now");
	end();
	later = time(NULL);
	text = text_of(err);
	strftime(a, sizeof(a), "%Y-%m-%dT%H:%M", gmtime_r(&now, &tm));
	strftime(b, sizeof(b), "%Y-%m-%dT%H:%M", gmtime_r(&later, &tm));
	assert_true(!strncmp(text, a, strlen(a)) || !strncmp(text, b, strlen(b)));
}

static void line_that_is_too_long_is_cut_and_ended(void **state)
{
	char *text, *last;

	begin("info", NULL);
	log_info(access, "%0600d", 0);
	log_info(access, "next");
	end();
	text = text_of(err);
	last = strchr(text, '\n');
	assert_int_equal(last - text + 1, 512);
	assert_memory_equal(last - 3, "...", 3);
	assert_int_equal(lines_of(err), 2);
}

static void addresses_and_errors_have_words(void **state)
{
	struct sockaddr_storage at = { 0 };
	struct sockaddr_in *v4 = (struct sockaddr_in *)&at;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at;

	assert_string_equal(LOG_ADDR(&at), "-");
	*v4 = (struct sockaddr_in) { .sin_family = AF_INET,
				     .sin_port = htons(80),
				     .sin_addr.s_addr = htonl(0xc0000201) };
	assert_string_equal(LOG_ADDR(&at), "192.0.2.1:80");
	*v6 = (struct sockaddr_in6) { .sin6_family = AF_INET6,
				      .sin6_port = htons(443),
				      .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	assert_string_equal(LOG_ADDR(&at), "[::1]:443");
	inet_pton(AF_INET6, "::ffff:192.0.2.7", &v6->sin6_addr);
	assert_string_equal(LOG_ADDR(&at), "192.0.2.7:443");
	assert_string_equal(log_errno(ECONNRESET), "ECONNRESET");
	assert_string_equal(log_errno(-ETIMEDOUT), "ETIMEDOUT");
	assert_string_equal(log_errno(100000), "an unknown error");
}

/* ---- what it leaves alone ---- */

static void errno_stays_also_when_nothing_can_be_written(void **state)
{
	begin("info", NULL);
	errno = ERANGE;
	log_info(access, "fine");
	assert_int_equal(errno, ERANGE);
	close(STDERR_FILENO);
	log_info(access, "nowhere to go");
	assert_int_equal(errno, ERANGE);
	log_init();
	assert_int_equal(errno, ERANGE);
	end();
	assert_int_equal(lines_of(err), 1);
}

/* The signal's default would end the child. */
static void reader_that_is_gone_ends_nobody(void **state)
{
	int status, ends[2];
	pid_t pid;

	begin("info", NULL);
	pid = fork();
	if (pid == 0) {
		sigset_t pending;

		signal(SIGPIPE, SIG_DFL);
		if (pipe2(ends, O_CLOEXEC) || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(2);
		close(ends[1]);
		close(ends[0]);
		log_info(access, "to nobody");
		sigpending(&pending);
		_exit(sigismember(&pending, SIGPIPE) ? 3 : 7);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	end();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
}

/* Fills the pipe at standard error, logs twice, makes room, logs again. What came then? */
static const char *log_to_a_full_pipe(void)
{
	static char text[4096];
	char octets[4096] = { 0 };
	int ends[2];
	ssize_t n;

	alarm(20); /* a line that waits would wait for ever */
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return "no pipe";
	while (write(ends[1], octets, sizeof(octets)) > 0)
		;
	fcntl(ends[1], F_SETFL, 0);
	put_at(ends[1], STDERR_FILENO);
	log_info(access, "one");
	log_info(access, "two");
	while (read(ends[0], octets, sizeof(octets)) > 0)
		;
	log_info(access, "three");
	log_info(access, "four");
	n = read(ends[0], text, sizeof(text) - 1);
	alarm(0);
	close(ends[0]);
	text[n > 0 ? n : 0] = 0;
	return text;
}

static void slow_reader_holds_nobody_and_hears_of_it(void **state)
{
	const char *text;

	begin("info", NULL);
	text = log_to_a_full_pipe();
	end();
	assert_null(strstr(text, "one\n"));
	assert_non_null(strstr(text, "their reader was slow: 2\n"));
	assert_non_null(strstr(text, "three\n"));
	assert_non_null(strstr(text, "four\n"));
	assert_null(strstr(strstr(text, "three"), "slow"));
}

static void limit_of_files_ends_nobody(void **state)
{
	int status;
	pid_t pid;

	begin("info", file);
	log_info(access, "one");
	pid = fork();
	if (pid == 0) {
		struct rlimit limit = { 10, 10 };

		signal(SIGXFSZ, SIG_DFL);
		setrlimit(RLIMIT_FSIZE, &limit);
		log_info(access, "two");
		_exit(7);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	end();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	assert_int_equal(lines_of(file), 1);
}

/* What waited before is the program's. */
static void signal_that_waits_is_not_taken(void **state)
{
	int status, ends[2];
	pid_t pid;

	begin("info", NULL);
	pid = fork();
	if (pid == 0) {
		sigset_t set;

		sigemptyset(&set);
		sigaddset(&set, SIGPIPE);
		signal(SIGPIPE, SIG_DFL);
		sigprocmask(SIG_BLOCK, &set, NULL);
		raise(SIGPIPE);
		if (pipe2(ends, O_CLOEXEC) || dup2(ends[1], STDERR_FILENO) < 0)
			_exit(2);
		close(ends[1]);
		close(ends[0]);
		log_info(access, "to nobody");
		sigpending(&set);
		_exit(sigismember(&set, SIGPIPE) ? 7 : 3);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	end();
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
}

/* ---- many ---- */

#define LINES 200

static void *talk(void *arg)
{
	for (int i = 0; i < LINES; i++)
		log_info(rnic, "%s line %d of %s", "a", i, (const char *)arg);
	return NULL;
}

static void child_and_threads_write_whole_lines_with_their_own_numbers(void **state)
{
	char who[32], *text;
	pthread_t thread;
	unsigned ours = 0, others = 0;
	int status;
	pid_t pid;

	begin("info", file);
	pid = fork();
	if (pid == 0) {
		talk((void *)"the child");
		_exit(0);
	}
	assert_int_equal(pthread_create(&thread, NULL, talk, (void *)"the thread"), 0);
	talk((void *)"the parent");
	pthread_join(thread, NULL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	end();
	assert_int_equal(lines_of(file), 3 * LINES);
	snprintf(who, sizeof(who), "flue[%d/%d]", pid, pid);
	text = text_of(file);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		assert_non_null(strstr(line, "Z flue["));
		assert_non_null(strstr(line, "info rnic: a line "));
		assert_int_equal(!!strstr(line, who), !!strstr(line, "of the child"));
		others += !!strstr(line, who);
		ours += !!strstr(line, "of the parent");
	}
	assert_int_equal(ours, LINES);
	assert_int_equal(others, LINES);
}

static int set_up(void **state)
{
	snprintf(folder, sizeof(folder), "/tmp/flue-log-test-XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(out, sizeof(out), "%s/out", folder);
	snprintf(err, sizeof(err), "%s/err", folder);
	snprintf(file, sizeof(file), "%s/log", folder);
	return 0;
}

static int tear_down(void **state)
{
	unlink(out);
	unlink(err);
	unlink(file);
	return rmdir(folder);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_said_by_default),
		cmocka_unit_test(level_and_parts_choose),
		cmocka_unit_test(wrong_setting_is_told_and_logs_nothing),
		cmocka_unit_test(wrong_setting_is_not_told_again_by_who_was_started),
		cmocka_unit_test(file_is_appended_to_and_standard_error_stays_clean),
		cmocka_unit_test(file_is_found_again_when_the_program_has_gone_elsewhere),
		cmocka_unit_test(file_that_cannot_be_opened_is_told),
		cmocka_unit_test(no_descriptor_is_kept),
		cmocka_unit_test(line_tells_when_who_and_which_part),
		cmocka_unit_test(date_is_that_of_the_c_library),
		cmocka_unit_test(line_that_is_too_long_is_cut_and_ended),
		cmocka_unit_test(addresses_and_errors_have_words),
		cmocka_unit_test(errno_stays_also_when_nothing_can_be_written),
		cmocka_unit_test(reader_that_is_gone_ends_nobody),
		cmocka_unit_test(slow_reader_holds_nobody_and_hears_of_it),
		cmocka_unit_test(limit_of_files_ends_nobody),
		cmocka_unit_test(signal_that_waits_is_not_taken),
		cmocka_unit_test(child_and_threads_write_whole_lines_with_their_own_numbers),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
