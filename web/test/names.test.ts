// The names of zones: in one line or two within a zone, otherwise where no other zone is.
import { expect, test, vi } from "vitest";
import type { Box } from "../src/map/ground";
import { Letters } from "../src/map/letters";
import { letterZones, twoLines } from "../src/map/names";

/** What is written with letters of 6 pixels: text, x, y. */
function written(zones: { name: string; box: Box }[], taken: Box[] = []): [string, number, number][] {
  const fillText = vi.fn();
  const pen = { measureText: (text: string) => ({ width: 6 * text.length }), strokeText: vi.fn(), fillText } as unknown as CanvasRenderingContext2D;
  const scene = { project: (x: number, y: number): [number, number] => [x, y], width: 500, height: 500, zoom: 0, mode: "light" as const };
  const named = zones.map((zone) => ({ ...zone, middle: [(zone.box[0] + zone.box[2]) / 2, (zone.box[1] + zone.box[3]) / 2] as const }));
  letterZones(named, new Letters(pen, scene, taken), scene, (i, x, y) => {
    const [x0, y0, x1, y1] = zones[i].box;
    return x >= x0 && x <= x1 && y >= y0 && y <= y1;
  });
  return fillText.mock.calls as [string, number, number][];
}

test("a name breaks at the space nearest to its middle", () => {
  expect(["Neighborhood A", "South Lake Union", "Othello"].map(twoLines)).toEqual([["Neighborhood", "A"], ["South", "Lake Union"], null]);
});

test("a name is in the middle of its zone, else in two lines, else next to it", () => {
  const name = "South Lake Union"; // 96 pixels
  expect(written([{ name, box: [100, 100, 300, 200] }])).toEqual([[name, 200, 154]]);
  expect(written([{ name, box: [100, 100, 190, 200] }]).map(([text]) => text)).toEqual(["South", "Lake Union"]);
  const [[text, x, y]] = written([{ name, box: [200, 100, 240, 200] }]);
  expect([text, x, y < 100 || y > 200]).toEqual([name, 220, true]);
});

test("a name makes room for the number in its zone", () => {
  const number: Box = [190, 140, 210, 160];
  const [[, x, y]] = written([{ name: "Harbour", box: [100, 100, 300, 200] }], [number]);
  expect([x, y]).toEqual([200, 174]);
});

test("no name is written where its zone is not", () => {
  const left: Box = [100, 100, 220, 200];
  const [[first], [second, x]] = written([{ name: "A", box: left }, { name: "Little Neighbour", box: [221, 100, 250, 200] }]);
  expect([first, second]).toEqual(["A", "Little Neighbour"]);
  expect(x).toBeGreaterThan(220);
});
