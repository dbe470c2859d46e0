# shellcheck shell=bash
# drivers.sh: tests use the drivers of this machine and the one that setup fetched into $BUILD, unless the caller says otherwise.
if [ -f "$BUILD/intel/icd/intel.icd" ] && [ -z "${OCL_ICD_VENDORS:-}" ]; then
    OCL_ICD_VENDORS=$(readlink -f "$BUILD/intel/icd")
    export OCL_ICD_VENDORS
fi
