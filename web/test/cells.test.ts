import { expect, test } from "vitest";
import { h } from "../src/dom";
import { Cells } from "../src/map/cells";
import type { MapFigure } from "../src/map/figure";
import { coloursOf, shadeOf, shaded } from "../src/map/colours";
import { unitX, unitY } from "../src/map/projection";
import { cellWords, layerCsv, listedIn, nearestTo, tint } from "../src/products/map";
import type { Layer, MapBody, Measure, Scale } from "../src/views";

const region = { west: 3, south: 1, east: 3.16, north: 1.16 };
// The whole region, its south-eastern quarter, and that quarter's north-western cell.
const layer: Layer = { title: "", note: "", level: [0, 1, 2], x: [0, 1, 2], y: [0, 1, 2], area: [0.75, 0.75, 1], cell_id: ["r", "r3", "r30"], measures: [], shapes: null, zones: null, named: false, noun: "cell", radius: null };

test("the finest cell that covers a place is found, its border included", () => {
  const cells = new Cells(layer, region);
  expect(cells.at(3.01, 1.15)).toBe(0);
  expect(cells.at(3.15, 1.01)).toBe(1);
  expect(cells.at(3.1, 1.06)).toBe(2);
  expect(cells.at(3.16, 1.0)).toBe(1);
  expect(cells.at(3.17, 1.0)).toBe(-1);
});

test("a cell owns its area less that of finer cells", () => {
  const cells = new Cells(layer, region);
  const whole = cells.area(0) / 0.75;
  expect(whole).toBeCloseTo(316.5, 0); // square kilometres: 0.16 degrees squared at 1.08 degrees north
  expect(cells.area(1)).toBeCloseTo((whole / 4) * 0.75, 1);
});

test("a polygon is found by its rings, and owns its share of the region", () => {
  const square = (west: number, south: number, side: number): [number, number][] => [[west, south], [west + side, south], [west + side, south + side], [west, south + side], [west, south]];
  // A square with a hole, what fills the hole, and a zone of two parts.
  const shapes = [[square(3, 1, 0.08), square(3.02, 1.02, 0.02)], [square(3.02, 1.02, 0.02)], [square(3.1, 1.1, 0.01), square(3.14, 1.14, 0.01)]];
  const cells = new Cells({ ...layer, level: [0, 0, 0], x: [0, 0, 0], y: [0, 0, 0], area: [0.25, 0.01, 0.02], cell_id: ["a", "b", "c"], shapes }, region);
  expect([[3.01, 1.01], [3.03, 1.03], [3.105, 1.105], [3.145, 1.145], [3.12, 1.12], [3.05, 1.05]].map(([x, y]) => cells.at(x, y))).toEqual([0, 1, 2, 2, -1, 0]);
  expect(cells.bounds(2)).toEqual({ west: 3.1, south: 1.1, east: 3.15, north: 1.15 });
  expect(cells.area(0)).toBeCloseTo(316.5 / 4, 0);
});

test("a zone without a colour has an outline, unless it is tiny, and a zone with one is filled", () => {
  const square = (west: number): [number, number][] => [[west, 1], [west + 0.05, 1], [west + 0.05, 1.05], [west, 1.05], [west, 1]];
  const scale: Scale = { kind: "log", low: 0, high: 10, knee: 1, unit: "", ticks: [] };
  const measure: Measure = { name: "Users", kind: "count", unit: "users", value: [1, 900], low: [0, 800], high: [3, 1000], uncertain: [true, false], smooth: false, scale, listed: [], listed_note: "" };
  const zones: Layer = { ...layer, level: [0, 0], x: [0, 0], y: [0, 0], area: [0.1, 0.1], cell_id: ["a", "b"], shapes: [[square(3)], [square(3.1)]], measures: [measure] };
  const drawn = (world: number, named = true): string[] => {
    const cells = new Cells({ ...zones, named }, region);
    cells.dress(measure, "light");
    const [calls, nothing]: [string[], () => void] = [[], () => undefined];
    const pen = { beginPath: nothing, closePath: nothing, moveTo: nothing, lineTo: nothing, fill: () => calls.push("fill"), stroke: () => calls.push("stroke") };
    cells.paint(pen as unknown as CanvasRenderingContext2D, { world, left: -unitX(3) * world, top: -unitY(1.16) * world, width: 400, height: 400 }, 1, 0);
    return calls;
  };
  expect(drawn(360 * 2000)).toEqual(["stroke", "fill", "stroke"]);
  expect(drawn(360 * 50)).toEqual(["fill", "stroke"]);
  expect(drawn(360 * 2000, false)).toEqual(["fill", "stroke"]); // cells of a grid, which tile the map
});

