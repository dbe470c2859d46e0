#include "runtime/device/clt_pci_address.h"

#include <string.h>

/* Not all headers have them. */
enum {
    PCI_BUS_INFO_KHR = 0x410F,
    PCI_BUS_ID_NV = 0x4008,
    PCI_SLOT_ID_NV = 0x4009,
    PCI_DOMAIN_ID_NV = 0x400A,
    TOPOLOGY_AMD = 0x4037
};

static bool write_text(uint32_t domain, uint32_t bus, uint32_t device, uint32_t function,
                       char out[CLT_PCI_ADDRESS]) {
    if (bus > 0xff || device > 0x1f || function > 7) return false;
    snprintf(out, CLT_PCI_ADDRESS, "%04x:%02x:%02x.%x", domain, bus, device, function);
    return true;
}

void clt_pci_address_text(const clt_pci_answers *a, char out[CLT_PCI_ADDRESS]) {
    const bool nv = a->nv_bus_bytes == sizeof a->nv_bus && a->nv_slot_bytes == sizeof a->nv_slot;
    const cl_uint domain = a->nv_domain_bytes == sizeof a->nv_domain ? a->nv_domain : 0;
    cl_uint amd_type;
    memcpy(&amd_type, a->amd, sizeof amd_type);
    out[0] = 0;
    if (a->khr_bytes == sizeof a->khr && write_text(a->khr[0], a->khr[1], a->khr[2], a->khr[3], out)) return;
    /* NVIDIA's slot is device and function in one. */
    if (nv && write_text(domain, a->nv_bus, a->nv_slot >> 3, a->nv_slot & 7, out)) return;
    /* AMD's structure has no domain. */
    if (a->amd_bytes == sizeof a->amd && amd_type == 1)
        write_text(0, a->amd[21], a->amd[22], a->amd[23], out);
}

/* The size of the answer; 0: none. */
static size_t ask(cl_device_id d, cl_device_info what, size_t bytes, void *out) {
    size_t got = 0;
    return clGetDeviceInfo(d, what, bytes, out, &got) == CL_SUCCESS ? got : 0;
}

void clt_pci_address_read(cl_device_id d, char out[CLT_PCI_ADDRESS]) {
    clt_pci_answers a = {0};
    a.khr_bytes = ask(d, PCI_BUS_INFO_KHR, sizeof a.khr, a.khr);
    a.nv_bus_bytes = ask(d, PCI_BUS_ID_NV, sizeof a.nv_bus, &a.nv_bus);
    a.nv_slot_bytes = ask(d, PCI_SLOT_ID_NV, sizeof a.nv_slot, &a.nv_slot);
    a.nv_domain_bytes = ask(d, PCI_DOMAIN_ID_NV, sizeof a.nv_domain, &a.nv_domain);
    a.amd_bytes = ask(d, TOPOLOGY_AMD, sizeof a.amd, a.amd);
    clt_pci_address_text(&a, out);
}
