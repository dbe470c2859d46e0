/* cltrain ckpt show. */
#include <stdlib.h>
#include <string.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"
#include "runtime/checkpoint/clt_safetensors.h"

enum { MANIFEST_LIMIT = 512 << 20, MAX_DEPTH = 32 };

/* --- safetensors --- */

/* Prints a text of the file as a JSON string. */
static clt_status print_string(const char *text) {
    clt_str b = {0};
    const size_t room = 6 * strlen(text) + 2; /* an escaped byte takes at most six */
    if (!clt_str_try_reserve(&b, room)) return clt_no_memory("a text of the file", room);
    clt_json_escape(&b, text);
    fputs(b.s, stdout);
    clt_str_free(&b);
    return CLT_OK;
}

static clt_status safetensors_json(const clt_safetensors *s) {
    int meta = clt_safetensors_meta_count(s), n = clt_safetensors_count(s);
    printf("{\"metadata\":{");
    for (int i = 0; i < meta; i++) {
        const char *key, *value;
        clt_safetensors_meta_at(s, i, &key, &value);
        if (i) putchar(',');
        CLT_TRY(print_string(key));
        putchar(':');
        CLT_TRY(print_string(value));
    }
    printf("},\n\"tensors\":[");
    for (int i = 0; i < n; i++) {
        const clt_st_tensor *t = clt_safetensors_at(s, i);
        printf(i ? ",\n{\"name\":" : "\n{\"name\":");
        CLT_TRY(print_string(t->name));
        printf(",\"dtype\":\"%s\",\"shape\":[", clt_st_dtype_name(t->dtype));
        for (int d = 0; d < t->dims; d++) printf("%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
        printf("],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->begin, (unsigned long long)t->end);
    }
    puts("]}");
    return CLT_OK;
}

static void safetensors_table(const clt_safetensors *s) {
    int meta = clt_safetensors_meta_count(s), n = clt_safetensors_count(s);
    for (int i = 0; i < meta; i++) {
        const char *key, *value;
        clt_safetensors_meta_at(s, i, &key, &value);
        printf("metadata %s: %s\n", key, value);
    }
    printf("%-52s %-8s %-24s %12s %12s\n", "tensor", "dtype", "shape", "begin", "end");
    for (int i = 0; i < n; i++) {
        const clt_st_tensor *t = clt_safetensors_at(s, i);
        clt_str shape = {0};
        clt_str_add(&shape, "[");
        for (int d = 0; d < t->dims; d++)
            clt_str_addf(&shape, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
        clt_str_add(&shape, "]");
        printf("%-52s %-8s %-24s %12llu %12llu\n", t->name, clt_st_dtype_name(t->dtype), shape.s,
               (unsigned long long)t->begin, (unsigned long long)t->end);
        clt_str_free(&shape);
    }
    printf("%d tensors\n", n);
}

static clt_status show_safetensors(const char *path, bool json) {
    clt_safetensors *s;
    clt_status st = CLT_OK;
    CLT_TRY(clt_safetensors_open(path, &s));
    if (json)
        st = safetensors_json(s);
    else
        safetensors_table(s);
    clt_safetensors_close(s);
    return st;
}

/* --- checkpoints and Hugging Face folders --- */

/* A verified manifest without its list of chunks. */
static clt_status manifest(const char *folder, json_t **out) {
    char *path = clt_path_join(folder, "manifest.json");
    clt_status st = clt_json_load(path, MANIFEST_LIMIT, MAX_DEPTH, out);
    if (st == CLT_OK) {
        json_object_del(*out, "chunks");
        json_object_del(*out, "xxh3"); /* the hash of the whole text */
    }
    clt_free(path);
    return st;
}

/* Length of NAME in "NAME.0", "NAME.1" ...: a list's elements; 0 for other keys. */
static size_t list_name(const char *key) {
    const char *dot = strrchr(key, '.');
    bool element = dot && dot[1] && strspn(dot + 1, "0123456789") == strlen(dot + 1);
    return element ? (size_t)(dot - key) : 0;
}

/* A list is one line, printed at its first element. */
static void print_list(const char *prefix, json_t *o, const char *first, size_t length) {
    const char *key;
    json_t *v;
    int n = 0;
    json_object_foreach(o, key, v) n += list_name(key) == length && !strncmp(key, first, length);
    char *name = clt_format("%s.%.*s", prefix, (int)length, first);
    printf("%-32s %d numbers (--json has them)\n", name, n);
    clt_free(name);
}

static void print_members(const char *prefix, json_t *o) {
    const char *key;
    json_t *v;
    json_object_foreach(o, key, v) {
        const size_t length = list_name(key);
        if (length && !strcmp(key + length, ".0")) print_list(prefix, o, key, length);
        if (length) continue;
        char *name = clt_format("%s.%s", prefix, key), *text = json_dumps(v, JSON_ENCODE_ANY);
        printf("%-32s %s\n", name, json_is_string(v) ? json_string_value(v) : text ? text : "?");
        clt_free(name);
        clt_free(text);
    }
}

static void print_tensors(const clt_weight_source *s) {
    uint64_t elements = 0, stored = 0;
    int n = clt_weight_source_count(s);
    char a[32], b[32];
    printf("%-52s %-12s %-20s %12s %7s %12s\n", "tensor", "role", "shape", "elements", "chunks", "stored");
    for (int i = 0; i < n; i++) {
        clt_ckpt_tensor t;
        char shape[96];
        clt_weight_source_at(s, i, &t);
        printf("%-52s %-12s %-20s %12llu %7d %12llu\n", t.name, t.role, ckpt_shape(&t, shape),
               (unsigned long long)t.count, t.chunks, (unsigned long long)t.stored);
        elements += t.count;
        stored += t.stored;
    }
    printf("%d tensors, %s numbers, %s stored\n", n, clt_human_count((double)elements, a),
           clt_human_bytes((double)stored, b));
}

static clt_status show_checkpoint(const clt_weight_source *s, bool json, bool config) {
    static const char *const sections[] = {"timestamp", "data", "run", "producer", "numbers", "model"};
    json_t *root;
    CLT_TRY(manifest(clt_weight_source_path(s), &root));
    if (json) {
        json_dumpf(root, stdout, JSON_INDENT(1));
        puts("");
    } else if (config) {
        const char *text = json_string_value(json_object_get(root, "config"));
        fputs(text ? text : "", stdout);
    } else {
        printf("%-32s %s\n", "checkpoint", clt_weight_source_path(s));
        for (size_t i = 0; i < CLT_COUNT_OF(sections); i++)
            print_members(sections[i], json_object_get(root, sections[i]));
        puts("");
        print_tensors(s);
    }
    json_decref(root);
    return CLT_OK;
}

/* Files of other programs; a universal checkpoint may have no configuration of the model. */
static clt_status show_folder(const clt_weight_source *s, bool json) {
    json_t *model = json_null();
    const char *text = clt_weight_source_model(s);
    if (text) CLT_TRY(clt_json_parse(text, strlen(text), MAX_DEPTH, clt_weight_source_path(s), &model));
    if (!json) {
        if (text) print_members("model", model);
        if (text) puts("");
        print_tensors(s);
        json_decref(model);
        return CLT_OK;
    }
    json_t *tensors = json_array(), *root = json_pack("{s:o s:o}", "model", model, "tensors", tensors);
    for (int i = 0; i < clt_weight_source_count(s); i++) {
        clt_ckpt_tensor t;
        clt_weight_source_at(s, i, &t);
        json_t *shape = json_array();
        for (int d = 0; d < t.dims; d++) json_array_append_new(shape, json_integer(t.shape[d]));
        json_array_append_new(tensors,
                              json_pack("{s:s s:s s:o}", "name", t.name, "role", t.role, "shape", shape));
    }
    json_dumpf(root, stdout, JSON_INDENT(1));
    puts("");
    json_decref(root);
    return CLT_OK;
}

static clt_status show(const char *path, bool json, bool config) {
    clt_weight_source *s;
    size_t n = strlen(path);
    if (n >= 12 && !strcmp(path + n - 12, ".safetensors") && !clt_io_is_dir(path))
        return show_safetensors(path, json);
    CLT_TRY(clt_weight_source_open(path, &s));
    clt_status st = clt_weight_source_checkpoint(s) ? show_checkpoint(s, json, config) : show_folder(s, json);
    clt_weight_source_close(s);
    return st;
}

int ckpt_show(int argc, char **argv) {
    bool json = false, config = false;
    clt_option options[] = {
        {"json", 0, CLT_OPT_FLAG, &json, NULL, "one JSON object instead of the table"},
        {"config", 0, CLT_OPT_FLAG, &config, NULL, "only the saved configuration of the run"}};
    clt_command c = {
        "cltrain ckpt show",
        "SOURCE",
        "Shows the state and the tensors of a checkpoint (or the newest one of a folder), the tensors of a "
        "Hugging\n"
        "Face folder, of a universal checkpoint of DeepSpeed or of a .safetensors file. Exit code 65 and the "
        "reason for a file that is not valid.",
        "cltrain ckpt show runs/my-run\ncltrain ckpt show runs/my-run/ep0-ba100 --config > again.yaml\n"
        "cltrain ckpt show model.safetensors --json\n",
        options,
        CLT_COUNT_OF(options),
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 1, &rest);
    if (code >= 0) return code;
    clt_status st = show(rest.v[0], json, config);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}
