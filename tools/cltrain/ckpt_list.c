/* cltrain ckpt ls, verify, hash. */
#include <math.h>
#include <string.h>
#include <time.h>

#include "tools/cltrain/ckpt_tool.h"
#include "runtime/base/clt_io.h"
#include "runtime/base/clt_json.h"

/* --- ls --- */

static void print_json_row(const clt_ckpt_info *c, bool last) {
    clt_str b = {0};
    clt_str_add(&b, "{\"name\":");
    clt_json_escape(&b, c->name);
    clt_str_addf(&b, ",\"valid\":%s", c->valid ? "true" : "false");
    if (c->valid) {
        clt_str_addf(&b,
                     ",\"epoch\":%lld,\"batch\":%lld,\"sample\":%lld,\"token\":%lld,\"bytes\":%llu,"
                     "\"saved\":%.3f",
                     (long long)c->epoch, (long long)c->batch, (long long)c->sample, (long long)c->token,
                     (unsigned long long)c->bytes, c->saved);
        if (isfinite(c->loss)) clt_str_addf(&b, ",\"loss\":%.9g", c->loss);
    } else {
        clt_str_add(&b, ",\"why\":");
        clt_json_escape(&b, c->why);
    }
    printf("%s}%s\n", b.s, last ? "" : ",");
    clt_str_free(&b);
}

static void print_row(const clt_ckpt_info *c) {
    char size[32], loss[32] = "-", when[32] = "-";
    if (!c->valid) {
        printf("%-28s damaged: %s\n", c->name, c->why);
        return;
    }
    if (c->saved > 0) {
        time_t saved = (time_t)c->saved;
        struct tm tm;
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", localtime_r(&saved, &tm));
    }
    if (isfinite(c->loss)) snprintf(loss, sizeof loss, "%.4f", c->loss);
    printf("%-28s %8lld %6lld %14lld %9s %10s  %s\n", c->name, (long long)c->batch, (long long)c->epoch,
           (long long)c->token, loss, clt_human_bytes((double)c->bytes, size), when);
}

/* Whether all that can be read are of models of images, which count a sample as one token. */
static bool by_sample(const clt_ckpt_info *list, int n) {
    bool any = false;
    for (int i = 0; i < n; i++) {
        if (!list[i].valid || list[i].token == 0) continue;
        if (list[i].token != list[i].sample) return false;
        any = true;
    }
    return any;
}

int ckpt_ls(int argc, char **argv) {
    bool json = false;
    clt_option options[] = {{"json", 0, CLT_OPT_FLAG, &json, NULL, "a list of objects instead of the table"}};
    clt_command c = {"cltrain ckpt ls",
                     "FOLDER",
                     "Lists the checkpoints of a folder, newest first.",
                     "cltrain ckpt ls runs/my-run\n",
                     options,
                     CLT_COUNT_OF(options),
                     false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 1, &rest), n = 0;
    if (code >= 0) return code;
    clt_ckpt_info *list = NULL;
    clt_status st = clt_ckpt_scan(rest.v[0], &list, &n);
    if (st == CLT_OK && json) {
        puts("[");
        for (int i = 0; i < n; i++) print_json_row(&list[i], i + 1 == n);
        puts("]");
    } else if (st == CLT_OK && n == 0) {
        clt_info("%s has no checkpoints", rest.v[0]);
    } else if (st == CLT_OK) {
        printf("%-28s %8s %6s %14s %9s %10s  %s\n", "name", "batch", "epoch",
               by_sample(list, n) ? "samples" : "tokens", "loss", "size", "saved");
        for (int i = 0; i < n; i++) print_row(&list[i]);
    }
    clt_ckpt_scan_free(list, n);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}

/* --- verify --- */

static clt_status verify_one(const char *path) {
    clt_weight_source *s = NULL;
    int hashed = 0;
    double start = clt_now();
    clt_status st = clt_weight_source_open(path, &s);
    if (st == CLT_OK) st = clt_weight_source_verify(s, &hashed);
    if (st == CLT_OK) {
        uint64_t bytes = 0;
        char size[32], time[32];
        int n = clt_weight_source_count(s);
        for (int i = 0; i < n; i++) {
            clt_ckpt_tensor t;
            clt_weight_source_at(s, i, &t);
            bytes += t.count * sizeof(float);
        }
        printf("ok       %s: %d tensors, %s as fp32, checked in %s", path, n,
               clt_human_bytes((double)bytes, size), clt_human_seconds(clt_now() - start, time));
        printf(hashed == n ? "\n" : "; only %d tensors have a hash\n", hashed);
    } else {
        printf("%s  %s\n", st == CLT_NO_MEMORY ? "unread " : "damaged", path);
    }
    clt_weight_source_close(s);
    return st;
}

