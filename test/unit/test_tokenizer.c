/* Tokenizers: what a name opens, the tokenizer `bytes`, text and ids that come in pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/data/clt_tokenizer.h"
#include "runtime/data/clt_utf8.h"

#define EOS "<|endoftext|>"
#define FFFD "\xef\xbf\xbd"

static clt_tokenizer *bytes;

static int set_up(void **state) {
    (void)state;
    return clt_tokenizer_open("bytes", &bytes) == CLT_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clt_tokenizer_close(bytes);
    return 0;
}

/* --- names --- */

static void refused(const char *source, const char *says) {
    clt_tokenizer *t;
    assert_false(clt_tokenizer_known(source));
    clt_error_quiet(true);
    assert_int_equal(clt_tokenizer_open(source, &t), CLT_BAD_CONFIG);
    clt_error_quiet(false);
    if (!strstr(clt_last_error(), says)) fail_msg("'%s' does not say '%s'", clt_last_error(), says);
}

static void test_names(void **state) {
    (void)state;
    clt_tokenizer *second;
    assert_true(clt_tokenizer_known("bytes"));
    refused("EleutherAI/gpt-neox-20b", "a tokenizer of a hub is not fetched");
    refused(NULL, "cannot be loaded");
    refused("", "cannot be loaded");
    assert_int_equal(clt_tokenizer_open("bytes", &second), CLT_OK);
    assert_ptr_not_equal(second, bytes);
    clt_tokenizer_close(second);
    clt_tokenizer_close(NULL);
}

/* --- whole texts --- */

static void test_bytes(void **state) {
    (void)state;
    static const char text[] = "\xc3\xa9" EOS "z\0" EOS; /* with a 0 byte */
    const size_t length = sizeof text - 1;
    int32_t ids[64];
    size_t n;
    clt_str back = {0};
    assert_int_equal(clt_tokenizer_vocab_size(bytes), 257);
    assert_int_equal(clt_tokenizer_eos_id(bytes), 256);
    assert_int_equal(clt_tokenizer_bos_id(bytes), -1);
    assert_int_equal(clt_tokenizer_pad_id(bytes), -1);
    assert_true(clt_tokenizer_max_ids(bytes, length) >= length);
    assert_int_equal(clt_tokenizer_encode(bytes, text, length, 0, ids, 64, &n), CLT_OK);
    assert_int_equal(n, length); /* a document cannot end itself */
    assert_int_equal(ids[2], '<');
    assert_int_equal(clt_tokenizer_encode(bytes, text, length, CLT_TOKEN_SPECIAL, ids, 64, &n), CLT_OK);
    static const int32_t want[] = {0xc3, 0xa9, 256, 'z', 0, 256};
    assert_int_equal(n, CLT_COUNT_OF(want));
    assert_memory_equal(ids, want, sizeof want);
    assert_int_equal(clt_tokenizer_decode(bytes, ids, n, false, &back), CLT_OK);
    assert_int_equal(back.len, length);
    assert_memory_equal(back.s, text, length);
    /* At most `max` ids, also where a special token is the last. */
    for (size_t max = 0; max <= CLT_COUNT_OF(want); max++) {
        ids[max] = -7;
        assert_int_equal(clt_tokenizer_encode(bytes, text, length, CLT_TOKEN_SPECIAL, ids, max, &n), CLT_OK);
        assert_int_equal(n, max);
        assert_memory_equal(ids, want, max * sizeof *want);
        assert_int_equal(ids[max], -7);
    }
    clt_error_quiet(true);
    assert_int_equal(clt_tokenizer_decode(bytes, (const int32_t[]){1, 257}, 2, false, &back), CLT_BAD_DATA);
    assert_non_null(strstr(clt_last_error(), "token id 257 at position 1"));
    assert_int_equal(clt_tokenizer_decode(bytes, (const int32_t[]){-1}, 1, false, &back), CLT_BAD_DATA);
    clt_error_quiet(false);
    assert_int_equal(back.len, length); /* nothing was added */
    back.len = 0;
    assert_int_equal(clt_tokenizer_decode(bytes, (const int32_t[]){256, 0xe2, 'a'}, 3, true, &back), CLT_OK);
    assert_string_equal(back.s, FFFD "a");
    clt_str_free(&back);
}

