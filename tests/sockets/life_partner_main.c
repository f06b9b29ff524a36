/* SPDX-License-Identifier: MIT */
/* The partner as a program: life_partner_static CTL SEED. */
#include <stdlib.h>

#include "life.h"

int main(int argc, char **argv)
{
	return argc == 3 ? partner_main(atoi(argv[1]), strtoull(argv[2], NULL, 10)) : 2;
}
