/* `cltrain data`: exit codes, JSON, and what convert writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "test/golden_util.h"

static char *cltrain; /* the program beside this test: BUILD/test/unit/X -> BUILD/cltrain */
static char *dir;

static int setup(void **state) {
    (void)state;
    dir = clt_strdup("/tmp/clt_test_data_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    clt_io_remove_tree(dir);
    clt_free(dir);
    return 0;
}

/* Runs `cltrain data ARGS`; stdout (and stderr with `both`) into *out. Returns the exit code. */
static int run(const char *args, bool both, clt_str *out) {
    char *command = clt_format("%s data %s %s", cltrain, args, both ? "2>&1" : "2>/dev/null"), piece[4096];
    FILE *f = popen(command, "r");
    assert_non_null(f);
    out->len = 0;
    clt_str_addn(out, "", 0);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) clt_str_addn(out, piece, n);
    int status = pclose(f);
    clt_free(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *args, int code, const char *text) {
    clt_str out = {0};
    int got = run(args, true, &out);
    if (got != code || !strstr(out.s, text)) fail_msg("data %s: exit %d, output:\n%s", args, got, out.s);
    clt_str_free(&out);
}

static json_t *run_json(const char *args) {
    clt_str out = {0};
    json_error_t e;
    if (run(args, false, &out) != 0) fail_msg("data %s failed", args);
    json_t *j = json_loads(out.s, JSON_ALLOW_NUL, &e);
    if (!j) fail_msg("data %s: %s in:\n%s", args, e.text, out.s);
    clt_str_free(&out);
    return j;
}

/* --- order --- */

static void add_given(clt_str *args, json_t *c, const char *key, const char *option) {
    json_t *v = json_object_get(c, key);
    if (json_is_integer(v)) clt_str_addf(args, " --%s %lld", option, (long long)json_integer_value(v));
}

static char *order_args(json_t *c) {
    clt_str a = {0};
    json_t *sizes = json_object_get(c, "shard_sizes"), *resume = json_object_get(c, "resume");
    clt_str_add(&a, "order --shards ");
    for (size_t i = 0; i < json_array_size(sizes); i++)
        clt_str_addf(&a, "%s%lld", i ? "," : "", (long long)json_integer_value(json_array_get(sizes, i)));
    add_given(&a, json_is_object(resume) ? resume : c,
              json_is_object(resume) ? "num_canonical_nodes" : "num_canonical_nodes_given",
              "canonical-nodes");
    if (json_is_object(resume)) add_given(&a, resume, "initial_physical_nodes", "initial-nodes");
    add_given(&a, c, "physical_nodes", "nodes");
    add_given(&a, c, "ranks_per_node", "ranks-per-node");
    add_given(&a, c, "workers", "workers");
    add_given(&a, c, "batch_size", "batch");
    add_given(&a, c, "seed", "seed");
    add_given(&a, c, "epoch", "epoch");
    add_given(&a, c, "block_size_given", "block-size");
    add_given(&a, c, "sample_in_epoch", "from");
    clt_str_addf(&a, " --algo %s --partition %s%s", golden_str(c, "algo"), golden_str(c, "partition_algo"),
                 json_is_true(json_object_get(c, "shuffle")) ? "" : " --no-shuffle");
    return a.s;
}

static void check_rank(json_t *got, json_t *want, const char *name) {
    json_t *have = json_object_get(got, "batches"), *all = json_object_get(want, "batches");
    json_t *first = json_object_get(want, "first_batches"), *last = json_object_get(want, "last_batches");
    size_t n = json_array_size(have);
    bool same = golden_int(got, "node") == golden_int(want, "node") &&
                golden_int(got, "rank_of_node") == golden_int(want, "rank_of_node") &&
                (int64_t)n == golden_int(want, "num_batches") && (!all || json_equal(have, all));
    for (size_t i = 0; i < json_array_size(first) && same; i++)
        same = json_equal(json_array_get(have, i), json_array_get(first, i));
    for (size_t i = 0; i < json_array_size(last) && same; i++)
        same = json_equal(json_array_get(have, n - json_array_size(last) + i), json_array_get(last, i));
    if (!same) fail_msg("%s: a rank's batches differ", name);
}

static void test_order(void **state) {
    (void)state;
    json_t *golden = golden_load("test/golden/order/order.json"), *cases = json_object_get(golden, "cases");
    size_t refused = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i), *ranks = json_object_get(c, "ranks");
        char *args = order_args(c);
        if (golden_str(c, "error")) {
            expect(args, 65, "error: ");
            refused++;
        } else {
            json_t *got = run_json(args), *list = json_object_get(got, "ranks");
            assert_int_equal(json_array_size(list), json_array_size(ranks));
            for (size_t r = 0; r < json_array_size(ranks); r++)
                check_rank(json_array_get(list, r), json_array_get(ranks, r), golden_str(c, "name"));
            json_decref(got);
        }
        clt_free(args);
    }
    assert_int_equal(refused, 6);
    json_decref(golden);
}

