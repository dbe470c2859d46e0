#include "runtime/checkpoint/clt_ckpt_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "cltrain checkpoint"

enum {
    MAX_DEPTH = 32,
    MAX_TENSORS = 1 << 20,
    MAX_NAME = 1024,
    MAX_ROLE = 64,
    MAX_FILES = 16384,
    TAIL = 45 /* ,\n"xxh3":"<32 digits>"}\n */
};
/* More elements than a file system can hold; keeps every later product far from overflow. */
#define MAX_ELEMENTS ((uint64_t)1 << 48)
/* A run continues to count from what is read: far from overflow, like the times of a configuration. */
static const int64_t MAX_COUNT = 1000000000000000000;

clt_checkpoint_state clt_checkpoint_state_default(void) {
    return (clt_checkpoint_state){.loss = NAN, .version = clt_version()};
}

/* --- the state's fields --- */

typedef enum {
    COUNT /* an integer >= 0 */,
    INTEGER,
    REAL,
    TEXT,
    LATER_TEXT /* a text that the first versions do not write */
} field_kind;

static const struct {
    const char *section, *key;
    field_kind kind;
    size_t offset;
} fields[] = {
#define FIELD(section, key, kind, member)                                                                    \
    { section, key, kind, offsetof(clt_checkpoint_state, member) }
    FIELD("timestamp", "epoch", COUNT, epoch),
    FIELD("timestamp", "batch", COUNT, batch),
    FIELD("timestamp", "sample", COUNT, sample),
    FIELD("timestamp", "token", COUNT, token),
    FIELD("timestamp", "batch_in_epoch", COUNT, batch_in_epoch),
    FIELD("timestamp", "sample_in_epoch", COUNT, sample_in_epoch),
    FIELD("timestamp", "token_in_epoch", COUNT, token_in_epoch),
    FIELD("timestamp", "train_seconds", REAL, train_seconds),
    FIELD("data", "epoch", COUNT, data_epoch),
    FIELD("data", "sample_in_epoch", COUNT, data_sample_in_epoch),
    FIELD("data", "num_canonical_nodes", COUNT, num_canonical_nodes),
    FIELD("data", "shuffle_seed", INTEGER, shuffle_seed),
    FIELD("data", "initial_physical_nodes", COUNT, initial_physical_nodes),
    FIELD("run", "name", TEXT, run_name),
    FIELD("run", "seed", INTEGER, seed),
    FIELD("run", "lanes", COUNT, lanes),
    FIELD("run", "optimizer", TEXT, optimizer),
    FIELD("run", "optimizer_step", COUNT, optimizer_step),
    FIELD("run", "loss", REAL, loss),
    FIELD("producer", "ranks", COUNT, ranks),
    FIELD("producer", "device", TEXT, device),
    FIELD("producer", "driver", TEXT, driver),
    FIELD("producer", "version", TEXT, version),
    FIELD("producer", "variants", TEXT, variants),
    FIELD("producer", "numerics", LATER_TEXT, numerics),
#undef FIELD
};
static const char *const sections[] = {"timestamp", "data", "run", "producer"};

static void add_text(clt_str *b, const char *s) {
    if (s)
        clt_json_escape(b, s);
    else
        clt_str_add(b, "null");
}

static void add_real(clt_str *b, double v) {
    if (isfinite(v))
        clt_str_addf(b, v == floor(v) && fabs(v) < 1e15 ? "%.1f" : "%.17g", v);
    else
        clt_str_add(b, "null");
}

static void add_field(clt_str *b, size_t i, const clt_checkpoint_state *s) {
    const char *at = (const char *)s + fields[i].offset;
    clt_str_addf(b, "\"%s\":", fields[i].key);
    if (fields[i].kind == TEXT || fields[i].kind == LATER_TEXT)
        add_text(b, *(const char *const *)(const void *)at);
    else if (fields[i].kind == REAL)
        add_real(b, *(const double *)(const void *)at);
    else
        clt_str_addf(b, "%lld", (long long)*(const int64_t *)(const void *)at);
}

