/* SPDX-License-Identifier: MIT */
/* flue adapters: what is there to work with. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include <flue/flue.h>

#include "cmd.h"
#include "util.h"

static const struct {
	uint32_t bit;
	const char *name, *meaning;
} features[] = {
	{ FLUE_FEATURE_SRQ, "srq", "shared receive queues" },
	{ FLUE_FEATURE_ZERO_BASED, "zero-based", "regions addressed from 0" },
	{ FLUE_FEATURE_FAST_REG, "fast-register", "registration by a request on the queue" },
	{ FLUE_FEATURE_WINDOWS, "windows", "memory windows" },
	{ FLUE_FEATURE_REMOTE_INVALIDATE, "remote-invalidate", "the peer may revoke a key" },
	{ FLUE_FEATURE_CQ_RESIZE, "cq-resize", "completion queues change their size" },
	{ FLUE_FEATURE_MARKERS, "markers", "MPA markers" },
	{ FLUE_FEATURE_ADOPT_STREAM, "adopt-stream", "takes over live TCP connections" },
	{ FLUE_FEATURE_GANG, "gang", "takes over many of them in one call" },
};

#define N_FEATURES (sizeof(features) / sizeof(features[0]))

#define LIMIT(member, what)                                                                  \
	{                                                                                    \
		offsetof(struct flue_caps, member), sizeof(((struct flue_caps *)0)->member), \
			#member, what                                                        \
	}

static const struct {
	size_t offset, size;
	const char *name, *what;
} limits[] = {
	LIMIT(max_pd, "protection domains"),
	LIMIT(max_qp, "queue pairs"),
	LIMIT(max_cq, "completion queues"),
	LIMIT(max_srq, "shared receive queues"),
	LIMIT(max_mr, "memory regions"),
	LIMIT(max_mw, "memory windows"),
	LIMIT(max_sq_depth, "send queue depth"),
	LIMIT(max_rq_depth, "receive queue depth"),
	LIMIT(max_srq_depth, "shared receive queue depth"),
	LIMIT(max_cq_depth, "completion queue depth"),
	LIMIT(max_sge, "pieces of memory per request"),
	LIMIT(max_read_sge, "pieces of memory per read"),
	LIMIT(max_inline, "inline bytes"),
	LIMIT(max_ird, "inbound reads at once"),
	LIMIT(max_ord, "outbound reads at once"),
	LIMIT(max_mr_length, "bytes in a region"),
	LIMIT(max_message, "bytes in a message"),
	LIMIT(max_private_data, "bytes of private data"),
};

#define N_LIMITS (sizeof(limits) / sizeof(limits[0]))

static uint64_t limit_value(const struct flue_caps *caps, size_t i)
{
	const char *at = (const char *)caps + limits[i].offset;
	uint32_t small;
	uint64_t big;

	if (limits[i].size == sizeof(small)) {
		memcpy(&small, at, sizeof(small));
		return small;
	}
	memcpy(&big, at, sizeof(big));
	return big;
}

static void print_cpus(const struct flue_adapter *adapter)
{
	printf("  %-40s", "processors");
	for (uint32_t i = 0; i < adapter->n_cpus; i++) {
		uint32_t last = i;

		while (last + 1 < adapter->n_cpus &&
		       adapter->cpus[last + 1] == adapter->cpus[last] + 1)
			last++;
		printf("%s%d", i ? "," : "", adapter->cpus[i]);
		if (last > i)
			printf("-%d", adapter->cpus[last]);
		i = last;
	}
	putchar('\n');
}

static void print_text(const struct flue_provider_info *info, const struct flue_adapter *adapter)
{
	const struct flue_caps *caps = adapter ? adapter->caps : &info->caps;
	char text[UTIL_TEXT_MAX];

	printf("%s: %s\n", info->name, info->description);
	if (adapter) {
		printf("  %-40s%s\n", "adapter", caps->adapter);
		print_cpus(adapter);
	} else {
		printf("  %-40s%s\n", "adapter", "cannot be opened");
	}
	printf("  at most\n");
	for (size_t i = 0; i < N_LIMITS; i++)
		printf("    %-38s%s\n", limits[i].what,
		       util_count_text(text, limit_value(caps, i)));
	printf("  features\n");
	for (size_t i = 0; i < N_FEATURES; i++)
		printf("    %-38s%s\n", features[i].meaning,
		       caps->features & features[i].bit ? "yes" : "no");
}

static json_t *to_json(const struct flue_provider_info *info, const struct flue_adapter *adapter)
{
	const struct flue_caps *caps = adapter ? adapter->caps : &info->caps;
	json_t *limit = json_object(), *feature = json_array(), *cpus = json_array();

	for (size_t i = 0; i < N_LIMITS; i++) {
		/* JSON readers keep 53 bits; a larger limit means "as you like". */
		json_object_set_new(limit, limits[i].name,
				    json_integer((json_int_t)(limit_value(caps, i) & INT64_MAX)));
	}
	for (size_t i = 0; i < N_FEATURES; i++) {
		if (caps->features & features[i].bit)
			json_array_append_new(feature, json_string(features[i].name));
	}
	for (uint32_t i = 0; adapter && i < adapter->n_cpus; i++)
		json_array_append_new(cpus, json_integer(adapter->cpus[i]));
	return json_pack("{s:s, s:s, s:s, s:s, s:b, s:s, s:o, s:o, s:o}", "schema",
			 "flue.adapters/1", "version", FLUE_VERSION, "provider", info->name,
			 "description", info->description, "opens", adapter != NULL, "adapter",
			 caps->adapter, "processors", cpus, "limits", limit, "features", feature);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	if (key != 'j')
		return ARGP_ERR_UNKNOWN;
	*(bool *)state->input = true;
	return 0;
}

static const struct argp_option options[] = {
	{ .name = "json", .key = 'j', .doc = "Print JSON" },
	{ 0 },
};

static const struct argp argp = {
	.options = options,
	.parser = parse,
	.doc = "List the providers of RDMA on this machine, what they can do, and the processors that "
	       "take part.\v"
	       "Examples:\n"
	       "  flue adapters\n"
	       "  flue adapters --json | jq '.[0].limits.max_qp'\n",
};

int cmd_adapters(int argc, char **argv)
{
	struct flue_provider_info info = { .size = sizeof(info) };
	json_t *list = json_array();
	bool json = false, opened = false;

	if (argp_parse(&argp, argc, argv, 0, NULL, &json))
		return 2;
	for (uint32_t i = 0; flue_provider_info(i, &info); i++) {
		struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);
		struct flue_adapter *adapter;

		attr.provider = info.name;
		adapter = flue_open(&attr);
		if (!adapter)
			util_error("provider %s cannot open an adapter: %s", info.name,
				   strerror(errno));
		if (json)
			json_array_append_new(list, to_json(&info, adapter));
		else
			print_text(&info, adapter);
		if (adapter)
			opened = flue_close(adapter);
	}
	if (json) {
		json_dumpf(list, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(list);
	return opened ? 0 : 1;
}
