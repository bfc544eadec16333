// The names of a layer's zones on the map: in a zone that has the room, otherwise around it.
import type { Box } from "./ground";
import type { Letters } from "./letters";

/** A zone on the canvas, in CSS pixels. */
export interface NamedZone {
  readonly name: string;
  readonly box: Box;
  readonly middle: readonly [number, number];
}

const [SIZE, SMALL] = [12, 10.5]; // CSS pixels, usually and where a name would not fit in its zone
const NARROW = 120; // CSS pixels: a narrower zone may have its name around it
const MOST_AROUND = 400; // zones whose names are tried around them: far more than a map has names
const SHARES = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

/** A name in two lines of about the same length; null for a single word. */
export function twoLines(name: string): [string, string] | null {
  const spaces = [...name].flatMap((one, i) => (one === " " ? [i] : []));
  if (!spaces.length) return null;
  const best = spaces.reduce((a, b) => (Math.abs(2 * b + 1 - name.length) < Math.abs(2 * a + 1 - name.length) ? b : a));
  return [name.slice(0, best), name.slice(best + 1)];
}

/** Sets the font of the names of zones. */
export const zoneFont = (letters: Letters): void => letters.font(SIZE);

/** Where a name's first line may be in a zone, the places nearest to the zone's middle first. */
function placesIn({ box: [x0, y0, x1, y1], middle: [x, y] }: NamedZone): [number, number][] {
  const grid = SHARES.flatMap((across) => SHARES.map((down): [number, number] => [x0 + across * (x1 - x0), y0 + down * (y1 - y0)]));
  const first: [number, number][] = [[x, y + 4], [x, y + 24], [x, y - 17]]; // in the middle; under or over a number there
  return [...first, ...grid.sort((a, b) => Math.hypot(a[0] - x, a[1] - y) - Math.hypot(b[0] - x, b[1] - y))];
}

/**
 * Writes the names of zones in their order: within a zone, in one line or two or smaller, otherwise around it, where no other zone is. So no name
 * seems to be that of a neighbour.
 *
 * holds: whether a point is in the zone with an index.
 */
export function letterZones(zones: readonly NamedZone[], letters: Letters, { width, height }: { width: number; height: number }, holds: (zone: number, x: number, y: number) => boolean): void {
  const boxes = zones.map(({ box }) => box);
  for (const [i, zone] of zones.entries()) {
    if (letters.isFull) return;
    const { name, box } = zone;
    const [x0, y0, x1, y1] = box;
    if (x1 < 0 || y1 < 0 || x0 > width || y0 > height) continue;
    const fits = ([left, top, right, bottom]: Box): boolean => [left + 3, right - 3].every((x) => [top + 2, bottom - 3].every((y) => holds(i, x, y)));
    const isIn = [SIZE, SMALL].some((size) => [[name], twoLines(name)].some((lines) => {
      letters.font(size);
      return lines !== null && Math.max(...lines.map((line) => letters.half(line))) < (x1 - x0) / 2 && placesIn(zone).some(([x, y]) => letters.writeLines(lines, x, y, fits, []));
    }));
    zoneFont(letters);
    if (!isIn && x1 - x0 < NARROW && i < MOST_AROUND) letters.writeBeside(name, box, boxes.filter((other) => other !== box));
  }
}
