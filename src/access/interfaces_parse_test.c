/* SPDX-License-Identifier: MIT */
/* Netlink messages made by hand, most of them badly (CH-17). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "access/interfaces_fake_priv.h"
#include "access/interfaces_priv.h"

static const struct fake_link eth = { .index = 7,
				      .name = "eth0",
				      .flags = IFF_UP | IFF_RUNNING,
				      .mtu = 1500,
				      .type = ARPHRD_ETHER };
static const struct fake_address v4 = { 7, "192.0.2.1", 24, 0 };
static const struct fake_address v6 = { 7, "2001:db8::1", 64, 0 };

static struct message m;
static struct if_record records[8];
static unsigned n_records, stop_after;

static int note(const struct if_record *r, void *arg)
{
	assert_ptr_equal(arg, &m);
	assert_true(n_records < 8);
	records[n_records++] = *r;
	return n_records == stop_after;
}

/* From an exact-size copy, so that a sanitizer sees the first octet too far. */
static ssize_t parse(const void *data, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);
	ssize_t n;

	assert_non_null(copy);
	memcpy(copy, data, len);
	n_records = 0;
	n = interfaces_parse(copy, len, note, &m);
	free(copy);
	return n;
}

static int clear(void **state)
{
	m.len = 0;
	stop_after = 0;
	return 0;
}

static void parser_reads_whole_messages(void **state)
{
	msg_link(&m, RTM_NEWLINK, &eth, NLM_F_MULTI | NLM_F_DUMP_INTR, 5, 6);
	msg_address(&m, RTM_DELADDR, &v4, 0, 0, 0);
	msg_address(&m, RTM_NEWADDR, &v6, 0, 0, 0);
	msg_done(&m, 0, 5, 6);
	assert_int_equal(parse(m.data, m.len), m.len);
	assert_int_equal(n_records, 4);
	assert_int_equal(records[0].kind, IF_LINK);
	assert_int_equal(records[0].index, 7);
	assert_int_equal(records[0].seq, 5);
	assert_int_equal(records[0].port, 6);
	assert_true(records[0].interrupted && records[0].up && records[0].running);
	assert_true(records[0].has_name && records[0].has_mtu && records[0].carries_ip);
	assert_int_equal(records[0].mtu, 1500);
	assert_string_equal(records[0].name, "eth0");
	assert_int_equal(records[1].kind, IF_ADDRESS_GONE);
	assert_int_equal(records[1].key.family, AF_INET);
	assert_int_equal(records[1].key.prefix, 24);
	assert_memory_equal(records[1].key.local, "\xc0\x00\x02\x01", 4);
	assert_int_equal(records[2].kind, IF_ADDRESS);
	assert_int_equal(records[2].key.family, AF_INET6);
	assert_true(records[2].usable);
	assert_int_equal(records[3].kind, IF_DONE);
	assert_false(records[3].interrupted);
}

static void parser_stops_where_it_is_told_and_goes_on_from_there(void **state)
{
	ssize_t n;

	msg_link(&m, RTM_NEWLINK, &eth, 0, 0, 0);
	n = (ssize_t)m.len;
	msg_link(&m, RTM_DELLINK, &eth, 0, 0, 0);
	stop_after = 1;
	assert_int_equal(parse(m.data, m.len), n);
	assert_int_equal(parse(m.data + n, m.len - (size_t)n), n);
	assert_int_equal(records[0].kind, IF_LINK_GONE);
}

/* Cut anywhere: never a record of the message that was cut. */
static void parser_refuses_messages_that_are_cut(void **state)
{
	size_t first;

	msg_link(&m, RTM_NEWLINK, &eth, 0, 0, 0);
	first = m.len;
	msg_address(&m, RTM_NEWADDR, &v6, 0, 0, 0);
	for (size_t len = 0; len < m.len; len++) {
		ssize_t n = parse(m.data, len);

		assert_int_equal(n, len == 0 || len == first ? (ssize_t)len : -EBADMSG);
		assert_int_equal(n_records, len >= first);
	}
}

static void parser_refuses_lengths_of_messages_that_do_not_fit(void **state)
{
	static const uint32_t bad[] = { 0, 1, 15, 0x7fffffff, 0x80000000, 0xfffffffd, 0xffffffff };

	msg_link(&m, RTM_NEWLINK, &eth, 0, 0, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		memcpy(m.data, &bad[i], sizeof(bad[i]));
		assert_int_equal(parse(m.data, m.len), -EBADMSG);
		assert_int_equal(n_records, 0);
	}
	/* Shorter than what its kind begins with. */
	for (uint32_t len = 16; len < 32; len++) {
		memcpy(m.data, &len, sizeof(len));
		assert_int_equal(parse(m.data, m.len), -EBADMSG);
	}
}

static void parser_refuses_lengths_of_attributes_that_do_not_fit(void **state)
{
	for (uint32_t len = 0; len < 0x10000; len++) {
		uint16_t bad = (uint16_t)len;

		m.len = 0;
		msg_address(&m, RTM_NEWADDR, &v4, 0, 0, 0);
		memcpy(m.data + 24, &bad, sizeof(bad));
		if (len != 8) /* the true one */
			assert_int_equal(parse(m.data, m.len), -EBADMSG);
		if (len == 64)
			len = 0xfff0;
	}
}

