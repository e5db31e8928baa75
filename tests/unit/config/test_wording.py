"""What is wrong with one value, in words."""

import pytest

from disagmoe.config.load import override, parse_run_config
from disagmoe.config.starter import STARTER
from disagmoe.errors import ConfigError

WRONG = {
    # unknown names
    "train.lr=3": "train.lr is no setting; did you mean train.optimizer.lr?",
    "num_expert=8": "num_expert is no setting; did you mean model.experts?",
    "optimizer.lr=3": "[optimizer] is no table; did you mean [train.optimizer]?",
    "trian.steps=4": "[trian] is no table; did you mean [train]?",
    "foo.num_experts=1": "foo.num_experts is no setting; did you mean model.experts?",
    "foo.bar.baz=1": "foo.bar.baz is no setting; `disagmoe config explain` lists all",
    "foo=1": "foo is no setting; `disagmoe config explain` lists all",
    "foo={}": (
        "[foo] is no table; the tables are model, parallel, train, data, cluster, checkpoint and "
        "trace"
    ),
    "train.eval.zq=1": (
        "train.eval.zq is no setting; "
        "the settings of [train.eval] are train.eval.every and train.eval.sequences"
    ),
    "train.zq={}": (
        "[train.zq] is no table; the tables of [train] are train.optimizer, train.lr_schedule, "
        "train.loss and train.eval"
    ),
    # wrong types
    'train.optimizer.lr="1e-4"': (
        'train.optimizer.lr = "1e-4" is text; expected a number > 0: write it without quotes'
    ),
    "train.optimizer.lr=high": 'train.optimizer.lr = "high" is text; expected a number > 0',
    'train.steps="10"': 'train.steps = "10" is text; expected an integer >= 1: '
    "write it without quotes",
    'train.steps="1.5"': 'train.steps = "1.5" is text; expected an integer >= 1',
    "train.steps=10.0": (
        "train.steps = 10.0 is a decimal number; expected an integer >= 1: write 10"
    ),
    "train.steps=1.5": "train.steps = 1.5 is a decimal number; expected an integer >= 1",
    "train.steps=true": "train.steps = true is a boolean; expected an integer >= 1",
    "train.steps=[1]": "train.steps = [1] is a list; expected an integer >= 1",
    "train.steps={a=1}": 'train.steps = {"a" = 1} is a table; expected an integer >= 1',
    'model.tied_embeddings="true"': (
        'model.tied_embeddings = "true" is text; expected true or false: write it without quotes'
    ),
    "model.tied_embeddings=1": "model.tied_embeddings = 1 is an integer; expected true or false",
    "name=7": 'name = 7 is an integer; expected text: put it in quotes, "7"',
    "name=2024-01-01": (
        'name = 2024-01-01 is a date or time; expected text: put it in quotes, "2024-01-01"'
    ),
    "data.paths=x": (
        'data.paths = "x" is text; expected a list of texts, at least 1: put it in brackets, ["x"]'
    ),
    'data.paths=["x", 3]': (
        'data.paths[1] = 3 is an integer; expected text: put it in quotes, "3"'
    ),
    'data.weights=["a"]': 'data.weights[0] = "a" is text; expected a number',
    "train=3": "train = 3 is an integer; expected a table [train]",
    # illegal values
    "model.hidden=-4": "model.hidden = -4; expected an integer >= 1",
    "train.optimizer.lr=0": "train.optimizer.lr = 0; expected a number > 0",
    "train.optimizer.lr=nan": "train.optimizer.lr = nan; expected a number > 0, and finite",
    "train.optimizer.beta1=1": "train.optimizer.beta1 = 1; expected a number >= 0 and < 1",
    "parallel.schedule=1f1b": 'parallel.schedule = "1f1b"; expected "af_pipe", '
    '"ep_1f1b", "ep_overlap" or "serial"',
    "parallel.tensor=2": "parallel.tensor = 2; expected 1, the only value for now",
    "parallel.rings=0": "parallel.rings = 0; expected an integer >= 1",
    "cluster.mode=true": 'cluster.mode = true; expected "local" or "cluster"',
    "cluster.nic_map=3": ("cluster.nic_map = 3 is an integer; expected a table of lists of texts"),
    'cluster.nic_map={"A0.0"="x"}': (
        'cluster.nic_map.A0.0 = "x" is text; expected a list of texts: put it in brackets, ["x"]'
    ),
    'cluster.nic_map={"A0.0"=["x", 3]}': (
        'cluster.nic_map.A0.0[1] = 3 is an integer; expected text: put it in quotes, "3"'
    ),
    "data.paths=[]": "data.paths = []; expected a list of texts, at least 1",
    f"cluster.mode={'x' * 100}": (f'cluster.mode = "{"x" * 56}...; expected "local" or "cluster"'),
}


@pytest.mark.parametrize(("assignment", "problem"), WRONG.items())
def test_wrong(assignment: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, [assignment])
    assert caught.value.problems == [f"{problem} (--set {assignment})"]


def test_a_value_from_the_file_names_no_set() -> None:
    tree = STARTER.model_dump()
    tree["model"]["hidden"] = 0
    with pytest.raises(ConfigError) as caught:
        parse_run_config(tree)
    assert caught.value.problems == ["model.hidden = 0; expected an integer >= 1"]
