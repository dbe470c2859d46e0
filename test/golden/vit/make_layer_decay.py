#!/usr/bin/env python3
"""layer-decay.json: the learning rate of every parameter of a Vision Transformer with timm's layer_decay.

make_layer_decay.py FOLDER: FOLDER has the unpacked wheel of timm 1.0.31. timm's own functions
group_with_matcher, param_groups_layer_decay and group_matcher are read from its files and executed; torch is
not needed, because they look at names and numbers of dimensions alone."""
import ast, collections, fnmatch, itertools, json, os, re, sys, typing

WIDTH, DEPTH, HIDDEN, CLASSES, PATCH, TOKENS = 160, 3, 192, 10, 8, 17


def functions(path, *names):
    """The named functions of a file, without their decorators and annotations."""
    tree = ast.parse(open(os.path.join(sys.argv[1], "timm", path)).read())
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name in names]
    for f in found:
        f.decorator_list, f.returns = [], None
        for a in f.args.args:
            a.annotation = None
    space = dict(vars(typing), re=re, collections=collections, chain=itertools.chain, fnmatch=fnmatch,
                 defaultdict=collections.defaultdict, MATCH_PREV_GROUP=(99999,))
    exec(compile(ast.Module(found, []), path, "exec"), space)
    return space


class Parameter:
    requires_grad = True

    def __init__(self, *shape):
        self.ndim = len(shape)


def parameters(norm):
    yield "cls_token", Parameter(1, 1, WIDTH)
    yield "pos_embed", Parameter(1, TOKENS, WIDTH)
    yield "patch_embed.proj.weight", Parameter(WIDTH, 3, PATCH, PATCH)
    yield "patch_embed.proj.bias", Parameter(WIDTH)
    for i in range(DEPTH):
        for part, *shape in (("norm1", WIDTH), ("attn.qkv", 3 * WIDTH, WIDTH), ("attn.proj", WIDTH, WIDTH),
                             ("norm2", WIDTH), ("mlp.fc1", HIDDEN, WIDTH), ("mlp.fc2", WIDTH, HIDDEN)):
            yield f"blocks.{i}.{part}.weight", Parameter(*shape)
            yield f"blocks.{i}.{part}.bias", Parameter(shape[0])
    yield norm + ".weight", Parameter(WIDTH)
    yield norm + ".bias", Parameter(WIDTH)
    yield "head.weight", Parameter(CLASSES, WIDTH)
    yield "head.bias", Parameter(CLASSES)


def main():
    group = functions("models/_manipulate.py", "group_with_matcher")["group_with_matcher"]
    decay = functions("optim/_param_groups.py", "param_groups_layer_decay", "_matches_pattern")
    vit = functions("models/vision_transformer.py", "group_matcher", "no_weight_decay")
    decay["group_parameters"] = lambda model, matcher, reverse: group(model.named_parameters(), matcher,
                                                                       reverse=reverse)
    out = {"layer_decay": 0.65, "weight_decay": 0.05}
    for pooling, norm in (("token", "norm"), ("avg", "fc_norm")):
        class Model:
            named = list(parameters(norm))
            named_parameters = lambda self: self.named
            group_matcher = vit["group_matcher"]

        groups = decay["param_groups_layer_decay"](Model(), out["weight_decay"], vit["no_weight_decay"](None),
                                                   layer_decay=out["layer_decay"])
        of = {id(p): g for g in groups for p in g["params"]}
        out[pooling] = {n: [of[id(p)]["lr_scale"], of[id(p)]["weight_decay"]] for n, p in Model.named}
    print(re.sub(r"([{}\]],?) ?", r"\1\n", json.dumps(out)))


main()
