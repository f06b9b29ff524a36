/* SPDX-License-Identifier: MIT */
#include "serve.h"
#include "pattern.h"
#include "proto.h"
#include "util.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A client that says nothing for so long is let go. */
#define IDLE_MS 120000
/* Beside the data messages: the empty one that ends a test. */
#define EXTRA_RECEIVES 2

struct server {
	const struct serve_attr *attr;
	pthread_mutex_t lock;
	pthread_cond_t left;
	uint32_t present; /* being served now */
	uint64_t served;  /* clients that came and announced no further session, or broke off */
};

/* One client. Belongs to its thread once that runs. */
struct visit {
	struct server *server;
	struct flue_conn_request *request;
	struct ep ep;
	struct ep_memory data; /* what the client writes to and reads from: slots * slot_size */
	struct ep_memory rx;   /* receives */
	struct ep_memory tx;   /* source of answers */
	struct ep_memory says; /* our own messages */
	uint32_t slots;
	size_t slot_size, send_size, rx_size;
	bool no_crc, more;
	char name[UTIL_TEXT_MAX];
};

/* The test that runs. */
struct trial {
	uint32_t op, what, window, slots;
	bool verify;
	uint64_t size, messages, bad;
	struct ep_remote back;
};

static void log_line(struct visit *v, const char *text)
{
	FILE *log = v->server->attr->log;

	if (log) {
		fprintf(log, "%s: %s\n", v->name, text);
		fflush(log);
	}
}

static bool say(struct visit *v, const struct proto_msg *msg)
{
	size_t length = proto_encode(msg, v->says.data);

	return ep_post(&v->ep, FLUE_WR_SEND, &v->says, 0, (uint32_t)length, NULL, false);
}

static bool post_receive(struct visit *v, uint64_t id)
{
	return ep_post_recv(&v->ep, &v->rx, id * v->rx_size, (uint32_t)v->rx_size, id);
}

/* What the client may ask for follows from its HELLO; nothing else is granted. */
static bool begin(struct visit *v, const struct proto_msg *msg, struct trial *t)
{
	uint64_t limit = msg->u.test.op == PROTO_SEND ? v->send_size : v->slot_size;

	if (msg->u.test.size > limit || msg->u.test.window > v->slots ||
	    msg->u.test.slots > v->slots)
		return false;
	if (msg->u.test.op == PROTO_WRITE && msg->u.test.what == PROTO_LATENCY &&
	    msg->u.test.back.length < msg->u.test.size)
		return false;
	memset(t, 0, sizeof(*t));
	t->op = msg->u.test.op;
	t->what = msg->u.test.what;
	t->window = msg->u.test.window;
	t->slots = msg->u.test.slots;
	t->verify = msg->u.test.verify;
	t->size = msg->u.test.size;
	t->back.addr = msg->u.test.back.addr;
	t->back.rkey = msg->u.test.back.rkey;
	if (t->verify && t->op == PROTO_READ) {
		for (uint32_t i = 0; i < t->slots; i++)
			pattern_fill(v->data.data + i * v->slot_size, t->size, i);
	}
	return true;
}

static bool echo_send(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	const uint8_t *data = v->rx.data + wc->id * v->rx_size;

	if (t->verify) {
		t->bad += wc->byte_len != t->size || !pattern_check(data, t->size, t->messages);
		pattern_fill(v->tx.data, t->size, ~t->messages);
	}
	t->messages++;
	/* The answer first: the client waits for it, but not for the receive. */
	return ep_post(&v->ep, FLUE_WR_SEND, &v->tx, 0, (uint32_t)t->size, NULL, false) &&
	       post_receive(v, wc->id);
}

static bool echo_write(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	const uint8_t *data = v->data.data + (t->messages % t->slots) * v->slot_size;

	if (t->verify) {
		t->bad += !pattern_check(data, t->size, t->messages);
		pattern_fill(v->tx.data, t->size, ~t->messages);
	}
	t->messages++;
	return post_receive(v, wc->id) &&
	       ep_post(&v->ep, FLUE_WR_WRITE, &v->tx, 0, (uint32_t)t->size, &t->back, false) &&
	       ep_post(&v->ep, FLUE_WR_SEND, &v->says, 0, 1, NULL, false);
}

