// SPDX-License-Identifier: MIT
// Wires the page: conversation, memory panel, settings, keys.
import { getJson, setKey } from './api.js';
import { Chat, fitHeight } from './chat.js';
import { asMarkdown, Conversations, download, titleOf } from './conversations.js';
import { Files } from './files.js';
import { element } from './markdown.js';
import { Memory } from './memory.js';

const byId = (id) => document.getElementById(id);
const prompt = byId('prompt');

// ---- What this tab remembers, and this browser ----

const conversations = new Conversations();
const stored = { id: conversations.newId(), settings: {}, key: '' };
let kept = true;  // the browser has the conversation as it is
try {
  Object.assign(stored, JSON.parse(sessionStorage.getItem('sharpi') ?? '{}'));
} catch { /* storage is switched off or holds something else: begin anew */ }

function store() {
  kept = conversations.write(stored.id, chat.messages);
  try {
    sessionStorage.setItem('sharpi', JSON.stringify(stored));
  } catch { /* switched off: settings then end with the page */ }
}

const defaults = { system: '', temperature: 0.7, maxTokens: 1024, functions: '' };
const settings = () => ({ ...defaults, ...stored.settings });
const asked = () => {
  const { temperature, maxTokens, functions } = settings();
  return { temperature, max_tokens: maxTokens, ...(functions && { tools: JSON.parse(functions) }) };
};
asked.shown = settings;

// ---- Conversation ----

const memory = new Memory(() => chat.busy);
const chat = new Chat(
  { log: byId('log'), scroll: byId('scroll'), welcome: byId('welcome'), announce: byId('announce'), edited: () => prompt.focus() },
  { settings: asked, changed, session: (id) => { memory.follow(id); } },
);

memory.looked = (session) => chat.showReading(session);

const files = new Files(
  { list: byId('files'), button: byId('attach-open'), input: byId('attach'), area: byId('chat') },
  (text) => inform(text),
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
  if ((!text && !files.taken.length) || chat.busy) return;
  prompt.value = '';
  fitHeight(prompt);
  chat.send(text, files.take());
}

// Shows another conversation, or a new one. False: somebody wants to keep what would be lost.
async function turnTo(id, messages) {
  const loss = chat.busy ? 'The answer that is being written will be cut off.'
    : kept ? '' : 'This browser keeps no conversations, or has no room for this one: it will be lost.';
  if (loss && !(await sure(loss, 'Go on'))) return false;
  chat.stop();
  store();
  stored.id = id;
  chat.load(messages);
  memory.forget();
  prompt.focus();
  return true;
}

// Asks, and resolves to whether the answer was yes. Without a label there is nothing to decide.
let answerSure = () => {};
function sure(text, label) {
  const dialog = byId('sure');
  answerSure(false);  // who asked before
  byId('sure-text').textContent = text;
  byId('sure-yes').textContent = label ?? 'OK';
  byId('sure-no').hidden = !label;
  dialog.showModal();
  return new Promise((resolve) => {
    answerSure = (answer) => {
      answerSure = () => {};
      dialog.close();
      resolve(answer);
    };
  });
}
byId('sure-yes').addEventListener('click', () => answerSure(true));
byId('sure-no').addEventListener('click', () => answerSure(false));
byId('sure').addEventListener('cancel', () => answerSure(false));
const inform = (text) => sure(text);

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
byId('new').addEventListener('click', () => turnTo(conversations.newId(), []));
byId('starters').addEventListener('click', ({ target }) => {
  if (target instanceof HTMLButtonElement) chat.send(target.textContent);
  prompt.focus();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (chat.busy) stop();
  else if (document.body.classList.contains('memory-open')) toggleMemory(false);
});

// ---- The conversations of this browser ----

function showChats() {
  const list = conversations.list();
  byId('chats-none').hidden = list.length > 0;
  byId('chats-list').replaceChildren(...list.map(({ id, title, time, count }) => {
    const button = (className, label, act, name) => {
      const one = element('button', className, ...label);
      one.type = 'button';
      if (name) one.setAttribute('aria-label', name);
      one.addEventListener('click', act);
      return one;
    };
    const open = button('open', [title, element('small', '', `${new Date(time).toLocaleString()}, ${count} messages`)], async () => {
      byId('chats').close();
      if (id !== stored.id) await turnTo(id, conversations.read(id) ?? []);
    });
    if (id === stored.id) open.setAttribute('aria-current', 'true');
    return element('li', '', open,
      button('quiet', ['Export'], () => exportChat(id), `Export ${title}`),
      button('quiet', ['Delete'], () => deleteChat(id, title), `Delete ${title}`));
  }));
}

function exportChat(id) {
  const messages = conversations.read(id) ?? [];
  const name = titleOf(messages).replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 40);
  download(`${name || 'conversation'}.md`, asMarkdown(messages));
}

async function deleteChat(id, title) {
  if (!(await sure(`“${title}” will be deleted.`, 'Delete'))) return;
  if (id === stored.id) {
    chat.stop();
    stored.id = conversations.newId();
    chat.load([]);
    memory.forget();
  }
  conversations.remove(id);
  showChats();
}

byId('chats-open').addEventListener('click', () => {
  showChats();
  byId('chats').showModal();
});
byId('chats-close').addEventListener('click', () => byId('chats').close());

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
  byId('functions').value = now.functions;
  byId('settings-error').textContent = '';
  byId('key').value = stored.key;
  byId('settings').returnValue = '';
  byId('settings').showModal();
});
byId('settings-form').addEventListener('submit', (event) => {
  const text = byId('functions').value.trim();
  try {
    if (text && !Array.isArray(JSON.parse(text))) throw new SyntaxError('it is no list');
  } catch (error) {
    event.preventDefault();
    byId('settings-error').textContent = `The functions are not JSON as the server takes it: ${error.message}.`;
  }
});
byId('settings-cancel').addEventListener('click', () => byId('settings').close());
byId('settings').addEventListener('close', () => {
  if (byId('settings').returnValue !== 'save') return;
  stored.settings = {
    system: byId('system').value.trim(),
    temperature: Number(temperature.value),
    maxTokens: Math.max(1, Math.round(Number(byId('max-tokens').value)) || defaults.maxTokens),
    functions: byId('functions').value.trim(),
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

addEventListener('pagehide', store);
setKey(stored.key);
chat.load(conversations.read(stored.id) ?? []);
connect();
prompt.focus({ preventScroll: true });
