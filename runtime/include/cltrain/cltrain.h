/* cltrain: trains large models on any device that has an OpenCL driver.
 *
 * Introduction
 * ------------
 * A run is described by a configuration: the YAML of MosaicML's LLM Foundry, from a file or a string, plus
 * settings such as "max_duration=100ba" that change single keys. The library opens a device, compiles its
 * kernels for the model, reads the data set, and trains. Checkpoints belong to no device and no number of
 * ranks: a run that was stopped resumes from its save_folder on any device, and in the exact modes with the
 * same bits as if it had never stopped.
 *
 *   - Simple API: one call trains a run, one call continues a text with a trained model.
 *   - Explicit API: a cltrain_run is opened, trained for some steps at a time, evaluated, saved, hashed,
 * asked for text, and closed.
 *   - Experimental API: behind CLTRAIN_EXPERIMENTAL, may change in any version.
 *
 * The keys of a configuration are in docs/configuration.md, the files of a run in docs/launching.md.
 *
 * What the library does not do unless it is asked: it does not end the process, installs no signal handlers,
 * reads no environment variables (the OpenCL loader and drivers read theirs), and writes nothing to stdout or
 * stderr. A run writes files below its save_folder, or below runs/RUN_NAME without one. Kernels are compiled
 * anew for every run unless cltrain_run_cache names a folder for them.
 *
 * Errors: every function that can fail returns a cltrain_status. cltrain_error_message is the text that
 * belongs to it: what happened, where, and what to do. Outputs are set only on CLTRAIN_OK. When the host's
 * memory runs out, functions return CLTRAIN_NO_MEMORY, and the run can only be closed.
 *
 * Threads: one run may be used by one thread at a time; different runs by different threads at the same time.
 * Only cltrain_run_stop may be called for a run that another thread is using. Callbacks run on threads of the
 * library, one at a time for each run, and must not call functions for the same run but cltrain_run_stop.
 *
 * ABI: functions and values are added, never changed or removed, as long as the SONAME stays. Structs that
 * the caller allocates have reserved members for that. */
#ifndef CLTRAIN_H
#define CLTRAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define CLTRAIN_API __attribute__((visibility("default")))
#else
#define CLTRAIN_API
#endif

/* --- version and status --- */

#define CLTRAIN_VERSION_MAJOR 0
#define CLTRAIN_VERSION_MINOR 2
#define CLTRAIN_VERSION_PATCH 0
#define CLTRAIN_VERSION_NUMBER                                                                               \
    (CLTRAIN_VERSION_MAJOR * 10000 + CLTRAIN_VERSION_MINOR * 100 + CLTRAIN_VERSION_PATCH)

/* Of the library that runs: compare it with the macros above. */
CLTRAIN_API unsigned cltrain_version_number(void);
CLTRAIN_API const char *cltrain_version_string(void); /* "0.2.0" */

/* Values are those of the program's exit codes where it has one. */
typedef enum {
    CLTRAIN_OK = 0,
    CLTRAIN_FAILED = 1,       /* something failed that no other value names */
    CLTRAIN_BAD_ARGUMENT = 2, /* the call itself is wrong: a NULL, a setting without '=', a closed run */
    CLTRAIN_BAD_DATA = 65,    /* damaged or unusable data set or checkpoint */
    CLTRAIN_NO_DEVICE = 69,   /* no device that can do this */
    CLTRAIN_NO_MEMORY = 71,   /* host or device memory is not enough */
    CLTRAIN_IO = 74,          /* a file could not be read or written */
    CLTRAIN_STOPPED = 75,     /* the run ended before max_duration: it was asked to, or its time was over */
    CLTRAIN_BAD_CONFIG = 78   /* the configuration is wrong or asks for what cannot be done */
} cltrain_status;

/* Short English name ("bad data"). Never NULL. */
CLTRAIN_API const char *cltrain_status_name(cltrain_status status);

