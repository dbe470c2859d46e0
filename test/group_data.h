/* group_data: what tests of groups share: the group under test, checks that end the job where they fail, and
 * the test of the functions that move host data. */
#ifndef GROUP_DATA_H
#define GROUP_DATA_H

#include "collectives/clt_group.h"

extern clt_group *group; /* the one under test, and this rank in it */
extern int rank, size;

void enter(clt_group *g);
void check(bool ok, const char *what, int64_t a, int64_t b, int64_t c);
#define CHECK(cond, a, b, c) check(cond, #cond, a, b, c)
void ok(clt_status st, const char *what);

/* Every function of clt_group.h that moves host data or compares statuses. */
void test_host_data(void);

#endif
