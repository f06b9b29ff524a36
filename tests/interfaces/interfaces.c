/* SPDX-License-Identifier: MIT */
/*
 * Interface notices (CH-17) of the real kernel: a network namespace of our own, interfaces made
 * and changed by ip(8), listeners early and late, with a thread and with a descriptor, fast and
 * too slow.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model.h"

#define PATIENCE_MS 20000 /* the kernel may sit on a change of carrier for a second */

static const char *cannot; /* why there is nothing to test here */
static struct model early, late;

/* Says no more than whether it worked. */
static bool try(const char *command)
{
	return system(command) == 0;
}

static void run(const char *command)
{
	if (!try(command))
		fail_msg("%s: failed", command);
}

static int enter_namespace(void **state)
{
	if (unshare(CLONE_NEWNET) && unshare(CLONE_NEWUSER | CLONE_NEWNET))
		cannot = "no network namespaces here";
	else if (!try("ip link set lo up && ip link add probe0 type veth peer name probe1 && "
		      "ip link del probe0"))
		cannot = "ip(8) cannot make veth interfaces here";
	return 0;
}

static int begin(void **state)
{
	model_init(&early);
	model_init(&late);
	return 0;
}

static int end(void **state)
{
	model_fini(&early);
	model_fini(&late);
	return 0;
}

static void skip_if_we_cannot(void)
{
	if (cannot) {
		print_message("# %s\n", cannot);
		skip();
	}
}

static struct flue_interface_watch *listen_with(struct model *m)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);
	struct flue_interface_watch *w;

	attr.on_notice = model_note;
	attr.arg = m;
	w = flue_watch_interfaces(&attr);
	assert_non_null(w);
	return w;
}

