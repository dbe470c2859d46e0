/* The reader of pictures. A request is read in pieces of some samples: the calling thread takes the bytes of
 * MDS samples (their shards are used by one thread at a time), then several threads decode and transform them
 * (and read the files of a folder). Each sample is computed by itself into its own row, so threads change no
 * bit. Then partners are mixed. */
#include "runtime/data/image/clt_image_reader.h"

#include <pthread.h>
#include <string.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_thread.h"
#include "runtime/data/clt_reader.h"
#include "runtime/data/image/clt_image_folder.h"

enum { PIECE = 256, MOST_THREADS = 16, MOST_FILE = 1 << 28 };

/* What a thread decodes into. */
typedef struct {
    clt_image image;
    clt_image_work work;
} desk;

typedef struct {
    clt_reader base;
    clt_image_params p;
    bool eval;
    int64_t batch; /* samples of a global batch */
    clt_mds *mds;  /* one of these two */
    clt_image_folder *folder;
    clt_mds_picture taken[PIECE];
    desk desks[MOST_THREADS];
    unsigned free_desks; /* a bit for each */
    pthread_mutex_t lock;
    float *partner; /* [3, size, size] of a sample outside the request */
} image_reader;

/* --- one sample --- */

/* Bytes and label of a sample, in the calling thread where shards are used. */
static clt_status take(image_reader *r, int64_t sample, clt_mds_picture *out) {
    if (r->mds) {
        CLT_TRY(clt_mds_get_picture(r->mds, sample, out));
    } else {
        out->label = clt_image_folder_label(r->folder, sample);
        snprintf(out->what, sizeof out->what, "%s/%s [sample %lld]", clt_image_folder_root(r->folder),
                 clt_image_folder_path(r->folder, sample), (long long)sample);
    }
    if (out->label < 0 || out->label >= r->p.classes)
        return clt_error(CLT_BAD_DATA,
                         "%s has the label %lld, and there are %lld classes: correct "
                         "dataset.classes",
                         out->what, (long long)out->label, (long long)r->p.classes);
    return CLT_OK;
}

static clt_status decode(const image_reader *r, int64_t sample, const clt_mds_picture *in, clt_image *out) {
    const int64_t most = r->p.max_pixels;
    if (r->mds)
        return clt_image_decode(in->what, in->pil ? CLT_IMAGE_PIL : CLT_IMAGE_FILE, in->bytes.s,
                                in->bytes.len, most, out);
    char *path = clt_path_join(clt_image_folder_root(r->folder), clt_image_folder_path(r->folder, sample));
    char *data = NULL;
    size_t n;
    clt_status st = clt_io_read_all(path, MOST_FILE, &data, &n);
    if (st == CLT_OK) st = clt_image_decode(in->what, CLT_IMAGE_FILE, data, n, most, out);
    clt_free(data);
    clt_free(path);
    return st;
}

static clt_status make_row(const image_reader *r, int64_t sample, int64_t epoch, const clt_mds_picture *in,
                           desk *d, float *pixels) {
    CLT_TRY(decode(r, sample, in, &d->image));
    return clt_image_apply(&r->p.transform, &d->image, epoch, sample, &d->work, pixels);
}

/* --- a request --- */

static void *field_at(const image_reader *r, const clt_reader_request *q, int field, int64_t i) {
    return (char *)q->field[field] + (size_t)i * r->base.layout.field[field].bytes;
}

typedef struct {
    image_reader *r;
    const clt_reader_request *q;
    int64_t first;
    int64_t failed; /* the lowest row that failed; INT64_MAX: none */
} piece;

static int borrow_desk(image_reader *r) {
    pthread_mutex_lock(&r->lock);
    int i = 0;
    while (!(r->free_desks >> i & 1)) i++; /* there are as many as threads */
    r->free_desks &= ~(1u << i);
    pthread_mutex_unlock(&r->lock);
    return i;
}

static void work(void *ctx, size_t k) {
    piece *p = ctx;
    image_reader *r = p->r;
    const int64_t i = p->first + (int64_t)k;
    const int d = borrow_desk(r);
    clt_error_quiet(true); /* read_piece reads the row again, and reports */
    const clt_status st = make_row(r, p->q->samples[i], p->q->epoch, &r->taken[k], &r->desks[d],
                                   field_at(r, p->q, CLT_IMAGE_PIXELS, i));
    clt_error_quiet(false);
    pthread_mutex_lock(&r->lock);
    r->free_desks |= 1u << d;
    if (st != CLT_OK) p->failed = CLT_MIN(p->failed, i);
    pthread_mutex_unlock(&r->lock);
}

