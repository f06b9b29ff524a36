/* SPDX-License-Identifier: MIT */
/* Conformance: setting up connections (RD-8, RD-10). */
#include "conf/conf.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

/* Messages pass in both directions; the initiator speaks first. */
static void assert_talks(struct pair *p)
{
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(pair_recv(&p->a, 0, 100, 2));
	assert_ok(pair_send(&p->a, 0, 100, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_ok(pair_send(&p->b, 0, 100, 4, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.send_cq, 3, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->b.send_cq, 4, FLUE_WC_SUCCESS));
}

static uint16_t port_of(const struct sockaddr_storage *s)
{
	return s->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)s)->sin6_port
					: ((const struct sockaddr_in *)s)->sin_port;
}

static void connected_sides_show_who_they_are(void **state)
{
	struct pair *p = *state;

	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_RTS);
	assert_int_equal(port_of(&p->a.qp->peer), port_of(&p->listener->local));
	assert_int_equal(port_of(&p->b.qp->local), port_of(&p->listener->local));
	assert_int_equal(port_of(&p->a.qp->local), port_of(&p->b.qp->peer));
	assert_int_not_equal(port_of(&p->a.qp->local), 0);
	assert_int_equal(p->a.qp->ird, 16);
	assert_int_equal(p->a.qp->ord, 16);
	assert_talks(p);
	/* Blocking forms take their own events. */
	conf_expect_quiet(p);
}

static void ipv6_works_as_well(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.ipv6 = true;
	p = conf_pair(&o);
	assert_int_equal(p->a.qp->peer.ss_family, AF_INET6);
	assert_int_equal(p->b.qp->local.ss_family, AF_INET6);
	assert_talks(p);
	conf_end(p);
}

static void private_data_of_every_length_is_exchanged(void **state)
{
	static const size_t all[2][7] = { { 1, 3, 4, 5, 255, 507, 508 },
					  { 1, 3, 4, 5, 255, 455, 456 } };
	const size_t *lengths = all[pair_full];
	static uint8_t request[512], reply[512];

	pair_fill(request, 512, 1);
	pair_fill(reply, 512, 2);
	for (size_t i = 0; i < 7; i++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct pair *p;

		o.private_data[0] = request;
		o.private_data[1] = reply;
		o.private_len[0] = lengths[i];
		o.private_len[1] = lengths[6 - i];
		p = conf_pair(&o);
		assert_int_equal(p->b.qp->private_len, o.private_len[0]);
		assert_memory_equal(p->b.qp->private_data, request, o.private_len[0]);
		assert_int_equal(p->a.qp->private_len, o.private_len[1]);
		assert_memory_equal(p->a.qp->private_data, reply, o.private_len[1]);
		assert_talks(p);
		conf_end(p);
	}
}

static void revision_1_carries_512_octets_of_private_data(void **state)
{
	static uint8_t data[512];
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	STRICT_ONLY("full service has no revision 1");
	pair_fill(data, 512, 3);
	o.conn_flags[0] = FLUE_CONN_REV1;
	o.private_data[0] = o.private_data[1] = data;
	o.private_len[0] = o.private_len[1] = 512;
	p = conf_pair(&o);
	assert_int_equal(p->a.qp->private_len, 512);
	assert_memory_equal(p->a.qp->private_data, data, 512);
	assert_memory_equal(p->b.qp->private_data, data, 512);
	assert_talks(p);
	conf_end(p);
}

static void every_form_of_set_up_leads_to_a_connection(void **state)
{
	static const uint32_t forms[] = {
		0,
		FLUE_CONN_TWO_WAY,
		FLUE_CONN_RTR_SEND,
		FLUE_CONN_RTR_WRITE,
		FLUE_CONN_RTR_READ,
		FLUE_CONN_RTR_SEND | FLUE_CONN_RTR_WRITE | FLUE_CONN_RTR_READ,
		FLUE_CONN_REV1,
		FLUE_CONN_NO_FALLBACK,
		FLUE_CONN_STRICT_PEER,
		FLUE_CONN_STRICT_PEER | FLUE_CONN_RTR_READ,
		FLUE_CONN_MARKERS | FLUE_CONN_TWO_WAY,
		FLUE_CONN_NO_CRC | FLUE_CONN_RTR_SEND,
	};

	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		struct pair_options o = PAIR_DEFAULTS;
		struct pair *p;

		o.conn_flags[0] = forms[i];
		p = conf_pair(&o);
		assert_talks(p);
		assert_talks(p);
		conf_expect_quiet(p);
		conf_end(p);
	}
}

