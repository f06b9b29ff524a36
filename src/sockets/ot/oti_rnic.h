/* SPDX-License-Identifier: MIT */
/*
 * A transport (oti.h) over queue pairs of the access API: the software RNIC, on TCP. Private data
 * travels in the start-up frames of MPA; a rejection has the code in its first four octets. Each
 * transport opens an adapter of its own, with one CQ for sends and RDMA and one for receives.
 */
#ifndef FLUE_SOCKETS_OTI_RNIC_H
#define FLUE_SOCKETS_OTI_RNIC_H

#include "sockets/ot/oti.h"

struct oti_rnic_attr {
	const char *provider; /* NULL: "soft" */
	bool direct;          /* OTI_DIRECT instead of OTI_POLLED */
};

/* Errors of flue_open() and of making its objects, as a negative errno. */
int oti_rnic_open(const struct oti_rnic_attr *attr, struct oti **out);

#endif
