/* SPDX-License-Identifier: MIT */
/*
 * io_uring as the hooks see it. A ring moves octets where no hook is, so what a program submits is looked at before the
 * kernel gets it: a socket that a request names goes back to TCP, once and for good, and all others keep their lanes.
 * Changes of epoll sets are carried out by ourselves. Where submissions cannot be seen there are no lanes at all.
 */
#ifndef FLUE_SOCKETS_HOOKS_URING_H
#define FLUE_SOCKETS_HOOKS_URING_H

#include <stdbool.h>
#include <stdint.h>

struct io_uring_params;

/* A ring was made; the kernel has filled `params`. */
void uring_made(int fd, const struct io_uring_params *params);
/* So many requests of the ring are about to be submitted. */
void uring_submits(int fd, uint32_t n, uint32_t flags);
/* The same for those in a row, each of 2^shift octets, from one place to before another. */
void uring_looks(uint8_t *requests, uint32_t shift, uint32_t mask, uint32_t from, uint32_t to);
/* Something is registered with a ring. */
void uring_registers(int fd, uint32_t what, const void *arg, uint32_t n);
/* Numbers from `first` to `last` are about to be closed. */
void uring_closing(unsigned first, unsigned last);

#endif