static void reads_are_limited_by_what_both_sides_have(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.ird = 3;
	o.ord = 7;
	p = conf_pair(&o);
	/* Nobody may ask for more than the other takes. */
	assert_true(p->a.qp->ord <= p->b.qp->ird);
	assert_true(p->b.qp->ord <= p->a.qp->ird);
	assert_true(p->a.qp->ord >= 1 && p->b.qp->ord >= 1);
	conf_end(p);
}

static struct flue_conn_request *next_request(struct pair *p)
{
	struct flue_conn_request *req = p->listener->ops->get_request(p->listener, 5000);

	assert_non_null(req);
	return req;
}

static void dial(struct pair *p, struct flue_qp *qp, uint32_t flags)
{
	struct flue_conn_attr attr = pair_conn_attr(p, flags | FLUE_CONN_ASYNC);

	attr.private_data = "hello";
	attr.private_len = 5;
	assert_ok(qp->ops->connect(qp, &attr));
}

static void request_shows_what_the_initiator_said(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_ASYNC);
	struct flue_conn_request *req;

	attr.ird = 5;
	attr.ord = 6;
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	assert_true(pair_event(&p->b, FLUE_EVENT_REQUEST, p->listener, NULL, 5000));
	req = next_request(p);
	assert_int_equal(req->revision, pair_full ? 0xf1 : 2);
	assert_true(req->full == pair_full);
	assert_true(req->peer_to_peer);
	assert_int_equal(req->peer_ird, 5);
	assert_int_equal(req->peer_ord, 6);
	assert_int_equal(req->private_len, 0);
	assert_int_equal(port_of(&req->local), port_of(&p->listener->local));
	assert_int_not_equal(port_of(&req->peer), 0);
	assert_fails(p->listener->ops->destroy(p->listener), EBUSY);
	assert_ok(req->ops->accept(req, p->b.qp, NULL));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECTED, p->a.qp, NULL, 5000));
	conf_expect_quiet(p);
	assert_talks(p);
}

static void asynchronous_set_up_is_told_once_to_each_side(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_ASYNC);
	struct flue_conn_request *req;

	dial(p, p->a.qp, 0);
	assert_true(pair_event(&p->b, FLUE_EVENT_REQUEST, p->listener, NULL, 5000));
	req = next_request(p);
	assert_memory_equal(req->private_data, "hello", 5);
	assert_ok(req->ops->accept(req, p->b.qp, &attr));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECTED, p->a.qp, NULL, 5000));
	assert_true(pair_event(&p->b, FLUE_EVENT_CONNECTED, p->b.qp, NULL, 5000));
	assert_int_equal(p->b.qp->private_len, 5);
	assert_talks(p);
	conf_expect_quiet(p);
}

struct asker {
	struct pair *p;
	bool ok;
	int error;
};

static void *ask_main(void *arg)
{
	struct asker *asker = arg;
	struct flue_conn_attr attr = pair_conn_attr(asker->p, 0);

	asker->ok = asker->p->a.qp->ops->connect(asker->p->a.qp, &attr);
	asker->error = errno;
	return NULL;
}

