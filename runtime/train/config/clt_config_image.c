/* The keys of pictures. */
#include "runtime/train/config/clt_config_image.h"

#include <math.h>
#include <string.h>

/* --- kinds --- */

static clt_status check_numbers(clt_schema_reader *r, const char *path, const json_t *v, size_t n) {
    if (json_array_size(v) != n) return clt_schema_fail(r, path, "must be a list of %zu numbers", n);
    for (size_t i = 0; i < n; i++)
        if (!json_is_number(json_array_get(v, i)) || !isfinite(json_number_value(json_array_get(v, i))))
            return clt_schema_fail(r, path, "must be a list of %zu numbers", n);
    return CLT_OK;
}

static void store_numbers(json_t *v, double *out) {
    for (size_t i = 0; i < json_array_size(v); i++) out[i] = json_number_value(json_array_get(v, i));
}

static clt_status check_rgb(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    return check_numbers(r, path, v, 3);
}
static void store_rgb(clt_schema_reader *r, const clt_key *k, json_t *v, void *field) {
    (void)r;
    (void)k;
    store_numbers(v, field);
}
const clt_kind clt_kind_rgb = {"a list of three numbers", 3 * sizeof(double), check_rgb, store_rgb, false};

static clt_status check_span(clt_schema_reader *r, const clt_key *k, const char *path, json_t *v) {
    (void)k;
    CLT_TRY(check_numbers(r, path, v, 2));
    const double least = json_number_value(json_array_get(v, 0)),
                 most = json_number_value(json_array_get(v, 1));
    if (least > 0 && least <= most) return CLT_OK;
    return clt_schema_fail(r, path, "is [%g, %g]: the first number must be above 0 and not above the second",
                           least, most);
}
const clt_kind clt_kind_span = {"a list of two numbers", 2 * sizeof(double), check_span, store_rgb, false};

/* --- checks --- */

static clt_status check_range(clt_schema_reader *r, const char *path, const char *name, double v,
                              double least, double most) {
    if (v >= least && v <= most) return CLT_OK;
    char *key = clt_format("%s.dataset.%s", path, name);
    const clt_status st = clt_schema_fail(r, key, "is %g: it must be from %g to %g", v, least, most);
    clt_free(key);
    return st;
}

static clt_status check_ranges(clt_schema_reader *r, const char *path, bool eval, const clt_image_config *m) {
    const double pixels = 1 << 30, little = 1e-6, large = 1e6;
    const struct {
        const char *name;
        double v, least, most;
        bool eval;
    } ranges[] = {{"image_size", (double)m->size, 1, 1 << 14, true},
                  {"classes", (double)m->classes, 1, 1 << 24, true},
                  {"crop_pct", m->crop_pct, 0.01, 1, true},
                  {"std", CLT_MIN(CLT_MIN(m->std[0], m->std[1]), m->std[2]), little, large, true},
                  {"max_image_pixels", (double)m->max_pixels, 1, pixels, true},
                  {"decode_threads", (double)m->threads, 0, 16, true},
                  {"scale", m->scale[1], 0, 1, false},
                  {"ratio", CLT_MAX(m->ratio[1], 1 / CLT_MAX(m->ratio[0], little)), 0, 1000, false},
                  {"hflip", m->flip, 0, 1, false},
                  {"randaugment", (double)m->augment, 0, CLT_AUGMENT_MOST_STEPS, false},
                  {"randaugment_magnitude", (double)m->augment_level, 0, CLT_AUGMENT_MOST_LEVEL, false},
                  {"label_smoothing", m->smoothing, 0, 0.999, false},
                  {"mixup", m->mixup, 0, 1000, false},
                  {"cutmix", m->cutmix, 0, 1000, false},
                  {"mixup_prob", m->mix_prob, 0, 1, false},
                  {"mixup_switch_prob", m->switch_prob, 0, 1, false}};
    for (size_t i = 0; i < CLT_COUNT_OF(ranges); i++)
        if (ranges[i].eval || !eval)
            CLT_TRY(check_range(r, path, ranges[i].name, ranges[i].v, ranges[i].least, ranges[i].most));
    return CLT_OK;
}

/* Whether the loader has any of these keys. */
static bool any_given(const clt_config *c, const char *path, const char *const *keys, size_t n) {
    bool any = false;
    for (size_t i = 0; i < n; i++) {
        char *key = clt_format("%s.dataset.%s", path, keys[i]);
        any = any || clt_config_given(c, key);
        clt_free(key);
    }
    return any;
}

