/* The parts of fine-tuning data: chat templates, the files of a data set, bad lines, packing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_loader.h"
#include "runtime/data/finetune/clt_chat.h"
#include "runtime/data/finetune/clt_chat_templates.h"
#include "runtime/data/finetune/clt_finetune_files.h"
#include "runtime/data/finetune/clt_finetune_pack.h"

#define FOLDER "test/golden/finetune"

/* --- chat templates --- */

static void check_chat(const char *template_text, const char *name, const char *want) {
    static const clt_chat_message m[] = {{"user", " hi\xc2\xa0", 5}, {"assistant", "yes", 3}};
    clt_chat *c;
    clt_str text = {0};
    assert_int_equal(clt_chat_open(FOLDER "/tokenizers/bos", template_text, &c), CLT_OK);
    assert_string_equal(clt_chat_name(c), name);
    clt_chat_render(c, m, 1, true, &text);
    assert_string_equal(text.s, want);
    clt_str_free(&text);
    clt_chat_close(c);
}

/* Templates that end anywhere are compared and match nothing. */
static void check_cut_templates(void) {
    static const char whole[] =
        "{%- if a['b\\'c'] -%}\n {# note #} {{ 'x' + \"y\\\\\" | trim -}} z{% endif %}{{";
    for (size_t n = 0; n < sizeof whole; n++) {
        char *text = clt_strndup(whole, n);
        clt_str normal = {0};
        clt_chat_normalise(text, &normal);
        assert_null(clt_chat_template_like(text));
        clt_str_free(&normal);
        clt_free(text);
    }
}

static void test_templates(void **state) {
    clt_chat *c;
    (void)state;
    check_chat("chatml", "chatml", "<|im_start|>user\n hi\xc2\xa0<|im_end|>\n<|im_start|>assistant\n");
    check_chat("chatml-trim", "chatml-trim", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
    check_chat("llama3", "llama3",
               "<|bos|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
               "<|start_header_id|>assistant<|end_header_id|>\n\n");
    check_chat("qwen2", "qwen2",
               "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n "
               "hi\xc2\xa0<|im_end|>\n<|im_start|>assistant\n");
    check_chat(NULL, "inst", "[INST]  hi\xc2\xa0 [/INST]");
    /* The same program in another layout. */
    check_chat("{%- for message in messages -%}\n  {{ \"<|im_start|>\"+message[\"role\"] + '\\n' +\n"
               "message['content'] + '<|im_end|>' + '\n' }}\n{%- endfor %}\n"
               "{%if add_generation_prompt%}{{'<|im_start|>assistant\\n'}}{%endif%}",
               "chatml", "<|im_start|>user\n hi\xc2\xa0<|im_end|>\n<|im_start|>assistant\n");
    check_cut_templates();
    clt_error_quiet(true);
    /* One more space in the text that it writes is another template. */
    assert_int_equal(
        clt_chat_open("bytes",
                      "{% for message in messages %}{{ '<|im_start|> ' + message['role'] + '\\n' + "
                      "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
                      "'<|im_start|>assistant\\n' }}{% endif %}",
                      &c),
        CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "not executed"));
    assert_int_equal(clt_chat_open("bytes", "{{ open", &c), CLT_BAD_CONFIG);
    assert_int_equal(clt_chat_open("bytes", "llama3", &c), CLT_BAD_CONFIG); /* it writes bos */
    assert_non_null(strstr(clt_last_error(), "bos_token"));
    clt_error_quiet(false);
}

/* --- files --- */

static void write_file(const char *folder, const char *name, const char *text) {
    char *path = clt_path_join(folder, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}

static void check_files(clt_finetune_params f, const char *split, const char *want) {
    clt_strv paths = {0};
    clt_str names = {0};
    clt_error_quiet(true);
    const clt_status st = clt_finetune_find_files(&f, split, &paths);
    clt_error_quiet(false);
    for (size_t i = 0; i < paths.n; i++)
        clt_str_addf(&names, "%s%s", i ? " " : "", clt_path_base(paths.v[i]));
    assert_int_equal(st, want ? CLT_OK : CLT_BAD_CONFIG);
    if (want) assert_string_equal(names.s, want);
    clt_str_free(&names);
    clt_strv_free(&paths);
}

static char *make_folder(void) {
    char *folder = clt_strdup("/tmp/clt_test_finetune_XXXXXX");
    assert_non_null(mkdtemp(folder));
    return folder;
}

/* Folders with the word come before files with it, and parts of data/ before all; as load_dataset of datasets
 * 3.6 takes them. */
static void check_deep_files(const char *folder) {
    static const char *const names[] = {
        "deep/b.jsonl",      "deep/trainer.jsonl", "deep/sub/x.train_1.json", "deep/train.jsonl",
        "deep/.train.jsonl", "deep/config.json",   "deep/__x/train.json",     "deep/sub/a-train.jsonl"};
    char *deep = clt_path_join(folder, "deep"), *sub = clt_path_join(deep, "sub"),
         *special = clt_path_join(deep, "__x"), *dir = clt_path_join(deep, "my train"),
         *data = clt_path_join(deep, "data");
    const clt_finetune_params all = {.hf_name = deep};
    assert_int_equal(clt_io_mkdirs(sub), CLT_OK);
    assert_int_equal(clt_io_mkdirs(special), CLT_OK);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) write_file(folder, names[i], "");
    check_files(all, "train", "train.jsonl a-train.jsonl x.train_1.json");
    check_files(all, "test", NULL);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    write_file(dir, "a.jsonl", "");
    check_files(all, "train", "a.jsonl");
    assert_int_equal(clt_io_mkdirs(data), CLT_OK);
    write_file(data, "train-00000-of-00001.jsonl", "");
    check_files(all, "train", "train-00000-of-00001.jsonl");
    clt_io_remove_tree(deep);
    clt_free(deep);
    clt_free(sub);
    clt_free(special);
    clt_free(dir);
    clt_free(data);
}

