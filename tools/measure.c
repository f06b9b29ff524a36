/* SPDX-License-Identifier: MIT */
/* session_run(): latency by round trips, bandwidth by a window of requests. */
#include "pattern.h"
#include "session.h"
#include "util.h"

#include <stdio.h>
#include <string.h>

/* State of a running bandwidth test. */
struct run {
	struct session *s;
	const struct session_test *t;
	uint64_t start_ns, next_progress_ns;
	uint64_t base;    /* ep.posted when the test began */
	uint64_t sent;    /* messages posted */
	uint64_t checked; /* reads looked at */
	uint64_t bad;
};

/* Whether to post another message; also tells about progress. */
static bool more(struct run *r)
{
	const struct session_test *t = r->t;
	uint64_t now;

	if (t->count && r->sent >= t->count)
		return false;
	if (t->stop && *t->stop)
		return false;
	if (!t->duration_ns && !t->progress)
		return true;
	now = util_now_ns();
	if (t->progress && now >= r->next_progress_ns) {
		r->next_progress_ns = now + 100000000;
		t->progress(t, r->sent, now - r->start_ns, t->arg);
	}
	return !t->duration_ns || now - r->start_ns < t->duration_ns;
}

static size_t slot_offset(const struct session *s, uint64_t k)
{
	return (size_t)(k % s->in_use) * s->slot_size;
}

static struct ep_remote slot_remote(const struct session *s, uint64_t k)
{
	return (struct ep_remote) { s->remote.addr + slot_offset(s, k), s->remote.rkey };
}

/* The next message of a bandwidth test; every `list` of them are posted in one call. */
static bool post_next(struct run *r, uint32_t op, size_t at, const struct ep_remote *remote,
		      const char *what)
{
	struct ep *ep = &r->s->ep;
	uint32_t list = r->t->list ? r->t->list : 1;

	if (!ep_gather(ep, op, &r->s->data, at, (uint32_t)r->t->size, remote, false))
		return session_fail(r->s, what);
	r->sent++;
	return ep->gathered < list || ep_flush(ep) || session_fail(r->s, what);
}

static bool answer_is_good(struct session *s, const struct session_test *t, uint64_t k,
			   const void *data, size_t length)
{
	(void)s;
	/* Answers hold pattern(~k), so that our own message sent back does not pass. */
	return length == t->size && (!t->verify || pattern_check(data, length, ~k));
}

static bool round_send(struct session *s, const struct session_test *t, uint64_t k, bool *good)
{
	const uint8_t *data;
	struct flue_wc wc;

	if (!ep_post(&s->ep, FLUE_WR_SEND, &s->data, slot_offset(s, k), (uint32_t)t->size, NULL,
		     false))
		return session_fail(s, "sending");
	/* There are more receives than messages under way, so the last one's can wait until now,
	 * when there is nothing else to do. */
	if (s->owed && !session_repost(s, &s->last))
		return false;
	s->owed = false;
	if (!session_take(s, &wc, &data))
		return false;
	*good = answer_is_good(s, t, k, data, wc.byte_len);
	s->last = wc;
	s->owed = true;
	return true;
}

static bool round_write(struct session *s, const struct session_test *t, uint64_t k, bool *good)
{
	struct ep_remote to = slot_remote(s, k);
	const uint8_t *data;
	struct flue_wc wc;

	/* A Write tells the target's program nothing, so a byte follows it. */
	if (!ep_post(&s->ep, FLUE_WR_WRITE, &s->data, slot_offset(s, k), (uint32_t)t->size, &to,
		     false) ||
	    !ep_post(&s->ep, FLUE_WR_SEND, &s->tx, 0, 1, NULL, false))
		return session_fail(s, "writing");
	if (!session_take(s, &wc, &data))
		return false;
	*good = wc.byte_len == 1 && answer_is_good(s, t, k, s->back.data, t->size);
	return session_repost(s, &wc);
}

static bool round_read(struct session *s, const struct session_test *t, uint64_t k, bool *good)
{
	struct ep_remote from = slot_remote(s, k);
	size_t at = slot_offset(s, k);

	if (!ep_post(&s->ep, FLUE_WR_READ, &s->data, at, (uint32_t)t->size, &from, true) ||
	    !ep_wait_sent(&s->ep, s->ep.posted, s->timeout_ms))
		return session_fail(s, "reading");
	*good = !t->verify || pattern_check(s->data.data + at, t->size, k % s->in_use);
	return true;
}

static bool round_trip_of(struct session *s, const struct session_test *t, uint64_t k, bool *good)
{
	static bool (*const round_trip[PROTO_NOPS])(struct session *, const struct session_test *,
						    uint64_t, bool *) = {
		[PROTO_SEND] = round_send,
		[PROTO_WRITE] = round_write,
		[PROTO_READ] = round_read,
	};

	return round_trip[t->op](s, t, k, good);
}

bool session_round_trip(struct session *s, const struct session_test *t, uint64_t k, uint64_t *ns,
			bool *good)
{
	uint64_t start;
	bool done;

	if (t->verify) {
		uint8_t *data = s->data.data + slot_offset(s, k);

		if (t->op == PROTO_READ)
			memset(data, 0, t->size);
		else
			pattern_fill(data, t->size, k);
	}
	start = util_now_ns();
	done = round_trip_of(s, t, k, good);
	*ns = util_now_ns() - start;
	return done;
}

/* As many as stand between two looks at the clock. */
static bool run_batch(struct run *r, struct session_result *result)
{
	uint64_t start = util_now_ns();
	bool good;

	for (uint32_t i = 0; i < r->t->batch; i++) {
		if (!round_trip_of(r->s, r->t, r->t->warmup + r->sent, &good))
			return false;
		r->sent++;
		r->bad += !good;
	}
	if (result->hist)
		hist_add(result->hist, (util_now_ns() - start) / r->t->batch);
	return true;
}

