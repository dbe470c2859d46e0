/* What IMAGES=0 builds instead of clt_image_jpeg.c and clt_image_png.c. */
#include "runtime/data/image/clt_image.h"

clt_status clt_image_check_build(void) {
    return clt_error(CLT_BAD_CONFIG,
                     "this program was built without libjpeg and libpng (IMAGES=0) and cannot read pictures; "
                     "install libjpeg-dev and libpng-dev and build it again");
}

clt_status clt_image_jpeg(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                          clt_image *out) {
    (void)what, (void)data, (void)bytes, (void)max_pixels, (void)out;
    return clt_image_check_build();
}

clt_status clt_image_png(const char *what, const void *data, size_t bytes, int64_t max_pixels,
                         clt_image *out) {
    return clt_image_jpeg(what, data, bytes, max_pixels, out);
}
