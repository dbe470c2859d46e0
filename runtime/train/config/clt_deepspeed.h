/* clt_deepspeed: DeepSpeed's ds_config.json as keys of a training configuration. The key `deepspeed: FILE`
 * (or `cltrain train --deepspeed FILE`) names the file. Its values are written into the document of the YAML
 * before that is checked, so that everything behind it sees cltrain's own keys alone.
 *
 * Every key of DeepSpeed 0.16.4 and 0.19.8 is in a table (clt_deepspeed_keys.c): it is mapped to a key of the
 * YAML, named by a notice as one without effect, or refused with the reason. The two files must not
 * contradict each other: a key that both give must have the same value in both. What the file leaves out or
 * calls "auto" comes from the YAML, and from DeepSpeed's default where the YAML does not say it either. */
#ifndef CLT_DEEPSPEED_H
#define CLT_DEEPSPEED_H

#include "runtime/train/config/clt_config.h"

/* The batch triangle: train = micro * accumulation * ranks. 0 or less is not given as far as `given` says. */
typedef struct {
    int64_t train, micro, accumulation;
    bool has_train, has_micro, has_accumulation;
} clt_deepspeed_batch;

/* Fills in what is missing by integer division, as DeepSpeed does, and checks the product. NULL: all three
 * numbers are set; otherwise the reason, a constant, and *b is partly filled. */
const char *clt_deepspeed_complete(clt_deepspeed_batch *b, int64_t ranks);

/* JSON with the liberties of hjson that configurations use, as a text that clt_yaml reads: comments become
 * blanks, and a comma is added where a line ends without one. Lines keep their numbers, and a byte of 0
 * stays, which clt_yaml refuses. The caller frees the text. */
clt_str clt_deepspeed_tidy(const char *text, size_t bytes);

/* If the document c->merged has the key `deepspeed`: reads that file for a run of `ranks` ranks, writes its
 * values into c->yaml and makes c->merged anew. CLT_BAD_CONFIG after one message that names the place in
 * either file; the failures of clt_io_read_all. */
clt_status clt_deepspeed_apply(clt_config *c, int ranks);

/* Every key of the file with its type, default, status and meaning as Markdown rows: docs/deepspeed.md. */
void clt_deepspeed_list_keys(clt_str *out);

#endif
