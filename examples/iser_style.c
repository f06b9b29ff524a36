/* SPDX-License-Identifier: MIT */
/*
 * Storage over one TCP connection that becomes an RDMA connection, in the way of iSER (RFC 7145).
 *
 *   iser_style [INITIATOR [TARGET]]              both ends, in two processes
 *   iser_style target PORT [TARGET]
 *   iser_style initiator ADDRESS PORT [INITIATOR]
 *
 * INITIATOR and TARGET are Yes or No: does that end want RDMA?
 *
 * First the two log in with lines of text. If both say RDMAExtensions=Yes they convert the
 * connection: commands and answers are then messages, and the target moves the data itself, by
 * RDMA Read out of and RDMA Write into the memory that the initiator names in its command. If one
 * says No they go on in plain TCP: the same commands, with the data behind them in the stream.
 * docs/guide-convert.md explains this program.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <flue/flue.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(x)                                                           \
	({                                                                \
		__typeof__(x) r_ = (x);                                   \
		if (!r_)                                                  \
			fprintf(stderr, "%s: ", me), perror(#x), exit(1); \
		r_;                                                       \
	})

enum { BLOCK = 4096, DISK = 256, MAX_BLOCKS = 64, WAIT_MS = 10000 };
enum { READ_BLOCKS = 1, WRITE_BLOCKS, LOGOUT };

/* On the wire, all big-endian. A message of RDMA mode has the same form as in the stream. */
struct command {
	uint32_t op, first, count;
	uint32_t key; /* RDMA mode: where the target finds or puts the data */
	uint64_t address;
};
struct answer {
	uint32_t op, count; /* as in the command: it is done */
};

/* One end of the connection, either end. */
struct end {
	struct flue_adapter *adapter;
	struct flue_socket *s;
	struct flue_mr *mr; /* initiator: its buffer, as the target may see it */
	bool rdma;
	unsigned done;    /* a bit for each type of event that came and was not awaited yet */
	size_t received;  /* octets of the last receive */
	uint32_t revoked; /* the key that the peer invalidated with its last message */
	union {
		struct command command;
		struct answer answer;
	} in, out;
};

static const char *me = "iser_style";
static char disk[DISK * BLOCK], buffer[MAX_BLOCKS * BLOCK];

/* ---- events ---- */

#define BIT(type) (1u << FLUE_SOCKET_##type)

/* Every request is answered by one event; wait for the ones named. */
static void await(struct end *e, unsigned wanted)
{
	struct flue_socket_event ev;

	while (~e->done & wanted) {
		MUST(flue_socket_get_event(e->s, &ev, WAIT_MS));
		/* At the end the receive that waits for the next message is given back empty. */
		if (ev.error && ev.type != FLUE_SOCKET_RDMA_RECEIVED)
			errno = ev.error, perror(me), exit(1);
		if (ev.type == FLUE_SOCKET_RECEIVED || ev.type == FLUE_SOCKET_RDMA_RECEIVED) {
			e->received = ev.length;
			e->revoked = ev.inv_key;
		}
		if (ev.type == FLUE_SOCKET_ENDED)
			printf("%s: %s\n", me, flue_close_reason_name(ev.reason));
		e->done |= 1u << ev.type;
	}
	e->done &= ~wanted;
}

/* ---- streaming mode ---- */

static void stream_send(struct end *e, const void *data, size_t length)
{
	MUST(e->s->ops->send(e->s, data, length, 0));
	await(e, BIT(SENT));
}

static void stream_recv(struct end *e, void *data, size_t length)
{
	for (size_t n = 0; n < length; n += e->received) {
		MUST(e->s->ops->recv(e->s, (char *)data + n, length - n, 0));
		await(e, BIT(RECEIVED));
		MUST(e->received > 0);
	}
}

/* ---- login ---- */

/*
 * Text ends with an empty line. Nothing behind it is read, for it may be the peer's first octet in
 * the new mode. Octet by octet is slow; who reads ahead must give the rest to the switch, as `early`.
 */
static void login_recv(struct end *e, char *text, size_t size)
{
	size_t n = 0;

	do {
		MUST(n < size - 1);
		stream_recv(e, text + n, 1);
		text[++n] = '\0';
	} while (n < 2 || strcmp(text + n - 2, "\n\n") != 0);
}

static bool says_yes(const char *text)
{
	return strstr(text, "\nRDMAExtensions=Yes\n");
}

/* Before a Yes everything that RDMA mode needs is made sure of. */
static bool can_rdma(struct end *e, bool willing)
{
	struct flue_reserve_attr want = FLUE_ATTR(struct flue_reserve_attr);

	want.sq_depth = want.rq_depth = 4;
	if (!willing || e->s->ops->reserve(e->s, &want))
		return willing;
	printf("%s: no RDMA: %s\n", me, flue_reserve_reason_name(want.reason));
	return false;
}

