/* clt_pickle: a reader of the pickles in PyTorch's files (torch.save, protocols 2 to 5) that executes
 * nothing.
 *
 * A pickle is a program for a stack machine that may name any function of Python and call it. This reader
 * interprets the opcodes that torch.save writes for numbers, texts, lists, dictionaries and tensors; every
 * other opcode is CLT_BAD_DATA. The names of functions and classes are compared with a list: OrderedDict,
 * torch.Size, _rebuild_tensor_v2 and the storage classes, of which the reader itself knows the meaning. Any
 * other name is CLT_BAD_DATA, or with CLT_PICKLE_OPAQUE_NAMES a value without contents: what would have been
 * called with it is skipped. Messages name the file, the opcode or name, and the byte offset.
 *
 * Memory is bounded by the limits below and by the size of the pickle: a value costs at least one byte of it.
 * Nothing of a pickle is copied twice: a value that the memo repeats is the same value. */
#ifndef CLT_PICKLE_H
#define CLT_PICKLE_H

#include "runtime/base/clt_base.h"

enum {
    CLT_PICKLE_MAX_BYTES = 16 << 20,
    CLT_PICKLE_MAX_VALUES = 1 << 18, /* values, and references to values on the stack and in the memo */
    CLT_PICKLE_MAX_DEPTH = 64,       /* of containers in containers */
    CLT_PICKLE_MAX_DIMS = 8
};

typedef enum {
    CLT_PICKLE_NONE,
    CLT_PICKLE_BOOL,
    CLT_PICKLE_INT,
    CLT_PICKLE_FLOAT,
    CLT_PICKLE_TEXT, /* str or bytes */
    CLT_PICKLE_TUPLE,
    CLT_PICKLE_LIST, /* a set too */
    CLT_PICKLE_DICT, /* an OrderedDict too */
    CLT_PICKLE_STORAGE,
    CLT_PICKLE_TENSOR,
    CLT_PICKLE_GLOBAL, /* a name that stands for itself */
    CLT_PICKLE_OPAQUE  /* what is not represented: an object of an unlisted class, a tensor with gaps */
} clt_pickle_kind;

/* The element types of storages. */
typedef enum {
    CLT_PICKLE_F32,
    CLT_PICKLE_F16,
    CLT_PICKLE_BF16,
    CLT_PICKLE_F64,
    CLT_PICKLE_I64,
    CLT_PICKLE_I32,
    CLT_PICKLE_I16,
    CLT_PICKLE_I8,
    CLT_PICKLE_U8,
    CLT_PICKLE_BYTES, /* torch.storage.UntypedStorage */
    CLT_PICKLE_DTYPES
} clt_pickle_dtype;
const char *clt_pickle_dtype_name(clt_pickle_dtype t); /* "float32" */
int clt_pickle_dtype_bytes(clt_pickle_dtype t);

typedef struct clt_pickle_value clt_pickle_value;
struct clt_pickle_value {
    clt_pickle_kind kind;
    int depth; /* of the containers inside it */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct { /* not ended by a 0 */
            const char *s;
            size_t n;
        } text; /* also the name of a GLOBAL, "module name" */
        struct {
            clt_pickle_value **item; /* [n]; of a dictionary: key, value, key, ... */
            size_t n, cap;
        } list;
        struct {
            const clt_pickle_value *key; /* TEXT: the name of its file in the archive */
            clt_pickle_dtype dtype;
            uint64_t count; /* elements */
        } storage;
        struct {
            const clt_pickle_value *storage;
            uint64_t offset, count; /* elements; [offset, offset + count) is in the storage */
            int dims;
            uint64_t shape[CLT_PICKLE_MAX_DIMS];
        } tensor; /* contiguous, row-major */
    };
};

typedef struct clt_pickle clt_pickle;

enum { CLT_PICKLE_OPAQUE_NAMES = 1 };

/* Reads the pickle data[0 ... bytes), which must live as long as the result: texts point into it. `what`
 * names it in messages. flags: 0 or CLT_PICKLE_OPAQUE_NAMES. CLT_BAD_DATA, CLT_NO_MEMORY. */
clt_status clt_pickle_parse(const void *data, size_t bytes, unsigned flags, const char *what,
                            clt_pickle **out);
void clt_pickle_free(clt_pickle *p); /* NULL is allowed */
const clt_pickle_value *clt_pickle_root(const clt_pickle *p);

/* --- looking at values (clt_pickle_value.c) --- */

/* The value of a key of a dictionary; the last one if the key is repeated, as in Python. NULL: absent, or no
 * dictionary. */
const clt_pickle_value *clt_pickle_get(const clt_pickle_value *dict, const char *key);
/* An INT, a BOOL or a whole FLOAT as an integer. */
bool clt_pickle_as_int(const clt_pickle_value *v, int64_t *out);
bool clt_pickle_is_text(const clt_pickle_value *v, const char *text);

/* --- writing (clt_pickle_write.c) --- */

/* Appends opcodes of protocol 2 to a text. The caller keeps to the order of the stack machine:
 *
 *     clt_pickle_put_begin(&s);
 *     clt_pickle_put_dict(&s);      // {
 *     clt_pickle_put_text(&s, "param");
 *     clt_pickle_put_tensor(&s, "0", count, 2, shape);
 *     clt_pickle_put_items(&s);     // }
 *     clt_pickle_put_end(&s); */
void clt_pickle_put_begin(clt_str *s);
void clt_pickle_put_end(clt_str *s);
void clt_pickle_put_dict(clt_str *s);
void clt_pickle_put_items(clt_str *s); /* ends the dictionary that was begun last */
void clt_pickle_put_list(clt_str *s);
void clt_pickle_put_appends(clt_str *s); /* ends the list that was begun last */
void clt_pickle_put_text(clt_str *s, const char *text);
void clt_pickle_put_int(clt_str *s, int64_t v);
void clt_pickle_put_bool(clt_str *s, bool v);
void clt_pickle_put_none(clt_str *s);
/* A whole fp32 storage as a tensor. */
void clt_pickle_put_tensor(clt_str *s, const char *key, uint64_t count, int dims, const uint64_t *shape);

#endif
