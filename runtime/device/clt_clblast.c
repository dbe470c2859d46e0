#include "runtime/device/clt_clblast.h"

#include <dlfcn.h>
#include <pthread.h>

#include "runtime/device/clt_device_private.h"

/* CLBlastSgemm of the library's C interface; the three leading enums are passed as int. */
typedef int sgemm_fn(int layout, int trans_a, int trans_b, size_t m, size_t n, size_t k, float alpha,
                     cl_mem a, size_t a_offset, size_t a_ld, cl_mem b, size_t b_offset, size_t b_ld,
                     float beta, cl_mem c, size_t c_offset, size_t c_ld, cl_command_queue *queue,
                     cl_event *event);

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

static sgemm_fn *sgemm;

static void load(void) {
    void *lib = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
    if (lib) *(void **)&sgemm = dlsym(lib, "CLBlastSgemm");
}

bool clt_clblast_available(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return sgemm != NULL;
}

static clt_status check_matrix(const char *name, clt_ref r, int64_t rows, int64_t cols, int64_t ld) {
    if (rows > 0 && cols > 0 && ld >= cols && r.buf &&
        (r.off + (uint64_t)(rows - 1) * (uint64_t)ld + (uint64_t)cols) * sizeof(float) <= r.buf->bytes)
        return CLT_OK;
    return clt_error(CLT_FAIL, "sgemm: matrix %s of %lld x %lld with rows %lld apart exceeds its buffer",
                     name, (long long)rows, (long long)cols, (long long)ld);
}

clt_status clt_clblast_sgemm(clt_device *dev, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k,
                             float alpha, clt_ref a, int64_t lda, clt_ref b, int64_t ldb, float beta,
                             clt_ref c, int64_t ldc) {
    if (!clt_clblast_available())
        return clt_error(CLT_FAIL, "CLBlast (libclblast.so.1) is not installed: apt install libclblast1");
    CLT_TRY(check_matrix("a", a, trans_a ? k : m, trans_a ? m : k, lda));
    CLT_TRY(check_matrix("b", b, trans_b ? n : k, trans_b ? k : n, ldb));
    CLT_TRY(check_matrix("c", c, m, n, ldc));
    cl_command_queue queue = clt_queue_next(dev);
    int e = sgemm(ROW_MAJOR, trans_a ? TRANSPOSE : NO_TRANSPOSE, trans_b ? TRANSPOSE : NO_TRANSPOSE,
                  (size_t)m, (size_t)n, (size_t)k, alpha, a.buf->mem, a.off, (size_t)lda, b.buf->mem, b.off,
                  (size_t)ldb, beta, c.buf->mem, c.off, (size_t)ldc, &queue, NULL);
    clt_cl_count(dev, e); /* CLBlast's own codes have other numbers */
    if (e != 0)
        return clt_error(CLT_FAIL, "CLBlast's sgemm %lld x %lld x %lld failed on %s: status %d (%s)",
                         (long long)m, (long long)n, (long long)k, dev->facts.name, e, clt_cl_name(e));
    return CLT_OK;
}
