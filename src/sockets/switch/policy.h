/* SPDX-License-Identifier: MIT */
/*
 * The rules by which a connection may leave TCP, from a file and from the environment;
 * flue-sockets.rules(5) has the grammar. The first rule that matches decides; if none does, the
 * answer is offload. A broken rule breaks the whole policy: the answer is then TCP, always.
 *
 * Loaded once, before it is asked. No memory is allocated; policy_ask() makes no system call and
 * may be called in a signal handler.
 */
#ifndef FLUE_SOCKETS_POLICY_H
#define FLUE_SOCKETS_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define POLICY_RULES_MAX   256
#define POLICY_LINE_MAX    512 /* octets in a rule, comment included */
#define POLICY_PROGRAM_MAX 63
#define POLICY_FILE_MAX    255 /* of a file's name, in messages */

enum policy_role { POLICY_CONNECT = 1, POLICY_LISTEN = 2, POLICY_BOTH = 3 };

struct policy_address {
	uint8_t family; /* AF_INET, AF_INET6, or 0: unknown, matches "*" only */
	uint8_t octets[16];
	uint16_t port; /* host order */
};

struct policy_rule {
	bool offload;
	uint8_t role;
	uint8_t family; /* 0: any address */
	uint8_t bits;
	bool any_user;
	bool from_file;
	uint16_t port_first, port_last;
	uint32_t line; /* of the file, or the number of the rule in the environment */
	uid_t uid;
	uint8_t octets[16];
	char program[POLICY_PROGRAM_MAX + 1]; /* "*" and "?" stand for any text and any octet */
};

/* All zero is the policy without rules. */
struct policy {
	uint32_t n_rules;
	uint32_t broken; /* line of the broken rule; UINT32_MAX: no line, the file as such */
	bool broken_file;
	char file[POLICY_FILE_MAX + 1];
	struct policy_rule rules[POLICY_RULES_MAX];
};

/* What is wrong and where, for one message: "FILE:LINE: what". */
struct policy_error {
	char text[POLICY_FILE_MAX + 161];
};

struct policy_query {
	const char *program; /* name of the executable without folders; may be NULL */
	const char *alias;   /* name by which it was started: a link or script; may be NULL */
	uid_t uid;
	enum policy_role role;        /* CONNECT: `remote` is compared; LISTEN: `local` */
	struct policy_address local;  /* of the connection, not of the listener */
	struct policy_address remote; /* ditto */
};

struct policy_answer {
	bool offload;
	bool from_file; /* the line is one of the file */
	uint32_t line;  /* of the rule that decided; 0: none did */
};

/*
 * `flue run` reads the rules before it starts a program, and says what is wrong with them; what it has said
 * stands here, and no process of the program says the same again.
 */
#define POLICY_TOLD "FLUE_RULES_TOLD"

/*
 * Rules of `text` (separated by ';' or newline), then those of the file; either may be NULL. 0, or
 * a negative errno, `error` filled and a policy that says TCP: -EINVAL for a broken rule, -E2BIG for
 * too many, else what the file said. Not for signal handlers.
 */
int policy_load(struct policy *policy, const char *path, const char *text,
		struct policy_error *error);

/* The file that counts: $FLUE_RULES, or the machine's if there is one, or NULL. */
const char *policy_path(void);

/* The same for the contents of a file, without I/O but for user names. */
int policy_parse(struct policy *policy, const char *name, const char *contents, size_t length,
		 struct policy_error *error);

struct policy_answer policy_ask(const struct policy *policy, const struct policy_query *query);

/* The name of a user in /etc/passwd; false: none there. */
bool policy_user_name(uid_t uid, char *out, size_t size);

/* The names of this process, for queries; empty where the system does not tell. */
struct policy_self {
	char program[256];
	char alias[256];
};
void policy_self(struct policy_self *self);

/* IPv6 addresses that stand for IPv4 become that; another family becomes 0. */
void policy_address(struct policy_address *out, const struct sockaddr *address, socklen_t length);

#endif
