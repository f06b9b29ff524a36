/* SPDX-License-Identifier: MIT */
/* Threads: their plans, what they do, and their ends. See api.h. */
#include "api.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#if UNDER_ASAN
#include <sanitizer/asan_interface.h>
#endif

__thread struct actor *me;
struct actor actors[MAX_ACTORS];

uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

uint32_t draw(uint32_t n)
{
	me->random += 0x9e3779b97f4a7c15;
	return (uint32_t)((mix(me->random) >> 32) * n >> 32);
}

bool one_in(uint32_t n)
{
	return draw(n) == 0;
}

/* ---- undoing ---- */

void undo_push(void (*fn)(void *arg), void *arg)
{
	must(me->n_undo < (int)(sizeof(me->undo) / sizeof(me->undo[0])));
	me->undo[me->n_undo++] = (struct undo) { fn, arg };
}

void undo_pop(void)
{
	must(me->n_undo > 0);
	me->n_undo--;
}

void undo_run(void)
{
	must(me->n_undo > 0);
	me->n_undo--;
	me->undo[me->n_undo].fn(me->undo[me->n_undo].arg);
}

/* ---- calls ---- */

void call_begin(const char *what)
{
	atomic_store(&me->since, now_ms());
	atomic_store(&me->doing, what);
	if (me->mortal)
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
}

void call_end(bool ok)
{
	int error = errno;
	struct step *s = &me->trace[me->n_trace++ % (sizeof(me->trace) / sizeof(me->trace[0]))];

	if (me->mortal)
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	s->what = atomic_exchange(&me->doing, NULL);
	s->result = ok ? 0 : error;
	atomic_fetch_add(&me->steps, 1);
	atomic_store(&me->since, now_ms());
	errno = error;
}

/* ---- failing ---- */

static pthread_mutex_t failing = PTHREAD_MUTEX_INITIALIZER;

static void tell_actors(void)
{
	for (int i = 0; i < MAX_ACTORS; i++) {
		struct actor *a = &actors[i];
		const char *doing = atomic_load(&a->doing);
		unsigned n = a->n_trace, most = sizeof(a->trace) / sizeof(a->trace[0]);

		if (!atomic_load(&a->there))
			continue;
		fprintf(stderr, "# thread %d%s%s%s, %lu ms ago\n", i, a == me ? " (this one)" : "",
			doing ? " in " : "", doing ? doing : "",
			(unsigned long)(now_ms() - atomic_load(&a->since)));
		for (unsigned k = n > most ? n - most : 0; k < n; k++)
			fprintf(stderr, "#   %s: %s\n", a->trace[k % most].what,
				a->trace[k % most].result
					? strerrorname_np(a->trace[k % most].result)
					: "ok");
	}
}

void fail(const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&failing);
	fprintf(stderr, "# FAILED: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	tell_actors();
	fprintf(stderr, "# again: api --seed %llu\n", (unsigned long long)seed);
	fflush(NULL);
	/* For a debugger: everybody stays where they are. */
	if (getenv("FLUE_API_STOP"))
		raise(SIGSTOP);
	_exit(1);
}

void may_fail_with(const char *what, ...)
{
	int error = errno, allowed;
	va_list args;

	va_start(args, what);
	do {
		allowed = va_arg(args, int);
	} while (allowed && allowed != error);
	va_end(args);
	if (allowed)
		return;
	if (disturbed() &&
	    (error == EMFILE || error == ENFILE || error == ENOMEM || kinds & KIND_CLOSE))
		return;
	fail("%s: unexpected %s", what,
	     strerrorname_np(error) ? strerrorname_np(error) : "errno 0");
}

/* ---- lives ---- */

static void die(void *arg)
{
	struct actor *a = arg;

	a->mortal = false;
	while (a->n_undo)
		undo_run();
#if UNDER_ASAN
	/* It does not see frames go when a thread is cancelled. */
	{
		pthread_attr_t attr;
		void *stack;
		size_t size;

		pthread_getattr_np(pthread_self(), &attr);
		pthread_attr_getstack(&attr, &stack, &size);
		pthread_attr_destroy(&attr);
		__asan_unpoison_memory_region(stack, size);
	}
#endif
	atomic_store(&a->doing, NULL);
}

struct birth {
	struct actor *actor;
	void *(*body)(void *);
};

static struct birth births[MAX_ACTORS];

static void *live(void *arg)
{
	struct birth *b = arg;
	struct actor *a = b->actor;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	me = a;
	pthread_cleanup_push(die, a);
	b->body(a);
	pthread_cleanup_pop(0);
	return NULL;
}

void actor_start(struct actor *a, size_t stack, void *(*body)(void *))
{
	pthread_attr_t attr;
	sigset_t all, old;
	int rc;

	a->index = (int)(a - actors);
	a->n_undo = 0;
	atomic_store(&a->doing, NULL);
	atomic_store(&a->since, now_ms());
	births[a->index] = (struct birth) { a, body };
	pthread_attr_init(&attr);
	if (stack)
		pthread_attr_setstacksize(&attr, stack);
	/* A signal's frame alone is several KiB. */
	sigfillset(&all);
	if (stack)
		pthread_sigmask(SIG_SETMASK, &all, &old);
	atomic_store(&a->there, true);
	rc = pthread_create(&a->thread, &attr, live, &births[a->index]);
	if (stack)
		pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (rc)
		fail("no thread: %s", strerror(rc));
}

void actor_join(struct actor *a)
{
	pthread_join(a->thread, NULL);
	atomic_store(&a->there, false);
}

void actor_borrow(void)
{
	static __thread struct actor guest;

	if (me)
		return;
	me = &guest;
	me->random = mix(seed + (uintptr_t)&guest);
}

/* ---- errands ---- */

static void *errand(void *arg)
{
	struct actor *a = arg;
	uint32_t n = a->for_ever ? 1000000 : 1 + draw(12);

	a->mortal = a->for_ever;
	for (uint32_t i = 0; i < n && !(atomic_load(&time_is_up) && !a->for_ever); i++)
		op_any();
	return NULL;
}

void actor_errand(void)
{
	bool doomed = kinds & KIND_CANCEL && draw(2);
	size_t stack = 0;
	struct actor *a;

	if (me->helper || (!doomed && !(kinds & KIND_STACK)))
		return;
	a = &actors[THREADS + 1 + me->index];
	if (!doomed || one_in(3))
		stack = kinds & KIND_STACK ? 16384 + draw(3) * 4096 : 0;
	a->random = mix(me->random + 77);
	a->helper = true;
	a->for_ever = doomed;
	actor_start(a, stack, errand);
	if (doomed) {
		usleep(draw(8) * 1000 + draw(1000));
		pthread_cancel(a->thread);
	}
	/* It is watched itself. */
	actor_join(a);
	a->for_ever = false;
	atomic_store(&me->since, now_ms());
}

void watch_actors(void)
{
	for (int i = 0; i < MAX_ACTORS; i++) {
		struct actor *a = &actors[i];
		uint64_t since = atomic_load(&a->since);

		if (a != me && atomic_load(&a->there) && now_ms() > since + 2 * PATIENCE_MS)
			fail("thread %d is stuck", i);
		if (a != me && atomic_load(&a->there) && atomic_load(&a->doing) &&
		    now_ms() > since + PATIENCE_MS)
			fail("thread %d sleeps in %s", i, atomic_load(&a->doing));
	}
}
