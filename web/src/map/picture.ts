// A map's picture as a file: title, map, legend, and the notes without which it must not be passed on.
import { pngOf } from "../download";
import { clamp } from "../format";
import type { Theme } from "../theme";
import type { Legend } from "./legend";

/** What is written above and below the map. */
export interface Caption {
  readonly title: string;
  readonly subtitle: string;
  readonly listed?: Listed | null; // below the legend
  readonly notes: readonly string[]; // each begins a line
}

/** A list of places with their values. */
export interface Listed {
  readonly heading: string;
  readonly places: readonly (readonly [place: string, value: string])[];
}

const [EDGE, LEGEND, GAP] = [14, 80, 32]; // CSS pixels
const COLUMNS = 3; // of the list, at most
const [TITLE, TEXT] = [25, 18]; // CSS pixels from line to line

/** Breaks a text into lines of at most `width` pixels. */
export function wrap(text: string, width: number, measure: (text: string) => number): string[] {
  const lines: string[] = [];
  for (const word of text.split(" ")) {
    const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
    if (lines.length && measure(longer) <= width) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines;
}

/** Draws a map's canvas, of `ratio` pixels a CSS pixel, between its caption's texts. */
export function pictureOf(map: HTMLCanvasElement, ratio: number, { title, subtitle, listed, notes }: Caption, legend: Legend, scale: { text: string; pixels: number }, theme: Theme): Promise<Blob> {
  const sheet = document.createElement("canvas");
  const pen = sheet.getContext("2d");
  if (!pen) throw new Error("the browser has no canvas");
  const [wide, tall] = [map.width / ratio, map.height / ratio];
  const fonts = { title: `19px ${theme.colour("--serif")}`, text: `12.5px ${theme.colour("--sans")}` };
  const linesOf = (texts: readonly string[], font: string): string[] => {
    pen.font = font;
    return texts.filter(Boolean).flatMap((text) => wrap(text, wide - 2 * EDGE, (part) => pen.measureText(part).width));
  };
  const [heads, subheads, lead, foot] = [linesOf([title], fonts.title), linesOf([subtitle], fonts.text), linesOf([listed?.heading ?? ""], fonts.text), linesOf(notes, fonts.text)];
  const places = listed?.places ?? [];
  const room = wide - 2 * EDGE + GAP;
  const widest = Math.max(...places.map(([place, value]) => pen.measureText(`${place} ${value}`).width), 1);
  const columns = clamp(Math.floor(room / (widest + 2 * GAP)), 1, COLUMNS);
  const rows = Math.ceil(places.length / columns);
  const list = places.length ? TEXT * (lead.length + rows) + 8 : 0;
  const above = 12 + TITLE * heads.length + TEXT * subheads.length;
  sheet.width = map.width;
  sheet.height = Math.round((above + tall + LEGEND + list + TEXT * foot.length + 10) * ratio);
  const colour = (name: string): string => theme.colour(name);
  pen.fillStyle = colour("--sheet");
  pen.fillRect(0, 0, sheet.width, sheet.height);
  pen.drawImage(map, 0, Math.round(above * ratio));
  pen.scale(ratio, ratio);
  let y = 4;
  const write = (lines: string[], font: string, step: number, ink: string): void => {
    [pen.font, pen.fillStyle] = [font, ink];
    for (const line of lines) pen.fillText(line, EDGE, (y += step));
  };
  write(heads, fonts.title, TITLE, colour("--ink"));
  write(subheads, fonts.text, TEXT, colour("--soft"));
  y = above + tall + LEGEND;
  write(lead, fonts.text, TEXT, colour("--ink"));
  places.forEach(([place, value], i) => {
    const [x, line] = [EDGE + (room / columns) * Math.floor(i / rows), y + TEXT * (1 + (i % rows))];
    const end = x + room / columns - GAP;
    const start = end - pen.measureText(value).width;
    pen.fillText(place, x, line, start - x - 8);
    pen.fillText(value, start, line);
  });
  y = above + tall + LEGEND + list;
  write(foot, fonts.text, TEXT, colour("--soft"));
  pen.translate(0, above + tall);
  legend.draw(pen, wide, scale);
  return pngOf(sheet);
}
