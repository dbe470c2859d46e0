/* Does the matrix unit multiply bf16 (../include/clt_amx_probe.clh)? */
#define PAIRS 1
#include "../include/clt_amx_probe.clh"