static void rejection_carries_private_data(void **state)
{
	static uint8_t data[4096];
	struct pair *p = *state;
	struct asker asker = { .p = p };
	struct flue_conn_request *req;
	const struct flue_caps *caps = p->b.adapter->caps;
	size_t most = pair_full ? caps->max_private_full : caps->max_private_reject;
	pthread_t thread;

	pair_fill(data, sizeof(data), 5);
	assert_true(most && most <= sizeof(data));
	assert_int_equal(pthread_create(&thread, NULL, ask_main, &asker), 0);
	req = next_request(p);
	assert_int_equal(req->max_reject, most);
	assert_int_equal(req->max_reply, pair_full ? most : caps->max_private_reply);
	assert_ok(req->ops->reject(req, data, most));
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_false(asker.ok);
	assert_int_equal(asker.error, ECONNREFUSED);
	assert_int_equal(p->a.qp->private_len, most);
	assert_memory_equal(p->a.qp->private_data, data, most);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	/* The queue pair can try again. */
	assert_ok(pair_connect(p));
	assert_talks(p);
}

static void rejection_of_an_asynchronous_connect_is_an_event(void **state)
{
	struct pair *p = *state;
	struct flue_conn_request *req;
	struct flue_event ev;

	dial(p, p->a.qp, 0);
	req = next_request(p);
	assert_ok(req->ops->reject(req, "no", 2));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, p->a.qp, &ev, 5000));
	assert_int_equal(ev.detail, ECONNREFUSED);
	assert_memory_equal(p->a.qp->private_data, "no", 2);
	conf_expect_quiet(p);
}

static void connect_is_refused_when_nobody_listens(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr;
	struct sockaddr_storage gone = p->listener->local;

	assert_ok(p->listener->ops->destroy(p->listener));
	p->listener = NULL;
	attr = FLUE_ATTR(struct flue_conn_attr);
	attr.remote = (struct sockaddr *)&gone;
	attr.remote_len = sizeof(struct sockaddr_in);
	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), ECONNREFUSED);
	assert_int_equal(p->a.qp->private_len, 0);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
}

/* ---- a peer that speaks plain TCP ---- */

static int tcp_listen(struct sockaddr_in *at)
{
	socklen_t len = sizeof(*at);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_in) { .sin_family = AF_INET };
	at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)at, len), 0);
	assert_int_equal(listen(fd, 8), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)at, &len), 0);
	return fd;
}

static int tcp_connect(const struct flue_listener *l)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(
		connect(fd, (const struct sockaddr *)&l->local, sizeof(struct sockaddr_in)), 0);
	return fd;
}

static struct flue_conn_attr attr_to(const struct sockaddr_in *at, int timeout_ms)
{
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);

	attr.remote = (const struct sockaddr *)at;
	attr.remote_len = sizeof(*at);
	attr.timeout_ms = timeout_ms;
	return attr;
}

static void connect_times_out_when_the_peer_is_silent(void **state)
{
	struct pair *p = *state;
	struct sockaddr_in at;
	int fd = tcp_listen(&at);
	struct flue_conn_attr attr = attr_to(&at, 200);
	uint64_t start = pair_now_ms();
	unsigned aborts = faulty_calls(FAULTY_abort);

	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), ETIMEDOUT);
	assert_true(pair_now_ms() - start >= 190);
	assert_true(pair_now_ms() - start < 5000);
	/* By the provider's own timer, not by the access layer's patience. */
	assert_int_equal(faulty_calls(FAULTY_abort), aborts);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	conf_expect_quiet(p);
	close(fd);
	assert_ok(pair_connect(p));
}

struct impostor {
	int fd;
	const char *answer;
};

static void *impostor_main(void *arg)
{
	struct impostor *impostor = arg;
	char buf[1024];
	int fd = accept(impostor->fd, NULL, NULL);

	if (read(fd, buf, sizeof(buf)) > 0 && impostor->answer)
		if (write(fd, impostor->answer, strlen(impostor->answer)) < 0)
			perror("write");
	usleep(20000);
	close(fd);
	return NULL;
}