static void initiator_login(struct end *e, bool willing)
{
	char text[512];

	willing = can_rdma(e, willing);
	snprintf(text, sizeof(text),
		 "InitiatorName=iqn.2004-10.example:ours\nRDMAExtensions=%s\n\n",
		 willing ? "Yes" : "No");
	stream_send(e, text, strlen(text));
	login_recv(e, text, sizeof(text));
	e->rdma = willing && says_yes(text);
}

static void target_login(struct end *e, bool willing)
{
	char text[512];

	login_recv(e, text, sizeof(text));
	e->rdma = says_yes(text) && can_rdma(e, willing);
	snprintf(text, sizeof(text), "TargetPortalGroupTag=1\nRDMAExtensions=%s\n\n",
		 e->rdma ? "Yes" : "No");
	stream_send(e, text, strlen(text));
}

/* ---- the switch ---- */

/* The last octet of both logins is through: what follows on this connection is RDMA. */
static void convert(struct end *e, uint32_t role)
{
	struct flue_switch_attr how = FLUE_ATTR(struct flue_switch_attr);

	how.flags = role;
	MUST(e->s->ops->switch_mode(e->s, &how, 0));
	MUST(e->s->ops->rdma_recv(e->s, &e->in, sizeof(e->in), 0));
	await(e, BIT(SWITCHED));
}

/* ---- messages: one form for both modes ---- */

static void message_send(struct end *e, size_t length, uint32_t key_to_revoke)
{
	uint32_t flags = FLUE_SOCKET_SOLICITED | (key_to_revoke ? FLUE_SOCKET_INVALIDATE : 0);

	if (!e->rdma) {
		stream_send(e, &e->out, length);
		return;
	}
	MUST(e->s->ops->rdma_send(e->s, &e->out, length, flags, key_to_revoke, 0));
	await(e, BIT(RDMA_SENT));
}

/* There is always one receive posted, because in RDMA mode a message must find one. */
static void message_recv(struct end *e, void *message, size_t length)
{
	if (!e->rdma) {
		stream_recv(e, message, length);
		return;
	}
	await(e, BIT(RDMA_RECEIVED));
	MUST(e->received == length);
	memcpy(message, &e->in, length);
	MUST(e->s->ops->rdma_recv(e->s, &e->in, sizeof(e->in), 0));
}

/* ---- initiator ---- */

/* One command on `count` blocks, which are in `buffer` before it (Write) or after it (Read). */
static void execute(struct end *e, uint32_t op, uint32_t first, uint32_t count)
{
	struct command *c = &e->out.command;
	struct answer answer;
	size_t length = (size_t)count * BLOCK;
	uint32_t access = op == WRITE_BLOCKS ? FLUE_REMOTE_READ
					     : FLUE_REMOTE_WRITE | FLUE_LOCAL_WRITE;

	*c = (struct command) { htobe32(op), htobe32(first), htobe32(count), 0, 0 };
	if (e->rdma && length) {
		access |= FLUE_REMOTE_INVALIDATE;
		MUST(e->s->ops->map(e->s, e->mr, buffer, length, access));
		c->key = htobe32(e->mr->rkey);
		c->address = htobe64(e->mr->remote_start);
	}
	message_send(e, sizeof(*c), 0);
	if (!e->rdma && op == WRITE_BLOCKS)
		stream_send(e, buffer, length);
	message_recv(e, &answer, sizeof(answer));
	MUST(answer.op == htobe32(op) && answer.count == htobe32(count));
	if (!e->rdma && op == READ_BLOCKS)
		stream_recv(e, buffer, length);
	/* The answer took the key away: from here on the target cannot reach the buffer. */
	if (e->rdma && length)
		MUST(e->revoked == e->mr->rkey);
}

static char octet(uint32_t block, uint32_t i)
{
	return (char)((block * BLOCK + i) * 2654435761u >> 13);
}

static void use_storage(struct end *e)
{
	if (e->rdma)
		e->mr = MUST(e->s->ops->alloc_stag(e->s));
	for (uint32_t at = 0; at < DISK; at += MAX_BLOCKS) {
		for (uint32_t i = 0; i < sizeof(buffer); i++)
			buffer[i] = octet(at, i);
		execute(e, WRITE_BLOCKS, at, MAX_BLOCKS);
	}
	for (uint32_t n = 1, at = 3; n <= MAX_BLOCKS; n *= 2, at *= 2) {
		memset(buffer, 0, sizeof(buffer));
		execute(e, READ_BLOCKS, at, n);
		for (uint32_t i = 0; i < n * BLOCK; i++)
			MUST(buffer[i] == octet(at, i));
	}
	execute(e, LOGOUT, 0, 0);
	printf("initiator: all data verified\n");
}

