/* clbench link: copies between the host's memory and a device in both directions, alone and together, as
 * offloaded state makes them; and how long the driver takes to give such memory. */
#include "tools/clbench/bench_link.h"

#include <string.h>
#include <sys/mman.h>

#include "runtime/base/clt_thread.h"
#include "runtime/device/clt_mark.h"
#include "tools/clbench/bench.h"

enum { TURNS = 5, SLICE = 2 << 20 };

/* One direction: a buffer on the device and one in host memory. */
typedef struct {
    clt_buffer *device, *host;
    char *memory;   /* of `host` */
    void *mapped;   /* memory of the program's, which is the driver's while it is mapped; NULL: pinned */
    size_t mapping; /* bytes */
} side;

typedef struct {
    clt_device *dev;
    size_t piece, bytes;
    side in, out;
} link_work;

/* --- memory --- */

static void clear_slice(void *ctx, size_t i) {
    const side *s = ctx;
    const size_t at = i * SLICE;
    memset((char *)s->mapped + at, 0, CLT_MIN(s->mapping - at, (size_t)SLICE));
}

static clt_status register_memory(clt_device *dev, size_t bytes, side *s) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return clt_no_memory("the host's side of the copies", bytes);
    s->mapped = at;
    s->mapping = bytes;
    madvise(at, bytes, MADV_HUGEPAGE); /* without large pages it is slower, and right */
    clt_parallel_for(CLT_CEIL_DIV(bytes, (size_t)SLICE), 0, clear_slice, s);
    CLT_TRY(clt_buffer_wrap(dev, at, bytes, "registered", &s->host));
    void *mapped;
    CLT_TRY(clt_buffer_map(s->host, true, 0, bytes, &mapped));
    s->memory = mapped;
    return CLT_OK;
}

/* *got: seconds that the host's memory takes. */
static clt_status open_side(const link_work *w, bench_link_kind kind, side *s, double *got) {
    void *host;
    CLT_TRY(clt_buffer_create(w->dev, w->bytes, "device side", &s->device));
    CLT_TRY(clt_buffer_fill32(s->device, 0, 0, w->bytes));
    CLT_TRY(clt_device_finish(w->dev));
    const double start = clt_now();
    if (kind == BENCH_REGISTERED) {
        CLT_TRY(register_memory(w->dev, w->bytes, s));
    } else {
        CLT_TRY(clt_buffer_create_pinned(w->dev, w->bytes, "pinned", &s->host));
        CLT_TRY(clt_buffer_fill32(s->host, 0, 0, w->bytes));
        CLT_TRY(clt_buffer_host(s->host, &host));
        s->memory = host;
    }
    *got = clt_now() - start;
    return CLT_OK;
}

static void close_side(clt_device *dev, side *s) {
    if (s->mapped && s->memory) clt_buffer_unmap(s->host, s->memory);
    clt_device_finish(dev);
    clt_buffer_destroy(s->device);
    clt_buffer_destroy(s->host);
    if (s->mapped) munmap(s->mapped, s->mapping);
}

/* --- copies --- */

/* Queues a piece of one direction, or of both. */
static clt_status queue_piece(const link_work *w, bool in, bool out, size_t at) {
    const size_t n = CLT_MIN(w->piece, w->bytes - at);
    if (in) {
        CLT_TRY(clt_device_use(w->dev, CLT_QUEUE_IN));
        CLT_TRY(clt_buffer_fetch(w->in.device, at, w->in.memory + at, n));
        CLT_TRY(clt_device_flush(w->dev));
    }
    if (out) {
        CLT_TRY(clt_device_use(w->dev, CLT_QUEUE_OUT));
        CLT_TRY(clt_buffer_send(w->out.device, at, w->out.memory + at, n));
        CLT_TRY(clt_device_flush(w->dev));
    }
    return clt_device_use(w->dev, CLT_QUEUE_COMPUTE);
}

