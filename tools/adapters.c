/* SPDX-License-Identifier: MIT */
/* flue adapters: what is there to work with. */
#include <argp.h>
#include <errno.h>
#include <jansson.h>
#include <netdb.h>
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
	{ FLUE_FEATURE_WINDOWS, "windows", "memory windows, of type 2B" },
	{ FLUE_FEATURE_WINDOWS_1, "windows-1", "... of type 1" },
	{ FLUE_FEATURE_WINDOWS_2A, "windows-2a", "... of type 2A" },
	{ FLUE_FEATURE_KEEP_KEYS, "keep-keys",
	  "regions are changed under the keys that they have" },
	{ FLUE_FEATURE_REMOTE_INVALIDATE, "remote-invalidate", "the peer may revoke a key" },
	{ FLUE_FEATURE_CQ_RESIZE, "cq-resize", "completion queues change their size" },
	{ FLUE_FEATURE_SRQ_RESIZE, "srq-resize", "shared receive queues do" },
	{ FLUE_FEATURE_MARKERS, "markers", "MPA markers" },
	{ FLUE_FEATURE_ADOPT_STREAM, "adopt-stream", "takes over live TCP connections" },
	{ FLUE_FEATURE_GANG, "gang", "takes over many of them in one call" },
	{ FLUE_FEATURE_IOVA, "iova", "regions addressed from any number" },
	{ FLUE_FEATURE_ATOMICS, "atomics", "remote atomic operations" },
	{ FLUE_FEATURE_IMM, "immediate", "immediate data" },
	{ FLUE_FEATURE_UC, "uc", "unreliable connections" },
	{ FLUE_FEATURE_UD, "ud", "datagrams" },
	{ FLUE_FEATURE_MODIFY, "modify", "queue pairs brought up without a connection manager" },
	{ FLUE_FEATURE_POST_EARLY, "post-early",
	  "requests are taken before the connection is there" },
	{ FLUE_FEATURE_FULL, "full-service", "what RoCE programs rely on, between two Flue ends" },
	{ FLUE_FEATURE_LOCAL, "local",
	  "... and datagrams, through memory where both are on one host" },
};

#define MAX_ADDRESSES 64

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
	LIMIT(max_read_sge_full, "pieces of memory per read, full service"),
	LIMIT(max_inline, "inline bytes"),
	LIMIT(max_ird, "inbound reads at once"),
	LIMIT(max_ord, "outbound reads at once"),
	LIMIT(max_mr_length, "bytes in a region"),
	LIMIT(max_message, "bytes in a message"),
	LIMIT(max_private_data, "bytes of private data from a peer"),
	LIMIT(max_private_request, "bytes of private data to send"),
	LIMIT(max_private_reply, "bytes of private data to answer"),
	LIMIT(max_private_reject, "bytes of private data to reject with"),
	LIMIT(max_private_rev1, "bytes of each with MPA revision 1"),
	LIMIT(max_private_full, "bytes of each in full service"),
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

/* How wide the labels are, with the space behind the longest. */
static int column(void)
{
	size_t most = 0;

	for (size_t i = 0; i < N_LIMITS; i++)
		most = strlen(limits[i].what) > most ? strlen(limits[i].what) : most;
	for (size_t i = 0; i < N_FEATURES; i++)
		most = strlen(features[i].meaning) > most ? strlen(features[i].meaning) : most;
	return (int)most + 2;
}

