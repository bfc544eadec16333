// @vitest-environment jsdom
import { beforeAll, expect, test, vi } from "vitest";
import { BasemapGround, geographyOf, wayTo } from "../src/map/basemap";
import { Letters } from "../src/map/letters";
import { inside } from "../src/map/cells";
import type { MapFigure } from "../src/map/figure";
import type { Scene } from "../src/map/ground";
import type { Tools } from "../src/product";
import type { Basemap, PageView } from "../src/views";

const square = (west: number, south: number, east: number, north: number): [number, number][] => [[west, south], [east, south], [east, north], [west, north], [west, south]];
const BASEMAP: Basemap = {
  source: "Survey", land: [], water: [[square(3.1, 1, 3.2, 1.2), square(3.14, 1.1, 3.16, 1.12)]], lines: [[[3, 1], [3.2, 1.2]]],
  zones: [{ name: "Old town", rings: [square(3, 1, 3.1, 1.1), square(3.04, 1.04, 3.06, 1.06)] }],
  places: [{ name: "Village", longitude: 3.02, latitude: 1.18, rank: 3 }, { name: "City", longitude: 3.15, latitude: 1.11, rank: 0 }],
  bounds: null,
};
const scene = (width = 400): Scene => ({ width, height: 400, zoom: 10, mode: "dark", project: (x, y) => [(x - 3) * 2000, (1.2 - y) * 2000] });

class Path {
  readonly points: [number, number][] = [];
  moves = 0;
  moveTo(x: number, y: number): void { this.moves += 1; this.points.push([x, y]); }
  lineTo(x: number, y: number): void { this.points.push([x, y]); }
}
beforeAll(() => vi.stubGlobal("Path2D", Path));

/** A pen that keeps what it is told to write and to fill. */
function penOf(): { pen: CanvasRenderingContext2D; written: string[]; filled: [string, string][] } {
  const [written, filled]: [string[], [string, string][]] = [[], []];
  const nothing = (): void => undefined;
  const pen = {
    fillStyle: "", save: nothing, restore: nothing, translate: nothing, scale: nothing, setLineDash: nothing, stroke: nothing, beginPath: nothing, arc: nothing, strokeText: nothing,
    fillRect(): void { filled.push(["all", pen.fillStyle]); },
    fill(path?: Path, rule?: string): void { if (path) filled.push([`${path.points.length} ${rule ?? ""}`, pen.fillStyle]); },
    measureText: (text: string) => ({ width: 6 * text.length }),
    fillText: (text: string) => written.push(text),
  };
  return { pen: pen as unknown as CanvasRenderingContext2D, written, filled };
}

test("a place in a zone has its name, but not in the zone's hole", () => {
  const ground = new BasemapGround(BASEMAP);
  expect(ground.nearest(3.02, 1.02)).toBe("Old town, 18 km south-west of City");
  expect(new BasemapGround({ ...BASEMAP, places: [] }).nearest(3.02, 1.02)).toBe("Old town");
  expect(ground.nearest(3.05, 1.05)).not.toContain("Old town");
  expect(inside(BASEMAP.zones[0].rings, 3.05, 1.05)).toBe(false);
});

test("elsewhere the nearest place is named, with distance and direction if it is far", () => {
  const ground = new BasemapGround(BASEMAP);
  expect(ground.nearest(3.151, 1.111)).toBe("near City");
  expect(ground.nearest(3.19, 1.11)).toBe("4.4 km east of City");
  expect(ground.nearest(3.02, 1.14)).toBe("4.4 km south of Village");
  expect(new BasemapGround({ ...BASEMAP, zones: [], places: [] }).nearest(3, 1)).toBeNull();
});

test("distances and directions on the ground", () => {
  expect(wayTo([0, 60], [1, 60]).length).toBeCloseTo(55597, -1); // half a degree's length at the equator
  expect([[0, 1], [1, 1], [1, 0], [-1, -1], [0, -1], [-1, 0], [-1, 1]].map(([x, y]) => wayTo([0, 0], [x, y]).direction))
    .toEqual(["north", "north-east", "east", "south-west", "south", "west", "north-west"]);
});

