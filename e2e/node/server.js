// Starts bin/tinsmith with the built-in model on a free port and with a data folder of its own.
import { execFileSync, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const binary = join(root, 'bin', 'tinsmith');

export const model = 'tinsmith/tiny-chat';

/**
 * Resolves to {url, keys, stop, restart} when the model is ready. It asks for keys where names for some are given; keys are these by name.
 * restart ends the server, has f called while there is none, and resolves when there is one again, at the same address with the same data.
 */
export async function start({ keys: names = [] } = {}) {
  if (!existsSync(binary)) throw new Error('bin/tinsmith is missing: run make build');
  const folder = mkdtempSync(join(tmpdir(), 'tinsmith-node-'));
  const config = {
    listen: '127.0.0.1:0',
    data_dir: join(folder, 'data'),
    models: [{ name: model, path: join(root, 'configs', 'models', 'tiny-chat'), backend: { plugin: 'single', device: 'cpu' } }],
  };
  const keys = {};
  if (names.length) config.auth = { keys_file: join(folder, 'keys') };
  for (const name of names) keys[name] = execFileSync(binary, ['key', 'add', name, '--file', config.auth.keys_file], { encoding: 'utf8' }).trim().split(/\s+/).find((word) => word.startsWith('tml-'));
  const log = openSync(join(folder, 'log'), 'a');
  let server, ended;
  const end = async () => {
    server.kill('SIGTERM');
    const code = await ended;
    if (code !== 0) throw new Error(`the server ended with ${code}:\n${readFileSync(join(folder, 'log'), 'utf8')}`);
  };
  const stop = async () => {
    await end();
    rmSync(folder, { recursive: true });
  };
  const begin = async () => {
    const address = join(config.data_dir, 'address');
    rmSync(address, { force: true });
    writeFileSync(join(folder, 'tinsmith.yaml'), JSON.stringify(config)); // JSON is YAML
    server = spawn(binary, ['serve', '--config', join(folder, 'tinsmith.yaml')], { stdio: ['ignore', log, log] });
    ended = new Promise((resolve) => server.on('exit', resolve));
    for (const deadline = Date.now() + 120_000; Date.now() < deadline; await pause(50)) {
      if (server.exitCode !== null) throw new Error(`the server ended:\n${readFileSync(join(folder, 'log'), 'utf8')}`);
      if (!existsSync(address)) continue;
      const url = readFileSync(address, 'utf8').trim();
      const health = await fetch(url + '/healthz').catch(() => undefined);
      if (health?.ok) return url;
    }
    await stop();
    throw new Error('the server was not ready within 120 s');
  };
  const url = await begin();
  const restart = async (f) => {
    await end();
    await f();
    config.listen = new URL(url).host;
    await begin();
  };
  return { url, keys, stop, restart };
}
