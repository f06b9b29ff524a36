/* SPDX-License-Identifier: MIT */
/* See duct_peer.h. */
#include "hostile/duct_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "wire/ddp.h"
#include "wire/rdmap.h"

#define LINE     64u
#define PATIENCE 20000

struct letter {
	uint32_t kind;
	uint64_t memory;
	uint8_t mailbox[8];
};

void duct_peer_fail(const char *what, int line)
{
	fprintf(stderr, "the hostile peer, line %d: not %s: %s\n", line, what, strerror(errno));
	_exit(3);
}

/* ---- the mailbox ---- */

void duct_open_box(struct duct_peer *p)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	socklen_t len = sizeof(at);

	p->tcp = p->memory = p->sock = -1;
	p->box = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	MUST(p->box >= 0);
	MUST(bind(p->box, (struct sockaddr *)&at, sizeof(sa_family_t)) == 0);
	MUST(listen(p->box, 16) == 0);
	MUST(getsockname(p->box, (struct sockaddr *)&at, &len) == 0);
	memcpy(p->name, at.sun_path, len - offsetof(struct sockaddr_un, sun_path));
}

static void take_letter(struct duct_peer *p)
{
	struct pollfd ready = { .fd = p->box, .events = POLLIN };
	char control[CMSG_SPACE(2 * sizeof(int))];
	struct letter letter;
	struct iovec iov = { &letter, sizeof(letter) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	int fds[2], s;

	MUST(poll(&ready, 1, PATIENCE) == 1);
	s = accept(p->box, NULL, NULL);
	MUST(s >= 0);
	MUST(recvmsg(s, &msg, 0) == (ssize_t)sizeof(letter));
	MUST(letter.kind == 'D' && CMSG_FIRSTHDR(&msg));
	MUST(CMSG_FIRSTHDR(&msg)->cmsg_len == CMSG_LEN(sizeof(fds)));
	memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fds));
	close(s);
	p->memory = fds[0];
	p->sock = fds[1];
}

static void map(struct duct_peer *p, unsigned side)
{
	p->side = side;
	p->map = mmap(NULL, DUCT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, p->memory, 0);
	MUST(p->map != MAP_FAILED);
}

void duct_send_letter(struct duct_peer *p, uint64_t name, const int *fds, unsigned n)
{
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	struct letter letter = { .kind = 'D', .memory = name };
	char control[CMSG_SPACE(8 * sizeof(int))] = { 0 };
	struct iovec iov = { &letter, sizeof(letter) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = CMSG_SPACE(n * sizeof(int)) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
	size_t len = strnlen((char *)p->victim.box + 1, 7) + 1;
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(letter.mailbox, p->name, sizeof(letter.mailbox));
	memcpy(at.sun_path, p->victim.box, sizeof(p->victim.box));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
	MUST(s >= 0);
	MUST(connect(s, (struct sockaddr *)&at,
		     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) == 0);
	MUST(sendmsg(s, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(letter));
	close(s);
}

int duct_make_memory(void)
{
	const uint64_t magic = 0x666c756564756331ull;
	int fd = memfd_create("duct", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	MUST(fd >= 0 && ftruncate(fd, (off_t)DUCT_SIZE) == 0);
	MUST(pwrite(fd, &magic, sizeof(magic), 0) == (ssize_t)sizeof(magic));
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
	return fd;
}

/* ---- frames ---- */

static void read_all(int fd, uint8_t *at, size_t n)
{
	for (ssize_t got; n; at += got, n -= (size_t)got) {
		got = recv(fd, at, n, 0);
		MUST(got > 0);
	}
}

/* `buf` is kept by the frame. */
static void read_frame(int fd, bool reply, struct mpa_frame *f,
		       uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX])
{
	size_t more;

	read_all(fd, buf, MPA_FRAME_LEN);
	more = (size_t)buf[18] << 8 | buf[19];
	MUST(more <= MPA_PD_MAX);
	read_all(fd, buf + MPA_FRAME_LEN, more);
	MUST(mpa_frame_decode(f, buf, MPA_FRAME_LEN + more, reply) > 0);
}

static void send_frame(int fd, const struct mpa_frame *f)
{
	uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX];
	int n = mpa_frame_encode(f, buf, sizeof(buf));

	MUST(n > 0 && send(fd, buf, (size_t)n, MSG_NOSIGNAL) == n);
}

static struct mpa_local ourselves(struct duct_peer *p, uint32_t circuit)
{
	struct mpa_local l = {
		.offered = true, .pid = (uint32_t)getpid(), .engine = 7, .circuit = circuit
	};

	memcpy(l.box, p->name, sizeof(l.box));
	return l;
}

void duct_dial(struct duct_peer *p, const struct sockaddr_in *to)
{
	struct mpa_policy policy = { .rev = 2,
				     .crc = true,
				     .markers_ok = true,
				     .p2p = true,
				     .rtr = MPA_RTR_WRITE,
				     .own_peer = true,
				     .ird = 4,
				     .ord = 4,
				     .ird_max = 4,
				     .full = true,
				     .identity = { .version = MPA_FULL_VERSION, .qpn = 77 } };
	uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX];
	struct mpa_frame req, rep;

	policy.identity.local = ourselves(p, 5);
	p->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	MUST(p->tcp >= 0 && connect(p->tcp, (const struct sockaddr *)to, sizeof(*to)) == 0);
	mpa_make_request(&policy, NULL, 0, &req);
	send_frame(p->tcp, &req);
	take_letter(p);
	read_frame(p->tcp, true, &rep, buf);
	MUST(!(rep.flags & MPA_FLAG_REJECT) && rep.identity.local.offered);
	p->victim = rep.identity.local;
	p->circuit = p->victim.circuit;
	map(p, 1);
}

