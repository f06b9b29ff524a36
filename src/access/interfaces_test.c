/* SPDX-License-Identifier: MIT */
/* Watches of interfaces, over a kernel that says what the test wants (CH-17, WN-8). */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <flue/flue.h>
#include <linux/if_addr.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access/interfaces_fake_priv.h"

#define WORKS (IFF_UP | IFF_RUNNING)

static const struct fake_link lo = { 1, "lo", WORKS, 65536, ARPHRD_LOOPBACK, 0 };
static const struct fake_link eth0 = { 2, "eth0", WORKS, 1500, ARPHRD_ETHER, 0 };
static const struct fake_link eth1 = { 3, "eth1", 0, 1500, ARPHRD_ETHER, 0 };
static const struct fake_address lo4 = { 1, "127.0.0.1", 8, 0 };
static const struct fake_address eth0_4 = { 2, "192.0.2.1", 24, 0 };
static const struct fake_address eth0_6 = { 2, "fe80::1", 64, 0 };

static struct flue_interface_watch *watch;

static int reset(void **state)
{
	fake_reset();
	fake.links[0] = lo;
	fake.links[1] = eth0;
	fake.links[2] = eth1;
	fake.n_links = 3;
	fake.addresses[0] = lo4;
	fake.addresses[1] = eth0_4;
	fake.addresses[2] = eth0_6;
	fake.n_addresses = 3;
	return 0;
}

static void open_watch(void)
{
	watch = flue_watch_interfaces(NULL);
	assert_non_null(watch);
}

static void close_watch(void)
{
	assert_true(flue_unwatch_interfaces(watch));
}

static const char *text_of(const struct sockaddr_storage *s, char *buf)
{
	const void *octets = s->ss_family == AF_INET
				     ? (const void *)&((const struct sockaddr_in *)s)->sin_addr
				     : (const void *)&((const struct sockaddr_in6 *)s)->sin6_addr;

	return inet_ntop(s->ss_family, octets, buf, INET6_ADDRSTRLEN);
}

/* "existing 2 eth0 1500 up running 192.0.2.1 fe80::1" */
static void describe(char *to, size_t size, uint32_t notice, const struct flue_interface *i)
{
	char address[INET6_ADDRSTRLEN];
	int n = snprintf(to, size, "%s %u %s %u%s%s", flue_interface_notice_name(notice), i->index,
			 i->name, i->mtu, i->up ? " up" : "", i->running ? " running" : "");

	assert_int_equal(i->size, sizeof(*i));
	for (uint32_t k = 0; k < i->n_addresses; k++)
		n += snprintf(to + n, size - (size_t)n, " %s", text_of(&i->addresses[k], address));
}

static void expect_on(struct flue_interface_watch *w, const char *what)
{
	const struct flue_interface *iface;
	uint32_t notice;
	char line[512];

	assert_true(flue_next_interface(w, &notice, &iface, 0));
	describe(line, sizeof(line), notice, iface);
	assert_string_equal(line, what);
}

static void expect(const char *what)
{
	expect_on(watch, what);
}

static void expect_error(int err)
{
	const struct flue_interface *iface;
	uint32_t notice;
	char line[512];

	errno = 0;
	if (flue_next_interface(watch, &notice, &iface, 0)) {
		describe(line, sizeof(line), notice, iface);
		fail_msg("unexpected: %s", line);
	}
	assert_int_equal(errno, err);
}

static void expect_silence(void)
{
	expect_error(EAGAIN);
}

static void expect_existing(void)
{
	expect("existing 1 lo 65536 up running 127.0.0.1");
	expect("existing 2 eth0 1500 up running 192.0.2.1 fe80::1");
	expect("existing 3 eth1 1500");
	expect_silence();
}

static struct fake_link with_flags(const struct fake_link *l, uint32_t flags)
{
	struct fake_link changed = *l;

	changed.flags = flags;
	return changed;
}

/* ---- what is told ---- */

