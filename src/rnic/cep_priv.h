/* SPDX-License-Identifier: MIT */
/* Shared by the cep*.c files. Under the engine's lock, or by who owns the endpoint alone. */
#ifndef FLUE_RNIC_CEP_PRIV_H
#define FLUE_RNIC_CEP_PRIV_H

#include "rnic/cep.h"

/* cep.c */
struct cep *cep_new(struct rnic *r, struct engine *e);
void cep_free(struct cep *c);
void cep_close_stream(struct cep *c);
void cep_tell_up(struct cep *c, uint32_t type, int err);
void cep_apply(struct cep *c, enum mpa_event e);

/* cep_frame.c */
void cep_set_policy(struct cep *c, const struct flue_conn_attr *a);
/* Our private data; -EINVAL: too much, with the enhanced word in front. */
int cep_take_private(struct cep *c, const void *data, size_t len, bool enhanced);
int cep_send_request(struct cep *c);
int cep_send_reply(struct cep *c);
/* Octets of a frame have come, from the socket or before. */
void cep_frame_ready(struct cep *c);
void cep_ready(struct engine_io *io, uint32_t events);

/* cep_dial.c */
int cep_redial(struct cep *c);
void cep_dial_ready(struct cep *c);

/* cep_answer.c */
void cep_accept_now(struct cep *c);

#endif
