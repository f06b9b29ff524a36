/* SPDX-License-Identifier: MIT */
#include "wire/fault.h"

#include <stddef.h>

struct fault_text {
	uint32_t fault;
	const char *name;
};

/* RFC 5040 figure 9, RFC 5041 section 8, RFC 5044 section 8, RFC 6581 section 8. */
static const struct fault_text texts[] = {
	{ FAULT_RDMAP_STAG, "RDMAP: invalid STag" },
	{ FAULT_RDMAP_BOUNDS, "RDMAP: base or bounds violation" },
	{ FAULT_RDMAP_ACCESS, "RDMAP: access rights violation" },
	{ FAULT_RDMAP_STREAM, "RDMAP: STag not associated with this stream" },
	{ FAULT_RDMAP_WRAP, "RDMAP: tagged offset wraps" },
	{ FAULT_RDMAP_PROT_NO_INVALIDATE, "RDMAP: STag cannot be invalidated (protection)" },
	{ FAULT_RDMAP_PROT_OTHER, "RDMAP: unspecified protection error" },
	{ FAULT_RDMAP_VERSION, "RDMAP: invalid version" },
	{ FAULT_RDMAP_OPCODE, "RDMAP: unexpected opcode" },
	{ FAULT_RDMAP_STREAM_CATASTROPHIC, "RDMAP: catastrophic error of this stream" },
	{ FAULT_RDMAP_GLOBAL_CATASTROPHIC, "RDMAP: global catastrophic error" },
	{ FAULT_RDMAP_NO_INVALIDATE, "RDMAP: STag cannot be invalidated" },
	{ FAULT_RDMAP_OTHER, "RDMAP: unspecified operation error" },
	{ FAULT_DDP_CATASTROPHIC, "DDP: local catastrophic error" },
	{ FAULT_DDP_STAG, "DDP: invalid STag" },
	{ FAULT_DDP_BOUNDS, "DDP: base or bounds violation" },
	{ FAULT_DDP_STREAM, "DDP: STag not associated with this stream" },
	{ FAULT_DDP_WRAP, "DDP: tagged offset wraps" },
	{ FAULT_DDP_TAGGED_VERSION, "DDP: invalid version (tagged)" },
	{ FAULT_DDP_QN, "DDP: invalid queue number" },
	{ FAULT_DDP_NO_BUFFER, "DDP: no buffer for this message number" },
	{ FAULT_DDP_MSN, "DDP: message number out of range" },
	{ FAULT_DDP_MO, "DDP: invalid message offset" },
	{ FAULT_DDP_TOO_LONG, "DDP: message too long for its buffer" },
	{ FAULT_DDP_UNTAGGED_VERSION, "DDP: invalid version (untagged)" },
	{ FAULT_MPA_CLOSED, "MPA: TCP connection closed or lost" },
	{ FAULT_MPA_CRC, "MPA: CRC check failed" },
	{ FAULT_MPA_MARKER, "MPA: marker and length disagree" },
	{ FAULT_MPA_FRAME, "MPA: invalid start-up frame" },
	{ FAULT_MPA_CATASTROPHIC, "MPA: local catastrophic error" },
	{ FAULT_MPA_IRD, "MPA: insufficient IRD" },
	{ FAULT_MPA_RTR, "MPA: no matching RTR" },
};

/* RDMAP's local catastrophic error has no codes: whatever stands in the field is fine. */
static bool is_any_catastrophic(uint32_t fault)
{
	return fault & WIRE_FAULT_BIT && wire_fault_layer(fault) == WIRE_LAYER_RDMAP &&
	       wire_fault_type(fault) == 0;
}

static const char *find(uint32_t fault)
{
	if (is_any_catastrophic(fault))
		return "RDMAP: local catastrophic error";
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		if (texts[i].fault == fault)
			return texts[i].name;
	}
	return NULL;
}

const char *wire_fault_name(uint32_t fault)
{
	const char *name = find(fault);

	if (name)
		return name;
	if (fault == WIRE_OK)
		return "no fault";
	switch (wire_fault_layer(fault)) {
	case WIRE_LAYER_RDMAP: return "RDMAP: unknown error";
	case WIRE_LAYER_DDP: return "DDP: unknown error";
	case WIRE_LAYER_MPA: return "MPA: unknown error";
	default: return "unknown layer";
	}
}

bool wire_fault_is_legal(uint32_t fault)
{
	return find(fault) != NULL;
}
