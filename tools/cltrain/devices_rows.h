/* devices_rows: which kernel variants a device can run (cltrain devices --rows). For each operation with a
 * table: the rows whose requirements hold on the device, best first, and for the rows of the table before the
 * first of these what they lack. Which of them a call uses also depends on its shape and types, and on the
 * check against the oracle, which happens in a run. */
#ifndef DEVICES_ROWS_H
#define DEVICES_ROWS_H

#include "runtime/ops/clt_variant.h"

/* Prints a block of lines, each after `bar`. ops: of that device, with numerics fast. */
void devices_print_rows(clt_ops *ops, const char *bar);
/* Appends {"OPERATION":[{"id":..,"file":..,"usable":..,"fast":..,"lacks":[..]},..],..} to b, rows in the
 * order of their table; fast: only with numerics: fast. */
void devices_json_rows(clt_ops *ops, clt_str *b);

#endif
