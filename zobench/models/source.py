"""Where a model lies that is not in the list: in a folder, on the hub, in a GGUF file, or in a package. No torch.

:func:`identified` turns what a user gave into a spec that says what it is, so that its result can be read, compared and
shown where the folder is not.
"""

from __future__ import annotations

import functools
from pathlib import Path

from zobench.machine.texts import first_line
from zobench.models import gguf, identity, packaged, published
from zobench.models.registry import ARCHITECTURES, get, is_registered
from zobench.runspec import RunSpec
from zobench.runspec.kinds import TIERS

DESCRIBED = ("*.json", "*.model", "*.txt")
"""The files that hold a model's configuration and its tokenizer."""
WEIGHTS = "*.safetensors"


def identified(spec: RunSpec) -> RunSpec:
    """``spec`` with its model's own name, and for a model that is not registered with what its folder holds.

    Given one that says this already, checks that it is still so. Raises ``ValueError``, one line: for what is not
    there, has no config.json or no weights, or is not what it was.
    """
    if not spec.config_hash:
        if (listed_name := _LISTED.get(spec.model.lower())) is not None and not spec.name:
            spec = spec.replace(model=listed_name)
        if is_registered(spec.model):
            if spec.name:
                raise ValueError(
                    f"`name` is for a model that is not in the list, but got name={spec.name!r} for {spec.model}; "
                    "leave it out"
                )
            return spec.replace(model=get(spec.model).name)
    if spec.weights_path:
        raise ValueError(
            f"`weights_path` is for a model of the list, but got model={spec.model}, which brings its own weights; "
            "leave weights_path out"
        )
    path = spec.model_path if spec.config_hash else place_of(spec.model)
    local = folder(path, spec.weights == "pretrained", is_read_where_it_lies(spec))
    config = identity.config_hash(local)
    weights = identity.weights_hash(local) if spec.weights == "pretrained" else ""
    for part, was, now in (("config.json", spec.config_hash, config), ("weights", spec.weights_hash, weights)):
        if was and now and was != now:
            raise ValueError(
                f"{path} must hold the {part} of this run ({was}), but has others now ({now}); give the model as "
                f"--model again, for another run"
            )
    name = spec.name or (spec.model if spec.config_hash else _usual_name(path))
    if is_registered(name) or (published.get(name) and not published.get(path)):
        raise ValueError(f"`name` must not be a registered model's, but got {name!r}; give another")
    return spec.replace(model=name, name="", model_path=path, config_hash=config, weights_hash=weights)


def identifying_name(given: str) -> str:
    """The name by which a model differs from others before it is read: a registered one's own in any case, any other's
    path or id. Raises ``ValueError`` for what can be neither."""
    return get(given).name if is_registered(given) else place_of(given)


def shown_name(given: str) -> str:
    """Returns the name in results of the model that ``given`` names, where the user gives it none: a model of the list
    by its own, also where its id on the hub is given; any other by that of its folder or file."""
    if is_registered(given):
        return get(given).name
    if given.lower() in _LISTED:
        return _LISTED[given.lower()]
    is_place = "/" in given or given.startswith((".", "~")) or given.lower().endswith(".gguf")
    return _usual_name(place_of(given)) if is_place or published.get(given) else given


_LISTED = {model.hub_id.lower(): model.name for model in ARCHITECTURES if model.hub_id}
"""Id on the hub, in small letters, to the name of a model of the list."""


def is_read_where_it_lies(spec: RunSpec) -> bool:
    """Whether the blocks of ``spec`` rest in the files that its weights come from."""
    return not TIERS[spec.tier].is_filled


def folder(path: str, weights: bool, as_it_lies: bool = False) -> Path:
    """The folder on this machine of a model at ``path``, which :func:`identified` gave; with its ``weights``, or at
    least its config.json. ``as_it_lies``: a GGUF file is described and not converted. Raises ``ValueError`` if it is
    not there."""
    read = gguf.described if as_it_lies else gguf.converted
    if (model := packaged.get(path)) is not None:
        return read(packaged.file_of(model))
    if (name := published.get(path)) is not None:
        return published.folder_of(name, weights)
    if _is_hub_id(path):
        return downloaded(path, repr(path), "give a folder that holds it", weights=weights)
    local = Path(path)
    if local.suffix.lower() == ".gguf":
        if not local.is_file():
            raise ValueError(f"`model` must be a file that exists, but there is no {path}; check the path")
        return read(local)
    if not local.is_dir():
        wrong = "is a file" if local.is_file() else "is not there" if path else "is not given"
        raise ValueError(f"`model` must be a folder with a config.json, but {path or 'its place'} {wrong}; check it")
    return local


def downloaded(hub_id: str, what: str, remedy: str, *, weights: bool = True) -> Path:
    """The folder of ``hub_id`` (owner/name) in the hub's cache, with its ``weights`` or only what describes it.

    Raises ``ValueError``, one line that begins "cannot get ``what``" and ends in ``remedy``, if there is no way to it.
    """
    try:
        return _snapshot(hub_id, weights)
    except (OSError, ValueError) as error:  # offline, no such repository, no access; no repository's name
        raise ValueError(f"cannot get {what} from the hub ({first_line(error)}); {remedy}") from error


@functools.cache
def _snapshot(hub_id: str, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(hub_id, allow_patterns=[*DESCRIBED, *[WEIGHTS] * weights]))


def place_of(given: str) -> str:
    """Returns the place that ``given`` names: the absolute path of a folder or file, a hub id, or a package's model.
    Raises ``ValueError`` for what is none of these, and for a name that a folder here has too."""
    local, model = Path(given).expanduser(), packaged.get(given)
    if (name := published.get(given) or (model.name if model else None)) is not None:
        if local.exists():
            meaning = f"is PyPI's {name}" if model else f"names the configuration of {name} that comes with zobench"
            raise ValueError(
                f"`model` must name one model, but {given} is here and {meaning} too; write ./{given}, or go to "
                "another folder"
            )
        return name
    is_path = local.exists() or given.startswith((".", "/", "~")) or given.lower().endswith(".gguf")
    if is_path or given.count("/") > 1:
        return str(local.absolute())
    if _is_hub_id(given):
        return given
    get(given)  # no registered model, so it raises, and names the nearest
    return given


def _is_hub_id(path: str) -> bool:
    owner, slash, name = path.partition("/")
    return bool(owner and slash and name) and "/" not in name and not path.startswith((".", "~"))


def _usual_name(path: str) -> str:
    """Returns the name of a model at ``path`` where the user gives it none; never a registered model's name or a
    package's, which stand for the published weights."""
    if (model := packaged.get(path)) is not None:
        return model.name
    if (published_name := published.get(path)) is not None:
        return published_name
    name = Path(path).stem if path.lower().endswith(".gguf") else Path(path).resolve().name
    return f"{name}-local" if is_registered(name) or packaged.get(name) or published.get(name) else name
