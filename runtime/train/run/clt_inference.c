#include "runtime/train/run/clt_inference.h"

#include <string.h>

#include "runtime/checkpoint/clt_safetensors.h"

/* --- a model --- */

static clt_status read_config(clt_inference *x) {
    const char *text = clt_weight_source_model(x->src), *path = clt_weight_source_path(x->src);
    if (!text)
        return clt_error(CLT_BAD_DATA, "%s has no description of its model (config.json is missing)", path);
    CLT_TRY(clt_model_config_parse(text, true, path, &x->cfg));
    x->facts = clt_model_get_facts(x->cfg);
    return CLT_OK;
}

clt_status clt_inference_open(clt_inference *x, const char *source) {
    char *path = NULL;
    CLT_TRY(clt_ckpt_resolve(NULL, source, &path));
    clt_status st = clt_weight_source_open(path, &x->src);
    clt_free(path);
    CLT_TRY(st);
    return read_config(x);
}

enum { STAGE = 1 << 20 /* elements that are rounded at a time */ };

/* Elements of a tensor for the slab of 16-bit weights: the device rounds them. */
static clt_status write_narrow(void *ctx, int entry, uint64_t first, const float *src, uint64_t count) {
    clt_inference *x = ctx;
    for (uint64_t done = 0, n, run; done < count; done += n) {
        const clt_ref at = clt_slab_at(x->narrow, x->table.entry[entry].offset + first + done, &run);
        const clt_ref wide = {x->stage, 0};
        n = CLT_MIN(CLT_MIN(count - done, run), (uint64_t)STAGE);
        CLT_TRY(clt_ref_write_f32(wide, src + done, n));
        CLT_TRY(clt_op_cast(x->ops, clt_tensor_vector(wide, CLT_F32), clt_tensor_vector(at, x->type), n));
    }
    return CLT_OK;
}

/* The tensors that the model reads in fp32; neighbours are one range. */
static clt_status create_wide(clt_inference *x, const clt_model_shape *shape) {
    const clt_slab_table *t = &x->table;
    clt_slab_range *range = clt_calloc((size_t)t->n, sizeof *range);
    int n = 0;
    for (int i = 0, before = -2; i < t->n; i++) {
        if (!clt_model_reads_wide(x->cfg, shape, t, i)) continue;
        if (before != i - 1) range[n++].first = t->entry[i].offset;
        range[n - 1].count = (i + 1 < t->n ? t->entry[i + 1].offset : t->total) - range[n - 1].first;
        before = i;
    }
    clt_status st = clt_slab_create_ranges(x->dev, t, range, n, 4, "weights in fp32", &x->weights);
    clt_free(range);
    return st;
}

static clt_status create_weights(clt_inference *x, const clt_model_shape *shape) {
    const clt_slab_range all = {0, x->table.total};
    if (x->type == CLT_F32) return clt_slab_create(x->dev, &x->table, 0, "weights", &x->weights);
    CLT_TRY(create_wide(x, shape));
    return clt_slab_create_ranges(x->dev, &x->table, &all, 1, 2, "16-bit weights", &x->narrow);
}

static clt_status load_weights(clt_inference *x) {
    const clt_ckpt_part part[] = {{.role = "weight", .slab = x->weights},
                                  {.role = "weight", .write = write_narrow, .ctx = x}};
    clt_weight_map *map;
    CLT_TRY(clt_model_weight_map(x->cfg, &x->table, &map));
    CLT_TRY(clt_weight_source_use_map(x->src, &x->table, map, NULL));
    if (x->narrow)
        CLT_TRY(clt_buffer_create(x->dev, STAGE * sizeof(float), "weights on their way", &x->stage));
    const clt_status st = clt_weight_source_load(x->src, &x->table, part, x->narrow ? 2 : 1, NULL);
    clt_buffer_destroy(x->stage);
    x->stage = NULL;
    return st;
}

clt_status clt_inference_load(clt_inference *x, const clt_inference_params *p) {
    const bool exact = p->type == CLT_F32;
    const clt_model_shape shape = {.microbatch = 1,
                                   .seq = p->seq,
                                   .texts = p->texts,
                                   .numerics = exact ? CLT_EXACT : CLT_FAST,
                                   .type = p->type,
                                   .narrow_embeddings = !exact};
    clt_device_params d = clt_device_params_default();
    d.pattern = p->device;
    d.need_exact = exact;
    x->type = p->type;
    CLT_TRY(clt_device_open(&d, &x->dev));
    clt_ops_params o = clt_ops_params_default();
    o.numerics = shape.numerics;
    CLT_TRY(clt_ops_create(x->dev, &o, &x->ops));
    CLT_TRY(clt_model_table(x->cfg, &x->table));
    CLT_TRY(create_weights(x, &shape));
    CLT_TRY(load_weights(x));
    return clt_model_create(x->cfg, &shape, x->ops, x->weights, x->narrow, &x->model);
}

void clt_inference_close(clt_inference *x) {
    clt_model_destroy(x->model);
    clt_slab_destroy(x->weights);
    clt_slab_destroy(x->narrow);
    clt_slab_table_free(&x->table);
    clt_model_config_free(x->cfg);
    clt_ops_destroy(x->ops);
    clt_device_close(x->dev);
    clt_weight_source_close(x->src);
    *x = (clt_inference){0};
}

