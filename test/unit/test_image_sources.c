/* Where pictures come from: MDS shards that Streaming wrote and folders of classes as torchvision reads them
 * (test/golden/vit/images): the same samples in the same order with the same labels and pixels. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/clt_io.h"
#include "runtime/data/clt_mds.h"
#include "runtime/data/image/clt_image.h"
#include "runtime/data/image/clt_image_folder.h"
#include "test/golden_util.h"

#define DIR "test/golden/vit/images/"

static void check_pixels(const char *what, const clt_image *m, const char *sum) {
    char hex[65];
    golden_sha256(m->rgb, 3 * (size_t)(m->width * m->height), hex);
    if (strcmp(hex, sum) != 0) fail_msg("%s: other pixels than Pillow's", what);
}

/* --- MDS --- */

static void check_set(const char *name) {
    char *dir = clt_format(DIR "mds/%s", name), *path = clt_format("%s/samples.json", dir);
    json_t *all = golden_load(path), *list = json_object_get(all, "list");
    clt_mds *m;
    clt_mds_picture p = {0};
    clt_image image = {0};
    clt_str text = {0};
    size_t bad;
    assert_int_equal(clt_mds_open(dir, NULL, &m), CLT_OK);
    assert_true(clt_mds_has_pictures(m));
    assert_int_equal(clt_mds_num_samples(m), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *o = json_array_get(list, i);
        assert_int_equal(clt_mds_get_picture(m, (int64_t)i, &p), CLT_OK);
        assert_int_equal(p.label, golden_int(o, "label"));
        assert_non_null(strstr(p.what, dir));
        assert_int_equal(clt_image_decode(p.what, p.pil ? CLT_IMAGE_PIL : CLT_IMAGE_FILE, p.bytes.s,
                                          p.bytes.len, CLT_IMAGE_PIXELS_MOST, &image),
                         CLT_OK);
        check_pixels(p.what, &image, golden_str(o, "sha256_rgb"));
    }
    clt_error_quiet(true);
    assert_int_equal(clt_mds_get_text(m, 0, &text), CLT_BAD_CONFIG);
    assert_non_null(strstr(clt_last_error(), "loader image"));
    clt_error_quiet(false);
    assert_int_equal(clt_mds_verify(m, 0, NULL, &bad), CLT_OK);
    clt_image_free(&image);
    clt_str_free(&p.bytes);
    clt_mds_close(m);
    json_decref(all);
    clt_free(path);
    clt_free(dir);
}

static void mds_sets_have_streamings_samples(void **state) {
    (void)state;
    static const char *const sets[] = {"jpeg", "jpeg_small", "png", "pil"};
    for (size_t i = 0; i < CLT_COUNT_OF(sets); i++) check_set(sets[i]);
}

/* --- folders --- */

static void folders_have_torchvisions_samples(void **state) {
    (void)state;
    json_t *all = golden_load(DIR "imagefolder.json"), *classes = json_object_get(all, "classes"),
           *samples = json_object_get(all, "samples");
    clt_image_folder *f;
    clt_image m = {0};
    assert_int_equal(clt_image_folder_open(DIR "imagefolder/train", &f), CLT_OK);
    assert_int_equal(clt_image_folder_classes(f), json_array_size(classes));
    assert_int_equal(clt_image_folder_samples(f), json_array_size(samples));
    for (int64_t i = 0; i < clt_image_folder_classes(f); i++)
        assert_string_equal(clt_image_folder_class(f, i),
                            json_string_value(json_array_get(classes, (size_t)i)));
    for (int64_t i = 0; i < clt_image_folder_samples(f); i++) {
        json_t *o = json_array_get(samples, (size_t)i);
        const char *path = clt_image_folder_path(f, i);
        assert_string_equal(path, golden_str(o, "path"));
        assert_int_equal(clt_image_folder_label(f, i), golden_int(o, "label"));
        char *full = clt_path_join(clt_image_folder_root(f), path), *data;
        size_t n;
        assert_int_equal(clt_io_read_all(full, 1 << 20, &data, &n), CLT_OK);
        assert_int_equal(clt_image_decode(full, CLT_IMAGE_FILE, data, n, CLT_IMAGE_PIXELS_MOST, &m), CLT_OK);
        check_pixels(full, &m, golden_str(o, "sha256_rgb"));
        clt_free(data);
        clt_free(full);
    }
    clt_image_free(&m);
    clt_image_folder_close(f);
    json_decref(all);
}