test("areas lie under the cells; with land alone the rest is water", () => {
  const known = penOf();
  new BasemapGround(BASEMAP).under(known.pen, scene());
  expect(known.filled.map(([what]) => what)).toEqual(["all", "0 evenodd", "10 evenodd"]);
  const [[, land]] = known.filled;
  const island = penOf();
  new BasemapGround({ ...BASEMAP, water: [], land: [[square(3, 1, 3.1, 1.1)]] }).under(island.pen, scene());
  expect(island.filled[0][1]).not.toBe(land);
  expect(island.filled[1]).toEqual(["5 evenodd", land]);
  const bare = penOf();
  new BasemapGround({ ...BASEMAP, water: [] }).under(bare.pen, scene());
  expect(bare.filled).toEqual([]);
});

test("shores do not follow the edge at which the geography was cut", () => {
  const drawn: Path[] = [];
  const { pen } = penOf();
  Object.assign(pen, { stroke: (path?: Path) => path && drawn.push(path) });
  // Water that was cut in the west and the south; its other sides are shores.
  new BasemapGround({ ...BASEMAP, water: [[square(3, 1, 3.1, 1.1)]], lines: [[[3, 1], [3.2, 1.2]]], places: [], zones: [] }).over(pen, scene());
  const [, shore] = drawn;
  expect(shore.points.length).toBe(5);
  expect(shore.moves).toBe(3); // the beginning, then past the southern and past the western side
});

test("names do not overlap, important ones first, and those outside are left out", () => {
  const crowd = Array.from({ length: 30 }, (_, i) => ({ name: `Place ${i}`, longitude: 3.1 + i / 1e5, latitude: 1.1, rank: 30 - i }));
  const { pen, written } = penOf();
  new BasemapGround({ ...BASEMAP, zones: [], places: [...crowd, { name: "Far", longitude: 9, latitude: 1.1, rank: 0 }] }).letter(pen, scene(), new Letters(pen, scene()));
  expect(written).toEqual(["Place 29"]);
  const all = penOf();
  new BasemapGround(BASEMAP).letter(all.pen, scene(), new Letters(all.pen, scene()));
  expect(all.written).toEqual(["City", "Village", "Old town"]);
});

test("a name that a layer wrote is not written again", () => {
  const { pen, written } = penOf();
  const letters = new Letters(pen, scene());
  letters.write("City", 20, 30);
  new BasemapGround(BASEMAP).letter(pen, scene(), letters);
  expect(written.filter((name) => name === "City")).toHaveLength(1);
});

test("no name covers a symbol, and no place on a symbol or a name has one", () => {
  const { pen, written } = penOf();
  const letters = new Letters(pen, scene());
  const circle: [number, number, number, number] = [190, 190, 210, 210];
  expect(letters.write("Beside", 185, 200, Infinity, [circle])).toBe(false);
  expect(letters.write("Beside", 150, 200, Infinity, [circle])).toBe(true);
  expect([letters.isFree(150, 195), letters.isFree(200, 200)]).toEqual([false, true]);
  letters.symbols = [circle];
  expect([letters.isFree(200, 200), letters.write("Over", 200, 205)]).toEqual([false, false]);
  const at = (longitude: number, latitude: number, name: string): Basemap["places"][number] => ({ name, longitude, latitude, rank: 3 });
  new BasemapGround({ ...BASEMAP, zones: [], places: [at(3.05, 1.05, "Free"), at(3.1, 1.1, "On the circle"), at(3.075, 1.102, "On the name")] }).letter(pen, scene(), letters);
  expect(written).toEqual(["Beside", "Free"]);
});

