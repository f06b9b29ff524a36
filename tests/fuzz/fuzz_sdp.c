/* SPDX-License-Identifier: MIT */
/*
 * The Sockets Direct Protocol: what decodes is encoded again, octet by octet; and one end of a
 * connection (credits, halves, machine) among messages and events as they come.
 *
 * Input: what to do (1 octet), then
 *   0     a message
 *   1..4  a Hello (1, 3) or HelloAck (2, 4), for iWARP (1, 2) or InfiniBand (3, 4)
 *   else  role, first MSeq and start-up numbers (4), then operations of two octets and more
 */
#include "fuzz.h"

#include <errno.h>

#include "base/bytes.h"
#include "wire/sdp.h"
#include "wire/sdp_credit.h"
#include "wire/sdp_fsm.h"
#include "wire/sdp_half.h"

/* Reserved bits, which are sent as zero, are taken out of what came. */
static void make_canonical(uint8_t *wire, size_t len)
{
	wire[1] &= SDP_FLAGS;
	if (wire[0] == SDP_MODE_CHANGE && len == 20)
		wire[17] = wire[18] = wire[19] = 0;
}

static void check_message(const uint8_t *data, size_t len)
{
	uint8_t *wire = exact_copy(data, len);
	uint8_t out[SDP_HDR_MAX];
	struct sdp_msg m;
	int rc = sdp_decode(&m, wire, len);

	CHECK(rc == 0 || rc == -EMSGSIZE || rc == -EOPNOTSUPP || rc == -EPROTO);
	if (rc == 0) {
		const struct sdp_mid_info *info = sdp_mid_info(m.mid);
		size_t hdr_len = SDP_BSDH_LEN + info->ext_len;

		CHECK(info->name && get_be32(wire + 4) == len);
		CHECK(m.payload_len == len - hdr_len && (info->payload || m.payload_len == 0));
		touch(m.payload, m.payload_len);
		(void)sdp_is_solicited(&m);
		make_canonical(wire, len);
		CHECK(sdp_encode(&m, out) == (int)hdr_len);
		CHECK(memcmp(out, wire, hdr_len) == 0);
	} else if (len >= SDP_BSDH_LEN) {
		CHECK((rc == -EOPNOTSUPP) <= !sdp_mid_info(wire[0])->name);
	}
	free(wire);
}

static void check_hello(const uint8_t *data, size_t len, enum sdp_layout layout, bool ack)
{
	uint8_t *wire = exact_copy(data, len);
	uint8_t out[SDP_HELLO_MAX], again[SDP_HELLO_MAX];
	struct sdp_hello h, back, ours;
	int rc = sdp_hello_decode(&h, wire, len, layout, ack);
	int n;

	CHECK(rc == 0 || rc == -EMSGSIZE || rc == -EPROTO || rc == -EPROTONOSUPPORT);
	free(wire);
	if (rc)
		return;
	CHECK(h.max_adverts && h.bufs >= SDP_BUFS_MIN && h.rcv_size >= SDP_RCV_MIN);
	n = sdp_hello_encode(&h, out, sizeof(out));
	CHECK(n >= (int)len && get_be32(out + 4) == (uint32_t)n);
	/* All but what is reserved: version, adverts, sizes. */
	CHECK(out[16] == data[16] && memcmp(out + 20, data + 20, 4) == 0);
	CHECK(layout == SDP_IB || memcmp(out + 18, data + 18, (size_t)n - 18) == 0);
	CHECK(sdp_hello_decode(&back, out, (size_t)n, layout, ack) == 0);
	CHECK(sdp_hello_encode(&back, again, sizeof(again)) == n);
	CHECK(memcmp(out, again, (size_t)n) == 0);
	CHECK(sdp_hello_encode(&h, out, (size_t)n - 1) == -EMSGSIZE);
	/* What we would answer can be sent. */
	ours = h;
	ours.ack = true;
	ours.major = ours.minor = 1;
	ours.ord = 0xffff;
	sdp_hello_fit(&ours, &h);
	CHECK(ours.major == h.major && ours.minor <= 15 && (layout == SDP_IB || ours.ord <= h.ird));
	CHECK(sdp_hello_encode(&ours, out, sizeof(out)) > 0);
}

