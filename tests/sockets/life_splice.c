/* SPDX-License-Identifier: MIT */
/* Octets that the kernel moves by itself: sendfile() and splice(). */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

#define OCTETS 40000

enum { SENDFILE, SPLICE_OUT, SPLICE_IN, KINDS };

static uint8_t buffer[OCTETS];

/* A file or a pipe with the next octets, moved to the connection. */
static void out_of_a_file(struct life *l, size_t n)
{
	int ends[2] = { memfd_create("octets", MFD_CLOEXEC), -1 };
	off_t at = 0;
	ssize_t moved;

	flow_fill(&l->st.out, buffer, n);
	if (l->kind == SPLICE_OUT) {
		close(ends[0]);
		if (pipe(ends))
			stage_die(&l->st, "pipe");
	}
	if (write(l->kind == SPLICE_OUT ? ends[1] : ends[0], buffer, n) != (ssize_t)n)
		stage_die(&l->st, "write");
	for (size_t left = n; left; left -= (size_t)moved) {
		moved = l->kind == SENDFILE ? sendfile(l->st.fd, ends[0], &at, left)
					    : splice(ends[0], NULL, l->st.fd, NULL, left, 0);
		if (moved <= 0)
			stage_die(&l->st, "moved %zd: %s", moved, stage_errno(errno));
	}
	l->st.out.at += n;
	close(ends[0]);
	if (ends[1] >= 0)
		close(ends[1]);
}

static void into_a_pipe(struct life *l, size_t n)
{
	int ends[2];
	ssize_t moved;

	if (pipe(ends))
		stage_die(&l->st, "pipe");
	for (; n; n -= (size_t)moved) {
		moved = splice(l->st.fd, NULL, ends[1], NULL, n, 0);
		if (moved <= 0 || read(ends[0], buffer, (size_t)moved) != moved)
			stage_die(&l->st, "spliced %zd: %s", moved, stage_errno(errno));
		stage_took(&l->st, buffer, (size_t)moved);
	}
	close(ends[0]);
	close(ends[1]);
}

static void play(struct life *l)
{
	life_begin(l);
	if (l->kind == SPLICE_IN) {
		into_a_pipe(l, l->pending);
		l->pending = 0;
		if (l->asleep) {
			stage_send(&l->st, 500);
			stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
			l->asleep = false;
		}
		life_ask(l, LIFE_SENDS, OCTETS);
		into_a_pipe(l, OCTETS);
	} else if (l->asleep) {
		out_of_a_file(l, 500);
		stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
		life_ask(l, LIFE_READS, OCTETS);
		out_of_a_file(l, OCTETS);
	} else {
		life_ask(l, LIFE_READS, OCTETS);
		out_of_a_file(l, OCTETS);
	}
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	l->asleep = false;
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