static int connect_to_impostor(struct pair *p, const char *answer, uint32_t flags)
{
	struct impostor impostor = { .answer = answer };
	struct sockaddr_in at;
	struct flue_conn_attr attr;
	pthread_t thread;
	int error;

	impostor.fd = tcp_listen(&at);
	assert_int_equal(pthread_create(&thread, NULL, impostor_main, &impostor), 0);
	attr = attr_to(&at, 3000);
	attr.flags = flags;
	assert_false(p->a.qp->ops->connect(p->a.qp, &attr));
	error = errno;
	assert_int_equal(pthread_join(thread, NULL), 0);
	close(impostor.fd);
	return error;
}

static void connect_fails_when_the_peer_speaks_something_else(void **state)
{
	struct pair *p = *state;

	assert_int_equal(connect_to_impostor(p, "HTTP/1.1 400 Bad Request\r\n\r\n",
					     FLUE_CONN_NO_FALLBACK),
			 EPROTO);
	assert_int_equal(connect_to_impostor(p, NULL, FLUE_CONN_NO_FALLBACK), ECONNRESET);
	conf_expect_quiet(p);
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	assert_ok(pair_connect(p));
}

/* Reads until the end of the stream; false if it does not come. */
static bool closed_within(int fd, int seconds)
{
	struct timeval limit = { .tv_sec = seconds };
	char buf[256];
	ssize_t n;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	do {
		n = read(fd, buf, sizeof(buf));
	} while (n > 0);
	return n == 0 || errno == ECONNRESET;
}

static void listener_drops_peers_that_talk_nonsense(void **state)
{
	struct pair *p = *state;
	int fd = tcp_connect(p->listener);

	assert_int_equal(write(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27), 27);
	assert_true(closed_within(fd, 5));
	close(fd);
	conf_expect_quiet(p);
	assert_ok(pair_connect(p));
	assert_talks(p);
}

static struct flue_listener *listen_with(struct pair *p, const struct flue_listen_attr *extra)
{
	struct flue_listen_attr attr = *extra;
	struct sockaddr_in at = { .sin_family = AF_INET };

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	attr.local = (struct sockaddr *)&at;
	attr.local_len = sizeof(at);
	attr.flags = pair_full ? FLUE_LISTEN_FULL : 0;
	return p->b.adapter->ops->listen(p->b.adapter, &attr);
}

static void listener_drops_silent_peers_in_time(void **state)
{
	struct pair *p = *state;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_listener *l;
	uint64_t start = pair_now_ms();
	int fd;

	attr.request_timeout_ms = 200;
	assert_ok(l = listen_with(p, &attr));
	fd = tcp_connect(l);
	assert_int_equal(write(fd, "MPA ID Req", 10), 10);
	assert_true(closed_within(fd, 5));
	assert_true(pair_now_ms() - start >= 150);
	assert_true(pair_now_ms() - start < 5000);
	close(fd);
	assert_ok(l->ops->destroy(l));
}

static unsigned open_files(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void flood_of_half_open_connections_is_bounded(void **state)
{
	struct pair *p = *state;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_listener *l;
	unsigned files;
	int fds[20];

	attr.max_half_open = 5;
	attr.request_timeout_ms = 60000;
	assert_ok(l = listen_with(p, &attr));
	files = open_files();
	for (unsigned i = 0; i < 20; i++)
		fds[i] = tcp_connect(l);
	/* Those beyond the limit wait unserved: they have no file of ours, and nobody is closed. */
	usleep(50000);
	assert_true(open_files() <= files + 20 + 5);
	for (unsigned i = 0; i < 20; i++) {
		char c;

		assert_int_equal(recv(fds[i], &c, 1, MSG_DONTWAIT), -1);
		assert_int_equal(errno, EAGAIN);
	}
	assert_fails(l->ops->get_request(l, 0), EAGAIN);
	/* When the flood is gone, real ones are served. */
	for (unsigned i = 0; i < 20; i++)
		close(fds[i]);
	assert_ok(p->listener->ops->destroy(p->listener));
	p->listener = l;
	assert_ok(pair_connect(p));
	assert_talks(p);
}

static void requests_beyond_the_backlog_are_rejected(void **state)
{
	struct pair *p = *state;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_request *req;
	struct flue_qp *qps[6];
	struct flue_event ev;
	unsigned refused = 0;

	NOT_SELF("both sides hear through one queue of events");
	attr.backlog = 2;
	assert_ok(p->listener->ops->destroy(p->listener));
	assert_ok(p->listener = listen_with(p, &attr));
	for (unsigned i = 0; i < 6; i++) {
		assert_ok(qps[i] = pair_new_qp(p, &p->a));
		dial(p, qps[i], 0);
	}
	while (refused < 4) {
		assert_ok(flue_get_event(p->a.adapter, &ev, 5000));
		assert_int_equal(ev.type, FLUE_EVENT_CONNECT_FAILED);
		assert_int_equal(ev.detail, ECONNREFUSED);
		refused++;
	}
	/* One is accepted, the other one rejected with its listener. */
	req = next_request(p);
	assert_ok(req->ops->accept(req, p->b.qp, NULL));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECTED, NULL, NULL, 5000));
	assert_ok(p->listener->ops->destroy(p->listener));
	p->listener = NULL;
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, NULL, &ev, 5000));
	for (unsigned i = 0; i < 6; i++)
		assert_ok(flue_destroy_qp(qps[i]));
}

