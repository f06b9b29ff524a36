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
/* The same for memory that both ends have mapped, at two places; `key` is the same for both. */
void tsan_puts(unsigned long key);
void tsan_finds(unsigned long key);
#else
static inline void tsan_sends(int fd)
{
	(void)fd;
}

static inline void tsan_received(int fd)
{
	(void)fd;
}

static inline void tsan_puts(unsigned long key)
{
	(void)key;
}

static inline void tsan_finds(unsigned long key)
{
	(void)key;
}
#endif

#endif
