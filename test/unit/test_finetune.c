/* Fine-tuning data: the batches that LLM Foundry made of the same files (test/golden/finetune/batches.json),
 * the turns of single lines, torch's random order, packing, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_jsonl.h"
#include "runtime/data/clt_sequence.h"
#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/finetune/clt_finetune.h"
#include "runtime/data/finetune/clt_finetune_example.h"
#include "runtime/data/finetune/clt_finetune_pack.h"
#include "runtime/data/finetune/clt_torch_random.h"
#include "test/golden_util.h"

#define FOLDER "test/golden/finetune"

/* --- the order --- */

static void test_randperm(void **state) {
    json_t *all = golden_load(FOLDER "/sampler.json"), *one;
    size_t i, n;
    (void)state;
    json_array_foreach(json_object_get(all, "randperm"), i, one) {
        int64_t *want = golden_ints(json_object_get(one, "randperm"), &n);
        int64_t *got = clt_calloc(n, sizeof *got);
        clt_torch_randperm((uint64_t)golden_int(one, "seed"), got, n);
        assert_memory_equal(got, want, n * sizeof *got);
        clt_free(want);
        clt_free(got);
    }
    assert_true(i >= 4);
    json_decref(all);
}

/* torch's DistributedSampler: the permutation, padded from its beginning or cut to a multiple of the ranks,
 * dealt out one by one. */
static void check_sampler(json_t *one) {
    const int64_t n = golden_int(one, "samples"), ranks = golden_int(one, "ranks");
    const bool drop = json_is_true(json_object_get(one, "drop_last"));
    int64_t *order = clt_calloc((size_t)n, sizeof *order);
    clt_torch_randperm((uint64_t)(golden_int(one, "seed") + golden_int(one, "epoch")), order, (size_t)n);
    const int64_t each = drop ? n / ranks : (n + ranks - 1) / ranks;
    json_t *lists = json_object_get(one, "order");
    assert_int_equal(json_array_size(lists), ranks);
    for (int64_t r = 0; r < ranks; r++) {
        size_t count;
        int64_t *want = golden_ints(json_array_get(lists, (size_t)r), &count);
        assert_int_equal(count, each);
        for (int64_t i = 0; i < each; i++) assert_int_equal(want[i], order[(i * ranks + r) % n]);
        clt_free(want);
    }
    clt_free(order);
}

static void test_sampler(void **state) {
    json_t *all = golden_load(FOLDER "/sampler.json"), *one;
    size_t i;
    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, one) check_sampler(one);
    assert_true(i > 10);
    json_decref(all);
}

/* --- batches --- */

typedef struct {
    clt_finetune_params f;
    clt_loader_params p;
    char *folder, *tokenizer;
    clt_finetune_trim trim;
    int64_t batch;
} settings;

static clt_target_responses responses_of(json_t *dataset) {
    const char *s = golden_str(dataset, "target_responses");
    return s && strcmp(s, "all") == 0 ? CLT_TARGET_ALL : CLT_TARGET_LAST;
}

static int64_t prompts_of(json_t *dataset) {
    const char *s = golden_str(dataset, "target_prompts");
    if (!s || strcmp(s, "none") == 0) return -1;
    return strcmp(s, "all") == 0 ? 0 : strtoll(s + strlen("length>="), NULL, 10);
}

static void take_settings(json_t *c, settings *s) {
    json_t *d = json_object_get(c, "dataset"), *ratio = json_object_get(d, "packing_ratio");
    const char *name = golden_str(d, "hf_name");
    s->batch = golden_int(c, "batch_size");
    s->folder = clt_path_join(FOLDER, name ? name : golden_str(d, "local"));
    s->tokenizer = clt_format(FOLDER "/tokenizers/%s", golden_str(c, "tokenizer"));
    s->f = (clt_finetune_params){.hf_name = name ? s->folder : NULL,
                                 .target_prompts = prompts_of(d),
                                 .target_responses = responses_of(d),
                                 .padding_side =
                                     golden_str(json_object_get(c, "tokenizer_kwargs"), "padding_side"),
                                 .batch = s->batch,
                                 .drop_last = json_is_true(json_object_get(c, "drop_last")),
                                 .packing_ratio = json_is_string(ratio) ? 0
                                                  : ratio               ? json_number_value(ratio)
                                                                        : 1,
                                 .most_leftover = golden_int_or(d, "max_leftover_bins_to_keep", -1)};
    clt_loader_params_default(&s->p);
    s->p.finetuning = true;
    s->p.finetune = s->f;
    s->p.local = name ? NULL : s->folder;
    s->p.split = golden_str(d, "split");
    s->p.max_seq_len = golden_int(d, "max_seq_len");
    s->p.vocab_size = 400;
    s->p.tokenizer = s->tokenizer;
    s->p.shuffle = json_is_true(json_object_get(d, "shuffle"));
    s->p.shuffle_seed = (uint64_t)golden_int_or(d, "shuffle_seed", name ? 0 : 9176);
    s->p.num_canonical_nodes = golden_int_or(d, "num_canonical_nodes", 0);
    s->p.max_rows = s->batch;
    s->trim = json_is_true(json_object_get(d, "pad_to_longest"))       ? CLT_TRIM_LONGEST
              : json_is_true(json_object_get(d, "allow_pad_trimming")) ? CLT_TRIM_MULTIPLE
                                                                       : CLT_TRIM_NONE;
}

