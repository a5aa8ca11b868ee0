// Numbers with units.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);

export const some = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

export const decimals = (value) => value.toFixed(value < 10 ? 2 : 1);

// Two significant digits, for the labels of a scale.
export const round = (value) => String(+value.toPrecision(2));

export const nats = (value) => `${decimals(value)} nats`;

export const deviations = (value) => `${decimals(value)} SD`;

export function seconds(value) {
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return `${value.toFixed(value < 10 ? 2 : 1)} s`;
}

// In steps of 1024.
export function bytes(value) {
  const units = ["bytes", "kB", "MB", "GB", "TB"];
  let step = 0;
  for (; value >= 1024 && step < units.length - 1; step++) value /= 1024;
  return [step && value < 100 ? value.toFixed(1) : count(value), units[step]];
}

export function duration(total) {
  const [days, hours, minutes] = [total / 86400, (total / 3600) % 24, (total / 60) % 60].map(Math.floor);
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min` : `${Math.floor(total)} s`;
}

export function clock(moment) {
  const then = new Date(moment);
  const time = then.toLocaleTimeString("en-GB");
  const day = then.toLocaleDateString("en-CA");
  return day === new Date().toLocaleDateString("en-CA") ? time : `${day} ${time}`;
}
