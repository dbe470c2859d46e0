#!/bin/bash
# Stop texts end generation with the token that completes them, also where the decoder holds back the bytes of a
# SentencePiece tokenizer: here a model that generates nothing but the byte token of a line end.
cd "$(dirname "$0")/../.." && . test/lib.sh || exit 1
tokenizer=$golden/tokenizer/sp_mini
python3 - "$tmp/model" "$tokenizer/tokenizer.json" <<'PY'
import json, os, struct, sys
folder, V, C = sys.argv[1], 1603, 16
line_end = json.load(open(sys.argv[2]))["model"]["vocab"]["<0x0A>"]
block = "transformer.blocks.0."
shapes = {"transformer.wte.weight": (V, C), "transformer.norm_f.weight": (C,), block + "norm_1.weight": (C,),
          block + "norm_2.weight": (C,), block + "attn.Wqkv.weight": (3 * C, C), block + "attn.out_proj.weight": (C, C),
          block + "ffn.up_proj.weight": (C, C), block + "ffn.down_proj.weight": (C, C)}
header, data = {}, b""
for name, shape in shapes.items():
    n = shape[0] * (shape[1] if len(shape) > 1 else 1)
    values = [1.0 if "norm" in name else 0.0] * n
    if "wte" in name: # every token looks the same, and the head reads 2 for one of them, 1 for the others
        values = [(2.0 if i // C == line_end else 1.0) * (-1) ** i for i in range(n)]
    header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(data), len(data) + 4 * n]}
    data += struct.pack(f"<{n}f", *values)
os.mkdir(folder)
text = json.dumps(header).encode()
open(folder + "/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"model_type": "mpt", "d_model": C, "n_heads": 1, "n_layers": 1, "expansion_ratio": 1, "max_seq_len": 64,
           "vocab_size": V, "no_bias": True, "attn_config": {"alibi": True}}, open(folder + "/config.json", "w"))
PY

# generated OPTION ...: how many tokens, if there are more than one
generated() {
    CLTRAIN_LOG=debug "$cltrain" generate "$tmp/model" --tokenizer "$tokenizer" -p "the" -n 20 -t 0 "$@" >"$tmp/text" 2>"$log" ||
        fail "generate: $(tail -n 5 "$log")" >&2
    sed -n 's/.* \([0-9]*\) tokens, after the first one.*/\1/p' "$log"
}
n=$(generated)
[ "$n" = 20 ] || fail "without a stop text there are $n tokens, not 20: $(tail -n 3 "$log")"
for want in 2 3 7; do
    stop=
    for _ in $(seq $want); do stop+=$'\n'; done
    n=$(generated --stop "$stop")
    [ "$n" = $want ] || fail "$want line ends stop after ${n:-1} tokens"
    n=$(generated --stop "${stop}x")
    [ "$n" = 20 ] || fail "a stop text that does not come stops after ${n:-1} tokens"
done
finish
