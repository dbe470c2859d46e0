/* What the two files that read model configurations share. Not for other folders. */
#ifndef CLT_MPT_CONFIG_INTERNAL_H
#define CLT_MPT_CONFIG_INTERNAL_H

#include "clt_mpt_config.h"

/* Fills cfg->layer from block_overrides (NULL: none) and the model-wide values; window is
 * sliding_window_size. */
clt_status clt_mpt_config_blocks(clt_schema_reader *r, const char *path, json_t *block_overrides,
                                 int64_t window, clt_mpt_config *cfg);

#endif