/* A folder instead of sizes: epoch 0 of the real run, through its DataLoader. */
static void test_order_of_folder(void **state) {
    (void)state;
    json_t *got = run_json("order test/golden/e2e/mds/train --canonical-nodes 2 --seed 17 --batch 16");
    json_t *rank = json_array_get(json_object_get(got, "ranks"), 0),
           *batches = json_object_get(rank, "batches");
    json_t *golden = golden_load("test/golden/e2e/order.json"), *want = json_object_get(golden, "batches");
    assert_int_equal(json_array_size(batches), 19);
    for (size_t i = 0; i < 19; i++)
        assert_true(
            json_equal(json_array_get(batches, i), json_object_get(json_array_get(want, i), "sample_ids")));
    json_decref(golden);
    json_decref(got);
    expect("order --shards 5,4 --seed -1", 2, "must not be negative");
}

/* --- show and verify --- */

static void test_show(void **state) {
    (void)state;
    json_t *set = run_json("show test/golden/mds/tokens_i32_zstd19 --json");
    assert_int_equal(golden_int(set, "samples"), 12);
    assert_int_equal(json_array_size(json_object_get(set, "shards")), 2);
    assert_int_equal(json_array_size(json_object_get(set, "hashes")), 7);
    json_decref(set);
    json_t *want = golden_load("test/golden/mds/tokens_i32/val/samples.json"),
           *list = json_object_get(want, "list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *args = clt_format("show test/golden/mds/tokens_i32/val --sample %zu --json", i);
        json_t *got = run_json(args), *s = json_array_get(list, i), *tokens = json_object_get(s, "tokens");
        assert_int_equal(golden_int(got, "num_tokens"), golden_int(s, "num_tokens"));
        if (tokens) assert_true(json_equal(json_object_get(got, "tokens"), tokens));
        json_decref(got);
        clt_free(args);
    }
    json_decref(want);
    json_t *text = run_json("show test/golden/mds/text_str --sample 0 --json");
    assert_string_equal(golden_str(text, "text"), "Hello world");
    json_decref(text);
    expect("show test/golden/e2e/mds", 0, "300 in 5 shards");
    expect("show test/golden/e2e/mds/val --sample 36", 65, "no sample 36; it has 36");
    expect("show test/golden/mds/absent", 65, "does not exist");
    expect("show", 2, "name one dataset folder");
    expect("show test/golden/e2e/mds/val --sample -1", 2, "--sample must be at least 0");
}

static void test_verify(void **state) {
    (void)state;
    expect("verify test/golden/e2e/mds test/golden/e2e/mds-zstd --vocab-size 512", 0, "mds-zstd/val: good");
    expect("verify test/golden/e2e/mds --vocab-size 300", 65, "is outside the vocabulary of 300");
    expect("verify test/golden/e2e/mds --vocab-size -3", 2, "--vocab-size must be at least 1");
    expect("verify test/golden/e2e/mds --vocab-size 0", 2, "--vocab-size must be at least 1");
    json_t *manifest = golden_load("test/golden/mds/corrupt/manifest.json"),
           *cases = json_object_get(manifest, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        char *args = clt_format("verify test/golden/mds/corrupt/%s --vocab-size 2000",
                                golden_str(json_array_get(cases, i), "case"));
        expect(args, 65, "error: ");
        clt_free(args);
    }
    json_decref(manifest);
}

