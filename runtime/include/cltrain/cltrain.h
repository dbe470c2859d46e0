/* cltrain: trains MPT language models on any device with an OpenCL driver.
 *
 * Introduction
 * ------------
 * A run is described by a configuration: YAML in the format of MosaicML's LLM Foundry, from a file or a
 * string, plus settings such as "max_duration=100ba" that change single keys (docs/configuration.md). The
 * library opens a device, compiles the kernels for the model, reads the data set, and trains. Checkpoints do
 * not depend on the device or the number of ranks: a stopped run resumes from its save_folder on any device.
 * With exact numerics the resumed run is bit-identical to an uninterrupted one.
 *
 *   - Simple API: one call trains a run, one call generates text with a trained model.
 *   - Explicit API: functions on a cltrain_run open it, train some steps at a time, evaluate, save, hash,
 *     generate text, and close it.
 *   - Experimental API: needs CLTRAIN_EXPERIMENTAL and may change in any version.
 *
 * By default the library installs no signal handlers, reads no environment variables (the OpenCL loader and
 * drivers read theirs), and writes nothing to stdout or stderr. A run writes files into its save_folder, or
 * into runs/RUN_NAME if save_folder is not set. Every run compiles its kernels again unless cltrain_run_cache
 * sets a folder for them.
 *
 * Errors: every function that can fail returns a cltrain_status; cltrain_error_message returns the text: what
 * happened, where, and what to do. Outputs are set only on CLTRAIN_OK. After a failed cltrain_run_open,
 * _train, _evaluate, _hash or _read_tensor the run can only be closed; after a failed _save or _generate it
 * stays open. CLTRAIN_BAD_ARGUMENT changes nothing.
 *
 * Memory: when device or host memory runs out, functions return CLTRAIN_NO_MEMORY. Large requests of host
 * memory fail at once. Small ones are served from a reserve of 4 MiB, and the call returns CLTRAIN_NO_MEMORY
 * as soon as the run is in a consistent state. Only if the reserve is used up, too, does the library print
 * one line to stderr and abort the process.
 *
 * Threads: a run may be used by one thread at a time; different runs may be used by different threads at the
 * same time. Only cltrain_run_stop may be called while another thread uses the run. Callbacks may be called
 * from threads of the library, one at a time per run. A callback may call no function for its run except
 * cltrain_run_stop.
 *
 * ABI: while the SONAME stays the same, functions and values are only added, never changed or removed.
 * Structs that the caller allocates have reserved members for additions. */
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

/* The version of the linked library, to be compared with the macros above. */
CLTRAIN_API unsigned cltrain_version_number(void);
CLTRAIN_API const char *cltrain_version_string(void); /* "0.2.0" */

/* Values equal the exit codes of the cltrain program, except CLTRAIN_NO_MEMORY. */
typedef enum {
    CLTRAIN_OK = 0,
    CLTRAIN_FAILED = 1,       /* a failure that no other value describes */
    CLTRAIN_BAD_ARGUMENT = 2, /* invalid call: a NULL, a setting without '=', a call in the wrong order */
    CLTRAIN_BAD_DATA = 65,    /* damaged or unusable data set or checkpoint */
    CLTRAIN_NO_DEVICE = 69,   /* no suitable device */
    CLTRAIN_NO_MEMORY = 71,   /* not enough host or device memory */
    CLTRAIN_IO = 74,          /* a file operation failed */
    CLTRAIN_STOPPED = 75, /* the run ended before max_duration: a stop was requested, or its time was over */
    CLTRAIN_BAD_CONFIG = 78 /* the configuration is invalid or unsupported */
} cltrain_status;

/* Short English name ("bad data"). Never NULL. */
CLTRAIN_API const char *cltrain_status_name(cltrain_status status);

/* The message of the last call on this thread that did not return CLTRAIN_OK, "" if there was none. Never
 * NULL; valid until the next call on this thread. */
CLTRAIN_API const char *cltrain_error_message(void);

/* --- simple API --- */

