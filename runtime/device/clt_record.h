/* clt_record: writes every launch of a device to a folder: kernel, build options, arguments, sizes, and the
 * whole contents of its buffers before and after. With the folder the same launches can be run elsewhere
 * (with another compiler, on a simulator of another chip) and compared bit for bit. It is for tiny models:
 * each launch reads its buffers twice. A device that is not recording pays one comparison per launch.
 *
 * It is turned on by clt_record_start, or for a whole program by CLTRAIN_RECORD=FOLDER.
 *
 * The folder:
 *     launches.jsonl   one JSON object per line. The first: {"cltrain_record":1,"version","device","driver"}.
 *                      Then one per launch, in order:
 *         "launch" number from 0; "file", "kernel": names; "source": file of this folder with the whole text;
 *         "options": all build options; "global": [1 to 3 sizes]; "local": the same or null (free choice)
 *         "buffers": [{"name","number","bytes","before","after"}]: files of this folder; "number" identifies
 *             a buffer in all launches, as several may have one name;
 *         "args": in the kernel's order, each one of {"buffer":i} (index into buffers), {"buffer":null},
 *             {"i32":n}, {"u32":n}, {"u64":n}, {"f32":bits of the value}, {"local":bytes}
 *         Offsets into buffers are arguments of their own, as the kernels take them.
 *     <hash>.cl        kernel text with includes expanded; the name is the hash of the contents, as with
 *     <hash>.bin       contents of a buffer: equal contents are stored once
 *
 * Fills, copies, and launches of kernels from a text are not recorded: their effects are in the "before" of
 * the next launch. */
#ifndef CLT_RECORD_H
#define CLT_RECORD_H

#include "runtime/device/clt_device.h"

/* A launch whose buffers hold more than this is too large to record. */
#define CLT_RECORD_BYTES ((uint64_t)64 << 20)

/* Records launches to `dir` from now on. The folder is created if absent; an earlier record in it is appended
 * to. A launch with more than CLT_RECORD_BYTES of buffers is CLT_USAGE; with skip_large it is run and
 * counted, not recorded. CLT_USAGE if the device is recording already, CLT_IO if the folder cannot be
 * written. */
clt_status clt_record_start(clt_device *dev, const char *dir, bool skip_large);

/* Ends the recording and prints what was written (level info). Does nothing if the device is not recording.
 */
clt_status clt_record_stop(clt_device *dev);

/* Between pause(true) and pause(false) launches are not recorded; pairs nest. Does nothing if the device is
 * not recording. */
void clt_record_pause(clt_device *dev, bool pause);

#endif
