#include "runtime/device/clt_probe.h"

#include <string.h>

#include "runtime/base/clt_io.h"

/* --- one program --- */

cl_program clt_probe_build(clt_device *dev, const char *source, const char *options) {
    cl_int e;
    char *ptx = NULL;
    cl_program p = clCreateProgramWithSource(dev->context, 1, &source, NULL, &e);
    clt_cl_count(dev, e);
    if (e != CL_SUCCESS) return NULL;
    e = clt_build_passes(dev, &p, source, options, true, &ptx);
    clt_cl_count(dev, e);
    clt_free(ptx);
    if (e == CL_SUCCESS) return p;
    clReleaseProgram(p);
    return NULL;
}

/* Queues the launch and the read of its result, and waits. */
static cl_int launch_and_read(clt_device *dev, cl_kernel k, cl_mem a, cl_mem b, void *out, size_t out_bytes,
                              size_t items, size_t group) {
    cl_event event;
    cl_int e = clSetKernelArg(k, 0, sizeof a, &a);
    if (e == CL_SUCCESS) e = clSetKernelArg(k, 1, sizeof b, &b);
    if (e == CL_SUCCESS)
        e = clEnqueueNDRangeKernel(clt_queue_next(dev), k, 1, NULL, &items, &group, 0, NULL, NULL);
    if (e == CL_SUCCESS)
        e = clEnqueueReadBuffer(clt_queue_next(dev), b, CL_FALSE, 0, out_bytes, out, 0, NULL, &event);
    return e == CL_SUCCESS ? clt_event_quiet(dev, event) : e;
}

bool clt_probe_run(clt_device *dev, cl_program p, const void *in, size_t in_bytes, void *out,
                   size_t out_bytes, size_t items, size_t group) {
    cl_int e1, e2, e3, e = CL_SUCCESS;
    memset(out, 0xff, out_bytes); /* a launch that does nothing must not find an older answer there */
    cl_kernel k = clCreateKernel(p, "probe", &e1);
    cl_mem a =
        clCreateBuffer(dev->context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, in_bytes, (void *)in, &e2);
    cl_mem b = clCreateBuffer(dev->context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, out_bytes, out, &e3);
    const bool made = e1 == CL_SUCCESS && e2 == CL_SUCCESS && e3 == CL_SUCCESS;
    if (made) e = launch_and_read(dev, k, a, b, out, out_bytes, items, group);
    const cl_int error[] = {e1, e2, e3, e};
    for (size_t i = 0; i < CLT_COUNT_OF(error); i++) clt_cl_count(dev, error[i]);
    if (e1 == CL_SUCCESS) clReleaseKernel(k);
    if (e2 == CL_SUCCESS) clReleaseMemObject(a);
    if (e3 == CL_SUCCESS) clReleaseMemObject(b);
    return made && e == CL_SUCCESS;
}

/* --- one row --- */

static uint32_t or_64(uint32_t n) {
    return n ? n : 64;
}

/* Whether the program runs; its answer lies in `out` then. */
static bool run_row(clt_device *dev, const clt_probe_row *row, cl_program p, const uint32_t *in,
                    uint32_t *out) {
    return clt_probe_run(dev, p, in, or_64(row->in) * sizeof *in, out, or_64(row->out) * sizeof *out,
                         or_64(row->items), or_64(row->group));
}

/* Builds and runs the row with its option sets, as row->sets says. */
static double ask_sets(clt_device *dev, const clt_probe_row *row, const char *text) {
    uint32_t *in = clt_calloc(or_64(row->in), sizeof *in), *out = clt_calloc(or_64(row->out), sizeof *out);
    for (uint32_t i = 0; i < or_64(row->in); i++) in[i] = i;
    if (row->fill) row->fill(in);
    double value = 0;
    bool decided = false;
    for (int set = 0; !decided && set < CLT_PROBE_SETS && row->options[set]; set++) {
        cl_program p = clt_probe_build(dev, text, row->options[set]);
        const bool ran = p && run_row(dev, row, p, in, out);
        if (p) clReleaseProgram(p);
        if (set == 0 && row->built) clt_fact_set(&dev->facts, row->built, p != NULL);
        value = ran ? row->check(&(clt_probe_answer){in, out}, &dev->facts) : 0;
        decided = row->sets == CLT_ASK_FIRST_BUILT ? p != NULL
                  : row->sets == CLT_ASK_FIRST_RUN ? ran
                                                   : value == 0;
    }
    clt_free(in);
    clt_free(out);
    return value;
}

double clt_probe_ask(clt_device *dev, const clt_probe_row *row) {
    if (row->applies && !row->applies(dev)) return 0;
    char *text = row->file ? clt_source_probe(row->file) : NULL;
    const double value = row->ask ? row->ask(dev, row, text) : ask_sets(dev, row, text);
    clt_free(text);
    return value;
}

