"""The explorer in a real, headless Chromium: what it shows equals the tensors, and every way in works.

Needs Debian's chromium and chromium-driver; run with `pytest -m browser`.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait
from tiny import tiny
from toy_networks import Blocks, projection

from gmlp_vision.filters import FilterBank, extract, toeplitz_average, write_explorer

pytestmark = pytest.mark.browser

H, W = 4, 6  # tokens


class Page:
    """The page in the browser, in the words of its user."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        driver.get(address)

    def __getitem__(self, name: str) -> WebElement:
        return self.driver.find_element(By.ID, name)

    @property
    def tiles(self) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, "#gallery button")

    def over(self, canvas: WebElement, token: tuple[int, int]) -> ActionChains:
        """The pointer on a token of a canvas of the grid."""
        x = ((token[1] + 0.5) / W - 0.5) * canvas.size["width"]
        y = ((token[0] + 0.5) / H - 0.5) * canvas.size["height"]
        return ActionChains(self.driver, duration=0).move_to_element_with_offset(canvas, round(x), round(y))

    def pick(self, token: tuple[int, int]) -> None:
        self.over(self["picker"], token).click().perform()

    def press(self, *keys: str) -> None:
        ActionChains(self.driver).send_keys(*keys).perform()

    def value(self, token: tuple[int, int]) -> float:
        """What is read out with the pointer on a token of the large picture."""
        self.over(self["large"], token).perform()
        return float(self["readout"].get_attribute("data-value"))

    def pictures(self) -> list[str]:
        return [self.pixels(tile.find_element(By.TAG_NAME, "canvas")) for tile in self.tiles]

    def pixels(self, canvas: WebElement) -> str:
        return self.driver.execute_script("return arguments[0].toDataURL()", canvas)

    def colour(self, canvas: WebElement, row: int, column: int, rows: int = H, columns: int = W) -> list[int]:
        """Of the middle of a cell."""
        script = """const [c, x, y] = arguments;
            return [...c.getContext("2d").getImageData(x * c.width, y * c.height, 1, 1).data].slice(0, 3)"""
        return self.driver.execute_script(script, canvas, (column + 0.5) / columns, (row + 0.5) / rows)

    def errors(self) -> list[str]:
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