static void test_tokens(void **state) {
    (void)state;
    size_t n;
    assert_int_equal(clt_tokenizer_id(bytes, EOS), 256);
    assert_int_equal(clt_tokenizer_id(bytes, "A"), 'A');
    assert_int_equal(clt_tokenizer_id(bytes, "AB"), -1);
    assert_int_equal(clt_tokenizer_id(bytes, ""), -1);
    assert_string_equal(clt_tokenizer_text(bytes, 256), EOS);
    assert_string_equal(clt_tokenizer_text(bytes, 'z'), "z");
    assert_null(clt_tokenizer_text(bytes, 257));
    assert_null(clt_tokenizer_text(bytes, -1));
    assert_int_equal(*clt_tokenizer_piece(bytes, 0, &n), 0);
    assert_int_equal(n, 1);
    assert_true(clt_tokenizer_is_special(bytes, 256));
    assert_false(clt_tokenizer_is_special(bytes, 'z'));
    assert_false(clt_tokenizer_is_special(bytes, 257));
    assert_int_equal(clt_tokenizer_unk_id(bytes), -1);
    assert_false(clt_tokenizer_pads_left(bytes));
    assert_int_equal(clt_tokenizer_default_flags(bytes), 0);
    clt_tokenizer_template(bytes, false, &n);
    assert_int_equal(n, 0);
}

/* --- text in pieces --- */

typedef struct {
    int32_t ids[256];
    size_t n, stop_at; /* stop_at: an error comes after so many; 0: never */
} collected;

static clt_status collect(void *ctx, const int32_t *ids, size_t n) {
    collected *c = ctx;
    assert_true(c->n + n <= CLT_COUNT_OF(c->ids));
    memcpy(c->ids + c->n, ids, n * sizeof *ids);
    c->n += n;
    return c->stop_at && c->n >= c->stop_at ? CLT_IO : CLT_OK;
}

/* However a text is cut, its ids are those of the whole text; two texts in turn do not mix. */
static void test_encoder(void **state) {
    (void)state;
    static const char text[] = "<<|endof" EOS "a" EOS EOS "<|endoftext|<" EOS "<|endof";
    const size_t length = sizeof text - 1;
    int32_t want[128];
    size_t n;
    for (int special = 0; special <= 1; special++) {
        assert_int_equal(
            clt_tokenizer_encode(bytes, text, length, (unsigned)special, want, CLT_COUNT_OF(want), &n),
            CLT_OK);
        for (size_t step = 1; step <= length; step++) {
            collected c = {0};
            clt_token_encoder *e = clt_token_encoder_create(bytes, (unsigned)special, collect, &c);
            for (int twice = 0; twice < 2; twice++) {
                for (size_t at = 0; at < length; at += step)
                    assert_int_equal(clt_token_encoder_add(e, text + at, CLT_MIN(step, length - at)), CLT_OK);
                assert_int_equal(clt_token_encoder_end(e), CLT_OK);
            }
            assert_int_equal(c.n, 2 * n);
            assert_memory_equal(c.ids, want, n * sizeof *want);
            assert_memory_equal(c.ids + n, want, n * sizeof *want);
            clt_token_encoder_destroy(e);
        }
    }
    collected c = {.stop_at = 3};
    clt_token_encoder *e = clt_token_encoder_create(bytes, 0, collect, &c);
    assert_int_equal(clt_token_encoder_add(e, "abcd", 4), CLT_IO); /* the receiver's error */
    clt_token_encoder_destroy(e);
}

/* --- ids in pieces --- */

