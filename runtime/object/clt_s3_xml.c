#include "runtime/object/clt_s3_xml.h"

#include <errno.h>
#include <expat.h>
#include <string.h>
#include <time.h>

enum { MAX_DEPTH = 16, MAX_TEXT = 8192, MAX_NAME = 64 };

/* A response being read: `take` gets the text of every element that has no child, with its name and its
 * parent's, and `open`, if there is one, every element when it begins. */
typedef struct reader reader;
struct reader {
    void *to;
    void (*take)(reader *r, const char *parent, const char *name, char *text);
    void (*open)(reader *r, const char *name);
    XML_Parser parser;
    char names[MAX_DEPTH][MAX_NAME];
    int depth;
    bool leaf; /* the innermost element has no child so far */
    clt_str text;
    int failed; /* errno value */
};

static void fail(reader *r, int e) {
    r->failed = e;
    XML_StopParser(r->parser, XML_FALSE);
}

static void XMLCALL on_start(void *ctx, const XML_Char *name, const XML_Char **attributes) {
    reader *r = ctx;
    (void)attributes;
    if (r->depth == MAX_DEPTH || strlen(name) >= MAX_NAME) {
        fail(r, EBADMSG);
        return;
    }
    strcpy(r->names[r->depth++], name);
    r->leaf = true;
    r->text.len = 0;
    if (r->open) r->open(r, name);
}

static void XMLCALL on_text(void *ctx, const XML_Char *text, int n) {
    reader *r = ctx;
    if (r->text.len + (size_t)n > MAX_TEXT)
        fail(r, EBADMSG);
    else
        clt_str_addn(&r->text, text, (size_t)n);
}

static void XMLCALL on_end(void *ctx, const XML_Char *name) {
    reader *r = ctx;
    r->depth--;
    if (r->leaf && !r->failed)
        r->take(r, r->depth ? r->names[r->depth - 1] : "", name, r->text.len ? r->text.s : (char[]){0});
    r->leaf = false;
    r->text.len = 0;
}

static void XMLCALL on_doctype(void *ctx, const XML_Char *name, const XML_Char *system,
                               const XML_Char *public, int internal) {
    (void)name, (void)system, (void)public, (void)internal;
    fail(ctx, EBADMSG);
}

static int read_xml(reader *r, const char *text, size_t bytes) {
    if (bytes == 0 || bytes > CLT_S3_XML_BYTES) return EBADMSG;
    r->parser = XML_ParserCreate(NULL);
    if (!r->parser) return ENOMEM;
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, on_start, on_end);
    XML_SetCharacterDataHandler(r->parser, on_text);
    XML_SetStartDoctypeDeclHandler(r->parser, on_doctype);
    const bool ok = XML_Parse(r->parser, text, (int)bytes, 1) == XML_STATUS_OK;
    XML_ParserFree(r->parser);
    clt_free(r->text.s);
    return r->failed ? r->failed : ok ? 0 : EBADMSG;
}

/* --- values --- */

/* Printable text for a message, cut to fit. Control characters of terminals are U+0000 to U+001F, U+007F and
 * U+0080 to U+009F, which are C2 80 to C2 9F in UTF-8. */
static void copy_text(char *to, size_t size, const char *from) {
    snprintf(to, size, "%s", from);
    for (unsigned char *s = (unsigned char *)to; *s; s++) {
        if (*s < 0x20 || *s == 0x7f) *s = '?';
        if (*s == 0xc2 && s[1] >= 0x80 && s[1] < 0xa0) s[0] = s[1] = '?';
    }
}

/* Seconds since 1970 of 2013-05-24T00:00:00[.000]Z; 0 for any other text. */
static double seconds_of(const char *text) {
    struct tm tm = {0};
    const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
    if (!rest) return 0;
    double fraction = 0, unit = 0.1;
    if (*rest == '.')
        for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit *= 0.1) fraction += unit * (*rest - '0');
    return strcmp(rest, "Z") == 0 ? (double)timegm(&tm) + fraction : 0;
}

static bool bytes_of(const char *text, uint64_t *out) {
    uint64_t v = 0;
    if (!*text || strlen(text) > 19) return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9') return false;
        v = v * 10 + (uint64_t)(*text - '0');
    }
    *out = v;
    return true;
}

