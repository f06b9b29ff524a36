/* SPDX-License-Identifier: MIT */
/*
 * Rules are read octet by octet into one line at a time, so neither the size of a file nor what is
 * in it can make this allocate or overrun. The library that asks lives in other people's
 * processes: no stdio, no locale, no name service (user names come from /etc/passwd alone).
 */
#include "sockets/switch/policy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/util.h"

#define WORDS_MAX 7 /* use tcp both PROGRAM ADDRESS user NAME */
#define FILE_MAX  (1 << 20)
#define QUOTE_MAX 40
#define NO_LINE   UINT32_MAX

struct reader {
	struct policy *policy;
	struct policy_error *error;
	const char *name;
	bool from_file;
	uint32_t line;
	size_t length;
	char text[POLICY_LINE_MAX + 1];
};

/* ---- messages ---- */

static void put(struct policy_error *e, const char *text)
{
	size_t at = strlen(e->text);

	while (*text && at < sizeof(e->text) - 1)
		e->text[at++] = *text++;
	e->text[at] = '\0';
}

static void put_number(struct policy_error *e, uint32_t number)
{
	char digits[12];
	size_t at = sizeof(digits) - 1;

	digits[at] = '\0';
	do {
		digits[--at] = (char)('0' + number % 10);
		number /= 10;
	} while (number);
	put(e, digits + at);
}

/* Somebody's text, cut and without what a terminal might act on. */
static void put_quote(struct policy_error *e, const char *text)
{
	char quote[QUOTE_MAX + 6] = "'";
	size_t at = 1;

	for (; *text && at <= QUOTE_MAX; text++)
		quote[at++] = *text > ' ' && *text < 127 ? *text : '?';
	memcpy(quote + at, *text ? "...'" : "'", *text ? 5 : 2);
	put(e, quote);
}

/* The policy is broken from now on. `quote` stands before `what`; may be NULL. */
static int refuse(struct reader *r, int rc, const char *quote, const char *what)
{
	r->policy->broken = r->line;
	r->policy->broken_file = r->from_file;
	r->error->text[0] = '\0';
	put(r->error, r->name);
	put(r->error, ":");
	if (r->line != NO_LINE) {
		put_number(r->error, r->line);
		put(r->error, ":");
	}
	put(r->error, " ");
	if (quote) {
		put_quote(r->error, quote);
		put(r->error, " ");
	}
	put(r->error, what);
	return rc;
}

/* ---- words ---- */

static bool parse_number(const char *text, uint32_t max, uint32_t *out)
{
	uint64_t value = 0;

	if (!*text)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		value = value * 10 + (uint64_t)(*text - '0');
		if (value > max)
			return false;
	}
	*out = (uint32_t)value;
	return true;
}

static int parse_program(struct reader *r, char *word, struct policy_rule *rule)
{
	if (strlen(word) > POLICY_PROGRAM_MAX)
		return refuse(r, -EINVAL, word, "is too long for the name of a program");
	if (strchr(word, '/'))
		return refuse(r, -EINVAL, word, "names a folder; write the program's name alone");
	memcpy(rule->program, word, strlen(word) + 1);
	return 0;
}

static int parse_ports(struct reader *r, char *word, struct policy_rule *rule)
{
	char *dash = strchr(word, '-');
	uint32_t first, last;

	rule->port_last = UINT16_MAX;
	if (strcmp(word, "*") == 0)
		return 0;
	if (dash)
		*dash = '\0';
	if (!parse_number(word, UINT16_MAX, &first) ||
	    !parse_number(dash ? dash + 1 : word, UINT16_MAX, &last) || first > last) {
		if (dash)
			*dash = '-';
		return refuse(r, -EINVAL, word,
			      "is no port (up to 65535), range FIRST-LAST or '*'");
	}
	rule->port_first = (uint16_t)first;
	rule->port_last = (uint16_t)last;
	return 0;
}

/* An IPv6 form of an IPv4 address or network is that. */
static void unmap(uint8_t *family, uint8_t octets[16], uint8_t *bits)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	if (*family != AF_INET6 || *bits < 96 || memcmp(octets, mapped, sizeof(mapped)) != 0)
		return;
	memmove(octets, octets + 12, 4);
	memset(octets + 4, 0, 12);
	*family = AF_INET;
	*bits = (uint8_t)(*bits - 96);
}

