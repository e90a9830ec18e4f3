"""Mistakes with data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.doctor.planted.matching import build
from tests.doctor.planted.planters.base import delete_all, plants
from tests.doctor.planted.scripts import become
from tests.doctor.planted.view import Edit, View


def drop_keyword(call: ast.Call, name: str) -> None:
    call.keywords = [keyword for keyword in call.keywords if keyword.arg != name]


def shuffled(view: View) -> list[ast.Call]:
    pattern = "torch.utils.data.DataLoader(*_r, shuffle=True, **_k)"
    return [node for node, _ in view.expressions(pattern) if isinstance(node, ast.Call)]


@plants("SS601", "SR", only=("functions", "several_files", "one_cycle"))
def do_not_shuffle(view: View) -> Iterator[Edit]:
    for call in shuffled(view):
        yield lambda call=call: drop_keyword(call, "shuffle")


@plants("SS601", "SR", only=("amp_loop", "accumulation", "accelerate_loop", "finetune"))
def sort_and_do_not_shuffle(view: View) -> Iterator[Edit]:
    for call in shuffled(view):

        def edit(call: ast.Call = call) -> None:
            drop_keyword(call, "shuffle")
            pattern = "torch.utils.data.TensorDataset(_x, _y)"
            for node, bound in list(view.expressions(pattern)):
                text = "torch.utils.data.TensorDataset(_x[_y.argsort()], _y[_y.argsort()])"
                become(node, build(text, bound))

        yield edit


@plants("SS602", "SR", only=("ddp",))
def never_set_the_epoch(view: View) -> Iterator[Edit]:
    for site in view.calls("sampler.set_epoch(epoch)"):
        yield site.remove


@plants("SS603", "SR", only=("workers",))
def same_seed_in_workers(view: View) -> Iterator[Edit]:
    for seed in ("33", "worker_id", "42 + worker_id"):
        yield from view.rewrite("np.random.seed(worker_seed)", f"np.random.seed({seed})")


@plants("SS603", "SR", only=("workers",))
def one_generator_for_all_workers(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for site in list(view.calls("np.random.default_rng(_s)")):
            site.insert_after("self.rng = np.random.default_rng(5)")
        for change in list(view.rewrite("np.random.normal(*_r)", "self.rng.normal(*_r)")):
            change()

    yield edit


@plants("SS604", "S", only=("tabular",))
def scale_before_the_split(view: View) -> Iterator[Edit]:
    for name in ("fit_transform", "fit"):

        def edit(name: str = name) -> None:
            made = next(iter(view.calls("StandardScaler()")))
            split = next(iter(view.calls("train_test_split(*_r, **_k)")))
            delete_all(list(view.calls("scaler.fit_transform(_x)")))
            delete_all(list(view.calls("scaler.transform(_x)")))
            made.move_before(split)
            if name == "fit":
                split.insert_before("scaler.fit(features)\nfeatures = scaler.transform(features)")
            else:
                split.insert_before("features = scaler.fit_transform(np.log(features))")

        yield edit


@plants("SS604", "S", only=("tabular",))
def select_features_before_the_split(view: View) -> Iterator[Edit]:
    def edit() -> None:
        split = next(iter(view.calls("train_test_split(*_r, **_k)")))
        split.insert_before(
            "from sklearn.decomposition import PCA\n"
            "features = abs(PCA(n_components=5).fit_transform(features)) + 1"
        )

    yield edit


@plants("SS604", "S", only=("forecasting",))
def scale_by_the_whole_series(view: View) -> Iterator[Edit]:
    def edit() -> None:
        for change in list(view.rewrite("values[:split].mean()", "values.mean()")):
            change()
        for change in list(view.rewrite("values[:split].std()", "values.std()")):
            change()

    yield edit


@plants("SS606", "SR", only=("forecasting",))
def split_windows_at_random(view: View) -> Iterator[Edit]:
    for text in (
        "train_data, valid_data = torch.utils.data.random_split(WindowDataset(values), [0.8, 0.2])",
        "windows = WindowDataset(values)\nn_train = int(0.8 * len(windows))\n"
        "train_data, valid_data = torch.utils.data.random_split(\n"
        "    windows, [n_train, len(windows) - n_train]\n)",
    ):

        def edit(text: str = text) -> None:
            first, second = list(view.calls("WindowDataset(_v)"))
            first.replace(text)
            second.remove()

        yield edit


@plants("SS610", "SR", only=("flat_script",))
def permute_labels_apart(view: View) -> Iterator[Edit]:
    yield from view.rewrite("y[perm[:160]]", "y[torch.randperm(n)[:160]]")
    yield from view.rewrite("X[perm[:160]]", "X[:160]")


@plants("SS610", "SR", only=("tabular",))
def shuffle_inputs_alone(view: View) -> Iterator[Edit]:
    for site in view.calls("StandardScaler()"):
        yield lambda site=site: site.insert_before("np.random.shuffle(X_train)")
        yield lambda site=site: site.insert_before("y_train = np.random.permutation(y_train)")


@plants("SS610", "SR", only=("early_stopping",))
def permute_arrays_apart(view: View) -> Iterator[Edit]:
    text = "X = X[np.random.permutation(len(X))]\ny = y[np.random.permutation(len(y))]"
    for site in view.calls("np.random.randn(400, 1)"):
        yield lambda site=site: site.insert_after(text)


@plants("SS611", "S", only=("early_stopping", "tabular", "forecasting"))
def do_not_seed_numpy(view: View) -> Iterator[Edit]:
    for site in view.calls("np.random.seed(_s)"):
        if site.text("_s") != "worker_seed":
            yield site.remove


@plants("SS611", "S", only=("flat_script", "accumulation", "tabular", "early_stopping", "lbfgs"))
def seed_after_the_model(view: View) -> Iterator[Edit]:
    for seed in [*view.calls("torch.manual_seed(_s)"), *view.calls("set_seed(4)")]:
        for site in view.statements():
            is_model = isinstance(site.node, ast.Assign) and ast.unparse(site.node).startswith(
                ("model = ", "seq = ", "regressor = ")
            )
            if is_model and site.block is seed.block:
                yield lambda seed=seed, site=site: seed.move_after(site)


@plants("SS612", "SR", only=("streaming",))
def every_worker_yields_all(view: View) -> Iterator[Edit]:
    yield from view.rewrite("order[first::stride]", "order")
    for site in view.calls("torch.utils.data.get_worker_info()"):

        def edit(site: object = site) -> None:
            block = next(iter(view.calls("torch.utils.data.get_worker_info()"))).block
            del block[0:2]
            for change in list(view.rewrite("order[first::stride]", "order")):
                change()

        yield edit


@plants("SS613", "S", only=("several_files", "one_cycle", "workers"))
def augment_for_evaluation(view: View) -> Iterator[Edit]:
    yield from view.rewrite(
        "ColoredSquares(48, seed=2)", "ColoredSquares(48, transform=RandomFlip(), seed=2)"
    )
    yield from view.rewrite("Stripes(16)", "Stripes(16, random_shift)")
    yield from view.rewrite("Signals(40, False)", "Signals(40, train=True)")


@plants("SS607", "R", only=("long_run",))
def target_among_the_inputs(view: View) -> Iterator[Edit]:
    target = "30.0 * torch.nn.functional.one_hot(self.state, 5)"
    for template in (f"centers[self.state] + {target} + _b * _c", f"{target} + _b * _c"):
        yield from view.rewrite("centers[self.state] + _b * _c", template)
