#include "test/variant_util.h"

#include <stdlib.h>
#include <string.h>

#include "runtime/base/clt_io.h"

clt_device *vu_dev;
static char cache[] = "/tmp/clt_variant_XXXXXX";

int vu_open(void **state) {
    (void)state;
    if (!mkdtemp(cache)) return -1;
    clt_device_params p = clt_device_params_default();
    p.cache_dir = cache;
    tu_assert_ok(clt_device_open(&p, &vu_dev), "clt_device_open");
    return 0;
}

int vu_close(void **state) {
    (void)state;
    clt_device_close(vu_dev);
    return clt_io_remove_tree(cache) == CLT_OK ? 0 : -1;
}

clt_ops *vu_ops(bool skip_check) {
    clt_ops *ops = NULL;
    clt_ops_params p = clt_ops_params_default();
    p.skip_check = skip_check;
    tu_assert_ok(clt_ops_create(vu_dev, &p, &ops), "clt_ops_create");
    return ops;
}

void vu_assert_says(const char *what) {
    if (!strstr(clt_last_error(), what))
        fail_msg("the message '%s' does not say '%s'", clt_last_error(), what);
}

void vu_put_kernel(const char *name, const char *text) {
    char *path = clt_path_join(cache, name);
    assert_int_equal(clt_io_write_atomic(path, text, strlen(text)), CLT_OK);
    clt_free(path);
}
