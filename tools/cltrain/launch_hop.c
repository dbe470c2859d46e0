#include "tools/cltrain/launch_hop.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/clt_group.h"
#include "tools/cltrain/launch_run.h"
#include "runtime/train/run/clt_run_leg.h"
#include "tools/cltrain/train_args.h"

typedef struct {
    char *text;   /* as given */
    char *device; /* for --device; "" for the default */
    char *length; /* for --stop-after */
    int64_t ranks;
} hop_leg;

typedef struct {
    hop_leg *leg;
    int n;
    int64_t id;
    const clt_strv *command;
    const char *folder;
    clt_launch_leg_fn run;
    void *ctx;
} hop;

/* --- parsing --- */

static bool parse_leg(const char *text, size_t n, hop_leg *l) {
    clt_time time;
    l->text = clt_strndup(text, n);
    char *colon = strrchr(l->text, ':'); /* a device may be "0:1" */
    if (!colon) return false;
    l->length = clt_strdup(colon + 1);
    l->device = clt_strndup(l->text, (size_t)(colon - l->text));
    l->ranks = 1;
    char *star = strrchr(l->device, '*');
    if (star) *star = 0;
    for (char *s = l->device; *s; s++)
        if (*s == '+') *s = ',';
    return (!star || clt_parse_i64(star + 1, &l->ranks)) && l->ranks >= 1 &&
           l->ranks <= CLT_GROUP_MAX_RANKS && clt_time_parse_length(l->length, &time);
}

static clt_status parse(const char *spec, hop *h) {
    h->id = clt_hop_id(spec);
    for (const char *at = spec;; at++) {
        size_t n = strcspn(at, ",");
        h->leg = clt_realloc(h->leg, (size_t)(h->n + 1) * sizeof *h->leg);
        hop_leg *l = &h->leg[h->n++];
        *l = (hop_leg){0};
        while (n && *at == ' ') at++, n--;
        if (!parse_leg(at, n, l))
            return clt_error(CLT_USAGE,
                             "--hop: '%s' is not a valid leg: use DEVICE*RANKS:TIME, for example "
                             "nvidia*1:200ba (units of time: ba, ep, sp, tok, dur, sec)",
                             l->text);
        at += n;
        if (!*at) return CLT_OK;
    }
}

static void free_hop(hop *h) {
    for (int i = 0; i < h->n; i++) {
        clt_free(h->leg[i].text);
        clt_free(h->leg[i].device);
        clt_free(h->leg[i].length);
    }
    clt_free(h->leg);
}

/* --- checks before the first leg --- */

static clt_status check_train(const hop *h, const clt_train_args *a) {
    if (a->opt.device || a->opt.stop_after.value || a->opt.stop_after.fraction)
        return clt_error(CLT_USAGE, "--hop sets the devices and durations: remove %s",
                         a->opt.device ? "--device" : "--stop-after");
    if (!a->cfg->save_folder)
        return clt_error(CLT_BAD_CONFIG, "--hop saves a checkpoint after each leg: set save_folder");
    if (!a->cfg->autoresume)
        return clt_error(CLT_BAD_CONFIG,
                         "--hop resumes from the newest checkpoint in save_folder and needs autoresume: "
                         "remove save_overwrite, save_weights_only or autoresume: false, which turn it off");
    for (int i = 0; i < h->n; i++) CLT_TRY(clt_config_check_run(a->cfg, (int)h->leg[i].ranks));
    return CLT_OK;
}

/* In a child process: opening drivers leaves threads behind, which would disturb the launcher. */
static clt_status check_devices(const hop *h) {
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        clt_status st = CLT_OK;
        for (int i = 0; i < h->n && st == CLT_OK; i++) {
            const char *device = h->leg[i].device;
            st = clt_device_check_pattern(*device ? device : NULL, (int)h->leg[i].ranks);
            if (st != CLT_OK) clt_error(st, "leg %d (%s) cannot run here", i + 1, h->leg[i].text);
        }
        _exit(clt_status_exit_code(st));
    }
    if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
        return CLT_OK; /* the leg will report it */
    return WEXITSTATUS(status) == 0 ? CLT_OK : CLT_NO_DEVICE;
}

/* --- legs --- */

static int run_leg(const hop *h, int64_t number) {
    const hop_leg *l = &h->leg[number % h->n];
    char *env = clt_hop_env(h->id, number);
    clt_strv words = {0};
    for (size_t i = 0; i < h->command->n; i++) clt_strv_add(&words, h->command->v[i]);
    clt_strv_add(&words, "--stop-after");
    clt_strv_add(&words, l->length);
    clt_info("hop: leg %lld of %d, round %lld: %s", (long long)(number % h->n + 1), h->n,
             (long long)(number / h->n + 1), l->text);
    setenv(clt_env_name(CLT_ENV_HOP), env, 1);
    int code = h->run(h->ctx, l->ranks, *l->device ? l->device : NULL, &words);
    clt_strv_free(&words);
    clt_free(env);
    return code;
}

static void explain(const hop *h, int64_t number, int64_t batch, int code) {
    const hop_leg *l = &h->leg[number % h->n];
    long long place = (long long)(number % h->n + 1), round = (long long)(number / h->n + 1);
    if (code == clt_status_exit_code(CLT_AGAIN))
        clt_info("hop: stopped in leg %lld, round %lld (%s), at batch %lld; rerun the same command to resume "
                 "this leg",
                 place, round, l->text, (long long)batch);
    else
        clt_error(CLT_FAIL,
                  "hop: leg %lld, round %lld (%s) exited with code %d; the newest checkpoint is of batch "
                  "%lld. Fix the error above and rerun the same command to resume this leg. To continue "
                  "without this device, use cltrain train with another --device, or another --hop",
                  place, round, l->text, code, (long long)batch);
}

/* Runs legs until the run is done. The newest checkpoint determines the next leg. */
static int run_legs(const hop *h) {
    int64_t leg = 0, batch = 0, next;
    bool other;
    clt_status st = clt_hop_position(h->folder, h->id, &leg, &batch, &other);
    if (st == CLT_OK && other)
        clt_info("hop: the checkpoint of batch %lld does not belong to this hop; starting with its first leg",
                 (long long)batch);
    while (st == CLT_OK) {
        int code = run_leg(h, leg);
        if (code == 0) return 0;
        st = clt_hop_position(h->folder, h->id, &next, &batch, &other);
        bool ended = code == clt_status_exit_code(CLT_AGAIN) && st == CLT_OK && next == leg + 1;
        if (!ended) {
            explain(h, leg, batch, code);
            return code;
        }
        leg = next;
        if (clt_launch_run_asked()) {
            explain(h, leg, batch, code);
            return code;
        }
    }
    return clt_status_exit_code(st);
}

int clt_launch_hop(const char *spec, const clt_strv *command, bool here, clt_launch_leg_fn run, void *ctx) {
    hop h = {.command = command, .run = run, .ctx = ctx};
    clt_train_args a = {0};
    clt_status st = parse(spec, &h);
    if (st == CLT_OK && strcmp(command->v[0], "train") != 0)
        st = clt_error(CLT_USAGE, "--hop runs train, not %s", command->v[0]);
    int code = st == CLT_OK ? clt_train_args_read((int)command->n, command->v, &a) : clt_status_exit_code(st);
    if (code < 0) {
        h.folder = a.cfg->save_folder;
        st = check_train(&h, &a);
        if (st == CLT_OK && here) st = check_devices(&h);
        code = st == CLT_OK ? run_legs(&h) : clt_status_exit_code(st);
    }
    clt_train_args_free(&a);
    free_hop(&h);
    return code;
}
