/* clt_record: writes every launch of a device to a folder: kernel, build options, arguments, sizes, and the
 * whole contents of its buffers before and after. The folder is enough to run the same launches elsewhere (on
 * another compiler, a simulator of another chip) and to compare word for word. It is for tiny models: each
 * launch reads its buffers twice. Off, it costs one comparison a launch.
 *
 * Switched on by clt_record_start, or for a whole program by CLTRAIN_RECORD=FOLDER.
 *
 * The folder:
 *     launches.jsonl   one JSON object a line. The first: {"cltrain_record":1,"version","device","driver"}.
 *                      Then one a launch, in order:
 *         "launch" number from 0; "file", "kernel": names; "source": file of this folder with the whole text;
 *         "options": all build options; "global": [1 to 3 sizes]; "local": the same or null (free choice)
 *         "buffers": [{"name","number","bytes","before","after"}]: files of this folder; "number" tells apart
 *             buffers of one name, and is the same in every launch that has the buffer;
 *         "args": in the kernel's order, each one of {"buffer":i} (index into buffers), {"buffer":null},
 *             {"i32":n}, {"u32":n}, {"u64":n}, {"f32":bits of the value}, {"local":bytes}
 *         Offsets into buffers are arguments of their own, as the kernels take them.
 *     <hash>.cl        kernel text with includes expanded; named by its contents, like
 *     <hash>.bin       contents of a buffer: what occurs twice is there once
 *
 * Launches of kernels that are not files under clkernels/ (probes), fills and copies are not recorded: what
 * they leave is in the next launch's "before". */
#ifndef CLT_RECORD_H
#define CLT_RECORD_H

#include "runtime/device/clt_device.h"

/* A launch whose buffers hold more than this is too large to record. */
#define CLT_RECORD_BYTES ((uint64_t)64 << 20)

/* From now on launches go to `dir` (made if absent; earlier records in it are appended to). A launch with
 * more than CLT_RECORD_BYTES of buffers is CLT_USAGE, or with skip_large is run, counted and left out.
 * CLT_USAGE if the device is recording already, CLT_IO if the folder cannot be written. */
clt_status clt_record_start(clt_device *dev, const char *dir, bool skip_large);

/* Ends it and says what was written (level info); nothing if the device is not recording. */
clt_status clt_record_stop(clt_device *dev);

/* Between pause(true) and pause(false) launches run unrecorded; pairs nest. Nothing without a recorder. */
void clt_record_pause(clt_device *dev, bool pause);

#endif
