/* SPDX-License-Identifier: MIT */
#include "options.h"
#include "cmd.h"
#include "serve.h"
#include "util.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum {
	KEY_POLL = 256,
	KEY_WAIT,
	KEY_FD,
	KEY_CRC,
	KEY_ONCE,
	KEY_CLIENTS,
	KEY_MEMORY,
	KEY_JSON,
	KEY_FULL,
	KEY_TCP,
	KEY_LINK
};

static const struct argp_option options[] = {
	{ .doc = "Connection:", .group = 1 },
	{ "port", 'p', "PORT", 0, "Port of the server (" UTIL_PORT ")", 1 },
	{ "crc", KEY_CRC, "on|off", 0,
	  "Checksums on the wire (on). Off needs both sides: a server goes along unless it was "
	  "started with --crc on",
	  1 },
	{ "full", KEY_FULL, NULL, 0,
	  "Full service instead of iWARP, on both sides: a Send or Write is done when the peer has it",
	  1 },
	{ "link", KEY_LINK, "tcp|local", 0,
	  "Full service: over TCP also where both sides are on one host and could share memory; or "
	  "through memory, else fail (whichever can be had)",
	  1 },
	{ "tcp", KEY_TCP, NULL, 0, "The same as --link tcp", 1 },
	{ "wait", KEY_WAIT, NULL, 0, "Sleep until there is a completion (default)", 1 },
	{ "poll", KEY_POLL, NULL, 0, "Spin: lowest latency, a whole processor", 1 },
	{ "fd", KEY_FD, NULL, 0, "Sleep in epoll on the completion queue's descriptor", 1 },
	{ "json", KEY_JSON, NULL, 0, "Print results as JSON", 1 },
	{ .doc = "Server:", .group = 2 },
	{ "server", 's', NULL, 0, "Serve clients until interrupted", 2 },
	{ "listen", 'l', "ADDRESS", 0, "Address to listen on (all)", 2 },
	{ "once", KEY_ONCE, NULL, 0, "End after one client", 2 },
	{ "clients", KEY_CLIENTS, "N", 0, "End after N clients", 2 },
	{ "memory", KEY_MEMORY, "SIZE", 0, "Memory granted to one client (1G)", 2 },
	{ "quiet", 'q', NULL, 0, "No line for each test", 2 },
	{ 0 },
};

/* getaddrinfo() would take 70000 for 4464. */
static void parse_port(struct options *o, char *arg, struct argp_state *state)
{
	uint64_t number;

	if (isdigit((unsigned char)arg[0]) && !util_parse_number(arg, 0, UINT16_MAX, &number))
		argp_error(state, "--port takes a number up to 65535, not '%s'", arg);
	o->port = arg;
}

static void parse_crc(struct options *o, const char *arg, struct argp_state *state)
{
	o->crc_set = true;
	if (strcmp(arg, "off") == 0)
		o->no_crc = true;
	else if (strcmp(arg, "on") != 0)
		argp_error(state, "--crc is 'on' or 'off', not '%s'", arg);
}

static void parse_link(struct options *o, const char *arg, struct argp_state *state)
{
	if (strcmp(arg, "tcp") == 0)
		o->link = FLUE_LINK_TCP;
	else if (strcmp(arg, "local") == 0)
		o->link = FLUE_LINK_LOCAL;
	else
		argp_error(state, "--link is 'tcp' or 'local', not '%s'", arg);
}

/* What only makes sense together. */
static void check(const struct options *o, struct argp_state *state)
{
	if (!o->server && !o->host)
		argp_error(state, "name a HOST to connect to, or use --server to be one");
	if (o->server && o->host)
		argp_error(state, "a server takes no HOST; -l chooses the address to listen on");
	if (o->link == FLUE_LINK_LOCAL && !o->full)
		argp_error(state, "--link local is for full service: use --full, on both sides");
}

static error_t parse_server(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	switch (key) {
	case 's': o->server = true; break;
	case 'l': o->listen = arg; break;
	case 'q': o->quiet = true; break;
	case KEY_ONCE: o->clients = 1; break;
	case KEY_CLIENTS:
		if (!util_parse_number(arg, 1, UINT32_MAX, &o->clients))
			argp_error(state, "--clients takes a number from 1, not '%s'", arg);
		break;
	case KEY_MEMORY:
		if (!util_parse_size(arg, 1 << 20, UINT64_C(1) << 40, &o->memory_max))
			argp_error(state, "--memory takes a size from 1M to 1T, not '%s'", arg);
		break;
	case ARGP_KEY_END: check(o, state); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	switch (key) {
	case 'p': parse_port(o, arg, state); break;
	case KEY_CRC: parse_crc(o, arg, state); break;
	case KEY_FULL: o->full = true; break;
	case KEY_TCP: o->link = FLUE_LINK_TCP; break;
	case KEY_LINK: parse_link(o, arg, state); break;
	case KEY_WAIT: o->wait = EP_WAIT; break;
	case KEY_POLL: o->wait = EP_POLL; break;
	case KEY_FD: o->wait = EP_FD; break;
	case KEY_JSON: o->json = true; break;
	case ARGP_KEY_ARG:
		if (o->host)
			argp_error(state, "one HOST, please: '%s' is too much", arg);
		o->host = arg;
		break;
	default: return parse_server(key, arg, state);
	}
	return 0;
}

const struct argp options_argp = { .options = options, .parser = parse };

/* TCP is always needed: connections begin there. */
uint32_t options_links(const struct options *o)
{
	return o->link == FLUE_LINK_TCP ? FLUE_LINK_TCP : 0;
}

static void say_listening(const struct sockaddr_storage *local, void *arg)
{
	char text[UTIL_TEXT_MAX];

	(void)arg;
	printf("listening on %s\n", util_address_text(text, local));
	fflush(stdout); /* whoever waits for us may read a pipe */
}

int options_serve(const struct options *o)
{
	struct sockaddr_storage local;
	struct serve_attr attr = { .wait = o->wait, .clients = o->clients };
	bool good;

	if (!util_resolve(o->listen, o->port, &local, &attr.local_len))
		return 1;
	attr.adapter = cmd_open_adapter(options_links(o));
	if (!attr.adapter)
		return 1;
	attr.local = (const struct sockaddr *)&local;
	attr.crc_always = o->crc_set && !o->no_crc;
	attr.full = o->full;
	attr.at_once = SERVE_AT_ONCE;
	attr.memory_max = o->memory_max;
	attr.log = o->quiet ? NULL : stdout;
	attr.listening = say_listening;
	good = serve(&attr);
	flue_close(attr.adapter);
	return good ? 0 : 1;
}
