/* A CPU device computes on all cores that it counts, however the host waits for it. */
#include "test/test_util.h"

/* Work-items that take a while and say on which thread they ran: threads have stacks of their own. */
static const char source[] = "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))\n"
                             "void stacks(__global ulong *out, ulong out_off)\n"
                             "{\n"
                             "    volatile float y = 0;\n"
                             "    float x = (float)get_global_id(0);\n"
                             "    for (uint i = 0; i < 200000u; i++) x = fma(x, 0.999f, 0.1f);\n"
                             "    y = x;\n"
                             "    out[out_off + get_global_id(0)] = (ulong)(size_t)&y >> 16;\n"
                             "}\n";
enum { GROUPS = 64, TRIES = 100 };

static bool ran_on_several(clt_device *dev, clt_kernel *k, clt_buffer *out) {
    const clt_arg arg[] = {CLT_REF(((clt_ref){out, 0}))};
    uint64_t stack[GROUPS];
    bool several = false;
    tu_assert_ok(clt_launch(k, 1, (size_t[]){GROUPS}, (size_t[]){1}, arg, 2), "launch");
    tu_assert_ok(clt_device_finish(dev), "finish");
    tu_assert_ok(clt_buffer_read(out, 0, stack, sizeof stack), "read");
    for (int i = 1; i < GROUPS; i++) several |= stack[i] != stack[0];
    return several;
}

/* Another program may have the other cores for a while. */
static void all_cores_compute(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        clt_device *dev = tu_device(d);
        const clt_device_facts *f = clt_device_get_facts(dev);
        if (tu_tiny() || f->type != CLT_DEVICE_CPU || f->compute_units < 2) continue;
        clt_kernel *k;
        clt_buffer *out;
        tu_assert_ok(clt_kernel_from_text(dev, "stacks.cl", source, "stacks", NULL, &k), "build");
        tu_assert_ok(clt_buffer_create(dev, GROUPS * sizeof(uint64_t), "stacks", &out), "buffer");
        bool several = false;
        for (int i = 0; i < TRIES && !several; i++) several = ran_on_several(dev, k, out);
        clt_buffer_destroy(out);
        if (!several) fail_msg("%s: %u units, but one thread", tu_device_name(d), f->compute_units);
    }
}

int main(int argc, char **argv) {
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_cores_compute)};
    return tu_run(tests, CLT_COUNT_OF(tests));
}
