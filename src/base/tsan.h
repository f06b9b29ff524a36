/* SPDX-License-Identifier: MIT */
/*
 * For ThreadSanitizer alone. When both ends of a connection are in one process, what one end does before it sends is done
 * before the other receives. That order goes through TCP, where the sanitizer cannot follow, so it is told.
 */
#ifndef FLUE_BASE_TSAN_H
#define FLUE_BASE_TSAN_H

#if defined(__SANITIZE_THREAD__)
#define TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#endif

#ifdef TSAN
/* Before octets are sent, and after some were received. */
void tsan_sends(int fd);
void tsan_received(int fd);
#else
static inline void tsan_sends(int fd)
{
	(void)fd;
}

static inline void tsan_received(int fd)
{
	(void)fd;
}
#endif

#endif
