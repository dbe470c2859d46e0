#include "runtime/data/finetune/clt_chat_templates.h"

#include <string.h>

/* --- what templates are made of --- */

static bool is(const clt_chat_message *m, const char *role) {
    return strcmp(m->role, role) == 0;
}

/* Bytes of the white space (as Python's str.strip knows it) at s; 0: there is none. */
static size_t space_at(const unsigned char *s, size_t n) {
    if (n >= 1 && (s[0] == ' ' || (s[0] >= 9 && s[0] <= 13) || (s[0] >= 0x1c && s[0] <= 0x1f))) return 1;
    if (n >= 2 && s[0] == 0xc2 && (s[1] == 0x85 || s[1] == 0xa0)) return 2;
    if (n < 3) return 0;
    const unsigned c = (s[0] & 0xfu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    if ((s[0] & 0xf0) != 0xe0) return 0;
    const bool space = c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
                       c == 0x202f || c == 0x205f || c == 0x3000;
    return space ? 3 : 0;
}

/* The content without white space at both ends. */
static void add_trimmed(const clt_chat_message *m, clt_str *out) {
    const unsigned char *s = (const unsigned char *)m->content;
    size_t n = m->bytes, k;
    while ((k = space_at(s, n)) > 0) {
        s += k;
        n -= k;
    }
    for (bool more = true; more;) {
        more = false;
        for (k = 1; k <= 3 && k <= n && !more; k++) more = space_at(s + n - k, k) == k;
        if (more) n -= k - 1;
    }
    clt_str_addn(out, (const char *)s, n);
}

static void add_content(const clt_chat_message *m, clt_str *out) {
    clt_str_addn(out, m->content, m->bytes);
}

/* --- chatml and its relatives --- */

static void add_chatml(const clt_chat_message *m, bool trim, clt_str *out) {
    clt_str_addf(out, "<|im_start|>%s\n", m->role);
    if (trim)
        add_trimmed(m, out);
    else
        add_content(m, out);
    clt_str_add(out, "<|im_end|>\n");
}

static void render_chatml(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt,
                          clt_str *out) {
    (void)t;
    for (size_t i = 0; i < n; i++) add_chatml(&m[i], false, out);
    if (prompt) clt_str_add(out, "<|im_start|>assistant\n");
}

static void render_chatml_trim(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt,
                               clt_str *out) {
    (void)t;
    for (size_t i = 0; i < n; i++) add_chatml(&m[i], true, out);
    if (prompt) clt_str_add(out, "<|im_start|>assistant\n");
}

static void render_qwen2(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt,
                         clt_str *out) {
    if (n > 0 && !is(m, "system"))
        clt_str_add(out, "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n");
    render_chatml(t, m, n, prompt, out);
}

/* --- others --- */

static void render_llama3(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt,
                          clt_str *out) {
    if (n > 0) clt_str_add(out, t->bos);
    for (size_t i = 0; i < n; i++) {
        clt_str_addf(out, "<|start_header_id|>%s<|end_header_id|>\n\n", m[i].role);
        add_trimmed(&m[i], out);
        clt_str_add(out, "<|eot_id|>");
    }
    if (prompt) clt_str_add(out, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

static void render_inst(const clt_chat_tokens *t, const clt_chat_message *m, size_t n, bool prompt,
                        clt_str *out) {
    (void)prompt; /* an answer follows [/INST] directly */
    for (size_t i = 0; i < n; i++) {
        if (is(&m[i], "system")) {
            clt_str_add(out, "<<SYS>> ");
            add_content(&m[i], out);
            clt_str_add(out, " <</SYS>>\n");
        } else if (is(&m[i], "user")) {
            clt_str_add(out, "[INST] ");
            add_content(&m[i], out);
            clt_str_add(out, " [/INST]");
        } else if (is(&m[i], "assistant")) {
            clt_str_add(out, " ");
            add_content(&m[i], out);
            clt_str_add(out, t->eos);
        } else {
            clt_str_addf(out, "(%s) ", m[i].role);
            add_content(&m[i], out);
        }
    }
}

/* --- the table --- */

#define EACH "{% for message in messages %}"
#define OPEN "{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
#define ANSWER "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static const clt_chat_template templates[] = {
    {"chatml",
     false,
     false,
     render_chatml,
     {EACH OPEN " + '<|im_end|>' + '\\n' }}{% endfor %}" ANSWER,
      EACH OPEN " + '<|im_end|>\\n' }}{% endfor %}" ANSWER,
      "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}" EACH
          OPEN " + '<|im_end|>' + '\\n' }}{% endfor %}" ANSWER}},
    {"chatml-trim",
     false,
     false,
     render_chatml_trim,
     {EACH OPEN " | trim + '<|im_end|>\\n' }}{% endfor %}" ANSWER,
      EACH OPEN " | trim + '<|im_end|>' + '\\n' }}{% endfor %}" ANSWER, NULL}},
    {"qwen2",
     false,
     false,
     render_qwen2,
     {EACH "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are a "
           "helpful assistant.<|im_end|>\\n' }}{% endif %}" OPEN
           " + '<|im_end|>' + '\\n' }}{% endfor %}" ANSWER,
      NULL}},
    {"llama3",
     true,
     false,
     render_llama3,
     {"{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
      "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + "
      "'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content "
      "}}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' "
      "}}{% endif %}",
      NULL}},
    {"inst",
     false,
     true,
     render_inst,
     {"{% for m in messages %}{% if m['role'] == 'system' %}{{ '<<SYS>> ' + m['content'] + ' <</SYS>>\\n' "
      "}}{% elif m['role'] == 'user' %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m['role'] == "
      "'assistant' %}{{ ' ' + m['content'] + eos_token }}{% else %}{{ '(' + m['role'] + ') ' + m['content'] "
      "}}{% endif %}{% endfor %}",
      NULL}},
};

const clt_chat_template *clt_chat_template_named(const char *name) {
    for (size_t i = 0; i < CLT_COUNT_OF(templates); i++)
        if (strcmp(templates[i].name, name) == 0) return &templates[i];
    return NULL;
}

void clt_chat_template_names(clt_str *out) {
    for (size_t i = 0; i < CLT_COUNT_OF(templates); i++)
        clt_str_addf(out, "%s%s", i ? ", " : "", templates[i].name);
}

static bool same_text(const char *a, const char *normal) {
    clt_str n = {0};
    clt_chat_normalise(a, &n);
    const bool same = strcmp(n.s ? n.s : "", normal) == 0;
    clt_str_free(&n);
    return same;
}

const clt_chat_template *clt_chat_template_like(const char *text) {
    const clt_chat_template *found = NULL;
    clt_str normal = {0};
    clt_chat_normalise(text, &normal);
    for (size_t i = 0; i < CLT_COUNT_OF(templates) && normal.len; i++)
        for (size_t k = 0; k < CLT_COUNT_OF(templates[i].text) && templates[i].text[k] && !found; k++)
            if (same_text(templates[i].text[k], normal.s)) found = &templates[i];
    clt_str_free(&normal);
    return found;
}

/* --- comparison --- */

static bool blank(char c) {
    return c == ' ' || (c >= 9 && c <= 13);
}

/* Text outside of tags. after: the kind of tag before it ('%', '{', '#'; 0: none); strip_left, strip_right: a
 * tag beside it has a minus. */
static void add_literal(const char *s, size_t n, char after, bool strip_left, char before, bool strip_right,
                        clt_str *out) {
    if (strip_left)
        for (; n && blank(*s); n--) s++;
    else if ((after == '%' || after == '#') && n && *s == '\n') {
        s++;
        n--;
    }
    if (strip_right)
        while (n && blank(s[n - 1])) n--;
    else if (before == '%' || before == '#') {
        size_t k = n;
        while (k && (s[k - 1] == ' ' || s[k - 1] == '\t')) k--;
        if (k ? s[k - 1] == '\n' : after == 0) n = k; /* a tag that begins its line */
    }
    clt_str_addn(out, s, n);
}

/* A quoted string of a tag; returns the byte behind it. */
static const char *add_string(const char *s, const char *end, clt_str *out) {
    const char quote = *s++;
    clt_str_add(out, "'");
    for (; s < end && *s != quote; s++) {
        if (*s == '\\' && s + 1 < end)
            clt_str_addn(out, s++, 2);
        else if (*s == '\n')
            clt_str_add(out, "\\n");
        else if (*s == '\'')
            clt_str_add(out, "\\'");
        else
            clt_str_addn(out, s, 1);
    }
    clt_str_add(out, "'");
    return s < end ? s + 1 : s;
}

/* The inside of a tag; one space stays between two words. */
static void add_tag(const char *s, const char *end, char kind, clt_str *out) {
    clt_str_addf(out, "{%c", kind);
    const size_t begin = out->len;
    while (s < end) {
        if (*s == '\'' || *s == '"') {
            s = add_string(s, end, out);
        } else if (blank(*s)) {
            while (s < end && blank(*s)) s++;
            if (out->len > begin && s < end && !strchr("+|=!<>()[]{}.,'\"", *s) &&
                !strchr("+|=!<>()[]{}.,'", out->s[out->len - 1]))
                clt_str_add(out, " ");
        } else {
            clt_str_addn(out, s++, 1);
        }
    }
    clt_str_addf(out, "%c}", kind == '{' ? '}' : kind);
}

/* The end of a tag that begins at s: its closing mark, outside of strings; NULL: it is not closed. */
static const char *tag_end(const char *s, char kind) {
    const char close = kind == '{' ? '}' : kind;
    for (; *s; s++) {
        if (kind != '#' && (*s == '\'' || *s == '"')) {
            const char quote = *s++;
            while (*s && *s != quote) s += *s == '\\' && s[1] ? 2 : 1;
            if (!*s) return NULL;
        } else if (*s == close && s[1] == '}') {
            return s;
        }
    }
    return NULL;
}

void clt_chat_normalise(const char *text, clt_str *out) {
    char after = 0;
    bool strip_left = false;
    for (;;) {
        const char *open = text;
        while (*open && !(*open == '{' && open[1] && strchr("%{#", open[1]))) open++;
        const char kind = *open ? open[1] : 0, *end = kind ? tag_end(open + 2, kind) : NULL;
        const bool minus = end && open[2] == '-' && open + 2 < end;
        add_literal(text, (size_t)(open - text), after, strip_left, end ? kind : 0, minus, out);
        if (!end) { /* the end, or a tag that is not closed */
            clt_str_add(out, open);
            return;
        }
        strip_left = end > open + 2 + minus && end[-1] == '-';
        if (kind != '#') add_tag(open + 2 + minus, end - strip_left, kind, out);
        after = kind;
        text = end + 2;
    }
}
