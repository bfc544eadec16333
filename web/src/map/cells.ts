// The cells of a layer, or its named polygons: where they lie on the map, which is under a point, and how they are painted.
import type { Bounds, Layer, Measure } from "../views";
import { coloursOf, css, FADE, faded, type Rgb, shaded, shadeOf } from "./colours";
import type { Mode } from "../theme";
import { areaKm2, unitX, unitY } from "./projection";

/** Whether a point lies in the rings' area: those of holes are rings, too. */
export function inside(rings: [number, number][][], x: number, y: number): boolean {
  let odd = false;
  for (const ring of rings) {
    for (let i = 0, j = ring.length - 1; i < ring.length; j = i++) {
      const [[x0, y0], [x1, y1]] = [ring[i], ring[j]];
      if (y0 > y !== y1 > y && x < x0 + ((y - y0) / (y1 - y0)) * (x1 - x0)) odd = !odd;
    }
  }
  return odd;
}

const keyOf = (level: number, x: number, y: number): number => (x * 1048576 + y) * 32 + level;

const OUTLINED = 6; // CSS pixels of the narrowest zone that has an outline without a colour: lines of smaller ones, or of a grid's cells, would look like one
const OUTLINE: Record<Mode, string> = { dark: "rgba(241,236,228,.42)", light: "rgba(45,35,55,.34)" };
const BORDER: Record<Mode, string> = { dark: "rgba(8,7,11,.55)", light: "rgba(255,253,246,.75)" }; // over colours

/** How the canvas lies on the world: CSS pixels of the world's whole width, and of its corner from the canvas's. */
export interface Window {
  readonly world: number;
  readonly left: number;
  readonly top: number;
  readonly width: number;
  readonly height: number;
}

/** Whether polygons lie over the geography's lines: circles of stops, and others with ground between them, which a line would cut. */
export const isOverLines = ({ shapes, named, radius, area }: Layer): boolean => shapes !== null && (Boolean(radius) || (named && area.reduce((sum, one) => sum + one, 0) < 0.5));

export class Cells {
  readonly count: number;
  /** Those of the release's table, by which a link names cells. */
  readonly ids: readonly string[];
  private readonly rows = new Map<number, number>();
  private readonly edges: Float64Array; // west, north, east, south in the unit square
  private readonly deepest: number;
  private readonly sides: Bounds[]; // of polygons
  private shades: Int16Array = new Int16Array();
  private hatched: boolean[] = [];
  private styles: string[] = []; // of the colours
  private colours: Rgb[] = [];
  private patterns = new Map<number, CanvasPattern>();
  private mode: Mode = "dark";

  constructor(readonly layer: Layer, readonly region: Bounds) {
    const n = (this.count = layer.level.length);
    this.ids = layer.zones?.map(([zone]) => zone) ?? layer.cell_id;
    this.deepest = n ? layer.level[n - 1] : 0;
    this.edges = new Float64Array(4 * n);
    this.sides = (layer.shapes ?? []).map((rings) => {
      const side: Bounds = { west: Infinity, south: Infinity, east: -Infinity, north: -Infinity };
      for (const [x, y] of rings.flat()) {
        [side.west, side.south] = [Math.min(side.west, x), Math.min(side.south, y)];
        [side.east, side.north] = [Math.max(side.east, x), Math.max(side.north, y)];
      }
      return side;
    });
    for (let i = 0; i < n; i++) {
      if (!layer.shapes) this.rows.set(keyOf(layer.level[i], layer.x[i], layer.y[i]), i);
      const { west, south, east, north } = this.bounds(i);
      this.edges.set([unitX(west), unitY(north), unitX(east), unitY(south)], 4 * i);
    }
  }

  /** A cell's sides in degrees, or those of the rectangle around a polygon. */
  bounds(i: number): Bounds {
    return this.layer.shapes ? this.sides[i] : this.square(i);
  }

