// SPDX-License-Identifier: MIT
// The conversations that this browser keeps, and what is exported of one. Each has an entry of its own,
// so that tabs do not write over each other's.

const prefix = 'sharpi.chat.';

export class Conversations {
  constructor() {
    try {
      this.storage = localStorage;
    } catch {
      this.storage = null;  // switched off
    }
  }

  newId() { return Date.now().toString(36) + Math.random().toString(36).slice(2, 8); }

  // [{id, title, time, count}], the latest first.
  list() {
    const found = [];
    for (let i = 0; i < (this.storage?.length ?? 0); ++i) {
      const key = this.storage.key(i);
      const entry = key.startsWith(prefix) && this.entry(key.slice(prefix.length));
      if (entry) found.push({ id: key.slice(prefix.length), title: titleOf(entry.messages), time: entry.time, count: entry.messages.length });
    }
    return found.sort((a, b) => b.time - a.time);
  }

  entry(id) {
    try {
      const entry = JSON.parse(this.storage.getItem(prefix + id));
      return Array.isArray(entry?.messages) ? entry : null;
    } catch {
      return null;
    }
  }

  read(id) { return this.entry(id)?.messages ?? null; }

  // Whether the browser keeps it now. An empty conversation needs no keeping.
  write(id, messages) {
    if (!messages.length) {
      this.remove(id);
      return true;
    }
    try {
      this.storage.setItem(prefix + id, JSON.stringify({ time: Date.now(), messages }));
      return true;
    } catch {
      return false;  // full, or switched off
    }
  }

  remove(id) {
    try {
      this.storage.removeItem(prefix + id);
    } catch { /* then it was not there */ }
  }
}

export function titleOf(messages) {
  const first = messages.find((message) => message.role === 'user');
  const line = (first?.text || first?.files?.[0]?.name || 'No question').trim().split('\n')[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// A fence that no line of the text closes.
function fenceFor(text) {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((match) => match[0].length));
  return '`'.repeat(longest + 1);
}

function fenced(name, text) {
  const fence = fenceFor(text);
  return `${name}:\n${fence}\n${text.replace(/\n$/, '')}\n${fence}`;
}

// What a message of the user says, files included, as the model reads it.
export function contentOf(message) {
  const files = (message.files ?? []).map((file) => fenced(`File ${file.name}`, file.text));
  return [message.text, ...files].filter(Boolean).join('\n\n');
}

export function asMarkdown(messages) {
  const parts = messages.map((message) => {
    if (message.role === 'tool') return fenced(`Result of ${message.name}`, message.text);
    const calls = (message.calls ?? []).map((call) => fenced(`Call of ${call.name}`, call.arguments));
    const said = message.role === 'user' ? contentOf(message) : message.text;
    const thoughts = message.reasoning ? message.reasoning.trim().replace(/^/gm, '> ') : '';
    return [`## ${message.role === 'user' ? 'You' : 'The model'}`, thoughts, said, ...calls].filter(Boolean).join('\n\n');
  });
  return [`# ${titleOf(messages)}`, ...parts].join('\n\n') + '\n';
}

// Hands a text to the browser as a file to save.
export function download(name, text) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'text/markdown' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
