/* SPDX-License-Identifier: MIT */
#ifndef FLUE_SOCKETS_PRELOAD_START_H
#define FLUE_SOCKETS_PRELOAD_START_H

#include <stdbool.h>

/* Read the environment and begin. False: stay on TCP. Once, see process_init(). */
bool start_process(void);

#endif