/* One line per section: {"epoch":0,...}. */
static void add_state(clt_str *b, const clt_checkpoint_state *s) {
    for (size_t k = 0; k < CLT_COUNT_OF(sections); k++) {
        const char *comma = "";
        clt_str_addf(b, "\"%s\":{", sections[k]);
        for (size_t i = 0; i < CLT_COUNT_OF(fields); i++) {
            if (strcmp(fields[i].section, sections[k])) continue;
            clt_str_add(b, comma);
            add_field(b, i, s);
            comma = ",";
        }
        clt_str_add(b, "},\n");
    }
    clt_str_add(b, "\"numbers\":{");
    for (int i = 0; i < s->number_count; i++) {
        if (i) clt_str_add(b, ",");
        clt_json_escape(b, s->numbers[i].name);
        clt_str_add(b, ":");
        add_real(b, s->numbers[i].value);
    }
    clt_str_add(b, "},\n");
}

/* --- writing --- */

clt_status clt_manifest_head(const char *name, const char *run_id, double saved,
                             const clt_checkpoint_state *s, clt_str *out) {
    /* An escaped byte takes at most six. */
    size_t room = 16384 + 6 * (strlen(name) + (s->config ? strlen(s->config) : 0)) +
                  2 * (s->model ? strlen(s->model) : 0);
    if (!clt_str_try_reserve(out, room)) return clt_no_memory("the manifest of a checkpoint", room);
    clt_str_add(out, "{\"format\":\"" FORMAT "\",\n\"version\":1,\n\"name\":");
    clt_json_escape(out, name);
    clt_str_addf(out, ",\n\"run_id\":\"%s\",\n\"saved\":%.6f,\n", run_id, saved);
    add_state(out, s);
    clt_str_add(out, "\"model\":");
    if (s->model) {
        json_t *model;
        char *text;
        CLT_TRY(clt_json_parse(s->model, strlen(s->model), MAX_DEPTH - 2, "model configuration", &model));
        clt_status st =
            json_is_object(model)
                ? clt_json_dump(model, "the model configuration", &text)
                : clt_error(CLT_FAIL, "checkpoint %s: the model configuration is not a JSON object", name);
        json_decref(model);
        CLT_TRY(st);
        clt_str_add(out, text);
        clt_free(text);
    } else {
        clt_str_add(out, "null");
    }
    clt_str_add(out, ",\n\"config\":");
    add_text(out, s->config);
    return CLT_OK;
}

clt_status clt_manifest_lists(const clt_man_tensor *tensor, size_t tensors, const clt_man_file *file,
                              size_t files, const clt_man_chunk *chunk, size_t chunks, clt_str *out) {
    /* At most: a row of chunks has six numbers of 20 digits and a hash; an escaped byte takes six. */
    size_t room = 4096 + 512 * files + 192 * chunks;
    for (size_t i = 0; i < tensors; i++)
        room += 256 + 21 * CLT_MAX_DIMS + 6 * (strlen(tensor[i].role) + strlen(tensor[i].name));
    if (!clt_str_try_reserve(out, room)) return clt_no_memory("the manifest of a checkpoint", room);
    clt_str_add(out, ",\n\"tensors\":[");
    for (size_t i = 0; i < tensors; i++) {
        clt_str_addf(out, "%s\n{\"role\":\"%s\",\"name\":", i ? "," : "", tensor[i].role);
        clt_json_escape(out, tensor[i].name);
        clt_str_add(out, ",\"dtype\":\"f32\",\"shape\":[");
        for (int d = 0; d < tensor[i].dims; d++)
            clt_str_addf(out, "%s%lld", d ? "," : "", (long long)tensor[i].shape[d]);
        clt_str_add(out, "]}");
    }
    clt_str_add(out, "],\n\"files\":[");
    for (size_t i = 0; i < files; i++)
        clt_str_addf(out, "%s\n{\"name\":\"%s\",\"bytes\":%llu}", i ? "," : "", file[i].name,
                     (unsigned long long)file[i].bytes);
    clt_str_add(out, "],\n\"chunks\":[");
    for (size_t i = 0; i < chunks; i++) {
        const clt_man_chunk *c = &chunk[i];
        char hex[33];
        clt_hash_hex(c->at.hash, hex);
        clt_str_addf(out, "%s\n[%u,%llu,%u,%u,%llu,%llu,\"%s\"]", i ? "," : "", c->tensor,
                     (unsigned long long)c->first, c->count, c->file, (unsigned long long)c->at.offset,
                     (unsigned long long)c->at.stored, hex);
    }
    clt_str_add(out, "]");
    return CLT_OK;
}