/* "*", "10.0.0.0/8" or "[fd00::]/8". */
static int parse_network(struct reader *r, char *word, struct policy_rule *rule)
{
	size_t length = strlen(word);
	char *slash = strchr(word, '/');
	uint32_t bits = 0, most;

	if (strcmp(word, "*") == 0)
		return 0;
	if (slash) {
		*slash = '\0';
		length = (size_t)(slash - word);
	}
	if (length > 2 && word[0] == '[' && word[length - 1] == ']') {
		word[length - 1] = '\0';
		rule->family = AF_INET6;
		word++;
	} else {
		rule->family = AF_INET;
	}
	most = rule->family == AF_INET6 ? 128 : 32;
	if (inet_pton(rule->family, word, rule->octets) != 1)
		return refuse(r, -EINVAL, word,
			      "is no address: 127.0.0.1, [::1], a network 10.0.0.0/8, or '*'");
	if (slash && !parse_number(slash + 1, most, &bits))
		return refuse(r, -EINVAL, slash + 1, "is no number of bits for this address");
	rule->bits = (uint8_t)(slash ? bits : most);
	unmap(&rule->family, rule->octets, &rule->bits);
	return 0;
}

static int parse_address(struct reader *r, char *word, struct policy_rule *rule)
{
	char *colon = strrchr(word, ':'), *bracket = strrchr(word, ']');
	int rc;

	if (strcmp(word, "*") == 0) {
		rule->port_last = UINT16_MAX;
		return 0;
	}
	if (!colon || (bracket && colon < bracket))
		return refuse(r, -EINVAL, word, "has no port: write ADDRESS:PORT, or '*' for any");
	*colon = '\0';
	rc = parse_network(r, word, rule);
	return rc ? rc : parse_ports(r, colon + 1, rule);
}

/* ---- user names ---- */

/* What is known of a user, and what is asked for. */
struct user {
	char name[POLICY_LINE_MAX + 1];
	uid_t uid;
	bool by_name;
};

/* A line "name:password:uid:..." of at most POLICY_LINE_MAX octets: is it the one? */
static bool passwd_line(char *line, struct user *user)
{
	char *colon = strchr(line, ':');
	char *second = colon ? strchr(colon + 1, ':') : NULL;
	char *third = second ? strchr(second + 1, ':') : NULL;
	uint32_t number;

	if (!third)
		return false;
	*colon = *third = '\0';
	if (user->by_name ? strcmp(line, user->name) != 0 : !*line)
		return false;
	if (!parse_number(second + 1, UINT32_MAX, &number) ||
	    (!user->by_name && number != user->uid))
		return false;
	memcpy(user->name, line, strlen(line) + 1);
	user->uid = number;
	return true;
}

static bool find_user(struct user *user)
{
	char line[POLICY_LINE_MAX + 1], buffer[1024];
	int fd = open("/etc/passwd", O_RDONLY | O_CLOEXEC | O_NOCTTY);
	size_t length = 0;
	bool found = false;
	ssize_t got = 0;

	if (fd < 0)
		return false;
	while (!found && (got = read(fd, buffer, sizeof(buffer))) > 0) {
		for (ssize_t i = 0; i < got && !found; i++) {
			if (buffer[i] != '\n') {
				/* Too long: cut, which is behind all that counts. */
				length += length < POLICY_LINE_MAX;
				line[length - 1] = buffer[i];
				continue;
			}
			line[length] = '\0';
			found = passwd_line(line, user);
			length = 0;
		}
	}
	close(fd);
	line[length] = '\0'; /* a last line without an end */
	return found || passwd_line(line, user);
}

bool policy_user_name(uid_t uid, char *out, size_t size)
{
	struct user user = { .uid = uid };
	size_t length;

	if (!find_user(&user))
		return false;
	length = min_size(strlen(user.name), size - 1);
	memcpy(out, user.name, length);
	out[length] = '\0';
	return true;
}

static int parse_user(struct reader *r, char *word, struct policy_rule *rule)
{
	struct user user = { .by_name = true };
	uint32_t number;

	if (strcmp(word, "*") == 0)
		return 0;
	rule->any_user = false;
	if (parse_number(word, UINT32_MAX, &number)) {
		rule->uid = number;
		return 0;
	}
	memcpy(user.name, word, strlen(word) + 1); /* part of a line */
	if (!find_user(&user))
		return refuse(r, -EINVAL, word, "is no user in /etc/passwd; the number works too");
	rule->uid = user.uid;
	return 0;
}

/* ---- rules ---- */

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Cut the line into words; a '#' at the beginning of one starts a comment. */
static size_t split(char *text, char *words[], size_t max)
{
	size_t n = 0;

	for (;;) {
		while (is_blank(*text))
			*text++ = '\0';
		if (!*text || *text == '#')
			return n;
		if (n < max)
			words[n] = text;
		n++;
		while (*text && !is_blank(*text))
			text++;
	}
}

