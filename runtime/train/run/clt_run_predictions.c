/* predictions.json: what the model takes some evaluation pictures for, with the pictures as the model reads
 * them, but smaller. Every rank predicts its share of them; rank 0 writes the file. */
#include <math.h>
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/data/clt_utf8.h"
#include "runtime/data/image/clt_image_write.h"
#include "runtime/train/run/clt_run.h"

enum { SHOWN = 8, MOST_SIDE = 128 };

/* A picture as the ranks exchange it; rgb [side, side, 3] follows. */
typedef struct {
    int64_t sample;
    int32_t label;
    clt_model_prediction prediction;
} shown;

typedef struct {
    const clt_loader_config *cfg;
    clt_loader *loader;
    int64_t n, size;         /* pictures; height and width that the model reads */
    int64_t block, side;     /* a pixel shows block * block of them; height and width shown */
    size_t bytes;            /* of a `shown` with its pixels */
    int64_t position[SHOWN]; /* in the evaluation */
    char *mine, *all;        /* [n] `shown` of this rank; of all */
} gallery;

static clt_status open_gallery(const clt_run *r, gallery *g) {
    const int64_t B = r->cfg->device_eval_batch_size * clt_group_size(r->group);
    const int64_t limit = r->cfg->eval_subset_num_batches;
    g->cfg = &r->cfg->evals[0];
    g->loader = r->evals[0];
    int64_t samples = clt_loader_rows_of(g->loader, 0);
    if (limit >= 0) samples = CLT_MIN(samples, limit * B);
    g->n = CLT_MIN(samples, SHOWN);
    for (int64_t i = 0; i < g->n; i++) g->position[i] = (2 * i + 1) * samples / (2 * g->n);
    const size_t pixels = clt_loader_layout(g->loader)->field[CLT_IMAGE_PIXELS].bytes / sizeof(float);
    g->size = (int64_t)sqrt((double)pixels / 3);
    g->block = CLT_CEIL_DIV(g->size, MOST_SIDE);
    g->side = g->size / g->block;
    g->bytes = CLT_ROUND_UP(sizeof(shown) + 3 * (size_t)(g->side * g->side), sizeof(int64_t));
    g->mine = clt_try_calloc((size_t)SHOWN, g->bytes);
    g->all = clt_try_calloc((size_t)SHOWN, g->bytes);
    return g->mine && g->all ? CLT_OK : clt_no_memory("pictures with predictions", 2 * SHOWN * g->bytes);
}

static void keep(const gallery *g, const clt_batch *b, const clt_model_prediction *p) {
    const int64_t pixels = 3 * g->size * g->size;
    for (int64_t i = 0; i < b->samples; i++) {
        shown *s = (void *)(g->mine + (size_t)i * g->bytes);
        *s = (shown){b->sample_ids[i], ((const int32_t *)b->field[CLT_IMAGE_LABEL])[i], p[i]};
        clt_image_to_rgb((const float *)b->field[CLT_IMAGE_PIXELS] + i * pixels, g->size, g->block,
                         g->cfg->image.mean, g->cfg->image.std, (uint8_t *)(s + 1));
    }
}

/* Pictures [at, at + n), which are one global batch, into their places of g->all. */
static clt_status predict(clt_run *r, gallery *g, int64_t at, int64_t n) {
    clt_loader_rows part[SHOWN];
    clt_model_prediction p[SHOWN];
    int64_t first, last;
    clt_batch b;
    size_t *lens = clt_calloc((size_t)clt_group_size(r->group), sizeof *lens);
    void *all = NULL;
    clt_engine_share(r->engine, n, &first, &last);
    for (int64_t i = first; i < last; i++) part[i - first] = (clt_loader_rows){g->position[at + i], 1};
    clt_status st = clt_loader_get_rows(g->loader, 0, part, (int)(last - first), &b);
    st = clt_run_note_data(r, clt_group_agree(r->group, st));
    if (st == CLT_OK) {
        b.first = first;
        b.global_samples = b.global_targets = n;
        st = clt_group_agree(r->group, clt_engine_predict(r->engine, &b, p));
    }
    if (st == CLT_OK) {
        keep(g, &b, p);
        st = clt_group_all_gatherv(r->group, g->mine, (size_t)(last - first) * g->bytes, lens, &all);
    }
    if (st == CLT_OK) memcpy(g->all + (size_t)at * g->bytes, all, (size_t)n * g->bytes);
    clt_free(all);
    clt_free(lens);
    return st;
}

