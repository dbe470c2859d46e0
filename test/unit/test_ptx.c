/* The second pass over PTX, and the maps of the copy engine. The rewriting is tested everywhere; the rest
 * needs a device with wgmma.
 *
 *     test_ptx --rewrite < first.ptx > second.ptx     the rewriting alone, for offline gates */
#include "test/test_util.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/base/clt_io.h"
#include "runtime/device/clt_ptx.h"
#include "runtime/device/clt_tensor_map.h"

static const char *why;

static void rewritten(const char *ptx, const char *want) {
    char *got = clt_ptx_rewrite(ptx, &why);
    assert_non_null(got);
    assert_string_equal(got, want);
    clt_free(got);
}

static void marks_become_instructions(void **state) {
    (void)state;
    assert_true(clt_ptx_is_marked("asm(\"//@x;\")"));
    assert_false(clt_ptx_is_marked("// @x"));
    assert_true(clt_ptx_is_whole(".target sm_80\nret;\n"));
    assert_false(clt_ptx_is_whole(".target sm_90\n//@x;\n"));
    assert_false(clt_ptx_is_whole("\177ELF"));
    rewritten(
        ".version 8.3\n.target sm_90, texmode_independent\n\t//@wgmma.fence.sync.aligned;\n//@a;\n{ b; "
        "//@c;\n}",
        ".version 8.3\n.target sm_90a, texmode_independent\n\twgmma.fence.sync.aligned;\na;\n{ b; c;\n}\n");
    rewritten("// made by sm_90\n.target sm_90a\n// kept", "// made by sm_90\n.target sm_90a\n// kept\n");
    rewritten(".target sm_100\n", ".target sm_100a\n");
}

static void directives_move_to_their_entry(void **state) {
    (void)state;
    rewritten(".target sm_90\n.entry a(\n.param .u64 p\n)\n.reqntid 128, 1, 1\n{\n//@x;\n//@entry "
              ".one\n\t//@entry .two 2\n"
              "}\n.visible .entry b()\n{\nret;\n//@entry .three\n}\n",
              ".target sm_90a\n.entry a(\n.param .u64 p\n)\n.reqntid 128, 1, 1\n.one\n.two 2\n{\nx;\n"
              "}\n.visible .entry b()\n.three\n{\nret;\n}\n");
}

#define MORE_ROLE "\tsetmaxnreg.inc x;\n$L7:\n\t@%p8 bra $L7;\n"
#define LESS_ROLE "\tsetmaxnreg.dec x;\n\tcopy;\n"

static void fewer_registers_come_first(void **state) {
    (void)state;
    /* the first role jumps behind the second one */
    rewritten(".target sm_90\n.entry a()\n{\n//@less first\n\t@%p3 bra $L2;\n//@" MORE_ROLE
              "\tbra.uni $L3;\n$L2:\n//@" LESS_ROLE "$L3:\n\tret;\n\n}\n",
              ".target sm_90a\n.entry a()\n{\n// less first\n\t@!%p3 bra $clt_more;\n$L2:\n" LESS_ROLE
              "$L3:\n\tret;\n\n$clt_more:\n" MORE_ROLE "\tbra.uni $L3;\n}\n");
    /* both return; only the kernel with the mark changes */
    rewritten(".target sm_90\n.entry a()\n{\n\t@!%p3 bra $L2;\n//@less first\n" MORE_ROLE
              "\tret;\n\n$L2:\n" LESS_ROLE "\tret;\n}\n.entry b()\n{\n\t@%p1 bra $L2;\n" MORE_ROLE
              "\tret;\n$L2:\n" LESS_ROLE "\tret;\n}\n",
              ".target sm_90a\n.entry a()\n{\n\t@%p3 bra $clt_more;\n$L2:\n" LESS_ROLE
              "\tret;\n$clt_more:\n// less first\n" MORE_ROLE "\tret;\n\n}\n.entry b()\n{\n\t@%p1 bra "
              "$L2;\n" MORE_ROLE "\tret;\n$L2:\n" LESS_ROLE "\tret;\n}\n");
    /* already in order */
    rewritten(".target sm_90\n.entry a()\n{\n//@less first\n" LESS_ROLE MORE_ROLE "}\n",
              ".target sm_90a\n.entry a()\n{\n// less first\n" LESS_ROLE MORE_ROLE "}\n");
}

