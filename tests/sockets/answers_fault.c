/* SPDX-License-Identifier: MIT */
/*
 * Addresses that are not there, lengths and times that cannot be: the kernel says EFAULT or EINVAL, and everything goes on
 * afterwards. With and without a TCP socket.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "answers.h"

#define SECOND 1000000000
#define PAGE   4096

/* One end with something to read, in a set, of a kind that the library knows or does not care for. */
struct thing {
	int fd, other, set;
};

static struct thing thing_of(int a, int b)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT };
	struct thing t = { a, b, epoll_create1(0) };
	struct pollfd came = { .fd = a, .events = POLLIN };

	if (write(b, "something", 9) != 9 || epoll_ctl(t.set, EPOLL_CTL_ADD, a, &event) != 0)
		answer_broken("cannot begin");
	poll(&came, 1, 1000);
	return t;
}

static struct thing stranger(void)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
		answer_broken("socketpair");
	return thing_of(ends[0], ends[1]);
}

static struct thing connection(void)
{
	int ends[2];

	answer_warm_pair(ends);
	return thing_of(ends[0], ends[1]);
}

/* It still works: no lock was left behind, no octet lost. */
static void goes_on(struct thing t)
{
	struct epoll_event event;
	int n;

	if (write(t.other, " else", 5) != 5)
		answer_broken("cannot go on");
	n = epoll_wait(t.set, &event, 1, 1000);
	answer("goes on: %d %x, %s", n, event.events, answer_read(t.fd, 14));
}

/* ---- waiting ---- */

static void wait_with(struct thing t)
{
	struct timespec now = { 0 }, odd = { 0, SECOND }, before = { -1, 0 };
	void *holes[] = { answer_hole(), answer_constant() };
	struct pollfd p = { .fd = t.fd, .events = POLLIN };
	/* The compiler must not see what is wrong. */
	volatile int many = 1 << 30, negative = -1;
	volatile nfds_t all = ~0ul;
	struct epoll_event events[2];
	fd_set set;

	for (int i = 0; i < 2; i++) {
		char *end = (char *)holes[i] + PAGE - sizeof(struct pollfd);

		answer("%d: poll %s", i, answer_of(poll(holes[i], 1, 10)));
		answer("%d: poll of two pages %s", i, answer_of(poll((void *)end, 2, 10)));
		answer("%d: ppoll %s", i, answer_of(ppoll(holes[i], 1, &now, NULL)));
		answer("%d: epoll_wait %s", i, answer_of(epoll_wait(t.set, holes[i], 4, 100)));
		answer("%d: epoll_pwait %s", i,
		       answer_of(epoll_pwait(t.set, holes[i], 4, 100, NULL)));
		answer("%d: epoll_pwait2 %s", i,
		       answer_of(epoll_pwait2(t.set, holes[i], 4, &now, NULL)));
		for (int which = 0; which < 3; which++)
			answer("%d: select %d %s", i, which,
			       answer_of(select(t.fd + 1, which == 0 ? holes[i] : NULL,
						which == 1 ? holes[i] : NULL,
						which == 2 ? holes[i] : NULL,
						&(struct timeval) { 0 })));
		answer("%d: pselect %s", i,
		       answer_of(pselect(t.fd + 1, holes[i], NULL, NULL, &now, NULL)));
	}
	answer("masks: %s", answer_of(ppoll(&p, 1, &now, holes[0])));
	answer("masks: %s", answer_of(epoll_pwait(t.set, events, 2, 0, holes[0])));
	FD_ZERO(&set);
	FD_SET(t.fd, &set);
	answer("masks: %s", answer_of(pselect(t.fd + 1, &set, NULL, NULL, &now, holes[0])));
	answer("times: %s", answer_of(ppoll(&p, 1, &odd, NULL)));
	answer("times: %s", answer_of(ppoll(&p, 1, &before, NULL)));
	answer("times: %s", answer_of(pselect(t.fd + 1, &set, NULL, NULL, &odd, NULL)));
	answer("times: %s", answer_of(pselect(t.fd + 1, &set, NULL, NULL, &before, NULL)));
	answer("times: %s", answer_of(epoll_pwait2(t.set, events, 2, &odd, NULL)));
	answer("times: %s", answer_of(epoll_pwait2(t.set, events, 2, &before, NULL)));
	answer("times: %s", answer_of(epoll_pwait2(t.set, events, 2, holes[0], NULL)));
	answer("counts: %s", answer_of(epoll_wait(t.set, events, 0, 0)));
	answer("counts: %s", answer_of(epoll_wait(t.set, events, negative, 0)));
	answer("counts: %s", answer_of(epoll_wait(t.set, events, many, 0)));
	answer("counts: %s", answer_of(poll(&p, all, 0)));
	answer("counts: %s", answer_of(select(-1, &set, NULL, NULL, NULL)));
	goes_on(t);
}