static void free_settings(settings *s) {
    clt_free(s->folder);
    clt_free(s->tokenizer);
}

/* A row of a view between columns [from, from + width), in the form of the file. */
static void check_view(json_t *want, size_t row, const clt_loader_view *v, int64_t T, int64_t width,
                       bool left) {
    const int64_t from = left ? T - width : 0;
    int32_t *mask = clt_calloc((size_t)width, sizeof *mask),
            *sequence = clt_calloc((size_t)width, sizeof *mask);
    bool *target = clt_calloc((size_t)width, sizeof *target);
    const struct {
        const char *key;
        int32_t *out;
    } runs[] = {{"attention_mask", mask}, {"sequence_id", sequence}};
    for (size_t i = 0; i < CLT_COUNT_OF(runs); i++) {
        size_t n;
        int64_t *run = golden_ints(json_array_get(json_object_get(want, runs[i].key), row), &n), at = 0;
        for (size_t k = 0; k + 1 < n; k += 2)
            for (int64_t c = 0; c < run[k + 1]; c++) runs[i].out[at++] = (int32_t)run[k];
        assert_int_equal(at, width);
        clt_free(run);
    }
    size_t n, ids;
    int64_t *span = golden_ints(json_array_get(json_object_get(want, "targets"), row), &n),
            *id = golden_ints(json_array_get(json_object_get(want, "input_ids"), row), &ids), next = 0;
    for (size_t k = 0; k + 1 < n; k += 2)
        for (int64_t c = span[k]; c < span[k + 1]; c++) target[c] = true;
    for (int64_t i = 0; i < width; i++) {
        const int64_t at = from + i;
        assert_int_equal(v->attention_mask[at], mask[i]);
        assert_int_equal(v->sequence_id[at], sequence[i]);
        if (mask[i]) assert_int_equal(v->input_ids[at], id[next++]);
        assert_int_equal(v->labels[at], target[i] ? v->input_ids[at] : CLT_LABEL_IGNORE);
    }
    assert_int_equal(next, ids);
    assert_int_equal(v->tokens, ids);
    clt_free(span);
    clt_free(id);
    clt_free(mask);
    clt_free(sequence);
    clt_free(target);
}

static int64_t count_longest(json_t *want) {
    json_t *rows = json_object_get(want, "total_tokens"), *one;
    size_t i;
    int64_t longest = 0;
    json_array_foreach(rows, i, one) longest = CLT_MAX(longest, json_integer_value(one));
    return longest;
}

/* The row of a batch is the view's, with the labels of the next positions. */
static void check_same(const clt_batch *b, int64_t row, const clt_loader_view *v, int64_t T) {
    const int32_t *tokens = (const int32_t *)b->field[CLT_TEXT_TOKENS] + row * T,
                  *targets = (const int32_t *)b->field[CLT_TEXT_TARGETS] + row * T,
                  *ids = (const int32_t *)b->field[CLT_TEXT_SEQ_IDS] + row * T;
    int32_t counted = 0;
    assert_memory_equal(tokens, v->input_ids, (size_t)T * sizeof *tokens);
    for (int64_t i = 0; i < T; i++) {
        assert_int_equal(targets[i], i + 1 < T ? v->labels[i + 1] : CLT_LABEL_IGNORE);
        counted += targets[i] != CLT_LABEL_IGNORE;
        if (v->sequence_id[i] >= 0) assert_int_equal(ids[i], v->sequence_id[i]);
        assert_true(i == 0 || ids[i] >= ids[i - 1]);
        assert_true(v->sequence_id[i] >= 0 || ids[i] > (i ? ids[0] : -1));
    }
    assert_int_equal(b->sample_targets[row], counted);
    assert_int_equal(b->sample_ids[row], v->samples[0]);
}