static bool take_send(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	struct proto_msg credit = { .kind = PROTO_CREDIT };
	uint32_t every = t->window >= 4 ? t->window / 4 : 1;
	const uint8_t *data = v->rx.data + wc->id * v->rx_size;

	t->bad += wc->byte_len != t->size ||
		  (t->verify && !pattern_check(data, t->size, t->messages));
	t->messages++;
	if (!post_receive(v, wc->id))
		return false;
	credit.u.credit = t->messages;
	return t->messages % every != 0 || say(v, &credit);
}

static bool check_writes(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	struct proto_msg msg;
	uint64_t bad = 0;

	if (!proto_decode(v->rx.data + wc->id * v->rx_size, wc->byte_len, &msg) ||
	    msg.kind != PROTO_CHECK || msg.u.check.count > t->slots) {
		errno = EPROTO;
		return false;
	}
	for (uint64_t k = msg.u.check.first; k - msg.u.check.first < msg.u.check.count; k++)
		bad += !pattern_check(v->data.data + (k % t->slots) * v->slot_size, t->size, k);
	t->messages += msg.u.check.count;
	msg.kind = PROTO_REPORT;
	msg.u.report.messages = t->messages;
	msg.u.report.bytes = t->messages * t->size;
	msg.u.report.bad = bad; /* not kept in t: the client adds up what it is told here */
	return post_receive(v, wc->id) && say(v, &msg);
}

static bool handle_data(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	if (t->op == PROTO_SEND)
		return t->what == PROTO_LATENCY ? echo_send(v, t, wc) : take_send(v, t, wc);
	if (t->op == PROTO_WRITE)
		return t->what == PROTO_LATENCY ? echo_write(v, t, wc) : check_writes(v, t, wc);
	errno = EPROTO; /* Reads need no word */
	return false;
}

static bool finish(struct visit *v, struct trial *t, const struct flue_wc *wc)
{
	struct proto_msg report = { .kind = PROTO_REPORT };
	char size[UTIL_TEXT_MAX], text[160];

	report.u.report.messages = t->messages;
	report.u.report.bytes = t->messages * t->size;
	report.u.report.bad = t->bad;
	if (!post_receive(v, wc->id) || !say(v, &report))
		return false;
	snprintf(text, sizeof(text), "%s %s of %s%s", proto_op_name(t->op),
		 proto_what_name(t->what), util_size_text(size, t->size),
		 t->bad ? ": WRONG DATA RECEIVED" : "");
	log_line(v, text);
	return true;
}

static bool run_trial(struct visit *v, struct trial *t)
{
	struct proto_msg ready = { .kind = PROTO_READY };
	struct flue_wc wc;

	if (!say(v, &ready))
		return false;
	for (;;) {
		if (!ep_recv(&v->ep, &wc, IDLE_MS))
			return false;
		if (wc.byte_len == 0)
			return finish(v, t, &wc);
		if (!handle_data(v, t, &wc))
			return false;
	}
}

/* Tests until the client leaves. */
static void converse(struct visit *v)
{
	struct proto_msg msg;
	struct trial trial;
	struct flue_wc wc;
	char text[200];
	bool good = true;

	while (good && ep_recv(&v->ep, &wc, IDLE_MS)) {
		if (!proto_decode(v->rx.data + wc.id * v->rx_size, wc.byte_len, &msg) ||
		    msg.kind != PROTO_TEST || !begin(v, &msg, &trial)) {
			log_line(v, "dropped: it asked for something impossible");
			return;
		}
		good = post_receive(v, wc.id) && run_trial(v, &trial);
	}
	ep_explain(&v->ep, text, sizeof(text));
	if (!good || !ep_ended_well(&v->ep))
		log_line(v, text);
}

