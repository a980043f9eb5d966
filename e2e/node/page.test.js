// The page at / in a real Chromium: a run trained by the real SDK, its curves, chat, a download, keys, hostile names.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

import { go, launch, missing, open, shows } from './browser.js';
import { start } from './server.js';

const here = dirname(fileURLToPath(import.meta.url));
const python = join(here, '..', '..', '.venv', 'bin', 'python');
const hostile = '<img src=x onerror=alert(1)>\u202e{{7*7}}';
const pictures = process.env.PAGE_SCREENSHOTS; // a folder for a look at every view
const trainers = []; // processes
let server, locked, browser;

before(async () => {
  if (missing) return;
  [server, locked, browser] = await Promise.all([start(), start({ keys: ['ann', 'bob'] }), launch()]);
});
after(async () => {
  for (const trainer of trainers) trainer.kill('SIGKILL'); // of a test that failed
  await browser?.close();
  await Promise.all([server?.stop(), locked?.stop()]);
});

/** Trains a run by the SDK. Resolves to {id, step, end}. */
async function train(url, key, name) {
  const process = spawn(python, ['-W', 'ignore', join(here, 'train.py'), url, key, name], { stdio: ['pipe', 'pipe', 'inherit'] });
  trainers.push(process);
  const lines = createInterface({ input: process.stdout })[Symbol.asyncIterator]();
  const { value: id, done } = await lines.next();
  if (done) throw new Error('train.py ended');
  return {
    id,
    step: async () => {
      process.stdin.write('\n');
      assert.equal((await lines.next()).value, 'stepped');
    },
    end: () => new Promise((resolve) => (process.on('exit', resolve), process.stdin.end())),
  };
}

/** Takes a picture of all of the page. */
async function picture(page, name) {
  mkdirSync(pictures, { recursive: true });
  await pause(300);
  await page.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });
}

const view = (id) => 'runs/' + encodeURIComponent(id);
const options = { skip: missing, timeout: 240_000 };

test('a run of the SDK: list, curves that move, checkpoint, sample', options, async () => {
  const { page, wrong, requests } = await open(browser, server.url);
  await shows(page, 'Nothing has been trained here yet');
  const run = await train(server.url, 'tml-any', 'a name');
  await shows(page, 'a name');
  await page.evaluate(() => document.querySelector('tbody a').click());
  await shows(page, 'learning_rate');
  const steps = () => page.evaluate(() => document.querySelector('.tile dd').textContent);
  assert.equal(await steps(), '2');
  await pause(2500); // the newest cycles have been asked for
  requests.length = 0;
  await run.step();
  await page.waitForFunction(() => document.querySelector('.tile dd').textContent === '3', { timeout: 20_000 });
  const curve = () => page.evaluate(() => Number(document.querySelector('[data-points]').dataset.points));
  await page.waitForFunction(() => document.querySelector('[data-points]')?.dataset.points === '3', { timeout: 20_000 }).catch(async () => assert.fail(`the curve has ${await curve()} points`));
  assert.deepEqual(requests.filter((r) => !r.includes('/cycles?')), [], 'the points came by the stream alone');
  assert.match(await page.$eval('section[aria-label="adapter_norm/…"]', (n) => n.innerText), /q_proj/);
  await page.waitForFunction(() => document.querySelectorAll('.timeline rect.step').length === 3, { timeout: 20_000 });
  assert.equal(await page.$$eval('.timeline rect.pass', (all) => all.length), 3);
  assert.match(await page.$eval('.timeline rect.step title', (n) => n.textContent), /^optim_step, cycle \d+: [\d.]+ (ms|s)/);

  const folder = mkdtempSync(join(tmpdir(), 'tinsmith-download-'));
  const session = await page.createCDPSession();
  await session.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: folder, browserContextId: page.browserContext().id });
  await page.evaluate(() => [...document.querySelectorAll('button')].find((b) => b.textContent === 'Download').click());
  let file;
  for (const deadline = Date.now() + 30_000; !file && Date.now() < deadline; await pause(100)) file = readdirSync(folder).find((name) => !name.endsWith('.crdownload'));
  assert.ok(file, 'nothing was downloaded');
  assert.match(execFileSync(python, [join(here, 'peft_loads.py'), join(folder, file)], { encoding: 'utf8' }), /^8 [1-9]\d*\n$/);
  rmSync(folder, { recursive: true });

  await page.evaluate(() => [...document.querySelectorAll('button')].find((b) => b.textContent === 'Sample').click());
  await page.waitForSelector('.tokens span[title^="log-probability -"]', { timeout: 20_000 });
  await run.end();
  assert.deepEqual(wrong, []);
});

