"""A user's own data: label words, candidates of each row, free answers and plain text, trained and evaluated."""

import itertools
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast

from tests.support.callbacks import Acting, MachineDownError, crash
from tests.support.small_task import BAD, GOOD, NOUNS
from zobench import Batch, models
from zobench.cost import footprint, sizes
from zobench.data.tasks.file import task_of
from zobench.data.tasks.task_data import TaskData
from zobench.durable import snapshot
from zobench.models import tokenizers
from zobench.runspec import RunSpec
from zobench.store import Store
from zobench.training import finetune as run
from zobench.training.assemble import tuner
from zobench.training.assess import verify
from zobench.training.evaluate import evaluate, generate, greedy

ROWS = [
    {"text": f"a {word} {noun}", "great": word in GOOD, "pair": ["terrible", "great"], "right": int(word in GOOD),
     "said": ["great", "a fine great"] if word in GOOD else "terrible"}
    for noun in NOUNS for word in itertools.chain(*zip(GOOD, BAD, strict=True))
]  # fmt: skip
DATA = '[data]\npath = "rows.jsonl"\nsplit = { seed = 3, dev = 8, test = 0.3 }\n'
PROMPT = '[prompt]\ntemplate = "{text} It was"\n'
ASKS = {
    "labels": PROMPT + '[labels]\ncolumn = "great"\nwords = { false = "terrible", true = "great" }\n',
    "candidates": PROMPT + '[candidates]\ncolumn = "pair"\nanswer = "right"\nloss = "choice"\n',
    "answer": PROMPT + '[answer]\ncolumn = "said"\nmax_new_tokens = 3\nstop = " a"\n',
    "text": '[text]\ncolumn = "text"\n',
}


@pytest.fixture
def tune(tmp_path: Path, spec: Any) -> Any:
    """Makes the spec of a run on a file of these sections; the rows are beside it."""

    def make(name: str, text: str = "", **changes: Any) -> RunSpec:
        path = tmp_path / f"{name}.toml"
        path.write_text(text or DATA + ASKS[name])
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        made: RunSpec = spec(task=str(path), **changes)
        return made

    return make


def loaded(spec: RunSpec) -> TaskData:
    return TaskData.load(spec, tokenizers.load(spec)[0], positions=64, masked=False, data_dir=None)


@pytest.mark.parametrize("name", ASKS)
def test_a_run_trains_evaluates_and_is_stored_and_goes_on_as_one_that_was_not_stopped(name, tune, tmp_path) -> None:
    wanted = tune(name, steps=4, eval_every=2)
    result = run(wanted, folder=tmp_path / "run")
    facts = result.evaluation["task"]
    assert (facts["task"], facts["file_split"]) == (name, {"seed": 3, "test": 12, "dev": 8, "train": 20})
    assert facts["seeds"] == {"split": 0, "batches": 0}
    assert facts["sources"] == {key: f"rows.jsonl ({key})" for key in ("train", "dev", "test")}
    names = {"answer": ["f1", "exact_match"], "text": ["perplexity"]}.get(name, ["accuracy"])
    assert result.evaluation["scores"] == names
    assert set(names) < set(result.evaluation["test"])
    shutil.rmtree(tmp_path / "run" / "model")
    assert run(wanted, folder=tmp_path / "run") == result
    Store(tmp_path / "results").save(result)
    (tmp_path / f"{name}.toml").unlink()  # a result is loaded and shown without the file
    (stored,) = Store(tmp_path / "results").load()
    assert (stored.spec, stored.spec.label.split()[-2:]) == (wanted, result.spec.label.split()[-2:])
    assert stored.evaluation == json.loads(json.dumps(result.evaluation))
    assert RunSpec.from_dict(wanted.to_dict()).hash == wanted.hash
    with pytest.raises(ValueError, match=rf"`task` must be a TOML file, but .*{name}.toml cannot be read"):
        run(wanted, folder=tmp_path / "again")


def test_label_words_are_those_of_the_same_task_by_name(tune: Any, spec: Any, data_dir: Path, tmp_path: Path) -> None:
    """SST-2's rows through a file: the same examples, losses and evaluations, bit for bit."""
    folder = data_dir / "SST-2"
    text = (
        f'[data]\ntrain = "{folder}/train.tsv"\ntest = "{folder}/dev.tsv"\n[prompt]\ntemplate = "{{sentence}} It was"\n'
    )
    mine = tune("mine", text + '[labels]\ncolumn = "label"\nwords = { 0 = "terrible", 1 = "great" }\n')
    local, expected = run(mine, folder=tmp_path / "a"), run(spec(), folder=tmp_path / "b", data_dir=data_dir)
    for key in ("curve", "test", "best", "majority"):
        assert local.evaluation[key] == expected.evaluation[key]
    assert local.samples["loss"] == expected.samples["loss"]
    assert local.evaluation["task"]["labels"] == expected.evaluation["task"]["labels"]
    moved = shutil.move(tmp_path / "mine.toml", tmp_path / "b" / "mine.toml")  # by its path the run does not find it
    assert verify(tmp_path / "a", task_file=str(moved)).seen[1].point == local.evaluation["test"]


