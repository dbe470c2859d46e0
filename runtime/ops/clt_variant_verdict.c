/* Verdicts: whether a row's results are right on this device, checked once and kept in the cache folder. */
#include <string.h>

#include "runtime/base/clt_hash.h"
#include "runtime/base/clt_io.h"
#include "runtime/device/clt_mark.h"
#include "runtime/device/clt_record.h"
#include "runtime/ops/clt_ops_state.h"
#include "runtime/ops/ref/clt_ref.h"

/* Part of every verdict's key; raise it when a check or an oracle changes its meaning. */
#define VERDICT_FORMAT "verdict 3"

/* --- what a check reports --- */

bool clt_variant_is_rehearsed(const clt_ops *ops) {
    return clt_device_rehearses(ops->dev);
}

clt_status clt_variant_fail(clt_ops *ops, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(ops->reason, sizeof ops->reason, fmt, ap);
    va_end(ap);
    /* A rehearsed check compares nothing and continues with the programs of its next case. */
    return clt_variant_is_rehearsed(ops) ? CLT_OK : CLT_FAIL;
}

static bool is_nan_word(uint32_t w) {
    return (w & 0x7fffffffu) > 0x7f800000u;
}

clt_status clt_variant_compare_as(clt_ops *ops, clt_dtype type, const char *what, clt_ref got,
                                  const float *want, size_t n) {
    if (clt_variant_is_rehearsed(ops)) return CLT_OK;
    float *host = clt_try_malloc(n * sizeof *host);
    clt_status st = host ? clt_ref_read_as(got, type, host, n)
                         : clt_no_memory("checking a kernel variant", n * sizeof *host);
    for (size_t i = 0; st == CLT_OK && i < n; i++) {
        float rounded = want[i];
        uint32_t a, b;
        clt_ref_round(type, &rounded, 1);
        memcpy(&a, &host[i], 4);
        memcpy(&b, &rounded, 4);
        if (a != b && !(is_nan_word(a) && is_nan_word(b)))
            st = clt_variant_fail(ops, "%s: element %zu of %zu is %.9g (%08x), the oracle has %.9g (%08x)",
                                  what, i, n, (double)host[i], a, (double)rounded, b);
    }
    clt_free(host);
    return st;
}

clt_status clt_variant_compare(clt_ops *ops, const char *what, clt_ref got, const float *want, size_t n) {
    return clt_variant_compare_as(ops, CLT_F32, what, got, want, n);
}

/* --- verdicts --- */

void clt_variant_key(clt_ops *ops, const clt_variant *v, char key[33]) {
    const char *text = clt_kernel_text(v->file), *used = *v->uses ? clt_kernel_text(v->uses) : NULL;
    char name[96];
    clt_variant_required(v, "lib=", name);
    char *library = *name ? clt_variant_library_version(name) : NULL;
    const char *part[] = {VERDICT_FORMAT,
                          clt_device_id(ops->dev),
                          clt_kernel_common_options(),
                          v->op,
                          v->id,
                          v->body,
                          v->options,
                          ops->params.numerics == CLT_FAST ? "fast" : "exact",
                          text ? text : "",
                          used ? used : "",
                          library ? library : ""};
    clt_hash_state *h = clt_hash_begin();
    for (size_t i = 0; i < CLT_COUNT_OF(part); i++) clt_hash_add(h, part[i], strlen(part[i]) + 1);
    clt_hash_hex(clt_hash_end(h), key);
    clt_free(library);
}

static char *verdict_path(clt_ops *ops, const clt_variant *v) {
    const char *dir = clt_device_cache_dir(ops->dev);
    char key[33];
    if (!dir || !clt_kernel_text(v->file)) return NULL;
    clt_variant_key(ops, v, key);
    return clt_format("%s/variant-%s.txt", dir, key);
}

bool clt_ops_cached_text(const char *path, size_t most, char **text, size_t *bytes) {
    clt_io_info info;
    if (clt_io_try_stat(path, &info) != 0 || info.kind != CLT_IO_FILE) return false;
    if (info.bytes > most) clt_debug("%s is larger than this program writes it; it is ignored", path);
    return info.bytes <= most && clt_io_read_all(path, most, text, bytes) == CLT_OK;
}