#define AWAIT(cond)                                                                 \
	do {                                                                        \
		for (int ms = 0; ms < PATIENCE_MS && !(cond); ms += 5)              \
			usleep(5000);                                               \
		if (!(cond))                                                        \
			fail_msg("never: %s (%s)", #cond, model_complaint(&early)); \
	} while (0)

static void await_truth(struct model *m)
{
	const char *complaint = model_complaint(m);

	for (int ms = 0; ms < PATIENCE_MS && complaint; ms += 20) {
		usleep(20000);
		complaint = model_complaint(m);
	}
	if (complaint)
		fail_msg("%s", complaint);
}

static unsigned early_count(const char *name, uint32_t notice)
{
	return model_count(&early, name, notice);
}

/* ---- a function ---- */

static void function_hears_the_life_of_an_interface(void **state)
{
	struct flue_interface_watch *w;

	skip_if_we_cannot();
	w = listen_with(&early);
	AWAIT(early_count("lo", FLUE_INTERFACE_EXISTING) == 1);
	AWAIT(model_has_address(&early, "lo", "127.0.0.1"));
	run("ip link add va0 type veth peer name va1");
	AWAIT(early_count("va0", FLUE_INTERFACE_NEW) == 1);
	AWAIT(early_count("va1", FLUE_INTERFACE_NEW) == 1);
	run("ip link set va0 up && ip link set va1 up");
	AWAIT(early_count("va0", FLUE_INTERFACE_UP) == 1);
	AWAIT(early_count("va1", FLUE_INTERFACE_UP) == 1);
	run("ip addr add 192.0.2.1/24 dev va0 && ip addr add 2001:db8::1/64 dev va0 nodad");
	AWAIT(model_has_address(&early, "va0", "192.0.2.1"));
	AWAIT(model_has_address(&early, "va0", "2001:db8::1"));
	run("ip addr del 192.0.2.1/24 dev va0 && ip link set va0 mtu 1400");
	AWAIT(!model_has_address(&early, "va0", "192.0.2.1"));
	await_truth(&early);
	/* The one is taken down, the other loses its carrier. */
	run("ip link set va1 down");
	AWAIT(early_count("va1", FLUE_INTERFACE_GOING_DOWN) == 1);
	AWAIT(early_count("va0", FLUE_INTERFACE_GOING_DOWN) == 1);
	run("ip link set va1 up");
	AWAIT(early_count("va1", FLUE_INTERFACE_UP) == 2);
	AWAIT(early_count("va0", FLUE_INTERFACE_UP) == 2);
	await_truth(&early);
	run("ip link del va0");
	AWAIT(early_count("va0", FLUE_INTERFACE_GONE) == 1);
	AWAIT(early_count("va1", FLUE_INTERFACE_GONE) == 1);
	assert_int_equal(early_count("va0", FLUE_INTERFACE_GOING_DOWN), 2);
	assert_int_equal(early_count("va1", FLUE_INTERFACE_GOING_DOWN), 2);
	await_truth(&early);
	assert_true(flue_unwatch_interfaces(w));
}

static void late_listener_hears_of_what_exists_and_both_go_on(void **state)
{
	struct flue_interface_watch *first, *second;

	skip_if_we_cannot();
	first = listen_with(&early);
	AWAIT(early_count("lo", FLUE_INTERFACE_EXISTING) == 1);
	run("ip link add vb0 type veth peer name vb1");
	run("ip link set vb0 up && ip link set vb1 up && ip addr add 192.0.2.2/24 dev vb0");
	AWAIT(model_has_address(&early, "vb0", "192.0.2.2"));
	AWAIT(early_count("vb0", FLUE_INTERFACE_UP) == 1);
	second = listen_with(&late);
	AWAIT(model_count(&late, "vb1", FLUE_INTERFACE_EXISTING) == 1);
	AWAIT(model_count(&late, "lo", FLUE_INTERFACE_EXISTING) == 1);
	AWAIT(model_has_address(&late, "vb0", "192.0.2.2"));
	assert_int_equal(model_count(&late, "vb0", FLUE_INTERFACE_NEW), 0);
	assert_int_equal(model_count(&late, "vb0", FLUE_INTERFACE_EXISTING), 1);
	assert_int_equal(early_count("vb0", FLUE_INTERFACE_EXISTING), 0);
	assert_true(flue_unwatch_interfaces(first));
	run("ip link del vb0");
	AWAIT(model_count(&late, "vb0", FLUE_INTERFACE_GONE) == 1);
	await_truth(&late);
	assert_int_equal(early_count("vb0", FLUE_INTERFACE_GONE), 0);
	assert_true(flue_unwatch_interfaces(second));
}

/* ---- a descriptor ---- */

static void take_all(struct flue_interface_watch *w, struct model *m)
{
	const struct flue_interface *iface;
	uint32_t notice;

	while (flue_next_interface(w, &notice, &iface, 0))
		model_note(notice, iface, m);
	assert_int_equal(errno, EAGAIN);
}

static void descriptor_wakes_a_program_for_each_notice(void **state)
{
	struct epoll_event in = { .events = EPOLLIN };
	struct flue_interface_watch *w;
	int epoll = epoll_create1(EPOLL_CLOEXEC);
	int told = 0;

	skip_if_we_cannot();
	w = flue_watch_interfaces(NULL);
	assert_non_null(w);
	assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, w->ops->fd(w), &in), 0);
	assert_int_equal(epoll_wait(epoll, &in, 1, PATIENCE_MS), 1);
	take_all(w, &early);
	assert_int_equal(early_count("lo", FLUE_INTERFACE_EXISTING), 1);
	run("ip link add vc0 type veth peer name vc1 && ip link set vc0 up && ip link set vc1 up");
	while (early_count("vc0", FLUE_INTERFACE_UP) + early_count("vc1", FLUE_INTERFACE_UP) < 2) {
		assert_int_equal(epoll_wait(epoll, &in, 1, PATIENCE_MS), 1);
		take_all(w, &early);
		assert_true(told++ < 100); /* no busy loop */
	}
	run("ip link del vc1");
	while (!early_count("vc1", FLUE_INTERFACE_GONE)) {
		assert_int_equal(epoll_wait(epoll, &in, 1, PATIENCE_MS), 1);
		take_all(w, &early);
	}
	take_all(w, &early);
	if (model_complaint(&early))
		fail_msg("%s", model_complaint(&early));
	assert_true(flue_unwatch_interfaces(w));
	close(epoll);
}

/* ---- too slow ---- */

/* Messages that the kernel could not queue, over the netlink sockets of this namespace. */
static unsigned long drops(void)
{
	FILE *f = fopen("/proc/thread-self/net/netlink", "re");
	unsigned long n, sum = 0;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%*s %*u %*d %*x %*d %*d %*d %*d %lu", &n) == 1)
			sum += n;
	if (f)
		fclose(f);
	return sum;
}

static void flood(const char *device, int n)
{
	FILE *f = popen("ip -batch -", "we");

	assert_non_null(f);
	for (int i = 0; i < n; i++)
		fprintf(f, "addr add 10.%d.%d.1/32 dev %s\n", i / 250, i % 250, device);
	assert_int_equal(pclose(f), 0);
}