void clt_manifest_seal(clt_str *text) {
    char hex[33];
    clt_hash_hex(clt_hash(text->s, text->len), hex);
    clt_str_addf(text, ",\n\"xxh3\":\"%s\"}\n", hex);
}

/* --- reading --- */

/* The last 45 bytes hold the hash of everything before them. */
static clt_status check_seal(const char *text, size_t bytes, const char *what) {
    char hex[33], want[TAIL + 1];
    if (bytes < TAIL) return clt_error(CLT_BAD_DATA, "%s: %zu bytes are too few for a manifest", what, bytes);
    clt_hash_hex(clt_hash(text, bytes - TAIL), hex);
    snprintf(want, sizeof want, ",\n\"xxh3\":\"%s\"}\n", hex);
    if (memcmp(text + bytes - TAIL, want, TAIL))
        return clt_error(CLT_BAD_DATA, "%s is damaged or cut off: its own hash does not match", what);
    return CLT_OK;
}

static clt_status read_field(json_t *section, size_t i, const char *what, clt_checkpoint_state *s) {
    json_t *v = json_object_get(section, fields[i].key);
    char *at = (char *)s + fields[i].offset;
    bool ok = v != NULL || fields[i].kind == LATER_TEXT;
    if (!v) {
    } else if (fields[i].kind == TEXT || fields[i].kind == LATER_TEXT) {
        ok = json_is_string(v) || json_is_null(v);
        *(const char **)(void *)at = json_string_value(v);
    } else if (fields[i].kind == REAL) {
        ok = json_is_number(v) || json_is_null(v);
        *(double *)(void *)at = json_is_number(v) ? json_number_value(v) : NAN;
    } else {
        ok = json_is_integer(v) && (fields[i].kind == INTEGER ||
                                    (json_integer_value(v) >= 0 && json_integer_value(v) <= MAX_COUNT));
        *(int64_t *)(void *)at = json_integer_value(v);
    }
    if (ok) return CLT_OK;
    return clt_error(CLT_BAD_DATA, "%s: %s.%s is missing, out of range or has a wrong type", what,
                     fields[i].section, fields[i].key);
}

static clt_status read_numbers(clt_manifest *m, json_t *o, const char *what) {
    const char *key;
    json_t *v;
    m->numbers = clt_try_calloc(json_object_size(o), sizeof *m->numbers);
    if (!m->numbers) return clt_no_memory(what, json_object_size(o) * sizeof *m->numbers);
    json_object_foreach(o, key, v) {
        if (!json_is_number(v) && !json_is_null(v))
            return clt_error(CLT_BAD_DATA, "%s: numbers.%s is not a number", what, key);
        m->numbers[m->state.number_count++] =
            (clt_ckpt_number){key, json_is_null(v) ? NAN : json_number_value(v)};
    }
    m->state.numbers = m->numbers;
    return CLT_OK;
}