static void watch_tells_existing_interfaces_once(void **state)
{
	open_watch();
	expect_existing();
	assert_int_equal(fake.requests, 2);
	/* The kernel repeats itself: nothing new. */
	fake_say_link(RTM_NEWLINK, &eth0);
	fake_say_address(RTM_NEWADDR, &eth0_4);
	expect_silence();
	close_watch();
}

static void watch_made_late_hears_of_existing_interfaces(void **state)
{
	struct flue_interface_watch *late;

	open_watch();
	expect_existing();
	fake_say_link(RTM_DELLINK, &eth1);
	fake.n_links = 2;
	late = flue_watch_interfaces(NULL);
	assert_non_null(late);
	expect_on(late, "existing 1 lo 65536 up running 127.0.0.1");
	expect_on(late, "existing 2 eth0 1500 up running 192.0.2.1 fe80::1");
	expect("gone 3 eth1 1500");
	expect_silence();
	assert_true(flue_unwatch_interfaces(late));
	close_watch();
}

static void watch_tells_the_life_of_an_interface_in_order(void **state)
{
	struct fake_link l = { 9, "veth9", 0, 1500, ARPHRD_ETHER, 0 };
	struct fake_address a = { 9, "198.51.100.9", 24, 0 };

	fake.n_links = fake.n_addresses = 0;
	open_watch();
	expect_silence();
	fake_say_link(RTM_NEWLINK, &l);
	expect("new 9 veth9 1500");
	l.flags = IFF_UP;
	fake_say_link(RTM_NEWLINK, &l);
	expect("changed 9 veth9 1500 up");
	fake_say_address(RTM_NEWADDR, &a);
	expect("changed 9 veth9 1500 up 198.51.100.9");
	l.flags = WORKS;
	fake_say_link(RTM_NEWLINK, &l);
	expect("up 9 veth9 1500 up running 198.51.100.9");
	l.mtu = 9000;
	l.name = "renamed";
	fake_say_link(RTM_NEWLINK, &l);
	expect("changed 9 renamed 9000 up running 198.51.100.9");
	l.flags = IFF_UP;
	fake_say_link(RTM_NEWLINK, &l);
	expect("going down 9 renamed 9000 up 198.51.100.9");
	l.flags = 0;
	fake_say_link(RTM_NEWLINK, &l);
	expect("changed 9 renamed 9000 198.51.100.9");
	fake_say_link(RTM_DELLINK, &l);
	expect("gone 9 renamed 9000 198.51.100.9");
	fake_say_address(RTM_DELADDR, &a); /* late */
	fake_say_address(RTM_NEWADDR, &a);
	fake_say_link(RTM_DELLINK, &l);
	expect_silence();
	fake_say_link(RTM_NEWLINK, &l);
	expect("new 9 renamed 9000");
	expect_silence();
	close_watch();
}

static void watch_tells_going_down_before_gone_without_a_word_from_the_kernel(void **state)
{
	open_watch();
	expect_existing();
	fake_say_link(RTM_DELLINK, &eth0);
	fake_say_link(RTM_NEWLINK, &eth0); /* at once again, with the same number */
	expect("going down 2 eth0 1500 192.0.2.1 fe80::1");
	expect("gone 2 eth0 1500 192.0.2.1 fe80::1");
	expect("new 2 eth0 1500 up running");
	expect_silence();
	close_watch();
}

