/* cltrain devices: the devices of all platforms, what probing found, the quirks of their drivers, and which
 * numerics they run. */
#include <string.h>

#include "tools/cltrain/commands.h"
#include "tools/cltrain/devices_rows.h"
#include "runtime/base/clt_json.h"
#include "runtime/base/clt_options.h"
#include "runtime/base/clt_pci.h"
#include "runtime/device/clt_device.h"
#include "runtime/device/clt_facts.h"
#include "runtime/device/clt_quirks.h"

static const char *type_name(clt_device_type t) {
    return t == CLT_DEVICE_GPU ? "GPU" : t == CLT_DEVICE_CPU ? "CPU" : "accelerator";
}

static const char *yes(bool b) {
    return b ? "yes" : "no";
}

/* A device of the list, and its kernel variants if they were asked for. */
typedef struct {
    clt_device_facts facts;
    clt_device *dev;
    clt_ops *ops; /* numerics fast; NULL: not asked for, or not opened */
} shown;

/* Opens a device, so that its facts are probed. One that cannot be opened keeps what its driver says. */
static clt_status open_device(shown *s, bool again, bool rows) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "%d:%d", s->facts.platform_index, s->facts.device_index);
    clt_device_params p = clt_device_params_default();
    p.pattern = pattern;
    p.reprobe = again;
    if (clt_device_open(&p, &s->dev) != CLT_OK) return CLT_OK;
    s->facts = *clt_device_get_facts(s->dev);
    clt_ops_params o = clt_ops_params_default();
    o.numerics = CLT_FAST;
    return rows ? clt_ops_create(s->dev, &o, &s->ops) : CLT_OK;
}

static void close_device(shown *s) {
    clt_ops_destroy(s->ops);
    clt_device_close(s->dev);
}

/* The index of the device that a run without --device takes, or -1. */
static int default_device(const shown *list, int n) {
    clt_device_params p = clt_device_params_default();
    clt_device *dev;
    int found = -1;
    if (clt_device_open(&p, &dev) != CLT_OK) return -1;
    const clt_device_facts *f = clt_device_get_facts(dev);
    for (int i = 0; i < n; i++)
        if (list[i].facts.platform_index == f->platform_index &&
            list[i].facts.device_index == f->device_index)
            found = i;
    clt_device_close(dev);
    return found;
}

static void print_probed(const clt_device_facts *f, const char *bar) {
    char local[32], claim[32];
    if (!f->probed) {
        printf("%s      not probed    the device could not be opened; the error is above\n", bar);
        return;
    }
    printf("%s      local memory  %s in a kernel (driver says %s%s)\n", bar,
           clt_human_bytes((double)f->local_mem, local), clt_human_bytes((double)f->local_mem_claimed, claim),
           f->local_is_global ? ", in main memory" : "");
    printf("%s      arithmetic    half %s, fp64 %s, division %s, sqrt %s, fma %s, denormals %s\n", bar,
           yes(f->half_arithmetic), yes(f->fp64), f->exact_div ? "exact" : "not exact",
           f->exact_sqrt ? "exact" : "not exact", f->exact_fma ? "exact" : "not exact",
           f->denormals ? "kept" : "flushed");
    if (f->vector_bits) printf("%s      registers     %u bits\n", bar, f->vector_bits);
    const char *ptx = f->tile16_wave == 64 ? ", MFMA"
                      : f->tile16_wave     ? ", WMMA"
                      : !f->inline_ptx     ? ""
                      : f->wgmma           ? ", inline PTX with mma, wgmma"
                      : f->mma_bf16        ? ", inline PTX with mma"
                      : f->mma_f16         ? ", inline PTX with mma of fp16"
                                           : ", inline PTX";
    if (f->subgroups)
        printf("%s      sub-groups    %u wide%s%s\n", bar, f->subgroup_size,
               f->block_reads ? ", block reads" : "", ptx);
    else
        printf("%s      sub-groups    none%s\n", bar, ptx);
    if (f->copy_gbps > 0) printf("%s      pinned copy   %.1f GB/s to the device\n", bar, f->copy_gbps);
    if (f->exact)
        printf("%s      runs          numerics: exact yes, fast yes\n", bar);
    else
        printf("%s      runs          numerics: exact no (%s), fast yes\n", bar, f->exact_reason);
}

static void print_pci(const clt_device_facts *f, const char *bar) {
    const int node = clt_pci_node(f->pci, NULL);
    if (!*f->pci) return;
    printf("%s      PCI           %s", bar, f->pci);
    if (node >= 0) printf(", NUMA node %d", node);
    puts("");
}

static void print_quirks(const clt_device_facts *f, const char *bar) {
    const char *label = "quirks";
    for (int q = 0; q < CLT_QUIRKS; q++) {
        const clt_quirk_row *row = clt_quirk_of(f, q);
        if (!row) continue;
        clt_debug("%s: the quirk %s is in effect: %s", f->name, clt_quirk_name(q), row->why);
        printf("%s      %-13s %s: %s\n", bar, label, clt_quirk_name(q), clt_quirk_effect(q));
        label = "";
    }
}

