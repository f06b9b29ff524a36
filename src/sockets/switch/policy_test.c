/* SPDX-License-Identifier: MIT */
/* Rules of the sockets door: OS-1 (an off switch for the unmodified), OS-7 (policy at connect). */
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/util.h"
#include "sockets/switch/policy.h"

static struct policy policy;
static struct policy_error error;

static int parse(const char *text)
{
	return policy_parse(&policy, "rules", text, strlen(text), &error);
}

static struct policy_address address(const char *text, unsigned port)
{
	struct policy_address a = { .port = (uint16_t)port };

	a.family = strchr(text, ':') ? AF_INET6 : AF_INET;
	assert_int_equal(inet_pton(a.family, text, a.octets), 1);
	return a;
}

static struct policy_answer ask(enum policy_role role, const char *program, const char *to,
				unsigned port)
{
	struct policy_query q = { .program = program, .alias = "link", .uid = 1000, .role = role };

	/* The other address must not matter. */
	q.local = address("203.0.113.9", 9);
	q.remote = address("203.0.113.9", 9);
	*(role == POLICY_LISTEN ? &q.local : &q.remote) = address(to, port);
	return policy_ask(&policy, &q);
}

/* Offload, and by which line? */
static int line_of(enum policy_role role, const char *program, const char *to, unsigned port)
{
	struct policy_answer a = ask(role, program, to, port);

	return a.offload ? (int)a.line : -(int)a.line;
}

static void policy_says_offload_when_there_are_no_rules(void **st)
{
	assert_int_equal(policy_load(&policy, NULL, NULL, &error), 0);
	assert_true(ask(POLICY_CONNECT, "x", "127.0.0.1", 80).offload);
	assert_int_equal(parse(" \t\r\n# nothing\n\n   # use tcp both * *\n"), 0);
	assert_int_equal(policy.n_rules, 0);
	assert_int_equal(line_of(POLICY_LISTEN, "x", "::1", 80), 0);
	assert_true(ask(POLICY_LISTEN, "x", "::1", 80).offload);
}

static void policy_takes_the_first_rule_that_matches(void **st)
{
	assert_int_equal(parse("use flue connect * 10.0.0.1:80\n"
			       "use tcp  connect * 10.0.0.0/8:80\n"
			       "\n"
			       "use flue connect * 10.0.0.1:80 # never reached\n"
			       "use tcp  both    * *:22"),
			 0);
	assert_int_equal(policy.n_rules, 4);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "10.0.0.1", 80), 1);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "10.0.0.2", 80), -2);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "10.0.0.2", 81), 0);
	assert_int_equal(line_of(POLICY_LISTEN, "a", "10.0.0.2", 80), 0);
	assert_int_equal(line_of(POLICY_LISTEN, "a", "10.0.0.2", 22), -5);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "fd00::1", 22), -5);
}

static void policy_compares_remote_when_connecting_and_local_when_listening(void **st)
{
	struct policy_query q = { .role = POLICY_CONNECT };

	assert_int_equal(parse("use tcp both * 192.0.2.1:7"), 0);
	q.local = address("192.0.2.1", 7);
	q.remote = address("192.0.2.2", 7);
	assert_true(policy_ask(&policy, &q).offload);
	q.role = POLICY_LISTEN;
	assert_false(policy_ask(&policy, &q).offload);
}

static void policy_knows_programs_by_pattern_and_by_either_name(void **st)
{
	static const struct {
		const char *pattern, *name;
		bool match;
	} rows[] = {
		{ "redis-server", "redis-server", true },
		{ "redis-server", "redis-serve", false },
		{ "redis-server", "redis-server2", false },
		{ "redis-*", "redis-server", true },
		{ "redis-*", "redis-", true },
		{ "redis-*", "redis", false },
		{ "*-server", "redis-server", true },
		{ "*a*b*c", "xxaxxbxxbxc", true },
		{ "*a*b*c", "xxaxxbxxbx", false },
		{ "py?hon3", "python3", true },
		{ "py?hon3", "pyhon3", false },
		{ "???", "abc", true },
		{ "???", "ab", false },
		{ "**", "", true },
		{ "?*x", "", false },
		{ "a#b", "a#b", true }, /* '#' begins a comment at the beginning of a word only */
		{ "link", "other", true }, /* as it was started */
		{ "*aaaaaaaaaaaaaaaaaaaab", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac",
		  false },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char rule[160];

		snprintf(rule, sizeof(rule), "use tcp both %s *", rows[i].pattern);
		assert_int_equal(parse(rule), 0);
		if (ask(POLICY_CONNECT, rows[i].name, "::1", 1).offload == rows[i].match)
			fail_msg("%s and %s", rows[i].pattern, rows[i].name);
	}
}

