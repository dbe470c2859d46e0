/* clt_ptx: the second pass, for instructions that NVIDIA's OpenCL front end does not accept.
 *
 * NVIDIA's front end writes PTX for the plain architecture (.target sm_90), and its assembler then refuses
 * the instructions that only the architecture's own target (sm_90a) has: wgmma, setmaxnreg. A kernel writes
 * such an instruction as a PTX comment inside inline assembly,
 *
 *     __asm__ volatile("//@wgmma.fence.sync.aligned;" ::: "memory");
 *
 * with its operands, which the front end replaces by register names as in any inline assembly. The program is
 * built in two passes: the first is an ordinary build, whose "binary" is PTX text; the text is rewritten
 * here, and the second pass assembles it. clt_kernel_get and clt_kernel_try do this for a source with the
 * mark on a device with inline PTX.
 *
 * Each line needs its own mark ("//@a;\n//@b;"), because the comment of the first pass ends with the line.
 *
 * "//@entry TEXT" anywhere in a kernel puts TEXT, a directive such as `.reqnctapercluster 2, 1, 1`, in front
 * of the kernel's body.
 *
 * "//@less first" anywhere in a kernel with the roles
 *
 *     if (...) { setmaxnreg.dec ... } else { setmaxnreg.inc ... }
 *
 * puts the branch with setmaxnreg.dec in front of the other one. NVIDIA's front end writes the other order,
 * with which its assembler gives the second role no more registers than the kernel has at its entry, and
 * spills. */
#ifndef CLT_PTX_H
#define CLT_PTX_H

#include "runtime/base/clt_base.h"

#define CLT_PTX_MARK "//@"

/* Whether this text (OpenCL C or PTX) has a mark, so that it needs the second pass. Build options may remove
 * marked lines (#if): then the OpenCL C has marks and the PTX made from it has none. */
bool clt_ptx_is_marked(const char *text);

/* Whether `text` is PTX text without a mark, so that no second pass is needed. */
bool clt_ptx_is_whole(const char *text);

/* The PTX text of the second pass, made from that of the first: marks removed, target with the suffix a; the
 * caller frees it with clt_free. NULL, with *why set to a constant text, if `ptx` is not PTX text, its target
 * is older than sm_90, or the roles of a kernel with "//@less first" are not found; otherwise *why is
 * unchanged. */
char *clt_ptx_rewrite(const char *ptx, const char **why);

#endif
