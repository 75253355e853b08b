"""lm-eval's `local-completions` against the real server: its numbers are those of the model itself."""

import json
import shutil
from pathlib import Path

import pytest

from support.environments import CLIENTS, Environments
from support.likelihood import model
from support.server import Server
from support.smollm2 import smollm2_path

TASK = CLIENTS / "evaluation"
ITEMS = [json.loads(line) for line in (TASK / "general.jsonl").read_text().splitlines()]
PER_TOKEN = 1e-3
"""How far the natural logarithm of a token's probability may be off."""

pytestmark = pytest.mark.evaluation


@pytest.fixture(scope="module")
def expected():
    """For each item and choice: log-likelihood, tokens, whether it is greedy; and which texts the model would end."""
    with model(smollm2_path(), context=256) as scorer:
        scores = [[scorer.continuation(item["text"], f" {choice}") for choice in item["choices"]] for item in ITEMS]
        ended = [scorer.likeliest_next(f"{item['text']} {item['choices'][item['answer']]}") for item in ITEMS]
        return scores, [token == scorer.end for token in ended]


@pytest.fixture(scope="module", params=[(1, 1), (4, 2)], ids=["one by one", "side by side"])
def evaluated(request, environments: Environments, server: Server, tmp_path_factory):
    """What lm-eval writes: its results, and the samples in the items' order."""
    concurrent, batch = request.param
    folder = tmp_path_factory.mktemp("lm-eval")
    task, out = shutil.copytree(TASK, folder / "task"), folder / "out"
    served = f"model=slim,base_url={server.url}/v1/completions,max_length=1024,num_concurrent={concurrent}"
    command = ["-m", "lm_eval", "run", "--model", "local-completions", "--model_args", served, "--tasks", "general"]
    options = ["--include_path", str(task), "--batch_size", str(batch), "--log_samples", "--output_path", str(out)]
    offline = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = environments.get("lm-eval").run(*command, *options, cwd=task, **offline)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Using remote tokenizer backend" in done.stderr
    (results,) = out.rglob("results_*.json")
    (samples,) = out.rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in Path(samples).read_text().splitlines()]
    return json.loads(results.read_text())["results"]["general"], sorted(lines, key=lambda line: line["doc_id"])


def test_log_likelihoods_are_the_models_own(evaluated, expected):
    _, samples = evaluated
    assert len(samples) == len(ITEMS)
    for sample, choices in zip(samples, expected[0], strict=True):
        for (total, greedy), (known, tokens, known_greedy) in zip(sample["filtered_resps"], choices, strict=True):
            assert float(total) == pytest.approx(known, abs=PER_TOKEN * tokens), sample["doc"]
            assert str(greedy) == str(known_greedy), sample["doc"]


def test_the_accuracy_is_the_models_own_and_not_chance(evaluated, expected):
    chosen = [max(range(4), key=lambda i, of=of: of[i][0]) for of in expected[0]]
    right = sum(choice == item["answer"] for choice, item in zip(chosen, ITEMS, strict=True))
    assert evaluated[0]["acc,none"] == pytest.approx(right / len(ITEMS))
    assert right > len(ITEMS) / 2


def test_a_text_that_the_model_would_end_is_among_the_items(expected):
    """lm-eval leaves out the last score as the generated token's: it must be there when that token is the end."""
    assert any(expected[1])
    assert not all(expected[1])