/* The file's one line: "passed OP ID" or "failed OP ID: reason". Anything else counts as absent. */
static int load_verdict(clt_variant *v, const char *path) {
    char *data = NULL;
    size_t n = 0;
    if (!path || !clt_ops_cached_text(path, 4096, &data, &n)) return 0;
    char *head = clt_format("%s %s", v->op, v->id);
    int verdict = 0;
    if (n > 7 + strlen(head) && !strncmp(data + 7, head, strlen(head))) {
        if (!strncmp(data, "passed ", 7)) verdict = 1;
        if (!strncmp(data, "failed ", 7)) verdict = -1;
    }
    if (verdict < 0) {
        const char *reason = data + 7 + strlen(head);
        reason += strspn(reason, ": ");
        snprintf(v->reason, sizeof v->reason, "%.*s", (int)strcspn(reason, "\n"), reason);
    }
    clt_free(head);
    clt_free(data);
    return verdict;
}

static void save_verdict(const clt_variant *v, const char *path) {
    if (!path) return;
    char *line = v->verdict > 0 ? clt_format("passed %s %s\n", v->op, v->id)
                                : clt_format("failed %s %s: %s\n", v->op, v->id, v->reason);
    if (clt_io_write_atomic(path, line, strlen(line)) != CLT_OK)
        clt_warn("the verdict on kernel variant %s=%s could not be saved; the next run checks it again",
                 v->op, v->id);
    clt_free(line);
}

/* Why a check failed: its own reason (clt_variant_fail), else the first line of the error that stopped it,
 * which names the log of a failed build. */
static void keep_reason(clt_ops *ops, clt_variant *v) {
    const char *why = *ops->reason ? ops->reason : clt_last_error();
    snprintf(v->reason, sizeof v->reason, "%.*s", (int)strcspn(why, "\n"), why);
    if (!*v->reason) snprintf(v->reason, sizeof v->reason, "does not build or run");
}

static uint64_t shortages(const clt_ops *ops) {
    clt_device_counters c;
    clt_device_get_counters(ops->dev, &c);
    return c.shortages;
}

bool clt_variant_says_nothing(clt_status st) {
    return st == CLT_AGAIN || st == CLT_NO_MEMORY || st == CLT_STOPPED;
}

/* Runs a check and sets v->verdict; *lasting: it holds for later runs, too. Work that was queued before must
 * be right, or its error would count as the variant's. What other work checks or uses meanwhile would share
 * this check's state, so nothing runs while it waits. */
static clt_status run_check(clt_ops *ops, clt_variant *v, clt_variant_check check, void *ctx, bool *lasting) {
    *lasting = false;
    if (clt_device_finish(ops->dev) != CLT_OK) {
        *ops->reason = 0;
        v->verdict = -1;
        keep_reason(ops, v);
        return CLT_OK;
    }
    const bool paused = clt_device_pause_idle(ops->dev, true);
    ops->checked++;
    *ops->reason = 0;
    clt_record_pause(ops->dev, true); /* a check is not part of the step */
    const double start = clt_now();
    const uint64_t before = shortages(ops);
    const clt_status st = check(ops, v, ctx);
    clt_record_pause(ops->dev, false);
    clt_device_pause_idle(ops->dev, paused);
    if (clt_variant_says_nothing(st)) return st;
    v->verdict = st == CLT_OK ? 1 : -1;
    if (st != CLT_OK) keep_reason(ops, v);
    clt_debug("variant %s=%s %s in %.3f s", v->op, v->id, st == CLT_OK ? "passed" : "failed",
              clt_now() - start);
    /* A failure for lack of memory or resources counts for this run only. */
    *lasting = st == CLT_OK || shortages(ops) == before || clt_device_is_broken(ops->dev);
    return CLT_OK;
}

clt_status clt_variant_verify(clt_ops *ops, clt_variant *v, clt_variant_check check, void *ctx) {
    if (ops->params.skip_check || v->verdict > 0) return CLT_OK;
    if (v->verdict < 0) return CLT_FAIL;
    char *path = verdict_path(ops, v);
    int known = load_verdict(v, path);
    if (known) {
        v->verdict = known;
    } else if (clt_variant_is_rehearsed(ops)) {
        clt_free(path);
        if (v->rehearsed) return CLT_OK;
        v->rehearsed = true;
        return check(ops, v, ctx); /* only to collect its programs */
    } else if (clt_ops_stops(ops)) {
        clt_free(path);
        return CLT_STOPPED; /* the checks of a first step may take minutes */
    } else {
        bool lasting = false;
        const clt_status st = run_check(ops, v, check, ctx, &lasting);
        if (st == CLT_OK && lasting) save_verdict(v, path);
        if (st != CLT_OK) {
            clt_free(path);
            return st;
        }
    }
    clt_free(path);
    if (v->verdict < 0)
        clt_warn("kernel variant %s=%s is not used on %s: %s", v->op, v->id,
                 clt_device_get_facts(ops->dev)->name, v->reason);
    return v->verdict > 0 ? CLT_OK : CLT_FAIL;
}