/* Adds the bytes one by one; what comes out each time is whole characters, and all of it is `want`. */
static void check_stream(const char *in, size_t n, const char *want) {
    clt_token_decoder d = clt_token_decoder_begin(bytes, false);
    clt_str all = {0}, piece = {0};
    for (size_t i = 0; i < n; i++) {
        piece.len = 0;
        assert_int_equal(clt_token_decoder_add(&d, (unsigned char)in[i], &piece), CLT_OK);
        assert_true(clt_utf8_valid(piece.s ? piece.s : "", piece.len));
        clt_str_addn(&all, piece.s, piece.len);
    }
    clt_token_decoder_end(&d, &all);
    if (all.len != strlen(want) || memcmp(all.s ? all.s : "", want, all.len))
        fail_msg("'%.*s' is not '%s'", (int)all.len, all.s ? all.s : "", want);
    clt_str_free(&all);
    clt_str_free(&piece);
}

static void test_decoder(void **state) {
    (void)state;
    static const char *const good[] = {
        "", "abc", "\xc3\xa9", "\xe2\x82\xac!", "\xf0\x9f\x99\x82\xc3\xa9z", "\xed\x9f\xbf"};
    for (size_t i = 0; i < CLT_COUNT_OF(good); i++) check_stream(good[i], strlen(good[i]), good[i]);
    static const struct {
        const char *in, *want;
    } bad[] = {
        {"\x80", FFFD}, /* nothing was begun */
        {"a\xff"
         "b",
         "a" FFFD "b"},     /* no byte of UTF-8 */
        {"\xe2\x82", FFFD}, /* ends in a character */
        {"\xe2\x82"
         "A",
         FFFD "A"}, /* another one begins too early */
        {"\xe2\xe2\x82\xac", FFFD "\xe2\x82\xac"},
        {"\xf0\x9f\x99\xc3\xa9", FFFD "\xc3\xa9"},
        {"\xc0\x80", FFFD FFFD},          /* overlong */
        {"\xed\xa0\x80", FFFD FFFD FFFD}, /* a surrogate */
        {"\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(bad); i++) check_stream(bad[i].in, strlen(bad[i].in), bad[i].want);
}

/* Any bytes: the stream gives what clt_utf8_repair makes of them at once. */
static void test_decoder_random(void **state) {
    (void)state;
    static const unsigned char likely[] = {0x41, 0x80, 0xbf, 0xc3, 0xe2, 0xed, 0xa0, 0xf0, 0xf4, 0x90};
    uint32_t seed = 1;
    for (int i = 0; i < 20000; i++) {
        char in[12];
        clt_str want = {0};
        for (size_t k = 0; k < sizeof in; k++)
            in[k] = (char)likely[(seed = seed * 1664525u + 1013904223u) / 65536 % CLT_COUNT_OF(likely)];
        clt_utf8_repair(in, sizeof in, &want);
        assert_true(clt_utf8_valid(want.s, want.len));
        check_stream(in, sizeof in, want.s);
        clt_str_free(&want);
    }
}

static void test_decoder_special(void **state) {
    (void)state;
    clt_token_decoder d = clt_token_decoder_begin(bytes, false);
    clt_str out = {0};
    assert_int_equal(clt_token_decoder_add(&d, 0xe2, &out), CLT_OK);
    assert_int_equal(out.len, 0);
    assert_int_equal(clt_token_decoder_add(&d, 256, &out), CLT_OK);
    assert_string_equal(out.s, FFFD EOS);
    clt_error_quiet(true);
    assert_int_equal(clt_token_decoder_add(&d, 257, &out), CLT_BAD_DATA);
    clt_error_quiet(false);
    clt_token_decoder_end(&d, &out);
    assert_string_equal(out.s, FFFD EOS);
    clt_str_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),          cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_encoder),        cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_decoder_random), cmocka_unit_test(test_decoder_special),
        cmocka_unit_test(test_tokens),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
