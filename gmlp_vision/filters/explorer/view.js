// What is chosen, and what is seen of it.

const $ = (id) => document.getElementById(id);
const view = {
  kept: [],                                                           // tokens picked before, if several
  token: Math.floor(GRID_H / 2) * GRID_W + Math.floor(GRID_W / 2),
  hover: null,                                                        // a token under the pointer
  layer: 0,                                                           // a place in `layers`
  probe: null,                                                        // [place in `layers`, token] read out
  direction: "row",
  range: "picture",
  photo: null,                                                        // a canvas of the shape of the grid
  timer: null,
};
const largest = Math.max(...layers.map((layer) => layer.peak));

// Those picked, and the one under the pointer as if it were picked too; each once, the latest last.
function shownTokens() {
  const picked = [...view.kept.filter((t) => t !== view.token), view.token];
  if (view.hover === null) return picked;
  return $("several").checked ? [...picked.filter((t) => t !== view.hover), view.hover] : [view.hover];
}

function limitOf(layer, values) {
  return { picture: peakOf(values), layer: layer.peak, all: largest }[view.range];
}

function draw() {
  const tokens = shownTokens();
  paintGrid($("picker"), tokens, view.photo);
  $("chosen").textContent =
    tokens.length === 1 ? `token ${nameOf(tokens[0])}` : `mean of ${tokens.length}: ${tokens.map(nameOf).join(" ")}`;
  layers.forEach((layer, k) => {
    const values = filterOf(layer, tokens, view.direction);
    const limit = limitOf(layer, values);
    paint(tiles[k].canvas, values, GRID_H, GRID_W, limit, tokens, view.photo);
    tiles[k].limit.textContent = `±${digits(limit)}`;
    tiles[k].button.setAttribute("aria-pressed", k === view.layer);
  });
  drawLayer(tokens);
}

function drawLayer(tokens) {
  const layer = layers[view.layer];
  const values = filterOf(layer, tokens, view.direction);
  paint($("large"), values, GRID_H, GRID_W, limitOf(layer, values), tokens, view.photo);
  $("layer-name").textContent = `Layer ${layer.block}`;
  $("note").textContent = [layer.name, layer.note, layer.untrained ? "looks untrained" : ""].filter(Boolean).join(" · ");
  drawReadout(tokens);
  drawLegend(limitOf(layer, values));

  const side = 2 * GRID_W - 1;
  const peak = peakOf(layer.kernel);
  paint($("kernel"), layer.kernel, 2 * GRID_H - 1, side, peak, [(GRID_H - 1) * side + GRID_W - 1]);
  $("kernel").nextElementSibling.textContent = `mean kernel, ±${digits(peak)}`;
  $("bias").parentElement.hidden = !layer.bias;
  if (layer.bias) {
    const mean = layer.bias.reduce((sum, b) => sum + b, 0) / N;
    const centred = layer.bias.map((b) => b - mean);
    paint($("bias"), centred, GRID_H, GRID_W, peakOf(centred));
    $("bias").nextElementSibling.textContent = `bias, ${digits(mean)} ± ${digits(peakOf(centred))}`;
  }
  $("stats").tBodies[0].replaceChildren(...STATS.map(([label, field, hint]) => statRow(layer, label, field, hint)));
}

const STATS = [
  ["mean kernel explains", "toeplitz_share", "toeplitz_share_random"],
  ["mean distance, tokens", "locality", "locality_random"],
  ["mass on the diagonal", "diagonal_share"],
  ["anisotropy", "anisotropy"],
  ["symmetric share", "symmetry"],
  ["effective rank", "effective_rank"],
  ["rms of W", "rms"],
  ["rms of W / at init", "moved"],
];

function statRow(layer, label, field, baseline) {
  const row = document.createElement("tr");
  const cells = [label, digits(layer[field]), baseline ? `random: ${digits(layer[baseline])}` : ""];
  row.append(...cells.map((text, k) => Object.assign(document.createElement(k ? "td" : "th"), { textContent: text })));
  return row;
}

function drawReadout(tokens) {
  const [place, other] = view.probe ?? [view.layer, tokens[tokens.length - 1]];
  const layer = layers[place];
  const value = filterOf(layer, tokens, view.direction)[other];
  const several = tokens.length > 1;
  const who = several ? `${tokens.length} tokens` : nameOf(tokens[0]);
  const [output, input] = view.direction === "row" ? [who, nameOf(other)] : [nameOf(other), who];
  const takes = several && view.direction === "row" ? "take" : "takes";
  $("readout").textContent =
    `layer ${layer.block}: ${output} ${takes} ${digits(value)} from ${input}${several ? ", on average" : ""}`;
  $("readout").dataset.value = value;
}

function drawLegend(limit) {
  const [low, canvas, high] = $("legend").children;
  const strip = new ImageData(255, 1);
  for (let k = 0; k < 255; k++) strip.data.set([...colour((k - 127) / 127), 255], 4 * k);
  canvas.getContext("2d").putImageData(strip, 0, 0);
  low.textContent = `−${digits(limit)}`;
  high.textContent = digits(limit);
}
