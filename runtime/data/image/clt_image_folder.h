/* clt_image_folder: a folder with one sub-folder for each class, as torchvision.datasets.ImageFolder reads
 * it: the same classes, the same samples in the same order.
 *
 * Classes are the names of the sub-folders, sorted by code point. Pictures at any depth below one belong to
 * it; links to folders are followed. Folders below a class are read in the order of their paths, the files of
 * a folder in the order of their names. A name with another suffix than torchvision's is left out, and so is
 * what lies beside the class folders. */
#ifndef CLT_IMAGE_FOLDER_H
#define CLT_IMAGE_FOLDER_H

#include "runtime/base/clt_base.h"

typedef struct clt_image_folder clt_image_folder;

/* `root` is a path or a URL. CLT_BAD_DATA: no classes, a class without pictures, or a kind of picture that
 * cannot be read (its suffix says .bmp, .webp ...), with its path. */
clt_status clt_image_folder_open(const char *root, clt_image_folder **out);
void clt_image_folder_close(clt_image_folder *f); /* NULL is allowed */

const char *clt_image_folder_root(const clt_image_folder *f);
int64_t clt_image_folder_classes(const clt_image_folder *f);
int64_t clt_image_folder_samples(const clt_image_folder *f);
/* Valid until close. Path of sample i below the root; number and name of a class. */
const char *clt_image_folder_path(const clt_image_folder *f, int64_t i);
int64_t clt_image_folder_label(const clt_image_folder *f, int64_t i);
const char *clt_image_folder_class(const clt_image_folder *f, int64_t label);

#endif
