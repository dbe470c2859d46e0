/* group_gather: the test of slabs that groups of ranks hold once each. */
#ifndef GROUP_GATHER_H
#define GROUP_GATHER_H

#include "runtime/device/clt_slab.h"

/* All ranks of the group under test call it. Groups of `each` ranks; where these are not some of the ranks it
 * does nothing. */
void test_gathers_in_groups(clt_device *dev, const clt_slab_table *t, int each);

#endif