/* Trains the run of a YAML file until its max_duration; resumes it if its save_folder has a checkpoint.
 * `settings` are `count` strings "key.sub=value"; the last setting of a key counts. May be NULL if count is
 * 0. */
CLTRAIN_API cltrain_status cltrain_train(const char *config_path, const char *const *settings, size_t count);

/* Receives `bytes` bytes of text, not 0-terminated. A piece may end within a UTF-8 sequence. */
typedef void (*cltrain_text_fn)(void *context, const char *text, size_t bytes);

/* Parameters of text generation, with their defaults. Start from cltrain_generation_default(). */
typedef struct {
    int64_t max_new_tokens;  /* 128 */
    double temperature;      /* 0.8; 0: always take the most likely token */
    int64_t top_k;           /* 40; 0: all tokens */
    int64_t seed;            /* 17: the same seed gives the same text */
    int stop_at_end_of_text; /* 1 */
    int32_t reserved[7];
} cltrain_generation;
CLTRAIN_API cltrain_generation cltrain_generation_default(void);

/* Continues `prompt` with the model in `source`: a checkpoint, a folder of checkpoints (uses the newest valid
 * one), or a Hugging Face folder. `options` NULL: the defaults. The prompt is not part of the output. */
CLTRAIN_API cltrain_status cltrain_generate(const char *source, const char *prompt,
                                            const cltrain_generation *options, cltrain_text_fn text,
                                            void *context);

/* --- explicit API: preparing a run --- */

typedef struct cltrain_run cltrain_run;

/* Creates a run without a configuration. Free it with cltrain_run_close. */
CLTRAIN_API cltrain_status cltrain_run_create(cltrain_run **run);

/* Sets the configuration, from a file or as text. Exactly one of the two must be called, once. */
CLTRAIN_API cltrain_status cltrain_run_config_file(cltrain_run *run, const char *path);
CLTRAIN_API cltrain_status cltrain_run_config_text(cltrain_run *run, const char *yaml);

/* Overrides a key of the configuration: "key.sub=value". The last setting of a key counts. cltrain_run_open
 * checks key and value. */
CLTRAIN_API cltrain_status cltrain_run_set(cltrain_run *run, const char *setting);

typedef enum {
    CLTRAIN_LOG_ERROR,
    CLTRAIN_LOG_WARNING,
    CLTRAIN_LOG_INFO,
    CLTRAIN_LOG_DEBUG
} cltrain_log_level;

/* Receives a message without a newline at the end; a message may have several lines. */
typedef void (*cltrain_log_fn)(void *context, cltrain_log_level level, const char *text);
/* Passes messages of `level` and more severe ones to fn; NULL (the default): messages are dropped. */
CLTRAIN_API cltrain_status cltrain_run_on_log(cltrain_run *run, cltrain_log_level level, cltrain_log_fn fn,
                                              void *context);

/* Receives every row of the run's metrics.jsonl when it is written, as the text of one JSON object: a
 * training step (has "loss"), an evaluation (has "eval_loss"), or an event (has "event"). */
typedef void (*cltrain_metrics_fn)(void *context, const char *json);
CLTRAIN_API cltrain_status cltrain_run_on_metrics(cltrain_run *run, cltrain_metrics_fn fn, void *context);

/* Selects the device: a part of a platform's or device's name, or the indices "P:D" that `cltrain devices`
 * prints. Overrides cltrain.device of the configuration. Default: the fastest kind of device available. */
CLTRAIN_API cltrain_status cltrain_run_device(cltrain_run *run, const char *pattern);

/* Sets a folder that caches compiled kernels and measurements; later runs start much faster. Default: no
 * cache. */
CLTRAIN_API cltrain_status cltrain_run_cache(cltrain_run *run, const char *folder);

/* Makes the run read the environment variables of `cltrain --help-env`, use the default cache folder, and
 * join the ranks of an MPI launcher, as the cltrain program does. If a run of several ranks loses a rank, it
 * ends the process, because MPI cannot recover. */