test("zones are coloured by what their scale counts, and the bars of a list like them, in either theme", () => {
  const scale = (unit: string): Scale => ({ kind: "log", low: 0, high: 100, knee: 1, unit, ticks: [] });
  const users: Measure = { name: "Users", kind: "count", unit: "users", value: [50, 50], low: [40, 40], high: [60, 60], uncertain: [false, false], smooth: false, scale: scale("users"), listed: [], listed_note: "" };
  const cells = new Cells({ ...layer, level: [0, 0], x: [0, 0], y: [0, 0], area: [0.01, 0.02], cell_id: ["a", "b"], shapes: [[], []], measures: [users] }, region);
  const bars = [0, 1].map((row) => {
    const bar = document.createElement("i");
    bar.dataset.row = String(row);
    return bar;
  });
  const shown = (measure: Measure, mode: "light" | "dark"): string[] => {
    cells.dress(measure, mode);
    tint(bars, cells);
    return bars.map((bar) => bar.style.background);
  };
  const [light, dark] = [shown(users, "light"), shown(users, "dark")];
  expect([light[0] === light[1], dark[0] === dark[1], light[0] === dark[0]]).toEqual([true, true, false]);
  const [dense, sparse] = shown({ ...users, scale: scale("users per km²") }, "light");
  expect(dense).not.toBe(sparse);
});

test("the table of zones has the columns of the release", () => {
  const scale: Scale = { kind: "log", low: 0, high: 10, knee: 1, unit: "users", ticks: [] };
  const users: Measure = { name: "Users", kind: "count", unit: "users", value: [5, 9], low: [4, 8], high: [6, 10], uncertain: [false, false], smooth: false, scale, listed: [], listed_note: "" };
  const zones: Layer = { ...layer, cell_id: ["Mill (s1)", "Mill (s2)"], shapes: [[], []], zones: [["s1", "Mill"], ["s2", "Mill"]], measures: [users] };
  expect(layerCsv({ cells: null }, zones)).toBe("zone,name,users,low,high\r\ns1,Mill,5,4,6\r\ns2,Mill,9,8,10\r\n");
  expect(layerCsv({ cells: null }, { ...zones, zones: [["s1", null], ["s2", null]] })).toBe("zone,users,low,high\r\ns1,5,4,6\r\ns2,9,8,10\r\n");
  expect(layerCsv({ cells: null }, { ...layer, measures: [] })).toMatch(/^cell_id,west,south,east,north\r\n/);
});

test("Web Mercator's unit square", () => {
  expect([unitX(-180), unitX(0), unitX(180)]).toEqual([0, 0.5, 1]);
  expect(unitY(0)).toBeCloseTo(0.5, 12);
  expect(unitY(85.0511287798)).toBeCloseTo(0, 9);
  expect(unitY(60)).toBeCloseTo(0.5 - Math.log(Math.tan(Math.PI / 4 + Math.PI / 6)) / (2 * Math.PI), 12);
});

test("scales send their ends to the ends of the palette", () => {
  const log: Scale = { kind: "log", low: 0, high: 1500, knee: 10, unit: "", ticks: [] };
  expect([-5, 0, 1500, 9000].map((value) => shadeOf(value, log))).toEqual([0, 0, 1, 1]);
  const change: Scale = { kind: "diverging", low: -4, high: 4, knee: null, unit: "", ticks: [] };
  expect([-4, 0, 4].map((value) => shadeOf(value, change))).toEqual([0, 0.5, 1]);
});

test("on light paper nobody is paper, in the dark nobody is dark", () => {
  const brightness = ([r, g, b]: number[]): number => r + g + b;
  for (const kind of ["count", "rate"] as const) {
    expect(brightness(coloursOf(kind, "light")[0])).toBeGreaterThan(brightness(coloursOf(kind, "light")[255]));
    expect(brightness(coloursOf(kind, "dark")[0])).toBeLessThan(brightness(coloursOf(kind, "dark")[255]));
  }
});

test("a count that may be 0 and its rate have no colour, unless counts follow their surroundings", () => {
  const scale: Scale = { kind: "log", low: 0, high: 10, knee: 1, unit: "", ticks: [] };
  const count: Measure = { name: "Users", kind: "count", unit: "users", value: [1, 9, 9], low: [0, 8, 8], high: [3, 10, 10], uncertain: [true, false, false], smooth: false, scale, listed: [], listed_note: "" };
  const rate: Measure = { ...count, kind: "rate", value: [0.1, 0.2, null], uncertain: [false, true, true] };
  expect(new Cells({ ...layer, measures: [count, rate] }, region).withoutColour(count)).toEqual([true, false, false]);
  expect(new Cells({ ...layer, measures: [count, rate] }, region).withoutColour(rate)).toEqual([true, false, true]);
  const smooth: Measure = { ...count, value: [1, 9e4, 9e4], smooth: true };
  const cells = new Cells({ ...layer, measures: [smooth, rate] }, region);
  expect(cells.withoutColour(smooth)).toEqual([false, false, false]);
  expect(cells.withoutColour(rate)).toEqual([true, false, true]);
});