/* *rate: bytes per second of the directions together. The first turn does not count. */
static clt_status time_copies(const link_work *w, bool in, bool out, double *rate) {
    double seconds[TURNS];
    for (int i = -1; i < TURNS; i++) {
        CLT_TRY(clt_device_finish(w->dev));
        const double start = clt_now();
        for (size_t at = 0; at < w->bytes; at += w->piece) CLT_TRY(queue_piece(w, in, out, at));
        CLT_TRY(clt_device_finish(w->dev));
        if (i >= 0) seconds[i] = clt_now() - start;
    }
    *rate = (double)w->bytes * (in + out) / bench_median(seconds, TURNS);
    return CLT_OK;
}

static clt_status measure(link_work *w, bench_link_kind kind, bench_link_rates *out) {
    double got;
    CLT_TRY(open_side(w, kind, &w->in, &got));
    CLT_TRY(open_side(w, kind, &w->out, &got));
    out->get = (double)w->bytes / got;
    CLT_TRY(time_copies(w, true, false, &out->in));
    CLT_TRY(time_copies(w, false, true, &out->out));
    return time_copies(w, true, true, &out->both);
}

clt_status bench_link_measure(clt_device *dev, bench_link_kind kind, size_t piece, size_t bytes,
                              bench_link_rates *out) {
    link_work w = {.dev = dev, .piece = piece, .bytes = bytes};
    const clt_status st = measure(&w, kind, out);
    clt_device_use(dev, CLT_QUEUE_COMPUTE);
    close_side(dev, &w.in);
    close_side(dev, &w.out);
    return st;
}

/* --- the command --- */

static clt_status run(clt_device *dev, int64_t mib) {
    static const char *const kind_name[] = {"pinned", "registered"};
    static const size_t piece[] = {1 << 20, 8 << 20, 64 << 20};
    const clt_device_facts *f = clt_device_get_facts(dev);
    const size_t bytes = (size_t)mib << 20;
    printf("device   %s (%s, driver %s)\n\n", f->name, f->platform, f->driver);
    printf("%-11s %9s %13s %13s %13s %13s   GB/s\n", "memory", "piece", "to device", "from device",
           "both at once", "getting it");
    for (int k = 0; k < BENCH_LINK_KINDS; k++)
        for (size_t i = 0; i < CLT_COUNT_OF(piece); i++) {
            bench_link_rates r;
            CLT_TRY(bench_link_measure(dev, (bench_link_kind)k, CLT_MIN(piece[i], bytes), bytes, &r));
            printf("%-11s %5zu MiB %13.2f %13.2f %13.2f %13.2f\n", kind_name[k],
                   CLT_MIN(piece[i], bytes) >> 20, r.in * 1e-9, r.out * 1e-9, r.both * 1e-9, r.get * 1e-9);
            fflush(stdout);
        }
    return CLT_OK;
}

int bench_link(int argc, char **argv) {
    int64_t mib = 1024;
    clt_device_params p = clt_device_params_default();
    const clt_option options[] = {
        {"device", 'd', CLT_OPT_STR, &p.pattern, "PATTERN", "part of a platform or device name, or P:D"},
        {"mib", 'n', CLT_OPT_INT, &mib, "N", "MiB in each direction (1024)"},
    };
    const clt_command command = {.name = "clbench link",
                                 .usage = "[options]",
                                 .summary = "measures copies between the host's memory and a device, which "
                                            "bound the updates of cltrain.offload: host",
                                 .examples = "  clbench link --device nvidia\n",
                                 .options = options,
                                 .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    clt_device *dev = NULL;
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n) code = clt_options_fail(&command, "'%s' is not understood", rest.v[0]);
    if (code < 0 && (mib < 1 || mib > 1 << 16))
        code = clt_options_fail(&command, "--mib must be 1 to %d", 1 << 16);
    if (code < 0) {
        clt_status st = clt_device_open(&p, &dev);
        if (st == CLT_OK) st = run(dev, mib);
        clt_device_close(dev);
        code = clt_status_exit_code(st);
    }
    clt_strv_free(&rest);
    return code;
}
