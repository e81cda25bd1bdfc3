// SPDX-License-Identifier: MIT
// The memory panel: asks the server what is planned and what is held, and compacts.
import { getJson, postJson } from './api.js';
import { bytesParts, bytesText, count, drawKey, drawPlan, drawSpark, KeptDrawing, RowsDrawing } from './draw.js';

const byId = (id) => document.getElementById(id);
const set = (id, text) => { byId(id).textContent = text; };

// Milliseconds between two looks at the sessions: while an answer is written, and otherwise.
const lively = 400, calm = 4000;
// Bins of the drawing of kept positions, and speeds in the line.
const bins = 96, speeds = 60;

// Purposes in the order in which they are drawn, and what they are called here.
const purposes = {
  weights: 'Weights', experts: 'Experts on the GPU', kv: 'KV rows', recurrent: 'Recurrent state', checkpoints: 'Checkpoints',
  capture: 'Captured queries', compaction: 'Room to compact', kv_chunk: 'KV rows of a chunk', activations: 'Activations',
  logits: 'Logits', staging: 'Staging', graphs: 'Graphs', tables: 'Tables', library: 'Libraries', driver: 'Driver',
};
const className = (purpose) => `purpose-${purpose.replace('_', '-')}`;

export class Memory {
  // busy(): an answer is being written.
  constructor(busy) {
    this.busy = busy;
    this.id = null;  // of the session that answers this tab
    this.plan = null;
    this.history = [];
    this.moved = false;  // the slider, by the user
    this.rows = new RowsDrawing(byId('rows'));
    this.kept = new KeptDrawing(byId('kept'));
    byId('budget').addEventListener('input', () => { this.moved = true; this.showBudget(); });
    byId('compact-form').addEventListener('submit', (event) => { event.preventDefault(); this.compact(); });
    document.addEventListener('visibilitychange', () => this.look());
  }

  follow(id) { this.id = id; }

  // A new conversation has no session yet.
  forget() {
    this.id = null;
    this.moved = false;
    this.history = [];
    this.showSession(undefined);
  }

  async loadPlan() {
    this.plan = await getJson('/v1/sharpi/plan');
    this.showPlan([]);
  }

  // Looks at the sessions now, and again after a while as long as the page can be seen.
  async look() {
    clearTimeout(this.timer);
    const turn = this.turn = (this.turn ?? 0) + 1;
    if (document.hidden) return;
    try {
      const { sessions } = await getJson('/v1/sharpi/sessions');
      if (turn !== this.turn) return;
      this.show(sessions);
    } catch (error) {
      this.failed?.(error);
    }
    if (turn === this.turn) this.timer = setTimeout(() => this.look(), this.busy() ? lively : calm);
  }

  show(sessions) {
    if (this.plan) this.showPlan(sessions);
    const session = sessions.find((one) => one.id === this.id);
    this.showSession(session);
    this.looked?.(session);
  }

  showPlan(sessions) {
    const held = sessions.reduce((sum, session) => sum + session.kv_held_bytes, 0);
    const { rows } = this.plan.plan;
    const shown = rows.filter((row) => !row.transient && row.held_bytes);
    const order = Object.keys(purposes);
    const rank = (purpose) => (order.indexOf(purpose) + order.length) % order.length;
    const places = ['device', 'host', 'file'].map((place) => {
      const here = shown.filter((row) => placeOf(row) === place);
      const parts = order.filter((purpose) => here.some((row) => row.purpose === purpose)).map((purpose) => ({
        purpose, name: purposes[purpose], className: className(purpose), bytes: total(here.filter((row) => row.purpose === purpose)),
      }));
      return { name: { device: 'GPU memory', host: 'Host memory', file: 'Pages of the model file' }[place], parts };
    }).filter((place) => place.parts.length);
    const rowsOfKv = places.flatMap((place) => place.parts).filter((part) => part.purpose === 'kv');
    const planned = rowsOfKv.reduce((sum, part) => sum + part.bytes, 0);
    for (const part of rowsOfKv) part.live = (part.bytes * held) / planned;
    drawPlan(byId('plan'), places);
    const all = new Map();
    for (const part of places.flatMap((place) => place.parts)) {
      all.set(part.purpose, { ...part, bytes: part.bytes + (all.get(part.purpose)?.bytes ?? 0) });
    }
    drawKey(byId('plan-key'), [...all.values()].sort((a, b) => rank(a.purpose) - rank(b.purpose)));
    set('plan-note', 'every byte, before it is taken');
  }

  showSession(session) {
    this.session = session;
    this.showFigures(session);
    const rows = session?.n_slots_max ?? 0;
    const compacted = session?.is_compacted ? session.last_compaction : null;
    const layers = (session?.layers ?? plannedLayers(this.plan?.plan)).map((layer) => {
      const kind = kindOf(layer);
      return { ...layer, kind, before: compacted && kind === 'attention' ? compacted.rows_before : 0 };
    });
    if (layers.length) this.rows.show({ layers, context: session?.n_ctx ?? this.plan.plan.n_ctx });
    set('rows-note', session ? '' : 'no conversation yet');
    drawKey(byId('rows-key'), keyOf(layers));
    this.showSlider(rows);
    if (!session) set('report', '');
    else if (compacted) set('report', reportText(compacted));
    this.showKept(session, compacted);
  }

