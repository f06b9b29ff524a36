/* SPDX-License-Identifier: MIT */
/* See interfaces_fake_priv.h. */
#include "access/interfaces_fake_priv.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rtnetlink.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- messages ---- */

void msg_begin(struct message *m, uint16_t type, uint16_t flags, uint32_t seq, uint32_t port)
{
	struct nlmsghdr header = {
		.nlmsg_type = type, .nlmsg_flags = flags, .nlmsg_seq = seq, .nlmsg_pid = port
	};

	m->begun = m->len;
	msg_put(m, &header, sizeof(header));
}

/* With its padding. */
void msg_put(struct message *m, const void *data, size_t len)
{
	assert(m->len + len + 4 <= sizeof(m->data));
	if (len)
		memcpy(m->data + m->len, data, len);
	m->len += len;
	while (m->len % 4)
		m->data[m->len++] = 0;
}

void msg_attr(struct message *m, uint16_t type, const void *data, size_t len)
{
	struct rtattr header = { .rta_type = type, .rta_len = (uint16_t)RTA_LENGTH(len) };

	msg_put(m, &header, sizeof(header));
	msg_put(m, data, len);
}

void msg_end(struct message *m)
{
	uint32_t len = (uint32_t)(m->len - m->begun);

	memcpy(m->data + m->begun, &len, sizeof(len));
}

void msg_link(struct message *m, uint16_t type, const struct fake_link *link, uint16_t flags,
	      uint32_t seq, uint32_t port)
{
	struct ifinfomsg info = { .ifi_family = link->family,
				  .ifi_type = link->type,
				  .ifi_index = (int)link->index,
				  .ifi_flags = link->flags };
	uint8_t operstate = 6;

	msg_begin(m, type, flags, seq, port);
	msg_put(m, &info, sizeof(info));
	msg_attr(m, IFLA_OPERSTATE, &operstate, sizeof(operstate));
	if (link->name) {
		msg_attr(m, IFLA_IFNAME, link->name, strlen(link->name) + 1);
		msg_attr(m, IFLA_MTU, &link->mtu, sizeof(link->mtu));
	}
	msg_end(m);
}

void msg_address(struct message *m, uint16_t type, const struct fake_address *address,
		 uint16_t flags, uint32_t seq, uint32_t port)
{
	struct ifaddrmsg info = { .ifa_family = strchr(address->text, ':') ? AF_INET6 : AF_INET,
				  .ifa_prefixlen = address->prefix,
				  .ifa_index = address->index };
	uint8_t octets[16];
	int ok = inet_pton(info.ifa_family, address->text, octets);

	assert(ok == 1);
	(void)ok;
	msg_begin(m, type, flags, seq, port);
	msg_put(m, &info, sizeof(info));
	msg_attr(m, IFA_ADDRESS, octets, info.ifa_family == AF_INET ? 4 : 16);
	if (info.ifa_family == AF_INET)
		msg_attr(m, IFA_LOCAL, octets, 4);
	msg_attr(m, IFA_FLAGS, &address->flags, sizeof(address->flags));
	msg_end(m);
}

void msg_done(struct message *m, uint16_t flags, uint32_t seq, uint32_t port)
{
	int32_t error = 0;

	msg_begin(m, NLMSG_DONE, flags | NLM_F_MULTI, seq, port);
	msg_put(m, &error, sizeof(error));
	msg_end(m);
}

/* ---- sockets ---- */

#define SOCKETS   4
#define DATAGRAMS 48

struct datagram {
	int err;
	uint32_t from;
	struct message m;
};

struct fake_socket {
	bool open;
	int fd; /* readable while there are datagrams */
	unsigned head, n;
	struct datagram queue[DATAGRAMS];
};

struct fake_kernel fake;
static struct fake_socket sockets[SOCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned fail_at, n_calls;

int __real_close(int fd);
int __real_eventfd(unsigned count, int flags);
int __real_fcntl64(int fd, int cmd, ...);
ssize_t __real_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __real_send(int fd, const void *buf, size_t len, int flags);
int __real_epoll_create1(int flags);
int __real_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg);
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);

int __wrap_close(int fd);
int __wrap_socket(int family, int type, int protocol);
int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len);
int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_fcntl64(int fd, int cmd, int arg);
ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags);
ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags);
int __wrap_epoll_create1(int flags);
int __wrap_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);

