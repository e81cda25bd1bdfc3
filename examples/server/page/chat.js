// SPDX-License-Identifier: MIT
// The conversation: its messages, the answer that is being written, edit and regenerate.
// One answer is written at a time. Messages are plain objects, so that the browser can store them:
// {role, text, files, refused} of the user, {role, text, reasoning, calls, note, error} of the model,
// {role: 'tool', id, name, text} with what a function said.
import { ServerError, streamChat } from './api.js';
import { contentOf } from './conversations.js';
import { count } from './draw.js';
import { copyText, element, renderMarkdown } from './markdown.js';

export class Chat {
  // parts: {log, scroll, welcome, announce}; settings(): what to ask with; changed(): messages or
  // activity are other ones now; session(id): which of the server's sessions answers.
  constructor(parts, { settings, changed, session }) {
    Object.assign(this, parts);
    this.settings = settings;
    this.changed = changed;
    this.session = session;
    this.messages = [];
    this.running = null;  // AbortController of the answer that is being written
  }

  get busy() { return this.running !== null; }

  load(messages) {
    this.stop();
    this.messages = messages;
    this.draw();
  }

  send(text, files = []) {
    this.messages.push({ role: 'user', text, ...(files.length && { files }) });
    this.draw();
    return this.answer();
  }

  // Takes a question out, with everything up to the next one.
  remove(message) {
    this.stop();
    const first = this.messages.indexOf(message);
    const next = this.messages.findIndex((one, i) => i > first && one.role === 'user');
    this.messages.splice(first, next < 0 ? this.messages.length : next - first);
    this.draw();
  }

  // What functions said, in the order in which the last answer called them.
  giveResults(texts) {
    const { calls } = this.messages.at(-1);
    calls.forEach((call, i) => this.messages.push({ role: 'tool', id: call.id, name: call.name, text: texts[i] }));
    this.draw();
    return this.answer();
  }

  stop() { this.running?.abort(); }

  // Writes the answer to the last message of the user again; what came after it is dropped.
  regenerate() {
    if (this.messages.at(-1)?.role === 'assistant') this.messages.pop();
    if (!this.messages.length) return undefined;
    delete this.messages.at(-1).refused;
    this.draw();
    return this.answer();
  }

  async answer() {
    this.stop();
    const running = this.running = new AbortController();
    const message = { role: 'assistant', text: '', reasoning: '', note: '' };
    const body = { ...this.settings(), messages: this.asked() };
    this.messages.push(message);
    const item = this.append(message);
    item.setAttribute('aria-busy', 'true');
    this.toEnd();
    this.changed();
    const clock = { start: performance.now(), first: 0, last: 0 };
    try {
      await this.read(message, item, clock, streamChat(body, running.signal));
    } catch (error) {
      if (error.name === 'AbortError') message.note = 'Stopped. ';
      else if (error instanceof ServerError) this.failed(message, error);
      else throw error;
    } finally {
      if (this.running === running) this.running = null;
      message.note += timesText(message.usage, clock);
      this.finish(message, item);
    }
  }

  // A question that the server does not take, as it is too long, is none of the conversation: what is
  // asked next goes without it.
  failed(message, error) {
    const question = this.messages.at(-2);
    if (![400, 413, 422].includes(error.status) || message.text || question?.role !== 'user') {
      message.error = errorText(error);
      return;
    }
    question.refused = errorText(error);
    this.messages.pop();
  }

  async read(message, item, clock, chunks) {
    for await (const chunk of chunks) {
      const choice = chunk.choices?.[0];
      const { content, reasoning_content: reasoning, tool_calls: calls } = choice?.delta ?? {};
      if (content || reasoning || calls) {
        clock.last = performance.now();
        clock.first ||= clock.last;
        message.text += content ?? '';
        message.reasoning += reasoning ?? '';
        for (const call of calls ?? []) addCall(message, call);
        this.show(message, item);
      }
      if (choice?.finish_reason === 'length') message.note = 'Cut off at the longest answer allowed. ';
      if (chunk.usage) message.usage = chunk.usage;
      if (chunk.sharpi_session !== undefined) this.session(chunk.sharpi_session);
    }
  }

