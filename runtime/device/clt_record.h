/* clt_record: writes every launch of a device to a folder: kernel, build options, arguments, sizes, and the
 * whole contents of its buffers before and after. With the folder the same launches can be run elsewhere
 * (with another compiler, on a simulator of another chip) and compared bit for bit. It is for tiny models:
 * each launch reads its buffers twice and waits. A device that is not recording pays one comparison per
 * launch. Recording is turned on by clt_record_start, or for a whole program by CLTRAIN_RECORD=FOLDER.
 *
 * The folder:
 *     launches.jsonl   one JSON object per line. The first line of each recording is
 *                      {"cltrain_record":1,"version","device","driver"}; then one line per launch, in order:
 *         "launch": number in this recording, from 0; "file", "kernel": names; "source": file of this folder
 *             with the whole text; "options": the common build options and those of the kernel;
 *         "global": [1 to 3 sizes]; "local": the same, or null (the driver chooses)
 *         "buffers": [{"name","number","bytes","before","after"}]: files of this folder; "number" identifies
 *             a buffer in all launches of the recording, because several buffers may have the same name;
 *         "args": in the kernel's order, each {"buffer":i} (index into "buffers"), {"buffer":null},
 *             {"i32":n}, {"u32":n}, {"u64":n} or {"f32":bits of the value as an integer}
 *         Offsets into buffers are separate arguments, as the kernels take them.
 *     <hash>.cl        kernel text with includes expanded; the name is the hash of the contents, as with
 *     <hash>.bin       contents of a buffer: equal contents are stored once
 *
 * Not recorded, but executed: writes, fills, copies, launches of kernels from a text (clt_kernel_from_text),
 * and all but the first part of a launch that clt_launch_rows splits. Their effects are in the "before" of
 * the next launch. */
#ifndef CLT_RECORD_H
#define CLT_RECORD_H

#include "runtime/device/clt_device.h"

/* A launch is too large to record if its distinct buffers have more bytes than this together, or are more
 * than 32. */
#define CLT_RECORD_BYTES ((uint64_t)64 << 20)

/* Records launches to `dir` from now on. The folder is created if absent; a new recording is appended to an
 * earlier launches.jsonl. With skip_large false, a launch that is too large to record is not run and fails;
 * with true it is run and counted, but not recorded. CLT_USAGE if the device is recording already; errors of
 * runtime/base/clt_io.h, such as CLT_IO, if the folder cannot be written. While recording, a launch can also
 * return errors of reading buffers and of writing files. */
clt_status clt_record_start(clt_device *dev, const char *dir, bool skip_large);

/* Ends the recording and prints the number of launches and bytes (level info). Does nothing if the device is
 * not recording. An error means that the last lines may be missing. */
clt_status clt_record_stop(clt_device *dev);

/* Between clt_record_pause(dev, true) and clt_record_pause(dev, false) launches run without being recorded.
 * Pairs nest. Does nothing if the device is not recording. */
void clt_record_pause(clt_device *dev, bool pause);

#endif
