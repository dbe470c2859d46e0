/* The subcommands of `cltrain ckpt`. argv[0] is the subcommand's name; the return value is the exit code. */
#ifndef CKPT_TOOL_H
#define CKPT_TOOL_H

#include "runtime/base/clt_options.h"
#include "runtime/checkpoint/clt_weight_source.h"
#include "runtime/model/clt_model.h"

int ckpt_ls(int argc, char **argv);
int ckpt_show(int argc, char **argv);
int ckpt_verify(int argc, char **argv);
int ckpt_hash(int argc, char **argv);
int ckpt_diff(int argc, char **argv);
int ckpt_import(int argc, char **argv);
int ckpt_export(int argc, char **argv);
int ckpt_prune(int argc, char **argv);

/* Parses the options; requires exactly `n` positional arguments, or at least -n when n is negative. Returns
 * -1, or the exit code with which the command ends. */
int ckpt_parse(const clt_command *c, int argc, char **argv, int n, clt_strv *rest);

/* "[512, 64]", written into buf (at least 96 bytes), returned. */
const char *ckpt_shape(const clt_ckpt_tensor *t, char *buf);

/* Weights of a source as a part over a table: the model's table when the source has a model configuration,
 * otherwise (a single .safetensors file) all its tensors by name. So equal weights have equal hashes in any
 * source. Other differences from the model are CLT_BAD_DATA. */
typedef struct {
    clt_weight_source *source; /* borrowed */
    clt_slab_table table;
    clt_ckpt_part part;
    clt_weight_map *map;      /* how files make the table's tensors; NULL: names and layouts are equal */
    clt_model_config *config; /* NULL: the source has no model configuration */
    char *model;              /* the same as JSON text, as checkpoints carry it */
} ckpt_weights;
clt_status ckpt_weights_open(clt_weight_source *source, ckpt_weights *out);
/* Elements [first, first + count) of tensor `entry` of the table; `ctx` is a ckpt_weights. */
clt_status ckpt_weights_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count);
void ckpt_weights_close(ckpt_weights *w);

#endif
