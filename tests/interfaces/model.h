/* SPDX-License-Identifier: MIT */
/*
 * What a listener believes after what it was told, and the rules for telling it (CH-17). Breaking a
 * rule fails the test later, when it asks: notices may come on the library's thread.
 */
#ifndef FLUE_TESTS_INTERFACES_MODEL_H
#define FLUE_TESTS_INTERFACES_MODEL_H

#include <flue/flue.h>
#include <pthread.h>

#define MODEL_MAX 1024 /* interfaces */

struct model_interface {
	bool there;
	struct flue_interface iface;
	struct sockaddr_storage *addresses;
	unsigned told[FLUE_INTERFACE_NNOTICES];
};

struct model {
	pthread_mutex_t lock;
	struct model_interface all[MODEL_MAX]; /* by index */
	unsigned notices;
	char broken[256]; /* the first rule that was */
	bool hold;        /* the function of a watch sleeps while this is set */
	bool verbose;
};

void model_init(struct model *m);
void model_fini(struct model *m);
/* A flue_interface_fn; `arg`: the model. */
void model_note(uint32_t notice, const struct flue_interface *iface, void *arg);
void model_hold(struct model *m, bool hold);
/* How often `notice` was told of interfaces called `name`. */
unsigned model_count(struct model *m, const char *name, uint32_t notice);
bool model_has_address(struct model *m, const char *name, const char *text);
/* NULL, or how the model differs from what the system says just now; or the broken rule. */
const char *model_complaint(struct model *m);

#endif
