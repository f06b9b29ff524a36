/* SPDX-License-Identifier: MIT */
#include "proto.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

#define MAGIC       0x464c5545u /* "FLUE" */
#define HEADER_SIZE 8

struct out {
	uint8_t *at;
};

/* A reader never passes its end: what is missing reads as zero and `good` becomes false. */
struct in {
	const uint8_t *at, *end;
	bool good;
};

static void put(struct out *out, uint64_t value, size_t octets)
{
	uint64_t be = htobe64(value);

	memcpy(out->at, (const uint8_t *)&be + 8 - octets, octets);
	out->at += octets;
}

static uint64_t take(struct in *in, size_t octets)
{
	uint64_t be = 0;

	if ((size_t)(in->end - in->at) < octets) {
		in->good = false;
		return 0;
	}
	memcpy((uint8_t *)&be + 8 - octets, in->at, octets);
	in->at += octets;
	return be64toh(be);
}

static void put_memory(struct out *out, const struct proto_memory *memory)
{
	put(out, memory->addr, 8);
	put(out, memory->length, 8);
	put(out, memory->rkey, 4);
}

static void take_memory(struct in *in, struct proto_memory *memory)
{
	memory->addr = take(in, 8);
	memory->length = take(in, 8);
	memory->rkey = (uint32_t)take(in, 4);
	if (memory->length > UINT64_MAX - memory->addr)
		in->good = false;
}

static void put_text(struct out *out, const char *text)
{
	size_t length = strnlen(text, PROTO_TEXT_MAX);

	memcpy(out->at, text, length);
	out->at += length;
}

/* The text goes to a terminal, so nothing but printable ASCII passes. */
static void take_text(struct in *in, char text[PROTO_TEXT_MAX + 1])
{
	size_t length = (size_t)(in->end - in->at);

	if (length > PROTO_TEXT_MAX) {
		in->good = false;
		return;
	}
	for (size_t i = 0; i < length; i++)
		text[i] = in->at[i] >= ' ' && in->at[i] <= '~' ? (char)in->at[i] : '?';
	text[length] = '\0';
	in->at = in->end;
}

size_t proto_encode(const struct proto_msg *msg, uint8_t octets[PROTO_MAX])
{
	struct out out = { octets };

	put(&out, MAGIC, 4);
	put(&out, PROTO_VERSION, 2);
	put(&out, msg->kind, 2);
	switch (msg->kind) {
	case PROTO_HELLO:
		put(&out, msg->u.hello.flags, 4);
		put(&out, msg->u.hello.slots, 4);
		put(&out, msg->u.hello.slot_size, 8);
		put(&out, msg->u.hello.send_size, 8);
		break;
	case PROTO_WELCOME: put_memory(&out, &msg->u.welcome); break;
	case PROTO_REFUSAL: put_text(&out, msg->u.refusal); break;
	case PROTO_TEST:
		put(&out, msg->u.test.op, 1);
		put(&out, msg->u.test.what, 1);
		put(&out, msg->u.test.verify, 2);
		put(&out, msg->u.test.window, 4);
		put(&out, msg->u.test.slots, 4);
		put(&out, msg->u.test.size, 8);
		put_memory(&out, &msg->u.test.back);
		break;
	case PROTO_CHECK:
		put(&out, msg->u.check.first, 8);
		put(&out, msg->u.check.count, 4);
		break;
	case PROTO_REPORT:
		put(&out, msg->u.report.messages, 8);
		put(&out, msg->u.report.bytes, 8);
		put(&out, msg->u.report.bad, 8);
		break;
	case PROTO_CREDIT: put(&out, msg->u.credit, 8); break;
	default: break; /* READY has no body */
	}
	return (size_t)(out.at - octets);
}

static bool between(uint64_t value, uint64_t min, uint64_t max)
{
	return value >= min && value <= max;
}

static bool take_hello(struct in *in, struct proto_msg *msg)
{
	msg->u.hello.flags = (uint32_t)take(in, 4);
	msg->u.hello.slots = (uint32_t)take(in, 4);
	msg->u.hello.slot_size = take(in, 8);
	msg->u.hello.send_size = take(in, 8);
	return (msg->u.hello.flags & ~PROTO_HELLO_FLAGS) == 0 &&
	       between(msg->u.hello.slots, 1, PROTO_SLOTS_MAX) &&
	       between(msg->u.hello.slot_size, 1, PROTO_SLOT_MAX) &&
	       msg->u.hello.send_size <= PROTO_SLOT_MAX;
}

static bool take_test(struct in *in, struct proto_msg *msg)
{
	uint64_t verify;

	msg->u.test.op = (uint32_t)take(in, 1);
	msg->u.test.what = (uint32_t)take(in, 1);
	verify = take(in, 2);
	msg->u.test.verify = verify != 0;
	msg->u.test.window = (uint32_t)take(in, 4);
	msg->u.test.slots = (uint32_t)take(in, 4);
	msg->u.test.size = take(in, 8);
	take_memory(in, &msg->u.test.back);
	return msg->u.test.op < PROTO_NOPS && msg->u.test.what < PROTO_NWHATS && verify <= 1 &&
	       between(msg->u.test.window, 1, PROTO_SLOTS_MAX) &&
	       between(msg->u.test.slots, 1, PROTO_SLOTS_MAX) &&
	       between(msg->u.test.size, 1, PROTO_SLOT_MAX);
}

static bool take_body(struct in *in, struct proto_msg *msg)
{
	switch (msg->kind) {
	case PROTO_HELLO: return take_hello(in, msg);
	case PROTO_WELCOME: take_memory(in, &msg->u.welcome); return true;
	case PROTO_REFUSAL: take_text(in, msg->u.refusal); return true;
	case PROTO_TEST: return take_test(in, msg);
	case PROTO_READY: return true;
	case PROTO_CHECK:
		msg->u.check.first = take(in, 8);
		msg->u.check.count = (uint32_t)take(in, 4);
		return between(msg->u.check.count, 1, PROTO_SLOTS_MAX);
	case PROTO_REPORT:
		msg->u.report.messages = take(in, 8);
		msg->u.report.bytes = take(in, 8);
		msg->u.report.bad = take(in, 8);
		return true;
	case PROTO_CREDIT: msg->u.credit = take(in, 8); return true;
	default: return false;
	}
}

bool proto_decode(const void *data, size_t length, struct proto_msg *msg)
{
	struct in in = { data, (const uint8_t *)data + length, true };

	memset(msg, 0, sizeof(*msg));
	if (length < HEADER_SIZE || length > PROTO_MAX)
		return false;
	if (take(&in, 4) != MAGIC || take(&in, 2) != PROTO_VERSION)
		return false;
	msg->kind = (uint32_t)take(&in, 2);
	return take_body(&in, msg) && in.good && in.at == in.end;
}

const char *proto_op_name(uint32_t op)
{
	static const char *const names[PROTO_NOPS] = { "send", "write", "read" };

	return op < PROTO_NOPS ? names[op] : "?";
}

const char *proto_what_name(uint32_t what)
{
	static const char *const names[PROTO_NWHATS] = { "latency", "bandwidth" };

	return what < PROTO_NWHATS ? names[what] : "?";
}
