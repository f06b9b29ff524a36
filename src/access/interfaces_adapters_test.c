/* SPDX-License-Identifier: MIT */
/* Interfaces that come up bring their adapters up (CH-17, CH-2), over a kernel that says what we want. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <flue/flue.h>
#include <linux/if_arp.h>
#include <linux/rtnetlink.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "access/interfaces_fake_priv.h"
#include "provider/registry.h"

#define WORKS (IFF_UP | IFF_RUNNING)

static const struct fake_link lo = { 1, "lo", WORKS, 65536, ARPHRD_LOOPBACK, 0 };
static const struct fake_link eth0 = { 2, "eth0", WORKS, 1500, ARPHRD_ETHER, 0 };
static const struct fake_link down = { 3, "eth1", 0, 1500, ARPHRD_ETHER, 0 };
static const struct fake_link eth1 = { 3, "eth1", WORKS, 1500, ARPHRD_ETHER, 0 };
static const struct fake_address lo4 = { 1, "127.0.0.1", 8, 0 };

/* The software RNIC, with a count of its adapters. */
static struct prov_ops counted;
static atomic_int opened, closed, refuse;

static int count_open(const struct prov_open_attr *attr, struct prov_adapter **out)
{
	if (atomic_load(&refuse))
		return -atomic_load(&refuse);
	atomic_fetch_add(&opened, 1);
	return soft_provider.open(attr, out);
}

static void count_close(struct prov_adapter *a)
{
	atomic_fetch_add(&closed, 1);
	soft_provider.close(a);
}

static struct flue_interface_watch *watch;
static const int cpu = 0;

static void open_watch(flue_interface_fn fn)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);
	struct flue_open_attr open = FLUE_ATTR(struct flue_open_attr);
	char name[] = "counted", adapter[] = "flue0";
	int cpus[] = { cpu };

	open.provider = name;
	open.name = adapter;
	open.cpus = cpus;
	open.n_cpus = 1;
	attr.on_notice = fn;
	attr.adapters = &open;
	watch = flue_watch_interfaces(&attr);
	assert_non_null(watch);
	/* All was copied. */
	memset(name, 'x', sizeof(name));
	memset(adapter, 'x', sizeof(adapter));
	memset(cpus, 0xff, sizeof(cpus));
	memset(&open, 0xff, sizeof(open));
}

static int reset(void **state)
{
	fake_reset();
	fake.links[0] = lo;
	fake.links[1] = eth0;
	fake.links[2] = down;
	fake.n_links = 3;
	fake.addresses[0] = lo4;
	fake.n_addresses = 1;
	opened = closed = refuse = 0;
	counted = soft_provider;
	counted.name = "counted";
	counted.open = count_open;
	counted.close = count_close;
	return provider_register(&counted);
}

static int check_closed(void **state)
{
	return opened != closed;
}

/* The adapter of the next notice, which must be this one. */
static struct flue_adapter *next(uint32_t want, uint32_t index, int error)
{
	const struct flue_interface *iface;
	uint32_t notice;

	if (!flue_next_interface(watch, &notice, &iface, 5000))
		fail_msg("no notice: %s", strerror(errno));
	assert_string_equal(flue_interface_notice_name(notice), flue_interface_notice_name(want));
	assert_int_equal(iface->index, index);
	assert_int_equal(iface->adapter_error, error);
	return iface->adapter;
}

static void expect_silence(void)
{
	const struct flue_interface *iface;
	uint32_t notice;

	errno = 0;
	assert_false(flue_next_interface(watch, &notice, &iface, 0));
	assert_int_equal(errno, EAGAIN);
}

/* eth0's. */
static struct flue_adapter *existing(void)
{
	struct flue_adapter *a[2];

	a[0] = next(FLUE_INTERFACE_EXISTING, 1, 0);
	assert_non_null(a[0]);
	a[1] = next(FLUE_INTERFACE_EXISTING, 2, 0);
	assert_non_null(a[1]);
	assert_ptr_not_equal(a[0], a[1]);
	assert_null(next(FLUE_INTERFACE_EXISTING, 3, 0));
	assert_int_equal(opened, 2);
	return a[1];
}

