"""CITATION.cff, the changelog, workflows, issue forms, hooks and bounds: what nothing here runs is checked."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import zobench
from tests.support.files import module_at
from zobench.recipes.reference import PAPERS

ROOT = Path(__file__).parents[2]


release_notes = module_at(ROOT / ".ci/release_notes.py")
lowest = module_at(ROOT / ".ci/lowest.py")
readme_links = module_at(ROOT / ".ci/readme_links.py")
RELEASE = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_names_this_version_and_each_paper_whose_values_are_here() -> None:
    assert (CITATION["title"].split(":")[0], CITATION["version"]) == ("zobench", zobench.__version__)
    papers = CITATION["references"]
    assert {paper["abbreviation"] for paper in papers} == set(PAPERS.values())


def test_the_page_that_says_how_to_cite_has_this_version_and_each_paper_as_the_citation_has_it() -> None:
    page = " ".join((ROOT / "docs/cite.md").read_text(encoding="utf-8").split())
    assert f"version = {{{zobench.__version__}}}" in page
    entries = page.split("@")[1:]
    for cited in [CITATION, *CITATION["references"]]:
        (entry,) = [entry for entry in entries if f"= {{{cited['title']}}}" in entry]
        names = [
            f"{author['family-names']}, {author['given-names']}"
            for author in cited["authors"]
            if "family-names" in author
        ]
        assert not names or f"author = {{{' and '.join(names)}}}" in entry


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("vendor.citation-file-format", "CITATION.cff"),
        ("vendor.github-workflows", ".github/workflows/*.yml"),
        ("vendor.github-actions", "action.yml"),
        ("vendor.github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
    ],
)
def test_files_for_others_fit_the_schemas_that_others_wrote(schema: str, pattern: str) -> None:
    paths = sorted(map(str, ROOT.glob(pattern)))
    assert paths
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, "--force-filetype", "yaml", *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("CITATION.cff", "\nversion: ", "\nversion: 9.",
         "one version must be named, but CHANGELOG.md has .* CITATION.cff 9"),
        ("CITATION.cff", "-released: 20", "-released: 19", "one day must be named, but CHANGELOG.md has 20.* 19"),
        ("zobench/version.py", '= "', '= "9.', "one version must be named, .* zobench/version.py 9"),
        ("CHANGELOG.md", "\n## ", "\n# ", "CHANGELOG.md must begin with a release, but has none"),
    ],
)  # fmt: skip
def test_a_version_or_day_that_differs_anywhere_is_one_line(tmp_path, file, old, new, said) -> None:
    (tmp_path / "zobench").mkdir()
    for name in ("CHANGELOG.md", "CITATION.cff", "zobench/version.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    tag = f"v{zobench.__version__}"
    assert release_notes.notes(tag, tmp_path) == release_notes.notes(tag)
    text = (tmp_path / file).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(ValueError, match=said) as caught:
        release_notes.notes(tag, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_release_holds_no_token_and_only_the_job_that_publishes_may_do_so() -> None:
    assert re.findall(r"secrets\.|password|api-token", RELEASE) == []
    workflow = yaml.safe_load(RELEASE)
    assert workflow["permissions"] == {}
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "attest": {"attestations": "write", "id-token": "write"},
        "pypi": {"id-token": "write"},
        "github": {"contents": "write"},
    }
    assert [jobs[name]["needs"] for name in ("attest", "pypi", "github")] == ["build", "attest", "pypi"]
    publishes = [name for name, job in jobs.items() for step in job["steps"] if "pypi-publish" in step.get("uses", "")]
    assert publishes == ["pypi"]
    assert jobs["pypi"]["environment"] == "pypi"


def test_workflows_use_only_actions_pinned_to_a_commit_and_run_only_files_that_are_here() -> None:
    for path in sorted(ROOT.glob(".github/workflows/*.yml")):
        text = path.read_text(encoding="utf-8")
        uses = re.findall(r"uses: (.+)", text)
        assert uses
        assert [used for used in uses if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", used)] == []
        called = re.findall(r"(?<![\w/])\.ci/[\w.]+", text)
        assert called
        assert [used for used in called if not (ROOT / used).is_file()] == []


def test_a_release_has_no_link_that_leads_nowhere_on_pypi() -> None:
    readme, home = (ROOT / "README.md").read_text(encoding="utf-8"), "https://host.example/owner/name"
    led = readme_links.absolute(readme, home, "v1.2.3")
    targets = re.findall(r'(?:\]\(|src="|srcset=")([^)"]+)', led)
    assert len(targets) > 20
    kinds = {target: re.fullmatch(rf"{home}/(blob|raw)/v1\.2\.3/([^#]+)(?:#.*)?", target) for target in targets}
    assert [target for target, kind in kinds.items() if not kind or not (ROOT / kind[2]).exists()] == []
    assert {kind[1] for kind in kinds.values() if kind and kind[2].endswith(".svg")} == {"raw"}
    assert readme_links.absolute(led, home, "v1.2.3") == led
    runs = [step.get("run", "") for step in yaml.safe_load(RELEASE)["jobs"]["build"]["steps"]]
    first = next(n for n, run in enumerate(runs) if "readme_links.py" in run)
    assert first < next(n for n, run in enumerate(runs) if ".ci/installed dist" in run)


def test_the_lowest_versions_are_those_of_pyproject_the_higher_where_two_are_given() -> None:
    assert lowest.lowest(["a>=1.9", "b[c]>=2.0; sys_platform == 'linux'", "a>=1.10", "a>=1.2"]) == {
        "a": "1.10",
        "b": "2.0",
    }
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, version in lowest.lowest(lowest.declared()).items():
        assert f"{name}>={version}" in text
    assert {"torch", "transformers", "pandas", "ruff"} <= set(lowest.lowest(lowest.declared()))