static void test_files(void **state) {
    static const char *const names[] = {"my-train-1.jsonl", "my-train-0.jsonl", "dev.json",
                                        "eval_a.jsonl",     "contest.jsonl",    "train.txt"};
    char *folder = make_folder(), *sub = clt_path_join(folder, "plain"), *one = clt_path_join(sub, "a.jsonl");
    (void)state;
    assert_int_equal(clt_io_mkdirs(sub), CLT_OK);
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++) write_file(folder, names[i], "");
    write_file(sub, "b.jsonl", "");
    write_file(sub, "a.jsonl", "");
    const clt_finetune_params all = {.hf_name = folder}, plain = {.hf_name = sub}, file = {.hf_name = one},
                              json = {.hf_name = "json", .data_dir = folder};
    check_files(all, NULL, "my-train-0.jsonl my-train-1.jsonl");
    check_files(all, "validation", "dev.json");
    check_files(all, "test", "eval_a.jsonl"); /* "contest" is another word */
    check_files(all, "plain", "a.jsonl b.jsonl");
    check_files(all, "other", NULL);
    check_files(all, "train[:10]", NULL);
    check_files(plain, "train", "a.jsonl b.jsonl"); /* no name names a split */
    check_files(plain, "test", NULL);
    check_files(file, "test", "a.jsonl");
    check_files(json, "train", "my-train-0.jsonl my-train-1.jsonl");
    check_deep_files(folder);
    clt_strv files = {0};
    clt_strv_add(&files, one);
    check_files((clt_finetune_params){.hf_name = "json", .data_files = &files}, "test", "a.jsonl");
    clt_strv_add(&files, "/none.jsonl");
    check_files((clt_finetune_params){.hf_name = "json", .data_files = &files}, "test", NULL);
    check_files((clt_finetune_params){.hf_name = "json"}, "train", NULL);
    check_files((clt_finetune_params){.hf_name = "mosaicml/dolly_hhrlhf"}, "train", NULL);
    clt_strv_free(&files);
    clt_io_remove_tree(folder);
    clt_free(folder);
    clt_free(sub);
    clt_free(one);
}

