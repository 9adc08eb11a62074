"""The newcomer's run: a small gMLP learns scikit-learn's handwritten digits in about a minute, on a CPU.

The loop is short because its parts are timm's: loader, optimizer, scheduler, and the form of what is saved.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import timm
from PIL import Image
from timm.data import create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import random_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from gmlp_vision.accuracy import accuracy
from gmlp_vision.atomic import new_folder, write_file
from gmlp_vision.checkpoints.save import write_local_dir
from gmlp_vision.errors import UserError
from gmlp_vision.filters import extract, plot_filters, save_figure

# Both have 8 x 8 tokens. Saved too, since `create_model("local-dir:...")` makes the model from them.
MODEL = "gmlp_pico4"
MODEL_ARGS: dict[str, Any] = {
    "img_size": 16, "patch_size": 2, "in_chans": 1, "num_classes": 10, "depth": 4, "embed_dim": 64
}  # fmt: skip
PRETRAINED_ARGS: dict[str, Any] = {"img_size": 32, "in_chans": 1, "num_classes": 10}
EPOCHS, PRETRAINED_EPOCHS = 40, 5
TAG = "demo_digits"  # of the weights, as cifar10 is in gmlp_pico4.cifar10
BATCH_SIZE = 64
WARMUP_EPOCHS, MOST_EPOCHS = 2, 100_000
MEAN = STD = (0.5,)


@dataclass(frozen=True)
class DemoResult:
    """What the run measured.

    Attributes:
        accuracy: Share of the test quarter that the gMLP gets right.
        from_scratch: The same for the same model on the same budget without the pretrained weights, where
            there were any.
        logistic_regression: The same for logistic regression on the 8 x 8 pixels.
        test_images: Size of the test quarter.
        moved: For each block, the root mean square of W, over what it was at init (1e-6).
        epochs, seed, seconds: Of the training.
    """

    accuracy: float
    from_scratch: float | None
    logistic_regression: float
    test_images: int
    moved: list[float | None]
    epochs: int
    seed: int
    seconds: float


class Digits(Dataset[tuple[Any, int]]):
    """scikit-learn's digits, upsampled to `size` x `size` pixels. timm's loader sets `transform`."""

    def __init__(self, pixels: Any, labels: Any, size: int) -> None:
        self.size = size
        self.images = [
            Image.fromarray((image * 15.9375).astype("uint8")).resize((size, size), Image.Resampling.BICUBIC)
            for image in pixels  # 0 to 16
        ]
        self.labels = [int(label) for label in labels]
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.images[index]), self.labels[index]


def run_demo(output: Path, epochs: int | None = None, seed: int = 0, pretrained: bool = False) -> DemoResult:
    """Trains, tests, draws, and saves all of it into one new folder.

    Args:
        output: The folder to make. In it: `config.json` and `model.safetensors` (what `local-dir:` loads),
            `filters.png`, `result.json`.
        epochs: Passes over the training images, at least 3; None for 40, or 5 from pretrained weights.
        seed: Of the weights and the augmentation; the split is always the same.
        pretrained: Whether to start from this package's CIFAR-10 weights, which take a larger model; the same
            model is then trained from scratch too.

    Raises:
        UserError: scikit-learn is missing, or `output` exists already.
        ValueError: Too few or too many epochs, or a seed that numpy cannot have.
    """
    if epochs is None:
        epochs = PRETRAINED_EPOCHS if pretrained else EPOCHS
    if epochs <= WARMUP_EPOCHS:
        raise ValueError(f"epochs is {epochs}; expected more than the {WARMUP_EPOCHS} of warm-up")
    if epochs > MOST_EPOCHS:
        raise ValueError(f"epochs is {epochs}; expected at most {MOST_EPOCHS}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed is {seed}; expected 0 to {2**32 - 1}")
    model_args = PRETRAINED_ARGS if pretrained else MODEL_ARGS
    with new_folder(
        output, parents=True
    ) as folder:  # before the training, so that a name that is taken is told at once
        train, test, baseline = load_digits(model_args["img_size"])
        start = time.monotonic()
        model = trained_model(model_args, train, epochs, seed, pretrained)
        seconds = time.monotonic() - start

        test_batches = loader(test, is_training=False)
        scratch = trained_model(model_args, train, epochs, seed) if pretrained else None
        bank = extract(model)
        result = DemoResult(
            accuracy=accuracy(model, test_batches),
            from_scratch=None if scratch is None else accuracy(scratch, test_batches),
            logistic_regression=baseline,
            test_images=len(test),
            moved=[layer.moved for layer in bank.stats()],
            epochs=epochs,
            seed=seed,
            seconds=seconds,
        )
        write_local_dir(
            model,
            folder,
            model_args=model_args,
            data_config={"mean": MEAN, "std": STD, "crop_pct": 1.0},
            model_config={
                "label_names": [str(digit) for digit in range(10)],
                "pretrained_cfg": {"tag": TAG, "description": description(result)},
            },
        )
        save_figure(plot_filters(bank), folder / "filters.png")
        write_file(folder / "result.json", json.dumps(asdict(result), indent=2) + "\n")
    return result


def description(result: DemoResult) -> str:
    """What the saved model is, for its config.json."""
    start = "from scratch" if result.from_scratch is None else "from this package's CIFAR-10 weights"
    return (
        f"gmlp-vision demo: trained {start} on scikit-learn's handwritten digits, {result.epochs} epochs, "
        f"seed {result.seed}; accuracy {result.accuracy:.4f} on {result.test_images} test images"
    )


def load_digits(size: int) -> tuple[Digits, Digits, float]:
    """Training images, a fixed stratified quarter for testing, logistic regression's accuracy on it.

    Args:
        size: Of the images, in pixels; the regression has the 8 x 8 of the original.
    """
    try:
        from sklearn import datasets, linear_model, model_selection
    except ImportError as error:
        raise UserError(
            "the demo's images come with scikit-learn, which is missing: pip install 'gmlp-vision[demo]'"
        ) from error
    digits = datasets.load_digits()
    train_x, test_x, train_y, test_y = model_selection.train_test_split(
        digits.images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
    )
    classifier = linear_model.LogisticRegression(max_iter=1000)
    classifier.fit(train_x.reshape(len(train_x), -1) / 16, train_y)
    baseline = classifier.score(test_x.reshape(len(test_x), -1) / 16, test_y)
    return Digits(train_x, train_y, size), Digits(test_x, test_y, size), float(baseline)


def loader(dataset: Digits, is_training: bool) -> DataLoader[Any]:
    """timm's loader: random crops for training (no flip: a digit has one way round), else whole images."""
    any_dataset: Any = dataset  # its annotation names timm's own datasets; what it needs is a `transform`
    return create_loader(
        any_dataset,
        input_size=(1, dataset.size, dataset.size),
        batch_size=BATCH_SIZE,
        is_training=is_training,
        scale=(0.7, 1.0),
        ratio=(0.85, 1.18),
        hflip=0.0,
        color_jitter=0.0,
        interpolation="bicubic",
        mean=MEAN,
        std=STD,
        crop_pct=1.0,
        num_workers=0,
        use_prefetcher=False,
        persistent_workers=False,
    )


