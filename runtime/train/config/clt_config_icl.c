/* icl_tasks and eval_gauntlet: in the configuration, or in a file that it names. */
#include "runtime/train/config/clt_config_internal.h"

/* A file of its own: {icl_tasks: [...]} or {eval_gauntlet: {...}}. */
typedef struct {
    clt_yaml *yaml;
    json_t *document; /* owned by the configuration */
} icl_file;

static char *place_in_file(void *ctx, const char *path) {
    return clt_yaml_place(ctx, path);
}

static clt_status load_file(clt_config *c, const char *path, icl_file *f) {
    CLT_TRY(clt_yaml_load(path, &f->yaml));
    CLT_TRY(clt_yaml_interpolate(f->yaml));
    CLT_TRY(clt_yaml_to_json(f->yaml, &f->document));
    if (!c->icl_documents) c->icl_documents = json_array();
    json_array_append_new(c->icl_documents, f->document);
    return json_is_object(f->document)
               ? CLT_OK
               : clt_error(CLT_BAD_CONFIG, "%s: a map with icl_tasks or eval_gauntlet is expected", path);
}

typedef clt_status (*read_fn)(clt_schema_reader *r, clt_config *c, const char *path, json_t *v);

static clt_status read_tasks(clt_schema_reader *r, clt_config *c, const char *path, json_t *v) {
    if (!json_is_array(v))
        return clt_schema_fail(r, path, "must be a list of tasks or the path of a YAML file, not %s",
                               clt_json_type_name(v));
    return clt_icl_tasks_read(r, path, v, c->icl_seq_len, c->device_eval_batch_size, &c->icl);
}

static clt_status read_gauntlet(clt_schema_reader *r, clt_config *c, const char *path, json_t *v) {
    c->gauntlet = clt_calloc(1, sizeof *c->gauntlet);
    return clt_gauntlet_read(r, path, v, c->gauntlet);
}

static clt_status read_file(clt_schema_reader *r, clt_config *c, const char *key, const char *path,
                            read_fn read) {
    icl_file f = {0};
    clt_status st = load_file(c, path, &f);
    if (st == CLT_OK) {
        clt_schema_reader own = *r;
        own.what = path;
        own.place = own.key_place = place_in_file;
        own.harmless = NULL;
        own.satisfied = NULL;
        own.ctx = f.yaml;
        st = read(&own, c, key, json_object_get(f.document, key));
    }
    clt_yaml_free(f.yaml);
    return st;
}

/* The value of KEY, or of KEY_str, which is a path; a string at KEY is a path, too. */
static clt_status read_either(clt_schema_reader *r, clt_config *c, const char *key, json_t *v,
                              const char *path, read_fn read) {
    if (v && path) {
        char *other = clt_format("%s_str", key);
        clt_status st = clt_config_fail_both(r, key, other, "use one of them");
        clt_free(other);
        return st;
    }
    if (json_is_string(v)) path = json_string_value(v);
    if (path) return read_file(r, c, key, path, read);
    return v ? read(r, c, key, v) : CLT_OK;
}

clt_status clt_config_resolve_icl(clt_schema_reader *r, clt_config_builder *b) {
    clt_config *c = &b->c;
    if (c->icl_seq_len == 0) c->icl_seq_len = c->max_seq_len;
    if (c->icl_seq_len > c->max_seq_len)
        return clt_schema_fail(r, "icl_seq_len", "is %lld, more than max_seq_len %lld",
                               (long long)c->icl_seq_len, (long long)c->max_seq_len);
    CLT_TRY(read_either(r, c, "icl_tasks", b->icl_tasks, b->icl_tasks_str, read_tasks));
    for (size_t i = 0; i < c->icl.n; i++)
        if (c->icl.task[i].max_seq_len > c->max_seq_len)
            return clt_schema_fail(r, "icl_tasks", "has a max_seq_len of %lld, more than max_seq_len %lld",
                                   (long long)c->icl.task[i].max_seq_len, (long long)c->max_seq_len);
    CLT_TRY(read_either(r, c, "eval_gauntlet", b->eval_gauntlet, b->eval_gauntlet_str, read_gauntlet));
    if (c->gauntlet && c->icl.n == 0)
        return clt_schema_fail(r, "eval_gauntlet", "needs icl_tasks, from which it takes its results");
    return CLT_OK;
}

void clt_config_free_icl(clt_config *c) {
    clt_icl_tasks_free(&c->icl);
    if (c->gauntlet) clt_gauntlet_free(c->gauntlet);
    clt_free(c->gauntlet);
    json_decref(c->icl_documents);
}
