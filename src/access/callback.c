/* SPDX-License-Identifier: MIT */
/*
 * Which of the user's functions this thread is inside of. Destroying an object from its own
 * callback would wait for that callback, so it is refused with EDEADLK; this list knows.
 */
#include "access/access_priv.h"

static __thread struct acc_frame *innermost;

void acc_frame_enter(struct acc_frame *frame, const void *object, const void *other)
{
	frame->object = object;
	frame->other = other;
	frame->outer = innermost;
	innermost = frame;
}

void acc_frame_leave(struct acc_frame *frame)
{
	innermost = frame->outer;
}

bool acc_in_callback(const void *object)
{
	for (const struct acc_frame *f = innermost; f; f = f->outer)
		if (!object || f->object == object || f->other == object)
			return true;
	return false;
}
