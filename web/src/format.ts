// Numbers and places in words.

const METRES_PER_DEGREE = (6371008.8 * Math.PI) / 180;

export const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
const minus = (text: string): string => text.replace(/^-/, "\u2212").replace(/^\u2212(?=[0.]+$)/, "");
export const rounded = (value: number, digits = 0): string => minus(value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits, roundingMode: "halfEven" })); // as Python rounds
export const significant = (value: number, digits = 3): string => minus(value.toLocaleString("en", { maximumSignificantDigits: digits }));
export const whole = (value: number): string => rounded(value, 0);
export const plural = (count: number, one: string, many = `${one}s`): string => `${whole(count)} ${count === 1 ? one : many}`;
export const percent = (share: number, digits?: number): string => `${rounded(100 * share, digits ?? (share > 0.01 && share < 0.99 ? 0 : 1))}%`;
export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

// A number is rounded to the place of the first digit of its standard error, as schemas/known_digits.py does.
const Z = 1.96; // standard errors to each side that a 95% interval reaches
export const NOISE_Z = 2.12; // standard deviations of Laplace noise to each side that hold it with 95%

/** Digits behind the point (negative before it) of a number with this standard error. */
export function knownDigits(stddev: number): number {
  return stddev > 0 && Number.isFinite(stddev) ? clamp(-Math.floor(Math.log10(stddev) + 1e-9), -15, 12) : 0;
}
/** A number rounded to what is known: 319,942 with a standard error of 812 is 319,900. */
export function known(value: number, stddev: number): string {
  const digits = knownDigits(stddev);
  if (digits >= 0) return rounded(value, digits);
  const unit = 10 ** -digits;
  const units = Math.round(value / unit);
  return whole((units - value / unit === 0.5 && units % 2 !== 0 ? units - 1 : units) * unit); // 5 to an even digit, as in the report
}
const spread = (low: number, high: number): number => (high - low) / (2 * Z);
/** A number rounded to what its 95% interval says is known. */
export const within = (value: number, low: number, high: number): string => known(value, spread(low, high));
/** Digits behind the point of a number's first digit, or `least` if there are more of them. */
const firstDigit = (value: number, least: number): number => clamp(-Math.floor(Math.log10(Math.abs(value))), least, 12);
/**
 * A 95% interval with the digits that are known, its ends rounded outward: 319,000 to 321,000.
 * An end on the same side of 0 as the whole interval stays there, as in 400 to 6,000.
 */
export function interval(low: number, high: number): string {
  const digits = knownDigits(spread(low, high));
  const end = (value: number, round: (units: number) => number, places: number): string => rounded(round(value * 10 ** places) / 10 ** places, Math.max(places, 0));
  const least = end(low, (units) => Math.floor(units + 1e-6), low > 0 ? firstDigit(low, digits) : digits);
  const most = end(high, (units) => Math.ceil(units - 1e-6), high < 0 ? firstDigit(high, digits) : digits);
  return `${least} to ${most}`;
}
/** A share with its interval in percent, with the digits that are known: 12% (9% to 15%). */
export function shareWords(share: number, low: number, high: number): string {
  return `${within(100 * share, 100 * low, 100 * high)}% (${interval(100 * low, 100 * high).replace(" to", "% to")}%)`;
}
/** A number of users and its 95% interval as a reader is shown them, 0 or more: a negative one is noise on few or none. */
export const notNegative = (value: number, low: number, high: number): [number, number, number] => [Math.max(value, 0), Math.max(low, 0), high - Math.min(value, 0)];
/** A noisy number of users with its margin: 74,000 users (± 4,100, 95%), or 0 users (at most 390, 95%). */
export function counted(users: number, stddev: number, unit = "users"): string {
  const margin = significant(NOISE_Z * stddev, 2);
  return `${known(Math.max(users, 0), Math.max(stddev, 1))} ${unit}${stddev > 0 ? ` (${users < 0 ? "at most" : "\u00b1"} ${margin}, 95%)` : ""}`;
}
/** An upper bound of a count that noise may explain, of two digits, rounded up. A negative estimate counts as 0. */
export function atMost(value: number, high: number): string {
  const most = high - Math.min(value, 0);
  const unit = Math.max(10 ** Math.floor(Math.log10(Math.max(most, 1)) - 1), 0.1);
  return significant(Math.ceil(most / unit - 1e-6) * unit, 2);
}

/** The smallest of 1, 2, 5 times a power of ten that is not below `least`. */
export function niceStep(least: number): number {
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * ten).find((step) => step >= least * 0.999) ?? 10 * ten;
}
export const metres = (m: number): string => (m >= 995 ? `${significant(m / 1000)} km` : m >= 1 ? `${significant(m)} m` : `${significant(m * 100)} cm`);
const degrees = (value: number, digits: number, plus: string, less: string): string => `${Math.abs(value).toFixed(digits)}° ${value < 0 ? less : plus}`;
/** A place in degrees with the digits that distinguish cells of this size in metres. */
export function place(longitude: number, latitude: number, finest: number): string {
  const digits = clamp(Math.ceil(Math.log10(METRES_PER_DEGREE / finest)), 0, 7);
  return `${degrees(latitude, digits, "N", "S")}, ${degrees(longitude, digits, "E", "W")}`;
}
