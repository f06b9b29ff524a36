/* SPDX-License-Identifier: MIT */
/*
 * A peer on the same host that does whatever a test wants with the memory it shares: mailbox, duct and records by hand, from
 * the description in docs/design (channel.md, service.md) and not from the code. For a process of its own: it uses nothing of the library
 * but the start-up frames, and ends the process (exit status 3) when something does not do what a function's name says.
 */
#ifndef FLUE_TESTS_DUCT_PEER_H
#define FLUE_TESTS_DUCT_PEER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/mpa.h"

#define DUCT_RING    (256 * 1024u)
#define DUCT_HEAD    4096u
#define DUCT_SIZE    (DUCT_HEAD + 2 * (size_t)DUCT_RING)
#define DUCT_PRESENT (1ull << 63)
#define DUCT_SKIP    (1ull << 31)

enum duct_kind { KIND_DATA = 0, KIND_FIN, KIND_TAKEN, KIND_CLOSE };

struct duct_peer {
	int box;          /* our mailbox, which listens */
	uint8_t name[8];  /* of it */
	int tcp;          /* -1: closed */
	int memory, sock; /* of the duct */
	uint8_t *map;
	unsigned side;    /* 0: we made it */
	uint32_t tail;    /* octets that we have put into our ring */
	uint32_t circuit; /* the victim's number */
	struct mpa_local victim;
};

#define MUST(what) ((what) ? (void)0 : duct_peer_fail(#what, __LINE__))
void duct_peer_fail(const char *what, int line) __attribute__((noreturn));

/* A mailbox of ours. */
void duct_open_box(struct duct_peer *p);
/* Dials a listener for full service, offers a circuit, takes the letter and the reply: the duct is there. */
void duct_dial(struct duct_peer *p, const struct sockaddr_in *to);
/* The first record: the victim is then connected. */
void duct_be_ready(struct duct_peer *p);

/* Takes the victim's call on a listening socket, up to its request. */
void duct_be_called(struct duct_peer *p, int listener);
/* A letter to the victim's mailbox with these descriptors. */
void duct_send_letter(struct duct_peer *p, uint64_t name, const int *fds, unsigned n);
/* Accepts its call with a duct of that name. */
void duct_reply(struct duct_peer *p, uint64_t name, uint32_t circuit);
/* A memory file as it should be: sealed, with the magic. */
int duct_make_memory(void);

/* The word at the place where the next record goes; what is there is shown when it is stored. */
void duct_put_word(struct duct_peer *p, uint64_t word);
/* A record; a size that does not fit before the end of the ring is preceded by a skip. */
void duct_put(struct duct_peer *p, uint32_t circuit, uint8_t kind, uint8_t code, uint16_t zero,
	      const void *data, size_t size);
/* One octet on its socket, which it sleeps on. */
void duct_ring(struct duct_peer *p);
/* Words of ours: how far we say that we have read; that of the victim's side. */
_Atomic uint32_t *duct_head(struct duct_peer *p, unsigned side);
/* Our ring. */
uint8_t *duct_out(struct duct_peer *p);

#endif
