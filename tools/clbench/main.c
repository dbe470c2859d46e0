/* clbench: finds the benchmark and runs it. */
#include <string.h>

#include "tools/clbench/bench.h"
#include "collectives/clt_launch.h"
#include "runtime/device/clt_device.h"

static const struct {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
} benchmarks[] = {
    {"gemm", "matrix products, compared with OpenBLAS and CLBlast", bench_gemm},
    {"fp8", "products of 8-bit floating point and casts, beside the wider product", bench_fp8},
    {"gemm8", "products of 8-bit blocks and their quantisation, beside the wider product", bench_gemm8},
    {"attention", "flash attention, forward and backward", bench_attention},
    {"decode", "what the next token of a text takes in a layer", bench_decode},
    {"norm", "layer normalisation and sums down columns", bench_norm},
    {"loss", "softmax cross-entropy with its gradient", bench_loss},
    {"activation", "GELU and its gradient", bench_activation},
    {"optimizer", "AdamW and Lion over the parameter slab, the gradient's norm", bench_optimizer},
    {"copy", "copies, sums and casts: the usable bandwidth", bench_copy},
    {"link", "copies between the host's memory and a device", bench_link},
    {"step", "whole training steps of MPT models, MosaicML's throughput table", bench_step},
    {"schedule", "the time of a step on many ranks, predicted from measured rates", bench_schedule},
    {"numa", "one rank per NUMA node beside one rank in all, predicted from rates", bench_numa},
    {"tokenize", "token ids of a text file, one thread", bench_tokenize},
    {"pictures", "batches of pictures from a data set", bench_pictures},
    {"order", "the sample order of an epoch", bench_order},
    {"file", "optimizer state to a disk and back, beside plain reads and writes", bench_file},
    {"allreduce", "the sum over all ranks, beside MPI_Allreduce", bench_collective},
    {"reduce-scatter", "the same, each rank gets a part, beside MPI_Reduce_scatter_block", bench_collective},
    {"all-gather", "the parts of all ranks to all ranks, beside MPI_Allgather", bench_collective},
};

static void print_help(void) {
    puts("Examples\n"
         "  clbench gemm --suite mpt-125m --check\n"
         "  clbench gemm --suite square --anchor openblas --device pocl\n"
         "  clbench attention --json attention.json\n"
         "  clbench step --suite mpt --precision amp_bf16\n"
         "  mpirun -n 2 clbench allreduce\n"
         "\n"
         "Usage: clbench BENCHMARK [options]\n"
         "Measures kernels on one device, as fractions of its measured peak, and checks them against the "
         "oracle;\nmeasures what ranks exchange beside MPI's collectives.\n"
         "\n"
         "Benchmarks (clbench BENCHMARK --help says more)");
    for (size_t i = 0; i < CLT_COUNT_OF(benchmarks); i++)
        printf("  %-14s %s\n", benchmarks[i].name, benchmarks[i].summary);
    puts("\n"
         "Options\n"
         "  -h, --help     this text\n"
         "  -V, --version  version and git hash\n"
         "\n"
         "Exit codes: 0 done, 1 a check failed, 2 usage, 69 no device.");
}

static int run_words(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "--help";
    if (!strcmp(word, "-h") || !strcmp(word, "--help")) {
        print_help();
        return argc > 1 ? 0 : clt_status_exit_code(CLT_USAGE);
    }
    if (!strcmp(word, "-V") || !strcmp(word, "--version")) {
        printf("clbench %s (%s)\n", clt_version(), clt_version_git());
        return 0;
    }
    if (!strcmp(word, "openblas-rate")) return anchor_openblas_rate();
    const char *names[CLT_COUNT_OF(benchmarks)];
    for (size_t i = 0; i < CLT_COUNT_OF(benchmarks); i++) {
        names[i] = benchmarks[i].name;
        if (!strcmp(word, names[i])) return benchmarks[i].run(argc - 1, argv + 1);
    }
    const char *near = clt_nearest(word, names, CLT_COUNT_OF(names));
    clt_error(CLT_USAGE, "clbench: unknown benchmark '%s'%s%s (see clbench --help)", word,
              near ? "; did you mean " : "", near ? near : "");
    return clt_status_exit_code(CLT_USAGE);
}

int main(int argc, char **argv) {
    int code;
    if (clt_device_helper_main(argc, argv, &code)) return code;
    clt_launch_begin();
    clt_env_warn_unknown();
    return clt_launch_end(run_words(argc, argv));
}