static clt_status read_state(clt_manifest *m, const char *what) {
    json_t *o, *numbers, *model = json_object_get(m->root, "model"),
                         *config = json_object_get(m->root, "config");
    for (size_t i = 0; i < CLT_COUNT_OF(fields); i++) {
        CLT_TRY(clt_json_get_obj(m->root, fields[i].section, what, &o));
        CLT_TRY(read_field(o, i, what, &m->state));
    }
    CLT_TRY(clt_json_get_obj(m->root, "numbers", what, &numbers));
    CLT_TRY(read_numbers(m, numbers, what));
    if (json_is_object(model)) {
        CLT_TRY(clt_json_dump(model, what, &m->model));
        m->state.model = m->model;
    } else if (!json_is_null(model)) {
        return clt_error(CLT_BAD_DATA, "%s: 'model' must be an object or null", what);
    }
    if (!json_is_string(config) && !json_is_null(config))
        return clt_error(CLT_BAD_DATA, "%s: 'config' must be a text or null", what);
    m->state.config = json_string_value(config);
    return CLT_OK;
}

static bool valid_word(const char *s, size_t limit) {
    size_t n = strlen(s);
    return n > 0 && n <= limit && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

static clt_status read_shape(json_t *shape, const char *what, clt_man_tensor *t) {
    if (json_array_size(shape) > CLT_MAX_DIMS)
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' has %zu dimensions, at most %d are allowed", what,
                         t->name, json_array_size(shape), CLT_MAX_DIMS);
    t->dims = (int)json_array_size(shape);
    t->count = 1;
    for (int d = 0; d < t->dims; d++) {
        json_t *v = json_array_get(shape, (size_t)d);
        t->shape[d] = json_integer_value(v);
        if (!json_is_integer(v) || t->shape[d] < 1 || (uint64_t)t->shape[d] > MAX_ELEMENTS / t->count)
            return clt_error(CLT_BAD_DATA, "%s: tensor '%s': dimension %d has an unusable size", what,
                             t->name, d);
        t->count *= (uint64_t)t->shape[d];
    }
    return CLT_OK;
}

static clt_status read_tensor(json_t *o, const char *what, clt_man_tensor *t) {
    const char *role, *name, *dtype;
    json_t *shape;
    CLT_TRY(clt_json_get_str(o, "role", what, &role));
    CLT_TRY(clt_json_get_str(o, "name", what, &name));
    CLT_TRY(clt_json_get_str(o, "dtype", what, &dtype));
    CLT_TRY(clt_json_get_arr(o, "shape", what, &shape));
    if (!valid_word(role, MAX_ROLE))
        return clt_error(CLT_BAD_DATA, "%s: '%s' is not a usable role", what, role);
    if (!*name || strlen(name) > MAX_NAME)
        return clt_error(CLT_BAD_DATA, "%s: a tensor name is empty or longer than %d bytes", what, MAX_NAME);
    if (strcmp(dtype, "f32"))
        return clt_error(CLT_BAD_DATA, "%s: tensor '%s' has dtype '%s'; this version reads f32", what, name,
                         dtype);
    t->role = clt_strdup(role);
    t->name = clt_strdup(name);
    return read_shape(shape, what, t);
}

static int by_role_and_name(const void *a, const void *b) {
    const clt_man_tensor *x = *(const clt_man_tensor *const *)a, *y = *(const clt_man_tensor *const *)b;
    int c = strcmp(x->role, y->role);
    return c ? c : strcmp(x->name, y->name);
}

static clt_status check_unique(const clt_manifest *m, const char *what) {
    const clt_man_tensor **sorted = clt_try_calloc(m->tensors, sizeof *sorted);
    if (!sorted) return clt_no_memory(what, m->tensors * sizeof *sorted);
    clt_status st = CLT_OK;
    for (size_t i = 0; i < m->tensors; i++) sorted[i] = &m->tensor[i];
    if (m->tensors > 1) qsort(sorted, m->tensors, sizeof *sorted, by_role_and_name);
    for (size_t i = 1; i < m->tensors && st == CLT_OK; i++)
        if (by_role_and_name(&sorted[i - 1], &sorted[i]) == 0)
            st = clt_error(CLT_BAD_DATA, "%s: tensor '%s' (%s) is listed twice", what, sorted[i]->name,
                           sorted[i]->role);
    clt_free(sorted);
    return st;
}

