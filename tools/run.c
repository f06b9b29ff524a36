/* SPDX-License-Identifier: MIT */
/* flue run: starts a program with the sockets library in it. */
#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cmd.h"
#include "guard.h"
#include "sockets/switch/policy.h"
#include "target.h"
#include "util.h"

#define LIBRARY   "libflue-sockets.so"
#define STATS_MAX 255 /* octets, as in the library */

/* As env(1): the program's own statuses are below, those of shells are the last two. */
enum { STATUS_US = 125, STATUS_CANNOT = 126, STATUS_MISSING = 127 };

enum { KEY_PROFILE = 256, KEY_WHY, KEY_RULES, KEY_STATS };

struct run {
	const char *profile, *rules, *stats;
	bool why;
	char **program; /* and its arguments */
};

static const char *const profiles[] = { "latency", "balanced", "cpu" };

static const struct argp_option options[] = {
	{ "profile", KEY_PROFILE, "NAME", 0,
	  "How to wait: latency (spins longest), balanced (default) or cpu (never spins)", 0 },
	{ "why", KEY_WHY, NULL, 0,
	  "At its end the program says of each connection that stayed on TCP why it did", 0 },
	{ "rules", KEY_RULES, "FILE", 0, "Rules that say what may leave TCP", 0 },
	{ "stats", KEY_STATS, "FILE", 0, "At its end the program appends its totals to FILE", 0 },
	{ 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct run *run = state->input;
	bool known = false;

	switch (key) {
	case KEY_PROFILE:
		for (size_t i = 0; i < sizeof(profiles) / sizeof(profiles[0]); i++)
			known |= strcmp(arg, profiles[i]) == 0;
		if (!known)
			argp_error(state, "--profile is latency, balanced or cpu, not '%s'", arg);
		run->profile = arg;
		break;
	case KEY_WHY: run->why = true; break;
	case KEY_RULES: run->rules = arg; break;
	case KEY_STATS: run->stats = arg; break;
	case ARGP_KEY_ARG:
		/* All that follows is the program's. */
		run->program = state->argv + state->next - 1;
		state->next = state->argc;
		break;
	case ARGP_KEY_NO_ARGS: argp_error(state, "name a PROGRAM to run"); break;
	default: return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.args_doc = "PROGRAM [ARGUMENT...]",
	.doc = "Run a program whose TCP connections to other such programs of yours on this machine go "
	       "through shared memory. It notices nothing but the speed; all other connections are "
	       "TCP as ever.\v"
	       "Examples:\n"
	       "  flue run redis-server\n"
	       "  flue run --profile latency redis-benchmark -q\n"
	       "  flue run --why curl -s http://localhost:8080/\n"
	       "\n"
	       "See flue-sockets.rules(5) for rules, and 'flue sockets' for what is going on.\n",
};

/* ---- the library ---- */

static bool try_library(char out[PATH_MAX], const char *folder, const char *below)
{
	char path[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s/" LIBRARY, folder, below) >= (int)sizeof(path))
		return false;
	return realpath(path, out) != NULL;
}

/*
 * Where the tool was built it finds the library that was built with it, elsewhere the one that
 * was installed with it, even if both were moved together.
 */
static bool find_library(char out[PATH_MAX])
{
	const char *named = getenv("FLUE_LIBRARY");
	char self[PATH_MAX];
	ssize_t length;

	if (named && *named) {
		if (realpath(named, out))
			return true;
		util_error("FLUE_LIBRARY is %s: %s", named, strerror(errno));
		return false;
	}
	length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	if (length > 0) {
		self[length] = '\0';
		*strrchr(self, '/') = '\0';
		if (try_library(out, self, "../src") || try_library(out, self, "../" FLUE_LIBDIR))
			return true;
	}
	if (try_library(out, FLUE_LIBDIR_PATH, "."))
		return true;
	util_error("cannot find " LIBRARY " beside this command or in " FLUE_LIBDIR_PATH
		   "; FLUE_LIBRARY can name it");
	return false;
}

/* ---- what is said before the program starts ---- */

/* The library could only say at the end that it cannot write there, or not at all. */
static bool check_stats(const char *file)
{
	int fd;

	if (strlen(file) > STATS_MAX) {
		util_error("the name of the file for --stats has more than %d octets", STATS_MAX);
		return false;
	}
	fd = open(file, O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT) {
		fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (fd >= 0)
			unlink(file); /* it comes when there is something to write */
	}
	if (fd < 0 && errno != ENXIO) { /* which is a pipe that nobody reads yet */
		util_error(
			"totals cannot be appended to %s: %s; --stats takes a file in a folder that "
			"you may write to",
			file, strerror(errno));
		return false;
	}
	if (fd >= 0)
		close(fd);
	return true;
}

/* Once, here, and not by each process that the program starts. */
static void check_settings(const char *program)
{
	struct policy *policy = malloc(sizeof(*policy));
	const char *told = getenv(POLICY_TOLD);
	struct policy_error error;

	if (!policy)
		return; /* then they will say it themselves */
	if (policy_load(policy, policy_path(), getenv("FLUE_RULE"), &error) == 0) {
		unsetenv(POLICY_TOLD);
	} else if (!told || strcmp(told, error.text) != 0) {
		util_error("%s; %s and what it starts stay on TCP", error.text, program);
		setenv(POLICY_TOLD, error.text, 1);
	}
	free(policy);
	/* What is wrong with this one libflue has told, when it was loaded into this very process. */
	if (getenv("FLUE_LOG"))
		setenv(LOG_TOLD, getenv("FLUE_LOG"), 1);
}

/* ---- the environment ---- */

/* A file's name that holds wherever the program goes. */
static bool set_path(const char *name, const char *file, bool must_exist)
{
	char path[PATH_MAX], here[PATH_MAX];

	if (must_exist && access(file, R_OK)) {
		util_error("cannot read %s: %s", file, strerror(errno));
		return false;
	}
	if (file[0] == '/')
		return setenv(name, file, 1) == 0;
	if (!getcwd(here, sizeof(here)) ||
	    snprintf(path, sizeof(path), "%s/%s", here, file) >= (int)sizeof(path)) {
		util_error("cannot name %s by its whole path", file);
		return false;
	}
	return setenv(name, path, 1) == 0;
}

static bool set_environment(const struct run *run, const char *library)
{
	char *preload;

	if (strpbrk(library, " :")) {
		util_error("the path %s has a blank or colon, which LD_PRELOAD cannot express",
			   library);
		return false;
	}
	preload = target_preload(getenv("LD_PRELOAD"), library);
	if (!preload || setenv("LD_PRELOAD", preload, 1)) {
		util_error("no memory");
		free(preload);
		return false;
	}
	free(preload);
	if (run->profile)
		setenv("FLUE_PROFILE", run->profile, 1);
	if (run->why)
		setenv("FLUE_WHY", "1", 1);
	return (!run->rules || set_path("FLUE_RULES", run->rules, true)) &&
	       (!run->stats || set_path("FLUE_STATS", run->stats, false));
}

/* Somebody must be there to tell of it when a signal has ended it. */
static int stay(const struct run *run, const char *path)
{
	const struct guard_attr attr = { .path = path,
					 .argv = run->program,
					 .why = run->why,
					 .stats = run->stats ? getenv("FLUE_STATS") : NULL };
	int status = guard_run(&attr);

	if (status >= 0)
		return status;
	util_error("cannot run %s: %s", path, strerror(errno));
	return STATUS_US;
}

int cmd_run(int argc, char **argv)
{
	struct run run = { 0 };
	char library[PATH_MAX];
	struct target target;
	int rc;

	argp_err_exit_status = STATUS_US;
	if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &run))
		return STATUS_US;
	rc = target_find(run.program[0], &target);
	if (rc) {
		util_error("cannot run %s: %s", run.program[0],
			   rc == -ENOENT ? "there is no such program" : strerror(-rc));
		return rc == -ENOENT ? STATUS_MISSING : STATUS_CANNOT;
	}
	/* Who did not ask may know that a program is static; but sudo is a common mistake. */
	if (target.bar == TARGET_PRIVILEGED || (run.why && target.bar != TARGET_GOOD))
		util_error("%s %s", target.reason, target_explain(target.bar));
	if (!find_library(library) || !set_environment(&run, library))
		return STATUS_US;
	if (run.stats && !check_stats(getenv("FLUE_STATS")))
		return STATUS_US;
	check_settings(run.program[0]);
	if (run.why || run.stats)
		return stay(&run, target.path);
	execvp(target.path, run.program); /* which also knows scripts without "#!" */
	util_error("cannot run %s: %s", target.path, strerror(errno));
	return errno == ENOENT ? STATUS_MISSING : STATUS_CANNOT;
}
