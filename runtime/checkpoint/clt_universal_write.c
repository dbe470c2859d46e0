#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_torch_file.h"
#include "runtime/checkpoint/clt_universal.h"

/* Parameter groups that optimizer_state.pt has: DeepSpeed restores as many groups of parameters as the file
 * and the run have in common. Keys other than "params" would replace the run's hyperparameters. */
enum { GROUPS = 64 };

/* The version whose files these are like. */
static const char ds_version[] = "0.19.8";

typedef struct {
    const clt_universal_spec *s;
    int param;
    clt_universal_state state;
} source;

static clt_status fill_one(void *ctx, int storage, uint64_t first, float *dst, uint64_t count) {
    const source *x = ctx;
    (void)storage;
    return x->s->fill(x->s->ctx, x->param, x->state, first, dst, count);
}

static clt_status fill_steps(void *ctx, int storage, uint64_t first, float *dst, uint64_t count) {
    const source *x = ctx;
    (void)storage, (void)first, (void)count;
    *dst = (float)x->s->steps;
    return CLT_OK;
}

static clt_status fill_weight(void *ctx, int storage, uint64_t first, float *dst, uint64_t count) {
    const source *x = ctx;
    return x->s->fill(x->s->ctx, storage, CLT_UNIVERSAL_WEIGHT, first, dst, count);
}

/* PATH/NAME; takes the pickle. */
static clt_status write_file(const char *folder, const char *name, clt_str *pickle, const uint64_t *counts,
                             int storages, clt_torch_fill fill, source *x) {
    char *path = clt_path_join(folder, name);
    clt_status st = clt_torch_write(path, pickle, counts, storages, fill, x);
    clt_free(path);
    clt_str_free(pickle);
    return st;
}

/* --- a parameter --- */

static clt_status write_state(source *x, const char *folder) {
    static const char *const files[] = {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt"};
    const clt_universal_param *p = &x->s->param[x->param];
    clt_str s = {0};
    clt_pickle_put_begin(&s);
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "cat_dim");
    clt_pickle_put_int(&s, 0);
    clt_pickle_put_text(&s, "param");
    clt_pickle_put_tensor(&s, "0", p->count, p->dims, p->shape);
    clt_pickle_put_items(&s);
    clt_pickle_put_end(&s);
    return write_file(folder, files[x->state], &s, &p->count, 1, fill_one, x);
}

static clt_status write_step(source *x, const char *folder) {
    const uint64_t one = 1;
    clt_str s = {0};
    clt_pickle_put_begin(&s);
    clt_pickle_put_tensor(&s, "0", 1, 0, NULL);
    clt_pickle_put_end(&s);
    return write_file(folder, "step.pt", &s, &one, 1, fill_steps, x);
}

static clt_status write_param(source *x, const char *zero) {
    const clt_universal_spec *s = x->s;
    const char *name = s->param[x->param].name;
    bool moments = false;
    if (!clt_path_is_safe(name) || strchr(name, '/'))
        return clt_error(CLT_BAD_DATA, "tensor '%s' cannot be the name of a folder", name);
    char *folder = clt_path_join(zero, name);
    clt_status st = clt_io_mkdirs(folder);
    for (x->state = CLT_UNIVERSAL_WEIGHT; x->state < CLT_UNIVERSAL_STATES && st == CLT_OK; x->state++) {
        const bool moment = x->state != CLT_UNIVERSAL_WEIGHT;
        if (moment && !s->moments[x->state]) continue;
        moments |= moment;
        st = write_state(x, folder);
    }
    if (st == CLT_OK && moments) st = write_step(x, folder);
    if (st == CLT_OK) st = clt_io_sync_dir(folder);
    clt_free(folder);
    return st;
}

/* --- what belongs to no parameter --- */

static void put_group(clt_str *s) {
    clt_pickle_put_dict(s);
    clt_pickle_put_text(s, "params");
    clt_pickle_put_list(s);
    clt_pickle_put_appends(s);
    clt_pickle_put_items(s);
}

static void put_groups(clt_str *s, int n) {
    clt_pickle_put_text(s, "param_groups");
    clt_pickle_put_list(s);
    for (int i = 0; i < n; i++) put_group(s);
    clt_pickle_put_appends(s);
}