static void listen_reports_why_it_cannot(void **state)
{
	struct pair *p = *state;
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct sockaddr_in at = { .sin_family = AF_INET };
	struct flue_adapter *a = p->a.adapter;

	attr.local = (struct sockaddr *)&p->listener->local;
	attr.local_len = sizeof(at);
	assert_fails(a->ops->listen(a, &attr), EADDRINUSE);
	at.sin_addr.s_addr = inet_addr("192.0.2.1");
	attr.local = (struct sockaddr *)&at;
	assert_fails(a->ops->listen(a, &attr), EADDRNOTAVAIL);
	attr.local = NULL;
	assert_fails(a->ops->listen(a, &attr), EINVAL);
}

static void connect_uses_the_local_address_it_is_given(void **state)
{
	struct pair *p = *state;
	struct sockaddr_in local = { .sin_family = AF_INET };
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_ASYNC);
	struct flue_conn_request *req;

	local.sin_addr.s_addr = inet_addr("127.0.0.9");
	attr.local = (struct sockaddr *)&local;
	attr.local_len = sizeof(local);
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	req = next_request(p);
	assert_int_equal(((struct sockaddr_in *)&req->peer)->sin_addr.s_addr,
			 local.sin_addr.s_addr);
	assert_ok(req->ops->accept(req, p->b.qp, NULL));
	local.sin_addr.s_addr = inet_addr("192.0.2.1");
	assert_fails(p->b.qp->ops->connect(p->b.qp, &attr), EISCONN);
}

static void connected_qp_refuses_another_connection(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = pair_conn_attr(p, 0);
	struct flue_conn_request *req;
	struct flue_qp *other;
	struct flue_event ev;

	NOT_SELF("two adapters are needed");
	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), EISCONN);
	assert_ok(other = pair_new_qp(p, &p->a));
	dial(p, other, 0);
	req = next_request(p);
	assert_fails(req->ops->accept(req, p->b.qp, NULL), EISCONN);
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, other, &ev, 5000));
	assert_int_equal(ev.detail, ECONNREFUSED);
	dial(p, other, 0);
	req = next_request(p);
	assert_fails(req->ops->accept(req, p->a.qp, NULL), EXDEV);
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, other, &ev, 5000));
	assert_talks(p);
	assert_ok(flue_destroy_qp(other));
}

static void accept_fails_when_the_initiator_went_away(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;

	dial(p, p->a.qp, 0);
	req = next_request(p);
	assert_ok(flue_abort(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, p->a.qp, NULL, 5000));
	usleep(20000);
	attr.timeout_ms = 2000;
	errno = 0;
	assert_false(req->ops->accept(req, p->b.qp, &attr));
	assert_true(errno == ECONNRESET || errno == ETIMEDOUT);
	assert_ok(p->a.qp->ops->reset(p->a.qp));
	assert_ok(p->b.qp->ops->reset(p->b.qp));
	assert_ok(pair_connect(p));
	assert_talks(p);
}

