/* config_util: configurations in tests. Every function ends the test when something fails that should not. */
#ifndef CLT_TEST_CONFIG_UTIL_H
#define CLT_TEST_CONFIG_UTIL_H

#include "runtime/train/config/clt_config.h"

#define CU_BASE "test/golden/mpt-learned/train.yaml"

clt_config *cu_load(const char *path);
/* CU_BASE with one override. */
clt_config *cu_load_with(const char *override);
/* Whether a notice names this key as one without effect. */
bool cu_has_notice(const clt_config *c, const char *path);

#endif
