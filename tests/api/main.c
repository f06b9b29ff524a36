/* SPDX-License-Identifier: MIT */
/* Rounds of the random program, and what must be as before after each. See api.h. */
#include "api.h"

#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>

#define ROUND_MS 6000

uint64_t seed = 1;
uint32_t kinds = ~(uint32_t)KIND_CLOSE & 0x7f;
bool verbose;
atomic_bool time_is_up;

/* ---- the plan ---- */

static const struct {
	void (*op)(void);
	uint32_t weight;
	uint32_t kind; /* 0: always */
} ops[] = {
	{ op_send, 300, 0 },         { op_recv, 150, 0 },
	{ op_poll, 150, 0 },         { op_wait, 60, 0 },
	{ op_notify, 30, 0 },        { op_resize, 10, 0 },
	{ op_events, 40, 0 },        { op_srq, 40, 0 },
	{ op_key, 40, 0 },           { op_region, 20, 0 },
	{ op_accept, 40, 0 },        { op_link, 40, 0 },
	{ op_end_link, 3, 0 },       { op_pipe, 12, 0 },
	{ op_pipe_work, 100, 0 },    { op_busy, 10, 0 },
	{ op_names, 2, 0 },          { op_watch, 4, 0 },
	{ house_make, 10, 0 },       { house_children, 30, 0 },
	{ house_retire, 1, 0 },      { actor_errand, 12, KIND_STACK | KIND_CANCEL },
	{ op_odd, 15, KIND_ODD },    { op_spoil, 2, KIND_ODD },
	{ op_fork, 2, KIND_FORK },   { op_signal, 30, KIND_SIGNAL },
	{ op_limit, 2, KIND_LIMIT }, { op_close, 3, KIND_CLOSE },
};
#define N_OPS (sizeof(ops) / sizeof(ops[0]))

static uint32_t weights;

void op_any(void)
{
	uint32_t n = draw(weights);
	size_t i = 0;

	while (n >= ops[i].weight)
		n -= ops[i++].weight;
	if (!ops[i].kind || kinds & ops[i].kind)
		ops[i].op();
	must(me->n_undo == 0);
}

static void *worker(void *arg)
{
	struct actor *a = arg;

	a->mortal = kinds & KIND_CANCEL;
	while (!atomic_load(&time_is_up))
		op_any();
	return NULL;
}

/* ---- a round ---- */

static uint32_t lives[THREADS];
static unsigned long n_cancelled;

static void start_worker(int i)
{
	actors[i].random = mix(mix(seed) + (uint64_t)i) + mix(lives[i]++);
	signals_hold();
	actor_start(&actors[i], 0, worker);
	signals_release();
}

/* Ends one of the workers now and then; another one takes its place. */
static void replace(bool *dying)
{
	for (int i = 0; i < THREADS; i++) {
		if (dying[i]) {
			signals_hold();
			dying[i] = pthread_tryjoin_np(actors[i].thread, NULL);
			atomic_store(&actors[i].there, dying[i]);
			signals_release();
			if (!dying[i])
				start_worker(i);
		} else if (kinds & KIND_CANCEL && one_in(40)) {
			pthread_cancel(actors[i].thread);
			dying[i] = true;
			n_cancelled++;
		}
	}
}

static void run_round(uint64_t until)
{
	bool dying[THREADS] = { false };

	atomic_store(&time_is_up, false);
	houses_init();
	links_init();
	pipes_init();
	for (int i = 0; i < THREADS; i++)
		start_worker(i);
	while (now_ms() < until) {
		usleep(20000);
		atomic_store(&me->since, now_ms());
		watch_actors();
		replace(dying);
	}
	atomic_store(&time_is_up, true);
	for (int i = 0; i < THREADS; i++)
		while (atomic_load(&actors[i].there)) {
			signals_hold();
			if (!pthread_tryjoin_np(actors[i].thread, NULL))
				atomic_store(&actors[i].there, false);
			signals_release();
			watch_actors();
			usleep(1000);
		}
	links_end();
	pipes_end();
	houses_end();
}

/* ---- what is left ---- */

static int count(const char *path)
{
	DIR *d = opendir(path);
	int n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

/* Before failing: what they are. */
static void tell_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	struct dirent *e;

	while (d && (e = readdir(d))) {
		char what[64] = "";

		if (readlinkat(dirfd(d), e->d_name, what, sizeof(what) - 1) > 0)
			fprintf(stderr, "# descriptor %s is %s\n", e->d_name, what);
	}
	if (d)
		closedir(d);
}

static int settled(const char *path, int want)
{
	int n = count(path);

	/* A thread that was joined may be listed a moment longer. */
	for (int i = 0; i < 500 && n > want; i++) {
		usleep(10000);
		n = count(path);
	}
	return n;
}

