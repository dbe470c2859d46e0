/* The times of a step's phases. Work is only queued, so a step whose phases are timed waits for the device
 * wherever one phase follows another. */
#include "runtime/train/engine/clt_engine_internal.h"

void clt_engine_time_phases(clt_engine *e, clt_phase_times *out) {
    e->timed.out = out;
    e->timed.phase = CLT_PHASES;
    *out = (clt_phase_times){0};
}

clt_status clt_engine_enter(clt_engine *e, clt_engine_phase phase) {
    if (!e->timed.out || e->timed.phase == phase) return CLT_OK;
    CLT_TRY(clt_device_finish(clt_ops_device(e->ops)));
    const double now = clt_now();
    if (e->timed.phase < CLT_PHASES) e->timed.out->seconds[e->timed.phase] += now - e->timed.start;
    e->timed.phase = phase;
    e->timed.start = now;
    return CLT_OK;
}

clt_status clt_engine_turn(void *engine, bool backward) {
    return clt_engine_enter(engine, backward ? CLT_PHASE_BACKWARD : CLT_PHASE_FORWARD);
}

clt_status clt_engine_leave_phases(clt_engine *e) {
    if (!e->timed.out) return CLT_OK;
    CLT_TRY(clt_engine_enter(e, CLT_PHASE_EXCHANGE));
    CLT_TRY(clt_engine_settle(e));
    return clt_engine_enter(e, CLT_PHASES);
}