static void check_batch(clt_loader *l, const settings *s, json_t *want, clt_loader_view *v, bool left) {
    const int64_t T = s->p.max_seq_len, epoch = golden_int(want, "epoch"), number = golden_int(want, "batch"),
                  rows = (int64_t)json_array_size(json_object_get(want, "input_ids")), at = number * s->batch;
    const int64_t width = golden_int(want, "width");
    clt_batch b;
    int64_t targets = 0;
    assert_int_equal(CLT_MIN(s->batch, clt_loader_rows_of(l, epoch) - at), rows);
    assert_int_equal(clt_finetune_width(s->trim, T, count_longest(want), epoch == 0 && number == 0), width);
    assert_int_equal(clt_loader_get(l, epoch, at, rows, &b), CLT_OK);
    for (int64_t i = 0; i < rows; i++) {
        assert_int_equal(clt_loader_show(l, epoch, at + i, v), CLT_OK);
        check_view(want, (size_t)i, v, T, width, left);
        if (!left) check_same(&b, i, v, T);
        json_t *counts = json_object_get(want, "loss_generating_tokens");
        assert_int_equal(b.sample_targets[i], json_integer_value(json_array_get(counts, (size_t)i)));
        targets += b.sample_targets[i];
    }
    assert_int_equal(b.targets, targets);
}

static void check_order(clt_loader *l, json_t *c, clt_loader_view *v) {
    json_t *orders = json_object_get(c, "order"), *one;
    size_t e, n;
    if (golden_int(c, "rows_read_per_batch") > golden_int(c, "batch_size")) return; /* packed */
    json_array_foreach(orders, e, one) {
        int64_t *ids = golden_ints(one, &n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(clt_loader_show(l, (int64_t)e, (int64_t)i, v), CLT_OK);
            assert_int_equal(v->samples[0], ids[i]);
        }
        clt_free(ids);
    }
}

/* forward: in order; otherwise the last batch first, as a run that resumes there. */
static void check_case(json_t *c, bool forward) {
    settings s;
    clt_loader *l;
    take_settings(c, &s);
    const int64_t T = s.p.max_seq_len;
    int32_t *arrays = clt_calloc((size_t)(4 * T), sizeof *arrays);
    clt_loader_view v = {arrays, arrays + T, arrays + 2 * T, arrays + 3 * T, 0, NULL, 0};
    const bool left = s.f.padding_side && strcmp(s.f.padding_side, "left") == 0;
    json_t *batches = json_object_get(c, "batches"), *counts = json_object_get(c, "batches_per_epoch");
    const size_t n = json_array_size(batches);
    assert_int_equal(clt_loader_open(&s.p, &l), CLT_OK);
    assert_int_equal(clt_loader_num_samples(l), golden_int(c, "samples_after_filter"));
    assert_int_equal(clt_loader_batches(l, s.batch, s.f.drop_last),
                     json_integer_value(json_array_get(counts, 0)));
    for (size_t i = 0; i < n; i++)
        check_batch(l, &s, json_array_get(batches, forward ? i : n - 1 - i), &v, left);
    check_order(l, c, &v);
    clt_loader_close(l);
    clt_free(arrays);
    free_settings(&s);
}

static void test_batches(void **state) {
    json_t *all = golden_load(FOLDER "/batches.json"), *c;
    size_t i, checked = 0;
    (void)state;
    clt_log_set_level(CLT_LOG_WARN);
    json_array_foreach(json_object_get(all, "cases"), i, c) {
        if (strcmp(golden_str(c, "name"), "encoder-decoder format") == 0) continue; /* refused: test_config */
        check_case(c, true);
        check_case(c, false);
        checked++;
    }
    assert_int_equal(checked, 31);
    json_decref(all);
}