static void waiting_for_a_stranger(void)
{
	wait_with(stranger());
}

static void waiting_for_a_connection(void)
{
	wait_with(connection());
}

/* The events go as far as the memory: what does not fit is told next time. */
static void events_at_the_edge(void)
{
	char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
	struct epoll_event *events = (void *)(memory + PAGE - 2 * sizeof(*events));
	struct thing t = connection();
	int ends[2];

	munmap(memory + PAGE, PAGE);
	for (int i = 0; i < 3; i++) {
		struct epoll_event event = { .events = EPOLLIN };

		answer_warm_pair(ends);
		epoll_ctl(t.set, EPOLL_CTL_ADD, ends[0], &event);
		answer("%s", answer_of(epoll_wait(t.set, events, 64, 100)));
	}
	if (write(ends[1], "x", 1) != 1)
		answer_broken("write");
	answer("%s", answer_of(epoll_wait(t.set, events, 64, 100)));
	goes_on(t);
}

static void control_with(struct thing t)
{
	void *hole = answer_hole();
	int other = dup(t.fd);

	answer("add %s", answer_of(epoll_ctl(t.set, EPOLL_CTL_ADD, other, hole)));
	answer("add nothing %s", answer_of(epoll_ctl(t.set, EPOLL_CTL_ADD, other, NULL)));
	answer("change %s", answer_of(epoll_ctl(t.set, EPOLL_CTL_MOD, t.fd, hole)));
	answer("delete %s", answer_of(epoll_ctl(t.set, EPOLL_CTL_DEL, other, hole)));
	close(other);
	goes_on(t);
}

static void sets_of_strangers(void)
{
	control_with(stranger());
}

static void sets_of_connections(void)
{
	control_with(connection());
}

