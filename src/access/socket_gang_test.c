/* SPDX-License-Identifier: MIT */
/* Many sockets are switched in one call (CH-15), and handed over in one call of their provider. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "access/fake_priv.h"
#include "access/socket_priv.h"

#define N 7

static struct flue_adapter *a[2];
static struct flue_socket *s[N];
static struct flue_gang gang[N];
static int fd[N][2];
static char data[64];
static struct flue_switch_attr to;

/* Turn and turn about on two adapters. */
static void open_all(void)
{
	to = FLUE_ATTR(struct flue_switch_attr);
	a[0] = fake_open(NULL, 0);
	a[1] = fake_open(NULL, 0);
	for (unsigned i = 0; i < N; i++) {
		fake_streams(fd[i]);
		s[i] = flue_socket_open(a[i % 2], fd[i][0], NULL);
		assert_non_null(s[i]);
		assert_true(fake_socket_to(s[i], FLUE_OFFLOAD_READY));
		gang[i] = (struct flue_gang) { .socket = s[i],
					       .attr = &to,
					       .switch_id = 10 + i,
					       .data = data,
					       .length = sizeof(data),
					       .recv_id = 20 + i,
					       .error = -1 };
	}
}

static int begin(void **state)
{
	fake_reset();
	open_all();
	return 0;
}

static int end(void **state)
{
	for (unsigned i = 0; i < N; i++) {
		bool ours = s[i]->state == FLUE_SOCKET_STREAMING;

		assert_true(s[i]->ops->destroy(s[i]));
		if (ours)
			close(fd[i][0]);
		close(fd[i][1]);
	}
	return !flue_close(a[0]) || !flue_close(a[1]) || fake.qps || fake.cqs || fake.mrs ||
	       fake.pds;
}

static void expect(unsigned i, uint32_t type, uint64_t id, int error)
{
	struct flue_socket_event ev;

	if (!flue_socket_get_event(s[i], &ev, 5000))
		fail_msg("socket %u: no event, want %u: %s", i, type, strerror(errno));
	assert_int_equal(ev.type, type);
	assert_int_equal(ev.id, id);
	assert_int_equal(ev.error, error);
}

static struct prov_qp *prov(unsigned i)
{
	return to_qp(s[i]->qp)->prov;
}

/* The thread that hands a socket over later changes it. */
static int descriptor_of(unsigned i)
{
	int number;

	pthread_mutex_lock(&to_socket(s[i])->lock);
	number = s[i]->fd;
	pthread_mutex_unlock(&to_socket(s[i])->lock);
	return number;
}

/* All but `except` were taken over and go on. */
static void check_others(unsigned except)
{
	for (unsigned i = 0; i < N; i++) {
		if (i == except)
			continue;
		assert_int_equal(gang[i].error, 0);
		assert_int_equal(s[i]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
		assert_int_equal(s[i]->fd, -1);
		assert_true(prov(i)->has_stream);
		assert_int_equal(prov(i)->stream.fd, fd[i][0]);
		assert_int_equal(prov(i)->n_recvs, 1);
		fake_news(s[i]->qp, FLUE_EVENT_CONNECTED, 0, 0);
		expect(i, FLUE_SOCKET_SWITCHED, 10 + i, 0);
	}
}

static void gang_is_one_call_of_each_provider(void **state)
{
	assert_int_equal(flue_socket_switch_gang(gang, N), N);
	assert_int_equal(fake.n_gangs, 2);
	assert_true(fake.gangs[0] == 4 && fake.gangs[1] == 3);
	assert_int_equal(fake.adopts, N);
	check_others(N);
}

static void provider_without_gangs_takes_one_by_one(void **state)
{
	assert_int_equal(end(state), 0);
	fake_reset();
	fake.no_gang = true;
	open_all();
	assert_int_equal(flue_socket_switch_gang(gang, N), N);
	assert_int_equal(fake.n_gangs, 0);
	assert_int_equal(fake.adopts, N);
	check_others(N);
}

/* Nothing had happened, so nothing is lost. */
static void gang_that_is_refused_is_taken_one_by_one(void **state)
{
	fake.rc.gang = -ENOMEM;
	assert_int_equal(flue_socket_switch_gang(gang, N), N);
	assert_int_equal(fake.adopts, N);
	fake.rc.gang = 0;
	check_others(N);
}

static void member_that_is_refused_does_no_harm_to_others(void **state)
{
	fake.gang_bad = 2;
	fake.on_abort = fake_flush;
	gang[3].socket = s[0]; /* twice: not again */
	assert_int_equal(flue_socket_switch_gang(gang, 3), 3);
	assert_int_equal(fake.n_gangs, 1); /* the other adapter has one only */
	assert_int_equal(fake.gangs[0], 2);
	expect(2, FLUE_SOCKET_SWITCHED, 12, EINVAL);
	expect(2, FLUE_SOCKET_RDMA_RECEIVED, 22, ECANCELED);
	expect(2, FLUE_SOCKET_ENDED, 0, 0);
	assert_int_equal(s[0]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	assert_int_equal(s[1]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
	fake.gang_bad = 0;
	assert_int_equal(flue_socket_switch_gang(gang + 3, 4), 3);
	assert_int_equal(gang[3].error, EBADFD);
	assert_int_equal(s[3]->offload_state, FLUE_OFFLOAD_READY);
	for (unsigned i = 4; i < N; i++)
		assert_int_equal(s[i]->offload_state, FLUE_OFFLOAD_IN_PROGRESS);
}

/* What is not acknowledged yet follows later, by itself (CH-11). */
static void member_that_is_not_ready_follows(void **state)
{
	static char much[1 << 20];
	char sink[1 << 16];

	/* More than the peer's TCP takes without its reader. */
	while (send(fd[1][0], much, sizeof(much), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(flue_socket_switch_gang(gang, N), N);
	assert_true(fake.n_gangs == 2 && fake.gangs[0] == 4 && fake.gangs[1] == 2);
	assert_int_equal(fake.adopts, N - 1);
	while (atomic_load(&fake.adopts) < N)
		if (recv(fd[1][1], sink, sizeof(sink), MSG_DONTWAIT) <= 0)
			usleep(1000);
	while (descriptor_of(1) >= 0)
		usleep(1000);
	assert_int_equal(fake.n_gangs, 2);
	check_others(N);
}

#define WITH_GANG(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* CH-15 */
		WITH_GANG(gang_is_one_call_of_each_provider),
		WITH_GANG(provider_without_gangs_takes_one_by_one),
		WITH_GANG(gang_that_is_refused_is_taken_one_by_one),
		WITH_GANG(member_that_is_refused_does_no_harm_to_others), /* CH-14 */
		WITH_GANG(member_that_is_not_ready_follows),              /* CH-11 */
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