static int digit_of(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Decodes %XX and '+' in place. false: a malformed escape, or a NUL byte. */
static bool decode(char *s) {
    char *to = s;
    for (; *s; s++) {
        if (*s != '%') {
            *to++ = *s == '+' ? ' ' : *s;
            continue;
        }
        const int high = digit_of(s[1]), low = high < 0 ? -1 : digit_of(s[2]);
        if (low < 0 || high * 16 + low == 0) return false;
        *to++ = (char)(high * 16 + low);
        s += 2;
    }
    *to = 0;
    return true;
}

/* --- errors --- */

typedef struct {
    bool any;
    clt_s3_error e;
} found_error;

static void open_error(reader *r, const char *name) {
    found_error *f = r->to;
    if (!strcmp(name, "Error")) f->any = true;
}

static void take_error(reader *r, const char *parent, const char *name, char *text) {
    found_error *f = r->to;
    if (strcmp(parent, "Error") != 0) return;
    if (!strcmp(name, "Code")) copy_text(f->e.code, sizeof f->e.code, text);
    if (!strcmp(name, "Message")) copy_text(f->e.message, sizeof f->e.message, text);
    if (!strcmp(name, "RequestId")) copy_text(f->e.request_id, sizeof f->e.request_id, text);
    if (!strcmp(name, "Region")) copy_text(f->e.region, sizeof f->e.region, text);
    if (!strcmp(name, "ServerTime")) f->e.server_time = seconds_of(text);
}

bool clt_s3_xml_error(const char *text, size_t bytes, clt_s3_error *out) {
    found_error f = {0};
    reader r = {.to = &f, .take = take_error, .open = open_error};
    if (read_xml(&r, text, bytes) != 0 || !f.any) return false;
    *out = f.e;
    return true;
}

/* --- listings --- */

typedef struct {
    clt_s3_listing *l;
    bool root, url, uploads;
    size_t first; /* objects that earlier pages gave */
} found_list;

static void open_list(reader *r, const char *name) {
    found_list *f = r->to;
    if (r->depth == 1) {
        f->uploads = !strcmp(name, "ListMultipartUploadsResult");
        f->root = f->uploads || !strcmp(name, "ListBucketResult");
        if (!f->root) fail(r, EBADMSG);
    }
    if (r->depth != 2 || strcmp(name, f->uploads ? "Upload" : "Contents") != 0) return;
    clt_s3_listing *l = f->l;
    if ((l->n & (l->n - 1)) == 0) { /* full: doubled at every power of two */
        void *more = clt_try_realloc(l->objects, CLT_MAX(2 * l->n, 1) * sizeof *l->objects);
        if (!more) {
            fail(r, ENOMEM);
            return;
        }
        l->objects = more;
    }
    l->objects[l->n++] = (clt_s3_object){0};
}

static void set_text(char **to, const char *text) {
    clt_free(*to);
    *to = clt_strdup(text);
}

static void take_object(reader *r, clt_s3_object *o, const char *name, char *text) {
    if (!strcmp(name, "Key")) set_text(&o->key, text);
    if (!strcmp(name, "ETag")) set_text(&o->etag, text);
    if (!strcmp(name, "UploadId")) set_text(&o->upload_id, text);
    if (!strcmp(name, "LastModified") || !strcmp(name, "Initiated")) o->modified = seconds_of(text);
    if (!strcmp(name, "Size") && !bytes_of(text, &o->bytes)) fail(r, EBADMSG);
}

static void take_list(reader *r, const char *parent, const char *name, char *text) {
    found_list *f = r->to;
    clt_s3_listing *l = f->l;
    if (r->depth == 2 && !strcmp(parent, f->uploads ? "Upload" : "Contents"))
        take_object(r, &l->objects[l->n - 1], name, text);
    if (r->depth == 2 && !strcmp(parent, "CommonPrefixes") && !strcmp(name, "Prefix"))
        clt_strv_add(&l->prefixes, text);
    if (r->depth != 1) return;
    if (!strcmp(name, "EncodingType")) f->url = !strcmp(text, "url");
    if (!strcmp(name, "IsTruncated")) l->truncated = !strcmp(text, "true");
    if (!strcmp(name, f->uploads ? "NextKeyMarker" : "NextContinuationToken") && *text)
        set_text(&l->next, text);
    if (!strcmp(name, "NextUploadIdMarker") && *text) set_text(&l->next_upload, text);
}

/* What only the whole text tells: whether names are encoded, and whether every object has a name. */
static int finish_list(found_list *f, size_t first_prefix) {
    clt_s3_listing *l = f->l;
    for (size_t i = f->first; i < l->n; i++) {
        const clt_s3_object *o = &l->objects[i];
        if (!o->key || (f->uploads && !o->upload_id) || (f->url && !decode(o->key))) return EBADMSG;
    }
    for (size_t i = first_prefix; f->url && i < l->prefixes.n; i++)
        if (!decode(l->prefixes.v[i])) return EBADMSG;
    if (f->url && f->uploads && l->next && !decode(l->next)) return EBADMSG;
    return l->truncated && !l->next ? EBADMSG : 0; /* a page that has no next one would be asked for again */
}

int clt_s3_xml_listing(const char *text, size_t bytes, clt_s3_listing *out) {
    const size_t first_prefix = out->prefixes.n;
    found_list f = {.l = out, .first = out->n};
    clt_free(out->next);
    clt_free(out->next_upload);
    out->next = out->next_upload = NULL;
    out->truncated = false;
    reader r = {.to = &f, .take = take_list, .open = open_list};
    const int e = read_xml(&r, text, bytes);
    if (e) return e;
    return f.root ? finish_list(&f, first_prefix) : EBADMSG;
}

void clt_s3_listing_free(clt_s3_listing *l) {
    for (size_t i = 0; i < l->n; i++) {
        clt_free(l->objects[i].key);
        clt_free(l->objects[i].etag);
        clt_free(l->objects[i].upload_id);
    }
    clt_free(l->objects);
    clt_strv_free(&l->prefixes);
    clt_free(l->next);
    clt_free(l->next_upload);
    *l = (clt_s3_listing){0};
}

/* --- multipart uploads --- */

typedef struct {
    const char *root, *wanted;
    char *value;
} found_value;

static void take_value(reader *r, const char *parent, const char *name, char *text) {
    found_value *f = r->to;
    if (r->depth == 1 && !strcmp(parent, f->root) && !strcmp(name, f->wanted) && *text)
        set_text(&f->value, text);
}

static int read_value(const char *text, size_t bytes, const char *root, const char *wanted, char **out) {
    found_value f = {.root = root, .wanted = wanted};
    reader r = {.to = &f, .take = take_value};
    int e = read_xml(&r, text, bytes);
    if (!e && !f.value) e = EBADMSG;
    if (e)
        clt_free(f.value);
    else
        *out = f.value;
    return e;
}

int clt_s3_xml_upload(const char *text, size_t bytes, char **upload_id) {
    return read_value(text, bytes, "InitiateMultipartUploadResult", "UploadId", upload_id);
}

int clt_s3_xml_complete(const char *text, size_t bytes, char **etag, clt_s3_error *error) {
    if (clt_s3_xml_error(text, bytes, error)) return EIO;
    return read_value(text, bytes, "CompleteMultipartUploadResult", "ETag", etag);
}

static void open_parts(reader *r, const char *name) {
    if (r->depth == 1 && strcmp(name, "ListPartsResult") != 0) fail(r, EBADMSG);
}

static void take_part(reader *r, const char *parent, const char *name, char *text) {
    clt_s3_part_sum *sum = r->to;
    uint64_t v;
    if (r->depth == 2 && !strcmp(parent, "Part") && !strcmp(name, "Size")) {
        if (!bytes_of(text, &v) || v > INT64_MAX - sum->bytes)
            fail(r, EBADMSG);
        else
            sum->bytes += v;
    }
    if (r->depth != 1) return;
    if (!strcmp(name, "IsTruncated")) sum->more = !strcmp(text, "true");
    if (strcmp(name, "NextPartNumberMarker") != 0 || !*text) return;
    if (bytes_of(text, &v) && v <= INT64_MAX)
        sum->last = (int64_t)v;
    else
        fail(r, EBADMSG);
}

int clt_s3_xml_part_sum(const char *text, size_t bytes, clt_s3_part_sum *sum) {
    reader r = {.to = sum, .take = take_part, .open = open_parts};
    sum->more = false;
    return read_xml(&r, text, bytes);
}

static void add_escaped(clt_str *out, const char *text) {
    for (const char *s = text; *s; s++) switch (*s) {
        case '&':
            clt_str_add(out, "&amp;");
            break;
        case '<':
            clt_str_add(out, "&lt;");
            break;
        case '>':
            clt_str_add(out, "&gt;");
            break;
        default:
            clt_str_addn(out, s, 1);
        }
}

char *clt_s3_xml_parts(const char *const *etags, size_t n) {
    clt_str out = {0};
    clt_str_add(&out, "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    for (size_t i = 0; i < n; i++) {
        clt_str_addf(&out, "<Part><PartNumber>%zu</PartNumber><ETag>", i + 1);
        add_escaped(&out, etags[i]);
        clt_str_add(&out, "</ETag></Part>");
    }
    clt_str_add(&out, "</CompleteMultipartUpload>");
    return out.s;
}
