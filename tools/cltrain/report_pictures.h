/* report_pictures: the part of the page with pictures and predictions, from predictions.json of a run. */
#ifndef CLTRAIN_REPORT_PICTURES_H
#define CLTRAIN_REPORT_PICTURES_H

#include "runtime/base/clt_base.h"

extern const char pictures_style[]; /* for the page's <style> */

/* Adds FOLDER/predictions.json; nothing if there is none. What is damaged in it is left out. */
void pictures_add(clt_str *out, const char *folder);

#endif
