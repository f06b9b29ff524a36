/* SPDX-License-Identifier: MIT */
#include "base/log.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/own.h"
#include "base/sys.h"

#define LINE 512 /* with its end; short enough that a pipe takes it whole */

uint8_t log_levels[LOG_NPARTS];

static char path[PATH_MAX]; /* "": standard error */

#define X(name) #name,
static const char *const level_names[] = { "off", LOG_LEVELS(X) };
static const char *const part_names[] = { LOG_PARTS(X) };
#undef X

/* ---- out ---- */

/* The kernel's own form; the C library's functions may be somebody's hooks. */
typedef unsigned long kernel_set[_NSIG / 8 / sizeof(long)];

static void set_add(kernel_set set, int number)
{
	set[(size_t)(number - 1) / (8 * sizeof(long))] |= 1ul << (number - 1) % (8 * sizeof(long));
}

/*
 * A pipe without a reader, or a file beyond the program's limit, would end the program by a signal
 * that it never asked for.
 */
static long write_unharmed(int fd, const char *text, size_t n)
{
	static const struct timespec now;
	kernel_set ours = { 0 }, before, pending = { 0 };
	long rc;

	set_add(ours, SIGPIPE);
	set_add(ours, SIGXFSZ);
	if (sys_call(SYS_rt_sigprocmask, SIG_BLOCK, ours, before, sizeof(ours)) != 0)
		return -1;
	sys_call(SYS_rt_sigpending, pending, sizeof(pending));
	rc = sys_write(fd, text, n);
	if (rc < 0 && (errno == EPIPE || errno == EFBIG)) {
		int err = errno;

		/* One that waited before is the program's. */
		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			ours[i] &= ~pending[i];
		sys_call(SYS_rt_sigtimedwait, ours, NULL, &now, sizeof(ours));
		errno = err;
	}
	sys_call(SYS_rt_sigprocmask, SIG_SETMASK, before, NULL, sizeof(before));
	return rc;
}

static int open_file(void)
{
	return own_new(sys_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY, 0600));
}

static _Atomic uint32_t lost;

/* Who logs may have a lock, and who reads a pipe may be this very program: nobody waits for a reader. */
static bool takes_a_line(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLOUT };

	return sys_poll(&p, 1) > 0;
}

static void put(const char *text, size_t n)
{
	int fd = path[0] ? open_file() : STDERR_FILENO;

	if (fd < 0)
		return;
	if (takes_a_line(fd))
		write_unharmed(fd, text, n);
	else
		atomic_fetch_add(&lost, 1);
	if (path[0])
		own_close(fd);
}

/* ---- a line ---- */