/* ---- one end of a connection ---- */

static struct sdp_credit credit;
static struct sdp_halves halves;
static enum sdp_state state;
static unsigned opens, eofs, ends;

static void step(enum sdp_event e)
{
	struct fsm_edge edge = fsm_look(&sdp_fsm, state, e);

	if (edge.next == SDPS_ILLEGAL) {
		CHECK(edge.actions == 0);
		return;
	}
	CHECK(edge.next < SDPS_NSTATES);
	opens += !!(edge.actions & SDPA_TELL_OPEN);
	eofs += !!(edge.actions & SDPA_TELL_EOF);
	ends += !!(edge.actions & (SDPA_TELL_RESET | SDPA_TELL_CLOSED));
	CHECK(opens <= 1 && eofs <= opens && ends <= opens);
	CHECK(!(edge.actions & SDPA_TELL_CLOSED) || eofs == 1);
	state = edge.next;
	if (state == SDPS_CLOSED) {
		CHECK(opens == ends);
		opens = eofs = ends = 0;
	}
}

static void check_state(void)
{
	CHECK(halves.in.src.count + halves.out.sink.count <= halves.max_adverts);
	CHECK(halves.in.src.head < SDP_ADVERTS_MAX && halves.out.sink.head < SDP_ADVERTS_MAX);
	CHECK(halves.in.mode <= SDP_PIPELINED && halves.out.mode <= SDP_PIPELINED);
	CHECK(halves.in.mode != SDP_BUFFERED || halves.in.src.count == 0);
	CHECK(halves.out.mode == SDP_PIPELINED || halves.out.sink.count == 0);
	CHECK(sdp_credit_left(&credit) <= credit.peer_bufs);
	/* The rule, once more. */
	CHECK(!sdp_credit_may_send(&credit, SDP_DATA, 1) || sdp_credit_left(&credit) >= 3);
	CHECK(!sdp_credit_may_send(&credit, SDP_DATA, 0) || sdp_credit_left(&credit) >= 1);
	CHECK(!sdp_credit_must_update(&credit, true) || sdp_credit_may_send(&credit, SDP_DATA, 0));
	CHECK(!sdp_credit_must_update(&credit, false) || sdp_credit_must_update(&credit, true));
}

/* Stamps and writes a message if it may go, and reads it as the peer would. */
static void send_message(struct sdp_msg m)
{
	uint32_t left = sdp_credit_left(&credit);
	bool may = sdp_credit_may_send(&credit, m.mid, m.payload_len);
	uint8_t wire[SDP_HDR_MAX + 8] = { 0 };
	struct sdp_msg back;
	int n;

	if (!sdp_fsm_may_send(state, m.payload_len))
		return;
	CHECK(sdp_credit_stamp(&credit, &m) == (may ? 0 : -EAGAIN));
	if (!may)
		return;
	CHECK(sdp_credit_left(&credit) == left - 1);
	n = sdp_encode(&m, wire);
	CHECK(n >= SDP_BSDH_LEN && m.payload_len <= 8);
	CHECK(sdp_decode(&back, wire, (size_t)n + m.payload_len) == 0);
	CHECK(back.mseq == m.mseq && back.mseq_ack == m.mseq_ack && back.bufs == m.bufs);
	sdp_half_sent(&halves, &m);
	if (m.mid == SDP_DISCONN)
		step(SDPE_DISCONN_SENT);
}

static void send_due(void)
{
	struct sdp_msg m = { .mid = sdp_half_due(&halves), .size = 4096 };

	if (m.mid != SDP_DATA)
		send_message(m);
	else if (sdp_credit_must_update(&credit, false))
		send_message(m);
}

static void send_payload(uint32_t len)
{
	uint32_t adverts = halves.out.sink.count, pnd = halves.out.pnd, next = credit.tx_next;

	/* Answers go first. */
	if (sdp_half_due(&halves) != SDP_DATA)
		return;
	send_message((struct sdp_msg) { .mid = SDP_DATA, .payload_len = len });
	if (credit.tx_next != next && len)
		CHECK(halves.out.sink.count + 1u == adverts || halves.out.pnd == pnd + 1);
}