/* What the last call on this thread that did not return CLTRAIN_OK says. Never NULL; valid until the next
 * call on this thread. */
CLTRAIN_API const char *cltrain_error_message(void);

/* --- simple API --- */

/* Trains the run of a YAML file until its max_duration, or resumes it from its save_folder. `settings` has
 * `count` texts "key.sub=value", later ones win; NULL with 0. */
CLTRAIN_API cltrain_status cltrain_train(const char *config_path, const char *const *settings, size_t count);

/* Receives text: `bytes` bytes at `text`, not terminated, cut at any byte. */
typedef void (*cltrain_text_fn)(void *context, const char *text, size_t bytes);

/* How a text is continued. Start from cltrain_generation_default. */
typedef struct {
    int64_t max_new_tokens;  /* 128 */
    double temperature;      /* 0.8; 0: always the most likely token */
    int64_t top_k;           /* 40; 0: all tokens */
    int64_t seed;            /* 17: the same seed gives the same text */
    int stop_at_end_of_text; /* 1 */
    int32_t reserved[7];
} cltrain_generation;
CLTRAIN_API cltrain_generation cltrain_generation_default(void);

/* Continues `prompt` with the model in `source`: a checkpoint, a folder of checkpoints (the newest valid
 * one), or a Hugging Face folder. `options` NULL: the defaults. The prompt is not repeated. */
CLTRAIN_API cltrain_status cltrain_generate(const char *source, const char *prompt,
                                            const cltrain_generation *options, cltrain_text_fn text,
                                            void *context);

/* --- explicit API: preparing a run --- */

typedef struct cltrain_run cltrain_run;

/* A run that knows nothing yet. Free it with cltrain_run_close. CLTRAIN_NO_MEMORY. */
CLTRAIN_API cltrain_status cltrain_run_create(cltrain_run **run);

/* The configuration, from a file or as text: one of them, once, before cltrain_run_open. */
CLTRAIN_API cltrain_status cltrain_run_config_file(cltrain_run *run, const char *path);
CLTRAIN_API cltrain_status cltrain_run_config_text(cltrain_run *run, const char *yaml);

/* One setting "key.sub=value" over the configuration; later ones win. Checked by cltrain_run_open. */
CLTRAIN_API cltrain_status cltrain_run_set(cltrain_run *run, const char *setting);

typedef enum {
    CLTRAIN_LOG_ERROR,
    CLTRAIN_LOG_WARNING,
    CLTRAIN_LOG_INFO,
    CLTRAIN_LOG_DEBUG
} cltrain_log_level;

/* Gets messages up to `level`, without a newline at the end; a message may have several lines. */
typedef void (*cltrain_log_fn)(void *context, cltrain_log_level level, const char *text);
CLTRAIN_API cltrain_status cltrain_run_on_log(cltrain_run *run, cltrain_log_level level, cltrain_log_fn fn,
                                              void *context);

/* Gets every row of the run's metrics.jsonl as it is written, as the text of one JSON object: a training step
 * ("loss"), an evaluation ("eval_loss"), or an event ("event"). */
typedef void (*cltrain_metrics_fn)(void *context, const char *json);
CLTRAIN_API cltrain_status cltrain_run_on_metrics(cltrain_run *run, cltrain_metrics_fn fn, void *context);

/* Which device: a part of a platform's or device's name, or "P:D" indices as `cltrain devices` prints them;
 * over the configuration's cltrain.device. Default: the fastest kind there is. */
CLTRAIN_API cltrain_status cltrain_run_device(cltrain_run *run, const char *pattern);

/* A folder for compiled kernels and measured choices; later runs start much faster. Default: none. */
CLTRAIN_API cltrain_status cltrain_run_cache(cltrain_run *run, const char *folder);

/* Lets the run read the environment variables of `cltrain --help-env`, as the program does, with the default
 * folder of the kernel cache, and join the ranks of an MPI launcher. A run of several ranks whose peer is
 * lost ends the process: MPI has no other way. */
