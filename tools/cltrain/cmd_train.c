/* cltrain train: trains a model from a configuration. With several ranks every rank runs this. */
#include "collectives/clt_launch.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "tools/cltrain/ckpt_tool.h"
#include "tools/cltrain/commands.h"
#include "tools/cltrain/train_args.h"

/* SAVE_FOLDER/huggingface/NAME with the position of the checkpoint, as Composer names an export. The caller
 * frees it. */
static clt_status name_export(const clt_config *c, char **out) {
    const clt_hf_checkpointer_config *h = &c->callbacks.hf_checkpointer;
    clt_weight_source *source;
    CLT_TRY(clt_weight_source_open(c->save_folder, &source));
    const clt_ckpt_reader *reader = clt_weight_source_checkpoint(source);
    clt_timestamp now = {0};
    if (reader) {
        const clt_checkpoint_state *s = clt_ckpt_state(reader);
        now = (clt_timestamp){.epoch = s->epoch, .batch = s->batch, .sample = s->sample, .token = s->token};
    }
    char *path = clt_format("%s/huggingface/%s", h->save_folder, h->folder_name);
    *out = clt_config_expand(c, path, &now);
    clt_free(path);
    clt_weight_source_close(source);
    return CLT_OK;
}

/* callbacks.hf_checkpointer: what `cltrain ckpt export` does, with the newest checkpoint. */
static int export_newest(const clt_config *c) {
    static const char *const dtype[] = {"f32", "bf16", "f16"}; /* clt_hf_precision */
    const clt_hf_checkpointer_config *h = &c->callbacks.hf_checkpointer;
    char *folder;
    if (!h->on || !c->save_folder || clt_launch_detect().rank != 0) return 0;
    const clt_status st = name_export(c, &folder);
    if (st != CLT_OK) return clt_status_exit_code(st);
    const char *words[] = {"export", "--dtype", dtype[h->precision], c->save_folder, folder, "--overwrite"};
    const int code = ckpt_export((int)CLT_COUNT_OF(words) - !h->overwrite, (char **)words);
    clt_free(folder);
    return code;
}

int cmd_train(int argc, char **argv) {
    clt_train_args a;
    int code = clt_train_args_read(argc, argv, &a);
    if (code < 0) {
        code = clt_status_exit_code(clt_train(a.cfg, &a.opt));
        if (code == 0) code = export_newest(a.cfg);
    }
    clt_train_args_free(&a);
    return code;
}
