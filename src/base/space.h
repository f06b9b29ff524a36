/* SPDX-License-Identifier: MIT */
/* Memory and files within the limits that a program has been given (RLIMIT_AS, RLIMIT_FSIZE): we take our share, no more. */
#ifndef FLUE_BASE_SPACE_H
#define FLUE_BASE_SPACE_H

#include <stdbool.h>
#include <stddef.h>

/* May this process make a file of this size? Trying it would end the program, with SIGXFSZ. */
bool space_may_grow(size_t size);
/* Memory of a file, shared, or without one (-1) private. NULL: not to be had, or more than our share of
 * the address space that the program has been allowed. */
void *space_map(int fd, size_t size);
/* The same to look at only, of a file. */
void *space_map_readonly(int fd, size_t size);
/* What stands in the file behind memory that is mapped up to `end`. No descriptor is needed for that. */
void *space_map_behind(const void *end, size_t size);
void space_unmap(void *p, size_t size);
/* In the child of a fork: this was mapped, and was not inherited (MADV_DONTFORK). */
void space_forget(size_t size);

#endif