/* --- convert --- */

static void put_file(const char *name, const void *data, size_t n) {
    char *path = clt_path_join(dir, name), *folder = clt_path_dir(path);
    assert_int_equal(clt_io_mkdirs(folder), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, data, n), CLT_OK);
    clt_free(path);
    clt_free(folder);
}

/* Converts (`%s` in args is the scratch folder, twice) and compares every sample of OUT/SPLIT. */
static void check_convert(const char *args, const char *split, const int32_t *want, size_t samples,
                          size_t length) {
    char *command = clt_format(args, dir, dir), *folder;
    expect(command, 0, "tokens filled no sample");
    folder = clt_format("%s/out/%s", dir, split);
    for (size_t i = 0; i < samples; i++) {
        char *show = clt_format("show %s --sample %zu --json", folder, i);
        json_t *got = run_json(show), *tokens = json_object_get(got, "tokens");
        assert_int_equal(json_array_size(tokens), length);
        for (size_t t = 0; t < length; t++)
            assert_int_equal(json_integer_value(json_array_get(tokens, t)), want[i * length + t]);
        json_decref(got);
        clt_free(show);
    }
    char *past = clt_format("show %s --sample %zu", folder, samples);
    expect(past, 65, "has no sample");
    char *out = clt_path_join(dir, "out"), *verify = clt_format("verify %s", out);
    expect(verify, 0, "good");
    clt_io_remove_tree(out);
    clt_free(command);
    clt_free(folder);
    clt_free(past);
    clt_free(out);
    clt_free(verify);
}

static void test_convert_text(void **state) {
    (void)state;
    put_file("in/a.txt", "hello", 5);
    put_file("in/sub/b.txt", "wor\xc3\xa9", 5);
    put_file("in/z.bin", "a\0b", 3); /* not text: skipped */
    put_file("in/.hidden", "x", 1);
    static const int32_t wrapped[] = {'h', 'e', 'l', 'l', 'o', 256, 'w', 'o', 'r', 0xc3, 0xa9, 256};
    static const int32_t plain[] = {'h', 'e', 'l', 'l', 'o', 'w', 'o', 'r'};
    static const int32_t cut[] = {1, 'h', 'e', 'l', 1, 'w', 'o', 'r'};
    check_convert("convert %s/in --out %s/out -n 4 --eos", "train", wrapped, 3, 4);
    check_convert("convert %s/in --out %s/out -n 4 --compression zstd:5 --hashes xxh64,sha1 --split test",
                  "test", plain, 2, 4);
    check_convert("convert %s/in --out %s/out -n 4 --bos-id 1 --eos --no-wrap --size-limit 300", "train", cut,
                  2, 4);
    check_convert("convert %s/in --out %s/out -n 2 --eos --val-fraction 0.5", "val",
                  (int32_t[]){'l', 'l', 'w', 'o', 0xa9, 256}, 3, 2);
    check_convert("convert %s/in --out %s/out -n 4 --split x..y", "x..y", plain, 2, 4);
    static const char *const outside[] = {"..", "../x", "a/../../x", "/tmp/x", "''"};
    for (size_t i = 0; i < CLT_COUNT_OF(outside); i++) {
        char *args = clt_format("convert %s/in --out %s/out -n 4 --split %s", dir, dir, outside[i]);
        expect(args, 2, "is not the name of a folder in DIR");
        clt_free(args);
    }
}

