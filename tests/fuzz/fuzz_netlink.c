/* SPDX-License-Identifier: MIT */
/*
 * Netlink datagrams through the parser and the table of interfaces: what a kernel of any age, or
 * none at all, could say (CH-17).
 *
 * Input: pieces of one octet that says what (enum piece), two of length and then a datagram.
 *
 * Invariants: the parser stays inside the datagram, gets on, and gives the same records in one go
 * and message by message; records are whole; notices keep the order that <flue/interfaces.h>
 * promises, and an empty dump ends every interface that was told.
 */
#include "fuzz.h"

#include <errno.h>
#include <sys/socket.h>

#include "access/interfaces_priv.h"

enum piece { NOTICE = 0, DUMPED, BEGIN, END, NPIECES };

#define MAX_KNOWN 512

struct known {
	uint32_t index;
	bool there, works, ever;
};

static struct known known[MAX_KNOWN];
static size_t n_known;
static struct if_table table;
static bool failed;

static struct known *find(uint32_t index)
{
	for (size_t i = 0; i < n_known; i++)
		if (known[i].index == index)
			return &known[i];
	if (n_known == MAX_KNOWN)
		return NULL;
	known[n_known] = (struct known) { .index = index };
	return &known[n_known++];
}

static void check_notice(uint32_t notice, const struct flue_interface *iface)
{
	struct known *k = find(iface->index);
	bool works = iface->up && iface->running;
	bool first = notice == FLUE_INTERFACE_EXISTING || notice == FLUE_INTERFACE_NEW;

	CHECK(notice >= FLUE_INTERFACE_EXISTING && notice < FLUE_INTERFACE_NNOTICES);
	CHECK(iface->size == sizeof(*iface) && iface->name[0]);
	CHECK(memchr(iface->name, 0, sizeof(iface->name)));
	touch((const uint8_t *)iface->addresses, iface->n_addresses * sizeof(*iface->addresses));
	for (uint32_t i = 1; i < iface->n_addresses; i++)
		CHECK(memcmp(&iface->addresses[i - 1], &iface->addresses[i],
			     sizeof(*iface->addresses)) < 0);
	if (!k)
		return;
	CHECK(first != k->there);
	CHECK(notice != FLUE_INTERFACE_EXISTING || !k->ever);
	CHECK(notice != FLUE_INTERFACE_UP || (works && !k->works));
	CHECK(notice != FLUE_INTERFACE_GOING_DOWN || (!works && k->works));
	CHECK(notice != FLUE_INTERFACE_GONE || !k->works);
	CHECK(notice != FLUE_INTERFACE_CHANGED || works == k->works);
	k->works = works;
	k->there = notice != FLUE_INTERFACE_GONE;
	k->ever = true;
}

static void tell_all(void)
{
	const struct flue_interface *iface;
	uint32_t notice;
	int rc = 0;

	while (!table.dumping && (rc = if_table_next(&table, &notice, &iface)) > 0)
		check_notice(notice, iface);
	failed |= rc < 0;
}

static void check_record(const struct if_record *r)
{
	bool link = r->kind == IF_LINK || r->kind == IF_LINK_GONE;
	bool address = r->kind == IF_ADDRESS || r->kind == IF_ADDRESS_GONE;

	CHECK(r->kind <= IF_OVERRUN && r->error <= 0 && r->error >= -4095);
	CHECK(!(link || address) || r->index);
	CHECK(memchr(r->name, 0, sizeof(r->name)) && (!r->has_name || r->name[0]));
	if (address)
		CHECK(r->key.family == AF_INET || r->key.family == AF_INET6);
	if (address && r->key.family == AF_INET)
		for (int i = 4; i < 16; i++)
			CHECK(!r->key.local[i] && !r->key.peer[i]);
}

static int count(const struct if_record *r, void *arg)
{
	check_record(r);
	++*(unsigned *)arg;
	return 0;
}

struct one {
	unsigned n;
	bool live;
};

static int apply_one(const struct if_record *r, void *arg)
{
	struct one *one = arg;

	one->n++;
	failed |= if_table_apply(&table, r, one->live) < 0;
	return 1;
}

static void datagram(const uint8_t *data, size_t len, bool live)
{
	uint8_t *copy = exact_copy(data, len);
	struct one one = { 0, live };
	unsigned n = 0;
	ssize_t whole = interfaces_parse(copy, len, count, &n), got = 0;

	CHECK(whole == (ssize_t)len || whole == -EBADMSG);
	for (size_t at = 0; at < len; at += (size_t)got) {
		unsigned before = one.n;

		got = interfaces_parse(copy + at, len - at, apply_one, &one);
		CHECK(got == -EBADMSG ? one.n == before : got > 0 && one.n == before + 1);
		if (got < 0)
			break;
		CHECK((size_t)got <= len - at);
		tell_all();
	}
	CHECK(one.n == n && (got < 0) == (whole < 0));
	free(copy);
}

/* Everything that was told ends. */
static void finish(void)
{
	if_table_begin(&table);
	if_table_end(&table);
	tell_all();
	CHECK(failed || (TAILQ_EMPTY(&table.all) && TAILQ_EMPTY(&table.dirty)));
	for (size_t i = 0; !failed && i < n_known; i++)
		CHECK(!known[i].there);
	if_table_fini(&table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };

	n_known = 0;
	failed = false;
	if_table_init(&table);
	if_table_begin(&table);
	while (in.left) {
		enum piece piece = (enum piece)(take(&in, 1) % NPIECES);
		size_t len = (size_t)take(&in, 2);

		len = len < in.left ? len : in.left;
		if (piece == BEGIN)
			if_table_begin(&table);
		else if (piece == END && table.dumping)
			if_table_end(&table);
		/* Records of a dump come only while there is one. */
		datagram(in.data, len, piece != DUMPED || !table.dumping);
		tell_all();
		in.data += len;
		in.left -= len;
	}
	finish();
	return 0;
}