test("counts fade out towards 0, rates do not", () => {
  const colours = coloursOf("count", "light");
  expect(shaded(colours, 0, "count")).toMatch(/^rgba\(.*,0\.000\)$/);
  expect(shaded(colours, 255, "count")).toMatch(/^rgb\(/);
  expect(shaded(colours, 0, "rate")).toMatch(/^rgb\(/);
});

test("a zone's own name is enough, unless another zone has it or it is a code", () => {
  const zones: Layer = { ...layer, cell_id: ["Mill (s1)", "Mill (s2)", "Port", "41103"], shapes: [[], [], [], []], zones: [["s1", "Mill"], ["s2", "Mill"], ["s3", "Port"], ["41103", null]], named: true };
  const figure = { nearest: () => "near City" };
  expect([0, 1, 2, 3, -1].map((row) => nearestTo(figure, zones, row, 3, 1))).toEqual(["near City", "near City", null, "near City", "near City"]);
  expect(nearestTo(figure, { ...zones, named: false }, 2, 3, 1)).toBe("near City");
  expect(nearestTo(figure, layer, 0, 3, 1)).toBe("near City");
});

test("the middle of a polygon is that of its largest ring", () => {
  const triangle: [number, number][] = [[3, 1], [3.03, 1], [3, 1.03], [3, 1]];
  const speck: [number, number][] = [[3.1, 1.1], [3.101, 1.1], [3.101, 1.101], [3.1, 1.1]];
  const [x, y] = new Cells({ ...layer, level: [0], x: [0], y: [0], area: [0.1], cell_id: ["a"], shapes: [[speck, triangle]] }, region).middle(0);
  expect(x).toBeCloseTo(3.01, 9);
  expect(y).toBeCloseTo(1.01, 9);
  expect(new Cells(layer, region).middle(1)).toEqual([3.12, 1.04].map((one) => expect.closeTo(one, 9) as number));
});

test("the tip of a change begins with the difference in users and its interval", () => {
  const scale: Scale = { kind: "diverging", low: -8, high: 8, knee: null, unit: "", ticks: [] };
  const change = (name: string, unit: string, value: number[], margin: number): Measure => ({ name, kind: "change", unit, value, low: value.map((one) => one - margin), high: value.map((one) => one + margin), uncertain: [true, true, true], smooth: false, scale, listed: [], listed_note: "" });
  const changes: Layer = { ...layer, measures: [change("Fewer or more users", "in standard deviations of noise", [1.26, -0.1, -4], 2), change("Difference", "users", [130, -4, -480], 100)] };
  const figure = { cells: new Cells(changes, region), nearest: () => null } as unknown as MapFigure;
  const body = { depth: 2, finest_metres: [100, 100], slots: null } as unknown as MapBody;
  const words = [0, 1, 2].map((row) => cellWords(figure, body, changes, changes.measures[0], { row, longitude: 3, latitude: 1 }));
  expect(words.map(({ value }) => value)).toEqual(["About 130 more users", "About as many users", "About 480 fewer users"]);
  expect(words[0].margin).toBe("30 to 230, 95% interval for this place only (pointwise)");
  expect(words[0].facts[0]).toEqual(["Fewer or more users", "1.3 standard deviations of noise"]);
});

test("a picture has the list of places in a panel, with their numbers on the map if they have some", () => {
  const item = (number: string, name: string): HTMLElement => h("li", {}, h("button", {}, h("span", {}, number ? h("i", {}, number) : null, name), h("b", {}, "900 (800 to 1,000)")));
  const panel = (...items: HTMLElement[]): HTMLElement => h("div", {}, h("h2", {}, "Busiest places"), h("p", { class: "quiet" }, "Users in a zone."), h("ol", { class: "places" }, items));
  expect(listedIn(panel(item("1", "Mill"), item("", "Quay")))).toEqual({ heading: "Busiest places. Users in a zone.", places: [["1  Mill", "900 (800 to 1,000)"], ["Quay", "900 (800 to 1,000)"]] });
  expect(listedIn(panel())).toBe(null);
});
