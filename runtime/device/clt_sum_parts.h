/* clt_sum_parts: what a device adds up in one kernel: parts of an exchange, element by element, in the order
 * of a tree. An exchange (collectives/) says what to add, an operation (clt_op_slab.h) adds it. */
#ifndef CLT_SUM_PARTS_H
#define CLT_SUM_PARTS_H

#include "runtime/device/clt_device.h"

enum {
    CLT_PARTS_MOST = 8, /* parts */
    CLT_PARTS_DEPTH = 4 /* of the stack below */
};

/* dst[i] = the sum of the parts' elements i, i < count, in fp32. The tree is a program for a stack: part 0 is
 * pushed, and joins[0] times the two topmost numbers are replaced by their sum; then part 1 and so on. One
 * number is left, and there are never more than CLT_PARTS_DEPTH. */
typedef struct {
    uint64_t count;
    int n; /* parts, 1 ... CLT_PARTS_MOST */
    struct {
        clt_ref at;  /* [count]; dst may be the place of one of those in fp32 */
        bool narrow; /* bf16; otherwise fp32 */
        int joins;
    } part[CLT_PARTS_MOST];
    bool round;  /* parts in fp32, and the sum, are rounded to bf16 (nearest even) */
    clt_ref dst; /* fp32 [count] */
} clt_sum_parts;

#endif