static void watch_shows_addresses_that_can_be_used_each_once(void **state)
{
	struct fake_address v6 = { 3, "2001:db8::1", 64, IFA_F_TENTATIVE | IFA_F_PERMANENT };
	struct fake_address twice = { 3, "192.0.2.3", 24, 0 };
	const struct flue_interface *iface;
	struct sockaddr_in6 scoped;
	uint32_t notice;

	open_watch();
	assert_true(flue_next_interface(watch, &notice, &iface, 0));
	assert_true(flue_next_interface(watch, &notice, &iface, 0));
	memcpy(&scoped, &iface->addresses[1], sizeof(scoped));
	assert_int_equal(scoped.sin6_scope_id, 2); /* a link-local one */
	expect("existing 3 eth1 1500");
	fake_say_address(RTM_NEWADDR, &v6);
	expect_silence();
	v6.flags = IFA_F_PERMANENT;
	fake_say_address(RTM_NEWADDR, &v6);
	expect("changed 3 eth1 1500 2001:db8::1");
	fake_say_address(RTM_NEWADDR, &twice);
	expect("changed 3 eth1 1500 192.0.2.3 2001:db8::1");
	twice.prefix = 16;
	fake_say_address(RTM_NEWADDR, &twice);
	expect_silence();
	fake_say_address(RTM_DELADDR, &twice);
	expect_silence();
	twice.prefix = 24;
	fake_say_address(RTM_DELADDR, &twice);
	expect("changed 3 eth1 1500 2001:db8::1");
	v6.flags = IFA_F_TENTATIVE | IFA_F_DADFAILED;
	fake_say_address(RTM_NEWADDR, &v6);
	expect("changed 3 eth1 1500");
	close_watch();
}

static void watch_shows_only_interfaces_that_can_carry_tcp(void **state)
{
	struct fake_link can = { 5, "can0", WORKS, 16, ARPHRD_CAN, 0 };
	struct fake_address a = { 5, "192.0.2.5", 24, 0 };
	struct fake_link port = { 2, "eth0", WORKS, 1500, ARPHRD_ETHER, AF_BRIDGE };
	struct fake_link wireless = { 2, NULL, WORKS, 0, ARPHRD_ETHER, 0 };

	fake.links[fake.n_links++] = can;
	open_watch();
	expect_existing();
	fake_say_address(RTM_NEWADDR, &a);
	expect("new 5 can0 16 up running 192.0.2.5");
	fake_say_address(RTM_DELADDR, &a);
	expect("going down 5 can0 16 192.0.2.5");
	expect("gone 5 can0 16 192.0.2.5");
	/* A bridge that loses its port; a wireless driver's message without name and MTU. */
	fake_say_link(RTM_DELLINK, &port);
	fake_say_link(RTM_NEWLINK, &wireless);
	wireless.index = 77;
	fake_say_link(RTM_NEWLINK, &wireless);
	expect_silence();
	close_watch();
}

/* ---- dumps that race, fail and repeat ---- */

/* While links are dumped: eth0 goes, and its record comes afterwards; eth9 is new and is in no
 * record; eth1's address goes and its record comes afterwards. */
static bool race(uint16_t type, uint32_t seq)
{
	static const struct fake_link eth9 = { 9, "eth9", 0, 1500, ARPHRD_ETHER, 0 };
	static const struct fake_address eth9_4 = { 9, "192.0.2.9", 24, 0 };
	static const struct fake_address old = { 3, "192.0.2.3", 24, 0 };

	if (type == RTM_GETLINK) {
		fake_say_link(RTM_DELLINK, &eth0);
		fake_say_link(RTM_NEWLINK, &eth9);
		return false;
	}
	fake_say_address(RTM_DELADDR, &old);
	fake_say_address(RTM_NEWADDR, &eth9_4);
	fake.addresses[fake.n_addresses++] = old;
	return false;
}

static void watch_believes_live_notices_more_than_a_dump(void **state)
{
	fake.hook = race;
	open_watch();
	expect("existing 9 eth9 1500 192.0.2.9");
	expect("existing 1 lo 65536 up running 127.0.0.1");
	expect("existing 3 eth1 1500");
	expect_silence();
	close_watch();
}

/* The first answers are interrupted: one in a record, one in the end of the second dump. */
static bool interrupt(uint16_t type, uint32_t seq)
{
	struct message m = { 0 };

	fake.hooked++;
	if (fake.hooked == 1) {
		msg_link(&m, RTM_NEWLINK, &lo, NLM_F_MULTI | NLM_F_DUMP_INTR, seq, FAKE_PORT);
		msg_done(&m, 0, seq, FAKE_PORT);
	} else if (fake.hooked == 3) {
		assert_int_equal(type, RTM_GETADDR);
		msg_done(&m, NLM_F_DUMP_INTR, seq, FAKE_PORT);
	}
	if (m.len)
		fake_push(&m, 0);
	return m.len;
}