void fake_fail(unsigned nth)
{
	pthread_mutex_lock(&lock);
	fail_at = nth;
	n_calls = 0;
	pthread_mutex_unlock(&lock);
}

bool fake_failed(void)
{
	bool failed;

	pthread_mutex_lock(&lock);
	failed = fail_at && n_calls >= fail_at;
	pthread_mutex_unlock(&lock);
	return failed;
}

static bool fails(int err)
{
	bool now;

	pthread_mutex_lock(&lock);
	now = ++n_calls == fail_at;
	pthread_mutex_unlock(&lock);
	if (now)
		errno = err;
	return now;
}

/* Of a socket; lock held. */
static struct fake_socket *find(int fd)
{
	for (unsigned i = 0; i < SOCKETS; i++)
		if (sockets[i].open && sockets[i].fd == fd)
			return &sockets[i];
	return NULL;
}

void fake_reset(void)
{
	fake = (struct fake_kernel) { 0 };
	fake_fail(0);
	for (unsigned i = 0; i < SOCKETS; i++) {
		if (sockets[i].open) /* of a test that failed */
			close(sockets[i].fd);
		sockets[i].n = 0;
	}
}

static void enqueue(struct fake_socket *s, const struct message *m, uint32_t from, int err)
{
	struct datagram *d = &s->queue[(s->head + s->n) % DATAGRAMS];
	uint64_t one = 1;
	ssize_t n;

	assert(s->n < DATAGRAMS);
	s->n++;
	d->err = err;
	d->from = from;
	d->m.len = m ? m->len : 0;
	if (m)
		memcpy(d->m.data, m->data, m->len);
	n = write(s->fd, &one, sizeof(one));
	assert(n == sizeof(one));
	(void)n;
}

static void push(const struct message *m, uint32_t from, int err)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < SOCKETS; i++)
		if (sockets[i].open)
			enqueue(&sockets[i], m, from, err);
	pthread_mutex_unlock(&lock);
}

void fake_push(const struct message *m, uint32_t from)
{
	push(m, from, 0);
}

void fake_push_error(int err)
{
	push(NULL, 0, err);
}

void fake_say_link(uint16_t type, const struct fake_link *link)
{
	struct message m = { 0 };

	msg_link(&m, type, link, 0, 0, 0);
	fake_push(&m, 0);
}

/* With the number of somebody's request, as the kernel does. */
void fake_say_address(uint16_t type, const struct fake_address *address)
{
	struct message m = { 0 };

	msg_address(&m, type, address, 0, 1, 99);
	fake_push(&m, 0);
}

/* Two to a datagram, as if the pieces of a dump were small. */
static void answer(struct fake_socket *s, uint16_t type, uint32_t seq)
{
	size_t n = type == RTM_GETLINK ? fake.n_links : fake.n_addresses;
	struct message m = { 0 };

	for (size_t i = 0; i < n; i++) {
		if (type == RTM_GETLINK)
			msg_link(&m, RTM_NEWLINK, &fake.links[i], NLM_F_MULTI, seq, FAKE_PORT);
		else
			msg_address(&m, RTM_NEWADDR, &fake.addresses[i], NLM_F_MULTI, seq,
				    FAKE_PORT);
		if (i % 2) {
			enqueue(s, &m, 0, 0);
			m.len = 0;
		}
	}
	msg_done(&m, 0, seq, FAKE_PORT);
	enqueue(s, &m, 0, 0);
}

/* ---- calls ---- */

int __wrap_socket(int family, int type, int protocol)
{
	int fd = -1;

	assert(family == AF_NETLINK && protocol == NETLINK_ROUTE && type & SOCK_CLOEXEC);
	(void)family, (void)type, (void)protocol;
	if (fails(EMFILE))
		return -1;
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; fd < 0 && i < SOCKETS; i++)
		if (!sockets[i].open) {
			fd = __real_eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
			sockets[i].fd = fd;
			sockets[i].open = fd >= 0;
			sockets[i].n = 0;
		}
	pthread_mutex_unlock(&lock);
	return fd;
}

int __wrap_bind(int fd, const struct sockaddr *addr, socklen_t len)
{
	struct sockaddr_nl nl;

	(void)fd;
	assert(len == sizeof(nl));
	memcpy(&nl, addr, len);
	assert(nl.nl_pid == 0 && nl.nl_groups);
	return fails(ENOMEM) ? -1 : 0;
}