/* ---- target ---- */

static void serve_write(struct end *e, const struct command *c, char *at, size_t length)
{
	if (!e->rdma) {
		stream_recv(e, at, length);
	} else {
		MUST(e->s->ops->get(e->s, at, length, be64toh(c->address), be32toh(c->key), 0, 0));
		await(e, BIT(GOT));
	}
	message_send(e, sizeof(e->out.answer), be32toh(c->key));
}

static void serve_read(struct end *e, const struct command *c, const char *at, size_t length)
{
	if (!e->rdma) {
		message_send(e, sizeof(e->out.answer), 0);
		stream_send(e, at, length);
		return;
	}
	/* No need to wait before the answer is sent: it cannot overtake the data. */
	MUST(e->s->ops->put(e->s, at, length, be64toh(c->address), be32toh(c->key), 0, 0));
	message_send(e, sizeof(e->out.answer), be32toh(c->key));
	await(e, BIT(PUT));
}

static void serve(struct end *e)
{
	uint32_t op = 0, first, count, commands = 0;
	struct command c;

	for (; op != LOGOUT; commands++) {
		message_recv(e, &c, sizeof(c));
		op = be32toh(c.op), first = be32toh(c.first), count = be32toh(c.count);
		MUST(op <= LOGOUT && count <= MAX_BLOCKS && first <= DISK - MAX_BLOCKS);
		e->out.answer = (struct answer) { c.op, c.count };
		if (op == READ_BLOCKS)
			serve_read(e, &c, disk + (size_t)first * BLOCK, (size_t)count * BLOCK);
		else if (op == WRITE_BLOCKS)
			serve_write(e, &c, disk + (size_t)first * BLOCK, (size_t)count * BLOCK);
		else
			message_send(e, sizeof(e->out.answer), 0);
	}
	printf("target: %u commands served\n", commands);
}

/* ---- one end from start to finish ---- */

static void run(bool target, int fd, bool willing)
{
	struct end e = { .rdma = false };

	me = target ? "target" : "initiator";
	setvbuf(stdout, NULL, _IOLBF, 0);
	e.adapter = MUST(flue_open(NULL));
	e.s = MUST(flue_socket_open(e.adapter, fd, NULL));
	if (target)
		target_login(&e, willing);
	else
		initiator_login(&e, willing);
	printf("%s: data goes by %s\n", me, e.rdma ? "RDMA" : "TCP");
	if (e.rdma)
		convert(&e, target ? FLUE_SWITCH_RESPONDER : 0);
	if (target) {
		serve(&e);
	} else {
		use_storage(&e);
		MUST(e.s->ops->disconnect(e.s, 0));
	}
	if (e.rdma)
		await(&e, BIT(ENDED));
	MUST(e.s->ops->destroy(e.s) && flue_close(e.adapter));
	if (!e.rdma) /* otherwise the descriptor became Flue's */
		close(fd);
}

/* ---- ordinary TCP ---- */

static int listen_at(struct sockaddr_in *here)
{
	socklen_t length = sizeof(*here);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int) { 1 }, sizeof(int));
	MUST(bind(fd, (void *)here, sizeof(*here)) == 0 && listen(fd, 1) == 0);
	MUST(getsockname(fd, (void *)here, &length) == 0);
	return fd;
}

static int dial(const struct sockaddr_in *there)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	MUST(connect(fd, (const void *)there, sizeof(*there)) == 0);
	return fd;
}

static int both(bool initiator_willing, bool target_willing)
{
	struct sockaddr_in here = { .sin_family = AF_INET };
	int door, status;
	pid_t child;

	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	door = listen_at(&here);
	child = fork(); /* before an adapter is opened: a child could not use it */
	if (child == 0) {
		run(true, accept(door, NULL, NULL), target_willing);
		exit(0);
	}
	run(false, dial(&here), initiator_willing);
	MUST(waitpid(child, &status, 0) == child);
	return status != 0;
}

static bool is(const char *word, const char *text)
{
	return word && strcmp(word, text) == 0;
}

static in_port_t port_of(const char *text)
{
	char *end;
	unsigned long number = strtoul(text, &end, 10);

	MUST(end != text && !*end && number <= UINT16_MAX);
	return htons((uint16_t)number);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET };

	if (argc >= 3 && is(argv[1], "target")) {
		at.sin_port = port_of(argv[2]);
		run(true, accept(listen_at(&at), NULL, NULL), !is(argv[3], "No"));
		return 0;
	}
	if (argc >= 4 && is(argv[1], "initiator")) {
		MUST(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
		at.sin_port = port_of(argv[3]);
		run(false, dial(&at), !is(argv[4], "No"));
		return 0;
	}
	return both(!is(argv[1], "No"), !(argc > 2 && is(argv[2], "No")));
}
