/* SPDX-License-Identifier: MIT */
/*
 * The partner is a static program, as those written in Go are: no library can be loaded into it, its
 * event loop is edge-triggered, and the connection stays on TCP.
 */
#include <unistd.h>

#include "life.h"

static void play(struct life *l)
{
	life_begin(l);
	for (int i = 0; i < 3; i++) {
		life_go_on(l);
		life_calm(l);
	}
	close(l->st.fd);
	life_end(l);
}

int main(void)
{
	return life_main(play, 2, "life_partner_static");
}