  /** The middle of a cell, or of a polygon's largest ring. */
  middle(i: number): [longitude: number, latitude: number] {
    const { west, south, east, north } = this.bounds(i);
    let [area, x, y] = [0, (west + east) / 2, (south + north) / 2];
    const [left, low] = [x, y]; // near the ring, so that no digits are lost
    for (const ring of this.layer.shapes?.[i] ?? []) {
      let [twice, u, v] = [0, 0, 0];
      ring.forEach(([x1, y1], j) => {
        const [x0, y0] = ring[(j || ring.length) - 1];
        const part = (x0 - left) * (y1 - low) - (x1 - left) * (y0 - low);
        [twice, u, v] = [twice + part, u + part * (x0 + x1 - 2 * left), v + part * (y0 + y1 - 2 * low)];
      });
      if (Math.abs(twice) > area) [area, x, y] = [Math.abs(twice), left + u / (3 * twice), low + v / (3 * twice)];
    }
    return [x, y];
  }

  private square(i: number): Bounds {
    const { level, x, y } = this.layer;
    const side = 2 ** level[i];
    const width = (this.region.east - this.region.west) / side;
    const height = (this.region.north - this.region.south) / side;
    const [west, north] = [this.region.west + x[i] * width, this.region.north - y[i] * height];
    return { west, north, east: west + width, south: north - height };
  }

  /** Square kilometres that a cell owns: its own less its descendants'. */
  area(i: number): number {
    return this.layer.area[i] * areaKm2(this.square(i));
  }

  /** The finest cell that covers a place, or the first polygon that does; or -1. */
  at(longitude: number, latitude: number): number {
    if (this.layer.shapes) return this.layer.shapes.findIndex((rings, i) => {
      const { west, south, east, north } = this.sides[i];
      return longitude >= west && longitude <= east && latitude >= south && latitude <= north && inside(rings, longitude, latitude);
    });
    const { west, south, east, north } = this.region;
    const [u, v] = [(longitude - west) / (east - west), (north - latitude) / (north - south)];
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return -1;
    for (let level = this.deepest; level >= 0; level--) {
      const side = 2 ** level;
      const row = this.rows.get(keyOf(level, Math.min(Math.floor(u * side), side - 1), Math.min(Math.floor(v * side), side - 1)));
      if (row !== undefined) return row;
    }
    return -1;
  }

  /** The value that a cell's colour shows: of a count, its users per area, unless its scale is of users. */
  private coloured({ kind, value, unit, scale }: Measure, i: number): number {
    return kind === "count" && scale.unit !== unit ? (value[i] ?? 0) / this.area(i) : value[i] ?? 0;
  }

  /** Which cells have no colour: a value is not known, or there may be no user, so that neither a count nor a rate is. */
  withoutColour(measure: Measure): boolean[] {
    const counted = measure.kind === "count" ? measure : this.layer.measures[0];
    const empty = (i: number): boolean => {
      if (counted.kind !== "count" || (measure.kind !== "count" && measure.kind !== "rate")) return false;
      return counted.smooth ? measure !== counted && shadeOf(this.coloured(counted, i), counted.scale) < FADE : counted.uncertain[i];
    };
    return measure.value.map((value, i) => value === null || !this.layer.area[i] || empty(i));
  }

  /** Gives every cell the colour of a measure. */
  dress(measure: Measure, mode: Mode): void {
    this.mode = mode;
    this.colours = coloursOf(measure.kind, mode);
    this.patterns.clear();
    this.styles = this.colours.map((_, shade) => shaded(this.colours, shade, measure.kind));
    this.hatched = measure.kind === "count" ? [] : measure.uncertain;
    const last = this.colours.length - 1;
    const without = this.withoutColour(measure);
    this.shades = Int16Array.from(measure.value, (value, i) => {
      if (value === null || without[i]) return -1;
      return Math.round(last * shadeOf(this.coloured(measure, i), measure.scale));
    });
  }

  /** A cell's colour without hatching, as CSS writes it; null where its value is not known. */
  colour(i: number): string | null {
    return this.shades[i] < 0 ? null : css(this.colours[this.shades[i]]);
  }