def test_a_run_with_generated_answers_that_crashed_ends_as_one_that_did_not(tune: Any, tmp_path: Path) -> None:
    wanted = tune("answer", steps=5, eval_every=2, **ENGINES["lazy"])
    whole = run(wanted, folder=tmp_path / "whole")
    with pytest.raises(MachineDownError):
        run(wanted, folder=tmp_path / "parts", callbacks=[Acting({3: crash})])
    snapshot.prune(tmp_path / "parts", ())  # from the base and the journal alone
    parts = run(wanted, folder=tmp_path / "parts", resume=True)
    assert parts.evaluation == whole.evaluation
    assert parts.samples["loss"] == whole.samples["loss"]
    first, other = (load_file(next((tmp_path / name / "model").glob("*.safetensors"))) for name in ("whole", "parts"))
    assert all(torch.equal(first[name], other[name]) for name in first)


ENGINES: dict[str, dict[str, Any]] = {
    "tiles": {"engine": "offload", "noise": "counter", "granularity": "tile"},
    "lazy": {"engine": "offload", "noise": "counter", "writeback_every": 3},
    "first order": {"method": "fo-sgd", "lr": 1e-2},
}


@pytest.mark.parametrize("way", ENGINES)
def test_what_is_generated_is_what_transformers_generates(way: str, tune: Any) -> None:
    """Greedy search of transformers, a prompt at a time and unpadded, on the weights after three steps."""
    wanted = tune("answer", **{"lr": 3e-2, **ENGINES[way]})
    data = loaded(wanted)
    prompts = [item.prompt for item in data.splits["dev"]]
    prompts = [ids[: 2 + number] for number, ids in enumerate(prompts[:3])] + prompts[3:]  # of different lengths
    with tuner(wanted) as built:
        for step in range(3):
            built.method.step(built.engine, data.train_batch(step))
        stop = greedy(built.engine, prompts, most=6, ends=lambda tokens: False, pad=1)[0][1]
        answers = greedy(built.engine, prompts, most=6, ends=lambda tokens: tokens[-1] in (stop, 2), pad=1)
        tensors = dict(built.engine.named_tensors())
    model = models.build("opt-tiny", wanted.dtype)
    model.to_empty(device="cpu")
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    model.eval()
    config = GenerationConfig(do_sample=False, max_new_tokens=6, eos_token_id=[stop, 2], pad_token_id=1, bos_token_id=2)
    for ids, mine in zip(prompts, answers, strict=True):
        whole = torch.tensor([ids])
        theirs = model.generate(whole, attention_mask=torch.ones_like(whole), generation_config=config)
        assert mine == theirs[0, len(ids) :].tolist()
    assert len({tuple(answer) for answer in answers}) > 1
    assert any(len(mine) < 6 for mine in answers)


