// SPDX-License-Identifier: MIT
// Files that are put beside a question, as text.
import { element } from './markdown.js';

const mostBytes = 1 << 20;

async function textOf(file) {
  if (file.size > mostBytes) throw new Error(`${file.name} has more than 1 MiB.`);
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not text.`);
  }
  if (text.includes('\0')) throw new Error(`${file.name} is not text.`);
  return { name: file.name, text: text.replace(/\r\n?/g, '\n') };
}

// The files of the next message: chosen by a button, dropped, or pasted.
export class Files {
  // parts: {list, button, input, area}; say(text): what went wrong.
  constructor(parts, say) {
    Object.assign(this, parts);
    this.say = say;
    this.taken = [];
    this.button.addEventListener('click', () => this.input.click());
    this.input.addEventListener('change', () => {
      this.add(this.input.files);
      this.input.value = '';
    });
    this.area.addEventListener('paste', (event) => {
      if (event.clipboardData?.files.length) this.add(event.clipboardData.files);
    });
    for (const type of ['dragenter', 'dragover', 'dragleave', 'drop']) this.area.addEventListener(type, (event) => this.drag(event));
  }

  drag(event) {
    if (![...(event.dataTransfer?.types ?? [])].includes('Files')) return;
    event.preventDefault();
    this.area.classList.toggle('dropping', event.type === 'dragenter' || event.type === 'dragover');
    if (event.type === 'drop') this.add(event.dataTransfer.files);
  }

  async add(files) {
    const refused = [];
    for (const file of [...files]) {
      try {
        this.taken.push(await textOf(file));
      } catch (error) {
        refused.push(error.message);
      }
    }
    this.draw();
    if (refused.length) this.say(refused.join(' '));
  }

  // Those there are; none are left.
  take() {
    const taken = this.taken;
    this.taken = [];
    this.draw();
    return taken;
  }

  draw() {
    this.list.replaceChildren(...this.taken.map((file, i) => {
      const remove = element('button', 'quiet', '×');
      remove.type = 'button';
      remove.setAttribute('aria-label', `Leave ${file.name} out`);
      remove.addEventListener('click', () => {
        this.taken.splice(i, 1);
        this.draw();
      });
      return element('li', '', element('span', '', file.name), remove);
    }));
    this.list.hidden = !this.taken.length;
  }
}