static bool open_visit(struct visit *v)
{
	struct ep_attr attr = { .adapter = v->server->attr->adapter };
	size_t receives = v->slots + EXTRA_RECEIVES;
	size_t answer = v->send_size > v->slot_size ? v->send_size : v->slot_size;

	attr.wait = v->server->attr->wait;
	attr.sq_depth = 2 * v->slots + 16;
	attr.rq_depth = (uint32_t)receives;
	if (!ep_open(&v->ep, &attr))
		return false;
	if (!ep_memory_open(&v->ep, &v->data, v->slots * v->slot_size,
			    FLUE_LOCAL_WRITE | FLUE_REMOTE_WRITE | FLUE_REMOTE_READ) ||
	    !ep_memory_open(&v->ep, &v->rx, receives * v->rx_size, FLUE_LOCAL_WRITE) ||
	    !ep_memory_open(&v->ep, &v->tx, answer, 0) ||
	    !ep_memory_open(&v->ep, &v->says, PROTO_MAX, 0))
		return false;
	/* Real pages, not the kernel's one page of zeros: see session.c. */
	memset(v->data.data, 0xa5, v->data.length);
	memset(v->tx.data, 0xa5, v->tx.length);
	for (size_t i = 0; i < receives; i++) {
		if (!post_receive(v, i))
			return false;
	}
	return true;
}

static void close_visit(struct visit *v)
{
	if (v->ep.qp) {
		/* After the client's close this answers it; otherwise destroying resets. */
		if (v->ep.failed.status != FLUE_WC_SUCCESS)
			flue_disconnect(v->ep.qp);
		flue_destroy_qp(v->ep.qp);
		v->ep.qp = NULL;
	}
	ep_memory_close(&v->data);
	ep_memory_close(&v->rx);
	ep_memory_close(&v->tx);
	ep_memory_close(&v->says);
	ep_close(&v->ep);
}

static void refuse(struct flue_conn_request *request, const char *why)
{
	struct proto_msg msg = { .kind = PROTO_REFUSAL };
	uint8_t octets[PROTO_MAX];

	snprintf(msg.u.refusal, sizeof(msg.u.refusal), "%s", why);
	request->ops->reject(request, octets, proto_encode(&msg, octets));
}

static bool accept_visit(struct visit *v)
{
	struct flue_conn_attr conn = FLUE_ATTR(struct flue_conn_attr);
	struct proto_msg msg = { .kind = PROTO_WELCOME };
	uint8_t octets[PROTO_MAX];

	msg.u.welcome.addr = v->data.mr->remote_start;
	msg.u.welcome.length = v->data.length;
	msg.u.welcome.rkey = v->data.mr->rkey;
	conn.private_data = octets;
	conn.private_len = proto_encode(&msg, octets);
	conn.flags = v->no_crc ? FLUE_CONN_NO_CRC : 0;
	return v->request->ops->accept(v->request, v->ep.qp, &conn);
}

static void *visit_main(void *arg)
{
	struct visit *v = arg;
	struct server *server = v->server;
	bool more = false;
	char text[160];

	if (!open_visit(v)) {
		snprintf(text, sizeof(text), "the server has no room: %s", strerror(errno));
		log_line(v, text);
		refuse(v->request, text);
	} else if (!accept_visit(v)) {
		snprintf(text, sizeof(text), "left while connecting: %s", strerror(errno));
		log_line(v, text);
	} else {
		converse(v);
		more = v->more && ep_ended_well(&v->ep);
	}
	close_visit(v);
	free(v);
	pthread_mutex_lock(&server->lock);
	server->present--;
	server->served += !more;
	pthread_cond_signal(&server->left);
	pthread_mutex_unlock(&server->lock);
	return NULL;
}