static void test_convert_tokens(void **state) {
    (void)state;
    static const uint16_t narrow[] = {1, 65535, 3, 4, 5};
    static const int32_t wide[] = {70000, 2, 3, 4}, bad[] = {1, -5};
    put_file("n.bin", narrow, sizeof narrow);
    put_file("w.bin", wide, sizeof wide);
    put_file("bad.bin", bad, sizeof bad);
    check_convert("convert %s/n.bin --tokens uint16 --eos-id 9 --out %s/out -n 3", "train",
                  (int32_t[]){1, 65535, 3, 4, 5, 9}, 2, 3);
    check_convert("convert %s/w.bin --tokens int32 --out %s/out -n 2", "train", wide, 2, 2);
    char *args = clt_format("convert %s/bad.bin --tokens int32 --out %s/out -n 2", dir, dir);
    expect(args, 65, "bad.bin: token 1 is -5");
    clt_free(args);
    args = clt_format("convert %s/n.bin --tokens int32 --out %s/out -n 2", dir, dir);
    expect(args, 65, "10 bytes are not a whole number of int32 tokens");
    clt_free(args);
    args = clt_format("show %s/out", dir); /* a failed convert leaves no dataset */
    expect(args, 65, "no index.json");
    clt_free(args);
    static const int32_t text[] = {'H', 0, 'I', 200};
    put_file("text.bin", text, sizeof text);
    args = clt_format("convert %s/text.bin --tokens int32 --out %s/shown -n 4", dir, dir);
    expect(args, 0, "1 samples");
    clt_free(args);
    args = clt_format("show %s/shown --sample 0", dir);
    expect(args, 0, "as bytes  \"H\\u0000I\xef\xbf\xbd\"\n");
    clt_free(args);
}

static void test_convert_lines(void **state) {
    (void)state;
    static const char lines[] =
        "{\"text\": \"ab\", \"id\": 1}\n\n{\"text\": \"c<|endoftext|>\", \"body\": \"xyz\"}\n";
    put_file("mixed/a.jsonl", lines, strlen(lines));
    put_file("mixed/b.txt", "de", 2);
    static const int32_t packed[] = {'a', 'b', 256, 'c', '<', '|', 'e', 'n', 'd', 'o', 'f',
                                     't', 'e', 'x', 't', '|', '>', 256, 'd', 'e', 256};
    check_convert("convert %s/mixed --out %s/out -n 4 --eos --threads 2", "train", packed, 5, 4);
    check_convert("convert %s/mixed --out %s/out -n 4 --eos-text '<|endoftext|>'", "train", packed, 5, 4);
    check_convert(
        "convert %s/mixed/a.jsonl --out %s/out -n 3 --field body --skip-bad --bos-text '<|endoftext|>'",
        "train", (int32_t[]){256, 'x', 'y'}, 1, 3);
    char *args = clt_format("convert %s/mixed/a.jsonl --out %s/out -n 3 --field body", dir, dir);
    expect(args, 65, "a.jsonl:1: field 'body' is missing; the line has 'text', 'id'");
    clt_free(args);
    args = clt_format("convert %s/mixed/a.jsonl --out %s/out -n 3 --field body --skip-bad", dir, dir);
    expect(args, 0, "1 document, 67 B read");
    clt_free(args);
    args = clt_format("convert %s/mixed/a.jsonl --out %s/out2 -n 3 --field body --skip-bad", dir, dir);
    expect(args, 0, "1 bad line skipped, the first one is ");
    clt_free(args);
}

/* Without --concat-tokens every document is a sample of text. */
static void test_convert_texts(void **state) {
    (void)state;
    put_file("texts/a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"t\\u00e9\"}\n", 35);
    put_file("texts/b.txt", "three\n", 6);
    char *args = clt_format("convert %s/texts --out %s/strings --compression gz --hashes sha1", dir, dir);
    expect(args, 0, "/strings/train: 3 texts in 1 shard\n");
    clt_free(args);
    static const char *const want[] = {"one", "t\xc3\xa9", "three\n"};
    for (size_t i = 0; i < CLT_COUNT_OF(want); i++) {
        args = clt_format("show %s/strings/train --sample %zu --json", dir, i);
        json_t *got = run_json(args);
        assert_string_equal(golden_str(got, "text"), want[i]);
        json_decref(got);
        clt_free(args);
    }
    args = clt_format("verify %s/strings", dir);
    expect(args, 0, "good");
    clt_free(args);
}

