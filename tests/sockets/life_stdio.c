/* SPDX-License-Identifier: MIT */
/* Streams of the C library on the connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "life.h"

#define OCTETS 50000

enum { ONE_STREAM, TWO_STREAMS, UNBUFFERED, DPRINTF, KINDS };

static uint8_t buffer[OCTETS];

static void turn(struct life *l, FILE *in, FILE *out, size_t n)
{
	flow_fill(&l->st.out, buffer, n);
	if (fwrite(buffer, 1, n, out) != n || fflush(out))
		stage_bad(&l->st, "fwrite: %s", stage_errno(errno));
	l->st.out.at += n;
	if (fread(buffer, 1, n, in) != n)
		stage_bad(&l->st, "fread: %s", stage_errno(errno));
	else
		stage_took(&l->st, buffer, n);
}

static void by_streams(struct life *l)
{
	FILE *out = fdopen(l->st.fd, l->kind == TWO_STREAMS ? "w" : "r+");
	FILE *in = l->kind == TWO_STREAMS ? fdopen(dup(l->st.fd), "r") : out;

	if (l->kind == UNBUFFERED)
		setvbuf(out, NULL, _IONBF, 0);
	if (fread(buffer, 1, l->pending, in) != l->pending)
		stage_bad(&l->st, "fread: %s", stage_errno(errno));
	stage_took(&l->st, buffer, l->pending);
	if (l->asleep) {
		flow_fill(&l->st.out, buffer, 500);
		if (fwrite(buffer, 1, 500, out) != 500 || fflush(out))
			stage_bad(&l->st, "fwrite");
		l->st.out.at += 500;
		stage_say(&l->st, "was asleep, read %lld", (long long)life_answer(l));
	}
	for (size_t n = 1; n <= OCTETS; n *= 7) {
		life_ask(l, LIFE_READS, n);
		life_ask(l, LIFE_SENDS, n);
		turn(l, in, out, n);
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
		stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	}
	if (in != out)
		fclose(in);
	if (fclose(out))
		stage_bad(&l->st, "fclose: %s", stage_errno(errno));
}

static void by_dprintf(struct life *l)
{
	uint8_t octet;
	size_t n = l->asleep ? 500 : 200;

	if (!l->asleep)
		life_ask(l, LIFE_READS, n);
	for (size_t i = 0; i < n; i++, l->st.out.at++) {
		flow_fill(&l->st.out, &octet, 1);
		if (dprintf(l->st.fd, "%c", octet) != 1)
			stage_bad(&l->st, "dprintf: %s", stage_errno(errno));
	}
	stage_say(&l->st, "partner %lld", (long long)life_answer(l));
	l->asleep = false;
	life_go_on(l);
	close(l->st.fd);
}

static void play(struct life *l)
{
	life_begin(l);
	if (l->kind == DPRINTF)
		by_dprintf(l);
	else
		by_streams(l);
	life_end(l);
}

int main(void)
{
	return life_main(play, KINDS, NULL);
}