/* One attribute of a message that is otherwise good. */
static ssize_t parse_with(uint16_t message, uint16_t type, const void *value, size_t len)
{
	struct ifinfomsg link = { .ifi_index = 7 };
	struct ifaddrmsg address = { .ifa_family = AF_INET6, .ifa_index = 7 };

	m.len = 0;
	msg_begin(&m, message, 0, 0, 0);
	if (message == RTM_NEWLINK)
		msg_put(&m, &link, sizeof(link));
	else
		msg_put(&m, &address, sizeof(address));
	msg_attr(&m, type, value, len);
	msg_end(&m);
	return parse(m.data, m.len);
}

static void parser_refuses_values_of_the_wrong_size(void **state)
{
	static const uint8_t octets[32];

	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_MTU, octets, 3), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_MTU, octets, 8), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_IFNAME, octets, 0), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_IFNAME, "", 1), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_IFNAME, "eth0", 4), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWLINK, IFLA_IFNAME, "0123456789abcdef", 17), -EBADMSG);
	assert_true(parse_with(RTM_NEWLINK, IFLA_IFNAME, "0123456789abcde", 16) > 0);
	assert_string_equal(records[0].name, "0123456789abcde");
	assert_int_equal(parse_with(RTM_NEWADDR, IFA_ADDRESS, octets, 4), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWADDR, IFA_LOCAL, octets, 17), -EBADMSG);
	assert_int_equal(parse_with(RTM_NEWADDR, IFA_FLAGS, octets, 2), -EBADMSG);
	/* None at all. */
	assert_int_equal(parse_with(RTM_NEWADDR, IFA_LABEL, octets, 4), -EBADMSG);
	assert_true(parse_with(RTM_NEWADDR, IFA_LOCAL, octets, 16) > 0);
}

/* The message itself says that it ends before its last attribute does. */
static void parser_reads_no_attribute_behind_the_end_of_its_message(void **state)
{
	static const uint8_t octets[4];

	for (uint32_t less = 1; less <= 4; less++) {
		uint32_t len;

		parse_with(RTM_NEWLINK, IFLA_MTU, octets, 4);
		len = (uint32_t)m.len - less;
		memcpy(m.data, &len, sizeof(len));
		assert_int_equal(parse(m.data, m.len), -EBADMSG);
		assert_int_equal(n_records, 0);
	}
}

static void parser_passes_over_what_is_not_for_us(void **state)
{
	struct fake_link port = eth, none = eth;
	uint8_t family = AF_BRIDGE;

	port.family = AF_BRIDGE;
	none.index = 0;
	msg_link(&m, RTM_DELLINK, &port, 0, 0, 0);
	msg_link(&m, RTM_NEWLINK, &none, 0, 0, 0);
	msg_begin(&m, NLMSG_NOOP, 0, 0, 0);
	msg_end(&m);
	msg_begin(&m, RTM_NEWROUTE, 0, 0, 0);
	msg_put(&m, "12345", 5);
	msg_end(&m);
	msg_address(&m, RTM_NEWADDR, &v4, 0, 0, 0);
	memcpy(m.data + m.begun + sizeof(struct nlmsghdr), &family, 1);
	assert_int_equal(parse(m.data, m.len), m.len);
	assert_int_equal(n_records, 5);
	for (unsigned i = 0; i < n_records; i++)
		assert_int_equal(records[i].kind, IF_OTHER);
}

static void parser_reads_errors_and_only_errors(void **state)
{
	static const int32_t codes[] = { -EBUSY, 0, 1, -5000, INT32_MIN };

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
		m.len = 0;
		msg_begin(&m, NLMSG_ERROR, 0, 1, 2);
		msg_put(&m, &codes[i], sizeof(codes[i]));
		msg_end(&m);
		assert_int_equal(parse(m.data, m.len), m.len);
		assert_int_equal(records[0].kind, IF_ERROR);
		assert_int_equal(records[0].error, i ? 0 : -EBUSY);
	}
	m.len = 0;
	msg_begin(&m, NLMSG_ERROR, 0, 1, 2);
	msg_end(&m);
	assert_int_equal(parse(m.data, m.len), -EBADMSG);
	/* Old kernels end a dump without. */
	m.len = 0;
	msg_begin(&m, NLMSG_DONE, 0, 1, 2);
	msg_end(&m);
	msg_begin(&m, NLMSG_OVERRUN, 0, 0, 0);
	msg_end(&m);
	assert_int_equal(parse(m.data, m.len), m.len);
	assert_int_equal(records[0].kind, IF_DONE);
	assert_int_equal(records[1].kind, IF_OVERRUN);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(parser_reads_whole_messages, clear),
		cmocka_unit_test_setup(parser_stops_where_it_is_told_and_goes_on_from_there, clear),
		cmocka_unit_test_setup(parser_refuses_messages_that_are_cut, clear),
		cmocka_unit_test_setup(parser_refuses_lengths_of_messages_that_do_not_fit, clear),
		cmocka_unit_test_setup(parser_refuses_lengths_of_attributes_that_do_not_fit, clear),
		cmocka_unit_test_setup(parser_refuses_values_of_the_wrong_size, clear),
		cmocka_unit_test_setup(parser_reads_no_attribute_behind_the_end_of_its_message,
				       clear),
		cmocka_unit_test_setup(parser_passes_over_what_is_not_for_us, clear),
		cmocka_unit_test_setup(parser_reads_errors_and_only_errors, clear),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
