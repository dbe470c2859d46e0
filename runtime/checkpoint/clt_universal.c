#include "runtime/checkpoint/clt_universal.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/checkpoint/clt_torch_file.h"

static const char latest[] = "latest_universal", model_states[] = "mp_rank_00_model_states.pt",
                  model_states_zero3[] = "zero_pp_rank_0_mp_rank_00_model_states.pt";
static const struct {
    const char *file, *role;
} states[CLT_UNIVERSAL_STATES] = {
    {"fp32.pt", "weight"}, {"exp_avg.pt", "exp_avg"}, {"exp_avg_sq.pt", "exp_avg_sq"}};

enum { OPEN_FILES = 8, HINT_LIMIT = 4096 };

typedef struct {
    clt_torch_file *file;
    int param, state;
} opened;

struct clt_universal {
    char *path;
    clt_strv folders; /* of the parameters, below zero/ */
    clt_universal_param *param;
    int params;
    bool has[CLT_UNIVERSAL_STATES];
    bool *verified; /* [params * CLT_UNIVERSAL_STATES] */
    opened open[OPEN_FILES];
    int next; /* the slot that is used next */
    int64_t steps, samples;
};

const char *clt_universal_role(clt_universal_state s) {
    return states[s].role;
}

/* --- finding --- */

static bool has_dir(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    const bool yes = clt_io_is_dir(path);
    clt_free(path);
    return yes;
}

static bool has_file(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    const bool yes = clt_io_is_file(path);
    clt_free(path);
    return yes;
}

/* A folder of runs may have one that is called zero. */
static bool is_universal(const char *path) {
    return has_dir(path, "zero") && !has_file(path, "zero/manifest.json");
}

static clt_status follow(const char *path, char **folder) {
    char *hint = clt_path_join(path, latest), *text = NULL, *target = NULL;
    clt_status st = clt_io_read_all(hint, HINT_LIMIT, &text, NULL);
    if (st == CLT_OK) {
        text[strcspn(text, "\r\n")] = 0;
        if (clt_path_is_safe(text) && !strchr(text, '/')) target = clt_path_join(path, text);
        if (target && is_universal(target))
            *folder = clt_strdup(target);
        else
            st = clt_error(CLT_BAD_DATA,
                           "%s names no universal checkpoint of its folder (a folder with zero/)", hint);
    }
    clt_free(target);
    clt_free(text);
    clt_free(hint);
    return st;
}

