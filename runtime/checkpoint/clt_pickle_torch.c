/* What pickles name: listed names, storages and tensors, and calls, which are not made. */
#include <string.h>

#include "runtime/checkpoint/clt_pickle_internal.h"

/* --- names --- */

static const struct {
    const char *name; /* of the storage class in torch; and of the type */
    const char *type;
    int bytes;
} dtypes[CLT_PICKLE_DTYPES] = {
    {"torch FloatStorage", "float32", 4},     {"torch HalfStorage", "float16", 2},
    {"torch BFloat16Storage", "bfloat16", 2}, {"torch DoubleStorage", "float64", 8},
    {"torch LongStorage", "int64", 8},        {"torch IntStorage", "int32", 4},
    {"torch ShortStorage", "int16", 2},       {"torch CharStorage", "int8", 1},
    {"torch ByteStorage", "uint8", 1},        {"torch.storage UntypedStorage", "bytes", 1}};

static const char ordered_dict[] = "collections OrderedDict", size_class[] = "torch Size",
                  rebuild[] = "torch._utils _rebuild_tensor_v2";

const char *clt_pickle_dtype_name(clt_pickle_dtype t) {
    return dtypes[t].type;
}
int clt_pickle_dtype_bytes(clt_pickle_dtype t) {
    return dtypes[t].bytes;
}

static bool is_name(const clt_pickle_value *v, const char *name) {
    return v->kind == CLT_PICKLE_GLOBAL && strcmp(v->text.s, name) == 0; /* a text of push_name */
}

static int storage_dtype(const clt_pickle_value *v) {
    for (int i = 0; i < CLT_PICKLE_DTYPES; i++)
        if (is_name(v, dtypes[i].name)) return i;
    return -1;
}

/* Pushes a listed name; `text` is "module name" and belongs to nobody: the list's own text is kept. */
static clt_status push_name(clt_pickle_parser *x, const char *text) {
    const char *const known[] = {ordered_dict, size_class, rebuild};
    const char *name = NULL;
    clt_pickle_value *v;
    for (size_t i = 0; i < CLT_COUNT_OF(known); i++)
        if (strcmp(text, known[i]) == 0) name = known[i];
    for (int i = 0; i < CLT_PICKLE_DTYPES; i++)
        if (strcmp(text, dtypes[i].name) == 0) name = dtypes[i].name;
    if (!name && x->flags & CLT_PICKLE_OPAQUE_NAMES) return clt_pickle_push_new(x, CLT_PICKLE_OPAQUE, &v);
    if (!name)
        return clt_error(CLT_BAD_DATA,
                         "%s: byte %zu of the pickle names '%s', which is not a part of tensors; nothing of "
                         "it was executed",
                         x->what, x->op_at, text);
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_GLOBAL, &v));
    v->text.s = name;
    v->text.n = strlen(name);
    return CLT_OK;
}

enum { NAME_LIMIT = 256 };

/* "module name", with what is not printable as '?': it may end up in a message. */
static clt_status join_name(clt_pickle_parser *x, const unsigned char *module, size_t m,
                            const unsigned char *name, size_t n) {
    char text[2 * NAME_LIMIT + 2];
    size_t k = 0;
    if (m > NAME_LIMIT || n > NAME_LIMIT) return clt_pickle_bad(x, "a name has more than 256 bytes");
    for (size_t i = 0; i < m; i++) text[k++] = module[i] > 32 && module[i] < 127 ? (char)module[i] : '?';
    text[k++] = ' ';
    for (size_t i = 0; i < n; i++) text[k++] = name[i] > 32 && name[i] < 127 ? (char)name[i] : '?';
    text[k] = 0;
    return push_name(x, text);
}

/* GLOBAL: two lines. */
clt_status clt_pickle_push_global(clt_pickle_parser *x, int unused) {
    (void)unused;
    const unsigned char *line[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        line[i] = x->data + x->at;
        const unsigned char *end = memchr(line[i], '\n', x->bytes - x->at);
        if (!end) return clt_pickle_bad(x, "a name has no end");
        n[i] = (size_t)(end - line[i]);
        x->at += n[i] + 1;
    }
    return join_name(x, line[0], n[0], line[1], n[1]);
}

