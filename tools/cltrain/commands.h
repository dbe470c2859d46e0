/* The subcommands of cltrain, one file each (cmd_NAME.c). argv[0] is the subcommand's name; the return value
 * is the program's exit code. */
#ifndef CLTRAIN_COMMANDS_H
#define CLTRAIN_COMMANDS_H

/* Weak, so that a program without one of the files still links; main.c reports the missing command. */
#define CLTRAIN_COMMAND(name, summary) int cmd_##name(int argc, char **argv) __attribute__((weak));
#include "tools/cltrain/commands.def"
#undef CLTRAIN_COMMAND

#endif