static void what_cannot_be_rewritten_is_said(void **state) {
    (void)state;
    assert_null(clt_ptx_rewrite("\177ELF", &why));
    assert_non_null(strstr(why, "no PTX"));
    assert_null(clt_ptx_rewrite(".target sm_80\n", &why));
    assert_non_null(strstr(why, "older"));
    assert_null(clt_ptx_rewrite(".target sm_90\n.entry a()\n{\n//@less first\n}\n", &why));
    assert_non_null(strstr(why, "setmaxnreg"));
    assert_null(clt_ptx_rewrite(".target sm_90\n.entry a()\n{\n//@less first\n\t@%p3 bra $L2;\n" MORE_ROLE
                                "\tadd;\n$L2:\n" LESS_ROLE "}\n",
                                &why));
}

/* --- on a device that has it --- */

/* One box of 16 rows by 64 elements at (x, y), as it lies in local memory. The marked line proves the second
 * pass: only its assembler takes wgmma. */
static const char box_source[] =
    "__kernel __attribute__((reqd_work_group_size(128, 1, 1)))\n"
    "void copy_box(__global const ulong *maps, ulong map_off, int x, int y, __global const ushort *unused,\n"
    "              __global ushort *out, ulong out_off)\n"
    "{\n"
    "    __local ushort box[16 * 64] __attribute__((aligned(1024)));\n"
    "    __local ulong bar;\n"
    "    uint t = (uint)get_local_id(0), b = (uint)(ulong)&bar, done;\n"
    "    __asm__ volatile(\"//@wgmma.fence.sync.aligned;\" ::: \"memory\");\n"
    "    if (t == 0) {\n"
    "        __asm__ volatile(\"mbarrier.init.shared::cta.b64 [%0], 1;\" :: \"r\"(b) : \"memory\");\n"
    "        __asm__ volatile(\"fence.proxy.async.shared::cta;\" ::: \"memory\");\n"
    "        __asm__ volatile(\"fence.proxy.tensormap::generic.acquire.gpu [%0], 128;\"\n"
    "                         :: \"l\"(maps + map_off) : \"memory\");\n"
    "        __asm__ volatile(\"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 2048;\" :: \"r\"(b) : "
    "\"memory\");\n"
    "        __asm__ volatile(\"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%0], \"\n"
    "                         \"[%1, {%2, %3}], [%4];\" :: \"r\"((uint)(ulong)box), \"l\"(maps + map_off), "
    "\"r\"(x), \"r\"(y),\n"
    "                         \"r\"(b) : \"memory\");\n"
    "    }\n"
    "    barrier(CLK_LOCAL_MEM_FENCE);\n"
    "    do __asm__ volatile(\"{.reg .pred q; mbarrier.try_wait.parity.shared::cta.b64 q, [%1], 0; \"\n"
    "                        \"selp.u32 %0, 1, 0, q;}\" : \"=r\"(done) : \"r\"(b) : \"memory\");\n"
    "    while (!done);\n"
    "    for (uint i = t; i < 16 * 64; i += 128) out[out_off + i] = box[i];\n"
    "}\n";

enum { ROWS = 40, COLS = 72, BOX_ROWS = 16, BOX_COLS = 64 };

/* The expected element i of the box: in rows of 128 bytes, 16-byte pieces are swapped depending on the row.
 */
static uint16_t box_element(int x, int y, int i) {
    const int r = i / BOX_COLS, piece = (i % BOX_COLS / 8) ^ (r % 8), c = piece * 8 + i % 8;
    return y + r < ROWS && x + c < COLS ? (uint16_t)((y + r) * COLS + x + c + 1) : 0;
}

static void copy_and_compare(clt_device *dev, clt_kernel *k, clt_ref tensor, clt_buffer *out, int x, int y) {
    const clt_tensor_map_params p = {.ref = tensor,
                                     .type = CLT_MAP_BF16,
                                     .dims = 2,
                                     .size = {COLS, ROWS},
                                     .stride = {1, COLS},
                                     .box = {BOX_COLS, BOX_ROWS},
                                     .swizzle = 128};
    static const size_t items = 128;
    clt_ref map, again;
    uint16_t got[BOX_ROWS * BOX_COLS];
    assert_true(clt_tensor_map_fits(&p));
    tu_assert_ok(clt_tensor_map_get(dev, &p, &map), "tensor map");
    tu_assert_ok(clt_tensor_map_get(dev, &p, &again), "tensor map again");
    assert_true(map.buf == again.buf && map.off == again.off);
    tu_assert_ok(clt_launch(k, 1, &items, &items,
                            (clt_arg[]){CLT_REF(map), CLT_I32(x), CLT_I32(y), CLT_BUF(tensor.buf),
                                        CLT_REF(((clt_ref){out, 0}))},
                            7),
                 "launch");
    tu_assert_ok(clt_buffer_read(out, 0, got, sizeof got), "read");
    for (int i = 0; i < BOX_ROWS * BOX_COLS; i++)
        if (got[i] != box_element(x, y, i))
            fail_msg("box at %d, %d: element %d is %u, should be %u", x, y, i, got[i], box_element(x, y, i));
}

