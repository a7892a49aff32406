"""Stand-alone programs: from a spec to a folder of C++ that trains its model.

Comes in: a :class:`ProgramSpec`, or what makes one. Goes out: a folder. Called by users as ``gw.write_program`` and by
the command ``graphweft synth``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from graphweft._errors import ConfigError
from graphweft.model_of_spec import make_model
from graphweft.nn.module import CompiledModule
from graphweft.run import load_dataset
from graphweft.synth.folder import check_folder, program_files, write_folder
from graphweft.synth.kits import kit_of
from graphweft.synth.plans import plans_of, prediction_plans
from graphweft.synth.spec import ProgramSpec, check_target, check_what, read_spec
from graphweft.synth.steps import prediction_steps, steps_of
from graphweft.synth.verbs import Verbs

Given = ProgramSpec | Verbs | str | os.PathLike[str]


@dataclass(frozen=True)
class Program:
    """A program that was written.

    Attributes:
        folder: Where it is.
        calls: Kernel calls of an epoch, or of a prediction.
        arena_bytes: Bytes of all its buffers together; of a library that predicts, floats a node.
        lines: Lines of ``model.cpp``, the text that was written for this model.
    """

    folder: Path
    calls: int
    arena_bytes: int
    lines: int


def write_program(
    spec: Given, out: str | os.PathLike[str] = "program", target: str = "openmp", what: str = "train"
) -> Program:
    """Writes a C++ program that trains exactly the model of ``spec``, or predicts with it, without Python and torch.

    The program makes the calls that ``graphweft train`` makes with the same options, and its losses have the same bits.
    Either the folder is whole or it is as before.

    Args:
        spec: A :class:`ProgramSpec`, the path of a TOML file, or :class:`Verbs`.
        out: Folder of the program: new, empty, or that of an earlier program, which is replaced.
        target: "openmp", one process with threads.
        what: "train", or "predict": a shared library with a C header that loads weights and predicts on any graph.

    Raises: ConfigError or DataError with one line that names the part that cannot be written.

    Example:
        >>> import tempfile
        >>> made = write_program(ProgramSpec(scale=0.02, hidden=8), tempfile.mkdtemp() + "/program")
        >>> sorted(path.name for path in made.folder.glob("*.cpp"))
        ['cpu_level.cpp', 'main.cpp', 'model.cpp']
    """
    check_target(target)
    check_what(what)
    kit = kit_of(target, what)
    classes = 0
    if isinstance(spec, Verbs):
        classes = spec.classes
        spec = spec.spec()
    elif not isinstance(spec, ProgramSpec):
        spec = read_spec(Path(spec))
    folder = Path(out)
    check_folder(folder)
    train = spec.to_train()
    ds = load_dataset(train)
    if classes not in (0, ds.num_classes):
        raise ConfigError(f"initializeLayers: expected {ds.num_classes} classes at the end, got {classes}")
    model = make_model(train, ds)
    if not isinstance(model, CompiledModule):
        raise ConfigError(f"model: expected gcn, sage, gin or gat, got {type(model).__name__}")
    is_training = what == "train"
    steps = steps_of(plans_of(spec, model, ds)) if is_training else prediction_steps(prediction_plans(model, ds))
    data = spec.data if Path(spec.data).suffix == ".npz" else ""
    files = program_files(spec, steps, data, kit)
    write_folder(folder, files)
    calls = len(steps.forward) + len(steps.backward) + 2 if is_training else len(steps.evaluation)
    return Program(folder, calls, steps.arena_bytes, files[kit.name].count("\n"))


__all__ = ["Program", "write_program"]
