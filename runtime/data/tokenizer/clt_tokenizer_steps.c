#include "runtime/data/tokenizer/clt_tokenizer_steps.h"

#include <string.h>

#include "runtime/base/clt_json.h"

/* --- objects with a type --- */

static const char *type_of(const json_t *o) {
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "";
}

static clt_status unsupported(const clt_json_tokenizer *t, const char *part, const json_t *o) {
    return clt_error(CLT_BAD_CONFIG, "%s: %s '%.80s' is not supported; docs/data.md lists what is", t->path,
                     part, type_of(o));
}

typedef clt_status (*read_fn)(clt_json_tokenizer *t, json_t *o);

/* Reads an object, null, or the members of a Sequence, whose list has the name `list`. */
static clt_status each_of(clt_json_tokenizer *t, json_t *o, const char *list, const char *part,
                          read_fn read) {
    json_t *members;
    if (!o || json_is_null(o)) return CLT_OK;
    if (!json_is_object(o)) return clt_error(CLT_BAD_DATA, "%s: %s is not an object", t->path, part);
    if (strcmp(type_of(o), "Sequence") != 0) return read(t, o);
    CLT_TRY(clt_json_get_arr(o, list, t->path, &members));
    for (size_t i = 0; i < json_array_size(members); i++)
        CLT_TRY(each_of(t, json_array_get(members, i), list, part, read));
    return CLT_OK;
}

/* The text of {"String": TEXT}, the only kind of pattern that does not need a regular expression; NULL. */
static const char *fixed_pattern(const json_t *o) {
    const char *text = json_string_value(json_object_get(json_object_get(o, "pattern"), "String"));
    return text && *text ? text : NULL;
}

/* --- normalizer --- */

static clt_status read_normalizer(clt_json_tokenizer *t, json_t *o) {
    clt_normalize_step s = {.kind = CLT_NORMALIZE_NFC};
    const char *to = "";
    if (t->n_normalize == CLT_MAX_STEPS) return unsupported(t, "a long normalizer that ends in", o);
    if (strcmp(type_of(o), "Prepend") == 0) {
        s.kind = CLT_NORMALIZE_PREPEND;
        CLT_TRY(clt_json_get_str(o, "prepend", t->path, &to));
    } else if (strcmp(type_of(o), "Replace") == 0 && fixed_pattern(o)) {
        s.kind = CLT_NORMALIZE_REPLACE;
        s.from = clt_strdup(fixed_pattern(o));
        t->normalize[t->n_normalize].from = s.from;
    } else if (strcmp(type_of(o), "NFC") != 0) {
        return unsupported(t, "normalizer", o);
    }
    t->normalize[t->n_normalize++] = s;
    if (s.kind == CLT_NORMALIZE_REPLACE) CLT_TRY(clt_json_get_str(o, "content", t->path, &to));
    if (s.kind != CLT_NORMALIZE_NFC) t->normalize[t->n_normalize - 1].to = clt_strdup(to);
    return CLT_OK;
}

/* --- pre-tokenizer --- */

static clt_status add_split(clt_json_tokenizer *t, const char *pattern, bool is_text,
                            clt_split_behavior behavior) {
    clt_pre_step *s = &t->pre[t->n_pre];
    if (is_text)
        CLT_TRY(clt_splitter_create_text(pattern, behavior, &s->splitter));
    else
        CLT_TRY(clt_splitter_create(pattern, behavior, t->path, &s->splitter));
    t->n_pre++;
    return CLT_OK;
}

static clt_status read_behavior(const clt_json_tokenizer *t, json_t *o, clt_split_behavior *out) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                        "Contiguous"};
    const char *name;
    CLT_TRY(clt_json_get_str(o, "behavior", t->path, &name));
    for (size_t i = 0; i < CLT_COUNT_OF(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (clt_split_behavior)i;
            return CLT_OK;
        }
    return clt_error(CLT_BAD_DATA, "%s: pre_tokenizer Split: behavior '%.40s' is unknown", t->path, name);
}

