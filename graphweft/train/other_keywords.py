"""Keywords of other trainers, and where the same is found here.

Comes in: keywords that :class:`Trainer` does not have. Goes out: one error that says what to write. Called by the
trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphweft._errors import ConfigError
from graphweft._keywords import unexpected

_LOOP = "; a loop of your own over the model can do it (docs/training.md)"
_MODEL = "belongs to the model, as in gw.nn.GCN(..., {name}=...)"
_EPOCHS = "belongs to fit, as in trainer.fit(epochs=200)"
_SCHEDULER = "belongs to a callable, as in scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 30)"
_DEVICE = "is called device here, as in device='cuda'"
_OBJECT = "belongs to an optimizer object, as in optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)"
_DATA = "is not supported: the trainer makes its batches (mode='mini', fanouts=, batch_size=, sampler=)"
_THREADS = "is not supported: torch.set_num_threads sets the number of threads"
_WEIGHTED = "is not supported: nodes of a class count alike (class_weight=, or a loss of your own with loss=)"
_PRECISION = "is not supported: training runs in the dtype of the parameters (precision='bf16' reads rows in bfloat16)"

_ANSWERS = {
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs"), _EPOCHS),
    "scheduler_kwargs": _SCHEDULER,
    "warmup_steps": "counts epochs here, as in warmup=5",
    **dict.fromkeys(("devices", "accelerator", "gpus", "use_cuda"), _DEVICE),
    **dict.fromkeys(("momentum", "betas", "eps", "nesterov", "amsgrad", "optimizer_kwargs"), _OBJECT),
    **dict.fromkeys(("loader", "train_loader", "train_dataloader", "dataloader", "val_loader", "test_loader"), _DATA),
    **dict.fromkeys(("threads", "num_threads", "num_workers", "workers", "n_jobs"), _THREADS),
    "sample_weight": _WEIGHTED,
    "pos_weight": "belongs to a loss, as in loss=torch.nn.BCEWithLogitsLoss(pos_weight=...)",
    **dict.fromkeys(("amp", "fp16", "bf16", "dtype"), _PRECISION),
    "min_delta": "is not supported" + _LOOP,
    **dict.fromkeys(
        ("dropout", "hidden", "layers", "num_layers", "hidden_channels", "heads", "activation", "norm", "residual"),
        _MODEL,
    ),
    "epoch": _EPOCHS,
    "edge_weight": "belongs to the dataset, as in gw.Dataset(..., edge_weight=...)",
    "edge_index": "belongs to the dataset, as in gw.Dataset(..., graph=gw.Graph(src, dst), ...)",
    "features": "belongs to the dataset, as in gw.Dataset(..., x=...)",
    "normalize": "belongs to the dataset, as in ds.row_normalized()",
    "resume": "is a method: trainer.resume() continues the run in out",
    "quality": "belongs to macro-batches, as in macro=gw.macro.Macro('parts:16/128', quality=0.1)",
}
_RENAMED = {
    "learning_rate": "lr",
    "num_neighbors": "fanouts",
    "fanout": "fanouts",
    "early_stopping": "patience",
    "early_stopping_patience": "patience",
    "monitor": "best",
    "metric_for_best_model": "best",
    **dict.fromkeys(("loss_fn", "criterion", "compute_loss"), "loss"),
    **dict.fromkeys(("metric", "scoring", "evaluator", "compute_metrics"), "metrics"),
    **dict.fromkeys(("callback", "hooks"), "callbacks"),
    "logger": "loggers",
    "lr_scheduler": "scheduler",
    **dict.fromkeys(("class_weights", "weight"), "class_weight"),
    **dict.fromkeys(("grad_clip", "gradient_clip_val", "max_grad_norm"), "clip"),
    **dict.fromkeys(("warmup_epochs", "num_warmup_epochs"), "warmup"),
    "ema_decay": "ema",
    "restore_best_weights": "restore_best",
    "load_best_model_at_end": "restore_best",
    "l2": "weight_decay",
    "wd": "weight_decay",
    "random_state": "seed",
    "verbose": "progress",
    "progress_bar": "progress",
    "dataset": "ds",
    "data": "ds",
    "dir": "out",
    "log_dir": "out",
    "save_dir": "out",
    "output_dir": "out",
    "checkpoint": "out",
    "checkpoint_dir": "out",
    "default_root_dir": "out",
    "accumulate_grad_batches": "accumulate",
    "gradient_accumulation_steps": "accumulate",
    "opt": "optimizer",
}


def refuse(given: Iterable[str], known: Sequence[str]) -> None:
    """Nothing for no keywords.

    Raises: ConfigError that says where a keyword of other trainers is found; TypeError, as Python does, for others.

    Example:
        >>> refuse(["epochs"], ["lr"])
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Trainer: epochs belongs to fit, as in trainer.fit(epochs=200)
        >>> refuse(["learning_rate"], ["lr"])
        Traceback (most recent call last):
        graphweft._errors.ConfigError: Trainer: expected lr in place of learning_rate
    """
    for name in given:
        if name in _ANSWERS:
            raise ConfigError(f"Trainer: {name} {_ANSWERS[name].format(name=name)}")
        if name in _RENAMED:
            raise ConfigError(f"Trainer: expected {_RENAMED[name]} in place of {name}")
        raise unexpected("Trainer.__init__()", name, known)
