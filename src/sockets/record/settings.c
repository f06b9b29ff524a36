/* SPDX-License-Identifier: MIT */
#include "sockets/record/settings.h"

struct settings settings;