/* The same past the C library, which would look at times itself. */
static void waiting_by_number(void)
{
	struct thing t = connection();
	struct pollfd p = { .fd = t.fd, .events = POLLIN };
	struct {
		void *mask;
		size_t size;
	} masks = { answer_hole(), 8 };
	struct epoll_event events[2];
	void *hole = answer_hole();
	fd_set set;

	FD_ZERO(&set);
	FD_SET(t.fd, &set);
	answer("poll %s", answer_of(syscall(SYS_poll, hole, 1, 10)));
	answer("ppoll %s", answer_of(syscall(SYS_ppoll, &p, 1, hole, NULL, (size_t)8)));
	answer("ppoll %s", answer_of(syscall(SYS_ppoll, &p, 1, NULL, hole, (size_t)8)));
	answer("ppoll %s", answer_of(syscall(SYS_ppoll, &p, 1, NULL, &set, (size_t)7)));
	answer("select %s", answer_of(syscall(SYS_select, t.fd + 1, &set, NULL, NULL, hole)));
	answer("select %s", answer_of(syscall(SYS_select, t.fd + 1, hole, NULL, NULL, NULL)));
	answer("pselect6 %s", answer_of(syscall(SYS_pselect6, t.fd + 1, &set, 0, 0, hole, NULL)));
	answer("pselect6 %s", answer_of(syscall(SYS_pselect6, t.fd + 1, &set, 0, 0, 0, hole)));
	answer("pselect6 %s", answer_of(syscall(SYS_pselect6, t.fd + 1, &set, 0, 0, 0, &masks)));
	masks.mask = &set;
	masks.size = 16;
	answer("pselect6 %s", answer_of(syscall(SYS_pselect6, t.fd + 1, &set, 0, 0, 0, &masks)));
	answer("epoll_pwait %s",
	       answer_of(syscall(SYS_epoll_pwait, t.set, events, 2, 0, hole, (size_t)8)));
	answer("epoll_pwait %s",
	       answer_of(syscall(SYS_epoll_pwait, t.set, events, 2, 0, &set, (size_t)9)));
	answer("epoll_pwait2 %s",
	       answer_of(syscall(SYS_epoll_pwait2, t.set, events, 2, hole, NULL, (size_t)8)));
	answer("epoll_wait %s", answer_of(syscall(SYS_epoll_wait, t.set, hole, 2, 0)));
	answer("epoll_ctl %s", answer_of(syscall(SYS_epoll_ctl, t.set, EPOLL_CTL_MOD, t.fd, hole)));
	goes_on(t);
}

/* ---- messages ---- */