int __wrap_getsockname(int fd, struct sockaddr *addr, socklen_t *len)
{
	struct sockaddr_nl nl = { .nl_family = AF_NETLINK, .nl_pid = FAKE_PORT };

	(void)fd;
	if (fails(ENOMEM))
		return -1;
	assert(*len == sizeof(nl));
	memcpy(addr, &nl, sizeof(nl));
	return 0;
}

ssize_t __wrap_send(int fd, const void *buf, size_t len, int flags)
{
	struct fake_socket *s;
	struct nlmsghdr header;

	pthread_mutex_lock(&lock);
	s = find(fd);
	pthread_mutex_unlock(&lock);
	if (!s)
		return __real_send(fd, buf, len, flags);
	if (fails(ENOMEM))
		return -1;
	memcpy(&header, buf, sizeof(header));
	assert(header.nlmsg_len == len && header.nlmsg_flags == (NLM_F_REQUEST | NLM_F_DUMP));
	fake.requests++;
	if (fake.hook && fake.hook(header.nlmsg_type, header.nlmsg_seq))
		return (ssize_t)len;
	pthread_mutex_lock(&lock);
	answer(s, header.nlmsg_type, header.nlmsg_seq);
	pthread_mutex_unlock(&lock);
	return (ssize_t)len;
}

/* Lock held. */
static ssize_t dequeue(struct fake_socket *s, struct msghdr *msg, int flags)
{
	struct datagram *d = &s->queue[s->head];
	struct sockaddr_nl from = { .nl_family = AF_NETLINK };
	uint64_t count;
	size_t room = msg->msg_iov[0].iov_len;

	if (!s->n) {
		errno = EAGAIN;
		return -1;
	}
	s->head = (s->head + 1) % DATAGRAMS;
	if (!--s->n && read(s->fd, &count, sizeof(count)) < 0)
		return -1;
	if (d->err) {
		errno = d->err;
		return -1;
	}
	from.nl_pid = d->from;
	memcpy(msg->msg_name, &from, sizeof(from));
	msg->msg_namelen = sizeof(from);
	memcpy(msg->msg_iov[0].iov_base, d->m.data, d->m.len < room ? d->m.len : room);
	return (ssize_t)(d->m.len < room || flags & MSG_TRUNC ? d->m.len : room);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct fake_socket *s;
	ssize_t n = -1;

	pthread_mutex_lock(&lock);
	s = find(fd);
	if (s)
		n = dequeue(s, msg, flags);
	pthread_mutex_unlock(&lock);
	return s ? n : __real_recvmsg(fd, msg, flags);
}

int __wrap_close(int fd)
{
	struct fake_socket *s;

	pthread_mutex_lock(&lock);
	s = find(fd);
	if (s)
		s->open = false;
	pthread_mutex_unlock(&lock);
	return __real_close(fd);
}

/* The library moves its sockets out of the program's way. With 64 bits for offsets fcntl() has this name. */
int __wrap_fcntl64(int fd, int cmd, int arg)
{
	int moved = __real_fcntl64(fd, cmd, arg);
	struct fake_socket *s;

	if (cmd != F_DUPFD_CLOEXEC || moved < 0)
		return moved;
	pthread_mutex_lock(&lock);
	s = find(fd);
	if (s)
		s->fd = moved;
	pthread_mutex_unlock(&lock);
	return moved;
}

int __wrap_eventfd(unsigned count, int flags)
{
	assert(flags & EFD_CLOEXEC);
	return fails(EMFILE) ? -1 : __real_eventfd(count, flags);
}

int __wrap_epoll_create1(int flags)
{
	assert(flags & EPOLL_CLOEXEC);
	return fails(EMFILE) ? -1 : __real_epoll_create1(flags);
}

int __wrap_epoll_ctl(int epfd, int op, int fd, struct epoll_event *event)
{
	/* A change inside the set needs no memory. */
	return op == EPOLL_CTL_ADD && fails(ENOMEM) ? -1 : __real_epoll_ctl(epfd, op, fd, event);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			  void *arg)
{
	return fails(EAGAIN) ? EAGAIN : __real_pthread_create(thread, attr, fn, arg);
}

void *__wrap_malloc(size_t size)
{
	return fails(ENOMEM) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return fails(ENOMEM) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
	return fails(ENOMEM) ? NULL : __real_realloc(old, size);
}
