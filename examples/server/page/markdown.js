// SPDX-License-Identifier: MIT
// The part of Markdown that models write most: paragraphs, headings, lists, tables, quotes, code, emphasis.
// All of a model's text ends up in text nodes; no string is ever parsed as HTML, and there are no
// links, so that nothing a model writes can run, load or lead anywhere.

// An element with a class and children; strings among them become text nodes.
export function element(name, className, ...children) {
  const node = document.createElement(name);
  if (className) node.className = className;
  node.append(...children);
  return node;
}

// Marks that belong together are at most a thousand characters apart, so that text full of single
// marks takes time in proportion to its length.
const inlineMarks = new RegExp([
  '(`+)(?!`)([\\s\\S]{0,1000}?[^`])\\1(?!`)',
  '\\*\\*(?=\\S)([\\s\\S]{0,1000}?\\S)\\*\\*',
  '\\*(?=[^\\s*])([\\s\\S]{0,1000}?[^\\s*])\\*(?!\\*)',
  '(?<![\\p{L}\\p{N}_])_(?=[^\\s_])([\\s\\S]{0,1000}?[^\\s_])_(?![\\p{L}\\p{N}_])',
].join('|'), 'u');

// Nested emphasis goes this deep; what is deeper stays as it was written.
const maxDepth = 4;

function appendInline(node, text, depth = 0) {
  let rest = text;
  for (let match; depth < maxDepth && (match = inlineMarks.exec(rest)); ) {
    const [whole, , code, strong, starred, underscored] = match;
    node.append(rest.slice(0, match.index));
    if (code !== undefined) {
      node.append(element('code', '', code.trim() || code));
    } else {
      const inner = element(strong !== undefined ? 'strong' : 'em');
      appendInline(inner, strong ?? starred ?? underscored, depth + 1);
      node.append(inner);
    }
    rest = rest.slice(match.index + whole.length);
  }
  node.append(rest);
}

const fence = /^ {0,3}(```+|~~~+)\s*([^`\s]*)[^`]*$/;
const heading = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const bullet = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const quote = /^ {0,3}> ?(.*)$/;
const rule = /^ {0,3}([-*_])( *\1){2,} *$/;

const tableRule = /^ {0,3}\|?(?: *:?-+:? *\|)+ *(?::?-+:?)? *$/;

// Whether lines[i] is the head of a table: cells, and as a next line the rule that says how they stand.
function beginsTable(lines, i) {
  return lines[i].includes('|') && i + 1 < lines.length && tableRule.test(lines[i + 1]);
}

function kindOf(line) {
  if (fence.test(line)) return 'code';
  if (rule.test(line)) return 'rule';
  if (heading.test(line)) return 'heading';
  if (bullet.test(line)) return 'list';
  if (quote.test(line)) return 'quote';
  return line.trim() === '' ? 'blank' : 'text';
}

// How many lines the block that begins at lines[first] has.
function blockLength(lines, first, kind) {
  let n = first + 1;
  if (kind === 'heading' || kind === 'rule') return 1;
  if (kind === 'code') {
    const mark = fence.exec(lines[first])[1];
    while (n < lines.length && !(lines[n].trim().startsWith(mark) && /^[`~]+$/.test(lines[n].trim()))) ++n;
    return Math.min(n + 1, lines.length) - first;
  }
  if (kind === 'table') {
    while (n < lines.length && (n === first + 1 || (kindOf(lines[n]) === 'text' && lines[n].includes('|')))) ++n;
    return n - first;
  }
  for (; n < lines.length; ++n) {
    const next = kindOf(lines[n]);
    if (next === 'text' && beginsTable(lines, n)) break;
    const goesOn = next === kind || (kind === 'list' && next === 'text' && /^\s/.test(lines[n]));
    if (!goesOn) break;
  }
  return n - first;
}

// The text as blocks: {kind, source}. Only the last one can change while text is added at the end.
function blocksOf(text) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const blocks = [];
  for (let i = 0; i < lines.length; ) {
    let kind = kindOf(lines[i]);
    if (kind === 'text' && beginsTable(lines, i)) kind = 'table';
    const n = blockLength(lines, i, kind);
    if (kind !== 'blank') blocks.push({ kind, source: lines.slice(i, i + n).join('\n') });
    i += n;
  }
  return blocks;
}

