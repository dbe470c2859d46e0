#include "test/device_util.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_cache.h"

clt_device *du_open(clt_device_params p) {
    clt_device *d = NULL;
    assert_int_equal(clt_device_open(&p, &d), CLT_OK);
    return d;
}

void du_assert_says(const char *part) {
    if (!strstr(clt_last_error(), part)) fail_msg("'%s' does not say '%s'", clt_last_error(), part);
}

void du_put_text(const char *folder, const char *name, const char *text) {
    char *path = clt_path_join(folder, name), *dir = clt_path_dir(path);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_true(clt_cache_write_file(path, text, strlen(text)));
    clt_free(dir);
    clt_free(path);
}

void du_skip_on_simulator(void) {
    clt_device_facts *list;
    int n;
    assert_int_equal(clt_device_list(false, &list, &n), CLT_OK);
    const bool simulator = strcmp(list[0].platform, "Oclgrind") == 0;
    clt_free(list);
    if (!simulator) return;
    print_message("skipped: not under Oclgrind\n");
    skip();
}

int du_scratch_file(const char *folder) {
    char link[64], target[512];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, target, sizeof target - 1);
        if (n <= 0) continue;
        target[n] = 0;
        if (!strncmp(target, folder, strlen(folder)) && strstr(target, ".data")) return open(link, O_RDWR);
    }
    fail_msg("the file of the scratch is not open");
    return -1;
}