static void policy_without_names_matches_only_the_star(void **st)
{
	struct policy_query q = { .role = POLICY_CONNECT };

	assert_int_equal(parse("use tcp both ?* *"), 0);
	assert_true(policy_ask(&policy, &q).offload);
	assert_int_equal(parse("use tcp both * *"), 0);
	assert_false(policy_ask(&policy, &q).offload);
	/* An unknown address, too. */
	assert_int_equal(parse("use tcp both * 0.0.0.0/0:*\nuse tcp both * [::]/0:*"), 0);
	assert_true(policy_ask(&policy, &q).offload);
}

static void policy_compares_addresses_and_networks(void **st)
{
	static const struct {
		const char *rule, *address;
		bool match;
	} rows[] = {
		{ "10.1.2.3:*", "10.1.2.3", true },
		{ "10.1.2.3:*", "10.1.2.4", false },
		{ "10.1.2.3/8:*", "10.200.0.1", true }, /* what is behind the bits does not count */
		{ "10.1.2.3/8:*", "11.1.2.3", false },
		{ "10.16.0.0/12:*", "10.31.255.255", true },
		{ "10.16.0.0/12:*", "10.32.0.0", false },
		{ "10.0.0.0/31:*", "10.0.0.1", true },
		{ "10.0.0.0/31:*", "10.0.0.2", false },
		{ "10.0.0.1/32:*", "10.0.0.1", true },
		{ "0.0.0.0/0:*", "8.8.8.8", true },
		{ "0.0.0.0/0:*", "2001:db8::1", false },
		{ "0.0.0.0/0:*", "::ffff:8.8.8.8", true },
		{ "[::]/0:*", "2001:db8::1", true },
		{ "[::]/0:*", "8.8.8.8", false },
		{ "[2001:db8::]/33:*", "2001:db8:7fff::1", true },
		{ "[2001:db8::]/33:*", "2001:db8:8000::1", false },
		{ "[::1]:*", "::1", true },
		{ "[::1]/128:*", "::2", false },
		{ "[::ffff:10.0.0.0]/104:*", "10.9.9.9", true },
		{ "[::ffff:10.0.0.1]:*", "::ffff:10.0.0.1", true },
		{ "[::ffff:10.0.0.1]:*", "10.0.0.2", false },
		{ "[::ffff:0.0.0.0]/96:*", "8.8.8.8", true },
		{ "[::ffff:0.0.0.0]/95:*", "8.8.8.8", false }, /* more than the IPv4 ones */
		{ "[::ffff:0.0.0.0]/95:*", "2001:db8::1", false },
		{ "*:*", "2001:db8::1", true },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		union {
			struct sockaddr any;
			struct sockaddr_in in;
			struct sockaddr_in6 in6;
		} sa = { 0 };
		struct policy_query q = { .role = POLICY_CONNECT };
		char rule[160];
		bool six = strchr(rows[i].address, ':');

		sa.any.sa_family = six ? AF_INET6 : AF_INET;
		inet_pton(sa.any.sa_family, rows[i].address,
			  six ? (void *)&sa.in6.sin6_addr : &sa.in.sin_addr);
		policy_address(&q.remote, &sa.any, six ? sizeof(sa.in6) : sizeof(sa.in));
		snprintf(rule, sizeof(rule), "use tcp connect * %s", rows[i].rule);
		assert_int_equal(parse(rule), 0);
		if (policy_ask(&policy, &q).offload == rows[i].match)
			fail_msg("%s and %s", rows[i].rule, rows[i].address);
	}
}

