// Chromium without a window, from npm, unpacked below .cache.
import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const cache = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '.cache', 'chromium');

/** Why there is no Chromium here, or false. */
export const missing = process.platform === 'linux' && process.arch === 'x64' ? false : `the npm package has no Chromium for ${process.platform} on ${process.arch}`;

/** Resolves to a puppeteer browser. Its language is one that a container may have, which is none. */
export async function launch() {
  mkdirSync(cache, { recursive: true });
  process.env.TMPDIR = cache; // where the package unpacks to
  const { default: chromium } = await import('@sparticuz/chromium');
  const { default: puppeteer } = await import('puppeteer-core');
  return puppeteer.launch({ executablePath: await chromium.executablePath(), headless: 'shell', args: ['--no-sandbox', '--disable-gpu', '--force-color-profile=srgb'] });
}

/**
 * Opens a tab that notes what a page must never do: errors, broken rules of its policy, requests to others, dialogs.
 * Resolves to {page, wrong, requests}; wrong is the list, requests are the paths that were asked for since. Statuses in expected are no errors.
 */
export async function open(browser, url, { width = 1200, look = 'light', expected = [] } = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  await page.setViewport({ width, height: 900 });
  await page.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: look }]);
  const wrong = [];
  page.on('pageerror', (error) => wrong.push(`error: ${error.message}`));
  page.on('dialog', (dialog) => (wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  const requests = [];
  page.on('request', (request) => {
    requests.push(request.url().slice(url.length));
    if (!request.url().startsWith(url) && !request.url().startsWith('data:')) wrong.push(`request: ${request.url()}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 400 && !expected.includes(response.status())) wrong.push(`${response.status()}: ${response.url()}`);
  });
  await page.exposeFunction('violated', (text) => wrong.push(`policy: ${text}`));
  await page.evaluateOnNewDocument(() => document.addEventListener('securitypolicyviolation', (e) => window.violated(`${e.violatedDirective} ${e.blockedURI}`)));
  await page.goto(url + '/');
  return { page, wrong, requests };
}

/** Waits for a text in the page's main part, and gives all of it. */
export async function shows(page, text, timeout = 30_000) {
  await page.waitForFunction((t) => document.querySelector('main').innerText.includes(t), { timeout, polling: 100 }, text).catch(async () => {
    throw new Error(`the page did not show ${JSON.stringify(text)} but:\n${await page.evaluate(() => document.body.innerText)}`);
  });
  return page.evaluate(() => document.querySelector('main').innerText);
}

/** Goes to a view of the page by its address. */
export const go = (page, view) => page.evaluate((v) => void (location.hash = '#/' + v), view);