clt_status clt_pickle_push_stack_global(clt_pickle_parser *x, int unused) {
    (void)unused;
    clt_pickle_value *module = NULL, *name = NULL;
    CLT_TRY(clt_pickle_pop(x, &name));
    CLT_TRY(clt_pickle_pop(x, &module));
    if (name->kind != CLT_PICKLE_TEXT || module->kind != CLT_PICKLE_TEXT)
        return clt_pickle_bad(x, "a name is not a text");
    return join_name(x, (const unsigned char *)module->text.s, module->text.n,
                     (const unsigned char *)name->text.s, name->text.n);
}

/* --- storages and tensors --- */

static bool is_count(const clt_pickle_value *v) {
    return v->kind == CLT_PICKLE_INT && v->integer >= 0;
}

/* BINPERSID: ("storage", class, key, device, number of elements). */
clt_status clt_pickle_push_storage(clt_pickle_parser *x, int unused) {
    (void)unused;
    clt_pickle_value *id = NULL, *v;
    CLT_TRY(clt_pickle_pop(x, &id));
    if (id->kind != CLT_PICKLE_TUPLE || id->list.n != 5)
        return clt_pickle_bad(x, "a storage has not five fields");
    clt_pickle_value **f = id->list.item;
    const int dtype = storage_dtype(f[1]);
    if (!clt_pickle_is_text(f[0], "storage") || dtype < 0 || f[2]->kind != CLT_PICKLE_TEXT ||
        f[3]->kind != CLT_PICKLE_TEXT || !is_count(f[4]))
        return clt_pickle_bad(x, "a storage has other fields than torch.save writes");
    if ((uint64_t)f[4]->integer > INT64_MAX / (uint64_t)dtypes[dtype].bytes)
        return clt_pickle_bad(x, "the size of a storage overflows 63 bits");
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_STORAGE, &v));
    v->storage.key = f[2];
    v->storage.dtype = (clt_pickle_dtype)dtype;
    v->storage.count = (uint64_t)f[4]->integer;
    return CLT_OK;
}

static clt_status read_shape(clt_pickle_parser *x, const clt_pickle_value *size, clt_pickle_value *t) {
    uint64_t count = 1;
    if (size->kind != CLT_PICKLE_TUPLE) return clt_pickle_bad(x, "a tensor's shape is not a tuple");
    if (size->list.n > CLT_PICKLE_MAX_DIMS) return clt_pickle_bad(x, "a tensor has more than 8 dimensions");
    for (size_t d = 0; d < size->list.n; d++) {
        if (!is_count(size->list.item[d]))
            return clt_pickle_bad(x, "a tensor's shape has something else than sizes");
        t->tensor.shape[d] = (uint64_t)size->list.item[d]->integer;
        if (__builtin_mul_overflow(count, t->tensor.shape[d], &count) || count > INT64_MAX)
            return clt_pickle_bad(x, "the product of a tensor's shape overflows 63 bits");
    }
    t->tensor.dims = (int)size->list.n;
    t->tensor.count = count;
    return CLT_OK;
}

/* Strides of dimensions of one element have no meaning. */
static clt_status check_strides(clt_pickle_parser *x, const clt_pickle_value *stride, clt_pickle_value *t) {
    uint64_t expected = 1;
    if (stride->kind != CLT_PICKLE_TUPLE || stride->list.n != (size_t)t->tensor.dims)
        return clt_pickle_bad(x, "a tensor's strides do not match its shape");
    for (int d = t->tensor.dims - 1; d >= 0 && t->tensor.count > 0; d--) {
        const clt_pickle_value *s = stride->list.item[d];
        if (!is_count(s)) return clt_pickle_bad(x, "a tensor's stride is not a count");
        if (t->tensor.shape[d] != 1 && (uint64_t)s->integer != expected) {
            t->kind = CLT_PICKLE_OPAQUE;
            return x->flags & CLT_PICKLE_OPAQUE_NAMES
                       ? CLT_OK
                       : clt_pickle_bad(x, "a tensor is not contiguous: save it with .contiguous()");
        }
        expected *= t->tensor.shape[d];
    }
    return CLT_OK;
}

