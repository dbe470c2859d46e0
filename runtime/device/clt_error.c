/* Names of OpenCL's errors, and the message of a call that failed. */
#include "runtime/device/clt_device_private.h"

#include <string.h>

static const struct {
    cl_int code;
    const char *name;
} cl_names[] = {
#define NAME(x)                                                                                              \
    { x, #x }
    NAME(CL_DEVICE_NOT_FOUND),
    NAME(CL_DEVICE_NOT_AVAILABLE),
    NAME(CL_COMPILER_NOT_AVAILABLE),
    NAME(CL_MEM_OBJECT_ALLOCATION_FAILURE),
    NAME(CL_OUT_OF_RESOURCES),
    NAME(CL_OUT_OF_HOST_MEMORY),
    NAME(CL_PROFILING_INFO_NOT_AVAILABLE),
    NAME(CL_MEM_COPY_OVERLAP),
    NAME(CL_BUILD_PROGRAM_FAILURE),
    NAME(CL_MAP_FAILURE),
    NAME(CL_MISALIGNED_SUB_BUFFER_OFFSET),
    NAME(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST),
    NAME(CL_COMPILE_PROGRAM_FAILURE),
    NAME(CL_LINKER_NOT_AVAILABLE),
    NAME(CL_LINK_PROGRAM_FAILURE),
    NAME(CL_DEVICE_PARTITION_FAILED),
    NAME(CL_INVALID_VALUE),
    NAME(CL_INVALID_PLATFORM),
    NAME(CL_INVALID_DEVICE),
    NAME(CL_INVALID_CONTEXT),
    NAME(CL_INVALID_QUEUE_PROPERTIES),
    NAME(CL_INVALID_COMMAND_QUEUE),
    NAME(CL_INVALID_HOST_PTR),
    NAME(CL_INVALID_MEM_OBJECT),
    NAME(CL_INVALID_BINARY),
    NAME(CL_INVALID_BUILD_OPTIONS),
    NAME(CL_INVALID_PROGRAM),
    NAME(CL_INVALID_PROGRAM_EXECUTABLE),
    NAME(CL_INVALID_KERNEL_NAME),
    NAME(CL_INVALID_KERNEL),
    NAME(CL_INVALID_ARG_INDEX),
    NAME(CL_INVALID_ARG_VALUE),
    NAME(CL_INVALID_ARG_SIZE),
    NAME(CL_INVALID_KERNEL_ARGS),
    NAME(CL_INVALID_WORK_DIMENSION),
    NAME(CL_INVALID_WORK_GROUP_SIZE),
    NAME(CL_INVALID_WORK_ITEM_SIZE),
    NAME(CL_INVALID_GLOBAL_OFFSET),
    NAME(CL_INVALID_EVENT_WAIT_LIST),
    NAME(CL_INVALID_EVENT),
    NAME(CL_INVALID_OPERATION),
    NAME(CL_INVALID_BUFFER_SIZE),
    NAME(CL_INVALID_GLOBAL_WORK_SIZE),
    NAME(CL_INVALID_PROPERTY),
    NAME(CL_INVALID_COMPILER_OPTIONS),
    NAME(CL_INVALID_LINKER_OPTIONS),
    NAME(CL_INVALID_DEVICE_PARTITION_COUNT),
#undef NAME
};

const char *clt_cl_name(cl_int e) {
    for (size_t i = 0; i < CLT_COUNT_OF(cl_names); i++)
        if (cl_names[i].code == e) return cl_names[i].name;
    return "unknown error";
}

void clt_cl_count(clt_device *dev, cl_int e) {
    dev->counters.shortages += e == CL_OUT_OF_HOST_MEMORY || e == CL_OUT_OF_RESOURCES ||
                               e == CL_MEM_OBJECT_ALLOCATION_FAILURE || e == CL_DEVICE_NOT_AVAILABLE ||
                               e == CL_COMPILER_NOT_AVAILABLE;
}

clt_status clt_cl_error(clt_device *dev, cl_int e, const char *what) {
    char used[32], total[32];
    clt_cl_count(dev, e);
    switch (e) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
        return clt_error(
            CLT_NO_MEMORY,
            "%s on %s failed: %s; %s in buffers, the device has %s: use a smaller microbatch or model", what,
            dev->facts.name, clt_cl_name(e), clt_human_bytes((double)dev->counters.bytes, used),
            clt_human_bytes((double)dev->facts.global_mem, total));
    case CL_OUT_OF_RESOURCES:
        return clt_error(
            CLT_FAIL,
            "%s on %s failed: %s (not enough registers, local memory or device memory, or a kernel before "
            "it wrote outside its buffers); %s in buffers, the device has %s",
            what, dev->facts.name, clt_cl_name(e), clt_human_bytes((double)dev->counters.bytes, used),
            clt_human_bytes((double)dev->facts.global_mem, total));
    default:
        return clt_error(CLT_FAIL, "%s on %s failed: %s (%d)", what, dev->facts.name, clt_cl_name(e), e);
    }
}
