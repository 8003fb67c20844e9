"""The tests of every program that runs a cell: a spec in, a result out that says of itself what it is."""

from __future__ import annotations

import json
import math

from zobench.result import Outcome, Result
from zobench.runspec import RunSpec
from zobench.testing.suite import refused


class ProgramConformance:
    """Anything that runs a cell. Give :meth:`run`, and :meth:`specs` where it cannot run the ones here."""

    def run(self, spec: RunSpec) -> Result:
        raise NotImplementedError

    def specs(self) -> list[RunSpec]:
        """Cells that it can run here, in seconds."""
        common = {"model": "opt-tiny", "seq_len": 8, "steps": 3, "warmup": 1, "device": "cpu", "lr": 1e-4}
        return [RunSpec(**common, engine=engine) for engine in ("resident", "offload")]  # type: ignore[arg-type]

    def refused_specs(self) -> list[RunSpec]:
        """Cells that it cannot run, each for a reason that it says in one line before it begins."""
        return [RunSpec(model="no-such-model", device="cpu")]

    def impossible_specs(self) -> list[RunSpec]:
        """Cells that begin and end without a measurement, whose result says why in one line."""
        return []

    def test_a_result_is_of_its_spec(self) -> None:
        for spec in self.specs():
            result = self.run(spec)
            assert result.outcome in (Outcome.OK, Outcome.CONTAMINATED), result.reason
            assert bool(result.reason) == (result.outcome is not Outcome.OK)
            fields = {key: value for key, value in spec.to_dict().items() if value not in ("auto", None)}
            assert {key: result.spec.to_dict()[key] for key in fields} == fields
            assert result.spec.hash == self.run(spec).spec.hash, "the same cell has the same name"

    def test_there_is_a_sample_of_every_step(self) -> None:
        for spec in self.specs():
            result = self.run(spec)
            for samples, count in ((result.samples, spec.steps), (result.warmup, spec.warmup)):
                assert {"step_seconds", "loss", "projected_grad"} <= samples.keys()
                assert {name: len(values) for name, values in samples.items()} == dict.fromkeys(samples, count)
            for seconds in result.samples["step_seconds"]:
                assert seconds is not None
                assert seconds > 0
            for loss in result.samples["loss"]:
                assert loss is not None
                assert 0 < loss < 2 * math.log(1e6)

    def test_the_same_spec_gives_the_same_losses(self) -> None:
        for spec in self.specs():
            assert self.run(spec).samples["loss"] == self.run(spec).samples["loss"]

    def test_it_says_where_it_ran_and_what_that_took(self) -> None:
        for spec in self.specs():
            result = self.run(spec)
            assert result.environment, "the machine and the versions"
            assert any(value for value in result.memory.values()), "some peak of memory"

    def test_a_result_is_json_and_comes_back_from_it(self) -> None:
        for spec in self.specs():
            result = self.run(spec)
            stored = json.loads(json.dumps(result.to_dict(), allow_nan=False))
            assert Result.from_dict(stored).to_dict() == result.to_dict()

    def test_what_cannot_run_is_refused_in_one_line(self) -> None:
        assert self.refused_specs()
        for spec in self.refused_specs():
            refused(lambda spec=spec: self.run(spec))  # type: ignore[misc]

    def test_a_cell_that_ends_early_says_why_in_one_line(self) -> None:
        for spec in self.impossible_specs():
            result = self.run(spec)
            assert result.outcome not in (Outcome.OK, Outcome.CONTAMINATED)
            assert result.reason
            assert "\n" not in result.reason