static bool run_latency(struct run *r, struct session_result *result)
{
	uint64_t ns;
	bool good;

	for (uint64_t i = 0; i < r->t->warmup; i++) {
		if (!session_round_trip(r->s, r->t, i, &ns, &good))
			return false;
		r->bad += !good;
	}
	r->start_ns = util_now_ns();
	while (more(r)) {
		if (r->t->batch > 1) {
			if (!run_batch(r, result))
				return false;
			continue;
		}
		if (!session_round_trip(r->s, r->t, r->t->warmup + r->sent, &ns, &good))
			return false;
		r->sent++;
		r->bad += !good;
		if (result->hist)
			hist_add(result->hist, ns);
	}
	return true;
}

/* Wait until fewer than `window` one-sided requests are under way. */
static bool wait_window(struct run *r, uint32_t window)
{
	struct ep *ep = &r->s->ep;

	if (r->sent < window)
		return true;
	return ep_wait_sent(ep, r->base + r->sent - window + 1, r->s->timeout_ms) ||
	       session_fail(r->s, "waiting for completions");
}

static void check_reads(struct run *r)
{
	struct session *s = r->s;

	for (; r->checked < r->sent && r->base + r->checked < s->ep.completed; r->checked++) {
		const uint8_t *data = s->data.data + slot_offset(s, r->checked);

		if (r->t->verify && !pattern_check(data, r->t->size, r->checked % s->in_use))
			r->bad++;
	}
}

static bool run_reads(struct run *r)
{
	struct session *s = r->s;

	while (more(r)) {
		size_t at = slot_offset(s, r->sent);
		struct ep_remote from = slot_remote(s, r->sent);

		if (!wait_window(r, r->t->window))
			return false;
		check_reads(r);
		if (r->t->verify)
			memset(s->data.data + at, 0, r->t->size);
		if (!post_next(r, FLUE_WR_READ, at, &from, "reading"))
			return false;
	}
	return true;
}

/* The server's program sees nothing of a Write: ask it to look at the batch. */
static bool check_writes(struct run *r, uint64_t first)
{
	struct proto_msg msg = { .kind = PROTO_CHECK };

	msg.u.check.first = first;
	msg.u.check.count = (uint32_t)(r->sent - first);
	if (!session_say(r->s, &msg) || !session_hear(r->s, PROTO_REPORT, &msg))
		return false;
	r->base++; /* session_say() posted one that is no Write */
	r->bad += msg.u.report.bad;
	return true;
}

static bool run_writes(struct run *r)
{
	struct session *s = r->s;
	uint64_t first = 0;

	while (more(r)) {
		size_t at = slot_offset(s, r->sent);
		struct ep_remote to = slot_remote(s, r->sent);

		if (!wait_window(r, r->t->window))
			return false;
		if (r->t->verify)
			pattern_fill(s->data.data + at, r->t->size, r->sent);
		if (!post_next(r, FLUE_WR_WRITE, at, &to, "writing"))
			return false;
		if (r->t->verify && r->sent - first == s->in_use) {
			if (!check_writes(r, first))
				return false;
			first = r->sent;
		}
	}
	return !r->t->verify || first == r->sent || check_writes(r, first);
}

/* A Send needs a posted receive; CREDIT says how many the server has posted again. */
static bool wait_credit(struct run *r)
{
	struct session *s = r->s;
	struct proto_msg msg;

	while (r->sent - s->credit >= r->t->window) {
		if (!session_hear(s, PROTO_CREDIT, &msg))
			return false;
		if (msg.u.credit <= s->credit || msg.u.credit > r->sent) {
			snprintf(s->error, sizeof(s->error),
				 "the server granted impossible credit");
			return false;
		}
		s->credit = msg.u.credit;
	}
	return true;
}

static bool run_sends(struct run *r)
{
	struct session *s = r->s;

	while (more(r)) {
		size_t at = slot_offset(s, r->sent);

		if (!wait_credit(r))
			return false;
		if (r->t->verify)
			pattern_fill(s->data.data + at, r->t->size, r->sent);
		if (!post_next(r, FLUE_WR_SEND, at, NULL, "sending"))
			return false;
	}
	return true;
}

static bool run_bandwidth(struct run *r)
{
	switch (r->t->op) {
	case PROTO_SEND: return run_sends(r);
	case PROTO_WRITE: return run_writes(r);
	default: return run_reads(r);
	}
}

bool session_run(struct session *s, const struct session_test *t, struct session_result *result)
{
	struct run r = { .s = s, .t = t };
	struct proto_msg report;
	uint64_t calls = s->ep.calls;
	bool good;

	/* Few enough unsignaled requests that the window moves on in small steps. */
	s->ep.signal_every = t->window >= 64 ? 16 : t->window / 4 + (t->window < 4);
	if (!session_begin(s, t))
		return false;
	r.base = s->ep.posted;
	r.start_ns = util_now_ns();
	good = t->what == PROTO_LATENCY ? run_latency(&r, result) : run_bandwidth(&r);
	/* The end is when the server answers: a completed Write may still be on its way. */
	if (!good || !session_end(s, &report))
		return false;
	result->elapsed_ns = util_now_ns() - r.start_ns;
	if (t->what == PROTO_BANDWIDTH && t->op == PROTO_READ)
		check_reads(&r);
	result->messages = r.sent;
	result->calls = s->ep.calls - calls;
	result->bytes = r.sent * t->size;
	result->bad = r.bad + report.u.report.bad;
	return true;
}
