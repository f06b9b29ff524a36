/* SPDX-License-Identifier: MIT */
/*
 * Records stand one after the other in a ring of octets, each at a multiple of a cache line: a word with its length, then its
 * octets. A word of 0 says that there is nothing yet. The sender makes the word behind a record 0 before it shows that one, so the
 * receiver, who looks at that word next, finds no remains of an earlier turn. Nothing else tells the receiver of a record: it waits
 * for the very line that the record is in.
 *
 * How far the receiver has come it tells now and then: a sender that believes the ring fuller than it is by TELL, and by
 * what the end of the ring took, still has room for records.
 */
#include "channel/duct.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/own.h"
#include "base/robust.h"
#include "base/space.h"
#include "base/sys.h"
#include "base/tsan.h"
#include "channel/peer.h"

#define MAGIC    0x666c756564756331ull
#define LINE     64u
#define WORD     8u /* in front of a record */
#define RING     (256 * 1024u)
#define HEAD     4096u
#define TELL     (RING / 8) /* so many octets are taken before the sender is told */
#define SKIP     (1u << 31) /* nothing up to the end of the ring */
#define PRESENT  (1ull << 63)
#define MAP_SIZE (HEAD + 2 * (size_t)RING)
#define SEALS    (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define AHEAD    4u /* lines that are fetched before they are needed */
/* So many may wait for an answer; the oldest goes then. */
#define WAITING 64
/* A peer that rings all the time is heard for so long. */
#define CALLS 16

_Static_assert(2 * (DUCT_RECORD_MAX + WORD + LINE) + TELL + DUCT_RECORD_MAX < RING,
	       "room for one is there in the end");

/* Words that one side writes. */
struct duct_side {
	_Alignas(LINE) _Atomic uint32_t head;  /* octets taken from the other's ring, ever */
	_Alignas(LINE) _Atomic uint32_t armed; /* enum duct_armed; the other clears it, and rings */
	_Alignas(LINE) _Atomic uint64_t word;
};

enum duct_armed { ARMED_DATA = 1, ARMED_ROOM = 2 };

struct duct_shared {
	uint64_t magic;
	struct duct_side side[2];
};

struct duct {
	uint8_t *map; /* NULL: in a child */
	size_t own_size;
	struct duct_side *own, *peer;
	uint8_t *out;
	const uint8_t *in;
	uint32_t tail;      /* octets put into our ring, ever */
	uint32_t head_seen; /* ... and known to be taken */
	uint32_t head, head_told;
	uint32_t taking; /* of the record that is being looked at: all its octets in the ring */
	bool posted;     /* something since the last flush */
	int status;
	int sock;
	int passed; /* + 1; 0: nothing */
	ino_t sock_ino, memory_ino;
};

static _Atomic uint64_t *word_at(const uint8_t *ring, uint32_t pos)
{
	return (_Atomic uint64_t *)(void *)(ring + (pos & (RING - 1)));
}

static uint32_t whole_lines(size_t size)
{
	return (uint32_t)((size + WORD + LINE - 1) / LINE * LINE);
}

/* ---- waking ---- */

static bool has_sock(const struct duct *d)
{
	struct stat st;

	return d->sock >= 0 && fstat(d->sock, &st) == 0 && st.st_ino == d->sock_ino;
}

static void ring(struct duct *d, uint32_t news)
{
	int saved = errno;

	/* Partners: the fences in duct_arm() and duct_want_room(). */
	atomic_thread_fence(memory_order_seq_cst);
	if (!(atomic_load_explicit(&d->peer->armed, memory_order_relaxed) & news))
		return;
	if (atomic_exchange(&d->peer->armed, 0) && has_sock(d))
		sys_send(d->sock, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	errno = saved;
}

void duct_flush(struct duct *d)
{
	if (!d->posted || !d->map)
		return;
	d->posted = false;
	ring(d, ARMED_DATA);
}

/* ---- sending ---- */

static bool has_room(struct duct *d, uint32_t need)
{
	uint32_t head;

	if (d->tail + need - d->head_seen <= RING)
		return true;
	/* Acquire: what the receiver read there it has read. */
	head = atomic_load_explicit(&d->peer->head, memory_order_acquire);
	if (head - d->head_seen > d->tail - d->head_seen) {
		d->status = -EPROTO;
		return false;
	}
	d->head_seen = head;
	return d->tail + need - d->head_seen <= RING;
}

/* A hint: we are going to write there. Compilers that must reckon with old processors would only ask to read; those that do not
 * know the instruction do nothing. */
static void own_line(const void *at)
{
#ifdef __x86_64__
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)at));
#else
	__builtin_prefetch(at, 1);
