/* SPDX-License-Identifier: MIT */
#include <stddef.h>
#include <string.h>

#include "wire/sdp_credit.h"
#include "wire/sdp_half.h"

void sdp_half_init(struct sdp_halves *h, uint16_t max_adverts)
{
	memset(h, 0, sizeof(*h));
	h->in.mode = h->out.mode = SDP_COMBINED;
	h->max_adverts = (uint8_t)(max_adverts < SDP_ADVERTS_MAX ? max_adverts : SDP_ADVERTS_MAX);
}

static void push(struct sdp_adverts *a, const struct sdp_msg *m)
{
	struct sdp_advert *slot = &a->at[(a->head + a->count) % SDP_ADVERTS_MAX];

	slot->mseq = m->mseq;
	slot->len = m->advert_len;
	slot->key = m->key;
	slot->va = m->va;
	slot->done = m->mid == SDP_SRC_AVAIL ? m->payload_len : 0;
	a->count++;
}

static const struct sdp_advert *pop(struct sdp_adverts *a)
{
	const struct sdp_advert *oldest = &a->at[a->head];

	a->head = (uint8_t)((a->head + 1) % SDP_ADVERTS_MAX);
	a->count--;
	return oldest;
}

/* All adverts that the peer has outstanding count together (draft: MaxAdverts). */
static bool has_room(const struct sdp_halves *h)
{
	return h->in.src.count + h->out.sink.count < h->max_adverts;
}

bool sdp_half_unfinished(const struct sdp_halves *h)
{
	return h->in.src.count || h->in.cancelled || h->in.owed;
}

static enum sdp_verdict violation(const char **why, const char *text)
{
	if (why)
		*why = text;
	return SDP_VIOLATION;
}

/*
 * Octets of the stream. While SrcAvails are open the source sends none but those that a SendSm
 * asked for; afterwards the rest of them and new ones may share a message.
 */
static enum sdp_verdict take_payload(struct sdp_halves *h, const struct sdp_msg *m,
				     const char **why)
{
	struct sdp_half_in *in = &h->in;

	if (m->payload_len == 0)
		return SDP_OK;
	if ((in->src.count || in->cancelled) && m->payload_len > in->owed)
		return violation(why, "payload while a SrcAvail is open");
	in->owed -= m->payload_len < in->owed ? m->payload_len : in->owed;
	/* We advertise no buffers, so no payload is ever spent on one. */
	in->non_discards++;
	return SDP_OK;
}

static enum sdp_verdict on_src_avail(struct sdp_halves *h, const struct sdp_msg *m,
				     const char **why)
{
	struct sdp_half_in *in = &h->in;

	if (in->mode == SDP_BUFFERED)
		return violation(why, "SrcAvail in Buffered mode");
	if (in->cancelled)
		return violation(why, "SrcAvail before the answer to SrcAvailCancel");
	if (!has_room(h))
		return violation(why, "more adverts than allowed");
	if (in->mode == SDP_PIPELINED && m->payload_len)
		return violation(why, "SrcAvail with payload in Pipelined mode");
	if (in->mode == SDP_COMBINED) {
		if (in->src.count || in->owed)
			return violation(why, "second SrcAvail in Combined mode");
		if (m->payload_len == 0 || m->payload_len >= m->advert_len)
			return violation(why, "SrcAvail with the wrong payload");
		in->non_discards++;
	}
	push(&in->src, m);
	return SDP_ANSWER;
}

/*
 * The payload, if any, is of the other half. The advert is stale if its sink had not seen all of
 * our payload; then one of ours was put into a buffer of its, which settles one (draft: stale
 * SinkAvail detection). Judging at once or right before use is the same, as payload that we send
 * while we hold an advert spends that advert and is not counted.
 */
static enum sdp_verdict on_sink_avail(struct sdp_halves *h, const struct sdp_msg *m,
				      const char **why)
{
	struct sdp_half_out *out = &h->out;

	if (out->mode != SDP_PIPELINED && !out->leaving)
		return violation(why, "SinkAvail outside Pipelined mode");
	if (out->cancelled)
		return violation(why, "SinkAvail before the answer to SinkAvailCancel");
	if (take_payload(h, m, why) == SDP_VIOLATION)
		return SDP_VIOLATION;
	if (out->mode != SDP_PIPELINED)
		return SDP_IGNORE;
	if (m->non_discards != out->pnd) {
		out->pnd--;
		return SDP_IGNORE;
	}
	if (!has_room(h))
		return violation(why, "more adverts than allowed");
	push(&out->sink, m);
	return SDP_OK;
}

/* No read is ever running here, so all that is open is dropped, and one SendSm says so. */
static enum sdp_verdict on_src_cancel(struct sdp_halves *h, const char **why)
{
	if (h->in.cancelled)
		return violation(why, "second SrcAvailCancel");
	if (h->in.src.count == 0)
		return SDP_IGNORE;
	h->in.src.count = 0;
	h->in.cancelled = true;
	return SDP_ANSWER;
}

static enum sdp_verdict on_sink_cancel(struct sdp_halves *h, const char **why)
{
	if (h->out.cancelled)
		return violation(why, "second SinkAvailCancel");
	if (h->out.sink.count == 0)
		return SDP_IGNORE;
	h->out.sink.count = 0;
	h->out.cancelled = true;
	return SDP_ANSWER;
}