/* Octets in use, of all arenas. */
static long in_use(void)
{
	char *text = NULL, *at;
	size_t size = 0;
	FILE *f = open_memstream(&text, &size);
	long sum = 0, n;

	if (!f || malloc_info(0, f) || fclose(f))
		return 0;
	/* The sums stand behind the last heap. */
	for (at = text; strstr(at, "</heap>"); at = strstr(at, "</heap>") + 1)
		;
	for (char *line = strtok(at, "\n"); line; line = strtok(NULL, "\n")) {
		char *bytes = strstr(line, " size=\"");

		n = bytes ? atol(bytes + 7) : 0;
		if (strstr(line, "<system type=\"current\"") || strstr(line, "type=\"mmap\""))
			sum += n;
		else if (strstr(line, "<total type=\"fast\"") ||
			 strstr(line, "<total type=\"rest\""))
			sum -= n;
	}
	free(text);
	return sum;
}

/* ---- options ---- */

static const struct {
	const char *name;
	uint32_t kind;
} names[] = {
	{ "fork", KIND_FORK },   { "signal", KIND_SIGNAL }, { "cancel", KIND_CANCEL },
	{ "stack", KIND_STACK }, { "limit", KIND_LIMIT },   { "odd", KIND_ODD },
	{ "close", KIND_CLOSE },
};

static uint32_t kinds_of(const char *list)
{
	uint32_t set = 0;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strstr(list, names[i].name))
			set |= names[i].kind;
	return set;
}

static void leave_out(uint32_t kind, const char *why)
{
	if (!(kinds & kind))
		return;
	kinds &= ~kind;
	printf("# without %s\n", why);
}

static void fit_to_build(void)
{
	if (UNDER_TSAN) {
		leave_out(KIND_CANCEL, "cancel: ThreadSanitizer loses track of a thread that is "
				       "cancelled in a system call");
		leave_out(KIND_CLOSE,
			  "close: for ThreadSanitizer it is a race that a program closes "
			  "descriptors in use");
	}
	if (SANITIZED)
		leave_out(KIND_STACK, "stack: sanitizers need much more of it");
}

static int usage(void)
{
	fprintf(stderr, "usage: api [--seed N] [--seconds N] [--kinds LIST] [--without LIST] "
			"[--verbose]\n");
	return 2;
}

static void report(unsigned rounds)
{
	printf("# %u rounds: %lu links (%lu gracefully closed), %lu pipes, %lu requests, %lu messages, "
	       "%lu flushed, %lu children (%lu not judged), %lu cancelled\n",
	       rounds, atomic_load(&n_links), atomic_load(&n_graceful), atomic_load(&n_pipes),
	       atomic_load(&n_requests), atomic_load(&n_messages), atomic_load(&n_flushed),
	       atomic_load(&n_children), atomic_load(&n_not_judged), n_cancelled);
	fflush(stdout);
}

static void *nothing(void *arg)
{
	return arg;
}

static void run(uint64_t end)
{
	int descriptors, threads;
	long memory = 0;
	unsigned rounds = 0;

	/* A sanitizer may make one of its own with the first. */
	actor_start(&actors[0], 0, nothing);
	actor_join(&actors[0]);
	descriptors = count("/proc/self/fd");
	threads = count("/proc/self/task");
	do {
		uint64_t until = now_ms() + ROUND_MS;

		run_round(until < end ? until : end);
		rounds++;
		if (verbose)
			report(rounds);
		if (settled("/proc/self/fd", descriptors) > descriptors) {
			tell_descriptors();
			fail("%d descriptors were left", count("/proc/self/fd") - descriptors);
		}
		if (settled("/proc/self/task", threads) > threads)
			fail("%d threads were left", count("/proc/self/task") - threads);
		if (rounds == 1)
			memory = in_use();
		else if (!SANITIZED && in_use() > memory + 2 * 1024 * 1024)
			fail("%ld octets are in use, %ld were after the first round", in_use(),
			     memory);
	} while (now_ms() < end);
	report(rounds);
	printf("# memory: %ld octets in use, %ld after the first round\n", in_use(), memory);
}

int main(int argc, char **argv)
{
	unsigned long seconds = 20;

	for (int i = 1; i < argc; i++) {
		bool more = i + 1 < argc;

		if (!strcmp(argv[i], "--verbose"))
			verbose = true;
		else if (!strcmp(argv[i], "--seed") && more)
			seed = strtoull(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--seconds") && more)
			seconds = strtoul(argv[++i], NULL, 0);
		else if (!strcmp(argv[i], "--kinds") && more)
			kinds = kinds_of(argv[++i]);
		else if (!strcmp(argv[i], "--without") && more)
			kinds &= ~kinds_of(argv[++i]);
		else
			return usage();
	}
	printf("# seed %llu\n", (unsigned long long)seed);
	fit_to_build();
	fflush(stdout);
	for (size_t i = 0; i < N_OPS; i++)
		weights += ops[i].weight;
	me = &actors[THREADS];
	me->index = THREADS;
	me->random = mix(seed);
	atomic_store(&me->there, true);
	disturb_init();
	run(now_ms() + seconds * 1000);
	return 0;
}