/* More than a socket holds, then things that nobody could hear of. */
static void make_noise(void)
{
	unsigned long before = drops();

	flood("vd0", 1500);
	run("ip link del ve0");
	run("ip link add vf0 type veth peer name vf1");
	run("ip link set vd0 mtu 1300 && ip link set vd1 down");
	print_message("# %lu messages were lost\n", drops() - before);
	assert_true(drops() > before);
}

static void prepare_noise(void)
{
	run("ip link add vd0 type veth peer name vd1 && ip link set vd0 up && ip link set vd1 up");
	run("ip link add ve0 type veth peer name ve1 && ip link set ve0 up && ip link set ve1 up");
	/* Who is not running yet cannot be about to go down. */
	run("for i in $(seq 500); do"
	    " [ $(ip -o link show up | grep -c 'v[de][01]@.*state UP') = 4 ] && exit 0; sleep 0.01;"
	    " done; exit 1");
}

static void check_noise(void)
{
	assert_int_equal(early_count("ve0", FLUE_INTERFACE_GOING_DOWN), 1);
	assert_int_equal(early_count("ve0", FLUE_INTERFACE_GONE), 1);
	assert_int_equal(early_count("vf0", FLUE_INTERFACE_NEW), 1);
	assert_int_equal(early_count("vd1", FLUE_INTERFACE_GOING_DOWN), 1);
	assert_int_equal(early_count("vd0", FLUE_INTERFACE_EXISTING), 1);
	assert_int_equal(early_count("lo", FLUE_INTERFACE_EXISTING), 1);
	run("ip link del vd0 && ip link del vf0");
}

static void slow_program_is_told_the_difference(void **state)
{
	struct flue_interface_watch *w;

	skip_if_we_cannot();
	prepare_noise();
	w = flue_watch_interfaces(NULL);
	assert_non_null(w);
	do
		take_all(w, &early);
	while (model_complaint(&early)); /* carrier may lag */
	make_noise();
	take_all(w, &early);
	/* Those 1500 addresses are one notice, not 1500. */
	assert_true(early.notices < 100);
	AWAIT((take_all(w, &early), !model_complaint(&early)));
	check_noise();
	assert_true(flue_unwatch_interfaces(w));
}

static void slow_function_is_told_the_difference(void **state)
{
	struct flue_interface_watch *w;

	skip_if_we_cannot();
	prepare_noise();
	w = listen_with(&early);
	await_truth(&early);
	model_hold(&early, true);
	run("ip link set lo mtu 60000"); /* something to hang on to */
	make_noise();
	model_hold(&early, false);
	await_truth(&early);
	run("ip link set lo mtu 65536");
	await_truth(&early);
	check_noise();
	assert_true(flue_unwatch_interfaces(w));
}

/* ---- races ---- */

static pid_t start_churn(void)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid)
		return pid;
	/* Indexes are given, so that they come back: the hardest case. */
	execl("/bin/sh", "sh", "-c",
	      "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do\n"
	      "for n in 1 2 3 4; do\n"
	      "echo link add vg$n index 20$n type veth peer name vh$n\n"
	      "echo link set vg$n up\n"
	      "echo link set vh$n up\n"
	      "echo addr add 198.51.100.$n/24 dev vg$n\n"
	      "echo addr add 198.51.100.10$n/24 dev vh$n\n"
	      "echo link set vh$n down\n"
	      "echo addr del 198.51.100.$n/24 dev vg$n\n"
	      "[ $i = 20 ] || echo link del vg$n\n"
	      "done\n"
	      "done | ip -batch -",
	      (char *)NULL);
	_exit(127);
}

static void watches_made_during_changes_miss_nothing(void **state)
{
	struct flue_interface_watch *first, *w;
	int status, rounds = 0;
	pid_t churn;

	skip_if_we_cannot();
	first = listen_with(&late);
	churn = start_churn();
	while (waitpid(churn, &status, WNOHANG) == 0) {
		model_fini(&early);
		model_init(&early);
		w = flue_watch_interfaces(NULL);
		assert_non_null(w);
		for (int i = 0; i < 20; i++)
			take_all(w, &early);
		if (early.broken[0])
			fail_msg("%s", early.broken);
		assert_int_equal(early_count("lo", FLUE_INTERFACE_EXISTING), 1);
		assert_true(flue_unwatch_interfaces(w));
		rounds++;
	}
	assert_int_equal(status, 0);
	await_truth(&late);
	assert_true(flue_unwatch_interfaces(first));
	print_message("# %d watches, %u notices\n", rounds, late.notices);
	run("for n in 1 2 3 4; do ip link del vg$n; done");
}

/* ---- adapters ---- */