#endif
}

/* What follows is 0, then this is there. */
static void publish(struct duct *d, uint64_t word, uint32_t size)
{
	tsan_puts(d->memory_ino);
	atomic_store_explicit(word_at(d->out, d->tail + size), 0, memory_order_relaxed);
	/* Release: the receiver's duct_next() acquires it, and sees the octets and the 0 behind them. */
	atomic_store_explicit(word_at(d->out, d->tail), word | PRESENT, memory_order_release);
	d->tail += size;
	d->posted = true;
	/* Lines of the next record: they are the receiver's since the last turn, and it is cheaper to fetch them now. */
	for (uint32_t i = 1; i <= AHEAD; i++)
		own_line(word_at(d->out, d->tail + i * LINE));
}

void *duct_begin(struct duct *d, size_t size)
{
	uint32_t need = whole_lines(size), to_end = RING - (d->tail & (RING - 1));

	if (d->status || size > DUCT_RECORD_MAX)
		return NULL;
	/* With the line of the word behind it. */
	if (!has_room(d, need + LINE))
		return NULL;
	if (need <= to_end)
		return d->out + (d->tail & (RING - 1)) + WORD;
	/* A record is in one piece. */
	if (!has_room(d, to_end + need + LINE))
		return NULL;
	publish(d, SKIP, to_end);
	return d->out + WORD;
}

void duct_post(struct duct *d, size_t size)
{
	publish(d, size, whole_lines(size));
}

bool duct_want_room(struct duct *d)
{
	atomic_fetch_or(&d->own->armed, ARMED_ROOM);
	/* Partner: the fence in ring(). */
	atomic_thread_fence(memory_order_seq_cst);
	/* When it is over there never is. */
	return !has_room(d, 2 * whole_lines(DUCT_RECORD_MAX) + LINE) || d->status;
}

/* ---- receiving ---- */

static void tell_head(struct duct *d)
{
	if (d->head == d->head_told)
		return;
	atomic_store_explicit(&d->own->head, d->head, memory_order_release);
	d->head_told = d->head;
	ring(d, ARMED_ROOM);
}

static void skip(struct duct *d)
{
	d->head += RING - (d->head & (RING - 1));
}

/* The word of the next record; 0: none. */
static uint64_t look(const struct duct *d)
{
	return atomic_load_explicit(word_at(d->in, d->head), memory_order_acquire);
}

bool duct_is_quiet(const struct duct *d)
{
	return !d->posted && !d->status && look(d) == 0;
}

const void *duct_next(struct duct *d, size_t *size)
{
	uint64_t word;
	uint32_t at;

	if (d->status == -EPROTO || !d->map)
		return NULL;
	word = look(d);
	if (word == (SKIP | PRESENT)) {
		skip(d);
		word = look(d);
	}
	if (!word)
		return NULL;
	tsan_finds(d->memory_ino);
	at = d->head & (RING - 1);
	word &= ~PRESENT;
	if (word > DUCT_RECORD_MAX || whole_lines(word) > RING - at) {
		d->status = -EPROTO;
		return NULL;
	}
	*size = (size_t)word;
	d->taking = whole_lines(word);
	/* All that is small is fetched at once, while its beginning is looked at. */
	for (uint32_t i = LINE; i < d->taking && i <= AHEAD * LINE; i += LINE)
		__builtin_prefetch(d->in + at + i);
	return d->in + at + WORD;
}

void duct_done(struct duct *d)
{
	d->head += d->taking;
	d->taking = 0;
	if (d->head - d->head_told >= TELL)
		tell_head(d);
}

/* ---- beside the records ---- */

_Atomic uint64_t *duct_own_word(struct duct *d)
{
	return &d->own->word;
}

_Atomic uint64_t *duct_peer_word(struct duct *d)
{
	return &d->peer->word;
}

void duct_pass(struct duct *d, int fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(fd))] = { 0 };
	char octet = 0;
	struct iovec iov = { &octet, 1 };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	int saved = errno;

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fd));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	if (d->map && has_sock(d))
		sys_sendmsg(d->sock, &msg, MSG_NOSIGNAL);
	errno = saved;
}

