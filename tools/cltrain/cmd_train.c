/* cltrain train: trains a model from a configuration. With several ranks every rank runs this. */
#include "tools/cltrain/commands.h"
#include "tools/cltrain/train_args.h"

int cmd_train(int argc, char **argv) {
    clt_train_args a;
    int code = clt_train_args_read(argc, argv, &a);
    if (code < 0) code = clt_status_exit_code(clt_train(a.cfg, &a.opt));
    clt_train_args_free(&a);
    return code;
}