/* --- logits of token ids --- */

typedef struct {
    clt_inference x;
    int32_t *ids; /* [rows, length] */
    int64_t rows, length;
    float *values; /* logits of positions first ... first + held - 1 of row `row` */
    int64_t row, first, held, room;
} job;

static clt_status read_ids(job *j, clt_safetensors *s, int i) {
    const clt_st_tensor *t = clt_safetensors_at(s, i);
    const size_t size = (size_t)clt_st_dtype_bits(t->dtype) / 8, bytes = (size_t)t->count * size;
    char *raw = clt_try_malloc(bytes);
    j->ids = raw ? clt_try_malloc((size_t)t->count * sizeof *j->ids) : NULL;
    clt_status st =
        j->ids ? clt_safetensors_read(s, i, 0, raw, bytes) : clt_no_memory("token ids", 2 * bytes);
    for (uint64_t k = 0; k < t->count && st == CLT_OK; k++) {
        int64_t id = 0;
        int32_t narrow;
        memcpy(size == 4 ? (void *)&narrow : (void *)&id, raw + k * size, size);
        if (size == 4) id = narrow;
        j->ids[k] = (int32_t)id;
        if (id < 0 || id >= j->x.facts.vocab_size)
            st = clt_error(
                CLT_BAD_DATA, "%s: input_ids[%llu, %llu] is %lld; ids are below the vocabulary, %lld",
                clt_safetensors_path(s), (unsigned long long)(k / t->shape[1]),
                (unsigned long long)(k % t->shape[1]), (long long)id, (long long)j->x.facts.vocab_size);
    }
    clt_free(raw);
    return st;
}

static clt_status open_ids(job *j, const char *path) {
    clt_safetensors *s;
    CLT_TRY(clt_safetensors_open(path, &s));
    const int i = clt_safetensors_find(s, "input_ids");
    const clt_st_tensor *t = i >= 0 ? clt_safetensors_at(s, i) : NULL;
    clt_status st = CLT_OK;
    if (!t || t->dims != 2 || !t->count || (t->dtype != CLT_ST_I32 && t->dtype != CLT_ST_I64)) {
        st = clt_error(CLT_BAD_DATA, "%s needs a tensor 'input_ids', int32 or int64 [rows, length]", path);
    } else if ((int64_t)t->shape[1] > j->x.facts.max_seq_len) {
        st = clt_error(CLT_BAD_DATA, "%s: rows have %llu tokens, the model takes at most %lld", path,
                       (unsigned long long)t->shape[1], (long long)j->x.facts.max_seq_len);
    } else {
        j->rows = (int64_t)t->shape[0];
        j->length = (int64_t)t->shape[1];
        st = read_ids(j, s, i);
    }
    clt_safetensors_close(s);
    return st;
}

/* Makes the logits of position `at` of the row, and of those after it that have room. */
static clt_status hold(job *j, int64_t row, int64_t at) {
    if (row == j->row && at >= j->first && at < j->first + j->held) return CLT_OK;
    j->row = row;
    j->first = at;
    j->held = CLT_MIN(j->room, j->length - at);
    return clt_model_logits(j->x.model, j->ids + row * j->length, j->length, at, j->held, j->values);
}

static clt_status fill(void *ctx, int index, uint64_t first, float *dst, uint64_t count) {
    job *j = ctx;
    const uint64_t V = (uint64_t)j->x.facts.vocab_size, T = (uint64_t)j->length;
    (void)index;
    while (count > 0) {
        const uint64_t position = first / V, col = first % V;
        CLT_TRY(hold(j, (int64_t)(position / T), (int64_t)(position % T)));
        const uint64_t at = (position % T - (uint64_t)j->first) * V + col;
        const uint64_t n = CLT_MIN(count, (uint64_t)j->held * V - at);
        memcpy(dst, j->values + at, n * sizeof *dst);
        first += n, dst += n, count -= n;
    }
    return CLT_OK;
}

static clt_status write_logits(job *j, const char *path) {
    enum { MOST = 64 << 20 }; /* elements that are held: 256 MiB */
    const int64_t V = j->x.facts.vocab_size;
    const clt_st_spec spec = {"logits", CLT_ST_F32, 3, {(uint64_t)j->rows, (uint64_t)j->length, (uint64_t)V}};
    j->room = CLT_MAX(CLT_MIN(j->length, MOST / V), 1);
    j->row = -1;
    j->values = clt_try_malloc((size_t)(j->room * V) * sizeof *j->values);
    if (!j->values) return clt_no_memory("logits", (uint64_t)(j->room * V) * sizeof *j->values);
    return clt_safetensors_write(path, &spec, 1, NULL, 0, fill, j);
}

clt_status clt_inference_logits(const char *source, const char *device, const char *in, const char *out) {
    job j = {0};
    clt_status st = clt_inference_open(&j.x, source);
    if (st == CLT_OK) st = open_ids(&j, in);
    const clt_inference_params p = {.device = device, .seq = j.length};
    if (st == CLT_OK) st = clt_inference_load(&j.x, &p);
    if (st == CLT_OK) st = write_logits(&j, out);
    clt_inference_close(&j.x);
    clt_free(j.ids);
    clt_free(j.values);
    return st;
}
