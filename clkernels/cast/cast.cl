/* Casts between fp32 and the 16-bit formats (bits in ushort): dst[i] = (type) src[i], i < count.
 *
 *   LANES, SEG   include/clt_lane.clh
 *
 * Global size {work-items}. Requires nothing. Memory bound: 6 bytes per element. */
#include "../include/clt_cast.clh"
#include "../include/clt_lane.clh"

#if LANES == 16
#define FULL(c, end) (c + 16 <= end)
#define NARROW(fn, c)                                                                                        \
    CLT_VSTORE16(ushort, convert_ushort16(CLT_PASTE(fn, 16)(vload16(0, src + c))), dst + c)
#define WIDEN(fn, c) CLT_VSTORE16(float, CLT_PASTE(fn, 16)(convert_uint16(vload16(0, src + c))), dst + c)
#elif LANES == 8
#define FULL(c, end) 1
#define NARROW(fn, c) CLT_STORE8(CLT_PASTE(TYPE_OF_, fn), CLT_LOAD8(0, src + c), dst + c)
#define WIDEN(fn, c) clt_store8_0(CLT_LOAD8(CLT_PASTE(TYPE_OF_, fn), src + c), dst + c)
#define TYPE_OF_clt_f32_to_bf16 1
#define TYPE_OF_clt_f32_to_f16 2
#define TYPE_OF_clt_bf16_to_f32 1
#define TYPE_OF_clt_f16_to_f32 2
#else
#define FULL(c, end) 0
#define NARROW(fn, c)
#define WIDEN(fn, c)
#endif

#define DEFINE_CAST(name, FROM, TO, STEP, fn)                                                                \
    __kernel void name(ulong count, __global const FROM *src, ulong src_off, __global TO *dst,               \
                       ulong dst_off) {                                                                      \
        src += src_off;                                                                                      \
        dst += dst_off;                                                                                      \
        CLT_SPAN(c, end, count) {                                                                            \
            if (FULL(c, end)) {                                                                              \
                STEP(fn, c);                                                                                 \
            } else {                                                                                         \
                for (size_t i = c; i < end && i < c + LANES; i++) dst[i] = (TO)fn(src[i]);                   \
            }                                                                                                \
        }                                                                                                    \
    }

DEFINE_CAST(cast_f32_bf16, float, ushort, NARROW, clt_f32_to_bf16)
DEFINE_CAST(cast_f32_f16, float, ushort, NARROW, clt_f32_to_f16)
DEFINE_CAST(cast_bf16_f32, ushort, float, WIDEN, clt_bf16_to_f32)
DEFINE_CAST(cast_f16_f32, ushort, float, WIDEN, clt_f16_to_f32)
