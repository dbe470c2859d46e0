#include "runtime/checkpoint/clt_ckpt_internal.h"
#include "runtime/checkpoint/clt_universal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- agreement between ranks --- */

clt_status clt_ckpt_share_text(clt_group *g, clt_status st, char **text) {
    struct {
        clt_status st;
        size_t bytes; /* with the 0; 0: NULL */
    } head = {st, *text ? strlen(*text) + 1 : 0};
    CLT_TRY(clt_ckpt_broadcast(g, &head, sizeof head));
    if (head.st == CLT_OK && head.bytes) {
        if (clt_ckpt_rank(g) != 0) *text = clt_malloc(head.bytes);
        CLT_TRY(clt_ckpt_broadcast(g, *text, head.bytes));
    }
    return head.st;
}

clt_status clt_run_id(clt_group *group, char out[CLT_RUN_ID_BYTES]) {
    struct {
        char host[256];
        double wall, now;
        long pid;
    } seed = {.wall = clt_wall(), .now = clt_now(), .pid = (long)getpid()};
    char id[33];
    gethostname(seed.host, sizeof seed.host - 1);
    clt_hash_hex(clt_hash(&seed, sizeof seed), id);
    id[CLT_RUN_ID_BYTES - 1] = 0;
    CLT_TRY(clt_ckpt_broadcast(group, id, CLT_RUN_ID_BYTES));
    memcpy(out, id, CLT_RUN_ID_BYTES);
    return CLT_OK;
}

/* --- scan --- */

static bool has_file(const char *folder, const char *name) {
    char *path = clt_path_join(folder, name);
    bool yes = clt_io_is_file(path);
    clt_free(path);
    return yes;
}

/* Prints the message that clt_error_quiet kept, for an error that the caller did not expect. */
static clt_status say(clt_status st) {
    char text[2048];
    snprintf(text, sizeof text, "%s", clt_last_error());
    return clt_error(st, "%s", text);
}

clt_status clt_ckpt_try_manifest(const char *path, clt_manifest **m) {
    *m = NULL;
    clt_error_quiet(true);
    clt_status st = clt_manifest_load(path, true, m);
    clt_error_quiet(false);
    return st == CLT_NO_MEMORY ? say(st) : CLT_OK;
}

static clt_status examine(const char *folder, const char *name, clt_ckpt_info *out) {
    clt_ckpt_info c = {
        .name = clt_strdup(name), .path = clt_path_join(folder, name), .batch = -1, .loss = NAN};
    clt_manifest *m;
    clt_status st = clt_ckpt_try_manifest(c.path, &m);
    *out = c;
    CLT_TRY(st);
    out->valid = m != NULL;
    if (!m) {
        out->why = clt_strdup(clt_last_error());
        return CLT_OK;
    }
    out->epoch = m->state.epoch;
    out->batch = m->state.batch;
    out->sample = m->state.sample;
    out->token = m->state.token;
    out->loss = m->state.loss;
    out->saved = m->saved;
    out->bytes = m->manifest_bytes;
    for (size_t i = 0; i < m->files; i++) out->bytes += m->file[i].bytes;
    memcpy(out->run_id, m->run_id, sizeof out->run_id);
    clt_manifest_free(m);
    return CLT_OK;
}

static int newest_first(const void *a, const void *b) {
    const clt_ckpt_info *x = a, *y = b;
    if (x->valid != y->valid) return x->valid ? -1 : 1;
    if (x->batch != y->batch) return x->batch > y->batch ? -1 : 1;
    if (x->saved != y->saved) return x->saved > y->saved ? -1 : 1;
    return strcmp(y->name, x->name);
}

clt_status clt_ckpt_scan(const char *folder, clt_ckpt_info **list, int *n) {
    const clt_ckpt_commit_ops *commit;
    clt_strv names = {0};
    CLT_TRY(clt_ckpt_commit_of(folder, &commit));
    CLT_TRY(commit->list(folder, &names));
    clt_ckpt_info *found = clt_try_calloc(names.n, sizeof *found);
    int count = 0;
    clt_status st = found ? CLT_OK : clt_no_memory(folder, names.n * sizeof *found);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) st = examine(folder, names.v[i], &found[count++]);
    if (count > 1) qsort(found, (size_t)count, sizeof *found, newest_first);
    clt_strv_free(&names);
    if (st != CLT_OK) {
        clt_ckpt_scan_free(found, count);
        return st;
    }
    *list = found;
    *n = count;
    return CLT_OK;
}

void clt_ckpt_scan_free(clt_ckpt_info *list, int n) {
    for (int i = 0; i < n; i++) {
        clt_free(list[i].name);
        clt_free(list[i].path);
        clt_free(list[i].why);
    }
    clt_free(list);
}

/* --- which checkpoint --- */