/* Rows of MDS with a JSON column are those of the lines that it was made of. */
static void check_column(const char *name) {
    enum { T = 160, ROWS = 8 };
    char *local = clt_format(FOLDER "/data/mds-%s", name);
    clt_loader_params p;
    clt_loader *lines, *mds;
    int32_t arrays[8 * T];
    clt_loader_view a = {arrays, arrays + T, arrays + 2 * T, arrays + 3 * T, 0, NULL, 0}, b = a;
    b.input_ids += 4 * T, b.labels += 4 * T, b.attention_mask += 4 * T, b.sequence_id += 4 * T;
    clt_loader_params_default(&p);
    p.finetuning = true;
    p.finetune = (clt_finetune_params){.hf_name = FOLDER "/data/chat",
                                       .target_prompts = 9,
                                       .target_responses = CLT_TARGET_ALL,
                                       .batch = 4,
                                       .packing_ratio = 1,
                                       .most_leftover = -1};
    p.max_seq_len = T;
    p.vocab_size = 400;
    p.tokenizer = FOLDER "/tokenizers/plain";
    p.shuffle = false;
    p.max_rows = 4;
    assert_int_equal(clt_loader_open(&p, &lines), CLT_OK);
    p.finetune.hf_name = NULL;
    p.local = local;
    assert_int_equal(clt_loader_open(&p, &mds), CLT_OK);
    assert_int_equal(clt_loader_num_samples(mds), ROWS);
    for (int64_t i = 0; i < ROWS; i++) {
        assert_int_equal(clt_loader_show(lines, 0, i, &a), CLT_OK);
        assert_int_equal(clt_loader_show(mds, 0, i, &b), CLT_OK);
        assert_int_equal(a.tokens, b.tokens);
        assert_memory_equal(arrays, arrays + 4 * T, 4 * T * sizeof *arrays);
    }
    clt_loader_close(lines);
    clt_loader_close(mds);
    clt_free(local);
}

static void test_columns(void **state) {
    (void)state;
    check_column("messages");
    check_column("turns");
}

/* --- several data sets --- */

static clt_loader_params streams_params(const clt_loader_stream *streams, int n) {
    clt_loader_params p;
    clt_loader_params_default(&p);
    p.finetuning = true;
    p.finetune = (clt_finetune_params){
        .target_prompts = -1, .batch = 4, .packing_ratio = 1, .most_leftover = -1, .drop_last = true};
    p.max_seq_len = 512;
    p.vocab_size = 400;
    p.tokenizer = FOLDER "/tokenizers/plain";
    p.max_rows = 4;
    p.streams = streams;
    p.n_streams = n;
    return p;
}

/* Row i is the row of its stream's sample, and the samples are those of clt_sequence. */
static void check_streams(clt_loader_params p, clt_loader **alone, const int64_t *first) {
    static const int64_t shard_samples[] = {14, 9, 1, 8};
    static const size_t shards[] = {3, 1};
    enum { T = 512 };
    int32_t arrays[8 * T];
    clt_loader_view a = {arrays, arrays + T, arrays + 2 * T, arrays + 3 * T, 0, NULL, 0}, b = a;
    b.input_ids += 4 * T, b.labels += 4 * T, b.attention_mask += 4 * T, b.sequence_id += 4 * T;
    clt_loader *l;
    clt_sequence *order;
    p.global_batch = 4;
    assert_int_equal(clt_sequence_open(&p, shard_samples, shards, &order), CLT_OK);
    assert_int_equal(clt_loader_open(&p, &l), CLT_OK);
    const int64_t n = clt_sequence_num_samples(order);
    assert_int_equal(clt_loader_num_samples(l), n);
    for (int64_t i = 0; i < n; i++) {
        int64_t id;
        assert_int_equal(clt_sequence_batch(order, 1, i, 1, &id), CLT_OK);
        assert_int_equal(clt_loader_show(l, 1, i, &a), CLT_OK);
        assert_int_equal(a.samples[0], id);
        const int stream = id >= first[1];
        assert_int_equal(clt_loader_show(alone[stream], 0, id - first[stream], &b), CLT_OK);
        assert_memory_equal(arrays, arrays + 4 * T, 4 * T * sizeof *arrays);
    }
    clt_sequence_close(order);
    clt_loader_close(l);
}

static void test_streams(void **state) {
    clt_loader_stream streams[] = {
        {.name = "a",
         .local = FOLDER "/data/mds",
         .split = "train",
         .proportion = NAN,
         .repeat = NAN,
         .choose = NAN},
        {.name = "b", .local = FOLDER "/data/mds-messages", .proportion = NAN, .repeat = 2.5, .choose = NAN}};
    clt_loader *alone[2];
    clt_loader_params p = streams_params(NULL, 0);
    int64_t first[] = {0, 0};
    (void)state;
    p.shuffle = false;
    for (int i = 0; i < 2; i++) {
        p.local = streams[i].local;
        p.split = streams[i].split;
        assert_int_equal(clt_loader_open(&p, &alone[i]), CLT_OK);
    }
    first[1] = clt_loader_num_samples(alone[0]);
    assert_int_equal(first[1], 24);
    p = streams_params(streams, 2);
    check_streams(p, alone, first);
    p.batching_method = "per_stream";
    check_streams(p, alone, first);
    for (int i = 0; i < 2; i++) clt_loader_close(alone[i]);
}

