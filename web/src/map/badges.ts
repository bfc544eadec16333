// The numbers of a list's places on the map: in a place that is large enough, otherwise beside it at the end of a line.
import type { Mode } from "../theme";
import type { Box } from "./ground";
import { overlap } from "./letters";

/** A listed place on the canvas, in CSS pixels. */
export interface Spot {
  readonly x: number; // its middle
  readonly y: number;
  readonly box: Box; // around it
  readonly half?: number; // half the width of its name, if that should be next to the number
}

/** Where a number is, and whether a line leads to it from its place. */
export interface Badge {
  readonly number: number;
  readonly x: number;
  readonly y: number;
  readonly from: Spot | null;
  readonly name: Box | null; // the room for the place's name next to the number
}

type Point = Pick<Spot, "x" | "y">;

const RADIUS = 8.5; // CSS pixels
const ROOMY = 22; // CSS pixels: a wider place has its number in it
const NEVER_LEFT_OUT = 3; // the first places
const REACHES = [16, 21, 27, 34, 42, 51, 61, 72, 84, 97, 111, 126]; // CSS pixels from a place to its number
const NEAR = 34; // CSS pixels from a place to its number, at most, unless it is one of the first
const NEAR_NAMED = 61; // the same for a number with a name
const WAYS = Array.from({ length: 24 }, (_, i) => ((i % 2 ? i + 1 : -i) / 24) * Math.PI - Math.PI / 4); // from the upper right to both sides
const STEPS = [0.2, 0.4, 0.6, 0.8];
const APART = 6; // CSS pixels, at least, from a line to the middle of another listed place

const around = ({ x, y }: Point): Box => [x - RADIUS - 1, y - RADIUS - 1, x + RADIUS + 1, y + RADIUS + 1];

/** Where a name may be next to a number or a symbol: to its right or left, over or under it. */
function sides([x0, y0, x1, y1]: Box, half: number): Box[] {
  const [x, y] = [(x0 + x1) / 2, (y0 + y1) / 2];
  return [[x1 + 1, y - 9, x1 + 1 + 2 * half, y + 10], [x0 - 1 - 2 * half, y - 9, x0 - 1, y + 10], [x - half, y0 - 19, x + half, y0], [x - half, y1, x + half, y1 + 19]];
}

/** Small boxes along the line to a number. */
const along = (from: Point, to: Point): Box[] => STEPS.map((share): Box => {
  const [x, y] = [from.x + share * (to.x - from.x), from.y + share * (to.y - from.y)];
  return [x - 2, y - 2, x + 2, y + 2];
});

/** The distance of a point from the line between two others. */
function distance({ x, y }: Point, a: Point, b: Point): number {
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  const along = Math.min(Math.max(((x - a.x) * dx + (y - a.y) * dy) / (dx * dx + dy * dy || 1), 0), 1);
  return Math.hypot(x - a.x - along * dx, y - a.y - along * dy);
}

/** Whether the lines between two pairs of points cross. */
function cross(a: Point, b: Point, c: Point, d: Point): boolean {
  const side = (p: Point, q: Point, r: Point): boolean => (q.x - p.x) * (r.y - p.y) > (q.y - p.y) * (r.x - p.x);
  return side(a, b, c) !== side(a, b, d) && side(c, d, a) !== side(c, d, b);
}

/**
 * Places the numbers of listed places in their order. No number covers another, what is `taken`, or a symbol; no line crosses another or passes a
 * listed place. A number goes where its place's name has room next to it, if there is such a place. A number without room near its place is left out
 * until the map is zoomed, except the first three, which may be farther and cover symbols.
 */