CLTRAIN_API cltrain_status cltrain_run_use_environment(cltrain_run *run);

/* --- explicit API: running --- */

/* Reads the configuration, opens device, data and model, and loads the newest checkpoint of save_folder, or
 * load_path, or initial weights. After a failure the run can only be closed. */
CLTRAIN_API cltrain_status cltrain_run_open(cltrain_run *run);

/* Trains up to `steps` more steps (batches); 0: until max_duration. Evaluations and checkpoints that fall due
 * on the way are made. At max_duration the last evaluation and the last checkpoint are made, too, and
 * cltrain_position.finished is set; further calls do nothing. CLTRAIN_STOPPED: the run was asked to stop or
 * its time is over; it has saved if it has a save_folder, and can only be closed. */
CLTRAIN_API cltrain_status cltrain_run_train(cltrain_run *run, int64_t steps);

/* Asks the run to save and stop at the next opportunity. From any thread, also from a signal handler's
 * thread, as long as the run is not closed. */
CLTRAIN_API void cltrain_run_stop(cltrain_run *run);

/* Where a run stands. */
typedef struct {
    int64_t epoch, batch, sample, token; /* finished, since the run's first start */
    double loss;                         /* of the last step; NaN before the first one */
    double train_seconds;                /* spent in training, over all processes of the run */
    int32_t finished;                    /* max_duration is reached */
    int32_t resumed;                     /* it continued from a checkpoint */
    int64_t reserved[8];
} cltrain_position;
CLTRAIN_API cltrain_status cltrain_run_position(cltrain_run *run, cltrain_position *position);

typedef struct {
    double loss, perplexity, accuracy; /* over all targets */
    int64_t samples;
    int64_t reserved[8];
} cltrain_evaluation;
/* Evaluates the weights as they are on the evaluation data with this label (NULL: the first one). */
CLTRAIN_API cltrain_status cltrain_run_evaluate(cltrain_run *run, const char *label,
                                                cltrain_evaluation *result);

/* Writes a checkpoint of the last finished step into save_folder and waits until it is durable.
 * CLTRAIN_BAD_CONFIG without a save_folder. */
CLTRAIN_API cltrain_status cltrain_run_save(cltrain_run *run);

/* The state's hash, as `cltrain ckpt hash` prints it for a checkpoint: 32 hex digits of the weights and of
 * the optimizer's state. Equal states have equal hashes on every device. */
typedef struct {
    char weights[33], optimizer[33];
} cltrain_hash;
CLTRAIN_API cltrain_status cltrain_run_hash(cltrain_run *run, cltrain_hash *hash);

/* Continues `prompt` with the weights as they are; as cltrain_generate. */
CLTRAIN_API cltrain_status cltrain_run_generate(cltrain_run *run, const char *prompt,
                                                const cltrain_generation *options, cltrain_text_fn text,
                                                void *context);

/* Closes a run, whatever has become of it; nothing is saved. NULL is allowed. */
CLTRAIN_API void cltrain_run_close(cltrain_run *run);

/* --- experimental API --- */

#ifdef CLTRAIN_EXPERIMENTAL

/* Number of weight tensors; name, elements and shape (up to 4 dimensions, *dims of them) of tensor i. The
 * name is valid until the run is closed. */
CLTRAIN_API cltrain_status cltrain_run_tensor_count(cltrain_run *run, int *count);
CLTRAIN_API cltrain_status cltrain_run_tensor(cltrain_run *run, int i, const char **name, uint64_t *elements,
                                              int64_t shape[4], int *dims);
/* All elements of tensor i as fp32, into `values` [elements]. */
CLTRAIN_API cltrain_status cltrain_run_read_tensor(cltrain_run *run, int i, float *values);

#endif

#ifdef __cplusplus
}
#endif

#endif