static void ask_all(clt_device *dev) {
    clt_device_facts *f = &dev->facts;
    char text[32];
    for (int i = 0; i < clt_probe_rows_count; i++) {
        const clt_probe_row *row = &clt_probe_rows[i];
        const double start = clt_now();
        clt_fact_set(f, row->fact, clt_probe_ask(dev, row));
        clt_debug("probed %s = %s in %.3f s", clt_fact_name(row->fact), clt_fact_text(f, row->fact, text),
                  clt_now() - start);
    }
    if (!f->exact && !*f->exact_reason)
        snprintf(f->exact_reason, sizeof f->exact_reason, "the arithmetic probe does not build or run");
}

/* --- stored facts --- */

/* An entry is text: the hash of what is asked, a line "NAME VALUE" for each fact, then exact_reason. With
 * another hash, or other names, it is dropped: a changed probe is asked again without a new CLT_CACHE_FORMAT.
 */
static clt_status hash_questions(const clt_device *dev, clt_hash128 *out) {
    clt_hash_state *h = clt_hash_begin();
    clt_status st = CLT_OK;
    clt_hash_add(h, &dev->quirks, sizeof dev->quirks);
    for (int i = 0; i < clt_probe_rows_count && st == CLT_OK; i++) {
        const clt_probe_row *row = &clt_probe_rows[i];
        char *text = row->file ? clt_source_probe(row->file) : clt_strdup("");
        const char *fact = clt_fact_name(row->fact);
        clt_hash_add(h, fact, strlen(fact) + 1);
        for (int set = 0; set < CLT_PROBE_SETS && row->options[set]; set++)
            clt_hash_add(h, row->options[set], strlen(row->options[set]) + 1);
        if (text)
            clt_hash_add(h, text, strlen(text) + 1);
        else
            st = clt_error(CLT_FAIL, "the kernel file %s of a probe is missing from the program", row->file);
        clt_free(text);
    }
    *out = clt_hash_end(h);
    return st;
}

static void store(clt_device *dev, const char *name, const char *questions) {
    clt_str b = {0};
    char text[32];
    clt_str_addf(&b, "%s\n", questions);
    for (int i = 1; i < CLT_FACTS; i++)
        clt_str_addf(&b, "%s %s\n", clt_fact_name(i), clt_fact_text(&dev->facts, i, text));
    clt_str_add(&b, dev->facts.exact_reason);
    clt_cache_put(dev->cache_dir, name, b.s, b.len);
    clt_str_free(&b);
}

/* Takes the line `start VALUE` off *at; false if the next line is another one. */
static bool take_value(char **at, const char *start, char **value) {
    const size_t n = strlen(start);
    char *end = strchr(*at, '\n');
    if (!end || strncmp(*at, start, n) != 0 || (*at)[n] != ' ') return false;
    *end = 0;
    *value = *at + n + 1;
    *at = end + 1;
    return true;
}

static bool restore(clt_device *dev, const char *name, const char *questions) {
    char *text, *value;
    size_t bytes;
    if (!clt_cache_get(dev->cache_dir, name, &text, &bytes)) return false;
    clt_device_facts f = dev->facts;
    const size_t n = strlen(questions);
    bool ok = strncmp(text, questions, n) == 0 && text[n] == '\n';
    char *at = ok ? text + n + 1 : text;
    for (int i = 1; ok && i < CLT_FACTS; i++)
        ok = take_value(&at, clt_fact_name(i), &value) && clt_fact_parse(&f, i, value);
    if (ok) {
        snprintf(f.exact_reason, sizeof f.exact_reason, "%s", at);
        dev->facts = f;
    }
    clt_free(text);
    return ok;
}

static void facts_name(const clt_device *dev, char name[64]) {
    snprintf(name, 64, "%s.facts", dev->id);
}

bool clt_probe_is_stored(const clt_device *dev) {
    char name[64], *path;
    if (!dev->cache_dir || dev->again) return false;
    facts_name(dev, name);
    path = clt_path_join(dev->cache_dir, name);
    const bool there = clt_io_is_file(path);
    clt_free(path);
    return there;
}

/* Asks everything and stores the answers, unless memory or resources ran out meanwhile. */
static void probe_now(clt_device *dev, const char *name, const char *questions) {
    const double start = clt_now();
    const uint64_t before = dev->counters.shortages;
    ask_all(dev);
    clt_debug("probed %s in %.2f s", dev->facts.name, clt_now() - start);
    if (dev->hung) return;
    if (dev->counters.shortages == before)
        store(dev, name, questions);
    else
        clt_warn("%s ran out of memory or resources while it was probed: some of its features may be missing "
                 "in this run; the next start probes again",
                 dev->facts.name);
}

clt_status clt_probe(clt_device *dev) {
    char name[64], questions[33];
    clt_hash128 hash, key;
    CLT_TRY(hash_questions(dev, &hash));
    clt_hash_hex(hash, questions);
    facts_name(dev, name);
    dev->facts.probed = true;
    if (!dev->again && restore(dev, name, questions)) return CLT_OK;
    clt_hash_parse(dev->id, &key);
    const int lock = dev->cache_dir ? clt_cache_lock(dev->cache_dir, key, dev->timeout) : -1;
    if (dev->again || !restore(dev, name, questions)) probe_now(dev, name, questions);
    clt_cache_unlock(lock);
    return dev->hung ? clt_hung_error(dev, "probing") : CLT_OK;
}
