/* The training files of LLM Foundry, built from the facts in test/golden/foundry-yaml: what each needs that
 * is missing here is all that keeps it from being accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "test/config_util.h"

enum { MOST_THINGS = 32, MOST_FILES = 40, MOST_FIXES = 8 };

typedef struct {
    const char *id, *kind, *words; /* kind: error, says, key */
    const char *fix[MOST_FIXES];
    size_t n_fixes;
} thing;

typedef struct {
    const char *name;
    bool needs[MOST_THINGS];
    json_t *facts; /* dotted key: its YAML text */
} file;

static thing things[MOST_THINGS];
static file files[MOST_FILES];
static size_t n_things, n_files;
static char *text; /* facts.txt; names point into it */

/* --- reading the facts --- */

/* Cuts the next part off at `sep`; NULL at the end. */
static char *cut(char **at, const char *sep) {
    char *part = *at, *end = part ? strstr(part, sep) : NULL;
    *at = end ? end + strlen(sep) : NULL;
    if (end) *end = 0;
    return part;
}

static size_t thing_of(const char *id) {
    for (size_t i = 0; i < n_things; i++)
        if (strcmp(things[i].id, id) == 0) return i;
    fail_msg("facts.txt: thing %s is not declared", id);
    return 0;
}

static file *file_of(const char *name) {
    for (size_t i = 0; i < n_files; i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    fail_msg("facts.txt: file %s is not declared before it is named", name);
    return NULL;
}

static void read_thing(char *line) {
    thing *t = &things[n_things++];
    t->id = cut(&line, " | ");
    cut(&line, " | ");
    cut(&line, " | ");
    t->kind = cut(&line, " ");
    t->words = line;
    assert_true(n_things < MOST_THINGS && t->words != NULL);
}

static void read_fix(char *line) {
    thing *t = &things[thing_of(cut(&line, " "))];
    assert_true(t->n_fixes < MOST_FIXES && line);
    t->fix[t->n_fixes++] = line;
}

static void read_fact(file *f, char *line) {
    char *key = cut(&line, " = ");
    if (!line) fail_msg("facts.txt: '%s' is not a fact", key);
    json_object_set_new(f->facts, key, json_string(line));
}

static void read_line(char *line) {
    file *f = n_files ? &files[n_files - 1] : NULL;
    char *rest = line, *word = cut(&rest, " "), *id;
    if (strcmp(word, "thing") == 0) {
        read_thing(rest);
    } else if (strcmp(word, "fix") == 0) {
        read_fix(rest);
    } else if (strcmp(word, "file") == 0) {
        assert_true(n_files < MOST_FILES);
        files[n_files++] = (file){.name = rest, .facts = json_object()};
    } else if (strcmp(word, "needs") == 0) {
        while ((id = cut(&rest, " "))) f->needs[thing_of(id)] = true;
    } else if (strcmp(word, "like") == 0) {
        json_object_update(f->facts, file_of(rest)->facts);
    } else if (strcmp(word, "without") == 0) {
        while ((id = cut(&rest, " "))) json_object_del(f->facts, id);
    } else {
        word[strlen(word)] = ' ';
        read_fact(f, line);
    }
}

static int read_facts(void **state) {
    (void)state;
    size_t n;
    if (clt_io_read_all("test/golden/foundry-yaml/facts.txt", 1 << 20, &text, &n) != CLT_OK) return 1;
    char *at = text, *line;
    while ((line = cut(&at, "\n")))
        if (*line && *line != '#') read_line(line);
    return 0;
}

static int free_facts(void **state) {
    (void)state;
    for (size_t i = 0; i < n_files; i++) json_decref(files[i].facts);
    clt_free(text);
    return 0;
}

/* --- loading --- */

/* An empty document with the facts of the file, then with the fixes of all things that it needs but `left`.
 */
static clt_status load(const file *f, const thing *left, bool fixes, clt_config **out) {
    clt_strv over = {0};
    const char *key;
    json_t *v;
    json_object_foreach(f->facts, key, v) {
        clt_strv_add_owned(&over, clt_format("%s=%s", key, json_string_value(v)));
    }
    for (size_t i = 0; fixes && i < n_things; i++)
        for (size_t k = 0; f->needs[i] && &things[i] != left && k < things[i].n_fixes; k++)
            clt_strv_add(&over, things[i].fix[k]);
    clt_status st = clt_config_parse("{}", 2, f->name, (const char *const *)over.v, over.n, out);
    clt_strv_free(&over);
    return st;
}

static bool is_error(const thing *t) {
    return strcmp(t->kind, "error") == 0;
}

/* --- the tests --- */

static void there_are_28_files(void **state) {
    (void)state;
    assert_int_equal(n_files, 28);
}

static void files_without_an_error_are_accepted(void **state) {
    (void)state;
    int accepted = 0;
    for (size_t i = 0; i < n_files; i++) {
        bool errors = false, named = false;
        clt_config *c;
        for (size_t k = 0; k < n_things; k++) errors |= files[i].needs[k] && is_error(&things[k]);
        clt_status st = load(&files[i], NULL, false, &c);
        accepted += st == CLT_OK;
        if (st == CLT_OK) clt_config_free(c);
        for (size_t k = 0; k < n_things; k++)
            named |= files[i].needs[k] && is_error(&things[k]) && strstr(clt_last_error(), things[k].words);
        if (errors ? st != CLT_BAD_CONFIG || !named : st != CLT_OK)
            fail_msg("%s: %s", files[i].name, st == CLT_OK ? "accepted" : clt_last_error());
    }
    assert_int_equal(accepted, 11);
}

/* Each thing alone is an error with its words: everything that is listed is still missing. */
static void every_thing_that_is_missing_is_an_error(void **state) {
    (void)state;
    for (size_t i = 0; i < n_files; i++)
        for (size_t k = 0; k < n_things; k++) {
            clt_config *c;
            if (!files[i].needs[k] || !is_error(&things[k])) continue;
            assert_true(things[k].n_fixes > 0);
            if (load(&files[i], &things[k], true, &c) != CLT_BAD_CONFIG)
                fail_msg("%s needs no %s", files[i].name, things[k].id);
            if (!strstr(clt_last_error(), things[k].words))
                fail_msg("%s, %s: '%s'", files[i].name, things[k].id, clt_last_error());
        }
}

static bool says(const clt_config *c, const char *key) {
    bool found = cu_has_notice(c, key);
    for (size_t i = 0; i < c->remarks.n; i++) found |= strncmp(c->remarks.v[i], key, strlen(key)) == 0;
    return found;
}

/* Without the things that it needs a file is accepted: nothing is missing from the list. */
static void nothing_else_is_missing(void **state) {
    (void)state;
    for (size_t i = 0; i < n_files; i++) {
        clt_config *c;
        if (load(&files[i], NULL, true, &c) != CLT_OK) fail_msg("%s: %s", files[i].name, clt_last_error());
        for (size_t k = 0; k < n_things; k++) {
            const thing *t = &things[k];
            bool there = is_error(t)                    ? files[i].needs[k]
                         : strcmp(t->kind, "says") == 0 ? says(c, t->words)
                                                        : json_object_get(files[i].facts, t->words) != NULL;
            if (there != files[i].needs[k]) fail_msg("%s: %s", files[i].name, t->id);
        }
        clt_config_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_are_28_files),
        cmocka_unit_test(files_without_an_error_are_accepted),
        cmocka_unit_test(every_thing_that_is_missing_is_an_error),
        cmocka_unit_test(nothing_else_is_missing),
    };
    clt_error_quiet(true);
    return cmocka_run_group_tests(tests, read_facts, free_facts);
}
