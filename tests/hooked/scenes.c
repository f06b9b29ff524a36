/* SPDX-License-Identifier: MIT */
#include "hooked/scenes.h"

const struct scene scenes[] = {
	{ "duplex", scene_duplex },       { "questions", scene_questions },
	{ "down", scene_down },           { "pool", scene_pool },
	{ "numbers", scene_numbers },     { "sets", scene_sets },
	{ "set-forks", scene_set_forks }, { "ready", scene_ready },
	{ "cancel", scene_cancel },       { "first", scene_first },
	{ "forks", scene_forks },         { 0 },
};