static void set_up_can_be_abandoned(void **state)
{
	struct pair *p = *state;
	struct sockaddr_in at;
	int fd = tcp_listen(&at);
	struct flue_conn_attr attr = attr_to(&at, 20000);
	struct flue_event ev;

	attr.flags = FLUE_CONN_ASYNC;
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	assert_fails(p->a.qp->ops->connect(p->a.qp, &attr), EISCONN);
	assert_ok(flue_disconnect(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, p->a.qp, &ev, 5000));
	assert_int_equal(ev.detail, ECONNABORTED);
	conf_expect_quiet(p);
	/* Or destroyed, without a word. */
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	assert_ok(flue_destroy_qp(p->a.qp));
	p->a.qp = NULL;
	conf_expect_quiet(p);
	close(fd);
}

/* ---- deferred ---- */

static void deferred_connect_holds_the_queue_pair_idle_until_start(void **state)
{
	struct pair *p = *state;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;

	dial(p, p->a.qp, FLUE_CONN_DEFER);
	req = next_request(p);
	attr.flags = FLUE_CONN_ASYNC;
	attr.private_data = "answer";
	attr.private_len = 6;
	assert_ok(req->ops->accept(req, p->b.qp, &attr));
	assert_true(pair_event(&p->a, FLUE_EVENT_ACCEPTED, p->a.qp, NULL, 5000));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	assert_memory_equal(p->a.qp->private_data, "answer", 6);
	assert_ok(pair_recv(&p->a, 0, 100, 2));
	assert_fails(pair_send(&p->a, 0, 10, 3, 0), ENOTCONN);
	assert_ok(p->a.qp->ops->start(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECTED, p->a.qp, NULL, 5000));
	assert_true(pair_wait_state(p->b.qp, FLUE_QP_RTS, 5000));
	assert_ok(pair_send(&p->b, 0, 10, 1, 0));
	assert_true(pair_expect(p->a.recv_cq, 2, FLUE_WC_SUCCESS));
	assert_talks(p);
}

struct acceptor {
	struct pair *p;
	uint32_t flags;
	bool ok;
	int error;
};

static void *accept_main(void *arg)
{
	struct acceptor *acceptor = arg;
	struct flue_listener *l = acceptor->p->listener;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req = l->ops->get_request(l, 5000);

	attr.flags = acceptor->flags;
	acceptor->ok = req && req->ops->accept(req, acceptor->p->b.qp, &attr);
	acceptor->error = errno;
	return NULL;
}

static void deferred_connect_can_be_blocking(void **state)
{
	struct pair *p = *state;
	struct acceptor acceptor = { .p = p };
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_DEFER);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, accept_main, &acceptor), 0);
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_IDLE);
	assert_ok(p->a.qp->ops->start(p->a.qp));
	assert_int_equal(flue_qp_state(p->a.qp), FLUE_QP_RTS);
	assert_fails(p->a.qp->ops->start(p->a.qp), EINVAL);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(acceptor.ok);
	assert_talks(p);
}

static void deferred_connect_can_be_refused(void **state)
{
	struct pair *p = *state;
	struct acceptor acceptor = { .p = p };
	struct flue_conn_attr attr = pair_conn_attr(p, FLUE_CONN_DEFER);
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, accept_main, &acceptor), 0);
	assert_ok(p->a.qp->ops->connect(p->a.qp, &attr));
	assert_ok(flue_disconnect(p->a.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECT_FAILED, p->a.qp, NULL, 5000));
	assert_int_equal(pthread_join(thread, NULL), 0);
	/* Three-way: the responder was waiting for the word that now never comes. */
	assert_false(acceptor.ok);
	assert_int_equal(acceptor.error, ECONNRESET);
}