/* Keys of the other kind of loader have no effect; one line says so. */
static void remark_keys(clt_config *c, const char *path, bool image) {
    static const char *const own[] = {"image_size",     "classes",
                                      "mean",           "std",
                                      "crop_pct",       "max_image_pixels",
                                      "decode_threads", "random_resized_crop",
                                      "scale",          "ratio",
                                      "hflip",          "label_smoothing",
                                      "mixup",          "cutmix",
                                      "mixup_prob",     "mixup_switch_prob",
                                      "randaugment",    "randaugment_magnitude"},
                             *const others[] = {"eos_token_id",     "bos_token_id",    "token_encoding_type",
                                                "hf_name",          "packing_ratio",   "target_prompts",
                                                "target_responses", "preprocessing_fn"};
    if (image ? any_given(c, path, others, CLT_COUNT_OF(others)) : any_given(c, path, own, CLT_COUNT_OF(own)))
        clt_strv_add_owned(&c->remarks,
                           clt_format("%s.dataset has keys of %s, which have no effect (%s)", path,
                                      image ? "the loaders text and finetuning" : "the loader image",
                                      image ? "eos_token_id, token_encoding_type, hf_name and others"
                                            : "image_size, mean, mixup and others"));
}

/* What the model reads; false: no pictures. */
static bool model_reads(const clt_config *c, int64_t *size, int64_t *classes) {
    const clt_batch_layout text = clt_text_layout(1, false), l = clt_model_layout(c->model, c->max_seq_len);
    if (strcmp(l.field[0].name, text.field[0].name) == 0) return false;
    *size = (int64_t)sqrt((double)l.field[CLT_IMAGE_PIXELS].bytes / (3 * sizeof(float)));
    *classes = (int64_t)(l.field[CLT_IMAGE_TARGETS].bytes / sizeof(float));
    return true;
}

static clt_status check_model(clt_schema_reader *r, const clt_config *c, const char *path,
                              clt_image_config *m) {
    int64_t size, classes;
    char *name = clt_format("%s.name", path), *key;
    clt_status st = CLT_OK;
    if (!model_reads(c, &size, &classes)) {
        st = clt_schema_fail(r, name,
                             "is image, and the model reads tokens: use text or finetuning, or a "
                             "model of pictures");
        clt_free(name);
        return st;
    }
    clt_free(name);
    if (m->size == 0) m->size = size;
    if (m->classes == 0) m->classes = classes;
    if (m->size == size && m->classes == classes) return CLT_OK;
    key = clt_format("%s.dataset.%s", path, m->size != size ? "image_size" : "classes");
    st = clt_schema_fail(r, key, "is %lld, and the model's is %lld: leave it out or give both the same value",
                         (long long)(m->size != size ? m->size : m->classes),
                         (long long)(m->size != size ? size : classes));
    clt_free(key);
    return st;
}

clt_status clt_config_check_image(clt_schema_reader *r, clt_config *c, const char *path, bool eval,
                                  clt_loader_config *l) {
    const bool image = l->kind == CLT_LOADER_IMAGE;
    remark_keys(c, path, image);
    if (!image) return CLT_OK;
    if (l->streams_map) {
        char *key = clt_format("%s.dataset.streams", path);
        const clt_status st =
            clt_schema_fail(r, key, "cannot be pictures: name one data set as local, with remote if needed");
        clt_free(key);
        return st;
    }
    CLT_TRY(check_model(r, c, path, &l->image));
    return check_ranges(r, path, eval, &l->image);
}

clt_image_params clt_config_image_params(const clt_loader_config *l) {
    const clt_image_config *m = &l->image;
    clt_image_params p = {
        .transform = {.size = m->size,
                      .crop_pct = m->crop_pct,
                      .random_crop = m->random_crop,
                      .scale = {m->scale[0], m->scale[1]},
                      .ratio = {m->ratio[0], m->ratio[1]},
                      .flip = m->flip,
                      .augment = (int)m->augment,
                      .augment_level = (int)m->augment_level},
        .mix = {.mixup = m->mixup, .cutmix = m->cutmix, .prob = m->mix_prob, .switch_prob = m->switch_prob},
        .classes = m->classes,
        .smoothing = m->smoothing,
        .max_pixels = m->max_pixels,
        .threads = (int)m->threads};
    for (int i = 0; i < 3; i++) {
        p.transform.mean[i] = (float)m->mean[i];
        p.transform.std[i] = (float)m->std[i];
    }
    return p;
}
