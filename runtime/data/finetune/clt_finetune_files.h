/* clt_finetune_files: which files dataset.hf_name means, by the rules of Hugging Face's load_dataset for
 * local JSON files. */
#ifndef CLT_FINETUNE_FILES_H
#define CLT_FINETUNE_FILES_H

#include "runtime/data/finetune/clt_finetune.h"

/* Appends the paths of the JSONL files of `split` (NULL: train), in the order in which they are read:
 * - hf_name is a file: that file; its name does not have to contain the split;
 * - hf_name is a folder, or "json" with data_dir: the *.jsonl and *.json files below it that are not hidden,
 * of the first of these that there are: data/SPLIT-00000-of-00001.jsonl; those in a folder whose name has a
 *   word for the split (train, training; validation, valid, dev, val; test, testing, eval, evaluation; or the
 *   split itself) between separators; those with the word in their own name; for train, all files, if there
 *   is no such word in any name. They are sorted by name, first those whose name begins with the word;
 * - hf_name "json" with data_files: these files.
 * CLT_BAD_CONFIG with the reason: nothing is found, or hf_name is the name of a data set on a hub. CLT_IO. */
clt_status clt_finetune_find_files(const clt_finetune_params *p, const char *split, clt_strv *paths);

#endif
