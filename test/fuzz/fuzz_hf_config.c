/* Hostile config.json files: any bytes on the way from text to a model's configuration, its parameters and
 * its weight map. What is accepted must be stored by checkpoints as a configuration that means the same, and
 * every tensor of the model must be made of tensors of files, whose shapes hold what the parts read.
 *
 * With a fuzzer:   clang -fsanitize=fuzzer,address ... test/fuzz/fuzz_hf_config.c build/libcltrain.a
 * Without one (-DFUZZ_REPLAY): fuzz_hf_config FILE ... feeds each file, and then `-n N` mutations of each. */
#include <stdlib.h>
#include <string.h>

#include "runtime/model/clt_model.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) must(condition, #condition)
static void must(bool holds, const char *condition) {
    if (holds) return;
    fprintf(stderr, "does not hold: %s (%s)\n", condition, clt_last_error());
    abort();
}

/* Rows of the part lie inside both tensors. */
static void check_part(const clt_slab_table *t, const clt_weight_map *m, const clt_map_part *p) {
    MUST(p->file >= 0 && p->file < m->files && p->tensor >= 0 && p->tensor < t->n);
    const clt_slab_entry *e = &t->entry[p->tensor];
    const clt_map_file *f = &m->file[p->file];
    const int64_t last = (p->rows - 1) / p->block * p->stride + p->offset + (p->rows - 1) % p->block;
    MUST(p->rows > 0 && p->block > 0 && p->first >= 0 && p->first + p->rows <= e->shape[0]);
    MUST(f->dims == e->dims && p->cols == (e->dims > 1 ? e->shape[1] : 1));
    if (p->transposed)
        MUST(f->shape[0] == e->shape[1] && f->shape[1] == e->shape[0]);
    else
        MUST(last < f->shape[0] && (f->dims == 1 || f->shape[1] == p->cols));
}

static void check_map(const clt_model_config *c) {
    clt_slab_table t = {0};
    clt_weight_map *m;
    MUST(clt_model_table(c, &t) == CLT_OK);
    MUST(clt_model_weight_map(c, &t, &m) == CLT_OK);
    int64_t *rows = clt_calloc((size_t)t.n, sizeof *rows);
    for (int i = 0; m && i < m->parts; i++) {
        check_part(&t, m, &m->part[i]);
        rows[m->part[i].tensor] += m->part[i].rows;
    }
    for (int i = 0; m && i < t.n; i++) MUST(rows[i] == t.entry[i].shape[0]);
    clt_free(rows);
    clt_weight_map_free(m);
    clt_slab_table_free(&t);
}

static char *text_of(const clt_model_config *c) {
    json_t *o = clt_model_config_to_json(c);
    char *text = json_dumps(o, JSON_SORT_KEYS);
    json_decref(o);
    MUST(text != NULL);
    return text;
}

/* The weight map of hundreds of blocks takes long; what it does by block does not depend on their number. */
enum { MOST_LAYERS = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    clt_model_config *c, *again;
    char *text = clt_strndup((const char *)data, size);
    clt_status st = clt_model_config_parse(text, true, "fuzz", &c);
    clt_free(text);
    if (st != CLT_OK) return 0;
    char *stored = text_of(c);
    MUST(clt_model_config_parse(stored, true, "stored", &again) == CLT_OK);
    char *twice = text_of(again);
    MUST(strcmp(stored, twice) == 0);
    clt_free(stored);
    clt_free(twice);
    clt_free(clt_model_describe(again));
    if (clt_model_get_facts(c).layers <= MOST_LAYERS) check_map(c);
    clt_model_config_free(c);
    clt_model_config_free(again);
    return 0;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    clt_log_set_level(CLT_LOG_ERROR);
    clt_error_quiet(true);
    return 0;
}

#ifdef FUZZ_REPLAY
#define FUZZ_ALPHABET "{}[]:,\"0123456789.eE+-tfn_ \n"
#include "test/fuzz/replay.h"
#endif
