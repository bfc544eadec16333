// Geography: water, land, lines, zones and names on the map's canvas, and the tiles of a server that the operator named.
import { h } from "../dom";
import { metres } from "../format";
import type { Tools } from "../product";
import type { Mode } from "../theme";
import type { Basemap, Bounds, PageView, Place } from "../views";
import { inside } from "./cells";
import type { MapFigure } from "./figure";
import type { Box, Ground, Named, Scene } from "./ground";
import type { Letters } from "./letters";
import { unitX, unitY } from "./projection";

type Point = [number, number];

const EARTH_RADIUS_M = 6371008.8;
const NEAR = 0.015; // of the extent of all names: a place within it is "near", one farther has its distance and direction
const AROUND = [[0, -6], [0, 17], [1.2, 4], [-1.2, 4], [0, -28], [0, 39], [1.2, -18], [-1.2, -18], [1.2, 26], [-1.2, 26], [2, -20], [-2, -20], [2, 28], [-2, 28], [2.4, 4], [-2.4, 4], [0, -52], [0, 62]]; // half widths of a name and CSS pixels from its point
const COLOURS: Record<Mode, { land: string; water: string; shore: string; line: string; zone: string }> = {
  dark: { land: "#17151d", water: "#0d1119", shore: "rgba(159,182,207,.55)", line: "rgba(255,255,255,.28)", zone: "rgba(255,255,255,.45)" },
  light: { land: "#f6f1e8", water: "#dfe8ee", shore: "rgba(48,84,120,.6)", line: "rgba(45,35,55,.26)", zone: "rgba(45,35,55,.5)" },
};

function boxOf(points: Point[]): Box {
  const box: Box = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [x, y] of points) {
    [box[0], box[1], box[2], box[3]] = [Math.min(box[0], x), Math.min(box[1], y), Math.max(box[2], x), Math.max(box[3], y)];
  }
  return box;
}

/** Metres from one place to another, and in which of eight directions it lies. */
export function wayTo([x0, y0]: Point, [x1, y1]: Point): { length: number; direction: string } {
  const rad = Math.PI / 180;
  const east = (x1 - x0) * rad * Math.cos(((y0 + y1) / 2) * rad);
  const north = (y1 - y0) * rad;
  const eighth = Math.round(Math.atan2(east, north) / (Math.PI / 4));
  return { length: EARTH_RADIUS_M * Math.hypot(east, north), direction: ["north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west"][(eighth + 8) % 8] };
}

/** A basemap as the map's ground. Shapes are kept as paths in thousandths of their extent in Web Mercator. */
export class BasemapGround implements Ground {
  readonly source: string;
  readonly names: readonly Named[];
  private readonly origin: Point;
  private readonly unit: number;
  private readonly paths: Record<"land" | "water" | "shore" | "line" | "zone", Path2D>;
  private readonly zones: { name: string; rings: Point[][]; box: Box }[];
  private readonly near: number; // metres
  private readonly places: Place[];
  private readonly box: Box; // what the geography covers: it was cut there
  readonly extent: Bounds | null; // null without land areas
  private readonly hasAreas: boolean;

  constructor(basemap: Basemap) {
    this.source = basemap.source;
    this.places = [...basemap.places].sort((a, b) => a.rank - b.rank);
    const areas = [...basemap.land.flat(), ...basemap.water.flat()];
    const zones = basemap.zones.flatMap((zone) => zone.rings);
    const found = boxOf([...areas.flat(), ...basemap.lines.flat(), ...zones.flat(), ...this.places.map((one): Point => [one.longitude, one.latitude])]);
    const { bounds } = basemap;
    const [west, south, east, north] = (this.box = bounds ? [bounds.west, bounds.south, bounds.east, bounds.north] : found);
    this.origin = [unitX(west), unitY(north)];
    this.unit = Math.max(unitX(east) - this.origin[0], unitY(south) - this.origin[1], 1e-12) / 1000;
    const named = boxOf([...zones.flat(), ...this.places.map((one): Point => [one.longitude, one.latitude])]);
    this.near = NEAR * wayTo([named[0], named[1]], [named[2], named[3]]).length;
    this.paths = { land: this.path(basemap.land.flat()), water: this.path(basemap.water.flat()), shore: this.path(areas, true), line: this.path(basemap.lines), zone: this.path(zones) };
    this.zones = basemap.zones.map(({ name, rings }) => ({ name, rings, box: boxOf(rings.flat()) }));
    this.names = [
      ...this.places.map(({ name, longitude, latitude }) => ({ name, box: { west: longitude, south: latitude, east: longitude, north: latitude } })),
      ...this.zones.map(({ name, box: [west, south, east, north] }) => ({ name, box: { west, south, east, north } })),
    ];
    this.hasAreas = areas.length > 0;
    this.extent = basemap.land.length > 0 ? { west, south, east, north } : null;
  }

  /** Lines or rings as one path. A shore does not follow the edge at which the geography was cut. */
  private path(lines: Point[][], isShore = false): Path2D {
    const path = new Path2D();
    const [west, south, east, north] = this.box;
    for (const line of lines) {
      line.forEach(([longitude, latitude], i) => {
        const [x, y] = [(unitX(longitude) - this.origin[0]) / this.unit, (unitY(latitude) - this.origin[1]) / this.unit];
        const [before, above] = line[Math.max(i - 1, 0)];
        const isCut = isShore && ((longitude === before && (longitude === west || longitude === east)) || (latitude === above && (latitude === south || latitude === north)));
        if (i && !isCut) path.lineTo(x, y);
        else path.moveTo(x, y);
      });
    }
    return path;
  }