int duct_passed(struct duct *d)
{
	int fd = d->passed - 1;

	d->passed = 0;
	return fd;
}

/* ---- sleeping ---- */

bool duct_arm(struct duct *d)
{
	atomic_fetch_or(&d->own->armed, ARMED_DATA);
	/* Partner: the fence in ring(). */
	atomic_thread_fence(memory_order_seq_cst);
	/* What a peer that has gone had sent is taken first. */
	return d->status == -EPROTO || look(d) == 0;
}

int duct_fd(const struct duct *d)
{
	return d->sock;
}

/* The first that ever comes is kept. There may be several in one message: what fits has been given to us, and is ours to close. */
static void take_descriptors(struct duct *d, const struct cmsghdr *c)
{
	size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

	for (size_t i = 0; i < n; i++) {
		int fd;

		memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
		own_new(fd);
		if (d->passed)
			own_close(fd);
		else
			d->passed = own_move(fd) + 1;
	}
}

/* Descriptors may come with the octets. */
static ssize_t hear(struct duct *d, void *octets, size_t size)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { octets, size };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n = sys_recvmsg(d->sock, &msg, MSG_CMSG_CLOEXEC);
	struct cmsghdr *c = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;

	if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
		take_descriptors(d, c);
	return n;
}

void duct_heard(struct duct *d)
{
	char octets[64];
	int calls = 0;
	ssize_t n;

	if (!has_sock(d)) {
		d->status = d->status ? d->status : -EPIPE;
		return;
	}
	do {
		n = hear(d, octets, sizeof(octets));
	} while ((n > 0 || (n < 0 && errno == EINTR)) && ++calls < CALLS);
	if ((n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) && !d->status)
		d->status = -EPIPE;
}

int duct_status(const struct duct *d)
{
	return d->status;
}

/* ---- making ---- */

static int make_memory(void)
{
	struct duct_shared head = { .magic = MAGIC };
	int fd, rc;

	if (!space_may_grow(MAP_SIZE))
		return -EFBIG;
	fd = own_new(memfd_create("flue-duct", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)MAP_SIZE) != 0 ||
	    pwrite(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    sys_fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
		rc = -errno;
		own_close(fd);
		return rc;
	}
	return fd;
}

/* Nobody can cut it away below us. */
static bool is_sound(int fd)
{
	uint64_t magic;
	struct stat st;
	int seals = sys_fcntl(fd, F_GET_SEALS, 0);

	return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 &&
	       (size_t)st.st_size == MAP_SIZE &&
	       pread(fd, &magic, sizeof(magic), 0) == (ssize_t)sizeof(magic) && magic == MAGIC;
}

/* Takes `sock`, which stands out of the program's way. */
static int attach(int memory, unsigned side, int sock, struct duct **out)
{
	struct duct_shared *shared;
	struct stat st;
	struct duct *d;

	if (!is_sound(memory) || fstat(sock, &st) != 0 || !S_ISSOCK(st.st_mode)) {
		sys_close(sock);
		return -EINVAL;
	}
	d = space_map(-1, HEAD);
	if (d)
		d->map = space_map(memory, MAP_SIZE);
	if (!d || !d->map || madvise(d->map, MAP_SIZE, MADV_DONTFORK) != 0) {
		if (d && d->map)
			space_unmap(d->map, MAP_SIZE);
		if (d)
			space_unmap(d, HEAD);
		sys_close(sock);
		return -ENOMEM;
	}
	shared = (struct duct_shared *)d->map;
	d->own = &shared->side[side];
	d->peer = &shared->side[!side];
	d->out = d->map + HEAD + side * (size_t)RING;
	d->in = d->map + HEAD + !side * (size_t)RING;
	d->sock = sock;
	d->sock_ino = st.st_ino;
	d->memory_ino = fstat(memory, &st) == 0 ? st.st_ino : 0;
	*out = d;
	return 0;
}

int duct_make(int sock, int *memory, struct duct **out)
{
	int fd = make_memory(), rc;

	if (fd < 0) {
		sys_close(sock);
		return fd;
	}
	rc = attach(fd, 0, sock, out);
	if (rc)
		own_close(fd);
	else
		*memory = fd;
	return rc;
}