static void interface_that_is_up_has_an_adapter(void **state)
{
	struct flue_adapter *a;
	struct flue_cq *cq;

	open_watch(NULL);
	a = existing();
	/* As asked for, with a handler for each processor (CH-2). */
	assert_string_equal(a->caps->provider, "counted");
	assert_int_equal(a->n_cpus, 1);
	assert_int_equal(a->cpus[0], cpu);
	cq = flue_create_cq(a, 8);
	assert_non_null(cq);
	assert_int_equal(cq->cpu, cpu);
	assert_true(flue_destroy_cq(cq));
	/* It is the watch's. */
	assert_false(flue_close(a));
	assert_int_equal(errno, EBUSY);
	assert_true(flue_unwatch_interfaces(watch));
	assert_int_equal(closed, 2);
}

static void interface_that_comes_up_brings_its_adapter_up(void **state)
{
	struct flue_adapter *a;

	open_watch(NULL);
	existing();
	fake_say_link(RTM_NEWLINK, &eth1);
	a = next(FLUE_INTERFACE_UP, 3, 0);
	assert_non_null(a);
	assert_int_equal(opened, 3);
	/* It outlasts times in which no data flows. */
	fake_say_link(RTM_NEWLINK, &down);
	assert_ptr_equal(next(FLUE_INTERFACE_GOING_DOWN, 3, 0), a);
	fake_say_link(RTM_NEWLINK, &eth1);
	assert_ptr_equal(next(FLUE_INTERFACE_UP, 3, 0), a);
	assert_true(opened == 3 && closed == 0);
	assert_true(flue_unwatch_interfaces(watch));
}

static void interface_that_is_gone_takes_its_adapter_down(void **state)
{
	struct flue_adapter *a;

	open_watch(NULL);
	a = existing();
	fake_say_link(RTM_DELLINK, &eth0);
	assert_ptr_equal(next(FLUE_INTERFACE_GOING_DOWN, 2, 0), a);
	assert_ptr_equal(next(FLUE_INTERFACE_GONE, 2, 0), a);
	assert_int_equal(closed, 0); /* the program may still look at it */
	expect_silence();
	assert_int_equal(closed, 1);
	/* The same number, but another interface. */
	fake_say_link(RTM_NEWLINK, &eth0);
	assert_non_null(next(FLUE_INTERFACE_NEW, 2, 0));
	assert_int_equal(opened, 3);
	assert_true(flue_unwatch_interfaces(watch));
}

static void adapter_stays_while_the_program_uses_it(void **state)
{
	struct flue_adapter *a;
	struct flue_pd *pd;

	open_watch(NULL);
	a = existing();
	pd = flue_create_pd(a);
	assert_non_null(pd);
	fake_say_link(RTM_DELLINK, &eth0);
	next(FLUE_INTERFACE_GOING_DOWN, 2, 0);
	next(FLUE_INTERFACE_GONE, 2, 0);
	expect_silence();
	assert_int_equal(closed, 0);
	errno = 0;
	assert_false(flue_unwatch_interfaces(watch));
	assert_int_equal(errno, EBUSY);
	/* It has nothing to do with the one that has the number now. */
	fake_say_link(RTM_NEWLINK, &eth0);
	assert_ptr_not_equal(next(FLUE_INTERFACE_NEW, 2, 0), a);
	assert_true(flue_destroy_pd(pd));
	expect_silence();
	assert_int_equal(closed, 1);
	assert_true(flue_unwatch_interfaces(watch));
}

static void adapter_that_cannot_be_opened_is_tried_again(void **state)
{
	struct fake_link changed = eth0;

	refuse = EMFILE;
	open_watch(NULL);
	assert_null(next(FLUE_INTERFACE_EXISTING, 1, EMFILE));
	assert_null(next(FLUE_INTERFACE_EXISTING, 2, EMFILE));
	assert_null(next(FLUE_INTERFACE_EXISTING, 3, 0));
	refuse = 0;
	changed.mtu = 9000;
	fake_say_link(RTM_NEWLINK, &changed);
	assert_non_null(next(FLUE_INTERFACE_CHANGED, 2, 0));
	assert_int_equal(opened, 1);
	assert_true(flue_unwatch_interfaces(watch));
}

