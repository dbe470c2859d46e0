#include <string.h>

#include "runtime/checkpoint/clt_pickle_internal.h"

/* --- values --- */

enum { BLOCK = 512 };

typedef struct block block;
struct block {
    block *next;
    int n;
    clt_pickle_value value[BLOCK];
};

struct clt_pickle {
    block *blocks; /* the newest first */
    size_t values;
    clt_pickle_value *root;
};

/* --- errors and growth --- */

clt_status clt_pickle_bad(const clt_pickle_parser *x, const char *why) {
    return clt_error(CLT_BAD_DATA, "%s: byte %zu of the pickle: %s", x->what, x->op_at, why);
}

clt_status clt_pickle_push_ref(clt_pickle_parser *x, clt_pickle_refs *r, clt_pickle_value *v) {
    if (r->n == CLT_PICKLE_MAX_VALUES) return clt_pickle_bad(x, "more than 262144 values");
    if (r->n == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 64;
        clt_pickle_value **bigger = clt_try_realloc(r->v, cap * sizeof *bigger);
        if (!bigger) return clt_no_memory(x->what, cap * sizeof *bigger);
        r->v = bigger;
        r->cap = cap;
    }
    r->v[r->n++] = v;
    return CLT_OK;
}

static clt_status make(clt_pickle_parser *x, clt_pickle_kind kind, clt_pickle_value **out) {
    block *b = x->p->blocks;
    if (x->p->values == CLT_PICKLE_MAX_VALUES) return clt_pickle_bad(x, "more than 262144 values");
    if (!b || b->n == BLOCK) {
        b = clt_try_malloc(sizeof *b);
        if (!b) return clt_no_memory(x->what, sizeof *b);
        b->n = 0;
        b->next = x->p->blocks;
        x->p->blocks = b;
    }
    x->p->values++;
    clt_pickle_value *v = &b->value[b->n++];
    *v = (clt_pickle_value){.kind = kind};
    *out = v;
    return CLT_OK;
}

clt_status clt_pickle_push_new(clt_pickle_parser *x, clt_pickle_kind kind, clt_pickle_value **out) {
    CLT_TRY(make(x, kind, out));
    return clt_pickle_push_ref(x, &x->stack, *out);
}

/* The top of the stack, above the last mark. */
clt_status clt_pickle_pop(clt_pickle_parser *x, clt_pickle_value **out) {
    if (x->stack.n <= (x->marks ? x->mark[x->marks - 1] : 0)) return clt_pickle_bad(x, "the stack is empty");
    *out = x->stack.v[--x->stack.n];
    return CLT_OK;
}

clt_status clt_pickle_top(clt_pickle_parser *x, clt_pickle_value **out) {
    CLT_TRY(clt_pickle_pop(x, out));
    x->stack.n++;
    return CLT_OK;
}

/* The values above the last mark, which is removed; *items is valid until the stack grows. */
static clt_status pop_mark(clt_pickle_parser *x, clt_pickle_value ***items, size_t *n) {
    if (!x->marks) return clt_pickle_bad(x, "there is no mark on the stack");
    const size_t from = x->mark[--x->marks];
    *items = x->stack.v + from;
    *n = x->stack.n - from;
    x->stack.n = from;
    return CLT_OK;
}

static bool is_container(const clt_pickle_value *v) {
    return v->kind == CLT_PICKLE_TUPLE || v->kind == CLT_PICKLE_LIST || v->kind == CLT_PICKLE_DICT;
}

static clt_status append(clt_pickle_parser *x, clt_pickle_value *to, clt_pickle_value **items, size_t n) {
    if (n > to->list.cap - to->list.n) {
        const size_t cap = CLT_MAX(2 * to->list.cap, to->list.n + n);
        clt_pickle_value **bigger = clt_try_realloc(to->list.item, cap * sizeof *bigger);
        if (!bigger) return clt_no_memory(x->what, cap * sizeof *bigger);
        to->list.item = bigger;
        to->list.cap = cap;
    }
    for (size_t i = 0; i < n; i++) {
        to->list.item[to->list.n++] = items[i];
        to->depth = CLT_MAX(to->depth, items[i]->depth + 1);
    }
    if (to->depth > CLT_PICKLE_MAX_DEPTH) return clt_pickle_bad(x, "containers are nested more than 64 deep");
    return CLT_OK;
}