  /** Draws in the paths' own units, of which one is `size` pixels. */
  private placed(pen: CanvasRenderingContext2D, scene: Scene, draw: (size: number) => void): void {
    const world = scene.project(180, 0)[0] - scene.project(-180, 0)[0];
    const [left, top] = scene.project(-180, 85.0511287798);
    const size = this.unit * world;
    pen.save();
    pen.translate(left + this.origin[0] * world, top + this.origin[1] * world);
    pen.scale(size, size);
    draw(size);
    pen.restore();
  }

  under(pen: CanvasRenderingContext2D, scene: Scene): void {
    if (!this.hasAreas) return;
    const colours = COLOURS[scene.mode];
    pen.fillStyle = this.extent ? colours.water : colours.land; // without land areas all is land, wherever the file ends
    const [[x0, y0], [x1, y1]] = this.extent ? [scene.project(this.box[0], this.box[3]), scene.project(this.box[2], this.box[1])] : [[0, 0], [scene.width, scene.height]];
    pen.fillRect(x0, y0, x1 - x0, y1 - y0);
    this.placed(pen, scene, () => {
      for (const name of ["land", "water"] as const) {
        pen.fillStyle = colours[name];
        pen.fill(this.paths[name], "evenodd");
      }
    });
  }

  over(pen: CanvasRenderingContext2D, scene: Scene): void {
    const colours = COLOURS[scene.mode];
    this.placed(pen, scene, (size) => {
      pen.lineJoin = "round";
      for (const [name, width, dash] of [["line", 0.9, []], ["shore", 1.2, []], ["zone", 1, [5, 4]]] as const) {
        pen.strokeStyle = colours[name];
        pen.lineWidth = width / size;
        pen.setLineDash(dash.map((one) => one / size));
        pen.stroke(this.paths[name]);
      }
    });
  }

  letterForemost(pen: CanvasRenderingContext2D, scene: Scene, letters: Letters, zones: readonly string[]): void {
    const [place] = this.places;
    if (place && !zones.includes(place.name)) this.letterPlace(pen, scene, letters, place);
  }

  /** Writes a place's name above its point. The foremost one goes where there is room around it, without the point if that is covered. */
  private letterPlace(pen: CanvasRenderingContext2D, scene: Scene, letters: Letters, place: Place): void {
    const { name, rank } = place;
    const [x, y] = scene.project(place.longitude, place.latitude);
    const isFree = letters.isFree(x, y);
    const isForemost = rank === 0 || place === this.places[0];
    if (x < 0 || y < 0 || x > scene.width || y > scene.height || !(isFree || isForemost)) return;
    letters.font(isForemost ? 13.5 : 11.5);
    const half = letters.half(name);
    const isWritten = (isForemost ? AROUND : AROUND.slice(0, 1)).some(([across, down]) => letters.write(name, x + across * half, y + down));
    if (!isWritten || !isFree) return;
    pen.beginPath();
    pen.arc(x, y, 2, 0, 2 * Math.PI);
    pen.stroke();
    pen.fill();
    letters.take([x - 3, y - 3, x + 3, y + 3]);
  }

  /** Writes the names that have room: places by their rank, then zones that are wider than their names. */
  letter(pen: CanvasRenderingContext2D, scene: Scene, letters: Letters): void {
    for (const place of this.places) this.letterPlace(pen, scene, letters, place);
    letters.font(11.5, "italic");
    for (const { name, box } of this.zones) {
      const [[x0, y0], [x1, y1]] = [scene.project(box[0], box[3]), scene.project(box[2], box[1])];
      letters.write(name, (x0 + x1) / 2, (y0 + y1) / 2 + 4, x1 - x0);
    }
  }

  nearest(longitude: number, latitude: number): string | null {
    const zone = this.zones.find(({ rings, box }) => longitude >= box[0] && longitude <= box[2] && latitude >= box[1] && latitude <= box[3] && inside(rings, longitude, latitude));
    let [best, length, direction] = ["", Infinity, ""];
    for (const place of this.places) {
      const way = wayTo([place.longitude, place.latitude], [longitude, latitude]);
      if (way.length < length) [best, length, direction] = [place.name, way.length, way.direction];
    }
    const way = length <= Math.max(this.near, 1) ? `near ${best}` : `${metres(Number(length.toPrecision(2)))} ${direction} of ${best}`;
    return [zone?.name, best && way].filter(Boolean).join(", ") || null;
  }
}

/** Gives each of a page's maps its basemap, with the source under the map. One button shows the operator's tiles on the latest. */
export function geographyOf(view: PageView, tools: Tools): (figure: MapFigure) => void {
  const ground = view.basemap && new BasemapGround(view.basemap);
  const pattern = view.tiles;
  let words = view.basemap?.source ? `Geography: ${view.basemap.source}. ` : "";
  let latest: MapFigure | null = null;
  let on = false;
  const show = (): void => latest?.setTiles(on ? pattern : null);
  if (pattern !== null) {
    const host = new URL(pattern.replace(/[{}]/g, "")).host;
    words += `The street map comes from ${host}. While it is on, that server sees which parts of the map you view.`;
    const button = tools.addButton("Street map from the web", () => {
      on = !on;
      show();
      button.setAttribute("aria-pressed", String(on));
      tools.say(on ? `Street map on. ${host} sees which parts you view.` : "Street map off");
    });
    button.setAttribute("aria-pressed", "false");
    button.title = words;
  }
  return (figure) => {
    latest = figure;
    if (ground) figure.setBasemap(ground);
    if (words) figure.element.append(h("p", { class: "source" }, words.trim()));
    if (on) show();
  };
}
