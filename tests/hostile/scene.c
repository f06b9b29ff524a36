/* SPDX-License-Identifier: MIT */
/* See scene.h. */
#include "hostile/scene.h"

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "conf/pair.h"

#define ZONE_SIZE (AREA_N * (AREA_SIZE + GUARD_SIZE) + GUARD_SIZE)

const struct scene_mode scene_default = { .name = "CRC", .crc = true };

static struct scene the_scene;
static struct pair healthy;
static pthread_t healthy_thread;
static atomic_ulong beats;
static atomic_bool stop_beating, heart_failed;

/* ---- the healthy pair ---- */

static bool exchange(uint32_t seed)
{
	struct pair_side *a = &healthy.a, *b = &healthy.b;
	uint32_t n = 1 + seed * 37 % 9000;

	pair_fill(a->mem, n, seed);
	return pair_recv(b, 65536, n, 1) && pair_send(a, 0, n, 2, FLUE_SIGNALED) &&
	       pair_expect(a->send_cq, 2, FLUE_WC_SUCCESS) &&
	       pair_expect(b->recv_cq, 1, FLUE_WC_SUCCESS) &&
	       pair_check(b->mem + 65536, n, seed) == n &&
	       pair_read(a, 131072, n, b, 65536, 3, FLUE_SIGNALED) &&
	       pair_expect(a->send_cq, 3, FLUE_WC_SUCCESS) &&
	       pair_check(a->mem + 131072, n, seed) == n;
}

static void *beat(void *arg)
{
	for (uint32_t seed = 1; !atomic_load(&stop_beating); seed++) {
		if (!exchange(seed)) {
			atomic_store(&heart_failed, true);
			return arg;
		}
		atomic_fetch_add(&beats, 1);
		usleep(300);
	}
	return arg;
}

void scene_expect_health(struct scene *s)
{
	unsigned long now = atomic_load(&beats);
	uint64_t end = pair_now_ms() + RAW_PATIENCE_MS;

	(void)s;
	while (atomic_load(&beats) < now + 2 && !atomic_load(&heart_failed)) {
		if (pair_now_ms() > end)
			fail_msg("the healthy pair hangs");
		usleep(200);
	}
	assert_false(atomic_load(&heart_failed));
}

static bool open_healthy(void)
{
	struct pair_options o = PAIR_DEFAULTS;
	cpu_set_t set;
	int cpu = 0;

	/* One engine: whoever blocks it blocks everybody. */
	sched_getaffinity(0, sizeof(set), &set);
	while (!CPU_ISSET(cpu, &set))
		cpu++;
	o.cpus = &cpu;
	o.n_cpus = 1;
	o.one_adapter = true;
	return pair_open(&healthy, &o) && pthread_create(&healthy_thread, NULL, beat, NULL) == 0;
}

/* ---- memory ---- */

static size_t area_offset(int area)
{
	return GUARD_SIZE + (size_t)area * (AREA_SIZE + GUARD_SIZE);
}

uint8_t *scene_at(const struct scene *s, int area, size_t offset)
{
	return s->zone + area_offset(area) + offset;
}

uint64_t scene_to(const struct scene *s, int area, size_t offset)
{
	return s->mr[area < AREA_N ? area : AREA_RW]->remote_start + offset;
}

uint32_t scene_key(const struct scene *s, int key)
{
	switch (key) {
	case KEY_STALE: return s->stale_key;
	case KEY_JUNK: return 0xdeadbeef;
	case KEY_ZERO: return 0;
	default: return s->mr[key]->rkey;
	}
}

/*
 * Our next octet to the RNIC may make it write there, on another thread. What orders the two goes through TCP, where
 * ThreadSanitizer cannot follow.
 */
__attribute__((no_sanitize("thread"))) static void copy_unseen(uint8_t *to, const uint8_t *from,
							       size_t len)
{
	for (size_t i = 0; i < len; i++)
		to[i] = ((const volatile uint8_t *)from)[i];
}

void scene_allow(struct scene *s, int area, size_t offset, size_t len)
{
	copy_unseen(s->shadow + area_offset(area) + offset, scene_at(s, area, offset), len);
}

void scene_expect(struct scene *s, int area, size_t offset, const void *data, size_t len)
{
	assert_memory_equal(scene_at(s, area, offset), data, len);
	scene_allow(s, area, offset, len);
}

