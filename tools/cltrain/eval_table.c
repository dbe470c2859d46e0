#include "tools/cltrain/eval_table.h"

#include <string.h>

/* --- a Markdown table as Python's tabulate prints it --- */

enum { MOST_COLUMNS = 64, PADDING = 2 };

typedef struct {
    size_t columns, rows;
    bool number[MOST_COLUMNS]; /* aligned at the decimal point */
    char **cell;               /* [rows][columns]; the first row has the headings */
} grid;

static void add_row(grid *g) {
    g->cell = clt_realloc(g->cell, ++g->rows * g->columns * sizeof(char *));
    for (size_t i = 0; i < g->columns; i++) g->cell[(g->rows - 1) * g->columns + i] = clt_strdup("");
}

static char **cell_at(const grid *g, size_t row, size_t column) {
    return &g->cell[row * g->columns + column];
}

/* Sets a cell of the last row. */
static void set(grid *g, size_t column, char *text) {
    char **at = cell_at(g, g->rows - 1, column);
    clt_free(*at);
    *at = text;
}

static size_t after_point(const char *s) {
    const char *point = strchr(s, '.');
    return point ? strlen(point) : 0;
}

/* Fills numbers up on the right, so that their points are below each other once they are right-aligned. */
static void align_points(grid *g, size_t column) {
    size_t most = 0;
    for (size_t r = 1; r < g->rows; r++) most = CLT_MAX(most, after_point(*cell_at(g, r, column)));
    for (size_t r = 1; r < g->rows; r++) {
        char **at = cell_at(g, r, column);
        char *wide = clt_format("%s%*s", *at, (int)(most - after_point(*at)), "");
        clt_free(*at);
        *at = wide;
    }
}

static size_t width_of(const grid *g, size_t column) {
    size_t width = strlen(*cell_at(g, 0, column)) + PADDING;
    for (size_t r = 1; r < g->rows; r++) width = CLT_MAX(width, strlen(*cell_at(g, r, column)));
    return width;
}

static void print_rule(const grid *g, const size_t *width, clt_str *out) {
    for (size_t i = 0; i < g->columns; i++) {
        clt_str_add(out, g->number[i] ? "|" : "|:");
        for (size_t k = 0; k < width[i] + 1; k++) clt_str_add(out, "-");
        if (g->number[i]) clt_str_add(out, ":");
    }
    clt_str_add(out, "|\n");
}

static void print_grid(grid *g, clt_str *out) {
    size_t width[MOST_COLUMNS];
    for (size_t i = 0; i < g->columns; i++) {
        if (g->number[i]) align_points(g, i);
        width[i] = width_of(g, i);
    }
    for (size_t r = 0; r < g->rows; r++) {
        for (size_t i = 0; i < g->columns; i++)
            clt_str_addf(out, g->number[i] ? "| %*s " : "| %-*s ", (int)width[i], *cell_at(g, r, i));
        clt_str_add(out, "|\n");
        if (r == 0) print_rule(g, width, out);
    }
}

static void free_grid(grid *g) {
    for (size_t i = 0; i < g->rows * g->columns; i++) clt_free(g->cell[i]);
    clt_free(g->cell);
}

/* --- results --- */

typedef struct {
    char *model, *category, *benchmark, *subtask; /* subtask NULL: none */
    int64_t shots;
    double accuracy;
} accuracy;

typedef struct {
    char *model, *name;
    double value;
} named_score;

struct eval_table {
    accuracy *row;
    size_t rows;
    named_score *score;
    size_t scores;
};

eval_table *eval_table_create(void) {
    return clt_calloc(1, sizeof(eval_table));
}

void eval_table_free(eval_table *t) {
    for (size_t i = 0; i < t->rows; i++) {
        clt_free(t->row[i].model);
        clt_free(t->row[i].category);
        clt_free(t->row[i].benchmark);
        clt_free(t->row[i].subtask);
    }
    for (size_t i = 0; i < t->scores; i++) {
        clt_free(t->score[i].model);
        clt_free(t->score[i].name);
    }
    clt_free(t->row);
    clt_free(t->score);
    clt_free(t);
}

void eval_table_accuracy(void *ctx, const clt_eval_accuracy *a) {
    eval_table *t = ctx;
    t->row = clt_realloc(t->row, (t->rows + 1) * sizeof *t->row);
    t->row[t->rows++] = (accuracy){.model = clt_strdup(a->model),
                                   .category = clt_strdup(a->category),
                                   .benchmark = clt_strdup(a->benchmark),
                                   .subtask = a->subtask ? clt_strdup(a->subtask) : NULL,
                                   .shots = a->shots,
                                   .accuracy = a->accuracy};
}

