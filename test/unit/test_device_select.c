/* Which device a rank gets, and the messages where there is no driver. */
#include "test/device_util.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_device_private.h"

static char folder[64];  /* files of this run */
static const char *self; /* this program */

static int set_up(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_select.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    return clt_io_remove_tree(folder) == CLT_OK ? 0 : -1;
}

/* --- selection --- */

static clt_found make_found(int p, int d, const char *platform, const char *name, clt_device_type type,
                            bool unified) {
    clt_found f = {.unified = unified};
    f.facts.platform_index = p;
    f.facts.device_index = d;
    f.facts.type = type;
    snprintf(f.facts.platform, sizeof f.facts.platform, "%s", platform);
    snprintf(f.facts.name, sizeof f.facts.name, "%s", name);
    if (type == CLT_DEVICE_CPU) f.facts.host_cpu = "the CPU";
    return f;
}

static const int *slots; /* of the ranks in pick */

static int pick(const clt_found *f, int n, const char *pattern, int rank, int size, int *sharing) {
    int index = -1, share, all = 0;
    if (clt_select(f, n, pattern, slots, rank, size, &index, &share, &all) != CLT_OK) return -1;
    if (sharing) *sharing = all;
    return index;
}

static void ranks_get_devices(void **state) {
    (void)state;
    clt_found f[] = {
        make_found(0, 0, "Intel(R) OpenCL", "AMD EPYC", CLT_DEVICE_CPU, true),
        make_found(1, 0, "Portable Computing Language", "pthread-EPYC", CLT_DEVICE_CPU, true),
        make_found(2, 0, "Intel(R) OpenCL Graphics", "UHD", CLT_DEVICE_GPU, true),
        make_found(3, 0, "NVIDIA CUDA", "H100", CLT_DEVICE_GPU, false),
        make_found(3, 1, "NVIDIA CUDA", "H100", CLT_DEVICE_GPU, false),
    };
    enum { ALL = 5, CPUS = 2 };
    snprintf(f[1].facts.version, sizeof f[1].facts.version, "OpenCL 3.0 PoCL HSTR: pthread");
    int sharing;
    /* Default: the GPUs with their own memory, in turn. */
    for (int r = 0; r < 4; r++) assert_int_equal(pick(f, ALL, "", r, 4, &sharing), 3 + r % 2);
    assert_int_equal(sharing, 2);
    /* Slots choose among the same devices, modulo their number. */
    slots = (const int[]){1, 0, 3};
    for (int r = 0; r < 3; r++) assert_int_equal(pick(f, ALL, "", r, 3, &sharing), r == 1 ? 3 : 4);
    assert_int_equal(sharing, 2);
    slots = NULL;
    /* Two runtimes on one CPU count as one device. */
    for (int r = 0; r < 3; r++) assert_int_equal(pick(f, CPUS, "", r, 3, &sharing), 0);
    assert_int_equal(sharing, 3);
    assert_int_equal(pick(f, ALL, "portable", 0, 1, NULL), 1);
    assert_int_equal(pick(f, ALL, "PTHREAD-epyc", 0, 1, NULL), 1);
    assert_int_equal(pick(f, ALL, "pocl", 0, 1, NULL), 1);
    assert_int_equal(pick(f, ALL, "3:1", 0, 1, NULL), 4);
    assert_int_equal(pick(f, ALL, "1:0", 5, 8, NULL), 1);
    /* A list has an entry for each rank; ranks with the same entry take its devices in turn. */
    assert_int_equal(pick(f, ALL, "nvidia, pthread", 0, 4, NULL), 3);
    assert_int_equal(pick(f, ALL, "nvidia, pthread", 1, 4, &sharing), 1);
    assert_int_equal(sharing, 2);
    assert_int_equal(pick(f, ALL, "nvidia, pthread", 2, 4, NULL), 4);
    assert_int_equal(pick(f, ALL, "nvidia, pthread", 3, 4, NULL), 1);
    /* Ranks on the two runtimes of one CPU share its cores. */
    assert_int_equal(pick(f, ALL, "0:0,1:0", 1, 2, &sharing), 1);
    assert_int_equal(sharing, 2);
    assert_int_equal(pick(f, ALL, "9:0", 0, 1, NULL), -1);
    assert_int_equal(pick(f, ALL, "radeon", 0, 1, NULL), -1);
    du_assert_says("no device matches 'radeon'");
    du_assert_says("3:1  NVIDIA CUDA / H100");
}