static void policy_compares_ports(void **st)
{
	assert_int_equal(
		parse("use tcp both * *:1000-2000\nuse tcp both * *:0\nuse tcp both * *:65535"), 0);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 999), 0);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 1000), -1);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 2000), -1);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 2001), 0);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 0), -2);
	assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 65535), -3);
}

static void policy_compares_users_by_number_and_by_name(void **st)
{
	struct policy_query q = { .role = POLICY_CONNECT, .uid = 1000 };

	assert_int_equal(parse("use tcp both * * user 1000\nuse tcp connect * *:0 user root\n"), 0);
	assert_false(policy_ask(&policy, &q).offload);
	q.uid = 1001;
	assert_true(policy_ask(&policy, &q).offload);
	q.uid = 0;
	assert_int_equal(policy_ask(&policy, &q).line, 2);
	assert_int_equal(parse("use tcp both * * user *"), 0);
	assert_false(policy_ask(&policy, &q).offload);
	assert_int_equal(parse("use tcp both * * user 4294967295"), 0);
	assert_true(policy_ask(&policy, &q).offload);
}

static void policy_names_file_line_and_fault_of_a_broken_rule(void **st)
{
	static const struct {
		const char *rule, *says;
	} rows[] = {
		{ "deny all", "'deny' begins no rule; they begin with 'use'" },
		{ "use", "'use' ends the rule too early" },
		{ "use tcp both redis", "'redis' ends the rule too early" },
		{ "use udp both * *", "'udp' is neither 'flue' nor 'tcp'" },
		{ "use TCP both * *", "'TCP' is neither" },
		{ "use tcp konnect * *", "'konnect' is none of 'connect', 'listen' and 'both'" },
		{ "use tcp both /usr/bin/redis *", "'/usr/bin/redis' names a folder" },
		{ "use tcp both * 10.0.0.1", "'10.0.0.1' has no port" },
		{ "use tcp both * [::1]", "'[::1]' has no port" },
		{ "use tcp both * ::1:80", "'::1' is no address" },
		{ "use tcp both * [::1:80", "'[::1' is no address" },
		{ "use tcp both * []:80", "'[]' is no address" },
		{ "use tcp both * [10.0.0.1]:80", "'10.0.0.1' is no address" },
		{ "use tcp both * localhost:80", "'localhost' is no address" },
		{ "use tcp both * :80", "'' is no address" },
		{ "use tcp both * 10.0.0.0/33:80", "'33' is no number of bits" },
		{ "use tcp both * 10.0.0.0/:80", "'' is no number of bits" },
		{ "use tcp both * [::]/129:80", "'129' is no number of bits" },
		{ "use tcp both * */8:80", "'*' is no address" },
		{ "use tcp both * *:", "'' is no port" },
		{ "use tcp both * *:65536", "'65536' is no port" },
		{ "use tcp both * *:9-8", "'9-8' is no port" },
		{ "use tcp both * *:-8", "'-8' is no port" },
		{ "use tcp both * *:8-", "'8-' is no port" },
		{ "use tcp both * *:+8", "'+8' is no port" },
		{ "use tcp both * * group 1", "'group' cannot stand there" },
		{ "use tcp both * * user", "'user' cannot stand there" },
		{ "use tcp both * * user 1 2", "'user' cannot stand there" },
		{ "use tcp both * * user no:body", "'no:body' is no user" },
		{ "use tcp both * * user 4294967296", "'4294967296' is no user" },
		{ "use tcp both * * user -1", "'-1' is no user" },
		{ "\x1b[31muse", "'?[31muse' begins no rule" },
		{ "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
		  "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...' begins no rule" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		char text[256], wanted[256];

		snprintf(text, sizeof(text), "use flue both * *\n\n%s\nuse flue both * *\n",
			 rows[i].rule);
		assert_int_equal(parse(text), -EINVAL);
		snprintf(wanted, sizeof(wanted), "rules:3: %s", rows[i].says);
		if (strncmp(error.text, wanted, strlen(wanted)) != 0)
			fail_msg("'%s' for: %s", error.text, rows[i].rule);
		/* Safe: TCP, even for what a good rule before it would have sent elsewhere. */
		assert_int_equal(line_of(POLICY_CONNECT, "a", "::1", 1), -3);
	}
}

static void policy_refuses_what_has_no_room(void **st)
{
	static char text[POLICY_RULES_MAX * 32];
	char name[POLICY_PROGRAM_MAX + 2];

	text[0] = '\0';
	for (int i = 0; i < POLICY_RULES_MAX; i++)
		strcat(text, "use tcp both * *:1\n");
	assert_int_equal(parse(text), 0);
	strcat(text, "\n# a comment takes no room\n");
	assert_int_equal(parse(text), 0);
	strcat(text, "use tcp both * *:2\n");
	assert_int_equal(parse(text), -E2BIG);
	assert_string_equal(error.text, "rules:259: too many rules; there is room for 256");

	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	snprintf(text, sizeof(text), "use tcp both %s *", name + 1);
	assert_int_equal(parse(text), 0);
	assert_false(ask(POLICY_CONNECT, name + 1, "::1", 1).offload);
	snprintf(text, sizeof(text), "use tcp both %s *", name);
	assert_int_equal(parse(text), -EINVAL);

	memset(text, ' ', sizeof(text) - 1);
	text[POLICY_LINE_MAX] = '\0';
	assert_int_equal(parse(text), 0);
	text[POLICY_LINE_MAX] = ' ';
	text[POLICY_LINE_MAX + 1] = '\0';
	assert_int_equal(parse(text), -EINVAL);
	assert_string_equal(error.text, "rules:1: the line is too long");
	assert_int_equal(policy_parse(&policy, "rules", "#\0\n", 3, &error), -EINVAL);
	assert_string_equal(error.text, "rules:1: this is no text");
}

static void policy_reads_the_environment_before_the_file(void **st)
{
	char path[] = "/tmp/flue-policy-XXXXXX";
	int fd = mkstemp(path);
	struct policy_answer a;

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "use tcp both * *:1-2\nuse tcp both * *:3", 39), 39);
	close(fd);
	assert_int_equal(
		policy_load(&policy, path, "use flue both * *:1; ;use tcp both * *:4", &error), 0);
	a = ask(POLICY_CONNECT, "a", "::1", 1);
	assert_true(a.offload && !a.from_file && a.line == 1);
	a = ask(POLICY_CONNECT, "a", "::1", 4);
	assert_true(!a.offload && !a.from_file && a.line == 3);
	a = ask(POLICY_CONNECT, "a", "::1", 2);
	assert_true(!a.offload && a.from_file && a.line == 1);
	a = ask(POLICY_CONNECT, "a", "::1", 3); /* the last line has no end */
	assert_true(!a.offload && a.from_file && a.line == 2);

	assert_int_equal(policy_load(&policy, path, "use flue both * *:1;use sdp both * *", &error),
			 -EINVAL);
	assert_string_equal(error.text, "FLUE_RULE:2: 'sdp' is neither 'flue' nor 'tcp'");
	assert_int_equal(policy.n_rules, 1);
	a = ask(POLICY_CONNECT, "a", "::1", 1);
	assert_true(!a.offload && !a.from_file && a.line == 2);
	unlink(path);
}