int duct_take(int memory, int sock, struct duct **out)
{
	return attach(memory, 1, sock, out);
}

int duct_call(const uint8_t mailbox[MAILBOX_NAME], pid_t pid, uint64_t name, struct duct **out)
{
	struct letter letter = { .kind = LETTER_DUCT, .memory = name };
	int fds[2], pair[2], rc, own, memory = make_memory();

	if (memory < 0)
		return memory;
	if (sys_call(SYS_socketpair, AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
		rc = -errno;
		own_close(memory);
		return rc;
	}
	own_new(pair[0]);
	own_new(pair[1]);
	fds[0] = memory;
	fds[1] = pair[1];
	own = own_move(pair[0]);
	rc = own < 0 ? -EMFILE : attach(memory, 0, own, out);
	if (rc == 0 && !mailbox_send(mailbox, pid, &letter, fds, 2)) {
		duct_close(*out);
		rc = -ECONNREFUSED;
	}
	own_close(memory);
	own_close(pair[1]);
	return rc;
}

void duct_close(struct duct *d)
{
	if (d->passed)
		sys_close(d->passed - 1);
	if (has_sock(d)) {
		if (d->map) /* else it is the parent's */
			shutdown(d->sock, SHUT_RDWR);
		sys_close(d->sock);
	}
	if (d->map)
		space_unmap(d->map, MAP_SIZE);
	space_unmap(d, HEAD);
}

void duct_forked(struct duct *d)
{
	space_forget(MAP_SIZE);
	d->map = NULL;
	d->status = -EPIPE;
}

/* ---- those that came ---- */

static struct arrival {
	uint64_t name;
	int memory, sock;
	pid_t pid;
} waiting[WAITING];
static unsigned n_waiting;
static struct robust_lock lock, reading;

static void drop(unsigned i)
{
	sys_close(waiting[i].memory);
	sys_close(waiting[i].sock);
}

static void remove_at(unsigned i)
{
	n_waiting--;
	memmove(&waiting[i], &waiting[i + 1], (n_waiting - i) * sizeof(waiting[0]));
}

/* Those whose makers have gone meanwhile: nobody will ask for them. */
static void drop_dead(void)
{
	for (unsigned i = n_waiting; i--;) {
		struct pollfd p = { .fd = waiting[i].sock, .events = POLLIN };

		if (sys_poll(&p, 1) != 1 || !(p.revents & POLLHUP))
			continue;
		drop(i);
		remove_at(i);
	}
}

static bool take_letter(uint64_t name, pid_t pid, const int *fds, size_t n)
{
	struct arrival a = { .name = name, .pid = pid };

	if (n != 2 || !robust_take(&lock))
		return false;
	drop_dead();
	a.memory = own_move(fds[0]);
	a.sock = own_move(fds[1]);
	if (a.memory < 0 || a.sock < 0) {
		if (a.memory >= 0)
			sys_close(a.memory);
		if (a.sock >= 0)
			sys_close(a.sock);
	} else {
		if (n_waiting == WAITING) {
			drop(0);
			remove_at(0);
		}
		waiting[n_waiting++] = a;
	}
	robust_give(&lock);
	return true;
}

bool duct_reachable(void)
{
	peer_set_ducts(take_letter);
	return peer_reachable();
}

int duct_answer(pid_t pid, uint64_t name, struct duct **out)
{
	struct arrival a = { .sock = -1 };
	int rc;

	/* One at a time: a letter that another thread has taken out is in the list when it is our turn. */
	if (!robust_take(&reading))
		return -ENOENT;
	mailbox_empty();
	robust_give(&reading);
	if (!robust_take(&lock))
		return -ENOENT;
	for (unsigned i = 0; i < n_waiting && a.sock < 0; i++) {
		if (waiting[i].name == name && waiting[i].pid == pid) {
			a = waiting[i];
			remove_at(i);
		}
	}
	robust_give(&lock);
	if (a.sock < 0)
		return -ENOENT;
	rc = attach(a.memory, 1, a.sock, out);
	sys_close(a.memory);
	return rc;
}

void duct_forked_all(void)
{
	atomic_store(&lock.word, 0);
	atomic_store(&reading.word, 0);
	for (unsigned i = 0; i < n_waiting; i++)
		drop(i);
	n_waiting = 0;
}
