// Computes and draws what the page shows of the weights: free functions that do not use the page's state.

async function decoded({ levels, power, data }) {
  const text = atob(data);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const values = Float32Array.from({ length: levels + 1 }, (_, code) => (code / levels) ** power);
  if (levels < 256) return { codes: bytes, values };
  const count = bytes.length / 2;
  const codes = new Uint16Array(count);
  for (let i = 0; i < count; i++) codes[i] = bytes[i] | (bytes[count + i] << 8);
  return { codes, values };
}

// The query tokens and the key tokens that the filters leave.
function shownTokens(data, { special, pair }) {
  const [query, key] = pair === "all" ? [null, null] : [...pair].map((side) => "ab".indexOf(side));
  const those = (segment) => [...data.tokens.keys()].filter(
    (i) => !(special && data.special[i]) && (segment === null || data.segments[i] === segment));
  return { rows: those(query), columns: those(key) };
}

// Float32Array [rows * columns] of one head, or of the mean of several, and the sums of its rows before `normalise`.
function mapOf({ codes, values }, length, heads, { rows, columns }, normalise) {
  const [R, C] = [rows.length, columns.length];
  const weights = new Float32Array(R * C);
  const sums = new Float32Array(R);
  const keys = Int32Array.from(columns);
  for (const head of heads) {
    for (let r = 0; r < R; r++) {
      const first = (head * length + rows[r]) * length;
      for (let c = 0; c < C; c++) weights[r * C + c] += values[codes[first + keys[c]]] / heads.length;
    }
  }
  for (let r = 0; r < R; r++) {
    for (let c = 0; c < C; c++) sums[r] += weights[r * C + c];
    if (normalise && sums[r] > 0) for (let c = 0; c < C; c++) weights[r * C + c] /= sums[r];
  }
  return { weights, sums, rows, columns };
}

// The mean weights from the text's own tokens to special tokens, to the token before, to themselves, to the next one.
function habits({ codes, values }, length, heads, special) {
  const every = [...Array(length).keys()];
  const text = every.filter((i) => !special[i]);
  const queries = text.length ? text : every;
  const at = (i, j) => j < 0 || j >= length ? 0
    : heads.reduce((sum, head) => sum + values[codes[(head * length + i) * length + j]], 0) / heads.length;
  const mean = (weight) => queries.reduce((sum, i) => sum + weight(i), 0) / queries.length;
  const marks = every.filter((i) => special[i]);
  return {
    special: mean((i) => marks.reduce((sum, j) => sum + at(i, j), 0)),
    previous: mean((i) => at(i, i - 1)), itself: mean((i) => at(i, i)), next: mean((i) => at(i, i + 1)),
  };
}

// The style sheet's colours; `steps` is RGBA for 256 steps from light to dark; a weight has step 255 * sqrt(weight).
function palette() {
  const style = getComputedStyle(document.documentElement);
  const variable = (name) => style.getPropertyValue(name).trim();
  const triple = (name) => variable(name).split(/\s+/).map(Number);
  const [low, high, middle] = [triple("--low"), triple("--high"), triple("--a")];
  const mixed = (from, to, t) => from.map((x, i) => x + (to[i] - x) * t);
  const steps = Uint8ClampedArray.from({ length: 1024 }, (_, i) => {
    if (i % 4 === 3) return 255;
    const t = Math.floor(i / 4) / 255;
    return (t < 0.6 ? mixed(low, middle, t / 0.6) : mixed(middle, high, (t - 0.6) / 0.4))[i % 4];
  });
  const [ink, edge, mark] = ["--ink", "--edge", "--mark"].map(variable);
  return { steps, sides: [middle, triple("--b")], ink, edge, mark };
}

