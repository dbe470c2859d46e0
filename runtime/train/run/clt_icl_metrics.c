/* Metrics of in-context-learning tasks, as LLM Foundry defines them. */
#include <math.h>

#include "runtime/train/run/clt_icl_run.h"

static void count_confidence(clt_icl_sums *x, double confidence, bool right) {
    /* NaN, from weights that are no numbers, counts as no confidence. */
    const int b = confidence > 0 ? (int)CLT_MIN(confidence * CLT_ICL_BUCKETS, CLT_ICL_BUCKETS - 1) : 0;
    x->in_bucket[b]++;
    x->right_in_bucket[b] += right;
}

/* The row with the smallest mean loss per token; the first of equal ones. */
static int64_t choose(const clt_icl_item *item, const clt_icl_score *score) {
    int64_t best = 0;
    double least = INFINITY;
    for (size_t i = 0; i < item->n_rows; i++) {
        const double loss = -score[i].logprob / (double)(item->row[i].n - item->row[i].first);
        if (loss < least) {
            least = loss;
            best = (int64_t)i;
        }
    }
    return best;
}

/* The confidence of a choice is the share of the largest mean probability in their sum, and this largest one
 * decides whether it counts as right. */
static void count_choice(clt_icl_sums *x, const clt_icl_item *item, const clt_icl_score *score) {
    int64_t best = 0;
    double sum = 0;
    for (size_t i = 0; i < item->n_rows; i++) {
        sum += score[i].mean;
        if (score[i].mean > score[best].mean) best = (int64_t)i;
    }
    count_confidence(x, sum > 0 ? score[best].mean / sum : 0, best == item->gold);
}

void clt_icl_sums_add(clt_icl_sums *x, const clt_icl_set *s, const clt_icl_item *item,
                      const clt_icl_score *score, int64_t *chosen, bool *correct) {
    if (s->task->kind == CLT_ICL_LM) {
        *correct = score[0].greedy;
        count_confidence(x, score[0].confidence, *correct);
    } else {
        *chosen = choose(item, score);
        *correct = *chosen == item->gold;
        count_choice(x, item, score);
    }
    x->total++;
    x->correct += *correct;
}

static double calibration_error(const clt_icl_sums *x) {
    double sum = 0;
    for (int i = 0; i < CLT_ICL_BUCKETS; i++) {
        if (x->in_bucket[i] == 0) continue;
        const double n = (double)x->in_bucket[i];
        sum += n / (double)x->total * fabs((double)x->right_in_bucket[i] / n - (i + 0.5) / CLT_ICL_BUCKETS);
    }
    return sum;
}

double clt_icl_sums_metric(const clt_icl_sums *x, clt_icl_metric m) {
    if (m == CLT_ICL_LM_CALIBRATION || m == CLT_ICL_CHOICE_CALIBRATION) return calibration_error(x);
    return x->total ? (double)x->correct / (double)x->total : 0;
}