void duct_be_ready(struct duct_peer *p)
{
	const struct ddp_params version = { .dv = 1, .rv = 1, .full = true };
	struct ddp_segment s = { .opcode = RDMAP_WRITE, .tagged = true, .last = true, .stag = 1 };
	uint8_t segment[DDP_HDR_MAX];

	duct_put(p, p->circuit, KIND_DATA, 0, 0, segment, ddp_encode(&version, &s, segment));
	duct_ring(p);
	close(p->tcp);
	p->tcp = -1;
}

void duct_be_called(struct duct_peer *p, int listener)
{
	struct pollfd ready = { .fd = listener, .events = POLLIN };
	uint8_t buf[MPA_FRAME_LEN + MPA_PD_MAX];
	struct mpa_frame req;

	MUST(poll(&ready, 1, PATIENCE) == 1);
	p->tcp = accept(listener, NULL, NULL);
	MUST(p->tcp >= 0);
	read_frame(p->tcp, false, &req, buf);
	MUST(req.identity.local.offered);
	p->victim = req.identity.local;
	p->circuit = p->victim.circuit;
}

void duct_reply(struct duct_peer *p, uint64_t name, uint32_t circuit)
{
	struct mpa_frame rep = { .reply = true,
				 .rev = MPA_REV_FULL,
				 .flags = MPA_FLAG_ENHANCED | MPA_FLAG_CRC | MPA_FLAG_OWN_TAKEN,
				 .p2p = true,
				 .rtr = MPA_RTR_WRITE,
				 .ird = 4,
				 .ord = 4,
				 .identity = { .version = MPA_FULL_VERSION, .qpn = 77 } };

	rep.identity.local = ourselves(p, circuit);
	rep.identity.local.name = name;
	send_frame(p->tcp, &rep);
}

/* ---- the rings ---- */

_Atomic uint32_t *duct_head(struct duct_peer *p, unsigned side)
{
	return (_Atomic uint32_t *)(void *)(p->map + LINE + side * 3 * LINE);
}

uint8_t *duct_out(struct duct_peer *p)
{
	return p->map + DUCT_HEAD + p->side * DUCT_RING;
}

static _Atomic uint64_t *word_at(struct duct_peer *p, uint32_t pos)
{
	return (_Atomic uint64_t *)(void *)(duct_out(p) + (pos & (DUCT_RING - 1)));
}

void duct_put_word(struct duct_peer *p, uint64_t word)
{
	atomic_store(word_at(p, p->tail), word);
}

void duct_put(struct duct_peer *p, uint32_t circuit, uint8_t kind, uint8_t code, uint16_t zero,
	      const void *data, size_t size)
{
	uint32_t need = (uint32_t)(8 + 8 + size + LINE - 1) / LINE * LINE;
	uint32_t left = DUCT_RING - (p->tail & (DUCT_RING - 1)), skip = need > left ? left : 0;
	uint8_t *at;

	/* What it has not read must not be written over, or this would be one of the attacks. */
	while (p->tail + skip + need + LINE - atomic_load(duct_head(p, !p->side)) > DUCT_RING)
		usleep(50);
	if (skip) {
		atomic_store(word_at(p, p->tail + skip), 0);
		duct_put_word(p, DUCT_SKIP | DUCT_PRESENT);
		p->tail += skip;
	}
	at = duct_out(p) + (p->tail & (DUCT_RING - 1)) + 8;
	memcpy(at, &circuit, 4);
	at[4] = kind;
	at[5] = code;
	memcpy(at + 6, &zero, 2);
	if (size)
		memcpy(at + 8, data, size);
	atomic_store(word_at(p, p->tail + need), 0);
	duct_put_word(p, DUCT_PRESENT | (8 + size));
	p->tail += need;
}

void duct_ring(struct duct_peer *p)
{
	send(p->sock, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}