/* Check the HELLO. NULL: fine, v is filled in; else the reason to refuse. */
static const char *examine(struct server *server, struct visit *v, char text[UTIL_TEXT_MAX])
{
	struct flue_conn_request *request = v->request;
	const struct serve_attr *attr = server->attr;
	struct proto_msg hello;
	uint64_t memory;
	uint32_t present;

	pthread_mutex_lock(&server->lock);
	present = server->present;
	pthread_mutex_unlock(&server->lock);
	if (present >= attr->at_once)
		return "busy; try again later";
	if (!proto_decode(request->private_data, request->private_len, &hello) ||
	    hello.kind != PROTO_HELLO)
		return "this is flue's test server, version 1 of its protocol; use 'flue perf' or 'flue ping'";
	v->slots = hello.u.hello.slots;
	v->slot_size = hello.u.hello.slot_size;
	v->send_size = hello.u.hello.send_size;
	v->rx_size = v->send_size > PROTO_MAX ? v->send_size : PROTO_MAX;
	v->more = hello.u.hello.flags & PROTO_HELLO_MORE;
	v->no_crc = (hello.u.hello.flags & PROTO_HELLO_NO_CRC) && !attr->crc_always;
	memory = v->slots * v->slot_size + (v->slots + EXTRA_RECEIVES) * v->rx_size;
	if (memory > attr->memory_max) {
		snprintf(text, UTIL_TEXT_MAX, "%llu MiB wanted, %llu granted; use smaller sizes",
			 (unsigned long long)(memory >> 20),
			 (unsigned long long)(attr->memory_max >> 20));
		return text;
	}
	return NULL;
}

static void start_visit(struct server *server, struct flue_conn_request *request)
{
	struct visit *v = calloc(1, sizeof(*v));
	char text[UTIL_TEXT_MAX];
	const char *why;
	pthread_t thread;

	if (!v) {
		refuse(request, "the server is out of memory");
		return;
	}
	v->server = server;
	v->request = request;
	v->ep.epoll = -1;
	util_address_text(v->name, &request->peer);
	why = examine(server, v, text);
	if (why) {
		log_line(v, why);
		refuse(request, why);
		free(v);
		return;
	}
	pthread_mutex_lock(&server->lock);
	server->present++;
	pthread_mutex_unlock(&server->lock);
	if (pthread_create(&thread, NULL, visit_main, v)) {
		refuse(request, "the server cannot start a thread");
		pthread_mutex_lock(&server->lock);
		server->present--;
		pthread_mutex_unlock(&server->lock);
		free(v);
		return;
	}
	pthread_detach(thread);
}

static bool explain_listen(const struct serve_attr *attr)
{
	char address[UTIL_TEXT_MAX];
	struct sockaddr_storage local = { 0 };
	const char *advice = "";

	memcpy(&local, attr->local, attr->local_len);
	if (errno == EADDRINUSE)
		advice = "; choose another port with -p";
	else if (errno == EADDRNOTAVAIL)
		advice = "; 'ip address' lists this machine's addresses";
	else if (errno == EACCES)
		advice = "; ports below 1024 need privilege, choose another with -p";
	util_error("cannot listen on %s: %s%s", util_address_text(address, &local), strerror(errno),
		   advice);
	return false;
}

/* Whether enough clients were served. */
static bool done(struct server *server, bool wait_for_last)
{
	bool result;

	pthread_mutex_lock(&server->lock);
	while (wait_for_last && server->present > 0)
		pthread_cond_wait(&server->left, &server->lock);
	result = server->attr->clients && server->served >= server->attr->clients;
	pthread_mutex_unlock(&server->lock);
	return result;
}

bool serve(const struct serve_attr *attr)
{
	struct server server = { .attr = attr, .lock = PTHREAD_MUTEX_INITIALIZER };
	struct flue_listen_attr listen_attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_request *request;
	struct flue_listener *listener;
	bool good;

	pthread_cond_init(&server.left, NULL);
	listen_attr.local = attr->local;
	listen_attr.local_len = attr->local_len;
	listen_attr.flags = attr->full ? FLUE_LISTEN_FULL : 0;
	listener = attr->adapter->ops->listen(attr->adapter, &listen_attr);
	if (!listener)
		return explain_listen(attr);
	if (attr->listening)
		attr->listening(&listener->local, attr->arg);
	while (!done(&server, false)) {
		/* A counting server looks up now and then: the last client ends in its own thread. */
		request = listener->ops->get_request(listener, attr->clients ? 200 : -1);
		if (request)
			start_visit(&server, request);
		else if (errno != EINTR && errno != ETIMEDOUT)
			break;
	}
	good = done(&server, true);
	listener->ops->destroy(listener);
	pthread_cond_destroy(&server.left);
	return good;
}