static void policy_says_tcp_when_the_file_cannot_be_read(void **st)
{
	static const struct {
		const char *path, *says;
		int rc;
	} rows[] = {
		{ "/nowhere/rules", "/nowhere/rules: no such file", -ENOENT },
		{ "/dev", "/dev: cannot be read", -EISDIR },
		{ "/dev/zero", "/dev/zero:1: the line is too long", -EINVAL },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		assert_int_equal(policy_load(&policy, rows[i].path, NULL, &error), rows[i].rc);
		assert_string_equal(error.text, rows[i].says);
		assert_false(ask(POLICY_CONNECT, "a", "::1", 1).offload);
	}
	/* And a good load makes good again. */
	assert_int_equal(policy_load(&policy, NULL, "", &error), 0);
	assert_true(ask(POLICY_CONNECT, "a", "::1", 1).offload);
	assert_string_equal(error.text, "");
}

static void policy_ends_a_file_without_end(void **st)
{
	char path[] = "/tmp/flue-policy-XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd >= 0);
	for (int i = 0; i < 1 << 11; i++) {
		char block[1024];

		memset(block, '\n', sizeof(block));
		assert_int_equal(write(fd, block, sizeof(block)), sizeof(block));
	}
	close(fd);
	assert_int_equal(policy_load(&policy, path, NULL, &error), -EFBIG);
	assert_non_null(strstr(error.text, "the file is too large"));
	unlink(path);
}