/* --- bad columns --- */

static void check_turns(const char *json, const char *word) {
    clt_finetune_turns t = {0};
    json_t *o = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_int_equal(clt_finetune_read_turns(o, "sample 3", &t), word ? CLT_BAD_DATA : CLT_OK);
    if (word) assert_non_null(strstr(clt_last_error(), word));
    clt_finetune_turns_free(&t);
    json_decref(o);
}

static void test_bad_turns(void **state) {
    (void)state;
    clt_error_quiet(true);
    check_turns("[{\"input_ids\": [1], \"labels\": []}]", NULL);
    check_turns("[]", "sample 3: turns must be a list");
    check_turns("{\"input_ids\": [1], \"labels\": [2]}", "turns must be a list");
    check_turns("[{\"input_ids\": [1], \"labels\": [2]}, {\"input_ids\": [1]}]", "turn 2 must be");
    check_turns("[{\"input_ids\": [1, -100], \"labels\": [2]}]", "input_ids of turn 1: entry 2");
    check_turns("[{\"input_ids\": [1], \"labels\": [4294967296]}]", "labels of turn 1: entry 1");
    clt_error_quiet(false);
}

/* --- single lines --- */

/* Line `number` (from 0) of a file of samples. */
static json_t *read_line(const char *data, int64_t number) {
    char *path = clt_format(FOLDER "/data/%s/train.jsonl", data);
    clt_jsonl *file;
    clt_jsonl_line line;
    json_t *o = NULL;
    assert_int_equal(clt_jsonl_open(path, 0, &file), CLT_OK);
    for (int64_t i = 0; i <= number; i++) {
        json_decref(o);
        assert_int_equal(clt_jsonl_next(file, &line, &o), CLT_OK);
        assert_non_null(o);
    }
    clt_jsonl_close(file);
    clt_free(path);
    return o;
}

static clt_finetune_text open_text(const char *name, clt_tokenizer **tokenizer, clt_chat **chat) {
    char *folder = clt_format(FOLDER "/tokenizers/%s", name);
    assert_int_equal(clt_tokenizer_open(folder, tokenizer), CLT_OK);
    assert_int_equal(clt_chat_open(folder, NULL, chat), CLT_OK);
    clt_free(folder);
    return (clt_finetune_text){.tokenizer = *tokenizer, .chat = *chat};
}

static void check_ids(json_t *want, const int32_t *ids, int32_t n) {
    assert_int_equal(json_array_size(want), n);
    for (int32_t i = 0; i < n; i++)
        assert_int_equal(ids[i], json_integer_value(json_array_get(want, (size_t)i)));
}

static void test_turns(void **state) {
    json_t *all = golden_load(FOLDER "/examples.json"), *one, *turn;
    clt_finetune_turns t = {0};
    size_t i, k;
    (void)state;
    json_array_foreach(json_object_get(all, "turns"), i, one) {
        clt_tokenizer *tokenizer;
        clt_chat *chat;
        const clt_finetune_text text = open_text(golden_str(one, "tokenizer"), &tokenizer, &chat);
        json_t *line = read_line(golden_str(one, "data"), golden_int(one, "line")),
               *turns = json_object_get(one, "turns");
        const int32_t *at;
        assert_int_equal(clt_finetune_encode(&text, line, "line", &t), CLT_OK);
        assert_int_equal(t.turns, json_array_size(turns));
        at = t.ids;
        json_array_foreach(turns, k, turn) {
            check_ids(json_object_get(turn, "input_ids"), at, t.turn[k].prompt);
            at += t.turn[k].prompt;
            check_ids(json_object_get(turn, "labels"), at, t.turn[k].response);
            at += t.turn[k].response;
        }
        assert_int_equal(at - t.ids, t.n);
        json_decref(line);
        clt_chat_close(chat);
        clt_tokenizer_close(tokenizer);
    }
    assert_true(i > 15);
    clt_finetune_turns_free(&t);
    json_decref(all);
}

