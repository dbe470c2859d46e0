/* The config.json that timm writes: it describes the same model as cltrain's own keys, and what this family
 * does not compute is refused. */
#include <string.h>

#include "runtime/base/clt_json.h"
#include "runtime/model/vit/clt_vit_internal.h"
#include "test/test_util.h"

#define CFG(size) "'pretrained_cfg': {'input_size': [3, " size ", " size "], 'fixed_input_size': true}"

static clt_status parse(const char *text, clt_model_config **out) {
    char *json = clt_strdup(text);
    for (char *p = json; *p; p++)
        if (*p == '\'') *p = '"';
    clt_status st = clt_model_config_parse(json, true, "config.json", out);
    clt_free(json);
    return st;
}

/* Sizes of timm's models, from vision_transformer.py and deit.py. */
static void architectures_have_their_sizes(void **state) {
    (void)state;
    static const struct {
        const char *timm, *own;
    } c[] = {
        {"{'architecture': 'vit_base_patch16_224', 'num_classes': 1000, 'num_features': 768, 'global_pool': "
         "'token', " CFG("224") "}",
         "{'name': 'vit'}"},
        {"{'architecture': 'vit_tiny_patch16_384', 'num_classes': 7, " CFG("384") "}",
         "{'name': 'vit', 'width': 192, 'heads': 3, 'image_size': 384, 'classes': 7}"},
        {"{'architecture': 'deit_small_patch16_224'}", "{'name': 'vit', 'width': 384, 'heads': 6}"},
        {"{'architecture': 'vit_large_patch32_224', 'global_pool': 'avg'}",
         "{'name': 'vit', 'width': 1024, 'depth': 24, 'heads': 16, 'patch_size': 32, 'pooling': 'avg'}"},
        {"{'architecture': 'vit_huge_patch14_224', 'num_classes': 21841}",
         "{'name': 'vit', 'width': 1280, 'depth': 32, 'heads': 16, 'patch_size': 14, 'classes': 21841}"},
        {"{'architecture': 'vit_giant_patch14_224'}",
         "{'name': 'vit', 'width': 1408, 'depth': 40, 'heads': 16, 'patch_size': 14, 'mlp_ratio': "
         "4.363636363636363}"},
        {"{'architecture': 'vit_gigantic_patch14_224'}",
         "{'name': 'vit', 'width': 1664, 'depth': 48, 'heads': 16, 'patch_size': 14, 'mlp_ratio': "
         "4.923076923076923}"},
        /* Written by older versions: everything is on one level. */
        {"{'architecture': 'vit_small_patch16_224', 'num_classes': 100, 'input_size': [3, 160, 160]}",
         "{'name': 'vit', 'width': 384, 'heads': 6, 'image_size': 160, 'classes': 100}"},
        {"{'architecture': 'vit_small_patch16_224', " CFG(
             "224") ", 'model_args': {'img_size': [96, 96], "
                    "'qkv_bias': false, 'drop_path_rate': 0.1, 'global_pool': 'avg', 'num_classes': 5, "
                    "'fc_norm': null, "
                    "'init_values': null}}",
         "{'name': 'vit', 'width': 384, 'heads': 6, 'image_size': 96, 'qkv_bias': false, 'drop_path': 0.1, "
         "'pooling': 'avg', 'classes': 5}"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(c); i++) {
        clt_model_config *a = NULL, *b = tu_model(c[i].own);
        tu_assert_ok(parse(c[i].timm, &a), c[i].timm);
        if (memcmp(a, b, sizeof(clt_vit_config)) != 0) fail_msg("%s describes another model", c[i].timm);
        clt_model_config_free(a);
        clt_model_config_free(b);
    }
}

static void other_models_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } c[] = {
        {"{'architecture': 'resnet50'}", "key 'architecture' is 'resnet50', an unknown model of timm"},
        {"{'architecture': 'vit_base_patch16_clip_224'}", "unknown model of timm"},
        {"{'architecture': 'vit_base_patch16_224_miil'}", "unknown model of timm"},
        {"{'architecture': 'vit_small_patch14_reg4_dinov2'}", "unknown model of timm"},
        {"{'architecture': 'vit_base_patch16_224', 'num_features': 512}", "num_features"},
        {"{'architecture': 'vit_base_patch16_224', 'num_classes': 0}", "classes"},
        {"{'architecture': 'vit_base_patch16_224', 'global_pool': 'map'}", "pooling"},
        {"{'architecture': 'vit_base_patch16_224', 'pretrained_cfg': {'input_size': [3, 224, 160]}}",
         "key 'pretrained_cfg.input_size' must be the side of square images"},
        {"{'architecture': 'vit_base_patch16_224', 'model_args': {'init_values': 1e-5}}",
         "key 'model_args.init_values' is refused"},
        {"{'architecture': 'vit_base_patch16_224', 'model_args': {'class_token': false}}",
         "model_args.class_token"},
        {"{'architecture': 'vit_base_patch16_224', 'model_args': {'img_size': 'big'}}",
         "model_args.img_size"},
        {"{'architecture': 'vit_base_patch16_224', 'model_args': {'attn_pool': true}}",
         "model_args.attn_pool"},
    };
    for (size_t i = 0; i < CLT_COUNT_OF(c); i++) {
        clt_model_config *m = NULL;
        assert_int_equal(parse(c[i].text, &m), CLT_BAD_CONFIG);
        if (!strstr(clt_last_error(), c[i].want)) fail_msg("%s: %s", c[i].text, clt_last_error());
    }
}

int main(int argc, char **argv) {
    (void)argc, (void)argv;
    clt_error_quiet(true);
    const struct CMUnitTest tests[] = {cmocka_unit_test(architectures_have_their_sizes),
                                       cmocka_unit_test(other_models_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
