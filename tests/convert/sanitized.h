/* SPDX-License-Identifier: MIT */
/* Is this build slowed down by a sanitizer? Then tests that repeat a lot repeat less. */
#ifndef FLUE_TESTS_CONVERT_SANITIZED_H
#define FLUE_TESTS_CONVERT_SANITIZED_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#endif