/* Takes notices until this one of "va" comes. */
static const struct flue_interface *await_va(struct flue_interface_watch *w, bool gone)
{
	const struct flue_interface *iface;
	uint32_t notice;

	while (flue_next_interface(w, &notice, &iface, PATIENCE_MS))
		if (!strcmp(iface->name, "va") &&
		    (gone ? notice == FLUE_INTERFACE_GONE
			  : iface->up && iface->running && iface->n_addresses))
			return iface;
	fail_msg("va never %s: %s", gone ? "gone" : "up", strerror(errno));
	return NULL;
}

static struct flue_qp *make_qp(struct flue_pd *pd, struct flue_cq *cq)
{
	struct flue_qp_attr attr = FLUE_ATTR(struct flue_qp_attr);
	struct flue_qp *qp;

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = attr.rq_depth = 4;
	qp = pd->ops->create_qp(pd, &attr);
	assert_non_null(qp);
	return qp;
}

static void await_connected(struct flue_adapter *a, unsigned n)
{
	struct flue_event ev;

	while (n) {
		if (!flue_get_event(a, &ev, PATIENCE_MS))
			fail_msg("not connected: %s", strerror(errno));
		assert_int_not_equal(ev.type, FLUE_EVENT_CONNECT_FAILED);
		n -= ev.type == FLUE_EVENT_CONNECTED;
	}
}

/* A connection of the adapter to itself, over the interface's address. */
static void use_adapter(const struct flue_interface *iface)
{
	struct flue_adapter *a = iface->adapter;
	struct flue_listen_attr where = FLUE_ATTR(struct flue_listen_attr);
	struct flue_conn_attr how = FLUE_ATTR(struct flue_conn_attr);
	struct flue_conn_request *req;
	struct flue_listener *door;
	struct flue_qp *qp[2];
	struct flue_pd *pd;
	struct flue_cq *cq;

	pd = flue_create_pd(a);
	assert_non_null(pd);
	cq = flue_create_cq(a, 32);
	assert_non_null(cq);
	qp[0] = make_qp(pd, cq);
	qp[1] = make_qp(pd, cq);
	where.local = (const struct sockaddr *)&iface->addresses[0];
	where.local_len = sizeof(struct sockaddr_in);
	door = a->ops->listen(a, &where);
	assert_non_null(door);
	how.remote = (const struct sockaddr *)&door->local;
	how.remote_len = sizeof(struct sockaddr_in);
	how.flags = FLUE_CONN_ASYNC;
	how.timeout_ms = PATIENCE_MS;
	assert_true(qp[0]->ops->connect(qp[0], &how));
	req = door->ops->get_request(door, PATIENCE_MS);
	assert_non_null(req);
	assert_true(req->ops->accept(req, qp[1], &how));
	await_connected(a, 2);
	assert_true(flue_destroy_qp(qp[0]) && flue_destroy_qp(qp[1]));
	assert_true(door->ops->destroy(door));
	assert_true(flue_destroy_cq(cq) && flue_destroy_pd(pd));
}

static void adapter_that_came_up_with_its_interface_can_be_used(void **state)
{
	struct flue_interface_watch_attr attr = FLUE_ATTR(struct flue_interface_watch_attr);
	struct flue_open_attr open = FLUE_ATTR(struct flue_open_attr);
	const struct flue_interface *iface;
	struct flue_interface_watch *w;
	struct flue_adapter *a;

	skip_if_we_cannot();
	attr.adapters = &open;
	w = flue_watch_interfaces(&attr);
	assert_non_null(w);
	run("ip link add va type veth peer name vb && "
	    "ip addr add 10.77.7.1/24 dev va && ip link set va up && ip link set vb up");
	/* Its first address: IPv4 is sorted before IPv6. */
	iface = await_va(w, false);
	assert_int_equal(iface->adapter_error, 0);
	a = iface->adapter;
	assert_non_null(a);
	use_adapter(iface);
	run("ip link del va");
	assert_ptr_equal(await_va(w, true)->adapter, a);
	assert_true(flue_unwatch_interfaces(w));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(function_hears_the_life_of_an_interface),
		TEST(late_listener_hears_of_what_exists_and_both_go_on),
		TEST(descriptor_wakes_a_program_for_each_notice),
		TEST(slow_program_is_told_the_difference),
		TEST(slow_function_is_told_the_difference),
		TEST(watches_made_during_changes_miss_nothing),
		TEST(adapter_that_came_up_with_its_interface_can_be_used),
	};

	return cmocka_run_group_tests(tests, enter_namespace, NULL);
}
