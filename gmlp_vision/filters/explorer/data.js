"use strict";
// The numbers of the page. W[i * N + j] is what output token i takes from input token j; N tokens in row-major order.

const bank = JSON.parse(document.getElementById("bank").textContent);
const [GRID_H, GRID_W] = bank.grid;
const N = GRID_H * GRID_W;

const buffer = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;

const layers = bank.layers.map((layer) => {
  const scale = new Float32Array(buffer(layer.scale));
  return {
    ...layer,
    whole: new Int8Array(buffer(layer.weight)),
    scale,
    kernel: new Float32Array(buffer(layer.kernel)),
    bias: layer.bias && new Float32Array(buffer(layer.bias)),
    peak: bank.steps * Math.max(...scale),
  };
});

const rowOf = (token) => Math.floor(token / GRID_W);
const columnOf = (token) => token % GRID_W;
const nameOf = (token) => `(${rowOf(token)}, ${columnOf(token)})`;

function weight(layer, output, input) {
  return layer.whole[output * N + input] * layer.scale[output];
}

// Where the tokens look ("row"), or who looks at them ("column"): N values, their mean if there are several.
function filterOf(layer, tokens, direction) {
  const values = new Float64Array(N);
  for (const token of tokens) {
    for (let other = 0; other < N; other++) {
      const w = direction === "row" ? weight(layer, token, other) : weight(layer, other, token);
      values[other] += w / tokens.length;
    }
  }
  return values;
}

const peakOf = (values) => values.reduce((peak, value) => Math.max(peak, Math.abs(value)), 0);

// Three digits and a true minus sign.
function digits(value) {
  if (value === null) return "not defined";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e4 || size < 1e-3 ? size.toExponential(2) : String(Number(size.toPrecision(3)));
  return (value < 0 ? "−" : "") + text.replace("e-", "e−").replace("e+", "e");
}
