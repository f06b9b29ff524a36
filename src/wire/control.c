/* SPDX-License-Identifier: MIT */
#include "wire/control.h"

#include "base/bytes.h"

void control_encode(const struct control *c, uint8_t buf[CONTROL_LEN])
{
	buf[0] = c->kind;
	buf[1] = c->code;
	put_be16(buf + 2, c->detail);
	put_be32(buf + 4, c->number);
}

uint32_t control_decode(struct control *c, const uint8_t buf[CONTROL_LEN])
{
	static const struct {
		uint8_t least, most;
	} codes[CONTROL_NKINDS] = { [CONTROL_NOT_READY] = { 0, CONTROL_AGAIN },
				    [CONTROL_ERROR] = { CONTROL_ACCESS, CONTROL_OPERATION } };

	c->kind = buf[0];
	c->code = buf[1];
	c->detail = get_be16(buf + 2);
	c->number = get_be32(buf + 4);
	if (c->kind >= CONTROL_NKINDS || c->code < codes[c->kind].least ||
	    c->code > codes[c->kind].most)
		return FAULT_RDMAP_OTHER;
	return WIRE_OK;
}

enum control_error control_error_of(uint32_t fault)
{
	/* Protection errors are type 1 in RDMAP and in DDP; type 0 are the responder's own troubles. */
	switch (wire_fault_type(fault)) {
	case 0: return CONTROL_OPERATION;
	case 1: return CONTROL_ACCESS;
	default: return CONTROL_REQUEST;
	}
}

/* InfiniBand's table: steps of a half and a third by turns, and the first one out of place. */
uint32_t control_timer_us(uint8_t code)
{
	static const uint32_t us[CONTROL_TIMER_MAX + 1] = {
		655360, 10,    20,    30,    40,    60,     80,     120,    160,    240,    320,
		480,    640,   960,   1280,  1920,  2560,   3840,   5120,   7680,   10240,  15360,
		20480,  30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520,
	};

	return us[code <= CONTROL_TIMER_MAX ? code : 0];
}