static struct flue_mr *grant(struct scene *s, int area)
{
	static const uint32_t rights[AREA_N] = {
		[AREA_RW] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ,
		[AREA_READ] = FLUE_LOCAL_WRITE | FLUE_REMOTE_READ,
		[AREA_WRITE] = FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE,
		[AREA_LOCAL] = FLUE_LOCAL_WRITE,
		[AREA_OTHER] = PAIR_ALL_ACCESS,
		[AREA_INV] = PAIR_ALL_ACCESS,
	};

	return flue_register(area == AREA_OTHER ? s->other_pd : s->pd, scene_at(s, area, 0),
			     AREA_SIZE, rights[area]);
}

/* ---- events ---- */

static void on_event(const struct flue_event *ev, void *arg)
{
	struct scene_events *e = arg;

	pthread_mutex_lock(&e->lock);
	e->accepted += ev->type == FLUE_EVENT_ACCEPTED;
	e->connected += ev->type == FLUE_EVENT_CONNECTED;
	e->failed += ev->type == FLUE_EVENT_CONNECT_FAILED;
	e->disconnected += ev->type == FLUE_EVENT_DISCONNECTED;
	if (ev->type == FLUE_EVENT_DISCONNECTED)
		e->down = *ev;
	else
		e->up = *ev;
	pthread_cond_broadcast(&e->news);
	pthread_mutex_unlock(&e->lock);
}

enum what { ACCEPTED, UP, DOWN, END };

static bool has_come(const struct scene_events *e, enum what what)
{
	switch (what) {
	case ACCEPTED: return e->accepted;
	case UP: return e->connected || e->failed;
	case DOWN: return e->disconnected;
	default: return e->disconnected || e->failed;
	}
}

/* Waits for an event of this kind; s->seen is then up to date. */
static bool await(struct scene *s, enum what what)
{
	struct scene_events *e = &s->events;
	struct timespec end;
	bool came = true;

	clock_gettime(CLOCK_REALTIME, &end);
	end.tv_sec += RAW_PATIENCE_MS / 1000;
	pthread_mutex_lock(&e->lock);
	while (!has_come(e, what) && came)
		came = pthread_cond_timedwait(&e->news, &e->lock, &end) == 0;
	s->seen = *e;
	pthread_mutex_unlock(&e->lock);
	return came;
}

static void look(struct scene *s)
{
	pthread_mutex_lock(&s->events.lock);
	s->seen = s->events;
	pthread_mutex_unlock(&s->events.lock);
}

/* ---- group ---- */

static bool make_objects(struct scene *s)
{
	struct flue_mr *gone;

	s->adapter = healthy.a.adapter;
	s->pd = flue_create_pd(s->adapter);
	s->other_pd = flue_create_pd(s->adapter);
	s->cq = flue_create_cq(s->adapter, 256);
	s->zone = malloc(ZONE_SIZE);
	s->shadow = malloc(ZONE_SIZE);
	if (!s->pd || !s->other_pd || !s->cq || !s->zone || !s->shadow)
		return false;
	pair_fill(s->zone, ZONE_SIZE, 4711);
	memcpy(s->shadow, s->zone, ZONE_SIZE);
	gone = grant(s, AREA_RW);
	if (!gone)
		return false;
	s->stale_key = gone->rkey;
	return flue_deregister(gone);
}

struct scene *scene_here(void)
{
	return &the_scene;
}

int scene_open(void **state)
{
	struct scene *s = &the_scene;

	/* A state of the group would hide the states of the tests. */
	(void)state;
	pthread_mutex_init(&s->events.lock, NULL);
	pthread_cond_init(&s->events.news, NULL);
	if (open_healthy() && make_objects(s))
		return 0;
	fprintf(stderr, "cannot set the scene: %s\n", strerror(errno));
	return -1;
}

int scene_close(void **state)
{
	struct scene *s = &the_scene;

	(void)state;
	atomic_store(&stop_beating, true);
	pthread_join(healthy_thread, NULL);
	free(s->zone);
	free(s->shadow);
	if (flue_destroy_cq(s->cq) && flue_destroy_pd(s->pd) && flue_destroy_pd(s->other_pd) &&
	    pair_close(&healthy))
		return 0;
	fprintf(stderr, "cannot leave the scene: %s\n", strerror(errno));
	return -1;
}