/* A message names the line and says what Foundry's exception is about. */
static void test_malformed(void **state) {
    static const struct {
        const char *error, *text;
    } words[] = {{"InvalidResponseTypeError", "response must be a string"},
                 {"InvalidPromptTypeError", "prompt must be a string"},
                 {"UnknownExampleTypeError", "key"},
                 {"NotEnoughChatDataError", "at least two messages"},
                 {"InvalidLastChatMessageRoleError", "must be assistant's"},
                 {"ConsecutiveRepeatedChatRolesError", "alternate"},
                 {"InvalidRoleError", "has the role"},
                 {"IncorrectMessageKeyQuantityError", "no other one"},
                 {"InvalidContentTypeError", "content must be a string"},
                 {"InvalidMessageTypeError", "must be a list"},
                 {"ChatTemplateError", "first message"}};
    json_t *all = golden_load(FOLDER "/examples.json"), *one;
    clt_finetune_turns t = {0};
    clt_tokenizer *tokenizer;
    clt_chat *chat;
    size_t i;
    (void)state;
    const clt_finetune_text text = open_text("plain", &tokenizer, &chat);
    clt_error_quiet(true);
    json_array_foreach(json_object_get(all, "cases"), i, one) {
        const char *error = golden_str(one, "error"), *want = NULL;
        const bool accepted = json_is_true(json_object_get(one, "accepted"));
        const clt_status st = clt_finetune_encode(&text, json_object_get(one, "example"), "a.jsonl:7", &t);
        assert_int_equal(st, accepted ? CLT_OK : CLT_BAD_DATA);
        if (accepted) continue;
        for (size_t k = 0; k < CLT_COUNT_OF(words); k++)
            if (strcmp(words[k].error, error) == 0) want = words[k].text;
        assert_non_null(want);
        /* Two assistants: the first message is reported. */
        if (!strstr(clt_last_error(), want)) assert_non_null(strstr(clt_last_error(), "first message"));
        assert_non_null(strstr(clt_last_error(), "a.jsonl:7"));
    }
    clt_error_quiet(false);
    assert_true(i > 15);
    clt_finetune_turns_free(&t);
    clt_chat_close(chat);
    clt_tokenizer_close(tokenizer);
    json_decref(all);
}

/* --- packing_ratio: auto --- */

/* Padding and waste of every ratio that was tried. */
static void check_profile(json_t *c) {
    clt_pack_trial tried[CLT_PACK_RATIOS];
    json_t *want = json_object_get(c, "profile");
    settings s;
    clt_loader *l;
    double ratio;
    size_t n;
    take_settings(c, &s);
    s.p.finetune.packing_ratio = 1; /* the rows are samples */
    const int64_t T = s.p.max_seq_len;
    int32_t *arrays = clt_calloc((size_t)T, sizeof *arrays);
    clt_loader_view v = {arrays, arrays, arrays, arrays};
    assert_int_equal(clt_loader_open(&s.p, &l), CLT_OK);
    const size_t count = (size_t)CLT_MIN(clt_pack_profile_samples(s.batch, T), clt_loader_rows_of(l, 0));
    int32_t *sizes = clt_calloc(count + 1, sizeof *sizes);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(clt_loader_show(l, 0, (int64_t)i, &v), CLT_OK);
        sizes[i] = (int32_t)v.tokens;
    }
    assert_int_equal(clt_pack_profile(s.batch, T, sizes, count, &ratio, tried, &n), CLT_OK);
    assert_int_equal(n, json_array_size(want));
    for (size_t i = 0; i < n; i++) {
        const double got[] = {tried[i].ratio, tried[i].padding, tried[i].waste};
        for (size_t k = 0; k < CLT_COUNT_OF(got); k++)
            assert_true(fabs(got[k] - json_number_value(json_array_get(json_array_get(want, i), k))) < 1e-9);
    }
    assert_int_equal((int64_t)((double)s.batch * ratio), golden_int(c, "rows_read_per_batch"));
    clt_loader_close(l);
    clt_free(sizes);
    clt_free(arrays);
    free_settings(&s);
}

static void test_profiles(void **state) {
    json_t *all = golden_load(FOLDER "/batches.json"), *c;
    size_t i, checked = 0;
    (void)state;
    json_array_foreach(json_object_get(all, "cases"), i, c) {
        if (!json_object_get(c, "profile")) continue;
        check_profile(c);
        checked++;
    }
    assert_int_equal(checked, 2);
    json_decref(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_randperm), cmocka_unit_test(test_sampler),   cmocka_unit_test(test_batches),
        cmocka_unit_test(test_columns),  cmocka_unit_test(test_bad_turns), cmocka_unit_test(test_streams),
        cmocka_unit_test(test_turns),    cmocka_unit_test(test_malformed), cmocka_unit_test(test_profiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
