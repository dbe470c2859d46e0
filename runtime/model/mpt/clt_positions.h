/* clt_positions: the small host tables behind positions: ALiBi slopes, rotary cosines and sines, temperature
 * factors. Computed in double with clt_dmath, rounded to fp32 once. */
#ifndef CLT_POSITIONS_H
#define CLT_POSITIONS_H

#include "runtime/model/mpt/clt_mpt_config.h"

/* slopes[heads]. Press et al., "Train short, test long" (ICLR 2022), in LLM Foundry's form: 2^-(i * bias_max
 * / n2) for the next power of two n2 >= heads; where heads is no power of two, odd places first, then even
 * ones. */
void clt_alibi_slopes(int64_t heads, double bias_max, float *slopes);

/* cos_sin[seq][head_dim / 2][2]: cosine and sine of t * inv_freq(i), inv_freq = theta^(-2i/head_dim), with
 * the rope scaling that the configuration names (none, linear, dynamic, llama3). */
void clt_rope_table(const clt_mpt_config *cfg, int64_t seq, float *cos_sin);

/* factor[seq] = log(floor((t + 1) / floor_scale) + 1) * attn_scale + 1 (attn_temperature_tuning). */
void clt_temperature_factors(const clt_mpt_config *cfg, int64_t seq, float *factor);

#endif