/* A folder that is not a checkpoint itself stands for all checkpoints in it. */
static clt_status verify_path(const char *path) {
    clt_ckpt_info *list = NULL;
    char *manifest = clt_path_join(path, "manifest.json"), *config = clt_path_join(path, "config.json");
    bool one = !clt_io_is_dir(path) || clt_io_is_file(manifest) || clt_io_is_file(config);
    clt_free(manifest);
    clt_free(config);
    if (one) return verify_one(path);
    int n = 0;
    clt_status worst = CLT_OK;
    CLT_TRY(clt_ckpt_scan(path, &list, &n));
    if (n == 0) worst = clt_error(CLT_BAD_DATA, "%s has no checkpoints", path);
    for (int i = 0; i < n; i++) {
        clt_status st = verify_one(list[i].path);
        if (st != CLT_OK && worst != CLT_BAD_DATA) worst = st;
    }
    clt_ckpt_scan_free(list, n);
    return worst;
}

int ckpt_verify(int argc, char **argv) {
    clt_command c = {
        "cltrain ckpt verify",
        "PATH...",
        "Reads checkpoints (or all of a folder) and weight files completely and checks every hash. Names "
        "file,\n"
        "tensor, chunk and offset of all damage; exit code 65 if there is any.",
        "cltrain ckpt verify runs/my-run\ncltrain ckpt verify runs/a/ep0-ba100 model.safetensors\n",
        NULL,
        0,
        false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, -1, &rest);
    if (code >= 0) return code;
    clt_status worst = CLT_OK;
    for (size_t i = 0; i < rest.n; i++) {
        clt_status st = verify_path(rest.v[i]);
        if (st != CLT_OK && worst != CLT_BAD_DATA) worst = st;
    }
    clt_strv_free(&rest);
    return clt_status_exit_code(worst);
}

/* --- hash --- */

static clt_status hash_source(clt_weight_source *s, clt_state_hash *out) {
    ckpt_weights w;
    if (clt_weight_source_checkpoint(s)) return clt_ckpt_hash(clt_weight_source_checkpoint(s), out);
    CLT_TRY(ckpt_weights_open(s, NULL, &w));
    clt_status st = clt_ckpt_hash_parts(NULL, &w.table, w.part, w.parts, out);
    ckpt_weights_close(&w);
    return st;
}

int ckpt_hash(int argc, char **argv) {
    bool json = false;
    clt_option options[] = {{"json", 0, CLT_OPT_FLAG, &json, NULL, "one JSON object"}};
    clt_command c = {"cltrain ckpt hash",
                     "SOURCE",
                     "Prints one XXH3-128 over all weights and one over the optimizer state. Equal states "
                     "print equal lines,\n"
                     "whatever devices, ranks or files they come from.",
                     "cltrain ckpt hash runs/my-run/ep0-ba100\n",
                     options,
                     CLT_COUNT_OF(options),
                     false};
    clt_strv rest = {0};
    int code = ckpt_parse(&c, argc, argv, 1, &rest);
    if (code >= 0) return code;
    clt_weight_source *s = NULL;
    clt_state_hash h;
    clt_status st = clt_weight_source_open(rest.v[0], &s);
    if (st == CLT_OK) st = hash_source(s, &h);
    if (st == CLT_OK) {
        char weights[33], optimizer[33];
        clt_hash_hex(h.weights, weights);
        clt_hash_hex(h.optimizer, optimizer);
        const char *quote = json && h.has_optimizer ? "\"" : "";
        if (json)
            printf("{\"weights\":\"%s\",\"optimizer\":%s%s%s}\n", weights, quote,
                   h.has_optimizer ? optimizer : "null", quote);
        else
            printf("weights   %s\noptimizer %s\n", weights, h.has_optimizer ? optimizer : "none");
    }
    clt_weight_source_close(s);
    clt_strv_free(&rest);
    return clt_status_exit_code(st);
}
