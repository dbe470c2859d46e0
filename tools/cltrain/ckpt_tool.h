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

/* One role of a source. */
typedef struct {
    clt_weight_source *source;
    const clt_slab_table *table; /* of the ckpt_weights */
    const char *role;
} ckpt_role;
enum { CKPT_ROLES = 3 }; /* weight, exp_avg, exp_avg_sq */

/* A source as parts over a table: the model's table when the source has a model configuration or one is
 * given, otherwise (a single .safetensors file) all its tensors by name. So equal weights have equal hashes
 * in any source. Other differences from the model are CLT_BAD_DATA. It must not be moved while it is open. */
typedef struct {
    clt_weight_source *source; /* borrowed */
    clt_slab_table table;
    ckpt_role role[CKPT_ROLES];
    clt_ckpt_part part[CKPT_ROLES]; /* weights, then the moments that the source has */
    int parts;
    clt_weight_map *map;      /* how files make the table's tensors; NULL: names and layouts are equal */
    clt_model_config *config; /* NULL: the source has no model configuration */
    char *model;              /* the same as JSON text, as checkpoints carry it */
} ckpt_weights;
/* config: the model's, which is taken over, in place of that of the source; NULL: the source's. */
clt_status ckpt_weights_open(clt_weight_source *source, clt_model_config *config, ckpt_weights *out);
/* Elements [first, first + count) of tensor `entry` of the table; `ctx` is a ckpt_role. */
clt_status ckpt_role_read(void *ctx, int entry, uint64_t first, float *dst, uint64_t count);
void ckpt_weights_close(ckpt_weights *w);

/* A universal checkpoint of DeepSpeed in OUT, with the moments that the source has (ckpt_universal.c).
 * prefix: text in front of the parameters' names. overwrite: an older one of as many steps is replaced. */
clt_status ckpt_export_universal(ckpt_weights *w, const char *out, const char *prefix, bool overwrite);

/* What `ckpt import` takes from the command line for a universal checkpoint; -1 and NULL: not given. */
typedef struct {
    const char *config, *optimizer;
    int64_t steps, samples, tokens;
    bool weights_only;
} ckpt_import_options;
/* The model's configuration for the import: that of opt->config, a config.json or the YAML of a run; *out is
 * NULL without it. */
clt_status ckpt_import_config(const ckpt_import_options *opt, clt_model_config **out);
/* The state of the checkpoint that an import writes, and how many of the parts it gets. Prints what the
 * checkpoint can be used for. */
clt_status ckpt_import_state(const ckpt_weights *w, const ckpt_import_options *opt,
                             clt_checkpoint_state *state, int *parts);

#endif
