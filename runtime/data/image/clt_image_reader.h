/* clt_image_reader: the settings of the loader `image`. The reader makes batches of clt_image_layout from MDS
 * shards or a folder of classes: it decodes and transforms pictures on several threads and mixes them. */
#ifndef CLT_IMAGE_READER_H
#define CLT_IMAGE_READER_H

#include "runtime/data/image/clt_image_mix.h"
#include "runtime/data/image/clt_image_transform.h"

typedef struct {
    /* Their seeds are the loader's shuffle_seed. */
    clt_image_transform transform;
    clt_image_mix_params mix; /* ignored in an evaluation */
    int64_t classes;          /* labels are in [0, classes) */
    double smoothing;         /* of labels, in [0, 1) */
    int64_t max_pixels;       /* of a picture before it is resized; 0: CLT_IMAGE_PIXELS_MOST */
    int threads;              /* that decode; 0: one for each CPU, at most 16 */
} clt_image_params;

/* Defaults of clt_image_transform, 1000 classes, nothing random. */
void clt_image_params_default(clt_image_params *p);

#endif
