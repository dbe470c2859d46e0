/* test_util: what the test programs share: every device there is, guarded buffers, random data, and comparing
 * words.
 *
 *     int main(int argc, char **argv)
 *     {
 *         tu_init(argc, argv);                       // --tiny: small shapes and no checks of variants
 * (Oclgrind) const struct CMUnitTest tests[] = {cmocka_unit_test(norm_matches_oracle)}; return tu_run(tests,
 * CLT_COUNT_OF(tests)); // also closes the devices
 *     }
 *
 * Devices: all of all platforms that pass the probes of `numerics: exact`; one that does not is named and
 * left out. CLTRAIN_DEVICE narrows them to one. No device at all fails the program. */
#ifndef TEST_UTIL_H
#define TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "runtime/model/clt_model.h"
#include "runtime/ops/clt_op_slab.h"
#include "runtime/ops/clt_variant.h"

/* Reads --tiny, --own-rows, --row PATTERN and --random N with --seed S. With --own-rows tu_each_variant runs
 * only a table's rows with type=cpu, or the first row of a table without them (test/ops/oclgrind.sh). With
 * --row, for work on a kernel, only rows whose id matches the shell pattern. */
void tu_init(int argc, char **argv);
/* --random N: how many cases to draw instead of those of the program, if it can; 0: none. For devices on
 * which the fixed cases have passed. */
int tu_random_cases(void);
/* The next number from 0 to n - 1 that --seed gives; and whether it is 0. */
int64_t tu_draw(int64_t n);
bool tu_one_in(int64_t n);
/* With --random: prints what runs now, at once, so that it is known if the device does not end it. */
void tu_say_random(const char *what);
/* Whether a row's id matches --row; true without it. */
bool tu_wants_row(const char *id);
/* Shapes of at most 64^3 are asked for: by --tiny, or by TEST_TINY=1 in the environment (sanitizers), which
 * leaves the checks of variants on. */
bool tu_tiny(void);
/* All combinations are asked for, by TEST_COMPLETE=1 in the environment (test/long/complete_ops.sh). */
bool tu_complete(void);
/* Whether tu_each_variant runs rows of a CPU device that is not the one whose rows get all cases (PoCL's, or
 * the first one), and tu_complete is false. */
bool tu_second_cpu(void);
/* Fewer cases will do: with --tiny; with tu_second_cpu, because the same kernels get all cases on the other
 * device; and on a CPU for a row that CPUs use only if their own fail, unless tu_complete: it gets all cases
 * on the devices that it is for. */
bool tu_brief(void);
/* Runs the group and closes the devices: the exit code of the program. Use through tu_run. */
int tu_run_group(const char *name, const struct CMUnitTest *tests, size_t n);
#define tu_run(tests, n) tu_run_group(__FILE__, tests, n)

/* --- devices (opened at the first call; of CPUs PoCL's comes first) --- */
int tu_device_count(void);
clt_device *tu_device(int i);
clt_ops *tu_ops(int i); /* numerics exact; variants are checked before use, but not with --tiny */
/* The same with numerics fast, also under an interpreter: unchecked rows. The caller destroys it. */
clt_ops *tu_fast_ops(int i);
const char *tu_device_name(int i);

/* Calls run(device, variant id) with the variant forced, for every row of `op` that is usable on each device;
 * with tu_second_cpu for rows that are for CPUs or that the other device lacks. Prints the names. Buffers
 * that run leaves are freed after each call. On a CPU the rows that it does not use by default are compiled
 * without optimization, unless tu_complete. */
void tu_each_variant(const char *op, void (*run)(int device, const char *id));
/* Inside `run`, before a case with a program of its own: on a CPU only every third case of the row that CPUs
 * use is compiled with optimization, beginning with the first, unless tu_complete or an interpreter runs it.
 */
void tu_next_case(void);
/* Before a case of a long list: whether it is left out. An interpreter (test/ops/oclgrind.sh) and emulated
 * warps (test/emulated.sh) take every fifth one of each row, in the next row others, unless tu_complete. */
