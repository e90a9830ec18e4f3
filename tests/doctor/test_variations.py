"""Examples of rules with a line changed: how often their rule still reports them.

Each of the changes is one thing that distinguishes a correct script from one with the mistake.
"""

from dataclasses import dataclass

import pytest

from surestep.doctor.rule import load_rules, read_example
from tests.doctor.scripts import check_text

RULES = {rule.code: rule for rule in load_rules()}


@dataclass(frozen=True)
class Variation:
    """A changed example.

    Attributes:
        title: what the change is.
        code: of the rule.
        example: its name.
        changes: new text for text of the example, which is there once.
        findings: of the rule.
    """

    title: str
    code: str
    example: str
    changes: dict[str, str]
    findings: int = 0

    def write(self) -> str:
        """Return the changed script."""
        text = read_example(RULES[self.code].examples(self.example.partition("_")[0])[self.example])
        for old, new in self.changes.items():
            assert text.count(old) == 1, f"{old!r} is {text.count(old)} times in {self.example}"
            text = text.replace(old, new)
        return f"{text}\n"


VARIATIONS = [
    Variation(
        "the model may be on a GPU, from which .cpu() copies",
        "SS406",
        "bad_moved_to_the_same_cpu",
        {"model = torch.nn.Linear(4, 1)\n": "from elsewhere import model\n"},
    ),
    Variation(
        "data shares memory too",
        "SS406",
        "bad_dict_of_the_same_tensors",
        {"key: value for": "key: value.data for"},
        findings=1,
    ),
    Variation(
        "no step follows",
        "SS406",
        "bad_loaded_after_the_loop",
        {"best_state = model.state_dict()": "best_state = model.state_dict(); break"},
    ),
    Variation(
        "the loop does not train",
        "SS406",
        "bad_loaded_after_the_loop",
        {"optimizer.step()": "pass"},
    ),
    Variation(
        "the state is only shown",
        "SS406",
        "bad_loaded_after_the_loop",
        {"model.load_state_dict(best_state)": "print(best_state)"},
    ),
    Variation(
        "a call is reported, and not the comparison in it",
        "SS407",
        "bad_stops_by_the_test_data",
        {},
        findings=1,
    ),
    Variation(
        "the comparisons of one object are reported once",
        "SS407",
        "bad_stops_by_the_test_data",
        {
            "def __call__(self, loss):": "def check(self, loss):",
            "self.count += 1": "self.count += 1 if loss > 2 * self.lowest else 0",
            "return self.count": "if loss > 9: return True\n        return self.count",
            "if stop(test_loss)": "if stop.check(test_loss)",
        },
        findings=1,
    ),
    Variation(
        "the data is for validation",
        "SS407",
        "bad_given_as_a_parameter",
        {
            "train_batches, test_loader)": "train_batches, val_test_loader)",
            "in test_loader": "in val_test_loader",
        },
    ),
    Variation(
        "what is given the result is no schedule",
        "SS407",
        "bad_learning_rate_by_the_test_data",
        {
            "torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)": "Meter()",
            "import torch\n": "import torch\nfrom elsewhere import Meter\n",
        },
    ),
    Variation(
        "every epoch is saved, also without a good result",
        "SS407",
        "bad_best_epoch_of_a_test_loader",
        {"best = accuracy\n        file": "print(accuracy)\n    if True:\n        file"},
    ),
    Variation(
        "the logits are masked",
        "SS508",
        "bad_collated",
        {"model(tokens).tr": "model(tokens).masked_fill((tokens == 0)[..., None], 0).tr"},
    ),
    Variation(
        "a value that is ignored is written into the targets",
        "SS508",
        "bad_language_model",
        {"logits = ": "tokens[tokens == PAD] = -100\nlogits = "},
    ),
    Variation(
        "a function, which may get the targets, fills rows",
        "SS508",
        "bad_language_model",
        {"PAD = 0\n": "PAD = 0\ndef fill(rows):\n    rows.fill_(-100)\n"},
    ),
    Variation(
        "padding has the weight 0",
        "SS508",
        "bad_collated",
        {"CrossEntropyLoss()": "CrossEntropyLoss(weight=torch.tensor([0.0, 1, 1, 1, 1]))"},
    ),
    Variation(
        "the module is told later what it ignores",
        "SS508",
        "bad_collated",
        {"for tokens, labels": "criterion.ignore_index = 0\nfor tokens, labels"},
    ),
    Variation(
        "the transform learns again, from the training part",
        "SS604",
        "bad_fit_on_everything",
        {"X_train, X_test =": "scaler.fit(split[0])\nX_train, X_test ="},
    ),
    Variation(
        "the same columns are learned from and split",
        "SS604",
        "bad_fit_on_everything",
        {
            "fit(X)": "fit(X[['a', 'b']])",
            "train_test_split(X, y": "train_test_split(X[['a', 'b']], y",
        },
        findings=1,
    ),
    Variation(
        "other columns are learned from than are split",
        "SS604",
        "bad_fit_on_everything",
        {"fit(X)": "fit(X[['a', 'b']])", "train_test_split(X, y": "train_test_split(X[['c']], y"},
    ),
    Variation(
        "missing values become a constant",
        "SS604",
        "bad_slices",
        {"SimpleImputer()": 'SimpleImputer(strategy="constant")'},
    ),
    Variation(
        "the class is of code that is not known",
        "SS604",
        "bad_scaler_before_the_split",
        {"from sklearn.preprocessing import": "from elsewhere import"},
    ),
    Variation(
        "another object transforms",
        "SS604",
        "bad_selection_before_cross_validation",
        {"X_selected = selector": "X_selected = SelectPercentile().fit(X[:20], y[:20])"},
    ),
    Variation(
        "both are shuffled after the pair is made",
        "SS610",
        "bad_two_shuffles",
        {
            "np.random.shuffle(X)\nnp.random.shuffle(y)\n": "",
            "torch.tensor(y))": "torch.tensor(y))\nnp.random.shuffle(X)",
        },
    ),
    Variation(
        "the labels are computed after their inputs are shuffled",
        "SS610",
        "bad_two_shuffles",
        {
            ", y =": " =",
            ", np.random.randint(2, size=20)": "",
            "np.random.shuffle(y)": "y = X.sum(1) > 0",
        },
    ),
    Variation(
        "the pair in its first order is used too, as by a permutation test",
        "SS610",
        "bad_inputs_alone",
        {"order = ": "nn.functional.cross_entropy(model(x), y).backward()\n    order = "},
    ),
    Variation(
        "the labels depend on the size of the inputs only",
        "SS610",
        "bad_inputs_alone",
        {"y = (x.sum(1) > 0).long()": "y = torch.zeros(len(x)).long()"},
    ),
    Variation(
        "the labels are brought into the order too",
        "SS610",
        "bad_inputs_alone",
        {"x = x[order]": "x, y = x[order], y[order]"},
    ),
    Variation(
        "no other model is trained",
        "SS808",
        "bad_second_model",
        {"optimizer.step()": "pass"},
    ),
    Variation(
        "a global name may be read elsewhere",
        "SS808",
        "bad_second_model",
        {"resumed = torch": "global resumed\nresumed = torch"},
    ),
    Variation(
        "the state is of no file",
        "SS808",
        "bad_second_model",
        {'torch.load("missing.pt", map_location="cpu")': '{"model": model.state_dict()}'},
    ),
    Variation(
        "the model is used",
        "SS808",
        "bad_second_model",
        {"for _ in range(3):": "models = [model, resumed]\nfor _ in range(3):"},
    ),
    Variation(
        "the object is replaced in a branch",
        "SS808",
        "bad_new_optimizer",
        {'["optimizer"])\noptimizer =': '["optimizer"])\nif RESTARTS:\n    optimizer ='},
    ),
    Variation(
        "a part of the names is saved on purpose",
        "SS808",
        "bad_names_skipped",
        {"optimizer = ": "model.adapter = torch.nn.Linear(1, 1)\noptimizer = "},
    ),
    Variation(
        "the names that differ are read",
        "SS808",
        "bad_names_skipped",
        {"model.load_state_dict": "differing = model.load_state_dict"},
    ),
    Variation(
        "distances to all levels are averaged",
        "SS405",
        "good_distances_to_centers",
        {"to_levels.amin(1)": "to_levels.mean(1)"},
        findings=1,
    ),
    Variation(
        "the least of all distances is not one of a row",
        "SS405",
        "good_distances_to_centers",
        {"to_levels.amin(1)": "to_levels.amin()"},
        findings=1,
    ),
    Variation(
        "distances to all levels are ranked by softmax",
        "SS405",
        "good_distances_to_centers",
        {"to_levels.amin(1)": "torch.softmax(-to_levels, 1).amin()"},
    ),
    Variation(
        "samples for evaluation are transformed only",
        "SS604",
        "bad_scaler_fitted_again",
        {"scaler.fit_transform(X_test)": "scaler.transform(X_test)"},
    ),
    Variation(
        "samples for evaluation are fitted to show them",
        "SS604",
        "bad_scaler_fitted_again",
        {"torch.tensor(scaler.fit_transform(X_test))": "print(scaler.fit_transform(X_test))"},
    ),
    Variation(
        "samples for training are not fitted",
        "SS604",
        "bad_scaler_fitted_again",
        {"scaler.fit_transform(X_train)": "X_train"},
    ),
    Variation(
        "samples for training are fitted by something else",
        "SS604",
        "bad_scaler_fitted_again",
        {
            "scaler.fit_transform(X_train)": "PCA().fit_transform(X_train)",
            "import StandardScaler": "import StandardScaler\nfrom sklearn.decomposition import PCA",
        },
    ),
    Variation(
        "other samples are fitted",
        "SS604",
        "bad_scaler_fitted_again",
        {"(X_test))": "(np.load('test.npy')))"},
    ),
    Variation(
        "another scaler of the same class learns",
        "SS604",
        "bad_scaler_fitted_again",
        {"scaler.fit_transform(X_test)": "StandardScaler().fit_transform(X_test)"},
        findings=1,
    ),
    Variation(
        "all ranks call main()",
        "SS804",
        "bad_in_class",
        {"def save(self)": "def main(self)", '("out").save()': '("out").main()'},
        findings=1,
    ),
    Variation(
        "a function has the name of the main process",
        "SS804",
        "bad_in_class",
        {"def save(self)": "def save_on_main(self)", '("out").save()': '("out").save_on_main()'},
    ),
    Variation(
        "a device is chosen by whether there is a GPU",
        "SS902",
        "bad_cuda",
        {".cuda()": ".to(torch.device('cuda' if torch.cuda.is_available() else 'cpu'))"},
        findings=1,
    ),
]


@pytest.mark.parametrize("variation", VARIATIONS, ids=lambda variation: variation.title)
def test_changed_example_is_reported(variation):
    assert len(check_text(variation.write(), variation.code)) == variation.findings
