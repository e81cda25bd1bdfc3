// SPDX-License-Identifier: MIT
// The drawings of the memory panel: rows of every layer, kept positions, the bars of the plan, the
// line of speeds. Each is told what to show and keeps nothing but its own nodes.
import { element } from './markdown.js';

const svgNode = (name, attributes, ...children) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
};

// 12345 as "12 345", with narrow blanks that do not break.
export const count = (n) => Math.round(n).toLocaleString('en').replaceAll(',', '\u202f');

// [number, unit] of a number of bytes.
export function bytesParts(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0, value = bytes;
  for (; value >= 1024 && unit < units.length - 1; ++unit) value /= 1024;
  return [unit === 0 || value >= 100 ? count(value) : value.toPrecision(3), units[unit]];
}
export const bytesText = (bytes) => bytesParts(bytes).join('\u202f');

// ---- Rows a layer ----

const gutter = 26, axisHeight = 18;
// Height of a layer's bar and the gap below it: many layers get thinner bars.
const barOf = (n) => (n <= 12 ? [14, 5] : n <= 24 ? [8, 3] : n <= 40 ? [5, 2] : [3, 1]);

// The end of the scale: the power of two from 64 on that holds all rows shown, or the context.
function scaleOf(layers, before, context) {
  const most = Math.max(1, before, ...layers.map((layer) => layer.rows));
  let end = 64;
  while (end < most) end *= 2;
  return Math.max(most, Math.min(end, context || end));
}

function layerGroup(layer, i, n) {
  const [height, gap] = barOf(n);
  const y = i * (height + gap);
  const bar = (name) => svgNode('rect', { class: name, x: gutter, y, height, width: 0, rx: Math.min(3, height / 2) });
  const group = svgNode('g', { class: `layer ${layer.kind}` }, bar('track'), bar('gone'), bar('live'));
  const every = Math.ceil(14 / (height + gap));
  if (i % every === 0) {
    group.append(svgNode('text', { x: gutter - 6, y: y + height / 2, class: 'index' }, String(layer.layer)));
  }
  group.append(svgNode('title', {}));
  return group;
}