/* --- the file --- */

static void add_base64(clt_str *out, const uint8_t *x, size_t n) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t have = CLT_MIN(n - i, (size_t)3);
        const uint32_t v = (uint32_t)x[i] << 16 | (have > 1 ? (uint32_t)x[i + 1] << 8 : 0) |
                           (have > 2 ? (uint32_t)x[i + 2] : 0);
        char text[4] = {digit[v >> 18], digit[v >> 12 & 63], '=', '='};
        if (have > 1) text[2] = digit[v >> 6 & 63];
        if (have > 2) text[3] = digit[v & 63];
        clt_str_addn(out, text, sizeof text);
    }
}

static void add_class(const gallery *g, const char *key, int32_t label, clt_str *out) {
    const char *name = clt_loader_class_name(g->loader, label);
    char number[16];
    clt_str text = {0};
    snprintf(number, sizeof number, "%d", label);
    if (!name) name = number;
    clt_str_add(&text, "");
    clt_utf8_repair(name, strlen(name), &text); /* a folder may have any name */
    clt_str_addf(out, ",\"%s\":%d,\"%s_name\":", key, label, key);
    clt_json_escape(out, text.s);
    clt_str_free(&text);
}

static clt_status add_picture(const gallery *g, const shown *s, clt_str *out) {
    clt_str png = {0};
    CLT_TRY(clt_image_write_png((const uint8_t *)(s + 1), g->side, g->side, &png));
    clt_str_addf(out, "{\"sample\":%lld", (long long)s->sample);
    add_class(g, "label", s->label, out);
    add_class(g, "predicted", s->prediction.label, out);
    clt_str_add(out, ",\"probability\":");
    if (isfinite(s->prediction.probability))
        clt_str_addf(out, "%.6g", (double)s->prediction.probability);
    else
        clt_str_add(out, "null");
    clt_str_add(out, ",\"png\":\"");
    add_base64(out, (const uint8_t *)png.s, png.len);
    clt_str_add(out, "\"}");
    clt_str_free(&png);
    return CLT_OK;
}

static clt_status write_file(const clt_run *r, const gallery *g) {
    clt_str out = {0};
    clt_status st = CLT_OK;
    clt_str_addf(&out, "{\"batch\":%lld,\"data\":", (long long)r->progress.now.batch);
    clt_json_escape(&out, g->cfg->label);
    clt_str_add(&out, ",\"images\":[");
    for (int64_t i = 0; i < g->n && st == CLT_OK; i++) {
        clt_str_add(&out, i ? ",\n" : "\n");
        st = add_picture(g, (const void *)(g->all + (size_t)i * g->bytes), &out);
    }
    clt_str_add(&out, "]}\n");
    char *path = clt_path_join(r->files.local, "predictions.json");
    if (st == CLT_OK) st = clt_io_write_atomic(path, out.s, out.len);
    if (st != CLT_OK) clt_warn("predictions.json is not written; training continues");
    clt_free(path);
    clt_str_free(&out);
    return CLT_OK;
}

clt_status clt_run_predictions(clt_run *r) {
    const int64_t most = r->cfg->device_eval_batch_size * clt_group_size(r->group); /* of a global batch */
    gallery g = {0};
    if (r->cfg->n_evals == 0 || !clt_model_get_facts(r->cfg->model).classifies) return CLT_OK;
    clt_status st = clt_group_agree(r->group, open_gallery(r, &g));
    for (int64_t at = 0; at < g.n && st == CLT_OK; at += most) {
        st = predict(r, &g, at, CLT_MIN(most, g.n - at));
        if (st == CLT_OK && clt_group_stop(r->group)) st = CLT_STOPPED;
    }
    if (st == CLT_OK && clt_group_rank(r->group) == 0) st = write_file(r, &g);
    clt_free(g.mine);
    clt_free(g.all);
    return st;
}
