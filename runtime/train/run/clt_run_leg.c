#include "runtime/train/run/clt_run_leg.h"

#include <string.h>

#include "runtime/base/clt_env.h"

int64_t clt_hop_id(const char *text) {
    static const uint64_t mask = ((uint64_t)1 << 48) - 1; /* exact as a double */
    return (int64_t)(clt_hash(text, strlen(text)).lo & mask);
}

char *clt_hop_env(int64_t id, int64_t leg) {
    return clt_format("%lld:%lld", (long long)id, (long long)leg);
}

clt_status clt_run_leg_from_env(clt_run_leg *l) {
    const char *text = clt_env(CLT_ENV_HOP);
    long long id = 0, leg = 0;
    int used = 0;
    if (!text) return CLT_OK;
    if (sscanf(text, "%lld:%lld%n", &id, &leg, &used) != 2 || text[used] || leg < 0)
        return clt_error(
            CLT_USAGE,
            "CLTRAIN_HOP is '%s', which is invalid: only cltrain launch --hop sets this variable; unset it",
            text);
    l->hop = true;
    l->id = id;
    l->leg = leg;
    return CLT_OK;
}

/* The checkpoint's number of this name as an integer; -1 if it has none or it is no count. */
static int64_t number(const clt_checkpoint_state *s, const char *name) {
    static const double most = 9007199254740992.0; /* 2^53 */
    for (int i = 0; i < s->number_count; i++) {
        double v = s->numbers[i].value;
        if (strcmp(s->numbers[i].name, name) == 0 && v >= 0 && v <= most) return (int64_t)v;
    }
    return -1;
}

void clt_run_leg_take(clt_run_leg *l, const clt_checkpoint_state *s) {
    if (!l->hop || number(s, "hop_id") != l->id || number(s, "hop_leg") != l->leg) return;
    l->begun = (clt_timestamp){.batch = number(s, "hop_batch"),
                               .sample = number(s, "hop_sample"),
                               .token = number(s, "hop_token"),
                               .wall_seconds = (double)number(s, "hop_seconds")};
    l->goes_on = true;
}

void clt_run_leg_start(clt_run_leg *l, const clt_timestamp *now, clt_time length) {
    l->limited = length.value > 0;
    l->length = length;
    if (!l->goes_on) l->begun = *now;
}

bool clt_run_leg_over(const clt_run_leg *l, const clt_timestamp *now) {
    clt_time_unit u = l->length.unit;
    return l->limited && clt_timestamp_get(now, u) - clt_timestamp_get(&l->begun, u) >= l->length.value;
}

int clt_run_leg_numbers(const clt_run_leg *l, const clt_timestamp *now,
                        clt_ckpt_number out[CLT_HOP_NUMBERS]) {
    if (!l->hop) return 0;
    bool over = clt_run_leg_over(l, now);
    const clt_timestamp *begun = over ? now : &l->begun;
    const clt_ckpt_number numbers[CLT_HOP_NUMBERS] = {
        {"hop_id", (double)l->id},           {"hop_leg", (double)(l->leg + over)},
        {"hop_batch", (double)begun->batch}, {"hop_sample", (double)begun->sample},
        {"hop_token", (double)begun->token}, {"hop_seconds", (double)(int64_t)begun->wall_seconds}};
    memcpy(out, numbers, sizeof numbers);
    return CLT_HOP_NUMBERS;
}

clt_status clt_hop_position(const char *folder, int64_t id, int64_t *leg, int64_t *batch, bool *other) {
    char *path = NULL;
    clt_ckpt_reader *reader = NULL;
    *leg = *batch = 0;
    *other = false;
    CLT_TRY(clt_ckpt_find_newest(NULL, folder, &path));
    if (!path) return CLT_OK;
    clt_status st = clt_ckpt_open(path, &reader);
    clt_free(path);
    CLT_TRY(st);
    const clt_checkpoint_state *s = clt_ckpt_state(reader);
    *batch = s->batch;
    *other = number(s, "hop_id") != id;
    if (!*other) *leg = CLT_MAX(number(s, "hop_leg"), (int64_t)0);
    clt_ckpt_close(reader);
    return CLT_OK;
}