static clt_status read_piece(image_reader *r, const clt_reader_request *q, int64_t first, int64_t n) {
    piece p = {.r = r, .q = q, .first = first, .failed = INT64_MAX};
    for (int64_t k = 0; k < n; k++) {
        CLT_TRY(take(r, q->samples[first + k], &r->taken[k]));
        *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, first + k) = (int32_t)r->taken[k].label;
    }
    clt_parallel_for((size_t)n, r->p.threads, work, &p);
    if (p.failed == INT64_MAX) return CLT_OK;
    const int64_t k = p.failed - first;
    return make_row(r, q->samples[p.failed], q->epoch, &r->taken[k], &r->desks[0],
                    field_at(r, q, CLT_IMAGE_PIXELS, p.failed));
}

/* --- mixing --- */

/* The position of the partner of a position; itself: none. */
static int64_t partner_of(const image_reader *r, const clt_reader_request *q, int64_t position) {
    const int64_t first = position / r->batch * r->batch, end = CLT_MIN(first + r->batch, q->rows),
                  other = first + ((position - first) ^ 1);
    return other < end ? other : position;
}

static void label_row(const image_reader *r, const clt_reader_request *q, int64_t i, double lam, int64_t own,
                      int64_t other) {
    clt_image_targets(lam, r->p.smoothing, r->p.classes, own, other, field_at(r, q, CLT_IMAGE_TARGETS, i));
    *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, i) = (int32_t)(lam >= 0.5 ? own : other);
}

/* Mixes row i with a partner that is not in the request. */
static clt_status mix_with_another(image_reader *r, const clt_reader_request *q, int64_t i, int64_t position,
                                   const clt_image_mix *m) {
    clt_mds_picture *in = &r->taken[0];
    int64_t sample;
    CLT_TRY(q->sample_at(q->loader, q->epoch, position, &sample));
    CLT_TRY(take(r, sample, in));
    CLT_TRY(make_row(r, sample, q->epoch, in, &r->desks[0], r->partner));
    clt_image_mix_pixels(m, r->p.transform.size, field_at(r, q, CLT_IMAGE_PIXELS, i), r->partner, true);
    label_row(r, q, i, m->lam, *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, i), in->label);
    return CLT_OK;
}

static void mix_rows(image_reader *r, const clt_reader_request *q, int64_t i, const clt_image_mix *m) {
    const int32_t a = *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, i),
                  b = *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, i + 1);
    clt_image_mix_pixels(m, r->p.transform.size, field_at(r, q, CLT_IMAGE_PIXELS, i),
                         field_at(r, q, CLT_IMAGE_PIXELS, i + 1), false);
    label_row(r, q, i, m->lam, a, b);
    label_row(r, q, i + 1, m->lam, b, a);
}

/* Labels all rows, and mixes those whose batch is. */
static clt_status mix(image_reader *r, const clt_reader_request *q) {
    for (int64_t i = 0; i < q->count; i++) {
        const int64_t at = q->positions[i];
        const clt_image_mix m =
            r->eval ? (clt_image_mix){.lam = 1}
                    : clt_image_mix_of(&r->p.mix, q->epoch, at / r->batch, r->p.transform.size);
        const int64_t other = m.lam == 1 ? at : partner_of(r, q, at);
        if (other == at) {
            const int32_t own = *(int32_t *)field_at(r, q, CLT_IMAGE_LABEL, i);
            label_row(r, q, i, 1, own, own);
        } else if (other == at + 1 && i + 1 < q->count && q->positions[i + 1] == other) {
            mix_rows(r, q, i, &m);
            i++;
        } else {
            CLT_TRY(mix_with_another(r, q, i, other, &m));
        }
    }
    return CLT_OK;
}

static clt_status read_rows(clt_reader *base, const clt_reader_request *q) {
    image_reader *r = (image_reader *)base;
    for (int64_t at = 0; at < q->count; at += PIECE)
        CLT_TRY(read_piece(r, q, at, CLT_MIN(PIECE, q->count - at)));
    for (int64_t i = 0; i < q->count; i++) q->counts[i] = (clt_sample_counts){.targets = 1, .tokens = 1};
    return mix(r, q);
}

/* --- opening --- */

static clt_status show_none(clt_reader *r, int64_t epoch, int64_t sample, clt_loader_view *v) {
    (void)r, (void)epoch, (void)sample, (void)v;
    return clt_error(CLT_BAD_CONFIG, "pictures have no token ids to show");
}

static size_t shard_of(const clt_reader *r, int64_t sample) {
    const image_reader *i = (const image_reader *)r;
    return i->mds ? clt_mds_fetch_shard(i->mds, sample) : SIZE_MAX;
}

static const char *class_name(const clt_reader *r, int64_t label) {
    const clt_image_folder *f = ((const image_reader *)r)->folder;
    return f && label >= 0 && label < clt_image_folder_classes(f) ? clt_image_folder_class(f, label) : NULL;
}

