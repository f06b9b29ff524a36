/* SPDX-License-Identifier: MIT */
/* flue(1): finds the subcommand and hands over. */
#include <argp.h>
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <flue/flue.h>

#include "cmd.h"
#include "util.h"

static int cmd_help(int argc, char **argv);
static int cmd_version(int argc, char **argv);

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} commands[] = {
	{ "adapters", cmd_adapters, "list providers, what they can do, and their processors" },
	{ "demo", cmd_demo, "see RDMA at work: a guided tour of a few seconds" },
	{ "ping", cmd_ping, "measure round trips to a server, one per second" },
	{ "perf", cmd_perf, "measure latency and bandwidth of writes, reads and sends" },
	{ "run", cmd_run, "run a program whose local TCP connections use shared memory" },
	{ "sockets", cmd_sockets, "show the connections of such programs" },
	{ "help", cmd_help, "this list, or help for one command" },
	{ "version", cmd_version, "print the version" },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

volatile sig_atomic_t cmd_interrupted;

static void interrupt(int number)
{
	(void)number;
	cmd_interrupted = 1;
}

void cmd_catch_interrupt(void)
{
	struct sigaction action = { .sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND };

	sigaction(SIGINT, &action, NULL);
}

struct flue_adapter *cmd_open_adapter(uint32_t links)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
	struct flue_adapter *adapter;

	attr.links = links;
	adapter = flue_open(&attr);

	if (!adapter)
		util_error("cannot open an adapter: %s%s", strerror(errno),
			   errno == EMFILE ? "; raise the limit with 'ulimit -n'" : "");
	return adapter;
}

static void usage(FILE *out)
{
	fprintf(out, "usage: flue COMMAND [ARGUMENT...]\n\n");
	for (size_t i = 0; i < N_COMMANDS; i++)
		fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
	fprintf(out,
		"\n'flue COMMAND --help' explains one command. First time here? Try 'flue demo'.\n");
}

static int dispatch(const char *name, int argc, char **argv)
{
	static char full_name[64];

	for (size_t i = 0; i < N_COMMANDS; i++) {
		if (strcmp(name, commands[i].name) != 0)
			continue;
		/* argp takes the name for its messages from here. */
		snprintf(full_name, sizeof(full_name), "flue %s", name);
		argv[0] = full_name;
		program_invocation_short_name = full_name;
		return commands[i].run(argc, argv);
	}
	util_error("there is no command '%s'; 'flue help' lists them", name);
	return 2;
}

static int cmd_help(int argc, char **argv)
{
	static char help[] = "--help";
	char *args[] = { argv[0], help, NULL };

	if (argc > 1 && strcmp(argv[1], "help") != 0 && strcmp(argv[1], "version") != 0)
		return dispatch(argv[1], 2, args);
	usage(stdout);
	return 0;
}

static int cmd_version(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	printf("flue %s, library %s\n", FLUE_VERSION, flue_version());
	return 0;
}

int main(int argc, char **argv)
{
	setlocale(LC_CTYPE, "");
	argp_err_exit_status = 2;
	if (argc < 2) {
		usage(stderr);
		return 2;
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return cmd_help(1, argv);
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
		return cmd_version(1, argv);
	return dispatch(argv[1], argc - 1, argv + 1);
}