void eval_table_score(void *ctx, const char *model, const char *name, double value) {
    eval_table *t = ctx;
    t->score = clt_realloc(t->score, (t->scores + 1) * sizeof *t->score);
    t->score[t->scores++] = (named_score){clt_strdup(model), clt_strdup(name), value};
}

/* --- tables --- */

static bool same_task(const accuracy *a, const accuracy *b) {
    return a->shots == b->shots && strcmp(a->benchmark, b->benchmark) == 0 && strcmp(a->model, b->model) == 0;
}

static void add_line(grid *g, const accuracy *a, const char *benchmark, const char *subtask, double value) {
    add_row(g);
    set(g, 0, clt_strdup(a->category));
    set(g, 1, clt_strdup(benchmark));
    set(g, 2, clt_strdup(subtask));
    set(g, 3, clt_format("%g", (double)(float)value));
    set(g, 4, clt_format("%lld-shot", (long long)a->shots));
    set(g, 5, clt_strdup(a->model));
}

/* All rows of the task of row i; several have their average first. */
static void add_task(const eval_table *t, size_t i, grid *g) {
    double sum = 0;
    size_t n = 0;
    for (size_t k = i; k < t->rows; k++)
        if (same_task(&t->row[i], &t->row[k])) {
            sum += t->row[k].accuracy;
            n++;
        }
    if (n == 1) {
        add_line(g, &t->row[i], t->row[i].benchmark, "", sum);
        return;
    }
    add_line(g, &t->row[i], t->row[i].benchmark, "Average", sum / (double)n);
    for (size_t k = i; k < t->rows; k++)
        if (same_task(&t->row[i], &t->row[k]))
            add_line(g, &t->row[k], "", t->row[k].subtask ? t->row[k].subtask : "no_subcat",
                     t->row[k].accuracy);
}

/* Whether an earlier row has the same model and number of examples (of: the same task, too). */
static bool seen(const eval_table *t, size_t i, bool task) {
    for (size_t k = 0; k < i; k++)
        if (task ? same_task(&t->row[i], &t->row[k])
                 : t->row[i].shots == t->row[k].shots && strcmp(t->row[i].model, t->row[k].model) == 0)
            return true;
    return false;
}

static void print_accuracies(const eval_table *t, clt_str *out) {
    static const char *const heading[] = {"Category", "Benchmark",       "Subtask",
                                          "Accuracy", "Number few shot", "Model"};
    grid g = {.columns = CLT_COUNT_OF(heading), .number = {[3] = true}};
    add_row(&g);
    for (size_t i = 0; i < g.columns; i++) set(&g, i, clt_strdup(heading[i]));
    for (size_t i = 0; i < t->rows; i++) {
        if (seen(t, i, false)) continue;
        for (size_t k = i; k < t->rows; k++)
            if (t->row[k].shots == t->row[i].shots && strcmp(t->row[k].model, t->row[i].model) == 0 &&
                !seen(t, k, true))
                add_task(t, k, &g);
    }
    print_grid(&g, out);
    free_grid(&g);
}

/* The column of a name; its heading is added if it is new. */
static size_t column_of(grid *g, const char *name) {
    for (size_t i = 1; i < g->columns; i++)
        if (strcmp(*cell_at(g, 0, i), name) == 0) return i;
    return 0;
}

static void name_columns(const eval_table *t, grid *g) {
    const char *names[MOST_COLUMNS] = {"model_name"};
    g->columns = 1;
    for (size_t i = 0; i < t->scores; i++) {
        size_t k = 1;
        while (k < g->columns && strcmp(names[k], t->score[i].name) != 0) k++;
        if (k == g->columns && k < MOST_COLUMNS) names[g->columns++] = t->score[i].name;
    }
    add_row(g);
    for (size_t i = 0; i < g->columns; i++) {
        set(g, i, clt_strdup(names[i]));
        g->number[i] = i > 0;
    }
}

static void print_scores(const eval_table *t, clt_str *out) {
    grid g = {0};
    const char *model = NULL;
    name_columns(t, &g);
    for (size_t i = 0; i < t->scores; i++) {
        if (!model || strcmp(model, t->score[i].model) != 0) {
            add_row(&g);
            set(&g, 0, clt_strdup(t->score[i].model));
        }
        model = t->score[i].model;
        const size_t column = column_of(&g, t->score[i].name);
        if (column) set(&g, column, clt_format("%g", t->score[i].value));
    }
    print_grid(&g, out);
    free_grid(&g);
}

void eval_table_print(const eval_table *t, clt_str *out) {
    clt_str_add(out, "");
    if (t->scores) {
        print_scores(t, out);
        clt_str_add(out, "\n");
    }
    if (t->rows) print_accuracies(t, out);
}
