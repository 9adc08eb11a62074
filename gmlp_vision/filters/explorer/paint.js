// Maps of values to pictures: a diverging colour map with 0 in the middle, one for light pages and one for dark.

const STOPS = {
  light: [[5, 48, 97], [67, 147, 195], [247, 247, 247], [214, 96, 77], [103, 0, 31]],
  dark: [[150, 205, 255], [46, 108, 190], [24, 27, 33], [196, 82, 52], [255, 190, 140]],
};
const dark = matchMedia("(prefers-color-scheme: dark)");

// The colour of x in [-1, 1].
function colour(x) {
  const stops = STOPS[dark.matches ? "dark" : "light"];
  const place = ((Math.min(Math.max(x, -1), 1) + 1) / 2) * (stops.length - 1);
  const k = Math.min(Math.floor(place), stops.length - 2);
  return stops[k].map((from, c) => from + (place - k) * (stops[k + 1][c] - from));
}

// Draws (rows, columns) values so that `limit` is full colour, with frames around the marked cells. Small values
// let a photo underneath through.
function paint(canvas, values, rows, columns, limit, marks = [], photo = null) {
  const cell = Math.max(4, Math.round((canvas.id === "large" ? 720 : 240) / columns));
  canvas.width = columns * cell;
  canvas.height = rows * cell;
  const small = new OffscreenCanvas(columns, rows);
  const pixels = new ImageData(columns, rows);
  for (let k = 0; k < values.length; k++) {
    const x = limit > 0 ? values[k] / limit : 0;
    const alpha = photo ? Math.min(1, Math.abs(x) + 0.1) : 1;
    pixels.data.set([...colour(x), 255 * alpha], 4 * k);
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  const context = canvas.getContext("2d");
  if (photo) context.drawImage(photo, 0, 0, canvas.width, canvas.height);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
  // black in white: seen on any colour
  const line = Math.min(8, Math.max(3, cell / 6));
  for (const [ink, width] of [["white", line], ["black", line / 2]]) {
    context.strokeStyle = ink;
    context.lineWidth = width;
    const inside = cell - line;
    for (const mark of marks) {
      const [x, y] = [(mark % columns) * cell, Math.floor(mark / columns) * cell];
      context.strokeRect(x + line / 2, y + line / 2, inside, inside);
    }
  }
}

const style = getComputedStyle(document.documentElement);
const accent = () => style.getPropertyValue("--accent");

// The grid alone, its marked cells filled: what one picks from.
function paintGrid(canvas, marks, photo) {
  const cell = Math.max(8, Math.round(480 / GRID_W));
  canvas.width = GRID_W * cell;
  canvas.height = GRID_H * cell;
  const context = canvas.getContext("2d");
  if (photo) context.drawImage(photo, 0, 0, canvas.width, canvas.height);
  context.strokeStyle = photo ? "rgb(255 255 255 / 45%)" : style.getPropertyValue("--line");
  context.lineWidth = 1;
  for (let c = 1; c < GRID_W; c++) context.strokeRect(c * cell, -1, 0, canvas.height + 2);
  for (let r = 1; r < GRID_H; r++) context.strokeRect(-1, r * cell, canvas.width + 2, 0);
  context.fillStyle = accent();
  context.globalAlpha = photo ? 0.7 : 1;
  for (const mark of marks) context.fillRect((mark % GRID_W) * cell, Math.floor(mark / GRID_W) * cell, cell, cell);
}
