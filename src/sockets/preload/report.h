/* SPDX-License-Identifier: MIT */
/* What is told to people, on standard error and only when asked, and figures for scripts. */
#ifndef FLUE_SOCKETS_REPORT_H
#define FLUE_SOCKETS_REPORT_H

#include "sockets/record/home.h"

/* One line on standard error, in one write. */
void report_line(const char *a, const char *b, const char *c);
/* A connection is there. When its end shall be told, its addresses are needed, and a reset takes them away. */
void report_connected(struct rec *r, int fd);
/* A connection ends: add it to the totals, and say why it was on TCP if that was asked for. */
void report_connection(struct home *h, struct rec *r, int fd);
/* The process ends. */
void report_process(void);

#endif