/* --- bytes --- */

static clt_status need(const clt_pickle_parser *x, size_t n) {
    return n <= x->bytes - x->at ? CLT_OK : clt_pickle_bad(x, "the pickle ends early");
}

/* An unsigned little-endian number of n bytes. */
static clt_status take(clt_pickle_parser *x, int n, uint64_t *out) {
    CLT_TRY(need(x, (size_t)n));
    *out = 0;
    for (int i = n - 1; i >= 0; i--) *out = *out << 8 | x->data[x->at + (size_t)i];
    x->at += (size_t)n;
    return CLT_OK;
}

static clt_status push_text(clt_pickle_parser *x, int length_bytes) {
    uint64_t n;
    clt_pickle_value *v;
    CLT_TRY(take(x, length_bytes, &n));
    if (n > x->bytes - x->at) return clt_pickle_bad(x, "a text is longer than the pickle");
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_TEXT, &v));
    v->text.s = (const char *)x->data + x->at;
    v->text.n = (size_t)n;
    x->at += (size_t)n;
    return CLT_OK;
}

static clt_status push_int(clt_pickle_parser *x, int64_t i) {
    clt_pickle_value *v;
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_INT, &v));
    v->integer = i;
    return CLT_OK;
}

static clt_status push_number(clt_pickle_parser *x, int bytes) {
    uint64_t u;
    CLT_TRY(take(x, bytes, &u));
    return push_int(x, bytes == 4 ? (int32_t)(uint32_t)u : (int64_t)u);
}

/* LONG1: two's complement of as many bytes as it says. */
static clt_status push_long(clt_pickle_parser *x, int unused) {
    (void)unused;
    uint64_t n, u;
    CLT_TRY(take(x, 1, &n));
    if (n > 8) return clt_pickle_bad(x, "an integer of more than 64 bits");
    CLT_TRY(take(x, (int)n, &u));
    if (n > 0 && n < 8 && u >> (8 * n - 1)) u |= ~0ull << (8 * n);
    return push_int(x, (int64_t)u);
}

/* Big endian, unlike all others. */
static clt_status push_float(clt_pickle_parser *x, int unused) {
    (void)unused;
    uint64_t u = 0;
    clt_pickle_value *v;
    CLT_TRY(need(x, 8));
    for (int i = 0; i < 8; i++) u = u << 8 | x->data[x->at++];
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_FLOAT, &v));
    memcpy(&v->real, &u, sizeof v->real);
    return CLT_OK;
}

static clt_status push_bool(clt_pickle_parser *x, int b) {
    clt_pickle_value *v;
    CLT_TRY(clt_pickle_push_new(x, CLT_PICKLE_BOOL, &v));
    v->truth = b != 0;
    return CLT_OK;
}

/* --- containers --- */

/* The n values on top of the stack. */
static clt_status pop_some(clt_pickle_parser *x, size_t n, clt_pickle_value ***items) {
    if (x->stack.n - (x->marks ? x->mark[x->marks - 1] : 0) < n)
        return clt_pickle_bad(x, "the stack is empty");
    x->stack.n -= n;
    *items = x->stack.v + x->stack.n;
    return CLT_OK;
}

/* Of the n values on top, or with n 0 of those above the mark. */
static clt_status push_tuple(clt_pickle_parser *x, int n) {
    clt_pickle_value **items = NULL, *v;
    size_t count = (size_t)n;
    CLT_TRY(n ? pop_some(x, count, &items) : pop_mark(x, &items, &count));
    CLT_TRY(make(x, CLT_PICKLE_TUPLE, &v));
    CLT_TRY(append(x, v, items, count)); /* before the push, which overwrites the first item */
    return clt_pickle_push_ref(x, &x->stack, v);
}

static clt_status push_kind(clt_pickle_parser *x, int kind) {
    clt_pickle_value *v;
    return clt_pickle_push_new(x, (clt_pickle_kind)kind, &v);
}