  // The conversation as the server takes it, without what was refused and answers that failed before
  // their first word. Questions that follow each other then are one: templates want turns.
  asked() {
    const { system } = this.settings.shown();
    const messages = system ? [{ role: 'system', content: system }] : [];
    for (const message of this.messages) {
      const before = messages.at(-1);
      if (message.role === 'tool') messages.push({ role: 'tool', tool_call_id: message.id, content: message.text });
      else if (message.role === 'user' && message.refused) continue;
      else if (message.role === 'user' && before?.role === 'user') before.content += `\n\n${contentOf(message)}`;
      else if (message.role === 'user') messages.push({ role: 'user', content: contentOf(message) });
      else if (message.calls) messages.push({ role: 'assistant', content: message.text || null, tool_calls: message.calls.map(callOf) });
      else if (message.text) messages.push({ role: 'assistant', content: message.text });
    }
    return messages;
  }

  // How far the prompt is read: beside the answer that has no word yet.
  showReading(session) {
    const item = this.log.querySelector('[aria-busy]');
    const message = this.messages.at(-1);
    if (!item || !this.busy) return;
    const reads = session?.state === 'reading' && !message.text && !message.reasoning;
    let line = item.querySelector('.reading');
    if (!reads) line?.remove();
    if (!reads) return;
    if (!line) {
      line = element('p', 'reading', element('progress'), element('span'));
      item.append(line);
    }
    Object.assign(line.firstChild, { max: session.prompt_tokens, value: session.n_tokens, ariaLabel: 'Reading' });
    line.lastChild.textContent = `Reading: ${count(session.n_tokens)} of ${count(session.prompt_tokens)} tokens`;
  }

  finish(message, item) {
    delete message.usage;
    this.frame && cancelAnimationFrame(this.frame);
    this.frame = 0;
    const still = this.messages.includes(message);
    const refused = !still && this.messages.at(-1)?.refused;
    if (still) {
      item.replaceWith(this.nodeOf(message));
      this.follow();
      this.announce.textContent = message.error || (message.note.startsWith('Stopped') ? 'Stopped.' : 'The answer is complete.');
    } else if (refused && item.isConnected) {
      this.draw();
      this.announce.textContent = refused;
    }
    this.changed();
  }

  // Shows a message that grows, at most once a frame.
  show(message, item) {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (!item.isConnected) return;
      item.querySelector('.reading')?.remove();
      fill(item, message);
      this.follow();
    });
  }

  draw() {
    this.log.replaceChildren(...this.messages.map((message) => this.nodeOf(message)));
    this.welcome.hidden = this.messages.length > 0;
    this.toEnd();
    this.changed();
  }

  append(message) {
    const node = this.nodeOf(message);
    this.log.append(node);
    return node;
  }

  toEnd() { this.scroll.scrollTop = this.scroll.scrollHeight; }

  // Stays at the end of the text while it grows, unless the reader has scrolled away from it.
  follow() {
    const { scrollTop, clientHeight, scrollHeight } = this.scroll;
    if (scrollHeight - scrollTop - clientHeight < 120) this.toEnd();
  }

  nodeOf(message) {
    const mine = message.role === 'user';
    const item = element('li', `message ${message.role}`);
    item.append(element('span', 'hidden', { user: 'You:', tool: 'A function:' }[message.role] ?? 'The model:'), element('div', 'body'));
    fill(item, message);
    const last = message === this.messages.at(-1);
    if (last && !this.busy && message.calls) item.append(this.resultsForm(message));
    if (!(last && this.busy) && message.role !== 'tool') item.append(this.toolsOf(message, mine));
    return item;
  }

  toolsOf(message, mine) {
    const tools = element('div', 'tools');
    const add = (label, act) => {
      const button = element('button', 'quiet', label);
      button.type = 'button';
      button.addEventListener('click', () => act(button));
      tools.append(button);
    };
    if (mine) add('Edit', (button) => this.edit(message, button.closest('li')));
    if (mine) add('Remove', () => this.remove(message));
    else if (message === this.messages.at(-1)) add(message.error ? 'Try again' : 'Regenerate', () => this.regenerate());
    if (navigator.clipboard && message.text) add('Copy', (button) => copyText(message.text, button));
    if (message.note) tools.append(element('span', 'note', message.note));
    return tools;
  }

  // Fields for what the functions say that were called; then the model goes on.
  resultsForm(message) {
    const fields = message.calls.map((call) => {
      const field = element('textarea', 'edit');
      field.rows = 1;
      field.addEventListener('input', () => fitHeight(field));
      field.setAttribute('aria-label', `Result of ${call.name}`);
      field.placeholder = `Result of ${call.name}`;
      return field;
    });
    const form = element('form', 'edit-form', ...fields, element('div', 'tools', element('button', 'solid', 'Go on')));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.giveResults(fields.map((field) => field.value));
    });
    return form;
  }

  // Puts a field in a message's place. Saving it asks anew from there on.
  edit(message, item) {
    const field = element('textarea', 'edit');
    field.rows = 1;
    field.value = message.text;
    field.setAttribute('aria-label', 'Your message, changed');
    const save = element('button', 'solid', 'Ask again');
    const cancel = element('button', 'quiet', 'Cancel');
    cancel.type = 'button';
    const form = element('form', 'edit-form', field, element('div', 'tools', save, cancel));
    const restore = () => {
      const node = this.nodeOf(message);
      form.closest('li').replaceWith(node);
      node.querySelector('button')?.focus();
    };
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      const text = field.value.trim();
      if (!text && !message.files) return;
      this.stop();
      this.messages.splice(this.messages.indexOf(message));
      this.send(text, message.files);
      this.edited?.();
    });
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        restore();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.target === field) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    cancel.addEventListener('click', restore);
    item.replaceChildren(form);
    fitHeight(field);
    field.addEventListener('input', () => fitHeight(field));
    field.focus();
  }
}

