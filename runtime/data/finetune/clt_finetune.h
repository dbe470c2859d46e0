/* clt_finetune: fine-tuning data, as LLM Foundry's loader `finetuning` reads them: lines with a prompt and a
 * response or with the messages of a chat become rows of token ids whose labels are ignored outside of the
 * targets. This header has the settings; the folder's README.md says which file does what. */
#ifndef CLT_FINETUNE_H
#define CLT_FINETUNE_H

#include "runtime/base/clt_base.h"

typedef enum { CLT_TARGET_LAST, CLT_TARGET_ALL, CLT_TARGET_NONE } clt_target_responses;

/* How the columns of a JSONL line become prompt and response, or messages (clt_finetune_format.h): a
 * function, or the columns, or neither. */
typedef struct {
    const char *function;                        /* clt_finetune_function_exists; NULL: none */
    const char *prompt_column, *response_column; /* NULL: none */
} clt_finetune_format;

typedef struct {
    const char *loader; /* its key, for messages; NULL: not named */
    /* Where the samples are: JSONL files (hf_name), or an MDS data set (hf_name NULL: the loader's `local`).
     */
    const char *hf_name;        /* a folder, a file, or "json" with one of the next two */
    const char *data_dir;       /* hf_kwargs.data_dir; NULL: not given */
    const clt_strv *data_files; /* hf_kwargs.data_files; NULL or empty: not given */
    clt_finetune_format format; /* of JSONL lines */

    int64_t target_prompts; /* prompts of at least so many tokens are targets; -1: none, 0: all */
    clt_target_responses target_responses;

    const char *padding_side;  /* "left", "right"; NULL: the tokenizer's */
    const char *chat_template; /* as clt_chat_open takes it; NULL: the tokenizer's */

    int64_t batch;         /* rows of a global batch, of which packing makes one at a time */
    bool drop_last;        /* an epoch has whole batches only */
    int64_t most_batches;  /* of an epoch; 0: all */
    double packing_ratio;  /* samples per row; 1: no packing; 0: auto */
    int64_t most_leftover; /* bins that wait for the next batch; -1: all */
} clt_finetune_params;

/* How the reference's collator cuts batches: allow_pad_trimming and pad_to_longest. It changes no result: the
 * columns that are cut hold padding alone. */
typedef enum { CLT_TRIM_NONE, CLT_TRIM_MULTIPLE, CLT_TRIM_LONGEST } clt_finetune_trim;
/* Columns of a batch whose longest row has `longest` tokens; first: it is the first batch of all. */
int64_t clt_finetune_width(clt_finetune_trim trim, int64_t max_seq_len, int64_t longest, bool first);

#endif
