/* SPDX-License-Identifier: MIT */
/* The two machines of the software RNIC. */
#ifndef FLUE_WIRE_FSM_H
#define FLUE_WIRE_FSM_H

#include "wire/mpa_fsm.h"
#include "wire/qp_fsm.h"

#endif