static void close_reader(clt_reader *base) {
    image_reader *r = (image_reader *)base;
    for (int i = 0; i < PIECE; i++) clt_str_free(&r->taken[i].bytes);
    for (int i = 0; i < MOST_THREADS; i++) {
        clt_image_free(&r->desks[i].image);
        clt_image_work_free(&r->desks[i].work);
    }
    pthread_mutex_destroy(&r->lock);
    clt_free(r->partner);
    clt_mds_close(r->mds);
    clt_image_folder_close(r->folder);
    clt_free(r->base.shard_samples);
    clt_free(r);
}

static clt_status list_shards(image_reader *r) {
    const size_t n = r->mds ? clt_mds_num_shards(r->mds) : 1;
    r->base.shard_samples = clt_try_calloc(n, sizeof *r->base.shard_samples);
    if (!r->base.shard_samples) return clt_no_memory("the table of shards", n * sizeof(int64_t));
    r->base.shards = n;
    for (size_t i = 0; i < n && r->mds; i++) {
        clt_mds_shard s;
        clt_mds_shard_info(r->mds, i, &s);
        r->base.shard_samples[i] = s.samples;
    }
    if (r->folder) r->base.shard_samples[0] = clt_image_folder_samples(r->folder);
    return CLT_OK;
}

/* A folder of classes if there are no shards. */
static clt_status open_source(image_reader *r, const clt_loader_params *p) {
    if (p->local && *p->local && !(p->remote && *p->remote)) {
        char *dir = p->split && *p->split ? clt_path_join(p->local, p->split) : clt_strdup(p->local);
        char *index = clt_path_join(dir, "index.json");
        const bool shards = clt_io_is_file(index) || !clt_io_is_dir(dir); /* which names what is missing */
        const clt_status st = shards ? CLT_OK : clt_image_folder_open(dir, &r->folder);
        clt_free(index);
        clt_free(dir);
        CLT_TRY(st);
    }
    if (r->folder) return CLT_OK;
    CLT_TRY(clt_reader_open_mds(p, &r->mds));
    if (!clt_mds_has_pictures(r->mds)) return clt_mds_get_picture(r->mds, 0, &r->taken[0]);
    return clt_mds_preload(r->mds);
}

static clt_status check_classes(const image_reader *r) {
    const int64_t found = r->folder ? clt_image_folder_classes(r->folder) : 0;
    if (found <= r->p.classes) return CLT_OK;
    return clt_error(CLT_BAD_CONFIG, "%s has %lld classes, and dataset.classes is %lld",
                     clt_image_folder_root(r->folder), (long long)found, (long long)r->p.classes);
}

static clt_status open_reader(image_reader *r, const clt_loader_params *p) {
    const int64_t size = p->image.transform.size;
    CLT_TRY(clt_image_check_build());
    r->p = p->image;
    r->p.transform.seed = r->p.mix.seed = p->shuffle_seed;
    r->eval = p->eval;
    r->batch = CLT_MAX(p->global_batch, 1);
    if (r->p.max_pixels == 0) r->p.max_pixels = CLT_IMAGE_PIXELS_MOST;
    if (r->p.threads == 0) r->p.threads = clt_cpu_count();
    r->p.threads = CLT_MIN(r->p.threads, MOST_THREADS);
    r->base.layout = clt_image_layout(size, size, r->p.classes);
    if (p->max_rows > ((int64_t)1 << 40) / (3 * size * size + r->p.classes))
        return clt_error(CLT_BAD_CONFIG, "cannot read %lld pictures at once", (long long)p->max_rows);
    const size_t bytes = r->base.layout.field[CLT_IMAGE_PIXELS].bytes;
    r->partner = clt_try_malloc(bytes);
    if (!r->partner) return clt_no_memory("a picture", bytes);
    CLT_TRY(open_source(r, p));
    CLT_TRY(check_classes(r));
    return list_shards(r);
}

void clt_image_params_default(clt_image_params *p) {
    *p = (clt_image_params){.mix = {.prob = 1, .switch_prob = 0.5}, .classes = 1000};
    clt_image_transform_default(&p->transform);
}

clt_status clt_image_reader_open(const clt_loader_params *p, clt_reader **out) {
    static const clt_reader_ops ops = {.name = "image",
                                       .read_rows = read_rows,
                                       .show = show_none,
                                       .shard = shard_of,
                                       .class_name = class_name,
                                       .close = close_reader};
    image_reader *r = clt_try_calloc(1, sizeof *r);
    if (!r) return clt_no_memory("the reader of pictures", sizeof *r);
    r->base.ops = &ops;
    r->free_desks = (1u << MOST_THREADS) - 1;
    pthread_mutex_init(&r->lock, NULL);
    const clt_status st = open_reader(r, p);
    if (st == CLT_OK)
        *out = &r->base;
    else
        close_reader(&r->base);
    return st;
}
