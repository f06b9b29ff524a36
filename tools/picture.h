/* SPDX-License-Identifier: MIT */
/* An SVG of a measurement: a latency histogram beside bandwidth over message size. */
#ifndef FLUE_TOOLS_PICTURE_H
#define FLUE_TOOLS_PICTURE_H

#include "perf.h"

struct picture {
	const char *title, *subtitle;
	const char *hist_title;
	const struct hist *hist;
	const struct perf_rows *bandwidth; /* sizes rise within an operation */
};

/* False + errno. */
bool picture_write(const char *path, const struct picture *picture);

#endif
