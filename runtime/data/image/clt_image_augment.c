#include "runtime/data/image/clt_image_augment.h"

#include <math.h>
#include <string.h>

#include "runtime/base/clt_dmath.h"

static const char *const names[CLT_AUGMENTS] = {
    "Identity", "ShearX",   "ShearY",    "TranslateX", "TranslateY", "Rotate",       "Brightness",
    "Color",    "Contrast", "Sharpness", "Posterize",  "Solarize",   "AutoContrast", "Equalize"};

const char *clt_augment_name(clt_augment op) {
    return names[op];
}

typedef struct {
    int64_t width, height;
    uint8_t *rgb, *other;
} picture;

static size_t bytes_of(const picture *p) {
    return 3 * (size_t)p->width * (size_t)p->height;
}

/* Level k of 0 ... 30 between 0 and `most`, in fp32 as torchvision keeps it, with the sign of the step. */
static double magnitude(const clt_augment_step *s, double most) {
    const double m = (double)(float)(most * s->level / CLT_AUGMENT_MOST_LEVEL);
    return s->negative ? -m : m;
}

/* --- geometry --- */

/* Pillow's fixed-point form of an affine map, for nearest neighbours: 16 bits behind the point. */
static int32_t fixed(double v) {
    return (int32_t)floor(v * 65536.0 + 0.5);
}

/* Pixel (x, y) of the result is pixel (a0 x + a1 y + a2, a3 x + a4 y + a5) of the picture, at centres. */
static void map_affine(const picture *p, const double a[6]) {
    const int32_t dx = fixed(a[0]), dy = fixed(a[3]), next_x = fixed(a[1]), next_y = fixed(a[4]);
    int32_t row_x = fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), row_y = fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    memcpy(p->other, p->rgb, bytes_of(p));
    memset(p->rgb, 0, bytes_of(p));
    for (int64_t y = 0; y < p->height; y++) {
        uint8_t *to = p->rgb + 3 * y * p->width;
        int32_t at_x = row_x, at_y = row_y;
        for (int64_t x = 0; x < p->width; x++, to += 3) {
            const int64_t from_x = at_x >> 16, from_y = at_y >> 16;
            if (from_x >= 0 && from_x < p->width && from_y >= 0 && from_y < p->height)
                memcpy(to, p->other + 3 * (from_y * p->width + from_x), 3);
            at_x += dx;
            at_y += dy;
        }
        row_x += next_x;
        row_y += next_y;
    }
}

static void shear(const picture *p, double m, bool x) {
    map_affine(p, x ? (double[]){1, m, 0, 0, 1, 0} : (double[]){1, 0, 0, m, 1, 0});
}

/* By whole pixels, towards larger places. */
static void translate(const picture *p, double m, bool x) {
    const double by = trunc(m);
    map_affine(p, (double[]){1, 0, x ? -by : 0, 0, 1, x ? 0 : -by});
}

/* Counter-clockwise by `degrees` around the middle. */
static void rotate(const picture *p, double degrees) {
    static const double pi = 3.14159265358979323846;
    const double turn = degrees < 0 ? degrees + 360 : degrees, angle = -(turn * (pi / 180)),
                 c = clt_dcos(angle), s = clt_dsin(angle), cx = (double)p->width / 2,
                 cy = (double)p->height / 2;
    if (degrees == 0) return;
    map_affine(p, (double[]){c, s, -cx * c + -cy * s + cx, -s, c, -cx * -s + -cy * c + cy});
}

/* --- mixing with another picture --- */

/* rgb = other + factor (rgb - other), as Pillow's blend computes it in fp32. */
static void blend(const picture *p, float factor) {
    const size_t n = bytes_of(p);
    uint8_t *rgb = p->rgb;
    const uint8_t *other = p->other;
    if (factor == 1) return;
    for (size_t i = 0; i < n; i++) {
        const int from = other[i], to = rgb[i];
        const float v = (float)from + factor * (float)(to - from);
        rgb[i] = (uint8_t)CLT_MAX(CLT_MIN(v, 255.0f), 0.0f);
    }
}

static uint8_t grey(const uint8_t *rgb) {
    return (uint8_t)((rgb[0] * 19595u + rgb[1] * 38470u + rgb[2] * 7471u + 0x8000u) >> 16);
}

static void make_grey(const picture *p) {
    const size_t n = bytes_of(p);
    uint8_t *rgb = p->rgb, *other = p->other;
    for (size_t i = 0; i < n; i += 3) other[i] = other[i + 1] = other[i + 2] = grey(rgb + i);
}

static void make_mean(const picture *p) {
    const size_t n = bytes_of(p);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i += 3) sum += grey(p->rgb + i);
    memset(p->other, (int)((double)sum / (double)(n / 3) + 0.5), n);
}

/* The sum of three neighbours of a row in Pillow's order. */
static float three(const uint8_t *at, float side, float middle) {
    return (float)at[-3] * side + (float)at[0] * middle + (float)at[3] * side;
}

