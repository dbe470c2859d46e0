/* Does the matrix unit multiply bytes (../include/clt_amx_probe.clh)? */
#define PAIRS 0
#include "../include/clt_amx_probe.clh"