static clt_status read_tensors(clt_manifest *m, const char *what) {
    json_t *list;
    CLT_TRY(clt_json_get_arr(m->root, "tensors", what, &list));
    if (json_array_size(list) > MAX_TENSORS)
        return clt_error(CLT_BAD_DATA, "%s lists %zu tensors, at most %d are allowed", what,
                         json_array_size(list), MAX_TENSORS);
    m->tensor = clt_try_calloc(json_array_size(list), sizeof *m->tensor);
    if (!m->tensor) return clt_no_memory(what, json_array_size(list) * sizeof *m->tensor);
    for (size_t i = 0; i < json_array_size(list); i++) {
        m->tensors = i + 1;
        CLT_TRY(read_tensor(json_array_get(list, i), what, &m->tensor[i]));
    }
    return check_unique(m, what);
}

static clt_status read_files(clt_manifest *m, const char *what) {
    json_t *list;
    CLT_TRY(clt_json_get_arr(m->root, "files", what, &list));
    if (json_array_size(list) > MAX_FILES)
        return clt_error(CLT_BAD_DATA, "%s lists %zu files, at most %d are allowed", what,
                         json_array_size(list), MAX_FILES);
    m->file = clt_try_calloc(json_array_size(list), sizeof *m->file);
    if (!m->file) return clt_no_memory(what, json_array_size(list) * sizeof *m->file);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name;
        int64_t bytes;
        CLT_TRY(clt_json_get_str(json_array_get(list, i), "name", what, &name));
        CLT_TRY(clt_json_get_i64(json_array_get(list, i), "bytes", what, &bytes));
        if (!clt_path_is_safe(name) || strchr(name, '/') || strlen(name) > 255)
            return clt_error(CLT_BAD_DATA, "%s: '%s' is not a file name inside the checkpoint", what, name);
        for (size_t k = 0; k < i; k++)
            if (!strcmp(name, m->file[k].name))
                return clt_error(CLT_BAD_DATA, "%s: file '%s' is listed twice", what, name);
        if (bytes < 0) return clt_error(CLT_BAD_DATA, "%s: file '%s' has a negative size", what, name);
        m->file[i] = (clt_man_file){clt_strdup(name), (uint64_t)bytes};
        m->files = i + 1;
    }
    return CLT_OK;
}

/* [tensor, first, count, file, offset, stored, "hash"] */
static clt_status read_chunk(const clt_manifest *m, json_t *row, size_t i, const char *what,
                             clt_man_chunk *c) {
    int64_t v[6];
    const char *hex = json_string_value(json_array_get(row, 6));
    bool ok = json_array_size(row) == 7 && hex && clt_hash_parse(hex, &c->at.hash) == 0;
    for (size_t k = 0; k < 6; k++) {
        json_t *n = json_array_get(row, k);
        ok = ok && json_is_integer(n) && json_integer_value(n) >= 0;
        v[k] = json_integer_value(n);
    }
    ok = ok && (uint64_t)v[0] < m->tensors && (uint64_t)v[3] < m->files && v[2] >= 1 &&
         v[2] <= CLT_CKPT_CHUNK && v[5] >= 1 && (uint64_t)v[5] <= clt_chunk_stored_bound((size_t)v[2]) &&
         (uint64_t)v[4] <= m->file[v[3]].bytes && (uint64_t)v[5] <= m->file[v[3]].bytes - (uint64_t)v[4];
    if (!ok) return clt_error(CLT_BAD_DATA, "%s: row %zu of 'chunks' is invalid", what, i);
    c->tensor = (uint32_t)v[0];
    c->first = (uint64_t)v[1];
    c->count = (uint32_t)v[2];
    c->file = (uint32_t)v[3];
    c->at.offset = (uint64_t)v[4];
    c->at.stored = (uint64_t)v[5];
    return CLT_OK;
}