export function fitHeight(field) {
  field.style.height = 'auto';
  field.style.height = `${field.scrollHeight + 2}px`;
}

// Writes what a message says into its node.
function fill(item, message) {
  const body = item.querySelector('.body');
  if (message.role === 'tool') {
    body.replaceChildren(folded(`Result of ${message.name}`, message.text));
    return;
  }
  if (message.role === 'user') {
    body.textContent = message.text;
    body.append(...(message.files ?? []).map((file) => folded(file.name, file.text)));
    fillError(item, body, message.refused);
    return;
  }
  if (message.reasoning) fillReasoning(item, body, message);
  renderMarkdown(body, message.text);
  const shown = item.querySelectorAll('.call').length;
  for (const call of message.calls?.slice(shown) ?? []) {
    const node = folded(`Calls ${call.name}`, prettyJson(call.arguments));
    node.classList.add('call');
    item.append(node);
  }
  fillError(item, body, message.error);
}

function fillError(item, body, text) {
  if (!text || item.querySelector('.error')) return;
  const alert = element('p', 'error', text);
  alert.setAttribute('role', 'alert');
  body.after(alert);
}

// Text that is there, and shown where somebody wants to see it.
function folded(title, text) {
  const pre = element('pre', '', text);
  pre.tabIndex = 0;
  return element('details', 'folded', element('summary', '', title), pre);
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// A streamed part of a call: the first one of an index has its name, later ones go on with its arguments.
function addCall(message, { index, id, function: { name, arguments: more = '' } = {} }) {
  message.calls ??= [];
  if (message.calls[index]) message.calls[index].arguments += more;
  else message.calls[index] = { id, name, arguments: more };
}

const callOf = ({ id, name, arguments: text }) => ({ id, type: 'function', function: { name, arguments: text } });

function fillReasoning(item, body, message) {
  let details = item.querySelector('details');
  if (!details) {
    details = element('details', 'reasoning', element('summary'), element('div'));
    body.before(details);
  }
  details.firstElementChild.textContent = message.text ? 'Thoughts' : 'Thinking …';
  renderMarkdown(details.lastElementChild, message.reasoning);
}

function errorText(error) {
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : '';
  return error.message + wait;
}

// "52 tokens, 71.3 a second, the first after 0.12 s; 40 of 63 read before".
function timesText(usage, { start, first, last }) {
  if (!first) return '';
  const parts = [];
  const made = usage?.completion_tokens ?? 0;
  if (made) parts.push(`${made} tokens`);
  if (made > 1 && last > first) parts.push(`${((made - 1) * 1000 / (last - first)).toFixed(1)} a second`);
  parts.push(`the first after ${((first - start) / 1000).toFixed(2)} s`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const reused = cached ? `; ${cached} of ${usage.prompt_tokens} were in memory already` : '';
  return parts.join(', ') + reused;
}