static void send_mode(unsigned what)
{
	struct sdp_msg m = { .mid = SDP_MODE_CHANGE, .mode = what % 3, .to_source = what & 4 };

	if (sdp_half_may_change(&halves, m.mode, m.to_source))
		send_message(m);
}

static void receive_message(struct source *in)
{
	struct sdp_msg m = { 0 };
	uint8_t wire[SDP_HDR_MAX + 16] = { 0 };
	const char *why = NULL;
	size_t len;

	wire[0] = (uint8_t)take(in, 1);
	wire[1] = (uint8_t)take(in, 1);
	put_be16(wire + 2, (uint16_t)take(in, 1));
	len = SDP_BSDH_LEN + sdp_mid_info(wire[0])->ext_len + take(in, 1) % 16;
	put_be32(wire + 4, (uint32_t)len);
	/* Almost always the right numbers, or nothing would ever get further. */
	put_be32(wire + 8, credit.rx_next + (take(in, 1) == 0xff));
	put_be32(wire + 12, credit.tx_next - 1 - (uint32_t)take(in, 1) % 8);
	for (size_t i = SDP_BSDH_LEN; i < len; i++)
		wire[i] = i < SDP_BSDH_LEN + 4u || i >= SDP_HDR_MAX - 4u ? (uint8_t)take(in, 1) : 0;
	/* SuspCH is a constant with a port behind it. */
	if (wire[0] == SDP_SUSP_COMM)
		wire[21] = wire[23] = 1;
	if (state == SDPS_REQ_RECV || state == SDPS_DIS_HOLD)
		step(SDPE_UP);
	if (sdp_decode(&m, wire, len) || !sdp_fsm_may_receive(state, m.payload_len) ||
	    sdp_credit_received(&credit, &m) ||
	    sdp_half_received(&halves, &m, &why) == SDP_VIOLATION) {
		step(SDPE_RX_BAD);
		return;
	}
	CHECK(!why);
	if (m.mid == SDP_DISCONN)
		step(SDPE_RX_DISCONN);
	if (m.mid == SDP_ABORT_CONN)
		step(SDPE_RX_ABORT);
	if (m.payload_len == 0)
		sdp_credit_posted(&credit, 1);
}

static void operate(struct source *in)
{
	unsigned what = (unsigned)take(in, 1), arg = (unsigned)take(in, 1);

	switch (what % 10) {
	case 0: step((enum sdp_event)(arg % SDPE_NEVENTS)); break;
	case 1: send_payload(arg % 9); break;
	case 2: send_mode(arg); break;
	case 3: sdp_credit_posted(&credit, arg % 4); break;
	case 4: sdp_credit_freeze(&credit, credit.rx_next - (credit.rx_any ? 1 : 0)); break;
	case 5: sdp_credit_thaw(&credit); break;
	case 6: send_message((struct sdp_msg) { .mid = SDP_DISCONN }); break;
	case 7: send_due(); break;
	default: receive_message(in); break;
	}
	check_state();
	/* After a violation or an end the numbers are of no use: begin again. */
	if (state == SDPS_ERROR || state == SDPS_CLOSED) {
		sdp_half_init(&halves, (uint16_t)(1 + arg));
		sdp_credit_init(&credit, credit.first, arg & 1, 8, 16);
	}
}

static void check_connection(struct source *in)
{
	uint32_t first = (uint32_t)take(in, 1) & 1;
	bool connecting = take(in, 1) & 1;

	sdp_credit_init(&credit, first, connecting, (uint16_t)(3 + take(in, 1) % 8),
			(uint16_t)(3 + take(in, 1) % 64));
	sdp_half_init(&halves, 4);
	opens = 1;
	eofs = ends = 0;
	state = SDPS_ESTABLISHED;
	while (in->left)
		operate(in);
	CHECK(*sdp_state_name(state) && *fsm_event_name(&sdp_fsm, (unsigned)first));
	CHECK(strcmp(sdp_state_name(SDPS_ILLEGAL), "ILLEGAL") == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct source in = { data, size };
	unsigned what = (unsigned)take(&in, 1);

	if (what == 0)
		check_message(in.data, in.left);
	else if (what <= 4)
		check_hello(in.data, in.left, what > 2 ? SDP_IB : SDP_IWARP, what % 2 == 0);
	else
		check_connection(&in);
	return 0;
}
