#include "runtime/base/clt_base.h"

const char *clt_version(void) {
    return CLT_VERSION;
}
const char *clt_version_git(void) {
    return CLT_GIT;
}
