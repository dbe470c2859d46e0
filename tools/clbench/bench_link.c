/* clbench link: copies between the host's memory and a device in both directions, alone and together, as
 * offloaded state makes them; and how long getting such memory takes. */
#include "tools/clbench/bench_link.h"

#include "runtime/device/clt_mark.h"
#include "tools/clbench/bench.h"

enum { TURNS = 5 };

/* One direction: a buffer on the device and one in host memory. */
typedef struct {
    clt_buffer *device, *host;
    char *memory; /* of `host` */
} side;

typedef struct {
    clt_device *dev;
    size_t piece, bytes;
    side in, out;
} link_work;

/* --- memory --- */

/* *got: seconds that the host's memory takes. */
static clt_status open_side(const link_work *w, side *s, double *got) {
    void *host;
    CLT_TRY(clt_buffer_create(w->dev, w->bytes, "device side", &s->device));
    CLT_TRY(clt_buffer_fill32(s->device, 0, 0, w->bytes));
    CLT_TRY(clt_device_finish(w->dev));
    const double start = clt_now();
    CLT_TRY(clt_buffer_create_pinned(w->dev, w->bytes, "pinned", &s->host));
    CLT_TRY(clt_buffer_fill32(s->host, 0, 0, w->bytes));
    CLT_TRY(clt_buffer_host(s->host, &host));
    s->memory = host;
    *got = clt_now() - start;
    return CLT_OK;
}

static void close_side(clt_device *dev, side *s) {
    clt_device_finish(dev);
    clt_buffer_destroy(s->device);
    clt_buffer_destroy(s->host);
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

static clt_status measure(link_work *w, bench_link_rates *out) {
    double got;
    CLT_TRY(open_side(w, &w->in, &got));
    CLT_TRY(open_side(w, &w->out, &got));
    out->get = (double)w->bytes / got;
    CLT_TRY(time_copies(w, true, false, &out->in));
    CLT_TRY(time_copies(w, false, true, &out->out));
    return time_copies(w, true, true, &out->both);
}

clt_status bench_link_measure(clt_device *dev, size_t piece, size_t bytes, bench_link_rates *out) {
    link_work w = {.dev = dev, .piece = piece, .bytes = bytes};
    const clt_status st = measure(&w, out);
    clt_device_use(dev, CLT_QUEUE_COMPUTE);
    close_side(dev, &w.in);
    close_side(dev, &w.out);
    return st;
}

/* --- the command --- */

static clt_status run(clt_device *dev, int64_t mib) {
    static const size_t piece[] = {1 << 20, 8 << 20, 64 << 20};
    const clt_device_facts *f = clt_device_get_facts(dev);
    const size_t bytes = (size_t)mib << 20;
    printf("device   %s (%s, driver %s)\n\n", f->name, f->platform, f->driver);
    printf("%9s %13s %13s %13s %13s   GB/s\n", "piece", "to device", "from device", "both at once",
           "getting it");
    for (size_t i = 0; i < CLT_COUNT_OF(piece); i++) {
        const size_t most = CLT_MIN(piece[i], bytes);
        bench_link_rates r;
        CLT_TRY(bench_link_measure(dev, most, bytes, &r));
        printf("%5zu MiB %13.2f %13.2f %13.2f %13.2f\n", most >> 20, r.in * 1e-9, r.out * 1e-9, r.both * 1e-9,
               r.get * 1e-9);
        fflush(stdout);
    }
    return CLT_OK;
}

int bench_link(int argc, char **argv) {
    int64_t mib = 1024;
    clt_device_params p = clt_device_params_default();
    p.bind = true;
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