/* A link to a folder above adds nothing, and two of them do not multiply. */
static void test_convert_links(void **state) {
    (void)state;
    char *texts = clt_path_join(dir, "links"), *one = clt_path_join(texts, "one"),
         *two = clt_path_join(texts, "two");
    assert_int_equal(clt_io_mkdirs(texts), CLT_OK);
    put_file("links/text", "hello", 5);
    assert_int_equal(symlink(".", one), 0);
    assert_int_equal(symlink("../links", two), 0);
    char *args = clt_format("convert %s --out %s/linked -n 5", texts, dir);
    expect(args, 0, "1 samples of 5 tokens");
    clt_free(args);
    clt_free(texts);
    clt_free(one);
    clt_free(two);
}

static void test_convert_refusals(void **state) {
    (void)state;
    put_file("one.txt", "abcdefgh", 8);
    static const struct {
        const char *args;
        int code;
        const char *text;
    } cases[] = {
        {"convert %s/one.txt --out %s/o -n 9", 65, "too few"},
        {"convert %s/one.txt --out %s/o -n 8 --val-fraction 0.1", 65, "too few for both splits"},
        {"convert %s/absent --out %s/o", 74, "does not exist"},
        {"convert %s/one.txt --out %s/one.txt/x -n 4", 74, "cannot create folder"},
        {"convert %s/one.txt --out %s/o -n 4 --tokenizer gpt2", 78, "is not fetched"},
        {"convert %s/one.txt --out %s/o -n 4 --tokenizer x/tokenizer.json", 74, "x/tokenizer.json"},
        {"convert %s/one.txt --out %s/o --compression lz4", 78, "compression 'lz4' cannot be written"},
        {"convert %s/one.txt --out %s/o -n 4 --eos-id -7", 2, "must be 0 to"},
        {"convert %s/one.txt --out %s/o --tokens uint8", 2, "--tokens must be uint16 or int32"},
        {"convert %s/one.txt --out %s/o --concat-token 5", 2, "did you mean --concat-tokens"},
        {"convert %s/one.txt --out %s/o --eos", 2, "--eos needs --concat-tokens N"},
        {"convert %s/one.txt --out %s/o --tokenizer bytes", 2, "--tokenizer needs --concat-tokens N"},
        {"convert %s/one.txt --out %s/o -n 4 --eos --eos-id 3", 2, "give one of --eos, --eos-text and"},
        {"convert %s/one.txt --out %s/o -n 4 --bos-text a --bos-id 3", 2, "give one of --bos-text and"},
        {"convert %s/one.txt --out %s/o --tokens int32 --eos-text a", 2, "--eos-text needs a tokenizer"},
        {"convert %s/one.txt --out %s/o --format json", 2, "--format must be auto, text or jsonl"},
        {"convert %s/one.txt --out %s/o --threads -1", 2, "--threads must be"},
        {"convert %s/one.txt --out %s/o -n 4 --format jsonl", 65, "one.txt:1:8: not valid JSON"},
        {"convert --out %s/o%s", 2, "name the files"},
        {"convert %s/one.txt%.0s", 2, "--out DIR is missing"},
        {"convrt%.0s%.0s", 2, "did you mean convert"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(cases); i++) {
        char *args = clt_format(cases[i].args, dir, dir);
        expect(args, cases[i].code, cases[i].text);
        clt_free(args);
    }
    char *args = clt_format("convert %s/one.txt --out %s/o -n 4", dir, dir);
    expect(args, 0, "2 samples of 4 tokens in 1 shard");
    expect(args, 78, "already holds a dataset");
    clt_free(args);
}

/* --- tokenize --- */

static void check_tokenize(const char *in, const char *options, int code, const char *text) {
    put_file("lines", in, strlen(in));
    char *args = clt_format("tokenize %s < %s/lines", options, dir);
    expect(args, code, text);
    clt_free(args);
}

static void test_tokenize(void **state) {
    (void)state;
    check_tokenize("\"h\\u00e9\"\n\"\"\n\"a\\u0000\"\n", "", 0, "[104,195,169]\n[]\n[97,0]\n");
    check_tokenize("[104,195,169,256]\n[]\n", "--decode", 0, "\"h\xc3\xa9<|endoftext|>\"\n\"\"\n");
    /* Broken characters: one U+FFFD for each part of one. */
    check_tokenize("[226,130,65,255,195]", "-d", 0,
                   "\"\xef\xbf\xbd"
                   "A\xef\xbf\xbd\xef\xbf\xbd\"\n");
    check_tokenize("[1,257]", "-d", 65,
                   "token id 257 at position 1 is outside the vocabulary of tokenizer 'bytes'");
    check_tokenize("[1]\n[1,\"2\"]", "-d", 65, "line 2 holds no token id at position 1");
    check_tokenize("[1]", "", 65, "line 1 is not a JSON string");
    check_tokenize("\"a\"\n{", "", 65, "line 2:1:1: not valid JSON");
    check_tokenize("", "--tokenizer gpt2", 78, "a hub is not fetched");
}

/* The number of names in a folder; 0: it does not exist. */
static size_t count_names(const char *folder) {
    clt_strv names = {0};
    if (clt_io_is_dir(folder)) assert_int_equal(clt_io_list(folder, &names), CLT_OK);
    const size_t n = names.n;
    clt_strv_free(&names);
    return n;
}

/* Whichever write, sync or rename of a conversion fails, no file of the dataset is left. */
static void test_convert_faults(void **state) {
    (void)state;
    clt_str lines = {0}, out = {0};
    for (int i = 0; i < 200; i++) clt_str_addf(&lines, "{\"text\": \"line %d\"}\n", i);
    put_file("faults.jsonl", lines.s, lines.len);
    char *made = clt_path_join(dir, "faulty/train"),
         *args =
             clt_format("convert %s/faults.jsonl --out %s/faulty -n 64 --compression gz --size-limit 2000 "
                        "--threads 2",
                        dir, dir);
    static const char *const operations[] = {"open", "pwrite", "sync", "close", "rename"};
    size_t failed = 0;
    for (size_t k = 0; k < CLT_COUNT_OF(operations); k++) {
        int code = 74;
        for (int n = 1; code == 74; n++) {
            char *fault = clt_format("%s:*shard*:%d:ENOSPC", operations[k], n);
            if (strcmp(operations[k], "rename") == 0) memcpy(strchr(fault, '*'), "*index", 6);
            setenv("CLTRAIN_IO_FAULT", fault, 1);
            code = run(args, true, &out);
            failed += code == 74;
            if (code == 74 && count_names(made)) fail_msg("%s leaves files: %s", fault, out.s);
            clt_free(fault);
        }
        assert_int_equal(code, 0);
        assert_int_equal(clt_io_remove_tree(made), CLT_OK);
    }
    unsetenv("CLTRAIN_IO_FAULT");
    assert_true(failed > 10);
    clt_free(made);
    clt_free(args);
    clt_str_free(&lines);
    clt_str_free(&out);
}

/* Output that cannot be written is an error. */
static void test_full_disk(void **state) {
    (void)state;
    clt_str out = {0};
    assert_int_equal(run("order --shards 5,4 >/dev/full", false, &out), 74);
    assert_int_equal(run("--help >/dev/full", false, &out), 74);
    /* Both splits or none: the second index.json is that of train. */
    char *args = clt_format("convert README.md --out %s/full -n 64 --val-fraction 0.1", dir);
    setenv("CLTRAIN_IO_FAULT", "rename:*index.json:2:ENOSPC", 1);
    assert_int_equal(run(args, false, &out), 74);
    unsetenv("CLTRAIN_IO_FAULT");
    expect(args, 0, "full/val: ");
    clt_free(args);
    clt_str_free(&out);
}

int main(int argc, char **argv) {
    (void)argc;
    char *unit = clt_path_dir(argv[0]);
    cltrain = clt_path_join(unit, "../../cltrain");
    clt_free(unit);
    if (!clt_io_is_file(cltrain)) {
        fprintf(stderr, "%s is not built; run make all\n", cltrain);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),          cmocka_unit_test(test_order_of_folder),
        cmocka_unit_test(test_show),           cmocka_unit_test(test_verify),
        cmocka_unit_test(test_convert_text),   cmocka_unit_test(test_convert_tokens),
        cmocka_unit_test(test_convert_lines),  cmocka_unit_test(test_convert_texts),
        cmocka_unit_test(test_convert_links),  cmocka_unit_test(test_convert_refusals),
        cmocka_unit_test(test_tokenize),       cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_convert_faults),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