def installed(program: str) -> str:
    path = shutil.which(program)
    assert path, f"{program} is not installed; on Debian: apt-get install chromium chromium-driver"
    return path


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = installed("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1440,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(installed("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def bank() -> FilterBank:
    return extract(tiny(img_size=(32, 48)))


@pytest.fixture(scope="module")
def file(bank: FilterBank, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    path = tmp_path_factory.mktemp("page") / "explorer.html"
    return path.as_uri(), write_explorer(bank, path)


@pytest.fixture
def page(driver: webdriver.Chrome, file: tuple[str, float]) -> Iterator[Page]:
    page = Page(driver, file[0])
    yield page
    assert page.errors() == []


def test_it_loads_with_a_picture_a_layer_and_says_its_error(page: Page, file: tuple[str, float]) -> None:
    assert "Spatial filters" in page.driver.title
    assert len(page.tiles) == 2
    assert len(set(page.pictures())) == 2
    said = re.search(r"in 8 bits .* the largest error of a weight is (\S+) ", page["quantisation"].text)
    assert float(said[1]) == pytest.approx(file[1], rel=0.005)


def test_a_click_on_a_token_changes_every_picture(page: Page) -> None:
    before = page.pictures()
    page.pick((1, 2))
    assert page["chosen"].text == "token (1, 2)"
    assert all(a != b for a, b in zip(before, page.pictures(), strict=True))


def test_hovering_shows_a_token_and_leaving_brings_back_the_picked_one(page: Page) -> None:
    before = page.pictures()
    page.over(page["picker"], (0, 5)).perform()
    assert page["chosen"].text == "token (0, 5)"
    assert page.pictures() != before
    page.over(page["large"], (0, 0)).perform()
    assert page["chosen"].text == "token (2, 3)"
    assert page.pictures() == before


@pytest.mark.parametrize(
    ("layer", "token", "source"), [(0, (1, 2), (3, 5)), (1, (3, 0), (0, 0)), (1, (2, 5), (2, 5))]
)
def test_values_are_those_of_the_tensor(
    page: Page,
    bank: FilterBank,
    file: tuple[str, float],
    layer: int,
    token: tuple[int, int],
    source: tuple[int, int],
) -> None:
    page.tiles[layer].click()
    page.pick(token)
    value = bank.layers[layer].filter(token)[source].item()
    assert page.value(source) == pytest.approx(value, abs=file[1])
    said = page["readout"].text
    assert said.startswith(f"layer {layer}: ({token[0]}, {token[1]}) takes ")
    assert said.endswith(f" from ({source[0]}, {source[1]})")
    shown = float(said.split(" takes ")[1].split()[0].replace("\N{MINUS SIGN}", "-"))
    assert shown == pytest.approx(value, abs=file[1] + 0.005 * abs(value))  # three digits


def test_a_tile_reads_out_its_own_layer(page: Page, bank: FilterBank, file: tuple[str, float]) -> None:
    page.pick((1, 1))
    page.over(page.tiles[1].find_element(By.TAG_NAME, "canvas"), (2, 4)).perform()
    assert page["readout"].text.startswith("layer 1: (1, 1)")
    value = bank.layers[1].filter((1, 1))[2, 4].item()
    assert float(page["readout"].get_attribute("data-value")) == pytest.approx(value, abs=file[1])


def test_columns_are_who_looks_at_the_token(page: Page, bank: FilterBank, file: tuple[str, float]) -> None:
    page.pick((1, 2))
    page.driver.find_element(By.CSS_SELECTOR, "[value=column]").click()
    assert page.value((3, 4)) == pytest.approx(bank.layers[0].filter((3, 4))[1, 2].item(), abs=file[1])
    assert page["readout"].text.startswith("layer 0: (3, 4) takes")
    assert page["readout"].text.endswith("from (1, 2)")


def test_several_tokens_show_their_mean(page: Page, bank: FilterBank, file: tuple[str, float]) -> None:
    page.pick((1, 2))
    page["several"].click()
    page.pick((0, 0))
    page.pick((3, 5))
    assert page["chosen"].text == "mean of 3: (1, 2) (0, 0) (3, 5)"
    mean = torch.stack([bank.layers[0].filter(t) for t in ((1, 2), (0, 0), (3, 5))]).mean(0)
    assert page.value((2, 3)) == pytest.approx(mean[2, 3].item(), abs=file[1])
    page.over(page["picker"], (2, 2)).perform()
    assert page["chosen"].text == "mean of 4: (1, 2) (0, 0) (3, 5) (2, 2)"
    page.pick((0, 0))  # once more: taken out again
    assert page["chosen"].text == "mean of 2: (1, 2) (3, 5)"
    page["several"].click()
    assert page["chosen"].text == "token (3, 5)"


def test_the_keyboard_does_everything(page: Page, bank: FilterBank, file: tuple[str, float]) -> None:
    page.press(Keys.ARROW_UP, Keys.ARROW_LEFT)
    assert page["chosen"].text == "token (1, 2)"
    page.press(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)  # stays inside
    assert page["chosen"].text == "token (0, 2)"
    page.press("]")
    assert page["layer-name"].text == "Layer 1"
    page.press(Keys.ENTER, Keys.ARROW_RIGHT)
    assert page["chosen"].text == "mean of 2: (0, 2) (0, 3)"
    page.press(Keys.ESCAPE, "r")
    assert page["chosen"].text == "token (0, 3)"
    assert page.driver.find_element(By.CSS_SELECTOR, "[value=column]").is_selected()
    page["large"].send_keys(Keys.ARROW_DOWN)
    assert page["readout"].text.startswith("layer 1: (1, 3) takes")
    value = bank.layers[1].filter((1, 3))[0, 3].item()
    assert float(page["readout"].get_attribute("data-value")) == pytest.approx(value, abs=file[1])


def test_it_plays_through_depth(page: Page) -> None:
    page["play"].click()
    for layer in ("Layer 1", "Layer 0"):
        WebDriverWait(page.driver, 5, 0.05).until(lambda _, layer=layer: page["layer-name"].text == layer)
    page["play"].click()
    assert page["play"].get_attribute("aria-pressed") == "false"


def test_a_layer_shows_its_kernel_bias_and_statistics(page: Page, bank: FilterBank) -> None:
    page.tiles[1].click()
    layer, row = bank.layers[1], bank.stats()[1]
    assert layer.name in page["note"].text
    kernel = toeplitz_average(layer.matrix, layer.grid)
    for canvas, values in (("kernel", kernel), ("bias", (layer.bias - layer.bias.mean()).view(H, W))):
        r, c = divmod(int(values.abs().argmax()), values.shape[1])
        full = [103, 0, 31] if values[r, c] > 0 else [5, 48, 97]
        assert page.colour(page[canvas], r, c, *values.shape) == full
    assert f"mean kernel explains {row.toeplitz_share:.3g} random: " in page["stats"].text
    assert f"{row.locality:.3g}" in page["stats"].text


def test_the_range_of_colours(page: Page, bank: FilterBank, file: tuple[str, float]) -> None:
    page.pick((1, 2))
    peaks = {
        "picture": bank.layers[0].filter((1, 2)).abs().max().item(),
        "layer": bank.layers[0].weight.abs().max().item(),
        "all": max(layer.weight.abs().max().item() for layer in bank.layers),
    }
    for choice, peak in peaks.items():
        Select(page["range"]).select_by_value(choice)
        low, high = page["legend"].text.split()
        assert low == f"\N{MINUS SIGN}{high}"
        assert float(high) == pytest.approx(peak, rel=0.005)


def test_an_image_lies_under_the_grid(page: Page, tmp_path: Path) -> None:
    # 90 rows of 60 pixels, of which the 4 x 6 grid keeps the middle 40 rows: the green above and below goes
    image = Image.new("RGB", (60, 90), (0, 255, 0))
    image.paste((255, 0, 0), (0, 25, 30, 65))
    image.paste((0, 0, 255), (30, 25, 60, 65))
    image.save(tmp_path / "photo.png")
    plain = page.pictures()
    page["photo"].send_keys(str(tmp_path / "photo.png"))
    WebDriverWait(page.driver, 5, 0.05).until(lambda _: page["no-photo"].is_displayed())
    assert page.colour(page["picker"], 0, 0) == [255, 0, 0]
    assert page.colour(page["picker"], 3, 2) == [255, 0, 0]
    assert page.colour(page["picker"], 0, 3) == [0, 0, 255]
    assert page.colour(page["picker"], 3, 5) == [0, 0, 255]
    assert all(a != b for a, b in zip(plain, page.pictures(), strict=True))
    page["no-photo"].click()
    assert page.pictures() == plain


def test_dark_and_light(page: Page) -> None:
    grounds = []
    for theme in ("dark", "light"):
        before = page.pixels(page["large"])
        features = [{"name": "prefers-color-scheme", "value": theme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # the pictures follow with the page's next frame
        WebDriverWait(page.driver, 5, 0.05).until(lambda _, old=before: page.pixels(page["large"]) != old)
        script = "return getComputedStyle(document.body).backgroundColor"
        grounds.append(page.driver.execute_script(script))
    assert grounds[1] == "rgb(255, 255, 255)" != grounds[0]


def test_a_fault_in_the_page_would_be_seen(page: Page) -> None:
    page.driver.execute_script("setTimeout(() => { throw new Error('a fault') })")
    WebDriverWait(page.driver, 5, 0.05).until(
        lambda _: any("a fault" in message for message in page.errors())
    )


def test_a_page_of_30_layers(driver: webdriver.Chrome, tmp_path: Path) -> None:
    bank = extract(Blocks(*(projection((14, 14)) for _ in range(30))))
    error = write_explorer(bank, tmp_path / "b.html")
    page = Page(driver, (tmp_path / "b.html").as_uri())
    assert len(page.tiles) == 30
    page.tiles[29].click()
    page["large"].send_keys(Keys.ARROW_UP)
    value = bank.layers[29].filter((7, 7))[6, 7].item()
    assert float(page["readout"].get_attribute("data-value")) == pytest.approx(value, abs=error)
    assert page.errors() == []