/* Only from the master of the mode, and never to where the half is already. */
static enum sdp_verdict on_mode_change(struct sdp_halves *h, const struct sdp_msg *m,
				       const char **why)
{
	struct sdp_half_in *in = &h->in;

	if (m->to_source) {
		if (h->out.mode != SDP_BUFFERED || m->mode != SDP_COMBINED)
			return violation(why, "ModeChange of our send half");
		h->out.mode = SDP_COMBINED;
		return SDP_OK;
	}
	if (in->mode == SDP_BUFFERED || (in->mode == SDP_COMBINED) == (m->mode == SDP_COMBINED))
		return violation(why, "ModeChange of our receive half");
	if (m->mode == SDP_BUFFERED && (in->src.count || in->cancelled))
		return violation(why, "ModeChange to Buffered too early");
	in->mode = m->mode;
	return SDP_OK;
}

static enum sdp_verdict on_resize(struct sdp_halves *h, const struct sdp_msg *m, const char **why)
{
	if (h->resize_due)
		return violation(why, "second ChRcvBuf");
	h->resize_due = true;
	h->resize_size = m->size;
	return SDP_ANSWER;
}

/* Source and sink finish what is running before either of these (draft: close, suspend). */
static enum sdp_verdict on_last_word(struct sdp_halves *h, const struct sdp_msg *m,
				     const char **why)
{
	if (sdp_half_unfinished(h))
		return violation(why, "the end before all octets");
	if (m->mid == SDP_DISCONN)
		return SDP_OK;
	h->suspend_due = h->suspended = true;
	return SDP_ANSWER;
}

static void note_flags(struct sdp_halves *h, const struct sdp_msg *m)
{
	struct sdp_half_in *in = &h->in;

	if (m->flags & SDP_FLAG_OOB_PEND)
		in->oob_pending++;
	/* Nobody loses anything if the notice was missing: the octet is its own notice. */
	if (m->flags & SDP_FLAG_OOB_PRES && in->oob_pending)
		in->oob_pending--;
}

enum sdp_verdict sdp_half_received(struct sdp_halves *h, const struct sdp_msg *m, const char **why)
{
	if (h->suspended)
		return violation(why, "a message after SuspComm");
	if (h->out.leaving && !sdp_seq_before(m->mseq_ack, h->out.left_mseq))
		h->out.leaving = false;
	note_flags(h, m);
	switch (m->mid) {
	case SDP_DATA: return take_payload(h, m, why);
	case SDP_SRC_AVAIL: return on_src_avail(h, m, why);
	case SDP_SINK_AVAIL: return on_sink_avail(h, m, why);
	case SDP_SRC_AVAIL_CANCEL: return on_src_cancel(h, why);
	case SDP_SINK_AVAIL_CANCEL: return on_sink_cancel(h, why);
	case SDP_MODE_CHANGE: return on_mode_change(h, m, why);
	case SDP_CH_RCV_BUF: return on_resize(h, m, why);
	case SDP_DISCONN:
	case SDP_SUSP_COMM: return on_last_word(h, m, why);
	case SDP_ABORT_CONN: return SDP_OK;
	/* Answers to what we never ask; a late or doubled one does no harm. */
	case SDP_SEND_SM:
	case SDP_SINK_CANCEL_ACK:
	case SDP_CH_RCV_BUF_ACK: return SDP_IGNORE;
	/* These claim that memory was used which we never offered; or that we had left. */
	default: return violation(why, "an answer without a question");
	}
}

uint8_t sdp_half_due(const struct sdp_halves *h)
{
	if (h->in.cancelled || h->in.src.count)
		return SDP_SEND_SM;
	if (h->out.cancelled)
		return SDP_SINK_CANCEL_ACK;
	if (h->resize_due)
		return SDP_CH_RCV_BUF_ACK;
	return h->suspend_due ? SDP_SUSP_COMM_ACK : SDP_DATA;
}

static void sent_send_sm(struct sdp_half_in *in)
{
	if (in->cancelled) {
		/* The source takes its octets back and sends them as it likes. */
		in->cancelled = false;
	} else if (in->src.count) {
		const struct sdp_advert *a = pop(&in->src);

		in->owed += a->len - a->done;
	}
}

static void sent_mode_change(struct sdp_halves *h, const struct sdp_msg *m)
{
	if (m->to_source) {
		h->in.mode = m->mode;
		return;
	}
	if (h->out.mode == SDP_PIPELINED) {
		h->out.leaving = true;
		h->out.left_mseq = m->mseq;
		h->out.sink.count = 0;
	}
	h->out.mode = m->mode;
}

void sdp_half_sent(struct sdp_halves *h, const struct sdp_msg *m)
{
	/* A message with payload spends the oldest advert of the sink, or is counted. */
	if (m->payload_len && h->out.sink.count)
		pop(&h->out.sink);
	else if (m->payload_len)
		h->out.pnd++;
	switch (m->mid) {
	case SDP_SEND_SM: sent_send_sm(&h->in); break;
	case SDP_SINK_CANCEL_ACK: h->out.cancelled = false; break;
	case SDP_CH_RCV_BUF_ACK: h->resize_due = false; break;
	case SDP_SUSP_COMM_ACK: h->suspend_due = false; break;
	case SDP_MODE_CHANGE: sent_mode_change(h, m); break;
	default: break;
	}
}

bool sdp_half_may_change(const struct sdp_halves *h, uint8_t mode, bool to_source)
{
	if (to_source)
		return h->in.mode == SDP_BUFFERED && mode == SDP_COMBINED;
	if (h->out.leaving)
		return false;
	if (h->out.mode == SDP_COMBINED)
		return mode == SDP_BUFFERED || mode == SDP_PIPELINED;
	return h->out.mode == SDP_PIPELINED && mode == SDP_COMBINED;
}
