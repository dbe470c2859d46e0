#include "tools/cltrain/report_pictures.h"

#include <jansson.h>
#include <string.h>

#include "tools/cltrain/report_chart.h"
#include "runtime/base/clt_io.h"

const char pictures_style[] =
    ".pics{display:grid;grid-template-columns:repeat(auto-fill,minmax(170px,1fr));gap:10px}"
    ".pics figure{margin:0;padding:8px;background:var(--back);border-radius:6px;border-top:4px solid "
    "var(--s3)}.pics figure.no{border-color:var(--s2)}.pics img{width:100%;display:block;image-rendering:"
    "pixelated;border-radius:4px}.pics figcaption{font-size:12px;overflow-wrap:anywhere}.pics b{color:var(--"
    "s3)}.pics .no b{color:var(--s2)}";

static void add_text(clt_str *out, const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) html_text(out, json_string_value(v), json_string_length(v));
}

/* Only the digits of base 64 become a part of the page. */
static const char *png_of(const json_t *o) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
    const char *png = json_string_value(json_object_get(o, "png"));
    return png && *png && png[strspn(png, digits)] == 0 ? png : NULL;
}

static void add_picture(clt_str *out, const json_t *o) {
    const char *png = png_of(o);
    const json_t *label = json_object_get(o, "label"), *predicted = json_object_get(o, "predicted"),
                 *probability = json_object_get(o, "probability");
    if (!png || !json_is_integer(label) || !json_is_integer(predicted)) return;
    const bool right = json_integer_value(label) == json_integer_value(predicted);
    clt_str_addf(
        out, "<figure%s><img alt='evaluation sample %lld' src='data:image/png;base64,%s'><figcaption>",
        right ? "" : " class='no'", (long long)json_integer_value(json_object_get(o, "sample")), png);
    clt_str_add(out, "class ");
    add_text(out, o, "label_name");
    clt_str_add(out, right ? "<br><b>&#10003; right: " : "<br><b>&#10007; wrong: ");
    add_text(out, o, "predicted_name");
    clt_str_add(out, "</b>");
    if (json_is_number(probability)) clt_str_addf(out, ", %.1f %%", 100 * json_number_value(probability));
    clt_str_add(out, "</figcaption></figure>\n");
}

static void add_all(clt_str *out, const json_t *o) {
    const json_t *list = json_object_get(o, "images"), *batch = json_object_get(o, "batch");
    if (json_array_size(list) == 0) return;
    clt_str_add(out, "<h2>Predictions</h2><p class='note'>Pictures of the evaluation data ");
    add_text(out, o, "data");
    clt_str_addf(out,
                 " as the model reads them, its prediction at batch %.0f and the probability that it gives "
                 "it.</p><div class='pics'>\n",
                 json_number_value(batch));
    for (size_t i = 0; i < json_array_size(list); i++) add_picture(out, json_array_get(list, i));
    clt_str_add(out, "</div>\n");
}

void pictures_add(clt_str *out, const char *folder) {
    char *path = clt_path_join(folder, "predictions.json"), *text;
    size_t n;
    if (clt_io_is_file(path) && clt_io_read_all(path, (size_t)64 << 20, &text, &n) == CLT_OK) {
        json_t *o = json_loadb(text, n, 0, NULL);
        add_all(out, o);
        json_decref(o);
        clt_free(text);
    }
    clt_free(path);
}