static void deferred_accept_holds_the_queue_pair_idle_until_start(void **state)
{
	struct pair *p = *state;
	struct acceptor acceptor = { .p = p, .flags = FLUE_CONN_DEFER };
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, accept_main, &acceptor), 0);
	dial(p, p->a.qp, 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(acceptor.ok);
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_IDLE);
	assert_ok(pair_recv(&p->b, 0, 100, 1));
	assert_ok(p->b.qp->ops->start(p->b.qp));
	assert_true(pair_event(&p->a, FLUE_EVENT_CONNECTED, p->a.qp, NULL, 5000));
	assert_int_equal(flue_qp_state(p->b.qp), FLUE_QP_RTS);
	assert_ok(pair_send(&p->a, 0, 100, 1, 0));
	assert_true(pair_expect(p->b.recv_cq, 1, FLUE_WC_SUCCESS));
	assert_talks(p);
}

/* ---- who speaks first ---- */

static void responder_of_a_two_way_set_up_waits_for_the_first_message(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct flue_wc wc;
	struct pair *p;
	uint32_t got;

	o.conn_flags[0] = FLUE_CONN_TWO_WAY;
	p = conf_pair(&o);
	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(pair_recv(&p->b, 0, 100, 2));
	assert_ok(pair_send(&p->b, 0, 100, 3, FLUE_SIGNALED));
	usleep(50000);
	assert_ok(flue_poll(p->a.recv_cq, &wc, 1, &got));
	assert_int_equal(got, 0);
	assert_ok(pair_send(&p->a, 0, 100, 4, FLUE_SIGNALED));
	assert_true(pair_expect(p->b.recv_cq, 2, FLUE_WC_SUCCESS));
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void lenient_responder_may_speak_first(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	struct pair *p;

	o.conn_flags[0] = FLUE_CONN_TWO_WAY;
	o.conn_flags[1] = FLUE_CONN_LENIENT;
	p = conf_pair(&o);
	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(pair_send(&p->b, 0, 100, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_SUCCESS));
	conf_end(p);
}

static void responder_of_a_three_way_set_up_may_speak_first(void **state)
{
	struct pair *p = *state;

	assert_ok(pair_recv(&p->a, 0, 100, 1));
	assert_ok(pair_send(&p->b, 0, 100, 3, FLUE_SIGNALED));
	assert_true(pair_expect(p->a.recv_cq, 1, FLUE_WC_SUCCESS));
}

/* ---- many ---- */

#define MANY 60

static void many_connections_are_set_up_at_once(void **state)
{
	struct pair_options o = PAIR_DEFAULTS;
	static struct flue_qp *a[MANY], *b[MANY];
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	unsigned up[2] = { 0 };
	struct flue_event ev;
	struct pair p;

	assert_ok(pair_make(&p, &o));
	attr.flags = FLUE_CONN_ASYNC;
	for (unsigned i = 0; i < MANY; i++) {
		assert_ok(a[i] = pair_new_qp(&p, &p.a));
		assert_ok(b[i] = pair_new_qp(&p, &p.b));
		dial(&p, a[i], i % 2 ? FLUE_CONN_TWO_WAY : 0);
	}
	for (unsigned i = 0; i < MANY; i++) {
		struct flue_conn_request *req = next_request(&p);

		assert_ok(req->ops->accept(req, b[i], &attr));
	}
	while (up[0] < MANY) {
		assert_ok(flue_get_event(p.a.adapter, &ev, 5000));
		assert_int_equal(ev.type, FLUE_EVENT_CONNECTED);
		up[0]++;
	}
	while (up[1] < MANY) {
		assert_ok(flue_get_event(p.b.adapter, &ev, 5000));
		up[1] += ev.type == FLUE_EVENT_CONNECTED;
	}
	conf_expect_quiet(&p);
	for (unsigned i = 0; i < MANY; i++)
		assert_ok(flue_destroy_qp(a[i]) && flue_destroy_qp(b[i]));
	assert_ok(pair_close(&p));
}

struct server {
	struct pair *p;
	atomic_uint events, wrong;
};

static void on_request(const struct flue_event *ev, void *arg)
{
	struct server *s = arg;
	struct flue_conn_attr attr = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req = ev->u.listener->ops->get_request(ev->u.listener, 0);

	attr.flags = FLUE_CONN_ASYNC;
	if (ev->type != FLUE_EVENT_REQUEST || !req || !req->ops->accept(req, s->p->b.qp, &attr))
		atomic_fetch_add(&s->wrong, 1);
	atomic_fetch_add(&s->events, 1);
}

static void request_handler_can_accept_at_once(void **state)
{
	struct pair *p = *state;
	struct server s = { .p = p };
	struct flue_listen_attr attr = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr to;

	attr.on_event = on_request;
	attr.event_arg = &s;
	assert_ok(p->listener->ops->destroy(p->listener));
	assert_ok(p->listener = listen_with(p, &attr));
	to = pair_conn_attr(p, 0);
	assert_ok(p->a.qp->ops->connect(p->a.qp, &to));
	/* The handler may still be at its last line. */
	for (unsigned i = 0; i < 5000 && !atomic_load(&s.events); i++)
		usleep(1000);
	assert_int_equal(atomic_load(&s.events), 1);
	assert_int_equal(atomic_load(&s.wrong), 0);
	assert_true(pair_event(&p->b, FLUE_EVENT_CONNECTED, p->b.qp, NULL, 5000));
	assert_talks(p);
}

int main(int argc, char **argv)
{
	/* RD-8 all of them; others are named. */
	const struct CMUnitTest tests[] = {
		WITH_PAIR(connected_sides_show_who_they_are),
		cmocka_unit_test(ipv6_works_as_well),
		cmocka_unit_test(private_data_of_every_length_is_exchanged),
		cmocka_unit_test(revision_1_carries_512_octets_of_private_data),
		cmocka_unit_test(every_form_of_set_up_leads_to_a_connection),
		cmocka_unit_test(reads_are_limited_by_what_both_sides_have),
		WITH_IDLE_PAIR(request_shows_what_the_initiator_said),
		WITH_IDLE_PAIR(asynchronous_set_up_is_told_once_to_each_side), /* CH-18 */
		WITH_IDLE_PAIR(rejection_carries_private_data),
		WITH_IDLE_PAIR(rejection_of_an_asynchronous_connect_is_an_event), /* CH-18 */
		WITH_IDLE_PAIR(connect_is_refused_when_nobody_listens),
		WITH_IDLE_PAIR(connect_times_out_when_the_peer_is_silent),
		WITH_IDLE_PAIR(connect_fails_when_the_peer_speaks_something_else),
		WITH_IDLE_PAIR(listener_drops_peers_that_talk_nonsense),
		WITH_IDLE_PAIR(listener_drops_silent_peers_in_time),
		WITH_IDLE_PAIR(flood_of_half_open_connections_is_bounded),
		WITH_IDLE_PAIR(requests_beyond_the_backlog_are_rejected),
		WITH_IDLE_PAIR(listen_reports_why_it_cannot),
		WITH_IDLE_PAIR(connect_uses_the_local_address_it_is_given),
		WITH_PAIR(connected_qp_refuses_another_connection),
		WITH_IDLE_PAIR(accept_fails_when_the_initiator_went_away),
		WITH_IDLE_PAIR(set_up_can_be_abandoned),
		WITH_IDLE_PAIR(deferred_connect_holds_the_queue_pair_idle_until_start), /* RD-10 */
		WITH_IDLE_PAIR(deferred_connect_can_be_blocking),                       /* RD-10 */
		WITH_IDLE_PAIR(deferred_connect_can_be_refused),                        /* RD-10 */
		WITH_IDLE_PAIR(deferred_accept_holds_the_queue_pair_idle_until_start),  /* RD-10 */
		cmocka_unit_test(responder_of_a_two_way_set_up_waits_for_the_first_message),
		cmocka_unit_test(lenient_responder_may_speak_first),
		WITH_PAIR(responder_of_a_three_way_set_up_may_speak_first),
		cmocka_unit_test(many_connections_are_set_up_at_once),
		WITH_IDLE_PAIR(request_handler_can_accept_at_once),
	};

	conf_init(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
