/* SPDX-License-Identifier: MIT */
/*
 * The scene of an attack: an adapter with one engine; on it a healthy pair of queue pairs that
 * exchanges verified data all the time, in a thread of its own; a victim, whose peer is a
 * raw_peer; and memory with guard zones around everything that is granted. A test begins with
 * scene_connect() or by hand, attacks, says how the victim's connection must have ended, and
 * closes with scene_leave(), which checks that nothing else happened: no byte changed that was
 * not announced, every request completed once, one DISCONNECTED event, the healthy pair alive.
 */
#ifndef FLUE_TESTS_SCENE_H
#define FLUE_TESTS_SCENE_H

#include <flue/flue.h>
#include <pthread.h>

#include "hostile/raw_peer.h"

/* Memory of the victim, each area between two guards. */
enum area {
	AREA_RW,    /* remote read and write */
	AREA_READ,  /* remote read only */
	AREA_WRITE, /* remote write only */
	AREA_LOCAL, /* no remote right: receives and sinks of Reads */
	AREA_OTHER, /* of another protection domain, all rights */
	AREA_INV,   /* may be revoked by the peer */
	AREA_N,
	/* Not areas, only keys. */
	KEY_STALE = AREA_N, /* of a region that was */
	KEY_JUNK,           /* of nothing */
	KEY_ZERO,
};
#define AREA_SIZE  (160u << 10)
#define GUARD_SIZE 4096u

struct scene_mode {
	const char *name;
	bool initiator; /* the victim's role */
	bool crc, markers, trickle;
};
/* CRC on, markers off, the victim is the responder. */
extern const struct scene_mode scene_default;

struct scene_events {
	pthread_mutex_t lock;
	pthread_cond_t news;
	unsigned accepted, connected, failed, disconnected;
	struct flue_event up, down; /* the last ones */
};

struct scene {
	const struct scene_mode *mode;
	struct flue_adapter *adapter;
	struct flue_pd *pd, *other_pd;
	struct flue_cq *cq;
	struct flue_qp *qp;
	struct flue_listener *listener;
	struct flue_mr *mr[AREA_N];
	uint32_t stale_key;
	uint8_t *zone, *shadow;     /* the memory, and what it must look like */
	struct scene_events events; /* written by the library's threads */
	struct scene_events seen;   /* the copy that await made */
	unsigned posted, completed;
	struct raw_peer peer;
	uint32_t conn_flags; /* more flags for connect() and accept() */
	uint32_t fpdu_max;
};

/* cmocka: setup and teardown of a group and of a test. *state is the scene, unless the test has
 * a state of its own. */
int scene_open(void **state);
int scene_close(void **state);
int scene_enter(void **state);
int scene_leave(void **state);
#define WITH_SCENE(test) cmocka_unit_test_setup_teardown(test, scene_enter, scene_leave)

struct scene *scene_here(void);

/* ---- connecting ---- */
/* Peer and victim in full operation, the ready-to-receive message included. */
void scene_connect(struct scene *s, const struct scene_mode *mode);
/* For tests that do it step by step: takes CRC and markers from the mode. */
void scene_use(struct scene *s, const struct scene_mode *mode);
struct flue_conn_attr scene_attr(const struct scene *s);
/* The peer connects to the victim's listener. */
void scene_dial(struct scene *s);
/* The victim takes the request that came; does not wait. False: errno. */
struct flue_conn_request *scene_request(struct scene *s);
void scene_accept(struct scene *s);
/* The victim connects to us; the peer has the TCP connection. Returns our listening socket,
 * to be closed by the caller. */
int scene_call(struct scene *s);
void scene_await_connected(struct scene *s);
/* Deferred: the frames are exchanged, start() is to be called. */
void scene_await_accepted(struct scene *s);
/* It failed, or came about and ended. */
void scene_await_end(struct scene *s);
/* The connection did not come about: errno of the event. */
int scene_await_failed(struct scene *s);

/* ---- memory ---- */
uint32_t scene_key(const struct scene *s, int key);
/* Tagged offset of an octet of an area. */
uint64_t scene_to(const struct scene *s, int area, size_t offset);
uint8_t *scene_at(const struct scene *s, int area, size_t offset);
/* The octets there may have changed. */
void scene_allow(struct scene *s, int area, size_t offset, size_t len);
/* They must be these. */
void scene_expect(struct scene *s, int area, size_t offset, const void *data, size_t len);

/* ---- requests of the victim, ids count from 1 in each test ---- */
uint64_t scene_post_recv(struct scene *s, size_t offset, uint32_t len);
uint64_t scene_post_read(struct scene *s, size_t offset, uint32_t len);
uint64_t scene_post_send(struct scene *s, size_t offset, uint32_t len);
/* The next completion is of this request and so. */
void scene_expect_wc(struct scene *s, uint64_t id, uint32_t status, struct flue_wc *wc);
/* All others are flushed. */
void scene_expect_flushed(struct scene *s);

/* Every kind of message in both directions, verified: the connection works. */
void scene_prove(struct scene *s);

/* ---- the end ---- */
/* DISCONNECTED came, for this reason; `detail` as the reason defines it. */
void scene_expect_down(struct scene *s, uint32_t reason, uint32_t detail);
/* The victim found a fault: Terminate on the wire, the event, everything flushed. */
void scene_expect_fault(struct scene *s, uint32_t fault);
/* The healthy pair did something since. */
void scene_expect_health(struct scene *s);

#endif
