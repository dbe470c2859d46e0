#include <ctype.h>
#include <string.h>

#include "runtime/base/clt_io.h"

size_t clt_path_scheme(const char *path) {
    size_t n = 0;
    if (!isalpha((unsigned char)*path)) return 0;
    while (isalnum((unsigned char)path[n]) || (path[n] && strchr("+.-", path[n]))) n++;
    return strncmp(path + n, "://", 3) == 0 ? n + 3 : 0;
}

char *clt_path_join(const char *a, const char *b) {
    size_t n = strlen(a);
    if (n == 0 || b[0] == '/' || clt_path_scheme(b)) return clt_strdup(b);
    return clt_format(a[n - 1] == '/' ? "%s%s" : "%s/%s", a, b);
}

char *clt_path_dir(const char *path) {
    size_t scheme = clt_path_scheme(path);
    const char *s = strrchr(path + scheme, '/');
    if (!s) return clt_strdup(scheme ? path : ".");
    size_t n = (size_t)(s - path);
    return clt_strndup(path, n == scheme ? n + 1 : n); /* a root keeps its '/' */
}

const char *clt_path_base(const char *path) {
    size_t scheme = clt_path_scheme(path);
    const char *s = strrchr(path + scheme, '/');
    if (s) return s + 1;
    return scheme ? path + strlen(path) : path;
}

bool clt_path_is_safe(const char *name) {
    if (!*name || *name == '/') return false;
    for (const char *s = name;;) {
        size_t n = strcspn(s, "/");
        if (n == 0 || (n == 1 && s[0] == '.') || (n == 2 && s[0] == '.' && s[1] == '.')) return false;
        if (!s[n]) return true;
        s += n + 1;
    }
}
