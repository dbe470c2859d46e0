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

/* The section elasticity of DeepSpeed 0.16.4. */
enum { CLT_ELASTIC_MOST_MICRO = 64, CLT_ELASTIC_MOST_BATCH = 100000000 };
typedef struct {
    int version; /* 1, 2: 0.1, 0.2 */
    int64_t max_batch, micro[CLT_ELASTIC_MOST_MICRO], n_micro, min_gpus, max_gpus, gpus_per_node,
        model_parallel;
    bool prefer_larger;
} clt_deepspeed_elastic;

typedef struct {
    int64_t batch, micro; /* micro: of the given number of ranks; 0: none was given */
    int64_t *ranks;       /* [n] valid numbers, ascending; clt_free */
    int n;
} clt_deepspeed_elastic_plan;

/* The batch with the most valid numbers of ranks, and those, as DeepSpeed computes them: candidates are each
 * micro batch, and their least common multiple, times the largest highly composite number that max_batch
 * allows; ties go to the larger one (prefer_larger) or the smaller. A number of ranks is valid if batch is
 * micro times ranks times a whole accumulation; of the micro batches the largest is chosen. Version 0.2
 * counts nodes of gpus_per_node, and for a `ranks` that is not valid takes the batch nearest to max_batch for
 * it alone. ranks 0: none (version 0.1 only). NULL, or the reason, a constant; *out is filled as far as it is
 * known, also then. */
const char *clt_deepspeed_elastic_compute(const clt_deepspeed_elastic *e, int64_t ranks,
                                          clt_deepspeed_elastic_plan *out);
/* The largest micro batch for a valid number of ranks; 0: there is none. */
int64_t clt_deepspeed_elastic_micro(const clt_deepspeed_elastic *e, int64_t batch, int64_t ranks);

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