test('live: nothing is asked for while nothing happens; a hidden tab has no stream; a server that is back is found', options, async () => {
  const { page, requests } = await open(browser, server.url);
  const run = await train(server.url, 'tml-any', 'to be followed');
  await page.evaluate(() => {
    window.streams = () => performance.getEntriesByType('resource').filter((e) => e.name.includes('/tinsmith/events?')).length; // that have ended
    window.step = () => [...document.querySelectorAll('tbody tr')].find((tr) => tr.textContent.includes('to be followed'))?.children[2].textContent;
  });
  const step = () => page.evaluate(() => window.step());
  const shown = (n) =>
    page.waitForFunction((n) => window.step() === n, { timeout: 30_000 }, n).catch(async () => assert.fail(`step ${await step()} is shown`));
  await shown('2');
  const tabs = [{ page, requests }];
  for (const [place, text] of [[view(run.id), 'learning_rate'], ['device', 'Memory plan'], ['users', 'Users']]) {
    const tab = await open(browser, server.url);
    tabs.push(tab);
    await go(tab.page, place);
    await shows(tab.page, text);
  }
  await pause(2500); // what was just done is told
  for (const tab of tabs) tab.requests.length = 0;
  await pause(4000);
  for (const tab of tabs) assert.deepEqual(tab.requests, [], `${tab.page.url()} asks without a reason`);
  for (const tab of tabs.slice(1)) await tab.page.close();

  const hide = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, 'hidden', { get: () => hidden, configurable: true });
      document.dispatchEvent(new Event('visibilitychange'));
    }, hidden);
  const before = await page.evaluate(() => window.streams());
  await hide(true);
  await page.waitForFunction((n) => window.streams() > n, { timeout: 20_000 }, before);
  await run.step();
  await pause(1000);
  assert.deepEqual(requests, [], 'a hidden tab asks');
  assert.equal(await step(), '2');
  await hide(false);
  await shown('3');

  await server.restart(() => page.waitForFunction(() => document.getElementById('connection').textContent.startsWith('Connection lost'), { timeout: 20_000 }));
  await run.step();
  await shown('4');
  await page.waitForFunction(() => document.getElementById('connection').textContent === '', { timeout: 30_000 });
  await run.end();
});

test('chat: streamed; two side by side with one seed say the same', options, async () => {
  const { page, wrong } = await open(browser, server.url);
  await go(page, 'chat');
  await shows(page, 'two side by side');
  await page.click('input[type=checkbox]');
  await page.type('textarea', 'What is 2 + 3?');
  await page.keyboard.down('Control');
  await page.keyboard.press('Enter');
  await page.keyboard.up('Control');
  await page.waitForFunction(() => [...document.querySelectorAll('.turn.assistant .small')].filter((n) => / tokens in /.test(n.textContent)).length === 2, { timeout: 30_000 });
  const said = await page.$$eval('.turn.assistant > span:not(.who)', (all) => all.map((n) => n.textContent).filter(Boolean));
  assert.equal(said.length, 2);
  assert.equal(said[0], said[1]);
  assert.deepEqual(wrong, []);
});

test('names are text, whatever is in them', options, async () => {
  const run = await train(server.url, 'tml-any', hostile);
  const { page, wrong } = await open(browser, server.url);
  await shows(page, '<img src=x onerror=alert(1)>\\u202e{{7*7}}');
  await page.evaluate(() => document.querySelectorAll('tbody input').forEach((i) => i.click()));
  await shows(page, 'Compared');
  await go(page, view(run.id));
  await shows(page, '<img src=x onerror=alert(1)>\\u202e{{7*7}}');
  assert.equal(await page.$$eval('main img', (all) => all.length), 0);
  await run.end();
  assert.deepEqual(wrong, []);
});

test('keys: asked for, kept in the tab, and nobody sees what is another’s', options, async () => {
  const { keys } = locked;
  const run = await train(locked.url, keys.ann, 'of ann');
  for (const [name, key] of Object.entries(keys)) {
    const { page } = await open(browser, locked.url, { expected: [401] });
    await page.waitForSelector('dialog[open]');
    await page.type('#key-field', 'tml-wrong');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.getElementById('key-error').textContent, { timeout: 20_000 });
    await page.type('#key-field', key);
    await page.keyboard.press('Enter');
    const text = name === 'ann' ? await shows(page, 'of ann') : await shows(page, 'Nothing has been trained here yet');
    assert.equal(text.includes(run.id.slice(0, 8)) || text.includes('of ann'), name === 'ann');
    if (name === 'bob') {
      await go(page, view(run.id));
      await page.waitForSelector('.error');
    }
    await go(page, 'users');
    const users = await shows(page, 'Sampled this minute');
    assert.deepEqual(Object.keys(keys).filter((k) => users.includes(k)), [name], 'a key sees itself alone');
    if (pictures) {
      await picture(page, `users-of-${name}-1200`);
      await page.setViewport({ width: 400, height: 900 });
      await picture(page, `users-of-${name}-400`);
    }
    const other = await page.browserContext().newPage();
    await other.goto(locked.url + '/');
    await other.waitForSelector('dialog[open]');
  }
  await run.end();
});

test('every view, light and dark, wide and narrow, by keyboard', options, async () => {
  const run = await train(server.url, 'tml-any', 'a look');
  for (const [look, width] of [['light', 1200], ['dark', 1200], ['light', 400]]) {
    const { page, wrong } = await open(browser, server.url, { look, width });
    for (const [name, place, text] of [['runs', 'runs', 'a look'], ['run', view(run.id), 'learning_rate'], ['chat', 'chat', 'Seed'], ['device', 'device', 'Memory plan'], ['users', 'users', 'Users']]) {
      await go(page, place);
      await shows(page, text);
      await pause(300);
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${name} is wider than ${width}`);
      if (pictures) await picture(page, `${name}-${look}-${width}`);
    }
    await go(page, 'runs');
    await shows(page, 'a look');
    await page.evaluate(() => document.querySelector('.skip').focus());
    let reached = false;
    for (let i = 0; i < 40 && !reached; i++) {
      await page.keyboard.press('Tab');
      reached = await page.evaluate(() => document.activeElement.matches('tbody a'));
    }
    assert.ok(reached, 'a run cannot be reached by keyboard');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => location.hash.startsWith('#/runs/'));
    assert.deepEqual(wrong, []);
  }
  await run.end();
});