/* The keys that ZeRO 1 and 2 read, and those of ZeRO 3 ("optimizer_state_dict"). */
static clt_status write_optimizer_state(source *x, const char *zero) {
    const uint64_t one = 1;
    clt_str s = {0};
    clt_pickle_put_begin(&s);
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "ds_version");
    clt_pickle_put_text(&s, ds_version);
    put_groups(&s, GROUPS);
    clt_pickle_put_text(&s, "optimizer_state_dict");
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "state");
    clt_pickle_put_dict(&s);
    clt_pickle_put_int(&s, 0);
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "step");
    clt_pickle_put_tensor(&s, "0", 1, 0, NULL);
    clt_pickle_put_items(&s);
    clt_pickle_put_items(&s);
    put_groups(&s, 1);
    clt_pickle_put_items(&s);
    clt_pickle_put_items(&s);
    clt_pickle_put_end(&s);
    return write_file(zero, "optimizer_state.pt", &s, &one, 1, fill_steps, x);
}

static void put_count(clt_str *s, const char *key, int64_t value) {
    clt_pickle_put_text(s, key);
    clt_pickle_put_int(s, value);
}

/* The schedulers of DeepSpeed have made one step less than the optimizer has before the next update. */
static void put_counters(const clt_universal_spec *u, clt_str *s) {
    put_count(s, "global_steps", u->steps);
    put_count(s, "global_samples", u->samples);
    put_count(s, "skipped_steps", 0);
    put_count(s, "dp_world_size", 1);
    put_count(s, "mp_world_size", 1);
    clt_pickle_put_text(s, "ds_version");
    clt_pickle_put_text(s, ds_version);
    clt_pickle_put_text(s, "lr_scheduler");
    clt_pickle_put_dict(s);
    put_count(s, "last_batch_iteration", u->steps - 1);
    clt_pickle_put_items(s);
}

/* DeepSpeed below 0.19 also loads the module's weights, which ZeRO 3 has as empty tensors. */
static clt_status write_model_states(source *x, const char *folder, const char *name, bool empty) {
    const clt_universal_spec *u = x->s;
    uint64_t *counts = clt_try_calloc((size_t)u->n, sizeof *counts);
    clt_str s = {0};
    if (!counts) return clt_no_memory(name, (size_t)u->n * sizeof *counts);
    clt_pickle_put_begin(&s);
    clt_pickle_put_dict(&s);
    clt_pickle_put_text(&s, "module");
    clt_pickle_put_dict(&s);
    for (int i = 0; i < u->n; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        counts[i] = empty ? 0 : u->param[i].count;
        clt_pickle_put_text(&s, u->param[i].name);
        clt_pickle_put_tensor(&s, key, counts[i], empty ? 1 : u->param[i].dims,
                              empty ? &counts[i] : u->param[i].shape);
    }
    clt_pickle_put_items(&s);
    put_counters(u, &s);
    clt_pickle_put_items(&s);
    clt_pickle_put_end(&s);
    clt_status st = write_file(folder, name, &s, counts, u->n, fill_weight, x);
    clt_free(counts);
    return st;
}

/* --- all --- */

char *clt_universal_tag(int64_t steps) {
    return clt_format("global_step%lld_universal", (long long)steps);
}

static clt_status write_folder(source *x, const char *folder, const char *zero) {
    CLT_TRY(clt_io_mkdirs(zero));
    for (x->param = 0; x->param < x->s->n; x->param++) CLT_TRY(write_param(x, zero));
    CLT_TRY(write_optimizer_state(x, zero));
    CLT_TRY(clt_io_sync_dir(zero));
    CLT_TRY(write_model_states(x, folder, "mp_rank_00_model_states.pt", false));
    CLT_TRY(write_model_states(x, folder, "zero_pp_rank_0_mp_rank_00_model_states.pt", true)); /* ZeRO 3 */
    return clt_io_sync_dir(folder);
}

clt_status clt_universal_write(const clt_universal_spec *s) {
    source x = {.s = s};
    char *tag = clt_universal_tag(s->steps), *folder = clt_path_join(s->folder, tag);
    char *zero = clt_path_join(folder, "zero"), *hint = clt_path_join(s->folder, "latest_universal");
    clt_status st = write_folder(&x, folder, zero);
    if (st == CLT_OK) st = clt_io_write_atomic(hint, tag, strlen(tag));
    if (st != CLT_OK) (void)clt_io_remove_tree(folder);
    clt_free(hint);
    clt_free(zero);
    clt_free(folder);
    clt_free(tag);
    return st;
}