static void watch_repeats_a_dump_that_was_interrupted(void **state)
{
	fake.hook = interrupt;
	open_watch();
	expect_existing();
	assert_int_equal(fake.requests, 5);
	close_watch();
}

/* eth0 is replaced by another of that name, eth1 comes up, lo gets another address; all unheard. What
 * waits from before the loss is not believed: it would take away the interface that is new. */
static void watch_tells_the_difference_after_messages_were_lost(void **state)
{
	struct fake_link again = eth0;
	struct fake_address second = { 1, "127.0.0.2", 8, 0 };

	open_watch();
	expect_existing();
	again.index = 8;
	fake_push_error(ENOBUFS);
	fake_say_link(RTM_NEWLINK, &again);
	fake_say_link(RTM_DELLINK, &again);
	fake_push_error(ENOBUFS);
	fake.links[1] = again;
	fake.links[2].flags = WORKS;
	fake.addresses[0] = second;
	fake.n_addresses = 1;
	expect("going down 2 eth0 1500 192.0.2.1 fe80::1");
	expect("gone 2 eth0 1500 192.0.2.1 fe80::1");
	expect("changed 1 lo 65536 up running 127.0.0.2");
	expect("new 8 eth0 1500 up running");
	expect("up 3 eth1 1500 up running");
	expect_silence();
	/* And nothing if nothing happened; in the middle of a dump, too. */
	fake_push_error(ENOBUFS);
	expect_silence();
	close_watch();
}

/* Down and away and back with the same number, while the dump after a loss is under way. */
static bool replace(uint16_t type, uint32_t seq)
{
	if (type == RTM_GETLINK && !fake.hooked++)
		fake_push_error(ENOBUFS); /* once more */
	if (type == RTM_GETADDR) {
		fake_say_link(RTM_DELLINK, &eth0);
		fake_say_link(RTM_NEWLINK, &eth0);
	}
	return false;
}

static void watch_tells_that_an_interface_was_replaced_during_a_dump(void **state)
{
	open_watch();
	expect_existing();
	fake.hook = replace;
	fake_push_error(ENOBUFS);
	expect("going down 2 eth0 1500 192.0.2.1 fe80::1");
	expect("gone 2 eth0 1500 192.0.2.1 fe80::1");
	/* The addresses in the dump were its predecessor's; its own would come as notices. */
	expect("new 2 eth0 1500 up running");
	expect_silence();
	close_watch();
}

static bool refuse(uint16_t type, uint32_t seq)
{
	int32_t error = fake.hooked ? -ENOMEM : -EBUSY;
	struct message m = { 0 };

	if (fake.hooked++ > 1)
		return false;
	/* An error in answer to the request, or at the end of the dump. */
	msg_begin(&m, fake.hooked == 1 ? NLMSG_ERROR : NLMSG_DONE, 0, seq, FAKE_PORT);
	msg_put(&m, &error, sizeof(error));
	msg_end(&m);
	fake_push(&m, 0);
	return true;
}

static void watch_says_why_the_kernel_refused_and_tries_again(void **state)
{
	fake.hook = refuse;
	open_watch();
	expect_error(EBUSY);
	expect_error(ENOMEM);
	expect_existing();
	close_watch();
}

static void watch_survives_messages_that_make_no_sense(void **state)
{
	struct message m = { 0 };

	open_watch();
	expect_existing();
	msg_put(&m, "\xff\xff\xff\xff", 4);
	fake_push(&m, 0);
	expect_error(EBADMSG);
	expect_silence();
	assert_int_equal(fake.requests, 4);
	m.len = 0;
	msg_begin(&m, NLMSG_OVERRUN, 0, 0, 0);
	msg_end(&m);
	fake_push(&m, 0);
	expect_silence();
	assert_int_equal(fake.requests, 6);
	fake_push_error(EIO);
	expect_error(EIO);
	fake_push_error(EINTR);
	expect_silence();
	assert_int_equal(fake.requests, 8);
	close_watch();
}