/* The chunks of every tensor are consecutive and cover it; the rows are in tensor order. */
static clt_status check_cover(clt_manifest *m, const char *what) {
    size_t at = 0;
    for (size_t i = 0; i < m->tensors; i++) {
        clt_man_tensor *t = &m->tensor[i];
        uint64_t have = 0;
        t->first_chunk = at;
        for (; have < t->count && at < m->chunks && m->chunk[at].tensor == i && m->chunk[at].first == have;
             at++)
            have += m->chunk[at].count;
        if (have != t->count)
            return clt_error(CLT_BAD_DATA,
                             "%s: the chunks of tensor '%s' (%s) do not cover it: %llu of %llu elements",
                             what, t->name, t->role, (unsigned long long)have, (unsigned long long)t->count);
        t->chunks = (int)(at - t->first_chunk);
    }
    if (at != m->chunks) return clt_error(CLT_BAD_DATA, "%s lists chunks beyond its tensors", what);
    return CLT_OK;
}

static int by_place(const void *a, const void *b) {
    const clt_man_chunk *x = *(const clt_man_chunk *const *)a, *y = *(const clt_man_chunk *const *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->at.offset < y->at.offset ? -1 : x->at.offset > y->at.offset;
}

/* Every byte of a data file is in a chunk, so that the chunks' hashes cover the files. */
static clt_status check_files(const clt_manifest *m, const char *what) {
    const clt_man_chunk **sorted = clt_try_calloc(m->chunks, sizeof *sorted);
    if (!sorted) return clt_no_memory(what, m->chunks * sizeof *sorted);
    clt_status st = CLT_OK;
    size_t at = 0;
    for (size_t i = 0; i < m->chunks; i++) sorted[i] = &m->chunk[i];
    if (m->chunks > 1) qsort(sorted, m->chunks, sizeof *sorted, by_place);
    for (size_t f = 0; f < m->files && st == CLT_OK; f++) {
        uint64_t end = 0;
        for (; at < m->chunks && sorted[at]->file == f && sorted[at]->at.offset == end; at++)
            end += sorted[at]->at.stored;
        if (end != m->file[f].bytes || (at < m->chunks && sorted[at]->file == f))
            st = clt_error(CLT_BAD_DATA, "%s: the chunks of file '%s' leave a hole or overlap at byte %llu",
                           what, m->file[f].name, (unsigned long long)end);
    }
    clt_free(sorted);
    return st;
}

static clt_status read_chunks(clt_manifest *m, const char *what) {
    json_t *list;
    CLT_TRY(clt_json_get_arr(m->root, "chunks", what, &list));
    m->chunks = json_array_size(list);
    m->chunk = clt_try_calloc(m->chunks, sizeof *m->chunk);
    if (!m->chunk) return clt_no_memory(what, m->chunks * sizeof *m->chunk);
    for (size_t i = 0; i < m->chunks; i++)
        CLT_TRY(read_chunk(m, json_array_get(list, i), i, what, &m->chunk[i]));
    CLT_TRY(check_cover(m, what));
    CLT_TRY(check_files(m, what));
    json_object_del(m->root, "chunks"); /* the largest part, and no longer needed as JSON */
    return CLT_OK;
}

static clt_status read_root(clt_manifest *m, const char *what) {
    static const double year_10000 = 253402300800.0; /* later times have no printable date */
    const char *format, *name, *run_id;
    int64_t version;
    if (!json_is_object(m->root)) return clt_error(CLT_BAD_DATA, "%s: not a JSON object", what);
    CLT_TRY(clt_json_get_str(m->root, "format", what, &format));
    CLT_TRY(clt_json_get_i64(m->root, "version", what, &version));
    if (strcmp(format, FORMAT))
        return clt_error(CLT_BAD_DATA, "%s: format is '%s', not '" FORMAT "'", what, format);
    if (version != CLT_CKPT_VERSION)
        return clt_error(CLT_BAD_DATA,
                         "%s has format version %lld; this program reads version %d: use a newer cltrain",
                         what, (long long)version, CLT_CKPT_VERSION);
    CLT_TRY(clt_json_get_str(m->root, "name", what, &name));
    CLT_TRY(clt_json_get_str(m->root, "run_id", what, &run_id));
    if (strlen(run_id) != CLT_RUN_ID_BYTES - 1 || strspn(run_id, "0123456789abcdef") != CLT_RUN_ID_BYTES - 1)
        return clt_error(CLT_BAD_DATA, "%s: run_id must be 16 hex digits", what);
    memcpy(m->run_id, run_id, CLT_RUN_ID_BYTES);
    double saved = json_number_value(json_object_get(m->root, "saved"));
    m->saved = saved > 0 && saved < year_10000 ? saved : 0;
    CLT_TRY(read_state(m, what));
    CLT_TRY(read_tensors(m, what));
    CLT_TRY(read_files(m, what));
    return read_chunks(m, what);
}

clt_status clt_manifest_parse(const char *text, size_t bytes, const char *what, clt_manifest **out) {
    CLT_TRY(check_seal(text, bytes, what));
    clt_manifest *m = clt_calloc(1, sizeof *m);
    m->state = clt_checkpoint_state_default();
    m->manifest_bytes = bytes;
    clt_status st = clt_json_parse(text, bytes, MAX_DEPTH, what, &m->root);
    if (st == CLT_OK) st = read_root(m, what);
    if (st != CLT_OK) {
        clt_manifest_free(m);
        return st;
    }
    *out = m;
    return CLT_OK;
}

/* The size of the file, opened as a reader opens it: a file that cannot be read must not count as valid. */
static clt_status plain_size(const char *path, uint64_t *bytes) {
    clt_file *f;
    CLT_TRY(clt_file_open(path, CLT_IO_READ_PLAIN, &f));
    clt_status st = clt_file_size(f, bytes), closed = clt_file_close(f);
    return st == CLT_OK ? closed : st;
}

static clt_status check_sizes(const char *folder, const clt_manifest *m) {
    clt_status st = CLT_OK;
    for (size_t i = 0; i < m->files && st == CLT_OK; i++) {
        char *path = clt_path_join(folder, m->file[i].name);
        clt_io_info info;
        uint64_t bytes = 0;
        st = clt_io_stat(path, &info);
        if (st == CLT_OK && info.kind != CLT_IO_FILE)
            st = clt_error(CLT_BAD_DATA, "%s is missing; the manifest lists it", path);
        if (st == CLT_OK) st = plain_size(path, &bytes);
        if (st == CLT_OK && bytes != m->file[i].bytes)
            st = clt_error(CLT_BAD_DATA, "%s has %llu bytes, the manifest says %llu", path,
                           (unsigned long long)bytes, (unsigned long long)m->file[i].bytes);
        clt_free(path);
    }
    return st;
}

clt_status clt_manifest_load(const char *folder, bool sizes, clt_manifest **out) {
    char *path = clt_path_join(folder, CLT_MANIFEST), *text = NULL;
    size_t bytes;
    clt_manifest *m = NULL;
    clt_status st = clt_io_read_all(path, CLT_MANIFEST_LIMIT, &text, &bytes);
    if (st == CLT_OK) st = clt_manifest_parse(text, bytes, path, &m);
    if (st == CLT_OK && sizes) st = check_sizes(folder, m);
    clt_free(text);
    clt_free(path);
    if (st != CLT_OK) {
        clt_manifest_free(m);
        return st;
    }
    *out = m;
    return CLT_OK;
}

void clt_manifest_free(clt_manifest *m) {
    if (!m) return;
    for (size_t i = 0; i < m->tensors; i++) {
        clt_free(m->tensor[i].role);
        clt_free(m->tensor[i].name);
    }
    for (size_t i = 0; i < m->files; i++) clt_free(m->file[i].name);
    clt_free(m->tensor);
    clt_free(m->file);
    clt_free(m->chunk);
    clt_free(m->numbers);
    clt_free(m->model);
    if (m->root) json_decref(m->root);
    clt_free(m);
}
