"""Checkpoints of a run: the whole state, and the settings that it was made with.

    checkpoint.save(folder, state, settings)               atomic; the two newest are kept
    state = checkpoint.restore(folder, template, settings)   bit for bit, typed keys included

Settings are plain JSON. A folder belongs to one set of them: with others both functions raise and change nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
from orbax.checkpoint import v1 as ocp

State = TypeVar("State")
KEPT = 2  # a newest one that turns out damaged leaves one to go on from


def save(directory: str | os.PathLike[str], state: Any, settings: Mapping[str, Any]) -> None:
    """Writes `state` (a pytree of arrays with a field `step`) as the checkpoint of its step.

    Interrupted at any moment, the folder still holds the last complete one. Of a batch of seeds the largest step
    counts.
    Raises ValueError where the folder's settings differ, OSError naming it where it cannot be written.
    """
    folder = pathlib.Path(directory).absolute()
    if latest_step(folder) is not None:
        _check_settings(folder, settings)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _open(folder) as checkpoints:
            step = int(np.max(state.step))
            checkpoints.save(step, state, overwrite=True, force=True, custom_metadata=_plain(settings))
    except OSError as error:
        raise OSError(f"cannot write checkpoints to {folder}: {error}; choose another folder") from error


def restore(directory: str | os.PathLike[str], template: State, settings: Mapping[str, Any]) -> State:
    """The newest checkpoint, with the structure, types and placement of `template` (a state of the same run).

    Raises FileNotFoundError where there is none and ValueError where settings differ or the files are damaged.
    """
    folder = pathlib.Path(directory).absolute()
    step = latest_step(folder)
    if step is None:
        raise FileNotFoundError(f"no checkpoint in {folder}; start the run without resuming")
    _check_settings(folder, settings)
    with _open(folder) as checkpoints:
        try:
            return checkpoints.load(step, template)
        except Exception as error:  # orbax wraps damage in many types
            raise ValueError(_damage(folder, step)) from error


def latest_step(directory: str | os.PathLike[str]) -> int | None:
    """Step of the newest complete checkpoint, None where there is none. Creates nothing."""
    folder = pathlib.Path(directory).absolute()
    if not folder.is_dir():
        return None
    with _open(folder) as checkpoints:
        return None if checkpoints.latest is None else checkpoints.latest.step


def _open(folder: pathlib.Path) -> ocp.training.Checkpointer:
    keep = ocp.training.preservation_policies.LatestN(KEPT)
    return ocp.training.Checkpointer(folder, preservation_policy=keep)


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(dict(settings)))


def _check_settings(folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
    with _open(folder) as checkpoints:
        step = checkpoints.latest.step
        try:
            stored = checkpoints.metadata(step).custom_metadata or {}
        except Exception as error:
            raise ValueError(_damage(folder, step)) from error
    given, missing = _plain(settings), "nothing"
    names = sorted(stored.keys() | given.keys())
    changed = [
        f"{name} was {stored.get(name, missing)!r}, is {given.get(name, missing)!r}"
        for name in names
        if stored.get(name, missing) != given.get(name, missing)
    ]
    if changed:
        raise ValueError(f"{folder} holds a run with other settings: {'; '.join(changed)}; use another folder")


def _damage(folder: pathlib.Path, step: int) -> str:
    path = folder / str(step)
    return f"the checkpoint {path} is damaged or of another shape; remove that folder to go on from an older one"
