/* SPDX-License-Identifier: MIT */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/util.h"
#include "sockets/record/why.h"

static const char *text(uint32_t why)
{
	static const struct why_place place = { .uid = 0, .rules = "/etc/my.rules" };
	static char out[256];

	why_text(out, sizeof(out), why, &place);
	return out;
}

static void why_has_a_word_and_a_sentence_for_each_number(void **st)
{
	for (uint32_t i = 0; i < WHY_COUNT; i++) {
		assert_true(strlen(why_word(i)) > 1 && strlen(why_sentence(i)) > 10);
		assert_int_equal(why_number(i), i);
	}
	assert_string_equal(why_word(WHY_COUNT), "unknown");
	assert_non_null(strstr(why_sentence(0xff), "does not know"));
}

static void why_names_the_rule(void **st)
{
	enum why why = why_rule(WHY_POLICY, true, 17);

	assert_int_equal(why_number(why), WHY_POLICY);
	assert_string_equal(why_word(why), "rule");
	assert_string_equal(text(why), "a rule says TCP: line 17 of /etc/my.rules");
	assert_non_null(strstr(text(why_rule(WHY_POLICY, false, 2)), ": rule 2 of FLUE_RULE"));
	/* Broken as a whole, and by nobody at all. */
	assert_non_null(strstr(text(why_rule(WHY_RULES, true, UINT32_MAX)), "TCP: /etc/my.rules"));
	assert_int_equal(why_rule(WHY_RULES, true, 0), WHY_RULES);
}

static void why_names_the_option(void **st)
{
	static const struct {
		int level, name;
		const char *text;
	} rows[] = {
		{ SOL_SOCKET, SO_TIMESTAMP, ": SO_TIMESTAMP" },
		{ SOL_SOCKET, SO_RCVLOWAT, ": SO_RCVLOWAT" },
		{ IPPROTO_TCP, TCP_ULP, ": TCP_ULP" },
		{ IPPROTO_TCP, 1000, ": option 1000 of level 6" },
		{ 282, 1, ": option 1 of level 282" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		enum why why = why_option(rows[i].level, rows[i].name);

		assert_int_equal(why_number(why), WHY_OPTION);
		assert_string_equal(text(why) + strlen(why_sentence(why)), rows[i].text);
	}
	/* What does not fit is left out. */
	assert_int_equal(why_option(70000, 1), WHY_OPTION);
	assert_int_equal(why_option(-1, -1), WHY_OPTION);
}

static void why_names_the_act(void **st)
{
	for (uint32_t i = 0; i < WHY_ACTS; i++) {
		enum why why = why_act((enum why_act)i);

		assert_int_equal(why_number(why), WHY_OPTION);
		assert_true(strlen(text(why)) > strlen(why_sentence(why)) + 2);
	}
	assert_non_null(strstr(text(why_flags(MSG_OOB | MSG_DONTWAIT)), "MSG_OOB"));
	assert_non_null(strstr(text(why_flags(MSG_ZEROCOPY)), "MSG_ZEROCOPY"));
}

static void why_names_the_user(void **st)
{
	struct why_place place = { .uid = 0 };
	char out[64];

	assert_non_null(strstr(text(WHY_USER), ": root (0)"));
	place.uid = 4000000001u;
	why_detail(out, sizeof(out), WHY_USER, &place);
	assert_string_equal(out, "number 4000000001");
}

static void why_stays_within_its_room(void **st)
{
	struct why_place place = { .rules = "a/very/long/name/of/a/file/of/rules" };
	char out[32];

	memset(out, 'x', sizeof(out));
	why_text(out, 20, why_rule(WHY_POLICY, true, 1), &place);
	assert_int_equal(strlen(out), 19);
	assert_int_equal(out[20], 'x');
	/* Nonsense from another process's memory. */
	for (uint32_t kind = 0; kind < 16; kind++)
		why_text(out, 20, kind << 28 | 0x0fffff00u | WHY_OPTION, &place);
	assert_int_equal(out[20], 'x');
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(why_has_a_word_and_a_sentence_for_each_number),
		cmocka_unit_test(why_names_the_rule),
		cmocka_unit_test(why_names_the_option),
		cmocka_unit_test(why_names_the_act),
		cmocka_unit_test(why_names_the_user),
		cmocka_unit_test(why_stays_within_its_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
