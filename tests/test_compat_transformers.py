"""Folders that this package writes, read by transformers' TimmWrapper classes."""

from pathlib import Path

import pytest
import torch
from tiny import images, perturb, same, tiny

from gmlp_vision.checkpoints import convert_file
from gmlp_vision.checkpoints.save import write_local_dir

pytestmark = [
    pytest.mark.compat,
    # transformers' own, about itself and timm
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.mark.parametrize("name", ["gmlp_ti16", "s2mlp_wide"])
@pytest.mark.parametrize("how", ["convert", "another size", "as the demo does"])
def test_our_folders(name: str, how: str, tmp_path: Path) -> None:
    from transformers import TimmWrapperForImageClassification, TimmWrapperImageProcessor, TimmWrapperModel

    model = tiny(name)
    folder = tmp_path / "folder"
    if how == "as the demo does":
        folder.mkdir()
        write_local_dir(model, folder, data_config={"mean": (0.5,), "std": (0.5,), "crop_pct": 1.0})
    else:
        torch.save(model.state_dict(), tmp_path / "x.pth")
        size = (48, 24) if how == "another size" else (32, 32)
        convert_file(tmp_path / "x.pth", folder, model=name, img_size=size)
        model.set_input_size(size)
    x = images(2, 3, *model.img_size)
    classifier = TimmWrapperForImageClassification.from_pretrained(folder).eval()
    assert classifier.config.num_labels == 5
    same(classifier(x).logits, model(x))
    backbone = TimmWrapperModel.from_pretrained(folder).eval()
    same(backbone(x).pooler_output, model.forward_head(model.forward_features(x), pre_logits=True))
    assert TimmWrapperImageProcessor.from_pretrained(folder).data_config["input_size"] == (3, *model.img_size)


def test_another_count_of_classes(tmp_path: Path) -> None:
    from transformers import TimmWrapperForImageClassification

    model = perturb(tiny(num_classes=0))
    torch.save(model.state_dict(), tmp_path / "x.pth")
    convert_file(tmp_path / "x.pth", tmp_path / "folder", num_classes=7)
    loaded = TimmWrapperForImageClassification.from_pretrained(tmp_path / "folder")
    assert loaded(images()).logits.shape == (2, 7)
