// Numbers and times as people read them.

const missing = "–";

export function figure(value, digits = 4) {
  if (value === null || value === undefined || typeof value !== "number" || !Number.isFinite(value)) return missing;
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(digits - 1) : String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (typeof value !== "number" || !Number.isFinite(value)) return missing;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; value >= 1024 && unit < units.length - 1; unit++) value /= 1024;
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
}

// since tells how long ago a time was.
export function since(time) {
  const at = typeof time === "number" ? time * 1000 : Date.parse(time);
  if (!Number.isFinite(at) || at <= 0) return missing;
  const seconds = Math.max(0, Math.round((Date.now() - at) / 1000));
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return `${seconds} s ago`;
}

export function when(time) {
  const at = typeof time === "number" ? new Date(time * 1000) : new Date(time);
  return Number.isNaN(at.getTime()) ? missing : at.toLocaleString();
}

// plain bounds a name and shows what cannot be seen: control characters, and those that turn the direction of writing.
export function plain(text, most = 200) {
  const shown = String(text).slice(0, most + 1).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return shown.length > most ? shown.slice(0, most - 1) + "…" : shown;
}