bool tu_left_out(void);
/* Whether a device is a CPU, but not the one whose rows get all cases, and tu_complete is false. */
bool tu_spare_cpu(int device);
/* Whether row i of a table differs from an earlier one only in its tiles: the source, the body and the head
 * sizes are the same. Always false where warps are not emulated (test/emulated.sh), and with tu_complete. */
bool tu_only_other_tiles(const clt_variant *row, int i);
/* After tu_init: on CPUs kernels are built without optimization, unless tu_complete. For tests of host code
 * that compare a device with itself, since most of their time would be the compilers'. Not with
 * tu_each_variant. */
void tu_compile_fast(void);
/* Whether the row that tu_each_variant forces now has the body `wide`, which takes only calls whose sizes,
 * row distances and offsets are multiples of 8 elements (norms: rows of a multiple of 64), whatever its id:
 * buffers start at multiples of 64 then, and the test must give it such shapes, since a forced row that does
 * not do a call is an error. */
bool tu_wide(void);

/* --- data: the same numbers for the same seed everywhere --- */
/* What AdamW and Lion of the trainer take in step `step` (from 1): in double, each value rounded once. No
 * decay. */
clt_optimizer_group tu_adam_group(double lr, double beta1, double beta2, double eps, int step);
float *tu_random(size_t n, uint64_t seed, float scale); /* uniform in [-scale, scale); free with clt_free */
/* A mixture of +-0, denormals, tiny, ordinary and huge values (up to about 1e30, no inf, no NaN). */
float *tu_extreme(size_t n, uint64_t seed);
uint32_t tu_random_word(uint64_t seed, uint64_t index);
int64_t tu_random_below(uint64_t seed, uint64_t index, int64_t n); /* in [0, n) */

/* --- buffers with guard words before and after the data --- */
enum { TU_OFFSET = 37 }; /* place of the data in its buffer, in elements: no power of two (tu_wide: 64) */
clt_ref tu_upload(int device, const float *data, size_t n);
clt_ref tu_upload_i32(int device, const int32_t *data, size_t n);
clt_ref tu_upload_at(int device, const void *data, size_t n, uint64_t offset); /* 4-byte elements */
/* n elements that hold a signalling pattern (NaN), to see what was written. */
clt_ref tu_blank(int device, size_t n);
/* The n elements of an uploaded ref (made by the functions above); fails the test if a guard word changed. */
float *tu_download(clt_ref r, size_t n);
int32_t *tu_download_i32(clt_ref r, size_t n);
/* The same for tensors stored as `type`: values are rounded to it on the way up and widened on the way down.
 * 16-bit data starts at an odd element, and its neighbours in the first and last word are guards too. */
clt_ref tu_upload_as(int device, clt_dtype type, const float *data, size_t n);
/* Rounds `data` itself first, so that an oracle sees what the device has. */
clt_ref tu_upload_rounded(int device, clt_dtype type, float *data, size_t n);
float *tu_download_as(clt_ref r, clt_dtype type, size_t n);
/* Writes NaN to every element of every tensor of a slab. */
void tu_fill_nan(const clt_slab *s);
/* Checks the guards of all living buffers and frees them (and what tu_download returned). */
void tu_release(void);

/* A model from the text of its JSON, with ' for "; free it with clt_model_config_free. */
clt_model_config *tu_model(const char *text);

/* --- comparing --- */
/* The same bits (a NaN equals any NaN), else a message with the first difference and their number. */
void tu_assert_words(const char *what, const float *got, const float *want, size_t n);
/* Only the given columns of each row; what lies between the rows must still be as uploaded: compare it
 * yourself. */
void tu_assert_matrix(const char *what, const float *got, const float *want, int64_t rows, int64_t cols,
                      int64_t ld);
void tu_assert_i32(const char *what, const int32_t *got, const int32_t *want, size_t n);
/* |got - want| <= tolerance * max(1, |want|) in double, for formula checks; returns the largest such ratio.
 */
double tu_assert_close(const char *what, const float *got, const double *want, size_t n, double tolerance);
void tu_assert_ok(clt_status st, const char *what);

/* The largest magnitude; 0 of no elements. */
double tu_largest(const float *x, size_t n);
/* The largest difference divided by the largest magnitude of what is expected. */
double tu_relative(const float *got, const float *want, size_t n);

#endif
