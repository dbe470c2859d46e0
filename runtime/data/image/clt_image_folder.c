#include "runtime/data/image/clt_image_folder.h"

#include <string.h>
#include <strings.h>

#include "runtime/base/clt_io.h"
#include "runtime/base/clt_signal.h"

enum { MOST_DEPTH = 40 }; /* of folders; links may make circles */

struct clt_image_folder {
    char *root;
    clt_strv classes;
    clt_str names; /* the paths of all samples, each with its 0 */
    size_t *at;    /* [samples] where in `names` */
    int32_t *label;
    int64_t samples, cap;
};

/* --- suffixes --- */

static bool ends_in(const char *name, const char *const *suffixes) {
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && suffixes[i]; i++)
        if (strcasecmp(dot, suffixes[i]) == 0) return true;
    return false;
}

/* torchvision's list; the first ones can be decoded. */
static const char *const decoded[] = {".jpg", ".jpeg", ".png", NULL}, *const others[] = {
                                                                          ".ppm",  ".bmp",  ".pgm", ".tif",
                                                                          ".tiff", ".webp", NULL};

/* --- listing --- */

/* The classes (all), or the folders below one: the names in `path` that are folders. Below a class a name
 * with the suffix of a picture is not looked at, which saves a million requests. */
static clt_status list_folders(const char *path, bool all, clt_strv *out) {
    clt_strv names = {0};
    clt_status st = clt_io_list(path, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        if (!strcmp(names.v[i], ".fetch")) continue; /* where shards arrive (clt_fetch.h) */
        if (!all && (ends_in(names.v[i], decoded) || ends_in(names.v[i], others))) continue;
        char *full = clt_path_join(path, names.v[i]);
        if (clt_io_is_dir(full)) clt_strv_add(out, names.v[i]);
        clt_free(full);
    }
    clt_strv_free(&names);
    return st;
}

/* Adds the paths below the root of `below` and of all folders under it. */
static clt_status walk(const clt_image_folder *f, const char *below, int depth, clt_strv *out) {
    char *full = clt_path_join(f->root, below);
    clt_strv names = {0};
    if (clt_signal_received()) {
        clt_free(full);
        return CLT_STOPPED;
    }
    clt_strv_add(out, below);
    clt_status st = depth < MOST_DEPTH ? list_folders(full, false, &names)
                                       : clt_error(CLT_BAD_DATA,
                                                   "%s: folders are nested more than %d deep, "
                                                   "or a link makes a circle",
                                                   full, MOST_DEPTH);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        char *next = clt_path_join(below, names.v[i]);
        st = walk(f, next, depth + 1, out);
        clt_free(next);
    }
    clt_strv_free(&names);
    clt_free(full);
    return st;
}

static clt_status add_sample(clt_image_folder *f, const char *folder, const char *name, int32_t label) {
    if (f->samples == f->cap) {
        const int64_t cap = CLT_MAX(2 * f->cap, 1024);
        size_t *at = clt_try_realloc(f->at, (size_t)cap * sizeof *at);
        if (at) f->at = at;
        int32_t *labels = at ? clt_try_realloc(f->label, (size_t)cap * sizeof *labels) : NULL;
        if (!labels) return clt_no_memory("the names of the pictures", (uint64_t)cap * sizeof *at);
        f->label = labels;
        f->cap = cap;
    }
    if (!clt_str_try_reserve(&f->names, strlen(folder) + strlen(name) + 2))
        return clt_no_memory("the names of the pictures", f->names.len);
    f->at[f->samples] = f->names.len;
    f->label[f->samples++] = label;
    clt_str_add(&f->names, folder);
    clt_str_add(&f->names, "/");
    clt_str_addn(&f->names, name, strlen(name) + 1);
    return CLT_OK;
}

static clt_status add_folder(clt_image_folder *f, const char *folder, int32_t label) {
    clt_strv names = {0};
    char *full = clt_path_join(f->root, folder);
    clt_status st = clt_io_list(full, &names);
    for (size_t i = 0; i < names.n && st == CLT_OK; i++) {
        if (ends_in(names.v[i], decoded))
            st = add_sample(f, folder, names.v[i], label);
        else if (ends_in(names.v[i], others))
            st = clt_error(CLT_BAD_DATA,
                           "%s/%s: of pictures only JPEG and PNG can be read; convert it, or move it out of "
                           "the folder",
                           full, names.v[i]);
    }
    clt_strv_free(&names);
    clt_free(full);
    return st;
}

static clt_status add_class(clt_image_folder *f, int32_t label) {
    const char *name = f->classes.v[label];
    const int64_t before = f->samples;
    clt_strv folders = {0};
    clt_status st = walk(f, name, 0, &folders);
    clt_strv_sort(&folders); /* as torchvision: paths as text */
    for (size_t i = 0; i < folders.n && st == CLT_OK; i++) st = add_folder(f, folders.v[i], label);
    clt_strv_free(&folders);
    if (st == CLT_OK && f->samples == before)
        st = clt_error(CLT_BAD_DATA, "%s/%s: the class folder has no picture (.jpg, .jpeg, .png)", f->root,
                       name);
    return st;
}

static clt_status read_all(clt_image_folder *f) {
    CLT_TRY(list_folders(f->root, true, &f->classes));
    if (f->classes.n == 0)
        return clt_error(CLT_BAD_DATA,
                         "%s has neither an index.json (MDS shards) nor a folder for each class", f->root);
    for (size_t i = 0; i < f->classes.n; i++) CLT_TRY(add_class(f, (int32_t)i));
    return CLT_OK;
}

/* --- the interface --- */

clt_status clt_image_folder_open(const char *root, clt_image_folder **out) {
    clt_image_folder *f = clt_calloc(1, sizeof *f);
    f->root = clt_strdup(root);
    const clt_status st = read_all(f);
    if (st == CLT_OK)
        *out = f;
    else
        clt_image_folder_close(f);
    return st;
}

void clt_image_folder_close(clt_image_folder *f) {
    if (!f) return;
    clt_strv_free(&f->classes);
    clt_str_free(&f->names);
    clt_free(f->at);
    clt_free(f->label);
    clt_free(f->root);
    clt_free(f);
}

const char *clt_image_folder_root(const clt_image_folder *f) {
    return f->root;
}
int64_t clt_image_folder_classes(const clt_image_folder *f) {
    return (int64_t)f->classes.n;
}
int64_t clt_image_folder_samples(const clt_image_folder *f) {
    return f->samples;
}
const char *clt_image_folder_path(const clt_image_folder *f, int64_t i) {
    return f->names.s + f->at[i];
}
int64_t clt_image_folder_label(const clt_image_folder *f, int64_t i) {
    return f->label[i];
}
const char *clt_image_folder_class(const clt_image_folder *f, int64_t label) {
    return f->classes.v[label];
}