static void print_cpus(const struct flue_adapter *adapter)
{
	printf("  %-*s", column() + 2, "processors");
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

/* An adapter, as it is listed and, if it can be, opened. */
struct listed {
	struct flue_adapter_info info;
	struct flue_caps caps;
	const char *description; /* of its provider */
	struct flue_adapter *open;
	struct sockaddr_storage addresses[MAX_ADDRESSES];
};

static uint32_t n_addresses(const struct listed *l)
{
	return l->info.n_addresses < MAX_ADDRESSES ? l->info.n_addresses : MAX_ADDRESSES;
}

/* Without the port, which is 0. */
static const char *address_text(char *text, size_t size, const struct sockaddr_storage *at)
{
	if (getnameinfo((const struct sockaddr *)at, sizeof(*at), text, (socklen_t)size, NULL, 0,
			NI_NUMERICHOST))
		snprintf(text, size, "?");
	return text;
}

static void print_addresses(const struct listed *l)
{
	char text[NI_MAXHOST];

	for (uint32_t i = 0; i < n_addresses(l); i++)
		printf("  %-*s%s\n", column() + 2, i ? "" : "addresses",
		       address_text(text, sizeof(text), &l->addresses[i]));
}

static void print_text(const struct listed *l)
{
	const struct flue_caps *caps = &l->caps;
	char text[UTIL_TEXT_MAX];

	printf("%s: %s\n", l->info.provider, l->description);
	printf("  %-*s%s%s\n", column() + 2, "adapter", l->info.name,
	       l->open ? "" : ", cannot be opened");
	if (l->info.interface[0])
		printf("  %-*s%s\n", column() + 2, "interface", l->info.interface);
	print_addresses(l);
	if (l->open)
		print_cpus(l->open);
	printf("  at most\n");
	for (size_t i = 0; i < N_LIMITS; i++)
		printf("    %-*s%s\n", column(), limits[i].what,
		       util_count_text(text, limit_value(caps, i)));
	printf("  features\n");
	for (size_t i = 0; i < N_FEATURES; i++)
		printf("    %-*s%s\n", column(), features[i].meaning,
		       caps->features & features[i].bit ? "yes" : "no");
}

static json_t *to_json(const struct listed *l)
{
	const struct flue_caps *caps = &l->caps;
	json_t *limit = json_object(), *feature = json_array(), *cpus = json_array();
	json_t *addresses = json_array();
	char text[NI_MAXHOST];

	for (size_t i = 0; i < N_LIMITS; i++) {
		/* JSON readers keep 53 bits; a larger limit means "as you like". */
		json_object_set_new(limit, limits[i].name,
				    json_integer((json_int_t)(limit_value(caps, i) & INT64_MAX)));
	}
	for (size_t i = 0; i < N_FEATURES; i++) {
		if (caps->features & features[i].bit)
			json_array_append_new(feature, json_string(features[i].name));
	}
	for (uint32_t i = 0; l->open && i < l->open->n_cpus; i++)
		json_array_append_new(cpus, json_integer(l->open->cpus[i]));
	for (uint32_t i = 0; i < n_addresses(l); i++)
		json_array_append_new(
			addresses, json_string(address_text(text, sizeof(text), &l->addresses[i])));
	return json_pack("{s:s, s:s, s:s, s:s, s:b, s:s, s:s, s:o, s:o, s:o, s:o}", "schema",
			 "flue.adapters/1", "version", FLUE_VERSION, "provider", l->info.provider,
			 "description", l->description, "opens", l->open != NULL, "adapter",
			 l->info.name, "interface", l->info.interface, "addresses", addresses,
			 "processors", cpus, "limits", limit, "features", feature);
}

static const char *description_of(const char *provider)
{
	struct flue_provider_info info = FLUE_ATTR(struct flue_provider_info);

	for (uint32_t i = 0; flue_provider_info(i, &info); i++)
		if (!strcmp(info.name, provider))
			return info.description;
	return "";
}

/* Adapter `index`; false past the last. */
static bool look_at(uint32_t index, struct listed *l)
{
	struct flue_open_attr attr = FLUE_ATTR(struct flue_open_attr);

	l->info = FLUE_ATTR(struct flue_adapter_info);
	l->caps = FLUE_ATTR(struct flue_caps);
	l->info.addresses = l->addresses;
	l->info.max_addresses = MAX_ADDRESSES;
	if (!flue_adapter_info(index, &l->info, &l->caps))
		return false;
	l->description = description_of(l->info.provider);
	attr.provider = l->info.provider;
	attr.name = l->info.name;
	l->open = flue_open(&attr);
	if (!l->open)
		util_error("adapter %s of provider %s cannot be opened: %s", attr.name,
			   attr.provider, strerror(errno));
	return true;
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
	.doc = "List the adapters for RDMA on this machine, what they can do, and the processors that "
	       "take part.\v"
	       "Examples:\n"
	       "  flue adapters\n"
	       "  flue adapters --json | jq '.[0].limits.max_qp'\n",
};

int cmd_adapters(int argc, char **argv)
{
	static struct listed l; /* large */
	json_t *list = json_array();
	bool json = false, failed = false;
	uint32_t n = 0;

	if (argp_parse(&argp, argc, argv, 0, NULL, &json))
		return 2;
	for (; look_at(n, &l); n++) {
		if (json)
			json_array_append_new(list, to_json(&l));
		else
			print_text(&l);
		if (!l.open || !flue_close(l.open))
			failed = true;
	}
	if (json) {
		json_dumpf(list, stdout, JSON_INDENT(2));
		putchar('\n');
	}
	json_decref(list);
	return failed || !n ? 1 : 0;
}
