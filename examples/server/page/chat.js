// SPDX-License-Identifier: MIT
// The conversation: its messages, the answer that is being written, edit and regenerate.
// One answer is written at a time. Messages are plain objects, so that the tab can store them:
// {role, text, reasoning, note, error}.
import { ServerError, streamChat } from './api.js';
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

  send(text) {
    this.messages.push({ role: 'user', text });
    this.draw();
    return this.answer();
  }

  stop() { this.running?.abort(); }

  // Writes the answer to the last message of the user again; what came after it is dropped.
  regenerate() {
    while (this.messages.length && this.messages.at(-1).role !== 'user') this.messages.pop();
    if (!this.messages.length) return undefined;
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
      else if (error instanceof ServerError) message.error = errorText(error);
      else throw error;
    } finally {
      if (this.running === running) this.running = null;
      message.note += timesText(message.usage, clock);
      this.finish(message, item);
    }
  }

  async read(message, item, clock, chunks) {
    for await (const chunk of chunks) {
      const choice = chunk.choices?.[0];
      const { content, reasoning_content: reasoning } = choice?.delta ?? {};
      if (content || reasoning) {
        clock.last = performance.now();
        clock.first ||= clock.last;
        message.text += content ?? '';
        message.reasoning += reasoning ?? '';
        this.show(message, item);
      }
      if (choice?.finish_reason === 'length') message.note = 'Cut off at the longest answer allowed. ';
      if (chunk.usage) message.usage = chunk.usage;
      if (chunk.sharpi_session !== undefined) this.session(chunk.sharpi_session);
    }
  }

  // The conversation as the server takes it. An answer that failed before its first word is left out.
  asked() {
    const { system } = this.settings.shown();
    const messages = this.messages
      .filter((m) => m.role === 'user' || m.text)
      .map((m) => ({ role: m.role, content: m.text }));
    return system ? [{ role: 'system', content: system }, ...messages] : messages;
  }

  finish(message, item) {
    delete message.usage;
    this.frame && cancelAnimationFrame(this.frame);
    this.frame = 0;
    const still = this.messages.includes(message);
    if (still) {
      item.replaceWith(this.nodeOf(message));
      this.follow();
      this.announce.textContent = message.error || (message.note.startsWith('Stopped') ? 'Stopped.' : 'The answer is complete.');
    }
    this.changed();
  }

  // Shows a message that grows, at most once a frame.
  show(message, item) {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (!item.isConnected) return;
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
    item.append(element('span', 'hidden', mine ? 'You:' : 'The model:'), element('div', 'body'));
    fill(item, message);
    const last = message === this.messages.at(-1);
    if (!(last && this.busy)) item.append(this.toolsOf(message, mine));
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
    else if (message === this.messages.at(-1)) add(message.error ? 'Try again' : 'Regenerate', () => this.regenerate());
    if (navigator.clipboard && message.text) add('Copy', (button) => copyText(message.text, button));
    if (message.note) tools.append(element('span', 'note', message.note));
    return tools;
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
      if (!text) return;
      this.stop();
      this.messages.splice(this.messages.indexOf(message));
      this.send(text);
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
  if (message.role === 'user') {
    body.textContent = message.text;
    return;
  }
  if (message.reasoning) fillReasoning(item, body, message);
  renderMarkdown(body, message.text);
  let alert = item.querySelector('.error');
  if (message.error && !alert) {
    alert = element('p', 'error', message.error);
    alert.setAttribute('role', 'alert');
    body.after(alert);
  }
}

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
