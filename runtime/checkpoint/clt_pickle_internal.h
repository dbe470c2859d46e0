/* Shared by clt_pickle.c (the stack machine) and clt_pickle_torch.c (names, storages, tensors) only. */
#ifndef CLT_PICKLE_INTERNAL_H
#define CLT_PICKLE_INTERNAL_H

#include "runtime/checkpoint/clt_pickle.h"

/* References to values; grows. */
typedef struct {
    clt_pickle_value **v;
    size_t n, cap;
} clt_pickle_refs;

typedef struct {
    clt_pickle *p;
    const unsigned char *data;
    size_t bytes, at, op_at; /* op_at: where the opcode stands that is being executed */
    unsigned flags;
    const char *what;
    clt_pickle_refs stack, memo;
    size_t mark[CLT_PICKLE_MAX_DEPTH]; /* heights of the stack */
    int marks;
} clt_pickle_parser;

/* CLT_BAD_DATA with file and byte of the opcode. */
clt_status clt_pickle_bad(const clt_pickle_parser *x, const char *why);
clt_status clt_pickle_push_ref(clt_pickle_parser *x, clt_pickle_refs *r, clt_pickle_value *v);
/* A new value on the stack. */
clt_status clt_pickle_push_new(clt_pickle_parser *x, clt_pickle_kind kind, clt_pickle_value **out);
/* The top of the stack, above the last mark. */
clt_status clt_pickle_pop(clt_pickle_parser *x, clt_pickle_value **out);
clt_status clt_pickle_top(clt_pickle_parser *x, clt_pickle_value **out);

/* Opcodes; `unused` is the argument of other opcodes. */
clt_status clt_pickle_push_global(clt_pickle_parser *x, int unused);
clt_status clt_pickle_push_stack_global(clt_pickle_parser *x, int unused);
clt_status clt_pickle_push_storage(clt_pickle_parser *x, int unused);
clt_status clt_pickle_reduce(clt_pickle_parser *x, int unused);
clt_status clt_pickle_new_object(clt_pickle_parser *x, int unused);
clt_status clt_pickle_build(clt_pickle_parser *x, int unused);

#endif