static clt_status read_split(clt_json_tokenizer *t, json_t *o) {
    const char *regex = json_string_value(json_object_get(json_object_get(o, "pattern"), "Regex"));
    clt_split_behavior behavior = CLT_SPLIT_ISOLATED;
    CLT_TRY(read_behavior(t, o, &behavior));
    if (clt_tokenizer_flag(o, "invert", false)) return unsupported(t, "an inverted pre_tokenizer", o);
    if (!regex && !fixed_pattern(o))
        return clt_error(CLT_BAD_DATA,
                         "%s: pre_tokenizer Split: pattern is neither {\"Regex\": ...} nor "
                         "{\"String\": ...}",
                         t->path);
    t->cuts &= behavior == CLT_SPLIT_ISOLATED && regex && clt_pattern_known(regex);
    return add_split(t, regex ? regex : fixed_pattern(o), !regex, behavior);
}

static clt_status read_byte_level(clt_json_tokenizer *t, json_t *o) {
    const json_t *prefix = json_object_get(o, "add_prefix_space");
    if (!json_is_boolean(prefix))
        return clt_error(CLT_BAD_DATA,
                         "%s: pre_tokenizer ByteLevel: key 'add_prefix_space' is missing or not a "
                         "boolean",
                         t->path);
    t->bpe.byte_level = true;
    if (json_is_true(prefix)) t->pre[t->n_pre++].kind = CLT_PRE_SPACE;
    if (t->n_pre < CLT_MAX_STEPS && clt_tokenizer_flag(o, "use_regex", true))
        return add_split(t, clt_pattern_gpt2, false, CLT_SPLIT_ISOLATED);
    return CLT_OK;
}

static clt_status read_metaspace(clt_json_tokenizer *t, json_t *o) {
    static const char *const schemes[] = {"never", "first", "always"};
    const char *mark, *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    const bool prefix = clt_tokenizer_flag(o, "add_prefix_space", true); /* of files before prepend_scheme */
    clt_pre_step *s = &t->pre[t->n_pre++];
    size_t i = 0;
    s->kind = CLT_PRE_MARKS;
    CLT_TRY(clt_json_get_str(o, "replacement", t->path, &mark));
    s->mark = clt_strdup(*mark ? mark : " ");
    if (!scheme) scheme = prefix ? "always" : "never";
    while (i < CLT_COUNT_OF(schemes) && strcmp(scheme, schemes[i]) != 0) i++;
    if (i == CLT_COUNT_OF(schemes))
        return clt_error(CLT_BAD_DATA, "%s: pre_tokenizer Metaspace: prepend_scheme '%.40s' is unknown",
                         t->path, scheme);
    s->prepend = (int)i;
    if (t->n_pre < CLT_MAX_STEPS && clt_tokenizer_flag(o, "split", true))
        return add_split(t, s->mark, true, CLT_SPLIT_MERGED_WITH_NEXT);
    return CLT_OK;
}

static clt_status read_pre_tokenizer(clt_json_tokenizer *t, json_t *o) {
    if (t->n_pre + 2 > CLT_MAX_STEPS) return unsupported(t, "a long pre_tokenizer that ends in", o);
    if (t->bpe.byte_level) return unsupported(t, "after ByteLevel, a pre_tokenizer", o);
    if (strcmp(type_of(o), "Split") == 0) return read_split(t, o);
    if (strcmp(type_of(o), "ByteLevel") == 0) return read_byte_level(t, o);
    if (strcmp(type_of(o), "Metaspace") == 0) return read_metaspace(t, o);
    if (strcmp(type_of(o), "Digits") == 0) {
        const bool each = clt_tokenizer_flag(o, "individual_digits", false);
        return add_split(t, "\\p{N}", false, each ? CLT_SPLIT_ISOLATED : CLT_SPLIT_CONTIGUOUS);
    }
    return unsupported(t, "pre_tokenizer", o);
}

clt_status clt_tokenizer_read_steps(clt_json_tokenizer *t, json_t *root) {
    t->cuts = true;
    t->byte_level_alone = strcmp(type_of(json_object_get(root, "pre_tokenizer")), "ByteLevel") == 0;
    CLT_TRY(each_of(t, json_object_get(root, "normalizer"), "normalizers", "normalizer", read_normalizer));
    return each_of(t, json_object_get(root, "pre_tokenizer"), "pretokenizers", "pre_tokenizer",
                   read_pre_tokenizer);
}

/* --- template --- */

static clt_status add_template_id(clt_json_tokenizer *t, bool after, int64_t id) {
    int32_t **ids = after ? &t->base.after.ids : &t->base.before.ids;
    size_t *n = after ? &t->base.after.n : &t->base.before.n;
    if (id < 0 || id >= t->base.vocab_size)
        return clt_error(CLT_BAD_DATA, "%s: post_processor: id %lld is outside the vocabulary", t->path,
                         (long long)id);
    int32_t *more = clt_try_realloc(*ids, (*n + 1) * sizeof *more);
    if (!more) return clt_no_memory("the template of a tokenizer", (*n + 1) * sizeof *more);
    *ids = more;
    more[(*n)++] = (int32_t)id;
    return CLT_OK;
}

