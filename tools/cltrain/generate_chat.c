#include "tools/cltrain/generate_chat.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_signal.h"
#include "runtime/data/finetune/clt_chat.h"

typedef struct {
    clt_generate_params *p;
    clt_generator *generator;
    clt_chat *chat;
    clt_chat_message *messages; /* whose contents it owns */
    size_t n, cap;
    clt_str answer; /* of this turn */
} session;

static void add_message(session *s, const char *role, const char *text, size_t bytes) {
    if (s->n == s->cap) {
        s->cap = 2 * s->cap + 4;
        s->messages = clt_realloc(s->messages, s->cap * sizeof *s->messages);
    }
    s->messages[s->n++] = (clt_chat_message){role, clt_strndup(text, bytes), bytes};
}

/* The text that the template puts after an answer ends the answer. */
static void stop_at_turn_end(session *s) {
    static const char mark[] = "answer";
    const clt_chat_message m[] = {{"user", "question", 8}, {"assistant", mark, sizeof mark - 1}};
    static const char space[] = " \t\r\n";
    clt_str text = {0};
    clt_chat_render(s->chat, m, CLT_COUNT_OF(m), false, &text);
    char *end = strstr(text.s, mark);
    if (end) end += sizeof mark - 1, end += strspn(end, space);
    size_t n = end ? strlen(end) : 0;
    while (n && strchr(space, end[n - 1])) n--;
    if (n) clt_strv_add_owned(&s->p->stop, clt_strndup(end, n));
    clt_str_free(&text);
}

static void print_answer(void *ctx, const char *text, size_t bytes) {
    session *s = ctx;
    clt_str_addn(&s->answer, text, bytes);
    fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

static clt_status answer(session *s, const char *question, size_t bytes) {
    clt_str text = {0};
    add_message(s, "user", question, bytes);
    clt_chat_render(s->chat, s->messages, s->n, true, &text);
    s->p->prompt = text.s;
    s->answer.len = 0;
    const clt_status st = clt_generator_run(s->generator, s->p, print_answer, s);
    if (st == CLT_OK) putchar('\n');
    fflush(stdout);
    add_message(s, "assistant", s->answer.s ? s->answer.s : "", s->answer.len);
    clt_str_free(&text);
    return st;
}

/* A line of stdin without its end; false at the end. */
static bool read_line(clt_str *line) {
    int c;
    line->len = 0;
    while ((c = getchar()) != EOF && c != '\n') clt_str_addn(line, (const char[]){(char)c}, 1);
    if (line->len && line->s[line->len - 1] == '\r') line->len--;
    return line->len || c != EOF;
}

/* A line of stdin is a question; an empty one is skipped. */
static clt_status converse(session *s) {
    const bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    clt_str line = {0};
    clt_status st = CLT_OK;
    while (st == CLT_OK) {
        if (terminal) fputs("> ", stdout), fflush(stdout);
        if (!read_line(&line) || clt_signal_received()) break;
        if (line.len) st = answer(s, line.s, line.len);
    }
    if (terminal) putchar('\n');
    clt_str_free(&line);
    return st;
}

clt_status generate_chat(clt_generate_params *p, const char *template_text, const char *system) {
    session s = {.p = p};
    const char *question = p->prompt;
    p->prompt_is_chat = p->stop_at_eos = true;
    clt_status st = clt_generator_open(p, &s.generator);
    if (st == CLT_OK) st = clt_chat_open(clt_generator_tokenizer_source(s.generator), template_text, &s.chat);
    if (st == CLT_OK && clt_chat_is_assumed(s.chat))
        clt_warn("the tokenizer has no chat template: chatml is used (--chat-template names another one)");
    if (st == CLT_OK) stop_at_turn_end(&s);
    if (st == CLT_OK && system) add_message(&s, "system", system, strlen(system));
    if (st == CLT_OK) st = *question ? answer(&s, question, strlen(question)) : converse(&s);
    for (size_t i = 0; i < s.n; i++) clt_free((char *)(uintptr_t)s.messages[i].content);
    clt_free(s.messages);
    clt_str_free(&s.answer);
    clt_chat_close(s.chat);
    clt_generator_close(s.generator);
    return st;
}
