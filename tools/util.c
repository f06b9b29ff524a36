/* SPDX-License-Identifier: MIT */
#include "util.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <langinfo.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void util_error(const char *format, ...)
{
	char text[4096];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	/* In one piece: the library's log may come to the same place at the same time. */
	fprintf(stderr, "flue: %s\n", text);
}

uint64_t util_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool util_parse_number(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long value;

	if (!isdigit((unsigned char)text[0])) /* strtoull would take a sign and blanks */
		return false;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || *end || value < min || value > max)
		return false;
	*out = value;
	return true;
}

bool util_parse_size(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
	static const char units[] = "kmgt";
	unsigned int shift = 0;
	unsigned long long value;
	const char *unit;
	char *end;

	if (!isdigit((unsigned char)text[0]))
		return false;
	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno)
		return false;
	unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
	if (unit) {
		shift = 10 * (unsigned int)(unit - units + 1);
		end++;
		if (*end == 'i')
			end++;
	}
	if (*end == 'B' || *end == 'b')
		end++;
	if (*end || value > UINT64_MAX >> shift)
		return false;
	value <<= shift;
	if (value < min || value > max)
		return false;
	*out = value;
	return true;
}

bool util_parse_seconds(const char *text, double min, double max, double *out)
{
	double value, scale = 1;
	char *end;

	if (!isdigit((unsigned char)text[0]) && text[0] != '.')
		return false;
	value = strtod(text, &end);
	if (strcmp(end, "ms") == 0)
		scale = 1e-3;
	else if (strcmp(end, "us") == 0)
		scale = 1e-6;
	else if (strcmp(end, "m") == 0)
		scale = 60;
	else if (*end && strcmp(end, "s") != 0)
		return false;
	value *= scale;
	if (!(value >= min && value <= max))
		return false;
	*out = value;
	return true;
}

const char *util_size_text(char text[UTIL_TEXT_MAX], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
	size_t unit = 0;
	double value = (double)bytes;

	while (value >= 1024 && unit + 1 < sizeof(units) / sizeof(units[0])) {
		value /= 1024;
		unit++;
	}
	snprintf(text, UTIL_TEXT_MAX, "%.*f %s", value < 10 && value != floor(value) ? 1 : 0, value,
		 units[unit]);
	return text;
}

const char *util_time_text(char text[UTIL_TEXT_MAX], double ns)
{
	static const char *const units[] = { "ns", "µs", "ms", "s" };
	size_t unit = 0;

	while (ns >= 1000 && unit < 3) {
		ns /= 1000;
		unit++;
	}
	snprintf(text, UTIL_TEXT_MAX, "%.*f %s",
		 unit == 0 || ns >= 100 ? 0
		 : ns >= 10             ? 1
					: 2,
		 ns, units[unit]);
	return text;
}

/* 1234567 as 1,234,567. */
const char *util_count_text(char text[UTIL_TEXT_MAX], uint64_t count)
{
	char digits[24];
	size_t length = (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)count);
	size_t out = 0;

	for (size_t i = 0; i < length; i++) {
		if (i > 0 && (length - i) % 3 == 0)
			text[out++] = ',';
		text[out++] = digits[i];
	}
	text[out] = '\0';
	return text;
}

const char *util_address_text(char text[UTIL_TEXT_MAX], const struct sockaddr_storage *address)
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (address->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)address;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(text, UTIL_TEXT_MAX, "%s:%u", host, ntohs(in->sin_port));
	} else if (address->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		snprintf(text, UTIL_TEXT_MAX, "[%s]:%u", host, ntohs(in6->sin6_port));
	} else {
		snprintf(text, UTIL_TEXT_MAX, "unknown address");
	}
	return text;
}

bool util_resolve(const char *host, const char *port, struct sockaddr_storage *out,
		  socklen_t *length)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *found;
	int rc;

	hints.ai_flags = host ? AI_ADDRCONFIG : AI_PASSIVE;
	/* AI_ADDRCONFIG ignores loopback: without it "::1" fails on a machine with IPv4 only. */
	if (host && (strcmp(host, "localhost") == 0 || strchr(host, ':')))
		hints.ai_flags = 0;
	rc = getaddrinfo(host, port, &hints, &found);
	if (rc) {
		util_error("cannot find %s port %s: %s", host ? host : "a local address", port,
			   rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
		return false;
	}
	memset(out, 0, sizeof(*out));
	memcpy(out, found->ai_addr, found->ai_addrlen);
	*length = found->ai_addrlen;
	freeaddrinfo(found);
	return true;
}

bool util_utf8(void)
{
	return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}
