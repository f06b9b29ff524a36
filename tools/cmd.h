/* SPDX-License-Identifier: MIT */
/* The subcommands; flue.c has the table. Each gets argv[0] = "flue NAME" and returns the exit status. */
#ifndef FLUE_TOOLS_CMD_H
#define FLUE_TOOLS_CMD_H

#include <signal.h>
#include <stdint.h>

int cmd_adapters(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_perf(int argc, char **argv);
int cmd_ping(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_sockets(int argc, char **argv);

struct flue_adapter;

/* The default adapter, for these links (enum flue_link; 0: all); NULL after a message. */
struct flue_adapter *cmd_open_adapter(uint32_t links);

/* Set by SIGINT once cmd_catch_interrupt() was called; a second SIGINT kills as usual. */
extern volatile sig_atomic_t cmd_interrupted;
void cmd_catch_interrupt(void);

#endif