  showFigures(session) {
    const speed = session?.tokens_per_second || 0;
    if (this.busy() && speed) this.history = [...this.history, speed].slice(-speeds);
    set('speed', speed ? speed.toFixed(speed < 100 ? 1 : 0) : '–');
    drawSpark(byId('spark'), this.history);
    set('tokens', session ? count(session.n_tokens) : '–');
    set('context', session ? `of ${count(session.n_ctx)}` : '');
    const [held, unit] = session ? bytesParts(session.kv_held_bytes) : ['–', ''];
    set('held', held);
    set('held-unit', unit);
    set('used', session ? `${bytesText(session.kv_payload_bytes)} of it in use` : '');
    set('slots', session ? slotsText(session) : '');
    const acceptance = session?.acceptance;
    set('acceptance', acceptance == null ? '–' : `${Math.round(acceptance * 100)} %`);
    set('drafts', session ? this.draftsText(session) : '');
    byId('meter').firstElementChild.style.width = `${session ? Math.min(100, (session.n_slots_max / session.n_ctx) * 100) : 0}%`;
  }

  draftsText({ n_drafted: made, n_accepted: right }) {
    if (made) return `${count(right)} of ${count(made)} tokens`;
    return this.plan?.settings.drafts.value ? 'none were made yet' : 'none are made';
  }

  showSlider(rows) {
    const slider = byId('budget');
    const least = Number(slider.min);
    const possible = rows > least && !this.compacting;
    if (rows > least) {
      slider.max = rows;
      // Nobody knows what will be asked next, and with less than half most answers are gone.
      if (!this.moved) slider.value = Math.max(least, Math.round(rows / 2));
    }
    slider.disabled = !possible;
    byId('compact').disabled = !possible || this.busy();
    this.showBudget();
  }

  showBudget() {
    const slider = byId('budget');
    const text = slider.disabled && !this.compacting ? 'more rows before there is something to choose from'
      : `${count(Number(slider.value))} of ${count(Number(slider.max))} rows a layer`;
    set('budget-rows', slider.disabled && !this.session ? 'the rows that matter' : text);
    slider.setAttribute('aria-valuetext', text);
  }

  async compact() {
    const { session } = this;
    if (!session || this.compacting) return;
    this.compacting = true;
    byId('compact').disabled = true;
    set('report', 'Compacting …');
    try {
      const report = await postJson(`/v1/sharpi/sessions/${encodeURIComponent(session.id)}/compact`,
        { budget: Number(byId('budget').value), policy: 'auto' });
      set('report', reportText(report));
      byId('report').classList.remove('error');
      this.moved = false;
    } catch (error) {
      set('report', error.message);
      byId('report').classList.add('error');
    } finally {
      this.compacting = false;
      await this.look();
    }
  }

  // Which positions are left, asked for once for every compaction and every further 64 tokens.
  async showKept(session, compacted) {
    const wanted = compacted ? `${session.id} ${compacted.held_after} ${compacted.rows_after} ${session.n_tokens >> 6}` : '';
    if (wanted === this.keptShown) return;
    this.keptShown = wanted;
    byId('kept-section').hidden = !wanted;
    if (!wanted) return;
    try {
      const { layers } = await getJson(`/v1/sharpi/sessions/${encodeURIComponent(session.id)}/kept?bins=${bins}`);
      this.kept.show(layers);
    } catch {
      byId('kept-section').hidden = true;
    }
  }
}

// What a layer stores: rows, rows of a window, a state, or nothing, as it reads another layer's rows.
function kindOf({ capacity, mixer }) {
  if (capacity) return mixer === 'window' ? 'window' : 'attention';
  return mixer === 'delta net' ? 'state' : 'shared';
}

// The layers before there is a session: none has rows yet.
function plannedLayers(plan) {
  const layers = (plan?.layer_groups ?? []).flatMap(({ layers: numbers, mixer, tier, capacity }) =>
    numbers.map((layer) => ({ layer, mixer, tier, capacity, rows: 0 })));
  return layers.sort((a, b) => a.layer - b.layer);
}

const placeOf = (row) => (row.kind === 'mapped' ? 'file' : row.kind === 'device' ? 'device' : 'host');
const total = (rows) => rows.reduce((sum, row) => sum + row.held_bytes, 0);

function slotsText({ n_slots_min: least, n_slots_max: most }) {
  return `${least === most ? count(most) : `${count(least)} to ${count(most)}`} rows a layer`;
}

function keyOf(layers) {
  const has = (test) => layers.some(test);
  return [
    { name: 'rows', className: 'live', there: has((layer) => layer.kind === 'attention') },
    { name: 'a sliding window', className: 'window', there: has((layer) => layer.kind === 'window') },
    { name: 'a state of fixed size', className: 'state', there: has((layer) => layer.kind === 'state') },
    { name: 'reads another layer\'s rows', className: 'shared', there: has((layer) => layer.kind === 'shared') },
    { name: 'given back', className: 'gone', there: has((layer) => layer.before > layer.rows) },
  ].filter((entry) => entry.there);
}

function reportText(report) {
  const back = report.held_before - report.held_after;
  const time = report.score_ms + report.move_ms;
  const given = back > 0 ? `${bytesText(back)} went back` : 'nothing went back';
  const why = report.kept_unranked ? '' : ` (the first ${report.kept_sinks}, the last ${count(report.kept_recent)}, `
    + `${count(report.kept_scored)} by ${report.policy})`;
  return `Kept ${count(report.rows_after)} of ${count(report.rows_before)} rows a layer${why}: ${given}, `
    + `${bytesText(report.held_after)} are held. It took ${time.toFixed(time < 10 ? 1 : 0)} ms.`;
}