CLTRAIN_API cltrain_status cltrain_run_use_environment(cltrain_run *run);

/* --- explicit API: running --- */

/* Reads the configuration, opens device, data and model, and loads the newest checkpoint of save_folder, or
 * load_path, or initial weights. After a failure the run can only be closed. */
CLTRAIN_API cltrain_status cltrain_run_open(cltrain_run *run);

/* Trains up to `steps` more steps (batches); 0: until max_duration. Runs the evaluations and saves the
 * checkpoints that become due. At max_duration also runs the last evaluation, saves the last checkpoint and
 * sets cltrain_position.finished; further calls do nothing. CLTRAIN_STOPPED: a stop was requested or the time
 * is over; the run has saved if it has a save_folder, and can only be closed. */
CLTRAIN_API cltrain_status cltrain_run_train(cltrain_run *run, int64_t steps);

/* Requests that the run save and stop as soon as possible. Callable from any thread until the run is closed;
 * does nothing before cltrain_run_open. */
CLTRAIN_API void cltrain_run_stop(cltrain_run *run);

/* The progress of a run. */
typedef struct {
    int64_t epoch, batch, sample, token; /* finished, since the run's first start */
    double loss;                         /* of the last step; NaN before the first one */
    double train_seconds;                /* spent in training, sum over all processes of the run */
    int32_t finished;                    /* max_duration is reached */
    int32_t resumed;                     /* the run started from a checkpoint */
    int64_t reserved[8];
} cltrain_position;
CLTRAIN_API cltrain_status cltrain_run_position(cltrain_run *run, cltrain_position *position);

typedef struct {
    double loss, perplexity, accuracy; /* over all targets */
    int64_t samples;
    int64_t reserved[8];
} cltrain_evaluation;
/* Evaluates the current weights on the evaluation data with this label (NULL: the first of the
 * configuration). */
CLTRAIN_API cltrain_status cltrain_run_evaluate(cltrain_run *run, const char *label,
                                                cltrain_evaluation *result);

/* Writes a checkpoint of the last finished step into save_folder and waits until it is durable.
 * CLTRAIN_BAD_CONFIG if save_folder is not set. After a failure the run stays open. */
CLTRAIN_API cltrain_status cltrain_run_save(cltrain_run *run);

/* The hashes that `cltrain ckpt hash` prints for a checkpoint of this state: 32 hex digits each for weights
 * and optimizer state. Equal states have equal hashes on every device. In a run of several ranks all of them
 * call it, as they call _train and _save. */
typedef struct {
    char weights[33], optimizer[33];
} cltrain_hash;
CLTRAIN_API cltrain_status cltrain_run_hash(cltrain_run *run, cltrain_hash *hash);

/* Continues `prompt` with the current weights; otherwise as cltrain_generate. */
CLTRAIN_API cltrain_status cltrain_run_generate(cltrain_run *run, const char *prompt,
                                                const cltrain_generation *options, cltrain_text_fn text,
                                                void *context);

/* Closes a run in any state and frees it, without saving. NULL is allowed. */
CLTRAIN_API void cltrain_run_close(cltrain_run *run);

/* --- experimental API --- */

#ifdef CLTRAIN_EXPERIMENTAL

/* The number of weight tensors; name, number of elements and shape (*dims <= 4 dimensions) of tensor i.
 * elements, shape and dims may be NULL. The name is valid until the run is closed. */
CLTRAIN_API cltrain_status cltrain_run_tensor_count(cltrain_run *run, int *count);
CLTRAIN_API cltrain_status cltrain_run_tensor(cltrain_run *run, int i, const char **name, uint64_t *elements,
                                              int64_t shape[4], int *dims);
/* Copies all elements of tensor i as fp32 into `values` [elements]. In a run of several ranks all of them
 * call it. */
CLTRAIN_API cltrain_status cltrain_run_read_tensor(cltrain_run *run, int i, float *values);

#endif

#ifdef __cplusplus
}
#endif

#endif
