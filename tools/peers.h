/* SPDX-License-Identifier: MIT */
/*
 * Who is at the other end of a connection whose peer did not come for a lane. An end can only say that nobody
 * came; the cause stands in another process, or in the kernel's tables.
 */
#ifndef FLUE_TOOLS_PEERS_H
#define FLUE_TOOLS_PEERS_H

#include "homes.h"

/* After homes_finish(): name the program, or the reason at its own end. What cannot be found stays as it is. */
void peers_explain(struct homes *homes, const struct diag *diag);

#endif
