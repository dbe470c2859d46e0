/* clt_pci_address: where a device is on the PCI bus, if its driver says so. */
#ifndef CLT_PCI_ADDRESS_H
#define CLT_PCI_ADDRESS_H

#include "runtime/device/clt_device_private.h"

/* What a driver answers to the queries; the size of an answer is 0 if the driver does not know the query. */
typedef struct {
    size_t khr_bytes, nv_bus_bytes, nv_slot_bytes, nv_domain_bytes, amd_bytes;
    cl_uint khr[4]; /* cl_khr_pci_bus_info: domain, bus, device, function */
    cl_uint nv_bus, nv_slot, nv_domain;
    unsigned char amd[24]; /* cl_amd_device_topology: a cl_uint 1 (PCIe), ..., at 21 bus, device, function */
} clt_pci_answers;

/* The address as Linux writes it, "0000:3b:00.0", into out; "" if the answers have none. */
void clt_pci_address_text(const clt_pci_answers *a, char out[CLT_PCI_ADDRESS]);
/* Asks the driver. */
void clt_pci_address_read(cl_device_id d, char out[CLT_PCI_ADDRESS]);

#endif