/* ---- one test ---- */

static struct flue_qp *make_victim(struct scene *s)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);

	attr.send_cq = attr.recv_cq = s->cq;
	attr.sq_depth = attr.rq_depth = 64;
	attr.sq_sge = attr.rq_sge = 4;
	attr.flags = FLUE_QP_SIGNAL_ALL;
	attr.on_event = on_event;
	attr.event_arg = &s->events;
	return s->pd->ops->create_qp(s->pd, &attr);
}

static void reset_events(struct scene_events *e)
{
	e->accepted = e->connected = e->failed = e->disconnected = 0;
	memset(&e->up, 0, sizeof(e->up));
	memset(&e->down, 0, sizeof(e->down));
}

int scene_enter(void **state)
{
	struct scene *s = &the_scene;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_storage at = healthy.listener->local;

	if (!*state)
		*state = s;
	reset_events(&s->events);
	s->posted = s->completed = 0;
	s->peer.depth = 4;
	s->conn_flags = s->fpdu_max = 0;
	s->peer.fd = -1;
	scene_use(s, &scene_default);
	/* The healthy listener's address with a port of our own. */
	((struct sockaddr_in *)&at)->sin_port = 0;
	attr.local = (struct sockaddr *)&at;
	attr.local_len = sizeof(struct sockaddr_in);
	attr.request_timeout_ms = 300;
	attr.max_half_open = 8;
	s->listener = s->adapter->ops->listen(s->adapter, &attr);
	s->qp = make_victim(s);
	for (int i = 0; i < AREA_N; i++)
		s->mr[i] = grant(s, i);
	return s->listener && s->qp && s->mr[AREA_N - 1] ? 0 : -1;
}

static void check_memory(struct scene *s)
{
	if (!memcmp(s->zone, s->shadow, ZONE_SIZE))
		return;
	for (size_t i = 0; i < ZONE_SIZE; i++) {
		size_t in = (i - GUARD_SIZE) % (AREA_SIZE + GUARD_SIZE);
		bool guard = i < GUARD_SIZE || in >= AREA_SIZE;

		if (s->zone[i] != s->shadow[i])
			fail_msg("octet %zu of %s %zu was changed", in, guard ? "guard" : "area",
				 (i - GUARD_SIZE) / (AREA_SIZE + GUARD_SIZE));
	}
}

int scene_leave(void **state)
{
	struct scene *s = &the_scene;
	struct flue_event ev;
	struct flue_wc wc;

	(void)state;
	/* Late and double completions and events would come now. */
	assert_int_equal(pair_take(s->cq, &wc, 1, 0), 0);
	raw_close(&s->peer);
	assert_true(flue_destroy_qp(s->qp));
	look(s);
	assert_int_equal(s->seen.disconnected, s->seen.connected);
	assert_true(s->seen.connected + s->seen.failed <= 1);
	assert_int_equal(s->completed, s->posted);
	assert_true(s->listener->ops->destroy(s->listener));
	for (int i = 0; i < AREA_N; i++)
		assert_true(flue_deregister(s->mr[i]));
	check_memory(s);
	assert_false(flue_get_event(s->adapter, &ev, 0));
	scene_expect_health(s);
	return 0;
}

/* ---- connecting ---- */

void scene_use(struct scene *s, const struct scene_mode *mode)
{
	s->mode = mode;
	s->peer.trickle = mode->trickle;
	s->peer.tx = s->peer.rx = (struct mpa_stream) { .crc = mode->crc,
							.markers = mode->markers };
}

struct flue_conn_attr scene_attr(const struct scene *s)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	attr.flags = FLUE_CONN_ASYNC | s->conn_flags;
	attr.flags |= s->mode->crc ? 0 : FLUE_CONN_NO_CRC;
	attr.flags |= s->mode->markers ? FLUE_CONN_MARKERS : 0;
	attr.ird = attr.ord = s->peer.depth;
	attr.fpdu_max = s->fpdu_max;
	return attr;
}

void scene_dial(struct scene *s)
{
	raw_connect(&s->peer, (struct sockaddr *)&s->listener->local, sizeof(struct sockaddr_in));
}

struct flue_conn_request *scene_request(struct scene *s)
{
	struct flue_conn_request *req;

