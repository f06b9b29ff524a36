/* SPDX-License-Identifier: MIT */
/* What /proc says about a process. */
#ifndef TESTS_SOCKETS_PROCESSES_H
#define TESTS_SOCKETS_PROCESSES_H

#include <sys/types.h>

struct footprint {
	unsigned descriptors, mappings, threads;
	unsigned rss_kib, private_kib, shared_kib; /* shared: resident, of shared memory */
};

struct footprint processes_footprint(pid_t pid);
/* The rest of a line of /proc/PID/status, without blanks before it; "" when there is none. */
const char *processes_status(pid_t pid, const char *field);
/* KiB in files of /dev/shm with this in their name. */
unsigned processes_shm_kib(const char *part);

#endif