static void touch(const char *root, const char *name) {
    char *path = clt_path_join(root, name), *dir = clt_path_dir(path);
    assert_int_equal(clt_io_mkdirs(dir), CLT_OK);
    assert_int_equal(clt_io_write_atomic(path, "x", 1), CLT_OK);
    clt_free(dir);
    clt_free(path);
}

static void refuse(const char *root, const char *text) {
    clt_image_folder *f;
    clt_error_quiet(true);
    assert_int_equal(clt_image_folder_open(root, &f), CLT_BAD_DATA);
    if (!strstr(clt_last_error(), text)) fail_msg("\"%s\" is not in: %s", text, clt_last_error());
    clt_error_quiet(false);
}

/* The paths of folders are compared as text: a.d, whose '.' comes before '/', lies between a and a/b. */
static void folders_sort_by_whole_path(void **state) {
    (void)state;
    static const char *const want[] = {"k/z.png", "k/a/2.png", "k/a.d/1.png", "k/a/b/3.png", "k/a0/4.png"};
    char root[] = "/tmp/clt_folder_XXXXXX";
    assert_non_null(mkdtemp(root));
    refuse(root, "neither an index.json");
    for (size_t i = CLT_COUNT_OF(want); i-- > 0;) touch(root, want[i]);
    clt_image_folder *f;
    assert_int_equal(clt_image_folder_open(root, &f), CLT_OK);
    assert_int_equal(clt_image_folder_samples(f), CLT_COUNT_OF(want));
    for (size_t i = 0; i < CLT_COUNT_OF(want); i++)
        assert_string_equal(clt_image_folder_path(f, (int64_t)i), want[i]);
    clt_image_folder_close(f);
    touch(root, "empty/readme.md");
    refuse(root, "empty: the class folder has no picture");
    touch(root, "empty/x.WebP");
    refuse(root, "empty/x.WebP: of pictures only JPEG and PNG");
    assert_int_equal(clt_io_remove_tree(root), CLT_OK);
}

/* A class may be called like a picture, and a picture beside the classes is none. */
static void classes_may_have_a_dot(void **state) {
    (void)state;
    static const char *const want[] = {"a.png", "b", "c.tif"};
    char root[] = "/tmp/clt_folder_XXXXXX";
    assert_non_null(mkdtemp(root));
    touch(root, "c.tif/3.png"), touch(root, "a.png/1.jpg"), touch(root, "b/2.png"), touch(root, "loose.png");
    clt_image_folder *f;
    assert_int_equal(clt_image_folder_open(root, &f), CLT_OK);
    assert_int_equal(clt_image_folder_classes(f), CLT_COUNT_OF(want));
    for (int32_t i = 0; i < (int32_t)CLT_COUNT_OF(want); i++) {
        assert_string_equal(clt_image_folder_class(f, i), want[i]);
        assert_int_equal(clt_image_folder_label(f, i), i);
    }
    clt_image_folder_close(f);
    assert_int_equal(clt_io_remove_tree(root), CLT_OK);
}

static void circles_of_links_end(void **state) {
    (void)state;
    char root[] = "/tmp/clt_folder_XXXXXX";
    assert_non_null(mkdtemp(root));
    touch(root, "k/1.png");
    char *link = clt_path_join(root, "k/again");
    assert_int_equal(symlink(".", link), 0);
    refuse(root, "a link makes a circle");
    clt_free(link);
    assert_int_equal(clt_io_remove_tree(root), CLT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mds_sets_have_streamings_samples),
        cmocka_unit_test(folders_have_torchvisions_samples),
        cmocka_unit_test(folders_sort_by_whole_path),
        cmocka_unit_test(classes_may_have_a_dot),
        cmocka_unit_test(circles_of_links_end),
    };
    if (clt_image_check_build() != CLT_OK) return 0; /* built with IMAGES=0 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
