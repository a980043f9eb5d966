// openai-node, LangChain JS and the Vercel AI SDK, unmodified, against the real server.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { ChatOpenAI } from '@langchain/openai';
import { generateText, streamText } from 'ai';
import OpenAI from 'openai';

import { model, start } from './server.js';

const messages = [{ role: 'user', content: 'What is 2 + 3?' }];
let server, client;

before(async () => {
  server = await start();
  client = new OpenAI({ baseURL: server.url + '/v1', apiKey: 'not-needed', maxRetries: 0 });
});
after(() => server.stop());

const ask = (more = {}) => client.chat.completions.create({ model, messages, max_tokens: 16, seed: 5, ...more });

test('openai-node: plain, n, seed, request id', async () => {
  const answer = await ask({ n: 2 });
  assert.equal(answer.choices.length, 2);
  assert.notEqual(answer.choices[0].message.content, '');
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  assert.ok(answer._request_id);
  assert.equal((await ask()).choices[0].message.content, answer.choices[0].message.content);
});

test('openai-node: stream with usage is the whole answer', async () => {
  const whole = await ask();
  let text = '', usage;
  for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta.content ?? '';
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage, whole.usage);
});

test('openai-node: stop and logprobs', async () => {
  const text = (await ask({ temperature: 0 })).choices[0].message.content;
  const stop = text.slice(text.length >> 1, (text.length >> 1) + 2);
  const cut = (await ask({ temperature: 0, stop })).choices[0];
  assert.equal(cut.finish_reason, 'stop');
  assert.equal(cut.message.content, text.slice(0, text.indexOf(stop)));
  const scored = (await ask({ temperature: 0, logprobs: true, top_logprobs: 2 })).choices[0];
  assert.equal(scored.logprobs.content.map((t) => t.token).join(''), scored.message.content);
  for (const t of scored.logprobs.content) assert.equal(t.logprob, t.top_logprobs[0].logprob);
});

test('openai-node: error classes', async () => {
  await assert.rejects(ask({ model: 'no/model' }), (e) => e instanceof OpenAI.NotFoundError && e.code === 'model_not_found' && e.param === 'model');
  await assert.rejects(ask({ max_tokens: 100000 }), (e) => e instanceof OpenAI.BadRequestError && e.code === 'context_length_exceeded');
  await assert.rejects(ask({ tool_choice: 'required', stream: true }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'tool_choice');
});

const respond = (more = {}) => client.responses.create({ model, input: 'What is 2 + 3?', max_output_tokens: 16, temperature: 0, ...more });
const add = { type: 'function', name: 'add', strict: false, parameters: { type: 'object', properties: { a: { type: 'integer' } } } };

test('openai-node: responses, whole and streamed', async () => {
  const whole = await respond({ tools: [add] });
  assert.equal(whole.status, 'completed');
  assert.notEqual(whole.output_text, '');
  let text = '', last;
  const stream = client.responses.stream({ model, input: 'What is 2 + 3?', max_output_tokens: 16, temperature: 0, tools: [add] }); // the SDK's own accumulator
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') text += event.delta;
    last = event;
  }
  assert.equal(text, whole.output_text);
  assert.equal(last.type, 'response.completed');
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
  assert.deepEqual(final.output.map((i) => i.id), last.response.output.map((i) => i.id));
  assert.deepEqual(last.response.usage.total_tokens, whole.usage.total_tokens);
});

test('openai-node: a response goes on from another one, and is deleted', async () => {
  const first = await respond();
  const second = await respond({ input: 'And 4 more?', previous_response_id: first.id, return_token_ids: true });
  assert.equal(second.prefix.exact, true);
  const items = [];
  for await (const item of client.responses.inputItems.list(second.id, { order: 'asc', limit: 2 })) items.push(item.content[0].text);
  assert.deepEqual(items, ['What is 2 + 3?', first.output_text, 'And 4 more?']);
  assert.equal((await client.responses.retrieve(second.id)).output_text, second.output_text);
  assert.ok((await client.responses.inputTokens.count({ model, input: 'What is 2 + 3?' })).input_tokens > 0);
  await client.responses.delete(second.id);
  await assert.rejects(client.responses.retrieve(second.id), (e) => e instanceof OpenAI.NotFoundError && e.code === 'response_not_found');
  await assert.rejects(respond({ previous_response_id: second.id }), (e) => e instanceof OpenAI.NotFoundError && e.code === 'previous_response_not_found' && e.param === 'previous_response_id');
  await assert.rejects(respond({ background: true }), (e) => e instanceof OpenAI.BadRequestError && e.param === 'background');
});

test('openai-node: models, ids with slashes', async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.deepEqual(ids, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
});

test('LangChain: invoke and stream', async () => {
  const make = (more) => new ChatOpenAI({ model, apiKey: 'not-needed', maxTokens: 16, temperature: 0, maxRetries: 0, configuration: { baseURL: server.url + '/v1' }, ...more });
  const whole = await make().invoke('What is 2 + 3?');
  assert.equal(whole.content, (await ask({ temperature: 0 })).choices[0].message.content);
  assert.ok(whole.usage_metadata.total_tokens > 0);
  let text = '';
  for await (const chunk of await make().stream('What is 2 + 3?')) text += chunk.content;
  assert.equal(text, whole.content);
  await assert.rejects(make({ model: 'no/model' }).invoke('hello'), /no\/model/);
});

test('LangChain: responses', async () => {
  const make = () => new ChatOpenAI({ model, apiKey: 'not-needed', maxTokens: 16, temperature: 0, maxRetries: 0, useResponsesApi: true, configuration: { baseURL: server.url + '/v1' } });
  const tools = [{ type: 'function', function: { name: 'add', parameters: { type: 'object', properties: {} } } }];
  const whole = await make().bindTools(tools).invoke('What is 2 + 3?');
  assert.equal(whole.text, (await respond({ tools: [{ type: 'function', name: 'add', parameters: { type: 'object', properties: {} } }] })).output_text);
  assert.ok(whole.usage_metadata.total_tokens > 0);
  let text = '';
  for await (const chunk of await make().bindTools(tools).stream('What is 2 + 3?')) text += chunk.text;
  assert.equal(text, whole.text);
  const next = await make().invoke([['user', 'What is 2 + 3?'], whole, ['user', 'And 4 more?']]);
  assert.notEqual(next.text, '');
});

test('Vercel AI SDK: generateText and streamText', async () => {
  const provider = createOpenAICompatible({ name: 'tinsmith', baseURL: server.url + '/v1', apiKey: 'not-needed', includeUsage: true });
  const options = { model: provider(model), prompt: 'What is 2 + 3?', maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
  const whole = await generateText(options);
  assert.equal(whole.text, (await ask({ temperature: 0 })).choices[0].message.content);
  const streamed = streamText(options);
  let text = '';
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.text);
  assert.equal((await streamed.usage).totalTokens, whole.usage.totalTokens);
  await assert.rejects(generateText({ ...options, model: provider('no/model') }), (e) => e.statusCode === 404);
});