  /** Paints what is in sight, coarse cells first: finer ones replace what they lie on. A cell narrower than `least` device pixels is widened to it. */
  paint(pen: CanvasRenderingContext2D, view: Window, ratio: number, least: number): void {
    const { edges, shades } = this;
    const [scale, left, top] = [view.world * ratio, view.left * ratio, view.top * ratio];
    const [wide, high] = [view.width * ratio, view.height * ratio];
    let before = "";
    for (let i = 0; i < this.count; i++) {
      let x0 = Math.round(edges[4 * i] * scale + left), x1 = Math.round(edges[4 * i + 2] * scale + left);
      let y0 = Math.round(edges[4 * i + 1] * scale + top), y1 = Math.round(edges[4 * i + 3] * scale + top);
      if (x1 < 0 || y1 < 0 || x0 > wide || y0 > high) continue;
      if (!this.layer.shapes && !this.styles[shades[i]]?.startsWith("rgb(")) pen.clearRect(x0, y0, x1 - x0, y1 - y0);
      if (shades[i] < 0) {
        if (this.layer.shapes && this.layer.named && x1 - x0 >= OUTLINED * ratio) this.line(pen, this.layer.shapes[i], scale, left, top, ratio, OUTLINE[this.mode]);
        continue;
      }
      if (x1 - x0 < least) [x0, x1] = [x0 - Math.ceil((least - x1 + x0) / 2), x1 + Math.floor((least - x1 + x0) / 2)];
      if (y1 - y0 < least) [y0, y1] = [y0 - Math.ceil((least - y1 + y0) / 2), y1 + Math.floor((least - y1 + y0) / 2)];
      const name = `${shades[i]} ${this.hatched[i]}`;
      if (name !== before) pen.fillStyle = this.hatched[i] ? this.hatching(pen, shades[i], ratio, left, top) : this.styles[shades[i]];
      before = name;
      if (this.layer.shapes) {
        this.line(pen, this.layer.shapes[i], scale, left, top, ratio, (this.hatched[i] ? OUTLINE : BORDER)[this.mode], true);
        continue;
      }
      x0 = Math.max(x0, -8);
      y0 = Math.max(y0, -8);
      pen.fillRect(x0, y0, Math.min(x1, wide + 8) - x0, Math.min(y1, high + 8) - y0);
    }
  }

  /** Draws a polygon's border, over its colour if it has one: without it, a district keeps its shape where it may be empty. */
  private line(pen: CanvasRenderingContext2D, rings: [number, number][][], scale: number, left: number, top: number, ratio: number, colour: string, filled = false): void {
    pen.beginPath();
    for (const ring of rings) {
      ring.forEach(([longitude, latitude], i) => pen[i ? "lineTo" : "moveTo"](unitX(longitude) * scale + left, unitY(latitude) * scale + top));
      pen.closePath();
    }
    if (filled) pen.fill("evenodd");
    pen.lineWidth = (filled ? 0.6 : 1) * ratio;
    pen.strokeStyle = colour;
    pen.stroke();
  }

  /** Diagonal lines over a faded colour. They stick to the ground as the map moves. */
  private hatching(pen: CanvasRenderingContext2D, shade: number, ratio: number, left: number, top: number): CanvasPattern | string {
    let pattern = this.patterns.get(shade);
    if (!pattern) {
      const made = pen.createPattern(hatch(faded(this.colours[shade], this.mode), this.mode, ratio), "repeat");
      if (!made) return css(this.colours[shade]);
      this.patterns.set(shade, (pattern = made));
    }
    const side = Math.round(6 * ratio);
    pattern.setTransform(new DOMMatrix([1, 0, 0, 1, Math.round(left % side), Math.round(top % side)]));
    return pattern;
  }
}

/** A tile of hatching: a line that is seen on dark colours and one beside it that is seen on light ones. */
export function hatch(ground: Rgb, mode: Mode, ratio: number): HTMLCanvasElement {
  const side = Math.round(6 * ratio);
  const tile = Object.assign(document.createElement("canvas"), { width: side, height: side });
  const pen = tile.getContext("2d");
  if (!pen) return tile;
  pen.fillStyle = css(ground);
  pen.fillRect(0, 0, side, side);
  pen.lineWidth = ratio;
  const lines: [string, number][] = mode === "dark" ? [["rgba(210,204,222,.22)", 0], ["rgba(8,7,11,.3)", 1.4]] : [["rgba(60,50,70,.28)", 0], ["rgba(255,255,255,.4)", 1.4]];
  for (const [colour, beside] of lines) {
    pen.strokeStyle = colour;
    pen.beginPath();
    for (const shift of [-side, 0, side]) {
      pen.moveTo(shift + beside * ratio, side);
      pen.lineTo(shift + side + beside * ratio, 0);
    }
    pen.stroke();
  }
  return tile;
}
