"""Stand-alone programs: from a spec to a folder of C++ that trains its model.

Comes in: a :class:`ProgramSpec`, or what makes one. Goes out: a folder. Called by users as
``gw.synthesis.write_program`` and by the command ``graphweft synth``.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from graphweft._errors import ConfigError
from graphweft.data.dataset import Dataset
from graphweft.model_of_spec import make_model
from graphweft.nn.module import CompiledModule
from graphweft.run import load_dataset
from graphweft.synth.folder import check_folder, program_files, write_folder
from graphweft.synth.kits import kit_of
from graphweft.synth.parts import owners, write_parts
from graphweft.synth.plans import plans_of, prediction_plans
from graphweft.synth.spec import KNOWN, ProgramSpec, check_target, check_what, placing, read_spec
from graphweft.synth.steps import Manner, Steps, prediction_steps, steps_of
from graphweft.synth.verbs import Verbs
from graphweft.synth.weights import load_weights, save_weights

Given = ProgramSpec | Verbs | str | os.PathLike[str]


@dataclass(frozen=True)
class Program:
    """A program that was written.

    Attributes:
        folder: Folder of the program.
        calls: Number of kernel calls of an epoch, or of a prediction.
        arena_bytes: Bytes of all its buffers; for a library that predicts, of its weights.
        lines: Number of lines of ``model.cpp``, the text for this model.
    """

    folder: Path
    calls: int
    arena_bytes: int
    lines: int


def write_program(
    spec: Given,
    out: str | os.PathLike[str] = "program",
    target: str = "openmp",
    what: str = "train",
    ranks: Collection[int] = (),
    deterministic: bool = False,
) -> Program:
    """Writes a C++ program that trains exactly the model of ``spec``, or predicts with it, without Python and torch.

    The program makes the same kernel calls as ``graphweft train`` with the same options, and its losses have the same
    bits. If an error occurs, the folder stays as before.

    Args:
        spec: A :class:`ProgramSpec`, the path of a TOML file, or :class:`Verbs`.
        out: Folder of the program: new, empty, or that of an earlier program, which is replaced.
        target: "openmp" for one process with threads; "mpi" for several processes with a part of the nodes each; "cuda"
            for a device.
        what: "train"; or "predict" for a shared library with a C header, which loads weights and predicts on any graph.

        ranks: For "mpi", numbers of processes. For each, the parts are written to a folder ``parts-P`` of the program.
        deterministic: For "cuda" with sparse features, whether to store them by column too, so that equal runs give
            equal bits.

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
    if not isinstance(ranks, Collection) or isinstance(ranks, str):
        raise ConfigError(f"ranks: expected a collection of integers, got {ranks!r}")
    if ranks and target != "mpi":
        raise ConfigError(f"ranks cannot be combined with target={target}: parts are for target=mpi")
    if deterministic and target != "cuda":
        raise ConfigError(f"deterministic cannot be combined with target={target}: it always is")
    classes, file = 0, None
    if isinstance(spec, Verbs):
        classes = spec.classes
        spec = spec.spec()
    elif not isinstance(spec, ProgramSpec):
        file = Path(spec)
        spec = read_spec(file)
    folder = Path(out)
    check_folder(folder)
    train = spec.to_train()
    with placing(file):
        ds = load_dataset(train)
    if classes not in (0, ds.num_classes):
        raise ConfigError(f"initializeLayers: expected {ds.num_classes} classes at the end, got {classes}")
    with placing(file):
        model = make_model(train, ds)
        if not isinstance(model, CompiledModule):
            raise ConfigError(f"model: expected {KNOWN}, got {type(model).__name__}")
        is_training = what == "train"
        steps = (
            _steps(spec, model, ds, target, deterministic)
            if is_training
            else prediction_steps(prediction_plans(model, ds))
        )
    data = spec.data if Path(spec.data).suffix == ".npz" else ""
    files = program_files(spec, steps, data, kit)
    owned = {count: owners(ds, count) for count in ranks}

    def write_all_parts(fresh: Path) -> None:
        for count, owner in owned.items():
            write_parts(ds, owner, fresh / f"parts-{count}", steps.plans.is_sparse, steps.plans.is_weighted)

    write_folder(folder, files, write_all_parts)
    calls = len(steps.forward) + len(steps.backward) + 2 if is_training else len(steps.evaluation)
    return Program(folder, calls, steps.arena_bytes, files[kit.name].count("\n"))


def _steps(spec: ProgramSpec, model: CompiledModule, ds: Dataset, target: str, deterministic: bool) -> Steps:
    """The steps of training as a target takes them."""
    is_host, over_ranks = target == "openmp", target == "mpi"
    on_device = target == "cuda"
    manner = Manner(
        over_ranks,
        is_host,
        on_device and not deterministic,
        on_device,
        edges_bring_weights=over_ranks,
        stretches=is_host,
        winners=is_host,
    )
    return steps_of(plans_of(spec, model, ds, every_row=not is_host), manner)


__all__ = ["Program", "ProgramSpec", "Verbs", "load_weights", "save_weights", "write_program"]
