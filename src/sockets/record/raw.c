/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/self.h"
#include "base/util.h"
#include "sockets/record/raw.h"
#include "sockets/record/real.h"

#define SEATS 1024

static struct raw_seat seats[SEATS];
static _Atomic uint32_t taken; /* those behind were never */
static __thread struct raw_seat *mine THREAD_LOCAL_FAST;

static bool take(struct raw_seat *s, uint32_t from, uint32_t me)
{
	if (!atomic_compare_exchange_strong(&s->tid, &from, me))
		return false;
	atomic_store(&s->number, 0);
	mine = s;
	return true;
}

/* Threads do not give theirs back; whose thread is gone can be had. */
static bool is_left(const struct raw_seat *s)
{
	uint32_t tid = atomic_load(&s->tid);

	return tid == 0 || (real(syscall)(SYS_tgkill, getpid(), tid, 0) != 0 && errno == ESRCH);
}

static struct raw_seat *find_seat(void)
{
	uint32_t me = self_tid(), n = atomic_load(&taken);
	int saved = errno;

	while (n < SEATS && !mine)
		if (atomic_compare_exchange_strong(&taken, &n, n + 1))
			take(&seats[n], 0, me);
	for (uint32_t i = 0; i < SEATS && !mine; i++)
		if (is_left(&seats[i]))
			take(&seats[i], atomic_load(&seats[i].tid), me);
	errno = saved;
	return mine;
}

struct raw_seat *raw_seat(void)
{
	return mine ? mine : find_seat();
}

/* Their numbers, but for ours. 0: none. */
static int number_of(uint32_t seat)
{
	const struct raw_seat *s = &seats[seat];

	return s == mine ? 0 : atomic_load(&s->number);
}

bool raw_is_used(int fd)
{
	uint32_t n = atomic_load(&taken);
	bool used = false;

	for (uint32_t i = 0; i < n && !used; i++)
		used = number_of(i) == fd + 1;
	return used;
}

bool raw_any(bool (*is)(int fd, const void *arg), const void *arg)
{
	uint32_t n = atomic_load(&taken);
	bool any = false;

	for (uint32_t i = 0; i < n && !any; i++) {
		int number = number_of(i);

		any = number > 0 && is(number - 1, arg);
	}
	return any;
}

void raw_forked(void)
{
	uint32_t n = atomic_exchange(&taken, 0);

	/* The only thread takes another if it needs one. */
	mine = NULL;
	for (uint32_t i = 0; i < n; i++) {
		atomic_store(&seats[i].tid, 0);
		atomic_store(&seats[i].number, 0);
	}
}
