#include "test/ckpt_util.h"

#include <string.h>

#include "runtime/base/clt_philox.h"

static const char *const roles[CU_PARTS] = {"weight", "exp_avg", "exp_avg_sq"};

void cu_state_fill(cu_state *s, uint64_t seed) {
    for (int p = 0; p < CU_PARTS; p++)
        for (int e = 0; e < s->table.n; e++)
            for (uint64_t i = 0; i < s->table.entry[e].count; i++) {
                uint32_t out[4], key[2] = {(uint32_t)seed, (uint32_t)p};
                clt_philox4x32((uint32_t[]){(uint32_t)i, (uint32_t)e, 0, 0}, key, out);
                s->host[p][s->table.entry[e].offset + i] = (float)out[0] * 0x1p-31f - 1.0f;
            }
}

void cu_state_create(cu_state *s, bool big, uint64_t seed) {
    memset(s, 0, sizeof *s);
    clt_slab_table_add(&s->table, "transformer.wte.weight", 2, (int64_t[]){37, 8});
    clt_slab_table_add(&s->table, "transformer.blocks.0.norm_1.weight", 1, (int64_t[]){8});
    if (big)
        clt_slab_table_add(&s->table, "transformer.blocks.0.ffn.up_proj.weight", 2, (int64_t[]){2100, 1001});
    clt_slab_table_add(&s->table, "transformer.norm_f.weight", 1, (int64_t[]){8});
    clt_slab_table_finish(&s->table);
    for (int p = 0; p < CU_PARTS; p++) {
        s->host[p] = clt_calloc(s->table.total, sizeof(float));
        s->part[p] = (clt_ckpt_part){.role = roles[p], .host = s->host[p]};
    }
    cu_state_fill(s, seed);
}

void cu_state_free(cu_state *s) {
    for (int p = 0; p < CU_PARTS; p++) clt_free(s->host[p]);
    clt_slab_table_free(&s->table);
}

bool cu_state_equal(const cu_state *a, const cu_state *b) {
    for (int p = 0; p < CU_PARTS; p++)
        if (memcmp(a->host[p], b->host[p], a->table.total * sizeof(float))) return false;
    return true;
}

clt_checkpoint_state cu_numbers(int64_t batch) {
    static const clt_ckpt_number numbers[] = {{"loss_scale", 65536.0}, {"odd", 0.1}};
    clt_checkpoint_state s = clt_checkpoint_state_default();
    s.epoch = 1, s.batch = batch, s.sample = batch * 16, s.token = batch * 2048;
    s.batch_in_epoch = 3, s.sample_in_epoch = 48, s.token_in_epoch = 6144;
    s.train_seconds = 12.5;
    s.data_epoch = 1, s.data_sample_in_epoch = 48, s.num_canonical_nodes = 2, s.shuffle_seed = -17;
    s.initial_physical_nodes = 1;
    s.seed = 17, s.lanes = 8, s.optimizer_step = batch, s.loss = 5.5451774597167969;
    s.optimizer = "decoupled_adamw", s.run_name = "test \"run\"";
    s.model = "{\"d_model\": 8, \"norm_eps\": 1e-05, \"attn_config\": {\"alibi\": true}}";
    s.config = "model:\n  d_model: 8 # \"quoted\"\t\x01\n";
    s.ranks = 1, s.device = "test device", s.driver = "1.0", s.variants = "gemm=ref";
    s.numbers = numbers, s.number_count = 2;
    return s;
}

clt_ckpt_writer_params cu_params(cu_state *s, const char *folder) {
    clt_ckpt_writer_params p = clt_ckpt_writer_params_default();
    p.folder = folder;
    p.run_id = "0123456789abcdef";
    p.table = &s->table;
    p.parts = s->part;
    p.part_count = CU_PARTS;
    p.threads = 0;
    return p;
}

clt_status cu_check(const char *path, const cu_state *want) {
    clt_ckpt_reader *r = NULL;
    cu_state got;
    CLT_TRY(clt_ckpt_open(path, &r));
    cu_state_create(&got, want->table.n > 3, 99);
    clt_status st = clt_ckpt_load(r, &got.table, got.part, CU_PARTS, NULL);
    if (st == CLT_OK && !cu_state_equal(&got, want)) st = CLT_FAIL;
    cu_state_free(&got);
    clt_ckpt_close(r);
    return st;
}