/* Into the container below: the n values on top, or with n 0 those above the mark. */
static clt_status extend(clt_pickle_parser *x, clt_pickle_kind kind, size_t n) {
    clt_pickle_value **items = NULL, *to = NULL;
    CLT_TRY(n ? pop_some(x, n, &items) : pop_mark(x, &items, &n));
    CLT_TRY(clt_pickle_top(x, &to));
    if (to->kind == CLT_PICKLE_OPAQUE) return CLT_OK;
    if (to->kind != kind) return clt_pickle_bad(x, "items for something that is not such a container");
    if (kind == CLT_PICKLE_DICT && n % 2) return clt_pickle_bad(x, "a key without a value");
    return append(x, to, items, n);
}

static clt_status extend_list(clt_pickle_parser *x, int n) {
    return extend(x, CLT_PICKLE_LIST, (size_t)n);
}

static clt_status extend_dict(clt_pickle_parser *x, int n) {
    return extend(x, CLT_PICKLE_DICT, (size_t)n);
}

/* --- memo --- */

/* A pickler numbers what it stores consecutively. */
static clt_status put(clt_pickle_parser *x, uint64_t index) {
    clt_pickle_value *v = NULL;
    CLT_TRY(clt_pickle_top(x, &v));
    if (index > x->memo.n) return clt_pickle_bad(x, "an index of the memo that skips others");
    if (index == x->memo.n) return clt_pickle_push_ref(x, &x->memo, v);
    x->memo.v[index] = v;
    return CLT_OK;
}

static clt_status get(clt_pickle_parser *x, int bytes) {
    uint64_t index;
    CLT_TRY(take(x, bytes, &index));
    if (index >= x->memo.n) return clt_pickle_bad(x, "an index that is not in the memo");
    return clt_pickle_push_ref(x, &x->stack, x->memo.v[index]);
}

static clt_status memoize(clt_pickle_parser *x, int unused) {
    (void)unused;
    return put(x, x->memo.n);
}

static clt_status put_at(clt_pickle_parser *x, int bytes) {
    uint64_t index;
    CLT_TRY(take(x, bytes, &index));
    return put(x, index);
}

/* --- opcodes --- */

static clt_status push_mark(clt_pickle_parser *x, int unused) {
    (void)unused;
    if (x->marks == CLT_PICKLE_MAX_DEPTH) return clt_pickle_bad(x, "marks are nested more than 64 deep");
    x->mark[x->marks++] = x->stack.n;
    return CLT_OK;
}

static clt_status protocol(clt_pickle_parser *x, int unused) {
    (void)unused;
    uint64_t v;
    CLT_TRY(take(x, 1, &v));
    return v >= 2 && v <= 5 ? CLT_OK : clt_pickle_bad(x, "a protocol other than 2 to 5");
}

static clt_status frame(clt_pickle_parser *x, int unused) {
    (void)unused;
    uint64_t n;
    CLT_TRY(take(x, 8, &n));
    return n <= x->bytes - x->at ? CLT_OK : clt_pickle_bad(x, "a frame is longer than the pickle");
}