static void policy_cuts_a_long_name_and_still_says_what_is_wrong(void **st)
{
	char name[1024];

	memset(name, 'f', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	assert_int_equal(policy_parse(&policy, name, "x", 1, &error), -EINVAL);
	assert_non_null(strstr(error.text, "f:1: 'x' begins no rule; they begin with 'use'"));
}

static void policy_takes_no_address_of_another_family(void **st)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(80) };
	struct policy_address a;

	policy_address(&a, (struct sockaddr *)&in, sizeof(in) - 1);
	assert_int_equal(a.family, 0);
	in.sin_family = AF_UNIX;
	policy_address(&a, (struct sockaddr *)&in, sizeof(in));
	assert_int_equal(a.family, 0);
	assert_int_equal(a.port, 0);
}

static void policy_finds_the_names_of_this_process(void **st)
{
	struct policy_self self;

	policy_self(&self);
	assert_string_equal(self.program, "policy_test");
	assert_string_equal(self.alias, "policy_test");
}

/* By a link and as a script: what the child says of itself. */
static void policy_finds_the_names_of_programs_started_otherwise(void **st)
{
	char folder[] = "/tmp/flue-policy-XXXXXX", command[3 * PATH_MAX], self[PATH_MAX] = "",
	     line[256] = "";
	FILE *out;

	assert_non_null(mkdtemp(folder));
	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	snprintf(command, sizeof(command),
		 "cd %s && ln -s %s a-link-with-a-long-name && ./a-link-with-a-long-name --names;"
		 "echo '#!%s --names' >script && chmod +x script && ./script; rm -r %s",
		 folder, self, self, folder);
	out = popen(command, "r");
	assert_non_null(out);
	assert_non_null(fgets(line, sizeof(line), out));
	assert_string_equal(line, "policy_test a-link-with-a-long-name\n");
	assert_non_null(fgets(line, sizeof(line), out));
	assert_string_equal(line, "policy_test script\n");
	assert_int_equal(pclose(out), 0);
}

static int say_names(void)
{
	struct policy_self self;

	policy_self(&self);
	return printf("%s %s\n", self.program, self.alias) < 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(policy_says_offload_when_there_are_no_rules),
		cmocka_unit_test(policy_takes_the_first_rule_that_matches),
		cmocka_unit_test(policy_compares_remote_when_connecting_and_local_when_listening),
		cmocka_unit_test(policy_knows_programs_by_pattern_and_by_either_name),
		cmocka_unit_test(policy_without_names_matches_only_the_star),
		cmocka_unit_test(policy_compares_addresses_and_networks),
		cmocka_unit_test(policy_compares_ports),
		cmocka_unit_test(policy_compares_users_by_number_and_by_name),
		cmocka_unit_test(policy_names_file_line_and_fault_of_a_broken_rule),
		cmocka_unit_test(policy_refuses_what_has_no_room),
		cmocka_unit_test(policy_reads_the_environment_before_the_file),
		cmocka_unit_test(policy_says_tcp_when_the_file_cannot_be_read),
		cmocka_unit_test(policy_ends_a_file_without_end),
		cmocka_unit_test(policy_cuts_a_long_name_and_still_says_what_is_wrong),
		cmocka_unit_test(policy_takes_no_address_of_another_family),
		cmocka_unit_test(policy_finds_the_names_of_this_process),
		cmocka_unit_test(policy_finds_the_names_of_programs_started_otherwise),
	};

	if (argc > 1 && strcmp(argv[1], "--names") == 0)
		return say_names();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
