// Palettes and scales: from a value to a colour.
import type { Mode } from "../theme";
import type { Measure, Scale } from "../views";

export type Rgb = [number, number, number];

// Inferno (S. van der Walt and N. Smith, CC0), every eighth colour: uniform to the eye.
const INFERNO =
  "0000040403120b0724150b37210c4a2f0a5b3d09654a0c6b57106e64156e71196e7d1e6d8a226a972766a32c61b0315bbc3754" +
  "c73e4cd24644db503be45a31eb6628f1731df68013f98e09fb9d07fcac11fbbc21f9cb35f5db4cf2ea69f3f68afcffa4";
// Blue over green to white, every eighth colour: evenly lighter (in OKLab), and nowhere like inferno.
const RATES =
  "1a2f6b1b35731b3c7a1c42821c498a1b4f921b569a1a5e9d1866a0166ea41576a7127eaa1487ab198faa1f97a9249fa8" +
  "2aa8a635afa549b6a459bca368c2a277c9a084cf9f94d4a3a4d9a8b2ddacc1e2b1cfe7b5dbecbfe6f1ccf0f6d9fbfbe6";
// Blue for less, orange for more, the ground's colour for the same; apart for every eye.
const CHANGE: Record<Mode, string> = {
  dark: "c4ecff7cc4fb3f8fe02a62b024406f1d263d1c1a2242261e7a3617bb5213ec7d25fbb25effe3b0",
  light: "0b2a5e14458a2767b54a8dd187b5e4c3d9f0f4f1ecf6dbb9efb577e08a3bc2601c943f0d5f2606",
};
const VOID: Record<Mode, Rgb> = { dark: [34, 32, 40], light: [236, 232, 224] };

/** So many colours between the stops of a palette's text. */
export function palette(text: string, count = 256): Rgb[] {
  const stops = (text.match(/.{6}/g) ?? []).map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
  return Array.from({ length: count }, (_, i) => {
    const at = (i / (count - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((part, c) => Math.round(part + (stops[low + 1][c] - part) * (at - low))) as Rgb;
  });
}

/** The 256 colours of a measure. On light paper the darkest colour stands for the most, so that empty is paper. */
export function coloursOf(kind: Measure["kind"], mode: Mode): Rgb[] {
  if (kind === "change") return palette(CHANGE[mode]);
  if (mode === "light") return palette(kind === "count" ? `${INFERNO.slice(12, -6)}fdf9dc` : RATES).reverse(); // empty is paper
  const colours = palette(kind === "count" ? INFERNO : RATES);
  return colours.map((colour) => colour.map((part, c) => Math.min(part + [9, 8, 13][c], 255)) as Rgb); // zero is not the void around
}

export const FADE = 0.1; // of the scale of counts: below it colours become transparent, towards 0, as in transforms/report/scales.py

/** A colour of a measure's 256 with its opacity, as CSS writes it. */
export function shaded(colours: Rgb[], shade: number, kind: Measure["kind"]): string {
  const opacity = kind === "count" ? Math.min(shade / (colours.length - 1) / FADE, 1) : 1;
  return opacity < 1 ? `rgba(${colours[shade].join()},${opacity.toFixed(3)})` : css(colours[shade]);
}

/** What an uncertain cell keeps of its colour under the hatching. */
export function faded(colour: Rgb, mode: Mode): Rgb {
  return colour.map((part, c) => Math.round(0.3 * part + 0.7 * VOID[mode][c])) as Rgb;
}

/** Where a value stands on its scale, 0..1. */
export function shadeOf(value: number, scale: Scale): number {
  const share = scale.kind === "log"
    ? Math.log1p(Math.max(value, 0) / (scale.knee ?? 1)) / Math.log1p(scale.high / (scale.knee ?? 1))
    : (value - scale.low) / (scale.high - scale.low);
  return Math.min(Math.max(share, 0), 1);
}

export const css = ([r, g, b]: Rgb): string => `rgb(${r},${g},${b})`;
