// SPDX-License-Identifier: MIT
// Wires the page: conversation, memory panel, settings, keys.
import { getJson, setKey } from './api.js';
import { Chat, fitHeight } from './chat.js';
import { Memory } from './memory.js';

const byId = (id) => document.getElementById(id);
const prompt = byId('prompt');

// ---- What this tab remembers ----

const stored = { messages: [], settings: {}, key: '' };
try {
  Object.assign(stored, JSON.parse(sessionStorage.getItem('sharpi') ?? '{}'));
} catch { /* storage is switched off or holds something else: begin anew */ }

function store() {
  try {
    sessionStorage.setItem('sharpi', JSON.stringify({ ...stored, messages: chat.messages }));
  } catch { /* full or switched off: the conversation then ends with the page */ }
}

const defaults = { system: '', temperature: 0.7, maxTokens: 1024 };
const settings = () => ({ ...defaults, ...stored.settings });
const asked = () => {
  const { temperature, maxTokens } = settings();
  return { temperature, max_tokens: maxTokens };
};
asked.shown = settings;

// ---- Conversation ----

const memory = new Memory(() => chat.busy);
const chat = new Chat(
  { log: byId('log'), scroll: byId('scroll'), welcome: byId('welcome'), announce: byId('announce'), edited: () => prompt.focus() },
  { settings: asked, changed, session: (id) => { memory.follow(id); } },
);

function changed() {
  byId('send').hidden = chat.busy;
  byId('stop').hidden = !chat.busy;
  byId('new').disabled = chat.messages.length === 0;
  store();
  memory.look();
}

function send() {
  const text = prompt.value.trim();
  if (!text || chat.busy) return;
  prompt.value = '';
  fitHeight(prompt);
  chat.send(text);
}

function stop() {
  chat.stop();
  prompt.focus();
}

byId('composer').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
prompt.addEventListener('input', () => fitHeight(prompt));
prompt.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId('stop').addEventListener('click', stop);
byId('new').addEventListener('click', () => {
  chat.load([]);
  memory.forget();
  prompt.focus();
});
byId('starters').addEventListener('click', ({ target }) => {
  if (target instanceof HTMLButtonElement) chat.send(target.textContent);
  prompt.focus();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || byId('settings').open) return;
  if (chat.busy) stop();
  else if (document.body.classList.contains('memory-open')) toggleMemory(false);
});

// ---- The panel on a narrow screen ----

function toggleMemory(open = !document.body.classList.contains('memory-open')) {
  document.body.classList.toggle('memory-open', open);
  byId('memory-toggle').setAttribute('aria-expanded', String(open));
  memory.look();
  if (!open) byId('memory-toggle').focus();
}
byId('memory-toggle').addEventListener('click', () => toggleMemory());

// ---- Settings ----

const temperature = byId('temperature');
const showTemperature = () => {
  const value = Number(temperature.value);
  byId('temperature-value').textContent = value === 0 ? '0, always the likeliest' : value.toFixed(2);
};
temperature.addEventListener('input', showTemperature);
byId('settings-open').addEventListener('click', () => {
  const now = settings();
  byId('system').value = now.system;
  temperature.value = now.temperature;
  showTemperature();
  byId('max-tokens').value = now.maxTokens;
  byId('key').value = stored.key;
  byId('settings').returnValue = '';
  byId('settings').showModal();
});
byId('settings-cancel').addEventListener('click', () => byId('settings').close());
byId('settings').addEventListener('close', () => {
  if (byId('settings').returnValue !== 'save') return;
  stored.settings = {
    system: byId('system').value.trim(),
    temperature: Number(temperature.value),
    maxTokens: Math.max(1, Math.round(Number(byId('max-tokens').value)) || defaults.maxTokens),
  };
  stored.key = byId('key').value;
  setKey(stored.key);
  store();
  connect();
});

// ---- Start ----

async function connect() {
  try {
    const { data } = await getJson('/v1/models');
    byId('model').textContent = data[0]?.id ?? '';
    byId('model').classList.remove('error');
    await memory.loadPlan();
    memory.look();
  } catch (error) {
    byId('model').textContent = error.message;
    byId('model').classList.add('error');
  }
}

setKey(stored.key);
chat.load(stored.messages);
connect();
prompt.focus({ preventScroll: true });