clt_status clt_universal_find(const char *path, char **folder) {
    *folder = NULL;
    if (is_universal(path)) {
        *folder = clt_strdup(path);
        return CLT_OK;
    }
    return has_file(path, latest) ? follow(path, folder) : CLT_OK;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* Whether a folder has the optimizer states of ranks. names: all that is in it, {0} if it cannot be listed.
 */
static bool has_shards(const char *path, clt_strv *names) {
    bool found = false;
    clt_error_quiet(true);
    const bool listed = clt_io_is_dir(path) && clt_io_list(path, names) == CLT_OK;
    clt_error_quiet(false);
    for (size_t i = 0; listed && i < names->n; i++) found |= ends_with(names->v[i], "_optim_states.pt");
    return found;
}

/* The folder with shards: `path`, or one in it whose name DeepSpeed gave; NULL: none. The caller frees it. */
static char *find_shards(const char *path) {
    clt_strv names = {0};
    char *found = has_shards(path, &names) ? clt_strdup(path) : NULL;
    for (size_t i = 0; i < names.n && !found; i++) {
        clt_strv below = {0};
        if (strncmp(names.v[i], "global_step", 11) != 0) continue;
        found = clt_path_join(path, names.v[i]);
        if (!has_shards(found, &below)) {
            clt_free(found);
            found = NULL;
        }
        clt_strv_free(&below);
    }
    clt_strv_free(&names);
    return found;
}

clt_status clt_universal_refuse_shards(const char *path) {
    char *shards = find_shards(path);
    clt_status st = CLT_OK;
    if (shards)
        st = clt_error(CLT_BAD_DATA,
                       "%s is a checkpoint of DeepSpeed in shards of ranks; convert it: python3 -m "
                       "deepspeed.checkpoint.ds_to_universal --input_folder %s --output_folder %s_universal "
                       "(add --inject_missing_state if it asks for universal_checkpoint_info), and name the "
                       "new folder",
                       shards, shards, shards);
    clt_free(shards);
    return st;
}

/* --- files of a parameter --- */

static char *file_of(const clt_universal *u, int i, const char *name) {
    return clt_format("%s/zero/%s/%s", u->path, u->folders.v[i], name);
}

/* The tensor of a file: the dictionary's "param", or the root itself. */
static clt_status tensor_of(clt_torch_file *f, const char *path, const clt_pickle_value **out) {
    const clt_pickle_value *root = clt_torch_root(f);
    *out = root->kind == CLT_PICKLE_TENSOR ? root : clt_pickle_get(root, "param");
    if (*out && (*out)->kind == CLT_PICKLE_TENSOR) return CLT_OK;
    return clt_error(CLT_BAD_DATA, "%s has no tensor \"param\"", path);
}

/* The open file of a parameter's state, of which a few stay open. */
static clt_status open_state(clt_universal *u, int i, int state, clt_torch_file **out) {
    for (int k = 0; k < OPEN_FILES; k++)
        if (u->open[k].file && u->open[k].param == i && u->open[k].state == state) {
            *out = u->open[k].file;
            return CLT_OK;
        }
    opened *o = &u->open[u->next++ % OPEN_FILES];
    char *path = file_of(u, i, states[state].file);
    clt_torch_close(o->file);
    *o = (opened){.param = i, .state = state};
    clt_status st = clt_torch_open(path, 0, &o->file);
    clt_free(path);
    *out = o->file;
    return st;
}

static clt_status read_shape(clt_universal *u, int i) {
    clt_universal_param *p = &u->param[i];
    clt_torch_file *f;
    const clt_pickle_value *t;
    CLT_TRY(open_state(u, i, CLT_UNIVERSAL_WEIGHT, &f));
    char *path = file_of(u, i, states[CLT_UNIVERSAL_WEIGHT].file);
    clt_status st = tensor_of(f, path, &t);
    if (st == CLT_OK && t->tensor.count == 0) st = clt_error(CLT_BAD_DATA, "%s: the tensor is empty", path);
    clt_free(path);
    CLT_TRY(st);
    p->flat = t == clt_torch_root(f) && t->tensor.dims == 1;
    p->dims = t->tensor.dims;
    p->count = t->tensor.count;
    memcpy(p->shape, t->tensor.shape, sizeof p->shape);
    return CLT_OK;
}

static clt_status check_moment(clt_universal *u, int i, int state) {
    const clt_universal_param *p = &u->param[i];
    clt_torch_file *f;
    const clt_pickle_value *t;
    CLT_TRY(open_state(u, i, state, &f));
    char *path = file_of(u, i, states[state].file);
    clt_status st = tensor_of(f, path, &t);
    if (st == CLT_OK && (t->tensor.dims != p->dims ||
                         memcmp(t->tensor.shape, p->shape, (size_t)p->dims * sizeof *p->shape) != 0))
        st = clt_error(CLT_BAD_DATA, "%s: the tensor has another shape than that of %s", path,
                       states[CLT_UNIVERSAL_WEIGHT].file);
    clt_free(path);
    return st;
}

/* Either every parameter has this moment or none. */
static clt_status check_moments(clt_universal *u, int state) {
    for (int i = 0; i < u->params; i++) {
        char *path = file_of(u, i, states[state].file);
        const bool there = clt_io_is_file(path);
        clt_status st = CLT_OK;
        if (i == 0) u->has[state] = there;
        if (there != u->has[state])
            st = clt_error(CLT_BAD_DATA, "%s: some parameters have %s, and %s has %s", u->path,
                           states[state].file, u->folders.v[i], there ? "it too" : "none");
        clt_free(path);
        CLT_TRY(st);
        if (there) CLT_TRY(check_moment(u, i, state));
    }
    return CLT_OK;
}

/* --- counters --- */

/* A number, or a tensor of one element; without a message. */
static bool count_in(clt_torch_file *f, const clt_pickle_value *v, int64_t *out) {
    float x = -1;
    if (!v || v->kind != CLT_PICKLE_TENSOR || v->tensor.count != 1)
        return clt_pickle_as_int(v, out) && *out >= 0;
    clt_error_quiet(true);
    const bool read = clt_torch_verify(f, v) == CLT_OK && clt_torch_read_f32(f, v, 0, &x, 1) == CLT_OK;
    clt_error_quiet(false);
    if (!read || !(x >= 0 && x <= 0x1p53f)) return false;
    *out = (int64_t)x;
    return (float)*out == x;
}

/* step.pt of every parameter: they are equal, or DeepSpeed itself refuses the checkpoint. */
static clt_status read_steps(clt_universal *u) {
    for (int i = 0; i < u->params; i++) {
        char *path = file_of(u, i, "step.pt");
        clt_torch_file *f = NULL;
        int64_t step = -1;
        clt_status st = CLT_OK;
        if (clt_io_is_file(path)) {
            st = clt_torch_open(path, 0, &f);
            if (st == CLT_OK && !count_in(f, clt_torch_root(f), &step))
                st = clt_error(CLT_BAD_DATA, "%s has no number of steps", path);
            clt_torch_close(f);
        }
        if (st == CLT_OK && i > 0 && step != u->steps)
            st = clt_error(CLT_BAD_DATA, "%s: the number of steps differs from that of %s", path,
                           u->folders.v[0]);
        clt_free(path);
        CLT_TRY(st);
        u->steps = step;
    }
    return CLT_OK;
}

/* What is optional: objects of other classes are skipped, and a file that cannot be read tells nothing. */
static clt_torch_file *try_open(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    clt_torch_file *f = NULL;
    if (clt_io_is_file(path)) {
        clt_error_quiet(true);
        if (clt_torch_open(path, CLT_PICKLE_OPAQUE_NAMES, &f) != CLT_OK) {
            f = NULL;
            clt_error_quiet(false);
            clt_warn("counters are not read: %s", clt_last_error());
            clt_error_quiet(true);
        }
        clt_error_quiet(false);
    }
    clt_free(path);
    return f;
}

/* ZeRO 3 keeps the steps in optimizer_state.pt: "optimizer_state_dict" -> "state" -> 0 -> "step". */
static void read_optimizer_state(clt_universal *u) {
    clt_torch_file *f = u->steps < 0 ? try_open(u->path, "zero/optimizer_state.pt") : NULL;
    if (!f) return;
    const clt_pickle_value *state =
        clt_pickle_get(clt_pickle_get(clt_torch_root(f), "optimizer_state_dict"), "state");
    int64_t step;
    if (state && state->kind == CLT_PICKLE_DICT && state->list.n >= 2 &&
        count_in(f, clt_pickle_get(state->list.item[1], "step"), &step))
        u->steps = step;
    clt_torch_close(f);
}

static void read_model_states(clt_universal *u) {
    clt_torch_file *f = try_open(u->path, model_states);
    int64_t steps, skipped = 0, samples;
    if (!f) f = try_open(u->path, model_states_zero3);
    if (!f) return;
    const clt_pickle_value *root = clt_torch_root(f);
    if (count_in(f, clt_pickle_get(root, "global_samples"), &samples)) u->samples = samples;
    (void)count_in(f, clt_pickle_get(root, "skipped_steps"), &skipped);
    if (u->steps < 0 && count_in(f, clt_pickle_get(root, "global_steps"), &steps) && steps >= skipped)
        u->steps = steps - skipped;
    clt_torch_close(f);
}

/* --- opening --- */

static clt_status list_params(clt_universal *u) {
    char *zero = clt_path_join(u->path, "zero");
    clt_strv names = {0};
    clt_status st = clt_io_list(zero, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        if (!has_dir(zero, names.v[i])) continue;
        clt_strv_add(&u->folders, names.v[i]);
        if (strlen(names.v[i]) > CLT_UNIVERSAL_MAX_NAME || u->folders.n > CLT_UNIVERSAL_MAX_PARAMS)
            st = clt_error(CLT_BAD_DATA, "%s: more than %d parameters, or a name of more than %d bytes", zero,
                           CLT_UNIVERSAL_MAX_PARAMS, CLT_UNIVERSAL_MAX_NAME);
    }
    if (st == CLT_OK && u->folders.n == 0)
        st = clt_error(CLT_BAD_DATA, "%s has no folders of parameters", zero);
    clt_strv_free(&names);
    clt_free(zero);
    return st;
}

static clt_status open_all(clt_universal *u) {
    CLT_TRY(list_params(u));
    u->param = clt_try_calloc(u->folders.n, sizeof *u->param);
    u->verified = clt_try_calloc(u->folders.n * CLT_UNIVERSAL_STATES, sizeof *u->verified);
    if (!u->param || !u->verified) return clt_no_memory(u->path, u->folders.n * sizeof *u->param);
    u->params = (int)u->folders.n;
    u->has[CLT_UNIVERSAL_WEIGHT] = true;
    for (int i = 0; i < u->params; i++) {
        const char *name = u->folders.v[i];
        while (strncmp(name, "module.", 7) == 0) name += 7;
        u->param[i].name = clt_strdup(name);
        CLT_TRY(read_shape(u, i));
    }
    for (int s = CLT_UNIVERSAL_EXP_AVG; s < CLT_UNIVERSAL_STATES; s++) CLT_TRY(check_moments(u, s));
    CLT_TRY(read_steps(u));
    read_optimizer_state(u);
    read_model_states(u);
    return CLT_OK;
}

clt_status clt_universal_open(const char *folder, clt_universal **out) {
    clt_universal *u = clt_calloc(1, sizeof *u);
    u->path = clt_strdup(folder);
    u->steps = u->samples = -1;
    clt_status st = open_all(u);
    if (st != CLT_OK) {
        clt_universal_close(u);
        return st;
    }
    *out = u;
    return CLT_OK;
}

void clt_universal_close(clt_universal *u) {
    if (!u) return;
    for (int k = 0; k < OPEN_FILES; k++) clt_torch_close(u->open[k].file);
    for (int i = 0; i < u->params; i++) clt_free(u->param[i].name);
    clt_free(u->param);
    clt_free(u->verified);
    clt_strv_free(&u->folders);
    clt_free(u->path);
    clt_free(u);
}

int clt_universal_count(const clt_universal *u) {
    return u->params;
}
const clt_universal_param *clt_universal_at(const clt_universal *u, int i) {
    return &u->param[i];
}
bool clt_universal_has(const clt_universal *u, clt_universal_state s) {
    return u->has[s];
}
int64_t clt_universal_steps(const clt_universal *u) {
    return u->steps;
}
int64_t clt_universal_samples(const clt_universal *u) {
    return u->samples;
}

/* The file and tensor of a state, whose data are verified once. */
static clt_status verified(clt_universal *u, int i, int state, clt_torch_file **f,
                           const clt_pickle_value **t) {
    bool *done = &u->verified[i * CLT_UNIVERSAL_STATES + state];
    CLT_TRY(open_state(u, i, state, f));
    CLT_TRY(tensor_of(*f, u->path, t));
    if (!*done) CLT_TRY(clt_torch_verify(*f, *t));
    *done = true;
    return CLT_OK;
}

clt_status clt_universal_read(clt_universal *u, int i, clt_universal_state s, uint64_t first, float *dst,
                              uint64_t count) {
    clt_torch_file *f;
    const clt_pickle_value *t;
    CLT_TRY(verified(u, i, (int)s, &f, &t));
    return clt_torch_read_f32(f, t, first, dst, count);
}

clt_status clt_universal_verify(clt_universal *u) {
    clt_torch_file *f;
    const clt_pickle_value *t;
    for (int i = 0; i < u->params; i++)
        for (int s = 0; s < CLT_UNIVERSAL_STATES; s++)
            if (u->has[s]) CLT_TRY(verified(u, i, s, &f, &t));
    return CLT_OK;
}
