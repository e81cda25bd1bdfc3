// SPDX-License-Identifier: MIT
// What the page asks of its server. Failures are ServerError with a sentence for people.

export class ServerError extends Error {
  constructor(message, status = 0, retryAfter = 0) {  // status 0: there was no answer
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;  // seconds; 0 = the server did not say
  }
}

let apiKey = '';
export function setKey(key) { apiKey = key; }

async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey) headers.set('Authorization', `Bearer ${apiKey}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ServerError('The server cannot be reached.');
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const body = await response.json();
    message = body.error?.message || message;
  } catch { /* no JSON: the status has to do */ }
  if (response.status === 401) message = `${message} The settings have a field for the API key.`;
  return new ServerError(message, response.status, Number(response.headers.get('Retry-After')) || 0);
}

const post = (path, body, signal) => request(path, {
  method: 'POST', signal, headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body),
});

export const getJson = async (path) => (await request(path)).json();
export const postJson = async (path, body) => (await post(path, body)).json();

// The events of a stream in the format of server-sent events: yields the text of each `data`.
async function* eventsOf(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});  // whoever stops reading wants no more of it
  }
}

// The chunks of a streamed answer. Ends with the server's [DONE]; an answer that breaks off without it
// is an error, so that half an answer is never taken for a whole one.
export async function* streamChat(body, signal) {
  const response = await post('/v1/chat/completions', { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  try {
    for await (const data of eventsOf(response.body)) {
      if (data === '[DONE]') return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message || 'The server broke off the answer.', chunk.error.code);
      yield chunk;
    }
  } catch (error) {
    if (error.name === 'AbortError' || error instanceof ServerError) throw error;
    throw new ServerError('The connection was lost in the middle of the answer.');
  }
  throw new ServerError('The connection ended in the middle of the answer.');
}
