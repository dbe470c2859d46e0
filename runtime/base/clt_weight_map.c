#include "runtime/base/clt_weight_map.h"

#include <string.h>

int clt_weight_map_add_file(clt_weight_map *m, const char *name, int dims, const int64_t *shape) {
    for (int i = m->files - 1; i >= 0; i--)
        if (strcmp(m->file[i].name, name) == 0) return i;
    m->file = clt_realloc(m->file, (size_t)(m->files + 1) * sizeof *m->file);
    clt_map_file *f = &m->file[m->files];
    *f = (clt_map_file){.name = clt_strdup(name), .dims = dims};
    memcpy(f->shape, shape, (size_t)dims * sizeof *shape);
    return m->files++;
}

void clt_weight_map_add_part(clt_weight_map *m, const clt_map_part *part) {
    m->part = clt_realloc(m->part, (size_t)(m->parts + 1) * sizeof *m->part);
    m->part[m->parts++] = *part;
}

void clt_weight_map_free(clt_weight_map *m) {
    if (!m) return;
    for (int i = 0; i < m->files; i++) clt_free(m->file[i].name);
    clt_free(m->file);
    clt_free(m->part);
    clt_free(m);
}

/* `rows` consecutive rows that are consecutive on both sides. */
typedef struct {
    int part;
    int64_t from, rows; /* first row on the other side */
} run;

/* The run that begins at this row of a model's tensor. */
static bool run_of_model(const clt_map_part *p, int64_t row, run *out) {
    const int64_t r = row - p->first;
    if (r < 0 || r >= p->rows) return false;
    out->from = r / p->block * p->stride + p->offset + r % p->block;
    out->rows = CLT_MIN(p->block - r % p->block, p->rows - r);
    return true;
}

/* The run that begins at this row of a file's tensor. */
static bool run_of_file(const clt_map_part *p, int64_t row, run *out) {
    const int64_t at = row - p->offset;
    if (at < 0) return false;
    const int64_t block = p->stride ? at / p->stride : 0, in_block = p->stride ? at % p->stride : at;
    const int64_t r = block * p->block + in_block;
    if (in_block >= p->block || r >= p->rows) return false;
    out->from = p->first + r;
    out->rows = CLT_MIN(p->block - in_block, p->rows - r);
    return true;
}

static bool find_run(const clt_weight_mapper *x, int index, int64_t row, run *out) {
    for (int i = 0; i < x->map->parts; i++) {
        const clt_map_part *p = &x->map->part[i];
        out->part = i;
        if (x->to_file ? p->file == index && run_of_file(p, row, out)
                       : p->tensor == index && run_of_model(p, row, out))
            return true;
    }
    return false;
}

/* The width of this tensor: its parts agree on it. */
static const clt_map_part *any_part(const clt_weight_mapper *x, int index) {
    for (int i = 0; i < x->map->parts; i++)
        if ((x->to_file ? x->map->part[i].file : x->map->part[i].tensor) == index) return &x->map->part[i];
    return NULL;
}

/* The whole tensor of the other side, exchanged, in x->values. */
static clt_status keep_transposed(clt_weight_mapper *x, int part) {
    const clt_map_part *p = &x->map->part[part];
    const int64_t rows = x->to_file ? p->rows : p->cols, cols = x->to_file ? p->cols : p->rows;
    const size_t bytes = (size_t)rows * (size_t)cols * sizeof(float);
    if (x->values && x->kept == part) return CLT_OK;
    clt_weight_mapper_free(x);
    float *raw = clt_try_malloc(bytes), *values = raw ? clt_try_malloc(bytes) : NULL;
    clt_status st = values
                        ? x->read(x->ctx, x->to_file ? p->tensor : p->file, 0, raw, (uint64_t)(rows * cols))
                        : clt_no_memory("a transposed tensor", 2 * (uint64_t)bytes);
    for (int64_t r = 0; r < rows && st == CLT_OK; r++)
        for (int64_t c = 0; c < cols; c++) values[c * rows + r] = raw[r * cols + c];
    clt_free(raw);
    if (st != CLT_OK) {
        clt_free(values);
        return st;
    }
    x->values = values;
    x->kept = part;
    return CLT_OK;
}

static clt_status read_runs(clt_weight_mapper *x, int index, int64_t cols, uint64_t first, float *dst,
                            uint64_t count) {
    while (count > 0) {
        const uint64_t width = (uint64_t)cols, col = first % width;
        run u;
        if (!find_run(x, index, (int64_t)(first / width), &u))
            return clt_error(CLT_FAIL, "no part of a weight map has row %llu of tensor %d; this is a bug",
                             (unsigned long long)(first / width), index);
        const clt_map_part *p = &x->map->part[u.part];
        const uint64_t n = CLT_MIN(count, (uint64_t)u.rows * width - col);
        CLT_TRY(x->read(x->ctx, x->to_file ? p->tensor : p->file, (uint64_t)u.from * width + col, dst, n));
        first += n, dst += n, count -= n;
    }
    return CLT_OK;
}

clt_status clt_weight_mapper_read(clt_weight_mapper *x, int index, uint64_t first, float *dst,
                                  uint64_t count) {
    const clt_map_part *p = any_part(x, index);
    if (!p) return clt_error(CLT_FAIL, "tensor %d is in no part of a weight map; this is a bug", index);
    if (!p->transposed) return read_runs(x, index, p->cols, first, dst, count);
    CLT_TRY(keep_transposed(x, (int)(p - x->map->part)));
    memcpy(dst, x->values + first, count * sizeof *dst);
    return CLT_OK;
}

void clt_weight_mapper_free(clt_weight_mapper *x) {
    clt_free(x->values);
    x->values = NULL;
}