/* By manifests and sizes. *path stays NULL when none is valid; *seen: valid or not. */
static clt_status newest(const char *folder, char **path, int *seen) {
    clt_ckpt_info *list;
    CLT_TRY(clt_ckpt_scan(folder, &list, seen));
    for (int i = 0; i < *seen; i++)
        if (!list[i].valid) clt_warn("%s is not usable: %s", list[i].path, list[i].why);
    if (*seen && list[0].valid) *path = clt_strdup(list[0].path);
    clt_ckpt_scan_free(list, *seen);
    return CLT_OK;
}

/* Verifies every chunk, an even share on each rank. Collective; CLT_BAD_DATA: damaged. */
static clt_status check_chunks(clt_group *group, const char *path) {
    clt_ckpt_reader *r = NULL;
    clt_error_quiet(true);
    clt_status st = clt_ckpt_open(path, &r);
    if (st == CLT_OK) st = clt_ckpt_verify_share(r, clt_ckpt_rank(group), clt_ckpt_size(group));
    clt_error_quiet(false);
    clt_ckpt_close(r);
    if (st == CLT_BAD_DATA || st == CLT_IO)
        clt_warn("%s is not usable: %s", path, clt_last_error());
    else if (st != CLT_OK)
        say(st);
    return clt_ckpt_agree(group, st);
}

/* The i-th newest by batch, on every rank; NULL: no more. Rank 0 has the list. */
static clt_status candidate(clt_group *group, const clt_ckpt_info *list, int n, int i, char **path) {
    *path = i < n && list[i].valid ? clt_strdup(list[i].path) : NULL;
    return clt_ckpt_share_text(group, CLT_OK, path);
}

static clt_status scan_and_warn(const char *folder, clt_ckpt_info **list, int *n) {
    clt_io_info info;
    CLT_TRY(clt_io_stat(folder, &info));
    if (info.kind != CLT_IO_FOLDER) return CLT_OK;
    CLT_TRY(clt_ckpt_scan(folder, list, n));
    for (int i = 0; i < *n; i++)
        if (!(*list)[i].valid) clt_warn("%s is not usable: %s", (*list)[i].path, (*list)[i].why);
    return CLT_OK;
}

clt_status clt_ckpt_find_newest(clt_group *group, const char *folder, char **path) {
    clt_ckpt_info *list = NULL;
    char *found = NULL;
    int n = 0, skipped = 0;
    clt_status st =
        clt_ckpt_agree(group, clt_ckpt_rank(group) == 0 ? scan_and_warn(folder, &list, &n) : CLT_OK);
    while (st == CLT_OK && (st = candidate(group, list, n, skipped, &found)) == CLT_OK && found) {
        st = check_chunks(group, found);
        if (st == CLT_OK) break;
        if (st == CLT_BAD_DATA || st == CLT_IO) st = CLT_OK; /* try the one before it */
        clt_free(found);
        found = NULL;
        skipped++;
    }
    if (st == CLT_OK && !found && clt_ckpt_rank(group) == 0 && n > 0)
        st = clt_error(CLT_BAD_DATA,
                       "%s has %d checkpoint%s, but none is usable: restore one, move them elsewhere, or "
                       "start a new run with "
                       "autoresume: false (they are renamed and kept)",
                       folder, n, n == 1 ? "" : "s");
    st = clt_ckpt_agree(group, st);
    if (found && skipped) clt_warn("falling back to %s, the newest valid checkpoint", found);
    clt_ckpt_scan_free(list, n);
    if (st != CLT_OK) clt_free(found);
    CLT_TRY(st);
    *path = found;
    return CLT_OK;
}

bool clt_ckpt_is_hf_folder(const char *path) {
    return has_file(path, "config.json") &&
           (has_file(path, "model.safetensors") || has_file(path, "model.safetensors.index.json"));
}

enum { HINT_LIMIT = 4096 };

/* A hint file names a checkpoint in its folder. */
static clt_status follow_hint(const char *path, char **resolved) {
    char *text;
    CLT_TRY(clt_io_read_all(path, HINT_LIMIT, &text, NULL));
    text[strcspn(text, "\r\n")] = 0;
    char *dir = clt_path_dir(path), *target = clt_path_join(dir, text);
    bool usable = clt_path_is_safe(text) && has_file(target, CLT_MANIFEST);
    bool hint = clt_path_is_safe(text) && !strchr(text, '/') && *text;
    int seen = 0;
    clt_status st = CLT_OK;
    if (usable) {
        *resolved = clt_strdup(target);
    } else if (hint && (st = newest(dir, resolved, &seen)) == CLT_OK && *resolved) {
        clt_warn("%s names %s, which does not exist; using the newest checkpoint, %s", path, text, *resolved);
    } else if (st == CLT_OK) {
        st = clt_error(CLT_BAD_DATA, "%s is not a .safetensors file and names no checkpoint in its folder",
                       path);
    }
    clt_free(target);
    clt_free(dir);
    clt_free(text);
    return st;
}

/* PyTorch's own files are pickles: programs that run when they are read. */
static clt_status refuse_pickle(const char *path) {
    return clt_error(CLT_BAD_DATA,
                     "%s is a file of PyTorch, which is not read; convert it: python3 -c \"from transformers "
                     "import AutoModelForCausalLM as M; M.from_pretrained('FOLDER').save_pretrained('NEW')\"",
                     path);
}

