"""Write a script in another way that does the same: names, imports, order and structure.

Each variation takes a script and a generator of random numbers, and edits the script.
"""

from __future__ import annotations

import ast
import random

from tests.doctor.planted.extract import extract_step
from tests.doctor.planted.imports import restyle_imports
from tests.doctor.planted.matching import build, build_statements, match
from tests.doctor.planted.parts import all_names, first_import, is_batch_loop, is_stored
from tests.doctor.planted.scripts import Script, become
from tests.doctor.planted.view import View, statements_of

SYNONYMS = {
    "model": ("net", "network", "my_model", "clf", "m"),
    "net": ("model", "network", "backbone"),
    "optimizer": ("opt", "solver", "optim_", "updater"),
    "opt": ("optimizer", "solver"),
    "scheduler": ("sched", "lr_sched", "schedule"),
    "lr_scheduler": ("scheduler", "lr_schedule"),
    "criterion": ("loss_fn", "crit", "objective"),
    "loss_fn": ("criterion", "compute_error"),
    "loss": ("l", "batch_loss", "cost", "err"),
    "outputs": ("y_hat", "preds_", "out_"),
    "output": ("pred_", "scores_"),
    "logits": ("raw_scores", "z_out"),
    "inputs": ("images_", "xs", "data_in"),
    "labels": ("ys", "classes_", "gt"),
    "target": ("truth", "label_"),
    "train_loader": ("loader_train", "trn_dl", "train_batches"),
    "val_loader": ("loader_val", "dev_dl"),
    "scaler": ("grad_scaler", "amp_scaler"),
    "netG": ("gen", "G"),
    "netD": ("disc", "D"),
    "optimizerD": ("opt_d", "d_optim"),
    "optimizerG": ("opt_g", "g_optim"),
    "epoch": ("ep", "epoch_idx"),
    "device": ("dev", "DEVICE"),
}


def vary(script: Script, rng: random.Random) -> None:
    """Apply some variations, chosen at random."""
    for tree in script.trees.values():
        ast.fix_missing_locations(tree)
    for variation in (
        *(extract_step, wrap_loader, count_batches, count_epochs, pull_batches, nest_loop),
        *(name_keywords, name_parameters, wrap_main, rename, restyle_imports),
    ):
        if variation is restyle_imports or rng.random() < 0.45:
            variation(script, rng)
            for tree in script.trees.values():
                ast.fix_missing_locations(tree)