static void cpus_alone(void **state) {
    (void)state;
    clt_found f[] = {
        make_found(0, 0, "NVIDIA CUDA", "H100", CLT_DEVICE_GPU, false),
        make_found(1, 0, "Intel(R) OpenCL", "EPYC of Intel", CLT_DEVICE_CPU, true),
        make_found(2, 0, "Another", "an accelerator", CLT_DEVICE_OTHER, false),
        make_found(3, 0, "Portable Computing Language", "pthread-EPYC", CLT_DEVICE_CPU, true),
    };
    int n = 4;
    assert_int_equal(clt_select_cpus(f, &n), CLT_OK);
    assert_int_equal(n, 2);
    assert_string_equal(f[0].facts.name, "EPYC of Intel");
    assert_string_equal(f[1].facts.name, "pthread-EPYC");
    n = 0;
    assert_int_equal(clt_select_cpus(f, &n), CLT_NO_DEVICE);
    du_assert_says("pocl-opencl-icd");
}

/* It is a CPU whatever the run's own device is. */
static void a_cpu_is_opened_beside_another_device(void **state) {
    (void)state;
    clt_device_params p = clt_device_params_default();
    clt_device *dev;
    du_skip_on_simulator();
    p.cpu = true;
    setenv("CLTRAIN_DEVICE", "no such device", 1);
    const clt_status st = clt_device_open(&p, &dev);
    unsetenv("CLTRAIN_DEVICE");
    assert_int_equal(st, CLT_OK);
    assert_int_equal(clt_device_get_facts(dev)->type, CLT_DEVICE_CPU);
    clt_device_close(dev);
}

/* --- without a driver --- */

/* Runs this program in `mode` with the settings `env` and returns its exit code; *output is malloc'ed. */
static int run_self(const char *env, const char *mode, char **output) {
    char *command = clt_format("env -u OCL_ICD_FILENAMES -u CLTRAIN_DEVICE %s %s %s 2>&1", env, self, mode);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    clt_str b = {0};
    char part[4096];
    clt_str_add(&b, "");
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;) clt_str_addn(&b, part, n);
    int status = pclose(f);
    clt_free(command);
    *output = b.s;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void no_platform_gives_advice(void **state) {
    (void)state;
    du_skip_on_simulator();
    char *env = clt_format("OCL_ICD_VENDORS=%s/icd", folder), *dir = clt_format("%s/icd", folder), *output;
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(run_self(env, "open", &output), 69);
    assert_non_null(strstr(output, "no OpenCL platform"));
    assert_non_null(strstr(output, "apt install pocl-opencl-icd"));
    clt_free(output);
    clt_free(dir);
    clt_free(env);
}

/* A driver library that is installed, but that no .icd file names. */
static void unregistered_driver_is_named(void **state) {
    (void)state;
    du_skip_on_simulator();
    char *dir = clt_format("%s/icd", folder), *output;
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    du_put_text(folder, "libnvidia-opencl.so.1", "a driver");
    char *env = clt_format("LD_LIBRARY_PATH=%s:$LD_LIBRARY_PATH OCL_ICD_VENDORS=%s/icd", folder, folder);
    assert_int_equal(run_self(env, "open", &output), 69);
    char *line = clt_format("echo %s/libnvidia-opencl.so.1 > %s/icd/nvidia.icd", folder, folder);
    assert_non_null(strstr(output, "libnvidia-opencl.so.1 is present but not registered"));
    assert_non_null(strstr(output, line));
    clt_free(line);
    clt_free(output);
    clt_free(env);
    clt_free(dir);
}

int main(int argc, char **argv) {
    self = argv[0];
    if (argc > 1) { /* the child of run_self */
        const clt_device_params p = clt_device_params_default();
        clt_device *dev;
        return clt_status_exit_code(clt_device_open(&p, &dev));
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_devices),
        cmocka_unit_test(cpus_alone),
        cmocka_unit_test(a_cpu_is_opened_beside_another_device),
        cmocka_unit_test(no_platform_gives_advice),
        cmocka_unit_test(unregistered_driver_is_named),
    };
    return cmocka_run_group_tests_name("device selection", tests, set_up, tear_down);
}
