// Anthropic's TypeScript SDK, unmodified, against the real server; and its accumulator on the streams of scripted answers.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import Anthropic from '@anthropic-ai/sdk';
import { zodOutputFormat } from '@anthropic-ai/sdk/helpers/zod';
import { z } from 'zod';

import { model, start } from './server.js';

const messages = [{ role: 'user', content: 'What is 2 + 3?' }];
let server, client;

before(async () => {
  server = await start();
  client = new Anthropic({ baseURL: server.url, apiKey: 'not-needed', maxRetries: 0 });
});
after(() => server.stop());

const body = (more = {}) => ({ model, messages, max_tokens: 24, seed: 5, ...more });

// What a message comes to, without the ids that differ every time.
const said = (message) => [message.content.map(({ id, ...block }) => block), message.stop_reason, message.stop_sequence];

test('create is what stream comes to', async () => {
  const whole = await client.messages.create(body());
  assert.match(whole._request_id, /^req_/);
  let text = '';
  const stream = client.messages.stream(body()).on('text', (piece) => { text += piece; });
  const streamed = await stream.finalMessage();
  assert.deepEqual(said(streamed), said(whole));
  assert.equal(text, whole.content.filter((block) => block.type === 'text').map((block) => block.text).join(''));
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
});

test('count_tokens, models and errors', async () => {
  const { input_tokens: counted } = await client.messages.countTokens({ model, messages });
  const { usage } = await client.messages.create(body());
  assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens);
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
  await assert.rejects(client.messages.create(body({ model: 'claude-haiku-4-5' })), (e) => e instanceof Anthropic.NotFoundError && e.error.error.type === 'not_found_error');
  await assert.rejects(client.messages.create(body({ messages: [{ role: 'user', content: 'word '.repeat(5000) }] })), (e) => e instanceof Anthropic.BadRequestError && /prompt is too long: \d+ tokens > \d+ maximum/.test(e.message));
});

test('results of tools', async () => {
  const tools = [{ name: 'add', input_schema: { type: 'object', properties: { a: { type: 'integer' } } } }];
  const answer = await client.messages.create(body({
    tools,
    messages: [
      ...messages,
      { role: 'assistant', content: [{ type: 'tool_use', id: 'toolu_1', name: 'add', input: { a: 2 } }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'toolu_1', content: '5' }] },
    ],
  }));
  assert.equal(answer.type, 'message');
});

test('parse, and a forced call', async () => {
  const quiet = { max_tokens: 400, thinking: { type: 'disabled' } };
  const parsed = await client.messages.parse(body({ ...quiet, output_config: { format: zodOutputFormat(z.object({ total: z.number().int(), certain: z.boolean() })) } }));
  assert.ok(Number.isInteger(parsed.parsed_output.total) && typeof parsed.parsed_output.certain === 'boolean');
  const tools = [{ name: 'add', strict: true, input_schema: { type: 'object', properties: { a: { type: 'integer' } }, required: ['a'], additionalProperties: false } }];
  const called = await client.messages.stream(body({ ...quiet, tools, tool_choice: { type: 'tool', name: 'add' } })).finalMessage();
  assert.equal(called.stop_reason, 'tool_use');
  assert.deepEqual(Object.keys(called.content.at(-1).input), ['a']);
});

const golden = JSON.parse(readFileSync(new URL('../../gateway/internal/anthropic/testdata/answers.json', import.meta.url)));

for (const { name, whole, stream } of golden) {
  test(`accumulator: ${name}`, async () => {
    const replay = new Anthropic({ apiKey: 'x', fetch: async () => new Response(stream, { headers: { 'content-type': 'text/event-stream' } }) });
    const streamed = await replay.messages.stream(body()).finalMessage();
    assert.deepEqual(said(streamed), said(whole));
    assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  });
}
