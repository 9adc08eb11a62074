"""How the command is parsed, and the options that several commands have."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from gmlp_vision.errors import UserError


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names only, and tells a wrong one as any other error: in a line."""

    def __init__(self, **kwargs: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter  # an example stays on its line
        super().__init__(**kwargs, allow_abbrev=False, formatter_class=raw)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; `{self.prog} --help` has what there is")


def name(text: str) -> str:
    """Of a file or a model. The empty one would be the current folder to Path."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; expected a name")
    return text


def path(text: str) -> Path:
    return Path(name(text))


PAIR: dict[str, Any] = {"nargs": 2, "type": int, "metavar": ("H", "W")}


def pair(values: list[int] | None) -> tuple[int, int] | None:
    """What is given to an option of PAIR."""
    return (values[0], values[1]) if values else None


def add_source(parser: argparse.ArgumentParser, metavar: str) -> None:
    parser.add_argument(
        "source", metavar=metavar, type=name, help="file, folder, hf-hub:OWNER/NAME or model name"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=name, metavar="NAME", help="the model in it, where its tensors leave that open"
    )


def add_prefix(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prefix", metavar="P", help="of the names of the network that is meant, where there are more"
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        choices=("raw", "ema"),
        default="auto",
        help="which are taken (default: ema if there are)",
    )
