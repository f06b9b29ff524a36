/* SPDX-License-Identifier: MIT */
/* Inherits a connection by exec or by a message and goes on with it (see life_heir_args()). */
#include "life.h"

int main(int argc, char **argv)
{
	return life_heir_main(argc, argv);
}