	req = s->listener->ops->get_request(s->listener, RAW_PATIENCE_MS);
	assert_non_null(req);
	return req;
}

void scene_accept(struct scene *s)
{
	struct flue_conn_request *req = scene_request(s);
	struct flue_conn_attr attr = scene_attr(s);

	assert_true(req->ops->accept(req, s->qp, &attr));
}

int scene_call(struct scene *s)
{
	struct flue_conn_attr attr = scene_attr(s);
	struct sockaddr_storage at;
	int fd = raw_listen(&at, &attr.remote_len);

	attr.remote = (struct sockaddr *)&at;
	assert_true(s->qp->ops->connect(s->qp, &attr));
	raw_accept(&s->peer, fd);
	return fd;
}

void scene_await_connected(struct scene *s)
{
	assert_true(await(s, UP));
	if (s->seen.failed)
		fail_msg("connecting failed: %s", strerror((int)s->seen.up.detail));
}

void scene_await_accepted(struct scene *s)
{
	assert_true(await(s, ACCEPTED));
}

void scene_await_end(struct scene *s)
{
	assert_true(await(s, END));
}

int scene_await_failed(struct scene *s)
{
	assert_true(await(s, UP));
	assert_int_equal(s->seen.connected, 0);
	return (int)s->seen.up.detail;
}

static void connect_to_victim(struct scene *s)
{
	struct mpa_frame req, rep;

	scene_dial(s);
	req = raw_request(&s->peer);
	raw_send_frame(&s->peer, &req);
	scene_accept(s);
	raw_expect_frame(&s->peer, true, &rep);
	assert_int_equal(rep.flags & MPA_FLAG_REJECT, 0);
	raw_write(&s->peer, 1, 0, NULL, 0);
}

static void be_called(struct scene *s)
{
	struct mpa_frame req, rep;
	struct raw_fpdu rtr;
	int fd = scene_call(s);

	close(fd);
	raw_expect_frame(&s->peer, false, &req);
	rep = raw_reply(&s->peer, &req);
	raw_send_frame(&s->peer, &rep);
	raw_expect_fpdu(&s->peer, RDMAP_WRITE, &rtr);
	assert_int_equal(rtr.seg.payload_len, 0);
}

void scene_connect(struct scene *s, const struct scene_mode *mode)
{
	scene_use(s, mode);
	if (mode->initiator)
		be_called(s);
	else
		connect_to_victim(s);
	scene_await_connected(s);
}

/* ---- requests ---- */

uint64_t scene_post_recv(struct scene *s, size_t offset, uint32_t len)
{
	struct flue_sge sge = flue_mr_sge(s->mr[AREA_LOCAL], offset, len);
	struct flue_recv_wr wr = { .id = ++s->posted, .sg = &sge, .n_sg = 1 };

	assert_true(flue_post_recv(s->qp, &wr));
	return wr.id;
}

static uint64_t post(struct scene *s, uint32_t op, size_t offset, uint32_t len)
{
	struct flue_sge sge = flue_mr_sge(s->mr[AREA_LOCAL], offset, len);
	struct flue_send_wr wr = { .id = ++s->posted,
				   .op = op,
				   .sg = &sge,
				   .n_sg = 1,
				   .rkey = 0x1234,
				   .remote_addr = 0x5678 };

	assert_true(flue_post_send(s->qp, &wr));
	return wr.id;
}

uint64_t scene_post_read(struct scene *s, size_t offset, uint32_t len)
{
	return post(s, FLUE_WR_READ, offset, len);
}

uint64_t scene_post_send(struct scene *s, size_t offset, uint32_t len)
{
	return post(s, FLUE_WR_SEND, offset, len);
}

void scene_expect_wc(struct scene *s, uint64_t id, uint32_t status, struct flue_wc *wc)
{
	struct flue_wc here;

	if (!wc)
		wc = &here;
	assert_int_equal(pair_take(s->cq, wc, 1, RAW_PATIENCE_MS), 1);
	s->completed++;
	assert_int_equal(wc->id, id);
	assert_string_equal(flue_wc_status_name(wc->status), flue_wc_status_name(status));
	assert_ptr_equal(wc->qp, s->qp);
}

void scene_expect_flushed(struct scene *s)
{
	struct flue_wc wc;

	for (; s->completed < s->posted; s->completed++) {
		assert_int_equal(pair_take(s->cq, &wc, 1, RAW_PATIENCE_MS), 1);
		assert_string_equal(flue_wc_status_name(wc.status),
				    flue_wc_status_name(FLUE_WC_FLUSHED));
	}
}

