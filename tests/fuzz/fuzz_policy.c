/* SPDX-License-Identifier: MIT */
/*
 * Rule files and rules of the environment as anybody may write them, and questions about them.
 *
 * Input: one octet that says which (bit 0: environment) and how much of the rest is the question
 * (the other bits), then the question (see question()), then the rules.
 *
 * Invariants: the parser takes a text or names file, line and fault in printable words of one line;
 * after a fault the answer is always TCP. A rule that was taken is one that can be written. An
 * answer names a rule that matches, and no rule before it does, by a second and slower comparison.
 */
#include "fuzz.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdbool.h>

#include "sockets/switch/policy.h"

static struct policy policy;
static struct policy_error error;

static void question(struct policy_query *q, struct source *in, char names[2][16])
{
	struct policy_address *const addresses[] = { &q->local, &q->remote };
	static const uint8_t families[] = { 0, 2, 10 };

	q->role = (enum policy_role)(1 + take(in, 1) % 2);
	q->uid = (uid_t)take(in, 2);
	for (int i = 0; i < 2; i++) {
		addresses[i]->family = families[take(in, 1) % 3];
		addresses[i]->port = (uint16_t)take(in, 2);
		for (int k = 0; k < 16; k++)
			addresses[i]->octets[k] = (uint8_t)take(in, 1);
		for (int k = 0; k < 15; k++)
			names[i][k] = (char)take(in, 1);
		names[i][15] = '\0';
	}
	q->program = take(in, 1) & 1 ? names[0] : NULL;
	q->alias = take(in, 1) & 1 ? names[1] : NULL;
}

static void check_rule(const struct policy_rule *r)
{
	CHECK(r->role >= POLICY_CONNECT && r->role <= POLICY_BOTH);
	CHECK(r->family == 0 || r->family == AF_INET || r->family == AF_INET6);
	CHECK(r->bits <= (r->family == AF_INET6 ? 128 : r->family == AF_INET ? 32 : 0));
	CHECK(r->port_first <= r->port_last && r->line);
	CHECK(memchr(r->program, 0, sizeof(r->program)) && r->program[0]);
	CHECK(!strpbrk(r->program, "/ \t\n"));
}

static bool bit(const uint8_t *octets, unsigned i)
{
	return octets[i / 8] >> (7 - i % 8) & 1;
}

/* fnmatch() knows brackets and back strokes, rules do not. */
static bool name_fits(const char *pattern, const char *name)
{
	char quoted[2 * POLICY_PROGRAM_MAX + 1];
	size_t n = 0;

	for (; *pattern; pattern++) {
		if (*pattern == '[' || *pattern == '\\')
			quoted[n++] = '\\';
		quoted[n++] = *pattern;
	}
	quoted[n] = '\0';
	return name && fnmatch(quoted, name, 0) == 0;
}

static bool fits(const struct policy_rule *r, const struct policy_query *q)
{
	const struct policy_address *a = q->role == POLICY_LISTEN ? &q->local : &q->remote;

	if (!(r->role & q->role) || (!r->any_user && r->uid != q->uid))
		return false;
	if (a->port < r->port_first || a->port > r->port_last)
		return false;
	if (r->family && r->family != a->family)
		return false;
	for (unsigned i = 0; i < r->bits; i++) {
		if (bit(r->octets, i) != bit(a->octets, i))
			return false;
	}
	return strcmp(r->program, "*") == 0 || name_fits(r->program, q->program) ||
	       name_fits(r->program, q->alias);
}

static void check_answer(const struct policy_query *q)
{
	struct policy_answer a = policy_ask(&policy, q);

	for (uint32_t i = 0; i < policy.n_rules; i++) {
		const struct policy_rule *r = &policy.rules[i];

		if (!fits(r, q))
			continue;
		CHECK(a.offload == r->offload && a.line == r->line && a.from_file == r->from_file);
		return;
	}
	CHECK(a.offload && !a.line);
}

static void check_fault(int rc, const struct policy_query *q)
{
	struct policy_answer a = policy_ask(&policy, q);

	CHECK(rc == -EINVAL || rc == -E2BIG);
	CHECK(!a.offload && a.line && a.line == policy.broken);
	CHECK(strlen(error.text) > 8 && strlen(error.text) < sizeof(error.text) - 1);
	for (const char *c = error.text; *c; c++)
		CHECK(*c >= ' ' && *c < 127);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	uint8_t how = (uint8_t)take(&in, 1);
	struct source asked = { in.data, how >> 1 < in.left ? how >> 1 : in.left };
	struct policy_query q = { 0 };
	char names[2][16];
	char *text;
	int rc;

	in.data += asked.left;
	in.left -= asked.left;
	question(&q, &asked, names);
	text = (char *)exact_copy(in.data, in.left);
	if (how & 1) {
		char *string = strndup(text, in.left);

		CHECK(string);
		rc = policy_load(&policy, NULL, string, &error);
		free(string);
	} else {
		rc = policy_parse(&policy, "rules", text, in.left, &error);
	}
	free(text);
	CHECK(policy.n_rules <= POLICY_RULES_MAX);
	for (uint32_t i = 0; i < policy.n_rules; i++)
		check_rule(&policy.rules[i]);
	if (rc)
		check_fault(rc, &q);
	else
		check_answer(&q);
	return 0;
}
