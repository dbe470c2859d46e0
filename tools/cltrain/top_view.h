/* top_view: the text of `cltrain top`: a run's numbers as lines for a terminal of a given size. */
#ifndef CLTRAIN_TOP_VIEW_H
#define CLTRAIN_TOP_VIEW_H

#include "runtime/train/config/clt_time.h"
#include "tools/cltrain/report_data.h"

typedef struct {
    const char *name;
    const metrics *m;
    clt_time max_duration; /* value 0: unknown */
    double age;            /* seconds since the file changed; below 0: unknown */
} top_run;

typedef struct {
    int columns, rows; /* rows 0: as many as there are */
    bool utf8;         /* draw with block elements; false: ASCII */
    bool live;         /* say which key ends it */
} top_screen;

/* Appends lines that are no wider than the screen, each with a newline. */
void top_draw(const top_run *run, const top_screen *screen, clt_str *out);

#endif
