#include "runtime/data/finetune/clt_finetune.h"

int64_t clt_finetune_width(clt_finetune_trim trim, int64_t max_seq_len, int64_t longest, bool first) {
    const int64_t multiple = 8;
    if (trim == CLT_TRIM_LONGEST) return CLT_MIN(longest, max_seq_len);
    if (trim == CLT_TRIM_MULTIPLE && !first) return CLT_MIN(CLT_ROUND_UP(longest, multiple), max_seq_len);
    return max_seq_len;
}