/* ---- proof of life ---- */

static void prove_sends(struct scene *s, uint8_t *data, uint32_t n)
{
	struct raw_fpdu f;
	struct flue_wc wc;
	uint64_t id = scene_post_recv(s, 0, n);
	uint32_t got = 0;

	raw_send_message(&s->peer, data, n);
	scene_expect_wc(s, id, FLUE_WC_SUCCESS, &wc);
	assert_int_equal(wc.byte_len, n);
	scene_expect(s, AREA_LOCAL, 0, data, n);
	id = scene_post_send(s, 0, n);
	do {
		raw_expect_fpdu(&s->peer, RDMAP_SEND, &f);
		assert_int_equal(f.seg.mo, got);
		assert_memory_equal(f.payload, data + got, f.seg.payload_len);
		got += (uint32_t)f.seg.payload_len;
	} while (!f.seg.last);
	assert_int_equal(got, n);
	scene_expect_wc(s, id, FLUE_WC_SUCCESS, NULL);
}

static void prove_reads(struct scene *s, const uint8_t *data, uint32_t n)
{
	struct rdmap_read_request r = { .sink_stag = 99,
					.sink_to = 1000,
					.size = n,
					.src_stag = scene_key(s, AREA_READ),
					.src_to = scene_to(s, AREA_READ, 10) };
	struct ddp_segment answer = { .opcode = RDMAP_READ_RESPONSE, .tagged = true, .last = true };
	struct raw_fpdu f;
	uint32_t got = 0;
	uint64_t id;

	raw_read_request(&s->peer, &r);
	do {
		raw_expect_fpdu(&s->peer, RDMAP_READ_RESPONSE, &f);
		assert_int_equal(f.seg.stag, 99);
		assert_int_equal(f.seg.to, 1000 + got);
		assert_memory_equal(f.payload, scene_at(s, AREA_READ, 10 + got), f.seg.payload_len);
		got += (uint32_t)f.seg.payload_len;
	} while (!f.seg.last);
	assert_int_equal(got, n);
	id = scene_post_read(s, 200, n);
	raw_expect_read_request(&s->peer, &r);
	assert_int_equal(r.size, n);
	answer.stag = r.sink_stag;
	answer.to = r.sink_to;
	raw_send_segment(&s->peer, &answer, data, n);
	scene_expect_wc(s, id, FLUE_WC_SUCCESS, NULL);
	scene_expect(s, AREA_LOCAL, 200, data, n);
}

void scene_prove(struct scene *s)
{
	static const uint32_t sizes[] = { 0, 1, 100, 5000, 60000 };
	static uint8_t data[60000];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		uint32_t n = sizes[i];

		pair_fill(data, n, n + 1);
		raw_write(&s->peer, scene_key(s, AREA_RW), scene_to(s, AREA_RW, i), data, n);
		prove_sends(s, data, n);
		/* What came before a Send is in place when the Send is. */
		scene_expect(s, AREA_RW, i, data, n);
		prove_reads(s, data, n);
	}
}

/* ---- the end ---- */

void scene_expect_down(struct scene *s, uint32_t reason, uint32_t detail)
{
	assert_true(await(s, DOWN));
	assert_string_equal(flue_close_reason_name(s->seen.down.reason),
			    flue_close_reason_name(reason));
	if (reason == FLUE_CLOSE_FAULT || reason == FLUE_CLOSE_TERMINATED)
		assert_string_equal(flue_fault_name(s->seen.down.detail), flue_fault_name(detail));
	assert_int_equal(s->seen.down.detail, detail);
	assert_ptr_equal(s->seen.down.u.qp, s->qp);
	assert_int_equal(flue_qp_state(s->qp),
			 reason == FLUE_CLOSE_GRACEFUL ? FLUE_QP_IDLE : FLUE_QP_ERROR);
}

void scene_expect_fault(struct scene *s, uint32_t fault)
{
	raw_await_terminate(&s->peer, fault);
	raw_close(&s->peer);
	scene_expect_down(s, FLUE_CLOSE_FAULT, fault & ~WIRE_FAULT_BIT);
	scene_expect_flushed(s);
}
