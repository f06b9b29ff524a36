/* SPDX-License-Identifier: MIT */
/* How a process begins: what its environment says, and who carries connections. */
#include "sockets/preload/start.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/self.h"
#include "base/util.h"
#include "channel/arena.h"
#include "channel/ladder.h"
#include "channel/times.h"
#include "sockets/attach/ops_lane.h"
#include "sockets/preload/report.h"
#include "sockets/preload/fork.h"
#include "sockets/record/process.h"
#include "sockets/record/settings.h"
#include "sockets/record/sock.h"
#include "sockets/record/tell.h"

static void set_profile(const char *name)
{
	static const struct {
		const char *name;
		struct ladder_profile profile;
	} profiles[] = {
#define PROFILE(name, ...) { name, { __VA_ARGS__ } },
		TIMES_PROFILES(PROFILE)
#undef PROFILE
	};

	ladder_profile = profiles[0].profile;
	for (size_t i = 0; name && i < ARRAY_SIZE(profiles); i++)
		if (strcmp(name, profiles[i].name) == 0)
			ladder_profile = profiles[i].profile;
}

static void find_name(void)
{
	memccpy(settings.name, program_invocation_short_name, 0, sizeof(settings.name) - 1);
}

static void load_rules(void)
{
	const char *told = getenv(POLICY_TOLD);
	struct policy_error error;

	settings.bad_rules = policy_load(&settings.policy, policy_path(), getenv("FLUE_RULE"),
					 &error) != 0;
	for (uint32_t i = 0; i < settings.policy.n_rules; i++)
		settings.user_rules |= !settings.policy.rules[i].any_user;
	if (settings.bad_rules && !(told && strcmp(told, error.text) == 0))
		report_line("flue: ", error.text, "; this program stays on TCP");
}

static void limit_lanes(void)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t lanes = memory / 4 / (2 * LANE_RING);

	arena_set_most((uint32_t)min_u64(lanes, 16384));
}

static void read_environment(void)
{
	const char *text = getenv("FLUE_SOCKETS");

	settings.off = text && strcmp(text, "off") == 0;
	set_profile(getenv("FLUE_PROFILE"));
	settings.why = getenv("FLUE_WHY") != NULL;
	tell_init(getenv(TELL_VARIABLE));
	text = getenv("FLUE_STATS");
	if (text && strlen(text) < sizeof(settings.stats))
		strcpy(settings.stats, text);
	else if (text)
		report_line("flue: ", "FLUE_STATS", " is longer than 255 octets and ignored");
}

bool start_process(void)
{
	sock_start();
	read_environment();
	if (settings.off)
		return false;
	find_name();
	policy_self(&settings.self);
	load_rules();
	limit_lanes();
	if (!self_begin() || pthread_atfork(fork_prepare, fork_parent, process_fork_child) != 0)
		return false;
	ops_lane_start();
	return true;
}
