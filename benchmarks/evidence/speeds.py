"""How fast the models of families.py are, in training by each recipe and in inference.

All take turns in one process, so that a busy moment of the machine falls on all alike.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import timm
import torch
from evidence_models import Contender, values
from families import MODELS, RECIPES
from runs import machine
from timm.optim import create_optimizer_v2
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from gmlp_vision.atomic import write_file

FILE = "speeds.json"
INFERENCE = "inference"
ROUNDS = 7


def speeds(output: Path, seeds: Sequence[int], recipe: Mapping[str, Any]) -> str:
    """Measures, and writes images a second to a file in `output`; the seeds do not matter.

    A batch is the recipe's, in its precision. A step of training has a forward pass, a loss, a backward pass
    and a step of the optimizer; loading of images, augmentation and averages are left out.
    """
    calls = {
        f"{family} {task}": call
        for family, model in MODELS.items()
        for task, call in calls_of(model, recipe).items()
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in tqdm(calls.items(), desc=f"round {turn} of {ROUNDS}"):
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    images: dict[str, dict[str, float]] = {family: {} for family in MODELS}
    for name, seconds in taken.items():
        family, task = name.split()
        # the first was a warm-up
        images[family][task] = recipe["batch_size"] / statistics.median(seconds[1:])
    told = {
        "machine": machine(torch.device("cpu")),
        "batch": recipe["batch_size"],
        "precision": recipe["amp_dtype"] if recipe.get("amp") else "float32",
        "rounds": ROUNDS,
        "images a second": images,
    }
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / FILE, json.dumps(told, indent=1) + "\n")
    return str(output / FILE)


def calls_of(contender: Contender, recipe: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    """A forward pass without gradients, and a step of training by each recipe."""
    torch.manual_seed(0)
    model: Any = timm.create_model(
        contender.model,
        num_classes=recipe["num_classes"],
        drop_path_rate=recipe.get("drop_path", 0.0),
        **values(contender.model_kwargs),
    )
    x = torch.randn(recipe["batch_size"], 3, 32, 32)
    classes = torch.randint(recipe["num_classes"], (len(x),))
    precision = torch.autocast("cpu", torch.bfloat16, enabled=bool(recipe.get("amp")))

    def inference() -> None:
        with torch.inference_mode(), precision:
            model.eval()(x)

    def step_of(options: Mapping[str, str]) -> Callable[[], None]:
        optimizer = create_optimizer_v2(
            model,
            opt=options.get("opt", recipe["opt"]),
            lr=float(options.get("lr", recipe["lr"])),
            weight_decay=recipe["weight_decay"],
        )

        def step() -> None:
            model.train()
            optimizer.zero_grad()
            with precision:
                loss = cross_entropy(model(x), classes)
            loss.backward()
            optimizer.step()

        return step

    return {INFERENCE: inference, **{name: step_of(options) for name, options in RECIPES.items()}}


def read_speeds(output: Path) -> dict[str, Any]:
    """What was written; {} where nothing was measured."""
    file = output / FILE
    return json.loads(file.read_text()) if file.exists() else {}