void clt_tokenizer_set_template(clt_json_tokenizer *t, int64_t before, int64_t after) {
    t->base.before.n = t->base.after.n = 0;
    if (before >= 0) add_template_id(t, false, before);
    if (after >= 0) add_template_id(t, true, after);
}

/* The ids of a special token of the template. */
static clt_status add_template_token(clt_json_tokenizer *t, json_t *tokens, const char *name, bool after) {
    json_t *ids = json_object_get(json_object_get(tokens, name), "ids");
    if (!json_is_array(ids))
        return clt_error(CLT_BAD_DATA, "%s: post_processor: special token '%.80s' of the template has no ids",
                         t->path, name);
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        CLT_TRY(add_template_id(t, after, json_is_integer(id) ? json_integer_value(id) : -1));
    }
    return CLT_OK;
}

static clt_status read_template(clt_json_tokenizer *t, json_t *o) {
    json_t *single, *tokens = json_object_get(o, "special_tokens");
    bool after = false;
    CLT_TRY(clt_json_get_arr(o, "single", t->path, &single));
    for (size_t i = 0; i < json_array_size(single); i++) {
        json_t *piece = json_array_get(single, i);
        const char *name = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        if (name)
            CLT_TRY(add_template_token(t, tokens, name, after));
        else if (!after && json_is_object(json_object_get(piece, "Sequence")))
            after = true;
        else
            return clt_error(CLT_BAD_DATA,
                             "%s: post_processor: a template of one text has one Sequence and "
                             "special tokens",
                             t->path);
    }
    if (!after) return clt_error(CLT_BAD_DATA, "%s: post_processor: the template has no Sequence", t->path);
    return CLT_OK;
}

static clt_status read_post(clt_json_tokenizer *t, json_t *o) {
    if (strcmp(type_of(o), "ByteLevel") == 0) return CLT_OK; /* changes offsets only */
    if (strcmp(type_of(o), "TemplateProcessing") == 0) return read_template(t, o);
    return unsupported(t, "post_processor", o);
}

clt_status clt_tokenizer_read_post_processor(clt_json_tokenizer *t, json_t *root) {
    t->base.default_flags = CLT_TOKEN_SPECIAL | CLT_TOKEN_TEMPLATE;
    return each_of(t, json_object_get(root, "post_processor"), "processors", "post_processor", read_post);
}

/* --- decoder --- */

static clt_status read_strip(clt_json_tokenizer *t, json_t *o) {
    const char *content;
    int64_t start, stop;
    CLT_TRY(clt_json_get_str(o, "content", t->path, &content));
    CLT_TRY(clt_json_get_i64(o, "start", t->path, &start));
    CLT_TRY(clt_json_get_i64(o, "stop", t->path, &stop));
    if (strcmp(content, " ") != 0 || stop != 0 || start < 0)
        return unsupported(t, "this form of the decoder", o);
    t->base.strip = (size_t)start;
    return CLT_OK;
}

static clt_status read_decoder(clt_json_tokenizer *t, json_t *o) {
    const char *type = type_of(o), *to;
    const bool alone = !t->byte_level_decoder && t->base.strip == 0;
    if (strcmp(type, "ByteLevel") == 0 && alone && !t->decode_from && !t->byte_fallback_decoder) {
        t->byte_level_decoder = true;
    } else if (strcmp(type, "Replace") == 0 && alone && fixed_pattern(o) && !t->decode_from) {
        CLT_TRY(clt_json_get_str(o, "content", t->path, &to));
        t->decode_from = clt_strdup(fixed_pattern(o));
        t->decode_to = clt_strdup(to);
    } else if (strcmp(type, "ByteFallback") == 0 && alone) {
        t->byte_fallback_decoder = true;
    } else if (strcmp(type, "Strip") == 0 && alone) {
        return read_strip(t, o);
    } else if (strcmp(type, "Fuse") != 0) {
        return unsupported(t, "decoder", o);
    }
    return CLT_OK;
}

/* --- the bytes of tokens --- */

