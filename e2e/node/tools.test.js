// Structured answers and tool calls through openai-node, LangChain JS and the Vercel AI SDK, unmodified, against the real server. The model is a toy:
// forms and forced calls make what it says usable, and each client is judged by what it makes of the answer.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { HumanMessage, ToolMessage } from '@langchain/core/messages';
import { tool as langchainTool } from '@langchain/core/tools';
import { ChatOpenAI } from '@langchain/openai';
import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool, ToolLoopAgent } from 'ai';
import OpenAI from 'openai';
import { LengthFinishReasonError } from 'openai/error';
import { zodFunction, zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';

import { model, start } from './server.js';

const messages = [{ role: 'user', content: 'What is 2 + 3?' }];
const common = { model, messages, max_tokens: 300, seed: 5, reasoning_effort: 'none' };
let server, client;

before(async () => {
  server = await start();
  client = new OpenAI({ baseURL: server.url + '/v1', apiKey: 'not-needed', maxRetries: 0 });
});
after(() => server.stop());

const digit = z.number().int().min(0).max(9);
const Sum = z.object({ a: digit, b: digit });
const Circle = z.object({ kind: z.literal('circle'), radius: digit });
const Square = z.object({ kind: z.literal('square'), side: digit, label: z.enum(['big', 'small']).nullable() });
const Drawing = z.object({ colour: z.enum(['red', 'blue']), shapes: z.array(z.union([Circle, Square])).max(2), visible: z.boolean() });
// A definition that refers to itself: the helpers write $defs and $ref.
const Tree = z.object({ value: z.enum(['x', 'y']), get left() { return z.union([Tree, z.null()]); } });

/** What the tool of all three clients does. */
const added = ({ a, b }) => {
  Sum.parse({ a, b });
  return a + b;
};

test('openai-node: zodResponseFormat', async () => {
  for (const [name, schema] of Object.entries({ Drawing, Tree })) {
    let parsed = 0;
    for (let seed = 0; seed < 4; seed++) {
      try {
        const answer = await client.chat.completions.parse({ ...common, seed, response_format: zodResponseFormat(schema, name) });
        assert.deepEqual(answer.choices[0].message.parsed, schema.parse(JSON.parse(answer.choices[0].message.content)));
        parsed++;
      } catch (e) {
        if (!(e instanceof LengthFinishReasonError)) throw e;
      }
    }
    assert.ok(parsed > 0, name);
  }
});

test('openai-node: zodFunction, streamed and whole', async () => {
  const request = { ...common, tools: [zodFunction({ name: 'add', parameters: Sum })], tool_choice: 'required', parallel_tool_calls: false };
  const whole = (await client.chat.completions.parse(request)).choices[0];
  assert.equal(whole.finish_reason, 'tool_calls');
  const [call] = whole.message.tool_calls;
  assert.equal(call.function.name, 'add');
  Sum.parse(call.function.parsed_arguments);
  const deltas = [];
  const stream = client.chat.completions.stream(request).on('tool_calls.function.arguments.delta', (d) => deltas.push(d.arguments_delta));
  const final = (await stream.finalChatCompletion()).choices[0];
  assert.equal(final.message.tool_calls[0].function.arguments, call.function.arguments);
  assert.equal(deltas.join(''), call.function.arguments);
  assert.deepEqual(final.message.tool_calls[0].function.parsed_arguments, call.function.parsed_arguments);
});

test('openai-node: runTools', async () => {
  const seen = [];
  const tools = [zodFunction({ name: 'add', parameters: Sum, function: (sum) => { seen.push(sum); return String(added(sum)); } })];
  // A named function is called once; with `required` the loop goes on until its limit.
  for (const request of [{ tools }, { tools, stream: true, stream_options: { include_usage: true } }]) {
    const named = client.chat.completions.runTools({ ...common, ...request, tool_choice: { type: 'function', function: { name: 'add' } } });
    await named.done();
    assert.deepEqual(named.messages.map((m) => m.role), ['user', 'assistant', 'tool']);
    assert.equal(await named.finalFunctionToolCallResult(), String(added(seen.at(-1))));
    seen.length = 0;
    const loop = client.chat.completions.runTools({ ...common, ...request, tool_choice: 'required', parallel_tool_calls: false }, { maxChatCompletions: 3 });
    await loop.done();
    assert.equal(seen.length, 3);
    assert.deepEqual(loop.messages.map((m) => m.role), ['user', 'assistant', 'tool', 'assistant', 'tool', 'assistant', 'tool']);
    assert.ok((await loop.totalUsage()).completion_tokens > 0);
    seen.length = 0;
  }
});

const langchain = (more) =>
  new ChatOpenAI({
    model, apiKey: 'not-needed', maxTokens: 300, maxRetries: 0, modelKwargs: { reasoning_effort: 'none', seed: 5 }, configuration: { baseURL: server.url + '/v1' }, ...more,
  });

test('LangChain: withStructuredOutput', async () => {
  for (const config of [{}, { strict: true }, { method: 'functionCalling' }, { method: 'jsonSchema', includeRaw: true }]) {
    const answer = await langchain().withStructuredOutput(Sum, { name: 'sum', ...config }).invoke('What is 2 + 3?');
    Sum.strict().parse(config.includeRaw ? answer.parsed : answer);
  }
});

test('LangChain: bindTools, stream and whole, with the result sent back', async () => {
  const add = langchainTool((sum) => String(added(sum)), { name: 'add', description: 'Adds.', schema: Sum });
  const bound = langchain().bindTools([add], { tool_choice: 'any' });
  const whole = await bound.invoke('What is 2 + 3?');
  assert.ok(whole.tool_calls.length >= 1 && !whole.invalid_tool_calls?.length);
  let joined;
  for await (const chunk of await bound.stream('What is 2 + 3?')) joined = joined ? joined.concat(chunk) : chunk;
  assert.deepEqual(joined.tool_calls.map(({ name, args }) => ({ name, args })), whole.tool_calls.map(({ name, args }) => ({ name, args })));
  const result = await add.invoke(whole.tool_calls[0]);
  assert.ok(result instanceof ToolMessage);
  const rest = whole.tool_calls.slice(1).map((call) => new ToolMessage({ tool_call_id: call.id, content: '0' }));
  const last = await langchain().invoke([new HumanMessage('What is 2 + 3?'), whole, result, ...rest]);
  assert.equal(last.response_metadata.finish_reason, 'stop');
  assert.ok(last.usage_metadata.input_tokens > whole.usage_metadata.output_tokens);
});

const provider = (more) =>
  createOpenAICompatible({ name: 'tinsmith', baseURL: server.url + '/v1', apiKey: 'not-needed', includeUsage: true, supportsStructuredOutputs: true, ...more });
const vercel = () => ({
  model: provider()(model), prompt: 'What is 2 + 3?', maxOutputTokens: 300, seed: 5, temperature: 1, maxRetries: 0, providerOptions: { tinsmith: { reasoningEffort: 'none' } },
});

test('Vercel AI SDK: generateObject and streamObject', async () => {
  const whole = await generateObject({ ...vercel(), schema: Drawing });
  assert.equal(whole.finishReason, 'stop');
  Drawing.strict().parse(whole.object);
  const streamed = streamObject({ ...vercel(), schema: Drawing });
  let last, partial = 0;
  for await (last of streamed.partialObjectStream) partial++;
  assert.ok(partial > 1);
  assert.deepEqual(await streamed.object, whole.object);
  assert.deepEqual(last, whole.object);
  const chosen = await generateObject({ ...vercel(), output: 'enum', enum: ['sunny', 'rainy'] });
  assert.ok(['sunny', 'rainy'].includes(chosen.object));
  const text = await generateText({ ...vercel(), output: Output.object({ schema: Sum }) });
  Sum.strict().parse(text.output);
});

test('Vercel AI SDK: streamText with tools', async () => {
  const sums = [];
  const tools = { add: tool({ description: 'Adds.', inputSchema: Sum, execute: async (sum) => { sums.push(sum); return added(sum); } }) };
  const streamed = streamText({ ...vercel(), tools, toolChoice: 'required', stopWhen: stepCountIs(2) });
  const parts = [];
  for await (const part of streamed.fullStream) parts.push(part);
  assert.deepEqual(parts.filter((p) => p.type === 'error'), []);
  const kinds = new Set(parts.map((p) => p.type));
  for (const kind of ['tool-input-start', 'tool-input-delta', 'tool-input-end', 'tool-call', 'tool-result']) assert.ok(kinds.has(kind), kind);
  const steps = await streamed.steps;
  assert.equal(steps.length, 2);
  for (const step of steps) {
    assert.equal(step.finishReason, 'tool-calls');
    assert.deepEqual(step.toolResults.map((r) => r.output), step.toolCalls.map((c) => added(c.input)));
  }
  // The same seed gives the same first call when the answer comes whole, and the second turn may be free text.
  const whole = await generateText({
    ...vercel(), tools, stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'add' } : 'none' }),
  });
  assert.equal(whole.steps.length, 2);
  assert.deepEqual(whole.steps[0].toolCalls.length, 1);
  assert.equal(whole.steps[1].finishReason, 'stop');
});

test('Vercel AI SDK: an agent', async () => {
  const agent = new ToolLoopAgent({
    model: provider()(model), maxOutputTokens: 300, seed: 5, maxRetries: 0, toolChoice: 'required', stopWhen: stepCountIs(3), providerOptions: vercel().providerOptions,
    tools: { add: tool({ inputSchema: Sum, execute: async (sum) => added(sum) }) },
  });
  const { steps } = await agent.generate({ prompt: 'What is 2 + 3?' });
  assert.equal(steps.length, 3);
  for (const step of steps) assert.ok(step.toolCalls.length >= 1);
});
