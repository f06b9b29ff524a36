/* SPDX-License-Identifier: MIT */
#include "access/socket_fsm.h"

/* clang-format off */
#define NONE 0
#define FLUSH_RECVS SOCKET_FLUSH_RECVS
#define TRANSFER SOCKET_TRANSFER
#define TELL SOCKET_TELL
#define TEAR_DOWN SOCKET_TEAR_DOWN

enum {
#define X(n) S_##n,
	SOCKET_STATES(X)
	S_COUNT, S_ILLEGAL = SOCKET_ILLEGAL
#undef X
};
enum {
#define X(n) O_##n,
	OFFLOAD_STATES(X)
	O_COUNT, O_ILLEGAL = SOCKET_ILLEGAL
#undef X
};
_Static_assert((int)S_COUNT == (int)FLUE_SOCKET_NSTATES && (int)S_RDMA == (int)FLUE_SOCKET_RDMA,
	       "the machine's states are the public ones");
_Static_assert((int)O_COUNT == (int)FLUE_OFFLOAD_NSTATES && (int)O_DONE == (int)FLUE_OFFLOAD_DONE,
	       "the machine's states are the public ones");

static const struct socket_edge socket_table[S_COUNT][SOCKET_NEVENTS] = {
#define ROW(s, e, n, a) [S_##s][SOCKET_EV_##e] = { .next = S_##n, .actions = (a) },
#include "access/socket_fsm.def"
#undef ROW
};
static const struct socket_edge offload_table[O_COUNT][OFFLOAD_NEVENTS] = {
#define ROW(s, e, n, a) [O_##s][OFFLOAD_EV_##e] = { .next = O_##n, .actions = (a) },
#include "access/offload_fsm.def"
#undef ROW
};
enum {
	SOCKET_NROWS = 0
#define ROW(s, e, n, a) + 1
#include "access/socket_fsm.def"
#undef ROW
};
enum {
	OFFLOAD_NROWS = 0
#define ROW(s, e, n, a) + 1
#include "access/offload_fsm.def"
#undef ROW
};
_Static_assert(SOCKET_NROWS == S_COUNT * SOCKET_NEVENTS, "list every (state, event)");
_Static_assert(OFFLOAD_NROWS == O_COUNT * OFFLOAD_NEVENTS, "list every (state, event)");

#define Y true
#define N false
static const bool calls[SOCKET_NCALLS][O_COUNT] = {
#define CALL(name, ...) [SOCKET_CALL_##name] = { __VA_ARGS__ },
#include "access/socket_calls.def"
#undef CALL
};
#undef Y
#undef N

static const char *const call_names[SOCKET_NCALLS] = {
#define CALL(name, ...) [SOCKET_CALL_##name] = #name,
#include "access/socket_calls.def"
#undef CALL
};
/* clang-format on */

struct socket_edge socket_fsm_step(uint32_t state, enum socket_event e)
{
	return socket_table[state][e];
}

struct socket_edge offload_fsm_step(uint32_t state, enum offload_event e)
{
	return offload_table[state][e];
}

bool socket_call_allowed(enum socket_call call, uint32_t offload_state)
{
	return calls[call][offload_state];
}

const char *socket_call_name(unsigned call)
{
	return call < SOCKET_NCALLS ? call_names[call] : "?";
}