/* gmtime_r() takes a lock, which may be held for ever in a child of fork(). */
static void date_of(int64_t days, int *year, int *month, int *day)
{
	/* Years begin in March, so that the odd day is their last; eras have 400 of them. */
	int64_t era, of_era, of_year;

	days += 719468;
	era = days / 146097;
	of_era = days % 146097;
	*year = (int)((of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365);
	of_year = of_era - (365 * *year + *year / 4 - *year / 100);
	*month = (int)((5 * of_year + 2) / 153);
	*day = (int)(of_year - (153 * *month + 2) / 5) + 1;
	*month = *month < 10 ? *month + 3 : *month - 9;
	*year += (int)era * 400 + (*month <= 2);
}

static int head(char line[LINE], enum log_level level, enum log_part part)
{
	struct timespec now;
	int year, month, day;
	long second;

	clock_gettime(CLOCK_REALTIME, &now);
	date_of(now.tv_sec / 86400, &year, &month, &day);
	second = now.tv_sec % 86400;
	return snprintf(line, LINE,
			"%04d-%02d-%02dT%02ld:%02ld:%02ld.%06ldZ flue[%ld/%ld] %s %s: ", year,
			month, day, second / 3600, second / 60 % 60, second % 60,
			now.tv_nsec / 1000, sys_call(SYS_getpid), sys_call(SYS_gettid),
			level_names[level], part_names[part]);
}

__attribute__((format(printf, 3, 0))) static void say(enum log_level level, enum log_part part,
						      const char *format, va_list args)
{
	char line[LINE];
	int begin = head(line, level, part), n;

	n = begin + vsnprintf(line + begin, sizeof(line) - (size_t)begin, format, args);
	if (n > LINE - 1) {
		n = LINE - 1;
		memcpy(line + n - 3, "...", 3);
	}
	line[n] = '\n';
	put(line, (size_t)n + 1);
}

__attribute__((format(printf, 3, 4))) static void say_of(enum log_level level, enum log_part part,
							 const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(level, part, format, args);
	va_end(args);
}

void log_line(enum log_level level, enum log_part part, const char *format, ...)
{
	int saved = errno;
	uint32_t n = atomic_exchange(&lost, 0);
	va_list args;

	if (n > 0)
		say_of(level, part, "lines lost before this one, their reader was slow: %u", n);
	va_start(args, format);
	say(level, part, format, args);
	va_end(args);
	errno = saved;
}

const char *log_address(char out[LOG_ADDRESS], const void *addr)
{
	const struct sockaddr *any = addr;
	const struct sockaddr_in *v4 = addr;
	const struct sockaddr_in6 *v6 = addr;
	char text[INET6_ADDRSTRLEN] = "";

	strcpy(out, "-");
	if (any->sa_family == AF_INET) {
		inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
		snprintf(out, LOG_ADDRESS, "%s:%u", text, ntohs(v4->sin_port));
	} else if (any->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
		inet_ntop(AF_INET, &v6->sin6_addr.s6_addr[12], text, sizeof(text));
		snprintf(out, LOG_ADDRESS, "%s:%u", text, ntohs(v6->sin6_port));
	} else if (any->sa_family == AF_INET6) {
		inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
		snprintf(out, LOG_ADDRESS, "[%s]:%u", text, ntohs(v6->sin6_port));
	}
	return out;
}

/* ---- settings ---- */

/* The number of the word that stands at *text, up to a comma; it is taken off. -1: unknown. */
static int take_word(const char **text, const char *const *names, int n)
{
	size_t length = strcspn(*text, ",");
	int found = -1;

	for (int i = 0; i < n; i++)
		if (strlen(names[i]) == length && memcmp(names[i], *text, length) == 0)
			found = i;
	if (found >= 0)
		*text += length;
	return found;
}

static int complain(char *error, size_t size, const char *word, const char *of,
		    const char *const *names, int n)
{
	int at = snprintf(error, size, "FLUE_LOG: '%.*s' is no %s (", (int)strcspn(word, ","), word,
			  of);

	for (int i = 0; i < n && (size_t)at < size; i++)
		at += snprintf(error + at, size - (size_t)at, "%s%s", names[i],
			       i < n - 1 ? ", " : "); nothing is logged");
	return -EINVAL;
}

int log_parse(const char *text, uint8_t levels[LOG_NPARTS], char *error, size_t size)
{
	uint8_t wanted[LOG_NPARTS] = { 0 };
	int level;

	memset(levels, 0, LOG_NPARTS);
	if (!text || !*text)
		return 0;
	level = take_word(&text, level_names, LOG_NLEVELS);
	if (level < 0)
		return complain(error, size, text, "level", level_names, LOG_NLEVELS);
	if (!*text)
		memset(wanted, level, sizeof(wanted));
	while (*text == ',') {
		int part;

		text++;
		part = take_word(&text, part_names, LOG_NPARTS);
		if (part < 0)
			return complain(error, size, text, "part", part_names, LOG_NPARTS);
		wanted[part] = (uint8_t)level;
	}
	memcpy(levels, wanted, sizeof(wanted));
	return 0;
}

static void tell(const char *text)
{
	char line[LINE];
	int n = snprintf(line, sizeof(line), "flue: %s\n", text);

	if (n > 0 && (size_t)n < sizeof(line))
		write_unharmed(STDERR_FILENO, line, (size_t)n);
}

/* By its whole path: the program may go elsewhere. */
static bool set_file(const char *name)
{
	char error[LINE - 16], here[PATH_MAX] = "";
	bool relative;
	int fd;

	path[0] = 0;
	if (!name || !*name)
		return true;
	relative = name[0] != '/';
	if ((relative && !getcwd(here, sizeof(here))) ||
	    strlen(here) + strlen(name) + 2 > sizeof(path)) {
		tell("FLUE_LOG_FILE: the name is too long; nothing is logged");
		return false;
	}
	strcpy(path, here);
	strcat(path, relative ? "/" : "");
	strcat(path, name);
	fd = open_file();
	if (fd >= 0) {
		own_close(fd);
		return true;
	}
	snprintf(error, sizeof(error), "FLUE_LOG_FILE: cannot open %.300s: %s; nothing is logged",
		 path, log_errno(errno));
	tell(error);
	return false;
}

static bool is_any(const uint8_t levels[LOG_NPARTS])
{
	static const uint8_t none[LOG_NPARTS];

	return memcmp(levels, none, sizeof(none)) != 0;
}

void log_init(void)
{
	/* Who runs with other rights than its caller's writes no files for him. */
	const char *text = secure_getenv("FLUE_LOG"), *told = secure_getenv(LOG_TOLD);
	uint8_t levels[LOG_NPARTS];
	char error[LINE - 16] = "";
	int saved = errno;

	log_stop();
	if (text && log_parse(text, levels, error, sizeof(error)) != 0) {
		if (!told || strcmp(told, text) != 0)
			tell(error);
	} else if (text && is_any(levels) && set_file(secure_getenv("FLUE_LOG_FILE"))) {
		memcpy(log_levels, levels, sizeof(levels));
	}
	errno = saved;
}

void log_stop(void)
{
	memset(log_levels, 0, sizeof(log_levels));
}

__attribute__((constructor)) static void begin(void)
{
	log_init();
}