/* The rest of an answer to a request that was given up. */
static bool old_answer(uint16_t type, uint32_t seq)
{
	struct message m = { 0 };

	msg_link(&m, RTM_DELLINK, &lo, NLM_F_MULTI | NLM_F_DUMP_INTR, seq - 1, FAKE_PORT);
	msg_done(&m, 0, seq - 1, FAKE_PORT);
	fake_push(&m, 0);
	return false;
}

static void watch_ignores_what_is_not_meant_for_it(void **state)
{
	struct message m = { 0 };

	fake.hook = old_answer;
	open_watch();
	expect_existing();
	msg_link(&m, RTM_DELLINK, &eth0, 0, 0, 0);
	fake_push(&m, 1234); /* some process */
	m.len = 0;
	msg_link(&m, RTM_DELLINK, &eth0, NLM_F_MULTI, 77, FAKE_PORT); /* an older question's */
	msg_done(&m, NLM_F_DUMP_INTR, 77, FAKE_PORT);
	msg_done(&m, 0, 3, 99);
	fake_push(&m, 0);
	expect_silence();
	assert_int_equal(fake.requests, 2);
	close_watch();
}

static void watch_makes_room_for_a_message_that_was_cut_off(void **state)
{
	static uint8_t statistics[60000];
	struct message m = { 0 };

	open_watch();
	expect_existing();
	for (int i = 0; i < 2; i++) {
		struct fake_link l = with_flags(&eth0, i ? WORKS : IFF_UP);

		m.len = 0;
		msg_begin(&m, RTM_NEWROUTE, 0, 0, 0);
		msg_put(&m, statistics, sizeof(statistics));
		msg_end(&m);
		msg_link(&m, RTM_NEWLINK, &l, 0, 0, 0);
		fake.links[1] = l;
		fake_push(&m, 0);
		expect(i ? "up 2 eth0 1500 up running 192.0.2.1 fe80::1"
			 : "going down 2 eth0 1500 up 192.0.2.1 fe80::1");
		expect_silence();
		assert_int_equal(fake.requests, 4); /* only the first time */
	}
	close_watch();
}

/* ---- the descriptor, time ---- */