static void send_with(struct thing t)
{
	char *hole = answer_hole();
	struct cmsghdr odd = { .cmsg_len = 0, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	struct iovec good = { (void *)"x", 1 };
	struct iovec bad[2] = { { hole, 10 }, { (void *)"x", (size_t)-5 } };
	struct msghdr msg = { .msg_iov = &good, .msg_iovlen = 1 };

	msg.msg_control = hole;
	msg.msg_controllen = 24;
	answer("control %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_control = (void *)-1;
	answer("control at the end %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_controllen = (size_t)-1;
	answer("much control %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_control = &odd;
	for (int i = 0; i < 3; i++) {
		odd.cmsg_len = i == 0 ? 0 : i == 1 ? 8 : (size_t)-1;
		msg.msg_controllen = sizeof(odd);
		answer("control of odd length %s", answer_of(sendmsg(t.fd, &msg, 0)));
	}
	msg = (struct msghdr) { .msg_iov = (void *)hole, .msg_iovlen = 1 };
	answer("no vector %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_iov = bad;
	answer("no octets %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_iovlen = 2;
	answer("negative length %s", answer_of(sendmsg(t.fd, &msg, 0)));
	answer("negative length %s", answer_of(writev(t.fd, bad, 2)));
	answer("negative length %s", answer_of(writev(t.fd, bad + 1, 1)));
	answer("negative length %s", answer_of(readv(t.fd, bad + 1, 1)));
	answer("negative length %s", answer_of(pwritev2(t.fd, bad + 1, 1, -1, 0)));
	answer("no message %s", answer_of(sendmsg(t.fd, (void *)hole, 0)));
	goes_on(t);
}

static void messages_to_strangers(void)
{
	send_with(stranger());
}

static void messages_on_a_connection(void)
{
	send_with(connection());
}

static void names(void)
{
	struct thing t = connection();
	char *hole = answer_hole(), buffer[100] = "";
	struct iovec good = { buffer, 1 };
	struct msghdr msg = { .msg_iov = &good, .msg_iovlen = 1, .msg_name = hole };
	socklen_t odd = (socklen_t)-1, size = sizeof(buffer);
	struct sockaddr_in at = { .sin_family = AF_INET };

	answer("sendto %s", answer_of(sendto(t.fd, "x", 1, 0, (void *)hole, 16)));
	answer("sendto %s", answer_of(sendto(t.fd, "x", 1, 0, (void *)buffer, 9999)));
	answer("sendto %s", answer_of(sendto(t.fd, "x", 1, 0, (void *)buffer, odd)));
	answer("sendto %s", answer_of(sendto(t.fd, "x", 1, 0, (void *)hole, 0)));
	answer("sendto %s", answer_of(sendto(t.fd, "x", 1, 0, (void *)&at, sizeof(at))));
	answer("came %s", answer_read(t.other, 2));
	msg.msg_namelen = 16;
	answer("sendmsg %s", answer_of(sendmsg(t.fd, &msg, 0)));
	msg.msg_namelen = odd;
	answer("sendmsg %s", answer_of(sendmsg(t.fd, &msg, 0)));
	answer("recvmsg %s", answer_of(recvmsg(t.fd, &msg, MSG_DONTWAIT)));
	msg.msg_name = NULL;
	msg.msg_namelen = 7;
	answer("recvmsg %s", answer_of(recvmsg(t.fd, &msg, MSG_DONTWAIT)));
	answer("name %u", msg.msg_namelen);
	msg.msg_name = buffer + 50;
	answer("recvmsg %s", answer_of(recvmsg(t.fd, &msg, MSG_DONTWAIT)));
	answer("name %u", msg.msg_namelen);
	answer("recvfrom %s", answer_of(recvfrom(t.fd, buffer, 1, 0, (void *)hole, &size)));
	answer("size %u", size);
	answer("recvfrom %s", answer_of(recvfrom(t.fd, buffer, 1, 0, (void *)buffer, NULL)));
	answer("recvfrom %s", answer_of(recvfrom(t.fd, buffer, 1, 0, NULL, (void *)hole)));
	answer("recvfrom %s",
	       answer_of(recvfrom(t.fd, buffer, 1, 0, (void *)buffer, (void *)hole)));
	answer("recvfrom %s", answer_of(recvfrom(t.fd, buffer, 1, 0, (void *)buffer, &odd)));
	answer("rest %s", answer_read(t.fd, 2));
	answer("connect %s", answer_of(connect(t.fd, (void *)hole, 16)));
	answer("connect %s", answer_of(connect(t.fd, (void *)buffer, odd)));
	answer("bind %s", answer_of(bind(t.fd, (void *)hole, 16)));
	answer("accept %s", answer_of(accept(t.fd, (void *)buffer, (void *)hole)));
	answer("getpeername %s", answer_of(getpeername(t.fd, (void *)buffer, (void *)hole)));
}

static void many_messages(void)
{
	struct thing t = connection();
	char *memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0);
	struct mmsghdr *v = (void *)(memory + PAGE - 2 * sizeof(*v));
	struct timespec odd = { 0, SECOND }, before = { -1, 0 };
	char octets[2] = "ab", *hole = answer_hole();
	struct iovec iov[2] = { { octets, 1 }, { octets + 1, 1 } };

	munmap(memory + PAGE, PAGE);
	for (int i = 0; i < 2; i++)
		v[i] = (struct mmsghdr) { .msg_hdr = { .msg_iov = &iov[i], .msg_iovlen = 1 } };
	answer("send %s", answer_of(sendmmsg(t.fd, v, 3, 0)));
	answer("lengths %u %u, came %s", v[0].msg_len, v[1].msg_len, answer_read(t.other, 2));
	answer("send %s", answer_of(sendmmsg(t.fd, (void *)hole, 1, 0)));
	answer("receive %s", answer_of(recvmmsg(t.fd, (void *)hole, 1, 0, NULL)));
	answer("receive %s", answer_of(recvmmsg(t.fd, v, 1, 0, &odd)));
	answer("receive %s", answer_of(recvmmsg(t.fd, v, 1, 0, &before)));
	answer("receive %s", answer_of(recvmmsg(t.fd, v, 1, 0, (void *)hole)));
	iov[1].iov_base = hole;
	answer("send %s", answer_of(sendmmsg(t.fd, v, 2, 0)));
	answer("send %s", answer_of(sendmmsg(t.fd, v + 1, 1, 0)));
	answer("came %s", answer_read(t.other, 1));
	goes_on(t);
}

/* ---- options and requests ---- */

static void get_short(int fd, int name, socklen_t size)
{
	unsigned char value[8];
	int n;

	memset(value, 9, sizeof(value));
	n = getsockopt(fd, IPPROTO_TCP, name, value, &size);
	answer("get %d: %s, size %d, %d %d %d %d %d", name, answer_of(n), (int)size, value[0],
	       value[1], value[2], value[3], value[4]);
}

static void options(void)
{
	static const int names[] = { TCP_NODELAY, TCP_CORK };
	struct thing t = connection();
	void *hole = answer_hole();
	socklen_t size = sizeof(int);
	int one = 1, zero = 0;

	for (int i = 0; i < 2; i++) {
		int name = names[i];

		answer("off %s", answer_of(setsockopt(t.fd, IPPROTO_TCP, name, &zero, 4)));
		answer("set %s", answer_of(setsockopt(t.fd, IPPROTO_TCP, name, hole, 4)));
		answer("set short %s", answer_of(setsockopt(t.fd, IPPROTO_TCP, name, &one, 2)));
		answer("set nothing %s", answer_of(setsockopt(t.fd, IPPROTO_TCP, name, NULL, 4)));
		answer("set -1 %s",
		       answer_of(setsockopt(t.fd, IPPROTO_TCP, name, &one, (socklen_t)-1)));
		for (int on = 0; on < 2; on++) {
			for (socklen_t s = 0; s < 6; s++)
				get_short(t.fd, name, s);
			get_short(t.fd, name, (socklen_t)-1);
			answer("on %s", answer_of(setsockopt(t.fd, IPPROTO_TCP, name, &one, 4)));
		}
		answer("get %s", answer_of(getsockopt(t.fd, IPPROTO_TCP, name, hole, &size)));
		answer("get %s", answer_of(getsockopt(t.fd, IPPROTO_TCP, name, &one, hole)));
	}
	answer("error %s", answer_of(getsockopt(t.fd, SOL_SOCKET, SO_ERROR, hole, &size)));
	size = 1;
	answer("error %s", answer_of(getsockopt(t.fd, SOL_SOCKET, SO_ERROR, &one, &size)));
	answer("FIONREAD %s", answer_of(ioctl(t.fd, FIONREAD, hole)));
	answer("FIONBIO %s", answer_of(ioctl(t.fd, FIONBIO, hole)));
	answer("FIOASYNC %s", answer_of(ioctl(t.fd, FIOASYNC, hole)));
	answer("TIOCOUTQ %s", answer_of(ioctl(t.fd, TIOCOUTQ, hole)));
	answer("atmark %s", answer_of(ioctl(t.fd, 0x8905, hole)));
	goes_on(t);
}

static void files(void)
{
	struct thing t = connection();
	int file = open("/proc/self/exe", O_RDONLY);

	answer("hole %s", answer_of(sendfile(t.fd, file, answer_hole(), 10)));
	answer("splice %s", answer_of(splice(t.fd, answer_hole(), t.fd, NULL, 10, 0)));
	goes_on(t);
}

/* Only a pipe takes what is spliced out of a socket, and one that is full not now. */
static void pipes(void)
{
	struct thing t = connection();
	int file = memfd_create("octets", 0), ends[2];
	char octets[PAGE] = "";

	if (pipe2(ends, O_NONBLOCK) || file < 0)
		answer_broken("pipe");
	answer("to itself %s", answer_of(splice(t.fd, NULL, t.fd, NULL, 10, 0)));
	t = connection();
	answer("to a file %s", answer_of(splice(t.fd, NULL, file, NULL, 10, 0)));
	t = connection();
	answer("to nobody %s", answer_of(splice(t.fd, NULL, -1, NULL, 10, 0)));
	t = connection();
	answer("backwards %s", answer_of(splice(t.fd, NULL, ends[0], NULL, 10, 0)));
	t = connection();
	while (write(ends[1], octets, sizeof(octets)) > 0)
		;
	fcntl(ends[1], F_SETFL, 0);
	answer("full %s", answer_of(splice(t.fd, NULL, ends[1], NULL, 4, SPLICE_F_NONBLOCK)));
	answer("read %s", answer_of(read(ends[0], octets, sizeof(octets))));
	answer("room %s", answer_of(splice(t.fd, NULL, ends[1], NULL, 4, SPLICE_F_NONBLOCK)));
	answer("rest %s", answer_read(t.fd, 5));
}

/* ---- memory that was there ---- */

static void *new_page(void)
{
	char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	memset(p, 'm', PAGE);
	return p;
}

static void use(struct thing t, void *page)
{
	answer("send %s", answer_of(send(t.fd, page, 5, 0)));
	answer("came %s", answer_read(t.other, 5));
	answer("peek %s", answer_of(recv(t.fd, page, 5, MSG_PEEK)));
}

static void use_again(struct thing t, void *page)
{
	ssize_t n = send(t.fd, page, 5, 0);

	answer("send %s", answer_of(n));
	if (n > 0)
		answer("came %s", answer_read(t.other, (size_t)n));
	answer("recv %s", answer_of(recv(t.fd, page, 5, MSG_PEEK)));
}

static void memory_unmapped(void)
{
	struct thing t = connection();
	void *page = new_page();

	use(t, page);
	munmap(page, PAGE);
	use_again(t, page);
	page = new_page();
	use(t, page);
	syscall(SYS_munmap, page, PAGE);
	use_again(t, page);
	goes_on(t);
}

static void memory_protected(void)
{
	struct thing t = connection();
	void *page = new_page();

	use(t, page);
	mprotect(page, PAGE, PROT_READ);
	use_again(t, page);
	mprotect(page, PAGE, PROT_NONE);
	use_again(t, page);
	mprotect(page, PAGE, PROT_READ | PROT_WRITE);
	use_again(t, page);
	syscall(SYS_mprotect, page, PAGE, PROT_NONE);
	use_again(t, page);
	goes_on(t);
}

static void memory_moved(void)
{
	struct thing t = connection();
	char *page = new_page(), *to = new_page();

	use(t, page);
	use(t, to);
	page[0] = '!';
	if (mremap(page, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to)
		answer_broken("mremap");
	use_again(t, page);
	use_again(t, to);
	if (syscall(SYS_mremap, to, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, page) != (long)page)
		answer_broken("mremap");
	use_again(t, to);
	goes_on(t);
}

static void memory_detached(void)
{
	struct thing t = connection();
	int id = shmget(IPC_PRIVATE, PAGE, 0600);
	void *page = shmat(id, NULL, 0);

	shmctl(id, IPC_RMID, NULL);
	if (id < 0 || page == (void *)-1)
		return;
	use(t, page);
	shmdt(page);
	use_again(t, page);
	goes_on(t);
}

int main(int argc, char **argv)
{
	static const struct question questions[] = {
		{ "waiting for a stranger", waiting_for_a_stranger },
		{ "waiting for a connection", waiting_for_a_connection },
		{ "events at the edge", events_at_the_edge },
		{ "sets of strangers", sets_of_strangers },
		{ "sets of connections", sets_of_connections },
		{ "waiting by number", waiting_by_number },
		{ "messages to strangers", messages_to_strangers },
		{ "messages on a connection", messages_on_a_connection },
		{ "names", names },
		{ "many messages", many_messages },
		{ "options", options },
		{ "files", files },
		{ "pipes", pipes },
		{ "memory unmapped", memory_unmapped },
		{ "memory protected", memory_protected },
		{ "memory moved", memory_moved },
		{ "memory detached", memory_detached },
	};

	(void)argc;
	return answers_main(questions, sizeof(questions) / sizeof(*questions), argv + 1);
}