static void test_missing_files(void **state) {
    const clt_finetune_params p = {.loader = "eval_loader", .hf_name = "mosaicml/data"};
    clt_strv paths = {0};
    (void)state;
    clt_error_quiet(true);
    assert_int_equal(clt_finetune_find_files(&p, "test", &paths), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    assert_non_null(strstr(clt_last_error(), "eval_loader: dataset.hf_name 'mosaicml/data' is no folder"));
}

/* --- bad data --- */

/* Opens one file with these lines: the status, and a word of the message. */
static void check_bad(const char *folder, const char *lines, int64_t vocab, clt_status want,
                      const char *word) {
    clt_loader_params p;
    clt_loader *l = NULL;
    write_file(folder, "train.jsonl", lines);
    clt_loader_params_default(&p);
    p.finetuning = true;
    p.finetune = (clt_finetune_params){
        .hf_name = folder, .target_prompts = -1, .batch = 2, .packing_ratio = 1, .most_leftover = -1};
    p.tokenizer = "bytes";
    p.max_seq_len = 16;
    p.vocab_size = vocab;
    p.max_rows = 2;
    clt_error_quiet(true);
    const clt_status st = clt_loader_open(&p, &l);
    clt_error_quiet(false);
    assert_int_equal(st, want);
    if (want == CLT_OK)
        clt_loader_close(l);
    else if (!strstr(clt_last_error(), word))
        fail_msg("'%s' does not say '%s'", clt_last_error(), word);
}

#define GOOD "{\"prompt\": \"a\", \"response\": \"b\"}\n"

static void test_bad_data(void **state) {
    char *folder = make_folder();
    clt_str deep = {0};
    (void)state;
    check_bad(folder, GOOD "\n" GOOD, 257, CLT_OK, NULL);
    check_bad(folder, GOOD "\n{\"prompt\": \"a\", \"response\": 3}\n", 257, CLT_BAD_DATA, "train.jsonl:3");
    check_bad(folder, GOOD GOOD "{\"prompt\": \"a\", \"resp", 257, CLT_BAD_DATA, "train.jsonl:3");
    check_bad(folder, GOOD "[1, 2]\n", 257, CLT_BAD_DATA, "train.jsonl:2");
    check_bad(folder, GOOD "{\"prompt\": \"\xff\", \"response\": \"b\"}\n", 257, CLT_BAD_DATA,
              "train.jsonl:2");
    check_bad(folder, "", 257, CLT_BAD_DATA, "none of its 0 samples");
    /* Over-long prompts are dropped; nothing is left. */
    check_bad(folder, "{\"prompt\": \"0123456789abcdef\", \"response\": \"b\"}\n", 257, CLT_BAD_DATA,
              "none of its 1 samples");
    check_bad(folder, GOOD, 200, CLT_BAD_CONFIG, "model.vocab_size");
    check_bad(folder, GOOD "{\"messages\": [], \"id\": 1}\n", 257, CLT_BAD_DATA, "train.jsonl:2: the keys");
    check_bad(folder, "\xef\xbb\xbf{\"prompt\": \"a\\u0000\", \"response\": \"b\"}\n", 257, CLT_OK, NULL);
    check_bad(folder, "{\"messages\": [{\"role\": \"user\\u0000\", \"content\": \"b\"}, {}]}\n", 257,
              CLT_BAD_DATA, "train.jsonl:1: message 1 has the role");
    check_bad(folder, "{\"messages\": 1}\n", 257, CLT_BAD_DATA, "train.jsonl:1");
    clt_str_add(&deep, "{\"messages\": ");
    for (int i = 0; i < 100000; i++) clt_str_add(&deep, "[");
    check_bad(folder, deep.s, 257, CLT_BAD_DATA, "train.jsonl:1");
    clt_str_free(&deep);
    clt_io_remove_tree(folder);
    clt_free(folder);
}

/* --- packing --- */

/* First fit by plain lists, without the packer's sorted copies. */
typedef struct {
    int64_t size, first;
} plain_bin;

static size_t pack_plainly(plain_bin *bin, size_t n_bins, const int64_t *ids, const int32_t *sizes, size_t n,
                           size_t rows, int64_t most) {
    bool *used = clt_calloc(n, sizeof *used);
    for (size_t left = n; left > 0; left--) {
        size_t k = n, i = 0;
        for (size_t j = 0; j < n; j++)
            if (!used[j] && (k == n || sizes[j] > sizes[k])) k = j;
        used[k] = true;
        if (n_bins < rows && left <= rows - n_bins)
            i = n_bins;
        else
            while (i < n_bins && bin[i].size + sizes[k] > most) i++;
        plain_bin b = i < n_bins ? bin[i] : (plain_bin){0, ids[k]};
        if (i < n_bins) memmove(bin + i, bin + i + 1, (--n_bins - i) * sizeof b);
        b.size += sizes[k];
        bin[n_bins++] = b;
    }
    clt_free(used);
    for (size_t i = 1; i < n_bins; i++) /* stable, largest first */
        for (size_t k = i; k > 0 && bin[k].size > bin[k - 1].size; k--) {
            const plain_bin b = bin[k];
            bin[k] = bin[k - 1];
            bin[k - 1] = b;
        }
    return n_bins;
}

static void test_packing(void **state) {
    enum { ROWS = 5, MOST = 40, BATCHES = 60, READ = 23 };
    plain_bin *bin = clt_calloc(BATCHES * READ, sizeof *bin);
    clt_bin_packer *p = clt_bin_packer_create(ROWS, MOST, -1);
    size_t left = 0;
    uint32_t random = 7;
    (void)state;
    for (int64_t b = 0; b < BATCHES; b++) {
        int64_t ids[READ];
        int32_t sizes[READ];
        const clt_pack_bin *bins;
        size_t n;
        const size_t count = b % 9 == 8 ? 3 : READ; /* a short last batch of an epoch */
        for (size_t i = 0; i < count; i++) {
            random = random * 1664525u + 1013904223u;
            ids[i] = b * READ + (int64_t)i;
            sizes[i] = 1 + (int32_t)((random >> 16) % MOST);
        }
        assert_int_equal(clt_bin_packer_add(p, ids, sizes, count, &bins, &n), CLT_OK);
        left = pack_plainly(bin, left, ids, sizes, count, ROWS, MOST);
        assert_int_equal(n, CLT_MIN(left, ROWS));
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(bins[i].size, bin[i].size);
            assert_int_equal(bins[i].sample[0], bin[i].first);
        }
        left -= n;
        memmove(bin, bin + n, left * sizeof *bin);
        assert_int_equal(clt_bin_packer_left(p), left);
    }
    assert_true(left > 100); /* many bins were searched */
    clt_bin_packer_destroy(p);
    clt_free(bin);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_templates),     cmocka_unit_test(test_files),
        cmocka_unit_test(test_missing_files), cmocka_unit_test(test_bad_data),
        cmocka_unit_test(test_packing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