static bool readable(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static void descriptor_is_readable_while_there_is_work(void **state)
{
	int fd;

	open_watch();
	fd = watch->ops->fd(watch);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_true(readable(fd));
	expect("existing 1 lo 65536 up running 127.0.0.1");
	assert_true(readable(fd)); /* although the kernel has nothing to say */
	expect("existing 2 eth0 1500 up running 192.0.2.1 fe80::1");
	expect("existing 3 eth1 1500");
	expect_silence();
	assert_false(readable(fd));
	fake_say_link(RTM_NEWLINK, &eth1);
	assert_true(readable(fd));
	expect_silence();
	assert_false(readable(fd));
	fake_push_error(ENOBUFS);
	assert_true(readable(fd));
	expect_silence();
	assert_false(readable(fd));
	close_watch();
}

static void on_alarm(int signal)
{
	(void)signal;
}

static void next_waits_as_long_as_it_is_told(void **state)
{
	struct sigaction act = { .sa_handler = on_alarm }, old;
	struct itimerval soon = { .it_value.tv_usec = 50000 };
	const struct flue_interface *iface;
	uint32_t notice;

	open_watch();
	expect_existing();
	assert_false(flue_next_interface(watch, &notice, &iface, 30));
	assert_int_equal(errno, ETIMEDOUT);
	sigaction(SIGALRM, &act, &old);
	setitimer(ITIMER_REAL, &soon, NULL);
	assert_false(flue_next_interface(watch, &notice, &iface, -1));
	assert_int_equal(errno, EINTR);
	sigaction(SIGALRM, &old, NULL);
	fake_say_link(RTM_DELLINK, &eth1);
	assert_true(flue_next_interface(watch, &notice, &iface, -1));
	close_watch();
}

/* Interrupted dumps without end: a call that shall not wait must come back. */
static bool interrupt_for_ever(uint16_t type, uint32_t seq)
{
	struct message m = { 0 };

	msg_done(&m, NLM_F_DUMP_INTR, seq, FAKE_PORT);
	fake_push(&m, 0);
	return true;
}

static void next_comes_back_when_dumps_never_end(void **state)
{
	const struct flue_interface *iface;
	uint32_t notice;

	fake.hook = interrupt_for_ever;
	open_watch();
	expect_silence();
	assert_true(readable(watch->ops->fd(watch)));
	assert_false(flue_next_interface(watch, &notice, &iface, 20));
	assert_int_equal(errno, ETIMEDOUT);
	fake.hook = NULL;
	expect_existing();
	close_watch();
}

static void *sleep_in_next(void *arg)
{
	const struct flue_interface *iface;
	uint32_t notice;

	while (!flue_next_interface(watch, &notice, &iface, -1))
		if (errno != EBUSY)
			return NULL;
	return watch;
}

static void second_caller_of_next_is_refused(void **state)
{
	const struct flue_interface *iface;
	pthread_t thread;
	uint32_t notice;
	void *result;
	int err;

	open_watch();
	expect_existing();
	assert_int_equal(pthread_create(&thread, NULL, sleep_in_next, NULL), 0);
	do
		err = flue_next_interface(watch, &notice, &iface, 0) ? 0 : errno;
	while (err == EAGAIN);
	assert_int_equal(err, EBUSY);
	fake_say_link(RTM_DELLINK, &eth1);
	pthread_join(thread, &result);
	assert_ptr_equal(result, watch);
	close_watch();
}

/* ---- the thread ---- */

struct listener {
	struct flue_interface_watch *watch;
	atomic_uint n;
	atomic_int destroy_error;
	atomic_bool hold, inside, signals_open;
	pthread_mutex_t lock;
	char lines[32][128];
};

static void on_notice(uint32_t notice, const struct flue_interface *iface, void *arg)
{
	struct listener *l = arg;
	sigset_t blocked;

	pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	if (!sigismember(&blocked, SIGALRM) || !sigismember(&blocked, SIGTERM))
		atomic_store(&l->signals_open, true);
	pthread_mutex_lock(&l->lock);
	if (l->n < 32)
		describe(l->lines[l->n], sizeof(l->lines[0]), notice, iface);
	pthread_mutex_unlock(&l->lock);
	atomic_store(&l->inside, true);
	while (atomic_load(&l->hold))
		usleep(1000);
	if (notice == FLUE_INTERFACE_GONE && l->watch && !flue_unwatch_interfaces(l->watch))
		atomic_store(&l->destroy_error, errno);
	atomic_store(&l->inside, false);
	atomic_fetch_add(&l->n, 1);
}

static void listen_with(struct listener *l)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);

	pthread_mutex_init(&l->lock, NULL);
	attr.on_notice = on_notice;
	attr.arg = l;
	watch = flue_watch_interfaces(&attr);
	assert_non_null(watch);
}

static void await(struct listener *l, unsigned n)
{
	for (int ms = 0; ms < 20000 && atomic_load(&l->n) < n; ms++)
		usleep(1000);
	assert_int_equal(atomic_load(&l->n), n);
}

