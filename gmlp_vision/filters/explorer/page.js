// How one chooses: pointer, keyboard, controls, and an image to lay underneath.

// Another token beside those picked (or one of them out again), or this one alone.
function pick(token, another) {
  $("several").checked = another;
  const kept = view.kept.filter((t) => t !== view.token);
  if (!another) view.kept = [];
  else if (token === view.token && kept.length) [view.kept, token] = [kept.slice(0, -1), kept[kept.length - 1]];
  else if (kept.includes(token)) [view.kept, token] = [kept.filter((t) => t !== token), view.token];
  else view.kept = [...kept, view.token].filter((t) => t !== token);
  view.token = token;
  view.hover = null;
  view.probe = null;
  draw();
}

function chooseLayer(place) {
  view.layer = (place + layers.length) % layers.length;
  view.probe = null;
  draw();
}

function flip(direction) {
  view.direction = direction;
  for (const input of document.getElementsByName("direction")) input.checked = input.value === direction;
  draw();
}

function play(on) {
  clearInterval(view.timer);
  view.timer = on ? setInterval(() => chooseLayer(view.layer + 1), 600) : null;
  $("play").setAttribute("aria-pressed", on);
  $("play").textContent = on ? "❚❚ Pause" : "▶ Play through depth";
}

// The token under the pointer on a canvas of the grid.
function tokenAt(event) {
  const box = event.currentTarget.getBoundingClientRect();
  const clamp = (x, size) => Math.min(size - 1, Math.max(0, Math.floor(x * size)));
  const row = clamp((event.clientY - box.top) / box.height, GRID_H);
  return row * GRID_W + clamp((event.clientX - box.left) / box.width, GRID_W);
}

function moved(token, key) {
  const [row, column] = [rowOf(token), columnOf(token)];
  if (key === "ArrowUp" && row > 0) return token - GRID_W;
  if (key === "ArrowDown" && row < GRID_H - 1) return token + GRID_W;
  if (key === "ArrowLeft" && column > 0) return token - 1;
  if (key === "ArrowRight" && column < GRID_W - 1) return token + 1;
  return token;
}

// -- events ---------------------------------------------------------------------------------------------------

const tiles = layers.map((layer, k) => {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "tile" });
  const canvas = document.createElement("canvas");
  const limit = document.createElement("small");
  button.append(canvas, `${layer.block} `, limit);
  button.setAttribute("aria-label", `Layer ${layer.block}`);
  button.addEventListener("click", () => chooseLayer(k));
  canvas.addEventListener("pointermove", (event) => probe(k, tokenAt(event)));
  canvas.addEventListener("pointerleave", () => probe(null));
  $("gallery").append(button);
  return { button, canvas, limit };
});
$("gallery").style.setProperty("--tile", layers.length <= 12 ? "10rem" : layers.length <= 24 ? "8rem" : "6.2rem");

function probe(place, token) {
  view.probe = place === null ? null : [place, token];
  drawReadout(shownTokens());
}

$("picker").addEventListener("pointermove", (event) => {
  const token = tokenAt(event);
  if (event.pointerType === "mouse" && token !== view.hover) {
    view.hover = token;
    draw();
  }
});
$("picker").addEventListener("pointerleave", () => {
  view.hover = null;
  draw();
});
$("picker").addEventListener("click", (event) => {
  pick(tokenAt(event), $("several").checked || event.shiftKey || event.ctrlKey || event.metaKey);
});
$("large").addEventListener("pointermove", (event) => probe(view.layer, tokenAt(event)));
$("large").addEventListener("pointerleave", () => probe(null));
$("large").addEventListener("keydown", (event) => {
  if (!event.key.startsWith("Arrow")) return;
  event.preventDefault();
  event.stopPropagation();
  probe(view.layer, moved(view.probe ? view.probe[1] : view.token, event.key));
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // what the focused control does with a key itself
  if (event.target.closest("input, select") && /^(Arrow|Enter| )/.test(event.key)) return;
  if (event.target.closest("button, summary") && /^(Enter| )/.test(event.key)) return;
  const actions = {
    Enter: () => {
      $("several").checked = true;
      view.kept = [...view.kept.filter((t) => t !== view.token), view.token];
    },
    Escape: () => pick(view.token, false),
    "[": () => chooseLayer(view.layer - 1),
    "]": () => chooseLayer(view.layer + 1),
    " ": () => play(view.timer === null),
    r: () => flip(view.direction === "row" ? "column" : "row"),
  };
  const action = actions[event.key] ?? actions[event.key.toLowerCase()];
  if (event.key.startsWith("Arrow")) {
    view.token = moved(view.token, event.key);
    view.hover = view.probe = null;
    draw();
  } else if (action) action();
  else return;
  event.preventDefault();
});

for (const input of document.getElementsByName("direction")) {
  input.addEventListener("change", () => flip(input.value));
}
$("range").addEventListener("change", () => {
  view.range = $("range").value;
  draw();
});
$("several").addEventListener("change", () => {
  if (!$("several").checked) pick(view.token, false);
});
$("play").addEventListener("click", () => play(view.timer === null));
dark.addEventListener("change", draw);

// -- the image underneath -------------------------------------------------------------------------------------

// Cut to the shape of the grid around the middle, as a centre crop does.
function layUnder(image) {
  const canvas = Object.assign(document.createElement("canvas"), { width: 64 * GRID_W, height: 64 * GRID_H });
  const zoom = Math.max(canvas.width / image.naturalWidth, canvas.height / image.naturalHeight);
  const [width, height] = [zoom * image.naturalWidth, zoom * image.naturalHeight];
  const context = canvas.getContext("2d");
  context.drawImage(image, (canvas.width - width) / 2, (canvas.height - height) / 2, width, height);
  showPhoto(canvas);
}

function showPhoto(canvas) {
  view.photo = canvas;
  $("no-photo").hidden = canvas === null;
  draw();
}

function loadPhoto(address) {
  const image = new Image();
  image.addEventListener("load", () => layUnder(image));
  image.addEventListener("error", () => ($("chosen").textContent = "this file is no image that the browser can read"));
  image.src = address;
}

$("photo").addEventListener("change", () => {
  const [file] = $("photo").files;
  if (file) loadPhoto(URL.createObjectURL(file));
});
$("no-photo").addEventListener("click", () => {
  $("photo").value = "";
  showPhoto(null);
});

// -- start ----------------------------------------------------------------------------------------------------

document.title = `Spatial filters: ${bank.source}`;
$("about").textContent =
  `${bank.source}: ${layers.length} layers on a grid of ${GRID_H} × ${GRID_W} tokens, ${bank.grid_source}. ` +
  "Choose a token and see its filter in every layer; choose a layer and see more of it.";
$("quantisation").textContent =
  `Weights are kept here in 8 bits with one scale a row of W; the largest error of a weight is ${digits(bank.error)} ` +
  `(largest weight ${digits(largest)}). Kernels, biases and statistics are of the full weights. ` +
  "Red is positive, blue negative.";
if (bank.photo) loadPhoto(bank.photo);
draw();