test("names make room for what a product painted, and the foremost one moves around its point, which may be covered", () => {
  const city = BASEMAP.places.find(({ name }) => name === "City");
  if (!city) throw new Error("no city");
  const [x, y] = scene().project(city.longitude, city.latitude);
  const ground = new BasemapGround({ ...BASEMAP, zones: [], places: [city] });
  const heights: number[] = [];
  const { pen } = penOf();
  Object.assign(pen, { fillText: (_: string, __: number, at: number) => heights.push(at), arc: vi.fn() });
  ground.letter(pen, scene(), new Letters(pen, scene(), [[x - 9, y - 18, x + 9, y]]));
  expect(pen.arc).toHaveBeenCalledTimes(1);
  ground.letter(pen, scene(), new Letters(pen, scene(), [[x - 9, y - 18, x + 9, y + 24]]));
  ground.letter(pen, scene(), new Letters(pen, scene(), [[x - 200, y - 200, x + 200, y + 200]]));
  expect(heights).toEqual([y + 17, y - 28]);
  expect(pen.arc).toHaveBeenCalledTimes(1);
});

test("the foremost place is named before the zones, unless one of them has its name", () => {
  const ground = new BasemapGround({ ...BASEMAP, zones: [] });
  const { pen, written } = penOf();
  ground.letterForemost(pen, scene(), new Letters(pen, scene()), ["Harbour", "City"]);
  expect(written).toEqual([]);
  const letters = new Letters(pen, scene());
  ground.letterForemost(pen, scene(), letters, ["Harbour"]);
  ground.letter(pen, scene(), letters);
  expect(written).toEqual(["City", "Village"]);
});

test("tiles are off until the reader switches them on, and the page says who then watches", () => {
  const element = document.createElement("div");
  const [tiles, said]: [(string | null)[], string[]] = [[], []];
  const figure = { element, setBasemap: vi.fn(), setTiles: (pattern: string | null) => tiles.push(pattern) } as unknown as MapFigure;
  let press: () => void = () => undefined;
  const button = document.createElement("button");
  const tools = { addButton: (_: string, act: () => void) => ((press = act), button), say: (text: string) => said.push(text) } as unknown as Tools;
  const show = geographyOf({ basemap: null, tiles: "https://tile.example.org/{z}/{x}/{y}.png" } as PageView, tools);
  show(figure);
  expect(tiles).toEqual([]);
  expect(button.getAttribute("aria-pressed")).toBe("false");
  expect(element.textContent).toContain("tile.example.org");
  press();
  expect(tiles).toEqual(["https://tile.example.org/{z}/{x}/{y}.png"]);
  expect(button.getAttribute("aria-pressed")).toBe("true");
  expect(said[0]).toContain("tile.example.org sees");
  show(figure); // another map of the page
  expect(tiles.length).toBe(2);
  press();
  expect(tiles[2]).toBeNull();
});

test("without tiles there is no button, and a basemap's source is named", () => {
  const element = document.createElement("div");
  const setBasemap = vi.fn();
  const addButton = vi.fn();
  geographyOf({ basemap: BASEMAP, tiles: null } as PageView, { addButton } as unknown as Tools)({ element, setBasemap } as unknown as MapFigure);
  expect(addButton).not.toHaveBeenCalled();
  expect(setBasemap).toHaveBeenCalledOnce();
  expect(element.textContent).toBe("Geography: Survey.");
});

test("geography covers its bounds, where land may end earlier, at an open sea", () => {
  const island = { ...BASEMAP, water: [], lines: [], zones: [], places: [], land: [[square(3, 1, 3.1, 1.1)]] };
  expect(new BasemapGround(island).extent).toEqual({ west: 3, south: 1, east: 3.1, north: 1.1 });
  const bounds = { west: 2.9, south: 0.9, east: 3.3, north: 1.3 };
  const { pen } = penOf();
  const sea: number[][] = [];
  Object.assign(pen, { fillRect: (...box: number[]) => sea.push(box.map(Math.round)) });
  const ground = new BasemapGround({ ...island, bounds });
  ground.under(pen, scene());
  expect(ground.extent).toEqual(bounds);
  expect(sea).toEqual([[-200, -200, 800, 800]]);
});