static void function_gets_the_notices(void **state)
{
	const struct flue_interface *iface;
	struct listener l = { 0 };
	uint32_t notice;

	listen_with(&l);
	assert_false(flue_next_interface(watch, &notice, &iface, 0));
	assert_int_equal(errno, EBUSY);
	assert_int_equal(watch->ops->fd(watch), -1);
	assert_int_equal(errno, EBUSY);
	await(&l, 3);
	l.watch = watch;
	fake_say_link(RTM_DELLINK, &eth0);
	await(&l, 5);
	close_watch();
	assert_int_equal(atomic_load(&l.n), 5);
	assert_string_equal(l.lines[0], "existing 1 lo 65536 up running 127.0.0.1");
	assert_string_equal(l.lines[2], "existing 3 eth1 1500");
	assert_string_equal(l.lines[3], "going down 2 eth0 1500 192.0.2.1 fe80::1");
	assert_string_equal(l.lines[4], "gone 2 eth0 1500 192.0.2.1 fe80::1");
	assert_int_equal(atomic_load(&l.destroy_error), EDEADLK);
	assert_false(atomic_load(&l.signals_open));
}

static void *destroy_watch(void *arg)
{
	struct listener *l = arg;

	return flue_unwatch_interfaces(watch) && !atomic_load(&l->inside) ? l : NULL;
}

static void destroy_waits_for_a_running_function(void **state)
{
	struct listener l = { .hold = true };
	pthread_t thread;
	void *result;

	listen_with(&l);
	while (!atomic_load(&l.inside))
		usleep(1000);
	assert_int_equal(pthread_create(&thread, NULL, destroy_watch, &l), 0);
	usleep(50000);
	atomic_store(&l.hold, false);
	pthread_join(thread, &result);
	assert_ptr_equal(result, &l);
	assert_int_equal(atomic_load(&l.n), 1);
}

/* ---- failures ---- */

static int lowest_free_fd(void)
{
	int fd = dup(0);

	close(fd);
	return fd;
}

static void ignore(uint32_t notice, const struct flue_interface *iface, void *arg)
{
	(void)notice, (void)iface, (void)arg;
}

static void making_a_watch_fails_cleanly_wherever_it_fails(void **state)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);
	int before = lowest_free_fd();

	for (int function = 0; function < 2; function++) {
		attr.on_notice = function ? ignore : NULL;
		for (unsigned nth = 1;; nth++) {
			fake_fail(nth);
			watch = flue_watch_interfaces(&attr);
			if (watch) {
				assert_true(nth > (function ? 7 : 9));
				break;
			}
			assert_true(errno == ENOMEM || errno == EMFILE || errno == EAGAIN);
			assert_int_equal(lowest_free_fd(), before);
		}
		close_watch();
		assert_int_equal(lowest_free_fd(), before);
	}
}

/* Whatever call fails in between, once, the same is told. */
static void nothing_is_lost_when_memory_is_short(void **state)
{
	static const char *const lines[] = {
		"existing 1 lo 65536 up running 127.0.0.1",
		"existing 2 eth0 1500 up running 192.0.2.1 fe80::1",
		"existing 3 eth1 1500",
		"changed 3 eth1 1500 192.0.2.77",
	};
	const struct fake_address more = { 3, "192.0.2.77", 24, 0 };
	bool failed = true;

	for (unsigned nth = 1; failed; nth++) {
		const struct flue_interface *iface;
		char line[512];
		uint32_t notice;

		reset(NULL);
		open_watch();
		fake_fail(nth);
		for (unsigned i = 0; i < 4; i++) {
			if (i == 3) {
				fake_say_address(RTM_NEWADDR, &more);
				fake.addresses[fake.n_addresses++] = more;
			}
			while (!flue_next_interface(watch, &notice, &iface, 0))
				assert_int_equal(errno, ENOMEM);
			describe(line, sizeof(line), notice, iface);
			assert_string_equal(line, lines[i]);
		}
		failed = fake_failed();
		fake_fail(0);
		expect_silence();
		close_watch();
	}
}

static void thread_goes_on_after_a_failure(void **state)
{
	struct listener l = { .hold = true };

	listen_with(&l);
	while (!atomic_load(&l.inside))
		usleep(1000);
	fake_push_error(ENOBUFS);
	fake_push_error(EIO);
	fake_push_error(EIO);
	fake.n_links = 2;
	atomic_store(&l.hold, false);
	await(&l, 4);
	close_watch();
	assert_string_equal(l.lines[3], "gone 3 eth1 1500");
}

