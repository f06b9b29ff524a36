/* SPDX-License-Identifier: MIT */
#include "sockets/record/why.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/util.h"
#include "sockets/switch/policy.h"

#ifndef TCP_TX_DELAY
#define TCP_TX_DELAY 37
#endif

#define VALUE_BITS 20
#define VALUE_MAX  ((1u << VALUE_BITS) - 1)
#define LEVEL_BITS 10

/* What the value is: in the highest four bits. */
enum kind {
	NOTHING,
	RULE, /* of the environment */
	LINE, /* of the file */
	ACT,
	SOCKET_OPTION,
	TCP_OPTION,
	OTHER_OPTION, /* the level in the upper half of the value */
};

static const struct {
	const char *word, *text;
} reasons[] = {
#define WHY(name, word, text) { word, text },
#include "sockets/record/why.def"
#undef WHY
};

static const char *const acts[] = {
#define ACT(name, text) text,
#include "sockets/record/why_acts.def"
#undef ACT
};

static const struct {
	int level, name;
	const char *text;
} options[] = {
#define OPTION(level, name) { level, name, #name },
#include "sockets/record/why_options.def"
#undef OPTION
};

static enum why pack(enum why why, enum kind kind, uint64_t value)
{
	value = min_u64(value, VALUE_MAX);
	return (enum why)(why_number(why) | (uint32_t)value << 8 | (uint32_t)kind << 28);
}

static enum kind kind_of(uint32_t why)
{
	return (enum kind)(why >> 28);
}

static uint32_t value_of(uint32_t why)
{
	return why >> 8 & VALUE_MAX;
}

enum why why_rule(enum why why, bool from_file, uint32_t line)
{
	if (line == 0)
		return why;
	/* The file as such has no line. */
	return pack(why, from_file ? LINE : RULE, line == UINT32_MAX ? 0 : line);
}

enum why why_option(int level, int name)
{
	if (level == SOL_SOCKET)
		return pack(WHY_OPTION, SOCKET_OPTION, (uint32_t)name);
	if (level == IPPROTO_TCP)
		return pack(WHY_OPTION, TCP_OPTION, (uint32_t)name);
	if ((uint32_t)level >> LEVEL_BITS || (uint32_t)name >> (VALUE_BITS - LEVEL_BITS))
		return WHY_OPTION;
	return pack(WHY_OPTION, OTHER_OPTION, (uint32_t)level << LEVEL_BITS | (uint32_t)name);
}

enum why why_act(enum why_act act)
{
	return pack(WHY_OPTION, ACT, act);
}

const char *why_word(uint32_t why)
{
	return why_number(why) < WHY_COUNT ? reasons[why_number(why)].word : "unknown";
}

const char *why_sentence(uint32_t why)
{
	return why_number(why) < WHY_COUNT ? reasons[why_number(why)].text
					   : "a reason that this version does not know";
}

static void say_option(char *out, size_t size, int level, int name)
{
	for (size_t i = 0; i < ARRAY_SIZE(options); i++) {
		if (options[i].level == level && options[i].name == name) {
			snprintf(out, size, "%s", options[i].text);
			return;
		}
	}
	snprintf(out, size, "option %d of level %d", name, level);
}

static void say_user(char *out, size_t size, uint32_t uid)
{
	char name[33];

	if (policy_user_name(uid, name, sizeof(name)))
		snprintf(out, size, "%s (%u)", name, uid);
	else
		snprintf(out, size, "number %u", uid);
}

static void say_line(char *out, size_t size, uint32_t line, const char *file)
{
	if (line)
		snprintf(out, size, "line %u of %s", line, file);
	else
		snprintf(out, size, "%s", file);
}

void why_detail(char *out, size_t size, uint32_t why, const struct why_place *place)
{
	const char *file = place->rules && *place->rules ? place->rules : "the rules";
	uint32_t value = value_of(why);

	*out = '\0';
	if (why_number(why) == WHY_USER) {
		say_user(out, size, place->uid);
		return;
	}
	switch (kind_of(why)) {
	case RULE: snprintf(out, size, "rule %u of FLUE_RULE", value); break;
	case LINE: say_line(out, size, value, file); break;
	case ACT: snprintf(out, size, "%s", value < WHY_ACTS ? acts[value] : ""); break;
	case SOCKET_OPTION: say_option(out, size, SOL_SOCKET, (int)value); break;
	case TCP_OPTION: say_option(out, size, IPPROTO_TCP, (int)value); break;
	case OTHER_OPTION:
		say_option(out, size, (int)(value >> LEVEL_BITS),
			   (int)(value & ((1u << LEVEL_BITS) - 1)));
		break;
	case NOTHING: break;
	}
}

void why_text(char *out, size_t size, uint32_t why, const struct why_place *place)
{
	char about[320];

	why_detail(about, sizeof(about), why, place);
	snprintf(out, size, "%s%s%s", why_sentence(why), *about ? ": " : "", about);
}

static const char *say_address(char text[INET6_ADDRSTRLEN], const struct sockaddr_in6 *a)
{
	if (!inet_ntop(AF_INET6, &a->sin6_addr, text, INET6_ADDRSTRLEN))
		return "?";
	return strncmp(text, "::ffff:", 7) ? text : text + 7;
}

void why_line(char out[WHY_LINE], const struct rec *r, const char *program, int pid,
	      const char *rules)
{
	const struct why_place place = { .uid = r->peer_uid, .rules = rules };
	char from[INET6_ADDRSTRLEN], to[INET6_ADDRSTRLEN], ends[160];
	size_t length;

	if (r->flags & REC_NAMED)
		snprintf(ends, sizeof(ends), "%s port %u to %s port %u",
			 say_address(from, &r->end.self), ntohs(r->end.self.sin6_port),
			 say_address(to, &r->end.peer), ntohs(r->end.peer.sin6_port));
	else
		strcpy(ends, "a connection that ended early");
	snprintf(out, WHY_LINE, "%s[%d]: %s " WHY_BEFORE, program, pid, ends);
	length = strlen(out);
	why_text(out + length, WHY_LINE - length, r->why, &place);
}
