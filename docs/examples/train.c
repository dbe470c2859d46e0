/* Trains the run of a YAML file through the library, evaluates it, and lets the model write a text.
 *     cc train.c $(pkg-config --cflags --libs cltrain) -o train && ./train demo/run.yaml max_duration=200ba
 */
#include <cltrain/cltrain.h>
#include <stdio.h>

static void on_metrics(void *context, const char *json) {
    (void)context;
    puts(json);
}

static void on_text(void *context, const char *text, size_t bytes) {
    fwrite(text, 1, bytes, context);
}

int main(int argc, char **argv) {
    cltrain_run *run = NULL;
    cltrain_evaluation eval;
    cltrain_generation options = cltrain_generation_default();
    cltrain_status st = cltrain_run_create(&run);
    if (st == CLTRAIN_OK && argc > 1) st = cltrain_run_config_file(run, argv[1]);
    for (int i = 2; i < argc && st == CLTRAIN_OK; i++) st = cltrain_run_set(run, argv[i]);
    if (st == CLTRAIN_OK) st = cltrain_run_on_metrics(run, on_metrics, NULL);
    if (st == CLTRAIN_OK) st = cltrain_run_open(run); /* resumes if there is a checkpoint */
    if (st == CLTRAIN_OK) st = cltrain_run_train(run, 0);
    if (st == CLTRAIN_OK) st = cltrain_run_evaluate(run, NULL, &eval);
    if (st == CLTRAIN_OK) printf("loss on unseen text: %.4f\n", eval.loss);
    options.max_new_tokens = 100;
    if (st == CLTRAIN_OK) st = cltrain_run_generate(run, "The License", &options, on_text, stdout);
    if (st != CLTRAIN_OK) fprintf(stderr, "%s: %s\n", cltrain_status_name(st), cltrain_error_message());
    cltrain_run_close(run);
    return st;
}