static void watch_refuses_bad_arguments(void **state)
{
	struct {
		struct flue_interface_watch_attr attr;
		uint64_t later;
	} wide = { .attr.size = sizeof(wide) };
	const struct flue_interface *iface;
	uint32_t notice;

	watch = flue_watch_interfaces(&wide.attr);
	assert_non_null(watch);
	assert_false(flue_next_interface(watch, NULL, &iface, 0));
	assert_int_equal(errno, EINVAL);
	assert_false(flue_next_interface(watch, &notice, NULL, 0));
	assert_int_equal(errno, EINVAL);
	close_watch();
	wide.later = 1;
	assert_null(flue_watch_interfaces(&wide.attr));
	assert_int_equal(errno, EINVAL);
	wide.attr.size = 8;
	assert_null(flue_watch_interfaces(&wide.attr));
	assert_int_equal(errno, EINVAL);
	assert_string_equal(flue_interface_notice_name(0), "?");
	assert_string_equal(flue_interface_notice_name(99), "?");
}

static int child(struct flue_interface_watch *with_thread)
{
	const struct flue_interface *iface;
	uint32_t notice;

	alarm(20);
	if (flue_next_interface(watch, &notice, &iface, -1) || errno != ENODEV)
		return 1;
	if (watch->ops->fd(watch) != -1 || errno != ENODEV)
		return 2;
	if (!flue_unwatch_interfaces(watch) || !flue_unwatch_interfaces(with_thread))
		return 3;
	return 0;
}

static void child_of_fork_can_only_destroy_a_watch(void **state)
{
	struct flue_interface_watch *without;
	struct listener l = { 0 };
	int status;
	pid_t pid;

	open_watch();
	without = watch;
	listen_with(&l);
	await(&l, 3);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct flue_interface_watch *with = watch;

		watch = without;
		_exit(child(with));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The parent's go on. */
	fake_say_link(RTM_DELLINK, &eth1);
	await(&l, 4);
	close_watch();
	watch = without;
	expect("existing 1 lo 65536 up running 127.0.0.1");
	close_watch();
}

#define TEST(name) cmocka_unit_test_setup(name, reset)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(watch_tells_existing_interfaces_once),
		TEST(watch_made_late_hears_of_existing_interfaces),
		TEST(watch_tells_the_life_of_an_interface_in_order),
		TEST(watch_tells_going_down_before_gone_without_a_word_from_the_kernel),
		TEST(watch_shows_addresses_that_can_be_used_each_once),
		TEST(watch_shows_only_interfaces_that_can_carry_tcp),
		TEST(watch_believes_live_notices_more_than_a_dump),
		TEST(watch_repeats_a_dump_that_was_interrupted),
		TEST(watch_tells_the_difference_after_messages_were_lost),
		TEST(watch_tells_that_an_interface_was_replaced_during_a_dump),
		TEST(watch_says_why_the_kernel_refused_and_tries_again),
		TEST(watch_survives_messages_that_make_no_sense),
		TEST(watch_ignores_what_is_not_meant_for_it),
		TEST(watch_makes_room_for_a_message_that_was_cut_off),
		TEST(descriptor_is_readable_while_there_is_work),
		TEST(next_waits_as_long_as_it_is_told),
		TEST(next_comes_back_when_dumps_never_end),
		TEST(second_caller_of_next_is_refused),
		TEST(function_gets_the_notices),
		TEST(destroy_waits_for_a_running_function),
		TEST(making_a_watch_fails_cleanly_wherever_it_fails),
		TEST(nothing_is_lost_when_memory_is_short),
		TEST(thread_goes_on_after_a_failure),
		TEST(watch_refuses_bad_arguments),
		TEST(child_of_fork_can_only_destroy_a_watch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