def trained_model(
    model_args: dict[str, Any], train: Digits, epochs: int, seed: int, pretrained: bool = False
) -> nn.Module:
    random_seed(seed)
    model: Any = timm.create_model(MODEL, pretrained=pretrained, **model_args)
    if pretrained:
        model.reset_classifier(model_args["num_classes"])  # as many classes, but others
    train_model(model, loader(train, is_training=True), epochs)
    return model


def train_model(model: nn.Module, batches: DataLoader[Any], epochs: int) -> None:
    optimizer = create_optimizer_v2(model, opt="adamw", lr=3e-3, weight_decay=0.05)
    scheduler, _ = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=epochs,
        warmup_epochs=WARMUP_EPOCHS,
        warmup_lr=1e-5,
        step_on_epochs=False,
        updates_per_epoch=len(batches),
    )
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    model.train()
    update = 0
    # a bar in a terminal; in a log it would be a line a batch
    with tqdm(total=epochs * len(batches), desc="training", unit="batch", disable=None) as progress:
        for epoch in range(epochs):
            for images, labels in batches:
                loss = loss_fn(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                update += 1
                scheduler.step_update(update)
                progress.update()
            if progress.disable:
                print(f"epoch {epoch + 1} of {epochs}, loss {loss.item():.3f}", file=sys.stderr, flush=True)
            progress.set_postfix(epoch=epoch + 1, loss=f"{loss.item():.3f}")
