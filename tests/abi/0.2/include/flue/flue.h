/* SPDX-License-Identifier: MIT */
/* Flue: RDMA in user space. This header brings in the whole API; flue(7) is the overview. */
#ifndef FLUE_FLUE_H
#define FLUE_FLUE_H

#include <flue/adapter.h>
#include <flue/conn.h>
#include <flue/interfaces.h>
#include <flue/queue.h>
#include <flue/socket.h>
#include <flue/types.h>

#define FLUE_VERSION "0.2.0"

#endif