static void impossible_adapters_are_refused(void **state)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);
	struct flue_open_attr open = FLUE_ATTR(struct flue_open_attr);

	attr.adapters = &open;
	open.provider = "none";
	errno = 0;
	assert_null(flue_watch_interfaces(&attr));
	assert_int_equal(errno, ENOENT);
	open.provider = NULL;
	open.balance = FLUE_BALANCE_NPOLICIES;
	assert_null(flue_watch_interfaces(&attr));
	assert_int_equal(errno, EINVAL);
	open.balance = 0;
	open.n_cpus = 1;
	assert_null(flue_watch_interfaces(&attr));
	assert_int_equal(errno, EINVAL);
	open.n_cpus = 0;
	open.size = 8;
	assert_null(flue_watch_interfaces(&attr));
	assert_int_equal(errno, EINVAL);
	/* A program of before does not ask for any. */
	attr.adapters = NULL;
	watch = flue_watch_interfaces(&attr);
	assert_non_null(watch);
	assert_null(next(FLUE_INTERFACE_EXISTING, 1, 0));
	assert_true(flue_unwatch_interfaces(watch));
	assert_int_equal(opened, 0);
}

static _Atomic(struct flue_adapter *) heard[4];
static atomic_uint n_heard;
static atomic_int destroy_error;

static void on_notice(uint32_t notice, const struct flue_interface *iface, void *arg)
{
	(void)arg;
	atomic_store(&heard[iface->index], iface->adapter);
	if (notice == FLUE_INTERFACE_GONE && !flue_unwatch_interfaces(watch))
		atomic_store(&destroy_error, errno);
	atomic_fetch_add(&n_heard, 1);
}

static void await(atomic_int *what, int value)
{
	for (int ms = 0; ms < 20000 && atomic_load(what) != value; ms++)
		usleep(1000);
	assert_int_equal(atomic_load(what), value);
}

/* Without a further notice: it looks after things every few seconds. */
static void thread_closes_what_is_not_used_any_more(void **state)
{
	struct flue_pd *pd;

	n_heard = 0;
	open_watch(on_notice);
	for (int ms = 0; ms < 20000 && atomic_load(&n_heard) < 3; ms++)
		usleep(1000);
	assert_int_equal(opened, 2);
	pd = flue_create_pd(heard[2]);
	assert_non_null(pd);
	fake_say_link(RTM_DELLINK, &eth0);
	await(&destroy_error, EDEADLK);
	assert_false(flue_unwatch_interfaces(watch));
	assert_int_equal(errno, EBUSY);
	usleep(50000);
	assert_int_equal(closed, 0);
	assert_true(flue_destroy_pd(pd));
	await(&closed, 1);
	assert_true(flue_unwatch_interfaces(watch));
	assert_int_equal(closed, 2);
}

/* A child can only destroy the watch; the adapters are the parent's. */
static void child_of_fork_leaves_adapters_alone(void **state)
{
	struct flue_adapter *a;
	int status;
	pid_t pid;

	open_watch(NULL);
	a = existing();
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		bool good = flue_unwatch_interfaces(watch) && closed == 0;

		_exit(good && !flue_create_pd(a) && errno == ENODEV ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_true(flue_unwatch_interfaces(watch));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, reset, check_closed)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* CH-17 */
		TEST(interface_that_is_up_has_an_adapter), /* CH-2 */
		TEST(interface_that_comes_up_brings_its_adapter_up),
		TEST(interface_that_is_gone_takes_its_adapter_down),
		TEST(adapter_stays_while_the_program_uses_it),
		TEST(adapter_that_cannot_be_opened_is_tried_again),
		TEST(impossible_adapters_are_refused),
		TEST(thread_closes_what_is_not_used_any_more),
		TEST(child_of_fork_leaves_adapters_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