/* The byte of a token like "<0x0A>", or -1. */
static int fallback_byte(const char *text, size_t bytes) {
    unsigned value = 0;
    if (bytes != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                                 : -1;
        if (digit < 0) return -1;
        value = 16 * value + (unsigned)digit;
    }
    return (int)value;
}

static clt_status replace_in_token(const clt_json_tokenizer *t, const char *text, clt_str *out) {
    const size_t n = strlen(t->decode_from);
    for (const char *at; (at = strstr(text, t->decode_from)); text = at + n) {
        clt_str_addn(out, text, (size_t)(at - text));
        clt_str_add(out, t->decode_to);
    }
    clt_str_add(out, text);
    return CLT_OK;
}

/* Appends the bytes that the token stands for. */
static clt_status add_piece(clt_json_tokenizer *t, int32_t id, const char *text, size_t bytes) {
    clt_str *out = &t->piece_arena;
    const int byte = t->byte_fallback_decoder ? fallback_byte(text, bytes) : -1;
    size_t n;
    const size_t room = t->decode_to ? bytes * (1 + strlen(t->decode_to)) : bytes;
    if (!clt_str_try_reserve(out, room + 1)) return clt_no_memory("the texts of tokens", out->len + room);
    if (byte >= 0) {
        t->is_byte[id] = true;
        clt_str_addn(out, &(char){(char)byte}, 1);
    } else if (t->byte_level_decoder && clt_byte_chars_decode(text, bytes, out->s + out->len, &n)) {
        out->len += n;
    } else if (t->decode_from) {
        return replace_in_token(t, text, out);
    } else {
        clt_str_addn(out, text, bytes);
    }
    return CLT_OK;
}

static clt_status make_pieces(clt_json_tokenizer *t) {
    const size_t n = (size_t)t->base.vocab_size;
    t->pieces = clt_try_calloc(n, sizeof *t->pieces);
    t->is_byte = clt_try_calloc(n, sizeof *t->is_byte);
    if (!t->pieces || !t->is_byte) return clt_no_memory("the texts of tokens", n * sizeof *t->pieces);
    if (t->byte_fallback_decoder) t->base.in_run = t->is_byte;
    for (size_t id = 0; id < n; id++) {
        const char *text = clt_tokenizer_text(&t->base, (int64_t)id);
        const size_t from = t->piece_arena.len;
        if (text) CLT_TRY(add_piece(t, (int32_t)id, text, strlen(text)));
        if (t->piece_arena.len > UINT32_MAX)
            return clt_error(CLT_BAD_DATA, "%s: the tokens are too long", t->path);
        t->pieces[id] = (clt_vocab_text){(uint32_t)from, (uint32_t)(t->piece_arena.len - from)};
    }
    return CLT_OK;
}

/* --- cuts --- */

static bool ends_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Whether a cut before a space that follows a letter or digit can change where the token is found. */
static bool crosses(const clt_added_token *a, const char *text) {
    const size_t n = strlen(text);
    if (a->single_word && *text == ' ') return true;
    if (a->rstrip && n > 0 && ends_word(text[n - 1])) return true;
    for (size_t i = 1; i < n; i++)
        if (text[i] == ' ' && ends_word(text[i - 1])) return true;
    return false;
}

static bool can_cut(const clt_json_tokenizer *t) {
    size_t bytes;
    bool splits = t->bpe.divides;
    for (size_t i = 0; i < t->n_pre; i++) splits |= t->pre[i].kind == CLT_PRE_SPLIT;
    for (size_t i = 0; i < t->n_normalize; i++)
        if (t->normalize[i].kind == CLT_NORMALIZE_REPLACE && strcmp(t->normalize[i].from, " ") != 0)
            return false;
    for (size_t i = 0; i < t->n_added; i++) {
        const char *text = clt_vocab_get(&t->tokens, t->added[i].id, &bytes);
        if (text && crosses(&t->added[i], text)) return false;
    }
    return t->cuts && splits;
}

clt_status clt_tokenizer_read_decoder(clt_json_tokenizer *t, json_t *root) {
    json_t *decoder = json_object_get(root, "decoder");
    if (!json_is_object(decoder))
        return clt_error(CLT_BAD_CONFIG, "%s: a tokenizer without a decoder is not supported", t->path);
    CLT_TRY(each_of(t, decoder, "decoders", "decoder", read_decoder));
    CLT_TRY(make_pieces(t));
    t->cuts = can_cut(t);
    return CLT_OK;
}