/* Hint files may end with .pt, and are small. */
static bool is_pickle(const char *path, uint64_t bytes) {
    static const char *const endings[] = {".bin", ".pt", ".pth"};
    const size_t n = strlen(path);
    for (size_t i = 0; i < CLT_COUNT_OF(endings); i++) {
        const size_t k = strlen(endings[i]);
        if (n > k && !strcmp(path + n - k, endings[i])) return bytes > HINT_LIMIT || i == 0;
    }
    return false;
}

static clt_status check_no_pickle(const char *folder) {
    static const char *const files[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < CLT_COUNT_OF(files); i++) {
        char *path = clt_path_join(folder, files[i]);
        clt_status st = clt_io_is_file(path) ? refuse_pickle(path) : CLT_OK;
        clt_free(path);
        CLT_TRY(st);
    }
    return CLT_OK;
}

/* A folder that is neither a checkpoint nor a Hugging Face folder. */
static clt_status resolve_folder(const char *path, char **resolved) {
    int seen = 0;
    CLT_TRY(clt_universal_find(path, resolved));
    if (*resolved) return CLT_OK;
    CLT_TRY(newest(path, resolved, &seen));
    if (*resolved) return CLT_OK;
    CLT_TRY(clt_universal_refuse_shards(path));
    CLT_TRY(check_no_pickle(path));
    return clt_error(
        CLT_BAD_DATA, "%s has no usable checkpoint%s", path,
        seen ? "; run cltrain ckpt verify to see why"
        : has_file(path, "metrics.jsonl")
            ? "; its run saved none: set save_folder, and train again"
            : "; it is neither a checkpoint nor a Hugging Face folder (config.json, model.safetensors)");
}

static clt_status resolve(const char *path, char **resolved) {
    size_t n = strlen(path);
    clt_io_info info;
    CLT_TRY(clt_io_stat(path, &info));
    if (info.kind == CLT_IO_ABSENT)
        return clt_error(CLT_IO, "%s does not exist: name a checkpoint or a folder with weights", path);
    if (info.kind == CLT_IO_FOLDER && !has_file(path, CLT_MANIFEST) && !clt_ckpt_is_hf_folder(path))
        return resolve_folder(path, resolved);
    if (info.kind == CLT_IO_FILE && is_pickle(path, info.bytes)) return refuse_pickle(path);
    if (info.kind == CLT_IO_FILE && (n < 12 || strcmp(path + n - 12, ".safetensors")))
        return follow_hint(path, resolved);
    *resolved = clt_strdup(path);
    return CLT_OK;
}

clt_status clt_ckpt_resolve(clt_group *group, const char *path, char **resolved) {
    char *found = NULL;
    clt_status st = clt_ckpt_rank(group) == 0 ? resolve(path, &found) : CLT_OK;
    CLT_TRY(clt_ckpt_share_text(group, st, &found));
    *resolved = found;
    return CLT_OK;
}

/* --- before a run continues in a folder --- */

static clt_status step_aside(const clt_ckpt_commit_ops *commit, const char *folder, const clt_ckpt_info *c,
                             const char *run_id) {
    char *to;
    CLT_TRY(commit->set_aside(folder, c->name, run_id, &to));
    clt_info("%s (%s) is now %s", c->path, c->valid ? "later than the batch to resume at" : "not usable", to);
    clt_free(to);
    return CLT_OK;
}

static clt_status supersede(const char *folder, int64_t batch, const char *run_id) {
    const clt_ckpt_commit_ops *commit;
    clt_ckpt_info *list;
    int n, renamed = 0;
    if (!clt_io_is_dir(folder)) return CLT_OK;
    CLT_TRY(clt_ckpt_commit_of(folder, &commit));
    CLT_TRY(clt_ckpt_scan(folder, &list, &n));
    clt_status st = CLT_OK;
    for (int i = 0; i < n && st == CLT_OK; i++) {
        if (list[i].valid && list[i].batch <= batch) continue;
        st = step_aside(commit, folder, &list[i], run_id);
        renamed++;
    }
    if (st == CLT_OK && renamed) st = clt_io_sync_dir(folder);
    clt_ckpt_scan_free(list, n);
    return st;
}

clt_status clt_ckpt_supersede(clt_group *group, const char *folder, int64_t batch, const char *run_id) {
    return clt_ckpt_agree(group, clt_ckpt_rank(group) == 0 ? supersede(folder, batch, run_id) : CLT_OK);
}

static clt_status recover(const char *folder) {
    const clt_ckpt_commit_ops *commit;
    if (!clt_io_is_dir(folder)) return CLT_OK;
    CLT_TRY(clt_ckpt_commit_of(folder, &commit));
    return commit->recover(folder);
}

clt_status clt_ckpt_recover(clt_group *group, const char *folder) {
    return clt_ckpt_agree(group, clt_ckpt_rank(group) == 0 ? recover(folder) : CLT_OK);
}
