/* SPDX-License-Identifier: MIT */
#ifndef TESTS_HOOKED_SCENES_H
#define TESTS_HOOKED_SCENES_H

#include "hooked/crowd.h"

void scene_duplex(void);
void scene_questions(void);
void scene_down(void);
void scene_pool(void);
void scene_numbers(void);
void scene_sets(void);
void scene_set_forks(void);
void scene_ready(void);
void scene_cancel(void);
void scene_first(void);
void scene_forks(void);

#endif
