/* clt_tensor: how an operation is told where a tensor lies and how its elements are stored, and the table of
 * element types.
 *
 * A clt_tensor is a value: a place in a buffer, the distance between rows, the element type, and for types
 * whose stored numbers need them, the scales. It owns nothing. An absent optional tensor has no buffer; its
 * type can still matter (clt_gemm_params says where). Operations take clt_tensor for everything that flows
 * through a model: activations, weights and their gradients. What is fp32 or an integer by definition and has
 * no gaps (statistics, tables, token ids, counters) is a plain clt_ref.
 *
 * Element types are the rows of CLT_DTYPES. To add a type: a row there, its two conversions in
 * runtime/ops/ref/clt_ref_types.c, its macros in clkernels/include/clt_store.clh, and kernels that read it.
 * An operation refuses a type that it was not written for, and names it (clt_tensor_check_type). */
#ifndef CLT_TENSOR_H
#define CLT_TENSOR_H

#include "runtime/device/clt_device.h"
#include "runtime/device/clt_tensor_map.h"

/* A row per type:
 *   id      the enumerator CLT_<id>; its place in the table is the number of the type in kernels (-DTYPE=1)
 *   name    in messages, shapes of tune.csv and options of programs
 *   word    in names of kernels and functions (cast_f32_bf16)
 *   bytes   of an element
 *   scaled  whether the stored numbers mean something only together with scales
 *   unit    unit roundoff: rounding to the type is off by at most `unit` of the value ...
 *   least   ... or by `least`, half of the type's smallest positive number, where that is more
 *   map     the type for the copy engine of NVIDIA's GPUs */
#define CLT_DTYPES(ROW)                                                                                      \
    ROW(F32, "fp32", f32, 4, false, 0x1p-24, 0x1p-150, CLT_MAP_F32)                                          \
    ROW(BF16, "bf16", bf16, 2, false, 0x1p-8, 0x1p-134, CLT_MAP_BF16)                                        \
    ROW(F16, "fp16", f16, 2, false, 0x1p-11, 0x1p-25, CLT_MAP_F16)

#define CLT_DTYPE_ID(id, ...) CLT_##id,
typedef enum { CLT_DTYPES(CLT_DTYPE_ID) CLT_DTYPE_COUNT } clt_dtype;
#undef CLT_DTYPE_ID

typedef struct {
    const char *name, *word;
    uint32_t bytes;
    bool scaled;
    double unit, least;
    clt_map_type map;
} clt_dtype_row;
extern const clt_dtype_row clt_dtype_table[CLT_DTYPE_COUNT];

static inline uint64_t clt_dtype_bytes(clt_dtype t) {
    return clt_dtype_table[t].bytes;
}
/* "unknown" for a number that is no type, so that messages can name what they refuse. */
const char *clt_dtype_name(clt_dtype t);
/* The type of that name; false: there is none. */
bool clt_dtype_find(const char *name, clt_dtype *out);
/* "fp32, bf16, fp16": the names of a set of types. */
enum { CLT_DTYPE_NAMES = 96 };
const char *clt_dtype_names(uint32_t set, char out[CLT_DTYPE_NAMES]);

/* Sets of types: sums of 1 << type, as TYPES in the variant tables. */
static inline uint32_t clt_dtype_bit(clt_dtype t) {
    return 1u << t;
}
static inline bool clt_dtype_in(clt_dtype t, uint32_t set) {
    return set >> t & 1;
}
/* The types without scales: what an operation supports unless it was written for more. */
#define CLT_DTYPE_BIT(id, name, word, bytes, scaled, ...) | (!(scaled) << CLT_##id)
enum { CLT_DTYPE_PLAIN = 0 CLT_DTYPES(CLT_DTYPE_BIT) };
#undef CLT_DTYPE_BIT

/* --- scales --- */

/* The value of element (r, c) of a scaled tensor is its stored number times scale (r / rows, c / cols); rows
 * or cols 0: one scale for the whole extent. Rows and columns are those of the stored matrix, whichever of
 * them a product sums over:
 *   one scale per tensor                                   rows 0, cols 0
 *   a block of 128 along rows (the contraction of x W^T)   rows 1, cols 128
 *   a block of 128 down columns (that of dy^T x)           rows 128, cols 1
 *   a tile of 128 x 128                                    rows 128, cols 128
 * They are counted from `origin`, so that a clt_tensor that begins inside a scaled tensor, or has fewer rows
 * or columns, keeps the descriptor: its place, minus the origin, says which element it begins with.
 * An operation that stores a scaled type writes the scales too. What it measures for the scales of a later
 * step, as delayed scaling does, is a param of that operation and not part of the tensor. */
typedef enum {
    CLT_SCALE_F32, /* an fp32 factor */
    CLT_SCALE_E8   /* a byte e: the factor 2^(e - 127) */
} clt_scale_type;

typedef struct {
    clt_ref place;      /* of scale (0, 0); counted in scales */
    int64_t ld;         /* scales between rows of scales */
    uint64_t origin;    /* the scaled tensor's element (0, 0), counted in its elements */
    int32_t rows, cols; /* of a block */
    clt_scale_type type;
} clt_scale;

/* --- tensors --- */

typedef struct {
    clt_ref ref; /* element (0, 0); buf NULL: absent */
    int64_t ld;  /* elements between rows */
    clt_dtype type;
    const clt_scale *scale; /* of a scaled type, else NULL; the caller keeps it until the call returns */
} clt_tensor;

static inline clt_tensor clt_tensor_of(clt_ref ref, int64_t ld, clt_dtype type) {
    return (clt_tensor){.ref = ref, .ld = ld, .type = type};
}
/* One row: biases and weights of norms. */
static inline clt_tensor clt_tensor_vector(clt_ref ref, clt_dtype type) {
    return (clt_tensor){.ref = ref, .type = type};
}
static inline clt_tensor clt_tensor_none(void) {
    return (clt_tensor){0};
}
static inline bool clt_tensor_present(clt_tensor t) {
    return t.ref.buf != NULL;
}
/* The part that begins at (row, col); an absent tensor stays absent. */
static inline clt_tensor clt_tensor_at(clt_tensor t, int64_t row, int64_t col) {
    if (t.ref.buf) t.ref.off += (uint64_t)(row * t.ld + col);
    return t;
}

/* --- checks, for the operations --- */

/* A tensor with its name in messages, which begin with `op`. Absent ones pass all checks but fits. */
typedef struct {
    const char *name;
    clt_tensor t;
} clt_tensor_named;

/* Each has a type of the set `types`, and scales if and only if the type wants them. CLT_FAIL, naming the
 * tensor and the types, otherwise. */
clt_status clt_tensor_check_types(const char *op, uint32_t types, const clt_tensor_named *list, int n);
/* The same, and all have one type. */
clt_status clt_tensor_check_one_type(const char *op, uint32_t types, const clt_tensor_named *list, int n);
/* Rows of `cols` elements lie without gaps. */
clt_status clt_tensor_check_dense(const char *op, int64_t cols, const clt_tensor_named *list, int n);
/* It is there, its rows do not overlap, and it lies inside its buffer. */
clt_status clt_tensor_check_fits(const char *op, const char *name, const clt_tensor *t, int64_t rows,
                                 int64_t cols);

#endif