// At most `largest` pixels per side; each shows the largest of its weights, so that a thin diagonal stays visible.
function paint(canvas, { weights, rows, columns }, colours, largest = Infinity) {
  const [R, C] = [rows.length, columns.length];
  canvas.width = Math.max(1, Math.min(C, largest));
  canvas.height = Math.max(1, Math.min(R, largest));
  if (!R || !C) return;
  const peaks = new Float32Array(canvas.width * canvas.height);
  const xs = Int32Array.from(columns, (_, c) => Math.floor(c * canvas.width / C));
  for (let r = 0; r < R; r++) {
    const y = Math.floor(r * canvas.height / R) * canvas.width;
    for (let c = 0; c < C; c++) {
      const place = y + xs[c];
      if (weights[r * C + c] > peaks[place]) peaks[place] = weights[r * C + c];
    }
  }
  const image = new ImageData(canvas.width, canvas.height);
  peaks.forEach((weight, place) => {
    const step = 4 * Math.round(255 * Math.sqrt(Math.min(1, weight)));
    image.data.set(colours.steps.subarray(step, step + 4), 4 * place);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Gives a canvas this size on the page, with the screen's resolution as far as browsers allow.
function sized(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 16000 / Math.max(width, height, 1));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const FAINTEST_LINE = 0.01, MOST_LINES = 4000;

// Draws lines from rows on the left to columns on the right. Their opacity is the weight; for a selected token its root.
function drawLines(canvas, { weights, rows, columns }, rowHeight, colourOf, marked) {
  const every = marked.row < 0 && marked.column < 0;
  const visible = every ? weights.filter((weight) => weight >= FAINTEST_LINE).sort().subarray(-MOST_LINES) : [];
  const faintest = visible.length === MOST_LINES ? visible[0] : every ? FAINTEST_LINE : 0;
  const width = canvas.clientWidth;
  const context = sized(canvas, width, Math.max(rows.length, columns.length) * rowHeight);
  context.lineWidth = Math.min(2.5, rowHeight / 6);
  for (let r = 0; r < rows.length; r++) {
    context.strokeStyle = `rgb(${colourOf(rows[r]).join(" ")})`;
    for (let c = 0; c < columns.length; c++) {
      const weight = weights[r * columns.length + c];
      const wanted = (marked.row < 0 || r === marked.row) && (marked.column < 0 || c === marked.column);
      if (!wanted || weight < faintest) continue;
      context.globalAlpha = Math.min(1, every ? weight : Math.sqrt(weight));
      context.beginPath();
      context.moveTo(0, (r + 0.5) * rowHeight);
      context.lineTo(width, (c + 0.5) * rowHeight);
      context.stroke();
    }
  }
}

const LARGEST_CELL = 30, LABELLED_CELL = 10, LONGEST_LABEL = 84, LARGEST_FONT = 13;
const font = (size) => `${size}px system-ui, "DejaVu Sans", sans-serif`;

// Draws the heat map, with its tokens if there is room, and returns the positions of its cells.
function drawHeat(canvas, map, tokens, colours, marked) {
  const { rows, columns } = map;
  const width = canvas.clientWidth;
  const cellOf = (margin) => Math.min(LARGEST_CELL, (width - margin) / Math.max(columns.length, 1));
  const label = cellOf(0) < LABELLED_CELL ? 0 : labelOf(canvas, [...rows, ...columns].map((token) => tokens[token]));
  const margin = cellOf(label) >= LABELLED_CELL ? label : 0;
  const cell = cellOf(margin);
  const context = sized(canvas, width, margin + cell * rows.length);
  if (!map.picture) paint(map.picture = document.createElement("canvas"), map, colours);
  context.imageSmoothingEnabled = cell < 1;
  if (rows.length && columns.length) {
    context.drawImage(map.picture, margin, margin, cell * columns.length, cell * rows.length);
  }
  context.strokeStyle = colours.edge;
  context.strokeRect(margin + 0.5, margin + 0.5, Math.max(0, cell * columns.length - 1), Math.max(0, cell * rows.length - 1));
  if (margin) {
    context.font = font(Math.min(LARGEST_FONT, cell - 1));
    const named = (token) => clipped(context, tokens[token], margin - 8);
    context.textBaseline = "middle";
    rows.forEach((token, r) => {
      context.fillStyle = r === marked.row ? colours.mark : colours.ink;
      context.textAlign = "right";
      context.fillText(named(token), margin - 5, margin + (r + 0.5) * cell);
    });
    columns.forEach((token, c) => {
      context.save();
      context.translate(margin + (c + 0.5) * cell, margin - 5);
      context.rotate(-Math.PI / 2);
      context.fillStyle = c === marked.column ? colours.mark : colours.ink;
      context.textAlign = "left";
      context.fillText(named(token), 0, 0);
      context.restore();
    });
  }
  context.strokeStyle = colours.mark;
  context.lineWidth = 1.5;
  if (marked.row >= 0) context.strokeRect(margin, margin + marked.row * cell, cell * columns.length, cell);
  if (marked.column >= 0) context.strokeRect(margin + marked.column * cell, margin, cell, cell * rows.length);
  return { margin, cell };
}

// The width of the longest token, up to a limit.
function labelOf(canvas, tokens) {
  const context = canvas.getContext("2d");
  context.font = font(LARGEST_FONT);
  return Math.min(LONGEST_LABEL, 9 + Math.ceil(Math.max(0, ...tokens.map((token) => context.measureText(token).width))));
}

function clipped(context, token, room) {
  if (context.measureText(token).width <= room) return token;
  const characters = [...token];
  while (characters.length > 1 && context.measureText(characters.join("") + "…").width > room) characters.pop();
  return characters.join("") + "…";
}