/* Pillow's filter SMOOTH: 1 around 5, divided by 13; the border stays. */
static void make_smooth(const picture *p) {
    const float one = 1.0f / 13.0f, five = 5.0f / 13.0f;
    const int64_t row = 3 * p->width;
    memcpy(p->other, p->rgb, bytes_of(p));
    for (int64_t y = 1; y < p->height - 1; y++)
        for (int64_t i = 3; i < row - 3; i++) {
            const uint8_t *at = p->rgb + y * row + i;
            float sum = 0.5f;
            sum += three(at + row, one, one);
            sum += three(at, one, five);
            sum += three(at - row, one, one);
            p->other[y * row + i] = sum >= 255 ? 255 : (uint8_t)sum;
        }
}

/* --- tables of 256 values --- */

static void use_table(const picture *p, int channel, const uint8_t table[256]) {
    const size_t n = bytes_of(p);
    uint8_t *rgb = p->rgb;
    for (size_t i = (size_t)channel; i < n; i += 3) rgb[i] = table[rgb[i]];
}

static void use_table_everywhere(const picture *p, const uint8_t table[256]) {
    for (int c = 0; c < 3; c++) use_table(p, c, table);
}

static void posterize(const picture *p, int level) {
    const int bits = 8 - (int)rint(level / 7.5);
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i & ~((1 << (8 - bits)) - 1));
    use_table_everywhere(p, table);
}

static void solarize(const picture *p, int level) {
    const double threshold = 255 - 8.5 * level;
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < threshold ? i : 255 - i);
    use_table_everywhere(p, table);
}

static void count(const picture *p, int channel, int64_t histogram[256]) {
    memset(histogram, 0, 256 * sizeof *histogram);
    const size_t n = bytes_of(p);
    for (size_t i = (size_t)channel; i < n; i += 3) histogram[p->rgb[i]]++;
}

static uint8_t clipped(int64_t v) {
    return (uint8_t)CLT_MAX(CLT_MIN(v, (int64_t)255), (int64_t)0);
}

/* The lowest and the highest value of a channel become 0 and 255. */
static void stretch(const picture *p, int channel) {
    int64_t histogram[256];
    uint8_t table[256];
    int lo = 0, hi = 255;
    count(p, channel, histogram);
    while (lo < 255 && !histogram[lo]) lo++;
    while (hi > 0 && !histogram[hi]) hi--;
    if (hi <= lo) return;
    const double scale = 255.0 / (hi - lo), offset = -lo * scale;
    for (int i = 0; i < 256; i++) table[i] = clipped((int64_t)(i * scale + offset));
    use_table(p, channel, table);
}

/* All values of a channel become about equally frequent. */
static void equalize(const picture *p, int channel) {
    int64_t histogram[256];
    uint8_t table[256];
    int last = 255;
    count(p, channel, histogram);
    while (last > 0 && !histogram[last]) last--;
    const int64_t step = (p->width * p->height - histogram[last]) / 255;
    if (step == 0) return;
    int64_t n = step / 2;
    for (int i = 0; i < 256; i++) {
        table[i] = clipped(n / step);
        n += histogram[i];
    }
    use_table(p, channel, table);
}

/* --- all of them --- */

static void move(const clt_augment_step *s, const picture *p) {
    const double part = 150.0 / 331.0;
    const bool x = s->op == CLT_AUGMENT_SHEAR_X || s->op == CLT_AUGMENT_TRANSLATE_X;
    if (s->op == CLT_AUGMENT_ROTATE)
        rotate(p, magnitude(s, 30));
    else if (s->op == CLT_AUGMENT_SHEAR_X || s->op == CLT_AUGMENT_SHEAR_Y)
        shear(p, magnitude(s, 0.3), x);
    else
        translate(p, magnitude(s, part * (double)(x ? p->width : p->height)), x);
}

static void enhance(const clt_augment_step *s, const picture *p) {
    if (s->op == CLT_AUGMENT_BRIGHTNESS)
        memset(p->other, 0, bytes_of(p));
    else if (s->op == CLT_AUGMENT_COLOR)
        make_grey(p);
    else if (s->op == CLT_AUGMENT_CONTRAST)
        make_mean(p);
    else
        make_smooth(p);
    blend(p, (float)(1 + magnitude(s, 0.9)));
}

void clt_image_augment(const clt_augment_step *s, int64_t width, int64_t height, uint8_t *rgb,
                       uint8_t *other) {
    const picture p = {width, height, rgb, other};
    if (s->op == CLT_AUGMENT_POSTERIZE)
        posterize(&p, s->level);
    else if (s->op == CLT_AUGMENT_SOLARIZE)
        solarize(&p, s->level);
    else if (s->op == CLT_AUGMENT_AUTOCONTRAST || s->op == CLT_AUGMENT_EQUALIZE)
        for (int c = 0; c < 3; c++) (s->op == CLT_AUGMENT_EQUALIZE ? equalize : stretch)(&p, c);
    else if (s->op >= CLT_AUGMENT_BRIGHTNESS)
        enhance(s, &p);
    else if (s->op != CLT_AUGMENT_IDENTITY)
        move(s, &p);
}