function codeBlock(source) {
  const lines = source.split('\n');
  const [, mark, language] = fence.exec(lines[0]);
  const closed = lines.length > 1 && lines.at(-1).trim().startsWith(mark);
  const text = lines.slice(1, closed ? -1 : undefined).join('\n');
  const figure = element('figure', 'code');
  const caption = element('figcaption', '', language || 'code');
  if (navigator.clipboard) {
    const copy = element('button', 'quiet', 'Copy');
    copy.type = 'button';
    copy.addEventListener('click', () => copyText(text, copy));
    caption.append(copy);
  }
  const body = element('pre', '', element('code', '', text));
  body.tabIndex = 0;  // so that long lines can be scrolled to by keyboard
  figure.append(caption, body);
  return figure;
}

export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'The browser refused';
  }
  setTimeout(() => { button.textContent = label; }, 1500);
}

// Items by their indentation: a deeper one becomes a list inside the item before it.
function listBlock(source) {
  const root = element('ul', 'list-root');
  const open = [{ indent: -1, item: root, list: null }];
  for (const line of source.split('\n')) {
    const match = bullet.exec(line);
    if (!match) {
      appendInline(open.at(-1).item, '\n' + line.trim());
      continue;
    }
    const [, blanks, mark, text] = match;
    while (open.length > 1 && open.at(-1).indent >= blanks.length) open.pop();
    const parent = open.at(-1);
    if (!parent.list) {
      parent.list = element(/\d/.test(mark) ? 'ol' : 'ul');
      if (/\d/.test(mark)) parent.list.start = parseInt(mark, 10);
      parent.item.append(parent.list);
    }
    const item = element('li');
    appendInline(item, text);
    parent.list.append(item);
    open.push({ indent: blanks.length, item, list: null });
  }
  const lists = [...root.children];
  return lists.length === 1 ? lists[0] : element('div', '', ...lists);
}

function cellsOf(line) {
  return line.trim().replace(/^\||(?<!\\)\|$/g, '').split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, '|'));
}

// Rows have as many cells as the head, whatever they say.
function tableBlock(source) {
  const [head, rules, ...rows] = source.split('\n');
  const sides = cellsOf(rules).map((rule) => (/^:.*:$/.test(rule) ? 'middle' : rule.endsWith(':') ? 'right' : ''));
  const rowOf = (line, name) => {
    const cells = cellsOf(line);
    return element('tr', '', ...cellsOf(head).map((_, i) => {
      const cell = element(name, sides[i] ?? '');
      appendInline(cell, cells[i] ?? '');
      return cell;
    }));
  };
  const table = element('table', '', element('thead', '', rowOf(head, 'th')), element('tbody', '', ...rows.map((line) => rowOf(line, 'td'))));
  const box = element('div', 'table', table);
  box.tabIndex = 0;  // so that wide ones can be scrolled by keyboard
  return box;
}

function blockNode({ kind, source }) {
  if (kind === 'code') return codeBlock(source);
  if (kind === 'table') return tableBlock(source);
  if (kind === 'list') return listBlock(source);
  if (kind === 'rule') return element('hr');
  const inner = {
    heading: () => heading.exec(source)[2],
    quote: () => source.split('\n').map((line) => quote.exec(line)[1]).join('\n'),
    text: () => source,
  }[kind]();
  const node = element({ heading: 'h3', quote: 'blockquote', text: 'p' }[kind]);
  appendInline(node, inner);
  return node;
}

// Shows `text` in `container`. Blocks that stand there already with the same source are left alone, so
// that a growing answer costs its last block only, and a selection in it survives.
export function renderMarkdown(container, text) {
  const blocks = blocksOf(text);
  const shown = container.shownSources ?? [];
  blocks.forEach((block, i) => {
    const key = block.kind + block.source;
    if (shown[i] === key) return;
    const node = blockNode(block);
    if (i < container.children.length) container.children[i].replaceWith(node);
    else container.append(node);
    shown[i] = key;
  });
  while (container.children.length > blocks.length) container.lastElementChild.remove();
  shown.length = blocks.length;
  container.shownSources = shown;
}
