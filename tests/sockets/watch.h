/* SPDX-License-Identifier: MIT */
/*
 * Programs with threads, watched. Each thread takes a seat and says which call it is about to make;
 * the process that started them all looks on. When one call lasts too long, or a process dies, it
 * tells what every thread was doing, and ends them. All of it stands in memory shared over fork().
 */
#ifndef TESTS_SOCKETS_WATCH_H
#define TESTS_SOCKETS_WATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Before the first fork(). No call may last longer than so many seconds. */
void watch_open(unsigned seconds);
/* Memory that all processes forked later share. */
void *watch_share(size_t n);
/* One letter, at the head of each line that this process reports. */
void watch_process(char name);

/* ---- of threads ---- */
/* Takes a seat, or another name for the one taken. */
void watch_sit(const char *format, ...) __attribute__((format(printf, 1, 2)));
void watch_rise(void);
/* A thread of its own process has gone on to step n of its plan. */
void watch_step(unsigned n);
/* what: a literal, which outlives the call. */
void watch_begin(const char *what, int number);
/* The same for a call that may wait for others as long as it likes. */
void watch_idle(const char *what, int number);
void watch_end(void);

/* ---- report ---- */
void watch_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A promise was broken; the run goes on. Counted over all processes, the first few are printed. */
void watch_bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The test itself cannot go on: reports and ends this process. */
void watch_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
int watch_bads(void);

/*
 * Waits until all processes have ended. One that fails, or a call that does not return, is
 * reported, with what all threads were doing; then the others are ended as well.
 */
void watch_over(const pid_t *pid, const char *names, int n);
/* The result of main(): 0, or 1 after a line that says how to see it again. */
int watch_verdict(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
