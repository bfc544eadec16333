// A map's picture as a file: title, map, legend, and the notes without which it must not be passed on.
import { pngOf } from "../download";
import type { Theme } from "../theme";
import type { Legend } from "./legend";

/** What is written above and below the map. */
export interface Caption {
  readonly title: string;
  readonly subtitle: string;
  readonly notes: readonly string[]; // each begins a line
}

const [EDGE, LEGEND] = [14, 80]; // CSS pixels
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
export function pictureOf(map: HTMLCanvasElement, ratio: number, { title, subtitle, notes }: Caption, legend: Legend, scale: { text: string; pixels: number }, theme: Theme): Promise<Blob> {
  const sheet = document.createElement("canvas");
  const pen = sheet.getContext("2d");
  if (!pen) throw new Error("the browser has no canvas");
  const [wide, tall] = [map.width / ratio, map.height / ratio];
  const fonts = { title: `19px ${theme.colour("--serif")}`, text: `12.5px ${theme.colour("--sans")}` };
  const linesOf = (texts: readonly string[], font: string): string[] => {
    pen.font = font;
    return texts.filter(Boolean).flatMap((text) => wrap(text, wide - 2 * EDGE, (part) => pen.measureText(part).width));
  };
  const [heads, subheads, foot] = [linesOf([title], fonts.title), linesOf([subtitle], fonts.text), linesOf(notes, fonts.text)];
  const above = 12 + TITLE * heads.length + TEXT * subheads.length;
  sheet.width = map.width;
  sheet.height = Math.round((above + tall + LEGEND + TEXT * foot.length + 10) * ratio);
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
  write(foot, fonts.text, TEXT, colour("--soft"));
  pen.translate(0, above + tall);
  legend.draw(pen, wide, scale);
  return pngOf(sheet);
}