static void boxes_are_copied(int d) {
    clt_device *dev = tu_device(d);
    clt_kernel *k;
    clt_buffer *tensor, *out;
    enum { OFF = 24 };
    uint16_t host[OFF + ROWS * COLS] = {0};
    for (int i = 0; i < ROWS * COLS; i++) host[OFF + i] = (uint16_t)(i + 1);
    tu_assert_ok(clt_kernel_from_text(dev, "copy_box", box_source, "copy_box", "", &k),
                 "a kernel of two passes");
    tu_assert_ok(clt_buffer_create(dev, BOX_ROWS * BOX_COLS * 2, "out", &out), "out");
    for (int round = 0; round < 2; round++) { /* the second buffer may have the address of the first */
        tu_assert_ok(clt_buffer_create(dev, sizeof host, "tensor", &tensor), "tensor");
        tu_assert_ok(clt_buffer_write(tensor, 0, host, sizeof host), "write");
        copy_and_compare(dev, k, (clt_ref){tensor, OFF}, out, 0, 0);
        copy_and_compare(dev, k, (clt_ref){tensor, OFF}, out, 64, 32);
        copy_and_compare(dev, k, (clt_ref){tensor, OFF}, out, 8, 25);
        clt_buffer_destroy(tensor);
    }
    clt_buffer_destroy(out);
}

static void maps_and_second_pass_on_devices(void **state) {
    (void)state;
    for (int d = 0; d < tu_device_count(); d++) {
        const clt_device_facts *f = clt_device_get_facts(tu_device(d));
        if (f->wgmma && clt_tensor_map_available(tu_device(d)))
            boxes_are_copied(d);
        else
            printf("skip: %s: wgmma %s, tensor maps %s\n", tu_device_name(d), f->wgmma ? "yes" : "no",
                   clt_tensor_map_available(tu_device(d)) ? "yes" : "no");
    }
}

static void unaligned_tensors_do_not_fit(void **state) {
    (void)state;
    clt_tensor_map_params p = {.ref = tu_blank(0, 64),
                               .type = CLT_MAP_BF16,
                               .dims = 2,
                               .size = {8, 4},
                               .stride = {1, 8},
                               .box = {8, 4},
                               .swizzle = 128};
    p.ref.off = 8;
    assert_true(clt_tensor_map_fits(&p));
    p.ref.off = 9;
    assert_false(clt_tensor_map_fits(&p));
    p.ref.off = 0;
    p.stride[1] = 12;
    assert_false(clt_tensor_map_fits(&p));
    p.stride[1] = 8;
    p.box[0] = 72;
    assert_false(clt_tensor_map_fits(&p));
    if (!clt_tensor_map_available(tu_device(0))) {
        clt_ref map;
        p.box[0] = 8;
        assert_int_equal(clt_tensor_map_get(tu_device(0), &p, &map), CLT_FAIL);
        assert_non_null(strstr(clt_last_error(), "libcuda"));
    }
    tu_release();
}

static int rewrite_stdin(void) {
    clt_str text = {0};
    char part[65536];
    for (size_t n; (n = fread(part, 1, sizeof part, stdin)) > 0;) clt_str_addn(&text, part, n);
    char *out = clt_ptx_rewrite(text.s ? text.s : "", &why);
    if (out) fputs(out, stdout);
    if (!out) fprintf(stderr, "%s\n", why);
    clt_str_free(&text);
    clt_free(out);
    return out ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "--rewrite")) return rewrite_stdin();
    tu_init(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_become_instructions),    cmocka_unit_test(directives_move_to_their_entry),
        cmocka_unit_test(fewer_registers_come_first),   cmocka_unit_test(what_cannot_be_rewritten_is_said),
        cmocka_unit_test(unaligned_tensors_do_not_fit), cmocka_unit_test(maps_and_second_pass_on_devices),
    };
    return tu_run(tests, CLT_COUNT_OF(tests));
}
