/* The slots of tensor maps, without the hardware: the driver's functions are replaced here, so the source
 * file is part of this test. test_ptx.c tests maps on devices that have them. */
#include "runtime/device/clt_tensor_map.c"

#include "test/test_util.h"

static int encoded;

static int encode_nothing(void *map, int type, uint32_t dims, void *address, const uint64_t *size,
                          const uint64_t *stride_bytes, const uint32_t *box, const uint32_t *element_stride,
                          int interleave, int swizzle, int l2_promotion, int outside) {
    (void)type, (void)dims, (void)address, (void)stride_bytes, (void)box, (void)element_stride;
    (void)interleave, (void)swizzle, (void)l2_promotion, (void)outside;
    memset(map, 0, MAP_BYTES);
    memcpy(map, size, sizeof *size);
    encoded++;
    return 0;
}
static int retain_nothing(void **context, int device) {
    (void)device;
    *context = &encoded;
    return 0;
}
static int retain_refused(void **context, int device) {
    (void)context, (void)device;
    return 2; /* CUDA_ERROR_OUT_OF_MEMORY */
}
static int release_nothing(int device) {
    (void)device;
    return 0;
}
static int push_nothing(void *context) {
    (void)context;
    return 0;
}
static int pop_nothing(void **context) {
    *context = NULL;
    return 0;
}
static int no_device(int *device, const char *bus) {
    (void)device, (void)bus;
    return 1;
}

/* The map number n of a buffer: a row of 8 (n + 1) elements. */
static uint64_t place_of(clt_device *dev, clt_buffer *b, uint64_t n) {
    const clt_tensor_map_params p = {.ref = {b, 0},
                                     .type = CLT_MAP_BF16,
                                     .dims = 2,
                                     .size = {8 * (n + 1), 1},
                                     .stride = {1, 8 * (n + 1)},
                                     .box = {8, 1}};
    clt_ref map;
    tu_assert_ok(clt_tensor_map_get(dev, &p, &map), "clt_tensor_map_get");
    return map.off;
}

static void assert_holds(clt_device *dev, uint64_t place, uint64_t n) {
    uint64_t size = 0;
    tu_assert_ok(clt_buffer_read(dev->tensor_maps->maps, place * 8, &size, sizeof size), "reading a map");
    assert_int_equal(size, 8 * (n + 1));
}

/* Opens a device with the functions above instead of the driver's, and sets its fact inline_ptx. Returns what
 * the fact was. */
static bool open_device(clt_device **dev) {
    const clt_device_params params = clt_device_params_default();
    tu_assert_ok(clt_device_open(&params, dev), "clt_device_open");
    const bool had = (*dev)->facts.inline_ptx;
    (*dev)->facts.inline_ptx = true;
    clt_tensor_map_available(*dev); /* so that the library is not loaded later */
    cu.device_by_bus = no_device, cu.retain = retain_nothing, cu.release = release_nothing;
    cu.push = push_nothing, cu.pop = pop_nothing, cu.encode = encode_nothing, cu.ready = true;
    return had;
}

/* While other processes use all memory of a card, the driver's context does not open. That is a shortage, no
 * lasting verdict on a kernel, and the next request gets its map. */
static void a_full_card_is_a_shortage(void **state) {
    (void)state;
    clt_device *dev;
    clt_buffer *b;
    clt_ref map;
    clt_tensor_map_params p = {
        .type = CLT_MAP_BF16, .dims = 2, .size = {8, 1}, .stride = {1, 8}, .box = {8, 1}};
    const bool had = open_device(&dev);
    tu_assert_ok(clt_buffer_create(dev, 1024, "tensor", &b), "clt_buffer_create");
    p.ref.buf = b;
    cu.retain = retain_refused;
    const uint64_t before = dev->counters.shortages;
    assert_int_equal(clt_tensor_map_get(dev, &p, &map), CLT_FAIL);
    assert_true(dev->counters.shortages > before);
    cu.retain = retain_nothing;
    begin(dev);
    dev->facts.inline_ptx = had;
    tu_assert_ok(clt_tensor_map_get(dev, &p, &map), "clt_tensor_map_get");
    clt_buffer_destroy(b);
    clt_device_close(dev);
}

/* Map 0 is the oldest. It is requested again, and then new ones are. */
static void what_was_just_asked_for_stays(void **state) {
    (void)state;
    clt_device *dev;
    clt_buffer *b;
    const bool had = open_device(&dev);
    begin(dev);
    dev->facts.inline_ptx = had;
    tu_assert_ok(clt_buffer_create(dev, 1024, "tensor", &b), "clt_buffer_create");
    const uint64_t first = place_of(dev, b, 0);
    for (uint64_t n = 1; n < SLOTS; n++) place_of(dev, b, n);
    assert_int_equal(encoded, SLOTS);
    assert_int_equal(place_of(dev, b, 0), first);
    assert_int_equal(encoded, SLOTS);
    for (uint64_t n = SLOTS; n < SLOTS + STAYS - 1; n++) assert_int_not_equal(place_of(dev, b, n), first);
    assert_holds(dev, first, 0);
    /* The oldest of the others were replaced: number 1 is made again, 1500 still exists. */
    assert_int_equal(encoded, SLOTS + STAYS - 1);
    place_of(dev, b, 1500);
    assert_int_equal(encoded, SLOTS + STAYS - 1);
    assert_holds(dev, place_of(dev, b, 1), 1);
    assert_int_equal(encoded, SLOTS + STAYS);
    clt_buffer_destroy(b);
    clt_device_close(dev);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_just_asked_for_stays),
                                       cmocka_unit_test(a_full_card_is_a_shortage)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
