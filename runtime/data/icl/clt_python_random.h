/* clt_python_random: Python's random.Random and the order in which Python walks a set of small integers, as
 * far as evaluation tasks need them: LLM Foundry draws the examples of a prompt with sample and choice, keeps
 * them in a set, and writes them in the set's order. Results are those of CPython 3.11. Everything
 * else in cltrain uses clt_philox.
 *
 * Sources: M. Matsumoto and T. Nishimura, MT19937 with initialisation by array (2002); CPython's
 * Lib/random.py (sample, _randbelow_with_getrandbits) and Objects/setobject.c. */
#ifndef CLT_PYTHON_RANDOM_H
#define CLT_PYTHON_RANDOM_H

#include "runtime/base/clt_base.h"

enum { CLT_PYTHON_RANDOM_WORDS = 624 };
typedef struct {
    uint32_t word[CLT_PYTHON_RANDOM_WORDS];
    int next; /* index of the next word */
} clt_python_random;

/* random.Random(seed); like Python's, a negative seed gives the same numbers as its absolute value. */
void clt_python_random_seed(clt_python_random *r, int64_t seed);
/* random(): [0, 1), 53 bits */
double clt_python_random_double(clt_python_random *r);
/* choice(range(n)), n at least 1 */
int64_t clt_python_random_choice(clt_python_random *r, int64_t n);
/* sample(range(n), k), 0 <= k <= n: writes k different numbers to `out` in the order in which they are drawn.
 * CLT_NO_MEMORY. */
clt_status clt_python_random_sample(clt_python_random *r, int64_t n, int64_t k, int64_t *out);

/* A set of integers >= 0 that is walked in Python's order. Start from {0}. */
typedef struct {
    int64_t *slot; /* [mask + 1]: a member, or one of two marks */
    size_t mask, filled, used;
} clt_python_set;

/* Adds v if it is not a member. */
void clt_python_set_add(clt_python_set *s, int64_t v);
/* Removes v if it is a member. */
void clt_python_set_remove(clt_python_set *s, int64_t v);
bool clt_python_set_has(const clt_python_set *s, int64_t v);
/* Writes the s->used members to `out` in the order in which Python walks the set. */
void clt_python_set_list(const clt_python_set *s, int64_t *out);
void clt_python_set_free(clt_python_set *s);

#endif
