/* SPDX-License-Identifier: MIT */
/*
 * A provider that stands before another one and goes wrong as the test planned: a slot fails on
 * its nth call, a control slot answers later and from another thread, an up-call comes twice, late
 * or never, flushed completions do not arrive. Without a plan it is the provider behind it, but that
 * lkeys are never rkeys (faulty_keys.h).
 *
 * It is registered under the name "faulty". There is one plan for the whole process; make it while
 * no other thread uses the provider. Handles are those of the inner provider.
 */
#ifndef FLUE_TESTS_FAULTY_H
#define FLUE_TESTS_FAULTY_H

#include "provider/provider.h"

/* X(slot): name in struct prov_ops. The first group answers through a prov_op. */
#define FAULTY_CONTROL_SLOTS(X) \
	X(create_pd)            \
	X(destroy_pd)           \
	X(register_mr)          \
	X(modify_mr)            \
	X(deregister_mr)        \
	X(create_mw)            \
	X(destroy_mw)           \
	X(create_cq)            \
	X(resize_cq)            \
	X(destroy_cq)           \
	X(create_srq)           \
	X(destroy_srq)          \
	X(modify_srq)           \
	X(query_srq)            \
	X(create_qp)            \
	X(destroy_qp)           \
	X(reset_qp)             \
	X(query_qp)             \
	X(modify_qp)            \
	X(create_ah)            \
	X(destroy_ah)           \
	X(destroy_listener)
#define FAULTY_OTHER_SLOTS(X)     \
	X(open)                   \
	X(set_completion_handler) \
	X(poll)                   \
	X(arm)                    \
	X(wait)                   \
	X(arm_srq)                \
	X(bind_mw)                \
	X(post_srq)               \
	X(post_send)              \
	X(post_recv)              \
	X(connect)                \
	X(start)                  \
	X(disconnect)             \
	X(abort)                  \
	X(listen)                 \
	X(accept)                 \
	X(reject)                 \
	X(adopt_stream)           \
	X(adopt_gang)             \
	X(terminate)              \
	X(join_group)             \
	X(leave_group)

#define FAULTY_ENUM(slot) FAULTY_##slot,
enum faulty_slot {
	FAULTY_CONTROL_SLOTS(FAULTY_ENUM) FAULTY_NCONTROL,
	FAULTY_BEFORE_OTHERS = FAULTY_NCONTROL - 1,
	FAULTY_OTHER_SLOTS(FAULTY_ENUM) FAULTY_NSLOTS,
};
#undef FAULTY_ENUM

/* What happens to an up-call. */
enum faulty_action {
	FAULTY_PASS = 0,
	FAULTY_DROP,
	FAULTY_TWICE, /* not for REQUEST: a request can be used up only once */
	FAULTY_LATE,  /* after `ms`, from another thread; never after its object is destroyed */
};

/* Up-calls are named by enum flue_event_type, and this for completion handlers (not LATE). */
#define FAULTY_COMPLETION FLUE_EVENT_NTYPES

/* Stands before `inner` from now on; registers itself. Forgets the plan. */
void faulty_wrap(const struct prov_ops *inner);

/* Forget the plan, and wait until everything that was to come late has come. */
void faulty_reset(void);
/* The nth call from now (1: the next) of the slot fails with -error; nth 0: every call. */
void faulty_fail(enum faulty_slot slot, unsigned nth, int error);
/* The slot answers after `ms`, from another thread; ms < 0: at once again. */
void faulty_delay(enum faulty_slot slot, int ms);
void faulty_delay_all(int ms);
/* From now on, this happens to up-calls of the type. */
void faulty_upcall(uint32_t type, enum faulty_action action, int ms);
/* Flushed completions are swallowed. */
void faulty_never_flush(bool on);

/* Calls of the slot since faulty_reset(), those that failed as planned included. */
unsigned faulty_calls(enum faulty_slot slot);
const char *faulty_slot_name(enum faulty_slot slot);

#endif