const hatching = () => svgNode('defs', {}, svgNode('pattern',
  { id: 'hatch', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
  svgNode('rect', { width: 5, height: 5, class: 'hatch-ground' }), svgNode('rect', { width: 1.6, height: 5, class: 'hatch-line' })));

export class RowsDrawing {
  constructor(svg) {
    this.svg = svg;
    this.signature = '';
    new ResizeObserver(() => this.last && this.show(this.last)).observe(svg.parentElement);
  }

  // view: {layers: [{layer, kind, rows, before}], context}; kind is attention, window, state or shared; rows
  // are live, `before` is how many there were before the last compaction (0 = none).
  show(view) {
    this.last = view;
    const { layers, context } = view;
    this.build(layers);
    const width = Math.max(60, this.svg.parentElement.clientWidth - gutter);
    const end = scaleOf(layers, Math.max(0, ...layers.map((layer) => layer.before)), context);
    const size = (rows) => (Math.min(rows, end) / end) * width;
    layers.forEach((layer, i) => {
      const [track, gone, live] = this.groups[i].querySelectorAll('rect');
      track.setAttribute('width', { state: 34, shared: 6 }[layer.kind] ?? width);
      gone.setAttribute('width', size(layer.before));
      live.setAttribute('width', storesRows(layer) ? Math.max(layer.rows ? 1.5 : 0, size(layer.rows)) : 0);
      this.groups[i].querySelector('title').textContent = titleOf(layer);
    });
    this.axis(end, width);
    this.svg.setAttribute('aria-label', rowsText(layers, context));
  }

  build(layers) {
    const signature = layers.map((layer) => layer.kind).join();
    if (signature === this.signature) return;
    this.signature = signature;
    this.groups = layers.map((layer, i) => layerGroup(layer, i, layers.length));
    this.axisGroup = svgNode('g', { class: 'axis' });
    const [height, gap] = barOf(layers.length);
    this.bottom = layers.length * (height + gap);
    this.svg.setAttribute('height', this.bottom + axisHeight);
    this.svg.replaceChildren(hatching(), ...this.groups, this.axisGroup);
  }

  axis(end, width) {
    const tick = (share) => {
      const x = gutter + share * width;
      const anchor = share === 0 ? 'start' : share === 1 ? 'end' : 'middle';
      return [svgNode('line', { x1: x, x2: x, y1: 0, y2: this.bottom }),
        svgNode('text', { x, y: this.bottom + 13, 'text-anchor': anchor }, count(share * end))];
    };
    this.axisGroup.replaceChildren(...[0, 0.25, 0.5, 0.75, 1].flatMap(tick));
  }
}

const storesRows = ({ kind }) => kind === 'attention' || kind === 'window';

function titleOf({ layer, kind, rows, before, tier }) {
  const where = tier ? `, ${tier}` : '';
  if (kind === 'state') return `Layer ${layer}: a state of fixed size${where}`;
  if (kind === 'shared') return `Layer ${layer}: reads another layer's rows${where}`;
  const gone = before > rows ? `, ${count(before)} before compaction` : '';
  return `Layer ${layer}: ${count(rows)} rows${gone}${kind === 'window' ? ', a sliding window' : ''}${where}`;
}

function rowsText(layers, context) {
  const rows = layers.filter(storesRows).map((layer) => layer.rows);
  if (!rows.length) return 'No layer keeps rows.';
  const least = Math.min(...rows), most = Math.max(...rows);
  const span = least === most ? count(most) : `${count(least)} to ${count(most)}`;
  return `${rows.length} layers with ${span} rows each, of a context of ${count(context)} tokens.`;
}

// ---- Kept positions ----

export class KeptDrawing {
  constructor(canvas) {
    this.canvas = canvas;
    this.rows = [];
    new ResizeObserver(() => this.draw()).observe(canvas.parentElement);
  }

  // layers: [{layer, kept: [share of each bin's positions that is there, 0 to 1]}]
  show(layers) {
    this.rows = layers.filter((layer) => layer.kept.length);
    const shares = this.rows.flatMap((layer) => layer.kept);
    const mean = shares.reduce((sum, share) => sum + share, 0) / Math.max(1, shares.length);
    this.canvas.setAttribute('aria-label', `${Math.round(mean * 100)} % of the positions of ${this.rows.length} layers are kept.`);
    this.draw();
  }

  draw() {
    const { canvas, rows } = this;
    const [height, gap] = barOf(rows.length).map((pixels) => Math.max(1, Math.round(pixels / 2)));
    const width = canvas.parentElement.clientWidth - gutter, scale = window.devicePixelRatio || 1;
    if (width <= 0) return;  // hidden; the observer calls again
    canvas.width = width * scale;
    canvas.height = rows.length * (height + gap) * scale;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${rows.length * (height + gap)}px`;
    const pen = canvas.getContext('2d');
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const [ground, ink] = ['--track', '--kv'].map((name) => style.getPropertyValue(name));
    rows.forEach(({ kept }, i) => drawLine(pen, kept, { y: i * (height + gap), width, height, ground, ink }));
  }
}

function drawLine(pen, kept, { y, width, height, ground, ink }) {
  pen.globalAlpha = 1;
  pen.fillStyle = ground;
  pen.fillRect(0, y, width, height);
  pen.fillStyle = ink;
  kept.forEach((share, bin) => {
    if (!share) return;
    pen.globalAlpha = 0.15 + 0.85 * share;
    pen.fillRect((bin / kept.length) * width, y, Math.ceil(width / kept.length), height);
  });
}

// ---- The plan ----

// places: [{name, parts: [{name, className, bytes, live}]}]; all bars have one scale. `live`, where
// it is not undefined, is how much of the part is in use now.
export function drawPlan(container, places) {
  const most = Math.max(1, ...places.map((place) => sum(place.parts)));
  container.replaceChildren(...places.map((place) => {
    const bar = element('div', 'plan-bar');
    bar.setAttribute('role', 'img');
    bar.setAttribute('aria-label', `${place.name}: ${place.parts.map((p) => `${p.name} ${bytesText(p.bytes)}`).join(', ')}`);
    bar.style.width = `${Math.max(2, (sum(place.parts) / most) * 100)}%`;
    for (const part of place.parts) {
      const piece = element('span', `piece ${part.className}`);
      piece.style.flexGrow = part.bytes;
      piece.title = `${part.name}: ${bytesText(part.bytes)}`;
      if (part.live !== undefined) {
        const live = element('span', 'piece-live');
        live.style.width = `${Math.min(100, (part.live / Math.max(1, part.bytes)) * 100)}%`;
        piece.append(live);
        piece.classList.add('has-live');
      }
      bar.append(piece);
    }
    return element('div', 'place', element('p', 'place-name', place.name, element('span', '', bytesText(sum(place.parts)))), bar);
  }));
}

const sum = (parts) => parts.reduce((total, part) => total + part.bytes, 0);

// A list of coloured squares with names, and with bytes where entries have some.
export function drawKey(list, entries) {
  list.replaceChildren(...entries.map(({ name, className, bytes }) => {
    const square = element('span', `square ${className}`);
    square.setAttribute('aria-hidden', 'true');
    return element('li', '', square, element('span', 'name', name), ...(bytes === undefined ? [] : [element('span', 'bytes', bytesText(bytes))]));
  }));
}

// ---- Speeds ----

export function drawSpark(svg, values) {
  const most = Math.max(1, ...values);
  svg.setAttribute('viewBox', `0 0 ${Math.max(1, values.length - 1)} 1`);
  const points = values.map((value, i) => `${i},${(1 - (value / most) * 0.9).toFixed(3)}`);
  svg.replaceChildren(...(values.length < 2 ? [] : [svgNode('polyline', { points: points.join(' ') })]));
}
