// Numbers and places in words.

const METRES_PER_DEGREE = (6371008.8 * Math.PI) / 180;

export const clamp = (value: number, low: number, high: number): number => Math.min(Math.max(value, low), high);
const minus = (text: string): string => text.replace(/^-/, "\u2212").replace(/^\u2212(?=0$)/, "");
export const rounded = (value: number, digits = 0): string => minus(value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
export const significant = (value: number, digits = 3): string => minus(value.toLocaleString("en", { maximumSignificantDigits: digits }));
export const whole = (value: number): string => rounded(value, 0);
export const plural = (count: number, one: string, many = `${one}s`): string => `${whole(count)} ${count === 1 ? one : many}`;
export const percent = (share: number, digits?: number): string => `${rounded(100 * share, digits ?? (share > 0.01 && share < 0.99 ? 0 : 1))}%`;
export const capital = (text: string): string => text.charAt(0).toUpperCase() + text.slice(1);

/** Digits behind the point (negative before it) of a number that is known to ± margin: the margin's first digit. */
export function knownDigits(margin: number): number {
  return margin > 0 && Number.isFinite(margin) ? clamp(-Math.floor(Math.log10(margin) + 1e-9), -15, 9) : 0;
}
/** A number rounded to the first digit of its margin: 319,942 ± 812 is 319,900. */
export function known(value: number, margin: number): string {
  const digits = knownDigits(margin);
  if (digits >= 0) return rounded(value, digits);
  const unit = 10 ** -digits;
  return whole(Math.round(value / unit) * unit);
}
/** An interval, its ends rounded outward to a tenth of its width: 319,100 to 320,800. */
export function interval(low: number, high: number): string {
  const unit = 10 ** -knownDigits((high - low) / 4);
  const digits = Math.max(knownDigits((high - low) / 4), 0);
  return `${rounded(Math.floor(low / unit + 1e-6) * unit, digits)} to ${rounded(Math.ceil(high / unit - 1e-6) * unit, digits)}`;
}
/** A share with its interval in percent, as 12% (9% to 15%), with as many digits as the interval asks for. */
export function shareWords(share: number, low: number, high: number): string {
  const digits = clamp(Math.ceil(Math.log10(0.03 / Math.max(high - low, 1e-9))), 0, 6);
  const unit = 10 ** (digits + 2);
  return `${percent(share, digits)} (${percent(Math.floor(low * unit + 1e-6) / unit, digits)} to ${percent(Math.ceil(high * unit - 1e-6) / unit, digits)})`;
}

/** The smallest of 1, 2, 5 times a power of ten that is not below `least`. */
export function niceStep(least: number): number {
  const ten = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((times) => times * ten).find((step) => step >= least * 0.999) ?? 10 * ten;
}
export const metres = (m: number): string => (m >= 995 ? `${significant(m / 1000)} km` : m >= 1 ? `${significant(m)} m` : `${significant(m * 100)} cm`);
const degrees = (value: number, digits: number, plus: string, less: string): string => `${Math.abs(value).toFixed(digits)}° ${value < 0 ? less : plus}`;
/** A place in degrees with the digits that tell cells of so many metres apart. */
export function place(longitude: number, latitude: number, finest: number): string {
  const digits = clamp(Math.ceil(Math.log10(METRES_PER_DEGREE / finest)), 0, 7);
  return `${degrees(latitude, digits, "N", "S")}, ${degrees(longitude, digits, "E", "W")}`;
}