/* The opcodes that torch.save writes, by protocols 2 to 5; "." is the end. */
static const struct {
    unsigned char op;
    clt_status (*run)(clt_pickle_parser *x, int arg);
    int arg;
} opcodes[] = {
    {0x80, protocol, 0},                     /* PROTO */
    {0x95, frame, 0},                        /* FRAME */
    {'N', push_kind, CLT_PICKLE_NONE},       /* NONE */
    {0x88, push_bool, 1},                    /* NEWTRUE */
    {0x89, push_bool, 0},                    /* NEWFALSE */
    {'J', push_number, 4},                   /* BININT */
    {'K', push_number, 1},                   /* BININT1 */
    {'M', push_number, 2},                   /* BININT2 */
    {0x8A, push_long, 0},                    /* LONG1 */
    {'G', push_float, 0},                    /* BINFLOAT */
    {'X', push_text, 4},                     /* BINUNICODE */
    {'B', push_text, 4},                     /* BINBYTES */
    {0x8C, push_text, 1},                    /* SHORT_BINUNICODE */
    {'C', push_text, 1},                     /* SHORT_BINBYTES */
    {0x8D, push_text, 8},                    /* BINUNICODE8 */
    {0x8E, push_text, 8},                    /* BINBYTES8 */
    {'(', push_mark, 0},                     /* MARK */
    {')', push_kind, CLT_PICKLE_TUPLE},      /* EMPTY_TUPLE */
    {']', push_kind, CLT_PICKLE_LIST},       /* EMPTY_LIST */
    {0x8F, push_kind, CLT_PICKLE_LIST},      /* EMPTY_SET */
    {'}', push_kind, CLT_PICKLE_DICT},       /* EMPTY_DICT */
    {'t', push_tuple, 0},                    /* TUPLE */
    {0x85, push_tuple, 1},                   /* TUPLE1 */
    {0x86, push_tuple, 2},                   /* TUPLE2 */
    {0x87, push_tuple, 3},                   /* TUPLE3 */
    {'a', extend_list, 1},                   /* APPEND */
    {'e', extend_list, 0},                   /* APPENDS */
    {0x90, extend_list, 0},                  /* ADDITEMS */
    {'s', extend_dict, 2},                   /* SETITEM */
    {'u', extend_dict, 0},                   /* SETITEMS */
    {'q', put_at, 1},                        /* BINPUT */
    {'r', put_at, 4},                        /* LONG_BINPUT */
    {0x94, memoize, 0},                      /* MEMOIZE */
    {'h', get, 1},                           /* BINGET */
    {'j', get, 4},                           /* LONG_BINGET */
    {'c', clt_pickle_push_global, 0},        /* GLOBAL */
    {0x93, clt_pickle_push_stack_global, 0}, /* STACK_GLOBAL */
    {'Q', clt_pickle_push_storage, 0},       /* BINPERSID */
    {'R', clt_pickle_reduce, 0},             /* REDUCE */
    {0x81, clt_pickle_new_object, 0},        /* NEWOBJ */
    {'b', clt_pickle_build, 0},              /* BUILD */
};

static clt_status step(clt_pickle_parser *x, int op) {
    for (size_t i = 0; i < CLT_COUNT_OF(opcodes); i++)
        if (opcodes[i].op == op) return opcodes[i].run(x, opcodes[i].arg);
    return clt_error(CLT_BAD_DATA,
                     "%s: byte %zu of the pickle is the opcode 0x%02x, which torch.save does not write for "
                     "tensors",
                     x->what, x->op_at, op);
}

static clt_status run(clt_pickle_parser *x) {
    if (x->bytes > CLT_PICKLE_MAX_BYTES) return clt_pickle_bad(x, "the pickle has more than 16 MiB");
    if (x->bytes < 2 || x->data[0] != 0x80)
        return clt_pickle_bad(x, "this is not a pickle of protocol 2 to 5");
    for (;;) {
        x->op_at = x->at;
        CLT_TRY(need(x, 1));
        const int op = x->data[x->at++];
        if (op == '.') break;
        CLT_TRY(step(x, op));
    }
    if (x->marks || x->stack.n != 1) return clt_pickle_bad(x, "the end leaves not exactly one value");
    if (x->at != x->bytes) return clt_pickle_bad(x, "bytes follow the end");
    x->p->root = x->stack.v[0];
    return CLT_OK;
}

clt_status clt_pickle_parse(const void *data, size_t bytes, unsigned flags, const char *what,
                            clt_pickle **out) {
    clt_pickle *p = clt_calloc(1, sizeof *p);
    clt_pickle_parser x = {.p = p, .data = data, .bytes = bytes, .flags = flags, .what = what};
    clt_status st = run(&x);
    clt_free(x.stack.v);
    clt_free(x.memo.v);
    if (st != CLT_OK) {
        clt_pickle_free(p);
        return st;
    }
    *out = p;
    return CLT_OK;
}

void clt_pickle_free(clt_pickle *p) {
    if (!p) return;
    for (block *b = p->blocks, *next; b; b = next) {
        next = b->next;
        for (int i = 0; i < b->n; i++)
            if (is_container(&b->value[i])) clt_free(b->value[i].list.item);
        clt_free(b);
    }
    clt_free(p);
}

const clt_pickle_value *clt_pickle_root(const clt_pickle *p) {
    return p->root;
}