export function placeBadges(spots: readonly Spot[], symbols: readonly Box[], taken: readonly Box[], width: number, height: number): Badge[] {
  const badges: Badge[] = [];
  spots.forEach((spot, i) => {
    if (spot.x < 0 || spot.y < 0 || spot.x > width || spot.y > height) return;
    const occupied = [...taken, ...badges.flatMap((one) => (one.name ? [around(one), one.name] : [around(one)]))];
    const lines = badges.flatMap((one) => (one.from ? along(one.from, one) : []));
    const isIn = ([x0, y0, x1, y1]: Box): boolean => x0 >= 1 && y0 >= 1 && x1 <= width - 1 && y1 <= height - 1;
    const isFree = (at: Point): boolean => !occupied.some((one) => overlap(one, around(at)));
    const covers = (box: Box, ...more: readonly Box[][]): boolean => [occupied, lines, symbols, ...more].some((boxes) => boxes.some((one) => overlap(one, box)));
    const isRoomy = spot.box[2] - spot.box[0] > ROOMY && isFree(spot);
    const isSymbol = symbols.includes(spot.box); // whose name is around it, not in it
    const own = isRoomy && isSymbol && spot.half ? sides(spot.box, spot.half).find((box) => isIn(box) && !covers(box)) ?? null : null;
    if (isRoomy && (own || !isSymbol || !spot.half)) {
      badges.push({ number: i + 1, x: spot.x, y: spot.y, from: null, name: own });
      return;
    }
    const reach = REACHES[REACHES.length - 1];
    const near = symbols.filter((one) => overlap(one, [spot.x - reach, spot.y - reach, spot.x + reach, spot.y + reach]));
    const others = spots.filter((one) => one !== spot);
    const isClear = (at: Point): boolean => !badges.some(({ name }) => name !== null && along(spot, at).some((one) => overlap(one, name))) && !near.some((one) => overlap(one, around(at))) && !others.some((one) => distance(one, spot, at) < Math.min(APART, Math.hypot(one.x - spot.x, one.y - spot.y) / 2))
      && !badges.some((one) => distance(one, spot, at) < RADIUS + 1 || (one.from !== null && (cross(one.from, one, spot, at) || distance(at, one.from, one) < RADIUS + 1)));
    const isFirst = i < NEVER_LEFT_OUT;
    const nameAt = (at: Point): Box | null => sides(around(at), spot.half ?? 0).slice(0, 2).find((box) => isIn(box) && !covers(box, along(spot, at))) ?? null;
    const candidates = REACHES.filter((away) => isFirst || away <= NEAR_NAMED).flatMap((away) => WAYS.map((way): Point => ({ x: spot.x + away * Math.cos(way), y: spot.y + away * Math.sin(way) })))
      .filter((at) => isIn(around(at)) && isFree(at));
    const clear = candidates.filter(isClear);
    const named = spot.half ? clear.find((at) => nameAt(at) !== null) : undefined;
    if (!named && isRoomy) {
      badges.push({ number: i + 1, x: spot.x, y: spot.y, from: null, name: null });
      return;
    }
    const found = named ?? (isFirst ? clear[0] ?? candidates[0] : clear.find(({ x, y }) => Math.hypot(x - spot.x, y - spot.y) < NEAR + 1));
    if (found) badges.push({ number: i + 1, ...found, from: spot, name: named ? nameAt(named) : null });
  });
  return badges;
}

/** Draws numbers with their lines, and returns what they cover. */
export function drawBadges(pen: CanvasRenderingContext2D, badges: readonly Badge[], mode: Mode): Box[] {
  const [ink, paper] = mode === "dark" ? ["#f1ece4", "#0b0a0f"] : ["#1f1a24", "#faf7f2"];
  const lines = badges.flatMap(({ from, x, y }) => (from ? [[from, { x, y }]] : []));
  for (const [stroke, wide] of [[paper, 3.2], [ink, 1.2]] as const) {
    [pen.strokeStyle, pen.lineWidth] = [stroke, wide];
    pen.beginPath();
    for (const [from, to] of lines) {
      pen.moveTo(from.x, from.y);
      pen.lineTo(to.x, to.y);
    }
    pen.stroke();
  }
  const disc = (x: number, y: number, radius: number, colour: string): void => {
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fillStyle = colour;
    pen.fill();
  };
  for (const [from] of lines) {
    disc(from.x, from.y, 3, paper);
    disc(from.x, from.y, 2, ink);
  }
  pen.font = "600 11px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  for (const { number, x, y } of badges) {
    disc(x, y, RADIUS, ink);
    pen.fillStyle = paper;
    pen.fillText(String(number), x, y + 0.5);
  }
  return [...badges.map(around), ...lines.flatMap(([from, to]) => along(from, to))];
}