def rename(script: Script, rng: random.Random) -> None:
    """Give variables and attributes of the script other names, the same in all files."""
    taken = set().union(*map(all_names, script.trees.values()))
    modules = {name.removesuffix(".py") for name in script.trees}
    defined = {
        node.name
        for tree in script.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    chosen: dict[str, str] = {}
    for name, synonyms in SYNONYMS.items():
        new = rng.choice(synonyms)
        if name in taken and new not in taken | modules | defined and rng.random() < 0.7:
            chosen[name] = new
            taken.add(new)
    fields = {  # of dataclasses, and what a class of a library passes
        site.node.target.id
        for site in View(script).statements()
        if isinstance(site.node, ast.AnnAssign)
        and isinstance(site.node.target, ast.Name)
        and isinstance(site.above[-1], ast.ClassDef)
    }
    for name in (fields | defined) & chosen.keys():
        del chosen[name]
    keywords = {  # that expand to names of parameters
        key.value
        for tree in script.trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    expanded = [k for k in walk_all(script, ast.keyword) if isinstance(k, ast.keyword)]
    passed = any(keyword.arg is None for keyword in expanded)
    for name in (keywords if passed else set()) & chosen.keys():
        del chosen[name]
    for tree in script.trees.values():
        for node in ast.walk(tree):
            rename_node(node, chosen, defined)


def walk_all(script: Script, kind: type) -> list[ast.AST]:
    return [n for tree in script.trees.values() for n in ast.walk(tree) if isinstance(n, kind)]


def rename_node(node: ast.AST, chosen: dict[str, str], defined: set[str]) -> None:
    match node:
        case ast.Name(id=name) if name in chosen:
            node.id = chosen[name]
        case ast.arg(arg=name) if name in chosen:
            node.arg = chosen[name]
        case ast.Attribute(value=ast.Name(id="self" | "trainer"), attr=name) if name in chosen:
            node.attr = chosen[name]
        case ast.Global(names=names) | ast.Nonlocal(names=names):
            node.names = [chosen.get(name, name) for name in names]
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in defined:
            for keyword in node.keywords:
                keyword.arg = chosen.get(keyword.arg or "", keyword.arg)
        case ast.alias(name=name, asname=None) if name in chosen:
            node.asname = chosen[name]


def wrap_loader(script: Script, rng: random.Random) -> None:
    """Show progress: `for x, y in tqdm(loader)`."""
    for name, tree in script.trees.items():
        loops = [node for node in ast.walk(tree) if is_batch_loop(node)]
        if not loops or "tqdm" in all_names(tree):
            continue
        keywords = rng.choice(["", ", leave=False", ", desc='train', disable=True"])
        for loop in loops:
            source = loop.iter
            inner = match("enumerate(_a, *_r)", source)
            become(
                inner["_a"] if inner else source,
                build(f"tqdm(_a{keywords})", {"_a": copy_of(inner["_a"] if inner else source)}),
            )
        tree.body[first_import(tree) : first_import(tree)] = build_statements(
            "from tqdm import tqdm" if rng.random() < 0.5 else "from tqdm.auto import tqdm"
        )
        assert name


def copy_of(node: ast.AST) -> ast.AST:
    made = ast.AST.__new__(type(node))
    made.__dict__.update(node.__dict__)
    return made


def is_epoch_loop(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.For)
        and isinstance(node.target, ast.Name)
        and match("range(_n)", node.iter) is not None
        and node.target.id in ("epoch", "i", "ep")
        and not any(isinstance(inner, ast.Continue) for inner in ast.walk(node))
        and not node.orelse
    )


def count_batches(script: Script, rng: random.Random) -> None:
    """Iterate with `enumerate`, whose number nothing uses."""
    for tree in script.trees.values():
        taken = all_names(tree)
        for node in ast.walk(tree):
            if is_batch_loop(node) and not match("enumerate(_a, *_r)", node.iter):
                index = rng.choice([n for n in ("batch_idx", "step", "it", "_") if n not in taken])
                node.iter = build("enumerate(_a)", {"_a": node.iter})
                node.target = ast.Tuple([ast.Name(index, ast.Store()), node.target], ast.Store())


def count_epochs(script: Script, rng: random.Random) -> None:
    """Write the loop over epochs with `while`."""
    for tree in script.trees.values():
        for site in list(statements_of(tree, ())):
            node = site.node
            if not is_epoch_loop(node) or any(is_scope(a) for a in inner_loops(site.above)):
                continue
            count = match("range(_n)", node.iter)["_n"]
            name = node.target.id
            made = build_statements(f"{name} = 0\nwhile {name} < _n:\n    pass", {"_n": count})
            made[1].body = [*node.body, *build_statements(f"{name} += 1")]
            index = site.block.index(node)
            site.block[index : index + 1] = made


def inner_loops(above: tuple[ast.AST, ...]) -> list[ast.AST]:
    return [node for node in above if isinstance(node, (ast.For, ast.While))]


def is_scope(node: ast.AST) -> bool:
    return isinstance(node, (ast.For, ast.While))


def pull_batches(script: Script, rng: random.Random) -> None:
    """Take batches with `next` from an iterator, for as many times as there are batches."""
    for tree in script.trees.values():
        taken = all_names(tree)
        for site in list(statements_of(tree, ())):
            node = site.node
            if not is_batch_loop(node) or not isinstance(node.iter, (ast.Name, ast.Attribute)):
                continue
            if "batches" in taken or node.orelse or rng.random() < 0.5:
                continue
            made = build_statements(
                "batches = iter(_a)\nfor _index in range(len(_a)):\n    pass", {"_a": node.iter}
            )
            pull = ast.Assign([node.target], build("next(batches)", {}))
            made[1].body = [pull, *node.body]
            index = site.block.index(node)
            site.block[index : index + 1] = made


def nest_loop(script: Script, rng: random.Random) -> None:
    """Put loops over batches into a `with` block that changes nothing."""
    context = rng.choice(
        ["torch.autograd.set_detect_anomaly(False)", "torch.profiler.record_function('batches')"]
    )
    for tree in script.trees.values():
        if not any(isinstance(n, ast.Import) and n.names[0].name == "torch" for n in tree.body):
            continue
        for site in list(statements_of(tree, ())):
            if is_batch_loop(site.node):
                (made,) = build_statements(f"with {context}:\n    pass")
                made.body = [site.node]
                site.block[site.block.index(site.node)] = made


KEYWORDS = (
    ("torch.nn.functional.cross_entropy(_a, _b, **_k)", "(input=_a, target=_b, **_k)"),
    ("torch.nn.functional.nll_loss(_a, _b, **_k)", "(input=_a, target=_b, **_k)"),
    ("torch.nn.utils.clip_grad_norm_(_a, _b)", "(_a, max_norm=_b)"),
    ("torch.nn.utils.clip_grad_norm_(_a, _b)", "(parameters=_a, max_norm=_b, norm_type=2.0)"),
    ("_o.zero_grad()", "(set_to_none=True)"),
    ("torch.utils.data.DataLoader(_a, **_k)", "(dataset=_a, **_k)"),
    ("torch.optim.lr_scheduler.StepLR(_a, **_k)", "(optimizer=_a, **_k)"),
    ("torch.save(_a, _b)", "(obj=_a, f=_b)"),
    ("_m.to(_d)", "(device=_d)"),
)


def name_keywords(script: Script, rng: random.Random) -> None:
    """Pass arguments by name."""
    for pattern, arguments in KEYWORDS:
        if rng.random() < 0.5:
            continue
        if pattern.startswith("_m.to"):  # only what is surely a device
            pattern = pattern.replace("_d", "device")
            arguments = "(device=device)"
        function = pattern.partition("(")[0]
        for node in walk_all(script, ast.Call):
            bound = match(pattern, node)
            if bound is not None:
                become(node, build(f"{function}{arguments}", bound))


def name_parameters(script: Script, rng: random.Random) -> None:
    """Make a list of the parameters before the optimizer."""
    view = View(script)
    if "params_to_train" in view.source:
        return
    for site in list(view.calls("_o(_m.parameters(), **_k)")):
        if ast.unparse(site.bound["_o"]).startswith("torch.optim.") and rng.random() < 0.7:
            site.insert_before("params_to_train = list(_m.parameters())")
            assert isinstance(site.call, ast.Call)
            site.call.args[0] = ast.Name("params_to_train", ast.Load())


def wrap_main(script: Script, rng: random.Random) -> None:
    """Put the code at the top level into a function."""
    tree = script.trees[script.main]
    is_flat = any(isinstance(node, (ast.For, ast.While)) for node in tree.body)
    has_global = any(isinstance(node, ast.Global) for node in ast.walk(tree))
    if not is_flat or has_global or {"main", "run"} & all_names(tree):
        return
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef)
    inner = [node for node in tree.body if not isinstance(node, kept)]
    if ast.get_docstring(tree) is not None:
        inner = inner[1:]
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    bound = {n.id for s in inner for n in ast.walk(s) if is_stored(n)}
    bound |= {s.name for s in inner if isinstance(s, ast.FunctionDef)}
    outer = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    if any(n.id in bound for c in outer for n in ast.walk(c) if isinstance(n, ast.Name)):
        inner = [n for n in tree.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
        inner = inner[1:] if ast.get_docstring(tree) is not None else inner
    assert used
    name = rng.choice(["main", "run"])
    made = build_statements(f"def {name}():\n    pass\nif __name__ == '__main__':\n    {name}()")
    made[0].body = inner
    tree.body = [node for node in tree.body if node not in inner] + made