/* _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata]). */
static clt_status push_tensor(clt_pickle_parser *x, const clt_pickle_value *args) {
    clt_pickle_value *t, **f = args->list.item;
    if (args->list.n < 6 || args->list.n > 7)
        return clt_pickle_bad(x, "a tensor has not six or seven fields");
    if (f[0]->kind != CLT_PICKLE_STORAGE || !is_count(f[1]))
        return clt_pickle_bad(x, "a tensor has no storage or no offset");
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_TENSOR, &t));
    t->tensor.storage = f[0];
    t->tensor.offset = (uint64_t)f[1]->integer;
    CLT_TRY(read_shape(x, f[2], t));
    CLT_TRY(check_strides(x, f[3], t));
    if (t->kind == CLT_PICKLE_OPAQUE) return CLT_OK;
    const uint64_t room = f[0]->storage.count;
    if (t->tensor.offset > room || t->tensor.count > room - t->tensor.offset)
        return clt_pickle_bad(x, "a tensor is larger than its storage");
    return CLT_OK;
}

/* --- calls, which are not made --- */

clt_status clt_pickle_reduce(clt_pickle_parser *x, int unused) {
    (void)unused;
    clt_pickle_value *args = NULL, *f = NULL, *v;
    CLT_TRY(clt_pickle_pop(x, &args));
    CLT_TRY(clt_pickle_pop(x, &f));
    if (f->kind == CLT_PICKLE_OPAQUE) return clt_pickle_push_new(x, CLT_PICKLE_OPAQUE, &v);
    if (f->kind != CLT_PICKLE_GLOBAL || args->kind != CLT_PICKLE_TUPLE)
        return clt_pickle_bad(x, "a call of something that is not a listed name");
    if (is_name(f, rebuild)) return push_tensor(x, args);
    if (is_name(f, ordered_dict) && args->list.n == 0) return clt_pickle_push_new(x, CLT_PICKLE_DICT, &v);
    if (is_name(f, size_class) && args->list.n == 1 && args->list.item[0]->kind == CLT_PICKLE_TUPLE)
        return clt_pickle_push_ref(x, &x->stack, args->list.item[0]);
    return clt_error(
        CLT_BAD_DATA,
        "%s: byte %zu of the pickle: a call of '%.*s' with other arguments than torch.save writes", x->what,
        x->op_at, (int)f->text.n, f->text.s);
}

/* NEWOBJ: an object of a class. */
clt_status clt_pickle_new_object(clt_pickle_parser *x, int unused) {
    (void)unused;
    clt_pickle_value *args = NULL, *cls = NULL, *v;
    CLT_TRY(clt_pickle_pop(x, &args));
    CLT_TRY(clt_pickle_pop(x, &cls));
    if (cls->kind != CLT_PICKLE_OPAQUE)
        return clt_pickle_bad(x, "an object of a class that torch.save does not write");
    return clt_pickle_push_new(x, CLT_PICKLE_OPAQUE, &v);
}

/* BUILD: attributes of an object. Those of an OrderedDict are the versions of modules. */
clt_status clt_pickle_build(clt_pickle_parser *x, int unused) {
    (void)unused;
    clt_pickle_value *state, *v = NULL;
    CLT_TRY(clt_pickle_pop(x, &state));
    CLT_TRY(clt_pickle_top(x, &v));
    if (v->kind != CLT_PICKLE_OPAQUE && v->kind != CLT_PICKLE_DICT)
        return clt_pickle_bad(x, "attributes of something that has none");
    return CLT_OK;
}