@pytest.mark.parametrize(
    ("stop", "written"), [("\n", " great.\n bad"), (" END", " great. END bad"), ("<end>", " great.<end> bad")]
)
def test_an_answer_is_what_stands_before_the_stop(stop: str, written: str, tune: Any) -> None:
    """Also where a token holds more than the stop, as that of ".\\n" of many tokenizers does."""
    tokenizer = Tokenizer(BPE({char: n for n, char in enumerate([*ByteLevel.alphabet(), ".Ċ"])}, [(".", "Ċ")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        ByteLevel(add_prefix_space=False, use_regex=False),
        decoders.ByteLevel(),
    )
    data = replace(loaded(tune("answer")), tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    goal = replace(data.asked.goal, stop=stop, new_tokens=40)
    data = replace(data, task=replace(data.asked, goal=goal))
    tokens, item = tokenizer.encode(written).ids, data.splits["dev"][0]

    def next_logits(batch: Batch) -> torch.Tensor:
        return functional.one_hot(
            torch.tensor([tokens[batch.input_ids.shape[1] - len(item.prompt)]]), len(tokens) + 300
        )

    engine: Any = SimpleNamespace(next_logits=next_logits)
    assert generate(engine, data, [item]) == ["great."]


def test_text_that_fills_no_row_is_refused_before_a_run(tune: Any, tmp_path: Path) -> None:
    (tmp_path / "nothing.jsonl").write_text('{"text": ""}\n')
    wanted = tune("text", '[data]\ntrain = "rows.jsonl"\ntest = "nothing.jsonl"\n' + ASKS["text"])
    with pytest.raises(ValueError, match=r"nothing\.jsonl: a set must have an example that has a loss, but has none"):
        loaded(wanted)


def test_the_loss_of_an_answer_is_that_of_its_tokens_alone(tune: Any) -> None:
    wanted = tune("answer")
    data = loaded(wanted)
    batch = data.train_batch(0)
    assert batch.choices.loss == "lm"
    words = tokenizers.load(wanted)[0]
    for row, tokens in zip(range(4), batch.choices.tokens.view(4, -1).tolist(), strict=True):
        text = words.decode(batch.input_ids[row], skip_special_tokens=True)
        assert text.endswith("It was " + words.decode(tokens[:1]))
        assert words.convert_ids_to_tokens(tokens)[-1] == "a"  # the stop is trained too
    with tuner(wanted) as built:
        loss = built.engine.evaluate(batch)
        model = built.engine.model
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        picked = logits.log_softmax(-1)[batch.choices.places[:, 0], batch.choices.places[:, 1], batch.choices.tokens]
    assert loss == pytest.approx(float(-picked.mean()), rel=1e-6)


def test_plain_text_is_packed_and_its_loss_is_that_of_transformers(tune: Any, tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("".join(f"{row['text']}\n\n" for row in ROWS))
    (tmp_path / "test.txt").write_text("a fine film It was great\nIt was\n")
    wanted = tune("plain", '[data]\ntrain = "train.txt"\ntest = "test.txt"\n[text]\n', seq_len=7, dev_size=5)
    data = loaded(wanted)
    words = tokenizers.load(wanted)[0]
    stream = [token for row in ROWS for token in [*words(row["text"], add_special_tokens=False)["input_ids"], 2]]
    rows = [tuple(stream[first : first + 7]) for first in range(0, len(stream), 7)]
    assert {item.rows[0] for name in ("train", "dev") for item in data.splits[name]} == set(rows)
    assert sorted(len(item.rows[0]) for item in data.splits["test"]) == [3, 7]
    assert data.facts["counts"] == {"train": 19, "dev": 4, "test": 2}  # a fifth of 23 rows
    with tuner(wanted) as built:
        seen, model = evaluate(built.engine, data, "test", 0), built.engine.model
        losses, tokens = 0.0, 0
        for item in data.splits["test"]:
            ids = torch.tensor([item.rows[0]])
            losses += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
            tokens += ids.shape[1] - 1
    assert seen.count == tokens == 8
    assert seen.loss == pytest.approx(losses / tokens, rel=1e-6)
    assert seen.scores == {"perplexity": math.exp(seen.loss)}


def test_a_run_is_named_by_what_its_file_and_data_say_and_by_no_path(tune: Any, spec: Any, tmp_path: Path) -> None:
    first = tune("labels")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in ("labels.toml", "rows.jsonl"):
        shutil.copy(tmp_path / name, moved / name)
    other = spec(task=str(moved / "labels.toml"))
    assert (first.hash, first.task) == (other.hash, other.task)
    assert first.task_file != other.task_file
    text = (moved / "labels.toml").read_text()
    for path, changed in (
        ("labels.toml", text.replace("seed = 3", "seed = 4")),
        ("rows.jsonl", (moved / "rows.jsonl").read_text().replace("film", "movie", 1)),
    ):
        before = (moved / path).read_text()
        (moved / path).write_text(changed)
        assert spec(task=str(moved / "labels.toml")).hash != first.hash, changed
        with pytest.raises(ValueError, match="must say what it said when the run began"):
            task_of(other)
        (moved / path).write_text(before)
    (moved / "labels.toml").write_text("# a remark\n" + text + "\n")
    assert spec(task=str(moved / "labels.toml")).hash == first.hash
    (moved / "labels.toml").write_text('name = "reviews"\n' + text)
    named = spec(task=str(moved / "labels.toml"))
    assert "reviews" in named.label.split()


def test_a_plan_knows_the_lengths_of_its_texts(tune: Any) -> None:
    asked = tune("labels", seq_len=2048)
    assert (sizes.longest(asked), sizes.usual(asked)) == (16, 16)
    text = tune("text", seq_len=64)
    assert sizes.longest(text) == 64
    assert sizes.judged(text) == 4 * 64
    assert footprint.memory(asked)[0] > 0