/* The index of `word` in `list`, or -1. */
static int look_up(const char *word, const char *const list[], int n)
{
	for (int i = 0; i < n; i++) {
		if (strcmp(word, list[i]) == 0)
			return i;
	}
	return -1;
}

static int parse_rule(struct reader *r, char *words[], size_t n, struct policy_rule *rule)
{
	static const char *const ways[] = { "tcp", "flue" };
	static const char *const roles[] = { "connect", "listen", "both" };
	int way, role, rc;

	if (strcmp(words[0], "use") != 0)
		return refuse(r, -EINVAL, words[0], "begins no rule; they begin with 'use'");
	if (n < 5)
		return refuse(r, -EINVAL, words[n - 1],
			      "ends the rule too early: use flue|tcp connect|listen|both "
			      "PROGRAM ADDRESS:PORT [user NAME]");
	way = look_up(words[1], ways, 2);
	if (way < 0)
		return refuse(r, -EINVAL, words[1], "is neither 'flue' nor 'tcp'");
	role = look_up(words[2], roles, 3);
	if (role < 0)
		return refuse(r, -EINVAL, words[2], "is none of 'connect', 'listen' and 'both'");
	rule->offload = way == 1;
	rule->role = (uint8_t)(role + 1);
	rule->any_user = true;
	rc = parse_program(r, words[3], rule);
	if (!rc)
		rc = parse_address(r, words[4], rule);
	if (rc || n == 5)
		return rc;
	if (n != 7 || strcmp(words[5], "user") != 0)
		return refuse(r, -EINVAL, words[5], "cannot stand there, only 'user NAME' can");
	return parse_user(r, words[6], rule);
}

static int parse_line(struct reader *r)
{
	struct policy_rule rule = { .from_file = r->from_file, .line = r->line };
	struct policy *p = r->policy;
	char *words[WORDS_MAX];
	size_t n;
	int rc;

	r->text[r->length] = '\0';
	if (strlen(r->text) != r->length)
		return refuse(r, -EINVAL, NULL, "this is no text");
	r->length = 0;
	n = split(r->text, words, WORDS_MAX);
	if (n == 0)
		return 0;
	rc = parse_rule(r, words, n, &rule);
	if (rc)
		return rc;
	if (p->n_rules == POLICY_RULES_MAX)
		return refuse(r, -E2BIG, NULL, "too many rules; there is room for 256");
	p->rules[p->n_rules++] = rule;
	return 0;
}

static int feed(struct reader *r, const char *text, size_t length)
{
	int rc = 0;

	for (size_t i = 0; i < length && !rc; i++) {
		if (text[i] == '\n' || (text[i] == ';' && !r->from_file)) {
			rc = parse_line(r);
			r->line++;
		} else if (r->length == POLICY_LINE_MAX) {
			rc = refuse(r, -EINVAL, NULL, "the line is too long");
		} else {
			r->text[r->length++] = text[i];
		}
	}
	return rc;
}

static int read_file(struct reader *r, const char *path)
{
	char buffer[1024];
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	size_t total = 0;
	ssize_t got;
	int rc = 0;

	r->line = NO_LINE;
	if (fd < 0) {
		rc = -errno;
		return refuse(r, rc, NULL, rc == -ENOENT ? "no such file" : "cannot be opened");
	}
	r->line = 1;
	while (!rc && (got = read(fd, buffer, sizeof(buffer))) != 0) {
		if (got < 0) {
			rc = -errno;
			r->line = NO_LINE;
			refuse(r, rc, NULL, "cannot be read");
			break;
		}
		total += (size_t)got;
		rc = feed(r, buffer, (size_t)got);
		if (!rc && total > FILE_MAX)
			rc = refuse(r, -EFBIG, NULL, "the file is too large");
	}
	close(fd);
	return rc ? rc : parse_line(r);
}

/* Messages may be wanted later than the caller's string lives. */
static void keep_name(struct policy *p, const char *name)
{
	size_t length = min_size(strlen(name), POLICY_FILE_MAX);

	memcpy(p->file, name, length);
	p->file[length] = '\0';
}

const char *policy_path(void)
{
	const char *path = getenv("FLUE_RULES");

	if (!path && access("/etc/flue/sockets.rules", F_OK) == 0)
		path = "/etc/flue/sockets.rules";
	return path;
}

int policy_load(struct policy *policy, const char *path, const char *text,
		struct policy_error *error)
{
	struct reader r = { .policy = policy, .error = error, .name = "FLUE_RULE", .line = 1 };
	int rc = 0;

