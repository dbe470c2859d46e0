/* clt_tensor: how an operation is told where a tensor lies and how its elements are stored, and the table of
 * element types.
 *
 * A clt_tensor is a value: a place in a buffer, the distance between rows, the element type and, for scaled
 * types, the scales. It owns nothing; the buffer must exist while queued work uses it. An absent optional
 * tensor has no buffer; its type can still have an effect (clt_gemm_params.pre). Operations take clt_tensor
 * for everything that flows through a model: activations, weights and their gradients. What is fp32 or an
 * integer by definition and has no gaps (statistics, tables, token ids, counters) is a plain clt_ref.
 *
 * Element types are the rows of CLT_DTYPES. To add a type: a row there, its two conversions in
 * runtime/ops/ref/clt_ref_types.c, its macros in clkernels/include/clt_store.clh, and kernels that read it.
 * An operation refuses a type that it was not written for, and names it (clt_tensor_check_types). */
#ifndef CLT_TENSOR_H
#define CLT_TENSOR_H

#include "runtime/device/clt_device.h"
#include "runtime/device/clt_tensor_map.h"

/* A row per type; no type of the table is scaled at present:
 *   id      the enumerator CLT_<id>; its value, the row's index, is the type's number in kernels (-DTYPE=1)
 *   name    in messages, shapes of tune.csv and options of programs
 *   word    in names of kernels and functions (cast_f32_bf16)
 *   bytes   bytes of one element
 *   scaled  whether an element's value is its stored number times a scale (clt_scale)
 *   unit    unit roundoff, relative; see least
 *   least   half of the type's smallest positive number. Rounding a finite x that does not overflow has an
 *           error of at most max(unit * |x|, least)
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
/* The name, a constant; "unknown" for a number that is no type, so that messages can name what they refuse.
 * clt_dtype_bytes, in contrast, needs a valid type. */
const char *clt_dtype_name(clt_dtype t);
/* Sets *out to the type with this name (exact, lower case). false: no type has it, and *out is unchanged. */
bool clt_dtype_find(const char *name, clt_dtype *out);
/* Writes the names of a set of types to `out`, such as "fp32, bf16, fp16", and returns `out`; "" for 0. */
enum { CLT_DTYPE_NAMES = 96 };
const char *clt_dtype_names(uint32_t set, char out[CLT_DTYPE_NAMES]);

/* A set of types is a uint32_t: the sum of 1 << type over its types. TYPES in the variant tables is the same.
 */
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

/* The value of element (r, c) of a scaled tensor is its stored number times scale (r / rows, c / cols). If
 * `rows` is 0, one scale holds for all rows (index 0); the same for `cols`. Rows and columns are those of the
 * matrix in memory, whichever dimension a product sums over:
 *   one scale per tensor                                   rows 0, cols 0
 *   a block of 128 along rows (the contraction of x W^T)   rows 1, cols 128
 *   a block of 128 down columns (that of dy^T x)           rows 128, cols 1
 *   a tile of 128 x 128                                    rows 128, cols 128
 * r and c are counted from `origin`, the place of element (0, 0) of the whole scaled tensor. So a part of it
 * (clt_tensor_at, or fewer rows or columns) uses the same clt_scale: the part's offset minus the origin gives
 * the element that it begins with. An operation that stores a scaled type writes the scales too. What it
 * measures for the scales of a later step, as delayed scaling does, is a param of that operation and not part
 * of the tensor. */
typedef enum {
    CLT_SCALE_F32, /* an fp32 factor */
    CLT_SCALE_E8   /* a byte e: the factor 2^(e - 127) */
} clt_scale_type;

typedef struct {
    clt_ref place;      /* of scale (0, 0); off counts scales */
    int64_t ld;         /* distance from a row of scales to the next, in scales */
    uint64_t origin;    /* offset of the scaled tensor's element (0, 0) in its buffer, in elements */
    int32_t rows, cols; /* of the block that one scale is for; 0: the whole extent */
    clt_scale_type type;
} clt_scale;

/* --- tensors --- */

typedef struct {
    clt_ref ref; /* element (0, 0); off counts elements of `type`; buf NULL: absent */
    int64_t ld;  /* distance from the start of a row to the start of the next, in elements */
    clt_dtype type;
    const clt_scale *scale; /* set exactly for a scaled type; must stay valid until the call returns */
} clt_tensor;

static inline clt_tensor clt_tensor_of(clt_ref ref, int64_t ld, clt_dtype type) {
    return (clt_tensor){.ref = ref, .ld = ld, .type = type};
}
/* A tensor of one row, with ld 0: biases and weights of norms. */
static inline clt_tensor clt_tensor_vector(clt_ref ref, clt_dtype type) {
    return (clt_tensor){.ref = ref, .type = type};
}
static inline clt_tensor clt_tensor_none(void) {
    return (clt_tensor){0};
}
static inline bool clt_tensor_present(clt_tensor t) {
    return t.ref.buf != NULL;
}
/* The part that begins at element (row, col), with the same ld; an absent tensor stays absent. Nothing is
 * checked. In a vector (ld 0) `row` has no effect. */
static inline clt_tensor clt_tensor_at(clt_tensor t, int64_t row, int64_t col) {
    if (t.ref.buf) t.ref.off += (uint64_t)(row * t.ld + col);
    return t;
}

/* --- checks, for the operations --- */

/* A tensor and its name in messages. Messages begin with `op`. All checks return CLT_FAIL, with a message
 * that names the tensor, if the condition does not hold. Absent tensors are skipped, except by
 * clt_tensor_check_fits. */
typedef struct {
    const char *name;
    clt_tensor t;
} clt_tensor_named;

/* Each present tensor has a type of the set `types`, and has scales if and only if its type is scaled. */
clt_status clt_tensor_check_types(const char *op, uint32_t types, const clt_tensor_named *list, int n);
/* As clt_tensor_check_types, and all present tensors have the same type. */
clt_status clt_tensor_check_one_type(const char *op, uint32_t types, const clt_tensor_named *list, int n);
/* ld is `cols` in each present tensor, so that rows lie without gaps. This is required of a tensor of one row
 * too, so vectors (ld 0) do not pass. */
clt_status clt_tensor_check_dense(const char *op, int64_t cols, const clt_tensor_named *list, int n);
/* The tensor is present, its rows do not overlap, and rows x cols elements from its place on lie inside its
 * buffer. rows and cols must be at least 1, and the type must be valid. */
clt_status clt_tensor_check_fits(const char *op, const char *name, const clt_tensor *t, int64_t rows,
                                 int64_t cols);

#endif