static void print_tree(const shown *list, int n, int preferred) {
    for (int i = 0; i < n; i++) {
        const clt_device_facts *f = &list[i].facts;
        char memory[32], most[32];
        bool first = i == 0 || list[i - 1].facts.platform_index != f->platform_index;
        bool last = i + 1 == n || list[i + 1].facts.platform_index != f->platform_index;
        const char *bar = last ? "    " : " |  ";
        if (first) printf("Platform #%d: %s\n", f->platform_index, f->platform);
        printf(" %s Device #%d: %s (%s)%s\n", last ? "`--" : "+--", f->device_index, f->name,
               type_name(f->type), i == preferred ? "  <- default" : "");
        printf("%s      --device      %d:%d or a part of the name\n", bar, f->platform_index,
               f->device_index);
        printf("%s      driver        %s; %s; %s\n", bar, f->driver, f->version, f->c_version);
        printf("%s      units         %u at %u MHz, work-groups up to %u\n", bar, f->compute_units,
               f->clock_mhz, f->max_work_group);
        printf("%s      memory        %s, largest buffer %s\n", bar,
               clt_human_bytes((double)f->global_mem, memory), clt_human_bytes((double)f->max_alloc, most));
        print_pci(f, bar);
        print_probed(f, bar);
        print_quirks(f, bar);
        if (list[i].ops) devices_print_rows(list[i].ops, bar);
    }
}

static void json_text(clt_str *b, const char *key, const char *value) {
    clt_str_addf(b, "\"%s\":", key);
    clt_json_escape(b, value);
    clt_str_add(b, ",");
}

static void json_bool(clt_str *b, const char *key, bool value) {
    clt_str_addf(b, "\"%s\":%s,", key, value ? "true" : "false");
}

static void json_device(clt_str *b, const shown *s, bool preferred) {
    const clt_device_facts *f = &s->facts;
    clt_str_addf(b, "{\"index\":\"%d:%d\",", f->platform_index, f->device_index);
    json_text(b, "platform", f->platform);
    json_text(b, "name", f->name);
    json_text(b, "vendor", f->vendor);
    json_text(b, "driver", f->driver);
    json_text(b, "version", f->version);
    json_text(b, "c_version", f->c_version);
    json_text(b, "type", type_name(f->type));
    json_bool(b, "default", preferred);
    clt_str_addf(b,
                 "\"global_mem\":%llu,\"max_alloc\":%llu,\"local_mem_claimed\":%llu,\"compute_units\":%u,"
                 "\"max_work_group\":%u,\"clock_mhz\":%u,\"native_float_width\":%u,",
                 (unsigned long long)f->global_mem, (unsigned long long)f->max_alloc,
                 (unsigned long long)f->local_mem_claimed, f->compute_units, f->max_work_group, f->clock_mhz,
                 f->native_float_width);
    json_text(b, "pci", f->pci);
    clt_str_addf(b, "\"numa_node\":%d,", clt_pci_node(f->pci, NULL));
    json_bool(b, "probed", f->probed);
    char text[32];
    for (int i = 1; i < CLT_FACTS; i++)
        clt_str_addf(b, "\"%s\":%s,", clt_fact_name(i), clt_fact_text(f, i, text));
    json_text(b, "exact_reason", f->exact_reason);
    clt_str_add(b, "\"quirks\":[");
    const char *comma = "";
    for (int q = 0; q < CLT_QUIRKS; q++) {
        if (!clt_quirk_of(f, q)) continue;
        clt_str_addf(b, "%s\"%s\"", comma, clt_quirk_name(q));
        comma = ",";
    }
    clt_str_add(b, "]");
    if (s->ops) {
        clt_str_add(b, ",\"rows\":");
        devices_json_rows(s->ops, b);
    }
    clt_str_add(b, "}");
}

static void print_json(const shown *list, int n, int preferred) {
    clt_str b = {0};
    clt_str_add(&b, "[");
    for (int i = 0; i < n; i++) {
        if (i) clt_str_add(&b, ",\n ");
        json_device(&b, &list[i], i == preferred);
    }
    clt_str_add(&b, "]");
    puts(b.s);
    clt_str_free(&b);
}

static clt_status show(bool json, bool again, bool rows) {
    clt_device_facts *found;
    int n;
    CLT_TRY(clt_device_list(false, &found, &n));
    shown *list = clt_calloc((size_t)n, sizeof *list);
    clt_status st = CLT_OK;
    for (int i = 0; i < n && st == CLT_OK; i++) {
        list[i].facts = found[i];
        st = open_device(&list[i], again, rows);
    }
    clt_free(found);
    if (st == CLT_OK) (json ? print_json : print_tree)(list, n, default_device(list, n));
    for (int i = 0; i < n; i++) close_device(&list[i]);
    clt_free(list);
    return st;
}

int cmd_devices(int argc, char **argv) {
    bool json = false, again = false, rows = false;
    const clt_option options[] = {
        {"json", 0, CLT_OPT_FLAG, &json, NULL, "print a JSON list, one object for each device"},
        {"probe", 0, CLT_OPT_FLAG, &again, NULL, "probe again instead of showing the stored facts"},
        {"rows", 0, CLT_OPT_FLAG, &rows, NULL,
         "also list which kernel variants each device runs, and what faster ones lack"},
        CLT_DISABLE_ROW_OPTION,
    };
    const clt_command command = {
        .name = "cltrain devices",
        .usage = "[--json] [--probe] [--rows]",
        .summary = "Lists OpenCL platforms and devices: what the driver reports, what small programs that "
                   "ran on the device found, known quirks of the driver, and which numerics it runs.",
        .examples =
            "  cltrain devices\n  cltrain devices --json\n  cltrain devices --rows --disable-row wgmma\n",
        .options = options,
        .n_options = CLT_COUNT_OF(options)};
    clt_strv rest = {0};
    int code = clt_options_parse(&command, argc, argv, &rest);
    if (code < 0 && rest.n > 0) code = clt_options_fail(&command, "'%s' is not expected", rest.v[0]);
    clt_strv_free(&rest);
    if (code >= 0) return code;
    const clt_status st = show(json, again, rows);
    char *present = st == CLT_OK ? clt_device_unregistered() : NULL;
    if (present) clt_info("more drivers are present:%s", present);
    clt_free(present);
    return clt_status_exit_code(st);
}