	memset(policy, 0, sizeof(*policy));
	error->text[0] = '\0';
	if (text)
		rc = feed(&r, text, strlen(text));
	if (!rc)
		rc = parse_line(&r);
	if (rc || !path)
		return rc;
	keep_name(policy, path);
	r = (struct reader) {
		.policy = policy, .error = error, .name = policy->file, .from_file = true
	};
	return read_file(&r, path);
}

int policy_parse(struct policy *policy, const char *name, const char *contents, size_t length,
		 struct policy_error *error)
{
	struct reader r = { .policy = policy, .error = error, .from_file = true, .line = 1 };
	int rc;

	memset(policy, 0, sizeof(*policy));
	error->text[0] = '\0';
	keep_name(policy, name);
	r.name = policy->file;
	rc = feed(&r, contents, length);
	return rc ? rc : parse_line(&r);
}

/* ---- questions ---- */

/* Goes back to the last '*' only, which is enough and takes no recursion. */
static bool name_matches(const char *pattern, const char *name)
{
	const char *star = NULL, *from = NULL;

	while (*name) {
		if (*pattern == '*') {
			star = ++pattern;
			from = name;
		} else if (*pattern == *name || *pattern == '?') {
			pattern++;
			name++;
		} else if (star) {
			pattern = star;
			name = ++from;
		} else {
			return false;
		}
	}
	while (*pattern == '*')
		pattern++;
	return !*pattern;
}

static bool program_matches(const char *pattern, const struct policy_query *q)
{
	if (strcmp(pattern, "*") == 0)
		return true;
	return (q->program && name_matches(pattern, q->program)) ||
	       (q->alias && name_matches(pattern, q->alias));
}

static bool address_matches(const struct policy_rule *rule, const struct policy_address *a)
{
	unsigned whole = rule->bits / 8, rest = rule->bits % 8;

	if (a->port < rule->port_first || a->port > rule->port_last)
		return false;
	if (!rule->family)
		return true;
	if (rule->family != a->family || memcmp(rule->octets, a->octets, whole) != 0)
		return false;
	return !rest || (rule->octets[whole] ^ a->octets[whole]) >> (8 - rest) == 0;
}

struct policy_answer policy_ask(const struct policy *policy, const struct policy_query *query)
{
	const struct policy_address *a = query->role == POLICY_LISTEN ? &query->local
								      : &query->remote;

	if (policy->broken)
		return (struct policy_answer) { false, policy->broken_file, policy->broken };
	for (uint32_t i = 0; i < policy->n_rules; i++) {
		const struct policy_rule *rule = &policy->rules[i];

		if ((rule->role & query->role) && (rule->any_user || rule->uid == query->uid) &&
		    address_matches(rule, a) && program_matches(rule->program, query))
			return (struct policy_answer) { rule->offload, rule->from_file,
							rule->line };
	}
	return (struct policy_answer) { .offload = true };
}

void policy_address(struct policy_address *out, const struct sockaddr *address, socklen_t length)
{
	uint8_t bits = 128;

	memset(out, 0, sizeof(*out));
	if (length >= sizeof(struct sockaddr_in) && address->sa_family == AF_INET) {
		struct sockaddr_in in;

		memcpy(&in, address, sizeof(in));
		out->family = AF_INET;
		out->port = ntohs(in.sin_port);
		memcpy(out->octets, &in.sin_addr, 4);
	} else if (length >= sizeof(struct sockaddr_in6) && address->sa_family == AF_INET6) {
		struct sockaddr_in6 in6;

		memcpy(&in6, address, sizeof(in6));
		out->family = AF_INET6;
		out->port = ntohs(in6.sin6_port);
		memcpy(out->octets, &in6.sin6_addr, 16);
		unmap(&out->family, out->octets, &bits);
	}
}

static void keep_base(char out[256], const char *path)
{
	const char *slash = strrchr(path, '/');
	const char *base = slash ? slash + 1 : path;
	size_t length = min_size(strlen(base), 255);

	memcpy(out, base, length);
	out[length] = '\0';
}

void policy_self(struct policy_self *self)
{
	const char *started = (const char *)getauxval(AT_EXECFN);
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

	memset(self, 0, sizeof(*self));
	if (length > 0) {
		path[length] = '\0';
		keep_base(self->program, path);
	}
	/* Not argv[0], which many programs write upon; started by descriptor, it has no other name. */
	if (started && strncmp(started, "/dev/fd/", 8) != 0)
		keep_base(self->alias, started);
	else
		memcpy(self->alias, self->program, sizeof(self->alias));
}
