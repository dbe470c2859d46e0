#include "runtime/base/clt_timeline.h"

#include <math.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

/* Perfetto cuts times down to whole nanoseconds, and drops an event that ends a nanosecond after another one
 * that it lies in. Times are whole nanoseconds therefore, and this many microseconds more keep what is cut
 * down from losing one. */
#define MORE 0.0002

static void separate(clt_str *part) {
    if (part->len) clt_str_add(part, ",\n");
}

/* An entry that describes a process or a row. `what` is its kind, `args` the members of its description. */
static void describe(clt_str *part, int process, int row, const char *what, const char *args) {
    separate(part);
    clt_str_addf(part, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{%s}}", what, process,
                 row, args);
}

static void describe_name(clt_str *part, int process, int row, const char *what, const char *name) {
    clt_str args = {0};
    clt_str_add(&args, "\"name\":");
    clt_json_escape(&args, name);
    describe(part, process, row, what, args.s);
    clt_str_free(&args);
}

static void describe_place(clt_str *part, int process, int row, const char *what, int place) {
    char args[40];
    snprintf(args, sizeof args, "\"sort_index\":%d", place);
    describe(part, process, row, what, args);
}

void clt_timeline_process(clt_str *part, int process, const char *name) {
    describe_name(part, process, 0, "process_name", name);
    describe_place(part, process, 0, "process_sort_index", process);
}

void clt_timeline_row(clt_str *part, int process, int row, const char *name) {
    describe_name(part, process, row, "thread_name", name);
    describe_place(part, process, row, "thread_sort_index", row);
}

void clt_timeline_event(clt_str *part, int process, int row, const char *name, double start, double end,
                        const char *args) {
    const double from = round(start * 1e9), to = round(end * 1e9);
    separate(part);
    clt_str_add(part, "{\"ph\":\"X\",\"name\":");
    clt_json_escape(part, name);
    clt_str_addf(part, ",\"pid\":%d,\"tid\":%d,\"ts\":%.4f,\"dur\":%.4f", process, row, from / 1e3 + MORE,
                 (to - from) / 1e3 + MORE);
    if (args) clt_str_addf(part, ",\"args\":{%s}", args);
    clt_str_add(part, "}");
}

void clt_timeline_join(clt_str *all, const char *part) {
    if (!part || !*part) return;
    separate(all);
    clt_str_add(all, part);
}

clt_status clt_timeline_write(const char *path, const clt_str *all) {
    clt_str file = {0};
    clt_str_add(&file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    if (all->len) clt_str_addn(&file, all->s, all->len);
    clt_str_add(&file, "\n]}\n");
    clt_status st = clt_io_write_atomic(path, file.s, file.len);
    clt_str_free(&file);
    return st;
}
