// Names on a map's canvas: each where there is room beside what is taken, and once.
import { clamp } from "../format";
import type { Mode } from "../theme";
import type { Box, Scene } from "./ground";

const FONT = '-apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'; // as the page's own
const LINE = 15; // CSS pixels from line to line
const NAME_ROOM = 10000; // square CSS pixels of the map for each name
const INK: Record<Mode, { ink: string; halo: string }> = { dark: { ink: "#f1ece4", halo: "rgba(8,7,11,.95)" }, light: { ink: "#241d2b", halo: "rgba(255,253,246,.95)" } };

const WAYS = Array.from({ length: 24 }, (_, i) => (i / 12) * Math.PI);

/** Whether two parts of the canvas share more than a border. */
export const overlap = (a: Box, b: Box): boolean => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];

export class Letters {
  private readonly taken: Box[];
  private readonly written = new Set<string>();
  private readonly halves = new Map<string, number>(); // of names in the present font
  private left: number;
  /** Symbols that no name may cover, such as the circles of stops. */
  symbols: readonly Box[] = [];

  constructor(private readonly pen: CanvasRenderingContext2D, private readonly scene: Scene, occupied: readonly Box[] = []) {
    this.taken = [...occupied];
    this.left = clamp(Math.floor((scene.width * scene.height) / NAME_ROOM), 4, 40);
  }

  /** Gives the pen the names' colours, before the first name and after something else was drawn. */
  prepare(): void {
    const [{ pen }, { ink, halo }] = [this, INK[this.scene.mode]];
    Object.assign(pen, { textAlign: "center", textBaseline: "alphabetic", lineJoin: "round", strokeStyle: halo, fillStyle: ink, lineWidth: 4 });
  }

  /** Whether a point is on no name and no symbol. */
  isFree(x: number, y: number): boolean {
    return ![...this.taken, ...this.symbols].some((one) => overlap(one, [x, y, x, y]));
  }

  /** Keeps a part of the canvas from all further names. */
  take(box: Box): void {
    this.taken.push(box);
  }

  /** Whether the map has all the names that it has room for. */
  get isFull(): boolean {
    return this.left <= 0;
  }

  /** Parts of the canvas that no name may cover. */
  get occupied(): readonly Box[] {
    return this.taken;
  }

  /** Half the width of a name with the room beside it. */
  half(text: string): number {
    const known = this.halves.get(text) ?? this.pen.measureText(text).width / 2 + 3; // a name is tried at many places
    this.halves.set(text, known);
    return known;
  }

  /** Writes a name next to a symbol where it covers no other. */
  writeBeside(text: string, symbol: Box, others: readonly Box[]): void {
    this.beside(text, symbol).some(([x, y]) => this.write(text, x, y, Infinity, others));
  }

  /** Where a name may be beside a symbol: over it, under it, to its right and left, then around it. */
  private beside(text: string, [x0, y0, x1, y1]: Box): [number, number][] {
    const [half, x, y] = [this.half(text), (x0 + x1) / 2, (y0 + y1) / 2];
    const around = WAYS.map((way): [number, number] => [x + Math.cos(way) * ((x1 - x0) / 2 + half), y + 5 + Math.sin(way) * ((y1 - y0) / 2 + 10)]);
    return [[x, y0 - 5], [x, y1 + 15], [x1 + half, y + 4], [x0 - half, y + 4], ...around];
  }

  /** Sets the size in pixels and the style of the names that follow. */
  font(size: number, style = ""): void {
    this.pen.font = `${style} ${size}px ${FONT}`;
    this.halves.clear();
  }

  /** Writes a name around a place unless it is wider than `most`, or covers a name or a symbol. Returns whether it was written. */
  write(text: string, x: number, y: number, most = Infinity, symbols = this.symbols): boolean {
    return 2 * this.half(text) <= most && this.writeLines([text], x, y, () => true, symbols);
  }

  /** Writes a name in lines, the first around a place, where its box `fits` and covers no name and no symbol. Returns whether it was written. */
  writeLines(lines: readonly string[], x: number, y: number, fits: (box: Box) => boolean, symbols = this.symbols): boolean {
    const { pen, scene } = this;
    const [text, half] = [lines.join(" "), Math.max(...lines.map((line) => this.half(line)))];
    const box: Box = [x - half, y - 13, x + half, y + 6 + LINE * (lines.length - 1)];
    if (this.written.has(text) || this.isFull || box[0] < 2 || box[1] < 2 || box[2] > scene.width - 2 || box[3] > scene.height - 2) return false;
    if (this.taken.some((one) => overlap(one, box)) || symbols.some((one) => overlap(one, box)) || !fits(box)) return false;
    this.taken.push(box);
    this.written.add(text);
    this.left -= 1;
    lines.forEach((line, i) => {
      pen.strokeText(line, x, y + LINE * i);
      pen.fillText(line, x, y + LINE * i);
    });
    return true;
  }
}
